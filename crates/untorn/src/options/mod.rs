//! How to open a file: engine, durability, layout, and options with measured defaults.

mod choices;
mod commit_log;
mod exclusion;
mod map;
mod redundancy;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use self::choices::{
    DirtyTracking, Durability, EngineKind, Layout, LogPolicy, LostPage, Order, Prefer, ReadPolicy,
};
pub use self::commit_log::CommitLog;
pub(crate) use self::exclusion::ExclusionCheck;
#[cfg(feature = "redundancy")]
pub use self::redundancy::{Checksum, Damage, PageRange, ProtectOptions, StripeLayout, VerifyReads};
#[cfg(not(feature = "redundancy"))]
pub(crate) use self::redundancy::{Checksum, Damage, PageRange, ProtectOptions, StripeLayout, VerifyReads};
pub(crate) use self::redundancy::{DamageFn, Settings, as_kept};
use crate::error::{Error, Result};

/// The progress of long work, such as recovery at open or deploying at close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The name of the phase, in a word or two.
    pub phase: &'static str,
    /// Units done.
    pub done: u64,
    /// Units in total.
    pub total: u64,
}

/// A function that is called with the progress of long work.
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
    pub(crate) redo_threshold_percent: u8,
    pub(crate) log_size: u64,
    pub(crate) checkpoint_threads: usize,
    pub(crate) notice_changes: bool,
    pub(crate) grow_with_file: bool,
    pub(crate) prefer: Option<Prefer>,
    pub(crate) adopt: bool,
    pub(crate) keep_sidecar: bool,
    pub(crate) plain_at_close: bool,
    pub(crate) deploy_ahead: Option<u64>,
    pub(crate) snapshot_memory: u64,
    pub(crate) one_writer: bool,
    /// A limit of 0 gives an existing log up.
    pub(crate) commit_log: Option<CommitLog>,
    pub(crate) serve_snapshots: bool,
    pub(crate) lost_page: LostPage,
    pub(crate) dirty_tracking: DirtyTracking,
    /// No other handle of this process may have the file open.
    pub(crate) exclusive: bool,
    pub(crate) shared: bool,
    /// Handles of this process that do not ask for a shared file get it all the same.
    pub(crate) admits_unshared: bool,
    pub(crate) redundancy: Option<ProtectOptions>,
    pub(crate) verify_reads: Option<VerifyReads>,
    pub(crate) progress: Option<ProgressFn>,
    /// Who may open it. Of a file that is opened by its path it is set on the way.
    pub(crate) exclusion: Option<Arc<dyn ExclusionCheck>>,
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
            redo_threshold_percent: 5,
            log_size: 1 << 36,
            checkpoint_threads: 2,
            notice_changes: true,
            grow_with_file: false,
            prefer: None,
            adopt: false,
            keep_sidecar: false,
            plain_at_close: false,
            deploy_ahead: Some(64 << 20),
            snapshot_memory: 64 << 20,
            one_writer: false,
            commit_log: None,
            serve_snapshots: true,
            lost_page: LostPage::Fail,
            dirty_tracking: DirtyTracking::Auto,
            exclusive: false,
            shared: false,
            admits_unshared: false,
            redundancy: None,
            verify_reads: None,
            progress: None,
            exclusion: None,
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
            .field("redo_threshold_percent", &self.redo_threshold_percent)
            .field("log_size", &self.log_size)
            .field("checkpoint_threads", &self.checkpoint_threads)
            .field("grow_with_file", &self.grow_with_file)
            .field("keep_sidecar", &self.keep_sidecar)
            .field("plain_at_close", &self.plain_at_close)
            .field("deploy_ahead", &self.deploy_ahead)
            .field("snapshot_memory", &self.snapshot_memory)
            .field("one_writer", &self.one_writer)
            .field("commit_log", &self.commit_log)
            .field("lost_page", &self.lost_page)
            .field("dirty_tracking", &self.dirty_tracking)
            .field("shared", &self.shared)
            .field("redundancy", &self.redundancy)
            .field("verify_reads", &self.verify_reads)
            .finish_non_exhaustive()
    }
}

