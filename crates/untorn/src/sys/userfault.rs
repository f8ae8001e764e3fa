//! Page faults that this process serves itself: `userfaultfd(2)` over memory that several processes share.
//!
//! Three ways of registering are offered: one whose faults end in SIGBUS in the thread that touched the page
//! ([`Userfault::signalling`], served by a [`FaultHandler`](super::fault::FaultHandler)), one through which pages are
//! filled ([`Userfault::filling`]), and one whose faults the kernel resolves by itself ([`Userfault::asynchronous`]).
//!
//! # Safety
//! Requests name a range of addresses that the caller owns; what they change is whether the next access to it faults,
//! and in [`Userfault::fill`] the contents of pages that nobody has seen yet. No reference into a range that is filled
//! exists: all of it is shared memory, accessed through raw pointers and atomic words.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;

// Source: `linux/userfaultfd.h`.
const API: u64 = 0xaa;
const FEATURE_PAGEFAULT_FLAG_WP: u64 = 1 << 0;
const FEATURE_MISSING_SHMEM: u64 = 1 << 5;
const FEATURE_SIGBUS: u64 = 1 << 7;
const FEATURE_WP_HUGETLBFS_SHMEM: u64 = 1 << 12;
const FEATURE_WP_UNPOPULATED: u64 = 1 << 13;
const FEATURE_WP_ASYNC: u64 = 1 << 15;
const MODE_MISSING: u64 = 1;
const MODE_WRITEPROTECT: u64 = 2;
const WRITEPROTECT_ON: u64 = 1;

/// The requests, by their numbers.
const IOCTL_API: u64 = 0x3f;
const IOCTL_REGISTER: u64 = 0x00;
const IOCTL_UNREGISTER: u64 = 0x01;
const IOCTL_COPY: u64 = 0x03;
const IOCTL_WRITEPROTECT: u64 = 0x06;

/// A descriptor over which the faults of some ranges of one process's addresses are served, here or in another process.
///
/// The last close of it anywhere unregisters its ranges, which silently unprotects their pages: whoever registered them
/// keeps it open.
#[derive(Debug)]
pub(crate) struct Userfault(OwnedFd);

impl Userfault {
    /// One for ranges whose missing and write-protected pages raise SIGBUS in the thread that touches them. An access
    /// of the kernel's own, as of `read(2)` into such a page, fails with EFAULT.
    ///
    /// # Errors
    /// ENOSYS, EPERM where the kernel or a filter has no userfaultfd for this process, EINVAL where it lacks what is
    /// needed (Linux 5.19): [`probe`] says which.
    pub(crate) fn signalling() -> io::Result<Self> {
        Self::with(
            FEATURE_PAGEFAULT_FLAG_WP | FEATURE_MISSING_SHMEM | FEATURE_SIGBUS | FEATURE_WP_HUGETLBFS_SHMEM,
            "a write-protected page of shared memory that raises SIGBUS",
        )
    }

    /// One for a range that nobody touches where it has no pages, and through which they are filled.
    ///
    /// # Errors
    /// As for [`signalling`](Userfault::signalling).
    pub(crate) fn filling() -> io::Result<Self> {
        Self::with(FEATURE_MISSING_SHMEM | FEATURE_SIGBUS, "filling pages of shared memory")
    }

    /// One for ranges whose write protection the kernel takes away by itself at the next store. Faults of the kernel
    /// itself need no privilege either, because nobody has to wait for an asynchronous one. Pages that are not in
    /// memory can be protected too.
    ///
    /// # Errors
    /// ENOSYS, EPERM as for [`signalling`](Userfault::signalling), EINVAL before Linux 6.7.
    pub(crate) fn asynchronous() -> io::Result<Self> {
        Self::plain(FEATURE_WP_HUGETLBFS_SHMEM | FEATURE_WP_UNPOPULATED | FEATURE_WP_ASYNC)
    }

