//! untorn's own files beside a data file, and which of them are believed.
//!
//! A *companion* is any file in a directory `.untorn`: a sidecar, a spill file, a redundancy file, a lock file. Its
//! bytes become bytes of the data file, and it holds bytes of the data file. In a directory that several users write
//! to, another user may have planted it, or the directory itself.
//!
//! # Invariants
//! 1. A companion is opened by its name in an open directory, without following a symbolic link in either. What is
//!    checked is the open file, so nobody can exchange it between the check and the use.
//! 2. It is a regular file with one name. A second name in a directory of another user's could bring one of the
//!    caller's own files here.
//! 3. Its owner is root, the user of this process, the owner of the data file, or another user that may write the data
//!    file: by the file's list, because everybody may, or as a member of its group. The last is believed only if the
//!    companion belongs to that group too, in a directory to which only the group writes: no other user could have made
//!    it there.
//! 4. Nobody may write to it that may not write the data file. With 3, all its bytes come from users that could have
//!    stored them in the data file themselves.
//! 5. The directory belongs to the owner of the data file, to root, or to the owner of the directory around it. Where
//!    that one is not sticky, it may belong to any user that may write there: such a user can exchange the data file
//!    itself.
//! 6. Nobody may remove names from it that may not remove them from the directory around it. In a sticky directory that
//!    means: it is sticky itself, or only its owner writes to it.
//! 7. The user of this process is no reason to believe a directory, unlike a file: the next opener would not believe
//!    it, and miss the sidecar in it.
//! 8. A user that came first shuts nobody out: a data file that cannot believe `.untorn` has its companions in
//!    `.untorn-UID`, by the same rules, where UID is the number of the data file's owner.
//! 9. All companions of a file are in one directory, and all processes find the same one. It is `.untorn-UID` if that
//!    is believed and has something of this file. It is `.untorn` if that is absent, or believed and open to the file's
//!    owner or with something of this file. Otherwise it is `.untorn-UID`. The answer depends on the file, not on the
//!    process. It stays the same while the file has a sidecar, whatever other users make or remove.
//! 10. If only one user writes to the directory around, nobody else came first: a `.untorn` that is not believed is an
//!     error to mend, and no reason for a second one.
//! 11. A file whose mark says that it has a sidecar is refused, not served without it, if the only one is in a
//!     `.untorn` that is not believed any more.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::Access;
use super::names::{check_regular, unlink};
use crate::error::{Error, Result};
use crate::sys::file::{MARK_ATTRIBUTE, set_len};
use crate::sys::permissions::{Permissions, conform, conform_directory};

/// The name of the directory of companions.
const DIRECTORY: &str = ".untorn";

