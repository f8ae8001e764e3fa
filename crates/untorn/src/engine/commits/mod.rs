//! The commit log: each commit of a file, in order, for readers that may come later and from other processes.
//!
//! [`WithCommitLog`] stands around an engine. It appends a record of each commit, with all bytes that the commit
//! changes, to a log beside the sidecar, and has the engine commit then. The log is bounded: its oldest segments go.
//! A file without a log pays nothing.
//!
//! # Invariants
//!
//! 1. A record is durable before the engine commits. So the engine never has a commit that the log lacks.
//! 2. A record is *confirmed* once the engine's commit is durable, and only confirmed records are given to readers.
//! 3. One record at most follows the confirmed ones. After a crash, whatever the engine has recovered, the open makes
//!    the commit of such a record again before it returns: a record that is durable is committed.
//! 4. A record whose commit fails, and leaves the file usable, is taken back durably before the caller learns of the
//!    failure. If that fails, nothing more is written.
//! 5. A log belongs to its file by identity, and goes on only if nobody can have changed the file meanwhile: the file
//!    stands as the log's control says that it was closed, or the crash left a sidecar. Otherwise it begins anew, under
//!    another UUID, and each reader from before learns that commits are missing.
//! 6. Every open for writing keeps an existing log up.
//! 7. Commits are serialized, and no write is under way while a record is made.
//! 8. If the log blocks, no segment goes that a registered [consumer] has not acknowledged. A commit waits for the
//!    consumer, up to a limit in time, before its record is made: a commit that is refused changes nothing.
//! 9. A number of the log is above all earlier ones of the file, and not above the engine's own of that commit. The
//!    engine may give numbers in between, as `reflection` does when it copies slices home.
//! 10. If the log awaits its consumers, a commit returns once each of them has acknowledged it. The wait holds no lock:
//!     the commit is made, and others go on.
//! 11. No snapshot is taken between a record and its confirmation ([`since`]).
//!
//! Lock order: the gate, the log, then those of the engine within.

pub(crate) mod appender;
pub(crate) mod consumer;
mod files;
mod format;
mod log;
pub(crate) mod part;
pub(crate) mod position;
pub(crate) mod since;
pub(crate) mod state;
pub(crate) mod stream;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use self::consumer::Consuming;
use self::format::{RangeKind, RawRange};
use self::log::{Appended, Coming, Log};
pub(crate) use self::log::{Glance, LogOf, glance};
use self::stream::{Commits, Reader};
use super::layer::Layer;
use super::snapshot::SnapshotService;
use super::{Close, Engine, Piece};
use crate::error::{Error, Result};
use crate::format::magic::is_region_store;
use crate::options::{CommitLog, Durability, Options};
use crate::storage::{Access, Medium, MediumFile};
use crate::sync::word_lock::lock;
use crate::sync::writer_gate::{Closed, WriterGate};
use crate::sys::incarnation;
use crate::sys::runs::Runs;

/// The barriers and checks of a commit log.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A record is durable before the engine commits what it tells of.
        RECORD = "commits.record";
        /// A segment is whole, and has its name, before a record in it counts.
        SEGMENT = "commits.segment";
        /// The control says that the file is open before the first commit, and how it stands before close returns: a
        /// log whose file may have changed unnoticed begins anew.
        CONTROL = "commits.control";
        /// What a killed process left in the page cache is durable before the open relies on it.
        ATTACH = "commits.attach";
        /// A record that was taken back is gone before its failure is told: otherwise an open would commit it.
        ABORT = "commits.abort";
        /// A check: a record behind the confirmed ones is committed again by the open.
        REPEATED = "commits.repeated";
        /// A check: readers get confirmed records only.
        CONFIRMED = "commits.confirmed";
    }
}

/// Slots of the gate: a further thread passes it more slowly.
const SLOTS: usize = 16;

/// Two ranges that are nearer to each other than this become one.
const NEAR: u64 = 16;

/// Bytes that a commit is repeated in at once, where that need not be one write.
const PIECE: usize = 4 << 20;

