//! The interface of a protected file, over whatever medium it is on.

use std::ops::Range;
use std::path::Path;

use super::Redundancy;
use crate::engine::redundancy::{Coverage, DamageSender, RedundancyService, RepairReport, Scrub, ScrubReport};
#[cfg(doc)]
use crate::error::Error;
use crate::error::Result;
use crate::storage::Medium;

/// Redundancy of a file that an engine has.
pub(crate) trait EngineRedundancy: RedundancyService {
    /// What a repair would do and could not. It does nothing.
    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport>;

    /// Compares the covered pages that have any of these bytes with their checksums, and repairs them if asked to.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that is damaged, and cannot be repaired or is not to be.
    fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()>;

    /// Leaves the redundancy file as closed, now that the engine has let go of the file. What is not covered by now,
    /// and cannot be without a repair, stays marked.
    fn finish(&self) -> Result<()>;
}

/// Redundancy of the pages of a sidecar, if it has any. Ranges in its reports are of the sidecar.
pub(crate) trait SidecarRedundancy: Send + Sync {
    /// Whether there is any.
    fn is_kept(&self) -> bool;
    /// See [`RedundancyService::set_listener`].
    fn set_listener(&self, listener: Option<DamageSender>);
    fn cover(&self) -> Result<u64>;
    /// See [`RedundancyService::pass`].
    fn pass(&self) -> Result<u64>;
    fn coverage(&self) -> Result<Option<Coverage>>;
    fn scrub(&self, how: Scrub<'_>) -> Result<ScrubReport>;
    fn note_scrub(&self) -> Result<()>;
    /// See [`EngineRedundancy::assess`].
    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport>;
    fn repair(&self, how: Scrub<'_>) -> Result<RepairReport>;
    /// See [`EngineRedundancy::verify`]; the bytes are counted from the start of the sidecar.
    fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()>;
    /// The same of all pages that say which bytes of the others count.
    fn verify_index(&self, repair: bool) -> Result<()>;
    /// See [`EngineRedundancy::finish`].
    fn finish(&self) -> Result<()>;
}

/// [`Redundancy`] over whatever medium, of a file whose program tells of stores.
pub(crate) trait AnnouncedRedundancy: RedundancyService {
    fn len(&self) -> u64;
    fn announce(&self, bytes: Range<u64>) -> Result<()>;
    fn release(&self, bytes: Range<u64>) -> Result<()>;
    fn close(&self) -> Result<()>;
    /// What a repair would do and could not. It does nothing.
    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport>;
    /// Whether it was closed when it was last left.
    fn was_closed(&self) -> bool;
}

impl<M: Medium> RedundancyService for Redundancy<M> {
    fn path(&self) -> &Path {
        Redundancy::path(self)
    }

    fn cover(&self) -> Result<u64> {
        Redundancy::cover(self)
    }

    fn pass(&self) -> Result<u64> {
        Redundancy::pass(self)
    }

    fn set_listener(&self, listener: Option<DamageSender>) {
        Redundancy::set_listener(self, listener);
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

impl<M: Medium> EngineRedundancy for Redundancy<M> {
    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport> {
        Redundancy::assess(self, how)
    }

    fn verify(&self, bytes: Range<u64>, repair: bool) -> Result<()> {
        Redundancy::verify(self, bytes, repair)
    }

    fn finish(&self) -> Result<()> {
        Redundancy::finish(self)
    }
}

impl<M: Medium> AnnouncedRedundancy for Redundancy<M> {
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

    fn assess(&self, how: Scrub<'_>) -> Result<RepairReport> {
        Redundancy::assess(self, how)
    }

    fn was_closed(&self) -> bool {
        Redundancy::was_closed(self)
    }
}
