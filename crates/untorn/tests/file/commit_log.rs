//! The commit log on real file systems: streams in this process and in others, limits, and what is refused.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use untorn::commits::{Commit, CommitStream, changed_since, stop};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};

use crate::common::system::in_forked_child;

const LEN: usize = 300_000;

fn repeat(replica: &mut Vec<u8>, commit: &Commit) {
    replica.truncate(commit.shortest as usize);
    replica.resize(commit.len as usize, 0);
    for change in &commit.changes {
        replica[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
    }
}

fn contents(file: &AtomicFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn options(engine: EngineKind, durability: Durability) -> Options {
    Options::new().engine(engine).durability(durability)
}

fn combinations() -> impl Iterator<Item = (EngineKind, Durability)> {
    untorn::testing::ENGINES
        .into_iter()
        .flat_map(|engine| [Durability::PerCommit, Durability::PerWrite].map(|one| (engine, one)))
}

fn files_of_the_log(dir: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(dir.join(".untorn")).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = listed.filter(|path| path.to_string_lossy().contains(".commits")).collect();
    found.sort();
    found
}

#[test]
fn a_stream_gives_each_commit_once_in_any_process() {
    for (engine, durability) in combinations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = options(engine, durability).commit_log(8 << 20).create(&path, LEN as u64).unwrap();
        let from = file.last_commit().number;
        let (mut near, mut far) = (file.commits(from).unwrap(), CommitStream::open(&path, from).unwrap());
        let (mut replica, mut numbers) = (vec![0; LEN], Vec::new());
        for round in 0..20_u8 {
            file.write_at(&[round + 1; 5000], u64::from(round) * 7001).unwrap();
            file.write_at(&[round + 2; 3], u64::from(round)).unwrap();
            if round % 6 == 5 {
                file.resize(LEN as u64 - u64::from(round) * 1000).unwrap();
            }
            let told = file.sync().unwrap();
            let mut last = None;
            while let Some(commit) = near.next().unwrap() {
                assert_eq!(far.next().unwrap().unwrap(), commit);
                repeat(&mut replica, &commit);
                last = Some(commit.number);
                numbers.push(commit.number);
            }
            assert!(last.unwrap() <= told && replica == contents(&file), "{engine}, {durability}, round {round}");
        }
        assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]) && far.next().unwrap().is_none());
        // What the last ten commits changed, and nothing before them.
        let since = numbers[numbers.len() - 10];
        let changed = changed_since(&path, since).unwrap();
        assert_eq!((changed.through, changed.len), (*numbers.last().unwrap(), Some(file.len())));
        let mut again = vec![0; LEN];
        let mut stream = file.commits(from).unwrap();
        while let Some(commit) = stream.next().unwrap().filter(|commit| commit.number <= since) {
            repeat(&mut again, &commit);
        }
        again.resize(replica.len(), 0);
        let inside = |at: usize| changed.ranges.iter().any(|range| range.contains(&(at as u64)));
        let outside = again.iter().zip(&replica).enumerate().find(|&(at, (one, two))| one != two && !inside(at));
        assert_eq!(outside, None, "{engine}, {durability}: {:?}", changed.ranges);
        file.close().unwrap();
        // The writer has gone, and the log is kept up without the option.
        let file = Options::new().engine(engine).open(&path).unwrap();
        file.write_at(b"later", 77).unwrap();
        file.close().unwrap();
        let commit = far.next_within(Duration::from_secs(5)).unwrap().unwrap();
        assert_eq!((commit.changes[0].range.clone(), &commit.changes[0].bytes[..]), (77..82, &b"later"[..]));
        assert!(far.next().unwrap().is_none());
    }
}

/// Another program changes the file while it is closed: there is no commit of that, and the number stays.
#[test]
fn a_position_is_of_no_log_that_began_anew() {
    for (engine, durability) in combinations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = options(engine, durability).commit_log(1 << 20).create(&path, 9000).unwrap();
        file.write_at(&[1; 500], 4000).unwrap();
        file.sync().unwrap();
        let mut stream = file.commits(0).or_else(|_| file.commits(file.last_commit().number)).unwrap();
        while stream.next().unwrap().is_some() {}
        file.close().unwrap();
        // The close may have made a last commit.
        while stream.next().unwrap().is_some() {}
        let file = options(engine, durability).open(&path).unwrap();
        let position = stream.log_position();
        assert_eq!(position.commit(), stream.position());
        assert!(CommitStream::resume(&path, &position).unwrap().next().unwrap().is_none());
        file.close().unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4100] = 7;
        std::fs::write(&path, bytes).unwrap();
        let file = options(engine, durability).open(&path).unwrap();
        let error = CommitStream::resume(&path, &position).unwrap_err();
        let Error::CommitsMissing { from, oldest: Some(oldest), .. } = error else { panic!("{error}") };
        assert_eq!(from, position.commit());
        if from >= oldest {
            assert!(CommitStream::open(&path, from).is_ok(), "the number alone does not tell");
            assert!(error.to_string().contains("began anew"), "{error}");
        }
        let next = CommitStream::open(&path, oldest).unwrap().log_position();
        assert!(next != position && CommitStream::resume(&path, &next).is_ok());
        file.close().unwrap();
    }
}

