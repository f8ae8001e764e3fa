//! [`AtomicFile`]: copy in, copy out, atomically.

use std::fmt;
use std::path::Path;

use super::transaction::Transaction;
use crate::engine::snapshot::{HeldSnapshots, Snapshot};
use crate::engine::{Close, Engine, Info, LastCommit, Piece, Shared};
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::options::Options;
use crate::sys::sync::Arc;

/// A file whose writes are failure-atomic: after any crash it holds exactly the state of its last commit.
///
/// Handles are cheap to clone, and many threads may use them. Opening the same file twice in one process gives two
/// handles to one state. Reads and writes are atomic with respect to each other, over any number of pages.
///
/// Dropping the last handle without [`close`](AtomicFile::close) discards the open epoch, as a crash would: a program
/// that panics halfway must not commit half. A file shared with other processes is different: they share the epoch,
/// which goes on (see [`Options::shared`](crate::Options::shared)).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("accounts");
/// use untorn::AtomicFile;
/// let file = AtomicFile::create(&path, 8192)?;
/// let mut tx = file.transaction();
/// tx.write_at(&100u64.to_le_bytes(), 0)?;
/// tx.write_at(&900u64.to_le_bytes(), 4096)?; // another page: both or neither
/// tx.commit()?;
/// file.sync()?;
/// let mut balance = [0; 8];
/// file.read_at(&mut balance, 4096)?;
/// assert_eq!(u64::from_le_bytes(balance), 900);
/// file.settle()?; // a plain file again
/// # Ok(()) }
/// ```
///
/// Source: the Acumen paper, §IV; under [`EngineKind::HybridLog`](crate::EngineKind::HybridLog) the Libnvmmio paper,
/// §3.
#[derive(Clone)]
pub struct AtomicFile {
    shared: Arc<Shared>,
}

impl fmt::Debug for AtomicFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicFile").field("path", &self.engine().path()).field("len", &self.len()).finish()
    }
}

