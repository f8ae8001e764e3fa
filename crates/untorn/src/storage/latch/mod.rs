//! Latches the first failed flush.
//!
//! After a failed `fsync(2)` the kernel may mark the lost pages clean and report success the next time, so a retry
//! would acknowledge lost bytes. From the first failure on, every call that could change or promise anything fails.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use super::forward::forward;
use super::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, NameChange,
    Names, Stamp,
};
use crate::error::{Error, Result};

/// Any medium, with a latch for its first failed flush.
///
/// The latch belongs to the medium and all its files, so one instance serves one data file and its sidecar. If either
/// cannot be flushed, no commit over both can be promised. Reads go on, and so does
/// [`write_unpromised`](MediumFile::write_unpromised); everything else fails with [`Error::Poisoned`] until the file is
/// opened again through a new instance.
#[derive(Debug)]
pub struct Latched<M> {
    inner: Arc<M>,
    latch: Arc<Latch>,
}

#[derive(Debug, Default)]
struct Latch {
    failed: AtomicBool,
    /// The text of the first failure, set before `failed` is.
    cause: OnceLock<String>,
    /// Held while a directory is flushed.
    directories: Turn,
    /// The turns of the files that are open.
    turns: Mutex<BTreeMap<PathBuf, Weak<Turn>>>,
}

/// Held while the file of a path is flushed whose flush can fail. The kernel reports a failure to one caller of an open
/// file and success to the next, or to one that opens the file only then, and their bytes may be among the lost: they
/// must not ask before the first has latched. Other files are told of their own failures, so their flushes do not wait:
/// a commit does not wait for the flush of a checkpoint.
type Turn = Mutex<()>;

impl Latch {
    #[inline(always)]
    fn check(&self, path: &Path) -> Result<()> {
        if self.failed.load(Ordering::Relaxed) { Err(self.poisoned(path)) } else { Ok(()) }
    }

    #[cold]
    fn poisoned(&self, path: &Path) -> Error {
        // `failed` is read without ordering, so a thread that sees it can come before `cause` in theory.
        let cause = self.cause.get().map_or("another thread has just seen the first failure", String::as_str);
        let cause = cause.to_owned();
        Error::Poisoned { path: path.to_owned(), cause }
    }

    /// Passes a flush's result on, and remembers it if it is the first failure. One that succeeded beside one that
    /// failed promises nothing.
    #[inline(always)]
    fn observe(&self, path: &Path, result: Result<()>) -> Result<()> {
        // Told apart here, so that the good case is known to be one where this is inlined, and no error is moved.
        match result {
            Ok(()) => self.check(path),
            Err(error) => Err(self.close(error)),
        }
    }

    /// The turn of all that have the file at this path open.
    fn turn_of(&self, path: &Path) -> Arc<Turn> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(path).and_then(Weak::upgrade) {
            return turn;
        }
        let turn = Arc::default();
        turns.retain(|_, turn| turn.strong_count() > 0);
        turns.insert(path.to_owned(), Arc::downgrade(&turn));
        turn
    }

    /// Waits for the flush under way of what has the turn, if any, and fails if any flush failed.
    fn take<'a>(&self, turn: &'a Turn, path: &Path, medium: &impl Medium) -> Result<MutexGuard<'a, ()>> {
        let mut round = 0;
        let turn = loop {
            match turn.try_lock() {
                Ok(turn) => break turn,
                // The lock guards no data: what the failure of a panicking flush means is in `failed`.
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                // The medium knows how its threads wait; those of a simulated one must not block outside it.
                Err(TryLockError::WouldBlock) => medium.relax(round),
            }
            round = round.saturating_add(1);
        };
        self.check(path)?;
        Ok(turn)
    }

    #[cold]
    fn close(&self, error: Error) -> Error {
        // Later failures follow from the first, which is the one worth telling.
        let _ = self.cause.set(error.to_string());
        self.failed.store(true, Ordering::Release);
        error
    }
}

impl<M: Medium> Latched<M> {
    /// Wraps a medium; the latch is open.
    pub fn new(inner: M) -> Self {
        Latched { inner: Arc::new(inner), latch: Arc::default() }
    }

    fn file(&self, path: &Path, inner: M::File) -> LatchedFile<M> {
        let (medium, latch) = (Arc::clone(&self.inner), Arc::clone(&self.latch));
        LatchedFile { inner, medium, turn: latch.turn_of(path), latch, path: path.to_owned() }
    }
}

impl<M: Medium> Medium for Latched<M> {
    type File = LatchedFile<M>;

    forward!(inner: class, order, makes_check, unique, now, commit_time, booted, relax);

