//! The backing of a shared region: the store, which the process that serves has open.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::pages::{ALLOCATED, IN_WORD, Layout, allocated_in, let_go, pages_of};
use crate::error::{Error, Result};
use crate::ipc::memory::{Backing, Before, Cut, Opener, Takeover, cause_of};
use crate::options::{CommitLog, ExclusionCheck};
use crate::region::engine::{PAGE, Page, Stored};
use crate::region::options::StoreOptions;
use crate::region::store::{Region, RegionStore};
use crate::storage::{Identity, detect};
use crate::sys::shared::SharedPages;

/// Opens the store and the region for whoever serves.
pub(super) struct Committed {
    pub(super) store: PathBuf,
    /// The store's file: what is found at the path later may be another one.
    pub(super) identity: Identity,
    pub(super) name: String,
    /// Whether the region is made if there is none.
    pub(super) create: bool,
    /// Bytes of pages that can be in memory, unless others have said so before.
    pub(super) reserve: u64,
    /// How the region's commits are kept for streams.
    pub(super) commit_log: Option<CommitLog>,
}

impl Committed {
    fn invalid(&self, what: String) -> Error {
        Error::Invalid { path: self.store.clone(), what }
    }

    pub(super) fn open_region(&self, before: Option<&Before>) -> Result<Mapped> {
        if detect(&self.store)?.identity != self.identity {
            let what = "another file has replaced the store of the shared region at this path";
            return Err(self.invalid(what.to_owned()));
        }
        let takeover_check = TakeoverCheck { opener: self, takeover: Takeover::of(before) };
        let mut options = StoreOptions::new();
        options.settings.commit_log = self.commit_log;
        let store = options.open_checked(&self.store, &takeover_check).map_err(|error| match error {
            Error::InUse { path, holder } => Error::InUse { path, holder: format!("{holder}, which has it open") },
            other => other,
        })?;
        let len = before.map(Before::len);
        let region = match store.open_region(&self.name) {
            Err(error) if self.create && len.is_none() && error.errno() == libc::ENOENT => {
                store.create_region(&self.name)?
            }
            opened => opened?,
        };
        let info = region.info()?;
        let layout = match len {
            Some(len) => Layout::of_len(len),
            None => Layout { pages: info.max_pages.min(self.reserve.div_ceil(PAGE)).max(1) },
        };
        if layout.pages > info.max_pages {
            let what = format!("its region {:?} is not the shared one; it was deleted and created again", self.name);
            return Err(self.invalid(what));
        }
        let mut shown = Shown { allocated: vec![0; layout.pages.div_ceil(IN_WORD) as usize], stored: BTreeMap::new() };
        let mut pages = region.pages()?;
        pages.retain(|page| *page < layout.pages);
        for page in &pages {
            shown.allocated[(page / IN_WORD) as usize] |= ALLOCATED << (page % IN_WORD * 2);
        }
        shown.note(&region, &pages)?;
        let (uuid, session) = takeover_check.takeover.found();
        let open = Some((region, store));
        Ok(Mapped { layout, commit: info.commit.into(), uuid, session, shown: Mutex::new(shown), open })
    }
}

impl Opener for Committed {
    fn open(&self, before: Option<&Before>) -> Result<Box<dyn Backing>> {
        Ok(Box::new(self.open_region(before)?))
    }

    fn part(&self) -> String {
        format!("region {:?}", self.name)
    }

    fn holder_here(&self) -> &'static str {
        "another handle of this process, which shares a region of it, and one process shares one"
    }
}

/// Lets whoever is to serve open the store, if it is as the process left it that served before. In another session
/// somebody may have put another region of the name in the place of this one, or made the commit that the dead
/// process had under way.
struct TakeoverCheck<'a> {
    opener: &'a Committed,
    takeover: Takeover,
}

impl ExclusionCheck for TakeoverCheck<'_> {
    fn check_exclusion(&self) -> Result<()> {
        Ok(())
    }

    fn take_over_session(&self, store: &[u8; 16], session: u64) -> Result<u64> {
        self.takeover.take_over_session(store, session).map_err(|what| self.opener.invalid(what))
    }
}

