//! Slow files: the files behind a write cache.
//!
//! They are accessed by system calls and not through a mapping. A program has them open anyway, in any number and of
//! any length, and the kernel's page cache serves them. Durability is one flush of the whole file for many writes.

use std::ffi::OsString;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::engine::commits::appender::{self, CommitRecords};
use crate::error::{Error, Result};
use crate::options::CommitLog;
use crate::storage::companion;
use crate::storage::{Access, Barrier, CreateAttrs, Identity, Latched, PageCache, identity_of, names};
use crate::sys;

/// One open slow file. Many threads may call all methods.
pub trait BackingFile: Send + Sync + 'static {
    /// What distinguishes this file from all others.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    fn identity(&self) -> Result<Identity>;

    /// The current length in bytes.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    fn len(&self) -> Result<u64>;

    /// Whether the length is 0.
    ///
    /// # Errors
    /// Those of [`len`](BackingFile::len).
    fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Whether the file's last name was removed, so that it will have none again. The default returns false.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    fn is_removed(&self) -> Result<bool> {
        Ok(false)
    }

    /// The attributes for creating this file again if a crash takes it before its name is durable. `None` if the file
    /// has more than these and its contents, such as other names or extended attributes. The default returns `None`.
    ///
    /// # Errors
    /// Those of `fstat(2)` and `flistxattr(2)`.
    fn create_attrs(&self) -> Result<Option<CreateAttrs>> {
        Ok(None)
    }

    /// When the bytes were last changed, in nanoseconds since 1970; `None` if the file has no such time. A replay does
    /// not write to a file that another program changed after the last entry of the log. The default returns `None`.
    ///
    /// # Errors
    /// Those of `fstat(2)`.
    fn modified(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Whether the log may bring changes to the file. The file fails if not, and the log keeps them.
    ///
    /// # Errors
    /// [`ChangedOutside`](crate::Error::ChangedOutside) from a file that knows that another program changed it.
    fn check_unchanged(&self) -> Result<()> {
        Ok(())
    }

    /// Fills `dst` from `offset` up to the end of the file. Returns the number of bytes read.
    ///
    /// # Errors
    /// Those of `pread(2)`.
    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize>;

    /// Writes all of `src` at `offset`, and grows the file if needed. Durable after [`sync`](BackingFile::sync).
    ///
    /// # Errors
    /// Those of `pwrite(2)`.
    fn write(&self, offset: u64, src: &[u8]) -> Result<()>;

    /// Writes as much of `src` at `offset` as there is room for. Returns the number of bytes written: at least one,
    /// unless `src` is empty.
    ///
    /// # Errors
    /// Those of `pwrite(2)`, if nothing was written.
    fn write_some(&self, offset: u64, src: &[u8]) -> Result<usize> {
        self.write(offset, src).map(|()| src.len())
    }

    /// Changes the length. New bytes read as zeros. Durable after [`sync`](BackingFile::sync).
    ///
    /// # Errors
    /// Those of `ftruncate(2)`.
    fn set_len(&self, len: u64) -> Result<()>;

    /// Makes contents and length durable.
    ///
    /// # Errors
    /// A failed flush, which is final.
    fn sync(&self, barrier: Barrier) -> Result<()>;

    /// Starts to bring contents to the device, and waits for nothing: a [`sync`](BackingFile::sync) follows. Of many
    /// files at once the kernel then writes all before the first sync ends, and the file system has their metadata in
    /// one commit. The default does nothing.
    fn begin_sync(&self) {}
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// Nothing.
    Nothing,
    /// A regular file. Its generation is 0 if it is not known without opening the file.
    File(Identity),
    /// Anything else, such as a directory or a symbolic link.
    Other,
}

