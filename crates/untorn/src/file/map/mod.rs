//! [`AtomicMap`]: plain loads and stores, committed together.
//!
//! # Safety
//! The memory of a map is a private mapping that belongs to it from construction to drop. It is lent as slices:
//! shared ones for as long as the map is borrowed, one exclusive one for as long as it is borrowed exclusively. What
//! changes the memory otherwise (giving pages back to the file, whose bytes are the same; rolling back; the kernel's
//! handing in of the file's pages) happens under `&mut self`, when no slice is lent. That another program writes to
//! the file in spite of the lock on its sidecar is outside of what is promised here, as it is for every mapped file.
#![allow(unsafe_code)]

mod lent;
#[cfg(test)]
mod tests;
mod views;

use std::fmt;
use std::ops::{Deref, DerefMut, Index, IndexMut, Range};
use std::os::fd::AsFd;
use std::path::Path;
use std::ptr;
use std::slice::{self, SliceIndex};

use rustix::fs::{Mode, OFlags};

use self::lent::Lent;
use crate::engine::narrow::add_changed;
use crate::engine::snapshot::{HeldSnapshots, Snapshot};
use crate::engine::{Close, Engine, Info, LastCommit, Shared, check_range};
use crate::error::{Error, Result};
use crate::options::{DirtyTracking, Options};
use crate::storage::{MediumKind, detect};
use crate::sys::fault::none_lost;
use crate::sys::file::{identity, is_dax, uninterrupted};
use crate::sys::map::{FileMap, MapKind};
use crate::sys::page_size;
use crate::sys::runs::Runs;
use crate::sys::sync::Arc;
use crate::sys::tracking::{KEPT, Tracking};

/// Address space of a map that sets no maximum, unless twice its length is more.
const RESERVE: u64 = 64 << 20;

/// Whether other threads may store through a pointer while a commit runs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stores {
    Excluded,
    Running,
}

/// A file as plain memory: the program loads and stores freely, then calls [`commit`](AtomicMap::commit).
///
/// A commit makes every store since the last one durable together. After a crash at any instant the file holds exactly
/// the last commit. A crash, [`rollback`](AtomicMap::rollback), or dropping the map discards uncommitted stores; unlike
/// with a shared mapping, the kernel never writes them to the file. The address stays the same when the file grows.
///
/// Only one process has a file open as a map, through one `AtomicMap`. It lends slices under Rust's rules, so no store
/// can run during a commit. A program that stores through [`as_mut_ptr`](AtomicMap::as_mut_ptr) must ensure that
/// itself.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("counts");
/// use untorn::AtomicMap;
/// let mut map = AtomicMap::create(&path, 1 << 20)?;
/// map[100..105].copy_from_slice(b"hello");
/// map.view_mut::<[u64; 4]>(4096)?[3] = 7;
/// map.commit()?; // both, or neither
/// map[100] = b'j';
/// map.rollback()?;
/// assert_eq!(&map[100..105], b"hello");
/// map.close()?;
/// # Ok(()) }
/// ```
///
/// # How
/// The memory is a private mapping of the data file. A page that the program stores to becomes private to the process,
/// and the page tables tell which pages those are (see [`DirtyTracking`]). A commit compares them with the last commit
/// and writes what differs to the log of the [hybrid-log engine](crate::EngineKind::HybridLog) as one epoch. It costs
/// one device flush, or on persistent memory one fence, for any number of pages. The file itself gets the bytes later.
/// The engine does the recovery.
///
/// - Reading into the map with `read(2)` counts as storing to it.
/// - After a commit, untorn does not notice stores that a device makes through pinned memory (buffers registered with
///   io_uring, RDMA).
/// - A forked child has a copy of the stored and uncommitted pages, and may see what the parent commits in other pages.
///   Its stores never reach the file, and its calls fail with [`Error::Forked`].
/// - A lost page (another program truncated the file, the medium failed) reads as zeros from then on, and the next call
///   fails; see [`LostPage`](crate::options::LostPage).
///
/// Source: the Region System paper, §V-C; failure-atomic msync (Park and others, EuroSys 2013).
pub struct AtomicMap {
    memory: FileMap,
    tracking: Tracking,
    shared: Arc<Shared>,
    /// Length as the program sees it.
    len: u64,
    /// Number of the last commit, and the length then.
    commit: u64,
    committed_len: u64,
    /// Consumers of the commit log have not acknowledged it in time.
    is_awaited: bool,
    /// From this end of a page on all memory of the map is zeros.
    zeros_from: u64,
    /// Where the program may have stored to since the page tables were asked.
    lent: Lent,
    /// What was stored to and is not committed, as far as the page tables have been asked.
    stored: Runs,
    /// What of the process's own pages is committed.
    kept: Runs,
    /// Whether pages that were only read may seem to be stored to.
    suspects_reads: bool,
    read_only: bool,
}

