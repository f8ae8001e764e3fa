//! Reading, writing, offsets, lengths, syncs.

use core::ffi::{c_int, c_void};

use libc::{iovec, off_t, size_t, ssize_t};
use untorn_wire::{
    Allocate, Commit, CommitAll, DirectorySynced, MOST, Position, Read, Seek, SetLength, SyncDirectory, Write,
};

use super::calls;
use crate::client::{Memory, ask, ask_with};
use crate::layer::{adopt, attributes_were_set, boosts, demote, demoted, managed, returned, served, text, was_closed};
use crate::raw::{self, word};
use crate::settings::{seen, settings};
use crate::{beside, known};

/// The most pieces that `readv` and `writev` take.
const MOST_PIECES: c_int = 1024;

fn piece(bytes: *const c_void, count: size_t) -> [iovec; 1] {
    [iovec { iov_base: bytes.cast_mut(), iov_len: count }]
}

/// Bytes of all pieces, as the kernel counts them.
fn total(pieces: &[iovec]) -> Result<usize, c_int> {
    let mut total = 0_usize;
    for piece in pieces {
        total = total.checked_add(piece.iov_len).filter(|total| isize::try_from(*total).is_ok()).ok_or(libc::EINVAL)?;
    }
    Ok(total.min(MOST as usize))
}

/// `offset` is the descriptor's own if it is negative.
fn position(offset: off_t) -> Position {
    u64::try_from(offset).map_or(Position::OWN, Position::at)
}

fn read_pieces(fd: c_int, pieces: &[iovec], offset: off_t, flags: c_int) -> Result<i64, c_int> {
    let total = total(pieces)?;
    let request = Read { position: position(offset), count: total as u64, flags };
    Ok(ask_with(&request, Some(fd), Memory::NONE, Memory::new(pieces, total))?.count as i64)
}

fn write_pieces(fd: c_int, pieces: &[iovec], offset: off_t, flags: c_int) -> Result<i64, c_int> {
    let total = total(pieces)?;
    let request = Write { position: position(offset), flags };
    Ok(ask_with(&request, Some(fd), Memory::new(pieces, total), Memory::NONE)?.count as i64)
}

/// Reads into memory of the program's at the descriptor's own offset, or at `offset`.
pub(super) fn read_at(fd: c_int, into: *mut c_void, count: size_t, offset: off_t) -> Result<i64, c_int> {
    read_pieces(fd, &piece(into, count), offset, 0)
}

/// Writes memory of the program's.
pub(super) fn write_at(fd: c_int, from: *const c_void, count: size_t, offset: off_t) -> Result<i64, c_int> {
    write_pieces(fd, &piece(from, count), offset, 0)
}

/// The pieces of `readv` and `writev`.
///
/// # Safety
/// `pieces` points to `count` of them.
unsafe fn pieces<'a>(pieces: *const iovec, count: c_int) -> Result<&'a [iovec], c_int> {
    match count {
        0 => Ok(&[]),
        1..=MOST_PIECES if pieces.is_null() => Err(libc::EFAULT),
        // SAFETY: the caller's.
        1..=MOST_PIECES => Ok(unsafe { core::slice::from_raw_parts(pieces, count as usize) }),
        _ => Err(libc::EINVAL),
    }
}

/// An offset that is given explicitly.
pub(super) fn explicit(offset: off_t) -> Result<off_t, c_int> {
    if offset < 0 { Err(libc::EINVAL) } else { Ok(offset) }
}

/// `preadv2` and `pwritev2` take -1 for the descriptor's own.
fn explicit_or_own(offset: off_t) -> Result<off_t, c_int> {
    if offset < -1 { Err(libc::EINVAL) } else { Ok(offset) }
}

fn size(result: Result<i64, c_int>) -> Option<ssize_t> {
    Some(served(result)? as ssize_t)
}

fn number(result: Result<i64, c_int>) -> Option<c_int> {
    Some(served(result)? as c_int)
}

