//! Paths, in memory of a fixed size.

use core::ffi::{CStr, c_int};

use crate::raw;

/// The longest path that the kernel takes, with its zero.
pub(crate) const LONGEST: usize = 4096;

/// A path in memory of its own.
pub(crate) struct Path {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Path {
    fn empty() -> Self {
        Path { bytes: [0; LONGEST], len: 0 }
    }

    fn push(&mut self, bytes: &[u8]) -> Option<()> {
        // The last byte stays zero.
        self.bytes.get_mut(self.len..LONGEST - 1)?.get_mut(..bytes.len())?.copy_from_slice(bytes);
        self.len += bytes.len();
        Some(())
    }

    /// A path of pieces, one after the other; `None` if it is longer than the kernel takes.
    pub(crate) fn of(pieces: &[&[u8]]) -> Option<Self> {
        let mut path = Path::empty();
        for piece in pieces {
            path.push(piece)?;
        }
        Some(path)
    }

    /// The name by which a descriptor's file can be opened once more.
    pub(crate) fn of_descriptor(fd: c_int) -> Option<Self> {
        Path::of(&[&link_of(fd)])
    }

    /// Where the kernel says that a descriptor's file is.
    pub(crate) fn named_by(fd: c_int) -> Option<Self> {
        let mut path = Path::empty();
        let link = link_of(fd);
        let link = CStr::from_bytes_until_nul(&link).ok()?;
        path.len = raw::readlink(link, &mut path.bytes[..LONGEST - 1]).ok()?;
        Some(path)
    }

    /// The directory that a path of the program names its file in: what stands before the last slash, or `.`.
    pub(crate) fn parent(path: &CStr) -> Option<Self> {
        let bytes = path.to_bytes();
        let bytes = match bytes.iter().rposition(|byte| *byte != b'/') {
            Some(last) => bytes.get(..=last)?,
            None => b"/",
        };
        let mut parent = Path::empty();
        match bytes.iter().rposition(|byte| *byte == b'/') {
            Some(0) => parent.push(b"/")?,
            Some(slash) => parent.push(bytes.get(..slash)?)?,
            None => parent.push(b".")?,
        }
        Some(parent)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or_default()
    }
}

/// `/proc/thread-self/fd/N`, and zeros. As small as it can be: a signal handler may have little stack.
fn link_of(fd: c_int) -> [u8; 32] {
    let mut link = [0; 32];
    let mut number = fd.unsigned_abs();
    let digits = 1 + number.checked_ilog10().unwrap_or(0) as usize;
    let mut at = PROC.len() + digits;
    for (into, byte) in link.iter_mut().zip(PROC) {
        *into = *byte;
    }
    while at > PROC.len() {
        at -= 1;
        if let Some(digit) = link.get_mut(at) {
            *digit = b'0' + (number % 10) as u8;
        }
        number /= 10;
    }
    link
}

/// Of this thread: once the first thread of a process has ended, the process itself has none.
const PROC: &[u8] = b"/proc/thread-self/fd/";