/// Whether a path names a directory of companions: `.untorn`, or `.untorn-UID`.
pub(crate) fn is_directory(path: &Path) -> bool {
    let name = path.file_name().map(OsStr::as_encoded_bytes).unwrap_or_default();
    match name.strip_prefix(DIRECTORY.as_bytes()) {
        Some([]) => true,
        Some([b'-', digits @ ..]) => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// What a name of a directory of companions stands for.
enum Judged {
    Absent,
    /// Believed, and the owner of the data file can make files in it.
    Usable,
    Believed,
    Refused,
}

fn judge(dir: &Path, around: &Path, data: u32) -> Judged {
    match (Permissions::of_directory(dir), Permissions::at(around)) {
        (Err(error), _) if error.kind() == std::io::ErrorKind::NotFound => Judged::Absent,
        (Ok(Some(dir)), Ok(around)) if believe_directory(&dir, &around, data).is_ok() => {
            let is_usable = data == 0 || dir.uid == data || dir.lets_others_write();
            if is_usable { Judged::Usable } else { Judged::Believed }
        }
        _ => Judged::Refused,
    }
}

/// The directory that a data file is in.
fn around(data: &Path) -> &Path {
    data.parent().filter(|around| *around != Path::new("")).unwrap_or(Path::new("."))
}

/// The second directory of companions, for the files of a user.
fn directory_of_user(around: &Path, uid: u32) -> PathBuf {
    around.join(format!("{DIRECTORY}-{uid}"))
}

/// Whether a data file may have companions. Without both directories it has none, which three system calls tell.
pub(crate) fn may_have_companions(data: &Path) -> bool {
    let Ok(file) = rustix::fs::stat(data) else { return true };
    let around = around(data);
    let is_absent = |dir: PathBuf| rustix::fs::lstat(dir).is_err_and(|errno| errno == Errno::NOENT);
    !(is_absent(around.join(DIRECTORY)) && is_absent(directory_of_user(around, file.st_uid)))
}

/// The directory of companions of a data file, and the other one in which there may be some: invariants 8 and 9.
pub(crate) fn directories_of(data: &Path) -> (PathBuf, Option<PathBuf>) {
    let around = around(data);
    let common = around.join(DIRECTORY);
    // A file of a simulated medium is none of the kernel's.
    let Ok(file) = rustix::fs::stat(data) else { return (common, None) };
    let own = directory_of_user(around, file.st_uid);
    let names = [file.st_ino.to_string(), format!("{}.redundancy", file.st_ino)];
    let holds = |dir: &Path| names.iter().any(|name| rustix::fs::lstat(dir.join(name)).is_ok());
    match (judge(&common, around, file.st_uid), judge(&own, around, file.st_uid)) {
        (_, Judged::Usable | Judged::Believed) if holds(&own) => (own, Some(common)),
        (Judged::Absent | Judged::Usable, _) => (common, Some(own)),
        (Judged::Believed, _) if holds(&common) => (common, Some(own)),
        // Opening it says why it is refused.
        (Judged::Refused, _) if holds(&common) && may_have_sidecar(data) => (common, Some(own)),
        (Judged::Refused, _) if !Permissions::at(around).is_ok_and(|around| around.lets_others_write()) => {
            (common, Some(own))
        }
        (Judged::Believed, _) => (own, Some(common)),
        (Judged::Refused, _) => (own, None),
    }
}

/// The directories of companions in a directory, for a process that clears them. One that belongs to a user that is not
/// believed is not cleared: that user could exchange its names meanwhile.
///
/// # Errors
/// [`Error::Untrusted`] if `.untorn` is not believed; [`Error::Io`].
pub(crate) fn directories_in(around: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for name in super::names::list(around)? {
        let dir = around.join(&name);
        if !is_directory(&dir) {
            continue;
        }
        let of = name.to_str().and_then(|name| name.rsplit_once('-')).and_then(|(_, uid)| uid.parse().ok());
        let caller = rustix::process::geteuid().as_raw();
        match judge(&dir, around, of.unwrap_or(caller)) {
            Judged::Usable | Judged::Believed => found.push(dir),
            Judged::Refused if of.is_none() => {
                let what = "another user may exchange the files in it".to_owned();
                return Err(Error::Untrusted { path: around.to_owned(), companion: dir, what });
            }
            Judged::Absent | Judged::Refused => {}
        }
    }
    found.sort();
    Ok(found)
}

/// Whether nothing says that a data file has no sidecar: without a mark it has none, where there are marks.
fn may_have_sidecar(data: &Path) -> bool {
    !matches!(rustix::fs::getxattr(data, MARK_ATTRIBUTE, &mut [0; 32]), Err(Errno::NODATA))
}

/// The directory of companions that a path is in, and its name there; `None` for every other path.
pub(super) fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let (dir, name) = (path.parent()?, path.file_name()?);
    is_directory(dir).then_some((dir, name))
}

/// A data file, as far as its companions are judged by it.
pub(crate) struct Principal<'a> {
    path: &'a Path,
    permissions: Permissions,
}

