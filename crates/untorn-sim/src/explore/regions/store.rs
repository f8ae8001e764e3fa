//! The subject: a region store, or one that keeps no promise.

use std::collections::BTreeMap;
use std::path::Path;

use untorn::options::DirtyTracking;
use untorn::region::{Region, RegionMap, RegionMapOptions, RegionSnapshot, RegionStore, StoreOptions};
use untorn::testing::storage::{Access, Barrier, Medium, MediumFile};
use untorn::{Error, Result};

use super::config::Config;
use super::ops::{Op, Pages, REGIONS, State, bytes_of, tag_of};
use crate::file::SimFile;
use crate::medium::SimMedium;

/// The store of every run.
pub(super) const PATH: &str = "/store";

/// A store, open.
pub(in crate::explore) enum Opened {
    Store { store: RegionStore, open: BTreeMap<u8, Open>, held: Vec<Held>, mapped: bool },
    Canary(Canary),
}

/// A held snapshot, and what it held when it was taken.
pub(in crate::explore) struct Held {
    number: u8,
    snapshot: RegionSnapshot,
    pages: Pages,
}

/// A region, open in one of two ways.
pub(in crate::explore) enum Open {
    Copies(Region),
    Mapped(Box<RegionMap>),
}

/// The options of every run: so few nodes, and so little room at a time, that pages are soon used again.
fn options(config: &Config) -> StoreOptions {
    StoreOptions::new().max_regions(3).grow_by(3 * 4096).max_len(1 << 20).background_scan(false).order(config.order)
}

impl Opened {
    pub(super) fn create(config: &Config, medium: &SimMedium) -> Result<Self> {
        if config.canary {
            return Canary::create(medium).map(Opened::Canary);
        }
        let store = options(config).create_on(medium.clone(), PATH)?;
        Ok(Opened::Store { store, open: BTreeMap::new(), held: Vec::new(), mapped: config.mapped })
    }

    pub(super) fn open(config: &Config, medium: &SimMedium) -> Result<Self> {
        if config.canary {
            return Canary::open(medium).map(Opened::Canary);
        }
        let store = options(config).open_on(medium.clone(), PATH)?;
        Ok(Opened::Store { store, open: BTreeMap::new(), held: Vec::new(), mapped: config.mapped })
    }

    /// Everything but what opens the store again.
    pub(super) fn perform(&mut self, op: &Op) -> Result<()> {
        match self {
            Opened::Canary(canary) => canary.perform(op),
            Opened::Store { held, .. } if matches!(op, Op::Look | Op::LetGo) => {
                if *op == Op::LetGo {
                    held.drain(..held.len().min(1));
                }
                held.iter().try_for_each(Held::look)
            }
            Opened::Store { store, open, held, mapped } => {
                if let Op::Hold(number) = *op {
                    let snapshot = region(store, open, number)?.snapshot()?;
                    let pages = pages_of(number, &snapshot)?;
                    held.push(Held { number, snapshot, pages });
                    return Ok(());
                }
                if let Op::Delete(number) = *op {
                    // A held snapshot keeps its region.
                    held.retain(|held| held.number != number);
                }
                perform(store, open, *mapped, op)
            }
        }
    }

    /// Lets the store go in one of the two ways.
    pub(super) fn end(self, clean: bool) -> Result<()> {
        match self {
            Opened::Store { store, open, held, .. } if clean => {
                drop((open, held));
                store.close()
            }
            _ => Ok(()),
        }
    }

    /// What the snapshot that was taken last holds.
    pub(super) fn held(&self) -> Option<&Pages> {
        let Opened::Store { held, .. } = self else { return None };
        held.last().map(|held| &held.pages)
    }

    /// All content as a program sees it, or a finding.
    pub(super) fn read(&mut self) -> Result<std::result::Result<State, String>> {
        match self {
            Opened::Canary(canary) => Ok(Ok(canary.working.clone())),
            Opened::Store { store, open, .. } => {
                let mut state = State::new();
                for info in store.list()? {
                    if let Some(damage) = info.damage {
                        return Ok(Err(damage));
                    }
                    let Some(number) = REGIONS.iter().position(|(name, _)| *name == info.name) else {
                        return Ok(Err(format!("the store lists region {:?}, which was never created", info.name)));
                    };
                    let number = number as u8;
                    match region(store, open, number)?.read(number)? {
                        Ok(pages) => drop(state.insert(number, pages)),
                        Err(what) => return Ok(Err(what)),
                    }
                }
                if let Some(damage) = store.info()?.damage.first() {
                    return Ok(Err(damage.clone()));
                }
                Ok(Ok(state))
            }
        }
    }

