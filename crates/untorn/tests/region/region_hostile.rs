//! Stores that somebody has tampered with: random damage, and forgeries whose checksums are right. No panic, no endless
//! loop, nothing outside the file; and what is refused names its place.

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::common::{Rng, limit, memory_dir, new_region, pattern, pmem, scratch, seed};
use twox_hash::XxHash3_64;
use untorn::options::Order;
use untorn::region::{RegionStore, StoreOptions};
use untorn::testing::storage::PageCache;
use untorn::{Error, Result};

const PAGE: usize = 4096;
const NODES_AT: usize = 2;
/// The first page that is neither superblock nor region node.
const FIRST: usize = NODES_AT + 3;

fn options() -> StoreOptions {
    StoreOptions::new().max_regions(3).grow_by(4 * PAGE as u64).background_scan(false).max_len(4 << 20)
}

/// A store with two regions, each with commits of both parities, and free pages in between.
fn bytes(clean: bool) -> Vec<u8> {
    let path = scratch("store");
    let store = options().create(&path).unwrap();
    let one = store.create_region("one").unwrap();
    let two = store.create_region_of("two", 100).unwrap();
    for round in 0..3_u64 {
        for region in [&one, &two] {
            region.alloc_at(round * 4, 4).unwrap();
            for page in region.pages().unwrap() {
                if page % 3 != 1 {
                    region.write_page(page, &pattern(PAGE, round << 32 | page).try_into().unwrap()).unwrap();
                }
            }
            region.pmsync().unwrap();
            region.free_page(round * 4).unwrap();
        }
    }
    one.alloc_at(70_000, 1).unwrap();
    one.pmsync().unwrap();
    drop((one, two));
    if clean {
        store.close().unwrap();
    } else {
        drop(store);
    }
    std::fs::read(&path).unwrap()
}

/// Does to a store whatever there is to do. Errors are fine; panics, and more than a moment, are not.
fn exercise(path: &Path, on_pmem: bool) -> Result<()> {
    let store: RegionStore = match on_pmem {
        true => options().open_on(pmem(), path)?,
        false => options().open_on(PageCache::new(), path)?,
    };
    let list = store.list()?;
    store.info()?;
    // What is damaged is an error of the call; the others must go on.
    let _ = store.scan();
    let _ = store.audit();
    for info in &list {
        let Ok(region) = store.open_region(&info.name) else { continue };
        let mut buf = [0; PAGE];
        for page in region.pages().unwrap_or_default().into_iter().take(300) {
            let _ = region.read_page(page, &mut buf);
        }
        let _ = region.alloc_pages(3).and_then(|first| region.write_page(first, &buf));
        let _ = region.pages().map(|pages| pages.first().map(|page| region.free_page(*page)));
        let _ = region.pmsync();
        let _ = region.info();
    }
    let _ = store.delete_region("two");
    let _ = store.create_region("three").and_then(|region| region.alloc_page().and_then(|_| region.pmsync()));
    let _ = store.scan();
    let _ = store.close();
    Ok(())
}

