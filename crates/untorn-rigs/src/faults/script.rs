//! The script of the process under test, and the bytes that the file must then hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use nix::libc;
use untorn::options::{Layout, LogPolicy};
use untorn::{AtomicFile, Durability, EngineKind, Options, Result};
use untorn_sim::Rng;

use super::tracer::Filter;

/// The real medium that the workload runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The page cache of a directory's file system, with io_uring disabled, so that each flush is a system call.
    Threads,
    /// The same, with flushes by io_uring.
    Ring,
    /// Memory treated as persistent (`UNTORN_ASSUME_PMEM=1`).
    Memory,
}

impl Place {
    const ALL: [Place; 3] = [Place::Threads, Place::Ring, Place::Memory];

    fn as_str(self) -> &'static str {
        match self {
            Place::Threads => "threads",
            Place::Ring => "ring",
            Place::Memory => "memory",
        }
    }
}

/// How the file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup {
    /// The medium.
    pub(super) place: Place,
    durability: Durability,
    engine: Engine,
}

/// The engine of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    Reflection(Layout),
    HybridLog(LogPolicy),
}

impl Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Engine::Reflection(layout) => write!(f, "{layout}"),
            Engine::HybridLog(policy) => write!(f, "{policy}"),
        }
    }
}

impl Place {
    /// On memory the log can hold old bytes too.
    fn engines(self) -> Vec<Engine> {
        let mut all = vec![Engine::Reflection(Layout::Dense), Engine::Reflection(Layout::Sparse)];
        all.push(Engine::HybridLog(LogPolicy::Redo));
        if self == Place::Memory {
            all.push(Engine::HybridLog(LogPolicy::Undo));
        }
        all
    }
}

impl Setup {
    /// All of them.
    pub(super) fn all() -> Vec<Setup> {
        let mut all = Vec::new();
        for place in Place::ALL {
            for durability in [Durability::PerCommit, Durability::PerWrite] {
                for engine in place.engines() {
                    all.push(Setup { place, durability, engine });
                }
            }
        }
        all
    }

    /// The filter for a process that runs the script, if these calls go to the rig; all calls if the list is empty.
    ///
    /// Flushes are not executed. The power stays on, so nothing here can distinguish a working flush from one that does
    /// nothing, and a disk would take a hundred times as long for them as for everything else.
    pub(super) fn filter(&self, asked: BTreeSet<i64>) -> Filter {
        let mut answered = BTreeMap::new();
        if !asked.is_empty() {
            answered.extend([(libc::SYS_fsync, 0), (libc::SYS_fdatasync, 0)]);
        }
        if self.place != Place::Ring {
            answered.insert(libc::SYS_io_uring_setup, libc::ENOSYS.cast_unsigned());
        }
        answered.retain(|number, _| !asked.contains(number));
        Filter { answered, asked }
    }

    /// Whether a write succeeds by freeing part of the existing log if the disk has no space for a longer one.
    pub(super) fn makes_room(&self) -> bool {
        matches!(self.engine, Engine::HybridLog(_))
    }

    /// The minimum number of slots, so that checkpoints are frequent and a wide commit spills.
    pub(super) fn options(&self) -> Options {
        let options = Options::new().durability(self.durability).record_area(2, 4).max_len(64 << 10);
        match self.engine {
            Engine::Reflection(layout) => options.layout(layout),
            // Checkpoint threads would make their calls at random times.
            Engine::HybridLog(policy) => {
                options.engine(EngineKind::HybridLog).log_policy(policy).log_size(256 << 10).checkpoint_threads(0)
            }
        }
    }
}

impl Display for Setup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.place.as_str(), self.durability, self.engine)
    }
}

impl FromStr for Setup {
    type Err = String;

    fn from_str(word: &str) -> std::result::Result<Self, String> {
        let found = Setup::all().into_iter().find(|setup| setup.to_string() == word);
        found.ok_or_else(|| format!("{word:?} is not a setup; an example is {}", Setup::all()[0]))
    }
}

/// One operation. Offsets and lengths are adjusted to a shorter file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Create(u64),
    Write(u64, u64),
    Eager(u64, u64),
    Transaction(&'static [(u64, u64)]),
    Read,
    Sync,
    Resize(u64),
    Deploy,
    Reclaim,
    /// Each of these ends the handle and opens the file again.
    Close,
    Drop,
    Settle,
}