impl fmt::Debug for AtomicMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AtomicMap").field("path", &self.path()).field("len", &self.len).finish()
    }
}

impl AtomicMap {
    /// The map of a file that was opened with [`Options::for_map`].
    pub(crate) fn new(shared: Arc<Shared>, options: &Options) -> Result<Self> {
        let engine = &*shared.engine;
        let path = engine.path();
        let info = engine.info();
        if options.read_only && info.reflected_pages > 0 {
            let what = "the sidecar holds committed bytes of this file, which plain loads cannot see; settle the file \
                        first (`untorn settle`), or read it as an AtomicFile";
            return Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
        }
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = file.map_err(|errno| Error::io("open", path, errno))?;
        let (device, inode, ..) = identity(file.as_fd()).map_err(|error| Error::io("examine", path, error))?;
        let opened = engine.identity()?;
        if (device, inode) != (opened.device, opened.inode) {
            let holder = "another process, which has replaced the file".to_owned();
            return Err(Error::InUse { path: path.to_owned(), holder });
        }
        let len = engine.len();
        let reserve = options.reserve_for_map(len, RESERVE);
        let memory = FileMap::new(file.as_fd(), MapKind::Private, len, reserve, options.lost_page);
        let memory = memory.map_err(|error| Error::io("map", path, error))?;
        // On persistent memory, where kernels do not tell a page of the file from one of the process's own.
        let is_dax = is_dax(file.as_fd()) || detect(path)?.kind == MediumKind::PersistentMemory;
        let method = match options.dirty_tracking {
            DirtyTracking::Auto if is_dax => DirtyTracking::PageTable,
            DirtyTracking::WriteProtect if is_dax => {
                let what = "on persistent memory only the page table can track stores: the kernel's DAX fault handler \
                            never returns for a released page that is write-protected; use DirtyTracking::PageTable or \
                            Auto";
                return Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
            }
            method => method,
        };
        let tracking = Tracking::new(memory.address(0) as usize, memory.reserved() as usize, method);
        let tracking = tracking.map_err(|error| Error::io("track stores to the mapping of", path, error))?;
        let reserved = memory.reserved();
        Ok(AtomicMap {
            memory,
            tracking,
            shared,
            len,
            commit: info.commit,
            committed_len: len,
            is_awaited: false,
            zeros_from: page_end(len),
            lent: Lent::nothing(reserved),
            stored: Runs::new(),
            kept: Runs::new(),
            suspects_reads: is_dax,
            read_only: options.read_only,
        })
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.shared
    }

    fn engine(&self) -> &dyn Engine {
        &*self.shared.engine
    }

    /// The data file's path.
    pub fn path(&self) -> &Path {
        self.engine().path()
    }

    /// The length in bytes, which is also the length of the slices.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The dirty tracking in use: [`WriteProtect`](DirtyTracking::WriteProtect) or
    /// [`PageTable`](DirtyTracking::PageTable).
    pub fn dirty_tracking(&self) -> DirtyTracking {
        self.tracking.method()
    }

    /// The number and the time of the last commit.
    pub fn last_commit(&self) -> LastCommit {
        self.engine().last_commit().into()
    }

