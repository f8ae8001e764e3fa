//! A set of numbers below a limit.

/// A set of numbers below a limit, one bit for each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bits {
    words: Vec<u64>,
    members: u64,
}

impl Bits {
    pub(super) fn new(limit: u64) -> Self {
        Bits { words: vec![0; limit.div_ceil(64) as usize], members: 0 }
    }

    pub(super) fn has(&self, number: u64) -> bool {
        self.words[(number / 64) as usize] >> (number % 64) & 1 == 1
    }

    /// Puts a number in, or takes it out. True if that changed anything.
    pub(super) fn put(&mut self, number: u64, member: bool) -> bool {
        if self.has(number) == member {
            return false;
        }
        self.words[(number / 64) as usize] ^= 1 << (number % 64);
        if member {
            self.members += 1;
        } else {
            self.members -= 1;
        }
        true
    }

    pub(super) fn count(&self) -> u64 {
        self.members
    }

    /// All members, ascending.
    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.iter_from(0)
    }

    /// Those that are not below a number, ascending.
    pub(super) fn iter_from(&self, from: u64) -> impl Iterator<Item = u64> {
        let first = (from / 64).min(self.words.len() as u64);
        self.words[first as usize..].iter().zip(first..).flat_map(move |(word, at)| {
            let below = if at == from / 64 { (1 << (from % 64)) - 1 } else { 0 };
            let mut word = *word & !below;
            std::iter::from_fn(move || {
                let next = (word != 0).then(|| at * 64 + u64::from(word.trailing_zeros()))?;
                word &= word - 1;
                Some(next)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_are_a_set(changes in proptest::collection::vec((0..200_u64, any::<bool>()), 0..100)) {
            let (mut bits, mut set) = (Bits::new(200), BTreeSet::new());
            for (number, member) in changes {
                let changed = if member { set.insert(number) } else { set.remove(&number) };
                prop_assert_eq!(bits.put(number, member), changed);
                prop_assert_eq!(bits.has(number), member);
            }
            prop_assert_eq!(bits.count(), set.len() as u64);
            prop_assert!(bits.iter().eq(set.iter().copied()));
            for from in [0, 1, 63, 64, 130, 199, 200, 256, 1000] {
                prop_assert!(bits.iter_from(from).eq(set.range(from..).copied()));
            }
        }
    }
}
