//! A process that cannot let another one in just now, and one that is not wanted any more.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::super::member::lock;
use super::{SHORTAGES, await_word, child_of, notes, open, spawn, unavailable, words};
use crate::error::Error;
use crate::sys::socket;

const PAGES: usize = 100;

// Words of the notes.
const READY: usize = 8;
const GO: usize = 9;
const DONE: usize = 10;
const STOP: usize = 11;

/// Of a process that has no descriptors left each attempt fails, so it makes one every ten milliseconds.
#[test]
fn who_cannot_be_let_in_just_now_is_let_in_later() {
    const TEST: &str = "who_cannot_be_let_in_just_now_is_let_in_later";
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
    let mut child = spawn("straits", TEST, dir.path(), 0, None);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    assert!(!copy.is_serving());
    assert_eq!(copy.words(0, 1)[0].load(SeqCst), 1);
    words(&notes)[STOP].store(1, SeqCst);
    assert!(child.wait().unwrap().success());
    copy.leave().unwrap();
}

/// One of which the others have given up the place: it may be wanted again for a second, and then its calls fail, for ever.
#[test]
fn who_is_not_wanted_gives_up_and_the_others_go_on() {
    const TEST: &str = "who_is_not_wanted_gives_up_and_the_others_go_on";
    if unavailable() {
        return;
    }
    if let Some((dir, _)) = child_of(TEST) {
        let (copy, notes) = (open(&dir, PAGES), notes(&dir));
        words(&notes)[READY].store(1, SeqCst);
        await_word(&notes, GO);
        copy.words(0, 1)[0].store(1, SeqCst);
        assert_eq!(copy.commit().unwrap(), 1);
        assert!(copy.is_serving());
        words(&notes)[DONE].store(1, SeqCst);
        return await_word(&notes, STOP);
    }
    let dir = tempfile::tempdir().unwrap();
    let notes = notes(dir.path());
    let mut child = spawn("straits", TEST, dir.path(), 0, None);
    await_word(&notes, READY);
    let copy = open(dir.path(), PAGES);
    let since = Instant::now();
    copy.member.control.set_attached(copy.member.place.slot(), false);
    socket::shut_down(copy.member.line.as_fd());
    for _ in 0..2 {
        let error = copy.commit().unwrap_err();
        assert!(matches!(&error, Error::Poisoned { cause, .. } if cause.contains("given up")), "{error}");
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