    /// The faults of the store as a whole.
    pub(super) fn audit(&mut self) -> Result<Option<String>> {
        let Opened::Store { store, .. } = self else { return Ok(None) };
        store.scan()?;
        let audit = store.audit()?;
        let lost = (audit.lost_pages > 0)
            .then(|| format!("{} pages of the store are marked as used, but no region owns them", audit.lost_pages));
        Ok(audit.findings.into_iter().next().or(lost))
    }
}

/// The pages of a snapshot.
///
/// # Panics
/// If one holds bytes that were never written to it.
fn pages_of(number: u8, snapshot: &RegionSnapshot) -> Result<Pages> {
    let mut bytes = [0; 4096];
    let of = |page: u64| {
        snapshot.read_page(page, &mut bytes)?;
        let tag = tag_of(number, page, &bytes);
        assert!(tag.is_some(), "page {page} of a snapshot of {} holds bytes that it never had", snapshot.name());
        Ok((page, tag.unwrap_or_default()))
    };
    snapshot.pages().into_iter().map(of).collect()
}

impl Held {
    /// Reads it again.
    ///
    /// # Panics
    /// If it changed.
    fn look(&self) -> Result<()> {
        match pages_of(self.number, &self.snapshot) {
            // The store had no space.
            Err(Error::SnapshotEnded { .. }) => Ok(()),
            read => read.map(|pages| assert_eq!(pages, self.pages, "a snapshot changed while it was held")),
        }
    }
}

fn region<'a>(store: &RegionStore, open: &'a mut BTreeMap<u8, Open>, number: u8) -> Result<&'a mut Open> {
    use std::collections::btree_map::Entry;
    Ok(match open.entry(number) {
        Entry::Occupied(open) => open.into_mut(),
        Entry::Vacant(closed) => closed.insert(Open::Copies(store.open_region(REGIONS[usize::from(number)].0)?)),
    })
}

impl Open {
    /// Maps the region if it is not. Page tables can be read everywhere, so a run repeats itself on every machine.
    fn mapped(&mut self) -> Result<&mut Self> {
        if let Open::Copies(region) = self {
            let options = RegionMapOptions::new().reserve(1 << 29).dirty_tracking(DirtyTracking::PageTable);
            *self = Open::Mapped(Box::new(options.map(region)?));
        }
        Ok(self)
    }

    fn snapshot(&self) -> Result<RegionSnapshot> {
        match self {
            Open::Copies(region) => region.snapshot(),
            Open::Mapped(map) => map.snapshot(),
        }
    }

    fn perform(&mut self, op: &Op) -> Result<()> {
        match (self, op) {
            (Open::Copies(region), Op::Alloc(_, page)) => region.alloc_at(*page, 1),
            (Open::Copies(region), Op::Write(number, page, tag)) => {
                region.write_page(*page, &bytes_of(*number, *page, *tag))
            }
            (Open::Copies(region), Op::Free(_, page)) => region.free_page(*page),
            (Open::Copies(region), Op::Rollback(_)) => region.rollback(),
            (Open::Copies(region), _) => region.pmsync().map(drop),
            (Open::Mapped(map), Op::Alloc(_, page)) => map.alloc_at(*page, 1),
            (Open::Mapped(map), Op::Write(number, page, tag)) => {
                map.page_mut(*page).map(|bytes| *bytes = bytes_of(*number, *page, *tag))
            }
            (Open::Mapped(map), Op::Free(_, page)) => map.free_page(*page),
            (Open::Mapped(map), Op::Rollback(_)) => map.rollback(),
            (Open::Mapped(map), _) => map.pmsync().map(drop),
        }
    }

    fn read(&self, number: u8) -> Result<std::result::Result<Pages, String>> {
        let mut pages = Pages::new();
        let (name, there) = match self {
            Open::Copies(region) => (region.name(), region.pages()?),
            Open::Mapped(map) => (map.name(), map.pages()?),
        };
        let mut bytes = [0; 4096];
        for page in there {
            match self {
                Open::Copies(region) => region.read_page(page, &mut bytes)?,
                Open::Mapped(map) => bytes = *map.page(page)?,
            }
            match tag_of(number, page, &bytes) {
                Some(tag) => drop(pages.insert(page, tag)),
                None => return Ok(Err(format!("page {page} of {name} holds bytes that were never written to it"))),
            }
        }
        Ok(Ok(pages))
    }
}

