//! Sets of bytes as ranges: what was stored to, and what of it is committed.

use std::ops::Range;

/// Ranges, ascending, none of them empty and no two touching.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Runs(Vec<Range<u64>>);

impl Runs {
    pub(crate) const fn new() -> Self {
        Runs(Vec::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Range<u64>> {
        self.0.iter()
    }

    pub(crate) fn into_ranges(self) -> Vec<Range<u64>> {
        self.0
    }

    /// Bytes in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.iter().map(|run| run.end - run.start).sum()
    }

    /// Adds a range that begins at the last one's end or behind it.
    pub(crate) fn push(&mut self, range: Range<u64>) {
        debug_assert!(!range.is_empty() && self.0.last().is_none_or(|last| last.end <= range.start));
        match self.0.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.0.push(range),
        }
    }

    /// What is in either.
    pub(crate) fn union(&self, other: &Runs) -> Runs {
        let (mut a, mut b) = (self.0.iter().peekable(), other.0.iter().peekable());
        let mut union = Runs::new();
        loop {
            let next = match (a.peek(), b.peek()) {
                (Some(x), Some(y)) if y.start < x.start => b.next(),
                (Some(_), _) => a.next(),
                (None, _) => b.next(),
            };
            let Some(next) = next else { return union };
            match union.0.last_mut() {
                Some(last) if last.end >= next.start => last.end = last.end.max(next.end),
                _ => union.0.push(next.clone()),
            }
        }
    }

    /// What is in these ranges, which are ascending. The cost follows these and what is found there.
    pub(crate) fn within(&self, ranges: &[Range<u64>]) -> Runs {
        let mut found = Runs::new();
        for range in ranges {
            let first = self.0.partition_point(|run| run.end <= range.start);
            for run in self.0[first..].iter().take_while(|run| run.start < range.end) {
                found.push(run.start.max(range.start)..run.end.min(range.end));
            }
        }
        found
    }

    /// Adds what is in another set. The cost follows that one, if it is much smaller.
    pub(crate) fn add(&mut self, other: &Runs) {
        /// Ranges that a union goes through in the time of one search.
        const SEARCH: usize = 64;
        if other.0.len() > self.0.len() / SEARCH {
            *self = self.union(other);
            return;
        }
        for run in &other.0 {
            let first = self.0.partition_point(|before| before.end < run.start);
            let behind = self.0.partition_point(|before| before.start <= run.end);
            let joined = match self.0[first..behind] {
                [] => run.clone(),
                [ref one, ..] => one.start.min(run.start)..self.0[behind - 1].end.max(run.end),
            };
            self.0.splice(first..behind, [joined]);
        }
    }

    /// Ranges that cover this set, ascending and at least `gap` bytes from each other.
    pub(crate) fn coarsened(&self, gap: u64) -> Vec<Range<u64>> {
        let mut coarse: Vec<Range<u64>> = Vec::new();
        for run in &self.0 {
            match coarse.last_mut() {
                Some(last) if run.start - last.end < gap => last.end = run.end,
                _ => coarse.push(run.clone()),
            }
        }
        coarse
    }

    /// What is in this one and not in the other.
    pub(crate) fn without(&self, other: &Runs) -> Runs {
        let mut rest = Runs::new();
        let mut others = other.0.iter().peekable();
        for run in &self.0 {
            let mut from = run.start;
            while let Some(&hole) = others.peek()
                && hole.start < run.end
            {
                if from < hole.start {
                    rest.push(from..hole.start);
                }
                from = from.max(hole.end);
                if hole.end > run.end {
                    break; // it may reach into the next one
                }
                others.next();
            }
            if from < run.end {
                rest.push(from..run.end);
            }
        }
        rest
    }
}

impl FromIterator<Range<u64>> for Runs {
    /// Of ranges in ascending order; those that are empty are left out.
    fn from_iter<T: IntoIterator<Item = Range<u64>>>(ranges: T) -> Self {
        let mut runs = Runs::new();
        ranges.into_iter().filter(|range| !range.is_empty()).for_each(|range| runs.push(range));
        runs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(members: &[bool]) -> Runs {
        members.iter().enumerate().filter(|(_, member)| **member).map(|(at, _)| at as u64..at as u64 + 1).collect()
    }

    proptest! {
        #[test]
        fn they_are_sets(
            a in proptest::collection::vec(any::<bool>(), 24),
            b in proptest::collection::vec(any::<bool>(), 24),
        ) {
            let pairs = || a.iter().zip(&b);
            let both = |with: fn(bool, bool) -> bool| of(&pairs().map(|(a, b)| with(*a, *b)).collect::<Vec<_>>());
            prop_assert_eq!(of(&a).union(&of(&b)), both(|a, b| a || b));
            prop_assert_eq!(of(&a).without(&of(&b)), both(|a, b| a && !b));
            let mut added = of(&a);
            added.add(&of(&b));
            prop_assert_eq!(added, of(&a).union(&of(&b)));
            prop_assert_eq!(of(&a).within(&of(&b).into_ranges()), both(|a, b| a && b));
            prop_assert_eq!(of(&a).bytes(), a.iter().filter(|member| **member).count() as u64);
            let coarse: Runs = of(&a).coarsened(3).into_iter().collect();
            prop_assert!(of(&a).without(&coarse).is_empty());
            prop_assert!(coarse.0.windows(2).all(|pair| pair[1].start - pair[0].end >= 3));
            prop_assert_eq!(of(&a).is_empty(), a.iter().all(|member| !member));
        }

        /// Of many ranges, so that few are added one by one.
        #[test]
        fn a_few_added_to_many_are_their_union(
            many in proptest::collection::vec(any::<bool>(), 600..900),
            few in proptest::collection::vec(0..900_u64, 1..3),
        ) {
            let mut added = of(&many);
            for at in few {
                let few: Runs = std::iter::once(at..at + 1 + at % 5).collect();
                let union = added.union(&few);
                added.add(&few);
                prop_assert_eq!(&added, &union);
            }
        }
    }
}
