//! FSYNC: first the pages that the kernel still has of the file, then the commit.
//!
//! The kernel sends FSYNC after the pages of a *range*, as for `O_DSYNC` and `msync`. An epoch needs all of them: those
//! that were stored to earlier would be missing in the commit. A file is therefore opened through the mount, and all
//! its dirty pages are written back, which reach the server as WRITE requests.
//!
//! ```text
//!  FSYNC ─► server thread ─► puller: opens in the mount, sync_file_range ─► WRITE ─► another server thread
//!                    commit ◄── done ◄──┘
//! ```
//!
//! # Invariants
//!
//! 1. A process of its own pulls, the *puller*. A thread that waits for its own server cannot be killed, and keeps
//!    /dev/fuse open meanwhile: after a kill of the server nobody would answer it, nor anybody else.
//! 2. While a server thread waits for a pull or a device, another one serves: fewer of them wait than there are. One
//!    more sync takes another thread ([`Workers`]). So those that come meanwhile share a flush.
//! 3. A pull holds no lock but that of the puller, and no request waits for that one unless it pulls. So each request
//!    that a pull causes can be served.
//! 4. The puller opens for reading, so it is no writer. It keeps an opening until the server says that the last writer
//!    is gone.
//! 5. During an FSYNC the kernel has the file locked. A rename of the file waits for that, and has the directories
//!    locked meanwhile. The puller therefore opens the file by the descriptor of the process that syncs, which searches
//!    no directory. Only without one, as for `msync` after `close`, it opens the file by its path. If that does not
//!    end before a deadline, the sync fails, so that nobody waits for good.
//! 6. An opening has the number of the file; a path that leads elsewhere by now is tried again.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use fuser::ReplyWrite;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use untorn::testing::storage::write_back;

use super::handles::Open;
use super::managed::Managed;
use super::nodes::{Node, ROOT};
use super::requests::errno;
#[cfg(doc)]
use super::workers::Workers;
use super::{Server, lock};

/// How often a path is looked up again that somebody renames.
const TRIES: usize = 64;
/// How long the puller waits for a file that it opens by its path.
const DEADLINE: Duration = Duration::from_secs(2);
/// How long the first syncs wait for the puller, which comes when the mount is there.
const PATIENCE: Duration = Duration::from_secs(10);
/// Openings that the puller keeps.
const MOST: usize = 256;
/// The length of a path that tells the puller to let go of an opening.
const LET_GO: u16 = u16::MAX;

/// The process that pulls.
enum Puller {
    Expected,
    Here(UnixStream),
    Gone,
}

/// Pulls under way.
pub(super) struct Pulls {
    puller: Mutex<Puller>,
    /// The puller came.
    came: Condvar,
    /// Files that the puller need not keep open any more.
    left: Mutex<Vec<u64>>,
    most: usize,
    under_way: AtomicUsize,
    /// FSYNC requests, and writes that were synced before their answer.
    requests: [AtomicU64; 2],
}

impl Pulls {
    pub(super) fn new(threads: usize) -> Self {
        Pulls {
            puller: Mutex::new(Puller::Expected),
            came: Condvar::new(),
            left: Mutex::default(),
            most: threads.saturating_sub(1),
            under_way: AtomicUsize::new(0),
            requests: Default::default(),
        }
    }

    /// An FSYNC came, or a write that is one, too.
    pub(super) fn count_request(&self, is_write: bool) {
        self.requests[usize::from(is_write)].fetch_add(1, Ordering::Relaxed);
    }

    /// FSYNC requests, and writes that were synced before their answer.
    pub(super) fn requests(&self) -> [u64; 2] {
        self.requests.each_ref().map(|count| count.load(Ordering::Relaxed))
    }

    pub(super) fn set_puller(&self, puller: UnixStream) {
        *lock(&self.puller) = Puller::Here(puller);
        self.came.notify_all();
    }

