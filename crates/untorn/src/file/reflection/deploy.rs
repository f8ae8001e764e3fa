//! Deploying: bringing slices home from the reflection page, and giving its space back.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::layout::pages;
use super::slices::{SLICE, runs};
use super::store::Staged;
use super::{Reflection, barriers};
use crate::engine::check_range;
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::options::Durability;
use crate::storage::{Medium, MediumFile};
use crate::sync::page_seqlock::PageState;

/// Pages whose space is given back in one call at most: their locks are held meanwhile.
const BATCH: u64 = 64;

impl<M: Medium> Reflection<M> {
    pub(super) fn deploy_range(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        check_range(&self.path, offset, len, self.state.head().len.load(Ordering::Acquire))?;
        for page in offset / PAGE..pages(offset + len) {
            if self.state.pages[page as usize].bitmap() != 0 {
                self.deploy_page(page)?;
            }
        }
        Ok(())
    }

    /// Copies the slices of a page that are valid in its reflection page into the data file: a write of the bytes that
    /// are there already, which like any other goes to the copy that is invalid.
    pub(super) fn deploy_page(&self, page: u64) -> Result<()> {
        let lane = match self.durability {
            Durability::PerWrite => self.lane(1)?,
            Durability::PerCommit => self.lanes.acquire(self.relax()),
        };
        let len = self.state.head().len.load(Ordering::Acquire);
        if page >= pages(len) {
            return Ok(()); // A shrink was faster.
        }
        let state = &self.state.pages[page as usize];
        state.lock(self.durability == Durability::PerCommit, self.relax());
        let visible = state.bitmap();
        // Slices of the open epoch are not certain, and those of a commit under way have no free copy.
        let mask = match self.durability {
            Durability::PerWrite => visible,
            Durability::PerCommit => {
                visible & self.committed_bitmap(page) & !self.state.epochs[page as usize].frozen.load(Ordering::Acquire)
            }
        };
        if mask == 0 {
            state.unlock();
            return Ok(());
        }
        let mut image = [0; PAGE as usize];
        let copied = runs(mask).try_for_each(|(start, len)| {
            let bytes = &mut image[(start * SLICE) as usize..((start + len) * SLICE) as usize];
            self.copy_slices(page, visible, start, len, bytes)
        });
        let staged = Staged { first: 0, bytes: &image, one_run: false };
        if self.durability == Durability::PerCommit {
            // If the copy fails, the commit finds the page unchanged and passes over it.
            self.state.mark_changed(page);
        }
        let stored = copied.and_then(|()| self.store(page, self.committed_bitmap(page), mask, staged));
        if let Err(error) = stored {
            state.unlock();
            return Err(error);
        }
        match self.durability {
            Durability::PerWrite => {
                let speculation = self.speculation(lane.position(), state, page, mask, self.certificate(staged, mask));
                self.commit_page(&lane, state, page, mask, &speculation, None)?;
            }
            Durability::PerCommit => {
                self.medium.order();
                self.publish(page, state, visible & !mask, state.version() + 1);
            }
        }
        drop(lane);
        self.try_to_calm(page);
        Ok(())
    }

    /// Lets a page count as clean if all of it is at home, and if nobody is in the way.
    pub(super) fn try_to_calm(&self, page: u64) {
        // A lane keeps the length as it is, which changes pages without their locks.
        let Some(_lane) = self.lanes.try_acquire() else { return };
        let state = &self.state.pages[page as usize];
        if !state.try_hold() {
            return;
        }
        // With nothing in the open epoch, none of the page is in a commit under way either.
        if state.bitmap() | self.committed_bitmap(page) == 0 {
            self.state.clean.mark_clean(page..page + 1, &self.state.head().sequence);
        }
        state.unlock();
    }

    /// Gives the space of reflection pages back that hold nothing. Returns the bytes freed.
    pub(super) fn reclaim_space(&self) -> Result<u64> {
        self.writable()?;
        let _committing = self.state.head().commit.lock(self.relax());
        // Below the checkpoint no live record names a page unless it was written again since, which its version tells.
        self.checkpoint()?;
        self.state.head().emptied.store(0, Ordering::Relaxed);
        let mut candidates = Vec::new();
        self.places.walk(&self.side, self.state.count(), |page, bitmap| {
            let known = self.places.reflection(page).is_some_and(|at| self.side_space.knows(at));
            if bitmap == 0 && known && self.state.pages[page as usize].bitmap() == 0 {
                candidates.push(page);
            }
        })?;
        let mut freed = 0;
        let mut at = 0;
        while at < candidates.len() {
            let first = candidates[at];
            let mut end = first + 1;
            while candidates.get(at + (end - first) as usize) == Some(&end) && end - first < BATCH {
                end += 1;
            }
            at += (end - first) as usize;
            freed += self.reclaim_run(first..end)?;
        }
        Ok(freed)
    }

    fn reclaim_run(&self, run: Range<u64>) -> Result<u64> {
        let state = |page: u64| -> &PageState { &self.state.pages[page as usize] };
        run.clone().for_each(|page| state(page).lock(false, self.relax()));
        let floor = self.state.head().floor.load(Ordering::Acquire);
        let unused = |page: u64| match self.durability {
            Durability::PerWrite => state(page).bitmap() == 0 && state(page).version() <= floor,
            Durability::PerCommit => {
                let frozen = self.state.epochs[page as usize].frozen.load(Ordering::Acquire);
                state(page).bitmap() | self.committed_bitmap(page) | frozen == 0
            }
        };
        let mut outcome = Ok(0);
        let mut erased = Vec::new();
        let mut page = run.start;
        while page < run.end {
            let start = page;
            // Reflection pages of neighbours are neighbours, except across a meta page and in the sparse form.
            let place = |page: u64| self.places.reflection(page);
            while page < run.end
                && unused(page)
                && place(page).is_some_and(|at| Some(at) == place(start).map(|first| first + (page - start) * PAGE))
            {
                page += 1;
            }
            if page > start {
                outcome = outcome.and_then(|freed| Ok(freed + self.punch_run(start..page, &mut erased)?));
            } else {
                page += 1;
            }
        }
        if !erased.is_empty() {
            // Under the locks: once a page is unlocked its next writer may take another slot for it.
            // And whatever became of the rest of the run.
            match self.fence(barriers::SPARSE_ERASE) {
                Ok(()) => self.places.restock(erased, self.relax()),
                Err(error) => outcome = Err(self.poison(error)),
            }
        }
        run.for_each(|page| state(page).unlock());
        outcome
    }

    fn punch_run(&self, run: Range<u64>, erased: &mut Vec<u32>) -> Result<u64> {
        let Some(at) = self.places.reflection(run.start) else { return Ok(0) };
        let bytes = (run.end - run.start) * PAGE;
        let punched = self.side.punch(at, bytes);
        // After the holes are there, or a neighbour's allocation could note space for them that they then take; and
        // also if some could not be made.
        for at in run.clone().filter_map(|page| self.places.reflection(page)) {
            self.side_space.forget(at);
        }
        punched?;
        for page in run {
            erased.extend(self.places.give_up(&self.side, page, self.relax())?);
        }
        Ok(bytes)
    }
}
