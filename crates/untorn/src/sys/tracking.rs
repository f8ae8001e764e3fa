//! Which pages of a private file mapping a program has stored to, from the page tables.
//!
//! A page of a private mapping that was never stored to is the file's page; the first store gives the process a page
//! of its own, with the file's bytes, and leaves the file alone. So the pages of its own are those that were stored
//! to since they were last given back, and any kernel can tell them from the file's. Where the kernel write-protects
//! pages asynchronously too (Linux 6.7, and a process that may use userfaultfd), it also tells which of them were
//! stored to since it was last asked, and asking costs no more than looking.
//!
//! Stores by the kernel for the program, as `read(2)` into the mapping, count like the program's. Stores by a forked
//! child go to pages of the child's own and do not count.
//!
//! Source: `linux/fs.h`, `linux/userfaultfd.h`, and of the kernel's documentation `admin-guide/mm/pagemap.rst`.
//!
//! # Safety
//! The system calls here look at page tables, or set a protection that the kernel itself takes away at the next store.
//! None of them changes a byte of memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::runs::Runs;
use super::userfault::Userfault;
use super::{PerProcess, incarnation, page_size};
use crate::options::DirtyTracking;

/// Committed bytes that stay in memory of the process's own before some are given back to the file. A store to a page
/// that is there costs no copy of it.
pub(crate) const KEPT: u64 = 64 << 20;

/// Pages closer to each other than this many bytes are asked about together.
const LOOK: u64 = 64 << 12;

/// Watches one private mapping of a file. All of a process share its two descriptors.
pub(crate) struct Tracking {
    start: usize,
    pagemap: Arc<File>,
    /// What keeps the write protection; without it pages are told apart by whose they are only. The protection of a
    /// range goes with its mapping.
    protector: Option<Arc<Userfault>>,
}

/// What the watches of a process share, while there are any. A child's page tables are its own.
#[derive(Default)]
struct Descriptors {
    pagemap: Weak<File>,
    protector: Weak<Userfault>,
}

static DESCRIPTORS: PerProcess<Mutex<Descriptors>> = PerProcess::new();

/// The page tables of this process.
fn pagemap() -> io::Result<Arc<File>> {
    shared(|descriptors| &mut descriptors.pagemap, || File::open("/proc/self/pagemap"))
}

/// What the watches share, made if none has it.
fn shared<T>(which: fn(&mut Descriptors) -> &mut Weak<T>, make: fn() -> io::Result<T>) -> io::Result<Arc<T>> {
    let mut descriptors = DESCRIPTORS.lock();
    let known = which(&mut descriptors);
    if let Some(known) = known.upgrade() {
        return Ok(known);
    }
    let made = Arc::new(make()?);
    *known = Arc::downgrade(&made);
    Ok(made)
}

impl Tracking {
    /// Tracks the mapping of `len` bytes at `start`, both multiples of the page size, for as long as it is there.
    ///
    /// # Errors
    /// Of the method asked for, why it is not to be had; of [`DirtyTracking::Auto`], why even the page tables can't
    /// be read.
    pub(crate) fn new(start: usize, len: usize, method: DirtyTracking) -> io::Result<Self> {
        let pagemap = pagemap()?;
        let protector = || {
            let protector = shared(|descriptors| &mut descriptors.protector, Userfault::asynchronous)?;
            watch(&protector, start, len, &pagemap)?;
            Ok::<_, io::Error>(protector)
        };
        let protector = match method {
            DirtyTracking::PageTable => None,
            DirtyTracking::WriteProtect => Some(protector()?),
            DirtyTracking::Auto => protector().ok(),
        };
        Ok(Tracking { start, pagemap, protector })
    }

    /// How it is done: never [`DirtyTracking::Auto`].
    pub(crate) fn method(&self) -> DirtyTracking {
        if self.protector.is_some() { DirtyTracking::WriteProtect } else { DirtyTracking::PageTable }
    }

