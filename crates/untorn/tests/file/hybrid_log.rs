//! The hybrid-log engine where it is most likely to go wrong: covers that come apart under others' hands, lengths that
//! change before a crash, logs that are full while a flush is under way.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use crate::common::counting::Counting;
use crate::common::{
    Image, PAGE, Pair, Rng, counted_pmem, create_on, hybrid_log, killed, limit, memory_dir, pattern, pmem, read,
    scratch_holding, seed, sidecar_of, truncate, wait_until,
};
use untorn::options::{LogPolicy, Order, Prefer};
use untorn::testing::storage::{Medium, PageCache};
use untorn::{AtomicFile, Error, Options};

const MIB: usize = 1 << 20;

/// What a process that is killed now leaves, opened by another.
fn reopened<M: Medium>(medium: M, options: &Options, file: AtomicFile, change: impl FnOnce(&Path)) -> AtomicFile {
    let path = killed(file);
    change(&path);
    options.open_on(medium, &path).unwrap()
}

/// An epoch under undo that did not commit goes back whole, by several threads where it is large.
#[test]
fn a_large_epoch_that_did_not_commit_is_taken_back() {
    let _limit = limit(120, "a large epoch taken back");
    let len = 20 * MIB;
    let options = hybrid_log(LogPolicy::Undo).order(Order::TwoFence).checkpoint_threads(0);
    let (_dir, file) = create_on(pmem(), &options, len as u64);
    let before = pattern(len, 5);
    file.write_at(&before, 0).unwrap();
    file.sync().unwrap();
    // Twice, so that some covers have more than one entry.
    for at in (1000..len - MIB).step_by(MIB / 2 + 700) {
        file.write_at(&vec![9; MIB / 4], at as u64).unwrap();
        file.write_at(&vec![8; MIB / 4], (at + MIB / 8) as u64).unwrap();
    }
    let file = reopened(pmem(), &options, file, |path| assert!(std::fs::read(path).unwrap() != before));
    assert!(read(&file) == before);
    assert!(file.info().recovery.was_needed && file.info().recovery.discarded > 50);
}

/// Large covers come apart while a small write goes across two of their blocks: the small write, which has the first of
/// the two, must not wait for a block before it.
#[test]
fn a_block_range_that_comes_apart_holds_nobody_up() {
    let _limit = limit(60, "a large cover and small writes across two of its blocks");
    // No checksums over megabytes, which take long without optimisation.
    let options = hybrid_log(LogPolicy::Redo).order(Order::TwoFence).log_size(64 << 20).checkpoint_threads(0);
    let (_dir, file) = create_on(pmem(), &options, 2 * MIB as u64);
    let (begin, end) = (Barrier::new(2), Barrier::new(2));
    let (rounds, took) = (500, AtomicU64::new(1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng::new(seed("a_block_range_that_comes_apart_holds_nobody_up"));
            for _ in 0..rounds {
                let mut tx = file.transaction();
                for block in rng.below(450) + 10..512 {
                    tx.write_at(&[8], block * PAGE as u64).unwrap();
                }
                begin.wait();
                let later = Instant::now() + Duration::from_nanos(rng.below(took.load(Ordering::Relaxed)));
                while Instant::now() < later {}
                tx.commit().unwrap();
                end.wait();
            }
        });
        let bytes = vec![7; 2 * MIB];
        for _ in 0..rounds {
            file.deploy(0, 2 * MIB as u64).unwrap();
            file.write_at(&bytes, 0).unwrap();
            file.sync().unwrap();
            begin.wait();
            let from = Instant::now();
            // The first of the two takes the cover apart.
            file.deploy(0, PAGE as u64).unwrap();
            // A clock may be too coarse to tell it from nothing.
            took.store((from.elapsed().as_nanos() as u64).max(1), Ordering::Relaxed);
            file.write_at(&bytes[..MIB], 0).unwrap();
            end.wait();
            file.sync().unwrap();
        }
    });
    assert!(file.info().commit >= rounds);
}

/// A recovery that was itself cut off after it had shortened the data file finds the same commit again.
#[test]
fn a_commit_that_cut_off_what_it_wrote_survives_two_recoveries() {
    for policy in [LogPolicy::Undo, LogPolicy::Redo] {
        let path = scratch_holding(pattern(3 * PAGE, 1));
        let options = hybrid_log(policy);
        let file = options.open_on(pmem(), &path).unwrap();
        file.write_at(&[9; PAGE], 0).unwrap();
        file.write_at(&[9; 64], 2 * PAGE as u64).unwrap();
        file.resize(2 * PAGE as u64).unwrap();
        file.sync().unwrap();
        let mut expected = pattern(3 * PAGE, 1);
        expected.truncate(2 * PAGE);
        expected[..PAGE].fill(9);
        let pair = Pair::of(&path);
        drop(file);
        // A recovery ends at each of its fences, until one comes to its end.
        let mut fences = 0;
        loop {
            pair.restore();
            let medium = counted_pmem();
            medium.fail_fences_after(fences);
            let whole = options.open_on(medium, &path).is_ok();
            let file = options.open_on(pmem(), &path).unwrap();
            assert!(read(&file) == expected, "{policy}: an acknowledged epoch is gone after {fences} fences");
            if whole {
                break;
            }
            fences += 1;
        }
        assert!(fences >= 2, "{policy}: {fences}");
    }
}

