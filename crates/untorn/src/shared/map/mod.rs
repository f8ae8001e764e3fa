//! [`SharedMap`]: plain loads and stores of several processes, committed together.

use std::fmt;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::negotiated;
use crate::engine::commits::CommitService;
use crate::engine::exclusion::NotShared;
use crate::engine::narrow::add_changed;
use crate::engine::snapshot::Snapshot;
use crate::engine::snapshot::remote::client;
use crate::engine::{self, Close, Shared};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::ipc::memory::{Backing, Before, Cut, Opener, SharedMemory, Takeover, cause_of};
use crate::ipc::rendezvous::in_directory;
use crate::options::{ExclusionCheck, Options};
use crate::storage::{self, Identity, detect};
use crate::sys::sync;

/// Address space of a shared map that sets no maximum, unless twice its length is more.
const RESERVE: u64 = 1 << 30;

/// A file as plain memory that several processes store to at once. Each process sees the others' stores.
///
/// A [`commit`](SharedMap::commit) by any process makes the stores of *all* processes, up to one instant, durable
/// together. The commit has a store whole or not at all, together with everything that happened before it. Threads go
/// on storing meanwhile; a store to a page that is being copied for the commit waits about ten microseconds. After a
/// crash of the machine, or when the last process ends, the file holds the last commit.
///
/// A process may join and leave at any time, and may be killed at any instruction. Its stores stay in the memory, as
/// those of an ended thread do; the next commit includes them, or a rollback discards them. One process has the file
/// open and serves the others. When it dies, another process takes over within milliseconds:
///
/// - Meanwhile commits wait, and so do loads of pages that no process had loaded before.
/// - If the dead process left a forked child that runs no other program, the child still has the file open. The others
///   then wait for its end, but at most 30 seconds. After that every call fails with [`Error::Poisoned`] until all
///   processes have left.
/// - A process that lacks descriptors or memory to reconnect for a second is evicted. Its calls fail with
///   [`Error::Poisoned`], and its memory is private from then on and starts as zeros.
///
/// There are no slices, because other processes store at any time. Load and store through [`as_ptr`](SharedMap::as_ptr)
/// with a protocol that the processes agree on, as [`words`](SharedMap::words), or copy with
/// [`read_at`](SharedMap::read_at) and [`write_at`](SharedMap::write_at).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("tickets");
/// use std::sync::atomic::Ordering;
/// use untorn::shared::SharedMap;
/// use untorn::AtomicFile;
/// AtomicFile::create(&path, 1 << 20)?.settle()?;
/// let map = match SharedMap::open(&path) { // in each process
///     Err(error) if error.errno() == 1 => return Ok(()), // userfaultfd is forbidden here, as `untorn doctor` says
///     map => map?,
/// };
/// let ticket = map.words(0, 1)?[0].fetch_add(1, Ordering::SeqCst);
/// map.write_at(b"sold", 4096 + 4 * ticket)?;
/// map.commit()?; // this ticket and its sale, and whatever other processes had stored
/// map.close()?;
/// # Ok(()) }
/// ```
///
/// - The processes must run as one user and trust each other.
/// - SIGBUS must not be blocked in a thread that stores. A SIGBUS handler that the program installs later must call the
///   one it replaces.
/// - A forked child does not have the memory.
/// - `read(2)` into the memory fails with EFAULT unless [`open_to_kernel`](SharedMap::open_to_kernel) was called for
///   the range since the last commit; [`read_from`](SharedMap::read_from) always works.
///
/// Source: the Region System paper, §V-C; write protection replaces its interrupts to all processors.
pub struct SharedMap {
    copy: SharedMemory,
    path: PathBuf,
    identity: Identity,
}

impl fmt::Debug for SharedMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedMap").field("path", &self.path).field("len", &self.len()).finish()
    }
}

