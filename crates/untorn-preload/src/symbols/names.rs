//! Names of files. A file that is under the engine has a sidecar in its directory, where recovery looks for it; so
//! while that is so, it stays there.

use core::ffi::{CStr, c_char, c_int, c_uint};

use super::calls;
use crate::hidden::{SIDECARS, hides};
use crate::layer::{
    about_to_be_moved, about_to_be_removed, about_to_move_directory, boosts, demote_all, demote_file, fail,
    has_last_name_in, is_covered, is_regular, may_be_moved, refuse_at, some_lost_their_names, text, was_moved,
    was_removed, was_removed_from,
};
use crate::path::Path;
use crate::raw;
use crate::real::real;
use crate::settings::settings;

const HERE: c_int = libc::AT_FDCWD;

/// The refusal of a new name in another directory, if it is to be refused.
///
/// # Safety
/// Both paths are null or strings that end in a zero.
unsafe fn elsewhere(from: (c_int, *const c_char), to: (c_int, *const c_char), follow: bool) -> Option<c_int> {
    settings()?;
    if boosts() {
        // A removal of what was its only name may have been announced.
        // SAFETY: the caller's.
        return unsafe { settled(c"link", from.0, from.1, follow) };
    }
    // SAFETY: the caller's.
    let old = unsafe { text(from.1) }?;
    // SAFETY: the caller's.
    let new = unsafe { text(to.1) }?;
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    let file = raw::stat_at(from.0, old.as_ptr(), flags).ok()?;
    if !is_covered(&file) {
        return None;
    }
    let directory = |at: c_int, path: &CStr| {
        let parent = Path::parent(path)?;
        let status = raw::stat_at(at, parent.as_c_str().as_ptr(), 0).ok()?;
        Some((status.st_dev, status.st_ino))
    };
    let (before, after) = (directory(from.0, old), directory(to.0, new));
    if before.is_some() && before == after {
        return None;
    }
    let why = c"the file has uncommitted changes, so it cannot get a name in another directory";
    Some(fail(refuse_at(c"rename or link", why, -1, old)) as c_int)
}

/// Where files are boosted: leaves nothing in the log of the file that a name stands for, or of those below it, for a
/// replay looks for files where they were. What the call fails with, if that fails.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn settled(call: &CStr, directory: c_int, path: *const c_char, follow: bool) -> Option<c_int> {
    // SAFETY: the caller's.
    let path = unsafe { text(path) }?;
    let flags = if follow { libc::AT_EMPTY_PATH } else { libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW };
    let status = raw::stat_at(directory, path.as_ptr(), flags).ok()?;
    let outcome =
        if status.st_mode & libc::S_IFMT == libc::S_IFDIR { demote_all(call) } else { demote_file(call, &status) };
    outcome.err().map(|errno| fail(errno) as c_int)
}

/// Where files are boosted: removes a name by `call`. The log is told before; if the name stays, the file is made a
/// plain one, for the log takes it that it is gone if it is not where it was. What the call returns.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn removing(directory: c_int, path: *const c_char, call: impl FnOnce() -> c_int) -> c_int {
    // SAFETY: the caller's.
    let status =
        unsafe { text(path) }.and_then(|path| raw::stat_at(directory, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW).ok());
    let Some(status) = status else { return call() };
    let told = if status.st_mode & libc::S_IFMT == libc::S_IFDIR {
        demote_all(c"unlink")
    } else {
        about_to_be_removed(&status)
    };
    if let Err(errno) = told {
        return fail(errno) as c_int;
    }
    let result = call();
    if result != 0 {
        // SAFETY: the address is this thread's own.
        let errno = unsafe { *raw::errno() };
        // If that fails, the next call on the file says so.
        let _ = demote_file(c"unlink", &status);
        return fail(errno) as c_int;
    }
    result
}