    /// The state of the file. Its length is that of the open epoch.
    pub fn info(&self) -> Info {
        self.engine().info()
    }

    /// A pointer to the first byte. The address is the same until the map is dropped. Prefer a reference; this is for a
    /// program that follows its own pointers through the memory.
    pub fn as_ptr(&self) -> *const u8 {
        self.memory.address(0)
    }

    /// A pointer to the first byte, for stores. No store through it may run while a method that takes `&mut self` runs:
    /// the log could then hold bytes that do not match their checksum, and recovery could drop the commit. The one
    /// method beside which stores may run is [`commit_beside_stores`](AtomicMap::commit_beside_stores).
    ///
    /// Every commit from then on looks for stores in all of the map, at 3 ns for each of its pages in memory: 0.8 ms
    /// where 1 GiB is in memory, and [26 ns](DirtyTracking::PageTable) without userfaultfd. A page that the program
    /// never touched costs nothing, so a long sparse map stays cheap. No kernel has a faster answer: page tables have
    /// no summary of their dirty pages (`docs/kernel-facts.md`).
    ///
    /// Without such a pointer a commit looks only at what was lent since the last one. A program that needs pointers
    /// and short commits takes one from a slice after each commit, `map[range].as_mut_ptr()`, and stores through it
    /// until the next commit, not later.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.lent.note_pointer();
        self.memory.at(0)
    }

    /// Commits. When it returns, every store since the last commit, and the length, is durable. Returns the number of
    /// the commit. The cost grows with the number of stored pages, not with the length. It writes the bytes that differ
    /// from the last commit. If none does and the length is unchanged, it writes nothing, and the last commit stays the
    /// last.
    ///
    /// It looks for stores where the program had a reference for stores since the last commit, in steps of 2 MiB. Such
    /// a look costs 3 ns for each page in memory there, also for pages that were only loaded from. After a reference to
    /// more than 128 MiB, or once [`as_mut_ptr`](AtomicMap::as_mut_ptr) was called, it looks at all of the map.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the stored pages do not fit into the log ([`Options::log_size`]), and [`Error::Io`] if the
    /// log has no space on the disk: nothing is committed, and the call may be repeated. After a failed flush or a lost
    /// page, only reopening the file tells whether this commit is durable: all of it or nothing.
    /// [`Error::NotAcknowledged`] if it is made, and the consumers that it
    /// [awaits](crate::options::CommitLog::await_consumers) have not acknowledged it in time; a repeated call waits
    /// again.
    pub fn commit(&mut self) -> Result<u64> {
        self.commit_stores(Stores::Excluded)
    }

    /// Commits as [`commit`](AtomicMap::commit) does, while other threads may store through
    /// [`as_mut_ptr`](AtomicMap::as_mut_ptr). Every store that ended before the call is in the commit. A store that
    /// runs meanwhile is in it whole, in part or not at all, and whole in the next commit.
    ///
    /// It copies each stored page before it writes it to the log. It gives no committed page back to the file, so each
    /// page that was ever stored to stays in memory until a [`commit`](AtomicMap::commit) or
    /// [`rollback`](AtomicMap::rollback). Under [`DirtyTracking::PageTable`] it also compares all of these pages with
    /// the last commit.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use std::sync::atomic::{AtomicU64, Ordering};
    /// let mut map = untorn::AtomicMap::create(dir.path().join("counts"), 8192)?;
    /// let counter = map.as_mut_ptr() as usize; // an address that another thread may use
    /// std::thread::scope(|threads| {
    ///     threads.spawn(move || {
    ///         // SAFETY: the map outlives the thread, and nothing else stores here.
    ///         let counter = unsafe { AtomicU64::from_ptr(counter as *mut u64) };
    ///         (0..1000).for_each(|_| _ = counter.fetch_add(1, Ordering::Relaxed));
    ///     });
    ///     map.commit_beside_stores() // some count up to 1000
    /// })?;
    /// map.close()?; // 1000
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As for [`commit`](AtomicMap::commit).
    pub fn commit_beside_stores(&mut self) -> Result<u64> {
        self.commit_stores(Stores::Running)
    }

    fn commit_stores(&mut self, stores: Stores) -> Result<u64> {
        self.note_stores_beside(stores)?;
        let engine = &*self.shared.engine;
        if self.stored.is_empty() && self.len == self.committed_len {
            // It may be made, and not be acknowledged.
            return if self.is_awaited { engine.sync().inspect(|_| self.is_awaited = false) } else { Ok(self.commit) };
        }
        let within = self.stored.iter().map(|run| run.start..run.end.min(self.len)).filter(|run| !run.is_empty());
        match stores {
            Stores::Excluded => {
                let memory: &[u8] = self;
                let mut pieces = Vec::new();
                for run in within {
                    add_changed(engine, run.start, &memory[run.start as usize..run.end as usize], &mut pieces);
                }
                engine.write(&pieces)?;
            }
            // The log's checksum is over the copy, so that a store meanwhile can't make it wrong.
            Stores::Running => {
                let copies: Vec<(u64, Vec<u8>)> = within.map(|run| (run.start, self.copy_of(&run))).collect();
                let mut pieces = Vec::new();
                copies.iter().for_each(|(offset, bytes)| add_changed(engine, *offset, bytes, &mut pieces));
                engine.write(&pieces)?;
            }
        }
        // A page that was lost while it was copied into the log went there as zeros.
        self.check_memory()?;
        if engine.len() != self.len {
            // Shorter: the engine follows a growth at once. After this nothing fails that leaves the file in use, so
            // what is cut off here is never rolled back to.
            engine.resize(self.len)?;
        }
        let synced = engine.sync();
        (self.commit, self.is_awaited) = match &synced {
            Ok(commit) => (*commit, false),
            // It is made all the same, and cannot be rolled back.
            Err(Error::NotAcknowledged { commit, .. }) => (*commit, true),
            Err(_) => return synced,
        };
        tracing::debug!(path = %self.path().display(), commit = self.commit, "committed the stored pages");
        self.committed_len = self.len;
        let stored = std::mem::take(&mut self.stored);
        self.kept.add(&stored);
        if stores == Stores::Running {
            // A store between its copy and its page's release would be lost.
            return synced;
        }
        if let Err(error) = self.give_back(&stored) {
            // The commit is durable. What could not be given back stays in memory.
            tracing::warn!(path = %self.path().display(), %error, "cannot release committed pages; they stay in \
                                                                   memory");
        }
        synced
    }

    /// Takes a snapshot of the last commit: reads of it give the same bytes for as long as it is held, while the
    /// program stores and commits. Stores since the last commit are not in it.
    ///
    /// # Errors
    /// As for [`AtomicFile::snapshot`](crate::AtomicFile::snapshot).
    pub fn snapshot(&self) -> Result<Snapshot> {
        Snapshot::take(&self.shared)
    }

    /// The snapshots that are held of the file, and the bytes kept for them.
    pub fn snapshots(&self) -> HeldSnapshots {
        Snapshot::held(&self.shared)
    }

    /// Discards every store since the last commit and restores the length of that commit.
    ///
    /// # Errors
    /// [`Error::Io`] if the committed bytes cannot be read back. Some stores may already be discarded; the call may be
    /// repeated.
    pub fn rollback(&mut self) -> Result<()> {
        self.note_stores()?;
        for run in self.stored.iter() {
            self.become_the_file(run)?;
        }
        let stored = std::mem::take(&mut self.stored);
        self.kept = self.kept.without(&stored);
        if self.engine().len() != self.committed_len {
            // A growth that nobody has seen; the epoch that began with it ends.
            self.engine().resize(self.committed_len)?;
            self.commit = self.engine().sync()?;
        }
        self.len = self.committed_len;
        self.zeros_from = page_end(self.len);
        Ok(())
    }

    /// Changes the length. The new length commits or rolls back with the stores. New bytes are zeros. The address stays
    /// the same.
    ///
    /// # Errors
    /// [`Error::Invalid`] beyond [`Options::max_len`]; [`Error::Io`] if there is no space. After an error the length is
    /// unchanged.
    pub fn resize(&mut self, len: u64) -> Result<()> {
        // What was stored behind a shorter end is to be known when that is rolled back.
        self.note_stores()?;
        if len > self.memory.reserved() {
            let what = format!(
                "cannot grow to {len} bytes: the map keeps its address, and reserved {} bytes when it was opened; open \
                 it again with a larger max_len (default: 64 MiB or twice the length, whichever is larger)",
                self.memory.reserved()
            );
            return Err(Error::Invalid { path: self.path().to_owned(), what });
        }
        // A shorter length waits for the commit: until then the bytes behind it may be rolled back to.
        if len > self.engine().len() {
            self.engine().resize(len)?;
        }
        let old = std::mem::replace(&mut self.len, len);
        if len > old {
            self.clear(old..len.min(self.zeros_from));
        }
        self.zeros_from = self.zeros_from.max(page_end(len));
        Ok(())
    }

    /// Reads up to `len` bytes from the descriptor's position, as `read(2)` does, into the map at `offset`. They count
    /// as stored. Returns how many bytes it read, 0 at the end of the source.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let (path, log) = (dir.path().join("map"), dir.path().join("log"));
    /// # std::fs::write(&log, "what happened").unwrap();
    /// # let mut map = untorn::AtomicMap::create(&path, 8192)?;
    /// let log = std::fs::File::open(&log).unwrap();
    /// let read = map.read_from(&log, 4096, 1000)?;
    /// map.commit()?;
    /// # assert_eq!(read, 13);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfRange`] unless the whole range is within the length; nothing is read then. [`Error::Io`] with the
    /// error of `read(2)`, EFAULT if a page of the map was lost.
    pub fn read_from(&mut self, source: impl AsFd, offset: u64, len: usize) -> Result<usize> {
        check_range(self.path(), offset, len as u64, self.len)?;
        let into = &mut self[offset as usize..offset as usize + len];
        let read = uninterrupted(|| rustix::io::read(&source, &mut *into));
        read.map_err(|error| Error::io("read from a descriptor into", self.path(), error))
    }

    /// The page ranges that were stored to since the last commit, in bytes: what the next commit writes.
    ///
    /// # Errors
    /// [`Error::Io`] if the page tables cannot be read; [`Error::Poisoned`] or [`Error::Forked`] if the handle is no
    /// longer usable.
    pub fn uncommitted(&mut self) -> Result<Vec<Range<u64>>> {
        self.note_stores()?;
        Ok(self.stored.clone().into_ranges())
    }

    /// Commits, checkpoints the log and removes the sidecar: a closed file is a plain one. With
    /// [`Options::keep_sidecar`] the sidecar stays, and the next open does less.
    ///
    /// # Errors
    /// As for [`commit`](AtomicMap::commit). [`Error::NotClosed`] if the commit is durable and closing failed; the next
    /// open is at this commit.
    pub fn close(mut self) -> Result<()> {
        if self.read_only {
            return self.discard();
        }
        let commit = self.commit()?;
        let path = self.path().to_owned();
        self.discard().map_err(|error| error.after_commit(&path, commit))
    }

    /// Discards every store since the last commit and closes the file cleanly. Dropping the map does the same, but
    /// cannot report an error.
    ///
    /// # Errors
    /// [`Error::Io`] if a flush fails (the next open recovers the last commit), or if a page was lost.
    pub fn discard(self) -> Result<()> {
        let whole = self.check_memory();
        let closed = self.into_sole().map_or(Ok(()), |shared| shared.engine.close(Close::AsAsked));
        closed.and(whole)
    }

    /// Commits, checkpoints the log and removes the sidecar, as [`close`](AtomicMap::close) does by default. It fails
    /// if the file does not become a plain one.
    ///
    /// # Errors
    /// As for [`close`](AtomicMap::close).
    pub fn settle(mut self) -> Result<()> {
        self.commit()?;
        match self.into_sole() {
            Some(shared) => shared.engine.settle(),
            None => Ok(()),
        }
    }
}

