//! The write cache: a log on a fast medium in front of any number of files on slow ones (the NVCache paper, §II and
//! III).
//!
//! A write becomes one or more *entries* of the log and is then durable. A thread later brings entries to their files,
//! many at a time, and frees them once the files are synced. Reads see the slow file with the entries laid over it.
//!
//! ```text
//!  write ─► claim room ─► locks of its pages ─► entries, each certified ─► one fence ─► over the pages: seen by reads
//!                                                                                                  │
//!  slow files ◄── sync, once a batch ◄── pwrite, one for what many wrote ◄── drain, in order ◄─────┘
//!       └─► the tail, durably ─► entries are free
//! ```
//!
//! # Invariants
//!
//! 1. An entry proves by itself that all of it arrived: its checksum is over header and data, seeded with the log, the
//!    session and the place. So its own stores need no order, and one fence makes it durable. An operation of several
//!    entries counts if each of them does.
//! 2. An entry is laid over its pages after its fence, under locks that were taken before its place in the order was
//!    decided. So no read sees bytes that a crash could take back, and of two writes to one page the later in the log
//!    is the later one. With durability per commit, entries are visible before they are durable, as for any file.
//! 3. The tail passes an entry when its file was synced after the entry's write, or was durably removed. No entry is
//!    stored over an old one before the tail beyond the old one is durable. So a replay finds every entry that matters,
//!    and before it none that is older than one it does not find: replaying is idempotent, also over what was already
//!    drained.
//! 4. If the drain or its sync is interrupted, an operation may be half in the file, but it is whole in the log. (With
//!    durability per commit, the log is flushed before a batch is drained.)
//! 5. A session's entries, tails and table lines carry its seal. A new session begins, durably, only when the files
//!    durably have everything that the log had. Later damage is not taken for an older state: except for an instant,
//!    both copies of superblock, tail and line say the same.
//! 6. Entries name files by a number, and the file table gives each number an identity before the first entry has it.
//!    Three cases follow:
//!    - Before that, the file's name and contents are durable. Or the file was empty, its line says that it is *new*,
//!      and its directory is durable. The name of a new file becomes durable, and its line loses the mark *new*, before
//!      the tail passes the first of its entries. Until then a replay first empties the file, or creates it again.
//!    - A replay writes to no file of another identity, whatever its name. A program that renames or removes a file
//!      without telling the log has it demoted first, which leaves no entries of it.
//!    - Before the last name of a file is removed, the log may record that it is *leaving*. Its entries stay: until the
//!      removal is durable, a crash may bring the file back, and it must then hold what was acknowledged. A replay that
//!      does not find the file makes its removal durable before it drops the entries.
//! 7. Before a file is renamed, its line durably has *both names*, and afterwards an entry says that it was renamed.
//!    The tail passes that entry when the rename is durable. So a replay finds the file wherever a crash leaves it, and
//!    repeats the rename if the crash undid it. The replaced file is leaving, if the log had an entry of it; the line
//!    names it in any case. A replay puts the renamed file over that one alone. It reports the replaced file as missing
//!    only if the rename was not done. No other file unknown to the log can be there after a crash: the directory was
//!    synced with what is there now. Of several files, the last one that got a name, by number, has it rightfully.
//! 8. Some writes go past the log: a write larger than the log, one for which the entries of failed files leave no
//!    room, or a file that others use too. They do so only when the tail has passed every entry of the file, so that no
//!    replay ever writes over them.
//! 9. A failed file is not drained any more: its calls fail, its entries stay. If they are in the way, they are written
//!    again at the head, durably, before the tail passes them, and keep their place in the order.
//!
//! A file may instead be *atomic*: its changes count in epochs, whole: see [`epoch`]. Or it may be written *through*,
//! to log and kernel in one call, and be read without the log: see [`write_through`].
//!
//! # Lock order
//!
//! 1. Claims on entries. This is the only wait for room, with no lock held: for the end of a drain by any thread.
//! 2. A file's gate.
//! 3. Its line in the table.
//! 4. Its length.
//! 5. Its turn, if other processes append to it; then its stripes, ascending; or instead of stripes: the drain, the
//!    registry, a stripe.
//!
//! A thread that holds the gate exclusively may take the turn before line and length. The drain takes no gate, and for
//! a write-through file neither length nor turn nor stripe, so a thread that holds them and waits for the drain does
//! not wait for itself. Before the drain waits for a process, it takes only free turns.
//!
//! Last come the lock of a file's open epoch, and that of the superblock. The registry comes before the first of them.

