//! Every interleaving of a reader of a calm page and the writer that stirs it, deploys it and calms it again.

use loom::thread;

use super::*;
use crate::sys::sync::{Arc, model, relax};

/// A file of one page of two words, in the data file and in the sidecar.
struct File {
    state: State,
    data: [AtomicU64; 2],
    side: [AtomicU64; 2],
    /// The last write that returned.
    returned: AtomicU64,
}

const LEN: u64 = 64;

impl File {
    fn new() -> Arc<Self> {
        let words = || [(); 2].map(|()| AtomicU64::new(0));
        let state = State::new(LEN).unwrap();
        state.head().len.store(LEN, Ordering::Relaxed);
        Arc::new(File { state, data: words(), side: words(), returned: AtomicU64::new(0) })
    }

    /// A write in per-write mode: of a page that lies at home it goes to the sidecar.
    fn write(&self, value: u64) {
        let page = &self.state.pages[0];
        page.lock(false, relax);
        assert_eq!(page.bitmap(), 0);
        self.side.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        self.state.stir(0);
        page.publish(1, page.version() + 1);
        self.returned.store(value, Ordering::Release);
    }

    /// Brings the page home, which is a write of what is there already.
    fn deploy(&self) {
        let page = &self.state.pages[0];
        page.lock(false, relax);
        for (home, word) in self.data.iter().zip(&self.side) {
            home.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        page.publish(0, page.version() + 1);
    }

    /// As [`Reflection`](super::super::Reflection) lets a page count as calm, but for the lane.
    fn calm(&self) {
        let page = &self.state.pages[0];
        if page.try_hold() {
            if page.bitmap() == 0 {
                self.state.calm(0);
            }
            page.unlock();
        }
    }

    /// The fast path of a read; `None` if the page is not calm or did not stay so.
    fn read(&self) -> Option<u64> {
        let returned = self.returned.load(Ordering::Acquire);
        let calm = self.state.glimpse_calm(0, LEN - 1)?;
        let [first, second] = [0, 1].map(|word| self.data[word].load(Ordering::Relaxed));
        self.state.stayed_calm(calm).then(|| {
            assert_eq!(first, second, "a mixture of two writes");
            assert!(first >= returned, "{first}, though the write of {returned} had returned");
            first
        })
    }
}

#[test]
fn a_calm_page_is_read_whole_and_fresh() {
    model("calm pages: a reader and a writer that deploys", Some(4), || {
        let file = File::new();
        let other = Arc::clone(&file);
        let writer = thread::spawn(move || {
            other.write(1);
            other.deploy();
            other.calm();
        });
        file.read();
        writer.join().unwrap();
        assert_eq!(file.read(), Some(1));
    });
}

#[test]
fn a_page_calmed_between_two_writes_is_read_whole_and_fresh() {
    model("calm pages: a reader and a writer that goes on", Some(3), || {
        let file = File::new();
        let other = Arc::clone(&file);
        let writer = thread::spawn(move || {
            for value in 1..=2 {
                other.write(value);
                other.deploy();
                other.calm();
            }
        });
        file.read();
        writer.join().unwrap();
        assert_eq!(file.read(), Some(2));
    });
}

#[test]
fn whoever_calms_a_page_beside_its_writer_disturbs_nothing() {
    model("calm pages: a reader, a writer, and one who calms", Some(2), || {
        let file = File::new();
        let [writer, calmer] = [File::write_and_deploy as fn(&File), File::calm].map(|body| {
            let file = Arc::clone(&file);
            thread::spawn(move || body(&file))
        });
        file.read();
        writer.join().unwrap();
        calmer.join().unwrap();
        assert_eq!(file.state.glimpse_calm(0, LEN - 1).is_some() && file.read() != Some(1), false);
    });
}

impl File {
    fn write_and_deploy(&self) {
        self.write(1);
        self.deploy();
    }
}
