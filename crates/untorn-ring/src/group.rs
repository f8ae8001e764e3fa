//! Group commit among processes: processes that wait for the log's device at the same time share one flush.
//!
//! # Invariants
//!
//! 1. A flush answers all requests made before it began: a process that requests it has written everything to the log,
//!    as far as the kernel is concerned.
//! 2. The kernel reports a failed write once per open file description of the log that existed before. Each process
//!    therefore flushes by its own description. It gets that before it writes anything, and after the server has
//!    flushed the log by its own description, the oldest one. The server knows of any failure before that, and then
//!    gives no description out. Therefore no flush that answers for others misses a failure of theirs. If a process
//!    dies after it alone saw a failure, the others still learn of it.
//! 3. A sync of a file needs no flush if nothing of the file was put into the log since a flush began. Entries are
//!    counted before their operation is reported as done, and a process that flushes reads the count before.
//! 4. A failed flush ends all appending. The server, which is asked then, gets the failure too.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ledger::{FLUSHING, GROUP, SharedState};
use crate::robust;
use crate::turn::FileLock;

/// Flushes asked for so far.
const ASKED: usize = GROUP;
/// Every request up to this number is answered.
const ANSWERED: usize = GROUP + 1;
/// Changed, as half a word, whenever the lock was given up.
const ROUND: usize = GROUP + 2;
/// The number of processes that wait for the release of the lock. A process that dies meanwhile stays in the count,
/// and costs one call for each flush.
const WAITING: usize = GROUP + 3;
/// The round in which a process waited in vain, plus one: no other process waits in that round.
const STALLED: usize = GROUP + 4;

/// The number of times that a waiter checks again whether the lock is free: its holder may have been stopped.
const LOOKS_BEFORE_SLEEP: u32 = 1000;

/// The operations that a process needs to flush the log.
pub trait Flusher {
    /// Flushes the log's device; [`Flushed::Elsewhere`] if this process has no way to do that.
    fn flush(&mut self) -> Flushed;

    /// Waits until a word differs from `seen`, or about a millisecond.
    fn wait(&mut self, word: &AtomicU32, seen: u32);

    /// Wakes all waiters of a word.
    fn wake(&mut self, word: &AtomicU32);
}

/// The result of a request for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything that was in the log is durable.
    Done,
    /// The flush failed, and processes append no more. The server reports it.
    Failed,
    /// The server must flush: the flushing process was stopped, or this process cannot flush.
    Elsewhere,
}

impl SharedState<'_> {
    /// Makes everything that this process has in the log durable, by a flush that any process begins after this call.
    pub fn flush_together(&self, by: &mut impl Flusher) -> Flushed {
        let mine = self.ask_for_flush();
        let round = robust::half(self.word(ROUND));
        let is_answered = || self.is_answered(mine);
        for _ in 0..LOOKS_BEFORE_SLEEP {
            // The round is read before the answer is checked: any later change also changes the round.
            let seen = round.load(Ordering::SeqCst);
            if is_answered() {
                return Flushed::Done;
            }
            // A holder that died leaves nothing behind: this flush covers what it was about to flush.
            if robust::try_lock(self.lock_words(FLUSHING), || ()) {
                let outcome = if is_answered() { Flushed::Done } else { self.flush_for_all(by) };
                robust::unlock(self.lock_words(FLUSHING));
                // The order matters: a process that finds the lock taken has seen a round that is over soon.
                round.fetch_add(1, Ordering::SeqCst);
                if self.word(WAITING).load(Ordering::SeqCst) != 0 {
                    by.wake(round);
                }
                return outcome;
            }
            if self.word(STALLED).load(Ordering::SeqCst) == u64::from(seen) + 1 {
                return Flushed::Elsewhere;
            }
            self.word(WAITING).fetch_add(1, Ordering::SeqCst);
            by.wait(round, seen);
            self.word(WAITING).fetch_sub(1, Ordering::SeqCst);
        }
        self.word(STALLED).store(u64::from(round.load(Ordering::SeqCst)) + 1, Ordering::SeqCst);
        Flushed::Elsewhere
    }

    /// Makes everything durable that the log has of a file from before this call. `is_its` tells whether the turn is
    /// still that file's, and the file's syncs need nothing else.
    pub fn sync(&self, turn: FileLock<'_>, is_its: impl Fn() -> bool, by: &mut impl Flusher) -> Flushed {
        let changes = turn.changes();
        // The turn is given to no other file, nor to this one again, without a change.
        if is_its() && turn.is_flushed(changes) && turn.changes() == changes {
            return Flushed::Done;
        }
        let outcome = self.flush_together(by);
        if outcome == Flushed::Done {
            turn.flushed(changes);
        }
        outcome
    }

    /// Requests a flush that begins after this call, without waiting for it. The returned number identifies the
    /// request.
    pub fn ask_for_flush(&self) -> u64 {
        self.word(ASKED).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether the requested flush was made, by a process that waited for it: everything that was in the log at the
    /// request is durable.
    pub fn is_answered(&self, request: u64) -> bool {
        self.word(ANSWERED).load(Ordering::SeqCst) >= request
    }

    /// With the lock.
    fn flush_for_all(&self, by: &mut impl Flusher) -> Flushed {
        let upto = self.word(ASKED).load(Ordering::SeqCst);
        let outcome = by.flush();
        match outcome {
            Flushed::Done => drop(self.word(ANSWERED).fetch_max(upto, Ordering::SeqCst)),
            Flushed::Failed => self.close(),
            Flushed::Elsewhere => {}
        }
        outcome
    }
}
