//! The interface between handles and engines: the operations of an engine, the reports on a file, and the check that
//! no other process has the file open. Each engine makes a commit all-or-nothing.
//!
//! No engine is in this module. A product implements [`Engine`] and the factory (`open`) chooses one; this floor knows
//! neither. All engines are generic over [`Medium`](crate::storage::Medium), so the crash explorer runs the same code
//! as real storage.
//!
//! Reading order:
//! 1. [`Engine`] and [`Shared`], in this file.
//! 2. [`registry`]: one state for each file that a process has open.
//! 3. [`handle_state`]: whether that state may still be used.
//! 4. [`exclusion`]: which other processes may have the file open.
//! 5. [`redundancy`]: the operations of an engine that keeps redundancy.
//! 6. [`snapshot`]: a layer around an engine that keeps what held snapshots need.
//! 7. [`commits`]: a layer around an engine that logs each commit for readers.
//! 8. [`layer`]: what those two and others are, and how they pass operations on.
//! 9. [`figures`]: what can be counted of an open file.
//! 10. [`narrow`]: which bytes of stored pages a commit of plain memory writes.
//!
//! Lock order: a file's place in the registry, then the engine's own locks.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use self::commits::CommitService;
use self::commits::state::CommitLogInfo;
pub(crate) use self::range::{check_growth, check_range, misaligned};
use self::redundancy::RedundancyService;
use self::snapshot::{HeldSnapshots, SnapshotService};
use crate::error::{Error, Result};
use crate::format::sidecar::number::Stamped;
pub(crate) use crate::options::EngineKind;
#[cfg(doc)]
use crate::options::Prefer;
use crate::options::{Durability, Layout, Options};
use crate::storage::{Identity, MediumClass};
use crate::sys::sync;

pub(crate) mod commits;
pub(crate) mod exclusion;
pub(crate) mod figures;
pub(crate) mod handle_state;
pub(crate) mod layer;
#[cfg(feature = "metrics")]
pub(crate) mod metered;
pub(crate) mod narrow;
mod range;
pub(crate) mod redundancy;
pub(crate) mod registry;
pub(crate) mod snapshot;

/// The engine that [`EngineKind::Auto`] takes for a file without a sidecar, on a medium of this class.
///
/// On a block medium a commit of the hybrid log is one page of its log and one flush. It is no choice for writes that
/// are each a commit, which share no flush there. Nor is it for a file that `needs_pages`: redundancy does not cover
/// the log, and only reflection keeps a sidecar beside a closed file that is plain.
pub(crate) fn default_engine(class: MediumClass, durability: Option<Durability>, needs_pages: bool) -> EngineKind {
    match (class, durability) {
        (MediumClass::Block, None | Some(Durability::PerCommit)) if !needs_pages => EngineKind::HybridLog,
        _ => EngineKind::Reflection,
    }
}

/// A commit, and when it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LastCommit {
    /// See [`Info::commit`].
    pub number: u64,
    /// See [`Info::committed`].
    pub time: Option<SystemTime>,
}

impl From<Stamped> for LastCommit {
    fn from(stamped: Stamped) -> Self {
        LastCommit { number: stamped.number, time: time_of(stamped.time) }
    }
}

/// A time that engines keep in nanoseconds since 1970, for programs; 0 is not known.
pub(crate) fn time_of(nanoseconds: u64) -> Option<SystemTime> {
    (nanoseconds > 0).then(|| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds))
}

/// The other way.
pub(crate) fn nanoseconds(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// One contiguous part of an atomic write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// The offset in the file, in bytes.
    pub(crate) offset: u64,
    /// The bytes to write.
    pub(crate) bytes: &'a [u8],
}

