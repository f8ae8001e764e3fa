//! Regions as a program sees them: allocation and freeing, commits, rollback, sharing, and refusals.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::common::system::{Untouched, counting_in_mappings, first_untold, in_forked_child};
use crate::common::{ReadAt, alone, memory_dir, new_region, pattern, scratch, truncate};
use untorn::Error;
use untorn::options::Order;
use untorn::region::{Region, RegionStore, StoreOptions};

const PAGE: u64 = Region::PAGE;

fn page(seed: u64) -> [u8; 4096] {
    pattern(4096, seed).try_into().unwrap()
}

fn read(region: &Region, number: u64) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    region.read_page(number, &mut bytes).unwrap();
    bytes
}

fn small() -> StoreOptions {
    StoreOptions::new().max_regions(4).grow_by(16 * PAGE)
}

fn sound(store: &RegionStore) {
    let audit = store.audit().unwrap();
    assert_eq!(audit.findings, Vec::<String>::new());
    assert_eq!(audit.lost_pages, 0);
}

#[test]
fn commits_survive_a_close_and_a_drop() {
    let path = scratch("store");
    for order in [Order::OneFence, Order::TwoFence] {
        let options = small().order(order);
        let store = options.create(&path).unwrap();
        let region = store.create_region("r").unwrap();
        let first = region.alloc_pages(3).unwrap();
        assert_eq!(first, 0);
        region.alloc_at(1 << 30, 2).unwrap();
        region.write_page(1, &page(1)).unwrap();
        region.write_at(&page(2)[..100], (1 << 30) * PAGE + 4090).unwrap();
        assert_eq!(region.pmsync().unwrap(), 1);
        assert_eq!(region.pmsync().unwrap(), 1, "nothing changed");
        region.write_page(0, &page(3)).unwrap();
        drop((region, store));
        for clean in [true, false] {
            let store = options.open(&path).unwrap();
            assert_eq!(store.info().unwrap().recovered, clean, "the last one was left the other way");
            let region = store.open_region("r").unwrap();
            assert_eq!(region.pages().unwrap(), [0, 1, 2, 1 << 30, (1 << 30) + 1]);
            assert_eq!(read(&region, 0), [0; 4096]);
            assert_eq!(read(&region, 1), page(1));
            assert_eq!(region.bytes_at((1 << 30) * PAGE + 4090, 100), page(2)[..100]);
            sound(&store);
            drop(region);
            if clean {
                store.close().unwrap();
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn allocation_and_freeing_take_effect_at_pmsync() {
    let (_path, store, region) = new_region(&small());
    region.alloc_pages(4).unwrap();
    region.write_page(2, &page(2)).unwrap();
    region.pmsync().unwrap();

    region.free_page(2).unwrap();
    assert!(matches!(region.read_page(2, &mut [0; 4096]), Err(Error::Invalid { .. })));
    assert!(matches!(region.free_page(2), Err(Error::Invalid { .. })));
    assert_eq!(region.alloc_page().unwrap(), 4, "a freed page is not given out before the commit");
    assert!(matches!(region.alloc_at(2, 1), Err(Error::Invalid { .. })));
    assert_eq!(region.info().unwrap().pending, 2);
    region.rollback().unwrap();
    assert_eq!(read(&region, 2), page(2));
    assert_eq!(region.pages().unwrap(), [0, 1, 2, 3]);

    region.free_page(2).unwrap();
    region.pmsync().unwrap();
    assert_eq!(region.pages().unwrap(), [0, 1, 3]);
    assert_eq!(region.alloc_page().unwrap(), 2);
    assert_eq!(read(&region, 2), [0; 4096], "a page that is allocated again is empty");
    // One that was never committed can be freed and is free at once.
    region.free_page(2).unwrap();
    assert_eq!(region.alloc_page().unwrap(), 2);
    sound(&store);
}

#[test]
fn the_space_of_freed_pages_is_used_again() {
    let (path, store, region) = new_region(&small());
    region.alloc_pages(50).unwrap();
    for round in 0..100 {
        for number in 0..50 {
            region.write_page(number, &page(round + number)).unwrap();
        }
        region.pmsync().unwrap();
    }
    let len = store.info().unwrap().len;
    assert!(len < 200 * PAGE, "{len} bytes for 50 pages");
    drop(region);
    store.delete_region("r").unwrap();
    let free = store.info().unwrap().free_pages;
    assert_eq!(free, len / PAGE - 6, "all but superblocks and nodes");
    sound(&store);
    store.close().unwrap();
    assert_eq!(small().open(&path).unwrap().info().unwrap().free_pages, free);
}

#[test]
fn the_last_handle_of_a_region_drops_uncommitted_changes() {
    let (_path, store, one) = new_region(&small());
    let two = store.open_region("r").unwrap();
    one.alloc_page().unwrap();
    two.write_page(0, &page(5)).unwrap();
    drop(one);
    assert_eq!(read(&two, 0), page(5));
    drop(two);
    let again = store.open_region("r").unwrap();
    assert_eq!(again.pages().unwrap(), [0; 0]);
}

#[test]
fn threads_commit_regions_of_their_own_at_the_same_time() {
    let path = scratch("store");
    let store = small().create(&path).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let store = store.clone();
            scope.spawn(move || {
                let region = store.create_region(&format!("r{thread}")).unwrap();
                region.alloc_pages(20).unwrap();
                for round in 0..50 {
                    for number in 0..20 {
                        region.write_page(number, &page(thread << 32 | round << 8 | number)).unwrap();
                    }
                    region.pmsync().unwrap();
                }
            });
        }
    });
    sound(&store);
    drop(store);
    let store = small().open(&path).unwrap();
    for thread in 0..4_u64 {
        let region = store.open_region(&format!("r{thread}")).unwrap();
        for number in 0..20 {
            assert_eq!(read(&region, number), page(thread << 32 | 49 << 8 | number));
        }
    }
    sound(&store);
}

#[test]
fn a_store_is_usable_while_its_free_space_is_looked_for() {
    let path = scratch("store");
    let options = small().background_scan(false);
    let store = options.create(&path).unwrap();
    for name in ["one", "two"] {
        let region = store.create_region(name).unwrap();
        region.alloc_pages(300).unwrap();
        (0..300).for_each(|number| region.write_page(number, &page(number)).unwrap());
        region.pmsync().unwrap();
        (0..200).for_each(|number| region.free_page(number).unwrap());
        region.pmsync().unwrap();
    }
    drop(store);

    let store = options.open(&path).unwrap();
    let before = store.info().unwrap();
    assert!(before.scanning && before.recovered && before.free_pages == 0);
    let region = store.open_region("two").unwrap();
    region.write_page(250, &page(7)).unwrap();
    region.alloc_page().unwrap();
    region.write_page(0, &page(8)).unwrap();
    region.pmsync().unwrap();
    assert!(store.info().unwrap().scanning, "nobody has looked at the first region");
    assert!(store.info().unwrap().len > before.len, "what it needed was added to the file");
    let third = store.create_region("three").unwrap();
    third.alloc_page().unwrap();
    third.pmsync().unwrap();
    store.scan().unwrap();
    let info = store.info().unwrap();
    assert!(!info.scanning && info.free_pages >= 200, "{info:?}");
    let one = store.open_region("one").unwrap();
    for number in 200..300 {
        assert_eq!(read(&one, number), page(number));
    }
    assert_eq!((read(&region, 250), read(&region, 0)), (page(7), page(8)));
    sound(&store);
}

fn refused<T>(result: untorn::Result<T>, errno: i32) -> String {
    let Err(error) = result else { panic!("it was not refused") };
    assert_eq!(error.errno(), errno, "{error}");
    error.to_string()
}

const ENOENT: i32 = 2;
const EBUSY: i32 = 16;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENOSPC: i32 = 28;
const EFAULT: i32 = 14;
const EBADMSG: i32 = 74;
const EOPNOTSUPP: i32 = 95;

#[test]
fn names_and_numbers_that_make_no_sense_are_refused() {
    let path = scratch("store");
    refused(small().open(&path), ENOENT);
    refused(small().max_regions(0).create(&path), EINVAL);
    let store = small().create(&path).unwrap();
    refused(small().create(&path), EEXIST);
    for name in ["", "a\nb", &"x".repeat(256)] {
        refused(store.create_region(name), EINVAL);
    }
    for pages in [0, RegionStore::MAX_PAGES + 1] {
        refused(store.create_region_of("r", pages), EINVAL);
    }
    refused(store.open_region("r"), ENOENT);
    refused(store.delete_region("r"), ENOENT);
    let region = store.create_region_of("r", 300).unwrap();
    refused(store.create_region("r"), EEXIST);
    refused(region.alloc_at(300, 1), EINVAL);
    refused(region.alloc_at(u64::MAX, 2), EINVAL);
    refused(region.alloc_pages(301), EINVAL);
    refused(region.alloc_pages(0), EINVAL);
    assert_eq!(region.alloc_pages(300).unwrap(), 0);
    refused(region.alloc_page(), EINVAL);
    refused(region.read_page(300, &mut [0; 4096]), EFAULT);
    refused(region.read_page(u64::MAX, &mut [0; 4096]), EFAULT);
    refused(region.write_at(b"ab", 300 * PAGE - 1), EFAULT);
    for name in ["b", "c", &"y".repeat(255)] {
        store.create_region_of(name, RegionStore::MAX_PAGES).unwrap();
    }
    refused(store.create_region("e"), EINVAL);
    let names: Vec<String> = store.list().unwrap().into_iter().map(|region| region.name).collect();
    assert_eq!(names, ["b", "c", "r", &"y".repeat(255)]);
}

#[test]
fn the_highest_page_of_the_longest_region_works() {
    let path = scratch("store");
    let store = small().create(&path).unwrap();
    let region = store.create_region_of("r", RegionStore::MAX_PAGES).unwrap();
    let last = RegionStore::MAX_PAGES - 1;
    region.alloc_at(last, 1).unwrap();
    region.write_page(last, &page(9)).unwrap();
    region.pmsync().unwrap();
    drop((region, store));
    let region = small().open(&path).unwrap().open_region("r").unwrap();
    assert_eq!(region.pages().unwrap(), [last]);
    assert_eq!(read(&region, last), page(9));
}

#[test]
fn stores_and_regions_in_use_are_not_taken_away() {
    let path = scratch("store");
    let store = small().create(&path).unwrap();
    refused(small().open(&path), EBUSY);
    let region = store.create_region("r").unwrap();
    refused(store.delete_region("r"), EBUSY);
    refused(store.clone().close(), EBUSY);
    refused(store.close(), EBUSY);
    // The region keeps the store's file, and with it the lock.
    refused(small().open(&path), EBUSY);
    region.alloc_page().unwrap();
    region.pmsync().unwrap();
    drop(region);
    let store = small().open(&path).unwrap();
    store.delete_region("r").unwrap();
    assert_eq!(store.list().unwrap(), []);
}

/// Changes bytes of a superblock and makes its checksum right again.
fn forge(path: &Path, at: u64, bytes: &[u8]) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    for copy in 0..2 {
        let mut superblock = vec![0; 4096];
        file.read_exact_at(&mut superblock, copy * PAGE).unwrap();
        superblock[at as usize..][..bytes.len()].copy_from_slice(bytes);
        let check = twox_hash::XxHash3_64::oneshot(&superblock[..4088]);
        superblock[4088..].copy_from_slice(&check.to_le_bytes());
        file.write_all_at(&superblock, copy * PAGE).unwrap();
    }
}

