//! The ledger: the allocation of positions, the complete entries, and the turns. It consists of words in memory that
//! the processes of a run share, or of one process alone.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::entry::Geometry;
use crate::robust;
use crate::turn::{self, FileLock};

/// Says that memory is a shared state of this form.
const MAGIC: u64 = 0x756e_746f_726e_0004;

// Words that do not change are together; of those that do, each has a cache line of its own, or shares one with what
// changes with it.
const SLOTS: usize = 1;
const ENTRY: usize = 2;
const FILES: usize = 3;
const SEAL: usize = 4;
const TURNS: usize = 5;
const LIMIT: usize = 6;
const WRITE_BACK: usize = 7;
const WAY: usize = 8;
const BATCH: usize = 9;
/// 1 as long as processes may append.
const OPEN: usize = 16;
/// The next position, and in the low bits whose turn it was to whom the last ones were given.
const HEAD: usize = 24;
/// Every position below is free, and the log says so durably.
const TAIL: usize = 32;
/// Positions that the server placed: a little late, and never too many.
const SERVED: usize = 40;
/// Positions that processes placed and that are free again.
const FREED: usize = 48;
/// Every entry before is in its file, or stuck.
const SETTLED: usize = 56;
/// The state of the draining thread.
const PHASE: usize = 64;
/// Rung to wake it; seen as half a word only, for that is what the kernel waits for.
const BELL: usize = 65;
/// A lock that the server has as long as it lives.
const ALIVE: usize = 72;
/// A lock: the process that flushes the log for all waiting processes holds it.
pub(crate) const FLUSHING: usize = 80;
/// The words that `group` keeps.
pub(crate) const GROUP: usize = 88;
const FIXED: usize = 96;

const OWNER_BITS: u32 = 16;
const OWNER: u64 = (1 << OWNER_BITS) - 1;
/// In place of a turn: the server placed it.
const SERVER: u64 = OWNER;
/// Marks of a complete position.
const BESIDE: u64 = 1 << 63;
const VOID: u64 = 1 << 62;
const MARKS: u64 = BESIDE | VOID;

/// Turns that a shared state has at most: their numbers share a word with a position.
const MOST_TURNS: usize = 4096;

/// The state of the draining thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Waits for the first entry.
    Idle = 0,
    /// Waits for a batch, or for time to pass.
    Gathering = 1,
    /// Drains.
    Awake = 2,
}

/// How processes write to the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Way {
    /// They store to a mapping of it, which is persistent memory: stores are durable after a fence.
    Mapped = 0,
    /// The same, mapped with `MAP_SYNC`.
    MappedSync = 1,
    /// They write to it, on a disk: writes are durable after a flush, for which they [wait
    /// together](SharedState::flush_together).
    Written = 2,
}

/// The parameters of a ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The dimensions of the log.
    pub geometry: Geometry,
    /// The log's seal in this session.
    pub checksum_seed: u64,
    /// Files for which processes may append at the same time: none, or a power of two.
    pub turns: usize,
    /// The maximum number of entries that processes may have in the log at a time.
    pub limit: u64,
}

impl Terms {
    /// Words that a shared state takes.
    pub fn words(&self) -> Option<usize> {
        let fits = self.turns <= MOST_TURNS && (self.turns == 0 || self.turns.is_power_of_two());
        let before = if fits { FIXED + turn::WORDS * self.turns } else { return None };
        usize::try_from(self.geometry.slots).ok()?.checked_add(before)
    }
}

/// A shared state, wherever its words are.
#[derive(Clone, Copy)]
pub struct SharedState<'a> {
    words: &'a [AtomicU64],
    terms: Terms,
}

impl<'a> SharedState<'a> {
    /// A ledger in words that only this process has prepared, or is about to. The parameters determine how many words
    /// it needs.
    ///
    /// # Panics
    /// If there are fewer words.
    #[inline]
    pub fn of(words: &'a [AtomicU64], terms: Terms) -> Self {
        debug_assert!(Some(words.len()) >= terms.words());
        SharedState { words, terms }
    }

