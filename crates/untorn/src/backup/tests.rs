use std::fs::{OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::atomic::Ordering;
use std::sync::{Barrier, Mutex};

use rustix::io::Errno;
use untorn_testing::cases;

use super::*;
use crate::file::AtomicFile;
use crate::options::{Durability, Options};
use crate::storage::unfinished;

const LEN: u64 = (3 << 20) + 77;

fn errno(error: &Error) -> i32 {
    error.errno()
}

/// A file with bytes in its first and last chunk.
fn data(dir: &Path) -> (AtomicFile, Vec<u8>) {
    let file = AtomicFile::create(dir.join("data"), LEN).unwrap();
    file.write_at(&[7; 5000], 100).unwrap();
    file.write_at(b"the end", LEN - 7).unwrap();
    file.sync().unwrap();
    let bytes = contents(&file);
    (file, bytes)
}

fn contents(file: &AtomicFile) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name != ".untorn").collect();
    names.sort_unstable();
    names
}

/// Numbers for random tests.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

#[test]
fn a_backup_has_one_commit_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bytes) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    let snapshot = file.snapshot().unwrap();
    file.write_at(&[9; 4096], 0).unwrap();
    file.sync().unwrap();
    let made = create(&snapshot, &dest, &BackupOptions::new().verify(true)).unwrap();
    assert_eq!((made.commit, made.len, made.bytes), (snapshot.commit(), LEN, 2 * 4096 + 77));
    assert_eq!((made.written, made.base), (made.bytes, None));
    assert_eq!(std::fs::read(&dest).unwrap(), bytes);
    assert!(std::fs::metadata(&dest).unwrap().blocks() * 512 < 1 << 20, "zeros are holes");
    assert_eq!(verify(&dest, &BackupOptions::new()).unwrap(), Backup { written: 0, ..made.clone() });
    assert_eq!(restore(&[&dest], &again, &BackupOptions::new()).unwrap(), made);
    assert_eq!(std::fs::read(&again).unwrap(), bytes);
    let mut streamed = Vec::new();
    stream(&snapshot, &mut streamed, &BackupOptions::new()).unwrap();
    assert_eq!(streamed, bytes);
    assert_eq!(names(dir.path()), ["again", "backup", "backup.manifest", "data"]);
}

#[test]
fn nothing_is_replaced_unless_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let (file, bytes) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    std::fs::write(&dest, "precious").unwrap();
    let snapshot = file.snapshot().unwrap();
    let exists = Errno::EXIST.raw_os_error();
    assert_eq!(errno(&create(&snapshot, &dest, &BackupOptions::new()).unwrap_err()), exists);
    assert_eq!(std::fs::read(&dest).unwrap(), b"precious");
    assert!(!manifest_of(&dest).exists());
    // Another program's file may have the name of the manifest.
    let other = dir.path().join("other");
    std::fs::write(manifest_of(&other), "precious").unwrap();
    assert_eq!(errno(&create(&snapshot, &other, &BackupOptions::new()).unwrap_err()), exists);
    assert!(!other.exists() && std::fs::read(manifest_of(&other)).unwrap() == b"precious");
    create(&snapshot, &dest, &BackupOptions::new().replace(true)).unwrap();
    create(&snapshot, &dest, &BackupOptions::new().replace(true)).unwrap();
    std::fs::write(&again, "precious").unwrap();
    assert_eq!(errno(&restore(&[&dest], &again, &BackupOptions::new()).unwrap_err()), exists);
    restore(&[&dest], &again, &BackupOptions::new().replace(true)).unwrap();
    assert_eq!(std::fs::read(&again).unwrap(), bytes);
    // A file that a process has open stays.
    let open = AtomicFile::open(&again).unwrap();
    let refused = restore(&[&dest], &again, &BackupOptions::new().replace(true)).unwrap_err();
    assert!(matches!(refused, Error::InUse { .. }), "{refused}");
    open.close().unwrap();
}

