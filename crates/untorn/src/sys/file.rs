//! What the kernel knows of a file beyond its bytes: identity, mark, lock.
//!
//! # Safety
//! One ioctl without a wrapper in rustix; it fills a plain integer.
#![allow(unsafe_code)]

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    Advice, AtFlags, CWD, FileType, FlockOperation, SeekFrom, Stat, Statx, StatxFlags, StatxTimestamp, XattrFlags,
};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::size_limit;

/// The extended attribute that holds a data file's mark.
pub(crate) const MARK_ATTRIBUTE: &str = "user.untorn";

/// FS_IOC_GETVERSION of `linux/fs.h`, declared there with a `long`.
const GET_VERSION: Opcode = opcode::read::<std::ffi::c_long>(b'v', 1);

/// What `statx(2)` says of a file: its type, device, inode and birth time (nanoseconds since 1970; 0 where the file
/// system has none). `stat` asks where a seccomp filter written before statx refuses it, with either error; there is no
/// birth time then.
fn examine(
    dir: BorrowedFd<'_>,
    path: &Path,
    flags: AtFlags,
    stat: impl FnOnce() -> rustix::io::Result<Stat>,
) -> rustix::io::Result<(FileType, u64, u64, u64)> {
    let wanted = StatxFlags::TYPE | StatxFlags::INO | StatxFlags::BTIME;
    match rustix::fs::statx(dir, path, flags, wanted) {
        Ok(found) => {
            let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
            Ok((FileType::from_raw_mode(found.stx_mode.into()), device, found.stx_ino, birth(&found)))
        }
        Err(Errno::NOSYS | Errno::PERM) => {
            stat().map(|found| (FileType::from_raw_mode(found.st_mode), found.st_dev, found.st_ino, 0))
        }
        Err(errno) => Err(errno),
    }
}

/// Device, inode, generation and birth time (nanoseconds since 1970) of an open file; 0 for what the file system does
/// not have. Source: `statx(2)`.
pub(crate) fn identity(file: BorrowedFd<'_>) -> io::Result<(u64, u64, u64, u64)> {
    let (_, device, inode, birth) = examine(file, Path::new(""), AtFlags::EMPTY_PATH, || rustix::fs::fstat(file))?;
    Ok((device, inode, generation(file), birth))
}

/// Device, inode and birth time (nanoseconds since 1970; 0 where it has none) of what a path leads to. Source:
/// `statx(2)`.
pub(crate) fn identity_of_name(path: &Path) -> rustix::io::Result<(u64, u64, u64)> {
    let (_, device, inode, birth) = examine(CWD, path, AtFlags::empty(), || rustix::fs::stat(path))?;
    Ok((device, inode, birth))
}

/// The same of what has the name, if it is a regular file, and not of what a symbolic link leads to; no birth time
/// where that cannot be asked for. Source: `statx(2)`.
pub(crate) fn identity_of_name_itself(path: &Path) -> rustix::io::Result<Option<(u64, u64, u64)>> {
    let (kind, device, inode, birth) = examine(CWD, path, AtFlags::SYMLINK_NOFOLLOW, || rustix::fs::lstat(path))?;
    Ok((kind == FileType::RegularFile).then_some((device, inode, birth)))
}

/// The source of a file in a mount of untorn, which answers a question for it; `None` for every other file. Source:
/// `statfs(2)`, `getxattr(2)`.
pub(crate) fn behind_mount(path: &Path) -> Option<PathBuf> {
    /// `FUSE_SUPER_MAGIC`.
    const FUSE: u64 = 0x6573_5546;
    // A file of any other file system may have this attribute, too, from whoever may write to it.
    let found = rustix::fs::statfs(path).ok()?;
    #[allow(clippy::unnecessary_cast)] // Not of the same width everywhere.
    if found.f_type as u64 & 0xffff_ffff != FUSE {
        return None;
    }
    let mut value = [0; 4096];
    let len = rustix::fs::getxattr(path, "user.untorn.source", &mut value[..]).ok()?;
    let source = PathBuf::from(OsStr::from_bytes(&value[..len]));
    let inode = |path: &Path| rustix::fs::stat(path).ok().map(|found| found.st_ino);
    (source.is_absolute() && inode(&source)? == inode(path)?).then_some(source)
}

fn birth(found: &Statx) -> u64 {
    if found.stx_mask & StatxFlags::BTIME.bits() != 0 { nanoseconds(&found.stx_btime) } else { 0 }
}

