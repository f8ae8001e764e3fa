//! Memory-mapped files that never tear.
//!
//! untorn gives *failure atomicity* to file I/O: after any crash a file holds exactly the state of its last commit,
//! never a mixture, on persistent memory and on ordinary disks, on a stock kernel.
//!
//! - [`AtomicFile`]: copy in, copy out; each write atomic, over any number of pages.
//! - [`AtomicMap`]: plain loads and stores into memory, committed together.
//! - [`SharedMap`]: the same for several processes, with one commit for the stores of all.
//! - [`WriteCache`]: a log on a fast medium in front of many ordinary files.
//! - [`Transaction`]: writes to any ranges that commit together.
//! - [`Options`]: engine, durability, layout.
//! - [`Protected`]: checksums and parity for a plain file or a mapping of one's own, [`Options::redundancy`] for a file with an
//!   engine; [`protect`](protect()), [`scrub`](scrub()), [`repair`](repair()).
//! - [`inspect`], [`recover`]: look at a file without changing it; bring it to its last commit.
//! - [`doctor`]: what can be promised at a path, and why.
//!
//! What a commit promises, and against which faults, is in `docs/fault-model.md`; the bytes are in `docs/format.md`.
//!
//! ```
//! # fn main() -> untorn::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("ledger");
//! let file = untorn::AtomicFile::create(&path, 1 << 20)?;
//! file.write_at(b"all of this or none of it", 4090)?; // across a page boundary
//! file.sync()?;
//! file.close()?;
//! # Ok(()) }
//! ```
#![deny(unsafe_code)]

mod doctor;
mod engine;
mod error;
mod file;
mod format;
mod ipc;
mod open;
mod options;
mod redundancy;
mod region;
mod shared;
pub mod simd;
pub mod storage;
mod sync;
mod sys;
#[doc(hidden)]
pub mod testing;
mod write_cache;

pub use doctor::{Diagnosis, doctor};
pub use engine::{EngineKind, Info, Piece, Recovery, Report, SidecarReport, State};
pub use error::{Error, Result};
pub use file::{AtomicFile, AtomicMap, Transaction, inspect};
pub use open::recover;
pub use open::redundancy::{protect, repair};
pub use options::{
    Checksum, Damage, DirtyTracking, Durability, Layout, LogPolicy, LostPage, Options, Order, PageRange, Progress,
    ProgressFn, ProtectOptions, ReadPolicy, StripeLayout, Trust, VerifyReads,
};
pub use redundancy::protect::{Protected, Record, Stores, coverage, recorded, recorded_on, scrub, track, unprotect};
pub use redundancy::{Coverage, History, RepairReport, ScrubFindings, ScrubReport, Scrubbing, Tracker};
pub use region::{
    Audit, Region, RegionInfo, RegionMap, RegionMapOptions, RegionStore, SharedRegion, StoreInfo, StoreOptions,
};
pub use shared::SharedMap;
pub use write_cache::{
    CacheInfo, CacheOptions, CachedFile, Descriptor, Fate, Kernel, MadeLike, Named, OnMedium, Replay, ReplayedFile,
    SharedLog, SlowFile, SlowPlace, Step, WriteCache, logs_in, look_into_log, replay,
};
