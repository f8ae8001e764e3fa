//! Names and directories: what both real media do alike.
//!
//! Everything goes through rustix and thus straight to the kernel.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, RenameFlags, Uid};
use rustix::io::Errno;

use super::companion::{self, directory_of_name};
use super::{Access, NameChange, Names};
use crate::error::{Error, FileKind, Result};
use crate::sys;

/// Attributes for creating a file again: see `BackingFile::create_attrs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateAttrs {
    /// Its permissions: the lowest nine bits of its mode.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Opens an existing regular file.
///
/// The type is looked at first, by name: opening a device can have effects and opening a pipe can wait. It is looked at
/// again on the open file, in case the name has changed hands in between.
///
/// # Errors
/// [`Error::NotAFile`], [`Error::Io`]. Source: `open(2)`, `stat(2)`.
pub(crate) fn open_regular(path: &Path, access: Access) -> Result<OwnedFd> {
    if let Some((dir, name)) = companion::split(path) {
        return companion::open_again(path, dir, name, access);
    }
    let failed = |errno| Error::io("open", path, errno);
    check_regular(path, &rustix::fs::stat(path).map_err(failed)?)?;
    let mode = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    if access == Access::ReadWrite {
        sys::size_limit::read_limit();
    }
    let flags = mode | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
    check_regular(path, &rustix::fs::fstat(&file).map_err(failed)?)?;
    Ok(file)
}

pub(crate) fn check_regular(path: &Path, found: &rustix::fs::Stat) -> Result<()> {
    let found = match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => return Ok(()),
        FileType::Directory => FileKind::Directory,
        FileType::Fifo => FileKind::Pipe,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharacterDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        _ => FileKind::Other,
    };
    Err(Error::NotAFile { path: path.to_owned(), found })
}

/// The kernel's directories.
pub(super) struct Directories;

impl Names for Directories {
    fn change(&self, change: NameChange<'_>) -> Result<()> {
        match change {
            NameChange::CreateDir(path) => create_dir(path),
            NameChange::Rename(from, to) => rename(from, to),
            NameChange::Unlink(path) => unlink(path),
            NameChange::RemoveDirIfEmpty(path) => remove_dir_if_empty(path),
            NameChange::SyncDir(_, dir) => sync_dir(dir),
        }
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        exists(path)
    }

    fn list(&self, dir: &Path) -> Result<Vec<OsString>> {
        list(dir)
    }
}

/// Creates a file of `len` zero bytes that must not exist yet, with the permissions that the umask leaves.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind then. Source: `open(2)`, `ftruncate(2)`.
pub(crate) fn create_regular(path: &Path, len: u64) -> Result<OwnedFd> {
    create_with(path, 0o666, |file| lengthen(path, file, len))
}

/// The same for a file that only its owner may open.
///
/// # Errors
/// As for [`create_regular`].
pub(crate) fn create_private(path: &Path, len: u64) -> Result<OwnedFd> {
    create_with(path, 0o600, |file| lengthen(path, file, len))
}

fn lengthen(path: &Path, file: BorrowedFd<'_>, len: u64) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    sys::file::set_len(file, len).map_err(|errno| Error::io("resize", path, errno))
}

/// Creates a file that must not exist yet, for its owner alone, and lets `fill` fill it before it has its name. On a
/// file system without unnamed files it has the name first.
///
/// # Errors
/// [`Error::Io`], and those of `fill`; nothing is left behind then.
pub(crate) fn create_filled(path: &Path, mut fill: impl FnMut(OwnedFd) -> Result<()>) -> Result<()> {
    let fill = std::cell::RefCell::new(&mut fill);
    create_with(path, 0o600, |file| {
        let file = file.try_clone_to_owned().map_err(|error| Error::io("open", path, error))?;
        (*fill.borrow_mut())(file)
    })
    .map(drop)
}

/// Makes the names in the directory of a file durable.
///
/// # Errors
/// [`Error::Io`]. Source: `fsync(2)`.
pub(crate) fn sync_parent(path: &Path) -> Result<()> {
    sync_dir(path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new(".")))
}

/// Creates an empty file without a name in a directory, for its owner alone. Its space is free once it is closed.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind then. Source: `open(2)`, `unlink(2)`.
pub(crate) fn create_unnamed(dir: &Path) -> Result<OwnedFd> {
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::from_raw_mode(0o600));
    if let Ok(file) = rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        return Ok(file);
    }
    // A file system without `O_TMPFILE`, such as FUSE, gives it a name for a moment.
    for attempt in 0_u32.. {
        let path = dir.join(format!(".untorn-unnamed-{}-{attempt}", std::process::id()));
        match rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode) {
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(Error::io("create a file in", dir, errno)),
            Ok(file) => return unlink(&path).map(|()| file),
        }
    }
    Err(Error::io("create a file in", dir, Errno::EXIST))
}

