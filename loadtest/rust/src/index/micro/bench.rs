//! The setup of a benchmark of single calls.

use kvatlas_baselines::catalogue::Design;

use crate::index::micro::sizes::Sizes;
use crate::index::micro::timing::Flush;

/// The design to measure, the sizes to measure, and memory to empty the caches with.
pub struct Bench {
    pub design: Design,
    pub sizes: Sizes,
    pub flush: Flush,
}

impl Bench {
    /// Allocates the memory.
    pub fn new(design: Design, sizes: Sizes) -> Self {
        Self {
            design,
            sizes,
            flush: Flush::new(),
        }
    }
}
