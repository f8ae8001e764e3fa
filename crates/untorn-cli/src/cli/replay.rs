//! Arguments of `replay` and `log`, the verbs on write-cache logs.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::Form;

/// Arguments of `replay`.
#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Logs to replay. A directory stands for every log in it.
    #[arg(required = true, value_name = "LOG")]
    pub(crate) logs: Vec<PathBuf>,
    /// Only list what a replay would do. Nothing is changed.
    #[arg(long)]
    pub(crate) list: bool,
    /// Choose the version that counts of a file that another program changed after the last write in the log.
    #[arg(long, value_enum, conflicts_with = "list")]
    pub(crate) trust: Option<TrustReplay>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The version of a changed file that counts.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub(crate) enum TrustReplay {
    /// Keep the file as it is. The writes to it that the log holds are dropped.
    File,
    /// Write the log's writes over the file.
    Log,
}

/// Arguments of `log`.
#[derive(Debug, Args)]
pub(crate) struct CacheLog {
    /// The verb to run.
    #[command(subcommand)]
    pub(crate) verb: CacheLogVerb,
}

/// The verbs on logs.
#[derive(Debug, Subcommand)]
pub(crate) enum CacheLogVerb {
    /// Show the contents of a log that no process has open. Nothing is changed.
    #[command(after_help = "Exit codes: 0 the log is empty; 1 it has writes to replay; 2 it is corrupt; 64 usage; 74 \
        I/O error, or in use\n\nExample:\n  untorn log info /fast/untorn.log --json")]
    Info(LogInfo),
}

/// Arguments of `log info`.
#[derive(Debug, Args)]
pub(crate) struct LogInfo {
    /// The log file.
    pub(crate) log: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}
