//! A file behind the log, and its operations: read, write, resize.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::epoch::Epoch;
use super::format::Kind;
use super::names::Names;
use super::overlay::{Overlay, PAGE, pages};
use super::ring::Operation;
use super::stream::FileCommits;
use super::table::Line;
use super::{Cache, barriers};
use crate::error::{Error, Result};
use crate::options::CommitLog;
use crate::storage::{CreateAttrs, Identity, Medium};
use crate::write_cache::backing::BackingFile;

/// One inode that has, or may have, entries in the log.
pub(crate) struct Managed {
    pub(super) slow: Arc<dyn BackingFile>,
    pub(super) identity: Identity,
    pub(super) names: RwLock<Names>,
    /// Whether it has every write as soon as the log has: see [`write_through`](super::write_through).
    pub(super) write_through: bool,
    /// Set for an atomic file: see [`epoch`](super::epoch).
    pub(super) epoch: Option<Mutex<Epoch>>,
    /// Its commit log, if it has one: see [`stream`](super::stream).
    pub(super) commits: Mutex<FileCommits>,
    pub(super) streamed: AtomicBool,
    /// Whether its commits wait for consumers, and the lock for that.
    pub(super) blocks: AtomicBool,
    /// The commit log awaits its consumers.
    pub(super) awaits: AtomicBool,
    /// Up to here in the log nobody needs to wait for consumers: they have it, or it is older than this opening.
    pub(super) awaited: AtomicU64,
    pub(super) committing: Mutex<()>,
    /// Held shared by whoever goes through the log, exclusively by who goes past it.
    pub(super) gate: RwLock<()>,
    pub(super) length: RwLock<Length>,
    pub(super) overlay: Overlay,
    /// Its line in the file table, once it has one.
    pub(super) line: Mutex<Option<Line>>,
    /// The line says that the file may be removed.
    pub(super) leaving: AtomicBool,
    /// No crash brings it back any more.
    pub(super) gone: AtomicBool,
    /// What the line says it is to be like if it has to be made again, as long as that is to be done.
    pub(super) like: OnceLock<CreateAttrs>,
    pub(super) new: AtomicBool,
    /// The number that its entries have; 0 without a line.
    pub(super) uid: AtomicU64,
    /// The log has what it is called, durably once this request for a flush of the log is answered.
    pub(super) named: AtomicU64,
    /// What its line says of changes at times that no entry has: see [`OwnStores`](super::format::OwnStores).
    pub(super) late: AtomicU64,
    /// Stores of this process that are under way at times that no entry has; changed with the line locked.
    pub(super) storing: AtomicU64,
    /// Every entry of it has a position below.
    pub(super) last: AtomicU64,
    /// Handles that programs have; changed under the lock of the registry.
    pub(super) handles: AtomicU64,
    /// Why it can't be drained any more.
    failed: OnceLock<String>,
    /// Whether it goes past the log from now on.
    demoted: AtomicBool,
    /// The number of its turn, plus 1, while other processes append for it too.
    turn: AtomicUsize,
    /// Writes, bytes and syncs of theirs that were not asked for yet.
    counts: [AtomicU64; 3],
}

/// How long the file is, and how much of the slow file is still what it was.
pub(super) struct Length {
    len: u64,
    /// Changes of the length that the slow file has not seen, by position. Beyond the least of them, what the slow
    /// file has is no longer in the file.
    changes: VecDeque<(u64, u64)>,
}

/// How changes of a file reach it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// By the log, later.
    Cached,
    /// By the log, at once: see [`write_through`](super::write_through).
    Through,
    /// By the log, later, an epoch at a time: see [`epoch`](super::epoch).
    Atomic,
}

/// How a file is put behind the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attach {
    pub(crate) mode: Mode,
    /// The commit log that it is to get, unless it keeps the one that it has.
    pub(crate) commit_log: Option<CommitLog>,
}

/// The length while a write decides where it goes: alone if the file gets longer.
pub(super) struct Sized<'a> {
    pub(super) offset: u64,
    end: u64,
    _shared: Option<RwLockReadGuard<'a, Length>>,
    alone: Option<RwLockWriteGuard<'a, Length>>,
}

