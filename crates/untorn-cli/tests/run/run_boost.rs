//! `untorn run --mode boost`: what a user meets. What programs do under it is in the tests of `untorn-run`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use untorn_testing::programs::{JUDGE, TRANSACTIONS, Victim, last_transaction};

use crate::common::boosted::Place;
use crate::common::layered::layer;
use crate::common::{Run, untorn};

/// Writes two files at offsets, syncs one, and has the other mapped; writes to a third that the kernel syncs.
const PROGRAM: &str = "
import mmap, os
fd = os.open('a.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(fd, b'first', 0)
os.fsync(fd)
os.pwrite(fd, b' second', 5)
other = os.open('b.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(other, b'mapped', 0)
assert mmap.mmap(other, 6, prot=mmap.PROT_READ)[:] == b'mapped'
fd = os.open('c.managed', os.O_WRONLY | os.O_CREAT | os.O_SYNC, 0o644)
os.write(fd, b'durable')
fd = os.open('d.managed', os.O_WRONLY | os.O_CREAT | os.O_DSYNC, 0o644)
os.write(fd, b'durable, too')
print('done')
";

#[test]
fn the_report_lists_logged_files_and_those_left_to_the_kernel() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let run = place.run(&["--match", "*.managed", "--json"], &["python3", "-c", PROGRAM]).expect(0);
    let out = run.text();
    let (said, json) = out.trim_end().split_once('\n').unwrap();
    assert_eq!((said, run.err.as_str()), ("done", ""));
    let report: Value = serde_json::from_str(json).unwrap();
    assert_eq!((&report["mode"], &report["exit"]), (&"boost".into(), &0.into()));
    // More than one where the program of that name is a script that looks for it.
    assert!(report["processes"].as_u64().unwrap() >= 1);
    let log = &report["log"];
    assert_eq!(log["path"], place.log().canonicalize().unwrap().to_str().unwrap());
    assert!(["pmem", "block", "assumed-pmem"].contains(&log["medium"].as_str().unwrap()), "{log}");
    assert_eq!(log["durability"], if log["medium"] == "block" { "fsync" } else { "write" });
    assert_eq!(
        (&log["durable"], &log["replayed"]["operations"]),
        (&(log["medium"] != "assumed-pmem").into(), &0.into())
    );
    let files = report["files"].as_array().unwrap();
    let written: Vec<_> = files.iter().map(|file| (file["writes"].as_u64(), file["bytes_written"].as_u64())).collect();
    assert_eq!(written, [(Some(2), Some(12)), (Some(1), Some(6))], "{report}");
    assert_eq!(files.iter().map(|file| file["commits"].as_u64()).collect::<Vec<_>>(), [Some(1), Some(0)], "{report}");
    let demoted: Vec<_> = report["demoted"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| {
            let path = Path::new(entry[0]["path"].as_str().unwrap()).file_name().unwrap().to_str().unwrap();
            (path, entry[0]["why"].as_str().unwrap(), entry[1].as_u64().unwrap())
        })
        .collect();
    assert!(demoted.contains(&("b.managed", "mmap", 1)), "{demoted:?}");
    assert!(demoted.contains(&("c.managed", "open: O_SYNC", 1)), "{demoted:?}");
    assert!(demoted.contains(&("d.managed", "open: O_SYNC", 1)), "{demoted:?}");
    assert!(demoted.iter().all(|(path, ..)| *path != "a.managed"), "{demoted:?}");
    assert_eq!((&report["failures"], &report["refused"]), (&Value::Array(vec![]), &Value::Array(vec![])));
    assert_eq!(fs::read_to_string(place.files.path().join("a.managed")).unwrap(), "first second");
}

/// Descriptors are looked for where there are any, however high their numbers.
#[test]
fn a_file_kept_open_across_exec_is_left_to_the_kernel() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = "
import fcntl, os, resource
fd = os.open('a.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'first ')
high = fcntl.fcntl(fd, fcntl.F_DUPFD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 3)
os.close(fd)
os.execvp('sh', ['sh', '-c', 'echo second > /proc/self/fd/' + str(high)])
";
    let run = place.run(&["--match", "*.managed", "--json"], &["python3", "-c", program]).expect(0);
    let report: Value = serde_json::from_str(&run.text()).unwrap();
    let demoted = report["demoted"].as_array().unwrap();
    assert!(demoted.iter().any(|entry| entry[0]["why"] == "exec"), "{report}");
    // By a new description, which truncates it.
    assert_eq!(fs::read_to_string(place.files.path().join("a.managed")).unwrap(), "second\n");
}

#[test]
fn the_text_report_lists_logged_and_unlogged_files() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let run = place.run(&["--match", "*.managed", "--stats"], &["python3", "-c", PROGRAM]).expect(0);
    assert_eq!(run.text(), "done\n");
    let log = place.log().canonicalize().unwrap();
    let run = run.names(&format!("untorn: log {}: ", log.display())).names("2 files managed");
    let run = run.names("a.managed: opened 1 times, 2 writes of 12 bytes, 1 syncs\n");
    run.names("left to the kernel 1 times").names("b.managed (mmap)").names("c.managed (open: O_SYNC)");
}

