//! What a commit log has, for reports: nothing is locked or changed.

use std::path::Path;
use std::time::Duration;

use super::consumer::{ConsumerInfo, positions};
use super::files::{Segment, open, read_control, segments};
use super::format::LINE;
use super::log::{LogOf, control_path};
use crate::error::Result;
use crate::storage::{Access, Medium, MediumFile};

/// A commit log, as [`inspect`](crate::inspect) found it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitLogInfo {
    /// Bytes that it may take.
    pub limit: u64,
    /// Bytes that it takes.
    pub bytes: u64,
    /// The commit that it begins after: a stream can start from here, and from any later one.
    pub oldest: u64,
    /// The number of the first commit that it has; `None` if it has none yet.
    pub first: Option<u64>,
    /// The number of the last commit that it has; `None` if it has none yet.
    pub last: Option<u64>,
    /// How long a commit waits for consumers that have not acknowledged the oldest commits; `None` if it does not, and
    /// those commits go.
    pub block: Option<Duration>,
    /// Whether a commit returns only once each consumer has acknowledged it.
    pub awaits: bool,
    /// The registered consumers, by name.
    pub consumers: Vec<ConsumerInfo>,
    /// Which log it is.
    pub(crate) uuid: [u8; 16],
}

/// What the log of a file has; `None` if the file has no log, or none that counts.
///
/// # Errors
/// [`Error::NoAccess`](crate::Error::NoAccess), [`Error::Untrusted`](crate::Error::Untrusted); those of reading.
pub(crate) fn look<M: Medium>(medium: &M, path: &Path, of: LogOf) -> Result<Option<CommitLogInfo>> {
    let data = medium.open(path, Access::Read, 0)?;
    let identity = data.identity()?;
    let place = control_path(path, identity.inode, of);
    let Some(file) = open(medium, &place, Access::Read, &data)? else { return Ok(None) };
    // The writer may be writing to it this moment; the other copy of each half is whole then.
    let Some((control, confirmed)) = read_control(&file)?.filter(|(control, _)| control.is_of(identity)) else {
        return Ok(None);
    };
    let (mut bytes, mut oldest, mut first) = (file.len(), None, None);
    // The number before the first commit of each segment, and its bytes.
    let mut kept = Vec::new();
    for index in segments(medium, &place)? {
        let Some(segment) = Segment::open(medium, &place, &control.uuid, index, Access::Read, &data)? else {
            continue;
        };
        bytes += segment.file.len();
        kept.push((segment.base, segment.file.len()));
        if oldest.is_none() {
            let head = segment.head(&control.uuid, LINE)?.map(|(head, _)| head.number);
            first = head.filter(|number| *number <= confirmed.number);
            oldest = Some(segment.base);
        }
    }
    let oldest = oldest.unwrap_or(control.base);
    let last = (confirmed.number > oldest).then_some(confirmed.number);
    let consumers = positions(medium, &place, &data)?
        .into_iter()
        .map(|(name, position)| ConsumerInfo {
            name,
            acknowledged: position.number,
            lag: confirmed.number.saturating_sub(position.number),
            lag_bytes: if position.number < confirmed.number { bytes_behind(&kept, position.number) } else { 0 },
            has_missed: position.uuid != control.uuid || position.number < oldest,
        })
        .collect();
    let (limit, block, awaits, uuid) = (control.limit, control.block, control.awaits, control.uuid);
    Ok(Some(CommitLogInfo { limit, bytes, oldest, first, last, block, awaits, consumers, uuid }))
}

/// Bytes of the segments that have a commit after this one, at most: of each, where it begins and its bytes.
fn bytes_behind(segments: &[(u64, u64)], number: u64) -> u64 {
    let acknowledged = segments.iter().skip(1).take_while(|(base, _)| *base <= number).count();
    segments.iter().skip(acknowledged).map(|(_, bytes)| bytes).sum()
}
