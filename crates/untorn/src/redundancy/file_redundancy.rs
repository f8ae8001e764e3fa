//! The redundancy of a data file and of its sidecar, as one: what a handle of the file has.

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Coverage, CoveringPace, DamageSender, Redundancy, RedundancyService, RepairReport, Scrub, ScrubReport, TrackedPages,
};
use crate::engine::Engine;
use crate::engine::redundancy::Pace;
use crate::error::{Error, ProtectionProblem, Result};
use crate::storage::Medium;

/// How often a pass looks anew at a file that is cut short while it is brought home.
const TRIES: u32 = 16;

/// The redundancy of one file, over whatever medium it is on.
pub(super) struct FileRedundancy<M: Medium> {
    pub(super) data: Arc<TrackedPages<M>>,
    pub(super) sidecar: Arc<TrackedPages<M>>,
    /// How often both are covered.
    pace: Arc<Pace>,
    is_looked_for: bool,
    /// The engine that has the file. A plain file has none, nor has one that is only looked at.
    engine: Option<Arc<dyn Engine>>,
    /// Why the last pass that nobody called for failed, until somebody is told, or another pass goes through.
    unreported: Mutex<Option<Error>>,
    /// Whether what is damaged in the sidecar is to stay so at the end.
    leaves_damage: AtomicBool,
}

impl<M: Medium> FileRedundancy<M> {
    pub(super) fn new(
        data: Arc<TrackedPages<M>>,
        sidecar: Arc<TrackedPages<M>>,
        engine: Option<Arc<dyn Engine>>,
    ) -> Self {
        let pace = Arc::default();
        data.count_for(&pace);
        sidecar.count_for(&pace);
        let (unreported, leaves_damage) = (Mutex::default(), AtomicBool::new(false));
        let is_looked_for = data.is_looked_for();
        FileRedundancy { data, sidecar, pace, is_looked_for, engine, unreported, leaves_damage }
    }

    pub(super) fn leaves_damage(&self) -> bool {
        self.leaves_damage.load(Ordering::Relaxed)
    }

    /// Leaves the redundancy files as closed, now that the engine has let go of the file. What is not covered by now,
    /// and cannot be without a repair, stays marked.
    pub(super) fn finish(&self) -> Result<()> {
        self.data.with(Redundancy::finish)?;
        self.sidecar.with(Redundancy::finish)
    }

    /// Fails after a failure of the engine, and in a forked child, where locks may be held for ever.
    fn usable(&self) -> Result<()> {
        self.engine.as_ref().map_or(Ok(()), |engine| engine.writable())
    }

    /// Makes sure, durably, that parity has its space for a write of these bytes of the file, before anything of it is
    /// stored: see [`holes`](super::holes).
    ///
    /// # Errors
    /// ENOSPC, with nothing changed; those of flushing.
    pub(super) fn claim(&self, bytes: &Range<u64>) -> Result<()> {
        self.data.claim(bytes)?;
        self.sidecar.claim(bytes)
    }

    fn cover_with(&self, cover: impl Fn(&Redundancy<M>) -> Result<u64>) -> Result<u64> {
        self.usable()?;
        let home = self.bring_home();
        // What cannot be brought home, as to a page that cannot be read, keeps nothing else in the file from being
        // covered.
        let covered = self.data.with(&cover)? + self.sidecar.with(&cover)?;
        home?;
        *self.unreported() = None;
        Ok(covered)
    }

    /// Brings home what is committed and in the sidecar only, where nothing covers it.
    fn bring_home(&self) -> Result<()> {
        let mut last = Ok(());
        let Some(engine) = self.engine.as_ref().filter(|_| !self.sidecar.is_kept()) else { return last };
        for _ in 0..TRIES {
            last = engine.deploy(0, engine.len());
            if !matches!(last, Err(Error::OutOfRange { .. })) {
                break;
            }
        }
        last
    }

    fn unreported(&self) -> MutexGuard<'_, Option<Error>> {
        self.unreported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn repair_data(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.data.with(Redundancy::may_repair)?;
        self.data.scrubbed(how, Redundancy::repair_found)
    }

    /// Repairs both, or nothing, if this `repairs`. Else finds out what a repair of both would do and could not.
    /// Progress is that of the data file, and stands still while the sidecar is read.
    fn judge_both(&self, Scrub { rate, stops, progress }: Scrub<'_>, repairs: bool) -> Result<RepairReport> {
        let mut seen = (0, 0);
        let noted = &mut |done, of| {
            seen = (done, of);
            progress(done, of)
        };
        let mut report = self.data.scrubbed(Scrub { rate, stops, progress: noted }, Redundancy::assess_found)?;
        let how = Scrub { rate, stops, progress: &mut |_, _| progress(seen.0, seen.1) };
        let other = if repairs && report.is_whole() {
            self.sidecar.scrubbed(how, Redundancy::repair_found)?
        } else {
            self.sidecar.scrubbed(how, Redundancy::assess_found)?
        };
        if repairs && report.is_whole() && other.is_whole() && !report.scrub.is_clean() {
            // It is looked at once more, for whatever it was found to be then.
            report = self.repair_data(Scrub::telling(&mut |_, _| true))?;
        }
        report.add_sidecar(other, self.sidecar.begins_at());
        Ok(report)
    }
}

