//! What it costs: a few rounds with wide limits, or with UNTORN_COSTS=1 and in a release build, numbers to be read:
//! `UNTORN_COSTS=1 cargo test --release -p untorn --lib ipc::memory::tests::costs -- --nocapture --test-threads=1`

use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};

use super::super::SharedMemory;
use super::{
    Parent, READY, STOP, Stage, memory_dir, open, set, this_test, unavailable, with_processes, with_processes_for,
};

pub(crate) const PAGES: usize = 4 * 64;
const DIRTY: usize = 64;

// Words of the notes.
const COMMITS: usize = 32;
const RESULTS: usize = 128;

/// The longest that something may take, in microseconds: what is expected where costs are measured, else only not for
/// ever, for nobody knows what else the machine has to do.
fn most(expected: f64) -> f64 {
    if std::env::var_os("UNTORN_COSTS").is_some() { expected } else { 120e6 }
}

/// How many rounds to make of what takes so many to be measured.
fn rounds(measured: u64) -> u64 {
    if std::env::var_os("UNTORN_COSTS").is_some() { measured } else { measured / 25 }
}

/// p50, p90, p99 and the longest, in microseconds.
fn report(what: &str, mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
    println!(
        "{what}: p50 {:.1} p90 {:.1} p99 {:.1} longest {:.1} µs, of {}",
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        times.len()
    );
    at(0.5)
}

fn micros(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1000.0
}

#[test]
fn the_first_store_after_a_commit() {
    if unavailable() {
        return;
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let copy = open(dir.path(), PAGES);
    (0..PAGES).for_each(|page| set(&copy, page, 1));
    for (pause, what) in [(0, "one after the other"), (200, "200 µs apart")] {
        let mut times = Vec::new();
        for round in 0..rounds(100) {
            copy.commit().unwrap();
            for page in 0..DIRTY {
                let since = Instant::now();
                set(&copy, page, round);
                times.push(micros(since));
                thread::sleep(Duration::from_micros(pause));
            }
        }
        assert!(report(&format!("first store, {what}"), times) < most(1000.0));
    }
    let mut times = Vec::new();
    for round in 0..rounds(500) {
        (0..DIRTY).for_each(|page| set(&copy, 3 * page, round));
        let since = Instant::now();
        copy.commit().unwrap();
        times.push(micros(since));
    }
    assert!(report("commit of 64 scattered pages, backing included", times) < most(1e6));
    copy.leave().unwrap();
}

/// Children 1 and up store; child 0 commits.
pub(crate) fn work(copy: &SharedMemory, test: &Stage, me: usize, stride: usize) {
    let goes_on = || test.word(STOP).load(SeqCst) == 0;
    let commits = test.word(COMMITS);
    while me == 0 && goes_on() {
        thread::sleep(Duration::from_micros(1500));
        commits.store(copy.commit().unwrap(), SeqCst);
    }
    // The longest store of each commit.
    let (mut longest, mut seen, mut value) = (Vec::new(), 0, 0);
    while me != 0 && goes_on() {
        let mut worst = 0.0_f64;
        while commits.load(SeqCst) == seen && goes_on() {
            for page in 0..DIRTY {
                value += 1;
                let since = Instant::now();
                set(copy, stride * page, value);
                worst = worst.max(micros(since));
            }
        }
        seen = commits.load(SeqCst);
        longest.push(worst);
    }
    if me != 0 {
        let longest: Vec<String> = longest.iter().map(f64::to_string).collect();
        std::fs::write(test.dir.join(format!("stalls{me}")), longest.join("\n")).unwrap();
        test.say(RESULTS + me);
    }
}

fn stall(test: &str, writers: usize, stride: usize) {
    let child = |test: &Stage, me| {
        let copy = open(&test.dir, PAGES);
        work(&copy, test, me, stride);
        copy.leave().unwrap();
    };
    with_processes(test, memory_dir, child, |test| watch("working copy", test, writers, stride));
}

/// Starts the children of a test, and judges how long the writers were held up.
pub(crate) fn watch(what: &str, test: &mut Parent, writers: usize, stride: usize) {
    (0..=writers).for_each(|id| test.start_unheard(id));
    while test.word(COMMITS).load(SeqCst) < rounds(1000) {
        thread::sleep(Duration::from_millis(5));
    }
    test.say(STOP);
    (0..=writers).for_each(|id| test.succeeds(id));
    for writer in 1..=writers {
        let text = std::fs::read_to_string(test.dir.join(format!("stalls{writer}"))).unwrap();
        let times = text.lines().map(|line| line.parse().unwrap()).collect();
        let stall = report(
            &format!("{what}: longest stall of a commit of 64 pages, stride {stride}, {writers} writers"),
            times,
        );
        assert!(stall < most(100_000.0));
    }
}

macro_rules! stalls {
    ($($name:ident: $writers:literal, $stride:literal;)+) => {
        $(#[test]
        fn $name() {
            stall(this_test!(), $writers, $stride);
        })+
    };
}

stalls! {
    the_stall_of_one_writer: 1, 1;
    the_stall_of_one_writer_to_scattered_pages: 1, 4;
    the_stall_of_three_writers: 3, 1;
}

#[test]
fn the_time_that_a_takeover_takes() {
    let times = RefCell::new(Vec::new());
    let child = |test: &Stage, _| {
        let copy = open(&test.dir, PAGES);
        copy.commit().unwrap();
        assert!(copy.is_owner());
        test.say(READY);
        // Until it is killed; not for ever, for this test may end otherwise.
        thread::sleep(Duration::from_secs(600));
    };
    with_processes_for(this_test!(), memory_dir, 0..rounds(50), child, |test, _| {
        test.start(0, READY);
        let copy = open(&test.dir, PAGES);
        set(&copy, 0, 1);
        let before = copy.commit().unwrap();
        set(&copy, 0, 2);
        let since = Instant::now();
        test.kill_unawaited(0);
        assert_eq!(copy.commit().unwrap(), before + 1);
        times.borrow_mut().push(micros(since));
        assert!(copy.is_owner());
    });
    let times = times.into_inner();
    assert!(times.is_empty() || report("from the kill of the server to the next commit", times) < most(1e6));
}
