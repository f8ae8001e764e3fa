//! Models of the engines' protocols: only their stores and fences, which bound what an engine can reach on this
//! machine.
//!
//! A model keeps no promise. It makes no lookups, takes no lock besides the one instruction of any scheme with a lock,
//! computes no checksums, and never runs out of log. It stores the same bytes, to places equally far apart, and fences
//! as often. The gap between untorn and its model is the cost of untorn's code; the gap between the model and raw
//! copies is the cost of atomicity.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use untorn::options::Order;

use crate::error::Result;
use crate::raw::{Raw, Target};
use crate::rig::Rig;

const PAGE: u64 = 4096;
const SLICE: u64 = 64;
/// Bytes of one thread's records, which are overwritten repeatedly, as in a lane.
const LANE: u64 = 64 << 10;
/// The number of threads with separate records.
const LANES: u64 = 16;

static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// This thread's number, in the order of first use.
    static NUMBER: u64 = THREADS.fetch_add(1, Ordering::Relaxed) % LANES;
    /// Bytes of records and of log written by this thread.
    static WRITTEN: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// The model of an engine, next to the raw file.
pub(crate) struct Model<R> {
    /// The second place of each byte, or the log.
    beside: R,
    lanes: R,
    /// A word for each page: which of its slices are in the second place, or its position in the log.
    words: Vec<AtomicU64>,
    len: u64,
}

impl<R: Raw> Model<R> {
    /// A model over the raw file of a run.
    pub(crate) fn new<T: Target<Raw = R>>(rig: &Rig<'_, T>) -> Result<Self> {
        let len = rig.file_len;
        let beside = rig.beside("model", len)?;
        let lanes = rig.beside("lanes", LANES * LANE)?;
        Ok(Model { beside, lanes, words: words(len), len })
    }

    /// Whether aligned writes of `size` bytes have a model: whole slices within one page.
    pub(crate) fn fits(size: usize) -> bool {
        let size = size as u64;
        size.is_multiple_of(SLICE) && PAGE.is_multiple_of(size)
    }

    /// A write of the reflection engine: each slice into the copy that is not valid, one record, one fence, or two.
    #[inline]
    pub(crate) fn reflect(&self, home: &R, order: Order, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        let (word, mask) = self.slices(bytes, offset);
        let old = word.load(Ordering::Relaxed);
        self.alternate(home, old, bytes, offset)?;
        if order == Order::TwoFence {
            home.fence()?;
        }
        self.record(offset, old ^ mask)?;
        home.fence()?;
        word.store(old ^ mask, Ordering::Relaxed);
        Ok(())
    }

    /// A write of the reflection engine to an open epoch: the slices, and the page's word under its lock.
    #[inline]
    pub(crate) fn reflect_later(&self, home: &R, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        let (word, mask) = self.slices(bytes, offset);
        let old = word.fetch_xor(mask, Ordering::Relaxed);
        self.alternate(home, old, bytes, offset)
    }

    /// A write of the hybrid log under redo: bytes and a header into the log, its place into the index under the
    /// block's lock. Another thread runs the checkpoint.
    #[inline]
    pub(crate) fn log(&self, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        let share = self.len / LANES;
        let need = bytes.len() as u64 + SLICE;
        let (records, logged) = WRITTEN.get();
        let place = NUMBER.with(|number| number * share) + if logged + need > share { 0 } else { logged };
        WRITTEN.set((records, if logged + need > share { need } else { logged + need }));
        self.beside.write(bytes, place)?;
        self.beside.write(&line(offset, place), place + bytes.len() as u64)?;
        self.words[(offset / PAGE) as usize].swap(place, Ordering::Relaxed);
        Ok(())
    }

    /// The commit of an epoch: one record, one fence, or two.
    #[inline]
    pub(crate) fn commit(&self, home: &R, order: Order) -> untorn::Result<()> {
        if order == Order::TwoFence {
            home.fence()?;
        }
        self.record(0, 0)?;
        home.fence()
    }

    /// The word of a write's page, and the bits of its slices.
    #[inline]
    fn slices(&self, bytes: &[u8], offset: u64) -> (&AtomicU64, u64) {
        let count = bytes.len() as u64 / SLICE;
        let mask = u64::MAX >> (64 - count) << (offset % PAGE / SLICE);
        (&self.words[(offset / PAGE) as usize], mask)
    }

    /// Stores each run of slices where the word says that it is not valid.
    #[inline]
    fn alternate(&self, home: &R, word: u64, bytes: &[u8], offset: u64) -> untorn::Result<()> {
        let first = offset % PAGE / SLICE;
        let count = bytes.len() as u64 / SLICE;
        let mut done = 0;
        while done < count {
            let rest = word >> (first + done);
            let is_beside = rest & 1 == 1;
            let run = if is_beside { rest.trailing_ones() } else { rest.trailing_zeros() };
            let end = count.min(done + u64::from(run));
            let place = if is_beside { home } else { &self.beside };
            place.write(&bytes[(done * SLICE) as usize..(end * SLICE) as usize], offset + done * SLICE)?;
            done = end;
        }
        Ok(())
    }

