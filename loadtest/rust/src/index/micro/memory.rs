//! Memory per membership: for blocks with one holder, with more holders added, and after all are removed.

use kvatlas_baselines::catalogue::Design;
use serde_json::{Value, json};

use crate::index::micro::filled::Filled;

/// Holders added to every block, one after another.
const ADDED: u32 = 2;

/// As the index is.
pub fn size(design: &Design, filled: &Filled) -> Value {
    json!({
        "operation": "size", "design": design.name, "workers": filled.fleet,
        "memberships": filled.memberships, "bytes": filled.bytes(),
        "bytes_per_membership": filled.bytes() as f64 / filled.memberships as f64,
    })
}

/// Every block gets another holder, twice; then all is removed. Takes the index of blocks with one holder, and leaves
/// it empty.
pub fn fill_and_empty(design: &Design, filled: &mut Filled) -> Vec<Value> {
    let mut lines = Vec::new();
    let blocks = filled.memberships;
    for further in 1..=ADDED {
        let before = filled.bytes();
        filled.add_holder(further);
        let more = filled.bytes() as f64 - before as f64;
        lines.push(json!({
            "operation": "holder", "design": design.name, "workers": filled.fleet, "memberships": blocks,
            "holder": further + 1, "bytes_more_per_membership": more / blocks as f64,
        }));
    }
    let before = filled.bytes();
    for further in 0..=ADDED {
        filled.empty(further);
    }
    let after = filled.bytes();
    lines.push(json!({
        "operation": "empty", "design": design.name, "workers": filled.fleet,
        "memberships": blocks * u64::from(1 + ADDED), "bytes_before": before, "bytes_after": after,
        "given_back_share": 1.0 - after as f64 / before.max(1) as f64,
    }));
    lines
}
