//! Every benchmark, small: the shape of what it reports, and that it leaves nothing behind. No test here looks at a
//! rate.

mod figures;

use std::path::Path;

use serde_json::Value;
use untorn::options::{LogPolicy, Order, ReadPolicy};
use untorn::testing::storage::{Dax, PageCache};
use untorn::{Durability, EngineKind, Options};

use super::cases::{Case, FILE, Setup, add_scaling};
use super::*;
use crate::args::Pattern;
use crate::measure::Series;
use crate::raw::{Block, Pmem, Target};
use crate::report::Row;
use crate::rig::Rig;

fn small(dir: &Path) -> Args {
    Args {
        dir: Some(dir.to_owned()),
        sizes: vec![64, 4096],
        threads: vec![1, 2],
        file_len: Some(64 * 4096),
        ops: Some(4),
        commit_every: Some(4),
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
    let report = run_on(find(bench).unwrap(), args, &detected, &mut progress).unwrap();
    assert!(last.0 == last.1 && last.1 > 0, "the progress ends at its end: {last:?}");
    assert!(is_empty(&dir), "the run leaves nothing behind");
    let table = report.to_table();
    assert!(table.lines().count() > report.rows.len(), "{table}");
    let heading = match bench {
        "idle" => "cpu share",
        "redundancy" => "cpu overhead %",
        "redundancy-pass" => "cpu ms/GiB",
        _ => "ratio",
    };
    assert!(table.contains(heading), "{table}");
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
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["durability"], "write");
        assert!(row["bare_ratio"].is_null() && row["model_ops_per_s"].is_number());
        assert!(row["model_ratio"].as_f64().unwrap() > 0.0 && row["share_of_model"].as_f64().unwrap() > 0.0);
    }
    assert!(json["notes"][0].as_str().unwrap().contains("not durable"));
}

#[test]
fn atomic_write_on_a_block_medium_commits_each() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::Volatile, "atomic-write", &small(dir.path()));
    check_copies(&json, 2 * 2 * 2);
    assert!(
        json["rows"].as_array().unwrap().iter().all(|row| row["commit_every"] == 1 && row["model_ratio"].is_null())
    );
}

#[test]
fn atomic_commit_has_a_bare_arm() {
    let dir = tempfile::tempdir().unwrap();
    let json = report(MediumKind::AssumedPmem, "atomic-commit", &small(dir.path()));
    check_copies(&json, 2 * 2 * 2 * 2);
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["commit_every"], 4);
        assert!(row["bare_ops_per_s"].is_number() && row["bare_ratio"].is_number());
        assert!(row["model_ops_per_s"].is_number() && row["share_of_model"].is_number());
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
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["model_ratio"].is_number(), row["state"] == "settled");
    }
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

/// Small, under the hybrid-log engine.
fn logged(dir: &Path, log_policies: &[LogPolicy]) -> Args {
    Args {
        engines: vec![EngineKind::HybridLog],
        orders: vec![Order::OneFence],
        patterns: vec![Pattern::Random],
        log_policies: log_policies.to_vec(),
        ..small(dir)
    }
}

#[test]
fn a_log_is_counted_with_its_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { checkpointers: Some(0), redo_from: Some(40), ..logged(dir.path(), &[LogPolicy::Redo]) };
    let json = report(MediumKind::AssumedPmem, "atomic-commit", &args);
    check_copies(&json, 2 * 2);
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["log_policy"], "redo");
        // Every byte goes to the log once; home goes at least the last of those that were written to a block.
        let bytes = row["bytes_per_user_byte"].as_f64().unwrap();
        assert!(bytes > 1.0 && bytes * row["size"].as_f64().unwrap() == row["bytes_per_op"].as_f64().unwrap());
        let barriers = row["barriers_per_op"].as_object().unwrap();
        assert!(barriers.contains_key("hybrid-log.epoch.record") && barriers.contains_key("hybrid-log.checkpoint.cut"));
        // A thread whose writes another thread's commit took along has none of its own to make.
        assert!(row["fences_per_commit"].as_f64().unwrap() * row["threads"].as_f64().unwrap() >= 1.0);
        assert!(row["cpu_ratio"].as_f64().unwrap() > 0.0);
        assert_eq!(row["scaling_vs_bare"].is_null(), row["threads"] == 1);
        assert_eq!(row["cpu_scaling_vs_raw"].is_null(), row["threads"] == 1);
    }
}

