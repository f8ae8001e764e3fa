//! Committing an epoch: freeze what was written since the last commit, make it durable, call it committed.

use std::sync::atomic::Ordering;

use super::slices::{SLICE, runs};
use super::{Reflection, barriers};
use crate::error::{Error, Result};
use crate::format::lane::Lane;
use crate::format::record::{DataSum, Entry, Record, lines};
use crate::format::sidecar::PAGE;
use crate::storage::Medium;

/// Pages of an epoch for which memory is asked once.
const FEW: usize = 256;

impl<M: Medium> Reflection<M> {
    /// Commits every write that joined the epoch before the call. Threads that call it at the same time share a commit:
    /// whoever gets the gate first commits for all.
    pub(super) fn commit_epoch(&self) -> Result<()> {
        let head = self.state.head();
        let mine = head.epoch.load(Ordering::Acquire);
        let mut round = 0;
        let _committing = loop {
            if head.committed_epoch.load(Ordering::Acquire) >= mine {
                return Ok(());
            }
            if let Some(held) = head.commit.try_lock() {
                break held;
            }
            self.medium.relax(round);
            round = round.saturating_add(1);
        };
        if head.committed_epoch.load(Ordering::Acquire) >= mine {
            return Ok(());
        }
        self.writable()?;
        self.commit_holding_gate()
    }

    /// Commits the open epoch. The caller holds the commit gate.
    pub(super) fn commit_holding_gate(&self) -> Result<()> {
        let head = self.state.head();
        let lanes = self.lanes.acquire_all(self.relax());
        let epoch = head.epoch.load(Ordering::Relaxed);
        let entries = self.take_epoch();
        if entries.is_empty() {
            head.epoch.store(epoch + 1, Ordering::Release);
            head.committed_epoch.store(epoch, Ordering::Release);
            return Ok(());
        }
        let (lane, spill) = match self.choose_lane(&lanes, lines(entries.len())) {
            Ok(chosen) => chosen,
            Err(error) => return Err(self.reopen_epoch(&entries, error)),
        };
        for entry in &entries {
            self.state.epochs[entry.page as usize].frozen.store(entry.mask, Ordering::Release);
        }
        head.epoch.store(epoch + 1, Ordering::Release);
        // From here on writers may go on; they keep off the frozen slices.
        let lane = lanes.keep(lane);
        let record = self.record_epoch(&lane, entries, head.len.load(Ordering::Relaxed), spill);
        let record = record.map_err(|failed| self.reopen_epoch(&failed.0, failed.1))?;
        for entry in &record.entries {
            let state = &self.state.epochs[entry.page as usize];
            // Committed before thawed: a writer that finds the page thawed goes by the new bitmap. Nobody else changes
            // it, for whoever would holds the commit gate.
            state.committed.store(state.committed.load(Ordering::Relaxed) ^ entry.mask, Ordering::Release);
            state.frozen.store(0, Ordering::Release);
        }
        lane.finish_commit(record.seq, self.medium.commit_time());
        head.committed_epoch.store(epoch, Ordering::Release);
        drop(lane);
        if spill {
            let pages: Vec<u64> = record.entries.iter().map(|entry| entry.page).collect();
            self.cut_with(&pages)?;
            self.drop_spill();
        }
        Ok(())
    }

    /// Makes an epoch's record durable, and its data before or with it. Gives the entries back if it fails.
    pub(super) fn record_epoch(
        &self,
        lane: &Lane<'_>,
        entries: Vec<Entry>,
        len: u64,
        spill: bool,
    ) -> std::result::Result<Record, Box<(Vec<Entry>, Error)>> {
        let seq = self.commit_number().max(lane.last()) + 1;
        let sum = match self.certify(&entries, len) {
            Ok(sum) => sum,
            Err(error) => return Err(Box::new((entries, error))),
        };
        let record = Record { seq, certain: sum.is_none(), sum: sum.unwrap_or(0), len, entries };
        let store = || {
            self.data_space.sync(&self.data, barriers::EPOCH_SPACE).map_err(|error| self.poison(error))?;
            self.side_space.sync(&self.side, barriers::EPOCH_SPACE).map_err(|error| self.poison(error))?;
            if spill {
                self.append_spilled(lane, &record)?;
            } else {
                self.lanes.append(lane, &self.side, self.checksum_seed, &record).map_err(|error| self.poison(error))?;
            }
            self.fence(barriers::EPOCH_RECORD).map_err(|error| self.poison(error))
        };
        match store() {
            Ok(()) => Ok(record),
            Err(error) => Err(Box::new((record.entries, error))),
        }
    }

    /// Puts back what could not be committed, so that the next commit takes it again; nobody may be told later that it
    /// succeeded. The caller holds a lane. Passes the error on.
    pub(super) fn reopen_epoch(&self, entries: &[Entry], error: Error) -> Error {
        for entry in entries {
            self.state.epochs[entry.page as usize].frozen.store(0, Ordering::Release);
            self.state.mark_changed(entry.page);
        }
        error
    }

    /// What was written since the last commit. The caller holds the commit gate and every lane.
    pub(super) fn take_epoch(&self) -> Vec<Entry> {
        let mut entries = Vec::with_capacity(FEW);
        self.state.take_dirty(|page| {
            let bitmap = self.state.pages[page as usize].bitmap();
            let mask = bitmap ^ self.committed_bitmap(page);
            if mask != 0 {
                entries.push(Entry { page, bitmap, mask });
            }
        });
        entries
    }

    /// A lane with room for this many lines, by index, and whether the record must be spilled after all.
    pub(super) fn choose_lane(&self, lanes: &[Lane<'_>], wanted: u64) -> Result<(usize, bool)> {
        let spill = wanted > u64::from(self.geometry.slots);
        let wanted = if spill { 1 } else { wanted };
        let roomy = |lanes: &[Lane<'_>]| lanes.iter().position(|lane| self.lanes.free(lane) >= wanted);
        if let Some(lane) = roomy(lanes) {
            return Ok((lane, spill));
        }
        // In per-commit mode every cut is made under the commit gate, which the caller holds; in per-write mode the
        // caller holds the checkpoint gate.
        self.cut_holding(lanes, &[])?;
        // After a checkpoint every lane is empty, and a lane has room for any record that is not spilled.
        Ok((roomy(lanes).unwrap_or(0), spill))
    }

    /// Makes the data of an epoch durable, or takes the checksum that certifies it. The slices are frozen.
    fn certify(&self, entries: &[Entry], len: u64) -> Result<Option<u64>> {
        if self.certifies_epochs() {
            let mut sum = DataSum::default();
            let mut image = [0; PAGE as usize];
            for entry in entries {
                for (start, count) in runs(entry.mask) {
                    let bytes = &mut image[..(count * SLICE) as usize];
                    self.copy_slices(entry.page, entry.bitmap, start, count, bytes)?;
                    // With the length the record gives, which is not yet the file's where it shrinks.
                    let within = len.saturating_sub(entry.page * PAGE + start * SLICE);
                    bytes[within.min(count * SLICE) as usize..].fill(0);
                    sum.add(bytes);
                }
            }
            return Ok(Some(sum.get()));
        }
        self.fence(barriers::EPOCH_DATA).map_err(|error| self.poison(error))?;
        Ok(None)
    }
}
