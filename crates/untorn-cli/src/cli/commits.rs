//! Arguments of `commits` and `watch`.

use std::path::PathBuf;

use clap::Args;

use super::Form;
use crate::size;

/// Arguments of `commits`.
#[derive(Debug, Args)]
pub(crate) struct Commits {
    /// The file, or a region store.
    pub(crate) file: PathBuf,
    /// Print the commits of the region of this name, of a store. A program gives it its log.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["start", "stop"])]
    pub(crate) region: Option<String>,
    /// Print the commits after this one [default: all that the log has; with --consumer, after the last that it
    /// acknowledged].
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["start", "stop", "forget"])]
    pub(crate) from: Option<u64>,
    /// Wait for further commits at the end, until a signal; also for the commit of --from, if the file is not there
    /// yet.
    #[arg(long, conflicts_with_all = ["start", "stop", "forget"])]
    pub(crate) follow: bool,
    /// Print the changed bytes too, in hexadecimal digits.
    #[arg(long, requires = "json", conflicts_with_all = ["start", "stop", "forget"])]
    pub(crate) bytes: bool,
    /// Print the commits that the consumer of this name has not acknowledged, and acknowledge them when they are
    /// printed. A new name is registered, and begins at the start of the log, or after --from.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["start", "stop", "forget"])]
    pub(crate) consumer: Option<String>,
    /// Remove the consumer of this name: the log keeps nothing for it any more.
    #[arg(long, value_name = "NAME", conflicts_with_all = ["start", "stop"])]
    pub(crate) forget: Option<String>,
    /// Give the file a commit log of at most so many bytes; suffixes K, M, G, T are powers of 1024. The limit of a log
    /// that it has changes.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "stop")]
    pub(crate) start: Option<u64>,
    /// With --start: keep commits until every consumer has acknowledged them. A commit waits up to so many seconds for
    /// the slowest consumer, and then fails. Without it the oldest commits go, and the consumer is told.
    #[arg(long, value_name = "SECONDS", requires = "start")]
    pub(crate) block: Option<u64>,
    /// With --start: a commit returns once every consumer has acknowledged it, and waits while there is none. With
    /// --block it waits up to so many seconds; it stays if that is too short.
    #[arg(long, requires = "start")]
    pub(crate) await_consumers: bool,
    /// Give the commit log up.
    #[arg(long)]
    pub(crate) stop: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `watch`.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}
