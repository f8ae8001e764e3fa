//! What becomes of a shared region when the store behind it fails, or somebody else gets hold of it.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::ipc::memory::tests::{Held, await_change};
use crate::storage::PageCache;
use crate::sys::ring::FAIL;

#[test]
fn nothing_is_committed_or_rolled_back_after_a_failed_flush() {
    let child = |test: &Stage, _| {
        let region = share(&test.dir.join("store"));
        assert_eq!(region.alloc_pages(2).unwrap(), 0);
        let words = [0, 1].map(|page| word(&region, page));
        words.iter().for_each(|word| word.store(1, SeqCst));
        assert_eq!(region.pmsync().unwrap(), 1);
        words.iter().for_each(|word| word.store(2, SeqCst));
        FAIL.store(true, SeqCst);
        let first = region.pmsync().unwrap_err();
        assert!(matches!(first, Error::Io { .. }), "{first}");
        FAIL.store(false, SeqCst);
        let read = region.read_at(&mut [0; 8], 0);
        let calls = [region.rollback(), region.pmsync().map(drop), read, region.free_page(0)];
        calls.into_iter().for_each(|call| is_poisoned(call, ""));
        assert_eq!(words.map(|word| word.load(SeqCst)), [2, 2]);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let path = make(&test.dir);
        test.start_unheard(0);
        test.succeeds(0);
        let found = committed(&path);
        assert!([1, 2].iter().any(|value| found == BTreeMap::from([(0, *value), (1, *value)])), "{found:?}");
    });
}

/// Shares the region; the process opens the store, to serve, only when the flag is set.
fn share_held(path: &Path) -> (SharedRegion, Arc<AtomicBool>) {
    let go = Arc::new(AtomicBool::new(false));
    let held = |opener| -> Arc<dyn Opener> { Arc::new(Held(opener, Arc::clone(&go))) };
    (RegionMapOptions::new().shared_region(path, "r", false, held).unwrap(), go)
}

/// A child that shares the region, does `commits`, stores, and waits to be killed, or to die in the next commit,
/// before the store has any of it.
fn serve(test: &Stage, commits: u64) {
    let region = share(&test.dir.join("store"));
    region.alloc_pages(2).unwrap();
    for commit in 1..=commits {
        word(&region, 0).store(commit, SeqCst);
        assert_eq!(region.pmsync().unwrap(), commit);
    }
    word(&region, 1).store(7, SeqCst);
    test.say(READY);
    test.hear(GO);
    DIE_AT.store(Point::Committing as u32, SeqCst);
    let number = region.pmsync();
    unreachable!("it survived commit {number:?}");
}

/// The dead process had a commit under way, so one of its number is what the next one may find: but not that of
/// somebody else, nor another region of the name, nor the last commit after somebody had the store.
#[test]
fn outside_commits_are_not_mixed_with_unserved_stores() {
    let child = |test: &Stage, commits| serve(test, commits as u64);
    let cases = [(false, 0), (false, 1), (false, 2), (true, 0)];
    with_processes_for(this_test!(), memory_dir, cases, child, |test, (replaced, commits)| {
        let path = make(&test.dir);
        test.start(usize::from(!replaced), READY);
        let (region, go) = share_held(&path);
        word(&region, 1).store(8, SeqCst);
        test.say(GO);
        test.is_killed(0);
        let store = StoreOptions::new().open_on(PageCache::new(), &path).unwrap();
        if replaced {
            store.delete_region("r").unwrap();
            store.create_region_of("r", PAGES).unwrap();
        }
        for commit in 0..commits {
            let other = store.open_region("r").unwrap();
            other.write_at(&99_u64.to_le_bytes(), 0).unwrap();
            assert_eq!(other.pmsync().unwrap(), 2 + commit);
        }
        store.close().unwrap();
        go.store(true, SeqCst);
        is_poisoned(region.pmsync(), "another process opened it for writing");
        drop(region);
        let first = if commits == 0 { 1 } else { 99 };
        let found = if replaced { BTreeMap::new() } else { BTreeMap::from([(0, first), (1, 0)]) };
        assert_eq!(committed(&path), found);
    });
}

