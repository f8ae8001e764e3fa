//! The benchmarks' report, in the form others parse.

use crate::common::{Place, untorn};

#[test]
fn rows_carry_what_others_parse() {
    let place = Place::empty();
    let dir = place.dir();
    let plot = place.dir.path().join("plot.svg");
    let image = place.dir.path().join("plot.png");
    for name in ["atomic-write", "atomic-read"] {
        let small = ["--size=64", "--threads=1", "--pattern=random", "--len=1M", "--ops=4", "--dir", dir];
        let report = ["--plot", plot.to_str().expect("text"), "--json"];
        let object = untorn(&[&["bench", name][..], &small, &report].concat()).expect(0).json();
        assert_eq!(object["bench"], name);
        assert!(object["machine"].is_object(), "{object}");
        let rows = object["rows"].as_array().expect("there are rows");
        assert!(!rows.is_empty());
        for key in ["engine", "order", "size", "threads", "pattern", "ops_per_s", "raw_ops_per_s", "ratio"] {
            assert!(rows[0].get(key).is_some(), "no {key} in {}", rows[0]);
        }
        for key in ["fences_per_op", "flushes_per_op", "bytes_per_op"] {
            assert!(rows[0].get(key).is_some(), "no {key} in {}", rows[0]);
        }
        let drawn = std::fs::read_to_string(&plot).expect("the plot was drawn");
        assert!(drawn.contains("<svg"));
        std::fs::remove_file(&plot).expect("the plot is ours");
        let report = ["--plot", image.to_str().expect("text"), "--json"];
        untorn(&[&["bench", name][..], &small, &report].concat()).expect(0);
        assert!(std::fs::read(&image).expect("the image was drawn").starts_with(b"\x89PNG\r\n"));
        std::fs::remove_file(&image).expect("the image is ours");
        assert_eq!(place.entries(), [""; 0], "the benchmark left files behind");
    }
}

#[test]
fn bench_reports_the_cost_of_a_log() {
    let place = Place::empty();
    let dir = place.dir();
    let bench = |arguments: &[&str]| {
        let object =
            untorn(&[&["bench"][..], arguments, &["--len=1M", "--json", "--dir", dir]].concat()).expect(0).json();
        object["rows"].as_array().expect("there are rows").clone()
    };
    let small = ["--size=64", "--threads=1", "--pattern=random", "--ops=4", "--sync-every=2"];
    let log = ["--engine=hybrid-log", "--log-policy=redo", "--log-size=64M", "--redo-from=40", "--checkpointers=1"];
    let rows = bench(&[&["atomic-commit"][..], &small, &log].concat());
    assert_eq!(rows[0]["log_policy"], "redo");
    assert_eq!(rows[0]["commit_every"], 2);
    assert!(rows[0]["bytes_per_user_byte"].as_f64().expect("a number") > 1.0);
    let rows = bench(&["commit-time", "--engine=hybrid-log", "--dirty=2,16"]);
    assert_eq!(rows.iter().map(|row| row["dirty_blocks"].as_u64()).collect::<Vec<_>>(), [Some(2), Some(16)]);
    let rows = bench(&["idle", "--engine=hybrid-log", "--seconds=0.05", "--ops=8"]);
    assert!(rows[0]["cpu_share"].is_number());
}

#[test]
fn bench_reports_and_plots_the_cost_of_redundancy() {
    let place = Place::empty();
    let dir = place.dir();
    let plot = place.dir.path().join("plot.svg");
    let bench = |arguments: &[&str]| {
        let report = ["--plot", plot.to_str().expect("text"), "--json", "--dir", dir];
        let object = untorn(&[&["bench"], arguments, &report].concat()).expect(0).json();
        let drawn = std::fs::read_to_string(&plot).expect("the plot was drawn");
        (object["rows"].as_array().expect("there are rows").clone(), drawn)
    };
    let small = ["--workload=key-value", "--reads=50", "--rate=100000", "--period=0.01", "--seconds=0.01", "--len=1M"];
    let (rows, drawn) = bench(&[&["redundancy"][..], &small].concat());
    assert_eq!(
        rows.iter().map(|row| row["redundancy"].as_str()).collect::<Vec<_>>(),
        ["off", "tracking", "on", "off", "on"].map(Some)
    );
    assert!(rows[2]["over_time"].is_array() && rows[2]["cpu_overhead"].is_number(), "{}", rows[2]);
    assert!(drawn.contains("vulnerable stripes") && drawn.contains("time to full coverage"));
    let (rows, _) = bench(&["redundancy-pass", "--len=1M", "--seconds=0.01"]);
    assert!(rows.iter().all(|row| row["cpu_ms"].is_number()));
    let (rows, _) = bench(&["redundancy-kernels", "--len=1M", "--seconds=0.01", "--pattern=sequential"]);
    assert!(rows.iter().all(|row| row["pattern"] == "sequential" && row["ratio"].is_number()));
}

#[test]
fn arguments_that_cannot_run_are_a_usage_error() {
    let place = Place::empty();
    let dir = place.dir();
    let bench = |arguments: &[&str]| untorn(&[&["bench", "atomic-write", "--dir", dir][..], arguments].concat());
    bench(&["--len", "4097"]).expect(64).names("4096");
    bench(&["--threads", "0"]).expect(64);
    bench(&["--seconds", "0"]).expect(64);
    bench(&["--ops", "0"]).expect(64);
    bench(&["--dirty", "0"]).expect(64);
    bench(&["--reads", "101"]).expect(64);
    bench(&["--period", "0"]).expect(64);
    bench(&["--plot", "rows.pdf"]).expect(64).names(".png");
    untorn(&["bench", "atomic-write", "--dir", "/nonexistent/dir"]).expect(74).names("/nonexistent/dir");
}

#[test]
fn an_option_without_effect_is_a_usage_error() {
    let place = Place::empty();
    let bench = |arguments: &[&str]| untorn(&[&["bench"], arguments, &["--dir", place.dir()]].concat());
    bench(&["atomic-read", "--dirty=3"]).expect(64).names("atomic-read does not take --dirty; it takes: --dir --quick");
    bench(&["idle", "--threads=2"]).expect(64).names("--threads");
    bench(&["updates", "--warehouses=2"]).expect(64).names("--warehouses");
    bench(&["all", "--size=8", "--out=results"]).expect(64).names("--size");
    bench(&["all"]).expect(64).names("--out");
    assert_eq!(place.entries(), [""; 0], "a usage error leaves files behind");
}

#[test]
fn updates_compare_systems_and_write_results() {
    let place = Place::empty();
    let out = tempfile::tempdir().expect("a directory");
    let small = ["--quick", "--size=8", "--records=16", "--ops=2", "--json", "--dir", place.dir()];
    let to = ["--out", out.path().to_str().expect("text")];
    let object = untorn(&[&["bench", "updates"][..], &small, &to].concat()).expect(0).json();
    assert_eq!(object["quick"], true);
    let rows = object["rows"].as_array().expect("there are rows");
    for key in ["workload", "system", "ops_per_s", "ratio_to_untorn", "durability", "latency_ns", "per_op"] {
        assert!(rows.iter().all(|row| row.get(key).is_some()), "no {key} in {}", rows[0]);
    }
    let mut names: Vec<_> = std::fs::read_dir(out.path())
        .expect("the directory is there")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["updates.json", "updates.md", "updates.png", "updates.svg"]);
    assert_eq!(place.entries(), [""; 0], "the benchmark left files behind");
}
