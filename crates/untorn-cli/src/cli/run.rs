//! Arguments of `run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use untorn::Durability;

use super::Form;
use crate::size;

/// How files are managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// What is written between two syncs becomes durable together, or not at all.
    Atomic,
    /// What is written goes to a log on a fast medium first, and to the files later.
    Boost,
}

impl Mode {
    /// The word for it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Mode::Atomic => "atomic",
            Mode::Boost => "boost",
        }
    }
}

/// When what a boosted program writes is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durable {
    /// Each write when its call returns.
    Write,
    /// What was written to a file when `fsync` returns.
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

/// The log of `--mode boost`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct BoostLog {
    /// With `--mode boost`, the log; it is made if there is none, and what an earlier run left in it is brought to the files
    /// first. On persistent memory, or on a disk that is faster than that of the files. One log serves one run at a time.
    #[arg(long, value_name = "PATH")]
    pub(crate) log: Option<PathBuf>,
    /// With `--mode boost`, the size of a new log: bytes, or with K, M, G, T (powers of 1024) [default: 64M].
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) log_size: Option<u64>,
    /// With `--mode boost`, when what is written is durable: each write when it returns, or all of a file's when `fsync`
    /// does [default: write for a log on persistent memory, fsync elsewhere, where each write would cost a device flush].
    #[arg(long, value_enum)]
    pub(crate) durability: Option<Durable>,
    /// With `--mode boost`, bytes of data in an entry of a new log: a multiple of 64 up to 1M [default: 4096].
    #[arg(long, value_name = "N", value_parser = size::parse)]
    pub(crate) entry_size: Option<u64>,
    /// With `--mode boost`, entries that wait for a sync of their files, unless 100 ms pass, or a second with the log on a disk
    /// [default: 1000, or an eighth of a log on a disk].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_min: Option<u64>,
    /// With `--mode boost`, entries between two syncs of their files, at most [default: 10000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) batch_max: Option<u64>,
    /// With `--mode boost`, taken and of no effect, but for a word on standard error: reads are the kernel's own, from its page
    /// cache, which has all that was written.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub(crate) read_cache: Option<u64>,
}

impl BoostLog {
    /// The first of these arguments that was given, by name.
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
    /// How the files are managed.
    #[arg(long, value_enum, default_value = "atomic")]
    pub(crate) mode: Mode,
    /// Manage files whose path matches; may be given several times. `*.db` matches in any directory, `data/*.db` below the
    /// working directory, `**` any number of directories. Without it, only files that the program opens with O_ATOMIC;
    /// with `--mode boost` all.
    #[arg(long = "match", value_name = "GLOB")]
    pub(crate) globs: Vec<String>,
    /// Leave files alone whose path matches, whatever --match says; may be given several times. What programs map to lock by
    /// belongs here: `*-shm` of SQLite, `lock.mdb` of LMDB
    #[arg(long = "exclude", value_name = "GLOB")]
    pub(crate) excluded: Vec<String>,
    #[command(flatten)]
    pub(crate) boost: BoostLog,
    /// Report on standard error what was served, what was refused, and what was left to the kernel.
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
