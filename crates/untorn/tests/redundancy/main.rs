//! Checksums and parity: of plain files, of mappings, and of files with an engine.

#[path = "../common/mod.rs"]
mod common;

mod covered;
mod covered_sidecar;
mod protected;
mod protected_forged;
mod protected_kill;
mod protected_synchronous;
mod protected_told;
mod protected_trouble;
mod protected_untold;
mod redundancy_golden;
