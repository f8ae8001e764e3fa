//! Seeded randomness: the same seed gives the same operations on every machine.

use std::hash::{BuildHasher, Hasher, RandomState};

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and any seed is a good one.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// From one seed.
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// From several numbers; their order matters.
    pub(crate) fn from_parts(parts: &[u64]) -> Self {
        let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
        for part in parts {
            rng.0 = rng.next() ^ part;
        }
        rng
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which must not be 0. The bias of the remainder does not matter for picking work.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Fills `buf`.
    pub(crate) fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}

/// A random seed. The caller prints it.
pub(crate) fn fresh_seed() -> u64 {
    // The standard library seeds each hasher from the system's randomness: enough for a seed, and no dependency.
    RandomState::new().build_hasher().finish() >> 16
}
