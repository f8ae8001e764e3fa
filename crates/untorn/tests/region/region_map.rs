//! Mapped regions where something goes wrong: a fork, a full disk.

use crate::common::system::{allocations, first_untold, in_forked_child};
use crate::common::{alone, limit, methods, new_region, page_tables, scratch};
use untorn::Error;
use untorn::region::{Region, RegionMapOptions, StoreOptions};

const PAGE: u64 = Region::PAGE;

fn first_byte(region: &Region, number: u64) -> u8 {
    let mut bytes = [0; 4096];
    region.read_page(number, &mut bytes).unwrap();
    bytes[0]
}

#[test]
fn a_forked_child_has_a_copy_of_a_mapped_region_and_is_told() {
    alone!(60, "a forked child");
    let (_path, store, region) = new_region(&StoreOptions::new().max_regions(4));
    let mut map = region.map().unwrap();
    map.alloc_pages(3).unwrap();
    map.pmsync().unwrap();
    let pointer = map.pin(0, 1).unwrap().addr();
    map.page_mut(0).unwrap()[0] = 1;
    let child = in_forked_child(|| {
        let outcomes = [
            map.pmsync().map(drop),
            map.rollback(),
            map.page(0).map(drop),
            map.page_mut(2).map(drop),
            map.pin(1, 1).map(drop),
            map.unpin(0, 1),
            map.alloc_page().map(drop),
            map.free_page(2),
            map.pages().map(drop),
            map.info().map(drop),
        ];
        first_untold(&outcomes, None)
    });
    assert_eq!(child.wait(), Some(0), "the number of the call that did not say so");
    assert_eq!((map.pmsync().unwrap(), map.pin(0, 1).unwrap().addr()), (2, pointer));
    drop(map);
    assert_eq!(first_byte(&store.open_region("r").unwrap(), 0), 1);
}

/// However many pages are asked for, the first that is not there ends it.
#[test]
fn a_range_far_beyond_what_is_allocated_is_refused_at_once() {
    let _limit = limit(60, "many ranges of pages that are not there");
    let (_path, _store, region) = new_region(&StoreOptions::new().max_regions(4));
    let mut map = region.map().unwrap();
    map.alloc_pages(3).unwrap();
    for _ in 0..1000 {
        assert!(matches!(map.bytes(0, 1 << 36), Err(Error::Invalid { .. })));
        assert!(matches!(map.pin(3, 1 << 23), Err(Error::Invalid { .. })));
    }
}

/// A mapped region commits as any other does, so a full disk loses nothing of what was stored to it.
#[test]
fn a_mapped_region_that_cannot_grow_keeps_its_stores() {
    let options = StoreOptions::new().max_regions(4).max_len(40 * PAGE).grow_by(PAGE);
    let (_path, store, region) = new_region(&options);
    let mut map = region.map().unwrap();
    map.alloc_pages(100).unwrap();
    for number in 0..100 {
        map.page_mut(number).unwrap()[0] = number as u8;
    }
    assert!(matches!(map.pmsync(), Err(Error::Io { .. })));
    for number in 10..100 {
        map.free_page(number).unwrap();
    }
    assert_eq!(map.pmsync().unwrap(), 1);
    drop(map);
    let region = store.open_region("r").unwrap();
    assert_eq!(region.pages().unwrap().len(), 10);
    assert!((0..10).all(|number| first_byte(&region, number) == number as u8));
}

/// Ten tebibytes of address space, of which almost nothing is touched.
#[test]
fn a_long_mapped_region_takes_page_tables_for_what_is_touched() {
    alone!(120, "a long mapped region");
    const PAGES: u64 = 10 << 28;
    const TOUCHED: u64 = 16;
    let path = scratch("store");
    let store = StoreOptions::new().max_regions(4).create(&path).unwrap();
    let region = store.create_region_of("long", PAGES).unwrap();
    for method in methods() {
        let before = page_tables();
        let mut map = RegionMapOptions::new().reserve(PAGES * PAGE).dirty_tracking(method).map(&region).unwrap();
        let taken = || page_tables().saturating_sub(before);
        assert!(taken() < 1 << 10, "{method}: untouched it takes {} KiB", taken());
        for nth in 0..TOUCHED {
            let page = PAGES / TOUCHED * nth;
            if !map.pages().unwrap().contains(&page) {
                map.alloc_at(page, 1).unwrap();
            }
            map.page_mut(page).unwrap()[0] = nth as u8;
        }
        map.pmsync().unwrap();
        assert!(taken() < 1024 + 64 * TOUCHED, "{method}: {TOUCHED} pages take {} KiB", taken());
        let last = PAGES / TOUCHED * (TOUCHED - 1);
        assert_eq!(map.page(last).unwrap()[0], TOUCHED as u8 - 1);
    }
}

#[test]
fn a_typed_view_of_a_mapped_region_allocates_nothing() {
    let (_path, _store, region) = new_region(&StoreOptions::new().max_regions(4));
    let mut map = region.map().unwrap();
    map.alloc_pages(2).unwrap();
    map.page_mut(0).unwrap()[0] = 1;
    map.page_mut(1).unwrap()[0] = 1;
    let before = allocations();
    for round in 0..100_u64 {
        *map.view_mut::<u64>(round * 8).unwrap() = round;
        map.slice_of_mut::<u32>(PAGE, 4).unwrap()[3] = 7;
        assert_eq!(*map.view::<u64>(round * 8).unwrap(), round);
    }
    assert_eq!(allocations() - before, 0);
    assert!(matches!(map.view_mut::<u64>(3), Err(Error::Invalid { .. })));
    assert!(matches!(map.slice_of_mut::<u64>(3, 2), Err(Error::Invalid { .. })));
}
