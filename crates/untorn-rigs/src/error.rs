//! What can go wrong while a rig is set up or used.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Why a rig cannot do what was asked. None of these says anything about the files under test.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks something that the rig needs.
    Missing {
        /// What it is.
        what: String,
        /// How to get it.
        remedy: String,
    },
    /// A system call failed.
    Io {
        /// What was being done, as in "cannot ... PATH".
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// The system's own reason.
        source: io::Error,
    },
    /// The kernel does not mount a file system.
    Unmountable {
        /// The image it is in.
        image: PathBuf,
        /// What `mount` said.
        reason: String,
    },
    /// A program that the rig runs ended badly.
    Program {
        /// Its command line.
        command: String,
        /// What it said.
        message: String,
    },
}

/// Shorthand for a result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// A failed system call on a path.
    pub(crate) fn io(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io { operation, path: path.to_owned(), source: source.into() }
    }

    /// Something this machine lacks.
    pub(crate) fn missing(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Error::Missing { what: what.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { what, remedy } => write!(f, "this needs {what}: {remedy}"),
            Error::Io { operation, path, source } => write!(f, "cannot {operation} {}: {source}", path.display()),
            Error::Unmountable { image, reason } => {
                write!(f, "cannot mount the file system in {}: {reason}", image.display())
            }
            Error::Program { command, message } => write!(f, "`{command}` failed: {message}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Missing { .. } | Error::Unmountable { .. } | Error::Program { .. } => None,
        }
    }
}
