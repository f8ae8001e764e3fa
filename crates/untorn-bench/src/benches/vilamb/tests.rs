//! Every experiment, small: who takes part, and that each number is there. No test here looks at a rate.

use serde_json::Value;
use untorn::testing::storage::detect;

use super::*;
use crate::benches::run_on;

/// The rows of an experiment that has this much of everything.
fn rows(benchmark: &Benchmark) -> Vec<Value> {
    let dir = tempfile::tempdir().unwrap();
    let takes = |option: &str| benchmark.takes.contains(&option);
    let args = Args {
        dir: Some(dir.path().to_owned()),
        sizes: if takes("size") { vec![64, 4096] } else { vec![] },
        threads: if takes("threads") { vec![1, 2] } else { vec![] },
        periods: if takes("period") { vec![0.01] } else { vec![] },
        seconds: Some(0.02),
        ops: takes("ops").then_some(4),
        file_len: Some(64 * PAGE),
        quick: true,
        ..Args::default()
    };
    benchmark.check_options(&args).unwrap();
    let mut last = (0, 0);
    let mut progress = |done: u64, total: u64, _: &str| last = (done, total);
    let detected = detect(dir.path()).unwrap();
    let report = run_on(benchmark, &args, &detected, &mut progress).unwrap();
    assert!(last.0 == last.1 && last.1 > 0, "{}: the progress ends at its end: {last:?}", benchmark.name);
    assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "{}: files are left", benchmark.name);
    assert!(report.notes.iter().any(|note| note.to_lowercase().contains("the paper has")), "{:?}", report.notes);
    assert!(report.to_svg().trim_end().ends_with("</svg>") && report.to_table().lines().count() > report.rows.len());
    report.to_json()["rows"].as_array().unwrap().clone()
}

#[test]
fn figures_compare_no_redundancy_periods_and_at_once() {
    let systems = ["no-redundancy", "untorn-0.01s", "untorn-at-once"];
    for (benchmark, points) in [(FIG1, 2), (FIG4, 6), (FIG5, 8), (FIG6, 12), (FIG7, 4), (FIG8, 12)] {
        let rows = rows(&benchmark);
        assert_eq!(rows.len(), points * systems.len(), "{}", benchmark.name);
        for (nth, row) in rows.iter().enumerate() {
            assert_eq!(row["system"], systems[nth % systems.len()], "{row}");
            assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["latency_ns"]["ops"].as_u64() > Some(0), "{row}");
            assert_eq!((&row["figure"], &row["baseline"]), (&benchmark.name.into(), &"no-redundancy".into()));
        }
    }
}

#[test]
fn the_cost_of_dirty_bits_has_sizes_and_batches() {
    let rows = rows(&FIG9);
    let sizes: Vec<u64> = rows.iter().map(|row| row["file_len"].as_u64().unwrap() / PAGE).collect();
    assert_eq!(sizes, [4, 8, 16, 32, 64]);
    for row in rows {
        let dirty = row["dirty_pages"].as_u64().unwrap();
        assert!(dirty > 0 && dirty <= row["file_len"].as_u64().unwrap() / PAGE, "{row}");
        assert!(row["total_ms"].as_f64().unwrap() > 0.0, "{row}");
    }
}

#[test]
fn the_time_to_data_loss_follows_from_the_vulnerable_stripes() {
    let rows = rows(&MTTDL);
    assert_eq!(rows.len(), 6 * 2);
    for row in rows {
        let (pages, stripes) = (row["pages"].as_f64().unwrap(), row["vulnerable_stripes"].as_f64().unwrap());
        assert_eq!(pages, 64.0 + 16.0);
        assert!((0.0..=16.0).contains(&stripes) && row["looks"].as_u64() > Some(0), "{row}");
        if let Some(gain) = row["mttdl_gain"].as_f64() {
            assert!((gain - pages / (5.0 * stripes)).abs() < 1e-9, "{row}");
        }
        let (seconds, joules) = (row["full_coverage_s"].as_f64().unwrap(), row["joules"].as_f64().unwrap());
        assert!((joules - 500.0 * seconds).abs() < 1e-9, "{row}");
    }
}

#[test]
fn a_pass_counts_in_the_slice_that_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![7; 64 * PAGE as usize]).unwrap();
    let memory = Dax::new(MediumKind::AssumedPmem).open(&path, Access::ReadWrite, 64 * PAGE).unwrap();
    let protected = ProtectOptions::new().on_demand().open(&path).unwrap();
    let mut rows = vec![];
    protected.sync().unwrap();
    for period in [Duration::ZERO, Duration::from_secs(3600)] {
        drop(protected.announce(0..1).unwrap());
        memory.store(0, &[8]).unwrap();
        let operation: Operation<'_> = Box::new(|_| Ok(()));
        let mut passing = Passing { operation, protected: &protected, period, clock: Duration::ZERO, due: period };
        let (ops, time) = passing.slice(Slice::of_ops(4)).unwrap();
        assert_eq!((ops, passing.clock), (4, time));
        rows.push(protected.coverage().unwrap().uncovered);
    }
    assert_eq!(rows, [0, 1]);
    protected.close().unwrap();
}
