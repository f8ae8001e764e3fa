//! Redundancy of files that are open with an engine: what takes both the file and its redundancy.

use std::path::Path;

use crate::engine::{Engine, Shared, State};
use crate::error::{Error, Result};
use crate::file::{AtomicFile, AtomicMap, inspect};
use crate::format::sidecar;
use crate::options::{Options, ProtectOptions};
use crate::redundancy::protect::{coverage as coverage_of, look};
use crate::redundancy::{Coverage, Mode, RepairReport, Scrub, ScrubReport, Service, scrub_and_note};
use crate::storage;

/// Has what is damaged stay so when the file is closed.
fn leave_damage(file: &AtomicFile) -> Result<()> {
    kept(file.shared()).map(|kept| kept.leave_damage())
}

/// The redundancy of an open file.
fn kept(shared: &Shared) -> Result<&dyn Service> {
    let engine: &dyn Engine = &*shared.engine;
    engine.redundancy().ok_or_else(|| {
        let what = "no redundancy is kept of it by this handle; open it for writing with `Options::redundancy`";
        Error::Invalid { path: engine.path().to_owned(), what: what.to_owned() }
    })
}

fn coverage(shared: &Shared) -> Result<Option<Coverage>> {
    shared.engine.redundancy().map(|kept| kept.coverage()).transpose()
}

fn scrub(shared: &Shared, rate: Option<u64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
    scrub_and_note(kept(shared)?, Scrub { rate, ..Scrub::telling(progress) })
}

impl AtomicFile {
    /// Covers what was stored to before the call, in the file and, of the reflection engine, in its sidecar. Of the hybrid log,
    /// what is committed and in the log only is brought home before.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a file of which this handle keeps no [redundancy](crate::Options::redundancy), as one that is shared
    /// and open in another process; those of reading, writing and flushing, after which nothing more is promised.
    pub fn sync_redundancy(&self) -> Result<()> {
        kept(self.shared())?.cover().map(drop)
    }

    /// What is covered now; `None` if this handle keeps no [redundancy](crate::Options::redundancy).
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure, [`Error::Invalid`] for an empty file.
    pub fn coverage(&self) -> Result<Option<Coverage>> {
        coverage(self.shared())
    }

    /// Reads the data file as the medium holds it, and what of the sidecar is covered, and compares them with their checksums and
    /// parity; see [`Protected::scrub`](crate::Protected::scrub). If the file is given another length meanwhile, it goes on with that, to its end.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this handle keeps no redundancy; those of reading. Damage is not an error: it is in the report.
    pub fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_with(None, &mut |_, _| true)
    }

    /// The same, reading at most `rate` bytes of the file in a second, and telling now and then how many of how many bytes were read;
    /// `false` from `progress` ends it. It must not call back into this file: the call may wait for ever.
    ///
    /// # Errors
    /// As there.
    pub fn scrub_with(&self, rate: Option<u64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        scrub(self.shared(), rate, progress)
    }

    /// [Scrubs](AtomicFile::scrub), and repairs what can be repaired, unless some of it cannot be: then nothing is touched. The
    /// file may be read and written meanwhile.
    ///
    /// # Errors
    /// As there, and those of writing and flushing. What is lost is in the report.
    pub fn repair(&self) -> Result<RepairReport> {
        self.repair_with(&mut |_, _| true)
    }

    /// The same, telling now and then how many of how many bytes were read. `progress` must not call back into this file: its
    /// length is held meanwhile, and the call may wait for ever.
    ///
    /// # Errors
    /// As there.
    pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
        kept(self.shared())?.repair(Scrub::telling(progress))
    }
}

impl AtomicMap {
    /// Brings home what is committed and in the log, and covers it. What is not committed is in memory only.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a map of whose file no [redundancy](crate::Options::redundancy) is kept; those of reading, writing
    /// and flushing, after which nothing more is promised.
    pub fn sync_redundancy(&self) -> Result<()> {
        kept(self.shared())?.cover().map(drop)
    }

    /// What is covered now; `None` if no [redundancy](crate::Options::redundancy) is kept.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after a failure, [`Error::Invalid`] for an empty file.
    pub fn coverage(&self) -> Result<Option<Coverage>> {
        coverage(self.shared())
    }

