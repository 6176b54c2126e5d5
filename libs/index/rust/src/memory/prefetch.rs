//! Prefetching of cache lines.
//!
//! `unsafe` here: the processor's instruction. Sound because a prefetch reads nothing that the program can see and cannot
//! fault.

/// Asks for the cache line of `target`: a hint, so it does nothing where the instruction is not known.
#[inline]
pub(crate) fn prefetch<T>(target: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program can see and cannot fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(target).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