/// Where files are boosted: renames by `call`. The log is told before and after, of a file that it can follow; all
/// others are plain ones before. What the call returns.
///
/// # Safety
/// Both paths are null or strings that end in a zero.
unsafe fn moving(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
    call: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    match unsafe { announced(from, to, flags) } {
        Ok(None) => {
            // SAFETY: the caller's.
            let failed = unsafe { settled(c"rename", from.0, from.1, false) };
            // SAFETY: the caller's.
            failed.or_else(|| unsafe { settled(c"rename", to.0, to.1, false) }).unwrap_or_else(call)
        }
        Ok(Some((_, false))) => call(),
        Ok(Some((status, true))) => {
            let result = call();
            // SAFETY: the address is this thread's own.
            let errno = unsafe { *raw::errno() };
            match was_moved(&status, result == 0) {
                Err(errno) if result == 0 => fail(errno) as c_int,
                _ if result == 0 => 0,
                // Whether it is a plain one by now or not, it has its old name.
                _ => fail(errno) as c_int,
            }
        }
        Err(errno) => fail(errno) as c_int,
    }
}

/// Tells the log of a rename that is about to be done: the file, and whether it has to be told what became of that.
/// `None` if it is none of a file that the log could follow.
///
/// # Safety
/// Both paths are null or strings that end in a zero.
unsafe fn announced(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
) -> Result<Option<(libc::stat, bool)>, c_int> {
    // SAFETY: the caller's.
    let (Some(old), Some(new)) = (unsafe { text(from.1) }, unsafe { text(to.1) }) else { return Ok(None) };
    let Ok(status) = raw::stat_at(from.0, old.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) else { return Ok(None) };
    let (Some(parent), Some(name)) = (Path::parent(new), last_name(new)) else { return Ok(None) };
    if flags & !libc::RENAME_NOREPLACE != 0 || !may_be_moved(&status) {
        return Ok(None);
    }
    let target = raw::stat_at(to.0, new.as_ptr(), libc::AT_SYMLINK_NOFOLLOW);
    if target.is_ok_and(|target| (target.st_dev, target.st_ino) == (status.st_dev, status.st_ino)) {
        // Its only name: nothing changes.
        return Ok(Some((status, false)));
    }
    let Ok(directory) = raw::open_directory(to.0, parent.as_c_str()) else { return Ok(None) };
    let told = about_to_be_moved(&status, directory, name);
    let _ = raw::close(directory);
    Ok(Some((status, told?)))
}

/// The name at the end of a path, if it is one that a file can have.
fn last_name(path: &CStr) -> Option<&[u8]> {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next()?;
    (!matches!(name, b"" | b"." | b"..")).then_some(name)
}

/// The refusal to rename what is a directory, if it is to be refused: something below it has changes of an open epoch.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn with_all_below(directory: (c_int, *const c_char)) -> Option<c_int> {
    settings()?;
    // SAFETY: the caller's.
    let path = unsafe { text(directory.1) }?;
    let status = raw::stat_at(directory.0, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW).ok()?;
    if status.st_mode & libc::S_IFMT != libc::S_IFDIR {
        return None;
    }
    // Without a descriptor to spare the kernel is asked to do it, and the server says later what became of it.
    let fd = raw::open_directory(directory.0, path).ok()?;
    let moved = about_to_move_directory(fd);
    let _ = raw::close(fd);
    let why = c"a file in the directory has uncommitted changes or is mapped";
    match moved {
        Ok(()) => None,
        Err(libc::EOPNOTSUPP) => Some(fail(refuse_at(c"rename", why, -1, path)) as c_int),
        Err(errno) => Some(fail(errno) as c_int),
    }
}

/// The refusal of a new place for a name, if it is to be refused; else as for [`removed`], of what has the new name.
///
/// # Safety
/// Both paths are null or strings that end in a zero.
unsafe fn renamed(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
) -> Result<Option<libc::stat>, c_int> {
    // SAFETY: the caller's.
    if let Some(refused) = unsafe { elsewhere(from, to, false) } {
        return Err(refused);
    }
    // SAFETY: the caller's.
    if let Some(refused) = unsafe { with_all_below(from) } {
        return Err(refused);
    }
    match flags & (libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE) {
        // SAFETY: the caller's.
        0 => unsafe { removed(to.0, to.1) },
        libc::RENAME_EXCHANGE => {
            // SAFETY: the caller's.
            let refused = unsafe { elsewhere(to, from, false) };
            // SAFETY: the caller's.
            refused.or_else(|| unsafe { with_all_below(to) }).map_or(Ok(None), Err)
        }
        _ => Ok(None),
    }
}

