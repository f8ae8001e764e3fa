//! Pages that a reader copies out of the data file by itself.
//!
//! # Invariants
//!
//! 1. A page counts as home only if the server said so after the snapshot was taken, or after an earlier one was taken
//!    and no mark says that the page has changed since. It says so in an answer, or where it publishes its commits. For
//!    [published](crate::engine::snapshot::publishing) snapshots all changes are marked, also while no reader reads.
//! 2. A copy counts only if, after it, neither the page nor the file has a mark for that snapshot, the
//!    server has not given the snapshot up, its thread lives, and no page of the mapping was lost. A server that ends
//!    or closes the file says so, or is seen to have ended, before the lock of the sidecar goes; so no other process
//!    stored to the file before the copy.
//! 3. The reader maps the file that the server has open: it opened it after the snapshot was taken, and it is the
//!    same inode.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use super::{BYTES, HEADER, HOME_BITS, REGION, RELEASED, SNAPSHOT, THREAD};
use crate::engine::snapshot::Marks;
use crate::options::LostPage;
use crate::storage::{Identity, identity_of};
use crate::sync::page_marks::are_below;
use crate::sys::ZeroedArray;
use crate::sys::alive::Alive;
use crate::sys::fault::none_lost;
use crate::sys::map::{FileMap, MapKind};
use crate::sys::shared::SharedPages;

/// Pages of a region that had to be brought before the server is asked again: they may have come home.
const PATIENCE: u32 = 64;

/// The data file and what tells whether a copy out of it counts.
pub(super) struct Direct {
    file: FileMap,
    pages: u64,
    marks: Marks,
    alive: Alive,
    /// The server's word for this snapshot.
    released: SharedPages,
    snapshot: u64,
    /// For each page that the server has said is home, and that had no mark since, the snapshot of then.
    home: ZeroedArray<AtomicU64>,
    /// For each region the pages that had to be brought since the server was asked, and 1 more; 0 before.
    asked: ZeroedArray<AtomicU32>,
    /// Set once no copy counts any more.
    is_over: AtomicBool,
}

impl Direct {
    /// For a snapshot of `len` bytes, with the memory, the marks and the life that the server has sent. `None` if its
    /// pages have to be brought: the file is not to be mapped, or another one has its name by now.
    pub(super) fn new(
        path: &Path,
        identity: Identity,
        len: u64,
        memory: &SharedPages,
        (marks, alive): (OwnedFd, OwnedFd),
    ) -> Option<Direct> {
        let make = || -> std::io::Result<Option<Direct>> {
            let words = memory.words(0, HEADER as usize / 8);
            let thread = u32::try_from(words[THREAD].load(Ordering::Relaxed)).unwrap_or(0);
            let file = File::open(path)?;
            if len == 0 || !identity_of(file.as_fd(), path).is_ok_and(|found| found == identity) {
                return Ok(None);
            }
            let pages = len.div_ceil(BYTES);
            Ok(Some(Direct {
                file: FileMap::new(file.as_fd(), MapKind::Read, len, len, LostPage::Fail)?,
                pages,
                marks: Marks::of_another(marks)?,
                alive: Alive::of_another(alive, thread)?,
                released: SharedPages::map_to_load(memory.file().try_clone_to_owned()?, BYTES as usize)?,
                snapshot: words[SNAPSHOT].load(Ordering::Relaxed),
                home: ZeroedArray::reserve(pages as usize)?,
                asked: ZeroedArray::reserve(pages.div_ceil(REGION) as usize)?,
                is_over: AtomicBool::new(false),
            }))
        };
        make().unwrap_or_else(|error| {
            tracing::debug!(path = %path.display(), %error, "pages of a snapshot have to be brought");
            None
        })
    }

    /// Begins anew for a snapshot in place of the one that it was for. The server has told of the first region.
    pub(super) fn renew(&mut self, memory: &SharedPages) {
        self.snapshot = memory.words(8 * SNAPSHOT, 1)[0].load(Ordering::SeqCst);
        self.home.iter().for_each(|since| since.store(0, Ordering::Relaxed));
        self.asked.iter().for_each(|asked| asked.store(0, Ordering::Relaxed));
        self.is_over.store(false, Ordering::Relaxed);
        if let Some(first) = self.asked.first() {
            first.store(1, Ordering::Relaxed);
        }
        self.note_home(0, memory);
    }

