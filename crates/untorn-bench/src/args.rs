//! Arguments of a run: sizes, threads, orders, patterns and duration.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use untorn::options::{LogPolicy, Order};
use untorn::{Durability, EngineKind};

use crate::error::{Error, Result};

/// The order in which a workload visits its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Anywhere in the file, aligned to the size of the access.
    Random,
    /// One after the other, from the start of the file to its end, repeatedly.
    Sequential,
}

impl Pattern {
    /// Its name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Pattern::Random => "random",
            Pattern::Sequential => "sequential",
        }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        match word {
            "random" => Ok(Pattern::Random),
            "sequential" => Ok(Pattern::Sequential),
            _ => Err(format!("{word:?} is not an access pattern; use one of: random sequential")),
        }
    }
}

/// The workload of `redundancy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Reads of 1 KiB records and updates of 100 bytes in them, with Zipf-distributed keys and a server's work per
    /// operation.
    KeyValue,
    /// Stores at random offsets, one after the other.
    RandomStores,
}

impl Workload {
    /// Its name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Workload::KeyValue => "key-value",
            Workload::RandomStores => "random-stores",
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        match word {
            "key-value" => Ok(Workload::KeyValue),
            "random-stores" => Ok(Workload::RandomStores),
            _ => Err(format!("{word:?} is not a workload; use one of: key-value random-stores")),
        }
    }
}

/// A system that keeps databases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// SQLite with untorn's VFS, which needs no journal, and the engine that it chooses.
    Untorn,
    /// The same with the hybrid log.
    UntornHybridLog,
    /// The same with reflection pages.
    UntornReflection,
    /// SQLite with a write-ahead log.
    Wal,
    /// SQLite with a rollback journal that it removes.
    Delete,
    /// SQLite with a rollback journal that it truncates.
    Truncate,
    /// SQLite without a journal: no transaction is atomic.
    Off,
}

impl System {
    /// All of them.
    pub const ALL: [System; 7] = [
        System::Untorn,
        System::UntornHybridLog,
        System::UntornReflection,
        System::Wal,
        System::Delete,
        System::Truncate,
        System::Off,
    ];

    /// Its name on the command line and in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            System::Untorn => "untorn",
            System::UntornHybridLog => "untorn-hybrid-log",
            System::UntornReflection => "untorn-reflection",
            System::Wal => "wal",
            System::Delete => "delete",
            System::Truncate => "truncate",
            System::Off => "off",
        }
    }

    /// The parameters of a database's URI.
    #[cfg(feature = "sqlite")]
    pub(crate) fn parameters(self) -> &'static str {
        match self {
            System::Untorn => "?vfs=untorn",
            System::UntornHybridLog => "?vfs=untorn&engine=hybrid-log",
            System::UntornReflection => "?vfs=untorn&engine=reflection",
            System::Wal | System::Delete | System::Truncate | System::Off => "",
        }
    }

    /// The journal mode, if it is not the VFS's own.
    #[cfg(feature = "sqlite")]
    pub(crate) fn journal_mode(self) -> Option<&'static str> {
        matches!(self, System::Wal | System::Delete | System::Truncate | System::Off).then_some(self.as_str())
    }
}

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for System {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let found = System::ALL.into_iter().find(|system| system.as_str() == word);
        found.ok_or_else(|| {
            format!("{word:?} is not a system; use some of: {}", System::ALL.map(System::as_str).join(" "))
        })
    }
}

