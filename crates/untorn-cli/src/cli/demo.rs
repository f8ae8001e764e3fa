//! Arguments of `untorn demo`, and of the process that it kills.

use std::path::PathBuf;

use clap::Args;

use super::Form;

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Directory for the demo's files, which are removed at the end [default: the system's temporary directory].
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// The kind of writer in the demo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Writer {
    /// Plain stores into a shared mapping, then msync.
    Plain,
    /// untorn transactions, then sync.
    Untorn,
}

/// Arguments of the demo's writer process.
#[derive(Debug, Args)]
pub(crate) struct DemoWriter {
    /// The bank's file.
    pub(crate) file: PathBuf,
    /// The kind of writer.
    #[arg(long)]
    pub(crate) writer: Writer,
    /// Seed of the transfers.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The parent process; the writer exits with it.
    #[arg(long)]
    pub(crate) parent: i32,
}
