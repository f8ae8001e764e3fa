//! The verbs on a file of the engine `hybrid-log`, from its creation over a crash to a plain file.

use std::fs;

use crate::common::{Place, UNTORN, crashed, run, untorn, untorn_with};

const ENGINE: [&str; 2] = ["--engine", "hybrid-log"];
const KEEP: &str = "--keep-sidecar";

#[test]
fn every_verb_serves_a_hybrid_log_file() {
    let place = Place::empty();
    let arguments = ["--len=1M", ENGINE[0], ENGINE[1], "--log-policy=redo", "--log-size=8M", "--json", KEEP];
    let made = untorn(&[&["create", place.name()], &arguments[..]].concat()).expect(0).json();
    assert_eq!(
        (&made["engine"], &made["durability"], &made["layout"]),
        (&ENGINE[1].into(), &"commit".into(), &().into())
    );

    untorn_with(&["write", place.name(), "--offset", "4090", KEEP], b"across a page").expect(0);
    assert_eq!(untorn(&["read", place.name(), "--offset", "4090", "--len", "13"]).expect(0).out, b"across a page");
    let lines = b"{\"offset\":0,\"hex\":\"ff00\"}\n{\"offset\":500000,\"hex\":\"01\"}\n";
    untorn_with(&["apply", place.name(), KEEP], lines).expect(0);
    untorn(&["resize", place.name(), "--len", "600000", KEEP]).expect(0);
    let bytes = place.read();
    assert_eq!((bytes.len(), bytes[0], bytes[500_000]), (600_000, 0xff, 1));

    let info = place.info();
    assert_eq!((&info["engine"], &info["state"], &info["len"]), (&ENGINE[1].into(), &"clean".into(), &600_000.into()));
    assert!(info["sidecar"]["bytes"].as_u64().is_some_and(|bytes| bytes > 2 << 20), "{info}");
    let text = untorn(&["check", place.name()]).expect(0).prose();
    assert!(text.contains("the log holds no undeployed data") && !text.contains("bitmap"), "{text}");
    assert!(text.contains("(2.1 MiB), the log"), "{text}");
    let recovered = untorn(&["recover", place.name(), "--json", KEEP]).expect(0).json();
    assert_eq!(recovered["recovery"]["was_needed"], false);

    untorn(&["settle", place.name()]).expect(0);
    assert_eq!(place.bytes(), bytes);
    assert!(place.info()["engine"].is_null());
}

#[test]
fn a_killed_writer_leaves_a_file_to_recover() {
    let place = crashed(&ENGINE);
    assert_eq!(untorn(&["info", place.name(), "--json"]).expect(1).json()["state"], "needs-recovery");
    untorn(&["check", place.name()]).expect(1).names("untorn recover");
    let committed = untorn(&["read", place.name()]).expect(0).out;
    let done = untorn(&["recover", place.name()]).expect(0).text();
    assert!(done.contains("log entry applied") || done.contains("log entries applied"), "{done}");
    let bytes = place.read();
    assert!(bytes == committed, "recovery found another commit than the reader");
    untorn(&["check", place.name()]).expect(0);
    untorn(&["recover", place.name()]).expect(0);
    assert_eq!(place.read(), bytes);
}

#[test]
fn an_open_with_another_engine_says_where_the_bytes_are() {
    let place = crashed(&ENGINE);
    let parent = std::process::id().to_string();
    let arguments =
        ["torture-writer", place.name(), "--seed=1", "--engine=reflection", "--start=1", "--durability=commit"];
    let arguments = [&arguments[..], &["--parent", &parent]].concat();
    let refused = untorn(&arguments).expect(64).names("the hybrid-log engine");
    assert!(refused.err.contains("settle it first"), "{}", refused.err);
    // Once it is clean the log has nothing of it.
    untorn(&["recover", place.name()]).expect(0);
    let bytes = place.read();
    let options = untorn::Options::new().engine(untorn::EngineKind::Reflection).keep_sidecar(true);
    let file = options.open(&place.file).expect("it is clean");
    let mut seen = vec![0; bytes.len()];
    file.read_at(&mut seen, 0).expect("readable");
    file.close().expect("nothing fails here");
    assert!(seen == bytes, "the bytes changed with the engine");
    assert_eq!(place.info()["engine"], "reflection");
}