pub(super) fn set_length(fd: c_int, len: off_t) -> Result<i64, c_int> {
    let len = u64::try_from(len).map_err(|_| libc::EINVAL)?;
    ask(&SetLength { len }, Some(fd)).map(|_| 0)
}

/// `truncate`, by a descriptor of its own; `None` if the file is not managed.
fn truncate_path(path: *const libc::c_char, len: off_t) -> Option<c_int> {
    // Where files are boosted the kernel waits for them by itself.
    settings().filter(|settings| !settings.boost)?;
    let flags = libc::O_WRONLY | libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: the kernel checks the program's path.
    let opened = unsafe { raw::result(libc::SYS_openat, [word(libc::AT_FDCWD), path as usize, word(flags), 0, 0, 0]) };
    let fd = opened.ok()? as c_int;
    let status = raw::fstat(fd);
    let outcome = match adopt(fd, false, false) {
        Ok(false) => None,
        Ok(true) => Some(set_length(fd, len)),
        Err(errno) => Some(Err(errno)),
    };
    let _ = raw::close(fd);
    let outcome = outcome?;
    let closed = status.and_then(|status| was_closed(&status));
    number(outcome.and_then(|value| closed.map(|()| value)))
}

pub(super) fn allocate(fd: c_int, mode: c_int, offset: off_t, len: off_t) -> Result<i64, c_int> {
    let (Ok(offset), Ok(len @ 1..)) = (u64::try_from(offset), u64::try_from(len)) else { return Err(libc::EINVAL) };
    ask(&Allocate { offset, len, mode }, Some(fd)).map(|_| 0)
}

/// Reserves room for a boosted file (`FALLOC_FL_KEEP_SIZE`). Neither its bytes nor its length change, so a replay has
/// nothing to do with it; it is an attribute of the file, which its next sync makes durable.
fn reserve(fd: c_int, offset: off_t, len: off_t) -> Result<i64, c_int> {
    let arguments = [word(fd), word(libc::FALLOC_FL_KEEP_SIZE), offset as usize, len as usize, 0, 0];
    // SAFETY: takes numbers.
    unsafe { raw::result(libc::SYS_fallocate, arguments) }?;
    attributes_were_set(&raw::fstat(fd)?)?;
    Ok(0)
}

pub(super) fn seek(fd: c_int, offset: off_t, whence: c_int) -> Result<i64, c_int> {
    Ok(ask(&Seek { offset, whence }, Some(fd))?.offset)
}

pub(super) fn commit(fd: c_int) -> Result<i64, c_int> {
    ask(&Commit {}, Some(fd)).map(|_| 0)
}

/// Syncs a directory, if it has to be: the server knows. `None` if it is for the kernel: it is none, or this process
/// has nothing to do with a log.
fn sync_directory(fd: c_int) -> Option<Result<i64, c_int>> {
    if !boosts() || !seen() || !raw::is_directory(fd) {
        return None;
    }
    let Ok(reply) = ask(&SyncDirectory {}, Some(fd)) else { return None };
    if reply.durable {
        return Some(Ok(0));
    }
    let synced = raw::fsync(fd);
    if reply.number != 0 {
        // If nobody hears it, the next one is made too.
        let _ = ask(&DirectorySynced { number: reply.number, done: synced.is_ok() }, None);
    }
    Some(synced.map(|()| 0))
}

fn commit_all() -> Result<i64, c_int> {
    match settings() {
        Some(_) => ask(&CommitAll {}, None).map(|_| 0),
        None => Ok(0),
    }
}

/// A managed descriptor's result; `None` goes on to the C library. Where files are boosted the kernel has all that
/// was written, so what only reads is the kernel's.
macro_rules! if_read {
    ($fd:ident, $served:expr) => {
        if !boosts() && managed($fd) { $served } else { None }
    };
}

