//! The page cache of a block device: loads from a shared mapping, stores by system call.
//!
//! # Safety
//! The address comes from [`MappedFile::range`], which checks it against the file's current length, and is used for one
//! copy while the file, and so the mapping, is borrowed. After the copy, the code checks whether a page was lost.
#![allow(unsafe_code)]

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use super::companion;
use super::forward::forward;
use super::mapping::MappedFile;
use super::names::{self, Directories};
use super::own_changes::OwnChanges;
use super::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, Medium, MediumClass, MediumFile, Names, Stamp,
    is_bad_place, unless_bad,
};
use crate::error::{Error, Result};
use crate::options::LostPage;
use crate::sys;
use crate::sys::map::MapKind;
use crate::sys::ring::Flusher;

/// Ordinary files of any file system.
///
/// A read copies from a shared mapping without a system call (except on a tmpfs and on DAX without `MAP_SYNC`).
/// Writes and [stores](MediumFile::store) are `pwrite(2)`, so a full disk is an error of the write and loses no page.
/// [`LostPage`] says what happens to a lost page. A [fence](Medium::fence) is `fdatasync(2)` of each file written to
/// since its last one, several at the same time so that they share the device flush.
#[derive(Debug, Default)]
pub struct PageCache {
    flusher: Flusher,
    /// Reads are system calls whatever the file system.
    by_call: bool,
    lost_page: LostPage,
}

impl PageCache {
    /// A medium over the file systems of this machine.
    pub fn new() -> Self {
        PageCache::default()
    }

    /// Sets what happens when a page is lost. The default is [`LostPage::Fail`].
    #[must_use]
    pub fn on_lost_page(mut self, lost_page: LostPage) -> Self {
        self.lost_page = lost_page;
        self
    }

    /// The same for files that another process may cut short meanwhile: a system call comes upon that as an error,
    /// whoever handles SIGBUS.
    pub(crate) fn reading_by_call() -> Self {
        PageCache { by_call: true, ..PageCache::default() }
    }

    fn map(&self, path: &Path, file: OwnedFd, access: Access, reserve: u64) -> Result<PageCacheFile> {
        let file = MappedFile::new(path, file, MapKind::Read, access, reserve, self.lost_page)?;
        Ok(PageCacheFile::new(file, self.by_call))
    }
}

impl Medium for PageCache {
    type File = PageCacheFile;

    fn class(&self) -> MediumClass {
        MediumClass::Block
    }

    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<PageCacheFile> {
        self.map(path, names::open_regular(path, access)?, access, reserve)
    }

    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&PageCacheFile>) -> Result<PageCacheFile> {
        let file = match like {
            None => names::create_regular(path, len)?,
            Some(like) => companion::create(path, len, &like.file.principal()?, like.file.fd())?,
        };
        // The first error is the one that helps, whether or not the name can be removed again.
        self.map(path, file, Access::ReadWrite, reserve).inspect_err(|_| drop(names::unlink(path)))
    }

    fn create_private(&self, path: &Path, len: u64, reserve: u64) -> Result<PageCacheFile> {
        let file = names::create_private(path, len)?;
        // As above.
        self.map(path, file, Access::ReadWrite, reserve).inspect_err(|_| drop(names::unlink(path)))
    }

    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &PageCacheFile) -> Result<PageCacheFile> {
        self.map(path, companion::open(path, access, &data.file.principal()?)?, access, reserve)
    }

    fn create_companion_dir(&self, path: &Path, data: &PageCacheFile) -> Result<()> {
        companion::create_directory(path, &data.file.principal()?)
    }

    fn bring_in_line(&self, companion: &PageCacheFile, data: &PageCacheFile) -> Result<()> {
        companion.file.bring_in_line(&data.file)
    }

    fn names(&self) -> &dyn Names {
        &Directories
    }

    fn fence(&self, _: Barrier, files: &[&PageCacheFile]) -> Result<()> {
        files.iter().try_for_each(|file| file.file.intact("flush"))?;
        let dirty: Vec<_> = files.iter().filter_map(|file| Some((*file, file.unflushed()?))).collect();
        if dirty.is_empty() {
            return Ok(());
        }
        let descriptors: Vec<_> = dirty.iter().map(|(file, _)| file.file.fd()).collect();
        let mut first_failure = Ok(());
        for ((file, written), result) in dirty.iter().zip(self.flusher.flush(&descriptors)) {
            match result {
                Ok(()) => file.flushed_up_to(*written),
                Err(error) => first_failure = first_failure.and(Err(file.file.flush_failed(error))),
            }
        }
        first_failure
    }

    fn relax(&self, round: u32) {
        names::relax(round)
    }
}

