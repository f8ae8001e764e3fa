//! The mechanism of a protected file, over whatever medium it lies on.

use std::ops::Range;
use std::path::Path;

use super::{Coverage, Redundancy, RepairReport, Scrub, ScrubReport};
use crate::error::{Error, Result};
use crate::medium::Medium;

/// Redundancy that is kept, whoever tells of stores.
pub(crate) trait Service: Send + Sync {
    fn path(&self) -> &Path;
    /// Covers what was stored to before the call; how many pages.
    fn cover(&self) -> Result<u64>;
    /// Hears of a pass of the thread that failed, for nobody else does. Another may go through.
    fn failed(&self, _error: Error) {}
    fn coverage(&self) -> Result<Coverage>;
    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport>;
    /// Notes in the companion file that a scrub went through.
    fn note_scrub(&self) -> Result<()>;
    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport>;
}

/// Redundancy of a file that an engine has.
pub(crate) trait Beside: Service {
    /// Leaves the companion file as closed, now that the engine has let go of the file. What is not covered by now, and
    /// cannot be without a repair, stays marked.
    fn finish(&self) -> Result<()>;
}

/// [`Redundancy`] over whatever medium, of a file whose program tells of stores.
pub(crate) trait Told: Service {
    fn len(&self) -> u64;
    fn announce(&self, bytes: Range<u64>) -> Result<()>;
    fn release(&self, bytes: Range<u64>) -> Result<()>;
    fn close(&self) -> Result<()>;
}

impl<M: Medium> Service for Redundancy<M> {
    fn path(&self) -> &Path {
        Redundancy::path(self)
    }

    fn cover(&self) -> Result<u64> {
        Redundancy::cover(self)
    }

    fn coverage(&self) -> Result<Coverage> {
        Redundancy::coverage(self)
    }

    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport> {
        Redundancy::scrub(self, how)
    }

    fn note_scrub(&self) -> Result<()> {
        Redundancy::note_scrub(self)
    }

    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport> {
        Redundancy::repair(self, how)
    }
}

impl<M: Medium> Told for Redundancy<M> {
    fn len(&self) -> u64 {
        Redundancy::len(self)
    }

    fn announce(&self, bytes: Range<u64>) -> Result<()> {
        Redundancy::announce(self, bytes)
    }

    fn release(&self, bytes: Range<u64>) -> Result<()> {
        Redundancy::release(self, bytes)
    }

    fn close(&self) -> Result<()> {
        Redundancy::close(self)
    }
}
