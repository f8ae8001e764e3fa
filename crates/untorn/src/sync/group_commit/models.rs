//! Every interleaving of two or three callers that share flushes.

use loom::thread;

use super::*;
use crate::error::Error;
use crate::sys::sync::{Arc, model, relax, zeroed};

const CALLERS: usize = 3;

/// A file of a word for each caller, and its durable image.
struct File {
    group: GroupFlush,
    written: [AtomicU64; CALLERS],
    durable: [AtomicU64; CALLERS],
    /// How many flushes fail from now on.
    failures: AtomicU64,
    /// 1 while a flush is under way.
    flushing: AtomicU64,
}

impl File {
    fn new(failures: u64) -> Arc<Self> {
        let words = || [(); CALLERS].map(|()| AtomicU64::new(0));
        let (failures, flushing) = (AtomicU64::new(failures), AtomicU64::new(0));
        Arc::new(File { group: zeroed(), written: words(), durable: words(), failures, flushing })
    }

    /// A flush takes what was written before it began.
    fn flush(&self) -> Result<()> {
        assert_eq!(self.flushing.swap(1, Ordering::Relaxed), 0, "two flushes at once");
        let taken = self.written.each_ref().map(|word| word.load(Ordering::Relaxed));
        let failures = self.failures.load(Ordering::Relaxed);
        if failures == 0 {
            self.durable.iter().zip(taken).for_each(|(word, taken)| word.store(taken, Ordering::Relaxed));
        } else {
            self.failures.store(failures - 1, Ordering::Relaxed);
        }
        self.flushing.store(0, Ordering::Relaxed);
        let error = || Error::io("flush", "f".as_ref(), std::io::Error::from_raw_os_error(5));
        if failures == 0 { Ok(()) } else { Err(error()) }
    }

    /// A caller's write and commit. Whether it succeeded.
    fn commit(&self, caller: usize) -> bool {
        self.written[caller].store(1, Ordering::Relaxed);
        let answered = self.group.flush(relax, || self.flush()).is_ok();
        if answered {
            assert_eq!(self.durable[caller].load(Ordering::Relaxed), 1, "acknowledged, but not durable");
        }
        answered
    }
}

/// How many of some callers at once, one of them this thread, were told of success.
fn answered(file: &Arc<File>, callers: usize) -> usize {
    let threads: Vec<_> = (1..callers)
        .map(|caller| {
            let file = Arc::clone(file);
            thread::spawn(move || file.commit(caller))
        })
        .collect();
    let mine = file.commit(0);
    threads.into_iter().map(|thread| thread.join().unwrap()).chain([mine]).filter(|answered| *answered).count()
}

#[test]
fn two_callers_are_answered_by_a_flush_begun_after_they_asked() {
    model("group commit: two callers", Some(4), || assert_eq!(answered(&File::new(0), 2), 2));
}

#[test]
fn three_callers_are_answered_by_a_flush_begun_after_they_asked() {
    model("group commit: three callers", Some(2), || assert_eq!(answered(&File::new(0), 3), 3));
}

#[test]
fn a_failed_flush_answers_its_own_caller_only() {
    model("group commit: two callers, a flush fails", Some(4), || assert_eq!(answered(&File::new(1), 2), 1));
    model("group commit: three callers, a flush fails", Some(2), || assert_eq!(answered(&File::new(1), 3), 2));
}
