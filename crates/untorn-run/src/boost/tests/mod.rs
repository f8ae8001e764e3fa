//! Files at rest, with a log that nobody drains: so they rest until somebody does something about it.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use untorn::Error;
use untorn::testing::storage::{Barrier, Dax, Identity, MediumKind};
use untorn::write_cache::{BackingFile, Descriptor, Kernel};
use untorn::write_cache::{CacheOptions, Step, WriteCache};
use untorn_wire::{PLAIN, Position, Write};

use super::Boost;
use super::file::Boosted;
use crate::board::Board;
use crate::files::{Key, lock};

mod renames;

struct Place {
    dir: tempfile::TempDir,
    boost: Arc<Boost>,
}

/// A write at the descriptor's offset.
const NEXT: Write = Write { position: Position::OWN, flags: 0 };

fn at(offset: u64) -> Write {
    Write { position: Position::at(offset), flags: 0 }
}

/// Other tests of this process start programs, which have a copy of all descriptors until they are these programs.
fn await_that(mut what: impl FnMut() -> bool) {
    let start = Instant::now();
    while !what() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never happens");
        thread::sleep(Duration::from_millis(1));
    }
}

impl Place {
    fn new() -> Self {
        Place::with(|options, log| options.create(log))
    }

    /// With a log to which programs append, too.
    fn shared() -> Self {
        let medium = Dax::new(MediumKind::AssumedPmem);
        Place::with(|options, log| options.shared(true).create_on(medium, Arc::new(Kernel), log))
    }

    fn with(create: impl FnOnce(CacheOptions, PathBuf) -> untorn::Result<WriteCache>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("files")).unwrap();
        let options = CacheOptions::new().size(2 << 20).max_files(128).background(false);
        let cache = create(options, dir.path().join("log")).unwrap();
        let board = Board::create(&dir.path().join("board")).unwrap();
        let boost = Boost::start(cache, board).unwrap();
        Place { dir, boost }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join("files/f")
    }

    /// A file that is boosted, with a write that is in the log.
    fn boosted(&self) -> (OwnedFd, Key) {
        let file = File::options().read(true).write(true).create(true).truncate(false).open(self.path()).unwrap();
        let (status, file) = (file.metadata().unwrap(), OwnedFd::from(file));
        await_that(|| self.boost.opened(&file).unwrap());
        assert_eq!(self.boost.write(&file, NEXT, b"written"), Ok(7));
        (file, (status.dev(), status.ino()))
    }

    /// Closes it, as the program that had it.
    fn close(&self, file: OwnedFd, key: Key) {
        drop(file);
        assert_eq!(self.boost.descriptor_closed(key), Ok(()));
    }

    fn reopen(&self, key: Key) -> Option<OwnedFd> {
        self.boost.reopen(key, OFlags::RDWR).unwrap()
    }

    /// Ends as a crash would, as far as the log is concerned, and replays it.
    fn crash(self) -> (tempfile::TempDir, untorn::write_cache::Replay) {
        let Place { dir, mut boost } = self;
        // The threads have it now and then.
        loop {
            match Arc::try_unwrap(boost) {
                Ok(last) => break drop(last),
                Err(shared) => boost = shared,
            }
            thread::sleep(Duration::from_millis(1));
        }
        let replay = untorn::write_cache::replay(dir.path().join("log"), None).unwrap();
        (dir, replay)
    }
}

#[test]
fn reopening_a_resting_file_returns_its_description() {
    let place = Place::new();
    let (file, key) = place.boosted();
    assert!(place.reopen(key).is_none(), "nobody said that it was closed");
    place.close(file, key);
    let mut again = None;
    await_that(|| {
        again = place.reopen(key);
        again.is_some()
    });
    assert!(place.reopen(key).is_none(), "it was given to two");
    let again = again.unwrap();
    assert_eq!(rustix::fs::tell(&again).unwrap(), 0);
    assert_eq!(place.boost.ledger.report().files[0].reopens, 1);
    assert_eq!(place.boost.write(&again, at(0), b"W"), Ok(1));
    // Whoever else opens it waits until it is a plain one.
    assert_eq!(fs::read(place.path()).unwrap(), b"Written");
    assert_eq!(place.boost.write(&again, at(0), b"w"), Err(PLAIN));
}

