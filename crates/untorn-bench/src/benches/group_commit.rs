//! `group-commit`: threads that each write and sync one file on a disk.

use untorn::Durability;

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome, on_medium};
use super::cases::{Case, Cases, FILE, RAW_NOTE, Setup};
use crate::args::Pattern;
use crate::error::Result;
use crate::measure::{Arm, interleave};
use crate::raw::{Raw, Target};
use crate::report::{CommitRow, Row};
use crate::rig::Rig;
use crate::stats::{median, pairwise};

/// `group-commit`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "group-commit",
    "threads that write and sync one file on a disk: commits per second, flush rounds per commit",
    &[
        "size",
        "threads",
        "engine",
        "pattern",
        "log-policy",
        "log-size",
        "redo-from",
        "checkpointers",
        "len",
        "seconds",
        "ops",
        "seed",
    ],
    |job, progress| on_medium!(job.detected.kind, target => begin(target, job, progress)),
);

fn begin<T: Target>(target: T, job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    if job.is_pmem() {
        return Err(job.wrong_medium("use a --dir on a disk"));
    }
    let own = Cases { sizes: &[256], threads: &[1, 2, 4, 8], patterns: &[Pattern::Random] };
    let cases = Case::all(job.args, &own);
    let rig = job.rig(target, &cases, 1, 0, progress)?;
    Ok(Outcome { rows: run(&rig, &cases, progress)?, notes: job.if_block(RAW_NOTE) })
}

fn run<T: Target>(rig: &Rig<'_, T>, cases: &[Case], progress: &mut Progress<'_>) -> Result<Vec<Row>> {
    let setups = Setup::all(rig, Durability::PerCommit);
    let total = (setups.len() * (cases.len() + 1)) as u64;
    let mut done = 0;
    let mut step = |what: &str| {
        progress(done, total, what);
        done += 1;
    };
    let mut rows = Vec::new();
    for setup in &setups {
        step("writing every page once");
        rig.fresh(FILE, &setup.options(rig.args))?.close()?;
        // The number of threads that share a flush depends on timing, so count it in the timed run. Counting costs
        // nothing compared with a device flush.
        let (file, counters) = rig.counted(FILE, &setup.options(rig.args))?;
        let engine = file.info().engine;
        for case in cases {
            step(&case.describe(&format!("{engine}")));
            let commits = std::sync::atomic::AtomicU64::new(0);
            let arms = [
                Arm::new(
                    rig.batch(),
                    |buf, offset| {
                        file.write_at(buf, offset)?;
                        file.sync()?;
                        commits.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        Ok(())
                    },
                    || Ok(()),
                ),
                Arm::new(
                    rig.batch(),
                    |buf, offset| {
                        rig.raw.write(buf, offset)?;
                        rig.raw.fence()
                    },
                    || Ok(()),
                ),
            ];
            let plan = rig.timed(case.threads, case.size, arms.len(), false);
            let before = counters.counts();
            let series = interleave(&plan, &arms, |thread, round| case.walk(rig.args, rig.file_len, thread, round))?;
            let counts = counters.counts() - before;
            drop(arms);
            let commits = commits.into_inner().max(1) as f64;
            let ratio = pairwise(&series[0].per_s, &series[1].per_s);
            rows.push(Row::Commit(CommitRow {
                engine: engine.as_str(),
                size: case.size,
                threads: case.threads,
                pattern: case.pattern.as_str(),
                commits_per_s: median(&series[0].per_s),
                raw_commits_per_s: median(&series[1].per_s),
                ratio: ratio.median,
                ratio_low: ratio.low,
                ratio_high: ratio.high,
                flush_rounds_per_commit: (counts.fences + counts.syncs) as f64 / commits,
                flushes_per_commit: counts.flushes as f64 / commits,
                bytes_per_commit: counts.bytes as f64 / commits,
                pairs: plan.rounds,
            }));
        }
        file.close()?;
    }
    progress(total, total, "done");
    Ok(rows)
}
