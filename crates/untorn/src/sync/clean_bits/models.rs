//! Every interleaving of a reader of a clean block and those who change it, bring it home and clean it again: as the
//! reflection engine does, and as the hybrid log does under undo and under redo.

use loom::thread;

use super::*;
use crate::sync::page_seqlock::PageState;
use crate::sys::sync::{Arc, model, relax, zeroed};

/// A file of one block of two words, at home and beside it. What the block's state says is 0 while all of it is at
/// home.
struct File {
    sequence: SequenceCounter,
    len: AtomicU64,
    blocks: CleanBits,
    state: PageState,
    home: [AtomicU64; 2],
    beside: [AtomicU64; 2],
    /// Redo: how far the entry is.
    entry: AtomicU64,
    /// The last write that returned.
    returned: AtomicU64,
}

const LEN: u64 = 64;

const LIVE: u64 = 1;
const CARRIED: u64 = 2;
const GONE: u64 = 3;

fn fill(words: &[AtomicU64; 2], value: u64) {
    words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
}

impl File {
    fn new() -> Arc<Self> {
        let words = || [(); 2].map(|()| AtomicU64::new(0));
        Arc::new(File {
            sequence: zeroed(),
            len: AtomicU64::new(LEN),
            blocks: CleanBits::new(1).unwrap(),
            state: zeroed(),
            home: words(),
            beside: words(),
            entry: AtomicU64::new(0),
            returned: AtomicU64::new(0),
        })
    }

    /// A write that goes beside the file: to the reflection page, or to the log under redo.
    fn write_shared(&self, value: u64) {
        self.state.lock(false, relax);
        assert_eq!(self.state.bitmap(), 0);
        self.blocks.mark_dirty(0);
        fill(&self.beside, value);
        self.entry.store(LIVE, Ordering::Release);
        self.state.publish(1, self.state.version() + 1);
        self.returned.store(value, Ordering::Release);
    }

    /// A write that goes to the file itself, as under undo.
    fn write_home(&self, value: u64) {
        self.state.lock(true, relax);
        self.blocks.mark_dirty(0);
        fill(&self.home, value);
        self.state.unlock_disturbed();
        self.returned.store(value, Ordering::Release);
    }

