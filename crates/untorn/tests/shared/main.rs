//! Files, maps and regions that several processes share.

#[path = "../common/mod.rs"]
mod common;

mod published;
mod shared_file;
mod shared_file_kill;
mod shared_map;
mod shared_map_model;
mod shared_region_model;
mod snapshots;
