//! Opening files.

use core::ffi::{c_char, c_int, c_void};

use libc::mode_t;
use untorn_wire::O_ATOMIC;

use super::{calls, stdio};
use crate::layer::{adopt, boosts, close_refused, demote_file, fail, is_chosen, is_regular, refuse, reopened, text};
use crate::raw;
use crate::real::real;
use crate::settings::{may_be_managed, settings};

/// What distinguishes `O_TMPFILE` from `O_DIRECTORY`.
const TMPFILE: c_int = libc::O_TMPFILE & !libc::O_DIRECTORY;

fn open_at(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let atomic = flags & O_ATOMIC != 0;
    let flags = flags & !O_ATOMIC;
    let passes = settings().is_none() || flags & libc::O_PATH != 0;
    if passes || flags & TMPFILE == 0 && flags & libc::O_DIRECTORY != 0 {
        return real!(openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int);
    }
    if boosts() {
        return open_boosted(directory, path, flags, mode);
    }
    match open_managed(directory, path, flags, mode, atomic) {
        // Bytes were lost of those who held it, and perhaps nobody does any more but who has just tried to open it.
        // One that was made by that is there now.
        Err(libc::EIO) if flags & libc::O_EXCL == 0 => open_managed(directory, path, flags, mode, atomic),
        opened => opened,
    }
    .unwrap_or_else(|errno| fail(errno) as c_int)
}

/// Opens a file where files are not boosted.
fn open_managed(
    directory: c_int,
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    atomic: bool,
) -> Result<c_int, c_int> {
    let temporary = flags & TMPFILE != 0;
    let truncates = flags & libc::O_TRUNC != 0 && !temporary;
    // Not truncated by the kernel: that is part of the epoch.
    let without = if truncates { flags & !libc::O_TRUNC } else { flags };
    let fd = real!(openat(directory: c_int, path: *const c_char, without: c_int, mode: mode_t) -> c_int);
    if fd < 0 {
        // SAFETY: the address is this thread's own.
        return Err(unsafe { *raw::errno() });
    }
    let outcome = if temporary { temporary_file(fd, atomic, flags) } else { adopt(fd, atomic, truncates) };
    let outcome = match outcome {
        Ok(false) if truncates => truncate_plain(fd, directory, path, flags),
        Ok(_) => Ok(fd),
        Err(errno) => Err(errno),
    };
    match outcome {
        Ok(fd) => stdio::descriptor_changed(fd),
        Err(_) => close_refused(fd),
    }
    outcome
}