#[test]
fn a_damaged_backup_is_not_restored() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    create(&file.snapshot().unwrap(), &dest, &BackupOptions::new()).unwrap();
    let backup = OpenOptions::new().write(true).open(&dest).unwrap();
    let corrupt_at = |error: Error, offset: u64| {
        assert!(matches!(error, Error::Corrupt { offset: Some(found), .. } if found == offset), "{error}");
    };
    // A byte where there should be a hole is told, and not restored.
    backup.write_all_at(&[1], 2 << 20).unwrap();
    corrupt_at(verify(&dest, &BackupOptions::new()).unwrap_err(), 2 << 20);
    backup.write_all_at(&[0], 2 << 20).unwrap();
    backup.write_all_at(&[8], 100).unwrap();
    corrupt_at(verify(&dest, &BackupOptions::new()).unwrap_err(), 0);
    corrupt_at(restore(&[&dest], &again, &BackupOptions::new()).unwrap_err(), 0);
    assert!(!again.exists());
    backup.write_all_at(&[7], 100).unwrap();
    verify(&dest, &BackupOptions::new()).unwrap();
    // A hole where there should be bytes.
    backup.set_len(LEN - 7).unwrap();
    backup.set_len(LEN).unwrap();
    corrupt_at(verify(&dest, &BackupOptions::new()).unwrap_err(), 3 << 20);
    backup.set_len(LEN - 1).unwrap();
    assert!(matches!(restore(&[&dest], &again, &BackupOptions::new()), Err(Error::Corrupt { .. })));
    std::fs::remove_file(manifest_of(&dest)).unwrap();
    let error = restore(&[&dest], &again, &BackupOptions::new()).unwrap_err();
    assert!(error.to_string().contains("backup.manifest"), "{error}");
}

/// The bytes read are those of the data, also with pages that are in the sidecar only and with pre-images.
#[test]
fn holes_of_the_file_are_not_read() {
    for engine in crate::testing::ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let file = Options::new().engine(engine).create(&path, 8 << 30).unwrap();
        let far = [5 << 30, (5 << 30) + (1 << 20), (8 << 30) - 8000];
        for at in far {
            file.write_at(b"far", at).unwrap();
        }
        file.sync().unwrap();
        let snapshot = file.snapshot().unwrap();
        file.write_at(b"gone", far[1]).unwrap();
        file.resize((8 << 30) - (1 << 20)).unwrap();
        file.sync().unwrap();
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(data) = snapshot.next_data(at).unwrap() {
            assert!(data.start >= at && data.end > data.start && data.end <= snapshot.len(), "{data:?}");
            found.push(data.clone());
            at = data.end;
        }
        assert!(far.iter().all(|at| found.iter().any(|data| data.contains(at))), "{engine}: {found:?}");
        let read: u64 = found.iter().map(|data| data.end - data.start).sum();
        assert!(read <= 64 << 12, "{engine}: {read} bytes of {found:?}");
        let dest = dir.path().join("backup");
        let made = create(&snapshot, &dest, &BackupOptions::new()).unwrap();
        assert_eq!((made.len, made.bytes), (8 << 30, 3 * 4096));
        let mut bytes = [0; 3];
        let backup = File::open(&dest).unwrap();
        for at in far {
            backup.read_exact_at(&mut bytes, at).unwrap();
            assert_eq!(&bytes, b"far", "{engine} at {at}");
        }
    }
}

/// Whatever changes between two backups, a chain gives the file at each of them, whichever way an increment is made.
#[test]
fn random_chains_restore_what_a_full_backup_has() {
    for case in 0..cases(10, 500) {
        let mut random = Random(case + 1);
        let dir = tempfile::tempdir().unwrap();
        let engine = crate::testing::ENGINES[random.below(3) as usize];
        let path = dir.path().join("data");
        let durability = [Durability::PerCommit, Durability::PerWrite][random.below(2) as usize];
        let options = Options::new().engine(engine).durability(durability).commit_log(64 << 20).log_size(4 << 20);
        let file = options.create(&path, random.below(300_000)).unwrap();
        let mut backups: Vec<PathBuf> = Vec::new();
        // Those that tell all of the file together, the last one's commit, and all commits before.
        let (mut whole, mut commits) = (Vec::new(), Vec::new());
        for number in 0..2 + random.below(4) {
            for _ in 0..random.below(6) {
                if random.below(4) == 0 {
                    file.resize(random.below(300_000)).unwrap();
                }
                let at = random.below(file.len().max(1));
                let len = random.below(20_000).min(file.len() - at.min(file.len())) as usize;
                // Zeros now and then, so that chunks go.
                let fill = random.below(3) as u8;
                file.write_at(&vec![fill; len], at.min(file.len())).unwrap();
            }
            file.sync().unwrap();
            // Under reflection it takes numbers of its own.
            if random.below(2) == 0 {
                file.deploy(0, file.len()).unwrap();
            }
            let dest = dir.path().join(format!("backup-{number}"));
            let kind = if backups.is_empty() { 0 } else { 1 + random.below(4) };
            let options = match kind {
                0 => BackupOptions::new(),
                1 => whole.iter().fold(BackupOptions::new(), |options, base: &PathBuf| options.base(base)),
                // Their manifests are enough, and their bytes may be elsewhere.
                2 => whole.iter().fold(BackupOptions::new(), |options, base| options.base(manifest_of(base))),
                3 => BackupOptions::new().since(*commits.last().unwrap()),
                // What an earlier increment has comes again.
                _ => BackupOptions::new().since(commits[random.below(commits.len() as u64) as usize]),
            };
            let made = create(&file.snapshot().unwrap(), &dest, &options.verify(true)).unwrap();
            if kind < 3 {
                whole.clear();
            }
            whole.push(dest.clone());
            commits.push(made.commit);
            backups.push(dest);
            let again = dir.path().join("again");
            let made = restore(&backups, &again, &BackupOptions::new().replace(true)).unwrap();
            assert_eq!(made.len, file.len(), "case {case}, {engine}, backup {number}");
            assert!(std::fs::read(&again).unwrap() == contents(&file), "case {case}, {engine}, backup {number}");
            // A full backup of the same commit has the same bytes.
            let full = dir.path().join("full");
            create(&file.snapshot().unwrap(), &full, &BackupOptions::new().replace(true)).unwrap();
            assert!(std::fs::read(&again).unwrap() == std::fs::read(&full).unwrap(), "case {case}, {engine}");
        }
    }
}

