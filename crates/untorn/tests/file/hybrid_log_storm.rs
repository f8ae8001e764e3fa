//! Real threads on one file under the hybrid log, with a log so small that its chunks are used again all the time: no
//! read sees half of a write, whatever its size, and nothing acknowledged is lost.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::threads::{Range, together, unless_too_short};
use crate::common::counting::Counting;
use crate::common::{PAGE, Pair, ReadAt, Rng, create_on, limit, memory_dir, pmem, seed, word};
use untorn::options::{LogPolicy, Order};
use untorn::testing::storage::{Latched, Medium, PageCache};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options, Result};

/// How long each configuration runs.
const TIME: Duration = Duration::from_millis(500);
const MIB: usize = 1 << 20;
const SHORT: usize = 7 * MIB;
const LONG: usize = 8 * MIB + 1000;

/// Within one block; over the edge of two; over blocks, on edges and off them; more than the largest entry holds.
const RANGES: [Range; 7] = [
    Range { at: 16, len: 8 },
    Range { at: 2 * PAGE - 24, len: 48 },
    Range { at: 4 * PAGE, len: PAGE },
    Range { at: 7 * PAGE + 1000, len: PAGE },
    Range { at: 16 * PAGE, len: 16 * PAGE },
    Range { at: 40 * PAGE + 8, len: 9 * PAGE + 504 },
    Range { at: 2 * MIB + 2048, len: 4 * MIB },
];

/// Comes and goes with the length.
const TAIL: Range = Range { at: SHORT + 200, len: 5 * PAGE };

/// Written one after the other by one thread, and read at once: the first is never behind.
const ORDERED: [usize; 2] = [60 * PAGE + 8, 61 * PAGE + 512];

/// Fills a range. Where the open epoch fills the log it commits that first.
fn write(range: Range, file: &AtomicFile, stamp: u64) -> Result<()> {
    loop {
        match range.write(file, stamp) {
            Err(Error::Invalid { .. }) => drop(file.sync()?),
            outcome => return outcome,
        }
    }
}

fn check_order(file: &AtomicFile) -> u64 {
    let bytes = file.bytes_at(ORDERED[0] as u64, ORDERED[1] + 8 - ORDERED[0]);
    let (first, second) = (word(&bytes, 0), word(&bytes, ORDERED[1] - ORDERED[0]));
    assert!(first == second || first == second + 1, "{first} was written before {second}");
    second
}

fn storm<M: Medium>(medium: impl Fn() -> M, options: &Options, seed: u64) {
    let (path, file) = create_on(medium(), options, SHORT as u64);
    // What each range was last filled with before a sync that is over.
    let synced: [AtomicU64; RANGES.len()] = Default::default();
    let next = AtomicU64::new(1);
    let writer = |thread: u64| {
        let (file, next, synced) = (&file, &next, &synced);
        move |n: u64| {
            // Each thread has ranges of its own, so that what it wrote last is what must be there.
            let own: Vec<usize> = (0..RANGES.len()).filter(|range| *range as u64 % 3 == thread).collect();
            let mut rng = Rng::new(seed ^ thread << 32 ^ n);
            let range = own[rng.below(own.len() as u64) as usize];
            let stamp = next.fetch_add(1, Ordering::Relaxed);
            write(RANGES[range], file, stamp).unwrap();
            if n.is_multiple_of(4) {
                file.sync().unwrap();
                synced[range].store(stamp, Ordering::Relaxed);
            }
        }
    };
    let (one, two, three) = (writer(0), writer(1), writer(2));
    let look = |_: u64| {
        for range in RANGES {
            range.read(&file).unwrap();
        }
        check_order(&file);
        unless_too_short(TAIL.read(&file));
    };
    let ran = together(
        TIME,
        &[
            &one,
            &two,
            &three,
            &look,
            &look,
            &|n| {
                ORDERED.iter().for_each(|&at| write(Range { at, len: 8 }, &file, n).unwrap());
                unless_too_short(write(TAIL, &file, n));
            },
            &|n| {
                file.resize(if n % 2 == 1 { LONG } else { SHORT } as u64).unwrap();
                std::thread::sleep(Duration::from_micros(500));
            },
            &|_| {
                file.sync().unwrap();
                std::thread::sleep(Duration::from_micros(300));
            },
            &|_| {
                file.deploy(0, SHORT as u64).unwrap();
                file.reclaim().unwrap();
                std::thread::sleep(Duration::from_millis(5));
            },
        ],
    );
    eprintln!("times each thread ran: {ran:?}");
    // As if killed here, and then as if closed.
    let pair = Pair::of(&path);
    let order = file.word_at(ORDERED[1]);
    drop(file);
    for kill in [false, true] {
        if kill {
            pair.restore();
        }
        let file = options.open_on(medium(), &path).unwrap();
        for (range, synced) in RANGES.iter().zip(&synced) {
            let (found, synced) = (range.read(&file).unwrap(), synced.load(Ordering::Relaxed));
            assert!(found >= synced, "{found} where {synced} was acknowledged, killed: {kill}");
        }
        assert!(check_order(&file) <= order);
    }
}

