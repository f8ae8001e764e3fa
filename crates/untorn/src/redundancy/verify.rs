//! Verifying a few pages before their bytes are trusted.

use std::ops::Range;

use super::{Inner, Mode, Redundancy};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::Medium;

impl<M: Medium> Redundancy<M> {
    /// Compares the covered pages that have any of these bytes with their checksums, as programs see them. What is
    /// not covered is passed over.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a page that is damaged, unless it is to be repaired and can be; those of reading and of
    /// repair.
    pub(crate) fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()> {
        let bytes = bytes.start.min(self.geometry.len)..bytes.end.min(self.geometry.len);
        let mut held = vec![0; PAGE as usize];
        for page in self.geometry.pages_of(&bytes) {
            // The lock is let go between two pages: an engine that stores to one of them waits for one only.
            let mut inner = self.usable()?;
            if !self.speaks_of(&inner, page) {
                continue;
            }
            let is_whole = self.read(page, &mut held)? == Some(inner.tables.sum(page));
            if is_whole {
                inner.notified.remove(&page);
                continue;
            }
            if repair && self.give_back(&mut inner, page)? {
                continue;
            }
            self.note_damaged(&mut inner, page);
            let what = if repair {
                "a page does not match its checksum, and parity cannot rebuild it; restore the file from a backup"
            } else {
                "a page does not match its checksum; run a repair (`untorn repair`), or restore the file from a backup"
            };
            return Err(self.damaged(page, what));
        }
        Ok(())
    }

    /// Looks at these pages as the medium holds them, and gives those back that are covered and damaged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that parity cannot give back; those of reading, writing and flushing.
    pub(super) fn mend(&self, pages: impl Iterator<Item = u64>) -> Result<()> {
        let mut inner = self.usable()?;
        let mut held = vec![0; PAGE as usize];
        for page in pages.filter(|page| *page < self.geometry.pages()) {
            if !self.speaks_of(&inner, page) {
                continue;
            }
            let is_whole = self.read_stored(page, &mut held)? == Some(inner.tables.sum(page));
            if !is_whole && !self.give_back(&mut inner, page)? {
                self.note_damaged(&mut inner, page);
                let what = "a page that locates bytes of the file is damaged, and parity cannot rebuild it; restore \
                            the file from a backup, or run `untorn unprotect` to use it as it is";
                return Err(self.damaged(page, what));
            }
        }
        Ok(())
    }

    /// Whether what a page holds is what its checksum speaks of, unless it is damaged: it is covered, and nobody is
    /// storing to it.
    pub(super) fn speaks_of(&self, inner: &Inner, page: u64) -> bool {
        let is_marked = inner.tables.uncovered().has(page) && !inner.premarked.has(page);
        !is_marked && !inner.stored.has(page) && !inner.unknown.contains(&page)
    }

    /// Gives a damaged page its bytes back, if the rest of its stripe and their parity have them.
    pub(super) fn give_back(&self, inner: &mut Inner, page: u64) -> Result<bool> {
        let stripe = self.geometry.stripe_of(page);
        let mut read = self.read_stripe(stripe, true)?;
        self.take_back(inner, &mut read);
        let Some(nth) = read.pages.iter().position(|member| *member == page) else { return Ok(false) };
        let restored = self.restore(inner, stripe, &mut read, &[nth]);
        self.note_failure(inner, restored)
    }

    /// Whether somebody else has written to a file that is only looked at, since it was opened or last repaired.
    /// Asked after the reading, as page tables are: a write changes the file's time before its bytes.
    pub(super) fn was_touched(&self, inner: &Inner) -> Result<bool> {
        Ok(matches!(self.mode, Mode::Look) && self.pages.stamp()? != inner.seen)
    }

    fn damaged(&self, page: u64, what: &str) -> Error {
        let offset = Some(self.pages.begins_at() + page * PAGE);
        Error::Corrupt { path: self.path.clone(), offset, what: what.to_owned() }
    }
}
