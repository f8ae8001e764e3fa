//! What cannot be served: told no, and reported; or, where files are boosted, left to the kernel, once they are plain.

use core::ffi::{CStr, c_int, c_long, c_uint, c_void};

use libc::{aiocb, off_t, sigevent, size_t, ssize_t};

use super::{calls, data, messages, processes};
use crate::layer::{boosts, demote, demote_all, demoted, fail, managed, refuse, served};
use crate::raw::{self, word};
use crate::settings::{seen, settings};

/// A refusal if one of these descriptors is managed.
fn no(call: &CStr, why: &CStr, descriptors: &[c_int]) -> Option<i64> {
    if boosts() {
        return demoted(call, descriptors);
    }
    let fd = descriptors.iter().copied().find(|fd| managed(*fd))?;
    Some(fail(refuse(call, why, fd)))
}

fn size(result: Option<i64>) -> Option<ssize_t> {
    result.map(|result| result as ssize_t)
}

fn number(result: Option<i64>) -> Option<c_int> {
    result.map(|result| result as c_int)
}

const PAST: &CStr = c"the kernel would move bytes past the epoch";
const LATER: &CStr = c"asynchronous: the kernel, or a thread of the C library, would do it past the epoch";

/// The descriptor of an asynchronous operation.
///
/// # Safety
/// `operation` is null or points to one.
unsafe fn of(operation: *const aiocb) -> c_int {
    // SAFETY: the caller's.
    (unsafe { operation.as_ref() }).map_or(-1, |operation| operation.aio_fildes)
}

/// Those of a list.
///
/// # Safety
/// `list` points to `count` pointers, each null or to an operation.
unsafe fn any_of(list: *const *const aiocb, count: c_int) -> Option<i64> {
    for number in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's.
        let operation = unsafe { *list.wrapping_add(number) };
        // SAFETY: the caller's.
        let fd = unsafe { of(operation) };
        if let Some(refused) = no(c"lio_listio", LATER, &[fd]) {
            return Some(refused);
        }
    }
    None
}

