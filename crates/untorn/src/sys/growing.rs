//! A table that grows while threads use it, and whose values never move.
//!
//! # Invariants
//! 1. The first segment has a power of two of values, and each later one as many as all before it together. So the
//!    place of a value follows from its index alone.
//! 2. A value keeps its address from the time when its segment is made until the table is dropped.
//! 3. A segment is whole before any thread can find it. A thread that is told of a length after
//!    [`fit`](GrowingArray::fit) made room for it, by a store with release and a load with acquire, finds every value
//!    of that length.

use std::io;
use std::ops::Index;
use std::sync::OnceLock;

use super::sync::{Zeroed, ZeroedArray};

/// Later segments: more than an index has bits.
const LATER: usize = usize::BITS as usize;

/// Values that start as zeros, of which there can be more at any time.
///
/// It is meant for tables indexed by the page of a file: the table takes address space in proportion to the file, not
/// to the length that the file may grow to.
pub(crate) struct GrowingArray<T> {
    first: ZeroedArray<T>,
    /// Most files do not grow beyond the first segment while they are open.
    later: OnceLock<Box<[OnceLock<ZeroedArray<T>>; LATER]>>,
}

impl<T: Zeroed + Send + Sync> GrowingArray<T> {
    /// With room for `len` values at least.
    ///
    /// # Errors
    /// ENOMEM or EOVERFLOW, as for [`ZeroedArray::reserve`].
    pub(crate) fn new(len: u64) -> io::Result<Self> {
        let len = usize::try_from(len.max(1)).ok().and_then(usize::checked_next_power_of_two);
        let first = ZeroedArray::reserve(len.ok_or(rustix::io::Errno::OVERFLOW)?)?;
        Ok(GrowingArray { first, later: OnceLock::new() })
    }

    /// Makes room for `len` values in all.
    ///
    /// # Errors
    /// As for [`new`](GrowingArray::new). What was there stays.
    pub(crate) fn fit(&self, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| rustix::io::Errno::OVERFLOW)?;
        let Some(last) = len.checked_sub(1).filter(|last| *last >= self.first.len()) else { return Ok(()) };
        let later = self.later.get_or_init(|| Box::new([const { OnceLock::new() }; LATER]));
        for (number, segment) in later.iter().enumerate().take(self.place(last).0 + 1) {
            if segment.get().is_none() {
                // Of two threads that make one, the first wins, and nobody has seen the other's.
                let _ = segment.set(ZeroedArray::reserve(self.first.len() << number)?);
            }
        }
        Ok(())
    }
}

impl<T> GrowingArray<T> {
    /// How many values there are now.
    pub(crate) fn count(&self) -> u64 {
        let made =
            self.later.get().map_or(0, |later| later.iter().take_while(|segment| segment.get().is_some()).count());
        (self.first.len() as u64) << made
    }

    /// The value of an index, if there is one by now.
    #[inline(always)]
    pub(crate) fn get(&self, index: usize) -> Option<&T> {
        match self.first.get(index) {
            Some(value) => Some(value),
            None => self.far(index),
        }
    }

    // Not inlined: the first segment is the usual case, and its check is the bounds check of any table.
    #[inline(never)]
    fn far(&self, index: usize) -> Option<&T> {
        let later = self.later.get()?;
        let (segment, at) = self.place(index);
        later.get(segment)?.get()?.get(at)
    }

    /// The later segment of an index behind the first one, and the place in it.
    fn place(&self, index: usize) -> (usize, usize) {
        let segment = (index >> self.first.len().trailing_zeros()).ilog2();
        (segment as usize, index - (self.first.len() << segment))
    }
}

impl<T> Index<usize> for GrowingArray<T> {
    type Output = T;

    #[inline(always)]
    fn index(&self, index: usize) -> &T {
        self.get(index).expect("the caller made room for every index that it uses")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::sync::{AtomicU64, Ordering};
    use super::*;

    #[test]
    fn values_keep_their_place_while_the_table_grows() {
        for first in [0, 1, 2, 5, 64] {
            let table = GrowingArray::<AtomicU64>::new(first).unwrap();
            let mut kept: Vec<*const AtomicU64> = Vec::new();
            for len in [1_u64, 2, 3, 4, 7, 64, 65, 128, 1000, 4097] {
                table.fit(len).unwrap();
                assert!(table.count() >= len && table.count() <= 2 * len.max(first).max(1), "{first} {len}");
                for (index, at) in kept.iter().enumerate() {
                    assert!(std::ptr::eq(&table[index], *at), "value {index} moved");
                    assert_eq!(table[index].load(Ordering::Relaxed), index as u64 + 1);
                }
                for index in kept.len()..len as usize {
                    assert_eq!(table[index].swap(index as u64 + 1, Ordering::Relaxed), 0);
                    kept.push(&table[index]);
                }
                assert!(table.get(table.count() as usize).is_none() && table.get(usize::MAX).is_none());
            }
        }
    }

    #[test]
    fn threads_that_make_room_at_once_get_one_table() {
        for _ in 0..untorn_testing::cases(20, 500) {
            let table = GrowingArray::<AtomicU64>::new(1).unwrap();
            thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        for len in 1..200 {
                            table.fit(len).unwrap();
                            table[len as usize - 1].fetch_add(1, Ordering::Relaxed);
                        }
                    });
                }
            });
            assert!((0..199).all(|index| table[index].load(Ordering::Relaxed) == 4));
        }
    }

    #[test]
    fn a_size_beyond_the_address_space_is_an_error() {
        assert!(GrowingArray::<AtomicU64>::new(u64::MAX).is_err());
        let table = GrowingArray::<AtomicU64>::new(1).unwrap();
        assert!(table.fit(u64::MAX).is_err() && table.fit(1 << 60).is_err());
        table[0].store(7, Ordering::Relaxed);
    }
}
