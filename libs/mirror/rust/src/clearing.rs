//! How the mirror empties itself, or one tier: the published set stays prefix-closed at every border.

use crate::contexts::Contexts;
use crate::entries::Entries;
use crate::mirror::Mirror;
use crate::model::{TIERS, Tier, TierDigest};
use crate::said::Said;
use crate::tree::{ROOT, Tree};

impl Mirror {
    pub(crate) fn clear(&mut self, said: &mut Said) {
        if self.published.iter().any(|tier| tier.blocks > 0) {
            said.empty(None);
        }
        self.tree = Tree::new_in(&self.memory);
        self.entries = Entries::new_in(&self.memory);
        self.contexts = Contexts::new();
        self.published = [TierDigest::default(); TIERS.len()];
    }

    /// Empties one tier; first takes out what only its blocks made reachable.
    pub(crate) fn clear_tier(&mut self, tier: Tier, said: &mut Said) {
        let cut = self.cut_by(tier);
        // One operation clears the tier, unless a block of another tier lies between: then the cut
        // blocks go one by one, tail first, and the set stays closed at every border.
        let one_by_one = cut.iter().any(|node| self.is_elsewhere(*node, tier));
        for &node in cut.iter().rev() {
            self.tree.set_published(node, false);
            if one_by_one {
                for each in self.tree.tiers(node) {
                    self.say_removed(node, each, said);
                }
            }
        }
        if self.published[tier as usize].blocks > 0 {
            said.empty(Some(tier));
        }
        self.published[tier as usize] = TierDigest::default();
        self.entries.drop_all(tier);
        let there: Vec<u32> = self
            .tree
            .each_held()
            .filter(|n| self.tree.is_on(*n, tier))
            .collect();
        for node in there {
            self.tree.drop_all_refs(node, tier);
            if !self.tree.is_held(node) {
                self.unlink(node);
            }
        }
    }

    /// The published blocks that are only on this tier, and all published below them.
    fn cut_by(&self, tier: Tier) -> Vec<u32> {
        let mut cut = Vec::new();
        let mut below: Option<u32> = None; // the topmost block cut on the way to where we are
        let mut each = self.tree.next_below(ROOT, ROOT);
        while let Some(node) = each {
            // Nothing below a first block is unpublished: unpublished ones hang below ghosts.
            if !self.is_elsewhere(node, tier) && below.is_none() {
                below = Some(node);
            }
            if below.is_some() {
                cut.push(node);
            }
            each = match below {
                None => self.tree.next_below(ROOT, node),
                Some(top) => self.tree.next_below(top, node).or_else(|| {
                    below = None;
                    self.tree.next_beside(ROOT, top)
                }),
            };
        }
        cut
    }

    fn is_elsewhere(&self, node: u32, tier: Tier) -> bool {
        self.tree.tiers(node).any(|each| each != tier)
    }
}
