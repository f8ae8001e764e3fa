//! Why a benchmark could not run.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// Shorthand for a result with [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a benchmark could not run, and what to do about it.
///
/// ```
/// let error = untorn_bench::run("no-such", &Default::default(), &mut |_, _, _| ()).unwrap_err();
/// assert!(error.to_string().contains("atomic-write"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// No benchmark has this name.
    UnknownBench {
        /// The requested name.
        name: String,
    },
    /// The benchmark does not honour an option.
    Option {
        /// The benchmark.
        bench: &'static str,
        /// The option, without its dashes.
        option: &'static str,
        /// The options that it honours.
        takes: Vec<&'static str>,
    },
    /// Arguments that no run could satisfy.
    Usage {
        /// The problem, and the permitted values.
        what: String,
    },
    /// The benchmark is meaningless on the medium of this directory.
    WrongMedium {
        /// The benchmark.
        bench: &'static str,
        /// The directory.
        dir: PathBuf,
        /// The medium it is on.
        medium: &'static str,
        /// The alternative.
        instead: &'static str,
    },
    /// Too little space for the files of the run.
    NoSpace {
        /// The directory.
        dir: PathBuf,
        /// Bytes the run may need.
        need: u64,
        /// Bytes that are free.
        free: u64,
    },
    /// A system call made by the benchmark failed.
    Io {
        /// The operation, as a verb.
        operation: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The library under test reported an error.
    Untorn(untorn::Error),
    /// A database reported an error.
    Database {
        /// Its text.
        what: String,
    },
    /// A plot could not be drawn.
    Plot {
        /// The error of the drawing.
        what: String,
    },
    /// A database is not in a state that its transactions allow.
    Inconsistent {
        /// The system.
        system: &'static str,
        /// The conditions that do not hold.
        what: String,
    },
}

impl Error {
    pub(crate) fn io(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io { operation, path: path.to_owned(), source: source.into() }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Error::Usage { what: what.into() }
    }
}

#[cfg(feature = "sqlite")]
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        let what = match &error {
            rusqlite::Error::SqliteFailure(code, _) => format!("{error} (SQLite's code {})", code.extended_code),
            other => other.to_string(),
        };
        Error::Database { what }
    }
}

impl From<untorn::Error> for Error {
    fn from(error: untorn::Error) -> Self {
        Error::Untorn(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::UnknownBench { name } => {
                write!(f, "unknown benchmark {name:?}; use one of:")?;
                crate::names().iter().try_for_each(|(name, _)| write!(f, " {name}"))
            }
            Error::Option { bench, option, takes } => {
                write!(f, "{bench} does not take --{option}; it takes:")?;
                takes.iter().try_for_each(|option| write!(f, " --{option}"))
            }
            Error::Usage { what } => f.write_str(what),
            Error::WrongMedium { bench, dir, medium, instead } => {
                write!(f, "cannot run {bench} in {}, which is on a {medium} medium; {instead}", dir.display())
            }
            Error::NoSpace { dir, need, free } => write!(
                f,
                "{} has {} MiB free, but the run may need {} MiB; use another --dir or a smaller --len",
                dir.display(),
                free >> 20,
                need >> 20
            ),
            Error::Io { operation, path, source } => write!(f, "cannot {operation} {}: {source}", path.display()),
            Error::Untorn(error) => error.fmt(f),
            Error::Database { what } => write!(f, "the database failed: {what}"),
            Error::Plot { what } => write!(f, "cannot draw the plot: {what}"),
            Error::Inconsistent { system, what } => write!(f, "the database of {system} is inconsistent: {what}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::Untorn(error) => error.source(),
            _ => None,
        }
    }
}
