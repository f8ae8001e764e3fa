//! Commit numbers grow for the life of a file, and each has the time when it was made.

use std::path::Path;
use std::time::{Duration, SystemTime};

use untorn::options::Prefer;
use untorn::testing::storage::{Access, Medium, MediumFile, PageCache};
use untorn::{AtomicFile, Durability, EngineKind, Options, inspect, recover};

use crate::common::system::in_forked_child;

const LEN: u64 = 20_000;

/// Commits once and returns the number.
fn commit(file: &AtomicFile, byte: u8) -> u64 {
    file.write_at(&[byte], u64::from(byte) * 70).unwrap();
    file.sync().unwrap();
    file.last_commit().number
}

#[test]
fn numbers_grow_through_closes_engines_resizes_and_kills() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    drop(Options::new().create(&path, LEN).unwrap());
    let mut last = 0;
    for round in 0..24_u8 {
        let engine = if round % 4 < 2 { EngineKind::Reflection } else { EngineKind::HybridLog };
        let durability = if round % 8 < 4 { Durability::PerCommit } else { Durability::PerWrite };
        let options = Options::new().engine(engine).durability(durability).keep_sidecar(round % 3 == 1);
        let before = SystemTime::now() - Duration::from_secs(1);
        let opened = match options.open(&path) {
            // Of a file whose sidecar was kept another engine takes over only after a clean close of its own.
            Err(untorn::Error::OtherEngine { .. }) => Options::new().open(&path).unwrap(),
            opened => opened.unwrap(),
        };
        assert_eq!(opened.last_commit().number, last, "round {round}");
        if round % 5 == 4 {
            opened.close().unwrap();
            // A process that is killed after its commit.
            let child = in_forked_child(|| {
                let file = Options::new().open(&path).unwrap();
                let number = commit(&file, round);
                if number > last {
                    std::mem::forget(file)
                } else {
                    return 1;
                }
                0
            });
            assert_eq!(child.wait(), Some(0), "round {round}");
            let report = inspect(&path).unwrap();
            assert!(report.commit > last && report.committed.unwrap() > before, "{report:?}");
            last = report.commit;
            continue;
        }
        if round % 7 == 3 {
            opened.resize(LEN + u64::from(round)).unwrap();
        }
        let number = commit(&opened, round);
        assert!(number > last, "round {round}: {number} after {last}");
        last = number;
        let told = opened.info();
        assert_eq!((told.commit, told.committed), (last, opened.last_commit().time));
        assert!(told.committed.unwrap() > before);
        opened.close().unwrap();
        let report = inspect(&path).unwrap();
        assert_eq!(report.commit, last, "round {round}: {report:?}");
        // A plain file has it to the millisecond.
        let apart = told.committed.unwrap().duration_since(report.committed.unwrap()).unwrap();
        assert!(apart < Duration::from_millis(1), "round {round}: {apart:?}");
        let reader = Options::new().read_only(true).open(&path).unwrap();
        assert_eq!(reader.last_commit().number, last, "round {round}");
    }
}

fn note(path: &Path) -> impl MediumFile {
    PageCache::new().open(path, Access::ReadWrite, LEN).unwrap()
}

#[test]
fn a_note_leads_upwards_and_forged_ones_do_no_harm() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = Options::new().create(&path, LEN).unwrap();
    for byte in 0..9 {
        commit(&file, byte);
    }
    let last = file.last_commit().number;
    file.close().unwrap();
    let kept = note(&path).commit_note().unwrap().unwrap();
    let other = dir.path().join("other");
    drop(Options::new().create(&other, LEN).unwrap());
    note(&other).set_commit_note(kept).unwrap();
    let copy = Options::new().engine(EngineKind::HybridLog).open(&other).unwrap();
    assert_eq!(copy.last_commit().number, last);
    assert_eq!(commit(&copy, 1), last + 1);
    copy.close().unwrap();
    for forged in [[0; 16], [0xff; 16], [0x55; 16]] {
        note(&other).set_commit_note(forged).unwrap();
        for engine in untorn::testing::ENGINES {
            let file = Options::new().engine(engine).open(&other).unwrap();
            assert!(commit(&file, 2) < 1 << 61);
            file.close().unwrap();
        }
        assert!(inspect(&other).unwrap().commit < 1 << 61);
    }
}

#[test]
fn no_number_of_a_dropped_commit_comes_again() {
    let dir = tempfile::tempdir().unwrap();
    for engine in untorn::testing::ENGINES {
        let path = dir.path().join(engine.as_str());
        drop(Options::new().create(&path, LEN).unwrap());
        let child = in_forked_child(|| {
            let file = Options::new().engine(engine).open(&path).unwrap();
            for byte in 0..40 {
                commit(&file, byte);
            }
            std::mem::forget(file);
            0
        });
        assert_eq!(child.wait(), Some(0));
        let told = inspect(&path).unwrap().commit;
        assert!(told >= 40);
        recover(&path, &Options::new().prefer(Prefer::File)).unwrap();
        let file = Options::new().engine(engine).open(&path).unwrap();
        assert!(file.last_commit().number > told, "{engine}: {} after {told}", file.last_commit().number);
        file.close().unwrap();
    }
}