/// A region at its last commit.
pub(super) struct Mapped {
    layout: Layout,
    commit: AtomicU64,
    /// The store's.
    uuid: [u64; 2],
    session: u64,
    /// Not held while the engine commits: a process that has to wait for a page does not wait for a flush.
    shown: Mutex<Shown>,
    /// Both, until they are closed.
    open: Option<(Region, RegionStore)>,
}

/// What is shown of a commit to those who have not loaded it yet: the last one, or the one before while nobody has
/// been told. The pages that a commit gives up are written to by the next one at the earliest, and that is not begun
/// before this thread, or the one that begins commits, has read what it wants. Where the two commits differ all have
/// the page in memory, but for one that was freed, and what is shown of that means nothing.
struct Shown {
    /// A word for 32 pages: which of them are allocated.
    allocated: Vec<u64>,
    /// Where the store has pages, in rows; 0 for those of zeros, and for those that are not there.
    stored: BTreeMap<u64, Box<[u64; ROW]>>,
}

/// Pages of a row.
const ROW: usize = 512;

impl Mapped {
    /// The pages that the store says are there.
    #[cfg(test)]
    pub(super) fn pages_of_store(&self) -> Vec<u64> {
        self.region().unwrap().pages().unwrap()
    }

    fn region(&self) -> Result<&Region> {
        let closed = || Error::Poisoned { path: PathBuf::new(), cause: "the store is closed".to_owned() };
        self.open.as_ref().map(|(region, _)| region).ok_or_else(closed)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        // Nothing under it panics that is not assignments of words.
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shown {
    /// Notes where the last commit has pages.
    fn note(&mut self, region: &Region, pages: &[u64]) -> Result<()> {
        for (page, stored) in pages.iter().zip(region.region.stored(pages)?) {
            let row = self.stored.entry(page / ROW as u64).or_insert_with(|| Box::new([0; ROW]));
            row[(page % ROW as u64) as usize] = stored;
        }
        Ok(())
    }

    /// Where the store has a page, if it has it.
    fn stored(&self, page: u64) -> Option<u64> {
        let row = self.stored.get(&(page / ROW as u64))?;
        Some(row[(page % ROW as u64) as usize]).filter(|stored| *stored != 0)
    }

    /// Whether a page is allocated.
    fn has(&self, page: u64) -> bool {
        self.allocated[(page / IN_WORD) as usize] & ALLOCATED << (page % IN_WORD * 2) != 0
    }
}

/// What a cut makes of a region.
struct Changes<'a> {
    allocated: Vec<u64>,
    freed: Vec<u64>,
    /// Words that tell of pages as the cut has them, where that differs.
    words: BTreeMap<usize, u64>,
    pages: Vec<(u64, &'a Page)>,
}

impl<'a> Changes<'a> {
    fn new(layout: Layout, shown: &Shown, cut: &'a Cut) -> Self {
        let mut changes =
            Changes { allocated: Vec::new(), freed: Vec::new(), words: BTreeMap::new(), pages: Vec::new() };
        let pages = || cut.runs().flat_map(|(offset, bytes)| (offset / PAGE..).zip(bytes.chunks_exact(PAGE as usize)));
        for (page, bytes) in pages().filter(|(page, _)| *page >= layout.pages) {
            let first = layout.first_of(page);
            for (index, word) in bytes.chunks_exact(8).enumerate() {
                let first = first + index as u64 * IN_WORD;
                let at = (first / IN_WORD) as usize;
                let Some(before) = shown.allocated.get(at) else { break };
                // Of the last word some bits are of no page.
                let within = match layout.pages.saturating_sub(first) {
                    all if all >= IN_WORD => u64::MAX,
                    some => (1 << (some * 2)) - 1,
                };
                let now = allocated_in(u64::from_le_bytes(word.try_into().unwrap_or_default())) & within;
                if now != *before {
                    changes.words.insert(at, now);
                    changes.allocated.extend(pages_of(first, now & !before));
                    changes.freed.extend(pages_of(first, before & !now));
                }
            }
        }
        // Stores to a page that is not there are of no commit.
        for (page, bytes) in pages().filter(|(page, _)| *page < layout.pages) {
            let word = changes.words.get(&((page / IN_WORD) as usize));
            let is_there = match word {
                Some(word) => word & ALLOCATED << (page % IN_WORD * 2) != 0,
                None => shown.has(page),
            };
            if let (true, Ok(bytes)) = (is_there, bytes.try_into()) {
                changes.pages.push((page, bytes));
            }
        }
        changes
    }

    fn commit(&self, region: &Region) -> Result<u64> {
        let mut left = &self.allocated[..];
        while let Some(&first) = left.first() {
            let row = left.iter().zip(first..).take_while(|(page, next)| *page == next).count();
            region.alloc_at(first, row as u64)?;
            left = &left[row..];
        }
        self.freed.iter().try_for_each(|page| region.free_page(*page))?;
        #[cfg(test)]
        let hold = || -> Result<()> {
            super::tests::failures::hold(region.region.path());
            Ok(())
        };
        let stored = Stored {
            pages: self.pages.clone(),
            #[cfg(test)]
            check: Some(&hold),
            #[cfg(not(test))]
            check: None,
        };
        region.region.pmsync(&stored)
    }
}

impl Backing for Mapped {
    fn len(&self) -> u64 {
        self.layout.len()
    }

    fn last_commit(&self) -> u64 {
        self.commit.load(Ordering::Acquire)
    }

    fn identity(&self) -> [u64; 2] {
        self.uuid
    }

    fn session(&self) -> u64 {
        self.session
    }

    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let (region, shown) = (self.region()?, self.shown());
        for (page, into) in (offset / PAGE..).zip(into.chunks_mut(PAGE as usize)) {
            into.fill(0);
            if page >= self.layout.pages {
                let first = (self.layout.first_of(page) / IN_WORD) as usize;
                let words = into.chunks_exact_mut(8).zip(shown.allocated.iter().skip(first));
                words.for_each(|(into, word)| into.copy_from_slice(&word.to_le_bytes()));
            } else if let Some(stored) = shown.stored(page) {
                region.region.read_stored(stored, into)?;
            }
        }
        Ok(())
    }

    fn commit(&self, cut: &Cut) -> Result<u64> {
        let region = self.region()?;
        let changes = Changes::new(self.layout, &self.shown(), cut);
        // What a commit left that ended otherwise than by an error.
        region.rollback()?;
        let commit = changes.commit(region).inspect_err(|_| {
            // What was allocated and freed for it: the next cut has it again. It fails only for a region that is lost.
            let _ = region.rollback();
        })?;
        let mut shown = self.shown();
        for (at, word) in &changes.words {
            shown.allocated[*at] = *word;
        }
        let stored: Vec<u64> = changes.pages.iter().map(|(page, _)| *page).collect();
        // It fails only for a region that is lost, and nothing is read of that.
        for pages in [&stored, &changes.allocated, &changes.freed] {
            shown.note(region, pages)?;
        }
        self.commit.store(commit, Ordering::Release);
        Ok(commit)
    }

    fn poisoned(&self) -> Option<String> {
        self.region().and_then(|region| region.region.writable()).err().map(cause_of)
    }

    fn tidied(&self) -> std::ops::Range<u64> {
        self.layout.states()
    }

    fn tidy(&self, memory: &SharedPages, pages: &mut dyn Iterator<Item = u64>) {
        let_go(memory, self.layout, &self.shown().allocated, pages);
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Some((region, store)) = self.open.take() else { return };
        let scanning = store.info().is_ok_and(|info| info.scanning);
        drop(region);
        if !scanning && let Err(error) = store.close() {
            // Every commit is as durable as it was; the next open looks for free space itself. If that is still under
            // way here, nobody is to wait for it.
            tracing::warn!(%error, "cannot write the free map at close; the next open scans the store");
        }
    }
}