impl SharedMap {
    /// The data file's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The length in bytes, the same in all processes; 0 in a forked child, which does not have the memory.
    pub fn len(&self) -> usize {
        self.copy.len() as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The length in bytes that the file can grow to while it is shared.
    pub fn max_len(&self) -> u64 {
        self.copy.reserved()
    }

    /// The number of the last commit; 0 in a forked child.
    pub fn last_commit(&self) -> u64 {
        self.copy.last_commit()
    }

    /// A pointer to the first byte. Its address in this process stays the same until the map is closed. The program
    /// must not touch bytes beyond the length.
    pub fn as_ptr(&self) -> *mut u8 {
        self.copy.address()
    }

    /// Returns `count` words of 64 bits from `offset` on. All processes load and store each word whole.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] unless the words are within the length.
    /// - [`Error::Invalid`] unless `offset` is a multiple of 8.
    /// - [`Error::Io`] after a page was lost.
    /// - [`Error::Poisoned`] after a failure that ends all promises, or if this process was evicted.
    /// - [`Error::Forked`].
    pub fn words(&self, offset: u64, count: usize) -> Result<&[AtomicU64]> {
        self.check(offset, count.saturating_mul(8))?;
        if !offset.is_multiple_of(8) {
            return Err(engine::misaligned::<AtomicU64>(&self.path, offset));
        }
        Ok(self.copy.words(offset as usize, count))
    }

    /// Copies bytes out. The copy may have a part of a store that another thread or process makes meanwhile.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range is within the length; otherwise as for [`words`](SharedMap::words).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len())?;
        self.copy.load(offset as usize, buf)
    }

    /// Copies bytes in. They are ordinary stores: a commit meanwhile may have only the first of them.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range is within the length; otherwise as for [`words`](SharedMap::words).
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.check(offset, buf.len())?;
        self.copy.store(offset as usize, buf)
    }

    /// Reads up to `len` bytes from the descriptor's position, as `read(2)` does, and stores them from `offset` on.
    /// Returns how many bytes it read, 0 at the end of the source. It reads at most 1 MiB per call. Unlike `read(2)`
    /// into the memory it needs no [`open_to_kernel`](SharedMap::open_to_kernel), and works while other processes
    /// commit.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, log) = (dir.path().join("shared"), dir.path().join("log"));
    /// # std::fs::write(&log, "what happened").unwrap();
    /// # untorn::AtomicFile::create(&path, 8192)?.settle()?;
    /// # let map = match untorn::shared::SharedMap::open(&path) {
    /// #     Err(error) if error.errno() == 1 => return Ok(()),
    /// #     map => map?,
    /// # };
    /// let (log, mut at) = (std::fs::File::open(&log).unwrap(), 4096);
    /// loop {
    ///     match map.read_from(&log, at, map.len() - at as usize)? {
    ///         0 => break,
    ///         read => at += read as u64,
    ///     }
    /// }
    /// map.commit()?;
    /// # assert_eq!(at, 4096 + 13);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range is within the length; nothing is read then. [`Error::Io`] with the
    /// error of `read(2)`. Otherwise as for [`words`](SharedMap::words).
    pub fn read_from(&self, source: impl AsFd, offset: u64, len: usize) -> Result<usize> {
        self.check(offset, len)?;
        self.copy.read_from(source.as_fd(), offset as usize, len)
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        self.copy.check()?;
        engine::check_range(&self.path, offset, len as u64, self.copy.len())
    }

    /// Makes all stores of all processes, up to one instant after this call began, durable together. This includes the
    /// stores that this thread made before the call. Returns the number of the commit; processes that commit at once
    /// may share one.
    ///
    /// # Errors
    /// - [`Error::Io`] with the error of the process that serves, or [`Error::Invalid`] if the stores do not fit into
    ///   the log: nothing is committed. After a failed flush, however, no process can tell which commit the file is at,
    ///   so every call of every process fails until all have left. The same happens if a process that does not share
    ///   the file opened it for writing while no process served it. This is possible only for a process that cannot see
    ///   the directory where the sharing processes meet.
    /// - [`Error::Poisoned`] after a failure that ends all promises.
    /// - [`Error::Forked`].
    pub fn commit(&self) -> Result<u64> {
        self.copy.commit()
    }

    /// Discards the stores of all processes since the last commit.
    ///
    /// # Errors
    /// As for [`commit`](SharedMap::commit).
    pub fn rollback(&self) -> Result<()> {
        self.copy.roll_back().map(drop)
    }

    /// Takes a snapshot of the last commit: reads of it give the same bytes for as long as it is held, while all
    /// processes store and commit. Stores since that commit are not in it.
    ///
    /// The process that serves the others keeps it. It ends with [`Error::SnapshotEnded`] when that process leaves or
    /// dies; the process that takes over gives a new one.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("stock");
    /// # untorn::AtomicFile::create(&path, 4096)?.settle()?;
    /// # let map = match untorn::shared::SharedMap::open(&path) {
    /// #     Err(error) if error.errno() == 1 => return Ok(()),
    /// #     map => map?,
    /// # };
    /// map.write_at(b"7 left", 0)?;
    /// map.commit()?;
    /// map.write_at(b"6 left", 0)?;
    /// let snapshot = map.snapshot()?;
    /// let mut bytes = [0; 6];
    /// snapshot.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"7 left");
    /// # drop(snapshot);
    /// # map.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::InUse`] if the process that serves gives none ([`Options::serve_snapshots`]), or if none serves within
    /// five seconds; [`Error::Io`]; otherwise as for [`words`](SharedMap::words).
    pub fn snapshot(&self) -> Result<Snapshot> {
        self.copy.check()?;
        let taken = client::take_elsewhere(&self.path, self.identity, false, || false)?;
        let holder = || "another process, which is taking over".to_owned();
        taken.map(Snapshot::remote).ok_or_else(|| Error::InUse { path: self.path.clone(), holder: holder() })
    }

    /// Grows the file to `len` bytes for all processes, and commits. New bytes are zeros. A shared file cannot shrink.
    /// All processes see the new length when it is durable. If it fails, none sees it, and later commits go on without
    /// it.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `len` is less than the current length, or more than the address space that the first
    /// process reserved ([`Options::max_len`]); otherwise as for [`commit`](SharedMap::commit).
    pub fn grow(&self, len: u64) -> Result<u64> {
        self.copy.grow(len)
    }

    /// Allows system calls of any of the processes to load from and store to a range of bytes until the next commit by
    /// any process. After that their stores fail with EFAULT again. The range is part of that commit.
    ///
    /// # Errors
    /// [`Error::OutOfRange`]; [`Error::Poisoned`], [`Error::Forked`].
    pub fn open_to_kernel(&self, range: Range<u64>) -> Result<()> {
        self.copy.open_range(range)
    }

    /// Whether this process currently has the file open and serves the others.
    pub fn is_owner(&self) -> bool {
        self.copy.is_owner()
    }

    /// Leaves the shared file. Uncommitted stores of this process stay in the memory, until the last process has left.
    /// That one closes the file, which is a plain one then unless it set [`Options::keep_sidecar`].
    ///
    /// # Errors
    /// [`Error::Poisoned`] if this process was evicted; [`Error::Forked`].
    pub fn close(self) -> Result<()> {
        self.copy.leave()
    }
}