impl AtomicMap {
    /// Asks the page tables for stores, and notes them: they tell each only once.
    fn note_stores(&mut self) -> Result<()> {
        self.note_stores_beside(Stores::Excluded)
    }

    fn note_stores_beside(&mut self, stores: Stores) -> Result<()> {
        // First of all: in a forked child these are the parent's page tables.
        self.engine().writable()?;
        self.check_memory()?;
        let lent = self.lent.below(self.zeros_from);
        if lent.is_empty() {
            return Ok(());
        }
        let own = self.kept.within(&lent).union(&self.stored.within(&lent));
        let (seen, all) = self.tracking.take_stored(&lent, &own);
        // Pages that stay in memory after their commit count as stored under `PageTable`.
        let stay = stores == Stores::Running && self.tracking.method() == DirtyTracking::PageTable;
        let seen = if self.suspects_reads || stay { self.sift(&seen, stores) } else { seen };
        self.stored.add(&seen);
        all.map_err(|error| Error::io("find the stores to the mapping of", self.path(), error))?;
        // Only now: what an error kept from being asked about is asked about the next time.
        self.lent.forget();
        Ok(())
    }

    /// The pages among `seen` whose bytes are not those of the last commit, or of which that can't be told. If no store
    /// can run, the others become the file's again, and are not seen the next time unless they are touched.
    fn sift(&self, seen: &Runs, stores: Stores) -> Runs {
        let page = page_size() as u64;
        let (engine, mut home) = (self.engine(), vec![0; page as usize]);
        let (mut changed, mut same) = (Runs::new(), Runs::new());
        for start in seen.iter().flat_map(|run| (run.start..run.end).step_by(page as usize)) {
            let end = (start + page).min(self.len);
            let home = &mut home[..end.saturating_sub(start) as usize];
            let is_same = !home.is_empty() && engine.read(start, home).is_ok();
            let is_same = is_same
                && match stores {
                    Stores::Excluded => *home == self[start as usize..end as usize],
                    Stores::Running => *home == self.copy_of(&(start..end))[..],
                };
            if is_same { &mut same } else { &mut changed }.push(start..start + page);
        }
        if stores == Stores::Running {
            return changed;
        }
        // What a commit that failed has in the engine is no commit yet; and of a page that the length cuts only a
        // part was looked at.
        let last = self.len.min(self.committed_len) / page * page;
        for run in same.without(&self.stored).iter().filter(|run| run.start < last) {
            // What stays is looked at again each time.
            let _ = self.become_the_file(&(run.start..run.end.min(last)));
        }
        changed
    }

