//! The index of kvatlas: sequence hash to set of workers, lock-free for readers.
