//! Tokens as little-endian bytes, without a copy on little-endian machines.
//!
//! `unsafe`: reads a slice of `u32` as bytes. It is sound because `u32` has no padding and a stricter
//! alignment than `u8`. The test `golden` checks the bytes.

use std::borrow::Cow;

/// Returns the tokens' little-endian bytes.
#[inline(always)]
pub fn le_bytes(tokens: &[u32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        // SAFETY: the same memory with the same length in bytes and the same lifetime.
        let bytes = unsafe {
            std::slice::from_raw_parts(tokens.as_ptr().cast::<u8>(), size_of_val(tokens))
        };
        Cow::Borrowed(bytes)
    } else {
        Cow::Owned(
            tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect(),
        )
    }
}