    /// The pages in these ranges, which are ascending, that were stored to since this was last asked, and whether
    /// those are all. Without write protection they are the process's own; then they must be given back when what
    /// they hold is in the file. `own` are pages known to be the process's own.
    ///
    /// What was found is told also if something failed: it is not found a second time.
    pub(crate) fn take_stored(&self, within: &[Range<u64>], own: &Runs) -> (Runs, io::Result<()>) {
        if self.protector.is_none() {
            return self.take_own(within);
        }
        let (unprotected, taken) = self.take_unprotected(within);
        // Nothing protects a page of the file that came into memory by a load, until now. Which pages are of that
        // kind takes a look at each page's own description, so it is asked of as few as possible.
        let mut files = Runs::new();
        for range in unprotected.without(own).coarsened(LOOK) {
            if self.scan(range, Scan::PAGES_OF_THE_FILE, |run| files.push(run)).is_err() {
                // Then they count as stored to, which costs a commit some bytes and nothing else.
                break;
            }
        }
        (unprotected.without(&files), taken)
    }

    /// The same, but that no page is told of that is the file's. Where the kernel does not tell it fails, and the pages
    /// are found the next time.
    pub(crate) fn take_stored_exactly(&self, within: &[Range<u64>], own: &Runs) -> (Runs, io::Result<()>) {
        if self.protector.is_none() {
            return self.take_own(within);
        }
        let (mut unprotected, mut taken) = self.take_unprotected(within);
        let (unknown, mut found) = (unprotected.without(own), Runs::new());
        for range in unknown.coarsened(LOOK) {
            // A page of the file may have left memory since, and is then nobody's; one of the process's own never is.
            if let Err(error) = self.scan(range.clone(), Scan::PAGES_OF_ITS_OWN, |run| found.push(run)) {
                let again = self.unprotect(range);
                taken = taken.and(again).and(Err(error));
            }
        }
        unprotected = unprotected.without(&unknown.without(&found));
        (unprotected, taken)
    }

    /// The process's own pages, where there is no write protection.
    fn take_own(&self, within: &[Range<u64>]) -> (Runs, io::Result<()>) {
        let mut own = Runs::new();
        let read = within.iter().try_for_each(|range| self.find_own(range, &mut own));
        (own, read)
    }

    /// The pages that nothing protects, and protects them.
    fn take_unprotected(&self, within: &[Range<u64>]) -> (Runs, io::Result<()>) {
        let mut unprotected = Runs::new();
        let scan = |range: &Range<u64>| self.scan(range.clone(), Scan::TAKE_UNPROTECTED, |run| unprotected.push(run));
        let taken = within.iter().try_for_each(scan);
        (unprotected, taken)
    }

    /// Tracks a part of the mapping in whose place another one was made.
    ///
    /// # Errors
    /// Those of the kernel.
    pub(crate) fn watch_again(&self, range: Range<u64>) -> io::Result<()> {
        let Some(protector) = &self.protector else { return Ok(()) };
        protector.register_stores(self.start + range.start as usize, (range.end - range.start) as usize)
    }

    /// Takes the write protection from a range, as if all of it were stored to. Without write protection there is none.
    pub(crate) fn unprotect(&self, range: Range<u64>) -> io::Result<()> {
        let Some(protector) = &self.protector else { return Ok(()) };
        protector.protect(self.start + range.start as usize, (range.end - range.start) as usize, false)
    }

    /// The pages of a range that are the process's own. A scan tells where they are, and passes over page tables that
    /// are not there; so the cost follows what is in memory, not the range. Before Linux 6.7 there is no such scan.
    fn find_own(&self, range: &Range<u64>, runs: &mut Runs) -> io::Result<()> {
        let mut found = Runs::new();
        let places = match self.scan(range.clone(), Scan::PAGES_OF_ITS_OWN, |run| found.push(run)) {
            Ok(()) => found.coarsened(LOOK),
            Err(_) => vec![range.clone()],
        };
        places.iter().try_for_each(|place| self.read_page_table(place, runs))
    }