    /// # Errors
    /// [`Error::Io`] once a page was lost: the memory does not hold what the file does from then on.
    fn check_memory(&self) -> Result<()> {
        match if none_lost() { None } else { self.memory.lost() } {
            Some(offset) => Err(Error::page_lost("load from or store to the mapping of", self.path(), offset)),
            None => Ok(()),
        }
    }

    /// After a commit: lets go of memory of the process's own that holds what the file holds, or will once the log has
    /// gone home. What was committed just now may well be stored to again.
    fn give_back(&mut self, just_now: &Runs) -> Result<()> {
        let end = page_end(self.len);
        if self.zeros_from > end {
            let cut_off = Runs::from_iter(std::iter::once(end..self.zeros_from));
            self.memory
                .release(end, self.zeros_from - end)
                .map_err(|error| Error::io("release memory of", self.path(), error))?;
            self.kept = self.kept.without(&cut_off);
        }
        self.zeros_from = end;
        let cold = match self.tracking.method() {
            // What stays in memory would count as stored to for ever.
            DirtyTracking::PageTable => self.kept.clone(),
            _ if self.kept.bytes() <= KEPT => return Ok(()),
            _ => self.kept.without(just_now),
        };
        for run in cold.iter() {
            self.become_the_file(run)?;
        }
        self.kept = self.kept.without(&cold);
        Ok(())
    }