impl Sized<'_> {
    /// The bytes are there.
    pub(super) fn grow(&mut self) {
        if let Some(length) = &mut self.alone {
            length.len = length.len.max(self.end);
        }
    }
}

impl Length {
    /// Changes the length by the entry at this position.
    pub(super) fn change(&mut self, file: &Managed, position: u64, len: u64) {
        if len < self.len {
            file.overlay.cut(len);
        }
        self.len = len;
        self.changes.push_back((position, len));
    }

    /// Takes the length of the slow file, which has all changes.
    pub(super) fn reset(&mut self, len: u64) {
        self.len = len;
        self.changes.clear();
    }

    /// Lets changes know that their entries have moved.
    pub(super) fn relocate(&mut self, to: impl Fn(u64) -> Option<u64>) {
        for (position, _) in &mut self.changes {
            *position = to(*position).unwrap_or(*position);
        }
    }
}

/// Where a write goes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum At {
    Offset(u64),
    /// The end, which is decided together with the write.
    End,
}

pub(super) fn shared<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn exclusive<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

impl Managed {
    pub(super) fn new(slow: Arc<dyn BackingFile>, identity: Identity, path: PathBuf, len: u64, mode: Mode) -> Self {
        Managed {
            slow,
            identity,
            names: RwLock::new(Names::new(path)),
            leaving: AtomicBool::new(false),
            gone: AtomicBool::new(false),
            like: OnceLock::new(),
            new: AtomicBool::new(false),
            write_through: mode == Mode::Through,
            epoch: (mode == Mode::Atomic).then(Mutex::default),
            commits: Mutex::default(),
            streamed: AtomicBool::new(false),
            blocks: AtomicBool::new(false),
            awaits: AtomicBool::new(false),
            awaited: AtomicU64::new(0),
            committing: Mutex::default(),
            gate: RwLock::default(),
            length: RwLock::new(Length { len, changes: VecDeque::new() }),
            overlay: Overlay::default(),
            line: Mutex::default(),
            uid: AtomicU64::new(0),
            named: AtomicU64::new(0),
            late: AtomicU64::new(0),
            storing: AtomicU64::new(0),
            last: AtomicU64::new(0),
            handles: AtomicU64::new(0),
            failed: OnceLock::new(),
            demoted: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            counts: Default::default(),
        }
    }

    /// # Errors
    /// The first failure of the slow file, to every call from then on.
    pub(super) fn check_usable(&self) -> Result<()> {
        match self.failed.get() {
            None => Ok(()),
            Some(cause) => Err(Error::Poisoned { path: self.path().to_path_buf(), cause: cause.clone() }),
        }
    }

    pub(super) fn mode(&self) -> Mode {
        match (self.write_through, &self.epoch) {
            (true, _) => Mode::Through,
            (false, None) => Mode::Cached,
            (false, Some(_)) => Mode::Atomic,
        }
    }

    /// Ends all draining of this file: what it has in the log stays there, for a replay.
    #[cold]
    pub(super) fn fail(&self, error: &Error) {
        tracing::error!(path = %self.path().display(), %error, "draining this file failed; its writes stay in the log \
                                                                until a replay");
        // The first cause is the one to report.
        let _ = self.failed.set(error.to_string());
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.get().is_some()
    }

    pub(crate) fn is_demoted(&self) -> bool {
        self.demoted.load(Ordering::Acquire)
    }

    /// The number of its turn, while other processes append for it too.
    pub(super) fn turn(&self) -> Option<usize> {
        self.turn.load(Ordering::Acquire).checked_sub(1)
    }

    pub(super) fn set_turn(&self, turn: Option<usize>) {
        self.turn.store(turn.map_or(0, |number| number + 1), Ordering::Release);
    }

    pub(super) fn add_counts(&self, counts: [u64; 3]) {
        for (sum, count) in self.counts.iter().zip(counts) {
            sum.fetch_add(count, Ordering::Relaxed);
        }
    }

