//! Memory of pages that are there one by one: address space reserved once, of which a page can be touched after it was
//! opened, and until it is closed.
//!
//! The pages as their owner knows them are in a file without a name (`memfd_create(2)`), mapped privately: a page
//! that is stored to becomes the process's own, which [`Tracking`] finds out, and one that is released is the file's
//! again. A closed page is kept from accesses by a mark in the page table (`MADV_GUARD_INSTALL`, Linux 6.15), so that
//! opening and closing in any order takes no mapping of its own; where the kernel has no such marks, by protection,
//! which takes one for each row of open pages. Touching a closed page is a SIGSEGV.
//!
//! A mark of the tracker's on a page that was stored to survives the letting go of that page, and no guard is put
//! over it: the kernel (6.18) would try again without end. So that mark is taken away first.
//!
//! Pages can also be opened as those of another file, which copies nothing: see [`shown`].
//!
//! What holds: **of a closed page the file has no bytes, and its memory none of its own.** So an opened page holds
//! what it was opened with, and nothing that it held before. Where a hole could not be made in the file, it is
//! remembered that there may be bytes, and pages are opened with zeros that are written.
//!
//! # Safety
//! A [`Paged`] owns its address range and its file from construction to drop. It lends slices of open pages only.
//! What changes their bytes or takes them away (closing, settling, restoring) happens under `&mut self`, when no
//! slice is lent; opening happens under `&self` and a lock, and changes pages that are closed, of which nobody has a
//! slice.
#![allow(unsafe_code)]

mod shown;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::io::Errno;
use rustix::mm::{MprotectFlags, mprotect};

use super::fault::none_lost;
use super::file::{self, uninterrupted};
use super::map::{FileMap, MapKind};
use super::page_size;
use super::runs::Runs;
use super::tracking::Tracking;
use crate::options::{DirtyTracking, LostPage};

/// Bytes of a page here. The system's pages must be as large.
const PAGE: u64 = 4096;

/// Pages that are made accessible together, with guards: those of one page of a page table.
const CHUNK: u64 = 512;

/// Chunks that are made accessible together once the kernel grants no more mappings: with guards, 1 GiB.
const BLOCK: u64 = 512;

/// How closed pages are kept from accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Closing {
    /// By guards if the kernel has them, else by protection.
    Auto,
    /// By protection: for tests of what other kernels do.
    #[cfg_attr(not(test), expect(dead_code, reason = "what kernels without guards are left with, chosen in tests"))]
    Protection,
}

/// Address space of pages, each of them open or closed.
pub(crate) struct Paged {
    file: OwnedFd,
    memory: FileMap,
    tracking: Tracking,
    open: Mutex<Open>,
}

/// Which pages are open.
struct Open {
    /// The chunks that may be accessed where there is no guard, with a bit for each page that is open.
    chunks: BTreeMap<u64, [u64; 8]>,
    guards: bool,
    /// Whether protection stands for guards in chunks that had some.
    mixed: bool,
    /// Bytes of the file.
    len: u64,
    /// Whether the file may have bytes of closed pages.
    leftovers: bool,
    /// Bytes of the reservation that are another file's.
    shown: Runs,
    /// Those of them that were opened since [`Paged::take_newly_shown`] was last asked.
    newly_shown: Runs,
}

impl Paged {
    /// Reserves `reserve` bytes, or half as many if there is no room for that, and so on, and tracks stores there.
    /// `name` shows in /proc.
    ///
    /// # Errors
    /// EOPNOTSUPP where pages of memory are not 4 KiB; those of `memfd_create(2)` and `mmap(2)`; why the method asked
    /// for is not to be had.
    pub(crate) fn new(
        name: &str,
        reserve: u64,
        lost_page: LostPage,
        closing: Closing,
        method: DirtyTracking,
    ) -> io::Result<Self> {
        if page_size() as u64 != PAGE {
            return Err(Errno::OPNOTSUPP.into());
        }
        // The kernel cuts no name short.
        let name: String = name.chars().filter(char::is_ascii_graphic).take(64).collect();
        let file = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?;
        let memory = FileMap::new(file.as_fd(), MapKind::Closed, PAGE, reserve, lost_page)?;
        let guards = closing == Closing::Auto && guard(&memory, 0..1, true).is_ok();
        let tracking = Tracking::new(memory.address(0).addr(), memory.reserved() as usize, method)?;
        let open = Open {
            chunks: BTreeMap::new(),
            guards,
            mixed: false,
            len: 0,
            leftovers: false,
            shown: Runs::new(),
            newly_shown: Runs::new(),
        };
        Ok(Paged { file, memory, tracking, open: Mutex::new(open) })
    }

