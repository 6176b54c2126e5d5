//! The prefaulter: a thread takes the next pages from the system before a piece reaches them.
//!
//! The first touch of a large page waits until the system has found and cleared it: milliseconds, in which a writer applies
//! nothing. So a thread with nothing else to do prefaults the next pages of the extent. They count as idle, and are still
//! zero. Bound: two pages ahead of the allocator.
//!
//! `unsafe` here: making a page resident. Sound because this changes no content, and a region is not unmapped while one of
//! its pages is being prefaulted. Checked by `prefault::tests` and the index's `tests/accounting.rs`.

use std::sync::Arc;

use parking_lot::MutexGuard;

use crate::heap::{Heap, PageHeap};
use crate::system::{self, PAGE};

/// Prefaults pages of a heap. See [`PageHeap::prefaulter`].
pub struct Prefaulter(Arc<PageHeap>);

impl Prefaulter {
    /// Prefaults until the heap is closed. Lowers the priority of the calling thread, so that no other thread waits for it
    /// while it clears a page.
    pub fn run(self) {
        if cfg!(feature = "without-prefault") {
            return;
        }
        system::lower_priority();
        self.0.prefault_until_closed();
    }
}

impl PageHeap {
    /// The task that prefaults pages, on whatever thread runs it, until [`Self::close`].
    pub fn prefaulter(self: &Arc<Self>) -> Prefaulter {
        Prefaulter(Arc::clone(self))
    }

    /// Prefaults pages whenever there are too few, until [`Self::close`].
    fn prefault_until_closed(&self) {
        let mut heap = self.heap.lock();
        while !heap.closed {
            // `close` notifies once, perhaps while the lock was free: check again before the wait.
            if !self.prefault_one(&mut heap) && !heap.closed {
                self.prefault_wanted.wait(&mut heap);
            }
        }
    }

    /// Ends [`Prefaulter::run`].
    pub fn close(&self) {
        self.heap.lock().closed = true;
        self.prefault_wanted.notify_all();
    }

    /// Prefaults one page, without the lock while the system works. False: there are enough, the system has none, or another
    /// thread is prefaulting. Only one page at a time is protected from being unmapped.
    fn prefault_one(&self, heap: &mut MutexGuard<'_, Heap>) -> bool {
        if heap.prefaulting.is_some() {
            return false;
        }
        let Some((first, address)) = heap.next_to_prefault() else {
            return false;
        };
        heap.prefaulting = Some(address);
        // SAFETY: within a region, which stays mapped meanwhile.
        let has_it = MutexGuard::unlocked(heap, || unsafe { system::populate(first, PAGE) });
        heap.prefaulting = None;
        if has_it {
            heap.mark_resident(address);
        }
        if heap.used_bytes == 0 {
            heap.release_idle(); // its region could not be unmapped before
        }
        has_it
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::PREFAULTED_PAGES;
    use std::ptr::NonNull;

    fn is_zero(first: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the piece is the test's, and has that size.
        let piece = unsafe { std::slice::from_raw_parts(first.as_ptr(), bytes) };
        piece.iter().all(|&byte| byte == 0)
    }

    #[test]
    fn prefaulted_pages_are_idle_until_pieces_reach_them_and_go_with_the_rest() {
        let pages = PageHeap::default();
        assert!(!pages.prefault_one(&mut pages.heap.lock()));
        let mut pieces = Vec::new();
        for _ in 0..200 {
            pieces.push(pages.allocate(PAGE / 4).unwrap());
            // The thread is notified exactly when there is something to do.
            let mut heap = pages.heap.lock();
            let mut notified = heap.wants_prefault();
            while notified {
                assert!(pages.prefault_one(&mut heap));
                notified = heap.wants_prefault();
            }
            assert!(!pages.prefault_one(&mut heap));
            drop(heap);
            let begun = (pieces.len() * (PAGE / 4)).div_ceil(PAGE);
            assert_eq!(
                pages.idle_bytes(),
                (begun + PREFAULTED_PAGES) * PAGE - pieces.len() * (PAGE / 4)
            );
        }
        for piece in pieces {
            assert!(is_zero(piece, PAGE / 4));
            // SAFETY: allocated for that size, and used no more.
            unsafe { pages.free(piece, PAGE / 4) };
        }
        assert_eq!(pages.idle_bytes(), 0);
        assert!(pages.heap.lock().regions.is_empty());
    }

    #[test]
    fn of_two_prefaulters_one_waits_for_the_other() {
        let pages = PageHeap::default();
        let piece = pages.allocate(PAGE / 4).unwrap();
        let mut heap = pages.heap.lock();
        let (_, address) = heap.next_to_prefault().unwrap();
        heap.prefaulting = Some(address);
        assert!(!pages.prefault_one(&mut heap));
        assert_eq!(heap.prefaulting, Some(address));
        heap.prefaulting = None;
        assert!(pages.prefault_one(&mut heap));
        drop(heap);
        // SAFETY: allocated for that size, and used no more.
        unsafe { pages.free(piece, PAGE / 4) };
    }

    #[test]
    fn a_prefaulter_never_touches_what_pieces_hold_and_ends_with_the_heap() {
        let pages = Arc::new(PageHeap::default());
        let prefaulter = Prefaulter(Arc::clone(&pages));
        let thread = std::thread::spawn(|| prefaulter.run());
        for round in 0..4u8 {
            let pieces: Vec<_> = (0..400)
                .map(|_| pages.allocate(PAGE / 7).unwrap())
                .collect();
            for &piece in &pieces {
                assert!(is_zero(piece, PAGE / 7));
                // SAFETY: the piece is the test's, and has that size.
                unsafe { piece.write_bytes(round + 1, PAGE / 7) };
            }
            for piece in pieces {
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), PAGE / 7) };
                assert!(bytes.iter().all(|&byte| byte == round + 1));
                // SAFETY: allocated for that size, and used no more.
                unsafe { pages.free(piece, PAGE / 7) };
            }
        }
        pages.close();
        thread.join().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_prefaulter_closed_while_the_system_refuses_a_page_ends_all_the_same() {
        use std::time::{Duration, Instant};

        let pages = Arc::new(PageHeap::default());
        let piece = pages.allocate(PAGE / 4).unwrap();
        let (first, _) = pages.heap.lock().next_to_prefault().unwrap();
        // SAFETY: a page of the heap that nobody has; nobody touches it before it is unmapped.
        let denied = unsafe { libc::mprotect(first.as_ptr().cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(denied, 0);
        let prefaulter = Prefaulter(Arc::clone(&pages));
        let thread = std::thread::spawn(|| prefaulter.run());
        loop {
            let mut heap = pages.heap.lock();
            if heap.prefaulting.is_some() {
                heap.closed = true; // as `close` does, just while the system is asked
                break;
            }
            drop(heap);
            pages.prefault_wanted.notify_all();
        }
        pages.prefault_wanted.notify_all();
        let begun = Instant::now();
        while !thread.is_finished() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(thread.is_finished());
        // SAFETY: allocated for that size, and used no more.
        unsafe { pages.free(piece, PAGE / 4) };
    }
}
