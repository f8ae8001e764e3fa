//! Processes that wait for the log's disk share a flush, and those that die amid one take nothing along that others
//! needed to know.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;

use untorn_ring::{Flushed, Flusher, Geometry, SharedState, Terms, Way};

fn terms() -> Terms {
    let geometry = Geometry::of(64, 1, 3 * 4096 + 8192 + 16 * 128).unwrap();
    Terms { geometry, checksum_seed: 99, turns: 4, limit: 8 }
}

/// Words of a ledger whose log is on a disk.
fn words() -> Vec<AtomicU64> {
    let words: Vec<_> = (0..terms().words().unwrap()).map(|_| AtomicU64::new(0)).collect();
    let ledger = SharedState::of(&words, terms());
    ledger.prepare(Way::Written, 4).unwrap();
    ledger.open().unwrap();
    words
}

/// A disk.
struct Disk<'a, F: FnMut() -> Flushed> {
    flush: F,
    /// The number of times that a process waited for it.
    waits: &'a AtomicU64,
}

/// A disk without a count of waits.
fn disk<F: FnMut() -> Flushed>(flush: F) -> Disk<'static, F> {
    static WAITS: AtomicU64 = AtomicU64::new(0);
    Disk { flush, waits: &WAITS }
}

impl<F: FnMut() -> Flushed> Flusher for Disk<'_, F> {
    fn flush(&mut self) -> Flushed {
        (self.flush)()
    }

    fn wait(&mut self, _: &AtomicU32, _: u32) {
        self.waits.fetch_add(1, Ordering::SeqCst);
        thread::yield_now();
    }

    fn wake(&mut self, _: &AtomicU32) {}
}

#[test]
fn a_request_made_after_a_flush_is_not_answered_by_it() {
    let words = words();
    let ledger = SharedState::of(&words, terms());
    let mut flushes = 0;
    for _ in 0..3 {
        let outcome = ledger.flush_together(&mut disk(|| {
            flushes += 1;
            Flushed::Done
        }));
        assert_eq!(outcome, Flushed::Done);
    }
    assert_eq!(flushes, 3);
    assert_eq!(ledger.way(), Way::Written);
}

/// All that a process wrote before it asks is on the disk when it is answered, and there are fewer flushes than
/// requests.
#[test]
fn eight_share_and_each_is_answered_by_a_flush_that_began_later() {
    const ROUNDS: u64 = 50;
    let words = words();
    let (written, durable, flushes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let together = Barrier::new(8);
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let ledger = SharedState::of(&words, terms());
                for _ in 0..ROUNDS {
                    together.wait();
                    let mine = written.fetch_add(1, Ordering::SeqCst) + 1;
                    let outcome = ledger.flush_together(&mut disk(|| {
                        let upto = written.load(Ordering::SeqCst);
                        flushes.fetch_add(1, Ordering::SeqCst);
                        // A disk takes about as long, and others ask meanwhile.
                        thread::sleep(std::time::Duration::from_millis(2));
                        durable.fetch_max(upto, Ordering::SeqCst);
                        Flushed::Done
                    }));
                    match outcome {
                        Flushed::Done => assert!(durable.load(Ordering::SeqCst) >= mine),
                        // On a machine so busy that no process waited long enough, the server does it.
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
    let ledger = SharedState::of(&words, terms());
    assert!(ledger.is_open());
    assert_eq!(ledger.flush_together(&mut disk(|| Flushed::Failed)), Flushed::Failed);
    assert!(!ledger.is_open());
    let mut flushes = 0;
    let outcome = ledger.flush_together(&mut disk(|| {
        flushes += 1;
        Flushed::Done
    }));
    assert_eq!((outcome, flushes), (Flushed::Done, 1));
}

/// Only the dead process's own description, which others do not know, was told of its flush.
#[test]
fn the_next_caller_flushes_after_a_death_amid_a_flush() {
    let words = words();
    let ledger = SharedState::of(&words, terms());
    thread::scope(|scope| {
        let dies = scope.spawn(|| SharedState::of(&words, terms()).flush_together(&mut disk(|| panic!("it dies"))));
        assert!(dies.join().is_err());
    });
    let mut flushes = 0;
    let outcome = ledger.flush_together(&mut disk(|| {
        flushes += 1;
        Flushed::Done
    }));
    assert_eq!((outcome, flushes), (Flushed::Done, 1));
}

#[test]
fn a_process_that_cannot_flush_does_not_stop_the_others() {
    let words = words();
    let ledger = SharedState::of(&words, terms());
    assert_eq!(ledger.flush_together(&mut disk(|| Flushed::Elsewhere)), Flushed::Elsewhere);
    assert!(ledger.is_open());
    assert_eq!(ledger.flush_together(&mut disk(|| Flushed::Done)), Flushed::Done);
}

/// The one that flushes may have been stopped, for example.
#[test]
fn waiting_for_a_stopped_flusher_is_bounded_and_happens_once() {
    let words = words();
    let (begun, over) = (Barrier::new(2), Barrier::new(2));
    let waits = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            let outcome = SharedState::of(&words, terms()).flush_together(&mut Disk {
                flush: || {
                    begun.wait();
                    over.wait();
                    Flushed::Done
                },
                waits: &AtomicU64::new(0),
            });
            assert_eq!(outcome, Flushed::Done);
        });
        begun.wait();
        let ledger = SharedState::of(&words, terms());
        for waited in [1000, 1000] {
            let outcome = ledger.flush_together(&mut Disk { flush: || Flushed::Done, waits: &waits });
            assert_eq!((outcome, waits.load(Ordering::SeqCst)), (Flushed::Elsewhere, waited));
        }
        over.wait();
    });
    let outcome = SharedState::of(&words, terms()).flush_together(&mut Disk { flush: || Flushed::Done, waits: &waits });
    assert_eq!(outcome, Flushed::Done);
}

