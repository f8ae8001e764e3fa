//! Marks of the pages that change while a reader in another process holds a snapshot: in memory that readers map.
//!
//! A reader copies a page straight out of the data file if both of these hold (see `remote`):
//!
//! - At some time after its snapshot was taken, the engine said that all bytes of the page are in the data file.
//! - After the copy, no mark says that the page has changed since the snapshot was taken.
//!
//! That is right because a page that is wholly in the data file stays so, with the same bytes, until it is written to:
//! engines bring a page home by storing the bytes that it has, and only if it is not home. And a write raises the mark
//! before its first store ([`page_marks`](crate::sync::page_marks)).
//!
//! One mark stands for a *unit*: one page, or a power of two of pages of a large file, so that the memory is at most
//! [`MOST`] bytes. Besides, one mark stands for all pages: the *floor*. It is raised where snapshots lose pages
//! otherwise than by a write: when the file shrinks, when a pre-image cannot be kept, and before the file is closed.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::PAGE;
use super::preimages::lock;
use crate::sync::page_marks::raise;
use crate::sys::shared::SharedPages;

/// Bytes of memory for marks, at most.
const MOST: u64 = 8 << 20;

/// The shortest file that marks are made for, so that a small one can grow.
const LEAST: u64 = 64 << 20;

/// Words before the marks: the floor, how many pages a unit has, as a power of two, and how many units there are.
const HEADER: usize = PAGE / 8;
const FLOOR: usize = 0;
const SHIFT: usize = 1;
const UNITS: usize = 2;

/// The marks of one file.
pub(crate) struct Marks {
    memory: SharedPages,
    shift: u32,
    units: u64,
}

impl Marks {
    /// Marks for a file of `len` bytes, and twice as many.
    ///
    /// # Errors
    /// Those of making memory that others may map to load only.
    pub(super) fn create(len: u64) -> io::Result<Marks> {
        let pages = len.saturating_mul(2).max(LEAST).div_ceil(PAGE as u64);
        let mut shift = 0;
        while pages.div_ceil(1 << shift) > MOST / 8 {
            shift += 1;
        }
        let units = pages.div_ceil(1 << shift);
        let size = (8 * (HEADER as u64 + units)).next_multiple_of(PAGE as u64);
        let memory = SharedPages::create("untorn-marks", size, size as usize)?;
        memory.allocate(0, size)?;
        let header = memory.words(0, HEADER);
        header[SHIFT].store(u64::from(shift), Ordering::Relaxed);
        header[UNITS].store(units, Ordering::Relaxed);
        memory.let_others_load_only()?;
        Ok(Marks { memory, shift, units })
    }

    /// Those that another process has made, to look at.
    ///
    /// # Errors
    /// Those of `mmap(2)`; `InvalidData` if it is not such memory.
    pub(super) fn of_another(file: OwnedFd) -> io::Result<Marks> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidData);
        let size = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if size < (HEADER * 8) as u64 || size > (HEADER * 8) as u64 + MOST {
            return Err(invalid());
        }
        let memory = SharedPages::map_to_load(file, size as usize)?;
        let header = memory.words(0, HEADER);
        let (shift, units) = (header[SHIFT].load(Ordering::Relaxed), header[UNITS].load(Ordering::Relaxed));
        let shift = u32::try_from(shift).ok().filter(|shift| *shift < 52).ok_or_else(invalid)?;
        if units > size / 8 - HEADER as u64 {
            return Err(invalid());
        }
        Ok(Marks { memory, shift, units })
    }

    /// The memory.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.memory.file()
    }

    /// Whether there are marks for all pages of a file of this length.
    pub(super) fn suffice_for(&self, len: u64) -> bool {
        len.div_ceil(PAGE as u64) <= self.units << self.shift
    }

    /// The mark of a page; `None` for one that lies too far behind.
    #[inline(always)]
    pub(super) fn mark(&self, page: u64) -> Option<&AtomicU64> {
        let unit = page >> self.shift;
        (unit < self.units).then(|| &self.memory.words(8 * (HEADER + unit as usize), 1)[0])
    }

    /// The mark of all pages.
    #[inline(always)]
    pub(super) fn floor(&self) -> &AtomicU64 {
        &self.memory.words(8 * FLOOR, 1)[0]
    }

    /// Says that these pages are about to change, and that `snapshot` is the newest that has them as they are.
    pub(super) fn note_change(&self, pages: impl Iterator<Item = u64>, snapshot: u64) {
        raise(pages.filter_map(|page| self.mark(page)), snapshot);
    }

    /// Says the same of all pages.
    pub(super) fn note_end(&self, snapshot: u64) {
        raise([self.floor()], snapshot);
    }
}

