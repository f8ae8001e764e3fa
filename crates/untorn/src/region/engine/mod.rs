//! The snapshot engine: named regions of pages in one file, and `pmsync`, which commits a region as a whole (the Region
//! System paper, §V).
//!
//! A region's page table is a tree of inner nodes over *leaves*. A leaf has, for each of its logical pages, *two*
//! pointers with digests, in two halves: one half for even commits, one for odd ones. After commit *k* the half of
//! *k*'s parity is the snapshot, for every entry; the other half belongs to the next commit. So these are the paper's
//! dual pointers, current and snapshot, which change roles at each commit. The paper completes a `pmsync` by bringing
//! the snapshot pointers up to date; here the next commit does that in passing, and it never costs a fence of its own.
//!
//! # The protocol
//! Commit *k*+1 of a region, under the region's lock:
//!
//! 1. The commit takes fresh pages from the free map. If leaves are missing, it writes them empty; **fence**
//!    (`snapshot.table`); one 8-byte store links each new subtree. This happens once in 128 new pages.
//! 2. It writes the new contents to fresh pages. In the half of *k*+1 of each leaf it writes the entries that change,
//!    and those that commit *k* changed and *k*+1 does not.
//! 3. It stores the record of *k*+1, one line, over the record of *k*-1: commit number, and the sum of a digest of each
//!    entry of the whole region. **Fence** (`snapshot.record`), and the commit is acknowledged.
//!
//! With a [commit log](log), a record of the commit is durable in the log before step 3.
//!
//! So a commit costs one fence on persistent memory, and one flush on a disk. It is certified: each entry has the
//! digest of its page, the record has the sum of the entries. If the digests cost more than a fence (persistent
//! memory), the record is *ordered* instead: a fence (`snapshot.data`) precedes step 3, and no digests are computed.
//!
//! # Invariants
//!
//! 1. Before the record of *k*+1 is durable, the engine writes to nothing that commit *k* needs: its half of every
//!    leaf, its pages, its record. Pages that *k*+1 frees are free only when its fence has returned.
//! 2. A record is stored only when the one before it is durable with everything it covers. So of a region's two records
//!    the older one is certain, and the newer one is certain if it is *ordered*. Otherwise the newer one counts if two
//!    checks pass: the sum of its half matches, and so does every page that the two halves name differently, which are
//!    all that it wrote. None of these is overwritten before a later record is durable, so an acknowledged commit
//!    always passes. If the newer record does not count, the older one's pages that the halves name differently are
//!    whole, by 1. If they are not, the newer commit was durable and was damaged later, and the region is damaged.
//! 3. The remains of a record that does not count, whole or torn, are durably erased (`snapshot.recover.discard`)
//!    before the region is written to again: the missing part might otherwise arrive later, as part of another commit.
//! 4. Recovery of a region changes nothing else. The record decides which half counts, and the next commit overwrites
//!    the other half, as after any commit. So recovery is idempotent, and each region can be recovered when it is first
//!    needed.
//! 5. The tree above the leaves only locates leaves; an empty leaf means nothing. So it changes outside of commits, by
//!    8-byte stores, and no copy-on-write goes up the tree.
//! 6. The free map is not durable while the store is open. After a crash, pages are allocated only beyond the file's
//!    end at the open, where no region can name a page, until every region was scanned. Then every page that no region
//!    names is free. The free map of a clean close counts only if its digest matches, and the superblock says "open"
//!    before anything changes.
//!
//! # Lock order
//!
//! 1. Naming (create, open and delete a region).
//! 2. A region's state.
//! 3. The directory.
//! 4. The held snapshots.
//! 5. The free map.

mod audit;
mod commit;
mod directory;
mod format;
mod held;
mod load;
mod log;
mod open;
mod region;
mod space;
mod store;
mod table;
mod working;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::io::Errno;

