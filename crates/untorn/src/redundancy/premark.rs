//! Marks that are set ahead of stores.
//!
//! An engine stores to its sidecar in the middle of a program's writes. Each page that is stored to for the first time
//! since it was covered must be marked durably before, which costs a flush. So a flush marks more pages than it must,
//! those that follow, and between two passes each flush marks twice as many as the one before. However a program's
//! stores are spread, after a pass the number of flushes is at most the number of doublings up to the number of pages.
//!
//! A page marked ahead is still covered: its checksum and parity match its bytes, so a scrub compares it, and a repair
//! can rebuild it. Only after a crash does the mark count, and then such a page is known not to be covered until the
//! next pass. A pass clears these marks.

use super::bits::Bits;
use super::{Inner, Redundancy, barriers};
use crate::error::Result;
use crate::storage::Medium;

/// Pages that the first flush after a pass marks ahead.
pub(super) const STRIDE: u64 = 4;

impl<M: Medium> Redundancy<M> {
    /// Marks pages from this one on, and from the first on behind the last. The caller makes the marks durable.
    pub(super) fn premark(&self, inner: &mut Inner, from: u64) {
        let pages = self.geometry.pages();
        let run = inner.stride.min(pages);
        inner.stride = (2 * run).max(1);
        for nth in 0..run {
            let page = (from + nth) % pages;
            if !inner.tables.uncovered().has(page) {
                inner.tables.set_uncovered(page, true);
                inner.premarked.put(page, true);
            }
        }
    }

    /// Takes back the marks of pages that nobody stored to. What their checksums speak of has been durable since they
    /// were covered.
    pub(super) fn give_up_premarked(&self, inner: &mut Inner) -> Result<()> {
        inner.stride = STRIDE;
        if inner.premarked.count() == 0 {
            return Ok(());
        }
        let premarked = std::mem::replace(&mut inner.premarked, Bits::new(self.geometry.pages()));
        for page in premarked.iter() {
            inner.tables.set_uncovered(page, false);
            inner.uncovered_since.covered(page);
        }
        inner.tables.write(&self.side)?;
        self.medium.fence(barriers::COVER_MARKS, &[&self.side])
    }
}
