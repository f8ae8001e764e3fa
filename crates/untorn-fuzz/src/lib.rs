//! Hostile bytes: what the fuzz targets do with the bytes they are given.
//!
//! The targets themselves are one line each (`fuzz/fuzz_targets`), so that what a fuzzer found is replayed by a plain
//! test on a stable compiler. `manifest` runs over files and `replica` over objects in memory, and all others over the
//! simulated medium, whose file system lives in memory: the engine is the one that ships, and a case takes a fraction
//! of a millisecond.
//!
//! A target panics where untorn is wrong. Bytes that decode to nothing sensible are fine: every input is a case.
#![forbid(unsafe_code)]

mod commits;
mod companion;
mod forge;
mod hybrid;
mod input;
mod judge;
mod log;
mod manifest;
mod operations;
mod pair;
mod regions;
mod replica;
mod seeds;

pub use commits::commits;
pub use companion::companion;
use forge::Kind;
pub use log::log;
pub use manifest::manifest;
pub use operations::operations;
pub use regions::regions;
pub use replica::replica;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of the program in `fuzz/fuzz_targets` and of the directory in `fuzz/corpus`.
    pub name: &'static str,
    /// Judges one input.
    ///
    /// # Panics
    /// Where untorn is wrong.
    pub run: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 11] = [
    Target { name: "superblock", run: superblock, seeds: || seeds::forged(1, &SUPERBLOCK) },
    Target { name: "records", run: records, seeds: || seeds::forged(1, &RECORDS) },
    Target { name: "sidecar", run: sidecar, seeds: || seeds::forged(1, &SIDECAR) },
    Target { name: "operations", run: operations, seeds: seeds::operations },
    Target { name: "companion", run: companion, seeds: seeds::companions },
    Target { name: "log", run: log, seeds: seeds::logs },
    Target { name: "regions", run: regions, seeds: seeds::regions },
    Target { name: "hybrid", run: hybrid, seeds: || seeds::forged(6, &HYBRID) },
    Target { name: "manifest", run: manifest, seeds: seeds::manifests },
    Target { name: "commits", run: commits, seeds: seeds::commits },
    Target { name: "replica", run: replica, seeds: seeds::replicas },
];

const SUPERBLOCK: [Kind; 3] = [Kind::Superblock, Kind::Retirement, Kind::RawHead];
const RECORDS: [Kind; 3] = [Kind::Record, Kind::RawLane, Kind::RawSpill];
const SIDECAR: [Kind; 12] = [
    Kind::Superblock,
    Kind::Retirement,
    Kind::RawHead,
    Kind::Record,
    Kind::RawLane,
    Kind::RawSpill,
    Kind::Slot,
    Kind::Bitmap,
    Kind::Raw,
    Kind::Length,
    Kind::Data,
    Kind::Mark,
];
const HYBRID: [Kind; 12] = [
    Kind::Superblock,
    Kind::Retirement,
    Kind::RawHead,
    Kind::Line,
    Kind::Line,
    Kind::Epoch,
    Kind::Epoch,
    Kind::RawLane,
    Kind::Raw,
    Kind::Length,
    Kind::Data,
    Kind::Mark,
];

/// Superblocks and retirement lines with any field changed, sealed anew or not.
pub fn superblock(bytes: &[u8]) {
    forge::run(bytes, &pair::PAIRS, &SUPERBLOCK);
}

/// Records of any shape, in the lanes and in the spill file, sealed for their place or not.
pub fn records(bytes: &[u8]) {
    forge::run(bytes, &pair::PAIRS, &RECORDS);
}

/// A whole sidecar with anything changed in it, and in what stands around it.
pub fn sidecar(bytes: &[u8]) {
    forge::run(bytes, &pair::PAIRS, &SIDECAR);
}

/// The sidecar of a hybrid log on persistent memory with anything changed in it, and what stands around it.
pub fn hybrid(bytes: &[u8]) {
    forge::run(bytes, &pair::LOGS, &HYBRID);
}
