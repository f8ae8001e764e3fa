//! The operations that are tried: all short sequences, and random scripts.

use super::config::{Config, MAX_LEN};
use crate::rng::Rng;
use crate::script::{Op, Range};

/// A step of a script: one operation, or two threads with a few each.
#[derive(Clone, Debug)]
pub(in crate::explore) struct Phase {
    /// The operations of each thread; a single thread is the one that runs the script.
    pub(super) threads: Vec<Vec<Op>>,
    /// Whether crashes are tried during it. Warming up goes without.
    pub(super) tested: bool,
}

impl Phase {
    pub(super) fn one(op: Op, tested: bool) -> Self {
        Phase { threads: vec![vec![op]], tested }
    }
}

/// The operations of which every short sequence is tried, on a file of this length. The bytes that are written differ
/// with the `place` in the sequence, so that a second write to the same offset is a change.
pub(super) fn alphabet(config: &Config, len: u64, place: u64) -> Vec<Op> {
    let write = |offset: u64, len: u64, seed: u64| Range { offset, len, seed: seed + 100 * place };
    let mut ops = vec![
        Op::Write(write(30, 20, 1)),
        Op::Write(write(64, 128, 2)),
        Op::Write(write(4090, 140, 3)),
        Op::Transaction(vec![write(100, 60, 4), write(4096, 64, 5), write(len - 30, 30, 6)]),
        Op::Sync,
        Op::Read { offset: 0, len },
        Op::Eager(write(50, 100, 7)),
        Op::Deploy { offset: 0, len },
        Op::DeployAhead,
        Op::Reclaim,
    ];
    if config.threads == 1 {
        ops.extend([
            Op::Write(write(0, 4096, 8)),
            Op::Resize { len: len + 5000 },
            Op::Resize { len: 4150 },
            Op::Close,
            Op::Settle,
            Op::Drop,
        ]);
    }
    if config.loses_flushes() {
        let fails = |op: Op, nth: u32| Op::FlushFails { op: Box::new(op), nth };
        ops.extend([fails(Op::Write(write(64, 700, 9)), 1), fails(Op::Sync, 1), fails(Op::Close, 4)]);
    }
    ops
}

/// Makes random operations for a file whose length it keeps track of.
pub(in crate::explore) struct Generator {
    pub(super) rng: Rng,
    pub(super) len: u64,
    next_seed: u64,
    /// Whether flushes may fail.
    faults: bool,
}

impl Generator {
    pub(super) fn new(config: &Config, rng: Rng, len: u64, first_seed: u64) -> Self {
        Generator { rng, len, next_seed: first_seed, faults: config.loses_flushes() }
    }

    fn range(&mut self) -> Range {
        let rng = &mut self.rng;
        let len = match rng.below(13) {
            0..=2 => 1 + rng.below(24),
            3..=5 => 64 * (1 + rng.below(3)),
            6 | 7 => 40 + rng.below(200),
            8 => 500 + rng.below(600),
            9 => 4096,
            10 => 4000 + rng.below(1500),
            11 => 4096 * (1 + rng.below(4)) - 60 + rng.below(100),
            _ => 64,
        }
        .min(self.len);
        let room = self.len - len;
        let offset = match rng.below(6) {
            0 => rng.below(room / 64 + 1) * 64,
            1 => (4096 * (1 + rng.below(3))).saturating_sub(rng.below(len + 1)).min(room),
            2 => room,
            // Few places, so that writes meet.
            3 | 4 => (rng.below(4) * 64 + 4096 * rng.below(2)).min(room),
            _ => rng.below(room + 1),
        };
        self.next_seed += 1;
        let seed = if self.rng.one_in(24) { 0 } else { self.next_seed };
        Range { offset, len, seed }
    }

    fn stretch(&mut self) -> (u64, u64) {
        if self.rng.one_in(3) {
            return (0, self.len);
        }
        let Range { offset, len, .. } = self.range();
        (offset, len)
    }

    /// A few bytes on every page, committed as one.
    fn wide(&mut self) -> Op {
        let pages = self.len / 4096;
        let on = |page: u64, seed: u64| Range { offset: page * 4096 + seed % 4000, len: 1 + seed % 90, seed };
        let first = self.next_seed + 1;
        self.next_seed += pages;
        Op::Transaction((0..pages).map(|page| on(page, first + page)).collect())
    }

    /// An operation that two threads may run at once.
    pub(super) fn shared(&mut self) -> Op {
        if self.len > 8 * 4096 && self.rng.one_in(3) {
            return self.wide();
        }
        match self.rng.below(20) {
            0..=9 => Op::Write(self.range()),
            10 | 11 => {
                let count = 2 + self.rng.below(2);
                Op::Transaction((0..count).map(|_| self.range()).collect())
            }
            12 => Op::Eager(self.range()),
            13 | 14 => Op::Sync,
            15 | 16 => {
                let (offset, len) = self.stretch();
                Op::Read { offset, len }
            }
            17 | 18 => {
                let (offset, len) = self.stretch();
                Op::Deploy { offset, len }
            }
            _ if self.rng.one_in(2) => Op::DeployAhead,
            _ => Op::Reclaim,
        }
    }

    /// Any operation.
    pub(super) fn any(&mut self) -> Op {
        if self.faults && self.rng.one_in(4) {
            return self.flush_fails();
        }
        if !self.rng.one_in(4) {
            return self.shared();
        }
        match self.rng.below(9) {
            0..=2 => {
                self.len = match self.rng.below(4) {
                    0 => self.len + 1 + self.rng.below(5000),
                    1 => self.len.saturating_sub(1 + self.rng.below(5000)),
                    2 => 4096 * (1 + self.rng.below(4)),
                    _ => 100 + self.rng.below(16_000),
                }
                .clamp(100, MAX_LEN * 3 / 4);
                Op::Resize { len: self.len }
            }
            3 | 4 => Op::Close,
            5 => Op::Settle,
            6 => Op::Drop,
            _ => Op::Sync,
        }
    }

    fn flush_fails(&mut self) -> Op {
        let op = match self.rng.below(4) {
            0 => Op::Sync,
            1 => Op::Close,
            _ => match self.shared() {
                Op::Read { .. } => Op::Sync,
                other => other,
            },
        };
        // Most have one flush or two; a close has up to seven.
        let most = if self.rng.one_in(3) { 7 } else { 2 };
        Op::FlushFails { op: Box::new(op), nth: 1 + self.rng.below(most) as u32 }
    }

    /// A script of up to `phases` tested phases after up to `warm` untested writes.
    pub(super) fn script(&mut self, threads: u8, warm: u64, phases: u64) -> Vec<Phase> {
        let mut script = Vec::new();
        for _ in 0..self.rng.below(warm + 1) {
            let op = match self.rng.below(8) {
                0 => Op::Sync,
                1 => Op::Deploy { offset: 0, len: self.len },
                2 => Op::DeployAhead,
                _ => {
                    let mut range = self.range();
                    range.len = range.len.min(200);
                    Op::Write(range)
                }
            };
            script.push(Phase::one(op, false));
        }
        for _ in 0..phases {
            if threads > 1 && !self.rng.one_in(3) {
                let mut pair = Vec::new();
                for _ in 0..2 {
                    let count = 1 + self.rng.below(3);
                    pair.push((0..count).map(|_| self.shared()).collect());
                }
                script.push(Phase { threads: pair, tested: true });
            } else {
                script.push(Phase::one(self.any(), true));
            }
        }
        script
    }
}
