//! Turns: a robust lock for each file, which the kernel releases when its holder dies, and the state of the file.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::ledger::SharedState;
use crate::robust;

/// The permission of processes for the file.
const STATE: usize = 8;
const DEVICE: usize = 9;
const INODE: usize = 10;
const UID: usize = 11;
/// The position up to which it was given positions, as far as a process recorded that.
pub(crate) const PLACED: usize = 12;
/// The position up to which they are complete.
const ENDED: usize = 13;
/// The operation under way: the number and kind of its entries, its offset or the new length, its number of bytes.
const PARTS: usize = 14;
const OFFSET: usize = 15;
const LEN: usize = 16;
/// A holder died, and no process has looked at what it left.
const BROKEN: usize = 17;
const WRITES: usize = 18;
const BYTES: usize = 19;
const SYNCS: usize = 20;
/// The kernel took less of the operation under way than the log has.
const SHORT: usize = 21;
/// Counts the changes that were put into the log for the file, before they are reported as done.
const CHANGES: usize = 22;
/// The number of these changes that a flush of the log made durable.
const FLUSHED: usize = 23;
/// Words of a turn.
pub(crate) const WORDS: usize = 24;

/// No file has it.
const FREE: u64 = 0;
/// A file has it, and the server alone writes to that.
const SERVED: u64 = 1;
/// Processes write to the file, and syncs are the server's.
const WRITABLE: u64 = 2;
/// Processes write to it, and of what they wrote the log has all that a sync has to make durable.
const DURABLE: u64 = 3;

/// The turn of a file.
#[derive(Clone, Copy)]
pub struct FileLock<'a> {
    ledger: SharedState<'a>,
    number: usize,
    at: usize,
}

/// A turn that this thread holds until it is dropped. A forgotten one stays locked until the thread ends.
pub struct Locked<'a> {
    turn: FileLock<'a>,
    /// The thread that locked it must unlock it.
    of_thread: PhantomData<*mut ()>,
}

impl<'a> FileLock<'a> {
    pub(crate) fn new(ledger: SharedState<'a>, number: usize) -> Self {
        FileLock { ledger, number, at: SharedState::turn_at(number) }
    }

    fn word(&self, word: usize) -> &'a AtomicU64 {
        self.ledger.word(self.at + word)
    }

    fn get(&self, word: usize) -> u64 {
        self.word(word).load(Ordering::Acquire)
    }

    fn set(&self, word: usize, value: u64) {
        self.word(word).store(value, Ordering::Release);
    }

    /// Its shared state.
    pub fn ledger(&self) -> SharedState<'a> {
        self.ledger
    }

    /// Its number in the shared state.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether it is the turn of this file. The answer may be out of date unless the turn is [locked](FileLock::lock).
    #[inline]
    pub fn is_of(&self, device: u64, inode: u64) -> bool {
        self.get(INODE) == inode && self.get(DEVICE) == device && self.is_taken()
    }

    pub(crate) fn is_taken(&self) -> bool {
        self.get(STATE) != FREE
    }

    pub(crate) fn take(&self) -> bool {
        self.word(STATE).compare_exchange(FREE, SERVED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// The number of its file in the log.
    pub fn uid(&self) -> u64 {
        self.get(UID)
    }

    /// Whether processes may write to the file.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.get(STATE) >= WRITABLE && self.get(BROKEN) == 0
    }

    /// Whether all writes to the file are as durable as a sync makes them, or will be when the log is flushed, if it is
    /// [on a disk](crate::Way::Written). The unfinished operation of a dead holder is not, whether a process has
    /// handled it or not.
    #[inline]
    pub fn is_durable(&self) -> bool {
        // The order matters: a process that takes the lock of a dead holder says at once that the turn is broken.
        !robust::has_died(self.ledger.lock_words(self.at)) && self.get(STATE) == DURABLE && self.get(BROKEN) == 0
    }

    /// Sets whether the server makes the file's syncs. It does nothing for a file that processes do not write to.
    pub fn set_durable(&self, durable: bool) {
        let (from, to) = if durable { (WRITABLE, DURABLE) } else { (DURABLE, WRITABLE) };
        // A file that is served meanwhile stays so.
        let _ = self.word(STATE).compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// From now on only the server writes to the file, except for operations in progress.
    pub fn serve(&self) {
        let _ = self
            .word(STATE)
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| (state >= WRITABLE).then_some(SERVED));
    }

    /// The position below which every entry that processes placed for the file is, unless one is in progress.
    pub fn ended(&self) -> u64 {
        self.get(ENDED)
    }

    /// Counts something put into the log for the file, before it is reported as done.
    pub fn change(&self) {
        self.word(CHANGES).fetch_add(1, Ordering::SeqCst);
    }

    /// The count of changes that were put into the log for the file.
    pub fn changes(&self) -> u64 {
        self.word(CHANGES).load(Ordering::SeqCst)
    }

    /// Whether this number of changes is durable.
    pub(crate) fn is_flushed(&self, changes: u64) -> bool {
        self.word(FLUSHED).load(Ordering::SeqCst) >= changes
    }

    /// Records that a flush of the log made that much durable: what there was before it began.
    pub fn flushed(&self, changes: u64) {
        self.word(FLUSHED).fetch_max(changes, Ordering::SeqCst);
    }

    /// Counts a sync that was answered without the server.
    pub fn count_sync(&self) {
        self.word(SYNCS).fetch_add(1, Ordering::Relaxed);
    }

    /// The writes, bytes and syncs since the last call.
    pub fn take_counts(&self) -> [u64; 3] {
        [WRITES, BYTES, SYNCS].map(|word| self.word(word).swap(0, Ordering::Relaxed))
    }

    /// Waits for the turn. The result is `None` if the lock is in an unrecoverable state.
    #[inline]
    pub fn lock(&self) -> Option<Locked<'a>> {
        let locked = robust::lock(self.ledger.lock_words(self.at), || self.set(BROKEN, 1));
        locked.then_some(Locked { turn: *self, of_thread: PhantomData })
    }

    /// Like [`lock`](FileLock::lock), without waiting: `None` also if another process holds it.
    pub fn try_lock(&self) -> Option<Locked<'a>> {
        let locked = robust::try_lock(self.ledger.lock_words(self.at), || self.set(BROKEN, 1));
        locked.then_some(Locked { turn: *self, of_thread: PhantomData })
    }
}

