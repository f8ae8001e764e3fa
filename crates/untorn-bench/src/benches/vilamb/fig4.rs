//! `vilamb-fig4`: YCSB A, B and C on a server of records (§4.2).

use std::sync::Arc;

use super::{
    Benchmark, Job, Load, Memory, NOTE, OPTIONS, Operation, Outcome, Progress, Result, compare_load, together,
};
use crate::args::Pattern;
use crate::benches::redundancy::{FIELD, RECORD, turns_in, work};
use crate::compare::{Point, Setting, X};
use crate::offsets::mix;
use crate::zipf::Zipf;

pub(crate) const BENCHMARK: Benchmark = Benchmark::new(
    "vilamb-fig4",
    "Vilamb, figure 4: throughput and latency of YCSB A, B and C, without redundancy, behind stores, at once",
    OPTIONS,
    run,
)
.of_len(1 << 30);

const PERIODS: [f64; 3] = [1.0, 5.0, 10.0];

const SERVER_NOTE: &str = "the paper has Redis with 1M records in 10 GB, and 20 clients over the network. Here a \
                           loop over records of 1 KiB in the mapping, with 50 us of work for each request as a \
                           server has, Zipf keys, and updates of 100 bytes. Latencies are those of reads and updates \
                           together, without the passes";

/// The cost of a server's request besides its accesses: Redis answers some 20,000 a second.
const WORK: std::time::Duration = std::time::Duration::from_micros(50);

/// Requests for records.
pub(super) struct Requests {
    /// Reads in 100.
    reads: u64,
    zipf: Zipf,
    /// Rounds of work for a request.
    turns: u64,
}

impl Requests {
    pub(super) fn new(reads: u64, records: u64) -> Self {
        Requests { reads, zipf: Zipf::new(records), turns: turns_in(WORK) }
    }
}

impl Load for Requests {
    fn operation<'a>(&'a self, memory: Memory<'a>, thread: usize, setting: &'a Setting) -> Result<Operation<'a>> {
        let (mut record, value) = ([0; RECORD as usize], [0xa5; FIELD]);
        let (seed, mut count) = (mix(setting.seed) ^ thread as u64, 0_u64);
        Ok(Box::new(move |_| {
            count += 1;
            let random = mix(seed.wrapping_add(count << 8));
            let at = self.zipf.key(random) * RECORD;
            if mix(random) % 100 < self.reads {
                memory.read(at, &mut record)?;
                std::hint::black_box(&record);
            } else {
                memory.store(at + random % (RECORD / FIELD as u64) * FIELD as u64, &value)?;
            }
            work(self.turns);
            Ok(())
        }))
    }
}

/// YCSB's core workloads that the paper has, with the reads in 100 requests.
pub(super) const WORKLOADS: [(&str, u64); 3] = [("YCSB-A", 50), ("YCSB-B", 95), ("YCSB-C", 100)];

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let records = job.file_len() / RECORD;
    let mut outcomes = Vec::new();
    for (name, reads) in WORKLOADS {
        for threads in job.args.choose(&job.args.threads, &[1]) {
            let point = Point {
                workload: name.to_owned(),
                x: X::number("threads", "", threads as f64),
                records,
                size: RECORD as usize,
                threads,
                pattern: Pattern::Random,
            };
            outcomes.push(compare_load(job, &PERIODS, Arc::new(Requests::new(reads, records)), &[point], progress));
        }
    }
    together(outcomes, &[NOTE, SERVER_NOTE])
}