/// The marks of an open file, once a reader in another process has asked for them.
#[derive(Default)]
pub(super) struct MarksOfFile(Mutex<Option<Arc<Marks>>>);

impl MarksOfFile {
    /// Those for a reader that is about to take a snapshot of a file of `len` bytes; `None` if it must do without. The
    /// gate is closed, so each write finds them, or ended before. If no snapshot is held, they may be new ones.
    pub(super) fn for_reader(&self, path: &Path, len: u64, is_first: bool) -> Option<Arc<Marks>> {
        let mut marks = lock(&self.0);
        if is_first {
            marks.take_if(|marks| !marks.suffice_for(len));
        }
        if marks.is_none() {
            let made = Marks::create(len).inspect_err(|error| {
                tracing::debug!(path = %path.display(), %error, "readers have to ask for each page");
            });
            *marks = made.ok().map(Arc::new);
        }
        marks.clone()
    }

    /// [`Marks::note_change`], if there are any.
    pub(super) fn note_change(&self, pages: impl Iterator<Item = u64>, snapshot: u64) {
        let marks = lock(&self.0).clone();
        if let Some(marks) = marks {
            marks.note_change(pages, snapshot);
        }
    }

    /// [`Marks::note_end`], if there are any.
    pub(super) fn note_end(&self, snapshot: u64) {
        if let Some(marks) = &*lock(&self.0) {
            marks.note_end(snapshot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::page_marks::are_below;

    fn of_another(marks: &Marks) -> Marks {
        Marks::of_another(marks.file().try_clone_to_owned().unwrap()).unwrap()
    }

    fn is_unchanged(marks: &Marks, page: u64, snapshot: u64) -> bool {
        marks.mark(page).is_some_and(|mark| are_below([mark, marks.floor(), marks.floor()], snapshot))
    }

    #[test]
    fn another_mapping_sees_what_changes() {
        for len in [0, 1, 100 << 20, 1 << 40, u64::MAX] {
            let marks = Marks::create(len).unwrap();
            assert!(
                marks.suffice_for(len) && marks.memory.reserved() as u64 <= MOST + 4096 + 8 * HEADER as u64,
                "{len}"
            );
            let seen = of_another(&marks);
            assert!(is_unchanged(&seen, 5, 1));
            marks.note_change([5, 7, u64::MAX].into_iter(), 3);
            assert_eq!([2, 3, 4].map(|snapshot| is_unchanged(&seen, 5, snapshot)), [false, false, true]);
            marks.note_change([5].into_iter(), 2);
            assert!(!is_unchanged(&seen, 5, 3), "it does not fall");
            assert!(is_unchanged(&seen, ((7 >> marks.shift) + 1) << marks.shift, 3), "{len}");
            let last = (marks.units << marks.shift) - 1;
            assert!(is_unchanged(&seen, last, 3) && !is_unchanged(&seen, last + 1, 3));
            marks.note_end(4);
            assert!(!is_unchanged(&seen, last, 4) && is_unchanged(&seen, last, 5));
        }
    }

    #[test]
    fn other_memory_is_refused() {
        let small = SharedPages::create("untorn-test", 100, 4096).unwrap();
        let large = SharedPages::create("untorn-test", MOST + 8192, 4096).unwrap();
        let wrong = SharedPages::create("untorn-test", 8192, 8192).unwrap();
        wrong.words(0, HEADER)[UNITS].store(513, Ordering::Relaxed);
        let shifted = SharedPages::create("untorn-test", 8192, 8192).unwrap();
        shifted.words(0, HEADER)[SHIFT].store(64, Ordering::Relaxed);
        for memory in [small, large, wrong, shifted] {
            assert!(Marks::of_another(memory.file().try_clone_to_owned().unwrap()).is_err());
        }
    }
}
