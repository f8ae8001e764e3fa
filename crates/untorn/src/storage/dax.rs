//! Persistent memory: loads and stores access the medium directly.
//!
//! # Safety
//! Every address comes from [`MappedFile::range`], which checks it against the file's current length, and is used for
//! one copy while the file, and so the mapping, is borrowed. After the copy, the code checks whether a page was lost.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use super::companion;
use super::forward::forward;
use super::mapping::MappedFile;
use super::names::{self, Directories};
use super::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, MediumKind,
    Names, Stamp, is_bad_place,
};
use crate::error::{Error, Result};
use crate::options::LostPage;
use crate::sys;
use crate::sys::map::MapKind;

/// Files on a DAX file system, mapped with `MAP_SYNC`. Access uses loads, streaming stores and cache-line write-back,
/// without a system call.
///
/// With [`MediumKind::AssumedPmem`] the same instructions run on an ordinary shared mapping: for tests and benchmarks
/// only, and *not durable*.
///
/// When the disk is full, a store to a page without allocated space is lost, so engines
/// [allocate](MediumFile::allocate) space first. [`LostPage`] says what happens to a lost page. A store to one is an
/// error of that store, or, for a write of at most a cache line, of the next fence.
#[derive(Debug)]
pub struct Dax {
    sync: bool,
    lost_page: LostPage,
}

impl Dax {
    /// A medium for files of this kind. With [`MediumKind::PersistentMemory`], opening a file that is not on persistent
    /// memory fails. Every other kind is treated as assumed persistent memory.
    pub fn new(kind: MediumKind) -> Self {
        Dax { sync: kind == MediumKind::PersistentMemory, lost_page: LostPage::Fail }
    }

    /// Sets what happens when a page is lost. The default is [`LostPage::Fail`].
    #[must_use]
    pub fn on_lost_page(mut self, lost_page: LostPage) -> Self {
        self.lost_page = lost_page;
        self
    }

    fn map(&self, path: &Path, file: OwnedFd, access: Access, reserve: u64) -> Result<DaxFile> {
        let file = MappedFile::new(path, file, self.map_kind(access), access, reserve, self.lost_page)?;
        Ok(DaxFile { file, wide: sys::copy::has_wide_registers() })
    }

    fn map_kind(&self, access: Access) -> MapKind {
        match (self.sync, access) {
            (true, Access::Read) => MapKind::SyncRead,
            (true, Access::ReadWrite) => MapKind::SyncReadWrite,
            (false, Access::Read) => MapKind::Read,
            (false, Access::ReadWrite) => MapKind::ReadWrite,
        }
    }
}

impl Medium for Dax {
    type File = DaxFile;

    fn class(&self) -> MediumClass {
        MediumClass::PersistentMemory
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<DaxFile> {
        self.map(path, names::open_regular(path, access)?, access, reserve)
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&DaxFile>) -> Result<DaxFile> {
        let file = match like {
            None => names::create_regular(path, len)?,
            Some(like) => companion::create(path, len, &like.file.principal()?, like.file.fd())?,
        };
        // The first error is the one that helps, whether or not the name can be removed again.
        self.map(path, file, Access::ReadWrite, reserve).inspect_err(|_| drop(names::unlink(path)))
    }

    fn create_private(&self, path: &Path, len: u64, reserve: u64) -> Result<DaxFile> {
        let file = names::create_private(path, len)?;
        // As above.
        self.map(path, file, Access::ReadWrite, reserve).inspect_err(|_| drop(names::unlink(path)))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &DaxFile) -> Result<DaxFile> {
        self.map(path, companion::open(path, access, &data.file.principal()?)?, access, reserve)
    }

    fn create_companion_dir(&self, path: &Path, data: &DaxFile) -> Result<()> {
        companion::create_directory(path, &data.file.principal()?)
    }

    fn bring_in_line(&self, companion: &DaxFile, data: &DaxFile) -> Result<()> {
        companion.file.bring_in_line(&data.file)
    }

    fn names(&self) -> &dyn Names {
        &Directories
    }

    #[inline]
    fn fence(&self, _: Barrier, files: &[&DaxFile]) -> Result<()> {
        sys::flush::fence();
        // A line written back may have come upon a lost page, or another thread's access: no record that this fence
        // would make durable may be trusted then.
        if sys::fault::none_lost() { Ok(()) } else { all_intact(files) }
    }

    #[inline]
    fn order(&self) {
        sys::flush::fence();
    }

    fn relax(&self, round: u32) {
        names::relax(round)
    }
}

/// Whether a system call with a buffer of ours failed because of the memory that the file is in: what is poisoned and
/// not yet in the list of bad places is come upon in the midst of copying, which ends as if the buffer were a bad
/// one.
fn is_bad_memory(error: &std::io::Error) -> bool {
    is_bad_place(error) || is_fault(error)
}

fn is_fault(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::FAULT.raw_os_error())
}

#[cold]
fn all_intact(files: &[&DaxFile]) -> Result<()> {
    files.iter().try_for_each(|file| file.file.intact("flush"))
}

/// A file open on [`Dax`].
#[derive(Debug)]
pub struct DaxFile {
    file: MappedFile,
    /// For [`sys::copy::read_racy_short`]; here, for here it is near.
    wide: bool,
}

impl DaxFile {
    /// The address of the shared mapping of the file, from its first byte on. It is valid while the file is open. A
    /// program that protects its stores through this mapping passes it to `ProtectOptions::mapping`. When the file
    /// grows beyond twice its length at opening, it is mapped anew: ask again. The address from before stays valid for
    /// the length from before.
    pub fn address(&self) -> *const u8 {
        self.file.start()
    }
}

