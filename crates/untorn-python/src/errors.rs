//! The library's errors as the exceptions of `untorn._errors`, which makes and names the classes.

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use untorn::Error;

/// The exception for an error. Its class is that of the error's kind.
pub(crate) fn raise(py: Python<'_>, error: Error) -> PyErr {
    let (kind, path) = match &error {
        Error::Io { path, .. } => ("Io", path),
        Error::OutOfRange { path, .. } => ("OutOfRange", path),
        Error::Poisoned { path, .. } => ("Poisoned", path),
        Error::NotAFile { path, .. } => ("NotAFile", path),
        Error::ReadOnly { path } => ("ReadOnly", path),
        Error::InUse { path, .. } => ("InUse", path),
        Error::SidecarMissing { path, .. } => ("SidecarMissing", path),
        Error::SidecarMismatch { path, .. } => ("SidecarMismatch", path),
        Error::Untrusted { path, .. } => ("Untrusted", path),
        Error::NoAccess { path, .. } => ("NoAccess", path),
        Error::ModifiedExternally { path, .. } => ("ModifiedExternally", path),
        Error::NeedsRecovery { path } => ("NeedsRecovery", path),
        Error::ChangedOutside { path, .. } => ("ChangedOutside", path),
        Error::Unsupported { path, .. } => ("Unsupported", path),
        Error::Corrupt { path, .. } => ("Corrupt", path),
        Error::OtherEngine { path, .. } => ("OtherEngine", path),
        Error::Protection { path, .. } => ("Protection", path),
        Error::Invalid { path, .. } => ("Invalid", path),
        Error::NotClosed { path, .. } => ("NotClosed", path),
        Error::SnapshotEnded { path, .. } => ("SnapshotEnded", path),
        Error::Forked { path } => ("Forked", path),
        Error::CommitsMissing { path, .. } => ("CommitsMissing", path),
        Error::ConsumerBehind { path, .. } => ("ConsumerBehind", path),
        Error::NotAcknowledged { path, .. } => ("NotAcknowledged", path),
        Error::NoSuchCommit { path, .. } => ("NoSuchCommit", path),
        Error::ReplayIncomplete { path, .. } => ("ReplayIncomplete", path),
        Error::UntrustedLog { path, .. } => ("UntrustedLog", path),
        other => return PyOSError::new_err((other.errno(), other.to_string())),
    };
    let made = py
        .import("untorn._errors")
        .and_then(|module| module.call_method1("make", (kind, error.errno(), error.to_string(), path)));
    made.map_or_else(|failed| failed, PyErr::from_value)
}
