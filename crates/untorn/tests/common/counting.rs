//! A small medium that counts what an engine asks of it, and can be made slow, full or watched.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use untorn::testing::storage::forward;
use untorn::testing::storage::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, NameChange,
    Names, Stamp,
};
use untorn::{Error, Result};

/// Counts at one instant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Calls of `fence`, except the last step of `order`.
    pub(crate) fences: u64,
    /// Calls of `order`, which on persistent memory is a fence instruction too.
    pub(crate) orders: u64,
    /// Calls of `sync` and `sync_dir`.
    pub(crate) syncs: u64,
    /// Calls of `flush`.
    pub(crate) flushes: u64,
    /// Bytes given to `write` and `store`.
    pub(crate) bytes: u64,
    /// Calls of `read`.
    pub(crate) reads: u64,
    /// Everything else: lengths, space, names, marks, waits.
    pub(crate) others: u64,
}

impl std::ops::Sub for Counts {
    type Output = Counts;

    fn sub(self, earlier: Counts) -> Counts {
        Counts {
            fences: self.fences - earlier.fences,
            orders: self.orders - earlier.orders,
            syncs: self.syncs - earlier.syncs,
            flushes: self.flushes - earlier.flushes,
            bytes: self.bytes - earlier.bytes,
            reads: self.reads - earlier.reads,
            others: self.others - earlier.others,
        }
    }
}

/// Called with what is about to be done, and to which file.
type Watcher = dyn Fn(&str, &Path) + Send + Sync;

/// What happens halfway through something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Halfway<'a> {
    /// A read of this file that began at this offset.
    Read(&'a Path, u64),
    /// A write to this file that began at this offset.
    Write(&'a Path, u64),
    /// Somebody waits for another thread.
    Wait,
}

/// Called halfway.
type Halver = dyn Fn(Halfway<'_>) + Send + Sync;

#[derive(Default)]
struct Cells {
    counts: Mutex<Counts>,
    bytes_read: AtomicU64,
    set_lens: AtomicU64,
    /// Creating a file fails for want of space.
    full: AtomicBool,
    /// Fences let pass before every further one fails; `u64::MAX` for none that fails.
    sound: AtomicU64,
    /// Reads of this many bytes and more rest in the middle; 0 for none that does.
    resting: AtomicU64,
    /// Writes to this file fail.
    refusing: Mutex<Option<PathBuf>>,
    /// This file gets no more space.
    stuck: Mutex<Option<PathBuf>>,
    /// Reads of this file fail.
    unreadable: Mutex<Option<PathBuf>>,
    watcher: RwLock<Option<Arc<Watcher>>>,
    halver: RwLock<Option<Arc<Halver>>>,
}

impl Cells {
    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.counts.lock().unwrap());
    }

    fn count_other(&self) -> Result<()> {
        self.count(|counts| counts.others += 1);
        Ok(())
    }

    fn tell(&self, what: &str, path: &Path) {
        let watcher = self.watcher.read().unwrap().clone();
        if let Some(watcher) = watcher {
            watcher(what, path);
        }
    }

    fn halver(&self) -> Option<Arc<Halver>> {
        self.halver.read().unwrap().clone()
    }
}

/// Counts what goes by on its way to another medium. Clones share the counts, and what is called; the first one ends
/// that.
pub(crate) struct Counting<M> {
    inner: Arc<M>,
    cells: Arc<Cells>,
    /// How long each fence takes besides.
    delay: Duration,
    is_clone: bool,
}

impl<M> Clone for Counting<M> {
    fn clone(&self) -> Self {
        Counting { inner: self.inner.clone(), cells: self.cells.clone(), delay: self.delay, is_clone: true }
    }
}

impl<M> Drop for Counting<M> {
    fn drop(&mut self) {
        if self.is_clone {
            return;
        }
        // What is called often has a file on this very medium, and would keep it and itself for ever. It is dropped
        // when the locks are let go of again, as closing that file calls it.
        let watcher = self.cells.watcher.write().unwrap().take();
        let halver = self.cells.halver.write().unwrap().take();
        drop((watcher, halver));
    }
}

impl<M: Medium> Counting<M> {
    pub(crate) fn new(inner: M) -> Self {
        Self::slow(inner, Duration::ZERO)
    }