#[test]
fn one_region_of_a_store_is_shared_at_a_time() {
    let child = |test: &Stage, which| {
        if which == 0 {
            return serve(test, 1);
        }
        // While another process serves, and while nobody does.
        let error = RegionStore::open(test.dir.join("store")).unwrap_err();
        assert!(matches!(&error, Error::InUse { holder, .. } if holder.contains("shares a region")), "{error}");
        let error = SharedRegion::open(test.dir.join("store"), "other").unwrap_err();
        std::fs::write(test.dir.join("said"), error.to_string()).unwrap();
    };
    with_processes(this_test!(), memory_dir, child, |test| {
        let (path, said) = (make(&test.dir), test.dir.join("said"));
        test.start(0, READY);
        let (region, go) = share_held(&path);
        test.start_unheard(1);
        test.succeeds(1);
        let refused = std::fs::read_to_string(&said).unwrap();
        assert!(refused.contains("processes share region \"r\""), "{refused}");
        word(&region, 0).store(5, SeqCst);
        test.kill(0);
        // The store is open nowhere now, until this process may open it. Its asking takes no lock of its own away.
        for options in [StoreOptions::new(), StoreOptions::new().read_only(true)] {
            let error = options.open(&path).unwrap_err();
            let is_here = |holder: &str| holder.contains("this process, which shares");
            assert!(matches!(&error, Error::InUse { holder, .. } if is_here(holder)), "{error}");
        }
        std::fs::remove_file(&said).unwrap();
        test.start_unheard(1);
        while !said.exists() && !test.has_ended(2) {
            std::thread::sleep(Duration::from_millis(1));
        }
        go.store(true, SeqCst);
        test.succeeds(2);
        assert!(region.pmsync().unwrap() == 2 && region.is_owner());
        region.close().unwrap();
        assert_eq!(committed(&path), BTreeMap::from([(0, 5), (1, 7)]));
    });
}

/// The store whose commits wait, and whether one does.
static HELD: Mutex<Option<(PathBuf, bool)>> = Mutex::new(None);

/// Whether a commit of a store is to go on waiting.
fn is_held(store: &Path) -> bool {
    let mut held = HELD.lock().unwrap();
    let waits = held.as_mut().filter(|(path, _)| path == store).map(|(_, waits)| *waits = true);
    waits.is_some()
}

/// Reached in the middle of a commit, when the engine has its locks.
pub(in super::super) fn hold(store: &Path) {
    await_change("no page that nobody had loaded waits for a commit", || !is_held(store));
}

#[test]
fn a_page_that_nobody_has_loaded_does_not_wait_for_a_commit() {
    let Some((_dir, path)) = made() else { return };
    let path = path.canonicalize().unwrap();
    let region = share(&path);
    region.alloc_at(0, PAGES).unwrap();
    // Only some have contents in the store.
    (0..60).for_each(|page| word(&region, page).store(100 + page, SeqCst));
    region.pmsync().unwrap();
    region.close().unwrap();
    let region = share(&path);
    word(&region, 0).store(7, SeqCst);
    region.free_page(50).unwrap();
    std::thread::scope(|scope| {
        *HELD.lock().unwrap() = Some((path.clone(), false));
        let commit = scope.spawn(|| region.pmsync());
        while HELD.lock().unwrap().as_ref().is_some_and(|(_, waits)| !waits) {
            std::thread::yield_now();
        }
        // Far enough apart that each is filled by itself, one of them with the page that was freed beside it.
        let loaded = [20, 59, 76].map(|page| word(&region, page).load(SeqCst));
        *HELD.lock().unwrap() = None;
        assert_eq!(loaded, [120, 159, 0]);
        assert_eq!(commit.join().unwrap().unwrap(), 2);
    });
    assert_eq!(region.alloc_page().unwrap(), 50);
    assert_eq!(word(&region, 50).load(SeqCst), 0, "a page came back with what was on it");
    word(&region, 20).store(8, SeqCst);
    assert_eq!(region.pmsync().unwrap(), 3);
    // Where the store has them now.
    region.close().unwrap();
    let mut expected: BTreeMap<u64, u64> =
        (0..PAGES).map(|page| (page, if page < 60 { 100 + page } else { 0 })).collect();
    expected.extend([(0, 7), (20, 8), (50, 0)]);
    assert_eq!(committed(&path), expected);
}

