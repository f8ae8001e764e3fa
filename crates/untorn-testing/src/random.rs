//! Random choices that can be repeated, and how many of them a test makes.

use std::time::SystemTime;

/// The generator SplitMix64: small, fast, and its whole state is the seed.
///
/// ```
/// let mut rng = untorn_testing::SplitMix::new(1);
/// assert_eq!(rng.next_u64(), 0x910a_2dec_8902_5cc1);
/// assert!(rng.below(10) < 10);
/// ```
///
/// Source: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// A generator whose numbers all follow from `seed`.
    pub fn new(seed: u64) -> Self {
        SplitMix(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    ///
    /// # Panics
    ///
    /// Panics if `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }
}

/// The seed for a test, printed so that a failure can be repeated: the number in `UNTORN_SEED`; a new one each time
/// with `UNTORN_SEED=clock`; otherwise always the same, so that two runs of the tests do the same.
///
/// # Panics
///
/// Panics if `UNTORN_SEED` is neither a number nor `clock`.
pub fn seed(test: &str) -> u64 {
    let clock = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64);
    let seed = match std::env::var("UNTORN_SEED") {
        Ok(word) if word == "clock" => clock(),
        Ok(word) => word.parse().expect("UNTORN_SEED is a number or the word clock"),
        Err(_) => 0x756e_746f_726e,
    };
    eprintln!("{test}: UNTORN_SEED={seed}");
    seed
}

/// How many cases a test tries: `short`, or `long` with `UNTORN_LONG=1`, which `cargo xtask nightly` sets.
pub fn cases<T>(short: T, long: T) -> T {
    if std::env::var_os("UNTORN_LONG").is_some_and(|value| value != "0") { long } else { short }
}
