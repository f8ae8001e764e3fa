//! `commit-time`: the time of one commit, by the number of blocks written before it.

use std::time::{Duration, Instant};

use untorn::options::LogPolicy;
use untorn::{AtomicFile, Durability, EngineKind};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases, FILE, RAW_NOTE, Setup};
use crate::args::Pattern;
use crate::cpu::quiesce;
use crate::error::Result;
use crate::measure::Buffer;
use crate::offsets::{Offsets, Region};
use crate::raw::{Raw, Target};
use crate::report::{CommitTimeRow, Row};
use crate::rig::Rig;
use crate::stats::{median, pairwise, quantile};

const DIRTY: [u64; 3] = [10, 1000, 100_000];

/// Commits counted per row. Their cost may depend on the file's position in its checkpoint cycle.
const COUNTED: u64 = 5;

/// The number of commits for each number of dirty blocks, so that two consecutive commits never write the same blocks.
struct Walks<'r, 'a, T: Target> {
    rig: &'r Rig<'a, T>,
    case: Case,
    done: u64,
}

impl<T: Target> Walks<'_, '_, T> {
    /// Writes one place in each of `dirty` blocks.
    fn write(&mut self, dirty: u64, mut write: impl FnMut(u64) -> untorn::Result<()>) -> Result<()> {
        let region = Region::of_thread(self.rig.file_len, 0, 1);
        let mut offsets = Offsets::each_page(self.case.pattern, region, self.case.size, self.done);
        (0..dirty).try_for_each(|_| write(offsets.next()))?;
        self.done += dirty;
        Ok(())
    }
}

/// `commit-time`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "commit-time",
    "one commit after 10, 1,000 and 100,000 written blocks, compared with a fence after as many raw copies",
    &[
        "size",
        "engine",
        "order",
        "pattern",
        "log-policy",
        "log-size",
        "redo-from",
        "checkpointers",
        "dirty",
        "len",
        "seconds",
    ],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
);

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let cases = Case::all(job.args, &Cases { sizes: &[64], threads: &[1], patterns: &[Pattern::Random] });
    let rig = job.rig(target, &cases, 1, 0, progress)?;
    Ok(Outcome { rows: run(&rig, &cases, progress)?, notes: job.if_block(RAW_NOTE) })
}

fn run<T: Target>(rig: &Rig<'_, T>, cases: &[Case], progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let setups = Setup::all_of(rig, Durability::PerCommit, &[EngineKind::Reflection, EngineKind::HybridLog]);
    let pages = |case: &Case| rig.file_len / case.size.next_multiple_of(4096) as u64;
    let total = (setups.len() * cases.len() * 3) as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        progress(done, total, what);
        done += 1;
    };
    let mut rows = Vec::new();
    for setup in &setups {
        for case in cases {
            let fit: Vec<u64> = DIRTY.into_iter().filter(|&dirty| dirty <= pages(case)).collect();
            let dirty = rig.args.choose(&rig.args.dirty, &fit);
            step("writing every page once");
            let file = rig.fresh(FILE, &setup.options(rig.args))?;
            let engine = file.info().engine;
            step(&case.describe(&setup.describe(engine)));
            let mut timed = time(rig, setup, case, &file, &dirty)?;
            file.close()?;
            step("counting fences, flushes and bytes");
            count(rig, setup, case, &mut timed)?;
            rows.extend(timed.into_iter().map(Row::CommitTime));
        }
    }
    progress(total, total, "done");
    Ok(rows)
}

fn time<T: Target>(
    rig: &Rig<'_, T>,
    setup: &Setup,
    case: &Case,
    file: &AtomicFile,
    dirty: &[u64],
) -> Result<Vec<CommitTimeRow>> {
    let mut buffer = Buffer::new(case.size);
    let bytes = buffer.bytes();
    let mut walks = Walks { rig, case: *case, done: 0 };
    let rounds = rig.timed(1, case.size, 2, false).rounds;
    let (mut ours, mut raw) = (vec![Vec::new(); dirty.len()], vec![Vec::new(); dirty.len()]);
    let clock = |act: &dyn Fn() -> Result<()>| -> Result<f64> {
        let start = Instant::now();
        act()?;
        Ok(nanoseconds(start.elapsed()))
    };
    for round in 0..=rounds {
        for turn in 0..dirty.len() {
            let which = if round % 2 == 0 { turn } else { dirty.len() - 1 - turn };
            walks.write(dirty[which], |offset| file.write_at(bytes, offset))?;
            let commit = clock(&|| Ok(file.sync().map(drop)?))?;
            // A following checkpoint must not disturb the next measurement.
            quiesce();
            walks.write(dirty[which], |offset| rig.raw.write(bytes, offset))?;
            let fence = clock(&|| Ok(rig.raw.fence()?))?;
            if round > 0 {
                ours[which].push(commit);
                raw[which].push(fence);
            }
        }
    }
    let fewest = (0..dirty.len()).min_by_key(|&which| dirty[which]).unwrap_or(0);
    let row = |which: usize| CommitTimeRow {
        engine: file.info().engine.as_str(),
        order: setup.order.as_str(),
        log_policy: setup.log_policy.map(LogPolicy::as_str),
        size: case.size,
        dirty_blocks: dirty[which],
        commit_ns: median(&ours[which]),
        commit_ns_low: quantile(&ours[which], 0.25),
        commit_ns_high: quantile(&ours[which], 0.75),
        raw_ns: median(&raw[which]),
        to_fewest: pairwise(&ours[which], &ours[fewest]).median,
        fences_per_commit: 0.0,
        flushes_per_commit: 0.0,
        bytes_per_commit: 0.0,
        pairs: ours[which].len(),
    };
    Ok((0..dirty.len()).map(row).collect())
}

/// Counts the work of the commits alone, without background work.
fn count<T: Target>(rig: &Rig<'_, T>, setup: &Setup, case: &Case, rows: &mut [CommitTimeRow]) -> Result<()> {
    let (file, counters) = rig.counted(FILE, &setup.options(rig.args).checkpoint_threads(0))?;
    let mut buffer = Buffer::new(case.size);
    let bytes = buffer.bytes();
    let mut walks = Walks { rig, case: *case, done: 0 };
    // The first commit after opening may have more to do than any later one.
    walks.write(1, |offset| file.write_at(bytes, offset))?;
    file.sync()?;
    for row in rows {
        for _ in 0..COUNTED {
            walks.write(row.dirty_blocks, |offset| file.write_at(bytes, offset))?;
            let before = counters.counts();
            file.sync()?;
            let counts = counters.counts() - before;
            row.fences_per_commit += (counts.fences + counts.syncs) as f64 / COUNTED as f64;
            row.flushes_per_commit += counts.flushes as f64 / COUNTED as f64;
            row.bytes_per_commit += counts.bytes as f64 / COUNTED as f64;
        }
    }
    file.close()?;
    Ok(())
}

fn nanoseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e9
}
