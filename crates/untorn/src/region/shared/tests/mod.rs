//! Several processes at one region. Each test is the parent of processes that run the same test with a word in the
//! environment that makes them children.

mod costs;
mod cuts;
pub(super) mod failures;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use super::*;
use crate::ipc::memory::tests::{
    DIE_AT, GO, Point, READY, STOP, Stage, is_poisoned, memory_dir, patience, this_test, unavailable, with_processes,
    with_processes_for,
};
use crate::region::StoreOptions;

/// Pages of a region here: more than one word tells of, and a last word of which some bits are of no page.
const PAGES: u64 = 77;

fn make(dir: &Path) -> PathBuf {
    let path = dir.join("store");
    let store = StoreOptions::new().max_regions(2).create(&path).unwrap();
    store.create_region_of("r", PAGES).unwrap();
    store.create_region_of("other", PAGES).unwrap();
    store.close().unwrap();
    path
}

fn share(path: &Path) -> SharedRegion {
    SharedRegion::open(path, "r").unwrap()
}

/// A store in a directory of its own, where processes can share plain stores.
fn made() -> Option<(tempfile::TempDir, PathBuf)> {
    let dir = (!unavailable()).then(|| memory_dir().unwrap())?;
    let path = make(dir.path());
    Some((dir, path))
}

fn word(region: &SharedRegion, page: u64) -> &AtomicU64 {
    &region.words(page * PAGE, 1).unwrap()[0]
}

/// What a store has of the region, which must be sound.
fn committed(path: &Path) -> BTreeMap<u64, u64> {
    let store = RegionStore::open(path).unwrap();
    assert_eq!(store.audit().unwrap().findings, Vec::<String>::new());
    let region = store.open_region("r").unwrap();
    let first = |page: u64| {
        let mut bytes = [0; 8];
        region.read_at(&mut bytes, page * PAGE).unwrap();
        u64::from_le_bytes(bytes)
    };
    region.pages().unwrap().into_iter().map(|page| (page, first(page))).collect()
}

#[test]
fn a_layout_is_known_by_its_length() {
    for pages in (1..=3).chain(16_383..=16_386).chain([32_768, 32_769, 1 << 20, (1 << 30) + 1]) {
        let layout = Layout { pages };
        assert_eq!(Layout::of_len(layout.len()), layout);
        assert_eq!(layout.states().end - layout.states().start, pages.div_ceil(16_384));
    }
}

#[test]
fn a_freed_page_is_given_out_after_the_commit_and_as_zeros() {
    let Some((_dir, path)) = made() else { return };
    let region = share(&path);
    assert_eq!((region.max_pages(), region.last_commit(), region.pages().unwrap()), (PAGES, 0, vec![]));
    assert_eq!((0..3).map(|_| region.alloc_page().unwrap()).collect::<Vec<_>>(), [0, 1, 2]);
    (0..3).for_each(|page| word(&region, page).store(page + 7, SeqCst));
    assert_eq!(region.pmsync().unwrap(), 1);
    region.free_page(1).unwrap();
    assert!(!region.is_allocated(1).unwrap());
    assert_eq!(region.alloc_page().unwrap(), 3, "a page was given out that the last commit has");
    assert!(region.alloc_at(1, 1).unwrap_err().to_string().contains("a freed page becomes free with the next commit"));
    assert_eq!(region.pmsync().unwrap(), 2);
    assert_eq!(region.alloc_page().unwrap(), 1);
    assert_eq!(word(&region, 1).load(SeqCst), 0, "a page came back with what was on it");
    assert_eq!(region.pmsync().unwrap(), 3);
    assert_eq!(region.pmsync().unwrap(), 3, "there was nothing to commit");
    // In one epoch: it never was.
    region.alloc_at(70, 3).unwrap();
    word(&region, 71).store(1, SeqCst);
    region.free_page(71).unwrap();
    region.pmsync().unwrap();
    region.alloc_at(71, 1).unwrap();
    assert_eq!(word(&region, 71).load(SeqCst), 0);
    region.free_page(0).unwrap();
    word(&region, 2).store(99, SeqCst);
    region.rollback().unwrap();
    assert_eq!(region.pages().unwrap(), [0, 1, 2, 3, 70, 72]);
    assert_eq!([0, 2].map(|page| word(&region, page).load(SeqCst)), [7, 9]);
    region.free_page(3).unwrap(); // of no commit
    region.close().unwrap();
    assert_eq!(committed(&path), BTreeMap::from([(0, 7), (1, 0), (2, 9), (3, 0), (70, 0), (72, 0)]));
}

