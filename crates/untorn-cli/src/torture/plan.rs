//! The layout of the file under test and the operations on it, all derived from a seed.
//!
//! The file is divided into blocks of 16 bytes to several pages, back to back and at odd offsets, so that neighbours
//! share pages and slices. Each thread owns some blocks; all threads share the rest. A write fills whole blocks with
//! the stamp of its operation and with bytes derived from stamp and block, so that any mixture is detected.

use crate::rng::Rng;

/// Length of the file under test. It is not a multiple of a page.
pub(crate) const FILE_LEN: u64 = (1 << 20) + 1234;

/// The number of an operation and its thread; 0 for a block that was never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stamp(pub(crate) u64);

impl Stamp {
    /// A block that was never written.
    pub(crate) const NONE: Stamp = Stamp(0);

    /// The stamp of a thread's operation; operations count from 1.
    pub(crate) fn new(thread: usize, operation: u64) -> Self {
        Stamp(operation << 8 | thread as u64)
    }

    /// The thread.
    pub(crate) fn thread(self) -> usize {
        (self.0 & 0xff) as usize
    }

    /// The number of the operation.
    pub(crate) fn operation(self) -> u64 {
        self.0 >> 8
    }
}

/// One block of the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Its offset.
    pub(crate) offset: u64,
    /// Its length.
    pub(crate) len: usize,
    /// The thread that owns it; `None` if all share it.
    pub(crate) owner: Option<usize>,
}

/// Layout and operations.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    seed: u64,
    /// The blocks, by offset.
    pub(crate) blocks: Vec<Block>,
    own: Vec<Vec<usize>>,
    shared: Vec<usize>,
}

/// The actions of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The blocks it writes atomically, ascending. The thread owns at least one of them.
    pub(crate) blocks: Vec<usize>,
    /// Whether a sync follows.
    pub(crate) sync: bool,
    /// A block to read afterwards.
    pub(crate) read: Option<usize>,
    /// A block to deploy afterwards.
    pub(crate) deploy: Option<usize>,
    /// Whether to reclaim space afterwards.
    pub(crate) reclaim: bool,
}

impl Plan {
    /// A plan for `threads` threads.
    pub(crate) fn new(seed: u64, threads: usize) -> Self {
        let mut rng = Rng::from_parts(&[seed, threads as u64]);
        let mut plan = Plan { seed, blocks: Vec::new(), own: vec![Vec::new(); threads], shared: Vec::new() };
        let mut offset = 0;
        while offset + 16 <= FILE_LEN {
            let len = match rng.below(4) {
                0 => rng.between(16, 80),
                1 => rng.between(64, 1000),
                2 => rng.between(4000, 4200),
                _ => rng.between(8000, 24_000),
            };
            let len = len.min(FILE_LEN - offset);
            let index = plan.blocks.len();
            let owner = Some(index % (threads + 1)).filter(|&owner| owner < threads);
            owner.map_or(&mut plan.shared, |owner| &mut plan.own[owner]).push(index);
            plan.blocks.push(Block { offset, len: len as usize, owner });
            offset += len;
        }
        plan
    }

    /// The number of writing threads.
    pub(crate) fn threads(&self) -> usize {
        self.own.len()
    }

    /// The thread's operation with this number.
    pub(crate) fn operation(&self, thread: usize, number: u64) -> Operation {
        let mut rng = Rng::from_parts(&[self.seed, thread as u64, number]);
        let pick = |rng: &mut Rng, from: &[usize]| from[rng.below(from.len() as u64) as usize];
        let own = if rng.below(3) == 0 { rng.between(2, 4) } else { 1 };
        let shared = if rng.below(3) == 0 { rng.between(1, 2) } else { 0 };
        let mut blocks: Vec<usize> = (0..own).map(|_| pick(&mut rng, &self.own[thread])).collect();
        blocks.extend((0..shared).map(|_| pick(&mut rng, &self.shared)));
        blocks.sort_unstable();
        blocks.dedup();
        let any = |rng: &mut Rng| rng.below(self.blocks.len() as u64) as usize;
        Operation {
            blocks,
            sync: rng.below(6) == 0,
            read: (rng.below(3) == 0).then(|| any(&mut rng)),
            deploy: (rng.below(16) == 0).then(|| any(&mut rng)),
            reclaim: rng.below(500) == 0,
        }
    }

    /// The bytes of a block written with this stamp.
    pub(crate) fn content(&self, block: usize, stamp: Stamp, into: &mut Vec<u8>) {
        into.clear();
        into.resize(self.blocks[block].len, 0);
        if stamp != Stamp::NONE {
            let (head, body) = into.split_at_mut(8);
            head.copy_from_slice(&stamp.0.to_le_bytes());
            Rng::from_parts(&[self.seed, stamp.0, block as u64]).fill(body);
        }
    }

    /// The stamp of a block's bytes; `None` if they are not one operation's whole write.
    pub(crate) fn stamp_of(&self, block: usize, bytes: &[u8], scratch: &mut Vec<u8>) -> Option<Stamp> {
        let stamp = Stamp(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?));
        self.content(block, stamp, scratch);
        (scratch == bytes).then_some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_tile_the_file_and_every_thread_owns_some() {
        let plan = Plan::new(1, 2);
        for pair in plan.blocks.windows(2) {
            assert_eq!(pair[0].offset + pair[0].len as u64, pair[1].offset);
        }
        let last = plan.blocks[plan.blocks.len() - 1];
        assert!(last.offset + last.len as u64 <= FILE_LEN);
        assert!(plan.own.iter().chain([&plan.shared]).all(|blocks| blocks.len() > 4));
    }

    #[test]
    fn operations_are_deterministic_and_spare_foreign_blocks() {
        let plan = Plan::new(9, 3);
        for number in 1..200 {
            let operation = plan.operation(1, number);
            assert_eq!(operation, plan.operation(1, number));
            assert!(operation.blocks.iter().any(|&block| plan.blocks[block].owner == Some(1)));
            assert!(operation.blocks.iter().all(|&block| plan.blocks[block].owner.is_none_or(|owner| owner == 1)));
        }
    }

    #[test]
    fn a_mixture_of_two_writes_has_no_stamp() {
        let plan = Plan::new(3, 2);
        let (mut old, mut new, mut scratch) = (Vec::new(), Vec::new(), Vec::new());
        plan.content(5, Stamp::new(0, 1), &mut old);
        plan.content(5, Stamp::new(1, 9), &mut new);
        assert_eq!(plan.stamp_of(5, &old, &mut scratch), Some(Stamp::new(0, 1)));
        let half = old.len() / 2;
        new[half..].copy_from_slice(&old[half..]);
        assert_eq!(plan.stamp_of(5, &new, &mut scratch), None);
        assert_eq!(plan.stamp_of(5, &vec![0; old.len()], &mut scratch), Some(Stamp::NONE));
    }
}