impl<'a> Principal<'a> {
    /// An open data file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn new(path: &'a Path, file: BorrowedFd<'_>) -> Result<Self> {
        let permissions = Permissions::of(file).map_err(|error| Error::io("examine", path, error))?;
        Ok(Principal { path, permissions })
    }

    /// A data file that is not open.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(crate) fn at(path: &'a Path) -> Result<Self> {
        let permissions = Permissions::at(path).map_err(|error| Error::io("examine", path, error))?;
        Ok(Principal { path, permissions })
    }

    fn refuse(&self, companion: &Path, what: String) -> Error {
        Error::Untrusted { path: self.path.to_owned(), companion: companion.to_owned(), what }
    }

    /// Refuses a companion that another user may have planted: invariants 2 to 4.
    fn believe(&self, companion: &Path, file: BorrowedFd<'_>, directory: &Permissions) -> Result<()> {
        let failed = |error: std::io::Error| Error::io("examine", companion, error);
        let found = rustix::fs::fstat(file).map_err(|errno| failed(errno.into()))?;
        check_regular(companion, &found)?;
        if found.st_nlink > 1 {
            return Err(
                self.refuse(companion, format!("it has {} names, and may be a file of another use", found.st_nlink))
            );
        }
        let has = Permissions::of(file).map_err(failed)?;
        let data = &self.permissions;
        let caller = rustix::process::geteuid().as_raw();
        let by_group = || has.gid == data.gid && data.lets_its_group_write() && directory.is_written_only_by(data.gid);
        let is_writer = [0, caller, data.uid].contains(&has.uid)
            || data.lets_all_write()
            || data.lets_user_write(has.uid)
            || by_group();
        if !is_writer {
            let what = format!("it belongs to user {}, and the file to user {}", has.uid, data.uid);
            return Err(self.refuse(companion, what));
        }
        if !has.writers_are_among_those_of(data) {
            let what = format!(
                "users may write to it that may not write the file (mode {:04o} and group {}, the file {:04o} and {})",
                has.mode(),
                has.gid,
                data.mode(),
                data.gid
            );
            return Err(self.refuse(companion, what));
        }
        Ok(())
    }
}

/// An open directory of companions.
pub(super) struct Directory {
    file: OwnedFd,
    permissions: Permissions,
}

impl Directory {
    /// Opens it, without following a symbolic link.
    pub(super) fn open(dir: &Path) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::open(dir, flags, Mode::empty())
    }

    /// Opens the directory of companions of a data file, if that file can believe it: invariants 5 and 6.
    fn of(dir: &Path, data: &Principal<'_>) -> Result<Self> {
        let file = match Directory::open(dir) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                let what = "it is a symbolic link or no directory".to_owned();
                return Err(data.refuse(dir, what));
            }
            Err(Errno::ACCESS) => return Err(data.no_access(dir)),
            opened => opened.map_err(|errno| Error::io("open the directory", dir, errno))?,
        };
        let failed = |error: std::io::Error| Error::io("examine the directory", dir, error);
        let permissions = Permissions::of(file.as_fd()).map_err(failed)?;
        let parent = parent_of(file.as_fd()).map_err(failed)?;
        believe_directory(&permissions, &parent, data.permissions.uid).map_err(|what| data.refuse(dir, what))?;
        Ok(Directory { file, permissions })
    }
}

/// Why a directory of companions is not believed, if it is not.
fn believe_directory(dir: &Permissions, parent: &Permissions, data: u32) -> std::result::Result<(), String> {
    let by_parent = !parent.is_sticky() && parent.lets_others_write();
    if ![0, data, parent.uid].contains(&dir.uid) && !by_parent {
        return Err(format!("it belongs to user {}, and the file to user {data}", dir.uid));
    }
    let is_as_safe = match parent.is_sticky() {
        true => dir.is_sticky() || !dir.lets_others_write(),
        false => dir.is_sticky() || dir.writers_are_among_those_of(parent),
    };
    if !is_as_safe {
        return Err(format!("users may remove files from it that may not do so around it (mode {:04o})", dir.mode()));
    }
    Ok(())
}

/// The permissions of the directory that an open directory is in.
fn parent_of(dir: BorrowedFd<'_>) -> std::io::Result<Permissions> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(dir, "..", flags, Mode::empty()) {
        Ok(parent) => Permissions::of(parent.as_fd()),
        // One that may be searched, not read.
        Err(Errno::ACCESS) => Ok(Permissions::without_list(&rustix::fs::statat(dir, "..", AtFlags::empty())?)),
        Err(errno) => Err(errno.into()),
    }
}

impl Principal<'_> {
    /// The error of a user that may not open a companion, which only writers of the data file may.
    fn no_access(&self, companion: &Path) -> Error {
        let owner = rustix::fs::lstat(companion)
            .map_or_else(|_| "its owner".to_owned(), |found| format!("user {}", found.st_uid));
        let what = format!(
            "this user may not open it: only users that may write the file may, because it holds bytes of the file; \
             ask {owner} or root to close the file, or after a crash to run `untorn recover` on it"
        );
        Error::NoAccess { path: self.path.to_owned(), companion: companion.to_owned(), what }
    }
}

