//! Latches the first failed flush.
//!
//! After a failed `fsync(2)` the kernel may mark the lost pages clean and report success the next time, so a retry
//! would acknowledge lost bytes. From the first failure on, every call that could change or promise anything fails.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};

use super::{Access, Barrier, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, Stamp};
use crate::error::{Error, Result};

/// Any medium, with a latch for its first failed flush.
///
/// The latch belongs to the medium and all its files, so one instance serves one data file and its sidecar. If either
/// cannot be flushed, no commit over both can be promised. Reads go on; everything else fails with [`Error::Poisoned`]
/// until the file is opened again through a new instance.
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
        let cause = self.cause.get().cloned().unwrap_or_else(|| {
            "another thread has just seen the first \
                                                                 failure"
                .to_owned()
        });
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

    /// Waits for the flush under way, if any, and fails if it or an earlier one did.
    fn turn(&self, path: &Path, relax: impl Fn(u32)) -> Result<MutexGuard<'_, ()>> {
        let mut round = 0;
        let turn = loop {
            match self.turn.try_lock() {
                Ok(turn) => break turn,
                // The lock guards no data: what the failure of a panicking flush means is in `failed`.
                Err(TryLockError::Poisoned(poisoned)) => break poisoned.into_inner(),
                // The medium knows how its threads wait; those of a simulated one must not block outside it.
                Err(TryLockError::WouldBlock) => relax(round),
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

    fn class(&self) -> MediumClass {
        self.inner.class()
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File> {
        Ok(self.file(path, self.inner.open(path, access, reserve)?))
    }

    fn create(&self, path: &Path, len: u64, reserve: u64) -> Result<Self::File> {
        self.latch.check(path)?;
        Ok(self.file(path, self.inner.create(path, len, reserve)?))
    }

    fn create_like(&self, path: &Path, len: u64, reserve: u64, like: &Self::File) -> Result<Self::File> {
        self.latch.check(path)?;
        Ok(self.file(path, self.inner.create_like(path, len, reserve, &like.inner)?))
    }

    fn create_dir(&self, path: &Path) -> Result<()> {
        self.latch.check(path)?;
        self.inner.create_dir(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.latch.check(from)?;
        self.inner.rename(from, to)
    }

    fn unlink(&self, path: &Path) -> Result<()> {
        self.latch.check(path)?;
        self.inner.unlink(path)
    }

    fn remove_dir_if_empty(&self, path: &Path) -> Result<()> {
        self.latch.check(path)?;
        self.inner.remove_dir_if_empty(path)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        self.inner.exists(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        self.inner.list(dir)
    }

    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()> {
        let _turn = self.latch.turn(dir, |round| self.inner.relax(round))?;
        self.latch.observe(self.inner.sync_dir(barrier, dir))
    }

    #[inline]
    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()> {
        let path = files.first().map_or(Path::new(""), |file| &file.path);
        // A fence of persistent memory is an instruction and can't fail, so it needs no turn and pays for none.
        let _turn = match self.inner.class() {
            MediumClass::PersistentMemory => self.latch.check(path).map(|()| None),
            MediumClass::Block => self.latch.turn(path, |round| self.inner.relax(round)).map(Some),
        }?;
        // One and two are all that the engines fence on their fast paths, where nothing may be allocated.
        let result = match files {
            [one] => self.inner.fence(barrier, &[&one.inner]),
            [one, two] => self.inner.fence(barrier, &[&one.inner, &two.inner]),
            many => self.inner.fence(barrier, &many.iter().map(|file| &file.inner).collect::<Vec<_>>()),
        };
        self.latch.observe(result)
    }

    #[inline]
    fn order(&self) {
        self.inner.order();
    }

    fn unique(&self) -> Result<[u8; 16]> {
        self.inner.unique()
    }

    fn relax(&self, round: u32) {
        self.inner.relax(round)
    }
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
    #[inline]
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn identity(&self) -> Result<Identity> {
        self.inner.identity()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner.descriptor()
    }

    fn changed_by_others(&self) {
        self.inner.changed_by_others();
    }

    fn stamp(&self) -> Result<Stamp> {
        self.inner.stamp()
    }

    fn notes_stores(&self) -> bool {
        self.inner.notes_stores()
    }

    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.inner.read(offset, dst)
    }

    #[inline(always)]
    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.inner.try_read(offset, dst)
    }

    fn read_stored(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.inner.read_stored(offset, dst)
    }

    fn read_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        self.inner.read_unless_bad(offset, dst)
    }

    fn read_stored_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        self.inner.read_stored_unless_bad(offset, dst)
    }

    fn write_anew(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check()?;
        self.inner.write_anew(offset, src)
    }

    fn write_anew_unless_bad(&self, offset: u64, src: &[u8]) -> Result<bool> {
        self.check()?;
        self.inner.write_anew_unless_bad(offset, src)
    }

    #[inline(always)]
    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check()?;
        self.inner.write(offset, src)
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.check()?;
        self.inner.write_parts(offset, parts)
    }

    #[inline(always)]
    fn write_lines(&self, offset: u64, src: &[u8], lines: u64) -> Result<()> {
        self.check()?;
        self.inner.write_lines(offset, src, lines)
    }

    #[inline(always)]
    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.check()?;
        self.inner.store(offset, src)
    }

    #[inline(always)]
    fn prefetch(&self, offset: u64) {
        self.inner.prefetch(offset);
    }

    #[inline(always)]
    fn prefetch_to_store(&self, offset: u64) {
        self.inner.prefetch_to_store(offset);
    }

    #[inline]
    fn flush(&self, barrier: Barrier, offset: u64, len: u64) {
        self.inner.flush(barrier, offset, len)
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.check()?;
        self.inner.set_len(len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.check()?;
        self.inner.allocate(offset, len)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.check()?;
        self.inner.punch(offset, len)
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        let _turn = self.latch.turn(&self.path, |round| self.medium.relax(round))?;
        self.latch.observe(self.inner.sync(barrier))
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        let _turn = self.latch.turn(&self.path, |round| self.medium.relax(round))?;
        self.latch.observe(self.inner.distrust_cache(barrier, offset, len))
    }

    fn mark(&self) -> Result<MarkState> {
        self.inner.mark()
    }

    fn set_mark(&self, mark: Option<Mark>) -> Result<()> {
        self.check()?;
        self.inner.set_mark(mark)
    }

    fn try_lock(&self, kind: LockKind) -> Result<bool> {
        self.inner.try_lock(kind)
    }
}

#[cfg(test)]
mod tests;