#[test]
fn reads_have_rows_for_every_logging_policy() {
    let dir = tempfile::tempdir().unwrap();
    // No thread that carries entries home while the reads are counted.
    let args = Args { checkpointers: Some(0), ..logged(dir.path(), &[LogPolicy::Undo, LogPolicy::Redo]) };
    let args = Args { sizes: vec![64], threads: vec![1], ..args };
    let json = report(MediumKind::AssumedPmem, "atomic-read", &args);
    check_copies(&json, 2 * 2);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.iter().filter(|row| row["log_policy"] == "undo").count(), 2);
    assert!(rows.iter().all(|row| row["read_policy"] == "gather" && row["bytes_per_op"] == 0.0));
}

#[test]
fn commit_time_has_a_row_for_each_number_of_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { dirty: vec![2, 32], sizes: vec![64], orders: vec![Order::OneFence], ..small(dir.path()) };
    let json = report(MediumKind::AssumedPmem, "commit-time", &Args { threads: vec![1], patterns: vec![], ..args });
    let rows = json["rows"].as_array().unwrap();
    let of = |row: &Value| (row["engine"].as_str().unwrap().to_owned(), row["dirty_blocks"].as_u64().unwrap());
    let expected = [("reflection", 2), ("reflection", 32), ("hybrid-log", 2), ("hybrid-log", 32)];
    assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected.map(|(engine, dirty)| (engine.to_owned(), dirty)));
    for row in rows {
        assert!(row["commit_ns"].as_f64().unwrap() > 0.0 && row["raw_ns"].as_f64().unwrap() > 0.0);
        assert!(row["fences_per_commit"].as_f64().unwrap() >= 1.0);
        // Each against itself is one; what the others come to is a measurement, and may be one by chance.
        let to_fewest = row["to_fewest"].as_f64().unwrap();
        assert!(if row["dirty_blocks"] == 2 { to_fewest == 1.0 } else { to_fewest > 0.0 }, "{row}");
    }
    // The cost of a commit does not depend on what it commits. This is the purpose of the log.
    let fences = |row: &Value| (row["fences_per_commit"].as_f64(), row["bytes_per_commit"].as_f64());
    assert_eq!(fences(&rows[2]), fences(&rows[3]));
}

#[test]
fn map_commit_has_a_row_for_each_way_and_number_of_pages() {
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dirty: vec![1, 16], sizes: vec![1, 4096], threads: vec![1], ..small(dir.path()) };
        let json = report(kind, "map-commit", &Args { patterns: vec![Pattern::Random], ..args });
        let rows = json["rows"].as_array().unwrap();
        let ways = if rows[0]["tracking"] == "write-protect" { 2 } else { 1 };
        assert_eq!(rows.len(), ways * 2 * 2);
        for row in rows {
            for field in ["commit_ns", "raw_ns", "time_to_raw", "store_ns", "pages_per_s", "raw_pages_per_s"] {
                assert!(row[field].as_f64().unwrap() > 0.0, "{field} of {row}");
            }
        }
    }
}

#[test]
fn region_flush_has_the_rows_of_map_commit() {
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { dirty: vec![1, 16], sizes: vec![1], threads: vec![1], ..small(dir.path()) };
        let json = report(kind, "region-flush", &Args { patterns: vec![Pattern::Random], ..args });
        let rows = json["rows"].as_array().unwrap();
        let ways = if rows[0]["tracking"] == "write-protect" { 2 } else { 1 };
        assert_eq!(rows.len(), ways * 2);
        assert!(
            rows.iter().all(|row| row["commit_ns"].as_f64().unwrap() > 0.0 && row["raw_ns"].as_f64().unwrap() > 0.0)
        );
    }
}

