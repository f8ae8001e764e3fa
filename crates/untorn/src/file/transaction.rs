//! [`Transaction`]: writes to several ranges that commit together.

use super::written::Written;
use crate::engine::{Engine, Piece};
use crate::error::Result;

/// Writes to any ranges of one file that commit together or not at all.
///
/// Before [`commit`](Transaction::commit) the writes exist only in this process's memory, and only this transaction
/// reads them. Dropping the transaction rolls it back. If two transactions write the same bytes, the one that commits
/// last wins.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let file = untorn::AtomicFile::create(dir.path().join("f"), 4096)?;
/// let mut tx = file.transaction();
/// tx.write_at(b"never", 0)?;
/// drop(tx); // rolled back
/// let mut buf = [1; 5];
/// file.read_at(&mut buf, 0)?;
/// assert_eq!(buf, [0; 5]);
/// # Ok(()) }
/// ```
#[must_use = "a transaction that is not committed is rolled back"]
pub struct Transaction<'a> {
    engine: &'a dyn Engine,
    written: Written,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self.written.iter().count();
        f.debug_struct("Transaction").field("path", &self.engine.path()).field("ranges", &ranges).finish()
    }
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(engine: &'a dyn Engine) -> Self {
        Transaction { engine, written: Written::default() }
    }

    /// Adds a write of `buf` at `offset`. A later write to the same bytes replaces an earlier one. The cost follows the
    /// bytes of `buf`, in whatever order the writes come.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) unless the whole range lies within the file.
    pub fn write_at(&mut self, buf: &[u8], offset: u64) -> Result<()> {
        self.engine.check(offset, buf.len() as u64)?;
        self.written.write(offset, buf);
        Ok(())
    }

    /// Fills `buf` from `offset`, including this transaction's own writes.
    ///
    /// # Errors
    /// As for [`AtomicFile::read_at`](crate::AtomicFile::read_at).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.engine.read_at(offset, buf)?;
        self.written.read(offset, buf);
        Ok(())
    }

    /// Applies all writes as one. Under [`Durability::PerWrite`](crate::Durability::PerWrite) they are one commit,
    /// durable on return. Under [`Durability::PerCommit`](crate::Durability::PerCommit) they join the open epoch
    /// together.
    ///
    /// # Errors
    /// As for [`AtomicFile::write_at`](crate::AtomicFile::write_at); after an error none of the writes is applied.
    pub fn commit(self) -> Result<()> {
        self.engine.write(&self.pieces())
    }

    /// The same, if nobody has changed the file since its count of [changes](crate::AtomicFile::changes) was this one.
    /// False if somebody has; then nothing is written. Transactions that are committed so come one after the other, in
    /// whatever processes.
    ///
    /// With it a program that is killed while its commit is under way does no harm: another one that has read the file
    /// meanwhile commits first, and the late commit is refused, or the other way round.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("f");
    /// # untorn::AtomicFile::create(&path, 4096)?.settle()?;
    /// use untorn::{Durability, Options};
    /// let file = Options::new().shared(true).durability(Durability::PerWrite).open(&path)?;
    /// let changes = file.changes().unwrap();
    /// for is_first in [true, false] {
    ///     let mut tx = file.transaction();
    ///     tx.write_at(b"mine", 0)?;
    ///     assert_eq!(tx.commit_if_unchanged(changes)?, is_first);
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`commit`](Self::commit), and [`Error::Invalid`](crate::Error::Invalid) unless the file is
    /// [shared](crate::Options::shared).
    pub fn commit_if_unchanged(self, changes: u64) -> Result<bool> {
        self.engine.write_if(&self.pieces(), changes)
    }

    fn pieces(&self) -> Vec<Piece<'_>> {
        self.written.iter().map(|(offset, bytes)| Piece { offset, bytes }).collect()
    }
}
