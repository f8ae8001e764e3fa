//! Which logs are trusted. A replay writes to the files that a log names, with the rights of the process that replays
//! it, so a log that another user wrote could have a process of root's write anywhere.
//!
//! # Invariants
//! 1. A log is opened only if the caller or root owns it and nobody else may write to it.
//! 2. Its file is the one that its name stands for, not the target of a symbolic link that somebody put there, and it
//!    has no second name by which another user could have come to keep it.
//! 3. Both are asked of the open file before anything is stored to it, and before the file is believed.
//! 4. A log is created with permissions for its owner alone, and gets them back before the first store of an owner: it
//!    holds bytes of files that others may not read.
//!
//! The directory needs no check of its own. Somebody who may write to it can remove a log or put another in its place,
//! and the other one is not trusted.

use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, Stat};
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::storage;

/// Permissions of anybody but the owner to write. The group's include those of an access control list.
const OTHERS_WRITE: Mode = Mode::WGRP.union(Mode::WOTH);
/// Permissions of anybody but the owner.
const OTHERS: Mode = Mode::RWXG.union(Mode::RWXO);

/// The path of the log itself. A symbolic link is followed if the caller or root made it.
///
/// # Errors
/// [`Error::UntrustedLog`] for a link that another user made; [`Error::Io`] if nothing has the name.
pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    let found = rustix::fs::lstat(path).map_err(|errno| Error::io("open", path, errno))?;
    if is_link(&found) && !is_ours(found.st_uid) {
        let what = format!("it is a symbolic link that user {} made; name the log itself", found.st_uid);
        return Err(Error::UntrustedLog { path: path.to_owned(), what });
    }
    storage::resolve(path)
}

/// Checks an open log, to which nothing was stored yet. A medium that has no files of the kernel has no other users.
///
/// # Errors
/// [`Error::UntrustedLog`] if another user owns the file or may write to it, or if the name does not stand for it
/// alone.
pub(super) fn check(file: Option<BorrowedFd<'_>>, path: &Path) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let failed = |errno: Errno| Error::io("examine", path, errno);
    let found = rustix::fs::fstat(file).map_err(failed)?;
    let named = rustix::fs::lstat(path).map_err(failed)?;
    let user = rustix::process::geteuid().as_raw();
    let what = if is_link(&named) || (named.st_dev, named.st_ino) != (found.st_dev, found.st_ino) {
        "another file has its name meanwhile; a log is opened by its own name, not through a symbolic link".to_owned()
    } else if !is_ours(found.st_uid) {
        let owner = found.st_uid;
        format!(
            "user {owner} owns it, and a replay writes to the files that it names with the rights of user {user}; run \
             this as user {owner}, or remove the log"
        )
    } else if Mode::from_raw_mode(found.st_mode).intersects(OTHERS_WRITE) {
        let mode = found.st_mode & 0o777;
        format!(
            "users other than its owner may write to it (mode {mode:03o}), so anybody may have written what it says; \
             if it is as you left it, run `chmod 600` on it first"
        )
    } else if found.st_nlink != 1 {
        let names = found.st_nlink;
        format!("it has {names} names, and a log has one; remove the others, which another user may have made")
    } else {
        return Ok(());
    };
    Err(Error::UntrustedLog { path: path.to_owned(), what })
}

/// Whether a name stands for an open log. A medium that has no files of the kernel has no other programs.
pub(super) fn is_named(file: Option<BorrowedFd<'_>>, path: &Path) -> bool {
    let Some(file) = file else { return true };
    let same = |named: Stat, found: Stat| (named.st_dev, named.st_ino) == (found.st_dev, found.st_ino);
    matches!((rustix::fs::lstat(path), rustix::fs::fstat(file)), (Ok(named), Ok(found)) if same(named, found))
}

/// Takes the permissions of everybody but the owner away, as a log has none when it is created.
///
/// # Errors
/// Those of `fchmod(2)`.
pub(super) fn keep_private(file: Option<BorrowedFd<'_>>, path: &Path) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let found = rustix::fs::fstat(file).map_err(|errno| Error::io("examine", path, errno))?;
    let mode = Mode::from_raw_mode(found.st_mode);
    if !mode.intersects(OTHERS) {
        return Ok(());
    }
    rustix::fs::fchmod(file, mode - OTHERS).map_err(|errno| Error::io("set the permissions of", path, errno))
}

/// Whether a file of this owner may be trusted.
fn is_ours(owner: u32) -> bool {
    owner == 0 || owner == rustix::process::geteuid().as_raw()
}

fn is_link(found: &Stat) -> bool {
    FileType::from_raw_mode(found.st_mode) == FileType::Symlink
}
