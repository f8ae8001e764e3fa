//! The benchmarks, by name.

mod group_commit;
mod read;
mod write;

use untorn::medium::{Detected, MediumKind, detect};
use untorn::{Durability, EngineKind, LogPolicy, Options, Order, ReadPolicy};

use crate::args::{Args, Pattern, or_default};
use crate::counting::Counters;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::measure::{Arm, Plan, run_once};
use crate::offsets::{Offsets, Region, mix};
use crate::raw::{Block, Pmem, Target};
use crate::report::{CopyRow, Report, Row};
use crate::rig::{Rig, file_len};
use crate::stats::{median, pairwise};

/// Called with the steps done, the steps in all, and what is being done.
pub(crate) type Progress<'p> = dyn FnMut(u64, u64, &str) + 'p;

/// The benchmarks and what each shows, in a line.
pub fn names() -> &'static [(&'static str, &'static str)] {
    &[
        ("atomic-write", "atomic writes, each durable on return, against raw copies with a fence each"),
        ("atomic-commit", "writes with a commit every 100, against raw copies with a fence every 100"),
        ("atomic-read", "reads of settled and of reflected pages, against memcpy from an identical mapping"),
        ("group-commit", "threads that write and sync one file on a disk: commits a second, flush rounds a commit"),
    ]
}

/// Runs a benchmark. `progress` is called with the steps done, the steps in all, and what is being done.
///
/// # Errors
/// [`Error::UnknownBench`], [`Error::Usage`], [`Error::WrongMedium`] and [`Error::NoSpace`] before anything is made;
/// the others from the run. The files of the run are removed in any case.
pub fn run(name: &str, args: &Args, progress: &mut dyn FnMut(u64, u64, &str)) -> Result<Report> {
    let Some(&(bench, _)) = names().iter().find(|&&(known, _)| known == name) else {
        return Err(Error::UnknownBench { name: name.to_owned() });
    };
    let dir = args.dir();
    let detected = detect(&dir)?;
    match detected.kind {
        kind @ (MediumKind::PersistentMemory | MediumKind::AssumedPmem) => {
            run_on(Pmem(kind), bench, args, &detected, progress)
        }
        kind @ (MediumKind::Block | MediumKind::Volatile) => run_on(Block(kind), bench, args, &detected, progress),
    }
}

fn run_on<T: Target>(
    target: T,
    bench: &'static str,
    args: &Args,
    detected: &Detected,
    progress: &mut Progress<'_>,
) -> Result<Report> {
    let dir = args.dir();
    if bench == "group-commit" && is_pmem(target) {
        let instead = "choose a directory on a disk";
        return Err(Error::WrongMedium { bench, dir, medium: detected.kind.as_str(), instead });
    }
    let cases = Case::all(args, bench);
    let sizes: Vec<usize> = cases.iter().map(|case| case.size).collect();
    let threads: Vec<usize> = cases.iter().map(|case| case.threads).collect();
    args.validate(&sizes, &threads, file_len(args, target.kind()))?;
    progress(0, 1, "writing the raw file");
    let rig = Rig::new(target, args, &dir)?;
    let mut rows = match bench {
        "atomic-write" => write::each(&rig, &cases, progress)?,
        "atomic-commit" => write::epochs(&rig, &cases, progress)?,
        "atomic-read" => read::run(&rig, &cases, progress)?,
        _ => group_commit::run(&rig, &cases, progress)?,
    };
    add_scaling(&mut rows);
    let notes = notes(bench, detected.kind);
    Ok(Report { bench, machine: Machine::look(&dir, detected), notes, rows })
}

fn is_pmem<T: Target>(target: T) -> bool {
    matches!(target.kind(), MediumKind::PersistentMemory | MediumKind::AssumedPmem)
}

/// What a reader of the numbers must know.
fn notes(bench: &str, kind: MediumKind) -> Vec<String> {
    let mut notes = Vec::new();
    match kind {
        MediumKind::AssumedPmem => notes.push(
            "not durable: the mapping is taken for persistent memory because UNTORN_ASSUME_PMEM=1 says so".to_owned(),
        ),
        MediumKind::Volatile => {
            notes.push(
                "not durable: this file system keeps nothing over a power cut, and its flushes cost nothing".to_owned(),
            );
        }
        _ => {}
    }
    if matches!(kind, MediumKind::Block | MediumKind::Volatile) && bench != "atomic-read" {
        notes.push("the raw arm is pwrite and fdatasync: this is no persistent memory".to_owned());
    }
    notes
}

/// One combination of what rows differ in, within one configuration of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Case {
    size: usize,
    threads: usize,
    pattern: Pattern,
}

