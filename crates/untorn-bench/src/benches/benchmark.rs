//! A benchmark: its name, the options that it honours, and what runs it.

use std::path::PathBuf;

use untorn::testing::storage::Detected;

use super::Progress;
use super::cases::Case;
use crate::args::{Args, COMMON};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::plot::Metric;
use crate::raw::Target;
use crate::report::Row;
use crate::rig::{self, Rig};

/// One entry of the table of benchmarks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Benchmark {
    /// Its name on the command line.
    pub(crate) name: &'static str,
    /// One line for the list of benchmarks.
    pub(crate) about: &'static str,
    /// The names of the options that it honours, besides those that every benchmark honours.
    pub(crate) takes: &'static [&'static str],
    /// Runs it.
    pub(crate) run: Run,
    /// The default length of its file, if not the medium's.
    pub(crate) len: Option<u64>,
    /// The quantity that its plot shows, if its rows are comparisons.
    pub(crate) metric: Metric,
}

/// Runs a benchmark.
pub(crate) type Run = fn(&Job<'_>, &mut Progress<'_>) -> Result<Outcome>;

impl Benchmark {
    /// A benchmark that honours the options `takes`, without their dashes.
    pub(crate) const fn new(name: &'static str, about: &'static str, takes: &'static [&'static str], run: Run) -> Self {
        Benchmark { name, about, takes, run, len: None, metric: Metric::OpsPerS }
    }

    /// The same with a default length of the file in bytes.
    pub(crate) const fn of_len(self, len: u64) -> Self {
        Benchmark { len: Some(len), ..self }
    }

    /// The same with another quantity in the plot.
    #[allow(dead_code, reason = "the figures of papers differ in it")]
    pub(crate) const fn plotting(self, metric: Metric) -> Self {
        Benchmark { metric, ..self }
    }

    /// Refuses arguments that the benchmark does not honour.
    pub(crate) fn check_options(&self, args: &Args) -> Result<()> {
        let honours = |option: &&str| COMMON.contains(option) || self.takes.contains(option);
        match args.given().into_iter().find(|option| !honours(option)) {
            Some(option) => {
                let takes = COMMON.iter().chain(self.takes).copied().collect();
                Err(Error::Option { bench: self.name, option, takes })
            }
            None => Ok(()),
        }
    }
}

/// The input of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<'a> {
    /// The benchmark.
    pub(crate) benchmark: &'a Benchmark,
    /// Its arguments, with the default length of its file.
    pub(crate) args: &'a Args,
    /// The medium of its directory.
    pub(crate) detected: &'a Detected,
}

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    /// The measurements.
    pub(crate) rows: Vec<Row>,
    /// Notes that a reader of them needs.
    pub(crate) notes: Vec<String>,
}

impl<'a> Job<'a> {
    /// The directory for the files.
    pub(crate) fn dir(&self) -> PathBuf {
        self.args.dir()
    }

    /// Describes the machine.
    pub(crate) fn machine(&self) -> Machine {
        Machine::look(&self.dir(), self.detected)
    }

    /// Whether the medium is persistent memory, or taken for it.
    pub(crate) fn is_pmem(&self) -> bool {
        rig::is_pmem(self.detected.kind)
    }

    /// The note, if the medium is not persistent memory.
    pub(crate) fn if_block(&self, note: &str) -> Vec<String> {
        if self.is_pmem() { Vec::new() } else { vec![note.to_owned()] }
    }

    /// The error of a benchmark that is meaningless on this medium.
    pub(crate) fn wrong_medium(&self, instead: &'static str) -> Error {
        let (bench, medium) = (self.benchmark.name, self.detected.kind.as_str());
        Error::WrongMedium { bench, dir: self.dir(), medium, instead }
    }

    /// The length of the file.
    pub(crate) fn file_len(&self) -> u64 {
        rig::file_len(self.args, self.detected.kind)
    }

    /// Checks the cases, and makes the raw file of a run with this many files under test and this many more raw files.
    pub(super) fn rig<T: Target>(
        &self,
        target: T,
        cases: &[Case],
        files: u64,
        raws: u64,
        progress: &mut Progress<'_>,
    ) -> Result<Rig<'a, T>> {
        let sizes: Vec<usize> = cases.iter().map(|case| case.size).collect();
        let threads: Vec<usize> = cases.iter().map(|case| case.threads).collect();
        self.args.validate(&sizes, &threads, self.file_len())?;
        progress(0, 1, "writing the raw file");
        Rig::new(target, self.args, &self.dir(), files, raws)
    }
}