/// Opens the file with its engine: the factory, which is above.
pub(crate) type OpenFile = fn(&Path, &Options) -> Result<sync::Arc<Shared>>;

/// Joins the processes that share the file as memory, or is the first of them.
///
/// # Errors
/// See [`Options::share_map`].
pub(crate) fn open(
    options: &Options,
    path: &Path,
    open: OpenFile,
    with: impl FnOnce(Committed) -> Arc<dyn Opener>,
) -> Result<SharedMap> {
    let options = options.clone().shared(false).for_map(path)?;
    if options.read_only {
        let what = "a SharedMap cannot be read-only; open it for writing, or read the file with AtomicMap or \
                    AtomicFile";
        return Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
    }
    options.validate(path)?;
    let path = storage::resolve(path)?;
    storage::copy_up(&path);
    let identity = detect(&path)?.identity;
    let len = std::fs::metadata(&path).map_err(|error| Error::io("examine", &path, error))?.len();
    let dir = sidecar::directory(&path);
    let reserve = options.reserve_for_map(len, RESERVE);
    let wanted = options.clone();
    let opener = Committed { path: path.clone(), identity, options, open };
    let place = sidecar::meeting_place(identity, sidecar::SHARE);
    let copy = in_directory(&path, &dir, || SharedMemory::open(&path, &dir, &place, with(opener), reserve))?;
    if let Some(what) = negotiated::other_commit_log(&copy.negotiated(), &wanted) {
        copy.leave()?;
        return Err(Error::InUse { path, holder: format!("another process or handle: {what}") });
    }
    Ok(SharedMap { copy, path, identity })
}

const AWAITS: &str = "commits of a SharedMap cannot await the consumers of the commit log; open the file as an \
                      AtomicMap, or have the log await nobody (`untorn replicate --sync local`)";

/// Opens the file for whoever serves.
pub(crate) struct Committed {
    path: PathBuf,
    /// The file's: what is found at the path later may be another one.
    identity: Identity,
    options: Options,
    open: OpenFile,
}

