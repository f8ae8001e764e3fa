//! The redundancy of files that are open with an engine: the operations that need both a file and its redundancy.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::adopt::adopt;
use super::bare_engine_on;
use crate::engine::{Engine, Shared, State};
use crate::error::{Error, ProtectionProblem, Result};
use crate::file::{AtomicFile, AtomicMap, inspect};
use crate::format::sidecar;
use crate::format::sidecar::adopt::Relocation;
use crate::format::sidecar::redundancy::beside;
use crate::options::{Options, ProtectOptions};
pub(super) use crate::redundancy::TICK;
use crate::redundancy::protect::{coverage as coverage_of, look};
use crate::redundancy::{
    self as redundant, Coverage, Mode, RedundancyService, RepairReport, Scrub, ScrubReport, scrub_and_note,
};
use crate::storage::{self, Medium};

/// The engine of a file, with its redundancy if it has any or is to.
pub(super) fn engine_on<M: Medium>(
    medium: Arc<M>,
    path: &Path,
    options: &Options,
    tick: Duration,
) -> Result<Box<dyn Engine>> {
    adopt(&medium, path, options)?;
    match redundant::engine::watch(&medium, path, options)? {
        None if options.verify_reads.is_some() => Err(unverifiable(path)),
        None => bare_engine_on(medium, path, options, false),
        Some(watched) => {
            // Closing compares the sidecar with its checksums before anything goes home.
            let bare = options.clone().deploy_ahead(None);
            let open = |medium| bare_engine_on(medium, path, &bare, true);
            let engine = redundant::engine::open(watched, options, tick, open)?;
            Ok(Box::new(engine))
        }
    }
}

fn unverifiable(path: &Path) -> Error {
    let what = "reads cannot be verified because the file has no redundancy; protect it (`untorn protect`), or open it \
                with `Options::redundancy`";
    Error::Invalid { path: path.to_owned(), what: what.to_owned() }
}

/// Refuses options that the redundancy which comes with an adopted sidecar cannot fulfil. Changes nothing.
pub(super) fn refuse_adopted<M: Medium>(
    medium: &M,
    path: &Path,
    data: &M::File,
    options: &Options,
    found: &Relocation<M::File>,
) -> Result<()> {
    let settings = options.redundancy.as_ref().map(|redundancy| redundancy.settings).unwrap_or_default();
    let comes = match &found.redundancy {
        Some(file) => redundant::check_settings(path, &beside(&found.from), file, data, &settings)?,
        // A crash in the middle of an earlier adoption leaves it at its place already.
        None => redundant::check_settings_at(medium, path, &beside(&found.to), data, &settings)?,
    };
    let is_wanted = comes || options.redundancy.is_some();
    if options.verify_reads.is_some() && !is_wanted { Err(unverifiable(path)) } else { Ok(()) }
}

/// The redundancy of an open file.
fn kept(shared: &Shared) -> Result<&dyn RedundancyService> {
    let engine: &dyn Engine = &*shared.engine;
    engine.redundancy().ok_or_else(|| {
        let what = "this handle keeps no redundancy of the file; open it for writing with `Options::redundancy`";
        Error::Invalid { path: engine.path().to_owned(), what: what.to_owned() }
    })
}

