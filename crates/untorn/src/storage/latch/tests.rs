//! A medium whose flushes fail, and what is promised afterwards.

use std::sync::atomic::AtomicU32;

use super::*;

const AT: Barrier = Barrier::new("test.latch");

/// Which call fails, once: as the kernel does, the next one reports success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fails {
    Fence,
    Sync,
    SyncDir,
    DistrustCache,
    SetLen,
}

/// A medium without storage whose given call fails the first time. It counts the calls that reach it.
struct Failing {
    class: MediumClass,
    calls: Arc<Calls>,
}

struct Calls {
    fails: Fails,
    armed: AtomicBool,
    reached: AtomicU32,
    /// Whether fences are to wait, and how often somebody has waited for a turn.
    holds: AtomicBool,
    waits: AtomicU32,
}

impl Calls {
    fn new(fails: Fails, armed: bool) -> Arc<Self> {
        let (armed, reached) = (AtomicBool::new(armed), AtomicU32::new(0));
        Arc::new(Calls { fails, armed, reached, holds: AtomicBool::new(false), waits: AtomicU32::new(0) })
    }

    fn call(&self, what: Option<Fails>, path: &Path) -> Result<()> {
        self.reached.fetch_add(1, Ordering::Relaxed);
        let fails = what == Some(self.fails) && self.armed.swap(false, Ordering::Relaxed);
        if fails { Err(Error::io("flush", path, rustix::io::Errno::IO)) } else { Ok(()) }
    }
}

struct FailingFile(Arc<Calls>);

impl Medium for Failing {
    type File = FailingFile;

    fn class(&self) -> MediumClass {
        self.class
    }
    fn open(&self, _: &Path, _: Access, _: u64) -> Result<FailingFile> {
        Ok(FailingFile(Arc::clone(&self.calls)))
    }
    fn create_new(&self, path: &Path, _: u64, _: u64, _: Option<&FailingFile>) -> Result<FailingFile> {
        self.calls.call(None, path)?;
        Ok(FailingFile(Arc::clone(&self.calls)))
    }
    fn names(&self) -> &dyn Names {
        self
    }
    fn fence(&self, _: Barrier, _: &[&FailingFile]) -> Result<()> {
        let fenced = self.calls.call(Some(Fails::Fence), Path::new("/data"));
        while self.calls.holds.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        fenced
    }
    fn relax(&self, _: u32) {
        self.calls.waits.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
    }
}

impl Names for Failing {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        self.calls.call(matches!(change, NameChange::SyncDir(..)).then_some(Fails::SyncDir), change.path())
    }
    fn exists(&self, _: &Path) -> Result<bool> {
        Ok(true)
    }
    fn list(&self, _: &Path) -> Result<Vec<OsString>> {
        Ok(Vec::new())
    }
}

impl FailingFile {
    fn call(&self, what: Option<Fails>) -> Result<()> {
        self.0.call(what, Path::new("/data"))
    }
}

impl MediumFile for FailingFile {
    fn len(&self) -> u64 {
        0
    }
    fn identity(&self) -> Result<Identity> {
        Ok(Identity::default())
    }
    fn stamp(&self) -> Result<Stamp> {
        Ok(Stamp::default())
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        self.call(None)
    }
    fn store(&self, _: u64, _: &[u8]) -> Result<()> {
        self.call(None)
    }
    fn flush(&self, _: Barrier, _: u64, _: u64) {}
    fn set_len(&self, _: u64) -> Result<()> {
        self.call(Some(Fails::SetLen))
    }
    fn allocate(&self, _: u64, _: u64) -> Result<()> {
        self.call(None)
    }
    fn punch(&self, _: u64, _: u64) -> Result<()> {
        self.call(None)
    }
    fn sync(&self, _: Barrier) -> Result<()> {
        self.call(Some(Fails::Sync))
    }
    fn distrust_cache(&self, _: Barrier, _: u64, _: u64) -> Result<()> {
        self.call(Some(Fails::DistrustCache))
    }
    fn mark(&self) -> Result<MarkState> {
        Ok(MarkState::Absent)
    }
    fn set_mark(&self, _: Option<Mark>) -> Result<()> {
        self.call(None)
    }
    fn commit_note(&self) -> Result<Option<CommitNote>> {
        Ok(None)
    }
    fn set_commit_note(&self, _: CommitNote) -> Result<()> {
        self.call(None)
    }
    fn try_lock(&self, _: LockKind) -> Result<bool> {
        Ok(true)
    }
}

