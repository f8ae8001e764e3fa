//! Protected files among programs that do what they should not, and devices that lie: nothing good is ever touched.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_64;
use untorn::Error;
use untorn::redundancy::{Damage, ProtectOptions, Tracker};
use untorn::testing::storage::PageCache;

use crate::common::system::SharedMapping;
use crate::common::{PAGE, pattern};
use crate::fixture::{Place, by_hand, page, protect_mapping, rot, uncovered};

#[test]
fn stores_to_a_mapping_that_is_gone_are_not_taken_for_damage() {
    let place = Place::new(&pattern(20 * PAGE, 1));
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    protected.sync().unwrap();
    mapping.store(5 * PAGE, b"stored");
    drop(mapping);
    // Of what was stored since the last look nobody knows any more.
    assert!(protected.scrub().is_err());
    let error = protected.sync().unwrap_err().to_string();
    assert!(error.contains("no longer mapped"), "{error}");
    assert!(protected.close().is_err());
    let stored = place.bytes();
    let report = place.repair();
    assert_eq!((&report.unknown[..], &report.repaired[..], &report.lost[..]), (&[page(5)][..], &[][..], &[][..]));
    assert!(place.bytes() == stored);
}

#[test]
fn a_mapping_is_protected_once() {
    let place = Place::new(&pattern(4 * PAGE, 11));
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    assert!(matches!(by_hand().mapping(mapping.address(), mapping.len()), Err(Error::InUse { .. })));
    let another = SharedMapping::new(&place.path);
    assert!(matches!(by_hand().mapping(another.address(), another.len()), Err(Error::InUse { .. })));
    // The first goes on undisturbed.
    protected.sync().unwrap();
    mapping.store(PAGE, b"stored");
    assert_eq!(uncovered(&protected), 1);
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn an_earlier_tracker_does_not_take_stores_of_a_new_mapping() {
    let (first, second) = (Place::new(&pattern(8 * PAGE, 2)), Place::new(&pattern(8 * PAGE, 3)));
    let mapping = SharedMapping::new(&first.path);
    let Some(before) = protect_mapping(&by_hand(), &mapping) else { return };
    before.sync().unwrap();
    let mapping = SharedMapping::in_place_of(mapping, &second.path);
    let protected = protect_mapping(&by_hand(), &mapping).unwrap();
    protected.sync().unwrap();
    mapping.store(3 * PAGE, b"stored");
    assert!(before.sync().is_err());
    assert_eq!(uncovered(&protected), 1);
    assert!(protected.scrub().unwrap().is_clean());
    drop(before);
    protected.close().unwrap();
    assert_eq!(second.damage(), vec![]);
}

/// What stores are found out by here: a page is stored to at the nth look, by whoever that is.
struct StoresLate<F> {
    looks: AtomicU64,
    store: F,
}

impl<F: Fn(u64) -> Vec<std::ops::Range<u64>> + Send + Sync> Tracker for StoresLate<F> {
    fn take(&self) -> untorn::Result<Vec<std::ops::Range<u64>>> {
        Ok(Vec::new())
    }

    fn look(&self) -> untorn::Result<Vec<std::ops::Range<u64>>> {
        Ok((self.store)(self.looks.fetch_add(1, Ordering::Relaxed)))
    }
}

#[test]
fn a_store_during_the_repair_of_its_page_is_kept() {
    let place = Place::new(&pattern(8 * PAGE, 4));
    // The first two looks are those of the scrub and of the repair that follows it.
    let file = place.path.clone();
    let store = move |nth| {
        if nth == 2 {
            File::options().write(true).open(&file).unwrap().write_all_at(b"stored late", PAGE as u64).unwrap();
        }
        (nth >= 2).then_some(1..2).into_iter().collect()
    };
    let tracker = Arc::new(StoresLate { looks: AtomicU64::new(0), store });
    let protected = by_hand().track_on(PageCache::new(), &place.path, tracker.clone()).unwrap();
    protected.sync().unwrap();
    place.rot(PAGE + 2000, b"damage");
    let report = protected.repair().unwrap();
    assert!(tracker.looks.load(Ordering::Relaxed) > 2, "nobody looked before the page was written over");
    assert_eq!((&report.repaired[..], &report.lost[..]), (&[][..], &[][..]));
    assert_eq!(&place.bytes()[PAGE..PAGE + 11], b"stored late");
}

#[test]
fn looking_at_a_file_writes_nothing_to_it() {
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let bytes = pattern(8 * PAGE, 5);
    let place = Place::new(&bytes);
    // Another program, which has every page in use.
    let mapping = SharedMapping::new(&place.path);
    for page in 0..8 {
        mapping.store(page * PAGE, &bytes[page * PAGE..][..1]);
    }
    let protected = by_hand().open(&place.path).unwrap();
    File::options().write(true).open(&place.path).unwrap().set_modified(long_ago).unwrap();
    protected.announce(0..1).unwrap().cover().unwrap();
    // The process ends here, with everything covered.
    drop(protected);
    let modified = || fs::metadata(&place.path).unwrap().modified().unwrap();
    assert!(place.coverage().believed);
    assert_eq!(modified(), long_ago);
    assert_eq!(place.damage(), vec![]);
    assert_eq!(modified(), long_ago);
    place.rot(3 * PAGE + 9, b"x");
    assert_eq!(place.repair().repaired, [page(3)]);
    assert!(place.bytes() == bytes);
}

#[test]
fn stale_redundancy_pages_are_found_and_rebuilt() {
    let bytes = pattern(6 * PAGE, 6);
    let place = Place::new(&bytes);
    by_hand().stripe(2).open(&place.path).unwrap().close().unwrap();
    let companion = place.companion();
    let older = fs::read(&companion).unwrap();
    let protected = by_hand().open(&place.path).unwrap();
    let stores = protected.announce(0..6 * PAGE as u64).unwrap();
    let bytes = pattern(6 * PAGE, 7);
    place.write(0, &bytes);
    stores.cover().unwrap();
    protected.close().unwrap();
    let newer = fs::read(&companion).unwrap();
    assert_eq!(newer.len(), (2 + 4 + 3) * PAGE);
    for number in 0..newer.len() / PAGE {
        rot(&companion, (number * PAGE) as u64, &older[number * PAGE..][..PAGE]);
        let damage = match number {
            ..6 => Damage::Table { offset: (number * PAGE) as u64 },
            _ => Damage::Parity { stripe: number as u64 - 6 },
        };
        assert_eq!(place.damage(), vec![damage], "page {number}");
        let report = place.repair();
        assert!(report.lost.is_empty() && report.unknown.is_empty() && report.repaired.is_empty(), "{report:?}");
        assert_eq!(place.damage(), vec![], "page {number}");
        assert!(place.bytes() == bytes);
        fs::write(&companion, &newer).unwrap();
    }
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn numbers_that_nobody_counted_to_are_no_obstacle() {
    let place = Place::protected(&pattern(2 * PAGE, 8));
    let companion = place.companion();
    let mut side = fs::read(&companion).unwrap();
    for superblock in side[..2 * PAGE].chunks_exact_mut(PAGE) {
        superblock[136..160].fill(0xff);
        let check = XxHash3_64::oneshot(&superblock[..4088]);
        superblock[4088..].copy_from_slice(&check.to_le_bytes());
    }
    fs::write(&companion, &side).unwrap();
    assert_eq!(place.damage(), vec![]);
    place.rot(1, b"x");
    assert_eq!(place.repair().repaired, [page(0)]);
    let history = place.coverage().history;
    assert_eq!((history.scrubs, history.repaired), (u64::MAX, u64::MAX));
}

#[test]
fn an_honest_write_after_a_crash_is_not_taken_for_damage() {
    let bytes = pattern(12 * PAGE, 9);
    let place = Place::new(&bytes);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    // Some of it stays uncovered, beside a page that is damaged. Nobody is storing any more when the process ends.
    place.rot(PAGE, b"damage");
    let stores = protected.announce(0..1).unwrap();
    place.write(0, b"stored");
    stores.cover().unwrap();
    assert_eq!(uncovered(&protected), 1);
    drop(protected);
    // A moment later than anything that was noted.
    File::options().write(true).open(&place.path).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    place.rot(5 * PAGE, b"an honest write");
    assert_eq!(place.damage(), [Damage::Unknown(page(1)), Damage::Unknown(page(5))]);
    let report = place.repair();
    assert_eq!((&report.repaired[..], &report.lost[..]), (&[][..], &[][..]));
    // While somebody stores, the time says nothing, and what was not announced is damaged: that is what announcing is
    // for.
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    let stores = protected.announce(0..1).unwrap();
    place.write(0, b"stored");
    drop(stores);
    drop(protected);
    place.rot(5 * PAGE, b"damage");
    assert_eq!(place.repair().repaired, [page(5)]);
    assert_eq!(&place.bytes()[5 * PAGE..][..15], b"an honest write");
}

#[test]
fn stores_that_leave_mtime_unchanged_are_not_called_damage() {
    // In memory a page that is mapped already is stored to in silence; on a disk the time tells. Both are right.
    let places = [tempfile::tempdir().ok(), tempfile::tempdir_in("/dev/shm").ok()];
    for place in places.into_iter().flatten().map(Place::within) {
        fs::write(&place.path, pattern(12 * PAGE, 10)).unwrap();
        let mapping = SharedMapping::new(&place.path);
        mapping.store(7 * PAGE, b"a");
        by_hand().open(&place.path).unwrap().close().unwrap();
        mapping.store(7 * PAGE, b"before the beginning");
        let stored = place.bytes();
        let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
        assert_eq!(protected.coverage().unwrap().unknown, [7]);
        assert_eq!(protected.repair().unwrap().unknown, [page(7)]);
        protected.sync().unwrap();
        assert!(protected.scrub().unwrap().is_clean());
        assert!(place.bytes() == stored);
        protected.close().unwrap();
        // The last look of the protection has every page noted anew.
        mapping.store(5 * PAGE, b"after the end");
        let report = place.repair();
        assert_eq!((&report.unknown[..], &report.repaired[..]), (&[page(5)][..], &[][..]));
        assert!(place.bytes()[..5 * PAGE] == stored[..5 * PAGE] && place.bytes()[6 * PAGE..] == stored[6 * PAGE..]);
        assert_eq!(&place.bytes()[5 * PAGE..][..13], b"after the end");
    }
}

#[test]
fn a_superblock_damaged_while_open_is_found_and_rewritten() {
    let place = Place::new(&[3; 8 * PAGE]);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    let side = File::options().read(true).write(true).open(protected.coverage().unwrap().redundancy_file).unwrap();
    for copy in [0, 1] {
        side.write_all_at(&[0xEE; 8], copy * PAGE as u64 + 1000).unwrap();
        let report = protected.repair().unwrap();
        assert_eq!(report.scrub.damage, [Damage::Table { offset: copy * PAGE as u64 }]);
        assert_eq!((report.rebuilt, report.lost.len()), (1, 0));
        assert!(protected.scrub().unwrap().is_clean());
    }
    drop(protected);
    by_hand().open(&place.path).unwrap().close().unwrap();
}

/// One of them makes the checksums and parity. The others are told that it does, or find them made.
#[test]
fn processes_that_protect_a_file_at_once_do_not_clash() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..untorn_testing::cases(60, 1_000) {
        let path = dir.path().join(format!("file-{round}"));
        std::fs::write(&path, vec![7; 3 * PAGE]).unwrap();
        let start = std::sync::Barrier::new(4);
        let protect = || {
            start.wait();
            untorn::protect(&path, &ProtectOptions::new())
        };
        let protected = std::thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(protect)).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(protected.iter().any(Result::is_ok), "{protected:?}");
        for outcome in &protected {
            assert!(matches!(outcome, Ok(_) | Err(Error::InUse { .. })), "{protected:?}");
        }
        assert!(untorn::scrub(&path, None, &mut |_, _| true).unwrap().is_clean());
    }
}
