//! Errors of a rig. A violation is not an error: it is a rig's result.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a rig cannot run. None of these errors concerns the files under test.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks something that the rig needs.
    Missing {
        /// The missing tool or privilege.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// The system refused something.
    Io {
        /// The operation, as in "cannot ...".
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel does not mount a file system.
    Unmountable {
        /// The image with the file system.
        image: PathBuf,
        /// The message of `mount`.
        reason: String,
    },
    /// A program that the rig runs failed.
    Program {
        /// Its command line.
        command: String,
        /// Its message.
        message: String,
    },
    /// A program or a guest did not do what it was told.
    Failed {
        /// The operation.
        what: String,
        /// The actual result.
        why: String,
    },
}

/// Shorthand for a result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Something this machine lacks.
    pub(crate) fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Missing { what: what.into(), remedy: remedy.into() }
    }

    pub(crate) fn failed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Failed { what: what.into(), why: why.into() }
    }

    /// A failed system call on a path.
    pub(crate) fn io(operation: &str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io { what: format!("{operation} {}", path.display()), source: source.into() }
    }

    /// For `map_err`: an error of the system while doing `what` to a path.
    pub(crate) fn io_at(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        |source| Error::io(what, path, source)
    }

    /// For `map_err`: an error of the system while doing `what`.
    pub(crate) fn system(what: &str) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_owned();
        |source| Error::Io { what, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { what, remedy } => write!(f, "this needs {what}: {remedy}"),
            Error::Io { what, source } => write!(f, "cannot {what}: {source}"),
            Error::Unmountable { image, reason } => {
                write!(f, "cannot mount the file system in {}: {reason}", image.display())
            }
            Error::Program { command, message } => write!(f, "`{command}` failed: {message}"),
            Error::Failed { what, why } => write!(f, "cannot {what}: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Missing { .. } | Error::Unmountable { .. } | Error::Program { .. } | Error::Failed { .. } => None,
        }
    }
}
