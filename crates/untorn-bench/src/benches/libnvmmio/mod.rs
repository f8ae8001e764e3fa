//! `libnvmmio-…`: the figures and the table of the Libnvmmio paper (§2, §4.2), each with the systems that run here.
//!
//! The paper's rivals PMFS, NOVA and SplitFS are kernel modules and a library for Linux 4.13 and 5.1, and Libnvmmio's
//! public code has no recovery. They are left out, which the report says. The file system of `--dir` stands in for
//! Ext4-DAX: it is that if the directory is on a DAX mount.

mod systems;

use untorn::options::LogPolicy;

use self::systems::{How, Load, System};
use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Pattern;
use crate::compare::{self, Contender, Point, X};
use crate::error::Result;
use crate::plot::Metric;

const TAKES: &[&str] = &["system", "len", "seconds", "ops", "seed"];

const LEFT_OUT: &str = "left out: PMFS, NOVA and SplitFS, which are modules of old kernels, and Libnvmmio's own code, \
                        which has no recovery; pread-pwrite is the file system of --dir";

/// Bytes of an access, where the paper does not vary them.
const BLOCK: usize = 4096;

const WRITES: Load = Load { reads: 0, interval: 100, private: false };

const ALL: [How; 4] = [How::Calls, How::Mapping, How::Log(LogPolicy::Hybrid), How::Reflection];

const POLICIES: [How; 4] =
    [How::Mapping, How::Log(LogPolicy::Undo), How::Log(LogPolicy::Redo), How::Log(LogPolicy::Hybrid)];

/// `libnvmmio-fig1`.
pub(super) const FIG1: Benchmark = Benchmark::new(
    "libnvmmio-fig1",
    "Fig. 1 of the Libnvmmio paper: sequential 4 KiB reads by system call, from a mapping and through untorn",
    TAKES,
    |job, progress| {
        let load = Load { reads: 100, interval: 0, private: false };
        let point = Line { load, x: X::category("access", "sequential read"), ..Line::default() };
        run(job, &ALL, &[point], "the paper: one file of 16 GB on Optane memory", progress)
    },
);

/// `libnvmmio-fig6`.
pub(super) const FIG6: Benchmark = Benchmark::new(
    "libnvmmio-fig6",
    "Fig. 6 of the Libnvmmio paper: undo, redo and hybrid logging from 0 % to 100 % reads",
    &["system", "reads", "len", "seconds", "ops", "seed"],
    |job, progress| {
        let mut lines = Vec::new();
        for reads in job.args.choose(&job.args.reads, &[0, 20, 40, 60, 80, 100]) {
            let x = X::number("reads", " %", f64::from(reads));
            lines.push(Line { load: Load { reads, ..WRITES }, x, pattern: Pattern::Random, ..Line::default() });
        }
        run(job, &POLICIES, &lines, "the paper: a commit after an interval it does not name; here after 100", progress)
    },
);

/// `libnvmmio-fig7`.
pub(super) const FIG7: Benchmark = Benchmark::new(
    "libnvmmio-fig7",
    "Fig. 7 of the Libnvmmio paper: sequential and random 4 KiB reads and writes",
    TAKES,
    |job, progress| {
        let mut lines = Vec::new();
        for (what, reads) in [("read", 100), ("write", 0)] {
            for pattern in [Pattern::Sequential, Pattern::Random] {
                let x = X::category("access", format!("{pattern} {what}"));
                // As fio without fsync: what is written is committed when the file is closed.
                let load = Load { reads, interval: 0, private: false };
                let load = if reads == 0 { Load { interval: 1000, ..load } } else { load };
                lines.push(Line { load, x, pattern, ..Line::default() });
            }
        }
        let paper = "the paper: FIO on a file of 4 GB for 60 s, committed when it is closed; here after 1000 writes";
        run(job, &ALL, &lines, paper, progress)
    },
);

/// `libnvmmio-fig8`.
pub(super) const FIG8: Benchmark = Benchmark::new(
    "libnvmmio-fig8",
    "Fig. 8 of the Libnvmmio paper: sequential writes of 128 bytes to 1 MiB",
    &["system", "size", "len", "seconds", "ops", "seed"],
    |job, progress| {
        let mut lines = Vec::new();
        for size in job.args.choose(&job.args.sizes, &[128, 1024, 4096, 16 << 10, 64 << 10, 256 << 10, 1 << 20]) {
            lines.push(Line { size, x: X::number("size", " B", size as f64), ..Line::default() });
        }
        run(job, &ALL, &lines, "the paper: one thread of FIO; here a commit after 100 writes", progress)
    },
)
.plotting(Metric::MibPerS);

