//! The file system itself, over an open /dev/fuse and a directory.
//!
//! ```text
//!  requests ─► names, attributes, xattr, directories ─► nodes ─► the source
//!         └──► handles, data, locks ─► managed ─► the log
//! ```
//!
//! # Invariants
//!
//! 1. Each request is answered once, by the thread that read it; a lock that has to be waited for, by another.
//! 2. Two threads or more serve, so that a request that the server causes itself finds one.
//! 3. When the file system is gone, everything is in its files, durably; or the report says of which files it is not.

mod attributes;
mod credentials;
mod data;
mod dir_syncs;
mod directories;
mod globs;
mod handles;
mod locks;
mod log;
mod managed;
mod names;
mod nodes;
mod pages;
mod pull;
mod requests;
mod workers;
mod xattr;

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use std::{fs, io};

use fuser::{Config, Session, SessionACL};
use rustix::fs::{CWD, Mode as Bits, OFlags};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use untorn::write_cache::{CacheOptions, WriteCache};

use self::credentials::Groups;
use self::dir_syncs::DirSyncs;
pub use self::globs::Globs;
use self::handles::Handles;
use self::locks::Locks;
use self::log::Sealing;
pub use self::log::{make_log_directory, remove_empty_log_directory};
use self::managed::Managing;
pub use self::managed::Report;
use self::nodes::{Descriptors, Node, Nodes};
use self::pages::Pages;
use self::pull::Pulls;
pub use self::pull::pull_for;
use self::requests::Requests;
use self::workers::Workers;
use crate::error::{Error, Result};

/// The name of untorn's own directories.
const HIDDEN: &[u8] = b".untorn";

/// Nodes that have a descriptor at the same time, at most.
const MOST_NODES: usize = 1 << 14;

/// How long to wait for a log that another process has.
const LOG_PATIENCE: Duration = Duration::from_secs(2);

/// Whether a name is of a directory of untorn's own: `.untorn`, or that of another user beside it, `.untorn-1000`.
fn is_hidden(name: &OsStr) -> bool {
    let Some(rest) = name.as_bytes().strip_prefix(HIDDEN) else { return false };
    match rest {
        [] => true,
        [b'-', user @ ..] => !user.is_empty() && user.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// When managed files are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mode {
    /// A write has the durability of the log when it returns: always with a log in persistent memory, after a sync with
    /// a log on a disk.
    Boost,
    /// The changes of a file between two syncs are durable together or not at all. A crash gives each file its last
    /// commit: that of the last sync that returned, or a later one. The last close commits too, and does not wait until
    /// the commit is durable.
    Atomic,
}

/// How to serve a directory.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// When managed files are durable.
    pub mode: Mode,
    /// The managed files. Other files pass through.
    pub globs: Globs,
    /// The managed files that get a commit log if they have none, so that `untorn commits` gives their commits. Only
    /// the files that are atomic get one.
    pub commit_logs: Option<Globs>,
    /// The log. It is created if it does not exist.
    pub log: PathBuf,
    /// How to create and use it.
    pub log_options: CacheOptions,
    /// That log, if it is open already, as one that several directories share.
    pub cache: Option<WriteCache>,
    /// Whether a file that the globs choose and that the log can't manage is refused with EOPNOTSUPP instead of being
    /// left plain.
    pub strict: bool,
    /// Whether other users may use the mount, which then acts for each of them. Only root can do that.
    pub allow_other: bool,
    /// How long the kernel takes names and attributes to be the same, so that changes outside stay unseen for as long.
    pub lifetime: Duration,
    /// The user and group that files of all others are shown with, for a mount in a user namespace that has no others.
    pub ids: Option<(u32, u32)>,
    /// Whether each write is a request, in [`Mode::Atomic`]. Otherwise the kernel caches writes, and keeps the length
    /// that it knows: it does not see that a file grew outside. Two programs that use a file by two hard links at a
    /// time may then see an old length. Either way the mount has to have a process that pulls
    /// ([`Serving::set_puller`]).
    pub write_through: bool,
    /// Whether the kernel keeps the locks of `fcntl(2)`, as it keeps those of `flock(2)`. Programs on the mount meet
    /// each other's locks, and none of programs that use the source past the mount. A lock is no request then, and
    /// neither is a close.
    pub local_locks: bool,
    /// Server threads, at least two.
    pub threads: usize,
}

