//! Latches the first failed flush.
//!
//! After a failed `fsync(2)` the kernel may mark the lost pages clean and report success the next time, so a retry
//! would acknowledge lost bytes. From the first failure on, every call that could change or promise anything fails.

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

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
    /// Held by whoever flushes where flushing can fail. The kernel reports a failure to one caller of an open file and
    /// success to the next, whose bytes may be among the lost: the next must not ask before the first has latched.
    turn: Mutex<()>,
}

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

    /// Passes a flush's result on, and remembers it if it is the first failure.
    #[inline(always)]
    fn observe(&self, result: Result<()>) -> Result<()> {
        // Told apart here, so that the good case is known to be one where this is inlined, and no error is moved.
        match result {
            Ok(()) => Ok(()),
            Err(error) => Err(self.close(error)),
        }
    }

    /// Flushes after the flush under way, if any, unless it or an earlier one failed.
    fn flush(&self, path: &Path, medium: &impl Medium, go: impl FnOnce() -> Result<()>) -> Result<()> {
        let _turn = self.turn(path, medium)?;
        self.observe(go())
    }

    /// Waits for the flush under way, if any, and fails if it or an earlier one did.
    fn turn(&self, path: &Path, medium: &impl Medium) -> Result<MutexGuard<'_, ()>> {
        let mut round = 0;
        let turn = loop {
            match self.turn.try_lock() {
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
        LatchedFile { inner, medium: Arc::clone(&self.inner), latch: Arc::clone(&self.latch), path: path.to_owned() }
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
        let path = files.first().map_or(Path::new(""), |file| &file.path);
        // A fence of persistent memory is an instruction and can't fail, so it needs no turn and pays for none.
        let _turn = match self.inner.class() {
            MediumClass::PersistentMemory => self.latch.check(path).map(|()| None),
            MediumClass::Block => self.latch.turn(path, &*self.inner).map(Some),
        }?;
        // One and two are all that the engines fence on their fast paths, where nothing may be allocated.
        let result = match files {
            [one] => self.inner.fence(barrier, &[&one.inner]),
            [one, two] => self.inner.fence(barrier, &[&one.inner, &two.inner]),
            many => self.inner.fence(barrier, &many.iter().map(|file| &file.inner).collect::<Vec<_>>()),
        };
        self.latch.observe(result)
    }
}

impl<M: Medium> Names for Latched<M> {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        if let NameChange::SyncDir(_, dir) = change {
            return self.latch.flush(dir, &*self.inner, || self.inner.names().change(change));
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
        self.latch.flush(&self.path, &*self.medium, || self.inner.sync(barrier))
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        self.latch.flush(&self.path, &*self.medium, || self.inner.distrust_cache(barrier, offset, len))
    }
}

#[cfg(test)]
mod tests;
