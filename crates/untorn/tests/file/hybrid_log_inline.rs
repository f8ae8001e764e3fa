//! Short commits on a disk, whose header, bytes and record stand side by side in the hybrid log.

use crate::common::{PAGE, Pair, Rng, create_on, hybrid_log, killed, limit, pmem, read, seed, sidecar_of};
use untorn::options::{LogPolicy, Order};
use untorn::testing::storage::PageCache;
use untorn::{AtomicFile, Error, Options};

/// The incompat mask in each copy of the superblock.
const MASKS: [usize; 2] = [32, PAGE + 32];

fn options() -> Options {
    hybrid_log(LogPolicy::Redo).checkpoint_threads(0).keep_sidecar(true)
}

/// Every flush writes each page that is dirty, whatever of it changed.
#[test]
fn a_short_commit_dirties_one_page_of_the_log() {
    const COMMITS: usize = 100;
    let (path, file) = create_on(PageCache::new(), &options(), 200 * PAGE as u64);
    file.write_at(&[1; 8], 0).unwrap();
    file.sync().unwrap();
    let mut dirtied = 0;
    for commit in 1..=COMMITS {
        let before = std::fs::read(sidecar_of(&path)).unwrap();
        file.write_at(&[7; 8], (commit * PAGE + commit) as u64).unwrap();
        file.sync().unwrap();
        let after = std::fs::read(sidecar_of(&path)).unwrap();
        assert_eq!(before.len(), after.len());
        dirtied += before.chunks(PAGE).zip(after.chunks(PAGE)).filter(|(before, after)| before != after).count();
    }
    // Three lines each, some of them across the edge of two pages.
    assert!(dirtied <= COMMITS + COMMITS / 20, "{dirtied} pages in {COMMITS} commits");
}

/// A program that does not know inline entries would take epochs for lost.
#[test]
fn a_log_with_inline_entries_says_so_and_others_do_not() {
    let (path, file) = create_on(PageCache::new(), &options(), PAGE as u64);
    let masks = |side: &[u8]| MASKS.map(|at| crate::common::word(side, at));
    assert_eq!(masks(&Pair::of(&path).side.bytes), [1, 1]);
    drop(file);
    let (path, file) = create_on(pmem(), &options(), PAGE as u64);
    assert_eq!(masks(&Pair::of(&path).side.bytes), [0, 0]);
    drop(file);
}

/// What a reader without recovery finds, and then what recovery does.
fn reopened(file: AtomicFile, options: &Options, committed: &[u8], on_pmem: bool, what: &str) -> AtomicFile {
    let path = killed(file);
    let reader = options.clone().read_only(true).open_on(PageCache::new(), &path).unwrap();
    assert!(read(&reader) == committed, "{what}: a reader");
    drop(reader);
    let opened = if on_pmem { options.open_on(pmem(), &path) } else { options.open_on(PageCache::new(), &path) };
    let file = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(read(&file) == committed, "{what}: after recovery");
    file
}

/// Entries that grow within an epoch, move to a unit of their own, and come back after kills, beside a vector of bytes.
#[test]
fn short_writes_match_a_model_through_kills() {
    const LEN: usize = 4 * PAGE;
    let _limit = limit(120, "short writes through kills");
    let mut rng = Rng::new(seed("short_writes_match_a_model_through_kills"));
    for (order, log_size) in [(Order::OneFence, 64 << 20), (Order::TwoFence, 64 << 20), (Order::OneFence, 256 << 10)] {
        // The small log is cut, and its chunks are used anew, all the time.
        let options = options().order(order).log_size(log_size).record_area(1, 16);
        let (path, mut file) = create_on(PageCache::new(), &options, LEN as u64);
        let (mut working, mut committed) = (vec![0; LEN], vec![0; LEN]);
        for round in 0..400 {
            let what = format!("{order:?}, log of {log_size} bytes, round {round}");
            for _ in 0..rng.below(4) {
                let mut transaction = file.transaction();
                let mut from = 0;
                for _ in 0..=rng.below(3) {
                    let most = if rng.below(5) == 0 { 2000 } else { 90 };
                    let len = 1 + rng.below(most) as usize;
                    let at = from + rng.below(1500) as usize;
                    if at + len > LEN {
                        break;
                    }
                    let bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
                    transaction.write_at(&bytes, at as u64).unwrap();
                    working[at..at + len].copy_from_slice(&bytes);
                    from = at + len;
                }
                transaction.commit().unwrap();
                assert!(read(&file) == working, "{what}");
            }
            if rng.below(3) > 0 {
                file.sync().unwrap();
                committed.clone_from(&working);
            }
            if rng.below(8) == 0 {
                file = reopened(file, &options, &committed, rng.below(4) == 0, &what);
                working.clone_from(&committed);
                file.close().unwrap();
                file = options.open_on(PageCache::new(), &path).unwrap();
            }
        }
        file.sync().unwrap();
        file.settle().unwrap();
        assert!(std::fs::read(&*path).unwrap() == working, "{order:?}, log of {log_size} bytes");
    }
}

/// A committed epoch that was damaged later is an error, and no older commit.
#[test]
fn damage_to_an_inline_entry_is_found() {
    let (path, file) = create_on(PageCache::new(), &options(), 8 * PAGE as u64);
    for commit in 1..=3_u8 {
        file.write_at(&[0xd0 + commit; 40], 100 + u64::from(commit) * PAGE as u64).unwrap();
        file.sync().unwrap();
    }
    killed(file);
    let pair = Pair::of(&path);
    let at = pair.side.bytes.windows(40).position(|bytes| bytes == [0xd2; 40]).expect("the second epoch's bytes");
    let mut bytes = pair.side.bytes.clone();
    bytes[at + 7] ^= 1;
    pair.side.restore_as(&bytes);
    let refused = options().open_on(PageCache::new(), &path).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }), "{refused}");
}
