//! [`Snapshot`]: what a holder has.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

use super::remote::client::{self, RemoteSnapshot};
use super::{Readers, SnapshotService, Taken};
use crate::engine::{Shared, check_range};
use crate::error::{Error, Result};
use crate::storage::Identity;
use crate::sys::sync::{Arc, Weak};

/// A file as it was at one commit, for as long as this is held. Writers go on meanwhile.
///
/// [`AtomicFile::snapshot`](crate::AtomicFile::snapshot) and [`AtomicMap::snapshot`](crate::AtomicMap::snapshot) take
/// one, and [`Snapshot::open`] in any process. Any number may be held at a time, of different commits.
///
/// Taking a snapshot copies only what the open epoch has changed. While it is held, the first change of a page copies
/// the page, 4 KiB, once; no later one does. The copies are in memory up to
/// [`Options::snapshot_memory`](crate::Options::snapshot_memory), then in a file without a name. Dropping the snapshot
/// frees them. A file on which no snapshot is held pays nothing of that.
///
/// A snapshot of a handle of the same process holds the file open: the last that goes, handle or snapshot, closes the
/// file. One in another process does not; it ends when the file is closed. No snapshot outlives a crash of the process
/// that has the file open.
///
/// If several processes share the file ([`Options::shared`](crate::Options::shared),
/// [`SharedMap`](crate::shared::SharedMap)), the one that serves the others keeps all snapshots. When it leaves or
/// dies, they end, and the next one gives new ones.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("accounts");
/// use untorn::AtomicFile;
/// let file = AtomicFile::create(&path, 8192)?;
/// file.write_at(b"first", 0)?;
/// file.sync()?;
/// let snapshot = file.snapshot()?;
/// file.write_at(b"other", 0)?;
/// file.sync()?;
/// let mut bytes = [0; 5];
/// snapshot.read_at(&mut bytes, 0)?;
/// assert_eq!(&bytes, b"first");
/// # Ok(()) }
/// ```
pub struct Snapshot(pub(super) std::sync::Arc<Kept>);

/// Which process keeps it. It is held until the last that shares it goes.
pub(super) enum Kept {
    Here {
        shared: Arc<Shared>,
        taken: Taken,
        readers: Option<std::sync::Arc<Readers>>,
        /// The count of changes before it was taken, of a file that processes share.
        changes: Option<u64>,
    },
    /// With the file that it was taken of, if this process has that open, and its count of changes before.
    Elsewhere { snapshot: Box<RemoteSnapshot>, of: Option<(Weak<Shared>, u64)> },
}

/// A snapshot that is held, as [`AtomicFile::snapshots`](crate::AtomicFile::snapshots) lists it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotInfo {
    /// The number of its commit.
    pub commit: u64,
    /// The length at that commit, in bytes.
    pub len: u64,
    /// When it was taken.
    pub since: SystemTime,
    /// The number of the process that reads it; 0 for one of another container, which has none here.
    pub process: u32,
    /// Bytes kept for it. A page that is kept for several snapshots counts for each of them.
    pub bytes: u64,
}

/// The held snapshots of one open file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldSnapshots {
    /// Each of them, the oldest first.
    pub snapshots: Vec<SnapshotInfo>,
    /// Bytes kept for all of them together, in memory and in the file without a name.
    pub bytes: u64,
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (commit, len) = (self.commit(), self.len());
        f.debug_struct("Snapshot").field("path", &self.path()).field("commit", &commit).field("len", &len).finish()
    }
}

