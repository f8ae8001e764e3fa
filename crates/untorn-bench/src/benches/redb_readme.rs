//! `redb-readme`: the benchmark of redb's README, on every database of this build and on untorn.

use std::path::Path;
use std::time::Instant;

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::compare::keyvalue::{Database, Kept, Reader};
use crate::compare::{TABLE, left_out, rivals};
use crate::cpu::quiesce;
use crate::error::{Error, Result};
use crate::offsets::mix;
use crate::report::{Row, StepRow};
use crate::stats::{median, pairwise};

/// `redb-readme`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "redb-readme",
    "the benchmark of redb's README: loads, writes, reads, removals, compaction and size of several databases",
    &["system", "records", "seconds", "seed"],
    run,
);

/// Pairs of the bulk load. The README has 5 million.
const RECORDS: u64 = 100_000;
const QUICK_RECORDS: u64 = 5000;

const ROUNDS: usize = 3;

const KEY: usize = 24;
const VALUE: usize = 150;

/// Pairs that a range read visits.
const RANGE: usize = 10;

const NOTE: &str = "keys of 24 bytes, values of 150 bytes; each write transaction is durable. untorn is no database: \
                    untorn-sqlite is SQLite on untorn's VFS; untorn-table is a hash table of fixed slots in an \
                    AtomicFile, whose bulk load is not measured because it commits every 100 pairs";

/// The steps, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    BulkLoad,
    IndividualWrites,
    BatchWrites,
    Len,
    RandomReads,
    RangeReads,
    /// With this many threads.
    ThreadedReads(usize),
    Removals,
    Compaction,
}

impl Step {
    const ALL: [Step; 12] = [
        Step::BulkLoad,
        Step::IndividualWrites,
        Step::BatchWrites,
        Step::Len,
        Step::RandomReads,
        Step::RangeReads,
        Step::ThreadedReads(4),
        Step::ThreadedReads(8),
        Step::ThreadedReads(16),
        Step::ThreadedReads(32),
        Step::Removals,
        Step::Compaction,
    ];

    fn name(self) -> String {
        match self {
            Step::BulkLoad => "bulk load".to_owned(),
            Step::IndividualWrites => "individual writes".to_owned(),
            Step::BatchWrites => "batch writes".to_owned(),
            Step::Len => "len()".to_owned(),
            Step::RandomReads => "random reads".to_owned(),
            Step::RangeReads => "random range reads".to_owned(),
            Step::ThreadedReads(threads) => format!("random reads ({threads} threads)"),
            Step::Removals => "removals".to_owned(),
            Step::Compaction => "compaction".to_owned(),
        }
    }

    /// Whether a table without order, removal and count has it.
    fn is_of_tables(self) -> bool {
        matches!(self, Step::IndividualWrites | Step::BatchWrites | Step::RandomReads | Step::ThreadedReads(_))
    }
}

/// The amounts of work, in the README's proportions.
#[derive(Clone, Copy, Debug)]
struct Work {
    records: u64,
    seed: u64,
}

impl Work {
    fn individual(self) -> u64 {
        (self.records / 100).clamp(1, 1000)
    }

    fn batches(self) -> u64 {
        (self.records / 100).clamp(1, 100)
    }

    fn batch(self) -> u64 {
        (self.records / 1000).clamp(1, 1000)
    }

    fn reads(self) -> u64 {
        (self.records / 5).max(1)
    }

    fn ranges(self) -> u64 {
        (self.records / 10).max(1)
    }

    /// All pairs that are ever inserted.
    fn all(self) -> u64 {
        self.records + self.individual() + self.batches() * self.batch()
    }

    fn key(self, number: u64) -> Vec<u8> {
        let word = |nth: u64| mix(self.seed ^ mix(number * 4 + nth)).to_be_bytes();
        (0..3).flat_map(word).collect()
    }

    fn pair(self, number: u64) -> (Vec<u8>, Vec<u8>) {
        let (key, first) = (self.key(number), mix(number).to_le_bytes());
        debug_assert_eq!(key.len(), KEY);
        (key, first.into_iter().cycle().take(VALUE).collect())
    }

