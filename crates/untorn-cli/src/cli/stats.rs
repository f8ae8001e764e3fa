//! Arguments of `stats`.

use std::path::PathBuf;

use clap::Args;

use super::Form;

/// Arguments of `stats`.
#[derive(Debug, Args)]
pub(crate) struct Stats {
    /// The files.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Print the figures again every so many seconds, until the command is interrupted.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", require_equals = true)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) watch: Option<u64>,
    /// Print the figures in the text format of Prometheus.
    #[arg(long, conflicts_with_all = ["json", "watch"])]
    pub(crate) prometheus: bool,
    #[command(flatten)]
    pub(crate) form: Form,
}
