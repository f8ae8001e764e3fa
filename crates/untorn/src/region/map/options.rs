//! [`RegionMapOptions`]: how to map a region.

use std::collections::{BTreeMap, BTreeSet};

use super::RegionMap;
use crate::error::{Error, Result};
use crate::options::{CommitLog, DirtyTracking, LostPage};
use crate::region::engine::PAGE;
use crate::region::store::Region;
use crate::sys::paged::{Closing, Paged};
use crate::sys::runs::Runs;

/// Bytes reserved for a region unless more are asked for.
const RESERVE: u64 = 1 << 36;

/// The same of a region that is shared.
const RESERVE_TO_SHARE: u64 = 1 << 32;

/// How to map a region.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// use untorn::options::DirtyTracking;
/// use untorn::region::{RegionMapOptions, RegionStore};
/// let region = RegionStore::create(dir.path().join("store"))?.create_region("small")?;
/// let map = RegionMapOptions::new().reserve(1 << 30).dirty_tracking(DirtyTracking::PageTable).map(&region)?;
/// assert_eq!(map.dirty_tracking(), DirtyTracking::PageTable);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RegionMapOptions {
    reserve: Option<u64>,
    /// For a store that this opens.
    commit_log: Option<CommitLog>,
    dirty_tracking: DirtyTracking,
    lost_page: LostPage,
    /// How pages that are not there are kept from accesses.
    pub(super) closing: Closing,
    /// Whether pages of the store are mapped where they can be.
    pub(super) shows: bool,
}

impl Default for RegionMapOptions {
    fn default() -> Self {
        let (dirty_tracking, lost_page) = (DirtyTracking::Auto, LostPage::Fail);
        RegionMapOptions {
            reserve: None,
            commit_log: None,
            dirty_tracking,
            lost_page,
            closing: Closing::Auto,
            shows: true,
        }
    }
}

impl RegionMapOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the reserved address space in bytes. It limits the pages that can be in memory to those with a number below
    /// a 4096th of it. The reservation is no larger than the region's maximum; if the system has no room for it, it is
    /// halved until it fits. The default is 64 GiB: a process has 128 TiB, and a store may have a thousand regions.
    #[must_use]
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = Some(bytes);
        self
    }

    pub(in super::super) fn reserved_to_share(&self) -> u64 {
        self.reserve.unwrap_or(RESERVE_TO_SHARE)
    }

    /// Keeps the commits of a region that is [shared](RegionMapOptions::share), as
    /// [`StoreOptions::commit_log`](crate::region::StoreOptions::commit_log) does it. The process that begins to serve
    /// the others decides.
    #[must_use]
    pub fn commit_log(mut self, log: impl Into<CommitLog>) -> Self {
        self.commit_log = Some(log.into());
        self
    }

    pub(in super::super) fn commit_log_to_share(&self) -> Option<CommitLog> {
        self.commit_log
    }

    /// Sets how stores are found. The default is the best method available.
    #[must_use]
    pub fn dirty_tracking(mut self, method: DirtyTracking) -> Self {
        self.dirty_tracking = method;
        self
    }

    /// Sets what happens when the memory of a page is lost. The default is [`LostPage::Fail`].
    #[must_use]
    pub fn on_lost_page(mut self, lost_page: LostPage) -> Self {
        self.lost_page = lost_page;
        self
    }

    /// Maps a region.
    ///
    /// # Errors
    /// [`Error::InUse`] if the region is already mapped. [`Error::Invalid`] if it has uncommitted changes.
    /// [`Error::Io`] if there is no address space, the requested tracking is not available, or memory pages are not 4
    /// KiB.
    pub fn map(&self, region: &Region) -> Result<RegionMap> {
        let region = region.region.map()?;
        let len = region.info()?.max_pages.saturating_mul(PAGE);
        let path = region.path();
        let (lost_page, closing, method) = (self.lost_page, self.closing, self.dirty_tracking);
        let memory = Paged::new(region.name(), self.reserve.unwrap_or(RESERVE).min(len), lost_page, closing, method);
        let memory = memory.map_err(|error| Error::io("reserve memory for a region of", path, error))?;
        // What stays in memory under `PageTable` counts as stored to for ever, so the memory file takes it after each
        // commit: a mapping for each page.
        let shows =
            memory.tracking().method() == DirtyTracking::WriteProtect && self.shows && region.mappable().is_some();
        let (limit, stored, kept) = (len.min(memory.pages() * PAGE), Runs::new(), Runs::new());
        let (parked, pinned) = (BTreeSet::new(), BTreeMap::new());
        Ok(RegionMap { memory, region, shows, limit, stored, kept, parked, pinned })
    }
}

impl Region {
    /// Maps the region with default [`RegionMapOptions`]: its pages as plain memory. Until the map is dropped, the
    /// region's handles refuse to read and change it.
    ///
    /// # Errors
    /// See [`RegionMapOptions::map`].
    pub fn map(&self) -> Result<RegionMap> {
        RegionMapOptions::new().map(self)
    }
}
