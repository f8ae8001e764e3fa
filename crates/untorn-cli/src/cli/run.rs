//! Arguments of `run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use untorn::Durability;

use super::Form;
use crate::size;

/// How untorn manages the program's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// All changes of a file between two syncs become durable together, or not at all.
    Atomic,
    /// Writes go to a log on a fast medium first, and to the files later.
    Boost,
}

impl Mode {
    /// Its name on the command line and in reports.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Mode::Atomic => "atomic",
            Mode::Boost => "boost",
        }
    }
}

/// When a write of a boosted program becomes durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durable {
    /// Each write, when its call returns.
    Write,
    /// All writes to a file, when `fsync` on it returns.
    Fsync,
}

impl From<Durable> for Durability {
    fn from(durable: Durable) -> Self {
        match durable {
            Durable::Write => Durability::PerWrite,
            Durable::Fsync => Durability::PerCommit,
        }
    }
}

/// Options for the log of `run`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct RunLog {
    /// The log's path. The log is created if it does not exist; writes left in it by an earlier run are replayed first.
    /// With `--mode boost` it is required: put it on persistent memory, or on a disk faster than the files' disk. One
    /// log serves one run at a time [default, with `--mode atomic`: DIRECTORY/.untorn/mount.log, which the run hides].
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// The size of a new log in bytes; suffixes K, M, G, T are powers of 1024 [default: 64M].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
    /// With `--mode boost`, when a write becomes durable [default: `write` for a log on persistent memory; `fsync` on
    /// other media, where `write` would cost a device flush per write].
    #[arg(long, value_enum)]
    pub(crate) durability: Option<Durable>,
    /// The bytes of data per entry of a new log: a multiple of 64, at most 1M [default: 4096].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) entry_size: Option<u64>,
    /// The number of log entries after which untorn syncs their files; it syncs them after 1 s at the latest [default:
    /// an eighth of the log's entries, at least 1000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_min: Option<u64>,
    /// The maximum number of log entries between two syncs of their files [default: 10000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_max: Option<u64>,
    /// Accepted for compatibility; ignored with a warning. The kernel's page cache serves reads.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) read_cache: Option<u64>,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// How to manage the program's files.
    #[arg(long, value_enum, default_value = "atomic")]
    pub(crate) mode: Mode,
    /// Manage the files whose path matches; may be repeated. `data/*.db` matches below the working directory, and `**`
    /// any number of directories. The run serves the directory before the first wildcard. A glob without a slash, as
    /// `*.db`, matches in the working directory and below [default: all regular files there].
    #[arg(long = "match", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Don't manage the files whose path matches, even if --match matches them; may be repeated.
    #[arg(long = "exclude", value_name = "GLOB")]
    pub(crate) excluded: Vec<String>,
    /// With `--mode atomic`, give the files whose path matches a commit log of 64 MiB, unless they have one: `untorn
    /// commits` lists the commits of such a file, and `untorn watch` follows them; may be repeated.
    #[arg(long, value_name = "GLOB")]
    pub(crate) commit_log: Vec<String>,
    #[command(flatten)]
    pub(crate) log: RunLog,
    /// Refuse to open a matching file for writing if untorn can't give it its guarantee. Without this option, the file
    /// system serves such a file, and a line on standard error at the end says so.
    #[arg(long)]
    pub(crate) strict: bool,
    /// With `--mode atomic`, send each write to untorn at once instead of through the kernel's page cache: a full disk
    /// is an error of the write, but a small write costs a round trip. `--mode boost` always does so.
    #[arg(long)]
    pub(crate) write_through: bool,
    /// Let the kernel keep fcntl locks, so that a lock is no request to untorn. Programs of the run still meet each
    /// other's locks, but not those of programs outside the run.
    #[arg(long)]
    pub(crate) local_locks: bool,
    /// At exit, print to standard error how many files untorn served, and which files it left to the file system.
    #[arg(long)]
    pub(crate) stats: bool,
    /// The format of the report.
    #[command(flatten)]
    pub(crate) form: Form,
    /// The program to run, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}