    /// How stores are found.
    pub(crate) fn tracking(&self) -> &Tracking {
        &self.tracking
    }

    /// Whether closed pages take no mappings.
    #[cfg(test)]
    pub(crate) fn has_guards(&self) -> bool {
        self.open().guards
    }

    /// Pages of the reservation.
    pub(crate) fn pages(&self) -> u64 {
        self.memory.reserved() / PAGE
    }

    /// Where a page is, open or not.
    pub(crate) fn address(&self, page: u64) -> *mut u8 {
        self.memory.address(page * PAGE).cast_mut()
    }

    /// The offset of the first page that was lost, if one was.
    pub(crate) fn lost(&self) -> Option<u64> {
        if none_lost() { None } else { self.memory.lost() }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        // What is noted is noted after it is so, and before anybody relies on it.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether all pages of a range of bytes are open.
    pub(crate) fn has(&self, range: &Range<u64>) -> bool {
        self.open().has_all(range.start / PAGE..range.end.div_ceil(PAGE))
    }

    /// The pages of a range of bytes, if all are open.
    pub(crate) fn bytes(&self, range: &Range<u64>) -> Option<&[u8]> {
        if !self.has(range) {
            return None;
        }
        let len = (range.end - range.start) as usize;
        // SAFETY: open pages of the mapping, initialised as all memory of a file is. They stay open, and their bytes
        // as they are, as long as `self` is borrowed; see the module's documentation.
        Some(unsafe { slice::from_raw_parts(self.memory.address(range.start), len) })
    }

    /// The same, for stores.
    pub(crate) fn bytes_mut(&mut self, range: &Range<u64>) -> Option<&mut [u8]> {
        if !self.has(range) {
            return None;
        }
        let len = (range.end - range.start) as usize;
        // SAFETY: as for `bytes`; open pages are writable, and `self` is borrowed exclusively.
        Some(unsafe { slice::from_raw_parts_mut(self.memory.at(range.start), len) })
    }

    /// A copy of an open page, for which other threads may store there meanwhile.
    pub(crate) fn copy_of(&self, page: u64) -> Option<Box<[u8; PAGE as usize]>> {
        if !self.open().has(page) {
            return None;
        }
        let mut copy = Box::new([0_u8; PAGE as usize]);
        // SAFETY: the page is open and stays so while `self` is borrowed, and the new memory overlaps nothing. No
        // reference to the page is made, and any bytes are a valid copy: whoever stores through a pointer meanwhile
        // answers for it.
        unsafe { ptr::copy_nonoverlapping(self.memory.address(page * PAGE), copy.as_mut_ptr(), PAGE as usize) };
        Some(copy)
    }

    /// Ranges of bytes that all open pages lie in, for [`Tracking`]. A few megabytes of what is
    /// between them may be in.
    pub(crate) fn extents(&self) -> Vec<Range<u64>> {
        let open = self.open();
        let mut extents: Vec<Range<u64>> = Vec::new();
        for (chunk, _) in open.chunks.iter().filter(|(_, pages)| **pages != [0; 8]) {
            let (start, end) = (chunk * CHUNK * PAGE, (chunk + 1) * CHUNK * PAGE);
            let end = end.min(self.memory.reserved());
            match extents.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => extents.push(start..end),
            }
        }
        extents
    }

