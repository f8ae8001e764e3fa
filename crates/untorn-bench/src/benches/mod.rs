//! The benchmarks, by name.

mod commit_time;
#[cfg(feature = "sqlite")]
mod databases;
mod group_commit;
mod idle;
mod map_commit;
mod policy;
mod read;
mod redundancy;
mod redundancy_kernels;
mod redundancy_map;
mod redundancy_pass;
mod region_ops;
mod write;

use std::collections::BTreeMap;

use untorn::options::{LogPolicy, Order, ReadPolicy};
use untorn::testing::storage::{Detected, MediumKind, detect};
use untorn::{Durability, EngineKind, Options};

use crate::args::{Args, Pattern, or_default};
use crate::counting::Counters;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::measure::{Arm, Plan, Series, run_once};
use crate::offsets::{Offsets, Region, mix};
use crate::raw::{Block, Pmem, Target};
use crate::report::{CopyRow, Report, Row};
use crate::rig::{Rig, file_len};
use crate::stats::{median, pairwise};

/// The name of the file of a benchmark that has one at a time.
const FILE: &str = "atomic";

/// Called with the number of steps done, the total number of steps, and the current step.
pub(crate) type Progress<'p> = dyn FnMut(u64, u64, &str) + 'p;

/// The benchmarks, with a one-line description each.
pub fn names() -> &'static [(&'static str, &'static str)] {
    &[
        ("atomic-write", "atomic writes, each durable on return, compared with raw copies with a fence each"),
        ("atomic-commit", "writes with a commit every 100, compared with raw copies with a fence every 100"),
        ("atomic-read", "reads of settled and reflected pages, compared with memcpy from an identical mapping"),
        (
            "commit-time",
            "one commit after 10, 1,000 and 100,000 written blocks, compared with a fence after as many raw copies",
        ),
        ("hybrid-policy", "4 KiB reads and writes under undo, redo and hybrid logging, from 0 % to 100 % reads"),
        ("map-commit", "a commit of plain stores into a map, compared with msync or a cache-line flush of a mapping"),
        ("region-flush", "the same with a region of a store: libpmem's pmem_flush benchmark, ported as in the paper"),
        ("region-ops", "create, allocate, map, unmap, free and delete regions, compared with files synced by fsync"),
        ("redundancy", "workloads on a mapping and on an atomic map, with periodic redundancy, compared with none"),
        ("redundancy-pass", "processor time of a redundancy pass over an unmodified file"),
        ("redundancy-kernels", "checksums and parity of uncached memory, compared with reading it"),
        ("idle", "processor time of an open but unused file"),
        ("group-commit", "threads that write and sync one file on a disk: commits per second, flush rounds per commit"),
        ("ycsb", "YCSB's load and workloads A to F on SQLite: untorn's VFS, a write-ahead log, a rollback journal"),
        ("tpcc", "TPC-C on SQLite in the same ways"),
        ("acumen-fig4", "Fig. 4 of the Acumen paper: ycsb with pages of 512 to 4096 bytes"),
        ("acumen-fig5", "Fig. 5 of the Acumen paper: tpcc with 1, 2 and 4 threads and pages of 512 to 4096 bytes"),
    ]
}

/// Runs a benchmark. It calls `progress` with the number of steps done, the total number of steps, and the current
/// step.
///
/// # Errors
/// [`Error::UnknownBench`], [`Error::Usage`], [`Error::WrongMedium`] and [`Error::NoSpace`] before any file is created;
/// the others during the run. The files of the run are removed in any case.
pub fn run(name: &str, args: &Args, progress: &mut dyn FnMut(u64, u64, &str)) -> Result<Report> {
    let Some(&(bench, _)) = names().iter().find(|&&(known, _)| known == name) else {
        return Err(Error::UnknownBench { name: name.to_owned() });
    };
    let dir = args.dir();
    let detected = detect(&dir)?;
    if is_of_databases(bench) {
        return databases(bench, args, &detected, progress);
    }
    match detected.kind {
        kind @ (MediumKind::PersistentMemory | MediumKind::AssumedPmem) => {
            run_on(Pmem(kind), bench, args, &detected, progress)
        }
        kind @ (MediumKind::Block | MediumKind::Volatile) => run_on(Block(kind), bench, args, &detected, progress),
    }
}

fn is_of_databases(bench: &str) -> bool {
    matches!(bench, "ycsb" | "tpcc" | "acumen-fig4" | "acumen-fig5")
}

