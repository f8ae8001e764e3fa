//! From a file descriptor to the path untorn opens.

use std::ffi::c_int;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::PathBuf;

use crate::errors::{Failure, Result};

/// The identity of a file: device and inode.
pub(crate) type FileId = (u64, u64);

/// The file that a descriptor of a regular file refers to.
pub(crate) struct Described {
    pub(crate) path: PathBuf,
    pub(crate) id: FileId,
    /// Bytes of it now.
    pub(crate) len: u64,
    pub(crate) readable: bool,
    pub(crate) writable: bool,
}

/// The file behind `fd`. The kernel knows the path it has now, even after a rename.
pub(crate) fn describe(fd: c_int) -> Result<Described> {
    let what = || format!("file descriptor {fd}");
    // SAFETY: F_GETFL only reads the descriptor's flags and takes any number.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    if flags == -1 {
        return Err(Failure::system(&what(), &io::Error::last_os_error()));
    }
    let link = format!("/proc/self/fd/{fd}");
    let open = fs::metadata(&link).map_err(|error| Failure::system(&what(), &error))?;
    if !open.is_file() {
        let kind = open.file_type();
        let found = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a pipe",
            () if kind.is_socket() => "a socket",
            () if kind.is_char_device() || kind.is_block_device() => "a device",
            () => "not a file",
        };
        let message = format!("{} is {found}; only a regular file can be mapped", what());
        return Err(Failure::new(-i64::from(libc::ENODEV), message));
    }
    let path = fs::read_link(&link).map_err(|error| Failure::system(&what(), &error))?;
    let id = (open.dev(), open.ino());
    // For a removed file the link says "name (deleted)", which may even be the name of another file.
    match fs::metadata(&path) {
        Ok(named) if (named.dev(), named.ino()) == id => {}
        _ => {
            let message = format!(
                "{} has no path any more ({}); untorn finds a file's sidecar by its path after a crash, so the file \
                 needs one",
                what(),
                path.display()
            );
            return Err(Failure::new(-i64::from(libc::ENOENT), message));
        }
    }
    let access = flags & libc::O_ACCMODE;
    // A descriptor opened with O_PATH names a file and may neither read nor write it.
    let data = flags & libc::O_PATH == 0;
    let len = open.len();
    Ok(Described {
        path,
        id,
        len,
        readable: data && access != libc::O_WRONLY,
        writable: data && access != libc::O_RDONLY,
    })
}
