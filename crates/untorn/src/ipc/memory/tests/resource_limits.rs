//! A process that cannot let another one in just now, and one that is not wanted any more.

use std::fs::File;
use std::os::fd::AsFd;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Resource, Rlimit, Signal, WaitOptions, getrlimit, kill_process, setrlimit, waitpid};

use super::{
    ABSTAINS, CUT_OFF, DEAD, DONE, GO, PAGE, Parent, READY, STOP, SharedMemory, Stage, await_change, fails, get,
    is_poisoned, open, set, this_test, with_processes,
};
use crate::error::Error;
use crate::ipc::membership::lock;
use crate::ipc::membership::tests::{ACCEPTS, SHORTAGES};
use crate::sys::socket;

const PAGES: usize = 100;

/// Uses all descriptors up that this process may have.
fn exhaust() -> Vec<File> {
    let most = Rlimit { current: Some(100), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, most).unwrap();
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

/// Of a process that has no descriptors left each attempt fails, so it makes one every ten milliseconds.
#[test]
fn a_join_that_is_refused_for_now_succeeds_later() {
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        set(&copy, 0, 1);
        copy.commit().unwrap();
        let files = exhaust();
        assert!(!files.is_empty());
        test.say(READY);
        await_change("somebody tries to join", || lock(&SHORTAGES).len() >= 5);
        let times = lock(&SHORTAGES).clone();
        let pauses: Vec<Duration> = times.windows(2).map(|two| two[1] - two[0]).collect();
        assert!(pauses.iter().all(|pause| *pause >= Duration::from_millis(10)), "{pauses:?}");
        // Who takes part already is served.
        set(&copy, 0, 2);
        copy.roll_back().unwrap();
        assert_eq!(get(&copy, 0), 1);
        drop(files);
        test.hear(STOP);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.start(0, READY);
        let copy = open(&test.dir, PAGES);
        assert!(!copy.is_owner());
        assert_eq!(get(&copy, 0), 1);
        test.stop(0);
        copy.leave().unwrap();
    });
}

/// One of which the others have given up the place: it may be wanted again for a second, and then its calls fail, for
/// ever.
#[test]
fn an_unwanted_process_gives_up_and_the_others_go_on() {
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        test.say(READY);
        test.hear(GO);
        set(&copy, 0, 1);
        assert_eq!(copy.commit().unwrap(), 1);
        assert!(copy.is_owner());
        test.say(DONE);
        test.hear(STOP);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.start(0, READY);
        let copy = open(&test.dir, PAGES);
        let since = Instant::now();
        copy.member.control.set_attached(copy.member.rendezvous.slot(), false);
        socket::shut_down(copy.member.line.as_fd());
        for _ in 0..2 {
            is_poisoned(copy.commit(), "this process was evicted");
        }
        assert!(since.elapsed() >= Duration::from_secs(1), "it gave up after {:?}", since.elapsed());
        test.say(GO);
        test.hear(DONE);
        // It may come again.
        drop(copy);
        let copy = open(&test.dir, PAGES);
        assert_eq!((copy.last_commit(), get(&copy, 0)), (1, 1));
        test.stop(0);
        copy.leave().unwrap();
    });
}

/// One that touches memory beyond the end gets a page of its own there, behind which the pages of the others' memory
/// would stay unprotected.
#[test]
fn memory_is_not_grown_past_a_page_that_a_sharer_has_of_its_own() {
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        assert!(copy.load((PAGES + 3) * PAGE, &mut [0; 8]).is_err());
        assert!(copy.commit().is_err());
        test.say(READY);
        test.hear(STOP);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let copy = open(&test.dir, PAGES);
        test.start(0, READY);
        let longer = (PAGES + 8) * PAGE;
        fails(copy.grow(longer as u64), "beyond its end");
        assert_eq!(copy.len(), (PAGES * PAGE) as u64);
        set(&copy, 0, 1);
        assert_eq!(copy.commit().unwrap(), 1);
        test.stop(0);
        assert_eq!(copy.grow(longer as u64).unwrap(), 2);
        set(&copy, PAGES + 7, 2);
        assert_eq!(copy.commit().unwrap(), 3);
        copy.leave().unwrap();
    });
}

/// Child 0 serves, child 1 and this process take part.
fn three(test: &mut Parent) -> SharedMemory {
    test.start(0, READY);
    let copy = open(&test.dir, PAGES);
    test.start(1, GO);
    copy
}

