//! The prompts of a run: a tree of at most 64 blocks, so that any set of blocks is one word.

use kvatlas_hashing::{chunk_hash, seed, sequence_step};

use crate::record::BLOCK_SIZE;
use crate::rng::Rng;

/// A set of blocks, one bit each.
pub type Set = u64;

/// All prompts. A block's number is larger than its parent's.
#[derive(Debug)]
pub struct Tree {
    parents: Vec<Option<usize>>,
    /// Tokens by block.
    pub tokens: Vec<[u32; BLOCK_SIZE as usize]>,
    /// Sequence hash by block.
    pub hashes: Vec<u64>,
    /// Number of blocks before it.
    pub depths: Vec<usize>,
}

impl Tree {
    /// A random tree of some deep chains that share their heads.
    #[must_use]
    pub fn grow(rng: &mut Rng) -> Self {
        let count = rng.between(6, 48) as usize;
        let mut tree = Self {
            parents: Vec::new(),
            tokens: Vec::new(),
            hashes: Vec::new(),
            depths: Vec::new(),
        };
        for block in 0..count {
            let parent = match rng.below(10) {
                0 => None,
                1 | 2 if block > 0 => Some(rng.below(block)),
                _ => block.checked_sub(1),
            };
            let tokens = std::array::from_fn(|_| rng.any() as u32);
            let chunk = chunk_hash(&tokens, seed(None, None), &[]);
            let hash = parent.map_or(chunk, |parent| sequence_step(tree.hashes[parent], chunk));
            let depth = parent.map_or(0, |parent| tree.depths[parent] + 1);
            tree.parents.push(parent);
            tree.tokens.push(tokens);
            tree.hashes.push(hash);
            tree.depths.push(depth);
        }
        tree
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.parents.len()
    }

    /// Always false: a tree has blocks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.parents.is_empty()
    }

    /// The block before this one.
    #[must_use]
    pub fn parent(&self, block: usize) -> Option<usize> {
        self.parents[block]
    }

    /// The prompt that ends with this block, head first.
    #[must_use]
    pub fn prompt(&self, block: usize) -> Vec<usize> {
        let mut path: Vec<usize> =
            std::iter::successors(Some(block), |&block| self.parents[block]).collect();
        path.reverse();
        path
    }

    /// The blocks of a set that a prompt can reach from its first block.
    #[must_use]
    pub fn reachable(&self, held: Set) -> Set {
        let mut reached = 0;
        for block in 0..self.len() {
            let above = self.parents[block].is_none_or(|parent| has(reached, parent));
            if above && has(held, block) {
                reached |= 1 << block;
            }
        }
        reached
    }

    /// The number of leading blocks of a prompt in a set.
    #[must_use]
    pub fn depth(&self, prompt: &[usize], held: Set) -> usize {
        prompt.iter().take_while(|&&block| has(held, block)).count()
    }
}

/// Whether a set holds a block.
#[must_use]
pub fn has(set: Set, block: usize) -> bool {
    set >> block & 1 == 1
}

/// The blocks of a set, heads first.
pub fn blocks(set: Set) -> impl DoubleEndedIterator<Item = usize> {
    (0..64).filter(move |&block| has(set, block))
}
