//! Ordering of changes: a change waits for an earlier one of the same pages until that one's answer is in place.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::engine::Piece;

const PAGE: u64 = 4096;

/// Locks; a page has one of them, which it shares with others.
const LOCKS: usize = 256;

/// The locks of all pages.
pub(super) struct Ranges(Vec<Mutex<()>>);

/// Those that a change holds.
pub(super) struct Held<'a> {
    _guards: Vec<MutexGuard<'a, ()>>,
}

impl Ranges {
    pub(super) fn new() -> Self {
        Ranges((0..LOCKS).map(|_| Mutex::new(())).collect())
    }

    /// Waits until no change of a page of these pieces is under way, and keeps it so.
    pub(super) fn hold(&self, pieces: &[Piece<'_>]) -> Held<'_> {
        #[cfg(test)]
        if super::tests::forgets_locks() {
            // A bug that the tests must find.
            return self.take(|_| false);
        }
        let mut wanted = [0_u64; LOCKS / 64];
        for piece in pieces.iter().filter(|piece| !piece.bytes.is_empty()) {
            let first = piece.offset / PAGE;
            let last = piece.offset.saturating_add(piece.bytes.len() as u64 - 1) / PAGE;
            if last - first >= LOCKS as u64 {
                return self.hold_all();
            }
            for page in first..=last {
                let lock = page as usize % LOCKS;
                wanted[lock / 64] |= 1 << (lock % 64);
            }
        }
        self.take(|lock| wanted[lock / 64] & 1 << (lock % 64) != 0)
    }

    /// The same of all pages.
    pub(super) fn hold_all(&self) -> Held<'_> {
        self.take(|_| true)
    }

    /// Always ascending, or two changes could wait for each other.
    fn take(&self, wanted: impl Fn(usize) -> bool) -> Held<'_> {
        // They guard no memory that a panic could leave in disorder.
        let lock = |index: usize| self.0[index].lock().unwrap_or_else(PoisonError::into_inner);
        Held { _guards: (0..LOCKS).filter(|index| wanted(*index)).map(lock).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_of_one_page_exclude_each_other_and_others_do_not() {
        let ranges = Ranges::new();
        let free = |page: u64| ranges.0[page as usize % LOCKS].try_lock().is_ok();
        let bytes = [0; 4097];
        let held = ranges.hold(&[
            Piece { offset: 4095, bytes: &bytes[..2] },
            Piece { offset: 4096 * 9, bytes: &bytes },
            Piece { offset: 4096 * 20, bytes: &[] },
        ]);
        let taken: Vec<u64> = (0..LOCKS as u64).filter(|page| !free(*page)).collect();
        assert_eq!(taken, [0, 1, 9, 10]);
        drop(held);
        assert!((0..LOCKS as u64).all(free));
        let long = vec![0; (LOCKS + 1) * PAGE as usize];
        let held = ranges.hold(&[Piece { offset: 0, bytes: &long }]);
        assert!(!(0..LOCKS as u64).any(free));
        drop(held);
    }
}
