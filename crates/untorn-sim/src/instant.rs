//! The instant before a call of the medium takes effect, which a hook sees.

use std::path::Path;

use untorn::Error;
use untorn::testing::storage::Barrier;

use crate::crash::CrashState;
use crate::world::World;

/// The kinds of calls a medium serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // Each is the method of the same name.
pub enum Step {
    Open,
    Identity,
    Stamp,
    Mark,
    Read,
    Write,
    Store,
    Flush,
    Fence,
    Sync,
    DistrustCache,
    SetLen,
    Allocate,
    Punch,
    SetMark,
    TryLock,
    Create,
    CreateDir,
    Rename,
    Unlink,
    RemoveDir,
    SyncDir,
    Exists,
    List,
}

impl Step {
    /// Whether the call can change anything, durable or not.
    pub fn changes(self) -> bool {
        !matches!(
            self,
            Step::Open
                | Step::Identity
                | Step::Stamp
                | Step::Mark
                | Step::Read
                | Step::TryLock
                | Step::Exists
                | Step::List
        )
    }

    /// Whether the call can make something certain that was pending.
    pub fn persists(self) -> bool {
        matches!(self, Step::Fence | Step::Sync | Step::SyncDir | Step::DistrustCache)
    }
}

/// The instant before a call takes effect.
pub struct Instant<'a> {
    /// The kind of call.
    pub step: Step,
    /// The barrier it passes, for flushes, fences and syncs.
    pub barrier: Option<Barrier>,
    /// The file or directory it is about.
    pub path: &'a Path,
    pub(crate) world: &'a World,
}

impl Instant<'_> {
    /// The state that a crash at this instant could leave.
    pub fn crash_state(&self) -> CrashState {
        CrashState::of(self.world)
    }

    /// A number that stays the same as long as the set of crash images does.
    pub fn version(&self) -> u64 {
        self.world.version
    }
}

/// The fate of a call: a hook injects failures with it.
#[derive(Debug)]
pub enum Verdict {
    /// It takes place.
    Allow,
    /// It fails with this error and has no effect. `flush` cannot fail, so there the error is dropped.
    Refuse(Error),
    /// A write or store that fails after its first bytes took effect. Any other call has no effect.
    WriteSome {
        /// The number of bytes.
        bytes: usize,
        /// The error that the call returns.
        error: Error,
    },
    /// A fence or sync of a block device that fails as writeback does: of the sectors not yet durable some were
    /// written, some stay dirty, and the rest are called clean all the same. Reads still show these, later flushes
    /// pass over them, and the medium does not have them. The seed decides what happens to each sector. Any other
    /// call has no effect.
    LoseDirty {
        /// Decides.
        seed: u64,
        /// The error that the call returns.
        error: Error,
    },
}

impl Verdict {
    /// For calls that fail in one way only.
    pub(crate) fn plain(self) -> untorn::Result<()> {
        match self {
            Verdict::Allow => Ok(()),
            Verdict::Refuse(error) | Verdict::WriteSome { error, .. } | Verdict::LoseDirty { error, .. } => Err(error),
        }
    }
}

/// A function called before every call of the medium takes effect, to look at the machine and to say what becomes of
/// the call.
///
/// It runs under the machine's lock and must not touch the same machine.
pub type Hook = Box<dyn FnMut(&Instant<'_>) -> Verdict + Send>;