/// Every call that changes or promises something, on a medium and two of its files.
fn promises(medium: &Latched<Failing>, one: &LatchedFile<Failing>, two: &LatchedFile<Failing>) -> Vec<Result<()>> {
    let path = Path::new("/data");
    vec![
        medium.fence(AT, &[one]),
        medium.fence(AT, &[one, two]),
        medium.fence(AT, &[two, one, two]),
        medium.fence(AT, &[]),
        medium.sync_dir(AT, path),
        medium.create(path, 0, 0).map(drop),
        medium.create_dir(path),
        medium.rename(path, path),
        medium.unlink(path),
        medium.remove_dir_if_empty(path),
        two.write(0, b""),
        two.store(0, b""),
        two.set_len(0),
        two.allocate(0, 0),
        two.punch(0, 0),
        two.sync(AT),
        two.distrust_cache(AT, 0, 0),
        two.set_mark(None),
        two.set_commit_note([0; 16]),
    ]
}

#[test]
fn the_first_failed_flush_ends_all_promises() {
    for class in [MediumClass::Block, MediumClass::PersistentMemory] {
        for fails in [Fails::Fence, Fails::Sync, Fails::SyncDir, Fails::DistrustCache] {
            let calls = Calls::new(fails, false);
            let medium = Latched::new(Failing { class, calls: Arc::clone(&calls) });
            let one = medium.open(Path::new("/data"), Access::ReadWrite, 0).unwrap();
            let two = medium.open(Path::new("/sidecar"), Access::ReadWrite, 0).unwrap();
            assert!(promises(&medium, &one, &two).iter().all(Result::is_ok));

            calls.armed.store(true, Ordering::Relaxed);
            let first = match fails {
                Fails::Fence => medium.fence(AT, &[&one]),
                Fails::Sync => one.sync(AT),
                Fails::DistrustCache => one.distrust_cache(AT, 0, 0),
                _ => medium.sync_dir(AT, Path::new("/")),
            };
            assert!(matches!(first, Err(Error::Io { .. })), "the first failure tells what happened");

            let reached = calls.reached.load(Ordering::Relaxed);
            for result in promises(&medium, &one, &two) {
                let Err(Error::Poisoned { cause, .. }) = result else { panic!("{fails:?}: {result:?}") };
                assert!(cause.contains("Input/output error"), "{cause}");
            }
            assert_eq!(calls.reached.load(Ordering::Relaxed), reached, "nothing reached the medium");
            let poisoned = two.write(0, b"").unwrap_err();
            assert_eq!(poisoned.path(), Path::new("/sidecar"));
            one.read(0, &mut []).unwrap();
            assert_eq!(two.mark().unwrap(), MarkState::Absent);
            assert!(medium.open(Path::new("/data"), Access::Read, 0).unwrap().write(0, b"").is_err());
        }
    }
}

#[test]
fn other_failures_do_not_latch() {
    let medium = Latched::new(Failing { class: MediumClass::Block, calls: Calls::new(Fails::SetLen, true) });
    let file = medium.open(Path::new("/data"), Access::ReadWrite, 0).unwrap();
    assert!(file.set_len(1).is_err());
    assert!(promises(&medium, &file, &file).iter().all(Result::is_ok));
}

/// The flush of one file is under way. That of another does not wait for it, and one of both does.
#[test]
fn a_flush_waits_for_that_of_its_own_files_only() {
    let calls = Calls::new(Fails::SetLen, false);
    let medium = Latched::new(Failing { class: MediumClass::Block, calls: Arc::clone(&calls) });
    let [one, two] = ["/data", "/sidecar"].map(|path| medium.open(Path::new(path), Access::ReadWrite, 0).unwrap());
    calls.holds.store(true, Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| medium.fence(AT, &[&one]).unwrap());
        while calls.reached.load(Ordering::Relaxed) == 0 {
            std::thread::yield_now();
        }
        two.sync(AT).unwrap();
        let again = medium.open(Path::new("/data"), Access::ReadWrite, 0).unwrap();
        assert_eq!((calls.reached.load(Ordering::Relaxed), calls.waits.load(Ordering::Relaxed)), (2, 0));
        scope.spawn(|| medium.fence(AT, &[&two, &one]).unwrap());
        scope.spawn(|| medium.fence(AT, &[&one, &two, &one]).unwrap());
        // Opened twice it is one file.
        scope.spawn(move || again.sync(AT).unwrap());
        while calls.waits.load(Ordering::Relaxed) < 1000 {
            std::thread::yield_now();
        }
        assert_eq!(calls.reached.load(Ordering::Relaxed), 2, "they wait for the first file");
        calls.holds.store(false, Ordering::Relaxed);
    });
    assert_eq!(calls.reached.load(Ordering::Relaxed), 5);
}