impl Options {
    /// The defaults: the medium decides engine and durability; one fence; reads gather.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the engine. The default is the engine of the file's sidecar. For a plain file it is the hybrid log on a
    /// disk with [`Durability::PerCommit`], and otherwise, or with redundancy, reflection.
    ///
    /// A file that was closed cleanly under the hybrid log can be opened under another engine at once. Any other file
    /// with a sidecar must be [settled](crate::AtomicFile::settle) first, otherwise the open is refused. A read-only
    /// handle uses the engine of the file.
    #[must_use]
    pub fn engine(mut self, engine: EngineKind) -> Self {
        self.engine = engine;
        self
    }

    /// Sets the layout of a new sidecar.
    #[must_use]
    pub fn layout(mut self, layout: Layout) -> Self {
        self.layout = layout;
        self
    }

    /// Sets when a write is durable. The default is what the file's sidecar was created with, else what suits the
    /// medium.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Sets how many fences an atomic write costs.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets what a read of reflected slices does.
    #[must_use]
    pub fn read_policy(mut self, policy: ReadPolicy) -> Self {
        self.read_policy = policy;
        self
    }

    /// Opens the file read-only: nothing changes, not even by recovery. After a crash the handle serves the last
    /// commit, which recovery would bring back. Any number of processes may read a file at once. If the file has a
    /// sidecar, no process can open it for writing meanwhile. A reader of a plain file takes no lock: if another
    /// process opens the file for writing, the reader goes on with the bytes of the data file, which need not be those
    /// of one commit.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets whether opening a cleanly closed file checks the digest of all reflected slices, which reads them all.
    /// Without it only the bitmaps are checked. A cleanly closed hybrid log has nothing to check. The default is true.
    #[must_use]
    pub fn verify(mut self, verify: bool) -> Self {
        self.verify = verify;
        self
    }

    /// Sets the maximum length, in bytes, that the file may grow to while open.
    ///
    /// - An [`AtomicFile`](crate::AtomicFile) takes address space in proportion to its length, and more as it grows.
    ///   The default maximum is 1 TiB or twice the length, whichever is larger.
    /// - An [`AtomicMap`](crate::AtomicMap) keeps its address, so the open reserves address space for the maximum. It
    ///   takes no memory for that. The default is 64 MiB or twice the length, whichever is larger. Where the address
    ///   space is limited (`ulimit -v`), the open reserves what it can get, at least the length.
    /// - For a [`SharedMap`](crate::shared::SharedMap) the same holds; its default is 1 GiB or twice the length.
    #[must_use]
    pub fn max_len(mut self, len: u64) -> Self {
        self.max_len = Some(len);
        self
    }

    /// Sets the record area of a new sidecar: `lanes` threads can write at once without contention, and each lane holds
    /// `slots` records of 64 bytes between two cuts. Both are rounded up to powers of two. The defaults are 16 and 512.
    ///
    /// For the hybrid log, `slots` is the maximum number of 4 KiB units in a chunk of the log, at most 512. It limits
    /// the longest entry; `lanes` has no effect. On a disk, a short file has shorter chunks.
    #[must_use]
    pub fn record_area(mut self, lanes: u32, slots: u32) -> Self {
        self.lanes = lanes.checked_next_power_of_two().unwrap_or(u32::MAX);
        self.slots = slots.checked_next_power_of_two().unwrap_or(u32::MAX);
        self
    }

    /// Sets what the hybrid-log engine logs. The default is [`LogPolicy::Hybrid`].
    #[must_use]
    pub fn log_policy(mut self, policy: LogPolicy) -> Self {
        self.log_policy = policy;
        self
    }

    /// Sets the threshold of [`LogPolicy::Hybrid`], in percent: if at least this share of an epoch's reads and writes
    /// were writes, the next epoch logs redo. The default is 5: undo costs a fence at the first write of each block,
    /// and measured faster only where the program hardly writes (`untorn bench hybrid-policy`). The Libnvmmio paper,
    /// §4.2.1, found 40.
    #[must_use]
    pub fn redo_threshold_percent(mut self, percent: u8) -> Self {
        self.redo_threshold_percent = percent;
        self
    }

