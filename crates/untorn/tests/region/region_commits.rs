//! Streams of the commits of regions: each commit once and in order, repeated on a replica, in this process and others.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::system::in_forked_child;
use crate::common::{Rng, new_region, scratch};
use untorn::Error;
use untorn::commits::{Commit, CommitStream};
use untorn::options::{CommitLog, Order};
use untorn::region::{Region, RegionStore, StoreOptions, forget_consumer};
use untorn_testing::cases;

const PAGE: u64 = Region::PAGE;
const MAX_PAGES: u64 = 1 << 20;

type Pages = BTreeMap<u64, Vec<u8>>;

fn options(order: Order) -> StoreOptions {
    StoreOptions::new().background_scan(false).order(order)
}

fn pages(region: &Region) -> Pages {
    let read = |page| {
        let mut bytes = [0; PAGE as usize];
        region.read_page(page, &mut bytes).unwrap();
        (page, bytes.to_vec())
    };
    region.pages().unwrap().into_iter().map(read).collect()
}

/// Repeats a commit on a replica that is at the one before.
fn repeat(replica: &mut Pages, commit: &Commit) {
    assert_eq!((commit.len, commit.shortest), (MAX_PAGES * PAGE, MAX_PAGES * PAGE));
    let of = |range: &std::ops::Range<u64>| {
        assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE) && !range.is_empty());
        range.start / PAGE..range.end / PAGE
    };
    for page in commit.freed.iter().flat_map(of) {
        assert!(replica.remove(&page).is_some(), "page {page} is freed, and was not there");
    }
    for page in commit.allocated.iter().flat_map(of) {
        assert!(replica.insert(page, vec![0; PAGE as usize]).is_none(), "page {page} is there already");
    }
    for change in &commit.changes {
        for (page, bytes) in of(&change.range).zip(change.bytes.chunks_exact(PAGE as usize)) {
            *replica.get_mut(&page).unwrap_or_else(|| panic!("page {page} is written, and is not there")) =
                bytes.into();
        }
    }
}

/// Changes a few pages at random, some of which are far apart.
fn change(region: &Region, rng: &mut Rng) {
    for _ in 0..=rng.below(6) {
        let there = region.pages().unwrap();
        let pick = |rng: &mut Rng| there[rng.below(there.len() as u64) as usize];
        match rng.below(5) {
            0 => drop(region.alloc_pages(1 + rng.below(40)).unwrap()),
            1 => drop(region.alloc_at(rng.below(MAX_PAGES - 4), 1 + rng.below(4))),
            2 if !there.is_empty() => region.free_page(pick(rng)).unwrap(),
            _ if !there.is_empty() => {
                let stamp = [rng.below(256) as u8; 3000];
                // A part of a page, and often the page behind it.
                let at = pick(rng) * PAGE + rng.below(PAGE);
                let _ = region.write_at(&stamp, at);
            }
            _ => {}
        }
    }
}

#[test]
fn a_stream_gives_each_commit_of_a_region_once() {
    for order in [Order::OneFence, Order::TwoFence] {
        let mut rng = Rng::new(order as u64 + 5);
        let path = scratch("store");
        let mut store = options(order).commit_log(16 << 20).create(&path).unwrap();
        drop(store.create_region("other").unwrap());
        let mut region = store.create_region_of("r", MAX_PAGES).unwrap();
        let (mut near, mut far) = (region.commits(0).unwrap(), CommitStream::open_region(&path, "r", 0).unwrap());
        let (mut replica, mut last) = (Pages::new(), 0);
        for round in 0..cases(60, 600) {
            change(&region, &mut rng);
            let told = region.pmsync().unwrap();
            while let Some(commit) = near.next().unwrap() {
                assert_eq!(far.next().unwrap().unwrap(), commit);
                assert_eq!((commit.previous, commit.number), (last, last + 1));
                repeat(&mut replica, &commit);
                last = commit.number;
            }
            assert!(last == told && replica == pages(&region), "{order:?}, round {round}");
            assert!(far.next().unwrap().is_none());
            // Nothing of what a rollback discards is in the stream.
            change(&region, &mut rng);
            region.rollback().unwrap();
            if round % 10 == 9 {
                drop((region, near));
                if round % 20 == 9 {
                    store.close().unwrap()
                } else {
                    drop(store)
                }
                // The log is kept up without the option.
                store = options(order).open(&path).unwrap();
                region = store.open_region("r").unwrap();
                near = region.commits(last).unwrap();
            }
        }
        // All that changed since is in the last commits.
        let changed = region.changed_since(last - 3).unwrap();
        assert_eq!((changed.since, changed.through), (last - 3, last));
        assert!(region.changed_since(last).unwrap().ranges.is_empty());
        assert!(matches!(region.commits(last + 1), Err(Error::NoSuchCommit { .. })));
        assert!(matches!(CommitStream::open_region(&path, "r", last + 1), Err(Error::NoSuchCommit { .. })));
        // The log goes with its region.
        let logs = || std::fs::read_dir(path.parent().unwrap().join(".untorn")).map_or(0, |dir| dir.count());
        let before = logs();
        drop((region, near));
        store.delete_region("r").unwrap();
        assert!(logs() < before, "{before} files remain");
        assert!(matches!(far.next(), Err(Error::CommitsMissing { oldest: None, .. })));
        assert!(CommitStream::open_region(&path, "r", 0).is_err_and(|error| error.errno() == libc::ENOENT));
    }
}

