//! The simulated medium and the crash explorer.

mod cached_commit_log;
mod commit_consumers;
mod commit_log;
mod common;
mod explore;
mod fault_model;
mod faults;
mod full_disk;
mod lengths;
mod lost_flush;
mod redundancy;
mod region_commits;
mod regions;
mod resized;
mod schedule;
mod unreadable;