/// The arguments of a run. An empty list or `None` selects the benchmark's own default. A benchmark refuses an argument
/// that it does not honour.
#[derive(Clone, Debug, Default)]
pub struct Args {
    /// Directory for the files. They are removed at the end, also after an error. Default: the shared-memory file
    /// system if `UNTORN_ASSUME_PMEM=1`, otherwise the current directory.
    pub dir: Option<PathBuf>,
    /// Bytes per access. Default 64, 256, 1024 and 4096.
    pub sizes: Vec<usize>,
    /// Numbers of threads. Default 1 and 2; for `group-commit` 1, 2, 4 and 8. In `recovery-time` the processors that
    /// recovery may use, default 1 and all.
    pub threads: Vec<usize>,
    /// Engines. Default: the one chosen for the medium.
    pub engines: Vec<EngineKind>,
    /// Fence orders. Default: both on persistent memory; elsewhere, where the order makes no difference, the library's
    /// default.
    pub orders: Vec<Order>,
    /// Access patterns. Default: both.
    pub patterns: Vec<Pattern>,
    /// Durability of `atomic-write`; the other benchmarks have their own. Default: per write on persistent memory, per
    /// commit (a commit after each write) on a block medium.
    pub durability: Option<Durability>,
    /// Log policies of the hybrid-log engine. Default: hybrid; in `hybrid-policy` all three.
    pub log_policies: Vec<LogPolicy>,
    /// The maximum size of its log in bytes. Default: the library's. In the figures of the NVCache paper, the bytes of
    /// the entries of the write cache's log.
    pub log_size: Option<u64>,
    /// The percentage of writes from which it logs redo. Default: the library's.
    pub redo_from: Option<u8>,
    /// Its number of checkpoint threads. Default: the library's.
    pub checkpointers: Option<usize>,
    /// Accesses per commit in `atomic-commit`, `hybrid-policy` and `idle`. Default 100.
    pub commit_every: Option<u32>,
    /// Amounts of dirty data per commit: blocks in `commit-time`, default 10, 1000 and 100000; pages in `map-commit`
    /// and `region-flush`, default 1, 10, 100 and 1000; pages per region in `region-ops`, default 1 and 64. In
    /// `recovery-time` the pages that the engine has logged before the crash, default 256, 4096 and 65536.
    pub dirty: Vec<u64>,
    /// Percentages of reads: in `hybrid-policy`, default 0, 20, 40, 60, 80 and 100; in the key-value workload of
    /// `redundancy`, default 50.
    pub reads: Vec<u32>,
    /// Workloads of `redundancy`. Default: both.
    pub workloads: Vec<Workload>,
    /// Seconds between passes in `redundancy`. Default 1 and 30; for random stores 1 and 60.
    pub periods: Vec<f64>,
    /// The pages that share a parity page in `redundancy`. Default: consecutive ones.
    pub stripe_layout: Option<untorn::redundancy::StripeLayout>,
    /// Operations per second at which the processors are saturated in `redundancy`'s key-value workload; 0 means no
    /// work besides the accesses. Default 20000.
    pub rate: Option<u64>,
    /// Length of the file in bytes. Default 1 GiB on persistent memory and 64 MiB on a block medium. On both, 1 GiB for
    /// `redundancy`, 4 GiB for `redundancy-pass`, and 256 MiB of memory for `redundancy-kernels`.
    pub file_len: Option<u64>,
    /// Seconds to measure each row for. It sets the number of slices, at least 15 per arm. In `idle`, the seconds to
    /// stay idle, default 3; in `redundancy`, the minimum seconds per row, default the longest period.
    pub seconds: Option<f64>,
    /// Maximum number of accesses per slice and thread, to run a fixed amount of work instead of a fixed time.
    pub ops: Option<u64>,
    /// Systems that a comparison has, by name. Default: in the benchmarks of databases untorn, wal and delete, and in
    /// `libnvmmio-fig12` truncate and off too; in the others all that this build has. Other comparisons always run
    /// their baseline and untorn too.
    pub systems: Vec<String>,
    /// Sizes of a database's pages in bytes. Default 4096; for `acumen-fig4` and `acumen-fig5` 512 to 4096.
    pub page_sizes: Vec<u32>,
    /// Records that YCSB loads, default 20000; rows of `libnvmmio-fig12`, default 2000.
    pub records: Option<u64>,
    /// Warehouses of TPC-C. Default 1.
    pub warehouses: Option<u32>,
    /// Seed of the random offsets. Default 1.
    pub seed: Option<u64>,
    /// Whether to finish in less than a minute: fewer rounds, a shorter file, and of each list's default values the
    /// first and the last.
    pub quick: bool,
}

/// The options of the command line that every benchmark honours.
pub(crate) const COMMON: [&str; 2] = ["dir", "quick"];

