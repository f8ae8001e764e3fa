//! Mapped regions against a map from page numbers to bytes, however stores are found and pages closed.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::engine::commits::stream::Commits;
use crate::region::engine::AnyHeld;
use crate::region::{RegionStore, StoreOptions};
use crate::sys::paged::Closing;
use crate::sys::paged::tests::refuse_to_close;

const WAYS: [(DirtyTracking, Closing); 4] = [
    (DirtyTracking::Auto, Closing::Auto),
    (DirtyTracking::PageTable, Closing::Auto),
    (DirtyTracking::Auto, Closing::Protection),
    (DirtyTracking::PageTable, Closing::Protection),
];

/// Pages of a region here: in two chunks, and far apart.
const PAGES: u64 = 600;

fn open(path: &Path, (dirty_tracking, closing): (DirtyTracking, Closing)) -> (RegionStore, RegionMap) {
    let store = match RegionStore::open(path) {
        Ok(store) => store,
        Err(_) => StoreOptions::new().max_regions(2).create(path).unwrap(),
    };
    let region = match store.open_region("r") {
        Ok(region) => region,
        Err(_) => store.create_region_of("r", PAGES).unwrap(),
    };
    let mut options = RegionMapOptions::new().dirty_tracking(dirty_tracking);
    options.closing = closing;
    (store, options.map(&region).unwrap())
}

fn contents(map: &RegionMap) -> BTreeMap<u64, Vec<u8>> {
    map.pages().unwrap().into_iter().map(|page| (page, map.page(page).unwrap().to_vec())).collect()
}

#[test]
fn a_mapped_region_is_a_map_from_page_numbers_to_bytes() {
    for (number, way) in WAYS.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let mut rng = untorn_testing::SplitMix::new(number as u64);
        let mut random = move |below: u64| rng.below(below);
        let (mut store, mut map) = open(&path, way);
        let mut committed: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        let (mut now, mut pinned) = (committed.clone(), Vec::new());
        for step in 0..1500 {
            let page = [random(12), 505 + random(12), random(PAGES)][random(3) as usize];
            match random(24) {
                0..=3 if !now.contains_key(&page) && !committed.contains_key(&page) => {
                    map.alloc_at(page, 1).unwrap();
                    now.insert(page, vec![0; 4096]);
                }
                4..=5 if now.contains_key(&page) && !pinned.contains(&page) => {
                    map.free_page(page).unwrap();
                    now.remove(&page);
                }
                6..=15 => {
                    if let Some(bytes) = now.get_mut(&page) {
                        let (at, byte) = (random(4096) as usize, random(256) as u8);
                        map.page_mut(page).unwrap()[at] = byte;
                        bytes[at] = byte;
                    } else {
                        assert!(matches!(map.page(page), Err(Error::Invalid { .. })));
                    }
                }
                16 if now.contains_key(&page) => {
                    let pointer = map.pin(page, 1).unwrap();
                    assert_eq!(pointer, map.memory.address(page));
                    pinned.push(page);
                    assert!(matches!(map.free_page(page), Err(Error::InUse { .. })));
                }
                17 if !pinned.is_empty() => {
                    map.unpin(pinned.swap_remove(random(pinned.len() as u64) as usize), 1).unwrap()
                }
                18..=20 => {
                    if random(2) == 0 { map.pmsync() } else { map.pmsync_beside_stores() }.unwrap();
                    committed = now.clone();
                }
                21 => {
                    map.rollback().unwrap();
                    now = committed.clone();
                    pinned.retain(|page| now.contains_key(page));
                }
                22 if random(4) == 0 => {
                    drop((map, store));
                    (store, map) = open(&path, way);
                    (now, pinned) = (committed.clone(), Vec::new());
                }
                _ => {}
            }
            if step % 16 == 0 {
                assert_eq!(contents(&map), now, "{way:?}, step {step}");
            }
        }
        assert_eq!(store.audit().unwrap().findings, Vec::<String>::new(), "{way:?}");
    }
}

#[test]
fn a_commit_writes_what_was_stored_to_and_nothing_else() {
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let (_store, mut map) = open(&dir.path().join("store"), way);
        map.alloc_at(0, 100).unwrap();
        for page in 0..100 {
            map.page_mut(page).unwrap()[0] = 1;
        }
        assert_eq!(map.pmsync().unwrap(), 1);
        assert_eq!(map.bytes(0, 100 * 4096).unwrap().iter().filter(|byte| **byte == 1).count(), 100);
        assert_eq!(map.pmsync().unwrap(), 1, "{way:?}: loads are no stores");
        for page in [3, 50, 99] {
            map.page_mut(page).unwrap()[7] = 2;
        }
        map.note_all_stores().unwrap();
        assert_eq!(map.stored_pages(), [3, 50, 99], "{way:?}");
        assert_eq!(map.pmsync().unwrap(), 2);
        map.page_mut(3).unwrap()[7] = 3;
        map.note_all_stores().unwrap();
        assert_eq!(map.stored_pages(), [3], "{way:?}");
    }
}

