//! Checkpoints in the background, as jobs of the [pool](crate::sync::pool) that all files of the process share. A file
//! that needs no checkpoint has no job, and a close waits for those that run.
//!
//! A write submits the job. A read that had to look into the log does so too: otherwise, after a program's last write,
//! no thread would checkpoint the full chunks whose entries slow its reads down. The entries of a chunk that a lane
//! still fills stay until it is full. When a checkpoint fails the job *gives up*: no call
//! submits it again until another thread (a writer that ran out of room, or a `reclaim`) has made a checkpoint itself.
//! Otherwise it would retry a failing or full disk at every call of the program.
//!
//! # Invariants
//! 1. At most one leading job of a file is in line or runs: the call that found the wake flag down submitted it, and it
//!    takes the flag down before it looks for work the last time.
//! 2. A leading job waits only for helpers that have begun, never for one in line.
//! 3. `running` counts jobs that have begun. None begins once `stop` is set, so when `running` is 0 then none uses the
//!    file any more.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::Core;
use super::checkpoint::Image;
use crate::error::{Error, Result};
use crate::storage::{Medium, MediumClass};
use crate::sync::pool::{Length, Pool, Submitter};
use crate::sync::wake_flag::WakeFlag;
use crate::sys::incarnation;
use crate::sys::sync::{AtomicU64, Ordering};

/// Full chunks from which on a checkpoint is due on persistent memory. It costs two fences, and the less is left in the
/// log, the fewer writes come upon an entry that they have to take home themselves.
const DUE: u64 = 4;

/// Whether a checkpoint is due. On a block medium, where it costs two flushes, not before fewer chunks are free than it
/// frees. Chunks that lanes fill count for neither: however many threads there are, it frees none of theirs.
fn is_due<M: Medium>(core: &Core<M>) -> bool {
    let (total, available, reclaimable) = (core.chunks.total(), core.chunks.available(), core.chunks.reclaimable());
    let many = core.class == MediumClass::PersistentMemory && reclaimable >= DUE.min(total / 2).max(1);
    (many || reclaimable > available) && core.durable() > core.head.checkpoint.load(Ordering::Relaxed)
}

/// A cut that was never reached: nobody gave up.
const NEVER: u64 = u64::MAX;

/// What a round of checkpointing is about.
#[derive(Clone, Copy)]
struct Round {
    /// Epochs up to this one go home.
    upto: u64,
    chunks: u64,
}

struct Shared {
    state: Mutex<State>,
    /// A helper is done with its share, or a job has ended.
    done: Condvar,
    /// Whether the leading job has to be submitted.
    wake_flag: WakeFlag,
    /// The most threads of a round.
    wanted: usize,
    /// The cut behind which a checkpoint failed. It is not tried again before there is a later one.
    gave_up: AtomicU64,
    /// The next chunk of the round.
    next: AtomicU64,
}

#[derive(Default)]
struct State {
    stop: bool,
    /// Jobs that have begun and not ended.
    running: usize,
    round: Option<Round>,
    /// Helpers at work on the round.
    helpers: usize,
    /// What one of them came upon in it.
    failed: Option<Error>,
}

/// The background work of one open file.
pub(super) struct Workers {
    shared: Arc<Shared>,
    /// From the first job on.
    pool: OnceLock<Pool>,
    /// The process whose threads they are.
    process: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(wanted: usize) -> Self {
        Shared {
            state: Mutex::default(),
            done: Condvar::new(),
            wake_flag: WakeFlag::default(),
            wanted,
            gave_up: AtomicU64::new(NEVER),
            next: AtomicU64::new(0),
        }
    }

    /// Whether these threads are to make a checkpoint.
    #[inline]
    fn has_work<M: Medium>(&self, core: &Core<M>) -> bool {
        is_due(core) && self.gave_up.load(Ordering::Acquire) != core.head.checkpoint.load(Ordering::Acquire)
    }

    /// Leaves it to others to get beyond this cut.
    fn give_up(&self, checkpoint: u64) {
        self.gave_up.store(checkpoint, Ordering::Release);
    }

    /// Begins a job, unless the file is about to be closed.
    fn begin(&self) -> Option<Running<'_>> {
        let mut state = locked(&self.state);
        if state.stop {
            return None;
        }
        state.running += 1;
        Some(Running(self))
    }

    fn stops(&self) -> bool {
        locked(&self.state).stop
    }
}

/// A job that has begun. What it has of the file is gone before this is.
struct Running<'a>(&'a Shared);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        locked(&self.0.state).running -= 1;
        self.0.done.notify_all();
    }
}

impl Workers {
    pub(super) fn new(wanted: usize) -> Self {
        Workers { shared: Arc::new(Shared::new(wanted)), pool: OnceLock::new(), process: incarnation() }
    }

