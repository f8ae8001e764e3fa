//! Per-commit mode: a write joins the open epoch.

use std::sync::atomic::Ordering;

use super::Reflection;
use super::slices::{Part, SLICE, runs, touched};
use super::store::{Staged, written};
use super::write::{PageParts, by_page};
use crate::engine::{Piece, check_range};
use crate::error::{Error, Result};
use crate::format::lane::Lane;
use crate::format::sidecar::PAGE;
use crate::storage::{Medium, MediumClass};
use crate::sync::page_seqlock::PageState;

/// Bytes of some slices of a page, in an image of it.
type Saved = (u64, u64, Box<[u8; PAGE as usize]>);

impl<M: Medium> Reflection<M> {
    /// One page. Like a [commit of one page](super::single), it starts what takes long before the first lock.
    #[inline(always)]
    pub(super) fn write_part_in_epoch(&self, part: Part<'_>) -> Result<()> {
        let in_one_store = self.class == MediumClass::PersistentMemory && part.aligned(self.unit.bytes());
        match self.state.pages.get(part.page as usize) {
            Some(state) if in_one_store => self.join_epoch(state, part),
            _ => self.write_in_epoch(&[part.piece()]),
        }
    }

    #[inline(always)]
    fn join_epoch(&self, state: &PageState, part: Part<'_>) -> Result<()> {
        let Part { page, bytes, .. } = part;
        let epoch = &self.state.epochs[page as usize];
        let mask = touched(part.from, part.to());
        self.prefetch_hint(part, mask, epoch.committed.load(Ordering::Relaxed));
        // Only the lock needs it, and a miss there would be waited for.
        state.prefetch();
        let lane = self.lanes.acquire(self.relax());
        check_range(&self.path, part.offset(), bytes.len() as u64, self.state.head().len.load(Ordering::Acquire))?;
        state.lock(true, self.relax());
        if epoch.frozen.load(Ordering::Acquire) & mask != 0 {
            state.unlock();
            drop(lane);
            return self.write_in_epoch(&[part.piece()]);
        }
        // Before the stores, for a locked instruction would wait for non-temporal ones to drain. If the write fails,
        // the commit finds the page unchanged and passes over it.
        self.state.mark_changed(page);
        let (visible, valid) = (state.bitmap(), epoch.committed.load(Ordering::Acquire));
        if let Err(error) = self.store(page, valid, mask, Staged::aligned(part)) {
            return Err(self.leave_epoch(&[(page, mask)], &[], error));
        }
        // Non-temporal stores are not ordered with the store that publishes them.
        self.medium.order();
        self.publish(page, state, written(visible, valid, mask), state.version() + 1);
        Ok(())
    }

    /// Any pieces.
    #[inline(never)]
    pub(super) fn write_in_epoch(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.check_pieces(pieces)?;
        let mut pages = by_page(pieces);
        if pages.is_empty() {
            return Ok(());
        }
        let _lane = self.enter_epoch(pieces, &mut pages)?;
        let saved = match self.class {
            MediumClass::Block => self.about_to_be_overwritten(&pages),
            // No store fails there, and for one page space is made before the first. It may run out between two.
            MediumClass::PersistentMemory if pages.len() > 1 => self.make_room(&pages).map(|()| Vec::new()),
            MediumClass::PersistentMemory => Ok(Vec::new()),
        };
        let saved = match saved {
            Ok(saved) => saved,
            Err(error) => {
                // Nothing was stored yet, so nothing has to be brought back.
                let error = self.unless_lost(error);
                pages.iter().for_each(|page| self.state.pages[page.page as usize].unlock_disturbed());
                return Err(error);
            }
        };
        match self.store_pages(&pages) {
            Ok((entries, _)) => {
                self.medium.order();
                // None is clean before the first is published, so that no reader sees one and not another.
                entries.iter().for_each(|entry| self.mark_dirty(entry.page, entry.bitmap));
                for entry in entries {
                    let state = &self.state.pages[entry.page as usize];
                    state.publish(entry.bitmap, state.version() + 1);
                }
                Ok(())
            }
            Err(error) => {
                let pages: Vec<_> = pages.iter().map(|page| (page.page, page.mask)).collect();
                Err(self.leave_epoch(&pages, &saved, error))
            }
        }
    }

    /// Takes a lane, which holds the next commit off, and locks all pages with readers kept out, at a moment when no
    /// slice to be written is frozen: a frozen slice has its last durable bytes in one copy and those being made
    /// durable in the other.
    fn enter_epoch(&self, pieces: &[Piece<'_>], pages: &mut [PageParts<'_>]) -> Result<Lane<'_>> {
        let mut round = 0;
        loop {
            let lane = self.lanes.acquire(self.relax());
            let len = self.check_pieces(pieces)?;
            self.lock_all(pages, true);
            let frozen = |page: &PageParts<'_>| {
                let copied = self.copied(page.page, page.mask, len);
                self.state.epochs[page.page as usize].frozen.load(Ordering::Acquire) & copied != 0
            };
            if !pages.iter().any(frozen) {
                self.copy_units(pages, len);
                // Before the stores, for a locked instruction would wait for non-temporal ones to drain. If the write
                // fails, the commit finds the page unchanged and passes over it.
                pages.iter().for_each(|page| self.state.mark_changed(page.page));
                return Ok(lane);
            }
            pages.iter().for_each(|page| self.state.pages[page.page as usize].unlock());
            // The commit under way has let the lanes go already, but the one after it will want them all.
            drop(lane);
            self.medium.relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Unlocks pages, each with the slices that were to be written, as they were before a write that failed. Passes its
    /// error on.
    #[cold]
    fn leave_epoch(&self, pages: &[(u64, u64)], saved: &[Saved], error: Error) -> Error {
        let overwritten = |&(page, mask): &(u64, u64)| {
            let visible = self.state.pages[page as usize].bitmap();
            (visible ^ self.committed_bitmap(page)) & mask != 0
        };
        let restore = |(page, mask, image): &Saved| {
            let staged = Staged { first: 0, bytes: &image[..], one_run: false };
            self.store(*page, self.committed_bitmap(*page), *mask, staged)
        };
        let restored = match self.class {
            MediumClass::Block => saved.iter().try_for_each(restore).is_ok(),
            MediumClass::PersistentMemory => !pages.iter().any(overwritten),
        };
        // What cannot be brought back must not be committed with the rest of the epoch.
        let error = if restored { self.unless_lost(error) } else { self.poison(error) };
        self.medium.order();
        pages.iter().for_each(|&(page, _)| self.state.pages[page as usize].unlock_disturbed());
        error
    }

    /// The slices of these pages that the open epoch holds already, as (page, slices, image of the page): they are
    /// written over in place, and a write that fails halfway must leave them as they were.
    fn about_to_be_overwritten(&self, pages: &[PageParts<'_>]) -> Result<Vec<Saved>> {
        let mut saved = Vec::new();
        for &PageParts { page, mask, .. } in pages {
            let visible = self.state.pages[page as usize].bitmap();
            let again = (visible ^ self.committed_bitmap(page)) & mask;
            if again == 0 {
                continue;
            }
            let mut image = Box::new([0; PAGE as usize]);
            for (start, len) in runs(again) {
                let bytes = &mut image[(start * SLICE) as usize..((start + len) * SLICE) as usize];
                self.copy_slices(page, visible, start, len, bytes)?;
            }
            saved.push((page, again, image));
        }
        Ok(saved)
    }
}
