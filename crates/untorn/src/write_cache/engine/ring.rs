//! The ring of entries: the allocation of places, and which entries are durable and which are complete.
//!
//! A writer first *claims* entries, which is a count and may wait. Later, holding the locks of what it writes, it
//! *places* them, which cannot fail and decides the order. So no thread waits for room while another waits for its
//! locks, and positions of one page ascend in the order in which its writes become visible.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use std::sync::atomic::{AtomicU64, Ordering};

use untorn_ring::{SharedState, Terms};

use super::barriers;
use super::format::{Entry, Geometry, HEADER, Kind, read_entry};
use crate::error::{Error, Result};
use crate::format::record::ChecksumSeed;
use crate::options::Durability;
use crate::storage::{Barrier, Medium, MediumClass, MediumFile};
use crate::sync::group_commit::GroupFlush;
use crate::sys::shared::SharedPages;
use crate::sys::sync::ZeroedBox;
use crate::sys::{self, ZeroedArray};

/// Files for which other processes append at the same time, at most.
const MOST_TURNS: usize = 1024;

/// The entries of a log that is in use.
pub(super) struct Ring<M: Medium> {
    pub(super) medium: Arc<M>,
    pub(super) file: M::File,
    path: PathBuf,
    pub(super) geometry: Geometry,
    pub(super) checksum_seed: ChecksumSeed,
    durability: Durability,
    /// Entries that this process claimed and that are not free again.
    claimed: AtomicU64,
    terms: Terms,
    memory: Memory,
    group: ZeroedBox<GroupFlush>,
}

/// Where the shared state is: which positions are given, complete and free.
enum Memory {
    Own(ZeroedArray<AtomicU64>),
    /// Of other processes too, which append to the log themselves.
    Shared(SharedPages),
}

/// An operation as the log has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation {
    pub(super) uid: u64,
    pub(super) kind: Kind,
    pub(super) value: u64,
    /// When the file gets it, as an [entry](Entry) has it.
    pub(super) time: u64,
}

impl<M: Medium> Ring<M> {
    pub(super) fn new(
        medium: Arc<M>,
        file: M::File,
        path: &Path,
        geometry: Geometry,
        checksum_seed: ChecksumSeed,
        durability: Durability,
        shared: bool,
    ) -> io::Result<Self> {
        // Of what writers may have, the processes get two thirds: the rest is for what is too long for them, and for
        // moving.
        let (turns, limit) = match shared {
            true => ((geometry.files as usize).next_power_of_two().min(MOST_TURNS), geometry.slots / 2),
            false => (0, 0),
        };
        let terms = Terms { geometry, checksum_seed: checksum_seed.number(), turns, limit };
        let words = terms.words().ok_or(rustix::io::Errno::OVERFLOW)?;
        let memory = match shared {
            false => Memory::Own(ZeroedArray::reserve(words)?),
            true => {
                let bytes = words.checked_mul(size_of::<u64>()).ok_or(rustix::io::Errno::OVERFLOW)?;
                let bytes = bytes.next_multiple_of(sys::page_size());
                let pages = SharedPages::create("untorn-shared-state", bytes as u64, bytes)?;
                // A store to memory that there is none for would kill a program.
                pages.allocate(0, bytes as u64)?;
                Memory::Shared(pages)
            }
        };
        let group = ZeroedBox::new()?;
        let path = path.to_owned();
        Ok(Ring {
            medium,
            file,
            path,
            geometry,
            checksum_seed,
            durability,
            claimed: AtomicU64::new(0),
            terms,
            memory,
            group,
        })
    }

    /// Which positions are given, complete and free.
    #[inline]
    pub(super) fn shared_state(&self) -> SharedState<'_> {
        let words = match &self.memory {
            Memory::Own(words) => words,
            Memory::Shared(pages) => pages.words(0, pages.reserved() / size_of::<u64>()),
        };
        SharedState::of(words, self.terms)
    }

    /// The memory of a shared state that processes share.
    pub(super) fn shared(&self) -> Option<&SharedPages> {
        match &self.memory {
            Memory::Own(_) => None,
            Memory::Shared(pages) => Some(pages),
        }
    }

    pub(super) fn head(&self) -> u64 {
        self.shared_state().head()
    }

    pub(super) fn tail(&self) -> u64 {
        self.shared_state().tail()
    }

    /// Entries that writers of this process may have at most: the rest is for moving entries that are in the way, and
    /// for other processes.
    pub(super) fn for_writers(&self) -> u64 {
        self.for_all() - self.geometry.most()
    }

    /// Entries that this process may have at most.
    pub(super) fn for_all(&self) -> u64 {
        self.geometry.slots - self.terms.limit
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
        self.shared_state().place(entries)
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
            let value = operation.value + if operation.kind.is_write() { from as u64 } else { 0 };
            let Operation { uid, kind, time, .. } = operation;
            let (len, part, parts) = (data.len() as u32, part as u32, parts as u32);
            let order = order + u64::from(part);
            let entry = Entry { position, order, uid, value, len, kind, part, parts, time };
            self.file.write_parts(at, &[&entry.encode(self.checksum_seed.at(at), data), data])?;
        }
        Ok(())
    }

    /// Makes what this thread stored durable, or, where that is left to a sync, sees to it that the sync of any
    /// thread does.
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
        let fence_all = || {
            if self.shared().is_some() {
                // What they wrote to the log is durable by this flush as well, and it tells of all that failed before.
                self.file.changed_by_others();
            }
            fence()
        };
        match self.medium.class() {
            MediumClass::PersistentMemory => fence(),
            MediumClass::Block => self.group.flush(|round| self.medium.relax(round), fence_all),
        }
    }

    /// Marks entries complete: they may be drained.
    pub(super) fn complete(&self, first: u64, parts: u64) {
        self.shared_state().complete(first, parts);
    }

    pub(super) fn is_complete(&self, position: u64) -> bool {
        self.shared_state().is_complete(position)
    }

    /// Reads some of the data of an entry that is complete and not free.
    pub(super) fn read(&self, position: u64, from: u64, dst: &mut [u8]) -> Result<()> {
        self.file.read(self.geometry.entry_at(position) + HEADER + from, dst)
    }

    /// The header and data of a complete entry, verified once more: what goes to the file must be what was written.
    pub(super) fn entry(&self, position: u64, data: &mut Vec<u8>) -> Result<Entry> {
        let at = self.geometry.entry_at(position);
        let found = read_entry(&self.file, self.checksum_seed, self.geometry, at, data)?;
        found.filter(|entry| entry.position == position).ok_or_else(|| self.odd(position))
    }

    /// An entry that is none.
    #[cold]
    pub(super) fn odd(&self, position: u64) -> Error {
        let what = "a log entry does not match its checksum or position".to_owned();
        Error::Corrupt { path: self.path.clone(), offset: Some(self.geometry.entry_at(position)), what }
    }

    /// Everything below is free: the log says so durably. So many of the claims stay, with open epochs.
    pub(super) fn free(&self, upto: u64, kept: u64) {
        let own = self.shared_state().free(upto).saturating_sub(kept);
        // Whose the positions were is in memory that others have, too.
        let _ = self.claimed.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |all| Some(all.saturating_sub(own)));
    }

    /// Whether a write is durable when it returns.
    pub(super) fn is_per_write(&self) -> bool {
        self.durability == Durability::PerWrite
    }
}
