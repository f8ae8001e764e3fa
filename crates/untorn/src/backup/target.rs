//! The new files of a backup and of a restoration: how each gets its name once it is whole.
//!
//! # Invariants
//!
//! 1. A file that is made gets its name once it is filled and durable.
//! 2. A backup and its manifest are two files. The manifest is durable under another name, the *staged* one, before the
//!    backup has its name, and gets its own name afterwards. So of a backup that is there, one of the two names has the
//!    manifest, and a reader looks at both ([`manifest`]).
//! 3. Only the process that has locked the staged manifest makes the backup of that name.
//! 4. Another user cannot have planted a file that is gone on with: it belongs to this user alone, and has no other
//!    name.

use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use super::manifest::Manifest;
use super::{BackupOptions, manifest_of};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::format::sidecar::number::note_of;
use crate::storage::names::{rename, rename_to_free, unlink};
use crate::storage::{self, create_filled, sync_parent, unfinished};
use crate::sys::file::{set_commit_note, unlock};
use crate::sys::locks::{flock_holder, process_name};

/// The longest part of a backup's name that the name of its staged manifest has.
const KEPT: usize = 200;

/// The name of a manifest while the backup does not have its own yet.
pub(super) fn staged(dest: &Path) -> PathBuf {
    let name = dest.file_name().unwrap_or_default().as_bytes();
    let mut staged = b".".to_vec();
    staged.extend(&name[..name.len().min(KEPT)]);
    staged.extend(b".manifest.untorn-new");
    dest.with_file_name(OsString::from_vec(staged))
}

/// The locked place of a manifest.
pub(super) struct Staged {
    file: Locked,
    path: PathBuf,
}

impl Staged {
    /// # Errors
    /// [`Error::InUse`] while another process makes this backup; [`Error::Invalid`] for a file that is not this
    /// user's alone.
    pub(super) fn claim(dest: &Path) -> Result<Self> {
        let path = staged(dest);
        let file = open_own(&path)?;
        file.0.set_len(0).map_err(|error| Error::io("write", &path, error))?;
        Ok(Staged { file, path })
    }

    /// Makes the manifest durable under this name.
    pub(super) fn fill(&self, text: &str) -> Result<()> {
        let filled = self.file.0.write_all_at(text.as_bytes(), 0).and_then(|()| self.file.0.sync_all());
        filled.map_err(|error| Error::io("write", &self.path, error))?;
        sync_parent(&self.path)
    }

    /// Gives it its own name.
    pub(super) fn publish(self, dest: &Path, options: &BackupOptions) -> Result<()> {
        publish(&self.path, &manifest_of(dest), options)
    }

    /// Removes it after a failure, unless the backup may have its name by now.
    pub(super) fn give_up(self, dest: &Path) {
        let is_filled = self.file.0.metadata().is_ok_and(|found| found.len() > 0);
        if !(is_filled && dest.exists()) {
            // If it stays, the next backup of the name takes it.
            let _ = unlink(&self.path);
        }
    }
}

/// A file that is locked for this process alone, until this is dropped.
struct Locked(File);

impl Drop for Locked {
    fn drop(&mut self) {
        // A process that another thread has forked meanwhile has the open file, too, and the lock would stay with it
        // when this descriptor is closed.
        unlock(self.0.as_fd());
    }
}

/// Opens a file of this user's own, or creates it, and locks it.
fn open_own(path: &Path) -> Result<Locked> {
    let failed = |error: std::io::Error| Error::io("open", path, error);
    for _ in 0..16 {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.custom_flags(flags.bits() as i32).open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        let is_own = found.is_file()
            && found.uid() == rustix::process::geteuid().as_raw()
            && found.nlink() <= 1
            && found.mode() & 0o022 == 0;
        if !is_own {
            let what = "it is in the way of the new backup, and another user may have made it; remove it".to_owned();
            return Err(Error::Invalid { path: path.to_owned(), what });
        }
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            let holder = flock_holder(file.as_fd()).ok().flatten();
            let holder = holder.map_or_else(|| "another process".to_owned(), process_name);
            return Err(Error::InUse { path: path.to_owned(), holder: format!("{holder}, which makes this backup") });
        }
        let locked = Locked(file);
        // It may have been renamed or removed before it was locked.
        let named = path.symlink_metadata();
        if named.is_ok_and(|named| (named.dev(), named.ino()) == (found.dev(), found.ino())) {
            return Ok(locked);
        }
    }
    Err(Error::io("open", path, Errno::AGAIN))
}

