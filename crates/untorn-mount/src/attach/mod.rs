//! How the kernel gets the mount, and how it loses it again.
//!
//! A FUSE file system is a descriptor of `/dev/fuse` and a mount that names it. This module makes both and hands the
//! descriptor to [`serve`](crate::serve). There are three ways, and [`probe`] says which of them work on a machine:
//!
//! - [`Way::Mount`]: mount(2), which needs CAP_SYS_ADMIN.
//! - [`Way::Fusermount`]: the setuid program `fusermount3`, for an ordinary user.
//! - [`Way::Private`]: mounts that only one program and its children see. A [*stage*](Stage), which is this program
//!   started again, leaves the namespaces of its parent, mounts, sends the descriptors back, and becomes the program.
//!
//! ```text
//!  attach_private ─► stage: unshare ─► open /dev/fuse ─► mount ─► device and root by SCM_RIGHTS ─► Held
//!                                                                                                   │
//!                    stage: chdir, exec of the program  ◄── one byte ◄────────────── Held::start ◄──┘
//! ```
//!
//! # What makes it sound
//! 1. `/dev/fuse` is opened in the user namespace in which the mount is made: the kernel refuses a mount whose
//!    descriptor is of another one (`fuse_get_tree`).
//! 2. Nothing here waits for the file system. Its root is opened with `O_PATH`, which sends no request, so the order of
//!    `attach` and `serve` is free. The stage changes its directory only after `Held::start`.
//! 3. A failure leaves nothing behind. A mount that could not be handed over ends with its namespace, or is detached.
//! 4. A stage that loses its parent ends: it sees the end of its socket, and it has not run the program yet.
//! 5. `detach` unmounts mounts of untorn only, and finds them in `/proc/self/mountinfo`, never by asking the server.
//! 6. No descriptor of a public mount's root stays open, because it would make umount(2) fail ([`Root`]). The root of
//!    a private mount stays open until its program and all children have ended; closing it ends the mount.
//! 7. A mount has the restrictions of its source's mount (nosuid, nodev, noexec, read-only). Otherwise root's mount
//!    would lend the set-user-ID bit to files of a medium that was mounted without it.
//!
//! Reading order: `options`, `privileged`, `fusermount`; `wire`, `stage`, `private`; `table`, `detach`, `holders`,
//! `claim`; `puller`; `probe` with `advice`.

mod advice;
mod claim;
mod detach;
mod error;
mod fusermount;
mod holders;
mod options;
mod private;
mod privileged;
mod probe;
mod puller;
mod stage;
mod table;
mod wire;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, openat};

pub use claim::{Claim, wait_for_server};
pub use detach::{Unmount, abort, detach, is_dead};
pub use error::{AttachError, Result};
pub use holders::Holder;
pub use options::{AttachOptions, Restrictions};
pub use private::{Covering, Held, Program, attach_private};
pub use probe::{Finding, probe};
pub use puller::{Puller, puller};
use stage::parents_socket;
pub use stage::{Stage, stage};

/// The file system's type in `/proc/self/mountinfo`.
pub const FILE_SYSTEM: &str = "fuse.untorn";

/// How a mount was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By mount(2).
    Mount,
    /// By the program `fusermount3`.
    Fusermount,
    /// By mount(2) in namespaces of its own.
    Private,
}

impl Way {
    /// Its name in reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Way::Mount => "mount",
            Way::Fusermount => "fusermount3",
            Way::Private => "private",
        }
    }
}

/// A mount that waits to be served.
#[derive(Debug)]
#[non_exhaustive]
pub struct Attached {
    /// The descriptor of `/dev/fuse`.
    pub device: OwnedFd,
    /// The mounted root.
    pub root: Root,
    /// How the mount was made.
    pub way: Way,
    /// The mountpoint, without symbolic links.
    pub mountpoint: PathBuf,
    /// The connection's number in `/sys/fs/fuse/connections`, if this process sees the mount.
    pub connection: Option<u32>,
    /// The only user and group that the mount's user namespace has, if it is one of its own. Files of others must be
    /// shown as theirs, because the kernel refuses to change a file of an owner that the namespace lacks.
    pub ids: Option<(u32, u32)>,
}

