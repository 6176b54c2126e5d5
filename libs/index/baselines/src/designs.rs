//! The designs, in the order in which they were published, the flat index last.

pub mod concurrent_radix;
pub mod flat;
pub mod host_bitmaps;
pub mod inverted;
pub mod nested_dict;
pub mod positional;
pub mod radix;