/// More pages than a lane has slots.
const WIDE: &[(u64, u64)] = &[
    (40, 90),
    (4136, 90),
    (8232, 90),
    (12328, 90),
    (16424, 90),
    (20520, 90),
    (24616, 90),
    (28712, 90),
    (32808, 90),
    (36904, 90),
];

/// The script: each operation, on fresh and on written pages, within an epoch and across commits.
pub(super) const SCRIPT: &[Op] = &[
    Op::Create(2 * 4096 + 1300),
    Op::Write(64, 64),
    Op::Write(4096, 128),
    Op::Sync,
    Op::Write(30, 300),
    Op::Write(50, 100),
    Op::Transaction(&[(100, 60), (4000, 500), (9400, 92)]),
    Op::Read,
    Op::Sync,
    Op::Write(0, 4096),
    Op::Write(10, 4000),
    Op::Eager(50, 100),
    Op::Reclaim,
    Op::Sync,
    Op::Deploy,
    Op::Sync,
    Op::Reclaim,
    Op::Resize(4150),
    Op::Resize(3 * 4096 + 100),
    Op::Write(4100, 200),
    Op::Close,
    Op::Write(1000, 700),
    Op::Drop,
    Op::Read,
    Op::Resize(10 * 4096 + 77),
    Op::Transaction(WIDE),
    Op::Transaction(WIDE),
    Op::Sync,
    Op::Deploy,
    Op::Transaction(WIDE),
    Op::Resize(2 * 4096 + 10),
    Op::Write(4000, 4000),
    Op::Sync,
    Op::Settle,
    Op::Read,
    Op::Write(70, 90),
    Op::Sync,
    Op::Read,
];

/// The pieces that operation `number` writes, adjusted to a file of this length: offsets and bytes, without overlap.
pub(super) fn pieces(ranges: &[(u64, u64)], number: usize, file: u64) -> Vec<(u64, Vec<u8>)> {
    let mut all = Vec::new();
    for (&(offset, len), index) in ranges.iter().zip(0..) {
        let mut bytes = vec![0; len.min(file.saturating_sub(offset)) as usize];
        Rng::derive(number as u64 + 1, index).fill(&mut bytes);
        all.push((offset.min(file), bytes));
    }
    all
}

/// The bytes of the file as the handle shows them.
pub(super) fn read_all(file: &AtomicFile) -> Result<Vec<u8>> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0)?;
    Ok(bytes)
}

/// A digest of a file's bytes, the same in every process of one program.
pub(super) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_usize(bytes.len());
    hasher.write(bytes);
    hasher.finish()
}

/// The bytes of a file, which many models share.
pub(super) type Bytes = Arc<Vec<u8>>;

/// The bytes that a program sees, and those of the last commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) now: Bytes,
    pub(super) kept: Bytes,
}

impl Model {
    /// The model of a file with these bytes, all committed.
    pub(super) fn settled(bytes: Bytes) -> Self {
        Model { kept: bytes.clone(), now: bytes }
    }

    /// The state after an operation that succeeded.
    pub(super) fn after(&self, op: Op, number: usize, setup: Setup) -> Model {
        let wrote = |ranges: &[(u64, u64)]| {
            let mut bytes = self.now.to_vec();
            for (offset, new) in pieces(ranges, number, self.now.len() as u64) {
                bytes[offset as usize..][..new.len()].copy_from_slice(&new);
            }
            match setup.durability {
                Durability::PerWrite => Model::settled(Arc::new(bytes)),
                Durability::PerCommit => Model { now: Arc::new(bytes), kept: self.kept.clone() },
            }
        };
        let resized = |len: u64| {
            let mut bytes = self.now.to_vec();
            bytes.resize(len as usize, 0);
            Model::settled(Arc::new(bytes))
        };
        match op {
            Op::Create(len) => resized(len),
            Op::Write(offset, len) | Op::Eager(offset, len) => wrote(&[(offset, len)]),
            Op::Transaction(ranges) => wrote(ranges),
            Op::Sync | Op::Close | Op::Settle => Model::settled(self.now.clone()),
            Op::Drop => Model::settled(self.kept.clone()),
            Op::Resize(len) => match (setup.engine, setup.durability) {
                // With this durability the length belongs to the epoch.
                (Engine::HybridLog(_), Durability::PerCommit) => {
                    Model { now: resized(len).now, kept: self.kept.clone() }
                }
                _ => resized(len),
            },
            Op::Read | Op::Deploy | Op::Reclaim => self.clone(),
        }
    }
}
