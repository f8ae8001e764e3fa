//! Group commit among processes: those that wait for the log's device at the same time share a flush of it.
//!
//! # What makes it sound
//! 1. A flush answers for all who asked before it began: who asks has all that he wrote in the log, as far as the kernel goes.
//! 2. The kernel tells of a write that failed once, by each description that the log had been opened with before. So each process flushes
//!    by a description of its own, opened before it wrote anything, and a flush that fails ends all appending before anybody is
//!    answered.
//! 3. Who dies amid a flush may have taken such news along, which a process that comes later is not told. From then on nobody answers for
//!    others, until the server, whose description is the oldest, has flushed the log.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::ledger::{FLUSHING, GROUP, Ledger};
use crate::robust;

/// Flushes asked for so far.
const ASKED: usize = GROUP;
/// Every request up to this number is answered.
const ANSWERED: usize = GROUP + 1;
/// Changed, as half a word, whenever the lock is given up.
const ROUND: usize = GROUP + 2;
/// How many died with the lock.
const DEATHS: usize = GROUP + 3;
/// Up to which of them the server has flushed the log since.
const MENDED: usize = GROUP + 4;
/// How many wait for the lock to be given up. One that dies meanwhile counts for good, and costs a call for each flush.
const WAITING: usize = GROUP + 5;

/// How often somebody looks again whether the lock is free: he who has it may have been stopped.
const PATIENCE: u32 = 1000;

/// What is needed to flush the log.
pub trait Flusher {
    /// Flushes the log's device. False if that failed.
    fn flush(&mut self) -> bool;

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
    /// It is for the server: somebody died amid a flush, or was stopped.
    Elsewhere,
}

impl Ledger<'_> {
    /// Has all that this process has in the log durable, by a flush that began after this call, whoever makes it.
    pub fn flush_together(&self, by: &mut impl Flusher) -> Flushed {
        let mine = self.word(ASKED).fetch_add(1, Ordering::SeqCst) + 1;
        let round = robust::half(self.word(ROUND));
        let is_answered = || self.word(ANSWERED).load(Ordering::SeqCst) >= mine;
        for _ in 0..PATIENCE {
            // Before it is looked at: what changes later changes the round, too.
            let seen = round.load(Ordering::SeqCst);
            if is_answered() {
                return Flushed::Done;
            }
            if self.begin() {
                let outcome = if is_answered() { Flushed::Done } else { self.flush_for_all(by) };
                round.fetch_add(1, Ordering::SeqCst);
                robust::unlock(self.lock_words(FLUSHING));
                // Who counts himself later finds another round than he has seen.
                if self.word(WAITING).load(Ordering::SeqCst) != 0 {
                    by.wake(round);
                }
                return outcome;
            }
            self.word(WAITING).fetch_add(1, Ordering::SeqCst);
            by.wait(round, seen);
            self.word(WAITING).fetch_sub(1, Ordering::SeqCst);
        }
        Flushed::Elsewhere
    }

    fn begin(&self) -> bool {
        robust::try_lock(self.lock_words(FLUSHING), || {
            self.word(DEATHS).fetch_add(1, Ordering::SeqCst);
        })
    }

    /// With the lock.
    fn flush_for_all(&self, by: &mut impl Flusher) -> Flushed {
        if self.deaths().is_some() {
            return Flushed::Elsewhere;
        }
        let upto = self.word(ASKED).load(Ordering::SeqCst);
        if !by.flush() {
            self.close();
            return Flushed::Failed;
        }
        self.word(ANSWERED).fetch_max(upto, Ordering::SeqCst);
        Flushed::Done
    }

    /// How many died amid a flush, if the server has not flushed the log since the last of them.
    pub fn deaths(&self) -> Option<u64> {
        let deaths = self.word(DEATHS).load(Ordering::SeqCst);
        (deaths != self.word(MENDED).load(Ordering::SeqCst)).then_some(deaths)
    }

    /// The server has flushed the log, by its own description, since so many had died.
    pub fn mend_flushes(&self, deaths: u64) {
        self.word(MENDED).store(deaths, Ordering::SeqCst);
    }
}
