//! The puller of a mount: a process of its own that opens files through the mount, so that its server never does.
//!
//! It opens the mount's root anew for each use, because an open root would make umount(2) fail. A server that removes
//! its mount's name while programs use it sends the root before, and the puller keeps it. A private mount has no name,
//! so its puller has the root from the start. It lets go of a root when its server says so, because it would otherwise
//! be the mount's last user, and the mount would never end.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::fstat;

use super::{AttachError, Result, Root, Stage, parents_socket, wire};

/// The name of the process, at most 15 characters.
pub(super) const PULLER: &str = "untorn-pull";
/// From the server: the mount.
const MOUNT: u8 = b'P';
/// From the server: the root, to be kept.
const KEEP: u8 = b'K';
/// From the server: ask the mount for its root.
const ASK: u8 = b'A';
/// From the server: nobody has a file of the mount open any more.
const LET_GO: u8 = b'L';
/// From the puller: done.
const DONE: u8 = b'D';
/// From the puller: the mount answered with an error.
const NO: u8 = b'N';

/// A puller that was started.
#[derive(Debug)]
pub struct Puller {
    control: UnixStream,
    /// It ends when the server's end of its socket is closed.
    _child: Child,
}

impl Puller {
    /// Starts a puller, and returns the socket over which the server asks it. The hidden verb of `stage` calls
    /// [`puller`].
    ///
    /// # Errors
    /// [`AttachError::System`] if the process cannot be started.
    pub fn start(stage: &Stage, root: &Root) -> Result<(Self, UnixStream)> {
        let failed = |source| AttachError::system("start the process that opens files in the mount", source);
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let (control, its_control) = UnixStream::pair().map_err(failed)?;
        let mut command = stage.command();
        // It outlives the moment at which its server leaves the terminal, so it must not keep the terminal's streams.
        command.arg0("untorn").stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(failed)?;
        let mut descriptors: Vec<BorrowedFd<'_>> = vec![its_control.as_fd()];
        let named = match root {
            Root::Held(root) => {
                descriptors.push(root.as_fd());
                None
            }
            Root::Named { path, id } => Some((path, id.to_string())),
        };
        wire::send(&ours, MOUNT, &descriptors).map_err(failed)?;
        let parts: Vec<&OsStr> = match &named {
            Some((path, id)) => vec![path.as_os_str(), OsStr::new(id)],
            None => vec![OsStr::new("held")],
        };
        wire::send_text(&ours, parts.into_iter()).map_err(failed)?;
        Ok((Puller { control, _child: child }, ours))
    }

    /// Has the puller ask the mount for its root, and waits for the answer. A user's first request must find the root's
    /// true owner, which the kernel learns by this question.
    ///
    /// # Errors
    /// `Other` if the mount does not answer as it should; those of a puller that is gone.
    pub fn ask_root(&self) -> io::Result<()> {
        wire::send(&self.control, ASK, &[])?;
        match wire::receive(&self.control)? {
            Some((DONE, _)) => Ok(()),
            Some(_) => Err(io::Error::other("the mount answers with an error")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Has the puller keep the root open, before the mount loses its name.
    ///
    /// # Errors
    /// Those of opening the root, and of a puller that is gone.
    pub fn keep_root(&self, root: &Root) -> io::Result<()> {
        wire::send(&self.control, KEEP, &[root.open()?.as_fd()])?;
        match wire::receive(&self.control)? {
            Some((DONE, _)) => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Has the puller let go of the root. From then on no file of a private mount can be pulled.
    ///
    /// # Errors
    /// That of a puller that is gone, which has let go of everything.
    pub fn let_go(&self) -> io::Result<()> {
        wire::send(&self.control, LET_GO, &[])
    }
}

/// In the process of the puller: the socket of the server, and how to open the root of the mount.
///
/// # Errors
/// [`AttachError::Request`] if nobody started this process as a puller.
pub fn puller() -> Result<(UnixStream, impl Fn() -> io::Result<OwnedFd>)> {
    let (socket, no_stage) = parents_socket()?;
    let Ok(Some((MOUNT, mut descriptors))) = wire::receive(&socket) else { return Err(no_stage()) };
    let text = wire::receive_text(&socket).map_err(|_| no_stage())?;
    let root = match (text.as_slice(), descriptors.len()) {
        ([path, id], 1) => {
            let id = id.to_str().and_then(|id| id.parse().ok()).ok_or_else(no_stage)?;
            Root::Named { path: path.into(), id }
        }
        ([_], 2) => Root::Held(descriptors.pop().ok_or_else(no_stage)?),
        _ => return Err(no_stage()),
    };
    let name = CString::new(PULLER).map_err(|error| AttachError::system("name this process", error.into()))?;
    rustix::thread::set_name(&name).map_err(|error| AttachError::system("name this process", error.into()))?;
    let control = UnixStream::from(descriptors.pop().ok_or_else(no_stage)?);
    let root = Arc::new(root);
    let named = matches!(*root, Root::Named { .. }).then(|| root.clone());
    let root = Arc::new(Mutex::new(Some(root)));
    let kept = root.clone();
    let listen = move || {
        // Its server's end, or a word that this version does not know, ends the duty; the process ends by itself.
        while let Ok(Some((word, mut descriptors))) = wire::receive(&control) {
            let answer = match (word, descriptors.pop()) {
                (ASK, None) => {
                    // Without the lock: the server, which answers, may need it.
                    let root = lock(&kept).clone();
                    let answers = root.is_some_and(|root| root.open().is_ok_and(|root| fstat(root).is_ok()));
                    if answers { DONE } else { NO }
                }
                (KEEP, Some(root)) => {
                    *lock(&kept) = Some(Arc::new(Root::Held(root)));
                    DONE
                }
                (LET_GO, None) => {
                    *lock(&kept) = named.clone();
                    continue;
                }
                _ => return,
            };
            if wire::send(&control, answer, &[]).is_err() {
                return;
            }
        }
    };
    let failed = |source| AttachError::system("start a thread", source);
    thread::Builder::new().name(PULLER.to_owned()).spawn(listen).map_err(failed)?;
    Ok((socket, move || {
        let root = lock(&root).clone();
        root.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?.open()
    }))
}

fn lock(root: &Mutex<Option<Arc<Root>>>) -> MutexGuard<'_, Option<Arc<Root>>> {
    root.lock().unwrap_or_else(PoisonError::into_inner)
}