impl ServeOptions {
    /// The defaults.
    pub fn new(mode: Mode, log: &Path) -> Self {
        ServeOptions {
            mode,
            globs: Globs::default(),
            commit_logs: None,
            log: log.to_owned(),
            log_options: CacheOptions::new(),
            cache: None,
            strict: false,
            allow_other: false,
            lifetime: Duration::from_secs(1),
            ids: None,
            write_through: false,
            local_locks: false,
            threads: 2,
        }
    }
}

/// The state that all threads share.
struct Server {
    nodes: Nodes,
    handles: Handles,
    managing: Arc<Managing>,
    locks: Arc<Locks>,
    groups: Groups,
    descriptors: Descriptors,
    /// One file at a time is settled.
    settling: Mutex<()>,
    /// Whether requests of other users are served as these users.
    as_root: bool,
    ids: Option<(u32, u32)>,
    lifetime: Duration,
    /// Whether the kernel caches writes.
    writeback: bool,
    /// Whether the source has no extended attributes.
    no_xattr: bool,
    pulls: Pulls,
    dir_syncs: Mutex<DirSyncs>,
    pages: Pages,
    workers: Workers,
    /// Directories below that were not served, by their logs.
    sealing: Mutex<Sealing>,
}

/// A directory that is being served.
pub struct Serving {
    session: JoinHandle<io::Result<()>>,
    helpers: Vec<JoinHandle<()>>,
    server: Arc<Server>,
    source: PathBuf,
}

/// Serves a directory until the file system is unmounted. `device` is /dev/fuse after `mount(2)`, `source` an `O_PATH`
/// descriptor of the directory from before, `source_path` its absolute path.
///
/// The call opens the log, which first brings what a killed server left there to its files. It empties the umask of
/// this process, because each request has its own, and raises its limit of open files.
///
/// # Errors
/// [`Error::Covered`]; those of opening the log; [`Error::Io`], as where /proc is not mounted.
pub fn serve(device: OwnedFd, source: OwnedFd, source_path: &Path, options: ServeOptions) -> Result<Serving> {
    let failed = |operation| move |errno| Error::io(operation, source_path, errno);
    let descriptors = Descriptors::open().map_err(|errno| Error::io("open", Path::new("/proc/self/fd"), errno))?;
    check_not_covered(&source, source_path)?;
    raise_limit();
    check_log_is_hidden(&options.log, source_path)?;
    log::check_no_log_left(source_path, &options.log)?;
    let cache = match options.cache.clone() {
        Some(cache) => cache,
        None => open_log(&options, source_path)?,
    };
    rustix::process::umask(Bits::empty());
    let no_xattr = has_no_xattr(&source);
    let started = |what| move |source: io::Error| Error::Io { operation: what, path: source_path.to_owned(), source };
    let atomic = options.mode == Mode::Atomic;
    let writeback = atomic && !options.write_through;
    let threads = options.threads.max(if atomic { 3 } else { 2 });
    let (managing, rest) =
        Managing::start(cache, (options.globs, options.commit_logs), (atomic, writeback, options.strict))
            .map_err(started("start a thread to serve"))?;
    let (locks, wait) = Locks::start(options.local_locks).map_err(started("start a thread to serve"))?;
    let server = Arc::new(Server {
        nodes: Nodes::new(source, most_nodes()).map_err(failed("examine"))?,
        handles: Handles::default(),
        managing,
        locks,
        groups: Groups::new().map_err(failed("read the groups of this process to serve"))?,
        descriptors,
        settling: Mutex::default(),
        as_root: options.allow_other && rustix::process::geteuid().is_root(),
        ids: options.ids,
        lifetime: options.lifetime,
        writeback,
        no_xattr,
        pulls: Pulls::new(threads),
        dir_syncs: Mutex::default(),
        pages: Pages::new(!atomic),
        workers: Workers::default(),
        sealing: Mutex::default(),
    });
    let mut config = Config::default();
    // The kernel decides who may use the mount. A kernel thread that writes back comes as root.
    config.acl = SessionACL::All;
    config.n_threads = Some(threads);
    let mut helpers = vec![rest, wait];
    if server.pages.is_ours() {
        helpers.push(pages::start(&server).map_err(started("start a thread to serve"))?);
    }
    let (requests, own) = (Requests(server.clone()), server.clone());
    let session = thread::Builder::new()
        .name("untorn-mount".to_owned())
        .spawn(move || {
            let session = Session::from_fd(requests, device, SessionACL::All, config)?;
            own.pages.set_notifier(session.notifier());
            drop(own);
            session.run()
        })
        .map_err(started("start a thread to serve"))?;
    Ok(Serving { session, helpers, server, source: source_path.to_owned() })
}

