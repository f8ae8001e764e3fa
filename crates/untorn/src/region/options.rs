//! [`StoreOptions`]: how a store is created and opened.

use std::path::Path;

use crate::error::{Error, Result};
use crate::options::{CommitLog, Order};
use crate::region::engine::{MAX_NODES, PAGE, Settings};

/// How to create and open a store; builds up like [`Options`](crate::Options).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let store = untorn::region::StoreOptions::new().max_regions(16).create(dir.path().join("small"))?;
/// assert_eq!(store.info()?.max_regions, 16);
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct StoreOptions {
    pub(in crate::region) settings: Settings,
}

impl Default for StoreOptions {
    fn default() -> Self {
        let (order, nodes, max_len, grow_by) = (None, 1024, 1 << 40, 256);
        let (background, read_only, commit_log) = (true, false, None);
        StoreOptions { settings: Settings { order, nodes, max_len, grow_by, background, read_only, commit_log } }
    }
}

impl StoreOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the number of fences of a commit: one, with a digest of every page, or two. The default is one on a disk,
    /// where each is a flush, and two on persistent memory, where digests cost more than the fence.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.settings.order = Some(order);
        self
    }

    /// Sets the maximum number of regions of a new store, 1 to 65536. Each takes 4 KiB of address space, and 4 KiB of
    /// disk once it exists (on persistent memory from the start). The default is 1024.
    #[must_use]
    pub fn max_regions(mut self, regions: u32) -> Self {
        self.settings.nodes = regions;
        self
    }

    /// Sets the maximum length of the store while open, in bytes; opening a longer store is refused. The default is 1
    /// TiB.
    #[must_use]
    pub fn max_len(mut self, bytes: u64) -> Self {
        self.settings.max_len = bytes;
        self
    }

    /// Sets the minimum number of bytes by which the file grows when pages run out, if the disk has them. Each growth
    /// costs a flush. It is rounded up to pages. The default is 1 MiB, and never less than an eighth of the file.
    #[must_use]
    pub fn grow_by(mut self, bytes: u64) -> Self {
        self.settings.grow_by = bytes.div_ceil(PAGE);
        self
    }

    /// Sets whether a thread scans for free space after a crash. Otherwise
    /// [`RegionStore::scan`](crate::region::RegionStore::scan) and [`close`](crate::region::RegionStore::close) find
    /// it. The default is true.
    #[must_use]
    pub fn background_scan(mut self, background: bool) -> Self {
        self.settings.background = background;
        self
    }

    /// Opens the store read-only: nothing in it changes, not even by recovery, and other processes may read it at the
    /// same time. Calls that would change it fail with [`Error::ReadOnly`]. The default is false.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.settings.read_only = read_only;
        self
    }

    /// Keeps the commits of each region that is created or opened, up to so many bytes for a region, for
    /// [streams](crate::region::Region::commits) of them: each region has a log of its own, as its commits have numbers
    /// of their own.
    ///
    /// A region that has a log keeps it: every later opening keeps it up, also without this option. A limit of 0 gives
    /// the log of each region up that is opened. The logs stand in the directory of sidecars beside the store and go
    /// with the regions. A commit of a region with a log costs one more fence or flush, and writes its pages twice. A
    /// commit larger than the limit fails with ENOSPC, as [`Options::commit_log`](crate::Options::commit_log) says.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("store");
    /// use untorn::{commits::CommitStream, region::StoreOptions};
    /// let store = StoreOptions::new().commit_log(1 << 20).create(&path)?;
    /// let region = store.create_region("ledger")?;
    /// region.alloc_pages(2)?;
    /// region.write_at(b"hello", 4096)?;
    /// region.pmsync()?;
    /// let mut stream = CommitStream::open_region(&path, "ledger", 0)?; // any process
    /// let commit = stream.next()?.unwrap();
    /// assert_eq!((commit.number, commit.allocated), (1, vec![0..8192])); // page 0 is zeros
    /// assert_eq!((commit.changes[0].range.clone(), &commit.changes[0].bytes[..5]), (4096..8192, &b"hello"[..]));
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn commit_log(mut self, log: impl Into<CommitLog>) -> Self {
        self.settings.commit_log = Some(log.into());
        self
    }

    pub(super) fn validate(&self, path: &Path) -> Result<()> {
        if (1..=MAX_NODES).contains(&self.settings.nodes) {
            return Ok(());
        }
        let what = format!("a store can have 1 to {MAX_NODES} regions, not {}", self.settings.nodes);
        Err(Error::Invalid { path: path.to_owned(), what })
    }
}
