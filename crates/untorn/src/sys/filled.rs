//! Memory that is filled piece by piece, each piece once, and lent as plain slices.
//!
//! A piece is written to a file that nobody else has, and seen through a mapping for loads. So the kernel may write
//! pages of a file on a disk back and drop them from memory, and a full disk is an error of the call that fills.
//!
//! # Invariants
//! 1. The bit of a piece is set, with release, after all of its bytes are in the file. It is never cleared.
//! 2. A piece is written only while its bit is not set, under a lock of that piece.
//! 3. A slice has pieces only whose bits are set.
//!
//! So no byte changes under a slice.
//!
//! # Safety
//! A [`Filled`] owns its file and its mapping from construction to drop. It writes to the file by calls only, and
//! lends slices with its own lifetime.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;

use super::fault::none_lost;
use super::map::{FileMap, MapKind};
use super::zeroed::ZeroedArray;
use crate::options::LostPage;

/// Bytes of a piece. A larger one costs a single load more, a smaller one the load of all more.
const PIECE: u64 = 64 << 10;

/// Locks, by the number of a piece: threads that fill different pieces rarely meet.
const LOCKS: usize = 16;

/// The memory.
pub(crate) struct Filled {
    file: File,
    memory: FileMap,
    len: u64,
    bits: ZeroedArray<AtomicU64>,
    locks: [Mutex<()>; LOCKS],
}

impl Filled {
    /// Memory of `len` bytes over a file that is empty and that nobody else has.
    ///
    /// # Errors
    /// Those of `ftruncate(2)` and `mmap(2)`.
    pub(crate) fn new(file: OwnedFd, len: u64) -> io::Result<Self> {
        super::file::set_len(&file, len)?;
        let memory = FileMap::new(file.as_fd(), MapKind::Read, len, len, LostPage::Fail)?;
        let words = usize::try_from(len.div_ceil(PIECE).div_ceil(64)).map_err(|_| Errno::OVERFLOW)?;
        let bits = ZeroedArray::reserve(words)?;
        Ok(Filled { file: file.into(), memory, len, bits, locks: Default::default() })
    }