/// As a name, below the working directory, and by its path.
#[test]
fn excluded_files_are_left_alone() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = "
import os
os.mkdir('d')
for name in ('f', 'f-shm', 'd/f', 'd/g'):
    os.write(os.open(name, os.O_RDWR | os.O_CREAT, 0o644), b'bytes')
";
    let path = place.files.path().canonicalize().unwrap().join("d/f");
    let all = ["--exclude", "*-shm", "--exclude", "d/g", "--exclude", path.to_str().unwrap(), "--json"];
    let out = place.run(&all, &["python3", "-c", program]).expect(0).text();
    let report: Value = serde_json::from_str(out.trim_end()).unwrap();
    let managed: Vec<_> =
        report["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(managed.len(), 1, "{report}");
    assert!(managed[0].ends_with("/f") && !managed[0].ends_with("/d/f"), "{report}");
    place.run(&["--exclude", "{a"], &["true"]).expect(64).names("is not a valid glob");
}

#[test]
fn all_files_but_the_log_go_through_it_without_a_glob() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = "
import os, sys
log = os.open(sys.argv[1], os.O_RDWR)
fd = os.open('anything', os.O_RDWR | os.O_CREAT, 0o644)
assert os.write(fd, b'something') == 9
";
    let log = place.log();
    let run = place.run(&["--json"], &["python3", "-c", program, log.to_str().unwrap()]).expect(0);
    let report = run.json();
    let anything = report["files"]
        .as_array()
        .unwrap()
        .iter()
        .find(|file| Path::new(file["path"].as_str().unwrap()).ends_with("anything"));
    assert_eq!(anything.unwrap()["bytes_written"], 9, "{report}");
    let log = log.canonicalize().unwrap();
    let of_log =
        report["demoted"].as_array().unwrap().iter().find(|entry| Path::new(entry[0]["path"].as_str().unwrap()) == log);
    assert!(of_log.unwrap()[0]["why"].as_str().unwrap().contains("the write-cache log itself"), "{report}");
    assert_eq!(fs::read_to_string(place.files.path().join("anything")).unwrap(), "something");
}

#[test]
fn a_run_that_cannot_be_is_refused_and_leaves_nothing_behind() {
    let place = Place::new();
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let output = place.tool().arg("run").arg("--layer").arg(layer()).args(arguments).output().unwrap();
        let run = Run::of(output, arguments).expect(code);
        assert!(run.err.contains(why) && run.out.is_empty(), "{arguments:?}: {run:?}");
    };
    let (log, gone) = (place.log(), place.aside.path().join("none/log"));
    let (log, gone) = (log.to_str().unwrap(), gone.to_str().unwrap());
    let here = place.aside.path().join("**");
    refused(&["--mode", "boost", "--", "true"], 64, "--log PATH");
    refused(&["--log", log, "--", "true"], 64, "--log needs --mode boost");
    refused(&["--mode", "atomic", "--durability", "fsync", "--", "true"], 64, "--durability needs --mode boost");
    refused(&["--mode", "boost", "--log", log, "--durability", "commit", "--", "true"], 64, "write, fsync");
    refused(&["--mode", "boost", "--log", log, "--log-size", "1KB", "--", "true"], 64, "not a unit");
    refused(&["--mode", "boost", "--log", log, "--log-size", "1K", "--", "true"], 64, "a log of 1024 bytes");
    refused(&["--mode", "boost", "--log", log, "--entry-size", "100", "--", "true"], 64, "entries of 100 bytes");
    refused(&["--mode", "boost", "--log", gone, "--", "true"], 74, "directory of the log");
    for glob in [here.to_str().unwrap(), "log", "**"] {
        refused(
            &["--mode", "boost", "--log", log, "--match", glob, "--", "true"],
            64,
            "--match matches the log itself",
        );
    }
    refused(&["--mode", "boost", "--log", log, "--", "./missing"], 64, "missing");
    fs::write(place.aside.path().join("text"), "no program").unwrap();
    refused(&["--mode", "boost", "--log", log, "--", place.aside.path().join("text").to_str().unwrap()], 64, "text");
    assert!(!place.log().exists());
    fs::write(place.log(), b"somebody's file").unwrap();
    refused(&["--mode", "boost", "--log", log, "--", "true"], 64, "write-cache log");
    assert_eq!(fs::read(place.log()).unwrap(), b"somebody's file");
}