    /// The open ones among pages.
    pub(crate) fn open_among(&self, pages: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let open = self.open();
        pages.into_iter().filter(|page| open.has(*page)).collect()
    }

    /// Every open page.
    #[cfg(test)]
    pub(crate) fn all_open(&self) -> Vec<u64> {
        let open = self.open();
        let of_chunk = |(chunk, pages): (&u64, &[u64; 8])| {
            let (first, pages) = (chunk * CHUNK, *pages);
            (0..CHUNK)
                .filter(move |page| pages[(page / 64) as usize] >> (page % 64) & 1 == 1)
                .map(move |page| first + page)
        };
        open.chunks.iter().flat_map(of_chunk).collect()
    }

    /// Keeps others from opening pages while this one does.
    pub(crate) fn opening(&self) -> Opening<'_> {
        Opening { memory: self, open: self.open() }
    }

    /// Closes what is open of a range of pages. Their bytes are gone.
    ///
    /// # Errors
    /// Those of `madvise(2)` and `mprotect(2)`; some pages may be closed by then, and the others are open. A single
    /// page that is open still holds what it held; of several some may hold what the file has.
    pub(crate) fn close(&mut self, pages: Range<u64>) -> io::Result<()> {
        let Paged { file, memory, tracking, open } = self;
        let open = open.get_mut().unwrap_or_else(PoisonError::into_inner);
        for run in open.runs(pages, true) {
            tracking.unprotect(run.start * PAGE..run.end * PAGE)?;
            open.hide(memory, run.clone())?;
            open.note(run.clone(), false);
            open.drop_bytes(file, run);
        }
        Ok(())
    }

    /// Makes what is in memory of open pages what the file has, and gives memory back that was the process's own.
    ///
    /// # Errors
    /// Those of `pwrite(2)` and `madvise(2)`: no bytes are lost then.
    pub(crate) fn settle(&mut self, pages: Range<u64>) -> io::Result<()> {
        let range = pages.start * PAGE..pages.end * PAGE;
        let bytes = self.bytes(&range).ok_or(Errno::FAULT)?;
        write_all(&self.file, bytes, range.start)?;
        self.become_the_file(pages)
    }

    /// Gives open pages these bytes; they are no stores.
    ///
    /// # Errors
    /// Those of `pwrite(2)` and `madvise(2)`: the pages hold these bytes, or those of before.
    pub(crate) fn restore(&mut self, first: u64, bytes: &[u8]) -> io::Result<()> {
        write_all(&self.file, bytes, first * PAGE)?;
        self.become_the_file(first..first + bytes.len() as u64 / PAGE)
    }

    /// Lets go of what the process has of its own of open pages: they are the file's.
    fn become_the_file(&mut self, pages: Range<u64>) -> io::Result<()> {
        let Paged { file, memory, tracking, open } = self;
        let open = open.get_mut().unwrap_or_else(PoisonError::into_inner);
        for own in open.cover_all(file, memory, tracking, pages, true)? {
            memory.release(own.start * PAGE, (own.end - own.start) * PAGE)?;
        }
        Ok(())
    }
}

/// The right to open pages.
pub(crate) struct Opening<'a> {
    memory: &'a Paged,
    open: MutexGuard<'a, Open>,
}

impl Opening<'_> {
    /// The rows of pages in a range that are closed.
    pub(crate) fn closed(&self, pages: Range<u64>) -> Vec<Range<u64>> {
        self.open.runs(pages, false)
    }

    /// Opens closed pages with these bytes. The range is within the reservation.
    ///
    /// # Errors
    /// Those of `ftruncate(2)`, `pwrite(2)`, `madvise(2)` and `mprotect(2)`, ENOMEM among them when the process has
    /// as many mappings as the kernel grants. The pages are closed then.
    pub(crate) fn check_exclusion(&mut self, first: u64, bytes: &[u8]) -> io::Result<()> {
        let Paged { file, memory, tracking, .. } = self.memory;
        let pages = first..first + bytes.len() as u64 / PAGE;
        self.open.cover_all(file, memory, tracking, pages.clone(), false)?;
        let admitted = self.open.check_exclusion(file, memory, pages.clone(), bytes);
        if admitted.is_err() {
            self.open.drop_bytes(file, pages);
        }
        admitted
    }
}

