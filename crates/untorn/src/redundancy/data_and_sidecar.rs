//! The redundancy of a data file and of its sidecar, as one.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::RedundancyService;
use super::service::{AnnouncedRedundancy, EngineRedundancy, SidecarRedundancy};
use super::{Coverage, Redundancy, RepairReport, Scrub, ScrubReport, TrackedSidecar};
use crate::error::Result;
use crate::storage::Medium;

/// What is covered of both.
pub(crate) fn coverage(data: &dyn EngineRedundancy, sidecar: &dyn SidecarRedundancy) -> Result<Coverage> {
    let mut coverage = data.coverage()?;
    coverage.sidecar = sidecar.coverage()?.map(Box::new);
    Ok(coverage)
}

/// Scrubs the one, then the other. Progress is that of the data file, and stands still while the sidecar is read.
pub(crate) fn scrub(
    data: &dyn EngineRedundancy,
    sidecar: &dyn SidecarRedundancy,
    how: Scrub<'_>,
) -> Result<ScrubReport> {
    let Scrub { rate, stops, progress } = how;
    let (mut seen, mut goes_on) = ((0, 0), true);
    let mut report = data.scrub(Scrub {
        rate,
        stops,
        progress: &mut |done, of| {
            seen = (done, of);
            goes_on = progress(done, of);
            goes_on
        },
    })?;
    if goes_on && !stops() && sidecar.is_kept() {
        let other = match sidecar.scrub(Scrub { rate, stops, progress: &mut |_, _| progress(seen.0, seen.1) }) {
            // What was found in the file is told. That no page of the sidecar was compared is told with it.
            Err(error) if !report.is_clean() => {
                tracing::error!(path = %data.path().display(), %error, "cannot scrub the sidecar");
                return Ok(report);
            }
            other => other?,
        };
        (report.sidecar_checked, report.sidecar_skipped) = (other.sidecar_checked, other.sidecar_skipped);
        report.damage.extend(other.damage);
    }
    Ok(report)
}

/// Repairs both, or nothing.
pub(crate) fn repair(
    data: &dyn EngineRedundancy,
    sidecar: &dyn SidecarRedundancy,
    how: Scrub<'_>,
) -> Result<RepairReport> {
    if !sidecar.is_kept() {
        return data.repair(how);
    }
    let Scrub { rate, stops, progress } = how;
    let mut seen = (0, 0);
    let mut report = data.assess(Scrub {
        rate,
        stops,
        progress: &mut |done, of| {
            seen = (done, of);
            progress(done, of)
        },
    })?;
    let how = Scrub { rate, stops, progress: &mut |_, _| progress(seen.0, seen.1) };
    let other = if report.is_whole() { sidecar.repair(how)? } else { sidecar.assess(how)? };
    if report.is_whole() && other.is_whole() && !report.scrub.is_clean() {
        // It is looked at once more, for whatever it was found to be then.
        report = data.repair(Scrub::telling(&mut |_, _| true))?;
    }
    add(&mut report, other);
    Ok(report)
}

/// What a repair of both would do and could not.
fn assess<M: Medium>(data: &Redundancy<M>, sidecar: &TrackedSidecar<M>, how: Scrub<'_>) -> Result<RepairReport> {
    let Scrub { rate, stops, progress } = how;
    let mut seen = (0, 0);
    let mut report = data.assess(Scrub {
        rate,
        stops,
        progress: &mut |done, of| {
            seen = (done, of);
            progress(done, of)
        },
    })?;
    if sidecar.is_kept() {
        let other = sidecar.assess(Scrub { rate, stops, progress: &mut |_, _| progress(seen.0, seen.1) })?;
        add(&mut report, other);
    }
    Ok(report)
}

/// Adds what is reported of the sidecar.
fn add(report: &mut RepairReport, other: RepairReport) {
    (report.scrub.sidecar_checked, report.scrub.sidecar_skipped) =
        (other.scrub.sidecar_checked, other.scrub.sidecar_skipped);
    report.scrub.damage.extend(other.scrub.damage);
    report.rebuilt += other.rebuilt;
    report.not_rebuilt.extend(other.not_rebuilt);
    report.sidecar_repaired = other.sidecar_repaired;
    report.sidecar_lost = other.sidecar_lost;
    report.sidecar_unknown = other.sidecar_unknown;
}

/// Both, for who looks at a file that no engine has open.
pub(crate) struct DataAndSidecar<M: Medium> {
    pub(crate) data: Redundancy<M>,
    pub(crate) sidecar: Arc<TrackedSidecar<M>>,
}

impl<M: Medium> RedundancyService for DataAndSidecar<M> {
    fn path(&self) -> &Path {
        self.data.path()
    }

    fn cover(&self) -> Result<u64> {
        self.data.cover()
    }

    fn coverage(&self) -> Result<Coverage> {
        coverage(&self.data, &*self.sidecar)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        scrub(&self.data, &*self.sidecar, how)
    }

    fn note_scrub(&self) -> Result<()> {
        self.data.note_scrub()?;
        self.sidecar.note_scrub()
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        repair(&self.data, &*self.sidecar, how)
    }
}

impl<M: Medium> AnnouncedRedundancy for DataAndSidecar<M> {
    fn len(&self) -> u64 {
        self.data.len()
    }

    fn announce(&self, bytes: Range<u64>) -> Result<()> {
        self.data.announce(bytes)
    }

    fn release(&self, bytes: Range<u64>) -> Result<()> {
        self.data.release(bytes)
    }

    fn close(&self) -> Result<()> {
        self.data.close()
    }

    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport> {
        assess(&self.data, &self.sidecar, how)
    }

    fn was_closed(&self) -> bool {
        self.data.was_closed() && self.sidecar.was_closed()
    }
}
