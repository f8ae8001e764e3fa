//! What a snapshot has that an earlier commit has not, by the commit log.
//!
//! # Invariants
//!
//! 1. A snapshot of a file that is open has no commit whose record is not confirmed, and each later record has a
//!    higher number than the snapshot. For while a record is appended, committed and confirmed, no snapshot is taken,
//!    and a record's number is above all that the engine has given by then.
//! 2. So the records up to the number of a snapshot are those of its commits. `reflection` gives numbers in between: a
//!    snapshot may have a higher number than the last of them.
//! 3. The snapshot of a file that a crash left may have the commit of an unconfirmed record or not, and a number that
//!    is not below the record's. Its changes count as those of the snapshot and, from the [number](Changed::commit)
//!    that the snapshot is given then, as later ones.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::stream::{Commits, Reader};
use super::{LogOf, WithCommitLog};
use crate::engine::snapshot::{HeldSnapshots, SnapshotService, Taken};
use crate::error::{Error, Result};
use crate::storage::{Identity, Medium};
use crate::sync::word_lock::lock;
use crate::sys::incarnation;
use crate::sys::runs::Runs;

/// What a commit log says of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Changed {
    /// The UUID of the log: each log has one of its own, and another one once it begins anew.
    pub(crate) log: [u8; 16],
    /// What is asked for as the last commit next time: the snapshot's number, or one below it (invariant 3).
    pub(crate) commit: u64,
    /// The bytes that may differ, ascending, none of them touching.
    pub(crate) ranges: Vec<Range<u64>>,
}

/// What the log of a file says of a snapshot of it that was taken before: which bytes were changed after the commit
/// `from`, if it is given.
///
/// # Errors
/// [`Error::CommitsMissing`] if there is no log, or it does not reach back to `from`; [`Error::Invalid`] if `from` is
/// above the snapshot's number, or the path names another file by now; those of reading.
pub(crate) fn changed<M: Medium>(
    medium: Arc<M>,
    path: &Path,
    (identity, snapshot): (Identity, u64),
    from: Option<u64>,
) -> Result<Changed> {
    let invalid = |what: String| Error::Invalid { path: path.to_owned(), what };
    if let Some(from) = from.filter(|from| *from > snapshot) {
        return Err(invalid(format!("commit {from} is not made yet: the last one is {snapshot}")));
    }
    let mut reader = Reader::open(medium, path, LogOf::File, from.unwrap_or(u64::MAX))?;
    // As the log itself compares: the device number changes with a reboot.
    if (Identity { device: 0, ..reader.identity()? }) != (Identity { device: 0, ..identity }) {
        return Err(invalid("another file has taken its place while it was backed up; begin anew".to_owned()));
    }
    let mut ranges = Runs::new();
    let mut add = |changed: &mut dyn Iterator<Item = Range<u64>>, shortest: u64, len: u64| {
        let mut runs = Runs::new();
        changed.for_each(|range| runs.push(range));
        ranges.add(&runs);
        if shortest < len {
            let mut zeros = Runs::new();
            zeros.push(shortest..len);
            ranges.add(&zeros);
        }
    };
    while from.is_some()
        && let Some(commit) = reader.next(false)?.filter(|commit| commit.number <= snapshot)
    {
        add(&mut commit.changes.iter().map(|change| change.range.clone()), commit.shortest, commit.len);
    }
    let mut commit = snapshot;
    let unconfirmed = reader.unconfirmed()?;
    if let Some((head, table)) =
        unconfirmed.filter(|(head, _)| (from.unwrap_or(0) + 1..=snapshot).contains(&head.number))
    {
        add(&mut table.iter().map(super::RawRange::range), head.shortest, head.len);
        commit = head.number - 1;
    }
    Ok(Changed { log: reader.uuid(), commit, ranges: ranges.into_ranges() })
}

/// Snapshots of a file with a log.
impl<M: Medium> SnapshotService for WithCommitLog<M> {
    fn take(&self, process: u32) -> Result<Taken> {
        if self.process != incarnation() {
            return Err(Error::Forked { path: self.path.clone() });
        }
        // By invariant 1: no record is under way.
        let _log = lock(&self.log, self.relax());
        self.within()?.take(process)
    }

    fn read(&self, taken: &Taken, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.within()?.read(taken, offset, dst)
    }

    fn data_from(&self, taken: &Taken, offset: u64) -> Result<Option<Range<u64>>> {
        self.within()?.data_from(taken, offset)
    }

    fn release(&self, snapshot: u64) {
        if let Some(service) = self.engine.snapshots() {
            service.release(snapshot);
        }
    }

    fn held(&self) -> HeldSnapshots {
        self.engine.snapshots().map(SnapshotService::held).unwrap_or_default()
    }
}

impl<M: Medium> WithCommitLog<M> {
    /// The snapshots of the engine within.
    fn within(&self) -> Result<&dyn SnapshotService> {
        self.engine.snapshots().ok_or_else(|| Error::SnapshotEnded {
            path: self.path.clone(),
            cause: "the handles of its file are of no further use".to_owned(),
        })
    }
}