    /// Whether the kernel scans page tables.
    #[cfg(test)]
    pub(crate) fn can_scan(&self) -> bool {
        self.scan(0..page_size() as u64, Scan::PAGES_OF_ITS_OWN, |_| ()).is_ok()
    }

    /// The words of `/proc/self/pagemap`, one for each page of a range, whatever is there.
    fn read_page_table(&self, range: &Range<u64>, runs: &mut Runs) -> io::Result<()> {
        const PAGE_PRESENT: u64 = 1 << 63;
        const PAGE_SWAPPED: u64 = 1 << 62;
        const PAGE_OF_FILE: u64 = 1 << 61;
        let page = page_size() as u64;
        let (mut done, pages) = (range.start / page, range.end.div_ceil(page));
        let mut words = vec![0; 8 * (pages - done).min(8192) as usize];
        while done < pages {
            let here = (pages - done).min(8192);
            let buffer = &mut words[..8 * here as usize];
            self.pagemap.read_exact_at(buffer, (self.start as u64 / page + done) * 8)?;
            for (index, word) in buffer.chunks_exact(8).enumerate() {
                let word = u64::from_ne_bytes(word.try_into().expect("chunks of eight bytes"));
                if word & (PAGE_PRESENT | PAGE_SWAPPED) != 0 && word & PAGE_OF_FILE == 0 {
                    let offset = (done + index as u64) * page;
                    runs.push(offset..offset + page);
                }
            }
            done += here;
        }
        Ok(())
    }

    /// Calls `each` with the ranges of pages that a scan of a range of the mapping finds, all as offsets into it.
    fn scan(&self, range: Range<u64>, scan: Scan, each: impl FnMut(Range<u64>)) -> io::Result<()> {
        scan.run(&self.pagemap, self.start as u64, range, each)
    }
}

/// Watches one shared mapping of a file, made by anybody: which of its pages were stored to through it, by this
/// process.
///
/// It is not this one's mapping, so it may be gone at any time. The kernel then walks over the hole that it leaves
/// and finds nothing stored to; or the stores to what is mapped there next. Both are errors here.
pub(crate) struct SharedTracking {
    pagemap: Arc<File>,
    watch: Arc<RangeWatch>,
    /// What keeps the write protection.
    protector: Userfault,
}

/// A range of addresses that is asked about.
struct RangeWatch {
    addresses: Range<usize>,
    /// A forked child has other mappings, and locks that nobody lets go.
    process: u64,
    /// Whether another mapping is watched there since. Held while the kernel is asked, which takes from it what it
    /// tells.
    displaced: Mutex<bool>,
}

/// Every range of addresses that this process watches.
static WATCHES: PerProcess<Mutex<Vec<Weak<RangeWatch>>>> = PerProcess::new();

impl RangeWatch {
    /// Watches a range, from now on alone.
    fn begin(addresses: Range<usize>) -> Arc<RangeWatch> {
        let process = incarnation();
        let watch = Arc::new(RangeWatch { addresses, process, displaced: Mutex::new(false) });
        // Nothing panics under either lock.
        let mut watches = WATCHES.lock();
        watches.retain(|other| other.strong_count() > 0);
        for other in watches.iter().filter_map(Weak::upgrade) {
            let (here, there) = (&watch.addresses, &other.addresses);
            if here.start < there.end && there.start < here.end {
                *other.displaced.lock().unwrap_or_else(PoisonError::into_inner) = true;
            }
        }
        watches.push(Arc::downgrade(&watch));
        watch
    }

    /// Fails if nothing is mapped in a part of the range.
    fn is_mapped(&self) -> io::Result<()> {
        // With MS_ASYNC it does nothing but look: `msync(2)`, ENOMEM.
        // SAFETY: it changes no byte of memory, whatever is there.
        let found = unsafe { libc::msync(self.addresses.start as _, self.addresses.len(), libc::MS_ASYNC) };
        if found == 0 { Ok(()) } else { Err(gone()) }
    }
}

