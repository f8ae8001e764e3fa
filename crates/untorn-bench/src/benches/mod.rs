//! The benchmarks. Each has a file of its own and an entry in [`ALL`].

mod acumen_fig3;
pub(crate) mod benchmark;
mod cases;
mod commit_time;
#[cfg(feature = "sqlite")]
mod databases;
mod group_commit;
mod idle;
mod libnvmmio;
mod map_commit;
#[cfg(feature = "sqlite")]
mod mobibench;
#[cfg(not(feature = "sqlite"))]
mod no_databases;
mod nvcache;
mod policy;
mod read;
mod recovery_time;
mod redb_readme;
mod redundancy;
mod redundancy_kernels;
mod redundancy_map;
mod redundancy_pass;
mod region_figures;
mod region_ops;
mod scale;
mod updates;
mod vilamb;
mod write;

#[cfg(not(feature = "sqlite"))]
use no_databases as databases;
#[cfg(not(feature = "sqlite"))]
use no_databases as mobibench;
use untorn::testing::storage::{Detected, MediumKind, detect};

use self::benchmark::{Benchmark, Job};
use crate::args::Args;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::report::Report;

/// Called with the number of steps done, the total number of steps, and the current step.
pub(crate) type Progress<'p> = dyn FnMut(u64, u64, &str) + 'p;

/// The benchmarks, in the order of the help.
static ALL: &[&Benchmark] = &[
    &write::EACH,
    &write::EPOCHS,
    &read::BENCHMARK,
    &commit_time::BENCHMARK,
    &policy::BENCHMARK,
    &map_commit::OF_MAPS,
    &map_commit::OF_REGIONS,
    &region_ops::BENCHMARK,
    &region_ops::FIG4,
    &region_figures::BENCHMARK,
    &redundancy::BENCHMARK,
    &redundancy_pass::BENCHMARK,
    &redundancy_kernels::BENCHMARK,
    &idle::BENCHMARK,
    &group_commit::BENCHMARK,
    &recovery_time::BENCHMARK,
    &updates::BENCHMARK,
    &redb_readme::BENCHMARK,
    &scale::THREADS,
    &scale::LENGTH,
    &scale::REGIONS,
    &scale::FILES,
    &vilamb::FIG1,
    &vilamb::FIG4,
    &vilamb::FIG5,
    &vilamb::FIG6,
    &vilamb::FIG7,
    &vilamb::FIG8,
    &vilamb::FIG9,
    &vilamb::MTTDL,
    &databases::YCSB,
    &databases::TPCC,
    &acumen_fig3::BENCHMARK,
    &databases::ACUMEN_FIG4,
    &databases::ACUMEN_FIG5,
    &nvcache::FIG3,
    &nvcache::FIG4,
    &nvcache::FIG5,
    &nvcache::FIG6,
    &nvcache::FIG7,
    &libnvmmio::FIG1,
    &libnvmmio::FIG6,
    &libnvmmio::FIG7,
    &libnvmmio::FIG8,
    &libnvmmio::FIG9,
    &libnvmmio::FIG10,
    &libnvmmio::TABLE2,
    &libnvmmio::FIG11,
    &mobibench::LIBNVMMIO_FIG12,
    &databases::LIBNVMMIO_FIG13,
    &databases::LIBNVMMIO_FIG14,
];

/// The benchmarks, with a one-line description each.
pub fn names() -> Vec<(&'static str, &'static str)> {
    ALL.iter().map(|benchmark| (benchmark.name, benchmark.about)).collect()
}

/// Runs a benchmark. It calls `progress` with the number of steps done, the total number of steps, and the current
/// step.
///
/// # Errors
/// [`Error::UnknownBench`], [`Error::Option`], [`Error::Usage`], [`Error::WrongMedium`] and [`Error::NoSpace`] before
/// any file is created; the others during the run. The files of the run are removed in any case.
pub fn run(name: &str, args: &Args, progress: &mut dyn FnMut(u64, u64, &str)) -> Result<Report> {
    let benchmark = find(name)?;
    benchmark.check_options(args)?;
    let detected = detect(&args.dir())?;
    run_on(benchmark, args, &detected, progress)
}

fn find(name: &str) -> Result<&'static Benchmark> {
    let found = ALL.iter().find(|benchmark| benchmark.name == name);
    found.copied().ok_or_else(|| Error::UnknownBench { name: name.to_owned() })
}

fn run_on(benchmark: &Benchmark, args: &Args, detected: &Detected, progress: &mut Progress<'_>) -> Result<Report> {
    let quick = benchmark.len.map(|len| if args.quick { len / QUICK_SHARE } else { len });
    let args = &Args { file_len: args.file_len.or(quick), ..args.clone() };
    let outcome = (benchmark.run)(&Job { benchmark, args, detected }, progress)?;
    let notes = args.quick.then(|| QUICK_NOTE.to_owned()).into_iter();
    let notes = notes.chain(medium_note(detected.kind)).chain(outcome.notes).collect();
    Ok(Report {
        bench: benchmark.name,
        quick: args.quick,
        machine: Machine::look(&args.dir(), detected),
        notes,
        rows: outcome.rows,
        metric: benchmark.metric,
    })
}

/// A quick run's file has this share of the default length.
pub(crate) const QUICK_SHARE: u64 = 16;

const QUICK_NOTE: &str = "a quick run: few rounds, a short file and few values; its quartiles are wide";

/// The note of a medium that keeps nothing in a power cut.
fn medium_note(kind: MediumKind) -> Option<String> {
    let note = match kind {
        MediumKind::AssumedPmem => {
            "not durable: UNTORN_ASSUME_PMEM=1 makes untorn treat the mapping as persistent memory"
        }
        MediumKind::Volatile => {
            "not durable: this file system loses all data in a power cut, and its flushes cost nothing"
        }
        MediumKind::PersistentMemory | MediumKind::Block => return None,
    };
    Some(note.to_owned())
}

#[cfg(test)]
mod tests;
