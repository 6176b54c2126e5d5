//! Why a rendering has no result, and how long it may be.

/// Why there is no text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Python raises here or may give another text; the reason is for tests and debugging.
    Unlike(&'static str),
    /// The budget is spent.
    TooLong,
}

/// The result of one operation.
pub type Result<T> = std::result::Result<T, Refused>;

/// How much work one rendering may be, in steps: about one for each expression and each 64 bytes of text.
#[derive(Clone, Copy, Debug)]
pub struct Budget(pub u64);
