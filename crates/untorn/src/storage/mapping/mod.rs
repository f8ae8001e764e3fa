//! An open regular file with its mapping: what both real media do alike.
//!
//! # Lost pages
//! A page may vanish under the mapping ([`crate::sys::fault`]). Whoever has loaded from the mapping, or stored to it,
//! therefore asks [`intact`](MappedFile::intact) before it trusts the outcome. From the first loss on every access is
//! refused, by limits of 0, so that no page more is lost and the hot path pays nothing for it.

mod limits;
mod windows;

use std::fmt;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use self::limits::Limits;
use self::windows::Windows;
use super::companion::{self, Principal};
use super::{Access, CommitNote, Identity, LockKind, Mark, MarkState, Stamp};
use crate::error::{Error, Result};
use crate::options::LostPage;
use crate::sys;
use crate::sys::map::MapKind;

/// Bytes whose residence is asked for at once; a whole number of pages of any size.
const LOOK: u64 = 256 << 20;

/// An open file, mapped with room to grow.
pub(super) struct MappedFile {
    path: PathBuf,
    file: OwnedFd,
    map: Windows,
    /// The current length in bytes, at most `map.most()`.
    len: AtomicU64,
    limits: Limits,
    writable: bool,
    /// The process that took the file's lock through this handle, 0 if none did.
    locked_by: AtomicU64,
    /// Held while the length or the limits change, so that two changes don't leave them and the file at odds.
    resizing: Mutex<()>,
}