impl Opener for Committed {
    fn open(&self, before: Option<&Before>) -> Result<Box<dyn Backing>> {
        let another = || {
            let what = "another file has replaced the shared one at this path".to_owned();
            Error::Invalid { path: self.path.clone(), what }
        };
        if detect(&self.path)?.identity != self.identity {
            return Err(another());
        }
        let takeover_check = Arc::new(TakeoverCheck {
            others: NotShared::by_calls(&self.path, self.identity),
            takeover: Takeover::of(before),
        });
        let exclusion: Arc<dyn ExclusionCheck> = takeover_check.clone();
        let agreed = match before {
            Some(before) => negotiated::adopt(&before.negotiated(), &self.options)
                .map_err(|what| takeover_check.others.invalid(what))?,
            None => self.options.clone(),
        };
        // How this process learns of a page that its medium lost is its own affair.
        // The process that serves next goes on from the sidecar: the last to leave says when it goes.
        let options =
            Options { exclusion: Some(exclusion), lost_page: self.options.lost_page, keep_sidecar: true, ..agreed };
        let shared = (self.open)(&self.path, &options)?;
        if shared.engine.commits().is_some_and(|commits| commits.kept().awaits_consumers()) {
            return Err(Error::Invalid { path: self.path.clone(), what: AWAITS.to_owned() });
        }
        let negotiated =
            negotiated::of(&options, &shared.engine.info(), shared.engine.commits().map(CommitService::kept));
        // The path may have come to name another file since it was looked at.
        if shared.engine.identity()? != self.identity {
            return Err(another());
        }
        let commit = shared.engine.info().commit;
        // It was told, or the engine would not have opened the file for writing.
        let (sidecar, session) = takeover_check.takeover.found();
        let keeps_sidecar = self.options.keep_sidecar;
        Ok(Box::new(Logged { shared, commit: commit.into(), sidecar, session, negotiated, keeps_sidecar }))
    }
}

/// Lets whoever is to serve open the file, if it is as the process left it that served before.
struct TakeoverCheck {
    others: NotShared,
    takeover: Takeover,
}

impl ExclusionCheck for TakeoverCheck {
    fn check_exclusion(&self) -> Result<()> {
        self.others.check_exclusion()
    }

    fn take_over_session(&self, sidecar: &[u8; 16], session: u64) -> Result<u64> {
        self.takeover.take_over_session(sidecar, session).map_err(|what| self.others.invalid(what))
    }
}

/// A file under the hybrid log, whose epochs the cuts are.
struct Logged {
    shared: sync::Arc<Shared>,
    commit: AtomicU64,
    sidecar: [u64; 2],
    session: u64,
    negotiated: String,
    /// Whether the sidecar stays when the last process leaves.
    keeps_sidecar: bool,
}

impl Backing for Logged {
    fn len(&self) -> u64 {
        self.shared.engine.len()
    }

    fn last_commit(&self) -> u64 {
        self.commit.load(std::sync::atomic::Ordering::Acquire)
    }

    fn identity(&self) -> [u64; 2] {
        self.sidecar
    }

    fn session(&self) -> u64 {
        self.session
    }

    fn negotiated(&self) -> String {
        self.negotiated.clone()
    }

    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        self.shared.engine.read(offset, into)
    }

    fn commit(&self, cut: &Cut) -> Result<u64> {
        let engine = &*self.shared.engine;
        if cut.len != engine.len() {
            engine.resize(cut.len)?;
        }
        let mut pieces = Vec::new();
        cut.runs().for_each(|(offset, bytes)| add_changed(engine, offset, bytes, &mut pieces));
        engine.write(&pieces)?;
        let commit = engine.sync()?;
        self.commit.store(commit, std::sync::atomic::Ordering::Release);
        Ok(commit)
    }

    fn leave(&self, last: bool) {
        let how = if last && !self.keeps_sidecar { Close::Plain } else { Close::KeepSidecar };
        if let Err(error) = self.shared.end(how) {
            // Nobody is left to return it to.
            let path = self.shared.engine.path().display();
            tracing::warn!(%path, %error, "cannot close the file cleanly; the next open recovers it");
        }
    }

    fn poisoned(&self) -> Option<String> {
        self.shared.engine.writable().err().map(cause_of)
    }
}

#[cfg(test)]
mod tests;
