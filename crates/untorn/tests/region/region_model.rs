//! Random operations on a store of regions against maps from page numbers to bytes, on every medium this machine has
//! without root.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::common::pmem;
use proptest::prelude::*;
use untorn::Result;
use untorn::options::Order;
use untorn::region::{Region, RegionStore, StoreOptions};

const PAGE: u64 = Region::PAGE;
const NAMES: [(&str, u64); 3] = [("low", 200), ("high", 1 << 40), ("middle", 128 * 512)];

#[derive(Clone, Debug)]
enum Op {
    Create(usize),
    Delete(usize),
    Alloc { region: usize, count: u64 },
    AllocAt { region: usize, page: u64 },
    Free { region: usize, nth: usize },
    Write { region: usize, nth: usize, offset: u64, len: usize, fill: u8 },
    Read { region: usize, nth: usize, offset: u64, len: usize },
    Pmsync(usize),
    Rollback(usize),
    Forget(usize),
    Scan,
    Close,
    Drop,
}

fn op() -> impl Strategy<Value = Op> {
    let region = 0..NAMES.len();
    let nth = 0_usize..1000;
    let page =
        prop_oneof![0..130_u64, 65_000..66_000_u64, (1_u64 << 39)..(1 << 39) + 5, Just(199), Just((1 << 40) - 1)];
    prop_oneof![
        2 => region.clone().prop_map(Op::Create),
        1 => region.clone().prop_map(Op::Delete),
        4 => (region.clone(), 1..5_u64).prop_map(|(region, count)| Op::Alloc { region, count }),
        4 => (region.clone(), page).prop_map(|(region, page)| Op::AllocAt { region, page }),
        4 => (region.clone(), nth.clone()).prop_map(|(region, nth)| Op::Free { region, nth }),
        8 => (region.clone(), nth.clone(), 0..PAGE, 0_usize..9000, any::<u8>())
            .prop_map(|(region, nth, offset, len, fill)| Op::Write { region, nth, offset, len, fill }),
        3 => (region.clone(), nth, 0..PAGE, 0_usize..9000)
            .prop_map(|(region, nth, offset, len)| Op::Read { region, nth, offset, len }),
        6 => region.clone().prop_map(Op::Pmsync),
        1 => region.clone().prop_map(Op::Rollback),
        1 => region.prop_map(Op::Forget),
        1 => Just(Op::Scan),
        1 => Just(Op::Close),
        1 => Just(Op::Drop),
    ]
}

type Pages = BTreeMap<u64, Vec<u8>>;

/// What one region must hold.
#[derive(Default)]
struct Expected {
    now: Pages,
    committed: Pages,
}

struct Rig {
    options: StoreOptions,
    pmem: bool,
}

impl Rig {
    fn create(&self, path: &Path) -> Result<RegionStore> {
        let medium = pmem();
        if self.pmem { self.options.create_on(medium, path) } else { self.options.create(path) }
    }

    fn open(&self, path: &Path) -> Result<RegionStore> {
        let medium = pmem();
        if self.pmem { self.options.open_on(medium, path) } else { self.options.open(path) }
    }
}

struct Play<'a> {
    rig: &'a Rig,
    path: &'a Path,
    store: Option<RegionStore>,
    open: BTreeMap<usize, Region>,
    model: BTreeMap<usize, Expected>,
}

