//! Protected files and mappings that get another length while they are open.

use std::fs::File;

use untorn::Error;
use untorn::redundancy::Damage;
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