/// A file open on [`PageCache`].
#[derive(Debug)]
pub struct PageCacheFile {
    file: MappedFile,
    /// Reads go by system call too: the medium was asked to; or the file is on a tmpfs, where a load from a hole takes
    /// space, and the page is lost if there is none; or mappings go past the page cache without `MAP_SYNC`. There ext4
    /// (Linux 6.1) may leave the page of zeros mapped that a load from allocated space found before a `write(2)`
    /// filled it. The step `dax` of CI convicts loads on virtio-pmem.
    by_call: bool,
    /// Changes made so far.
    written: AtomicU64,
    /// Of these, the first that many are known to be durable.
    ///
    /// Two counts and not one dirty flag: a flag cleared before the flush would let a second thread's fence pass while
    /// its bytes are still on their way, and one cleared after it would forget writes made meanwhile. A failed flush
    /// leaves the counts apart.
    flushed: AtomicU64,
    /// For reads past the page cache: opened when first needed, `None` where the file system has no such reads.
    direct: OnceLock<Option<OwnedFd>>,
    /// `None` for a file that is open for reading, and where times tell nothing.
    own: Option<OwnChanges>,
}

impl PageCacheFile {
    fn new(file: MappedFile, by_call: bool) -> Self {
        let by_call = by_call || sys::file::in_memory(file.fd()) || sys::file::is_dax(file.fd());
        let (written, flushed) = (AtomicU64::new(0), AtomicU64::new(0));
        let own = file.is_writable().then(|| OwnChanges::of(file.fd())).flatten();
        PageCacheFile { file, by_call, written, flushed, direct: OnceLock::new(), own }
    }

    /// Makes a change that this process knows to be its own.
    fn change<T>(&self, work: impl FnOnce(&MappedFile) -> T) -> T {
        match &self.own {
            Some(own) => own.change(|| self.file.stamp().ok(), || work(&self.file)),
            None => work(&self.file),
        }
    }

    /// Counts a change, after it was made: a flush that sees the count then covers the change.
    fn changed(&self) {
        self.written.fetch_add(1, Ordering::Release);
    }

    /// The count of changes, if some are not known to be durable.
    fn unflushed(&self) -> Option<u64> {
        let written = self.written.load(Ordering::Acquire);
        (self.flushed.load(Ordering::Acquire) < written).then_some(written)
    }

    /// The file past the page cache, where there is such a way.
    fn direct(&self) -> Option<BorrowedFd<'_>> {
        self.direct.get_or_init(|| sys::direct::open(self.file.fd()).ok()).as_ref().map(|file| file.as_fd())
    }

    fn flushed_up_to(&self, written: u64) {
        self.flushed.fetch_max(written, Ordering::AcqRel);
    }
}

impl MediumFile for PageCacheFile {
    forward!(file: commit_note, set_commit_note);
    forward!(file: len, identity, descriptor, stamp, notes_stores, mark, set_mark, try_lock, own_space);
    forward!(file: data_from, next_data);

    fn changed_by_others(&self) {
        self.changed();
    }

    fn begin_own_changes(&self) -> Result<()> {
        let Some(own) = &self.own else { return Ok(()) };
        self.file.stamp().map(|found| own.begin(found))
    }

