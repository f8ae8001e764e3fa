//! Copies between ordinary memory and mapped files.
//!
//! # Safety
//! The mapped side is foreign memory: other threads and other processes may load and store the same bytes at any time.
//! So it is only ever a raw pointer, never a reference, and no code depends on two loads of it agreeing. Such a race
//! gives the reader unspecified bytes, which the engines validate. The language calls a race of plain accesses
//! undefined; what holds here is that the compiler cannot see the other side (the memory comes from a system call and
//! is written by other processes, by instructions it does not model, or behind a lock), so each access compiles to the
//! plain loads and stores of the machine, for which a race is defined.
#![allow(unsafe_code)]

use std::ptr;
use std::sync::atomic::{self, AtomicU64, Ordering};

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{copy_nt, copy_nt_lines, width_name};

/// The widest streaming store in use, for reports.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn width_name() -> &'static str {
    "none"
}

/// Copies `src` to `dst`, durable after the next [`fence`](super::flush::fence).
///
/// # Safety
/// `src.len()` bytes from `dst` are mapped writable and do not overlap `src`.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_nt(dst: *mut u8, src: &[u8]) {
    // SAFETY: handed on from the caller.
    unsafe { copy_cached(dst, src) };
    // SAFETY: as above.
    unsafe { super::flush::flush_lines(dst, src.len()) }
}

/// [`copy_nt`] of the lines of `src` whose bit is set in `lines`, to the same places from `dst` on.
///
/// # Safety
/// As for [`copy_nt`].
#[cfg(not(target_arch = "x86_64"))]
pub(crate) unsafe fn copy_nt_lines(dst: *mut u8, src: &[u8], lines: u64) {
    for (n, line) in src.chunks_exact(super::flush::LINE).enumerate().filter(|(n, _)| lines >> n & 1 != 0) {
        // SAFETY: a part of the caller's range.
        unsafe { copy_nt(dst.wrapping_add(n * super::flush::LINE), line) };
    }
}

/// The longest copy that [`copy_cached`] makes of 8-byte stores of its own.
const WORDWISE: usize = 64;

/// Copies `src` to `dst` through the cache. Later calls of this thread become visible to other threads after it.
///
/// Up to 64 bytes with both length and `dst` multiples of 8 are stored as whole 8-byte words in ascending order: a
/// reader of an aligned word sees the old or the new one. Longer or unaligned copies tear anywhere.
///
/// # Safety
/// `src.len()` bytes from `dst` are mapped writable and do not overlap `src`.
#[inline(always)]
pub(crate) unsafe fn copy_cached(dst: *mut u8, src: &[u8]) {
    if src.len() <= WORDWISE && src.len().is_multiple_of(8) && (dst as usize).is_multiple_of(8) {
        let (words, _) = src.as_chunks::<8>();
        for (index, word) in words.iter().enumerate() {
            // SAFETY: the word is aligned, within the range the caller vouches for, and other Rust code reaches it only
            // through the copies of this module.
            let to = unsafe { AtomicU64::from_ptr(dst.wrapping_add(index * 8).cast()) };
            to.store(u64::from_ne_bytes(*word), Ordering::Release);
        }
    } else {
        atomic::fence(Ordering::Release);
        // SAFETY: both ranges are valid and disjoint by this function's contract; see the module on races.
        unsafe { ptr::copy_nonoverlapping(src.as_ptr(), dst, src.len()) }
    }
}

/// Copies from a mapped file that others may be storing to. The bytes of a race are unspecified.
///
/// # Safety
/// `dst.len()` bytes from `src` are mapped readable and do not overlap `dst`.
#[inline]
pub(crate) unsafe fn read_racy(src: *const u8, dst: &mut [u8]) {
    // SAFETY: both ranges are valid and disjoint by this function's contract. A race with a store makes the copied
    // bytes unspecified and nothing else: `memcpy` of bytes has no invalid values; see the module on the language's
    // view.
    unsafe { ptr::copy_nonoverlapping(src, dst.as_mut_ptr(), dst.len()) };
    // A reader validates by loading a version after the copy; the copy's loads must not sink below that.
    atomic::fence(Ordering::Acquire);
}

/// The longest copy that [`read_racy_short`] makes.
pub(crate) const SHORT: usize = 256;