mod changed;
mod coalesce;
mod commits;
mod deliver;
mod drain;
mod draining;
mod epoch;
mod file;
mod format;
mod multi_process;
mod names;
mod open;
mod overlay;
mod own_stores;
mod pack;
mod packing;
mod recreate;
mod remove;
mod rename;
mod rename_replay;
mod replay;
mod restage;
mod ring;
mod scan;
mod spill;
mod stream;
mod stream_replay;
mod synced_dirs;
mod table;
mod wakeup;
mod wipe;
mod worker;
mod write_through;

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use untorn_ring::{Change, Step};

use self::draining::Draining;
pub(crate) use self::file::{At, Attach, Managed, Mode};
pub(crate) use self::format::Geometry;
use self::format::Superblock;
pub(crate) use self::open::create;
use self::replay::Replayer;
pub use self::replay::{Keep, Replay, ReplayOutcome, ReplayedFile};
use self::ring::Ring;
use self::spill::Spill;
use self::table::Registry;
use self::wakeup::Wakeup;
use self::worker::Worker;
use crate::engine::handle_state::HandleState;
use crate::error::Result;
use crate::options::{Durability, ProgressFn};
use crate::storage::{Identity, Medium, MediumFile};
use crate::write_cache::backing::{BackingDir, BackingFile};

