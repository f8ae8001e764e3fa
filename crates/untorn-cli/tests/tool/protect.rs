//! Protecting, scrubbing and repairing a file, as scripts do it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use crate::common::{Place, untorn, untorn_with, write_untold};

const PAGE: u64 = 4096;

/// A plain file of so many pages, each with bytes of its own, the last of them short.
fn plain(pages: u64) -> Place {
    let bytes: Vec<u8> = (0..pages * PAGE - 100).map(|at| (at / PAGE * 31 + at % 251) as u8).collect();
    Place::plain(&bytes)
}

/// Does to the file what a device would: the bytes change, its times stay.
fn rot(place: &Place, change: impl FnOnce(&File)) {
    let file = File::options().write(true).open(&place.file).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    change(&file);
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_damaged_page_is_found_and_given_back() {
    let place = plain(11);
    let before = place.bytes();
    let made = untorn(&["protect", place.name(), "--json"]).expect(0).json();
    assert_eq!((&made["pages"], &made["uncovered"], &made["stripe"]), (&11.into(), &0.into(), &4.into()));
    assert!(untorn(&["scrub", place.name()]).expect(0).text().contains("nothing is damaged"));
    assert!(untorn(&["repair", place.name()]).expect(0).text().contains("nothing to repair"));
    rot(&place, |file| file.write_all_at(b"damage", 5 * PAGE + 1000).unwrap());
    let found = untorn(&["scrub", place.name(), "--json"]).expect(1).json();
    assert_eq!(found["damage"], serde_json::json!([{ "what": "page", "offset": 5 * PAGE, "len": PAGE }]));
    assert!(untorn(&["scrub", place.name()]).expect(1).text().contains("untorn repair"));
    let mended = untorn(&["repair", place.name(), "--json"]).expect(0).json();
    assert_eq!(mended["repaired"], serde_json::json!([{ "offset": 5 * PAGE, "len": PAGE }]));
    assert_eq!(place.bytes(), before);
    let again = untorn(&["scrub", place.name(), "--repair", "--json"]).expect(0).json();
    assert_eq!((&again["damage"], &again["rebuilt"]), (&serde_json::json!([]), &0.into()));
    let info = place.info();
    assert_eq!((&info["redundancy"]["state"], &info["redundancy"]["repaired"]), (&"trusted".into(), &1.into()));
    assert!(info["redundancy"]["last_scrub"].is_u64() && info["redundancy"]["mttdl_gain"].is_null(), "{info}");
}

#[test]
fn more_than_parity_can_carry_is_listed_and_nothing_is_touched() {
    let place = plain(8);
    untorn(&["protect", place.name()]).expect(0);
    rot(&place, |file| {
        file.write_all_at(b"x", 0).unwrap();
        file.write_all_at(b"x", 3 * PAGE).unwrap();
        file.write_all_at(b"x", 4 * PAGE).unwrap();
    });
    let damaged = place.bytes();
    let report = untorn(&["repair", place.name(), "--json"]).expect(2).json();
    let lost = serde_json::json!([{ "offset": 0, "len": PAGE }, { "offset": 3 * PAGE, "len": PAGE }]);
    assert_eq!((&report["lost"], &report["repaired"]), (&lost, &serde_json::json!([])));
    assert_eq!(place.bytes(), damaged);
    assert!(untorn(&["repair", place.name()]).expect(2).text().contains("nothing was changed"));
}

#[test]
fn outside_writes_are_reported_and_left_alone() {
    let place = plain(8);
    untorn(&["protect", place.name()]).expect(0);
    write_untold(&place.file, b"an honest write", 2 * PAGE);
    let written = place.bytes();
    assert_eq!(place.info()["redundancy"]["state"], "changed-untold");
    // Nobody has looked at a page for it.
    for unknown in ["lost", "unknown", "oldest_uncovered_seconds", "in_sidecar"] {
        assert!(place.info()["redundancy"][unknown].is_null(), "{unknown}");
    }
    let found = untorn(&["scrub", place.name(), "--json"]).expect(1).json();
    assert_eq!(found["damage"], serde_json::json!([{ "what": "unknown", "offset": 2 * PAGE, "len": PAGE }]));
    untorn(&["repair", place.name()]).expect(1);
    assert_eq!(place.bytes(), written);
    let covered = untorn(&["protect", place.name(), "--json"]).expect(1).json();
    assert_eq!((&covered["unknown"], &covered["uncovered"]), (&serde_json::json!([2]), &0.into()));
    untorn(&["protect", place.name()]).expect(0);
    untorn(&["scrub", place.name()]).expect(0);
}

#[test]
fn repair_force_takes_modified_pages_back_as_scrub_advises() {
    let place = plain(16);
    let before = place.bytes();
    untorn(&["protect", place.name()]).expect(0);
    write_untold(&place.file, b"an honest write", 2 * PAGE);
    let advice = untorn(&["scrub", place.name()]).expect(1).text();
    let (accept, force) =
        (format!("untorn protect {}", place.name()), format!("untorn repair --force {}", place.name()));
    assert!(advice.contains(&accept) && advice.contains(&force), "{advice}");
    assert!(!advice.contains(&format!("untorn repair {}", place.name())), "it would leave the page alone: {advice}");
    let left = untorn(&["repair", place.name()]).expect(1).text();
    assert!(left.contains(&accept) && left.contains(&force) && !left.contains("repaired:"), "{left}");
    let text = untorn(&["repair", "--force", place.name()]).expect(0).text();
    assert!(text.contains("replaced from parity") && text.contains("4096 bytes at offset 8192"), "{text}");
    assert_eq!(place.bytes(), before);
    untorn(&["scrub", place.name()]).expect(0);
    // Two pages of a stripe: parity vouches for none, so the third stays as well.
    [0, PAGE, 9 * PAGE].into_iter().for_each(|at| write_untold(&place.file, b"an honest write", at));
    let written = place.bytes();
    let report = untorn(&["repair", "--force", place.name(), "--json"]).expect(1).json();
    let refused = serde_json::json!([{ "offset": 0, "len": PAGE }, { "offset": PAGE, "len": PAGE }]);
    assert_eq!((&report["refused"], &report["replaced"]), (&refused, &serde_json::json!([])));
    let text = untorn(&["repair", "--force", place.name()]).expect(1).text();
    assert!(text.contains("nothing was changed") && text.contains("4096 bytes at offset 0"), "{text}");
    assert_eq!(place.bytes(), written);
}

#[test]
fn the_shape_is_chosen_once() {
    let place = plain(20);
    let arguments =
        ["protect", place.name(), "--stripe=8", "--layout=spread", "--checksum=xxh3", "--batch=3", "--json"];
    let made = untorn(&arguments).expect(0).json();
    assert_eq!((&made["stripe"], &made["layout"], &made["checksum"]), (&8.into(), &"spread".into(), &"xxh3".into()));
    untorn(&["protect", place.name()]).expect(0);
    untorn(&["protect", place.name(), "--stripe=4"]).expect(64).names("unprotect it first");
    untorn(&["unprotect", place.name()]).expect(0);
    assert!(!place.dir.path().join(".untorn").exists());
    let again = untorn(&["unprotect", place.name(), "--json"]).expect(0).json();
    assert_eq!(again["was_protected"], false);
    untorn(&["protect", place.name(), "--stripe=4"]).expect(0);
}

#[test]
fn unprotectable_files_are_refused_with_the_way_out() {
    let empty = Place::plain(b"");
    untorn(&["protect", empty.name()]).expect(64).names("nothing to protect");
    let plain = plain(3);
    untorn(&["scrub", plain.name()]).expect(64).names("untorn protect");
    untorn(&["protect", plain.name()]).expect(0);
    fs::File::options().write(true).open(&plain.file).unwrap().set_len(9 * PAGE).unwrap();
    untorn(&["scrub", plain.name()]).expect(64).names("protect");
    assert!(plain.info()["redundancy"]["error"].is_string());
}

#[test]
fn a_protected_file_that_gets_an_engine_stays_protected() {
    let place = plain(4);
    untorn(&["protect", place.name()]).expect(0);
    untorn_with(&["write", place.name()], b"x").expect(0);
    untorn(&["scrub", place.name()]).expect(0);
    rot(&place, |file| file.write_all_at(b"damage", PAGE + 7).unwrap());
    untorn(&["scrub", place.name()]).expect(1);
    untorn(&["repair", place.name()]).expect(0);
    untorn(&["scrub", place.name()]).expect(0);
    untorn(&["settle", place.name()]).expect(0);
    assert_eq!(place.info()["redundancy"]["uncovered"], 0);
    untorn(&["scrub", place.name()]).expect(0);
}

#[test]
fn a_file_with_an_engine_is_protected_and_repaired() {
    let place = Place::created(10_000);
    let bytes: Vec<u8> = (0..10_000).map(|at| at as u8).collect();
    untorn_with(&["write", place.name()], &bytes).expect(0);
    let made = untorn(&["protect", place.name(), "--stripe=2", "--json"]).expect(0).json();
    assert_eq!((&made["pages"], &made["uncovered"]), (&3.into(), &0.into()));
    // What the engine is given later is covered when it lets the file go.
    untorn_with(&["write", place.name(), "--offset=5000"], b"here").expect(0);
    rot(&place, |file| file.write_all_at(b"damage", 5001).unwrap());
    untorn(&["scrub", place.name()]).expect(1);
    let report = untorn(&["repair", place.name(), "--json"]).expect(0).json();
    assert_eq!(report["repaired"][0]["offset"], 4096);
    assert_eq!(untorn(&["read", place.name(), "--offset=5000", "--len=4"]).expect(0).text(), "here");
    untorn(&["resize", place.name(), "--len=20000"]).expect(0);
    assert_eq!(place.info()["redundancy"]["pages"], 5);
    untorn(&["scrub", place.name()]).expect(0);
}

#[test]
fn a_period_is_kept_for_who_opens_it_later() {
    let place = plain(8);
    assert_eq!(
        untorn(&["protect", place.name(), "--json"]).expect(0).json()["period_seconds"],
        serde_json::Value::Null
    );
    assert_eq!(untorn(&["protect", place.name(), "--period", "30", "--json"]).expect(0).json()["period_seconds"], 30.0);
    // Until another is, also by those who name none, or one of their own.
    assert_eq!(untorn(&["protect", place.name(), "--batch", "3", "--json"]).expect(0).json()["period_seconds"], 30.0);
    assert_eq!(untorn(&["protect", place.name(), "--period", "0", "--json"]).expect(0).json()["period_seconds"], 0.0);
    let protected = untorn::redundancy::Protected::open(&place.file).unwrap();
    drop(protected.announce(10..20).unwrap());
    assert_eq!(protected.coverage().unwrap().uncovered, 0, "it was to be covered at once");
    protected.close().unwrap();
    let protected = untorn::redundancy::ProtectOptions::new().on_demand().open(&place.file).unwrap();
    drop(protected.announce(10..20).unwrap());
    assert_eq!(protected.coverage().unwrap().uncovered, 1);
    protected.close().unwrap();
    assert_eq!(place.info()["redundancy"]["period_seconds"], 0.0);
    assert_eq!(place.info()["redundancy"]["max_uncovered"], serde_json::Value::Null);
    assert_eq!(untorn(&["protect", place.name(), "--max-uncovered=9", "--json"]).expect(0).json()["max_uncovered"], 9);
    untorn(&["protect", place.name()]).expect(0);
    assert_eq!(place.info()["redundancy"]["max_uncovered"], 9);
    untorn(&["protect", place.name(), "--max-uncovered=-1"]).expect(64);
    for refused in ["0.0005", "-1", "never"] {
        untorn(&["protect", place.name(), &format!("--period={refused}")]).expect(64);
    }
    // An engine goes by it too, and keeps it when the file gets another length.
    let file = untorn::AtomicFile::open(&place.file).unwrap();
    file.resize(5 * PAGE).unwrap();
    assert_eq!(file.coverage().unwrap().unwrap().period, Some(std::time::Duration::ZERO));
    file.close().unwrap();
}

/// Three pages that follow each other, as one bad place of a device takes them.
#[test]
fn one_bad_place_is_repaired_with_spread_stripes() {
    for (layout, given_back) in [("spread", true), ("consecutive", false)] {
        let place = plain(64);
        let before = place.bytes();
        untorn(&["protect", place.name(), "--layout", layout]).expect(0);
        rot(&place, |file| file.write_all_at(&[0xee; 3 * PAGE as usize], 8 * PAGE).unwrap());
        let damaged = place.bytes();
        let report = untorn(&["repair", place.name(), "--json"]).expect(if given_back { 0 } else { 2 }).json();
        let pages: Vec<_> = (8..11).map(|page| serde_json::json!({ "offset": page * PAGE, "len": PAGE })).collect();
        let (repaired, lost) = if given_back { (pages, Vec::new()) } else { (Vec::new(), pages) };
        assert_eq!((&report["repaired"], &report["lost"]), (&repaired.into(), &lost.into()), "{layout}");
        assert!(place.bytes() == if given_back { before } else { damaged }, "{layout}");
    }
}

#[test]
fn info_shows_the_record_while_another_process_protects() {
    let place = plain(12);
    untorn(&["protect", place.name(), "--period", "30", "--stripe=3"]).expect(0);
    untorn(&["scrub", place.name()]).expect(0);
    let closed = place.info()["redundancy"].clone();
    let protected = untorn::redundancy::ProtectOptions::new().on_demand().open(&place.file).unwrap();
    let stores = protected.announce(PAGE..2 * PAGE + 1).unwrap();
    let told = place.info()["redundancy"].clone();
    assert_eq!((&told["state"], &told["holder"]), (&"in-use".into(), &std::process::id().into()));
    // Two pages of one stripe are announced, which is recorded before they are stored to.
    assert_eq!((&told["uncovered"], &told["vulnerable_stripes"]), (&2.into(), &1.into()));
    for same in ["companion", "pages", "stripe", "stripes", "layout", "checksum", "period_seconds", "repaired"] {
        assert_eq!(told[same], closed[same], "{same}");
    }
    for unknown in ["lost", "unknown", "oldest_uncovered_seconds", "in_sidecar"] {
        assert!(told[unknown].is_null(), "{unknown}: nobody but its owner knows");
    }
    let line = untorn(&["info", place.name()]).expect(0).text();
    assert!(line.contains(&format!("process {}", std::process::id())) && line.contains("10 of 12 pages"), "{line}");
    drop(stores);
    // Left as a crash leaves it: since when they are uncovered is nowhere on record.
    drop(protected);
    let left = place.info()["redundancy"].clone();
    assert_eq!((&left["uncovered"], &left["oldest_uncovered_seconds"]), (&2.into(), &serde_json::Value::Null));
    let coverage = untorn::coverage(&place.file).unwrap().unwrap();
    assert_eq!((coverage.uncovered, coverage.oldest_uncovered), (2, None));
    assert!(coverage.mttdl_gain().is_some());
    let protected = untorn::redundancy::ProtectOptions::new().on_demand().open(&place.file).unwrap();
    protected.sync().unwrap();
    assert_eq!(place.info()["redundancy"]["uncovered"], 0);
    protected.close().unwrap();
    assert_eq!(place.info()["redundancy"]["state"], "trusted");
    // Of a file with an engine, what its sidecar has too.
    let file = untorn::AtomicFile::open(&place.file).unwrap();
    let told = place.info()["redundancy"].clone();
    assert_eq!((&told["state"], &told["holder"]), (&"in-use".into(), &std::process::id().into()));
    assert!(told["sidecar"]["pages"].is_u64() && told["sidecar"]["lost"].is_null(), "{told}");
    file.close().unwrap();
}
