//! [`SnapshotMap`]: a snapshot as plain memory.
//!
//! The memory is a copy of its own, filled in pieces as the holder asks for ranges. Once a piece is there, it depends
//! on nothing: not on the writer, its process, or the snapshot. So a snapshot that ends leaves what is there right,
//! and every other range is an error of the call that asks for it.
//!
//! # Designs that were weighed
//!
//! - A private mapping of the data file, with pre-images copied over it. A page that this process has not stored to is
//!   the page cache's, so it changes under the reader the moment the writer stores, or deploys. The writer's process
//!   cannot fix it first in another process. And with `reflection` the last commit is not what the data file holds.
//! - Pages brought in at the first load, by `userfaultfd(2)`. A load cannot return an error, so the end of a snapshot
//!   is a signal. Without privileges `write(2)` out of such memory fails with EFAULT. A thread that loads from it
//!   inside a write, as the source of `write_at`, holds locks of the engine that filling the page needs. And each page
//!   of 4 KiB costs two switches of threads, some 10 µs, where a piece of 64 KiB costs about as much here.
//! - A copy of all when it is mapped. It is what [`SnapshotMap::all`] does, for those who need all.
//!
//! # Invariants
//!
//! 1. Bytes are lent only from pieces that were read whole from the snapshot, before it ended.
//! 2. The copy takes memory up to [`IN_MEMORY`] bytes. That of a longer file is in a file without a name beside the
//!    data file, which the kernel writes back when it needs the memory.

use std::fmt;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::MemfdFlags;

use super::Snapshot;
use super::spill::directory_of;
use crate::engine::check_range;
use crate::error::{Error, Result};
use crate::storage::create_unnamed;
use crate::sys::filled::Filled;
use crate::sys::incarnation;

/// The longest file whose copy is in memory.
const IN_MEMORY: u64 = 64 << 20;

/// A snapshot as plain memory, of which no byte changes while this is held.
///
/// [`Snapshot::map`] makes one. [`slice`](SnapshotMap::slice) copies the range that it is asked for, in pieces of
/// 64 KiB, the first time, and lends it; after that it costs a few loads. Many threads may use it. It holds the
/// snapshot as long as it lives.
///
/// When the snapshot ends (its writer's process died or closed the file, or had no space for a page), slices that were
/// lent stay right, and so does every range that is there. Asking for any other range fails with
/// [`Error::SnapshotEnded`].
///
/// The copy of a file of up to 64 MiB is in memory. That of a longer file is in a file without a name in the directory
/// of the data file, so that memory stays free for others. Stretches of zeros take no space.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("accounts");
/// use untorn::AtomicFile;
/// let file = AtomicFile::create(&path, 8192)?;
/// file.write_at(b"first", 0)?;
/// file.sync()?;
/// let map = file.snapshot()?.map()?;
/// let name: &[u8] = map.slice(0..5)?;
/// file.write_at(b"other", 0)?;
/// file.sync()?;
/// assert_eq!(name, b"first");
/// assert_eq!(map.all()?.len(), 8192);
/// # Ok(()) }
/// ```
pub struct SnapshotMap {
    snapshot: Snapshot,
    filled: Filled,
    /// The process that mapped it.
    process: u64,
}

impl fmt::Debug for SnapshotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotMap").field("snapshot", &self.snapshot).finish()
    }
}

impl Snapshot {
    /// Maps the snapshot: its bytes as plain slices, copied as they are asked for. The map holds the snapshot too,
    /// which may be dropped.
    ///
    /// # Errors
    /// [`Error::Io`] if there is no address space, or if a file cannot be created beside a data file of more than
    /// 64 MiB.
    pub fn map(&self) -> Result<SnapshotMap> {
        let filled = Filled::new(self.place_for_copy()?, self.len());
        let filled = filled.map_err(|error| Error::io("map a snapshot of", self.path(), error))?;
        let snapshot = Snapshot(Arc::clone(&self.0));
        Ok(SnapshotMap { snapshot, filled, process: incarnation() })
    }

    fn place_for_copy(&self) -> Result<OwnedFd> {
        if self.len() > IN_MEMORY {
            return create_unnamed(directory_of(self.path()));
        }
        let file = rustix::fs::memfd_create("untorn-snapshot-map", MemfdFlags::CLOEXEC);
        file.map_err(|errno| Error::io("make memory for a snapshot of", self.path(), errno))
    }
}

impl SnapshotMap {
    /// The snapshot that it shows.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.filled.len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a range, as the commit has them. They stay the same for as long as the map lives.
    ///
    /// # Errors
    /// - [`Error::OutOfRange`] unless the whole range is within the length.
    /// - [`Error::SnapshotEnded`] if the snapshot ended before the range was copied.
    /// - [`Error::Io`] if there is no space for the copy, or as for [`check`](SnapshotMap::check).
    /// - [`Error::Forked`] in a forked child, for a range that the parent had not asked for.
    pub fn slice(&self, range: Range<u64>) -> Result<&[u8]> {
        let path = self.snapshot.path();
        let len = range.end.saturating_sub(range.start);
        check_range(path, range.start, len, self.len())?;
        let range = range.start..range.start + len;
        if !self.filled.has(&range) {
            if self.process != incarnation() {
                return Err(Error::Forked { path: path.to_owned() });
            }
            let read = |offset, into: &mut [u8]| self.snapshot.read_at(into, offset);
            self.filled.fill(&range, read, |error| Error::io("keep a copy of a snapshot of", path, error))?;
        }
        self.check()?;
        let lacking = || Error::SnapshotEnded { path: path.to_owned(), cause: "it was not copied".to_owned() };
        self.filled.slice(&range).ok_or_else(lacking)
    }

    /// All bytes. It copies what is not there yet, which may be the whole file.
    ///
    /// # Errors
    /// As for [`slice`](SnapshotMap::slice).
    pub fn all(&self) -> Result<&[u8]> {
        self.slice(0..self.len())
    }

    /// Whether all slices so far held the bytes of the commit. A page of the copy may not come back from the disk,
    /// because of a media error; it loads as zeros then, and every later call fails.
    ///
    /// # Errors
    /// [`Error::Io`] with the offset of the first such page.
    pub fn check(&self) -> Result<()> {
        match self.filled.lost() {
            None => Ok(()),
            Some(offset) => Err(Error::page_lost("load from the copy of a snapshot of", self.snapshot.path(), offset)),
        }
    }

    /// Bytes of memory, or of the file without a name, that the copy takes.
    ///
    /// # Errors
    /// [`Error::Io`] if the kernel does not tell.
    pub fn bytes(&self) -> Result<u64> {
        self.filled.space().map_err(|error| Error::io("examine the copy of a snapshot of", self.snapshot.path(), error))
    }
}
