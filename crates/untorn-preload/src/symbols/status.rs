//! Lengths and times of files, and setting times.

use core::ffi::{CStr, c_char, c_int};

use libc::{stat as Status, statx as Extended, timespec, timeval, utimbuf};

use untorn_wire::StatusReply;

use super::calls;
use crate::layer::{attributes_were_set, boosts, fail, is_regular, managed, overlay, text};
use crate::raw;
use crate::real::real;
use crate::settings::settings;

const HERE: c_int = libc::AT_FDCWD;

/// A status as the program is to see it, if that is not what the kernel said, which was asked a moment ago. Where
/// nobody can say, it is.
pub(super) fn seen_of(status: &Status) -> Option<Status> {
    let reply = overlay(status).ok()??;
    let mut copy = *status;
    lay_over(&mut copy, &reply);
    Some(copy)
}

fn lay_over(status: &mut Status, reply: &StatusReply) {
    status.st_size = reply.len as i64;
    status.st_mtime = reply.seconds;
    status.st_mtime_nsec = reply.nanoseconds;
    if (status.st_ctime, status.st_ctime_nsec) < (reply.seconds, reply.nanoseconds) {
        (status.st_ctime, status.st_ctime_nsec) = (reply.seconds, reply.nanoseconds);
    }
}

/// Lays what the server knows over what the kernel said. The result of the call.
///
/// # Safety
/// If `call` returns 0, `status` was filled by the kernel.
unsafe fn covered(call: impl Fn() -> c_int, status: *mut Status) -> c_int {
    let result = call();
    if result != 0 || settings().is_none() || boosts() {
        return result;
    }
    // SAFETY: the kernel just filled it, so it is the program's memory.
    let mut copy = unsafe { *status };
    match overlay(&copy) {
        Ok(Some(reply)) => {
            lay_over(&mut copy, &reply);
            // SAFETY: as above.
            unsafe { *status = copy };
            result
        }
        // The server may have let go of it since the kernel was asked, which knew less then.
        Ok(None) if is_regular(&copy) => call(),
        Ok(None) => result,
        Err(errno) => fail(errno) as c_int,
    }
}

/// Whether the server may know more of a descriptor's file than the kernel. Where files are boosted the kernel knows
/// all.
fn may_differ(fd: c_int) -> bool {
    !boosts() && managed(fd)
}

/// The same for `statx`.
///
/// # Safety
/// If `call` returns 0, `status` was filled by the kernel.
unsafe fn covered_extended(call: impl Fn() -> c_int, status: *mut Extended) -> c_int {
    let result = call();
    if result != 0 || settings().is_none() || boosts() {
        return result;
    }
    // SAFETY: the kernel just filled it, so it is the program's memory.
    let mut copy = unsafe { *status };
    // SAFETY: zeros are a status.
    let mut file: Status = unsafe { core::mem::zeroed() };
    file.st_mode = copy.stx_mode.into();
    file.st_dev = libc::makedev(copy.stx_dev_major, copy.stx_dev_minor);
    file.st_ino = copy.stx_ino;
    match overlay(&file) {
        Ok(Some(reply)) => {
            copy.stx_size = reply.len;
            copy.stx_mtime.tv_sec = reply.seconds;
            copy.stx_mtime.tv_nsec = reply.nanoseconds as u32;
            if (copy.stx_ctime.tv_sec, copy.stx_ctime.tv_nsec) < (copy.stx_mtime.tv_sec, copy.stx_mtime.tv_nsec) {
                copy.stx_ctime = copy.stx_mtime;
            }
            // SAFETY: as above.
            unsafe { *status = copy };
            result
        }
        Ok(None) if is_regular(&file) => call(),
        Ok(None) => result,
        Err(errno) => fail(errno) as c_int,
    }
}

/// A call that sets times, mode or owner of a descriptor's file. Where it changes none of them there is nothing that
/// a sync would have to make durable, and a boosted file goes on as it was.
fn setting(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let before = if boosts() && managed(fd) { raw::fstat(fd).ok() } else { None };
    let result = call();
    let same = before.is_some_and(|before| raw::fstat(fd).is_ok_and(|after| attributes(&before) == attributes(&after)));
    if result == 0 && same { result } else { set(result, fd) }
}

/// What such a call may change, but for the time at which it did.
fn attributes(status: &Status) -> impl PartialEq {
    let times = [status.st_atime, status.st_atime_nsec, status.st_mtime, status.st_mtime_nsec];
    (status.st_mode, status.st_uid, status.st_gid, times)
}

/// After a call that set the times, or other attributes, of a descriptor's file.
pub(super) fn set(result: c_int, fd: c_int) -> c_int {
    if result == 0
        && managed(fd)
        && let Err(errno) = raw::fstat(fd).and_then(|status| attributes_were_set(&status))
    {
        return fail(errno) as c_int;
    }
    result
}

