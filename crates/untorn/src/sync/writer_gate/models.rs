//! Every interleaving of threads that pass the gate and one that closes it. Without `membarrier(2)`, which no model
//! has, both sides have a fence of their own.
//!
//! They check owner, slot and closer. The order of the writer's store before its load is convicted by `litmus.rs`.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model, relax};

#[derive(Default)]
struct Guarded {
    one: AtomicU64,
    two: AtomicU64,
}

impl Guarded {
    /// Two steps, between which no closer may look.
    fn work(&self) {
        for word in [&self.one, &self.two] {
            word.store(word.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }

    fn look(&self) -> (u64, u64) {
        (self.one.load(Ordering::Relaxed), self.two.load(Ordering::Relaxed))
    }
}

/// A writer with a slot of its own, and a closer that finds its work whole or not begun.
#[test]
fn a_closer_finds_no_writer_inside() {
    model("writer gate: a writer and a closer", Some(3), || {
        let shared = Arc::new((WriterGate::new(1).unwrap(), Guarded::default()));
        let theirs = shared.clone();
        let writer = thread::spawn(move || {
            let _inside = theirs.0.enter(relax);
            theirs.1.work();
        });
        let closed = shared.0.close(relax).unwrap();
        let (one, two) = shared.1.look();
        assert_eq!(one, two);
        drop(closed);
        writer.join().unwrap();
        let _closed = shared.0.close(relax).unwrap();
        assert_eq!(shared.1.look(), (1, 1));
    });
}

/// A thread that shares its slot with another, which owns it.
#[test]
fn a_closer_waits_for_a_thread_without_a_slot() {
    model("writer gate: a thread without a slot and a closer", Some(3), || {
        let shared = Arc::new((WriterGate::new(1).unwrap(), Guarded::default()));
        drop(shared.0.enter(relax));
        let theirs = shared.clone();
        let writer = thread::spawn(move || {
            let _inside = theirs.0.enter(relax);
            theirs.1.work();
        });
        let closed = shared.0.close(relax).unwrap();
        let (one, two) = shared.1.look();
        assert_eq!(one, two);
        drop(closed);
        writer.join().unwrap();
    });
}