#[test]
fn redundancy_has_rows_for_off_tracking_and_on_per_period() {
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        let dir = tempfile::tempdir().unwrap();
        let (periods, rate) = (vec![0.01, 0.02], Some(1_000_000));
        let args = Args { sizes: vec![], periods, rate, seconds: Some(0.02), ops: None, ..small(dir.path()) };
        let json = report(kind, "redundancy", &Args { threads: vec![2], ..args });
        let rows = json["rows"].as_array().unwrap();
        let of = |row: &Value| (row["redundancy"].as_str().unwrap().to_owned(), row["period_s"].as_f64());
        let each =
            [("off", None), ("tracking", Some(0.01)), ("on", Some(0.01)), ("tracking", Some(0.02)), ("on", Some(0.02))];
        let each = each.map(|(what, period)| (what.to_owned(), period));
        let of_map: Vec<_> = each.iter().filter(|(what, _)| what != "tracking").cloned().collect();
        assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), [&each[..], &of_map, &each].concat());
        assert!(rows[..8].iter().all(|row| row["workload"] == "key-value" && row["offered_per_s"] == 1_000_000));
        assert!(rows.iter().enumerate().all(|(at, row)| (row["system"] == "atomic-map") == (5..8).contains(&at)));
        assert!(rows[8..].iter().all(|row| row["workload"] == "random-stores" && row["offered_per_s"].is_null()));
        for row in rows {
            assert!(row["ops_per_s"].as_f64().unwrap() > 0.0 && row["cpu_us_per_op"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["overhead"].is_number() && row["cpu_overhead"].is_number() && row["threads"] == 2);
            // Each runs to the end of a pass.
            assert_eq!(row["passes"].as_u64().unwrap() > 0, row["redundancy"] != "off", "{row}");
            let over_time = row["over_time"].as_array();
            assert_eq!(over_time.is_some(), row["redundancy"] == "on" && row["system"] == "plain-mapping");
            if let Some(looks) = over_time {
                assert_eq!((looks.len(), &row["stripes"]), (2 * 20 + 2, &16.into()));
                assert!(looks.iter().all(|look| look["vulnerable_stripes"].as_u64().unwrap() <= 16));
                // No thread stores any more at the last look, and everything is covered.
                assert_eq!(looks.last().unwrap()["uncovered_pages"], 0);
                assert!(row["full_coverage_s"].as_f64().unwrap() > 0.0);
            }
        }
    }
}

