//! A million allocations and frees in random order, crashes, and no page is lost or owned twice.

use std::collections::BTreeMap;
use std::path::Path;

use crate::common::{ReadAt, Rng, pmem, scratch, seed};
use untorn::region::{Region, RegionStore, StoreOptions};

const OPERATIONS: u64 = 1_000_000;
/// Pages that a region has at most.
const MOST: usize = 6000;

/// The stamp of each page there is.
type Stamps = BTreeMap<u64, u64>;

fn open(path: &Path) -> RegionStore {
    // Memory taken for persistent: commits are ordered, and so a million pages need no digest.
    StoreOptions::new().open_on(pmem(), path).unwrap()
}

/// One region, what it must hold now and what at its last commit, and its pages in the order in which they were
/// allocated.
struct Play {
    region: Region,
    now: Stamps,
    committed: Stamps,
    order: Vec<u64>,
}

impl Play {
    fn step(&mut self, rng: &mut Rng, stamp: u64) {
        let grows = self.order.len() < MOST && (self.order.is_empty() || rng.below(100) < 52);
        if grows {
            let page = self.region.alloc_page().unwrap();
            self.region.write_at(&stamp.to_le_bytes(), page * Region::PAGE + stamp % 511 * 8).unwrap();
            assert!(self.now.insert(page, stamp).is_none(), "page {page} was given out twice");
            self.order.push(page);
        } else {
            let page = self.order.swap_remove(rng.below(self.order.len() as u64) as usize);
            self.region.free_page(page).unwrap();
            self.now.remove(&page);
        }
    }

    fn compare(&self) {
        assert_eq!(self.region.pages().unwrap(), Vec::from_iter(self.committed.keys().copied()));
        for (page, stamp) in &self.committed {
            let place = page * Region::PAGE + stamp % 511 * 8;
            assert_eq!(self.region.word_at(place as usize), *stamp, "page {page}");
        }
    }
}

#[test]
fn a_million_allocations_and_frees_lose_or_share_no_page() {
    let mut rng = Rng::new(seed("a million"));
    let path = scratch("store");
    let names = ["even", "odd"];
    drop(StoreOptions::new().max_regions(8).create_on(pmem(), &path).unwrap());
    let mut store = open(&path);
    let mut plays: Vec<Play> = Vec::new();
    for name in names {
        let region = store.create_region(name).unwrap();
        plays.push(Play { region, now: Stamps::new(), committed: Stamps::new(), order: Vec::new() });
    }
    let mut crashes = 0;
    for operation in 1..=OPERATIONS {
        let play = &mut plays[rng.below(2) as usize];
        play.step(&mut rng, operation);
        if rng.below(3000) == 0 {
            play.region.pmsync().unwrap();
            play.committed = play.now.clone();
        }
        if rng.below(100_000) == 0 || operation == OPERATIONS {
            crashes += 1;
            let kept: Vec<Stamps> = plays.drain(..).map(|play| play.committed).collect();
            drop(store);
            store = open(&path);
            assert!(store.info().unwrap().recovered);
            for (name, committed) in names.iter().zip(kept) {
                let region = store.open_region(name).unwrap();
                let (now, order) = (committed.clone(), committed.keys().copied().collect());
                plays.push(Play { region, now, committed, order });
            }
            plays.iter().for_each(Play::compare);
            // Half of the time the scan is still under way when work goes on.
            if crashes % 2 == 0 || operation == OPERATIONS {
                check(&store, &plays);
            }
        }
    }
    eprintln!("{crashes} crashes, {} bytes in the end", store.info().unwrap().len);
}

fn check(store: &RegionStore, plays: &[Play]) {
    store.scan().unwrap();
    let audit = store.audit().unwrap();
    assert_eq!(audit.findings, Vec::<String>::new());
    assert_eq!(audit.lost_pages, 0);
    assert_eq!(audit.data_pages, plays.iter().map(|play| play.committed.len() as u64).sum::<u64>());
    let info = store.info().unwrap();
    assert_eq!(info.used_pages + info.free_pages, info.len / Region::PAGE, "{info:?}");
}
