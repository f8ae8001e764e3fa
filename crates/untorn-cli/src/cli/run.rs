//! Arguments of `run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::Form;

/// How files are managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// What is written between two syncs becomes durable together, or not at all.
    Atomic,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// How the files are managed.
    #[arg(long, value_enum, default_value = "atomic")]
    pub(crate) mode: Mode,
    /// Manage files whose path matches; may be given several times. `*.db` matches in any directory, `data/*.db` below the
    /// working directory, `**` any number of directories. Without it, only files that the program opens with O_ATOMIC.
    #[arg(long = "match", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Report on standard error what was served and what was refused.
    #[arg(long)]
    pub(crate) stats: bool,
    /// The preload layer [default: libuntorn_preload.so beside this program, or in ../lib].
    #[arg(long, value_name = "PATH", env = "UNTORN_PRELOAD_LIBRARY")]
    pub(crate) layer: Option<PathBuf>,
    /// With `--stats`, print the report as one JSON object on standard output, after the program's.
    #[command(flatten)]
    pub(crate) form: Form,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}