/// Opens a file where files are boosted: as the kernel does it. It waits for the server if that has the file.
fn open_boosted(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int {
    let open = || real!(openat(directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int);
    if let Some(fd) = opened_again(directory, path, flags) {
        return fd;
    }
    let mut fd = open();
    while fd < 0 {
        // SAFETY: the address is this thread's own.
        let interrupted = match unsafe { *raw::errno() } {
            // It waits no longer than until a signal, though the program knows of no reason to wait.
            libc::EINTR => true,
            // It does not wait at all then.
            libc::EWOULDBLOCK if flags & libc::O_NONBLOCK != 0 => false,
            _ => break,
        };
        // SAFETY: the kernel took the path for one.
        let status = unsafe { text(path) }.and_then(|path| raw::stat_at(directory, path.as_ptr(), 0).ok());
        let Some(status) = status.filter(is_regular) else { break };
        if let Err(errno) = demote_file(c"open", &status) {
            return fail(errno) as c_int;
        }
        fd = open();
        if !interrupted {
            // It is somebody else's lease.
            break;
        }
    }
    if fd < 0 || flags & TMPFILE != 0 {
        return fd;
    }
    match adopt(fd, false, false) {
        Ok(_) => fd,
        Err(errno) => {
            close_refused(fd);
            fail(errno) as c_int
        }
    }
}

/// Opens a file that the server has still open.
fn opened_again(directory: c_int, path: *const c_char, flags: c_int) -> Option<c_int> {
    let others = libc::O_EXCL | libc::O_TRUNC | TMPFILE | libc::O_PATH | libc::O_DIRECTORY;
    if flags & libc::O_ACCMODE == libc::O_RDONLY || flags & others != 0 {
        return None;
    }
    let follow = if flags & libc::O_NOFOLLOW != 0 { libc::AT_SYMLINK_NOFOLLOW } else { 0 };
    let status = raw::stat_at(directory, path, follow).ok().filter(is_regular)?;
    if !may_be_managed(status.st_dev, status.st_ino) {
        return None;
    }
    let rights = if flags & libc::O_ACCMODE == libc::O_RDWR { libc::R_OK | libc::W_OK } else { libc::W_OK };
    if !raw::may(directory, path, rights, follow) {
        return None;
    }
    reopened(&status, flags)
}

/// A file without a name can be given one later, amid an epoch; one that cannot is gone after a crash.
fn temporary_file(fd: c_int, atomic: bool, flags: c_int) -> Result<bool, c_int> {
    let chosen = atomic || is_chosen(fd);
    if chosen && flags & libc::O_EXCL == 0 {
        return Err(refuse(c"open", c"O_TMPFILE without O_EXCL: the file may get a name later", fd));
    }
    Ok(true)
}

/// Carries out the `O_TRUNC` that was kept from the kernel, of a file that is not managed.
fn truncate_plain(fd: c_int, directory: c_int, path: *const c_char, flags: c_int) -> Result<c_int, c_int> {
    // It means something for regular files only.
    if !raw::fstat(fd).is_ok_and(|status| is_regular(&status)) {
        return Ok(fd);
    }
    if flags & libc::O_ACCMODE != libc::O_RDONLY {
        return raw::truncate(fd, 0).map(|()| fd);
    }
    let again = flags & !(libc::O_CREAT | libc::O_EXCL);
    // SAFETY: the program's path, as before; the kernel checks it.
    let opened =
        unsafe { raw::result(libc::SYS_openat, [raw::word(directory), path as usize, raw::word(again), 0, 0, 0]) };
    let opened = opened? as c_int;
    let _ = raw::close(fd);
    Ok(opened)
}

/// A descriptor that the C library opened by itself.
fn adopted(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    match adopt(fd, false, false) {
        Ok(_) => {
            stdio::descriptor_changed(fd);
            fd
        }
        Err(errno) => {
            close_refused(fd);
            fail(errno) as c_int
        }
    }
}

const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
const HERE: c_int = libc::AT_FDCWD;

calls! {
    [open open64 __open __open64](path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        Some(open_at(HERE, path, flags, mode));
    [openat openat64](directory: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int =
        Some(open_at(directory, path, flags, mode));
    [creat creat64](path: *const c_char, mode: mode_t) -> c_int =
        Some(open_at(HERE, path, CREAT, mode));
    // They are called where no file is created, so without a mode.
    [__open_2 __open64_2](path: *const c_char, flags: c_int) -> c_int =
        if flags & (libc::O_CREAT | TMPFILE) == 0 { Some(open_at(HERE, path, flags, 0)) } else { None };
    [__openat_2 __openat64_2](directory: c_int, path: *const c_char, flags: c_int) -> c_int =
        if flags & (libc::O_CREAT | TMPFILE) == 0 { Some(open_at(directory, path, flags, 0)) } else { None };
    [open_by_handle_at](mount: c_int, handle: *mut c_void, flags: c_int) -> c_int =
        Some(adopted(real!(open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int) -> c_int)));
    [mkstemp mkstemp64](template: *mut c_char) -> c_int =
        Some(adopted(real!(mkstemp(template: *mut c_char) -> c_int)));
    [mkostemp mkostemp64](template: *mut c_char, flags: c_int) -> c_int =
        Some(adopted(real!(mkostemp(template: *mut c_char, flags: c_int) -> c_int)));
    [mkstemps mkstemps64](template: *mut c_char, suffix: c_int) -> c_int =
        Some(adopted(real!(mkstemps(template: *mut c_char, suffix: c_int) -> c_int)));
    [mkostemps mkostemps64](template: *mut c_char, suffix: c_int, flags: c_int) -> c_int =
        Some(adopted(real!(mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int)));
}

/// The descriptor of a file that `fopen` is to open, if it is to be managed; `None` for the C library to open.
pub(super) fn open_for_stream(path: *const c_char, flags: c_int) -> Option<Result<c_int, c_int>> {
    // Where files are boosted the C library's streams are the kernel's.
    settings().filter(|settings| !settings.boost)?;
    let fd = open_at(HERE, path, flags, 0o666);
    if fd < 0 {
        // SAFETY: the address is this thread's own.
        return Some(Err(unsafe { *raw::errno() }));
    }
    Some(Ok(fd))
}