    /// Turns zeroed words into a ledger that other processes can [find](SharedState::find). `way` is how they write
    /// to the log; `batch` is the number of entries that makes a drain worthwhile.
    ///
    /// # Errors
    /// Errors of creating the locks.
    pub fn prepare(&self, way: Way, batch: u64) -> std::io::Result<()> {
        let Terms { geometry, checksum_seed, turns, limit } = self.terms;
        for number in 0..turns {
            robust::make(self.lock_words(FIXED + turn::WORDS * number))?;
        }
        robust::make(self.lock_words(ALIVE))?;
        robust::make(self.lock_words(FLUSHING))?;
        let numbers = [
            (SLOTS, geometry.slots),
            (ENTRY, geometry.entry.into()),
            (FILES, geometry.files.into()),
            (SEAL, checksum_seed),
            (TURNS, turns as u64),
            (LIMIT, limit),
            (WRITE_BACK, crate::flush::write_back() as u64),
            (WAY, way as u64),
            (BATCH, batch),
            (HEAD, SERVER),
            (PHASE, Phase::Awake as u64),
        ];
        for (word, number) in numbers {
            self.words[word].store(number, Ordering::Relaxed);
        }
        self.words[0].store(MAGIC, Ordering::Release);
        Ok(())
    }

    /// The ledger in words that another process prepared; `None` if they are not a ledger, or too few.
    pub fn find(words: &'a [AtomicU64]) -> Option<Self> {
        let word = |at: usize| words.get(at).map(|word| word.load(Ordering::Acquire));
        if word(0)? != MAGIC {
            return None;
        }
        let half = |at: usize| u32::try_from(word(at)?).ok();
        let geometry = Geometry { entry: half(ENTRY)?, files: half(FILES)?, slots: word(SLOTS)? };
        let turns = usize::try_from(word(TURNS)?).ok()?;
        let terms = Terms { geometry, checksum_seed: word(SEAL)?, turns, limit: word(LIMIT)? };
        let fits = geometry.is_valid() && terms.words()? <= words.len();
        fits.then_some(SharedState { words, terms })
    }

    /// The parameters.
    #[inline]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// How processes write to the log.
    pub fn way(&self) -> Way {
        match self.words[WAY].load(Ordering::Relaxed) {
            0 => Way::Mapped,
            1 => Way::MappedSync,
            _ => Way::Written,
        }
    }

    /// The write-back method that the server detected.
    pub fn write_back(&self) -> u64 {
        self.words[WRITE_BACK].load(Ordering::Relaxed)
    }

