//! What a commit of a region costs those who store meanwhile: as `ipc/memory/tests/costs.rs`, over a store.

use super::*;
use crate::ipc::memory::tests::costs;

fn stall(test: &str, writers: usize, stride: usize) {
    let child = |test: &Stage, me| {
        let region = share(&test.dir.join("store"));
        costs::work(&region.copy, test, me, stride);
        region.close().unwrap();
    };
    with_processes(test, memory_dir, child, |test| {
        let store = RegionStore::create(test.dir.join("store")).unwrap();
        let region = store.create_region_of("r", costs::PAGES as u64).unwrap();
        region.alloc_at(0, costs::PAGES as u64).unwrap();
        region.pmsync().unwrap();
        drop(region);
        store.close().unwrap();
        costs::watch("region", test, writers, stride);
    });
}

#[test]
fn the_stall_of_one_writer_to_a_region() {
    stall(this_test!(), 1, 1);
}

#[test]
fn the_stall_of_three_writers_to_a_region() {
    stall(this_test!(), 3, 4);
}