    /// Sets the maximum size of the hybrid-log engine's log, in bytes. The default is 64 GiB. The log starts small and
    /// grows as needed. All writes of one epoch must fit; a write that would not is refused ([`Error::Invalid`]) and
    /// writes nothing. The size is rounded up to whole chunks, and to at least two. A chunk has 2 MiB; on a disk it has
    /// 128 KiB to 2 MiB, by the length of the file. The size holds for this open only: the file remembers neither the
    /// size nor the log policy.
    #[must_use]
    pub fn log_size(mut self, bytes: u64) -> Self {
        self.log_size = bytes;
        self
    }

    /// Sets the number of threads that checkpoint the hybrid log, that is, copy committed bytes from the log to the
    /// file in the background. The default is 2. They start with the first work, and sleep when there is none. With 0,
    /// writers and [`deploy`](crate::AtomicFile::deploy) do the work.
    #[must_use]
    pub fn checkpoint_threads(mut self, threads: usize) -> Self {
        self.checkpoint_threads = threads;
        self
    }

    /// Resolves a disagreement between a data file and its sidecar in favour of one side. Either way,
    /// [redundancy](Options::redundancy) then accepts the file as it is: it recomputes the checksum of a page that does
    /// not match, whether another program wrote it or a device damaged it.
    #[must_use]
    pub fn prefer(mut self, side: Prefer) -> Self {
        self.prefer = Some(side);
        self
    }

    /// Sets whether [`sync`](crate::AtomicFile::sync), `close` and `settle` look whether another program has changed
    /// the data file since it was opened. If one has, they fail with [`Error::ModifiedExternally`], commit nothing, and
    /// leave both versions: the file as it is, and the last commit in the sidecar. Every open refuses the file then,
    /// until the user [chooses](Options::prefer). It costs one `fstat(2)` a commit. The default is true.
    ///
    /// Length and modification time tell. `docs/fault-model.md` lists what they do not tell; on persistent memory and
    /// on network file systems that is everything.
    #[must_use]
    pub fn notice_changes(mut self, notice: bool) -> Self {
        self.notice_changes = notice;
        self
    }

    /// Sets whether the data file may grow while it is open, by ftruncate(2) through a descriptor of the program's own.
    /// The default is false: such a growth is a change by another program, as
    /// [`notice_changes`](Options::notice_changes) says.
    ///
    /// With true it is none, and [`accept_growth`](crate::AtomicFile::accept_growth) takes the new length over. The
    /// price is that another program's bytes go unnoticed if they come together with a growth.
    #[must_use]
    pub fn grow_with_file(mut self, grow: bool) -> Self {
        self.grow_with_file = grow;
        self
    }

    /// Accepts a sidecar under another inode number if it has the UUID of the data file's mark: the two were restored
    /// together. If another file in the directory carries the same mark, this file is a copy of it, and the sidecar
    /// stays with that file.
    #[must_use]
    pub fn adopt(mut self, adopt: bool) -> Self {
        self.adopt = adopt;
        self
    }

    /// Sets whether closing the file keeps its sidecar. The default is false: closing deploys everything into the data
    /// file and removes the sidecar, and a closed file is a plain one, which any program may read, write and copy. The
    /// next open then creates a sidecar anew: engine, layout, durability and commit numbers start from the options.
    ///
    /// With true, closing is faster (Acumen's *fast* unmap), and so is the next open. The sidecar then holds committed
    /// bytes of the closed file. So a copy needs its sidecar too, and without it every open of the copy is refused.
    ///
    /// Of several handles of one file the first decides; of several processes that share it, the last to leave.
    #[must_use]
    pub fn keep_sidecar(mut self, keep: bool) -> Self {
        self.keep_sidecar = keep;
        self
    }

