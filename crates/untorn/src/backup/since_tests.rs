//! Increments by the commit log, and the numbers of restored files.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use untorn_testing::cases;

use super::*;
use crate::file::AtomicFile;
use crate::open::commits::{self, CommitStream};
use crate::options::{Durability, EngineKind, Options};

const LEN: u64 = (3 << 20) + 77;
const LOG: u64 = 16 << 20;

fn logged(dir: &Path, name: &str) -> AtomicFile {
    Options::new().commit_log(LOG).create(dir.join(name), LEN).unwrap()
}

fn write(file: &AtomicFile, at: u64, bytes: &[u8]) {
    file.write_at(bytes, at).unwrap();
    file.sync().unwrap();
}

/// Makes a backup, and says of which commit.
fn back_up(file: &AtomicFile, dest: &Path, options: BackupOptions) -> u64 {
    create(&file.snapshot().unwrap(), dest, &options.verify(true)).unwrap().commit
}

fn restored(chain: &[&PathBuf], dir: &Path) -> Vec<u8> {
    let again = dir.join("again");
    restore(chain, &again, &BackupOptions::new().replace(true)).unwrap();
    std::fs::read(&again).unwrap()
}

fn contents(file: &AtomicFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

#[test]
fn an_increment_by_the_log_has_what_changed() {
    for engine in crate::testing::ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let file = Options::new().engine(engine).commit_log(LOG).create(dir.path().join("data"), 8 << 30).unwrap();
        let [full, one, two] = ["full", "one", "two"].map(|name| dir.path().join(name));
        write(&file, 5 << 30, &[1; 40_000]);
        let commit = back_up(&file, &full, BackupOptions::new());
        write(&file, 100, b"first");
        write(&file, 5 << 30, &[0; 40_000]);
        let made = create(&file.snapshot().unwrap(), &one, &BackupOptions::new().since(commit)).unwrap();
        assert_eq!((made.bytes, made.base), (16 << 10, Some(commit)), "zeros take no space");
        // Across the length from which on chunks are larger.
        file.resize(40 << 30).unwrap();
        write(&file, 39 << 30, b"far");
        let made = create(&file.snapshot().unwrap(), &two, &BackupOptions::new().since(made.commit)).unwrap();
        assert_eq!((made.len, made.bytes), (40 << 30, 64 << 10));
        let again = dir.path().join("again");
        restore(&[&full, &one, &two], &again, &BackupOptions::new()).unwrap();
        let (again, mut bytes) = (std::fs::File::open(&again).unwrap(), [9; 5]);
        for (at, expected) in [(100, b"first"), (5 << 30, &[0; 5]), (39 << 30, b"far\0\0"), ((40 << 30) - 5, &[0; 5])] {
            again.read_exact_at(&mut bytes, at).unwrap();
            assert_eq!(&bytes, expected, "{engine}, at {at}");
        }
        assert!(again.metadata().unwrap().blocks() * 512 < 1 << 20, "{engine}");
        // Chunks of two lengths are not put together.
        let base = BackupOptions::new().base(&full).base(&one).base(&two);
        let refused = create(&file.snapshot().unwrap(), &dir.path().join("three"), &base).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }) && refused.to_string().contains("full backup"), "{refused}");
    }
}