pub use self::audit::Audit;
pub(crate) use self::commit::Stored;
use self::directory::Directory;
pub(crate) use self::format::{MAX_NAME, MAX_NODES, MAX_PAGES, PAGE, Page};
use self::format::{MapPlace, Record, Superblock};
use self::held::Holds;
use self::load::Loaded;
pub(crate) use self::log::find;
pub(crate) use self::open::create;
use self::region::Handle;
use self::space::Space;
pub(crate) use self::store::Store;
use self::working::Working;
use crate::engine::commits::part::PartLog;
use crate::engine::commits::stream::Commits;
use crate::engine::handle_state::HandleState;
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::options::{CommitLog, Order};
use crate::storage::{Barrier, Medium, MediumClass, MediumFile};

/// The barriers of this engine.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A new store is whole before its name points to it.
        CREATE_FILE = "snapshot.create.file";
        /// Bytes that a killed process left in the page cache are durable before the open relies on them.
        ATTACH_FILE = "snapshot.attach.file";
        /// The store's name is durable before anything in it is acknowledged, whichever process created it.
        ATTACH_NAME = "snapshot.attach.name";
        /// An open reads from the medium, not from pages that a failed flush left in the cache.
        ATTACH_CACHE = "snapshot.attach.cache";
        /// The superblock says "open" before the first change: otherwise a crash would leave an outdated free map. It
        /// also has the number of this session, so that no other session is mistaken for this one.
        OPEN = "snapshot.open";
        /// A region node is whole before its status says that it has a region.
        NODE = "snapshot.node";
        /// A created region exists after a crash.
        CREATED = "snapshot.created";
        /// A deleted region is durably gone before its pages go to another one.
        DELETED = "snapshot.deleted";
        /// The file's new length is durable before anything in it counts.
        GROW = "snapshot.grow";
        /// New pages of a page table are empty before something links to them.
        TABLE = "snapshot.table";
        /// Without digests: everything that a record covers is durable before the record is stored.
        DATA = "snapshot.data";
        /// A commit is durable before it is acknowledged, and before the pages it freed are reused.
        RECORD = "snapshot.record";
        /// The remains of a record that does not count are erased before the region is written to again.
        DISCARD = "snapshot.recover.discard";
        /// A check: a page that a commit gives up is kept back while a held snapshot names it.
        KEEP_BACK = "snapshot.keep-back";
    }
}

/// How a store is opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `None`: by the medium.
    pub(crate) order: Option<Order>,
    /// Region nodes of a new store.
    pub(crate) nodes: u32,
    /// Bytes that the file may grow to while open.
    pub(crate) max_len: u64,
    /// Pages by which it grows at least, if the disk has them.
    pub(crate) grow_by: u64,
    /// Whether a thread looks for free space after a crash.
    pub(crate) background: bool,
    /// Nothing is changed, and others may read at the same time.
    pub(crate) read_only: bool,
    /// How regions keep their commits for streams; `None` leaves each as it is.
    pub(crate) commit_log: Option<CommitLog>,
}

/// The state of a region, without opening it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionInfo {
    /// Its name.
    pub name: String,
    /// The limit of logical page numbers; all are below it.
    pub max_pages: u64,
    /// Pages allocated at the last commit.
    pub pages: u64,
    /// Number of the last commit, 0 before the first.
    pub commit: u64,
    /// Pages changed, allocated or freed since the last commit.
    pub pending: u64,
    /// Whether this process has an open handle to it.
    pub open: bool,
    /// Whether this process has it mapped; `pending` then does not count stores to its memory.
    pub mapped: bool,
    /// What is wrong with the region, if it is damaged; the numbers are then 0.
    pub damage: Option<String>,
}

/// The state of an open store.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreInfo {
    /// The path of the store's file.
    pub path: PathBuf,
    /// Its length in bytes.
    pub len: u64,
    /// The maximum number of regions.
    pub max_regions: u32,
    /// The current number of regions.
    pub regions: u32,
    /// Pages that can be allocated without growing the file. After a crash, while `scanning`, only those that the file
    /// grew by since.
    pub free_pages: u64,
    /// Pages in use, as far as known: by regions, their page tables, region nodes and superblocks.
    pub used_pages: u64,
    /// Whether the scan for free space still runs.
    pub scanning: bool,
    /// Whether the store was left by a crash, or dropped without [`close`](crate::region::RegionStore::close).
    pub recovered: bool,
    /// Fences (on a disk, flushes) of a commit that needs no new page-table page.
    pub order: Order,
    /// What is wrong with region nodes, in sentences.
    pub damage: Vec<String>,
}