/// Whoever backs a file up takes a snapshot and asks then; the file may be shorter by that time.
#[test]
fn a_shrink_after_a_snapshot_loses_no_change_of_it() {
    for (engine, durability) in combinations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = options(engine, durability).commit_log(8 << 20).create(&path, 100_000).unwrap();
        file.sync().unwrap();
        let since = file.last_commit().number;
        file.write_at(&[1; 500], 90_000).unwrap();
        file.sync().unwrap();
        let snapshot = file.snapshot().unwrap();
        file.resize(5000).unwrap();
        file.sync().unwrap();
        let changed = file.changed_since(since).unwrap();
        assert_eq!((changed.len, changed.shortest), (Some(5000), Some(5000)));
        let mut bytes = [0; 500];
        snapshot.read_at(&mut bytes, 90_000).unwrap();
        assert_eq!(bytes, [1; 500]);
        let covers = |range: &std::ops::Range<u64>| range.start <= 90_000 && range.end >= 90_500;
        assert!(changed.ranges.iter().any(covers), "{engine}, {durability}: {:?}", changed.ranges);
    }
}

#[test]
fn commits_of_a_map_are_in_its_stream() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let mut map = Options::new().commit_log(4 << 20).create_map(&path, 20_000).unwrap();
    let from = map.last_commit().number;
    let mut stream = CommitStream::open(&path, from).unwrap();
    let mut replica = vec![0; 20_000];
    for round in 0..5_u8 {
        map[usize::from(round) * 4000..][..300].fill(round + 1);
        map.commit().unwrap();
        repeat(&mut replica, &stream.next().unwrap().unwrap());
        assert!(replica == map[..] && stream.next().unwrap().is_none(), "round {round}");
    }
    assert_eq!(map.changed_since(stream.position()).unwrap().ranges, []);
    map.close().unwrap();
}

#[test]
fn a_killed_writer_leaves_a_stream_without_a_gap() {
    for (engine, durability) in combinations() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = options(engine, durability).commit_log(8 << 20).create(&path, 40_000).unwrap();
        let from = file.last_commit().number;
        file.close().unwrap();
        let mut stream = CommitStream::open(&path, from).unwrap();
        let mut replica = vec![0; 40_000];
        for round in 0..4_u8 {
            let child = in_forked_child(|| {
                let file = options(engine, durability).open(&path).unwrap();
                for n in 0..5_u8 {
                    file.write_at(&[16 * round + n + 1; 900], u64::from(n) * 3000).unwrap();
                    file.sync().unwrap();
                }
                // Not committed, under one of the durabilities.
                file.write_at(&[0xff; 100], 20_000).unwrap();
                std::mem::forget(file);
                0
            });
            assert_eq!(child.wait(), Some(0));
            let file = Options::new().engine(engine).open(&path).unwrap();
            while let Some(commit) = stream.next().unwrap() {
                repeat(&mut replica, &commit);
            }
            assert!(replica == contents(&file), "{engine}, {durability}, round {round}");
            file.close().unwrap();
        }
    }
}

#[test]
fn a_reader_that_falls_behind_is_told_from_where_it_can_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let limit = 1 << 20;
    let file = Options::new().commit_log(limit).create(&path, LEN as u64).unwrap();
    let from = file.last_commit().number;
    for round in 0..200_u8 {
        file.write_at(&[round; 20_000], u64::from(round) * 1000).unwrap();
        file.sync().unwrap();
    }
    let bytes: u64 = files_of_the_log(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes <= limit + 4096, "{bytes}");
    let error = file.commits(from).unwrap_err();
    let Error::CommitsMissing { oldest: Some(oldest), .. } = error else { panic!("{error}") };
    let mut stream = file.commits(oldest).unwrap();
    let mut count = 0;
    while stream.next().unwrap().is_some() {
        count += 1;
    }
    assert!((20..60).contains(&count), "{count}");
    // A commit that no log of this size can have, and nothing is lost by it.
    let other = dir.path().join("other");
    let small = Options::new().durability(Durability::PerCommit).commit_log(32 << 10);
    let small = small.create(&other, LEN as u64).unwrap();
    small.write_at(&[1; 40_000], 0).unwrap();
    let error = small.sync().unwrap_err();
    assert_eq!(error.errno(), rustix::io::Errno::NOSPC.raw_os_error(), "{error}");
    assert!(small.commits(0).unwrap().next().unwrap().is_none());
    // The open epoch is as it was, and the next try fails like this one.
    assert!(contents(&small)[..40_000].iter().all(|&byte| byte == 1) && small.sync().is_err());
    drop(small);
    let small = Options::new().commit_log(1 << 20).open(&other).unwrap();
    assert!(contents(&small).iter().all(|&byte| byte == 0));
    small.write_at(&[1; 40_000], 0).unwrap();
    small.close().unwrap();
}