fn gone() -> io::Error {
    io::Error::other("the file is no longer mapped there; keep the mapping until its protection has ended")
}

impl SharedTracking {
    /// Tracks the mapping of `len` bytes at `start`, both multiples of the page size, for as long as it is there. A
    /// store from now on is found.
    ///
    /// # Errors
    /// Why the kernel cannot do it.
    pub(crate) fn new(start: usize, len: usize) -> io::Result<Self> {
        let pagemap = pagemap()?;
        // One of its own: closing it ends the watch of a mapping that is somebody else's.
        let protector = Userfault::asynchronous()?;
        watch(&protector, start, len, &pagemap)?;
        // The kernel lets nobody else watch this mapping, so whoever watches these addresses means another, which is
        // gone. Before the first store is noticed: they would take it.
        let watch = RangeWatch::begin(start..start + len);
        protector.protect(start, len, true)?;
        Ok(SharedTracking { pagemap, watch, protector })
    }

    /// The bytes of pages stored to since this was last asked, as offsets into the mapping. Those found before an
    /// error are not found again.
    ///
    /// # Errors
    /// Those of the kernel, and that the mapping is gone.
    pub(crate) fn take(&self) -> io::Result<Runs> {
        self.scan(Scan::TAKE_WRITTEN)
    }

    /// The same, and they are found again.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn look(&self) -> io::Result<Runs> {
        self.scan(Scan::WRITTEN)
    }

    fn scan(&self, scan: Scan) -> io::Result<Runs> {
        let displaced = self.watch.displaced.lock().unwrap_or_else(PoisonError::into_inner);
        if *displaced {
            return Err(gone());
        }
        let Range { start, end } = self.watch.addresses;
        let mut runs = Runs::new();
        let asked = scan.run(&self.pagemap, start as u64, 0..(end - start) as u64, |run| runs.push(run));
        // EPERM: there is a mapping of which nobody would notice the stores, and so not the one that was watched.
        let is_refused = |error: &io::Error| error.raw_os_error() == Some(libc::EPERM);
        asked.map_err(|error| if is_refused(&error) { gone() } else { error })?;
        // Afterwards: if it is there now it was all the while, unless something took its place; and that the kernel
        // refuses to be asked about, or it is watched, and this has been told so.
        self.watch.is_mapped()?;
        Ok(runs)
    }
}

impl Drop for SharedTracking {
    fn drop(&mut self) {
        // A forked child has the descriptor too, and with it open the kernel lets nobody watch the mapping anew:
        // closing it here would not end the watch while the child lives. And the child, whose call would end it for
        // the parent, must not.
        if self.watch.process != incarnation() || self.look().is_err() {
            return;
        }
        let displaced = self.watch.displaced.lock().unwrap_or_else(PoisonError::into_inner);
        if !*displaced {
            // If it fails the last close ends the watch.
            let _ = self.protector.unregister(self.watch.addresses.start, self.watch.addresses.len());
        }
    }
}

/// `PAGE_IS_*`.
const WRITTEN: u64 = 1 << 1;
const FILE: u64 = 1 << 2;
const PRESENT: u64 = 1 << 3;
const SWAPPED: u64 = 1 << 4;

/// `PM_SCAN_WP_MATCHING`: write-protects, in one step with the look at it, each page that is reported.
const PROTECT_MATCHING: u64 = 1 << 0;
/// `PM_SCAN_CHECK_WPASYNC`: fails where stores would not be noticed.
const CHECK_ASYNC: u64 = 1 << 1;