#[test]
fn a_chain_that_is_wrong_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = data(dir.path());
    let backup = |name: &str, base: Option<&Path>| {
        file.write_at(name.as_bytes(), 70_000).unwrap();
        file.sync().unwrap();
        let dest = dir.path().join(name);
        let options = BackupOptions::new();
        let options = base.map_or(options.clone(), |base| options.base(base));
        (create(&file.snapshot().unwrap(), &dest, &options).unwrap(), dest)
    };
    let (_, full) = backup("full", None);
    let (made, one) = backup("one", Some(&full));
    assert!(made.base.is_some() && made.bytes == 16 << 10, "{made:?}");
    let (_, two) = backup("two", Some(&one));
    let (_, other) = backup("other", None);
    let again = dir.path().join("again");
    let parts = [&full, &one, &two, &other];
    for (chain, why) in [
        (vec![1], "name that one before it"),
        (vec![0, 2], "is another one"),
        (vec![0, 2, 1], "is another one"),
        (vec![1, 0], "name that one before it"),
        (vec![3, 1], "is another one"),
        (vec![0, 3], "it is a full backup"),
        (vec![0, 1, 1], "is another one"),
        (vec![], "no backup is named"),
    ] {
        let chain: Vec<&PathBuf> = chain.into_iter().map(|part: usize| parts[part]).collect();
        let refused = restore(&chain, &again, &BackupOptions::new()).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }) && refused.to_string().contains(why), "{chain:?}: {refused}");
        assert!(!again.exists());
    }
    restore(&[&full, &one, &two], &again, &BackupOptions::new()).unwrap();
    assert_eq!(&std::fs::read(&again).unwrap()[70_000..70_004], b"twol");
    // Damage in any part of the chain is noticed.
    std::fs::remove_file(&again).unwrap();
    let increment = OpenOptions::new().write(true).open(&two).unwrap();
    increment.write_all_at(b"x", 9).unwrap();
    let refused = restore(&[&full, &one, &two], &again, &BackupOptions::new()).unwrap_err();
    assert!(matches!(refused, Error::Corrupt { .. }) && !again.exists(), "{refused}");
    assert!(matches!(verify(&two, &BackupOptions::new()), Err(Error::Corrupt { .. })));
}