    /// The number of a pair of the bulk load.
    fn any(self, nth: u64) -> u64 {
        mix(self.seed ^ 0x5eed ^ nth) % self.records
    }
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    job.args.validate(&[], &[], job.file_len())?;
    let records = job.args.records.unwrap_or(if job.args.quick { QUICK_RECORDS } else { RECORDS });
    let work = Work { records, seed: job.args.seed() };
    let mut notes = vec![NOTE.to_owned()];
    let systems = chosen(job, &mut notes)?;
    let mut times: Vec<Vec<Vec<f64>>> = vec![vec![Vec::new(); systems.len()]; Step::ALL.len()];
    let mut sizes = vec![vec![0; systems.len()]; Step::ALL.len()];
    let begun = Instant::now();
    // Without --seconds there are so many rounds; with it, as many as begin in that time.
    let most = if job.args.quick { 1 } else { ROUNDS };
    let wants_more = |round: usize| match job.args.seconds {
        Some(seconds) => round == 0 || begun.elapsed().as_secs_f64() < seconds,
        None => round < most,
    };
    let total = (most * Step::ALL.len()) as u64;
    for round in (0..).take_while(|&round| wants_more(round)) {
        let made = tempfile::Builder::new().prefix("untorn-bench-").tempdir_in(job.dir());
        let dir = made.map_err(|source| Error::io("create a directory in", &job.dir(), source))?;
        let mut stores = Vec::new();
        for system in &systems {
            let place = dir.path().join(system.name);
            std::fs::create_dir(&place).map_err(|source| Error::io("create", &place, source))?;
            let mut database = (system.open)(&place, work.all() * VALUE as u64)?;
            if is_table(system) {
                load_table(database.as_mut(), work)?;
            }
            stores.push((database, place));
        }
        for (nth, &step) in Step::ALL.iter().enumerate() {
            progress(((round * Step::ALL.len() + nth) as u64).min(total), total, &step.name());
            for turn in 0..stores.len() {
                let at = if round % 2 == 0 { turn } else { stores.len() - 1 - turn };
                let (database, place) = &mut stores[at];
                if is_table(&systems[at]) && !step.is_of_tables() {
                    continue;
                }
                if let Some((ops, seconds)) = perform(step, database.as_mut(), work)? {
                    times[nth][at].push(ops as f64 / seconds.max(1e-9));
                }
                quiesce();
                sizes[nth][at] = bytes_in(place)?;
            }
        }
    }
    progress(total, total, "done");
    let untorn = systems.iter().position(|system| system.name == "untorn-sqlite");
    let untorn = untorn.or_else(|| systems.iter().position(is_table));
    let mut rows = Vec::new();
    for (nth, step) in Step::ALL.iter().enumerate() {
        let base = untorn.map(|at| times[nth][at].clone()).filter(|base| !base.is_empty());
        for (at, system) in systems.iter().enumerate().filter(|&(at, _)| !times[nth][at].is_empty()) {
            rows.push(Row::Step(StepRow {
                workload: step.name(),
                system: system.name.to_owned(),
                durability: system.durability.to_owned(),
                records,
                ops_per_s: median(&times[nth][at]),
                ratio_to_untorn: base.as_ref().map(|base| pairwise(&times[nth][at], base).median),
                bytes_on_disk: sizes[nth][at],
                rounds_per_s: times[nth][at].clone(),
            }));
        }
    }
    Ok(Outcome { rows, notes })
}

fn is_table(system: &Kept) -> bool {
    system.name == TABLE.name
}

/// The databases that the user wants and that this build and machine have.
fn chosen(job: &Job<'_>, notes: &mut Vec<String>) -> Result<Vec<Kept>> {
    let all: Vec<Kept> = rivals::databases().into_iter().chain([TABLE]).collect();
    let wanted = &job.args.systems;
    if let Some(unknown) = wanted.iter().find(|name| all.iter().all(|system| system.name != **name)) {
        let names: Vec<&str> = all.iter().map(|system| system.name).collect();
        return Err(Error::usage(format!("{unknown:?} is not a system; use some of: {}", names.join(" "))));
    }
    let mut systems = Vec::new();
    for system in all {
        let is_wanted = wanted.is_empty() || wanted.iter().any(|name| name == system.name) || is_table(&system);
        match (system.missing)() {
            Some(why) if is_wanted => notes.push(left_out(job, system.name, &why)?),
            None if is_wanted => systems.push(system),
            _ => {}
        }
    }
    notes.extend(rivals::lacking());
    Ok(systems)
}

/// Fills a table in transactions of 100 pairs.
fn load_table(table: &mut dyn Database, work: Work) -> Result<()> {
    let mut session = table.session()?;
    for first in (0..work.records).step_by(100) {
        session.put_all(&mut (first..(first + 100).min(work.records)).map(|number| work.pair(number)))?;
    }
    Ok(())
}