/// What the face needs of an open store.
pub(crate) trait AnyStore: Send + Sync {
    fn path(&self) -> &Path;
    fn create_region(&self, name: &str, max_pages: u64) -> Result<Arc<dyn AnyRegion>>;
    fn open_region(&self, name: &str) -> Result<Arc<dyn AnyRegion>>;
    fn delete_region(&self, name: &str) -> Result<()>;
    fn list(&self) -> Result<Vec<RegionInfo>>;
    fn info(&self) -> Result<StoreInfo>;
    /// Looks at every region that has not been looked at since the crash.
    fn scan(&self) -> Result<()>;
    fn audit(&self) -> Result<Audit>;
    /// Leaves the free map. Called once, with no other call under way.
    fn close(&self) -> Result<()>;
}

/// What a face needs of an open region. Page numbers are the region's own.
pub(crate) trait AnyRegion: Send + Sync {
    fn name(&self) -> &str;
    /// The store's file.
    fn path(&self) -> &Path;
    fn info(&self) -> Result<RegionInfo>;
    /// Allocates pages in a row, from `at` on or where there is room. Returns the first.
    fn alloc(&self, at: Option<u64>, count: u64) -> Result<u64>;
    fn free(&self, logical: u64) -> Result<()>;
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;
    fn write(&self, offset: u64, src: &[u8]) -> Result<()>;
    fn pages(&self) -> Result<Vec<u64>>;
    /// Which pages of the store have the contents of these at the last commit; 0 for those that have none.
    fn stored(&self, pages: &[u64]) -> Result<Vec<u64>>;
    /// Reads such a page of the store, without waiting for anything. A commit leaves it as it is, and the one after
    /// next may not: what it has then is for the caller to know.
    fn read_stored(&self, page: u64, dst: &mut [u8]) -> Result<()>;
    /// Which pages of the store have the contents of these, of each that is as the last commit has it; 0 for others,
    /// and for pages of zeros.
    fn unchanged(&self, pages: Range<u64>) -> Result<Vec<u64>>;
    /// The store's file, if the program can map pages of it: a private mapping tells its stores from the file's pages.
    fn mappable(&self) -> Option<BorrowedFd<'_>>;
    /// Commits what is pending, and with it what a mapping has.
    fn pmsync(&self, stored: &Stored<'_>) -> Result<u64>;
    fn rollback(&self) -> Result<()>;
    /// Pages allocated since the last commit.
    fn fresh(&self) -> Result<Vec<u64>>;
    /// # Errors
    /// [`Error::Forked`] in a forked child.
    fn ours(&self) -> Result<()>;
    /// # Errors
    /// Why the store takes no changes.
    fn writable(&self) -> Result<()>;
    /// The way to the region for a mapping; as long as it is there, every other one is refused.
    fn map(&self) -> Result<Arc<dyn AnyRegion>>;
    /// Holds the region at its last commit.
    fn hold(&self) -> Result<Box<dyn AnyHeld>>;
    /// The commits after this one, from the region's log.
    fn commits(&self, from: u64) -> Result<Box<dyn Commits>>;
    /// The same for a registered consumer.
    fn consumer(&self, name: &str, from: Option<u64>) -> Result<Box<dyn Commits>>;
}

/// A region at one commit, for as long as somebody holds this.
pub(crate) trait AnyHeld: Send + Sync {
    fn name(&self) -> &str;
    /// The store's file.
    fn path(&self) -> &Path;
    fn commit(&self) -> u64;
    /// Allocated pages, ascending.
    fn pages(&self) -> Vec<u64>;
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()>;
}

/// One open store, shared by the handles of it and of its regions.
struct Core<M: Medium> {
    handle_state: HandleState,
    medium: Arc<M>,
    class: MediumClass,
    file: M::File,
    settings: Settings,
    order: Order,
    /// Held by whoever creates, opens or deletes a region.
    naming: Mutex<()>,
    directory: Mutex<Directory<M>>,
    /// Regions whose pages are not marked in the free map, and broken nodes, which may have pages too.
    uncounted: AtomicUsize,
    holds: Mutex<Holds>,
    space: Mutex<Space>,
    superblock: Mutex<Superblock>,
    /// It had been closed cleanly.
    was_clean: bool,
    /// Something is amiss that the free map of a clean close would hide from the next open.
    untidy: AtomicBool,
    /// Tells the thread that scans to give up.
    stop: AtomicBool,
}

/// One region of an open store, whether or not a program has it open.
struct Region<M: Medium> {
    /// Page of its node.
    node: u64,
    name: String,
    uid: [u8; 16],
    max_pages: u64,
    /// Whether its pages are marked in the free map.
    counted: AtomicBool,
    state: Mutex<State<M>>,
}

struct State<M: Medium> {
    /// The region at its last commit, while somebody needs it.
    loaded: Option<Loaded>,
    /// Commit number and pages, once known.
    summary: Option<(u64, u64)>,
    working: Working,
    /// The handle that programs share, and how many there were before it.
    handle: Weak<Handle<M>>,
    session: u64,
    /// A mapping has the pages as the program sees them; only it may use the region.
    mapped: bool,
    deleted: bool,
    /// The log of its commits, if it has one, while programs have the region open.
    log: Option<PartLog<M>>,
}

impl<M: Medium> Region<M> {
    fn new(node: u64, name: String, uid: [u8; 16], max_pages: u64, counted: bool) -> Self {
        let (loaded, summary, working, handle) = (None, None, Working::default(), Weak::new());
        let (session, mapped, deleted, log) = (0, false, false, None);
        let state = Mutex::new(State { loaded, summary, working, handle, session, mapped, deleted, log });
        Region { node, name, uid, max_pages, counted: AtomicBool::new(counted), state }
    }

