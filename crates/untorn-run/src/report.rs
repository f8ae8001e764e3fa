//! What a run did, for `--stats`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::{Serialize, Serializer};

/// A path as text: what is not Unicode in it is replaced, for JSON has no way to say it.
fn lossy<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&path.to_string_lossy())
}

/// What became of one managed file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileReport {
    /// Where it was first opened.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
    /// How often it was opened.
    pub opens: u64,
    /// How often of these the file was open still, and nothing was waited for.
    pub reopens: u64,
    /// Calls that read; where a log is in front of the file these are the kernel's own, and nobody counts them.
    pub reads: u64,
    /// Calls that wrote.
    pub writes: u64,
    /// Those of them that the programs put into the log by themselves.
    pub writes_in_process: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Shared mappings that were made of it.
    pub mappings: u64,
    /// First stores to a page of such a mapping in an epoch.
    pub stores: u64,
    /// Epochs that were committed; where a log is in front of the file, syncs of it that the log served.
    pub commits: u64,
    /// Epochs that were dropped because one that wrote in them was killed.
    pub discarded: u64,
}

/// A call that a program was told no to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Refused {
    /// The call.
    pub call: String,
    /// Why.
    pub why: String,
    /// The file, where it is known.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
}

/// A file that the kernel served from some call on, as without untorn.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Demoted {
    /// The call that was not to be served otherwise, or what else happened.
    pub why: String,
    /// The file.
    #[serde(serialize_with = "lossy")]
    pub path: PathBuf,
}

/// What a run did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Processes that the layer was in.
    pub processes: u64,
    /// The managed files, by path.
    pub files: Vec<FileReport>,
    /// What was told no, and how often.
    pub refused: Vec<(Refused, u64)>,
    /// What was demoted, and how often.
    pub demoted: Vec<(Demoted, u64)>,
    /// Syncs of directories that waited for no device, for a log keeps all that had changed there.
    pub directory_syncs_kept: u64,
    /// What failed when nobody was left to be told: commits at a file's last close.
    pub failures: Vec<String>,
}

/// Collects the report while the run goes on.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    processes: u64,
    files: BTreeMap<PathBuf, FileReport>,
    refused: BTreeMap<Refused, u64>,
    demoted: BTreeMap<Demoted, u64>,
    directory_syncs_kept: u64,
    failures: Vec<String>,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Counters are whole at every instant.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn process(&self) {
        tracing::debug!("a process joined the run");
        self.lock().processes += 1;
    }

    /// Changes the counters of a file.
    pub(crate) fn of(&self, path: &Path, change: impl FnOnce(&mut FileReport)) {
        let mut inner = self.lock();
        if !inner.files.contains_key(path) {
            tracing::debug!(path = %path.display(), "a file is managed");
            inner.files.insert(path.to_owned(), FileReport { path: path.to_owned(), ..FileReport::default() });
        }
        inner.files.get_mut(path).map(change);
    }

    pub(crate) fn refused(&self, call: &str, why: &str, path: &Path) {
        tracing::debug!(path = %path.display(), call, why, "refused a call");
        let key = Refused { call: call.to_owned(), why: why.to_owned(), path: path.to_owned() };
        *self.lock().refused.entry(key).or_default() += 1;
    }

    pub(crate) fn demoted(&self, why: &str, path: &Path) {
        tracing::debug!(path = %path.display(), why, "left a file to the kernel");
        let key = Demoted { why: why.to_owned(), path: path.to_owned() };
        *self.lock().demoted.entry(key).or_default() += 1;
    }

    pub(crate) fn directory_kept(&self) {
        self.lock().directory_syncs_kept += 1;
    }

    pub(crate) fn failure(&self, what: String) {
        self.lock().failures.push(what);
    }

    pub(crate) fn report(&self) -> Report {
        let inner = self.lock();
        Report {
            processes: inner.processes,
            files: inner.files.values().cloned().collect(),
            refused: inner.refused.iter().map(|(refused, count)| (refused.clone(), *count)).collect(),
            demoted: inner.demoted.iter().map(|(demoted, count)| (demoted.clone(), *count)).collect(),
            directory_syncs_kept: inner.directory_syncs_kept,
            failures: inner.failures.clone(),
        }
    }
}
