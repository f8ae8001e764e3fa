//! A request slot of a process: one call at a time, its answer, and the wait for either.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::{COMMON, LONGEST, MOST, REQUEST_SLOTS, ROOM, ROOMS_AT, RpcArea};
use crate::ipc::rendezvous::MEMBERS;
use crate::ipc::wait::{sleep_on, spin_if_it_pays, wake_all};

// Its words of 32 bits.
const HALF_STATE: usize = 0;
const HALF_BELL: usize = 1;
const HALF_SERVER_SLEEPS: usize = 2;
const HALF_MEMBER_SLEEPS: usize = 3;
const HALF_SERVER_SPINS: usize = 4;
const HALF_MEMBER_SPINS: usize = 5;

/// Nothing is asked.
pub(crate) const FREE: u32 = 0;
/// A call is in place.
pub(crate) const REQUESTED: u32 = 1;
/// It may have changed the file.
pub(crate) const EXECUTING: u32 = 2;
/// The answer is in place.
pub(crate) const DONE: u32 = 3;

/// A waiter for an answer looks at other things that often.
const GLANCE: Duration = Duration::from_millis(50);

/// The words of a call or an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words {
    /// What is asked, or how it ended.
    pub(crate) kind: u64,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) c: u64,
    /// Bytes in the request slot's room.
    pub(crate) len: u64,
    /// The generation that the member belongs to.
    pub(crate) generation: u64,
}

/// A request slot of a process.
#[derive(Clone, Copy)]
pub(crate) struct RequestSlot<'a> {
    rpc_area: &'a RpcArea,
    number: usize,
}

impl<'a> RequestSlot<'a> {
    pub(super) fn new(rpc_area: &'a RpcArea, number: usize) -> Self {
        RequestSlot { rpc_area, number }
    }

    /// Which one of its process it is.
    pub(super) fn index(&self) -> usize {
        self.number % REQUEST_SLOTS
    }

    /// The slot of its process.
    #[cfg(test)]
    pub(crate) fn slot(&self) -> usize {
        self.number / REQUEST_SLOTS
    }

    fn half(&self, index: usize) -> &AtomicU32 {
        self.rpc_area.half(MEMBERS * 16 + self.number * 16 + index)
    }

    fn room(&self) -> usize {
        ROOMS_AT + self.number * ROOM
    }

    #[inline]
    pub(crate) fn state(&self) -> u32 {
        self.half(HALF_STATE).load(Ordering::SeqCst)
    }

    pub(crate) fn set_state(&self, state: u32) {
        self.half(HALF_STATE).store(state, Ordering::SeqCst);
    }

    fn words(&self, at: usize) -> &[AtomicU64] {
        &self.rpc_area.words()[COMMON + self.number * 16 + at..][..8]
    }

    /// What is asked.
    pub(crate) fn asked(&self) -> Words {
        load(self.words(0))
    }

    pub(crate) fn ask(&self, call: Words) {
        store(self.words(0), call);
    }

    /// The answer.
    pub(crate) fn answered(&self) -> Words {
        load(self.words(8))
    }

    pub(crate) fn set_answer(&self, answer: Words) {
        store(self.words(8), answer);
    }

    /// Sets the text of an answer, as much of it as there is room for; gives the length.
    pub(crate) fn set_text(&self, text: &str) -> u64 {
        let text = &text.as_bytes()[..text.len().min(LONGEST)];
        self.rpc_area.0.copy_in(self.room(), text);
        text.len() as u64
    }