#[test]
fn refused_log_options_leave_no_file() {
    let place = Place::empty();
    let create = |more: &[&str]| untorn(&[&["create", place.name(), "--len", "1M"], more].concat());
    create(&[ENGINE[0], ENGINE[1], "--log-size", "1K"]).expect(64).names("256 KiB");
    create(&["--log-policy", "redo"]).expect(64).names("--engine hybrid-log");
    create(&["--engine", "reflection", "--log-size", "8M"]).expect(64).names("--engine hybrid-log");
    // A device with persistent memory is none of the test's.
    if untorn(&["doctor", place.dir(), "--json"]).json()["medium"] != "pmem" {
        create(&[ENGINE[0], ENGINE[1], "--log-policy", "undo"]).expect(64).names("persistent memory");
    }
    assert!(!place.file.exists());
    untorn(&["torture", "--log-size", "8M"]).expect(64).names("--engine hybrid-log");
    untorn(&["torture", ENGINE[0], ENGINE[1], "--medium", "block", "--log-size", "8M"])
        .expect(64)
        .names("--medium block");
    // There the log may be set, so that what is refused is what has no DAX.
    let dax = |more: &[&str]| untorn(&[&["torture", "--medium=dax"], more].concat()).expect(64);
    dax(&["--log-policy=undo"]).names("--engine hybrid-log");
    dax(&[ENGINE[0], ENGINE[1], "--log-policy=undo", "--log-size=2M", "--fs=btrfs"])
        .names("btrfs does not support DAX");
    dax(&["--map", "--log-size=2M", "--fs=btrfs"]).names("does not support DAX");
    dax(&["--region", "--fs=btrfs"]).names("does not support DAX");
    dax(&["--region", "--log-size=2M"]).names("--region");
    untorn(&["bench", "atomic-write", "--log-policy", "redo"]).expect(64).names("--engine hybrid-log");
}

#[test]
fn torture_finds_nothing_under_any_policy() {
    let memory = std::path::Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a temporary directory can be made");
    let dir = dir.path().to_str().expect("text");
    // The last one fills all the time.
    for (policy, size) in [("undo", "64M"), ("redo", "64M"), ("hybrid", "5M")] {
        let log = ["--log-policy", policy, "--log-size", size, "--dir", dir, "--json"];
        let arguments = [&["torture", "--seconds=1"], &ENGINE[..], &log].concat();
        let mut command = std::process::Command::new("env");
        command.args(["UNTORN_ASSUME_PMEM=1", UNTORN]).args(&arguments);
        let report = run(&mut command, &arguments, b"").expect(0).json();
        assert_eq!((&report["engine"], &report["violations"]), (&ENGINE[1].into(), &0.into()), "{report}");
    }
}

#[test]
fn the_doctor_says_when_to_choose_it() {
    let place = Place::empty();
    let found = untorn(&["doctor", place.dir(), "--json"]).json();
    let reasons: Vec<&str> = found["reasons"].as_array().expect("a list").iter().filter_map(|r| r.as_str()).collect();
    assert!(reasons.iter().any(|reason| reason.contains("hybrid-log")), "{reasons:?}");
}

#[test]
fn help_and_man_page_show_the_options() {
    for verb in ["create", "torture", "bench"] {
        let help = untorn(&[verb, "--help"]).expect(0).text();
        for word in ["hybrid-log", "--log-policy", "--log-size", "undo"] {
            assert!(help.contains(word), "{verb} --help has no {word}");
        }
    }
    let completions = untorn(&["completions", "bash"]).expect(0).text();
    assert!(completions.contains("--log-policy") && completions.contains("hybrid undo redo"), "no completion");
    let place = Place::empty();
    let dir = place.dir.path().join("man");
    untorn(&["man", "--out", dir.to_str().expect("text")]).expect(0);
    let page = fs::read_to_string(dir.join("untorn-create.1")).expect("the page is there");
    assert!(page.contains("log\\-policy"), "{page}");
}