    /// Makes pages those of the file again, with the bytes of the last commit.
    fn become_the_file(&self, run: &Range<u64>) -> Result<()> {
        let end = run.end.min(self.committed_len);
        if run.start < end {
            self.engine().deploy(run.start, end - run.start)?;
        }
        let released = self.memory.release(run.start, run.end - run.start);
        released.map_err(|error| Error::io("release memory of", self.path(), error))
    }

    /// A copy of a range within the length, for which other threads may store there meanwhile.
    fn copy_of(&self, range: &Range<u64>) -> Vec<u8> {
        let len = (range.end - range.start) as usize;
        let mut copy: Vec<u8> = Vec::with_capacity(len);
        // SAFETY: the range is within the mapping, and the new memory overlaps nothing. No reference to the range is
        // made, and any bytes are a valid copy: the caller of `as_mut_ptr` answers for stores that run meanwhile.
        unsafe { ptr::copy_nonoverlapping(self.memory.address(range.start), copy.as_mut_ptr(), len) };
        // SAFETY: the copy has initialized `len` bytes.
        unsafe { copy.set_len(len) };
        copy
    }

    /// Makes a range zeros, touching only pages that are not.
    fn clear(&mut self, range: Range<u64>) {
        let mut from = range.start;
        while from < range.end {
            let to = page_end(from + 1).min(range.end);
            let bytes = &mut self[from as usize..to as usize];
            if bytes.iter().any(|byte| *byte != 0) {
                bytes.fill(0);
            }
            from = to;
        }
    }

