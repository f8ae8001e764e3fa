//! Committing an epoch: one record, however much the epoch holds.

use super::format::{Digest, EpochRecord};
use super::lanes::ReadCount;
use super::{Core, Lane, barriers};
use crate::error::Result;
use crate::format::record::LINE;
use crate::format::sidecar::Geometry;
use crate::options::LogPolicy;
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sys::sync::Ordering;

/// Places for epochs' records, used in turn: the records of all epochs that may still be in flight are there.
pub(super) const RECORDS: u64 = 64;

/// In nanoseconds.
pub(super) const MILLISECOND: u64 = 1_000_000;

/// Epochs in flight at most, on a block medium, where the next one goes on while the last is flushed.
const IN_FLIGHT: u64 = RECORDS - 4;

/// Byte offset of an epoch's record.
pub(super) fn record_at(epoch: u64) -> u64 {
    Geometry::LANES_AT + epoch % RECORDS * LINE
}

impl<M: Medium> Core<M> {
    /// Commits everything written before the call.
    pub(super) fn commit(&self) -> Result<()> {
        let lanes = self.lanes.acquire_all(self.relax());
        self.commit_holding(&lanes)?;
        let mine = self.epoch() - 1;
        drop(lanes);
        // On persistent memory it is. On a block medium threads that come here together share a flush.
        self.await_durable(mine)
    }

    /// Waits until an epoch that has its record is durable, or makes it so.
    pub(super) fn await_durable(&self, epoch: u64) -> Result<()> {
        while self.durable() < epoch {
            self.handle_state.writable()?;
            self.flush_epochs()?;
        }
        Ok(())
    }

