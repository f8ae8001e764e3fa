//! Several threads write to one file that is written through: writes that share no page run at the same time, and all
//! others one after the other.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;

use untorn::write_cache::CachedFile;
use untorn_testing::{SplitMix, cases, seed};

use crate::common::shelf::{Book, Setup, small};

const PATH: &str = "/slow/file";
const PAGE: u64 = 4096;
/// Ample for a thread that need not wait for another.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a thread that must wait is seen to do so.
const WHILE: Duration = Duration::from_millis(50);

/// A write that stops in the file, until it is let go.
#[derive(Default)]
struct Stop {
    is_in: Mutex<bool>,
    went_in: Condvar,
    is_over: Mutex<bool>,
    over: Condvar,
}

impl Stop {
    /// Stops the first write to an offset.
    fn at(book: &Book, offset: u64) -> Arc<Stop> {
        let stop = Arc::new(Stop::default());
        let (own, first) = (stop.clone(), AtomicBool::new(true));
        *book.in_write.lock().unwrap() = Some(Arc::new(move |at| {
            if at == offset && first.swap(false, Ordering::Relaxed) {
                *own.is_in.lock().unwrap() = true;
                own.went_in.notify_all();
                let waited = own.over.wait_timeout_while(own.is_over.lock().unwrap(), PATIENCE, |over| !*over);
                assert!(!waited.unwrap().1.timed_out(), "nobody lets the write go");
            }
        }));
        stop
    }

    fn wait(&self) {
        let waited = self.went_in.wait_timeout_while(self.is_in.lock().unwrap(), PATIENCE, |is_in| !*is_in);
        assert!(!waited.unwrap().1.timed_out(), "the write does not come to the file");
    }

    fn let_go(&self) {
        *self.is_over.lock().unwrap() = true;
        self.over.notify_all();
    }
}

