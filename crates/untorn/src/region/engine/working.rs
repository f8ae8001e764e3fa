//! The uncommitted changes of a region: an in-memory copy of each page that the program wrote.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use super::commit::Changes;
use super::format::Page;
use super::table::Table;

/// What becomes of one page at the next commit.
pub(super) enum Pending {
    /// It will be there, with these bytes or zeros.
    Allocated(Option<Box<Page>>),
    /// It will have these bytes.
    Written(Box<Page>),
    /// It will not be there.
    Freed,
}

/// The changes of one region since its last commit.
#[derive(Default)]
pub(super) struct Working {
    pending: BTreeMap<u64, Pending>,
    /// Of the pages below this, none but those in `vacant` can be allocated.
    hint: u64,
    /// Some of these may have been allocated since.
    vacant: BTreeSet<u64>,
}

impl Working {
    pub(super) fn len(&self) -> u64 {
        self.pending.len() as u64
    }

    pub(super) fn get(&self, logical: u64) -> Option<&Pending> {
        self.pending.get(&logical)
    }

    /// Whether a page is there, as the program sees it.
    pub(super) fn has(&self, table: &Table, logical: u64) -> bool {
        match self.pending.get(&logical) {
            Some(Pending::Freed) => false,
            Some(_) => true,
            None => table.entry(logical).is_allocated(),
        }
    }

    /// Whether a page could be allocated: it is not there, and was not at the last commit either.
    pub(super) fn is_vacant(&self, table: &Table, logical: u64) -> bool {
        !self.pending.contains_key(&logical) && !table.entry(logical).is_allocated()
    }

    /// The lowest of `count` vacant pages in a row, below `max_pages`.
    pub(super) fn vacancy(&mut self, table: &Table, count: u64, max_pages: u64) -> Option<u64> {
        while let Some(&lowest) = self.vacant.first()
            && !self.is_vacant(table, lowest)
        {
            self.vacant.pop_first();
        }
        while self.vacant.is_empty() && self.hint < max_pages && !self.is_vacant(table, self.hint) {
            self.hint += 1;
        }
        let mut first = self.vacant.first().map_or(self.hint, |&lowest| lowest.min(self.hint));
        let mut next = first;
        while max_pages.saturating_sub(first) >= count {
            if next - first == count {
                return Some(first);
            }
            let vacant = self.is_vacant(table, next);
            next += 1;
            if !vacant {
                first = next;
            }
        }
        None
    }

    /// A page below `hint` is vacant again; those from there on are looked at anyway.
    fn vacate(&mut self, logical: u64) {
        if logical < self.hint {
            self.vacant.insert(logical);
        }
    }

    pub(super) fn allocate(&mut self, logical: u64) {
        self.pending.insert(logical, Pending::Allocated(None));
    }

    /// Frees a page that is there.
    pub(super) fn free(&mut self, logical: u64) {
        match self.pending.get(&logical) {
            // It never came to be.
            Some(Pending::Allocated(_)) => {
                self.pending.remove(&logical);
                self.vacate(logical);
            }
            _ => {
                self.pending.insert(logical, Pending::Freed);
            }
        }
    }

    /// The bytes of a page, to be changed; nothing if it was freed. `committed` fills them in if this is the first
    /// change.
    pub(super) fn change<E>(
        &mut self,
        logical: u64,
        committed: impl FnOnce(&mut Page) -> Result<(), E>,
    ) -> Result<Option<&mut Page>, E> {
        let pending = match self.pending.entry(logical) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => {
                let mut page = zeros();
                committed(&mut page)?;
                unknown.insert(Pending::Written(page))
            }
        };
        match pending {
            Pending::Written(page) => Ok(Some(page)),
            Pending::Allocated(bytes) => Ok(Some(bytes.get_or_insert_with(zeros))),
            Pending::Freed => Ok(None),
        }
    }

    /// What a commit would change.
    pub(super) fn changes(&self) -> Changes<'_> {
        let mut changes = Changes::default();
        for (&logical, pending) in &self.pending {
            match pending {
                Pending::Freed => changes.freed.push(logical),
                Pending::Written(page) => changes.dirty.push((logical, page)),
                Pending::Allocated(bytes) => {
                    changes.allocated.push(logical);
                    changes.dirty.extend(bytes.as_ref().map(|page| (logical, &**page)));
                }
            }
        }
        changes
    }

    /// It is all committed.
    pub(super) fn committed(&mut self) {
        for (logical, pending) in std::mem::take(&mut self.pending) {
            if let Pending::Freed = pending {
                self.vacate(logical);
            }
        }
    }

    /// Forgets all changes.
    pub(super) fn discard(&mut self) {
        *self = Working::default();
    }
}

fn zeros() -> Box<Page> {
    Box::new([0; size_of::<Page>()])
}