/// Else a program's next write would go where the one before went.
#[test]
fn programs_are_let_in_when_the_offset_is_where_it_is_to_be() {
    let place = Place::shared();
    let (file, key) = place.boosted();
    let known = place.boost.find(key).unwrap();
    let beside = || lock(&known).write_shared(b"b", 0);
    assert_eq!(beside(), Some(1));
    assert_eq!(lock(&known).revoke_writers(), Ok(()));
    assert_eq!(beside(), None);
    assert_eq!(lock(&known).write(b"more", 7), Ok(4));
    assert_eq!(beside(), None);
    assert_eq!(place.boost.write(&file, NEXT, b"!"), Ok(1));
    assert_eq!(rustix::fs::tell(&file).unwrap(), 8);
    assert_eq!(beside(), Some(1));
    assert_eq!(place.boost.set_length(&file, 9), Ok(()));
    assert_eq!(beside(), Some(1));
    assert_eq!(fs::read(place.path()).unwrap(), b"britten!o");
}

/// Nobody writes to the file afterwards, so nobody else would do it.
#[test]
fn an_interrupted_write_is_settled_at_exit_sync_and_open() {
    let content = |file: &OwnedFd| {
        let mut bytes = [0; 32];
        let count = rustix::io::pread(file, &mut bytes, 0).unwrap();
        bytes[..count].to_vec()
    };
    for step in [Step::Placed, Step::Durable, Step::Delivered] {
        for way in 0..4 {
            let place = Place::shared();
            let (file, key) = place.boosted();
            let known = place.boost.find(key).unwrap();
            lock(&known).allow_writers();
            lock(&known).die_beside(b"all of it", 3, step);
            drop(known);
            let all: &[u8] = if step >= Step::Durable { b"wriall of it" } else { b"written" };
            let again = match way {
                0 => {
                    place.boost.process_ended();
                    file
                }
                1 => {
                    assert_eq!(place.boost.sync(&file), Ok(()));
                    file
                }
                2 => {
                    place.boost.cache.sync().unwrap();
                    file
                }
                _ => {
                    place.close(file, key);
                    let mut again = None;
                    await_that(|| {
                        again = place.reopen(key);
                        again.is_some()
                    });
                    again.unwrap()
                }
            };
            assert_eq!(content(&again), all, "{step:?}, {way}");
            assert_eq!(place.boost.ledger.report().failures, [""; 0]);
            // A crash of the machine, which leaves what is durable: no other state than was shown.
            drop(again);
            let (dir, replay) = place.crash();
            assert!(replay.is_complete());
            assert_eq!(fs::read(dir.path().join("files/f")).unwrap(), all, "{step:?}, {way}");
        }
    }
}

#[test]
fn a_file_that_was_moved_meanwhile_is_not_known_by_its_old_name() {
    let place = Place::new();
    let (file, key) = place.boosted();
    place.close(file, key);
    fs::rename(place.path(), place.path().with_extension("moved")).unwrap();
    // Now and then it is held, and then it is not looked at: whoever holds it is gone after a moment.
    await_that(|| crate::holders::held(&crate::holders::Keys::from([key])).is_empty());
    assert!(place.reopen(key).is_none());
    fs::rename(place.path().with_extension("moved"), place.path()).unwrap();
    await_that(|| place.reopen(key).is_some());
}

/// A process with a thread that goes on after the first of them has ended. What it has open, it has as standard input.
fn headless(file: &OwnedFd) -> Child {
    let program = "
import ctypes, threading, time
def wait():
    while 'Z' not in open('/proc/self/stat').read().rsplit(')')[1].split()[0]: time.sleep(0.001)
    print('headless', flush=True)
    time.sleep(600)
threading.Thread(target=wait).start()
ctypes.CDLL(None).syscall(60 if __import__('platform').machine() == 'x86_64' else 93, 0)
";
    let mut command = Command::new("python3");
    command.args(["-c", program]).stdin(Stdio::from(file.try_clone().unwrap())).stdout(Stdio::piped());
    command.spawn().unwrap()
}

