//! Extended attributes. Programs find the mark on no file: a copy that has it would be taken for one that lost its
//! sidecar.

use core::ffi::{c_char, c_int, c_long, c_void};
use core::ptr::null_mut;

use libc::{iovec, size_t, ssize_t};

use super::calls;
use super::status::set;
use crate::hidden::{MARK, hides};
use crate::layer::{boosts, fail, text};
use crate::raw;
use crate::real::real;

/// The length of the mark's name in a list, with its zero.
const LEN: usize = MARK.to_bytes_with_nul().len();

/// Whether a name is the one that no program may use.
///
/// # Safety
/// `name` is null or a string that ends in a zero.
unsafe fn is_ours(name: *const c_char) -> bool {
    // SAFETY: the caller's.
    hides() && unsafe { text(name) } == Some(MARK)
}

/// What a program is told that asks for the mark's value, from what the kernel said to the same: of a file that is
/// not there, or that cannot have one, the kernel's word stands.
fn no_value(said: ssize_t) -> ssize_t {
    if said < 0 { said } else { fail(libc::ENODATA) as ssize_t }
}

/// Lists names by `list`, without the mark, which the file has if `is_marked` says so.
///
/// # Safety
/// `list` fills no more than the memory that it is given.
unsafe fn listed(
    list: impl Fn(*mut c_char, size_t) -> ssize_t,
    is_marked: impl Fn() -> bool,
    into: *mut c_char,
    size: size_t,
) -> ssize_t {
    let filled = list(into, size);
    if filled < 0 {
        // SAFETY: the address is this thread's own.
        let errno = unsafe { *raw::errno() };
        // It may be the mark alone for which there is no room.
        let outcome =
            if errno == libc::ERANGE && is_marked() { listed_elsewhere(list, into, size) } else { Err(errno) };
        return outcome.map_or_else(|errno| fail(errno) as ssize_t, |len| len as ssize_t);
    }
    if size == 0 {
        return if filled > 0 && is_marked() { filled - LEN as ssize_t } else { filled };
    }
    // SAFETY: the kernel just filled it, so it is the program's memory.
    let names = unsafe { core::slice::from_raw_parts_mut(into.cast::<u8>(), filled.unsigned_abs()) };
    without_mark(names) as ssize_t
}

/// Lists names into memory of our own, and gives the program what it is to see of them.
fn listed_elsewhere(
    list: impl Fn(*mut c_char, size_t) -> ssize_t,
    into: *mut c_char,
    size: size_t,
) -> Result<usize, c_int> {
    let needed = list(null_mut(), 0).unsigned_abs();
    if needed.saturating_sub(LEN) > size || needed == 0 {
        return Err(libc::ERANGE);
    }
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let private = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
    // SAFETY: new memory, at no place of importance.
    let room = unsafe { raw::result(libc::SYS_mmap, [0, needed, protection, private, usize::MAX, 0]) }?;
    // Somebody may have given the file more of them since.
    let filled = usize::try_from(list(room as *mut c_char, needed)).map_err(|_| libc::ERANGE);
    let outcome = filled.and_then(|filled| {
        // SAFETY: the mapping just made, of which the kernel filled so much.
        let names = unsafe { core::slice::from_raw_parts_mut(room as *mut u8, filled) };
        let len = without_mark(names);
        match names.get(..len) {
            Some(names) if len <= size => give(names, into).map(|()| len),
            _ => Err(libc::ERANGE),
        }
    });
    // SAFETY: the mapping just made, which nobody else knows of.
    let _ = unsafe { raw::result(libc::SYS_munmap, [room, needed, 0, 0, 0, 0]) };
    outcome
}

/// Copies bytes to memory of the program's, of which the kernel finds out whether it is there.
fn give(bytes: &[u8], into: *mut c_char) -> Result<(), c_int> {
    let from = iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let to = iovec { iov_base: into.cast(), iov_len: bytes.len() };
    let arguments = [raw::getpid() as usize, &raw const from as usize, 1, &raw const to as usize, 1, 0];
    // SAFETY: the bytes are ours; of the others the kernel finds out whether they are the program's.
    match unsafe { raw::result(libc::SYS_process_vm_writev, arguments) } {
        Ok(done) if done == bytes.len() => Ok(()),
        Ok(_) | Err(libc::EFAULT) => Err(libc::EFAULT),
        Err(_) => {
            // A program that forbids itself this call has to give memory that is there.
            // SAFETY: the program says that it has so much room.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), into.cast(), bytes.len()) };
            Ok(())
        }
    }
}

/// Takes the mark out of a list of names, each of which ends in a zero; how many bytes are left.
fn without_mark(names: &mut [u8]) -> usize {
    let mut at = 0;
    let found = names.split_inclusive(|byte| *byte == 0).find_map(|name| {
        let here = at;
        at += name.len();
        (name == MARK.to_bytes_with_nul()).then_some(here)
    });
    let Some(here) = found else { return names.len() };
    names.copy_within(here + LEN.., here);
    names.len() - LEN
}

