//! Descriptors that come, go and are copied.

use core::ffi::{c_int, c_uint};

use libc::stat;
use untorn_wire::MARK;

use super::{calls, stdio};
use crate::client;
use crate::layer::{about_to_close, boosts, demoted, fail, length, managed, refuse, was_closed};
use crate::real::real;
use crate::settings::{seen, settings};
use crate::{busy, known, raw};

/// More descriptors than this are not looked at one by one when all from one on are closed.
const MOST: c_int = 65_536;

/// The first and the last of the commands of `fcntl` that are about hints (linux/fcntl.h).
const F_GET_RW_HINT: c_int = 1035;
const F_SET_FILE_RW_HINT: c_int = 1038;

/// The result of a call that has closed a descriptor of a managed file.
fn closed(result: c_int, file: Option<stat>) -> c_int {
    match file.filter(|_| result >= 0).map(|file| was_closed(&file)) {
        Some(Err(errno)) => fail(errno) as c_int,
        _ => result,
    }
}

fn close_one(fd: c_int) -> c_int {
    if client::is_own(fd) {
        // It is none of the program's.
        return fail(libc::EBADF) as c_int;
    }
    let file = about_to_close(fd);
    closed(taking_away(fd, || real!(close(fd: c_int) -> c_int)), file)
}

/// What `dup2` and `dup3` would close.
fn taken(old: c_int, new: c_int) -> Option<stat> {
    if settings().is_none() || old == new {
        return None;
    }
    client::give_up(new);
    about_to_close(new)
}

/// Makes a call that gives a descriptor's number to another file, or to none.
fn taking_away(fd: c_int, call: impl FnOnce() -> c_int) -> c_int {
    let is_known = known::is_known(fd);
    known::forget(fd);
    // Of any other this process writes nothing by itself.
    if is_known { busy::while_nobody_writes(fd, call) } else { call() }
}

/// The same of `dup2` and `dup3`.
fn replacing(old: c_int, new: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if old == new { call() } else { taking_away(new, call) }
}

/// Before a descriptor gets a number that the program chose: a stream of the C library may have that number, and goes
/// past us. What the call fails with, if what was written could not be brought to the file.
fn replaced(old: c_int, new: c_int) -> Option<c_int> {
    if old == new || !boosts() {
        return None;
    }
    demoted(c"dup2", &[old]).map(|failed| failed as c_int)
}

/// After a descriptor was copied to the lowest free number: one of the C library's own streams may have it. The
/// result of the call.
fn copied(call: &core::ffi::CStr, old: c_int, copy: c_int) -> c_int {
    if known::is_known(old) {
        known::note(copy);
    }
    if !(0..=libc::STDERR_FILENO).contains(&copy) {
        return copy;
    }
    match demoted(call, &[copy]) {
        Some(failed) => {
            let _ = raw::close(copy);
            failed as c_int
        }
        None => copy,
    }
}

/// The flags of a boosted descriptor; `None` for any other. The kernel shows `O_ASYNC` of a description with a lease,
/// which the program knows nothing of.
fn flags_as_opened(fd: c_int) -> Option<c_int> {
    if !managed(fd) {
        return None;
    }
    Some(match raw::fcntl(fd, libc::F_GETFL, 0) {
        Ok(flags) => flags & !libc::O_ASYNC,
        Err(errno) => fail(errno) as c_int,
    })
}

/// A lock whose range is counted from the end of a managed file. The kernel's own length may be another, and changes
/// with a commit: so it is told the place itself. `None` for any other lock.
fn locked_from_end(fd: c_int, command: c_int, argument: usize) -> Option<c_int> {
    let last = argument.wrapping_add(size_of::<libc::flock>() - size_of::<u64>());
    if !raw::is_readable(argument) || !raw::is_readable(last) {
        // The kernel says so.
        return None;
    }
    let lock = argument as *mut libc::flock;
    // SAFETY: the program's lock, whose first and last bytes are there.
    let asked = unsafe { lock.read_unaligned() };
    if c_int::from(asked.l_whence) != libc::SEEK_END {
        return None;
    }
    let start = length(fd).and_then(|len| len.checked_add(asked.l_start).ok_or(libc::EOVERFLOW));
    let mut told = match start {
        Ok(start) => libc::flock { l_whence: libc::SEEK_SET as _, l_start: start, ..asked },
        Err(errno) => return Some(fail(errno) as c_int),
    };
    let place = (&raw mut told) as usize;
    let result = real!(fcntl(fd: c_int, command: c_int, place: usize) -> c_int);
    if result == 0 && matches!(command, libc::F_GETLK | libc::F_OFD_GETLK) {
        // Of none that is in the way the kernel says nothing else.
        let none = c_int::from(told.l_type) == libc::F_UNLCK;
        let found = if none { libc::flock { l_type: told.l_type, ..asked } } else { told };
        // SAFETY: the program's lock, which is there for the answer.
        unsafe { lock.write_unaligned(found) };
    }
    Some(result)
}

