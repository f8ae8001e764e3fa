//! `redundancy`: the cost of detecting and periodically covering a program's stores, compared with the same program on
//! an unwatched mapping, in turns. The workloads are those of the Vilamb paper (§4.2, §4.5).
//!
//! An arm that covers every 30 seconds runs in slices of a second like the others; its period counts its own running
//! time. The cost of a pass is then in one slice of thirty, so the results are sums over whole periods, not medians of
//! slices.

use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use untorn::redundancy::{ProtectOptions, Protected, StripeLayout, Tracker, track};
use untorn::testing::storage::{Access, Dax, DaxFile, Medium, MediumFile, MediumKind};

use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases};
use super::{Progress, redundancy_map};
use crate::args::{Pattern, Workload};
use crate::cpu::{process_time, thread_time};
use crate::error::{Error, Result};
use crate::offsets::{Offsets, Region, mix};
use crate::raw::Target;
use crate::report::{RedundancyRow, Row, Vulnerable};
use crate::rig::Rig;
use crate::stats::median;
use crate::zipf::Zipf;

const PAGE: u64 = 4096;
/// Bytes of a record of the key-value workload, and of the field that an update stores, as in YCSB.
pub(super) const RECORD: u64 = 1024;
pub(super) const FIELD: usize = 100;
const RATE: u64 = 20_000;
const READS: u32 = 50;
/// The number of samples of vulnerable stripes per period.
const LOOKS: u32 = 20;
/// Random stores between two checks for the end of the slice.
const BATCH: usize = 64;

/// The default periods of a workload in seconds: those with documented figures.
pub(super) fn periods(workload: Workload) -> &'static [f64] {
    match workload {
        Workload::KeyValue => &[1.0, 30.0],
        Workload::RandomStores => &[1.0, 60.0],
    }
}

/// Stores to every page of a mapping through it, so that each is in its page table.
pub(super) fn touch(memory: &DaxFile, len: u64) -> Result<()> {
    Ok((0..len).step_by(PAGE as usize).try_for_each(|offset| memory.store(offset, &[0x5a; 64]))?)
}

/// The program's workload.
pub(super) struct Load {
    pub(super) workload: Workload,
    pub(super) threads: usize,
    /// Bytes of a random store.
    size: usize,
    pub(super) len: u64,
    pub(super) zipf: Zipf,
    /// Reads per 100 operations.
    pub(super) reads: u64,
    /// Rounds of [`work`] per operation.
    pub(super) turns: u64,
    pub(super) seed: u64,
    /// The pages that share a parity page.
    pub(super) layout: StripeLayout,
}

/// The work of a server per request, besides its data accesses.
pub(super) fn work(turns: u64) {
    black_box((0..black_box(turns)).fold(turns, |sum, _| mix(sum)));
}

/// The number of rounds of [`work`] that take this long.
pub(super) fn turns_in(time: Duration) -> u64 {
    const TURNS: u64 = 200_000;
    let once = |_| {
        let before = thread_time();
        work(TURNS);
        thread_time() - before
    };
    // The fastest run was disturbed least.
    let fastest = (0..9).map(once).min().unwrap_or_default().as_secs_f64().max(1e-9);
    (time.as_secs_f64() / fastest * TURNS as f64) as u64
}

impl Load {
    /// Runs one thread until it has to stop. Returns its number of operations.
    fn run(&self, memory: &DaxFile, thread: usize, slice: u64, stop: &AtomicBool) -> untorn::Result<u64> {
        let seed = mix(self.seed) ^ mix(slice * 1024 + thread as u64);
        match self.workload {
            Workload::KeyValue => self.serve(memory, seed, stop),
            Workload::RandomStores => self.store(memory, seed, stop),
        }
    }

    fn serve(&self, memory: &DaxFile, seed: u64, stop: &AtomicBool) -> untorn::Result<u64> {
        let (mut record, value) = ([0; RECORD as usize], [0xa5; FIELD]);
        for ops in 0.. {
            if stop.load(Ordering::Relaxed) {
                return Ok(ops);
            }
            let random = mix(seed.wrapping_add(ops));
            let at = self.zipf.key(random) * RECORD;
            if mix(random) % 100 < self.reads {
                memory.read(at, &mut record)?;
                black_box(&record);
            } else {
                memory.store(at + random % (RECORD / FIELD as u64) * FIELD as u64, black_box(&value))?;
            }
            work(self.turns);
        }
        Ok(0)
    }