impl MappedFile {
    /// Maps an open file that may grow to `most` bytes.
    ///
    /// # Errors
    /// [`Error::Io`] with EOPNOTSUPP from a `Sync` kind where the file is not on persistent memory, and what `mmap(2)`
    /// says otherwise.
    pub(super) fn new(
        path: &Path,
        file: OwnedFd,
        kind: MapKind,
        access: Access,
        most: u64,
        lost_page: LostPage,
    ) -> Result<Self> {
        let found = rustix::fs::fstat(&file).map_err(|errno| Error::io("examine", path, errno))?;
        let len = u64::try_from(found.st_size).map_err(|_| Error::io("examine", path, Errno::OVERFLOW))?;
        let map = Windows::new(file.as_fd(), kind, len, most, lost_page);
        let (map, limits) = map.map_err(|errno| Error::io("map", path, errno))?;
        let writable = access == Access::ReadWrite;
        limits.set(len, if writable { len } else { 0 });
        Ok(MappedFile {
            path: path.to_owned(),
            file,
            map,
            len: AtomicU64::new(len),
            limits,
            writable,
            locked_by: AtomicU64::new(0),
            resizing: Mutex::new(()),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_writable(&self) -> bool {
        self.writable
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The file as that by which its companions are judged.
    pub(super) fn principal(&self) -> Result<Principal<'_>> {
        Principal::new(&self.path, self.fd())
    }

    /// Gives this file, a companion of `data`, the owner and the writers that `data` has now.
    pub(super) fn bring_in_line(&self, data: &MappedFile) -> Result<()> {
        companion::bring_in_line(&self.path, self.fd(), &data.path, data.fd())
    }

    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd())
    }

    /// See [`MediumFile::notes_stores`](super::MediumFile::notes_stores).
    pub(super) fn notes_stores(&self) -> bool {
        !sys::file::in_memory(self.fd())
    }

    /// The address of the first byte, in the newest window.
    pub(super) fn start(&self) -> *const u8 {
        self.limits.address(0)
    }

    #[inline]
    pub(super) fn len(&self) -> u64 {
        // Acquire: whoever sees a new length sees what was stored before it was set.
        self.len.load(Ordering::Acquire)
    }

    /// The address of a range that lies within the length.
    #[inline(always)]
    pub(super) fn range(&self, offset: u64, len: usize) -> Result<*mut u8> {
        match self.limits.load(offset, len) {
            Some(at) => Ok(at),
            None => Err(self.no_load(offset, len)),
        }
    }

    /// [`range`](MappedFile::range) within a page, for those who do not ask why not.
    #[inline(always)]
    pub(super) fn range_in_page(&self, offset: u64, len: usize) -> Option<*mut u8> {
        self.limits.load_in_page(offset, len)
    }

    /// See [`MediumFile::prefetch`](super::MediumFile::prefetch).
    #[inline(always)]
    pub(super) fn prefetch(&self, offset: u64) {
        sys::copy::prefetch(self.limits.address(offset));
    }

    /// See [`MediumFile::prefetch_to_store`](super::MediumFile::prefetch_to_store).
    #[inline(always)]
    pub(super) fn prefetch_to_store(&self, offset: u64) {
        sys::copy::prefetch_to_store(self.limits.address(offset));
    }

    /// [`range`](MappedFile::range) for stores: a file opened for reading takes none, but an empty one.
    #[inline(always)]
    pub(super) fn range_mut(&self, offset: u64, len: usize) -> Result<*mut u8> {
        match self.limits.store(offset, len) {
            Some(at) => Ok(at),
            None => Err(self.no_store(offset, len)),
        }
    }

    /// Why a load was refused.
    #[cold]
    fn no_load(&self, offset: u64, len: usize) -> Error {
        self.loss("read from").unwrap_or_else(|| self.out_of_range(offset, len as u64, self.len()))
    }

    /// Why a store was refused.
    #[cold]
    fn no_store(&self, offset: u64, len: usize) -> Error {
        let refused = self.writable().err().or_else(|| self.loss("write to"));
        refused.unwrap_or_else(|| self.out_of_range(offset, len as u64, self.len()))
    }

    /// Fails if a page of the mapping was lost, in the accesses this thread has made so far or in anybody's. Nothing
    /// that was loaded before may be used, and nothing that was stored may be promised, until this has said that all
    /// is well.
    ///
    /// # Errors
    /// [`Error::Io`] with the offset of the first page lost.
    #[inline(always)]
    pub(super) fn intact(&self, operation: &'static str) -> Result<()> {
        if sys::fault::none_lost() {
            return Ok(());
        }
        match self.loss(operation) {
            None => Ok(()),
            Some(error) => Err(error),
        }
    }

    /// [`intact`](MappedFile::intact) where some file of the process has lost a page, or an access was refused.
    #[cold]
    #[inline(never)]
    fn loss(&self, operation: &'static str) -> Option<Error> {
        let offset = self.map.lost()?;
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        self.limit(0);
        Some(Error::page_lost(operation, &self.path, offset))
    }

    /// Sets the limits of loads and stores. The caller holds `resizing`.
    fn limit(&self, len: u64) {
        self.limits.set(len, if self.writable { len } else { 0 });
    }

    #[cold]
    fn out_of_range(&self, offset: u64, len: u64, file_len: u64) -> Error {
        Error::OutOfRange { path: self.path.clone(), offset, len, file_len }
    }

    #[inline(always)]
    fn writable(&self) -> Result<()> {
        if self.writable { Ok(()) } else { Err(self.read_only()) }
    }

    #[cold]
    fn read_only(&self) -> Error {
        Error::ReadOnly { path: self.path.clone() }
    }

    /// Checks a range given in 64 bits, for operations that don't touch memory.
    fn checked(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        self.intact("change")?;
        let file_len = self.len();
        match offset.checked_add(len) {
            Some(end) if end <= file_len => Ok(()),
            _ => Err(self.out_of_range(offset, len, file_len)),
        }
    }

    /// Source: `statx(2)`, FS_IOC_GETVERSION.
    pub(crate) fn identity(&self) -> Result<Identity> {
        identity(self.fd(), &self.path)
    }

    /// Source: `fstat(2)`.
    pub(super) fn stamp(&self) -> Result<Stamp> {
        let found = rustix::fs::fstat(&self.file).map_err(|errno| Error::io("examine", &self.path, errno))?;
        Ok(Stamp {
            size: found.st_size.try_into().unwrap_or(0),
            modified: sys::file::since_1970(found.st_mtime, found.st_mtime_nsec as u64),
        })
    }

    /// Changes the length. A reader that began before a shrink may still be copying from what is cut off, which would
    /// count as a lost page: the owner shrinks only when none can be.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond the length that the file may grow to; [`Error::Io`] with ENOMEM where there is no
    /// address space. Source: `ftruncate(2)`, `mmap(2)`.
    pub(super) fn set_len(&self, len: u64) -> Result<()> {
        self.writable()?;
        let most = self.map.most();
        if len > most {
            let what = format!(
                "cannot grow to {len} bytes: the file was opened with a maximum of {most}; open it again with a larger \
                 max_len"
            );
            return Err(Error::Invalid { path: self.path.clone(), what });
        }
        // The lock guards no data, so a panic under it leaves nothing half done.
        let _resizing = self.resizing.lock().unwrap_or_else(PoisonError::into_inner);
        // A loss noted from here on waits for the lock to set its limits, and so has the last word.
        if let Some(offset) = self.map.lost() {
            self.limit(0);
            return Err(Error::page_lost("resize", &self.path, offset));
        }
        let covered = self.map.cover(self.fd(), len, &self.limits);
        covered.map_err(|error| Error::io("map the growth of", &self.path, error))?;
        let before = self.len.load(Ordering::Relaxed);
        // No access is admitted to a byte that the file does not have: a shrink is announced before it is made, growth
        // after.
        self.change_len(before.min(len));
        if let Err(errno) = sys::file::set_len(&self.file, len) {
            self.change_len(before);
            return Err(Error::io("resize", &self.path, errno));
        }
        self.change_len(len);
        Ok(())
    }

    fn change_len(&self, len: u64) {
        // Whoever sees a length may go as far: the limits are never below it, unless a page is lost.
        if len > self.len.load(Ordering::Relaxed) {
            self.limit(len);
            self.len.store(len, Ordering::Release);
        } else {
            self.len.store(len, Ordering::Release);
            self.limit(len);
        }
    }

    /// The first range at `offset` or behind it that is no hole. Where the file system does not tell, all the rest is.
    pub(super) fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let len = self.len();
        if offset >= len {
            return Ok(None);
        }
        let data = sys::file::data_from(self.fd(), offset).unwrap_or(Some(offset..len));
        Ok(data.filter(|data| data.start < len).map(|data| data.start..data.end.min(len)))
    }

