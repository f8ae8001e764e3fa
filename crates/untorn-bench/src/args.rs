//! What to measure: sizes, threads, orders, patterns, and how long.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use untorn::{Durability, EngineKind, LogPolicy, Order};

use crate::error::{Error, Result};

/// In what order a workload visits its offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pattern {
    /// Anywhere in the file, aligned to the size of the access.
    Random,
    /// One after the other, from the start of the file to its end and over again.
    Sequential,
}

impl Pattern {
    /// The word the tool and the JSON output use.
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
            _ => Err(format!("{word:?} is no access pattern; use one of: random sequential")),
        }
    }
}

/// What a program does with its memory in `redundancy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// Reads of records of 1 KiB and updates of 100 bytes of them, the keys by Zipf's law, with the work of a server beside
    /// each.
    KeyValue,
    /// Stores at random places, one after the other.
    RandomStores,
}

impl Workload {
    /// The word the tool and the JSON output use.
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
            _ => Err(format!("{word:?} is no workload; use one of: key-value random-stores")),
        }
    }
}

/// The arguments of a run. An empty list or a `None` stands for the benchmark's own default.
#[derive(Clone, Debug)]
pub struct Args {
    /// Where the files are made. They are removed at the end, also after an error. Default: the shared-memory file
    /// system if `UNTORN_ASSUME_PMEM=1`, else the current directory.
    pub dir: Option<PathBuf>,
    /// Bytes of one access. Default 64, 256, 1024 and 4096.
    pub sizes: Vec<usize>,
    /// Numbers of threads. Default 1 and 2; for `group-commit` 1, 2, 4 and 8.
    pub threads: Vec<usize>,
    /// Engines. Default: the one the medium decides on.
    pub engines: Vec<EngineKind>,
    /// Orders. Default: both on persistent memory, and the library's default where the order makes no difference.
    pub orders: Vec<Order>,
    /// Access patterns. Default: both.
    pub patterns: Vec<Pattern>,
    /// Durability of `atomic-write`; the other benchmarks have their own. Default: per write on persistent memory, per
    /// commit (a commit after each write) on a block medium.
    pub durability: Option<Durability>,
    /// What the hybrid-log engine logs. Default: hybrid; in `hybrid-policy` all three.
    pub log_policies: Vec<LogPolicy>,
    /// The most bytes its log may take. Default: the library's.
    pub log_size: Option<u64>,
    /// The share of writes, in percent, from which on it logs redo. Default: the library's.
    pub redo_from: Option<u8>,
    /// Threads with which it checkpoints. Default: the library's.
    pub checkpointers: Option<usize>,
    /// Accesses to one commit in `atomic-commit` and `hybrid-policy`.
    pub commit_every: u32,
    /// Blocks written before the commit that `commit-time` measures. Default 10, 1000 and 100000; pages stored to before that of
    /// `map-commit` and `region-flush`, default 1, 10, 100 and 1000; pages of a region in `region-ops`, default 1 and 64.
    pub dirty: Vec<u64>,
    /// Shares of reads in `hybrid-policy`, in percent. Default 0, 20, 40, 60, 80 and 100. In `redundancy` that of the key-value
    /// workload, default 50.
    pub reads: Vec<u32>,
    /// Workloads of `redundancy`. Default: both.
    pub workloads: Vec<Workload>,
    /// Seconds from one pass to the next in `redundancy`. Default 1 and 30, of random stores 1 and 60.
    pub periods: Vec<f64>,
    /// Which pages share a parity page in `redundancy`. Default: consecutive ones.
    pub stripe_layout: untorn::StripeLayout,
    /// Operations a second that take the processors whole in `redundancy`'s key-value workload; with 0 there is no work beside
    /// the accesses. Default 20000.
    pub rate: Option<u64>,
    /// Length of the file in bytes. Default 1 GiB on persistent memory, 64 MiB on a block medium; of `redundancy` 1 GiB and
    /// of `redundancy-pass` 4 GiB on both, of `redundancy-kernels` 256 MiB of memory.
    pub file_len: Option<u64>,
    /// Seconds to measure each row for; it sets the number of slices, never below 15 of each arm. In `idle`, the seconds
    /// to lie idle, default 3; in `redundancy`, the seconds that each row runs at least, default the longest period.
    pub seconds: Option<f64>,
    /// Accesses in each slice and thread at most, where a run must be of a fixed amount instead of a fixed time.
    pub ops: Option<u64>,
    /// Seed of the random offsets.
    pub seed: u64,
}