    fn store(&self, memory: &DaxFile, seed: u64, stop: &AtomicBool) -> untorn::Result<u64> {
        let value = vec![0xa5; self.size];
        let mut offsets = Offsets::new(Pattern::Random, Region { base: 0, len: self.len }, self.size, seed);
        let mut ops = 0;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..BATCH {
                memory.store(offsets.next(), black_box(&value))?;
            }
            ops += BATCH as u64;
        }
        Ok(ops)
    }

    /// Runs all threads while `meanwhile` runs. Returns their number of operations and its result.
    fn beside<R>(
        &self,
        memory: &DaxFile,
        slice: u64,
        meanwhile: impl FnOnce() -> untorn::Result<R>,
    ) -> untorn::Result<(u64, R)> {
        let stop = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || self.run(memory, thread, slice, stop));
            let threads: Vec<_> = (0..self.threads).map(spawn).collect();
            let done = meanwhile();
            stop.store(true, Ordering::Relaxed);
            let mut ops = 0;
            for thread in threads {
                match thread.join() {
                    Ok(counted) => ops += counted?,
                    Err(panic) => std::panic::resume_unwind(panic),
                }
            }
            done.map(|done| (ops, done))
        })
    }
}

/// How stores are handled.
enum Watch {
    Off,
    Tracking(Arc<dyn Tracker>),
    On(Protected),
}

impl Watch {
    fn pass(&self) -> untorn::Result<()> {
        match self {
            Watch::Off => Ok(()),
            Watch::Tracking(tracker) => tracker.take().map(drop),
            Watch::On(protected) => protected.sync(),
        }
    }
}

/// One side of the comparison.
struct Arm {
    // This field is dropped before the mapping, which must exist as long as it is watched.
    watch: Watch,
    memory: DaxFile,
    period: Option<Duration>,
    /// Its running time.
    clock: Duration,
    cpu: Duration,
    ops: u64,
    /// When the next pass is due, in that time.
    due: Duration,
    passes: Vec<f64>,
    slices: usize,
    done: bool,
}

impl Arm {
    fn new(watch: Watch, memory: DaxFile, period: Option<Duration>) -> untorn::Result<Self> {
        // From here on the period counts.
        watch.pass()?;
        let due = period.unwrap_or(Duration::MAX);
        let (clock, cpu) = (Duration::ZERO, Duration::ZERO);
        Ok(Arm { watch, memory, period, clock, cpu, ops: 0, due, passes: Vec::new(), slices: 0, done: false })
    }

    /// Runs a slice. It ends after `limit` (or after the pass in progress then), or with the first pass after `least`
    /// in total.
    fn slice(&mut self, load: &Load, number: u64, limit: Duration, least: Duration) -> untorn::Result<()> {
        let (before, start, clock) = (process_time(), Instant::now(), self.clock);
        let Arm { watch, memory, period, due, passes, done, .. } = self;
        let (ops, ()) = load.beside(memory, number, || {
            loop {
                let now = start.elapsed();
                match period.filter(|_| *due <= clock + now) {
                    Some(period) => {
                        let begun = Instant::now();
                        watch.pass()?;
                        passes.push(begun.elapsed().as_secs_f64());
                        let ended = clock + start.elapsed();
                        *due = ended + period;
                        if ended >= least {
                            *done = true;
                            return Ok(());
                        }
                    }
                    None if now >= limit => return Ok(()),
                    None => sleep(due.saturating_sub(clock).min(limit) - now),
                }
            }
        })?;
        self.clock += start.elapsed();
        self.cpu += process_time() - before;
        self.ops += ops;
        self.slices += 1;
        Ok(())
    }

    fn ops_per_s(&self) -> f64 {
        self.ops as f64 / self.clock.as_secs_f64().max(1e-9)
    }

    fn ops_per_cpu_s(&self) -> f64 {
        self.ops as f64 / self.cpu.as_secs_f64().max(1e-9)
    }