/// The open files of a directory that is being served.
pub struct OpenFiles(Arc<Server>);

impl OpenFiles {
    /// How many there are at the moment.
    pub fn count(&self) -> usize {
        self.0.handles.files().len()
    }
}

impl Serving {
    /// Waits until the file system is unmounted, and then brings everything from the log to the files.
    ///
    /// # Errors
    /// [`Error::Io`] if the connection to the kernel failed.
    pub fn wait(self) -> Result<Report> {
        let ended = self.session.join();
        // The kernel closes no handle of a mount that was torn away.
        for open in self.server.handles.files() {
            self.server.close(&open);
        }
        self.server.managing.finish();
        self.server.locks.finish();
        self.server.pages.finish();
        for helper in self.helpers {
            // A thread that panicked has nothing left to do.
            let _ = helper.join();
        }
        let failed = |source| Error::Io { operation: "serve", path: self.source.clone(), source };
        match ended {
            // A thread that has just taken a request when the connection ends is told so by this error; those that
            // wait for one get ENODEV, which is no error here. Source: `fuse_dev_do_read` in `fs/fuse/dev.c`.
            Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionAborted => {}
            Ok(ended) => ended.map_err(failed)?,
            Err(_) => return Err(failed(io::Error::other("a server thread panicked"))),
        }
        let (lock_requests, flush_requests) = self.server.locks.requests();
        let sealed = lock(&self.server.sealing).clone();
        let [sync_requests, synced_writes] = self.server.pulls.requests();
        let writes_together = self.server.pages.writes_together();
        let report = self.server.managing.report();
        Ok(Report { lock_requests, flush_requests, sync_requests, synced_writes, writes_together, sealed, ..report })
    }

    /// Connects the process that pulls ([`pull_for`]). Until then a sync in [`Mode::Atomic`] fails, if the kernel may
    /// have a part of the file.
    pub fn set_puller(&self, puller: UnixStream) {
        self.server.pulls.set_puller(puller);
    }

    /// The log.
    pub fn log(&self) -> WriteCache {
        self.server.managing.log()
    }

    /// Counts the open files, also while somebody waits for the end.
    pub fn open_files(&self) -> OpenFiles {
        OpenFiles(self.server.clone())
    }

    /// Files that the kernel knows at the moment.
    pub fn known_files(&self) -> usize {
        self.server.nodes.len()
    }
}

/// The mount that a descriptor is in. This sends no request to any file system.
fn mount_of(descriptor: impl AsFd) -> io::Result<String> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", nodes::number(descriptor.as_fd())))?;
    let line = info.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.map(|line| line.trim().to_owned()).ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// The log finds its files by their paths, which must not lead into the mount: the server would wait for itself.
fn check_not_covered(source: &OwnedFd, path: &Path) -> Result<()> {
    let failed = |source| Error::Io { operation: "examine", path: path.to_owned(), source };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let named = rustix::fs::openat(CWD, path, flags, Bits::empty()).map_err(|errno| Error::io("open", path, errno))?;
    let same_mount = mount_of(&named).map_err(failed)? == mount_of(source).map_err(failed)?;
    let same = |descriptor: &OwnedFd| rustix::fs::fstat(descriptor).map(|status| nodes::key_of(&status));
    let covered = !same_mount
        || same(&named).map_err(|errno| Error::io("examine", path, errno))?
            != same(source).map_err(|errno| Error::io("examine", path, errno))?;
    if covered { Err(Error::Covered(path.to_owned())) } else { Ok(()) }
}

/// No program may write to the log.
fn check_log_is_hidden(log: &Path, source: &Path) -> Result<()> {
    let directory = log.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    let failed = |path: &Path, source| Error::Io { operation: "find", path: path.to_owned(), source };
    let real_source = source.canonicalize().map_err(|error| failed(source, error))?;
    let shown = |directory: &Path| directory.strip_prefix(&real_source).is_ok_and(|rest| !rest.iter().any(is_hidden));
    match directory.canonicalize() {
        Ok(directory) if shown(&directory) => Err(Error::LogInSource(log.to_owned())),
        Ok(_) => Ok(()),
        // The directory of the default log is made later.
        Err(_) if log == ServeOptions::default_log(source) => Ok(()),
        Err(error) => Err(failed(directory, error)),
    }
}

