//! What an engine that keeps redundancy offers, and what is said of it.

mod pace;
mod report;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use self::pace::{Pace, Part};
pub use self::report::{Coverage, CoveringPace, History, RepairReport, ScrubFindings, ScrubReport, Scrubbing};
use crate::error::{Error, Result};
use crate::options::{Damage, as_kept};

/// Where damage goes that a thread of the pool then tells the program of.
#[derive(Clone)]
pub(crate) struct DamageSender(Arc<dyn Fn(Damage) + Send + Sync>);

impl DamageSender {
    pub(crate) fn new(take: impl Fn(Damage) + Send + Sync + 'static) -> Self {
        DamageSender(Arc::new(take))
    }

    pub(crate) fn send(&self, damage: Damage) {
        (self.0)(damage)
    }
}

/// How a scrub is done.
pub(crate) struct Scrub<'a> {
    /// Bytes of the data file that are read in a second, at most; `None` is as fast as can be.
    pub(crate) rate: Option<u64>,
    /// Is asked before each stripe whether the scrub is to end: it may have to wait for no more than that.
    pub(crate) stops: &'a dyn Fn() -> bool,
    /// Is told now and then how many of how many bytes were read; false ends the scrub.
    pub(crate) progress: &'a mut dyn FnMut(u64, u64) -> bool,
}

impl<'a> Scrub<'a> {
    /// As fast as can be, until it is through or `progress` ends it.
    pub(crate) fn telling(progress: &'a mut dyn FnMut(u64, u64) -> bool) -> Self {
        Scrub { rate: None, stops: &|| false, progress }
    }
}

/// The redundancy of a file and of its sidecar, over whatever medium it is on and whoever tells of stores.
pub(crate) trait RedundancyService: Send + Sync {
    fn path(&self) -> &Path;
    /// Covers what was stored to before the call; how many pages.
    fn cover(&self) -> Result<u64>;
    /// The same by the way, as the thread does it: without what could not be read a short time ago.
    fn pass(&self) -> Result<u64> {
        self.cover()
    }
    /// Where to tell of damage that is come upon by the way, from now on; nowhere, if nobody asked. What was before
    /// is told too.
    fn set_listener(&self, _line: Option<DamageSender>) {}
    /// Hears of a pass or a scrub of a thread that failed, for nobody else does. Another may go through.
    fn failed(&self, _error: Error) {}
    /// The pace of its covering task.
    fn pace(&self) -> &Pace;
    /// Has stores covered so long after the last pass, from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`] for 0, and if the file has no covering task.
    fn set_period(&self, period: Duration) -> Result<()> {
        self.covers_behind_stores()?;
        if period.is_zero() {
            let what = "the period of an open file cannot become 0; open the file with a period of 0 to have each \
                        store covered at once";
            return Err(Error::Invalid { path: self.path().to_owned(), what: what.to_owned() });
        }
        self.pace().set_period(Some(as_kept(period)));
        Ok(())
    }
    /// Has a pass begin as soon as more pages are uncovered, from now on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the file has no covering task.
    fn set_max_uncovered(&self, pages: Option<u64>) -> Result<()> {
        self.covers_behind_stores()?;
        self.pace().set_cap(pages);
        Ok(())
    }
    /// Fails if no task covers stores.
    fn covers_behind_stores(&self) -> Result<()> {
        if self.pace().has_task() {
            return Ok(());
        }
        let what = "no thread covers the stores of this handle, so it has neither a period nor a cap: it was opened \
                    with a period of 0, or only to look at the file";
        Err(Error::Invalid { path: self.path().to_owned(), what: what.to_owned() })
    }
    /// Whether stores are found only by a look at page tables.
    fn is_looked_for(&self) -> bool {
        false
    }
    /// Notes with the [pace](RedundancyService::pace) how many pages are uncovered.
    fn count_uncovered(&self) -> Result<()> {
        Ok(())
    }
    fn coverage(&self) -> Result<Coverage>;
    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport>;
    /// Notes in the redundancy file that a scrub went through.
    fn note_scrub(&self) -> Result<()>;
    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport>;
    /// The same of a plain file that no process has open, and replaces pages that were modified outside untorn.
    fn repair_modified(&self, how: Scrub<'_>) -> Result<RepairReport>;
    /// Reports what a repair would do and could not, if the file was closed when it was last left. It changes nothing.
    fn assess_closed(&self, how: Scrub<'_>) -> Result<Option<RepairReport>>;
    /// Has what is damaged stay so when the file is closed: whoever was told that nothing was touched finds it so.
    fn leave_damage(&self) {}
    /// Marks the pages of these bytes before a program stores to them.
    fn announce(&self, bytes: Range<u64>) -> Result<()>;
    /// Hears that [announced](RedundancyService::announce) stores were made.
    fn release(&self, bytes: Range<u64>) -> Result<()>;
    /// Changes the length of a plain file.
    fn set_len(&self, len: u64) -> Result<()>;
    /// Covers everything, and leaves the file so that later damage is told from later stores.
    fn close(&self) -> Result<()>;
}

/// Scrubs, and notes that it went through. What was found is not dropped because it cannot be noted: redundancy
/// remembers the failure, and the next call tells of it.
///
/// # Errors
/// Those of [`scrub`](RedundancyService::scrub), and where nothing was found those of
/// [`note_scrub`](RedundancyService::note_scrub).
pub(crate) fn scrub_and_note<S: RedundancyService + ?Sized>(service: &S, how: Scrub<'_>) -> Result<ScrubReport> {
    let report = service.scrub(how)?;
    match service.note_scrub() {
        Err(error) if !report.is_clean() => {
            tracing::error!(path = %service.path().display(), %error, "cannot record a scrub that found damage");
            Ok(report)
        }
        noted => noted.map(|()| report),
    }
}
