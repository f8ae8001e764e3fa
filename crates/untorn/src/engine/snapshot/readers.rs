//! Snapshots whose holder does not read for now.
//!
//! A program that reads again and again holds one snapshot, and goes on with it as long as no commit came. While it
//! does not read, the snapshot *rests*. After a commit a resting snapshot is of no use, so the commit ends it instead
//! of keeping pages for it: it *lapses*.
//!
//! # Invariants
//!
//! 1. One word counts the readers that use a snapshot, or says that it has lapsed. A commit lapses it by a
//!    compare-and-swap from no reader; a reader begins by a compare-and-swap to one more. So either the reader finds
//!    the snapshot lapsed, or the commit finds the reader and the snapshot holds.
//! 2. Changes are counted after they were made and before anybody is told that they were. So a snapshot that was taken
//!    when the count was the same has all that was acknowledged before its reader looked.
//! 3. A snapshot lapses after the write that ends it, not before: readers go on with the last commit while the next one
//!    is being flushed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// No reader begins any more.
const LAPSED: u64 = u64::MAX;

/// A reader begins. False if the snapshot has lapsed.
pub(super) fn begin(readers: &AtomicU64) -> bool {
    // A word of another process may hold anything.
    let more = |count: u64| count.checked_add(1).filter(|_| count < LAPSED - 1);
    readers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

/// A reader ends.
pub(super) fn end(readers: &AtomicU64) {
    let less = |count: u64| (count != LAPSED).then(|| count.saturating_sub(1));
    let _ = readers.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less);
}

/// Lapses a snapshot that nobody uses. True if that is so now.
pub(super) fn lapse(readers: &AtomicU64) -> bool {
    readers.compare_exchange(0, LAPSED, Ordering::SeqCst, Ordering::SeqCst).is_ok()
}

/// The same, where it may have lapsed before.
pub(super) fn has_lapsed(readers: &AtomicU64) -> bool {
    matches!(readers.compare_exchange(0, LAPSED, Ordering::SeqCst, Ordering::SeqCst), Ok(_) | Err(LAPSED))
}

/// The readers of a snapshot in this process.
pub(crate) struct Readers {
    count: AtomicU64,
    changes: Arc<Changes>,
    /// The count of changes when the snapshot was taken.
    taken_at: u64,
}

/// The changes of one file.
#[derive(Default)]
pub(crate) struct Changes {
    count: AtomicU64,
    /// Whether a held snapshot may rest.
    pub(super) any_rests: AtomicBool,
}

impl Changes {
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Counts a change that was made, before anybody is told.
    #[inline(always)]
    pub(super) fn note(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
    }
}

impl Readers {
    /// Those of a snapshot that is being taken, with one reader. No change is under way.
    pub(super) fn new(changes: &Arc<Changes>) -> Arc<Self> {
        Readers::since(changes, changes.count())
    }

    /// Those of a snapshot that was made at a count of changes.
    pub(super) fn since(changes: &Arc<Changes>, taken_at: u64) -> Arc<Self> {
        Arc::new(Readers { count: AtomicU64::new(1), changes: Arc::clone(changes), taken_at })
    }

    pub(super) fn rest(&self) {
        self.changes.any_rests.store(true, Ordering::SeqCst);
        end(&self.count);
    }

    /// A reader goes on. False, and it does not, if there may have been a commit.
    pub(super) fn resume(&self) -> bool {
        if !begin(&self.count) {
            return false;
        }
        let is_last = self.changes.count.load(Ordering::SeqCst) == self.taken_at;
        if !is_last {
            end(&self.count);
        }
        is_last
    }

    pub(super) fn lapse(&self) -> bool {
        lapse(&self.count)
    }

    pub(super) fn has_lapsed(&self) -> bool {
        has_lapsed(&self.count)
    }
}

/// Lapses a snapshot of another process, if nobody uses it there. True if that is so now.
pub(crate) type LapseElsewhere = Box<dyn Fn() -> bool + Send + Sync>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_lapses_only_without_readers() {
        let changes = Arc::new(Changes::default());
        let readers = Readers::new(&changes);
        assert!(!readers.lapse() && readers.resume() && !readers.lapse());
        readers.rest();
        readers.rest();
        assert!(readers.resume(), "nothing has changed");
        readers.rest();
        assert!(readers.lapse() && !readers.resume() && !readers.lapse());
        readers.rest();
        assert!(!readers.resume(), "it stays lapsed");
    }

    #[test]
    fn a_snapshot_does_not_go_on_after_a_change() {
        let changes = Arc::new(Changes::default());
        let readers = Readers::new(&changes);
        readers.rest();
        changes.note();
        assert!(!readers.resume());
        assert!(readers.lapse(), "no reader was left behind");
        assert!(Readers::new(&changes).resume());
    }

    #[test]
    fn a_wild_word_of_another_process_never_overflows() {
        let word = AtomicU64::new(LAPSED - 1);
        assert!(!begin(&word));
        end(&word);
        assert_eq!(word.load(Ordering::Relaxed), LAPSED - 2);
        word.store(0, Ordering::Relaxed);
        end(&word);
        assert_eq!(word.load(Ordering::Relaxed), 0);
    }
}
