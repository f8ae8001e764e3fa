//! Loading a region: its page table, the record that counts, and the pages that it uses. This is also the recovery of a
//! region, and the scan for free space after a crash.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use zerocopy::FromBytes;

use super::format::{Entry, FANOUT, Half, IN_LINE, LEAF, Node, PAGE, Page, RawInner, RawLeaf, Record, ZERO, digest};
use super::table::{Leaf, NodePosition, Table};
use super::{Core, Region, State, barriers, locked};
use crate::error::{Error, Result};
use crate::storage::{Medium, MediumFile};

/// A region at its last commit.
pub(super) struct Loaded {
    pub(super) commit: u64,
    pub(super) table: Table,
}

impl Loaded {
    /// Commit number and pages.
    pub(super) fn summary(&self) -> (u64, u64) {
        (self.commit, self.table.pages)
    }
}

/// A leaf as it is on the medium.
struct Seen {
    index: u64,
    page: u64,
    halves: Box<[Half; 2]>,
}

/// A page table as it is on the medium.
struct Walk {
    table: Table,
    leaves: Vec<Seen>,
    /// Pages it went through: a hostile tree may meet itself.
    visited: HashSet<u64>,
}

impl<M: Medium> Core<M> {
    /// Reads the region, unless it has been read already, and marks what it has in the free map.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if what is there contradicts itself; nothing was changed then.
    pub(super) fn load(&self, region: &Region<M>, state: &mut State<M>) -> Result<()> {
        if state.loaded.is_some() || state.deleted {
            return Ok(());
        }
        let mut page = [0; PAGE as usize];
        self.file.read(region.node * PAGE, &mut page)?;
        let damaged = |what: &str| region.damaged(self.path(), region.node, what);
        let root = match Node::decode(&page) {
            Ok(Some((node, root))) if node.uid == region.uid => root,
            Ok(_) => return Err(damaged("its region node has changed since the store was opened")),
            Err(what) => return Err(damaged(&what)),
        };
        let mut walk =
            Walk { table: Table::new(region.node, region.max_pages), leaves: Vec::new(), visited: HashSet::new() };
        if root != 0 {
            let top = (walk.table.height(), 0);
            self.walk(region, &mut walk, top, root)?;
        }
        let record = self.choose(region, &walk, &page)?;
        let loaded = self.settle_on(region, walk, record)?;
        self.count(region, &loaded)?;
        state.summary = Some(loaded.summary());
        state.loaded = Some(loaded);
        self.complete_if_scanned();
        Ok(())
    }

    fn walk(&self, region: &Region<M>, walk: &mut Walk, position: NodePosition, page: u64) -> Result<()> {
        let damaged = |what: &str| region.damaged(self.path(), page, what);
        let (level, index) = position;
        let first = index.checked_mul(LEAF * FANOUT.pow(level));
        if first.is_none_or(|first| first >= region.max_pages) {
            return Err(damaged("its page table reaches beyond its highest page"));
        }
        if !locked(&self.space).holds(page) || !walk.visited.insert(page) {
            return Err(damaged("its page table names a page outside the file, or one page twice"));
        }
        let mut bytes: Page = [0; PAGE as usize];
        self.file.read(page * PAGE, &mut bytes)?;
        if level == 0 {
            // A page has as many bytes as a leaf.
            let Ok(leaf) = RawLeaf::read_from_bytes(&bytes) else { return Ok(()) };
            walk.leaves.push(Seen { index, page, halves: Box::new(leaf.0) });
            return Ok(());
        }
        walk.table.add_inner(position, page);
        let Ok(node) = RawInner::read_from_bytes(&bytes) else { return Ok(()) };
        for (child, link) in (0..).zip(node.0.iter().map(|link| link.get())) {
            if link != 0 {
                self.walk(region, walk, (level - 1, index * FANOUT + child), link)?;
            }
        }
        Ok(())
    }

    /// The record that counts. What is left of a later one is erased.
    fn choose(&self, region: &Region<M>, walk: &Walk, node: &Page) -> Result<Record> {
        let damaged = |what: &str| region.damaged(self.path(), region.node, what);
        let records = Record::both(node, &region.uid);
        let Some(newest) = records.first() else { return Err(damaged("neither commit record is valid")) };
        // In a store that was closed cleanly, and in a region looked at before, no commit is in flight; unless who
        // looked at it only reads, and had to leave it there.
        let looked_at = region.counted.load(Ordering::Acquire) && !self.settings.read_only;
        let certain = newest.ordered || self.was_clean || looked_at;
        let counts = walk.agrees(newest) && (certain || self.arrived(walk, newest.commit)?);
        if !counts && certain {
            return Err(damaged("its page table does not match its last commit record"));
        }
        let chosen = match records.get(1) {
            _ if counts => newest,
            // What the last commit gave up belongs to others once it is durable. If it was in flight all of it is
            // still there; else it did arrive, and has rotted since.
            Some(before)
                if before.commit + 1 == newest.commit
                    && walk.agrees(before)
                    && self.arrived(walk, before.commit)? =>
            {
                before
            }
            _ => return Err(damaged("its last commit is incomplete, and the commit before it is missing")),
        };
        let other = Record::at(chosen.commit + 1);
        let left = &node[other as usize..][..Record::LEN];
        let is_older = counts && records.len() > 1;
        // Who only reads leaves it to the next one who writes.
        if !is_older && !self.settings.read_only && left.iter().any(|&byte| byte != 0) {
            // Also where it is torn: the next record in this place might be torn too, and the two add up to this one.
            self.handle_state.writable()?;
            let erased = self.file.write(region.node * PAGE + other, &[0; Record::LEN]);
            erased.map_err(|error| self.handle_state.poison(error))?;
            self.fence(barriers::DISCARD)?;
            tracing::info!(store = %self.path().display(), region = region.name, commit = chosen.commit, "recovered");
        }
        Ok(*chosen)
    }