/// The process that serves is killed, and one of those that may take its place has no descriptors left. It gives up,
/// what it stores after that reaches nobody, and the next one goes on with what it had stored before.
#[test]
fn a_successor_without_descriptors_leaves_serving_to_another() {
    let child = |test: &Stage, which: usize| {
        if which == 0 {
            return test.serve(PAGES, 0);
        }
        let copy = open(&test.dir, PAGES);
        set(&copy, 1, 2);
        // Loaded, and writable here: nothing would trap.
        set(&copy, 2, 3);
        let files = exhaust();
        test.say(GO);
        test.hear(DEAD);
        is_poisoned(copy.commit(), "Too many open files");
        assert!(!copy.is_owner());
        // Its calls fail for good, descriptors or not.
        drop(files);
        assert!(copy.commit().is_err() && copy.roll_back().is_err());
        test.hear(CUT_OFF);
        set(&copy, 2, 99);
        test.say(DONE);
        test.hear(STOP);
        // It may come again.
        drop(copy);
        assert_eq!(get(&open(&test.dir, PAGES), 2), 3);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let copy = three(test);
        // Whichever of the two comes first: the other one could not come back to this one either.
        test.kill(0);
        test.say(DEAD);
        set(&copy, 3, 4);
        assert_eq!(copy.commit().unwrap(), 2, "the one without descriptors held everybody up");
        test.say(CUT_OFF);
        test.hear(DONE);
        assert_eq!([0, 1, 2, 3].map(|page| get(&copy, page)), [1, 2, 3, 4]);
        set(&copy, 2, 3);
        assert_eq!(copy.commit().unwrap(), 3);
        test.stop(1);
        copy.leave().unwrap();
        let copy = open(&test.dir, PAGES);
        assert_eq!([0, 1, 2, 3].map(|page| get(&copy, page)), [1, 2, 3, 4]);
    });
}

/// Nobody is left to fill a page that a process without descriptors loads from, too far from those loaded to have
/// come with them. What it finds there is not taken for the page.
#[test]
fn an_eviction_amid_a_load_fails_the_load() {
    let child = |test: &Stage, which: usize| {
        if which == 0 {
            return test.serve(PAGES, 1);
        }
        let copy = open(&test.dir, PAGES);
        copy.store(PAGE, &[7; 8]).unwrap();
        let _files = exhaust();
        test.say(GO);
        test.hear(DEAD);
        // No page that nobody has filled is loaded.
        is_poisoned(copy.load(90 * PAGE, &mut [9; 8]), "Too many open files");
        assert!(matches!(copy.store(90 * PAGE, &[9; 8]), Err(Error::Poisoned { .. })));
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.start(0, READY);
        test.start(1, GO);
        test.kill(0);
        test.say(DEAD);
        test.succeeds(1);
    });
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
    let child = |test: &Stage, which: usize| {
        if which == 0 {
            return test.serve(PAGES, 0);
        }
        let copy = open(&test.dir, PAGES);
        // Itself only.
        ACCEPTS.store(1, SeqCst);
        test.say(GO);
        await_change("this process serves", || copy.is_owner());
        test.say(CUT_OFF);
        set(&copy, 1, 2);
        copy.commit().unwrap();
        assert!(!copy.is_owner());
        test.say(DONE);
        test.hear(STOP);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        let copy = three(test);
        let abstention = Abstention::begin();
        test.kill(0);
        test.hear(CUT_OFF);
        drop(abstention);
        set(&copy, 2, 3);
        assert!(copy.commit().unwrap() >= 2);
        test.hear(DONE);
        assert!(copy.is_owner());
        test.stop(1);
        copy.leave().unwrap();
        let copy = open(&test.dir, PAGES);
        assert_eq!([0, 1, 2].map(|page| get(&copy, page)), [1, 2, 3]);
    });
}

/// A stopped process has not come back to the one that serves now, which can protect nothing there. A page of a chunk
/// that nobody touched comes when it has: before, a store of that process to it would be in no commit.
#[test]
fn no_page_of_an_untouched_chunk_comes_before_all_are_back() {
    const MANY: usize = 3000;
    const FAR: usize = 2900;
    let child = |test: &Stage, which: usize| {
        if which == 0 {
            return test.serve(MANY, 0);
        }
        let copy = open(&test.dir, MANY);
        set(&copy, 1, 2);
        test.say(GO);
        test.hear(DEAD);
        set(&copy, FAR, 7);
        test.say(DONE);
        test.hear(STOP);
    };
    with_processes(this_test!(), tempfile::tempdir, child, |test| {
        test.start(0, READY);
        let copy = open(&test.dir, MANY);
        test.start(1, GO);
        let stopped = Pid::from_child(&test.children[1]);
        kill_process(stopped, Signal::STOP).unwrap();
        waitpid(Some(stopped), WaitOptions::UNTRACED).unwrap();
        test.kill(0);
        await_change("this process serves", || copy.is_owner());
        std::thread::scope(|scope| {
            let load = scope.spawn(|| get(&copy, FAR));
            // One of a chunk that has pages comes, and stores to those go on.
            assert_eq!(get(&copy, 90), 0);
            set(&copy, 2, 3);
            std::thread::sleep(Duration::from_millis(200));
            assert!(!load.is_finished(), "the page came, and the stopped process may store to it unnoticed");
            kill_process(stopped, Signal::CONT).unwrap();
            assert_eq!(load.join().unwrap(), 0);
        });
        test.say(DEAD);
        test.hear(DONE);
        copy.commit().unwrap();
        test.stop(1);
        copy.leave().unwrap();
        let copy = open(&test.dir, MANY);
        assert_eq!([1, 2, FAR].map(|page| get(&copy, page)), [2, 3, 7]);
    });
}