    /// Notes that the first so many pages are in the data file since a snapshot, unless they have a mark.
    pub(super) fn note_published(&self, (since, pages): (u64, u64)) {
        // After a mark of all pages the server has more to say.
        if since == 0 || self.marks.floor().load(Ordering::Relaxed) >= since {
            return;
        }
        for home in self.home.iter().take(pages as usize) {
            // Rather what it said later.
            let _ = home.compare_exchange(0, since, Ordering::Relaxed, Ordering::Relaxed);
        }
        for asked in self.asked.iter().take((pages / REGION) as usize + usize::from(pages >= self.pages)) {
            asked.store(1, Ordering::Relaxed);
        }
    }

    /// Goes on with a later published snapshot.
    pub(super) fn go_on(&mut self, snapshot: u64) {
        self.snapshot = snapshot;
        self.is_over.store(false, Ordering::Relaxed);
    }

    /// Whether a page has not changed since a snapshot was taken.
    pub(super) fn is_unchanged(&self, page: u64, since: u64) -> bool {
        self.marks.mark(page).is_some_and(|mark| are_below([mark, self.marks.floor(), mark], since))
    }

    /// Whether a page counted as home when last seen.
    #[inline(always)]
    pub(super) fn has(&self, page: u64) -> bool {
        self.home_since(page) != 0 && !self.is_over.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn home_since(&self, page: u64) -> u64 {
        self.home.get(page as usize).map_or(0, |since| since.load(Ordering::Relaxed))
    }

    /// Pages of the mapping.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether the server's thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.alive.is_over()
    }

    /// Whether the snapshot has ended, or no copy counts any more.
    pub(super) fn is_over(&self) -> bool {
        let released = &self.released.words(8 * RELEASED, 1)[0];
        self.is_over.load(Ordering::Relaxed) || !are_below([released; 3], self.snapshot) || self.alive.is_over()
    }

    /// Copies bytes at `at`, which lie in one page. False, with unspecified bytes, if they have to be brought.
    #[inline]
    pub(super) fn read(&self, page: u64, at: u64, dst: &mut [u8]) -> bool {
        let since = self.home_since(page);
        if since == 0 || self.is_over.load(Ordering::Relaxed) {
            return false;
        }
        let Some(mark) = self.marks.mark(page) else { return self.forget(page) };
        self.file.copy_out(at, dst);
        let released = &self.released.words(8 * RELEASED, 1)[0];
        if are_below([mark, self.marks.floor(), released], since) && !self.alive.is_over() && self.is_whole() {
            return true;
        }
        self.forget(page)
    }

    /// Whether all that was copied so far came from the file.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        none_lost() || self.file.lost().is_none()
    }

    #[cold]
    fn forget(&self, page: u64) -> bool {
        if let Some(since) = self.home.get(page as usize) {
            since.store(0, Ordering::Relaxed);
        }
        let released = &self.released.words(8 * RELEASED, 1)[0];
        let holds = are_below([self.marks.floor(), released, released], self.snapshot);
        if !holds || self.alive.is_over() || !self.is_whole() {
            self.is_over.store(true, Ordering::Relaxed);
        }
        false
    }

    /// The region of a page that is about to be brought, if the server is to be asked for it first.
    pub(super) fn region_to_ask_for(&self, page: u64) -> Option<u64> {
        let region = page / REGION;
        // The file has become longer since it was mapped.
        let asked = self.asked.get(region as usize)?;
        let brought = asked.load(Ordering::Relaxed);
        let asks = !self.is_over.load(Ordering::Relaxed) && (brought == 0 || brought > PATIENCE);
        asked.store(if asks { 1 } else { brought.saturating_add(1) }, Ordering::Relaxed);
        asks.then_some(region)
    }

    /// Notes what the server answered: its bits are in the memory.
    pub(super) fn note_home(&self, region: u64, memory: &SharedPages) {
        let first = (region * REGION) as usize;
        let answer = memory.words(HOME_BITS, REGION as usize / 64);
        let Some(home) = self.home.get(first..) else { return };
        for (pages, bits) in home.chunks(64).zip(answer) {
            let mut bits = bits.load(Ordering::Relaxed);
            while bits != 0 {
                if let Some(since) = pages.get(bits.trailing_zeros() as usize) {
                    since.store(self.snapshot, Ordering::Relaxed);
                }
                bits &= bits - 1;
            }
        }
    }
}
