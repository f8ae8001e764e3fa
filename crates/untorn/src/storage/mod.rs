//! Where bytes become durable.
//!
//! [`Medium`] and [`MediumFile`] are the only way in which engines access storage. So the same engine code runs over
//! persistent memory ([`Dax`]), over the page cache of a block device ([`PageCache`]), and over a simulated medium that
//! enumerates crash states. [`Medium`] says how bytes become durable; the [`Names`] of its files are a trait of their
//! own, because all file systems of the kernel have the same.
//!
//! A medium over another one, such as [`Latched`], lists the calls that it passes on with `forward!`.
//!
//! # Vocabulary
//! *Persist* means *flush, then fence*. A [`write`](MediumFile::write) needs no flush (it is non-temporal on persistent
//! memory), a [`store`](MediumFile::store) does; both are durable once a later [`fence`](Medium::fence) returns.
//! Nothing here is atomic or transactional beyond the units of the fault model: 8 bytes on persistent memory, one
//! 512-byte sector on a block device.

use std::ffi::OsString;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::error::{Error, Result};

pub(crate) mod barrier;
pub(crate) mod companion;
#[cfg(feature = "metrics")]
pub(crate) mod counted;
mod dax;
mod detect;
mod forward;
mod latch;
mod mapping;
pub(crate) mod names;
mod own_changes;
mod page_cache;
mod whole;

pub use barrier::Barrier;
pub(crate) use companion::is_directory as is_companion_directory;
pub use dax::{Dax, DaxFile};
pub use detect::{Detected, Explained, MediumKind, detect, explain, is_durable};
pub use forward::forward;
pub use latch::{Latched, LatchedFile};
pub(crate) use mapping::identity as identity_of;
pub use names::CreateAttrs;
pub(crate) use names::{create_filled, create_unnamed, sync_parent};
pub use page_cache::{PageCache, PageCacheFile};
pub use whole::is_unfinished;
pub(crate) use whole::{create_private, create_whole, unfinished};

pub use crate::sys::file::write_back;

/// How a medium orders and loses stores. Engines choose their commit protocol by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumClass {
    /// Byte-addressable. A fence costs about 0.1 µs, and 8-byte stores are atomic. A store on a full disk loses its
    /// page, so engines allocate space before they store.
    PersistentMemory,
    /// Sector-addressable, behind the page cache. A fence is a device flush and takes milliseconds. A full disk is an
    /// error of the write call.
    Block,
}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Loads only.
    Read,
    /// Loads and stores.
    ReadWrite,
}

/// Which other advisory locks may exist at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Other shared locks; for readers.
    Shared,
    /// No other lock; for a writer.
    Exclusive,
}

/// What distinguishes a file from all others, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// `st_dev`. It is not stable over a reboot, so it is recorded, but not compared if the file carries a mark.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// The inode's generation number (FS_IOC_GETVERSION), 0 where the file system has none.
    pub generation: u64,
    /// Birth time in nanoseconds since 1970 (statx), 0 where the file system has none.
    pub birth: u64,
}

/// Size and modification time. If either changes while untorn does not have the file open, another program wrote to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: u64,
}

/// The mark that a data file carries while a sidecar belongs to it: the sidecar's UUID.
pub type Mark = [u8; 16];

/// What a data file says of its last commit, also without a sidecar: see `format/sidecar/number`.
pub type CommitNote = [u8; 16];

/// Whether a file carries a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkState {
    /// The file system does not support user extended attributes.
    Unsupported,
    /// No mark.
    Absent,
    /// The file carries this mark.
    Present(Mark),
}