#[test]
fn a_chain_by_the_log_that_is_wrong_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, other) = (logged(dir.path(), "data"), logged(dir.path(), "other"));
    let at = |name: &str| dir.path().join(name);
    let (full, one, two, three) = (at("full"), at("one"), at("two"), at("three"));
    let (foreign, early) = (at("foreign"), at("early"));
    write(&file, 70_000, b"1");
    let first = back_up(&file, &full, BackupOptions::new());
    write(&file, 70_000, b"2");
    let second = back_up(&file, &one, BackupOptions::new().since(first));
    write(&file, 70_000, b"3");
    let third = back_up(&file, &two, BackupOptions::new().since(second));
    write(&file, 70_000, b"4");
    back_up(&file, &three, BackupOptions::new().base(&full).base(&one).base(&two));
    // Another file whose commits have the same numbers.
    write(&other, 70_000, b"1");
    write(&other, 70_000, b"2");
    back_up(&other, &foreign, BackupOptions::new().since(first));
    write(&other, 70_000, b"3");
    let again = dir.path().join("again");
    for (chain, why) in [
        (vec![&one], "name that one before it"),
        (vec![&full, &two], "the changes in between are missing"),
        (vec![&full, &one, &two, &one], "only, and"),
        (vec![&full, &foreign], "is of another file"),
        (vec![&full, &one, &three], "is another one"),
        (vec![&full, &one, &full], "it is a full backup"),
    ] {
        let refused = restore(&chain, &again, &BackupOptions::new()).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }) && refused.to_string().contains(why), "{refused}");
        assert!(!again.exists());
    }
    assert_eq!(restored(&[&full, &one, &two, &three], dir.path()), contents(&file));
    // One increment over more than one, and the same changes again.
    let all = at("all");
    back_up(&file, &all, BackupOptions::new().since(first));
    for chain in [&[&full, &all][..], &[&full, &one, &all], &[&full, &one, &two, &three, &all]] {
        assert_eq!(restored(chain, dir.path()), contents(&file));
    }
    // Damage in an increment is noticed.
    OpenOptions::new().write(true).open(&one).unwrap().write_all_at(b"x", 9).unwrap();
    std::fs::remove_file(&again).unwrap();
    let refused = restore(&[&full, &one], &again, &BackupOptions::new()).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }) && !again.exists(), "{refused}");
    // A backup from before the log, and one from before the log began anew.
    let plain = AtomicFile::create(at("plain"), LEN).unwrap();
    let commit = back_up(&plain, &early, BackupOptions::new());
    plain.close().unwrap();
    let open = |limit| Options::new().commit_log(limit).open(at("plain")).unwrap();
    let (late, later) = (at("late"), at("later"));
    let begun = open(LOG);
    back_up(&begun, &late, BackupOptions::new().since(commit));
    let refused = restore(&[&early, &late], &again, &BackupOptions::new()).unwrap_err();
    assert!(refused.to_string().contains("had no commit log"), "{refused}");
    let whole = at("whole");
    let commit = back_up(&begun, &whole, BackupOptions::new());
    begun.close().unwrap();
    assert!(commits::stop(at("plain")).unwrap());
    std::fs::write(at("plain"), vec![9; LEN as usize]).unwrap();
    back_up(&open(LOG), &later, BackupOptions::new().since(commit));
    let refused = restore(&[&whole, &later], &again, &BackupOptions::new()).unwrap_err();
    assert!(refused.to_string().contains("has begun anew"), "{refused}");
    assert_eq!(third, second + 1);
}

#[test]
fn an_increment_that_the_log_cannot_give_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("dest");
    let file = logged(dir.path(), "data");
    write(&file, 0, b"1");
    let refused = |file: &AtomicFile, options: BackupOptions| {
        let refused = create(&file.snapshot().unwrap(), &dest, &options).unwrap_err();
        let left = std::fs::read_dir(dir.path())
            .unwrap()
            .any(|entry| entry.unwrap().file_name().to_str().unwrap().contains("dest"));
        assert!(!left, "{refused}");
        refused
    };
    let last = file.last_commit().number;
    let early = refused(&file, BackupOptions::new().since(last + 1));
    assert!(matches!(&early, Error::Invalid { what, .. } if what.contains("not made yet")), "{early}");
    for options in [BackupOptions::new().resume(true), BackupOptions::new().base(&dest)] {
        assert!(matches!(refused(&file, options.since(last)), Error::Invalid { .. }));
    }
    // A base that tells only what changed.
    let (full, one) = (dir.path().join("full"), dir.path().join("one"));
    back_up(&file, &full, BackupOptions::new());
    back_up(&file, &one, BackupOptions::new().since(last));
    let alone = refused(&file, BackupOptions::new().base(&one));
    assert!(matches!(&alone, Error::Invalid { what, .. } if what.contains("made by --since")), "{alone}");
    let unlogged = AtomicFile::create(dir.path().join("unlogged"), LEN).unwrap();
    let missing = refused(&unlogged, BackupOptions::new().since(0));
    assert!(matches!(missing, Error::CommitsMissing { oldest: None, .. }), "{missing}");
    // A log that is too small for all commits.
    let path = dir.path().join("small");
    let small = Options::new().commit_log(64 << 10).create(&path, LEN).unwrap();
    let first = small.last_commit().number;
    (0..20).for_each(|round| write(&small, 0, &[round; 9000]));
    let missing = refused(&small, BackupOptions::new().since(first));
    let Error::CommitsMissing { oldest: Some(oldest), .. } = missing else { panic!("{missing}") };
    back_up(&small, &dest, BackupOptions::new().since(oldest));
}