/// Evaluates an expression with the target of this kind of medium, for functions that are compiled for each medium.
macro_rules! on_medium {
    ($kind:expr, $target:ident => $body:expr) => {
        match $kind {
            kind @ (untorn::testing::storage::MediumKind::PersistentMemory
            | untorn::testing::storage::MediumKind::AssumedPmem) => {
                let $target = $crate::raw::Pmem(kind);
                $body
            }
            kind @ (untorn::testing::storage::MediumKind::Block | untorn::testing::storage::MediumKind::Volatile) => {
                let $target = $crate::raw::Block(kind);
                $body
            }
        }
    };
}
pub(crate) use on_medium;

#[cfg(test)]
mod tests {
    use untorn::options::{LogPolicy, Order};
    use untorn::{Durability, EngineKind};

    use super::*;
    use crate::args::Pattern;
    use crate::benches;

    #[test]
    fn names_are_distinct_and_options_are_those_of_arguments() {
        let every = Args {
            dir: Some(".".into()),
            sizes: vec![1],
            threads: vec![1],
            engines: vec![EngineKind::Auto],
            orders: vec![Order::OneFence],
            patterns: vec![Pattern::Random],
            durability: Some(Durability::PerWrite),
            log_policies: vec![LogPolicy::Redo],
            log_size: Some(1),
            redo_from: Some(1),
            checkpointers: Some(1),
            commit_every: Some(1),
            dirty: vec![1],
            reads: vec![1],
            workloads: vec![crate::Workload::KeyValue],
            periods: vec![1.0],
            stripe_layout: Some(untorn::redundancy::StripeLayout::default()),
            rate: Some(1),
            file_len: Some(4096),
            seconds: Some(1.0),
            ops: Some(1),
            systems: vec!["untorn".to_owned()],
            page_sizes: vec![4096],
            records: Some(1),
            warehouses: Some(1),
            seed: Some(1),
            quick: true,
        };
        let options = every.given();
        assert_eq!(options.len(), 27, "an argument is not in the list of options");
        let mut names = std::collections::BTreeSet::new();
        for benchmark in benches::ALL {
            assert!(names.insert(benchmark.name), "{} is there twice", benchmark.name);
            assert!(!benchmark.about.is_empty());
            let unknown = benchmark.takes.iter().find(|option| !options.contains(option));
            assert_eq!(unknown, None, "an option that {} takes", benchmark.name);
            for option in &options {
                let is_taken = benchmark.takes.contains(option) || COMMON.contains(option);
                // No benchmark takes all of them, so each refuses one of its own.
                if !is_taken {
                    let error = benchmark.check_options(&every).unwrap_err().to_string();
                    assert!(error.contains(benchmark.name) && error.contains("does not take --"), "{error}");
                }
            }
        }
    }

    #[test]
    fn an_option_without_effect_is_refused_with_those_it_takes() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dir: Some(dir.path().to_owned()), dirty: vec![3], ..Args::default() };
        let error = benches::run("atomic-read", &args, &mut |_, _, _| ()).unwrap_err().to_string();
        assert!(error.starts_with("atomic-read does not take --dirty; it takes: --dir --quick --size"), "{error}");
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn a_quick_run_says_so_and_has_fewer_rows() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dir: Some(dir.path().to_owned()), quick: true, ops: Some(4), ..Args::default() };
        let args = Args { file_len: Some(64 * 4096), ..args };
        let json = benches::run("atomic-write", &args, &mut |_, _, _| ()).unwrap().to_json();
        assert_eq!(json["quick"], true);
        assert!(json["notes"][0].as_str().unwrap().contains("quick"));
        let rows = json["rows"].as_array().unwrap();
        assert!(rows.len().is_multiple_of(2 * 2 * 2), "two sizes, two numbers of threads, two patterns");
        assert!(rows.iter().all(|row| row["size"] == 64 || row["size"] == 4096), "the first and the last size");
        assert!(rows.iter().all(|row| row["pairs"] == 5), "{json}");
    }
}
