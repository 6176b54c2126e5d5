//! Parts of the suites: the definition of the answers, and a fleet of all designs.

pub mod fleet;
pub mod model;
