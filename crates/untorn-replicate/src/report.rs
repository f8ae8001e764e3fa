//! What a replica has.

use std::time::SystemTime;

use crate::error::{Error, Result};
use crate::protocol::access::Access;
use crate::protocol::owner::end_of;
use crate::restore::time_of;
use crate::store;

/// A replica, as [`look`] found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplicaReport {
    /// The present epoch.
    pub epoch: u64,
    /// The name of its writer.
    pub owner: String,
    /// Whether the writer has ended all epochs before.
    pub is_settled: bool,
    /// Whether the writer has handed the replica over.
    pub is_released: bool,
    /// The last commit.
    pub commit: u64,
    /// The epochs before that there still are, and the last commit of each, once it is recorded.
    pub past: Vec<(u64, Option<u64>)>,
    /// The snapshots, oldest first.
    pub snapshots: Vec<SnapshotReport>,
    /// How many objects there are, with the record and the parts of snapshots.
    pub objects: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// A snapshot of a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotReport {
    /// Its epoch.
    pub epoch: u64,
    /// Its commit.
    pub commit: u64,
    /// When it was taken, if known.
    pub time: Option<SystemTime>,
    /// The length of the file.
    pub len: u64,
}

/// Looks at the replica at this URL. Lists the store once; nothing else here does.
///
/// # Errors
/// [`Error::NotFound`]; [`Error::Corrupt`]; those of the store.
pub fn look(url: &str) -> Result<ReplicaReport> {
    let access = Access::new(store::open(url)?);
    let missing = || Error::NotFound { url: url.to_owned(), what: "there is no replica".to_owned() };
    let (record, _) = access.record()?.ok_or_else(missing)?;
    let commit = end_of(&access, &record)?.commit;
    let listed = access.store.list("")?;
    let snapshots = record.snapshots.iter().filter(|entry| !entry.is_dropped).map(|entry| SnapshotReport {
        epoch: entry.place.epoch,
        commit: entry.commit,
        time: time_of(entry.time),
        len: entry.len,
    });
    Ok(ReplicaReport {
        epoch: record.epoch,
        owner: record.owner.name.clone(),
        is_settled: record.heir == record.owner.token,
        is_released: record.owner.is_released,
        commit,
        past: record.lineage.iter().map(|past| (past.epoch, past.cut.map(|cut| cut.commit))).collect(),
        snapshots: snapshots.collect(),
        objects: listed.len() as u64,
        bytes: listed.iter().map(|found| found.len).sum(),
    })
}
