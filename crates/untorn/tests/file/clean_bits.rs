//! What happens in the very middle of somebody's copy: no reader of a clean block believes half of it.
//!
//! Nothing here depends on which thread is faster: a medium that does everything in two halves runs the other side in
//! between.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};

use crate::common::counting::{Counting, Halfway};
use crate::common::{PAGE, ReadAt, memory_dir, pmem};
use tempfile::TempDir;
use untorn::options::LogPolicy;
use untorn::testing::storage::Latched;
use untorn::{AtomicFile, Durability, EngineKind, Options};

const PAGES: usize = 16;
/// The page that is looked at, and one so near that their bits share a word, in no cover with it.
const LOOKED_AT: u64 = 5 * PAGE as u64;
const NEIGHBOUR: u64 = 9 * PAGE as u64;

type Action = Box<dyn FnOnce() + Send>;

/// What to do halfway through the next read or write of the page that is looked at, and how many of its reads there
/// were.
#[derive(Default)]
struct Halves {
    in_read: Option<Action>,
    in_write: Option<Action>,
    on_wait: Option<Action>,
    reads: u32,
}

struct Rig {
    file: AtomicFile,
    halves: Arc<Mutex<Halves>>,
    name: String,
    _dir: TempDir,
}

impl Rig {
    /// A file of ones, all at home and clean.
    fn new(options: &Options, name: String) -> Rig {
        let dir = memory_dir();
        let path: PathBuf = dir.path().join("data");
        std::fs::write(&path, vec![1; PAGES * PAGE]).unwrap();
        let medium = Counting::new(Latched::new(pmem()));
        let halves: Arc<Mutex<Halves>> = Arc::default();
        let (theirs, data) = (Arc::clone(&halves), path.clone());
        medium.halve(move |halfway| {
            let mut halves = theirs.lock().unwrap();
            let action = match halfway {
                Halfway::Read(path, offset) if path == data && offset / PAGE as u64 == LOOKED_AT / PAGE as u64 => {
                    halves.reads += 1;
                    halves.in_read.take()
                }
                Halfway::Write(path, offset) if path == data && offset / PAGE as u64 == LOOKED_AT / PAGE as u64 => {
                    halves.in_write.take()
                }
                Halfway::Wait => halves.on_wait.take(),
                _ => None,
            };
            // What it does goes halfway too.
            drop(halves);
            if let Some(action) = action {
                action();
            }
        });
        let file = options.open_on(medium, &path).unwrap();
        Rig { file, halves, name, _dir: dir }
    }

    fn halves(&self) -> std::sync::MutexGuard<'_, Halves> {
        self.halves.lock().unwrap()
    }

    fn fill(&self, offset: u64, len: usize, value: u8) {
        fill(&self.file, offset, len, value);
    }

    fn read(&self, len: usize) -> u8 {
        read(&self.file, len).unwrap_or_else(|bytes| panic!("{}, {len} bytes: torn: {bytes:?}", self.name))
    }

    /// Reads while `action` is done halfway through.
    fn read_with(&self, len: usize, action: impl FnOnce(&AtomicFile) + Send + 'static) -> u8 {
        let file = self.file.clone();
        self.halves().in_read = Some(Box::new(move || action(&file)));
        let read = self.read(len);
        assert!(self.halves().in_read.is_none(), "{}: it was not read from home", self.name);
        read
    }

    /// Whether the page is clean. A reader of a clean page goes by a word that has bits of its neighbours, and begins
    /// again when one of them is marked dirty; all other readers look at nothing of a neighbour. The neighbour is to be
    /// clean too.
    fn is_clean(&self) -> bool {
        self.halves().reads = 0;
        self.read_with(64, |file| fill(file, NEIGHBOUR, 64, 77));
        match self.halves().reads {
            1 => false,
            2 => true,
            reads => panic!("{}: {reads} reads", self.name),
        }
    }
}

fn fill(file: &AtomicFile, offset: u64, len: usize, value: u8) {
    file.write_at(&vec![value; len], offset).unwrap();
}

/// The one number that fills the page that is looked at, or all the bytes if it is not one.
fn read(file: &AtomicFile, len: usize) -> Result<u8, Vec<u8>> {
    let bytes = file.bytes_at(LOOKED_AT, len);
    if bytes.iter().all(|byte| *byte == bytes[0]) { Ok(bytes[0]) } else { Err(bytes) }
}

/// Commits, brings home and reads once, so that the page and its neighbour are clean.
fn clean(file: &AtomicFile) {
    file.sync().unwrap();
    file.deploy(0, file.len()).unwrap();
    // Under the reflection engine what is deployed is a write of the open epoch.
    file.sync().unwrap();
    for offset in [NEIGHBOUR, LOOKED_AT] {
        file.read_at(&mut [0; 64], offset).unwrap();
    }
}

/// Every engine and policy, and both durabilities, each with the page that is looked at clean.
fn rigs() -> impl Iterator<Item = Rig> {
    let engines = [
        (EngineKind::Reflection, LogPolicy::Hybrid),
        (EngineKind::HybridLog, LogPolicy::Undo),
        (EngineKind::HybridLog, LogPolicy::Redo),
    ];
    engines.into_iter().flat_map(|(engine, policy)| {
        [Durability::PerCommit, Durability::PerWrite].map(|durability| {
            let options = Options::new().engine(engine).log_policy(policy).durability(durability).checkpoint_threads(0);
            let rig = Rig::new(&options, format!("{engine:?}, {policy:?}, {durability:?}"));
            // What is done once only is behind us then: a chunk of the log, a leaf of the index.
            rig.fill(0, 64, 1);
            clean(&rig.file);
            rig
        })
    })
}

