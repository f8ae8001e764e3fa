//! Marks that are set ahead of stores.
//!
//! An engine stores to its sidecar in the midst of a program's writes, and each page that is stored to for the first time since
//! it was covered has to be marked durably before: a flush. So a flush marks more pages than it must, those behind, and each
//! one between two passes twice as many as the one before. However a program's stores are spread, a pass is then followed by
//! no more flushes than there are doublings up to the number of pages.
//!
//! What is marked ahead is covered all the same: its checksum and parity speak of what it holds, so a scrub compares it, and a
//! repair gives it back. Only a crash takes the mark for what it says, and then such a page is known not to be covered until
//! the next pass. A pass takes the marks back.

use super::bits::Bits;
use super::{Inner, Redundancy, barriers};
use crate::error::Result;
use crate::storage::Medium;

/// Pages that the first flush after a pass marks ahead.
pub(super) const STRIDE: u64 = 4;

impl<M: Medium> Redundancy<M> {
    /// Marks pages from this one on, and from the first on behind the last. The caller makes the marks durable.
    pub(super) fn mark_ahead(&self, inner: &mut Inner, from: u64) {
        let pages = self.geometry.pages();
        let run = inner.stride.min(pages);
        inner.stride = (2 * run).max(1);
        for nth in 0..run {
            let page = (from + nth) % pages;
            if !inner.tables.uncovered().has(page) {
                inner.tables.set_uncovered(page, true);
                inner.ahead.put(page, true);
            }
        }
    }

    /// Takes back the marks of pages that nobody stored to. What their checksums speak of has been durable since they were
    /// covered.
    pub(super) fn give_up_ahead(&self, inner: &mut Inner) -> Result<()> {
        inner.stride = STRIDE;
        if inner.ahead.count() == 0 {
            return Ok(());
        }
        let ahead = std::mem::replace(&mut inner.ahead, Bits::new(self.geometry.pages()));
        for page in ahead.iter() {
            inner.tables.set_uncovered(page, false);
            inner.ages.covered(page);
        }
        inner.tables.write(&self.side)?;
        self.medium.fence(barriers::COVER_MARKS, &[&self.side])
    }
}