fn storms<M: Medium>(medium: impl Fn() -> M, durability: Durability, policies: &[LogPolicy]) {
    let _limit = limit(300, "threads on one file");
    let seed = seed("storms");
    for &policy in policies {
        for order in [Order::OneFence, Order::TwoFence] {
            for units in [16, 512] {
                eprintln!("{durability} {policy} {order}, chunks of {units} units");
                let options = Options::new().engine(EngineKind::HybridLog).durability(durability).order(order);
                let options = options.log_policy(policy).record_area(1, units).log_size(40 << 20).checkpoint_threads(2);
                storm(&medium, &options.max_len(16 << 20), seed);
            }
        }
    }
}

#[test]
fn no_torn_read_on_persistent_memory() {
    storms(pmem, Durability::PerCommit, &[LogPolicy::Hybrid, LogPolicy::Undo, LogPolicy::Redo]);
}

#[test]
fn no_torn_read_on_persistent_memory_per_write() {
    storms(pmem, Durability::PerWrite, &[LogPolicy::Undo, LogPolicy::Redo]);
}

#[test]
fn no_torn_read_on_a_block_medium() {
    storms(|| Latched::new(PageCache::new()), Durability::PerCommit, &[LogPolicy::Redo]);
}

#[test]
fn no_torn_read_on_a_block_medium_per_write() {
    storms(|| Latched::new(PageCache::new()), Durability::PerWrite, &[LogPolicy::Redo]);
}

/// Two threads that make the file longer at once, to different lengths. Neither cuts off what the other's sync may have
/// committed: the data file itself becomes no shorter while it is open.
#[test]
fn growths_at_once_cut_nothing_off() {
    let _limit = limit(120, "growths at once");
    const ROUNDS: u64 = 60;
    let options = Options::new().engine(EngineKind::HybridLog).max_len(1 << 30);
    let medium = Counting::slow(pmem(), Duration::from_millis(2));
    let (_dir, file) = create_on(medium, &options, 1);
    let physical = || std::fs::metadata(file.path()).unwrap().len();
    let together = Barrier::new(2);
    let grow = |by: u64| {
        for round in 0..ROUNDS {
            together.wait();
            // Both find the data file too short.
            file.resize((2 * round + by) * 64).unwrap();
            together.wait();
            let longest = (2 * round + 2) * 64;
            assert!(physical() >= longest, "round {round}: {} of {longest} bytes", physical());
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| grow(1));
        grow(2);
    });
}

/// What a reader copies out of the log may go home, and its place be given back to the file system, before the copy is
/// done: then it is not believed.
#[test]
fn no_read_returns_what_was_given_back() {
    let _limit = limit(120, "a read of a log that is given back");
    let dir = memory_dir();
    let [whole, other] = [0, MIB].map(|at| Range { at, len: MIB });
    // A checkpoint in the background would read as slowly.
    let options = Options::new().engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo).checkpoint_threads(0);
    let options = options.record_area(1, 256).max_len(1 << 24);
    let medium = Counting::slow(pmem(), Duration::from_millis(5));
    let file = options.create_on(medium.clone(), dir.path().join("data"), 2 << 20).unwrap();
    let begun = Barrier::new(2);
    std::thread::scope(|scope| {
        for round in 1..=5 {
            write(whole, &file, round).unwrap();
            file.sync().unwrap();
            medium.rest_within_reads_of(MIB as u64);
            let reader = scope.spawn(|| {
                begun.wait();
                whole.read(&file).unwrap()
            });
            begun.wait();
            std::thread::sleep(Duration::from_millis(5));
            // In a chunk of its own, so that the other one is let go.
            write(other, &file, round).unwrap();
            file.sync().unwrap();
            file.reclaim().unwrap();
            assert_eq!(reader.join().unwrap(), round);
            medium.rest_within_reads_of(0);
        }
    });
}
