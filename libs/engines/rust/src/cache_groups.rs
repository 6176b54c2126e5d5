//! Decides which cache group of a hybrid model is indexed.
//!
//! vLLM gives each kind of attention layer a cache group of its own and announces all of them under
//! the same hashes. A prefix is only usable as deep as the full-attention group holds it, so that
//! group is indexed. A release without kinds (before 0.22) is indexed by the first group that it
//! announces; vLLM puts the full-attention group first. Removals name a group but no kind, so the
//! group is remembered.

use crate::event::{Refusal, RefusalReason};

/// Kinds whose blocks depend on the whole prefix and hold all of it.
const FULL_ATTENTION: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// The group that is indexed.
#[derive(Clone, Copy, Default, Debug)]
pub struct IndexedGroup {
    /// Its number; `None`: no event has named one.
    pub group: Option<i128>,
    /// Its kind named it, and so no later group replaces it.
    pub by_kind: bool,
}

impl IndexedGroup {
    /// Refuses a store of another group; true if this store replaces the group indexed before.
    ///
    /// The latter happens only where groups without a kind came before the first one with a kind.
    pub(crate) fn admit_store(
        &mut self,
        group: Option<i128>,
        kind: Option<&str>,
    ) -> Result<bool, Refusal> {
        if let Some(kind) = kind
            && !FULL_ATTENTION.contains(&kind)
        {
            let short: String = kind.chars().take(64).collect();
            let detail = format!("a {short} group");
            return Err(Refusal::new(RefusalReason::OtherGroup, detail));
        }
        let Some(group) = group else {
            return Ok(false);
        };
        if self.group.is_none() || (kind.is_some() && !self.by_kind) {
            let replaced = self.group.is_some_and(|indexed| indexed != group);
            self.group = Some(group);
            self.by_kind = kind.is_some();
            return Ok(replaced);
        }
        self.admit_hash_only(Some(group))?;
        Ok(false)
    }

    /// Refuses a removal, or a store without tokens, of another group.
    pub(crate) fn admit_hash_only(&self, group: Option<i128>) -> Result<(), Refusal> {
        match (group, self.group) {
            (Some(group), Some(indexed)) if group != indexed => {
                let detail = format!("group {group}; {indexed} is indexed");
                Err(Refusal::new(RefusalReason::OtherGroup, detail))
            }
            _ => Ok(()),
        }
    }
}
