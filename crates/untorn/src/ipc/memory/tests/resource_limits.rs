//! A process that cannot let another one in just now, and one that is not wanted any more.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{ABSTAINS, Children, PAGE, await_word, child_of, notes, open, spawn, unavailable, words};
use crate::error::Error;
use crate::ipc::membership::lock;
use crate::ipc::membership::tests::{ACCEPTS, SHORTAGES};
use crate::sys::socket;

const PAGES: usize = 100;

// Words of the notes.
const READY: usize = 8;
const GO: usize = 9;
const DONE: usize = 10;
const STOP: usize = 11;
const CUT_OFF: usize = 12;
const DEAD: usize = 13;

/// Of a process that has no descriptors left each attempt fails, so it makes one every ten milliseconds.
#[test]
fn a_join_that_is_refused_for_now_succeeds_later() {
    const TEST: &str = "a_join_that_is_refused_for_now_succeeds_later";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        copy.words(0, 1)[0].store(1, SeqCst);
        copy.commit().unwrap();
        let most = Rlimit { current: Some(100), ..getrlimit(Resource::Nofile) };
        setrlimit(Resource::Nofile, most).unwrap();
        let files: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(!files.is_empty());
        words(&notes)[READY].store(1, SeqCst);
        let since = Instant::now();
        let times = loop {
            let times = lock(&SHORTAGES).clone();
            if times.len() >= 5 {
                break times;
            }
            assert!(since.elapsed() < Duration::from_secs(120), "nobody tried to join");
            thread::sleep(Duration::from_millis(1));
        };
        let pauses: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(10)), "{pauses:?}");
        // Who takes part already is served.
        copy.words(0, 1)[0].store(2, SeqCst);
        copy.roll_back().unwrap();
        assert_eq!(copy.words(0, 1)[0].load(SeqCst), 1);
        drop(files);
        return await_word(&notes, STOP);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut child = spawn("resource_limits", TEST, dir.path(), 0, None);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    assert!(!copy.is_owner());
    assert_eq!(copy.words(0, 1)[0].load(SeqCst), 1);
    words(&notes)[STOP].store(1, SeqCst);
    assert!(child.wait().unwrap().success());
    copy.leave().unwrap();
}

/// One of which the others have given up the place: it may be wanted again for a second, and then its calls fail, for
/// ever.
#[test]
fn an_unwanted_process_gives_up_and_the_others_go_on() {
    const TEST: &str = "an_unwanted_process_gives_up_and_the_others_go_on";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        words(&notes)[READY].store(1, SeqCst);
        await_word(&notes, GO);
        copy.words(0, 1)[0].store(1, SeqCst);
        assert_eq!(copy.commit().unwrap(), 1);
        assert!(copy.is_owner());
        words(&notes)[DONE].store(1, SeqCst);
        return await_word(&notes, STOP);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut child = spawn("resource_limits", TEST, dir.path(), 0, None);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    let since = Instant::now();
    copy.member.control.set_attached(copy.member.rendezvous.slot(), false);
    socket::shut_down(copy.member.line.as_fd());
    for _ in 0..2 {
        let error = copy.commit().unwrap_err();
        assert!(
            matches!(&error, Error::Poisoned { cause, .. } if cause.contains("this process was evicted")),
            "{error}"
        );
    }
    assert!(since.elapsed() >= Duration::from_secs(1), "it gave up after {:?}", since.elapsed());
    words(&notes)[GO].store(1, SeqCst);
    await_word(&notes, DONE);
    // It may come again.
    drop(copy);
    let copy = open(dir.path(), PAGES);
    assert_eq!((copy.last_commit(), copy.words(0, 1)[0].load(SeqCst)), (1, 1));
    words(&notes)[STOP].store(1, SeqCst);
    assert!(child.wait().unwrap().success());
    copy.leave().unwrap();
}