/// The barriers of the write cache.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A new log is whole before its name points to it.
        CREATE = "cache.create";
        /// Bytes that a killed process left in the log are durable before the open relies on them.
        ATTACH_LOG = "cache.attach.log";
        /// The log's name is durable before anything in it is acknowledged, whichever process created it.
        ATTACH_NAME = "cache.attach.name";
        /// The same of the directory `.untorn`, which is made for the log.
        ATTACH_DIRECTORY = "cache.attach.directory";
        /// An open reads from the medium, not from pages that a failed flush left in the cache.
        ATTACH_CACHE = "cache.attach.cache";
        /// A session is durable before the first entry that only counts in it.
        SESSION = "cache.session";
        /// The file's contents from before the attach are durable before the log has its first entry.
        BEFORE = "cache.before.file";
        /// The file's name is durable before the log has its first entry; or its directory is, if a replay can create
        /// the file again. A replay finds files by name.
        NAME = "cache.before.name";
        /// The file table's line for a file number is durable before an entry has that number.
        TABLE = "cache.table";
        /// An entry is durable before it is visible and before its write returns.
        ENTRY = "cache.entry";
        /// The log has no more need of a file before the file can be gone.
        LEAVING = "cache.leaving";
        /// No crash leaves a file that the log does not know at the target of a rename.
        TARGET = "cache.moving.target";
        /// The log has both names of a file before its rename, wherever a crash leaves the file.
        MOVING = "cache.moving";
        /// A file that was not replaced after all can be created again after a crash, before the log forgets the file
        /// that was to replace it.
        STAYED = "cache.moving.stayed";
        /// An entry of another process is durable before the kernel has the bytes.
        BESIDE = "cache.beside.entry";
        /// All entries that other processes appended are durable when a sync of theirs returns.
        BESIDE_SYNC = "cache.beside.sync";
        /// Entries that a killed process left are durable before the kernel gets the bytes again.
        MENDED = "cache.beside.mended";
        /// All entries written before a sync are durable when it returns.
        SYNC = "cache.sync";
        /// With durability per sync: the log's names are durable before they replace a sync of the directory.
        NAMES = "cache.names";
        /// The superblock is whole in one copy while it comes to say that the log may have epochs, or packs.
        EPOCHS = "cache.epochs";
        /// An epoch and its Commit are durable when the commit returns.
        COMMIT = "cache.commit";
        /// The bytes of large writes are durable when the commit returns that says so.
        SPILL = "cache.spill";
        /// The spill file has its name durably before a commit needs it.
        SPILL_NAME = "cache.spill.name";
        /// An epoch and its Commit are durable before the file can have a part of the epoch.
        EPOCH = "cache.drain.epoch";
        /// With durability per sync: the log has a whole operation before the file can have a part of it.
        AHEAD = "cache.drain.ahead";
        /// With durability per sync: the log durably has a shrink, and everything before it, before the file is made
        /// shorter.
        CUT = "cache.through.cut";
        /// Drained bytes are durable in the file before their entries are free.
        FILE = "cache.drain.file";
        /// The name of a new file is durable before the log can no longer create the file again.
        NAMED = "cache.drain.named";
        /// The log says that a file must not be created again before the entries needed for that are free.
        NEW_NO_MORE = "cache.drain.new-no-more";
        /// A renamed file durably has its new name before the entry that repeats the rename is free.
        MOVED_TO = "cache.drain.moved-to";
        /// The old directory durably lacks the file too: a rename between two directories is durable when both are.
        MOVED_FROM = "cache.drain.moved-from";
        /// The removal of a file is durable before entries that were not brought to it are free.
        REMOVED = "cache.drain.removed";
        /// The log durably says that entries are free before they are overwritten.
        TAIL = "cache.drain.tail";
        /// A moved entry is durable before the tail passes its old place.
        MOVED = "cache.drain.moved";
        /// A write past the log is durable when the call returns.
        PAST = "cache.past";
        /// Replayed bytes are durable in their file before the log drops the entries.
        REPLAYED_FILE = "cache.replay.file";
        /// A file that was created again is durably whole and findable before the log accepts it in place of the lost
        /// file.
        AGAIN = "cache.replay.again";
        /// The log accepts it in place of the lost file before it gets its name, and first says of files that were not
        /// replaced that they stay: it forgets the renames now.
        KNOWN_AGAIN = "cache.replay.known-again";
        /// Its name is durable before the log drops the entries.
        NAMED_AGAIN = "cache.replay.named-again";
        /// A rename, repeated or not, is durable before the log drops the entries.
        RENAMED_AGAIN = "cache.replay.renamed-again";
        /// The removal of a file is durable before the log drops the file's last entry.
        GONE = "cache.replay.gone";
        /// A kept log durably says which files have their entries before those entries are reused, and first which
        /// files stay that were not replaced.
        KEPT = "cache.replay.kept";
    }
}

/// How a log is used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// `None`: by the medium.
    pub(crate) durability: Option<Durability>,
    /// Entries that the thread waits for. `None`: by the medium.
    pub(crate) batch_min: Option<u64>,
    /// Entries between two syncs at most.
    pub(crate) batch_max: u64,
    /// How long the thread waits for them. `None`: by the medium.
    pub(crate) max_age: Option<Duration>,
    /// Whether there is a thread.
    pub(crate) background: bool,
    /// Whether other processes may append to the log too; then, whether they have to map it with `MAP_SYNC`.
    pub(crate) shared: bool,
    pub(crate) sync: bool,
    /// Bytes of a chunk of the spill file: a staged write of as many goes there.
    pub(crate) chunk: u64,
}

