//! A board: memory in which processes leave calls for the process that has a file open, and find the answers.
//!
//! Each process has *channels*, each for one call at a time: a few words and room for bytes. The board outlives every
//! process, so the next server finds the calls that a dead server left, with everything they need.
//!
//! # Invariants at every instant, whichever process is killed
//!
//! - A channel belongs to its member while it is free or done, and to the server while it is called or begun. The
//!   member hands it over last, with everything else in place; the server hands it back last, with the answer in place.
//! - A call's content does not change until the answer is given. The answer has its own words and its own text; its
//!   bytes replace the call's only if the call has none.
//! - A channel is *begun* only while its call may have changed the file and the answer is not in place: the next server
//!   repeats such a call first.
//! - Changes that no commit covers can be told from none: a change is counted before it is made, and only a commit that
//!   begins after its end covers it.

mod slot;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[cfg(test)]
pub(crate) use self::slot::DONE;
pub(crate) use self::slot::{EXECUTING, FREE, RequestSlot, Words};
use super::rendezvous::MEMBERS;
use super::words::{self, set_random_name, set_text, text};
use crate::sys::shared::SharedPages;

/// Channels of a process: so many of its threads can have a call under way at once.
pub(crate) const REQUEST_SLOTS: usize = 8;
/// The most bytes of a call, or of an answer.
pub(crate) const MOST: usize = 128 << 20;
/// The most bytes of a text that says why a call failed.
pub(crate) const LONGEST: usize = 4096;
/// Of the RPC area's layout and of the messages; processes of different versions don't share.
pub(crate) const VERSION: u64 = 3;

const MAGIC: u64 = u64::from_le_bytes(*b"untornBD");

// First come words of 32 bits, a cache line for each process and one for each request slot.
const HALVES: usize = MEMBERS * 16 * (1 + REQUEST_SLOTS);
const HALF_ATTACHED: usize = 0;
const HALF_REQUEST_SLOTS: usize = 1;

// Then a page of words of 64 bits that all know, and two cache lines of them for each request slot: its call and its
// answer.
const WORDS_AT: usize = HALVES * 4;
const COMMON: usize = 512;
const WORDS: usize = COMMON + MEMBERS * REQUEST_SLOTS * 16;
const WORD_MAGIC: usize = 0;
const WORD_VERSION: usize = 1;
const WORD_ID: usize = 2;
const WORD_IDENTITY: usize = 4;
const WORD_NEGOTIATED_LEN: usize = 8;
const WORD_LEN: usize = 16;
const WORD_GENERATION: usize = 24;
const WORD_BEGUN: usize = 32;
const WORD_COMMITTED: usize = 40;
const WORD_POISONED: usize = 48;
const WORD_LOST: usize = 49;
const WORD_CHANGES: usize = 56;
const WORD_UNDER_WAY: usize = 57;
const WORD_NEGOTIATED: usize = 64;
const NEGOTIATED_WORDS: usize = 128;

// Then for each request slot room for the text of an answer, and for the bytes of the call or of the answer.
const ROOMS_AT: usize = (WORDS_AT + WORDS * 8).next_multiple_of(1 << 16);
const ROOM: usize = LONGEST + MOST;
const TOTAL: usize = ROOMS_AT + MEMBERS * REQUEST_SLOTS * ROOM;

/// The RPC area.
pub(crate) struct RpcArea(SharedPages);

/// A change that is being made.
pub(crate) struct CountedChange<'a>(&'a RpcArea);

impl Drop for CountedChange<'_> {
    fn drop(&mut self) {
        self.0.note_change();
        self.0.words()[WORD_UNDER_WAY].fetch_sub(1, Ordering::SeqCst);
    }
}

impl RpcArea {
    /// A new RPC area of the file with an identity, opened on terms (a text of up to 1024 bytes).
    ///
    /// # Errors
    /// Those of making shared memory; EFBIG where the process's file size limit does not allow it.
    pub(crate) fn create(identity: [u64; 4], negotiated: &str) -> io::Result<Self> {
        let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        if limit.is_some_and(|limit| limit < TOTAL as u64) || negotiated.len() > NEGOTIATED_WORDS * 8 {
            // Beyond the limit the kernel sends a signal that ends the process.
            return Err(rustix::io::Errno::FBIG.into());
        }
        let rpc_area = RpcArea(SharedPages::create("untorn-rpc", TOTAL as u64, TOTAL)?);
        rpc_area.0.allocate(0, ROOMS_AT as u64)?;
        let words = rpc_area.words();
        set_random_name(&words[WORD_ID..][..2])?;
        for (word, value) in words[WORD_IDENTITY..].iter().zip(identity) {
            word.store(value, Ordering::Relaxed);
        }
        set_text(&words[WORD_NEGOTIATED..][..NEGOTIATED_WORDS], negotiated);
        words[WORD_NEGOTIATED_LEN].store(negotiated.len() as u64, Ordering::Relaxed);
        words[WORD_VERSION].store(VERSION, Ordering::Relaxed);
        words[WORD_MAGIC].store(MAGIC, Ordering::Release);
        Ok(rpc_area)
    }

