//! What a call asks of the descriptor that came with it: how it was opened, and its offset, which are the kernel's.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{OFlags, SeekFrom, fcntl_getfl, seek};
use rustix::io::Errno as Sys;
use untorn_wire::Seek;

use crate::managed::{Errno, io_errno, libc_errno};

pub(crate) const SEEK_SET: i32 = 0;
pub(crate) const SEEK_CUR: i32 = 1;
pub(crate) const SEEK_END: i32 = 2;
pub(crate) const SEEK_DATA: i32 = 3;
pub(crate) const SEEK_HOLE: i32 = 4;

/// Flags of `pwritev2`.
pub(crate) const RWF_DSYNC: i32 = 2;
pub(crate) const RWF_SYNC: i32 = 4;
pub(crate) const RWF_APPEND: i32 = 16;
pub(crate) const RWF_NOAPPEND: i32 = 32;
/// Those that change nothing but how fast it is.
pub(crate) const RWF_HINTS: i32 = 1 | 128;

pub(crate) fn fail<T>(errno: Sys) -> Result<T, Errno> {
    Err(libc_errno(errno))
}

/// The flags that a descriptor was opened with.
pub(crate) fn flags(descriptor: &OwnedFd) -> Result<OFlags, Errno> {
    fcntl_getfl(descriptor).map_err(libc_errno)
}

/// `O_DSYNC`, a bit that `O_SYNC` has as well. The constant of this name that comes with the calls has all bits of
/// `O_SYNC` (rustix 1.1).
pub(crate) const O_DSYNC: OFlags = OFlags::from_bits_retain(0o10_000);

/// Whether each write of a description is to be durable when it returns.
pub(crate) fn synchronous(flags: OFlags) -> bool {
    flags.contains(O_DSYNC)
}

pub(crate) fn writable(flags: OFlags) -> bool {
    flags & OFlags::RWMODE != OFlags::RDONLY
}

pub(crate) fn position(descriptor: &OwnedFd) -> Result<u64, Errno> {
    seek(descriptor, SeekFrom::Current(0)).map_err(libc_errno)
}

pub(crate) fn move_to(descriptor: &OwnedFd, offset: u64) -> Result<(), Errno> {
    seek(descriptor, SeekFrom::Start(offset)).map(drop).map_err(libc_errno)
}

/// Where `lseek` leads in a file of this length. The whole file is data, which `SEEK_DATA` and `SEEK_HOLE` may say of
/// any file.
pub(crate) fn sought(descriptor: &OwnedFd, Seek { offset, whence }: Seek, len: u64) -> Result<u64, Errno> {
    let len = i64::try_from(len).map_err(|_| libc_errno(Sys::OVERFLOW))?;
    let inside = (0..len).contains(&offset);
    let from = match whence {
        SEEK_SET => 0,
        SEEK_CUR => i64::try_from(position(descriptor)?).map_err(|_| libc_errno(Sys::OVERFLOW))?,
        SEEK_END => len,
        SEEK_DATA if inside => 0,
        SEEK_HOLE if inside => len - offset,
        SEEK_DATA | SEEK_HOLE => return fail(Sys::NXIO),
        _ => return fail(Sys::INVAL),
    };
    let to = from.checked_add(offset).ok_or(libc_errno(Sys::OVERFLOW))?;
    u64::try_from(to).map_err(|_| libc_errno(Sys::INVAL))
}

/// Where the kernel says that a descriptor's file is.
pub(crate) fn path_of(descriptor: &impl AsRawFd) -> Result<PathBuf, Errno> {
    let link = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    std::fs::read_link(link).map_err(|error| io_errno(&error))
}