/// An open log, with the files behind it.
pub(crate) struct Cache<M: Medium> {
    handle_state: HandleState,
    /// The log's own.
    identity: Identity,
    place: Arc<dyn BackingDir>,
    settings: Settings,
    durability: Durability,
    ring: Ring<M>,
    registry: Mutex<Registry>,
    drain: Draining,
    worker: Worker,
    bell: Wakeup,
    /// Slots of all positions below have zeros.
    wiped: AtomicU64,
    superblock: Mutex<Superblock>,
    spill: Spill,
    /// Entries that open epochs have, and have claimed for their next copies and their Commits.
    open_claims: AtomicU64,
    /// The log has no name any more.
    removed: AtomicBool,
    /// Commits that were put into the log in this session, and how many of the first of them are durable.
    commits: AtomicU64,
    durable_commits: AtomicU64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The current state of an open log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheInfo {
    /// When a write is durable.
    pub durability: Durability,
    /// Entries that the log has room for.
    pub capacity: u64,
    /// Data bytes of an entry.
    pub entry_size: u32,
    /// Entries in use: not yet durable in their files.
    pub used: u64,
    /// Entries of files that can no longer be written to.
    pub stuck: u64,
    /// Files that have handles or entries.
    pub files: u64,
    /// Files that can have entries at the same time.
    pub max_files: u32,
    /// Entries that uncommitted changes of atomic files have, or have claimed.
    pub uncommitted: u64,
}

/// A cache on any medium, as handles hold it. The last one to go ends its thread.
pub(crate) struct Open<M: Medium>(pub(crate) Arc<Cache<M>>);

/// What handles ask of a cache, whatever its medium.
pub(crate) trait AnyCache: Send + Sync {
    fn path(&self) -> &Path;
    fn attach(&self, slow: Arc<dyn BackingFile>, path: &Path, how: Attach) -> Result<Arc<Managed>>;
    fn detach(&self, file: &Arc<Managed>);
    fn len(&self, file: &Managed) -> Result<u64>;
    fn read(&self, file: &Managed, offset: u64, dst: &mut [u8]) -> Result<usize>;
    fn write(&self, file: &Managed, at: At, src: &[u8]) -> Result<(u64, usize)>;
    fn set_len(&self, file: &Managed, len: u64) -> Result<()>;
    fn sync(&self, file: &Managed) -> Result<()>;
    fn commit(&self, file: &Managed, durable: bool) -> Result<()>;
    fn abandon(&self, file: &Managed) -> Result<()>;
    fn take_line(&self, file: &Managed) -> Result<()>;
    fn own_change(&self, file: &Managed, change: &mut dyn FnMut()) -> Result<()>;
    fn write_to_kernel(&self, file: &Managed) -> Result<()>;
    fn sync_file(&self, file: &Managed) -> Result<()>;
    fn reload_len(&self, file: &Managed) -> Result<()>;
    fn demote(&self, file: &Managed) -> Result<()>;
    fn prepare_unlink(&self, file: &Managed) -> Result<bool>;
    fn begin_rename(&self, file: &Managed, to: &Path) -> Result<bool>;
    fn end_rename(&self, file: &Managed, done: bool) -> Result<()>;
    fn dir_is_durable(&self, dir: &Path, names: &[OsString]) -> Result<bool>;
    fn is_settled(&self, file: &Managed) -> bool;
    fn was_removed(&self, file: &Managed);
    fn shared(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)>;
    fn allow_writers(&self, file: &Managed, durable: bool);
    fn revoke_writers(&self, file: &Managed) -> Result<()>;
    fn counts_shared(&self, file: &Managed) -> [u64; 3];
    fn change_shared(&self, file: &Managed, change: Change, src: &[u8], until: Option<Step>) -> Result<Option<usize>>;
    fn flush_log(&self) -> Result<()>;
    fn sync_shared(&self, file: &Managed) -> Result<bool>;
    fn check_usable(&self, file: &Managed) -> Result<()>;
    fn mend_left(&self, file: &Managed) -> Result<()>;
    fn drain(&self) -> Result<()>;
    fn drain_some(&self) -> Result<()>;
    fn sync_all(&self) -> Result<()>;
    fn remove(&self) -> Result<bool>;
    fn info(&self) -> Result<CacheInfo>;
}

impl<M: Medium> AnyCache for Open<M> {
    fn path(&self) -> &Path {
        self.0.handle_state.path()
    }