/// What the open epoch has changed.
#[derive(Debug, Default)]
struct Pending {
    ranges: Runs,
    /// The shortest that the file was in this epoch, if its length changed.
    shortest: Option<u64>,
}

impl Pending {
    fn add(&mut self, pieces: &[Piece<'_>]) {
        let mut written = Runs::new();
        for piece in pieces.iter().filter(|piece| !piece.bytes.is_empty()) {
            written.push(piece.offset..piece.offset.saturating_add(piece.bytes.len() as u64));
        }
        self.ranges.add(&written);
    }

    fn resize(&mut self, old: u64, len: u64) {
        let shortest = self.shortest.unwrap_or(old).min(old).min(len);
        self.shortest = Some(shortest);
        if len < old {
            self.ranges = self.ranges.within(std::slice::from_ref(&(0..len)));
        }
    }
}

/// The operations of a handle on the commits of its file.
pub(crate) trait CommitService: Send + Sync {
    /// The commits after this one.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`]; [`Error::NoSuchCommit`]; those of reading.
    fn after(&self, commit: u64) -> Result<Box<dyn Commits>>;
    /// The commits that this consumer has not acknowledged, or those after `from`.
    ///
    /// # Errors
    /// As for [`Consuming::open`].
    fn consumer(&self, name: &str, from: Option<u64>) -> Result<Box<dyn Commits>>;
    /// How the log is kept.
    fn kept(&self) -> CommitLog;
}

/// An engine whose commits are logged.
pub(crate) struct WithCommitLog<M: Medium> {
    engine: Box<dyn Engine>,
    medium: Arc<M>,
    path: PathBuf,
    gate: WriterGate,
    /// `None` once the file is closed.
    log: Mutex<Option<Log<M>>>,
    pending: Mutex<Pending>,
    durability: Durability,
    kept: CommitLog,
    /// Whether a change of the length is a commit by itself, which takes the open epoch with it.
    resize_commits: bool,
    /// A record could not be taken back.
    broken: AtomicBool,
    /// A commit returns once the consumers have acknowledged it. Processes that share the file wait by themselves.
    awaits: bool,
    /// The last commit that nobody needs to wait for: the consumers have it, or it is older than this opening.
    awaited: AtomicU64,
    /// The process that opened the file.
    process: u64,
}

/// Refuses a log for a region store: the engine of the regions commits past it.
///
/// # Errors
/// [`Error::Invalid`]; those of reading.
pub(crate) fn check_no_regions<M: Medium>(medium: &M, path: &Path, options: &Options) -> Result<()> {
    if options.commit_log.is_none_or(|log| log.limit == 0) {
        return Ok(());
    }
    let file = medium.open(path, Access::Read, 0)?;
    let mut start = [0; 8192];
    let there = file.len().min(start.len() as u64) as usize;
    file.read(0, &mut start[..there])?;
    if is_region_store(&start[..there]) {
        let what = "a region store has no commit log of its own: each of its regions has one, with numbers of its \
                    own; open it by `StoreOptions::commit_log`"
            .to_owned();
        return Err(Error::Invalid { path: path.to_owned(), what });
    }
    Ok(())
}

/// Puts the log around an engine that was just opened for writing, if its file has one or is to get one.
///
/// # Errors
/// Those of opening the log, and of repeating a commit.
pub(crate) fn with_commit_log<M: Medium>(
    engine: Box<dyn Engine>,
    medium: &Arc<M>,
    options: &Options,
    glance: Option<Glance>,
) -> Result<Box<dyn Engine>> {
    if glance.is_none() && options.commit_log.is_none() {
        return Ok(engine);
    }
    let path = engine.path().to_owned();
    let info = engine.info();
    // Of a file whose user chose another version than the log's nothing goes on.
    let recovered = info.recovery.was_needed && options.prefer.is_none();
    let wanted = options.commit_log.filter(|log| log.limit > 0);
    let log = Log::open(Arc::clone(medium), &path, wanted, glance, engine.last_commit().number, recovered, false)?;
    let Some(log) = log else { return Ok(engine) };
    if options.commit_log.is_some_and(|log| log.limit == 0) {
        log.remove()?;
        return Ok(engine);
    }
    let gate = WriterGate::new(SLOTS).map_err(|error| Error::io("reserve memory for", &path, error))?;
    let logged = WithCommitLog {
        resize_commits: engine.resize_commits(),
        durability: info.durability,
        kept: log.kept(),
        awaits: log.control.awaits && !options.shared,
        engine,
        medium: Arc::clone(medium),
        path,
        gate,
        log: Mutex::new(Some(log)),
        pending: Mutex::default(),
        broken: AtomicBool::new(false),
        awaited: AtomicU64::new(0),
        process: incarnation(),
    };
    let last = logged.repeat()?;
    logged.awaited.store(last, Ordering::Relaxed);
    Ok(Box::new(logged))
}

impl<M: Medium> WithCommitLog<M> {
    fn relax(&self) -> impl FnMut(u32) + '_ {
        |round| self.medium.relax(round)
    }

