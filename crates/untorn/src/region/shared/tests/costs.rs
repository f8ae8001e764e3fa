//! What a commit of a region costs those who store meanwhile: as `sharing/working/tests/costs.rs`, over a store.

use super::*;
use crate::ipc::memory::tests::costs;

fn stall(test: &str, writers: usize, stride: usize) {
    if unavailable() {
        return;
    }
    if let Some((dir, me)) = child_of(test) {
        let region = share(&dir.join("store"));
        costs::work(&region.copy, &dir, me, stride);
        return region.close().unwrap();
    }
    let dir = memory_dir();
    let path = dir.path().join("store");
    let store = RegionStore::create(&path).unwrap();
    let region = store.create_region_of("r", costs::PAGES as u64).unwrap();
    region.alloc_at(0, costs::PAGES as u64).unwrap();
    region.pmsync().unwrap();
    drop(region);
    store.close().unwrap();
    costs::watch("region", "region::shared::tests::costs", test, dir.path(), writers, stride);
}

#[test]
fn the_stall_of_one_writer_to_a_region() {
    stall("the_stall_of_one_writer_to_a_region", 1, 1);
}

#[test]
fn the_stall_of_three_writers_to_a_region() {
    stall("the_stall_of_three_writers_to_a_region", 3, 4);
}
