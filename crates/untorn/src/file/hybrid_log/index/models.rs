//! Every interleaving of threads that make slots and one that looks them up, in a tree whose leaves have two slots.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, fence, model, relax};

/// Two threads that come to the same new place get the same slot, and each block keeps its own.
#[test]
fn one_slot_for_each_block() {
    model("index: two threads make two slots", Some(3), || {
        let index = Arc::new(Index::new(8).unwrap());
        let threads = [[0, 3], [3, 0]].map(|blocks| {
            let index = index.clone();
            thread::spawn(move || {
                for block in blocks {
                    let slot = index.make(block).unwrap();
                    slot.lock(false, relax);
                    slot.publish(slot.bitmap() + 1, slot.version() + 1);
                }
            })
        });
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!([0, 1, 2, 3].map(|block| index.get(block).map_or(0, PageState::bitmap)), [2, 0, 0, 2]);
        assert!(index.get(4).is_none());
    });
}

/// A reader that found no slot before its copy and none after it has copied nothing of what a writer stored meanwhile.
#[test]
fn no_slot_means_nothing_was_stored() {
    model("index: a read where no slot is, and a first write", None, || {
        let index = Arc::new(Index::new(8).unwrap());
        let home = Arc::new(AtomicU64::new(0));
        let writer = {
            let (index, home) = (index.clone(), home.clone());
            thread::spawn(move || {
                let slot = index.make(2).unwrap();
                slot.lock(true, relax);
                home.store(1, Ordering::Relaxed);
                slot.unlock_disturbed();
            })
        };
        if index.get(2).is_none() {
            let read = home.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            assert!(index.get(2).is_some() || read == 0, "half of a write was believed");
        }
        writer.join().unwrap();
    });
}
