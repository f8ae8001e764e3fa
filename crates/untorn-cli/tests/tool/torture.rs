//! Torture passes untorn, and convicts an engine without atomicity.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Place, Run, UNTORN, kill, torture_writer, untorn};

#[test]
fn untorn_survives_in_both_durabilities() {
    for durability in ["write", "commit"] {
        let place = Place::empty();
        let dir = place.dir();
        let arguments =
            ["torture", "--seconds", "2", "--seed", "42", "--durability", durability, "--dir", dir, "--json"];
        let object = untorn(&arguments).expect(0).json();
        for key in ["engine", "medium", "seed", "runs", "violations"] {
            assert!(object.get(key).is_some(), "no {key} in {object}");
        }
        // A disk's default for commits is the hybrid log.
        let chosen = untorn(&["doctor", dir, "--json"]).json();
        let engine = if durability == "write" { &"reflection".into() } else { &chosen["engine"] };
        assert_eq!((&object["engine"], &object["medium"]), (engine, &"process".into()));
        assert_eq!((&object["seed"], &object["violations"]), (&42.into(), &0.into()));
        assert!(object["runs"].as_u64() > Some(0) && object["operations"].as_u64() > Some(0), "{object}");
        assert!(object["acknowledged"].as_u64() > Some(0), "{object}");
        assert_eq!(place.entries(), [""; 0], "files are left behind");
    }
}

/// Another way to use the library survives too, with the engine that it has, and refuses what it cannot have.
fn survives(way: &str, engine: &str) {
    let place = Place::empty();
    let option = format!("--{way}");
    let object = untorn(&["torture", &option, "--seconds", "2", "--dir", place.dir(), "--json"]).expect(0).json();
    assert_eq!((&object["engine"], &object["durability"]), (&engine.into(), &"commit".into()));
    assert_eq!((&object[way], &object["violations"]), (&true.into(), &0.into()), "{object}");
    assert!(object["acknowledged"].as_u64() > Some(0), "{object}");
    for refused in [["--engine", "reflection"], ["--durability", "write"]] {
        untorn(&[&["torture", &option], &refused[..]].concat()).expect(64).names(&option);
    }
}

#[test]
fn plain_stores_survive_too() {
    survives("map", "hybrid-log");
}

#[test]
fn mapped_regions_survive_too() {
    survives("region", "snapshot");
}

#[test]
fn torture_with_redundancy_repairs_all_injected_damage() {
    for (engine, durability) in [("reflection", "commit"), ("hybrid-log", "commit"), ("reflection", "write")] {
        let place = Place::empty();
        let dir = place.dir();
        let arguments = ["torture", "--redundancy", "--seconds", "2", "--engine", engine, "--durability", durability];
        let object = untorn(&[&arguments[..], &["--dir", dir, "--json"]].concat()).expect(0).json();
        assert_eq!((&object["engine"], &object["durability"]), (&engine.into(), &durability.into()));
        assert_eq!((&object["redundancy"], &object["violations"]), (&true.into(), &0.into()), "{object}");
        assert!(object["acknowledged"].as_u64() > Some(0) && object["damaged"].as_u64() > Some(0), "{object}");
        assert_eq!(place.entries(), [""; 0], "files are left behind");
    }
    for refused in [["--medium", "dax"], ["--engine", "passthrough"]] {
        untorn(&[&["torture", "--redundancy"], &refused[..]].concat()).expect(64).names("--redundancy");
    }
}

