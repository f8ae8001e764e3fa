//! `pmsync`: one commit of a region. The protocol and why it holds are at the head of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::format::{Entry, Half, IN_LINE, LEAF, PAGE, Page, Record, ZERO, digest};
use super::load::Loaded;
use super::{Core, Region, barriers, locked};
use crate::engine::commits::part::PartLog;
use crate::error::{Error, Result};
use crate::options::Order;
use crate::storage::{Medium, MediumFile};

/// What a commit changes. Every logical page is in `allocated` or `freed` at most once, and not in both.
#[derive(Default)]
pub(super) struct Changes<'a> {
    /// New contents, of pages that are there or are being allocated.
    pub(super) dirty: Vec<(u64, &'a Page)>,
    /// Pages that were not there. They read as zeros unless they are in `dirty`.
    pub(super) allocated: Vec<u64>,
    /// Pages that were there.
    pub(super) freed: Vec<u64>,
    /// Asked when the contents have been read, before they count.
    pub(super) check: Option<&'a dyn Fn() -> Result<()>>,
}

/// What was stored to a mapping since the last commit.
#[derive(Default)]
pub(crate) struct Stored<'a> {
    /// Pages, ascending, with their contents. They are there, or being allocated.
    pub(crate) pages: Vec<(u64, &'a Page)>,
    /// Whether the contents were really read: the memory of a page may be lost meanwhile.
    pub(crate) check: Option<&'a dyn Fn() -> Result<()>>,
}

impl<'a> Changes<'a> {
    /// Adds what was stored to a mapping: of a page that is in both, that counts.
    pub(super) fn add(&mut self, stored: &Stored<'a>) {
        self.check = stored.check;
        if !stored.pages.is_empty() {
            let mut dirty: BTreeMap<u64, &Page> = self.dirty.drain(..).collect();
            dirty.extend(stored.pages.iter().copied());
            self.dirty = dirty.into_iter().collect();
        }
    }
}

/// A leaf with what a commit changes in it.
struct Touched {
    half: Box<Half>,
    /// Lines it changes.
    lines: u32,
}

impl<M: Medium> Core<M> {
    /// Commits changes; the region is then at the commit whose number is returned.
    ///
    /// # Errors
    /// A full disk or a failed write: the region is as it was, and the changes may be committed later. A failed flush
    /// poisons the store, and only opening it anew tells whether the commit is there, whole.
    pub(super) fn commit(
        &self,
        region: &Region<M>,
        loaded: &mut Loaded,
        mut log: Option<&mut PartLog<M>>,
        changes: &Changes<'_>,
    ) -> Result<u64> {
        self.handle_state.writable()?;
        let mut entries = self.plan(region, loaded, changes)?;
        if entries.is_empty() {
            return Ok(loaded.commit);
        }
        let leaves: BTreeSet<u64> = entries.keys().map(|logical| logical / LEAF).collect();
        let missing = loaded.table.missing(leaves);
        let mut fresh = self.take_pages(changes.dirty.len() + missing.len())?;
        // So that those in a row are written at once, in whatever order they became free.
        fresh.sort_unstable();
        let (fresh, for_table) = fresh.split_at(changes.dirty.len());
        if let Err(error) = loaded.table.grow(self, &missing, for_table) {
            self.release_pages(fresh.iter().chain(for_table).copied());
            return Err(error);
        }
        let written =
            self.write_pages(changes, fresh, &mut entries).and_then(|()| self.write_entries(loaded, &entries));
        let logged = written.and_then(|touched| {
            let record = self.record(loaded, &entries);
            let append = |log: &mut &mut PartLog<M>| self.append(log, region, loaded, changes, (&entries, &record));
            Ok((touched, record, log.as_mut().map(append).transpose()?))
        });
        let (touched, record, appended) = logged.inspect_err(|_| {
            self.release_pages(fresh.iter().copied());
            // The links to new leaves may still be on their way, and no later flush that fails may lose them unnoticed.
            self.untidy.fetch_or(!missing.is_empty(), std::sync::atomic::Ordering::AcqRel);
        })?;
        self.write_record(region, &record)?;
        if let Some((log, appended)) = log.zip(appended) {
            self.confirm(log, appended);
        }
        let stored = |logical: &u64| Some((*logical, loaded.table.entry(*logical).stored()?));
        let given_up: Vec<(u64, u64)> = entries.keys().filter_map(stored).collect();
        loaded.advance(record, touched);
        let free = if self.medium.makes_check(barriers::KEEP_BACK) {
            locked(&self.holds).keep_back(region.node, given_up)
        } else {
            given_up.into_iter().map(|(_, page)| page).collect()
        };
        self.release_pages(free);
        Ok(loaded.commit)
    }

