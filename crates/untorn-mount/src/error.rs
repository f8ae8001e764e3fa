//! Why a directory could not be served.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// A result with [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a directory could not be served.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed.
    Io {
        /// The failed step, as a verb: "open".
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The log, or a file behind it.
    Library(untorn::Error),
    /// A glob that means nothing.
    Glob(String),
    /// The mount hides its own source, so the log could not reach its files by their paths.
    Covered(PathBuf),
    /// The log would be a file of the mount, so programs could write to it.
    LogInSource(PathBuf),
    /// Another user may have made the directory of the log.
    Planted {
        /// The directory.
        path: PathBuf,
        /// What says so.
        why: String,
    },
    /// Bytes of the source's files may be in another log alone.
    LogLeft {
        /// The source.
        source: PathBuf,
        /// The log, in the source or in a directory above.
        log: PathBuf,
        /// Whether another process has it.
        in_use: bool,
        /// What was found.
        why: String,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, errno: Errno) -> Self {
        Error::Io { operation, path: path.to_owned(), source: errno.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { operation, path, source } => write!(f, "cannot {operation} {}: {source}", path.display()),
            Error::Library(error) => error.fmt(f),
            Error::Glob(glob) => write!(
                f,
                "{glob:?} is not a valid glob: it must not be empty or contain a newline, and brackets and braces \
                 must be closed"
            ),
            Error::Covered(path) => write!(
                f,
                "the mount covers its own source {}; mount it elsewhere, or in a mount namespace that the server is \
                 not in",
                path.display()
            ),
            Error::LogInSource(log) => write!(
                f,
                "programs could write to the log {} through the mount; put it outside of the source, or omit it",
                log.display()
            ),
            Error::Planted { path, why } => write!(
                f,
                "{}: another user may have planted this directory ({why}); remove it, or give another --log",
                path.display()
            ),
            Error::LogLeft { source, log, in_use: true, why } => write!(
                f,
                "bytes of files in {} may be in the log {} alone, and {why}: wait for the end of that run or mount",
                source.display(),
                log.display()
            ),
            Error::LogLeft { source, log, in_use: false, why } => write!(
                f,
                "bytes of files in {} may be in the log {} alone: {why}; run `untorn replay '{}'` first",
                source.display(),
                log.display(),
                log.display()
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Library(error) => Some(error),
            Error::Glob(_) | Error::Covered(_) | Error::LogInSource(_) => None,
            Error::Planted { .. } | Error::LogLeft { .. } => None,
        }
    }
}

impl From<untorn::Error> for Error {
    fn from(error: untorn::Error) -> Self {
        Error::Library(error)
    }
}