/// One process writes and another one verifies, as in the rig that cuts the power of a machine: for a region as for a
/// file. Without the region's records, acknowledged commits are lost, and the verifier must find that.
#[test]
fn a_region_is_verified_apart_from_who_wrote_it() {
    let place = Place::empty();
    let (store, reports) = (place.dir.path().join("store"), place.dir.path().join("reports"));
    let common = ["--seed", "7", "--engine", "auto", "--durability", "commit", "--region"];
    let heard = fs::File::create(&reports).expect("a file");
    let mut writer = torture_writer(&store, &[&["--create"], &common[..]].concat(), heard.into());
    while fs::metadata(&reports).expect("it is there").len() < 8 * 200 {
        assert_eq!(writer.try_wait().expect("it can be asked"), None, "the writer ended by itself");
    }
    kill(&mut writer);
    let crashed = fs::read(&store).expect("a store");
    let verify = || {
        let heard = fs::File::open(&reports).expect("it is there");
        let arguments = ["torture-verify", "--threads", "2"];
        let run = Command::new(UNTORN).args(arguments).args(common).arg(&store).stdin(heard).output();
        Run::of(run.expect("the tool runs"), &arguments)
    };
    let object = verify().expect(0).json();
    assert!(object["acknowledged"].as_u64() > Some(0), "{object}");
    assert_eq!(object["violations"], serde_json::json!([]));
    let mut forgetful = crashed;
    for record in [8192 + 512, 8192 + 1024] {
        forgetful[record..record + 512].fill(0);
    }
    fs::write(&store, forgetful).expect("it can be written");
    let object = verify().expect(1).json();
    assert!(object["violations"][0].as_str().is_some_and(|what| what.contains("recovery failed")), "{object}");
}

#[test]
fn the_report_says_what_was_checked_and_what_not() {
    let text = untorn(&["torture", "--seconds", "1", "--threads", "1"]).expect(0).prose();
    for words in ["seed", "kill", "no violation", "(C1)", "(C2)", "Not checked: flush order"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn passthrough_is_convicted_and_its_files_are_kept() {
    let place = Place::empty();
    let dir = place.dir();
    // About every fortieth kill falls inside a write, and the first that does ends it; so long is only for a machine
    // that is too busy for more than one kill a second.
    let arguments = ["torture", "--engine", "passthrough", "--seconds", "7200", "--dir", dir, "--json"];
    let object = untorn(&arguments).expect(1).json();
    assert!(object["violations"].as_u64() > Some(0), "{object}");
    let kept = object["kept"].as_str().unwrap_or_else(|| panic!("no files kept: {object}"));
    assert!(Path::new(kept).join("tortured").exists() && Path::new(kept).join("crashed/tortured").exists());
}

#[test]
fn the_verifier_accepts_a_life_and_finds_a_lost_operation() {
    let place = Place::empty();
    let path = place.dir.path().join("tortured");
    let common = ["--seed=5", "--engine=reflection", "--durability=write"];
    let mut writer = torture_writer(&path, &[&["--create"], &common[..]].concat(), Stdio::piped());
    let mut reports = vec![0; 8 * 50];
    let mut stdout = writer.stdout.take().expect("piped");
    stdout.read_exact(&mut reports).expect("reports");
    kill(&mut writer);
    stdout.read_to_end(&mut reports).expect("the rest");

    let verify = |reports: &[u8]| {
        let mut verifier = Command::new(UNTORN)
            .args(["torture-verify", "--threads=2"])
            .args(common)
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("starts");
        verifier.stdin.take().expect("piped").write_all(reports).expect("heard");
        let output = verifier.wait_with_output().expect("ends");
        let object: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
        (output.status.code(), object)
    };
    let (code, object) = verify(&reports);
    assert_eq!((code, object["violations"].as_array().map(Vec::len)), (Some(0), Some(0)), "{object}");
    assert!(object["operations"].as_u64() > Some(0), "{object}");

    // Thread 0 reports an operation that it never did: 2 is the kind "done", the number is in the low bytes.
    reports.extend((2u64 << 60 | 1 << 30).to_le_bytes());
    let (code, object) = verify(&reports);
    assert_eq!(code, Some(1), "{object}");
    assert!(object["violations"][0].as_str().is_some_and(|what| what.contains("(C2)")), "{object}");

    std::fs::remove_file(&path).expect("ours");
    let (code, object) = verify(&reports);
    assert_eq!(
        (code, &object["violations"][0]),
        (Some(1), &"the file does not exist after the power cut".into()),
        "{object}"
    );
}
