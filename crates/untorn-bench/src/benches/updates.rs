//! `updates`: durable updates of records at random places, by every system that can do them.

use untorn::EngineKind;

use super::Progress;
use super::benchmark::{Benchmark, Job, Outcome};
use crate::args::Pattern;
use crate::compare::{self, Atomic, Contender, LogLimit, Map, Msync, Point, Raws, Shared, X, rivals};
use crate::error::{Error, Result};

/// `updates`.
pub(super) const BENCHMARK: Benchmark = Benchmark::new(
    "updates",
    "durable updates of records of 8 bytes, 100 bytes and 4 KiB at random places, by several systems in turns",
    &["size", "threads", "pattern", "system", "records", "len", "seconds", "ops", "seed"],
    run,
);

/// Records in a file are at most this many: a database of small values has tens of bytes beside each.
const MOST_RECORDS: u64 = 100_000;

fn contenders(job: &Job<'_>) -> Vec<Box<dyn Contender>> {
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(Raws { is_pmem: job.is_pmem() }),
        Box::new(LogLimit),
        Box::new(Msync),
        Box::new(Atomic::new(EngineKind::Reflection)),
        Box::new(Atomic::new(EngineKind::HybridLog)),
        Box::new(Map),
        Box::new(Shared),
        Box::new(Atomic::new(EngineKind::Shadow)),
    ];
    contenders.extend(rivals::libraries());
    for rival in rivals::databases() {
        contenders.push(Box::new(rival));
    }
    contenders
}

fn run(job: &Job<'_>, progress: &mut Progress<'_>) -> Result<Outcome> {
    let mut points = Vec::new();
    for pattern in job.args.choose(&job.args.patterns, &[Pattern::Random]) {
        for threads in job.args.choose(&job.args.threads, &[1]) {
            for size in job.args.choose(&job.args.sizes, &[8, 100, 4096]) {
                if size == 0 {
                    return Err(Error::usage("--size is 0; use 1 or more"));
                }
                let fit = (job.file_len() / size as u64).clamp(1, MOST_RECORDS);
                points.push(Point {
                    workload: format!("{pattern} updates, threads: {threads}"),
                    x: X::number("size", " B", size as f64),
                    records: job.args.records.unwrap_or(fit),
                    size,
                    threads,
                    pattern,
                });
            }
        }
    }
    let mut outcome = compare::run(job, &contenders(job), &points, progress)?;
    outcome.notes.extend(rivals::lacking());
    Ok(outcome)
}

#[cfg(test)]
mod tests {
    use untorn::testing::storage::{MediumKind, detect};

    use super::*;
    use crate::args::Args;

    /// A library that no machine has stands for one that is not installed.
    #[test]
    fn a_system_that_is_named_must_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dir: Some(dir.path().to_owned()), ..Args::default() };
        let named = Args { systems: vec!["rocksdb".to_owned()], ..args.clone() };
        let detected = detect(dir.path()).unwrap();
        let job = |args| Job { benchmark: &BENCHMARK, args, detected: &detected };
        let why = "librocksdb.so is not installed";
        assert_eq!(compare::left_out(&job(&args), "rocksdb", why).unwrap(), format!("without rocksdb: {why}"));
        let error = compare::left_out(&job(&named), "rocksdb", why).unwrap_err().to_string();
        assert!(error.contains("cannot compare rocksdb: librocksdb.so is not installed"), "{error}");
        assert_eq!(compare::left_out(&job(&named), "libpmem", why).unwrap(), format!("without libpmem: {why}"));
    }

    #[test]
    fn updates_compare_files_with_the_raw_limit() {
        for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
            let dir = tempfile::tempdir().unwrap();
            let args = Args { dir: Some(dir.path().to_owned()), ops: Some(4), quick: true, ..Args::default() };
            let args = Args { records: Some(64), sizes: vec![8, 4096], threads: vec![1, 2], ..args };
            let mut detected = detect(dir.path()).unwrap();
            detected.kind = kind;
            let report = super::super::run_on(&BENCHMARK, &args, &detected, &mut |_, _, _| ()).unwrap();
            assert!(report.to_svg().contains("<polyline") && report.to_table().contains("to untorn"));
            let json = report.to_json();
            let rows = json["rows"].as_array().unwrap();
            let systems: Vec<&str> = rows.iter().map(|row| row["system"].as_str().unwrap()).collect();
            assert!(systems[0] == "copy+fence" || systems[0] == "pwrite+fdatasync");
            for name in ["mmap+msync", "untorn-reflection", "untorn-hybrid-log", "untorn-map"] {
                assert_eq!(systems.iter().filter(|system| **system == name).count(), 4, "{name}");
            }
            for contender in contenders(&Job { benchmark: &BENCHMARK, args: &args, detected: &detected }) {
                let ran = systems.contains(&contender.name().as_str());
                let note = format!("without {}: ", contender.name());
                assert!(ran != report.notes.iter().any(|text| text.starts_with(&note)), "{}", contender.name());
            }
            for row in rows {
                for field in ["workload", "system", "durability", "ops_per_s", "ratio_to_untorn", "ratio"] {
                    assert!(!row[field].is_null(), "{field} of {row}");
                }
                assert!(row["latency_ns"]["p99_999"].is_u64() && row["x"]["value"].is_number(), "{row}");
                let is_counted = row["per_op"]["bytes_stored"].as_f64().is_some_and(|bytes| bytes >= 8.0);
                let files = ["untorn-reflection", "untorn-hybrid-log", "untorn-shadow"];
                let is_file = files.iter().any(|name| row["system"] == *name);
                assert_eq!(is_counted, is_file, "{row}");
            }
        }
    }
}
