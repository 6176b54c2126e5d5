//! Memory for tables before they reach it.
//!
//! The first touch of a large page waits until the system has found and cleared it: milliseconds, in which a writer
//! applies nothing. So whoever has a thread to spare lets it take the next pages of the stretch ahead of the writers. They
//! lie idle, and are still zero.
//!
//! `unsafe` here: asking for memory at an address. Sound because that changes nothing of what is there, and a region is
//! not unmapped while one of its pages is asked for. Checked by `ahead::tests` and the index's `tests/accounting.rs`.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use parking_lot::MutexGuard;

use super::{Heap, Pages, whole_pages};
use crate::system::{self, PAGE};

/// Pages taken ahead. A writer at full speed fills one in twice the time that a slow system takes to clear the next.
const AHEAD_PAGES: usize = 2;

/// Takes memory ahead of tables that grow. See [`Pages::preparer`].
pub struct Preparer(pub(super) Arc<Pages>);

impl Preparer {
    /// Returns when those who own the tables are gone. The thread becomes one of low priority: while it clears a page, whoever wakes up
    /// should not have to wait for it.
    pub fn run(self) {
        system::lower_priority();
        self.0.prepare_until_closed();
    }
}

impl Pages {
    /// Takes pages ahead whenever there are too few, until [`Self::close`].
    fn prepare_until_closed(&self) {
        let mut heap = self.heap.lock();
        while !heap.closed {
            // Where there was none to be had, it may have been closed meanwhile, and nobody tells it twice.
            if !self.prepare(&mut heap) && !heap.closed {
                self.wanted.wait(&mut heap);
            }
        }
    }

    /// Ends [`Preparer::run`]: nothing is taken ahead any more.
    pub fn close(&self) {
        self.heap.lock().closed = true;
        self.wanted.notify_all();
    }

    /// Takes one page ahead, without holding up those who take pieces; false if there are enough, or none to be had, or
    /// another thread is at it: one page at a time is kept from going with its region.
    fn prepare(&self, heap: &mut MutexGuard<'_, Heap>) -> bool {
        if heap.preparing.is_some() {
            return false;
        }
        let Some((first, address)) = heap.next_ahead() else {
            return false;
        };
        heap.preparing = Some(address);
        // SAFETY: within a region, which stays mapped meanwhile.
        let has_it = MutexGuard::unlocked(heap, || unsafe { system::populate(first, PAGE) });
        heap.preparing = None;
        if has_it {
            heap.note_ahead(address);
        }
        if heap.used_bytes == 0 {
            heap.hand_back(); // its region could not go before
        }
        has_it
    }
}

impl Heap {
    /// Whether whoever takes pages ahead has something to do.
    pub(super) fn wants_more(&self) -> bool {
        let lacks = || self.places_ahead().any(|(_, taken)| !taken);
        self.preparing.is_none() && (self.runs_short() || lacks())
    }

    /// Whether writers come to the end of the stretch soon, and the next one is not mapped.
    fn runs_short(&self) -> bool {
        self.used_bytes > 0 && self.upcoming.is_empty() && self.places_ahead().count() < AHEAD_PAGES
    }

    /// The next page that is not taken ahead and should be. Where the stretch is too short for it, the next one is mapped.
    fn next_ahead(&mut self) -> Option<(NonNull<u8>, usize)> {
        if self.runs_short() {
            self.upcoming = self.map(AHEAD_PAGES * PAGE)?;
        }
        let (address, _) = self.places_ahead().find(|&(_, taken)| !taken)?;
        let (start, region) = self.regions.range(..=address).next_back()?;
        // SAFETY: within the region.
        Some((unsafe { region.first.add(address - start) }, address))
    }

    /// Bytes in pages that were taken ahead: whether enough lies idle is asked without them.
    pub(super) fn bytes_ahead(&self) -> usize {
        self.places_ahead().filter(|&(_, taken)| taken).count() * PAGE
    }

    /// The pages that writers reach next, by address, and whether they take memory.
    fn places_ahead(&self) -> impl Iterator<Item = (usize, bool)> {
        [&self.stretch, &self.upcoming]
            .into_iter()
            .flat_map(|stretch| self.pages_of(stretch))
            .take(AHEAD_PAGES)
    }

    fn pages_of(&self, stretch: &Range<usize>) -> impl Iterator<Item = (usize, bool)> {
        let within = self.regions.range(..=stretch.start).next_back();
        let within = within.filter(|_| !stretch.is_empty());
        within.into_iter().flat_map(|(&start, region)| {
            let pages = whole_pages(stretch.start - start, stretch.len());
            pages.map(move |page| (start + page * PAGE, region.taken[page]))
        })
    }

