//! The write cache: a log on a fast medium in front of any number of files on slow ones (the NVCache paper, §II and III).
//!
//! A write becomes one or more *entries* of the log and is then durable; a thread brings entries to their files later, many at
//! a time, and frees them once the files are synced. Reads see the slow file with the entries laid over it.
//!
//! ```text
//!  write ─► claim room ─► locks of its pages ─► entries, each certified ─► one fence ─► laid over the pages: seen by reads
//!                                                                                                  │
//!  slow files ◄── sync, once a batch ◄── pwrite, one for what many wrote ◄── drain, in order ◄─────┘
//!       └─► the tail, durably ─► entries are free
//! ```
//!
//! # What makes it sound
//! 1. An entry proves by itself that all of it arrived: its checksum is over header and data, seeded with the log, the
//!    session and the place. So it needs no order between its own stores, and one fence makes it durable. An operation of
//!    several entries counts if each of them does.
//! 2. An entry is laid over its pages after its fence, under locks that were taken before its place in the order was decided.
//!    So nothing is seen that a crash could take back, and of two writes to one page the later in the log is the later one.
//!    Where durability is left to a sync, entries are seen before: like any file, then.
//! 3. The tail passes an entry when its file was synced after it was written to, or was removed, durably, and nothing is stored over an entry before
//!    the tail beyond it is durable. So a replay finds every entry that matters, and before it none that is older than one
//!    it does not find: replaying is idempotent, over what was drained already too.
//! 4. An operation that is in the file by halves, because the drain or its sync was interrupted, is whole in the log. (Where
//!    durability is left to a sync, the log is flushed before a batch is drained.)
//! 5. A session's entries, tails and table lines carry its seal. A new session begins, durably, only when all that the log had
//!    is durable in its files; and what is damaged later is not taken for an older state, for both copies of superblock, tail
//!    and line say the same but for an instant.
//! 6. Entries name files by a number, and the file table gives each number an identity, before the first entry has it; and
//!    before that the file has its name, and what it held, durably: or it held nothing, its line says that it is *new*, and its
//!    directory is there durably. A new file's name becomes durable, and its line says no more that it is new, before the tail passes
//!    the first of its entries; until then a replay empties it before all else, or makes it again. A replay writes to no file of another identity, whatever its
//!    name. Who renames or removes a file of which the log is not told has it demoted before, which leaves no entries of it.
//!    Or, before the last name of a file is removed, the log notes that it is *leaving*. Its entries stay: until the removal is
//!    durable the file may be back after a crash, and has to hold what was acknowledged then. A replay that does not find it
//!    makes it durable that it is gone, before it gives its entries up.
//! 7. Before a file is renamed its line has *both names*, durably, and an entry says that it was renamed. The tail passes that entry when
//!    the rename is durable. So a replay finds the file wherever a crash leaves it, and repeats what it undid. What the file is put over is
//!    leaving, if the log had something of it, and is named by the line in any case: a replay puts the file over that one alone, and it is
//!    missed by nobody if the rename was done, and only then. Nothing else of which the log is not told can be there after a crash:
//!    its directory was synced with what is there now. Who has a name by right is who got it last, counted as numbers are given.
//! 8. Who goes past the log, with a write larger than it, one for which the entries of files that failed leave no room, or a file
//!    that others use too, does so when the tail has passed every entry of the file, so that no replay ever writes over it.
//! 9. A file that fails is drained no more: its calls fail, its entries stay. If they are in the way, they are written once
//!    more at the head, durably, before the tail passes them, and keep their place in the order.
//!
//! A file may instead be written *through*, to log and kernel in one call, and be read without the log: see [`write_through`].
//!
//! # Locks, in the order in which they are taken
//! Claims on entries (the only wait for room, with nothing held: for the end of a drain, whoever drains); a file's gate; its line in the table; its length; its turn, where
//! other processes append for it, or else its stripes, ascending; or instead of stripes: the drain; the registry; a stripe. Who has the
//! gate to himself may take the turn before line and length. The drain takes no gate, and of a file that is written through neither
//! length nor turn, so who waits for it with them does not wait for itself; and before it waits for a process it takes only turns that
//! nobody has.

