//! What the differential test is made of.

pub mod both;
pub mod model;
pub mod ops;