#[cfg(feature = "sqlite")]
fn databases(bench: &'static str, args: &Args, detected: &Detected, progress: &mut Progress<'_>) -> Result<Report> {
    let (rows, more) = databases::run(bench, args, progress)?;
    let notes = notes(bench, detected.kind, &rows).into_iter().chain(more).collect();
    Ok(Report { bench, machine: Machine::look(&args.dir(), detected), notes, rows })
}

#[cfg(not(feature = "sqlite"))]
fn databases(bench: &'static str, _: &Args, _: &Detected, _: &mut Progress<'_>) -> Result<Report> {
    Err(Error::usage(format!(
        "this build has no SQLite, which {bench} needs; build the tool with `--features untorn-cli/sqlite`"
    )))
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
        let instead = "use a --dir on a disk";
        return Err(Error::WrongMedium { bench, dir, medium: detected.kind.as_str(), instead });
    }
    if bench == "hybrid-policy" && !is_pmem(target) {
        let instead =
            "use a --dir on persistent memory, or set UNTORN_ASSUME_PMEM=1: on other media the log is always redo";
        return Err(Error::WrongMedium { bench, dir, medium: detected.kind.as_str(), instead });
    }
    if matches!(bench, "redundancy" | "redundancy-pass") && detected.kind == MediumKind::PersistentMemory {
        let instead = "use a --dir on a disk or tmpfs: here untorn cannot detect stores to a mapping";
        return Err(Error::WrongMedium { bench, dir, medium: detected.kind.as_str(), instead });
    }
    if matches!(
        bench,
        "commit-time"
            | "idle"
            | "map-commit"
            | "redundancy-kernels"
            | "redundancy-pass"
            | "region-flush"
            | "region-ops"
    ) && args.threads.iter().any(|&threads| threads != 1)
    {
        return Err(Error::usage(format!("{bench} runs one thread; omit --threads")));
    }
    // The cost of a commit does not grow with the file, but the cost of detecting stores does.
    let args = &Args { file_len: args.file_len.or(own_len(bench)), ..args.clone() };
    let cases = Case::all(args, bench);
    let sizes: Vec<usize> = cases.iter().map(|case| case.size).collect();
    let threads: Vec<usize> = cases.iter().map(|case| case.threads).collect();
    args.validate(&sizes, &threads, file_len(args, target.kind()))?;
    if bench == "redundancy-kernels" {
        let rows = redundancy_kernels::run(args, file_len(args, target.kind()), progress)?;
        return Ok(Report { bench, machine: Machine::look(&dir, detected), notes: Vec::new(), rows });
    }
    progress(0, 1, "writing the raw file");
    // Each policy is measured on its own file, all open at once.
    let files = match bench {
        "hybrid-policy" => policy::ALL.len() as u64,
        "redundancy" => or_default(&args.periods, &[0.0; 2]).len() as u64,
        _ => 1,
    };
    // The model of the protocol is measured on separate files.
    let raws = u64::from(is_pmem(target) && matches!(bench, "atomic-write" | "atomic-commit"));
    let rig = Rig::new(target, args, &dir, files, raws)?;
    let mut rows = match bench {
        "atomic-write" => write::each(&rig, &cases, progress)?,
        "atomic-commit" => write::epochs(&rig, &cases, progress)?,
        "atomic-read" => read::run(&rig, &cases, progress)?,
        "commit-time" => commit_time::run(&rig, &cases, progress)?,
        "map-commit" => map_commit::run::<T, untorn::AtomicMap>(&rig, &cases, progress)?,
        "region-flush" => map_commit::run::<T, map_commit::Whole>(&rig, &cases, progress)?,
        "region-ops" => region_ops::run(&rig, &Machine::look(&dir, detected).fs, progress)?,
        "hybrid-policy" => policy::run(&rig, &cases, progress)?,
        "redundancy" => redundancy::run(&rig, &cases, progress)?,
        "redundancy-pass" => redundancy_pass::run(&rig, progress)?,
        "idle" => idle::run(&rig, progress)?,
        _ => group_commit::run(&rig, &cases, progress)?,
    };
    add_scaling(&mut rows);
    let notes = notes(bench, detected.kind, &rows);
    Ok(Report { bench, machine: Machine::look(&dir, detected), notes, rows })
}

/// The default length of the file or memory, for benchmarks with their own default.
fn own_len(bench: &str) -> Option<u64> {
    match bench {
        "redundancy" => Some(1 << 30),
        "redundancy-pass" => Some(4 << 30),
        "redundancy-kernels" => Some(256 << 20),
        _ => is_of_pages(bench).then_some(64 << 20),
    }
}

/// Whether a benchmark counts dirty pages.
fn is_of_pages(bench: &str) -> bool {
    matches!(bench, "map-commit" | "region-flush" | "region-ops")
}

