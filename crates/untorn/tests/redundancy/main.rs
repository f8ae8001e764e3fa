//! Checksums and parity: of plain files, of mappings, and of files with an engine.

#[path = "../common/mod.rs"]
mod common;

mod costs;
mod covered;
mod covered_sidecar;
mod fixture;
mod growth;
mod pace;
mod power;
mod protected;
mod protected_forged;
mod protected_kill;
mod protected_misuse;
mod protected_notified;
mod protected_synchronous;
mod protected_unannounced;
mod redundancy_golden;