/// A change of names, or the flush that makes changes of names durable. The methods of [`Medium`] say what each does.
#[derive(Clone, Copy, Debug)]
pub enum NameChange<'a> {
    /// [`Medium::create_dir`].
    CreateDir(&'a Path),
    /// [`Medium::rename`], from the first path to the second.
    Rename(&'a Path, &'a Path),
    /// [`Medium::unlink`].
    Unlink(&'a Path),
    /// [`Medium::remove_dir_if_empty`].
    RemoveDirIfEmpty(&'a Path),
    /// [`Medium::sync_dir`].
    SyncDir(Barrier, &'a Path),
}

impl<'a> NameChange<'a> {
    /// The path that errors name: of a rename, the old one.
    pub fn path(self) -> &'a Path {
        match self {
            NameChange::CreateDir(path)
            | NameChange::Rename(path, _)
            | NameChange::Unlink(path)
            | NameChange::RemoveDirIfEmpty(path)
            | NameChange::SyncDir(_, path) => path,
        }
    }
}

/// The names of files. Callers use the methods of [`Medium`]; a medium implements these, or has those of another.
pub trait Names {
    /// Makes one change, or flushes a directory.
    fn change(&self, change: NameChange<'_>) -> Result<()>;

    /// [`Medium::exists`].
    fn exists(&self, path: &Path) -> Result<bool>;

    /// [`Medium::list`].
    fn list(&self, dir: &Path) -> Result<Vec<OsString>>;
}

/// A place that holds files: it opens them, makes their bytes durable, and knows where their [`Names`] are.
///
/// Errors are [`crate::Error`] values that name the path and, if there is one, the offset.
pub trait Medium: Send + Sync + 'static {
    /// One open file.
    type File: MediumFile;

    /// How this medium orders and loses stores.
    fn class(&self) -> MediumClass;

    /// The names of its files.
    fn names(&self) -> &dyn Names;

    /// Opens an existing regular file. `reserve` is the maximum length in bytes that it may grow to while open. A
    /// medium that maps its files takes address space as they grow, not for the maximum.
    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File>;

    /// [`create_like`](Medium::create_like) if there is a file to be like, [`create`](Medium::create) otherwise.
    fn create_new(&self, path: &Path, len: u64, reserve: u64, like: Option<&Self::File>) -> Result<Self::File>;

    /// Creates a file of `len` zero bytes, which must not exist yet, and opens it for reading and writing. Durable
    /// after [`MediumFile::sync`] and [`Medium::sync_dir`].
    fn create(&self, path: &Path, len: u64, reserve: u64) -> Result<Self::File> {
        self.create_new(path, len, reserve, None)
    }

    /// Like [`create`](Medium::create), for a file that only its owner may open, from its first moment on. If files
    /// have no owners, it is [`create`](Medium::create).
    fn create_private(&self, path: &Path, len: u64, reserve: u64) -> Result<Self::File> {
        self.create(path, len, reserve)
    }

    /// Like [`create`](Medium::create), for a companion: a file that will hold bytes of the data file `like`. If files
    /// have owners and permissions, the new file gets the owner of `like`, and only users that may write `like` can
    /// open it. Otherwise it is [`create`](Medium::create).
    fn create_like(&self, path: &Path, len: u64, reserve: u64, like: &Self::File) -> Result<Self::File> {
        self.create_new(path, len, reserve, Some(like))
    }

    /// Opens a companion of the data file `data`, unless another user may have planted it: its owner, its other names,
    /// and the users that may write it and its directory are compared with those of `data`. Where files have no owners
    /// it is [`open`](Medium::open).
    ///
    /// A companion of a companion may be opened by that one in the place of the data file.
    ///
    /// # Errors
    /// [`Error::Untrusted`]; [`Error::NoAccess`] if this user may not open it.
    fn open_companion(&self, path: &Path, access: Access, reserve: u64, data: &Self::File) -> Result<Self::File> {
        let _ = data;
        self.open(path, access, reserve)
    }

    /// Creates the directory of companions of the data file `data`. An existing one is not an error, unless another
    /// user may have planted it. Where files have no owners it is [`create_dir`](Medium::create_dir).
    ///
    /// # Errors
    /// [`Error::Untrusted`].
    fn create_companion_dir(&self, path: &Path, data: &Self::File) -> Result<()> {
        let _ = data;
        self.create_dir(path)
    }

    /// Gives an open companion the owner that `data` has now, and lets in the users that may write `data` now. The
    /// caller has it locked and stores to it only afterwards.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if it lets in others, and this user may not change that.
    fn bring_in_line(&self, companion: &Self::File, data: &Self::File) -> Result<()> {
        let _ = (companion, data);
        Ok(())
    }

    /// Creates a directory. An existing directory is not an error.
    fn create_dir(&self, path: &Path) -> Result<()> {
        self.names().change(NameChange::CreateDir(path))
    }

    /// Renames a file, replacing `to` if it exists. Durable after [`Medium::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        self.names().change(NameChange::Rename(from, to))
    }

    /// Removes a name. Durable after [`Medium::sync_dir`].
    fn unlink(&self, path: &Path) -> Result<()> {
        self.names().change(NameChange::Unlink(path))
    }

    /// Removes a directory if it is empty. A directory that is not empty or does not exist is not an error.
    fn remove_dir_if_empty(&self, path: &Path) -> Result<()> {
        self.names().change(NameChange::RemoveDirIfEmpty(path))
    }

    /// Whether the name exists.
    fn exists(&self, path: &Path) -> Result<bool> {
        self.names().exists(path)
    }

    /// The names in a directory, in any order; none if the directory does not exist.
    fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        self.names().list(dir)
    }

    /// Makes the names in a directory durable.
    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()> {
        self.names().change(NameChange::SyncDir(barrier, dir))
    }

    /// Orders and makes durable every [`write`](MediumFile::write), and every flushed [`store`](MediumFile::store),
    /// that this thread issued to `files` before. On a block medium it makes the stores of all threads durable, and
    /// submits the flushes of the files together (one *flush round*).
    ///
    /// # Errors
    /// A failed flush. It is final: the caller must not retry, since it cannot know what the kernel did with the dirty
    /// pages.
    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()>;

    /// Makes this thread's [`write`](MediumFile::write)s so far visible to other threads before its later stores.
    /// Non-temporal stores need it; everything else is visible in program order. The next fence of any thread covers
    /// what was ordered.
    fn order(&self) {}

    /// Whether a check is made that keeps a later crash from doing harm, as a barrier does. Every real medium makes all
    /// of them. A simulated one can leave one out, which the search for its *mutant* must notice.
    fn makes_check(&self, check: Barrier) -> bool {
        let _ = check;
        true
    }

    /// Sixteen random bytes for a UUID that no other sidecar has.
    fn unique(&self) -> Result<[u8; 16]> {
        crate::sys::random().map_err(|error| Error::io("get random bytes from", Path::new("the kernel"), error))
    }

    /// The time, in nanoseconds since 1970, as the times of files are.
    fn now(&self) -> u64 {
        crate::sys::now()
    }

    /// The time of a commit, as [`now`](Medium::now) counts, to a few milliseconds: a commit asks for it.
    #[inline]
    fn commit_time(&self) -> u64 {
        crate::sys::coarse_now()
    }

    /// When the machine was started, as [`now`](Medium::now) counts: what a power cut left is older. 0 if that is not
    /// known.
    fn booted(&self) -> u64 {
        crate::sys::booted()
    }

    /// Waits a moment for another thread to make progress. `round` counts the calls of one wait from 0.
    fn relax(&self, round: u32);
}

