//! Every interleaving of threads at their berths and one that takes all.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model, relax};

#[derive(Default)]
struct Place {
    gate: Gate,
    /// Only for its holder.
    count: AtomicU64,
}

impl BerthState for Place {
    fn gate(&self) -> &Gate {
        &self.gate
    }
}

impl Place {
    /// Two steps, between which nobody else may come.
    fn work(&self) {
        let count = self.count.load(Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Relaxed);
    }
}

fn total(all: &[Berth<'_, Place>]) -> u64 {
    all.iter().map(|berth| berth.state.count.load(Ordering::Relaxed)).sum()
}

/// Two threads work, at one berth or at two, and a third takes all: it sees each one's work whole or not at all, and none
/// is lost.
#[test]
fn who_has_all_is_alone() {
    for berths in [1, 2] {
        model("berths: two at work and one that takes all", Some(1), move || {
            let places = Arc::new(Berths::<Place>::new(berths).unwrap());
            let threads = [0, 1].map(|_| {
                let places = places.clone();
                thread::spawn(move || places.acquire(relax).state.work())
            });
            let all = places.acquire_all(relax);
            let before = total(&all);
            all.iter().for_each(|berth| berth.state.work());
            assert_eq!(total(&all), before + berths as u64, "somebody else was at work");
            drop(all);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            assert_eq!(total(&places.acquire_all(relax)), 2 + berths as u64);
        });
    }
}

/// Two that take all do not wait for each other for ever.
#[test]
fn two_that_take_all_take_turns() {
    model("berths: two that take all", Some(3), || {
        let places = Arc::new(Berths::<Place>::new(2).unwrap());
        let other = {
            let places = places.clone();
            thread::spawn(move || places.acquire_all(relax).iter().for_each(|berth| berth.state.work()))
        };
        places.acquire_all(relax).iter().for_each(|berth| berth.state.work());
        other.join().unwrap();
        assert_eq!(total(&places.acquire_all(relax)), 4);
    });
}
