//! [`AtomicFile`]: copy in, copy out, atomically.

use std::fmt;
use std::path::Path;

use super::transaction::Transaction;
use crate::engine::{Engine, Info, Piece, Shared};
use crate::error::{Error, Result};
#[cfg(doc)]
use crate::options::Options;
use crate::sys::sync::Arc;

/// A file whose writes are failure-atomic: after any crash it holds exactly the state of its last commit.
///
/// Handles are cheap to clone and may be used from many threads; opening the same file twice in one process gives two
/// handles to one state. Reads and writes are atomic against each other, over any number of pages.
///
/// Dropping the last handle without [`close`](AtomicFile::close) discards the open epoch, as a crash would: a program
/// that panics halfway must not commit half. (The epoch of a file that other processes share is theirs too: it goes on, see
/// [`Options::shared`](crate::Options::shared).)
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
/// Source: the Acumen paper, §IV; under [`EngineKind::HybridLog`](crate::EngineKind::HybridLog) the Libnvmmio paper, §3.
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

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    #[inline(always)]
    fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// The data file's path.
    pub fn path(&self) -> &Path {
        self.engine().path()
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.engine().len()
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`, atomically: a write by another thread is seen whole or not at all.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range lies within the file; no short reads. [`Error::Poisoned`] of what was written
    /// to lately, once a write that is a commit by itself failed and what it had stored can be neither kept nor taken back.
    #[inline]
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.engine().read_at(offset, buf)
    }

    /// Writes `buf` at `offset`, atomically. Under [`Durability::PerWrite`](crate::Durability::PerWrite) it is durable when the call returns;
    /// under [`Durability::PerCommit`](crate::Durability::PerCommit) it joins the open epoch.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range lies within the file ([`resize`](AtomicFile::resize) it first);
    /// [`Error::Io`] when space runs out, [`Error::Poisoned`] after a failed flush. The file then holds none of `buf`, except
    /// that after a failure which poisons the handle only reopening tells whether this write is in: whole or not at all.
    pub fn write_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.engine().write(&[Piece { offset, bytes: buf }])
    }

    /// [`write_at`](AtomicFile::write_at), then deploys what was written into the data file, so that later reads are
    /// plain copies: for a program that would rather pay after a write than at the first read (Acumen, §IV-F, "Tail
    /// latency").
    ///
    /// # Errors
    /// As for [`write_at`](AtomicFile::write_at).
    pub fn write_at_eager(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.write_at(buf, offset)?;
        self.deploy(offset, buf.len() as u64)
    }

    /// Copies what the sidecar holds of a range into the data file: the slices that are valid there, or the log's entries.
    /// Under [`Durability::PerCommit`](crate::Durability::PerCommit), what belongs to the open epoch waits for a later
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

    /// Commits the open epoch: when it returns, everything written before is durable. Under [`Durability::PerWrite`](crate::Durability::PerWrite)
    /// there is nothing left to do. Returns the number of the last commit. Threads that sync at the same time on a
    /// block medium share the device flush.
    ///
    /// # Errors
    /// [`Error::Io`] when the flush fails; the handle is poisoned then, and reopening the file recovers the last
    /// commit, which may be this one.
    pub fn sync(&self) -> Result<u64> {
        self.engine().sync()
    }

    /// Changes the length, atomically; new bytes read as zeros. The data file's own size follows a shrink when the file is
    /// closed.
    ///
    /// Under [`Durability::PerWrite`](crate::Durability::PerWrite) it is durable when the call returns. Under
    /// [`Durability::PerCommit`](crate::Durability::PerCommit) it depends on the engine: with
    /// [`Reflection`](crate::EngineKind::Reflection) it is durable too, and the open epoch commits with it; with
    /// [`HybridLog`](crate::EngineKind::HybridLog) the new length, seen at once, joins the open epoch, and is committed by
    /// [`sync`](AtomicFile::sync) with all else or vanishes with it.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond [`Options::max_len`]; [`Error::Io`] when space runs out.
    pub fn resize(&self, len: u64) -> Result<()> {
        self.engine().resize(len)
    }

    /// Gives the space in the sidecar that holds nothing back to the file system: of reflection pages, or of the log, which
    /// is checkpointed first. Returns the bytes freed; those of a log that was there when the file was opened count even where
    /// they were a hole already.
    ///
    /// # Errors
    /// [`Error::Io`] from the file system.
    pub fn reclaim(&self) -> Result<u64> {
        self.engine().reclaim()
    }

    /// The state of the file.
    pub fn info(&self) -> Info {
        self.engine().info()
    }

    /// Commits the open epoch and, if this is the last handle, closes the file cleanly, keeping the sidecar (Acumen's
    /// *fast* unmap): the next open needs no recovery. The hybrid log is brought home first, so that all bytes are in the
    /// data file then.
    ///
    /// While other handles of this process are open, success means that everything written so far is durable, and no
    /// more: the file stays open. It is closed by the last handle, whose `close` tells whether that succeeded; of several
    /// that are closed at once, exactly one is the last. If the last handle is dropped instead, a failure has nobody to go
    /// to and is only logged. Nothing committed is lost by it: the next open recovers.
    ///
    /// # Errors
    /// [`Error::Io`] when a flush fails; the next open recovers the last commit.
    pub fn close(self) -> Result<()> {
        self.engine().sync()?;
        match Shared::into_sole(self.shared) {
            Some(shared) => shared.engine.close(),
            None => Ok(()),
        }
    }

    /// Commits, deploys everything into the data file and removes the sidecar (Acumen's *spatial* unmap): a plain file
    /// that any program may read and write.
    ///
    /// # Errors
    /// [`Error::InUse`] while other handles are open; [`Error::Io`] from the file system, after which the file can be
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
