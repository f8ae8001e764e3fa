//! Deploying ahead: committed slices go home while the file is open, so that closing has less to do.
//!
//! A page goes home *ahead* in that its slices are copied over the copies at home that are invalid. Nothing else
//! changes: no bitmap, no record. The slices stay valid in the reflection page until the file is closed.
//!
//! # Invariants
//! 1. Only a page goes home whose visible bitmap is the committed one, and of which no commit is under way. So the
//!    copies at home that are stored to are invalid in both bitmaps: they are those that the next write would fill. The
//!    explorer leaves this check out, as a mutant ([`AHEAD_COMMITTED`](barriers::AHEAD_COMMITTED)).
//! 2. The commit that made such a copy invalid is durable, for its bitmap is committed. Every older record of the page
//!    is therefore certain, and recovery does not look at the bytes at home that it covers.
//! 3. A lane and the page's lock are held meanwhile, so the length stays and no writer comes in between. Readers are
//!    let in: none copies from an invalid copy, and one that goes by an older bitmap finds another version afterwards.
//! 4. A note says at which version a page is at home. A write gives the page another version, so closing copies the
//!    page again; that check is a mutant too ([`AHEAD_CURRENT`](barriers::AHEAD_CURRENT)). A failed write, which may
//!    have stored to the copies at home, takes the note back; so does a growth, which clears bytes behind the old end.
//! 5. There is no barrier. Closing makes the whole data file durable before the sidecar says "settled". A crash before
//!    that finds the last commit in the sidecar, whatever of the copies at home is durable.
//! 6. Space at home was claimed when the reflection page got its slices, so nothing runs out of space here.
//!
//! # What it costs
//! - A page goes home only if it kept its version from one sweep to the next: what is written again and again stays.
//! - Writeback of the copies is begun at once, so that neither the program's next flush nor that of closing waits for
//!   it. On its own the kernel would begin half a minute later.
//! - Writers pay nothing. A cut counts the pages that its records name, and has a sweep begin when there are many.

use std::sync::OnceLock;

use super::layout::pages;
use super::{Reflection, barriers};
use crate::error::Result;
use crate::format::sidecar::PAGE;
use crate::options::{Durability, Options};
use crate::storage::{Medium, MediumFile};
use crate::sync::page_seqlock::PageState;
use crate::sys::growing::GrowingArray;
use crate::sys::sync::{AtomicU64, Ordering};

/// Pages that go home between two rests.
const BATCH: usize = 64;

/// Pages that a sweep hands on at most: half a megabyte of page numbers.
const MOST: usize = 1 << 16;

/// The share of the bound at which a sweep looks for what is not at home.
const SHARE: u64 = 8;

/// The note of a page that a sweep saw at this version, and of one that is at home at this version. 0 is no note.
fn seen(version: u64) -> u64 {
    (version + 1) << 1
}

fn at_home(version: u64) -> u64 {
    seen(version) | 1
}

/// Notes of an open file about pages that went home ahead.
pub(super) struct Ahead {
    notes: GrowingArray<AtomicU64>,
    /// Pages that cuts named since the last sweep.
    backlog: AtomicU64,
    /// From so many pages in the sidecar on they go home ahead; `None` for never.
    bound: Option<u64>,
    /// Has a sweep begin soon.
    waker: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The work of one sweep, from one rest to the next.
#[derive(Default)]
pub(super) struct Sweep {
    /// Pages that go home, the next one last.
    due: Vec<u64>,
}

/// When to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// After a rest.
    Soon,
    /// When pages that were just written may be cold.
    Later,
    /// When there is a backlog again.
    Idle,
}

impl Ahead {
    /// For a file of so many pages.
    pub(super) fn new(pages: u64, options: &Options) -> std::io::Result<Self> {
        let stays_in_sidecar = options.keep_sidecar && !options.plain_at_close;
        let asked = options.deploy_ahead.filter(|_| !stays_in_sidecar && !options.read_only);
        let bound = asked.map(|bytes| bytes.div_ceil(PAGE).max(1));
        let notes = GrowingArray::new(if bound.is_some() { pages } else { 0 })?;
        Ok(Ahead { notes, backlog: AtomicU64::new(0), bound, waker: OnceLock::new() })
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.bound.is_some()
    }