/// A managed descriptor's result; `None` goes on to the C library.
macro_rules! if_managed {
    ($fd:ident, $served:expr) => {
        if managed($fd) { $served } else { None }
    };
}

/// What this process appended to the log by itself, or a managed descriptor's result. `$offset` is an explicit one,
/// or `None`.
macro_rules! if_appended {
    ($fd:ident, $from:ident, $count:ident, $offset:expr, $served:expr) => {
        if let Some(written) = appended($fd, $from, $count, $offset) {
            Some(written)
        } else if managed($fd) {
            $served
        } else {
            None
        }
    };
}

/// The same of a vector, and only without flags.
macro_rules! if_gathered {
    ($fd:ident, $vector:ident, $count:ident, $offset:expr, $flags:expr, $served:expr) => {
        if let Some(written) = gathered($fd, $vector, $count, $offset, $flags) {
            Some(written)
        } else if managed($fd) {
            $served
        } else {
            None
        }
    };
}

fn gathered(fd: c_int, vector: *const iovec, count: c_int, offset: Option<off_t>, flags: c_int) -> Option<ssize_t> {
    if !known::is_known(fd) || flags != 0 {
        return None;
    }
    let at = match offset {
        Some(offset) => Some(u64::try_from(offset).ok()?),
        None => None,
    };
    Some(returned(beside::write_vector(fd, vector, count, at)?) as ssize_t)
}

/// `ftruncate` by this process itself.
fn cut(fd: c_int, len: off_t) -> Option<c_int> {
    if !known::is_known(fd) {
        return None;
    }
    Some(returned(beside::set_length(fd, u64::try_from(len).ok()?)?) as c_int)
}

#[inline]
fn appended(fd: c_int, from: *const c_void, count: size_t, offset: Option<off_t>) -> Option<ssize_t> {
    if !known::is_known(fd) {
        return None;
    }
    let at = match offset {
        Some(offset) => Some(u64::try_from(offset).ok()?),
        None => None,
    };
    Some(returned(beside::write(fd, from, count, at)?) as ssize_t)
}

