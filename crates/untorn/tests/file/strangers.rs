//! Other programs that write to a file while untorn has it open.

use std::fs::{self, FileTimes, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::common::pattern;
use untorn::options::Prefer;
use untorn::report::State;
use untorn::{AtomicFile, AtomicMap, EngineKind, Error, Options};

const ENGINES: [EngineKind; 3] = untorn::testing::ENGINES;
const LEN: usize = 64 << 10;

/// A file with a commit, and a directory of its own. None where the medium is memory, whose stores leave no trace.
fn opened(engine: EngineKind) -> Option<(tempfile::TempDir, PathBuf, AtomicFile)> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let file = Options::new().engine(engine).create(&path, LEN as u64).unwrap();
    if matches!(untorn::doctor(&path).unwrap().medium.as_str(), "pmem" | "assumed-pmem") {
        untorn_testing::skipped!("{} is on persistent memory", path.display());
        return None;
    }
    file.write_at(&pattern(LEN, 1), 0).unwrap();
    file.sync().unwrap();
    Some((dir, path, file))
}

/// Writes as another program does, a second from now, so that no test has to wait for the clock.
fn write_as_a_stranger(path: &Path, bytes: &[u8], offset: u64) {
    let file = fs::File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() + Duration::from_secs(1))).unwrap();
}

#[track_caller]
fn is_refused<T>(result: untorn::Result<T>) {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(&error, Error::ModifiedExternally { .. }), "{error}");
    assert!(error.to_string().contains("--trust"), "{error}");
}

#[test]
fn a_commit_after_another_program_s_write_is_refused_for_good() {
    for engine in ENGINES {
        let Some((_dir, path, file)) = opened(engine) else { return };
        file.write_at(b"ours", 0).unwrap();
        write_as_a_stranger(&path, b"theirs", 8192);
        is_refused(file.sync());
        assert!(matches!(file.write_at(b"more", 0), Err(Error::Poisoned { .. })), "{engine}");
        drop(file);
        let theirs = fs::read(&path).unwrap();
        assert_eq!(&theirs[8192..8198], b"theirs");
        for _ in 0..2 {
            is_refused(Options::new().open(&path));
            is_refused(Options::new().read_only(true).open(&path));
            assert_eq!(untorn::inspect(&path).unwrap().state, State::Refused, "{engine}");
        }
        assert!(fs::read(&path).unwrap() == theirs, "{engine}: a refused open wrote to the file");
        let file = Options::new().prefer(Prefer::File).open(&path).unwrap();
        let mut bytes = vec![0; LEN];
        file.read_at(&mut bytes, 0).unwrap();
        assert!(bytes == theirs, "{engine}");
        file.write_at(b"again", 0).unwrap();
        file.close().unwrap();
    }
}

#[test]
fn the_sidecar_can_be_chosen_over_another_program_s_write() {
    for engine in ENGINES {
        let Some((_dir, path, file)) = opened(engine) else { return };
        file.write_at(b"uncommitted", 0).unwrap();
        write_as_a_stranger(&path, b"theirs", 40_000);
        is_refused(file.close());
        is_refused(Options::new().open(&path));
        let file = Options::new().prefer(Prefer::Sidecar).open(&path).unwrap();
        let mut bytes = [0; 11];
        file.read_at(&mut bytes, 0).unwrap();
        assert_eq!(bytes, pattern(LEN, 1)[..11], "{engine}: the open epoch was committed");
        file.write_at(b"again", 0).unwrap();
        file.close().unwrap();
        Options::new().open(&path).unwrap();
    }
}

#[test]
fn another_length_is_noticed_and_another_name_or_mode_is_not() {
    for engine in ENGINES {
        let Some((dir, path, file)) = opened(engine) else { return };
        for round in 0..3_u8 {
            fs::set_permissions(&path, Permissions::from_mode(0o640 + u32::from(round))).unwrap();
            fs::rename(&path, dir.path().join("moved")).unwrap();
            fs::rename(dir.path().join("moved"), &path).unwrap();
            fs::hard_link(&path, dir.path().join(format!("link {round}"))).unwrap();
            fs::read(&path).unwrap();
            file.write_at(&[round; 100], u64::from(round) * 5000).unwrap();
            file.sync().unwrap();
        }
        file.resize(2 * LEN as u64).unwrap();
        file.sync().unwrap();
        let plain = fs::File::options().write(true).open(&path).unwrap();
        let modified = plain.metadata().unwrap().modified().unwrap();
        plain.set_len(3 * LEN as u64).unwrap();
        plain.set_times(FileTimes::new().set_modified(modified)).unwrap();
        is_refused(file.sync());
    }
}

/// Own writes to the data file after the other one take its trace away.
#[test]
fn a_write_before_own_ones_is_noticed_after_a_pause() {
    for engine in ENGINES {
        let Some((_dir, path, file)) = opened(engine) else { return };
        std::thread::sleep(Duration::from_millis(20));
        let theirs = fs::File::options().write(true).open(&path).unwrap();
        theirs.write_all_at(b"theirs", 100).unwrap();
        drop(theirs);
        std::thread::sleep(Duration::from_millis(20));
        for n in 0..16 {
            file.write_at(&pattern(4096, n), n * 4096).unwrap();
        }
        is_refused(file.sync());
    }
}

#[test]
fn a_map_refuses_to_commit_over_another_program_s_write() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    let mut map = AtomicMap::create(&path, LEN as u64).unwrap();
    if matches!(untorn::doctor(&path).unwrap().medium.as_str(), "pmem" | "assumed-pmem") {
        untorn_testing::skip!("{} is on persistent memory", path.display());
    }
    map[0] = 1;
    map.commit().unwrap();
    map[0] = 2;
    write_as_a_stranger(&path, b"theirs", 8192);
    is_refused(map.commit());
}

#[test]
fn a_program_may_choose_not_to_look() {
    for engine in ENGINES {
        let Some((_dir, path, file)) = opened(engine) else { return };
        file.close().unwrap();
        let file = Options::new().engine(engine).notice_changes(false).open(&path).unwrap();
        file.write_at(b"ours", 0).unwrap();
        write_as_a_stranger(&path, b"theirs", 8192);
        file.sync().unwrap();
        file.close().unwrap();
        Options::new().open(&path).unwrap();
    }
}

/// Commits, checkpoints and other handles of the same process are no strangers.
#[test]
fn a_busy_file_is_not_taken_for_a_disturbed_one() {
    for engine in ENGINES {
        let Some((_dir, path, file)) = opened(engine) else { return };
        let other = Options::new().open(&path).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let file = if thread == 0 { &file } else { &other };
                scope.spawn(move || {
                    for n in 0..untorn_testing::cases(60, 5000) {
                        file.write_at(&pattern(3000, n), (n * 7919 + thread * 4096) % (LEN as u64 - 3000)).unwrap();
                        file.sync().unwrap();
                    }
                });
            }
        });
        drop(other);
        file.close().unwrap();
    }
}
