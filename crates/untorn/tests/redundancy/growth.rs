//! Protected files and mappings that get another length while they are open.

use std::fs::{self, File};
use std::time::Duration;

use untorn::Error;
use untorn::redundancy::{Damage, StripeLayout};
use untorn::report::ProtectionProblem;

use crate::common::system::SharedMapping;
use crate::common::{PAGE, pattern};
use crate::fixture::{PAGE_LEN, Place, by_hand, page, protect_mapping, uncovered};

fn set_len(place: &Place, pages: u64) {
    File::options().write(true).open(&place.path).unwrap().set_len(pages * PAGE_LEN).unwrap();
}

fn is_of_another_length(error: &Error) {
    assert!(matches!(error, Error::Protection { problem: ProtectionProblem::OtherLength { .. }, .. }), "{error}");
}

#[test]
fn a_file_that_others_make_longer_or_shorter_is_an_error() {
    for pages in [9, 7] {
        let bytes = pattern(8 * PAGE, 1);
        let place = Place::new(&bytes);
        let protected = by_hand().open(&place.path).unwrap();
        protected.sync().unwrap();
        place.store(&protected, 0, b"stored");
        set_len(&place, pages);
        is_of_another_length(&protected.sync().unwrap_err());
        let error = protected.announce(0..1).map(drop).unwrap_err();
        assert!(matches!(error, Error::Poisoned { .. }), "{error}");
        assert!(protected.close().is_err());
        // With its length back, everything is as it was left.
        set_len(&place, 8);
        let protected = by_hand().open(&place.path).unwrap();
        protected.sync().unwrap();
        protected.close().unwrap();
        // A page that was cut off has zeros now, and is given back.
        let cut: Vec<usize> = (pages as usize..8).collect();
        assert_eq!(place.damage(), cut.iter().map(|number| Damage::Page(page(*number))).collect::<Vec<_>>());
        place.repairs(cut.len());
        assert!(place.bytes()[PAGE..] == bytes[PAGE..]);
    }
}

#[test]
fn a_mapped_file_that_grows_is_an_error() {
    let place = Place::new(&pattern(8 * PAGE, 2));
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    protected.sync().unwrap();
    set_len(&place, 16);
    mapping.store(3 * PAGE, b"stored");
    is_of_another_length(&protected.sync().unwrap_err());
    assert!(protected.close().is_err());
    let longer = SharedMapping::new(&place.path);
    let error = by_hand().mapping(longer.address(), longer.len()).unwrap_err();
    is_of_another_length(&error);
    assert!(error.to_string().contains("untorn unprotect"), "{error}");
    // As the error says.
    drop(mapping);
    assert!(untorn::unprotect(&place.path).unwrap());
    let protected = protect_mapping(&by_hand(), &longer).unwrap();
    protected.sync().unwrap();
    longer.store(12 * PAGE, b"stored");
    assert_eq!(uncovered(&protected), 1);
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

/// Covered pages stay covered, and added pages are covered.
#[test]
fn set_len_keeps_what_is_covered() {
    for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
        for period in [None, Some(Duration::ZERO)] {
            let mut expected = pattern(8 * PAGE, 3);
            let place = Place::new(&expected);
            let options = by_hand().layout(layout);
            let options = period.map_or(options.clone(), |period| options.period(period));
            let protected = options.open(&place.path).unwrap();
            protected.sync().unwrap();
            for len in [9 * PAGE + 5, 40 * PAGE, 40 * PAGE, 3 * PAGE + 1, PAGE, 12 * PAGE] {
                place.rot(17_u64, b"damaged");
                protected.set_len(len as u64).unwrap();
                expected.resize(len, 0);
                let coverage = protected.coverage().unwrap();
                assert_eq!((coverage.pages, coverage.uncovered), (len.div_ceil(PAGE) as u64, 0), "{len}");
                assert!(protected.repair().unwrap().is_whole());
                assert!(place.bytes() == expected, "{layout:?}, {period:?}, {len}");
                place.store(&protected, len - 1, b"1");
                expected[len - 1] = b'1';
                protected.sync().unwrap();
                place.rot(len - 1, b"0");
                assert_eq!(protected.repair().unwrap().repaired.len(), 1);
                assert!(place.bytes() == expected, "{layout:?}, {period:?}, {len}");
            }
            protected.close().unwrap();
            assert_eq!(place.damage(), vec![]);
            assert_eq!(fs::read_dir(place.companion().parent().unwrap()).unwrap().count(), 1);
        }
    }
}

#[test]
fn a_mapping_longer_than_its_file_grows_with_it() {
    let place = Place::new(&pattern(8 * PAGE, 4));
    set_len(&place, 64);
    let mapping = SharedMapping::new(&place.path);
    set_len(&place, 8);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    protected.sync().unwrap();
    mapping.store(2 * PAGE, b"before");
    protected.set_len(64 * PAGE_LEN).unwrap();
    assert_eq!(uncovered(&protected), 1, "the store is known yet");
    mapping.store(63 * PAGE, b"behind the old end");
    assert_eq!(uncovered(&protected), 2);
    protected.sync().unwrap();
    assert_eq!(uncovered(&protected), 0);
    place.rot(63 * PAGE, b"damaged");
    place.rot(PAGE, b"damaged");
    assert_eq!(protected.repair().unwrap().repaired.len(), 2);
    assert!(place.bytes()[63 * PAGE..].starts_with(b"behind the old end"));
    let error = protected.set_len(65 * PAGE_LEN).unwrap_err();
    assert!(error.to_string().contains("262144 bytes"), "{error}");
    mapping.store(3 * PAGE, b"cut off");
    protected.set_len(3 * PAGE_LEN).unwrap();
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
    assert_eq!(place.bytes().len(), 3 * PAGE);
}

#[test]
fn set_len_refuses_what_it_cannot_do_and_changes_nothing() {
    let bytes = pattern(8 * PAGE, 5);
    let place = Place::new(&bytes);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    let stores = protected.announce(0..1).unwrap();
    let error = protected.set_len(9 * PAGE_LEN).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("Stores"), "{error}");
    drop(stores);
    for (len, problem) in [(0, ProtectionProblem::Empty), (u64::MAX, ProtectionProblem::TooLong)] {
        let error = protected.set_len(len).unwrap_err();
        assert!(matches!(&error, Error::Protection { problem: found, .. } if *found == problem), "{error}");
    }
    // Another program makes it longer, and takes that back.
    for len in [9, 10] {
        set_len(&place, 9);
        is_of_another_length(&protected.set_len(len * PAGE_LEN).unwrap_err());
        set_len(&place, 8);
    }
    // The handle goes on as before.
    place.store(&protected, 5, b"stored");
    protected.sync().unwrap();
    protected.set_len(9 * PAGE_LEN).unwrap();
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

/// Its path names another file by now, which nobody protects.
#[test]
fn set_len_leaves_a_file_alone_that_took_the_others_name() {
    let bytes = pattern(8 * PAGE, 6);
    let place = Place::new(&bytes);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    let (aside, other) = (place.path.with_extension("aside"), pattern(8 * PAGE, 7));
    fs::rename(&place.path, &aside).unwrap();
    fs::write(&place.path, &other).unwrap();
    for len in [4, 8, 12] {
        let error = protected.set_len(len * PAGE_LEN).unwrap_err();
        assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("another file"), "{error}");
    }
    assert!(place.bytes() == other && fs::read(&aside).unwrap() == bytes);
    fs::rename(&aside, &place.path).unwrap();
    protected.set_len(9 * PAGE_LEN).unwrap();
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}