/// Creates an empty file that must not exist yet, for a replay: like one that a crash took.
///
/// # Errors
/// [`Error::Io`]; nothing is left behind then. Source: `open(2)`, `fchown(2)`, `fchmod(2)`.
pub(crate) fn create_again(path: &Path, like: &CreateAttrs) -> Result<OwnedFd> {
    create_with(path, 0o600, |file| {
        let failed = |errno| Error::io("set the permissions of", path, errno);
        let found = rustix::fs::fstat(file).map_err(failed)?;
        if (found.st_uid, found.st_gid) != (like.uid, like.gid) {
            let (owner, group) = (Uid::from_raw(like.uid), Gid::from_raw(like.gid));
            rustix::fs::fchown(file, Some(owner), Some(group)).map_err(failed)?;
        }
        // No bit that would let somebody be somebody else, whatever the log says.
        rustix::fs::fchmod(file, Mode::from_raw_mode(like.mode & 0o777)).map_err(failed)
    })
}

/// A file has its name only once `finish` is through with it, so nobody opens it before. A file system without
/// `O_TMPFILE`, such as FUSE, gives it the name first. In a directory of companions it is made without following a
/// symbolic link that has the directory's name.
fn create_with(path: &Path, mode: u32, finish: impl Fn(BorrowedFd<'_>) -> Result<()>) -> Result<OwnedFd> {
    let failed = |errno| Error::io("create", path, errno);
    let mode = Mode::from_raw_mode(mode);
    let (own, name) = match directory_of_name(path) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(companion::no_directory(path)),
        found => found.map_err(failed)?,
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let (around, dir) = own.as_ref().map_or((CWD, dir), |own| (own.as_fd(), Path::new(".")));
    if let Ok(file) = rustix::fs::openat(around, dir, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC, mode) {
        finish(file.as_fd())?;
        let itself = format!("/proc/self/fd/{}", file.as_raw_fd());
        match rustix::fs::linkat(CWD, itself, around, name, AtFlags::SYMLINK_FOLLOW) {
            Ok(()) => return Ok(file),
            Err(Errno::EXIST) => return Err(failed(Errno::EXIST)),
            // Without /proc it cannot be named, and a security module may permit a creation and no link.
            Err(_) => {}
        }
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(around, name, flags, mode).map_err(failed)?;
    // The first error is the one that helps, whether or not the name can be removed again.
    finish(file.as_fd()).inspect_err(|_| drop(unlink(path)))?;
    Ok(file)
}

/// Source: `mkdir(2)`.
fn create_dir(path: &Path) -> Result<()> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(0o777)) {
        // A name that is taken is fine only if a directory has it.
        Err(Errno::EXIST) if is_dir(path) => Ok(()),
        other => other.map_err(|errno| Error::io("create the directory", path, errno)),
    }
}

fn is_dir(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|found| FileType::from_raw_mode(found.st_mode) == FileType::Directory)
}

/// Source: `rename(2)`.
pub(crate) fn rename(from: &Path, to: &Path) -> Result<()> {
    let renamed = || {
        let ((from_dir, from), (to_dir, to)) = (directory_of_name(from)?, directory_of_name(to)?);
        rustix::fs::renameat(at(&from_dir), from, at(&to_dir), to)
    };
    renamed().map_err(|errno| Error::io("rename", from, errno))
}

/// The directory that a name is looked up in.
fn at(dir: &Option<OwnedFd>) -> BorrowedFd<'_> {
    dir.as_ref().map_or(CWD, AsFd::as_fd)
}

/// Renames a file to a name that must be free.
///
/// # Errors
/// [`Error::Io`], with EEXIST if it is taken. Source: `renameat2(2)`.
pub(crate) fn rename_to_free(from: &Path, to: &Path) -> Result<()> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that cannot promise it.
        Err(Errno::INVAL | Errno::NOSYS) if exists(to)? => Err(Error::io("rename", from, Errno::EXIST)),
        Err(Errno::INVAL | Errno::NOSYS) => rename(from, to),
        other => other.map_err(|errno| Error::io("rename", from, errno)),
    }
}

/// Source: `unlink(2)`.
pub(crate) fn unlink(path: &Path) -> Result<()> {
    let removed = || {
        let (dir, name) = directory_of_name(path)?;
        rustix::fs::unlinkat(at(&dir), name, AtFlags::empty())
    };
    removed().map_err(|errno| Error::io("remove", path, errno))
}

/// Source: `rmdir(2)`.
fn remove_dir_if_empty(path: &Path) -> Result<()> {
    match rustix::fs::rmdir(path) {
        // POSIX allows either of the first two for a directory that isn't empty.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => Ok(()),
        // An empty directory of companions that is another user's to remove does no harm.
        Err(Errno::ACCESS | Errno::PERM) if companion::is_directory(path) => Ok(()),
        other => other.map_err(|errno| Error::io("remove the directory", path, errno)),
    }
}

/// Whether the name itself exists; a dangling symbolic link does. Source: `lstat(2)`.
pub(crate) fn exists(path: &Path) -> Result<bool> {
    match rustix::fs::lstat(path) {
        Ok(_) => Ok(true),
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
        Err(errno) => Err(Error::io("examine", path, errno)),
    }
}

