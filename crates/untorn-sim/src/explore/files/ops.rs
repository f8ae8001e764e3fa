//! Operations on a file: what they are, how they read in a report, which ones are tried.

use std::fmt;

use untorn::{AtomicFile, Result};

use super::config::{Config, MAX_LEN};
use crate::rng::Rng;

/// One operation of a program on its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Opens the data file, which exists.
    Open,
    /// Creates it.
    Create {
        len: u64,
    },
    Write(Range),
    /// A write that deploys what it wrote.
    Eager(Range),
    /// Several writes that commit as one.
    Transaction(Vec<Range>),
    Sync,
    Read {
        offset: u64,
        len: u64,
    },
    Deploy {
        offset: u64,
        len: u64,
    },
    Resize {
        len: u64,
    },
    Reclaim,
    /// Closes and opens again.
    Close,
    /// Settles and opens again.
    Settle,
    /// Drops the handle, as a program that panics does, and opens again.
    Drop,
    /// An operation whose flush of this number fails and leaves the page cache with bytes that the medium lacks; the
    /// handle is dropped and the file opened again.
    FlushFails {
        op: Box<Op>,
        nth: u32,
    },
}

/// The target of a write, and the seed of its bytes; seed 0 writes zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) offset: u64,
    pub(super) len: u64,
    pub(super) seed: u64,
}

impl Range {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        if self.seed != 0 {
            Rng::new(self.seed).fill(&mut bytes);
        }
        bytes
    }
}

impl Range {
    /// The same write, moved into a file of this length.
    fn fit(self, len: u64) -> Self {
        let kept = self.len.min(len);
        Range { offset: self.offset.min(len - kept), len: kept, ..self }
    }
}

impl Op {
    /// The same operation, moved into a file of this length.
    pub(super) fn fit(self, file: u64) -> Self {
        let stretch = |offset: u64, len: u64| {
            let fitted = Range { offset, len, seed: 0 }.fit(file);
            (fitted.offset, fitted.len)
        };
        match self {
            Op::Write(range) => Op::Write(range.fit(file)),
            Op::Eager(range) => Op::Eager(range.fit(file)),
            Op::Transaction(ranges) => Op::Transaction(ranges.into_iter().map(|range| range.fit(file)).collect()),
            Op::Read { offset, len } => {
                let (offset, len) = stretch(offset, len);
                Op::Read { offset, len }
            }
            Op::Deploy { offset, len } => {
                let (offset, len) = stretch(offset, len);
                Op::Deploy { offset, len }
            }
            Op::FlushFails { op, nth } => Op::FlushFails { op: Box::new(op.fit(file)), nth },
            other => other,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Open => write!(f, "open"),
            Op::Create { len } => write!(f, "create {len} bytes"),
            Op::Write(Range { offset, len, .. }) => write!(f, "write {len} bytes at {offset}"),
            Op::Eager(Range { offset, len, .. }) => write!(f, "write eagerly {len} bytes at {offset}"),
            Op::Transaction(ranges) => {
                write!(f, "transaction of")?;
                for Range { offset, len, .. } in ranges {
                    write!(f, " {len} bytes at {offset}")?;
                }
                Ok(())
            }
            Op::Sync => write!(f, "sync"),
            Op::Read { offset, len } => write!(f, "read {len} bytes at {offset}"),
            Op::Deploy { offset, len } => write!(f, "deploy {len} bytes at {offset}"),
            Op::Resize { len } => write!(f, "resize to {len} bytes"),
            Op::Reclaim => write!(f, "reclaim"),
            Op::Close => write!(f, "close and open"),
            Op::Settle => write!(f, "settle and open"),
            Op::Drop => write!(f, "drop and open"),
            Op::FlushFails { op, nth } => write!(f, "{op}, flush {nth} of which fails; drop and open"),
        }
    }
}

/// Runs an operation that needs no more than the open file. Returns what a read returned.
pub(super) fn perform(op: &Op, file: &AtomicFile) -> Result<Option<Vec<u8>>> {
    match op {
        Op::Write(range) => file.write_at(&range.bytes(), range.offset)?,
        Op::Eager(range) => file.write_at_eager(&range.bytes(), range.offset)?,
        Op::Transaction(ranges) => {
            let mut transaction = file.transaction();
            for range in ranges {
                transaction.write_at(&range.bytes(), range.offset)?;
            }
            transaction.commit()?;
        }
        Op::Sync => drop(file.sync()?),
        Op::Read { offset, len } => {
            let mut bytes = vec![0; *len as usize];
            file.read_at(&mut bytes, *offset)?;
            return Ok(Some(bytes));
        }
        Op::Deploy { offset, len } => file.deploy(*offset, *len)?,
        Op::Resize { len } => file.resize(*len)?,
        Op::Reclaim => drop(file.reclaim()?),
        Op::Open | Op::Create { .. } | Op::Close | Op::Settle | Op::Drop | Op::FlushFails { .. } => {
            unreachable!("these need more than an open file")
        }
    }
    Ok(None)
}

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
