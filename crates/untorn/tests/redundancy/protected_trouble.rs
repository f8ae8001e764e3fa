//! Protected files among programs that do what they should not, and devices that lie: nothing good is ever touched.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use twox_hash::XxHash3_64;
use untorn::Error;
use untorn::redundancy::{Damage, PageRange, ProtectOptions, Protected, RepairReport, Tracker};
use untorn::report::ProtectionProblem;
use untorn::testing::storage::PageCache;

use crate::common::pattern;
use crate::common::system::SharedMapping;

const PAGE: usize = 4096;

struct Place {
    _dir: tempfile::TempDir,
    file: PathBuf,
}

impl Place {
    fn new(bytes: &[u8]) -> Self {
        Place::within(tempfile::tempdir().unwrap(), bytes)
    }

    fn within(dir: tempfile::TempDir, bytes: &[u8]) -> Self {
        let file = dir.path().join("table");
        fs::write(&file, bytes).unwrap();
        Place { _dir: dir, file }
    }

    fn companion(&self) -> PathBuf {
        untorn::coverage(&self.file).unwrap().unwrap().redundancy_file
    }

    fn write(&self, bytes: &[u8], offset: usize) {
        File::options().write(true).open(&self.file).unwrap().write_all_at(bytes, offset as u64).unwrap();
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.file).unwrap()
    }

    fn scrub(&self) -> Vec<Damage> {
        untorn::scrub(&self.file, None, &mut |_, _| true).unwrap().damage
    }

    fn repair(&self) -> RepairReport {
        untorn::repair(&self.file, &mut |_, _| true).unwrap()
    }
}

/// Does to a file what a device would: its bytes change, its times stay.
fn rot(path: &Path, change: impl FnOnce(&File)) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    change(&file);
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
}

fn by_hand() -> ProtectOptions {
    ProtectOptions::new().on_demand()
}

fn page(number: usize) -> PageRange {
    PageRange { offset: (number * PAGE) as u64, len: PAGE as u64 }
}