#[test]
fn a_sync_flushes_entries_logged_since_the_last_flush_began() {
    let words = words();
    let ledger = SharedState::of(&words, terms());
    let [mine, other] = [5, 6].map(|inode| {
        let turn = ledger.take_turn(1, inode).unwrap();
        turn.lock().unwrap().begin(1, inode, inode, true);
        turn
    });
    let flushes = AtomicU64::new(0);
    let sync = |meanwhile: &dyn Fn()| {
        let before = flushes.load(Ordering::SeqCst);
        let is_its = || mine.is_of(1, 5) && mine.is_durable();
        let outcome = ledger.sync(
            mine,
            is_its,
            &mut disk(|| {
                meanwhile();
                flushes.fetch_add(1, Ordering::SeqCst);
                Flushed::Done
            }),
        );
        assert_eq!(outcome, Flushed::Done);
        flushes.load(Ordering::SeqCst) - before
    };
    // The log may hold changes of the file from before it had the turn, and these may not be durable.
    assert_eq!([sync(&|| ()), sync(&|| ())], [1, 0]);
    other.change();
    assert_eq!(sync(&|| ()), 0, "it is another file's");
    mine.change();
    assert_eq!(sync(&|| mine.change()), 1);
    assert_eq!([sync(&|| ()), sync(&|| ())], [1, 0], "what came during a flush is not durable by it");
    // The server made it durable, and says so.
    mine.change();
    mine.flushed(mine.changes());
    assert_eq!(sync(&|| ()), 0);
    mine.set_durable(false);
    assert_eq!(sync(&|| ()), 1, "it is for the caller to see that it is no more to be answered so");
    mine.set_durable(true);
    assert_eq!(sync(&|| ()), 0);
    mine.lock().unwrap().end();
    let again = ledger.take_turn(1, 5).unwrap();
    again.lock().unwrap().begin(1, 5, 7, true);
    assert_eq!((again.number(), sync(&|| ())), (mine.number(), 1), "it has the turn anew");
}

#[test]
fn a_flush_that_failed_makes_nothing_durable() {
    let words = words();
    let ledger = SharedState::of(&words, terms());
    let turn = ledger.take_turn(1, 5).unwrap();
    turn.lock().unwrap().begin(1, 5, 5, true);
    for outcome in [Flushed::Elsewhere, Flushed::Failed, Flushed::Elsewhere] {
        assert_eq!(ledger.sync(turn, || true, &mut disk(|| outcome)), outcome);
    }
    assert!(!ledger.is_open());
}
