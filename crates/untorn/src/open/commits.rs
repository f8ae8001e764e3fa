//! The commits of a file, for programs: [streams](CommitStream) of them, and what they changed.
//!
//! A file has a *commit log* from the first opening with [`Options::commit_log`] on, and every later opening for
//! writing keeps it up, until [`stop`]. The log stands beside the sidecar and survives every close.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::engine::commits::LogOf;
use crate::engine::commits::consumer::Consuming;
pub use crate::engine::commits::position::{LogPosition, NoPosition};
use crate::engine::commits::stream::Reader;
pub use crate::engine::commits::stream::{Change, Changes, Commit, CommitStream};
use crate::engine::snapshot::remote::client;
use crate::engine::{Engine, Shared, State};
use crate::error::{Error, Result};
use crate::file::{AtomicFile, AtomicMap, inspect};
use crate::options::{CommitLog, Options};
use crate::shared::SharedMap;
use crate::storage::{PageCache, resolve};
use crate::sys::file::behind_mount;

impl CommitStream {
    /// The commits of the file at `path` after the one of this number, whichever process has the file open, or none.
    /// 0 asks for all commits since the file was created with its log.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the file has no commit log, or the log does not reach back so far;
    /// [`Error::NoSuchCommit`] if the number is above that of the file's last commit, as for a file that was restored
    /// from an older backup. If another process has the file open and does not tell its last commit, that error comes
    /// at the second commit from now on. [`Error::NoAccess`] if this user may not write the file; errors of opening and
    /// reading.
    pub fn open(path: impl AsRef<Path>, from: u64) -> Result<CommitStream> {
        let path = located(path.as_ref())?;
        let reader = Reader::open(Arc::new(PageCache::reading_by_call()), &path, LogOf::File, from)?;
        // Engines give numbers of their own, too, which are in no log.
        if let Some(last) = reader.behind()
            && let Some(last) = last_known(&path)?.map(|known| known.max(last)).filter(|last| *last < from)
        {
            return Err(Error::NoSuchCommit { path, commit: from, last });
        }
        Ok(CommitStream::new(Box::new(reader)))
    }

    /// The commits of the file at `path` after this position of another stream of it, whichever process has the file
    /// open, or none.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] also if the log has begun anew since, whatever number it began at; otherwise as for
    /// [`open`](Self::open).
    pub fn resume(path: impl AsRef<Path>, position: &LogPosition) -> Result<CommitStream> {
        let path = resolve(path.as_ref())?;
        let reader = Reader::resume(Arc::new(PageCache::reading_by_call()), &path, LogOf::File, position)?;
        Ok(CommitStream::new(Box::new(reader)))
    }

    /// The commits of the file at `path` for the registered consumer of this name, after the last that it
    /// [acknowledged](Self::acknowledge). Its position outlives its process. A new name is registered, durably, and
    /// begins at the start of the log.
    ///
    /// A name has 1 to 64 letters, digits, `-`, `_` and `.`. One stream at a time is of a consumer. A consumer that has
    /// not acknowledged a commit may be given it again by its next stream: at least once, in order, without a gap.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the file has no commit log, or if commits that the consumer needs are not in it any
    /// more: it goes on from a backup of the commit that the error names, or a later one, by
    /// [`consumer_from`](Self::consumer_from). [`Error::InUse`] if another stream is of this consumer;
    /// [`Error::Invalid`] for its name; otherwise as for [`open`](Self::open).
    pub fn consumer(path: impl AsRef<Path>, name: &str) -> Result<CommitStream> {
        consumer(path.as_ref(), name, None)
    }

    /// Like [`consumer`](Self::consumer), after the commit of this number, which becomes the position of the consumer.
    ///
    /// # Errors
    /// As for [`consumer`](Self::consumer) and [`open`](Self::open).
    pub fn consumer_from(path: impl AsRef<Path>, name: &str, from: u64) -> Result<CommitStream> {
        consumer(path.as_ref(), name, Some(from))
    }
}

fn consumer(path: &Path, name: &str, from: Option<u64>) -> Result<CommitStream> {
    let path = located(path)?;
    if let Some(from) = from {
        // A start that the file does not have is refused before anything is written.
        CommitStream::open(&path, from)?;
    }
    let consuming = Consuming::open(Arc::new(PageCache::reading_by_call()), &path, LogOf::File, name, from)?;
    Ok(CommitStream::new(Box::new(consuming)))
}

/// Removes a registered consumer of the file at `path`: the log keeps nothing for it any more. Returns whether there
/// was one. A stream that is open of it can acknowledge nothing from then on.
///
/// # Errors
/// [`Error::Invalid`] for a name that no consumer can have; those of removing its position.
pub fn forget(path: impl AsRef<Path>, name: &str) -> Result<bool> {
    let path = located(path.as_ref())?;
    crate::engine::commits::consumer::forget(&PageCache::reading_by_call(), &path, LogOf::File, name)
}

