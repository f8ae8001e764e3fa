//! The stage of private mounts: this program started again, which leaves its parent's namespaces and mounts.
//!
//! A process with threads may not change its user namespace, and code between fork and exec would be unsafe. The stage
//! is therefore a process of its own with one thread, and becomes the program by exec.
//!
//! The socket is its standard input, the only descriptor that a command passes on without code between fork and exec.
//! The program's own standard input comes as a descriptor with the request.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

use super::{AttachError, AttachOptions, Covering, Restrictions, Result, open_root, privileged, wire};

/// From the parent: the request, with the program's standard input.
pub(super) const REQUEST: u8 = b'R';
/// From the parent: start the program.
pub(super) const START: u8 = b'G';
/// From the stage, once for each mount after all are made: mounted; with the device and the root.
pub(super) const MOUNTED: u8 = b'M';
/// From the stage: a step failed; its text is the step and the error's number.
pub(super) const FAILED: u8 = b'F';

/// How to start this program again as a stage. Its `main` must get to [`stage`] without starting a thread.
#[derive(Clone, Debug)]
pub struct Stage {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Stage {
    /// This program with these arguments.
    pub fn new<A: Into<OsString>>(arguments: impl IntoIterator<Item = A>) -> Self {
        // The link leads to this very program, also if its file was replaced meanwhile.
        Stage::of("/proc/self/exe", arguments)
    }

    /// Another program with these arguments.
    pub fn of<A: Into<OsString>>(program: impl Into<PathBuf>, arguments: impl IntoIterator<Item = A>) -> Self {
        Stage { program: program.into(), arguments: arguments.into_iter().map(Into::into).collect() }
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }
}

/// The namespaces to leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// That of mounts, with the rights of root.
    Mounts,
    /// Those of users and mounts.
    Users,
}

impl Leave {
    fn as_str(self) -> &'static str {
        match self {
            Leave::Mounts => "mounts",
            Leave::Users => "users",
        }
    }

    fn flags(self) -> UnshareFlags {
        match self {
            Leave::Mounts => UnshareFlags::NEWNS,
            Leave::Users => UnshareFlags::NEWNS | UnshareFlags::NEWUSER,
        }
    }
}

/// The steps of a stage, by the word that reports their failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Unshare,
    Map,
    Propagate,
    Device,
    Mount,
    Root,
    Directory,
    Exec,
}

impl Step {
    const ALL: [Step; 8] =
        [Step::Unshare, Step::Map, Step::Propagate, Step::Device, Step::Mount, Step::Root, Step::Directory, Step::Exec];

    /// The step's word on the wire.
    fn word(self) -> &'static str {
        match self {
            Step::Unshare => "unshare",
            Step::Map => "map",
            Step::Propagate => "propagate",
            Step::Device => "device",
            Step::Mount => "mount",
            Step::Root => "root",
            Step::Directory => "directory",
            Step::Exec => "exec",
        }
    }

    fn failed(self) -> impl Fn(io::Error) -> Failure {
        move |error| Failure { step: self, error }
    }
}

/// A step that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) step: Step,
    pub(super) error: io::Error,
}

impl Failure {
    fn send(&self, socket: &UnixStream) -> io::Result<()> {
        wire::send(socket, FAILED, &[])?;
        let number = self.error.raw_os_error().unwrap_or(0).to_string();
        wire::send_text(socket, [self.step.word(), &number].map(OsStr::new).into_iter())
    }

    /// Reads what [`send`](Self::send) sent, after its byte.
    pub(super) fn receive(socket: &UnixStream) -> io::Result<Self> {
        let text = wire::receive_text(socket)?;
        let [step, number] = text.as_slice() else { return Err(io::ErrorKind::InvalidData.into()) };
        let step = Step::ALL.into_iter().find(|known| step == known.word()).ok_or(io::ErrorKind::InvalidData)?;
        let number: i32 = number.to_str().and_then(|number| number.parse().ok()).ok_or(io::ErrorKind::InvalidData)?;
        let error = if number == 0 { io::Error::other("unknown") } else { io::Error::from_raw_os_error(number) };
        Ok(Failure { step, error })
    }
}

