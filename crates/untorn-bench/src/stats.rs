//! Medians and quartiles, which are robust against noise from other programs.

/// The value below which the share `q` of the values lies, interpolated. 0 for none.
pub(crate) fn quantile(values: &[f64], q: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = q * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

/// The middle value; the mean of the two middle ones if there is an even number.
pub(crate) fn median(values: &[f64]) -> f64 {
    quantile(values, 0.5)
}

/// A ratio measured many times: its median and quartiles.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) median: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The ratios of two arms, round by round. Both sides of a ratio are measured within a few milliseconds, so a temporary
/// slowdown of the machine changes none of them.
pub(crate) fn pairwise(numerators: &[f64], denominators: &[f64]) -> Ratio {
    let ratios: Vec<f64> = numerators.iter().zip(denominators).map(|(a, b)| a / b).collect();
    Ratio { median: median(&ratios), low: quantile(&ratios, 0.25), high: quantile(&ratios, 0.75) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[5.0]), 5.0);
        assert_eq!(median(&[]), 0.0);
    }

    #[test]
    fn quartiles_interpolate() {
        assert_eq!(quantile(&[0.0, 1.0, 2.0, 3.0, 4.0], 0.25), 1.0);
        assert_eq!(quantile(&[0.0, 2.0], 0.25), 0.5);
        assert_eq!(quantile(&[0.0, 2.0], 1.0), 2.0);
    }

    #[test]
    fn a_slow_spell_that_hits_both_arms_moves_no_ratio() {
        let raw = [100.0, 100.0, 10.0, 100.0, 100.0];
        let ours = [50.0, 50.0, 5.0, 50.0, 50.0];
        assert_eq!(pairwise(&ours, &raw), Ratio { median: 0.5, low: 0.5, high: 0.5 });
    }

    #[test]
    fn a_slow_spell_that_hits_one_arm_once_moves_no_median() {
        let raw = [100.0, 100.0, 100.0, 100.0, 100.0];
        let ours = [50.0, 50.0, 5.0, 50.0, 50.0];
        assert_eq!(pairwise(&ours, &raw).median, 0.5);
    }
}