/// Whether mappings of the file go past the page cache, as the kernel says (Linux 5.8). They may where it refuses
/// `MAP_SYNC`: a device of the virtual kind has DAX without it.
pub(crate) fn is_dax(file: BorrowedFd<'_>) -> bool {
    // `STATX_ATTR_DAX`. Source: `statx(2)`.
    const DAX: u64 = 0x0020_0000;
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::empty())
        .is_ok_and(|found| found.stx_attributes.bits() & DAX != 0)
}

fn nanoseconds(time: &StatxTimestamp) -> u64 {
    since_1970(time.tv_sec, time.tv_nsec.into())
}

/// Nanoseconds since 1970 of a time stamp; 0 for one that does not fit (before 1970, or after 2554).
pub(crate) fn since_1970(seconds: i64, nanoseconds: u64) -> u64 {
    let seconds = u64::try_from(seconds).ok();
    seconds.and_then(|s| s.checked_mul(1_000_000_000)?.checked_add(nanoseconds)).unwrap_or(0)
}

/// The inode's generation number, 0 where the file system has none or a filter refuses the question.
fn generation(file: BorrowedFd<'_>) -> u64 {
    // Zero first: of the `long` that the call is declared with, most file systems fill an `int` only.
    let mut version: u64 = 0;
    // SAFETY: the call stores at most 8 bytes, which `version` has.
    let updater = unsafe { Updater::<GET_VERSION, u64>::new(&mut version) };
    // SAFETY: FS_IOC_GETVERSION only reports.
    match unsafe { ioctl(file, updater) } {
        // The generation is 32 bits everywhere; the mask makes a sign-extended one equal to itself.
        Ok(()) => version & u64::from(u32::MAX),
        Err(_) => 0,
    }
}

/// What reading the mark gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RawMark {
    /// The file system keeps no user attributes.
    Unsupported,
    /// No mark.
    Absent,
    /// These bytes.
    Present([u8; 16]),
    /// A value that isn't a mark, by its length in bytes.
    Malformed(usize),
}

/// Reads the mark. Source: `fgetxattr(2)`, `xattr(7)`.
pub(crate) fn mark(file: BorrowedFd<'_>) -> io::Result<RawMark> {
    // One byte more than a mark, so that a longer value shows as such.
    let mut value = [0; 17];
    match rustix::fs::fgetxattr(file, MARK_ATTRIBUTE, &mut value) {
        Ok(16) => {
            let mut mark = [0; 16];
            mark.copy_from_slice(&value[..16]);
            Ok(RawMark::Present(mark))
        }
        Ok(len) => Ok(RawMark::Malformed(len)),
        Err(Errno::RANGE) => Ok(RawMark::Malformed(rustix::fs::fgetxattr_query(file, MARK_ATTRIBUTE)?)),
        Err(Errno::NODATA) => Ok(RawMark::Absent),
        Err(Errno::NOTSUP) => Ok(RawMark::Unsupported),
        Err(error) => Err(error.into()),
    }
}

/// Sets or removes the mark; removing one that is not there is fine. Source: `fsetxattr(2)`, `fremovexattr(2)`.
pub(crate) fn set_mark(file: BorrowedFd<'_>, mark: Option<[u8; 16]>) -> io::Result<()> {
    match mark {
        Some(mark) => Ok(rustix::fs::fsetxattr(file, MARK_ATTRIBUTE, &mark, XattrFlags::empty())?),
        None => match rustix::fs::fremovexattr(file, MARK_ATTRIBUTE) {
            Err(Errno::NODATA) => Ok(()),
            other => Ok(other?),
        },
    }
}

/// The extended attribute that keeps a file's commit number.
const NOTE_ATTRIBUTE: &str = "user.untorn.commit";