/// The parent's request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) leave: Leave,
    pub(super) mounts: Vec<Covering>,
    /// The program and its arguments; none for a trial.
    pub(super) command: Vec<OsString>,
}

/// Parts of a text that describe one mount.
const PARTS: usize = 4;

impl Request {
    /// Sends it, with the standard input that the program is to have.
    pub(super) fn send(&self, socket: &UnixStream) -> io::Result<()> {
        wire::send(socket, REQUEST, &[io::stdin().as_fd()])?;
        let mut parts = vec![OsString::from(self.leave.as_str()), self.mounts.len().to_string().into()];
        for Covering { mountpoint, options } in &self.mounts {
            let Restrictions { nosuid, nodev, noexec, read_only } = options.restrictions;
            let flags = [options.allow_other, options.default_permissions, nosuid, nodev, noexec, read_only];
            let flags: String = flags.map(|flag| if flag { '1' } else { '0' }).iter().collect();
            parts.extend([mountpoint.into(), options.device.clone().into(), options.source.clone(), flags.into()]);
        }
        wire::send_text(socket, parts.iter().chain(&self.command).map(OsString::as_os_str))
    }

    fn receive(socket: &UnixStream) -> Option<Self> {
        let text = wire::receive_text(socket).ok()?;
        let [leave, count, rest @ ..] = text.as_slice() else { return None };
        let leave = [Leave::Mounts, Leave::Users].into_iter().find(|known| leave == known.as_str())?;
        let count: usize = count.to_str()?.parse().ok()?;
        let (mounts, command) = rest.split_at_checked(count.checked_mul(PARTS)?)?;
        let mounts = mounts.chunks_exact(PARTS).map(covering).collect::<Option<_>>()?;
        Some(Request { leave, mounts, command: command.to_vec() })
    }
}

/// One mount of a request.
fn covering(parts: &[OsString]) -> Option<Covering> {
    let [mountpoint, device, source, flags] = parts else { return None };
    let flags: Vec<bool> = flags.to_str()?.chars().map(|flag| flag == '1').collect();
    let [allow_other, default_permissions, nosuid, nodev, noexec, read_only] = *flags.as_slice() else { return None };
    let options = AttachOptions {
        device: device.into(),
        source: source.clone(),
        allow_other,
        default_permissions,
        restrictions: Restrictions { nosuid, nodev, noexec, read_only },
    };
    Some(Covering { mountpoint: mountpoint.into(), options })
}

/// The socket that this process has as its standard input, if its parent made it; and the error if it is not so.
pub(super) fn parents_socket() -> Result<(UnixStream, fn() -> AttachError)> {
    let no_stage: fn() -> AttachError = || AttachError::Request {
        path: "standard input".into(),
        why: "not the socket of a parent; untorn starts this verb itself".to_owned(),
    };
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(|_| no_stage())?;
    let peer = rustix::net::sockopt::socket_peercred(&socket).map_err(|_| no_stage())?;
    match Some(peer.pid) == rustix::process::getppid() {
        true => Ok((UnixStream::from(socket), no_stage)),
        false => Err(no_stage()),
    }
}

/// Runs the stage; the program's hidden verb for it calls this, and ends after it. It returns only if the program was
/// not started, and the parent knows why then.
///
/// # Errors
/// [`AttachError::Request`] if nobody started this process as a stage.
pub fn stage() -> Result<()> {
    let (socket, no_stage) = parents_socket()?;
    let Ok(Some((REQUEST, mut descriptors))) = wire::receive(&socket) else { return Err(no_stage()) };
    let stdin = descriptors.pop().ok_or_else(no_stage)?;
    let request = Request::receive(&socket).ok_or_else(no_stage)?;
    if let Err(failure) = perform(&request, &socket, stdin) {
        // A parent that is gone needs no reason.
        let _ = failure.send(&socket);
    }
    Ok(())
}