/// The directories that hold slow files.
pub trait BackingDir: Send + Sync + 'static {
    /// Opens a regular file for reading and writing; `None` if no file has this name.
    ///
    /// # Errors
    /// Those of `open(2)`.
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>>;

    /// Opens a regular file for reading only; `None` if no file has this name. The default is
    /// [`open`](BackingDir::open).
    ///
    /// # Errors
    /// Those of `open(2)`.
    fn look(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        self.open(path)
    }

    /// Whether any file has this name.
    ///
    /// # Errors
    /// Those of `lstat(2)`.
    fn exists(&self, path: &Path) -> Result<bool>;

    /// What this name stands for, by the name alone. It opens no file, because a process with a lease on it
    /// (`F_SETLEASE`) would have to give that back.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    fn named(&self, path: &Path) -> Result<Named>;

    /// The names in a directory that may have this inode.
    ///
    /// # Errors
    /// Those of `getdents64(2)`.
    fn candidates(&self, dir: &Path, inode: u64) -> Result<Vec<OsString>>;

    /// All names in a directory; none if the directory does not exist.
    ///
    /// # Errors
    /// Those of `getdents64(2)`.
    fn names(&self, dir: &Path) -> Result<Vec<OsString>>;

    /// What distinguishes a directory from others, for example from the empty mount point while a file system is not
    /// mounted. `None` if the name does not exist. It has no generation.
    ///
    /// # Errors
    /// Those of `statx(2)`.
    fn directory(&self, dir: &Path) -> Result<Option<Identity>>;

    /// Makes an empty file, whose name must be free.
    ///
    /// # Errors
    /// Those of `open(2)`, `fchown(2)` and `fchmod(2)`; nothing is left behind then.
    fn make(&self, path: &Path, like: &CreateAttrs) -> Result<Arc<dyn BackingFile>>;

    /// Gives a file another name, which must be free. Durable after [`sync_dir`](BackingDir::sync_dir).
    ///
    /// # Errors
    /// EEXIST, and those of `renameat2(2)`.
    fn rename(&self, from: &Path, to: &Path) -> Result<()>;

    /// Removes a file. Durable after [`sync_dir`](BackingDir::sync_dir).
    ///
    /// # Errors
    /// Those of `unlink(2)`.
    fn remove(&self, path: &Path) -> Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// A failed flush.
    fn sync_dir(&self, barrier: Barrier, dir: &Path) -> Result<()>;

    /// The commit log of a file, opened to be written to, or made as it is wanted; `None` if it has none. `replays`
    /// says that the log of the write cache has changes of the file. The default has no commit logs.
    ///
    /// # Errors
    /// Those of opening and writing.
    #[doc(hidden)]
    fn commit_log(
        &self,
        path: &Path,
        wanted: Option<CommitLog>,
        replays: bool,
    ) -> Result<Option<Box<dyn CommitRecords>>> {
        let _ = (path, wanted, replays);
        Ok(None)
    }

    /// Whether the file's commit log awaits its consumers.
    #[doc(hidden)]
    fn awaits_consumers(&self, _path: &Path) -> bool {
        false
    }

    /// Notes the number of the file's last commit in the file, durably at its next sync. Its errors are those of
    /// opening and writing.
    #[doc(hidden)]
    fn note_commit(&self, path: &Path, number: u64, time: u64) -> Result<()> {
        let _ = (path, number, time);
        Ok(())
    }

    /// Brings the commit log along of a file that was renamed, if it has one. Its errors are those of renaming.
    #[doc(hidden)]
    fn carry_commit_log(&self, from: &Path, to: &Path) -> Result<()> {
        let _ = (from, to);
        Ok(())
    }

    /// Removes the commit log of a file that is gone. Its errors are those of removing.
    #[doc(hidden)]
    fn remove_commit_log(&self, path: &Path, inode: u64) -> Result<()> {
        let _ = (path, inode);
        Ok(())
    }
}

/// The medium of commit logs. A flush that failed is not asked for again.
fn logs() -> Latched<PageCache> {
    Latched::new(PageCache::reading_by_call())
}

/// The file systems of this machine, through the kernel.
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

/// A slow file with a file descriptor.
pub struct Descriptor {
    file: OwnedFd,
    path: PathBuf,
}

