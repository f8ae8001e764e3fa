//! The stream of commits of an atomic file that has a commit log: the drain stores a record of each epoch.
//!
//! ```text
//!  Commit, durable in the log ─► record, durable in the commit log ─► the file ─► synced ─► how it stands ─► the tail
//! ```
//!
//! # Invariants
//!
//! 1. A Commit of such a file is *numbered*: it says the number of its commit, and that of the commit before it. Both
//!    are decided under the lock of the epoch, so numbers are in the order of the log.
//! 2. The drain stores the record of an epoch when it has made the Commit durable, and before it delivers any change of
//!    the epoch. It makes the records of a batch durable by one flush.
//! 3. Before the tail passes a Commit, the commit log says durably how the synced file stands.
//! 4. A replay stores the records of epochs that have none, each before it brings the epoch to the file. So it computes
//!    the same lengths as the drain would have.
//! 5. If the log blocks, a commit finds all commits of the file before it recorded, and makes room for its own record.
//!    It is refused while a consumer leaves none, and nothing was placed then.
//! 6. If the log awaits its consumers, a durable commit returns once they have acknowledged its record. It holds
//!    nothing meanwhile.
//!
//! A file without a commit log has none of this, and none of its flushes.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::commits::{Commit, Numbered};
use super::deliver::Bytes;
use super::drain::Item;
use super::epoch::Epoch;
use super::file::Managed;
use super::format::Kind;
use super::pack::{Packed, RECORD, unpack};
use super::spill::Spilled;
use super::{Cache, Mode, coalesce, locked};
use crate::engine::commits::appender::{CommitRecords, Committed};
use crate::engine::commits::consumer::await_acknowledgement;
use crate::error::{Error, Result};
use crate::options::CommitLog;
use crate::storage::Medium;

/// How often a commit looks whether a consumer has got on.
const POLL: Duration = Duration::from_millis(2);

/// The commit log of a file.
#[derive(Default)]
pub(super) struct FileCommits {
    /// It was looked for.
    looked: bool,
    records: Option<Box<dyn CommitRecords>>,
}

/// The numbers that the commits of an epoch's file get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    /// The last one that has, or is to have, a record.
    last: u64,
    /// The next one is above it.
    above: u64,
}

impl Numbers {
    /// Those of the next commit, made at this time.
    pub(super) fn next(&mut self, time: u64) -> Numbered {
        let (number, previous) = (self.above + 1, self.last);
        (self.last, self.above) = (number, number);
        Numbered { number, previous, time }
    }
}

/// Where the bytes of a write are.
pub(super) enum Source {
    /// In the log, from the entry at this position on.
    Log(u64),
    /// In the spill file, from this byte of the spilled write on.
    Spilled(Arc<Spilled>, u64),
}

/// The changes of an epoch, one after the other.
pub(super) struct Changes {
    writes: Vec<(u64, u64, Source)>,
    /// The length of the file after them.
    len: u64,
    shortest: u64,
}

impl Changes {
    /// None yet, of a file of this length.
    pub(super) fn new(len: u64) -> Self {
        Changes { writes: Vec::new(), len, shortest: len }
    }

    /// The length of the file after them.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    pub(super) fn write(&mut self, offset: u64, len: u64, source: Source) {
        self.writes.push((offset, len, source));
        self.len = self.len.max(offset.saturating_add(len));
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.writes.retain_mut(|(offset, count, _)| {
            *count = (*count).min(len.saturating_sub(*offset));
            *count > 0
        });
        (self.len, self.shortest) = (len, self.shortest.min(len));
    }

    pub(super) fn packed(&mut self, change: Packed<'_>) {
        match change {
            Packed::Write { offset, bytes, pack, at } => {
                self.write(offset, bytes.len() as u64, Source::Spilled(Arc::clone(pack), at));
            }
            Packed::Spilled { offset, spilled } => {
                self.write(offset, spilled.len, Source::Spilled(Arc::new(spilled), 0));
            }
            Packed::SetLen(len) => self.set_len(len),
        }
    }

    /// Stores the record. `read` appends bytes of a write to a buffer: where it is, how far in, and how many.
    pub(super) fn record(
        &self,
        records: &mut dyn CommitRecords,
        numbered: Numbered,
        mut read: impl FnMut(&Source, u64, u64, &mut Vec<u8>) -> Result<()>,
    ) {
        let places: Vec<(u64, u64)> = self.writes.iter().map(|(offset, len, _)| (*offset, *len)).collect();
        let runs = coalesce::visible(&places);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for run in &runs {
            match ranges.last_mut().filter(|last| last.end == run.offset) {
                Some(last) => last.end += run.len,
                None => ranges.push(run.offset..run.offset + run.len),
            }
        }
        let mut buffer = Vec::new();
        let mut fill = |offset: u64, dst: &mut [u8]| {
            let mut done = 0;
            while done < dst.len() {
                let at = offset + done as u64;
                let next = runs.partition_point(|run| run.offset <= at);
                // The ranges are made of the runs, so there is one here.
                let Some(run) = next.checked_sub(1).and_then(|index| runs.get(index)) else { return Ok(()) };
                let within = at - run.offset;
                let count = run.len.saturating_sub(within).min((dst.len() - done) as u64) as usize;
                if count == 0 {
                    return Ok(());
                }
                buffer.clear();
                read(&self.writes[run.write].2, run.skip + within, count as u64, &mut buffer)?;
                dst[done..done + count].copy_from_slice(&buffer[..count]);
                done += count;
            }
            Ok(())
        };
        let Numbered { number, previous, time } = numbered;
        let (len, shortest) = (self.len, self.shortest);
        records.put(&Committed { number, previous, time, len, shortest, ranges: &ranges }, &mut fill);
    }
}