    fn attach(&self, slow: Arc<dyn BackingFile>, path: &Path, how: Attach) -> Result<Arc<Managed>> {
        self.0.attach(slow, path, how)
    }

    fn detach(&self, file: &Arc<Managed>) {
        self.0.detach(file);
    }

    fn len(&self, file: &Managed) -> Result<u64> {
        self.0.len(file)
    }

    fn read(&self, file: &Managed, offset: u64, dst: &mut [u8]) -> Result<usize> {
        self.0.read(file, offset, dst)
    }

    fn write(&self, file: &Managed, at: At, src: &[u8]) -> Result<(u64, usize)> {
        self.0.write(file, at, src)
    }

    fn set_len(&self, file: &Managed, len: u64) -> Result<()> {
        self.0.set_len(file, len)
    }

    fn sync(&self, file: &Managed) -> Result<()> {
        self.0.sync(file)
    }

    fn commit(&self, file: &Managed, durable: bool) -> Result<()> {
        self.0.commit(file, durable)
    }

    fn abandon(&self, file: &Managed) -> Result<()> {
        self.0.abandon(file)
    }

    fn take_line(&self, file: &Managed) -> Result<()> {
        self.0.take_line(file)
    }

    fn own_change(&self, file: &Managed, change: &mut dyn FnMut()) -> Result<()> {
        self.0.handle_state.writable()?;
        self.0.storing(file, || {
            change();
            Ok(())
        })?;
        self.0.stand_again(file);
        Ok(())
    }

    fn write_to_kernel(&self, file: &Managed) -> Result<()> {
        self.0.write_to_kernel(file)
    }

    fn sync_file(&self, file: &Managed) -> Result<()> {
        self.0.sync_file(file)
    }

    fn reload_len(&self, file: &Managed) -> Result<()> {
        self.0.reload_len(file)
    }

    fn demote(&self, file: &Managed) -> Result<()> {
        self.0.demote(file)
    }

    fn prepare_unlink(&self, file: &Managed) -> Result<bool> {
        self.0.prepare_unlink(file)
    }

    fn begin_rename(&self, file: &Managed, to: &Path) -> Result<bool> {
        self.0.begin_rename(file, to)
    }

    fn end_rename(&self, file: &Managed, done: bool) -> Result<()> {
        self.0.end_rename(file, done)
    }

    fn dir_is_durable(&self, dir: &Path, names: &[OsString]) -> Result<bool> {
        self.0.dir_is_durable(dir, names)
    }

    fn is_settled(&self, file: &Managed) -> bool {
        self.0.is_settled(file)
    }

    fn was_removed(&self, file: &Managed) {
        if file.slow.is_removed().unwrap_or(false) {
            self.0.close_stream(file);
        }
    }

    fn shared(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        Some((self.0.ring.shared()?.file(), self.0.ring.file.descriptor()?))
    }

    fn allow_writers(&self, file: &Managed, durable: bool) {
        self.0.allow_writers(file, durable);
    }

    fn revoke_writers(&self, file: &Managed) -> Result<()> {
        self.0.revoke_writers(file)
    }

    fn counts_shared(&self, file: &Managed) -> [u64; 3] {
        self.0.counts_shared(file)
    }

    fn change_shared(&self, file: &Managed, change: Change, src: &[u8], until: Option<Step>) -> Result<Option<usize>> {
        self.0.change_shared(file, change, src, until)
    }

    fn flush_log(&self) -> Result<()> {
        self.0.flush_log()
    }

    fn sync_shared(&self, file: &Managed) -> Result<bool> {
        self.0.sync_shared(file)
    }

