//! Changing the length: a commit of its own that takes the open epoch with it.

use std::sync::atomic::Ordering;

use super::layout::{initial_len, pages};
use super::slices::{SLICE, touched};
use super::{Reflection, barriers};
use crate::engine::check_growth;
use crate::error::{Error, Result};
use crate::format::lane::Lane;
use crate::format::record::{Entry, Record, lines};
use crate::format::sidecar::PAGE;
use crate::options::Durability;
use crate::storage::{Medium, MediumFile};

impl<M: Medium> Reflection<M> {
    pub(super) fn change_len(&self, len: u64) -> Result<()> {
        self.writable()?;
        check_growth(&self.path, len, self.max_len)?;
        let head = self.state.head();
        let committing = head.commit.lock(self.relax());
        let old = head.len.load(Ordering::Acquire);
        if len > old {
            // What a shrink left behind the end must not come back.
            self.clear_tail(old)?;
            self.fit(len).map_err(|error| Error::io("reserve memory for", &self.path, error))?;
            self.grow_files(len)?;
        }
        let _cutting = head.checkpoint.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        let old = head.len.load(Ordering::Relaxed);
        if len > old {
            // The file system may have given space only to the part of the last page that was there.
            self.data_space.forget(old / PAGE * PAGE);
        }
        let emptied = self.commit_len(&lanes, old, len)?;
        if len < old {
            // Bitmaps of pages that are gone must be 0 before the record that says so is given up.
            self.cut_holding(&lanes, &emptied)?;
            if let Err(error) = self.punch_tail(len) {
                // The shrink is committed. Its space is given back, and its bytes made zeros, by the next growth or
                // close.
                tracing::warn!(path = %self.path.display(), %error, "cannot free the space behind the new end yet; the \
                                                                     next growth or close frees it");
            }
        }
        drop(lanes);
        drop(committing);
        Ok(())
    }

    /// Makes room in every table for a file of `len` bytes, before anybody can see that length.
    fn fit(&self, len: u64) -> std::io::Result<()> {
        self.state.fit(pages(len))?;
        self.places.fit(pages(len))?;
        self.data_space.fit(pages(len))?;
        self.ahead.fit(pages(len))?;
        self.side_space.fit(pages(initial_len(self.layout, self.geometry.chunks_at(), len)))
    }

    /// Makes room in both files, durably, before any record speaks of it. Until one does, the old length counts.
    fn grow_files(&self, len: u64) -> Result<()> {
        if self.data.len() < len {
            self.data.set_len(len)?;
        }
        let needed = initial_len(self.layout, self.geometry.chunks_at(), len);
        if self.side.len() < needed {
            self.side.set_len(needed)?;
        }
        // If a shrink was not followed by a sync, this one also makes its holes durable: the new bytes read as zeros.
        self.data.sync(barriers::RESIZE_GROW).map_err(|error| self.poison(error))?;
        self.side.sync(barriers::RESIZE_GROW).map_err(|error| self.poison(error))
    }

