//! Files that are scrubbed and repaired while an ordinary program writes to them, which tells nobody.

use std::cell::Cell;

use untorn::redundancy::{Damage, PageRange, RepairReport};

use crate::common::{PAGE, pattern};
use crate::fixture::{Place, page};

/// More than a scrub has read when it tells of its first stripe: three parts of 1,024 pages, of which threads read two
/// ahead.
const PAGES: usize = 4 * 1200;

/// As an ordinary program does it.
fn write(place: &Place, page: usize) {
    place.write(page * PAGE, b"an honest write");
}

/// As a device does it.
fn rot(place: &Place, page: usize) {
    place.rot(page * PAGE + 100, b"damage");
}

/// Repairs a file, and does something at the call about progress with this number.
fn repair_with(place: &Place, call: u32, something: impl Fn()) -> RepairReport {
    let calls = Cell::new(0);
    let report = untorn::repair(&place.path, &mut |_, _| {
        calls.set(calls.get() + 1);
        if calls.get() == call {
            something();
        }
        true
    });
    assert!(calls.get() >= call, "nobody asked so often");
    report.unwrap()
}

/// The repair finds these pages unknown, nothing lost, and nothing to give back.
fn is_left_alone(report: &RepairReport, unknown: &[usize]) {
    let unknown: Vec<PageRange> = unknown.iter().map(|number| page(*number)).collect();
    assert_eq!((&report.unknown, &report.repaired, &report.lost), (&unknown, &vec![], &vec![]));
}

/// Progress is told after the first stripe, every 256 stripes, and at the end.
const LAST_CALL: u32 = 6;

