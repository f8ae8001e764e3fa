//! The tool and its verbs, as a user runs them.

#[path = "../common/mod.rs"]
mod common;

mod backup;
mod bad_input;
mod bench;
mod book;
mod commits;
mod crash;
mod demo;
mod face;
mod hybrid_log;
mod mount;
mod mount_user;
mod power_cut;
mod protect;
mod region;
mod replay;
mod replicate;
mod snapshots;
mod take_over;
mod torture;
mod verbs;
