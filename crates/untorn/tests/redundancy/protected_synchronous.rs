//! Redundancy with a period of 0: what is stored is covered when the announcement is dropped, whatever is beside it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use proptest::prelude::*;
use untorn::Error;
use untorn::redundancy::{Damage, Protected, StripeLayout};

use crate::common::system::SharedMapping;
use crate::common::{PAGE, pattern};
use crate::fixture::{self, at_once, page, uncovered};

/// A file, and what it is to hold.
struct Place {
    place: fixture::Place,
    bytes: Vec<u8>,
}

impl Place {
    fn new(len: usize) -> Self {
        let bytes = pattern(len, 1);
        Place { place: fixture::Place::new(&bytes), bytes }
    }

    fn path(&self) -> &Path {
        &self.place.path
    }

    fn store(&mut self, protected: &Protected, at: usize, bytes: &[u8]) {
        self.place.store(protected, at, bytes);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.place.write(at, bytes);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn rot(&self, page: usize) {
        let at = page * PAGE;
        self.place.rot(at, &[!self.bytes[at]]);
    }

    fn is_as_stored(&self) -> bool {
        self.place.bytes() == self.bytes
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn stores_are_covered_at_once_and_can_be_repaired(
        pages in 1..20_usize,
        tail in 1..=PAGE,
        width in 1..6_u32,
        spread in any::<bool>(),
        batch in 1..4_u64,
        stores in proptest::collection::vec((any::<usize>(), 1..3 * PAGE, any::<u8>()), 1..12),
        victim in any::<usize>(),
    ) {
        let len = (pages - 1) * PAGE + tail;
        let mut place = Place::new(len);
        let layout = if spread { StripeLayout::Spread } else { StripeLayout::Consecutive };
        let protected = at_once().stripe(width).layout(layout).batch(batch).open(place.path()).unwrap();
        prop_assert_eq!(uncovered(&protected), 0, "when it is opened");
        for (at, count, fill) in stores {
            let at = at % len;
            place.store(&protected, at, &vec![fill; count.min(len - at)]);
            prop_assert_eq!(uncovered(&protected), 0);
        }
        prop_assert!(protected.scrub().unwrap().is_clean());
        place.rot(victim % pages);
        prop_assert_eq!(protected.repair().unwrap().repaired.len(), 1);
        prop_assert!(place.is_as_stored());
        protected.close().unwrap();
        prop_assert!(place.place.scrub().is_clean());
    }
}

#[test]
fn a_damaged_page_beside_stores_can_still_be_repaired() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    place.rot(1);
    for round in 0..3 {
        place.store(&protected, 2 * PAGE + 100, &[round; 300]);
        place.store(&protected, 10, &[round; 20]);
        assert_eq!(uncovered(&protected), 0);
    }
    assert_eq!(protected.scrub().unwrap().damage, [Damage::Page(page(1))]);
    assert_eq!(protected.repair().unwrap().repaired, [page(1)]);
    assert!(place.is_as_stored());
    protected.close().unwrap();
}

#[test]
fn a_damaged_page_is_repaired_before_it_is_stored_to() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    place.rot(6);
    let stores = protected.announce(6 * PAGE as u64 + 100..6 * PAGE as u64 + 110).unwrap();
    assert!(place.is_as_stored(), "before anything is stored");
    place.write(6 * PAGE + 100, b"0123456789");
    stores.cover().unwrap();
    assert_eq!(uncovered(&protected), 0);
    assert!(place.is_as_stored());
    assert_eq!(protected.coverage().unwrap().history.repaired, 1);
    assert!(protected.scrub().unwrap().is_clean());
    protected.close().unwrap();
}

#[test]
fn a_partial_store_to_a_lost_page_is_refused() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    place.rot(0);
    place.rot(1);
    match protected.announce(PAGE as u64 - 10..PAGE as u64 + 10) {
        Err(Error::Corrupt { offset: Some(0), .. }) => {}
        other => panic!("{other:?}"),
    }
    // Nothing was announced by that, and the handle goes on.
    assert_eq!(uncovered(&protected), 0);
    place.store(&protected, 5 * PAGE, b"elsewhere");
    assert_eq!(uncovered(&protected), 0);
    // Stored anew it is good, but it cannot be covered beside the other.
    place.store(&protected, 0, &[1; PAGE]);
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.uncovered, &coverage.lost[..]), (1, &[1][..]));
    place.store(&protected, PAGE, &[2; PAGE]);
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.uncovered, &coverage.lost[..]), (0, &[][..]));
    assert!(place.is_as_stored() && protected.scrub().unwrap().is_clean());
    protected.close().unwrap();
}

#[test]
fn a_page_that_two_store_to_is_covered_when_the_second_is_done() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    let (first, second) = (protected.announce(0..10).unwrap(), protected.announce(5..20).unwrap());
    // And beside both, in the same stripe.
    let beside = protected.announce(PAGE as u64..PAGE as u64 + 10).unwrap();
    place.write(0, b"0123456789");
    drop(first);
    assert_eq!(uncovered(&protected), 2);
    place.write(PAGE, b"0123456789");
    drop(beside);
    assert_eq!(uncovered(&protected), 1);
    place.write(5, b"abcdefghij");
    second.cover().unwrap();
    assert_eq!(uncovered(&protected), 0);
    for number in 0..2 {
        place.rot(number);
        assert_eq!(protected.repair().unwrap().repaired, [page(number)]);
    }
    assert!(place.is_as_stored());
    protected.close().unwrap();
}