fn duplicated(result: c_int, file: Option<stat>) -> c_int {
    if result >= 0 {
        stdio::descriptor_changed(result);
    }
    closed(result, file)
}

/// Closes a range, around our own descriptors.
fn close_from(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    if flags != 0 || settings().is_none() {
        return real!(close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int);
    }
    if first > last {
        return fail(libc::EINVAL) as c_int;
    }
    if seen() {
        // One by one, since each may be the last of a managed file.
        let end = c_int::try_from(last).unwrap_or(c_int::MAX).min(MOST);
        for fd in c_int::try_from(first).unwrap_or(c_int::MAX)..=end {
            if managed(fd) {
                let _ = close_one(fd);
            }
        }
    }
    let mut from = first;
    loop {
        // Our lowest one in what is left.
        let kept =
            client::own().filter_map(|fd| c_uint::try_from(fd).ok()).filter(|fd| (from..=last).contains(fd)).min();
        let to = kept.map_or(last, |kept| kept.wrapping_sub(1));
        if kept != Some(from) {
            let result = real!(close_range(from: c_uint, to: c_uint, flags: c_int) -> c_int);
            if result < 0 {
                return result;
            }
        }
        match kept.and_then(|kept| kept.checked_add(1)).filter(|next| *next <= last) {
            Some(next) => from = next,
            None => return 0,
        }
    }
}

calls! {
    [close __close](fd: c_int) -> c_int = if settings().is_some() { Some(close_one(fd)) } else { None };
    [close_range](first: c_uint, last: c_uint, flags: c_int) -> c_int = Some(close_from(first, last, flags));
    [flock](fd: c_int, operation: c_int) -> c_int =
        if boosts() { demoted(c"flock", &[fd]).map(|failed| failed as c_int) } else { None };
    [dup](fd: c_int) -> c_int = if boosts() {
        Some(copied(c"dup", fd, real!(dup(fd: c_int) -> c_int)))
    } else if managed(fd) {
        let result = real!(dup(fd: c_int) -> c_int);
        stdio::descriptor_changed(result);
        Some(result)
    } else {
        None
    };
    [dup2 __dup2](old: c_int, new: c_int) -> c_int = 'call: {
        if let Some(failed) = replaced(old, new) {
            break 'call Some(failed);
        }
        let file = taken(old, new);
        Some(duplicated(replacing(old, new, || real!(dup2(old: c_int, new: c_int) -> c_int)), file))
    };
    [dup3](old: c_int, new: c_int, flags: c_int) -> c_int = 'call: {
        if let Some(failed) = replaced(old, new) {
            break 'call Some(failed);
        }
        let file = taken(old, new);
        let copied = replacing(old, new, || real!(dup3(old: c_int, new: c_int, flags: c_int) -> c_int));
        Some(duplicated(copied, file))
    };
    [fcntl fcntl64 __fcntl](fd: c_int, command: c_int, argument: usize) -> c_int = match command {
        libc::F_GETFL if boosts() => flags_as_opened(fd),
        // None of these has to do with bytes, with what the mark is made of, or with a lock that is the
        // description's, which this process's end would not end while the server has it.
        libc::F_GETFD | libc::F_SETFD | libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW
            if boosts() => None,
        // How long what is written will live, in the program's opinion: of the inode, or of the file.
        F_GET_RW_HINT..=F_SET_FILE_RW_HINT if boosts() => None,
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if boosts() =>
            Some(copied(c"fcntl", fd, real!(fcntl(fd: c_int, command: c_int, argument: usize) -> c_int))),
        _ if boosts() => demoted(c"fcntl", &[fd]).map(|failed| failed as c_int),
        // The signal of a managed descriptor is our mark, and no other may have it.
        raw::GETSIG | raw::SETSIG if managed(fd) => Some(0),
        libc::F_GETLK | libc::F_SETLK | libc::F_SETLKW | libc::F_OFD_GETLK | libc::F_OFD_SETLK | libc::F_OFD_SETLKW
            if managed(fd) => locked_from_end(fd, command, argument),
        raw::SETSIG if argument as c_int == MARK && settings().is_some() => {
            Some(fail(refuse(c"fcntl", c"untorn marks managed descriptors with this signal", fd)) as c_int)
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC if managed(fd) => {
            let result = real!(fcntl(fd: c_int, command: c_int, argument: usize) -> c_int);
            stdio::descriptor_changed(result);
            Some(result)
        }
        _ => None,
    };
}

/// `closefrom`.
///
/// # Safety
/// None is needed: it takes a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn closefrom(first: c_int) {
    let _ = close_from(first.max(0).unsigned_abs(), c_uint::MAX, 0);
}