impl AtomicFile {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        AtomicFile { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    #[inline(always)]
    fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// The path of the data file.
    pub fn path(&self) -> &Path {
        self.engine().path()
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.engine().len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`, atomically: a write by another thread is seen whole or not at all.
    ///
    /// [`Error::OutOfRange`] unless the whole range is within the file; there are no short reads. [`Error::Poisoned`]
    /// if the range has recently written bytes that can be neither kept nor rolled back, because a write that is its
    /// own commit failed.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.engine().read_at(offset, buf)
    }

    /// Writes `buf` at `offset`, atomically. Under [`Durability::PerWrite`](crate::Durability::PerWrite) it is
    /// durable when the call returns; under [`Durability::PerCommit`](crate::Durability::PerCommit) it joins the open
    /// epoch.
    ///
    /// - [`Error::OutOfRange`] unless the whole range is within the file ([`resize`](AtomicFile::resize) it first).
    /// - [`Error::Io`] when space runs out.
    /// - [`Error::Poisoned`] after a failed flush.
    ///
    /// After an error the file holds none of `buf`. If the failure poisons the handle, only reopening tells whether the
    /// file has this write: all of it or nothing.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.engine().write(&[Piece { offset, bytes: buf }])
    }

    /// Like [`write_at`](AtomicFile::write_at), and then deploys the written bytes into the data file, so that later
    /// reads are plain copies. Use it if the program should pay after a write and not at the first read (Acumen, §IV-F,
    /// "Tail latency").
    ///
    /// # Errors
    /// As for [`write_at`](AtomicFile::write_at).
    pub fn write_at_eager(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write_at(buf, offset)?;
        self.deploy(offset, buf.len() as u64)
    }

    /// Copies the bytes that only the sidecar holds for a range into the data file: its valid slices, or the log's
    /// entries. Under [`Durability::PerCommit`](crate::Durability::PerCommit), bytes of the open epoch wait for a later
    /// call.
    ///
    /// # Errors
    /// As for [`write_at`](AtomicFile::write_at).
    pub fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.engine().deploy(offset, len)
    }

    /// Begins a transaction: writes to any ranges that commit together or not at all.
    pub fn transaction(&self) -> Transaction<'_> {
        Transaction::new(self.engine())
    }

    /// Commits the open epoch. When it returns, everything written before is durable. Returns the number of the last
    /// commit. Under [`Durability::PerWrite`](crate::Durability::PerWrite) there is nothing left to do. Threads that
    /// sync at the same time on a block medium share the device flush.
    ///
    /// # Errors
    /// [`Error::Io`] if the flush fails. The handle is then poisoned, and reopening the file recovers the last commit,
    /// which may be this one. [`Error::NotAcknowledged`] if the commit is made, and the consumers that it
    /// [awaits](crate::options::CommitLog::await_consumers) have not acknowledged it in time.
    pub fn sync(&self) -> Result<u64> {
        let commit = self.engine().sync()?;
        tracing::debug!(path = %self.path().display(), commit, "everything up to this commit is durable");
        Ok(commit)
    }

    /// Takes a snapshot of the last commit: reads of it give the same bytes for as long as it is held, while writers go
    /// on. Writes of the open epoch are not in it. It waits for the writes and the commit under way.
    ///
    /// # Errors
    /// [`Error::Io`] from reading what the open epoch has changed, or from the flush of the last commit;
    /// [`Error::InUse`] if another process serves a [shared](crate::Options::shared) file and gives no snapshot.
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&self.shared)
    }

    /// Takes a snapshot of the last commit, and gives up one that [rests](Snapshot::rest). Where another process keeps
    /// the snapshots of a shared file, this is faster than a new one.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// let file = untorn::AtomicFile::create(dir.path().join("f"), 4096)?;
    /// let old = file.snapshot()?;
    /// old.rest();
    /// file.write_at(b"new", 0)?;
    /// file.sync()?;
    /// let mut bytes = [0; 3];
    /// file.snapshot_after(old)?.read_at(&mut bytes, 0)?;
    /// assert_eq!(&bytes, b"new");
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`snapshot`](AtomicFile::snapshot).
    pub fn snapshot_after(&self, mut old: Snapshot) -> Result<Snapshot> {
        if old.renew() {
            return Ok(old);
        }
        // While two are held, a write keeps pages for both.
        drop(old);
        self.snapshot()
    }

    /// The snapshots that this process holds of the file, and the bytes kept for them.
    pub fn snapshots(&self) -> HeldSnapshots {
        Snapshot::held(&self.shared)
    }

    /// Changes the length atomically. New bytes read as zeros. After a shrink, the data file itself shrinks when the
    /// file is closed.
    ///
    /// Under [`Durability::PerWrite`](crate::Durability::PerWrite) the new length is durable when the call returns.
    /// Under [`Durability::PerCommit`](crate::Durability::PerCommit) it depends on the engine:
    ///
    /// - [`Reflection`](crate::EngineKind::Reflection): the new length is durable too, and the open epoch commits with
    ///   it.
    /// - [`HybridLog`](crate::EngineKind::HybridLog): the new length is visible at once and joins the open epoch.
    ///   [`sync`](AtomicFile::sync) commits it with everything else; a crash before that discards it.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond [`Options::max_len`]; [`Error::Io`] when space runs out.
    pub fn resize(&self, len: u64) -> Result<()> {
        self.engine().resize(len)?;
        tracing::debug!(path = %self.path().display(), len, "resized");
        Ok(())
    }

    /// Takes over the growth of the data file by ftruncate(2) through another descriptor, as
    /// [`resize`](AtomicFile::resize) would have made it. Returns whether there was one. See
    /// [`Options::grow_with_file`], without which a commit may have refused the file before.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("f");
    /// let file = untorn::Options::new().grow_with_file(true).create(&path, 4096)?;
    /// std::fs::File::options().write(true).open(&path).unwrap().set_len(8192).unwrap();
    /// assert!(file.accept_growth()?);
    /// assert_eq!(file.len(), 8192);
    /// file.write_at(b"beyond the old end", 5000)?;
    /// file.close()?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Those of [`resize`](AtomicFile::resize).
    pub fn accept_growth(&self) -> Result<bool> {
        let Some(len) = self.engine().take_growth()?.filter(|len| *len > self.len()) else { return Ok(false) };
        self.resize(len)?;
        Ok(true)
    }

    /// Does at once, for pages however fresh, what [`Options::deploy_ahead`] has a thread do in the background: for
    /// tests and simulators. Returns the pages that are at home now.
    ///
    /// # Errors
    /// [`Error::Io`] from the file system.
    #[doc(hidden)]
    pub fn deploy_ahead(&self) -> Result<u64> {
        self.engine().deploy_ahead()
    }

    /// Frees unused space in the sidecar: empty reflection pages, or the log, which the engine checkpoints first.
    /// Returns the bytes freed. If the log existed when the file was opened, its bytes count even where they were
    /// already a hole.
    ///
    /// # Errors
    /// [`Error::Io`] from the file system.
    pub fn reclaim(&self) -> Result<u64> {
        self.engine().reclaim()
    }

    /// The number and the time of the last commit, without the rest of [`info`](Self::info), which counts pages.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("f");
    /// let file = untorn::AtomicFile::create(&path, 4096)?;
    /// file.write_at(b"once", 0)?;
    /// file.sync()?;
    /// let last = file.last_commit();
    /// file.close()?;
    /// let again = untorn::AtomicFile::open(&path)?;
    /// assert_eq!(again.last_commit().number, last.number);
    /// # Ok(()) }
    /// ```
    pub fn last_commit(&self) -> LastCommit {
        self.engine().last_commit().into()
    }

    /// A count that is another one after each change of the file, by whichever process, before anybody is told of the
    /// change; `None` unless the file is [shared](crate::Options::shared). It counts failed changes and takeovers too.
    /// See [`Transaction::commit_if_unchanged`].
    pub fn changes(&self) -> Option<u64> {
        self.engine().changes()
    }

    /// The current state of the file.
    pub fn info(&self) -> Info {
        self.engine().info()
    }

    /// Commits the open epoch. If this is the last handle, it also deploys everything into the data file and removes
    /// the sidecar: a closed file is a plain one, which any program may read, write and copy. With
    /// [`Options::keep_sidecar`] it keeps the sidecar instead (Acumen's *fast* unmap), so close and the next open do
    /// less.
    ///
    /// While other handles of this process are open, success means only that everything written so far is durable: the
    /// file stays open. The last handle closes it, and its `close` reports whether that succeeded. If several handles
    /// are closed at once, exactly one of them is the last. If the last handle is dropped instead, a failure is only
    /// logged. No committed byte is lost: the next open recovers.
    ///
    /// # Errors
    /// [`Error::NotClosed`] if the commit is durable and closing failed, for example for want of space: the sidecar
    /// stays, and the next open is at this commit. Any other error if the commit failed.
    pub fn close(self) -> Result<()> {
        let commit = self.engine().sync()?;
        match Shared::into_sole(self.shared) {
            Some(shared) => {
                shared.engine.close(Close::AsAsked).map_err(|error| error.after_commit(shared.engine.path(), commit))
            }
            None => Ok(()),
        }
    }

    /// Commits, deploys everything into the data file and removes the sidecar (Acumen's *spatial* unmap), as
    /// [`close`](AtomicFile::close) does by default, but fails if the file does not become a plain one.
    ///
    /// # Errors
    /// [`Error::InUse`] while other handles are open. [`Error::Io`] from the file system; after it, the file can be
    /// opened and settled again.
    pub fn settle(self) -> Result<()> {
        self.engine().sync()?;
        let path = self.path().to_owned();
        match Shared::into_sole(self.shared) {
            Some(shared) => shared.engine.settle(),
            None => Err(Error::InUse { path, holder: "another handle of this process".to_owned() }),
        }
    }
}
