//! Directories, and walks over them. The C library asks for the status of each file by calls that only it sees; what
//! the server knows is laid over what it found before the program is shown it, and it is not shown the directory of
//! sidecars.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_long, c_short, c_ushort, c_void};
use core::mem::offset_of;
use core::ptr::null_mut;

use libc::stat as Status;

use super::calls;
use super::status::seen_of;
use crate::hidden::{hides, is_sidecars, name_of};
use crate::layer::{fail, managed};
use crate::real::watched;

/// What a program has called for each file: of `ftw`, and of `nftw`.
type Simple = unsafe extern "C" fn(*const c_char, *const Status, c_int) -> c_int;
type Each = unsafe extern "C" fn(*const c_char, *const Status, c_int, *mut c_void) -> c_int;

std::thread_local! {
    /// That of the walk that this thread is on.
    static SIMPLE: Cell<Option<Simple>> = const { Cell::new(None) };
    static EACH: Cell<Option<Each>> = const { Cell::new(None) };
    /// How long the path is from which the C library goes down.
    static ROOT: Cell<usize> = const { Cell::new(0) };
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

/// Whether a walk has come to the directory of sidecars, or into it, by its own way down.
///
/// # Safety
/// `path` ends in a zero; `status` is null or points to one, if `kind` is not that of a file without one.
unsafe fn is_out_of_sight(path: *const c_char, status: *const Status, kind: c_int) -> bool {
    // SAFETY: the caller's.
    let path = unsafe { name_of(path) };
    let mut below = path.get(ROOT.get()..).unwrap_or_default().split(|byte| *byte == b'/');
    let last = below.next_back();
    // SAFETY: the caller's.
    let status = if kind == NO_STATUS { None } else { unsafe { status.as_ref() } };
    let is_directory = status.is_some_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFDIR);
    below.any(is_sidecars) || is_directory && last.is_some_and(is_sidecars)
}

/// Walks from a path; what it was that the thread walked from before is so again afterwards.
///
/// # Safety
/// `path` is null or ends in a zero.
unsafe fn walked(path: *const c_char, walk: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's.
    let root = if path.is_null() { &[] } else { unsafe { name_of(path) } };
    // The C library leaves out slashes at the end.
    let len = root.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let before = ROOT.replace(len);
    let result = walk();
    ROOT.set(before);
    result
}

/// Called by `ftw`.
///
/// # Safety
/// As the C library calls it.
unsafe extern "C" fn simple(path: *const c_char, status: *const Status, kind: c_int) -> c_int {
    let Some(call) = SIMPLE.get() else { return 0 };
    // SAFETY: the C library's.
    if unsafe { is_out_of_sight(path, status, kind) } {
        return 0;
    }
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
    if unsafe { is_out_of_sight(path, status, kind) } {
        return 0;
    }
    // SAFETY: the C library's.
    let shown = unsafe { shown(status, kind) };
    let status = shown.as_ref().map_or(status, |shown| &raw const *shown);
    // SAFETY: the program's function, with what it is to be called with.
    let result = unsafe { call(path, status, kind, place) };
    // It may have walked itself.
    EACH.set(Some(call));
    result
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
    name: [c_char; 1],
}

/// What `fts` says of directories, also those that it may not read or was at already (`FTS_D`, `FTS_DC`, `FTS_DNR`,
/// `FTS_DP`).
const DIRECTORIES: [c_ushort; 4] = [1, 2, 4, 6];

/// `fts_children` is asked for names only, so it does not find out which are directories (`FTS_NAMEONLY`).
const NAMES_ONLY: c_int = 0x100;

/// What `fts` is told that is not to go down (`FTS_SKIP`).
const SKIP: c_ushort = 4;

/// Whether an entry is the directory of sidecars, by its name alone if that is all that is known of it. Where a walk
/// begins the program says what it is to see.
///
/// # Safety
/// `entry` is null or one of the C library's.
unsafe fn is_left_out(entry: *const Entry, names_only: bool) -> bool {
    let name = entry.wrapping_byte_add(offset_of!(Entry, name));
    // SAFETY: the caller's.
    let Some(entry) = (unsafe { entry.as_ref() }) else { return false };
    // SAFETY: of an entry of the C library's, where it goes on behind what is declared of it, and ends in a zero.
    let name = unsafe { name_of(name.cast()) };
    (names_only || DIRECTORIES.contains(&entry.info)) && entry.level > 0 && is_sidecars(name)
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

/// What follows an entry in a list, which loses the directory of sidecars if that is next.
///
/// # Safety
/// `entry` is one of a list of the C library's, which ends in a null.
unsafe fn next_of(entry: *mut Entry, names_only: bool) -> *mut Entry {
    // SAFETY: the caller's.
    let Some(entry) = (unsafe { entry.as_mut() }) else { return null_mut() };
    let next = entry.next;
    // SAFETY: the caller's.
    if unsafe { is_left_out(next, names_only) } {
        // SAFETY: it is not null.
        entry.next = unsafe { (*next).next };
        // SAFETY: each entry was allocated by itself, and nobody knows of this one any more.
        unsafe { libc::free(next.cast()) };
    }
    entry.next
}

/// Lays what the server knows over the status of an entry, and of those that follow it, without the directory of
/// sidecars. The first that is left.
///
/// # Safety
/// `first` is null or the first of a list of the C library's.
unsafe fn lay_over_all(first: *mut Entry, names_only: bool) -> *mut Entry {
    // The C library has kept where the list begins: the first one stays, and is passed over when it is its turn.
    // SAFETY: the caller's.
    let is_first = unsafe { is_left_out(first, names_only) };
    // SAFETY: the caller's.
    let first = if is_first { unsafe { next_of(first, names_only) } } else { first };
    let mut entry = first;
    while !entry.is_null() {
        // SAFETY: the caller's.
        unsafe { lay_over(entry) };
        // SAFETY: the caller's.
        entry = unsafe { next_of(entry, names_only) };
    }
    first
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
        let call = if hides() && call.is_some() { Some(simple as Simple) } else { call };
        let walk = || watched!(ftw(path: *const c_char, call: Option<Simple>, most: c_int) -> c_int);
        // SAFETY: see above.
        let result = unsafe { walked(path, walk) };
        SIMPLE.set(before);
        result
    });
    [nftw nftw64](path: *const c_char, call: Option<Each>, most: c_int, flags: c_int) -> c_int = Some({
        let before = EACH.replace(call);
        let call = if hides() && call.is_some() { Some(each as Each) } else { call };
        let walk = || watched!(nftw(path: *const c_char, call: Option<Each>, most: c_int, flags: c_int) -> c_int);
        // SAFETY: see above.
        let result = unsafe { walked(path, walk) };
        EACH.set(before);
        result
    });
    [fts_read fts64_read](walk: *mut c_void) -> *mut Entry = Some(loop {
        let entry = watched!(fts_read(walk: *mut c_void) -> *mut Entry);
        if !hides() {
            break entry;
        }
        // SAFETY: see above.
        if !unsafe { is_left_out(entry, false) } {
            // SAFETY: see above.
            unsafe { lay_over(entry) };
            break entry;
        }
        // SAFETY: the C library's entry, which it reads this of when it goes on.
        unsafe { (*entry).instruction = SKIP };
    });
    [fts_children fts64_children](walk: *mut c_void, flags: c_int) -> *mut Entry = Some({
        let first = watched!(fts_children(walk: *mut c_void, flags: c_int) -> *mut Entry);
        // SAFETY: see above.
        if hides() { unsafe { lay_over_all(first, flags & NAMES_ONLY != 0) } } else { first }
    });
}