#[test]
fn a_shared_region_is_a_map_from_page_numbers_to_words() {
    let Some((_dir, path)) = made() else { return };
    let mut seed = 0x5eed_u64;
    let mut random = move |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut region = share(&path);
    let (mut kept, mut now) = (BTreeMap::new(), BTreeMap::new());
    // Since the last commit: not given out before the next.
    let mut freed = BTreeSet::new();
    for step in 1..1500 {
        let page = random(PAGES);
        match random(20) {
            0..6 => {
                let free = |page: &u64| !now.contains_key(page) && !freed.contains(page);
                match region.alloc_page() {
                    Ok(page) => {
                        assert!(free(&page), "step {step}: page {page} was taken");
                        now.insert(page, 0);
                    }
                    Err(error) => assert!(!(0..PAGES).any(|page| free(&page)), "step {step}: {error}"),
                }
            }
            6 => {
                let count = 1 + random(4);
                let free = |page: u64| page < PAGES && !now.contains_key(&page) && !freed.contains(&page);
                let possible = (page..page + count).all(free);
                assert_eq!(region.alloc_at(page, count).is_ok(), possible, "step {step}");
                if possible {
                    now.extend((page..page + count).map(|page| (page, 0)));
                }
            }
            7..11 => {
                let possible = now.remove(&page).is_some();
                assert_eq!(region.free_page(page).is_ok(), possible, "step {step}");
                if possible {
                    freed.insert(page);
                }
            }
            11..17 => match now.get_mut(&page) {
                Some(value) => {
                    word(&region, page).store(step, SeqCst);
                    *value = step;
                }
                None => assert!(matches!(region.words(page * PAGE, 1), Err(Error::Invalid { .. }))),
            },
            17 => {
                region.rollback().unwrap();
                now = kept.clone();
                freed.clear();
            }
            18 => {
                region.pmsync().unwrap();
                kept = now.clone();
                freed.clear();
            }
            _ => {
                region.close().unwrap();
                assert_eq!(committed(&path), kept, "step {step}");
                region = share(&path);
                now = kept.clone();
                freed.clear();
            }
        }
        assert_eq!(region.pages().unwrap(), now.keys().copied().collect::<Vec<_>>(), "step {step}");
        let same = now.iter().find(|(page, value)| word(&region, **page).load(SeqCst) != **value);
        assert_eq!(same, None, "step {step}");
    }
}

