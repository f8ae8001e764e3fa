//! Files that another program changes after a log's last word on them.

use std::fs::{self, FileTimes, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::machine::Machine;
use crate::common::memory_dir;
use crate::common::shelf::{pmem, small};
use untorn::testing::storage::{Barrier, Identity};
use untorn::write_cache::{BackingFile, CachedFile, Descriptor, Keep, Kernel, Replay, ReplayOutcome, WriteCache};
use untorn::{Error, Result};

/// A log of a process that was killed, and a file that it was writing through.
struct Killed {
    dir: tempfile::TempDir,
    log: PathBuf,
    path: PathBuf,
}

const LEFT: &[u8] = b"0123LOGGED89";

impl Killed {
    fn new(work: impl FnOnce(&CachedFile)) -> Self {
        let dir = memory_dir();
        let (log, path) = (dir.path().join("log"), dir.path().canonicalize().unwrap().join("file"));
        fs::write(&path, b"0123456789").unwrap();
        let cache = small(64).create_on(pmem(), Arc::new(Kernel), &log).unwrap();
        let file = attach(&cache, &path);
        file.write_at(b"LOGGED", 4).unwrap();
        file.set_len(11).unwrap();
        file.write_at(b"89", 10).unwrap();
        work(&file);
        drop((file, cache));
        Killed { dir, log, path }
    }

    /// The same of a file that is not written through: a drain gave it what the log has, up to what `work` adds.
    fn drained(work: impl FnOnce(&WriteCache, &CachedFile)) -> Self {
        let dir = memory_dir();
        let (log, path) = (dir.path().join("log"), dir.path().canonicalize().unwrap().join("file"));
        fs::write(&path, b"0123456789").unwrap();
        let cache = small(64).create_on(pmem(), Arc::new(Kernel), &log).unwrap();
        let plain = fs::File::options().read(true).write(true).open(&path).unwrap();
        let slow = KilledAmid { file: Descriptor::new(plain.into(), &path).unwrap(), log: log.clone() };
        let file = cache.attach_backing(Arc::new(slow), &path).unwrap();
        file.write_at(b"DRAINED", 0).unwrap();
        cache.drain().unwrap();
        work(&cache, &file);
        drop((file, cache));
        Killed { dir, log, path }
    }

    fn put(&self, bytes: &[u8]) {
        fs::write(&self.path, bytes).unwrap();
    }

    /// Sets the file's time, so that no test has to wait.
    fn later(&self, by: Duration) {
        let file = fs::File::options().write(true).open(&self.path).unwrap();
        file.set_times(FileTimes::new().set_modified(SystemTime::now() + by)).unwrap();
    }

    fn open(&self) -> Result<WriteCache> {
        small(64).open_on(pmem(), Arc::new(Kernel), &self.log)
    }

    fn replay(&self) -> Replay {
        small(64).replay_on(pmem(), &Kernel, &self.log).unwrap()
    }

    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }
}

fn attach(cache: &WriteCache, path: &Path) -> CachedFile {
    let plain = fs::File::options().read(true).write(true).open(path).unwrap();
    cache.attach_write_through(Arc::new(Descriptor::new(plain.into(), path).unwrap()), path).unwrap()
}

/// Its name is durable by then, and its line written anew: that still says what the last own store left.
#[test]
fn a_change_of_a_file_that_was_new_is_noticed() {
    let Some(mut machine) = Machine::new("changes of new files", 64, &["one"]) else { return };
    let path = machine.path("one/f");
    let file = machine.cache().attach_atomic(Arc::new(machine.open_new("one/f")), &path).unwrap();
    for bytes in [b"first", b"LATER"] {
        machine.cache().drain().unwrap();
        file.write_at(bytes, 0).unwrap();
        file.commit().unwrap();
    }
    drop(file);
    let replay = machine.crash(|_| fs::write(&path, "of another program").unwrap());
    assert!(matches!(replay.files[0].fate, ReplayOutcome::Changed(_)), "{replay:?}");
    assert_eq!(fs::read(&path).unwrap(), b"of another program");
}

const LATER: Duration = Duration::from_secs(10);

type Change<'a> = &'a dyn Fn(&Killed);

#[test]
fn a_replay_keeps_both_versions_of_a_changed_file() {
    let killed = Killed::new(|_| {});
    assert_eq!(killed.bytes(), LEFT);
    killed.put(b"LATER, BY ANOTHER PROGRAM");
    killed.later(LATER);
    for _ in 0..2 {
        let refused = killed.open().map(drop).unwrap_err();
        assert!(matches!(&refused, Error::ChangedOutside { path, .. } if *path == killed.path), "{refused}");
        assert_eq!(refused.errno(), 116, "ESTALE");
        assert!(refused.to_string().contains("--trust"), "{refused}");
        let replay = killed.replay();
        assert!(matches!(replay.files[0].fate, ReplayOutcome::Changed(_)) && !replay.is_complete(), "{replay:?}");
        assert_eq!(killed.bytes(), b"LATER, BY ANOTHER PROGRAM");
        let looked = untorn::write_cache::inspect_log(&killed.log).unwrap();
        assert!(matches!(looked.files[0].fate, ReplayOutcome::Changed(_)) && looked.operations == 3, "{looked:?}");
    }
}