fn is_pmem<T: Target>(target: T) -> bool {
    matches!(target.kind(), MediumKind::PersistentMemory | MediumKind::AssumedPmem)
}

/// Whether an engine has threads that continue to work after its calls have returned.
fn has_background(engine: EngineKind) -> bool {
    engine == EngineKind::HybridLog
}

/// Notes that a reader of the numbers needs.
fn notes(bench: &str, kind: MediumKind, rows: &[Row]) -> Vec<String> {
    let mut notes = Vec::new();
    match kind {
        MediumKind::AssumedPmem => notes
            .push("not durable: UNTORN_ASSUME_PMEM=1 makes untorn treat the mapping as persistent memory".to_owned()),
        MediumKind::Volatile => {
            notes.push(
                "not durable: this file system loses all data in a power cut, and its flushes cost nothing".to_owned(),
            );
        }
        _ => {}
    }
    if rows.iter().filter_map(Row::as_copy).any(|row| row.bare_ratio.is_some()) {
        notes.push(
            "ratio: compared with raw copies with one locked instruction each, the minimum of any scheme with a lock; \
             bare \
             ratio: compared with raw copies without it; both with a fence at each commit"
                .to_owned(),
        );
    }
    if rows.iter().filter_map(Row::as_copy).any(|row| row.model_ratio.is_some()) {
        notes.push(
            "model: for a write, a loop that stores the bytes of the engine's protocol and fences as often, without \
             lookups, \
             checksums and checkpoints, and with at most one locked instruction; for a read, a copy between two reads \
             of a \
             word; model ratio: the model compared with raw copies, the upper bound of ratio on this machine; of \
             model: \
             untorn compared with the model"
                .to_owned(),
        );
    }
    if rows.iter().filter_map(Row::as_copy).any(|row| row.log_policy.is_some()) {
        notes.push(
            "cpu ratio: accesses per processor time of all threads, including checkpoints after a slice; bytes/op and \
             fences/op include a checkpoint of everything written in the counted window"
                .to_owned(),
        );
    }
    if bench == "redundancy" {
        notes.push(
            "overhead: the loss in operations per second compared with redundancy off; cpu overhead: the loss in \
             operations \
             per second of processor time, which other programs disturb less; tracking: stores are detected, but \
             nothing \
             is covered; vulnerable: mean number of stripes over two periods; covered after: time from the last \
             store, if a \
             pass begins at that moment"
                .to_owned(),
        );
        return notes;
    }
    if bench == "redundancy-pass" {
        return notes;
    }
    if bench == "region-ops" {
        notes.push(
            "ratio: the file system's rate compared with untorn's; 1 or less if untorn is at least as fast. Each file \
             step \
             ends with fsync, and with fsync of the directory if a name changes; map opens the file and loads from \
             each \
             page"
                .to_owned(),
        );
        return notes;
    }
    if is_of_pages(bench) {
        notes.push(
            "time ratio: the commit's time compared with that of msync(MS_SYNC), or on persistent memory of a flush \
             of every \
             cache line of the pages and a fence, after the same stores; pages/s: stores and commits back to back, \
             including \
             deferred writes to the file"
                .to_owned(),
        );
        return notes;
    }
    if matches!(kind, MediumKind::Block | MediumKind::Volatile) && !matches!(bench, "atomic-read" | "idle") {
        notes.push("the raw arm is pwrite and fdatasync, because the medium is not persistent memory".to_owned());
    }
    notes
}

/// One combination of a row's parameters, within one configuration of the file.
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
            "map-commit" | "region-flush" | "region-ops" => (&[1, 4096][..], &[1][..], &[Pattern::Random][..]),
            "redundancy" => (&[64][..], &[2][..], &[Pattern::Random][..]),
            "commit-time" | "redundancy-pass" | "redundancy-kernels" => (&[64][..], &[1][..], &[Pattern::Random][..]),
            "hybrid-policy" | "idle" => (&[4096][..], &[1][..], &[Pattern::Random][..]),
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

    /// A thread's walk in a round; the same for every arm.
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

/// How the file of a group of rows is opened.
#[derive(Clone, Copy, Debug)]
struct Setup {
    engine: EngineKind,
    order: Order,
    durability: Durability,
    read_policy: ReadPolicy,
    /// The policy of the hybrid-log engine.
    log_policy: Option<LogPolicy>,
}

impl Setup {
    /// Every engine in every order and, if it has one, under every log policy. On a block medium the order of an atomic
    /// write makes no difference.
    fn all<T: Target>(rig: &Rig<'_, T>, durability: Durability) -> Vec<Setup> {
        Self::all_of(rig, durability, &[EngineKind::Auto])
    }