    /// The first offset from this one on that is in no hole. Unlike [`data_from`](Mapping::data_from) it does not ask
    /// where the next hole is: some file systems look through the whole file for one.
    pub(super) fn next_data(&self, offset: u64) -> Option<u64> {
        let data =
            if offset < self.len() { sys::file::next_data(self.fd(), offset).unwrap_or(Some(offset)) } else { None };
        data.filter(|data| *data < self.len())
    }

    /// Whether space was allocated; false where the file system has no such operation. Source: `fallocate(2)`.
    pub(super) fn allocate(&self, offset: u64, len: u64) -> Result<bool> {
        self.checked(offset, len)?;
        const OPERATION: &str = "allocate space in";
        // Space that is shared with another file is not this one's to write to. Only XFS gives a file its own ahead of
        // the write; elsewhere the write asks for it.
        let unshare = FallocateFlags::UNSHARE_RANGE | FallocateFlags::KEEP_SIZE;
        if sys::extents::shares_space(self.fd(), offset, len) && self.fallocate(OPERATION, unshare, offset, len)? {
            return Ok(true);
        }
        self.fallocate(OPERATION, FallocateFlags::KEEP_SIZE, offset, len)
    }

    /// How many bytes from `offset` on, at most `len`, have space that only this file has.
    pub(super) fn own_space(&self, offset: u64, len: u64) -> u64 {
        sys::extents::own_space(self.fd(), offset, len.min(self.len().saturating_sub(offset)))
    }