    /// What is wrong, at a page of the store.
    fn damaged(&self, path: &Path, page: u64, what: &str) -> Error {
        Error::Corrupt {
            path: path.to_owned(),
            offset: Some(page.saturating_mul(PAGE)),
            what: format!("region {:?}: {what}", self.name),
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panic under one of these locks leaves is either whole or bound to a commit that did not happen.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M: Medium> Core<M> {
    fn path(&self) -> &Path {
        self.handle_state.path()
    }

    /// Makes this thread's stores durable; a failure ends all promises.
    fn fence(&self, barrier: Barrier) -> Result<()> {
        self.medium.fence(barrier, &[&self.file]).map_err(|error| self.handle_state.poison(error))
    }

    fn regions(&self) -> Vec<Arc<Region<M>>> {
        locked(&self.directory).regions().cloned().collect()
    }

    /// Takes pages from the free map, growing the file if it has too few.
    ///
    /// If there is no space, all held snapshots end, and their pages are there.
    ///
    /// # Errors
    /// A full disk. Nothing is taken then.
    fn take_pages(&self, count: usize) -> Result<Vec<u64>> {
        self.take_free(count).or_else(|full| {
            let freed = locked(&self.holds).end_all();
            if freed.is_empty() || self.handle_state.writable().is_err() {
                return Err(full);
            }
            tracing::warn!(store = %self.path().display(), error = %full, "no space for the held snapshots; they end");
            self.release_pages(freed);
            self.take_free(count)
        })
    }

    fn take_free(&self, count: usize) -> Result<Vec<u64>> {
        let mut space = locked(&self.space);
        let missing = (count as u64).saturating_sub(space.free());
        if missing > 0 {
            self.grow(&mut space, missing)?;
        }
        let taken: Vec<u64> = (0..count).map_while(|_| space.take()).collect();
        debug_assert_eq!(taken.len(), count, "the free map gives what it says it has");
        Ok(taken)
    }

    fn release_pages(&self, pages: impl IntoIterator<Item = u64>) {
        let mut space = locked(&self.space);
        pages.into_iter().for_each(|page| space.release(page));
    }

    /// Makes the file longer by `missing` pages at least.
    fn grow(&self, space: &mut Space, missing: u64) -> Result<()> {
        // An eighth more each time: as the file becomes longer, growing it becomes rarer.
        let ample = missing.max(self.settings.grow_by).max(space.pages() / 8);
        let grown = self.grow_to(space, space.pages() + ample);
        if grown.is_err() && ample > missing && self.handle_state.writable().is_ok() {
            return self.grow_to(space, space.pages() + missing);
        }
        grown
    }

    fn grow_to(&self, space: &mut Space, pages: u64) -> Result<()> {
        let (from, to) = (space.pages() * PAGE, pages * PAGE);
        if to > self.settings.max_len {
            return Err(Error::io("allocate space within max_len in", self.path(), Errno::NOSPC));
        }
        self.file.set_len(to)?;
        if self.class == MediumClass::PersistentMemory {
            self.file.allocate(from, to - from)?;
        }
        self.file.sync(barriers::GROW).map_err(|error| self.handle_state.poison(error))?;
        space.extend(pages);
        Ok(())
    }

    /// Opens the whole free map if every region has been looked at.
    fn complete_if_scanned(&self) {
        let scanned = self.uncounted.load(Ordering::Acquire) == 0;
        let mut space = locked(&self.space);
        if scanned && !space.is_complete() {
            space.complete();
        }
    }

    /// Notes that the pages of a region are marked in the free map, or that it is gone.
    fn mark_counted(&self, region: &Region<M>) {
        if !region.counted.swap(true, Ordering::AcqRel) {
            self.uncounted.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Leaves the free map for the next open. It counts only if all of it arrives, so it costs no fence; nothing but
    /// the time of a scan is lost with it.
    ///
    /// # Errors
    /// A failed write. The next open then scans.
    fn leave_map(&self) -> Result<()> {
        let mut space = locked(&self.space);
        if !space.is_complete() || self.untidy.load(Ordering::Acquire) {
            return Ok(());
        }
        let pages_of = |space: &Space| MapPlace::bytes(space.pages()).div_ceil(PAGE);
        let at = match space.run(pages_of(&space)) {
            Some(at) => at,
            None => {
                let end = space.pages();
                // A map of the longer file may need a page more.
                let more = pages_of(&space) + 1;
                self.grow_to(&mut space, end + more)?;
                end
            }
        };
        let bytes = space.bytes();
        self.file.write(at * PAGE, &bytes)?;
        let mut superblock = locked(&self.superblock);
        superblock.map = Some(MapPlace { pages: space.pages(), at, sum: format::map_sum(&bytes) });
        superblock.write(&self.file)
    }

    /// The number of a region's last commit and its pages, at best without reading its page table.
    fn summary(&self, region: &Region<M>, state: &mut State<M>) -> Result<(u64, u64)> {
        if let Some(summary) = state.summary {
            return Ok(summary);
        }
        if self.was_clean {
            let mut page = [0; PAGE as usize];
            self.file.read(region.node * PAGE, &mut page)?;
            let newest = Record::both(&page, &region.uid).into_iter().next();
            let none = || region.damaged(self.path(), region.node, "neither commit record is valid");
            let newest = newest.ok_or_else(none)?;
            return Ok(*state.summary.insert((newest.commit, newest.pages)));
        }
        self.load(region, state)?;
        let summary = state.loaded.as_ref().map(Loaded::summary).unwrap_or_default();
        if state.handle.strong_count() == 0 {
            state.loaded = None;
        }
        Ok(summary)
    }

    fn describe(&self, region: &Region<M>) -> RegionInfo {
        let mut state = locked(&region.state);
        let summary = self.summary(region, &mut state);
        let (commit, pages) = *summary.as_ref().unwrap_or(&(0, 0));
        RegionInfo {
            name: region.name.clone(),
            max_pages: region.max_pages,
            pages,
            commit,
            pending: state.working.len(),
            open: state.handle.strong_count() > 0,
            mapped: state.mapped,
            damage: summary.err().map(|error| error.to_string()),
        }
    }
}
