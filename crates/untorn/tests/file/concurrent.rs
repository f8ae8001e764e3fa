//! Real threads on one file: no read sees half of a write, whatever else goes on.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::threads::{Range, together, unless_too_short};
use crate::common::system::{first_untold, in_forked_child};
use crate::common::{PAGE, ReadAt, Rng, alone, create_on, limit, pmem, scratch, seed, word};
use untorn::options::{Layout, ReadPolicy};
use untorn::testing::storage::{Latched, Medium, PageCache};
use untorn::{AtomicFile, Durability, Error, Options};

/// How long each configuration runs.
const TIME: Duration = Duration::from_millis(400);

/// Each begins and ends inside a page and inside a slice, and goes over three pages.
const OWN: Range = Range { at: 100, len: 2 * PAGE + 504 };
const SHARED: Range = Range { at: 4 * PAGE + 4000, len: 2 * PAGE };
/// Within one page.
const SMALL: Range = Range { at: 8 * PAGE + 72, len: 1000 };
/// Comes and goes with the length.
const TAIL: Range = Range { at: SHORT + 200, len: 2 * PAGE };
/// Two pages that change together.
const PAIR: [usize; 2] = [3 * PAGE + 1000, 11 * PAGE + 8];

const SHORT: usize = 12 * PAGE;
const LONG: usize = 16 * PAGE;

/// Both numbers of the pair, read at once.
fn read_pair(file: &AtomicFile) -> (u64, u64) {
    let bytes = file.bytes_at(PAIR[0] as u64, PAIR[1] + 8 - PAIR[0]);
    (word(&bytes, 0), word(&bytes, PAIR[1] - PAIR[0]))
}

fn write_pair(file: &AtomicFile, stamp: u64) {
    let mut tx = file.transaction();
    PAIR.iter().for_each(|&at| tx.write_at(&stamp.to_le_bytes(), at as u64).unwrap());
    tx.commit().unwrap();
}

thread_local! {
    /// The last number this thread saw, for each of three places.
    static SEEN: std::cell::RefCell<[u64; 3]> = const { std::cell::RefCell::new([0; 3]) };
}

/// Reads everything once: nothing is torn, and what one writer counts up never goes back.
fn look(file: &AtomicFile) {
    SHARED.read(file).unwrap();
    unless_too_short(TAIL.read(file));
    let (one, other) = read_pair(file);
    assert_eq!(one, other, "a transaction was seen by half");
    let now = [OWN.read(file).unwrap(), SMALL.read(file).unwrap(), one];
    SEEN.with_borrow_mut(|seen| {
        assert!(now.iter().zip(&*seen).all(|(now, seen)| now >= seen), "time went back: {seen:?} then {now:?}");
        *seen = now;
    });
}

fn storm<M: Medium>(medium: impl Fn() -> M, options: &Options) {
    let (path, file) = create_on(medium(), options, SHORT as u64);
    let per_write = file.info().durability == Durability::PerWrite;
    let shared = AtomicU64::new(0);
    let (own, small) = (AtomicU64::new(0), AtomicU64::new(0));
    let ran = together(
        TIME,
        &[
            &|n| {
                OWN.write(&file, n).unwrap();
                own.store(n, Ordering::Relaxed);
                SHARED.write(&file, shared.fetch_add(1, Ordering::Relaxed)).unwrap();
            },
            &|n| {
                SMALL.write(&file, n).unwrap();
                small.store(n, Ordering::Relaxed);
                SHARED.write(&file, shared.fetch_add(1, Ordering::Relaxed)).unwrap();
                unless_too_short(TAIL.write(&file, n));
            },
            &|n| write_pair(&file, n),
            &|_| look(&file),
            &|_| look(&file),
            &|n| {
                file.resize(if n % 2 == 1 { LONG } else { SHORT } as u64).unwrap();
                std::thread::sleep(Duration::from_micros(300));
            },
            &|_| {
                file.sync().unwrap();
                std::thread::sleep(Duration::from_micros(200));
            },
            &|_| {
                file.deploy(0, SHORT as u64).unwrap();
                file.reclaim().unwrap();
                std::thread::sleep(Duration::from_micros(200));
            },
        ],
    );
    eprintln!("times each thread ran: {ran:?}");
    // Dropped without closing: what was committed is whole, and in per-write mode nothing acknowledged is missing.
    drop(file);
    let file = options.open_on(medium(), &path).unwrap();
    look(&file);
    let now = (OWN.read(&file).unwrap(), SMALL.read(&file).unwrap());
    let last = (own.load(Ordering::Relaxed), small.load(Ordering::Relaxed));
    assert!(now.0 <= last.0 && now.1 <= last.1, "{now:?} after {last:?}");
    assert!(!per_write || now == last, "{now:?} after {last:?}");
    assert!(!per_write || read_pair(&file).0 == ran[2]);
    SEEN.set([0; 3]);
}