#[test]
fn a_file_changed_by_another_program_begins_its_log_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = Options::new().commit_log(1 << 20).create(&path, 10_000).unwrap();
    file.write_at(b"one", 0).unwrap();
    file.close().unwrap();
    let mut stream = CommitStream::open(&path, 0).unwrap();
    let first = stream.next().unwrap().unwrap();
    std::fs::write(&path, [7; 10_000]).unwrap();
    let file = Options::new().open(&path).unwrap();
    let error = stream.next().unwrap_err();
    let Error::CommitsMissing { oldest: Some(oldest), .. } = error else { panic!("{error}") };
    assert!(oldest >= first.number);
    file.write_at(b"two", 5).unwrap();
    file.sync().unwrap();
    let commit = CommitStream::open(&path, oldest).unwrap().next().unwrap().unwrap();
    assert_eq!(commit.changes[0].bytes, b"two");
    file.close().unwrap();
    assert!(stop(&path).unwrap() && !stop(&path).unwrap());
    assert!(!dir.path().join(".untorn").exists(), "{:?}", files_of_the_log(dir.path()));
    let error = CommitStream::open(&path, 0).unwrap_err();
    assert!(matches!(error, Error::CommitsMissing { oldest: None, .. }), "{error}");
}

#[test]
fn damaged_and_planted_logs_harm_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let make = || {
        let _ = std::fs::remove_file(&path);
        let file = Options::new().commit_log(1 << 20).create(&path, 10_000).unwrap();
        for n in 0..6_u8 {
            file.write_at(&[n + 1; 700], u64::from(n) * 1000).unwrap();
            file.sync().unwrap();
        }
        file.close().unwrap();
        contents(&Options::new().read_only(true).open(&path).unwrap())
    };
    let expected = make();
    // Bits flipped anywhere: a stream errs, ends early, or gives what was committed; the file opens all the same.
    let mut judged = 0;
    for log in files_of_the_log(dir.path()) {
        let whole = std::fs::read(&log).unwrap();
        for at in (0..whole.len().min(9000)).step_by(61) {
            let mut bad = whole.clone();
            bad[at] ^= 0x20;
            std::fs::write(&log, &bad).unwrap();
            if let Ok(mut stream) = CommitStream::open(&path, 0) {
                let mut replica = vec![0; 10_000];
                while let Ok(Some(commit)) = stream.next() {
                    repeat(&mut replica, &commit);
                    let n = (0..6).rev().find(|n| replica[n * 1000] != 0).unwrap();
                    assert!(replica[..n * 1000 + 700] == expected[..n * 1000 + 700], "byte {at} of {}", log.display());
                }
                judged += 1;
            }
        }
        std::fs::write(&log, &whole).unwrap();
    }
    assert!(judged > 50, "{judged}");
    for index in 0..2 {
        assert!(make() == expected);
        let log = files_of_the_log(dir.path()).remove(index);
        std::fs::write(&log, vec![0xa5; log.metadata().unwrap().len() as usize]).unwrap();
        let file = Options::new().open(&path).unwrap();
        assert!(contents(&file) == expected);
        file.write_at(b"on", 3).and_then(|()| file.write_at(&expected[3..5], 3)).unwrap();
        file.close().unwrap();
        stop(&path).unwrap();
    }
    make();
    // One that others could write to is not believed.
    let control = files_of_the_log(dir.path()).remove(0);
    std::fs::set_permissions(&control, std::fs::Permissions::from_mode(0o666)).unwrap();
    let opened = Options::new().open(&path);
    let lets_in = std::fs::metadata(&control).unwrap().permissions().mode() & 0o066;
    assert!(opened.is_err() || lets_in == 0, "{opened:?}");
}