    /// Sees to it that a checkpoint is made if one is due.
    #[inline]
    pub(super) fn wake_if_due<M: Medium>(&self, core: &Arc<Core<M>>) {
        if self.shared.wanted > 0 && self.shared.has_work(core) && self.shared.wake_flag.notify() {
            self.wake(core);
        }
    }

    #[cold]
    fn wake<M: Medium>(&self, core: &Arc<Core<M>>) {
        let submitter = self.pool.get_or_init(Pool::shared).submitter();
        let (shared, theirs, helpers) = (self.shared.clone(), Arc::downgrade(core), submitter.clone());
        if let Err(error) = submitter.submit(Length::Short, move || lead(&shared, &theirs, &helpers)) {
            // Writers that run out of room checkpoint themselves.
            tracing::warn!(path = %core.path().display(), %error, "cannot start a checkpoint thread");
            self.shared.give_up(core.head.checkpoint.load(Ordering::Acquire));
            self.shared.wake_flag.prepare_sleep();
        }
    }

    /// Has no further job begin, and waits for those that have.
    pub(super) fn stop(&self) {
        // A forked child has no such threads, and perhaps locks that they held.
        if self.process != incarnation() {
            return;
        }
        let mut state = locked(&self.shared.state);
        state.stop = true;
        while state.running > 0 {
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Makes checkpoints until none is due.
fn lead<M: Medium>(shared: &Arc<Shared>, core: &Weak<Core<M>>, helpers: &Submitter) {
    let Some(_running) = shared.begin() else { return };
    let Some(core) = core.upgrade() else { return };
    while !shared.stops() {
        // The call that submitted this may have found it due before a round that has brought it home, or failed, since.
        if shared.has_work(&core)
            && let Err(error) = round(shared, &core, helpers)
        {
            // Whoever runs out of room meets the same error, and can be told.
            tracing::warn!(path = %core.path().display(), %error, "a background checkpoint failed");
        }
        if shared.has_work(&core) {
            continue;
        }
        shared.wake_flag.prepare_sleep();
        // A call that found it due meanwhile relied on this job to find it too, unless that call has taken the flag.
        if !shared.has_work(&core) || !shared.wake_flag.notify() {
            return;
        }
    }
}

/// Takes a share of the round that is under way, if one is.
fn help<M: Medium>(shared: &Shared, core: &Weak<Core<M>>) {
    let Some(_running) = shared.begin() else { return };
    let Some(core) = core.upgrade() else { return };
    let mut state = locked(&shared.state);
    let Some(round) = state.round.filter(|round| shared.next.load(Ordering::Relaxed) < round.chunks) else { return };
    state.helpers += 1;
    drop(state);
    let shared_in = share(shared, &core, round);
    let mut state = locked(&shared.state);
    state.failed = shared_in.err().or(state.failed.take());
    state.helpers -= 1;
    shared.done.notify_all();
}

fn round<M: Medium>(shared: &Arc<Shared>, core: &Arc<Core<M>>, helpers: &Submitter) -> Result<()> {
    let _cutting = core.head.cutting.lock(core.relax());
    let made = round_alone(shared, core, helpers);
    if made.is_err() {
        // Nobody else can have cut since it failed.
        shared.give_up(core.head.checkpoint.load(Ordering::Acquire));
    }
    made
}

/// The caller holds the cut gate.
fn round_alone<M: Medium>(shared: &Arc<Shared>, core: &Arc<Core<M>>, helpers: &Submitter) -> Result<()> {
    core.handle_state.writable()?;
    let upto = core.durable();
    if upto == core.head.checkpoint.load(Ordering::Relaxed) {
        // Somebody else was faster: a cut would say, for two fences, what the last one said.
        return Ok(());
    }
    let round = Round { upto, chunks: core.chunks.total() };
    shared.next.store(0, Ordering::Relaxed);
    locked(&shared.state).round = Some(round);
    for _ in 1..shared.wanted.min(round.chunks as usize) {
        let (theirs, weak) = (shared.clone(), Arc::downgrade(core));
        // Without a helper this thread takes all shares.
        let _ = helpers.submit(Length::Short, move || help(&theirs, &weak));
    }
    let mine = share(shared, core, round);
    let mut state = locked(&shared.state);
    state.round = None;
    while state.helpers > 0 {
        state = shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    let failed = state.failed.take();
    drop(state);
    mine?;
    failed.map_or(Ok(()), Err)?;
    core.retire(round.upto)
}

/// Takes chunks of a round home until there are none.
fn share<M: Medium>(shared: &Shared, core: &Core<M>, round: Round) -> Result<()> {
    let mut image = Image::new();
    loop {
        let chunk = shared.next.fetch_add(1, Ordering::Relaxed);
        if chunk >= round.chunks {
            return Ok(());
        }
        core.carry_chunk_home(chunk, round.upto, &mut image)?;
    }
}