/// The refusal to remove a name, if it is to be refused: what would be left of the file is a name in a directory
/// where recovery finds no sidecar. Else the file, if it is about to lose its last name.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn removed(directory: c_int, path: *const c_char) -> Result<Option<libc::stat>, c_int> {
    if settings().is_none() {
        return Ok(None);
    }
    // SAFETY: the caller's.
    let Some(path) = (unsafe { text(path) }) else { return Ok(None) };
    let Ok(file) = raw::stat_at(directory, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) else { return Ok(None) };
    if file.st_nlink < 2 {
        return Ok(Some(file));
    }
    let parent = Path::parent(path).and_then(|parent| raw::stat_at(directory, parent.as_c_str().as_ptr(), 0).ok());
    if !parent.is_some_and(|parent| has_last_name_in(&file, &parent)) {
        return Ok(None);
    }
    let why = c"the file has uncommitted changes, so its last name beside its sidecar cannot be removed";
    Err(fail(refuse_at(c"unlink", why, -1, path)) as c_int)
}

/// Does by `call` what takes a name from what has it, if `checked` does not refuse it. What stands in a directory for
/// a recovery of files that have no name any more goes with them: nothing of it is in the way of a directory's own
/// removal. What the call returns.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn taking(
    checked: Result<Option<libc::stat>, c_int>,
    (directory, path): (c_int, *const c_char),
    call: impl Fn() -> c_int,
) -> c_int {
    let last = match checked {
        Ok(last) => last,
        Err(refused) => return refused,
    };
    let result = call();
    if result == 0 {
        if let Some(file) = last {
            was_removed(&file);
            // SAFETY: the caller's.
            unsafe { clean(directory, path, &file) };
        }
        return result;
    }
    // SAFETY: the address is this thread's own.
    let errno = unsafe { *raw::errno() };
    // Who removed the files may have been killed before it said so, or be no program of the run.
    // SAFETY: the caller's.
    let in_the_way = matches!(errno, libc::ENOTEMPTY | libc::EEXIST) && unsafe { has_sidecars(directory, path) };
    if in_the_way && some_lost_their_names().is_ok() { call() } else { fail(errno) as c_int }
}

/// Has removed what a crash left beside a file, or `untorn protect` put there, that has just lost its last name.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn clean(directory: c_int, path: *const c_char, file: &libc::stat) {
    // SAFETY: the caller's.
    let path = if hides() && is_regular(file) { unsafe { text(path) } } else { None };
    let Some(parent) = path.and_then(Path::parent) else { return };
    if !has_leftovers(directory, &parent, file.st_ino) {
        return;
    }
    // A file that is renamed over itself keeps its name.
    let now = path.and_then(|path| raw::stat_at(directory, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW).ok());
    if now.is_some_and(|now| (now.st_dev, now.st_ino) == (file.st_dev, file.st_ino)) {
        return;
    }
    if let Ok(at) = raw::open_directory(directory, parent.as_c_str()) {
        was_removed_from(at, file);
        let _ = raw::close(at);
    }
}

/// Whether anything stands in a directory beside the file with an inode.
#[inline(never)] // The path stands on the stack no longer than this takes.
fn has_leftovers(directory: c_int, parent: &Path, inode: u64) -> bool {
    let mut digits = [b'0'; 20];
    let mut rest = inode;
    for digit in digits.iter_mut().rev() {
        *digit += (rest % 10) as u8;
        rest /= 10;
    }
    let zeros = digits.iter().take_while(|digit| **digit == b'0').count();
    let number = digits.get(zeros..).unwrap_or_default();
    let stands = |pieces: [&[u8]; 3]| {
        let path = Path::of(&[parent.bytes(), b"/", SIDECARS.to_bytes(), pieces[0], pieces[1], pieces[2]]);
        path.is_some_and(|path| raw::stat_at(directory, path.as_c_str().as_ptr(), libc::AT_SYMLINK_NOFOLLOW).is_ok())
    };
    // Where there is nothing at all that is found out at once.
    stands([b"", b"", b""]) && (stands([b"/", number, b""]) || stands([b"/", number, b".redundancy"]))
}