    /// The next line of this thread's lane.
    #[inline]
    fn record(&self, offset: u64, word: u64) -> untorn::Result<()> {
        let (records, logged) = WRITTEN.get();
        WRITTEN.set((records + SLICE, logged));
        let lane = NUMBER.with(|number| number * LANE);
        self.lanes.write(&line(offset, word), lane + records % LANE)
    }
}

/// The model of an atomic read: a copy between two reads of the page's word.
pub(crate) struct Looks(Vec<AtomicU64>);

impl Looks {
    /// A word for each page of a file.
    pub(crate) fn new(len: u64) -> Self {
        Looks(words(len))
    }

    /// Copies, and retries if the word has changed, which never happens here.
    #[inline]
    pub(crate) fn read(&self, home: &impl Raw, bytes: &mut [u8], offset: u64) -> untorn::Result<()> {
        let word = &self.0[(offset / PAGE) as usize];
        loop {
            let before = word.load(Ordering::Acquire);
            home.read(bytes, offset)?;
            fence(Ordering::Acquire);
            if word.load(Ordering::Relaxed) == before {
                return Ok(());
            }
        }
    }
}

/// A word of zeros for each page.
fn words(len: u64) -> Vec<AtomicU64> {
    (0..len.div_ceil(PAGE)).map(|_| AtomicU64::new(0)).collect()
}

/// A line that says two things.
#[inline]
fn line(a: u64, b: u64) -> [u8; SLICE as usize] {
    let mut line = [0; SLICE as usize];
    line[..8].copy_from_slice(&a.to_le_bytes());
    line[8..16].copy_from_slice(&b.to_le_bytes());
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A file that remembers where it was written, and what.
    #[derive(Default)]
    struct Noted(Mutex<Vec<(u64, Vec<u8>)>>, AtomicU64);

    impl Raw for Noted {
        fn write(&self, bytes: &[u8], offset: u64) -> untorn::Result<()> {
            self.0.lock().unwrap().push((offset, bytes.to_vec()));
            Ok(())
        }

        fn read(&self, _: &mut [u8], _: u64) -> untorn::Result<()> {
            Ok(())
        }

        fn fence(&self) -> untorn::Result<()> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    impl Noted {
        fn places(&self) -> Vec<(u64, usize)> {
            self.0.lock().unwrap().drain(..).map(|(offset, bytes)| (offset, bytes.len())).collect()
        }

        fn fences(&self) -> u64 {
            self.1.swap(0, Ordering::Relaxed)
        }
    }

    fn model(pages: u64) -> Model<Noted> {
        let len = pages * PAGE;
        Model { beside: Noted::default(), lanes: Noted::default(), words: words(len), len }
    }

    #[test]
    fn slices_alternate_places_with_a_record_and_a_fence_each() {
        let (model, home) = (model(4), Noted::default());
        for turn in 0..4 {
            model.reflect(&home, Order::OneFence, &[7; 64], 4096 + 128).unwrap();
            let here = vec![(4096 + 128, 64)];
            let expected = if turn % 2 == 0 { (vec![], here) } else { (here, vec![]) };
            assert_eq!((home.places(), model.beside.places()), expected);
            assert_eq!((model.lanes.places().len(), home.fences()), (1, 1));
        }
        model.reflect(&home, Order::TwoFence, &[7; 64], 0).unwrap();
        assert_eq!(home.fences(), 2);
    }

    #[test]
    fn a_page_with_slices_in_both_places_is_stored_run_by_run() {
        let (model, home) = (model(4), Noted::default());
        model.reflect_later(&home, &[7; 128], 8192 + 256).unwrap();
        model.beside.places();
        model.reflect_later(&home, &[7; 4096], 8192).unwrap();
        assert_eq!(home.places(), [(8192 + 256, 128)]);
        assert_eq!(model.beside.places(), [(8192, 256), (8192 + 384, 4096 - 384)]);
        assert_eq!((home.fences(), model.lanes.places().len()), (0, 0));
        model.commit(&home, Order::OneFence).unwrap();
        assert_eq!((home.fences(), model.lanes.places().len()), (1, 1));
    }

    #[test]
    fn the_log_begins_again_at_its_end() {
        let (model, home) = (model(64), Noted::default());
        let share = 64 * PAGE / LANES;
        for _ in 0..10 {
            model.log(&[7; 4096], 0).unwrap();
        }
        let places = model.beside.places();
        assert_eq!(places.len(), 20);
        let start = places.iter().map(|place| place.0).min().unwrap();
        assert!(start.is_multiple_of(share) && places.iter().all(|&(at, len)| at + len as u64 <= start + share));
        assert_eq!(home.fences(), 0);
    }

    #[test]
    fn only_whole_slices_within_a_page_have_a_model() {
        let fits: Vec<usize> = [1, 63, 64, 100, 128, 192, 256, 1024, 4096, 8192]
            .into_iter()
            .filter(|&n| Model::<Noted>::fits(n))
            .collect();
        assert_eq!(fits, [64, 128, 256, 1024, 4096]);
    }
}