/// The calls of a handle, with what is said of this kind of handle alone.
macro_rules! calls_of {
    ($handle:ident: $(#[$sync:meta])+ sync, $(#[$scrub:meta])+ scrub, $(#[$repair:meta])+ repair) => {
        impl $handle {
            $(#[$sync])+
            ///
            /// # Errors
            /// [`Error::Invalid`] if this handle keeps no [redundancy](crate::Options::redundancy), for example because
            /// another process has the shared file open. Errors of reading, writing and flushing; after one of them
            /// nothing more is promised.
            pub fn sync_redundancy(&self) -> Result<()> {
                kept(self.shared())?.cover().map(drop)
            }

            /// Sets another [period](crate::redundancy::ProtectOptions::period); see
            /// [`Protected::set_period`](crate::redundancy::Protected::set_period).
            ///
            /// # Errors
            /// [`Error::Invalid`] if this handle keeps no redundancy, for a period of 0, and for a file that was opened
            /// with one.
            pub fn set_redundancy_period(&self, period: Duration) -> Result<()> {
                kept(self.shared())?.set_period(period)
            }

            /// Sets another [cap](crate::redundancy::ProtectOptions::max_uncovered) on uncovered pages, or takes it
            /// away.
            ///
            /// # Errors
            /// [`Error::Invalid`] if this handle keeps no redundancy, and for a file that was opened with a period of
            /// 0.
            pub fn set_max_uncovered(&self, pages: Option<u64>) -> Result<()> {
                kept(self.shared())?.set_max_uncovered(pages)
            }

            /// How much is covered now; `None` if this handle keeps no [redundancy](crate::Options::redundancy).
            ///
            /// # Errors
            /// [`Error::Poisoned`] after a failure, [`Error::Protection`] for an empty file.
            pub fn coverage(&self) -> Result<Option<Coverage>> {
                self.shared().engine.redundancy().map(|kept| kept.coverage()).transpose()
            }

            $(#[$scrub])+
            ///
            /// # Errors
            /// [`Error::Invalid`] if this handle keeps no redundancy; errors of reading. Damage is not an error: it is
            /// in the report.
            pub fn scrub(&self) -> Result<ScrubReport> {
                self.scrub_with(None, &mut |_, _| true)
            }

            /// Like [`scrub`](Self::scrub), but reads at most `rate` bytes of the file per second and calls `progress`
            /// now and then with the bytes read and the total. If `progress` returns `false`, the scrub ends. It must
            /// not call back into this handle: the call could wait forever.
            ///
            /// # Errors
            /// As for [`scrub`](Self::scrub).
            pub fn scrub_with(
                &self,
                rate: Option<u64>,
                progress: &mut dyn FnMut(u64, u64) -> bool,
            ) -> Result<ScrubReport> {
                scrub_and_note(kept(self.shared())?, Scrub { rate, ..Scrub::telling(progress) })
            }

            $(#[$repair])+
            ///
            /// # Errors
            /// As for [`scrub`](Self::scrub); errors of writing and flushing. Lost pages are in the report.
            pub fn repair(&self) -> Result<RepairReport> {
                self.repair_with(&mut |_, _| true)
            }

            /// Like [`repair`](Self::repair), and calls `progress` now and then with the bytes read and the total.
            /// `progress` must not call back into this handle: the repair locks the file's length, and the call could
            /// wait forever.
            ///
            /// # Errors
            /// As for [`repair`](Self::repair).
            pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
                kept(self.shared())?.repair(Scrub::telling(progress))
            }
        }
    };
}

calls_of!(AtomicFile:
    /// Covers everything stored before the call, in the file and, for the reflection engine, in its sidecar. The hybrid
    /// log is checkpointed first, so that committed bytes that are only in the log are covered too.
    sync,
    /// Reads the data file, and the covered part of the sidecar, as the medium holds them, and compares them with
    /// their checksums and parity; see [`Protected::scrub`](crate::redundancy::Protected::scrub). If the file gets
    /// another length meanwhile, the scrub continues with that length.
    scrub,
    /// [Scrubs](Self::scrub), and repairs the damage. If some of it cannot be repaired, it changes nothing. The file
    /// may be read and written meanwhile.
    repair
);

calls_of!(AtomicMap:
    /// Checkpoints the log and covers the file. Uncommitted stores exist only in memory.
    sync,
    /// Reads the data file as the medium holds it, and compares it with its checksums and parity; see
    /// [`Protected::scrub`](crate::redundancy::Protected::scrub).
    scrub,
    /// [Scrubs](Self::scrub), and repairs the damage. If some of it cannot be repaired, it changes nothing. Pages that
    /// are in memory in their damaged state show the repaired bytes afterwards, except those that were stored to.
    repair
);

/// Creates checksums and parity for a file that no process has open, or brings existing ones up to date. Returns what
/// is covered then. A file with a sidecar is opened with its engine for that, and every later open keeps its
/// redundancy.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// untorn::AtomicFile::create(&path, 1 << 16)?.close()?;
/// let coverage = untorn::protect(&path, &untorn::redundancy::ProtectOptions::new())?;
/// assert_eq!((coverage.pages, coverage.uncovered), (16, 0));
/// # Ok(()) }
/// ```
///
/// # Errors
/// As for [`ProtectOptions::open`], and for [`Options::open`](crate::Options::open) if the file has a sidecar.
pub fn protect(path: impl AsRef<Path>, options: &ProtectOptions) -> Result<Coverage> {
    let path = &storage::resolve(path.as_ref())?;
    let options = options.clone().on_demand();
    if !has_sidecar(path)? {
        let protected = options.open(path)?;
        protected.sync()?;
        let coverage = protected.coverage()?;
        return protected.close().map(|()| coverage);
    }
    let file = Options::new().redundancy(options).open(path)?;
    file.sync_redundancy()?;
    let coverage = file.coverage()?;
    file.close()?;
    coverage.ok_or_else(|| Error::InUse { path: path.clone(), holder: "another process".to_owned() })
}

fn has_sidecar(path: &Path) -> Result<bool> {
    let sidecar = sidecar::path(path, storage::detect(path)?.identity.inode);
    sidecar.try_exists().map_err(|error| Error::io("look for", &sidecar, error))
}

/// Repairs a protected file that no process has open; see [`Protected::repair`](crate::redundancy::Protected::repair).
///
/// A file with a sidecar is opened with its engine for that, except if it was closed cleanly and has no damage, or more
/// damage than parity can repair: then the call changes nothing. If it was not closed cleanly, it is recovered first.
/// Recovery stores to the file, and repairs the sidecar pages that it needs. If pages are still damaged then and some
/// of them are lost, the call changes nothing more. A file with a sidecar may be read twice, with progress of both
/// passes.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// untorn::redundancy::Protected::open(&path)?.close()?;
/// let report = untorn::repair(&path, &mut |done, of| { eprintln!("{done} of {of}"); true })?;
/// assert!(report.scrub.is_clean() && report.repaired.is_empty());
/// # Ok(()) }
/// ```
///
/// # Errors
/// As for [`scrub()`](crate::scrub()); errors of writing and flushing.
pub fn repair(path: impl AsRef<Path>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
    let path = &storage::resolve(path.as_ref())?;
    if !has_sidecar(path)? {
        return look(path, Mode::Look)?.repair_with(progress);
    }
    // Redundancy is not to be made here.
    if coverage_of(path)?.is_none() {
        return Err(Error::protection(path, ProtectionProblem::NotProtected));
    }
    // An engine that opens a file gives back what it finds damaged in its sidecar. So if there is nothing for it to
    // recover, the file is looked at first: who is told that pages are lost has the file as it was.
    if let Ok(looked) = look(path, Mode::Look)
        && let Some(report) = looked.service()?.assess_closed(Scrub::telling(progress))?
    {
        // What is wrong with the sidecar otherwise, its engine tells.
        let is_well = report.scrub.is_clean() && inspect(path)?.state == State::Clean;
        if is_well || !report.is_whole() {
            return Ok(report);
        }
    }
    let file = Options::new().redundancy(ProtectOptions::new().on_demand()).open(path)?;
    let report = file.repair_with(progress)?;
    if !report.is_whole() {
        // Closing the file leaves damaged pages as they are.
        kept(file.shared())?.leave_damage();
    }
    file.close()?;
    Ok(report)
}
