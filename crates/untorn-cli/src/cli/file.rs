//! Arguments of the verbs that make, change, read and recover one file.

use std::path::PathBuf;

use clap::Args;
use untorn::options::{Layout, Prefer};
use untorn::{Durability, EngineKind};

use super::words::{durabilities, engines, layouts, sides};
use super::{Form, Log};
use crate::size;

/// Arguments of `create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    /// The file to create. It must not exist.
    pub(crate) file: PathBuf,
    /// Length in bytes; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: u64,
    /// The engine that makes commits atomic. Without --keep-sidecar the file is a plain one at the end, and each open
    /// chooses anew.
    #[arg(long, value_parser = engines(), default_value = "auto")]
    pub(crate) engine: EngineKind,
    /// Layout of the sidecar, which --keep-sidecar keeps.
    #[arg(long, value_parser = layouts(), default_value = "auto")]
    pub(crate) layout: Layout,
    /// When a write becomes durable: `write`, when its call returns; `commit`, at the next commit [default: chosen by
    /// medium; `commit` for `--engine hybrid-log`].
    #[arg(long, value_parser = durabilities())]
    pub(crate) durability: Option<Durability>,
    #[command(flatten)]
    pub(crate) log: Log,
    /// Give the file a commit log of at most so many bytes, for `commits`, `watch` and increments of a backup.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) commit_log: Option<u64>,
    #[command(flatten)]
    pub(crate) keep: Keep,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of verbs that only inspect a file.
#[derive(Debug, Args)]
pub(crate) struct Look {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Whether other processes may have the file open.
#[derive(Debug, Args)]
pub(crate) struct Sharing {
    /// Share the file with other processes that opened it with --shared, using the options of the first of them.
    #[arg(long)]
    pub(crate) shared: bool,
}

/// Whether the sidecar stays when the command closes the file.
#[derive(Debug, Args)]
pub(crate) struct Keep {
    /// Keep the sidecar at the end, for a program that opens the file next. By default the closed file is a plain one.
    #[arg(long)]
    pub(crate) keep_sidecar: bool,
}

/// Arguments of `write`.
#[derive(Debug, Args)]
pub(crate) struct Write {
    /// The file.
    pub(crate) file: PathBuf,
    /// Offset of the first byte to write; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) keep: Keep,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `read`.
#[derive(Debug, Args)]
pub(crate) struct Read {
    /// The file.
    pub(crate) file: PathBuf,
    /// Offset of the first byte to read; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse, default_value = "0")]
    pub(crate) offset: u64,
    /// Number of bytes to read; suffixes as for --offset [default: up to the end of the file].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: Option<u64>,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
}

/// Arguments of `apply`.
#[derive(Debug, Args)]
pub(crate) struct Apply {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) keep: Keep,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `resize`.
#[derive(Debug, Args)]
pub(crate) struct Resize {
    /// The file.
    pub(crate) file: PathBuf,
    /// New length in bytes; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) len: u64,
    #[command(flatten)]
    pub(crate) sharing: Sharing,
    #[command(flatten)]
    pub(crate) keep: Keep,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `recover`.
#[derive(Debug, Args)]
pub(crate) struct Recover {
    /// The file.
    pub(crate) file: PathBuf,
    /// Accept a sidecar that was copied or restored together with its file, so that the inode number changed.
    #[arg(long)]
    pub(crate) adopt: bool,
    /// The side that wins if the file and its sidecar disagree. The other side's changes are lost.
    #[arg(long, value_name = "SIDE", value_parser = sides())]
    pub(crate) trust: Option<Prefer>,
    #[command(flatten)]
    pub(crate) keep: Keep,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `settle`.
#[derive(Debug, Args)]
pub(crate) struct Settle {
    /// The file.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) form: Form,
}