/// A digest over bytes that a thread changes meanwhile would have the recovery drop the commit.
#[test]
fn a_commit_beside_stores_is_whole() {
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("store");
        let (store, mut map) = open(&path, way);
        map.alloc_pages(4).unwrap();
        let counters = map.pin(0, 4).unwrap().addr() as u64;
        let ended = AtomicBool::new(false);
        let mut last = 0;
        std::thread::scope(|scope| {
            let count = || {
                let memory = std::fs::OpenOptions::new().write(true).open("/proc/self/mem").unwrap();
                let mut number = 0_u64;
                while !ended.load(Ordering::Relaxed) {
                    number += 1;
                    for at in (0..4 * 4096).step_by(512) {
                        memory.write_all_at(&number.to_ne_bytes(), counters + at).unwrap();
                    }
                }
            };
            scope.spawn(count);
            for _ in 0..50 {
                last = map.pmsync_beside_stores().unwrap();
            }
            ended.store(true, Ordering::Relaxed);
        });
        // As after a crash: the store was not closed, and its last commit has to prove itself.
        std::mem::forget((store, map));
        let copy = dir.path().join("copy");
        std::fs::copy(&path, &copy).unwrap();
        let (store, map) = open(&copy, way);
        assert_eq!(map.info().unwrap().commit, last, "{way:?}");
        assert_eq!(store.audit().unwrap().findings, Vec::<String>::new(), "{way:?}");
    }
}

/// The cost of a map is that of the pages which the program touches, however many it maps.
#[test]
fn a_map_has_no_copy_of_pages_that_nobody_stored_to() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (store, mut map) = open(&path, WAYS[0]);
    if map.dirty_tracking() != DirtyTracking::WriteProtect {
        untorn_testing::skip!("this kernel does not tell stores by write protection");
    }
    map.alloc_pages(PAGES).unwrap();
    for (page, bytes) in (0_u64..).zip(map.bytes_mut(0, PAGES as usize * 4096).unwrap().chunks_mut(4096)) {
        bytes.fill(page as u8);
    }
    map.pmsync().unwrap();
    drop((map, store));

    let (_store, mut map) = open(&path, WAYS[0]);
    let bytes = map.bytes(0, PAGES as usize * 4096).unwrap();
    assert!((0_u64..).zip(bytes.chunks(4096)).all(|(page, bytes)| bytes.iter().all(|byte| *byte == page as u8)));
    assert_eq!(map.memory.copied_pages(), 0, "loads copy nothing");
    assert_eq!(map.pmsync().unwrap(), 1, "loads are no stores");
    // Until the third commit the store's pages of before are written to again.
    for round in 1..=4_u64 {
        for page in [7, 8, 300] {
            map.page_mut(page).unwrap()[round as usize] = 0xff;
        }
        assert_eq!(map.pmsync().unwrap(), 1 + round);
        for page in [7, 8, 300, 6, 9] {
            let expected = if matches!(page, 6 | 9) { 0 } else { round as usize };
            let bytes = map.page(page).unwrap();
            assert_eq!(bytes.iter().filter(|byte| **byte == 0xff).count(), expected, "page {page}, round {round}");
            assert_eq!(bytes[4095], page as u8);
        }
    }
    assert_eq!(map.memory.copied_pages(), 0, "stores copy nothing into the memory file");
    map.page_mut(8).unwrap()[9] = 1;
    map.rollback().unwrap();
    assert_eq!(map.page(8).unwrap()[..10], [8, 255, 255, 255, 255, 8, 8, 8, 8, 8]);
    assert_eq!(map.memory.copied_pages(), 1, "a rollback of a page that was committed since");
    map.page_mut(100).unwrap().fill(0);
    map.rollback().unwrap();
    assert_eq!((map.page(100).unwrap(), map.memory.copied_pages()), (&[100; 4096], 1));
    map.free_page(300).unwrap();
    map.pmsync().unwrap();
    map.alloc_at(300, 1).unwrap();
    assert_eq!(map.page(300).unwrap(), &[0; 4096]);
}

#[test]
fn a_lost_page_of_the_store_fails_the_next_commit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (store, mut map) = open(&path, WAYS[0]);
    map.alloc_pages(8).unwrap();
    map.bytes_mut(0, 8 * 4096).unwrap().fill(7);
    map.pmsync().unwrap();
    drop((map, store));
    let (_store, mut map) = open(&path, WAYS[0]);
    if !map.shows {
        untorn_testing::skip!("no page of a store is mapped here");
    }
    map.bytes(0, 8 * 4096).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    assert_eq!(map.page(3).unwrap()[0], 0);
    assert!(matches!(map.pmsync(), Err(Error::Io { .. })));
}

