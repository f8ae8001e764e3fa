//! Redundancy of files that are open with an engine.

use crate::engine::{Engine, Shared};
use crate::error::{Error, Result};
use crate::file::AtomicFile;
use crate::map::AtomicMap;
use crate::redundancy::{Coverage, RepairReport, Scrub, ScrubReport, Service, scrub_and_note};

/// Has what is damaged stay so when the file is closed.
pub(super) fn leave_damage(file: &AtomicFile) -> Result<()> {
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