#[test]
fn the_choice_decides_which_version_of_a_changed_file_stays() {
    for (keep, fate, expected) in [
        (Keep::File, ReplayOutcome::Dropped, &b"OTHERS' BYTES"[..]),
        // The new length cuts bytes of the other program off before the last write.
        (Keep::Log, ReplayOutcome::Replayed, b"OTHELOGGED89"),
    ] {
        let killed = Killed::new(|_| {});
        killed.put(b"OTHERS' BYTES");
        killed.later(LATER);
        let replay = untorn::write_cache::replay_keeping(&killed.log, keep, None).unwrap();
        assert_eq!((&replay.files[0].fate, replay.is_complete()), (&fate, true));
        assert_eq!(killed.bytes(), expected, "{keep:?}");
        assert_eq!(killed.open().unwrap().replayed().operations, 0, "the log has nothing left");
    }
}

#[test]
fn what_is_not_another_program_s_write_is_no_reason_to_refuse() {
    let no_change: [(&str, Change<'_>); 5] = [
        ("nothing", &|_| {}),
        ("a look at the file", &|killed| drop(killed.bytes())),
        ("other permissions", &|killed| fs::set_permissions(&killed.path, Permissions::from_mode(0o640)).unwrap()),
        ("another time and the same bytes", &|killed| killed.later(LATER)),
        ("another name", &|killed| {
            let moved = killed.dir.path().join("moved");
            fs::rename(&killed.path, &moved).unwrap();
            fs::rename(&moved, &killed.path).unwrap();
        }),
    ];
    for (what, change) in no_change {
        let killed = Killed::new(|_| {});
        change(&killed);
        assert!(killed.open().unwrap().replayed().is_complete(), "{what}");
        assert_eq!(killed.bytes(), LEFT, "{what}");
    }
    // A power cut takes what was not synced from the file, and leaves it the time that it had.
    let killed = Killed::new(|_| {});
    killed.put(b"0123456789");
    let file = fs::File::open(&killed.path).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - LATER)).unwrap();
    assert!(killed.open().unwrap().replayed().is_complete());
    assert_eq!(killed.bytes(), LEFT);
}

/// A process is held up between its entry and its write, or a replay is interrupted: the file has a later time by that.
#[test]
fn an_interrupted_replay_is_not_taken_for_another_program() {
    let killed = Killed::new(|_| {});
    killed.put(b"0123456789");
    let file = fs::File::open(&killed.path).unwrap();
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - LATER)).unwrap();
    let before = fs::read(&killed.log).unwrap();
    assert!(killed.replay().is_complete());
    // The log as it was when the replay had begun to write: with the note, and with all entries.
    let replayed = fs::read(&killed.log).unwrap();
    let lines = 3 * 4096..3 * 4096 + 4 * 8192;
    let mut begun = before.clone();
    begun[lines.clone()].copy_from_slice(&replayed[lines]);
    assert_ne!(begun, before, "the replay has noted nothing before it wrote");
    fs::write(&killed.log, begun).unwrap();
    killed.put(b"0123LOG");
    killed.later(LATER);
    assert!(killed.replay().is_complete());
    assert_eq!(killed.bytes(), LEFT);
}

#[test]
fn a_change_is_found_whichever_part_of_the_log_it_undoes() {
    let more = |file: &CachedFile| {
        file.write_at(&[7; 200], 20).unwrap();
        file.set_len(40).unwrap();
        file.set_len(60).unwrap();
        file.write_at(b"end", 57).unwrap();
    };
    let whole = Killed::new(more).bytes();
    assert_eq!(whole.len(), 60);
    for at in 0..whole.len() {
        // Bytes that the log says nothing of may be anybody's.
        let is_logged = at >= 4;
        let killed = Killed::new(more);
        let mut changed = whole.clone();
        changed[at] ^= 1;
        killed.put(&changed);
        killed.later(LATER);
        let is_refused = matches!(killed.open(), Err(Error::ChangedOutside { .. }));
        assert_eq!(is_refused, is_logged, "byte {at}");
        assert_eq!(killed.bytes(), changed, "byte {at}");
    }
    for len in [0, 59, 61] {
        let killed = Killed::new(more);
        let mut changed = whole.clone();
        changed.resize(len, 0);
        killed.put(&changed);
        killed.later(LATER);
        assert!(matches!(killed.open(), Err(Error::ChangedOutside { .. })), "{len} bytes");
    }
}

