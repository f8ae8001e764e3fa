//! Files that are scrubbed and repaired while an ordinary program writes to them, which tells nobody.

use std::cell::Cell;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::common::pattern;
use untorn::redundancy::{Damage, PageRange, ProtectOptions, RepairReport};

const PAGE: usize = 4096;
/// More stripes than are looked at between two calls of who is told of progress.
const PAGES: usize = 4 * 600;

struct Place {
    _dir: tempfile::TempDir,
    file: PathBuf,
}

impl Place {
    /// A protected file, closed.
    fn new(bytes: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("table");
        fs::write(&file, bytes).unwrap();
        ProtectOptions::new().on_demand().open(&file).unwrap().close().unwrap();
        Place { _dir: dir, file }
    }

    /// As an ordinary program does it.
    fn write(&self, page: usize) {
        let file = File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(b"an honest write", (page * PAGE) as u64).unwrap();
    }

    /// As a device does it: the bytes change, the times stay.
    fn rot(&self, page: usize) {
        let file = File::options().write(true).open(&self.file).unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        file.write_all_at(b"damage", (page * PAGE + 100) as u64).unwrap();
        file.set_modified(modified).unwrap();
        file.sync_all().unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap()
    }

    /// Repairs it, and does something at the call about progress with this number.
    fn repair_with(&self, call: u32, something: impl Fn()) -> RepairReport {
        let calls = Cell::new(0);
        let report = untorn::repair(&self.file, &mut |_, _| {
            calls.set(calls.get() + 1);
            if calls.get() == call {
                something();
            }
            true
        });
        assert!(calls.get() >= call, "nobody asked so often");
        report.unwrap()
    }

    /// Repairs it and finds these pages unknown, nothing lost, and nothing to give back; no byte changes.
    fn is_left_alone(&self, report: &RepairReport, unknown: &[usize]) {
        let range = |page: &usize| PageRange { offset: (page * PAGE) as u64, len: PAGE as u64 };
        let unknown: Vec<PageRange> = unknown.iter().map(range).collect();
        assert_eq!((&report.unknown, &report.repaired, &report.lost), (&unknown, &vec![], &vec![]));
    }
}

/// Progress is told after the first stripe, every 256 stripes, and at the end.
const LAST_CALL: u32 = 4;

#[test]
fn writes_ahead_of_the_scrub_are_not_undone() {
    let place = Place::new(&pattern(PAGES, 1).repeat(PAGE));
    let report = place.repair_with(1, || place.write(PAGES - 2));
    place.is_left_alone(&report, &[PAGES - 2]);
    assert!(report.scrub.damage.iter().all(|damage| matches!(damage, Damage::Unknown(_))));
    assert_eq!(&place.bytes()[(PAGES - 2) * PAGE..][..15], b"an honest write");
    // A scrub that changes nothing accuses nobody either.
    let place = Place::new(&pattern(PAGES, 2).repeat(PAGE));
    let wrote = Cell::new(false);
    let scrubbed = untorn::scrub(&place.file, None, &mut |_, _| {
        if !wrote.replace(true) {
            place.write(PAGES - 2);
        }
        true
    });
    let damage = scrubbed.unwrap().damage;
    assert!(
        matches!(damage[..], [Damage::Unknown(range)] if range.offset == ((PAGES - 2) * PAGE) as u64),
        "{damage:?}"
    );
}

#[test]
fn writes_behind_the_scrub_are_not_undone_by_a_repair() {
    for call in [1, LAST_CALL] {
        let place = Place::new(&pattern(PAGES, 3).repeat(PAGE));
        place.rot(PAGES - 2);
        let damaged = place.bytes();
        let report = place.repair_with(call, || place.write(1));
        // Nobody knows which of the two the program has written.
        place.is_left_alone(&report, &[PAGES - 2]);
        let report = place.repair_with(1, || ());
        place.is_left_alone(&report, &[1, PAGES - 2]);
        let held = place.bytes();
        assert_eq!(&held[PAGE..][..15], b"an honest write");
        assert!(held[..PAGE] == damaged[..PAGE] && held[2 * PAGE..] == damaged[2 * PAGE..]);
    }
}

#[test]
fn writes_to_a_page_found_damaged_are_kept() {
    let place = Place::new(&pattern(PAGES, 4).repeat(PAGE));
    place.rot(5);
    let report = place.repair_with(LAST_CALL, || place.write(5));
    place.is_left_alone(&report, &[5]);
    assert_eq!(&place.bytes()[5 * PAGE..][..15], b"an honest write");
    // The same beside it, in the stripe that it would be made of.
    let place = Place::new(&pattern(PAGES, 5).repeat(PAGE));
    place.rot(5);
    let report = place.repair_with(LAST_CALL, || place.write(6));
    place.is_left_alone(&report, &[5, 6]);
    assert_eq!(&place.bytes()[6 * PAGE..][..15], b"an honest write");
}

#[test]
fn a_repair_that_nobody_disturbs_is_believed_by_the_next() {
    let bytes = pattern(PAGES, 6).repeat(PAGE);
    let place = Place::new(&bytes);
    // More than one superblock names.
    let damaged: Vec<usize> = (0..100).map(|nth| nth * 4 + 1).collect();
    damaged.iter().for_each(|page| place.rot(*page));
    assert_eq!(place.repair_with(1, || ()).repaired.len(), damaged.len());
    assert!(place.bytes() == bytes);
    place.rot(9);
    assert_eq!(place.repair_with(1, || ()).repaired.len(), 1);
    assert!(place.bytes() == bytes);
}
