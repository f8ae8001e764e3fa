//! `dprintf` and its kin.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;

use libc::size_t;

#[cfg(target_arch = "x86_64")]
use super::listed;
use super::{calls, data};
use crate::layer::{boosts, demoted, managed};
use crate::real::real;

// SAFETY (of all below): the program's strings, which end in a zero, and its arguments.
calls! {
    [vdprintf](fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int = print(fd, format, arguments);
    [__vdprintf_chk](fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int =
        print(fd, format, arguments);
}

/// `vdprintf`, by way of memory.
fn print(fd: c_int, format: *const c_char, arguments: *mut c_void) -> Option<c_int> {
    if boosts() || !managed(fd) {
        return demoted(c"dprintf", &[fd]).map(|failed| failed as c_int);
    }
    let mut made: *mut c_char = null_mut();
    let into = &raw mut made;
    let count = real!(vasprintf(into: *mut *mut c_char, format: *const c_char, arguments: *mut c_void) -> c_int);
    if count < 0 {
        return Some(count);
    }
    let written = data::write_at(fd, made.cast_const().cast(), count as size_t, -1);
    // SAFETY: made by the C library for us.
    unsafe { libc::free(made.cast()) };
    Some(crate::layer::returned(written) as c_int)
}

#[cfg(target_arch = "x86_64")]
listed! {
    dprintf by vdprintf;
    __dprintf_chk by __vdprintf_chk after three;
}