    /// Samples the vulnerable stripes over two periods, and measures the time to cover everything afterwards.
    fn over_time(&self, load: &Load, number: u64) -> untorn::Result<Option<Exposure>> {
        let (Watch::On(protected), Some(period)) = (&self.watch, self.period) else { return Ok(None) };
        protected.sync()?;
        let start = Instant::now();
        let mut looks = Vec::new();
        let look = |looks: &mut Vec<Vulnerable>| -> untorn::Result<_> {
            let coverage = protected.coverage()?;
            looks.push(Vulnerable {
                seconds: start.elapsed().as_secs_f64(),
                uncovered_pages: coverage.uncovered,
                vulnerable_stripes: coverage.vulnerable_stripes,
            });
            Ok(coverage)
        };
        load.beside(&self.memory, number, || {
            for cycle in 0..2 {
                for _ in 0..LOOKS {
                    sleep(period / LOOKS);
                    look(&mut looks)?;
                }
                if cycle == 0 {
                    protected.sync()?;
                    look(&mut looks)?;
                }
            }
            Ok(())
        })?;
        let while_stored: Vec<f64> = looks.iter().map(|look| look.vulnerable_stripes as f64).collect();
        let mean = while_stored.iter().sum::<f64>() / while_stored.len() as f64;
        let stopped = Instant::now();
        protected.sync()?;
        let full_coverage_s = stopped.elapsed().as_secs_f64();
        let coverage = look(&mut looks)?;
        let pages = (coverage.pages + coverage.stripes) as f64;
        let gain = pages / (mean * (f64::from(coverage.stripe) + 1.0));
        Ok(Some(Exposure { stripes: coverage.stripes, mean, gain, full_coverage_s, looks }))
    }
}

struct Exposure {
    stripes: u64,
    /// The number of vulnerable stripes.
    mean: f64,
    gain: f64,
    full_coverage_s: f64,
    looks: Vec<Vulnerable>,
}

/// The periods of a quick run.
const QUICK_PERIODS: [f64; 1] = [1.0];

/// `redundancy`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "redundancy",
    "workloads on a mapping and on an atomic map, with periodic redundancy, compared with none",
    &["size", "threads", "reads", "workload", "period", "layout", "rate", "len", "seconds", "seed"],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
)
.of_len(1 << 30);

const NOTE: &str = "overhead: the loss in operations per second compared with redundancy off; cpu overhead: the loss \
                    in operations per second of processor time, which other programs disturb less; tracking: stores \
                    are detected, but nothing is covered; vulnerable: mean number of stripes over two periods; covered \
                    after: time from the last store, if a pass begins at that moment";

/// Why a mapping cannot be protected on persistent memory.
pub(super) const UNWATCHED: &str = "use a --dir on a disk or tmpfs: here untorn cannot detect stores to a mapping";

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    if job.detected.kind == MediumKind::PersistentMemory {
        return Err(job.wrong_medium(UNWATCHED));
    }
    if job.args.reads.len() > 1 {
        return Err(Error::usage("redundancy takes one value of --reads"));
    }
    let cases = Case::all(job.args, &Cases { sizes: &[64], threads: &[2], patterns: &[Pattern::Random] });
    // The files of all periods are open at once.
    let periods = if job.args.periods.is_empty() { 2 } else { job.args.periods.len() as u64 };
    let rig = job.rig(target, &cases, periods, 0, progress)?;
    Ok(Outcome { rows: run(&rig, &cases, progress)?, notes: vec![NOTE.to_owned()] })
}

fn run<T: Target>(rig: &Rig<'_, T>, cases: &[Case], progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let workloads = rig.args.choose(&rig.args.workloads, &[Workload::KeyValue, Workload::RandomStores]);
    let mut rows = Vec::new();
    let total = (cases.len() * workloads.len()) as u64;
    let mut done = 0;
    for case in cases {
        for &workload in &workloads {
            let mut tell = |what: &str| progress(done, total, &format!("{workload}, {} threads: {what}", case.threads));
            rows.extend(compare(rig, case, workload, &mut tell)?);
            done += 1;
        }
    }
    progress(total, total, "done");
    Ok(rows)
}