    /// Makes a range read as zeros. Where holes can't be made, zeros are written. Source: `fallocate(2)`.
    pub(super) fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.checked(offset, len)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if self.fallocate("punch a hole in", flags, offset, len)? {
            return Ok(());
        }
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        for at in (offset..offset + len).step_by(ZEROS.len()) {
            let part = (offset + len - at).min(ZEROS.len() as u64) as usize;
            self.pwrite(at, &ZEROS[..part])?;
        }
        Ok(())
    }

    /// False where the file system doesn't know the operation.
    fn fallocate(&self, operation: &'static str, flags: FallocateFlags, offset: u64, len: u64) -> Result<bool> {
        if len == 0 {
            return Ok(true); // The kernel calls a length of 0 invalid.
        }
        loop {
            match rustix::fs::fallocate(&self.file, flags, offset, len) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                Err(Errno::NOTSUP | Errno::NOSYS) => return Ok(false),
                Err(errno) => return Err(Error::io_at(operation, &self.path, offset, errno)),
            }
        }
    }

    /// Reads by system call; the caller has checked the range.
    pub(super) fn pread(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let end = offset + bytes.len() as u64;
        sys::file::read_all(self.fd(), bytes, offset).map_err(|(done, error)| {
            if self.stamp().is_ok_and(|now| now.size < end) {
                // The same that a load would have come upon.
                self.map.note_lost(offset + done);
            }
            self.loss("read from").unwrap_or_else(|| Error::io_at("read from", &self.path, offset + done, error))
        })
    }

    /// [`pread`](MappedFile::pread); false if the file has these bytes and they cannot be read, which `is_bad` tells
    /// by the error. A load would lose the page, and with it the file.
    pub(super) fn pread_unless_bad(
        &self,
        offset: u64,
        bytes: &mut [u8],
        is_bad: fn(&std::io::Error) -> bool,
    ) -> Result<bool> {
        let end = offset + bytes.len() as u64;
        match sys::file::read_all(self.fd(), bytes, offset) {
            Ok(()) => return Ok(true),
            Err((_, error)) if is_bad(&error) && self.stamp()?.size >= end => return Ok(false),
            Err(_) => {}
        }
        match self.pread(offset, bytes) {
            Ok(()) => Ok(true),
            // It may be known to be bad by now. Bytes that the file does not have are told of by an error that is no
            // such one.
            Err(Error::Io { source, .. }) if is_bad(&source) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes by system call; the caller has checked the range. The error's offset is that of the first byte not
    /// written.
    pub(super) fn pwrite(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        sys::file::write_all(self.fd(), bytes, offset)
            .map_err(|(done, error)| Error::io_at("write to", &self.path, offset + done, error))
    }

    /// [`pwrite`](MappedFile::pwrite) of parts one after the other.
    pub(super) fn pwritev(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        sys::file::write_all_parts(self.fd(), parts, offset)
            .map_err(|(done, error)| Error::io_at("write to", &self.path, offset + done, error))
    }

    /// Makes everything about the file durable. Source: `fsync(2)`.
    pub(super) fn fsync(&self) -> Result<()> {
        sys::file::uninterrupted(|| rustix::fs::fsync(&self.file)).map_err(|error| self.flush_failed(error))?;
        self.intact("flush")
    }

    /// Drops a range from the page cache. Pages that stay, because they are dirty or because somebody else has them
    /// mapped or in use, become dirty, so that the next flush takes them along. Returns whether any did. It stores to
    /// none: another program may be storing to the file, whatever its lock says.
    ///
    /// Source: `posix_fadvise(2)`, `mincore(2)`, `cachestat(2)`.
    pub(super) fn distrust(&self, offset: u64, len: u64) -> Result<bool> {
        self.writable()?;
        let page = sys::page_size() as u64;
        let end = offset.saturating_add(len).min(self.len());
        let (mut at, mut dirtied, mut bytes) = (offset / page * page, false, vec![0; page as usize]);
        // Of a long file as a rule little is there.
        let none = |at: u64, part: u64| sys::cached::cached_pages(self.fd(), at, part) == Some(0);
        if none(at, end.saturating_sub(at)) {
            return Ok(false);
        }
        // In ever larger steps where there is nothing, and halved again where there is: a file that is one hole may be
        // of any length.
        let mut step = LOOK;
        while at < end {
            let part = (end - at).min(step);
            if none(at, part) {
                at += part;
                step = step.saturating_mul(2);
                continue;
            }
            if part > LOOK {
                step = (part / 2).max(LOOK);
                continue;
            }
            step = LOOK;
            // Pages this mapping has touched are in use, by this mapping. Advice that is refused leaves pages in
            // memory, and so they are found there.
            let _ = self.map.release(at, part);
            let _ = sys::file::forget_clean(self.fd(), at, part);
            // Where one may not ask, every page may be there.
            let resident = self.map.resident(at, part);
            let resident = resident.unwrap_or_else(|_| vec![true; part.div_ceil(page) as usize]);
            let mut held = Vec::with_capacity(resident.len());
            for (at, resident) in (at..).step_by(page as usize).zip(resident) {
                held.push(resident && !self.is_hole(at, &mut bytes[..page.min(end - at) as usize])?);
            }
            let mut from = at;
            for run in held.chunk_by(|one, other| one == other) {
                let len = run.len() as u64 * page;
                if run[0] {
                    sys::map::make_dirty(self.fd(), from, len)
                        .map_err(|error| Error::io_at("mark cached pages for writing in", &self.path, from, error))?;
                    dirtied = true;
                }
                from += len;
            }
            at += part;
        }
        Ok(dirtied)
    }

    /// Whether a page, which is read into `bytes`, has zeros where the file system has a hole: the medium has nothing
    /// there that could be different, and a dirty page would take space.
    fn is_hole(&self, at: u64, bytes: &mut [u8]) -> Result<bool> {
        self.pread(at, bytes)?;
        Ok(bytes.iter().all(|&byte| byte == 0) && sys::file::is_hole(self.fd(), at, bytes.len() as u64))
    }

    #[cold]
    pub(super) fn flush_failed(&self, error: std::io::Error) -> Error {
        Error::io("flush", &self.path, error)
    }

    pub(super) fn mark(&self) -> Result<MarkState> {
        use sys::file::RawMark;
        match sys::file::mark(self.fd()) {
            Ok(RawMark::Unsupported) => Ok(MarkState::Unsupported),
            Ok(RawMark::Absent) => Ok(MarkState::Absent),
            Ok(RawMark::Present(mark)) => Ok(MarkState::Present(mark)),
            Ok(RawMark::Malformed(len)) => {
                let what = format!(
                    "its extended attribute {} has {len} bytes, but an untorn mark has 16",
                    sys::file::MARK_ATTRIBUTE
                );
                Err(Error::Corrupt { path: self.path.clone(), offset: None, what })
            }
            Err(error) => Err(Error::io("read the mark of", &self.path, error)),
        }
    }

    pub(super) fn set_mark(&self, mark: Option<Mark>) -> Result<()> {
        self.writable()?;
        let operation = if mark.is_some() { "write the mark of" } else { "remove the mark of" };
        sys::file::set_mark(self.fd(), mark).map_err(|error| Error::io(operation, &self.path, error))
    }

    pub(super) fn commit_note(&self) -> Result<Option<CommitNote>> {
        sys::file::commit_note(self.fd()).map_err(|error| Error::io("read the commit number of", &self.path, error))
    }

    pub(super) fn set_commit_note(&self, note: CommitNote) -> Result<()> {
        self.writable()?;
        let set = sys::file::set_commit_note(self.fd(), &note);
        set.map_err(|error| Error::io("write the commit number of", &self.path, error))
    }

    /// Source: `flock(2)`.
    pub(super) fn try_lock(&self, kind: LockKind) -> Result<bool> {
        let exclusive = kind == LockKind::Exclusive;
        let taken = sys::file::try_lock(self.fd(), exclusive).map_err(|error| Error::io("lock", &self.path, error))?;
        if taken {
            self.locked_by.store(sys::incarnation(), Ordering::Relaxed);
        }
        Ok(taken)
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedFile").field("path", &self.path).field("len", &self.len()).finish()
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // The lock belongs to the open file, which a forked child has too: closing this descriptor would not release it
        // while the child lives. And the child, which has no part in it, must not release the parent's.
        let locked_by = self.locked_by.load(Ordering::Relaxed);
        if locked_by != 0 && locked_by == sys::incarnation() {
            sys::file::unlock(self.fd());
        }
    }
}

/// The identity of an open file or directory.
pub(crate) fn identity(file: BorrowedFd<'_>, path: &Path) -> Result<Identity> {
    let (device, inode, generation, birth) =
        sys::file::identity(file).map_err(|error| Error::io("examine", path, error))?;
    Ok(Identity { device, inode, generation, birth })
}

#[cfg(test)]
mod tests;
