//! Processes that wait for the log's disk share a flush, and those that die amid one take nothing along that others needed to know.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use untorn_ring::{Flushed, Flusher, Geometry, Ledger, Terms, Way};

fn terms() -> Terms {
    let geometry = Geometry::of(64, 1, 3 * 4096 + 8192 + 16 * 128).unwrap();
    Terms { geometry, seal: 99, turns: 4, limit: 8 }
}

/// Words of a ledger whose log is on a disk.
fn words() -> Vec<AtomicU64> {
    let words: Vec<_> = (0..terms().words().unwrap()).map(|_| AtomicU64::new(0)).collect();
    let ledger = Ledger::of(&words, terms());
    ledger.prepare(Way::Written, 4).unwrap();
    ledger.open().unwrap();
    words
}

/// A disk.
struct Disk<F: FnMut() -> bool>(F);

impl<F: FnMut() -> bool> Flusher for Disk<F> {
    fn flush(&mut self) -> bool {
        self.0()
    }

    fn wait(&mut self, _: &AtomicU32, _: u32) {
        thread::yield_now();
    }

    fn wake(&mut self, _: &AtomicU32) {}
}

#[test]
fn a_request_made_after_a_flush_is_not_answered_by_it() {
    let words = words();
    let ledger = Ledger::of(&words, terms());
    let mut flushes = 0;
    for _ in 0..3 {
        let outcome = ledger.flush_together(&mut Disk(|| {
            flushes += 1;
            true
        }));
        assert_eq!(outcome, Flushed::Done);
    }
    assert_eq!(flushes, 3);
    assert_eq!(ledger.way(), Way::Written);
}

/// What each has written before it asks is on the disk when it is answered, and there are fewer flushes than requests.
#[test]
fn eight_share_and_each_is_answered_by_a_flush_that_began_later() {
    const ROUNDS: u64 = 50;
    let words = words();
    let (written, durable, flushes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let together = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let ledger = Ledger::of(&words, terms());
                for _ in 0..ROUNDS {
                    together.wait();
                    let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                    let outcome = ledger.flush_together(&mut Disk(|| {
                        let upto = written.load(Ordering::SeqCst);
                        flushes.fetch_add(1, Ordering::SeqCst);
                        // As long as a disk takes, in which others ask.
                        thread::sleep(std::time::Duration::from_millis(2));
                        durable.fetch_max(upto, Ordering::SeqCst);
                        true
                    }));
                    match outcome {
                        Flushed::Done => assert!(durable.load(Ordering::SeqCst) >= mine),
                        // On a machine with so much else to do that nobody's patience lasted: the server does it.
                        other => assert_eq!(other, Flushed::Elsewhere),
                    }
                }
            });
        }
    });
    let flushes = flushes.load(Ordering::SeqCst);
    assert!(flushes < 8 * ROUNDS, "{flushes} flushes for {} requests", 8 * ROUNDS);
}

#[test]
fn a_failed_flush_ends_all_appending_and_answers_nobody() {
    let words = words();
    let ledger = Ledger::of(&words, terms());
    assert!(ledger.is_open());
    assert_eq!(ledger.flush_together(&mut Disk(|| false)), Flushed::Failed);
    assert!(!ledger.is_open());
    let mut flushes = 0;
    let outcome = ledger.flush_together(&mut Disk(|| {
        flushes += 1;
        true
    }));
    assert_eq!((outcome, flushes), (Flushed::Done, 1));
}

/// It may have been told of a failure, which nobody else is told then but who had the log open before.
#[test]
fn after_a_death_amid_a_flush_it_is_for_the_server() {
    let words = words();
    let ledger = Ledger::of(&words, terms());
    thread::scope(|scope| {
        let dies = scope.spawn(|| Ledger::of(&words, terms()).flush_together(&mut Disk(|| panic!("it dies"))));
        assert!(dies.join().is_err());
    });
    for _ in 0..2 {
        assert_eq!(ledger.flush_together(&mut Disk(|| panic!("it answers for others"))), Flushed::Elsewhere);
    }
    let deaths = ledger.deaths();
    assert_eq!(deaths, Some(1));
    ledger.mend_flushes(1);
    assert_eq!(ledger.deaths(), None);
    assert_eq!(ledger.flush_together(&mut Disk(|| true)), Flushed::Done);
}

/// One that was stopped, say.
#[test]
fn nobody_waits_for_ever_for_one_who_flushes() {
    let words = words();
    let (begun, over) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        scope.spawn(|| {
            let outcome = Ledger::of(&words, terms()).flush_together(&mut Disk(|| {
                begun.wait();
                over.wait();
                true
            }));
            assert_eq!(outcome, Flushed::Done);
        });
        begun.wait();
        let ledger = Ledger::of(&words, terms());
        assert_eq!(ledger.flush_together(&mut Disk(|| true)), Flushed::Elsewhere);
        over.wait();
    });
}
