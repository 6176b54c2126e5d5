//! Parts of the differential test.

pub mod comparison;
pub mod model;
pub mod ops;
