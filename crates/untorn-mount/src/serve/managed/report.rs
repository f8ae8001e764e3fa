//! The server's account of the files that the globs chose.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use rustix::io::Errno;

use super::Managing;
use crate::serve::lock;

/// Plain files that the report names.
const MOST_NAMED: usize = 64;

/// The server's account of the files that the globs chose.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Files that were managed, counted each time that their first writer came.
    pub managed: u64,
    /// Bytes that programs wrote to managed files, as the kernel sent them.
    pub bytes: u64,
    /// Files that were chosen and left plain, with the reason. The list has an end.
    pub plain: BTreeMap<PathBuf, String>,
    /// Files that a strict server did not open for writing, with the reason. The list has an end.
    pub refused: BTreeMap<PathBuf, String>,
    /// Files whose bytes could not be brought to them; they are in the log.
    pub failed: BTreeMap<PathBuf, String>,
    /// Logs of directories below that were not served, because a killed server left bytes in them or another one has
    /// them, with the reason. The list has an end.
    pub sealed: BTreeMap<PathBuf, String>,
    /// Requests about locks (GETLK, SETLK and SETLKW).
    pub lock_requests: u64,
    /// Requests at the close of a descriptor (FLUSH), which give locks up.
    pub flush_requests: u64,
    /// Requests to make a file durable (FSYNC).
    pub sync_requests: u64,
    /// Synchronous writes that were durable with their own answer, so that the kernel sent no FSYNC.
    pub synced_writes: u64,
    /// Writes that ran at the same time as another one of the same file.
    pub writes_together: u64,
}

impl Managing {
    pub(in crate::serve) fn report(&self) -> Report {
        Report { bytes: self.bytes.load(Ordering::Relaxed), ..lock(&self.report).clone() }
    }

    pub(super) fn is_plain(&self, path: &Path, reason: String) {
        tracing::warn!(path = %path.display(), reason, "the log does not manage this file");
        let mut report = lock(&self.report);
        if report.plain.len() < MOST_NAMED {
            report.plain.insert(path.to_owned(), reason);
        }
    }

    /// The log cannot manage a file that a program opens for writing. An error if that is refused.
    pub(super) fn is_plain_or_refused(&self, path: &Path, reason: String) -> Result<(), Errno> {
        if !self.strict {
            self.is_plain(path, reason);
            return Ok(());
        }
        tracing::warn!(path = %path.display(), reason, "refused to open a file that the log cannot manage");
        let mut report = lock(&self.report);
        if report.refused.len() < MOST_NAMED {
            report.refused.insert(path.to_owned(), reason);
        }
        Err(Errno::OPNOTSUPP)
    }
}