thread_local! {
    /// What this thread does when it has claimed pages and not cleared them.
    static WHEN_CLAIMED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

pub(in super::super) fn when_claimed() {
    if let Some(act) = WHEN_CLAIMED.take() {
        act();
    }
}

#[test]
fn nothing_is_rolled_back_in_the_middle_of_an_allocation() {
    let Some((_dir, path)) = made() else { return };
    let region = Arc::new(share(&path));
    assert_eq!(region.alloc_page().unwrap(), 0);
    word(&region, 0).store(1, SeqCst);
    region.pmsync().unwrap();
    let said = Arc::new(std::sync::Mutex::new(String::new()));
    let (within, heard) = (Arc::clone(&region), Arc::clone(&said));
    WHEN_CLAIMED.set(Some(Box::new(move || {
        // It waits for the thread that waits for it, until it gives up.
        let refused = within.rollback().expect_err("it took a claimed page back");
        *heard.lock().unwrap() = refused.to_string();
    })));
    assert_eq!(region.alloc_page().unwrap(), 1);
    assert!(said.lock().unwrap().contains("does not finish a store"), "{said:?}");
    word(&region, 1).store(2, SeqCst);
    assert_eq!(region.pmsync().unwrap(), 2);
    region.free_page(0).unwrap();
    region.rollback().unwrap();
    assert_eq!(region.pages().unwrap(), [0, 1]);
    Arc::into_inner(region).unwrap().close().unwrap();
    assert_eq!(committed(&path), BTreeMap::from([(0, 1), (1, 2)]));
}

#[test]
fn a_page_filled_unrecorded_is_zeros_when_allocated() {
    let child = |test: &Stage, _| {
        let region = share(&test.dir.join("store"));
        assert_eq!(region.pages().unwrap(), [0]);
        test.say(READY);
        test.hear(GO);
        DIE_AT.store(Point::Filled as u32, SeqCst);
        let found = word(&region, 0).load(SeqCst);
        unreachable!("it survived, and found {found}");
    };
    with_processes(this_test!(), memory_dir, child, |test| {
        let path = make(&test.dir);
        let region = share(&path);
        assert_eq!(region.alloc_page().unwrap(), 0);
        word(&region, 0).store(7, SeqCst);
        region.pmsync().unwrap();
        region.close().unwrap();
        test.start(0, READY);
        let region = share(&path);
        test.say(GO);
        test.is_killed(0);
        region.free_page(0).unwrap();
        assert_eq!(region.pmsync().unwrap(), 2);
        assert_eq!(region.alloc_page().unwrap(), 0);
        assert_eq!(word(&region, 0).load(SeqCst), 0, "a page came back with what was on it");
        region.pmsync().unwrap();
        region.close().unwrap();
        assert_eq!(committed(&path), BTreeMap::from([(0, 0)]));
    });
}

#[test]
fn a_lost_page_of_states_fails_every_call() {
    let Some((_dir, path)) = made() else { return };
    type Call = fn(&SharedRegion) -> Result<()>;
    let calls: [Call; 6] = [
        |region| region.alloc_page().map(drop),
        |region| region.alloc_at(3, 1),
        |region| region.free_page(0),
        |region| region.is_allocated(0).map(drop),
        |region| region.pages().map(drop),
        |region| region.words(0, 1).map(drop),
    ];
    for call in calls {
        let region = share(&path);
        region.copy.lose(PAGES);
        for _ in 0..2 {
            let error = call(&region).unwrap_err();
            assert!(error.is_page_lost() || matches!(error, Error::Poisoned { .. }), "{error}");
        }
        assert!(region.pmsync().is_err());
    }
    assert_eq!(committed(&path), BTreeMap::new());
}