calls! {
    [read __read](fd: c_int, into: *mut c_void, count: size_t) -> ssize_t =
        if_read!(fd, size(read_at(fd, into, count, -1)));
    [__read_chk](fd: c_int, into: *mut c_void, count: size_t, room: size_t) -> ssize_t =
        if_read!(fd, if count > room { None } else { size(read_at(fd, into, count, -1)) });
    [pread pread64 __pread64](fd: c_int, into: *mut c_void, count: size_t, offset: off_t) -> ssize_t =
        if_read!(fd, size(explicit(offset).and_then(|offset| read_at(fd, into, count, offset))));
    [__pread_chk __pread64_chk](fd: c_int, into: *mut c_void, count: size_t, offset: off_t, room: size_t) -> ssize_t =
        if_read!(fd, if count > room { None } else {
            size(explicit(offset).and_then(|offset| read_at(fd, into, count, offset)))
        });
    [write __write](fd: c_int, from: *const c_void, count: size_t) -> ssize_t =
        if_appended!(fd, from, count, None, size(write_at(fd, from, count, -1)));
    [pwrite pwrite64 __pwrite64](fd: c_int, from: *const c_void, count: size_t, offset: off_t) -> ssize_t =
        if_appended!(fd, from, count, Some(offset), size(explicit(offset).and_then(|offset| write_at(fd, from, count, offset))));
    [readv](fd: c_int, vector: *const iovec, count: c_int) -> ssize_t =
        // SAFETY: the program's vector, of that length.
        if_read!(fd, size((unsafe { pieces(vector, count) }).and_then(|all| read_pieces(fd, all, -1, 0))));
    [writev](fd: c_int, vector: *const iovec, count: c_int) -> ssize_t =
        if_gathered!(fd, vector, count, None, 0,
            // SAFETY: the program's vector, of that length.
            size((unsafe { pieces(vector, count) }).and_then(|all| write_pieces(fd, all, -1, 0))));
    [preadv preadv64](fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t =
        // SAFETY: the program's vector, of that length.
        if_read!(fd, size((unsafe { pieces(vector, count) })
            .and_then(|all| read_pieces(fd, all, explicit(offset)?, 0))));
    [pwritev pwritev64](fd: c_int, vector: *const iovec, count: c_int, offset: off_t) -> ssize_t =
        if_gathered!(fd, vector, count, Some(offset), 0,
            // SAFETY: the program's vector, of that length.
            size((unsafe { pieces(vector, count) })
                .and_then(|all| write_pieces(fd, all, explicit(offset)?, 0))));
    [preadv2 preadv64v2](fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        // SAFETY: the program's vector, of that length.
        if_read!(fd, size((unsafe { pieces(vector, count) })
            .and_then(|all| read_pieces(fd, all, explicit_or_own(offset)?, flags))));
    [pwritev2 pwritev64v2](fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t =
        if_gathered!(fd, vector, count, Some(offset).filter(|offset| *offset != -1), flags,
            // SAFETY: the program's vector, of that length.
            size((unsafe { pieces(vector, count) })
                .and_then(|all| write_pieces(fd, all, explicit_or_own(offset)?, flags))));
    [lseek lseek64 __lseek](fd: c_int, offset: off_t, whence: c_int) -> off_t =
        if_read!(fd, served(seek(fd, offset, whence)));
    // Only old programs find it in the C library.
    [llseek](fd: c_int, offset: off_t, whence: c_int) -> off_t =
        // SAFETY: takes numbers.
        Some(unsafe { lseek(fd, offset, whence) });
    [ftruncate ftruncate64](fd: c_int, len: off_t) -> c_int =
        if let Some(done) = cut(fd, len) { Some(done) } else { if_managed!(fd, number(set_length(fd, len))) };
    [truncate truncate64](path: *const libc::c_char, len: off_t) -> c_int =
        // SAFETY: the program's path.
        if (unsafe { text(path) }).is_some() { truncate_path(path, len) } else { None };
    [fallocate fallocate64](fd: c_int, mode: c_int, offset: off_t, len: off_t) -> c_int =
        if_managed!(fd, if boosts() && mode == libc::FALLOC_FL_KEEP_SIZE {
            number(reserve(fd, offset, len))
        } else if boosts() {
            demoted(c"fallocate", &[fd]).map(|failed| failed as c_int)
        } else {
            number(allocate(fd, mode, offset, len))
        });
    [posix_fallocate posix_fallocate64](fd: c_int, offset: off_t, len: off_t) -> c_int =
        if_managed!(fd, if boosts() {
            demote(c"posix_fallocate", fd).err()
        } else {
            Some(allocate(fd, 0, offset, len).err().unwrap_or(0))
        });
    [fsync fdatasync](fd: c_int) -> c_int =
        if known::is_known(fd) && beside::sync(fd) {
            Some(0)
        } else if managed(fd) {
            number(commit(fd))
        } else {
            sync_directory(fd).and_then(number)
        };
    // A hint: it promises nothing, and so commits nothing.
    [sync_file_range](fd: c_int, offset: off_t, len: off_t, flags: libc::c_uint) -> c_int =
        if_read!(fd, number(if offset < 0 || len < 0 || flags > 7 { Err(libc::EINVAL) } else { Ok(0) }));
    // Also by a process that has no managed file, as `sync -f` is one.
    [syncfs](fd: c_int) -> c_int = if commit_all().is_err() { number(Err(libc::EIO)) } else { None };
}

/// `sync`: commits all managed files, then goes on to the kernel.
///
/// # Safety
/// None is needed.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sync() {
    // It has no way to tell of a failure; the next sync of the file does.
    let _ = commit_all();
    // SAFETY: takes nothing.
    let _ = unsafe { raw::call(libc::SYS_sync, [0; 6]) };
}
