//! Torture passes untorn, and convicts an engine without atomicity.

mod common;

use std::fs;
use std::path::Path;

use common::{Place, untorn};

#[test]
fn untorn_survives_in_both_durabilities() {
    for durability in ["write", "commit"] {
        let place = Place::empty();
        let dir = place.dir.path().to_str().expect("text");
        let arguments =
            ["torture", "--seconds", "2", "--seed", "42", "--durability", durability, "--dir", dir, "--json"];
        let object = untorn(&arguments).expect(0).json();
        for key in ["engine", "medium", "seed", "runs", "violations"] {
            assert!(object.get(key).is_some(), "no {key} in {object}");
        }
        assert_eq!((&object["engine"], &object["medium"]), (&"reflection".into(), &"process".into()));
        assert_eq!((&object["seed"], &object["violations"]), (&42.into(), &0.into()));
        assert!(object["runs"].as_u64() > Some(0) && object["operations"].as_u64() > Some(0), "{object}");
        assert!(object["acknowledged"].as_u64() > Some(0), "{object}");
        assert_eq!(fs::read_dir(dir).expect("readable").count(), 0, "files are left behind");
    }
}

#[test]
fn the_report_says_what_was_checked_and_what_not() {
    let text = untorn(&["torture", "--seconds", "1", "--threads", "1"]).expect(0).prose();
    for words in ["seed", "kill", "no violation", "(C1)", "(C2)", "Not checked: flush order"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}

#[test]
fn an_engine_without_atomicity_is_convicted_and_the_files_are_kept() {
    let place = Place::empty();
    let dir = place.dir.path().to_str().expect("text");
    let arguments = ["torture", "--engine", "passthrough", "--seconds", "30", "--dir", dir, "--json"];
    let object = untorn(&arguments).expect(1).json();
    assert!(object["violations"].as_u64() > Some(0), "{object}");
    let kept = object["kept"].as_str().unwrap_or_else(|| panic!("no files kept: {object}"));
    assert!(Path::new(kept).join("tortured").exists() && Path::new(kept).join("crashed/tortured").exists());
}
