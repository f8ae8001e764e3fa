//! `ycsb` and `tpcc`: workloads of databases, on several systems in turns.

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rusqlite::Connection;

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::{Args, System};
use crate::cpu::process_time;
use crate::error::{Error, Result};
use crate::report::{DatabaseRow, Row};
use crate::sqlite;
use crate::stats::{median, pairwise};
use crate::workloads::generator;
use crate::workloads::tpcc::requests::Client as Terminal;
use crate::workloads::tpcc::{Constants, Scale};
use crate::workloads::ycsb::{Client, Operation, Population, Workload};

/// The systems of a benchmark by default.
const DEFAULT: [System; 3] = [System::Untorn, System::Wal, System::Delete];

/// Rounds of a row by default, and at least.
const ROUNDS: usize = 9;
const FEWEST_ROUNDS: usize = 3;

/// The time of one system in a round.
const SLICE: Duration = Duration::from_millis(400);

/// Records that YCSB loads by default.
const RECORDS: u64 = 20_000;
const QUICK_RECORDS: u64 = 2000;

/// The sizes of pages in the Acumen paper.
const PAPER_PAGES: [u32; 4] = [512, 1024, 2048, 4096];

const TAKES_YCSB: &[&str] = &["threads", "system", "page-size", "records", "seconds", "ops", "seed"];
const TAKES_TPCC: &[&str] = &["threads", "system", "page-size", "warehouses", "seconds", "ops", "seed"];

/// `ycsb`.
pub(super) const YCSB: Benchmark = Benchmark::new(
    "ycsb",
    "YCSB's load and workloads A to F on SQLite: untorn's VFS, a write-ahead log, a rollback journal",
    TAKES_YCSB,
    |job, progress| ycsb(job, &[4096], None, progress),
);

/// `tpcc`.
pub(super) const TPCC: Benchmark =
    Benchmark::new("tpcc", "TPC-C on SQLite in the same ways", TAKES_TPCC, |job, progress| {
        tpcc(job, &[4096], None, progress)
    });

/// `acumen-fig4`.
pub(super) const ACUMEN_FIG4: Benchmark = Benchmark::new(
    "acumen-fig4",
    "Fig. 4 of the Acumen paper: ycsb with pages of 512 to 4096 bytes",
    TAKES_YCSB,
    |job, progress| {
        let paper = "the paper: 10 million records, a journal that is truncated and mmap on Optane memory, MB/s";
        ycsb(job, &PAPER_PAGES, Some(paper), progress)
    },
);

/// `acumen-fig5`.
pub(super) const ACUMEN_FIG5: Benchmark = Benchmark::new(
    "acumen-fig5",
    "Fig. 5 of the Acumen paper: tpcc with 1, 2 and 4 threads and pages of 512 to 4096 bytes",
    TAKES_TPCC,
    |job, progress| {
        let paper = "the paper: 8 million transactions, a journal that is truncated and mmap on Optane memory";
        tpcc(job, &PAPER_PAGES, Some(paper), progress)
    },
);

/// `libnvmmio-fig13`.
pub(super) const LIBNVMMIO_FIG13: Benchmark = Benchmark::new(
    "libnvmmio-fig13",
    "Fig. 13 of the Libnvmmio paper: tpcc with one thread",
    TAKES_TPCC,
    |job, progress| {
        let paper = "the paper: SQLite with a journal on Ext4-DAX, PMFS, NOVA and SplitFS, and without one on \
                     Libnvmmio over each; here the file system of --dir alone";
        tpcc_of(job, &[4096], &[1], Some(paper), progress)
    },
);

/// `libnvmmio-fig14`.
pub(super) const LIBNVMMIO_FIG14: Benchmark = Benchmark::new(
    "libnvmmio-fig14",
    "Fig. 14 of the Libnvmmio paper: ycsb, with SQLite in the place of MongoDB's engine MMAPv1",
    TAKES_YCSB,
    |job, progress| {
        let paper = "the paper: MongoDB with MMAPv1, an engine that MongoDB no longer has, with its journal, with \
                     NOVA's atomic mmap and with Libnvmmio";
        ycsb(job, &[4096], Some(paper), progress)
    },
);