    /// Whether a server thread may wait for a sync; it says when it is done.
    fn begin(&self) -> bool {
        let free = |count| (count < self.most).then_some(count + 1);
        self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).is_ok()
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Has the puller write a file back, by its path below the root; without a path, by a descriptor of a process.
    fn pull(&self, number: u64, process: u32, path: &Path) -> Result<(), Errno> {
        let path = path.as_os_str().as_bytes();
        let len = u16::try_from(path.len()).ok().filter(|&len| len < LET_GO).ok_or(Errno::NAMETOOLONG)?;
        let is_expected = |puller: &mut Puller| matches!(puller, Puller::Expected);
        let waited = self.came.wait_timeout_while(lock(&self.puller), PATIENCE, is_expected);
        let mut puller = waited.unwrap_or_else(PoisonError::into_inner).0;
        let Puller::Here(stream) = &mut *puller else {
            tracing::error!("a sync needs a puller, and there is none");
            return Err(Errno::IO);
        };
        let mut errno = [0; 4];
        let asked = self.send_left(stream).and_then(|()| send(stream, number, process, len, path));
        let asked = asked.and_then(|()| stream.read_exact(&mut errno)).and_then(|()| self.send_left(stream));
        if let Err(error) = asked {
            tracing::error!(%error, "the puller is gone; every sync fails from now on");
            *puller = Puller::Gone;
            return Err(Errno::IO);
        }
        drop(puller);
        self.try_send_left();
        match i32::from_ne_bytes(errno) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }

    /// The last writer of a file is gone. The call waits for no pull, which may need the calling thread.
    pub(super) fn let_go(&self, number: u64) {
        lock(&self.left).push(number);
        self.try_send_left();
    }

    /// Does nothing while another thread sends or pulls, which looks again at its end.
    fn try_send_left(&self) {
        while !lock(&self.left).is_empty() {
            let Ok(mut puller) = self.puller.try_lock() else { return };
            let Puller::Here(stream) = &mut *puller else { return };
            // A puller that is gone has let go of all.
            let _ = self.send_left(stream);
        }
    }

    fn send_left(&self, stream: &mut UnixStream) -> io::Result<()> {
        let left = std::mem::take(&mut *lock(&self.left));
        left.into_iter().try_for_each(|number| send(stream, number, 0, LET_GO, &[]))
    }
}

fn send(stream: &mut UnixStream, number: u64, process: u32, len: u16, path: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(14 + path.len());
    message.extend_from_slice(&number.to_ne_bytes());
    message.extend_from_slice(&process.to_ne_bytes());
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(path);
    stream.write_all(&message)
}

/// Pulls for a server until that is gone: the duty of a process of its own, which must not have /dev/fuse open. `root`
/// opens the root of the mount.
///
/// # Errors
/// Those of the connection to the server.
pub fn pull_for(
    mut server: UnixStream,
    root: impl Fn() -> io::Result<OwnedFd> + Send + Sync + 'static,
) -> io::Result<()> {
    let root = Arc::new(root);
    let mut kept: HashMap<u64, OwnedFd> = HashMap::new();
    loop {
        let mut head = [0; 14];
        match server.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = head;
        let (number, process) = (u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u32::from_ne_bytes([i, j, k, l]));
        let len = u16::from_ne_bytes([m, n]);
        if len == LET_GO {
            kept.remove(&number);
            continue;
        }
        let mut path = vec![0; len.into()];
        server.read_exact(&mut path)?;
        let pulled = match kept.get(&number) {
            Some(opening) => write_back(opening),
            None => open(&root, process, OsString::from_vec(path), number).and_then(|opening| {
                write_back(&opening)?;
                if kept.len() >= MOST {
                    kept.clear();
                }
                kept.insert(number, opening);
                Ok(())
            }),
        };
        let errno = pulled.err().map_or(0, |error| error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()));
        server.write_all(&errno.to_ne_bytes())?;
    }
}

const FLAGS: OFlags = OFlags::RDONLY.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// Opens a file in the mount.
fn open<R>(root: &Arc<R>, process: u32, path: OsString, number: u64) -> io::Result<OwnedFd>
where
    R: Fn() -> io::Result<OwnedFd> + Send + Sync + 'static,
{
    // Also a process of another user may have it open, whose descriptors this one may not use.
    if let Ok(opening) = open_as_process(&**root, process, number) {
        return Ok(opening);
    }
    if path.is_empty() {
        return Err(Errno::STALE.into());
    }
    let root = root.clone();
    let (sender, opened) = mpsc::channel();
    thread::Builder::new().name("untorn-open".to_owned()).spawn(move || {
        let open = || Ok(rustix::fs::openat(root()?, path, FLAGS | OFlags::NOFOLLOW, Mode::empty())?);
        // The puller may have stopped waiting for it.
        let _ = sender.send(open());
    })?;
    let opening: io::Result<OwnedFd> = opened.recv_timeout(DEADLINE).unwrap_or_else(|_| Err(Errno::DEADLK.into()));
    let opening = opening?;
    if identity(&opening, "")?.1 == number { Ok(opening) } else { Err(Errno::STALE.into()) }
}

