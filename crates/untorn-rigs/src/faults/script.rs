//! The script of the process under test, and the bytes that the file must then hold.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display};
use std::hash::{DefaultHasher, Hasher};
use std::str::FromStr;

use nix::libc;
use untorn::options::{Layout, LogPolicy};
use untorn::{AtomicFile, Durability, EngineKind, Options, Result};
use untorn_sim::script::{Content, Op, Writes};

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

    /// The content of the file after an operation that succeeded.
    pub(super) fn after(&self, before: &Content, op: &Op) -> Content {
        let engine = match self.engine {
            Engine::Reflection(_) => EngineKind::Reflection,
            Engine::HybridLog(_) => EngineKind::HybridLog,
        };
        before.after(op, engine, self.durability)
    }

    /// The minimum number of slots, so that checkpoints are frequent and a wide commit spills.
    pub(super) fn options(&self) -> Options {
        let options = Options::new().durability(self.durability).record_area(2, 4).max_len(64 << 10);
        match self.engine {
            Engine::Reflection(layout) => options.engine(EngineKind::Reflection).layout(layout),
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

/// The script: each operation, on fresh and on written pages, within an epoch and across commits.
pub(super) fn script() -> Vec<Op> {
    let mut some = Writes::default();
    // More pages than a lane has slots.
    let wide: Vec<(u64, u64)> = (0..10).map(|page| (page * 4096 + 40, 90)).collect();
    vec![
        Op::Create { len: 2 * 4096 + 1300 },
        some.write(64, 64),
        some.write(4096, 128),
        Op::Sync,
        some.write(30, 300),
        some.write(50, 100),
        some.transaction(&[(100, 60), (4000, 500), (9400, 92)]),
        Op::READ_ALL,
        Op::Sync,
        some.write(0, 4096),
        some.write(10, 4000),
        some.eager(50, 100),
        Op::Reclaim,
        Op::Sync,
        Op::DEPLOY_ALL,
        Op::Sync,
        Op::Reclaim,
        Op::Resize { len: 4150 },
        Op::Resize { len: 3 * 4096 + 100 },
        some.write(4100, 200),
        Op::Close,
        some.write(1000, 700),
        Op::Drop,
        Op::READ_ALL,
        Op::Resize { len: 10 * 4096 + 77 },
        some.transaction(&wide),
        some.transaction(&wide),
        Op::Sync,
        Op::DEPLOY_ALL,
        some.transaction(&wide),
        Op::Resize { len: 2 * 4096 + 10 },
        some.write(4000, 4000),
        Op::Sync,
        Op::Settle,
        Op::READ_ALL,
        some.write(70, 90),
        Op::Sync,
        Op::READ_ALL,
    ]
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