impl MediumFile for DaxFile {
    forward!(file: commit_note, set_commit_note);
    forward!(file: len, identity, descriptor, stamp, notes_stores, mark, set_mark, try_lock);
    forward!(file: prefetch, prefetch_to_store, set_len, punch, own_space, data_from, next_data);

    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let src = self.file.range(offset, dst.len())?;
        // SAFETY: `range` gives as many mapped bytes; a buffer of the caller's cannot overlap a mapping that gives out
        // no references.
        unsafe { sys::copy::read_racy(src, dst) };
        self.file.intact("read from")
    }

    #[inline(always)]
    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        let Some(src) = self.file.range_in_page(offset, dst.len()) else { return false };
        if dst.len() <= sys::copy::SHORT {
            // SAFETY: as in `read`, and short.
            unsafe { sys::copy::read_racy_short(src, dst, self.wide) };
        } else {
            // SAFETY: as in `read`.
            unsafe { sys::copy::read_racy(src, dst) };
        }
        sys::fault::none_lost()
    }

    /// By system call: a load of poisoned memory would lose the page, and with it the file.
    fn read_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        self.file.range(offset, dst.len())?;
        self.file.pread_unless_bad(offset, dst, is_bad_memory)
    }

    fn read_stored_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        self.read_unless_bad(offset, dst)
    }

    /// As [`write`](MediumFile::write), through the mapping, unless a read of that place fails. Only then it is by
    /// system call: so the kernel clears the poison of what is written whole, where a store would lose the page. What
    /// such a call changes of the file system is not durable by a fence, as it is for a store by `MAP_SYNC`, so the
    /// file is flushed.
    fn write_anew(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.file.range_mut(offset, src.len())?;
        let mut held = vec![0; src.len()];
        if self.file.pread_unless_bad(offset, &mut held, is_bad_memory)? {
            return self.write(offset, src);
        }
        self.file.pwrite(offset, src).map_err(|error| match error {
            // The buffer is a valid one, so it is the place: as the error by which callers know that.
            Error::Io { source, offset: Some(at), .. } if is_fault(&source) => {
                Error::io_at("write to", self.file.path(), at, rustix::io::Errno::IO)
            }
            error => error,
        })?;
        sys::flush::fence();
        // That is not about this place: whoever goes on without it may go on with nothing else either.
        let path = self.file.path();
        self.file.fsync().map_err(|error| Error::Poisoned { path: path.to_owned(), cause: error.to_string() })
    }

    #[inline(always)]
    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let dst = self.file.range_mut(offset, src.len())?;
        // SAFETY: `range_mut` gives as many bytes mapped writable; no overlap, as above.
        unsafe { sys::copy::copy_nt(dst, src) };
        self.file.intact("write to")
    }

    #[inline]
    fn write_lines(&self, offset: u64, src: &[u8], lines: u64) -> Result<()> {
        // Up to the end of the last line stored.
        let src = &src[..(u64::BITS - lines.leading_zeros()) as usize * sys::flush::LINE];
        let dst = self.file.range_mut(offset, src.len())?;
        // SAFETY: `range_mut` gives as many bytes mapped writable; no overlap, as above.
        unsafe { sys::copy::copy_nt_lines(dst, src, lines) };
        self.file.intact("write to")
    }

    #[inline(always)]
    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        let dst = self.file.range_mut(offset, src.len())?;
        // SAFETY: `range_mut` gives as many bytes mapped writable; no overlap, as above.
        unsafe { sys::copy::copy_cached(dst, src) };
        self.file.intact("write to")
    }

    #[inline]
    fn flush(&self, _: Barrier, offset: u64, len: u64) {
        let Ok(len) = usize::try_from(len) else { return };
        // Bytes outside the file can't have been stored to, so there is nothing to write back.
        let Ok(start) = self.file.range(offset, len) else { return };
        // SAFETY: `range` gives as many mapped bytes.
        unsafe { sys::flush::flush_lines(start, len) }
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        if self.file.allocate(offset, len)? {
            return Ok(());
        }
        // Without the promise, a store could be lost.
        Err(Error::io_at("allocate space in", self.file.path(), offset, rustix::io::Errno::NOTSUP))
    }

    fn sync(&self, _: Barrier) -> Result<()> {
        // The file system writes back what the CPU still holds of pages stored to, but knows nothing of streaming
        // stores that wait in this CPU's buffers.
        sys::flush::fence();
        self.file.fsync()
    }

    /// Nothing: a `MAP_SYNC` mapping is the medium itself, with no cache of the kernel's between.
    fn distrust_cache(&self, _: Barrier, _: u64, _: u64) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::MediumFile;

    #[test]
    fn pages_are_rewritten_and_poison_is_told_from_other_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let medium = Dax::new(MediumKind::AssumedPmem);
        let file = medium.create(&path, 8292, 8292).unwrap();
        for (at, len) in [(0, 4096), (4096, 4096), (8192, 100)] {
            let bytes: Vec<u8> = (0..len).map(|n| (n % 250) as u8 + 1).collect();
            file.write_anew(at, &bytes).unwrap();
            let mut held = vec![0; len];
            file.read(at, &mut held).unwrap();
            assert!(held == bytes);
        }
        // Behind the end there is nothing to write anew.
        assert!(file.write_anew(8192, &[0; 101]).is_err());
        // Places are told by these, and a full disk is none.
        let is_bad = |errno: rustix::io::Errno| is_bad_memory(&errno.into());
        use rustix::io::Errno;
        assert!(is_bad(Errno::IO) && is_bad(Errno::FAULT) && is_bad(Errno::HWPOISON));
        assert!(!is_bad(Errno::NOSPC) && !is_bad(Errno::INVAL) && !is_bad_place(&Errno::FAULT.into()));
    }
}
