//! The experiments of the NVCache paper (arXiv 2105.10397, §IV), by their figures. A log in memory stands for one in
//! persistent memory, and the directory of the run for the paper's SSD.

mod stacks;

use std::time::Duration;

use self::stacks::{How, Stack, Work};
use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Pattern;
use crate::compare::{self, Alone, Contender, Point, X};
use crate::error::Result;

const TURNS: &[&str] = &["system", "len", "log-size", "seconds", "ops", "seed"];
const ALONE: &[&str] = &["system", "len", "log-size", "threads", "seconds", "ops", "seed"];
const LEN: u64 = 64 * MIB;
const MIB: u64 = 1 << 20;
/// Bytes of the log where its size does not matter.
const LOG: u64 = 512 * MIB;
const PAGE: usize = 4096;
/// The stacks of figures about the log.
const LOGS: [How; 3] = [How::DiskDirect, How::Log, How::LogThrough];

/// `nvcache-fig3`.
pub(super) const FIG3: Benchmark = Benchmark::new(
    "nvcache-fig3",
    "Fig. 3 of the NVCache paper: the calls of RocksDB and SQLite, on a disk and with a log in memory before it",
    TURNS,
    figure_3,
)
.of_len(LEN);

/// `nvcache-fig4`.
pub(super) const FIG4: Benchmark = Benchmark::new(
    "nvcache-fig4",
    "Fig. 4 of the NVCache paper: random writes over time, with a log that has room for all of them",
    ALONE,
    figure_4,
)
.of_len(LEN);

/// `nvcache-fig5`.
pub(super) const FIG5: Benchmark = Benchmark::new(
    "nvcache-fig5",
    "Fig. 5 of the NVCache paper: random writes over time, with logs of several sizes that fill up",
    ALONE,
    figure_5,
)
.of_len(LEN);

/// `nvcache-fig6`.
pub(super) const FIG6: Benchmark = Benchmark::new(
    "nvcache-fig6",
    "Fig. 6 of the NVCache paper: random writes over time, with several batches between two syncs of the disk",
    ALONE,
    figure_6,
)
.of_len(LEN);

/// `nvcache-fig7`.
pub(super) const FIG7: Benchmark =
    Benchmark::new("nvcache-fig7", "Fig. 7 of the NVCache paper: as many random reads as writes", TURNS, figure_7)
        .of_len(LEN);

/// How each of these differs from the paper.
const NOTE: &str = "the paper writes 20 GiB to a SATA SSD, with a log of up to 64 GiB on Optane. Here the files are in \
                    --dir, and the log is in /dev/shm: as fast as persistent memory, and not durable";

fn outcome(note: &str) -> Outcome {
    Outcome { rows: Vec::new(), notes: vec![NOTE.to_owned(), note.to_owned()] }
}

fn stacks(hows: &[How], work: Work, log: u64, batch: Option<u64>) -> Vec<Box<dyn Contender>> {
    let stack = |&how: &How| Box::new(Stack { how, work, log, batch }) as Box<dyn Contender>;
    hows.iter().map(stack).collect()
}

/// Bytes of the log where a figure has no other.
fn log(job: &Job<'_>) -> u64 {
    job.args.log_size.unwrap_or(LOG)
}

/// A point with records of a page in all of the file.
fn point(job: &Job<'_>, workload: &str, x: X) -> Point {
    let threads = job.args.threads.first().copied().unwrap_or(1);
    let records = (job.file_len() / PAGE as u64).max(1);
    Point { workload: workload.to_owned(), x, records, size: PAGE, threads, pattern: Pattern::Random }
}

/// Runs a point in turns, and adds what it gave.
fn add(all: &mut Outcome, more: Outcome) {
    all.rows.extend(more.rows);
    let new: Vec<String> = more.notes.into_iter().filter(|note| !all.notes.contains(note)).collect();
    all.notes.extend(new);
}

