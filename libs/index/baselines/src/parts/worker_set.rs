//! A set of workers that is usually tiny and sometimes the whole fleet: 16 bytes, then a bitmap.

const FEW: usize = 3;

/// Up to three workers in place, more in a bitmap as wide as the highest of them.
#[derive(Clone, Debug)]
pub(crate) enum WorkerSet {
    Few { len: u8, ids: [u32; FEW] },
    Many(Box<Bitmap>),
}

#[derive(Clone, Debug)]
pub(crate) struct Bitmap {
    len: u32,
    words: Vec<u64>,
}

impl Default for WorkerSet {
    fn default() -> Self {
        Self::Few {
            len: 0,
            ids: [0; FEW],
        }
    }
}

impl WorkerSet {
    pub fn of(worker: u32) -> Self {
        Self::Few {
            len: 1,
            ids: [worker, 0, 0],
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Self::Few { len, .. } => usize::from(*len),
            Self::Many(bitmap) => bitmap.len as usize,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, worker: u32) -> bool {
        match self {
            Self::Few { len, ids } => ids[..usize::from(*len)].contains(&worker),
            Self::Many(bitmap) => bitmap.contains(worker),
        }
    }

    /// Adds a worker; true if it is new to the set.
    pub fn insert(&mut self, worker: u32) -> bool {
        if self.contains(worker) {
            return false;
        }
        match self {
            Self::Few { len, ids } if usize::from(*len) < FEW => {
                ids[usize::from(*len)] = worker;
                *len += 1;
            }
            Self::Few { ids, .. } => {
                let mut bitmap = Bitmap {
                    len: 0,
                    words: Vec::new(),
                };
                ids.iter().for_each(|&id| bitmap.insert(id));
                bitmap.insert(worker);
                *self = Self::Many(Box::new(bitmap));
            }
            Self::Many(bitmap) => bitmap.insert(worker),
        }
        true
    }

    /// Removes a worker; true if it was in the set.
    pub fn remove(&mut self, worker: u32) -> bool {
        if !self.contains(worker) {
            return false;
        }
        match self {
            Self::Few { len, ids } => {
                let last = usize::from(*len) - 1;
                if let Some(place) = ids[..last].iter().position(|&id| id == worker) {
                    ids[place] = ids[last];
                }
                *len -= 1;
            }
            Self::Many(bitmap) => {
                bitmap.words[worker as usize / 64] &= !(1 << (worker % 64));
                bitmap.len -= 1;
                if bitmap.len as usize <= FEW {
                    let mut few = Self::default();
                    bitmap.for_each(|id| {
                        few.insert(id);
                    });
                    *self = few;
                }
            }
        }
        true
    }

    pub fn for_each(&self, mut each: impl FnMut(u32)) {
        match self {
            Self::Few { len, ids } => ids[..usize::from(*len)].iter().for_each(|&id| each(id)),
            Self::Many(bitmap) => bitmap.for_each(each),
        }
    }
}

impl Bitmap {
    fn contains(&self, worker: u32) -> bool {
        self.words
            .get(worker as usize / 64)
            .is_some_and(|word| word >> (worker % 64) & 1 == 1)
    }

    /// Adds a worker that is not in the set.
    fn insert(&mut self, worker: u32) {
        let word = worker as usize / 64;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (worker % 64);
        self.len += 1;
    }

    fn for_each(&self, mut each: impl FnMut(u32)) {
        for (place, &word) in self.words.iter().enumerate() {
            let mut rest = word;
            while rest != 0 {
                each(place as u32 * 64 + rest.trailing_zeros());
                rest &= rest - 1;
            }
        }
    }
}
