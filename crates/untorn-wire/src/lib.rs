//! The protocol between the preload layer and the process that serves it.
//!
//! The layer sends one [`RequestFrame`] over a stream socket, and after it the bytes that the operation carries, if it
//! carries some. The server answers with one [`ReplyFrame`], and likewise bytes after it. Each operation has a payload
//! struct for its request and one for its reply ([`Operation`]); both lie in the frame.
//!
//! If the operation is on a descriptor, the first byte of the request carries the program's descriptor (`SCM_RIGHTS`).
//! The descriptor itself tells the file and its offset: neither side keeps a table of descriptors that a `dup`, a
//! `fork` or an `exec` could make wrong. The first byte of some replies carries a descriptor too.
//!
//! Both ends are of one build and run on one machine, so numbers are in native byte order, and any build may change the
//! payloads. [`VERSION`] is a hash of their sources. It stands first in each request, and the server closes a
//! connection on which it reads another one.
#![forbid(unsafe_code)]

mod frame;
mod operations;
mod patience;
#[cfg(test)]
mod round_trips;

pub use self::frame::{FRAME, Malformed, Operation, PAYLOAD, ReplyFrame, RequestFrame};
pub use self::operations::*;
pub use self::patience::Patience;

/// The flag of `open` that requests atomicity; the kernel never sees it. Source: the Libnvmmio paper, §4.3, with the
/// value of its authors' header.
pub const O_ATOMIC: i32 = 0o1_000_000_000;

/// The signal number (`F_SETSIG`) that marks an open file description as managed. The kernel keeps it with the
/// description over `dup`, `fork` and `exec`, and it has no meaning for a regular file.
pub const MARK: i32 = 61;

/// The variable with the path of the server's socket. A process without it does not run under untorn.
pub const SOCKET: &str = "UNTORN_PRELOAD_SOCKET";
/// The variable with the globs of managed files, one per line. A file that matches a glob after `!` is not managed,
/// whatever else it matches: [`is_chosen`].
pub const MATCH: &str = "UNTORN_PRELOAD_MATCH";
/// The variable with the path of the layer itself, which is restored in environments that lost it.
pub const LAYER: &str = "UNTORN_PRELOAD_LAYER";
/// The variable with the path of the [board](BOARD_BYTES).
pub const BOARD: &str = "UNTORN_PRELOAD_BOARD";
/// The variable with the mode: `boost`, or nothing for epochs.
pub const MODE: &str = "UNTORN_PRELOAD_MODE";
/// The variable with the path of a file to which the test build of the layer reports calls that it missed.
pub const ORACLE: &str = "UNTORN_PRELOAD_ORACLE";

/// The variable that tells the test build of the layer where in a write to die: the number of a step, a colon, and a
/// count; optionally another colon and the number of a signal instead of SIGKILL, or 0 to wait for a moment.
pub const DEATH: &str = "UNTORN_PRELOAD_DEATH";

/// The maximum bytes that one `read` or `write` moves, which is the kernel's own limit.
pub const MOST: u64 = 0x7fff_f000;

/// The errno of an answer that no call has: the file is plain, and the kernel executes the call.
pub const PLAIN: i32 = 4095;

/// The length of the board: a file in which each bit tells whether a file with that hash may be managed. So a process
/// need not ask about each file whose status it wants.
pub const BOARD_BYTES: usize = 512;

/// The bit of the board for a file.
pub fn board_bit(device: u64, inode: u64) -> usize {
    let mixed = (device.rotate_left(32) ^ inode).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 52) as usize % (BOARD_BYTES * 8)
}

/// Whether globs, in the form of [`MATCH`], choose a file; `matches` tells whether one glob matches it.
pub fn is_chosen<'a>(globs: impl IntoIterator<Item = &'a [u8]>, matches: impl Fn(&'a [u8]) -> bool) -> bool {
    let mut chosen = false;
    for glob in globs {
        match glob.strip_prefix(b"!") {
            Some(excluded) if matches(excluded) => return false,
            Some(_) => {}
            None => chosen = chosen || matches(glob),
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excluded_paths_are_never_chosen() {
        let chosen = |globs: &[&str]| is_chosen(globs.iter().map(|glob| glob.as_bytes()), |glob| glob == b"yes");
        assert!(chosen(&["no", "yes"]) && chosen(&["yes", "!no"]));
        assert!(!chosen(&[]) && !chosen(&["no"]) && !chosen(&["!no"]));
        assert!(!chosen(&["yes", "!yes"]) && !chosen(&["!yes", "yes"]));
    }

    #[test]
    fn neighbouring_inodes_have_different_bits() {
        let bits: std::collections::BTreeSet<usize> = (1000..1064).map(|inode| board_bit(2049, inode)).collect();
        assert!(bits.len() > 60 && bits.iter().all(|bit| *bit < BOARD_BYTES * 8));
    }
}