fn leave_a_write(_: &WriteCache, file: &CachedFile) {
    file.write_at(b"LOGGED", 4).unwrap();
}

/// In the log, and delivered to the kernel as well.
fn deliver_a_write(cache: &WriteCache, file: &CachedFile) {
    leave_a_write(cache, file);
    file.write_to_kernel().unwrap();
}

#[test]
fn a_drained_file_that_was_changed_is_kept_beside_the_log() {
    for work in [leave_a_write, deliver_a_write] {
        // Later and earlier: a file that is put in place may bring its own time.
        for later in [true, false] {
            let killed = Killed::drained(work);
            killed.put(b"BY ANOTHER PROGRAM");
            let time = if later { SystemTime::now() + LATER } else { SystemTime::now() - LATER };
            let file = fs::File::options().write(true).open(&killed.path).unwrap();
            file.set_times(FileTimes::new().set_modified(time)).unwrap();
            let refused = killed.open().map(drop).unwrap_err();
            assert!(matches!(&refused, Error::ChangedOutside { path, .. } if *path == killed.path), "{refused}");
            assert_eq!((refused.errno(), killed.bytes()), (116, b"BY ANOTHER PROGRAM".to_vec()));
            let looked = untorn::write_cache::inspect_log(&killed.log).unwrap();
            assert!(matches!(looked.files[0].fate, ReplayOutcome::Changed(_)) && looked.operations > 0, "{looked:?}");
            let replay = untorn::write_cache::replay_keeping(&killed.log, Keep::Log, None).unwrap();
            assert!(replay.is_complete());
            assert_eq!(killed.bytes(), b"BY ALOGGED PROGRAM", "later: {later}");
        }
    }
}

/// A file of which each write first copies the log, as a kill in the midst of the write leaves it.
struct KilledAmid {
    file: Descriptor,
    log: PathBuf,
}

impl BackingFile for KilledAmid {
    fn identity(&self) -> Result<Identity> {
        self.file.identity()
    }

    fn len(&self) -> Result<u64> {
        self.file.len()
    }

    fn modified(&self) -> Result<Option<u64>> {
        self.file.modified()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        self.file.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        fs::copy(&self.log, self.log.with_extension("amid")).unwrap();
        self.file.write(offset, src)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.file.sync(barrier)
    }
}

#[test]
fn the_drain_itself_is_not_taken_for_another_program() {
    for work in [leave_a_write, deliver_a_write] {
        let killed = Killed::drained(work);
        assert!(killed.open().unwrap().replayed().is_complete());
        assert_eq!(killed.bytes(), b"DRAILOGGED");
        // The same bytes at another time are no other program's version.
        let killed = Killed::drained(work);
        killed.put(b"DRAILOGGED");
        killed.later(LATER);
        assert!(killed.open().unwrap().replayed().is_complete());
    }
    // Killed amid the note of that time: the copy of the line that it goes over is no line.
    let killed = Killed::drained(deliver_a_write);
    let mut log = fs::read(&killed.log).unwrap();
    let seq = |log: &[u8], copy: usize| u64::from_le_bytes(log[(3 + copy) * 4096 + 8..][..8].try_into().unwrap());
    let newer = usize::from(seq(&log, 1) > seq(&log, 0));
    log[(3 + newer) * 4096 + 4000] ^= 1;
    fs::write(&killed.log, log).unwrap();
    killed.put(b"DRAILO");
    killed.later(LATER);
    assert!(killed.open().unwrap().replayed().is_complete());
    // Killed amid the store: the file has some of it, and a time that nobody recorded.
    let killed = Killed::drained(deliver_a_write);
    fs::copy(killed.log.with_extension("amid"), &killed.log).unwrap();
    killed.put(b"DRAILO");
    killed.later(LATER);
    assert!(killed.open().unwrap().replayed().is_complete());
    assert_eq!(killed.bytes(), b"DRAILOGGED");
}

/// After a lock, another program may have written, and the caller says so.
#[test]
fn a_change_that_the_caller_tells_of_is_no_reason_to_refuse() {
    let killed = Killed::drained(|cache, file| {
        deliver_a_write(cache, file);
        let mut bytes = fs::read(file.path()).unwrap();
        bytes.extend(b" and others");
        fs::write(file.path(), bytes).unwrap();
        file.reload_len().unwrap();
        file.write_at(b"X", 0).unwrap();
    });
    assert!(killed.open().unwrap().replayed().is_complete());
    assert_eq!(killed.bytes(), b"XRAILOGGED and others");
}