/// Commits that come while the backup is made are none of it, also if they take changed bytes away again.
#[test]
fn later_commits_change_nothing_of_an_increment() {
    let dir = tempfile::tempdir().unwrap();
    let file = logged(dir.path(), "data");
    let (full, one) = (dir.path().join("full"), dir.path().join("one"));
    write(&file, 0, b"1");
    let commit = back_up(&file, &full, BackupOptions::new());
    write(&file, 3 << 20, b"changed");
    let (snapshot, expected) = (file.snapshot().unwrap(), contents(&file));
    file.resize(1000).unwrap();
    write(&file, 0, b"2");
    create(&snapshot, &one, &BackupOptions::new().since(commit)).unwrap();
    assert!(restored(&[&full, &one], dir.path()) == expected);
}

/// A crash may come between a commit and the confirmation of its record.
#[test]
fn a_commit_that_is_not_confirmed_is_in_the_increment() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let file = logged(dir.path(), "data");
    let [full, one, two] = ["full", "one", "two"].map(|name| dir.path().join(name));
    write(&file, 0, b"1");
    let first = back_up(&file, &full, BackupOptions::new());
    let inode = path.metadata().unwrap().ino();
    let control = dir.path().join(format!(".untorn/{inode}.commits"));
    let control = OpenOptions::new().read(true).write(true).open(control).unwrap();
    let mut confirmed = [0; 2048];
    control.read_exact_at(&mut confirmed, 2048).unwrap();
    write(&file, 70_000, b"2");
    let expected = contents(&file);
    file.close().unwrap();
    control.write_all_at(&confirmed, 2048).unwrap();
    let mut stream = CommitStream::open(&path, first).unwrap();
    assert!(stream.next().unwrap().is_none(), "not confirmed");
    let made = create(&Snapshot::open(&path).unwrap(), &one, &BackupOptions::new().since(first)).unwrap();
    assert!(restored(&[&full, &one], dir.path()) == expected);
    // The commit may be made again, so the next increment has it, too.
    let whole = create(&Snapshot::open(&path).unwrap(), &two, &BackupOptions::new()).unwrap();
    assert_eq!((made.commit, whole.commit), (first, first));
}

/// Beside writers, and beside what takes numbers of its own.
#[test]
fn increments_beside_writers_have_every_commit() {
    for (engine, durability) in [
        (EngineKind::Reflection, Durability::PerWrite),
        (EngineKind::Reflection, Durability::PerCommit),
        (EngineKind::HybridLog, Durability::PerWrite),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options::new().engine(engine).durability(durability).commit_log(256 << 20);
        let file = options.create(dir.path().join("data"), 40 * 4096).unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for writer in 0..2 {
                let (file, stop) = (&file, &stop);
                scope.spawn(move || {
                    let mut random = super::tests::Random(writer + 7);
                    while !stop.load(Ordering::Acquire) {
                        let at = random.below(40 * 4096 - 3000);
                        file.write_at(&vec![random.below(250) as u8; 3000], at).unwrap();
                        file.sync().unwrap();
                        file.deploy(at, 3000).unwrap();
                    }
                });
            }
            let mut chain: Vec<PathBuf> = Vec::new();
            let mut last = None;
            for number in 0..cases(8, 200) {
                if number % 20 == 0 {
                    chain.clear();
                    last = None;
                }
                let dest = dir.path().join(format!("backup-{number}"));
                let snapshot = Snapshot::open(file.path()).unwrap();
                let options = BackupOptions::new();
                let options = last.map_or(options.clone(), |last| options.since(last));
                last = Some(create(&snapshot, &dest, &options).unwrap().commit);
                chain.push(dest);
                let mut expected = vec![0; snapshot.len() as usize];
                snapshot.read_at(&mut expected, 0).unwrap();
                let chain: Vec<&PathBuf> = chain.iter().collect();
                assert!(restored(&chain, dir.path()) == expected, "{engine}, {durability}, backup {number}");
            }
            stop.store(true, Ordering::Release);
        });
    }
}

#[test]
fn commits_of_a_restored_file_go_on_above_the_backup() {
    for engine in crate::testing::ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let (dest, again) = (dir.path().join("dest"), dir.path().join("again"));
        let file = Options::new().engine(engine).commit_log(LOG).create(dir.path().join("data"), LEN).unwrap();
        (0..9).for_each(|round| write(&file, 0, &[round; 10]));
        let commit = back_up(&file, &dest, BackupOptions::new());
        assert!(commit >= 9);
        for replace in [false, true] {
            restore(&[&dest], &again, &BackupOptions::new().replace(replace)).unwrap();
            assert_eq!(crate::inspect(&again).unwrap().commit, commit, "{engine}");
            let restored = Options::new().engine(engine).open(&again).unwrap();
            assert!(restored.last_commit().number >= commit, "{engine}");
            write(&restored, 0, b"next");
            assert!(restored.last_commit().number > commit, "{engine}");
            restored.close().unwrap();
        }
    }
}
