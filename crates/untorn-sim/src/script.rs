//! Operations of a program on one file, and what they must do to it.

use std::fmt;
use std::sync::Arc;

use untorn::{AtomicFile, Durability, EngineKind, Result, Snapshot};

use crate::rng::Rng;

/// One operation of a program on its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Opens the data file, which exists.
    Open,
    /// Creates it.
    Create {
        /// Its length.
        len: u64,
    },
    /// A write.
    Write(Range),
    /// A write that deploys what it wrote.
    Eager(Range),
    /// Several writes that commit as one.
    Transaction(Vec<Range>),
    /// A commit.
    Sync,
    /// A read.
    Read {
        /// The first byte.
        offset: u64,
        /// How many there are.
        len: u64,
    },
    /// A snapshot of the last commit, read twice.
    Snapshot,
    /// Brings bytes home.
    Deploy {
        /// The first byte.
        offset: u64,
        /// How many there are.
        len: u64,
    },
    /// Copies home what closing would, as a thread does in the background.
    DeployAhead,
    /// Another length.
    Resize {
        /// The length.
        len: u64,
    },
    /// Gives back space of the sidecar.
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
        /// The operation.
        op: Box<Op>,
        /// The flush, counted from 1.
        nth: u32,
    },
}

/// The target of a write, and the seed of its bytes; seed 0 writes zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub offset: u64,
    /// How many there are.
    pub len: u64,
    /// The seed.
    pub seed: u64,
}

impl Range {
    /// The bytes that are written.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.len as usize];
        if self.seed != 0 {
            Rng::new(self.seed).fill(&mut bytes);
        }
        bytes
    }

    /// The same write, moved into a file of this length.
    fn fit(self, len: u64) -> Self {
        let kept = self.len.min(len);
        Range { offset: self.offset.min(len - kept), len: kept, ..self }
    }
}

/// Makes the writes of a script, each with bytes of its own.
#[derive(Debug, Default)]
pub struct Writes(u64);

impl Writes {
    fn range(&mut self, (offset, len): (u64, u64)) -> Range {
        self.0 += 1;
        Range { offset, len, seed: self.0 }
    }

    /// A write.
    pub fn write(&mut self, offset: u64, len: u64) -> Op {
        Op::Write(self.range((offset, len)))
    }

    /// A write that deploys what it wrote.
    pub fn eager(&mut self, offset: u64, len: u64) -> Op {
        Op::Eager(self.range((offset, len)))
    }

    /// Writes at these offsets, of these lengths, that commit as one.
    pub fn transaction(&mut self, ranges: &[(u64, u64)]) -> Op {
        Op::Transaction(ranges.iter().map(|range| self.range(*range)).collect())
    }
}

impl Op {
    /// All of the file.
    pub const READ_ALL: Op = Op::Read { offset: 0, len: u64::MAX };
    /// All of the file.
    pub const DEPLOY_ALL: Op = Op::Deploy { offset: 0, len: u64::MAX };

    /// The same operation, moved into a file of this length.
    #[must_use]
    pub fn fit(self, file: u64) -> Self {
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
            Op::Snapshot => write!(f, "snapshot"),
            Op::Deploy { offset, len } => write!(f, "deploy {len} bytes at {offset}"),
            Op::DeployAhead => write!(f, "deploy ahead"),
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
///
/// # Errors
/// That of the operation.
///
/// # Panics
/// Panics if the operation opens or ends the handle, and if a snapshot changes while it is held.
pub fn perform(op: &Op, file: &AtomicFile) -> Result<Option<Vec<u8>>> {
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
        Op::Snapshot => {
            let snapshot = file.snapshot()?;
            let bytes = read_snapshot(&snapshot)?;
            assert!(bytes == read_snapshot(&snapshot)?, "a snapshot changed while it was held");
            return Ok(Some(bytes));
        }
        Op::Deploy { offset, len } => file.deploy(*offset, *len)?,
        Op::DeployAhead => drop(file.deploy_ahead()?),
        Op::Resize { len } => file.resize(*len)?,
        Op::Reclaim => drop(file.reclaim()?),
        Op::Open | Op::Create { .. } | Op::Close | Op::Settle | Op::Drop | Op::FlushFails { .. } => {
            unreachable!("{op} needs more than an open file")
        }
    }
    Ok(None)
}

/// All bytes of a snapshot.
///
/// # Errors
/// Those of reading it.
pub fn read_snapshot(snapshot: &Snapshot) -> Result<Vec<u8>> {
    let mut bytes = vec![0; snapshot.len() as usize];
    snapshot.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A file's bytes, shared between the states that have them.
pub type Bytes = Arc<Vec<u8>>;

/// The content that a program sees, and that of the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// What a program sees.
    pub now: Bytes,
    /// What a crash leaves.
    pub kept: Bytes,
}

impl Content {
    /// These bytes, committed.
    pub fn committed(bytes: Bytes) -> Self {
        Content { kept: bytes.clone(), now: bytes }
    }

    /// The content after an operation on a file with this engine and durability.
    #[must_use]
    pub fn after(&self, op: &Op, engine: EngineKind, durability: Durability) -> Self {
        let open = |bytes: Vec<u8>| Content { now: Arc::new(bytes), kept: self.kept.clone() };
        let wrote = |ranges: &[Range]| {
            let mut bytes = self.now.to_vec();
            for range in ranges {
                // Some orders of operations in flight beside a resize make no sense; the engine refuses those writes.
                let (start, end) = (range.offset as usize, (range.offset + range.len) as usize);
                if let Some(target) = bytes.get_mut(start..end) {
                    target.copy_from_slice(&range.bytes());
                }
            }
            match durability {
                Durability::PerWrite => Content::committed(Arc::new(bytes)),
                Durability::PerCommit => open(bytes),
            }
        };
        match op {
            Op::Create { len } => Content::committed(Arc::new(vec![0; *len as usize])),
            Op::Write(range) | Op::Eager(range) => wrote(std::slice::from_ref(range)),
            Op::Transaction(ranges) => wrote(ranges),
            Op::Sync | Op::Close | Op::Settle => Content::committed(self.now.clone()),
            Op::Resize { len } => {
                let mut bytes = self.now.to_vec();
                bytes.resize(*len as usize, 0);
                match (engine, durability) {
                    // Under the hybrid log the length belongs to the epoch.
                    (EngineKind::HybridLog, Durability::PerCommit) => open(bytes),
                    _ => Content::committed(Arc::new(bytes)),
                }
            }
            Op::Drop => Content::committed(self.kept.clone()),
            // The last is two events: the operation, which never returned, and the drop.
            Op::Read { .. }
            | Op::Snapshot
            | Op::Deploy { .. }
            | Op::DeployAhead
            | Op::Reclaim
            | Op::Open
            | Op::FlushFails { .. } => self.clone(),
        }
    }
}