/// The process that has the lock of a file, as errors name it.
pub(crate) fn lock_holder<F: MediumFile>(file: &F) -> String {
    let holder = file.descriptor().and_then(|file| crate::sys::locks::flock_holder(file).ok().flatten());
    holder.map_or_else(|| "another process".to_owned(), crate::sys::locks::process_name)
}

/// One open file of a [`Medium`]. Offsets and lengths are in bytes.
///
/// All methods take `&self`, and many threads may call them. Concurrent access to the same bytes gives the reader
/// unspecified bytes, never undefined behaviour; engines validate what they read.
pub trait MediumFile: Send + Sync {
    /// The current length.
    fn len(&self) -> u64;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What distinguishes this file from all others.
    fn identity(&self) -> Result<Identity>;

    /// The file's descriptor, if it is a file of the kernel: for other processes to map or write to.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the file has no name any more. It is false if the medium cannot tell.
    ///
    /// # Errors
    /// Those of looking at the file.
    fn is_removed(&self) -> Result<bool> {
        let Some(file) = self.descriptor() else { return Ok(false) };
        let found = rustix::fs::fstat(file).map_err(|errno| Error::io("examine", Path::new(""), errno))?;
        Ok(found.st_nlink == 0)
    }

    /// Tells the medium that other processes may have written to the file through its
    /// [descriptor](MediumFile::descriptor). The next fence makes that durable too.
    fn changed_by_others(&self) {}

    /// The current size and modification time.
    fn stamp(&self) -> Result<Stamp>;