    /// Bytes within the length for stores, and the engine besides: an error can name the file while they are lent.
    fn lend(&mut self, range: Range<usize>) -> (&mut [u8], &dyn Engine) {
        self.lent.note(range.start as u64, range.len() as u64);
        // SAFETY: as for `deref`; the mapping is writable, and the exclusive borrow excludes every other slice of it.
        let bytes = unsafe { slice::from_raw_parts_mut(self.memory.at(0), self.len as usize) };
        (&mut bytes[range], &*self.shared.engine)
    }

    /// The engine, of which this is the only handle, once the memory is gone.
    fn into_sole(self) -> Option<Shared> {
        let AtomicMap { memory, tracking, shared, .. } = self;
        drop((memory, tracking));
        Shared::into_sole(shared)
    }
}

impl Deref for AtomicMap {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is at least `len` bytes long and lives as long as `self`. The shared borrow excludes
        // every method that changes it; see the module's documentation. A page without a byte of the file behind it
        // is replaced by one of zeros.
        unsafe { slice::from_raw_parts(self.memory.address(0), self.len as usize) }
    }
}

impl DerefMut for AtomicMap {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.lent.note_all();
        // SAFETY: as in `lend`.
        unsafe { slice::from_raw_parts_mut(self.memory.at(0), self.len as usize) }
    }
}

impl<I: SliceIndex<[u8]>> Index<I> for AtomicMap {
    type Output = I::Output;

    fn index(&self, index: I) -> &I::Output {
        &(**self)[index]
    }
}

/// Unlike a slice of all of the map, this tells the next commit where to look for stores.
impl<I: SliceIndex<[u8]>> IndexMut<I> for AtomicMap {
    fn index_mut(&mut self, index: I) -> &mut I::Output {
        let AtomicMap { memory, lent, len, .. } = self;
        // SAFETY: as in `lend`.
        let bytes = unsafe { slice::from_raw_parts_mut(memory.at(0), *len as usize) };
        let part = &mut bytes[index];
        let from = ptr::from_mut(part).cast::<u8>().addr() - memory.address(0).addr();
        lent.note(from as u64, size_of_val(part) as u64);
        part
    }
}

impl AsRef<[u8]> for AtomicMap {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for AtomicMap {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// The end of the page that the byte before `at` is on.
fn page_end(at: u64) -> u64 {
    at.next_multiple_of(page_size() as u64)
}
