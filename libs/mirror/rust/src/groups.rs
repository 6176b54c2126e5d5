//! Which cache group of a hybrid model is indexed: the full-attention one, or the first one that a
//! release without kinds speaks of. Removals name a group but no kind, so it is remembered. The
//! reference is `kvatlas_engines.groups`.

use crate::model::{Reason, Refusal};

/// Kinds whose blocks depend on the whole prefix and hold all of it.
const FULL_ATTENTION: [&str; 3] = ["full_attention", "mla_attention", "sink_full_attention"];

/// See the module.
#[derive(Clone, Copy, Default, Debug)]
pub struct GroupFilter {
    main: Option<i128>,
    by_kind: bool,
}

impl GroupFilter {
    /// The indexed group, and whether its kind named it.
    pub const fn parts(&self) -> (Option<i128>, bool) {
        (self.main, self.by_kind)
    }

    /// The filter of those parts.
    pub const fn from_parts(main: Option<i128>, by_kind: bool) -> Self {
        Self { main, by_kind }
    }

    /// Refuses a store of another group; true if what was indexed before was another group.
    pub fn admit_store(
        &mut self,
        group: Option<i128>,
        kind: Option<&str>,
    ) -> Result<bool, Refusal> {
        if let Some(kind) = kind
            && !FULL_ATTENTION.contains(&kind)
        {
            let short: String = kind.chars().take(64).collect();
            return Err(Refusal::new(Reason::OtherGroup, format!("a {short} group")));
        }
        let Some(group) = group else {
            return Ok(false);
        };
        if self.main.is_none() || (kind.is_some() && !self.by_kind) {
            let replaced = self.main.is_some_and(|main| main != group);
            self.main = Some(group);
            self.by_kind = kind.is_some();
            return Ok(replaced);
        }
        self.admit_hash_only(Some(group))?;
        Ok(false)
    }

    /// Refuses a removal or a token-less store of another group.
    pub fn admit_hash_only(&self, group: Option<i128>) -> Result<(), Refusal> {
        match (group, self.main) {
            (Some(group), Some(main)) if group != main => {
                let detail = format!("group {group}; {main} is indexed");
                Err(Refusal::new(Reason::OtherGroup, detail))
            }
            _ => Ok(()),
        }
    }
}