    pub(super) fn take_counts(&self) -> [u64; 3] {
        self.counts.each_ref().map(|sum| sum.swap(0, Ordering::Relaxed))
    }

    /// Notes that the slow file has the changes of length below a position.
    pub(super) fn forget_changes(&self, below: u64) {
        let mut length = exclusive(&self.length);
        while length.changes.front().is_some_and(|&(position, _)| position < below) {
            length.changes.pop_front();
        }
    }

    /// The place of a write of so many bytes, with the length held until they are there.
    pub(super) fn sized(&self, at: At, len: usize) -> Result<Sized<'_>> {
        // Who makes the file longer, and who asks where it ends, does so alone.
        let length = shared(&self.length);
        let within = matches!(at, At::Offset(offset) if offset + len as u64 <= length.len);
        let (shared, alone) = if within {
            (Some(length), None)
        } else {
            drop(length);
            (None, Some(exclusive(&self.length)))
        };
        let offset = match (at, &alone) {
            (At::Offset(offset), _) => offset,
            (At::End, Some(length)) => length.len,
            (At::End, None) => 0,
        };
        let end = self.check(offset, len)?;
        Ok(Sized { offset, end, _shared: shared, alone })
    }

    pub(super) fn check(&self, offset: u64, len: usize) -> Result<u64> {
        // What a file's length may be, so that no sum overflows from here on.
        let end = offset.checked_add(len as u64).filter(|&end| end <= i64::MAX as u64);
        end.ok_or_else(|| {
            let what = format!("{len} bytes at offset {offset} end beyond the largest file offset, 2^63 - 1");
            Error::Invalid { path: self.path().to_path_buf(), what }
        })
    }
}

impl<M: Medium> Cache<M> {
    pub(crate) fn len(&self, file: &Managed) -> Result<u64> {
        self.handle_state.ours()?;
        if file.write_through || file.is_demoted() {
            return file.slow.len();
        }
        Ok(shared(&file.length).len)
    }

    /// Fills `dst` from `offset` as far as the file goes. No allocation, and nothing of the log's but locks.
    pub(crate) fn read(&self, file: &Managed, offset: u64, dst: &mut [u8]) -> Result<usize> {
        self.handle_state.ours()?;
        file.check(offset, dst.len())?;
        let _gate = shared(&file.gate);
        if file.is_demoted() {
            return file.slow.read(offset, dst);
        }
        let length = shared(&file.length);
        if file.write_through {
            let _stripes = file.overlay.shared(&pages(offset, dst.len() as u64));
            return file.slow.read(offset, dst);
        }
        let there = length.len.saturating_sub(offset).min(dst.len() as u64);
        let dst = &mut dst[..there as usize];
        let range = pages(offset, there);
        let pieces = file.overlay.shared(&range);
        let bounds = |page: u64| (offset.max(page * PAGE), (offset + there).min((page + 1) * PAGE));
        let covered = |page| {
            let (start, end) = bounds(page);
            pieces.covers(page, start - page * PAGE, end - page * PAGE)
        };
        if !range.clone().all(covered) {
            let kept = length.changes.iter().map(|&(_, len)| len).min().unwrap_or(u64::MAX);
            let below = kept.saturating_sub(offset).min(there) as usize;
            let got = file.slow.read(offset, &mut dst[..below])?;
            dst[got..].fill(0);
        }
        for page in range {
            let (start, end) = bounds(page);
            for piece in pieces.of(page) {
                let from = start.max(page * PAGE + u64::from(piece.start));
                let to = end.min(page * PAGE + u64::from(piece.end));
                if from < to {
                    let skip = from - page * PAGE - u64::from(piece.start) + u64::from(piece.from);
                    let place = (from - offset) as usize..(to - offset) as usize;
                    match self.spill.read(piece.position, skip, &mut dst[place.clone()]) {
                        Some(read) => read?,
                        None => self.ring.read(piece.position, skip, &mut dst[place])?,
                    }
                }
            }
        }
        Ok(there as usize)
    }

