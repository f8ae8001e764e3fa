//! Managed files: those that globs choose, while a program has them open for writing or the log has bytes of them.
//!
//! # Invariants
//!
//! 1. All writers of a file share one [`Managed`], found by device and inode. It holds a descriptor, so these two mean
//!    the same file for as long.
//! 2. A file leaves the table when no program writes to it and the log has nothing of it that a replay would need: it
//!    is durable in the source, or it has no name. Until then it *rests*.
//! 3. A file is attached by the path that it has: no rename runs meanwhile ([`moves`]). The server attaches a new file
//!    at once, since the log has to know of each name that comes and goes, and any other file before its first change.
//! 4. A file that the log cannot manage is *plain*: its bytes go to the source, for all its writers, and the report
//!    names it with the reason. A log that failed refuses every write with EIO. A *strict* server opens no such file,
//!    and keeps a managed one from becoming plain where it can.

mod bytes;
mod file;
mod marks;
mod moves;
mod streams;
mod timed;

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, FallocateFlags, Mode, OFlags, Stat, Timespec};
use rustix::io::Errno;
use untorn::write_cache::WriteCache;
use untorn::{Durability, Error};

pub(super) use self::file::Managed;
use self::file::{Served, State};
pub(super) use self::marks::MARK;
pub(super) use self::moves::Move;
pub(super) use self::streams::{Beside, COMMIT_LOG, SOURCE};
use self::timed::Times;
use super::nodes::{Key, Node, key_of};
use super::{Globs, Server, lock};

/// Between two looks at files that rest.
const MOMENT: Duration = Duration::from_millis(50);
/// Files in the table, at most, before a new one waits until the log has fewer of them.
const MANY: usize = 4096;
/// Locks for files whose times are set.
const SETTERS: usize = 64;
/// Plain files that the report names.
const MOST_NAMED: usize = 64;

/// The server's account of the files that the globs chose.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// Files that were managed, counted each time that their first writer came.
    pub managed: u64,
    /// Bytes that programs wrote to managed files, as the kernel sent them.
    pub bytes: u64,
    /// Files that were chosen and left plain, with the reason. The list has an end.
    pub plain: BTreeMap<PathBuf, String>,
    /// Files that a strict server did not open for writing, with the reason. The list has an end.
    pub refused: BTreeMap<PathBuf, String>,
    /// Files whose bytes could not be brought to them; they are in the log.
    pub failed: BTreeMap<PathBuf, String>,
    /// Logs of directories below that were not served, because a killed server left bytes in them or another one has
    /// them, with the reason. The list has an end.
    pub sealed: BTreeMap<PathBuf, String>,
    /// Requests about locks (GETLK, SETLK and SETLKW).
    pub lock_requests: u64,
    /// Requests at the close of a descriptor (FLUSH), which give locks up.
    pub flush_requests: u64,
}

/// All managed files.
pub(super) struct Managing {
    cache: WriteCache,
    /// Whether changes of all files count in epochs.
    atomic: bool,
    /// Whether a file was found marked, so that its changes do ([`marks`]).
    marked: AtomicBool,
    /// Whether the kernel caches writes.
    writeback: bool,
    /// Whether a file is refused that the log cannot manage.
    strict: bool,
    globs: Globs,
    /// Files that get a commit log, if any do.
    commit_logs: Option<Globs>,
    /// Files in the table before a new one waits.
    many: usize,
    /// Whether the log makes each write durable.
    per_write: bool,
    /// Held shared while a file is attached, exclusively while one gets another name or loses its name.
    moves: RwLock<()>,
    table: Mutex<HashMap<Key, Arc<Managed>>>,
    times: Mutex<Times>,
    /// Held while a file's times are set in the source, and while it comes into the table. Otherwise its stamp could be
    /// from before a time that is set past it, and that would be taken for another program's change.
    setters: [Mutex<()>; SETTERS],
    resting: Mutex<Resting>,
    /// The first file rests, or the server ends.
    news: Condvar,
    report: Mutex<Report>,
    /// Bytes for the report.
    bytes: AtomicU64,
}

