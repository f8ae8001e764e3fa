//! `acumen-fig3`: Fig. 3 of the Acumen paper: random reads and writes in six mixes, and what the writes store.
//!
//! The paper runs Fio's `mmap` engine over a file of 8 GB on Optane memory, on Acumen, Libnvmmio and NOVA. Here each of
//! them has the engine that takes its place: `reflection`, `hybrid-log` and `shadow`, all in user space, so `shadow`
//! lacks the system calls and page faults that NOVA has. The paper's text names the mixes with 0 and 80 % of reads; the
//! other four stand at even distances.

use untorn::options::ReadPolicy;
use untorn::{EngineKind, Options};

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Pattern;
use crate::compare::{self, Atomic, Contender, Mixed, Point, Raws, X};
use crate::error::{Error, Result};
use crate::plot::Metric;
use crate::report::{ComparisonRow, Row};

/// `acumen-fig3`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "acumen-fig3",
    "Fig. 3 of the Acumen paper: accesses of 64 B to 4 KiB, 0 to 100 % reads, and the bytes that writes store",
    &["size", "threads", "pattern", "reads", "system", "len", "seconds", "ops", "seed"],
    run,
)
.of_len(64 << 20)
.plotting(Metric::MibPerS);

/// Shares of reads in percent.
const READS: [u32; 6] = [0, 20, 40, 60, 80, 100];
const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 4096];

fn contenders(job: &Job<'_>, reads: u32) -> Vec<Box<dyn Contender>> {
    let atomic = |engine| -> Box<dyn Contender> { Box::new(Mixed { contender: Atomic::new(engine), reads }) };
    // As in the paper, a read brings what it finds in a reflection page home.
    let deploying = Atomic {
        engine: EngineKind::Reflection,
        suffix: "-deploying",
        options: Options::new().read_policy(ReadPolicy::Deploy),
    };
    vec![
        Box::new(Mixed { contender: Raws { is_pmem: job.is_pmem() }, reads }),
        atomic(EngineKind::Reflection),
        Box::new(Mixed { contender: deploying, reads }),
        atomic(EngineKind::HybridLog),
        atomic(EngineKind::Shadow),
    ]
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mixes = job.args.choose(&job.args.reads, &READS);
    let mut outcome = Outcome::default();
    for (done, &reads) in (0..).zip(&mixes) {
        let points = points(job, reads)?;
        let (before, total) = (done * points.len() as u64, (mixes.len() * points.len()) as u64);
        let mut step = |done: u64, _: u64, what: &str| progress(before + done, total, what);
        let found = compare::run(job, &contenders(job, reads), &points, &mut step)?;
        outcome.rows.extend(found.rows.into_iter().map(|row| with_bytes(row, reads)));
        for note in found.notes {
            if !outcome.notes.contains(&note) {
                outcome.notes.push(note);
            }
        }
    }
    outcome.notes.push(
        "`shadow` stands for NOVA and `hybrid-log` for Libnvmmio; `-deploying` reads as Acumen does; the paper had \
         Fio, 8 GB and Optane memory"
            .to_owned(),
    );
    let economy = economy(&outcome.rows);
    outcome.notes.extend(economy);
    Ok(outcome)
}

fn points(job: &Job<'_>, reads: u32) -> Result<Vec<Point>> {
    let mut points = Vec::new();
    for pattern in job.args.choose(&job.args.patterns, &[Pattern::Random]) {
        for threads in job.args.choose(&job.args.threads, &[1]) {
            for size in job.args.choose(&job.args.sizes, &SIZES) {
                if size == 0 {
                    return Err(Error::usage("--size is 0; use 1 or more"));
                }
                points.push(Point {
                    workload: format!("{reads} % reads, {pattern}, threads: {threads}"),
                    x: X::number("size", " B", size as f64),
                    records: (job.file_len() / size as u64).max(1),
                    size,
                    threads,
                    pattern,
                });
            }
        }
    }
    Ok(points)
}

/// Adds the bytes stored for each byte that the user wrote.
fn with_bytes(row: Row, reads: u32) -> Row {
    match row {
        Row::Comparison(mut row) => {
            let written = row.size as f64 * f64::from(100 - reads) / 100.0;
            row.bytes_per_user_byte = row.per_op.bytes_stored.filter(|_| written > 0.0).map(|stored| stored / written);
            Row::Comparison(row)
        }
        other => other,
    }
}

/// The paper's sentence on 1 KiB writes, with the numbers of this run, if it had them.
fn economy(rows: &[Row]) -> Option<String> {
    let stored = |system: &str| {
        let is_it = |row: &&ComparisonRow| {
            row.size == 1024 && row.workload.starts_with("0 % reads, random") && row.system == system
        };
        let comparisons =
            rows.iter().filter_map(|row| if let Row::Comparison(row) = row { Some(&**row) } else { None });
        comparisons.into_iter().find(is_it)?.bytes_per_user_byte
    };
    let reflection = stored("untorn-reflection")?;
    let of = |other: f64| 100.0 * reflection / other;
    Some(format!(
        "random writes of 1 KiB: reflection stores {reflection:.2} bytes for one of the user's, {:.1} % of what \
         hybrid-log and {:.1} % of what shadow stores; in the paper 48.6 % of Libnvmmio and 20.2 % of NOVA",
        of(stored("untorn-hybrid-log")?),
        of(stored("untorn-shadow")?)
    ))
}