    /// Writes, and returns where. Durable and seen, all of it or nothing, when this returns; where the guarantee is
    /// left to a sync, seen.
    ///
    /// What goes past the log or through it may be a part of it, of as many bytes as are returned too.
    pub(crate) fn write(&self, file: &Managed, at: At, src: &[u8]) -> Result<(u64, usize)> {
        self.handle_state.writable()?;
        file.check_usable()?;
        if let At::Offset(offset) = at {
            file.check(offset, src.len())?;
        }
        if src.is_empty() {
            return match at {
                At::Offset(offset) => Ok((offset, 0)),
                At::End => self.len(file).map(|end| (end, 0)),
            };
        }
        if let Some(epoch) = file.open_epoch() {
            let staged = self.write_staged(file, epoch, at, src)?;
            return staged.map_or_else(|| self.write_past(file, at, src), Ok);
        }
        let parts = self.ring.geometry.parts(src.len());
        if file.is_demoted() || parts > self.ring.geometry.most() || !self.claim(parts)? {
            return self.write_past(file, at, src);
        }
        let claim = Claim { cache: self, parts };
        let gate = shared(&file.gate);
        if file.is_demoted() {
            drop((gate, claim));
            return self.write_past(file, at, src);
        }
        if file.write_through {
            return self.write_through(file, claim, at, src);
        }
        let uid = self.number(file)?;
        let mut sized = file.sized(at, src.len())?;
        let offset = sized.offset;
        let range = pages(offset, src.len() as u64);
        let mut pieces = file.overlay.exclusive(&range);
        let first = self.log(file, claim, Operation { uid, kind: Kind::Write, value: offset, time: 0 }, src)?;
        pieces.add(offset, src.len() as u64, first, u64::from(self.ring.geometry.entry));
        sized.grow();
        self.completed(first, parts);
        Ok((offset, src.len()))
    }

    /// Stores an operation and makes it as durable as it has to be.
    pub(super) fn log(&self, file: &Managed, claim: Claim<'_, M>, operation: Operation, data: &[u8]) -> Result<u64> {
        let first = claim.place();
        let stored = self.ring.put(first, first, operation, data).and_then(|()| self.ring.promise());
        // From here on positions are taken that nothing may ever complete: only a replay tells what is in them.
        stored.map_err(|error| self.poison(error))?;
        if let Some(number) = file.turn() {
            // Before anybody is told that it was done: the next sync is to flush it.
            self.ring.shared_state().turn(number).change();
        }
        let parts = self.ring.geometry.parts(data.len());
        file.last.fetch_max(first + parts, Ordering::AcqRel);
        Ok(first)
    }

    pub(super) fn completed(&self, first: u64, parts: u64) {
        self.ring.complete(first, parts);
        self.note();
    }

