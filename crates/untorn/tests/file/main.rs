//! Files with an engine, and plain memory over them: the contract, recovery, limits, hostile bytes.

#[path = "../common/mod.rs"]
mod common;

mod adopt;
mod ahead;
mod clean_bits;
mod closed;
mod commit_consumers;
mod commit_log;
mod commit_numbers;
mod concurrent;
mod copies;
mod counts;
mod crafted;
mod cut_short;
mod forged;
mod full_disk_crash;
mod golden;
mod hostile;
mod hostile_length;
mod hybrid_log;
mod hybrid_log_claims;
mod hybrid_log_costs;
mod hybrid_log_full;
mod hybrid_log_golden;
mod hybrid_log_hostile;
mod hybrid_log_inline;
mod hybrid_log_kill;
mod hybrid_log_reads;
mod hybrid_log_refusals;
mod hybrid_log_storm;
mod hybrid_log_trouble;
mod leftovers;
mod limits;
mod log_size;
mod looks;
mod map;
mod map_beside_stores;
mod map_misuse;
mod map_sparse;
mod media;
mod model;
mod opening;
mod planted;
mod planted_owners;
mod refusals;
mod shadow;
mod sigbus;
mod snapshot;
mod snapshot_map;
mod snapshot_readers;
mod space;
mod strangers;
mod threads;

#[global_allocator]
static ALLOC: common::system::CountingAlloc = common::system::CountingAlloc;
