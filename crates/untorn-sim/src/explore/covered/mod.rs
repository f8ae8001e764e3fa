//! The exploration of files of engines that have redundancy: written, committed, brought home, covered, given
//! other lengths, closed, settled, damaged at rest and repaired.
//!
//! After each crash the exploration checks:
//!
//! - Redundancy says nothing false of what the crash left: it accuses no page, as none was damaged, and all parity
//!   fits the pages that are called covered.
//! - The engine opens the file, finds a state that the writes allow, and finds it covered.
//! - A page that is damaged after that is found and given back under the engine's eyes: a page of the file, or of its
//!   sidecar if that is covered.
//! - A damaged page of a sidecar at rest does not keep its engine from the file, and a damaged page that tells where
//!   bytes are does not deceive recovery.

mod check;
mod config;
mod life;

pub(super) use config::Config;