    /// Commits the new length, and the open epoch with it. The caller holds every gate and lane, so no write and no
    /// commit is under way. Returns the pages beyond the new end that had reflected slices.
    fn commit_len(&self, lanes: &[Lane<'_>], old: u64, len: u64) -> Result<Vec<u64>> {
        let open = match self.durability {
            Durability::PerWrite => Vec::new(),
            Durability::PerCommit => self.take_epoch(),
        };
        let recorded = self.record_len(lanes, &open, old, len).map_err(|error| self.reopen_epoch(&open, error));
        let (Record { entries, seq, .. }, lane, spill) = recorded?;
        let head = self.state.head();
        // Readers take no lock; they notice the odd count, or afterwards that it moved.
        head.resizes.fetch_add(1, Ordering::AcqRel);
        head.sequence.write_begin();
        for entry in &entries {
            let page = entry.page as usize;
            self.state.epochs[page].committed.store(entry.bitmap, Ordering::Release);
            let version = self.state.pages[page].version().max(seq) + 1;
            self.publish(entry.page, &self.state.pages[page], entry.bitmap, version);
        }
        let mut emptied = Vec::new();
        for page in pages(len)..pages(old) {
            let state = &self.state.pages[page as usize];
            if state.bitmap() | self.committed_bitmap(page) != 0 {
                self.state.epochs[page as usize].committed.store(0, Ordering::Release);
                self.publish(page, state, 0, state.version().max(seq) + 1);
                emptied.push(page);
            }
        }
        head.len.store(len, Ordering::Release);
        head.resizes.fetch_add(1, Ordering::AcqRel);
        head.sequence.write_end();
        // Every later record, of whatever lane and page, must be numbered above this one.
        lanes[lane].finish_commit(seq, self.medium.commit_time());
        head.floor.store(seq, Ordering::Release);
        let epoch = head.epoch.fetch_add(1, Ordering::AcqRel);
        head.committed_epoch.store(epoch, Ordering::Release);
        if spill {
            emptied.extend(entries.iter().map(|entry| entry.page));
            self.cut_holding(lanes, &emptied)?;
            self.drop_spill();
        }
        Ok(emptied)
    }

    /// Makes the record of a new length durable. Returns it, the lane it is in and whether it was spilled.
    fn record_len(&self, lanes: &[Lane<'_>], open: &[Entry], old: u64, len: u64) -> Result<(Record, usize, bool)> {
        let mut entries: Vec<Entry> = open.iter().filter(|entry| entry.page < pages(len)).copied().collect();
        let (lane, spill) = self.choose_lane(lanes, lines(entries.len() + 1))?;
        if len < old {
            let last = self.trim_last_page(len, &mut entries);
            entries.extend(last);
        }
        let record = self.record_epoch(&lanes[lane], entries, len, spill).map_err(|failed| failed.1)?;
        Ok((record, lane, spill))
    }

    /// The entry of the page that the new end falls into: slices beyond it leave the sidecar. Of the slice it cuts,
    /// the bytes behind the end stay as they are until a growth uncovers them: to store zeros there now could destroy
    /// what is visible, and if the shrink then failed, nothing might be left to bring it back with.
    fn trim_last_page(&self, len: u64, entries: &mut Vec<Entry>) -> Option<Entry> {
        let within = len % PAGE;
        if within == 0 {
            return None;
        }
        let page = len / PAGE;
        let keep = touched(0, within);
        let mask = match entries.last() {
            Some(last) if last.page == page => entries.pop().map_or(0, |last| last.mask),
            _ => 0,
        };
        Some(Entry { page, bitmap: self.state.pages[page as usize].bitmap() & keep, mask: mask & keep })
    }

    /// Makes what lies behind the end zeros, wherever it is, before a growth uncovers it. No commit has ever shown
    /// these bytes, so they are written over in place.
    fn clear_tail(&self, len: u64) -> Result<()> {
        self.punch_tail(len)?;
        let (page, within) = (len / PAGE, len % PAGE);
        self.ahead.forget(page);
        let slice = within / SLICE;
        if within.is_multiple_of(SLICE) || self.state.pages[page as usize].bitmap() & 1 << slice == 0 {
            return Ok(());
        }
        // A write that comes in between stores whole slices, with zeros behind the end.
        let Some(at) = self.places.reflection(page) else { return Ok(()) };
        self.side.write(at + within, &[0; SLICE as usize][(within % SLICE) as usize..])
    }

    /// Frees what lies behind the new end of the data file. Its own length follows when the file is closed: readers may
    /// be copying from there this moment, and a page beyond the end of a file is no memory at all.
    fn punch_tail(&self, len: u64) -> Result<()> {
        let physical = self.data.len();
        if physical <= len {
            return Ok(());
        }
        let punched = self.data.punch(len, physical - len);
        // After the holes are there, or a neighbour's allocation could note space for them that they then take; and
        // also if some could not be made.
        (pages(len)..pages(physical)).for_each(|page| self.data_space.forget(page * PAGE));
        punched
    }
}