/// Opens the file that a process has open: no directory is searched.
fn open_as_process(root: &impl Fn() -> io::Result<OwnedFd>, process: u32, number: u64) -> io::Result<OwnedFd> {
    let file = (identity(root()?, "")?.0, number);
    let place = format!("/proc/{process}/fd");
    let directory = rustix::fs::open(&place, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let names = rustix::fs::Dir::read_from(&directory)?;
    let mut descriptors: Vec<u32> =
        names.filter_map(|name| name.ok()?.file_name().to_str().ok()?.parse().ok()).collect();
    // The last ones first: a file is often synced soon after it was opened.
    descriptors.sort_unstable();
    for descriptor in descriptors.into_iter().rev() {
        let name = descriptor.to_string();
        if identity(&directory, &name).is_ok_and(|found| found == file) {
            let opening = rustix::fs::openat(&directory, &name, FLAGS, Mode::empty())?;
            // It may have been closed meanwhile, and another file have its number.
            if identity(&opening, "")? == file {
                return Ok(opening);
            }
        }
    }
    Err(Errno::NOENT.into())
}

/// Device and number of a file, as the kernel knows them: no file system is asked.
fn identity(directory: impl AsFd, name: &str) -> io::Result<(u64, u64)> {
    let how = AtFlags::STATX_DONT_SYNC | if name.is_empty() { AtFlags::EMPTY_PATH } else { AtFlags::empty() };
    let found = rustix::fs::statx(directory, name, how, StatxFlags::INO)?;
    Ok((rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino))
}

impl Server {
    /// Makes a file durable, and has `answer` tell how that went.
    pub(super) fn sync(
        server: &Arc<Server>,
        open: Arc<Open>,
        only_data: bool,
        process: u32,
        answer: impl FnOnce(Result<(), Errno>) + Send + 'static,
    ) {
        let managed = open.managed.clone().or_else(|| server.managing.find(open.node.key));
        let managed = managed.filter(|managed| managed.is_chosen());
        let is_managed = managed.is_some();
        let pulled = managed.filter(|managed| server.writeback || managed.is_mapped());
        if pulled.is_none() && is_managed && server.managing.syncs_at_once() {
            return answer(server.sync_file(&open, only_data));
        }
        let own = server.clone();
        let sync = move || match pulled {
            Some(managed) => own.pull(&open.node, &managed, process).and_then(|()| managed.sync()),
            None => own.sync_file(&open, only_data),
        };
        if server.pulls.begin() {
            let synced = sync();
            server.pulls.end();
            return answer(synced);
        }
        // If no thread can be had, the reply is dropped, which answers EIO.
        if let Err(error) = server.workers.run(move || answer(sync())) {
            tracing::error!(%error, "cannot start a thread for a sync");
        }
    }

    /// Answers a write that is to be durable before, and has written so many bytes.
    pub(super) fn answer_synchronous(
        server: &Arc<Server>,
        open: Arc<Open>,
        only_data: bool,
        process: u32,
        (count, reply): (u32, ReplyWrite),
    ) {
        server.pulls.count_request(true);
        Server::sync(server, open, only_data, process, move |synced| match synced {
            Ok(()) => reply.written(count),
            Err(error) => reply.error(errno(error)),
        });
    }

    /// The path of a file below the root; an empty one if it is not known, and `None` if the file has no name.
    fn path_to_pull(&self, node: &Node) -> Result<Option<PathBuf>, Errno> {
        let source = self.nodes.get(ROOT)?;
        Ok(match (self.path_of(node)?, self.descriptors.path(&*source)?) {
            (Some(path), Some(source)) => Some(path.strip_prefix(source).map(Path::to_owned).unwrap_or_default()),
            // The process that syncs has it open.
            _ => (node.status()?.st_nlink > 0).then(PathBuf::new),
        })
    }

    /// Has the kernel send all that it caches of a file.
    pub(super) fn pull(&self, node: &Node, managed: &Managed, process: u32) -> Result<(), Errno> {
        for round in 0..TRIES {
            // After the first one the puller has an opening of it, as a rule.
            let path = if round == 0 && managed.is_pulled() { Some(PathBuf::new()) } else { self.path_to_pull(node)? };
            // No crash leaves anything of it.
            let Some(path) = path else { return Ok(()) };
            managed.set_pulled();
            match self.pulls.pull(node.number, process, &path) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {}
                done => {
                    // A reader may sync, too.
                    if !managed.has_writers() && managed.take_pulled() {
                        self.pulls.let_go(node.number);
                    }
                    return done;
                }
            }
        }
        tracing::error!("a file cannot be found in the mount by any name that it was opened by");
        Err(Errno::STALE)
    }
}
