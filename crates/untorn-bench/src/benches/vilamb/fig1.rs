//! `vilamb-fig1`: insertions of a key-value store by a growing number of threads.

use super::fig5::{Changes, Inserts, points};
use super::maps::Kind;
use super::{Benchmark, Job, NOTE, OPTIONS, Outcome, Progress, Result, compare_load, together};

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig1",
    "Vilamb, figure 1: insertions of a key-value store by 1 to 32 threads, without redundancy, behind stores, at once",
    OPTIONS,
    run,
)
.of_len(256 << 20);

/// The period of the figure.
const PERIODS: [f64; 1] = [1.0];

const STORE_NOTE: &str = "the paper's figure 1 has PMDK's red-black tree in transactions, 100,000 insertions a \
                          thread; here a crit-bit tree whose stores are not transactions, and insertions for a fixed \
                          time";

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let load = Changes::new(Kind::CritBit, Inserts::Only);
    let points = points(job, &load.name(), &[1, 2, 4, 8, 16, 32]);
    together([compare_load(job, &PERIODS, std::sync::Arc::new(load), &points, progress)], &[NOTE, STORE_NOTE])
}
