//! Mounts that one program and its children see.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Child;

use rustix::process::{getegid, geteuid};

use super::privileged::device_error;
use super::stage::{FAILED, Failure, Leave, MOUNTED, Request, START, Step};
use super::{AttachError, AttachOptions, Attached, Result, Root, Stage, Way, advice, directory, wire};

/// A program and its arguments. It has the environment and the working directory of this process.
#[derive(Clone, Debug)]
pub struct Program {
    /// The program, as `execvp` finds it.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// A program that waits for its mounts to be served.
#[derive(Debug)]
pub struct Held {
    /// `None` after [`start`](Self::start).
    child: Option<Child>,
    socket: Option<UnixStream>,
    program: OsString,
}

impl Held {
    /// Starts the program. All its mounts must be served by now, because the stage enters the working directory.
    ///
    /// # Errors
    /// [`AttachError::Program`] if the program cannot be executed; [`AttachError::System`] if the stage fails.
    pub fn start(mut self) -> Result<Child> {
        let lost = |source| AttachError::system("start the program: its stage is gone", source);
        let Some(socket) = self.socket.take() else { return Err(lost(io::ErrorKind::NotFound.into())) };
        wire::send(&socket, START, &[]).map_err(lost)?;
        match wire::receive(&socket).map_err(lost)? {
            // The socket was closed by exec.
            None => self.child.take().ok_or_else(|| lost(io::ErrorKind::NotFound.into())),
            Some((FAILED, _)) => {
                let failure = Failure::receive(&socket).map_err(lost)?;
                Err(match failure.step {
                    Step::Exec => AttachError::Program { program: self.program.clone(), source: failure.error },
                    _ => AttachError::system("enter the working directory through the mount", failure.error),
                })
            }
            Some(_) => Err(lost(io::ErrorKind::InvalidData.into())),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // The stage ends when it sees the end of the socket, and with it the mount.
        self.socket = None;
        if let Some(mut child) = self.child.take() {
            // It is a child of this process, so waiting for it cannot fail.
            let _ = child.wait();
        }
    }
}

/// A directory to cover, and the options of its mount.
#[derive(Clone, Debug)]
pub struct Covering {
    /// The directory. It may be the source itself, if its descriptor was opened before.
    pub mountpoint: PathBuf,
    /// The options.
    pub options: AttachOptions,
}

/// Mounts on directories for one program and its children, which nobody else sees. No directory may be inside another.
///
/// Root leaves its mount namespace alone, so the program keeps its rights. An ordinary user leaves the user namespace
/// too: the program has this user's and this group's numbers, and sees all others as 65534 ([`Attached::ids`]).
///
/// # Errors
/// As [`attach`](super::attach()); nothing is left behind then.
pub fn attach_private(mounts: &[Covering], stage: &Stage, program: &Program) -> Result<(Vec<Attached>, Held)> {
    let mut request = Request { leave: Leave::Users, mounts: Vec::new(), command: vec![program.program.clone()] };
    request.command.extend(program.arguments.iter().cloned());
    for Covering { mountpoint, options } in mounts {
        request.mounts.push(Covering { mountpoint: directory(mountpoint)?, options: options.clone() });
    }
    if geteuid().is_root() {
        request.leave = Leave::Mounts;
    }
    let (mounted, held) = match begin(&request, stage) {
        // Root of a container may lack the right, and have a user namespace all the same.
        Err(Begin::Refused(failure)) if request.leave == Leave::Mounts && failure.step == Step::Unshare => {
            request.leave = Leave::Users;
            begin(&request, stage)
        }
        begun => begun,
    }
    .map_err(|error| error.explain(&request))?;
    let ids = (request.leave == Leave::Users).then(|| (geteuid().as_raw(), getegid().as_raw()));
    let attached = mounted.into_iter().zip(request.mounts).map(|((device, root), covering)| Attached {
        device,
        root: Root::Held(root),
        way: Way::Private,
        mountpoint: covering.mountpoint,
        connection: None,
        ids,
    });
    Ok((attached.collect(), held))
}

/// Why a stage did not mount.
#[derive(Debug)]
pub(super) enum Begin {
    /// A step of it failed.
    Refused(Failure),
    /// The stage itself could not be started, or ended early.
    Lost(io::Error),
}

impl Begin {
    /// The error for the user.
    pub(super) fn explain(self, request: &Request) -> AttachError {
        let failure = match self {
            Begin::Refused(failure) => failure,
            Begin::Lost(source) => return AttachError::system("start the stage of a private mount", source),
        };
        let Failure { step, error: source } = failure;
        let mountpoints: Vec<_> = request.mounts.iter().map(|mount| mount.mountpoint.display().to_string()).collect();
        let mountpoints = mountpoints.join(", ");
        let (what, advice) = match step {
            Step::Unshare if request.leave == Leave::Users => {
                ("make a user namespace and a mount namespace".to_owned(), advice::for_unshare(&source))
            }
            Step::Unshare => ("make a mount namespace".to_owned(), advice::for_mount(&source)),
            Step::Map => ("map this user into the new user namespace".to_owned(), advice::for_unshare(&source)),
            Step::Propagate => {
                ("make the mounts of the new namespace private".to_owned(), advice::for_propagation(&source))
            }
            Step::Device => {
                let device = request.mounts.first().map(|mount| mount.options.device.clone()).unwrap_or_default();
                return device_error(&device, source);
            }
            Step::Mount => (format!("mount on {mountpoints} in the new namespace"), advice::for_mount(&source)),
            Step::Root | Step::Directory | Step::Exec => (format!("open the new mount {mountpoints}"), None),
        };
        AttachError::System { what, source, advice }
    }
}

/// The device and the root of a mount in another namespace.
type Mounted = (OwnedFd, OwnedFd);

/// Starts a stage, and returns the devices and the roots of its mounts.
pub(super) fn begin(request: &Request, stage: &Stage) -> std::result::Result<(Vec<Mounted>, Held), Begin> {
    let (socket, theirs) = UnixStream::pair().map_err(Begin::Lost)?;
    let child = stage.command().arg0("untorn").stdin(OwnedFd::from(theirs)).spawn().map_err(Begin::Lost)?;
    let program = request.command.first().cloned().unwrap_or_default();
    // From here on the child is reaped, whatever happens.
    let held = Held { child: Some(child), socket: Some(socket), program };
    let Some(socket) = &held.socket else { return Err(Begin::Lost(io::ErrorKind::NotFound.into())) };
    request.send(socket).map_err(Begin::Lost)?;
    let mut mounted = Vec::new();
    for _ in &request.mounts {
        match wire::receive(socket).map_err(Begin::Lost)? {
            Some((MOUNTED, descriptors)) => {
                let [device, root] = <[OwnedFd; 2]>::try_from(descriptors)
                    .map_err(|_| Begin::Lost(io::ErrorKind::InvalidData.into()))?;
                mounted.push((device, root));
            }
            Some((FAILED, _)) => return Err(Begin::Refused(Failure::receive(socket).map_err(Begin::Lost)?)),
            Some(_) => return Err(Begin::Lost(io::ErrorKind::InvalidData.into())),
            None => return Err(Begin::Lost(io::Error::other("it ended before it had mounted"))),
        }
    }
    Ok((mounted, held))
}
