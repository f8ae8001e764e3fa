//! What the CPU was found to have, used at run time, beside a portable path that gives the same bytes.
//!
//! # Safety
//! The one unsafe call runs a function compiled for AVX2, after the CPU was asked whether it has it.
#![allow(unsafe_code)]

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

/// The portable path again, compiled for registers of 32 bytes.
///
/// # Safety
/// The CPU has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn xor_avx2(dst: &mut [u8], src: &[u8]) {
    xor_portable(dst, src);
}

#[inline(always)]
fn xor_portable(dst: &mut [u8], src: &[u8]) {
    let (wide, rest) = dst.as_chunks_mut::<64>();
    let (from, from_rest) = src.as_chunks::<64>();
    for (dst, src) in wide.iter_mut().zip(from) {
        for (dst, src) in dst.iter_mut().zip(src) {
            *dst ^= src;
        }
    }
    for (dst, src) in rest.iter_mut().zip(from_rest) {
        *dst ^= src;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_path_is_the_plain_one(pairs in proptest::collection::vec(any::<(u8, u8)>(), 0..600), skip in 0..7_usize) {
            let skip = skip.min(pairs.len());
            let (a, b): (Vec<u8>, Vec<u8>) = pairs.into_iter().unzip();
            let expected: Vec<u8> = a.iter().zip(&b).skip(skip).map(|(a, b)| a ^ b).collect();
            let (mut dispatched, mut portable) = (a.clone(), a);
            xor(&mut dispatched[skip..], &b[skip..]);
            xor_portable(&mut portable[skip..], &b[skip..]);
            prop_assert_eq!(&dispatched[skip..], &expected[..]);
            prop_assert_eq!(&portable[skip..], &expected[..]);
        }
    }
}
