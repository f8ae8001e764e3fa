//! A process that dies at a given point, and what another one finds.

use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::super::{PAGE, SharedMemory};
use super::{Children, DIE_AT, EXCHANGES, HALT, Point, child_of, notes, open, patience, spawn, unavailable, words};
use crate::ipc::message::Kind;

const PAGES: usize = 256;

// Words of the notes.
const READY: usize = 8;
const GO: usize = 9;
const HEIR: usize = 10;
const JOINED: usize = 11;
const STOP: usize = 12;

fn word(copy: &SharedMemory, page: usize) -> &std::sync::atomic::AtomicU64 {
    &copy.words(page * PAGE, 1)[0]
}

fn await_word(notes: &crate::sys::shared::SharedPages, index: usize) {
    while words(notes)[index].load(SeqCst) == 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// A page that the survivor stored to and nobody committed.
const SURVIVORS: usize = 100;
/// A page that nobody has looked at before.
const FRESH: usize = 200;

/// The child: serves, and dies in the middle of a second round.
fn die(dir: &Path, point: Point) {
    let (copy, notes) = (open(dir, PAGES), notes(dir));
    (0..8).for_each(|page| word(&copy, page).store(1, SeqCst));
    copy.commit().unwrap();
    assert!(copy.is_owner());
    words(&notes)[READY].store(1, SeqCst);
    await_word(&notes, GO);
    DIE_AT.store(point as u32, SeqCst);
    (0..8).for_each(|page| word(&copy, page).store(2, SeqCst));
    word(&copy, FRESH).load(SeqCst);
    let _ = if point == Point::RollingBack { copy.roll_back() } else { copy.commit() };
    unreachable!("it outlived {point:?}");
}

fn image(dir: &Path, page: usize) -> u64 {
    let bytes = std::fs::read(dir.join("image")).unwrap();
    u64::from_le_bytes(bytes[page * PAGE..page * PAGE + 8].try_into().unwrap())
}

fn survive(test: &str, point: Point) {
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(test) {
        return die(&dir, point);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut child = spawn("crash_points", test, dir.path(), 0, None);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    assert!(!copy.is_owner());
    let before = copy.last_commit();
    assert_eq!((before, word(&copy, 7).load(SeqCst)), (1, 1));
    word(&copy, SURVIVORS).store(7, SeqCst);
    words(&notes)[GO].store(1, SeqCst);
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9), "not killed");

    // Nothing stands still: a store to a page of the dead process's cut, the load of a page never seen, a commit.
    let since = Instant::now();
    let rolled_back = point == Point::RollingBack;
    let expected = |page: usize| if page < 8 && rolled_back { 1 } else { word(&copy, page).load(SeqCst) };
    if !rolled_back {
        word(&copy, 3).store(9, SeqCst);
    }
    assert_eq!(word(&copy, FRESH + 20).load(SeqCst), 0);
    let number = copy.commit().unwrap();
    assert!(since.elapsed() < patience(), "it took {:?}", since.elapsed());
    assert!(copy.is_owner());
    // What the survivor stored, or the rolling back took away, is what is committed.
    assert_eq!(number, if rolled_back { 1 } else { number.max(2) });
    for page in (0..8).chain([SURVIVORS]) {
        let expected = if page == SURVIVORS && rolled_back { 0 } else { expected(page) };
        assert_eq!((page, word(&copy, page).load(SeqCst), image(dir.path(), page)), (page, expected, expected));
    }
    if point as u32 > Point::Filled as u32 && !rolled_back {
        assert_eq!(image(dir.path(), 7), 2, "the dead process had stored it before its commit");
    }
    // And every page is protected as before: what is stored now is noticed.
    for round in 10..13 {
        (0..8).chain([SURVIVORS, FRESH]).for_each(|page| word(&copy, page).store(round, SeqCst));
        copy.commit().unwrap();
        (0..8).chain([SURVIVORS, FRESH]).for_each(|page| assert_eq!((page, image(dir.path(), page)), (page, round)));
    }
    // A third process may come.
    let mut third = spawn("crash_points", "a_third_process", dir.path(), 0, None);
    assert!(third.wait().unwrap().success());
    assert_eq!(word(&copy, 5).load(SeqCst), 55);
    assert_eq!(image(dir.path(), 5), 55);
    copy.leave().unwrap();
}

/// In the middle of making it longer: what the file has is what all see, and its new pages are protected in all.
#[test]
fn a_death_amid_a_growth_leaves_one_length_for_all() {
    const TEST: &str = "a_death_amid_a_growth_leaves_one_length_for_all";
    if unavailable() {
        return;
    }
    const LONGER: u64 = ((PAGES + 9) * PAGE + 10) as u64;
    if let Some((dir, point)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        words(&notes)[READY].store(1, SeqCst);
        await_word(&notes, GO);
        DIE_AT.store(point as u32, SeqCst);
        let _ = copy.grow(LONGER);
        unreachable!("it survived");
    }
    for (point, len) in [(Point::Committing, (PAGES * PAGE) as u64), (Point::Committed, LONGER)] {
        let dir = tempfile::tempdir().unwrap();
        let notes = notes(dir.path());
        let mut child = spawn("crash_points", TEST, dir.path(), point as usize, None);
        await_word(&notes, READY);
        let copy = open(dir.path(), PAGES);
        words(&notes)[GO].store(1, SeqCst);
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&child.wait().unwrap()), Some(9), "not killed");
        word(&copy, 0).store(1, SeqCst);
        let first = copy.commit().unwrap();
        assert_eq!((copy.len(), copy.is_owner()), (len, true), "{point:?}");
        copy.grow(LONGER).unwrap();
        for round in 1..3 {
            let before = copy.commit().unwrap();
            assert!(before >= first);
            (PAGES..PAGES + 10).for_each(|page| word(&copy, page).store(round, SeqCst));
            assert_eq!(copy.commit().unwrap(), before + 1, "{point:?}: a store went unnoticed");
            (PAGES..PAGES + 10).for_each(|page| assert_eq!((page, image(dir.path(), page)), (page, round)));
        }
        copy.leave().unwrap();
    }
}