impl Open {
    /// [`Opening::check_exclusion`], but that a failure may leave bytes in the file.
    fn check_exclusion(&mut self, file: &OwnedFd, memory: &FileMap, pages: Range<u64>, bytes: &[u8]) -> io::Result<()> {
        self.fit(file, &pages)?;
        // The file has no bytes of a closed page: zeros need not be written. All else goes in rows, for a call each.
        let (contents, _) = bytes.as_chunks::<{ PAGE as usize }>();
        let is_written = |page: &[u8; PAGE as usize]| self.leftovers || *page != [0; PAGE as usize];
        let mut offset = pages.start * PAGE;
        for row in contents.chunk_by(|page, next| is_written(page) == is_written(next)) {
            let row_bytes = row.as_flattened();
            if is_written(&row[0]) {
                write_all(file, row_bytes, offset)?;
            }
            offset += row_bytes.len() as u64;
        }
        for chunk in pages.start / CHUNK..pages.end.div_ceil(CHUNK) {
            self.prepare(memory, chunk)?;
        }
        self.reveal(memory, pages.clone())?;
        self.note(pages, true);
        Ok(())
    }

    /// Makes the file as long as pages need it to be.
    fn fit(&mut self, file: &OwnedFd, pages: &Range<u64>) -> io::Result<()> {
        let end = pages.end.next_multiple_of(CHUNK) * PAGE;
        if self.len < end {
            file::set_len(file, end)?;
            self.len = end;
        }
        Ok(())
    }

    /// Takes from the file what it has of closed pages.
    fn drop_bytes(&mut self, file: &OwnedFd, pages: Range<u64>) {
        let (offset, len) = (pages.start * PAGE, (pages.end - pages.start) * PAGE);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.leftovers |= uninterrupted(|| rustix::fs::fallocate(file, punch, offset, len)).is_err();
    }

    fn has(&self, page: u64) -> bool {
        let chunk = self.chunks.get(&(page / CHUNK));
        chunk.is_some_and(|pages| pages[(page % CHUNK / 64) as usize] >> (page % 64) & 1 == 1)
    }

    fn has_all(&self, pages: Range<u64>) -> bool {
        let mut from = pages.start;
        while from < pages.end {
            let Some(chunk) = self.chunks.get(&(from / CHUNK)) else { return false };
            let to = pages.end.min((from / 64 + 1) * 64);
            let wanted = (u64::MAX >> (64 - (to - from))) << (from % 64);
            if chunk[(from % CHUNK / 64) as usize] & wanted != wanted {
                return false;
            }
            from = to;
        }
        true
    }