    fn pending(&self) -> std::sync::MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Keeps writes, commits and changes of the length out.
    fn close_gate(&self) -> Result<Closed<'_>> {
        let closed = self.gate.close(|round| self.medium.relax(round));
        closed.map_err(|error| Error::io("wait for the writers of", &self.path, error))
    }

    /// # Errors
    /// Why nothing may be written.
    fn usable(&self) -> Result<()> {
        if self.process != incarnation() {
            return Err(Error::Forked { path: self.path.clone() });
        }
        if self.broken.load(Ordering::Acquire) {
            let cause = "a commit failed, and its record could not be taken back from the commit log".to_owned();
            return Err(Error::Poisoned { path: self.path.clone(), cause });
        }
        self.engine.writable()
    }

    /// Makes the commits again whose records a crash left unconfirmed. Nothing else has been written yet. Returns the
    /// number of the last commit.
    fn repeat(&self) -> Result<u64> {
        let mut log = lock(&self.log, self.relax());
        let Some(log) = log.as_mut() else { return Ok(0) };
        while let Some((head, raw, appended)) = log.tail()? {
            if self.medium.makes_check(barriers::REPEATED) {
                self.engine.number_above(head.number - 1);
                if !self.resize_commits {
                    for len in [head.shortest.min(self.engine.len()), head.len] {
                        if self.engine.len() != len {
                            self.engine.resize(len)?;
                        }
                    }
                }
                // In an epoch piece by piece, and else as one write.
                let mut parts: Vec<(u64, Vec<u8>)> = Vec::new();
                let in_epoch = self.durability == Durability::PerCommit;
                let write = |parts: &mut Vec<(u64, Vec<u8>)>| {
                    let pieces: Vec<Piece<'_>> =
                        parts.iter().map(|(offset, bytes)| Piece { offset: *offset, bytes }).collect();
                    let written = if pieces.is_empty() { Ok(()) } else { self.engine.write(&pieces) };
                    parts.clear();
                    written
                };
                let mut held = 0;
                let within = self.engine.len();
                log.bytes(&head, &raw, &appended, |offset, bytes| {
                    // A length that the commit gives comes after its bytes, if it does.
                    let fits = (within.saturating_sub(offset)).min(bytes.len() as u64) as usize;
                    if fits > 0 {
                        parts.push((offset, bytes[..fits].to_vec()));
                        held += fits;
                    }
                    if in_epoch && held >= PIECE {
                        held = 0;
                        return write(&mut parts);
                    }
                    Ok(())
                })?;
                write(&mut parts)?;
                if self.resize_commits && self.engine.len() != head.len {
                    self.engine.resize(head.len)?;
                }
                self.engine.sync()?;
            }
            log.confirm(appended)?;
        }
        Ok(log.confirmed.number)
    }

    /// Makes one commit: its record first, then the commit by `commit`. The caller has closed the gate.
    fn log_and<T>(
        &self,
        ranges: &[Range<u64>],
        shortest: u64,
        len: u64,
        fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
        commit: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let mut log = lock(&self.log, self.relax());
        let Some(log) = log.as_mut() else { return commit() };
        let last = self.engine.last_commit().number.max(log.confirmed.number);
        let table: Vec<RawRange> = ranges.iter().map(|range| RawRange::new(RangeKind::Written, range)).collect();
        let (number, time) = (last + 1, self.medium.commit_time());
        let appended = log.append(&Coming { number, time, len, shortest, ranges: &table }, fill)?;
        // From here on the engine gives no number below that of the record.
        self.engine.number_above(last);
        match commit() {
            Ok(done) => log.confirm(appended).map(|()| done),
            Err(error) => Err(self.take_back(log, appended, error)),
        }
    }

    /// Passes the error on of a commit whose record is in the log.
    #[cold]
    fn take_back(&self, log: &mut Log<M>, appended: Appended, error: Error) -> Error {
        // After a failed flush nobody knows what became of the commit; the next open finds its record and makes it.
        if self.engine.writable().is_ok() && log.abort(appended).is_err() {
            self.broken.store(true, Ordering::Release);
        }
        error
    }

    /// The bytes as they are now.
    fn current(&self) -> impl FnMut(u64, &mut [u8]) -> Result<()> + '_ {
        |offset, dst| self.engine.read_at(offset, dst)
    }

    /// Waits until the consumers have all that is committed now, if commits are to wait for that.
    ///
    /// # Errors
    /// [`Error::NotAcknowledged`]: the commits stay. Those of reading.
    fn await_consumers(&self) -> Result<()> {
        if !self.awaits || !self.medium.makes_check(consumer::barriers::AWAITED) {
            return Ok(());
        }
        let Some(commit) = lock(&self.log, self.relax()).as_ref().map(|log| log.confirmed.number) else {
            return Ok(());
        };
        if commit <= self.awaited.load(Ordering::Relaxed) {
            return Ok(());
        }
        consumer::await_acknowledgement(&self.path, commit, self.kept.block, || {
            match lock(&self.log, self.relax()).as_ref() {
                Some(log) => log.slowest(),
                None => Err(Error::NotAcknowledged { path: self.path.clone(), consumer: None, commit }),
            }
        })?;
        self.awaited.fetch_max(commit, Ordering::Relaxed);
        Ok(())
    }

    /// Commits the open epoch. The caller has closed the gate.
    fn commit_epoch<T>(&self, len: u64, commit: impl FnOnce() -> Result<T>) -> Result<T> {
        let (ranges, shortest) = {
            let pending = self.pending();
            (pending.ranges.coarsened(NEAR), pending.shortest)
        };
        if ranges.is_empty() && shortest.is_none() && len == self.engine.len() {
            return commit();
        }
        let shortest = shortest.unwrap_or(u64::MAX).min(self.engine.len()).min(len);
        let ranges: Vec<Range<u64>> = ranges
            .into_iter()
            .map(|range| range.start..range.end.min(len).min(self.engine.len()))
            .filter(|range| !range.is_empty())
            .collect();
        let done = self.log_and(&ranges, shortest, len, self.current(), commit)?;
        *self.pending() = Pending::default();
        Ok(done)
    }

    /// Closes the engine, and notes how the file stands then.
    fn let_go(&self, close: impl FnOnce() -> Result<()>) -> Result<()> {
        let is_sound = self.usable().is_ok();
        close()?;
        let mut log = lock(&self.log, self.relax());
        match log.take() {
            Some(mut log) if is_sound => log.close(),
            _ => Ok(()),
        }
    }
}

