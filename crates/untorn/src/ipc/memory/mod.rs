//! A working copy that several processes share. Each process loads from it and stores to it with plain instructions.
//! The changed pages are known exactly, and a commit is a cut through the stores of all threads at one instant.
//!
//! # How it works
//!
//! 1. The working copy is a memory file (`memfd_create(2)`), mapped shared by each process. A second such file, the
//!    *control block*, holds what all processes must know: which pages are dirty, and the progress of a commit.
//! 2. Each process registers its mapping with its own userfaultfd, so the first load of a page that no process had yet
//!    traps, and so does the first store. Before the first page of a 2 MiB *chunk* is in memory, the chunk is
//!    write-protected in every process, including pages that do not exist yet. So the first store of a process to a
//!    page traps. The marks of a chunk take a page of a page table: a process has page tables for what some process
//!    has touched, and not for the length.
//! 3. The storing thread handles its own trap (SIGBUS, and untorn's handler for lost pages): it passes the *gate*, sets
//!    the page's dirty bit and this process's writable bit, and asks the kernel to allow stores.
//! 4. One process *serves*: it alone has the file open behind the working copy ([`Backing`]), and has a userfaultfd of
//!    every process, passed over a socket. A trapped load sends it a message and waits until the page is filled.
//! 5. For a commit, the server closes the gate, waits until no thread is in the middle of 3, protects every dirty page
//!    in every process in which it is writable, and opens the gate. From the instant when all are protected, the memory
//!    is the cut. The server copies the dirty pages, to each of which no thread may store until then. It hands the
//!    copies to the backing in another thread. Commits requested meanwhile share the next cut.
//! 6. The process that serves holds a lock that the kernel releases when the process dies. The others detect its end by
//!    a handle of the process, or by the end of the connection. One of them gets the lock, opens the backing, which
//!    recovers its last durable commit, and makes the pages of an unfinished commit dirty again. All others send it
//!    their userfaultfds and their unanswered requests.
//!
//! # The death of a process
//!
//! - *One that only stores*: its stores so far are in the working copy, as those of an ended thread are. If it was in
//!   the middle of 3, the page counts as dirty.
//! - *The one that serves*: stores go on, since they need no server. Loads of pages that no process had yet, and
//!   commits, wait for the next server. So does a store that a cut was holding up. Pages stay protected throughout:
//!   each process keeps its own userfaultfd open. The next server fills no page of an untouched chunk before all
//!   processes are back: it could not protect the chunk in the others.
//! - *All of them*: the working copy is gone, and the file is at its last commit.
//!
//! A stopped process (SIGSTOP, a debugger) can be told from a dead one, and the others wait for it. If it serves, all
//! wait. If not, commits and loads from untouched chunks wait after another server has come, because they need its
//! userfaultfd. While one of its
//! threads is stopped within 3, commits are refused, each after five seconds.
//!
//! A killed process keeps its files while a child lives that it had forked and that runs no other program: the child
//! has the descriptor, and so the lock of the backing. Stores go on, and commits wait up to some 30 s until the child
//! ends. Then the working copy is poisoned. Nothing is torn by it, nor committed twice. A child does not inherit the
//! locks that say which process serves and which processes live.
//!
//! # A process that lacks descriptors or memory
//!
//! A process that cannot take over, or cannot rejoin the one that did, tries for a second and is then *evicted*. Its
//! calls fail. Before it gives up its slot, it replaces its mapping of the working copy by private memory, because
//! stores to a page that is writable there would not trap any more. The others go on. A process that serves and cannot
//! let another one rejoin leaves the serving to others after a second. The working copy is poisoned for all only if the
//! file itself cannot be opened again.
//!
//! # What the kernel does (tried on Linux 6.18, as the tests here do)
//!
//! - Protecting a range of shared memory also marks pages that are not mapped, or do not exist. The mark survives
//!   MADV_DONTNEED, MADV_PAGEOUT, punched holes, and the file being made shorter and longer. A page that another
//!   process filled, or made writable for itself, is therefore mapped read-only here, and the first store traps.
//! - Protecting 1 GiB takes 4 ms when nothing is mapped; a page takes 1.7 µs, each further one of a range 0.1 µs.
//! - A trap by signal took 5–12 µs until the store was done (longer if the thread had slept longer before). A trap by a
//!   thread that reads events took 8–10 µs while another CPU was busy, but 65–90 µs when it was idle, because two CPUs
//!   must wake up then. So the storing thread serves itself.
//! - The kernel's own stores to a protected page (`read(2)` into it), and its loads from a missing one, fail with
//!   EFAULT: use [`SharedMemory::open_range`] for these. Devices store to memory that was pinned before a cut (direct
//!   I/O, registered buffers) unnoticed: do not direct such I/O into a working copy.
//!
//! # What it costs (two busy cores, `tests/costs.rs`)
//!
//! The first store to a page after a commit: p50 4.9 µs, and 7–10 µs by a thread that had slept. The longest stall of a
//! writer during a commit of 64 pages: p50 33–82 µs in most runs, with one writer and with three. Where threads
//! outnumber cores, a preempted one runs again after milliseconds. From the death of the server to the next commit: p50
//! 3.5 ms, 9 ms at most.
//!
//! # What it requires of the program
//!
//! - Threads that store do not block SIGBUS, and a SIGBUS handler that the program installs later calls the one it
//!   replaced.
//! - The processes belong to one user and trust each other: they share memory.
//! - A forked child does not have the mapping.

