//! Comparisons of small stores: what rows say, and that every contender does what it promises.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use untorn::testing::storage::{Detected, detect};

use super::*;
use crate::args::Args;
use crate::benches::benchmark::Benchmark;

const BENCHMARK: Benchmark = Benchmark::new("test", "a test", &["ops", "system", "seed"], |_, _| unreachable!());

/// Adds to a sum at each operation.
struct Summing<'a> {
    name: &'static str,
    missing: bool,
    sum: &'a AtomicU64,
    closed: &'a Mutex<Vec<&'static str>>,
}

impl Contender for Summing<'static> {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn durability(&self) -> String {
        "none".to_owned()
    }

    fn missing(&self, _: &Setting) -> Option<String> {
        self.missing.then(|| "it is not there".to_owned())
    }

    fn set_up(&self, setting: &Setting) -> Result<Box<dyn Store>> {
        assert!(setting.dir.read_dir().unwrap().next().is_none(), "the directory is empty");
        std::fs::write(setting.dir.join("data"), vec![0; setting.len() as usize]).unwrap();
        Ok(Box::new(Sum { name: self.name, sum: self.sum, closed: self.closed }))
    }
}

struct Sum {
    name: &'static str,
    sum: &'static AtomicU64,
    closed: &'static Mutex<Vec<&'static str>>,
}

impl Store for Sum {
    fn worker(&self, thread: usize) -> Result<Box<dyn Worker + '_>> {
        Ok(Box::new(move |place: u64| -> Result<()> {
            // Each of two threads has half of 100 records.
            assert_eq!(place / 50, thread as u64);
            self.sum.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.closed.lock().unwrap().push(self.name);
        Ok(())
    }
}

fn point() -> Point {
    Point {
        workload: "sums".to_owned(),
        x: X::number("records", "", 100.0),
        records: 100,
        size: 8,
        threads: 2,
        pattern: Pattern::Random,
    }
}

fn small(dir: &Path) -> (Args, Detected) {
    let args = Args { dir: Some(dir.to_owned()), ops: Some(4), quick: true, ..Args::default() };
    (args, detect(dir).unwrap())
}

fn rows(outcome: &Outcome) -> Vec<&ComparisonRow> {
    outcome
        .rows
        .iter()
        .map(|row| match row {
            Row::Comparison(row) => &**row,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn rows_have_every_contender_in_turns() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    static CLOSED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let summing =
        |name, missing| -> Box<dyn Contender> { Box::new(Summing { name, missing, sum: &SUM, closed: &CLOSED }) };
    let dir = tempfile::tempdir().unwrap();
    let (args, detected) = small(dir.path());
    let job = Job { benchmark: &BENCHMARK, args: &args, detected: &detected };
    let contenders = [summing("raw", false), summing("absent", true), summing("untorn-a", false)];
    let outcome = run(&job, &contenders, &[point(), point()], &mut |_, _, _| ()).unwrap();
    let rows = rows(&outcome);
    assert_eq!(rows.iter().map(|row| row.system.as_str()).collect::<Vec<_>>(), ["raw", "untorn-a", "raw", "untorn-a"]);
    assert_eq!(outcome.notes, ["without absent: it is not there"]);
    for row in &rows {
        assert!(row.ops_per_s > 0.0 && row.slices_per_s.len() >= 3 && row.latency_ns.ops > 0, "{row:?}");
        assert!(row.latency_ns.p50 <= row.latency_ns.p99_999 && row.latency_ns.p99_999 <= row.latency_ns.max);
        assert_eq!((row.figure, row.baseline.as_str(), row.threads), ("test", "raw", 2));
        assert!(row.ratio > 0.0 && (row.system != "raw" || row.ratio == 1.0), "{row:?}");
        assert!(row.system != "untorn-a" || row.ratio_to_untorn == Some(1.0));
    }
    assert_eq!(CLOSED.lock().unwrap().len(), 4);
    assert!(SUM.load(Ordering::Relaxed) > 0);
    assert!(dir.path().read_dir().unwrap().next().is_none(), "the run leaves nothing behind");
}

#[test]
fn chosen_systems_run_beside_the_baseline_and_untorn() {
    static SUM: AtomicU64 = AtomicU64::new(0);
    static CLOSED: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let summing =
        |name| -> Box<dyn Contender> { Box::new(Summing { name, missing: false, sum: &SUM, closed: &CLOSED }) };
    let dir = tempfile::tempdir().unwrap();
    let (args, detected) = small(dir.path());
    let contenders = [summing("raw"), summing("untorn-a"), summing("b"), summing("c")];
    let args = Args { systems: vec!["c".to_owned()], ..args };
    let job = Job { benchmark: &BENCHMARK, args: &args, detected: &detected };
    let outcome = run(&job, &contenders, &[point()], &mut |_, _, _| ()).unwrap();
    assert_eq!(rows(&outcome).iter().map(|row| row.system.as_str()).collect::<Vec<_>>(), ["raw", "untorn-a", "c"]);
    let args = Args { systems: vec!["oracle".to_owned()], ..args };
    let job = Job { benchmark: &BENCHMARK, args: &args, detected: &detected };
    let error = run(&job, &contenders, &[point()], &mut |_, _, _| ()).unwrap_err();
    assert!(error.to_string().contains("raw untorn-a b c"), "{error}");
    let lonely = Point { records: 1, ..point() };
    let error = run(&Job { args: &small(dir.path()).0, ..job }, &contenders, &[lonely], &mut |_, _, _| ());
    assert!(error.unwrap_err().to_string().contains("2 threads cannot share 1 records"));
}
