//! Non-temporal copies for x86-64: whole cache lines by streaming stores, which reach memory without a write-back and
//! without reading the line first.
//!
//! # Safety
//! Streaming stores are ordinary stores with weak ordering: within the thread later loads see them, and for everyone
//! else the `fence` that every user issues before publishing orders them. The wide paths run only on a CPU and kernel
//! that have the instructions, found out once.
#![allow(unsafe_code)]

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadu_si128, _mm_stream_si64, _mm_stream_si128, _mm256_loadu_si256, _mm256_stream_si256,
};
use std::ptr;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::sys::flush::{LINE, flush_lines};

/// The widest streaming store of this CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Width {
    Sse2 = 1,
    Avx2,
    Avx512,
}

/// The chosen [`Width`], 0 before the first use.
static CHOSEN: AtomicU8 = AtomicU8::new(0);

/// Lines up to which the 16-byte stores, which need no call, are as fast as the wide ones: a line fills one
/// write-combining buffer either way.
const INLINE_LINES: usize = 4;

fn width() -> Width {
    match CHOSEN.load(Ordering::Relaxed) {
        1 => Width::Sse2,
        2 => Width::Avx2,
        3 => Width::Avx512,
        _ => choose(),
    }
}

#[cold]
fn choose() -> Width {
    let chosen = if is_x86_feature_detected!("avx512f") {
        Width::Avx512
    } else if is_x86_feature_detected!("avx2") {
        Width::Avx2
    } else {
        Width::Sse2
    };
    CHOSEN.store(chosen as u8, Ordering::Relaxed);
    chosen
}

/// Whether registers hold a cache line.
pub(super) fn has_wide_registers() -> bool {
    width() == Width::Avx512
}

/// Copies 64 to 256 bytes through the cache, by as few instructions as can be.
///
/// # Safety
/// `src` and `dst` are valid for `len` bytes and do not overlap, and [`has_wide_registers`].
#[inline(always)]
pub(super) unsafe fn copy_wide(src: *const u8, dst: *mut u8, len: usize) {
    if len > LINE {
        // SAFETY: the first line of the caller's ranges.
        unsafe { copy_first::<0>(src, dst) };
        if len > 2 * LINE {
            // SAFETY: the second one.
            unsafe { copy_first::<1>(src, dst) };
            // SAFETY: the last but one.
            unsafe { copy_last::<2>(src, dst, len) };
        }
    }
    // SAFETY: the last one.
    unsafe { copy_last::<1>(src, dst, len) };
}

/// Copies line N.
///
/// # Safety
/// `src` and `dst` have such a line and do not overlap, and the CPU has AVX-512F.
#[inline(always)]
unsafe fn copy_first<const N: usize>(src: *const u8, dst: *mut u8) {
    // SAFETY: load and store lie within the caller's ranges and need no alignment. The one register used is declared.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{from} + 64 * {N}]",
            "vmovdqu64 [{to} + 64 * {N}], zmm16",
            from = in(reg) src,
            to = in(reg) dst,
            N = const N,
            out("zmm16") _,
            options(nostack, preserves_flags),
        )
    }
}

/// Copies the line that begins N lines before the end.
///
/// # Safety
/// As for [`copy_first`], of ranges of `len` bytes.
#[inline(always)]
unsafe fn copy_last<const N: usize>(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: as in `copy_first`.
    unsafe {
        asm!(
            "vmovdqu64 zmm16, [{from} + {len} - 64 * {N}]",
            "vmovdqu64 [{to} + {len} - 64 * {N}], zmm16",
            from = in(reg) src,
            to = in(reg) dst,
            len = in(reg) len,
            N = const N,
            out("zmm16") _,
            options(nostack, preserves_flags),
        )
    }
}

/// The widest streaming store in use, for reports.
pub(crate) fn width_name() -> &'static str {
    match width() {
        Width::Sse2 => "SSE2 (16 bytes)",
        Width::Avx2 => "AVX2 (32 bytes)",
        Width::Avx512 => "AVX-512 (64 bytes)",
    }
}

/// Copies `src` to `dst` past the cache, durable after the next [`fence`](crate::sys::flush::fence). Any alignment and
/// length; whole lines and 8-byte aligned words are fastest.
///
/// # Safety
/// `src.len()` bytes from `dst` are mapped writable and do not overlap `src`.
#[inline(always)]
pub(crate) unsafe fn copy_nt(dst: *mut u8, src: &[u8]) {
    if let (Ok(word), 0) = (<[u8; 8]>::try_from(src), dst as usize % 8) {
        // One word, which is what a bitmap is.
        // SAFETY: the caller's range, with `dst` aligned to a word.
        unsafe { _mm_stream_si64(dst.cast(), i64::from_ne_bytes(word)) }
    } else if (dst as usize | src.len()).is_multiple_of(LINE) {
        // Whole lines, which is what the engines write: kept short, for it is inlined where a fence is waited for.
        if src.len() <= INLINE_LINES * LINE {
            // SAFETY: the caller's range, with `dst` aligned to a line and the length a multiple of one.
            unsafe { lines_sse2(dst, src) }
        } else {
            // SAFETY: as above; `width` names only what this CPU has.
            unsafe { lines_wide(width(), dst, src) }
        }
    } else {
        // SAFETY: handed on from the caller.
        unsafe { copy_nt_ragged(dst, src) }
    }
}