/// Lets an operation begin while a write to the start of page 0 is in the file. Whether it ended meanwhile.
fn ends_beside(operation: impl Fn(&CachedFile) + Send + Sync) -> bool {
    let (setup, cache, [book]) = Setup::create(small(256), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(&[1; 3 * PAGE as usize], 0).unwrap();
    cache.drain().unwrap();
    let stop = Stop::at(&book, 0);
    let (sender, ended) = channel();
    thread::scope(|scope| {
        scope.spawn(|| file.write_at(&[2; 100], 0).unwrap());
        stop.wait();
        let (file, operation) = (&file, &operation);
        scope.spawn(move || {
            operation(file);
            sender.send(()).unwrap();
        });
        // One that ends is waited for; one that does not is watched for a while.
        let ended_beside = match ended.recv_timeout(WHILE) {
            Ok(()) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => panic!("the operation failed"),
        };
        stop.let_go();
        if !ended_beside {
            ended.recv_timeout(PATIENCE).unwrap();
        }
        ended_beside
    })
}

#[test]
fn writes_to_other_pages_run_at_the_same_time() {
    let beside = |operation: &(dyn Fn(&CachedFile) + Send + Sync)| {
        // A thread may not get a processor for longer than that.
        (0..100).any(|_| ends_beside(operation))
    };
    assert!(beside(&|file| file.write_at(&[3; 100], PAGE).unwrap()), "a write to another page waits");
    assert!(beside(&|file| file.write_at(&[3; 100], 5 * PAGE).unwrap()), "a write beyond the end waits");
    assert!(beside(&|file| assert_eq!(file.read_at(&mut [0; 9], PAGE).unwrap(), 9)), "a read of another page waits");
}

#[test]
fn operations_that_do_not_commute_wait_for_each_other() {
    type Operation = &'static (dyn Fn(&CachedFile) + Send + Sync);
    let operations: [(&str, Operation); 5] = [
        ("a write to other bytes of the page", &|file| file.write_at(&[3; 100], 2000).unwrap()),
        ("a write from the page before the next", &|file| file.write_at(&[3; 200], PAGE - 100).unwrap()),
        ("a read of the page", &|file| assert_eq!(file.read_at(&mut [0; 9], 0).unwrap(), 9)),
        ("a write to the end", &|file| assert_eq!(file.append(b"end").unwrap(), 3 * PAGE)),
        ("a change of the length", &|file| file.set_len(PAGE).unwrap()),
    ];
    for (name, operation) in operations {
        assert!(!ends_beside(operation), "{name} did not wait");
    }
}

/// The log has the operations of a page in the order of the kernel.
#[test]
fn a_replay_leaves_what_threads_left() {
    let seed = seed(untorn_testing::test_name!());
    for round in 0..cases(40, 2000) {
        let (setup, cache, [book]) = Setup::create(small(4096), [PATH]);
        let file = setup.attach_through(&cache, PATH);
        // Threads change places where it hurts: between the log and the file.
        *book.in_write.lock().unwrap() = Some(Arc::new(|_| thread::yield_now()));
        thread::scope(|scope| {
            for number in 0..4_u64 {
                let mut random = SplitMix::new(seed ^ (round as u64) << 8 ^ number);
                let file = &file;
                scope.spawn(move || {
                    for _ in 0..30 {
                        let bytes = vec![random.below(256) as u8; 1 + random.below(300) as usize];
                        match random.below(12) {
                            0 => assert!(file.append(&bytes).unwrap() < 1 << 20),
                            1 => file.set_len(random.below(4 * PAGE)).unwrap(),
                            // About the bounds of four pages.
                            _ => file.write_at(&bytes, random.below(4) * PAGE + PAGE - 250).unwrap(),
                        }
                    }
                });
            }
        });
        let left = book.bytes.lock().unwrap().clone();
        assert_eq!(cache.info().unwrap().stuck, 0);
        drop((file, cache));
        *book.in_write.lock().unwrap() = None;
        // A power cut takes all of it.
        book.bytes.lock().unwrap().clear();
        let cache = setup.open().unwrap();
        assert!(cache.replayed().is_complete());
        assert!(*book.bytes.lock().unwrap() == left, "seed {seed}, round {round}: the log has another order");
    }
}

/// What the log has of a write that the file does not take is gone before the write returns, whatever others do.
#[test]
fn a_refused_write_waits_for_those_before_it() {
    let (setup, cache, [book]) = Setup::create(small(256), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(&[1; PAGE as usize], 0).unwrap();
    book.room.store(2 * PAGE as usize, Ordering::Relaxed);
    let stop = Stop::at(&book, 0);
    let refused = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(|| file.write_at(&[2; 100], 0).unwrap());
        stop.wait();
        let writer = scope.spawn(|| {
            let taken = file.write_some(&[3; 200], 2 * PAGE - 50).unwrap();
            refused.store(taken, Ordering::SeqCst);
        });
        thread::sleep(WHILE);
        assert_eq!(refused.load(Ordering::SeqCst), 0, "the log has an older entry that the file does not have yet");
        stop.let_go();
        writer.join().unwrap();
    });
    assert_eq!(refused.load(Ordering::SeqCst), 50);
    file.write_at(&[4; 10], PAGE).unwrap();
    let left = book.bytes.lock().unwrap().clone();
    drop((file, cache));
    book.room.store(usize::MAX, Ordering::Relaxed);
    assert!(setup.open().unwrap().replayed().is_complete());
    assert_eq!(*book.bytes.lock().unwrap(), left, "a replay wrote what the program was told is not written");
}

/// The drain moves the entry of a failed file while the file's writer waits for the drain, with the locks of its pages.
#[test]
fn a_writer_whose_file_fails_does_not_wait_for_itself() {
    let (setup, cache, [book]) = Setup::create(small(32), [PATH]);
    let file = setup.attach_through(&cache, PATH);
    file.write_at(b"kept", 0).unwrap();
    book.broken.store(true, Ordering::Relaxed);
    assert!(file.write_at(b"refused", 0).is_err());
    assert!(file.check_usable().is_err());
    drop((file, cache));
    book.broken.store(false, Ordering::Relaxed);
    book.bytes.lock().unwrap().clear();
    assert!(setup.open().unwrap().replayed().is_complete());
    assert_eq!(*book.bytes.lock().unwrap(), b"refused", "the log keeps what may be a part of the file");
}
