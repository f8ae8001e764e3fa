//! Golden stores: what the first version of the format wrote opens in every later one, page for page.
//!
//! `UNTORN_BLESS=1 cargo test -p untorn --test region golden` writes them anew, which only a change of the format's
//! version may ask for. A store is kept without the sectors that are all zeros.

use crate::common::golden::{are_blessed, kept};
use crate::common::{pattern, scratch};
use untorn::options::Order;
use untorn::region::{RegionStore, StoreOptions};

const PAGE: usize = 4096;

struct Case {
    name: &'static str,
    order: Order,
    clean: bool,
}

const CASES: [Case; 3] = [
    Case { name: "region-one-fence-open", order: Order::OneFence, clean: false },
    Case { name: "region-two-fence-open", order: Order::TwoFence, clean: false },
    Case { name: "region-clean", order: Order::OneFence, clean: true },
];

fn options(order: Order) -> StoreOptions {
    StoreOptions::new().max_regions(2).grow_by(4 * PAGE as u64).order(order).background_scan(false)
}

/// The pages of region "ledger" at its last commit, and the seed of what is in them.
const LEDGER: [(u64, u64); 4] = [(0, 30), (1, 11), (3, 0), (70_000, 31)];

fn page(seed: u64) -> [u8; PAGE] {
    let mut bytes = [0; PAGE];
    if seed != 0 {
        bytes[..500].copy_from_slice(&pattern(500, seed));
    }
    bytes
}

fn fill(store: &RegionStore) {
    let ledger = store.create_region("ledger").unwrap();
    ledger.alloc_pages(4).unwrap();
    for number in 0..3 {
        ledger.write_page(number, &page(10 + number)).unwrap();
    }
    ledger.pmsync().unwrap();
    ledger.free_page(2).unwrap();
    ledger.write_page(0, &page(20)).unwrap();
    ledger.pmsync().unwrap();
    ledger.alloc_at(70_000, 1).unwrap();
    ledger.write_page(0, &page(30)).unwrap();
    ledger.write_page(70_000, &page(31)).unwrap();
    ledger.pmsync().unwrap();
    let small = store.create_region_of("\u{fc}mlaut", 100).unwrap();
    small.alloc_page().unwrap();
    small.write_page(0, &page(40)).unwrap();
    small.pmsync().unwrap();
}

fn compare(store: &RegionStore) {
    let list = store.list().unwrap();
    let known: Vec<_> = list.iter().map(|region| (region.name.as_str(), region.max_pages, region.commit)).collect();
    assert_eq!(known, [("ledger", RegionStore::DEFAULT_PAGES, 3), ("\u{fc}mlaut", 100, 1)]);
    let ledger = store.open_region("ledger").unwrap();
    assert_eq!(ledger.pages().unwrap(), LEDGER.map(|(number, _)| number));
    let mut bytes = [0; PAGE];
    for (number, seed) in LEDGER {
        ledger.read_page(number, &mut bytes).unwrap();
        assert!(bytes == page(seed), "page {number}");
    }
    store.open_region("\u{fc}mlaut").unwrap().read_page(0, &mut bytes).unwrap();
    assert!(bytes == page(40));
    store.scan().unwrap();
    let audit = store.audit().unwrap();
    assert_eq!((audit.findings, audit.lost_pages), (Vec::new(), 0));
}

/// A store with its zeros left out: for each sector with a byte in it, its number and its bytes; first its length.
fn pack(bytes: &[u8]) -> Vec<u8> {
    let mut packed = (bytes.len() as u64).to_le_bytes().to_vec();
    for (number, sector) in (0_u32..).zip(bytes.chunks(512)).filter(|(_, sector)| sector.iter().any(|&byte| byte != 0))
    {
        packed.extend(number.to_le_bytes());
        packed.extend(sector);
    }
    packed
}

fn unpack(packed: &[u8]) -> Vec<u8> {
    let (len, sectors) = packed.split_first_chunk().unwrap();
    let mut bytes = vec![0; u64::from_le_bytes(*len) as usize];
    for sector in sectors.chunks_exact(516) {
        let (number, sector) = sector.split_first_chunk().unwrap();
        bytes[u32::from_le_bytes(*number) as usize * 512..][..512].copy_from_slice(sector);
    }
    bytes
}

impl Case {
    fn bless(&self) {
        let path = scratch("store");
        let store = options(self.order).create(&path).unwrap();
        fill(&store);
        if self.clean {
            store.close().unwrap();
        } else {
            drop(store);
        }
        std::fs::write(kept(self.name, "store"), pack(&std::fs::read(&path).unwrap())).unwrap();
    }
}

#[test]
fn stores_of_the_first_version_hold_what_they_held() {
    for case in CASES {
        if are_blessed() {
            case.bless();
        }
        let packed = std::fs::read(kept(case.name, "store")).unwrap();
        let path = scratch("store");
        std::fs::write(&path, unpack(&packed)).unwrap();
        // Whoever opens it may commit in either order.
        let other = if case.order == Order::OneFence { Order::TwoFence } else { Order::OneFence };
        let store = options(other).open(&path).unwrap();
        assert_eq!(store.info().unwrap().recovered, !case.clean, "{}", case.name);
        compare(&store);
        let ledger = store.open_region("ledger").unwrap();
        ledger.write_page(1, &page(50)).unwrap();
        assert_eq!(ledger.pmsync().unwrap(), 4);
        ledger.write_page(1, &page(11)).unwrap();
        assert_eq!(ledger.pmsync().unwrap(), 5);
        drop((ledger, store));
        let store = options(case.order).open(&path).unwrap();
        let ledger = store.open_region("ledger").unwrap();
        assert_eq!(ledger.info().unwrap().commit, 5);
        assert_eq!(ledger.pages().unwrap(), LEDGER.map(|(number, _)| number));
    }
}