#[test]
fn files_that_are_no_valid_store_are_refused() {
    let dir = memory_dir();
    let fresh = |name: &str| -> PathBuf {
        let path = dir.path().join(name);
        let store = small().create(&path).unwrap();
        let region = store.create_region("r").unwrap();
        region.alloc_page().unwrap();
        region.write_page(0, &page(1)).unwrap();
        region.pmsync().unwrap();
        drop(region);
        store.close().unwrap();
        path
    };
    let text = dir.path().join("text");
    std::fs::write(&text, pattern(20_000, 1)).unwrap();
    assert!(refused(small().open(&text), EBADMSG).contains("not a region store"));
    std::fs::write(&text, b"").unwrap();
    refused(small().open(&text), EBADMSG);

    let later = fresh("later");
    forge(&later, 8, &2_u32.to_le_bytes());
    assert!(refused(small().open(&later), EOPNOTSUPP).contains("version 2"));
    for (name, at) in [("incompat", 32), ("ro-compat", 24)] {
        let later = fresh(name);
        forge(&later, at, &1_u64.to_le_bytes());
        refused(small().open(&later), EOPNOTSUPP);
    }
    let compatible = fresh("compat");
    forge(&compatible, 16, &1_u64.to_le_bytes());
    small().open(&compatible).unwrap();

    let short = fresh("short");
    truncate(&short, 8 * PAGE as usize);
    assert!(refused(small().open(&short), EBADMSG).contains("was truncated"));
    // After a crash the store does not know its length, but its regions know their pages.
    let short = fresh("short-open");
    drop(small().open(&short).unwrap());
    truncate(&short, 8 * PAGE as usize);
    let store = small().open(&short).unwrap();
    refused(store.open_region("r"), EBADMSG);
    assert!(store.list().unwrap()[0].damage.is_some());
    store.delete_region("r").unwrap();
    refused(small().open(dir.path()), 21);
}

