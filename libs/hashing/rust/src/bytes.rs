//! Tokens as the little-endian bytes that are hashed, without a copy where the machine allows it.
//!
//! The one cast of the crate stands here. It is sound: `u32` has no padding and an alignment above that of `u8`,
//! so any slice of tokens may be read as bytes; on little-endian machines these are the bytes wanted, as
//! the golden vectors check.

use std::borrow::Cow;

/// The tokens' little-endian bytes.
#[inline(always)]
pub fn le_bytes(tokens: &[u32]) -> Cow<'_, [u8]> {
    if cfg!(target_endian = "little") {
        // SAFETY: the same memory, of the same length in bytes, borrowed for as long.
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