fn ycsb(job: &Job<'_>, pages: &[u32], paper: Option<&str>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let plan = Plan::new(job.args, &DEFAULT, pages, &[1])?;
    let notes = notes().into_iter().chain(paper.map(str::to_owned)).collect();
    let dir = scratch(job.args)?;
    let records = job.args.records.unwrap_or(if job.args.quick { QUICK_RECORDS } else { RECORDS });
    Ok(Outcome { rows: plan.ycsb(dir.path(), records, progress)?, notes })
}

fn tpcc(job: &Job<'_>, pages: &[u32], paper: Option<&str>, progress: &mut Progress<'_>) -> Result<Outcome> {
    tpcc_of(job, pages, &[1, 2, 4], paper, progress)
}

fn tpcc_of(
    job: &Job<'_>,
    pages: &[u32],
    threads: &[usize],
    paper: Option<&str>,
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    let plan = Plan::new(job.args, &DEFAULT, pages, threads)?;
    let mut notes: Vec<String> = notes().into_iter().chain(paper.map(str::to_owned)).collect();
    notes.push("no keying and thinking times, so the rates are no tpmC".to_owned());
    let dir = scratch(job.args)?;
    let scale = Scale::full(job.args.warehouses.unwrap_or(1));
    Ok(Outcome { rows: plan.tpcc(dir.path(), scale, progress)?, notes })
}

/// A directory for the databases.
pub(super) fn scratch(args: &Args) -> Result<tempfile::TempDir> {
    tempfile::tempdir_in(args.dir()).map_err(|error| Error::io("create a directory in", &args.dir(), error))
}

/// Notes that a reader of the rows needs.
pub(super) fn notes() -> Vec<String> {
    vec![format!(
        "SQLite {}, synchronous=FULL for all; untorn needs no journal; ratio: to untorn's rate in the same round",
        sqlite::version()
    )]
}

/// A connection that does one operation after the other.
pub(super) trait Worker: Send {
    /// Does one operation.
    fn step(&mut self) -> Result<()>;
}

/// The work of a system in all rounds.
pub(super) struct Tally {
    per_s: Vec<f64>,
    /// Nanoseconds.
    latencies: Histogram<u64>,
    written: u64,
    cpu: Duration,
}

/// Systems, and the rounds in which they take turns.
pub(super) struct Plan {
    pub(super) systems: Vec<System>,
    pub(super) pages: Vec<u32>,
    threads: Vec<usize>,
    pub(super) rounds: usize,
    /// Operations of a connection in a round, at most.
    pub(super) ops: u64,
    pub(super) seed: u64,
}

impl Plan {
    /// The plan of these arguments, with these default systems, sizes of pages and numbers of threads. Makes untorn's
    /// VFS known to SQLite.
    pub(super) fn new(args: &Args, default: &[System], pages: &[u32], threads: &[usize]) -> Result<Plan> {
        args.validate(&[], &[], 4096)?;
        let parse = |name: &String| name.parse::<System>().map_err(Error::usage);
        let systems = args.systems.iter().map(parse).collect::<Result<Vec<_>>>()?;
        // Transactions of the other benchmarks roll back, which needs a journal.
        if systems.contains(&System::Off) && !default.contains(&System::Off) {
            return Err(Error::usage(
                "\"off\" is a system of libnvmmio-fig12 only: nothing can roll back without a journal",
            ));
        }
        let rounds = match args.seconds {
            Some(seconds) => ((seconds / SLICE.as_secs_f64()).ceil() as usize).max(FEWEST_ROUNDS),
            None if args.quick => FEWEST_ROUNDS,
            None => ROUNDS,
        };
        let plan = Plan {
            systems: if systems.is_empty() { default.to_vec() } else { systems },
            pages: args.choose(&args.page_sizes, pages),
            threads: args.choose(&args.threads, threads),
            rounds,
            ops: args.ops.unwrap_or(u64::MAX),
            seed: args.seed(),
        };
        if plan.threads.contains(&0) {
            return Err(Error::usage("--threads is 0; use 1 or more"));
        }
        sqlite::register()?;
        Ok(plan)
    }