/// What recovery found and did when the file was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// Whether the file had not been closed cleanly.
    pub was_needed: bool,
    /// Records of commits that recovery applied; for the hybrid log, entries of committed epochs.
    pub replayed: u64,
    /// Records of unfinished writes that recovery dropped whole; for the hybrid log, entries of epochs that did not
    /// commit.
    pub discarded: u64,
    /// Commits that [`recover`](crate::recover) gave up because the caller trusts the data file more
    /// ([`Prefer::File`]): at most so many had bytes that only the sidecar held. 0 at every other open.
    pub dropped_commits: u64,
    /// Bytes of the last commit that are lost because the data file was cut short and the sidecar does not hold them.
    /// They are zeros now, or those of an earlier commit. Bytes that were zeros before count too. Only an open that
    /// trusts the sidecar more ([`Prefer::Sidecar`]) loses any; every other one refuses such a file.
    pub lost_bytes: u64,
}

/// The state of an open file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Info {
    /// The engine that serves the file.
    pub engine: EngineKind,
    /// Length in bytes.
    pub len: u64,
    /// The highest commit number so far. It never falls in the life of the file, whatever closes, crashes, resizes and
    /// changes of the engine there are. A plain file keeps it in the extended attribute `user.untorn.commit`. On a file
    /// system without such attributes, each opening of a plain file starts at the microseconds since 1970.
    ///
    /// - Hybrid log: the number of the last durable epoch. Commits of one opening are numbered consecutively.
    /// - Reflection: a commit has a higher number than every earlier commit on its pages and in its thread. Commits of
    ///   unrelated pages by different threads may share a number or be numbered in any order.
    pub commit: u64,
    /// When the last commit was made, to a few milliseconds; `None` if that is not known, as for a file without one.
    /// After a crash of the engine `reflection` it is the time when the sidecar was last changed, which is not before
    /// the last commit.
    pub committed: Option<SystemTime>,
    /// When a write is durable.
    pub durability: Durability,
    /// Layout of the sidecar's meta pages; `None` for an engine without meta pages.
    pub layout: Option<Layout>,
    /// The path of the sidecar; `None` for an engine without a sidecar.
    pub sidecar: Option<PathBuf>,
    /// Pages with at least one slice that is valid only in the sidecar. For the hybrid log: pages with a log entry that
    /// is not yet written to the data file, or that recovery would undo.
    pub reflected_pages: u64,
    /// Slices of 64 bytes that are valid only in the sidecar. For the hybrid log: the slices that such entries touch.
    pub reflected_slices: u64,
    /// What recovery did when the file was opened.
    pub recovery: Recovery,
}

/// The state of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Closed cleanly, or a plain file without a sidecar.
    Clean,
    /// Open in another process now.
    InUse,
    /// Not closed cleanly. Opening it for writing, or [`recover`](crate::recover), brings it to its last commit.
    NeedsRecovery,
    /// Opening refuses the file until its user decides: its sidecar is missing or belongs to another file, another
    /// program changed it, or a newer version wrote it. No byte is known to be damaged. [`Report::findings`] says what
    /// to do.
    Refused,
    /// The file or its sidecar contradicts itself; [`Report::findings`] says how.
    Corrupt,
}

/// A sidecar as [`inspect`](crate::inspect) found it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SidecarReport {
    /// Its path.
    pub path: PathBuf,
    /// Its length in bytes; most of it may be holes that take no space.
    pub bytes: u64,
    /// Its UUID in text form.
    pub uuid: String,
    /// Layout of its meta pages; `None` for an engine without meta pages.
    pub layout: Option<Layout>,
    /// The durability the file was created with.
    pub durability: Durability,
}

/// What [`inspect`](crate::inspect) found.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Report {
    /// The data file.
    pub path: PathBuf,
    /// The engine that last opened it; `None` for a plain file.
    pub engine: Option<EngineKind>,
    /// Length at the last commit, in bytes.
    pub len: u64,
    /// Number of the last commit; 0 if no commit is known. See [`Info::commit`].
    pub commit: u64,
    /// When it was made; `None` if that is not known. See [`Info::committed`].
    pub committed: Option<SystemTime>,
    /// Its state.
    pub state: State,
    /// The process that has it open, as errors name it, if the state is [`State::InUse`]: "process 4711 (sqlite3)", or
    /// "another process" if the kernel does not tell which.
    pub holder: Option<String>,
    /// Whether a commit to it survives a power cut.
    pub durable: bool,
    /// The snapshots that are held of it, as the process that has it open tells; `None` if no process has it open for
    /// writing, or if that one does not tell ([`findings`](Report::findings) says why).
    pub snapshots: Option<HeldSnapshots>,
    /// Its sidecar.
    pub sidecar: Option<SidecarReport>,
    /// Its commit log; `None` if it has none, or if that is not known ([`findings`](Report::findings) says why).
    pub commit_log: Option<CommitLogInfo>,
    /// What is wrong or worth knowing, in sentences.
    pub findings: Vec<String>,
}