#[test]
fn a_start_that_no_commit_has_is_refused_with_the_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = Options::new().engine(EngineKind::Reflection).commit_log(1 << 20).create(&path, 10_000).unwrap();
    file.write_at(b"one", 0).unwrap();
    let last = file.sync().unwrap();
    let refused = |error: Error| match error {
        Error::NoSuchCommit { commit, last: told, .. } => (commit, told),
        error => panic!("{error}"),
    };
    assert_eq!(refused(file.commits(last + 9).unwrap_err()), (last + 9, last));
    assert_eq!(refused(CommitStream::open(&path, last + 9).unwrap_err()), (last + 9, last));
    // The last one is a start, whoever counts it.
    assert!(file.commits(last).unwrap().next().unwrap().is_none());
    let mut far = CommitStream::open(&path, last).unwrap();
    file.write_at(b"two", 5).unwrap();
    file.sync().unwrap();
    assert_eq!(far.next().unwrap().unwrap().changes[0].bytes, b"two");
    file.close().unwrap();
    // Closed, the note of the file tells, which may be above all numbers of the log.
    let last = untorn::inspect(&path).unwrap().commit;
    assert!(CommitStream::open(&path, last).unwrap().next().unwrap().is_none());
    let error = CommitStream::open(&path, last + 1).unwrap_err();
    assert!(error.to_string().contains(&format!("no commit {}: its last one is {last}", last + 1)), "{error}");
}

#[test]
fn handles_of_a_process_agree_on_the_commit_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let first = Options::new().create(&path, 10_000).unwrap();
    let error = Options::new().commit_log(1 << 20).open(&path).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("without a commit log"), "{error}");
    Options::new().commit_log(0).open(&path).unwrap();
    first.close().unwrap();
    let first = Options::new().commit_log(1 << 20).open(&path).unwrap();
    for other in [1 << 21, 0] {
        let error = Options::new().commit_log(other).open(&path).unwrap_err();
        assert!(error.to_string().contains("commit log of 1048576 bytes"), "{error}");
    }
    let second = Options::new().commit_log(1 << 20).open(&path).unwrap();
    let third = Options::new().open(&path).unwrap();
    third.write_at(b"x", 0).unwrap();
    third.sync().unwrap();
    assert!(second.commits(0).unwrap().next().unwrap().is_some());
    drop((first, second, third));
    // Processes that share a file agree as well.
    let path = dir.path().join("shared");
    let shared = Options::new().shared(true);
    let file = shared.clone().create(&path, 10_000).unwrap();
    let error = shared.clone().commit_log(1 << 20).open(&path).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    let child = in_forked_child(|| match shared.clone().commit_log(1 << 20).open(&path) {
        Err(error) if error.to_string().contains("commit log none") => 0,
        _ => 1,
    });
    assert_eq!(child.wait(), Some(0));
    file.close().unwrap();
    let file = shared.clone().commit_log(1 << 20).open(&path).unwrap();
    let child = in_forked_child(|| {
        let joined = shared.clone().commit_log(1 << 20).open(&path).unwrap();
        joined.write_at(b"joined", 7).unwrap();
        let from = joined.last_commit().number;
        joined.sync().unwrap();
        i32::from(joined.commits(from).unwrap().next().unwrap().unwrap().changes[0].bytes != b"joined")
    });
    assert_eq!(child.wait(), Some(0));
    file.close().unwrap();
}

#[test]
fn a_report_tells_of_the_commit_log() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = Options::new().create(&path, 10_000).unwrap();
    assert_eq!(untorn::inspect(&path).unwrap().commit_log, None);
    file.close().unwrap();
    let file = Options::new().commit_log(1 << 20).open(&path).unwrap();
    let log = untorn::inspect(&path).unwrap().commit_log.unwrap();
    assert_eq!((log.limit, log.first, log.last), (1 << 20, None, None));
    let from = file.last_commit().number;
    assert_eq!(log.oldest, from);
    for round in 0..3_u8 {
        file.write_at(&[round; 5], 9).unwrap();
        file.sync().unwrap();
    }
    let mut numbers = Vec::new();
    let mut stream = file.commits(from).unwrap();
    while let Some(commit) = stream.next().unwrap() {
        numbers.push(commit.number);
    }
    file.close().unwrap();
    let log = untorn::inspect(&path).unwrap().commit_log.unwrap();
    assert_eq!((log.oldest, log.first, log.last), (from, Some(numbers[0]), Some(numbers[2])));
    assert_eq!(log.bytes, files_of_the_log(dir.path()).iter().map(|path| path.metadata().unwrap().len()).sum::<u64>());
}
