//! Why a rig could not do its work. A violation is no error: it is what a rig is for.

use std::fmt;
use std::io;
use std::path::Path;

/// Shorthand for a result with [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A rig that cannot run, or lost its way.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// This machine lacks something.
    Missing {
        /// What.
        what: String,
        /// How to get it.
        get: String,
    },
    /// The system refused something.
    Io {
        /// What was to be done.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A program or a guest did something else than it was told.
    Failed {
        /// What was to be done.
        what: String,
        /// What came instead.
        why: String,
    },
}

impl Error {
    pub(crate) fn missing(what: impl Into<String>, get: impl Into<String>) -> Self {
        Error::Missing { what: what.into(), get: get.into() }
    }

    pub(crate) fn failed(what: impl Into<String>, why: impl Into<String>) -> Self {
        Error::Failed { what: what.into(), why: why.into() }
    }

    /// For `map_err`: an error of the system while doing `what` to a path.
    pub(crate) fn io_at(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let what = format!("{what} {}", path.display());
        |source| Error::Io { what, source }
    }

    /// For `map_err`: an error of the system while doing `what`.
    pub(crate) fn io(what: &str) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_owned();
        |source| Error::Io { what, source }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Missing { what, get } => write!(f, "{what} is missing; {get}"),
            Error::Io { what, source } => write!(f, "cannot {what}: {source}"),
            Error::Failed { what, why } => write!(f, "cannot {what}: {why}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