impl<M: Medium> RedundancyService for FileRedundancy<M> {
    fn path(&self) -> &Path {
        self.data.path()
    }

    fn cover(&self) -> Result<u64> {
        self.cover_with(Redundancy::cover)
    }

    fn pass(&self) -> Result<u64> {
        self.cover_with(Redundancy::pass)
    }

    fn set_listener(&self, listener: Option<DamageSender>) {
        self.data.set_listener(listener.clone());
        self.sidecar.set_listener(listener);
    }

    fn failed(&self, error: Error) {
        // A plain file's redundancy remembers by itself what the next call is to be told.
        if self.engine.is_some() {
            *self.unreported() = Some(error);
        }
    }

    fn pace(&self) -> &Pace {
        &self.pace
    }

    fn is_looked_for(&self) -> bool {
        self.is_looked_for
    }

    fn count_uncovered(&self) -> Result<()> {
        self.usable()?;
        self.data.with(Redundancy::count_uncovered)?;
        self.sidecar.with(Redundancy::count_uncovered)
    }

    fn coverage(&self) -> Result<Coverage> {
        self.usable()?;
        if let Some(error) = self.unreported().take() {
            return Err(error);
        }
        let Some(mut coverage) = self.data.with(|data| data.coverage().map(Some))? else {
            return Err(Error::protection(self.path(), ProtectionProblem::Empty));
        };
        coverage.sidecar = self.sidecar.with(|sidecar| sidecar.coverage().map(Some))?.map(Box::new);
        if let Some(engine) = &self.engine
            && coverage.sidecar.is_none()
        {
            coverage.in_sidecar = engine.info().reflected_pages;
        }
        if self.pace.has_task() {
            let (last_pass_pages, last_pass) = self.pace.last_pass();
            coverage.pace = Some(CoveringPace {
                last_pass_pages,
                last_pass,
                period: self.pace.period(),
                max_uncovered: self.pace.cap(),
                peak_uncovered: self.pace.peak(),
            });
        }
        Ok(coverage)
    }

    /// Scrubs the one, then the other. Progress is that of the data file, and stands still while the sidecar is read.
    fn scrub(&self, Scrub { rate, stops, progress }: Scrub<'_>) -> Result<ScrubReport> {
        self.usable()?;
        let (mut seen, mut goes_on) = ((0, 0), true);
        let noted = &mut |done, of| {
            seen = (done, of);
            goes_on = progress(done, of);
            goes_on
        };
        let mut report = self.data.scrubbed(Scrub { rate, stops, progress: noted }, |_, report| Ok(report))?;
        if goes_on && !stops() && self.sidecar.is_kept() {
            let how = Scrub { rate, stops, progress: &mut |_, _| progress(seen.0, seen.1) };
            match self.sidecar.scrubbed(how, |_, report| Ok(report)) {
                // What was found in the file is told. That no page of the sidecar was compared is told with it.
                Err(error) if !report.is_clean() => {
                    tracing::error!(path = %self.path().display(), %error, "cannot scrub the sidecar");
                }
                other => report.add_sidecar(other?, self.sidecar.begins_at()),
            }
        }
        Ok(report)
    }

    fn note_scrub(&self) -> Result<()> {
        self.usable()?;
        self.data.with(Redundancy::note_scrub)?;
        self.sidecar.with(Redundancy::note_scrub)
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.usable()?;
        if self.sidecar.is_kept() { self.judge_both(how, true) } else { self.repair_data(how) }
    }

    fn repair_modified(&self, how: Scrub<'_>) -> Result<RepairReport> {
        self.usable()?;
        self.data.with(Redundancy::may_replace_modified)?;
        self.data.scrubbed(how, Redundancy::repair_modified)
    }

    fn assess_closed(&self, how: Scrub<'_>) -> Result<Option<RepairReport>> {
        let was_closed = self.data.was_closed() && self.sidecar.was_closed();
        was_closed.then(|| self.judge_both(how, false)).transpose()
    }

    fn leave_damage(&self) {
        self.leaves_damage.store(true, Ordering::Relaxed);
    }

    fn announce(&self, bytes: Range<u64>) -> Result<()> {
        self.data.with(|data| {
            let file_len = data.len();
            if bytes.start > bytes.end || bytes.end > file_len {
                let len = bytes.end.saturating_sub(bytes.start);
                return Err(Error::OutOfRange { path: self.path().to_owned(), offset: bytes.start, len, file_len });
            }
            data.announce(bytes)
        })
    }

    fn release(&self, bytes: Range<u64>) -> Result<()> {
        self.data.with(|data| data.release(bytes))
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.data.set_len(len)
    }

    fn close(&self) -> Result<()> {
        self.data.with(Redundancy::close)
    }
}