fn storms<M: Medium>(medium: impl Fn() -> M, durability: Durability) {
    let _limit = limit(120, "threads on one file");
    for layout in [Layout::Dense, Layout::Sparse] {
        for policy in [ReadPolicy::Gather, ReadPolicy::Deploy] {
            eprintln!("{durability} {layout} {policy}");
            let options = Options::new().durability(durability).layout(layout).read_policy(policy);
            // Small, so that there are many cuts and commits that need a file of their own.
            storm(&medium, &options.record_area(4, 8).max_len(1 << 20));
        }
    }
}

#[test]
fn no_torn_read_on_persistent_memory_per_write() {
    storms(pmem, Durability::PerWrite);
}

#[test]
fn no_torn_read_on_persistent_memory_per_commit() {
    storms(pmem, Durability::PerCommit);
}

#[test]
fn no_torn_read_on_a_block_medium_per_write() {
    storms(|| Latched::new(PageCache::new()), Durability::PerWrite);
}

#[test]
fn no_torn_read_on_a_block_medium_per_commit() {
    storms(|| Latched::new(PageCache::new()), Durability::PerCommit);
}

/// Writes of whole slices work everything out before they take a lock. Whatever moves the slices meanwhile, the write
/// must go where its record says: whoever wrote reads it back, at once and after recovery.
#[test]
fn whole_slices_go_where_their_record_says() {
    let _limit = limit(120, "whole slices beside deployments");
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        for layout in [Layout::Dense, Layout::Sparse] {
            let options = Options::new().durability(durability).layout(layout).record_area(4, 8);
            let medium = pmem;
            let (path, file) = create_on(medium(), &options, 4 * PAGE as u64);
            // Two writers on slices of one page, one over a whole page.
            let places = [(64_u64, 64_usize), (128, 512), (PAGE as u64, PAGE)];
            let writer = |place: usize| {
                let (at, len) = places[place];
                let file = &file;
                move |n: u64| {
                    let (written, mut read) = (vec![n as u8; len], vec![0; len]);
                    file.write_at(&written, at).unwrap();
                    file.read_at(&mut read, at).unwrap();
                    assert!(read == written, "{durability} {layout}: write {n} at {at} is lost");
                }
            };
            let (one, two, three) = (writer(0), writer(1), writer(2));
            let deploy = |_: u64| file.deploy(0, 2 * PAGE as u64).unwrap();
            let reclaim = |_: u64| {
                // Other pages come and go, so that a place that was given back is soon another's.
                file.write_at(&[0xEE; PAGE], 2 * PAGE as u64).unwrap();
                file.deploy(2 * PAGE as u64, PAGE as u64).unwrap();
                file.sync().unwrap();
                file.reclaim().unwrap();
            };
            let ran = together(TIME, &[&one, &two, &three, &deploy, &deploy, &reclaim]);
            file.sync().unwrap();
            drop(file);
            let file = options.open_on(medium(), &path).unwrap();
            for ((at, len), n) in places.into_iter().zip(ran) {
                assert!(
                    file.bytes_at(at, len) == vec![n as u8; len],
                    "{durability} {layout}: the last write at {at} is lost"
                );
            }
        }
    }
}

/// The checks above notice a tear: without an engine that is atomic there are some.
#[test]
fn plain_writes_tear() {
    let _limit = limit(60, "plain writes");
    let options = Options::new().engine(untorn::EngineKind::Passthrough).durability(Durability::PerCommit);
    let (_dir, file) = create_on(pmem(), &options, SHORT as u64);
    let torn = AtomicU64::new(0);
    let writer = |n| OWN.write(&file, n).unwrap();
    let reader = |_| {
        let bytes = file.bytes_at(OWN.at as u64, OWN.len);
        torn.fetch_add(u64::from(bytes[..8] != bytes[OWN.len - 8..]), Ordering::Relaxed);
    };
    // How soon depends on who runs when, and on one core on where a thread is interrupted. If it never comes the limit
    // ends it.
    while torn.load(Ordering::Relaxed) == 0 {
        together(Duration::from_millis(200), &[&writer, &reader]);
    }
    assert_ne!(torn.into_inner(), 0);
}