/// Files without a writer that are in the table.
#[derive(Default)]
struct Resting {
    keys: Vec<Key>,
    /// The server ends.
    over: bool,
}

impl Managing {
    /// The thread that looks after files at rest ends with [`finish`](Managing::finish).
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn start(
        cache: WriteCache,
        (globs, commit_logs): (Globs, Option<Globs>),
        (atomic, writeback, strict): (bool, bool, bool),
    ) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        // With more files the log would have no line left for a new one, and its writer would wait in any case.
        let info = cache.info().ok();
        let lines = info.as_ref().map_or(0, |info| info.max_files as usize);
        let managing = Arc::new(Managing {
            many: (lines / 2).clamp(16, MANY),
            per_write: info.is_some_and(|info| info.durability == Durability::PerWrite),
            cache,
            atomic,
            marked: AtomicBool::new(false),
            writeback,
            strict,
            globs,
            commit_logs,
            moves: RwLock::default(),
            table: Mutex::default(),
            times: Mutex::default(),
            setters: [const { Mutex::new(()) }; SETTERS],
            resting: Mutex::default(),
            news: Condvar::new(),
            report: Mutex::default(),
            bytes: AtomicU64::new(0),
        });
        let watched = managing.clone();
        let thread = thread::Builder::new().name("untorn-rest".to_owned()).spawn(move || watched.look_after())?;
        Ok((managing, thread))
    }

    pub(super) fn log(&self) -> WriteCache {
        self.cache.clone()
    }

    pub(super) fn find(&self, key: Key) -> Option<Arc<Managed>> {
        lock(&self.table).get(&key).cloned()
    }

    /// Whether a crash and a replay leave these names in a directory as they are now. A log that failed keeps none.
    pub(super) fn keeps_names(&self, directory: &Path, names: &[OsString]) -> bool {
        self.cache.dir_is_durable(directory, names).unwrap_or(false)
    }

    /// Whether a sync waits for no device: writes are durable already.
    pub(super) fn syncs_at_once(&self) -> bool {
        self.per_write && !self.atomic
    }

    /// Whether changes of all files count in epochs.
    pub(super) fn is_atomic(&self) -> bool {
        self.atomic
    }

    /// Whether those of some files may.
    pub(super) fn has_atomic(&self) -> bool {
        self.atomic || self.marked.load(Ordering::Acquire)
    }

    /// The managed file whose bytes and attributes the source may lack.
    pub(super) fn atomic(&self, key: Key) -> Option<Arc<Managed>> {
        if self.has_atomic() { self.find(key).filter(|managed| managed.is_atomic()) } else { None }
    }

    /// Shows attributes as the writers of an atomic file have made them. False if the source has them all.
    pub(super) fn adjust(&self, status: &mut Stat) -> bool {
        self.find(key_of(status)).is_some_and(|managed| managed.adjust(status))
    }

    fn setter(&self, (_, inode): Key) -> &Mutex<()> {
        &self.setters[inode as usize % SETTERS]
    }

    /// A program or the kernel sets the times of a file, which may have no writer; `set` does so in the source.
    pub(super) fn set_times(
        &self,
        key: Key,
        modified: Timespec,
        set: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let _alone = lock(self.setter(key));
        match self.atomic(key) {
            Some(managed) => managed.set_times(modified, set),
            None => set(),
        }
    }

    fn all(&self) -> Vec<Arc<Managed>> {
        lock(&self.table).values().cloned().collect()
    }

    /// Attributes of a file were set in the source. The next sync makes them durable.
    pub(super) fn attributes_were_set(&self, key: Key) {
        if let Some(managed) = self.find(key) {
            managed.attributes_were_set();
        }
    }

    /// The managed file of one more writer.
    fn find_for_writer(&self, key: Key) -> Option<Arc<Managed>> {
        lock(&self.table).get(&key).inspect(|known| known.add_writer()).cloned()
    }

    /// A writer is gone.
    pub(super) fn released(&self, managed: &Arc<Managed>) {
        let gone = {
            let mut table = lock(&self.table);
            if !managed.remove_writer() {
                return;
            }
            // With the lock, so that nothing of the next writer is committed.
            managed.last_writer_is_gone();
            if managed.is_done() {
                managed.settle_times();
                table.remove(&managed.key)
            } else {
                None
            }
        };
        if gone.is_none() {
            let mut resting = lock(&self.resting);
            resting.keys.push(managed.key);
            if resting.keys.len() == 1 {
                self.news.notify_one();
            }
        }
    }

    /// Takes the files out of the table that nothing needs there any more.
    fn look_after_resting(&self) {
        let keys = std::mem::take(&mut lock(&self.resting).keys);
        let mut left = Vec::new();
        for key in keys {
            let mut table = lock(&self.table);
            let Some(managed) = table.get(&key) else { continue };
            // A writer came back; it will be put to rest again.
            if managed.has_writers() {
                continue;
            }
            if managed.is_done() {
                managed.settle_times();
                let gone = table.remove(&key);
                drop(table);
                drop(gone);
            } else {
                left.push(key);
            }
        }
        lock(&self.resting).keys.append(&mut left);
    }

    /// Looks after files at rest until the server ends.
    fn look_after(&self) {
        loop {
            let resting = lock(&self.resting);
            let resting = self.news.wait_while(resting, |resting| resting.keys.is_empty() && !resting.over);
            let resting = resting.unwrap_or_else(PoisonError::into_inner);
            let waited = self.news.wait_timeout_while(resting, MOMENT, |resting| !resting.over);
            if waited.unwrap_or_else(PoisonError::into_inner).0.over {
                return;
            }
            self.look_after_resting();
        }
    }

    /// Puts the log in front of a file that is fresh, before its first change.
    fn engage(&self, managed: &Managed) -> Result<(), Errno> {
        if !managed.is_fresh() {
            return Ok(());
        }
        let _still = self.moves.read().unwrap_or_else(PoisonError::into_inner);
        self.engage_now(managed)
    }

    /// The same while no rename runs.
    fn engage_now(&self, managed: &Managed) -> Result<(), Errno> {
        let mut state = managed.exclusive();
        if matches!(state.served, Served::Fresh) { self.attach(managed, &mut state) } else { Ok(()) }
    }

    /// Writes to a file.
    pub(super) fn write(&self, managed: &Managed, bytes: &[u8], offset: u64, appends: bool) -> Result<usize, Errno> {
        self.engage(managed)?;
        let written = self.with_room(managed, || managed.write(bytes, offset, appends))?;
        if managed.is_logged() {
            self.bytes.fetch_add(written as u64, Ordering::Relaxed);
        }
        Ok(written)
    }

    pub(super) fn set_len(&self, managed: &Managed, len: u64) -> Result<(), Errno> {
        self.engage(managed)?;
        self.with_room(managed, || managed.set_len(len))
    }

    /// Allocates, or makes a hole.
    pub(super) fn allocate(&self, managed: &Managed, mode: FallocateFlags, offset: u64, len: u64) -> Result<(), Errno> {
        self.engage(managed)?;
        managed.allocate(mode, offset, len)
    }

    /// Does what makes an entry of the log. The log has room for so many files at a time: those at rest make way, and
    /// if that is not enough the file becomes plain.
    fn with_room<T>(&self, managed: &Managed, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        if managed.is_atomic() {
            // A change that finds no room is refused, and its epoch with it. So room is made before.
            match self.or_with_room(|| managed.take_line()) {
                Ok(()) | Err(Errno::NFILE) => return act(),
                Err(errno) => return Err(errno),
            }
        }
        match self.or_with_room(&act) {
            Err(Errno::NFILE) if !self.strict => {}
            done => return done,
        }
        let path = managed.become_plain()?;
        self.is_plain(&path, "the log has writes of as many files as it can; create a larger log".to_owned());
        act()
    }

    /// Tries once more after files at rest have made way, if there was no room.
    fn or_with_room<T>(&self, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        match act() {
            Err(Errno::NFILE) => {}
            done => return done,
        }
        self.cache.drain().map_err(errno)?;
        self.look_after_resting();
        act()
    }

    /// Makes room in the table, if it has many files.
    fn make_room(&self) -> Result<(), Errno> {
        if lock(&self.table).len() < self.many || lock(&self.resting).keys.len() < self.many / 2 {
            return Ok(());
        }
        self.cache.drain().map_err(errno)?;
        self.look_after_resting();
        Ok(())
    }

    /// Commits every file, durably. The first error is that of a file; the others are committed all the same.
    pub(super) fn sync_all(&self) -> Result<(), Errno> {
        // At once, with one flush. The sync of each file tells its error again.
        let _ = self.cache.sync();
        let mut result = Ok(());
        for managed in self.all() {
            result = result.and(managed.sync());
        }
        result
    }

    /// Brings everything to the files, at the end.
    pub(super) fn finish(&self) {
        if let Err(error) = self.cache.drain() {
            tracing::warn!(%error, "writes stay in the log until a replay");
        }
        {
            let mut resting = lock(&self.resting);
            resting.keys.extend(self.all().iter().map(|managed| managed.key));
            resting.over = true;
            self.news.notify_one();
        }
        for managed in self.all() {
            if let Some(reason) = managed.failure() {
                lock(&self.report).failed.insert(managed.path(), reason);
            }
        }
        self.look_after_resting();
    }

    pub(super) fn report(&self) -> Report {
        Report { bytes: self.bytes.load(Ordering::Relaxed), ..lock(&self.report).clone() }
    }

    fn is_plain(&self, path: &Path, reason: String) {
        tracing::warn!(path = %path.display(), reason, "the log does not manage this file");
        let mut report = lock(&self.report);
        if report.plain.len() < MOST_NAMED {
            report.plain.insert(path.to_owned(), reason);
        }
    }

    /// The log cannot manage a file that a program opens for writing. An error if that is refused.
    fn is_plain_or_refused(&self, path: &Path, reason: String) -> Result<(), Errno> {
        if !self.strict {
            self.is_plain(path, reason);
            return Ok(());
        }
        tracing::warn!(path = %path.display(), reason, "refused to open a file that the log cannot manage");
        let mut report = lock(&self.report);
        if report.refused.len() < MOST_NAMED {
            report.refused.insert(path.to_owned(), reason);
        }
        Err(Errno::OPNOTSUPP)
    }

    /// Puts the log in front of a file that was not chosen, if the globs choose the name that it has now. An error is
    /// the reason why it stays plain.
    fn adopt(&self, managed: &Managed, state: &mut State, path: &Path) -> Result<(), String> {
        if managed.is_chosen() || !matches!(state.served, Served::Plain) || !self.globs.choose(path) {
            return Ok(());
        }
        managed.set_chosen();
        managed.serve_again(state, self, path).map_err(|error| error.to_string())?;
        lock(&self.report).managed += 1;
        Ok(())
    }

    /// Puts the log in front of a fresh file, or leaves it plain.
    fn attach(&self, managed: &Managed, state: &mut State) -> Result<(), Errno> {
        let path = &state.path.clone();
        let attached = check(path, &managed.descriptor).and_then(|()| {
            managed.serve_again(state, self, path).map_err(|error| match error {
                Error::Poisoned { .. } => Refusal::Failed(errno(error)),
                error => Refusal::Plain(error.to_string()),
            })
        });
        match attached {
            Ok(()) => {
                lock(&self.report).managed += 1;
                Ok(())
            }
            Err(Refusal::Failed(errno)) => Err(errno),
            Err(Refusal::Plain(reason)) => {
                self.is_plain_or_refused(path, reason)?;
                state.served = Served::Plain;
                Ok(())
            }
        }
    }
}