#[test]
fn a_process_without_its_first_thread_keeps_its_files_open() {
    use std::io::{BufRead, BufReader};
    untorn_testing::needs!("python3");
    let place = Place::new();
    let (file, key) = place.boosted();
    let mut child = headless(&file);
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "headless\n");
    place.close(file, key);
    assert!(place.reopen(key).is_none(), "somebody has it still");
    child.kill().unwrap();
    child.wait().unwrap();
    await_that(|| place.reopen(key).is_some());
}

#[test]
fn log_entries_of_an_externally_removed_file_are_dropped() {
    let place = Place::new();
    let (file, key) = place.boosted();
    fs::remove_file(place.path()).unwrap();
    place.close(file, key);
    await_that(|| {
        place.boost.look_after_resting(true);
        assert_eq!(place.boost.descriptor_closed(key), Ok(()));
        place.boost.find(key).is_none()
    });
    let (_dir, replay) = place.crash();
    assert!(replay.is_complete(), "{replay:?}");
}

#[test]
fn an_announced_removal_that_did_not_happen_is_forgotten() {
    let place = Place::new();
    let (file, key) = place.boosted();
    place.boost.leave(key).unwrap();
    assert!(place.boost.find(key).is_some(), "it is boosted to its end");
    // Whoever announced it is gone.
    place.boost.process_ended();
    assert!(place.boost.find(key).is_none());
    assert_eq!(place.boost.write(&file, at(0), b"W"), Err(PLAIN));
    fs::rename(place.path(), place.dir.path().join("elsewhere")).unwrap();
    let (_dir, replay) = place.crash();
    assert_eq!(replay.operations, 0, "{replay:?}");
}

#[test]
fn an_offset_is_moved_by_what_was_written() {
    let place = Place::new();
    let (file, _) = place.boosted();
    assert_eq!(rustix::fs::tell(&file).unwrap(), 7);
    assert_eq!(place.boost.write(&file, at(2), b"I"), Ok(1));
    assert_eq!(rustix::fs::tell(&file).unwrap(), 7);
    assert_eq!(place.boost.set_length(&file, 4), Ok(()));
    let mut bytes = [0; 8];
    assert_eq!(rustix::io::pread(file.as_fd(), &mut bytes, 0), Ok(4));
    assert_eq!(&bytes[..4], b"wrIt");
}

#[test]
fn the_log_records_an_append_at_the_kernels_offset() {
    let place = Place::new();
    let file = OwnedFd::from(File::options().read(true).append(true).create(true).open(place.path()).unwrap());
    await_that(|| place.boost.opened(&file).unwrap());
    assert_eq!(place.boost.write(&file, NEXT, b"one"), Ok(3));
    rustix::fs::seek(&file, rustix::fs::SeekFrom::Start(1)).unwrap();
    assert_eq!(place.boost.write(&file, NEXT, b"two"), Ok(3));
    assert_eq!(rustix::fs::tell(&file).unwrap(), 6);
    // Linux appends that too, and leaves the offset where it is.
    assert_eq!(place.boost.write(&file, at(0), b"three"), Ok(5));
    assert_eq!(rustix::fs::tell(&file).unwrap(), 6);
    assert_eq!(place.boost.set_length(&file, 8), Ok(()));
    assert_eq!(place.boost.write(&file, NEXT, b"end"), Ok(3));
    assert_eq!(rustix::fs::tell(&file).unwrap(), 11);
    let mut bytes = [0; 16];
    assert_eq!(rustix::io::pread(&file, &mut bytes, 0), Ok(11));
    assert_eq!(&bytes[..11], b"onetwothend");
    // As a power cut could, before anything was drained.
    rustix::fs::ftruncate(&file, 0).unwrap();
    let path = place.path();
    drop(file);
    let (_dir, replay) = place.crash();
    assert!(replay.is_complete(), "{replay:?}");
    assert_eq!(fs::read(path).unwrap(), b"onetwothend");
}

/// A file of which something is done before its device syncs it, which may fail.
struct Behind {
    file: Descriptor,
    before: Arc<dyn Fn() -> untorn::Result<()> + Send + Sync>,
}

impl BackingFile for Behind {
    fn identity(&self) -> untorn::Result<Identity> {
        self.file.identity()
    }