    /// One for a range with a page that reads as if the medium could not read it. The page has no contents yet.
    #[cfg(test)]
    pub(crate) fn poisoning(range: std::ops::Range<usize>, page: usize) -> io::Result<Self> {
        const FEATURE_POISON: u64 = 1 << 14;
        const IOCTL_POISON: u64 = 0x08;
        let made = Self::plain(FEATURE_POISON)?;
        made.register_missing(range.start, range.len())?;
        made.request(IOCTL_POISON, &mut [page as u64, super::page_size() as u64, 0, 0])?;
        Ok(made)
    }

    fn plain(features: u64) -> io::Result<Self> {
        let made = Userfault(open()?);
        made.request(IOCTL_API, &mut [API, features, 0])?;
        Ok(made)
    }

    /// One that came from another process.
    pub(crate) fn from_fd(fd: OwnedFd) -> Self {
        Userfault(fd)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn with(features: u64, what: &'static str) -> io::Result<Self> {
        let fd = open().map_err(|errno| {
            named(errno, "this kernel or a seccomp filter (as in a container) refuses userfaultfd(2)")
        })?;
        let made = Userfault(fd);
        match made.request(IOCTL_API, &mut [API, features, 0]) {
            Ok(()) => Ok(made),
            Err(errno) => Err(named(errno, &format!("this kernel's userfaultfd(2) lacks {what} (Linux 5.19 has it)"))),
        }
    }

    /// Has missing pages, and write-protected ones, of a range fault. A page that another process filled is not
    /// missing.
    pub(crate) fn register(&self, address: usize, len: usize) -> io::Result<()> {
        Ok(self.request(IOCTL_REGISTER, &mut [address as u64, len as u64, MODE_MISSING | MODE_WRITEPROTECT, 0])?)
    }

    /// Has missing pages of a range fault.
    pub(crate) fn register_missing(&self, address: usize, len: usize) -> io::Result<()> {
        Ok(self.request(IOCTL_REGISTER, &mut [address as u64, len as u64, MODE_MISSING, 0])?)
    }

    /// Has write-protected pages of a range fault.
    pub(crate) fn register_stores(&self, address: usize, len: usize) -> io::Result<()> {
        Ok(self.request(IOCTL_REGISTER, &mut [address as u64, len as u64, MODE_WRITEPROTECT, 0])?)
    }

    /// Has no page of a range fault any more.
    pub(crate) fn unregister(&self, address: usize, len: usize) -> io::Result<()> {
        Ok(self.request_of(2, IOCTL_UNREGISTER, &mut [address as u64, len as u64])?)
    }

    /// Makes the next store to each page of a range fault (`on`), or lets stores proceed. It also holds for pages
    /// that are not mapped yet, not even filled, and through `madvise(2)`, swapping and holes punched. Once it has
    /// returned, no thread of the process stores to a page that it protected. Safe in a signal handler.
    ///
    /// # Errors
    /// ESRCH if the process that registered the range is gone, ENOMEM.
    pub(crate) fn protect(&self, address: usize, len: usize, on: bool) -> io::Result<()> {
        let mode = if on { WRITEPROTECT_ON } else { 0 };
        loop {
            match self.request(IOCTL_WRITEPROTECT, &mut [address as u64, len as u64, mode]) {
                // The mappings of the process are being changed; it is over at once.
                Err(Errno::AGAIN | Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    /// Gives the page at `address` its first contents, for all who map it. Nobody ever sees a part of them. False if it
    /// had contents already, which then stay.
    ///
    /// # Errors
    /// ENOMEM, ENOSPC where there is no memory for it.
    pub(crate) fn fill(&self, address: usize, bytes: &[u8]) -> io::Result<bool> {
        loop {
            let source = bytes.as_ptr() as u64;
            match self.request(IOCTL_COPY, &mut [address as u64, source, bytes.len() as u64, 0, 0]) {
                Ok(()) => return Ok(true),
                Err(Errno::EXIST) => return Ok(false),
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn request(&self, number: u64, words: &mut [u64]) -> rustix::io::Result<()> {
        self.request_of(3, number, words)
    }

    /// A request that reads (2) its words only, or changes them as well (3).
    fn request_of(&self, direction: u64, number: u64, words: &mut [u64]) -> rustix::io::Result<()> {
        // `_IOR` or `_IOWR(0xaa, number, words)`.
        let request = direction << 30 | (size_of_val(words) as u64) << 16 | 0xaa << 8 | number;
        // SAFETY: the kernel reads and writes as many bytes as the request says, which are those of `words`. The
        // addresses in them are ranges of the caller's, or of a process that gave this descriptor away, and readable
        // bytes.
        if unsafe { libc::ioctl(self.0.as_raw_fd(), request as _, words.as_mut_ptr()) } == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

/// What the kernel itself does for the process (`read(2)` into a page) is never served, so it need not be allowed, and
/// no privilege is needed.
fn open() -> rustix::io::Result<OwnedFd> {
    /// UFFD_USER_MODE_ONLY.
    const USER_MODE_ONLY: u32 = 1;
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    let flags = flags | UserfaultfdFlags::from_bits_retain(USER_MODE_ONLY);
    // SAFETY: a new descriptor changes no memory; see the requests.
    unsafe { rustix::mm::userfaultfd(flags) }
}

/// An error that says what is missing, and keeps its errno where that can be.
fn named(errno: Errno, what: &str) -> io::Error {
    io::Error::new(io::Error::from(errno).kind(), format!("{what}: {errno}"))
}

/// Whether plain stores of several processes can be tracked here: tries what it takes on a page of its own.
///
/// # Errors
/// Text that says what is missing.
pub(crate) fn probe() -> io::Result<()> {
    use super::shared::SharedPages;
    let pages = SharedPages::create("untorn-probe", 4096, 4096)?;
    let tracker = Userfault::signalling()?;
    let refused = |error| io::Error::other(format!("the kernel refuses to write-protect shared memory: {error}"));
    tracker.register(pages.address(), pages.reserved()).map_err(refused)?;
    tracker.protect(pages.address(), pages.reserved(), true).map_err(refused)?;
    let view = SharedPages::map(pages.file().try_clone_to_owned()?, 4096)?;
    let filler = Userfault::filling()?;
    filler.register_missing(view.address(), view.reserved()).map_err(refused)?;
    filler.fill(view.address(), &[1; 4096]).map_err(refused)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::shared::SharedPages;
    use super::*;

    #[test]
    fn a_page_is_filled_once() {
        if let Err(why) = probe() {
            untorn_testing::skip!("{why}");
        }
        let pages = SharedPages::create("untorn-test", 8192, 8192).unwrap();
        let filler = Userfault::filling().unwrap();
        filler.register_missing(pages.address(), 8192).unwrap();
        assert!(filler.fill(pages.address() + 4096, &[7; 4096]).unwrap());
        assert!(!filler.fill(pages.address() + 4096, &[8; 4096]).unwrap());
        let mut bytes = [0; 4096];
        pages.copy_out(4096, &mut bytes);
        assert_eq!(bytes, [7; 4096]);
    }

    #[test]
    fn the_kernel_does_not_store_to_a_protected_page() {
        if let Err(why) = probe() {
            untorn_testing::skip!("{why}");
        }
        let pages = SharedPages::create("untorn-test", 4096, 4096).unwrap();
        pages.copy_in(0, &[3; 4096]);
        let tracker = Userfault::signalling().unwrap();
        tracker.register(pages.address(), 4096).unwrap();
        tracker.protect(pages.address(), 4096, true).unwrap();
        let zero = std::fs::File::open("/dev/zero").unwrap();
        assert_eq!(pages.read_from(&zero, 0, 4096).unwrap_err().raw_os_error(), Some(libc::EFAULT));
        tracker.protect(pages.address(), 4096, false).unwrap();
        assert_eq!(pages.read_from(&zero, 0, 4096).unwrap(), 4096);
        let mut bytes = [1; 4096];
        pages.copy_out(0, &mut bytes);
        assert_eq!(bytes, [0; 4096]);
    }
}
