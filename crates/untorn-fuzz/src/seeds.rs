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

/// 32 inputs of any bytes; `choose` sets the first ones of the nth. The first has `shortest` bytes, and each other one
/// `step` more than the one before.
fn spread(seed: u64, shortest: usize, step: usize, choose: impl Fn(&mut [u8], u8)) -> Vec<Vec<u8>> {
    let mut rng = Rng::new(seed);
    let input = |n: u8| {
        let mut bytes = vec![0; shortest + usize::from(n) * step];
        rng.fill(&mut bytes);
        choose(&mut bytes, n);
        bytes
    };
    (0..32).map(input).collect()
}

/// For a spread of configurations, some operations.
pub(crate) fn operations() -> Vec<Vec<u8>> {
    // Neighbours differ in medium, durability, order, layout and policy.
    spread(2, 20, 4, |bytes, n| bytes[0] = bytes[0] & 0xe0 | n)
}

/// For each honest companion file, some changes.
pub(crate) fn companions() -> Vec<Vec<u8>> {
    spread(3, 8, 4, |bytes, n| bytes[..2].copy_from_slice(&[n, n / 8 * 4]))
}

/// For each honest log, some changes.
pub(crate) fn logs() -> Vec<Vec<u8>> {
    spread(4, 8, 4, |bytes, n| bytes[..3].copy_from_slice(&[n, n / 8 * 4, n / 2]))
}

/// For each honest region store, some changes.
pub(crate) fn regions() -> Vec<Vec<u8>> {
    spread(5, 20, 5, |bytes, n| bytes[..2].copy_from_slice(&[n, n / 4]))
}

/// For each backup of a chain, some changes.
pub(crate) fn manifests() -> Vec<Vec<u8>> {
    // Every other one is sealed anew, and of some the backup has other bytes.
    spread(7, 6, 3, |bytes, n| bytes[..3].copy_from_slice(&[n, (n / 3 % 2) | (n / 12 * 2), n % 4]))
}

/// For each honest commit log, some changes.
pub(crate) fn commits() -> Vec<Vec<u8>> {
    spread(8, 8, 3, |bytes, n| bytes[..2].copy_from_slice(&[n, n / 8 * 2 + 1]))
}

/// For a replica of three epochs, some changes.
pub(crate) fn replicas() -> Vec<Vec<u8>> {
    // The first is honest, and every other one begins with an object that is sealed anew.
    spread(9, 12, 5, |bytes, n| (bytes[0], bytes[3]) = (n % 6, bytes[3] & 0x7f | n << 7))
}
