//! What is in a directory, without the directory of sidecars. Positions in a directory (`telldir`, `d_off`) stay the
//! kernel's: an entry that is left out is passed over whenever it is come upon.

use core::cell::Cell;
use core::ffi::{c_char, c_int, c_long, c_void};

use libc::{dirent, size_t, ssize_t};

use super::calls;
use crate::hidden::{hides, is_hidden, is_hidden_entry};
use crate::layer::fail;
use crate::raw::{self, word};
use crate::real::real;

/// What a program has called by `scandir`, to choose entries.
type Filter = unsafe extern "C" fn(*const dirent) -> c_int;

std::thread_local! {
    /// That of the call of `scandir` that this thread is in.
    static FILTER: Cell<Option<Filter>> = const { Cell::new(None) };
}

/// Called by `scandir`, which reads the directory by calls that only the C library sees.
///
/// # Safety
/// As the C library calls it.
unsafe extern "C" fn chosen(entry: *const dirent) -> c_int {
    // SAFETY: the C library's.
    if unsafe { is_hidden_entry(entry) } {
        return 0;
    }
    // SAFETY: the program's function, with what it is to be called with.
    FILTER.get().map_or(1, |call| unsafe { call(entry) })
}

/// Has `scan` choose entries by the program's filter, but for the one that is left out.
fn scanned(filter: Option<Filter>, scan: impl FnOnce(Option<Filter>) -> c_int) -> c_int {
    let before = FILTER.replace(filter);
    let result = scan(Some(chosen));
    FILTER.set(before);
    result
}

/// Reads entries by one of the two system calls that do so.
///
/// # Safety
/// As for `getdents64(2)`.
pub(super) unsafe fn entries(number: c_long, fd: c_int, into: *mut c_void, len: size_t) -> c_long {
    loop {
        // SAFETY: the kernel checks the memory.
        let filled = match unsafe { raw::result(number, [word(fd), into as usize, len, 0, 0, 0]) } {
            Ok(0) => return 0,
            Ok(filled) => filled,
            Err(errno) => return fail(errno),
        };
        // SAFETY: the kernel just filled it, so it is the program's memory.
        let all = unsafe { core::slice::from_raw_parts_mut(into.cast::<u8>(), filled) };
        let left = without_sidecars(all, number == libc::SYS_getdents64);
        // Nothing would mean that this is the end.
        if left > 0 {
            return left as c_long;
        }
    }
}

/// Takes the directory of sidecars out of entries as the kernel has them; how many bytes are left. In the older form
/// the kind stands behind the name, in the last byte.
fn without_sidecars(entries: &mut [u8], with_kind_first: bool) -> usize {
    /// Where an entry has its length, and what follows it.
    const LEN: usize = 16;
    const REST: usize = 18;
    let (mut at, mut end) = (0, entries.len());
    while let Some(entry) = entries.get(at..end) {
        let Some(len) = entry.get(LEN..).and_then(|rest| rest.first_chunk()) else { break };
        let len = usize::from(u16::from_ne_bytes(*len));
        let Some(rest) = entry.get(REST..len) else { break };
        let parts = if with_kind_first {
            rest.split_first().map(|(kind, name)| (name, *kind))
        } else {
            rest.split_last().map(|(kind, name)| (name, *kind))
        };
        let Some((name, kind)) = parts else { break };
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        if is_hidden(name, kind) {
            entries.copy_within(at + len..end, at);
            end -= len;
        } else {
            at += len;
        }
    }
    end
}

// SAFETY (of all below): the program's directory, and what the C library found in it.
calls! {
    [readdir readdir64](directory: *mut c_void) -> *mut dirent = hides().then(|| loop {
        let entry = real!(readdir(directory: *mut c_void) -> *mut dirent);
        // SAFETY: see above.
        if !unsafe { is_hidden_entry(entry) } {
            break entry;
        }
    });
    [readdir_r readdir64_r](directory: *mut c_void, into: *mut dirent, found: *mut *mut dirent) -> c_int =
        hides().then(|| loop {
            let result = real!(
                readdir_r(directory: *mut c_void, into: *mut dirent, found: *mut *mut dirent) -> c_int
            );
            if result != 0 {
                break result;
            }
            // SAFETY: the C library just said there what it found.
            let found = unsafe { *found };
            // SAFETY: see above.
            if !unsafe { is_hidden_entry(found) } {
                break result;
            }
        });
    [scandir scandir64](
        path: *const c_char, list: *mut c_void, filter: Option<Filter>, order: *const c_void
    ) -> c_int = hides().then(|| scanned(filter, |filter| real!(scandir(
        path: *const c_char, list: *mut c_void, filter: Option<Filter>, order: *const c_void
    ) -> c_int)));
    [scandirat scandirat64](
        directory: c_int, path: *const c_char, list: *mut c_void, filter: Option<Filter>, order: *const c_void
    ) -> c_int = hides().then(|| scanned(filter, |filter| real!(scandirat(
        directory: c_int, path: *const c_char, list: *mut c_void, filter: Option<Filter>, order: *const c_void
    ) -> c_int)));
    [getdents64](fd: c_int, into: *mut c_void, len: size_t) -> ssize_t =
        // SAFETY: the kernel checks the memory.
        hides().then(|| unsafe { entries(libc::SYS_getdents64, fd, into, len) } as ssize_t);
}