    /// The entries that change, those of dirty pages without their page yet.
    ///
    /// # Errors
    /// [`Error::Invalid`] where the changes contradict the region.
    fn plan(&self, region: &Region<M>, loaded: &Loaded, changes: &Changes<'_>) -> Result<BTreeMap<u64, Entry>> {
        let mut entries = BTreeMap::new();
        let mut sound = true;
        for &logical in &changes.freed {
            sound &= loaded.table.entry(logical).is_allocated();
            sound &= entries.insert(logical, Entry::default()).is_none();
        }
        for &logical in &changes.allocated {
            sound &= logical < region.max_pages && !loaded.table.entry(logical).is_allocated();
            sound &= entries.insert(logical, Entry::new(ZERO, 0)).is_none();
        }
        for (logical, _) in &changes.dirty {
            let replaced = entries.insert(*logical, Entry::new(ZERO, 0));
            sound &= replaced.map_or(loaded.table.entry(*logical).is_allocated(), Entry::is_allocated);
        }
        sound &= changes.dirty.is_sorted_by(|(one, _), (two, _)| one < two);
        if sound {
            return Ok(entries);
        }
        let what = format!("cannot commit: the changes contradict the page table of region {:?}", region.name);
        Err(Error::Invalid { path: self.path().to_owned(), what })
    }

    /// Writes the new contents to fresh pages.
    fn write_pages(&self, changes: &Changes<'_>, fresh: &[u64], entries: &mut BTreeMap<u64, Entry>) -> Result<()> {
        let mut contents = changes.dirty.iter().map(|(_, bytes)| &bytes[..]);
        for pages in fresh.chunk_by(|one, next| one + 1 == *next) {
            let parts: Vec<&[u8]> = contents.by_ref().take(pages.len()).collect();
            self.file.write_parts(pages[0] * PAGE, &parts)?;
        }
        for ((logical, bytes), &page) in changes.dirty.iter().zip(fresh) {
            let sum = if self.order == Order::OneFence { digest(bytes) } else { 0 };
            entries.insert(*logical, Entry::new(page, sum));
        }
        changes.check.map_or(Ok(()), |check| check())
    }

    /// Writes the entries into the half of the next commit, and with them those that the last commit left to it.
    fn write_entries(&self, loaded: &mut Loaded, entries: &BTreeMap<u64, Entry>) -> Result<BTreeMap<u64, Touched>> {
        let Loaded { commit, table } = loaded;
        let mut touched: BTreeMap<u64, Touched> = BTreeMap::new();
        for (&logical, entry) in entries {
            let (index, place) = (logical / LEAF, (logical % LEAF) as usize);
            // Every leaf that is touched is there: the table was grown.
            let Some(leaf) = table.leaves.get(&index) else { continue };
            let leaf = touched.entry(index).or_insert_with(|| Touched { half: Box::new(*leaf.half), lines: 0 });
            leaf.half.0[place] = *entry;
            leaf.lines |= 1 << (place / IN_LINE);
        }
        // Whatever becomes of this commit, from here on the halves differ where it writes.
        let settling = std::mem::take(&mut table.unsettled);
        table.unsettled = settling.iter().chain(touched.keys()).copied().collect();
        for index in &table.unsettled {
            let Some(leaf) = table.leaves.get_mut(index) else { continue };
            let change = touched.get(index);
            leaf.pending |= change.map_or(0, |change| change.lines);
            let half: &Half = change.map_or(&leaf.half, |change| &change.half);
            self.file.write_lines(leaf.half_at(*commit + 1), half.as_bytes(), u64::from(leaf.pending))?;
        }
        Ok(touched)
    }

    /// The record of the commit that makes these changes.
    fn record(&self, loaded: &Loaded, entries: &BTreeMap<u64, Entry>) -> Record {
        let ordered = self.order == Order::TwoFence;
        let Loaded { commit, table } = loaded;
        let mut record = Record { commit: commit + 1, total: table.total, pages: table.pages, ordered };
        for (&logical, entry) in entries {
            let old = table.entry(logical);
            record.total = record.total.wrapping_sub(old.weigh(logical)).wrapping_add(entry.weigh(logical));
            record.pages = record.pages - u64::from(old.is_allocated()) + u64::from(entry.is_allocated());
        }
        record
    }

    /// Writes the record that makes it a commit, and makes it durable.
    fn write_record(&self, region: &Region<M>, record: &Record) -> Result<()> {
        if record.ordered {
            self.fence(barriers::DATA)?;
        }
        let at = region.node * PAGE + Record::at(record.commit);
        // A record of which it is not known whether it is there must not be followed by another one.
        let written = self.file.write(at, &record.encode(&region.uid));
        written.map_err(|error| self.handle_state.poison(error))?;
        self.fence(barriers::RECORD)
    }
}

