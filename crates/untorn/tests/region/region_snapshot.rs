//! Snapshots of regions: one commit while others are made, what is kept back for them, and what ends them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{new_region, scratch};
use untorn::Error;
use untorn::region::{Region, RegionMapOptions, RegionSnapshot, RegionStore, StoreOptions};
use untorn_testing::cases;

const PAGES: u64 = 24;

fn options() -> StoreOptions {
    StoreOptions::new().background_scan(false)
}

fn set_all(region: &Region, stamp: u64) {
    for page in 0..PAGES {
        region.write_at(&stamp.to_le_bytes(), page * 4096 + 64).unwrap();
    }
}

fn word(snapshot: &RegionSnapshot, page: u64) -> u64 {
    let mut bytes = [0; 8];
    snapshot.read_at(&mut bytes, page * 4096 + 64).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn a_region_snapshot_is_one_commit_beside_commits() {
    let (_path, store, region) = new_region(&options());
    region.alloc_pages(PAGES).unwrap();
    region.pmsync().unwrap();
    let (stamp, end) = (AtomicU64::new(1), std::time::Instant::now() + Duration::from_millis(cases(200, 3000)));
    let is_over = || std::time::Instant::now() > end && stamp.load(Ordering::Relaxed) > 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over() {
                set_all(&region, stamp.fetch_add(1, Ordering::Relaxed));
                region.pmsync().unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !is_over() {
                    let snapshot = region.snapshot().unwrap();
                    assert!(snapshot.commit() >= last);
                    last = snapshot.commit();
                    let first = word(&snapshot, 0);
                    for _ in 0..3 {
                        assert!((0..PAGES).all(|page| word(&snapshot, page) == first));
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    let audit = store.audit().unwrap();
    assert_eq!((audit.findings, audit.lost_pages), (Vec::new(), 0));
}

#[test]
fn pages_are_kept_back_once_and_given_back() {
    let (_path, store, region) = new_region(&options());
    region.alloc_pages(PAGES).unwrap();
    set_all(&region, 1);
    region.pmsync().unwrap();
    let used = || store.info().unwrap().used_pages;
    let before = used();
    let held = region.snapshot().unwrap();
    for stamp in 2..20 {
        set_all(&region, stamp);
        region.pmsync().unwrap();
    }
    assert_eq!(used(), before + PAGES, "each page once");
    let later = region.snapshot().unwrap();
    region.free_page(3).unwrap();
    region.pmsync().unwrap();
    region.alloc_at(100, 1).unwrap();
    region.pmsync().unwrap();
    let audit = store.audit().unwrap();
    assert_eq!((audit.findings, audit.lost_pages), (Vec::new(), 0), "what is kept back is not lost");
    assert_eq!((held.commit(), word(&held, 3), word(&later, 3)), (1, 1, 19));
    assert_eq!((held.name(), held.pages()), ("r", (0..PAGES).collect()));
    assert!(matches!(held.read_at(&mut [0], 100 * 4096), Err(Error::Invalid { .. })), "it came later");
    assert!(matches!(held.read_at(&mut [0], u64::MAX), Err(Error::OutOfRange { .. })));
    drop(held);
    assert_eq!(used(), before, "all but page 3, which the later one keeps");
    drop(later);
    assert_eq!(used(), before - 1);
    drop(region);
    store.close().unwrap();
}

/// A snapshot of a mapped region, which has the last commit and no store since.
#[test]
fn a_snapshot_of_a_mapped_region_has_the_last_commit() {
    let (_path, _store, region) = new_region(&options());
    region.alloc_pages(2).unwrap();
    region.pmsync().unwrap();
    let mut map = RegionMapOptions::new().map(&region).unwrap();
    map.page_mut(0).unwrap()[64] = 1;
    map.pmsync().unwrap();
    map.page_mut(0).unwrap()[64] = 2;
    let held = map.snapshot().unwrap();
    assert!(matches!(region.snapshot(), Err(Error::InUse { .. })));
    map.pmsync().unwrap();
    map.page_mut(0).unwrap()[64] = 3;
    map.pmsync().unwrap();
    assert_eq!((word(&held, 0), word(&map.snapshot().unwrap(), 0)), (1, 3));
}

fn add_page(region: &Region) -> untorn::Result<u64> {
    let page = region.alloc_page()?;
    region.write_page(page, &[7; 4096])?;
    region.pmsync()
}

/// In a store without space a commit takes the pages that are kept back, also of another region, and goes on.
#[test]
fn a_full_store_ends_its_snapshots_and_no_commit() {
    let path = scratch("store");
    let store: RegionStore = options().max_regions(4).max_len(64 * 4096).grow_by(4096).create(&path).unwrap();
    let (one, two) = (store.create_region_of("one", 128).unwrap(), store.create_region_of("two", 128).unwrap());
    one.alloc_pages(8).unwrap();
    let fill = |stamp: u8| (0..8).for_each(|page| one.write_page(page, &[stamp; 4096]).unwrap());
    fill(1);
    one.pmsync().unwrap();
    let held = one.snapshot().unwrap();
    fill(2);
    one.pmsync().unwrap();
    let mut written = 0;
    while held.read_at(&mut [0], 0).is_ok() {
        add_page(&two).unwrap();
        written += 1;
    }
    assert!((1..64).contains(&written), "{written}");
    let error = held.read_at(&mut [0], 4096).unwrap_err();
    assert!(matches!(error, Error::SnapshotEnded { .. }), "{error}");
    // Its pages are used for more, and a new snapshot can be had.
    assert!(add_page(&two).is_ok());
    let again = one.snapshot().unwrap();
    let mut byte = [0];
    again.read_at(&mut byte, 0).unwrap();
    assert_eq!(byte, [2]);
    let audit = store.audit().unwrap();
    assert_eq!((audit.findings, audit.lost_pages), (Vec::new(), 0));
}