/// Mounts on a directory: by mount(2) if this process may, and by `fusermount3` otherwise.
///
/// Requests of the mount wait until somebody serves [`Attached::device`].
///
/// # Errors
/// [`AttachError::Request`] if there is no such directory, or it has a mount of untorn already;
/// [`AttachError::System`] if no way works. Nothing is mounted then.
pub fn attach(mountpoint: &Path, options: &AttachOptions) -> Result<Attached> {
    let mountpoint = directory(mountpoint)?;
    let (device, way) = match privileged::mount(&mountpoint, options) {
        Ok(device) => (device, Way::Mount),
        Err(failed) if failed.is_permission() => (fusermount::mount(&mountpoint, options)?, Way::Fusermount),
        Err(failed) => return Err(failed.explain(&mountpoint, options)),
    };
    let root = open_root(&mountpoint).and_then(|root| mount_id(&root)).map_err(|source| {
        // Without its root the mount is of no use (invariant 3).
        let _ = detach(&mountpoint, Unmount::Lazy);
        AttachError::system(format!("open the root of the new mount {}", mountpoint.display()), source)
    });
    let root = Root::Named { path: mountpoint.clone(), id: root? };
    let connection = table::at(&mountpoint).ok().flatten().map(|mount| mount.minor);
    Ok(Attached { device, root, way, mountpoint, connection, ids: None })
}

/// The root of a mount, as its server may open it without waiting for itself.
#[derive(Debug)]
pub enum Root {
    /// A descriptor (`O_PATH`). It keeps the mount in use, which is right for a private mount: it has no name for this
    /// process, and nobody unmounts it.
    Held(OwnedFd),
    /// A path and the mount's number, for each use anew. A descriptor that stayed open would make umount(2) fail.
    Named {
        /// The mountpoint, without symbolic links.
        path: PathBuf,
        /// The mount's number, `mnt_id` in `/proc/self/fdinfo`.
        id: u64,
    },
}

impl Root {
    /// A descriptor of the root (`O_PATH`), to be closed soon.
    ///
    /// # Errors
    /// Those of `open(2)`; `NotFound` if the mount is no longer at its path.
    pub fn open(&self) -> io::Result<OwnedFd> {
        match self {
            Root::Held(root) => root.try_clone(),
            Root::Named { path, id } => {
                let root = open_root(path)?;
                match mount_id(&root)? == *id {
                    true => Ok(root),
                    false => Err(rustix::io::Errno::NOENT.into()),
                }
            }
        }
    }
}

/// The mountpoint of the mount of untorn that a directory is on, if it is on one. No server is asked.
///
/// # Errors
/// [`AttachError::System`] without `/proc`.
pub fn mount_around(directory: &OwnedFd) -> Result<Option<PathBuf>> {
    let id = mount_id(directory).map_err(|source| AttachError::system("find the mount of a directory", source))?;
    Ok(table::with_id(id)?.filter(table::Mounted::is_ours).map(|mount| mount.mountpoint))
}

/// The number of the mount that a descriptor is on.
fn mount_id(descriptor: &OwnedFd) -> io::Result<u64> {
    let facts = format!("/proc/self/fdinfo/{}", descriptor.as_raw_fd());
    mount_of(Path::new(&facts)).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// The number of the mount in a file of `/proc/*/fdinfo`.
fn mount_of(facts: &Path) -> Option<u64> {
    let facts = std::fs::read_to_string(facts).ok()?;
    facts.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

/// A mountpoint's path without symbolic links, if a mount can be made there.
fn directory(mountpoint: &Path) -> Result<PathBuf> {
    let path = table::resolve(mountpoint)?;
    if table::at(&path)?.is_some_and(|mount| mount.is_ours()) {
        // It is not touched: its server may be gone, or hang.
        let why = "already has a mount of untorn; `untorn unmount` removes it";
        return Err(AttachError::Request { path, why: why.to_owned() });
    }
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(path),
        Ok(_) => Err(AttachError::Request { path, why: "not a directory; a mount needs one".to_owned() }),
        Err(source) => Err(AttachError::system(format!("find the mountpoint {}", path.display()), source)),
    }
}

/// Opens the root of a mount without a request to its server.
fn open_root(mountpoint: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(CWD, mountpoint, flags, Mode::empty())?)
}

#[cfg(test)]
mod tests;