#[test]
fn killed_writers_of_a_region_leave_a_stream_without_a_gap() {
    for order in [Order::OneFence, Order::TwoFence] {
        let path = scratch("store");
        let store = options(order).commit_log(16 << 20).create(&path).unwrap();
        drop(store.create_region_of("r", MAX_PAGES).unwrap());
        store.close().unwrap();
        let mut stream = CommitStream::open_region(&path, "r", 0).unwrap();
        let mut replica = Pages::new();
        for round in 0..5 {
            let child = in_forked_child(|| {
                let mut rng = Rng::new(round);
                let region = options(order).open(&path).unwrap().open_region("r").unwrap();
                for _ in 0..6 {
                    change(&region, &mut rng);
                    region.pmsync().unwrap();
                }
                // Not committed.
                change(&region, &mut rng);
                std::mem::forget(region);
                0
            });
            assert_eq!(child.wait(), Some(0));
            let store = options(order).open(&path).unwrap();
            let region = store.open_region("r").unwrap();
            while let Some(commit) = stream.next().unwrap() {
                repeat(&mut replica, &commit);
            }
            assert!(stream.position() == region.info().unwrap().commit && replica == pages(&region), "round {round}");
        }
    }
}

#[test]
fn the_stream_of_a_mapped_region_has_its_stores() {
    let path = scratch("store");
    let store = options(Order::OneFence).commit_log(1 << 20).create(&path).unwrap();
    let mut map = store.create_region_of("r", MAX_PAGES).unwrap().map().unwrap();
    let mut stream = map.commits(0).unwrap();
    let mut replica = Pages::new();
    for round in 1..6_u8 {
        let page = map.alloc_page().unwrap();
        map.page_mut(page).unwrap().fill(round);
        map.page_mut(0).unwrap()[7] = round;
        map.pmsync().unwrap();
        repeat(&mut replica, &stream.next().unwrap().unwrap());
        assert_eq!((replica[&page][9], replica[&0][7], stream.next().unwrap()), (round, round, None));
    }
}

