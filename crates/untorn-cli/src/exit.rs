//! The tool's exit codes, and the one place that maps errors to them.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use untorn::Error;

/// The exit codes. Scripts depend on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done, and the file is clean.
    Clean = 0,
    /// The file needs recovery or a decision, or a check failed.
    Attention = 1,
    /// Corrupt beyond repair.
    Corrupt = 2,
    /// The request itself is wrong.
    Usage = 64,
    /// The system refused: no such file, no space, no permission, in use.
    Io = 74,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// An error for the user: a message for stderr and an exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// The file concerned, if any.
    pub(crate) path: Option<PathBuf>,
    /// The text: what failed, why, and what to do.
    pub(crate) message: String,
}

/// Shorthand for a result with [`Failure`].
pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A wrong request.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure { exit: Exit::Usage, path: None, message: message.into() }
    }

    /// A wrong request about a file.
    pub(crate) fn usage_at(path: &Path, message: impl fmt::Display) -> Self {
        let message = format!("{}: {message}", path.display());
        Failure { exit: Exit::Usage, path: Some(path.to_owned()), message }
    }

    /// A failed system call on something that isn't an untorn file.
    pub(crate) fn io(what: impl fmt::Display, source: &io::Error) -> Self {
        Failure { exit: Exit::Io, path: None, message: format!("{what}: {source}") }
    }

    /// A failed system call on a path.
    pub(crate) fn io_at(operation: &str, path: &Path, source: &io::Error) -> Self {
        let message = format!("cannot {operation} {}: {source}", path.display());
        Failure { exit: Exit::Io, path: Some(path.to_owned()), message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = match &error {
            // The library names its option, which a user of the tool does not have.
            Error::CommitsMissing { path, oldest: None, .. } => {
                let path = path.display();
                format!("{path}: it has no commit log; `untorn commits {path} --start SIZE` gives it one")
            }
            error => error.to_string(),
        };
        Failure { exit: exit_of(&error), path: Some(error.path().to_owned()), message }
    }
}

impl From<untorn_rigs::Error> for Failure {
    fn from(error: untorn_rigs::Error) -> Self {
        // A rig fails when the system refuses something. The files under test are not at fault.
        Failure { exit: Exit::Io, path: None, message: error.to_string() }
    }
}

/// The exit code of each error of the library.
pub(crate) fn exit_of(error: &Error) -> Exit {
    match error {
        // The bytes are there: the user has to run recovery, or to say which side wins.
        Error::NeedsRecovery { .. }
        | Error::ReplayIncomplete { .. }
        | Error::SidecarMissing { .. }
        | Error::SidecarMismatch { .. }
        | Error::ModifiedExternally { .. }
        | Error::CommitsMissing { .. }
        | Error::ChangedOutside { .. } => Exit::Attention,
        // The user decides whether the file is believed.
        Error::Untrusted { .. } | Error::UntrustedLog { .. } => Exit::Attention,
        // A newer untorn can read it: it is not corrupt, but this version cannot verify it.
        Error::Unsupported { .. } => Exit::Attention,
        Error::Corrupt { .. } => Exit::Corrupt,
        Error::OutOfRange { .. }
        | Error::Invalid { .. }
        | Error::NoSuchCommit { .. }
        | Error::OtherEngine { .. }
        | Error::Protection { .. }
        | Error::NotAFile { .. } => Exit::Usage,
        Error::Io { .. }
        | Error::NoAccess { .. }
        | Error::Poisoned { .. }
        | Error::InUse { .. }
        | Error::ReadOnly { .. }
        | Error::SnapshotEnded { .. }
        | Error::ConsumerBehind { .. }
        | Error::NotAcknowledged { .. }
        | Error::Forked { .. } => Exit::Io,
        // The enum may grow. An unknown error is a failure of the operation, never a success.
        _ => Exit::Io,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_only_needs_recovery_is_not_called_corrupt() {
        let path = PathBuf::from("f");
        assert_eq!(exit_of(&Error::NeedsRecovery { path: path.clone() }), Exit::Attention);
        assert_eq!(exit_of(&Error::Unsupported { path: path.clone(), what: String::new() }), Exit::Attention);
        assert_eq!(exit_of(&Error::Corrupt { path, offset: None, what: String::new() }), Exit::Corrupt);
    }

    #[test]
    fn the_numbers_do_not_drift() {
        let numbers = [Exit::Clean, Exit::Attention, Exit::Corrupt, Exit::Usage, Exit::Io].map(|exit| exit as u8);
        assert_eq!(numbers, [0, 1, 2, 64, 74]);
    }
}