#[test]
fn kernel_reads_into_a_region_count_as_stores() {
    use std::io::Read;
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut map) = open(&dir.path().join("store"), way);
        map.alloc_pages(2).unwrap();
        map.pmsync().unwrap();
        map.bytes(0, 8192).unwrap();
        std::fs::write(dir.path().join("from"), [5; 5000]).unwrap();
        let mut from = std::fs::File::open(dir.path().join("from")).unwrap();
        from.read_exact(map.bytes_mut(100, 5000).unwrap()).unwrap();
        map.pmsync().unwrap();
        drop(map);
        let mut bytes = [0; 8192];
        store.open_region("r").unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes.iter().filter(|byte| **byte == 5).count(), 5000, "{way:?}");
    }
}

#[test]
fn stores_through_a_pin_are_committed_after_the_unpin() {
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut map) = open(&dir.path().join("store"), way);
        map.alloc_pages(3).unwrap();
        map.pmsync().unwrap();
        assert_eq!(map.pin(0, 3).unwrap(), map.pin(0, 1).unwrap());
        map.page_mut(0).unwrap()[0] = 1;
        map.page_mut(1).unwrap()[0] = 2;
        map.unpin(0, 3).unwrap();
        assert!(map.memory.has(&(0..4096)) && !map.memory.has(&(4096..8192)), "{way:?}: one is pinned still");
        map.unpin(0, 1).unwrap();
        assert!(matches!(map.unpin(0, 1), Err(Error::Invalid { .. })));
        // Brought in again, they hold it, and a rollback knows of it.
        assert_eq!([map.page(0).unwrap()[0], map.page(1).unwrap()[0]], [1, 2]);
        map.rollback().unwrap();
        assert_eq!([map.page(0).unwrap()[0], map.page(1).unwrap()[0]], [0, 0]);
        map.pin(1, 1).unwrap();
        map.page_mut(1).unwrap()[0] = 3;
        map.unpin(1, 1).unwrap();
        assert_eq!(map.pmsync().unwrap(), 2);
        drop(map);
        let mut bytes = [0; 8192];
        store.open_region("r").unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!([bytes[0], bytes[4096]], [0, 3]);
    }
}

#[test]
fn a_region_that_is_mapped_has_no_other_way_in() {
    let dir = tempfile::tempdir().unwrap();
    let (store, mut map) = open(&dir.path().join("store"), WAYS[0]);
    map.alloc_page().unwrap();
    let region = store.open_region("r").unwrap();
    let refusals = [
        region.map().map(drop),
        region.alloc_page().map(drop),
        region.free_page(0),
        region.write_at(&[1], 0),
        region.read_at(&mut [0], 0),
        region.pmsync().map(drop),
        region.rollback(),
        store.delete_region("r"),
    ];
    for (number, refusal) in refusals.into_iter().enumerate() {
        assert!(matches!(refusal, Err(Error::InUse { .. })), "{number}: {refusal:?}");
    }
    assert!(region.info().unwrap().mapped);
    drop(map);
    assert!(!region.info().unwrap().mapped && region.pages().unwrap().is_empty(), "nothing was committed");
    region.alloc_page().unwrap();
    assert!(matches!(region.map().map(drop), Err(Error::Invalid { .. })), "its changes are in copies");
}

#[test]
fn ranges_that_no_region_can_have_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (_store, mut map) = open(&dir.path().join("store"), WAYS[0]);
    map.alloc_at(PAGES - 1, 1).unwrap();
    assert_eq!(map.page(PAGES - 1).unwrap(), &[0; 4096]);
    for (offset, len) in [(PAGES * PAGE, 1), (PAGES * PAGE - 1, 2), (u64::MAX, 1), (0, usize::MAX)] {
        assert!(matches!(map.bytes(offset, len), Err(Error::OutOfRange { .. })), "{offset} {len}");
    }
    assert!(matches!(map.pin(u64::MAX, 2), Err(Error::OutOfRange { .. })));
    assert!(matches!(map.view::<u64>((PAGES - 1) * PAGE + 4), Err(Error::Invalid { .. })));
    assert!(matches!(map.free_page(u64::MAX), Err(Error::Invalid { .. })));
    assert!(matches!(map.free_page(0), Err(Error::Invalid { .. })));
    assert!(map.bytes(0, 0).unwrap().is_empty());
}

/// A region whose store a failed flush has poisoned, once it is told so.
struct Ailing {
    region: Arc<dyn AnyRegion>,
    poisoned: AtomicBool,
}