    fn is_disturbed(&self) -> Result<bool> {
        let Some(own) = &self.own else { return Ok(false) };
        Ok(own.is_disturbed(|| self.file.len(), || self.file.stamp().ok()))
    }

    #[inline]
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        let src = self.file.range(offset, dst.len())?;
        if self.by_call {
            return self.file.pread(offset, dst);
        }
        // SAFETY: `range` gives as many mapped bytes; a buffer of the caller's cannot overlap a mapping that gives out
        // no references.
        unsafe { sys::copy::read_racy(src, dst) };
        self.file.intact("read from")
    }

    fn read_stored(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.file.range(offset, dst.len())?;
        match self.direct().map(|file| sys::direct::read(file, offset, dst)) {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if !sys::direct::is_refusal(&error) => {
                Err(Error::io_at("read from the device of", self.file.path(), offset, error))
            }
            _ => self.read(offset, dst),
        }
    }

    fn read_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        self.file.range(offset, dst.len())?;
        self.file.pread_unless_bad(offset, dst, is_bad_place)
    }

    fn read_stored_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        self.file.range(offset, dst.len())?;
        let end = offset + dst.len() as u64;
        match self.direct().map(|file| sys::direct::read(file, offset, dst)) {
            Some(Ok(())) => Ok(true),
            Some(Err(error)) if is_bad_place(&error) && self.file.stamp()?.size >= end => Ok(false),
            Some(Err(error)) if !sys::direct::is_refusal(&error) => {
                Err(Error::io_at("read from the device of", self.file.path(), offset, error))
            }
            _ => self.file.pread_unless_bad(offset, dst, is_bad_place),
        }
    }

    fn write_anew_unless_bad(&self, offset: u64, src: &[u8]) -> Result<bool> {
        self.file.range_mut(offset, src.len())?;
        let mut held = vec![0; src.len()];
        if self.read_stored_unless_bad(offset, &mut held)? {
            return self.write(offset, src).map(|()| true);
        }
        // A place that a device can neither read nor write would fail the next flush, and with it the file.
        match self.change(|file| sys::direct::write_page(file.fd(), offset, src)) {
            Ok(()) => {
                self.changed();
                Ok(true)
            }
            Err(error) if is_bad_place(&error) => Ok(false),
            // There is no way past the cache, or not for a page that is short.
            Err(error) if sys::direct::is_refusal(&error) => unless_bad(self.write(offset, src)),
            Err(error) => Err(Error::io_at("write to the device of", self.file.path(), offset, error)),
        }
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.file.range_mut(offset, src.len())?;
        let result = self.change(|file| file.pwrite(offset, src));
        // A failed write may have written a part.
        self.changed();
        result
    }

    fn write_parts(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.file.range_mut(offset, parts.iter().map(|part| part.len()).sum())?;
        let result = self.change(|file| file.pwritev(offset, parts));
        // As above.
        self.changed();
        result
    }

    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.write(offset, src)
    }

    #[inline]
    fn flush(&self, _: Barrier, _: u64, _: u64) {}

    fn start_writeback(&self, offset: u64, len: u64) {
        sys::file::start_writeback(self.file.fd(), offset, len);
    }

    fn set_len(&self, len: u64) -> Result<()> {
        let result = self.change(|file| file.set_len(len));
        self.changed();
        result
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        // Where space can't be allocated ahead, a write that finds none says so itself.
        let _allocated = self.change(|file| file.allocate(offset, len))?;
        self.changed();
        Ok(())
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        let result = self.change(|file| file.punch(offset, len));
        self.changed();
        result
    }

    fn sync(&self, _: Barrier) -> Result<()> {
        let written = self.written.load(Ordering::Acquire);
        self.file.fsync()?;
        self.flushed_up_to(written);
        Ok(())
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        // A file system in memory has nothing but the cache.
        if self.by_call || !self.change(|file| file.distrust(offset, len))? {
            return Ok(());
        }
        self.changed();
        self.sync(barrier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FENCE: Barrier = Barrier::new("test.fence");

    /// More than the kernel takes at once, and empty ones at the beginning, in between and at the end.
    #[test]
    fn parts_are_written_one_after_the_other() {
        let dir = tempfile::tempdir().unwrap();
        let medium = PageCache::default();
        let file = medium.create(&dir.path().join("f"), 20_000, 20_000).unwrap();
        let all: Vec<u8> = (0..9000_u32).map(|n| (n % 251) as u8).collect();
        let mut parts = vec![&all[..0]];
        let mut rest = &all[..];
        for len in (0..7).cycle().take(3003) {
            let (part, after) = rest.split_at(rest.len().min(len));
            parts.push(part);
            rest = after;
        }
        file.write_parts(5, &parts).unwrap();
        assert_eq!((rest.len(), file.unflushed()), (0, Some(1)));
        let mut found = vec![0; 9010];
        file.read(0, &mut found).unwrap();
        assert_eq!(found[5..9005], all);
        assert!(found[..5].iter().chain(&found[9005..]).all(|byte| *byte == 0));
        file.write_parts(20_000, &[&[], &[]]).unwrap();
        assert!(file.write_parts(19_999, &[b"a", b"b"]).is_err(), "past the end");
    }

    #[test]
    fn a_fence_flushes_what_is_dirty_and_only_that() {
        let dir = tempfile::tempdir().unwrap();
        for flusher in [Flusher::default(), Flusher::without_ring()] {
            let medium = PageCache { flusher, ..PageCache::default() };
            let (a, b) = (dir.path().join("a"), dir.path().join("b"));
            let (a, b) = (medium.create(&a, 100, 100).unwrap(), medium.create(&b, 100, 100).unwrap());
            assert_eq!((a.unflushed(), b.unflushed()), (None, None));
            a.write(0, b"one").unwrap();
            b.store(9, b"two").unwrap();
            a.write(3, b"three").unwrap();
            assert_eq!((a.unflushed(), b.unflushed()), (Some(2), Some(1)));
            medium.fence(FENCE, &[&b]).unwrap();
            assert_eq!((a.unflushed(), b.unflushed()), (Some(2), None));
            b.write(0, b"four").unwrap();
            medium.fence(FENCE, &[&a, &b]).unwrap();
            assert_eq!((a.unflushed(), b.unflushed()), (None, None));
            a.punch(0, 100).unwrap();
            assert!(a.unflushed().is_some());
            a.sync(FENCE).unwrap();
            assert_eq!(a.unflushed(), None);
            b.changed_by_others();
            assert_eq!(b.unflushed(), Some(3));
            medium.fence(FENCE, &[&b]).unwrap();
            assert_eq!(b.unflushed(), None);
            std::fs::remove_file(a.file.path()).unwrap();
            std::fs::remove_file(b.file.path()).unwrap();
        }
    }

    #[test]
    fn a_change_made_during_a_flush_stays_dirty() {
        let dir = tempfile::tempdir().unwrap();
        let medium = PageCache::new();
        let file = medium.create(&dir.path().join("f"), 100, 100).unwrap();
        file.write(0, b"before").unwrap();
        let seen = file.unflushed().unwrap();
        file.write(0, b"meanwhile").unwrap();
        file.flushed_up_to(seen);
        assert!(file.unflushed().is_some());
    }

    #[test]
    fn a_failed_write_counts_as_a_change() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let medium = PageCache::new();
        drop(medium.create(&path, 100, 100).unwrap());
        // Writable by its own account, over a descriptor that is not: the system call fails.
        let descriptor = names::open_regular(&path, Access::Read).unwrap();
        let mapped = MappedFile::new(&path, descriptor, MapKind::Read, Access::ReadWrite, 100, LostPage::Fail).unwrap();
        let file = PageCacheFile::new(mapped, false);
        let error = file.write(7, b"x").unwrap_err().to_string();
        assert!(error.starts_with("cannot write to ") && error.contains(" at byte 7: "), "{error}");
        assert!(file.unflushed().is_some());
    }
}
