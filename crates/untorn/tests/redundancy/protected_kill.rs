//! Processes that are killed while they store to a protected file, cover it and scrub it: of no page anything is said
//! afterwards that is not so.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use crate::common::system::in_forked_child;
use crate::common::{PAGE, Rng, pattern, run_alone};
use crate::fixture::{Place, by_hand};
use untorn::redundancy::{Damage, ProtectOptions};
use untorn::testing::storage::{Dax, Medium, MediumKind, PageCache};
use untorn_testing::test_name;

const PAGES: usize = 41;
const LEN: usize = PAGES * PAGE - 100;
/// Processes that are killed, one after the other, on the same file.
const KILLS: u64 = 6;

fn pmem() -> Dax {
    Dax::new(MediumKind::AssumedPmem)
}

/// What the process does until it is killed: it tells of each store when that is made.
fn live<M: Medium>(medium: M, path: &Path, options: &ProtectOptions, seed: u64, mut told: impl Write) -> i32 {
    let mut rng = Rng::new(seed);
    let protected = options.open_on(medium, path).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    for store in 0..100_000_u64 {
        let at = rng.next_u64() as usize % (LEN - 1);
        let len = 1 + rng.next_u64() as usize % (2 * PAGE).min(LEN - at - 1).max(1);
        let stores = protected.announce(at as u64..(at + len) as u64).unwrap();
        file.write_all_at(&pattern(len, rng.next_u64()), at as u64).unwrap();
        drop(stores);
        match store % 8 {
            3 => protected.sync().unwrap(),
            6 => assert!(protected.scrub().unwrap().is_clean()),
            _ => {}
        }
        told.write_all(b".").unwrap();
    }
    0
}

fn kill<M: Medium>(medium: impl Fn() -> M, options: &ProtectOptions) {
    let place = Place::new(&pattern(LEN, 1));
    let path = &place.path;
    // What a process finds out once is found out before the fork.
    options.open_on(medium(), path).unwrap().close().unwrap();
    for round in 0..KILLS {
        let (mut here, there) = std::io::pipe().unwrap();
        let child = in_forked_child(|| live(medium(), path, options, round, &there));
        drop(there);
        // So many stores were made; it is amid what comes after them.
        here.read_exact(&mut vec![0; 1 + (round * 5 % 17) as usize]).unwrap();
        child.kill();
        assert_eq!(child.wait(), None, "it was to be killed");

        let left = place.bytes();
        let report = ProtectOptions::new().look_on(medium(), path).unwrap().repair().unwrap();
        // A table block that was being written over may be torn: its other copy counts.
        let said: Vec<&Damage> =
            report.scrub.damage.iter().filter(|damage| !matches!(damage, Damage::Table { .. })).collect();
        assert!(said.is_empty() && report.repaired.is_empty() && report.lost.is_empty(), "round {round}: {report:?}");
        assert!(place.bytes() == left, "round {round}: a tool changed the file");

        let protected = by_hand().open_on(medium(), path).unwrap();
        protected.sync().unwrap();
        let coverage = protected.coverage().unwrap();
        assert_eq!((coverage.uncovered, &coverage.unknown[..]), (0, &[][..]), "round {round}");
        let page = round as usize * 7 % PAGES;
        place.write(page * PAGE, &[!left[page * PAGE]]);
        assert_eq!(protected.repair().unwrap().repaired.len(), 1, "round {round}");
        assert!(place.bytes() == left, "round {round}: page {page} is not what it was");
        protected.close().unwrap();
    }
}

#[test]
fn a_killed_process_leaves_no_false_coverage() {
    // Alone: it forks a process that starts threads.
    run_alone(test_name!(), 240, "killed processes", || {
        let options = ProtectOptions::new().period(Duration::from_millis(1)).scrub_every(Duration::from_millis(1));
        kill(PageCache::new, &options);
        kill(pmem, &options.clone().stripe(3));
    });
}

#[test]
fn a_killed_synchronous_process_leaves_no_false_coverage() {
    run_alone(test_name!(), 240, "killed processes", || {
        let options = ProtectOptions::new().period(Duration::ZERO).scrub_every(Duration::from_millis(1));
        kill(PageCache::new, &options);
        kill(pmem, &options.clone().stripe(3));
    });
}