/// What an engine makes of a file without changing it.
pub(crate) struct Seen {
    /// Length at the last commit.
    pub(crate) len: u64,
    /// Its number.
    pub(crate) commit: u64,
    /// When it was made, in nanoseconds since 1970; 0 if that is not known.
    pub(crate) time: u64,
    /// What recovery would do.
    pub(crate) recovery: Recovery,
    /// Commits with bytes that only the sidecar holds, at most.
    pub(crate) held: u64,
}

/// What all handles of one open file share. Dropping it without [`Engine::close`] leaves the last commit.
pub(crate) struct Shared {
    pub(crate) engine: Box<dyn Engine>,
    /// No further handle of this process may have it.
    exclusive: bool,
    /// Other processes may have it open too.
    several: bool,
    /// Handles of this process that did not ask for that may have it.
    admits_unshared: bool,
    /// It belongs to a product that ends it while others may hold it ([`end`](Shared::end)).
    may_end: bool,
    /// Goes after the engine has let go of everything; the registry waits for that before it opens the file anew.
    lease: registry::Lease,
}

impl Shared {
    /// A state that the registry does not know: no other handle of this process finds it.
    pub(crate) fn unregistered(engine: Box<dyn Engine>, exclusive: bool) -> Self {
        Shared {
            engine,
            exclusive,
            several: false,
            admits_unshared: false,
            may_end: false,
            lease: registry::Lease::default(),
        }
    }

    /// Whether its product may [`end`](Shared::end) it: nobody may hold it for long.
    pub(crate) fn may_end(&self) -> bool {
        self.may_end
    }

    /// How its commit log differs from the one that a further handle asks for, in words.
    fn other_commit_log(&self, options: &Options) -> Option<String> {
        // Processes that share a file negotiate this.
        let wanted = options.commit_log.filter(|_| !self.several)?;
        match self.engine.commits().map(CommitService::kept) {
            None if wanted.limit == 0 => None,
            None => {
                Some("without a commit log; close all its handles first, or open the first with the log".to_owned())
            }
            Some(kept) if wanted.is_met_by(kept) => None,
            Some(kept) => Some(format!("with a commit log {kept}, where one {wanted} is asked for")),
        }
    }

    /// Closes the file, whoever holds the state. Nobody finds it from then on, and who found it before has let go or is
    /// done with it: readers of snapshots look for it at each request.
    ///
    /// # Errors
    /// Those of closing.
    pub(crate) fn end(&self, how: Close) -> Result<()> {
        let shared_entry = self.lease.shared_entry();
        let mut entry = shared_entry.as_ref().map(|shared_entry| registry::lock(shared_entry));
        entry.iter_mut().for_each(|entry| entry.forget());
        self.engine.close(how)
    }

    /// The state itself if this is the last handle of it. Of several handles given up at once, one is the last.
    pub(crate) fn into_sole(shared: sync::Arc<Self>) -> Option<Self> {
        let shared_entry = shared.lease.shared_entry();
        // A thread that opens the file with other options holds the state for a moment, only to be refused.
        let _quiet = shared_entry.as_ref().map(|shared_entry| registry::lock(shared_entry));
        sync::Arc::into_inner(shared)
    }
}

/// The ways to close a file, by their effect on the sidecar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// What [`Options::keep_sidecar`] says.
    AsAsked,
    /// Deploys everything and removes the sidecar. If that fails the sidecar stays.
    Plain,
    /// Keeps the sidecar: another process goes on from it.
    KeepSidecar,
}

