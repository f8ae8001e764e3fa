//! [`AddressRange`]: addresses of this process that stand for a file and may not be touched.
//!
//! # Safety
//! The only system calls are a fresh anonymous mapping, which the kernel places where nothing else is, and the
//! unmapping of exactly that mapping. No reference into the range is ever made: it is mapped without access.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// A range of the address space that nothing else in the process can be mapped to, without access: a load or store
/// there is a SIGSEGV. It costs no memory and goes with this value.
#[derive(Debug)]
pub(crate) struct AddressRange {
    address: usize,
    len: usize,
}

impl AddressRange {
    /// Reserves `len` bytes, at `near` if that is a page boundary with room behind it, anywhere otherwise.
    ///
    /// # Errors
    /// `EINVAL` for a length of 0, `ENOMEM` when the address space or the number of mappings is used up.
    pub(crate) fn reserve(near: Option<usize>, len: usize) -> io::Result<Self> {
        let hint = ptr::without_provenance_mut::<c_void>(near.unwrap_or(0));
        // SAFETY: without MAP_FIXED the hint is only a wish: the kernel never replaces an existing mapping, so no
        // memory that Rust knows of changes.
        let start = unsafe { mmap_anonymous(hint, len, ProtFlags::empty(), MapFlags::PRIVATE | MapFlags::NORESERVE) }?;
        Ok(AddressRange { address: start.addr(), len })
    }

    /// The first address.
    pub(crate) fn address(&self) -> usize {
        self.address
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        let start = ptr::without_provenance_mut::<c_void>(self.address);
        // SAFETY: the range was mapped by `reserve`, is owned by this value alone, and nothing was ever placed in it.
        // A failure leaves the addresses reserved, which does no harm.
        let _ = unsafe { munmap(start, self.len) };
    }
}