    pub(crate) fn slow(inner: M, delay: Duration) -> Self {
        let cells = Cells { sound: AtomicU64::new(u64::MAX), ..Cells::default() };
        Counting { inner: Arc::new(inner), cells: Arc::new(cells), delay, is_clone: false }
    }

    /// From now on every read of this many bytes and more rests in the middle, for as long as thirty fences take.
    pub(crate) fn rest_within_reads_of(&self, bytes: u64) {
        self.cells.resting.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn counts(&self) -> Counts {
        *self.cells.counts.lock().unwrap()
    }

    /// Bytes read so far, however many calls it took.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.cells.bytes_read.load(Ordering::Relaxed)
    }

    /// What `go` costs.
    pub(crate) fn cost<T>(&self, go: impl FnOnce() -> T) -> Counts {
        let before = self.counts();
        go();
        self.counts() - before
    }

    /// From now on creating a file fails for want of space, or no more.
    pub(crate) fn fill(&self, full: bool) {
        self.cells.full.store(full, Ordering::Relaxed);
    }

    /// Every fence after the next `n` fails.
    pub(crate) fn fail_fences_after(&self, n: u64) {
        self.cells.sound.store(n, Ordering::Relaxed);
    }

    /// From now on every write to this file fails for want of space, or none does any more.
    pub(crate) fn refuse_writes_to(&self, path: Option<&Path>) {
        *self.cells.refusing.lock().unwrap() = path.map(Path::to_owned);
    }

    /// From now on this file gets no more space, be it longer or where it has a hole, or all do again.
    pub(crate) fn refuse_space_to(&self, path: Option<&Path>) {
        *self.cells.stuck.lock().unwrap() = path.map(Path::to_owned);
    }

    /// From now on every read of this file fails, or none does any more.
    pub(crate) fn refuse_reads_of(&self, path: Option<&Path>) {
        *self.cells.unreadable.lock().unwrap() = path.map(Path::to_owned);
    }

    /// Calls `watcher` before each fence and each sync of a file, with the barrier's name, and before each lock and
    /// each write that is refused, with "lock" or "refused" and the path.
    pub(crate) fn watch(&self, watcher: impl Fn(&str, &Path) + Send + Sync + 'static) {
        let before = self.cells.watcher.write().unwrap().replace(Arc::new(watcher));
        assert!(before.is_none(), "one watcher is enough");
    }

    /// Does every read and write from now on in two halves, and calls `halver` in between; and whenever somebody waits.
    pub(crate) fn halve(&self, halver: impl Fn(Halfway<'_>) + Send + Sync + 'static) {
        let before = self.cells.halver.write().unwrap().replace(Arc::new(halver));
        assert!(before.is_none(), "one is enough");
    }

    fn wrap(&self, path: &Path, file: M::File) -> CountingFile<M::File> {
        CountingFile { inner: file, cells: self.cells.clone(), path: path.to_owned(), delay: self.delay }
    }
}

impl<M: Medium> Medium for Counting<M> {
    type File = CountingFile<M::File>;

    forward!(inner: class);

    fn names(&self) -> &dyn Names {
        self
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File> {
        self.cells.count_other()?;
        Ok(self.wrap(path, self.inner.open(path, access, reserve)?))
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&Self::File>) -> Result<Self::File> {
        self.cells.count_other()?;
        if self.cells.full.load(Ordering::Relaxed) {
            return Err(Error::io("create", path, std::io::Error::from(std::io::ErrorKind::StorageFull)));
        }
        Ok(self.wrap(path, self.inner.create_new(path, len, reserve, like.map(|file| &file.inner))?))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &Self::File) -> Result<Self::File> {
        self.cells.count_other()?;
        Ok(self.wrap(path, self.inner.open_companion(path, access, reserve, &data.inner)?))
    }

    fn create_companion_dir(&self, path: &Path, data: &Self::File) -> Result<()> {
        self.cells.count_other()?;
        self.inner.create_companion_dir(path, &data.inner)
    }

    fn bring_in_line(&self, companion: &Self::File, data: &Self::File) -> Result<()> {
        self.inner.bring_in_line(&companion.inner, &data.inner)
    }

    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()> {
        self.cells.count(|counts| counts.fences += 1);
        self.cells.tell(barrier.name(), files.first().map_or(Path::new(""), |file| &file.path));
        let sound = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        if self.cells.sound.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sound).is_err() {
            return Err(Error::io("flush", Path::new(barrier.name()), std::io::Error::from_raw_os_error(5)));
        }
        if !self.delay.is_zero() {
            std::thread::sleep(self.delay);
        }
        let files: Vec<_> = files.iter().map(|file| &file.inner).collect();
        self.inner.fence(barrier, &files)
    }

