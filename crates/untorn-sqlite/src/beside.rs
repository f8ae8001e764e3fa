//! Which files beside a database there may be: words in the guard's directory, which all processes map.
//!
//! SQLite asks for the journal and the `-wal` file each time that it begins to read. With these words the answer needs
//! no system call.
//!
//! # Invariants
//!
//! 1. A word is set before a file of its kind is created, by whichever process, and never cleared while the directory
//!    is there. So while it is clear, there is no such file.
//! 2. Each that opens the database looks for files that a crash or a stock SQLite has left, and sets the words for
//!    them. A stock SQLite creates none while the directory is there.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const LEN: usize = 4096;

/// A kind of file beside a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Journal = 0,
    Wal = 1,
}

/// The words.
#[derive(Debug)]
pub(crate) struct Beside {
    words: NonNull<AtomicU32>,
}

// SAFETY: the memory is mapped until this is dropped, and only used by atomic instructions.
unsafe impl Send for Beside {}
// SAFETY: as above.
unsafe impl Sync for Beside {}

impl Beside {
    /// Maps the words. The caller holds the lock under which one process at a time opens the database.
    ///
    /// # Errors
    /// Those of the file system and of `mmap(2)`.
    pub(crate) fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() < LEN as u64 {
            // With space, for a store to a page without any would end the process on a full disk.
            std::os::unix::fs::FileExt::write_all_at(file, &[0; LEN], 0)?;
        }
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a file with this length, at an address that the kernel chooses.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), LEN, protection, flags, file.as_raw_fd(), 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let words = NonNull::new(address.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Beside { words })
    }

    fn word(&self, kind: Kind) -> &AtomicU32 {
        // SAFETY: the mapping has room for both words and is aligned for them.
        let word = unsafe { self.words.add(kind as usize) };
        // SAFETY: it lives as long as this, and every process uses it by atomic instructions.
        unsafe { word.as_ref() }
    }

    /// Whether there may be a file of a kind.
    pub(crate) fn may_have(&self, kind: Kind) -> bool {
        self.word(kind).load(Ordering::SeqCst) != 0
    }

    /// Says that there may be one from now on.
    pub(crate) fn note(&self, kind: Kind) {
        self.word(kind).store(1, Ordering::SeqCst);
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        // SAFETY: it is the mapping of this length that `map` made, and nothing uses it any more.
        unsafe { libc::munmap(self.words.as_ptr().cast(), LEN) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_notes_another_finds() {
        let file = tempfile::tempfile().unwrap();
        let (one, other) = (Beside::map(&file).unwrap(), Beside::map(&file).unwrap());
        assert!(!other.may_have(Kind::Journal) && !other.may_have(Kind::Wal));
        one.note(Kind::Wal);
        assert!(other.may_have(Kind::Wal) && !other.may_have(Kind::Journal));
        assert!(Beside::map(&file).unwrap().may_have(Kind::Wal), "a further opening clears nothing");
    }
}
