//! What a hook sees: the instant before a call of the medium takes effect.

use std::path::Path;

use untorn::medium::Barrier;

use crate::crash::CrashState;
use crate::world::World;

/// The kinds of calls a medium serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[allow(missing_docs)] // Each is the method of the same name.
pub enum Step {
    Open,
    Read,
    Write,
    Store,
    Flush,
    Fence,
    Sync,
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
        !matches!(self, Step::Open | Step::Read | Step::TryLock | Step::Exists | Step::List)
    }

    /// Whether the call can make something certain that was pending.
    pub fn persists(self) -> bool {
        matches!(self, Step::Fence | Step::Sync | Step::SyncDir)
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
    /// What a crash at this instant could leave.
    pub fn crash_state(&self) -> CrashState {
        CrashState::of(self.world)
    }

    /// A number that stays the same as long as the set of crash images does.
    pub fn version(&self) -> u64 {
        self.world.version
    }
}

/// A function called before every call of the medium takes effect. An error it returns becomes the call's own, and the
/// call then has no effect: this is how failures are injected. `flush` cannot fail, so its error is dropped.
///
/// It runs under the machine's lock and must not touch the same machine.
pub type Hook = Box<dyn FnMut(&Instant<'_>) -> untorn::Result<()> + Send>;