    /// Takes the file as it is for what this process knows: other processes of untorn are kept away from now on. See
    /// `own_changes`.
    ///
    /// # Errors
    /// Those of looking at the file.
    fn begin_own_changes(&self) -> Result<()> {
        Ok(())
    }

    /// Whether another program has changed the file since [then](MediumFile::begin_own_changes), as far as its length
    /// and its modification time tell. It is false if the medium cannot tell: see `own_changes` for what is not
    /// noticed.
    ///
    /// # Errors
    /// None that a later call would not return too.
    fn is_disturbed(&self) -> Result<bool> {
        Ok(false)
    }

    /// Whether a store through a mapping, by any process, changes the modification time at the first store after a
    /// [`sync`](MediumFile::sync). It is false if files live in memory only.
    fn notes_stores(&self) -> bool {
        true
    }

    /// Fills `dst` from `offset`. The range must be within the length.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;

    /// The first range at `offset` or behind it that may hold other bytes than zeros, or none up to the end. What lies
    /// before it is a hole, also for stores that are in a cache only. A medium that does not tell holes from data gives
    /// all the rest of the file.
    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let len = self.len();
        Ok((offset < len).then_some(offset..len))
    }

    /// A fast [`read`](MediumFile::read) within one page (4096 bytes from a multiple of 4096). If it fails for any
    /// reason, it returns false, `dst` has unspecified bytes, and `read` reports the error. For short reads, which
    /// error reporting would slow down.
    #[inline]
    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.read(offset, dst).is_ok()
    }

    /// [`read`](MediumFile::read) of bytes as the medium itself holds them, past any cache, so that it sees damage that
    /// a cache hides. Newer bytes in the cache are written back first. If a medium has no such read, or is memory, this
    /// is [`read`](MediumFile::read). Whole pages go straight into memory that begins at a multiple of 4096.
    fn read_stored(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.read(offset, dst)
    }

    /// [`read`](MediumFile::read) for a caller that has a copy of the bytes elsewhere. It returns false, with
    /// unspecified bytes in `dst`, if the device cannot read that place or the memory there is poisoned. That is not a
    /// failure of the file: its other places can still be read and written.
    ///
    /// # Errors
    /// Errors of reading that are not about that place.
    fn read_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        unless_bad(self.read(offset, dst))
    }

    /// Like [`read_stored`](MediumFile::read_stored), with the same result if any place of the range is unreadable.
    ///
    /// # Errors
    /// As for [`read_unless_bad`](MediumFile::read_unless_bad).
    fn read_stored_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        unless_bad(self.read_stored(offset, dst))
    }

    /// [`write`](MediumFile::write) of a whole page that may be unreadable. Afterwards it is readable, if the device
    /// remaps such a place, as disks do. A medium checks whether the page is readable only where that makes a
    /// difference. For a readable page it is the same as `write`; any other page is durable at the next fence too.
    fn write_anew(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.write(offset, src)
    }

    /// [`write_anew`](MediumFile::write_anew) for a caller that can leave the page as it is: it returns false if the
    /// device takes no bytes for that place either. A write through a cache would only fail at the next flush, which is
    /// a failure of the whole file. So an unreadable page is written past the cache, where that is possible.
    ///
    /// # Errors
    /// Errors of writing that are not about that place.
    fn write_anew_unless_bad(&self, offset: u64, src: &[u8]) -> Result<bool> {
        unless_bad(self.write_anew(offset, src))
    }

    /// Stores `src` at `offset` past the cache: durable at the next fence, without a flush. The range must be within
    /// the length, and on persistent memory within allocated space. Offset and length need not be aligned.
    fn write(&self, offset: u64, src: &[u8]) -> Result<()>;

    /// [`write`](MediumFile::write) of what promises nothing, also after a failed flush: it says that there was one.
    ///
    /// # Errors
    /// Those of writing.
    fn write_unpromised(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.write(offset, src)
    }

    /// [`write`](MediumFile::write) of several consecutive parts, the first at `offset`. It has the effect of several
    /// writes, with fewer system calls where each write is one.
    fn write_parts(&self, mut offset: u64, parts: &[&[u8]]) -> Result<()> {
        parts.iter().try_for_each(|part| {
            let at = offset;
            offset += part.len() as u64;
            self.write(at, part)
        })
    }

    /// Stores some cache lines of `src` as [`write`](MediumFile::write) does: those whose bit is set in `lines`, where
    /// bit n stands for the 64 bytes from 64n on. `src` has all of these lines, and the requirements of
    /// [`write`](MediumFile::write) apply up to the last of them. `offset` is that of the first byte of `src`.
    fn write_lines(&self, offset: u64, src: &[u8], lines: u64) -> Result<()> {
        runs(lines).try_for_each(|(first, count)| {
            let from = (first * LINE) as usize;
            self.write(offset + first * LINE, &src[from..from + (count * LINE) as usize])
        })
    }

    /// Stores `src` at `offset` through the cache: visible to other threads in program order, durable once flushed and
    /// fenced. The requirements are those of [`write`](MediumFile::write).
    fn store(&self, offset: u64, src: &[u8]) -> Result<()>;

    /// Hints that bytes of the page around `offset` will be stored soon. On memory it starts the address translation,
    /// which costs more than the store itself if a large file is written at random.
    #[inline]
    fn prefetch(&self, _offset: u64) {}

    /// Hints that the line around `offset` will be [`store`](MediumFile::store)d to soon.
    #[inline]
    fn prefetch_to_store(&self, offset: u64) {
        self.prefetch(offset);
    }

    /// Starts writing back the cache lines of a range. It does nothing on a block medium, where the fence does
    /// everything.
    fn flush(&self, barrier: Barrier, offset: u64, len: u64);

    /// Hints that nobody stores to a range again soon, so that a later fence finds it written back. It makes nothing
    /// durable, and does nothing on persistent memory.
    fn start_writeback(&self, _offset: u64, _len: u64) {}

    /// Changes the length. New bytes read as zeros. Durable after [`sync`](MediumFile::sync).
    fn set_len(&self, len: u64) -> Result<()>;

    /// Allocates space for a range, so that a store to it cannot fail for lack of space. Contents are kept; new space
    /// reads as zeros. The space is durable after [`sync`](MediumFile::sync): until then a power cut may take it back.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// How many bytes from `offset` on, at most `len`, have space of their own, so that a store to them takes none. It
    /// is 0 if the medium cannot tell. Space that was there when the file was last [synced](MediumFile::sync) is
    /// durable.
    fn own_space(&self, _offset: u64, _len: u64) -> u64 {
        0
    }

    /// The first offset from `offset` on where the file may hold something else than zeros; `None` if it holds nothing
    /// up to its end. A medium that cannot tell says `offset`.
    fn next_data(&self, offset: u64) -> Option<u64> {
        self.data_from(offset).map_or(Some(offset), |data| Some(data?.start))
    }

    /// Makes a range read as zeros and frees its space if the file system can. The length stays.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes everything about this file durable: contents, length, holes, mark.
    fn sync(&self, barrier: Barrier) -> Result<()>;

    /// Ensures that reads of a range return only bytes that are durable now, or that this call makes durable.
    ///
    /// After a failed flush a page cache may call pages clean that the device never got: reads return them, later
    /// flushes skip them, and the next power cut loses them. Only a process that opens the file without knowing how it
    /// was left needs this call, after a [`sync`](MediumFile::sync) and before the first read. It does nothing on a
    /// medium that reads where it stores.
    ///
    /// # Errors
    /// Errors of a read, a write or a flush; and [`Error::ReadOnly`], because pages that cannot be dropped are written.
    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()>;

    /// The mark that the file carries.
    fn mark(&self) -> Result<MarkState>;

    /// Sets or removes the mark. Durable after [`sync`](MediumFile::sync).
    ///
    /// # Errors
    /// Also if [`mark`](MediumFile::mark) returns `Unsupported`.
    fn set_mark(&self, mark: Option<Mark>) -> Result<()>;

    /// The note of its last commit that the file carries; `None` if it carries none, or the medium keeps none.
    fn commit_note(&self) -> Result<Option<CommitNote>>;

    /// Sets the note of the last commit. Durable after [`sync`](MediumFile::sync): a crash before that leaves the old
    /// one or this one. Setting one in the place of another takes no space. It does nothing if the medium keeps none.
    fn set_commit_note(&self, note: CommitNote) -> Result<()>;

    /// Takes the advisory lock on this file without waiting. Returns false if another handle, of this process or
    /// another, holds a lock that excludes it. The lock ends when the process that took it drops the handle; a forked
    /// child that inherits the handle does not hold the lock.
    fn try_lock(&self, kind: LockKind) -> Result<bool>;
}