/// Reads the note of the last commit; `None` if there is none of its length, or the file system keeps none. Source:
/// `fgetxattr(2)`.
pub(crate) fn commit_note(file: BorrowedFd<'_>) -> io::Result<Option<[u8; 16]>> {
    // One byte more than a note, so that a longer value shows as such.
    let mut value = [0; 17];
    match rustix::fs::fgetxattr(file, NOTE_ATTRIBUTE, &mut value) {
        Ok(len) => Ok(value[..len].try_into().ok()),
        Err(Errno::RANGE | Errno::NODATA | Errno::NOTSUP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Sets the note of the last commit. A file system without user attributes keeps none. Source: `fsetxattr(2)`.
pub(crate) fn set_commit_note(file: BorrowedFd<'_>, note: &[u8; 16]) -> io::Result<()> {
    match rustix::fs::fsetxattr(file, NOTE_ATTRIBUTE, note, XattrFlags::empty()) {
        Err(Errno::NOTSUP) => Ok(()),
        other => Ok(other?),
    }
}

/// Takes the advisory lock without waiting; false if another open file has one that excludes it. Source: `flock(2)`.
pub(crate) fn try_lock(file: BorrowedFd<'_>, exclusive: bool) -> io::Result<bool> {
    let operation =
        if exclusive { FlockOperation::NonBlockingLockExclusive } else { FlockOperation::NonBlockingLockShared };
    match rustix::fs::flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Releases the advisory lock. Source: `flock(2)`.
pub(crate) fn unlock(file: BorrowedFd<'_>) {
    // This cannot fail: the descriptor is valid. Closing it releases the lock as well if nobody else has it.
    let _ = rustix::fs::flock(file, FlockOperation::Unlock);
}

/// How many bytes were transferred before an error, and the error.
type Transferred = std::result::Result<(), (u64, io::Error)>;

/// Transfers `len` bytes over interruptions and short transfers: `call` goes on behind the bytes that are done. If it
/// transfers none, the error is `nothing`.
fn transfer_all(len: usize, nothing: Errno, mut call: impl FnMut(usize) -> rustix::io::Result<usize>) -> Transferred {
    let mut done = 0;
    while done < len {
        match call(done) {
            Ok(0) => return Err((done as u64, nothing.into())),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(error) => return Err((done as u64, error.into())),
        }
    }
    Ok(())
}

/// Writes all of `bytes` at `offset`. Source: `pwrite(2)`.
///
/// # Errors
/// How many bytes were written before the error, and the error. A write of 0 bytes, which a full file system of some
/// kinds gives, is ENOSPC.
pub(crate) fn write_all(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> Transferred {
    size_limit::writing(offset.saturating_add(bytes.len() as u64), || {
        transfer_all(bytes.len(), Errno::NOSPC, |done| rustix::io::pwrite(file, &bytes[done..], offset + done as u64))
    })
}

/// Writes all of some parts, one after the other. Source: `pwritev(2)`.
///
/// # Errors
/// As [`write_all`].
pub(crate) fn write_all_parts(file: BorrowedFd<'_>, parts: &[&[u8]], mut offset: u64) -> Transferred {
    // What the kernel takes at once. Source: `IOV_MAX` in `limits.h`.
    const MOST: usize = 1024;
    let start = offset;
    for parts in parts.chunks(MOST) {
        let mut parts: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        let mut parts = &mut parts[..];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let written = size_limit::writing(offset.saturating_add(len as u64), || {
            transfer_all(len, Errno::NOSPC, |done| {
                let n = rustix::io::pwritev(file, parts, offset + done as u64)?;
                IoSlice::advance_slices(&mut parts, n);
                Ok(n)
            })
        });
        written.map_err(|(done, error)| (offset - start + done, error))?;
        offset += len as u64;
    }
    Ok(())
}

/// Writes at least some of `bytes` at `offset`. Source: `pwrite(2)`.
pub(crate) fn write_some(file: BorrowedFd<'_>, bytes: &[u8], offset: u64) -> io::Result<usize> {
    size_limit::writing(offset.saturating_add(bytes.len() as u64), || {
        uninterrupted(|| rustix::io::pwrite(file, bytes, offset))
    })
}

/// Sets the length of a file. Source: `ftruncate(2)`.
pub(crate) fn set_len(file: impl AsFd, len: u64) -> rustix::io::Result<()> {
    size_limit::growing(len, || rustix::fs::ftruncate(file, len))
}

/// Fills `bytes` from `offset`. Source: `pread(2)`.
///
/// # Errors
/// How many bytes were read before the error, and the error. The end of the file is EIO: the caller has seen that the
/// range lies within it, so somebody cut it short.
pub(crate) fn read_all(file: BorrowedFd<'_>, bytes: &mut [u8], offset: u64) -> Transferred {
    transfer_all(bytes.len(), Errno::IO, |done| rustix::io::pread(file, &mut bytes[done..], offset + done as u64))
}

/// The largest stretch that the page cache keeps in one piece, at least: it is dropped whole or not at all.
const FOLIO: u64 = 2 << 20;

/// Drops the clean pages of a range from the page cache, and of the pieces that reach into it. Source:
/// `posix_fadvise(2)`, POSIX_FADV_DONTNEED.
pub(crate) fn forget_clean(file: BorrowedFd<'_>, offset: u64, len: u64) -> io::Result<()> {
    let start = offset / FOLIO * FOLIO;
    let end = offset.saturating_add(len).checked_next_multiple_of(FOLIO).unwrap_or(u64::MAX);
    uninterrupted(|| rustix::fs::fadvise(file, start, NonZeroU64::new(end - start), Advice::DontNeed))
}

/// Has the kernel begin to write back what is dirty in a range, and waits for none of it. Source: `sync_file_range(2)`,
/// SYNC_FILE_RANGE_WRITE.
///
/// Its other flags wait, and take the error of a failed write away from the next `fsync(2)`. This one leaves it.
pub(crate) fn start_writeback(file: BorrowedFd<'_>, offset: u64, len: u64) {
    // SAFETY: the descriptor is open as long as it is borrowed, and the call takes no pointers.
    let _hint =
        unsafe { libc::sync_file_range(file.as_raw_fd(), offset as i64, len as i64, libc::SYNC_FILE_RANGE_WRITE) };
}

/// Writes back all that is dirty of a file and waits for it, which makes nothing durable. Source: `sync_file_range(2)`
/// with all its flags.
///
/// The error of a failed write is told to this description alone.
///
/// # Errors
/// Those of `sync_file_range(2)`.
pub fn write_back(file: impl AsFd) -> io::Result<()> {
    let how = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    sync_range(file, how)
}

/// Starts to write the dirty pages of a file, and waits for nothing. Source: `sync_file_range(2)`.
pub(crate) fn begin_write_back(file: impl AsFd) -> io::Result<()> {
    sync_range(file, libc::SYNC_FILE_RANGE_WRITE)
}

fn sync_range(file: impl AsFd, how: libc::c_uint) -> io::Result<()> {
    uninterrupted(|| {
        // SAFETY: the descriptor is open as long as it is borrowed, and the call takes no pointers.
        let done = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, how) };
        if done == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
    })
}

/// Whether the times of a file come from this machine's clock: those of a file system on another machine may not, and
/// those of one in user space are what its server says.
pub(crate) fn has_local_times(file: BorrowedFd<'_>) -> bool {
    // ext4, xfs, btrfs, f2fs, overlayfs.
    const LOCAL: [u64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x794c_7630];
    rustix::fs::fstatfs(file).is_ok_and(|found| {
        let kind = found.f_type as u64;
        matches!(kind, TMPFS | RAMFS) || LOCAL.contains(&kind)
    })
}

/// The first range from `offset` on that is no hole; none if the rest is one.
///
/// # Errors
/// Those of `lseek(2)`: of a file system that does not tell, EINVAL.
pub(crate) fn data_from(file: BorrowedFd<'_>, offset: u64) -> io::Result<Option<Range<u64>>> {
    match next_data(file, offset)? {
        Some(data) => Ok(Some(data..rustix::fs::seek(file, SeekFrom::Hole(data))?)),
        None => Ok(None),
    }
}

/// The first offset from this one on that is in no hole; none if the rest is one.
///
/// # Errors
/// As for [`data_from`].
pub(crate) fn next_data(file: BorrowedFd<'_>, offset: u64) -> io::Result<Option<u64>> {
    // The position this sets is nobody's: all reads and writes name their own.
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Err(Errno::NXIO) => Ok(None),
        data => Ok(Some(data?)),
    }
}

/// Whether the file system says that a range is a hole, with nothing written to it.
pub(crate) fn is_hole(file: BorrowedFd<'_>, offset: u64, len: u64) -> bool {
    // The position this sets is nobody's: all reads and writes name their own.
    match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(data) => data >= offset + len,
        Err(error) => error == Errno::NXIO,
    }
}

/// Whether the file lives in memory only (tmpfs, ramfs), where even a load from a hole takes space.
pub(crate) fn in_memory(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|found| matches!(found.f_type as u64, TMPFS | RAMFS))
}

/// `f_type` of tmpfs. Source: `linux/magic.h`.
pub(crate) const TMPFS: u64 = 0x0102_1994;
/// `f_type` of ramfs.
pub(crate) const RAMFS: u64 = 0x8584_58f6;

/// Calls again what a signal interrupted.
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}