/// `libnvmmio-fig9`.
pub(super) const FIG9: Benchmark = Benchmark::new(
    "libnvmmio-fig9",
    "Fig. 9 of the Libnvmmio paper: sequential 4 KiB writes with a commit after 1 to 1000",
    TAKES,
    |job, progress| {
        let line = |interval: u32| {
            let x = X::number("writes per commit", "", f64::from(interval));
            Line { load: Load { interval, ..WRITES }, x, ..Line::default() }
        };
        let lines: Vec<Line> = job.args.choose(&[], &[1, 10, 100, 1000]).into_iter().map(line).collect();
        run(job, &ALL, &lines, "the paper: FIO on a file of 4 GB for 60 s", progress)
    },
);

/// `libnvmmio-fig10`.
pub(super) const FIG10: Benchmark = Benchmark::new(
    "libnvmmio-fig10",
    "Fig. 10 of the Libnvmmio paper: random 4 KiB writes of 1 to 16 threads to private files and to one",
    &["system", "threads", "len", "seconds", "ops", "seed"],
    |job, progress| {
        let mut lines = Vec::new();
        for private in [true, false] {
            for threads in job.args.choose(&job.args.threads, &[1, 2, 4, 8, 16]) {
                let workload = if private { "private files" } else { "a shared file" };
                let (load, x) = (Load { private, ..WRITES }, X::number("threads", "", threads as f64));
                lines.push(Line { workload, load, x, threads, pattern: Pattern::Random, ..Line::default() });
            }
        }
        run(job, &ALL, &lines, "the paper: 16 and 20 cores; more threads than cores take turns", progress)
    },
);

/// `libnvmmio-table2`.
pub(super) const TABLE2: Benchmark = Benchmark::new(
    "libnvmmio-table2",
    "Table 2 of the Libnvmmio paper: latencies of 4 KiB reads, and of writes with a commit each, to 99.999 %",
    TAKES,
    |job, progress| {
        let paper = "the paper: one thread on Optane memory, microseconds; here latency_ns of the JSON";
        run(job, &ALL, &synchronous(), paper, progress)
    },
)
.plotting(Metric::Median);

/// `libnvmmio-fig11`.
pub(super) const FIG11: Benchmark = Benchmark::new(
    "libnvmmio-fig11",
    "Fig. 11 of the Libnvmmio paper: what 4 KiB reads and writes cost under undo, redo and hybrid logging",
    TAKES,
    |job, progress| {
        let paper = "the paper: microseconds in each function, by clocks inside the library; here per_op of the JSON, \
                     counted from outside";
        run(job, &POLICIES, &synchronous(), paper, progress)
    },
)
.plotting(Metric::Median);

/// Single reads, and single writes with a commit each.
fn synchronous() -> Vec<Line> {
    let line = |(what, reads, interval): (&str, u32, u32)| {
        let load = Load { reads, interval, private: false };
        Line { load, x: X::category("access", what), pattern: Pattern::Random, ..Line::default() }
    };
    [("read", 100, 0), ("write", 0, 1)].map(line).into()
}

/// One place on the horizontal axis, with the load that it stands for.
struct Line {
    workload: &'static str,
    load: Load,
    x: X,
    size: usize,
    threads: usize,
    pattern: Pattern,
}

impl Default for Line {
    fn default() -> Self {
        let (load, x) = (WRITES, X::category("access", "write"));
        Line { workload: "one file", load, x, size: BLOCK, threads: 1, pattern: Pattern::Sequential }
    }
}

/// Measures each line with these systems.
fn run(job: &Job<'_>, hows: &[How], lines: &[Line], paper: &str, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut outcome = Outcome { notes: vec![paper.to_owned(), LEFT_OUT.to_owned()], ..Outcome::default() };
    let total = lines.len() as u64;
    for (done, line) in (0..).zip(lines) {
        let of = |&how: &How| -> Box<dyn Contender> { Box::new(System { how, load: line.load }) };
        let systems: Vec<Box<dyn Contender>> = hows.iter().map(of).collect();
        let records = (job.file_len() / line.size as u64).max(line.threads as u64);
        let (workload, x) = (line.workload.to_owned(), line.x.clone());
        let point = Point { workload, x, records, size: line.size, threads: line.threads, pattern: line.pattern };
        let mut step = |at: u64, of: u64, what: &str| {
            if at < of {
                progress(done, total, what);
            }
        };
        let found = compare::run(job, &systems, &[point], &mut step)?;
        outcome.rows.extend(found.rows);
        for note in found.notes {
            if !outcome.notes.contains(&note) {
                outcome.notes.push(note);
            }
        }
    }
    progress(total, total, "done");
    Ok(outcome)
}
