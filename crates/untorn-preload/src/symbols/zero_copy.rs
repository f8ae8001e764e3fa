//! `sendfile` and `copy_file_range` with a managed descriptor: copied by way of memory.

use core::ffi::{c_int, c_uint, c_void};

use libc::{off_t, size_t, ssize_t};

use super::{calls, data};
use crate::layer::{boosts, demoted, fail, managed, refuse};

/// Bytes copied at a time.
const PIECE: usize = 16 << 10;

/// Copies by way of memory, from `offset` or the descriptor's own.
fn by_memory(out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
    let mut buffer = [0_u8; PIECE];
    let mut done = 0;
    // SAFETY: null, or the program's offset.
    let mut at = unsafe { offset.as_ref() }.copied();
    while done < count {
        let piece = (count - done).min(PIECE);
        let into = buffer.as_mut_ptr().cast::<c_void>();
        let read = match at {
            // SAFETY: into our buffer.
            Some(at) => unsafe { data::pread(from, into, piece, at) },
            // SAFETY: into our buffer.
            None => unsafe { data::read(from, into, piece) },
        };
        if read <= 0 {
            if read < 0 && done == 0 {
                return -1;
            }
            break;
        }
        // SAFETY: what was read into our buffer.
        let written = unsafe { data::write(out, buffer.as_ptr().cast(), read as usize) };
        if written < read && at.is_none() {
            // What was not written was not taken either. On a pipe that is not so; it is no managed file then, and its reader has
            // what it has.
            // SAFETY: takes numbers.
            let _ = unsafe { data::lseek(from, written.max(0) as off_t - read as off_t, libc::SEEK_CUR) };
        }
        if written < 0 {
            if done == 0 {
                return -1;
            }
            break;
        }
        done += written as usize;
        at = at.map(|at| at + written as off_t);
        if written < read {
            break;
        }
    }
    if let (Some(at), false) = (at, offset.is_null()) {
        // SAFETY: the program's offset.
        unsafe { *offset = at };
    }
    done as ssize_t
}

/// Programs copy otherwise if this is told no, and the kernel tells it too.
fn no_range(from: c_int, to: c_int) -> Option<ssize_t> {
    if boosts() {
        return demoted(c"copy_file_range", &[from, to]).map(|failed| failed as ssize_t);
    }
    let fd = [from, to].into_iter().find(|fd| managed(*fd))?;
    Some(fail(refuse(c"copy_file_range", c"the kernel would move bytes past the epoch", fd)) as ssize_t)
}

calls! {
    [sendfile sendfile64](out: c_int, from: c_int, offset: *mut off_t, count: size_t) -> ssize_t =
        if boosts() {
            demoted(c"sendfile", &[out, from]).map(|failed| failed as ssize_t)
        } else if managed(out) || managed(from) { Some(by_memory(out, from, offset, count)) } else { None };
    [copy_file_range](
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, count: size_t, flags: c_uint
    ) -> ssize_t = no_range(from, to);
}