mod coalesce;
mod drain;
mod draining;
mod file;
mod format;
mod multi_process;
mod names;
mod open;
mod overlay;
mod recreate;
mod rename;
mod rename_replay;
mod replay;
mod ring;
mod scan;
mod synced_dirs;
mod table;
mod wakeup;
mod worker;
mod write_through;

use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use untorn_ring::{Change, Step};

use self::draining::Draining;
pub(crate) use self::file::{At, Managed};
pub(crate) use self::format::Geometry;
pub(crate) use self::open::create;
pub use self::replay::{Fate, Replay, ReplayedFile};
use self::ring::Ring;
use self::table::Registry;
use self::wakeup::Bell;
use self::worker::Worker;
use crate::engine::handle_state::Standing;
use crate::error::Result;
use crate::options::{Durability, ProgressFn};
use crate::storage::{Identity, Medium, MediumFile};
use crate::write_cache::backing::{SlowFile, SlowPlace};

/// The barriers of the write cache.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A new log is whole before its name points to it.
        CREATE = "cache.create";
        /// What a killed process left in the log is durable before anything is concluded from it.
        ATTACH_LOG = "cache.attach.log";
        /// The log's name is durable before anything in it is acknowledged, whoever created it.
        ATTACH_NAME = "cache.attach.name";
        /// What is concluded at an open comes from the medium and not from what a failed flush left in the cache.
        ATTACH_CACHE = "cache.attach.cache";
        /// A session is durable before the first entry that only counts in it.
        SESSION = "cache.session";
        /// What a file had before the log was put in front of it is durable before the log has more.
        BEFORE = "cache.before.file";
        /// A file has its name durably before the log has anything of it, or its directory has if a replay can make it again: a replay
        /// finds files by name.
        NAME = "cache.before.name";
        /// What an entry's number means is durable before the entry is.
        TABLE = "cache.table";
        /// An entry is durable before it is seen and before its write returns.
        ENTRY = "cache.entry";
        /// The log does without a file before that can be gone.
        LEAVING = "cache.leaving";
        /// No crash leaves a file of which the log knows nothing where one is to be that is renamed.
        TARGET = "cache.moving.target";
        /// The log has both names of a file before it is renamed, wherever a crash leaves it.
        MOVING = "cache.moving";
        /// A file that was not replaced after all is to be made again if a crash takes it, before the log forgets what was to replace it.
        STAYED = "cache.moving.stayed";
        /// What another process appended is durable before the kernel has it.
        BESIDE = "cache.beside.entry";
        /// All that other processes appended is durable when a sync of theirs returns.
        BESIDE_SYNC = "cache.beside.sync";
        /// What a killed process left is durable before the kernel is given it once more.
        MENDED = "cache.beside.mended";
        /// All entries written before a sync are durable when it returns.
        SYNC = "cache.sync";
        /// Where durability is left to a sync: what the log has of names is durable when it is relied on instead of a sync of their directory.
        NAMES = "cache.names";
        /// Where durability is left to a sync: an operation is whole in the log before half of it can be in the file.
        AHEAD = "cache.drain.ahead";
        /// Where durability is left to a sync: the log has it that a file is to be shorter, and all before, before it is.
        CUT = "cache.through.cut";
        /// What was drained is durable in the file before its entries are free.
        FILE = "cache.drain.file";
        /// A new file has its name durably before the log can no more make it again.
        NAMED = "cache.drain.named";
        /// The log says that a file is not to be made again before entries are free without which it could not be.
        NEW_NO_MORE = "cache.drain.new-no-more";
        /// A file that was renamed is to be found by its new name for good before the entry is free that has the rename repeated.
        MOVED_TO = "cache.drain.moved-to";
        /// It is so, too, that the other directory has it no more: a rename from one to the other is durable when both are.
        MOVED_FROM = "cache.drain.moved-from";
        /// A file that was removed stays so before entries that were not brought to it are free.
        REMOVED = "cache.drain.removed";
        /// The log says what is free before it is written over.
        TAIL = "cache.drain.tail";
        /// An entry that was moved is durable before the tail passes the one it was.
        MOVED = "cache.drain.moved";
        /// What goes past the log is durable when the call returns.
        PAST = "cache.past";
        /// What was replayed is durable in its file before the log is given up.
        REPLAYED_FILE = "cache.replay.file";
        /// A file that was made again is whole, and to be found, before the log takes it for the one that a crash took.
        AGAIN = "cache.replay.again";
        /// The log takes it for that one before it gets its name.
        KNOWN_AGAIN = "cache.replay.known-again";
        /// It has its name durably before the log is given up.
        NAMED_AGAIN = "cache.replay.named-again";
        /// A rename is durable, repeated or not, before the log is given up.
        RENAMED_AGAIN = "cache.replay.renamed-again";
        /// A file that was removed stays so before the log has nothing more of it.
        GONE = "cache.replay.gone";
        /// A log that is kept says which files have their entries, before these are used again.
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
}