#[test]
fn a_full_disk_is_an_error_and_nothing_is_lost() {
    alone!(60, "a region on a full disk");
    let Some(disk) = crate::common::disk::SmallDisk::mount(crate::common::disk::Kind::Tmpfs, 2048) else { return };
    let path = disk.path("store");
    let store = small().create(&path).unwrap();
    let region = store.create_region("r").unwrap();
    region.alloc_pages(20).unwrap();
    (0..20).for_each(|number| region.write_page(number, &page(number)).unwrap());
    region.pmsync().unwrap();
    disk.fill(4);
    (0..20).for_each(|number| region.write_page(number, &page(100 + number)).unwrap());
    let free = store.info().unwrap().free_pages;
    refused(region.pmsync(), ENOSPC);
    assert_eq!(read(&region, 3), page(103), "what was not committed is still there");
    assert!(store.info().unwrap().free_pages >= free, "what the attempt took was given back");
    sound(&store);
    disk.empty();
    assert_eq!(region.pmsync().unwrap(), 2);
    disk.fill(2);
    // More than the pages that the last commit gave up, which have space.
    region.alloc_at(1 << 20, 40).unwrap();
    (0..40).for_each(|number| region.write_page((1 << 20) + number, &page(number)).unwrap());
    refused(region.pmsync(), ENOSPC);
    drop((region, store));
    disk.empty();
    let store = small().open(&path).unwrap();
    let region = store.open_region("r").unwrap();
    assert_eq!(region.pages().unwrap().len(), 20);
    (0..20).for_each(|number| assert_eq!(read(&region, number), page(100 + number)));
    sound(&store);
}

