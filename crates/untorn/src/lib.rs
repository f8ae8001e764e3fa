//! Memory-mapped files that never tear.
//!
//! untorn gives *failure atomicity* to file I/O: after any crash a file holds exactly the state of its last commit,
//! never a mixture, on persistent memory and on ordinary disks, on a stock kernel.
//!
//! - [`AtomicFile`]: copy in, copy out; each write atomic, over any number of pages. A [`Transaction`] gathers writes
//!   to any ranges that commit together.
//! - [`AtomicMap`]: plain loads and stores into memory, committed together.
//! - [`Options`]: engine, durability, layout; the rest of its words are in [`options`].
//! - [`inspect`], [`recover`]: look at a file without changing it; bring it to its last commit. [`doctor`](doctor()):
//!   what can be promised at a path, and why. What they tell is in [`report`].
//! - [`protect`], [`scrub`], [`repair`], [`coverage`], [`unprotect`]: checksums and parity of a file, by its path.
//!
//! Each further product has a module:
//! - [`region`]: named sets of pages in one store, each committed as a whole.
//! - [`shared`]: a file as plain memory of several processes.
//! - [`write_cache`]: a log on a fast medium in front of many ordinary files.
//! - [`redundancy`]: checksums and parity for a plain file, a mapping of one's own, or ([`Options::redundancy`]) a
//!   file with an engine.
//!
//! What a commit promises, and against which faults, is in `docs/fault-model.md`; the bytes are in `docs/format.md`.
//!
//! # Features
//!
//! All are on by default. Each can be left out, in any combination.
//!
//! | feature | gives | without it |
//! |---|---|---|
//! | `tracing` | events for what no error reports, such as a failed close in a drop | no events |
//! | `io-uring` | one system call that flushes a file and its sidecar | a helper thread flushes the sidecar |
//! | `regions` | the module [`region`] | no region stores |
//! | `write-cache` | the module [`write_cache`] | no logs in front of files |
//! | `redundancy` | the module [`redundancy`], [`Options::redundancy`], [`protect`] and its like | see below |
//!
//! Without `redundancy` a file that has redundancy opens only [`read_only`](Options::read_only). Any other open of it
//! fails with [`Error::Invalid`], since its stores would make the checksums wrong.
//!
//! The feature `metrics` is off by default. It counts, for the recorder of the crate
//! [`metrics`](https://docs.rs/metrics) that is installed when a file is opened, with the label `file`:
//!
//! | metric | counts |
//! |---|---|
//! | `untorn_commits_total`, `untorn_commit_seconds` | commits, and a histogram of how long each took |
//! | `untorn_writes_total`, `untorn_written_bytes_total` | atomic writes, and their bytes |
//! | `untorn_stored_bytes_total` | bytes stored to the data file and its sidecar for them |
//! | `untorn_fences_total`, `untorn_flushes_total` | fences, and flushes of a file or a directory |
//! | `untorn_commit`, `untorn_len`, ... | a gauge for each of the [`Figures`](report::Figures), once a second at most |
//!
//! A build without it pays nothing: what counts is a layer of its own.
//!
//! # Example
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
#![cfg_attr(docsrs, feature(doc_cfg))]
// The lower floors serve every product. Without one of them some items there have no user; the default features have
// all users, so a warning of theirs is true.
#![cfg_attr(
    not(all(feature = "regions", feature = "write-cache", feature = "redundancy")),
    allow(dead_code, unused_imports, unreachable_pub)
)]

// Gives the macros of `no_tracing`, at the root of this crate, the names that those of the crate `tracing` have.
#[cfg(not(feature = "tracing"))]
extern crate self as tracing;

pub mod backup;
mod doctor;
mod engine;
mod error;
mod file;
mod format;
mod ipc;
#[cfg(not(feature = "tracing"))]
mod no_tracing;
mod open;
pub mod options;
#[cfg(feature = "redundancy")]
pub mod redundancy;
#[cfg(feature = "regions")]
pub mod region;
pub mod shared;
mod simd;
mod stats;
mod storage;
mod sync;
mod sys;
#[doc(hidden)]
pub mod testing;
#[cfg(feature = "write-cache")]
pub mod write_cache;

pub use doctor::doctor;
pub use engine::snapshot::{Snapshot, SnapshotMap};
pub use error::{Error, Result};
pub use file::{AtomicFile, AtomicMap, Transaction, inspect};
#[cfg(feature = "redundancy")]
pub use open::redundancy::{protect, repair};
pub use open::{commits, prune, recover};
pub use options::{Durability, EngineKind, Options};
#[cfg(feature = "redundancy")]
pub use redundancy::protect::{coverage, repair_modified, scrub, unprotect};
pub use stats::{Stats, stats};

#[cfg(not(feature = "tracing"))]
#[allow(unused_imports, reason = "which levels are used depends on the other features")]
pub(crate) use no_tracing::{event as debug, event as error, event as info, event as trace, event as warn};

/// What is told of a file and of where it lies.
pub mod report {
    pub use crate::doctor::Diagnosis;
    pub use crate::engine::commits::consumer::ConsumerInfo;
    pub use crate::engine::commits::state::CommitLogInfo;
    pub use crate::engine::figures::Figures;
    pub use crate::engine::snapshot::{HeldSnapshots, SnapshotInfo};
    pub use crate::engine::{Info, LastCommit, Recovery, Report, SidecarReport, State};
    pub use crate::error::{FileKind, ProtectionProblem};
    pub use crate::format::sidecar::leftovers::LeftoverKind;
    pub use crate::open::leftovers::Leftover;
    pub use crate::storage::MediumKind;
}

/// The programs of the book, as doctests.
#[cfg(all(doctest, feature = "default"))]
mod book {
    #[doc = include_str!("../../../book/src/guides/backup.md")]
    pub struct Backup;
    #[doc = include_str!("../../../book/src/guides/commits.md")]
    pub struct Commits;
    #[doc = include_str!("../../../book/src/guides/map.md")]
    pub struct Map;
    #[doc = include_str!("../../../book/src/guides/processes.md")]
    pub struct Processes;
    #[doc = include_str!("../../../book/src/guides/redundancy.md")]
    pub struct Redundancy;
    #[doc = include_str!("../../../book/src/guides/regions.md")]
    pub struct Regions;
    #[doc = include_str!("../../../book/src/guides/snapshots.md")]
    pub struct Snapshots;
    #[doc = include_str!("../../../book/src/guides/update.md")]
    pub struct Update;
    #[doc = include_str!("../../../book/src/guides/write-cache.md")]
    pub struct WriteCache;
    #[doc = include_str!("../../../book/src/introduction.md")]
    pub struct Introduction;
}