/// Whether registers hold a cache line, for [`read_racy_short`].
pub(crate) fn has_wide_registers() -> bool {
    #[cfg(target_arch = "x86_64")]
    return x86::has_wide_registers();
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// [`read_racy`] of at most [`SHORT`] bytes, without a call. A processor overlaps the cache misses of as many reads
/// as it has room for their instructions, so short reads of a large file are as fast as they have few.
///
/// # Safety
/// As for [`read_racy`]; and `wide` is what [`has_wide_registers`] says, or false.
#[inline(always)]
pub(crate) unsafe fn read_racy_short(src: *const u8, dst: &mut [u8], wide: bool) {
    let (len, dst) = (dst.len(), dst.as_mut_ptr());
    debug_assert!(len <= SHORT);
    #[cfg(not(target_arch = "x86_64"))]
    let _ = wide;
    match len {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the caller's ranges, of 64 to 256 bytes, and its word for the registers.
        64.. if wide => unsafe { x86::copy_wide(src, dst, len) },
        // SAFETY: the caller's ranges, of N to 2N bytes.
        129.. => unsafe { copy_ends::<128>(src, dst, len) },
        // SAFETY: as above.
        65.. => unsafe { copy_ends::<64>(src, dst, len) },
        // SAFETY: as above.
        33.. => unsafe { copy_ends::<32>(src, dst, len) },
        // SAFETY: as above.
        17.. => unsafe { copy_ends::<16>(src, dst, len) },
        // SAFETY: as above.
        8.. => unsafe { copy_ends::<8>(src, dst, len) },
        // SAFETY: as above.
        4.. => unsafe { copy_ends::<4>(src, dst, len) },
        // SAFETY: as above.
        2.. => unsafe { copy_ends::<2>(src, dst, len) },
        // SAFETY: as above.
        1 => unsafe { copy_ends::<1>(src, dst, len) },
        0 => {}
    }
    // As in `read_racy`.
    atomic::fence(Ordering::Acquire);
}

/// Copies the first N and the last N of N to 2N bytes.
///
/// # Safety
/// `src` and `dst` are valid for `len` bytes, which is N at least, and do not overlap.
#[inline(always)]
unsafe fn copy_ends<const N: usize>(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: the first bytes of the caller's ranges.
    unsafe { copy_const::<N>(src, dst) };
    // SAFETY: the last ones.
    unsafe { copy_const::<N>(src.wrapping_add(len - N), dst.wrapping_add(len - N)) };
}

/// # Safety
/// `src` and `dst` are valid for N bytes and do not overlap.
#[inline(always)]
unsafe fn copy_const<const N: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: handed on from the caller.
    unsafe { ptr::copy_nonoverlapping(src, dst, N) }
}

/// Asks the CPU to translate an address and fetch its line, without waiting. Any address will do: a prefetch cannot
/// fault.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a prefetch is a hint: it reads nothing into the program and raises no exception for any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// [`prefetch`], of a line that will be stored to: the CPU gets it for itself, which a store would otherwise wait for.
#[inline(always)]
pub(crate) fn prefetch_to_store(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        // SAFETY: as for `prefetch`. A CPU that doesn't know the hint does nothing.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Asks the CPU for the line of a value that will be stored to.
#[inline(always)]
pub(crate) fn prefetch_hint<T>(value: &T) {
    prefetch_to_store(ptr::from_ref(value).cast());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_copies_and_reads_equal_plain_ones() {
        let source: Vec<u64> = (0..60u64).map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        let source: Vec<u8> = source.iter().flat_map(|word| word.to_le_bytes()).collect();
        for offset in 0..80 {
            for len in 0..300 {
                let mut expected = [0xEE; 400];
                expected[offset..offset + len].copy_from_slice(&source[..len]);
                let mut found = [0xEE; 400];
                // SAFETY: offset and length stay below 400.
                unsafe { copy_cached(found.as_mut_ptr().wrapping_add(offset), &source[..len]) };
                assert_eq!(found, expected, "offset {offset} len {len}");
                let mut back = vec![0; len];
                // SAFETY: as above.
                unsafe { read_racy(found.as_ptr().wrapping_add(offset), &mut back) };
                assert_eq!(back, source[..len]);
                for wide in [false, has_wide_registers()] {
                    let mut back = vec![0; len.min(SHORT)];
                    // SAFETY: as above, short, and on a CPU that was asked.
                    unsafe { read_racy_short(found.as_ptr().wrapping_add(offset), &mut back, wide) };
                    assert_eq!(back, source[..back.len()], "offset {offset} len {len} wide {wide}");
                }
            }
        }
    }
}
