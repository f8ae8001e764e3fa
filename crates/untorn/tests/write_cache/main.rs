//! The write cache: a log in front of ordinary files.

#[path = "../common/mod.rs"]
mod common;

mod machine;
mod write_cache;
mod write_cache_atomic;
mod write_cache_changed;
mod write_cache_failures;
mod write_cache_full;
mod write_cache_model;
mod write_cache_moved;
mod write_cache_multi_process;
mod write_cache_new;
mod write_cache_removed;
mod write_cache_spill;
mod write_cache_streams;
mod write_cache_through;
mod write_cache_together;
mod write_cache_trust;

#[global_allocator]
static ALLOC: common::system::CountingAlloc = common::system::CountingAlloc;