/// Whether there is a directory of sidecars in a directory.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn has_sidecars(directory: c_int, path: *const c_char) -> bool {
    // SAFETY: the caller's.
    let path = if hides() { unsafe { text(path) } } else { None };
    let path = path.and_then(|path| Path::of(&[path.to_bytes(), b"/", SIDECARS.to_bytes()]));
    path.is_some_and(|path| raw::stat_at(directory, path.as_c_str().as_ptr(), libc::AT_SYMLINK_NOFOLLOW).is_ok())
}

/// Renames by `call`, in either mode.
///
/// # Safety
/// Both paths are null or strings that end in a zero.
unsafe fn put(
    from: (c_int, *const c_char),
    to: (c_int, *const c_char),
    flags: c_uint,
    call: impl Fn() -> c_int,
) -> c_int {
    if boosts() {
        // SAFETY: the caller's.
        unsafe { moving(from, to, flags, call) }
    } else {
        // SAFETY: the caller's.
        let checked = unsafe { renamed(from, to, flags) };
        // SAFETY: the caller's.
        unsafe { taking(checked, to, call) }
    }
}

/// Removes a name by `call`, in either mode.
///
/// # Safety
/// The path is null or a string that ends in a zero.
unsafe fn take(directory: c_int, path: *const c_char, call: impl Fn() -> c_int) -> c_int {
    if boosts() {
        // SAFETY: the caller's.
        unsafe { removing(directory, path, call) }
    } else {
        // SAFETY: the caller's.
        let checked = unsafe { removed(directory, path) };
        // SAFETY: the caller's.
        unsafe { taking(checked, (directory, path), call) }
    }
}

// SAFETY (of all below): the paths are the program's, and end in a zero.
calls! {
    [rename](old: *const c_char, new: *const c_char) -> c_int = {
        let call = || real!(rename(old: *const c_char, new: *const c_char) -> c_int);
        // SAFETY: see above.
        Some(unsafe { put((HERE, old), (HERE, new), 0, call) })
    };
    [renameat](from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int = {
        let call = || real!(renameat(from: c_int, old: *const c_char, to: c_int, new: *const c_char) -> c_int);
        // SAFETY: see above.
        Some(unsafe { put((from, old), (to, new), 0, call) })
    };
    [renameat2](from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int = {
        let call = || {
            real!(renameat2(from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_uint) -> c_int)
        };
        // SAFETY: see above.
        Some(unsafe { put((from, old), (to, new), flags, call) })
    };
    [unlink](path: *const c_char) -> c_int = {
        let call = || real!(unlink(path: *const c_char) -> c_int);
        // SAFETY: see above.
        Some(unsafe { take(HERE, path, call) })
    };
    [remove](path: *const c_char) -> c_int = {
        let call = || real!(remove(path: *const c_char) -> c_int);
        // SAFETY: see above.
        Some(unsafe { take(HERE, path, call) })
    };
    [unlinkat](directory: c_int, path: *const c_char, flags: c_int) -> c_int = {
        let call = || real!(unlinkat(directory: c_int, path: *const c_char, flags: c_int) -> c_int);
        // SAFETY: see above.
        Some(unsafe { take(directory, path, call) })
    };
    // Of a directory no log knows.
    [rmdir](path: *const c_char) -> c_int = hides().then(|| {
        let call = || real!(rmdir(path: *const c_char) -> c_int);
        // SAFETY: see above.
        unsafe { taking(Ok(None), (HERE, path), call) }
    });
    [link](old: *const c_char, new: *const c_char) -> c_int =
        // SAFETY: see above.
        unsafe { elsewhere((HERE, old), (HERE, new), false) };
    [linkat](from: c_int, old: *const c_char, to: c_int, new: *const c_char, flags: c_int) -> c_int =
        // SAFETY: see above.
        unsafe { elsewhere((from, old), (to, new), flags & libc::AT_SYMLINK_FOLLOW != 0) };
}