impl Managed {
    /// Whether it has a commit log.
    pub(super) fn is_streamed(&self) -> bool {
        self.streamed.load(Ordering::Acquire)
    }

    fn with_records<T>(&self, act: impl FnOnce(&mut dyn CommitRecords) -> T) -> Option<T> {
        if !self.is_streamed() {
            return None;
        }
        let mut commits = locked(&self.commits);
        commits.records.as_mut().map(|records| act(&mut **records))
    }
}

impl<M: Medium> Cache<M> {
    /// Opens the commit log of a file that has one, or is to get one, before its first change.
    pub(super) fn open_stream(&self, file: &Managed, wanted: Option<CommitLog>) -> Result<()> {
        let mut commits = locked(&file.commits);
        let path = file.path();
        if commits.looked || file.is_demoted() {
            if wanted.is_some() && !file.is_streamed() {
                let what = "it is attached without a commit log; close its other handles first".to_owned();
                return Err(Error::Invalid { path: path.to_path_buf(), what });
            }
            return Ok(());
        }
        let Some(epoch) = &file.epoch else {
            if wanted.is_some() {
                let mode = if file.mode() == Mode::Through { "written through" } else { "cached" };
                let what = format!(
                    "it is {mode}, each write by itself, and only the commits of an atomic file are logged behind a \
                     write cache; make the file atomic"
                );
                return Err(Error::Invalid { path: path.to_path_buf(), what });
            }
            if let Some(mut records) = self.kept_records(&path)? {
                records.miss(records.last_number(), "the file is changed by writes that are no commits");
            }
            commits.looked = true;
            return Ok(());
        };
        let records = match wanted {
            Some(_) => self.place.commit_log(&path, wanted, false)?,
            None => self.kept_records(&path)?,
        };
        if let Some(records) = &records {
            self.allow_numbered()?;
            locked(epoch).numbers = Some(Numbers { last: records.last(), above: records.last_number() });
            file.blocks.store(records.blocks().is_some(), Ordering::Release);
            file.awaits.store(records.awaits(), Ordering::Release);
            file.awaited.store(file.last.load(Ordering::Acquire), Ordering::Relaxed);
            file.streamed.store(true, Ordering::Release);
        } else if wanted.is_some() {
            let what = "its file system keeps no commit logs".to_owned();
            return Err(Error::Invalid { path: path.to_path_buf(), what });
        }
        (commits.looked, commits.records) = (true, records);
        Ok(())
    }

    /// The commit log that a file has. One that cannot be opened is no reason to refuse the file: the next open finds
    /// that the file was changed without it, and begins it anew.
    ///
    /// # Errors
    /// Why a log cannot be opened that awaits its consumers: nobody would ever acknowledge a commit without it.
    fn kept_records(&self, path: &Path) -> Result<Option<Box<dyn CommitRecords>>> {
        self.place.commit_log(path, None, false).or_else(|error| {
            if self.place.awaits_consumers(path) {
                return Err(error);
            }
            tracing::error!(path = %path.display(), %error, "cannot open the commit log; no commit of this file is \
                                                             logged until it is opened again");
            Ok(None)
        })
    }

    /// Stores the records of the epochs among these operations of one file, in order, durably.
    pub(super) fn record_commits(&self, file: &Managed, items: &[Item]) -> Result<()> {
        if !file.is_streamed() || !items.iter().any(|item| item.operation.kind == Kind::Commit) {
            return Ok(());
        }
        let (ring, seed) = (&self.ring, self.ring.checksum_seed);
        let mut commits = locked(&file.commits);
        let Some(records) = commits.records.as_deref_mut() else { return Ok(()) };
        let mut changes = Changes::new(file.slow.len()?);
        let mut data = Vec::new();
        for Item { position, operation, len, spilled, .. } in items {
            match (operation.kind, spilled) {
                (Kind::StagedPack, Some(pack)) => {
                    let read = |spilled: &Spilled, range: Range<u64>, buffer: &mut Vec<u8>| {
                        self.spill.read_run(seed, spilled, range.start, range.end - range.start, buffer).map(|()| true)
                    };
                    let whole = unpack(pack, self.spill.len()?, read, |change| {
                        changes.packed(change);
                        Ok(true)
                    })?;
                    if !whole {
                        return Err(self.spill.odd());
                    }
                }
                (Kind::StagedSpill, Some(spilled)) => {
                    changes.write(operation.value, *len, Source::Spilled(Arc::clone(spilled), 0));
                }
                (Kind::StagedLen, _) => changes.set_len(operation.value),
                (Kind::Commit, _) => {
                    ring.entry(*position, &mut data).map_err(|error| self.poison(error))?;
                    let numbered = Commit::decode(&data).and_then(|commit| commit.numbered);
                    let Some(numbered) = numbered else { return Err(self.poison(ring.odd(*position))) };
                    changes.record(records, numbered, |source, skip, len, buffer| match source {
                        Source::Log(position) => self.read_run(Bytes::Log(*position), skip, len, buffer),
                        Source::Spilled(spilled, from) => {
                            self.read_run(Bytes::Spilled(spilled), from + skip, len, buffer)
                        }
                    });
                    changes = Changes::new(changes.len());
                }
                (Kind::StagedWrite, _) => changes.write(operation.value, *len, Source::Log(*position)),
                _ => {}
            }
        }
        records.publish();
        Ok(())
    }