/// A short read, which one call copies, and a whole page.
const LENGTHS: [usize; 2] = [64, PAGE];

/// A write that comes halfway through a read, and what `then` does: the read is of before or after it.
fn overtaken_by_a_write(then: fn(&AtomicFile)) {
    for rig in rigs() {
        for len in LENGTHS {
            clean(&rig.file);
            let read = rig.read_with(len, move |file| {
                fill(file, LOOKED_AT, len, 2);
                then(file);
            });
            assert!(read == 1 || read == 2, "{}, {len} bytes: {read}", rig.name);
            assert_eq!(rig.read(len), 2, "{}, {len} bytes", rig.name);
            rig.fill(LOOKED_AT, PAGE, 1);
        }
    }
}

#[test]
fn a_write_in_the_middle_of_a_read() {
    overtaken_by_a_write(|_| ());
}

#[test]
fn a_write_that_is_home_and_clean_again_in_the_middle_of_a_read() {
    overtaken_by_a_write(clean);
}

#[test]
fn a_write_that_a_checkpoint_takes_home_in_the_middle_of_a_read() {
    overtaken_by_a_write(|file| {
        file.sync().unwrap();
        file.reclaim().unwrap();
    });
}

#[test]
fn a_large_write_in_the_middle_of_a_read() {
    for rig in rigs() {
        clean(&rig.file);
        // Blocks 4 to 7 are one cover, of which the first stands for all.
        for value in [2, 3] {
            let read = rig.read_with(PAGE, move |file| fill(file, LOOKED_AT - PAGE as u64, 3 * PAGE, value));
            assert!(read == value - 1 || read == value, "{}: {read}", rig.name);
            clean(&rig.file);
            assert_eq!(rig.read(PAGE), value, "{}", rig.name);
        }
    }
}

#[test]
fn a_length_that_changes_in_the_middle_of_a_read() {
    for rig in rigs() {
        for len in LENGTHS {
            rig.fill(LOOKED_AT, PAGE, 1);
            clean(&rig.file);
            let read = rig.read_with(len, |file| {
                file.resize(PAGE as u64).unwrap();
                file.sync().unwrap();
                file.resize((PAGES * PAGE) as u64).unwrap();
                file.sync().unwrap();
            });
            assert_eq!(read, 0, "{}, {len} bytes", rig.name);
        }
    }
}

#[test]
fn a_read_in_the_middle_of_a_write() {
    for rig in rigs() {
        for len in LENGTHS {
            clean(&rig.file);
            let ((said, heard), (readers, started)) = (mpsc::channel(), mpsc::channel());
            let (file, halves) = (rig.file.clone(), Arc::clone(&rig.halves));
            // Of the reader this thread hears that it waits, or what it has read.
            rig.halves().in_write = Some(Box::new(move || {
                let waits = said.clone();
                halves.lock().unwrap().on_wait = Some(Box::new(move || waits.send(None).unwrap()));
                let reader = std::thread::spawn(move || {
                    let read = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| read(&file, len)));
                    // Nobody listens any more if it has waited.
                    let _ = said.send(Some(()));
                    read.expect("a read failed").expect("half of a write was read")
                });
                readers.send(reader).unwrap();
                if heard.recv().unwrap().is_some() {
                    halves.lock().unwrap().on_wait = None;
                }
            }));
            rig.fill(LOOKED_AT, len, 2);
            rig.file.sync().unwrap();
            rig.file.deploy(0, rig.file.len()).unwrap();
            let reader = started.try_recv().unwrap_or_else(|_| panic!("{}: nothing was stored to the file", rig.name));
            assert_eq!(reader.join().unwrap(), 2, "{}, {len} bytes", rig.name);
            assert_eq!(rig.read(len), 2, "{}, {len} bytes", rig.name);
            rig.fill(LOOKED_AT, PAGE, 1);
        }
    }
}

#[test]
fn deployed_blocks_are_clean_before_the_first_read() {
    // Under the reflection engine what is deployed is a write of the open epoch, which its next read finds at rest.
    for rig in rigs().filter(|rig| rig.file.info().engine == EngineKind::HybridLog) {
        for (offset, len) in [(LOOKED_AT, 64), (LOOKED_AT, PAGE), (LOOKED_AT - PAGE as u64, 3 * PAGE)] {
            rig.fill(offset, len, 2);
            rig.file.sync().unwrap();
            rig.file.deploy(0, rig.file.len()).unwrap();
            rig.file.sync().unwrap();
            assert!(rig.is_clean(), "{}: {len} bytes at {offset}", rig.name);
        }
    }
}

#[test]
fn a_page_becomes_clean_again() {
    for rig in rigs() {
        assert!(rig.is_clean(), "{}: at first", rig.name);
        for (offset, len) in [(LOOKED_AT, 64), (LOOKED_AT, PAGE), (LOOKED_AT - PAGE as u64, 3 * PAGE)] {
            rig.fill(offset, len, 2);
            rig.file.sync().unwrap();
            rig.file.reclaim().unwrap();
            // Its reads find out, and the next goes by it.
            clean(&rig.file);
            assert!(rig.is_clean(), "{}: {len} bytes at {offset}", rig.name);
        }
    }
}
