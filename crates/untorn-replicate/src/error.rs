//! The errors of this crate.

use std::fmt;
use std::path::PathBuf;

use crate::store::StoreError;

/// Shorthand for a result with [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a replication, a restoration or a report failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A request to the store failed, also after retries.
    Store(StoreError),
    /// The local file failed.
    File(untorn::Error),
    /// Another writer has taken the replica over. This writer acknowledges nothing any more, and its handle is of no
    /// further use.
    Fenced {
        /// The replica.
        url: String,
        /// The epoch that this writer had.
        epoch: u64,
        /// The owner of the replica now, as far as known.
        by: String,
    },
    /// The replica has commits that the file lacks, so shipping from the file would lose them.
    NotDescendant {
        /// The replica.
        url: String,
        /// Why the file is not known to have all commits of the replica.
        what: String,
    },
    /// The file has not only commits of the replica, so it cannot follow it.
    NotFollower {
        /// The file.
        path: PathBuf,
        /// Why it is not known to be a copy of the replica.
        what: String,
    },
    /// There is no replica at the URL, or no snapshot that is old enough.
    NotFound {
        /// The replica.
        url: String,
        /// The missing thing.
        what: String,
    },
    /// An object is damaged, or does not fit the one before it.
    Corrupt {
        /// Its name.
        name: String,
        /// The damage.
        what: String,
    },
    /// An object has a format that this version does not know.
    Unsupported {
        /// Its name.
        name: String,
        /// The feature or version.
        what: String,
    },
    /// The store does not keep the conditions of requests, so two writers could overwrite each other.
    UnsafeStore {
        /// The store.
        url: String,
        /// The condition that it ignored.
        what: String,
    },
    /// The URL or an option is wrong.
    Invalid {
        /// The mistake, and the allowed values.
        what: String,
    },
    /// An earlier call failed, so this handle does nothing any more.
    Poisoned {
        /// The earlier failure.
        cause: String,
    },
    /// A local system call failed on a file that is not an untorn file.
    Io {
        /// The attempted operation.
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Store(error) => write!(f, "{error}"),
            Error::File(error) => write!(f, "{error}"),
            Error::Fenced { url, epoch, by } => write!(
                f,
                "{url}: this writer lost the replica, which it had in epoch {epoch}, to {by}; its later commits are \
                 not replicated; restore the replica to go on from it"
            ),
            Error::NotDescendant { url, what } => {
                write!(f, "{url}: {what}; restore the replica and go on with that file, or replicate to another URL")
            }
            Error::NotFollower { path, what } => write!(
                f,
                "{}: {what}; it is left as it is; restore the replica to another file, or remove this one",
                path.display()
            ),
            Error::NotFound { url, what } => write!(f, "{url}: {what}"),
            Error::Corrupt { name, what } => write!(f, "the object {name} is damaged: {what}"),
            Error::Unsupported { name, what } => {
                write!(f, "the object {name} has {what}, which this version does not support; use a newer version")
            }
            Error::UnsafeStore { url, what } => write!(
                f,
                "{url}: the store {what}, so it cannot keep two writers apart; use a store with conditional writes"
            ),
            Error::Invalid { what } => f.write_str(what),
            Error::Poisoned { cause } => write!(f, "the replication ended after an earlier failure: {cause}"),
            Error::Io { operation, path, source } => write!(f, "cannot {operation} {}: {source}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Store(error) => Some(error),
            Error::File(error) => Some(error),
            Error::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        Error::Store(error)
    }
}

impl From<untorn::Error> for Error {
    fn from(error: untorn::Error) -> Self {
        Error::File(error)
    }
}
