//! Directories, and walks over them. The C library asks for the status of each file by calls that only it sees; what the server knows is laid
//! over what it found before the program is shown it.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_long, c_short, c_ushort, c_void};
use core::ptr::null_mut;

use libc::stat as Status;

use super::calls;
use super::status::seen_of;
use crate::layer::{fail, managed};
use crate::real::watched;
use crate::settings::settings;

/// What a program has called for each file: of `ftw`, and of `nftw`.
type Simple = unsafe extern "C" fn(*const c_char, *const Status, c_int) -> c_int;
type Each = unsafe extern "C" fn(*const c_char, *const Status, c_int, *mut c_void) -> c_int;

std::thread_local! {
    /// That of the walk that this thread is on.
    static SIMPLE: Cell<Option<Simple>> = const { Cell::new(None) };
    static EACH: Cell<Option<Each>> = const { Cell::new(None) };
}

/// Nobody's status is asked for by a walk that found none (`FTW_NS`).
const NO_STATUS: c_int = 3;

/// The status of a file, as the program is to see it.
///
/// # Safety
/// `status` is null or points to one, if `kind` is not that of a file without one.
unsafe fn shown(status: *const Status, kind: c_int) -> Option<Status> {
    if kind == NO_STATUS {
        return None;
    }
    // SAFETY: the caller's.
    let status = unsafe { status.as_ref() }?;
    seen_of(status)
}

/// Called by `ftw`.
///
/// # Safety
/// As the C library calls it.
unsafe extern "C" fn simple(path: *const c_char, status: *const Status, kind: c_int) -> c_int {
    let Some(call) = SIMPLE.get() else { return 0 };
    // SAFETY: the C library's.
    let shown = unsafe { shown(status, kind) };
    let status = shown.as_ref().map_or(status, |shown| &raw const *shown);
    // SAFETY: the program's function, with what it is to be called with.
    let result = unsafe { call(path, status, kind) };
    // It may have walked itself.
    SIMPLE.set(Some(call));
    result
}

/// Called by `nftw`.
///
/// # Safety
/// As the C library calls it.
unsafe extern "C" fn each(path: *const c_char, status: *const Status, kind: c_int, place: *mut c_void) -> c_int {
    let Some(call) = EACH.get() else { return 0 };
    // SAFETY: the C library's.
    let shown = unsafe { shown(status, kind) };
    let status = shown.as_ref().map_or(status, |shown| &raw const *shown);
    // SAFETY: the program's function, with what it is to be called with.
    let result = unsafe { call(path, status, kind, place) };
    // It may have walked itself.
    EACH.set(Some(call));
    result
}

/// Whether the server may know more of files than the kernel.
fn may_differ() -> bool {
    settings().is_some_and(|settings| !settings.boost)
}

/// The beginning of the C library's `FTSENT`, which is part of its interface.
#[repr(C)]
pub(super) struct Entry {
    cycle: *mut c_void,
    parent: *mut c_void,
    next: *mut Entry,
    number: c_long,
    pointer: *mut c_void,
    paths: [*mut c_char; 2],
    errno: c_int,
    link: c_int,
    lens: [c_ushort; 2],
    inode: libc::ino_t,
    device: libc::dev_t,
    links: libc::nlink_t,
    level: c_short,
    info: c_ushort,
    flags: c_ushort,
    instruction: c_ushort,
    status: *mut Status,
}

/// What `fts` says of a regular file, be it the end of a link or not (`FTS_F`).
const REGULAR: c_ushort = 8;

/// Lays what the server knows over the status of an entry.
///
/// # Safety
/// `entry` is null or one of the C library's.
unsafe fn lay_over(entry: *mut Entry) {
    // SAFETY: the caller's.
    let Some(entry) = (unsafe { entry.as_ref() }) else { return };
    if entry.info != REGULAR {
        return;
    }
    // SAFETY: of a regular file there is one.
    let Some(status) = (unsafe { entry.status.as_mut() }) else { return };
    if let Some(shown) = seen_of(status) {
        *status = shown;
    }
}

/// Lays what the server knows over the status of an entry, and of those that follow it.
///
/// # Safety
/// `entry` is null or one of the C library's.
unsafe fn lay_over_all(mut entry: *mut Entry) {
    while !entry.is_null() {
        // SAFETY: the caller's.
        unsafe { lay_over(entry) };
        // SAFETY: the list of the C library ends in a null.
        entry = unsafe { (*entry).next };
    }
}

// SAFETY (of all below): the program's paths and functions, and its walk.
calls! {
    // The C library looks first whether it is a directory's, and a managed one is not.
    [fdopendir](fd: c_int) -> *mut c_void = if managed(fd) {
        fail(libc::ENOTDIR);
        Some(null_mut())
    } else {
        None
    };
    [ftw ftw64](path: *const c_char, call: Option<Simple>, most: c_int) -> c_int = Some({
        let before = SIMPLE.replace(call);
        let call = if may_differ() && call.is_some() { Some(simple as Simple) } else { call };
        let result = watched!(ftw(path: *const c_char, call: Option<Simple>, most: c_int) -> c_int);
        SIMPLE.set(before);
        result
    });
    [nftw nftw64](path: *const c_char, call: Option<Each>, most: c_int, flags: c_int) -> c_int = Some({
        let before = EACH.replace(call);
        let call = if may_differ() && call.is_some() { Some(each as Each) } else { call };
        let result = watched!(nftw(path: *const c_char, call: Option<Each>, most: c_int, flags: c_int) -> c_int);
        EACH.set(before);
        result
    });
    [fts_read fts64_read](walk: *mut c_void) -> *mut Entry = Some({
        let entry = watched!(fts_read(walk: *mut c_void) -> *mut Entry);
        if may_differ() {
            // SAFETY: see above.
            unsafe { lay_over(entry) };
        }
        entry
    });
    [fts_children fts64_children](walk: *mut c_void, flags: c_int) -> *mut Entry = Some({
        let first = watched!(fts_children(walk: *mut c_void, flags: c_int) -> *mut Entry);
        if may_differ() {
            // SAFETY: see above.
            unsafe { lay_over_all(first) };
        }
        first
    });
}
