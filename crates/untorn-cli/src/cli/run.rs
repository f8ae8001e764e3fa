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
    /// All writes between two syncs become durable together, or not at all.
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

/// Options for the log of `--mode boost`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BoostLog {
    /// With `--mode boost`, the log's path (required). The log is created if it does not exist; writes left in it by an
    /// earlier run are replayed first. Put it on persistent memory, or on a disk faster than the files' disk. One log
    /// serves one run at a time.
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// With `--mode boost`, the size of a new log in bytes; suffixes K, M, G, T are powers of 1024 [default: 64M].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
    /// With `--mode boost`, when a write becomes durable [default: `write` for a log on persistent memory; `fsync` on
    /// other media, where `write` would cost a device flush per write].
    #[arg(long, value_enum)]
    pub(crate) durability: Option<Durable>,
    /// With `--mode boost`, the bytes of data per entry of a new log: a multiple of 64, at most 1M [default: 4096].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) entry_size: Option<u64>,
    /// With `--mode boost`, the number of log entries after which untorn syncs their files. It syncs them earlier after
    /// 100 ms, or after 1 s if the log is on a disk [default: 1000; an eighth of the log if it is on a disk].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_min: Option<u64>,
    /// With `--mode boost`, the maximum number of log entries between two syncs of their files [default: 10000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_max: Option<u64>,
    /// Accepted for compatibility; ignored with a warning. The kernel serves reads from its page cache, which already
    /// holds all written data.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) read_cache: Option<u64>,
}

impl BoostLog {
    /// The name of the first of these arguments that was given.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            ("--log", self.log.is_some()),
            ("--log-size", self.log_size.is_some()),
            ("--durability", self.durability.is_some()),
            ("--entry-size", self.entry_size.is_some()),
            ("--batch-min", self.batch_min.is_some()),
            ("--batch-max", self.batch_max.is_some()),
            ("--read-cache", self.read_cache.is_some()),
        ];
        all.iter().find(|(_, given)| *given).map(|(name, _)| *name)
    }
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(crate) struct Run {
    /// How to manage the program's files.
    #[arg(long, value_enum, default_value = "atomic")]
    pub(crate) mode: Mode,
    /// Manage the files whose path matches; may be repeated. `*.db` matches in any directory, `data/*.db` below the
    /// working directory, and `**` any number of directories [default: files opened with O_ATOMIC; with `--mode boost`,
    /// all].
    #[arg(long = "match", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Don't manage the files whose path matches, even if --match matches them; may be repeated. Exclude files that
    /// programs map as lock tables: `*-shm` for SQLite, `lock.mdb` for LMDB.
    #[arg(long = "exclude", value_name = "GLOB")]
    pub(crate) excluded: Vec<String>,
    #[command(flatten)]
    pub(crate) boost: BoostLog,
    /// At exit, print to standard error which calls untorn served, refused, or left to the kernel. Without it, only the
    /// files that lost an epoch of a killed process, and some of those left to the kernel.
    #[arg(long)]
    pub(crate) stats: bool,
    /// Path of the preload layer [default: libuntorn_preload.so beside this program, or in ../lib].
    #[arg(long, value_name = "PATH", env = "UNTORN_PRELOAD_LIBRARY")]
    pub(crate) layer: Option<PathBuf>,
    /// The format of the report.
    #[command(flatten)]
    pub(crate) form: Form,
    /// The program to run, and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    pub(crate) command: Vec<OsString>,
}