    fn ycsb(&self, dir: &Path, records: u64, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
        let total = (self.pages.len() * (1 + Workload::ALL.len() * self.threads.len())) as u64;
        let mut done = 0;
        let mut rows = Vec::new();
        for &page_size in &self.pages {
            let path = |system: System| dir.join(format!("ycsb-{page_size}-{system}"));
            let mut step = |what: &str| {
                progress(done, total, &format!("{what}, pages of {page_size} B"));
                done += 1;
            };
            step("ycsb-load");
            let populations: Vec<Population> = self.systems.iter().map(|_| Population::new(records)).collect();
            let mut loaders = Vec::new();
            for &system in &self.systems {
                let database = sqlite::open(&path(system), system, page_size)?;
                sqlite::ycsb::create(&database)?;
                loaders.push(vec![Loader { database, next: 0, records, seed: self.seed }]);
            }
            // Every record once, however long it takes.
            let groups = records.div_ceil(sqlite::ycsb::GROUP).max(1);
            let rounds = (self.rounds as u64).min(groups);
            let tallies = run_in_turns(&mut loaders, rounds as usize, 0, (Duration::MAX, groups.div_ceil(rounds)))?;
            rows.extend(self.rows("ycsb-load", page_size, 1, tallies, records as f64 / groups as f64));
            drop(loaders);
            for workload in Workload::ALL {
                for &threads in &self.threads {
                    step(&format!("{}, threads: {threads}", workload.as_str()));
                    let mut workers = Vec::new();
                    for (&system, population) in self.systems.iter().zip(&populations) {
                        let connect = |client: usize| {
                            let database = sqlite::open(&path(system), system, page_size)?;
                            let seed = self.seed ^ (workload as u64) << 32;
                            let client = Client::new(workload, population, seed, client as u64);
                            Ok(Caller { database, client, population })
                        };
                        workers.push((0..threads).map(connect).collect::<Result<Vec<_>>>()?);
                    }
                    let tallies = run_in_turns(&mut workers, self.rounds, 1, (SLICE, self.ops))?;
                    rows.extend(self.rows(workload.as_str(), page_size, threads, tallies, 1.0));
                }
            }
        }
        Ok(rows)
    }

    fn tpcc(&self, dir: &Path, scale: Scale, progress: &mut Progress<'_>) -> Result<Vec<Row>> {
        let total = (self.pages.len() * (1 + self.threads.len())) as u64;
        let mut done = 0;
        let mut rows = Vec::new();
        let mut rng = generator(self.seed, u64::MAX - 1);
        let loaded = Constants::of_load(&mut rng);
        let constants = loaded.of_run(&mut rng);
        for &page_size in &self.pages {
            let path = |system: System| dir.join(format!("tpcc-{page_size}-{system}"));
            let mut step = |what: &str| {
                progress(done, total, &format!("{what}, pages of {page_size} B"));
                done += 1;
            };
            step("loading the tables");
            for &system in &self.systems {
                let database = sqlite::open(&path(system), system, page_size)?;
                sqlite::tpcc::load(&database, scale, loaded, self.seed)?;
            }
            for &threads in &self.threads {
                step(&format!("threads: {threads}"));
                let mut workers = Vec::new();
                for &system in &self.systems {
                    let connect = |number: usize| {
                        let database = sqlite::open(&path(system), system, page_size)?;
                        Ok(Till { database, terminal: Terminal::new(scale, constants, self.seed, number as u32) })
                    };
                    workers.push((0..threads).map(connect).collect::<Result<Vec<_>>>()?);
                }
                let tallies = run_in_turns(&mut workers, self.rounds, 1, (SLICE, self.ops))?;
                rows.extend(self.rows("tpcc", page_size, threads, tallies, 1.0));
            }
            for &system in &self.systems {
                let violations = sqlite::tpcc::violations(&sqlite::open(&path(system), system, page_size)?)?;
                if !violations.is_empty() {
                    return Err(Error::Inconsistent { system: system.as_str(), what: violations.join("; ") });
                }
            }
        }
        Ok(rows)
    }