impl Ailing {
    /// Puts itself between a map and its region, in good health.
    fn between(map: &mut RegionMap) -> Arc<Self> {
        let ailing = Arc::new(Ailing { region: Arc::clone(&map.region), poisoned: AtomicBool::new(false) });
        map.region = ailing.clone();
        ailing
    }
}

impl AnyRegion for Ailing {
    fn name(&self) -> &str {
        self.region.name()
    }

    fn path(&self) -> &Path {
        self.region.path()
    }

    fn info(&self) -> Result<RegionInfo> {
        self.region.info()
    }

    fn alloc(&self, at: Option<u64>, count: u64) -> Result<u64> {
        self.writable()?;
        self.region.alloc(at, count)
    }

    fn free(&self, logical: u64) -> Result<()> {
        self.writable()?;
        self.region.free(logical)
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.region.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.writable()?;
        self.region.write(offset, src)
    }

    fn pages(&self) -> Result<Vec<u64>> {
        self.region.pages()
    }

    fn stored(&self, pages: &[u64]) -> Result<Vec<u64>> {
        self.region.stored(pages)
    }

    fn read_stored(&self, page: u64, dst: &mut [u8]) -> Result<()> {
        self.region.read_stored(page, dst)
    }

    fn unchanged(&self, pages: Range<u64>) -> Result<Vec<u64>> {
        self.region.unchanged(pages)
    }

    fn mappable(&self) -> Option<BorrowedFd<'_>> {
        self.region.mappable()
    }

    fn pmsync(&self, stored: &Stored<'_>) -> Result<u64> {
        self.writable()?;
        self.region.pmsync(stored)
    }

    fn rollback(&self) -> Result<()> {
        self.region.rollback()
    }

    fn fresh(&self) -> Result<Vec<u64>> {
        self.region.fresh()
    }

    fn ours(&self) -> Result<()> {
        self.region.ours()
    }

    fn writable(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Relaxed) {
            return Err(Error::Poisoned { path: self.path().to_owned(), cause: "a test".to_owned() });
        }
        self.region.writable()
    }

    fn map(&self) -> Result<Arc<dyn AnyRegion>> {
        self.region.map()
    }

    fn hold(&self) -> Result<Box<dyn AnyHeld>> {
        self.region.hold()
    }

    fn commits(&self, from: u64) -> Result<Box<dyn Commits>> {
        self.region.commits(from)
    }

    fn consumer(&self, name: &str, from: Option<u64>) -> Result<Box<dyn Commits>> {
        self.region.consumer(name, from)
    }
}

/// Else whoever has pointers into it could never let go of the region, and so never open it anew.
#[test]
fn pins_of_a_map_that_commits_no_more_can_be_taken_back() {
    for way in WAYS {
        let dir = tempfile::tempdir().unwrap();
        let (_store, mut map) = open(&dir.path().join("store"), way);
        map.alloc_pages(2).unwrap();
        map.pmsync().unwrap();
        let ailing = Ailing::between(&mut map);
        map.pin(0, 2).unwrap();
        map.page_mut(0).unwrap()[0] = 1;
        ailing.poisoned.store(true, Ordering::Relaxed);
        assert!(matches!(map.pmsync(), Err(Error::Poisoned { .. })));
        map.unpin(0, 2).unwrap();
        assert!(matches!(map.unpin(0, 1), Err(Error::Invalid { .. })), "{way:?}: it is not pinned any more");
        assert_eq!(map.page(0).unwrap()[0], 1, "{way:?}: what was stored can still be saved elsewhere");
    }
}

#[test]
fn an_unpin_works_even_if_a_page_cannot_be_protected() {
    // In a thread of its own, which takes what the kernel was told with it.
    let body = || {
        let dir = tempfile::tempdir().unwrap();
        let (store, mut map) = open(&dir.path().join("store"), (DirtyTracking::Auto, Closing::Protection));
        map.alloc_pages(3).unwrap();
        map.pmsync().unwrap();
        let pointer = map.pin(0, 3).unwrap();
        for page in 0..3 {
            map.page_mut(page).unwrap()[0] = page as u8 + 1;
        }
        if !refuse_to_close(pointer.wrapping_add(PAGE as usize)) {
            untorn_testing::skip!("no system call can be made to fail here");
        }
        map.unpin(0, 3).unwrap();
        assert!(matches!(map.unpin(1, 1), Err(Error::Invalid { .. })));
        assert_eq!(map.memory.all_open(), [1]);
        map.page_mut(1).unwrap()[0] = 7;
        map.pmsync().unwrap();
        drop(map);
        let mut bytes = [0; 3 * 4096];
        store.open_region("r").unwrap().read_at(&mut bytes, 0).unwrap();
        assert_eq!([bytes[0], bytes[4096], bytes[8192]], [1, 7, 3]);
    };
    std::thread::spawn(body).join().unwrap();
}