/// Does a step. Returns the number of its operations and their seconds, or nothing if the database cannot do it.
fn perform(step: Step, database: &mut dyn Database, work: Work) -> Result<Option<(u64, f64)>> {
    let Work { records, .. } = work;
    let begun = Instant::now();
    let ops = match step {
        Step::BulkLoad => {
            database.session()?.put_all(&mut (0..records).map(|number| work.pair(number)))?;
            records
        }
        Step::IndividualWrites => {
            let mut session = database.session()?;
            for number in records..records + work.individual() {
                let (key, value) = work.pair(number);
                session.put(&key, &value)?;
            }
            work.individual()
        }
        Step::BatchWrites => {
            let mut session = database.session()?;
            let first = records + work.individual();
            for batch in 0..work.batches() {
                let from = first + batch * work.batch();
                session.put_all(&mut (from..from + work.batch()).map(|number| work.pair(number)))?;
            }
            work.batches() * work.batch()
        }
        Step::Len => {
            let mut found = 0;
            database.session()?.read(&mut |reader| reader.len().map(|len| found = len))?;
            expect(found, work.all(), "pairs")?;
            1
        }
        Step::RandomReads => {
            expect(reads(database, work, 0, work.reads())?, work.reads(), "values")?;
            work.reads()
        }
        Step::RangeReads => {
            let mut found = 0;
            database.session()?.read(&mut |reader| {
                (0..work.ranges()).try_for_each(|nth| {
                    reader.range(&work.key(work.any(nth)), RANGE, &mut |_, value| found += u64::from(!value.is_empty()))
                })
            })?;
            // A range that begins near the last key is shorter.
            if found < work.ranges() {
                expect(found, work.ranges() * RANGE as u64, "values in ranges")?;
            }
            work.ranges()
        }
        Step::ThreadedReads(threads) => {
            let each = work.reads().div_ceil(threads as u64);
            let database = &*database;
            std::thread::scope(|scope| {
                let workers: Vec<_> = (0..threads as u64)
                    .map(|thread| scope.spawn(move || reads(database, work, thread * each, each)))
                    .collect();
                workers.into_iter().try_for_each(|worker| {
                    let found = worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
                    expect(found, each, "values")
                })
            })?;
            each * threads as u64
        }
        Step::Removals => {
            database.session()?.remove_all(&mut (0..records / 2).map(|number| work.key(number)))?;
            records / 2
        }
        Step::Compaction => {
            if !database.compact()? {
                return Ok(None);
            }
            1
        }
    };
    Ok(Some((ops, begun.elapsed().as_secs_f64())))
}

/// Reads pairs of the bulk load at random, in one transaction. Returns how many were there with their value.
fn reads(database: &dyn Database, work: Work, first: u64, count: u64) -> Result<u64> {
    let mut found = 0;
    let mut body = |reader: &mut dyn Reader| {
        (first..first + count).try_for_each(|nth| {
            reader.get(&work.key(work.any(nth)), &mut |value| found += u64::from(value.len() == VALUE))
        })
    };
    database.session()?.read(&mut body)?;
    Ok(found)
}

/// A database that lacks what was put into it has not done the work.
fn expect(found: u64, expected: u64, what: &str) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Database { what: format!("it returned {found} {what} instead of {expected}") })
}

/// Bytes of the files in a directory, as they are allocated.
fn bytes_in(dir: &Path) -> Result<u64> {
    use std::os::unix::fs::MetadataExt as _;
    let mut sum = 0;
    let entries = std::fs::read_dir(dir).map_err(|source| Error::io("list", dir, source))?;
    for entry in entries {
        let entry = entry.map_err(|source| Error::io("list", dir, source))?;
        // A database may remove a file of its own at any time.
        let Ok(metadata) = entry.metadata() else { continue };
        sum += if metadata.is_dir() { bytes_in(&entry.path())? } else { metadata.blocks() * 512 };
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;

    #[test]
    fn every_database_does_every_step() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dir: Some(dir.path().to_owned()), records: Some(300), quick: true, ..Args::default() };
        let report = crate::run("redb-readme", &args, &mut |_, _, _| ()).unwrap();
        let of = |name: &str| {
            let steps = report.rows.iter().filter_map(|row| match row {
                Row::Step(row) if row.system == name => Some(row),
                _ => None,
            });
            steps.map(|row| row.workload.as_str()).collect::<Vec<_>>()
        };
        let table: Vec<_> = Step::ALL.iter().filter(|step| step.is_of_tables()).map(|step| step.name()).collect();
        assert_eq!(of("untorn-table"), table);
        let all: Vec<_> = Step::ALL.iter().map(|step| step.name()).collect();
        for rival in rivals::databases().into_iter().filter(|rival| (rival.missing)().is_none()) {
            let without_compaction = rival.name == "lmdb";
            assert_eq!(of(rival.name), all[..all.len() - usize::from(without_compaction)], "{}", rival.name);
        }
        for row in &report.rows {
            let Row::Step(row) = row else { panic!("{row:?}") };
            assert!(row.ops_per_s > 0.0 && row.bytes_on_disk > 0 && row.rounds_per_s.len() == 1, "{row:?}");
        }
        assert!(report.to_table().contains("individual writes") && report.to_svg().contains("<rect"));
        assert!(dir.path().read_dir().unwrap().next().is_none(), "the run leaves nothing behind");
        let args = Args { systems: vec!["oracle".to_owned()], ..args };
        let error = crate::run("redb-readme", &args, &mut |_, _, _| ()).unwrap_err();
        assert!(error.to_string().contains("untorn-table"), "{error}");
    }
}