    pub(crate) fn word(&self, at: usize) -> &'a AtomicU64 {
        &self.words[at]
    }

    pub(crate) fn lock_words(&self, at: usize) -> &'a [AtomicU64] {
        &self.words[at..at + robust::WORDS]
    }

    pub(crate) fn turn_at(number: usize) -> usize {
        FIXED + turn::WORDS * number
    }

    /// Allows processes to append from now on. The end of the calling thread tells them that the server has ended; a
    /// thread that ends for another reason [lets go](SharedState::let_go) first.
    ///
    /// # Errors
    /// An error of the lock, if the ledger was opened before.
    pub fn open(&self) -> std::io::Result<()> {
        robust::keep(self.lock_words(ALIVE))?;
        self.words[OPEN].store(1, Ordering::SeqCst);
        Ok(())
    }

    /// Ends appending by processes, except for appends in progress.
    pub fn close(&self) {
        self.words[OPEN].store(0, Ordering::SeqCst);
    }

    /// The thread that [opened](SharedState::open) the ledger calls this before it ends, and before the words are
    /// freed.
    pub fn let_go(&self) {
        self.close();
        robust::unlock(self.lock_words(ALIVE));
    }

    /// Whether processes may append, and a thread drains.
    #[inline]
    pub fn is_open(&self) -> bool {
        self.words[OPEN].load(Ordering::Acquire) == 1 && robust::is_kept(self.lock_words(ALIVE))
    }

    /// The next position.
    #[inline]
    pub fn head(&self) -> u64 {
        self.words[HEAD].load(Ordering::SeqCst) >> OWNER_BITS
    }

    /// Every position below is free.
    #[inline]
    pub fn tail(&self) -> u64 {
        self.words[TAIL].load(Ordering::Acquire)
    }

    /// Entries that processes have in the log; a few more while the server places some.
    pub fn used_beside(&self) -> u64 {
        if self.terms.turns == 0 {
            return 0;
        }
        // The order matters: the head that is seen includes at least the positions that the other two count.
        let (freed, served) = (self.words[FREED].load(Ordering::Acquire), self.words[SERVED].load(Ordering::Acquire));
        self.head().saturating_sub(served).saturating_sub(freed)
    }

    /// Allocates positions for the server, which has ensured that there is room. Returns the first.
    #[inline]
    pub fn place(&self, entries: u64) -> u64 {
        if self.terms.turns == 0 {
            return self.words[HEAD].fetch_add(entries << OWNER_BITS, Ordering::SeqCst) >> OWNER_BITS;
        }
        let first = self.place_again(entries);
        // This comes after the positions are taken. Until then other processes count them as placed by processes, and
        // so see less room.
        self.words[SERVED].fetch_add(entries, Ordering::Release);
        first
    }

    /// Allocates positions for entries of a process that must move. They count as that process's, like its old ones
    /// until those are free, so that the writes of others do not use up the server's part.
    pub fn place_again(&self, entries: u64) -> u64 {
        let mut head = self.words[HEAD].load(Ordering::SeqCst);
        loop {
            let first = head >> OWNER_BITS;
            self.note_owner(head);
            let next = (first + entries) << OWNER_BITS | SERVER;
            match self.words[HEAD].compare_exchange_weak(head, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return first,
                Err(found) => head = found,
            }
        }
    }

    /// Allocates positions for a process that holds the turn, if there is room.
    #[inline]
    pub(crate) fn place_beside(&self, turn: usize, entries: u64) -> Option<u64> {
        let mut head = self.words[HEAD].load(Ordering::SeqCst);
        loop {
            let first = head >> OWNER_BITS;
            // The counts are read after the head: the exchange below fails if the head that they belong to has
            // changed.
            let served = self.words[SERVED].load(Ordering::Acquire);
            let used = first.saturating_sub(served).saturating_sub(self.words[FREED].load(Ordering::Acquire));
            if used.saturating_add(entries) > self.terms.limit {
                return None;
            }
            self.note_owner(head);
            let next = (first + entries) << OWNER_BITS | turn as u64;
            match self.words[HEAD].compare_exchange_weak(head, next, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return Some(first),
                Err(found) => head = found,
            }
        }
    }

    /// Records, before the head changes, which positions its last owner was given, in case that process dies before
    /// it records this itself.
    #[inline]
    fn note_owner(&self, head: u64) {
        let owner = (head & OWNER) as usize;
        if owner < self.terms.turns {
            self.word(Self::turn_at(owner) + turn::PLACED).fetch_max(head >> OWNER_BITS, Ordering::SeqCst);
        }
    }

    /// The position up to which a turn was given positions.
    pub(crate) fn placed(&self, turn: usize) -> u64 {
        self.note_owner(self.words[HEAD].load(Ordering::SeqCst));
        self.word(Self::turn_at(turn) + turn::PLACED).load(Ordering::SeqCst)
    }

    fn complete_at(&self, position: u64) -> &'a AtomicU64 {
        let place = FIXED + turn::WORDS * self.terms.turns + (position % self.terms.geometry.slots) as usize;
        &self.words[place]
    }

    fn mark(&self, first: u64, parts: u64, marks: u64) {
        // The first comes last: a process that sees it sees all.
        for position in (first..first + parts).rev() {
            self.complete_at(position).store((position + 1) | marks, Ordering::Release);
        }
    }

    /// Marks entries of the server as complete: they may be drained.
    #[inline]
    pub fn complete(&self, first: u64, parts: u64) {
        self.mark(first, parts, 0);
    }

    /// Like [`complete`](SharedState::complete), for entries that a process placed.
    pub fn complete_beside(&self, first: u64, parts: u64) {
        self.mark(first, parts, BESIDE);
    }

    /// Marks positions of a process as void: they have no entry.
    pub fn leave_void(&self, first: u64, parts: u64) {
        self.mark(first, parts, BESIDE | VOID);
    }

    /// Marks complete positions of the server as void: nobody needs their entry any more.
    pub fn void(&self, first: u64, parts: u64) {
        self.mark(first, parts, VOID);
    }

    /// Whether the entry at this position is complete.
    #[inline]
    pub fn is_complete(&self, position: u64) -> bool {
        self.complete_at(position).load(Ordering::Acquire) & !MARKS == position + 1
    }

    /// Whether a process placed the complete entry at this position.
    pub fn is_beside(&self, position: u64) -> bool {
        self.complete_at(position).load(Ordering::Acquire) & BESIDE != 0
    }

    /// Whether this complete position is void.
    #[inline]
    pub fn is_void(&self, position: u64) -> bool {
        self.complete_at(position).load(Ordering::Acquire) & VOID != 0
    }

    /// Frees every position below, after the log durably says so. Returns how many of them the server had placed. One
    /// thread at a time may call it.
    pub fn free(&self, upto: u64) -> u64 {
        // Others have these words in their memory, too, so no sum of them is taken for granted.
        let before = self.tail().clamp(upto.saturating_sub(self.terms.geometry.slots), upto);
        let beside = match self.terms.turns {
            0 => 0,
            _ => (before..upto).filter(|at| self.complete_at(*at).load(Ordering::Acquire) & BESIDE != 0).count() as u64,
        };
        self.words[TAIL].store(upto, Ordering::Release);
        self.words[FREED].fetch_add(beside, Ordering::AcqRel);
        upto - before - beside
    }

    /// The position before which every entry is in its file, or stuck.
    #[inline]
    pub fn settled(&self) -> u64 {
        self.words[SETTLED].load(Ordering::Acquire)
    }

    /// Sets that position.
    pub fn settle(&self, upto: u64) {
        self.words[SETTLED].store(upto, Ordering::Release);
    }

    /// Sets what the draining thread is doing.
    pub fn set_phase(&self, phase: Phase) {
        self.words[PHASE].store(phase as u64, Ordering::SeqCst);
    }

    /// Whether somebody has said that they wake the draining thread, since it stored its phase.
    pub fn is_roused(&self) -> bool {
        self.words[PHASE].load(Ordering::SeqCst) == Phase::Awake as u64
    }

    /// Whether the draining thread must be woken for what waits now; true for one caller only.
    #[inline]
    pub fn rouses(&self, batch: u64) -> bool {
        // The entries were placed before this load, and the thread looks for entries after it has stored its phase:
        // one of the two sees the other.
        let phase = self.words[PHASE].load(Ordering::SeqCst);
        if phase == Phase::Awake as u64 {
            return false;
        }
        // The order matters: other processes write and drain between the two loads, and the settled position never
        // goes beyond a later head.
        let settled = self.settled();
        if phase == Phase::Gathering as u64 && self.head().saturating_sub(settled) < batch {
            return false;
        }
        let awake = Phase::Awake as u64;
        self.words[PHASE].compare_exchange(phase, awake, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Like [`rouses`](SharedState::rouses), for a process: the word to wake a waiter of, after it was changed.
    #[inline]
    pub fn ring(&self) -> Option<&'a AtomicU32> {
        if !self.rouses(self.words[BATCH].load(Ordering::Relaxed)) {
            return None;
        }
        Some(self.ring_now())
    }

    /// Like [`ring`](SharedState::ring), whatever the thread is doing.
    pub fn ring_now(&self) -> &'a AtomicU32 {
        let bell = self.bell();
        bell.fetch_add(1, Ordering::SeqCst);
        bell
    }

    /// The word of the notification.
    pub fn bell(&self) -> &'a AtomicU32 {
        robust::half(&self.words[BELL])
    }

    /// The turn of a file that processes append for; `None` if it has none.
    pub fn turn_of(&self, device: u64, inode: u64) -> Option<FileLock<'a>> {
        self.candidates(device, inode).find(|turn| turn.is_of(device, inode))
    }

    /// Assigns a free turn to this file.
    pub fn take_turn(&self, device: u64, inode: u64) -> Option<FileLock<'a>> {
        self.candidates(device, inode).find(FileLock::take)
    }

    /// A turn by its number.
    pub fn turn(&self, number: usize) -> FileLock<'a> {
        FileLock::new(*self, number)
    }

    /// The turns that a file may have.
    fn candidates(&self, device: u64, inode: u64) -> impl Iterator<Item = FileLock<'a>> + use<'a> {
        let ledger = *self;
        let turns = ledger.terms.turns;
        let hash = (device.rotate_left(32) ^ inode).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let tried = turns.min(8);
        (0..tried).map(move |step| ledger.turn((hash as usize + step) & (turns - 1)))
    }

    /// All turns that files have.
    pub fn turns(&self) -> impl Iterator<Item = FileLock<'a>> + use<'a> {
        let ledger = *self;
        (0..ledger.terms.turns).map(move |number| ledger.turn(number)).filter(FileLock::is_taken)
    }
}
