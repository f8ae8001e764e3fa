//! The offsets a workload visits, generated as it runs.
//!
//! All arms draw from the same generator with the same seed, so that its cost and its cache effects are the same on
//! both sides of a ratio.

use crate::args::Pattern;

/// An endless walk over the aligned places of one region of a file.
#[derive(Clone, Debug)]
pub(crate) struct Offsets {
    base: u64,
    step: u64,
    count: u64,
    walk: Walk,
}

#[derive(Clone, Debug)]
enum Walk {
    /// The state of a xorshift generator, never 0.
    Random(u64),
    /// The next place, and the stride to the one after. The stride is coprime to the number of places, so the walk
    /// visits each place once before it repeats.
    Stride { next: u64, stride: u64 },
}

/// A part of a file: the pages of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) base: u64,
    pub(crate) len: u64,
}

impl Region {
    /// The pages of one of `threads` threads: disjoint, equal, and together almost the whole file.
    pub(crate) fn of_thread(file_len: u64, thread: usize, threads: usize) -> Self {
        let len = file_len / 4096 / threads as u64 * 4096;
        Region { base: thread as u64 * len, len }
    }
}

impl Offsets {
    /// Places of `size` bytes by `pattern`. Walks of different `seed` start at different places.
    pub(crate) fn new(pattern: Pattern, region: Region, size: usize, seed: u64) -> Self {
        let step = size as u64;
        let count = region.len / step;
        let walk = match pattern {
            Pattern::Random => Walk::Random(mix(seed) | 1),
            Pattern::Sequential => Walk::Stride { next: mix(seed) % count, stride: 1 },
        };
        Offsets { base: region.base, step, count, walk }
    }

    /// Places of `size` bytes on separate pages, each visited once, starting with the `skip`th.
    pub(crate) fn each_page(pattern: Pattern, region: Region, size: usize, skip: u64) -> Self {
        let step = size.next_multiple_of(4096) as u64;
        let count = region.len / step;
        let stride = match pattern {
            Pattern::Random => scattered_stride(count),
            Pattern::Sequential => 1,
        };
        let next = (u128::from(skip) * u128::from(stride) % u128::from(count)) as u64;
        Offsets { base: region.base, step, count, walk: Walk::Stride { next, stride } }
    }

    /// The next offset.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> u64 {
        let index = match &mut self.walk {
            Walk::Random(state) => {
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                // The high word of the product is uniform over the places and costs no division.
                ((u128::from(*state) * u128::from(self.count)) >> 64) as u64
            }
            Walk::Stride { next, stride } => {
                let index = *next;
                *next += *stride;
                if *next >= self.count {
                    *next -= self.count;
                }
                index
            }
        };
        self.base + index * self.step
    }
}

/// A stride coprime to `count` and near its golden section, so that consecutive accesses are far apart in the file.
fn scattered_stride(count: u64) -> u64 {
    let golden = (count as f64 * 0.618_033_988_749_895) as u64;
    (golden.max(1)..).find(|&stride| gcd(stride, count) == 1).unwrap_or(1) % count.max(2)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Mixes the bits of a small number, so that neighbouring seeds give unrelated walks.
pub(crate) fn mix(seed: u64) -> u64 {
    untorn_sim::Rng::new(seed).next_u64()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const REGION: Region = Region { base: 8192, len: 64 * 4096 };

    #[test]
    fn offsets_are_aligned_and_inside_the_region() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            for size in [64, 100, 4096] {
                let mut offsets = Offsets::new(pattern, REGION, size, 7);
                for _ in 0..10_000 {
                    let offset = offsets.next();
                    assert_eq!((offset - REGION.base) % size as u64, 0);
                    assert!(offset >= REGION.base && offset + size as u64 <= REGION.base + REGION.len);
                }
            }
        }
    }

    #[test]
    fn random_offsets_reach_every_page() {
        let mut offsets = Offsets::new(Pattern::Random, REGION, 64, 3);
        let pages: HashSet<u64> = (0..10_000).map(|_| offsets.next() / 4096).collect();
        assert_eq!(pages.len(), 64);
    }

    #[test]
    fn each_page_comes_once_and_a_later_start_continues() {
        for pattern in [Pattern::Random, Pattern::Sequential] {
            for pages in [1, 2, 3, 64, 97] {
                let region = Region { base: 4096, len: pages * 4096 };
                let mut whole = Offsets::each_page(pattern, region, 64, 0);
                let walk: Vec<u64> = (0..pages).map(|_| whole.next()).collect();
                assert_eq!(walk.iter().collect::<HashSet<_>>().len() as u64, pages);
                let mut late = Offsets::each_page(pattern, region, 64, pages / 2);
                assert_eq!(late.next(), walk[(pages / 2) as usize]);
            }
        }
    }

    #[test]
    fn threads_have_pages_of_their_own() {
        let regions: Vec<Region> = (0..3).map(|thread| Region::of_thread(10 * 4096, thread, 3)).collect();
        assert_eq!(regions[0], Region { base: 0, len: 3 * 4096 });
        assert_eq!(regions[1].base, regions[0].len);
        assert_eq!(regions[2].base + regions[2].len, 9 * 4096);
    }
}
