//! `updates`: durable updates of records at random places, by every system that can do them.

use untorn::EngineKind;

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Pattern;
use crate::compare::{self, Atomic, Contender, Point, Raws, X};
use crate::error::{Error, Result};

/// `updates`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "updates",
    "durable updates of records of 8 bytes, 100 bytes and 4 KiB at random places, by several systems in turns",
    &["size", "threads", "pattern", "system", "records", "len", "seconds", "ops", "seed"],
    run,
);

/// Records in a file are at most this many: a database of small values has tens of bytes beside each.
const MOST_RECORDS: u64 = 100_000;

fn contenders(job: &Job<'_>) -> Vec<Box<dyn Contender>> {
    vec![
        Box::new(Raws { is_pmem: job.is_pmem() }),
        Box::new(Atomic::new(EngineKind::Reflection)),
        Box::new(Atomic::new(EngineKind::HybridLog)),
    ]
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut points = Vec::new();
    for pattern in job.args.choose(&job.args.patterns, &[Pattern::Random]) {
        for threads in job.args.choose(&job.args.threads, &[1]) {
            for size in job.args.choose(&job.args.sizes, &[8, 100, 4096]) {
                if size == 0 {
                    return Err(Error::usage("--size is 0; use 1 or more"));
                }
                let fit = (job.file_len() / size as u64).clamp(1, MOST_RECORDS);
                points.push(Point {
                    workload: format!("{pattern} updates, threads: {threads}"),
                    x: X::number("size", " B", size as f64),
                    records: job.args.records.unwrap_or(fit),
                    size,
                    threads,
                    pattern,
                });
            }
        }
    }
    compare::run(job, &contenders(job), &points, progress)
}