#[test]
fn writes_ahead_of_the_scrub_are_not_undone() {
    let place = Place::protected(&pattern(PAGES, 1).repeat(PAGE));
    let report = repair_with(&place, 1, || write(&place, PAGES - 2));
    is_left_alone(&report, &[PAGES - 2]);
    assert!(report.scrub.damage.iter().all(|damage| matches!(damage, Damage::Unknown(_))));
    assert_eq!(&place.bytes()[(PAGES - 2) * PAGE..][..15], b"an honest write");
    // A scrub that changes nothing accuses nobody either.
    let place = Place::protected(&pattern(PAGES, 2).repeat(PAGE));
    let wrote = Cell::new(false);
    let scrubbed = untorn::scrub(&place.path, None, &mut |_, _| {
        if !wrote.replace(true) {
            write(&place, PAGES - 2);
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
        let place = Place::protected(&pattern(PAGES, 3).repeat(PAGE));
        rot(&place, PAGES - 2);
        let damaged = place.bytes();
        let report = repair_with(&place, call, || write(&place, 1));
        // Nobody knows which of the two the program has written.
        is_left_alone(&report, &[PAGES - 2]);
        let report = repair_with(&place, 1, || ());
        is_left_alone(&report, &[1, PAGES - 2]);
        let held = place.bytes();
        assert_eq!(&held[PAGE..][..15], b"an honest write");
        assert!(held[..PAGE] == damaged[..PAGE] && held[2 * PAGE..] == damaged[2 * PAGE..]);
    }
}

#[test]
fn writes_to_a_page_found_damaged_are_kept() {
    let place = Place::protected(&pattern(PAGES, 4).repeat(PAGE));
    rot(&place, 5);
    let report = repair_with(&place, LAST_CALL, || write(&place, 5));
    is_left_alone(&report, &[5]);
    assert_eq!(&place.bytes()[5 * PAGE..][..15], b"an honest write");
    // The same beside it, in the stripe that it would be made of.
    let place = Place::protected(&pattern(PAGES, 5).repeat(PAGE));
    rot(&place, 5);
    let report = repair_with(&place, LAST_CALL, || write(&place, 6));
    is_left_alone(&report, &[5, 6]);
    assert_eq!(&place.bytes()[6 * PAGE..][..15], b"an honest write");
}

#[test]
fn a_repair_that_nobody_disturbs_is_believed_by_the_next() {
    let bytes = pattern(PAGES, 6).repeat(PAGE);
    let place = Place::protected(&bytes);
    // More than one superblock names.
    let damaged: Vec<usize> = (0..100).map(|nth| nth * 4 + 1).collect();
    damaged.iter().for_each(|page| rot(&place, *page));
    assert_eq!(repair_with(&place, 1, || ()).repaired.len(), damaged.len());
    assert!(place.bytes() == bytes);
    rot(&place, 9);
    assert_eq!(repair_with(&place, 1, || ()).repaired.len(), 1);
    assert!(place.bytes() == bytes);
}

/// Repairs a file, and takes back what others wrote.
fn repair_modified(place: &Place) -> RepairReport {
    untorn::repair_modified(&place.path, &mut |_, _| true).unwrap()
}

#[test]
fn a_forced_repair_takes_modified_pages_back_from_parity() {
    let bytes = pattern(PAGES, 7).repeat(PAGE);
    // One, and more than one superblock names.
    for pages in [1, 150] {
        let place = Place::protected(&bytes);
        let modified: Vec<usize> = (0..pages).map(|nth| nth * 4 + 2).collect();
        modified.iter().for_each(|page| write(&place, *page));
        rot(&place, PAGES - 1);
        is_left_alone(&repair_with(&place, 1, || ()), &[modified.clone(), vec![PAGES - 1]].concat());
        let report = repair_modified(&place);
        // Nothing tells the damaged page from one that a program wrote.
        let replaced: Vec<PageRange> = modified.iter().chain([&(PAGES - 1)]).map(|number| page(*number)).collect();
        assert_eq!((&report.replaced, &report.unknown, &report.refused), (&replaced, &vec![], &vec![]));
        assert!(report.is_whole() && report.repaired.is_empty());
        assert!(place.bytes() == bytes);
        // The file is believed again.
        assert!(place.coverage().believed && place.try_scrub().unwrap().is_clean());
        rot(&place, 9);
        assert_eq!(repair_with(&place, 1, || ()).repaired, [page(9)]);
        assert!(place.bytes() == bytes);
        assert!(repair_modified(&place).scrub.is_clean());
    }
}

#[test]
fn a_forced_repair_without_parity_changes_nothing() {
    let place = Place::protected(&pattern(PAGES, 8).repeat(PAGE));
    // Two of a stripe, and one that parity could give back.
    [5, 6, 20].into_iter().for_each(|page| write(&place, page));
    let written = place.bytes();
    let report = repair_modified(&place);
    assert_eq!((&report.refused, &report.replaced), (&vec![page(5), page(6)], &vec![]));
    assert_eq!(report.unknown, [page(5), page(6), page(20)]);
    assert!(place.bytes() == written);
    // Of a stripe with a page whose bytes parity does not have.
    let place = Place::new(&pattern(8, 9).repeat(PAGE));
    let protected = untorn::redundancy::ProtectOptions::new().on_demand().open(&place.path).unwrap();
    place.store(&protected, PAGE, b"not covered");
    drop(protected);
    write(&place, 2);
    let written = place.bytes();
    let report = repair_modified(&place);
    assert!(report.replaced.is_empty() && report.repaired.is_empty(), "{report:?}");
    assert!(place.bytes() == written);
}

#[test]
fn a_forced_repair_is_refused_beside_an_engine_or_a_handle() {
    let place = Place::protected(&pattern(8, 10).repeat(PAGE));
    let protected = untorn::redundancy::Protected::open(&place.path).unwrap();
    let error = protected.repair_modified_with(&mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("untorn repair --force"), "{error}");
    protected.close().unwrap();
    let file = untorn::Options::new().keep_sidecar(true).open(&place.path).unwrap();
    file.write_at(b"in the sidecar", 100).unwrap();
    file.close().unwrap();
    write(&place, 3);
    let written = place.bytes();
    let error = untorn::repair_modified(&place.path, &mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("untorn recover --trust"), "{error}");
    assert!(place.bytes() == written);
}