    /// Stores the record of the open epoch, unless nothing happened in it, and opens the next. On persistent memory the
    /// epoch is durable then; on a block medium it is by the next flush. The caller holds every lane.
    pub(super) fn commit_holding(&self, lanes: &[Lane<'_>]) -> Result<()> {
        self.commit_with(lanes, self.len(), self.class == MediumClass::PersistentMemory, || ())
    }

    /// The same, with a length for the file; if `at_once`, the epoch is durable then in any case, and `publish` is
    /// called when it is, before anybody else can know. Until then the file has the length that it had.
    pub(super) fn commit_with(
        &self,
        lanes: &[Lane<'_>],
        len: u64,
        at_once: bool,
        publish: impl FnOnce(),
    ) -> Result<()> {
        self.handle_state.writable()?;
        // A cut notes the length of the last epoch that has its record. The record of the epoch that it cuts at may be
        // gone with its chunk, and cannot correct a length that a crash took back.
        let at_once = at_once || self.inlines() && len != self.head.committed_len.load(Ordering::Relaxed);
        let writes: u64 = lanes.iter().map(|lane| lane.state.writes()).sum();
        if writes == 0 && len == self.head.committed_len.load(Ordering::Relaxed) {
            // A growth that was taken back: nobody wrote behind the end, so what is there is zeros as the growth left
            // it, and the next one has nothing to lay zeros over.
            self.head.longest.store(len, Ordering::Relaxed);
            return Ok(());
        }
        let epoch = self.epoch();
        if epoch - self.durable() > IN_FLIGHT {
            self.flush_epochs()?;
        }
        let mut digest = Digest::default();
        for lane in lanes {
            self.write_back(lane.state);
            let part = lane.state.digest();
            digest.count = digest.count.wrapping_add(part.count);
            digest.sum = digest.sum.wrapping_add(part.sum);
        }
        self.space.sync(&self.data, barriers::EPOCH_SPACE).map_err(|error| self.handle_state.poison(error))?;
        let certified = self.is_certified(lanes);
        if !certified {
            let both: &[&M::File] = &[&self.side, &self.data];
            self.fence(barriers::EPOCH_DATA, if self.logs_undo() { both } else { &both[..1] })?;
        }
        let digest = certified.then_some(digest);
        let time = self.medium.commit_time();
        let record = EpochRecord { epoch, len, digest, proves: self.durable(), time: time / MILLISECOND };
        let at = self.place_of_record(lanes, epoch);
        self.side.write(at, &record.encode(self.checksum_seed, at)).map_err(|error| self.handle_state.poison(error))?;
        if at_once {
            // Under undo what the record certifies stands in the data file.
            let both: &[&M::File] = &[&self.side, &self.data];
            self.fence(barriers::EPOCH_RECORD, if self.logs_undo() { both } else { &both[..1] })?;
            publish();
            // A cut writes this down with the epoch that it finds durable, and a close after it may have nothing to
            // cut.
            self.head.committed_len.store(len, Ordering::Release);
            // A checkpoint takes home what it finds published of a durable epoch, and gives the rest up.
            self.head.durable.fetch_max(epoch, Ordering::AcqRel);
        }
        self.head.committed_len.store(len, Ordering::Release);
        if self.head.longest.swap(len, Ordering::Relaxed) > len {
            self.head.stale_tail.store(1, Ordering::Relaxed);
        }
        self.head.committed_at.store(time, Ordering::Relaxed);
        self.head.epoch.store(epoch + 1, Ordering::Release);
        self.choose_policy(writes);
        lanes.iter().for_each(|lane| lane.state.start_epoch());
        Ok(())
    }

    /// Where the record of an epoch goes: behind one of its headers, whose page is dirty already, if there is room.
    /// Otherwise it goes to its own place. The caller holds every lane.
    fn place_of_record(&self, lanes: &[Lane<'_>], epoch: u64) -> u64 {
        let mut wrote = lanes.iter().filter(|lane| self.inlines() && lane.state.writes() > 0);
        let unit = wrote.find_map(|lane| self.chunks.take_next(lane.state, epoch));
        unit.map_or(record_at(epoch), |unit| self.chunks.header_at(unit))
    }

    /// Whether checksums vouch for all of the open epoch. The caller holds every lane.
    pub(super) fn is_certified(&self, lanes: &[Lane<'_>]) -> bool {
        self.certifies() && !lanes.iter().any(|lane| lane.state.is_uncertain())
    }

    /// Whether the record of an epoch was stored, durable or not.
    pub(super) fn has_record(&self, epoch: u64) -> bool {
        let (at, mut line) = (record_at(epoch), [0; LINE as usize]);
        let read = self.side.read(at, &mut line);
        read.is_ok() && EpochRecord::decode(self.checksum_seed, at, &line).is_some_and(|record| record.epoch == epoch)
    }

    /// Makes every epoch whose record was stored before the call durable, in a flush shared by the threads that wait
    /// for one.
    pub(super) fn flush_epochs(&self) -> Result<()> {
        let stored = self.epoch() - 1;
        let flush = || self.fence(barriers::EPOCH_RECORD, &[&self.side]);
        self.head.group.flush(self.relax(), flush)?;
        self.head.durable.fetch_max(stored, Ordering::AcqRel);
        Ok(())
    }

    /// Chooses what the epoch just opened logs, by what happened in the last one. The caller holds every lane.
    fn choose_policy(&self, writes: u64) {
        let mut undo = self.policy_undo(writes);
        if undo && !self.logs_undo() {
            // Recovery would lay what is left in the log over what goes to the file from now on.
            if let Err(error) = self.checkpoint() {
                tracing::warn!(path = %self.path().display(), %error, "cannot checkpoint before switching to undo \
                                                                       logging; the log stays with redo");
                undo = false;
            }
        }
        self.head.undo.store(u64::from(undo), Ordering::Release);
    }

    /// Whether undo suits an epoch of so many writes, and of the reads counted since the last one, which are counted
    /// anew from here on.
    fn policy_undo(&self, writes: u64) -> bool {
        match (self.class, self.policy) {
            (MediumClass::Block, _) | (_, LogPolicy::Redo) => false,
            (_, LogPolicy::Undo) => true,
            (_, LogPolicy::Hybrid) => {
                let reads: u64 = self.reads.iter().map(ReadCount::take).sum();
                writes * 100 < (reads + writes) * u64::from(self.options.redo_threshold_percent)
            }
        }
    }
}
