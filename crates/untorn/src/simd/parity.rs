//! Exclusive or of whole pages.

use super::{Parity, Read, Way};

/// Bytes that are combined at a time: a cache line.
const LINE: usize = 64;

/// `dst ^= src`, byte for byte.
///
/// # Panics
/// If the two are not equally long.
pub(crate) fn xor(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "parity is of pages of one size");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has just been found to have AVX2.
        return unsafe { xor_avx2(dst, src) };
    }
    xor_portable(dst, src);
}

/// `dst` becomes the exclusive or of pages, of none zeros.
///
/// # Panics
/// If they are not all as long as it.
pub(crate) fn parity(dst: &mut [u8], pages: &[&[u8]]) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has just been found to have AVX2.
        return unsafe { parity_avx2(dst, pages) };
    }
    parity_portable(dst, pages);
}

/// See [`parity_ways`](super::parity_ways).
pub(super) fn ways() -> Vec<Way<Parity>> {
    let mut ways: Vec<Way<Parity>> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        ways.push(Way { name: "avx2", run: parity });
    }
    ways.push(Way { name: "portable", run: parity_portable });
    ways
}

/// See [`read_ways`](super::read_ways).
pub(super) fn read_ways() -> Vec<Way<Read>> {
    let mut ways: Vec<Way<Read>> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the CPU has just been found to have AVX2.
        ways.push(Way { name: "avx2", run: |bytes| unsafe { read_avx2(bytes) } });
    }
    ways.push(Way { name: "portable", run: read_portable });
    ways
}

/// The portable path again, compiled for registers of 32 bytes.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn xor_avx2(dst: &mut [u8], src: &[u8]) {
    xor_portable(dst, src);
}

/// As [`xor_avx2`].
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn parity_avx2(dst: &mut [u8], pages: &[&[u8]]) {
    parity_portable(dst, pages);
}

/// As [`xor_avx2`].
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn read_avx2(bytes: &[u8]) -> u64 {
    read_portable(bytes)
}

#[inline(always)]
fn xor_portable(dst: &mut [u8], src: &[u8]) {
    let (wide, rest) = dst.as_chunks_mut::<LINE>();
    let (from, from_rest) = src.as_chunks::<LINE>();
    for (dst, src) in wide.iter_mut().zip(from) {
        for (dst, src) in dst.iter_mut().zip(src) {
            *dst ^= src;
        }
    }
    for (dst, src) in rest.iter_mut().zip(from_rest) {
        *dst ^= src;
    }
}

#[inline(always)]
fn parity_portable(dst: &mut [u8], pages: &[&[u8]]) {
    assert!(pages.iter().all(|page| page.len() == dst.len()), "parity is of pages of one size");
    // One page after the other: the CPU fetches ahead where memory is read in order, and what is written stays in its
    // nearest cache meanwhile.
    match pages.split_first() {
        None => dst.fill(0),
        Some((first, rest)) => {
            dst.copy_from_slice(first);
            rest.iter().for_each(|page| xor_portable(dst, page));
        }
    }
}

#[inline(always)]
fn read_portable(bytes: &[u8]) -> u64 {
    let (lines, rest) = bytes.as_chunks::<LINE>();
    let mut sums = [0_u8; LINE];
    for line in lines {
        for (sum, byte) in sums.iter_mut().zip(line) {
            *sum ^= byte;
        }
    }
    for (sum, byte) in sums.iter_mut().zip(rest) {
        *sum ^= byte;
    }
    let (words, _) = sums.as_chunks::<8>();
    words.iter().fold(0, |sum, word| sum ^ u64::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_way_to_fold_is_the_plain_one(
            pairs in proptest::collection::vec(any::<(u8, u8)>(), 0..600),
            skip in 0..7_usize,
        ) {
            let skip = skip.min(pairs.len());
            let (a, b): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            let expected: Vec<u8> = a.iter().zip(&b).skip(skip).map(|(a, b)| a ^ b).collect();
            let (mut dispatched, mut portable) = (a.clone(), a);
            xor(&mut dispatched[skip..], &b[skip..]);
            xor_portable(&mut portable[skip..], &b[skip..]);
            prop_assert_eq!(&dispatched[skip..], &expected[..]);
            prop_assert_eq!(&portable[skip..], &expected[..]);
        }

        #[test]
        fn parity_is_the_fold_of_any_number_of_pages(
            bytes in proptest::collection::vec(any::<u8>(), 0..3000),
            pages in 0..10_usize,
            garbage in any::<u8>(),
        ) {
            let len = bytes.len().checked_div(pages).unwrap_or(100);
            let pages: Vec<&[u8]> = (0..pages).map(|nth| &bytes[nth * len..][..len]).collect();
            let expected: Vec<u8> = (0..len).map(|at| pages.iter().fold(0, |sum, page| sum ^ page[at])).collect();
            for way in ways() {
                let mut parity = vec![garbage; len];
                (way.run)(&mut parity, &pages);
                prop_assert_eq!(&parity, &expected, "{}", way.name);
            }
        }

        #[test]
        fn every_way_to_read_reads_all(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let expected = bytes.chunks(8).fold(0, |sum, word| {
                let mut whole = [0; 8];
                whole[..word.len()].copy_from_slice(word);
                sum ^ u64::from_le_bytes(whole)
            });
            for way in read_ways() {
                prop_assert_eq!((way.run)(&bytes), expected, "{}", way.name);
            }
        }
    }
}
