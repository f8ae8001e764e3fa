//! Every interleaving of writers of one page and a reader of a snapshot.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, AtomicU64, model};

impl Word for AtomicU64 {
    fn load(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    fn fetch_max(&self, number: u64, order: Ordering) -> u64 {
        self.fetch_max(number, order)
    }
}

#[derive(Default)]
struct Page {
    mark: AtomicU64,
    other: AtomicU64,
    bytes: [AtomicU64; 2],
}

impl Page {
    /// Changes the page while the snapshot with this number is the newest.
    fn write(&self, newest: u64) {
        raise([&self.mark], newest);
        self.bytes.iter().for_each(|byte| byte.store(newest, Ordering::Relaxed));
    }

    /// The bytes that a snapshot with this number gets; `None` if the page has changed since.
    fn read(&self, snapshot: u64) -> Option<[u64; 2]> {
        let bytes = [0, 1].map(|at| self.bytes[at].load(Ordering::Relaxed));
        are_below([&self.mark, &self.other, &self.other], snapshot).then_some(bytes)
    }
}

#[test]
fn a_copy_without_a_mark_has_no_later_byte() {
    model("page marks: one writes, one reads a snapshot", None, || {
        let page = Arc::new(Page::default());
        // Changed before the snapshot 2 was taken.
        page.write(1);
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || other.write(2));
        let read = page.read(2);
        writer.join().unwrap();
        assert!(read.is_none_or(|bytes| bytes == [1, 1]), "{read:?}");
        assert_eq!(page.read(2), None);
        assert_eq!(page.read(3), Some([2, 2]));
    });
}

/// The word that ends a snapshot is raised by one thread, and another one writes without a mark once it knows.
#[test]
fn the_end_of_a_snapshot_is_seen_before_unmarked_stores() {
    model("page marks: one ends a snapshot, one writes then, one reads", Some(3), || {
        let page = Arc::new(Page::default());
        let released = Arc::new(AtomicU64::new(0));
        let (ending, seen) = (Arc::clone(&page), Arc::clone(&released));
        let ender = thread::spawn(move || {
            raise([&ending.other], u64::MAX);
            seen.store(1, Ordering::Release);
        });
        let writing = Arc::clone(&page);
        let writer = thread::spawn(move || {
            if released.load(Ordering::Acquire) == 1 {
                // A processor keeps a store behind an acquiring load before it, for all threads; the language says so
                // of a fence only.
                fence(Ordering::Release);
                writing.bytes.iter().for_each(|byte| byte.store(7, Ordering::Relaxed));
            }
        });
        let read = page.read(2);
        assert!(read.is_none_or(|bytes| bytes == [0, 0]), "{read:?}");
        ender.join().unwrap();
        writer.join().unwrap();
    });
}