    fn names(&self) -> &dyn Names {
        self
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File> {
        Ok(self.file(path, self.inner.open(path, access, reserve)?))
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&Self::File>) -> Result<Self::File> {
        self.latch.check(path)?;
        Ok(self.file(path, self.inner.create_new(path, len, reserve, like.map(|file| &file.inner))?))
    }

    fn create_private(&self, path: &Path, len: u64, reserve: u64) -> Result<Self::File> {
        self.latch.check(path)?;
        Ok(self.file(path, self.inner.create_private(path, len, reserve)?))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &Self::File) -> Result<Self::File> {
        Ok(self.file(path, self.inner.open_companion(path, access, reserve, &data.inner)?))
    }

    fn create_companion_dir(&self, path: &Path, data: &Self::File) -> Result<()> {
        self.latch.check(path)?;
        self.inner.create_companion_dir(path, &data.inner)
    }

    fn bring_in_line(&self, companion: &Self::File, data: &Self::File) -> Result<()> {
        companion.check()?;
        self.inner.bring_in_line(&companion.inner, &data.inner)
    }

    #[inline]
    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()> {
        // One and two are all that the engines fence on their fast paths, where nothing may be allocated.
        match files {
            [one] => in_turn(&self.latch, files, || self.inner.fence(barrier, &[&one.inner])),
            [one, two] => in_turn(&self.latch, files, || self.inner.fence(barrier, &[&one.inner, &two.inner])),
            many => {
                let inner: Vec<_> = many.iter().map(|file| &file.inner).collect();
                in_turn(&self.latch, files, || self.inner.fence(barrier, &inner))
            }
        }
    }
}

/// Fences after the flushes under way of these files, unless one or an earlier one failed. A fence of persistent memory
/// is an instruction and can't fail, so it needs no turn and pays for none.
#[inline]
fn in_turn<M: Medium>(latch: &Latch, files: &[&LatchedFile<M>], go: impl FnOnce() -> Result<()>) -> Result<()> {
    let path = files.first().map_or(Path::new(""), |file| &file.path);
    latch.check(path)?;
    let observe = || latch.observe(path, go());
    if files.first().is_none_or(|file| file.medium.class() == MediumClass::PersistentMemory) {
        return observe();
    }
    // In the order of their addresses: of two threads that want the same turns, one has the first of them.
    let place = |file: &LatchedFile<M>| Arc::as_ptr(&file.turn);
    match files {
        [one] => one.turn().and_then(|_one| observe()),
        [one, two] if place(one) == place(two) => one.turn().and_then(|_one| observe()),
        [one, two] => {
            let (first, second) = if place(one) < place(two) { (one, two) } else { (two, one) };
            let _turns = (first.turn()?, second.turn()?);
            observe()
        }
        many => {
            let mut files = many.to_vec();
            files.sort_unstable_by_key(|file| place(file));
            files.dedup_by_key(|file| place(file));
            let _turns = files.into_iter().map(LatchedFile::turn).collect::<Result<Vec<_>>>()?;
            observe()
        }
    }
}

impl<M: Medium> Names for Latched<M> {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        if let NameChange::SyncDir(_, dir) = change {
            let _turn = self.latch.take(&self.latch.directories, dir, &*self.inner)?;
            return self.latch.observe(dir, self.inner.names().change(change));
        }
        self.latch.check(change.path())?;
        self.inner.names().change(change)
    }

    forward!(inner: exists, list);
}

/// A file open on a [`Latched`] medium.
pub struct LatchedFile<M: Medium> {
    inner: M::File,
    medium: Arc<M>,
    latch: Arc<Latch>,
    turn: Arc<Turn>,
    path: PathBuf,
}

impl<M: Medium> fmt::Debug for LatchedFile<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LatchedFile").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<M: Medium> LatchedFile<M> {
    #[inline(always)]
    fn check(&self) -> Result<()> {
        self.latch.check(&self.path)
    }

    fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        self.latch.take(&self.turn, &self.path, &*self.medium)
    }
}

impl<M: Medium> MediumFile for LatchedFile<M> {
    forward!(inner: len, identity, descriptor, is_removed, changed_by_others, stamp, begin_own_changes, is_disturbed);
    forward!(inner: notes_stores, mark, commit_note, try_lock);
    forward!(inner: read, try_read, read_stored, read_unless_bad, read_stored_unless_bad);
    forward!(inner: write_unpromised, prefetch, prefetch_to_store, flush, start_writeback, own_space, data_from);
    forward!(inner: next_data);
    forward!(inner after check: write_anew, write_anew_unless_bad, write, write_parts, write_lines, store);
    forward!(inner after check: set_len, allocate, punch, set_mark, set_commit_note);

    fn sync(&self, barrier: Barrier) -> Result<()> {
        let _turn = self.turn()?;
        self.latch.observe(&self.path, self.inner.sync(barrier))
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        let _turn = self.turn()?;
        self.latch.observe(&self.path, self.inner.distrust_cache(barrier, offset, len))
    }
}

#[cfg(test)]
mod tests;
