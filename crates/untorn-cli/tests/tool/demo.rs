//! The demo's report and its promise.

use std::sync::{Mutex, PoisonError};

use crate::common::{Place, untorn};

/// One demo at a time: each is allowed a machine of its own.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn plain_mmap_tears_and_untorn_does_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let place = Place::empty();
    let dir = place.dir();
    let object = untorn(&["demo", "--json", "--dir", dir]).expect(0).json();
    let number = |pointer: &str| {
        object.pointer(pointer).and_then(|value| value.as_u64()).unwrap_or_else(|| panic!("no {pointer} in {object}"))
    };
    assert!(number("/plain/kills") > 0 && number("/untorn/kills") > 0);
    assert!(number("/plain/torn") > 0, "no kill fell inside a transfer: {object}");
    assert_eq!((number("/untorn/torn"), number("/untorn/lost")), (0, 0), "{object}");
    assert!(number("/power_cuts/plain/images") > 100 && number("/power_cuts/untorn/images") > 100, "{object}");
    assert!(number("/power_cuts/plain/torn") > 0, "{object}");
    assert_eq!((number("/power_cuts/untorn/torn"), number("/power_cuts/untorn/lost")), (0, 0), "{object}");
    assert_eq!(place.entries(), [""; 0], "the demo left files behind");
}

#[test]
fn the_table_ends_with_what_was_shown_and_what_not() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let text = untorn(&["demo"]).expect(0).prose();
    for words in ["mmap + msync", "writer killed (SIGKILL)", "power cut (simulated)", "Tested in", "Not tested"] {
        assert!(text.contains(words), "no {words:?} in {text}");
    }
}
