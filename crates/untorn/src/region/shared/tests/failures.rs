//! What becomes of a shared region when the store behind it fails, or somebody else gets hold of it.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use super::super::backing::Committed;
use super::*;
use crate::ipc::memory::{Backing, Before};
use crate::storage::PageCache;
use crate::sys::ring::FAIL;

const MODULE: &str = "region::shared::tests::failures";

#[test]
fn nothing_is_committed_or_rolled_back_after_a_failed_flush() {
    const TEST: &str = "nothing_is_committed_or_rolled_back_after_a_failed_flush";
    if let Some((dir, _)) = child_of(TEST) {
        let region = share(&dir.join("store"));
        assert_eq!(region.alloc_pages(2).unwrap(), 0);
        (0..2).for_each(|page| word(&region, page).store(1, SeqCst));
        assert_eq!(region.pmsync().unwrap(), 1);
        let words = [0, 1].map(|page| word(&region, page));
        words.iter().for_each(|word| word.store(2, SeqCst));
        FAIL.store(true, SeqCst);
        let first = region.pmsync().unwrap_err();
        assert!(matches!(first, Error::Io { .. }), "{first}");
        FAIL.store(false, SeqCst);
        let read = region.read_at(&mut [0; 8], 0);
        for refused in [region.rollback().err(), region.pmsync().err(), read.err(), region.free_page(0).err()] {
            assert!(matches!(refused, Some(Error::Poisoned { .. })), "{refused:?}");
        }
        assert_eq!(words.map(|word| word.load(SeqCst)), [2, 2]);
        return;
    }
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = make(dir.path());
    assert!(command_in(MODULE, TEST, dir.path(), 0, None).status().unwrap().success());
    let found = committed(&path);
    assert!([1, 2].iter().any(|value| found == BTreeMap::from([(0, *value), (1, *value)])), "{found:?}");
}

/// Opens the store for who serves next only when the test says so.
struct Held(Committed, Arc<AtomicBool>);

impl Opener for Held {
    fn open(&self, before: Option<&Before>) -> Result<Box<dyn Backing>> {
        await_flag(&self.1);
        self.0.open(before)
    }
    fn part(&self) -> String {
        self.0.part()
    }
}

/// Shares the region; this process may serve it once the flag is set.
fn share_held(path: &Path) -> (SharedRegion, Arc<AtomicBool>) {
    let go = Arc::new(AtomicBool::new(false));
    let held = |opener| -> Arc<dyn Opener> { Arc::new(Held(opener, Arc::clone(&go))) };
    (RegionMapOptions::new().shared_region(path, "r", false, held).unwrap(), go)
}

/// A child that shares the region, does `commits`, stores, and waits to be killed, or to die in the next commit,
/// before the store has any of it.
fn serve(dir: &Path, commits: u64) {
    let (region, notes) = (share(&dir.join("store")), notes(dir));
    region.alloc_pages(2).unwrap();
    for commit in 1..=commits {
        word(&region, 0).store(commit, SeqCst);
        assert_eq!(region.pmsync().unwrap(), commit);
    }
    word(&region, 1).store(7, SeqCst);
    words(&notes)[READY].store(1, SeqCst);
    await_word(&notes, GO);
    DIE_AT.store(Point::Committing as u32, SeqCst);
    let number = region.pmsync();
    unreachable!("it survived commit {number:?}");
}

/// The dead process had a commit under way, so one of its number is what the next one may find: but not that of
/// somebody else, nor another region of the name, nor the last commit after somebody had the store.
#[test]
fn outside_commits_are_not_mixed_with_unserved_stores() {
    const TEST: &str = "outside_commits_are_not_mixed_with_unserved_stores";
    if let Some((dir, commits)) = child_of(TEST) {
        return serve(&dir, commits as u64);
    }
    for (replaced, commits) in [(false, 0), (false, 1), (false, 2), (true, 0)] {
        let Some((dir, path)) = site() else { return };
        let notes = notes(dir.path());
        let made = usize::from(!replaced);
        let mut child = start(MODULE, TEST, dir.path(), made);
        await_word(&notes, READY);
        let (region, go) = share_held(&path);
        word(&region, 1).store(8, SeqCst);
        words(&notes)[GO].store(1, SeqCst);
        await_kill(&mut child);
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
        let error = region.pmsync().unwrap_err();
        assert!(
            matches!(&error, Error::Poisoned { cause, .. } if cause.contains("another process opened it for writing")),
            "{error}"
        );
        drop(region);
        let first = if commits == 0 { 1 } else { 99 };
        let found = if replaced { BTreeMap::new() } else { BTreeMap::from([(0, first), (1, 0)]) };
        assert_eq!(committed(&path), found);
    }
}

