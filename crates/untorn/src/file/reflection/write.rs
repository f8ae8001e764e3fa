//! Writing: fill the invalid copies, certify, fence, publish.

use std::sync::atomic::Ordering;

use super::slices::{Part, parts, touched};
use super::{Reflection, barriers};
use crate::engine::{Piece, check_range};
use crate::error::Result;
use crate::format::record::{DataSum, Entry, Record, lines};
use crate::format::sidecar::PAGE;
use crate::options::{Durability, Order};
use crate::storage::Medium;
use crate::sync::page_seqlock::PageState;

/// All parts of a write that fall into one page.
pub(super) struct PageParts<'a> {
    pub(super) page: u64,
    /// The slices that are stored to.
    pub(super) mask: u64,
    pub(super) parts: Vec<Part<'a>>,
}

/// Groups the parts of sorted pieces by page, with the slices that they touch.
pub(super) fn by_page<'a>(pieces: &[Piece<'a>]) -> Vec<PageParts<'a>> {
    let mut pages: Vec<PageParts<'a>> = Vec::new();
    for part in pieces.iter().flat_map(|piece| parts(piece.offset, piece.bytes)) {
        let mask = touched(part.from, part.to());
        match pages.last_mut() {
            Some(last) if last.page == part.page => {
                last.mask |= mask;
                last.parts.push(part);
            }
            _ => pages.push(PageParts { page: part.page, mask, parts: vec![part] }),
        }
    }
    pages
}

impl<M: Medium> Reflection<M> {
    pub(super) fn write_pieces(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.writable()?;
        if let [piece] = pieces {
            let from = piece.offset % PAGE;
            if !piece.bytes.is_empty() && from + piece.bytes.len() as u64 <= PAGE {
                let part = Part { page: piece.offset / PAGE, from, bytes: piece.bytes };
                return match self.durability {
                    Durability::PerWrite => self.write_part(part),
                    Durability::PerCommit => self.write_part_in_epoch(part),
                };
            }
        }
        match self.durability {
            Durability::PerWrite => self.write_many(pieces),
            Durability::PerCommit => self.write_in_epoch(pieces),
        }
    }

