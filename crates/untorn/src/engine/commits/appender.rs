//! The commit log of a file whose commits a write cache makes.
//!
//! The log of the write cache has a commit first, durably, and the file has it last. An [`Appender`] stores its record
//! in between. It is the only writer of the commit log meanwhile, and locks the control file for that.
//!
//! # Invariants
//!
//! 1. A commit is durable in the log of the write cache before its record is stored here. So no crash takes a commit
//!    back that has a record, and a record may be given to readers as soon as it is durable.
//! 2. A record is durable before the file gets anything of its commit. So a replay that meets a commit without a record
//!    finds the file as the commit before left it, once it has repeated all up to that one.
//! 3. The write cache forgets a commit when its record is durable, and when the control says, durably, how the file
//!    stands with it. So after a crash the write cache's log has changes of the file, which the replay knows for the
//!    last ones, or the file stands as the control says, or somebody else changed it.
//! 4. A commit says its number and that of the commit before it. One that has a record gets no second one. If records
//!    are missing before it, the log begins anew: each reader learns of it.
//! 5. A log that cannot be written to, or that has no room for a commit, begins anew behind that commit. Neither the
//!    program nor the drain fails because of it.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::files::{consumer_path, consumers, open, segment_path, segments};
use super::format::{LINE, body_len};
use super::log::{Coming, Log, LogOf, control_path, glance, remove};
use super::state;
use super::{RangeKind, RawRange};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::format::sidecar::number::{self, Stamped};
use crate::options::CommitLog;
use crate::storage::{Access, Identity, LockKind, Medium, MediumFile, lock_holder};

/// The barriers of a commit log that a write cache fills.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// Records are durable before the file gets anything of their commits, and before readers are given them.
        RECORD = "commits.cache.record";
        /// The control says durably how the file stands before the write cache forgets the commits that led there.
        STANDS = "commits.cache.stands";
        /// The log is in the new directory of its file before the write cache forgets the rename.
        CARRIED = "commits.cache.carried";
    }
}

/// A commit as a write cache has it.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    /// Its number.
    pub number: u64,
    /// The number of the one before it.
    pub previous: u64,
    /// Nanoseconds since 1970.
    pub time: u64,
    /// Length of the file after it.
    pub len: u64,
    /// The shortest that the file was in it.
    pub shortest: u64,
    /// The bytes that it wrote, ascending; none touches another.
    pub ranges: &'a [Range<u64>],
}

/// Gives the bytes of a range.
pub(crate) type Fill<'a> = &'a mut dyn FnMut(u64, &mut [u8]) -> Result<()>;

/// A commit log, for a write cache that does not know its medium.
pub trait CommitRecords: Send {
    /// The number of the last commit that has a record, or of the one that the log begins behind.
    fn last(&self) -> u64;
    /// The number that those of later commits are above.
    fn last_number(&self) -> u64;
    /// Stores the record of a commit, unless there is one.
    fn put(&mut self, commit: &Committed<'_>, fill: Fill<'_>);
    /// A commit that no record can be made of: the log begins anew behind it.
    fn miss(&mut self, number: u64, why: &str);
    /// Makes the records durable that were put, and gives them to readers.
    fn publish(&mut self);
    /// The file durably has all commits that were put, and nothing else.
    fn stand(&mut self);
    /// How long a commit waits for consumers; `None` if it does not.
    fn blocks(&self) -> Option<Duration>;
    /// Whether a commit returns once each consumer has acknowledged it.
    fn awaits(&self) -> bool;
    /// The consumer with the lowest position, and that position; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::NotAcknowledged`] if the log lacks this commit, so that no position tells of it; those of reading.
    fn slowest(&self, commit: u64) -> Result<Option<(String, u64)>>;
    /// Makes room for a commit of at most so many ranges and bytes.
    ///
    /// # Errors
    /// [`Error::ConsumerBehind`].
    fn reserve(&mut self, ranges: u64, bytes: u64) -> Result<()>;
    /// The file is about to get this path.
    fn moves(&mut self, to: &Path);
    /// The file has another path.
    fn moved(&mut self, to: &Path);
    /// Nobody changes the file through the write cache any more.
    fn close(&mut self);
    /// The file has no name any more.
    fn remove(self: Box<Self>);
}

