//! The drain's part of epochs: staged changes that wait for their Commit, and open epochs that are in the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commits::Commit;
use super::drain::{Drain, Item};
use super::file::{Managed, exclusive};
use super::format::Kind;
use super::overlay::pages;
use super::{Cache, locked};
use crate::error::Result;
use crate::storage::Medium;

/// A change that was staged again: as it was, and its position now.
pub(super) struct Moved {
    pub(super) item: Item,
    pub(super) to: u64,
}

impl Drain {
    /// The first position of a staged change that waits for its Commit.
    pub(super) fn first_held(&self) -> Option<u64> {
        self.held.values().filter_map(|items| items.first()).map(|item| item.position).min()
    }

    /// Lets go of a file's changes from a position on, which are void.
    pub(super) fn release(&mut self, uid: u64, from: u64) {
        if let Some(items) = self.held.get_mut(&uid) {
            items.retain(|item| item.position < from);
            if items.is_empty() {
                self.held.remove(&uid);
            }
        }
        // The file has nothing to be synced, and may be one to forget.
        self.held_up = true;
    }

    /// The tail has passed everything below: how many claims stay with open epochs.
    pub(super) fn passed(&mut self, tail: u64) -> u64 {
        let mut kept = 0;
        self.restaged.retain(|file| {
            let Some(epoch) = &file.epoch else { return false };
            let mut epoch = locked(epoch);
            kept += epoch.passed(tail);
            !epoch.owed.is_empty()
        });
        kept
    }
}

impl<M: Medium> Cache<M> {
    /// The changes that a Commit covers. The drain has met all of them.
    pub(super) fn covered(&self, drain: &mut Drain, commit: &Item) -> Result<Vec<Item>> {
        let mut data = Vec::new();
        let entry = self.ring.entry(commit.position, &mut data).map_err(|error| self.poison(error))?;
        let held = drain.held.remove(&entry.uid).unwrap_or_default();
        let first = held.first().map(|item| item.order);
        let count = Commit::decode(&data).map(|commit| commit.count);
        if first != Some(commit.operation.value) || count != Some(held.len() as u64) {
            return Err(self.poison(self.ring.odd(commit.position)));
        }
        Ok(held)
    }

    /// Stages open epochs again, at the head, whose changes the drain holds back before a position.
    pub(super) fn restage(&self, drain: &mut Drain, before: u64) -> Result<()> {
        let in_the_way = |items: &Vec<Item>| items.first().map(|item| item.position).filter(|first| *first < before);
        let epochs: Vec<(u64, u64)> =
            drain.held.iter().filter_map(|(uid, items)| Some((*uid, in_the_way(items)?))).collect();
        for (uid, first) in epochs {
            let file = self.file_of(uid)?;
            if let Some(moved) = self.stage_again(&file, first)? {
                drain.held.remove(&uid);
                self.show_again(&file, &moved);
                drain.restaged.push(file);
            }
        }
        Ok(())
    }

    /// Copies an open epoch that begins at this position to the head. `None` if that is not the open one, for its
    /// Commit is placed, or if the copies before these are not free yet.
    fn stage_again(&self, file: &Arc<Managed>, first: u64) -> Result<Option<Vec<Moved>>> {
        let Some(epoch) = &file.epoch else { return Ok(None) };
        let ring = &self.ring;
        let mut epoch = locked(epoch);
        if epoch.items.first().is_none_or(|item| item.position != first) || !epoch.owed.is_empty() {
            return Ok(None);
        }
        let moved = self.copy_to_head(&mut epoch.items)?;
        ring.medium.order();
        // Only with all of them stored: what is complete may be drained.
        for Moved { item, to } in &moved {
            ring.complete(*to, item.parts);
            ring.shared_state().void(item.position, item.parts);
            file.last.fetch_max(to + item.parts, Ordering::AcqRel);
        }
        epoch.reserved = 1;
        epoch.owed = moved.iter().map(|moved| moved.item.positions()).collect();
        Ok(Some(moved))
    }

    /// Stores changes of an open epoch again, at the head. They are not complete there yet.
    pub(super) fn copy_to_head(&self, items: &mut [Item]) -> Result<Vec<Moved>> {
        let ring = &self.ring;
        let (mut moved, mut data) = (Vec::new(), Vec::new());
        for item in items {
            let mut all = Vec::new();
            for position in item.positions() {
                ring.entry(position, &mut data).map_err(|error| self.poison(error))?;
                all.append(&mut data);
            }
            // Claimed when it was staged.
            let to = ring.place(item.parts);
            ring.put(to, to, item.operation, &all).map_err(|error| self.poison(error))?;
            moved.push(Moved { item: item.clone(), to });
            (item.position, item.order) = (to, to);
        }
        Ok(moved)
    }

    /// Has reads find an epoch where it is now. The drain is held, so nobody writes over the copies before.
    pub(super) fn show_again(&self, file: &Managed, moved: &[Moved]) {
        let changes_it = |moved: &&Moved| matches!(moved.item.operation.kind, Kind::StagedLen | Kind::StagedPack);
        let lengths = moved.iter().filter(changes_it);
        let lengths: std::collections::HashMap<u64, u64> =
            lengths.map(|moved| (moved.item.position, moved.to)).collect();
        exclusive(&file.length).relocate(|position| lengths.get(&position).copied());
        for Moved { item, to } in moved.iter().filter(|moved| moved.item.operation.kind == Kind::StagedWrite) {
            file.overlay.relocate(pages(item.operation.value, item.len), &item.positions(), *to);
        }
    }
}
