//! What operations cost under the hybrid log, counted and not timed: fences, flushes, bytes, allocations.

use std::time::Duration;

use crate::common::counting::{Counting, Counts};
use crate::common::system::allocations;
use crate::common::{PAGE, alone, counted_pmem, create_on, sidecar_of};
use untorn::options::{LogPolicy, Order};
use untorn::testing::storage::{Medium, PageCache};
use untorn::{AtomicFile, Durability, EngineKind, Options};

/// Blocks of the file.
const BLOCKS: u64 = 10_000;
/// Stores through the cache that a thread leaves for the sync to write back, at most.
const WRITTEN_BACK: u64 = 32;
/// Bytes of an epoch's record.
const RECORD: u64 = 64;

fn options(policy: LogPolicy, order: Order) -> Options {
    let options = Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit);
    // Nothing that happens in the background is counted along.
    options.log_policy(policy).order(order).checkpoint_threads(0)
}

/// Writes to so many blocks, once each.
fn dirty(file: &AtomicFile, blocks: u64, fill: u8) {
    (0..blocks).for_each(|block| file.write_at(&[fill; 64], block * PAGE as u64 + 100).unwrap());
}

fn costs_of_syncs<M: Medium>(medium: &Counting<M>, options: &Options, expected: u64) {
    let (_dir, file) = create_on(medium.clone(), options, BLOCKS * PAGE as u64);
    dirty(&file, BLOCKS, 1);
    file.sync().unwrap();
    for blocks in [1, 10, BLOCKS, 10] {
        dirty(&file, blocks, blocks as u8);
        let cost = medium.cost(|| file.sync().unwrap());
        // Of what short writes stored through the cache the last may still have to be written back.
        assert!(cost.flushes <= WRITTEN_BACK, "{options:?}: {blocks} blocks: {cost:?}");
        let expected = Counts { fences: expected, flushes: cost.flushes, bytes: RECORD, ..Counts::default() };
        assert_eq!(cost, expected, "{options:?}: {blocks} blocks");
        assert_eq!(medium.cost(|| file.sync().unwrap()), Counts::default(), "nothing to commit");
    }
}

#[test]
fn a_sync_costs_the_same_whatever_the_epoch_holds() {
    alone!(120, "syncs of large epochs");
    for (order, fences) in [(Order::OneFence, 1), (Order::TwoFence, 2)] {
        for policy in [LogPolicy::Redo, LogPolicy::Undo] {
            costs_of_syncs(&counted_pmem(), &options(policy, order), fences);
        }
        costs_of_syncs(&Counting::new(PageCache::new()), &options(LogPolicy::Redo, order), fences);
    }
}

/// Bytes that an epoch writes twice on persistent memory have no checksum; a fence before the record makes up for it.
#[test]
fn an_epoch_that_writes_twice_takes_one_fence_more() {
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let medium = counted_pmem();
        let options = options(policy, Order::OneFence);
        let (_dir, file) = create_on(medium.clone(), &options, 8 * PAGE as u64);
        for (times, fences) in [(1, 1), (2, 2), (5, 2), (1, 1)] {
            (0..times).for_each(|n| file.write_at(&[n; 64], 100).unwrap());
            let cost = medium.cost(|| file.sync().unwrap());
            assert_eq!((cost.fences, cost.bytes), (fences, RECORD), "{policy}, written {times} times");
        }
    }
}

/// Under redo a write waits for nothing; under undo it waits once for each block of an epoch.
#[test]
fn a_write_fences_only_to_save_what_it_replaces() {
    for (policy, first) in [(LogPolicy::Redo, 0), (LogPolicy::Undo, 1)] {
        let medium = counted_pmem();
        let options = options(policy, Order::OneFence);
        let (_dir, file) = create_on(medium.clone(), &options, 8 * PAGE as u64);
        // The log and the data file get their space.
        dirty(&file, 8, 1);
        file.sync().unwrap();
        for (round, fences) in [(0, first), (1, 0)] {
            let cost = medium.cost(|| file.write_at(&[round; 64], 4096).unwrap());
            assert_eq!((cost.fences, cost.syncs, cost.flushes), (fences, 0, 0), "{policy}, write {round}");
        }
    }
}

