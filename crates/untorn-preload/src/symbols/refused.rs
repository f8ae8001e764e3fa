//! What cannot be served: told no, and reported; or, where files are boosted, left to the kernel, once they are plain.

use core::ffi::{CStr, c_int, c_long, c_uint, c_void};

use libc::{aiocb, off_t, sigevent, size_t, ssize_t};

use super::calls;
use crate::layer::{boost_no_more, boosts, demote_all, demoted, fail, length, managed, refuse};
use crate::raw::{self, word};
use crate::real::real;
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

const PAST: &CStr = c"the kernel would move bytes outside the epoch";
const BLOCKS: &CStr = c"reports or moves the file's blocks, but the kernel has only old data";
const LATER: &CStr = c"asynchronous: the kernel or a C library thread would do the I/O outside the epoch";

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

const TCGETS: u32 = libc::TCGETS as u32;
const FIOCLEX: u32 = libc::FIOCLEX as u32;
const FIONCLEX: u32 = libc::FIONCLEX as u32;
const FIONBIO: u32 = libc::FIONBIO as u32;
const FIONREAD: u32 = libc::FIONREAD as u32;
const FICLONE: u32 = 0x4004_9409;
const FIDEDUPERANGE: u32 = 0xc018_9436;

/// Whether a request of `ioctl` tells where a file's bytes are, moves them, or gives room to more: of a managed file
/// the kernel has old ones. By kind and number, for the rest of a request says only how long its argument is.
fn is_about_blocks(request: u32) -> bool {
    match ((request >> 8) as u8, request as u8) {
        // FIBMAP; FIEMAP, and of ext4 MOVE_EXT, SWAP_BOOT and GET_ES_CACHE.
        (0, 1) | (b'f', 11 | 15 | 17 | 42) => true,
        // RESVSP, UNRESVSP and ZERO_RANGE of all file systems; of XFS ALLOCSP, FREESP, GETBMAP, SWAPEXT,
        // EXCHANGE_RANGE and its kin.
        (b'X', 10 | 11 | 36..=38 | 40..=43 | 56 | 57 | 109 | 129..=131) => true,
        // Clones and deduplication; of btrfs reading and writing of what is compressed.
        (0x94, 9 | 13 | 54 | 64) => true,
        // Of F2FS epochs of its own, and MOVE_RANGE.
        (0xf5, 1..=5 | 9) => true,
        _ => false,
    }
}

/// Whether it tells anything of a file's bytes.
#[cfg(all(feature = "oracle", target_arch = "x86_64"))]
pub(crate) fn is_about_bytes(request: u32) -> bool {
    is_about_blocks(request) || request == FIONREAD
}

/// The other descriptors that a request of `ioctl` is about.
fn others(request: u32, argument: usize) -> impl Iterator<Item = c_int> {
    let number_at = move |at: usize| raw::word_at(argument.wrapping_add(at)).map(|word| word as c_int);
    let other = match ((request >> 8) as u8, request as u8) {
        _ if request == FICLONE => Some(argument as c_int),
        // The structure begins with it: FICLONERANGE; EXCHANGE_RANGE and COMMIT_RANGE of XFS; MOVE_RANGE of F2FS.
        (0x94, 13) | (b'X', 129 | 131) | (0xf5, 9) => number_at(0),
        // MOVE_EXT of ext4.
        (b'f', 15) => number_at(4),
        // SWAPEXT of XFS.
        (b'X', 109) => number_at(16),
        _ => None,
    };
    // So many files that may share blocks with the descriptor's, in 32 bytes each, of which the first are a descriptor.
    let count = if request == FIDEDUPERANGE { number_at(16).map_or(0, |count| count & 0xffff) } else { 0 };
    let with = (0..count as usize).filter_map(move |each| number_at(24 + 32 * each));
    other.into_iter().chain(with)
}

/// `FIONREAD`: how many bytes there are from the descriptor's offset to the end.
///
/// # Safety
/// If `call` returns 0, the kernel has written a number to `answer`.
unsafe fn unread(fd: c_int, answer: *mut c_int, call: impl FnOnce() -> c_int) -> c_int {
    // The kernel finds out whether there is room for the answer, which is its own.
    let result = call();
    if result != 0 {
        return result;
    }
    match length(fd).and_then(|len| Ok(len - raw::seek(fd, 0, libc::SEEK_CUR)? as i64)) {
        // SAFETY: the caller's.
        Ok(left) => unsafe { answer.write_unaligned(left as c_int) },
        Err(errno) => return fail(errno) as c_int,
    }
    0
}

/// Before a limit is set, where files are boosted: how long a file may get is a question to the kernel. What the call
/// fails with, if what was written could not be brought to the files.
fn limited(resource: c_uint) -> Option<c_int> {
    if !boosts() || u64::from(resource) != libc::RLIMIT_FSIZE as u64 {
        return None;
    }
    demote_all(c"setrlimit").err().map(|errno| fail(errno) as c_int)
}