impl Default for Args {
    fn default() -> Self {
        Args {
            dir: None,
            sizes: Vec::new(),
            threads: Vec::new(),
            engines: Vec::new(),
            orders: Vec::new(),
            patterns: Vec::new(),
            durability: None,
            log_policies: Vec::new(),
            log_size: None,
            redo_from: None,
            checkpointers: None,
            commit_every: 100,
            dirty: Vec::new(),
            reads: Vec::new(),
            workloads: Vec::new(),
            periods: Vec::new(),
            stripe_layout: untorn::StripeLayout::default(),
            rate: None,
            file_len: None,
            seconds: None,
            ops: None,
            seed: 1,
        }
    }
}

/// The list, or the default where it is empty.
pub(crate) fn or_default<T: Clone>(list: &[T], default: &[T]) -> Vec<T> {
    if list.is_empty() { default.to_vec() } else { list.to_vec() }
}

impl Args {
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

    /// Refuses what no run could satisfy, before any file is made.
    pub(crate) fn validate(&self, sizes: &[usize], threads: &[usize], file_len: u64) -> Result<()> {
        let pages = file_len / 4096;
        if !file_len.is_multiple_of(4096) || pages == 0 {
            return Err(Error::usage(format!("the file's length must be a multiple of 4096 bytes, not {file_len}")));
        }
        if let Some(&threads) = threads.iter().find(|&&threads| threads == 0 || threads as u64 > pages) {
            return Err(Error::usage(format!("{threads} threads cannot share {pages} pages; use 1 to {pages}")));
        }
        let most = threads.iter().max().map_or(file_len, |&threads| pages / threads as u64 * 4096);
        if let Some(&size) = sizes.iter().find(|&&size| size == 0 || size as u64 > most) {
            return Err(Error::usage(format!("accesses of {size} bytes do not fit; use 1 to {most}")));
        }
        if self.commit_every == 0 {
            return Err(Error::usage("a commit after every 0 writes; use 1 or more"));
        }
        if let Some(&dirty) = self.dirty.iter().find(|&&dirty| dirty == 0 || dirty > pages) {
            return Err(Error::usage(format!("{dirty} blocks cannot be dirty in a file of {pages}; use 1 to {pages}")));
        }
        if let Some(&reads) = self.reads.iter().find(|&&reads| reads > 100) {
            return Err(Error::usage(format!("{reads} reads of 100 accesses; use 0 to 100")));
        }
        if let Some(&period) = self.periods.iter().find(|&&period| !(period > 0.0 && period <= 86_400.0)) {
            return Err(Error::usage(format!("a period of {period} seconds; use more than 0 and at most 86400")));
        }
        if self.seconds.is_some_and(|seconds| !(seconds > 0.0 && seconds <= 86_400.0)) {
            return Err(Error::usage("the seconds to measure must be above 0 and at most 86400"));
        }
        if self.ops == Some(0) {
            return Err(Error::usage("slices of 0 accesses measure nothing; use 1 or more"));
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
        assert!("sums".parse::<Workload>().unwrap_err().contains("key-value"));
        assert!("backwards".parse::<Pattern>().unwrap_err().contains("sequential"));
    }

    #[test]
    fn what_cannot_run_is_refused() {
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
        assert!(Args { commit_every: 0, ..Args::default() }.validate(&[64], &[1], 4096).is_err());
    }
}