impl Play<'_> {
    fn store(&self) -> &RegionStore {
        self.store.as_ref().unwrap()
    }

    fn region(&mut self, number: usize) -> Region {
        let store = self.store.as_ref().unwrap();
        self.open.entry(number).or_insert_with(|| store.open_region(NAMES[number].0).unwrap()).clone()
    }

    /// The pages that a range touches, if the region is to have all of them.
    fn covers(pages: &Pages, at: u64, len: usize) -> bool {
        len == 0 || (at / PAGE..=(at + len as u64 - 1) / PAGE).all(|page| pages.contains_key(&page))
    }

    fn step(&mut self, op: &Op) {
        let absent = |model: &BTreeMap<usize, Expected>, region: &usize| !model.contains_key(region);
        match *op {
            Op::Create(number) => {
                let (name, pages) = NAMES[number];
                let created = self.store().create_region_of(name, pages);
                assert_eq!(created.is_ok(), absent(&self.model, &number));
                if let Ok(region) = created {
                    self.open.insert(number, region);
                    self.model.insert(number, Expected::default());
                }
            }
            Op::Delete(number) => {
                self.open.remove(&number);
                assert_eq!(self.store().delete_region(NAMES[number].0).is_ok(), self.model.remove(&number).is_some());
            }
            Op::Alloc { region, .. }
            | Op::AllocAt { region, .. }
            | Op::Free { region, .. }
            | Op::Write { region, .. }
            | Op::Read { region, .. }
            | Op::Pmsync(region)
            | Op::Rollback(region)
            | Op::Forget(region)
                if absent(&self.model, &region) =>
            {
                assert!(self.store().open_region(NAMES[region].0).is_err());
            }
            Op::Scan => self.store().scan().unwrap(),
            Op::Close | Op::Drop => {
                self.open.clear();
                let store = self.store.take().unwrap();
                if let Op::Close = op {
                    store.close().unwrap();
                } else {
                    drop(store);
                }
                self.store = Some(self.rig.open(self.path).unwrap());
                self.model.values_mut().for_each(|expected| expected.now = expected.committed.clone());
            }
            _ => self.step_within(op),
        }
    }

    fn step_within(&mut self, op: &Op) {
        let number = match *op {
            Op::Alloc { region, .. } | Op::AllocAt { region, .. } | Op::Free { region, .. } => region,
            Op::Write { region, .. } | Op::Read { region, .. } => region,
            Op::Pmsync(region) | Op::Rollback(region) | Op::Forget(region) => region,
            _ => return,
        };
        let region = self.region(number);
        let most = NAMES[number].1;
        let expected = self.model.get_mut(&number).unwrap();
        let vacant = |expected: &Expected, page: u64| {
            page < most && !expected.now.contains_key(&page) && !expected.committed.contains_key(&page)
        };
        let pick = |expected: &Expected, nth: usize| {
            let pages: Vec<u64> = expected.now.keys().copied().collect();
            (!pages.is_empty()).then(|| pages[nth % pages.len()])
        };
        match *op {
            Op::Alloc { count, .. } => {
                let first = (0..most).find(|first| (*first..first + count).all(|page| vacant(expected, page)));
                assert_eq!(region.alloc_pages(count).ok(), first);
                let first = first.unwrap_or(0)..first.map_or(0, |first| first + count);
                first.for_each(|page| drop(expected.now.insert(page, vec![0; PAGE as usize])));
            }
            Op::AllocAt { page, .. } => {
                assert_eq!(region.alloc_at(page, 1).is_ok(), vacant(expected, page));
                if vacant(expected, page) {
                    expected.now.insert(page, vec![0; PAGE as usize]);
                }
            }
            Op::Free { nth, .. } => match pick(expected, nth) {
                Some(page) => {
                    region.free_page(page).unwrap();
                    expected.now.remove(&page);
                }
                None => assert!(region.free_page(0).is_err()),
            },
            Op::Write { nth, offset, len, fill, .. } => {
                let at = pick(expected, nth).unwrap_or(0) * PAGE + offset;
                let fits = Self::covers(&expected.now, at, len) && at + len as u64 <= most * PAGE;
                assert_eq!(region.write_at(&vec![fill; len], at).is_ok(), fits);
                for at in (at..at + len as u64).filter(|_| fits) {
                    expected.now.get_mut(&(at / PAGE)).unwrap()[(at % PAGE) as usize] = fill;
                }
            }
            Op::Read { nth, offset, len, .. } => {
                let at = pick(expected, nth).unwrap_or(0) * PAGE + offset;
                let fits = Self::covers(&expected.now, at, len) && at + len as u64 <= most * PAGE;
                let mut bytes = vec![0; len];
                assert_eq!(region.read_at(&mut bytes, at).is_ok(), fits);
                for (at, byte) in (at..).zip(&bytes).filter(|_| fits) {
                    assert_eq!(expected.now[&(at / PAGE)][(at % PAGE) as usize], *byte, "byte {at}");
                }
            }
            Op::Pmsync(_) => {
                region.pmsync().unwrap();
                expected.committed = expected.now.clone();
            }
            Op::Rollback(_) => {
                region.rollback().unwrap();
                expected.now = expected.committed.clone();
            }
            Op::Forget(_) => {
                drop(region);
                self.open.remove(&number);
                expected.now = expected.committed.clone();
            }
            _ => {}
        }
    }

    fn compare(&mut self) {
        let names: BTreeSet<&str> = self.model.keys().map(|number| NAMES[*number].0).collect();
        let listed = self.store().list().unwrap();
        assert_eq!(listed.iter().map(|region| region.name.as_str()).collect::<BTreeSet<_>>(), names);
        let numbers: Vec<usize> = self.model.keys().copied().collect();
        for number in numbers {
            let region = self.region(number);
            let expected = &self.model[&number];
            assert_eq!(region.pages().unwrap(), Vec::from_iter(expected.now.keys().copied()));
            let mut bytes = [0; PAGE as usize];
            for (page, is) in &expected.now {
                region.read_page(*page, &mut bytes).unwrap();
                assert!(bytes[..] == is[..], "page {page} of {}", region.name());
            }
            let info = region.info().unwrap();
            assert_eq!((info.pages, info.max_pages), (expected.committed.len() as u64, NAMES[number].1));
        }
        let audit = self.store().audit().unwrap();
        assert_eq!(audit.findings, Vec::<String>::new());
    }
}

fn run(rig: &Rig, ops: &[Op]) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = dir.path().join("store");
    let store = rig.create(&path).unwrap();
    let mut play = Play { rig, path: &path, store: Some(store), open: BTreeMap::new(), model: BTreeMap::new() };
    for op in ops {
        play.step(op);
    }
    play.compare();
    play.step(&Op::Drop);
    play.compare();
    play.step(&Op::Close);
    play.compare();
    play.store().scan().unwrap();
    assert_eq!(play.store().audit().unwrap().lost_pages, 0);
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let begin = Just(vec![Op::Create(0), Op::Create(1)]);
    (begin, prop::collection::vec(op(), 0..60)).prop_map(|(mut ops, more)| {
        ops.extend(more);
        ops
    })
}

fn options() -> StoreOptions {
    StoreOptions::new().max_regions(3).grow_by(4 * PAGE).background_scan(false)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_page_cache_agrees_with_the_model(ops in ops()) {
        run(&Rig { options: options(), pmem: false }, &ops);
    }

    #[test]
    fn persistent_memory_agrees_with_the_model(ops in ops()) {
        run(&Rig { options: options(), pmem: true }, &ops);
    }

    #[test]
    fn both_media_agree_in_the_other_order_with_a_scan(ops in ops(), pmem in any::<bool>()) {
        let order = if pmem { Order::OneFence } else { Order::TwoFence };
        run(&Rig { options: options().order(order).background_scan(true), pmem }, &ops);
    }
}
