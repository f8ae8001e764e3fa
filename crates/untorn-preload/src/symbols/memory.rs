//! Mappings: private ones, which are copies, and shared ones ([`mapped`]).

use core::ffi::{c_int, c_void};

use libc::{off_t, size_t};

use super::{calls, data};
use crate::layer::{boosts, demoted, fail, managed};
use crate::mapped::{self, Wanted};
use crate::raw::{self, word};
use crate::real::real;
use crate::settings::settings;

/// madvise(2), Linux 6.13; where stores wait to be heard of the kernel never comes to its end with it (6.18).
const MADV_GUARD_INSTALL: c_int = 102;

/// A private mapping: a copy, for whether later changes show in it is left open (mmap(2)).
fn copied(
    place: *mut c_void,
    len: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: off_t,
) -> Result<*mut c_void, c_int> {
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

/// `mmap` of a managed descriptor.
fn map(fd: c_int, wanted: Wanted) -> *mut c_void {
    let mapped = match wanted.flags & libc::MAP_TYPE {
        libc::MAP_PRIVATE => {
            copied(wanted.place as *mut c_void, wanted.len, wanted.protection, wanted.flags, fd, wanted.offset)
        }
        libc::MAP_SHARED | libc::MAP_SHARED_VALIDATE => mapped::shared(fd, wanted).map(|start| start as *mut c_void),
        _ => Err(libc::EINVAL),
    };
    mapped.unwrap_or_else(|errno| {
        fail(errno);
        libc::MAP_FAILED
    })
}

/// What has been done to memory that a shared mapping may have been in.
fn replaced(place: *const c_void, len: size_t, done: bool) {
    if done && mapped::may_be_in(place as usize, len) {
        mapped::were_unmapped(place as usize, len);
    }
}

calls! {
    [mmap mmap64](
        place: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t
    ) -> *mut c_void = if boosts() {
        // What is written to a private one stays there. A shared one may be made writable later.
        let writes = flags & libc::MAP_ANONYMOUS == 0 && flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
        let failed = if writes { demoted(c"mmap", &[fd]) } else { None };
        failed.map(|_| libc::MAP_FAILED)
    } else {
        let mapped = if flags & libc::MAP_ANONYMOUS == 0 && managed(fd) {
            Some(map(fd, Wanted { place: place as usize, len, protection, flags, offset }))
        } else if flags & libc::MAP_FIXED != 0 && mapped::may_be_in(place as usize, len) {
            Some(real!(mmap(
                place: *mut c_void, len: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t
            ) -> *mut c_void))
        } else {
            None
        };
        replaced(place, len, flags & libc::MAP_FIXED != 0 && mapped.is_some_and(|mapped| mapped != libc::MAP_FAILED));
        mapped
    };
    [munmap](place: *mut c_void, len: size_t) -> c_int = if mapped::may_be_in(place as usize, len) {
        let result = real!(munmap(place: *mut c_void, len: size_t) -> c_int);
        replaced(place, len, result == 0);
        Some(result)
    } else {
        None
    };
    [msync](place: *mut c_void, len: size_t, flags: c_int) -> c_int = if mapped::may_be_in(place as usize, len) {
        // Whether the arguments are right the kernel knows; there is nothing that it could write back of these
        // mappings.
        let result = real!(msync(place: *mut c_void, len: size_t, flags: c_int) -> c_int);
        // Without the flag it is to begin with writing, and promises nothing.
        Some(match if result == 0 && flags & libc::MS_SYNC != 0 { mapped::sync(place as usize, len) } else { Ok(()) } {
            Ok(()) => result,
            Err(errno) => fail(errno) as c_int,
        })
    } else {
        None
    };
    [mremap](old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, place: *mut c_void) -> *mut c_void =
        if mapped::may_be_in(old as usize, old_len.max(1))
            || flags & libc::MREMAP_FIXED != 0 && mapped::may_be_in(place as usize, len)
        {
            match mapped::again(old as usize, old_len, len, flags) {
                Some(Ok(start)) => Some(start as *mut c_void),
                Some(Err(errno)) => {
                    fail(errno);
                    Some(libc::MAP_FAILED)
                }
                None => {
                    let moved = real!(mremap(
                        old: *mut c_void, old_len: size_t, len: size_t, flags: c_int, place: *mut c_void
                    ) -> *mut c_void);
                    replaced(place, len, flags & libc::MREMAP_FIXED != 0 && moved != libc::MAP_FAILED);
                    Some(moved)
                }
            }
        } else {
            None
        };
    // `fork` calls the functions for a child; this does not.
    [_Fork]() -> libc::pid_t = {
        let child = real!(_Fork() -> libc::pid_t);
        if child == 0 && settings().is_some() {
            mapped::in_child();
        }
        Some(child)
    };
    [madvise](place: *mut c_void, len: size_t, advice: c_int) -> c_int =
        {
            let why = match advice {
                libc::MADV_REMOVE => Some(c"would remove bytes of the file outside the epoch"),
                MADV_GUARD_INSTALL => Some(c"would disable the write protection that detects stores"),
                _ => None,
            };
            why.filter(|_| mapped::may_be_in(place as usize, len))
                .and_then(|why| mapped::refused(c"madvise", why, place as usize, len))
                .map(|errno| fail(errno) as c_int)
        };
    [remap_file_pages](place: *mut c_void, len: size_t, protection: c_int, offset: size_t, flags: c_int) -> c_int =
        if mapped::may_be_in(place as usize, len) {
            mapped::refused(c"remap_file_pages", c"would rearrange the pages of a mapping", place as usize, len)
                .map(|errno| fail(errno) as c_int)
        } else {
            None
        };
}