/// The writer of a commit log.
pub(crate) struct Appender<M: Medium> {
    medium: Arc<M>,
    identity: Identity,
    /// `None` after a failure: the next open finds that the file is not as the control says.
    log: Option<Log<M>>,
    /// The control file, if it was there before: it is locked through this descriptor then.
    _lock: Option<M::File>,
    path: PathBuf,
    /// The last number that is known from elsewhere.
    noted: u64,
    last: u64,
    /// When the last commit was made.
    time: u64,
    kept: CommitLog,
    /// Nothing was put since the control said how the file stands.
    stood: bool,
}

/// Notes the number of a commit in the data file, unless another file has its path by now.
fn keep_number<M: Medium>(medium: &M, log: &Log<M>, stamped: Stamped) -> Result<()> {
    let data = medium.open(log.path(), Access::ReadWrite, 0)?;
    if data.identity()? == log.data().identity()? { number::keep(medium, &data, stamped) } else { Ok(()) }
}

/// Keeps every other process from writing to a log.
fn lock<F: MediumFile>(control: &F, path: &Path) -> Result<()> {
    if control.try_lock(LockKind::Exclusive)? {
        return Ok(());
    }
    let holder = format!("{}, which writes to its commit log", lock_holder(control));
    Err(Error::InUse { path: path.to_owned(), holder })
}

impl<M: Medium> Appender<M> {
    /// Opens the log of a file, or makes one as it is wanted; `None` if it has none. With `replays`, the log of the
    /// write cache has changes of the file, and nobody else has changed it.
    ///
    /// # Errors
    /// [`Error::InUse`] if another process writes to the log; those of opening and writing.
    pub(crate) fn open(medium: Arc<M>, path: &Path, wanted: Option<CommitLog>, replays: bool) -> Result<Option<Self>> {
        let glance = glance(&*medium, path)?;
        if glance.is_none() && wanted.is_none() {
            return Ok(None);
        }
        let data = medium.open(path, Access::Read, 0)?;
        let (identity, noted) = (data.identity()?, number::start(&*medium, &data)?.number);
        let place = control_path(path, identity.inode, LogOf::File);
        let found = open(&*medium, &place, Access::ReadWrite, &data)?;
        if let Some(control) = &found {
            lock(control, path)?;
        }
        let opened = Log::open(Arc::clone(&medium), path, wanted, glance, noted, replays, true)?;
        let Some(mut log) = opened else { return Ok(None) };
        if found.is_none() {
            lock(log.control_file(), path)?;
        }
        log.waits = false;
        let kept = log.kept();
        // Their commits are in the log of the write cache, or the file has them.
        while replays && let Some((_, _, appended)) = log.tail()? {
            log.confirm(appended)?;
        }
        if !replays && log.tail()?.is_some() {
            // Without that log nobody knows whether the file has them.
            let base = noted.max(log.confirmed.number);
            log.restart(identity, base, 0)?;
        }
        let last = log.confirmed.number;
        if !replays && !log.stands()? {
            // From here on a crash leaves changes in the log of the write cache, or the file as it is.
            log.stand()?;
        }
        let (path, log) = (path.to_owned(), Some(log));
        Ok(Some(Appender { medium, identity, log, _lock: found, path, noted, last, time: 0, kept, stood: !replays }))
    }

