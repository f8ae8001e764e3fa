//! Every benchmark, small: the shape of what it reports, and that it leaves nothing behind. Nothing here looks at a
//! rate.

use std::path::Path;

use serde_json::Value;
use untorn::EngineKind;
use untorn::medium::{Dax, PageCache};

use super::*;

fn small(dir: &Path) -> Args {
    Args {
        dir: Some(dir.to_owned()),
        sizes: vec![64, 4096],
        threads: vec![1, 2],
        file_len: Some(64 * 4096),
        ops: Some(4),
        commit_every: 4,
        ..Args::default()
    }
}

fn is_empty(dir: &Path) -> bool {
    std::fs::read_dir(dir).unwrap().next().is_none()
}

/// Runs on the medium given, whatever the directory is on, and checks what every report has.
fn report(kind: MediumKind, bench: &'static str, args: &Args) -> Value {
    let dir = args.dir();
    let mut detected = detect(&dir).unwrap();
    detected.kind = kind;
    let mut last = (0, 0);
    let mut progress = |done: u64, total: u64, what: &str| {
        assert!(done <= total && !what.is_empty());
        last = (done, total);
    };
    let report = match kind {
        MediumKind::AssumedPmem => run_on(Pmem(kind), bench, args, &detected, &mut progress),
        _ => run_on(Block(kind), bench, args, &detected, &mut progress),
    };
    let report = report.unwrap();
    assert!(last.0 == last.1 && last.1 > 0, "the progress ends at its end: {last:?}");
    assert!(is_empty(&dir), "the run leaves nothing behind");
    let table = report.to_table();
    assert!(table.lines().count() > report.rows.len(), "{table}");
    assert!(table.contains("ratio"));
    let svg = report.to_svg();
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>") && svg.contains("<rect"), "{svg}");
    let json = report.to_json();
    assert_eq!(json["bench"], bench);
    for field in ["cpu", "cores", "kernel", "flush", "simd", "medium", "dir", "fs"] {
        assert!(!json["machine"][field].is_null(), "machine.{field}");
    }
    json
}

const COPY_FIELDS: [&str; 11] = [
    "engine",
    "order",
    "size",
    "threads",
    "pattern",
    "ops_per_s",
    "raw_ops_per_s",
    "ratio",
    "fences_per_op",
    "flushes_per_op",
    "bytes_per_op",
];

fn check_copies(json: &Value, expected: usize) {
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), expected);
    for row in rows {
        for field in COPY_FIELDS {
            assert!(!row[field].is_null(), "{field} in {row}");
        }
        assert!(["one-fence", "two-fence"].contains(&row["order"].as_str().unwrap()));
        assert!(row["pairs"].as_u64().unwrap() >= 15);
        assert_eq!(row["scaling_vs_raw"].is_null(), row["threads"] == 1);
    }
}

#[test]
fn atomic_write_on_persistent_memory() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::AssumedPmem, "atomic-write", &small(dir.path()));
    check_copies(&json, 2 * 2 * 2 * 2);
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["durability"] == "write"));
    assert!(json["notes"][0].as_str().unwrap().contains("not durable"));
}

#[test]
fn atomic_write_on_a_block_medium_commits_each() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::Volatile, "atomic-write", &small(dir.path()));
    check_copies(&json, 2 * 2 * 2);
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["commit_every"] == 1));
}

#[test]
fn atomic_commit_has_a_bare_arm() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::AssumedPmem, "atomic-commit", &small(dir.path()));
    check_copies(&json, 2 * 2 * 2 * 2);
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["commit_every"], 4);
        assert!(row["bare_ops_per_s"].is_number() && row["bare_ratio"].is_number());
    }
}

#[test]
fn atomic_read_reads_settled_gathered_and_deployed_pages() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::AssumedPmem, "atomic-read", &small(dir.path()));
    check_copies(&json, 3 * 2 * 2 * 2);
    let states: std::collections::BTreeSet<_> = json["rows"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| (row["state"].as_str().unwrap(), row["read_policy"].as_str().unwrap()))
        .collect();
    assert_eq!(Vec::from_iter(states), [("reflected", "deploy"), ("reflected", "gather"), ("settled", "gather")]);
    for row in json["rows"].as_array().unwrap().iter().filter(|row| row["state"] == "settled") {
        assert_eq!((row["fences_per_op"].as_f64(), row["bytes_per_op"].as_f64()), (Some(0.0), Some(0.0)));
    }
}

