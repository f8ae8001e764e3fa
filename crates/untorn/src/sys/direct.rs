//! Reads and writes past the page cache: `O_DIRECT`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::file::{read_all, uninterrupted};
use super::size_limit;

const PAGE: usize = 4096;

/// A buffer as aligned as any device asks for.
#[derive(Clone, FromBytes, Immutable, IntoBytes)]
#[repr(C, align(4096))]
struct Aligned([u8; PAGE]);

/// Reads from where a descriptor stands, `most` bytes if there are as many, and hands them over: none at its end.
///
/// # Errors
/// Those of `read(2)`.
pub(crate) fn read_once<T>(file: BorrowedFd<'_>, most: usize, take: impl FnOnce(&[u8]) -> T) -> io::Result<T> {
    let mut pages = vec![Aligned([0; PAGE]); most.div_ceil(PAGE)];
    let bytes = &mut pages.as_mut_bytes()[..most];
    let read = uninterrupted(|| rustix::io::read(file, &mut *bytes))?;
    Ok(take(&bytes[..read]))
}

/// Another description of an open file, whose reads go past the page cache.
///
/// # Errors
/// EINVAL where the file system has no such reads.
pub(crate) fn open(file: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    open_for(file, OFlags::RDONLY)
}

fn open_for(file: BorrowedFd<'_>, access: OFlags) -> io::Result<OwnedFd> {
    let name = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::open(name, access | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty())?)
}

/// Whether an error says that such a read cannot be had, rather than that it failed.
pub(crate) fn is_refusal(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::OPNOTSUPP].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Memory of whole pages, zeros to begin with, that a read past the page cache fills without a copy.
#[derive(Default)]
pub(crate) struct PageBuffer(Vec<Aligned>);

impl PageBuffer {
    pub(crate) fn new(pages: u64) -> Self {
        PageBuffer(vec![Aligned([0; PAGE]); pages as usize])
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut_bytes()
    }
}

/// Fills `dst` from `offset`: at once if it is whole pages in memory that is aligned, otherwise page by page. Source:
/// `open(2)`, O_DIRECT.
///
/// # Errors
/// Those of `pread(2)`; EIO where the file has become shorter.
pub(crate) fn read(file: BorrowedFd<'_>, offset: u64, dst: &mut [u8]) -> io::Result<()> {
    let is_aligned = [offset as usize, dst.len(), dst.as_ptr().addr()].iter().all(|at| at.is_multiple_of(PAGE));
    if is_aligned {
        return read_all(file, dst, offset).map_err(|(_, error)| error);
    }
    let (mut at, mut rest) = (offset, dst);
    while !rest.is_empty() {
        let here = rest.len().min(PAGE - at as usize % PAGE);
        let (part, behind) = rest.split_at_mut(here);
        read_in_page(file, at, part)?;
        at += here as u64;
        rest = behind;
    }
    Ok(())
}

/// Fills `dst`, which lies within one page, from `offset`.
fn read_in_page(file: BorrowedFd<'_>, offset: u64, dst: &mut [u8]) -> io::Result<()> {
    let within = offset as usize % PAGE;
    let mut page = Box::new(Aligned([0; PAGE]));
    let read = uninterrupted(|| rustix::io::pread(file, &mut page.0[..], offset - within as u64))?;
    let bytes = page.0[..read].get(within..within + dst.len()).ok_or(Errno::IO)?;
    dst.copy_from_slice(bytes);
    Ok(())
}

/// Replaces a page, and nothing else: what a cache has of it is gone then. It is for places that a device may refuse,
/// which are few, so the file is opened each time. Source: `open(2)`, O_DIRECT.
///
/// # Errors
/// Those of `pwrite(2)`; EINVAL where the file system has no such writes, and for less than a page.
pub(crate) fn write_page(file: BorrowedFd<'_>, offset: u64, src: &[u8]) -> io::Result<()> {
    let bytes: [u8; PAGE] = src.try_into().map_err(|_| Errno::INVAL)?;
    let file = open_for(file, OFlags::RDWR)?;
    let page = Box::new(Aligned(bytes));
    let end = offset.saturating_add(PAGE as u64);
    match size_limit::writing(end, || uninterrupted(|| rustix::io::pwrite(&file, &page.0[..], offset)))? {
        PAGE => Ok(()),
        // A device takes whole blocks, so the rest of it is what it refused.
        _ => Err(Errno::IO.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_page_is_replaced_also_in_the_cache_and_only_a_whole_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 3 * PAGE]).unwrap();
        let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
        for len in [0, PAGE - 1] {
            assert!(is_refusal(&write_page(file.as_fd(), 0, &vec![8; len]).unwrap_err()));
        }
        match write_page(file.as_fd(), PAGE as u64, &[9; PAGE]) {
            Ok(()) => assert_eq!(std::fs::read(&path).unwrap(), [[7; PAGE], [9; PAGE], [7; PAGE]].concat()),
            Err(error) => assert!(is_refusal(&error), "{error}"),
        }
    }

    #[test]
    fn direct_reads_see_cached_bytes_up_to_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        // Some file systems have no such reads, and say so.
        let Ok(direct) = open(file.as_fd()) else { return };
        let mut bytes = [0; 904];
        match read_in_page(direct.as_fd(), 4096, &mut bytes) {
            Ok(()) => assert_eq!(bytes, [7; 904]),
            Err(error) => assert!(is_refusal(&error), "{error}"),
        }
        assert!(read_in_page(direct.as_fd(), 4096, &mut [0; 905]).is_err());
    }

    #[test]
    fn a_direct_read_of_any_range_is_that_of_its_pages() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..5 * PAGE).map(|at| (at / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let Ok(direct) = open(file.as_fd()) else { return };
        let mut buffer = PageBuffer::new(6);
        for (from, at, len) in [(0, 0, 5 * PAGE), (0, PAGE, 3 * PAGE), (1, 7, 2 * PAGE), (PAGE, 2 * PAGE - 1, PAGE + 2)]
        {
            let dst = &mut buffer.bytes_mut()[from..][..len];
            match read(direct.as_fd(), at as u64, dst) {
                Ok(()) => assert!(*dst == bytes[at..][..len], "{len} bytes at {at} to {from}"),
                Err(error) => assert!(is_refusal(&error), "{error}"),
            }
        }
        let behind = read(direct.as_fd(), 4 * PAGE as u64, &mut buffer.bytes_mut()[..2 * PAGE]);
        assert!(behind.is_err(), "a part of it is behind the end");
    }
}
