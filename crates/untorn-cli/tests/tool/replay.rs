//! `untorn replay` and `untorn log info`, with the exit codes and the JSON that scripts bind to.

use std::os::fd::AsFd;
use std::path::Path;

use crate::common::untorn;
use untorn::write_cache::{CacheOptions, WriteCache};

fn cache(log: &Path) -> WriteCache {
    CacheOptions::new().size(1 << 20).max_files(8).background(false).create(log).expect("a log")
}

/// Writes to a file through a log, and leaves it there.
fn leave(cache: &WriteCache, path: &Path, bytes: &[u8]) {
    std::fs::write(path, b"").expect("a file");
    let plain = std::fs::File::open(path).expect("the file");
    let file = cache.attach(plain.as_fd(), path).expect("a handle");
    file.write_at(bytes, 0).expect("a write");
    file.sync().expect("a sync");
}

#[test]
fn a_log_is_shown_and_replayed_once() {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let (log, data) = (dir.path().join("log"), dir.path().join("data"));
    let name = log.to_str().expect("a name in UTF-8");
    let open = cache(&log);
    leave(&open, &data, b"of the log");
    untorn(&["replay", name]).expect(74).names("log");
    drop(open);
    let info = untorn(&["log", "info", name, "--json"]).expect(1).json();
    assert_eq!((&info["operations"], &info["files"][0]["bytes"]), (&1.into(), &10.into()));
    let list = untorn(&["replay", "--list", name]).expect(1).text();
    assert!(list.contains("1 operation on 1 file") && list.contains("to be replayed"), "{list}");
    assert_eq!(std::fs::read(&data).expect("readable"), b"", "nothing was changed");
    let done = untorn(&["replay", name, "--json"]).expect(0).json();
    let log = &done["logs"][0];
    assert_eq!((&log["complete"], &log["files"][0]["fate"]), (&true.into(), &"replayed".into()));
    assert_eq!(std::fs::read(&data).expect("readable"), b"of the log");
    assert!(untorn(&["replay", name]).expect(0).text().contains("nothing to replay"));
    untorn(&["log", "info", name]).expect(0);
}

#[test]
fn a_log_with_a_missing_file_is_kept_and_others_are_replayed() {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let logs = dir.path().join("logs");
    std::fs::create_dir(&logs).expect("a directory");
    let directory = logs.to_str().expect("a name in UTF-8");
    untorn(&["replay", directory]).expect(64).names("logs");
    std::fs::write(logs.join("no log"), b"at all").expect("a file");
    // Not all numbers are there, and not all names are numbers.
    for name in ["3.log", "7.log", "mine"] {
        leave(&cache(&logs.join(name)), &dir.path().join(format!("data of {name}")), name.as_bytes());
    }
    std::fs::remove_file(dir.path().join("data of 3.log")).expect("removed");
    let done = untorn(&["replay", directory, "--json"]).expect(1).json();
    let found: Vec<(bool, &str)> = done["logs"]
        .as_array()
        .expect("logs")
        .iter()
        .map(|log| (log["complete"].as_bool().expect("complete"), log["files"][0]["fate"].as_str().expect("a fate")))
        .collect();
    assert_eq!(found, [(false, "missing"), (true, "replayed"), (true, "replayed")]);
    assert_eq!(std::fs::read(dir.path().join("data of mine")).expect("readable"), b"mine");
    let text = untorn(&["replay", directory]).expect(1).text();
    assert!(text.contains("the rest stays in the log") && text.contains("data of 3.log"), "{text}");
}

#[test]
fn files_that_are_no_log_are_refused() {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let file = dir.path().join("file");
    let name = file.to_str().expect("a name in UTF-8");
    untorn(&["replay", name]).expect(74).names("file");
    std::fs::write(&file, [7; 100_000]).expect("a file");
    untorn(&["replay", name]).expect(64).names("not a write-cache log");
    untorn(&["log", "info", name]).expect(64).names("not a write-cache log");
}