fn figure_3(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut all = outcome(
        "the paper runs db_bench on RocksDB and SQLite; here each workload makes the calls that one of their \
         operations makes of its files, with nothing between, so ratios are larger than those of whole databases",
    );
    let hows = [How::Disk, How::Log, How::LogThrough, How::Memory];
    let operations = [
        ("synchronous writes", "RocksDB fillsync", Work::Append, 116),
        ("synchronous writes", "SQLite transaction", Work::Journal, PAGE),
        ("synchronous writes", "overwrite of a page", Work::Write, PAGE),
        ("reads", "read of a page", Work::Read, PAGE),
    ];
    for (workload, operation, work, size) in job.args.choose(&[], &operations) {
        let point = Point { size, ..point(job, workload, X::category("operation", operation)) };
        add(&mut all, compare::run(job, &stacks(&hows, work, log(job), None), &[point], progress)?);
    }
    Ok(all)
}

/// Slices of a run over time.
fn over_time(job: &Job<'_>, most_ops: u64) -> Alone {
    let (slices, time) = if job.args.quick { (12, 100) } else { (40, 250) };
    let slices = job.args.seconds.map_or(slices, |seconds| ((seconds * 1e3 / time as f64) as usize).max(1));
    Alone { slices, time: Duration::from_millis(time), most_ops }
}

fn figure_4(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut all = outcome("slices_per_s of a row are its writes over time; the run ends before the log is full");
    let hows = [How::DiskDirect, How::Disk, How::Log, How::LogThrough, How::Memory];
    let point = point(job, "random writes of 4 KiB", X::number("log", " MiB", log(job) as f64 / MIB as f64));
    let plan = over_time(job, log(job) / PAGE as u64 * 3 / 4);
    add(&mut all, compare::run_alone(job, &stacks(&hows, Work::Write, log(job), None), &point, &plan, progress)?);
    Ok(all)
}

fn figure_5(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut all =
        outcome("slices_per_s of a row are its writes over time: they fall to the disk's rate with the log full");
    let asked: Vec<u64> = job.args.log_size.into_iter().collect();
    for bytes in job.args.choose(&asked, &[8 * MIB, 32 * MIB, 128 * MIB, 512 * MIB]) {
        let contenders = stacks(&LOGS, Work::Write, bytes, None);
        let point = point(job, "random writes of 4 KiB", X::number("log", " MiB", bytes as f64 / MIB as f64));
        add(&mut all, compare::run_alone(job, &contenders, &point, &over_time(job, u64::MAX), progress)?);
    }
    Ok(all)
}

fn figure_6(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut all = outcome("slices_per_s of a row are its writes over time; the log has 32 MiB without --log-size");
    for batch in job.args.choose(&[], &[1, 10, 100, 1000, 5000]) {
        let contenders = stacks(&LOGS, Work::Write, job.args.log_size.unwrap_or(32 * MIB), Some(batch));
        let point = point(job, "random writes of 4 KiB", X::number("batch", " entries", batch as f64));
        add(&mut all, compare::run_alone(job, &contenders, &point, &over_time(job, u64::MAX), progress)?);
    }
    Ok(all)
}

fn figure_7(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut all = outcome(
        "the paper varies its read cache and finds no effect; untorn has none, because the kernel's page cache and the \
         log in memory serve reads, so the length of the file varies here",
    );
    let hows = [How::Disk, How::Log, How::LogThrough, How::Memory];
    let len = job.file_len();
    for share in job.args.choose(&[], &[16, 4, 1]) {
        let records = (len / share / PAGE as u64).max(1);
        let mib = (records * PAGE as u64) as f64 / MIB as f64;
        let point = Point { records, ..point(job, "random reads and writes in turns", X::number("file", " MiB", mib)) };
        add(&mut all, compare::run(job, &stacks(&hows, Work::WriteOrRead, log(job), None), &[point], progress)?);
    }
    Ok(all)
}
