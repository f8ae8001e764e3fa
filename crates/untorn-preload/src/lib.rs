//! `libuntorn_preload.so`: has `sync` and `syncfs` commit the files of untorn's mounts.
//!
//! The kernel sends no request to a FUSE file system for these two calls, so on a mount of untorn they would commit
//! nothing. A program that relies on them is started with this library in `LD_PRELOAD`. Everything else that a program
//! does reaches a mount without it.
//!
//! ```text
//!  sync ─► the kernel's: dirty pages become WRITE requests ─► user.untorn.sync asked of each mount ─► commits, flushed
//! ```
//!
//! # Invariants
//!
//! 1. The kernel's own call comes first, so the server has every dirty page before it commits.
//! 2. Outside of untorn's mounts the question changes nothing: the attribute does not exist there.
//! 3. `syncfs` fails with the server's error. `sync` cannot fail, as without this library.
//! 4. The library calls the kernel itself, so that it never calls itself.

use std::ffi::{OsStr, c_int};
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use rustix::io::Errno;

/// The server commits all files of its mount before it answers the question for this attribute.
const SYNC: &str = "user.untorn.sync";

/// Room for the answer.
const ROOM: usize = 16;

/// `sync(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn sync() {
    rustix::fs::sync();
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    for mountpoint in table.split(|byte| *byte == b'\n').filter_map(mountpoint) {
        // The call cannot tell of a failure; the files' own syncs do.
        let _ = rustix::fs::getxattr(mountpoint, SYNC, &mut [0; ROOM][..]);
    }
}

/// `syncfs(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn syncfs(descriptor: c_int) -> c_int {
    match commit(descriptor) {
        Ok(()) => 0,
        Err(errno) => {
            // SAFETY: the C library's function has no preconditions, and returns this thread's own variable.
            let place = unsafe { libc::__errno_location() };
            // SAFETY: the place is valid for writes as long as the thread lives, and no other thread uses it.
            unsafe { *place = errno.raw_os_error() };
            -1
        }
    }
}

fn commit(descriptor: c_int) -> Result<(), Errno> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is not -1. The caller owns it and keeps it open during its call; a closed one is EBADF.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    rustix::fs::syncfs(file)?;
    match rustix::fs::fgetxattr(file, SYNC, &mut [0; ROOM][..]) {
        // The server refuses, or is gone.
        Err(errno @ (Errno::IO | Errno::NOSPC | Errno::DQUOT | Errno::NOTCONN)) => Err(errno),
        // Elsewhere the attribute does not exist, or none do.
        _ => Ok(()),
    }
}

/// The mountpoint of a line of the table of mounts, if it is a mount of untorn:
/// `36 35 0:40 / /mnt rw,noatime master:1 - fuse.untorn untorn rw`.
fn mountpoint(line: &[u8]) -> Option<PathBuf> {
    let mut fields = line.split(|byte| *byte == b' ');
    let path = fields.nth(4)?;
    let file_system = fields.skip_while(|field| *field != b"-").nth(1)?;
    (OsStr::from_bytes(file_system) == "fuse.untorn").then(|| unescaped(path))
}

/// The table writes space, tab, newline and backslash as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = (first == b'\\').then(|| after.get(..3)).flatten();
        let octal = octal.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(octal.unwrap_or(first));
        rest = if octal.is_some() { after.get(3..).unwrap_or_default() } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}
