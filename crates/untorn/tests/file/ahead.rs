//! Deploying while the file is open: closing has less to copy, and nothing else changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::counting::Counting;
use crate::common::{PAGE, names, on_disk, pattern, read, scratch};
use untorn::options::Layout;
use untorn::testing::storage::PageCache;
use untorn::{Durability, EngineKind, Options};
use untorn_testing::{SplitMix, cases, seed};

const PAGES: usize = 40;

fn options() -> Options {
    // By the call of the test, and never by a thread.
    Options::new().engine(EngineKind::Reflection).record_area(2, 8).deploy_ahead(Some(u64::MAX))
}

#[test]
fn closing_copies_only_what_is_not_at_home() {
    for (durability, layout) in [
        (Durability::PerCommit, Layout::Dense),
        (Durability::PerCommit, Layout::Sparse),
        (Durability::PerWrite, Layout::Dense),
    ] {
        let path = scratch("data");
        let medium = Counting::new(PageCache::new());
        let phases = Arc::new(Mutex::new(Vec::new()));
        let shown = phases.clone();
        let options = options().durability(durability).layout(layout).progress(move |step| {
            let mut phases = shown.lock().unwrap();
            if phases.last() != Some(&step.phase) {
                phases.push(step.phase);
            }
        });
        let file = options.create_on(medium.clone(), &path, (PAGES * PAGE) as u64).unwrap();
        let mut model = pattern(PAGES * PAGE, 1);
        file.write_at(&model, 0).unwrap();
        // What no commit covers stays.
        if durability == Durability::PerCommit {
            assert_eq!(file.deploy_ahead().unwrap(), 0);
        }
        file.sync().unwrap();
        let commit = file.info().commit;
        assert_eq!(file.deploy_ahead().unwrap(), PAGES as u64);
        assert!(std::fs::read(&path).unwrap() == model, "everything is at home");
        let before = medium.counts();
        assert_eq!((file.deploy_ahead().unwrap(), medium.counts().bytes), (0, before.bytes));
        let info = file.info();
        assert_eq!((info.commit, info.reflected_pages), (commit, PAGES as u64), "nothing was committed");
        // Two commits bring the slices of a page back to where they were; its copy at home is an old one then.
        for round in 2..4 {
            let bytes = pattern(PAGE, round);
            file.write_at(&bytes, (7 * PAGE) as u64).unwrap();
            model[7 * PAGE..8 * PAGE].copy_from_slice(&bytes);
            file.sync().unwrap();
        }
        let before = medium.counts().bytes;
        phases.lock().unwrap().clear();
        file.close().unwrap();
        assert_eq!(*phases.lock().unwrap(), ["deploying pages", "flushing the file"]);
        let copied = medium.counts().bytes - before;
        assert!((PAGE as u64..4 * PAGE as u64).contains(&copied), "{copied} bytes were written, for one page");
        assert!(std::fs::read(&path).unwrap() == model, "{durability:?}, {layout:?}");
        assert_eq!(names(path.parent().unwrap()), ["data"]);
    }
}

/// A write goes to the copies at home, where the page went ahead, and then fails for its next page.
#[test]
fn a_failed_write_over_a_page_at_home_leaves_the_commit() {
    for durability in [Durability::PerCommit, Durability::PerWrite] {
        let path = scratch("data");
        let medium = Counting::new(PageCache::new());
        let file = options().durability(durability).create_on(medium.clone(), &path, (4 * PAGE) as u64).unwrap();
        let mut model = vec![0; 4 * PAGE];
        model[..PAGE].copy_from_slice(&pattern(PAGE, 1));
        file.write_at(&model[..PAGE], 0).unwrap();
        file.sync().unwrap();
        assert_eq!(file.deploy_ahead().unwrap(), 1);
        medium.refuse_writes_to(file.info().sidecar.as_deref());
        file.write_at(&[9; 2 * PAGE], 0).unwrap_err();
        medium.refuse_writes_to(None);
        assert!(read(&file) == model);
        file.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "{durability:?}");
    }
}

#[test]
fn a_resize_after_pages_went_home_shows_zeros() {
    for (short, long) in [(3 * PAGE + 100, 5 * PAGE), (2 * PAGE, 6 * PAGE + 9), (70, 3 * PAGE)] {
        let path = scratch("data");
        let file = options().create(&path, (4 * PAGE) as u64).unwrap();
        let mut model = pattern(4 * PAGE, 3);
        file.write_at(&model, 0).unwrap();
        file.sync().unwrap();
        for len in [short, long] {
            assert!(file.deploy_ahead().unwrap() > 0);
            file.resize(len as u64).unwrap();
            model.resize(len, 0);
            assert!(read(&file) == model);
            file.write_at(&[7], 5).unwrap();
            model[5] = 7;
            file.sync().unwrap();
        }
        file.deploy_ahead().unwrap();
        file.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "{short}, then {long}");
    }
}

#[test]
fn writers_and_readers_never_meet_a_page_on_its_way_home() {
    for durability in [Durability::PerCommit, Durability::PerWrite] {
        let path = scratch("data");
        let file = options().durability(durability).create(&path, (PAGES * PAGE) as u64).unwrap();
        let (stop, seed) = (AtomicBool::new(false), seed("ahead"));
        let half = PAGES / 2;
        let writer = |first: usize, seed: u64| {
            let mut rng = SplitMix::new(seed);
            let mut model = vec![0; half * PAGE];
            let mut seen = model.clone();
            for _ in 0..cases(300, 30_000) {
                let at = rng.next_u64() as usize % (half * PAGE - 300);
                let bytes = pattern(1 + rng.next_u64() as usize % 300, rng.next_u64());
                file.write_at(&bytes, (first * PAGE + at) as u64).unwrap();
                model[at..at + bytes.len()].copy_from_slice(&bytes);
                if rng.next_u64().is_multiple_of(3) {
                    file.sync().unwrap();
                    file.read_at(&mut seen, (first * PAGE) as u64).unwrap();
                    assert!(seen == model, "seed {seed}");
                }
            }
            model
        };
        let model = thread::scope(|scope| {
            let ahead = scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    file.deploy_ahead().unwrap();
                }
            });
            let other = scope.spawn(|| writer(half, seed ^ 1));
            let mut model = writer(0, seed);
            model.extend(other.join().unwrap());
            stop.store(true, Ordering::Relaxed);
            ahead.join().unwrap();
            model
        });
        file.sync().unwrap();
        file.deploy_ahead().unwrap();
        file.close().unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "seed {seed}");
    }
}

#[test]
fn a_thread_takes_cold_pages_home_while_the_file_is_open() {
    let path = on_disk("data");
    let options = options().durability(Durability::PerCommit).deploy_ahead(Some((PAGES * PAGE / 2) as u64));
    let file = options.create(&path, (PAGES * PAGE) as u64).unwrap();
    let model = pattern(PAGES * PAGE, 5);
    file.write_at(&model, 0).unwrap();
    file.sync().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::read(&path).unwrap() != model {
        assert!(Instant::now() < deadline, "no thread took anything home");
        thread::sleep(Duration::from_millis(50));
    }
    assert!(read(&file) == model && file.info().reflected_pages == PAGES as u64);
    file.close().unwrap();
    assert!(std::fs::read(&path).unwrap() == model);
    assert_eq!(names(path.parent().unwrap()), ["data"]);
}