    /// The file durably has all that was delivered: its commit log says how it stands.
    pub(super) fn stand(&self, file: &Managed) {
        if !file.has_failed() {
            file.with_records(|records| records.stand());
        }
    }

    /// The same after a change past the log that left bytes and length as they were, unless a drain is to come.
    pub(super) fn stand_again(&self, file: &Managed) {
        if file.is_streamed() && self.is_settled(file) && !file.has_open_epoch() {
            self.stand(file);
        }
    }

    /// The file is about to be renamed.
    pub(super) fn prepare_stream(&self, file: &Managed, to: &Path) {
        file.with_records(|records| records.moves(to));
    }

    /// The file has another name.
    pub(super) fn move_stream(&self, file: &Managed) {
        file.with_records(|records| records.moved(&file.path()));
    }

    /// Nobody changes the file through the log any more. Its commit log stays, unless the file is gone.
    pub(super) fn close_stream(&self, file: &Managed) {
        let Some(mut records) = locked(&file.commits).records.take() else { return };
        file.streamed.store(false, Ordering::Release);
        if let Some(epoch) = &file.epoch {
            locked(epoch).numbers = None;
        }
        if file.slow.is_removed().unwrap_or(false) {
            records.remove();
        } else {
            records.close();
        }
    }

    /// Waits until the consumers of the commit log have all commits of the file, if commits are to wait for that.
    ///
    /// # Errors
    /// [`Error::NotAcknowledged`]: the commits stay. Those of the drain and of reading.
    pub(super) fn await_consumers(&self, file: &Managed) -> Result<()> {
        let through = file.last.load(Ordering::Acquire);
        if !file.awaits.load(Ordering::Acquire) || through <= file.awaited.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Their records come with the drain.
        self.deliver_up_to(through)?;
        let (commit, most) = file.with_records(|records| (records.last(), records.blocks())).unwrap_or_default();
        await_acknowledgement(&file.path(), commit, most, || {
            // Without a log nobody learns of the commits.
            let lost = || Err(Error::NotAcknowledged { path: file.path().to_path_buf(), consumer: None, commit });
            file.with_records(|records| records.slowest(commit)).unwrap_or_else(lost)
        })?;
        file.awaited.fetch_max(through, Ordering::Relaxed);
        Ok(())
    }

    /// Puts the Commit of the open epoch into the log, as [`put_commit`](Cache::put_commit) does, when the consumers
    /// leave room for its record.
    pub(super) fn close_epoch(&self, file: &Managed, epoch: &Mutex<Epoch>) -> Result<u64> {
        if !file.blocks.load(Ordering::Acquire) || !file.is_streamed() {
            return self.put_commit(file, epoch);
        }
        // So that no other commit takes the room.
        let _alone = locked(&file.committing);
        self.deliver_up_to(file.last.load(Ordering::Acquire))?;
        let (ranges, bytes) = {
            let epoch = locked(epoch);
            // A pack has a record of its own before the bytes of each write.
            let ranges = |item: &Item| {
                if item.operation.kind == Kind::StagedPack { item.len / RECORD + 1 } else { 1 }
            };
            let size = |(all, bytes): (u64, u64), item| (all + ranges(item), bytes.saturating_add(item.len));
            epoch.items.iter().fold((0, 0), size)
        };
        if ranges == 0 {
            return self.put_commit(file, epoch);
        }
        let since = Instant::now();
        loop {
            // A write that comes meanwhile is in the epoch, too: a record that has no room then begins the log anew.
            let reserved =
                file.with_records(|records| (records.reserve(ranges, bytes), records.blocks().unwrap_or_default()));
            match reserved {
                Some((Err(error), most)) => {
                    let left = most.saturating_sub(since.elapsed());
                    if left.is_zero() {
                        return Err(error);
                    }
                    thread::sleep(left.min(POLL));
                }
                Some((Ok(()), _)) | None => return self.put_commit(file, epoch),
            }
        }
    }
}
