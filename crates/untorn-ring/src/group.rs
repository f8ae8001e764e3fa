//! Group commit among processes: those that wait for the log's device at the same time share a flush of it.
//!
//! # What makes it sound
//! 1. A flush answers for all who asked before it began: who asks has all that he wrote in the log, as far as the kernel goes.
//! 2. The kernel tells of a write that failed once, by each description that the log had been opened with before. So each process flushes
//!    by a description of its own, which it is given before it writes anything, and after the server has flushed the log by its own,
//!    the oldest: of what failed before that the server knows, and gives none. So no flush that answers for others is one that was not
//!    told of what they lost; and who dies with such news takes nothing along that the others are not told.
//! 3. A file of which nothing was put into the log since a flush began needs none for a sync: what is put there is counted before anybody
//!    is told that it was done, and who flushes looks at the count before.
//! 4. A flush that fails ends all appending, and the server, which is asked then, is told of the failure as well.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ledger::{FLUSHING, GROUP, Ledger};
use crate::robust;
use crate::turn::Turn;

/// Flushes asked for so far.
const ASKED: usize = GROUP;
/// Every request up to this number is answered.
const ANSWERED: usize = GROUP + 1;
/// Changed, as half a word, whenever the lock was given up.
const ROUND: usize = GROUP + 2;
/// How many wait for the lock to be given up. One that dies meanwhile counts for good, and costs a call for each flush.
const WAITING: usize = GROUP + 3;
/// The round in which somebody waited in vain, plus one: nobody else waits in that.
const STALLED: usize = GROUP + 4;

/// How often somebody looks again whether the lock is free: he who has it may have been stopped.
const PATIENCE: u32 = 1000;

/// What is needed to flush the log.
pub trait Flusher {
    /// Flushes the log's device; [`Flushed::Elsewhere`] if this process has no way to do that.
    fn flush(&mut self) -> Flushed;

    /// Waits until a word is not `seen` any more, or about a millisecond.
    fn wait(&mut self, word: &AtomicU32, seen: u32);

    /// Wakes all who wait for a word.
    fn wake(&mut self, word: &AtomicU32);
}

/// What became of a request for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// All that was in the log is durable.
    Done,
    /// It failed, and processes append no more. The server is to say so.
    Failed,
    /// It is for the server: who flushes was stopped, or this process cannot.
    Elsewhere,
}

impl Ledger<'_> {
    /// Has all that this process has in the log durable, by a flush that began after this call, whoever makes it.
    pub fn flush_together(&self, by: &mut impl Flusher) -> Flushed {
        let mine = self.ask_for_flush();
        let round = robust::half(self.word(ROUND));
        let is_answered = || self.is_answered(mine);
        for _ in 0..PATIENCE {
            // Before it is looked at: what changes later changes the round, too.
            let seen = round.load(Ordering::SeqCst);
            if is_answered() {
                return Flushed::Done;
            }
            // A holder that died leaves nothing behind: what it was about to flush is flushed now.
            if robust::try_lock(self.lock_words(FLUSHING), || ()) {
                let outcome = if is_answered() { Flushed::Done } else { self.flush_for_all(by) };
                robust::unlock(self.lock_words(FLUSHING));
                // In this order: who finds the lock taken has seen a round that is over soon.
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

    /// Has all that the log has of a file durable: what was done to it before this call. `is_its` says whether the turn is still
    /// that file's, and its syncs need nothing but this.
    pub fn sync(&self, turn: Turn<'_>, is_its: impl Fn() -> bool, by: &mut impl Flusher) -> Flushed {
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

    /// Asks for a flush that begins after this call, and waits for none: the request's number, by which it is known later whether there
    /// was one.
    pub fn ask_for_flush(&self) -> u64 {
        self.word(ASKED).fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Whether all that was in the log when a flush was asked for is durable, by one that somebody waited for.
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
