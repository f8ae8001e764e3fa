//! Unmodified programs under `untorn run`.

#[path = "../common/mod.rs"]
mod common;

mod run;
mod run_boost;
mod run_boost_directories;
mod run_boost_rename;
mod run_exec;
mod run_lives;
mod run_mapped;
mod run_report;
mod run_unseen;
