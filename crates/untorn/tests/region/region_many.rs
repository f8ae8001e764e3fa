//! More mapped regions than the addresses of a process would have room for at a terabyte each. In a process of their
//! own.

use crate::common::{alone, memory_dir};
use untorn::region::RegionStore;

/// Three descriptors each, of the 1024 that a process commonly may have.
const REGIONS: usize = 300;

#[test]
fn hundreds_of_regions_can_be_mapped_at_once() {
    alone!(60, "hundreds of mapped regions");
    let dir = memory_dir();
    let store = RegionStore::create(dir.path().join("store")).unwrap();
    let far = 1 << 20;
    let mut maps = Vec::new();
    for number in 0..REGIONS {
        let mut map = store.create_region(&format!("r{number}")).unwrap().map().unwrap();
        map.alloc_at(far, 1).unwrap();
        map.page_mut(far).unwrap()[0] = number as u8;
        maps.push(map);
    }
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split(' ').next().unwrap().parse().unwrap();
    assert!(pages * 4096 < 1 << 46, "half of the addresses are left to the program");
    for (number, map) in maps.iter_mut().enumerate() {
        assert_eq!((map.page(far).unwrap()[0], map.pmsync().unwrap()), (number as u8, 1));
    }
}