/// While a thread is about to ask for a rollback: it is done once, whoever sends it to the next server, for what is
/// stored after it is not to be taken back.
#[test]
fn a_rollback_requested_at_a_death_is_done_once() {
    const TEST: &str = "a_rollback_requested_at_a_death_is_done_once";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        word(&copy, 0).store(1, SeqCst);
        copy.commit().unwrap();
        words(&notes)[READY].store(1, SeqCst);
        return await_word(&notes, STOP);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut children = Children(vec![spawn("crash_points", TEST, dir.path(), 0, None)]);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    word(&copy, 0).store(2, SeqCst);
    let ((halted, is_halted), (go, may_go)) = (channel(), channel());
    let number = thread::scope(|scope| {
        let asking = scope.spawn(|| {
            HALT.set(Some((Kind::RollBack, halted, may_go)));
            copy.roll_back().unwrap();
            word(&copy, 0).store(3, SeqCst);
            copy.commit().unwrap()
        });
        is_halted.recv().unwrap();
        let before = EXCHANGES.load(SeqCst);
        children.0[0].kill().unwrap();
        children.0[0].wait().unwrap();
        while !copy.is_owner() || EXCHANGES.load(SeqCst) == before {
            thread::sleep(Duration::from_millis(1));
        }
        // As long as somebody else who sent it would need.
        let since = Instant::now();
        while copy.member.control.dirty().get(0) && since.elapsed() < Duration::from_millis(200) {
            thread::sleep(Duration::from_millis(1));
        }
        go.send(()).unwrap();
        asking.join().unwrap()
    });
    assert_eq!(
        (word(&copy, 0).load(SeqCst), image(dir.path(), 0)),
        (3, 3),
        "a commit was acknowledged without its store"
    );
    assert_eq!(number, 2);
    copy.leave().unwrap();
}

/// A process forked from the one that serves has its sockets too, so that their other ends do not see it end.
#[test]
fn a_death_is_noticed_though_a_child_holds_the_sockets() {
    const TEST: &str = "a_death_is_noticed_though_a_child_holds_the_sockets";
    if unavailable() {
        return;
    }
    if let Some((dir, me)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        if me == 1 {
            // Another one that has to come back before there can be a commit.
            words(&notes)[JOINED].store(1, SeqCst);
            await_word(&notes, STOP);
            return;
        }
        word(&copy, 0).store(1, SeqCst);
        copy.commit().unwrap();
        words(&notes)[READY].store(1, SeqCst);
        await_word(&notes, GO);
        let mut takeover_check = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        words(&notes)[HEIR].store(takeover_check.id().into(), SeqCst);
        DIE_AT.store(Point::Protected as u32, SeqCst);
        word(&copy, 0).store(2, SeqCst);
        copy.commit().unwrap();
        takeover_check.wait().unwrap();
        unreachable!("it survived");
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut child = spawn("crash_points", TEST, dir.path(), 0, Some(super::Bug::TakeoverCheck));
    await_word(&notes, READY);
    let mut sibling = spawn("crash_points", TEST, dir.path(), 1, None);
    await_word(&notes, JOINED);
    let copy = open(dir.path(), PAGES);
    words(&notes)[GO].store(1, SeqCst);
    child.wait().unwrap();
    let since = Instant::now();
    word(&copy, 0).store(3, SeqCst);
    let number = copy.commit().unwrap();
    let took = since.elapsed();
    words(&notes)[STOP].store(1, SeqCst);
    assert!(sibling.wait().unwrap().success());
    let takeover_check = words(&notes)[HEIR].load(SeqCst);
    let sockets = std::fs::read_dir(format!("/proc/{takeover_check}/fd"))
        .unwrap()
        .filter_map(|fd| fd.unwrap().path().read_link().ok());
    assert!(sockets.filter(|link| link.to_string_lossy().starts_with("socket:")).count() >= 2, "it inherited none");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(i32::try_from(takeover_check).unwrap()).unwrap(),
        rustix::process::Signal::KILL,
    )
    .unwrap();
    assert_eq!((number, image(dir.path(), 0)), (2, 3));
    assert!(took < patience(), "it took {took:?}");
}

#[test]
fn a_third_process() {
    let Some((dir, _)) = child_of("a_third_process") else { return };
    let copy = open(&dir, PAGES);
    assert!(!copy.is_owner());
    assert_eq!(word(&copy, 7).load(SeqCst), 12);
    word(&copy, 5).store(55, SeqCst);
    copy.commit().unwrap();
}

macro_rules! deaths {
    ($($name:ident: $point:ident;)+) => {
        $(#[test]
        fn $name() {
            survive(stringify!($name), Point::$point);
        })+
    };
}

deaths! {
    a_death_in_the_gate_is_survived: Entered;
    a_death_with_a_dirty_page_still_protected_is_survived: Dirty;
    a_death_with_a_page_just_writable_is_survived: Opened;
    a_death_with_a_page_filled_unrecorded_is_survived: Filled;
    a_death_with_the_gate_closed_is_survived: GateClosed;
    a_death_with_all_pages_protected_is_survived: Protected;
    a_death_while_copying_is_survived: Copying;
    a_death_before_the_backing_commits_is_survived: Committing;
    a_death_after_the_backing_has_committed_is_survived: Committed;
    a_death_while_rolling_back_is_survived: RollingBack;
}
