//! Whether a replica has everything that its file has, without a writer of it.

use std::fs::File;
use std::path::Path;

use untorn::report::State;

use crate::error::{Error, Result};
use crate::note;
use crate::options::ReplicaOptions;
use crate::protocol::access::Access;
use crate::protocol::owner::end_of;
use crate::replica::ReplicaStatus;
use crate::store;

/// The state of the replica at this URL if it has all commits of the file, and the file's last writer still owns it:
/// [`Replica::attach_path`](crate::Replica::attach_path) would ship nothing. It makes a few requests that read, and
/// begins no epoch, so a program that ships from time to time, such as a timer's, asks this first.
///
/// `None` if there is something to ship, or if only a writer can tell: after a crash, or if the record names another
/// writer.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("file://{}/bucket", dir.path().display());
/// use untorn::Options;
/// use untorn_replicate::{Replica, ReplicaOptions, already_shipped};
/// let path = dir.path().join("ledger");
/// let file = Options::new().commit_log(1 << 20).create(&path, 4096)?;
/// assert!(already_shipped(&path, &url, &ReplicaOptions::new())?.is_none());
/// Replica::attach(&file, &url, ReplicaOptions::new())?.detach()?;
/// assert_eq!(already_shipped(&path, &url, &ReplicaOptions::new())?.unwrap().epoch, 1);
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of the store and of the file; [`Error::Invalid`](crate::Error::Invalid) for a wrong URL.
pub fn already_shipped(path: impl AsRef<Path>, url: &str, options: &ReplicaOptions) -> Result<Option<ReplicaStatus>> {
    let path = path.as_ref();
    let report = untorn::inspect(path)?;
    let Some(log) = report.commit_log.filter(|_| report.state != State::NeedsRecovery) else { return Ok(None) };
    let last = report.commit.max(log.last.unwrap_or(0));
    // Others may wait for its acknowledgement.
    let is_acknowledged = |name: &str, acknowledged| name == options.consumer && acknowledged >= last;
    if options.begin_with_snapshot
        || !log.consumers.iter().any(|consumer| is_acknowledged(&consumer.name, consumer.acknowledged))
    {
        return Ok(None);
    }
    let store = store::open(url)?;
    let access = Access::new(std::sync::Arc::clone(&store));
    let failed = |source| Error::Io { operation: "open", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    if !note::has_url(&file, path, &access.url())? {
        return Ok(None);
    }
    let Some((record, _)) = access.record()? else { return Ok(None) };
    let token = record.owner.token;
    let is_own = note::known(&file, path, record.replica)?.tokens.contains(&token);
    let is_settled = record.heir == token && !record.owner.is_released && record.oldest().is_some();
    if !is_own || !is_settled || end_of(&access, &record)?.commit != last {
        return Ok(None);
    }
    Ok(Some(ReplicaStatus {
        epoch: record.epoch,
        acknowledged: last,
        requests: store.requests(),
        awaits: log.awaits,
        ..ReplicaStatus::default()
    }))
}
