//! The checkpoint threads. They start with the first work, sleep when there is none, and stop before the file is
//! closed.
//!
//! A write wakes them. A read that had to look into the log wakes them too: otherwise, after a program's last write, no
//! thread would checkpoint the entries that slow its reads down. When a checkpoint fails they *give up*: no call wakes
//! them until another thread (a writer that ran out of room, or a `reclaim`) has made a checkpoint itself. Otherwise
//! they would retry a failing or full disk at every call of the program.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::Core;
use super::checkpoint::Image;
use crate::error::{Error, Result};
use crate::storage::{Medium, MediumClass};
use crate::sync::wake_flag::WakeFlag;
use crate::sys::incarnation;
use crate::sys::sync::{AtomicU64, Ordering};

/// Chunks in use from which on a checkpoint is due on persistent memory. It costs two fences, and the less is left in
/// the log, the fewer writes come upon an entry that they have to take home themselves.
const DUE: u64 = 5;

/// Whether a checkpoint is due. On a block medium, where it costs two flushes, not before half the log is full.
fn is_due<M: Medium>(core: &Core<M>) -> bool {
    let (total, available) = (core.chunks.total(), core.chunks.available());
    let full = match core.class {
        // The log may have grown between the two loads.
        MediumClass::PersistentMemory => total.saturating_sub(available) >= DUE.min(total / 2 + 1),
        MediumClass::Block => 2 * available < total,
    };
    full && core.durable() > core.head.checkpoint.load(Ordering::Relaxed)
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
    /// Something is due, or it is time to stop.
    wake: Condvar,
    /// A helper is done with its share.
    done: Condvar,
    /// Whether the leader has to be woken.
    wake_flag: WakeFlag,
    /// The cut behind which a checkpoint failed. It is not tried again before there is a later one.
    gave_up: AtomicU64,
    /// The next chunk of the round.
    next: AtomicU64,
}

#[derive(Default)]
struct State {
    stop: bool,
    due: bool,
    round: Option<Round>,
    /// Helpers at work on the round.
    helpers: usize,
    /// What one of them came upon in it.
    failed: Option<Error>,
}

/// The threads of one open file.
pub(super) struct Workers {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    wanted: usize,
    /// The process whose threads they are.
    process: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new() -> Self {
        Shared {
            state: Mutex::default(),
            wake: Condvar::new(),
            done: Condvar::new(),
            wake_flag: WakeFlag::default(),
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
}

impl Workers {
    pub(super) fn new(wanted: usize) -> Self {
        Workers { shared: Arc::new(Shared::new()), threads: Mutex::default(), wanted, process: incarnation() }
    }

    /// Sees to it that a checkpoint is made if one is due.
    #[inline]
    pub(super) fn wake_if_due<M: Medium>(&self, core: &Arc<Core<M>>) {
        if self.wanted > 0 && self.shared.has_work(core) && self.shared.wake_flag.notify() {
            self.wake(core);
        }
    }

    #[cold]
    fn wake<M: Medium>(&self, core: &Arc<Core<M>>) {
        let mut threads = locked(&self.threads);
        let mut state = locked(&self.shared.state);
        if state.stop {
            return;
        }
        state.due = true;
        drop(state);
        for number in threads.len()..self.wanted {
            let (shared, theirs) = (Arc::clone(&self.shared), Arc::clone(core));
            let name = format!("untorn-ckpt-{number}");
            let work = move || if number == 0 { lead(&shared, &theirs) } else { help(&shared, &theirs) };
            match std::thread::Builder::new().name(name).spawn(work) {
                Ok(thread) => threads.push(thread),
                // Writers that run out of room checkpoint themselves.
                Err(error) => {
                    tracing::warn!(path = %core.path().display(), %error, "cannot start a checkpoint thread");
                    if threads.is_empty() {
                        self.shared.give_up(core.head.checkpoint.load(Ordering::Acquire));
                        self.shared.wake_flag.prepare_sleep();
                    }
                    break;
                }
            }
        }
        self.shared.wake.notify_all();
    }

    /// Stops all threads and waits for them.
    pub(super) fn stop(&self) {
        // A forked child has no such threads, and perhaps locks that they held.
        if self.process != incarnation() {
            return;
        }
        locked(&self.shared.state).stop = true;
        self.shared.wake.notify_all();
        for thread in locked(&self.threads).drain(..) {
            // One that panicked has said so.
            let _ = thread.join();
        }
    }
}

/// Waits for something that is due, and checkpoints.
fn lead<M: Medium>(shared: &Shared, core: &Core<M>) {
    let mut state = locked(&shared.state);
    while !state.stop {
        if !state.due {
            shared.wake_flag.prepare_sleep();
            // Whoever found it due before relied on this thread to find it too.
            if shared.has_work(core) {
                state.due = true;
                continue;
            }
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        state.due = false;
        // Who woke this thread may have found it due before a round that has brought it home, or failed, since.
        if !shared.has_work(core) {
            continue;
        }
        drop(state);
        if let Err(error) = round(shared, core) {
            // Whoever runs out of room meets the same error, and can be told.
            tracing::warn!(path = %core.path().display(), %error, "a background checkpoint failed");
        }
        state = locked(&shared.state);
    }
}

/// Waits for rounds, and takes a share of each.
fn help<M: Medium>(shared: &Shared, core: &Core<M>) {
    let mut state = locked(&shared.state);
    while !state.stop {
        let Some(round) = state.round.filter(|round| shared.next.load(Ordering::Relaxed) < round.chunks) else {
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.helpers += 1;
        drop(state);
        let shared_in = share(shared, core, round);
        state = locked(&shared.state);
        state.failed = shared_in.err().or(state.failed.take());
        state.helpers -= 1;
        shared.done.notify_all();
    }
}

fn round<M: Medium>(shared: &Shared, core: &Core<M>) -> Result<()> {
    let _cutting = core.head.cutting.lock(core.relax());
    let made = round_alone(shared, core);
    if made.is_err() {
        // Nobody else can have cut since it failed.
        shared.give_up(core.head.checkpoint.load(Ordering::Acquire));
    }
    made
}

/// The caller holds the cut gate.
fn round_alone<M: Medium>(shared: &Shared, core: &Core<M>) -> Result<()> {
    core.handle_state.writable()?;
    let upto = core.durable();
    if upto == core.head.checkpoint.load(Ordering::Relaxed) {
        // Somebody else was faster: a cut would say, for two fences, what the last one said.
        return Ok(());
    }
    let round = Round { upto, chunks: core.chunks.total() };
    shared.next.store(0, Ordering::Relaxed);
    locked(&shared.state).round = Some(round);
    shared.wake.notify_all();
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