/// By the function of a system call's number.
///
/// # Safety
/// The arguments are a program's for the system call of that number.
pub(super) unsafe fn by_number(number: c_long, [a, b, c, d, e]: [usize; 5]) -> Option<c_long> {
    let (fd, path, name, list) = (a as c_int, a as *const c_char, b as *const c_char, b as *mut c_char);
    let (value, from, flags) = (c as *mut c_void, c as *const c_void, e as c_int);
    // SAFETY (of all of it): the caller's.
    let result = match number {
        // SAFETY: see above.
        libc::SYS_getxattr => (unsafe { getxattr(path, name, value, d) }) as c_long,
        // SAFETY: see above.
        libc::SYS_lgetxattr => (unsafe { lgetxattr(path, name, value, d) }) as c_long,
        // SAFETY: see above.
        libc::SYS_fgetxattr => (unsafe { fgetxattr(fd, name, value, d) }) as c_long,
        // SAFETY: see above.
        libc::SYS_listxattr => (unsafe { listxattr(path, list, c) }) as c_long,
        // SAFETY: see above.
        libc::SYS_llistxattr => (unsafe { llistxattr(path, list, c) }) as c_long,
        // SAFETY: see above.
        libc::SYS_flistxattr => (unsafe { flistxattr(fd, list, c) }) as c_long,
        // SAFETY: see above.
        libc::SYS_setxattr => unsafe { setxattr(path, name, from, d, flags) }.into(),
        // SAFETY: see above.
        libc::SYS_lsetxattr => unsafe { lsetxattr(path, name, from, d, flags) }.into(),
        // SAFETY: see above.
        libc::SYS_fsetxattr => unsafe { fsetxattr(fd, name, from, d, flags) }.into(),
        // SAFETY: see above.
        libc::SYS_removexattr => unsafe { removexattr(path, name) }.into(),
        // SAFETY: see above.
        libc::SYS_lremovexattr => unsafe { lremovexattr(path, name) }.into(),
        // SAFETY: see above.
        libc::SYS_fremovexattr => unsafe { fremovexattr(fd, name) }.into(),
        _ => return None,
    };
    Some(result)
}

// SAFETY (of all below): the paths and names are the program's, and end in a zero; the C library's functions fill no
// more than they are given.
calls! {
    [getxattr](path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = {
        let (nowhere, none) = (null_mut(), 0);
        // SAFETY: see above.
        unsafe { is_ours(name) }.then(|| no_value(real!(
            getxattr(path: *const c_char, name: *const c_char, nowhere: *mut c_void, none: size_t) -> ssize_t
        )))
    };
    [lgetxattr](path: *const c_char, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = {
        let (nowhere, none) = (null_mut(), 0);
        // SAFETY: see above.
        unsafe { is_ours(name) }.then(|| no_value(real!(
            lgetxattr(path: *const c_char, name: *const c_char, nowhere: *mut c_void, none: size_t) -> ssize_t
        )))
    };
    [fgetxattr](fd: c_int, name: *const c_char, value: *mut c_void, size: size_t) -> ssize_t = {
        let (nowhere, none) = (null_mut(), 0);
        // SAFETY: see above.
        unsafe { is_ours(name) }.then(|| no_value(real!(
            fgetxattr(fd: c_int, name: *const c_char, nowhere: *mut c_void, none: size_t) -> ssize_t
        )))
    };
    [listxattr](path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t = hides().then(|| {
        let list = |into, size| real!(listxattr(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t);
        let (mark, nowhere, none) = (MARK.as_ptr(), null_mut(), 0);
        let is_marked = || real!(
            getxattr(path: *const c_char, mark: *const c_char, nowhere: *mut c_void, none: size_t) -> ssize_t
        ) >= 0;
        // SAFETY: see above.
        unsafe { listed(list, is_marked, into, size) }
    });
    [llistxattr](path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t = hides().then(|| {
        let list = |into, size| real!(llistxattr(path: *const c_char, into: *mut c_char, size: size_t) -> ssize_t);
        let (mark, nowhere, none) = (MARK.as_ptr(), null_mut(), 0);
        let is_marked = || real!(
            lgetxattr(path: *const c_char, mark: *const c_char, nowhere: *mut c_void, none: size_t) -> ssize_t
        ) >= 0;
        // SAFETY: see above.
        unsafe { listed(list, is_marked, into, size) }
    });
    [flistxattr](fd: c_int, into: *mut c_char, size: size_t) -> ssize_t = hides().then(|| {
        let list = |into, size| real!(flistxattr(fd: c_int, into: *mut c_char, size: size_t) -> ssize_t);
        let (mark, nowhere, none) = (MARK.as_ptr(), null_mut(), 0);
        let is_marked = || real!(
            fgetxattr(fd: c_int, mark: *const c_char, nowhere: *mut c_void, none: size_t) -> ssize_t
        ) >= 0;
        // SAFETY: see above.
        unsafe { listed(list, is_marked, into, size) }
    });
    [setxattr lsetxattr](
        path: *const c_char, name: *const c_char, from: *const c_void, len: size_t, flags: c_int
    ) -> c_int =
        // SAFETY: see above.
        unsafe { is_ours(name) }.then(|| fail(libc::EOPNOTSUPP) as c_int);
    // An fsync makes attributes durable too, which the log of boosted files knows nothing of.
    [fsetxattr](fd: c_int, name: *const c_char, from: *const c_void, len: size_t, flags: c_int) -> c_int =
        // SAFETY: see above.
        if unsafe { is_ours(name) } {
            Some(fail(libc::EOPNOTSUPP) as c_int)
        } else {
            boosts().then(|| set(real!(
                fsetxattr(fd: c_int, name: *const c_char, from: *const c_void, len: size_t, flags: c_int) -> c_int
            ), fd))
        };
    [removexattr lremovexattr](path: *const c_char, name: *const c_char) -> c_int =
        // SAFETY: see above.
        unsafe { is_ours(name) }.then(|| fail(libc::ENODATA) as c_int);
    [fremovexattr](fd: c_int, name: *const c_char) -> c_int =
        // SAFETY: see above.
        if unsafe { is_ours(name) } {
            Some(fail(libc::ENODATA) as c_int)
        } else {
            boosts().then(|| set(real!(fremovexattr(fd: c_int, name: *const c_char) -> c_int), fd))
        };
}
