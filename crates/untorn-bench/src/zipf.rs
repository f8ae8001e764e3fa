//! Keys as a key-value store sees them: a few of them most of the time.

use crate::offsets::mix;

/// The skew: YCSB's constant.
const THETA: f64 = 0.99;

/// Draws ranks below a limit by Zipf's law, and scatters them over as many keys.
///
/// Source: Gray et al., "Quickly generating billion-record synthetic databases", SIGMOD 1994, as YCSB has it.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    count: u64,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// A distribution over this many keys, at least one.
    pub(crate) fn new(count: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let all = zeta(count);
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - zeta(2) / all);
        Zipf { count, zeta: all, alpha: 1.0 / (1.0 - THETA), eta }
    }

    /// The rank for a random number; rank 0 is drawn most often.
    fn rank(&self, random: u64) -> u64 {
        // A double holds 53 bits.
        let uniform = (random >> 11) as f64 / (1_u64 << 53) as f64;
        let at = uniform * self.zeta;
        let rank = if at < 1.0 {
            0
        } else if at < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            (self.count as f64 * (self.eta * uniform - self.eta + 1.0).powf(self.alpha)) as u64
        };
        rank.min(self.count - 1)
    }

    /// The key for a random number. Consecutive ranks have keys far apart.
    pub(crate) fn key(&self, random: u64) -> u64 {
        mix(self.rank(random)) % self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_follow_zipfs_law_and_keys_stay_below_the_limit() {
        let zipf = Zipf::new(10_000);
        let draws: Vec<u64> = (0..100_000).map(|n| zipf.rank(mix(n))).collect();
        let share = |below: u64| draws.iter().filter(|&&rank| rank < below).count() as f64 / draws.len() as f64;
        // By the law: of 10,000 the first takes 9.8 %, the first hundred 52 %.
        assert!((0.08..0.12).contains(&share(1)), "{}", share(1));
        assert!((0.45..0.60).contains(&share(100)), "{}", share(100));
        assert!((0..1000).all(|n| zipf.key(mix(n)) < 10_000));
    }

    /// Evenly spaced numbers in place of random ones leave no sampling error. The first two ranks are exact. The
    /// formula for the others is off by at most 1.5 % of all draws at any rank, as in YCSB.
    #[test]
    fn shares_of_the_first_ranks_are_those_of_the_law() {
        const DRAWS: u64 = 200_000;
        let zipf = Zipf::new(10_000);
        let mut ranks: Vec<u64> = (0..DRAWS).map(|n| zipf.rank((2 * n + 1) * (u64::MAX / (2 * DRAWS)))).collect();
        ranks.sort_unstable();
        let weight = |ranks: u64| (1..=ranks).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        for below in [1, 2, 3, 10, 100, 1000, 5000] {
            let margin = if below <= 2 { 1e-4 } else { 0.015 };
            let drawn = ranks.partition_point(|&rank| rank < below) as f64 / DRAWS as f64;
            let law = weight(below) / weight(10_000);
            assert!((drawn - law).abs() < margin, "below {below}: {drawn} of {law}");
        }
    }

    #[test]
    fn one_and_two_keys_are_enough() {
        for count in [1, 2, 3] {
            let zipf = Zipf::new(count);
            assert!((0..1000).chain([u64::MAX]).all(|n| zipf.rank(mix(n)) < count && zipf.key(n) < count));
        }
        assert_eq!(Zipf::new(1).rank(u64::MAX), 0);
    }
}