/// The bytes of pieces, which have the whole range.
fn of_pieces<'a>(pieces: &'a [Piece<'_>]) -> impl FnMut(u64, &mut [u8]) -> Result<()> + 'a {
    move |offset, dst| {
        let index = pieces.partition_point(|piece| piece.offset <= offset).saturating_sub(1);
        // Empty ones before it may have the same offset, and none after it has.
        let from = pieces.get(index).map(|piece| (offset.saturating_sub(piece.offset) as usize, piece.bytes));
        if let Some(bytes) = from.and_then(|(from, bytes)| bytes.get(from..from + dst.len())) {
            dst.copy_from_slice(bytes);
        }
        Ok(())
    }
}

impl<M: Medium> CommitService for WithCommitLog<M> {
    fn after(&self, commit: u64) -> Result<Box<dyn Commits>> {
        let last = self.engine.last_commit().number;
        if commit > last {
            return Err(Error::NoSuchCommit { path: self.path.clone(), commit, last });
        }
        Ok(Box::new(Reader::open(Arc::clone(&self.medium), &self.path, LogOf::File, commit)?))
    }

    fn consumer(&self, name: &str, from: Option<u64>) -> Result<Box<dyn Commits>> {
        let last = self.engine.last_commit().number;
        if let Some(commit) = from.filter(|commit| *commit > last) {
            return Err(Error::NoSuchCommit { path: self.path.clone(), commit, last });
        }
        Ok(Box::new(Consuming::open(Arc::clone(&self.medium), &self.path, LogOf::File, name, from)?))
    }

    fn kept(&self) -> CommitLog {
        self.kept
    }
}

impl<M: Medium> Layer for WithCommitLog<M> {
    type Within = dyn Engine;

    fn within(&self) -> &Self::Within {
        &*self.engine
    }

    fn writable(&self) -> Result<()> {
        self.usable()
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.usable()?;
        if self.durability == Durability::PerCommit {
            let _inside = self.gate.enter(|round| self.medium.relax(round));
            self.engine.write(pieces)?;
            self.pending().add(pieces);
            return Ok(());
        }
        let closed = self.close_gate()?;
        // What the engine would refuse never comes into the log.
        pieces.iter().try_for_each(|piece| self.engine.check(piece.offset, piece.bytes.len() as u64))?;
        let written = pieces.iter().filter(|piece| !piece.bytes.is_empty());
        let written: Vec<Piece<'_>> = written.copied().collect();
        if written.is_empty() {
            return self.engine.write(pieces);
        }
        let range = |piece: &Piece<'_>| piece.offset..piece.offset + piece.bytes.len() as u64;
        let ranges: Vec<Range<u64>> = written.iter().map(range).collect();
        let len = self.engine.len();
        self.log_and(&ranges, len, len, of_pieces(&written), || self.engine.write(pieces))?;
        drop(closed);
        self.await_consumers()
    }

    fn sync(&self) -> Result<u64> {
        if self.engine.writable().is_err() || self.durability == Durability::PerWrite {
            return self.engine.sync();
        }
        self.usable()?;
        let closed = self.close_gate()?;
        let done = self.commit_epoch(self.engine.len(), || self.engine.sync())?;
        drop(closed);
        self.await_consumers().map(|()| done)
    }

    fn resize(&self, len: u64) -> Result<()> {
        self.usable()?;
        let closed = self.close_gate()?;
        let old = self.engine.len();
        if self.resize_commits {
            self.commit_epoch(len, || self.engine.resize(len))?;
        } else if self.durability == Durability::PerWrite {
            self.log_and(&[], old.min(len), len, self.current(), || self.engine.resize(len))?;
        } else {
            self.engine.resize(len)?;
            self.pending().resize(old, len);
            return Ok(());
        }
        drop(closed);
        self.await_consumers()
    }

    fn resize_commits(&self) -> bool {
        self.resize_commits
    }

    fn close(&self, how: Close) -> Result<()> {
        self.let_go(|| self.engine.close(how))
    }

    fn settle(&self) -> Result<()> {
        self.let_go(|| self.engine.settle())
    }

    fn snapshots(&self) -> Option<&dyn SnapshotService> {
        self.engine.snapshots().map(|_| self as &dyn SnapshotService)
    }

    fn commits(&self) -> Option<&dyn CommitService> {
        Some(self)
    }
}

impl<M: Medium> Drop for WithCommitLog<M> {
    fn drop(&mut self) {
        let is_open = self.process == incarnation() && lock(&self.log, self.relax()).is_some();
        if is_open && let Err(error) = Layer::close(self, Close::AsAsked) {
            // Nobody is left to return it to; the next open recovers, or begins the log anew.
            tracing::warn!(path = %self.path.display(), %error, "cannot close the file and its commit log cleanly");
        }
    }
}