/// Why a file is not managed.
enum Refusal {
    Plain(String),
    Failed(Errno),
}

/// Refuses what a replay by the same user could not find, or not open by its name.
fn check(path: &Path, descriptor: impl AsFd) -> Result<(), Refusal> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let status = rustix::fs::fstat(descriptor).map_err(Refusal::Failed)?;
    if !Mode::from_raw_mode(status.st_mode).contains(Mode::RUSR | Mode::WUSR) {
        let reason = "the file's owner lacks read or write permission, so a replay would fail";
        return Err(Refusal::Plain(reason.to_owned()));
    }
    let directory = path.parent().unwrap_or(Path::new("/"));
    rustix::fs::accessat(CWD, directory, Access::READ_OK | Access::EXEC_OK, AtFlags::EACCESS).map_err(|_| {
        Refusal::Plain("no permission to read the file's directory, so a replay could not find it".to_owned())
    })
}

/// The answer to a program for an error of the library.
fn errno(error: Error) -> Errno {
    tracing::warn!(%error, "an operation on a managed file failed");
    match error {
        // Beyond what a file's length may be.
        Error::Invalid { .. } => Errno::FBIG,
        other => Errno::from_raw_os_error(other.errno()),
    }
}

impl Server {
    /// The managed file of a node that is opened for writing, or truncated, with one writer more. `None` for a plain
    /// one. `own` is a description of it that is open for reading and writing, and does not append.
    pub(super) fn manage(
        &self,
        node: &Node,
        own: Option<&Arc<OwnedFd>>,
        is_new: bool,
    ) -> Result<Option<Arc<Managed>>, Errno> {
        let managing = &self.managing;
        if !node.is_regular() {
            return Ok(None);
        }
        let _still = managing.moves.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = managing.find_for_writer(node.key) {
            return self.manage_known(node, known);
        }
        // A file without a name is gone after a crash, whatever the log has of it.
        let (path, is_chosen) = self.choose(node)?;
        let chosen = path.as_deref().filter(|_| is_chosen);
        managing.make_room()?;
        let opened = || self.descriptors.reopen(node, OFlags::RDWR).map(Arc::new);
        let (own, chosen) = match own.cloned().map_or_else(opened, Ok) {
            Ok(own) => (own, chosen),
            Err(errno) => {
                if let Some(path) = chosen {
                    let reason = format!("cannot be opened for reading and writing: {errno}");
                    managing.is_plain_or_refused(path, reason)?;
                }
                (Arc::new(self.descriptors.reopen(node, OFlags::WRONLY)?), None)
            }
        };
        let atomic = managing.atomic || !is_new && self.is_marked(node)?;
        let still_set = lock(managing.setter(node.key));
        let mut table = lock(&managing.table);
        if let Some(known) = table.get(&node.key).cloned() {
            known.add_writer();
            drop((table, still_set));
            return self.manage_known(node, known);
        }
        // All writers of a file go the same way, also those of one that was not chosen and gets another name later.
        let known_as = (path.as_deref().unwrap_or(Path::new("")), chosen.is_some());
        let modified = lock(&managing.times).of(node.key, &own, managing.writeback);
        let managed = Arc::new(Managed::new(atomic, modified, node.key, known_as, own));
        table.insert(node.key, managed.clone());
        drop(table);
        drop(still_set);
        // A file that the log cannot manage is to be refused at its opening.
        if (is_new || managing.strict)
            && let Err(errno) = managing.engage_now(&managed)
        {
            managing.released(&managed);
            return Err(errno);
        }
        Ok(Some(managed))
    }
}