    /// Reads the data file as the medium holds it, and compares it with its checksums and parity; see
    /// [`Protected::scrub`](crate::Protected::scrub).
    ///
    /// # Errors
    /// [`Error::Invalid`] if no redundancy is kept; those of reading. Damage is not an error: it is in the report.
    pub fn scrub(&self) -> Result<ScrubReport> {
        self.scrub_with(None, &mut |_, _| true)
    }

    /// The same, reading at most `rate` bytes of the file in a second, and telling now and then how many of how many bytes were read;
    /// `false` from `progress` ends it. It must not call back into this map: the call may wait for ever.
    ///
    /// # Errors
    /// As there.
    pub fn scrub_with(&self, rate: Option<u64>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<ScrubReport> {
        scrub(self.shared(), rate, progress)
    }

    /// [Scrubs](AtomicMap::scrub), and repairs what can be repaired, unless some of it cannot be: then nothing is touched.
    /// Pages that are in memory as they were damaged are seen repaired too, save those that were stored to.
    ///
    /// # Errors
    /// As there, and those of writing and flushing. What is lost is in the report.
    pub fn repair(&self) -> Result<RepairReport> {
        self.repair_with(&mut |_, _| true)
    }

    /// The same, telling now and then how many of how many bytes were read. `progress` must not call back into this map: the call may
    /// wait for ever.
    ///
    /// # Errors
    /// As there.
    pub fn repair_with(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
        kept(self.shared())?.repair(Scrub::telling(progress))
    }
}

/// Gives a file that nobody has open checksums and parity, or brings those it has up to date; what is covered then. A file that
/// has an engine is opened with it for that, and has its redundancy kept by every later opening.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// untorn::AtomicFile::create(&path, 1 << 16)?.close()?;
/// let coverage = untorn::protect(&path, &untorn::ProtectOptions::new())?;
/// assert_eq!((coverage.pages, coverage.uncovered), (16, 0));
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of [`ProtectOptions::open`], and of [`Options::open`](crate::Options::open) for a file with an engine.
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

/// Repairs a protected file that nobody has open; see [`Protected::repair`](crate::Protected::repair). One that has an engine is opened with it for that,
/// unless it was closed and nothing is damaged, or more than parity can give back: then nothing of it is touched. One that was
/// not closed is recovered first, and with that goes what recovery stores, and gives back of the sidecar to believe it; of what is
/// damaged then, nothing more is touched if some of it is lost. A file with an engine may be read twice, with progress of both.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("table");
/// # std::fs::write(&path, vec![7; 1 << 16]).unwrap();
/// untorn::Protected::open(&path)?.close()?;
/// let report = untorn::repair(&path, &mut |done, of| { eprintln!("{done} of {of}"); true })?;
/// assert!(report.scrub.is_clean() && report.repaired.is_empty());
/// # Ok(()) }
/// ```
///
/// # Errors
/// Those of [`scrub()`](crate::scrub()), of writing and of flushing.
pub fn repair(path: impl AsRef<Path>, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<RepairReport> {
    let path = &storage::resolve(path.as_ref())?;
    if !has_sidecar(path)? {
        return look(path, Mode::Look)?.repair_with(progress);
    }
    // Redundancy is not to be made here.
    if coverage_of(path)?.is_none() {
        return Err(Error::io("find the redundancy of", path, rustix::io::Errno::NOENT));
    }
    // An engine that opens a file gives back what it finds damaged in its sidecar. So if there is nothing for it to recover, the file
    // is looked at first: who is told that pages are lost has the file as it was.
    if let Ok(looked) = look(path, Mode::Look)
        && looked.service()?.was_closed()
    {
        let report = looked.service()?.assess(Scrub::telling(progress))?;
        // What is wrong with the sidecar otherwise, its engine tells.
        let is_well = report.scrub.is_clean() && inspect(path)?.state == State::Clean;
        if is_well || !report.is_whole() {
            return Ok(report);
        }
    }
    let file = Options::new().redundancy(ProtectOptions::new().on_demand()).open(path)?;
    let report = file.repair_with(progress)?;
    if !report.is_whole() {
        leave_damage(&file)?;
    }
    file.close()?;
    Ok(report)
}
