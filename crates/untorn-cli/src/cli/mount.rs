//! Arguments of `mount` and `unmount`.

use std::path::PathBuf;

use clap::Args;

use super::{Form, RunMode};
use crate::size;

/// Arguments of `mount`.
#[derive(Debug, Args)]
pub(crate) struct Mount {
    /// How to manage the files.
    #[arg(long, value_enum, default_value = "atomic")]
    pub(crate) mode: RunMode,
    /// Manage the files whose path matches; may be repeated. `*.db` matches in any directory, `data/*.db` below SOURCE,
    /// and `**` any number of directories [default: all regular files].
    #[arg(long = "match", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Don't manage the files whose path matches, even if --match matches them; may be repeated. The mount passes their
    /// operations on to SOURCE.
    #[arg(long = "exclude", value_name = "GLOB")]
    pub(crate) excluded: Vec<String>,
    /// With `--mode atomic`, give the files whose path matches a commit log of 64 MiB, unless they have one: `untorn
    /// commits` lists the commits of such a file, and `untorn watch` follows them; may be repeated.
    #[arg(long, value_name = "GLOB")]
    pub(crate) commit_log: Vec<String>,
    /// The log's path. The log is created if it does not exist; writes left in it by an earlier mount are replayed
    /// first. One log serves one mount at a time [default: SOURCE/.untorn/mount.log, which the mount hides].
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// The size of a new log in bytes; suffixes K, M, G, T are powers of 1024 [default: 64M].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
    /// With `--mode atomic`, send each write to untorn at once instead of through the kernel's page cache: a full disk
    /// is an error of the write, but a small write costs a round trip. `--mode boost` always does so.
    #[arg(long)]
    pub(crate) write_through: bool,
    /// Let the kernel keep fcntl locks, so that a lock is no request to untorn. Programs on the mount still meet each
    /// other's locks, but not those of programs that use SOURCE past the mount.
    #[arg(long)]
    pub(crate) local_locks: bool,
    /// Serve the mount in this process until it is unmounted, and print a report at the end.
    #[arg(long, conflicts_with = "background")]
    pub(crate) foreground: bool,
    /// Return once the mount answers, and serve it in a process of its own. This is the default.
    #[arg(long)]
    pub(crate) background: bool,
    /// This process is the one that serves, and its standard input is a socket of the one that returns.
    #[arg(long, hide = true, conflicts_with_all = ["foreground", "background"])]
    pub(crate) half: bool,
    /// The format of the report.
    #[command(flatten)]
    pub(crate) form: Form,
    /// The directory with the files.
    #[arg(value_name = "SOURCE")]
    pub(crate) source: PathBuf,
    /// The directory on which the files appear, outside SOURCE. The mount hides what it holds.
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) mountpoint: PathBuf,
}

/// Arguments of `unmount`.
#[derive(Debug, Args)]
pub(crate) struct Unmount {
    /// Remove the mount's name at once. Programs that use it go on, and it ends with the last of them.
    #[arg(long)]
    pub(crate) lazy: bool,
    /// The format of the report.
    #[command(flatten)]
    pub(crate) form: Form,
    /// The directory on which the files appear.
    #[arg(value_name = "MOUNTPOINT")]
    pub(crate) mountpoint: PathBuf,
}