#[test]
fn a_damaged_page_is_repaired_during_a_store_beside_it() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    place.rot(1);
    let beside = protected.announce(2 * PAGE as u64..3 * PAGE as u64).unwrap();
    place.write(2 * PAGE, &[3; 2000]);
    let stores = protected.announce(PAGE as u64 + 100..PAGE as u64 + 110).unwrap();
    assert!(place.is_as_stored(), "before anything is stored");
    place.write(PAGE + 100, b"0123456789");
    place.write(2 * PAGE + 2000, &[4; 100]);
    drop(stores);
    assert_eq!(uncovered(&protected), 1);
    // The same on request, and of a page that is announced in no part.
    place.rot(0);
    let report = protected.repair().unwrap();
    assert_eq!((&report.repaired[..], &report.lost[..]), (&[page(0)][..], &[][..]));
    assert!(place.is_as_stored());
    // Two of a stripe are one too many.
    place.rot(0);
    place.rot(3);
    let report = protected.repair().unwrap();
    assert_eq!((&report.repaired[..], &report.lost[..]), (&[][..], &[page(0), page(3)][..]));
    place.store(&protected, 0, &[5; PAGE]);
    drop(beside);
    assert_eq!(protected.repair().unwrap().lost, [page(3)]);
    place.store(&protected, 3 * PAGE, &[6; PAGE]);
    assert_eq!(uncovered(&protected), 0);
    assert!(place.is_as_stored() && protected.scrub().unwrap().is_clean());
    protected.close().unwrap();
}

#[test]
fn a_damaged_page_beside_large_stores_can_still_be_repaired() {
    // Which pages are damaged and which are stored to. Consecutive, one whole stripe is stored to and two in part;
    // spread, two of three in part.
    let cases = [(StripeLayout::Consecutive, [0, 10], 2..10), (StripeLayout::Spread, [3, 10], 0..2)];
    for (layout, rotten, stored) in cases {
        let mut place = Place::new(12 * PAGE);
        let protected = at_once().layout(layout).batch(1).open(place.path()).unwrap();
        rotten.into_iter().for_each(|number| place.rot(number));
        for (first, last) in [(0, 0), (100, PAGE - 7)] {
            let at = stored.start * PAGE + first;
            place.store(&protected, at, &vec![first as u8 ^ 9; stored.len() * PAGE - first - last]);
            let coverage = protected.coverage().unwrap();
            assert_eq!((coverage.uncovered, &coverage.lost[..]), (0, &[][..]), "{layout}");
        }
        assert_eq!(protected.repair().unwrap().repaired.len(), 2, "{layout}");
        assert!(place.is_as_stored(), "{layout}");
        assert!(protected.scrub().unwrap().is_clean(), "{layout}");
        protected.close().unwrap();
    }
}

#[test]
fn damaged_parity_is_made_anew_by_the_next_store() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    let coverage = protected.coverage().unwrap();
    let side = File::options().read(true).write(true).open(&coverage.redundancy_file).unwrap();
    // The parity of the second of two stripes is the last page.
    let mut byte = [0];
    side.read_exact_at(&mut byte, coverage.bytes - 1).unwrap();
    side.write_all_at(&[!byte[0]], coverage.bytes - 1).unwrap();
    place.store(&protected, 5 * PAGE, b"stored");
    assert_eq!(uncovered(&protected), 0);
    assert!(protected.scrub().unwrap().is_clean());
    place.rot(7);
    assert_eq!(protected.repair().unwrap().repaired, [page(7)]);
    assert!(place.is_as_stored());
    protected.close().unwrap();
}

#[test]
fn threads_storing_side_by_side_leave_everything_covered() {
    let place = Place::new(16 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    let alarms = std::thread::scope(|scope| {
        let threads = [1_u8, 2, 3].map(|thread| {
            let (protected, place) = (&protected, &place.place);
            scope.spawn(move || {
                for round in 0..20_u64 {
                    // All of them in two stripes, often in the same pages, each in its own bytes.
                    let at = (round * 5 % 8) * PAGE as u64 + u64::from(thread) * 100;
                    let stores = protected.announce(at..at + 100).unwrap();
                    place.write(at as usize, &[thread ^ round as u8; 100]);
                    drop(stores);
                }
            })
        });
        let alarms = protected.scrub().unwrap().damage;
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        alarms
    });
    assert_eq!(alarms, []);
    assert_eq!(uncovered(&protected), 0);
    assert!(protected.scrub().unwrap().is_clean());
    protected.close().unwrap();
}

#[test]
fn a_crash_amid_a_store_leaves_its_page_known_to_be_uncovered() {
    let mut place = Place::new(8 * PAGE);
    let protected = at_once().open(place.path()).unwrap();
    let stores = protected.announce(0..10).unwrap();
    place.write(0, b"0123456789");
    assert_eq!(uncovered(&protected), 1);
    // The process ends here, and nobody tells that the stores were made.
    std::mem::forget(stores);
    drop(protected);
    place.rot(6);
    let report = place.place.repair();
    assert_eq!((report.scrub.skipped, &report.repaired[..]), (1, &[page(6)][..]));
    assert!(place.is_as_stored());
    let protected = at_once().open(place.path()).unwrap();
    assert_eq!(uncovered(&protected), 0);
    protected.close().unwrap();
}

#[test]
fn stores_that_are_found_afterwards_cannot_be_covered_at_once() {
    let place = Place::new(4 * PAGE);
    let mapping = SharedMapping::new(place.path());
    match at_once().mapping(mapping.address(), mapping.len()) {
        Err(Error::Invalid { what, .. }) => assert!(what.contains("choose a longer period"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert!(untorn::coverage(place.path()).unwrap().is_none());
}
