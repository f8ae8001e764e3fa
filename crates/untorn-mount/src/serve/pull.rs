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
//! 2. While a server thread waits for a pull, another one serves: fewer of them wait than there are. One more pull
//!    takes a thread of its own.
//! 3. A pull holds no lock but that of the puller, and no request waits for that one unless it pulls. So each request
//!    that a pull causes can be served.
//! 4. The puller opens for reading, so it is no writer. It keeps an opening until the server says that the last writer
//!    is gone.
//! 5. An opening has the number of the file; a path that leads elsewhere by now is tried again.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use fuser::ReplyEmpty;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use untorn::testing::storage::write_back;

use super::handles::Open;
use super::managed::Managed;
use super::nodes::{Node, ROOT};
use super::requests::answer;
use super::{Server, lock};

/// How often a path is looked up again that somebody renames.
const TRIES: usize = 8;
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
}

impl Pulls {
    pub(super) fn new(threads: usize) -> Self {
        Pulls {
            puller: Mutex::new(Puller::Expected),
            came: Condvar::new(),
            left: Mutex::default(),
            most: threads.saturating_sub(1),
            under_way: AtomicUsize::new(0),
        }
    }

    pub(super) fn set_puller(&self, puller: UnixStream) {
        *lock(&self.puller) = Puller::Here(puller);
        self.came.notify_all();
    }

    /// Whether a server thread may wait for a pull; it says when it is done.
    fn begin(&self) -> bool {
        let free = |count| (count < self.most).then_some(count + 1);
        self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, free).is_ok()
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
    }

    /// Has the puller write a file back, by its path below the root.
    fn pull(&self, number: u64, path: &Path) -> Result<(), Errno> {
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
        let asked = self.send_left(stream).and_then(|()| send(stream, number, len, path));
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

    /// Does nothing during a pull, which does it at its end.
    fn try_send_left(&self) {
        if let Ok(mut puller) = self.puller.try_lock()
            && let Puller::Here(stream) = &mut *puller
        {
            // A puller that is gone has let go of all.
            let _ = self.send_left(stream);
        }
    }

    fn send_left(&self, stream: &mut UnixStream) -> io::Result<()> {
        let left = std::mem::take(&mut *lock(&self.left));
        left.into_iter().try_for_each(|number| send(stream, number, LET_GO, &[]))
    }
}

fn send(stream: &mut UnixStream, number: u64, len: u16, path: &[u8]) -> io::Result<()> {
    let mut message = Vec::with_capacity(10 + path.len());
    message.extend_from_slice(&number.to_ne_bytes());
    message.extend_from_slice(&len.to_ne_bytes());
    message.extend_from_slice(path);
    stream.write_all(&message)
}

/// Pulls for a server until that is gone: the duty of a process of its own, which must not have /dev/fuse open. `root`
/// opens the root of the mount.
///
/// # Errors
/// Those of the connection to the server.
pub fn pull_for(mut server: UnixStream, root: impl Fn() -> io::Result<OwnedFd>) -> io::Result<()> {
    let mut kept: HashMap<u64, OwnedFd> = HashMap::new();
    loop {
        let mut head = [0; 10];
        match server.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let [a, b, c, d, e, f, g, h, low, high] = head;
        let (number, len) = (u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u16::from_ne_bytes([low, high]));
        if len == LET_GO {
            kept.remove(&number);
            continue;
        }
        let mut path = vec![0; len.into()];
        server.read_exact(&mut path)?;
        let pulled = match kept.get(&number) {
            Some(opening) => write_back(opening),
            None => open(&root, Path::new(OsStr::from_bytes(&path)), number).and_then(|opening| {
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

/// Opens a file in the mount.
fn open(root: &impl Fn() -> io::Result<OwnedFd>, path: &Path, number: u64) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opening = rustix::fs::openat(root()?, path, flags, Mode::empty())?;
    if rustix::fs::fstat(&opening)?.st_ino == number { Ok(opening) } else { Err(Errno::STALE.into()) }
}

impl Server {
    /// Makes a file durable, and answers.
    pub(super) fn sync(server: &Arc<Server>, open: Arc<Open>, only_data: bool, reply: ReplyEmpty) {
        let managed = open.managed.clone().or_else(|| server.managing.find(open.node.key));
        let Some(managed) = managed.filter(|managed| server.writeback || managed.is_mapped()) else {
            return answer(reply, server.sync_file(&open, only_data));
        };
        if server.pulls.begin() {
            let pulled = server.pull(&open.node, &managed);
            server.pulls.end();
            return answer(reply, pulled.and_then(|()| managed.sync()));
        }
        let own = server.clone();
        let work = move || answer(reply, own.pull(&open.node, &managed).and_then(|()| managed.sync()));
        // If no thread can be had, the reply is dropped, which answers EIO.
        if let Err(error) = thread::Builder::new().name("untorn-pull".to_owned()).spawn(work) {
            tracing::error!(%error, "cannot start a thread for a sync");
        }
    }

    /// Has the kernel send all that it caches of a file.
    fn pull(&self, node: &Node, managed: &Managed) -> Result<(), Errno> {
        let source = self.nodes.get(ROOT)?;
        for _ in 0..TRIES {
            let (Some(path), Some(source)) = (self.descriptors.path(node)?, self.descriptors.path(&*source)?) else {
                break;
            };
            let Ok(path) = path.strip_prefix(source) else { break };
            managed.set_pulled();
            match self.pulls.pull(node.number, path) {
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => {}
                done => return done,
            }
        }
        if node.status()?.st_nlink == 0 {
            // No crash leaves anything of it.
            return Ok(());
        }
        tracing::error!("a file cannot be found in the mount by the name that it was opened by");
        Err(Errno::STALE)
    }
}
