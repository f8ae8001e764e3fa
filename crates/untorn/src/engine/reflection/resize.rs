//! Changing the length: a commit of its own that takes the open epoch with it.

use std::sync::atomic::Ordering;

use super::layout::{initial_len, pages};
use super::put::{Staged, written};
use super::slices::{SLICE, touched};
use super::{Reflection, barriers};
use crate::error::{Error, Result};
use crate::log::lane::Lane;
use crate::log::record::{Entry, Record, lines};
use crate::medium::{Medium, MediumFile};
use crate::options::Durability;
use crate::sidecar::PAGE;

/// What trimming the last page has begun, to be undone if the shrink fails.
#[derive(Default)]
struct Trim {
    /// The page it locked.
    locked: Option<u64>,
    /// The bytes of the open epoch it wrote over in place: the slice, and what it held.
    overwrote: Option<(u64, [u8; SLICE as usize])>,
}

impl<M: Medium> Reflection<M> {
    pub(super) fn change_len(&self, len: u64) -> Result<()> {
        self.writable()?;
        if len > self.max_len {
            let what = format!(
                "{len} bytes are more than the {} it may grow to while open; open it with a larger maximum",
                self.max_len
            );
            return Err(Error::Invalid { path: self.path.clone(), what });
        }
        let head = self.state.head();
        let committing = head.commit.lock(self.relax());
        let old = head.len.load(Ordering::Acquire);
        if len > old {
            // What a shrink of this session left behind the end, if its holes could not be punched, must not come back.
            self.punch_tail(old)?;
            self.grow_files(len)?;
        }
        let _cutting = head.cut.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        let old = head.len.load(Ordering::Relaxed);
        let emptied = self.commit_len(&lanes, old, len)?;
        if len < old {
            // Bitmaps of pages that are gone must be 0 before the record that says so is given up.
            self.cut_holding(&lanes, &emptied)?;
            if let Err(error) = self.punch_tail(len) {
                // The shrink is committed. Its space is given back, and its bytes made zeros, by the next growth or close.
                tracing::warn!(path = %self.path.display(), %error, "space behind the end is not given back yet");
            }
        }
        drop(lanes);
        drop(committing);
        Ok(())
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
        let mut trim = Trim::default();
        let recorded = self.record_len(lanes, &open, old, len, &mut trim);
        let (Record { entries, seq, .. }, lane, spill) = match recorded {
            Ok(recorded) => recorded,
            Err(error) => {
                let error = self.untrim(trim, error);
                return Err(self.reopen_epoch(&open, error));
            }
        };
        let head = self.state.head();
        // Readers take no lock; they notice the odd count, or afterwards that it moved.
        head.resizes.fetch_add(1, Ordering::AcqRel);
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
        // Every later record, of whatever lane and page, must be numbered above this one.
        lanes[lane].finish(seq);
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

    /// Undoes what trimming began. Passes the error on.
    fn untrim(&self, trim: Trim, error: Error) -> Error {
        let Some(page) = trim.locked else { return error };
        let mut error = error;
        if let Some((slice, bytes)) = trim.overwrote {
            let staged = Staged { first: slice, bytes: &bytes, one_run: true };
            if self.put(page, self.committed_bitmap(page), 1 << slice, staged).is_err() {
                error = self.poison(error);
            }
            self.medium.order();
        }
        self.state.pages[page as usize].unlock_disturbed();
        error
    }

    /// Makes the record of a new length durable. Returns it, the lane it is in and whether it was spilled.
    fn record_len(
        &self,
        lanes: &[Lane<'_>],
        open: &[Entry],
        old: u64,
        len: u64,
        trim: &mut Trim,
    ) -> Result<(Record, usize, bool)> {
        let mut entries: Vec<Entry> = open.iter().filter(|entry| entry.page < pages(len)).copied().collect();
        let (lane, spill) = self.choose_lane(lanes, lines(entries.len() + 1))?;
        if len < old {
            let last = self.trim_last_page(len, &mut entries, trim)?;
            entries.extend(last);
        }
        let record = self.record_epoch(&lanes[lane], entries, len, spill).map_err(|(_, error)| error)?;
        Ok((record, lane, spill))
    }

    /// The entry of the page that the new end falls into: slices beyond it leave the sidecar, and the one it cuts keeps
    /// zeros behind the end, for a later growth uncovers them.
    fn trim_last_page(&self, len: u64, entries: &mut Vec<Entry>, trim: &mut Trim) -> Result<Option<Entry>> {
        let within = len % PAGE;
        if within == 0 {
            return Ok(None);
        }
        let page = len / PAGE;
        let keep = touched(0, within);
        let state = &self.state.pages[page as usize];
        let (visible, valid) = (state.bitmap(), self.committed_bitmap(page));
        let written_already = match entries.last() {
            Some(last) if last.page == page => entries.pop().map_or(0, |last| last.mask),
            _ => 0,
        };
        let mut bitmap = visible;
        let mut mask = written_already;
        if !len.is_multiple_of(SLICE) {
            let cut = within / SLICE;
            let mut slice = [0; SLICE as usize];
            self.copy_slices(page, visible, cut, 1, &mut slice)?;
            // Readers are kept out: a slice written in the open epoch is written over in place. Publishing unlocks it.
            state.lock(true, self.relax());
            trim.locked = Some(page);
            let in_epoch = (visible ^ valid) & 1 << cut != 0;
            trim.overwrote = in_epoch.then_some((cut, slice));
            slice[(len % SLICE) as usize..].fill(0);
            self.put(page, valid, 1 << cut, Staged { first: cut, bytes: &slice, one_run: true })?;
            bitmap = written(visible, valid, 1 << cut);
            mask |= 1 << cut;
        }
        Ok(Some(Entry { page, bitmap: bitmap & keep, mask: mask & keep }))
    }

    /// Frees what lies behind the new end of the data file. Its own length follows when the file is closed: readers may
    /// be copying from there this moment, and a page beyond the end of a file is no memory at all.
    fn punch_tail(&self, len: u64) -> Result<()> {
        let physical = self.data.len();
        if physical <= len {
            return Ok(());
        }
        let punched = self.data.punch(len, physical - len);
        // After the holes are there, or a neighbour's allocation could note space for them that they then take; and also
        // if some could not be made.
        (pages(len)..pages(physical)).for_each(|page| self.data_space.forget(page * PAGE));
        punched
    }
}