/// A length that changes within a slice: what was behind the end is zeros when it comes back, and never half of a
/// write.
#[test]
fn lengths_change_under_readers_byte_by_byte() {
    let _limit = limit(60, "changing lengths");
    const FROM: usize = 5000;
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let options = Options::new().durability(durability).record_area(4, 8).max_len(1 << 20);
        let (_dir, file) = create_on(pmem(), &options, SHORT as u64);
        let seed = seed("lengths_change_under_readers_byte_by_byte");
        let change = |n: u64| {
            file.write_at(&vec![(n % 251 + 1) as u8; SHORT - FROM], FROM as u64).unwrap();
            file.resize(FROM as u64 + Rng::new(seed ^ n).below((SHORT - FROM) as u64)).unwrap();
            file.resize(SHORT as u64).unwrap();
        };
        let look = |_: u64| {
            let mut bytes = vec![0; SHORT - FROM];
            if unless_too_short(file.read_at(&mut bytes, FROM as u64)).is_some() {
                let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
                assert!(bytes[..end].iter().all(|&byte| byte == bytes[0]), "{durability}: half of a write");
                assert!(bytes[end..].iter().all(|&byte| byte == 0), "{durability}: what was cut off came back");
            }
        };
        together(TIME, &[&change, &look, &look]);
    }
}

/// Handles of one process never keep each other out, whenever they come and go.
#[test]
fn opening_and_letting_go_at_once() {
    let _limit = limit(60, "opening and closing");
    let path = scratch("data");
    let options = Options::new().durability(Durability::PerWrite).record_area(2, 8).max_len(1 << 20);
    options.create(&path, 4 * PAGE as u64).unwrap().close().unwrap();
    let seed = seed("opening_and_letting_go_at_once");
    let settled = AtomicU64::new(0);
    let job = |thread: u64| {
        let (options, path, settled) = (&options, &path, &settled);
        move |n: u64| {
            let at = thread * PAGE as u64 + 60;
            let file = options.open(path).unwrap_or_else(|error| panic!("open {n} of thread {thread}: {error}"));
            assert_eq!(file.word_at(at as usize), n - 1, "an acknowledged write of thread {thread} is gone");
            file.write_at(&n.to_le_bytes(), at).unwrap();
            match Rng::new(seed ^ n ^ thread << 32).below(3) {
                0 => drop(file),
                1 => file.close().unwrap_or_else(|error| panic!("close {n} of thread {thread}: {error}")),
                _ => match file.settle() {
                    Ok(()) => drop(settled.fetch_add(1, Ordering::Relaxed)),
                    Err(Error::InUse { .. }) => {}
                    Err(error) => panic!("settle {n} of thread {thread}: {error}"),
                },
            }
        }
    };
    let ran = together(4 * TIME, &[&job(0), &job(1), &job(2), &job(3)]);
    eprintln!("times each thread ran: {ran:?}");
    eprintln!("settled meanwhile: {}", settled.load(Ordering::Relaxed));
    // Alone at last, it settles for certain, and every thread's last write is in the plain file.
    options.open(&path).unwrap().settle().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    for (thread, ran) in ran.iter().enumerate() {
        let at = thread * PAGE + 60;
        assert_eq!(&bytes[at..at + 8], ran.to_le_bytes(), "the last write of thread {thread}");
    }
}

/// A handle means nothing in a forked child, and what the child does with it harms nobody.
#[test]
fn a_forked_child_is_told() {
    alone!(60, "a forked child");
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let path = scratch("data");
        let options = Options::new().durability(durability).max_len(1 << 20);
        let file = options.create(&path, SHORT as u64).unwrap();
        OWN.write(&file, 1).unwrap();
        let child = in_forked_child(|| {
            let mut tx = file.transaction();
            let added = tx.write_at(&[1], 5);
            let outcomes = [
                file.read_at(&mut [0; 8], 0),
                file.read_at(&mut [0; 2 * PAGE], 0),
                file.write_at(&[9; 64], 0),
                file.write_at(&[9; 2 * PAGE], 0),
                file.sync().map(drop),
                file.resize(10),
                file.deploy(0, 64),
                file.reclaim().map(drop),
                added.and_then(|()| tx.commit()),
                file.clone().settle(),
                file.clone().close(),
            ];
            first_untold(&outcomes, Some(&path))
        });
        assert_eq!(child.wait(), Some(0), "{durability}: the number of the call that did not say so");
        assert_eq!(OWN.read(&file).unwrap(), 1);
        OWN.write(&file, 2).unwrap();
        file.close().unwrap();
        let file = options.open(&path).unwrap();
        assert_eq!(OWN.read(&file).unwrap(), 2);
        assert!(!file.info().recovery.was_needed);
    }
}