#[test]
fn impossible_requests_are_refused() {
    let Some((dir, path)) = made() else { return };
    let enoent =
        |outcome: Result<SharedRegion>| assert_eq!(outcome.err().map(|error| error.errno()), Some(libc::ENOENT));
    enoent(SharedRegion::open(dir.path().join("none"), "r"));
    enoent(SharedRegion::open(&path, "none"));
    let region = share(&path);
    let in_use = |outcome: Result<()>| match outcome {
        Err(Error::InUse { holder, .. }) => holder,
        other => panic!("{other:?}"),
    };
    in_use(RegionStore::open(&path).map(drop));
    assert!(in_use(SharedRegion::open(&path, "r").map(drop)).contains("this process"));
    assert!(in_use(SharedRegion::open(&path, "other").map(drop)).contains("this process"));
    region.alloc_at(PAGES - 1, 1).unwrap();
    for (page, count) in [(PAGES, 1), (PAGES - 2, 3), (u64::MAX, 1), (1, u64::MAX), (0, 0)] {
        assert!(matches!(region.alloc_at(page, count), Err(Error::Invalid { .. })), "{page} {count}");
    }
    for count in [0, PAGES, u64::MAX] {
        assert!(matches!(region.alloc_pages(count), Err(Error::Invalid { .. })), "{count}");
    }
    assert_eq!(region.alloc_pages(PAGES - 1).unwrap(), 0);
    assert!(region.alloc_page().unwrap_err().to_string().contains("free"));
    for page in [PAGES, u64::MAX] {
        assert!(matches!(region.free_page(page), Err(Error::Invalid { .. })));
    }
    region.free_page(5).unwrap();
    for refused in [region.free_page(5), region.write_at(&[1], 5 * PAGE), region.read_at(&mut [0; 2], 5 * PAGE - 1)] {
        let error = refused.unwrap_err();
        assert!(error.to_string().contains("page 5 is not allocated"), "{error}");
    }
    assert!(matches!(region.write_at(&[1; 2], PAGES * PAGE - 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(region.words(4, 1), Err(Error::Invalid { .. })));
    region.close().unwrap();
    let store = RegionStore::open(&path).unwrap();
    in_use(SharedRegion::open(&path, "r").map(drop));
    drop(store);
    let made = SharedRegion::open_or_create(dir.path().join("new"), "made").unwrap();
    assert_eq!((made.alloc_page().unwrap(), made.pmsync().unwrap()), (0, 1));
    made.close().unwrap();
    let made = SharedRegion::open_or_create(dir.path().join("new"), "made").unwrap();
    assert_eq!((made.pages().unwrap(), made.name(), made.max_pages()), (vec![0], "made", 1 << 20));
}

/// The process that serves is killed when a commit is durable, before anybody is told and before what it freed is free.
#[test]
fn a_successor_has_the_same_pages_as_the_dead_server() {
    let child = |test: &Stage, point| {
        let region = share(&test.dir.join("store"));
        assert_eq!(region.alloc_pages(4).unwrap(), 0);
        (0..4).for_each(|page| word(&region, page).store(10 + page, SeqCst));
        region.pmsync().unwrap();
        test.say(READY);
        test.hear(GO);
        region.free_page(2).unwrap();
        assert_eq!(region.alloc_page().unwrap(), 5, "the other one has page 4");
        word(&region, 5).store(15, SeqCst);
        DIE_AT.store(point as u32, SeqCst);
        let _ = region.pmsync();
        unreachable!("it survived");
    };
    let points = [Point::Protected, Point::Committing, Point::Committed];
    with_processes_for(this_test!(), memory_dir, points, child, |test, point| {
        let path = make(&test.dir);
        test.start(point as usize, READY);
        let region = share(&path);
        assert!(!region.is_owner());
        assert_eq!(region.alloc_page().unwrap(), 4);
        word(&region, 4).store(14, SeqCst);
        test.say(GO);
        test.is_killed(0);
        let since = Instant::now();
        assert_eq!(region.pages().unwrap(), [0, 1, 3, 4, 5], "{point:?}");
        region.pmsync().unwrap();
        assert!(since.elapsed() < patience() && region.is_owner());
        assert_eq!(region.alloc_page().unwrap(), 2, "{point:?}: a freed page is nobody's for ever");
        assert_eq!(word(&region, 2).load(SeqCst), 0);
        word(&region, 2).store(12, SeqCst);
        region.pmsync().unwrap();
        region.close().unwrap();
        assert_eq!(committed(&path), (0..6).map(|page| (page, 10 + page)).collect(), "{point:?}");
    });
}

#[test]
fn another_store_at_the_path_is_not_touched() {
    let child = |test: &Stage, _| {
        let region = share(&test.dir.join("store"));
        region.alloc_page().unwrap();
        region.pmsync().unwrap();
        test.say(READY);
        test.hear(STOP);
    };
    with_processes(this_test!(), memory_dir, child, |test| {
        let (path, moved) = (make(&test.dir), test.dir.join("moved"));
        test.start(0, READY);
        let region = share(&path);
        word(&region, 0).store(1, SeqCst);
        std::fs::rename(&path, &moved).unwrap();
        make(&test.dir);
        test.kill(0);
        is_poisoned(region.pmsync(), "another file");
        drop(region);
        assert_eq!(committed(&path), BTreeMap::new());
        assert_eq!(committed(&moved), BTreeMap::from([(0, 0)]));
    });
}

#[test]
fn reads_from_a_descriptor_need_allocated_pages() {
    let Some((dir, path)) = made() else { return };
    let region = share(&path);
    assert_eq!(region.alloc_page().unwrap(), 0);
    std::fs::write(dir.path().join("source"), 5_u64.to_le_bytes()).unwrap();
    let source = std::fs::File::open(dir.path().join("source")).unwrap();
    assert!(matches!(region.read_from(&source, PAGE - 1, 2), Err(Error::Invalid { .. })));
    assert_eq!(region.read_from(&source, 0, PAGE as usize).unwrap(), 8);
    assert_eq!(region.read_from(&source, 0, PAGE as usize).unwrap(), 0);
    region.pmsync().unwrap();
    region.close().unwrap();
    assert_eq!(committed(&path), BTreeMap::from([(0, 5)]));
}
