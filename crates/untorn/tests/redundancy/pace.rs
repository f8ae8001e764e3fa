//! The pace of covering: a period that changes, and a cap on uncovered pages.

use std::time::{Duration, Instant};

use untorn::redundancy::{CoveringPace, ProtectOptions, Protected};
use untorn::{EngineKind, Error, Options};

use crate::common::system::SharedMapping;
use crate::common::{PAGE, pattern};
use crate::fixture::{PAGE_LEN, Place, at_once, protect_mapping, uncovered};

const HOURS: Duration = Duration::from_secs(3600);

/// A pass that waits for its period never comes.
fn capped(pages: u64) -> ProtectOptions {
    ProtectOptions::new().period(HOURS).max_uncovered(pages)
}

fn pace(protected: &Protected) -> CoveringPace {
    protected.coverage().unwrap().pace.unwrap()
}

/// Waits until this holds, which without a pass it never does.
#[track_caller]
fn comes(what: impl Fn() -> bool) {
    let since = Instant::now();
    while !what() {
        assert!(since.elapsed() < Duration::from_secs(60), "no pass came");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn announcements_beyond_the_cap_are_covered_at_once() {
    let pages = 400_u64;
    let place = Place::new(&pattern(pages as usize * PAGE, 1));
    let protected = capped(16).open(&place.path).unwrap();
    // A new redundancy file marks all of them, which is beyond the cap.
    comes(|| uncovered(&protected) == 0);
    assert_eq!(pace(&protected).peak_uncovered, pages);
    let held = protected.announce(7 * PAGE_LEN..7 * PAGE_LEN + 1).unwrap();
    for number in 0..pages {
        place.store(&protected, number as usize * PAGE, b"stored");
        // Twice the cap, the stripe of a page that is being stored to, and the announcement itself.
        assert!(uncovered(&protected) <= 32 + 4 + 1, "{} at page {number}", uncovered(&protected));
    }
    drop(held);
    comes(|| uncovered(&protected) <= 16 + 4);
    protected.set_max_uncovered(Some(0)).unwrap();
    comes(|| uncovered(&protected) == 0);
    // The first page wakes the thread now.
    place.store(&protected, 0, b"once more");
    comes(|| uncovered(&protected) == 0);
    protected.set_max_uncovered(None).unwrap();
    place.store(&protected, 0, b"and once more");
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!((uncovered(&protected), pace(&protected).max_uncovered), (1, None));
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn a_busy_mapping_is_covered_long_before_its_period() {
    let place = Place::new(&pattern(2000 * PAGE, 2));
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&capped(100), &mapping) else { return };
    protected.sync().unwrap();
    // A burst after a rest, and a steady stream.
    std::thread::sleep(Duration::from_millis(200));
    for number in 0..500 {
        mapping.store(number * PAGE, b"burst");
    }
    comes(|| uncovered(&protected) == 0);
    for number in 500..2000 {
        mapping.store(number * PAGE, b"stream");
        std::thread::sleep(Duration::from_micros(100));
    }
    comes(|| uncovered(&protected) <= 100);
    // Below the cap nothing is covered before its time.
    protected.sync().unwrap();
    mapping.store(0, b"few");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(uncovered(&protected), 1);
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn the_period_of_an_open_file_can_change() {
    let place = Place::protected(&pattern(8 * PAGE, 3));
    let protected = ProtectOptions::new().period(HOURS).open(&place.path).unwrap();
    place.store(&protected, 0, b"stored");
    assert_eq!((uncovered(&protected), pace(&protected).period), (1, Some(HOURS)));
    protected.set_period(Duration::from_millis(5)).unwrap();
    comes(|| uncovered(&protected) == 0);
    assert_eq!(pace(&protected).period, Some(Duration::from_millis(5)));
    protected.set_period(HOURS).unwrap();
    place.store(&protected, 0, b"again");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(uncovered(&protected), 1);
    assert!(matches!(protected.set_period(Duration::ZERO), Err(Error::Invalid { .. })));
    protected.close().unwrap();
    let protected = at_once().open(&place.path).unwrap();
    assert!(matches!(protected.set_period(HOURS), Err(Error::Invalid { .. })));
    assert!(matches!(protected.set_max_uncovered(Some(1)), Err(Error::Invalid { .. })));
    assert_eq!(protected.coverage().unwrap().pace, None);
    protected.close().unwrap();
}

#[test]
fn a_cap_holds_for_a_file_with_an_engine_and_its_sidecar() {
    for engine in [EngineKind::Reflection, EngineKind::HybridLog] {
        let place = Place::empty();
        let options = Options::new().engine(engine).redundancy(capped(16));
        let file = options.create(&place.path, 400 * PAGE_LEN).unwrap();
        for number in 0..400 {
            file.write_at(b"written", number * PAGE_LEN + 9).unwrap();
        }
        file.sync().unwrap();
        let together = || {
            let coverage = file.coverage().unwrap().unwrap();
            coverage.uncovered + coverage.sidecar.map_or(0, |sidecar| sidecar.uncovered)
        };
        comes(|| together() <= 16);
        file.set_max_uncovered(None).unwrap();
        file.set_redundancy_period(Duration::from_millis(5)).unwrap();
        comes(|| together() == 0);
        file.close().unwrap();
        assert_eq!(place.damage(), vec![], "{engine:?}");
    }
}

#[test]
fn a_cap_is_kept_for_those_that_open_the_file_later() {
    let place = Place::new(&pattern(40 * PAGE, 4));
    let kept = ProtectOptions::new().keep_max_uncovered(9).keep_period(HOURS);
    assert_eq!(untorn::protect(&place.path, &kept).unwrap().max_uncovered, Some(9));
    assert_eq!(place.coverage().max_uncovered, Some(9));
    let protected = Protected::open(&place.path).unwrap();
    assert_eq!((pace(&protected).max_uncovered, pace(&protected).period), (Some(9), Some(HOURS)));
    for number in 0..10 {
        place.store(&protected, number * PAGE, b"stored");
    }
    comes(|| uncovered(&protected) <= 9);
    protected.close().unwrap();
    // On demand it has no effect, and one that is named counts.
    let protected = ProtectOptions::new().on_demand().open(&place.path).unwrap();
    assert_eq!(pace(&protected).max_uncovered, None);
    protected.close().unwrap();
    let protected = ProtectOptions::new().max_uncovered(3).open(&place.path).unwrap();
    assert_eq!(pace(&protected).max_uncovered, Some(3));
    protected.close().unwrap();
    assert_eq!(place.coverage().max_uncovered, Some(9));
}