/// Mounts, waits for the parent's word, and becomes the program.
fn perform(request: &Request, socket: &UnixStream, stdin: OwnedFd) -> std::result::Result<(), Failure> {
    let directory = std::env::current_dir();
    leave(request.leave)?;
    // The mount must not appear in the namespace that this one was copied from. A mount that is removed there goes here
    // too: it would stay in use otherwise for as long as the program runs.
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).map_err(|error| Step::Propagate.failed()(error.into()))?;
    let mut mounted = Vec::new();
    for Covering { mountpoint, options } in &request.mounts {
        let device = privileged::open_device(options).map_err(Step::Device.failed())?;
        privileged::mount_device(&device, mountpoint, options).map_err(Step::Mount.failed())?;
        mounted.push((device, open_root(mountpoint).map_err(Step::Root.failed())?));
    }
    for (device, root) in &mounted {
        if wire::send(socket, MOUNTED, &[device.as_fd(), root.as_fd()]).is_err() {
            return Ok(());
        }
    }
    // Nothing of a mount may stay open here: its server alone keeps it alive.
    drop(mounted);
    let Ok(Some((START, _))) = wire::receive(socket) else { return Ok(()) };
    let Some((program, arguments)) = request.command.split_first() else { return Ok(()) };
    // The working directory may be one that the mount covers, and would otherwise stay the one below it.
    directory
        .and_then(|path| rustix::process::chdir(path).map_err(io::Error::from))
        .map_err(Step::Directory.failed())?;
    // Through a command of its own, so that the shared descriptor 0 is replaced by exec alone.
    Err(Step::Exec.failed()(Command::new(program).args(arguments).stdin(Stdio::from(stdin)).exec()))
}

/// Leaves the parent's namespaces. In a new user namespace this user and group have the same numbers as before.
fn leave(what: Leave) -> std::result::Result<(), Failure> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    unshare(what.flags()).map_err(Step::Unshare.failed())?;
    if what == Leave::Users {
        // Without the right to leave groups, which could grant what a group is denied, the kernel accepts the map.
        write_map("setgroups", "deny")?;
        write_map("uid_map", &format!("{user} {user} 1"))?;
        write_map("gid_map", &format!("{group} {group} 1"))?;
    }
    Ok(())
}

fn write_map(file: &str, content: &str) -> std::result::Result<(), Failure> {
    fs::write(Path::new("/proc/self").join(file), content).map_err(Step::Map.failed())
}

/// `unshare(2)`. The function of rustix is marked as deprecated because CLONE_FILES, which is never among these flags,
/// is not safe.
#[allow(deprecated)]
fn unshare(flags: UnshareFlags) -> io::Result<()> {
    Ok(rustix::thread::unshare(flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_arrives_with_its_step_and_error() {
        for step in Step::ALL {
            let (ours, theirs) = UnixStream::pair().unwrap();
            step.failed()(io::Error::from_raw_os_error(13)).send(&ours).unwrap();
            assert_eq!(wire::receive(&theirs).unwrap().unwrap().0, FAILED);
            let failure = Failure::receive(&theirs).unwrap();
            assert_eq!((failure.step, failure.error.raw_os_error()), (step, Some(13)));
        }
    }

    #[test]
    fn a_request_arrives_as_it_was_sent() {
        let restrictions = Restrictions { nosuid: true, nodev: false, noexec: true, read_only: false };
        let covering = |mountpoint: &str, restrictions| Covering {
            mountpoint: mountpoint.into(),
            options: AttachOptions {
                device: "/dev/other".into(),
                source: "untorn,x".into(),
                allow_other: true,
                default_permissions: false,
                restrictions,
            },
        };
        let request = Request {
            leave: Leave::Users,
            mounts: vec![covering("/a b", restrictions), covering("/c", Restrictions::default())],
            command: ["prog", "", "arg"].map(OsString::from).to_vec(),
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        request.send(&ours).unwrap();
        let (byte, descriptors) = wire::receive(&theirs).unwrap().unwrap();
        assert_eq!((byte, descriptors.len()), (REQUEST, 1));
        let received = Request::receive(&theirs).unwrap();
        assert_eq!(format!("{received:?}"), format!("{request:?}"));
    }

    #[test]
    fn a_forged_request_is_refused() {
        for parts in [&["users"][..], &["users", "1", "/a", "/dev/fuse", "untorn"], &["users", "99999999999999999999"]]
        {
            let (ours, theirs) = UnixStream::pair().unwrap();
            wire::send_text(&ours, parts.iter().map(OsStr::new)).unwrap();
            assert!(Request::receive(&theirs).is_none(), "{parts:?}");
        }
    }
}