/// One that touches memory beyond the end gets a page of its own there, behind which the pages of the others' memory
/// would stay unprotected.
#[test]
fn memory_is_not_grown_past_a_page_that_a_sharer_has_of_its_own() {
    const TEST: &str = "memory_is_not_grown_past_a_page_that_a_sharer_has_of_its_own";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        assert!(copy.load((PAGES + 3) * PAGE, &mut [0; 8]).is_err());
        assert!(copy.commit().is_err());
        words(&notes)[READY].store(1, SeqCst);
        return await_word(&notes, STOP);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let copy = open(dir.path(), PAGES);
    let mut child = spawn("resource_limits", TEST, dir.path(), 0, None);
    await_word(&notes, READY);
    let longer = (PAGES + 8) * PAGE;
    let error = copy.grow(longer as u64).unwrap_err();
    assert!(error.to_string().contains("beyond its end"), "{error}");
    assert_eq!(copy.len(), (PAGES * PAGE) as u64);
    copy.words(0, 1)[0].store(1, SeqCst);
    assert_eq!(copy.commit().unwrap(), 1);
    words(&notes)[STOP].store(1, SeqCst);
    assert!(child.wait().unwrap().success());
    assert_eq!(copy.grow(longer as u64).unwrap(), 2);
    copy.words(longer - PAGE, 1)[0].store(2, SeqCst);
    assert_eq!(copy.commit().unwrap(), 3);
    copy.leave().unwrap();
}