    /// Changes the length.
    pub(crate) fn set_len(&self, file: &Managed, len: u64) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        file.check(len, 0)?;
        if let Some(epoch) = file.open_epoch() {
            return if self.set_len_staged(file, epoch, len)? { Ok(()) } else { self.set_len_past(file, len) };
        }
        if file.is_demoted() || !self.claim(1)? {
            return self.set_len_past(file, len);
        }
        let claim = Claim { cache: self, parts: 1 };
        let gate = shared(&file.gate);
        if file.is_demoted() {
            drop((gate, claim));
            return self.set_len_past(file, len);
        }
        if file.write_through {
            return self.set_len_through(file, claim, len);
        }
        let uid = self.number(file)?;
        let mut length = exclusive(&file.length);
        let first = self.log(file, claim, Operation { uid, kind: Kind::SetLen, value: len, time: 0 }, &[])?;
        length.change(file, first, len);
        drop(length);
        self.completed(first, 1);
        Ok(())
    }

    /// What goes past the log goes to the slow file when the log has nothing of it, and is durable there before the
    /// call returns, where that was promised.
    fn past<T>(&self, file: &Managed, act: impl FnOnce(&dyn BackingFile) -> Result<T>) -> Result<T> {
        let _gate = exclusive(&file.gate);
        let _turn = self.hold(file)?;
        let demoted = file.is_demoted();
        if !demoted {
            // What is durable has to have a name.
            self.number(file)?;
            self.drain_file(file)?;
        }
        let result = if demoted { act(&*file.slow) } else { self.storing(file, || act(&*file.slow)) };
        // Also after an error: a part of it may have been done.
        exclusive(&file.length).len = file.slow.len()?;
        let value = result?;
        if !demoted || self.ring.is_per_write() {
            file.slow.sync(barriers::PAST).inspect_err(|error| self.fail(file, error))?;
        }
        Ok(value)
    }

    #[cold]
    fn write_past(&self, file: &Managed, at: At, src: &[u8]) -> Result<(u64, usize)> {
        self.past(file, |slow| {
            let offset = match at {
                At::Offset(offset) => offset,
                At::End => slow.len()?,
            };
            file.check(offset, src.len())?;
            if file.write_through {
                return slow.write_some(offset, src).map(|count| (offset, count));
            }
            slow.write(offset, src).map(|()| (offset, src.len()))
        })
    }

    #[cold]
    fn set_len_past(&self, file: &Managed, len: u64) -> Result<()> {
        self.past(file, |slow| slow.set_len(len))
    }

    /// Makes durable what was written to the file so far: of an atomic file, by a commit.
    pub(crate) fn sync(&self, file: &Managed) -> Result<()> {
        self.commit(file, true)
    }

    /// The same of a file that is not atomic.
    pub(super) fn sync_as_ever(&self, file: &Managed) -> Result<()> {
        if file.is_demoted() {
            return file.slow.sync(barriers::PAST).inspect_err(|error| self.fail(file, error));
        }
        // What is shown of a write of which a process died may be less than a replay would leave, or more.
        self.mend_left(file)?;
        file.check_usable()?;
        if !self.ring.is_per_write() {
            self.ring.persist(barriers::SYNC).map_err(|error| self.poison(error))?;
        }
        Ok(())
    }

    /// Drains the file and lets it go past the log from now on: then others may open it.
    pub(crate) fn demote(&self, file: &Managed) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let _gate = exclusive(&file.gate);
        file.check_closed("give it to other programs")?;
        if !file.demoted.load(Ordering::Acquire) {
            self.revoke_writers(file)?;
            self.drain_file(file)?;
            // Whoever renames or removes it has it demoted before.
            self.be_uncertain(file);
            // A drain that is about to end has the file open no longer than that.
            self.await_drain();
            self.close_stream(file);
            file.demoted.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Hands what the log has of the file to the kernel and looks at the length anew: another program may have
    /// changed it.
    pub(crate) fn reload_len(&self, file: &Managed) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let _gate = exclusive(&file.gate);
        file.check_closed("take over what other programs wrote to it")?;
        // Of what a process left the tail has passed nothing yet.
        drop(self.hold(file)?);
        self.drain_file(file)?;
        // The length, and with it the time: what was changed by now is no change after the log's last word.
        exclusive(&file.length).len = self.storing(file, || file.slow.len())?;
        Ok(())
    }
}

/// Entries that were claimed; given back unless they are placed.
pub(super) struct Claim<'a, M: Medium> {
    cache: &'a Cache<M>,
    pub(super) parts: u64,
}

impl<'a, M: Medium> Claim<'a, M> {
    /// So many, which the caller has claimed.
    pub(super) fn new(cache: &'a Cache<M>, parts: u64) -> Self {
        Claim { cache, parts }
    }

    fn place(self) -> u64 {
        let parts = self.parts;
        self.place_some(parts)
    }

    /// Places so many, and leaves the rest to the caller.
    pub(super) fn place_some(self, parts: u64) -> u64 {
        let first = self.cache.ring.place(parts);
        std::mem::forget(self);
        first
    }
}

impl<M: Medium> Drop for Claim<'_, M> {
    fn drop(&mut self) {
        self.cache.ring.unclaim(self.parts);
    }
}