#[test]
fn a_log_keeps_the_geometry_that_it_was_made_with() {
    let place = Place::new();
    place.run(&[], &["true"]).expect(0);
    place.run(&["--entry-size", "4096"], &["true"]).expect(0);
    place.run(&["--entry-size", "512"], &["true"]).expect(64).names("created with --entry-size 4096");
    let (log, layer) = (place.log(), layer().to_str().unwrap());
    let sized = |size: &str| {
        let arguments =
            ["run", "--mode", "boost", "--log-size", size, "--layer", layer, "--log", log.to_str().unwrap()];
        Run::of(place.tool().args(arguments).args(["--", "true"]).output().unwrap(), &arguments)
    };
    sized("9M").expect(64).names("its size is fixed");
    sized("4M").expect(64).names("its size is fixed");
    sized("8M").expect(0);
}

#[test]
fn a_log_in_memory_is_refused() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = Place::new();
    let mut command = place.tool();
    command.env_remove("UNTORN_ASSUME_PMEM").args(["run", "--mode", "boost", "--layer"]).arg(layer()).arg("--log");
    let output = command.arg(memory.path().join("log")).args(["--", "true"]).output().unwrap();
    Run::of(output, &["run"]).expect(64).names("does not survive a power cut");
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
}

#[test]
fn a_log_in_use_is_refused_with_the_process_that_has_it() {
    let place = Place::new();
    let mut first = place
        .under(&["--match", "*.managed"], &["sh", "-c", "echo ready; read line"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(first.stdout.take().unwrap()).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    let run = place.run(&["--match", "*.managed"], &["true"]).expect(74).names("is in use by process");
    let run = run.names(&format!("process {} (untorn)", first.id())).names("give this run another --log");
    assert!(run.out.is_empty());
    first.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert!(first.wait().unwrap().success());
    place.run(&["--match", "*.managed"], &["true"]).expect(0);
}

/// Writes to a file through a log and leaves it there, as one that was killed does.
fn leave(log: &Path, path: &Path, bytes: &[u8]) {
    let cache =
        untorn::write_cache::CacheOptions::new().size(1 << 20).max_files(8).background(false).create(log).unwrap();
    let plain = fs::File::create_new(path).unwrap();
    let file = cache.attach(plain.as_fd(), path).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
}

#[test]
fn a_run_begins_with_what_an_earlier_one_left() {
    let place = Place::new();
    let path = place.files.path().canonicalize().unwrap().join("a.managed");
    leave(&place.log(), &path, b"left behind");
    assert_eq!(fs::read(&path).unwrap(), b"");
    let mut command = place.tool();
    command.args(["run", "--mode", "boost", "--json", "--match", "*.managed", "--layer"]).arg(layer()).arg("--log");
    let output = command.arg(place.log()).args(["--", "sh", "-c", "cat a.managed; echo"]).output().unwrap();
    let out = Run::of(output, &["run"]).expect(0).text();
    let (said, json) = out.trim_end().split_once('\n').unwrap();
    assert_eq!(said, "left behind");
    let report: Value = serde_json::from_str(json).unwrap();
    assert_eq!(report["log"]["replayed"], serde_json::json!({ "operations": 1, "files": 1 }));
}

#[test]
fn a_run_is_refused_while_a_logged_file_is_missing() {
    let place = Place::new();
    let path = place.files.path().canonicalize().unwrap().join("a.managed");
    leave(&place.log(), &path, b"left behind");
    // Not removed: its number could be that of the next file.
    let away = place.aside.path().join("away");
    fs::rename(&path, &away).unwrap();
    let run = || {
        let mut command = place.tool();
        command.args(["run", "--mode", "boost", "--match", "*.managed", "--layer"]).arg(layer()).arg("--log");
        Run::of(command.arg(place.log()).args(["--", "touch", "ran"]).output().unwrap(), &["run"])
    };
    run().expect(1).names("untorn replay");
    assert!(!place.files.path().join("ran").exists());
    fs::rename(&away, &path).unwrap();
    run().expect(0);
    assert!(place.files.path().join("ran").exists());
    assert_eq!(fs::read(&path).unwrap(), b"left behind");
}

/// The tool and its program are killed; `untorn replay`, or the next run with the log, brings to the files what they
/// lack.
#[test]
fn sqlite_that_was_killed_is_what_it_said_after_a_replay() {
    untorn_testing::needs!("python3");
    for (journal, durability, by_run) in [("delete", "fsync", false), ("wal", "write", true), ("wal", "fsync", false)] {
        let place = Place::new();
        let options = ["--match", "app.db*", "--durability", durability];
        let mut victim = Victim::start(&[TRANSACTIONS, "app.db", journal, "exclusive"], |program| {
            let program: Vec<_> = program.iter().map(|word| word.to_str().unwrap()).collect();
            place.under(&options, &program)
        });
        victim.await_lines(41);
        let (tool, process) = (victim.server(), victim.process.clone());
        let (acknowledged, _) = victim.killed(&[&tool, &process]);
        let found = if by_run {
            place.run(&options, &["python3", "-c", JUDGE, "app.db"]).expect(0).text().trim().parse().unwrap()
        } else {
            let log = place.log();
            let done = untorn(&["replay", log.to_str().unwrap(), "--json"]).expect(0).json();
            assert_eq!(done["logs"][0]["complete"], true, "{done}");
            assert!(untorn(&["replay", log.to_str().unwrap()]).expect(0).text().contains("nothing to replay"));
            last_transaction(place.files.path(), "app.db")
        };
        assert!(found == acknowledged || found == acknowledged + 1, "{journal}: {found}, and {acknowledged} was said");
    }
}

#[test]
fn a_read_cache_is_taken_and_said_to_be_the_kernels() {
    let place = Place::new();
    place.run(&["--read-cache", "1M"], &["true"]).expect(0).names("--read-cache is ignored");
    assert_eq!(place.run(&["--read-cache", "0"], &["true"]).expect(0).err, "");
    untorn(&["run", "--read-cache", "1M", "--", "true"]).expect(64).names("--read-cache needs --mode boost");
}

#[test]
fn help_completions_and_man_page_have_the_options() {
    let options = ["--log", "--log-size", "--durability", "--entry-size", "--batch-min", "--batch-max", "--read-cache"];
    let help = untorn(&["run", "--help"]).expect(0).text();
    let completions = untorn(&["completions", "bash"]).expect(0).text();
    let dir = tempfile::tempdir().unwrap();
    untorn(&["man", "--out", dir.path().to_str().unwrap()]).expect(0);
    let page = fs::read_to_string(dir.path().join("untorn-run.1")).unwrap();
    for option in options {
        assert!(help.contains(option) && completions.contains(option), "no {option}");
        assert!(page.contains(&option.replace('-', "\\-")), "no {option} in {page}");
    }
    assert!(help.contains("--mode boost --log /fast/untorn.log") && page.contains("boost"), "{help}");
    assert!(completions.contains("atomic boost") && completions.contains("write fsync"), "no completion");
}

#[test]
fn the_doctor_says_what_a_log_would_promise() {
    let place = Place::new();
    let found = untorn(&["doctor", place.aside.path().to_str().unwrap(), "--json"]).json();
    let reasons: Vec<_> = found["reasons"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let of_log: Vec<_> = reasons.iter().filter(|reason| reason.contains("`untorn run --mode boost`")).collect();
    assert_eq!(of_log.len(), 1, "{reasons:?}");
    let expected = match (found["medium"].as_str().unwrap(), found["durable"].as_bool().unwrap()) {
        ("pmem" | "assumed-pmem", _) => "each write is durable when its call returns",
        (_, true) => "durable when its fsync returns",
        _ => "refuses a log here",
    };
    assert!(of_log[0].contains(expected), "{of_log:?}");
}
