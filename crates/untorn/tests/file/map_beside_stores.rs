//! [`AtomicMap::commit_beside_stores`]: a thread goes on storing while another commits.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::system::{in_forked_child, words};
use crate::common::{PAGE, methods, new_map, run_alone, scratch};
use untorn::options::DirtyTracking;
use untorn::{AtomicMap, Options};
use untorn_testing::{cases, test_name};

const PAGES: usize = 64;
/// Words of a page.
const WORDS: usize = PAGE / 8;

fn options(method: DirtyTracking) -> Options {
    Options::new().dirty_tracking(method)
}

/// The numbers at both ends of each page.
fn numbers(map: &[u8]) -> Vec<(u64, u64)> {
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().unwrap());
    map.chunks(PAGE).map(|page| (word(&page[..8]), word(&page[PAGE - 8..]))).collect()
}

/// The thread numbers the pages round by round, each at its end first.
#[test]
fn each_commit_has_all_that_was_stored_before_it() {
    for method in methods() {
        let (path, mut map) = new_map(&options(method), (PAGES * PAGE) as u64);
        let memory = words(map.as_mut_ptr(), PAGES * WORDS);
        let ends = AtomicBool::new(false);
        std::thread::scope(|threads| {
            let storing = threads.spawn(|| {
                for round in 1.. {
                    for page in memory.chunks(WORDS) {
                        page[WORDS - 1].store(round, Ordering::SeqCst);
                        let was = page[0].swap(round, Ordering::SeqCst);
                        assert_eq!(was, round - 1, "{method}: a commit took a store back");
                        if ends.load(Ordering::SeqCst) {
                            return;
                        }
                    }
                }
            });
            for _ in 0..cases(200, 20_000) {
                let before: Vec<u64> = memory.chunks(WORDS).map(|page| page[0].load(Ordering::SeqCst)).collect();
                map.commit_beside_stores().unwrap();
                let snapshot = map.snapshot().unwrap();
                let mut committed = vec![0; PAGES * PAGE];
                snapshot.read_at(&mut committed, 0).unwrap();
                for (page, (first, last)) in numbers(&committed).into_iter().enumerate() {
                    let now = memory[page * WORDS + WORDS - 1].load(Ordering::SeqCst);
                    assert!(first >= before[page], "{method}: page {page} lost {}, it has {first}", before[page]);
                    assert!(last >= before[page] && first <= now && last <= now, "{method}: page {page}");
                }
            }
            ends.store(true, Ordering::SeqCst);
            storing.join().unwrap();
        });
        let last = map.to_vec();
        map.commit_beside_stores().unwrap();
        assert!(*map == last[..], "{method}");
        // Now that no store runs, the memory goes back to the file, and takes what it has.
        map.commit().unwrap();
        assert!(*map == last[..], "{method}");
        map.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == last, "{method}");
    }
}

/// Recovery finds each acknowledged commit, although its pages changed while it was written.
#[test]
fn a_kill_loses_no_commit_that_stores_ran_beside() {
    run_alone(test_name!(), 60, "a map of a process that is killed", || {
        for method in methods() {
            for _ in 0..cases(5, 200) {
                let path = scratch("data");
                let child = in_forked_child(|| committing_until_killed(&path, method));
                assert_eq!(child.wait(), None, "it was killed");
                let map = AtomicMap::open(&path).unwrap();
                let found = numbers(&map);
                // The last page is the acknowledgement: what page 0 had before the last commit but one.
                let acknowledged = found[PAGES - 1].0;
                assert!(acknowledged > 0 && found[0].0 >= acknowledged, "{method}: {found:?}");
            }
        }
    });
}

fn committing_until_killed(path: &Path, method: DirtyTracking) -> i32 {
    let mut map = options(method).create_map(path, (PAGES * PAGE) as u64).unwrap();
    let memory = words(map.as_mut_ptr(), PAGES * WORDS);
    std::thread::spawn(|| {
        for round in 1.. {
            for page in memory[..(PAGES - 1) * WORDS].chunks(WORDS) {
                page.iter().for_each(|word| word.store(round, Ordering::Relaxed));
            }
        }
    });
    while memory[0].load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    for _ in 0..30 {
        let stored = memory[0].load(Ordering::SeqCst);
        map.commit_beside_stores().unwrap();
        memory[(PAGES - 1) * WORDS].store(stored, Ordering::SeqCst);
    }
    map.commit_beside_stores().unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
    0
}
