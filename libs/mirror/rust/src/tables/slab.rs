//! A slab: values found by a number, in chunks that never move, with a list of free places.
//!
//! A growing vector has up to half of its room idle and copies itself. Chunks cost one vector per
//! thousand values and at most one chunk of room. The first chunk is on the general allocator, which
//! touches no memory before it is used; the others are on large pages. The free list goes through the
//! free places themselves.

use allocator_api2::vec::Vec as VecIn;
use kvatlas_pages::Memory;

const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

/// No number.
pub const NONE: u32 = u32::MAX;

/// A value of a slab. It lends a field to the free list.
pub trait SlabItem: Copy {
    /// The field, as `set_link` wrote it.
    fn link(&self) -> u32;
    /// Makes this a free place, followed by `next` in the list.
    fn set_link(&mut self, next: u32);
}

/// Values of type `T`, each found by its number; see the module.
#[derive(Debug)]
pub struct Slab<T> {
    /// All are full but the last.
    chunks: Vec<VecIn<T, Memory>>,
    memory: Memory,
    free: u32,
    opened: u32,
}

impl<T: SlabItem> Slab<T> {
    pub const fn new_in(memory: Memory) -> Self {
        Self {
            chunks: Vec::new(),
            memory,
            free: NONE,
            opened: 0,
        }
    }

    /// Adds a value and returns its number.
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

    /// Frees the number's place.
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

    /// All numbers ever given, free ones too.
    pub fn ids(&self) -> std::ops::Range<u32> {
        0..self.opened
    }

    /// Bytes on the heap.
    pub fn memory_bytes(&self) -> usize {
        self.chunks.len() * CHUNK * size_of::<T>()
            + self.chunks.capacity() * size_of::<VecIn<T, Memory>>()
    }
}