mod backing;
mod committer;
mod control;
mod cut;
mod fault_handler;
mod join;
mod member;
mod owner;
mod server;
#[cfg(test)]
pub(crate) mod tests;

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};

pub(crate) use backing::{Backing, Before, Cut, Opener, Takeover, cause_of};

use self::control::PAGE;
pub(crate) use self::fault_handler::BetweenCuts;
use self::fault_handler::FaultHandler;
use self::member::{Asked, Member};
use crate::error::{Error, Result};
use crate::ipc::connection;
use crate::ipc::membership::{Member as _, lock};
use crate::ipc::message::Kind;
use crate::ipc::rendezvous::Rendezvous;
use crate::sys::direct::read_once;
use crate::sys::fault::{MappingWatch, none_lost};
use crate::sys::incarnation;
use crate::sys::socket::Line;

/// Bytes that are read from a descriptor at once, at most.
const READ_AT_ONCE: usize = 1 << 20;

/// This process's handle of shared memory. Dropping it leaves.
pub(crate) struct SharedMemory {
    member: Arc<Member>,
    watcher: Option<JoinHandle<()>>,
    process: u64,
    left: bool,
}

impl SharedMemory {
    /// Takes part in the working copy whose processes meet at `name` in the directory `dir`, or begins one, of what
    /// `opener` opens. It has address space for `reserve` bytes, the file's length at least, as the process that
    /// began it wanted.
    ///
    /// Who may take part is said by the permissions of the directory and decided by the user: all processes are one
    /// user's. That no second working copy of the file is begun elsewhere is the backing's to see to, by its lock.
    ///
    /// # Errors
    /// [`Error::InUse`] if this process takes part already, or those who do can't be joined; those of the opener;
    /// [`Error::Io`], which says what is missing where the kernel or a filter doesn't allow it.
    pub(crate) fn open(file: &Path, dir: &Path, name: &str, opener: Arc<dyn Opener>, reserve: u64) -> Result<Self> {
        crate::sys::userfault::probe().map_err(|error| Error::io("share plain stores to", file, error))?;
        // Before others count on this process: what follows the joining must be quick.
        crate::sys::fault::prepare().map_err(|error| Error::io("watch the working copy of", file, error))?;
        let rendezvous = Arc::new(Rendezvous::open_for(file, dir, name, opener.holder_here())?);
        let joined = join::join(&rendezvous, &opener, reserve)?;
        let failed = |error| Error::io("watch the working copy of", rendezvous.path(), error);
        let (pages, tracker) = (Arc::new(joined.pages), Arc::new(joined.tracker));
        let (line, evicted) = (Arc::new(Line::new(joined.connection.socket)), Arc::new(AtomicBool::new(false)));
        let fault_handler = || FaultHandler {
            control: Arc::clone(&joined.control),
            tracker: Arc::clone(&tracker),
            process: incarnation(),
            base: pages.address(),
            slot: rendezvous.slot(),
            line: Arc::clone(&line),
            evicted: Arc::clone(&evicted),
            idle: AtomicU32::new(0),
        };
        let stop = connection::event().map_err(failed)?;
        let watch = MappingWatch::kept(pages.address(), pages.reserved(), Box::new(fault_handler())).map_err(failed)?;
        let member = Arc::new(Member {
            fault_handler: fault_handler(),
            opener,
            control: Arc::clone(&joined.control),
            pages: Arc::clone(&pages),
            tracker: Arc::clone(&tracker),
            line: Arc::clone(&line),
            watch: Mutex::new(Some(watch)),
            stop,
            asked: Mutex::new(Asked::default()),
            answered: Condvar::new(),
            owner: Mutex::new(joined.owner),
            resigned: Mutex::default(),
            evicted: Arc::clone(&evicted),
            rendezvous: Arc::clone(&rendezvous),
        });
        let (watching, server) = (Arc::clone(&member), joined.connection.server);
        let watcher =
            thread::Builder::new().name("untorn-watcher".to_owned()).spawn(move || watching.take_part(server));
        Ok(SharedMemory { watcher: Some(watcher.map_err(failed)?), member, process: incarnation(), left: false })
    }