/// `struct page_region`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
struct ScanArgument {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// What a walk through page tables looks for, and does.
#[derive(Clone, Copy)]
struct Scan {
    flags: u64,
    /// Categories of the mask that a page must not have.
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

impl Scan {
    /// Pages that nothing protects, and protects them in the same step. They are somewhere, in memory or swapped out.
    const TAKE_UNPROTECTED: Scan = Scan {
        flags: PROTECT_MATCHING | CHECK_ASYNC,
        category_inverted: 0,
        category_mask: WRITTEN,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: WRITTEN,
    };

    /// Pages that are the file's. The kernel's one page of zeros is not: only DAX, where this is not done, has it
    /// stand for a hole in a file; elsewhere KSM puts it in the place of a page that the program has filled with
    /// zeros.
    const PAGES_OF_THE_FILE: Scan =
        Scan { flags: 0, category_inverted: 0, category_mask: FILE, category_anyof_mask: 0, return_mask: FILE };

    /// Pages that are somewhere, in memory or swapped out, and are not known to be the file's. On persistent memory the
    /// words of `/proc/self/pagemap` know more of them, since the kernel finds no description of such a page here.
    const PAGES_OF_ITS_OWN: Scan = Scan {
        flags: 0,
        category_inverted: FILE,
        category_mask: FILE,
        category_anyof_mask: PRESENT | SWAPPED,
        return_mask: PRESENT | SWAPPED,
    };

    /// Pages that were stored to since they were protected, and protects them in the same step. With other masks some
    /// kernels call a page clean that was stored to and then left memory.
    const TAKE_WRITTEN: Scan = Scan {
        flags: PROTECT_MATCHING | CHECK_ASYNC,
        category_inverted: 0,
        category_mask: WRITTEN,
        category_anyof_mask: 0,
        return_mask: WRITTEN,
    };

    /// The same, without protecting them.
    const WRITTEN: Scan = Scan {
        flags: CHECK_ASYNC,
        category_inverted: 0,
        category_mask: WRITTEN,
        category_anyof_mask: 0,
        return_mask: WRITTEN,
    };

    fn run(self, pagemap: &File, base: u64, range: Range<u64>, mut each: impl FnMut(Range<u64>)) -> io::Result<()> {
        // `_IOWR('f', 16, struct pm_scan_arg)`.
        const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArgument>() as u64) << 16 | (b'f' as u64) << 8 | 16;
        let mut regions = [Region::default(); 512];
        let mut from = base + range.start;
        let end = base + range.end;
        while from < end {
            let mut argument = ScanArgument {
                size: size_of::<ScanArgument>() as u64,
                flags: self.flags,
                start: from,
                end,
                walk_end: 0,
                vec: regions.as_mut_ptr() as u64,
                vec_len: regions.len() as u64,
                max_pages: 0,
                category_inverted: self.category_inverted,
                category_mask: self.category_mask,
                category_anyof_mask: self.category_anyof_mask,
                return_mask: self.return_mask,
            };
            // SAFETY: the argument is as large as the request says, and the kernel fills at most `vec_len` regions.
            let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &mut argument) };
            if found < 0 {
                let error = io::Error::last_os_error();
                if error.kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(error);
            }
            for region in &regions[..found as usize] {
                each(region.start - base..region.end - base);
            }
            if argument.walk_end <= from {
                return Err(io::Error::other("PAGEMAP_SCAN made no progress"));
            }
            from = argument.walk_end;
        }
        Ok(())
    }
}

/// Has the kernel resolve write protection by itself in a range, so that [`PROTECT_MATCHING`] works there.
fn watch(protector: &Userfault, start: usize, len: usize, pagemap: &File) -> io::Result<()> {
    protector.register_stores(start, len)?;
    // Whether the kernel can do it is seen by asking: no page is there yet.
    let asked = Scan::TAKE_UNPROTECTED.run(pagemap, start as u64, 0..page_size() as u64, |_| ());
    asked.inspect_err(|_| {
        // Other ranges may keep the descriptor open.
        let _ = protector.unregister(start, len);
    })
}