    /// A RPC area that another process has made.
    ///
    /// # Errors
    /// Text if it isn't one; those of `mmap(2)`.
    pub(crate) fn join(file: OwnedFd) -> io::Result<Self> {
        let rpc_area = RpcArea(SharedPages::map(file, TOTAL)?);
        // First its size: beyond its end there is nothing to look at.
        if rpc_area.0.file_len()? < TOTAL as u64
            || rpc_area.words()[WORD_MAGIC].load(Ordering::Acquire) != MAGIC
            || rpc_area.words()[WORD_VERSION].load(Ordering::Relaxed) != VERSION
        {
            return Err(io::Error::other(
                "the process that serves the file sent shared memory of another version; use the same version of \
                 untorn in every process",
            ));
        }
        Ok(rpc_area)
    }

    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.0.file()
    }

    fn words(&self) -> &[AtomicU64] {
        self.0.words(WORDS_AT, WORDS)
    }

    fn half(&self, index: usize) -> &AtomicU32 {
        &self.0.halves(0, HALVES)[index]
    }

    /// Which RPC area this is, among all there ever were.
    pub(crate) fn name(&self) -> String {
        words::name(&self.words()[WORD_ID..])
    }

    /// The identity of the file.
    pub(crate) fn identity(&self) -> [u64; 4] {
        std::array::from_fn(|index| self.words()[WORD_IDENTITY + index].load(Ordering::Relaxed))
    }

    /// On what terms the file was opened.
    pub(crate) fn negotiated(&self) -> String {
        let words = self.words();
        let len = words[WORD_NEGOTIATED_LEN].load(Ordering::Relaxed);
        text(&words[WORD_NEGOTIATED..][..NEGOTIATED_WORDS], len)
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> u64 {
        self.words()[WORD_LEN].load(Ordering::SeqCst)
    }

    pub(crate) fn set_len(&self, len: u64) {
        self.words()[WORD_LEN].store(len, Ordering::SeqCst);
    }

    /// A count of changes, whichever process serves.
    #[inline]
    pub(crate) fn changes(&self) -> u64 {
        self.words()[WORD_CHANGES].load(Ordering::SeqCst)
    }

    /// Counts a change that was made, or may have been, before anybody is told.
    pub(crate) fn note_change(&self) {
        self.words()[WORD_CHANGES].fetch_add(1, Ordering::SeqCst);
    }

    /// Counts a change once the value is dropped, after it was made and before anybody is told.
    pub(crate) fn count_change(&self) -> CountedChange<'_> {
        self.words()[WORD_UNDER_WAY].fetch_add(1, Ordering::SeqCst);
        CountedChange(self)
    }

    /// Counts the changes that a killed server may have made and not counted, before this process serves.
    pub(crate) fn count_unfinished(&self) {
        let under_way = &self.words()[WORD_UNDER_WAY];
        if under_way.load(Ordering::SeqCst) != 0 {
            self.note_change();
            under_way.store(0, Ordering::SeqCst);
        }
    }

    /// How often an open epoch was lost, or a failure ended all promises. Whoever took part before the last time has
    /// lost writes, or seen lost ones, or would see later calls succeed after one that failed for good.
    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.words()[WORD_GENERATION].load(Ordering::SeqCst)
    }

    /// Counts a change of the open epoch, before it is made.
    pub(crate) fn begin_change(&self) {
        self.words()[WORD_BEGUN].fetch_add(1, Ordering::SeqCst);
    }

    /// Changes counted so far.
    pub(crate) fn begun(&self) -> u64 {
        self.words()[WORD_BEGUN].load(Ordering::SeqCst)
    }

    /// Says that the first so many changes are committed.
    pub(crate) fn mark_committed(&self, changes: u64) {
        self.words()[WORD_COMMITTED].fetch_max(changes, Ordering::SeqCst);
    }

    /// Whether there may be changes that no commit covers.
    pub(crate) fn has_uncommitted(&self) -> bool {
        self.begun() != self.words()[WORD_COMMITTED].load(Ordering::SeqCst)
    }

    /// Says that a failure ended all promises to those who take part now, whoever serves them next.
    pub(crate) fn mark_poisoned(&self) {
        self.words()[WORD_POISONED].store(1, Ordering::SeqCst);
    }

    /// Whether the present generation began because changes were lost.
    pub(crate) fn was_lost(&self) -> bool {
        self.words()[WORD_LOST].load(Ordering::SeqCst) != 0
    }

    /// Begins a new generation if there are changes that no commit covers, which are given up in the name of all who
    /// took part so far, or if a failure ended all promises to them. Done in part by a process that was killed, it is
    /// done again by the next.
    pub(crate) fn lose_epoch(&self) {
        let (words, lost) = (self.words(), self.has_uncommitted());
        if lost || words[WORD_POISONED].load(Ordering::SeqCst) != 0 {
            words[WORD_LOST].store(lost.into(), Ordering::SeqCst);
            words[WORD_GENERATION].fetch_add(1, Ordering::SeqCst);
            // Last what says whether anything was lost.
            words[WORD_POISONED].store(0, Ordering::SeqCst);
            self.mark_committed(self.begun());
        }
    }

    /// Whether a process takes part.
    pub(crate) fn is_attached(&self, slot: usize) -> bool {
        self.half(slot * 16 + HALF_ATTACHED).load(Ordering::SeqCst) != 0
    }

    pub(crate) fn set_attached(&self, slot: usize, now: bool) {
        self.half(slot * 16 + HALF_ATTACHED).store(now.into(), Ordering::SeqCst);
    }

    /// How many request slots a process has opened.
    pub(crate) fn request_slots(&self, slot: usize) -> usize {
        (self.half(slot * 16 + HALF_REQUEST_SLOTS).load(Ordering::SeqCst) as usize).min(REQUEST_SLOTS)
    }

    pub(crate) fn set_request_slots(&self, slot: usize, count: usize) {
        self.half(slot * 16 + HALF_REQUEST_SLOTS).store(count as u32, Ordering::SeqCst);
    }

    /// Makes all channels of a slot free again, whose process is gone and which nobody serves, and gives their memory
    /// back.
    pub(crate) fn clear(&self, slot: usize) {
        self.set_attached(slot, false);
        for request_slot in (0..REQUEST_SLOTS).map(|index| self.request_slot(slot, index)) {
            request_slot.set_state(FREE);
            if request_slot.index() < self.request_slots(slot) {
                request_slot.release(0);
            }
        }
        self.set_request_slots(slot, 0);
    }

    pub(crate) fn request_slot(&self, slot: usize, index: usize) -> RequestSlot<'_> {
        assert!(slot < MEMBERS && index < REQUEST_SLOTS);
        RequestSlot::new(self, slot * REQUEST_SLOTS + index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_and_its_answer_cross_two_mappings() {
        let server = RpcArea::create([1, 2, 3, 4], "engine reflection\n").unwrap();
        let member = RpcArea::join(server.file().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!((member.identity(), member.negotiated()), ([1, 2, 3, 4], "engine reflection\n".to_owned()));
        assert_eq!(member.name(), server.name());
        std::thread::scope(|scope| {
            let owner = scope.spawn(|| {
                let request_slot = server.request_slot(MEMBERS - 1, REQUEST_SLOTS - 1);
                let mut served = 0;
                while request_slot.await_call(|| served == 100) {
                    let words = request_slot.asked();
                    let mut bytes = [0; 3];
                    request_slot.get(MOST - 3, &mut bytes);
                    request_slot.put(0, &bytes.map(|byte| byte + 1));
                    request_slot.set_answer(Words {
                        a: words.a * 2,
                        len: request_slot.set_text("so"),
                        ..Words::default()
                    });
                    assert_eq!(request_slot.asked(), words);
                    served += 1;
                    request_slot.answer();
                }
            });
            let request_slot = member.request_slot(MEMBERS - 1, REQUEST_SLOTS - 1);
            request_slot.allocate(MOST).unwrap();
            for round in 0..100 {
                request_slot.put(MOST - 3, &[round, 7, 8]);
                request_slot.ask(Words { a: round.into(), ..Words::default() });
                request_slot.call();
                assert!(request_slot.await_answer(|| false));
                let mut bytes = [0; 3];
                request_slot.get(0, &mut bytes);
                let answer = request_slot.answered();
                assert_eq!((bytes, answer.a), ([round + 1, 8, 9], u64::from(round) * 2));
                assert_eq!(request_slot.text(answer.len), "so");
                request_slot.set_state(FREE);
            }
            request_slot.notify();
            owner.join().unwrap();
        });
        member.request_slot(MEMBERS - 1, REQUEST_SLOTS - 1).release(4096);
        let mut bytes = [9; 3];
        server.request_slot(MEMBERS - 1, REQUEST_SLOTS - 1).get(MOST - 3, &mut bytes);
        assert_eq!(bytes, [0; 3], "its memory was not given back");
    }

    #[test]
    fn an_epoch_is_lost_unless_all_of_it_is_covered() {
        let rpc_area = RpcArea::create([0; 4], "").unwrap();
        rpc_area.lose_epoch();
        assert_eq!(rpc_area.generation(), 0, "nothing was begun");
        rpc_area.begin_change();
        rpc_area.mark_committed(1);
        rpc_area.lose_epoch();
        assert_eq!(rpc_area.generation(), 0, "it was committed");
        rpc_area.begin_change();
        rpc_area.begin_change();
        rpc_area.mark_committed(2);
        rpc_area.lose_epoch();
        assert_eq!((rpc_area.generation(), rpc_area.has_uncommitted()), (1, false));
        rpc_area.lose_epoch();
        assert_eq!(rpc_area.generation(), 1, "once is enough");
    }

    #[test]
    fn a_change_that_was_not_counted_is_counted_by_the_next_server() {
        let rpc_area = RpcArea::create([0; 4], "").unwrap();
        drop(rpc_area.count_change());
        rpc_area.count_unfinished();
        assert_eq!(rpc_area.changes(), 1, "it was counted");
        // Killed amid it.
        std::mem::forget(rpc_area.count_change());
        rpc_area.count_unfinished();
        rpc_area.count_unfinished();
        assert_eq!(rpc_area.changes(), 2);
    }

    #[test]
    fn a_failure_is_told_to_all_who_took_part() {
        let rpc_area = RpcArea::create([0; 4], "").unwrap();
        rpc_area.mark_poisoned();
        assert_eq!(rpc_area.generation(), 0, "as long as the same process serves");
        rpc_area.lose_epoch();
        assert_eq!((rpc_area.generation(), rpc_area.was_lost()), (1, false));
        rpc_area.lose_epoch();
        assert_eq!(rpc_area.generation(), 1, "once is enough");
        rpc_area.mark_poisoned();
        rpc_area.begin_change();
        rpc_area.lose_epoch();
        assert_eq!((rpc_area.generation(), rpc_area.was_lost()), (2, true));
    }

    #[test]
    fn clearing_a_slot_frees_its_channels() {
        let rpc_area = RpcArea::create([0; 4], "").unwrap();
        let mut bytes = [0; 3];
        let request_slots = [0, REQUEST_SLOTS - 1].map(|index| rpc_area.request_slot(5, index));
        for request_slot in request_slots {
            request_slot.allocate(1 << 20).unwrap();
            request_slot.put(9000, b"abc");
            request_slot.call();
        }
        rpc_area.set_attached(5, true);
        rpc_area.set_request_slots(5, REQUEST_SLOTS);
        // A call that was given up is nobody's any more; one that is under way is the server's.
        request_slots[0].withdraw();
        assert_eq!(request_slots[0].state(), FREE);
        request_slots[1].set_state(EXECUTING);
        request_slots[1].withdraw();
        assert_eq!(request_slots[1].state(), EXECUTING);
        rpc_area.clear(5);
        assert_eq!((rpc_area.is_attached(5), rpc_area.request_slots(5)), (false, 0));
        for request_slot in request_slots {
            request_slot.get(9000, &mut bytes);
            assert_eq!((request_slot.state(), bytes), (FREE, [0; 3]), "its memory was not given back");
        }
    }

    #[test]
    fn memory_that_is_no_rpc_area_is_refused() {
        let small = SharedPages::create("untorn-test", 4096, 4096).unwrap();
        assert!(RpcArea::join(small.file().try_clone_to_owned().unwrap()).is_err());
        let empty = SharedPages::create("untorn-test", TOTAL as u64, 4096).unwrap();
        assert!(RpcArea::join(empty.file().try_clone_to_owned().unwrap()).is_err());
        assert!(RpcArea::create([0; 4], &"x".repeat(NEGOTIATED_WORDS * 8 + 1)).is_err());
    }
}
