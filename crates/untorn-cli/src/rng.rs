//! Seeded randomness: the same seed gives the same operations on every machine.

use std::hash::{BuildHasher, Hasher, RandomState};

/// The generator of the simulator. A number below a bound is its remainder here, so that a printed seed goes on meaning
/// the same operations.
#[derive(Clone, Debug)]
pub(crate) struct Rng(untorn_sim::Rng);

impl Rng {
    /// From one seed.
    pub(crate) fn new(seed: u64) -> Self {
        Rng(untorn_sim::Rng::new(seed))
    }

    /// From several numbers; their order matters.
    pub(crate) fn from_parts(parts: &[u64]) -> Self {
        Rng::new(parts.iter().fold(0x9e37_79b9_7f4a_7c15, |seed, part| Rng::new(seed).next() ^ part))
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0.next_u64()
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
        self.0.fill(buf);
    }
}

/// A random seed. The caller prints it.
pub(crate) fn fresh_seed() -> u64 {
    // The standard library seeds each hasher from the system's randomness: enough for a seed, and no dependency.
    RandomState::new().build_hasher().finish() >> 16
}