    fn order(&self) {
        self.cells.count(|counts| counts.orders += 1);
        self.inner.order();
    }

    fn relax(&self, round: u32) {
        self.cells.count(|counts| counts.others += 1);
        if let Some(halver) = self.cells.halver() {
            halver(Halfway::Wait);
        }
        self.inner.relax(round);
    }
}

impl<M: Medium> Names for Counting<M> {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        match change {
            NameChange::SyncDir(..) => self.cells.count(|counts| counts.syncs += 1),
            _ => self.cells.count_other()?,
        }
        self.inner.names().change(change)
    }

    forward!(inner after cells.count_other: exists, list);
}

/// A file of [`Counting`].
pub(crate) struct CountingFile<F> {
    inner: F,
    cells: Arc<Cells>,
    path: PathBuf,
    delay: Duration,
}

impl<F> CountingFile<F> {
    fn refused_space(&self, operation: &'static str) -> Result<()> {
        if self.cells.stuck.lock().unwrap().as_ref() == Some(&self.path) {
            return Err(Error::io(operation, &self.path, std::io::Error::from_raw_os_error(28)));
        }
        Ok(())
    }
}

impl<F: MediumFile> MediumFile for CountingFile<F> {
    forward!(inner: len, identity, data_from, next_data, mark, commit_note, distrust_cache, own_space);
    forward!(inner after cells.count_other: stamp, set_mark, set_commit_note, punch);

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.cells.count(|counts| counts.reads += 1);
        self.cells.bytes_read.fetch_add(dst.len() as u64, Ordering::Relaxed);
        if self.cells.unreadable.lock().unwrap().as_ref() == Some(&self.path) {
            return Err(Error::io("read", &self.path, std::io::Error::from_raw_os_error(5)));
        }
        let resting = self.cells.resting.load(Ordering::Relaxed);
        if resting > 0 && dst.len() as u64 >= resting {
            let (first, second) = dst.split_at_mut(dst.len() / 2);
            self.inner.read(offset, first)?;
            std::thread::sleep(30 * self.delay);
            return self.inner.read(offset + first.len() as u64, second);
        }
        if let Some(halver) = self.cells.halver() {
            let (first, second) = dst.split_at_mut(dst.len() / 2);
            self.inner.read(offset, first)?;
            halver(Halfway::Read(&self.path, offset));
            return self.inner.read(offset + first.len() as u64, second);
        }
        self.inner.read(offset, dst)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        if self.cells.refusing.lock().unwrap().as_ref() == Some(&self.path) {
            self.cells.tell("refused", &self.path);
            return Err(Error::io("write", &self.path, std::io::Error::from(std::io::ErrorKind::StorageFull)));
        }
        self.cells.count(|counts| counts.bytes += src.len() as u64);
        if let Some(halver) = self.cells.halver() {
            let (first, second) = src.split_at(src.len() / 2);
            self.inner.write(offset, first)?;
            halver(Halfway::Write(&self.path, offset));
            return self.inner.write(offset + first.len() as u64, second);
        }
        self.inner.write(offset, src)
    }

    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.cells.count(|counts| counts.bytes += src.len() as u64);
        self.inner.store(offset, src)
    }

    fn flush(&self, barrier: Barrier, offset: u64, len: u64) {
        self.cells.count(|counts| counts.flushes += 1);
        self.inner.flush(barrier, offset, len);
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.cells.count_other()?;
        // Every other one comes late, so that of two at once either may be the last.
        if self.cells.set_lens.fetch_add(1, Ordering::Relaxed).is_multiple_of(2) {
            std::thread::sleep(self.delay);
        }
        if len > self.inner.len() {
            self.refused_space("set the length of")?;
        }
        self.inner.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.cells.count_other()?;
        self.refused_space("allocate space in")?;
        self.inner.allocate(offset, len)
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        self.cells.count(|counts| counts.syncs += 1);
        self.cells.tell(barrier.name(), &self.path);
        self.inner.sync(barrier)
    }

    fn try_lock(&self, kind: LockKind) -> Result<bool> {
        self.cells.tell("lock", &self.path);
        self.inner.try_lock(kind)
    }
}