/// Nodes that have a descriptor at the same time, if possible. Open files need others.
fn most_nodes() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(limit / 2).map_or(MOST_NODES, |half| half.min(MOST_NODES))
}

/// Nodes and open files have descriptors, so as many may be open as the system allows.
fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    if let Err(errno) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%errno, "cannot raise the limit of open files");
    }
}

fn open_log(options: &ServeOptions, source: &Path) -> Result<WriteCache> {
    let is_default = options.log == ServeOptions::default_log(source);
    let is = |error: &untorn::Error, errno: Errno| error.errno() == errno.raw_os_error();
    let begun = Instant::now();
    loop {
        if is_default {
            make_log_directory(source)?;
        }
        let opened = match options.log_options.open(&options.log) {
            Err(error) if is(&error, Errno::NOENT) => options.log_options.create(&options.log),
            opened => opened,
        };
        match opened {
            // A server at its end removed the directory with its log.
            Err(error) if is_default && is(&error, Errno::NOENT) && begun.elapsed() < LOG_PATIENCE => {}
            // A process that a killed server was about to start may have it for a moment.
            Err(untorn::Error::InUse { .. }) if begun.elapsed() < LOG_PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            opened => return Ok(opened?),
        }
    }
}

fn has_no_xattr(source: &OwnedFd) -> bool {
    let mut nothing: [u8; 0] = [];
    let path = format!("/proc/self/fd/{}", nodes::number(source.as_fd()));
    rustix::fs::listxattr(path, &mut nothing[..]) == Err(Errno::OPNOTSUPP)
}

impl Server {
    /// A file with committed bytes in a sidecar of the library becomes a plain one before its first use.
    fn settle_sidecar(&self, node: &Node) -> std::result::Result<(), Errno> {
        if self.no_xattr || node.is_settled() {
            return Ok(());
        }
        let _one = lock(&self.settling);
        let link = format!("/proc/self/fd/{}", nodes::number(node.as_fd()));
        let mut nothing: [u8; 0] = [];
        match rustix::fs::getxattr(link, "user.untorn", &mut nothing[..]) {
            Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
            Ok(_) => {
                let path = self.path_of(node)?.ok_or(Errno::IO)?;
                untorn::AtomicFile::open(&path).and_then(untorn::AtomicFile::settle).map_err(|error| {
                    tracing::warn!(%error, "a file with a sidecar cannot be used through the mount");
                    Errno::IO
                })?;
            }
        }
        node.set_settled();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_untorn_are_hidden_and_others_are_not() {
        for (name, hidden) in [
            (".untorn", true),
            (".untorn-0", true),
            (".untorn-1000", true),
            (".untorn-", false),
            (".untorn-x", false),
            (".untorn2", false),
            ("untorn", false),
        ] {
            assert_eq!(is_hidden(OsStr::new(name)), hidden, "{name}");
        }
    }

    #[test]
    fn a_log_that_programs_could_write_to_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (source, other) = (dir.path().join("source"), dir.path().join("other"));
        std::fs::create_dir_all(source.join("d")).unwrap();
        std::fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&source, other.join("link")).unwrap();
        assert!(check_log_is_hidden(&ServeOptions::default_log(&source), &source).is_ok());
        assert!(check_log_is_hidden(&other.join("log"), &source).is_ok());
        for log in [source.join("log"), source.join("d/log"), other.join("link/d/log")] {
            assert!(matches!(check_log_is_hidden(&log, &source), Err(Error::LogInSource(_))), "{log:?}");
        }
        assert!(check_log_is_hidden(&other.join("none/log"), &source).is_err());
    }

    #[test]
    fn a_source_is_covered_by_another_directory_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("source");
        std::fs::create_dir(&source).unwrap();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(&source, flags, Bits::empty()).unwrap();
        assert!(check_not_covered(&descriptor, &source).is_ok());
        std::fs::rename(&source, dir.path().join("moved")).unwrap();
        std::fs::create_dir(&source).unwrap();
        assert!(matches!(check_not_covered(&descriptor, &source), Err(Error::Covered(_))));
    }
}
