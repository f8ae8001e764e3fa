//! Generators of database workloads: the same operations for every system that a benchmark compares.
//!
//! They know nothing of a database: [`ycsb`] and [`tpcc`] say what to do, and the benchmark of a system does it. Each
//! client has a generator with a seed of its own, so that a run can be repeated.

pub(crate) mod tpcc;
pub(crate) mod ycsb;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

/// The random numbers of one client.
pub(crate) fn generator(seed: u64, client: u64) -> SmallRng {
    SmallRng::seed_from_u64(crate::offsets::mix(seed ^ crate::offsets::mix(client)))
}

/// Random letters and digits.
pub(crate) fn text(rng: &mut SmallRng, len: usize) -> String {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    (0..len).map(|_| char::from(LETTERS[rng.random_range(0..LETTERS.len())])).collect()
}