fn publish(from: &Path, to: &Path, options: &BackupOptions) -> Result<()> {
    if options.replace {
        rename(from, to)?
    } else {
        rename_to_free(from, to)?
    }
    sync_parent(to)
}

/// Makes a file that has its name only once it is filled and durable. `fill` gets it and whether something may be in
/// it, which an earlier attempt left.
pub(super) fn make<T>(
    path: &Path,
    options: &BackupOptions,
    mut fill: impl FnMut(&File, bool) -> Result<T>,
) -> Result<T> {
    is_free(path, options)?;
    let new = unfinished(path);
    let flush = |file: &File| file.sync_all().map_err(|error| Error::io("flush", path, error));
    if options.resume {
        let file = open_own(&new)?;
        let filled = fill(&file.0, true)?;
        flush(&file.0)?;
        publish(&new, path, options)?;
        return Ok(filled);
    }
    let first = if options.replace { &new } else { path };
    if options.replace {
        // A crash may have left it.
        let _ = std::fs::remove_file(&new);
    }
    let mut filled = None;
    create_filled(first, |file: OwnedFd| {
        let file = File::from(file);
        filled = Some(fill(&file, false)?);
        flush(&file)
    })?;
    if options.replace {
        rename(&new, path)?;
    }
    sync_parent(path)?;
    filled.ok_or_else(|| Error::io("create", path, Errno::IO))
}

/// The manifest of a backup, whichever of its names it has. `fits` says whether the backup matches one.
///
/// # Errors
/// [`Error::Io`] if there is none; [`Error::Corrupt`].
pub(super) fn manifest(backup: &Path, fits: impl Fn(&Manifest) -> bool) -> Result<Manifest> {
    let named = Manifest::read(&manifest_of(backup));
    let path = staged(backup);
    let owner = |path: &Path| path.symlink_metadata().map(|found| (found.is_file(), found.uid())).ok();
    let is_believed = owner(&path).is_some_and(|(is_file, owner_of)| {
        is_file && owner(backup).is_some_and(|(_, owner_of_backup)| owner_of == owner_of_backup)
    });
    if !is_believed {
        return named;
    }
    let left = Manifest::read(&path);
    match (named, left) {
        (Ok(named), Ok(left)) if !fits(&named) && fits(&left) => Ok(left),
        (Err(_), Ok(left)) => Ok(left),
        (named, _) => named,
    }
}

/// # Errors
/// EEXIST if the name is taken, and its file is not to be replaced.
pub(super) fn is_free(path: &Path, options: &BackupOptions) -> Result<()> {
    let taken = !options.replace && path.symlink_metadata().is_ok();
    if taken { Err(Error::io("create", path, Errno::EXIST)) } else { Ok(()) }
}

/// # Errors
/// [`Error::InUse`] if a process has a file at this path open.
pub(super) fn not_in_use(path: &Path) -> Result<()> {
    let Ok(file) = OpenOptions::new().read(true).open(path) else { return Ok(()) };
    let identity = storage::identity_of(file.as_fd(), path)?;
    let sidecar = File::open(sidecar::path(path, identity.inode)).ok();
    let holder = [Some(file), sidecar].into_iter().flatten().find_map(|file| flock_holder(file.as_fd()).ok().flatten());
    match holder {
        Some(process) => Err(Error::InUse { path: path.to_owned(), holder: process_name(process) }),
        None => Ok(()),
    }
}

/// Gives a file that was made for its owner alone the permissions of the one that it stands for, as far as the umask
/// allows. It never becomes one that lets somebody be somebody else.
pub(super) fn permit(file: &File, path: &Path, mode: Option<u32>) -> Result<()> {
    let (Some(mode), Some(umask)) = (mode, umask()) else { return Ok(()) };
    let permissions = Permissions::from_mode(mode & 0o777 & !umask);
    file.set_permissions(permissions).map_err(|error| Error::io("set the permissions of", path, error))
}

/// Has the commits of a file that nobody has opened go on above the number of this one. Durable at the next flush.
pub(super) fn number_above(file: &File, path: &Path, commit: u64) -> Result<()> {
    let noted = if commit == 0 { Ok(()) } else { set_commit_note(file.as_fd(), &note_of(commit)) };
    noted.map_err(|error| Error::io("write the commit number of", path, error))
}

/// The umask of this process: to ask the kernel otherwise would change it for a moment. Source: `proc(5)`.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(umask.trim(), 8).ok()
}

/// The permissions of a file.
pub(super) fn mode_of(path: &Path) -> Option<u32> {
    path.metadata().ok().map(|found| found.mode() & 0o777)
}
