//! Descriptors of this process that were boosted once.
//!
//! The kernel takes a lease away, and the mark with it, from a server that is too slow to give it back, or gone
//! (`/proc/sys/fs/lease-break-time`). So a mark that is missing is not enough to leave a file to the kernel, which
//! may not have what was written: the server is asked, once.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};

/// Descriptors are known below this number; a process with more of them has their marks only.
const MOST: usize = 65_536;

static KNOWN: [AtomicU64; MOST / 64] = [const { AtomicU64::new(0) }; MOST / 64];

fn word(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((KNOWN.get(fd / 64)?, 1 << (fd % 64)))
}

/// A descriptor is boosted.
pub(crate) fn note(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A descriptor is another file's, or its file is a plain one.
pub(crate) fn forget(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// Whether a descriptor was boosted, and it is not known that its file became a plain one.
pub(crate) fn is_known(fd: c_int) -> bool {
    word(fd).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
}
