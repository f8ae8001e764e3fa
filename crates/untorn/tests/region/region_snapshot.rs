//! Snapshots of regions: one commit while others are made, what is kept back for them, and what ends them.

use std::io::{Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::system::in_forked_child;
use crate::common::{Rng, new_region, scratch};
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

/// Processes that hold snapshots and commit are killed at any instruction. What is left is at a commit, the last one
/// that was acknowledged or the next one, and no page that a snapshot kept back is lost.
#[test]
fn killed_holders_leave_one_commit_and_no_lost_page() {
    // A segment of the log has room for one record, so that every kill is near the beginning of one.
    let (path, store, region) = new_region(&options().commit_log(800 << 10));
    region.alloc_pages(PAGES).unwrap();
    region.pmsync().unwrap();
    drop(region);
    store.close().unwrap();
    let mut rng = Rng::new(32);
    let mut acknowledged = 0;
    for cycle in 0..cases(60, 1000) {
        let (mut told, tell) = std::io::pipe().unwrap();
        let child = in_forked_child(|| {
            let mut tell = &tell;
            let region = options().open(&path).unwrap().open_region("r").unwrap();
            let mut held = std::collections::VecDeque::new();
            for stamp in acknowledged + 2.. {
                set_all(&region, stamp);
                region.pmsync().unwrap();
                tell.write_all(&stamp.to_le_bytes()).unwrap();
                held.push_back((stamp, region.snapshot().unwrap()));
                if held.len() > 4 {
                    let (stamp, snapshot) = held.pop_front().unwrap();
                    assert!((0..PAGES).all(|page| word(&snapshot, page) == stamp));
                }
            }
            0
        });
        drop(tell);
        std::thread::sleep(Duration::from_micros(2000 + rng.below(20_000)));
        child.kill();
        assert_eq!(child.wait(), None, "cycle {cycle}: it was not killed");
        let mut stamps = Vec::new();
        told.read_to_end(&mut stamps).unwrap();
        let last = stamps.chunks_exact(8).next_back().map(|stamp| u64::from_le_bytes(stamp.try_into().unwrap()));
        let store = options().open(&path).unwrap();
        let region = store.open_region("r").unwrap();
        let snapshot = region.snapshot().unwrap();
        let found = word(&snapshot, 0);
        assert!((0..PAGES).all(|page| word(&snapshot, page) == found), "cycle {cycle}: a mixture");
        let expected = last.map_or([acknowledged, acknowledged + 2], |last| [last, last + 1]);
        assert!(expected.contains(&found), "cycle {cycle}: {found}, and {last:?} was acknowledged");
        acknowledged = found;
        // The stream has the same commit as its last, so the log has gone on.
        let mut stream = region.commits(snapshot.commit().saturating_sub(1)).unwrap();
        if let Some(commit) = stream.next().unwrap() {
            // The one that allocated the pages stored nothing.
            let streamed = commit.changes.first().map_or(vec![0; 8], |change| change.bytes[64..72].to_vec());
            assert!(streamed == found.to_le_bytes(), "cycle {cycle}: another commit");
        }
        drop((snapshot, region));
        store.scan().unwrap();
        let audit = store.audit().unwrap();
        assert_eq!((audit.findings, audit.lost_pages), (Vec::new(), 0), "cycle {cycle}");
        if rng.below(2) == 0 {
            store.close().unwrap();
        }
    }
}

/// How many commits of four pages a second are made under so many snapshots, each renewed now and then.
fn commits_a_second(held: usize, time: Duration) -> u64 {
    let (_path, _store, region) = new_region(&options());
    region.alloc_pages(PAGES).unwrap();
    set_all(&region, 0);
    region.pmsync().unwrap();
    let mut snapshots: Vec<_> = (0..held).map(|_| region.snapshot().unwrap()).collect();
    let (since, mut made) = (std::time::Instant::now(), 0_u64);
    while since.elapsed() < time {
        for page in 0..4 {
            region.write_at(&made.to_le_bytes(), (made + page) % PAGES * 4096).unwrap();
        }
        region.pmsync().unwrap();
        made += 1;
        if made.is_multiple_of(100) && held > 0 {
            snapshots.remove(0);
            snapshots.push(region.snapshot().unwrap());
        }
    }
    (made as f64 / since.elapsed().as_secs_f64()) as u64
}

/// A commit looks for the newest snapshot of its region, and keeps its old pages back instead of freeing them.
#[test]
fn held_snapshots_cost_commits_of_a_region_little() {
    let time = Duration::from_millis(cases(200, 5000));
    let best = |held| (0..3).map(|_| commits_a_second(held, time)).max().unwrap();
    let costs = [0, 1, 8].map(best);
    println!("commits a second with 0, 1 and 8 snapshots held: {costs:?}");
    assert!(costs[1].min(costs[2]) > costs[0] / 4, "{costs:?}");
}
