//! A long array of zeros that takes memory only where it is touched.
//!
//! # Safety
//! The array is an anonymous private mapping, or a zeroed allocation if it is small: no one else has its address, and
//! it lives until the value is dropped.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::{io, mem, slice};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use zerocopy::FromZeros;

use super::page_size;

/// A fixed number of values that start as zeros, in address space reserved up front.
///
/// It is meant for tables of atomics indexed by page number: a table for a file of 1 TiB costs address space, and
/// memory in proportion to what is touched. A small table lives on the heap, where it costs no system call.
pub(crate) struct ZeroedArray<T> {
    start: NonNull<T>,
    len: usize,
    mapped: bool,
}

/// Tables of up to this many bytes live on the heap.
const SMALL: usize = 64 << 10;

/// Tables of more bytes have small pages. They are those of long files, which may be sparse: in huge pages, each part
/// of the file that is touched would take megabytes of memory, and the time to clear them.
const LARGE: usize = 16 << 20;

// SAFETY: the array owns its values like a boxed slice does, so it moves between threads if they may.
unsafe impl<T: Send> Send for ZeroedArray<T> {}
// SAFETY: a shared array hands out shared references to its values only, so it is shared if they may be.
unsafe impl<T: Sync> Sync for ZeroedArray<T> {}

impl<T: FromZeros + Send + Sync> ZeroedArray<T> {
    const LAYOUT_IS_SERVED: () = {
        assert!(!mem::needs_drop::<T>(), "values are unmapped, not dropped");
        assert!(mem::align_of::<T>() <= 4096, "a mapping is aligned to a page");
    };

    /// Reserves room for `len` zero values.
    ///
    /// # Errors
    /// ENOMEM when the address space, or under strict overcommit the memory, does not suffice; EOVERFLOW when the size
    /// is not representable. Source: `mmap(2)`.
    pub(crate) fn reserve(len: usize) -> io::Result<Self> {
        match Layout::array::<T>(len) {
            Ok(layout) if layout.size() == 0 => Ok(ZeroedArray { start: NonNull::dangling(), len, mapped: false }),
            Ok(layout) if layout.size() <= SMALL => {
                // SAFETY: the size is not 0.
                let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(rustix::io::Errno::NOMEM)?;
                Ok(ZeroedArray { start: start.cast(), len, mapped: false })
            }
            _ => Self::reserve_private(len),
        }
    }

    /// The same, in a mapping of its own that a forked child sees as zeros, so that it can't take the parent's volatile
    /// state for its own (`madvise(2)`, `MADV_WIPEONFORK`; best effort).
    ///
    /// # Errors
    /// As for [`reserve`](ZeroedArray::reserve).
    pub(crate) fn reserve_private(len: usize) -> io::Result<Self> {
        const { Self::LAYOUT_IS_SERVED };
        let bytes = Self::bytes(len).ok_or(rustix::io::Errno::OVERFLOW)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs no other memory.
        let start = unsafe { mmap_anonymous(ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags) }?;
        // SAFETY: the advice concerns only the mapping just made, and changes no byte of it in this process. Where the
        // kernel doesn't know it, the child sees copies, which is what any memory gives it.
        let _ = unsafe { madvise(start, bytes, Advice::LinuxWipeOnFork) };
        if bytes <= LARGE {
            // SAFETY: as above; huge pages change where the bytes live, not what they are. A table is looked up at
            // random, and with small pages each look-up would miss the address translation cache once more. Advice
            // only.
            let _ = unsafe { madvise(start, bytes, Advice::LinuxHugepage) };
        }
        let start = NonNull::new(start.cast()).expect("a mapping the kernel places is never at address 0");
        Ok(ZeroedArray { start, len, mapped: true })
    }
}

impl<T> ZeroedArray<T> {
    /// Bytes of the mapping, 0 if there is none.
    fn bytes(len: usize) -> Option<usize> {
        len.checked_mul(mem::size_of::<T>())?.checked_next_multiple_of(page_size())
    }
}

impl<T> Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `reserve` made room for at least `len` values here (or `len` values of no bytes at a dangling but
        // aligned address), their zero bytes are valid values since `T: FromZeros`, and they live as long as `self`.
        // Nothing hands out exclusive references, so change happens only through interior mutability.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

/// One value that starts as zeros, in a mapping of its own that a forked child sees as zeros.
pub(crate) struct ZeroedBox<T>(ZeroedArray<T>);

#[cfg_attr(loom, expect(dead_code))] // models make their own
impl<T: FromZeros + Send + Sync> ZeroedBox<T> {
    /// # Errors
    /// As for [`ZeroedArray::reserve_private`].
    pub(crate) fn new() -> io::Result<Self> {
        ZeroedArray::reserve_private(1).map(ZeroedBox)
    }
}

impl<T> Deref for ZeroedBox<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `new` reserved one value, which is valid as zeros and lives as long as `self`; see the array's
        // `deref`.
        unsafe { self.0.start.as_ref() }
    }
}

impl<T> Drop for ZeroedArray<T> {
    fn drop(&mut self) {
        if self.mapped {
            // `reserve_private` computed the same size before it mapped it.
            let bytes = Self::bytes(self.len).unwrap_or(0);
            // SAFETY: exactly the mapping that `reserve_private` made; nobody else has its address.
            let unmapped = unsafe { munmap(self.start.as_ptr().cast(), bytes) };
            debug_assert!(unmapped.is_ok(), "munmap of a whole mapping: {unmapped:?}");
        } else if let Some(layout) = Layout::array::<T>(self.len).ok().filter(|layout| layout.size() != 0) {
            // SAFETY: `reserve` allocated it with the same layout; nobody else has its address.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn zeros_and_keeps_what_is_stored() {
        let array = ZeroedArray::<AtomicU64>::reserve(100_000).unwrap();
        assert_eq!(array.len(), 100_000);
        assert!(array.iter().all(|value| value.load(Ordering::Relaxed) == 0));
        array[99_999].store(7, Ordering::Relaxed);
        assert_eq!(array[99_999].load(Ordering::Relaxed), 7);
        assert_eq!(array[99_998].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_empty_array_is_an_empty_slice() {
        assert!(ZeroedArray::<AtomicU64>::reserve(0).unwrap().is_empty());
        assert_eq!(ZeroedArray::<()>::reserve(5).unwrap().len(), 5);
    }

    #[test]
    fn a_table_larger_than_memory_can_be_reserved() {
        let array = ZeroedArray::<AtomicU64>::reserve(1 << 36).unwrap();
        array[(1 << 36) - 1].store(1, Ordering::Relaxed);
        assert_eq!(array[1 << 35].load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_size_beyond_the_address_space_is_an_error() {
        assert!(ZeroedArray::<AtomicU64>::reserve(usize::MAX).is_err());
        assert!(ZeroedArray::<AtomicU64>::reserve(usize::MAX / 16).is_err());
    }
}
