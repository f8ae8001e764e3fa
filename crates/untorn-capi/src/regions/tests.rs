//! Several threads at the regions of one process.

use std::collections::BTreeSet;
use std::ptr;
use std::sync::atomic::AtomicU64;

use super::*;

fn none_open() -> Regions {
    Regions::default()
}

/// Opens a region that is shared, or says why this machine has none.
fn share(regions: &Regions, store: &Path, name: &str) -> Option<c_int> {
    match regions.open(store, name, libc::O_CREAT | REGION_SHARED) {
        Err(failure) if matches!(failure.errno(), libc::EPERM | libc::ENOSYS) => {
            untorn_testing::skipped!("{}", failure.message);
            None
        }
        opened => Some(opened.unwrap()),
    }
}

#[test]
fn a_region_that_a_call_left_in_the_middle_can_be_closed() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let regions = none_open();
    let rd = regions.open(&store, "r", libc::O_CREAT).unwrap();
    regions.alloc(rd).unwrap();
    let address = regions.map(ptr::null_mut(), rd, 0, PAGE, libc::MAP_SHARED).unwrap();
    let region = regions.region(rd).unwrap();
    let call = std::thread::spawn(move || {
        region.with(|memory| -> Result<()> {
            let Memory::Own(map) = memory else { panic!("it is shared") };
            let _turn = turn(map)?;
            panic!("as if untorn had a bug")
        })
    });
    assert!(call.join().is_err());
    assert_eq!(regions.sync(rd).unwrap_err().errno(), libc::EIO);
    regions.unmap(address).unwrap();
    regions.close(rd).unwrap();
    let rd = regions.open(&store, "r", 0).unwrap();
    assert_eq!(regions.alloc(rd).unwrap(), 0, "nothing was committed");
    regions.close(rd).unwrap();
}

/// The calls that must not block while another thread is inside a call on a region, as during a commit.
#[test]
fn a_call_blocks_only_its_region_and_never_a_shared_one() {
    let dir = tempfile::tempdir().unwrap();
    let regions = none_open();
    let path = |name: &str| dir.path().join(name);
    let first = regions.open(&path("store"), "first", libc::O_CREAT).unwrap();
    let second = regions.open(&path("store"), "second", libc::O_CREAT).unwrap();
    let shared = share(&regions, &path("shared"), "r");
    // The test holds these turns, so a call below that needs one of them would wait forever.
    let inside = [Some(first), shared].into_iter().flatten().map(|rd| regions.region(rd).unwrap());
    let inside: Vec<_> = inside.collect();
    let memories: Vec<_> = inside.iter().map(|region| region.memory.read().unwrap()).collect();
    let turns = memories.iter().filter_map(|memory| match memory.as_ref() {
        Some(Memory::Own(map)) => Some(turn(map).ok().unwrap()),
        _ => None,
    });
    let turns: Vec<_> = turns.collect();
    assert_eq!(turns.len(), 1);
    let use_it = |rd: c_int| {
        let page = regions.alloc(rd).unwrap() as i64;
        let address = regions.map(ptr::null_mut(), rd, page, PAGE, libc::MAP_SHARED).unwrap();
        assert_eq!(regions.free(rd, page).unwrap_err().errno(), libc::EBUSY);
        regions.sync(rd).unwrap();
        regions.unmap(address).unwrap();
        regions.free(rd, page).unwrap();
    };
    use_it(second);
    shared.into_iter().for_each(use_it);
    let third = regions.open(&path("store"), "third", libc::O_CREAT).unwrap();
    use_it(third);
    regions.close(third).unwrap();
    regions.delete(&path("store"), "third").unwrap();
    assert_eq!(regions.close(99).unwrap_err().errno(), libc::EBADF);
    drop(turns);
    drop(memories);
    [Some(first), Some(second), shared].into_iter().flatten().for_each(|rd| regions.close(rd).unwrap());
}

/// An unmapping that fails enters its mapping again, and at no instant before that can the region be closed.
#[test]
fn a_region_is_not_closed_while_an_unmapping_fails() {
    let dir = tempfile::tempdir().unwrap();
    let regions = none_open();
    let rd = regions.open(&dir.path().join("store"), "r", libc::O_CREAT).unwrap();
    regions.alloc(rd).unwrap();
    let address = regions.map(ptr::null_mut(), rd, 0, PAGE, libc::MAP_SHARED).unwrap().addr();
    let region = regions.region(rd).unwrap();
    // This makes the unmapping fail.
    region.with(|memory| memory.unpin(0, 1)).unwrap();
    let held = region.memory.write().unwrap();
    std::thread::scope(|scope| {
        let unmapping = scope.spawn(|| regions.unmap(ptr::without_provenance_mut(address)));
        while region.moving.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // The call that closes the region holds the table in the same way.
        let table = regions.table();
        drop(held);
        for _ in 0..100 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            assert!(table.has_mapped(&region), "it would be closed now, and then be mapped");
        }
        drop(table);
        assert_eq!(unmapping.join().unwrap().unwrap_err().errno(), libc::EINVAL);
    });
    assert_eq!(regions.close(rd).unwrap_err().errno(), libc::EBUSY);
    region.with(|memory| memory.pin(0, 1).map(drop)).unwrap();
    regions.unmap(ptr::without_provenance_mut(address)).unwrap();
    regions.close(rd).unwrap();
}

/// Threads that do everything at once to one region: each page has one owner, and a commit has what came before it.
/// No thread may store to a region of one process during a pmsync, so `syncs` says whether there are any meanwhile.
fn many_threads(regions: &Regions, rd: c_int, syncs: bool) {
    let (threads, rounds) = (4, 30);
    let work = |me: u64| {
        let mut kept = Vec::new();
        for round in 0..rounds {
            let page = regions.alloc(rd).unwrap() as i64;
            let address = regions.map(ptr::null_mut(), rd, page, PAGE, libc::MAP_SHARED).unwrap();
            // SAFETY: the page is mapped, and the word is one of its own for all who have it.
            let word = unsafe { AtomicU64::from_ptr(address.cast()) };
            assert_eq!(word.swap(me << 32 | round, Ordering::SeqCst), 0, "page {page} is another thread's");
            if syncs && round % 8 == me % 8 {
                regions.sync(rd).unwrap();
            }
            assert_eq!(word.load(Ordering::SeqCst), me << 32 | round);
            regions.unmap(address).unwrap();
            if round % 3 == 0 {
                regions.free(rd, page).unwrap();
            } else {
                kept.push(page);
            }
        }
        kept
    };
    let kept: Vec<i64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..=threads).map(|me| scope.spawn(move || work(me))).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let distinct: BTreeSet<i64> = kept.iter().copied().collect();
    assert_eq!((kept.len(), distinct.len()), (80, 80));
    regions.sync(rd).unwrap();
    regions.close(rd).unwrap();
}

#[test]
fn many_threads_use_a_region_at_once() {
    let (dir, regions) = (tempfile::tempdir().unwrap(), none_open());
    let (own, shared) = (dir.path().join("own"), dir.path().join("shared"));
    let rd = regions.open(&own, "r", libc::O_CREAT).unwrap();
    many_threads(&regions, rd, false);
    let mut stores = vec![own];
    if let Some(rd) = share(&regions, &shared, "r") {
        many_threads(&regions, rd, true);
        stores.push(shared);
    }
    for store in stores {
        let store = RegionStore::open(store).unwrap();
        assert_eq!(store.audit().unwrap().findings, Vec::<String>::new());
        assert_eq!(store.open_region("r").unwrap().pages().unwrap().len(), 80);
    }
}