    /// The rows of all systems. A step is so many operations.
    pub(super) fn rows(
        &self,
        workload: &'static str,
        page_size: u32,
        threads: usize,
        tallies: Vec<Tally>,
        per_step: f64,
    ) -> Vec<Row> {
        let ours = self.systems.iter().position(|system| *system == System::Untorn).unwrap_or(0);
        let base = tallies[ours].per_s.clone();
        let row = |(&system, tally): (&System, Tally)| {
            let ratio = pairwise(&tally.per_s, &base);
            let micros = |quantile: f64| tally.latencies.value_at_quantile(quantile) as f64 / 1e3;
            let ops = tally.latencies.len() as f64 * per_step;
            Row::Database(DatabaseRow {
                workload,
                system: system.as_str(),
                page_size,
                threads,
                ops_per_s: median(&tally.per_s) * per_step,
                ratio_to_untorn: ratio.median,
                ratio_low: ratio.low,
                ratio_high: ratio.high,
                p50_us: micros(0.5),
                p99_us: micros(0.99),
                p99_9_us: micros(0.999),
                p99_999_us: micros(0.999_99),
                longest_us: tally.latencies.max() as f64 / 1e3,
                written_per_op: tally.written as f64 / ops,
                cpu_us_per_op: tally.cpu.as_secs_f64() * 1e6 / ops,
                ops: ops as u64,
                pairs: tally.per_s.len(),
            })
        };
        self.systems.iter().zip(tallies).map(row).collect()
    }
}

/// Loads a group of records a step.
struct Loader {
    database: Connection,
    next: u64,
    records: u64,
    seed: u64,
}

impl Worker for Loader {
    fn step(&mut self) -> Result<()> {
        let count = sqlite::ycsb::GROUP.min(self.records - self.next);
        sqlite::ycsb::load(&mut self.database, self.next, count, self.seed)?;
        self.next += count;
        Ok(())
    }
}

struct Caller<'a> {
    database: Connection,
    client: Client<'a>,
    population: &'a Population,
}

impl Worker for Caller<'_> {
    fn step(&mut self) -> Result<()> {
        let operation = self.client.next();
        std::hint::black_box(sqlite::ycsb::perform(&mut self.database, &operation)?);
        if let Operation::Insert { key, .. } = operation {
            self.population.acknowledge(key);
        }
        Ok(())
    }
}

struct Till {
    database: Connection,
    terminal: Terminal,
}

impl Worker for Till {
    fn step(&mut self) -> Result<()> {
        let request = self.terminal.next();
        sqlite::tpcc::perform(&mut self.database, self.terminal.home, &request)?;
        Ok(())
    }
}

/// Runs the workers of each system in each round, in turns, after so many rounds that do not count. A worker's slice
/// ends after a time or a number of steps.
pub(super) fn run_in_turns<W: Worker>(
    systems: &mut [Vec<W>],
    rounds: usize,
    warm: usize,
    limit: (Duration, u64),
) -> Result<Vec<Tally>> {
    let mut tallies = Vec::new();
    for _ in systems.iter() {
        let latencies = Histogram::new(3).map_err(|error| Error::usage(error.to_string()))?;
        tallies.push(Tally { per_s: Vec::new(), latencies, written: 0, cpu: Duration::ZERO });
    }
    for round in 0..warm + rounds {
        let turns: Vec<usize> = (0..systems.len()).collect();
        let turns = if round % 2 == 0 { turns } else { turns.into_iter().rev().collect() };
        for system in turns {
            let (written, cpu) = (bytes_written()?, process_time());
            let slice = slice(&mut systems[system], limit)?;
            let tally = &mut tallies[system];
            if round < warm {
                continue;
            }
            tally.written += bytes_written()?.saturating_sub(written);
            tally.cpu += process_time().saturating_sub(cpu);
            tally.per_s.push(slice.0);
            tally.latencies.add(slice.1).map_err(|error| Error::usage(error.to_string()))?;
        }
    }
    Ok(tallies)
}

/// One slice of all workers of a system: steps per second together, and the nanoseconds of each.
fn slice<W: Worker>(workers: &mut [W], (time, steps): (Duration, u64)) -> Result<(f64, Histogram<u64>)> {
    let together = Barrier::new(workers.len());
    let one = |worker: &mut W| -> Result<(f64, Histogram<u64>)> {
        let histogram = Histogram::new(3).map_err(|error| Error::usage(error.to_string()));
        together.wait();
        let mut latencies = histogram?;
        let begin = Instant::now();
        let mut before = Duration::ZERO;
        let mut count = 0;
        while count < steps && before < time {
            worker.step()?;
            let now = begin.elapsed();
            let took = (now - before).as_nanos() as u64;
            latencies.record(took).map_err(|error| Error::usage(error.to_string()))?;
            before = now;
            count += 1;
        }
        Ok((count as f64 / before.as_secs_f64().max(1e-9), latencies))
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.iter_mut().map(|worker| scope.spawn(|| one(worker))).collect();
        let mut all = (0.0, Histogram::new(3).map_err(|error| Error::usage(error.to_string()))?);
        for thread in threads {
            let (per_s, latencies) = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            all.0 += per_s;
            all.1.add(latencies).map_err(|error| Error::usage(error.to_string()))?;
        }
        Ok(all)
    })
}