/// Opens a companion of a data file.
///
/// # Errors
/// [`Error::Untrusted`] if another user may have planted it; [`Error::NoAccess`] if this user may not open it;
/// [`Error::Io`], [`Error::NotAFile`].
pub(crate) fn open(path: &Path, access: Access, data: &Principal<'_>) -> Result<OwnedFd> {
    let Some((dir, name)) = split(path) else { return super::names::open_regular(path, access) };
    let directory = Directory::of(dir, data)?;
    let failed = |errno| Error::io("open", path, errno);
    // The type comes first, by name: opening a device can have effects.
    let found = match rustix::fs::statat(&directory.file, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::ACCESS) => return Err(data.no_access(path)),
        found => found.map_err(failed)?,
    };
    if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        return Err(data.refuse(path, "it is a symbolic link".to_owned()));
    }
    check_regular(path, &found)?;
    let file = match openat(&directory.file, name, access) {
        Err(Errno::LOOP) => return Err(data.refuse(path, "it is a symbolic link".to_owned())),
        Err(Errno::ACCESS) => return Err(data.no_access(path)),
        opened => opened.map_err(failed)?,
    };
    data.believe(path, file.as_fd(), &directory.permissions)?;
    Ok(file)
}

fn openat(dir: impl AsFd, name: &OsStr, access: Access) -> rustix::io::Result<OwnedFd> {
    let mode = match access {
        Access::Read => OFlags::RDONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let flags = mode | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    rustix::fs::openat(dir, name, flags, Mode::empty())
}

/// Creates a companion of a data file, of `len` zero bytes, which must not exist yet. Nobody else can open it before it
/// has the owner and the writers of the data file.
///
/// # Errors
/// As [`open`], with EEXIST if the name is taken; nothing is left behind then.
pub(crate) fn create(path: &Path, len: u64, data: &Principal<'_>, like: BorrowedFd<'_>) -> Result<OwnedFd> {
    let failed = |errno| Error::io("create", path, errno);
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mode = Mode::RUSR | Mode::WUSR;
    let file = match split(path) {
        None => rustix::fs::open(path, flags, mode).map_err(failed)?,
        Some((dir, name)) => {
            let directory = Directory::of(dir, data)?;
            rustix::fs::openat(&directory.file, name, flags, mode).map_err(failed)?
        }
    };
    let finish = || {
        conform(file.as_fd(), like).map_err(|error| Error::io("set the permissions of", path, error))?;
        if len == 0 {
            return Ok(());
        }
        set_len(file.as_fd(), len).map_err(|error| Error::io("resize", path, error))
    };
    // The first error is the one that helps, whether or not the name can be removed again.
    finish().inspect_err(|_| drop(unlink(path)))?;
    Ok(file)
}

/// Brings owner, mode and list of an open companion in line with its data file.
///
/// # Errors
/// [`Error::Untrusted`] if it lets in users that may not write the data file, and this user may not change that.
pub(crate) fn bring_in_line(
    path: &Path,
    companion: BorrowedFd<'_>,
    data_path: &Path,
    data: BorrowedFd<'_>,
) -> Result<()> {
    conform(companion, data).map_err(|error| {
        let what = format!("its permissions are not those of the file, and cannot be changed to them: {error}");
        Error::Untrusted { path: data_path.to_owned(), companion: path.to_owned(), what }
    })
}

/// Makes the directory of companions of a data file, if it is not there; one that is there is believed or refused.
///
/// # Errors
/// [`Error::Untrusted`], [`Error::Io`]. Source: `mkdir(2)`.
pub(crate) fn create_directory(dir: &Path, data: &Principal<'_>) -> Result<()> {
    let failed = |errno| Error::io("create the directory", dir, errno);
    // Nobody else writes to it before it has its permissions.
    match rustix::fs::mkdirat(CWD, dir, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => return Directory::of(dir, data).map(drop),
        made => made.map_err(failed)?,
    }
    let file = match Directory::open(dir) {
        // The last to leave it removed it under our hands, or somebody put something else there.
        Err(Errno::NOENT) => return Err(failed(Errno::NOENT)),
        opened => opened.map_err(failed)?,
    };
    let finish = || -> std::io::Result<()> {
        let found = rustix::fs::fstat(&file)?;
        if found.st_uid != rustix::process::geteuid().as_raw() {
            return Ok(());
        }
        conform_directory(file.as_fd(), &parent_of(file.as_fd())?, data.permissions.uid)
    };
    finish().map_err(|error| Error::io("set the permissions of the directory", dir, error))?;
    Directory::of(dir, data).map(drop)
}

/// The error of a companion whose directory is something else.
pub(super) fn no_directory(path: &Path) -> Error {
    let what = "its directory is a symbolic link or no directory".to_owned();
    Error::Untrusted { path: path.to_owned(), companion: path.to_owned(), what }
}

/// Opens a companion without knowing its data file: for a second look at one that was believed before. It is no
/// symbolic link, has one name, and belongs to root, this user, or the owner of its directory or of the one around it.
///
/// # Errors
/// [`Error::Untrusted`], [`Error::Io`], [`Error::NotAFile`].
pub(super) fn open_again(path: &Path, dir: &Path, name: &OsStr, access: Access) -> Result<OwnedFd> {
    let refuse =
        |what: &str| Err(Error::Untrusted { path: path.to_owned(), companion: path.to_owned(), what: what.to_owned() });
    let failed = |errno| Error::io("open", path, errno);
    let directory = match Directory::open(dir) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(no_directory(path)),
        opened => opened.map_err(failed)?,
    };
    let around = rustix::fs::fstat(&directory).map_err(failed)?;
    let parent = rustix::fs::statat(&directory, "..", AtFlags::empty()).map_err(failed)?.st_uid;
    let found = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    if FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
        return refuse("it is a symbolic link");
    }
    check_regular(path, &found)?;
    let file = openat(&directory, name, access).map_err(failed)?;
    let found = rustix::fs::fstat(&file).map_err(failed)?;
    check_regular(path, &found)?;
    if found.st_nlink > 1 {
        return refuse("it has several names, and may be a file of another use");
    }
    // Where a group shares the directory, each member may have made it.
    let is_shared = around.st_mode & 0o1020 == 0o0020;
    let caller = rustix::process::geteuid().as_raw();
    if !is_shared && ![0, caller, around.st_uid, parent].contains(&found.st_uid) {
        return refuse("it belongs to another user than its directory");
    }
    Ok(file)
}