    /// The page at this address takes memory now.
    fn note_ahead(&mut self, address: usize) {
        let Some((start, region)) = self.regions.range_mut(..=address).next_back() else {
            return;
        };
        let page = (address - start) / PAGE;
        self.taken_pages += usize::from(!region.taken[page]);
        region.taken[page] = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_zero(first: NonNull<u8>, bytes: usize) -> bool {
        // SAFETY: the piece is the test's, and has that size.
        let piece = unsafe { std::slice::from_raw_parts(first.as_ptr(), bytes) };
        piece.iter().all(|&byte| byte == 0)
    }

    #[test]
    fn pages_ahead_are_idle_until_pieces_reach_them_and_go_with_the_rest() {
        let pages = Pages::default();
        assert!(!pages.prepare(&mut pages.heap.lock()));
        let mut pieces = Vec::new();
        for _ in 0..200 {
            pieces.push(pages.take(PAGE / 4).unwrap());
            // Whoever waits to be told is told exactly when there is something to do.
            let mut heap = pages.heap.lock();
            let mut told = heap.wants_more();
            while told {
                assert!(pages.prepare(&mut heap));
                told = heap.wants_more();
            }
            assert!(!pages.prepare(&mut heap));
            drop(heap);
            let begun = (pieces.len() * (PAGE / 4)).div_ceil(PAGE);
            assert_eq!(
                pages.idle_bytes(),
                (begun + AHEAD_PAGES) * PAGE - pieces.len() * (PAGE / 4)
            );
        }
        for piece in pieces {
            assert!(is_zero(piece, PAGE / 4));
            // SAFETY: taken for that size, and used no more.
            unsafe { pages.give(piece, PAGE / 4) };
        }
        assert_eq!(pages.idle_bytes(), 0);
        assert!(pages.heap.lock().regions.is_empty());
    }

    #[test]
    fn of_two_who_take_pages_ahead_one_waits_for_the_other() {
        let pages = Pages::default();
        let piece = pages.take(PAGE / 4).unwrap();
        let mut heap = pages.heap.lock();
        let (_, address) = heap.next_ahead().unwrap();
        heap.preparing = Some(address);
        assert!(!pages.prepare(&mut heap));
        assert_eq!(heap.preparing, Some(address));
        heap.preparing = None;
        assert!(pages.prepare(&mut heap));
        drop(heap);
        // SAFETY: taken for that size, and used no more.
        unsafe { pages.give(piece, PAGE / 4) };
    }

    #[test]
    fn a_thread_that_takes_pages_ahead_never_touches_what_pieces_hold_and_ends_with_the_heap() {
        let pages = Arc::new(Pages::default());
        let preparer = Preparer(Arc::clone(&pages));
        let ahead = std::thread::spawn(|| preparer.run());
        for round in 0..4u8 {
            let pieces: Vec<_> = (0..400).map(|_| pages.take(PAGE / 7).unwrap()).collect();
            for &piece in &pieces {
                assert!(is_zero(piece, PAGE / 7));
                // SAFETY: the piece is the test's, and has that size.
                unsafe { piece.write_bytes(round + 1, PAGE / 7) };
            }
            for piece in pieces {
                // SAFETY: as above.
                let bytes = unsafe { std::slice::from_raw_parts(piece.as_ptr(), PAGE / 7) };
                assert!(bytes.iter().all(|&byte| byte == round + 1));
                // SAFETY: taken for that size, and used no more.
                unsafe { pages.give(piece, PAGE / 7) };
            }
        }
        pages.close();
        ahead.join().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn who_is_closed_while_the_system_refuses_a_page_ends_all_the_same() {
        use std::time::{Duration, Instant};

        let pages = Arc::new(Pages::default());
        let piece = pages.take(PAGE / 4).unwrap();
        let (first, _) = pages.heap.lock().next_ahead().unwrap();
        // SAFETY: a page of the heap that nobody has; nobody touches it before it is unmapped.
        let denied = unsafe { libc::mprotect(first.as_ptr().cast(), PAGE, libc::PROT_NONE) };
        assert_eq!(denied, 0);
        let preparer = Preparer(Arc::clone(&pages));
        let ahead = std::thread::spawn(|| preparer.run());
        loop {
            let mut heap = pages.heap.lock();
            if heap.preparing.is_some() {
                heap.closed = true; // as `close` does, just while the system is asked
                break;
            }
            drop(heap);
            pages.wanted.notify_all();
        }
        pages.wanted.notify_all();
        let begun = Instant::now();
        while !ahead.is_finished() && begun.elapsed() < Duration::from_secs(10) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(ahead.is_finished());
        // SAFETY: taken for that size, and used no more.
        unsafe { pages.give(piece, PAGE / 4) };
    }
}