    /// Runs something on the log. If that fails, the log begins anew behind this commit.
    fn on_log(&mut self, number: u64, act: impl FnOnce(&mut Log<M>) -> Result<()>) {
        let Some(log) = &mut self.log else { return };
        let Err(error) = act(log) else {
            self.last = log.confirmed.number;
            return;
        };
        let path = self.path.display();
        tracing::error!(%path, number, %error, "the commit log lacks a commit, and begins anew behind it");
        if let Err(error) = log.restart(self.identity, number, 0) {
            tracing::error!(%path, %error, "the commit log cannot begin anew; no commit is logged until the file is \
                                            opened again");
            self.log = None;
        }
        self.last = number;
    }
}

impl<M: Medium> CommitRecords for Appender<M> {
    fn last(&self) -> u64 {
        self.last
    }

    fn last_number(&self) -> u64 {
        self.last.max(self.noted)
    }

    fn put(&mut self, commit: &Committed<'_>, fill: Fill<'_>) {
        if commit.number <= self.last {
            return;
        }
        if commit.previous != self.last {
            self.miss(commit.previous, "the commits before it have no records");
        }
        (self.time, self.stood) = (commit.time, false);
        let raw = |range: &Range<u64>| RawRange::new(RangeKind::Written, range);
        let ranges: Vec<RawRange> = commit.ranges.iter().map(raw).collect();
        let &Committed { number, time, len, shortest, .. } = commit;
        self.on_log(number, |log| log.put(&Coming { number, time, len, shortest, ranges: &ranges }, fill));
    }

    fn miss(&mut self, number: u64, why: &str) {
        let path = self.path.clone();
        self.stood = false;
        self.on_log(number, |_| Err(Error::Invalid { path, what: why.to_owned() }));
    }

    fn publish(&mut self) {
        self.on_log(self.last, Log::publish);
    }

    fn stand(&mut self) {
        let stood = std::mem::replace(&mut self.stood, true);
        self.on_log(self.last, |log| if stood && log.stands()? { Ok(()) } else { log.stand() });
    }

    fn blocks(&self) -> Option<Duration> {
        self.log.as_ref().map_or(self.kept.block, |log| log.control.holds())
    }

    fn awaits(&self) -> bool {
        self.kept.awaits_consumers()
    }

    fn slowest(&self, commit: u64) -> Result<Option<(String, u64)>> {
        match self.log.as_ref().filter(|log| log.control.base < commit) {
            Some(log) => log.slowest(),
            None => Err(Error::NotAcknowledged { path: self.path.clone(), consumer: None, commit }),
        }
    }

    fn reserve(&mut self, ranges: u64, bytes: u64) -> Result<()> {
        let Some(log) = &mut self.log else { return Ok(()) };
        // A commit that is larger than the log may be waits for nobody.
        let body = body_len(ranges, bytes).filter(|body| body + 2 * LINE <= log.control.limit);
        match body.map_or(Ok(()), |body| log.make_room(LINE + body)) {
            Err(error @ Error::ConsumerBehind { .. }) => Err(error),
            // The record finds the same, and says so.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn moves(&mut self, to: &Path) {
        if self.path.parent() == to.parent() {
            return;
        }
        // A crash may leave the log behind: the one that is made then begins here.
        let stamped = Stamped { number: self.last, time: self.time };
        let medium = Arc::clone(&self.medium);
        self.on_log(self.last, |log| {
            keep_number(&*medium, log, stamped)?;
            log.data().sync(barriers::CARRIED)
        });
    }

    fn moved(&mut self, to: &Path) {
        to.clone_into(&mut self.path);
        self.on_log(self.last, |log| log.move_to(to));
    }

    fn close(&mut self) {
        let Some(mut log) = self.log.take() else { return };
        // The number goes on above this one also if the log is lost.
        if let Err(error) = keep_number(&*self.medium, &log, Stamped { number: self.last, time: self.time }) {
            tracing::debug!(path = %log.path().display(), %error, "cannot note the number of the last commit");
        }
        if let Err(error) = log.publish().and_then(|()| log.close()) {
            tracing::warn!(path = %log.path().display(), %error, "cannot close the commit log; it begins anew when the \
                                                                  file is opened next");
        }
    }

    fn remove(mut self: Box<Self>) {
        if let Some(log) = self.log.take()
            && let Err(error) = log.remove()
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the commit log of a removed file");
        }
    }
}

