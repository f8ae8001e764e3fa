//! How much of a file is in the page cache.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Number of `cachestat(2)`, the same on all architectures (Linux 6.5).
const CACHESTAT: libc::c_long = 451;

/// File systems whose files have their pages in a cache of their own. Of a file of another one, as overlayfs, the
/// kernel may count the cache of the file that it stands for as none of it. Source: `linux/magic.h`.
const OWN_CACHE: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

#[repr(C)]
struct Range {
    offset: u64,
    len: u64,
}

#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    under_writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

/// Pages of a range that the page cache has; `None` where the kernel does not tell. It looks at those that are there
/// only, so a long range without any costs nothing, which `mincore(2)` goes through page by page.
pub(crate) fn cached_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    counts(file, offset, len).map(|counts| counts.cached)
}

/// Pages of a range that are dirty in the page cache; `None` where the kernel does not tell.
#[cfg(test)]
pub(crate) fn dirty_pages(file: BorrowedFd<'_>, offset: u64, len: u64) -> Option<u64> {
    counts(file, offset, len).map(|counts| counts.dirty)
}

fn counts(file: BorrowedFd<'_>, offset: u64, len: u64) -> Option<Counts> {
    let own = rustix::fs::fstatfs(file).is_ok_and(|found| OWN_CACHE.contains(&(found.f_type as u64)));
    // Of a DAX file the kernel takes what it notes of mapped memory for pages that were evicted, and follows it to
    // nowhere: the process ends within the call, and its file stays locked (seen in 6.12.117). A length of 0 would be
    // all of the file.
    if !own || super::file::is_dax(file) || len == 0 {
        return None;
    }
    let (range, mut counts) = (Range { offset, len }, Counts::default());
    let no_flags: libc::c_uint = 0;
    // SAFETY: the kernel reads the one and writes the other, both of which have the layout that it documents and
    // outlive the call.
    let done = unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, no_flags) };
    if done != 0 {
        tracing::trace!(error = %io::Error::last_os_error(), "cachestat(2) failed: the kernel does not say which pages \
                                                              of a file are cached");
        return None;
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn pages_are_counted_where_they_are() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 40).unwrap();
        let count = |offset, len| cached_pages(file.as_fd(), offset, len);
        if count(0, 1 << 40).is_none() {
            untorn_testing::skip!("this kernel, or the file system of temporary files, does not tell");
        }
        assert_eq!(count(0, 1 << 40), Some(0));
        let page = crate::sys::page_size() as u64;
        file.write_all_at(&vec![1; 3 * page as usize], 1 << 30).unwrap();
        assert_eq!([count(0, 1 << 30), count(1 << 31, 1 << 31)], [Some(0); 2]);
        assert!(count(0, 1 << 40).unwrap() >= 3 && count((1 << 30) + 2 * page, page).unwrap() == 1);
        assert_eq!(count(0, 0), None);
    }
}