/// [`copy_nt`] for ranges that do not begin and end with a line.
///
/// # Safety
/// As for [`copy_nt`].
#[inline(never)]
unsafe fn copy_nt_ragged(dst: *mut u8, src: &[u8]) {
    let head = (dst as usize).wrapping_neg() % LINE;
    let (head, rest) = src.split_at(head.min(src.len()));
    let (lines, tail) = rest.split_at(rest.len() - rest.len() % LINE);
    if !head.is_empty() {
        // SAFETY: the first part of the caller's range.
        unsafe { ragged(dst, head) }
    }
    let dst = dst.wrapping_add(head.len());
    if lines.len() <= INLINE_LINES * LINE {
        // SAFETY: the middle part of the caller's range, from a line boundary on, in whole lines.
        unsafe { lines_sse2(dst, lines) }
    } else {
        // SAFETY: as above, with a width the CPU has.
        unsafe { lines_wide(width(), dst, lines) }
    }
    if !tail.is_empty() {
        // SAFETY: the last part of the caller's range.
        unsafe { ragged(dst.wrapping_add(lines.len()), tail) }
    }
}

/// # Safety
/// `lines` is whole lines, `dst` is aligned to a line and valid for as many bytes, and the CPU has the width.
#[inline(never)]
unsafe fn lines_wide(width: Width, dst: *mut u8, lines: &[u8]) {
    match width {
        // SAFETY: handed on from the caller.
        Width::Sse2 => unsafe { lines_sse2(dst, lines) },
        // SAFETY: handed on from the caller.
        Width::Avx2 => unsafe { lines_avx2(dst, lines) },
        // SAFETY: handed on from the caller.
        Width::Avx512 => unsafe { lines_avx512(dst, lines) },
    }
}

/// [`copy_nt`] of the lines of `src` whose bit is set in `lines`, to the same places from `dst` on: what a page needs
/// whose slices are valid now in the one copy and now in the other. A line at a time, for a loop over runs would
/// mispredict the length of each.
///
/// # Safety
/// As for [`copy_nt`], for a range that reaches at least to the last of these lines.
#[inline(never)]
pub(crate) unsafe fn copy_nt_lines(dst: *mut u8, src: &[u8], lines: u64) {
    let wide = width() == Width::Avx512 && (dst as usize).is_multiple_of(LINE);
    let mut rest = lines;
    while rest != 0 {
        let at = rest.trailing_zeros() as usize * LINE;
        let (dst, line) = (dst.wrapping_add(at), &src[at..at + LINE]);
        if wide {
            // SAFETY: a line of the caller's range, at a line's boundary, and the CPU has the width.
            unsafe { lines_avx512(dst, line) }
        } else {
            // SAFETY: a line of the caller's range.
            unsafe { copy_nt(dst, line) }
        }
        rest &= rest - 1;
    }
}

/// The loop of whole lines with one width of load and store.
macro_rules! stream_lines {
    ($dst:ident, $lines:ident, $vector:ty, $load:ident, $stream:ident) => {
        let mut at = 0;
        // A plain counting loop: the stepping iterator of the standard library compiles to twice the instructions here.
        while at < $lines.len() {
            // SAFETY: `at` is below the length and both are multiples of the vector, so the load lies within `lines`;
            // it needs no alignment.
            let vector = unsafe { $load($lines.as_ptr().wrapping_add(at).cast::<$vector>()) };
            // SAFETY: the same range of `dst`, which is aligned to a line and hence to the vector.
            unsafe { $stream($dst.wrapping_add(at).cast::<$vector>(), vector) };
            at += size_of::<$vector>();
        }
    };
}

/// # Safety
/// `lines` is whole lines, and `dst` is aligned to a line and valid for as many bytes.
#[inline]
unsafe fn lines_sse2(dst: *mut u8, lines: &[u8]) {
    stream_lines!(dst, lines, __m128i, _mm_loadu_si128, _mm_stream_si128);
}

/// # Safety
/// As for [`lines_sse2`], and the CPU has AVX2.
#[target_feature(enable = "avx2")]
unsafe fn lines_avx2(dst: *mut u8, lines: &[u8]) {
    stream_lines!(dst, lines, __m256i, _mm256_loadu_si256, _mm256_stream_si256);
}