    fn bring_home(&self) {
        for (home, word) in self.home.iter().zip(&self.beside) {
            home.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// Brings the block home as the reflection engine does: a write of what is there already.
    fn deploy(&self) {
        self.state.lock(false, relax);
        self.bring_home();
        self.entry.store(GONE, Ordering::Release);
        self.state.publish(0, self.state.version() + 1);
    }

    /// Brings the entry home as a checkpoint of the hybrid log does: by a claim on it, without the block's lock.
    fn carry(&self) {
        let claimed = self.entry.load(Ordering::Acquire) == LIVE
            && self.entry.compare_exchange(LIVE, CARRIED, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if claimed {
            fence(Ordering::Release);
            self.bring_home();
            self.entry.store(GONE, Ordering::Release);
        }
    }

    /// Lets the block count as clean if it is: what is beside the file is of no more use, and nobody has the lock.
    fn clean(&self) {
        if self.state.try_hold() {
            if self.state.bitmap() == 0 || self.entry.load(Ordering::Acquire) == GONE {
                self.blocks.mark_clean(0..1, &self.sequence);
                self.state.publish(0, self.state.version() + 1);
            } else {
                self.state.unlock();
            }
        }
    }

    /// The fast path of a read; `None` if the block is not clean or did not stay so.
    fn read(&self) -> Option<u64> {
        let returned = self.returned.load(Ordering::Acquire);
        let sequence = self.sequence.read()?;
        if self.len.load(Ordering::Acquire) < LEN {
            return None;
        }
        let read_guard = self.blocks.read_guard(0, sequence)?;
        let [first, second] = [0, 1].map(|word| self.home[word].load(Ordering::Relaxed));
        read_guard.validate(&self.sequence).then(|| {
            assert_eq!(first, second, "a mixture of two writes");
            assert!(first >= returned, "{first}, though the write of {returned} had returned");
            first
        })
    }
}

/// Runs these beside a reader, each in a thread of its own.
fn beside_a_reader<const N: usize>(bodies: [fn(&File); N]) -> Arc<File> {
    let file = File::new();
    let threads = bodies.map(|body| {
        let file = Arc::clone(&file);
        thread::spawn(move || body(&file))
    });
    file.read();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    file
}

#[test]
fn a_calm_block_is_read_whole_and_fresh() {
    model("calm blocks: a reader and a writer that deploys", Some(4), || {
        let file = beside_a_reader([|file| {
            file.write_shared(1);
            file.deploy();
            file.clean();
        }]);
        assert_eq!(file.read(), Some(1));
    });
}

#[test]
fn a_block_calmed_between_two_writes_is_read_whole_and_fresh() {
    model("calm blocks: a reader and a writer that goes on", Some(3), || {
        let file = beside_a_reader([|file| {
            for value in 1..=2 {
                file.write_shared(value);
                file.deploy();
                file.clean();
            }
        }]);
        assert_eq!(file.read(), Some(2));
    });
}

#[test]
fn marking_a_block_clean_beside_its_writer_is_harmless() {
    model("calm blocks: a reader, a writer, and one who calms", Some(2), || {
        let write = |file: &File| {
            file.write_shared(1);
            file.deploy();
        };
        let file = beside_a_reader([write, File::clean]);
        assert!(file.read().is_none_or(|read| read == 1));
    });
}

#[test]
fn a_block_written_in_place_is_read_whole_and_fresh() {
    model("calm blocks: a reader and a writer in place", Some(4), || {
        let file = beside_a_reader([|file| {
            file.write_home(1);
            file.clean();
        }]);
        assert_eq!(file.read(), Some(1));
    });
}

#[test]
fn a_block_marked_clean_between_writes_is_read_whole_and_fresh() {
    model("calm blocks: a reader and a writer in place that goes on", Some(3), || {
        let file = beside_a_reader([|file| {
            for value in 1..=2 {
                file.write_home(value);
                file.clean();
            }
        }]);
        assert_eq!(file.read(), Some(2));
    });
}

#[test]
fn marking_clean_beside_an_in_place_writer_is_harmless() {
    model("calm blocks: a reader, a writer in place, and one who calms", Some(2), || {
        let write = |file: &File| (1..=2).for_each(|value| file.write_home(value));
        let file = beside_a_reader([write, File::clean]);
        assert!(file.read().is_none_or(|read| read == 2));
    });
}

#[test]
fn an_entry_goes_home_beside_a_reader() {
    model("calm blocks: a reader, a writer of entries, and a checkpoint", Some(2), || {
        let carry = |file: &File| {
            file.carry();
            file.clean();
        };
        let file = beside_a_reader([|file| file.write_shared(1), carry]);
        file.carry();
        file.clean();
        assert_eq!(file.read(), Some(1));
    });
}

#[test]
fn a_block_that_is_cut_off_and_comes_back_is_read_whole() {
    model("calm blocks: a reader, a shrink and a growth", Some(3), || {
        let file = File::new();
        fill(&file.home, 1);
        let other = Arc::clone(&file);
        let resizer = thread::spawn(move || {
            let show = |len| {
                other.sequence.write_begin();
                other.len.store(len, Ordering::Release);
                other.sequence.write_end();
            };
            show(0);
            // The kernel makes zeros of what was cut off.
            fence(Ordering::SeqCst);
            fill(&other.home, 0);
            show(LEN);
        });
        file.read();
        resizer.join().unwrap();
        assert_eq!(file.read(), Some(0));
    });
}

/// Two blocks whose bits are in different words.
const TWO: [u64; 2] = [0, 64];

#[test]
fn a_visible_write_leaves_none_of_its_blocks_clean() {
    model("calm blocks: a reader and a writer of two blocks", Some(3), || {
        let states: [PageState; 2] = [zeroed(), zeroed()];
        let all = Arc::new((states, CleanBits::new(128).unwrap(), zeroed::<SequenceCounter>()));
        let writer = Arc::clone(&all);
        let writer = thread::spawn(move || {
            let (states, blocks, _) = &*writer;
            states.iter().for_each(|state| state.lock(false, relax));
            for (state, block) in states.iter().zip(TWO) {
                state.begin_publishing();
                blocks.mark_dirty(block);
            }
            states.iter().for_each(|state| state.publish(1, state.version() + 1));
        });
        let (states, blocks, sequence) = &*all;
        for (one, other) in [(0, 1), (1, 0)] {
            if states[one].bitmap() == 1 {
                assert!(blocks.read_guard(TWO[other], sequence.read().unwrap()).is_none(), "half of a write is seen");
            }
        }
        writer.join().unwrap();
    });
}