#[test]
fn group_commit_counts_flush_rounds() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::Volatile, "group-commit", &Args { sizes: vec![64], ..small(dir.path()) });
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        for field in ["engine", "threads", "commits_per_s", "raw_commits_per_s", "ratio", "flush_rounds_per_commit"] {
            assert!(!row[field].is_null(), "{field} in {row}");
        }
    }
}

#[test]
fn the_passthrough_engine_is_counted_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { engines: vec![EngineKind::Passthrough], sizes: vec![256], ..small(dir.path()) };
    for row in report(MediumKind::AssumedPmem, "atomic-write", &args)["rows"].as_array().unwrap() {
        let counted = ["fences_per_op", "flushes_per_op", "bytes_per_op"].map(|field| row[field].as_f64().unwrap());
        assert_eq!(counted, [1.0, 0.0, 256.0]);
    }
}

#[test]
fn group_commit_is_refused_on_persistent_memory() {
    let dir = tempfile::tempdir().unwrap();
    let detected = detect(dir.path()).unwrap();
    let target = Pmem(MediumKind::AssumedPmem);
    let error = run_on(target, "group-commit", &small(dir.path()), &detected, &mut |_, _, _| ()).unwrap_err();
    assert!(matches!(error, Error::WrongMedium { .. }));
    assert!(is_empty(dir.path()));
}

#[test]
fn nothing_is_made_for_arguments_that_cannot_run_or_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: Args| run("atomic-write", &args, &mut |_, _, _| ()).unwrap_err();
    assert!(matches!(run(Args { threads: vec![0], ..small(dir.path()) }), Error::Usage { .. }));
    assert!(matches!(run(Args { file_len: Some(1 << 52), ..small(dir.path()) }), Error::NoSpace { .. }));
    assert!(is_empty(dir.path()));
}

#[test]
fn a_failing_run_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let args = small(dir.path());
    let rig = Rig::new(Block(MediumKind::Volatile), &args, dir.path()).unwrap();
    assert!(!is_empty(dir.path()));
    assert!(rig.fresh(&Options::new().max_len(1)).is_err() || rig.fresh(&Options::new().record_area(0, 0)).is_err());
    drop(rig);
    assert!(is_empty(dir.path()));
}

#[test]
fn scaling_is_the_ratio_of_ratios_of_rows_alike() {
    let setup = Setup {
        engine: EngineKind::Auto,
        order: Order::OneFence,
        durability: Durability::PerWrite,
        read_policy: ReadPolicy::Gather,
        log_policy: None,
        log_size: None,
    };
    let case = |threads, size| Case { size, threads, pattern: Pattern::Random };
    let row = |threads, size, ours: f64| {
        Row::Copy(setup.row(EngineKind::Reflection, &case(threads, size), &[vec![ours; 3], vec![100.0; 3]]))
    };
    let mut rows = [row(1, 64, 80.0), row(2, 64, 60.0), row(2, 256, 60.0)];
    add_scaling(&mut rows);
    let scaling: Vec<Option<f64>> = rows.iter().filter_map(Row::as_copy).map(|row| row.scaling_vs_raw).collect();
    assert_eq!(scaling[0], None);
    assert!((scaling[1].unwrap() - 0.75).abs() < 1e-9);
    assert_eq!(scaling[2], None);
}

#[test]
fn counted_media_serve_engines() {
    let dir = tempfile::tempdir().unwrap();
    let args = small(dir.path());
    fn written<T: Target>(target: T, args: &Args, dir: &Path) -> u64 {
        let rig = Rig::new(target, args, dir).unwrap();
        let options = Options::new();
        rig.fresh(&options).unwrap().close().unwrap();
        let (file, counters) = rig.counted(&options).unwrap();
        let before = counters.counts();
        file.write_at(&[3; 200], 4000).unwrap();
        file.sync().unwrap();
        let mut back = [0; 200];
        file.read_at(&mut back, 4000).unwrap();
        assert_eq!(back, [3; 200]);
        (counters.counts() - before).bytes
    }
    assert!(written(Pmem(MediumKind::AssumedPmem), &args, dir.path()) >= 200);
    assert!(written(Block(MediumKind::Block), &args, dir.path()) >= 200);
    // The names below are what other crates wrap.
    let _ = (crate::Counting::new(Dax::new(MediumKind::AssumedPmem)), crate::Counting::new(PageCache::new()));
}
