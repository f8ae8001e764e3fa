//! The beginning and the end of processes.

use core::ffi::{c_int, c_void};
use core::ptr::null_mut;

use super::{descriptors, open, stdio};
use crate::layer::exits;
use crate::settings::{set_up, settings};
use crate::{raw, raw::word};

/// Set up when the layer is loaded, before the program.
extern "C" fn loaded() {
    set_up();
    stdio::set_up();
    if settings().is_some() {
        crate::mapped::watch_forks();
        // The first that is registered is the last that runs.
        // SAFETY: the function lives as long as the process.
        let _ = unsafe { __cxa_at_quick_exit(ending_quickly, null_mut()) };
    }
    #[cfg(all(feature = "oracle", target_arch = "x86_64"))]
    crate::oracle::set_up();
}

/// After the program's own functions of `atexit`.
extern "C" fn unloaded() {
    stdio::flush();
    exits();
}

/// After the program's own functions of `at_quick_exit`.
extern "C" fn ending_quickly(_: *mut c_void) {
    exits();
}

// SAFETY: the C library's, with this signature (it is what `at_quick_exit(3)` is made of).
unsafe extern "C" {
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

/// `daemon`, whose parent ends by a call that only the C library sees.
///
/// # Safety
/// None is needed: it takes numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int {
    // SAFETY: what the program asked for.
    match unsafe { libc::fork() } {
        -1 => return -1,
        0 => {}
        _ => end(0),
    }
    // SAFETY: takes nothing.
    if unsafe { libc::setsid() } == -1 {
        return -1;
    }
    if keep_directory == 0 {
        // SAFETY: a path that ends in a zero.
        let _ = unsafe { libc::chdir(c"/".as_ptr()) };
    }
    if keep_streams == 0 {
        // SAFETY: a path that ends in a zero.
        let null = unsafe { open::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0) };
        if null < 0 {
            return -1;
        }
        for standard in 0..=2 {
            // SAFETY: takes numbers.
            let _ = unsafe { descriptors::dup2(null, standard) };
        }
        if null > 2 {
            let _ = raw::close(null);
        }
    }
    0
}

/// `_exit`: ends the process because it wants to.
pub(super) fn end(status: c_int) -> ! {
    exits();
    loop {
        // SAFETY: takes a number, and does not return.
        let _ = unsafe { raw::call(libc::SYS_exit_group, [word(status), 0, 0, 0, 0, 0]) };
    }
}

/// `_exit`.
///
/// # Safety
/// None is needed: it takes a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _exit(status: c_int) -> ! {
    end(status)
}

/// `_Exit`.
///
/// # Safety
/// None is needed: it takes a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Exit(status: c_int) -> ! {
    end(status)
}
