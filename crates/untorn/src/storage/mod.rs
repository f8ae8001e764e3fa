//! Where bytes become durable.
//!
//! [`Medium`] and [`MediumFile`] are the only doors through which engines touch storage, so the very same engine code
//! runs over persistent memory ([`Dax`]), over the page cache of a block device ([`PageCache`]) and over a simulated
//! medium that enumerates crash states.
//!
//! # Vocabulary
//! *Persist* means *flush, then fence*. A [`write`](MediumFile::write) needs no flush (it is non-temporal on persistent
//! memory), a [`store`](MediumFile::store) does; either is durable once a later [`fence`](Medium::fence) returns.
//! Nothing here is atomic or transactional beyond the units of the fault model: 8 bytes on persistent memory, one
//! 512-byte sector on a block device.

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::Path;

use crate::error::{Error, Result};

pub(crate) mod barrier;
mod dax;
mod detect;
mod latch;
mod mapping;
pub(crate) mod names;
mod page_cache;
mod whole;

pub use barrier::Barrier;
pub use dax::{Dax, DaxFile};
pub use detect::{Detected, MediumKind, detect, explain};
pub use latch::{Latched, LatchedFile};
pub(crate) use mapping::identity as identity_of;
pub use names::MadeLike;
pub use page_cache::{PageCache, PageCacheFile};
pub(crate) use whole::create_whole;

pub use crate::sys::lease::{give_lease_back, has_lease, mark_description, take_lease, unblock};

/// How a medium orders and loses stores; engines choose their commit protocol by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediumClass {
    /// Byte-addressable: a fence costs about 0.1 µs, 8-byte stores are atomic, a store on a full disk loses its page, so space is
    /// allocated before it is stored to.
    PersistentMemory,
    /// Sector-addressable behind the page cache: a fence is a device flush, milliseconds; full disk is an error of the
    /// write call.
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

/// Who else may hold an advisory lock at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Others that take it shared: for readers.
    Shared,
    /// Nobody: for a writer.
    Exclusive,
}

/// What tells one file from another, whatever its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Identity {
    /// `st_dev`. Not stable over a reboot, so it is recorded but not compared where the file carries a mark.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// The inode's generation number (FS_IOC_GETVERSION), 0 where the file system has none.
    pub generation: u64,
    /// Birth time in nanoseconds since 1970 (statx), 0 where the file system has none.
    pub birth: u64,
}

/// Size and modification time: a change of either while untorn did not have the file open means that another program
/// wrote to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Nanoseconds since 1970.
    pub modified: u64,
}

/// Bytes of the mark a data file carries while a sidecar belongs to it: the sidecar's UUID.
pub type Mark = [u8; 16];

/// Whether a file carries a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkState {
    /// The file system keeps no user extended attributes.
    Unsupported,
    /// No mark.
    Absent,
    /// This one.
    Present(Mark),
}

/// A place that keeps files: names, durability, and the fence shared by its files.
///
/// Errors are [`crate::Error`] values naming the path and, where there is one, the offset.
pub trait Medium: Send + Sync + 'static {
    /// One open file.
    type File: MediumFile;

    /// How this medium orders and loses stores.
    fn class(&self) -> MediumClass;

    /// Opens an existing regular file. `reserve` is the length in bytes it may grow to while open (address space is
    /// reserved, memory is not).
    fn open(&self, path: &Path, access: Access, reserve: u64) -> Result<Self::File>;

    /// Creates a file of `len` zero bytes that must not exist yet and opens it for reading and writing. Durable after
    /// [`MediumFile::sync`] and [`Medium::sync_dir`].
    fn create(&self, path: &Path, len: u64, reserve: u64) -> Result<Self::File>;

    /// [`create`](Medium::create) for a file that holds bytes of `like`, so that nobody may open it who may not open that
    /// one: where files have owners and permissions, it gets those of `like`. Without them this is
    /// [`create`](Medium::create).
    fn create_like(&self, path: &Path, len: u64, reserve: u64, _like: &Self::File) -> Result<Self::File> {
        self.create(path, len, reserve)
    }

    /// Creates a directory; one that exists already is fine.
    fn create_dir(&self, path: &Path) -> Result<()>;

    /// Renames a file, replacing `to` if it exists. Durable after [`Medium::sync_dir`].
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a name. Durable after [`Medium::sync_dir`].
    fn unlink(&self, path: &Path) -> Result<()>;

    /// Removes a directory if it is empty; one that is not, or does not exist, is left as it is without an error.
    fn remove_dir_if_empty(&self, path: &Path) -> Result<()>;

    /// Whether the name exists.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// Names in a directory, in any order; none if the directory does not exist.
    fn list(&self, dir: &Path) -> Result<Vec<OsString>>;

    /// Makes the names in a directory durable.
    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()>;

    /// Orders and makes durable every [`write`](MediumFile::write), and every flushed
    /// [`store`](MediumFile::store), that this thread issued to `files` before. On a block medium it makes durable the
    /// stores of all threads, and the files' flushes are submitted together (one *flush round*).
    ///
    /// # Errors
    /// A failed flush. It is final: what the kernel did with the dirty pages is unknown, so nothing may be retried.
    fn fence(&self, barrier: Barrier, files: &[&Self::File]) -> Result<()>;

    /// Makes this thread's [`write`](MediumFile::write)s so far visible to other threads before its later stores are.
    /// Non-temporal stores need it; all else is visible in program order. What was ordered is covered by the next fence
    /// of any thread, not only of this one.
    fn order(&self) {}

    /// Sixteen bytes that no other sidecar has.
    fn unique(&self) -> Result<[u8; 16]> {
        crate::sys::random().map_err(|error| Error::io("get random bytes from", Path::new("the kernel"), error))
    }

    /// Waits a moment for another thread to make progress; `round` counts the calls of one wait from 0.
    fn relax(&self, round: u32);
}

