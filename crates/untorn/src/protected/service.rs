//! The mechanism of a protected file, over whatever medium it lies on.

use std::ops::Range;
use std::path::Path;

use crate::error::Result;
use crate::medium::Medium;
use crate::redundancy::{Coverage, Redundancy, RepairReport, Scrub, ScrubReport};

/// [`Redundancy`] over whatever medium.
pub(super) trait Service: Send + Sync {
    fn path(&self) -> &Path;
    fn len(&self) -> u64;
    fn announce(&self, bytes: Range<u64>) -> Result<()>;
    fn release(&self, bytes: Range<u64>) -> Result<()>;
    fn cover(&self) -> Result<u64>;
    fn coverage(&self) -> Result<Coverage>;
    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport>;
    fn note_scrub(&self) -> Result<()>;
    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport>;
    fn close(&self) -> Result<()>;
}

impl<M: Medium> Service for Redundancy<M> {
    fn path(&self) -> &Path {
        Redundancy::path(self)
    }

    fn len(&self) -> u64 {
        Redundancy::len(self)
    }

    fn announce(&self, bytes: Range<u64>) -> Result<()> {
        Redundancy::announce(self, bytes)
    }

    fn release(&self, bytes: Range<u64>) -> Result<()> {
        Redundancy::release(self, bytes)
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

    fn close(&self) -> Result<()> {
        Redundancy::close(self)
    }
}