    /// The rows of pages in a range that are open, or those that are not.
    fn runs(&self, pages: Range<u64>, open: bool) -> Vec<Range<u64>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in pages.filter(|page| self.has(*page) == open) {
            match runs.last_mut() {
                Some(last) if last.end == page => last.end += 1,
                _ => runs.push(page..page + 1),
            }
        }
        runs
    }

    fn note(&mut self, pages: Range<u64>, open: bool) {
        for page in pages {
            let chunk = self.chunks.entry(page / CHUNK).or_default();
            let (word, bit) = (&mut chunk[(page % CHUNK / 64) as usize], 1 << (page % 64));
            *word = if open { *word | bit } else { *word & !bit };
        }
    }

    /// Makes a chunk accessible but for guards on all of its pages. Without guards there is nothing to prepare.
    fn prepare(&mut self, memory: &FileMap, chunk: u64) -> io::Result<()> {
        if !self.guards || self.chunks.contains_key(&chunk) {
            return Ok(());
        }
        match self.guard_all(memory, chunk..chunk + 1) {
            // The program has locked its memory since (`mlockall(2)`), and there are no guards in that.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.mixed = true;
                self.chunks.insert(chunk, [0; 8]);
                Ok(())
            }
            // The kernel grants no more mappings. One that is larger swallows others, unless protection is all that
            // keeps accesses from some of their pages.
            Err(error) if !self.mixed && error.raw_os_error() == Some(Errno::NOMEM.raw_os_error()) => {
                let first = chunk / BLOCK * BLOCK;
                self.guard_all(memory, first..first + BLOCK)
            }
            done => done,
        }
    }

    fn guard_all(&mut self, memory: &FileMap, chunks: Range<u64>) -> io::Result<()> {
        let last = (memory.reserved() / PAGE).div_ceil(CHUNK);
        let chunks = chunks.start..chunks.end.min(last);
        let pages = |chunk: u64| chunk * CHUNK..((chunk + 1) * CHUNK).min(memory.reserved() / PAGE);
        let new: Vec<u64> = chunks.clone().filter(|chunk| !self.chunks.contains_key(chunk)).collect();
        for &chunk in &new {
            guard(memory, pages(chunk), true)?;
        }
        protect(memory, chunks.start * CHUNK..pages(chunks.end - 1).end, true)?;
        self.chunks.extend(new.into_iter().map(|chunk| (chunk, [0; 8])));
        Ok(())
    }

    /// Lets accesses to pages through.
    fn reveal(&self, memory: &FileMap, pages: Range<u64>) -> io::Result<()> {
        if !self.guards || self.mixed {
            protect(memory, pages.clone(), true).inspect_err(|_| {
                // It may have come as far as the first of several rows. The error that counts is the one there is.
                let _ = protect(memory, pages.clone(), false);
            })?;
        }
        if self.guards { guard(memory, pages, false) } else { Ok(()) }
    }

    /// Keeps accesses from pages, and lets go of what was stored there.
    fn hide(&mut self, memory: &FileMap, pages: Range<u64>) -> io::Result<()> {
        if self.guards {
            match guard(memory, pages.clone(), true) {
                // As in `prepare`.
                Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => self.mixed = true,
                Err(error) => {
                    // It may have come as far as the first of several. They count as open, so they must not be a
                    // SIGSEGV.
                    let _ = guard(memory, pages, false);
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
        let hidden = protect(memory, pages.clone(), false)
            .and_then(|()| memory.release(pages.start * PAGE, (pages.end - pages.start) * PAGE));
        hidden.inspect_err(|_| {
            // They count as open, so they must not be a SIGSEGV.
            let _ = protect(memory, pages, true);
        })
    }
}

/// Puts guards on pages, which lets go of their memory, or takes them away. Source: `madvise(2)`.
fn guard(memory: &FileMap, pages: Range<u64>, install: bool) -> io::Result<()> {
    const GUARD_INSTALL: libc::c_int = 102;
    const GUARD_REMOVE: libc::c_int = 103;
    let (at, len) = (memory.at(pages.start * PAGE), (pages.end - pages.start) * PAGE);
    let advice = if install { GUARD_INSTALL } else { GUARD_REMOVE };
    uninterrupted(|| {
        // SAFETY: pages of a mapping that its owner alone uses. That stores to them are lost is what closing means.
        let done = unsafe { libc::madvise(at.cast(), len as usize, advice) };
        if done == 0 { Ok(()) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
    })
}

fn protect(memory: &FileMap, pages: Range<u64>, accessible: bool) -> io::Result<()> {
    let flags = if accessible { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::empty() };
    let (at, len) = (memory.at(pages.start * PAGE), (pages.end - pages.start) * PAGE);
    // SAFETY: as above; no slice of a page that becomes inaccessible is lent.
    Ok(unsafe { mprotect(at.cast(), len as usize, flags) }?)
}

fn write_all(file: &OwnedFd, bytes: &[u8], offset: u64) -> io::Result<()> {
    file::write_all(file.as_fd(), bytes, offset).map_err(|(_, error)| error)
}

#[cfg(test)]
pub(crate) mod tests;