#[test]
fn one_region_of_a_store_is_shared_at_a_time() {
    const TEST: &str = "one_region_of_a_store_is_shared_at_a_time";
    if let Some((dir, which)) = child_of(TEST) {
        if which == 0 {
            return serve(&dir, 1);
        }
        // While another process serves, and while nobody does.
        let error = RegionStore::open(dir.join("store")).unwrap_err();
        assert!(matches!(&error, Error::InUse { holder, .. } if holder.contains("shares a region")), "{error}");
        let error = SharedRegion::open(dir.join("store"), "other").unwrap_err();
        return std::fs::write(dir.join("said"), error.to_string()).unwrap();
    }
    let Some((dir, path)) = site() else { return };
    let notes = notes(dir.path());
    let start = |which| command_in(MODULE, TEST, dir.path(), which, None).spawn().unwrap();
    let mut children = Children(vec![start(0)]);
    await_word(&notes, READY);
    let (region, go) = share_held(&path);
    children.0.push(start(1));
    assert!(children.0[1].wait().unwrap().success());
    let said = std::fs::read_to_string(dir.path().join("said")).unwrap();
    assert!(said.contains("processes share region \"r\""), "{said}");
    word(&region, 0).store(5, SeqCst);
    children.0[0].kill().unwrap();
    children.0[0].wait().unwrap();
    // The store is open nowhere now, until this process may open it. Its asking takes no lock of its own away.
    for options in [StoreOptions::new(), StoreOptions::new().read_only(true)] {
        let error = options.open(&path).unwrap_err();
        assert!(
            matches!(&error, Error::InUse { holder, .. } if holder.contains("this process, which shares")),
            "{error}"
        );
    }
    std::fs::remove_file(dir.path().join("said")).unwrap();
    children.0[1] = start(1);
    while std::fs::metadata(dir.path().join("said")).is_err() && children.0[1].try_wait().unwrap().is_none() {
        std::thread::sleep(Duration::from_millis(1));
    }
    go.store(true, SeqCst);
    assert!(children.0[1].wait().unwrap().success());
    assert!(region.pmsync().unwrap() == 2 && region.is_owner());
    region.close().unwrap();
    assert_eq!(committed(&path), BTreeMap::from([(0, 5), (1, 7)]));
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
    let since = Instant::now();
    while is_held(store) {
        assert!(since.elapsed() < Duration::from_secs(120), "a page that nobody had loaded waits for a commit");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_page_that_nobody_has_loaded_does_not_wait_for_a_commit() {
    let Some((_dir, path)) = site() else { return };
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
    let Some((_dir, path)) = site() else { return };
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
    const TEST: &str = "a_page_filled_unrecorded_is_zeros_when_allocated";
    if let Some((dir, _)) = child_of(TEST) {
        let (region, notes) = (share(&dir.join("store")), notes(&dir));
        assert_eq!(region.pages().unwrap(), [0]);
        words(&notes)[READY].store(1, SeqCst);
        await_word(&notes, GO);
        DIE_AT.store(Point::Filled as u32, SeqCst);
        let found = word(&region, 0).load(SeqCst);
        unreachable!("it survived, and found {found}");
    }
    let Some((dir, path)) = site() else { return };
    let notes = notes(dir.path());
    let region = share(&path);
    assert_eq!(region.alloc_page().unwrap(), 0);
    word(&region, 0).store(7, SeqCst);
    region.pmsync().unwrap();
    region.close().unwrap();
    let mut child = start(MODULE, TEST, dir.path(), 0);
    await_word(&notes, READY);
    let region = share(&path);
    words(&notes)[GO].store(1, SeqCst);
    await_kill(&mut child);
    region.free_page(0).unwrap();
    assert_eq!(region.pmsync().unwrap(), 2);
    assert_eq!(region.alloc_page().unwrap(), 0);
    assert_eq!(word(&region, 0).load(SeqCst), 0, "a page came back with what was on it");
    region.pmsync().unwrap();
    region.close().unwrap();
    assert_eq!(committed(&path), BTreeMap::from([(0, 0)]));
}

#[test]
fn a_lost_page_of_states_fails_every_call() {
    let Some((_dir, path)) = site() else { return };
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