    /// Bytes of the shared memory now; 0 in a forked child, which does not have it.
    pub(crate) fn len(&self) -> u64 {
        if self.is_ours() { self.member.control.len() } else { 0 }
    }

    /// The file that errors name.
    pub(crate) fn path(&self) -> &Path {
        self.member.rendezvous.path()
    }

    /// Bytes that it can grow to.
    pub(crate) fn reserved(&self) -> u64 {
        self.member.control.reserved() * PAGE as u64
    }

    /// The number of the last commit; 0 in a forked child.
    pub(crate) fn last_commit(&self) -> u64 {
        if self.is_ours() { self.member.control.commit() } else { 0 }
    }

    /// On what terms the process that came first opened the backing.
    pub(crate) fn negotiated(&self) -> String {
        self.member.control.negotiated()
    }

    /// The address of the first byte; [`reserved`](SharedMemory::reserved) bytes belong to the shared memory, and those
    /// beyond its length are lost pages.
    pub(crate) fn address(&self) -> *mut u8 {
        self.member.pages.at(0)
    }

    /// Some of the memory as words that are loaded and stored whole. All who share it must treat these bytes so.
    ///
    /// # Panics
    /// If `offset` is no multiple of 8, or they lie beyond what is reserved.
    pub(crate) fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        self.member.pages.words(offset, count)
    }

    /// Copies bytes out, which others may be storing to.
    ///
    /// # Errors
    /// As for [`check`](SharedMemory::check); what was copied may be zeros then.
    ///
    /// # Panics
    /// If they lie beyond what is reserved.
    pub(crate) fn load(&self, offset: usize, into: &mut [u8]) -> Result<()> {
        self.member.pages.copy_out(offset, into);
        // Whoever is cut off in the middle, or finds a page lost, has copied zeros. None of it was loaded after this
        // is asked.
        fence(Ordering::Acquire);
        self.check()
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// As for [`check`](SharedMemory::check); what was copied may reach nobody then.
    ///
    /// # Panics
    /// If they lie beyond what is reserved.
    pub(crate) fn store(&self, offset: usize, from: &[u8]) -> Result<()> {
        self.member.pages.copy_in(offset, from);
        self.check()
    }

    /// Makes all stores of all processes, up to one instant after this call began, durable together; gives the number
    /// of the commit. Stores of this thread before the call are among them.
    ///
    /// # Errors
    /// Those of the backing, in words; [`Error::Poisoned`], [`Error::Forked`].
    pub(crate) fn commit(&self) -> Result<u64> {
        self.request(Kind::Commit, "commit", 0)
    }

    /// Takes the stores of all processes since the last commit back.
    ///
    /// # Errors
    /// As for [`commit`](SharedMemory::commit).
    pub(crate) fn roll_back(&self) -> Result<u64> {
        self.request(Kind::RollBack, "roll back", 0)
    }

    /// Makes the shared memory `len` bytes long in all processes, and commits.
    ///
    /// # Errors
    /// [`Error::Invalid`] if that is shorter than it is, or more than is reserved; as for
    /// [`commit`](SharedMemory::commit).
    pub(crate) fn grow(&self, len: u64) -> Result<u64> {
        self.request(Kind::Grow, "grow", len)
    }

    /// Lets the kernel load from a range of bytes and store to it, as `read(2)` and `write(2)` do, which can't be
    /// trapped: until the next commit, by whomever, after which the kernel's stores fail with EFAULT again. The range
    /// counts as changed.
    ///
    /// # Errors
    /// [`Error::OutOfRange`], [`Error::Forked`]; [`Error::Poisoned`] if the process has lost touch with the others.
    pub(crate) fn open_range(&self, range: Range<u64>) -> Result<()> {
        self.check()?;
        let path = || self.member.rendezvous.path().to_owned();
        let (len, file_len) = (range.end.saturating_sub(range.start), self.len());
        if range.end > file_len || range.start > range.end {
            return Err(Error::OutOfRange { path: path(), offset: range.start, len, file_len });
        }
        let fault_handler = &self.member.fault_handler;
        for page in range.start / PAGE as u64..range.end.div_ceil(PAGE as u64) {
            if !(fault_handler.fetch(page) && fault_handler.open(page)) {
                return Err(self.unserved());
            }
        }
        Ok(())
    }

    /// Reads from where a descriptor stands, and stores what comes, which may be less than `len` bytes; how many it
    /// was, 0 at the end of the source.
    ///
    /// The kernel reads into a buffer. Into the memory itself it could only as long as nobody commits, and what it
    /// fails to store there not every source gives a second time.
    ///
    /// # Errors
    /// Those of `read(2)`; as for [`store`](SharedMemory::store).
    ///
    /// # Panics
    /// If they lie beyond what is reserved.
    pub(crate) fn read_from(&self, source: BorrowedFd<'_>, offset: usize, len: usize) -> Result<usize> {
        self.check()?;
        let stored = read_once(source, len.min(READ_AT_ONCE), |bytes| self.store(offset, bytes).map(|()| bytes.len()));
        stored.map_err(|error| Error::io("read from a descriptor for", self.path(), error))?
    }

    fn unserved(&self) -> Error {
        let cause = "no process serves the shared file any more".to_owned();
        self.check().err().unwrap_or_else(|| Error::Poisoned { path: self.member.rendezvous.path().to_owned(), cause })
    }

    /// Sees to it that pages are in memory.
    ///
    /// # Errors
    /// [`Error::Poisoned`], or [`Error::Io`] of a lost page, if that is not to be had.
    pub(crate) fn bring_in(&self, pages: Range<u64>) -> Result<()> {
        for page in pages {
            if !self.member.fault_handler.fetch(page) {
                return Err(self.unserved());
            }
        }
        Ok(())
    }

    /// Does something while no commit takes its cut, and no rollback takes anything back. Both wait for it, and after
    /// five seconds fail. It loads from pages only that are in memory, and stores to those only that it has
    /// [opened](BetweenCuts::open).
    pub(crate) fn between_cuts<T>(&self, act: impl FnOnce(&BetweenCuts<'_>) -> T) -> T {
        self.member.fault_handler.between_cuts(act)
    }

    /// The sessions in which whoever served may have had the backing.
    #[cfg(test)]
    pub(crate) fn sessions(&self) -> [u64; 2] {
        self.member.control.sessions()
    }

    /// Has a page that nobody has loaded be lost, as when there is no memory for it.
    #[cfg(test)]
    pub(crate) fn lose(&self, page: u64) {
        self.member.control.poison("there is no memory for a page");
        self.member.control.set_lost(page);
    }

    /// Whether somebody has loaded a page, or stored to it, so that it is in memory.
    pub(crate) fn has(&self, page: u64) -> bool {
        self.member.control.present().get(page)
    }

    /// Whether this process is the one that serves just now.
    pub(crate) fn is_owner(&self) -> bool {
        // In this order: a thread of the parent's may have held the lock when this process was forked.
        self.is_ours() && lock(&self.member.owner).is_some()
    }

    /// Leaves. What this process stored stays; uncommitted stores go when the last process has left.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Poisoned`] if the process had lost touch with the others.
    pub(crate) fn leave(mut self) -> Result<()> {
        // Also where nothing more is promised: that ends when all have left.
        self.in_touch()?;
        self.left = true;
        self.member.request(Kind::Leave, "leave", 0).map(drop)
    }

    fn request(&self, kind: Kind, operation: &'static str, a: u64) -> Result<u64> {
        self.check()?;
        self.member.request(kind, operation, a)
    }

    /// # Errors
    /// [`Error::Forked`] in a forked child, which does not have the memory; [`Error::Io`] once a page was lost, and
    /// [`Error::Poisoned`] once nothing more is promised, or the process has lost touch with the others: there may be
    /// zeros then where something is, of which this thread's loads so far are told.
    pub(crate) fn check(&self) -> Result<()> {
        self.in_touch()?;
        // Before zeros take the place of what cannot be read it is noted that nothing more is promised.
        match self.member.control.poisoned() {
            Some(cause) => Err(Error::Poisoned { path: self.member.rendezvous.path().to_owned(), cause }),
            None => Ok(()),
        }
    }

    /// [`check`](SharedMemory::check), but for what concerns all who share it.
    fn in_touch(&self) -> Result<()> {
        let path = || self.member.rendezvous.path().to_owned();
        if !self.is_ours() {
            return Err(Error::Forked { path: path() });
        }
        // First, as pages that it needs from then on are lost for no other reason.
        if self.member.evicted.load(Ordering::Relaxed) {
            let cause = lock(&self.member.asked).evicted.clone();
            let unknown = "this process lost its connection to the processes that share the file";
            return Err(Error::Poisoned { path: path(), cause: cause.unwrap_or_else(|| unknown.to_owned()) });
        }
        if !none_lost()
            && let Some(offset) = lock(&self.member.watch).as_ref().and_then(MappingWatch::lost)
        {
            return Err(Error::page_lost("load from or store to", &path(), offset));
        }
        Ok(())
    }

    fn is_ours(&self) -> bool {
        self.process == incarnation()
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        if !self.is_ours() {
            // A forked child has neither the mapping nor the threads: what it inherited of them stays as it is.
            return std::mem::forget((Arc::clone(&self.member), self.watcher.take()));
        }
        if !self.left {
            // If it can't be said the end of the connection says it.
            let _ = self.member.request(Kind::Leave, "leave", 0);
        }
        connection::notify(&self.member.stop);
        if let Some(watcher) = self.watcher.take() {
            let _ = watcher.join();
        }
        // Ends the serving, if it is here; another process goes on with it.
        drop(lock(&self.member.owner).take());
    }
}
