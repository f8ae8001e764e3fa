//! System calls by number (`syscall(2)`). What the layer has a function of the C library for goes through that.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};

use libc::{iovec, mode_t, off_t};

use super::refused::{self, asynchronous};
use super::{
    attributes, calls, data, descriptors, listings, memory, messages, names, open, processes, reach, status, zero_copy,
};
use crate::client;
use crate::layer::{boosts, demote, demote_all, demoted, fail, managed, refuse, served};
use crate::settings::{seen, settings};

/// System calls by number. Those of a managed descriptor that have a function of their own go through it.
fn by_number(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    settings()?;
    match number {
        libc::SYS_io_uring_setup => return asynchronous(c"io_uring_setup").map(fail),
        libc::SYS_io_setup => return asynchronous(c"io_setup").map(fail),
        _ => {}
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
    if let Some(result) = by_name(number, [a, b, c, d, e, f]) {
        return Some(result);
    }
    let fd = a as c_int;
    if !seen() || !managed(fd) {
        return None;
    }
    if boosts() && reads(number) {
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
        libc::SYS_close | libc::SYS_close_range => None,
        // What begins with a descriptor of ours.
        _ if boosts() => demoted(c"syscall", &[fd]),
        _ => None,
    }
}

/// By the C library's function of the same name and meaning, if there is one that the layer replaces. Where files are
/// boosted, only what asks for a status: the rest is left to the kernel.
fn by_name(number: c_long, [a, b, c, d, e, f]: [usize; 6]) -> Option<c_long> {
    let (fd, path, at) = (a as c_int, a as *const c_char, b as *const c_char);
    // SAFETY (of all below): the program's arguments, which the kernel's call of that number takes in this order.
    let status = match number {
        // SAFETY: see above.
        libc::SYS_fstat => Some(unsafe { status::fstat(fd, b as *mut _) }),
        // SAFETY: see above.
        libc::SYS_newfstatat => Some(unsafe { status::fstatat(fd, at, c as *mut _, d as c_int) }),
        // SAFETY: see above.
        libc::SYS_statx => Some(unsafe { status::statx(fd, at, c as c_int, d as c_uint, e as *mut _) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_stat => Some(unsafe { status::stat(path, b as *mut _) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_lstat => Some(unsafe { status::lstat(path, b as *mut _) }),
        _ => None,
    };
    if status.is_some() || boosts() {
        return status.map(c_long::from);
    }
    let (vector, count) = (b as *const iovec, c as c_int);
    let result = match number {
        // SAFETY: see above.
        libc::SYS_openat => c_long::from(unsafe { open::openat(fd, at, c as c_int, d as mode_t) }),
        // SAFETY: see above.
        libc::SYS_openat2 => return unsafe { openat2(fd, at, c as *const OpenHow, d) },
        // SAFETY: see above.
        libc::SYS_open_by_handle_at => {
            // SAFETY: see above.
            c_long::from(unsafe { open::open_by_handle_at(fd, b as *mut c_void, c as c_int) })
        }
        // SAFETY: see above.
        libc::SYS_truncate => c_long::from(unsafe { data::truncate(path, b as off_t) }),
        // SAFETY: see above.
        libc::SYS_close => c_long::from(unsafe { descriptors::close(fd) }),
        libc::SYS_close_range => {
            // SAFETY: see above.
            c_long::from(unsafe { descriptors::close_range(a as c_uint, b as c_uint, c as c_int) })
        }
        // SAFETY: see above.
        libc::SYS_dup => c_long::from(unsafe { descriptors::dup(fd) }),
        // SAFETY: see above.
        libc::SYS_dup3 => c_long::from(unsafe { descriptors::dup3(fd, b as c_int, c as c_int) }),
        // SAFETY: see above.
        libc::SYS_fcntl => c_long::from(unsafe { descriptors::fcntl(fd, b as c_int, c) }),
        // The kernel takes the lower half of the request.
        // SAFETY: see above.
        libc::SYS_ioctl => c_long::from(unsafe { refused::ioctl(fd, u64::from(b as u32), c) }),
        // SAFETY: see above.
        libc::SYS_syncfs => c_long::from(unsafe { data::syncfs(fd) }),
        libc::SYS_sync => {
            // SAFETY: see above.
            unsafe { data::sync() };
            0
        }
        // Without a path it is about the descriptor, which is a function of its own in the C library.
        // SAFETY: see above.
        libc::SYS_utimensat if b == 0 && d == 0 && fd >= 0 => {
            // SAFETY: see above.
            c_long::from(unsafe { status::futimens(fd, c as *const _) })
        }
        libc::SYS_utimensat if b != 0 => {
            // SAFETY: see above.
            c_long::from(unsafe { status::utimensat(fd, at, c as *const _, d as c_int) })
        }
        // SAFETY: see above.
        libc::SYS_readv => (unsafe { data::readv(fd, vector, count) }) as c_long,
        // SAFETY: see above.
        libc::SYS_writev => (unsafe { data::writev(fd, vector, count) }) as c_long,
        // SAFETY: see above.
        libc::SYS_preadv => (unsafe { data::preadv(fd, vector, count, d as off_t) }) as c_long,
        // SAFETY: see above.
        libc::SYS_pwritev => (unsafe { data::pwritev(fd, vector, count, d as off_t) }) as c_long,
        // SAFETY: see above. The fifth is the upper half of an offset that is whole already.
        libc::SYS_preadv2 => (unsafe { data::preadv2(fd, vector, count, d as off_t, f as c_int) }) as c_long,
        // SAFETY: see above.
        libc::SYS_pwritev2 => (unsafe { data::pwritev2(fd, vector, count, d as off_t, f as c_int) }) as c_long,
        // SAFETY: see above.
        libc::SYS_fallocate => {
            // SAFETY: see above.
            c_long::from(unsafe { data::fallocate(fd, b as c_int, c as off_t, d as off_t) })
        }
        // SAFETY: see above.
        libc::SYS_sync_file_range => {
            // SAFETY: see above.
            c_long::from(unsafe { data::sync_file_range(fd, b as off_t, c as off_t, d as c_uint) })
        }
        // SAFETY: see above.
        libc::SYS_sendfile => (unsafe { zero_copy::sendfile(fd, b as c_int, c as *mut off_t, d) }) as c_long,
        libc::SYS_copy_file_range => {
            let (from_at, to_at) = (b as *mut off_t, d as *mut off_t);
            // SAFETY: see above.
            (unsafe { zero_copy::copy_file_range(fd, from_at, c as c_int, to_at, e, f as c_uint) }) as c_long
        }
        libc::SYS_splice => {
            let (from_at, to_at) = (b as *mut off_t, d as *mut off_t);
            // SAFETY: see above.
            (unsafe { refused::splice(fd, from_at, c as c_int, to_at, e, f as c_uint) }) as c_long
        }
        // SAFETY: see above.
        libc::SYS_tee => (unsafe { refused::tee(fd, b as c_int, c, d as c_uint) }) as c_long,
        // SAFETY: see above.
        libc::SYS_vmsplice => (unsafe { refused::vmsplice(fd, vector, c, d as c_uint) }) as c_long,
        libc::SYS_mmap => {
            // SAFETY: see above.
            (unsafe { memory::mmap(a as *mut c_void, b, c as c_int, d as c_int, e as c_int, f as off_t) }) as c_long
        }
        // SAFETY: see above.
        libc::SYS_munmap => c_long::from(unsafe { memory::munmap(a as *mut c_void, b) }),
        // SAFETY: see above.
        libc::SYS_msync => c_long::from(unsafe { memory::msync(a as *mut c_void, b, c as c_int) }),
        libc::SYS_mremap => {
            // SAFETY: see above.
            (unsafe { memory::mremap(a as *mut c_void, b, c, d as c_int, e as *mut c_void) }) as c_long
        }
        // SAFETY: see above.
        libc::SYS_madvise => c_long::from(unsafe { memory::madvise(a as *mut c_void, b, c as c_int) }),
        libc::SYS_remap_file_pages => {
            // SAFETY: see above.
            c_long::from(unsafe { memory::remap_file_pages(a as *mut c_void, b, c as c_int, d, e as c_int) })
        }
        // SAFETY: see above.
        libc::SYS_unlinkat => c_long::from(unsafe { names::unlinkat(fd, at, c as c_int) }),
        // SAFETY: see above.
        libc::SYS_renameat => c_long::from(unsafe { names::renameat(fd, at, c as c_int, d as *const c_char) }),
        libc::SYS_renameat2 => {
            // SAFETY: see above.
            c_long::from(unsafe { names::renameat2(fd, at, c as c_int, d as *const c_char, e as c_uint) })
        }
        libc::SYS_linkat => {
            // SAFETY: see above.
            c_long::from(unsafe { names::linkat(fd, at, c as c_int, d as *const c_char, e as c_int) })
        }
        libc::SYS_getdents64 => {
            // SAFETY: see above.
            unsafe { listings::entries(number, fd, b as *mut c_void, c) }
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_getdents => {
            // SAFETY: see above.
            unsafe { listings::entries(number, fd, b as *mut c_void, c) }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_rmdir => c_long::from(unsafe { names::rmdir(path) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_open => c_long::from(unsafe { open::open(path, b as c_int, c as mode_t) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_creat => c_long::from(unsafe { open::creat(path, b as mode_t) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_dup2 => c_long::from(unsafe { descriptors::dup2(fd, b as c_int) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_futimesat => c_long::from(unsafe { status::futimesat(fd, at, c as *const _) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_utimes => c_long::from(unsafe { status::utimes(path, b as *const _) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_utime => c_long::from(unsafe { status::utime(path, b as *const _) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_rename => c_long::from(unsafe { names::rename(path, at) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_link => c_long::from(unsafe { names::link(path, at) }),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: see above.
        libc::SYS_unlink => c_long::from(unsafe { names::unlink(path) }),
        // SAFETY: see above.
        _ => return unsafe { attributes::by_number(number, [a, b, c, d, e]) },
    };
    Some(result)
}

/// What `openat2` takes (openat2(2)).
#[repr(C)]
#[derive(Clone, Copy)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// `openat2`, which the C library has no function for: as `openat` where that means the same. How a path is resolved
/// `openat` cannot say, and what the kernel opens would be unmanaged; programs use `openat` where they are told that
/// there is no such call.
///
/// # Safety
/// `path` is null or ends in a zero, `how` is null or has `len` bytes.
unsafe fn openat2(directory: c_int, path: *const c_char, how: *const OpenHow, len: usize) -> Option<c_long> {
    if how.is_null() || len < size_of::<OpenHow>() {
        // The kernel says what is wrong with it.
        return None;
    }
    // SAFETY: the caller's; it may stand anywhere.
    let asked = unsafe { how.read_unaligned() };
    // What the kernel does not know either, it refuses itself.
    let flags = c_int::try_from(asked.flags).ok()?;
    let directories_only = flags & libc::O_DIRECTORY != 0 && flags & libc::O_TMPFILE != libc::O_TMPFILE;
    if flags & libc::O_PATH != 0 || directories_only {
        // Nothing that has bytes is opened.
        return None;
    }
    if asked.resolve != 0 || len > size_of::<OpenHow>() {
        let _ = refuse(c"openat2", c"resolve flags, which openat does not support", -1);
        return Some(fail(libc::ENOSYS));
    }
    // SAFETY: the caller's.
    Some(c_long::from(unsafe { open::openat(directory, path, flags, asked.mode as mode_t) }))
}

/// Whether a system call changes neither bytes nor length of a file that its first argument stands for.
fn reads(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_pread64
            | libc::SYS_readv
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_lseek
            | libc::SYS_fadvise64
            | libc::SYS_readahead
            | libc::SYS_sync_file_range
            | libc::SYS_splice
            | libc::SYS_copy_file_range
    )
}

/// What a system call by number that is not about its first argument fails with, where files are boosted.
fn boosted_by_number(number: c_long, [a, b, c, d, e, _]: [usize; 6]) -> Option<c_long> {
    // A number that may be one of ours.
    let taken = match number {
        libc::SYS_close => Some(a),
        libc::SYS_dup3 => Some(b),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => Some(b),
        _ => None,
    };
    if let Some(taken) = taken {
        client::give_up(taken as c_int);
    }
    let outcome = match number {
        // Those that have a second descriptor.
        libc::SYS_splice | libc::SYS_copy_file_range => demote(c"syscall", c as c_int),
        libc::SYS_mmap if d as c_int & libc::MAP_TYPE != libc::MAP_PRIVATE => demote(c"mmap", e as c_int),
        // SAFETY: the program's message.
        libc::SYS_sendmsg => return unsafe { messages::passing(b as *const libc::msghdr) },
        libc::SYS_execve | libc::SYS_execveat => reach::hand_down(c"exec", false),
        // Which file that is, nobody has to find out.
        libc::SYS_sendmmsg
        | libc::SYS_renameat
        | libc::SYS_renameat2
        | libc::SYS_unlinkat
        | libc::SYS_linkat
        | libc::SYS_utimensat => demote_all(c"syscall"),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_rename
        | libc::SYS_unlink
        | libc::SYS_link
        | libc::SYS_utime
        | libc::SYS_utimes
        | libc::SYS_futimesat => demote_all(c"syscall"),
        _ => Ok(()),
    };
    outcome.err().map(fail)
}

calls! {
    [syscall](number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long =
        by_number(number, [a, b, c, d, e, f]);
}
