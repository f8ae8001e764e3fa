//! Why a mount could not be made or removed.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;

use super::Holder;

/// Shorthand for a result with [`AttachError`].
pub type Result<T> = std::result::Result<T, AttachError>;

/// Why a mount could not be made or removed.
#[derive(Debug)]
#[non_exhaustive]
pub enum AttachError {
    /// The request itself is wrong.
    Request {
        /// The path that was given.
        path: PathBuf,
        /// The fault, and the remedy.
        why: String,
    },
    /// The system refused.
    System {
        /// The operation, as the object of "cannot".
        what: String,
        /// The system's error.
        source: io::Error,
        /// The remedy, if it is known.
        advice: Option<String>,
    },
    /// Processes use the mount.
    Busy {
        /// The mountpoint.
        mountpoint: PathBuf,
        /// The processes, as far as `/proc` shows them to this user.
        holders: Vec<Holder>,
    },
    /// A private mount was made, but the program does not start.
    Program {
        /// The program.
        program: OsString,
        /// The error of `exec`.
        source: io::Error,
    },
}

impl AttachError {
    pub(super) fn system(what: impl Into<String>, source: io::Error) -> Self {
        AttachError::System { what: what.into(), source, advice: None }
    }
}

impl fmt::Display for AttachError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttachError::Request { path, why } => write!(f, "{}: {why}", path.display()),
            AttachError::System { what, source, advice } => {
                write!(f, "cannot {what}: {source}")?;
                advice.as_ref().map_or(Ok(()), |advice| write!(f, "; {advice}"))
            }
            AttachError::Busy { mountpoint, holders } => {
                let holders: Vec<String> = holders.iter().map(Holder::to_string).collect();
                let by = match holders.is_empty() {
                    true => "a process that this user may not look at".to_owned(),
                    false => holders.join(", "),
                };
                write!(
                    f,
                    "cannot unmount {}: it is in use by {by}; wait until it is not, or use --lazy, which removes the \
                     name at once and ends the mount at its last use",
                    mountpoint.display()
                )
            }
            AttachError::Program { program, source } => write!(f, "cannot start {}: {source}", program.display()),
        }
    }
}

impl std::error::Error for AttachError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            AttachError::System { source, .. } | AttachError::Program { source, .. } => Some(source),
            AttachError::Request { .. } | AttachError::Busy { .. } => None,
        }
    }
}