impl Descriptor {
    /// Takes over a descriptor, which must be open for reading and writing. Error texts name `path`.
    ///
    /// # Errors
    /// [`Error::NotAFile`] unless it is a regular file.
    pub fn new(file: OwnedFd, path: &Path) -> Result<Self> {
        let found = rustix::fs::fstat(&file).map_err(|errno| Error::io("examine", path, errno))?;
        names::check_regular(path, &found)?;
        Ok(Descriptor { file, path: path.to_owned() })
    }

    /// Opens the file behind a descriptor again for reading and writing, whatever the descriptor itself is open for.
    ///
    /// # Errors
    /// [`Error::Io`] if that is not permitted.
    pub fn reopen(file: BorrowedFd<'_>, path: &Path) -> Result<Self> {
        let found = rustix::fs::fstat(file).map_err(|errno| Error::io("examine", path, errno))?;
        names::check_regular(path, &found)?;
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let again = rustix::fs::open(link, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty());
        Descriptor::new(again.map_err(|errno| Error::io("open", path, errno))?, path)
    }
}

impl fmt::Debug for Descriptor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Descriptor").field("path", &self.path).finish()
    }
}

impl BackingFile for Descriptor {
    fn identity(&self) -> Result<Identity> {
        identity_of(self.file.as_fd(), &self.path)
    }

    fn len(&self) -> Result<u64> {
        let found = rustix::fs::fstat(&self.file).map_err(|errno| Error::io("examine", &self.path, errno))?;
        Ok(found.st_size.try_into().unwrap_or(0))
    }

    fn is_removed(&self) -> Result<bool> {
        let found = rustix::fs::fstat(&self.file).map_err(|errno| Error::io("examine", &self.path, errno))?;
        Ok(found.st_nlink == 0)
    }