/// An open log, with the files behind it.
pub(crate) struct Cache<M: Medium> {
    standing: Standing,
    /// The log's own.
    identity: Identity,
    place: Arc<dyn SlowPlace>,
    settings: Settings,
    durability: Durability,
    ring: Ring<M>,
    registry: Mutex<Registry>,
    drain: Draining,
    worker: Worker,
    bell: Bell,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of an open log now.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheInfo {
    /// When a write is durable.
    pub durability: Durability,
    /// Entries that the log has room for.
    pub capacity: u64,
    /// Bytes of data in an entry.
    pub entry_size: u32,
    /// Entries in use: not yet durable in their files.
    pub used: u64,
    /// Entries of files that can no longer be written to.
    pub stuck: u64,
    /// Files that have handles or entries.
    pub files: u64,
}

/// A cache on any medium, as handles hold it. The last one to go ends its thread.
pub(crate) struct Open<M: Medium>(pub(crate) Arc<Cache<M>>);

/// What handles ask of a cache, whatever its medium.
pub(crate) trait AnyCache: Send + Sync {
    fn path(&self) -> &Path;
    fn attach(&self, slow: Arc<dyn SlowFile>, path: &Path, through: bool) -> Result<Arc<Managed>>;
    fn detach(&self, file: &Arc<Managed>);
    fn len(&self, file: &Managed) -> Result<u64>;
    fn read(&self, file: &Managed, offset: u64, dst: &mut [u8]) -> Result<usize>;
    fn write(&self, file: &Managed, at: At, src: &[u8]) -> Result<(u64, usize)>;
    fn set_len(&self, file: &Managed, len: u64) -> Result<()>;
    fn sync(&self, file: &Managed) -> Result<()>;
    fn hand_over(&self, file: &Managed) -> Result<()>;
    fn sync_file(&self, file: &Managed) -> Result<()>;
    fn refresh(&self, file: &Managed) -> Result<()>;
    fn demote(&self, file: &Managed) -> Result<()>;
    fn leave(&self, file: &Managed) -> Result<bool>;
    fn move_to(&self, file: &Managed, to: &Path) -> Result<bool>;
    fn moved(&self, file: &Managed, done: bool) -> Result<()>;
    fn keeps_names(&self, dir: &Path, names: &[OsString]) -> Result<bool>;
    fn is_settled(&self, file: &Managed) -> bool;
    fn shared(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)>;
    fn let_in(&self, file: &Managed, durable: bool);
    fn keep_out(&self, file: &Managed) -> Result<()>;
    fn counts_beside(&self, file: &Managed) -> [u64; 3];
    fn change_beside(&self, file: &Managed, change: Change, src: &[u8], until: Option<Step>) -> Result<Option<usize>>;
    fn flush_log(&self) -> Result<()>;
    fn sync_beside(&self, file: &Managed) -> Result<bool>;
    fn standing(&self, file: &Managed) -> Result<()>;
    fn mend_left(&self, file: &Managed) -> Result<()>;
    fn drain(&self) -> Result<()>;
    fn drain_some(&self) -> Result<()>;
    fn sync_all(&self) -> Result<()>;
    fn info(&self) -> Result<CacheInfo>;
}

impl<M: Medium> AnyCache for Open<M> {
    fn path(&self) -> &Path {
        self.0.standing.path()
    }