#[test]
fn a_cancelled_backup_leaves_nothing_or_is_resumed() {
    let dir = tempfile::tempdir().unwrap();
    let file = AtomicFile::create(dir.path().join("data"), 4 << 20).unwrap();
    file.write_at(&vec![7; 4 << 20], 0).unwrap();
    file.sync().unwrap();
    let dest = dir.path().join("backup");
    let attempt = |options: BackupOptions, stop_at: u64| {
        let cancel = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&cancel);
        let progress = move |step: crate::options::Progress| flag.store(step.done >= stop_at, Ordering::Release);
        create(&file.snapshot().unwrap(), &dest, &options.progress(Arc::new(progress)).cancel(cancel))
    };
    for options in [BackupOptions::new(), BackupOptions::new().replace(true)] {
        let cancelled = attempt(options, 2 << 20).unwrap_err();
        assert_eq!(errno(&cancelled), Errno::CANCELED.raw_os_error());
        assert_eq!(names(dir.path()), ["data"]);
    }
    let resumed = || BackupOptions::new().resume(true).verify(true);
    attempt(resumed(), 2 << 20).unwrap_err();
    assert_eq!(names(dir.path()), [".backup.untorn-new", "data"]);
    // It may hold anything, and the file has changed meanwhile.
    let left = OpenOptions::new().write(true).open(unfinished(&dest)).unwrap();
    left.write_all_at(b"torn", 5000).unwrap();
    left.write_all_at(b"beyond", 5 << 20).unwrap();
    file.write_at(&vec![0; 1 << 20], 0).unwrap();
    file.write_at(b"changed", 1 << 20).unwrap();
    file.sync().unwrap();
    let made = attempt(resumed(), u64::MAX).unwrap();
    assert_eq!((made.bytes, made.written), (3 << 20, (2 << 20) + 4096), "what was there is not written again");
    assert!(std::fs::read(&dest).unwrap() == contents(&file));
    assert!(std::fs::metadata(&dest).unwrap().blocks() * 512 <= (3 << 20) + 4096, "what is zeros now is a hole");
    assert_eq!(names(dir.path()), ["backup", "backup.manifest", "data"]);
    let refused = attempt(resumed().base(&dest).replace(true), u64::MAX).unwrap_err();
    assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
}

/// Another user could have made it, or two names mean it.
#[test]
fn a_planted_unfinished_backup_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = data(dir.path());
    let (dest, victim) = (dir.path().join("backup"), dir.path().join("victim"));
    let snapshot = file.snapshot().unwrap();
    let options = BackupOptions::new().resume(true);
    for name in [unfinished(&dest), target::staged(&dest)] {
        std::fs::write(&victim, "precious").unwrap();
        std::fs::hard_link(&victim, &name).unwrap();
        assert!(matches!(create(&snapshot, &dest, &options), Err(Error::Invalid { .. })));
        std::fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(&victim, &name).unwrap();
        assert_eq!(errno(&create(&snapshot, &dest, &options).unwrap_err()), Errno::LOOP.raw_os_error());
        std::fs::remove_file(&name).unwrap();
        std::fs::write(&name, "").unwrap();
        std::fs::set_permissions(&name, Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(create(&snapshot, &dest, &options), Err(Error::Invalid { .. })));
        std::fs::remove_file(&name).unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
    }
    create(&snapshot, &dest, &options).unwrap();
}

/// A crash between the names of a backup and of its manifest, of a new backup and of one that replaces another.
#[test]
fn a_backup_whose_manifest_is_still_staged_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = data(dir.path());
    let (dest, again) = (dir.path().join("backup"), dir.path().join("again"));
    create(&file.snapshot().unwrap(), &dest, &BackupOptions::new()).unwrap();
    let old = std::fs::read(manifest_of(&dest)).unwrap();
    file.write_at(b"newer", 200).unwrap();
    file.sync().unwrap();
    let made = create(&file.snapshot().unwrap(), &dest, &BackupOptions::new().replace(true)).unwrap();
    std::fs::rename(manifest_of(&dest), target::staged(&dest)).unwrap();
    for old in [None, Some(old)] {
        if let Some(old) = old {
            std::fs::write(manifest_of(&dest), old).unwrap();
        }
        assert_eq!(verify(&dest, &BackupOptions::new()).unwrap().commit, made.commit);
        restore(&[&dest], &again, &BackupOptions::new().replace(true)).unwrap();
        assert!(std::fs::read(&again).unwrap() == contents(&file));
    }
    // One of a backup that never was does not count.
    std::fs::write(target::staged(&dest), "untorn backup 3\n").unwrap();
    std::fs::remove_file(manifest_of(&dest)).unwrap();
    assert!(verify(&dest, &BackupOptions::new()).is_err());
    create(&file.snapshot().unwrap(), &dest, &BackupOptions::new().replace(true)).unwrap();
    verify(&dest, &BackupOptions::new()).unwrap();
}

#[test]
fn a_restored_file_has_the_permissions_that_the_umask_allows() {
    let dir = tempfile::tempdir().unwrap();
    let (file, _) = data(dir.path());
    let mode = |path: &Path| path.metadata().unwrap().mode() & 0o7777;
    // What the umask of this process allows: a new file shows it.
    let plain = dir.path().join("plain");
    std::fs::write(&plain, "").unwrap();
    let allowed = mode(&plain);
    for (number, given) in [0o600, 0o640, 0o444, 0o6666].into_iter().enumerate() {
        std::fs::set_permissions(dir.path().join("data"), Permissions::from_mode(given)).unwrap();
        let (dest, again) = (dir.path().join(format!("b{number}")), dir.path().join(format!("a{number}")));
        create(&file.snapshot().unwrap(), &dest, &BackupOptions::new()).unwrap();
        assert_eq!(mode(&dest), 0o600);
        restore(&[&dest], &again, &BackupOptions::new()).unwrap();
        assert_eq!(mode(&again), given & allowed & 0o777, "{given:o}");
    }
}