fn compare<T: Target>(
    rig: &Rig<'_, T>,
    case: &Case,
    workload: Workload,
    tell: &mut dyn FnMut(&str),
) -> Result<Vec<Row>> {
    let args = rig.args;
    let default = if args.quick { &QUICK_PERIODS[..] } else { periods(workload) };
    let periods: Vec<Duration> = args.choose(&args.periods, default).into_iter().map(Duration::from_secs_f64).collect();
    let (shortest, longest) = periods
        .iter()
        .fold((Duration::MAX, Duration::ZERO), |(low, high), &period| (low.min(period), high.max(period)));
    let least = args.seconds.map_or(longest, Duration::from_secs_f64);
    // A slice is as long as the shortest period, unless too few slices would be left to take turns.
    let limit = shortest.min(least / 10);
    let offered = args.rate.unwrap_or(RATE);
    let offered = (workload == Workload::KeyValue && offered > 0).then_some(offered);
    let load = Load {
        layout: args.stripe_layout.unwrap_or_default(),
        workload,
        threads: case.threads,
        size: case.size,
        len: rig.file_len,
        zipf: Zipf::new(rig.file_len / RECORD),
        reads: args.reads.first().copied().unwrap_or(READS).into(),
        turns: offered.map_or(0, |rate| turns_in(Duration::from_secs_f64(case.threads as f64 / rate as f64))),
        seed: args.seed(),
    };
    tell("covering the files");
    let mut arms = vec![Arm::new(Watch::Off, map(rig, "raw")?, None)?];
    for (nth, &period) in periods.iter().enumerate() {
        // This arm only tracks stores, so it can use the same file in another mapping.
        let memory = map(rig, "raw")?;
        let tracker = track(memory.address(), rig.file_len as usize)?;
        arms.push(Arm::new(Watch::Tracking(tracker), memory, Some(period))?);
        let name = format!("protected-{nth}");
        drop(rig.plain(&name)?);
        let memory = map(rig, &name)?;
        let protected =
            ProtectOptions::new().layout(load.layout).on_demand().mapping(memory.address(), rig.file_len as usize)?;
        arms.push(Arm::new(Watch::On(protected), memory, Some(period))?);
    }
    tell("running");
    for round in 0_u64.. {
        for turn in 0..arms.len() {
            let at = if round % 2 == 0 { turn } else { arms.len() - 1 - turn };
            if !arms[at].done {
                arms[at].slice(&load, round, limit, least)?;
            }
        }
        if arms.iter().all(|arm| arm.done || arm.period.is_none()) {
            break;
        }
    }
    let mut rows = Vec::new();
    for arm in &arms {
        tell("measuring vulnerable stripes");
        let exposure = arm.over_time(&load, u64::MAX >> 11)?;
        rows.push(row(rig.file_len, &load, offered, &arms[0], arm, exposure));
    }
    for arm in arms {
        let Arm { watch, memory, .. } = arm;
        if let Watch::On(protected) = watch {
            protected.close()?;
        }
        drop(memory);
    }
    for nth in 0..periods.len() {
        let path = rig.place(&format!("protected-{nth}"));
        untorn::unprotect(&path)?;
        std::fs::remove_file(&path).map_err(|source| crate::Error::io("remove", &path, source))?;
    }
    if workload == Workload::KeyValue {
        tell("running on an atomic map");
        rows.extend(redundancy_map::compare(rig, &load, offered, &periods, (limit, least))?);
    }
    Ok(rows)
}

/// A shared mapping of a file with every page in memory.
fn map<T: Target>(rig: &Rig<'_, T>, name: &str) -> Result<DaxFile> {
    // On a disk too: it stores to a mapping as the program does.
    let memory = Dax::new(MediumKind::AssumedPmem).open(&rig.place(name), Access::ReadWrite, rig.file_len)?;
    touch(&memory, rig.file_len)?;
    Ok(memory)
}

fn row(file_len: u64, load: &Load, offered: Option<u64>, off: &Arm, arm: &Arm, exposure: Option<Exposure>) -> Row {
    let lost = |ours: f64, theirs: f64| 1.0 - ours / theirs;
    Row::Redundancy(Box::new(RedundancyRow {
        workload: load.workload.as_str(),
        system: "plain-mapping",
        redundancy: match arm.watch {
            Watch::Off => "off",
            Watch::Tracking(_) => "tracking",
            Watch::On(_) => "on",
        },
        period_s: arm.period.map(|period| period.as_secs_f64()),
        file_len,
        threads: load.threads,
        offered_per_s: offered,
        ops_per_s: arm.ops_per_s(),
        cpu_us_per_op: 1e6 / arm.ops_per_cpu_s(),
        overhead: lost(arm.ops_per_s(), off.ops_per_s()),
        cpu_overhead: lost(arm.ops_per_cpu_s(), off.ops_per_cpu_s()),
        seconds: arm.clock.as_secs_f64(),
        passes: arm.passes.len(),
        pass_s: arm.period.map(|_| median(&arm.passes)),
        stripes: exposure.as_ref().map(|exposure| exposure.stripes),
        vulnerable_stripes: exposure.as_ref().map(|exposure| exposure.mean),
        mttdl_gain: exposure.as_ref().map(|exposure| exposure.gain),
        full_coverage_s: exposure.as_ref().map(|exposure| exposure.full_coverage_s),
        over_time: exposure.map(|exposure| exposure.looks).unwrap_or_default(),
        slices: arm.slices,
    }))
}