    /// Its length in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    fn is_filled(&self, piece: u64) -> bool {
        self.bits[(piece / 64) as usize].load(Ordering::Acquire) & 1 << (piece % 64) != 0
    }

    fn pieces(range: &Range<u64>) -> Range<u64> {
        range.start / PIECE..range.end.div_ceil(PIECE)
    }

    /// Whether all pieces of a range, which is within the length, are filled.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        range.is_empty() || Self::pieces(range).all(|piece| self.is_filled(piece))
    }

    /// Fills the pieces of a range, which is within the length, that are not filled. `read` gives the bytes from an
    /// offset on, the same whenever it is asked.
    ///
    /// # Errors
    /// Those of `read`; `failed` makes one of those of `pwrite(2)`, as for want of space. What is filled by then stays.
    pub(crate) fn fill<E>(
        &self,
        range: &Range<u64>,
        mut read: impl FnMut(u64, &mut [u8]) -> Result<(), E>,
        failed: impl Fn(io::Error) -> E,
    ) -> Result<(), E> {
        let mut bytes = Vec::new();
        for piece in Self::pieces(range).filter(|_| !range.is_empty()) {
            if self.is_filled(piece) {
                continue;
            }
            // Nothing that a panic interrupts leaves a bit set without its bytes.
            let _alone = self.locks[piece as usize % LOCKS].lock().unwrap_or_else(PoisonError::into_inner);
            if self.is_filled(piece) {
                continue;
            }
            let at = piece * PIECE;
            bytes.resize(PIECE.min(self.len - at) as usize, 0);
            read(at, &mut bytes)?;
            // A hole of the file is zeros, and takes no space.
            if bytes.iter().any(|byte| *byte != 0) {
                self.file.write_all_at(&bytes, at).map_err(&failed)?;
            }
            self.bits[(piece / 64) as usize].fetch_or(1 << (piece % 64), Ordering::Release);
        }
        Ok(())
    }

    /// The bytes of a range, which is within the length; `None` unless all its pieces are filled.
    pub(crate) fn slice(&self, range: &Range<u64>) -> Option<&[u8]> {
        if range.end > self.len || range.start > range.end || !self.has(range) {
            return None;
        }
        // SAFETY: within the mapping, which lives as long as `self`, by the check above. All pieces of the range are
        // filled, so by the invariants no byte is written again, and the load of the bits came after all writes of
        // them. A page that is lost is replaced by one of zeros, and noted.
        Some(unsafe { slice::from_raw_parts(self.memory.at(range.start), (range.end - range.start) as usize) })
    }

    /// The offset of the first page that could not be read back, if there is one: from then on it loads as zeros.
    pub(crate) fn lost(&self) -> Option<u64> {
        if none_lost() { None } else { self.memory.lost() }
    }

    /// Bytes that the file takes.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    pub(crate) fn space(&self) -> io::Result<u64> {
        Ok(u64::try_from(rustix::fs::fstat(&self.file)?.st_blocks).unwrap_or(0) * 512)
    }

    #[cfg(test)]
    pub(crate) fn cut_short(&self) {
        self.file.set_len(0).unwrap();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    fn byte_at(offset: u64) -> u8 {
        (offset / 1000 % 251) as u8
    }

    fn give(offset: u64, into: &mut [u8]) -> io::Result<()> {
        (offset..).zip(into).for_each(|(offset, byte)| *byte = byte_at(offset));
        Ok(())
    }

    #[test]
    fn a_piece_is_filled_once_and_lent_once_it_is() {
        const LEN: u64 = 3 * PIECE + 77;
        let memory = Filled::new(file(), LEN).unwrap();
        let middle = PIECE + 5..2 * PIECE + 9;
        assert_eq!((memory.slice(&middle), memory.slice(&(7..7))), (None, Some(&[][..])));
        let read = AtomicUsize::new(0);
        let count = |offset, into: &mut [u8]| {
            read.fetch_add(into.len(), Ordering::Relaxed);
            give(offset, into)
        };
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| memory.fill(&middle, count, |error| error).unwrap());
            }
        });
        assert_eq!(read.load(Ordering::Relaxed), 2 * PIECE as usize, "each piece once, whoever asks");
        let lent = memory.slice(&middle).unwrap();
        assert!((middle.start..).zip(lent).all(|(offset, byte)| *byte == byte_at(offset)));
        assert_eq!(memory.slice(&(0..LEN)), None);
        memory.fill(&(0..LEN), count, |error| error).unwrap();
        assert_eq!(read.load(Ordering::Relaxed) as u64, LEN);
        assert!((0..).zip(memory.slice(&(0..LEN)).unwrap()).all(|(offset, byte)| *byte == byte_at(offset)));
        assert_eq!(memory.slice(&(0..LEN + 1)), None);
        assert_eq!(memory.slice(&(LEN..LEN)), Some(&[][..]));
    }

    #[test]
    fn zeros_take_no_space_and_a_failure_fills_nothing() {
        let memory = Filled::new(file(), 1 << 20).unwrap();
        let zeros = |_, into: &mut [u8]| {
            into.fill(0);
            Ok::<_, io::Error>(())
        };
        memory.fill(&(0..1 << 20), zeros, |error| error).unwrap();
        assert_eq!((memory.space().unwrap(), memory.slice(&(0..1 << 20)).unwrap()[777_777]), (0, 0));
        let memory = Filled::new(file(), 2 * PIECE).unwrap();
        let fails = |at, into: &mut [u8]| if at > 0 { Err(io::Error::other("no")) } else { give(at, into) };
        assert!(memory.fill(&(0..2 * PIECE), fails, |error| error).is_err());
        assert!(memory.has(&(0..PIECE)) && !memory.has(&(PIECE..PIECE + 1)));
        assert!(Filled::new(file(), 0).unwrap().has(&(0..0)));
    }

    /// Pages that cannot be read back are no signal, and are told.
    #[test]
    fn a_lost_page_is_told() {
        let memory = Filled::new(file(), PIECE).unwrap();
        memory.fill(&(0..PIECE), give, |error| error).unwrap();
        assert_eq!(memory.lost(), None);
        memory.cut_short();
        assert_eq!(memory.slice(&(5000..5001)).unwrap(), [0]);
        assert_eq!(memory.lost(), Some(4096));
    }
}