/// One open file of a [`Medium`]. Offsets and lengths are in bytes.
///
/// All methods take `&self` and may be called from many threads. Concurrent access to the same bytes yields unspecified
/// bytes for the reader, never undefined behaviour; engines validate what they read.
pub trait MediumFile: Send + Sync {
    /// Current length.
    fn len(&self) -> u64;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What tells this file from another.
    fn identity(&self) -> Result<Identity>;

    /// The open file itself, if it is one of the kernel's: for other processes to map, or to write to.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Other processes may have written to the file, to which its [descriptor](MediumFile::descriptor) was given: the next fence has
    /// that, too.
    fn changed_by_others(&self) {}

    /// Size and modification time now.
    fn stamp(&self) -> Result<Stamp>;

    /// Whether a store through a mapping, by whatever process, changes the modification time at the first store after a
    /// [`sync`](MediumFile::sync). Where files live in memory only, it does not.
    fn notes_stores(&self) -> bool {
        true
    }

    /// Fills `dst` from `offset`. The range must lie within the length.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;

    /// [`read`](MediumFile::read) of bytes of one page (4096 bytes from a multiple of 4096); false, with `dst` in any state,
    /// if anything stands in its way, and `read` tells what. For short reads, which the telling would make slower.
    #[inline]
    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        self.read(offset, dst).is_ok()
    }

    /// [`read`](MediumFile::read) of bytes of one page as the medium itself holds them, past any cache in between, so that
    /// damage which a cache hides is seen. What is in the cache and newer is written back first. Where a medium cannot be
    /// read so, or is memory, this is [`read`](MediumFile::read).
    fn read_stored(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.read(offset, dst)
    }

    /// [`read`](MediumFile::read), for who has the bytes elsewhere if the medium has lost them: false, with `dst` in any state,
    /// if the device cannot read that place, or the memory there is poisoned. That is no failure of the file, of which other
    /// places go on being read and written.
    ///
    /// # Errors
    /// Those of reading that are not about that place.
    fn read_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        unless_bad(self.read(offset, dst))
    }

    /// The same of [`read_stored`](MediumFile::read_stored).
    ///
    /// # Errors
    /// As there.
    fn read_stored_unless_bad(&self, offset: u64, dst: &mut [u8]) -> Result<bool> {
        unless_bad(self.read_stored(offset, dst))
    }

    /// [`write`](MediumFile::write), of a whole page that may be one that cannot be read: after that it can be, where a device
    /// gives such a place up for another, as disks do. Whether it can be read is looked at where that makes a difference; of a page
    /// that can be, this is the very same as `write`, and of any other it is durable at the next fence too.
    fn write_anew(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.write(offset, src)
    }

    /// [`write_anew`](MediumFile::write_anew), for who can leave the page as it is: false if the device takes no bytes for that place
    /// either. A write through a cache would be refused by the next flush only, which is a failure of the whole file; so a page
    /// that cannot be read is written past it, where that can be done.
    ///
    /// # Errors
    /// Those of writing that are not about that place.
    fn write_anew_unless_bad(&self, offset: u64, src: &[u8]) -> Result<bool> {
        unless_bad(self.write_anew(offset, src))
    }

    /// Stores `src` at `offset` past the cache: durable at the next fence, with no flush. The range must lie within the
    /// length, and on persistent memory within allocated space. Offset and length need not be aligned.
    fn write(&self, offset: u64, src: &[u8]) -> Result<()>;

    /// [`write`](MediumFile::write) of some parts one after the other, the first at `offset`: what several of them would do, with
    /// fewer system calls where each is one.
    fn write_parts(&self, mut offset: u64, parts: &[&[u8]]) -> Result<()> {
        parts.iter().try_for_each(|part| {
            let at = offset;
            offset += part.len() as u64;
            self.write(at, part)
        })
    }

    /// Stores some cache lines of `src` as [`write`](MediumFile::write) does: those whose bit is set in `lines`, where
    /// bit n stands for the 64 bytes from 64n on. `src` has all of these, and the same requirements as for
    /// [`write`](MediumFile::write) hold up to the last of them. `offset` is that of the first byte of `src`.
    fn write_lines(&self, offset: u64, src: &[u8], lines: u64) -> Result<()> {
        runs(lines).try_for_each(|(first, count)| {
            let from = (first * LINE) as usize;
            self.write(offset + first * LINE, &src[from..from + (count * LINE) as usize])
        })
    }

    /// Stores `src` at `offset` through the cache: visible to other threads in program order, durable once flushed and
    /// fenced. The same requirements as [`write`](MediumFile::write).
    fn store(&self, offset: u64, src: &[u8]) -> Result<()>;

    /// Tells that bytes of the page around `offset` will be stored soon. A hint; on memory it starts the address
    /// translation, which costs more than the store itself where a large file is written at random.
    #[inline]
    fn prefetch(&self, _offset: u64) {}

    /// Tells that the line around `offset` will be [`store`](MediumFile::store)d to soon. A hint.
    #[inline]
    fn prefetch_to_store(&self, offset: u64) {
        self.prefetch(offset);
    }

    /// Starts writing the cache lines of a range back. Does nothing on a block medium, where the fence does all.
    fn flush(&self, barrier: Barrier, offset: u64, len: u64);

    /// Changes the length. A gap reads as zeros. Durable after [`sync`](MediumFile::sync).
    fn set_len(&self, len: u64) -> Result<()>;

    /// Allocates space for a range, so that a store to it cannot fail for want of space. Contents are kept; new space
    /// reads as zeros.
    fn allocate(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes a range read as zeros and gives its space back where the file system can. The length stays.
    fn punch(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes everything about this file durable: contents, length, holes, mark.
    fn sync(&self, barrier: Barrier) -> Result<()>;

    /// Makes reads of a range return what is durable from now on, or what this call makes durable.
    ///
    /// A failed flush leaves pages in a page cache that are called clean though the device never got them: reads return
    /// them, later flushes pass over them, and the next power cut takes them. Only somebody who opens the file anew and
    /// does not know how it was left needs this, after a [`sync`](MediumFile::sync) and before the first read. A medium
    /// that reads where it stores has nothing to do.
    ///
    /// # Errors
    /// Those of a read, a write or a flush; and [`Error::ReadOnly`], since what cannot be dropped is written.
    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()>;

    /// The mark the file carries.
    fn mark(&self) -> Result<MarkState>;

    /// Sets or removes the mark. Durable after [`sync`](MediumFile::sync).
    ///
    /// # Errors
    /// Also where [`mark`](MediumFile::mark) says `Unsupported`.
    fn set_mark(&self, mark: Option<Mark>) -> Result<()>;

    /// Takes the advisory lock on this file without waiting; false if another handle, of this process or another, holds
    /// one that excludes it. It goes with the handle, when the process that took it drops it: a forked child that
    /// inherits the handle has no part in it.
    fn try_lock(&self, kind: LockKind) -> Result<bool>;
}

/// Whether a system call failed because the device has lost what was to be read. Besides EIO, reads past the page cache say what
/// the device said: ENODATA of a bad place, EREMOTEIO of a bad target, EILSEQ of a checksum of its own.
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

/// Where the last byte of a range within one page is; `None` if it is not within one. If this is below a limit, the whole
/// range is. Of a sum that overflows the last byte is in another page than the first; an empty range has it before its
/// first.
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

/// The path of the file itself where `path` leads through symbolic links: a sidecar lies beside the file, not beside a
/// link to it. It is absolute, and so stays right when the process changes its directory.
///
/// # Errors
/// [`Error::Io`] where there is no such file, or no permission to look.
pub fn resolve(path: &Path) -> Result<std::path::PathBuf> {
    let found = std::fs::symlink_metadata(path).map_err(|error| Error::io("open", path, error))?;
    if !found.is_symlink() {
        return absolute(path);
    }
    std::fs::canonicalize(path).map_err(|error| Error::io("open", path, error))
}

/// Opens a file for writing and closes it again. On overlayfs one of a lower layer becomes another file then, with a birth of its
/// own: whoever names something after the identity that is found has that done first.
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