    /// Whether the pages that a commit has, and the one before or after it has not, are whole: those that the two
    /// halves name differently.
    fn arrived(&self, walk: &Walk, commit: u64) -> Result<bool> {
        let mut bytes: Page = [0; PAGE as usize];
        for leaf in &walk.leaves {
            let [now, other] = leaf.sides(commit);
            for (entry, old) in now.0.iter().zip(&other.0) {
                let Some(page) = entry.stored().filter(|_| entry != old && entry.sum.get() != 0) else { continue };
                if !locked(&self.space).holds(page) {
                    return Ok(false);
                }
                self.file.read(page * PAGE, &mut bytes)?;
                if digest(&bytes) != entry.sum.get() {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// The region at the commit of a record.
    fn settle_on(&self, region: &Region<M>, walk: Walk, record: Record) -> Result<Loaded> {
        let Walk { mut table, leaves, .. } = walk;
        table.total = record.total;
        table.pages = record.pages;
        for leaf in leaves {
            let [now, other] = leaf.sides(record.commit);
            let mut pending = 0;
            for (position, (entry, old)) in now.0.iter().zip(&other.0).enumerate() {
                if entry != old {
                    pending |= 1 << (position / IN_LINE);
                }
                let logical = leaf.index * LEAF + position as u64;
                if entry.is_allocated() && !self.is_sensible(*entry, logical, region.max_pages) {
                    let page = entry.page.get();
                    let what = format!("the entry of its page {logical} is invalid: it names page {page} of the store");
                    return Err(region.damaged(self.path(), leaf.page, &what));
                }
            }
            if pending != 0 {
                table.unsettled.insert(leaf.index);
            }
            table.leaves.insert(leaf.index, Leaf { page: leaf.page, half: Arc::new(*now), pending });
        }
        Ok(Loaded { commit: record.commit, table })
    }

    fn is_sensible(&self, entry: Entry, logical: u64, max_pages: u64) -> bool {
        logical < max_pages && (entry.page.get() == ZERO || locked(&self.space).holds(entry.page.get()))
    }

    /// Marks what the region has in the free map, or sees that it is marked.
    fn count(&self, region: &Region<M>, loaded: &Loaded) -> Result<()> {
        let mut space = locked(&self.space);
        let owned = || loaded.table.own_pages().chain(loaded.table.entries().filter_map(|(_, entry)| entry.stored()));
        if region.counted.load(Ordering::Acquire) {
            // The free map knows of this region; it may still be wrong about it.
            return match owned().find(|&page| !space.is_used(page)) {
                Some(page) => Err(region.damaged(self.path(), page, "it uses a page that the free map marks free")),
                None => Ok(()),
            };
        }
        let mut marked = Vec::new();
        for page in owned() {
            if !space.mark(page) {
                marked.into_iter().for_each(|page| space.release(page));
                return Err(region.damaged(self.path(), page, "it uses a page that it or another region already uses"));
            }
            marked.push(page);
        }
        self.mark_counted(region);
        Ok(())
    }

    /// Looks at every region that was not looked at yet. Ends early when the store is closed.
    ///
    /// # Errors
    /// The first that came up; the other regions were looked at all the same.
    pub(super) fn scan(&self) -> Result<()> {
        let mut result = Ok(());
        for region in self.regions() {
            if self.stop.load(Ordering::Acquire) {
                break;
            }
            if region.counted.load(Ordering::Acquire) {
                continue;
            }
            let mut state = locked(&region.state);
            let loaded = self.load(&region, &mut state);
            if state.handle.strong_count() == 0 {
                state.loaded = None;
            }
            if let Err(error) = loaded {
                result = result.and(Err(error));
            }
        }
        let broken = locked(&self.directory).damage().next().map(str::to_owned);
        match broken {
            Some(what) => result.and(Err(Error::Corrupt { path: self.path().to_owned(), offset: None, what })),
            None => result,
        }
    }
}

impl Walk {
    /// Whether the half of a record's commit is the one it speaks of.
    fn agrees(&self, record: &Record) -> bool {
        let (mut total, mut pages) = (0_u64, 0_u64);
        for leaf in &self.leaves {
            let [now, _] = leaf.sides(record.commit);
            for (logical, entry) in (leaf.index * LEAF..).zip(&now.0) {
                total = total.wrapping_add(entry.weigh(logical));
                pages += u64::from(entry.is_allocated());
            }
        }
        total == record.total && pages == record.pages
    }
}

impl Seen {
    /// The half of a commit, and the other one.
    fn sides(&self, commit: u64) -> [&Half; 2] {
        let [even, odd] = &*self.halves;
        if commit.is_multiple_of(2) { [even, odd] } else { [odd, even] }
    }
}