impl Args {
    /// The arguments that differ from their default, by the names of their options on the command line.
    pub(crate) fn given(&self) -> Vec<&'static str> {
        let options = [
            ("dir", self.dir.is_some()),
            ("size", !self.sizes.is_empty()),
            ("threads", !self.threads.is_empty()),
            ("engine", !self.engines.is_empty()),
            ("order", !self.orders.is_empty()),
            ("pattern", !self.patterns.is_empty()),
            ("durability", self.durability.is_some()),
            ("log-policy", !self.log_policies.is_empty()),
            ("log-size", self.log_size.is_some()),
            ("redo-from", self.redo_from.is_some()),
            ("checkpointers", self.checkpointers.is_some()),
            ("commit-every", self.commit_every.is_some()),
            ("dirty", !self.dirty.is_empty()),
            ("reads", !self.reads.is_empty()),
            ("workload", !self.workloads.is_empty()),
            ("period", !self.periods.is_empty()),
            ("layout", self.stripe_layout.is_some()),
            ("rate", self.rate.is_some()),
            ("len", self.file_len.is_some()),
            ("seconds", self.seconds.is_some()),
            ("ops", self.ops.is_some()),
            ("system", !self.systems.is_empty()),
            ("page-size", !self.page_sizes.is_empty()),
            ("records", self.records.is_some()),
            ("warehouses", self.warehouses.is_some()),
            ("seed", self.seed.is_some()),
            ("quick", self.quick),
        ];
        options.into_iter().filter_map(|(name, is_given)| is_given.then_some(name)).collect()
    }

    /// The list; if it is empty, the default; in a quick run, the first and the last value of the default.
    pub(crate) fn choose<T: Clone>(&self, list: &[T], default: &[T]) -> Vec<T> {
        match default {
            _ if !list.is_empty() => list.to_vec(),
            [first, .., last] if self.quick => vec![first.clone(), last.clone()],
            _ => default.to_vec(),
        }
    }

    /// The seed of the random offsets.
    pub(crate) fn seed(&self) -> u64 {
        self.seed.unwrap_or(1)
    }

    /// Accesses per commit.
    pub(crate) fn commit_every(&self) -> u32 {
        self.commit_every.unwrap_or(100)
    }

    /// The directory to work in.
    pub(crate) fn dir(&self) -> PathBuf {
        match &self.dir {
            Some(dir) => dir.clone(),
            None if std::env::var_os("UNTORN_ASSUME_PMEM").is_some_and(|value| value == "1") => {
                Path::new("/dev/shm").to_owned()
            }
            None => Path::new(".").to_owned(),
        }
    }

    /// Refuses impossible arguments before any file is created.
    pub(crate) fn validate(&self, sizes: &[usize], threads: &[usize], file_len: u64) -> Result<()> {
        let pages = file_len / 4096;
        if !file_len.is_multiple_of(4096) || pages == 0 {
            return Err(Error::usage(format!("--len is {file_len}, but must be a positive multiple of 4096 bytes")));
        }
        if let Some(&threads) = threads.iter().find(|&&threads| threads == 0 || threads as u64 > pages) {
            return Err(Error::usage(format!("{threads} threads cannot share {pages} pages; use 1 to {pages}")));
        }
        let most = threads.iter().max().map_or(file_len, |&threads| pages / threads as u64 * 4096);
        if let Some(&size) = sizes.iter().find(|&&size| size == 0 || size as u64 > most) {
            return Err(Error::usage(format!(
                "accesses of {size} bytes do not fit into a thread's part of the file; use 1 to {most}"
            )));
        }
        if self.commit_every == Some(0) {
            return Err(Error::usage("--commit-every is 0; use 1 or more"));
        }
        if let Some(&dirty) = self.dirty.iter().find(|&&dirty| dirty == 0 || dirty > pages) {
            return Err(Error::usage(format!("--dirty is {dirty}, but the file has {pages} pages; use 1 to {pages}")));
        }
        if let Some(&reads) = self.reads.iter().find(|&&reads| reads > 100) {
            return Err(Error::usage(format!("--reads is {reads} percent; use 0 to 100")));
        }
        if let Some(&period) = self.periods.iter().find(|&&period| !(period > 0.0 && period <= 86_400.0)) {
            return Err(Error::usage(format!("--period is {period} seconds; use more than 0 and at most 86400")));
        }
        if self.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds <= 86_400.0)) {
            return Err(Error::usage("--seconds is out of range; use more than 0 and at most 86400"));
        }
        if let Some(size) =
            self.page_sizes.iter().find(|size| !(512..=65_536).contains(*size) || !size.is_power_of_two())
        {
            return Err(Error::usage(format!("--page-size is {size}; use a power of two from 512 to 65536")));
        }
        if self.records.is_some_and(|records| !(1..=1_000_000_000).contains(&records)) {
            return Err(Error::usage("--records is out of range; use 1 to 1000000000"));
        }
        if self.warehouses.is_some_and(|warehouses| !(1..=10_000).contains(&warehouses)) {
            return Err(Error::usage("--warehouses is out of range; use 1 to 10000"));
        }
        if self.ops == Some(0) {
            return Err(Error::usage("--ops is 0, which measures nothing; use 1 or more"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_they_are_written() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            assert_eq!(pattern.as_str().parse::<Pattern>(), Ok(pattern));
        }
        for workload in [Workload::KeyValue, Workload::RandomStores] {
            assert_eq!(workload.as_str().parse::<Workload>(), Ok(workload));
        }
        for system in System::ALL {
            assert_eq!(system.as_str().parse::<System>(), Ok(system));
        }
        assert!("oracle".parse::<System>().unwrap_err().contains("truncate"));
        assert!("sums".parse::<Workload>().unwrap_err().contains("key-value"));
        assert!("backwards".parse::<Pattern>().unwrap_err().contains("sequential"));
    }

    #[test]
    fn arguments_that_cannot_run_are_refused() {
        let args = Args::default();
        assert!(args.validate(&[64], &[1, 2], 1 << 20).is_ok());
        assert!(args.validate(&[64], &[1], 4097).is_err());
        assert!(args.validate(&[64], &[0], 1 << 20).is_err());
        assert!(args.validate(&[64], &[3], 8192).is_err());
        assert!(args.validate(&[0], &[1], 1 << 20).is_err());
        assert!(args.validate(&[8192], &[2], 8192).is_err());
        assert!(Args { seconds: Some(0.0), ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { dirty: vec![2], ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { dirty: vec![0], ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { reads: vec![101], ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { periods: vec![0.0], ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { periods: vec![f64::NAN], ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { page_sizes: vec![1000], ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { records: Some(0), ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { warehouses: Some(0), ..Args::default() }.validate(&[64], &[1], 4096).is_err());
        assert!(Args { commit_every: Some(0), ..Args::default() }.validate(&[64], &[1], 4096).is_err());
    }
}
