//! What space a file has: its extents, as the file system maps them.
//!
//! # Safety
//! One ioctl without a wrapper in rustix. It fills a structure of plain integers, which is large enough for as many
//! extents as the call asks for.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

/// Extents asked for at once.
const EXTENTS: usize = 32;

/// `struct fiemap_extent`. Source: `linux/fiemap.h`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct RawExtent {
    logical: u64,
    physical: u64,
    len: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_too: [u32; 3],
}

/// `struct fiemap` without the extents that follow it: the size that the number of the call has in it.
#[derive(Clone, Copy, Default)]
#[repr(C)]
struct Head {
    start: u64,
    len: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
}

#[derive(Default)]
#[repr(C)]
struct Request {
    head: Head,
    extents: [RawExtent; EXTENTS],
}

/// FS_IOC_FIEMAP of `linux/fs.h`.
const FIEMAP: Opcode = opcode::read_write::<Head>(b'f', 11);

/// `FIEMAP_EXTENT_LAST`, `_UNKNOWN`, `_DELALLOC`, `_ENCODED`, `_DATA_INLINE`, `_SHARED`. Source: `linux/fiemap.h`.
const LAST: u32 = 0x1;
const UNKNOWN: u32 = 0x2;
const DELAYED: u32 = 0x4;
const ENCODED: u32 = 0x8;
const INLINE: u32 = 0x200;
const SHARED: u32 = 0x2000;

/// A piece of a file that the file system has space for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    start: u64,
    end: u64,
    /// Nothing else has this space, and a write to the extent goes there, or does so as far as the file system says.
    own: bool,
    /// Another file, or another part of this one, has the same space: a write needs new space.
    shared: bool,
}

/// Calls `each` with the extents of a range, ascending, until it returns false.
///
/// # Errors
/// Those of `ioctl(2)`: EOPNOTSUPP where the file system does not tell.
fn each_extent(file: BorrowedFd<'_>, start: u64, end: u64, mut each: impl FnMut(Extent) -> bool) -> io::Result<()> {
    let mut at = start;
    while at < end {
        let head = Head { start: at, len: end - at, room: EXTENTS as u32, ..Head::default() };
        let mut request = Request { head, ..Request::default() };
        // SAFETY: the call stores at most `room` extents behind the head, which `request` has room for.
        let updater = unsafe { Updater::<FIEMAP, Request>::new(&mut request) };
        // SAFETY: FS_IOC_FIEMAP only reports.
        unsafe { ioctl(file, updater) }?;
        let mapped = (request.head.mapped as usize).min(EXTENTS);
        for raw in &request.extents[..mapped] {
            let own = raw.flags & (UNKNOWN | DELAYED | ENCODED | INLINE | SHARED) == 0;
            let shared = raw.flags & SHARED != 0;
            let extent = Extent { start: raw.logical, end: raw.logical.saturating_add(raw.len), own, shared };
            if !each(extent) || raw.flags & LAST != 0 {
                return Ok(());
            }
            at = at.max(extent.end);
        }
        if mapped < EXTENTS {
            return Ok(());
        }
    }
    Ok(())
}

/// How many bytes from `start` on, at most `len`, have space that only this file has. 0 where the file system does not
/// tell. Source: `ioctl_fiemap`, `Documentation/filesystems/fiemap.rst`.
pub(crate) fn own_space(file: BorrowedFd<'_>, start: u64, len: u64) -> u64 {
    let end = start.saturating_add(len);
    let mut known = start;
    let asked = each_extent(file, start, end, |extent| {
        let goes_on = extent.own && extent.start <= known && extent.end > known;
        if goes_on {
            known = extent.end.min(end);
        }
        goes_on && known < end
    });
    if asked.is_ok() { known - start } else { 0 }
}

/// Whether a range has space that it shares, by `cp --reflink` or a snapshot. False where the file system does not
/// tell.
pub(crate) fn shares_space(file: BorrowedFd<'_>, start: u64, len: u64) -> bool {
    let mut shared = false;
    let _ = each_extent(file, start, start.saturating_add(len), |extent| {
        shared = extent.shared;
        !shared
    });
    shared
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn own_space_ends_at_a_hole() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.set_len(1 << 20).unwrap();
        for at in [0_u64, 8, 10] {
            file.write_all_at(&[7; 4096], at * 4096).unwrap();
        }
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 4096, 8192).unwrap();
        file.sync_all().unwrap();
        if each_extent(file.as_fd(), 0, 4096, |_| true).is_err() {
            // A file system that does not tell has no space for sure.
            assert_eq!(own_space(file.as_fd(), 0, 4096), 0);
            return;
        }
        let space = |page: u64, len: u64| own_space(file.as_fd(), page * 4096, len * 4096) / 4096;
        assert_eq!((space(0, 2), space(0, 64), space(1, 64), space(3, 64)), (2, 3, 2, 0));
        assert_eq!((space(8, 64), space(9, 1), space(10, 64), space(11, 1 << 30)), (1, 0, 1, 0));
        assert!(!shares_space(file.as_fd(), 0, 1 << 20));
    }

    #[test]
    fn more_extents_than_one_call_tells_are_all_seen() {
        let file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        for page in 0..100_u64 {
            file.write_all_at(&[7; 4096], page * 2 * 4096).unwrap();
        }
        file.sync_all().unwrap();
        let mut seen = Vec::new();
        if each_extent(file.as_fd(), 0, u64::MAX, |extent| {
            seen.push(extent.start / 8192);
            true
        })
        .is_ok()
        {
            assert_eq!(seen, (0..100).collect::<Vec<_>>());
        }
    }
}
