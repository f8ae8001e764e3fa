//! Typed views: plain-bytes values in place in the memory.

use std::ops::Range;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::AtomicMap;
use crate::engine::{check_range, misaligned};
use crate::error::{Error, Result};

impl AtomicMap {
    /// Returns the bytes at `offset` as a value of a plain-bytes type.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the value is within the length; [`Error::Invalid`] if the offset is not a multiple
    /// of the type's alignment.
    pub fn view<T: FromBytes + KnownLayout + Immutable>(&self, offset: u64) -> Result<&T> {
        let range = self.range_of(offset, size_of::<T>())?;
        T::ref_from_bytes(&self[range]).map_err(|_| self.misaligned::<T>(offset))
    }

    /// Like [`view`](AtomicMap::view), for stores too.
    ///
    /// # Errors
    /// As for [`view`](AtomicMap::view).
    pub fn view_mut<T: FromBytes + IntoBytes + KnownLayout>(&mut self, offset: u64) -> Result<&mut T> {
        let range = self.range_of(offset, size_of::<T>())?;
        let (bytes, engine) = self.lend(range);
        T::mut_from_bytes(bytes).map_err(|_| misaligned::<T>(engine.path(), offset))
    }

    /// Returns `count` values of one type from `offset` on.
    ///
    /// # Errors
    /// As for [`view`](AtomicMap::view).
    pub fn slice_of<T: FromBytes + Immutable>(&self, offset: u64, count: usize) -> Result<&[T]> {
        let range = self.range_of(offset, count.saturating_mul(size_of::<T>()))?;
        <[T]>::ref_from_bytes_with_elems(&self[range], count).map_err(|_| self.misaligned::<T>(offset))
    }

    /// Like [`slice_of`](AtomicMap::slice_of), for stores too.
    ///
    /// # Errors
    /// As for [`view`](AtomicMap::view).
    pub fn slice_of_mut<T: FromBytes + IntoBytes + Immutable>(
        &mut self,
        offset: u64,
        count: usize,
    ) -> Result<&mut [T]> {
        let range = self.range_of(offset, count.saturating_mul(size_of::<T>()))?;
        let (bytes, engine) = self.lend(range);
        <[T]>::mut_from_bytes_with_elems(bytes, count).map_err(|_| misaligned::<T>(engine.path(), offset))
    }

    fn range_of(&self, offset: u64, len: usize) -> Result<Range<usize>> {
        check_range(self.path(), offset, len as u64, self.len() as u64)?;
        Ok(offset as usize..offset as usize + len)
    }

    #[cold]
    fn misaligned<T>(&self, offset: u64) -> Error {
        misaligned::<T>(self.path(), offset)
    }
}