/// What an epoch logs follows from the share of writes in the one before, on both sides of the threshold. The first
/// write to a block waits under undo, and does not under redo.
#[test]
fn the_share_of_writes_chooses_what_the_next_epoch_logs() {
    const OPERATIONS: u64 = 100;
    for threshold in [40, 5] {
        let medium = counted_pmem();
        let options = options(LogPolicy::Hybrid, Order::OneFence).redo_threshold_percent(threshold as u8);
        let (_dir, file) = create_on(medium.clone(), &options, 2 * OPERATIONS * PAGE as u64);
        // The log and the data file get their space, and nobody has read.
        dirty(&file, OPERATIONS, 1);
        file.sync().unwrap();
        let mut before = OPERATIONS;
        for writes in [threshold, threshold - 1, threshold - 1, threshold, threshold + 1, 1, OPERATIONS, 2] {
            let cost = medium.cost(|| file.write_at(&[7; 64], 0).unwrap());
            let undo = before < threshold;
            assert_eq!(cost.fences, u64::from(undo), "{before} of {OPERATIONS}, redo from {threshold}");
            (1..writes).for_each(|block| file.write_at(&[7; 64], block * PAGE as u64).unwrap());
            (writes..OPERATIONS).for_each(|block| file.read_at(&mut [0; 64], block * PAGE as u64).unwrap());
            file.sync().unwrap();
            before = writes;
        }
    }
}

fn bytes_for_each<M: Medium>(medium: &Counting<M>, options: &Options) -> f64 {
    const KIB: usize = 1 << 10;
    const WRITES: u64 = 8000;
    let options = options.clone().log_size(8 << 20);
    let (_dir, file) = create_on(medium.clone(), &options, BLOCKS * PAGE as u64);
    let write_all = || {
        for n in 0..WRITES {
            file.write_at(&[n as u8; KIB], n * 37 % BLOCKS * PAGE as u64 + n % 4 * KIB as u64).unwrap();
            if n % 100 == 99 {
                file.sync().unwrap();
            }
        }
    };
    // The log becomes as long as it may, and is used again and again.
    write_all();
    file.deploy(0, file.len()).unwrap();
    let cost = medium.cost(|| {
        write_all();
        file.deploy(0, file.len()).unwrap();
    });
    cost.bytes as f64 / (WRITES * KIB as u64) as f64
}

/// The bytes, their way home or those they replace, a header for each write, and a share of records and cuts.
#[test]
fn fewer_than_two_point_one_bytes_are_persisted_for_each() {
    alone!(120, "bytes persisted");
    let redo = options(LogPolicy::Redo, Order::OneFence);
    for (what, found) in [
        ("redo on persistent memory", bytes_for_each(&counted_pmem(), &redo)),
        ("undo on persistent memory", bytes_for_each(&counted_pmem(), &options(LogPolicy::Undo, Order::OneFence))),
        ("redo on a block medium", bytes_for_each(&Counting::new(PageCache::new()), &redo)),
    ] {
        assert!((2.0..2.1).contains(&found), "{what}: {found:.3} bytes for each");
    }
}

/// The first commit to a small file on a disk does not write megabytes of log. A log that is used gets longer, so that
/// a checkpoint, with its two flushes, comes with hundreds of commits.
#[test]
fn a_small_file_on_a_disk_begins_with_a_small_log() {
    let medium = Counting::new(PageCache::new());
    let options = options(LogPolicy::Redo, Order::OneFence);
    let (path, file) = create_on(medium.clone(), &options, 4 * PAGE as u64);
    let log = || std::fs::metadata(sidecar_of(&path)).unwrap().len();
    let commit = |fill: u8| {
        file.write_at(&[fill; 100], 50).unwrap();
        file.sync().unwrap();
    };
    commit(1);
    assert!(log() < 300 << 10, "{} bytes of log for a commit", log());
    let cost = medium.cost(|| (0..20_000).for_each(|turn| commit(turn as u8)));
    assert!(log() < 16 << 20, "{} bytes of log for a file of four pages", log());
    assert!(cost.fences < 20_000 + 20_000 / 100, "flushes for checkpoints: {cost:?}");
}

