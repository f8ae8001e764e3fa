//! The protocol between the preload layer and the process that serves it.
//!
//! Each request is one [`Request`], sent over a stream socket, followed by `payload` bytes if the operation has some.
//! If the operation is on a descriptor, the first byte carries the program's descriptor (`SCM_RIGHTS`). So the
//! descriptor itself tells the file and its offset: neither side keeps a table of descriptors that a `dup`, a `fork` or
//! an `exec` could make wrong. The answer is one [`Reply`], followed by `payload` bytes.
//!
//! Both ends are of one build and run on one machine, so numbers are in native byte order.
#![forbid(unsafe_code)]

mod patience;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

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

/// The operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[non_exhaustive]
pub enum Operation {
    /// The layer is in the process that says so. The value is 1 if it was in the program that the process ran before,
    /// and asked for something there.
    Hello = 1,
    /// The descriptor was just opened: manage its file. `number` is 1 if it is to be truncated. Where a file may stay
    /// plain, `managed` says whether it did not.
    Open = 2,
    /// A descriptor of the file (`device`, `inode`) was closed.
    Closed = 3,
    /// Read `number` bytes, at `offset` or, if that is negative, at the descriptor's own.
    Read = 4,
    /// Write the payload, likewise. `flags` are those of `pwritev2`.
    Write = 5,
    /// Move the descriptor's offset: `lseek` by `offset` with `flags` for `whence`.
    Seek = 6,
    /// Set the length to `number`.
    SetLength = 7,
    /// `fallocate` with mode `flags`, `offset` and `number`.
    Allocate = 8,
    /// Commit what was written to the file.
    Commit = 9,
    /// Commit what was written to any file.
    CommitAll = 10,
    /// Length and times of the file (`device`, `inode`).
    Status = 11,
    /// The times, or other attributes, of the file (`device`, `inode`) were set; its status tells.
    Times = 12,
    /// The layer told the program no: the payload says in which call and why.
    Refused = 13,
    /// The process ends because it wants to.
    Exit = 14,
    /// Whether the file (`device`, `inode`) is managed; the value is 1 if it has a sidecar in its directory now, and
    /// 2 if that is the directory with the inode `number` and has no more than one name of the file.
    Managed = 15,
    /// What the program is about to do cannot be served: the file of the descriptor, or else (`device`, `inode`), is
    /// to be a plain one before, or all files if `number` is 1. The payload says in which call.
    Demote = 16,
    /// The file (`device`, `inode`) is about to lose the name that it has; its last one, or the file is a plain one
    /// from then on.
    Leave = 17,
    /// The file (`device`, `inode`) is about to be opened with `flags`. If the server has the only description of it
    /// left, opened with the same, the answer is `managed` and carries it, its offset 0.
    Reopen = 18,
    /// What this process needs to append to the log itself: the answer carries the memory of its ledger, or if
    /// `number` is 1 the log.
    Share = 19,
    /// The kernel took less of a write to the file (`device`, `inode`) than this process put into the log: the log is
    /// to have nothing of the file any more.
    TakeBack = 20,
    /// The descriptor is about to be mapped shared: the answer carries that of its *twin*, the memory with the file's
    /// present bytes that is mapped in its place. It may be written to if `number` is 1.
    Map = 21,
    /// A twin was mapped: `offset` bytes of it at the address `number`; the kernel tells which, and from where on. If
    /// `flags` is 1 a descriptor comes along, of userfaultfd(2): the memory is registered and protected over it, and
    /// each first store to a page waits for the server. If `device` is not 0 it is the address to which the mapping
    /// is moved next; nobody knows of it until then. EBUSY while another one is about to be moved there.
    Mapped = 22,
    /// The memory at `number`, `offset` bytes, is not mapped any more, or something else is: its mappings are to be
    /// looked at again.
    Unmapped = 23,
    /// A mapping of this process of which the server was not told, if `managed` is 1: `value` is its address,
    /// `seconds` its length.
    Inherited = 24,
    /// The memory at `number`, `offset` bytes, is to be synced: commits what it maps, if anything.
    SyncMapped = 25,
    /// The first mapping in the memory at `number`, `offset` bytes, which is to be made once more: as for
    /// [`Map`](Operation::Map), and `value` is its offset at that address, `seconds` its protection, `nanoseconds` 1
    /// if its twin may be written to. `managed` is 0 if there is none.
    MapAgain = 26,
    /// The process is about to become another program, if `number` is 1, by `exec`. The new program may be
    /// one without the layer, which cannot say that it ends. It is the old one still, if `number` is 0.
    Becomes = 27,
    /// The mapping that was to be moved from the address `device` to `number`, `offset` bytes, is there if `flags` is
    /// 1, and unmapped otherwise.
    Placed = 28,
    /// The file (`device`, `inode`) is about to be renamed: the descriptor is that of the directory that it goes to,
    /// the payload its name there. `managed` is 1 if [`Moved`](Operation::Moved) has to follow; otherwise it is a
    /// plain one by then, and what has the name too.
    Move = 29,
    /// It was, if `number` is 1.
    Moved = 30,
    /// The descriptor is that of a directory, which is to be synced. `managed` is 1 if it need not be. Otherwise it
    /// is for the program to do, and [`DirectorySynced`](Operation::DirectorySynced) has to follow with the value,
    /// unless that is 0.
    SyncDirectory = 31,
    /// The sync of a directory that has this `number` was made, if `flags` is 1.
    DirectorySynced = 32,
    /// The directory of the descriptor is about to get another name.
    MoveDirectory = 33,
    /// The file (`device`, `inode`) lost its last name, or if `number` is 1 some files may have: what stands beside
    /// such a file for a recovery goes, and who has it open goes on with it. A descriptor is that of the directory
    /// where the file had its name, which nobody of the run has open, but which left something there.
    Unnamed = 34,
}