/// After a call that set the times of a path's file.
///
/// # Safety
/// `path` is null or a string that ends in a zero.
unsafe fn set_at(result: c_int, directory: c_int, path: *const c_char, flags: c_int) -> c_int {
    if result != 0 || settings().is_none() {
        return result;
    }
    // SAFETY: the caller's.
    let Some(path): Option<&CStr> = (unsafe { text(path) }) else { return set(result, directory) };
    let status = raw::stat_at(directory, path.as_ptr(), flags & (libc::AT_SYMLINK_NOFOLLOW | libc::AT_EMPTY_PATH));
    match status.and_then(|status| attributes_were_set(&status)) {
        Ok(()) => result,
        Err(errno) => fail(errno) as c_int,
    }
}

// SAFETY (of all below): the status was filled by the call that returned 0; the path is the program's, and ends in a
// zero.
calls! {
    [fstat fstat64](fd: c_int, status: *mut Status) -> c_int = Some({
        let call = || real!(fstat(fd: c_int, status: *mut Status) -> c_int);
        // SAFETY: see above.
        if may_differ(fd) { unsafe { covered(call, status) } } else { call() }
    });
    [stat stat64](path: *const c_char, status: *mut Status) -> c_int = Some({
        let call = || real!(stat(path: *const c_char, status: *mut Status) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [lstat lstat64](path: *const c_char, status: *mut Status) -> c_int = Some({
        let call = || real!(lstat(path: *const c_char, status: *mut Status) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [fstatat fstatat64](directory: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int = Some({
        let call = || real!(fstatat(directory: c_int, path: *const c_char, status: *mut Status, flags: c_int) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [__fxstat __fxstat64](version: c_int, fd: c_int, status: *mut Status) -> c_int = Some({
        let call = || real!(__fxstat(version: c_int, fd: c_int, status: *mut Status) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [__xstat __xstat64](version: c_int, path: *const c_char, status: *mut Status) -> c_int = Some({
        let call = || real!(__xstat(version: c_int, path: *const c_char, status: *mut Status) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [__lxstat __lxstat64](version: c_int, path: *const c_char, status: *mut Status) -> c_int = Some({
        let call = || real!(__lxstat(version: c_int, path: *const c_char, status: *mut Status) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [__fxstatat __fxstatat64](
        version: c_int, directory: c_int, path: *const c_char, status: *mut Status, flags: c_int
    ) -> c_int = Some({
        let call = || real!(__fxstatat(
            version: c_int, directory: c_int, path: *const c_char, status: *mut Status, flags: c_int
        ) -> c_int);
        // SAFETY: see above.
        unsafe { covered(call, status) }
    });
    [statx](
        directory: c_int, path: *const c_char, flags: c_int, mask: libc::c_uint, status: *mut Extended
    ) -> c_int = Some({
        let call = || real!(statx(
            directory: c_int, path: *const c_char, flags: c_int, mask: libc::c_uint, status: *mut Extended
        ) -> c_int);
        // SAFETY: see above.
        unsafe { covered_extended(call, status) }
    });
    [futimens](fd: c_int, times: *const timespec) -> c_int =
        Some(setting(fd, || real!(futimens(fd: c_int, times: *const timespec) -> c_int)));
    [futimes](fd: c_int, times: *const timeval) -> c_int =
        Some(setting(fd, || real!(futimes(fd: c_int, times: *const timeval) -> c_int)));
    [utimensat](directory: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int = {
        let result =
            real!(utimensat(directory: c_int, path: *const c_char, times: *const timespec, flags: c_int) -> c_int);
        // SAFETY: see above.
        Some(unsafe { set_at(result, directory, path, flags) })
    };
    [futimesat](directory: c_int, path: *const c_char, times: *const timeval) -> c_int = {
        let result = real!(futimesat(directory: c_int, path: *const c_char, times: *const timeval) -> c_int);
        // SAFETY: see above.
        Some(unsafe { set_at(result, directory, path, 0) })
    };
    [utimes](path: *const c_char, times: *const timeval) -> c_int = {
        let result = real!(utimes(path: *const c_char, times: *const timeval) -> c_int);
        // SAFETY: see above.
        Some(unsafe { set_at(result, HERE, path, 0) })
    };
    [lutimes](path: *const c_char, times: *const timeval) -> c_int = {
        let result = real!(lutimes(path: *const c_char, times: *const timeval) -> c_int);
        // SAFETY: see above.
        Some(unsafe { set_at(result, HERE, path, libc::AT_SYMLINK_NOFOLLOW) })
    };
    [utime](path: *const c_char, times: *const utimbuf) -> c_int = {
        let result = real!(utime(path: *const c_char, times: *const utimbuf) -> c_int);
        // SAFETY: see above.
        Some(unsafe { set_at(result, HERE, path, 0) })
    };
    // An fsync makes these durable too, which the log knows nothing of.
    [fchmod](fd: c_int, mode: libc::mode_t) -> c_int =
        boosts().then(|| setting(fd, || real!(fchmod(fd: c_int, mode: libc::mode_t) -> c_int)));
    [fchown](fd: c_int, user: libc::uid_t, group: libc::gid_t) -> c_int =
        boosts().then(|| setting(fd, || real!(fchown(fd: c_int, user: libc::uid_t, group: libc::gid_t) -> c_int)));
}