impl Loaded {
    /// The commit of this record is durable.
    fn advance(&mut self, record: Record, touched: BTreeMap<u64, Touched>) {
        let table = &mut self.table;
        for index in std::mem::take(&mut table.unsettled) {
            if let Some(leaf) = table.leaves.get_mut(&index) {
                leaf.pending = 0;
            }
        }
        for (index, change) in touched {
            if let Some(leaf) = table.leaves.get_mut(&index) {
                leaf.half = Arc::from(change.half);
                leaf.pending = change.lines;
                table.unsettled.insert(index);
            }
        }
        self.commit = record.commit;
        table.total = record.total;
        table.pages = record.pages;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AnyRegion, AnyStore, Settings, Store, create};
    use super::*;
    use crate::region::StoreOptions;
    use crate::storage::PageCache;

    fn region(dir: &std::path::Path) -> (Store<PageCache>, Arc<dyn AnyRegion>) {
        let settings =
            Settings { nodes: 2, max_len: 1 << 30, grow_by: 4, background: false, ..StoreOptions::new().settings };
        let medium = Arc::new(PageCache::new());
        create(&*medium, &dir.join("store"), &settings).unwrap();
        let store = Store::open(medium, &dir.join("store"), settings, None).unwrap();
        let region = store.create_region("r", 1000).unwrap();
        (store, region)
    }

    #[test]
    fn pages_allocations_and_frees_are_one_commit() {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = region(dir.path());
        let pages: [Page; 2] = [[1; 4096], [2; 4096]];
        let core = store.core();
        let inner = core.regions().remove(0);
        let changes = |dirty: &[(u64, usize)], allocated: &[u64], freed: &[u64]| {
            let dirty = dirty.iter().map(|&(logical, which)| (logical, &pages[which])).collect();
            let changes = Changes { dirty, allocated: allocated.to_vec(), freed: freed.to_vec(), check: None };
            core.commit(&inner, locked(&inner.state).loaded.as_mut().unwrap(), None, &changes)
        };
        assert_eq!(changes(&[(5, 0), (900, 1)], &[5, 6, 900], &[]).unwrap(), 1);
        assert_eq!(changes(&[(6, 1)], &[], &[5]).unwrap(), 2);
        assert_eq!(region.pages().unwrap(), [6, 900]);
        let mut bytes = [0; 4096];
        region.read(6 * PAGE, &mut bytes).unwrap();
        assert_eq!(bytes, pages[1]);
        // What contradicts the region is refused, and changes nothing.
        for (dirty, allocated, freed) in [
            (&[(5, 0)][..], &[][..], &[][..]),
            (&[], &[6], &[]),
            (&[], &[1000], &[]),
            (&[], &[], &[5]),
            (&[], &[7, 7], &[]),
            (&[(6, 0)], &[], &[6]),
            (&[(900, 0), (6, 0)], &[], &[]),
            (&[(6, 0), (6, 1)], &[], &[]),
        ] {
            assert!(matches!(changes(dirty, allocated, freed), Err(Error::Invalid { .. })));
        }
        assert_eq!(changes(&[(900, 0)], &[], &[]).unwrap(), 3);
        assert_eq!(store.audit().unwrap().findings, Vec::<String>::new());
    }
    /// Of what is stored to a mapping, and of pages whose memory was lost while they were written out.
    #[test]
    fn stores_to_a_mapping_commit_with_pending_changes() {
        let dir = tempfile::tempdir().unwrap();
        let (store, region) = region(dir.path());
        region.alloc(Some(0), 4).unwrap();
        assert!(matches!(region.map().err(), Some(Error::Invalid { .. })));
        region.pmsync(&Stored::default()).unwrap();
        let mapping = region.map().unwrap();
        for refused in [region.map().err(), region.free(0).err(), region.write(0, &[1]).err(), region.rollback().err()]
        {
            assert!(matches!(refused, Some(Error::InUse { .. })));
        }
        let pages: [Page; 3] = [[1; 4096], [2; 4096], [3; 4096]];
        mapping.write(PAGE, &[9]).unwrap();
        mapping.write(2 * PAGE, &[9]).unwrap();
        mapping.free(3).unwrap();
        let stored = |check| Stored { pages: vec![(0, &pages[0]), (1, &pages[1])], check };
        let lost = || Err(Error::io("load from the memory of", std::path::Path::new("r"), rustix::io::Errno::FAULT));
        assert!(mapping.pmsync(&stored(Some(&lost))).is_err());
        assert_eq!(mapping.info().unwrap().commit, 1);
        assert_eq!(mapping.pmsync(&stored(None)).unwrap(), 2);
        assert_eq!(mapping.pages().unwrap(), [0, 1, 2]);
        let mut bytes = [0; 3 * 4096];
        mapping.read(0, &mut bytes).unwrap();
        assert_eq!([bytes[0], bytes[4096], bytes[4097], bytes[8192], bytes[8193]], [1, 2, 2, 9, 0]);
        mapping.write(0, &pages[2]).unwrap();
        drop(mapping);
        region.read(0, &mut bytes).unwrap();
        assert_eq!(bytes[0], 1, "what was not committed is gone with the mapping");
        assert_eq!(store.audit().unwrap().findings, Vec::<String>::new());
    }
}
