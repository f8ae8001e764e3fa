//! The part of an engine that tells of its last commit, and the operations of a handle on snapshots.

use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use super::{HeldSnapshots, LapseElsewhere, Marks, PAGE, Readers, Subscription};
use crate::engine::Engine;
use crate::error::Result;
use crate::sys::shared::SharedPages;

/// The commit that an engine was at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Captured {
    /// The number of the last commit. Every later commit has a higher one.
    pub(crate) commit: u64,
    /// The length at that commit.
    pub(crate) len: u64,
}

/// An engine that can tell what its last commit has.
pub(crate) trait Capture: Engine {
    /// Calls `keep` with each page that is not as the last commit has it, and with its bytes there, zeros behind the
    /// end. When it returns, that commit is durable. No write and no change of the length is under way.
    ///
    /// # Errors
    /// Those of reading, and of the commit's flush.
    fn capture(&self, keep: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured>;

    /// The first range at `offset` or behind it that may hold other bytes than zeros now; none up to the end. A page
    /// may come home meanwhile. A page that is written to meanwhile may be missed: its writer keeps its pre-image.
    ///
    /// # Errors
    /// Those of asking the file system.
    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>>;

    /// The first run of these pages some of whose bytes are not in the data file now, or are just changing. Any other
    /// of them is in the data file as it is read, and no byte of it there changes before a write to it.
    fn elsewhere(&self, pages: Range<u64>) -> Option<Range<u64>> {
        (!pages.is_empty()).then_some(pages)
    }

    /// For an engine that reads a file which other programs may change: its times and its length. They change at the
    /// latest with the first byte that another program changes. `None` for an engine that keeps writers away.
    ///
    /// # Errors
    /// Those of looking at the file.
    fn unchanging(&self) -> Result<Option<Unchanging>> {
        Ok(None)
    }
}

/// Length, modification time and change time of a file, the times in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unchanging {
    pub(crate) len: u64,
    pub(crate) modified: i128,
    pub(crate) changed: i128,
}

/// A held snapshot, as its holder sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    /// Its number among all of this process.
    pub(crate) snapshot: u64,
    pub(crate) captured: Captured,
    pub(crate) since: SystemTime,
    /// The process that reads it.
    pub(crate) process: u32,
}

/// The operations of a handle on snapshots.
pub(crate) trait SnapshotService: Send + Sync {
    /// Takes a snapshot of the last commit, for a process.
    ///
    /// # Errors
    /// Those of reading what the open epoch has changed.
    fn take(&self, process: u32) -> Result<Taken>;
    /// The same for a reader that copies pages out of the data file by itself, with the marks that it looks at; without
    /// them if it cannot.
    ///
    /// # Errors
    /// As for [`take`](SnapshotService::take).
    fn take_marked(&self, process: u32) -> Result<(Taken, Option<Arc<Marks>>)> {
        Ok((self.take(process)?, None))
    }
    /// Calls `found` with the runs of these pages that such a reader finds in the data file.
    ///
    /// # Errors
    /// [`SnapshotEnded`](crate::Error::SnapshotEnded).
    fn at_home(&self, taken: &Taken, pages: Range<u64>, found: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        let _ = (taken, pages, found);
        Ok(())
    }
    /// Fills `dst` from `offset` of a held snapshot. The range is within its length.
    ///
    /// # Errors
    /// [`SnapshotEnded`](crate::Error::SnapshotEnded); those of reading.
    fn read(&self, taken: &Taken, offset: u64, dst: &mut [u8]) -> Result<()>;
    /// The first range at `offset` or behind it, within the length, that may hold other bytes than zeros.
    ///
    /// # Errors
    /// As for [`read`](SnapshotService::read).
    fn data_from(&self, taken: &Taken, offset: u64) -> Result<Option<Range<u64>>> {
        Ok((offset < taken.captured.len).then_some(offset..taken.captured.len))
    }
    /// The same for a reader of this process, with its word for that; without if it cannot rest.
    ///
    /// # Errors
    /// As for [`take`](SnapshotService::take).
    fn take_here(&self) -> Result<(Taken, Option<Arc<Readers>>)> {
        Ok((self.take(std::process::id())?, None))
    }
    /// Lets a snapshot that another process reads lapse, while it rests there.
    fn let_lapse(&self, snapshot: u64, lapse: LapseElsewhere) {
        let _ = (snapshot, lapse);
    }
    /// Lets a reader in another process use the snapshots of all commits from now on, by its memory; `None` if this
    /// file does not publish them.
    ///
    /// # Errors
    /// Those of taking a snapshot.
    fn subscribe(&self, process: u32, pages: &Arc<SharedPages>) -> Result<Option<Subscription>> {
        let _ = (process, pages);
        Ok(None)
    }
    /// Ends that, and the reader's use of any snapshot.
    fn unsubscribe(&self, id: u64) {
        let _ = id;
    }
    /// A held snapshot, by its number.
    fn held_as(&self, snapshot: u64) -> Option<Taken> {
        let _ = snapshot;
        None
    }
    /// Gives a snapshot up.
    fn release(&self, snapshot: u64);
    /// The same for one that was taken by [`take_here`](SnapshotService::take_here).
    fn release_here(&self, snapshot: u64, readers: Option<&Arc<Readers>>) {
        let _ = readers;
        self.release(snapshot);
    }
    /// The held snapshots, the oldest first.
    fn held(&self) -> HeldSnapshots;
}