impl Snapshot {
    /// Takes one of the last commit. If another process serves the file, that one keeps the snapshot.
    ///
    /// # Errors
    /// Those of reading what the open epoch has changed; [`Error::InUse`] if the process that serves gives none.
    pub(crate) fn take(shared: &Arc<Shared>) -> Result<Self> {
        let engine = &*shared.engine;
        let keeps_it = || engine.snapshots().is_some();
        // Before it is taken: a change that comes meanwhile makes the two differ.
        let changes = engine.changes();
        let Some(service) = engine.snapshots() else {
            engine.writable()?;
            let of = changes.map(|changes| (Arc::downgrade(shared), changes));
            let taken = client::take_elsewhere(engine.path(), engine.identity()?, true, keeps_it)?;
            // If it came to serve meanwhile, it keeps the snapshot.
            let elsewhere = |snapshot| Ok(Snapshot(std::sync::Arc::new(Kept::Elsewhere { snapshot, of })));
            return taken.map_or_else(|| Snapshot::take(shared), elsewhere);
        };
        let (taken, readers) = service.take_here()?;
        let snapshot =
            Snapshot(std::sync::Arc::new(Kept::Here { shared: Arc::clone(shared), taken, readers, changes }));
        tracing::debug!(path = %snapshot.path().display(), commit = snapshot.commit(), "took a snapshot");
        Ok(snapshot)
    }

    /// Those that are held of a file.
    pub(crate) fn held(shared: &Shared) -> HeldSnapshots {
        shared.engine.snapshots().map(SnapshotService::held).unwrap_or_default()
    }

    /// One that another process keeps.
    pub(crate) fn remote(snapshot: Box<RemoteSnapshot>) -> Self {
        Snapshot(std::sync::Arc::new(Kept::Elsewhere { snapshot, of: None }))
    }

    /// Turns into a snapshot of the last commit, if another process keeps this one and nobody else has it. False
    /// otherwise.
    pub(crate) fn renew(&mut self) -> bool {
        let Some(Kept::Elsewhere { snapshot, of }) = std::sync::Arc::get_mut(&mut self.0) else { return false };
        let Some((shared, changes)) = of else { return false };
        let Some(shared) = shared.upgrade() else { return false };
        // Before it is taken, as at first.
        let Some(now) = shared.engine.changes() else { return false };
        *changes = now;
        shared.engine.writable().is_ok() && snapshot.renew()
    }

    /// Whether another process keeps its pages.
    pub fn is_of_another_process(&self) -> bool {
        matches!(&*self.0, Kept::Elsewhere { .. })
    }

    /// Says that the holder does not read for now. A commit that comes meanwhile ends the snapshot, instead of keeping
    /// pages for it. [`resume`](Self::resume) comes before the next read.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let file = untorn::AtomicFile::create(dir.path().join("f"), 4096)?;
    /// let mut snapshot = file.snapshot()?;
    /// snapshot.rest();
    /// assert!(snapshot.resume(), "nothing was committed");
    /// snapshot.rest();
    /// file.write_at(b"new", 0)?;
    /// file.sync()?;
    /// if !snapshot.resume() {
    ///     snapshot = file.snapshot()?;
    /// }
    /// let mut bytes = [0; 3];
    /// snapshot.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"new");
    /// # Ok(()) }
    /// ```
    pub fn rest(&self) {
        match &*self.0 {
            Kept::Here { readers, .. } => readers.iter().for_each(|readers| readers.rest()),
            Kept::Elsewhere { snapshot, .. } => snapshot.rest(),
        }
    }

    /// Goes on with a snapshot that rests. It is of the last commit: of every commit that was acknowledged before the
    /// call. False if there may have been one since it was taken, or if it has ended; then take a new one.
    ///
    /// Several threads may use one snapshot, each between a `resume` that returned true and a `rest`. The thread that
    /// took it has the first use, without a `resume`.
    pub fn resume(&self) -> bool {
        match &*self.0 {
            Kept::Here { readers, .. } => readers.as_ref().is_some_and(|readers| readers.resume()),
            Kept::Elsewhere { snapshot, of } => {
                let Some((shared, changes)) =
                    of.as_ref().and_then(|(shared, changes)| Some((shared.upgrade()?, changes)))
                else {
                    return false;
                };
                if !snapshot.resume() {
                    return false;
                }
                let is_last = shared.engine.changes() == Some(*changes);
                if !is_last {
                    snapshot.rest();
                }
                is_last
            }
        }
    }

