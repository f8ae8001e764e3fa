//! Every interleaving of threads at their thread slots and one that takes all.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model, relax};

#[derive(Default)]
struct ModelSlot {
    word_lock: WordLock,
    /// Only for its holder.
    count: AtomicU64,
}

impl ThreadSlotState for ModelSlot {
    fn word_lock(&self) -> &WordLock {
        &self.word_lock
    }
}

impl ModelSlot {
    fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Two steps, between which nobody else may come.
    fn work(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
    }
}

fn total(all: &[ThreadSlot<'_, ModelSlot>]) -> u64 {
    all.iter().map(|thread_slot| thread_slot.state.count()).sum()
}

/// Returns how many there were.
fn work_at_all(places: &ThreadSlots<ModelSlot>) -> u64 {
    let all = places.acquire_all(relax);
    all.iter().for_each(|thread_slot| thread_slot.state.work());
    all.len() as u64
}

/// Two threads work, at one thread slot or at two, and a third takes all: it sees each one's work whole or not at
/// all, and none is lost.
#[test]
fn a_holder_of_all_slots_is_alone() {
    for thread_slots in [1, 2] {
        model("berths: two at work and one that takes all", Some(1), move || {
            let places = Arc::new(ThreadSlots::<ModelSlot>::new(thread_slots).unwrap());
            let threads = [0, 1].map(|_| {
                let places = places.clone();
                thread::spawn(move || places.acquire(relax).state.work())
            });
            let all = places.acquire_all(relax);
            let (before, taken) = (total(&all), all.len() as u64);
            all.iter().for_each(|thread_slot| thread_slot.state.work());
            assert_eq!(total(&all), before + taken, "somebody else was at work");
            assert_eq!(places.states.iter().map(ModelSlot::count).sum::<u64>(), before + taken, "one was left out");
            drop(all);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(total(&places.acquire_all(relax)), 2 + taken);
        });
    }
}

/// Two that take all do not wait for each other for ever.
#[test]
fn two_that_take_all_take_turns() {
    model("berths: two that take all", Some(3), || {
        let places = Arc::new(ThreadSlots::<ModelSlot>::new(2).unwrap());
        let other = {
            let places = places.clone();
            thread::spawn(move || work_at_all(&places))
        };
        let worked = work_at_all(&places) + other.join().unwrap();
        assert_eq!(total(&places.acquire_all(relax)), worked);
    });
}
