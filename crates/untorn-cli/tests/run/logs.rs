//! The log of `untorn run`: by default in the directory, or shared where `--log` names it; its options, and who has it.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::common::{Run, untorn};
use crate::running::{MODES, Place, needs_mounts};

#[test]
fn a_run_that_cannot_be_is_refused_and_leaves_nothing_behind() {
    let place = Place::new();
    let refused = |arguments: &[&str], code: i32, why: &str| {
        let output = place.tool().arg("run").args(arguments).output().unwrap();
        let run = Run::of(output, arguments).expect(code);
        assert!(run.err.contains(why) && run.out.is_empty(), "{arguments:?}: {run:?}");
    };
    let (log, gone) = (place.log(), place.aside.path().join("none/log"));
    let (log, gone) = (log.to_str().unwrap(), gone.to_str().unwrap());
    let inside = place.file("log");
    refused(&["--mode", "boost", "--", "true"], 64, "--log PATH");
    refused(&["--durability", "fsync", "--", "true"], 64, "--durability needs --mode boost");
    refused(
        &["--mode", "boost", "--log", log, "--write-through", "--", "true"],
        64,
        "--write-through is for --mode atomic",
    );
    refused(
        &["--mode", "boost", "--log", log, "--commit-log", "f", "--", "true"],
        64,
        "--commit-log is for --mode atomic",
    );
    refused(&["--mode", "boost", "--log", log, "--durability", "commit", "--", "true"], 64, "write, fsync");
    refused(&["--mode", "boost", "--log", log, "--log-size", "1KB", "--", "true"], 64, "not a unit");
    refused(&["--mode", "boost", "--log", gone, "--", "true"], 74, "directory of the log");
    for mode in MODES {
        refused(&["--mode", mode, "--log", inside.to_str().unwrap(), "--", "true"], 64, "programs could write to it");
        refused(&["--mode", mode, "--log", log, "--match", "/**", "--", "true"], 64, "cannot be mounted on");
        refused(&["--mode", mode, "--log", log, "--match", "{a", "--", "true"], 64, "is not a valid glob");
        refused(&["--mode", mode, "--log", log, "--exclude", "{a", "--", "true"], 64, "is not a valid glob");
        refused(&["--mode", mode, "--log", log, "--", "./missing"], 64, "missing");
        refused(&["--mode", mode, "--log", log, "--", "no-such-program"], 64, "not found in PATH");
    }
    let mut root = place.tool();
    let output = root.current_dir("/").args(["run", "--", "true"]).output().unwrap();
    Run::of(output, &["run"]).expect(64).names("without --match: a run serves the directory /");
    assert!(!place.log().exists());
    assert_eq!(fs::read_dir(place.files.path()).unwrap().count(), 0);
}

#[test]
fn no_program_starts_with_a_log_that_the_engine_refuses() {
    needs_mounts!();
    let place = Place::new();
    let (log, log_text) = (place.log(), place.log().to_str().unwrap().to_owned());
    let refused = |options: &[&str], why: &str| {
        let mut command = place.tool();
        command.args(["run", "--mode", "boost", "--log", &log_text]).args(options).args(["--", "touch", "ran"]);
        let run = Run::of(command.output().unwrap(), options).expect(64).names(why);
        assert!(run.out.is_empty() && !place.file("ran").exists(), "{options:?}");
    };
    refused(&["--log-size", "1K"], "a log of 1024 bytes");
    refused(&["--entry-size", "100"], "entries of 100 bytes");
    assert!(!log.exists());
    fs::write(&log, b"somebody's file").unwrap();
    refused(&[], "write-cache log");
    assert_eq!(fs::read(&log).unwrap(), b"somebody's file");
}

#[test]
fn a_program_that_exec_refuses_is_named() {
    needs_mounts!();
    let place = Place::new();
    // The kernel takes neither for a program, though one may be executed.
    let text = place.aside.path().join("text");
    fs::write(&text, "no program").unwrap();
    place.run("atomic", &[], &[text.to_str().unwrap()]).expect(64).names("cannot start");
}

#[test]
fn the_default_log_is_hidden_in_the_directory() {
    needs_mounts!();
    let place = Place::new();
    if !untorn::doctor(place.files.path()).unwrap().durable {
        untorn_testing::skip!("the temporary directory is on a medium that a log may not be on");
    }
    let mut command = place.tool();
    command.args(["run", "--json", "--", "sh", "-ec", "echo text > f; ls -a; test ! -e .untorn"]);
    let run = Run::of(command.output().unwrap(), &["run"]).expect(0);
    let out = run.text();
    let (said, report) = out.trim_end().rsplit_once('\n').unwrap();
    assert_eq!(said, ".\n..\nf");
    let report: Value = serde_json::from_str(report).unwrap();
    assert_eq!(report["logs"][0]["path"], place.file(".untorn/mount.log").to_str().unwrap());
    assert_eq!(place.read("f"), "text\n");
    // It goes at a clean end, and with a program that was not started.
    assert!(!place.file(".untorn").exists());
    let text = place.aside.path().join("text");
    fs::write(&text, "no program").unwrap();
    let mut command = place.tool();
    command.args(["run", "--"]).arg(&text);
    Run::of(command.output().unwrap(), &["run"]).expect(64).names("cannot start");
    assert!(!place.file(".untorn").exists());
}

