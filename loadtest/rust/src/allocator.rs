//! The program's allocator, which counts bytes in use for the index benchmark.

use kvatlas_baselines::counting_allocator::CountingAllocator;

/// Costs two additions to one word per allocation.
#[global_allocator]
pub static COUNTING: CountingAllocator = CountingAllocator::new();