impl Server {
    /// A path of a node, and whether the globs choose it. Any of its names may be the one that they choose.
    fn choose(&self, node: &Node) -> Result<(Option<PathBuf>, bool), Errno> {
        let choose = |path: &PathBuf| self.managing.globs.choose(path);
        let path = match self.path_of(node) {
            // The kernel tells nobody such a path, so a replay could not find the file.
            Err(Errno::NAMETOOLONG) => {
                let name = node.found_as().map_or_else(PathBuf::new, |(_, name)| name.into());
                let reason = "its path is longer than the kernel tells".to_owned();
                self.managing.is_plain_or_refused(&Path::new("...").join(name), reason)?;
                return Ok((None, false));
            }
            path => path?,
        };
        if path.as_ref().is_some_and(choose) {
            return Ok((path, true));
        }
        let other = if node.status()?.st_nlink > 1 { self.found_path(node)?.filter(choose) } else { None };
        let is_chosen = other.is_some();
        Ok((other.or(path), is_chosen))
    }

    /// The managed file of a node that has a writer already. This one may have opened it by a name that is chosen.
    fn manage_known(&self, node: &Node, known: Arc<Managed>) -> Result<Option<Arc<Managed>>, Errno> {
        if !known.is_chosen()
            && let (Some(path), true) = self.choose(node)?
        {
            let adopted = self.managing.adopt(&known, &mut known.exclusive(), &path);
            if let Err(reason) = adopted
                && let Err(errno) = self.managing.is_plain_or_refused(&path, reason)
            {
                self.managing.released(&known);
                return Err(errno);
            }
        }
        Ok(Some(known))
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{OFlags, Timestamps, UTIME_OMIT};
    use untorn::write_cache::CacheOptions;

    use super::*;

    /// A directory with a log, and the account of its files.
    fn managing(atomic: bool) -> (tempfile::TempDir, Arc<Managing>, JoinHandle<()>) {
        let dir = tempfile::tempdir().unwrap();
        let log = dir.path().canonicalize().unwrap().join("log");
        let cache = CacheOptions::new().size(1 << 20).max_files(4).background(false).create(log).unwrap();
        let (managing, rest) = Managing::start(cache, (Globs::default(), None), (atomic, false, false)).unwrap();
        (dir, managing, rest)
    }

    /// A program opens a file for writing.
    fn open(managing: &Managing, path: &Path, atomic: bool) -> Arc<Managed> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).unwrap();
        let key = key_of(&rustix::fs::fstat(&file).unwrap());
        let modified = lock(&managing.times).of(key, &file, false);
        let managed = Arc::new(Managed::new(atomic, modified, key, (path, true), Arc::new(file)));
        lock(&managing.table).insert(key, managed.clone());
        managed
    }

    /// The log has lines for four files, and those of the first four rest when a fifth is written to.
    #[test]
    fn a_write_waits_for_the_line_of_a_file_at_rest() {
        for atomic in [true, false] {
            let (dir, managing, rest) = managing(atomic);
            let dir = dir.path().canonicalize().unwrap();
            for number in 0..5 {
                let file = open(&managing, &dir.join(number.to_string()), atomic);
                assert_eq!(managing.write(&file, b"bytes", 0, false), Ok(5), "atomic {atomic}, file {number}");
                managing.released(&file);
            }
            managing.finish();
            rest.join().unwrap();
            assert!(managing.report().plain.is_empty());
            for number in 0..5 {
                assert_eq!(std::fs::read(dir.join(number.to_string())).unwrap(), b"bytes");
            }
        }
    }

    /// A request that was begun before the last close still has the file, and with it the log.
    #[test]
    fn a_file_that_the_log_still_has_open_is_managed_anew() {
        let (dir, managing, rest) = managing(true);
        let path = dir.path().canonicalize().unwrap().join("file");
        let first = open(&managing, &path, true);
        assert_eq!(managing.write(&first, b"first", 0, false), Ok(5));
        first.sync().unwrap();
        managing.cache.drain().unwrap();
        managing.released(&first);
        assert!(managing.find(first.key).is_none());

        let time = Timespec { tv_sec: 1_000_000_000, tv_nsec: 0 };
        let omitted = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: omitted, last_modification: time };
        let set = || rustix::fs::futimens(&*first.descriptor, &times);
        managing.set_times(first.key, time, set).unwrap();

        let second = open(&managing, &path, true);
        assert_eq!(managing.write(&second, b"second one", 0, false), Ok(10));
        second.sync().unwrap();
        managing.cache.drain().unwrap();
        assert_eq!(second.failure(), None);
        assert_eq!(std::fs::read(&path).unwrap(), b"second one");
        managing.released(&second);
        drop((first, second));
        managing.finish();
        rest.join().unwrap();
        assert!(managing.report().failed.is_empty());
    }
}