/// A private mapping: a copy, for whether later changes show in it is left open (mmap(2)).
fn copied(
    place: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Result<*mut c_void, c_int> {
    if flags & libc::MAP_TYPE != libc::MAP_PRIVATE {
        return Err(refuse(c"mmap", c"a shared mapping of a managed file", fd));
    }
    if offset < 0 || offset % 4096 != 0 {
        return Err(libc::EINVAL);
    }
    if raw::fcntl(fd, libc::F_GETFL, 0)? & libc::O_ACCMODE == libc::O_WRONLY {
        return Err(libc::EACCES);
    }
    let flags = flags | libc::MAP_ANONYMOUS;
    let first = word(libc::PROT_READ | libc::PROT_WRITE);
    let arguments = [place as usize, len, first, word(flags), usize::MAX, 0];
    // SAFETY: what the program asked for, but for where the bytes come from.
    let mapped = unsafe { raw::result(libc::SYS_mmap, arguments) }?;
    let filled = fill(fd, mapped, len, offset);
    // SAFETY: the mapping just made.
    let protected = unsafe { raw::result(libc::SYS_mprotect, [mapped, len, word(protection), 0, 0, 0]) };
    match filled.and(protected.map(drop)) {
        Ok(()) => Ok(mapped as *mut c_void),
        Err(errno) => {
            // SAFETY: the mapping just made.
            let _ = unsafe { raw::result(libc::SYS_munmap, [mapped, len, 0, 0, 0, 0]) };
            Err(errno)
        }
    }
}

/// Reads all that there is of a file from `offset` on, which may be more than one call reads.
fn fill(fd: c_int, into: usize, len: usize, offset: off_t) -> Result<(), c_int> {
    let mut done = 0;
    while done < len {
        let at = offset.checked_add(done as off_t).ok_or(libc::EOVERFLOW)?;
        match data::read_at(fd, (into + done) as *mut c_void, (len - done).min(AT_A_TIME), at)? {
            0 => break,
            count => done += count as usize,
        }
    }
    Ok(())
}

/// Bytes of a private mapping that are read by one call.
const AT_A_TIME: usize = 64 << 20;

const FICLONE: u64 = 0x4004_9409;
const FICLONERANGE: u64 = 0x4020_940d;
const FIDEDUPERANGE: u64 = 0xc018_9436;

/// System calls by number. Those of a managed descriptor that have a function of their own go through it.
fn by_number(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    settings()?;
    if number == libc::SYS_io_uring_setup || number == libc::SYS_io_setup {
        return Some(fail(libc::ENOSYS));
    }
    if number == libc::SYS_exit_group {
        processes::end(a as c_int);
    }
    if boosts()
        && seen()
        && let Some(failed) = boosted_by_number(number, [a, b, c, d, e, 0])
    {
        return Some(failed);
    }
    let fd = a as c_int;
    if !seen() || !managed(fd) {
        return None;
    }
    match number {
        libc::SYS_read => served(data::read_at(fd, b as *mut c_void, c, -1)),
        libc::SYS_write => served(data::write_at(fd, b as *const c_void, c, -1)),
        libc::SYS_pread64 => {
            served(data::explicit(d as off_t).and_then(|at| data::read_at(fd, b as *mut c_void, c, at)))
        }
        libc::SYS_pwrite64 => {
            served(data::explicit(d as off_t).and_then(|at| data::write_at(fd, b as *const c_void, c, at)))
        }
        libc::SYS_lseek => served(data::seek(fd, b as off_t, c as c_int)),
        libc::SYS_ftruncate => served(data::set_length(fd, b as off_t)),
        libc::SYS_fsync | libc::SYS_fdatasync => served(data::commit(fd)),
        libc::SYS_fallocate if !boosts() => served(data::allocate(fd, b as c_int, c as off_t, d as off_t)),
        libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_sendfile
        | libc::SYS_copy_file_range
        | libc::SYS_splice
        | libc::SYS_tee
        | libc::SYS_sync_file_range
            if !boosts() =>
        {
            Some(fail(refuse(c"syscall", c"by number, past the C library", fd)))
        }
        libc::SYS_close | libc::SYS_close_range => None,
        libc::SYS_dup | libc::SYS_fstat if !boosts() => None,
        // What begins with a descriptor of ours.
        _ if boosts() => demoted(c"syscall", &[fd]),
        _ => None,
    }
}

/// What a system call by number that is not about its first argument fails with, where files are boosted.
fn boosted_by_number(number: c_long, [_, b, c, _, e, _]: [usize; 6]) -> Option<c_long> {
    let outcome = match number {
        // Those that have a second descriptor.
        libc::SYS_sendfile => demote(c"syscall", b as c_int),
        libc::SYS_splice | libc::SYS_copy_file_range => demote(c"syscall", c as c_int),
        libc::SYS_ioctl if b as u64 == FICLONE => demote(c"syscall", c as c_int),
        libc::SYS_ioctl if b as u64 == FICLONERANGE && c != 0 => {
            // SAFETY: the program's argument, a structure that begins with the descriptor.
            demote(c"syscall", unsafe { (c as *const i64).read_unaligned() } as c_int)
        }
        libc::SYS_mmap => demote(c"mmap", e as c_int),
        // SAFETY: the program's message.
        libc::SYS_sendmsg => return unsafe { messages::passing(b as *const libc::msghdr) },
        libc::SYS_execve | libc::SYS_execveat => processes::hand_down(c"exec", false),
        // Which file that is, nobody has to find out.
        libc::SYS_sendmmsg
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_unlinkat
        | libc::SYS_utimensat
        | libc::SYS_newfstatat
        | libc::SYS_statx => demote_all(c"syscall"),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename
        | libc::SYS_unlink
        | libc::SYS_stat
        | libc::SYS_lstat
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat => demote_all(c"syscall"),
        _ => Ok(()),
    };
    outcome.err().map(fail)
}

/// Before a limit is set, where files are boosted: how long a file may get is a question to the kernel. What the call fails with, if
/// what was written could not be brought to the files.
fn limited(resource: c_uint) -> Option<c_int> {
    if !boosts() || u64::from(resource) != libc::RLIMIT_FSIZE as u64 {
        return None;
    }
    demote_all(c"setrlimit").err().map(|errno| fail(errno) as c_int)
}

calls! {
    [setrlimit setrlimit64](resource: c_uint, limit: *const c_void) -> c_int = limited(resource);
    [prlimit prlimit64](process: libc::pid_t, resource: c_uint, limit: *const c_void, old: *mut c_void) -> c_int =
        if limit.is_null() { None } else { limited(resource) };
    [splice](
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint
    ) -> ssize_t = size(no(c"splice", PAST, &[from, to]));
    [tee](from: c_int, to: c_int, count: size_t, flags: c_uint) -> ssize_t = size(no(c"tee", PAST, &[from, to]));
    [vmsplice](fd: c_int, vector: *const libc::iovec, count: size_t, flags: c_uint) -> ssize_t =
        size(no(c"vmsplice", PAST, &[fd]));
    [mmap mmap64](
        place: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void = if boosts() {
        let failed = if flags & libc::MAP_ANONYMOUS == 0 { demoted(c"mmap", &[fd]) } else { None };
        failed.map(|_| libc::MAP_FAILED)
    } else if flags & libc::MAP_ANONYMOUS == 0 && managed(fd) {
        Some(copied(place, len, protection, flags, fd, offset).unwrap_or_else(|errno| {
            fail(errno);
            libc::MAP_FAILED
        }))
    } else {
        None
    };
    [ioctl](fd: c_int, request: u64, argument: usize) -> c_int = match request {
        FICLONE | FICLONERANGE | FIDEDUPERANGE if seen() => {
            // The source is the argument, or the first member of what it points to.
            let source = match request {
                FICLONE => argument as c_int,
                // SAFETY: the program's argument, a structure that begins with the descriptor.
                FICLONERANGE => unsafe { *(argument as *const i64) as c_int },
                _ => -1,
            };
            number(no(c"ioctl", c"clones blocks", &[fd, source]))
        }
        // About the descriptor, or a terminal.
        libc::TCGETS | libc::FIOCLEX | libc::FIONCLEX | libc::FIONBIO => None,
        // Where the bytes are, for one.
        _ if boosts() => number(demoted(c"ioctl", &[fd])),
        _ => None,
    };
    // SAFETY (of those below): the program's operation.
    [aio_read aio_read64](operation: *mut aiocb) -> c_int =
        // SAFETY: see above.
        number(no(c"aio_read", LATER, &[unsafe { of(operation) }]));
    [aio_write aio_write64](operation: *mut aiocb) -> c_int =
        // SAFETY: see above.
        number(no(c"aio_write", LATER, &[unsafe { of(operation) }]));
    [aio_fsync aio_fsync64](flags: c_int, operation: *mut aiocb) -> c_int =
        // SAFETY: see above.
        number(no(c"aio_fsync", LATER, &[unsafe { of(operation) }]));
    [lio_listio lio_listio64](mode: c_int, list: *const *const aiocb, count: c_int, event: *mut sigevent) -> c_int =
        // SAFETY: the program's list, of that length.
        if seen() { number(unsafe { any_of(list, count) }) } else { None };
    [syscall](number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long =
        by_number(number, [a, b, c, d, e, f]);
}
