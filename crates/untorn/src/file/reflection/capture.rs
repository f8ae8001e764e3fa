//! Finds what the last commit has, for a snapshot.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::Reflection;
use super::slices::SLICE;
use crate::engine::Engine;
use crate::engine::snapshot::{Capture, Captured, PAGE, holes};
use crate::error::Result;
use crate::options::Durability;
use crate::storage::{Medium, MediumFile};

impl<M: Medium> Capture for Reflection<M> {
    fn capture(&self, keep: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured> {
        let head = self.state.head();
        // No commit is under way then: each one before is durable, and no slice is frozen.
        let _committing = head.commit.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        let captured = Captured { commit: self.commit_number(), len: Engine::len(self) };
        // Threads number their commits apart from each other. From here on none gives a number up to this one.
        head.floor.fetch_max(captured.commit, Ordering::AcqRel);
        if self.durability == Durability::PerCommit {
            let mut image = [0; PAGE];
            let mut outcome = Ok(());
            self.state.each_dirty(|page| {
                let committed = self.committed_bitmap(page);
                if outcome.is_ok() && self.state.pages[page as usize].bitmap() != committed {
                    outcome = self.copy_slices(page, committed, 0, PAGE as u64 / SLICE, &mut image);
                    if outcome.is_ok() {
                        keep(page, &image);
                    }
                }
            });
            outcome.map_err(|error| self.unless_lost(error))?;
        }
        drop(lanes);
        Ok(captured)
    }

    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let home = |offset| self.data.data_from(offset);
        holes::data_from(offset, Engine::len(self), home, |pages| Capture::elsewhere(self, pages))
    }

    fn elsewhere(&self, pages: Range<u64>) -> Option<Range<u64>> {
        let elsewhere = |page: &u64| {
            let state = self.state.pages.get(*page as usize);
            state.and_then(|state| state.read_guard()).is_none_or(|read_guard| read_guard.bitmap != 0)
        };
        let start = pages.clone().find(elsewhere)?;
        Some(start..(start + 1..pages.end).find(|page| !elsewhere(page)).unwrap_or(pages.end))
    }
}