    fn len(&self) -> untorn::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> untorn::Result<usize> {
        self.file.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> untorn::Result<()> {
        self.file.write(offset, src)
    }

    fn set_len(&self, len: u64) -> untorn::Result<()> {
        self.file.set_len(len)
    }

    fn sync(&self, barrier: Barrier) -> untorn::Result<()> {
        (self.before)()?;
        self.file.sync(barrier)
    }
}

impl Place {
    /// A new file that is boosted, on such a device.
    fn behind(&self, path: PathBuf, before: Arc<dyn Fn() -> untorn::Result<()> + Send + Sync>) -> (OwnedFd, Key) {
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        let (status, file) = (file.metadata().unwrap(), OwnedFd::from(file));
        let key = (status.dev(), status.ino());
        // Other tests start programs, which hold it for a moment.
        let mut boosted = None;
        await_that(|| {
            let device = |file| -> Arc<dyn BackingFile> { Arc::new(Behind { file, before: before.clone() }) };
            boosted = Boosted::over(&self.boost.cache, &file, device).ok();
            boosted.is_some()
        });
        lock(&self.boost.table).insert(key, Arc::new(Mutex::new(boosted.unwrap())));
        (file, key)
    }
}

/// However many rest: another thread lets go of them.
#[test]
fn closing_many_files_waits_for_no_device() {
    let place = Place::new();
    let rests = Arc::new((Mutex::new(false), Condvar::new()));
    let device = rests.clone();
    let before = Arc::new(move || {
        let (rests, goes_on) = &*device;
        drop(goes_on.wait_while(lock(rests), |rests| *rests).unwrap());
        Ok(())
    });
    let mut files = Vec::new();
    for number in 0..80 {
        let path = place.path().with_extension(number.to_string());
        let (file, key) = place.behind(path, before.clone());
        assert_eq!(place.boost.write(&file, at(0), b"written"), Ok(7));
        files.push((file, key));
    }
    *lock(&rests.0) = true;
    for (file, key) in files {
        place.close(file, key);
    }
    *lock(&rests.0) = false;
    rests.1.notify_all();
    await_that(|| {
        // Of programs that other tests start, and that had copies of the descriptors for a moment, the server is told
        // so.
        place.boost.process_ended();
        lock(&place.boost.table).is_empty()
    });
}

/// The drain is told, and nobody else: the kernel says it once.
#[test]
fn a_failed_device_fails_the_next_write_sync_and_close() {
    const EIO: Result<(), i32> = Err(5);
    let place = Place::shared();
    let fails = Arc::new(AtomicBool::new(false));
    let device = fails.clone();
    let before = Arc::new(move || match device.load(Ordering::Relaxed) {
        true => {
            let error = std::io::Error::from_raw_os_error(5);
            Err(Error::io("sync", std::path::Path::new("a device"), error))
        }
        false => Ok(()),
    });
    let (file, key) = place.behind(place.path(), before);
    assert_eq!(place.boost.write(&file, NEXT, b"acknowledged"), Ok(12));
    let copies = [(); 3].map(|()| file.try_clone().unwrap());
    assert_eq!(place.boost.descriptor_closed(key), Ok(()));
    fails.store(true, Ordering::Relaxed);
    place.boost.cache.drain().unwrap_err();
    // That it gets well says nothing about what it lost.
    fails.store(false, Ordering::Relaxed);
    for copy in copies {
        drop(copy);
        assert_eq!(place.boost.descriptor_closed(key), EIO);
    }
    assert_eq!(place.boost.write(&file, NEXT, b"more"), Err(5));
    assert_eq!(place.boost.set_length(&file, 1), EIO);
    assert_eq!(place.boost.sync(&file), EIO);
    // Nobody writes it by himself either.
    let known = place.boost.find(key).unwrap();
    assert_eq!(lock(&known).write_shared(b"more", 12), None);
    drop((known, file));
    assert_eq!(place.boost.descriptor_closed(key), EIO);
    // Nor is it told to the last only, nor no more when the file was given up.
    await_that(|| {
        place.boost.look_after_resting(true);
        !place.boost.ledger.report().failures.is_empty()
    });
    assert_eq!(place.boost.descriptor_closed(key), EIO);
    fs::write(place.path(), b"").unwrap();
    let (dir, replay) = place.crash();
    assert!(replay.is_complete(), "{replay:?}");
    assert_eq!(fs::read(dir.path().join("files/f")).unwrap(), b"acknowledged");
}
