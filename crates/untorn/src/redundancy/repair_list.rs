//! The list of pages under repair, at the end of the redundancy file.
//!
//! A superblock names the pages that are written between two flushes, and has no room for more. The writes of a repair
//! change the file's time. If no store is announced, a crash then makes all pages that differ unknown, except the named
//! ones, including pages still to be repaired. So if there are more pages, all are listed first. The superblock says
//! that there is a list from the first batch until the last is done; what is left of the list later has no meaning.
//!
//! Announced stores need no list, because the time is not trusted while a repair runs. With stores found through page
//! tables it would not help.

use std::collections::BTreeSet;

use super::format::{Block, ENTRIES};
use super::{Inner, Redundancy, barriers};
use crate::error::{Error, Result};
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumFile};

impl<M: Medium> Redundancy<M> {
    /// Lists these pages, durably. The next version of the superblock says so. Those that are listed already, by a
    /// repair that was killed, stay as they are: the superblock may go on naming that list while this one is written.
    ///
    /// Where there is no room for a list the repair goes on without: if it is killed too, then some pages are unknown.
    ///
    /// # Errors
    /// Those of flushing, after which nothing is known to be durable.
    pub(super) fn list(&self, inner: &mut Inner, pages: &[u64]) -> Result<()> {
        let listed = self.listed(inner)?;
        if pages.iter().all(|page| listed.contains(page)) {
            return Ok(());
        }
        match self.write_list(inner, pages) {
            Ok(number) => {
                self.side.sync(barriers::REPAIR_INTENT)?;
                inner.superblock.list = number;
            }
            Err(error @ Error::Poisoned { .. }) => return Err(error),
            Err(error) => {
                let (path, pages) = (self.path.display(), pages.len());
                tracing::warn!(%path, pages, %error, "cannot store the list of pages to repair; repairing without it");
                if inner.superblock.list == 0
                    && let Err(error) = self.side.set_len(self.geometry.side_len())
                {
                    tracing::warn!(%path, %error, "cannot shorten the redundancy file; it stays longer than needed");
                }
            }
        }
        Ok(())
    }

    /// Writes a list, and says its number.
    fn write_list(&self, inner: &Inner, pages: &[u64]) -> Result<u64> {
        let number = inner.superblock.seq + 1;
        // One more than a page, so that nothing is none.
        let entries: Vec<u64> = pages.iter().map(|page| page + 1).collect();
        let (from, blocks) = (self.geometry.side_len(), entries.chunks(ENTRIES as usize));
        let len = blocks.len() as u64 * PAGE;
        // Not shorter: what it has may be the list of before, for as long as the superblock names it.
        self.side.set_len(self.side.len().max(from + len))?;
        self.side.allocate(from, len)?;
        for (nth, pages) in (0..).zip(blocks) {
            let mut block = Block::new();
            block.seq = number;
            block.sums[..pages.len()].copy_from_slice(pages);
            self.side
                .write_anew(from + nth * PAGE, &block.encode(self.geometry.blocks() + nth, inner.superblock.tie()))?;
        }
        Ok(number)
    }

    /// The pages that a repair under way when the file was left was about, if there is a list of them. They are
    /// repaired by stripes, so of those before the pages that the superblock names it is over: what they hold
    /// otherwise is somebody else's.
    pub(super) fn listed(&self, inner: &Inner) -> Result<BTreeSet<u64>> {
        let (number, from) = (inner.superblock.list, self.geometry.side_len());
        let named = inner.superblock.intents.iter().map(|page| self.geometry.stripe_of(*page)).min();
        let mut listed = BTreeSet::new();
        let there = self.side.len().saturating_sub(from).min(self.geometry.list_len()) / PAGE;
        for nth in (0..there).filter(|_| number != 0) {
            let mut bytes = [0; PAGE as usize];
            if !self.side.read_unless_bad(from + nth * PAGE, &mut bytes)? {
                continue;
            }
            let block = Block::decode(&bytes, self.geometry.blocks() + nth, inner.superblock.tie());
            let pages = block.filter(|block| block.seq == number).map(|block| block.sums).unwrap_or_default();
            // Anybody may have written them.
            listed.extend(
                pages.into_iter().filter(|page| (1..=self.geometry.pages()).contains(page)).map(|page| page - 1),
            );
        }
        listed.retain(|page| named.is_none_or(|named| named <= self.geometry.stripe_of(*page)));
        Ok(listed)
    }

    /// Notes that what was listed is done.
    pub(super) fn forget_list(&self, inner: &mut Inner) -> Result<()> {
        if inner.superblock.list == 0 {
            return Ok(());
        }
        inner.superblock.list = 0;
        self.write_superblocks(inner, barriers::REPAIR_DONE)?;
        self.side.set_len(self.geometry.side_len())
    }
}