impl Operation {
    /// The operation with this number.
    pub fn of(number: u32) -> Option<Self> {
        use Operation::*;
        let all = [
            Hello,
            Open,
            Closed,
            Read,
            Write,
            Seek,
            SetLength,
            Allocate,
            Commit,
            CommitAll,
            Status,
            Times,
            Refused,
            Exit,
            Managed,
            Demote,
            Leave,
            Reopen,
            Share,
            TakeBack,
            Map,
            Mapped,
            Unmapped,
            Inherited,
            SyncMapped,
            MapAgain,
            Becomes,
            Placed,
            Move,
            Moved,
            SyncDirectory,
            DirectorySynced,
            MoveDirectory,
            Unnamed,
        ];
        all.into_iter().find(|operation| *operation as u32 == number)
    }
}

/// A request.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Request {
    /// The number of an [`Operation`].
    pub operation: u32,
    /// Depends on the operation.
    pub flags: i32,
    /// Depends on the operation.
    pub offset: i64,
    /// Depends on the operation.
    pub number: u64,
    /// Device of the file, if there is no descriptor.
    pub device: u64,
    /// Inode of the file, if there is no descriptor.
    pub inode: u64,
    /// Bytes that follow the request.
    pub payload: u64,
}

/// An answer.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Reply {
    /// 0, or the errno.
    pub errno: i32,
    /// 1 if the file is managed and `value` and the times replace what the kernel returns.
    pub managed: u32,
    /// The result of the call; for a status, the length.
    pub value: i64,
    /// Time of the last change of the file's bytes: seconds.
    pub seconds: i64,
    /// Time of the last change of the file's bytes: nanoseconds.
    pub nanoseconds: i64,
    /// Bytes that follow the reply.
    pub payload: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_found_by_its_number() {
        for number in 1..=34 {
            assert_eq!(Operation::of(number).map(|operation| operation as u32), Some(number));
        }
        assert_eq!(Operation::of(0), None);
        assert_eq!(Operation::of(35), None);
    }

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