    /// The path of the data file.
    pub fn path(&self) -> &Path {
        match &*self.0 {
            Kept::Here { shared, .. } => shared.engine.path(),
            Kept::Elsewhere { snapshot, .. } => snapshot.path(),
        }
    }

    /// The file that it is of, whatever its path names by now.
    ///
    /// # Errors
    /// Those of examining it.
    pub(crate) fn identity(&self) -> Result<Identity> {
        match &*self.0 {
            Kept::Here { shared, .. } => shared.engine.identity(),
            Kept::Elsewhere { snapshot, .. } => Ok(snapshot.identity),
        }
    }

    /// The number of the commit that it shows.
    pub fn commit(&self) -> u64 {
        match &*self.0 {
            Kept::Here { taken, .. } => taken.captured.commit,
            Kept::Elsewhere { snapshot, .. } => snapshot.commit,
        }
    }

    /// When it was taken.
    pub fn since(&self) -> SystemTime {
        match &*self.0 {
            Kept::Here { taken, .. } => taken.since,
            Kept::Elsewhere { snapshot, .. } => snapshot.since,
        }
    }

    /// The file's count of [changes](crate::AtomicFile::changes) before the snapshot was taken; `None` unless the file
    /// is [shared](crate::Options::shared).
    pub fn changes(&self) -> Option<u64> {
        match &*self.0 {
            Kept::Here { changes, .. } => *changes,
            Kept::Elsewhere { of, .. } => of.as_ref().map(|(_, changes)| *changes),
        }
    }

    /// The length at that commit, in bytes.
    pub fn len(&self) -> u64 {
        match &*self.0 {
            Kept::Here { taken, .. } => taken.captured.len,
            Kept::Elsewhere { snapshot, .. } => snapshot.len,
        }
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset` with the bytes of the commit.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range is within the snapshot's length. [`Error::SnapshotEnded`] if there
    /// was no space to keep a page for it, or if another process kept it and ended or closed the file. [`Error::Io`]
    /// from reading, and [`Error::Forked`] in a forked child.
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        check_range(self.path(), offset, buf.len() as u64, self.len())?;
        match &*self.0 {
            Kept::Elsewhere { snapshot, .. } => snapshot.read(offset, buf),
            Kept::Here { shared, taken, .. } => match shared.engine.snapshots() {
                Some(service) => service.read(taken, offset, buf),
                None => {
                    // A file that is shared, whose open epoch was lost.
                    let cause = "the handles of its file are of no further use".to_owned();
                    Err(Error::SnapshotEnded { path: self.path().to_owned(), cause })
                }
            },
        }
    }

    /// The first range of bytes at `offset` or behind it that may hold other bytes than zeros; `None` if there is none
    /// up to the end. What lies before it is zeros, and need not be read. It is found by the holes of the data file,
    /// so a range may be zeros all the same.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("accounts");
    /// let file = untorn::AtomicFile::create(&path, 1 << 30)?;
    /// file.write_at(b"far", 500 << 20)?;
    /// file.sync()?;
    /// let snapshot = file.snapshot()?;
    /// let data = snapshot.next_data(0)?.unwrap();
    /// assert!(data.contains(&(500 << 20)));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`read_at`](Self::read_at); no offset is out of range.
    pub fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        match &*self.0 {
            Kept::Elsewhere { snapshot, .. } => snapshot.next_data(offset),
            Kept::Here { shared, taken, .. } => match shared.engine.snapshots() {
                Some(service) => service.data_from(taken, offset),
                None => Ok((offset < self.len()).then_some(offset..self.len())),
            },
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Kept::Here { shared, taken, readers, .. } = self
            && let Some(service) = shared.engine.snapshots()
        {
            service.release_here(taken.snapshot, readers.as_ref());
        }
    }
}