    /// Sets whether closing a file that [keeps its sidecar](Options::keep_sidecar) leaves a plain file all the same.
    /// The default is false.
    ///
    /// With true, the engine `reflection` copies home what the sidecar has before it closes the file. The sidecar stays
    /// with its space, and holds nothing. It is then the default engine on a disk, too. Any program may then read,
    /// write and resize the closed file, and the next open takes the file as it finds it. The file still carries its
    /// mark, so a copy with its attributes needs the sidecar too. [`deploy_ahead`](Options::deploy_ahead) then copies
    /// in the background as for a file without `keep_sidecar`.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("ledger");
    /// use untorn::Options;
    /// let options = Options::new().keep_sidecar(true).plain_at_close(true);
    /// let file = options.create(&path, 8192)?;
    /// file.write_at(b"committed", 0)?;
    /// file.sync()?;
    /// file.close()?;
    /// let plain = std::fs::File::options().write(true).open(&path).unwrap();
    /// plain.set_len(100_000).unwrap();
    /// let file = options.open(&path)?;
    /// assert_eq!(file.len(), 100_000);
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn plain_at_close(mut self, plain: bool) -> Self {
        self.plain_at_close = plain;
        self
    }

    /// Sets from how many bytes on the engine `reflection` deploys in the background while the file is open, so that
    /// closing it is short. The bytes are those of pages that have slices in the sidecar. The default is 64 MiB; `None`
    /// never deploys in the background.
    ///
    /// A thread that all files of the process share then copies the pages that were not written for a second. It takes
    /// an eighth of a core at most, commits nothing, and takes no space. A file with
    /// [redundancy](Options::redundancy), one that is [shared](Options::shared) or keeps its sidecar, and a forked
    /// child do without it; a file that is to be [plain](Options::plain_at_close) when it is closed has it.
    #[must_use]
    pub fn deploy_ahead(mut self, from: Option<u64>) -> Self {
        self.deploy_ahead = from;
        self
    }