/// Written as instructions because the oldest supported compiler has no stable names for these. Registers above 15
/// leave the lower ones' upper halves clean, so no VZEROUPPER is due.
///
/// # Safety
/// As for [`lines_sse2`], and the CPU has AVX-512F.
unsafe fn lines_avx512(dst: *mut u8, lines: &[u8]) {
    let mut at = 0;
    while at < lines.len() {
        let (from, to) = (lines.as_ptr().wrapping_add(at), dst.wrapping_add(at));
        // SAFETY: `at` is below the length and both are multiples of a line, so load and store lie within the two
        // ranges, and the store is aligned. The one register used is declared.
        unsafe {
            asm!(
                "vmovdqu64 zmm16, [{from}]",
                "vmovntdq [{to}], zmm16",
                from = in(reg) from,
                to = in(reg) to,
                out("zmm16") _,
                options(nostack, preserves_flags),
            )
        }
        at += LINE;
    }
}

/// Copies less than a line, within one line. Words of 8 bytes are streamed; what isn't made of them is stored through
/// the cache and its line written back.
///
/// # Safety
/// `bytes.len()` bytes from `dst` are mapped writable, lie in one line and do not overlap `bytes`.
#[inline]
unsafe fn ragged(dst: *mut u8, bytes: &[u8]) {
    let (words, rest) = bytes.as_chunks::<8>();
    if rest.is_empty() && (dst as usize).is_multiple_of(8) {
        for (index, word) in words.iter().enumerate() {
            // SAFETY: an aligned word within the caller's range.
            unsafe { _mm_stream_si64(dst.wrapping_add(index * 8).cast(), i64::from_ne_bytes(*word)) }
        }
    } else {
        // SAFETY: the caller's range.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), dst, bytes.len()) };
        // SAFETY: the caller's range.
        unsafe { flush_lines(dst, bytes.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::flush::fence;

    fn widths() -> Vec<Width> {
        let mut widths = vec![Width::Sse2];
        widths.extend(is_x86_feature_detected!("avx2").then_some(Width::Avx2));
        widths.extend(is_x86_feature_detected!("avx512f").then_some(Width::Avx512));
        widths
    }

    #[repr(align(64))]
    struct Lines([u8; 640]);

    #[test]
    fn copy_nt_equals_a_plain_copy_at_every_offset_and_length() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 7 + 3) as u8).collect();
        for offset in 0..80 {
            for len in 0..300 {
                for skew in [0, 1, 8] {
                    let mut expected = Lines([0xEE; 640]);
                    expected.0[offset..offset + len].copy_from_slice(&source[skew..skew + len]);
                    let mut found = Lines([0xEE; 640]);
                    // SAFETY: offset and length stay below 640.
                    unsafe { copy_nt(found.0.as_mut_ptr().wrapping_add(offset), &source[skew..skew + len]) };
                    fence();
                    assert_eq!(found.0, expected.0, "offset {offset} len {len} skew {skew}");
                }
            }
        }
    }

    #[test]
    fn copy_nt_lines_stores_the_lines_of_the_set_and_no_others() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 11 + 5) as u8).collect();
        for lines in 0..512_u64 {
            for (offset, skew) in [(0, 0), (0, 3), (8, 0), (5, 1)] {
                let from = &source[skew..skew + 9 * LINE];
                let mut expected = Lines([0xEE; 640]);
                for n in (0..9).filter(|n| lines >> n & 1 != 0) {
                    let line = n * LINE..(n + 1) * LINE;
                    expected.0[offset..][line.clone()].copy_from_slice(&from[line]);
                }
                let mut found = Lines([0xEE; 640]);
                // SAFETY: nine lines from an offset below a line stay below 640.
                unsafe { copy_nt_lines(found.0.as_mut_ptr().wrapping_add(offset), from, lines) };
                fence();
                assert_eq!(found.0, expected.0, "lines {lines:#b} offset {offset} skew {skew}");
            }
        }
    }

    #[test]
    fn every_width_equals_a_plain_copy() {
        let source: Vec<u8> = (0..700u32).map(|i| (i * 5 + 1) as u8).collect();
        for width in widths() {
            for lines in 0..=8 {
                for skew in 0..64 {
                    let from = &source[skew..skew + lines * LINE];
                    let mut expected = Lines([0x55; 640]);
                    expected.0[LINE..LINE + from.len()].copy_from_slice(from);
                    let mut found = Lines([0x55; 640]);
                    // SAFETY: whole lines at a line's boundary within the buffer; the CPU has the width.
                    unsafe { lines_wide(width, found.0.as_mut_ptr().wrapping_add(LINE), from) };
                    fence();
                    assert_eq!(found.0, expected.0, "{width:?} lines {lines} skew {skew}");
                }
            }
        }
    }
}