    /// Per-write mode, any pieces.
    #[inline(never)]
    fn write_many(&self, pieces: &[Piece<'_>]) -> Result<()> {
        // Before anything is computed from the offsets; checked again where the length can no longer change.
        self.check_pieces(pieces)?;
        let mut pages = by_page(pieces);
        if pages.is_empty() {
            return Ok(());
        }
        let wanted = lines(pages.len());
        if wanted > u64::from(self.geometry.slots) {
            return self.write_spilled(pieces, &mut pages);
        }
        let lane = self.lane(wanted)?;
        let len = self.check_pieces(pieces)?;
        self.lock_all(&pages, false);
        self.copy_units(&mut pages, len);
        let floor = self.state.head().floor.load(Ordering::Relaxed).max(lane.last());
        let committed = self.store_pages(&pages).and_then(|(entries, sum)| {
            let seq = self.number_after(floor, &pages);
            let record = self.data_fence(seq, sum, len, entries)?;
            self.lanes.append(&lane, &self.side, self.checksum_seed, &record).map_err(|error| self.poison(error))?;
            self.record_fence().map_err(|error| self.poison(error))?;
            Ok(record)
        });
        lane.finish_commit(self.conclude(&pages, committed)?, self.medium.commit_time());
        Ok(())
    }

    /// Per-write mode: a write over more pages than a lane has room for. Alone, its record in a file of its own that is
    /// retired at once.
    fn write_spilled(&self, pieces: &[Piece<'_>], pages: &mut [PageParts<'_>]) -> Result<()> {
        let _cutting = self.state.head().checkpoint.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        let len = self.check_pieces(pieces)?;
        if self.lanes.free(&lanes[0]) == 0 {
            self.cut_holding(&lanes, &[])?;
        }
        self.lock_all(pages, false);
        self.copy_units(pages, len);
        let floor = self.lanes.last().max(self.state.head().floor.load(Ordering::Relaxed));
        let committed = self.store_pages(pages).and_then(|(entries, sum)| {
            let seq = self.number_after(floor, pages);
            let record = self.data_fence(seq, sum, len, entries)?;
            self.append_spilled(&lanes[0], &record)?;
            self.record_fence().map_err(|error| self.poison(error))?;
            Ok(record)
        });
        let seq = self.conclude(pages, committed)?;
        lanes[0].finish_commit(seq, self.medium.commit_time());
        self.cut_holding(&lanes, &pages.iter().map(|page| page.page).collect::<Vec<_>>())?;
        self.drop_spill();
        Ok(())
    }

    /// Whether all pieces lie within the file; its length, which cannot change while the caller holds a lane.
    pub(super) fn check_pieces(&self, pieces: &[Piece<'_>]) -> Result<u64> {
        let len = self.state.head().len.load(Ordering::Acquire);
        for piece in pieces {
            check_range(&self.path, piece.offset, piece.bytes.len() as u64, len)?;
        }
        Ok(len)
    }

    pub(super) fn lock_all(&self, pages: &[PageParts<'_>], publishing: bool) {
        for page in pages {
            self.state.pages[page.page as usize].lock(publishing, self.relax());
        }
    }

    /// The number of a record over these pages. The caller holds their locks.
    fn number_after(&self, floor: u64, pages: &[PageParts<'_>]) -> u64 {
        let version = |page: &PageParts<'_>| self.state.pages[page.page as usize].version();
        pages.iter().map(version).fold(floor, u64::max) + 1
    }

    /// Two-fence order: makes the data durable, so that the record need not certify it.
    fn data_fence(&self, seq: u64, sum: DataSum, len: u64, entries: Vec<Entry>) -> Result<Record> {
        let certain = self.order == Order::TwoFence;
        if certain {
            self.fence(barriers::WRITE_DATA).map_err(|error| self.poison(error))?;
        }
        Ok(Record { seq, certain, sum: if certain { 0 } else { sum.get() }, len, entries })
    }

    /// Makes the record durable, and in the one-fence order the data with it.
    #[inline]
    pub(super) fn record_fence(&self) -> Result<()> {
        let barrier = match self.order {
            Order::OneFence => barriers::WRITE,
            Order::TwoFence => barriers::WRITE_RECORD,
        };
        self.fence(barrier)
    }

    /// Publishes what was committed, or unlocks the pages unchanged. Returns the record's number.
    fn conclude(&self, pages: &[PageParts<'_>], committed: Result<Record>) -> Result<u64> {
        let state = |page: u64| -> &PageState { &self.state.pages[page as usize] };
        match committed {
            Ok(record) => {
                // All pages are marked, and none of them is clean, before the first is published: so no reader sees
                // one and not another.
                record.entries.iter().for_each(|entry| {
                    state(entry.page).begin_publishing();
                    self.mark_dirty(entry.page, entry.bitmap);
                });
                record.entries.iter().for_each(|entry| state(entry.page).publish(entry.bitmap, record.seq));
                Ok(record.seq)
            }
            Err(error) => {
                pages.iter().for_each(|page| self.unlock_unwritten(page.page, state(page.page)));
                Err(self.unless_lost(error))
            }
        }
    }

    /// Sees to it that readers look at the bitmap of a page that is about to be published.
    #[inline(always)]
    pub(super) fn mark_dirty(&self, page: u64, bitmap: u64) {
        if bitmap == 0 {
            self.state.head().emptied.store(1, Ordering::Relaxed);
        } else {
            self.state.clean.mark_dirty(page);
        }
    }

    /// Makes the new bitmap of a page visible and unlocks it. Not for one of several pages that are to be seen
    /// together.
    #[inline(always)]
    pub(super) fn publish(&self, page: u64, state: &PageState, bitmap: u64, version: u64) {
        self.mark_dirty(page, bitmap);
        state.publish(bitmap, version);
    }
}