impl Case {
    fn all(args: &Args, bench: &str) -> Vec<Case> {
        let (sizes, threads, patterns) = match bench {
            "group-commit" => (&[256][..], &[1, 2, 4, 8][..], &[Pattern::Random][..]),
            _ => (&[64, 256, 1024, 4096][..], &[1, 2][..], &[Pattern::Random, Pattern::Sequential][..]),
        };
        let mut cases = Vec::new();
        for pattern in or_default(&args.patterns, patterns) {
            for size in or_default(&args.sizes, sizes) {
                for threads in or_default(&args.threads, threads) {
                    cases.push(Case { size, threads, pattern });
                }
            }
        }
        cases
    }

    /// The walk of a thread in a round; the same for every arm.
    fn walk(&self, args: &Args, file_len: u64, thread: usize, round: usize) -> Offsets {
        let region = Region::of_thread(file_len, thread, self.threads);
        let seed = mix(args.seed) ^ mix((round * 1024 + thread) as u64);
        Offsets::new(self.pattern, region, self.size, seed)
    }

    fn describe(&self, what: &str) -> String {
        format!(
            "{what}: {} B, {} thread{}, {}",
            self.size,
            self.threads,
            if self.threads == 1 { "" } else { "s" },
            self.pattern
        )
    }
}

/// How the file of some rows is opened.
#[derive(Clone, Copy, Debug)]
struct Setup {
    engine: EngineKind,
    order: Order,
    durability: Durability,
    read_policy: ReadPolicy,
    log_policy: Option<LogPolicy>,
    log_size: Option<u64>,
}

impl Setup {
    /// Every engine in every order. On a block medium the order of an atomic write makes no difference.
    fn all<T: Target>(rig: &Rig<'_, T>, durability: Durability) -> Vec<Setup> {
        let both = [Order::OneFence, Order::TwoFence];
        let orders = if is_pmem(rig.target) { &both[..] } else { &both[..1] };
        let mut setups = Vec::new();
        for engine in or_default(&rig.args.engines, &[EngineKind::Auto]) {
            for order in or_default(&rig.args.orders, orders) {
                let Args { log_policy, log_size, .. } = *rig.args;
                setups.push(Setup { engine, order, durability, read_policy: ReadPolicy::Gather, log_policy, log_size });
            }
        }
        setups
    }

    fn options(&self) -> Options {
        let mut options = Options::new().engine(self.engine).order(self.order).durability(self.durability);
        if let Some(policy) = self.log_policy {
            options = options.log_policy(policy);
        }
        if let Some(bytes) = self.log_size {
            options = options.log_size(bytes);
        }
        options.read_policy(self.read_policy)
    }

    /// A row with the rates of the first arm against the second, and against the third as the bare one.
    fn row(&self, engine: EngineKind, case: &Case, rates: &[Vec<f64>]) -> CopyRow {
        let ratio = pairwise(&rates[0], &rates[1]);
        let bare = rates.get(2);
        CopyRow {
            engine: engine.as_str(),
            order: self.order.as_str(),
            size: case.size,
            threads: case.threads,
            pattern: case.pattern.as_str(),
            durability: self.durability.as_str(),
            commit_every: None,
            state: None,
            read_policy: None,
            ops_per_s: median(&rates[0]),
            raw_ops_per_s: median(&rates[1]),
            ratio: ratio.median,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
            bare_ops_per_s: bare.map(|bare| median(bare)),
            bare_ratio: bare.map(|bare| pairwise(&rates[0], bare).median),
            scaling_vs_raw: None,
            fences_per_op: 0.0,
            flushes_per_op: 0.0,
            bytes_per_op: 0.0,
            pairs: rates[0].len(),
        }
    }
}

/// Runs an arm once and puts what it cost on the medium into the row.
fn count(
    row: &mut CopyRow,
    plan: &Plan,
    counters: &Counters,
    arm: &Arm<'_>,
    walk: impl Fn(usize) -> Offsets + Sync,
) -> Result<()> {
    let before = counters.counts();
    let ops = run_once(plan, arm, walk)? as f64;
    let counts = counters.counts() - before;
    row.fences_per_op = (counts.fences + counts.syncs) as f64 / ops;
    row.flushes_per_op = counts.flushes as f64 / ops;
    row.bytes_per_op = counts.bytes as f64 / ops;
    Ok(())
}

/// Gives each row of several threads its scaling against raw's: the ratio of the ratios, because each ratio was
/// measured interleaved while the rates of two rows were seconds apart.
fn add_scaling(rows: &mut [Row]) {
    let alone: Vec<CopyRow> = rows.iter().filter_map(Row::as_copy).filter(|row| row.threads == 1).cloned().collect();
    for row in rows.iter_mut().filter_map(Row::as_copy_mut).filter(|row| row.threads > 1) {
        let one = alone.iter().find(|one| one.same_but_threads(row));
        row.scaling_vs_raw = one.map(|one| row.ratio / one.ratio);
    }
}

#[cfg(test)]
mod tests;
