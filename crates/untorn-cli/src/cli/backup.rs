//! Arguments of `backup` and `restore`.

use std::path::PathBuf;

use clap::Args;

use super::{At, Form, KeyFile};
use crate::size;

/// Arguments of `backup`.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file.
    pub(crate) file: PathBuf,
    /// The new backup; `-` for standard output. Its manifest gets the name DEST.manifest.
    pub(crate) dest: PathBuf,
    /// Replace a backup of that name.
    #[arg(long)]
    pub(crate) force: bool,
    /// Back up only what differs from this earlier backup. Its manifest alone is enough. One that was made with --since
    /// needs those that it follows before it, each with a --base of its own.
    #[arg(long, value_name = "BACKUP", conflicts_with = "resume")]
    pub(crate) base: Vec<PathBuf>,
    /// Back up only what commits changed after this one, by the file's commit log: the commit of an earlier backup,
    /// which need not be at hand.
    #[arg(long, value_name = "COMMIT", conflicts_with_all = ["resume", "base"])]
    pub(crate) since: Option<u64>,
    /// Keep what is copied if the backup ends early, and go on from what an earlier one kept.
    #[arg(long)]
    pub(crate) resume: bool,
    /// Read the backup again and compare it with its checksums.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Bytes per second, at most; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) form: Form,
}

/// Arguments of `restore`.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The backup, and after it any increments in the order in which they were made. The manifest of each is
    /// BACKUP.manifest. Or the URL of a replica.
    #[arg(required = true, num_args = 1.., value_name = "BACKUP")]
    pub(crate) backups: Vec<PathBuf>,
    /// The file to make of it.
    pub(crate) file: PathBuf,
    /// Replace the file. It stays if a process has it open.
    #[arg(long)]
    pub(crate) force: bool,
    /// The last commit of a replica with this number or a lower one, or at this time or before. The time is in UTC, as
    /// 2026-11-29 06:07:08, or the seconds since 1970 that `--json` gives, after @. Without a fraction, as in
    /// 06:07:08.25, it is the end of that second.
    #[arg(long, value_name = "COMMIT|TIME", value_parser = At::parse)]
    pub(crate) at: Option<At>,
    /// Make a directory of LTX files of the replica of an SQLite database, one for each commit, which `litestream
    /// restore -o app.db file:///DIRECTORY` reads.
    #[arg(long, conflicts_with_all = ["at", "force"])]
    pub(crate) ltx: bool,
    #[command(flatten)]
    pub(crate) key: KeyFile,
    /// Bytes per second, at most; suffixes K, M, G, T are powers of 1024.
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) rate: Option<u64>,
    #[command(flatten)]
    pub(crate) form: Form,
}