/// A log that is full of epochs on their way to the disk is full no more when they have arrived.
#[test]
fn a_full_log_waits_for_the_flush_under_way() {
    let _limit = limit(60, "a full log and a slow flush");
    let dir = memory_dir();
    let medium = Counting::slow(PageCache::new(), Duration::from_millis(300));
    let flushing = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&flushing);
    medium.watch(move |what, _| {
        if what == "hybrid-log.epoch.record" {
            seen.store(true, Ordering::Relaxed);
        }
    });
    let options = hybrid_log(LogPolicy::Redo).record_area(1, 16).log_size(256 << 10).checkpoint_threads(0);
    let file = options.create_on(medium, dir.path().join("data"), MIB as u64).unwrap();
    // Three of its four chunks.
    (0..48).for_each(|block| file.write_at(&[5; PAGE], block * PAGE as u64).unwrap());
    std::thread::scope(|scope| {
        scope.spawn(|| file.sync().unwrap());
        wait_until(|| flushing.load(Ordering::Relaxed));
        for block in 100..150 {
            file.write_at(&[6; PAGE], block * PAGE as u64).unwrap();
        }
    });
}

/// A read of many blocks that nobody writes to goes through at once.
#[test]
fn a_long_read_does_not_wait() {
    let medium = counted_pmem();
    // What a checkpoint in the background does would be counted along.
    let options = hybrid_log(LogPolicy::Redo).checkpoint_threads(0);
    let (_dir, file) = create_on(medium.clone(), &options, 8 * MIB as u64);
    for block in (0..2048).step_by(3) {
        file.write_at(&[block as u8; PAGE], block * PAGE as u64).unwrap();
    }
    let mut bytes = vec![0; 8 * MIB];
    let cost = medium.cost(|| file.read_at(&mut bytes, 0).unwrap());
    assert_eq!(cost.others, 0, "it waited: {cost:?}");
    for (block, page) in bytes.chunks(PAGE).enumerate() {
        let expected = if block % 3 == 0 { block as u8 } else { 0 };
        assert!(page.iter().all(|&byte| byte == expected), "block {block}");
    }
}

/// A file that grew while open, and whose end was cut off afterwards, is as long as its last commit if the sidecar is
/// trusted.
#[test]
fn a_sidecar_that_is_trusted_gives_a_longer_length_back() {
    // Under undo the bytes of the commit stand in the data file, and are gone with its end.
    let path = scratch_holding(pattern(PAGE, 1));
    let options = hybrid_log(LogPolicy::Redo);
    let file = options.clone().max_len(256 << 20).open_on(pmem(), &path).unwrap();
    file.resize(200 << 20).unwrap();
    file.write_at(&[3; 100], (200 << 20) - 100).unwrap();
    file.sync().unwrap();
    let options = options.prefer(Prefer::Sidecar);
    let file = reopened(pmem(), &options, file, |path| truncate(path, PAGE));
    assert_eq!(file.len(), 200 << 20);
    file.write_at(&[4; 100], (200 << 20) - 200).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    assert_eq!(options.open_on(pmem(), &path).unwrap().len(), 200 << 20);
}

/// Refused before anything is written: the data file is not what the last commit was made of.
#[test]
fn a_data_file_that_was_cut_off_is_refused_as_it_is() {
    let path = scratch_holding(pattern(4 * PAGE, 1));
    let options = hybrid_log(LogPolicy::Redo).checkpoint_threads(0);
    let file = options.open_on(pmem(), &path).unwrap();
    file.write_at(&[3; 100], 50).unwrap();
    file.sync().unwrap();
    let pair = Pair::of(&path);
    drop(file);
    pair.side.restore();
    pair.data.restore_as(&pair.data.bytes[..2 * PAGE]);
    let error = options.open_on(pmem(), &path).unwrap_err();
    assert!(matches!(error, Error::ModifiedExternally { .. }), "{error}");
    assert!(Image::of(&path).bytes == pair.data.bytes[..2 * PAGE], "it was written to");
    assert!(sidecar_of(&path).exists());
}

/// A log of a few chunks serves more threads than it has chunks.
#[test]
fn a_small_log_serves_many_threads() {
    let _limit = limit(60, "many threads and a small log");
    let options = hybrid_log(LogPolicy::Redo).log_size(256 << 10).checkpoint_threads(0);
    let (_dir, file) = create_on(pmem(), &options, MIB as u64);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let file = &file;
            scope.spawn(move || file.write_at(&[thread as u8; PAGE], thread * PAGE as u64).unwrap());
        }
    });
    let bytes = read(&file);
    assert!((0..8).all(|thread| bytes[thread * PAGE..][..PAGE] == [thread as u8; PAGE]));
}