/// Opens the directory that a change of a name is made in: of a companion without following a symbolic link.
pub(super) fn directory_of_name(path: &Path) -> rustix::io::Result<(Option<OwnedFd>, &OsStr)> {
    match split(path) {
        Some((dir, name)) => Ok((Some(Directory::open(dir)?), name)),
        None => Ok((None, path.as_os_str())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_of_companions_are_told_by_their_names() {
        for yes in [".untorn", "a/.untorn", "/a/.untorn-0", ".untorn-65534"] {
            assert!(is_directory(Path::new(yes)), "{yes}");
        }
        for no in
            ["", "/", "untorn", ".untorn-", ".untorn-x", ".untorn-1x", ".untorn-probe-1-2", ".untorn/7", ".untornx"]
        {
            assert!(!is_directory(Path::new(no)), "{no}");
        }
        assert_eq!(split(Path::new("a/.untorn/7")), Some((Path::new("a/.untorn"), OsStr::new("7"))));
        assert_eq!(split(Path::new("a/7")), None);
    }

    #[test]
    fn a_file_that_is_not_there_has_the_common_directory() {
        assert_eq!(directories_of(Path::new("/nowhere/f")), (PathBuf::from("/nowhere/.untorn"), None));
        assert_eq!(directories_of(Path::new("nothing-of-this-name")).0, PathBuf::from("./.untorn"));
    }

    #[test]
    fn a_file_may_have_companions_where_either_directory_is() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("f");
        assert!(may_have_companions(&file), "nothing is known of a file that is not there");
        std::fs::write(&file, "").unwrap();
        assert!(!may_have_companions(&file));
        for name in [".untorn".to_owned(), format!(".untorn-{}", rustix::process::geteuid().as_raw())] {
            std::fs::create_dir(dir.path().join(&name)).unwrap();
            assert!(may_have_companions(&file), "{name}");
            std::fs::remove_dir(dir.path().join(&name)).unwrap();
        }
    }
}
