//! `vilamb-fig8`: reads and writes of cache lines as fio does them (§4.5).

use std::hint::black_box;
use std::sync::Arc;

use super::{
    Benchmark, Job, Load, Memory, NOTE, OPTIONS, Operation, Outcome, Progress, Result, compare_load, together,
};
use crate::args::Pattern;
use crate::compare::{Point, Setting, X};
use crate::offsets::mix;
use crate::zipf::Zipf;

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig8",
    "Vilamb, figure 8: random, sequential and Zipf reads and writes of cache lines, as fio does them",
    OPTIONS,
    run,
)
.of_len(1 << 30);

const PERIODS: [f64; 4] = [1.0, 10.0, 30.0, 60.0];

const FIO_NOTE: &str = "the paper has fio's libpmem engine on 16 GB, each line once, and no Pangolin, which has no \
                        such interface; here a loop, 1 GiB by default, and random lines may repeat";

/// Bytes of a cache line.
const LINE: u64 = 64;

/// Reads or writes of lines.
pub(super) struct Lines {
    writes: bool,
    zipf: Option<Zipf>,
}

impl Lines {
    pub(super) fn new(writes: bool, zipf: Option<Zipf>) -> Self {
        Lines { writes, zipf }
    }
}

impl Load for Lines {
    fn operation<'a>(&'a self, memory: Memory<'a>, thread: usize, setting: &'a Setting) -> Result<Operation<'a>> {
        let (mut line, mut count, seed) = ([0xa5; LINE as usize], 0_u64, mix(setting.seed) ^ thread as u64);
        Ok(Box::new(move |place| {
            let place = self.zipf.as_ref().map_or(place, |zipf| {
                count += 1;
                zipf.key(mix(seed.wrapping_add(count << 8)))
            });
            if self.writes {
                memory.store(place * LINE, black_box(&line))
            } else {
                memory.read(place * LINE, &mut line)?;
                black_box(&line);
                Ok(())
            }
        }))
    }
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let records = job.file_len() / LINE;
    let mut outcomes = Vec::new();
    for (kind, writes) in [("write-only", true), ("read-only", false)] {
        for access in ["random", "sequential", "zipf"] {
            for threads in job.args.choose(&job.args.threads, &[1]) {
                let pattern = if access == "sequential" { Pattern::Sequential } else { Pattern::Random };
                let x = X::category("pattern", access);
                let size = LINE as usize;
                let point = Point { workload: kind.to_owned(), x, records, size, threads, pattern };
                let zipf = (access == "zipf").then(|| Zipf::new(records));
                outcomes.push(compare_load(job, &PERIODS, Arc::new(Lines::new(writes, zipf)), &[point], progress));
            }
        }
    }
    together(outcomes, &[NOTE, FIO_NOTE])
}