    /// Says that the program's own locks let one thread of one process write at a time, as those of a database do.
    /// Off by default.
    ///
    /// Then the process that serves a [shared](Options::shared) file with [durability per
    /// write](crate::Durability::PerWrite) publishes each commit to the processes that take one snapshot after another
    /// ([`AtomicFile::snapshot_after`](crate::AtomicFile::snapshot_after)): they take the next one without a message,
    /// and without waiting for the write that is under way. While there are such readers, writes wait for each other
    /// instead of sharing a flush.
    ///
    /// ```
    /// # fn main() -> untorn::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// use untorn::{Durability, Options};
    /// let options = Options::new().shared(true).durability(Durability::PerWrite).one_writer(true);
    /// let file = options.create(dir.path().join("f"), 4096)?;
    /// let snapshot = file.snapshot()?;
    /// file.write_at(b"new", 0)?;
    /// let snapshot = file.snapshot_after(snapshot)?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn one_writer(mut self, yes: bool) -> Self {
        self.one_writer = yes;
        self
    }

    /// Sets how many bytes of memory held [snapshots](crate::Snapshot) of this file may take together, for pages that
    /// changed since. The default is 64 MiB. Further pages go to a file without a name in the directory of the data
    /// file; if that fails, the snapshots end, and writers go on.
    #[must_use]
    pub fn snapshot_memory(mut self, bytes: u64) -> Self {
        self.snapshot_memory = bytes;
        self
    }

    /// Gives the file a *commit log* of at most so many bytes, beside its sidecar: every commit with its number, its
    /// time and the bytes that it changes, for [`commits`](crate::AtomicFile::commits), for other processes
    /// ([`CommitStream`](crate::commits::CommitStream)) and for increments of a backup. Its oldest eighth goes when the
    /// limit is reached. A commit larger than the limit fails with ENOSPC, and so does one that finds no space for the
    /// log; such a failure leaves the open epoch as it is.
    ///
    /// With a [`CommitLog`] in the place of a number, the log can also keep its oldest commits until registered
    /// [consumers](crate::commits::CommitStream::consumer) have them, and have commits wait for that.
    ///
    /// A [region store](crate::region::RegionStore) has none: its regions commit one by one, each with numbers of its
    /// own, and [each has its log](crate::region::StoreOptions::commit_log). A read-only handle and the engine
    /// `passthrough` begin none either. All three are refused with [`Error::Invalid`].
    ///
    /// A file that has a log keeps it: every later opening for writing keeps it up, also without this option, until
    /// [`commits::stop`](crate::commits::stop). A limit of 0 gives it up at this opening. While a file has a log, its
    /// commits are serialized, and each waits for one more flush.
    #[must_use]
    pub fn commit_log(mut self, log: impl Into<CommitLog>) -> Self {
        self.commit_log = Some(log.into());
        self
    }

    /// Sets whether other processes may take [snapshots](crate::Snapshot::open) of this file while this handle has it
    /// open for writing: processes of the same user, and root. The default is true. A process then has one thread and
    /// one socket for all its files; the socket has a name in no file system. The thread takes 66 MiB of address space.
    #[must_use]
    pub fn serve_snapshots(mut self, serve: bool) -> Self {
        self.serve_snapshots = serve;
        self
    }

    /// Sets what happens when a page of the file is lost. The default is [`LostPage::Fail`]. Of several handles of one
    /// file the first decides. A file on a custom medium ([`open_on`](Options::open_on)) uses that medium's setting.
    #[must_use]
    pub fn on_lost_page(mut self, lost_page: LostPage) -> Self {
        self.lost_page = lost_page;
        self
    }

    /// Sets how an [`AtomicMap`](crate::AtomicMap) finds the pages that were stored to. The default is
    /// [`DirtyTracking::Auto`].
    #[must_use]
    pub fn dirty_tracking(mut self, method: DirtyTracking) -> Self {
        self.dirty_tracking = method;
        self
    }

    /// Shares the open file with other processes that set this option too. Each process reads what the others write, as
    /// the threads of one process do, and any [`sync`](crate::AtomicFile::sync) commits the open epoch of all. It is
    /// for [`AtomicFile`](crate::AtomicFile); [`SharedMap`](crate::shared::SharedMap) shares plain stores.
    ///
    /// The first process has the file open and executes the calls of the others. This makes those calls slower (by 1 to
    /// 7 µs, measured on two busy cores, and by two copies of the bytes), and limits one call to 128 MiB. When that
    /// process ends, another one takes over: it opens the file, which recovers it, and executes each unfinished call
    /// once. The unfinished calls of the ended process itself are in the file whole or not at all. Processes may join,
    /// leave and be killed at any time.
    ///
    /// Under [`Durability::PerWrite`] a takeover loses nothing. Under [`Durability::PerCommit`] the whole open epoch is
    /// lost if the process that had the file open is killed. If the epoch may have had any bytes, every call of every
    /// participating process then fails with [`Error::Poisoned`], until that process drops its handles and opens the
    /// file again, at the last commit. The epoch keeps a process's writes when another process is killed, or when the
    /// process closes or drops its last handle; if it had the file open, it first commits the epoch of the others.
    ///
    /// A failure that poisons the file, such as a failed flush, poisons it for all processes that participated then,
    /// whichever takes over next. A process that cannot take over, for example because it lacks descriptors, leaves the
    /// takeover to the others. After a second its own calls fail with [`Error::Poisoned`] until it drops its handles
    /// and opens the file again.
    ///
    /// - While no process answers, [`info`](crate::AtomicFile::info) returns the state at opening.
    /// - If a killed process leaves forked children that live on without `exec`, they still hold the file. The others
    ///   wait up to about 30 seconds for the children to end. After that their calls fail with [`Error::Poisoned`]; no
    ///   durable byte is lost.
    /// - Each process finds the file at the path that it opened. If the file is moved while shared, all goes on until
    ///   the process that has it open ends; then the handles of the others are poisoned. untorn does not touch a file
    ///   that is at the path by then.
    ///
    /// The processes meet in the directory of sidecars beside the file. So they must run as one user and trust each
    /// other. A program must not open the `.lock` files there: closing one releases its locks.
    ///
    /// If a later process leaves one of the following options unset or at its default, it takes the value of the
    /// first process: engine, durability, [`order`](Options::order), [`read_policy`](Options::read_policy),
    /// [`log_policy`](Options::log_policy), [`redo_threshold_percent`](Options::redo_threshold_percent),
    /// [`log_size`](Options::log_size), [`checkpoint_threads`](Options::checkpoint_threads),
    /// [`max_len`](Options::max_len), [`on_lost_page`](Options::on_lost_page). Any other value is refused with
    /// [`Error::InUse`], which names both values. A read-only handle cannot be shared.
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

    /// For the mappings of the C library, whose program did not ask for sharing: handles of this process that do not
    /// share the file may be opened beside this one, and share it too.
    #[doc(hidden)]
    #[must_use]
    pub fn admits_unshared(mut self, admits: bool) -> Self {
        self.admits_unshared = admits;
        self
    }

    /// Sets a function to call with the progress of recovery, closing and settling.
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
    pub(crate) fn checked_by(&self, exclusion: impl ExclusionCheck + 'static) -> Options {
        Options { exclusion: Some(Arc::new(exclusion)), ..self.clone() }
    }

    /// The length that a file of `len` bytes may grow to while it is open.
    pub(crate) fn reserve(&self, len: u64) -> u64 {
        self.max_len.unwrap_or_else(|| len.saturating_mul(2).max(1 << 40)).max(len)
    }

    /// The address space of a map that keeps its address, of a file of `len` bytes; `least` if nobody says otherwise.
    pub(crate) fn reserve_for_map(&self, len: u64, least: u64) -> u64 {
        self.max_len.unwrap_or_else(|| len.saturating_mul(2).max(least)).max(len)
    }

    pub(crate) fn validate(&self, path: &Path) -> Result<()> {
        let invalid = |what: &str| Err(Error::Invalid { path: PathBuf::from(path), what: what.to_owned() });
        if !(1..=64).contains(&self.lanes) {
            return invalid("lanes must be 1 to 64");
        }
        if self.max_len.is_some_and(|len| len > 1 << 56) {
            return invalid("max_len must be at most 64 PiB (2^56 bytes)");
        }
        if self.redo_threshold_percent > 100 {
            return invalid("redo_from is a percentage and must be 0 to 100");
        }
        if !(256 << 10..=1 << 40).contains(&self.log_size) {
            return invalid("log_size must be 256 KiB to 1 TiB");
        }
        if self.checkpoint_threads > 64 {
            return invalid("checkpointers must be at most 64");
        }
        if !(4..=1 << 16).contains(&self.slots) {
            return invalid("slots must be 4 to 65536");
        }
        if self.redundancy.is_some() && (self.read_only || self.engine == EngineKind::Passthrough) {
            return invalid("redundancy needs a writable handle and an engine other than `passthrough`");
        }
        if self.commit_log.is_some() && (self.read_only || self.engine == EngineKind::Passthrough) {
            return invalid("commit_log needs a writable handle and an engine other than `passthrough`");
        }
        let stripe = self.redundancy.as_ref().and_then(|redundancy| redundancy.settings.stripe);
        if !stripe.is_none_or(|pages| (1..=Settings::MAX_STRIPE).contains(&pages)) {
            return invalid("a redundancy stripe must have 1 to 64 data pages");
        }
        if self.verify_reads.is_some() && (self.read_only || self.engine == EngineKind::Passthrough) {
            return invalid("verify_reads needs a writable handle and an engine other than `passthrough`");
        }
        if self.verify_reads.is_some() && self.exclusive {
            return invalid(
                "verify_reads cannot check the plain loads of a map; scrub the file instead (`untorn \
                            scrub`)",
            );
        }
        if self.redundancy.is_some() && self.shared {
            return invalid(
                "redundancy cannot be set up for a shared file; protect the file before sharing it (`untorn \
                            protect`)",
            );
        }
        Ok(())
    }
}