/// Source: `getdents64(2)`.
pub(crate) fn list(dir: &Path) -> Result<Vec<OsString>> {
    let failed = |errno| Error::io("list", dir, errno);
    let directory = match open_dir(dir) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let mut names = Vec::new();
    for entry in Dir::read_from(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(OsStr::from_bytes(name).to_owned());
        }
    }
    Ok(names)
}

/// Makes the names in a directory durable. Source: `fsync(2)`.
pub(crate) fn sync_dir(dir: &Path) -> Result<()> {
    let failed = |errno: std::io::Error| Error::io("sync the directory", dir, errno);
    let directory = open_dir(dir).map_err(|errno| failed(errno.into()))?;
    sys::file::uninterrupted(|| rustix::fs::fsync(directory.as_fd())).map_err(failed)
}

fn open_dir(dir: &Path) -> rustix::io::Result<OwnedFd> {
    // An empty parent, which `Path::parent` gives for a bare name, means the working directory.
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let follow = if companion::is_directory(dir) { OFlags::NOFOLLOW } else { OFlags::empty() };
    rustix::fs::open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | follow, Mode::empty())
}

/// Waits a moment for another thread: first by spinning, which a lock held for a copy needs, then by giving up the
/// CPU, then asleep for ever longer, up to a millisecond, so that a wait for a device flush burns no core.
pub(crate) fn relax(round: u32) {
    match round {
        0..6 => (0..1u32 << round).for_each(|_| std::hint::spin_loop()),
        6..16 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(10 << (round - 16).min(7)).min(MAX_NAP)),
    }
}

/// The longest single sleep of [`relax`].
const MAX_NAP: std::time::Duration = std::time::Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn only_regular_files_open_and_a_pipe_does_not_hang() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        let socket = dir.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for (path, expected) in [
            (dir.path(), FileKind::Directory),
            (&pipe, FileKind::Pipe),
            (&socket, FileKind::Socket),
            (Path::new("/dev/null"), FileKind::CharacterDevice),
        ] {
            for access in [Access::Read, Access::ReadWrite] {
                match open_regular(path, access) {
                    Err(Error::NotAFile { found, .. }) => assert_eq!(found, expected),
                    other => panic!("{}: {other:?}", path.display()),
                }
            }
        }
    }

    #[test]
    fn errors_read_as_sentences() {
        let path = Path::new("/nonexistent/file");
        let error = open_regular(path, Access::Read).unwrap_err();
        assert_eq!(error.to_string(), "cannot open /nonexistent/file: No such file or directory (os error 2)");
        assert!(sync_dir(path).unwrap_err().to_string().starts_with("cannot sync the directory /nonexistent/file: "));
    }

    #[test]
    fn create_refuses_a_taken_name_and_leaves_nothing_when_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        drop(create_regular(&path, 100).unwrap());
        assert_eq!(fs::metadata(&path).unwrap().len(), 100);
        assert_eq!(create_regular(&path, 1).unwrap_err().errno(), Errno::EXIST.raw_os_error());
        let huge = dir.path().join("huge");
        assert!(create_regular(&huge, u64::MAX).is_err());
        assert!(!exists(&huge).unwrap());
    }

    #[test]
    fn a_file_has_its_name_once_it_is_finished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let nameless = rustix::fs::open(dir.path(), OFlags::RDWR | OFlags::TMPFILE, Mode::RUSR);
        if let Err(errno) = nameless {
            untorn_testing::skip!("the temporary directory has no files without names: {errno}");
        }
        let finish = |file: BorrowedFd<'_>| {
            assert!(!exists(&path).unwrap());
            lengthen(&path, file, 100)
        };
        drop(create_with(&path, 0o640, finish).unwrap());
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.len(), found.nlink(), found.permissions().mode() & 0o707), (100, 1, 0o600));
        // A dangling link is a name that is taken.
        std::os::unix::fs::symlink("nothing", dir.path().join("link")).unwrap();
        for taken in [path, dir.path().join("link")] {
            assert_eq!(create_with(&taken, 0o600, |_| Ok(())).unwrap_err().errno(), Errno::EXIST.raw_os_error());
        }
    }

    #[test]
    fn names_come_and_go() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("dir");
        assert!(list(&dir).unwrap().is_empty());
        remove_dir_if_empty(&dir).unwrap();
        create_dir(&dir).unwrap();
        create_dir(&dir).unwrap();
        drop(create_regular(&dir.join("a"), 0).unwrap());
        drop(create_regular(&dir.join("b"), 0).unwrap());
        assert!(create_dir(&dir.join("a")).is_err());
        rename(&dir.join("a"), &dir.join("b")).unwrap();
        sync_dir(&dir).unwrap();
        assert_eq!(list(&dir).unwrap(), ["b"]);
        remove_dir_if_empty(&dir).unwrap();
        assert!(exists(&dir).unwrap());
        unlink(&dir.join("b")).unwrap();
        assert!(unlink(&dir.join("b")).is_err());
        remove_dir_if_empty(&dir).unwrap();
        assert!(!exists(&dir).unwrap());
    }

    #[test]
    fn relax_returns_for_every_round() {
        [0, 5, 6, 16, 17, 40, u32::MAX].into_iter().for_each(relax);
    }
}