/// On a disk the pages of the log are written with zeros before they are used. Short commits, whose bytes stand among
/// the headers, use no others; longer ones have theirs written once.
#[test]
fn short_commits_to_a_new_log_write_little() {
    const COMMITS: u64 = 500;
    const PAGES: u64 = 200;
    let written = |len: usize| {
        let medium = Counting::new(PageCache::new());
        let (_dir, file) = create_on(medium.clone(), &options(LogPolicy::Redo, Order::OneFence), PAGES * PAGE as u64);
        let cost = medium.cost(|| {
            for turn in 0..COMMITS {
                file.write_at(&vec![turn as u8; len], turn % PAGES * PAGE as u64).unwrap();
                file.sync().unwrap();
            }
        });
        cost.bytes / COMMITS
    };
    // Three lines of 64 bytes, and the share of the headers of a commit.
    let short = written(8);
    assert!((192..600).contains(&short), "{short} bytes for each commit of 8");
    let long = written(PAGE);
    assert!((2 * PAGE as u64..4 * PAGE as u64).contains(&long), "{long} bytes for each commit of a page");
    // After a clean close nobody knows any more which pages were written, but the file system does.
    let medium = Counting::new(PageCache::new());
    let options = options(LogPolicy::Redo, Order::OneFence).keep_sidecar(true);
    let (path, file) = create_on(medium.clone(), &options, PAGES * PAGE as u64);
    let commit = |file: &AtomicFile, len| {
        medium.cost(|| {
            file.write_at(&vec![9; len], 0).unwrap();
            file.sync().unwrap();
        })
    };
    commit(&file, 8);
    file.close().unwrap();
    let file = options.open_on(medium.clone(), &path).unwrap();
    let first = commit(&file, PAGE).bytes;
    assert!((4 * PAGE as u64..40 * PAGE as u64).contains(&first), "{first} bytes for the first page in the log");
    file.close().unwrap();
    let file = options.open_on(medium.clone(), &path).unwrap();
    let again = commit(&file, PAGE).bytes;
    assert!(again < 2 * PAGE as u64, "{again} bytes where the pages were written by an earlier session");
}

#[test]
fn threads_that_sync_together_share_flushes() {
    alone!(120, "threads that sync together");
    const THREADS: u64 = 8;
    const EACH: u64 = 20;
    let medium = Counting::slow(PageCache::new(), Duration::from_millis(2));
    let options = options(LogPolicy::Redo, Order::OneFence);
    let (_dir, file) = create_on(medium.clone(), &options, 64 * PAGE as u64);
    let run = || {
        medium.cost(|| {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let file = &file;
                    scope.spawn(move || {
                        for n in 0..EACH {
                            // Blocks of its own: one whose epoch is in flight would have to be waited for.
                            file.write_at(&[n as u8; 64], (thread * 8 + n % 8) * PAGE as u64).unwrap();
                            file.sync().unwrap();
                        }
                    });
                }
            });
        })
    };
    // Where the scheduler lets them meet, most threads share most flushes. It may keep them apart for a while, but
    // not for ever; and nobody's sync is ever answered by a flush of before.
    let shared = (0..50).any(|_| {
        let cost = run();
        assert!((EACH..=THREADS * EACH).contains(&cost.fences), "{cost:?} for {} syncs", THREADS * EACH);
        cost.fences <= THREADS * EACH * 3 / 4
    });
    assert!(shared, "threads that sync together never share most of their flushes");
}

#[test]
fn reading_allocates_nothing_and_waits_for_nobody() {
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let medium = counted_pmem();
        let options = options(policy, Order::OneFence);
        let (_dir, file) = create_on(medium.clone(), &options, 1 << 20);
        // Some in the log, some at home, some in large entries, and some never written.
        file.write_at(&[1; 40_000], 50_000).unwrap();
        file.sync().unwrap();
        (0..200).step_by(3).for_each(|block| file.write_at(&[2; 100], block * PAGE as u64).unwrap());
        let mut bytes = vec![0; 1 << 20];
        for (at, len) in [(0, 1), (5, 4096), (50_000, 40_000), (100, 100_000), (0, 1 << 20)] {
            let before = allocations();
            let cost = medium.cost(|| file.read_at(&mut bytes[..len], at).unwrap());
            let reads = cost.reads;
            assert_eq!(allocations() - before, 0, "{policy}: {len} bytes at {at}");
            assert_eq!(cost, Counts { reads, ..Counts::default() }, "{policy}: {len} bytes at {at}");
        }
    }
}

/// Each thread fills a chunk of its own, of which a checkpoint frees none. However many chunks are held so, a commit
/// costs one flush, and no thread makes checkpoints in the background all the time.
#[test]
fn chunks_that_threads_fill_call_for_no_checkpoint() {
    const COMMITS: u64 = 300;
    let medium = Counting::new(PageCache::new());
    let options = options(LogPolicy::Redo, Order::OneFence).checkpoint_threads(2);
    let (_dir, file) = create_on(medium.clone(), &options, 1024 * PAGE as u64);
    let held = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        let begin = |thread: u64| {
            file.write_at(&[1; PAGE], thread * PAGE as u64).unwrap();
            file.sync().unwrap();
            // Each has its chunk before one is given back.
            held.wait();
        };
        (0..3).for_each(|thread| drop(scope.spawn(move || begin(thread))));
    });
    let cost = medium.cost(|| {
        for n in 0..COMMITS {
            file.write_at(&n.to_le_bytes(), n * 3 % 1024 * PAGE as u64).unwrap();
            file.sync().unwrap();
        }
    });
    assert!((COMMITS..COMMITS + 20).contains(&cost.fences), "{} fences for {COMMITS} commits", cost.fences);
}
