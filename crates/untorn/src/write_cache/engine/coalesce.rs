//! Coalesces many writes to one file: for each byte, only the last write remains.

use std::collections::BTreeMap;

/// A run of bytes, and where they come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// Where they go.
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Which of the writes has them.
    pub(super) write: usize,
    /// How far into the write they begin.
    pub(super) skip: u64,
}

/// What is seen of these writes, given as offset and length, the oldest first; in ascending order.
pub(super) fn visible(writes: &[(u64, u64)]) -> Vec<Run> {
    // Runs by where they begin; none overlaps another. From the newest to the oldest each fills what is left.
    let mut runs: BTreeMap<u64, Run> = BTreeMap::new();
    for (write, &(offset, len)) in writes.iter().enumerate().rev() {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            let before = runs.range(..=at).next_back().map(|(_, run)| run.offset + run.len);
            if let Some(taken) = before.filter(|&taken| taken > at) {
                at = taken;
                continue;
            }
            let next = runs.range(at..).next().map_or(end, |(&next, _)| next.min(end));
            runs.insert(at, Run { offset: at, len: next - at, write, skip: at - offset });
            at = next;
        }
    }
    runs.into_values().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn visible_runs_are_the_last_writes(writes in prop::collection::vec((0u64..200, 0u64..80), 0..20)) {
            let mut expected = [None; 300];
            for (write, &(offset, len)) in writes.iter().enumerate() {
                for n in 0..len {
                    expected[(offset + n) as usize] = Some((write, n));
                }
            }
            let mut found = [None; 300];
            let mut last = 0;
            for run in visible(&writes) {
                prop_assert!(run.offset >= last && run.len > 0);
                last = run.offset + run.len;
                for n in 0..run.len {
                    found[(run.offset + n) as usize] = Some((run.write, run.skip + n));
                }
            }
            prop_assert_eq!(expected, found);
        }
    }
}
