//! Removing a mount.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::{AttachError, Result, fusermount, holders, table};

/// How long a mount may be in use for reasons that pass by themselves: the puller of its server closes a file a moment
/// after its last writer.
const PATIENCE: Duration = Duration::from_millis(300);

/// How to remove a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmount {
    /// Only if nobody uses it. All written data has reached the server when the call returns.
    Clean,
    /// Remove its name at once. Programs that use it go on, and it ends with the last of them.
    Lazy,
}

/// Removes the mount of untorn at a path: by umount(2) if this process may, and by `fusermount3` otherwise.
///
/// # Errors
/// [`AttachError::Request`] if there is none; [`AttachError::Busy`] with the processes that use it;
/// [`AttachError::System`] if the system refuses.
pub fn detach(mountpoint: &Path, how: Unmount) -> Result<()> {
    let path = table::resolve(mountpoint)?;
    let id = match table::at(&path)? {
        Some(mount) if mount.is_ours() => mount.id,
        Some(mount) => {
            let why = format!("the mount here is no mount of untorn, but of type {}", mount.file_system.display());
            return Err(AttachError::Request { path, why });
        }
        None => return Err(AttachError::Request { path, why: "nothing is mounted here".to_owned() }),
    };
    let flags = match how {
        Unmount::Clean => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    let start = Instant::now();
    let result = loop {
        match rustix::mount::unmount(&path, flags) {
            Err(Errno::BUSY) if start.elapsed() < PATIENCE => thread::sleep(Duration::from_millis(5)),
            result => break result,
        }
    };
    match result {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => Err(busy(&path, id)),
        Err(error @ (Errno::PERM | Errno::ACCESS)) => by_program(&path, id, how, error.into()),
        Err(error) => Err(AttachError::system(format!("unmount {}", path.display()), error.into())),
    }
}

/// Unmounts by `fusermount3`, after umount(2) was refused.
fn by_program(path: &Path, id: u64, how: Unmount, refused: io::Error) -> Result<()> {
    let Some(program) = fusermount::find() else {
        return Err(AttachError::System {
            what: format!("unmount {}", path.display()),
            source: refused,
            advice: Some("an ordinary user needs the program fusermount3 (package fuse3) for it".to_owned()),
        });
    };
    let start = Instant::now();
    loop {
        match fusermount::unmount(&program, path, how == Unmount::Lazy) {
            Err(AttachError::System { source, .. }) if source.to_string().contains("busy") => {
                if start.elapsed() >= PATIENCE {
                    return Err(busy(path, id));
                }
                thread::sleep(Duration::from_millis(20));
            }
            other => return other,
        }
    }
}

fn busy(path: &Path, id: u64) -> AttachError {
    AttachError::Busy { mountpoint: path.to_owned(), holders: holders::of(path, id) }
}

/// Ends the connection of a mount at once: its server sees the end, and everybody who uses it gets an error.
///
/// # Errors
/// Those of the file system `fusectl`, for instance if it is not mounted.
pub fn abort(connection: u32) -> io::Result<()> {
    fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), b"1")
}

/// Whether there is a mount of untorn at a path whose server is gone.
///
/// # Errors
/// [`AttachError::System`] without a table of mounts.
pub fn is_dead(mountpoint: &Path) -> Result<bool> {
    let path = table::resolve(mountpoint)?;
    if !table::at(&path)?.is_some_and(|mount| mount.is_ours()) {
        return Ok(false);
    }
    // A server that hangs would keep its caller waiting, so the question has a thread of its own and a time limit.
    let (sender, receiver) = mpsc::channel();
    let asked = thread::Builder::new().spawn(move || {
        // The kernel answers stat(2) from its cache, but never this.
        let gone = rustix::fs::statfs(&path).is_err_and(|error| error == Errno::NOTCONN);
        // The receiver may have given up.
        let _ = sender.send(gone);
    });
    asked.map_err(|source| AttachError::system("start a thread", source))?;
    Ok(receiver.recv_timeout(Duration::from_secs(2)).unwrap_or(false))
}