#[test]
fn a_log_of_a_killed_run_is_found_from_above_and_below() {
    needs_mounts!();
    let place = Place::new();
    if !untorn::doctor(place.files.path()).unwrap().durable {
        untorn_testing::skip!("the temporary directory is on a medium that a log may not be on");
    }
    fs::create_dir_all(place.file("d/.untorn")).unwrap();
    fs::create_dir(place.file("d/e")).unwrap();
    let log = place.file("d/.untorn/mount.log");
    leave(&log, &place.file("d/f"), b"left behind");
    let run = |glob: &str, script: &str| {
        let mut command = place.tool();
        command.args(["run", "--match", glob, "--", "sh", "-c", script]);
        Run::of(command.output().unwrap(), &["run", glob])
    };
    let replay = format!("untorn replay '{}'", log.display());
    run("d/e/**", "touch d/e/ran").expect(1).names(&replay);
    assert!(!place.file("d/e/ran").exists() && !place.file("d/e/.untorn").exists());
    let sealed = run("./**", "cat d/f || touch ran").expect(0);
    assert!(sealed.err.contains("Structure needs cleaning") && sealed.err.contains(&replay), "{}", sealed.err);
    assert!(place.file("ran").exists() && sealed.out.is_empty());
    untorn(&["replay", log.to_str().unwrap()]).expect(0);
    assert_eq!(run("./**", "cat d/f").expect(0).text(), "left behind");
    run("d/e/**", "touch d/e/ran").expect(0);
    assert!(place.file("d/e/ran").exists());
}

#[test]
fn several_directories_have_a_log_each_or_share_one() {
    needs_mounts!();
    let place = Place::new();
    if !untorn::doctor(place.files.path()).unwrap().durable {
        untorn_testing::skip!("the temporary directory is on a medium that a log may not be on");
    }
    for directory in ["a", "b", "c"] {
        fs::create_dir(place.file(directory)).unwrap();
    }
    let script = "for d in a b c; do echo $d > $d/f; mv $d/f $d/g; done; mv a/g b/h";
    let own = ["--match", "a/**", "--match", "b/**"];
    let mut command = place.tool();
    command.args(["run", "--json"]).args(own).args(["--", "sh", "-ec", script]);
    let report = Run::of(command.output().unwrap(), &own).expect(0).json();
    let logs: Vec<_> = report["logs"].as_array().unwrap().iter().map(|log| log["path"].as_str().unwrap()).collect();
    let expected = ["a", "b"].map(|directory| place.file(directory).join(".untorn/mount.log"));
    assert_eq!(logs, expected.each_ref().map(|path| path.to_str().unwrap()));
    // A move from one mount to another is a copy, as between file systems.
    assert_eq!((&report["managed"], &report["plain"]), (&3.into(), &json!([])), "{report}");
    assert_eq!(["b/g", "b/h", "c/g"].map(|name| place.read(name)), ["b\n", "a\n", "c\n"]);
    for mode in MODES {
        let (_, report) = place.reported(mode, &own, &["sh", "-ec", script]);
        assert_eq!(report["logs"].as_array().unwrap().len(), 1, "{mode}: {report}");
        assert_eq!((&report["managed"], &report["plain"]), (&3.into(), &json!([])), "{mode}: {report}");
        assert_eq!(["b/g", "b/h"].map(|name| place.read(name)), ["b\n", "a\n"], "{mode}");
    }
}

#[test]
fn a_log_keeps_the_geometry_that_it_was_made_with() {
    needs_mounts!();
    let place = Place::new();
    place.run("boost", &[], &["true"]).expect(0);
    place.run("boost", &["--entry-size", "4096"], &["true"]).expect(0);
    place.run("boost", &["--entry-size", "512"], &["true"]).expect(64).names("created with --entry-size 4096");
    let log = place.log();
    let sized = |size: &str| {
        let arguments = ["run", "--mode", "boost", "--log-size", size, "--log", log.to_str().unwrap()];
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
    for mode in MODES {
        let mut command = place.tool();
        command.env_remove("UNTORN_ASSUME_PMEM").args(["run", "--mode", mode, "--log"]);
        let output = command.arg(memory.path().join("log")).args(["--", "true"]).output().unwrap();
        Run::of(output, &["run"]).expect(64).names("does not survive a power cut");
    }
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 0);
}