#[test]
fn a_store_that_may_grow_no_further_says_so() {
    let (path, store, region) = new_region(&small().max_len(40 * PAGE));
    region.alloc_pages(60).unwrap();
    (0..60).for_each(|number| region.write_page(number, &page(number)).unwrap());
    refused(region.pmsync(), ENOSPC);
    (0..50).for_each(|number| region.free_page(number).unwrap());
    region.pmsync().unwrap();
    assert_eq!(region.pages().unwrap().len(), 10);
    drop((region, store));
    refused(small().max_len(10 * PAGE).open(&path), EINVAL);
    small().max_len(40 * PAGE).open(&path).unwrap();
}

#[test]
fn a_forked_child_is_told_and_harms_nobody() {
    alone!(60, "a forked child");
    let (_path, store, region) = new_region(&small());
    region.alloc_pages(2).unwrap();
    region.pmsync().unwrap();
    region.write_page(1, &page(1)).unwrap();
    let child = in_forked_child(|| {
        let outcomes = [
            region.read_page(0, &mut [0; 4096]),
            region.write_page(0, &page(2)),
            region.alloc_page().map(drop),
            region.free_page(0),
            region.pmsync().map(drop),
            region.rollback(),
            region.pages().map(drop),
            region.info().map(drop),
            store.open_region("r").map(drop),
            store.create_region("s").map(drop),
            store.delete_region("r"),
            store.list().map(drop),
            store.info().map(drop),
            store.scan(),
            store.audit().map(drop),
        ];
        first_untold(&outcomes, None)
    });
    assert_eq!(child.wait(), Some(0), "the number of the call that did not say so");
    assert_eq!(region.pmsync().unwrap(), 2);
    assert_eq!(read(&region, 1), page(1));
    sound(&store);
}

