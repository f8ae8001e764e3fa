//! The script of operations, and what the file must hold after each.

use std::sync::Arc;

use untorn::{AtomicFile, Durability, Result};
use untorn_sim::Rng;

use super::Setup;

/// One operation. Offsets and lengths are moved into the file where it is shorter.
#[derive(Clone, Debug)]
pub(super) enum Op {
    Create(u64),
    Write(u64, u64),
    Eager(u64, u64),
    Transaction(Vec<(u64, u64)>),
    Sync,
    Resize(u64),
    Deploy,
    Reclaim,
    /// Each of these ends the handle and opens the file again.
    Close,
    Drop,
    Settle,
}

/// The operations that are worth failing in: each one, on fresh and on written pages, within an epoch and across
/// commits.
pub(super) fn script() -> Vec<Op> {
    let wide = || Op::Transaction((0..10).map(|page| (page * 4096 + 40, 90)).collect());
    vec![
        Op::Create(2 * 4096 + 1300),
        Op::Write(64, 64),
        Op::Write(4096, 128),
        Op::Sync,
        Op::Write(30, 300),
        Op::Write(50, 100),
        Op::Transaction(vec![(100, 60), (4000, 500), (9400, 92)]),
        Op::Transaction(vec![(90, 200), (4100, 130), (9410, 70)]),
        Op::Deploy,
        Op::Sync,
        Op::Write(0, 4096),
        Op::Write(10, 4000),
        Op::Eager(50, 100),
        Op::Reclaim,
        Op::Sync,
        Op::Deploy,
        Op::Sync,
        Op::Reclaim,
        Op::Write(4140, 40),
        Op::Resize(4150),
        Op::Resize(3 * 4096 + 100),
        Op::Write(4100, 200),
        Op::Close,
        Op::Write(1000, 700),
        Op::Drop,
        Op::Resize(10 * 4096 + 77),
        wide(),
        wide(),
        Op::Sync,
        Op::Deploy,
        wide(),
        Op::Resize(2 * 4096 + 10),
        Op::Write(4000, 4000),
        Op::Sync,
        Op::Settle,
        Op::Write(70, 90),
        Op::Sync,
        Op::Close,
    ]
}

pub(super) type Bytes = Arc<Vec<u8>>;

/// The content that a program sees, and that of the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) now: Bytes,
    pub(super) kept: Bytes,
}

impl Model {
    /// The state after an operation that succeeded; `number` makes each write write bytes of its own.
    pub(super) fn after(&self, op: &Op, number: usize, setup: &Setup) -> Model {
        let commit = |now: Bytes| Model { kept: now.clone(), now };
        let wrote = |ranges: &[(u64, u64)]| {
            let mut bytes = self.now.to_vec();
            for (offset, new) in pieces(ranges, number, self.now.len()) {
                bytes[offset..offset + new.len()].copy_from_slice(&new);
            }
            match setup.durability {
                Durability::PerWrite => commit(Arc::new(bytes)),
                Durability::PerCommit => Model { now: Arc::new(bytes), kept: self.kept.clone() },
            }
        };
        match op {
            Op::Create(len) => commit(Arc::new(vec![0; *len as usize])),
            Op::Write(offset, len) | Op::Eager(offset, len) => wrote(&[(*offset, *len)]),
            Op::Transaction(ranges) => wrote(ranges),
            Op::Sync | Op::Close | Op::Settle => commit(self.now.clone()),
            Op::Drop => commit(self.kept.clone()),
            Op::Resize(len) => {
                let mut bytes = self.now.to_vec();
                bytes.resize(*len as usize, 0);
                let now = Arc::new(bytes);
                if setup.resizes_in_epoch() { Model { now, kept: self.kept.clone() } } else { commit(now) }
            }
            Op::Deploy | Op::Reclaim => self.clone(),
        }
    }
}

/// The pieces that the write of this number writes, moved into a file of this length: offsets and bytes, without
/// overlap.
pub(super) fn pieces(ranges: &[(u64, u64)], number: usize, file: usize) -> Vec<(usize, Vec<u8>)> {
    let mut all: Vec<(usize, Vec<u8>)> = Vec::new();
    for (index, &(offset, len)) in ranges.iter().enumerate() {
        let from = all.last().map_or(0, |(at, bytes)| at + bytes.len()).max(offset as usize);
        let mut bytes = vec![0; (len as usize).min(file.saturating_sub(from))];
        Rng::derive(number as u64 + 1, index as u64).fill(&mut bytes);
        all.push((from.min(file), bytes));
    }
    all
}

/// Runs an operation that leaves the handle open.
pub(super) fn perform(file: &AtomicFile, op: &Op, number: usize) -> Result<()> {
    let len = file.len() as usize;
    match op {
        Op::Write(offset, range) | Op::Eager(offset, range) => {
            let all = pieces(&[(*offset, *range)], number, len);
            let eager = matches!(op, Op::Eager(..));
            all.iter().try_for_each(|(offset, bytes)| match eager {
                true => file.write_at_eager(bytes, *offset as u64),
                false => file.write_at(bytes, *offset as u64),
            })
        }
        Op::Transaction(ranges) => {
            let mut transaction = file.transaction();
            for (offset, bytes) in pieces(ranges, number, len) {
                transaction.write_at(&bytes, offset as u64)?;
            }
            transaction.commit()
        }
        Op::Sync => file.sync().map(drop),
        Op::Resize(len) => file.resize(*len),
        Op::Deploy => file.deploy(0, file.len()),
        Op::Reclaim => file.reclaim().map(drop),
        Op::Create(_) | Op::Close | Op::Drop | Op::Settle => unreachable!("these end or make the handle"),
    }
}