/// Brings the log of a file along, durably, that was renamed from one directory to another. The control comes last: a
/// crash leaves it where the rest can be looked for. Does nothing if there is no log where the file was.
///
/// # Errors
/// Those of renaming; then a part of it may be in either directory, and the call may be made again.
pub(crate) fn carry<M: Medium>(medium: &M, from: &Path, to: &Path, inode: u64, data: &M::File) -> Result<()> {
    let (old, new) = (control_path(from, inode, LogOf::File), control_path(to, inode, LogOf::File));
    // With the control already there, a segment may be left that was made meanwhile. A rename that was announced and
    // not made has no companion directory where the file would have gone.
    if old == new || !medium.exists(&sidecar::parent(&old))? || !(medium.exists(&old)? || medium.exists(&new)?) {
        return Ok(());
    }
    medium.create_companion_dir(&sidecar::parent(&new), data)?;
    // The directory is there before anything moves to it.
    medium.sync_dir(barriers::CARRIED, &sidecar::parent(to))?;
    for index in segments(medium, &old)? {
        medium.rename(&segment_path(&old, index), &segment_path(&new, index))?;
    }
    for name in consumers(medium, &old)? {
        medium.rename(&consumer_path(&old, &name), &consumer_path(&new, &name))?;
    }
    if medium.exists(&old)? {
        medium.rename(&old, &new)?;
    }
    for dir in [sidecar::parent(&new), sidecar::parent(&old)] {
        medium.sync_dir(barriers::CARRIED, &dir)?;
    }
    Ok(())
}

/// Notes the number of a commit in a file whose commit log cannot be opened. The log that follows then begins behind
/// it, and readers learn that commits are missing. Durable at the next sync of the file.
///
/// # Errors
/// Those of opening the file and writing the attribute.
pub(crate) fn note_commit<M: Medium>(medium: &M, path: &Path, number: u64, time: u64) -> Result<()> {
    let data = medium.open(path, Access::ReadWrite, 0)?;
    number::keep(medium, &data, Stamped { number, time })
}

/// Removes the log of a file that is gone, whose path this was.
///
/// # Errors
/// Those of removing.
pub(crate) fn remove_of<M: Medium>(medium: &M, path: &Path, inode: u64) -> Result<()> {
    let place = control_path(path, inode, LogOf::File);
    if medium.exists(&place)? { remove(medium, &place) } else { Ok(()) }
}

/// Whether the file's log awaits its consumers, as far as that can be read.
pub(crate) fn awaits<M: Medium>(medium: &M, path: &Path) -> bool {
    state::look(medium, path, LogOf::File).is_ok_and(|log| log.is_some_and(|log| log.awaits))
}

/// The commit log of a file on this medium, as [`Appender::open`] opens it.
///
/// # Errors
/// As for that.
pub(crate) fn records<M: Medium>(
    medium: M,
    path: &Path,
    wanted: Option<CommitLog>,
    replays: bool,
) -> Result<Option<Box<dyn CommitRecords>>> {
    let opened = Appender::open(Arc::new(medium), path, wanted, replays)?;
    Ok(opened.map(|log| Box::new(log) as Box<dyn CommitRecords>))
}

/// Brings the log along of a file that was renamed.
///
/// # Errors
/// As for [`carry`].
pub(crate) fn carry_renamed<M: Medium>(medium: &M, from: &Path, to: &Path) -> Result<()> {
    if from.parent() == to.parent() {
        return Ok(());
    }
    let data = medium.open(to, Access::Read, 0)?;
    carry(medium, from, to, data.identity()?.inode, &data)
}
