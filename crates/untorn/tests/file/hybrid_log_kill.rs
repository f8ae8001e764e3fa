//! The hybrid log and processes that die: what was synced is there, however often and under whatever policy.

use crate::common::system::in_forked_child;
use crate::common::{
    PAGE, Rng, create_on, hybrid_log, killed, limit, pattern, pmem, read, run_alone, scratch, scratch_holding, seed,
};
use rustix::process::{Signal, getpid, kill_process};
use untorn::options::{LogPolicy, Order};
use untorn::testing::storage::{Medium, PageCache};
use untorn_testing::{cases, test_name};

const MIB: usize = 1 << 20;

/// A process that syncs 2048 writes of 4 KiB and is then killed loses none of them. Alone: the process is forked and
/// starts threads, for which it would wait for ever if another test was about to start or end one of its own at that
/// moment.
fn kill_after_2048<M: Medium>(test: &str, medium: impl Fn() -> M, policy: LogPolicy) {
    run_alone(test, 240, "2048 synced writes", || kill_after_2048_alone(medium, policy));
}

fn kill_after_2048_alone<M: Medium>(medium: impl Fn() -> M, policy: LogPolicy) {
    const WRITES: usize = 2048;
    let path = scratch_holding(vec![0; WRITES * PAGE]);
    // Too small for all, so that some of it was taken home before.
    let options = hybrid_log(policy).log_size(4 << 20);
    let block = |n: usize| pattern(PAGE, n as u64);
    // What a process finds out once is found out before the fork.
    options.open_on(medium(), &path).unwrap().close().unwrap();
    let child = in_forked_child(|| {
        let file = options.open_on(medium(), &path).unwrap();
        for n in 0..WRITES {
            file.write_at(&block(n), (n * 7 % WRITES * PAGE) as u64).unwrap();
            file.sync().unwrap();
        }
        // Not synced, and so not in.
        file.write_at(&[0xEE; 100], 50).unwrap();
        kill_process(getpid(), Signal::KILL).unwrap();
        0
    });
    assert_eq!(child.wait(), None, "it was to be killed");
    let file = options.open_on(medium(), &path).unwrap();
    let recovery = file.info().recovery;
    assert!(recovery.was_needed && recovery.discarded >= 1, "{policy}: {recovery:?}");
    let bytes = read(&file);
    let lost: Vec<_> = (0..WRITES).filter(|n| bytes[n * 7 % WRITES * PAGE..][..PAGE] != block(*n)).collect();
    assert!(lost.is_empty(), "{policy}: {} of {WRITES} lost, the first is {}", lost.len(), lost[0]);
}

#[test]
fn a_killed_process_loses_nothing_it_synced_under_undo() {
    kill_after_2048(test_name!(), pmem, LogPolicy::Undo);
}

#[test]
fn a_killed_process_loses_nothing_it_synced_under_redo() {
    kill_after_2048(test_name!(), pmem, LogPolicy::Redo);
}

#[test]
fn a_killed_process_loses_nothing_it_synced_on_the_page_cache() {
    kill_after_2048(test_name!(), PageCache::new, LogPolicy::Redo);
}

/// Two million syncs, each after a small write, and no wrong byte, with `UNTORN_SYNCS=2097152`; without it a
/// sixteenth as many.
#[test]
fn two_million_syncs_and_no_wrong_byte() {
    const PLACES: u64 = 100_003;
    let syncs = std::env::var("UNTORN_SYNCS").map_or(1 << 17, |syncs| syncs.parse().unwrap());
    let _limit = limit(300, "two million syncs");
    for policy in [LogPolicy::Redo, LogPolicy::Undo] {
        let options = hybrid_log(policy).log_size(64 << 20);
        let (path, file) = create_on(pmem(), &options, PLACES * 16);
        let mut expected = vec![0; PLACES as usize * 16];
        for n in 1..=syncs {
            let (at, len) = ((n * 7919 % PLACES * 16) as usize, 1 + (n % 16) as usize);
            expected[at..at + len].copy_from_slice(&[n.to_le_bytes(), n.to_be_bytes()].concat()[..len]);
            file.write_at(&expected[at..at + len], at as u64).unwrap();
            file.sync().unwrap();
        }
        assert_eq!(file.info().commit, syncs, "{policy}");
        assert!(read(&file) == expected, "{policy}");
        killed(file);
        let file = options.open_on(pmem(), &path).unwrap();
        assert_eq!(file.info().commit, syncs, "{policy}");
        assert!(read(&file) == expected, "{policy}");
    }
}

/// Writes of 1 byte to 4 MiB over the same blocks, in chunks of the real size, against a plain array; at the end the
/// process dies, and the last sync is there byte for byte.
fn mixed_sizes<M: Medium>(medium: impl Fn() -> M, policy: LogPolicy, order: Order, seed: u64) {
    const LEN: usize = 6 * MIB + 777;
    let path = scratch("data");
    let options = hybrid_log(policy).order(order).log_size(64 << 20).max_len(16 << 20);
    let mut rng = Rng::new(seed);
    let mut now = pattern(LEN, seed);
    let mut committed = now.clone();
    std::fs::write(&path, &now).unwrap();
    let mut file = options.open_on(medium(), &path).unwrap();
    let filler = pattern(4 * MIB + 256, !seed);
    for n in 0..cases(60, 150) {
        let what = rng.below(20);
        match what {
            0..=11 => {
                let most = 1 << [3, 7, 12, 13, 15, 17, 20, 22][rng.below(8) as usize];
                let len = 1 + rng.below(most) as usize;
                let near =
                    [0, 3 * PAGE, MIB, 2 * MIB - PAGE][rng.below(4) as usize] + rng.below(3 * PAGE as u64) as usize;
                let at = near.min(now.len().saturating_sub(len));
                let len = len.min(now.len());
                let bytes = &filler[n..n + len];
                file.write_at(bytes, at as u64).unwrap();
                now[at..at + len].copy_from_slice(bytes);
            }
            12 => {
                let mut tx = file.transaction();
                for piece in 0..rng.below(6) as usize {
                    let (at, len) = (piece * MIB / 2 + rng.below(9000) as usize, 1 + rng.below(30_000) as usize);
                    if at + len <= now.len() {
                        tx.write_at(&filler[piece..piece + len], at as u64).unwrap();
                        now[at..at + len].copy_from_slice(&filler[piece..piece + len]);
                    }
                }
                tx.commit().unwrap();
            }
            13..=15 => {
                file.sync().unwrap();
                committed.clone_from(&now);
            }
            16 => {
                let len = LEN - rng.below(5 * MIB as u64) as usize;
                file.resize(len as u64).unwrap();
                now.resize(len, 0);
            }
            17 => file.deploy(rng.below(now.len() as u64 / 2), now.len() as u64 / 2).unwrap(),
            18 => drop(file.reclaim().unwrap()),
            _ => {
                killed(file);
                file = options.open_on(medium(), &path).unwrap();
                now.clone_from(&committed);
            }
        }
        assert!(read(&file) == now, "{policy} {order}, seed {seed}: step {n} ({what})");
    }
}

#[test]
fn writes_of_all_sizes_over_the_same_blocks() {
    let _limit = limit(300, "writes of all sizes");
    let seed = seed("writes_of_all_sizes_over_the_same_blocks");
    for order in [Order::OneFence, Order::TwoFence] {
        for policy in [LogPolicy::Undo, LogPolicy::Redo, LogPolicy::Hybrid] {
            mixed_sizes(pmem, policy, order, seed);
        }
        mixed_sizes(PageCache::new, LogPolicy::Redo, order, seed);
    }
}