    /// The text of an answer.
    pub(crate) fn text(&self, len: u64) -> String {
        let mut text = vec![0; (len as usize).min(LONGEST)];
        self.rpc_area.0.copy_out(self.room(), &mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Makes sure that there is memory for so many bytes, and for a text.
    ///
    /// # Errors
    /// Those of `fallocate(2)`.
    pub(crate) fn allocate(&self, bytes: usize) -> io::Result<()> {
        self.rpc_area.0.allocate(self.room() as u64, (LONGEST + bytes.min(MOST)) as u64)
    }

    /// Gives memory beyond the first bytes back.
    pub(crate) fn release(&self, beyond: usize) {
        if beyond < MOST {
            // It only costs memory if it fails.
            let _ = self.rpc_area.0.release((self.room() + LONGEST + beyond) as u64, (MOST - beyond) as u64);
        }
    }

    /// # Panics
    /// If that is beyond the room.
    pub(crate) fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= MOST));
        self.rpc_area.0.copy_in(self.room() + LONGEST + at, bytes);
    }

    /// # Panics
    /// As for [`put`](RequestSlot::put).
    pub(crate) fn get(&self, at: usize, into: &mut [u8]) {
        assert!(at.checked_add(into.len()).is_some_and(|end| end <= MOST));
        self.rpc_area.0.copy_out(self.room() + LONGEST + at, into);
    }

    /// Gives the call, which is in place, to the server.
    pub(crate) fn call(&self) {
        self.set_state(REQUESTED);
        self.notify();
    }

    /// Takes a call back that nobody has begun with, so that nobody does it long after it was given up.
    pub(crate) fn withdraw(&self) {
        // If it is under way, what becomes of it is not known, and the request slot is not used again.
        let _ = self.half(HALF_STATE).compare_exchange(REQUESTED, FREE, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Has the server look at the request slot.
    pub(crate) fn notify(&self) {
        self.half(HALF_BELL).fetch_add(1, Ordering::SeqCst);
        // Either it is seen asleep here, or it sees the bell before it sleeps.
        wake(self.half(HALF_BELL), self.half(HALF_SERVER_SLEEPS));
    }

    /// Waits, as the server, for a call; false if `stop` says so, which is asked whenever the request slot was rung.
    pub(crate) fn await_call(&self, stop: impl Fn() -> bool) -> bool {
        let event = self.half(HALF_BELL);
        loop {
            let seen = event.load(Ordering::SeqCst);
            if stop() {
                return false;
            }
            if matches!(self.state(), REQUESTED | EXECUTING) {
                return true;
            }
            if !spin_if_it_pays(self.half(HALF_SERVER_SPINS), || event.load(Ordering::SeqCst) != seen) {
                saying_so(self.half(HALF_SERVER_SLEEPS), || sleep_on(event, seen, None));
            }
        }
    }

    /// Gives the request slot back, with the answer in place.
    pub(crate) fn answer(&self) {
        self.set_state(DONE);
        wake(self.half(HALF_STATE), self.half(HALF_MEMBER_SLEEPS));
    }

    /// Waits, as the member, for the answer; false if `stop` says so, which is asked from time to time.
    pub(crate) fn await_answer(&self, stop: impl Fn() -> bool) -> bool {
        loop {
            if spin_if_it_pays(self.half(HALF_MEMBER_SPINS), || self.state() == DONE) {
                return true;
            }
            if stop() {
                return false;
            }
            let seen = self.state();
            if seen != DONE {
                // Not for long: a server killed between the answer and the waking wakes nobody.
                let asleep = || sleep_on(self.half(HALF_STATE), seen, Some(GLANCE));
                saying_so(self.half(HALF_MEMBER_SLEEPS), asleep);
            }
        }
    }
}

/// Wakes whoever says that it sleeps on a word, which was changed before.
fn wake(word: &AtomicU32, sleeps: &AtomicU32) {
    if sleeps.load(Ordering::SeqCst) != 0 {
        wake_all(word);
    }
}

/// Says that the caller sleeps, for as long as it does: see [`wake`].
fn saying_so(sleeps: &AtomicU32, sleep: impl FnOnce()) {
    sleeps.store(1, Ordering::SeqCst);
    sleep();
    sleeps.store(0, Ordering::SeqCst);
}

fn load(words: &[AtomicU64]) -> Words {
    let word = |index: usize| words[index].load(Ordering::Relaxed);
    Words { kind: word(0), a: word(1), b: word(2), c: word(3), len: word(4), generation: word(5) }
}

fn store(into: &[AtomicU64], words: Words) {
    for (word, value) in into.iter().zip([words.kind, words.a, words.b, words.c, words.len, words.generation]) {
        word.store(value, Ordering::Relaxed);
    }
}