/// Whether a system call failed because the device has lost what was to be read. Besides EIO, reads past the page
/// cache say what the device said: ENODATA of a bad place, EREMOTEIO of a bad target, EILSEQ of a checksum of its
/// own.
pub(crate) fn is_bad_place(error: &std::io::Error) -> bool {
    use rustix::io::Errno;
    let bad = [Errno::IO, Errno::NODATA, Errno::REMOTEIO, Errno::ILSEQ, Errno::HWPOISON];
    bad.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Whether a call failed so, as an [`Error`].
pub(crate) fn is_bad(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if is_bad_place(source))
}

/// The result of a call for who can do without the bytes of that place.
fn unless_bad(done: Result<()>) -> Result<bool> {
    match done {
        Ok(()) => Ok(true),
        Err(error) if is_bad(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The longest read that a medium in memory makes without a call.
pub(crate) const SHORT_READ: usize = crate::sys::copy::SHORT;

/// Bytes of a page, within which a [short read](MediumFile::try_read) is.
const PAGE: u64 = 4096;

/// Bytes of a cache line, the unit of [`MediumFile::write_lines`].
const LINE: u64 = 64;

/// Where the last byte of a range within one page is; `None` if it is not within one. If this is below a limit, the
/// whole range is. Of a sum that overflows the last byte is in another page than the first; an empty range has it
/// before its first.
///
/// All who check the range of a short read do it in these words, so it is worked out once.
#[inline(always)]
pub(crate) fn last_in_page(offset: u64, len: usize) -> Option<u64> {
    let last = offset.wrapping_add(len as u64).wrapping_sub(1);
    if offset ^ last < PAGE { Some(last) } else { None }
}

/// The maximal runs of consecutive members of a set, ascending, as (first member, members).
#[inline]
pub(crate) fn runs(mut set: u64) -> impl Iterator<Item = (u64, u64)> {
    std::iter::from_fn(move || {
        if set == 0 {
            return None;
        }
        let first = set.trailing_zeros();
        let len = (set >> first).trailing_ones();
        // Shifting by 64 would be an overflow: clear the run in two steps.
        set &= (u64::MAX << (first + len - 1)) << 1;
        Some((u64::from(first), u64::from(len)))
    })
}

/// The path from the root on, whether or not the file exists.
pub(crate) fn absolute(path: &Path) -> Result<std::path::PathBuf> {
    std::path::absolute(path).map_err(|error| Error::io("open", path, error))
}

/// Resolves symbolic links and returns the path of the file itself: a sidecar is beside the file, not beside a link to
/// it. The path is absolute, so it stays valid when the process changes its directory.
///
/// # Errors
/// [`Error::Io`] if the file does not exist, or permission is missing.
pub fn resolve(path: &Path) -> Result<std::path::PathBuf> {
    let found = std::fs::symlink_metadata(path).map_err(|error| Error::io("open", path, error))?;
    if !found.is_symlink() {
        return absolute(path);
    }
    std::fs::canonicalize(path).map_err(|error| Error::io("open", path, error))
}

/// Opens a file for writing and closes it again. On overlayfs one of a lower layer becomes another file then, with a
/// birth of its own: whoever names something after the identity that is found has that done first.
pub(crate) fn copy_up(path: &Path) {
    // Whoever opens it in earnest says what is wrong.
    let _ = std::fs::OpenOptions::new().read(true).write(true).open(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_maximal_and_complete() {
        for set in [0, 1, 1 << 63, u64::MAX, 0b1011, 0xf0f0_0000_0000_000f, u64::MAX >> 1, u64::MAX << 1] {
            let mut union = 0;
            let mut end = None;
            for (first, len) in runs(set) {
                assert!(end.is_none_or(|end| first > end), "runs of {set:#x} touch");
                end = Some(first + len);
                union |= (0..len).fold(0, |mask, n| mask | 1 << (first + n));
            }
            assert_eq!(union, set);
        }
    }
}
