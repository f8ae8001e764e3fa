//! Power cuts under real file systems: untorn survives them; an engine without atomicity, and a disk that loses what it
//! acknowledged, are convicted on the same rig. Passed over, and said so, where the machine lacks what the rig needs.

use std::path::Path;

use crate::common::{Place, Run, untorn};

/// Runs the rig; `None` if this machine lacks something, which is then said.
fn cut(arguments: &[&str]) -> Option<Run> {
    let run = untorn(&[&["torture", "--medium", "block", "--json"], arguments].concat());
    if run.code != 74 || !run.err.starts_with("untorn: this needs ") {
        return Some(run);
    }
    untorn_testing::skipped!("power cuts under real file systems: {}", run.err.trim());
    None
}

#[test]
fn untorn_survives_on_ext4_and_xfs() {
    let Some(run) = cut(&["--images", "24", "--seed", "42"]) else { return };
    let object = run.expect(0).json();
    assert_eq!((&object["engine"], &object["medium"]), (&"hybrid-log".into(), &"block".into()));
    assert_eq!((&object["seed"], &object["violations"]), (&42.into(), &0.into()));
    assert_eq!((&object["runs"], &object["durability"]), (&24.into(), &"both".into()));
    let kinds = object["file_systems"].as_array().expect("a list");
    assert_eq!(kinds.iter().map(|kind| &kind["file_system"]).collect::<Vec<_>>(), ["ext4", "xfs"]);
    for kind in kinds {
        assert!(kind["images"] == 12 && kind["unflushed"].as_u64() > Some(0), "{object}");
        assert!(kind["acknowledged"].as_u64() > Some(0), "{object}");
    }
}

#[test]
fn passthrough_is_convicted_and_its_kept_disk_replays() {
    let place = Place::empty();
    let keep = place.dir();
    let Some(run) = cut(&["--engine", "passthrough", "--images", "400", "--keep", keep]) else { return };
    let object = run.expect(1).json();
    assert!(object["violations"].as_u64() > Some(0) && object["seed"].is_u64(), "{object}");
    let kept = object["kept"].as_str().unwrap_or_else(|| panic!("no disk kept: {object}"));
    assert!(Path::new(kept).starts_with(keep) && Path::new(kept).join("image").exists(), "{object}");

    let again = cut(&["--replay", kept]).expect("what ran before").expect(1).json();
    let said = object["details"].to_string();
    let details = again["details"].as_array().expect("a list");
    assert!(!details.is_empty(), "{again}");
    for detail in details {
        assert!(said.contains(detail.as_str().expect("text")), "{detail} is not in {said}");
    }
}

#[test]
fn regions_survive_power_cuts_and_fail_on_a_lying_disk() {
    let Some(run) = cut(&["--region", "--images", "24", "--seed", "42"]) else { return };
    let object = run.expect(0).json();
    assert_eq!((&object["engine"], &object["durability"]), (&"snapshot".into(), &"commit".into()));
    assert_eq!((&object["region"], &object["violations"]), (&true.into(), &0.into()), "{object}");
    for kind in object["file_systems"].as_array().expect("a list") {
        assert!(kind["acknowledged"].as_u64() > Some(0), "{object}");
    }
    let place = Place::empty();
    let keep = place.dir();
    let object = cut(&["--region", "--lying-disk", "--images", "400", "--keep", keep])
        .expect("what ran before")
        .expect(1)
        .json();
    assert!(object["violations"].as_u64() > Some(0), "{object}");
    let kept = object["kept"].as_str().unwrap_or_else(|| panic!("no disk kept: {object}"));
    cut(&["--replay", kept]).expect("what ran before").expect(1);
}

#[test]
fn a_disk_that_lies_about_its_latest_flush_is_noticed() {
    let place = Place::empty();
    let keep = place.dir();
    let Some(run) = cut(&["--lying-disk", "--images", "400", "--keep", keep]) else { return };
    let object = run.expect(1).json();
    assert!(object["violations"].as_u64() > Some(0) && object["lying_disk"] == true, "{object}");
}

#[test]
fn wrong_requests_end_with_64() {
    for (arguments, what) in [
        (&["--images", "0"][..], "0"),
        (&["--fs", "fat"], "fat"),
        (&["--medium", "process", "--images", "5"], "--images does not apply to --medium process"),
        (&["--medium", "process", "--lying-disk"], "--lying-disk does not apply to --medium process"),
        (&["--medium", "process", "--replay", "x"], "--replay does not apply to --medium process"),
    ] {
        let medium: &[&str] = if arguments.contains(&"--medium") { &[] } else { &["--medium", "block"] };
        let run = untorn(&[&["torture"], medium, arguments].concat()).expect(64);
        assert!(run.err.contains(what), "{}", run.err);
    }
    untorn(&["torture", "--medium", "block", "--replay", "/nonexistent/case"]).expect(74).names("/nonexistent/case");
}
