//! The arguments of `replay` and of `log`, about logs of write caches.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Form;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Logs, or directories: of a directory, every log in it.
    #[arg(required = true, value_name = "LOG")]
    pub(crate) logs: Vec<PathBuf>,
    /// Only say what would be done. Nothing is changed.
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `log`.
#[derive(Debug, Args)]
pub(crate) struct CacheLog {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: CacheLogVerb,
}

/// What is done with logs.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheLogVerb {
    /// Show what is in a log that nobody has open. Nothing is changed.
    ///
    /// Ends with 0 if it is empty, with 1 if it is to be replayed, and with 2 if it is corrupt.
    #[command(after_help = "Example:\n  untorn log info /fast/untorn.log --json")]
    Info(LogInfo),
}

/// Arguments of `log info`.
#[derive(Debug, Args)]
pub(crate) struct LogInfo {
    /// The log.
    pub(crate) log: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}