/// Puts these bytes in place and exercises them.
fn try_out(path: &Path, bytes: &[u8], pmem: bool, what: &str) {
    std::fs::write(path, bytes).unwrap();
    // A loop that would end some time is a hang too.
    let _limit = limit(20, "a store that was tampered with");
    let outcome = catch_unwind(AssertUnwindSafe(|| exercise(path, pmem)));
    assert!(outcome.is_ok(), "{what}: a panic");
    assert!(std::fs::metadata(path).unwrap().len() <= 4 << 20, "{what}: the file grew beyond what it may");
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn put(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
}

/// Makes the checksums of superblocks, nodes and records right, whatever they cover.
fn reseal(bytes: &mut [u8]) {
    for copy in 0..2 {
        let page = &mut bytes[copy * PAGE..][..PAGE];
        let check = XxHash3_64::oneshot(&page[..4088]);
        put(page, 4088, check);
    }
    for node in NODES_AT..FIRST {
        let Some(page) = bytes.get_mut(node * PAGE..(node + 1) * PAGE) else { continue };
        let check = XxHash3_64::oneshot(&page[16..504]);
        put(page, 504, check);
        for record in [512, 1024] {
            seal_record(page, record);
        }
    }
}

fn seal_record(node: &mut [u8], at: usize) {
    let sealed = [&node[16..32], &node[at..at + 56]].concat();
    put(node, at + 56, XxHash3_64::oneshot(&sealed));
}

#[test]
fn random_damage_is_never_a_panic() {
    let mut rng = Rng::new(seed("random damage"));
    let path = scratch("store");
    let images = [bytes(true), bytes(false)];
    for round in 0..1500_u64 {
        let mut bytes = images[(round % 2) as usize].clone();
        // Where pointers, records and maps are, rather than in the pages of regions.
        let metadata = [0, 1, 2, 3, 4, FIRST, FIRST + 1, FIRST + 2, FIRST + 3, FIRST + 4];
        for _ in 0..1 + rng.below(6) {
            let page = match rng.below(4) {
                0 => rng.below((bytes.len() / PAGE) as u64) as usize,
                _ => metadata[rng.below(metadata.len() as u64) as usize],
            };
            // Mostly among the first words, since most of a page is empty.
            let place = if rng.below(2) == 0 { rng.below(16) } else { rng.below(512) } as usize;
            let at = page * PAGE + place * 8;
            let value = match rng.below(5) {
                0 => rng.next_u64(),
                1 => rng.below(64),
                2 => u64::MAX - rng.below(3),
                3 => 1 << rng.below(64),
                _ => word(&bytes, at) ^ 1 << rng.below(64),
            };
            put(&mut bytes, at, value);
        }
        if rng.below(3) > 0 {
            reseal(&mut bytes);
        }
        if rng.below(10) == 0 {
            bytes.truncate(rng.below(bytes.len() as u64) as usize);
        }
        try_out(&path, &bytes, round % 4 > 1, &format!("round {round}"));
    }
}

#[test]
fn a_store_of_any_length_is_opened_or_refused() {
    let path = scratch("store");
    for clean in [true, false] {
        let bytes = bytes(clean);
        for len in (0..bytes.len()).step_by(1024) {
            try_out(&path, &bytes[..len], len % 2048 == 0, &format!("{len} bytes"));
        }
    }
}

/// A forged store, of which every checksum is right.
struct Forged {
    bytes: Vec<u8>,
}

/// Pages of the region "one": its node, the inner nodes from the top, and its first leaf.
struct Tree {
    node: usize,
    inner: Vec<usize>,
    leaf: usize,
}

impl Forged {
    fn new(clean: bool) -> Self {
        Forged { bytes: bytes(clean) }
    }

    fn tree(&self) -> Tree {
        let node = NODES_AT;
        let mut page = word(&self.bytes, node * PAGE + 8) as usize;
        let mut inner = Vec::new();
        // Of the default number of pages: three levels.
        for _ in 0..3 {
            inner.push(page);
            page = word(&self.bytes, page * PAGE) as usize;
        }
        Tree { node, inner, leaf: page }
    }

    /// The half of the last commit of the region in its first leaf, by byte offset.
    fn snapshot(&self, tree: &Tree) -> usize {
        let commits = [512, 1024].map(|at| word(&self.bytes, tree.node * PAGE + at));
        tree.leaf * PAGE + (commits[0].max(commits[1]) % 2) as usize * 2048
    }

    fn weigh(logical: u64, entry: &[u8]) -> u64 {
        if word(entry, 0) == 0 { 0 } else { XxHash3_64::oneshot(&[&logical.to_le_bytes()[..], entry].concat()) }
    }

    /// Changes an entry of the last commit of the first leaf, and its record with it.
    fn set_entry(&mut self, logical: u64, page: u64, sum: u64) {
        let tree = self.tree();
        let at = self.snapshot(&tree) + logical as usize * 16;
        let before = Self::weigh(logical, &self.bytes[at..at + 16]);
        put(&mut self.bytes, at, page);
        put(&mut self.bytes, at + 8, sum);
        let after = Self::weigh(logical, &self.bytes[at..at + 16]);
        let node = tree.node * PAGE;
        let record = [512, 1024].into_iter().max_by_key(|&at| word(&self.bytes, node + at)).unwrap();
        let total = word(&self.bytes, node + record + 8).wrapping_sub(before).wrapping_add(after);
        put(&mut self.bytes, node + record + 8, total);
        seal_record(&mut self.bytes[node..node + PAGE], record);
    }

    /// What opening region "one" says.
    fn refusal(&self, dir: &Path) -> String {
        let path = dir.join("forged");
        std::fs::write(&path, &self.bytes).unwrap();
        let store = options().open(&path).unwrap();
        let error = store.open_region("one").expect_err("a forged region opens");
        assert!(matches!(error, Error::Corrupt { offset: Some(_), .. }), "{error}");
        // The other one is none the worse for it.
        store.open_region("two").unwrap();
        assert!(!store.audit().unwrap().findings.is_empty());
        drop(store);
        try_out(&path, &self.bytes, false, "forged");
        error.to_string()
    }
}

#[test]
fn a_page_table_that_meets_itself_or_leaves_the_file_is_refused() {
    let dir = memory_dir();
    for clean in [true, false] {
        let honest = Forged::new(clean);
        let tree = honest.tree();
        let links = [
            (tree.node * PAGE + 8, tree.node as u64),
            (tree.node * PAGE + 8, u64::MAX),
            (tree.inner[0] * PAGE, tree.inner[0] as u64),
            (tree.inner[1] * PAGE, tree.inner[0] as u64),
            (tree.inner[2] * PAGE + 8, tree.leaf as u64),
            (tree.inner[2] * PAGE + 8, 1 << 52),
            (tree.inner[0] * PAGE + 511 * 8, 3),
        ];
        for (at, page) in links {
            let mut forged = Forged { bytes: honest.bytes.clone() };
            put(&mut forged.bytes, at, page);
            let text = forged.refusal(dir.path());
            assert!(text.contains("page table"), "{text}");
        }
    }
}

#[test]
fn an_entry_that_names_what_is_not_its_own_is_refused() {
    let dir = memory_dir();
    for clean in [true, false] {
        let honest = Forged::new(clean);
        let tree = honest.tree();
        let snapshot = honest.snapshot(&tree);
        let mine = word(&honest.bytes, snapshot + 2 * 16);
        assert!(mine > 1, "page 2 of the region was written");
        for page in [2, NODES_AT as u64, 1 << 40, u64::MAX] {
            let mut forged = Forged { bytes: honest.bytes.clone() };
            forged.set_entry(2, page, 0);
            let text = forged.refusal(dir.path());
            assert!(text.contains("is invalid: it names page"), "{text}");
        }
        if clean {
            // An entry changed behind the record's back. After a crash it looks like a commit that did not arrive
            // whole.
            let mut forged = Forged { bytes: honest.bytes.clone() };
            put(&mut forged.bytes, snapshot + 2 * 16, 1);
            assert!(forged.refusal(dir.path()).contains("does not match its last commit record"));
        } else {
            // One page twice in a region: which nobody looks for where a free map vouches for all.
            let mut forged = Forged { bytes: honest.bytes.clone() };
            forged.set_entry(3, mine, 0);
            let text = forged.refusal(dir.path());
            assert!(text.contains("it or another region already uses"), "{text}");
        }
    }
}

#[test]
fn a_record_that_was_never_reached_counts_for_nothing() {
    let dir = memory_dir();
    let honest = Forged::new(false);
    let node = NODES_AT * PAGE;
    for commit in [u64::MAX, u64::MAX - 1, 1 << 62] {
        let mut forged = Forged { bytes: honest.bytes.clone() };
        for at in [512, 1024] {
            put(&mut forged.bytes, node + at, commit ^ (at == 1024) as u64);
        }
        reseal(&mut forged.bytes);
        assert!(forged.refusal(dir.path()).contains("neither commit record is valid"));
    }
}

#[test]
fn a_free_map_that_frees_owned_pages_is_found_by_their_owner() {
    let path = scratch("store");
    let mut bytes = bytes(true);
    let newest = [0, PAGE].into_iter().max_by_key(|&at| word(&bytes, at + 56)).unwrap();
    let (pages, at) = (word(&bytes, newest + 72) as usize, word(&bytes, newest + 80) as usize * PAGE);
    let len = pages.div_ceil(64) * 8;
    bytes[at..at + len].fill(0);
    let sum = XxHash3_64::oneshot(&bytes[at..at + len]);
    put(&mut bytes, newest + 88, sum);
    reseal(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let store = options().open(&path).unwrap();
    assert!(!store.info().unwrap().recovered, "the forged map is believed");
    let error = store.open_region("one").unwrap_err().to_string();
    assert!(error.contains("marks free"), "{error}");
    drop(store);
    // One whose digest is wrong is not: the store is scanned.
    put(&mut bytes, newest + 88, sum ^ 1);
    reseal(&mut bytes);
    std::fs::write(&path, &bytes).unwrap();
    let store = options().open(&path).unwrap();
    assert!(store.info().unwrap().recovered);
    assert_eq!(store.audit().unwrap().findings, Vec::<String>::new());
    store.open_region("one").unwrap();
}

/// Who only reads may not erase a commit that did not arrive whole, so it is there the next time the region is read.
#[test]
fn a_reader_sees_the_same_commit_each_time() {
    let (path, store, region) = new_region(&options().order(Order::OneFence));
    region.alloc_pages(2).unwrap();
    for fill in [1, 2] {
        region.write_page(0, &[fill; PAGE]).unwrap();
        region.write_page(1, &[fill + 10; PAGE]).unwrap();
        region.pmsync().unwrap();
    }
    drop((region, store));
    let mut bytes = std::fs::read(&path).unwrap();
    let late = bytes.chunks(PAGE).position(|page| page == [12; PAGE]).unwrap() * PAGE;
    bytes[late..late + PAGE].fill(0);
    std::fs::write(&path, &bytes).unwrap();
    let store = options().read_only(true).open(&path).unwrap();
    for time in 0..3 {
        assert_eq!(store.list().unwrap()[0].commit, 1, "time {time}");
        let region = store.open_region("r").unwrap();
        assert_eq!(region.info().unwrap().commit, 1, "time {time}");
        let mut page = [0; PAGE];
        for (number, fill) in [(0, 1), (1, 11)] {
            region.read_page(number, &mut page).unwrap();
            assert_eq!(page, [fill; PAGE], "time {time}: page {number}");
        }
    }
    drop(store);
    assert_eq!(std::fs::read(&path).unwrap(), bytes, "who only reads has changed it");
    assert_eq!(options().open(&path).unwrap().open_region("r").unwrap().info().unwrap().commit, 1);
}

/// A commit that was acknowledged, and of which a page has rotted: the one before it gave pages up that are another
/// region's now. To take it for the last one would show their bytes, and declare that other region damaged.
#[test]
fn a_rotten_region_never_shows_pages_of_another_one() {
    let path = scratch("store");
    let store = options().order(Order::OneFence).create(&path).unwrap();
    let (first, second) = (store.create_region("first").unwrap(), store.create_region("second").unwrap());
    first.alloc_pages(1).unwrap();
    for fill in [1, 2] {
        first.write_page(0, &[fill; PAGE]).unwrap();
        first.pmsync().unwrap();
    }
    second.alloc_pages(1).unwrap();
    second.write_page(0, &[3; PAGE]).unwrap();
    second.pmsync().unwrap();
    drop((first, second, store));
    let mut bytes = std::fs::read(&path).unwrap();
    assert!(!bytes.chunks(PAGE).any(|page| page == [1; PAGE]), "its page was not given to the other region");
    let late = bytes.chunks(PAGE).position(|page| page == [2; PAGE]).unwrap() * PAGE;
    bytes[late + 77] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    for read_only in [true, false] {
        let store = options().read_only(read_only).open(&path).unwrap();
        let error = store.open_region("first").err();
        assert!(matches!(error, Some(Error::Corrupt { .. })), "{error:?}");
        let second = store.open_region("second").unwrap();
        let mut page = [0; PAGE];
        second.read_page(0, &mut page).unwrap();
        assert_eq!((page, second.info().unwrap().commit), ([3; PAGE], 1));
        drop((second, store));
        let now = std::fs::read(&path).unwrap();
        let differs = |page: usize| now[page * PAGE..][..PAGE] != bytes[page * PAGE..][..PAGE];
        let changed: Vec<usize> = (0..bytes.len() / PAGE).filter(|page| differs(*page)).collect();
        if read_only {
            assert!(changed.is_empty(), "pages {changed:?}");
        } else {
            // Superblocks say that it was open.
            assert!(changed.iter().all(|page| *page < 2), "pages {changed:?}");
        }
    }
}

#[test]
fn a_page_that_rotted_is_found_by_the_audit() {
    let (path, store, region) = new_region(&options());
    region.alloc_pages(3).unwrap();
    let contents: BTreeMap<u64, Vec<u8>> = (0..3).map(|page| (page, pattern(PAGE, page))).collect();
    for (page, bytes) in &contents {
        region.write_page(*page, bytes[..].try_into().unwrap()).unwrap();
    }
    region.pmsync().unwrap();
    drop(region);
    store.close().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let at = bytes.chunks(PAGE).position(|page| page == contents[&1]).unwrap() * PAGE;
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.write_all_at(&[!bytes[at + 77]], at as u64 + 77).unwrap();
    drop(file);
    let store = options().open(&path).unwrap();
    let audit = store.audit().unwrap();
    assert_eq!((audit.verified_pages, audit.findings.len()), (2, 1), "{audit:?}");
    assert!(audit.findings[0].contains("page 1 of region \"r\""), "{audit:?}");
}