/// The number of the last commit of a file; `None` if another process has it open and does not tell.
fn last_known(path: &Path) -> Result<Option<u64>> {
    let report = inspect(path)?;
    if report.state != State::InUse {
        return Ok(Some(report.commit));
    }
    Ok(client::report(path).ok().and_then(|told| told.figures).map(|figures| figures.commit.max(report.commit)))
}

/// Which bytes of the file at `path` commits changed after the one of this number.
///
/// Whoever copies the file takes a [snapshot](crate::Snapshot) first and asks then: what the snapshot has that differs
/// from the file at that commit is all within these ranges.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("ledger");
/// use untorn::{Options, commits};
/// let file = Options::new().commit_log(1 << 20).create(&path, 4096)?;
/// let since = file.last_commit().number;
/// file.write_at(b"hello", 100)?;
/// file.sync()?;
/// assert_eq!(commits::changed_since(&path, since)?.ranges, [100..105]);
/// # Ok(()) }
/// ```
///
/// # Errors
/// As for [`CommitStream::open`].
pub fn changed_since(path: impl AsRef<Path>, commit: u64) -> Result<Changes> {
    CommitStream::open(path, commit)?.into_changes()
}

/// How the commit log of the file at `path` is kept; `None` if it has none.
///
/// # Errors
/// Errors of opening and reading.
pub fn kept(path: impl AsRef<Path>) -> Result<Option<CommitLog>> {
    let path = located(path.as_ref())?;
    let found = crate::engine::commits::state::look(&PageCache::reading_by_call(), &path, LogOf::File)?;
    Ok(found.map(|log| CommitLog { limit: log.limit, block: log.block, awaits: Some(log.awaits) }))
}

/// The path of a file. For one in a mount of untorn that is the path of its source, which has the log beside it.
fn located(path: &Path) -> Result<PathBuf> {
    let path = resolve(path)?;
    Ok(behind_mount(&path).unwrap_or(path))
}

/// Gives the commit log of a file up. Returns whether it had one.
///
/// # Errors
/// Those of opening the file for writing and of closing it.
pub fn stop(path: impl AsRef<Path>) -> Result<bool> {
    let path = path.as_ref();
    let had = crate::engine::commits::glance(&PageCache::reading_by_call(), &resolve(path)?)?.is_some();
    Options::new().commit_log(0).open(path)?.close()?;
    Ok(had)
}

fn logged(shared: &Shared, from: u64) -> Result<CommitStream> {
    let engine: &dyn Engine = &*shared.engine;
    match engine.commits() {
        Some(commits) => Ok(CommitStream::new(commits.after(from)?)),
        // Of a file that processes share another one may keep the log up.
        None => CommitStream::open(engine.path(), from),
    }
}

fn consuming(shared: &Shared, name: &str) -> Result<CommitStream> {
    let engine: &dyn Engine = &*shared.engine;
    match engine.commits() {
        Some(commits) => Ok(CommitStream::new(commits.consumer(name, None)?)),
        None => CommitStream::consumer(engine.path(), name),
    }
}

macro_rules! calls_of {
    ($handle:ident) => {
        impl $handle {
            /// The commits of this file after the one of this number, as [`CommitStream::open`] gives them.
            ///
            /// # Errors
            /// [`Error::CommitsMissing`] if the file has no [commit log](Options::commit_log) or it does not reach back
            /// so far; errors of opening and reading.
            pub fn commits(&self, from: u64) -> Result<CommitStream> {
                logged(self.shared(), from)
            }

            /// The commits of this file for a registered consumer, as [`CommitStream::consumer`] gives them.
            ///
            /// # Errors
            /// As for [`CommitStream::consumer`].
            pub fn consumer(&self, name: &str) -> Result<CommitStream> {
                consuming(self.shared(), name)
            }

            /// Which bytes commits changed after the one of this number; see [`changed_since`].
            ///
            /// # Errors
            /// As for [`commits`](Self::commits).
            pub fn changed_since(&self, commit: u64) -> Result<Changes> {
                logged(self.shared(), commit)?.into_changes()
            }
        }
    };
}

impl SharedMap {
    /// The commits of this file after the one of this number, whichever process made them, as [`CommitStream::open`]
    /// gives them.
    ///
    /// # Errors
    /// As for [`CommitStream::open`].
    pub fn commits(&self, from: u64) -> Result<CommitStream> {
        CommitStream::open(self.path(), from)
    }

    /// The commits of this file for a registered consumer, as [`CommitStream::consumer`] gives them.
    ///
    /// # Errors
    /// As for [`CommitStream::consumer`].
    pub fn consumer(&self, name: &str) -> Result<CommitStream> {
        CommitStream::consumer(self.path(), name)
    }
}

calls_of!(AtomicFile);
calls_of!(AtomicMap);
