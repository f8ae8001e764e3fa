//! How many pages are uncovered, counted as they become so, for the [pace](Pace) of the file.

use std::sync::{Arc, OnceLock};

use super::{Inner, Mode, Redundancy};
use crate::engine::redundancy::{Pace, Part};
use crate::error::Result;
use crate::storage::Medium;

/// Where the pages of a file, or of its sidecar, are counted. It outlives each redundancy of them.
#[derive(Default)]
pub(super) struct Tally(OnceLock<(Arc<Pace>, Part)>);

impl Tally {
    /// Counts there from now on.
    pub(super) fn count_for(&self, pace: Arc<Pace>, part: Part) {
        // The handle of a file is made once.
        let _ = self.0.set((pace, part));
    }

    fn note(&self, pages: u64) {
        if let Some((pace, part)) = self.0.get() {
            pace.note(*part, pages);
        }
    }

    fn pace(&self) -> Option<&Pace> {
        self.0.get().map(|(pace, _)| &**pace)
    }
}

impl<M: Medium> Redundancy<M> {
    pub(super) fn count_through(&mut self, tally: &Arc<Tally>) {
        self.tally = Arc::clone(tally);
        self.note_count(&self.lock());
    }

    /// Notes how many pages are uncovered. It takes no time if stores are announced.
    pub(super) fn note_count(&self, inner: &Inner) {
        let unmarked = match self.mode {
            // What page tables have told of is marked only when a pass comes to it.
            Mode::Tracked(_) => inner.stored.iter().filter(|page| !inner.tables.uncovered().has(*page)).count() as u64,
            _ => 0,
        };
        self.tally.note(inner.marked() + unmarked);
    }

    /// The same, with what page tables tell of now.
    ///
    /// # Errors
    /// Those of asking.
    pub(crate) fn count_uncovered(&self) -> Result<()> {
        let inner = self.usable()?;
        let Mode::Tracked(tracker) = &self.mode else {
            self.note_count(&inner);
            return Ok(());
        };
        let pages = self.geometry.pages();
        let is_new = |page: &u64| !inner.tables.uncovered().has(*page);
        let told = tracker.look()?.into_iter().flat_map(|run| run.start..run.end.min(pages));
        let told = told.filter(|page| is_new(page) && !inner.stored.has(*page)).count();
        let stored = inner.stored.iter().filter(is_new).count();
        self.tally.note(inner.marked() + (told + stored) as u64);
        Ok(())
    }

    /// Covers pages before more are announced, if twice as many as the cap would be uncovered: the task does not keep
    /// up. Pages that somebody is storing to stay uncovered.
    ///
    /// # Errors
    /// Those of covering. Nothing may be stored then.
    pub(super) fn stay_within(&self, fresh: u64) -> Result<()> {
        let Some(pace) = self.tally.pace() else { return Ok(()) };
        if !matches!(self.mode, Mode::Announced) || pace.cap().is_none() {
            return Ok(());
        }
        let most = pace.limit().saturating_mul(2);
        let inner = self.usable()?;
        let would_be = inner.marked().saturating_add(fresh);
        drop(inner);
        if would_be > most { self.pass().map(drop) } else { Ok(()) }
    }
}
