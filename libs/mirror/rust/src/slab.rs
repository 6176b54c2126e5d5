//! Slots that are found by a number and used again, in chunks that never move.
//!
//! A growing vector holds up to half of itself for nothing and copies itself; chunks cost one
//! vector per thousand slots and at most one chunk of room. The first is the general allocator's,
//! which is not touched before it is used; the others lie on large pages. Free slots are a list
//! through the slots.

use allocator_api2::vec::Vec as VecIn;
use kvatlas_pages::Memory;

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

/// No slot.
pub const NONE: u32 = u32::MAX;

/// What a slab holds: it lends a field to the list of free slots.
pub trait Slot: Copy {
    /// The field, as `set_link` wrote it.
    fn link(&self) -> u32;
    /// Make this a free slot whose successor is `next`.
    fn set_link(&mut self, next: u32);
}

/// See the module.
#[derive(Debug)]
pub struct Slab<T> {
    /// All full but the last.
    chunks: Vec<VecIn<T, Memory>>,
    memory: Memory,
    free: u32,
    opened: u32,
}

impl<T: Slot> Slab<T> {
    pub const fn new_in(memory: Memory) -> Self {
        Self {
            chunks: Vec::new(),
            memory,
            free: NONE,
            opened: 0,
        }
    }

    /// Puts `value` into a slot and returns its number.
    pub fn insert(&mut self, value: T) -> u32 {
        if self.free != NONE {
            let id = self.free;
            self.free = self.get(id).link();
            *self.get_mut(id) = value;
            return id;
        }
        let id = self.opened;
        if id as usize == self.chunks.len() * CHUNK {
            let memory = match self.chunks.len() {
                0 => Memory::general(),
                _ => self.memory.clone(),
            };
            self.chunks.push(VecIn::with_capacity_in(CHUNK, memory));
        }
        if let Some(last) = self.chunks.last_mut() {
            last.push(value);
            self.opened += 1;
        }
        id
    }

    /// Gives the slot back.
    pub fn remove(&mut self, id: u32) {
        let next = self.free;
        self.get_mut(id).set_link(next);
        self.free = id;
    }

    #[inline]
    pub fn get(&self, id: u32) -> &T {
        &self.chunks[(id >> CHUNK_BITS) as usize][id as usize & (CHUNK - 1)]
    }

    #[inline]
    pub fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.chunks[(id >> CHUNK_BITS) as usize][id as usize & (CHUNK - 1)]
    }

    /// The numbers of all slots that were ever used, the free ones too.
    pub fn ids(&self) -> std::ops::Range<u32> {
        0..self.opened
    }

    /// Bytes on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>()
            + self.chunks.capacity() * size_of::<VecIn<T, Memory>>()
    }
}