/// Bytes that this process has had written to media, as the kernel counts them.
fn bytes_written() -> Result<u64> {
    let path = Path::new("/proc/self/io");
    let text = std::fs::read_to_string(path).map_err(|error| Error::io("read", path, error))?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    Ok(line.and_then(|bytes| bytes.trim().parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args() -> (tempfile::TempDir, Args) {
        let dir = tempfile::tempdir().unwrap();
        let args = Args {
            dir: Some(dir.path().to_owned()),
            systems: ["untorn", "wal", "truncate"].map(str::to_owned).to_vec(),
            ops: Some(40),
            seconds: Some(0.1),
            ..Args::default()
        };
        (dir, args)
    }

    fn rows(bench: &str, args: &Args) -> Vec<DatabaseRow> {
        let report = crate::run(bench, args, &mut |_, _, _| ()).unwrap();
        let row = |row| match row {
            Row::Database(row) => row,
            other => panic!("{other:?}"),
        };
        report.rows.into_iter().map(row).collect()
    }

    #[test]
    fn every_workload_of_ycsb_runs_on_every_system() {
        let (_dir, args) = args();
        let args = Args { records: Some(2500), page_sizes: vec![512, 4096], threads: vec![2], ..args };
        let rows = rows("ycsb", &args);
        assert_eq!(rows.len(), 2 * 7 * 3);
        for row in &rows {
            assert!(
                row.pairs == 3 && if row.workload == "ycsb-load" { row.ops == 2500 } else { row.ops <= 240 },
                "{row:?}"
            );
            assert!(row.ops > 0 && row.ops_per_s > 0.0 && row.longest_us >= row.p50_us && row.p50_us > 0.0, "{row:?}");
        }
        let ours: Vec<_> = rows.iter().filter(|row| row.system == "untorn").collect();
        assert!(ours.len() == 14 && ours.iter().all(|row| row.ratio_to_untorn == 1.0));
    }

    /// The consistency conditions hold afterwards, which the run checks.
    #[test]
    fn tpcc_leaves_a_consistent_database() {
        let (_dir, args) = args();
        let args = Args { threads: vec![1, 3], ops: Some(60), seed: Some(3), ..args };
        let plan = Plan::new(&args, &DEFAULT, &[4096], &[]).unwrap();
        let scale = Scale { warehouses: 2, items: 200, customers: 30 };
        let rows = plan.tpcc(args.dir.as_deref().unwrap(), scale, &mut |_, _, _| ()).unwrap();
        assert_eq!(rows.len(), 6);
    }

    #[test]
    fn a_violated_condition_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let database = sqlite::open(&dir.path().join("database"), System::Delete, 4096).unwrap();
        let scale = Scale { warehouses: 1, items: 20, customers: 10 };
        let constants = Constants::of_load(&mut generator(1, 1));
        sqlite::tpcc::load(&database, scale, constants, 1).unwrap();
        assert!(sqlite::tpcc::violations(&database).unwrap().is_empty());
        for (change, named) in [
            ("UPDATE warehouse SET w_ytd = w_ytd + 1", "W_YTD"),
            ("UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_id = 3", "D_NEXT_O_ID"),
            ("DELETE FROM new_order WHERE no_o_id = 9", "gap"),
            ("DELETE FROM order_line WHERE ol_o_id = 2 AND ol_number = 1", "O_OL_CNT"),
        ] {
            database.execute_batch("SAVEPOINT before").unwrap();
            database.execute_batch(change).unwrap();
            let violations = sqlite::tpcc::violations(&database).unwrap();
            assert!(violations.iter().any(|violation| violation.contains(named)), "{change}: {violations:?}");
            database.execute_batch("ROLLBACK TO before; RELEASE before").unwrap();
        }
    }
}