fn perform(store: &RegionStore, open: &mut BTreeMap<u8, Open>, mapped: bool, op: &Op) -> Result<()> {
    match *op {
        Op::Create(number) => {
            let (name, pages) = REGIONS[usize::from(number)];
            open.insert(number, Open::Copies(store.create_region_of(name, pages)?));
            Ok(())
        }
        Op::Delete(number) => {
            open.remove(&number);
            store.delete_region(REGIONS[usize::from(number)].0)
        }
        Op::Alloc(number, _)
        | Op::Write(number, ..)
        | Op::Free(number, _)
        | Op::Pmsync(number)
        | Op::PmsyncFails { region: number, .. }
        | Op::Rollback(number) => {
            let region = region(store, open, number)?;
            if mapped { region.mapped()?.perform(op) } else { region.perform(op) }
        }
        Op::Scan => store.scan(),
        Op::Hold(_) | Op::Look | Op::LetGo | Op::Reopen { .. } | Op::ReopenFails { .. } => Ok(()),
    }
}

/// A store as one would write it without much thought: a list of pages, and their bytes, both in place. It must be
/// convicted.
pub(in crate::explore) struct Canary {
    medium: SimMedium,
    file: SimFile,
    working: State,
    durable: State,
}

const SYNC: Barrier = Barrier::new("in-place.sync");
/// The list: eight bytes for each page there is, and then the pages.
const PAGES_AT: u64 = 4096;
const SLOTS: usize = 64;

impl Canary {
    fn create(medium: &SimMedium) -> Result<Self> {
        let path = Path::new(PATH);
        let len = PAGES_AT + SLOTS as u64 * 4096;
        let file = medium.create(path, len, len)?;
        file.allocate(0, len)?;
        file.sync(SYNC)?;
        medium.sync_dir(SYNC, Path::new("/"))?;
        Ok(Canary { medium: medium.clone(), file, working: State::new(), durable: State::new() })
    }

    fn open(medium: &SimMedium) -> Result<Self> {
        let file = medium.open(Path::new(PATH), Access::ReadWrite, 1 << 20)?;
        let mut list = [0; SLOTS * 8];
        file.read(0, &mut list)?;
        let mut durable = State::new();
        let mut bytes = [0; 4096];
        for (slot, entry) in list.chunks_exact(8).enumerate() {
            let [region, page @ ..] = entry else { continue };
            let page = page.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
            if (1..=REGIONS.len() as u8).contains(region) {
                let pages = durable.entry(region - 1).or_default();
                if let Some(page) = page.checked_sub(1) {
                    file.read(PAGES_AT + slot as u64 * 4096, &mut bytes)?;
                    // Bytes that no operation wrote get a tag that no operation gave.
                    pages.insert(page, tag_of(region - 1, page, &bytes).unwrap_or(u8::MAX));
                }
            }
        }
        Ok(Canary { medium: medium.clone(), file, working: durable.clone(), durable })
    }

    fn perform(&mut self, op: &Op) -> Result<()> {
        let change = |state: &mut State, region, page, tag: Option<u8>| {
            let pages = state.entry(region).or_default();
            match tag {
                Some(tag) => drop(pages.insert(page, tag)),
                None => drop(pages.remove(&page)),
            }
        };
        match *op {
            Op::Alloc(region, page) => change(&mut self.working, region, page, Some(0)),
            Op::Write(region, page, tag) => change(&mut self.working, region, page, Some(tag)),
            Op::Free(region, page) => change(&mut self.working, region, page, None),
            Op::Rollback(region) => {
                let committed = self.durable.get(&region).cloned().unwrap_or_default();
                self.working.insert(region, committed);
            }
            Op::Create(region) => {
                for state in [&mut self.working, &mut self.durable] {
                    state.insert(region, Pages::new());
                }
                return self.write();
            }
            Op::Delete(region) => {
                for state in [&mut self.working, &mut self.durable] {
                    state.remove(&region);
                }
                return self.write();
            }
            Op::Pmsync(region) | Op::PmsyncFails { region, .. } => {
                let pages = self.working.get(&region).cloned().unwrap_or_default();
                self.durable.insert(region, pages);
                return self.write();
            }
            Op::Hold(_) | Op::Look | Op::LetGo | Op::Scan | Op::Reopen { .. } | Op::ReopenFails { .. } => {}
        }
        Ok(())
    }

    fn write(&self) -> Result<()> {
        let mut list = Vec::new();
        for (region, pages) in &self.durable {
            let entry = |page: u64| u64::from(region + 1) | page << 8;
            list.push((entry(0), None));
            list.extend(pages.iter().map(|(page, tag)| (entry(page + 1), Some(bytes_of(*region, *page, *tag)))));
        }
        list.resize(SLOTS, (0, None));
        for (slot, (entry, bytes)) in (0..).zip(&list) {
            self.file.write(slot * 8, &entry.to_le_bytes())?;
            if let Some(bytes) = bytes {
                self.file.write(PAGES_AT + slot * 4096, bytes)?;
            }
        }
        self.medium.fence(SYNC, &[&self.file])
    }
}
