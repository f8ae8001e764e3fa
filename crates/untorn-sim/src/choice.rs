//! [`Choice`]: which pending effects survive one crash; all of them in turn, or samples.

use crate::rng::{Rng, mix};

/// Effects that survive or are lost together, independently of every other unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unit {
    /// 2 for something that is there or not; one more than the stores to it for a line or sector.
    pub(crate) versions: u16,
    /// The last call with a part in it.
    pub(crate) call: u64,
    /// A muted barrier would have made it certain.
    pub(crate) stale: bool,
    /// Its next version may have been caught half copied.
    pub(crate) tears: bool,
}

/// For each unit, how many of its effects survive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    kept: Vec<u16>,
    /// One unit, and how many bytes of its next effect were copied, counted from the word the effect starts in.
    torn: Option<(usize, u32)>,
}

impl Choice {
    pub(crate) fn everything(units: &[Unit]) -> Self {
        Choice { kept: units.iter().map(|unit| unit.versions - 1).collect(), torn: None }
    }

    pub(crate) fn nothing(units: &[Unit]) -> Self {
        Choice { kept: vec![0; units.len()], torn: None }
    }

    /// Whether an effect survives.
    pub(crate) fn keeps(&self, decided: Option<(usize, u16)>) -> bool {
        decided.is_none_or(|(unit, threshold)| self.kept[unit] > threshold)
    }

    /// How much of an effect survives that does not survive whole.
    pub(crate) fn tears(&self, decided: Option<(usize, u16)>) -> Option<u32> {
        let (unit, bytes) = self.torn?;
        let (mine, threshold) = decided?;
        (mine == unit && self.kept[unit] == threshold).then_some(bytes)
    }

    /// A number that tells this choice from others.
    pub(crate) fn digest(&self) -> u64 {
        let torn = self.torn.map_or(0, |(unit, bytes)| mix((unit as u64) << 32 | u64::from(bytes)));
        self.kept.iter().fold(torn, |hash, &kept| mix(hash.wrapping_add(u64::from(kept) + 1)))
    }

    /// A random choice. Uniform ones rarely hit the mistakes engines make, so most are of a shape that a wrong order
    /// of two stores shows in: one call against the rest, early against late, all but one word.
    pub(crate) fn sample(units: &[Unit], rng: &mut Rng) -> Self {
        let mut choice = Choice::everything(units);
        if units.is_empty() {
            return choice;
        }
        let any = |unit: &Unit, rng: &mut Rng| rng.below(u64::from(unit.versions)) as u16;
        let stale = units.iter().any(|unit| unit.stale);
        let one = rng.below(units.len() as u64) as usize;
        let call = units[one].call;
        match if stale && rng.one_in(3) { 100 } else { rng.below(14) } {
            0 => choice = Choice::nothing(units),
            1 => {}
            // All but one, and one only.
            2 | 3 => choice.kept[one] = rng.below(u64::from(units[one].versions - 1)) as u16,
            4 => {
                choice = Choice::nothing(units);
                choice.kept[one] = 1 + rng.below(u64::from(units[one].versions - 1)) as u16;
            }
            // The effects before an instant survive, or those after it.
            5 | 6 => {
                let before = rng.one_in(2);
                for (kept, unit) in choice.kept.iter_mut().zip(units) {
                    if (unit.call <= call) != before {
                        *kept = any(unit, rng) / 2;
                    }
                }
            }
            // One call whole, in part, or lost, against all others kept or lost.
            7..=10 => {
                let others = rng.below(3) > 0;
                let mine = rng.below(3);
                for (kept, unit) in choice.kept.iter_mut().zip(units) {
                    let full = unit.versions - 1;
                    *kept = match (unit.call == call, mine) {
                        (true, 0) => 0,
                        (true, 1) => full,
                        (true, _) => any(unit, rng),
                        (false, _) => full * u16::from(others),
                    };
                }
            }
            // Each call whole, in part, or lost.
            11 | 12 => {
                let seed = rng.next_u64();
                for (kept, unit) in choice.kept.iter_mut().zip(units) {
                    *kept = match mix(seed ^ unit.call) % 3 {
                        0 => 0,
                        1 => unit.versions - 1,
                        _ => any(unit, rng),
                    };
                }
            }
            // The effects that the muted barrier did not make certain are lost, whole or in part, and all else is
            // kept.
            100 => {
                let part = rng.one_in(2);
                for (kept, unit) in choice.kept.iter_mut().zip(units).filter(|(_, unit)| unit.stale) {
                    *kept = if part { any(unit, rng) } else { 0 };
                }
            }
            _ => {
                for (kept, unit) in choice.kept.iter_mut().zip(units) {
                    *kept = any(unit, rng);
                }
            }
        }
        // Or it is lost together with some of the rest: the effects that it was to precede may have arrived in part.
        if stale && rng.one_in(2) {
            for (kept, _) in choice.kept.iter_mut().zip(units).filter(|(_, unit)| unit.stale) {
                *kept = 0;
            }
        }
        if units[one].tears && choice.kept[one] < units[one].versions - 1 && rng.one_in(3) {
            choice.torn = Some((one, 8 * (1 + rng.below(63) as u32)));
        }
        choice
    }
}

/// All choices, counted through like the digits of a number.
#[derive(Clone, Debug)]
pub struct Choices {
    versions: Vec<u16>,
    next: Option<Vec<u16>>,
}

impl Choices {
    pub(crate) fn new(versions: Vec<u16>) -> Self {
        let next = Some(vec![0; versions.len()]);
        Choices { versions, next }
    }
}

impl Iterator for Choices {
    type Item = Choice;

    fn next(&mut self) -> Option<Choice> {
        let kept = self.next.take()?;
        let mut following = kept.clone();
        for (digit, versions) in following.iter_mut().zip(&self.versions) {
            *digit += 1;
            if *digit < *versions {
                self.next = Some(following);
                break;
            }
            *digit = 0;
        }
        Some(Choice { kept, torn: None })
    }
}
