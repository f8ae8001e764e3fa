//! What untorn keeps beside managed files, and on them. Programs do not see it: they would copy it, and take it for
//! what is left in a directory. Boosted files have nothing of the kind.

use core::ffi::{CStr, c_char};
use core::mem::offset_of;

use libc::dirent;

use crate::settings::settings;

/// The directory with the sidecars of the files of a directory.
pub(crate) const SIDECARS: &CStr = c".untorn";

/// Whether a name is that of a directory with sidecars: `.untorn`, or `.untorn-UID` beside a stranger's.
pub(crate) fn is_sidecars(name: &[u8]) -> bool {
    match name.strip_prefix(SIDECARS.to_bytes()) {
        Some([]) => true,
        Some([b'-', digits @ ..]) => !digits.is_empty() && digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

/// The extended attribute by which a file says that it has a sidecar.
pub(crate) const MARK: &CStr = c"user.untorn";

/// Whether there may be anything to hide.
pub(crate) fn hides() -> bool {
    settings().is_some_and(|settings| !settings.boost)
}

/// Whether an entry of a directory, of this name and kind (`DT_…`), is to be left out. A file system that tells no
/// kinds is taken at the name's word: to ask it would cost a system call where least is expected.
pub(crate) fn is_hidden(name: &[u8], kind: u8) -> bool {
    is_sidecars(name) && matches!(kind, libc::DT_DIR | libc::DT_UNKNOWN)
}

/// The same of what the C library read.
///
/// # Safety
/// `entry` is null or one of the C library's.
pub(crate) unsafe fn is_hidden_entry(entry: *const dirent) -> bool {
    if entry.is_null() {
        return false;
    }
    // It is as long as its name, so there may be no reference to all of it.
    // SAFETY: the caller's.
    let kind = unsafe { (*entry).d_type };
    let name = entry.wrapping_byte_add(offset_of!(dirent, d_name));
    // SAFETY: the name of an entry ends in a zero.
    is_hidden(unsafe { name_of(name.cast()) }, kind)
}

/// A name of the C library's.
///
/// # Safety
/// `name` ends in a zero.
pub(crate) unsafe fn name_of<'a>(name: *const c_char) -> &'a [u8] {
    // SAFETY: the caller's.
    unsafe { CStr::from_ptr(name) }.to_bytes()
}