    fn check_usable(&self, file: &Managed) -> Result<()> {
        self.0.handle_state.writable()?;
        file.check_usable()
    }

    fn mend_left(&self, file: &Managed) -> Result<()> {
        self.0.handle_state.writable()?;
        self.0.mend_left(file)
    }

    fn drain(&self) -> Result<()> {
        self.0.drain_all()
    }

    fn drain_some(&self) -> Result<()> {
        self.0.drain_some()
    }

    fn sync_all(&self) -> Result<()> {
        self.0.sync_all()
    }

    fn remove(&self) -> Result<bool> {
        self.0.remove()
    }

    fn info(&self) -> Result<CacheInfo> {
        self.0.info()
    }
}

impl<M: Medium> Drop for Open<M> {
    fn drop(&mut self) {
        if self.0.handle_state.ours().is_ok() {
            Wakeup::stop(&self.0);
            self.0.worker.stop();
            if !self.0.is_removed() {
                self.0.wipe_settled();
                self.0.close_spill();
            }
        }
    }
}

impl<M: Medium> Cache<M> {
    /// Makes durable what was written to any file so far.
    fn sync_all(&self) -> Result<()> {
        self.handle_state.writable()?;
        // What is shown of a write of which a process died may be less than a replay would leave, or more.
        self.mend_all()?;
        let files = locked(&self.registry).all();
        let (last, committed) = self.put_commits(&files);
        if !self.ring.is_per_write() {
            self.flush_commits(barriers::SYNC)?;
        }
        self.make_durable(last)?;
        committed?;
        for file in files {
            file.check_usable()?;
            if file.is_demoted() {
                self.sync_as_ever(&file)?;
            }
        }
        Ok(())
    }

    fn info(&self) -> Result<CacheInfo> {
        self.handle_state.ours()?;
        let stuck = self.drain.hold().stuck();
        // The tail first: others write and drain meanwhile, and it never goes beyond a later head.
        let tail = self.ring.tail();
        Ok(CacheInfo {
            durability: self.durability,
            capacity: self.ring.geometry.slots,
            entry_size: self.ring.geometry.entry,
            used: self.ring.head().saturating_sub(tail),
            stuck,
            files: locked(&self.registry).all().len() as u64,
            max_files: self.ring.geometry.files,
            uncommitted: self.open_claims.load(Ordering::Acquire),
        })
    }
}

/// Brings what is in a log to the files; `look` only says what that would be.
pub(crate) fn replay<M: Medium>(
    medium: &M,
    place: &dyn BackingDir,
    path: &Path,
    look: bool,
    keep: Option<Keep>,
    progress: Option<&ProgressFn>,
) -> Result<Replay> {
    let open::Found { file, mut superblock, scan } =
        if look { open::look(medium, path)? } else { open::find(medium, path)? };
    let is_blank = scan.is_blank;
    let replayer = Replayer::new(medium, &file, path, scan, place, look);
    let replay = replayer.keeping(keep).run(progress.filter(|_| !look))?;
    if !look && replay.is_complete() {
        if replay.operations > 0 {
            superblock.begin(medium, &file)?;
            // There is no later fence that the other copy could wait for.
            medium.fence(barriers::SESSION, &[&file])?;
        }
        if !is_blank {
            wipe::wipe(&file, superblock.geometry, 0..superblock.geometry.slots)?;
        }
        spill::remove(place, &spill::path_of(path));
    }
    Ok(replay)
}

/// Whether a file is a write-cache log, by its first bytes.
///
/// # Errors
/// Those of reading it.
pub(crate) fn is_log(path: &Path) -> Result<bool> {
    let mut start = vec![0; format::PAGE as usize + 8];
    let Some(file) = crate::write_cache::backing::Kernel.look(path)? else { return Ok(false) };
    let there = file.read(0, &mut start)?;
    Ok(format::is_log(&start[..there]))
}
