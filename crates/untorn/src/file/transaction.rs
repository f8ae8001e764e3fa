//! [`Transaction`]: writes to several ranges that commit together.

use std::collections::BTreeMap;

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
    /// Disjoint, not touching each other's bytes, by offset.
    ranges: BTreeMap<u64, Vec<u8>>,
}

impl std::fmt::Debug for Transaction<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transaction").field("path", &self.engine.path()).field("ranges", &self.ranges.len()).finish()
    }
}

impl<'a> Transaction<'a> {
    pub(crate) fn new(engine: &'a dyn Engine) -> Self {
        Transaction { engine, ranges: BTreeMap::new() }
    }

    /// Adds a write of `buf` at `offset`. A later write to the same bytes replaces an earlier one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) unless the whole range lies within the file.
    pub fn write_at(&mut self, buf: &[u8], offset: u64) -> Result<()> {
        let len = buf.len() as u64;
        self.engine.check(offset, len)?;
        let end = offset + len;
        if buf.is_empty() {
            return Ok(());
        }
        // Absorb every range that overlaps or touches the new one, then store the union as one range.
        let mut start = offset;
        let mut bytes: Option<Vec<u8>> = None;
        if let Some((&before, old)) = self.ranges.range(..=offset).next_back()
            && before + old.len() as u64 >= offset
        {
            start = before;
            bytes = self.ranges.remove(&before);
        }
        let mut bytes = bytes.unwrap_or_default();
        let at = (offset - start) as usize;
        if bytes.len() < at + buf.len() {
            bytes.resize(at + buf.len(), 0);
        }
        bytes[at..at + buf.len()].copy_from_slice(buf);
        while let Some((&next, _)) = self.ranges.range(start + 1..=end).next() {
            let old = self.ranges.remove(&next).unwrap_or_default();
            let skip = (start + bytes.len() as u64).saturating_sub(next) as usize;
            if let Some(tail) = old.get(skip..) {
                bytes.extend_from_slice(tail);
            }
        }
        self.ranges.insert(start, bytes);
        Ok(())
    }

    /// Fills `buf` from `offset`, including this transaction's own writes.
    ///
    /// # Errors
    /// As for [`AtomicFile::read_at`](crate::AtomicFile::read_at).
    pub fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        self.engine.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        let first = self.ranges.range(..=offset).next_back().map_or(offset, |(&start, _)| start);
        for (&start, bytes) in self.ranges.range(first..end) {
            let from = start.max(offset);
            let to = (start + bytes.len() as u64).min(end);
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
            }
        }
        Ok(())
    }

    /// Applies all writes as one. Under [`Durability::PerWrite`](crate::Durability::PerWrite) they are one commit,
    /// durable on return. Under [`Durability::PerCommit`](crate::Durability::PerCommit) they join the open epoch
    /// together.
    ///
    /// # Errors
    /// As for [`AtomicFile::write_at`](crate::AtomicFile::write_at); after an error none of the writes is applied.
    pub fn commit(self) -> Result<()> {
        let pieces: Vec<Piece<'_>> =
            self.ranges.iter().map(|(&offset, bytes)| Piece { offset, bytes: bytes.as_slice() }).collect();
        self.engine.write(&pieces)
    }
}
