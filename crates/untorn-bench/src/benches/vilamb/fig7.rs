//! `vilamb-fig7`: overwriting 64 bytes and 4 KiB by a growing number of threads (§4.4).

use std::sync::Arc;

use super::{Benchmark, Job, Load, Memory, NOTE, Operation, Outcome, Progress, Result, compare_load, together};
use crate::args::Pattern;
use crate::compare::{Point, Setting, X};

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig7",
    "Vilamb, figure 7: overwriting 64 bytes and 4 KiB by 1 to 32 threads, without redundancy, behind stores, at once",
    &["size", "threads", "period", "system", "len", "seconds", "ops", "seed"],
    run,
)
.of_len(1 << 30);

const PERIODS: [f64; 3] = [1.0, 5.0, 10.0];

const STORE_NOTE: &str = "the paper overwrites in transactions of libpmemobj, 200,000 a thread, in 10 GB; here plain \
                          stores at random places, for a fixed time";

/// Overwrites records.
pub(super) struct Overwrites;

impl Load for Overwrites {
    fn operation<'a>(&'a self, memory: Memory<'a>, _: usize, setting: &'a Setting) -> Result<Operation<'a>> {
        let value = vec![0xa5; setting.size];
        Ok(Box::new(move |place| memory.store(place * setting.size as u64, &value)))
    }
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut points = Vec::new();
    for size in job.args.choose(&job.args.sizes, &[64, 4096]) {
        for threads in job.args.choose(&job.args.threads, &[1, 2, 4, 8, 16, 32]) {
            points.push(Point {
                workload: format!("overwrites of {size} bytes"),
                x: X::number("threads", "", threads as f64),
                records: job.file_len() / size.max(1) as u64,
                size,
                threads,
                pattern: Pattern::Random,
            });
        }
    }
    together([compare_load(job, &PERIODS, Arc::new(Overwrites), &points, progress)], &[NOTE, STORE_NOTE])
}
