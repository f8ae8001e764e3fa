//! Inputs for a fuzzer to begin with. They are committed in `fuzz/corpus`, and made anew by
//! `cargo xtask fuzz --seed-corpus`.

use untorn_sim::Rng;

use crate::forge::Kind;

/// For each honest sidecar, of either engine: one left as it is, one with a single change of each kind, and one with
/// many.
pub(crate) fn forged(chosen: u64, kinds: &[Kind]) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    let mut rng = Rng::new(chosen);
    // As many as there are honest ones of either engine.
    for pair in 0..8 {
        seeds.push(vec![pair]);
        for changes in [1, 1, 5] {
            let mut bytes = vec![0; 24 + 24 * usize::from(changes)];
            rng.fill(&mut bytes);
            bytes[0] = pair;
            bytes[1] = changes;
            bytes[2] = rng.below(kinds.len() as u64) as u8;
            seeds.push(bytes);
        }
    }
    seeds
}

/// For a spread of configurations, some operations.
pub(crate) fn operations() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(2);
    let seed = |n: u8| {
        let mut bytes = vec![0; 20 + usize::from(n) * 4];
        rng.fill(&mut bytes);
        // Neighbours differ in medium, durability, order, layout and policy.
        bytes[0] = bytes[0] & 0xe0 | n;
        bytes
    };
    (0..32).map(seed).collect()
}

/// For each honest companion file, some changes.
pub(crate) fn companions() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(3);
    let seed = |n: u8| {
        let mut bytes = vec![0; 8 + usize::from(n) * 4];
        rng.fill(&mut bytes);
        bytes[0] = n;
        bytes[1] = n / 8 * 4;
        bytes
    };
    (0..32).map(seed).collect()
}

/// For each honest log, some changes.
pub(crate) fn logs() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(4);
    let seed = |n: u8| {
        let mut bytes = vec![0; 8 + usize::from(n) * 4];
        rng.fill(&mut bytes);
        bytes[0] = n;
        bytes[1] = n / 8 * 4;
        bytes[2] = n / 2;
        bytes
    };
    (0..32).map(seed).collect()
}

/// For each honest region store, some changes.
pub(crate) fn regions() -> Vec<Vec<u8>> {
    let mut rng = Rng::new(5);
    let seed = |n: u8| {
        let mut bytes = vec![0; 20 + usize::from(n) * 5];
        rng.fill(&mut bytes);
        bytes[0] = n;
        bytes[1] = n / 4;
        bytes
    };
    (0..32).map(seed).collect()
}