    /// Makes room for so many pages. A page without room is not noted, and closing copies it.
    pub(super) fn fit(&self, pages: u64) -> std::io::Result<()> {
        if self.is_wanted() { self.notes.fit(pages) } else { Ok(()) }
    }

    /// Sets what has a sweep begin.
    pub(super) fn on_backlog(&self, waker: impl Fn() + Send + Sync + 'static) {
        // It is set once, before any other thread has the file.
        let _ = self.waker.set(Box::new(waker));
    }

    /// Notes that so many pages may have come to have slices in the sidecar.
    pub(super) fn note_backlog(&self, pages: u64) {
        if self.bound.is_some() {
            self.backlog.fetch_add(pages, Ordering::Relaxed);
            if self.is_due()
                && let Some(waker) = self.waker.get()
            {
                waker();
            }
        }
    }

    /// Whether a sweep may be worth it.
    pub(super) fn is_due(&self) -> bool {
        self.bound.is_some_and(|bound| self.backlog.load(Ordering::Relaxed) >= (bound / SHARE).max(1))
    }

    /// Whether a page is at home at this version. The caller keeps writers and sweeps away.
    pub(super) fn has(&self, page: u64, version: u64) -> bool {
        self.notes.get(page as usize).is_some_and(|note| note.load(Ordering::Relaxed) == at_home(version))
    }

    /// Whether a page was at home at any version.
    fn had(&self, page: u64) -> bool {
        self.notes.get(page as usize).is_some_and(|note| note.load(Ordering::Relaxed) & 1 == 1)
    }

    /// Takes the note of a page back. The caller holds the page's lock, or every lane.
    pub(super) fn forget(&self, page: u64) {
        if let Some(note) = self.notes.get(page as usize) {
            note.store(0, Ordering::Relaxed);
        }
    }
}

impl<M: Medium> Reflection<M> {
    /// Finds the pages that are not at home. With `cold` a page that has changed since the last sweep waits for the
    /// next one. Returns the pages with slices in the sidecar, and how many of them wait.
    fn sweep(&self, sweep: &mut Sweep, cold: bool) -> Result<(u64, u64)> {
        let ahead = &self.ahead;
        ahead.backlog.store(0, Ordering::Relaxed);
        let (mut all, mut waiting) = (0, 0);
        self.places.walk(&self.side, self.state.count(), |page, _| {
            let state = &self.state.pages[page as usize];
            let Some(note) = ahead.notes.get(page as usize).filter(|_| state.bitmap() != 0) else { return };
            all += 1;
            // Whether it is so still is seen under the page's lock.
            let (version, noted) = (state.version(), note.load(Ordering::Relaxed));
            if noted == at_home(version) {
                return;
            }
            if cold && noted != seen(version) {
                note.store(seen(version), Ordering::Relaxed);
                waiting += 1;
            } else if sweep.due.len() < MOST {
                sweep.due.push(page);
            } else {
                waiting += 1;
            }
        })?;
        sweep.due.sort_unstable_by(|one, other| other.cmp(one));
        Ok((all, waiting))
    }

    /// Whether closing need not copy a page. The caller keeps writers and sweeps away.
    pub(super) fn is_ahead(&self, page: u64) -> bool {
        let is_current = || self.ahead.has(page, self.state.pages[page as usize].version());
        self.ahead.had(page) && (!self.medium.makes_check(barriers::AHEAD_CURRENT) || is_current())
    }

    /// Takes the next pages home, or looks for some if there are none.
    pub(super) fn go_ahead(&self, sweep: &mut Sweep) -> Result<Next> {
        self.writable()?;
        if sweep.due.is_empty() {
            let (all, waiting) = self.sweep(sweep, true)?;
            if self.ahead.bound.is_none_or(|bound| all < bound) {
                sweep.due.clear();
                return Ok(Next::Idle);
            }
            if sweep.due.is_empty() {
                return Ok(if waiting > 0 { Next::Later } else { Next::Idle });
            }
        }
        self.take_batch(sweep)?;
        Ok(if sweep.due.is_empty() { Next::Later } else { Next::Soon })
    }