/// A plain file has no lock that keeps writers away, so the snapshot says that it has ended, and gives no mixture.
#[test]
fn a_plain_file_that_changes_ends_its_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain");
    for change in 0..3 {
        std::fs::write(&path, vec![1; 1 << 20]).unwrap();
        let snapshot = Snapshot::open(&path).unwrap();
        let mut bytes = [0; 100];
        snapshot.read_at(&mut bytes, 0).unwrap();
        let other = OpenOptions::new().write(true).open(&path).unwrap();
        match change {
            0 => other.write_all_at(&[2; 100], 1000).unwrap(),
            1 => other.set_len(1 << 19).unwrap(),
            _ => rustix::fs::fsetxattr(&other, "user.untorn", &[1; 16], rustix::fs::XattrFlags::empty()).unwrap(),
        }
        for ended in [snapshot.read_at(&mut bytes, 0).unwrap_err(), snapshot.next_data(0).unwrap_err()] {
            assert!(matches!(ended, Error::SnapshotEnded { .. }), "{change}: {ended}");
        }
        let failed = create(&snapshot, &dir.path().join("backup"), &BackupOptions::new()).unwrap_err();
        assert!(matches!(failed, Error::SnapshotEnded { .. }), "{failed}");
        drop(snapshot);
        std::fs::remove_file(&path).unwrap();
    }
}

/// Each backup has one commit: one that was acknowledged before it began, or a later one.
#[test]
fn backups_beside_four_writers_have_one_commit_each() {
    const WRITERS: u64 = 4;
    const RECORD: u64 = 40_000;
    for engine in crate::testing::ENGINES {
        let dir = tempfile::tempdir().unwrap();
        let file = Options::new().engine(engine).create(dir.path().join("data"), WRITERS * RECORD).unwrap();
        let (stop, start) = (AtomicBool::new(false), Barrier::new(WRITERS as usize + 1));
        // Of each writer the last round that was acknowledged. A writer commits its round in all of its record.
        let done: Vec<Mutex<u64>> = (0..WRITERS).map(|_| Mutex::new(0)).collect();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (file, stop, start, done) = (&file, &stop, &start, &done);
                scope.spawn(move || {
                    start.wait();
                    for round in 1_u64.. {
                        if stop.load(Ordering::Acquire) {
                            return;
                        }
                        let record = round.to_le_bytes().repeat(RECORD as usize / 8);
                        file.write_at(&record, writer * RECORD).unwrap();
                        file.sync().unwrap();
                        *done[writer as usize].lock().unwrap() = round;
                    }
                });
            }
            start.wait();
            let (mut full, mut last) = (None, 0);
            for number in 0..cases(6, 120) {
                let before: Vec<u64> = done.iter().map(|done| *done.lock().unwrap()).collect();
                let snapshot = Snapshot::open(file.path()).unwrap();
                let dest = dir.path().join(format!("backup-{number}"));
                let options = BackupOptions::new();
                let options = full.as_ref().map_or(options.clone(), |full: &PathBuf| options.base(full));
                let made = create(&snapshot, &dest, &options).unwrap();
                assert!(made.commit >= last, "{engine}: commit {} after {last}", made.commit);
                last = made.commit;
                let again = dir.path().join("again");
                let full = full.get_or_insert_with(|| dest.clone());
                let chain = if *full == dest { vec![dest] } else { vec![full.clone(), dest] };
                restore(&chain, &again, &BackupOptions::new().replace(true)).unwrap();
                let bytes = std::fs::read(&again).unwrap();
                for (writer, record) in bytes.chunks(RECORD as usize).enumerate() {
                    let rounds: Vec<u64> =
                        record.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                    assert!(rounds.iter().all(|round| *round == rounds[0]), "{engine}: backup {number} is a mixture");
                    assert!(rounds[0] >= before[writer], "{engine}: {} < {}", rounds[0], before[writer]);
                }
                // A second apart, in the long form.
                std::thread::sleep(std::time::Duration::from_millis(cases(5, 1000)));
            }
            stop.store(true, Ordering::Release);
        });
    }
}
