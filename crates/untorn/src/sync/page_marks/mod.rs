//! Marks of pages that change, which threads of other processes look at: a snapshot's reader may copy a page straight
//! out of the data file as long as no mark says that the page has changed.
//!
//! A mark is a word with a number, and numbers only grow. A snapshot has a number of its own, higher than that of any
//! snapshot before it.
//!
//! # Invariants
//!
//! 1. A writer raises the mark of a page to the number of the newest snapshot before its first store to the page.
//! 2. A reader copies first and looks at the mark afterwards. If the mark is still below the number of its snapshot, no
//!    store that came after that snapshot is in the copy.
//!
//! Between the mark and the stores stands a full fence: non-temporal stores keep no order with other stores, and a
//! fence keeps them behind the mark. Between the copy and the look stands an acquire fence. If the copy has a byte of
//! a later store, the fences order the mark before the look.

use crate::sys::sync::{Ordering, fence};

/// A word of memory that processes share. A model checker has words of its own.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u64;
    fn fetch_max(&self, number: u64, order: Ordering) -> u64;
}

impl Word for std::sync::atomic::AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn fetch_max(&self, number: u64, order: Ordering) -> u64 {
        self.fetch_max(number, order)
    }
}

/// Raises marks to a number, before the stores that they tell of.
pub(crate) fn raise<'a, W: Word + 'a>(marks: impl IntoIterator<Item = &'a W>, number: u64) {
    for mark in marks {
        mark.fetch_max(number, Ordering::Relaxed);
    }
    fence(Ordering::SeqCst);
}

/// Whether all marks are below a number, after the copy that they tell of.
#[inline(always)]
pub(crate) fn are_below<W: Word>(marks: [&W; 3], number: u64) -> bool {
    fence(Ordering::Acquire);
    marks.iter().all(|mark| mark.load(Ordering::Relaxed) < number)
}

#[cfg(all(test, loom))]
mod models;
