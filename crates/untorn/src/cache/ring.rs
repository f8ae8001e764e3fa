//! The ring of entries: who may write where, what is durable, what is complete.
//!
//! A writer first *claims* entries, which is a count and may mean waiting; later, holding the locks of what it writes,
//! it *places* them, which cannot fail and decides the order. So no thread waits for room while another waits for its
//! locks, and positions of one page ascend in the order in which its writes are seen.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::barriers;
use super::format::{Entry, Geometry, HEADER, Kind};
use crate::error::{Error, Result};
use crate::log::group::GroupFlush;
use crate::log::record::Seal;
use crate::medium::{Barrier, Medium, MediumClass, MediumFile};
use crate::options::Durability;
use crate::sys::sync::{AtomicU64, Ordering, ZeroedArray, ZeroedBox};

/// The entries of a log that is in use.
pub(super) struct Ring<M: Medium> {
    pub(super) medium: Arc<M>,
    pub(super) file: M::File,
    path: PathBuf,
    pub(super) geometry: Geometry,
    pub(super) seal: Seal,
    durability: Durability,
    /// The next position.
    head: AtomicU64,
    /// Every position below is free, and the log says so durably.
    tail: AtomicU64,
    /// Entries claimed and not free again.
    claimed: AtomicU64,
    /// For each slot the position that is complete in it, plus 1.
    complete: ZeroedArray<AtomicU64>,
    group: ZeroedBox<GroupFlush>,
}

/// An operation as the log has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) uid: u64,
    pub(super) kind: Kind,
    pub(super) value: u64,
}

impl<M: Medium> Ring<M> {
    pub(super) fn new(
        medium: Arc<M>,
        file: M::File,
        path: &Path,
        geometry: Geometry,
        seal: Seal,
        durability: Durability,
    ) -> io::Result<Self> {
        Ok(Ring {
            medium,
            file,
            path: path.to_owned(),
            geometry,
            seal,
            durability,
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            claimed: AtomicU64::new(0),
            complete: ZeroedArray::reserve(geometry.slots as usize)?,
            group: ZeroedBox::new()?,
        })
    }

    pub(super) fn head(&self) -> u64 {
        self.head.load(Ordering::SeqCst)
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    pub(super) fn claimed(&self) -> u64 {
        self.claimed.load(Ordering::Acquire)
    }

    /// Entries that writers may have at most: the rest is for moving entries that are in the way.
    pub(super) fn for_writers(&self) -> u64 {
        self.geometry.slots - self.geometry.most()
    }

    /// Claims entries if there are then `most` of them in use at most.
    pub(super) fn claim(&self, entries: u64, most: u64) -> bool {
        let fits = |claimed: u64| (claimed + entries <= most).then_some(claimed + entries);
        self.claimed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).is_ok()
    }

    /// Gives back a claim that was not placed.
    pub(super) fn unclaim(&self, entries: u64) {
        self.claimed.fetch_sub(entries, Ordering::AcqRel);
    }

    /// Turns a claim into positions, and returns the first.
    pub(super) fn place(&self, entries: u64) -> u64 {
        self.head.fetch_add(entries, Ordering::SeqCst)
    }

    /// Stores an operation at its positions. Durable after [`persist`](Ring::persist).
    pub(super) fn put(&self, first: u64, order: u64, operation: Operation, data: &[u8]) -> Result<()> {
        let size = self.geometry.entry as usize;
        let parts = self.geometry.parts(data.len());
        for part in 0..parts {
            let from = part as usize * size;
            let data = &data[from..data.len().min(from + size)];
            let position = first + part;
            let at = self.geometry.entry_at(position);
            let value = match operation.kind {
                Kind::Write => operation.value + from as u64,
                _ => operation.value,
            };
            let Operation { uid, kind, .. } = operation;
            let (len, part, parts) = (data.len() as u32, part as u32, parts as u32);
            let entry = Entry { position, order: order + u64::from(part), uid, value, len, kind, part, parts };
            self.file.write(at, &entry.encode(self.seal, at, data))?;
            self.file.write(at + HEADER, data)?;
        }
        Ok(())
    }

    /// Makes what this thread stored durable, or, where that is left to a sync, sees to it that the sync of any thread does.
    pub(super) fn promise(&self) -> Result<()> {
        match self.durability {
            Durability::PerWrite => self.persist(barriers::ENTRY),
            Durability::PerCommit => {
                self.medium.order();
                Ok(())
            }
        }
    }

    /// Makes everything complete durable: a fence, or a flush shared by all who wait for one.
    pub(super) fn persist(&self, barrier: Barrier) -> Result<()> {
        let fence = || self.medium.fence(barrier, &[&self.file]);
        match self.medium.class() {
            MediumClass::PersistentMemory => fence(),
            MediumClass::Block => self.group.flush(|round| self.medium.relax(round), fence),
        }
    }

    /// Marks entries complete: they may be drained.
    pub(super) fn complete(&self, first: u64, parts: u64) {
        // The first comes last: who sees it sees all.
        for position in (first..first + parts).rev() {
            self.complete[self.slot(position)].store(position + 1, Ordering::Release);
        }
    }

    fn slot(&self, position: u64) -> usize {
        (position % self.geometry.slots) as usize
    }

    pub(super) fn is_complete(&self, position: u64) -> bool {
        self.complete[self.slot(position)].load(Ordering::Acquire) == position + 1
    }

    /// Reads some of the data of an entry that is complete and not free.
    pub(super) fn read(&self, position: u64, from: u64, dst: &mut [u8]) -> Result<()> {
        self.file.read(self.geometry.entry_at(position) + HEADER + from, dst)
    }

    /// The header and data of a complete entry, verified once more: what goes to the file must be what was written.
    pub(super) fn entry(&self, position: u64, data: &mut Vec<u8>) -> Result<Entry> {
        let at = self.geometry.entry_at(position);
        let found = Entry::read(&self.file, self.seal, self.geometry, at, data)?;
        found.filter(|entry| entry.position == position).ok_or_else(|| Error::Corrupt {
            path: self.path.clone(),
            offset: Some(at),
            what: "an entry is not what was written".to_owned(),
        })
    }

    /// Everything below is free: the log says so durably.
    pub(super) fn free(&self, upto: u64) {
        let before = self.tail.swap(upto, Ordering::AcqRel);
        self.claimed.fetch_sub(upto - before, Ordering::AcqRel);
    }

    /// Whether a write is durable when it returns.
    pub(super) fn is_per_write(&self) -> bool {
        self.durability == Durability::PerWrite
    }
}