    fn create_attrs(&self) -> Result<Option<CreateAttrs>> {
        let failed = |errno| Error::io("examine", &self.path, errno);
        let found = rustix::fs::fstat(&self.file).map_err(failed)?;
        let mode = Mode::from_raw_mode(found.st_mode);
        let plain = Mode::RWXU | Mode::RWXG | Mode::RWXO;
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        // Whoever replays is this user, who can give a file away to nobody, or root.
        let ours = user.is_root() || (found.st_uid, found.st_gid) == (user.as_raw(), group.as_raw());
        if found.st_nlink != 1 || mode - plain != Mode::empty() || !ours {
            return Ok(None);
        }
        let mut names = [0; 1 << 10];
        let len = match rustix::fs::flistxattr(&self.file, &mut names[..]) {
            Ok(len) => len,
            Err(Errno::OPNOTSUPP) => 0,
            Err(Errno::RANGE) => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        // The kernel gives a new file its label by where it is made.
        let labels = names[..len].split(|&byte| byte == 0).all(|name| matches!(name, b"" | b"security.selinux"));
        let like = CreateAttrs { mode: mode.as_raw_mode(), uid: found.st_uid, gid: found.st_gid };
        Ok(labels.then_some(like))
    }

    fn modified(&self) -> Result<Option<u64>> {
        let found = rustix::fs::fstat(&self.file).map_err(|errno| Error::io("examine", &self.path, errno))?;
        Ok(Some(sys::file::since_1970(found.st_mtime, found.st_mtime_nsec as u64)))
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < dst.len() {
            match rustix::io::pread(&self.file, &mut dst[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(Error::io_at("read from", &self.path, offset + done as u64, errno)),
            }
        }
        Ok(done)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        let failed = |(done, error)| Error::io_at("write to", &self.path, offset + done, error);
        sys::file::write_all(self.file.as_fd(), src, offset).map_err(failed)
    }

    fn write_some(&self, offset: u64, src: &[u8]) -> Result<usize> {
        let written = sys::file::write_some(self.file.as_fd(), src, offset);
        match written.map_err(|error| Error::io_at("write to", &self.path, offset, error))? {
            // What a full file system of some kinds says.
            0 if !src.is_empty() => Err(Error::io_at("write to", &self.path, offset, Errno::NOSPC)),
            count => Ok(count),
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        sys::file::uninterrupted(|| sys::file::set_len(&self.file, len))
            .map_err(|error| Error::io("resize", &self.path, error))
    }

    fn sync(&self, _: Barrier) -> Result<()> {
        sys::file::uninterrupted(|| rustix::fs::fsync(&self.file))
            .map_err(|error| Error::io("flush", &self.path, error))
    }

    fn begin_sync(&self) {
        // The sync tells of an error.
        let _ = sys::file::begin_write_back(&self.file);
    }
}

impl BackingDir for Kernel {
    fn open(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        open_as(path, Access::ReadWrite)
    }

    fn look(&self, path: &Path) -> Result<Option<Arc<dyn BackingFile>>> {
        open_as(path, Access::Read)
    }

    fn exists(&self, path: &Path) -> Result<bool> {
        names::exists(path)
    }

    fn named(&self, path: &Path) -> Result<Named> {
        match sys::file::identity_of_name_itself(path) {
            Ok(Some((device, inode, birth))) => Ok(Named::File(Identity { device, inode, generation: 0, birth })),
            Ok(None) => Ok(Named::Other),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(Named::Nothing),
            Err(errno) => Err(Error::io("examine", path, errno)),
        }
    }

    fn candidates(&self, dir: &Path, inode: u64) -> Result<Vec<OsString>> {
        let is = |name: &OsString| {
            rustix::fs::lstat(dir.join(name)).is_ok_and(|found| {
                found.st_ino == inode && FileType::from_raw_mode(found.st_mode) == FileType::RegularFile
            })
        };
        let mut names = names::list(dir)?;
        names.retain(is);
        Ok(names)
    }

    fn names(&self, dir: &Path) -> Result<Vec<OsString>> {
        names::list(dir)
    }

    fn directory(&self, dir: &Path) -> Result<Option<Identity>> {
        match sys::file::identity_of_name(dir) {
            Ok((device, inode, birth)) => Ok(Some(Identity { device, inode, generation: 0, birth })),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(errno) => Err(Error::io("examine", dir, errno)),
        }
    }

    fn make(&self, path: &Path, like: &CreateAttrs) -> Result<Arc<dyn BackingFile>> {
        Ok(Arc::new(Descriptor::new(names::create_again(path, like)?, path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        names::rename_to_free(from, to)
    }

    fn remove(&self, path: &Path) -> Result<()> {
        names::unlink(path)
    }

    fn sync_dir(&self, _: Barrier, dir: &Path) -> Result<()> {
        match names::sync_dir(dir) {
            // A directory that is gone has no names to keep.
            Err(error) if is_absent(&error) => Ok(()),
            other => other,
        }
    }

    fn commit_log(
        &self,
        path: &Path,
        wanted: Option<CommitLog>,
        replays: bool,
    ) -> Result<Option<Box<dyn CommitRecords>>> {
        if wanted.is_none() && !companion::may_have_companions(path) {
            return Ok(None);
        }
        appender::records(logs(), path, wanted, replays)
    }

    fn awaits_consumers(&self, path: &Path) -> bool {
        appender::awaits(&logs(), path)
    }

    fn note_commit(&self, path: &Path, number: u64, time: u64) -> Result<()> {
        appender::note_commit(&logs(), path, number, time)
    }

    fn carry_commit_log(&self, from: &Path, to: &Path) -> Result<()> {
        appender::carry_renamed(&logs(), from, to)
    }

    fn remove_commit_log(&self, path: &Path, inode: u64) -> Result<()> {
        appender::remove_of(&logs(), path, inode)
    }
}

fn open_as(path: &Path, access: Access) -> Result<Option<Arc<dyn BackingFile>>> {
    match names::open_regular(path, access) {
        Ok(file) => Ok(Some(Arc::new(Descriptor::new(file, path)?))),
        Err(Error::NotAFile { .. }) => Ok(None),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_absent(error: &Error) -> bool {
    let errno = error.errno();
    errno == Errno::NOENT.raw_os_error() || errno == Errno::NOTDIR.raw_os_error()
}