#[test]
fn a_read_only_store_is_unchanged_and_shared_by_readers() {
    let (path, store, region) = new_region(&StoreOptions::new().max_regions(4));
    region.alloc_pages(3).unwrap();
    region.write_page(1, &[7; 4096]).unwrap();
    region.pmsync().unwrap();
    let read_only = || StoreOptions::new().read_only(true).open(&path);
    assert!(matches!(read_only().unwrap_err(), Error::InUse { .. }), "somebody may be writing");
    // As a crash leaves it.
    drop((region, store));
    let before = std::fs::read(&path).unwrap();
    let (one, other) = (read_only().unwrap(), read_only().unwrap());
    assert!(matches!(StoreOptions::new().open(&path).unwrap_err(), Error::InUse { .. }));
    for store in [&one, &other] {
        assert_eq!((store.list().unwrap()[0].pages, store.list().unwrap()[0].commit), (3, 1));
        store.scan().unwrap();
        assert!(store.audit().unwrap().findings.is_empty());
        let region = store.open_region("r").unwrap();
        let mut bytes = [0; 4096];
        region.read_page(1, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 4096]);
        let refusals = [
            region.alloc_page().map(drop),
            region.write_page(1, &[8; 4096]),
            region.free_page(1),
            region.map().map(drop),
            store.create_region("s").map(drop),
            store.delete_region("s"),
        ];
        for refusal in refusals {
            assert!(matches!(refusal, Err(Error::ReadOnly { .. })), "{refusal:?}");
        }
        assert_eq!(region.pmsync().unwrap_or(1), 1);
    }
    one.close().unwrap();
    drop(other);
    assert!(std::fs::read(&path).unwrap() == before);
    let store = StoreOptions::new().open(&path).unwrap();
    assert!(store.info().unwrap().recovered);
    store.close().unwrap();
}

#[test]
fn looking_at_a_store_and_opening_what_is_none_store_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let store = small().create(&path).unwrap();
    let region = store.create_region("one").unwrap();
    let number = region.alloc_page().unwrap();
    region.write_page(number, &page(1)).unwrap();
    region.pmsync().unwrap();
    drop(region);
    store.close().unwrap();
    let untouched = Untouched::watch(&[dir.path()]);
    let store = small().read_only(true).open(&path).unwrap();
    assert_eq!(read(&store.open_region("one").unwrap(), number), page(1));
    sound(&store);
    drop(store);
    untouched.check("a read-only open");
    // Any file may be named by mistake, such as that of a live program.
    let live = dir.path().join("live");
    std::fs::write(&live, vec![0; 16 * PAGE as usize]).unwrap();
    let lost = counting_in_mappings(&live, || {
        for _ in 0..untorn_testing::cases(100, 3000) {
            assert!(matches!(small().open(&live), Err(Error::Corrupt { .. })));
        }
    });
    assert_eq!(lost, 0, "stores of a live program were taken back");
}

#[test]
fn a_region_store_has_no_commit_log() {
    let path = scratch("store");
    small().create(&path).unwrap().close().unwrap();
    let error = untorn::Options::new().commit_log(1 << 20).open(&path).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }) && error.to_string().contains("has no commit log"), "{error}");
    let error = untorn::commits::CommitStream::open(&path, 0).unwrap_err();
    assert!(matches!(error, Error::CommitsMissing { oldest: None, .. }), "{error}");
    small().open(&path).unwrap().close().unwrap();
}
