//! The mappings of one file: one while it keeps about its length, one more each time it outgrows them.
//!
//! # Invariants
//! 1. A window stays mapped until the file is closed, so an access that began in an older one ends in it. All are
//!    shared mappings of one file, so they show the same bytes.
//! 2. A newer window covers all that an older one covers. Each growth doubles, so all of them together take at most
//!    four times the address space of the longest length.
//! 3. A limit is shown after the window that covers it ([`Limits`]).
//!
//! # Why
//! A reservation for every length that a file may ever have costs address space for each open file: 127 files of 1 TiB
//! fill the address space of a process. Extending a mapping in place needs free addresses behind it, and moving one
//! takes it from its readers.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::limits::Limits;
use crate::options::LostPage;
use crate::sys::map::{FileMap, MapKind};

/// Bytes of the smallest window.
const SMALLEST: u64 = 1 << 20;

pub(super) struct Windows {
    kind: MapKind,
    lost_page: LostPage,
    /// The length that the file may grow to.
    most: u64,
    /// The last one is the newest.
    maps: Mutex<Vec<FileMap>>,
}

impl Windows {
    /// The first window, of a file of `len` bytes that may grow to `most`, and the limits, which admit no access yet.
    ///
    /// # Errors
    /// As for [`FileMap::new`].
    pub(super) fn new(
        file: BorrowedFd<'_>,
        kind: MapKind,
        len: u64,
        most: u64,
        lost_page: LostPage,
    ) -> io::Result<(Self, Limits)> {
        let windows = Windows { kind, lost_page, most: most.max(len), maps: Mutex::default() };
        let limits = Limits::new(windows.open(file, len)?);
        Ok((windows, limits))
    }

    /// Maps a file that is about to have `len` bytes, with room to double. Returns the address of its first byte.
    fn open(&self, file: BorrowedFd<'_>, len: u64) -> io::Result<u64> {
        let reserve = len.saturating_mul(2).max(SMALLEST).min(self.most);
        let map = FileMap::new(file, self.kind, len, reserve, self.lost_page)?;
        let address = map.at(0).expose_provenance() as u64;
        self.maps().push(map);
        Ok(address)
    }

    fn maps(&self) -> MutexGuard<'_, Vec<FileMap>> {
        // A panic leaves every mapping where it is.
        self.maps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length that the file may grow to.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// Makes a new window unless the newest one covers `len` bytes. One thread at a time.
    ///
    /// # Errors
    /// As for [`FileMap::new`]; then nothing has changed.
    pub(super) fn cover(&self, file: BorrowedFd<'_>, len: u64, limits: &Limits) -> io::Result<()> {
        if len > self.reserved() {
            limits.move_to(self.open(file, len)?);
        }
        Ok(())
    }

    /// Bytes of the newest window.
    pub(super) fn reserved(&self) -> u64 {
        self.maps().last().map_or(0, FileMap::reserved)
    }

    /// As [`FileMap::release`], in every window.
    pub(super) fn release(&self, offset: u64, len: u64) -> io::Result<()> {
        self.maps().iter().try_for_each(|map| match map.reserved().checked_sub(offset) {
            None | Some(0) => Ok(()),
            Some(there) => map.release(offset, len.min(there)),
        })
    }

    /// As [`FileMap::resident`].
    pub(super) fn resident(&self, offset: u64, len: u64) -> io::Result<Vec<bool>> {
        self.maps().last().map_or(Ok(Vec::new()), |map| map.resident(offset, len))
    }

    /// As [`FileMap::lost`], in any window.
    pub(super) fn lost(&self) -> Option<u64> {
        self.maps().iter().find_map(FileMap::lost)
    }

    /// As [`FileMap::note_lost`].
    pub(super) fn note_lost(&self, offset: u64) {
        if let Some(map) = self.maps().last() {
            map.note_lost(offset);
        }
    }
}
