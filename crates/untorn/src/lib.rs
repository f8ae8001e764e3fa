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

mod cache;
mod doctor;
pub mod engine;
mod error;
mod file;
mod inspect;
mod log;
mod map;
mod mapped;
pub mod medium;
mod options;
mod protected;
mod redundancy;
mod region;
mod sharing;
mod sidecar;
pub mod simd;
mod sys;
mod transaction;
mod write_cache;

pub use doctor::{Diagnosis, doctor};
pub use engine::{EngineKind, Info, Piece, Recovery, Report, SidecarReport, State};
pub use error::{Error, Result};
pub use file::AtomicFile;
pub use inspect::{inspect, recover};
pub use map::{AtomicMap, RegionMap, RegionMapOptions, SharedMap, SharedRegion};
pub use mapped::{MappedFiles, Mapping, Place, View};
pub use options::{
    Checksum, Damage, DirtyTracking, Durability, Layout, LogPolicy, LostPage, Options, Order, PageRange, Progress,
    ProgressFn, ProtectOptions, ReadPolicy, StripeLayout, Trust, VerifyReads,
};
pub use protected::{
    Protected, Record, Stores, coverage, protect, recorded, recorded_on, repair, scrub, track, unprotect,
};
pub use redundancy::{Coverage, History, RepairReport, ScrubFindings, ScrubReport, Scrubbing, Tracker};
pub use region::{Audit, Region, RegionInfo, RegionStore, StoreInfo, StoreOptions};
/// For the C library, which has state of a process, too, and no place among the promises of this crate.
#[doc(hidden)]
pub use sys::{FirstUse, OnceForAll, PerProcess};
/// For `untorn run`, likewise.
#[doc(hidden)]
pub use sys::{Heard, StoreWatch};
pub use transaction::Transaction;
pub use write_cache::{
    CacheInfo, CacheOptions, CachedFile, Fate, Replay, ReplayedFile, SharedLog, Step, WriteCache, logs_in,
    look_into_log, replay,
};
