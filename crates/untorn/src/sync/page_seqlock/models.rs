//! Every interleaving of a few writers and a reader, over pages of two words in two copies.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model, relax, zeroed};

/// A page as the engine keeps it: two copies, of which the bitmap says which is valid. Every commit fills a copy with
/// its version.
#[derive(Default)]
struct Page {
    state: State,
    copies: [[AtomicU64; 2]; 2],
}

struct State(PageState);

impl Default for State {
    fn default() -> Self {
        State(zeroed())
    }
}

impl Page {
    fn state(&self) -> &PageState {
        &self.state.0
    }

    fn fill(&self, copy: u64, value: u64) {
        self.copies[copy as usize].iter().for_each(|word| word.store(value, Ordering::Relaxed));
    }

    fn copy(&self, copy: u64) -> [u64; 2] {
        [0, 1].map(|word| self.copies[copy as usize][word].load(Ordering::Relaxed))
    }

    /// Into the copy that is invalid, as a commit of one page.
    fn commit(&self) {
        self.state().lock(false, relax);
        let (bitmap, version) = (self.state().bitmap() ^ 1, self.state().version() + 1);
        self.fill(bitmap, version);
        self.state().publish(bitmap, version);
    }

    /// Over the copy that is valid, as a second write of a slice in one epoch; with readers kept out from the start, or
    /// once the lock is held.
    fn overwrite(&self, from_the_start: bool) {
        self.state().lock(from_the_start, relax);
        if !from_the_start {
            self.state().begin_publishing();
        }
        let (bitmap, version) = (self.state().bitmap(), self.state().version() + 1);
        self.fill(bitmap, version);
        self.state().publish(bitmap, version);
    }

    /// One optimistic try.
    fn read(&self) -> Option<u64> {
        let read_guard = self.state().read_guard()?;
        let [first, second] = self.copy(read_guard.bitmap);
        self.state().validate(read_guard).then(|| {
            assert_eq!(first, second, "a mixture of two commits");
            first
        })
    }

    fn read_locked(&self) -> u64 {
        self.state().lock(false, relax);
        let [first, second] = self.copy(self.state().bitmap());
        assert_eq!(first, second, "a mixture of two commits, under the lock");
        self.state().unlock();
        first
    }
}

#[test]
fn writers_exclude_each_other() {
    model("page: writers exclude each other", None, || {
        let page = Arc::new(Page::default());
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || other.commit());
        page.commit();
        writer.join().unwrap();
        assert_eq!(page.read_locked(), 2, "a commit was lost");
    });
}

#[test]
fn a_reader_sees_a_commit_whole() {
    model("page: a reader sees a commit whole", Some(3), || {
        let page = Arc::new(Page::default());
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || {
            other.commit();
            other.commit();
        });
        let first = page.read();
        let second = page.read();
        assert!(second.is_none() || second >= first, "an older state after a newer one");
        writer.join().unwrap();
        assert_eq!(page.read(), Some(2));
    });
}

#[test]
fn a_reader_between_two_writers_sees_commits_whole() {
    model("page: a reader between two writers", Some(2), || {
        let page = Arc::new(Page::default());
        let writers = [(); 2].map(|()| {
            let page = Arc::clone(&page);
            thread::spawn(move || page.commit())
        });
        let seen = page.read();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert!(page.read() >= seen);
        assert_eq!(page.read_locked(), 2);
    });
}

#[test]
fn a_reader_sees_an_overwriting_whole() {
    model("page: a reader sees what is written in place whole", Some(2), || {
        let page = Arc::new(Page::default());
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || {
            other.overwrite(true);
            other.overwrite(false);
        });
        page.read();
        page.read();
        writer.join().unwrap();
        assert_eq!(page.read(), Some(2));
    });
}

#[test]
fn a_reader_does_not_trust_a_disturbed_page() {
    model("page: a reader does not trust a disturbed page", None, || {
        let page = Arc::new(Page::default());
        let other = Arc::clone(&page);
        let writer = thread::spawn(move || {
            other.state().lock(true, relax);
            // A write that fails halfway, and puts back what it found.
            other.copies[0][0].store(7, Ordering::Relaxed);
            other.copies[0][0].store(0, Ordering::Relaxed);
            other.state().unlock_disturbed();
        });
        assert!(matches!(page.read(), None | Some(0)));
        writer.join().unwrap();
        assert_eq!(page.read(), Some(0));
    });
}

#[test]
fn a_reader_sees_two_pages_at_one_instant() {
    model("page: a reader sees two pages at one instant", Some(4), || {
        let pages = Arc::new([Page::default(), Page::default()]);
        let others = Arc::clone(&pages);
        let writer = thread::spawn(move || {
            // A commit over several pages, as the engine concludes it.
            for page in others.iter() {
                page.state().lock(false, relax);
                page.fill(1, 1);
            }
            others.iter().for_each(|page| page.state().begin_publishing());
            others.iter().for_each(|page| page.state().publish(1, 1));
        });
        if let [Some(first), Some(second)] = [0, 1].map(|page| pages[page].state().read_guard()) {
            let copies = [pages[0].copy(first.bitmap), pages[1].copy(second.bitmap)];
            if pages[0].state().validate(first) && pages[1].state().validate(second) {
                assert!(copies == [[0; 2]; 2] || copies == [[1; 2]; 2], "{copies:?} is no instant");
            }
        }
        writer.join().unwrap();
        assert_eq!([0, 1].map(|page| pages[page].read()), [Some(1); 2]);
    });
}