#[test]
fn a_log_in_use_is_refused_with_the_process_that_has_it() {
    needs_mounts!();
    for mode in MODES {
        let place = Place::new();
        let program = ["sh", "-c", "echo ready; read line"].map(std::ffi::OsStr::new);
        let mut first = place.under(mode, &[], &program);
        let mut first = first.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(first.stdout.take().unwrap()).lines();
        assert_eq!(said.next().unwrap().unwrap(), "ready");
        let run = place.run(mode, &[], &["true"]).expect(74).names("is in use by process");
        let run = run.names(&format!("process {} (untorn)", first.id())).names("give this run another --log");
        assert!(run.out.is_empty());
        first.stdin.take().unwrap().write_all(b"go on\n").unwrap();
        assert!(first.wait().unwrap().success());
        place.run(mode, &[], &["true"]).expect(0);
    }
}

/// Writes to a file through a log and leaves it there, as a process that was killed does.
fn leave(log: &Path, path: &Path, bytes: &[u8]) {
    let options = untorn::write_cache::CacheOptions::new().size(8 << 20).max_files(128).background(false);
    let cache = options.create(log).unwrap();
    let plain = fs::File::create_new(path).unwrap();
    let file = cache.attach(plain.as_fd(), path).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.sync().unwrap();
}

#[test]
fn a_run_begins_with_what_an_earlier_one_left() {
    needs_mounts!();
    let place = Place::new();
    let path = place.file("a.managed");
    leave(&place.log(), &path, b"left behind");
    assert_eq!(fs::read(&path).unwrap(), b"");
    let mut command = place.tool();
    command.args(["run", "--mode", "boost", "--json", "--log"]).arg(place.log());
    let output = command.args(["--", "sh", "-c", "cat a.managed; echo"]).output().unwrap();
    let out = Run::of(output, &["run"]).expect(0).text();
    let (said, json) = out.trim_end().split_once('\n').unwrap();
    assert_eq!(said, "left behind");
    let report: Value = serde_json::from_str(json).unwrap();
    assert_eq!(report["logs"][0]["replayed"], json!({ "operations": 1, "files": 1 }));
}

#[test]
fn a_run_is_refused_while_a_logged_file_is_missing() {
    needs_mounts!();
    let place = Place::new();
    let path = place.file("a.managed");
    leave(&place.log(), &path, b"left behind");
    // Not removed: its number could be that of the next file.
    let away = place.aside.path().join("away");
    fs::rename(&path, &away).unwrap();
    let run = || {
        let mut command = place.tool();
        command.args(["run", "--mode", "boost", "--log"]).arg(place.log());
        Run::of(command.args(["--", "touch", "ran"]).output().unwrap(), &["run"])
    };
    run().expect(1).names("untorn replay");
    assert!(!place.file("ran").exists());
    fs::rename(&away, &path).unwrap();
    run().expect(0);
    assert!(place.file("ran").exists());
    assert_eq!(place.read("a.managed"), "left behind");
}

#[test]
fn a_read_cache_is_accepted_and_said_to_be_ignored() {
    needs_mounts!();
    let place = Place::new();
    for mode in MODES {
        place.run(mode, &["--read-cache", "1M"], &["true"]).expect(0).names("--read-cache is ignored");
        assert_eq!(place.run(mode, &["--read-cache", "0"], &["true"]).expect(0).err, "");
    }
}

#[test]
fn the_options_of_a_log_reach_it() {
    needs_mounts!();
    let place = Place::new();
    let options = ["--entry-size", "512", "--batch-min", "7", "--batch-max", "70", "--durability", "fsync"];
    let (_, report) = place.reported("boost", &options, &["sh", "-c", "echo text > f; sync f"]);
    assert_eq!(report["logs"][0]["durability"], "fsync", "{report}");
    let info = untorn(&["log", "info", place.log().to_str().unwrap(), "--json"]).expect(0).json();
    assert_eq!(info["entry_size"], 512, "{info}");
    assert_eq!(place.read("f"), "text\n");
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

#[test]
fn help_completions_and_man_page_have_the_options() {
    let options = [
        "--log",
        "--log-size",
        "--durability",
        "--entry-size",
        "--batch-min",
        "--batch-max",
        "--read-cache",
        "--strict",
        "--write-through",
    ];
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
    let gone = Command::new(crate::common::UNTORN).args(["run", "--layer", "x", "--", "true"]).output().unwrap();
    Run::of(gone, &["run", "--layer"]).expect(64);
}
