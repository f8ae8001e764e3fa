//! Region stores and mapped regions.

#[path = "../common/mod.rs"]
mod common;

mod region;
mod region_commits;
mod region_golden;
mod region_hostile;
mod region_many;
mod region_map;
mod region_million;
mod region_model;
mod region_snapshot;

#[global_allocator]
static ALLOC: common::system::CountingAlloc = common::system::CountingAlloc;