    /// The same, with `engines` as the default.
    fn all_of<T: Target>(rig: &Rig<'_, T>, durability: Durability, engines: &[EngineKind]) -> Vec<Setup> {
        let both = [Order::OneFence, Order::TwoFence];
        let orders = if is_pmem(rig.target) { &both[..] } else { &both[..1] };
        let mut setups = Vec::new();
        for engine in or_default(&rig.args.engines, engines) {
            let policies = match engine {
                EngineKind::HybridLog => {
                    or_default(&rig.args.log_policies, &[LogPolicy::Hybrid]).into_iter().map(Some).collect()
                }
                _ => vec![None],
            };
            for log_policy in policies {
                for order in or_default(&rig.args.orders, orders) {
                    setups.push(Setup { engine, order, durability, read_policy: ReadPolicy::Gather, log_policy });
                }
            }
        }
        setups
    }

    fn options(&self, args: &Args) -> Options {
        let options = Options::new().engine(self.engine).order(self.order).durability(self.durability);
        let options = options.read_policy(self.read_policy).log_policy(self.log_policy.unwrap_or_default());
        let options = args.log_size.map_or(options.clone(), |size| options.log_size(size));
        let options = args.redo_from.map_or(options.clone(), |percent| options.redo_threshold_percent(percent));
        args.checkpointers.map_or(options.clone(), |threads| options.checkpoint_threads(threads))
    }

    fn describe(&self, engine: EngineKind) -> String {
        match self.log_policy {
            Some(policy) => format!("{engine}, {policy}, {}", self.order),
            None => format!("{engine}, {}", self.order),
        }
    }

    /// A row with the rates of the first arm against the second.
    fn row(&self, engine: EngineKind, case: &Case, series: &[Series]) -> CopyRow {
        let (ours, raw) = (&series[0], &series[1]);
        let ratio = pairwise(&ours.per_s, &raw.per_s);
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
            log_policy: self.log_policy.map(LogPolicy::as_str),
            reads_percent: None,
            share_of_better: None,
            ops_per_s: median(&ours.per_s),
            raw_ops_per_s: median(&raw.per_s),
            ratio: ratio.median,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
            cpu_ratio: pairwise(&ours.per_cpu_s, &raw.per_cpu_s).median,
            bare_ops_per_s: None,
            bare_ratio: None,
            model_ops_per_s: None,
            model_ratio: None,
            share_of_model: None,
            scaling_vs_raw: None,
            scaling_vs_bare: None,
            cpu_scaling_vs_raw: None,
            fences_per_op: 0.0,
            flushes_per_op: 0.0,
            bytes_per_op: 0.0,
            bytes_per_user_byte: None,
            fences_per_commit: None,
            barriers_per_op: BTreeMap::new(),
            pairs: ours.per_s.len(),
        }
    }
}

impl CopyRow {
    /// Adds what a model of the protocol reaches beside these two.
    fn compare_to_model(&mut self, ours: &Series, raw: &Series, model: &Series) {
        self.model_ops_per_s = Some(median(&model.per_s));
        self.model_ratio = Some(pairwise(&model.per_s, &raw.per_s).median);
        self.share_of_model = Some(pairwise(&ours.per_s, &model.per_s).median);
    }
}

/// Runs an arm once, and `finish`, and puts what both cost on the medium into the row.
fn count(
    row: &mut CopyRow,
    plan: &Plan,
    counters: &Counters,
    arm: &Arm<'_>,
    walk: impl Fn(usize) -> Offsets + Sync,
    finish: impl Fn() -> Result<()>,
) -> Result<()> {
    // This window must not count the work that earlier windows left.
    finish()?;
    let (before, barriers) = (counters.counts(), counters.barriers());
    let ops = run_once(plan, arm, walk)? as f64;
    finish()?;
    let counts = counters.counts() - before;
    for (name, count) in counters.barriers() {
        let count = count - barriers.get(name).copied().unwrap_or(0);
        if count > 0 {
            row.barriers_per_op.insert(name, count as f64 / ops);
        }
    }
    row.fences_per_commit =
        row.commit_every.map(|every| (counts.fences + counts.syncs) as f64 / ops * f64::from(every));
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
        row.cpu_scaling_vs_raw = one.map(|one| row.cpu_ratio / one.cpu_ratio);
        let bare = one.and_then(|one| one.bare_ratio);
        row.scaling_vs_bare = bare.zip(row.bare_ratio).map(|(one, many)| many / one);
    }
}

#[cfg(test)]
mod tests;