#[test]
fn a_blocking_log_of_a_region_waits_for_consumers() {
    let log = CommitLog::new(256 << 10).block(Duration::from_millis(100));
    let path = scratch("store");
    let store = options(Order::OneFence).commit_log(log).create(&path).unwrap();
    let region = store.create_region_of("r", MAX_PAGES).unwrap();
    region.alloc_pages(10).unwrap();
    let mut consumer = region.consumer("replica").unwrap();
    let commit = |stamp: u8| {
        (0..10).for_each(|page| region.write_page(page, &[stamp; 4096]).unwrap());
        region.pmsync()
    };
    let mut made = 0;
    let refused = loop {
        match commit(made) {
            Ok(_) => made += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(&refused, Error::ConsumerBehind { consumer, .. } if consumer == "replica"), "{refused}");
    assert_eq!(region.info().unwrap().commit, u64::from(made), "a commit that is refused changes nothing");
    let mut replica = Pages::new();
    while let Some(commit) = consumer.next().unwrap() {
        repeat(&mut replica, &commit);
    }
    assert_eq!(replica[&9], [made - 1; 4096]);
    consumer.acknowledge(u64::from(made)).unwrap();
    let next = region.pmsync().unwrap();
    repeat(&mut replica, &consumer.next().unwrap().unwrap());
    assert_eq!((consumer.position(), replica == pages(&region)), (next, true));
    drop(consumer);
    // Another process goes on from there.
    assert!(CommitStream::consumer_of_region(&path, "r", "replica", None).unwrap().next().unwrap().is_some());
    assert!(forget_consumer(&path, "r", "replica").unwrap() && !forget_consumer(&path, "r", "replica").unwrap());
}

#[test]
fn logs_of_regions_are_refused_or_given_up() {
    let (path, store, region) = new_region(&options(Order::OneFence));
    let missing = |stream: untorn::Result<CommitStream>| matches!(stream, Err(Error::CommitsMissing { .. }));
    assert!(missing(region.commits(0)) && missing(CommitStream::open_region(&path, "r", 0)));
    assert!(CommitStream::open_region(&path, "none", 0).is_err_and(|error| error.errno() == libc::ENOENT));
    drop((region, store));
    let store = options(Order::OneFence).commit_log(128 << 10).open(&path).unwrap();
    let error = store.create_region_of("vast", RegionStore::MAX_PAGES).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    assert_eq!(store.list().unwrap().len(), 1, "it was not created");
    // A commit that the log has no room for is refused, and the next one may fit.
    let region = store.open_region("r").unwrap();
    region.alloc_pages(100).unwrap();
    let first = region.pmsync().unwrap();
    (0..100).for_each(|page| region.write_page(page, &[1; 4096]).unwrap());
    assert_eq!(region.pmsync().unwrap_err().errno(), libc::ENOSPC);
    region.rollback().unwrap();
    region.write_page(3, &[2; 4096]).unwrap();
    assert_eq!(region.pmsync().unwrap(), first + 1);
    assert_eq!(region.changed_since(first).unwrap().ranges, std::slice::from_ref(&(3 * PAGE..4 * PAGE)));
    drop((region, store));
    let store = options(Order::OneFence).commit_log(0).open(&path).unwrap();
    let region = store.open_region("r").unwrap();
    assert!(missing(region.commits(first)), "it was given up");
    assert_eq!(store.audit().unwrap().findings, Vec::<String>::new());
}

/// A copy of the store that went another way is put in its place, with as many commits.
#[test]
fn the_log_of_a_region_that_was_replaced_begins_anew() {
    let (path, store, region) = new_region(&options(Order::OneFence).commit_log(1 << 20));
    let commit = |region: &Region, stamp: u8| {
        region.write_page(0, &[stamp; 4096]).unwrap();
        region.pmsync().unwrap()
    };
    region.alloc_page().unwrap();
    commit(&region, 1);
    drop(region);
    store.close().unwrap();
    let copy = std::fs::read(&path).unwrap();
    let go_on = |stamp: u8| {
        let store = options(Order::OneFence).open(&path).unwrap();
        let number = commit(&store.open_region("r").unwrap(), stamp);
        store.close().unwrap();
        number
    };
    let number = go_on(2);
    let gone_another_way = std::fs::read(&path).unwrap();
    std::fs::write(&path, copy).unwrap();
    let store = options(Order::OneFence).open(&path).unwrap();
    let region = store.open_region("r").unwrap();
    assert!(matches!(region.commits(0), Err(Error::CommitsMissing { oldest: Some(1), .. })), "an older copy");
    drop(region);
    store.close().unwrap();
    assert_eq!(go_on(3), number);
    let mut stream = CommitStream::open_region(&path, "r", 1).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().changes[0].bytes[0], 3);
    std::fs::write(&path, gone_another_way).unwrap();
    let store = options(Order::OneFence).open(&path).unwrap();
    let region = store.open_region("r").unwrap();
    assert!(matches!(stream.next(), Err(Error::CommitsMissing { .. })), "another commit of the same number");
    assert!(matches!(region.commits(1), Err(Error::CommitsMissing { oldest: Some(2), .. })));
}
