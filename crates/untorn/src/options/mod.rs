//! How a file is opened: engine, durability, layout, and the choices that have a measured default.

mod choices;
mod exclusion;
mod map;
mod redundancy;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::choices::{DirtyTracking, Durability, EngineKind, Layout, LogPolicy, LostPage, Order, ReadPolicy, Trust};
pub(crate) use self::exclusion::Admission;
pub use self::redundancy::{Checksum, Damage, PageRange, ProtectOptions, StripeLayout, VerifyReads};
pub(crate) use self::redundancy::{DamageFn, Settings, as_kept};
use crate::error::{Error, Result};

/// A step of long work: recovery at open, settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, in a word or two.
    pub phase: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in all.
    pub total: u64,
}

/// A function called with the progress of long work.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// How to open a file. Start from [`Options::new`], end with [`open`](Options::open) or [`create`](Options::create).
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("ledger");
/// use untorn::{Durability, Options};
/// let file = Options::new().durability(Durability::PerCommit).create(&path, 1 << 20)?;
/// file.write_at(b"hello", 4000)?;
/// file.sync()?; // all since the last sync, or nothing
/// file.close()?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Options {
    pub(crate) engine: EngineKind,
    pub(crate) layout: Layout,
    pub(crate) durability: Option<Durability>,
    pub(crate) order: Order,
    pub(crate) read_policy: ReadPolicy,
    pub(crate) read_only: bool,
    pub(crate) verify: bool,
    pub(crate) max_len: Option<u64>,
    pub(crate) lanes: u32,
    pub(crate) slots: u32,
    pub(crate) log_policy: LogPolicy,
    pub(crate) redo_from: u8,
    pub(crate) log_size: u64,
    pub(crate) checkpointers: usize,
    pub(crate) trust: Option<Trust>,
    pub(crate) adopt: bool,
    pub(crate) lost_page: LostPage,
    pub(crate) dirty_tracking: DirtyTracking,
    /// No other handle of this process may have the file open.
    pub(crate) exclusive: bool,
    pub(crate) shared: bool,
    pub(crate) redundancy: Option<ProtectOptions>,
    pub(crate) verify_reads: Option<VerifyReads>,
    pub(crate) progress: Option<ProgressFn>,
    /// Who may open it. Of a file that is opened by its path it is set on the way.
    pub(crate) admission: Option<Arc<dyn Admission>>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            engine: EngineKind::Auto,
            layout: Layout::Auto,
            durability: None,
            order: Order::OneFence,
            read_policy: ReadPolicy::Gather,
            read_only: false,
            verify: true,
            max_len: None,
            lanes: 16,
            slots: 512,
            log_policy: LogPolicy::Hybrid,
            redo_from: 5,
            log_size: 1 << 36,
            checkpointers: 2,
            trust: None,
            adopt: false,
            lost_page: LostPage::Fail,
            dirty_tracking: DirtyTracking::Auto,
            exclusive: false,
            shared: false,
            redundancy: None,
            verify_reads: None,
            progress: None,
            admission: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("engine", &self.engine)
            .field("layout", &self.layout)
            .field("durability", &self.durability)
            .field("order", &self.order)
            .field("read_policy", &self.read_policy)
            .field("read_only", &self.read_only)
            .field("verify", &self.verify)
            .field("max_len", &self.max_len)
            .field("lanes", &self.lanes)
            .field("slots", &self.slots)
            .field("log_policy", &self.log_policy)
            .field("redo_from", &self.redo_from)
            .field("log_size", &self.log_size)
            .field("checkpointers", &self.checkpointers)
            .field("lost_page", &self.lost_page)
            .field("dirty_tracking", &self.dirty_tracking)
            .field("shared", &self.shared)
            .field("redundancy", &self.redundancy)
            .field("verify_reads", &self.verify_reads)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults: engine and durability chosen by the medium, one fence, gather on read.
    pub fn new() -> Self {
        Self::default()
    }

    /// The engine; the default is the one the file has, and reflection for a file that has none. A file that was closed
    /// cleanly under the hybrid log may be opened under another engine at once, any other one after
    /// [`settle`](crate::AtomicFile::settle): until then it is refused. A handle for reading takes the engine of the file.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// The sidecar's layout, when one is created.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// When a write is durable. Without it: what the file was created with, else what suits the medium.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// How many fences an atomic write costs.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// What a read of reflected slices does.
    #[must_use]
    pub fn read_policy(mut self, policy: ReadPolicy) -> Self {
        self.read_policy = policy;
        self
    }

    /// Opens for reading only: nothing is changed, not even to recover. Any number of processes may read a file at once;
    /// while one does, none opens it for writing.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Whether opening a cleanly closed file checks the digest of all reflected slices (default true). It reads them
    /// all; without it only the bitmaps are checked. A clean close of the hybrid log leaves nothing to check.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// The length in bytes the file may grow to while open. Address space is reserved for it, memory is not.
    /// Default: 1 TiB or twice the length, whichever is more.
    #[must_use]
    pub fn max_len(mut self, len: u64) -> Self {
        self.max_len = Some(len);
        self
    }

    /// The record area of a new sidecar: `lanes` threads write at once without meeting, each lane holds `slots` records
    /// of 64 bytes between two cuts. Both are rounded up to powers of two. Default 16 and 512.
    ///
    /// Of the hybrid log, `slots` is how many units of 4 KiB a chunk of the log has, at most 512, and so the longest entry;
    /// `lanes` has no meaning.
    #[must_use]
    pub fn record_area(mut self, lanes: u32, slots: u32) -> Self {
        self.lanes = lanes.checked_next_power_of_two().unwrap_or(u32::MAX);
        self.slots = slots.checked_next_power_of_two().unwrap_or(u32::MAX);
        self
    }

    /// What the hybrid-log engine logs; default [`LogPolicy::Hybrid`].
    #[must_use]
    pub fn log_policy(mut self, policy: LogPolicy) -> Self {
        self.log_policy = policy;
        self
    }

    /// The share of writes among the reads and writes of an epoch, in percent, from which on [`LogPolicy::Hybrid`] logs
    /// redo in the next one. Default 5: undo costs a fence at the first write of each block, and was measured faster only
    /// where hardly anything is written (`untorn bench hybrid-policy`). The Libnvmmio paper, §4.2.1, found 40.
    #[must_use]
    pub fn redo_from(mut self, percent: u8) -> Self {
        self.redo_from = percent;
        self
    }

    /// The most bytes that the hybrid-log engine's log may take, default 64 GiB. It starts small and grows as it must: all
    /// that one epoch writes has to fit, and a write that would not is refused ([`Error::Invalid`]) with nothing written.
    /// Rounded up to whole chunks, of 2 MiB by default, and to two of them. It holds for this opening: the file does not
    /// remember it, nor what the engine logs.
    #[must_use]
    pub fn log_size(mut self, bytes: u64) -> Self {
        self.log_size = bytes;
        self
    }

    /// Threads with which the hybrid-log engine carries committed bytes from the log to the file while the program goes
    /// on, default 2. They start when there is first something to do, and sleep when there is not. With none, writers and
    /// [`deploy`](crate::AtomicFile::deploy) do it.
    #[must_use]
    pub fn checkpointers(mut self, threads: usize) -> Self {
        self.checkpointers = threads;
        self
    }

    /// Resolves a disagreement between a data file and its sidecar in favour of one side. Either way
    /// [redundancy](Options::redundancy) then takes the file as it is: a page that differs from its checksum is covered anew,
    /// whether another program wrote to it or a device damaged it.
    #[must_use]
    pub fn trust(mut self, side: Trust) -> Self {
        self.trust = Some(side);
        self
    }

    /// Accepts a sidecar found under another inode number if its UUID is the one the data file carries: the two were
    /// restored together. The sidecar of another file in the directory that carries the same mark, of which this one is a
    /// copy, stays where it is.
    #[must_use]
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// What happens when a page of the file is lost underneath; default [`LostPage::Fail`]. Of several handles of one file
    /// the first decides. A file opened on a medium of the caller's ([`open_on`](Options::open_on)) goes by what that
    /// medium was made with.
    #[must_use]
    pub fn on_lost_page(mut self, lost_page: LostPage) -> Self {
        self.lost_page = lost_page;
        self
    }

    /// How an [`AtomicMap`](crate::AtomicMap) finds out what was stored to; default [`DirtyTracking::Auto`].
    #[must_use]
    pub fn dirty_tracking(mut self, method: DirtyTracking) -> Self {
        self.dirty_tracking = method;
        self
    }

    /// Lets other processes that do the same have the file open at once: each reads what the others write, as the threads of
    /// one process do, and any [`sync`](crate::AtomicFile::sync) commits the open epoch of all. For
    /// [`AtomicFile`](crate::AtomicFile); plain stores of several processes are [`SharedMap`](crate::SharedMap)'s.
    ///
    /// One of the processes has the file open, the first to come; calls of the others are done by it, which makes them slower
    /// (by 1 to 7 µs, measured on two busy cores, and by two copies of the bytes) and limits the bytes of one call to 128 MiB. When it
    /// ends another one opens the file, which recovers it, and the calls that were under way are done by that one, each
    /// once: those of its own are in, whole, or not. Processes may join, leave and be killed at any time.
    ///
    /// Under [`Durability::PerWrite`] nothing is lost then. Under [`Durability::PerCommit`] the open epoch is lost if the
    /// process that had the file open is killed, and all of it: if there may be anything in it, every call of every process
    /// that took part is [`Error::Poisoned`] from then on, until it drops its handles and opens the file again, at the last
    /// commit. What a process wrote to the epoch stays in it when another one is killed, or when it closes or drops its
    /// last handle; if it had the file open, it commits the epoch of the others first.
    ///
    /// A failure that poisons the file, as a flush that failed, poisons it for all that took part then, whichever of them serves
    /// next. A process that has to open the file and cannot (for want of descriptors, say) leaves that to the others; after a
    /// second its own calls are [`Error::Poisoned`] until it has dropped its handles and opened the file again.
    ///
    /// Without a process that can be asked, [`info`](crate::AtomicFile::info) tells the state at opening. When a process is killed
    /// that has forked children which live on without `exec`, they keep the file from the next one: the others wait for their
    /// end for some 30 seconds, and then their calls are [`Error::Poisoned`], with nothing lost that was durable. Each process finds
    /// the file at the path that it opened it by: if it is moved while it is shared, all goes on until the process ends that has
    /// it open, and then the handles of the others are poisoned; what stands at the path by then is left as it is.
    ///
    /// They meet in the directory of sidecars beside the file, so all of them have to be processes of one user, which trust
    /// each other. A program must not open the files there whose names end in `.lock`, for closing one gives its locks back.
    /// Each of engine, durability, [`order`](Options::order), [`read_policy`](Options::read_policy),
    /// [`log_policy`](Options::log_policy), [`redo_from`](Options::redo_from), [`log_size`](Options::log_size),
    /// [`checkpointers`](Options::checkpointers), [`max_len`](Options::max_len) and [`on_lost_page`](Options::on_lost_page) is
    /// as those who came first have it if it is not set here, or to its default; any other value that differs from theirs is
    /// refused with [`Error::InUse`], which names both. A handle for reading only cannot be shared.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("stock");
    /// use untorn::{Durability, Options};
    /// # untorn::AtomicFile::create(&path, 1 << 20)?.settle()?;
    /// let stock = Options::new().shared(true).durability(Durability::PerWrite).open(&path)?; // in each process
    /// stock.write_at(b"three left", 4096)?; // durable, and seen by all from now on
    /// # stock.settle()?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// A function to call with the progress of recovery and settling.
    #[must_use]
    pub fn progress(mut self, progress: impl Fn(Progress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    pub(crate) fn report(&self, phase: &'static str, done: u64, total: u64) {
        if let Some(progress) = &self.progress {
            progress(Progress { phase, done, total });
        }
    }

    /// The same with somebody to ask whether the file may be opened.
    pub(crate) fn admitted_by(&self, admission: impl Admission + 'static) -> Options {
        Options { admission: Some(Arc::new(admission)), ..self.clone() }
    }

    /// The length to reserve address space for, for a file of `len` bytes.
    pub(crate) fn reserve(&self, len: u64) -> u64 {
        self.max_len.unwrap_or_else(|| len.saturating_mul(2).max(1 << 40)).max(len)
    }

    pub(crate) fn validate(&self, path: &Path) -> Result<()> {
        let invalid = |what: &str| Err(Error::Invalid { path: PathBuf::from(path), what: what.to_owned() });
        if !(1..=64).contains(&self.lanes) {
            return invalid("a sidecar has 1 to 64 lanes");
        }
        if self.max_len.is_some_and(|len| len > 1 << 56) {
            return invalid("a file grows to 64 PiB at most");
        }
        if self.redo_from > 100 {
            return invalid("the share of writes from which on redo is logged is a percentage, 0 to 100");
        }
        if !(256 << 10..=1 << 40).contains(&self.log_size) {
            return invalid("a log takes 256 KiB to 1 TiB");
        }
        if self.checkpointers > 64 {
            return invalid("at most 64 threads checkpoint");
        }
        if !(4..=1 << 16).contains(&self.slots) {
            return invalid("a lane has 4 to 65536 slots");
        }
        if self.redundancy.is_some() && (self.read_only || self.engine == EngineKind::Passthrough) {
            return invalid("redundancy is kept by who writes, and with an engine that keeps promises");
        }
        let stripe = self.redundancy.as_ref().and_then(|redundancy| redundancy.settings.stripe);
        if !stripe.is_none_or(|pages| (1..=Settings::MAX_STRIPE).contains(&pages)) {
            return invalid("a stripe of redundancy has 1 to 64 data pages");
        }
        if self.verify_reads.is_some() && (self.read_only || self.engine == EngineKind::Passthrough) {
            return invalid("reads are verified by who keeps redundancy: a handle for writing, with an engine");
        }
        if self.verify_reads.is_some() && self.exclusive {
            return invalid("plain loads of a map go by nobody who could verify them; scrub the file instead");
        }
        if self.verify_reads.is_some() && self.shared {
            return invalid(
                "reads of a file that is shared are done by whoever serves it, who was not asked to verify them",
            );
        }
        if self.redundancy.is_some() && self.shared {
            return invalid("a file that is shared keeps the redundancy it has; protect it before (`untorn protect`)");
        }
        Ok(())
    }
}