/// Before a program gets asynchronous I/O of the kernel, which nobody sees it use: told no; or, where files are
/// boosted, none of its files is from now on. The errno of what the call fails with.
pub(super) fn asynchronous(call: &CStr) -> Option<c_int> {
    settings()?;
    if boosts() {
        boost_no_more();
        return demote_all(call).err();
    }
    let _ = refuse(call, LATER, -1);
    Some(libc::ENOSYS)
}

/// The same for libraries that return the errno, negative. A library that only a plugin has (`dlopen(3)` with
/// `RTLD_LOCAL`) is not found from here: then the kernel is asked, whose call of that number is all that the function
/// is.
fn library(call: &CStr, known: bool, number: c_long, arguments: [usize; 2]) -> Option<c_int> {
    if let Some(errno) = asynchronous(call) {
        return Some(-errno);
    }
    // SAFETY: the program's arguments, which the kernel's call of that number takes in this order.
    (!known).then(|| (unsafe { raw::call(number, [arguments[0], arguments[1], 0, 0, 0, 0]) }) as c_int)
}

/// The same where the library does more than the call: told no, which programs take for a kernel without it.
fn ring(known: bool) -> Option<c_int> {
    const SETUP: &CStr = c"io_uring_setup";
    if let Some(errno) = asynchronous(SETUP) {
        return Some(-errno);
    }
    if known {
        return None;
    }
    let _ = refuse(SETUP, c"liburing is a plugin's own, where it is not found from outside", -1);
    Some(-libc::ENOSYS)
}

/// Whether there is a function of this name besides the layer's.
pub(super) fn is_known(name: &CStr) -> bool {
    // SAFETY: the name ends in a zero.
    !(unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }).is_null()
}

calls! {
    // Of libaio and liburing, which set up what the kernel then does to any descriptor, by calls that nobody sees.
    [io_setup](most: c_int, context: *mut c_void) -> c_int =
        library(c"io_setup", is_known(c"io_setup"), libc::SYS_io_setup, [word(most), context as usize]);
    [io_queue_init](most: c_int, context: *mut c_void) -> c_int = 'call: {
        let known = is_known(c"io_queue_init");
        if !known {
            if most <= 0 {
                break 'call Some(-libc::EINVAL);
            }
            // SAFETY: the program's, for one word, which the kernel wants to be zero.
            unsafe { context.cast::<usize>().write_unaligned(0) };
        }
        library(c"io_setup", known, libc::SYS_io_setup, [word(most), context as usize])
    };
    [io_uring_setup](entries: c_uint, parameters: *mut c_void) -> c_int =
        library(c"io_uring_setup", is_known(c"io_uring_setup"), libc::SYS_io_uring_setup, [entries as usize, parameters as usize]);
    [io_uring_queue_init](entries: c_uint, queue: *mut c_void, flags: c_uint) -> c_int = ring(is_known(c"io_uring_queue_init"));
    [io_uring_queue_init_params](entries: c_uint, queue: *mut c_void, parameters: *mut c_void) -> c_int =
        ring(is_known(c"io_uring_queue_init_params"));
    [io_uring_queue_init_mem](
        entries: c_uint, queue: *mut c_void, parameters: *mut c_void, memory: *mut c_void, len: size_t
    ) -> c_int = ring(is_known(c"io_uring_queue_init_mem"));
    [setrlimit setrlimit64](resource: c_uint, limit: *const c_void) -> c_int = limited(resource);
    [prlimit prlimit64](process: libc::pid_t, resource: c_uint, limit: *const c_void, old: *mut c_void) -> c_int =
        if limit.is_null() { None } else { limited(resource) };
    [splice](
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint
    ) -> ssize_t = if boosts() {
        size(demoted(c"splice", &[to]))
    } else {
        size(no(c"splice", PAST, &[from, to]))
    };
    [tee](from: c_int, to: c_int, count: size_t, flags: c_uint) -> ssize_t = size(no(c"tee", PAST, &[from, to]));
    [vmsplice](fd: c_int, vector: *const libc::iovec, count: size_t, flags: c_uint) -> ssize_t =
        size(no(c"vmsplice", PAST, &[fd]));
    // The kernel takes the lower half of the request.
    [ioctl](fd: c_int, request: u64, argument: usize) -> c_int = match request as u32 {
        request if is_about_blocks(request) && seen() && !boosts() => if managed(fd) {
            number(no(c"ioctl", BLOCKS, &[fd]))
        } else {
            others(request, argument).find_map(|fd| number(no(c"ioctl", BLOCKS, &[fd])))
        },
        FIONREAD if !boosts() && managed(fd) => {
            let call = || real!(ioctl(fd: c_int, request: u64, argument: usize) -> c_int);
            // SAFETY: the kernel's answer is a number.
            Some(unsafe { unread(fd, argument as *mut c_int, call) })
        }
        // About the descriptor, or a terminal.
        TCGETS | FIOCLEX | FIONCLEX | FIONBIO => None,
        // To clone the blocks of another file, for one.
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
}