/// Uses all descriptors up that this process may have.
fn exhaust() -> Vec<File> {
    let most = Rlimit { current: Some(100), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, most).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// The process that serves is killed, and one of those that may take its place has no descriptors left. It gives up,
/// what it stores after that reaches nobody, and the next one goes on with what it had stored before.
#[test]
fn a_successor_without_descriptors_leaves_serving_to_another() {
    const TEST: &str = "a_successor_without_descriptors_leaves_serving_to_another";
    if unavailable() {
        return;
    }
    if let Some((dir, which)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        let word = |page: usize| &copy.words(page * PAGE, 1)[0];
        if which == 0 {
            word(0).store(1, SeqCst);
            copy.commit().unwrap();
            words(&notes)[READY].store(1, SeqCst);
            return await_word(&notes, STOP);
        }
        word(1).store(2, SeqCst);
        // Loaded, and writable here: nothing would trap.
        word(2).store(3, SeqCst);
        let files = exhaust();
        words(&notes)[GO].store(1, SeqCst);
        await_word(&notes, DEAD);
        let evicted = copy.commit().unwrap_err();
        assert!(
            matches!(&evicted, Error::Poisoned { cause, .. } if cause.contains("Too many open files")),
            "{evicted}"
        );
        assert!(!copy.is_owner());
        // Its calls fail for good, descriptors or not.
        drop(files);
        assert!(copy.commit().is_err() && copy.roll_back().is_err());
        await_word(&notes, CUT_OFF);
        word(2).store(99, SeqCst);
        words(&notes)[DONE].store(1, SeqCst);
        await_word(&notes, STOP);
        // It may come again.
        drop(copy);
        let copy = open(&dir, PAGES);
        assert_eq!(copy.words(2 * PAGE, 1)[0].load(SeqCst), 3);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut children = Children(vec![spawn("resource_limits", TEST, dir.path(), 0, None)]);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    children.0.push(spawn("resource_limits", TEST, dir.path(), 1, None));
    await_word(&notes, GO);
    let word = |page: usize| &copy.words(page * PAGE, 1)[0];
    // Whichever of the two comes first: the other one could not come back to this one either.
    children.0[0].kill().unwrap();
    children.0[0].wait().unwrap();
    words(&notes)[DEAD].store(1, SeqCst);
    word(3).store(4, SeqCst);
    assert_eq!(copy.commit().unwrap(), 2, "the one without descriptors held everybody up");
    words(&notes)[CUT_OFF].store(1, SeqCst);
    await_word(&notes, DONE);
    assert_eq!([0, 1, 2, 3].map(|page| word(page).load(SeqCst)), [1, 2, 3, 4]);
    word(2).store(3, SeqCst);
    assert_eq!(copy.commit().unwrap(), 3);
    words(&notes)[STOP].store(1, SeqCst);
    assert!(children.0[1].wait().unwrap().success());
    copy.leave().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!([0, 1, 2, 3].map(|page| copy.words(page * PAGE, 1)[0].load(SeqCst)), [1, 2, 3, 4]);
}

/// Nobody is left to fill a page that a process without descriptors loads from, too far from those loaded to have
/// come with them. What it finds there is not taken for the page.
#[test]
fn an_eviction_amid_a_load_fails_the_load() {
    const TEST: &str = "an_eviction_amid_a_load_fails_the_load";
    if unavailable() {
        return;
    }
    if let Some((dir, which)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        if which == 0 {
            copy.words(0, 2)[1].store(1, SeqCst);
            copy.commit().unwrap();
            words(&notes)[READY].store(1, SeqCst);
            return await_word(&notes, STOP);
        }
        copy.store(PAGE, &[7; 8]).unwrap();
        let _files = exhaust();
        words(&notes)[GO].store(1, SeqCst);
        await_word(&notes, DEAD);
        let mut bytes = [9; 8];
        let error = copy.load(90 * PAGE, &mut bytes).expect_err("a page that nobody has filled was loaded");
        assert!(matches!(&error, Error::Poisoned { cause, .. } if cause.contains("Too many open files")), "{error}");
        assert!(matches!(copy.store(90 * PAGE, &[9; 8]), Err(Error::Poisoned { .. })));
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut children = Children(vec![spawn("resource_limits", TEST, dir.path(), 0, None)]);
    await_word(&notes, READY);
    children.0.push(spawn("resource_limits", TEST, dir.path(), 1, None));
    await_word(&notes, GO);
    children.0[0].kill().unwrap();
    children.0[0].wait().unwrap();
    words(&notes)[DEAD].store(1, SeqCst);
    assert!(children.0[1].wait().unwrap().success());
}

/// As long as there is one, this process leaves the serving to others.
struct Abstention;

impl Abstention {
    fn begin() -> Self {
        ABSTAINS.store(true, SeqCst);
        Abstention
    }
}

impl Drop for Abstention {
    fn drop(&mut self) {
        ABSTAINS.store(false, SeqCst);
    }
}

/// One that has the file open, and no descriptors to let the others come back: it leaves the serving to another one.
#[test]
fn a_server_that_cannot_readmit_the_others_gives_up_serving() {
    const TEST: &str = "a_server_that_cannot_readmit_the_others_gives_up_serving";
    if unavailable() {
        return;
    }
    if let Some((dir, which)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        if which == 0 {
            copy.words(0, 1)[0].store(1, SeqCst);
            copy.commit().unwrap();
            words(&notes)[READY].store(1, SeqCst);
            return await_word(&notes, STOP);
        }
        // Itself only.
        ACCEPTS.store(1, SeqCst);
        words(&notes)[GO].store(1, SeqCst);
        while !copy.is_owner() {
            thread::sleep(Duration::from_millis(1));
        }
        words(&notes)[CUT_OFF].store(1, SeqCst);
        copy.words(PAGE, 1)[0].store(2, SeqCst);
        copy.commit().unwrap();
        assert!(!copy.is_owner());
        words(&notes)[DONE].store(1, SeqCst);
        return await_word(&notes, STOP);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut children = Children(vec![spawn("resource_limits", TEST, dir.path(), 0, None)]);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    children.0.push(spawn("resource_limits", TEST, dir.path(), 1, None));
    await_word(&notes, GO);
    let abstention = Abstention::begin();
    children.0[0].kill().unwrap();
    children.0[0].wait().unwrap();
    await_word(&notes, CUT_OFF);
    drop(abstention);
    copy.words(2 * PAGE, 1)[0].store(3, SeqCst);
    assert!(copy.commit().unwrap() >= 2);
    await_word(&notes, DONE);
    assert!(copy.is_owner());
    words(&notes)[STOP].store(1, SeqCst);
    assert!(children.0[1].wait().unwrap().success());
    copy.leave().unwrap();
    let copy = open(dir.path(), PAGES);
    assert_eq!([0, 1, 2].map(|page| copy.words(page * PAGE, 1)[0].load(SeqCst)), [1, 2, 3]);
}