/// Protects a mapping, or tells why this kernel or container cannot.
fn protect_mapping(mapping: &SharedMapping) -> Option<Protected> {
    match by_hand().mapping(mapping.address(), mapping.len()) {
        Ok(protected) => Some(protected),
        Err(Error::Protection { problem: problem @ ProtectionProblem::Untrackable { .. }, .. }) => {
            untorn_testing::skipped!("{problem}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn stores_to_a_mapping_that_is_gone_are_not_taken_for_damage() {
    let place = Place::new(&pattern(20 * PAGE, 1));
    let mapping = SharedMapping::new(&place.file);
    let Some(protected) = protect_mapping(&mapping) else { return };
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
    let mapping = SharedMapping::new(&place.file);
    let Some(protected) = protect_mapping(&mapping) else { return };
    assert!(matches!(by_hand().mapping(mapping.address(), mapping.len()), Err(Error::InUse { .. })));
    let another = SharedMapping::new(&place.file);
    assert!(matches!(by_hand().mapping(another.address(), another.len()), Err(Error::InUse { .. })));
    // The first goes on undisturbed.
    protected.sync().unwrap();
    mapping.store(PAGE, b"stored");
    assert_eq!(protected.coverage().unwrap().uncovered, 1);
    protected.close().unwrap();
    assert_eq!(place.scrub(), vec![]);
}

#[test]
fn an_earlier_tracker_does_not_take_stores_of_a_new_mapping() {
    let (first, second) = (Place::new(&pattern(8 * PAGE, 2)), Place::new(&pattern(8 * PAGE, 3)));
    let mapping = SharedMapping::new(&first.file);
    let Some(before) = protect_mapping(&mapping) else { return };
    before.sync().unwrap();
    let mapping = SharedMapping::in_place_of(mapping, &second.file);
    let protected = protect_mapping(&mapping).unwrap();
    protected.sync().unwrap();
    mapping.store(3 * PAGE, b"stored");
    assert!(before.sync().is_err());
    assert_eq!(protected.coverage().unwrap().uncovered, 1);
    assert!(protected.scrub().unwrap().is_clean());
    drop(before);
    protected.close().unwrap();
    assert_eq!(second.scrub(), vec![]);
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
    let file = place.file.clone();
    let store = move |nth| {
        if nth == 2 {
            File::options().write(true).open(&file).unwrap().write_all_at(b"stored late", PAGE as u64).unwrap();
        }
        (nth >= 2).then_some(1..2).into_iter().collect()
    };
    let tracker = Arc::new(StoresLate { looks: AtomicU64::new(0), store });
    let protected = by_hand().track_on(PageCache::new(), &place.file, tracker.clone()).unwrap();
    protected.sync().unwrap();
    rot(&place.file, |file| file.write_all_at(b"damage", PAGE as u64 + 2000).unwrap());
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
    let mapping = SharedMapping::new(&place.file);
    for page in 0..8 {
        mapping.store(page * PAGE, &bytes[page * PAGE..][..1]);
    }
    let protected = by_hand().open(&place.file).unwrap();
    File::options().write(true).open(&place.file).unwrap().set_modified(long_ago).unwrap();
    protected.announce(0..1).unwrap().cover().unwrap();
    // The process ends here, with everything covered.
    drop(protected);
    let modified = || fs::metadata(&place.file).unwrap().modified().unwrap();
    assert!(untorn::coverage(&place.file).unwrap().unwrap().believed);
    assert_eq!(modified(), long_ago);
    assert_eq!(place.scrub(), vec![]);
    assert_eq!(modified(), long_ago);
    rot(&place.file, |file| file.write_all_at(b"x", 3 * PAGE as u64 + 9).unwrap());
    assert_eq!(place.repair().repaired, [page(3)]);
    assert!(place.bytes() == bytes);
}

#[test]
fn stale_redundancy_pages_are_found_and_rebuilt() {
    let bytes = pattern(6 * PAGE, 6);
    let place = Place::new(&bytes);
    by_hand().stripe(2).open(&place.file).unwrap().close().unwrap();
    let companion = place.companion();
    let older = fs::read(&companion).unwrap();
    let protected = by_hand().open(&place.file).unwrap();
    let stores = protected.announce(0..6 * PAGE as u64).unwrap();
    let bytes = pattern(6 * PAGE, 7);
    place.write(&bytes, 0);
    stores.cover().unwrap();
    protected.close().unwrap();
    let newer = fs::read(&companion).unwrap();
    assert_eq!(newer.len(), (2 + 4 + 3) * PAGE);
    for number in 0..newer.len() / PAGE {
        rot(&companion, |file| file.write_all_at(&older[number * PAGE..][..PAGE], (number * PAGE) as u64).unwrap());
        let damage = match number {
            ..6 => Damage::Table { offset: (number * PAGE) as u64 },
            _ => Damage::Parity { stripe: number as u64 - 6 },
        };
        assert_eq!(place.scrub(), vec![damage], "page {number}");
        let report = place.repair();
        assert!(report.lost.is_empty() && report.unknown.is_empty() && report.repaired.is_empty(), "{report:?}");
        assert_eq!(place.scrub(), vec![], "page {number}");
        assert!(place.bytes() == bytes);
        fs::write(&companion, &newer).unwrap();
    }
    assert_eq!(place.scrub(), vec![]);
}

#[test]
fn numbers_that_nobody_counted_to_are_no_obstacle() {
    let place = Place::new(&pattern(2 * PAGE, 8));
    by_hand().open(&place.file).unwrap().close().unwrap();
    let companion = place.companion();
    let mut side = fs::read(&companion).unwrap();
    for superblock in side[..2 * PAGE].chunks_exact_mut(PAGE) {
        superblock[136..160].fill(0xff);
        let check = XxHash3_64::oneshot(&superblock[..4088]);
        superblock[4088..].copy_from_slice(&check.to_le_bytes());
    }
    fs::write(&companion, &side).unwrap();
    assert_eq!(place.scrub(), vec![]);
    rot(&place.file, |file| file.write_all_at(b"x", 1).unwrap());
    assert_eq!(place.repair().repaired, [page(0)]);
    let history = untorn::coverage(&place.file).unwrap().unwrap().history;
    assert_eq!((history.scrubs, history.repaired), (u64::MAX, u64::MAX));
}

#[test]
fn an_honest_write_after_a_crash_is_not_taken_for_damage() {
    let bytes = pattern(12 * PAGE, 9);
    let place = Place::new(&bytes);
    let protected = by_hand().open(&place.file).unwrap();
    protected.sync().unwrap();
    // Some of it stays uncovered, beside a page that is damaged. Nobody is storing any more when the process ends.
    rot(&place.file, |file| file.write_all_at(b"damage", PAGE as u64).unwrap());
    let stores = protected.announce(0..1).unwrap();
    place.write(b"stored", 0);
    stores.cover().unwrap();
    assert_eq!(protected.coverage().unwrap().uncovered, 1);
    drop(protected);
    // A moment later than anything that was noted.
    File::options().write(true).open(&place.file).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    rot(&place.file, |file| file.write_all_at(b"an honest write", 5 * PAGE as u64).unwrap());
    assert_eq!(place.scrub(), [Damage::Unknown(page(1)), Damage::Unknown(page(5))]);
    let report = place.repair();
    assert_eq!((&report.repaired[..], &report.lost[..]), (&[][..], &[][..]));
    // While somebody stores, the time says nothing, and what was not announced is damaged: that is what announcing is
    // for.
    let protected = by_hand().open(&place.file).unwrap();
    protected.sync().unwrap();
    let stores = protected.announce(0..1).unwrap();
    place.write(b"stored", 0);
    drop(stores);
    drop(protected);
    rot(&place.file, |file| file.write_all_at(b"damage", 5 * PAGE as u64).unwrap());
    assert_eq!(place.repair().repaired, [page(5)]);
    assert_eq!(&place.bytes()[5 * PAGE..][..15], b"an honest write");
}

#[test]
fn stores_that_leave_mtime_unchanged_are_not_called_damage() {
    // In memory a page that is mapped already is stored to in silence; on a disk the time tells. Both are right.
    let places = [tempfile::tempdir().ok(), tempfile::tempdir_in("/dev/shm").ok()];
    for place in places.into_iter().flatten().map(|dir| Place::within(dir, &pattern(12 * PAGE, 10))) {
        let mapping = SharedMapping::new(&place.file);
        mapping.store(7 * PAGE, b"a");
        by_hand().open(&place.file).unwrap().close().unwrap();
        mapping.store(7 * PAGE, b"before the beginning");
        let stored = place.bytes();
        let Some(protected) = protect_mapping(&mapping) else { return };
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
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("table");
    fs::write(&path, vec![3; 8 * PAGE]).unwrap();
    let protected = by_hand().open(&path).unwrap();
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
    by_hand().open(&path).unwrap().close().unwrap();
}
