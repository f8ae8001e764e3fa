//! The verbs of regions, with the exit codes and the JSON that scripts bind to.

use std::process::Command;

use crate::common::{UNTORN, run, untorn};
use serde_json::Value;

/// A directory, and the name of a store in it that is not there yet.
fn place() -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory for temporary files");
    let store = dir.path().join("data.store").to_str().expect("a name in UTF-8").to_owned();
    (dir, store)
}

fn names(list: &Value) -> Vec<&str> {
    let regions = list["regions"].as_array().expect("regions");
    regions.iter().map(|region| region["name"].as_str().expect("a name")).collect()
}

#[test]
fn the_first_region_makes_the_store_and_the_list_shows_them_all() {
    let (_dir, store) = place();
    untorn(&["region", "list", &store]).expect(74).names("data.store");
    let made = untorn(&["region", "create", &store, "ledger", "--pages", "16", "--json"]).expect(0).json();
    assert_eq!((&made["name"], &made["pages"], &made["len"]), (&"ledger".into(), &16.into(), &65536.into()));
    untorn(&["region", "create", &store, "index", "--len", "10K"]).expect(0);
    untorn(&["region", "create", &store, "empty", "--max-pages", "7"]).expect(0);
    let list = untorn(&["region", "list", &store, "--json"]).expect(0).json();
    assert_eq!(names(&list), ["empty", "index", "ledger"]);
    let pages: Vec<u64> =
        list["regions"].as_array().unwrap().iter().map(|region| region["pages"].as_u64().unwrap()).collect();
    assert_eq!(pages, [0, 3, 16]);
    let text = untorn(&["region", "list", &store]).expect(0).text();
    assert!(text.contains("ledger  16 pages, commit 1") && text.contains("3 regions of at most 1024"), "{text}");
}

#[test]
fn info_shows_one_region_and_delete_takes_it_away() {
    let (_dir, store) = place();
    untorn(&["region", "create", &store, "ledger", "--pages", "2"]).expect(0);
    untorn(&["region", "create", &store, "other"]).expect(0);
    let info = untorn(&["region", "info", &store, "ledger", "--json"]).expect(0).json();
    for key in ["store", "name", "pages", "len", "max_pages", "commit", "state"] {
        assert!(info.get(key).is_some(), "no {key} in {info}");
    }
    assert_eq!((&info["state"], &info["commit"]), (&"clean".into(), &1.into()));
    let text = untorn(&["region", "info", &store, "ledger"]).expect(0).text();
    assert!(text.contains("ledger") && text.contains("8192 bytes"), "{text}");
    let deleted = untorn(&["region", "delete", &store, "ledger", "--json"]).expect(0).json();
    assert_eq!(deleted["deleted"], true);
    for verb in ["info", "delete"] {
        untorn(&["region", verb, &store, "ledger"]).expect(74).names("#ledger");
    }
    assert_eq!(names(&untorn(&["region", "list", &store, "--json"]).expect(0).json()), ["other"]);
}

#[test]
fn the_store_may_be_named_by_a_flag_or_by_the_environment() {
    let (_dir, store) = place();
    untorn(&["region", "create", "one", "--store", &store]).expect(0);
    let arguments = ["region", "create", "two"];
    run(Command::new(UNTORN).args(arguments).env("UNTORN_REGION_STORE", &store), &arguments, b"").expect(0);
    let arguments = ["region", "list", "--json"];
    let list = run(Command::new(UNTORN).args(arguments).env("UNTORN_REGION_STORE", &store), &arguments, b"").expect(0);
    assert_eq!(names(&list.json()), ["one", "two"]);
    let nowhere = ["region", "list"];
    run(Command::new(UNTORN).args(nowhere).env_remove("UNTORN_REGION_STORE"), &nowhere, b"")
        .expect(64)
        .names("--store");
    untorn(&["region", "info", &store, "one", "--store", &store]).expect(64).names("twice");
}

#[test]
fn impossible_region_requests_leave_nothing_behind() {
    let (_dir, store) = place();
    untorn(&["region", "create", &store, "r"]).expect(0);
    untorn(&["region", "create", &store, "r"]).expect(74).names("#r");
    untorn(&["region", "create", &store, "s", "--pages", "9", "--max-pages", "8"]).expect(64);
    untorn(&["region", "create", &store, "a\nb"]).expect(64);
    assert_eq!(names(&untorn(&["region", "list", &store, "--json"]).expect(0).json()), ["r"]);
    let open = untorn::region::RegionStore::open(&store).expect("a store");
    for verb in [&["list", &store][..], &["info", &store, "r"], &["delete", &store, "r"], &["create", &store, "t"]] {
        let error = untorn(&[&["region"], verb, &["--json"]].concat()).expect(74);
        assert!(error.json()["error"].as_str().is_some_and(|text| text.contains("in use")), "{error:?}");
    }
    drop(open);
    // One that was left by a crash is shown, beside others who look, and left as it is.
    let before = std::fs::read(&store).expect("readable");
    let other = untorn::region::StoreOptions::new().read_only(true).open(&store).expect("a store");
    untorn(&["region", "list", &store]).expect(0);
    untorn(&["region", "info", &store, "r"]).expect(0);
    untorn(&["region", "delete", &store, "r"]).expect(74);
    drop(other);
    assert!(std::fs::read(&store).expect("readable") == before);
    assert!(untorn::region::RegionStore::open(&store).expect("a store").info().expect("its state").recovered);
    std::fs::write(&store, b"no store at all").expect("writable");
    untorn(&["region", "list", &store]).expect(2).names("not a region store");
}

#[test]
fn a_damaged_region_is_shown_and_the_others_are_served() {
    let (_dir, store) = place();
    untorn(&["region", "create", &store, "good", "--pages", "1"]).expect(0);
    untorn(&["region", "create", &store, "bad", "--pages", "1"]).expect(0);
    let mut bytes = std::fs::read(&store).expect("readable");
    let at = bytes.windows(4).position(|window| window == b"bad\0").expect("the name in its node");
    let node = at / 4096 * 4096;
    bytes[node + 512..node + 1536].fill(0);
    std::fs::write(&store, &bytes).expect("writable");
    let list = untorn(&["region", "list", &store, "--json"]).expect(2).json();
    let states: Vec<&Value> = list["regions"].as_array().unwrap().iter().map(|region| &region["state"]).collect();
    assert_eq!(states, ["corrupt", "clean"]);
    untorn(&["region", "info", &store, "bad"]).expect(2);
    untorn(&["region", "info", &store, "good"]).expect(0);
    untorn(&["region", "delete", &store, "bad"]).expect(0);
    untorn(&["region", "list", &store]).expect(0);
}