impl Close {
    /// Whether the sidecar of a file that was opened with these options stays.
    pub(crate) fn keeps_sidecar(self, options: &Options) -> bool {
        self == Close::KeepSidecar || self == Close::AsAsked && options.keep_sidecar
    }
}

/// What a face needs of an engine. Ranges are checked by the engine against its length.
pub(crate) trait Engine: Send + Sync {
    fn path(&self) -> &Path;
    fn len(&self) -> u64;
    /// Which file it is that was opened.
    fn identity(&self) -> Result<Identity>;
    /// Whether a range lies within the file now.
    fn check(&self, offset: u64, len: u64) -> Result<()> {
        check_range(self.path(), offset, len, self.len())
    }
    /// Why the file accepts no writes, if so.
    fn writable(&self) -> Result<()>;
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;
    /// [`read`](Engine::read) where that is a plain copy; false, with `dst` in any state, where there is more to do
    /// or to say. It comes first at each read, so it is short.
    fn try_read(&self, _offset: u64, _dst: &mut [u8]) -> bool {
        false
    }
    /// Writes all pieces as one. They are sorted by offset and do not overlap.
    fn write(&self, pieces: &[Piece<'_>]) -> Result<()>;
    fn deploy(&self, offset: u64, len: u64) -> Result<()>;
    /// Copies home what closing would have to, and commits nothing. Returns the pages copied; 0 for an engine without
    /// such pages.
    fn deploy_ahead(&self) -> Result<u64> {
        Ok(0)
    }
    fn sync(&self) -> Result<u64>;
    fn resize(&self, len: u64) -> Result<()>;
    /// The length that another descriptor has grown the data file to, if it is longer than this process has made it.
    /// From now on that change counts as one of this process, and no commit is refused for it. The caller resizes to
    /// it.
    fn take_growth(&self) -> Result<Option<u64>> {
        Ok(None)
    }
    /// Whether each change of the length is a commit by itself, which takes the open epoch with it.
    fn resize_commits(&self) -> bool {
        true
    }
    /// From here on no commit has this number or a lower one. The caller keeps writes and commits out.
    fn number_above(&self, _number: u64) {}
    fn reclaim(&self) -> Result<u64>;
    fn info(&self) -> Info;
    /// The number and the time of the last commit.
    fn last_commit(&self) -> Stamped {
        let info = self.info();
        Stamped { number: info.commit, time: nanoseconds(info.committed) }
    }
    /// Whether a further handle with these options may share this open file.
    fn accepts(&self, options: &Options) -> bool;
    /// Closes at the last commit. Called once, with no other call under way.
    fn close(&self, how: Close) -> Result<()>;
    /// Deploys all and removes the sidecar. Called once, with no other call under way.
    fn settle(&self) -> Result<()>;
    /// Where a page has bytes in the sidecar that count and are not at home, if it has any and the sidecar is what has
    /// redundancy: the first byte of its page there. It may not be so any more.
    fn in_sidecar_page(&self, _page: u64) -> Option<u64> {
        None
    }
    /// The redundancy of the data file, if this keeps it.
    fn redundancy(&self) -> Option<&dyn RedundancyService> {
        None
    }
    /// Snapshots of the file, if this keeps them.
    fn snapshots(&self) -> Option<&dyn SnapshotService> {
        None
    }
    /// The same if nothing was changed since the count of [`changes`](Engine::changes) was this one. False, and nothing
    /// is written, otherwise.
    fn write_if(&self, _pieces: &[Piece<'_>], _changes: u64) -> Result<bool> {
        let what = "only a file that processes share counts its changes".to_owned();
        Err(Error::Invalid { path: self.path().to_owned(), what })
    }
    /// For a file that other processes change: a count that is another one after each change, before anybody is told of
    /// it.
    fn changes(&self) -> Option<u64> {
        None
    }
    /// The commits of the file, if this logs them.
    fn commits(&self) -> Option<&dyn CommitService> {
        None
    }
}

impl dyn Engine + '_ {
    /// Reads, the short way if there is one.
    #[inline]
    pub(crate) fn read_at(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if self.try_read(offset, dst) { Ok(()) } else { self.read(offset, dst) }
    }
}