#[test]
fn an_idle_pass_is_timed_for_each_tracking_method() {
    for kind in [MediumKind::AssumedPmem, MediumKind::Volatile] {
        let dir = tempfile::tempdir().unwrap();
        let args = Args { sizes: vec![], threads: vec![], seconds: Some(0.01), ..small(dir.path()) };
        let json = report(kind, "redundancy-pass", &args);
        let rows = json["rows"].as_array().unwrap();
        let of = |row: &Value| (row["tracking"].as_str().unwrap().to_owned(), row["what"].as_str().unwrap().to_owned());
        let expected = [("page-tables", "look"), ("page-tables", "pass"), ("announced", "pass")];
        assert_eq!(rows.iter().map(of).collect::<Vec<_>>(), expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
        for row in rows {
            assert!(row["cpu_ms"].as_f64().unwrap() >= 0.0 && row["wall_ms"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["passes"].as_u64().unwrap() >= 5);
        }
    }
}

#[test]
fn every_way_of_a_kernel_is_measured_against_a_read() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { sizes: vec![], threads: vec![], seconds: Some(0.001), ..small(dir.path()) };
    let json = report(MediumKind::Volatile, "redundancy-kernels", &args);
    let rows = json["rows"].as_array().unwrap();
    for (kernel, size, ways) in [
        ("crc32c", 4096, untorn::testing::simd::crc32c_ways().iter().map(|way| way.name).collect::<Vec<_>>()),
        ("parity", 16384, untorn::testing::simd::parity_ways().iter().map(|way| way.name).collect()),
    ] {
        assert!(ways.contains(&"portable"));
        for pattern in ["sequential", "random"] {
            let is_of_it = |row: &&Value| row["kernel"] == kernel && row["pattern"] == pattern;
            let of_it: Vec<&Value> = rows.iter().filter(is_of_it).collect();
            assert!(of_it.iter().map(|row| row["way"].as_str().unwrap()).eq(ways.iter().copied()), "{json}");
            for row in of_it {
                assert_eq!(row["size"], size);
                assert!(row["ratio"].as_f64().unwrap() > 0.0 && row["pairs"].as_u64().unwrap() >= 15);
            }
        }
    }
    let small = Args { dir: args.dir.clone(), file_len: Some(8192), ..Args::default() };
    assert!(matches!(run("redundancy-kernels", &small, &mut |_, _, _| ()).unwrap_err(), Error::Usage { .. }));
}

#[test]
fn redundancy_of_a_mapping_is_refused_on_persistent_memory() {
    let dir = tempfile::tempdir().unwrap();
    let mut detected = detect(dir.path()).unwrap();
    detected.kind = MediumKind::PersistentMemory;
    for bench in ["redundancy", "redundancy-pass"] {
        let args = Args { threads: vec![], ..small(dir.path()) };
        let error = run_on(find(bench).unwrap(), &args, &detected, &mut |_, _, _| ()).unwrap_err();
        assert!(matches!(error, Error::WrongMedium { .. }), "{error}");
    }
    assert!(is_empty(dir.path()));
}

#[test]
fn hybrid_policy_compares_the_policies() {
    let dir = tempfile::tempdir().unwrap();
    let args = Args { sizes: vec![4096], threads: vec![1], reads: vec![0, 50, 100], ..logged(dir.path(), &[]) };
    let json = report(MediumKind::AssumedPmem, "hybrid-policy", &args);
    check_copies(&json, 3 * 3);
    for row in json["rows"].as_array().unwrap() {
        assert_eq!(row["share_of_better"].is_number(), row["log_policy"] == "hybrid");
        assert_eq!(row["reads_percent"] == 100, row["bytes_per_op"] == 0.0, "{row}");
    }
}

#[test]
fn hybrid_policy_is_refused_where_the_log_is_always_redo() {
    let dir = tempfile::tempdir().unwrap();
    let mut detected = detect(dir.path()).unwrap();
    detected.kind = MediumKind::Block;
    let policy = find("hybrid-policy").unwrap();
    let error = run_on(policy, &small(dir.path()), &detected, &mut |_, _, _| ()).unwrap_err();
    assert!(error.to_string().contains("UNTORN_ASSUME_PMEM"), "{error}");
    assert!(is_empty(dir.path()));
}

#[test]
fn idle_reports_the_processor_time_of_each_engine() {
    let dir = tempfile::tempdir().unwrap();
    let engines = vec![EngineKind::Reflection, EngineKind::HybridLog];
    let args = Args { seconds: Some(0.05), engines, orders: vec![Order::OneFence], ..small(dir.path()) };
    let args = Args { threads: vec![], ops: Some(64), ..args };
    let json = report(MediumKind::AssumedPmem, "idle", &args);
    let rows = json["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for row in rows {
        assert!(row["seconds"].as_f64().unwrap() >= 0.05 && row["cpu_share"].as_f64().unwrap() >= 0.0);
        assert!(row["threads"].as_u64().unwrap() >= 1 && row["wakeups"].is_number());
        assert_eq!(row["written"], 64 * 4096);
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
    let mut detected = detect(dir.path()).unwrap();
    detected.kind = MediumKind::AssumedPmem;
    let group = find("group-commit").unwrap();
    let error = run_on(group, &small(dir.path()), &detected, &mut |_, _, _| ()).unwrap_err();
    assert!(matches!(error, Error::WrongMedium { .. }));
    assert!(is_empty(dir.path()));
}

#[test]
fn nothing_is_made_for_arguments_that_cannot_run_or_do_not_fit() {
    let dir = tempfile::tempdir().unwrap();
    let run = |args: Args| run("atomic-write", &Args { commit_every: None, ..args }, &mut |_, _, _| ()).unwrap_err();
    assert!(matches!(run(Args { threads: vec![0], ..small(dir.path()) }), Error::Usage { .. }));
    assert!(matches!(run(Args { file_len: Some(1 << 52), ..small(dir.path()) }), Error::NoSpace { .. }));
    assert!(is_empty(dir.path()));
}

#[test]
fn a_failing_run_leaves_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let args = small(dir.path());
    let rig = Rig::new(Block(MediumKind::Volatile), &args, dir.path(), 1, 0).unwrap();
    assert!(!is_empty(dir.path()));
    let fresh = |options: Options| rig.fresh(FILE, &options);
    assert!(fresh(Options::new().max_len(1)).is_err() || fresh(Options::new().record_area(0, 0)).is_err());
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
    };
    let series = |rate: f64| Series { per_s: vec![rate; 3], per_cpu_s: vec![rate; 3] };
    let case = |threads, size| Case { size, threads, pattern: Pattern::Random };
    let row = |threads, size, ours: f64| {
        Row::from(setup.row(EngineKind::Reflection, &case(threads, size), &[series(ours), series(100.0)]))
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
        let rig = Rig::new(target, args, dir, 1, 0).unwrap();
        let options = Options::new();
        rig.fresh(FILE, &options).unwrap().close().unwrap();
        let (file, counters) = rig.counted(FILE, &options).unwrap();
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