    fn attach(&self, slow: Arc<dyn SlowFile>, path: &Path, through: bool) -> Result<Arc<Managed>> {
        self.0.attach(slow, path, through)
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

    fn hand_over(&self, file: &Managed) -> Result<()> {
        self.0.hand_over(file)
    }

    fn sync_file(&self, file: &Managed) -> Result<()> {
        self.0.sync_file(file)
    }

    fn refresh(&self, file: &Managed) -> Result<()> {
        self.0.refresh(file)
    }

    fn demote(&self, file: &Managed) -> Result<()> {
        self.0.demote(file)
    }

    fn leave(&self, file: &Managed) -> Result<bool> {
        self.0.leave(file)
    }

    fn move_to(&self, file: &Managed, to: &Path) -> Result<bool> {
        self.0.move_to(file, to)
    }

    fn moved(&self, file: &Managed, done: bool) -> Result<()> {
        self.0.moved(file, done)
    }

    fn keeps_names(&self, dir: &Path, names: &[OsString]) -> Result<bool> {
        self.0.keeps_names(dir, names)
    }

    fn is_settled(&self, file: &Managed) -> bool {
        self.0.is_settled(file)
    }

    fn shared(&self) -> Option<(BorrowedFd<'_>, BorrowedFd<'_>)> {
        Some((self.0.ring.shared()?.file(), self.0.ring.file.descriptor()?))
    }

    fn let_in(&self, file: &Managed, durable: bool) {
        self.0.let_in(file, durable);
    }

    fn keep_out(&self, file: &Managed) -> Result<()> {
        self.0.keep_out(file)
    }

    fn counts_beside(&self, file: &Managed) -> [u64; 3] {
        self.0.counts_beside(file)
    }

    fn change_beside(&self, file: &Managed, change: Change, src: &[u8], until: Option<Step>) -> Result<Option<usize>> {
        self.0.change_beside(file, change, src, until)
    }

    fn flush_log(&self) -> Result<()> {
        self.0.flush_log()
    }

    fn sync_beside(&self, file: &Managed) -> Result<bool> {
        self.0.sync_beside(file)
    }

    fn standing(&self, file: &Managed) -> Result<()> {
        self.0.standing.writable()?;
        file.standing()
    }

    fn mend_left(&self, file: &Managed) -> Result<()> {
        self.0.standing.writable()?;
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

    fn info(&self) -> Result<CacheInfo> {
        self.0.info()
    }
}

impl<M: Medium> Drop for Open<M> {
    fn drop(&mut self) {
        if self.0.standing.ours().is_ok() {
            Bell::stop(&self.0);
            self.0.worker.stop();
        }
    }
}

impl<M: Medium> Cache<M> {
    /// Makes durable what was written to any file so far.
    fn sync_all(&self) -> Result<()> {
        self.standing.writable()?;
        // What is shown of a write of which a process died may be less than a replay would leave, or more.
        self.mend_all()?;
        let files = locked(&self.registry).all();
        if !self.ring.is_per_write() {
            self.ring.persist(barriers::SYNC).map_err(|error| self.poison(error))?;
        }
        for file in files {
            file.standing()?;
            if file.is_demoted() {
                self.sync(&file)?;
            }
        }
        Ok(())
    }

    fn info(&self) -> Result<CacheInfo> {
        self.standing.ours()?;
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
        })
    }
}

/// Brings what is in a log to the files; `look` only says what that would be.
pub(crate) fn replay<M: Medium>(
    medium: &M,
    place: &dyn SlowPlace,
    path: &Path,
    look: bool,
    progress: Option<&ProgressFn>,
) -> Result<Replay> {
    let open::Found { file, mut superblock, scan } = open::find(medium, path)?;
    if look {
        return replay::look(medium, &file, path, scan, place);
    }
    let replay = replay::apply(medium, &file, path, scan, place, progress)?;
    if replay.is_complete() && replay.operations > 0 {
        superblock.begin(medium, &file)?;
        // There is no later fence that the other copy could wait for.
        medium.fence(barriers::SESSION, &[&file])?;
    }
    Ok(replay)
}

/// Whether a file is a write-cache log, by its first bytes.
///
/// # Errors
/// Those of reading it.
pub(crate) fn is_log(path: &Path) -> Result<bool> {
    let mut start = vec![0; format::PAGE as usize + 8];
    let Some(file) = crate::write_cache::backing::Kernel.open(path)? else { return Ok(false) };
    let there = file.read(0, &mut start)?;
    Ok(format::is_log(&start[..there]))
}