    /// Takes everything home that may go.
    pub(super) fn go_ahead_at_once(&self) -> Result<u64> {
        self.writable()?;
        let mut sweep = Sweep::default();
        self.sweep(&mut sweep, false)?;
        let mut taken = 0;
        while !sweep.due.is_empty() {
            taken += self.take_batch(&mut sweep)?;
        }
        Ok(taken)
    }

    fn take_batch(&self, sweep: &mut Sweep) -> Result<u64> {
        let mut batch = sweep.due.split_off(sweep.due.len().saturating_sub(BATCH));
        batch.reverse();
        let mut taken = 0;
        for &page in &batch {
            taken += u64::from(self.take_home_ahead(page)?);
        }
        for run in batch.chunk_by(|one, next| next == &(one + 1)) {
            self.data.start_writeback(run[0] * PAGE, run.len() as u64 * PAGE);
        }
        Ok(taken)
    }

    /// Unlocks a page unchanged after a write that failed. Its invalid copies may hold anything by now.
    #[cold]
    pub(super) fn unlock_unwritten(&self, page: u64, state: &PageState) {
        self.ahead.forget(page);
        state.unlock();
    }

    /// Takes one page home, unless it has changed since it was found. Whether it is at home now.
    fn take_home_ahead(&self, page: u64) -> Result<bool> {
        // It keeps the length as it is.
        let _lane = self.lanes.acquire(self.relax());
        let len = self.state.head().len.load(Ordering::Acquire);
        if page >= pages(len) {
            return Ok(false);
        }
        let state = &self.state.pages[page as usize];
        state.lock(false, self.relax());
        let bitmap = state.bitmap();
        let is_quiet = match self.durability {
            Durability::PerCommit if self.medium.makes_check(barriers::AHEAD_COMMITTED) => {
                let epoch = &self.state.epochs[page as usize];
                epoch.frozen.load(Ordering::Acquire) == 0 && epoch.committed.load(Ordering::Acquire) == bitmap
            }
            // Every visible bitmap is committed.
            _ => true,
        };
        let taken = if bitmap != 0 && is_quiet { self.copy_home(page, bitmap, len).map(|()| true) } else { Ok(false) };
        // The next writer of these bytes may be another thread, whose stores past the cache must come later.
        self.medium.order();
        if let (Ok(true), Some(note)) = (&taken, self.ahead.notes.get(page as usize)) {
            note.store(at_home(state.version()), Ordering::Relaxed);
        }
        state.unlock();
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_sweep_begins_only_when_much_was_written() {
        let woken = |options: Options, named: u64| {
            let ahead = Ahead::new(4, &options).unwrap();
            let calls = Arc::new(AtomicU64::new(0));
            let counted = calls.clone();
            ahead.on_backlog(move || {
                counted.fetch_add(1, Ordering::Relaxed);
            });
            ahead.note_backlog(named);
            calls.load(Ordering::Relaxed)
        };
        let usual = Options::new();
        let pages = (64 << 20) / PAGE / SHARE;
        assert_eq!([0, 1, pages - 1, pages, 2 * pages].map(|named| woken(usual.clone(), named)), [0, 0, 0, 1, 1]);
        for off in [usual.clone().deploy_ahead(None), usual.clone().keep_sidecar(true)] {
            assert_eq!(woken(off, u64::MAX), 0);
        }
    }

    #[test]
    fn a_note_counts_for_one_version() {
        let ahead = Ahead::new(4, &Options::new()).unwrap();
        let set = |note: u64| ahead.notes.get(2).unwrap().store(note, Ordering::Relaxed);
        assert!(!ahead.has(2, 0));
        set(seen(0));
        assert!(!ahead.has(2, 0));
        set(at_home(0));
        assert!(ahead.has(2, 0) && !ahead.has(2, 1) && !ahead.has(3, 0) && !ahead.has(1 << 40, 0));
        ahead.forget(2);
        assert!(!ahead.has(2, 0));
    }
}
