//! `scale-threads`, `scale-length`, `scale-regions`, `scale-files`: the cost of an operation as its surroundings
//! grow: the threads, the file, the regions of a store, the files behind one log. The cost should follow the work of
//! the operation, and the curve should be flat.

mod long;
mod many;

use untorn::EngineKind;

use self::long::{Long, LongMap, LongRaw, openings};
use self::many::{CachedFiles, Files, Regions};
use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Pattern;
use crate::compare::{self, Atomic, Contender, Point, Raws, Shared, X};
use crate::error::{Error, Result};
use crate::plot::Metric;
use crate::rig::is_fast;

const PAGE: usize = 4096;

/// Records of `scale-threads`: 64 MiB.
const RECORDS: u64 = 16_384;

/// The most regions that a store can have.
const MOST_REGIONS: u64 = 65_536;

/// `scale-threads`.
pub(super) const THREADS: Benchmark = Benchmark::new(
    "scale-threads",
    "durable updates of one file by 1 to 64 threads",
    &["threads", "system", "records", "seconds", "ops", "seed"],
    |job, progress| {
        let contenders: Vec<Box<dyn Contender>> = vec![
            Box::new(Raws { is_pmem: job.is_pmem() }),
            Box::new(Atomic::new(EngineKind::Reflection)),
            Box::new(Atomic::new(EngineKind::HybridLog)),
            Box::new(Shared),
        ];
        let threads = job.args.choose(&job.args.threads, &[1, 2, 4, 8, 16, 32, 64]);
        let point = |threads: usize| {
            let x = X::number("threads", "", threads as f64);
            Point { threads, ..point("4 KiB updates of one file", x, job.args.records.unwrap_or(RECORDS)) }
        };
        compare::run(job, &contenders, &threads.into_iter().map(point).collect::<Vec<_>>(), progress)
    },
);

/// `scale-length`.
pub(super) const LENGTH: Benchmark = Benchmark::new(
    "scale-length",
    "updates of the same number of pages of a sparse file of 64 MiB to 1 TiB, and opening it",
    &["len", "system", "seconds", "ops", "seed"],
    |job, progress| {
        let is_pmem = job.is_pmem();
        let contenders: Vec<Box<dyn Contender>> = vec![
            Box::new(LongRaw { is_pmem }),
            Box::new(Long { engine: EngineKind::Reflection }),
            Box::new(Long { engine: EngineKind::HybridLog }),
            Box::new(LongMap { by_address: false }),
            Box::new(LongMap { by_address: true }),
        ];
        let default = [64 << 20, 1 << 30, 16 << 30, 256 << 30, 1 << 40];
        let lens = job.args.choose(&job.args.file_len.into_iter().collect::<Vec<u64>>(), &default);
        let x = |len: u64| X::number("length of the file", " B", len as f64);
        let point = |len: u64| point("updates of 4096 pages of a file", x(len), len / PAGE as u64);
        let mut outcome =
            compare::run(job, &contenders, &lens.iter().copied().map(point).collect::<Vec<_>>(), progress)?;
        for (done, len) in (0..).zip(&lens) {
            progress(done, lens.len() as u64, "opening");
            outcome.rows.extend(openings(job, &Point { workload: "opening and one read".to_owned(), ..point(*len) })?);
        }
        Ok(outcome)
    },
)
.plotting(Metric::Median);

/// `scale-regions`.
pub(super) const REGIONS: Benchmark = Benchmark::new(
    "scale-regions",
    "opening, changing and committing one of 1 to 65,536 regions of a store, of 16 pages each",
    &["records", "system", "seconds", "ops", "seed"],
    |job, progress| {
        // Before as many files are made.
        if job.args.records.is_some_and(|records| records > MOST_REGIONS) {
            return Err(Error::usage(format!("a store has at most {MOST_REGIONS} regions; use --records 1 to that")));
        }
        let contenders: Vec<Box<dyn Contender>> = vec![Box::new(Files), Box::new(Regions)];
        let default: &[u64] =
            if is_fast(job.detected.kind) { &[1, 100, 1000, 10_000, MOST_REGIONS] } else { &[1, 100, 1000, 10_000] };
        run_many(job, &contenders, "one page of one region", "regions or files", default, progress)
    },
)
.plotting(Metric::Median);

/// `scale-files`.
pub(super) const FILES: Benchmark = Benchmark::new(
    "scale-files",
    "opening and changing one of 1 to 100,000 files behind one log",
    &["records", "system", "seconds", "ops", "seed"],
    |job, progress| {
        let contenders: Vec<Box<dyn Contender>> = vec![Box::new(Files), Box::new(CachedFiles)];
        run_many(job, &contenders, "one page of one file", "files", &[1, 100, 1000, 10_000, 100_000], progress)
    },
)
.plotting(Metric::Median);

fn run_many(
    job: &Job<'_>,
    contenders: &[Box<dyn Contender>],
    workload: &str,
    axis: &'static str,
    default: &[u64],
    progress: &mut Progress<'_>,
) -> Result<Outcome> {
    let counts = job.args.choose(&job.args.records.into_iter().collect::<Vec<u64>>(), default);
    let point = |count: u64| point(workload, X::number(axis, "", count as f64), count);
    compare::run(job, contenders, &counts.into_iter().map(point).collect::<Vec<_>>(), progress)
}

/// A point of one thread with records of a page at random places.
fn point(workload: &str, x: X, records: u64) -> Point {
    Point { workload: workload.to_owned(), x, records, size: PAGE, threads: 1, pattern: Pattern::Random }
}

#[cfg(test)]
mod tests {
    use untorn::testing::storage::{MediumKind, detect};

    use super::*;
    use crate::args::Args;

    #[test]
    fn more_regions_than_a_store_has_are_refused_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dir: Some(dir.path().to_owned()), records: Some(65_537), ..Args::default() };
        let error = crate::run("scale-regions", &args, &mut |_, _, _| ()).unwrap_err().to_string();
        assert!(error.contains("at most 65536 regions"), "{error}");
        assert!(dir.path().read_dir().unwrap().next().is_none());
    }

    #[test]
    fn each_has_a_row_of_each_system_at_each_size() {
        let dir = tempfile::tempdir().unwrap();
        let base = Args { dir: Some(dir.path().to_owned()), quick: true, ops: Some(3), ..Args::default() };
        let cases: [(Benchmark, Args, usize); 4] = [
            (THREADS, Args { threads: vec![1, 3], records: Some(64), ..base.clone() }, 2 * 4),
            (LENGTH, Args { file_len: Some(1 << 20), ..base.clone() }, 5 + 3),
            (REGIONS, Args { records: Some(40), ..base.clone() }, 2),
            (FILES, Args { records: Some(40), ..base.clone() }, 2),
        ];
        for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
            for (benchmark, args, rows) in &cases {
                let mut detected = detect(dir.path()).unwrap();
                detected.kind = kind;
                let report = super::super::run_on(benchmark, args, &detected, &mut |_, _, _| ()).unwrap();
                let json = report.to_json();
                let found = json["rows"].as_array().unwrap();
                let left_out = report.notes.iter().filter(|note| note.starts_with("without ")).count();
                // A system that is left out has no row at either number of threads.
                assert!(left_out <= 1, "{:?}", report.notes);
                assert_eq!(found.len() + 2 * left_out, *rows, "{kind:?} {}: {json}", benchmark.name);
                assert!(found.iter().all(|row| row["ops_per_s"].as_f64().unwrap() > 0.0), "{json}");
                assert!(report.to_svg().contains("<svg"));
            }
        }
    }
}