impl<'a> Locked<'a> {
    /// The turn.
    #[inline]
    pub fn turn(&self) -> FileLock<'a> {
        self.turn
    }

    /// Assigns the turn to a file whose entries have this number, for processes to write to.
    pub fn begin(&self, device: u64, inode: u64, uid: u64, durable: bool) {
        self.turn.set(DEVICE, device);
        self.turn.set(INODE, inode);
        self.turn.set(UID, uid);
        // It is unknown whether the file's changes in the log are durable: the counts so far are those of the turn's
        // previous file.
        self.turn.change();
        self.turn.set(STATE, if durable { DURABLE } else { WRITABLE });
    }

    /// Releases the turn from its file. Returns the position up to which processes placed entries for it.
    pub fn end(&self) -> u64 {
        let ended = self.turn.ended();
        self.turn.set(DEVICE, 0);
        self.turn.set(INODE, 0);
        self.turn.set(STATE, FREE);
        ended
    }

    /// Whether a holder died, and no process has handled what it left.
    #[inline]
    pub fn is_broken(&self) -> bool {
        self.turn.get(BROKEN) != 0
    }

    /// Marks the turn as if its holder had died: the server handles what it left.
    pub fn break_it(&self) {
        self.turn.set(BROKEN, 1);
    }

    /// Marks what a dead holder left as handled.
    pub fn mend(&self, ended: u64) {
        self.set_ended(ended);
        self.turn.set(SHORT, 0);
        self.turn.set(BROKEN, 0);
    }

    /// The kernel took less than the log has: the file is the server's until the log has nothing of it any more.
    pub(crate) fn fall_short(&self) {
        // The order matters: a process that dies in between leaves work that is done once more.
        self.turn.set(SHORT, 1);
        self.turn.set(BROKEN, 1);
    }

    pub(crate) fn is_short(&self) -> bool {
        self.turn.get(SHORT) != 0
    }

    pub(crate) fn set_ended(&self, ended: u64) {
        self.turn.set(ENDED, ended);
    }

    pub(crate) fn intend(&self, [parts, offset, len]: [u64; 3]) {
        self.turn.set(PARTS, parts);
        self.turn.set(OFFSET, offset);
        self.turn.set(LEN, len);
    }

    /// The operation that was intended last.
    pub(crate) fn intended(&self) -> [u64; 3] {
        [PARTS, OFFSET, LEN].map(|word| self.turn.get(word))
    }

    pub(crate) fn count_write(&self, bytes: u64) {
        self.turn.word(WRITES).fetch_add(1, Ordering::Relaxed);
        self.turn.word(BYTES).fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        // It is this thread's: the value cannot leave it.
        robust::unlock(self.turn.ledger.lock_words(self.turn.at));
    }
}
