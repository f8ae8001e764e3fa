//! The commit log of a part of a file that commits by itself, as a region of a store does.
//!
//! Its engine has it, and appends each commit's record itself. It gives the numbers, which have no gaps and last.
//!
//! # Invariants
//!
//! 1. The record of commit *k* is durable before anything that makes *k* a commit is written. It is confirmed when
//!    that is durable. So the engine never has a commit that the log lacks, and no reader is given one that a crash may
//!    take back.
//! 2. After a crash the engine recovers the part first. The number of the commit that it finds decides about the record
//!    behind the confirmed ones: up to that number it is confirmed, a later one is taken back, durably, before another
//!    one is made. No commit is repeated.
//! 3. A record that could not be appended, or whose commit is refused, is taken back before the next one is made.
//! 4. The log goes on only if its last commit is the part's, by number and by state. Otherwise it begins anew, under
//!    another UUID, and each reader from before learns that commits are missing.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(crate) use super::format::RangeKind;
use super::format::RawRange;
use super::log::{Appended, Coming, Log, LogOf, control_path, remove};
use crate::error::{Error, Result};
use crate::format::checksum::xxh3;
use crate::format::sidecar::{MAX_LEN, parent};
use crate::options::CommitLog;
use crate::storage::{Identity, Medium};

/// The checks of the log of a part.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A check: a record whose commit a crash left undone is taken back. Otherwise it would be taken for the next
        /// commit of that number.
        DISCARD = "commits.part.discard";
    }
}

/// The most bytes that a part with a log may have.
pub(crate) const MOST: u64 = MAX_LEN;

/// A commit that is about to be made.
pub(crate) struct PartCommit<'a> {
    pub(crate) number: u64,
    /// The bytes that the part can have.
    pub(crate) len: u64,
    /// A number that tells its state after the commit from others.
    pub(crate) state: u64,
    /// The ranges that it changes, ascending.
    pub(crate) ranges: &'a [(RangeKind, Range<u64>)],
}

/// The log of a part whose file is open for writing.
pub(crate) struct PartLog<M: Medium>(Log<M>);

/// A record whose commit is under way.
#[must_use]
pub(crate) struct Record(Appended);

/// A state as records have it.
fn short(state: u64) -> u64 {
    xxh3(3, &state.to_le_bytes()) % MAX_LEN
}

impl<M: Medium> PartLog<M> {
    /// Opens the log of the part with this number, which the engine has recovered and which is at the commit `last`; or
    /// makes one, if it is wanted. A limit of 0 gives one up.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if another user may have planted it; [`Error::Invalid`] if commits are to await consumers;
    /// those of opening and writing.
    pub(crate) fn open(
        medium: &Arc<M>,
        path: &Path,
        uid: [u8; 16],
        wanted: Option<CommitLog>,
        (last, state): (u64, u64),
    ) -> Result<Option<Self>> {
        let wanted_now = wanted.filter(|log| log.limit > 0);
        if wanted_now.is_some_and(|log| log.awaits_consumers()) {
            let what = "commits of a region cannot await the consumers of its commit log".to_owned();
            return Err(Error::Invalid { path: path.to_owned(), what });
        }
        let log = Log::open_part(Arc::clone(medium), path, uid, wanted_now, last, short(state))?;
        match log {
            Some(log) if wanted.is_some_and(|log| log.limit == 0) => log.remove().map(|()| None),
            log => Ok(log.map(PartLog)),
        }
    }

    /// Appends the record of a commit, durably. `fill` gives the bytes of what is written.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOSPC, also if the commit is larger than the log may be;
    /// [`Error::ConsumerBehind`]; those of writing. The commit must not be made then.
    pub(crate) fn append(
        &mut self,
        time: u64,
        commit: &PartCommit<'_>,
        fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Record> {
        let ranges: Vec<RawRange> = commit.ranges.iter().map(|(kind, range)| RawRange::new(*kind, range)).collect();
        let (number, len, shortest) = (commit.number, commit.len, short(commit.state));
        self.0.append(&Coming { number, time, len, shortest, ranges: &ranges }, fill).map(Record)
    }

    /// The commit of a record is durable.
    ///
    /// # Errors
    /// Those of writing. Later confirmations include this one.
    pub(crate) fn confirm(&mut self, record: Record) -> Result<()> {
        self.0.confirm(record.0)
    }

    /// Takes a record back whose commit is not made.
    pub(crate) fn take_back(&mut self, record: Record) {
        self.0.take_back(record.0);
    }
}

/// Whether a part of this file has a log.
///
/// # Errors
/// Those of looking.
pub(crate) fn exists<M: Medium>(medium: &M, path: &Path, identity: Identity, uid: [u8; 16]) -> Result<bool> {
    medium.exists(&control_path(path, identity.inode, LogOf::Part(uid)))
}

/// Removes the log of a part that is no more.
///
/// # Errors
/// Those of removing.
pub(crate) fn forget<M: Medium>(medium: &M, path: &Path, identity: Identity, uid: [u8; 16]) -> Result<()> {
    let place = control_path(path, identity.inode, LogOf::Part(uid));
    remove(medium, &place)?;
    medium.remove_dir_if_empty(&parent(&place))
}
