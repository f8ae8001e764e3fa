//! The system calls that the rig makes fail, and the ways in which each can fail.

use std::fmt;
use std::str::FromStr;

use nix::libc::{self, c_int};

use super::tracer::Entry;

/// One way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// It does nothing and returns this errno.
    Errno(c_int),
    /// It transfers half of the bytes and returns that count; later calls work.
    Short,
    /// It writes half of the bytes, and the same thread's next write fails with this errno.
    Torn(c_int),
}

const ERRNOS: &[(&str, c_int)] = &[
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBUSY", libc::EBUSY),
    ("EDQUOT", libc::EDQUOT),
    ("EINTR", libc::EINTR),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EMFILE", libc::EMFILE),
    ("ENOLCK", libc::ENOLCK),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
    ("ENOSYS", libc::ENOSYS),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
];

fn errno_name(errno: c_int) -> &'static str {
    ERRNOS.iter().find(|(_, number)| *number == errno).map_or("errno", |(name, _)| name)
}

impl How {
    /// The errno that the operation should report, if it reports one.
    pub(super) fn errno(self) -> Option<c_int> {
        match self {
            How::Errno(errno) | How::Torn(errno) => Some(errno),
            How::Short => None,
        }
    }
}

impl fmt::Display for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            How::Errno(errno) => f.write_str(errno_name(*errno)),
            How::Short => f.write_str("short"),
            How::Torn(errno) => write!(f, "short-then-{}", errno_name(*errno)),
        }
    }
}

impl FromStr for How {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let errno = |name: &str| ERRNOS.iter().find(|(known, _)| *known == name).map(|(_, errno)| *errno);
        match (word, word.strip_prefix("short-then-")) {
            ("short", _) => Some(How::Short),
            (_, Some(name)) => errno(name).map(How::Torn),
            (name, None) => errno(name).map(How::Errno),
        }
        .ok_or_else(|| format!("{word:?} is not a failure that this rig injects"))
    }
}

/// How the operation must react to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// It may report the failure, or work around it; then it must really have succeeded.
    Either,
    /// As `Either`, but a later operation may need the missing resource, and then reports the failure. For example, a
    /// file whose address space could not be reserved cannot grow as far.
    Later,
    /// It must report the failure.
    Tell,
    /// It must report the failure, and the handle must be poisoned.
    Poison,
}

/// A system call, or some uses of one, that the rig makes fail.
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) number: i64,
    /// The uses concerned.
    applies: fn(&[u64; 6]) -> bool,
    /// The required reaction to the failures in `hard`.
    duty: Duty,
    hard: &'static [How],
    /// Failures that the library may tolerate: it calls again, or works around them.
    soft: &'static [How],
}

const IO: How = How::Errno(libc::EIO);
const SPACE: How = How::Errno(libc::ENOSPC);
const QUOTA: How = How::Errno(libc::EDQUOT);
const SIGNAL: How = How::Errno(libc::EINTR);
const MEMORY: How = How::Errno(libc::ENOMEM);
const ACCESS: How = How::Errno(libc::EACCES);
const FILES: How = How::Errno(libc::EMFILE);
const UNKNOWN: How = How::Errno(libc::ENOSYS);
const UNSUPPORTED: How = How::Errno(libc::EOPNOTSUPP);
const FORBIDDEN: How = How::Errno(libc::EPERM);
const AGAIN: How = How::Errno(libc::EAGAIN);
const INVALID: How = How::Errno(libc::EINVAL);
const BUSY: How = How::Errno(libc::EBUSY);
const LOCKS: How = How::Errno(libc::ENOLCK);
const TORN: How = How::Torn(libc::ENOSPC);

fn always(_: &[u64; 6]) -> bool {
    true
}

fn creates(arguments: &[u64; 6]) -> bool {
    arguments[1] as c_int & libc::O_CREAT != 0
}

fn opens(arguments: &[u64; 6]) -> bool {
    !creates(arguments)
}

fn creates_at(arguments: &[u64; 6]) -> bool {
    arguments[2] as c_int & libc::O_CREAT != 0
}

fn opens_at(arguments: &[u64; 6]) -> bool {
    !creates_at(arguments)
}

fn punches(arguments: &[u64; 6]) -> bool {
    arguments[1] as c_int & libc::FALLOC_FL_PUNCH_HOLE != 0
}

fn allocates(arguments: &[u64; 6]) -> bool {
    !punches(arguments)
}

/// Mappings of files, and those that the library reserves itself. The rest belongs to the allocator, and Rust aborts a
/// program whose allocation fails.
fn maps(arguments: &[u64; 6]) -> bool {
    arguments[4] as c_int >= 0 || arguments[3] as c_int & libc::MAP_NORESERVE != 0
}

const fn call(name: &'static str, number: i64, duty: Duty, hard: &'static [How], soft: &'static [How]) -> Call {
    Call { name, number, applies: always, duty, hard, soft }
}

const fn only(applies: fn(&[u64; 6]) -> bool, call: Call) -> Call {
    Call { applies, ..call }
}

/// Every call that the rig makes fail. An indispensable call is still [`Duty::Either`] if the rest of the run shows
/// whether an operation without it really succeeded.
pub(super) static CALLS: &[Call] = &[
    only(opens, call("open", libc::SYS_open, Duty::Either, &[], &[IO, ACCESS, FILES, SIGNAL, MEMORY])),
    only(creates, call("open-create", libc::SYS_open, Duty::Either, &[], &[IO, SPACE, QUOTA, ACCESS, FILES])),
    only(opens_at, call("openat", libc::SYS_openat, Duty::Either, &[], &[IO, ACCESS, FILES, SIGNAL, MEMORY])),
    only(creates_at, call("openat-create", libc::SYS_openat, Duty::Either, &[], &[IO, SPACE, QUOTA, ACCESS, FILES])),
    call("ftruncate", libc::SYS_ftruncate, Duty::Tell, &[IO, SPACE, QUOTA], &[SIGNAL]),
    only(allocates, call("fallocate", libc::SYS_fallocate, Duty::Tell, &[IO, SPACE, QUOTA], &[SIGNAL, UNSUPPORTED])),
    only(punches, call("punch", libc::SYS_fallocate, Duty::Either, &[], &[IO, SPACE, SIGNAL, UNSUPPORTED])),
    only(maps, call("mmap", libc::SYS_mmap, Duty::Later, &[MEMORY], &[AGAIN])),
    call("pwrite", libc::SYS_pwrite64, Duty::Tell, &[IO, SPACE, QUOTA, TORN], &[SIGNAL, How::Short]),
    call("pread", libc::SYS_pread64, Duty::Either, &[], &[IO, SIGNAL, How::Short]),
    call("fsync", libc::SYS_fsync, Duty::Poison, &[IO, SPACE, QUOTA], &[SIGNAL]),
    call("fdatasync", libc::SYS_fdatasync, Duty::Poison, &[IO, SPACE, QUOTA, SIGNAL], &[]),
    call("msync", libc::SYS_msync, Duty::Poison, &[IO], &[]),
    call("flock", libc::SYS_flock, Duty::Either, &[], &[SIGNAL, LOCKS, AGAIN]),
    call("fgetxattr", libc::SYS_fgetxattr, Duty::Either, &[], &[IO, MEMORY]),
    call("fsetxattr", libc::SYS_fsetxattr, Duty::Tell, &[IO, SPACE, QUOTA], &[FORBIDDEN, UNSUPPORTED]),
    call("fremovexattr", libc::SYS_fremovexattr, Duty::Either, &[], &[IO, SPACE, QUOTA]),
    call("rename", libc::SYS_rename, Duty::Tell, &[IO, SPACE, QUOTA, ACCESS], &[]),
    call("renameat", libc::SYS_renameat, Duty::Tell, &[IO, SPACE, QUOTA, ACCESS], &[]),
    call("renameat2", libc::SYS_renameat2, Duty::Tell, &[IO, SPACE, QUOTA, ACCESS], &[]),
    call("linkat", libc::SYS_linkat, Duty::Either, &[], &[IO, SPACE, QUOTA]),
    call("unlink", libc::SYS_unlink, Duty::Either, &[], &[IO, ACCESS]),
    call("unlinkat", libc::SYS_unlinkat, Duty::Either, &[], &[IO, ACCESS]),
    call("rmdir", libc::SYS_rmdir, Duty::Either, &[], &[IO, ACCESS]),
    call("mkdir", libc::SYS_mkdir, Duty::Tell, &[IO, SPACE, QUOTA, ACCESS], &[]),
    call("mkdirat", libc::SYS_mkdirat, Duty::Tell, &[IO, SPACE, QUOTA, ACCESS], &[]),
    call("stat", libc::SYS_stat, Duty::Either, &[], &[IO, ACCESS]),
    call("lstat", libc::SYS_lstat, Duty::Either, &[], &[IO, ACCESS]),
    call("fstat", libc::SYS_fstat, Duty::Either, &[], &[IO, MEMORY]),
    call("newfstatat", libc::SYS_newfstatat, Duty::Either, &[], &[IO, MEMORY]),
    call("statx", libc::SYS_statx, Duty::Either, &[], &[IO, UNKNOWN, FORBIDDEN]),
    call("statfs", libc::SYS_statfs, Duty::Either, &[], &[IO, UNKNOWN]),
    call("fstatfs", libc::SYS_fstatfs, Duty::Either, &[], &[IO, UNKNOWN]),
    call("readlink", libc::SYS_readlink, Duty::Either, &[], &[IO, ACCESS]),
    call("readlinkat", libc::SYS_readlinkat, Duty::Either, &[], &[IO, ACCESS]),
    call("getcwd", libc::SYS_getcwd, Duty::Either, &[], &[ACCESS]),
    call("read", libc::SYS_read, Duty::Either, &[], &[IO, SIGNAL]),
    call("getdents64", libc::SYS_getdents64, Duty::Either, &[], &[IO]),
    call("lseek", libc::SYS_lseek, Duty::Either, &[], &[INVALID, IO]),
    call("ioctl", libc::SYS_ioctl, Duty::Either, &[], &[IO, FORBIDDEN]),
    call("fadvise64", libc::SYS_fadvise64, Duty::Either, &[], &[IO, UNKNOWN, SIGNAL]),
    call("madvise", libc::SYS_madvise, Duty::Either, &[], &[IO, INVALID, AGAIN]),
    call("mincore", libc::SYS_mincore, Duty::Either, &[], &[AGAIN, MEMORY, FORBIDDEN]),
    call("fchmod", libc::SYS_fchmod, Duty::Either, &[], &[IO, FORBIDDEN]),
    call("fchown", libc::SYS_fchown, Duty::Either, &[], &[IO, FORBIDDEN]),
    call("getrandom", libc::SYS_getrandom, Duty::Either, &[], &[SIGNAL, UNKNOWN]),
    call("membarrier", libc::SYS_membarrier, Duty::Either, &[], &[INVALID, UNKNOWN]),
    call("clone3", libc::SYS_clone3, Duty::Either, &[], &[AGAIN, MEMORY]),
    call("io_uring_setup", libc::SYS_io_uring_setup, Duty::Either, &[], &[FILES, MEMORY, FORBIDDEN, UNKNOWN]),
    call("io_uring_register", libc::SYS_io_uring_register, Duty::Either, &[], &[INVALID, MEMORY]),
    call("io_uring_enter", libc::SYS_io_uring_enter, Duty::Either, &[], &[SIGNAL, AGAIN, BUSY]),
];

impl Call {
    /// Every way in which the rig makes it fail.
    pub(super) fn ways(&self) -> impl Iterator<Item = How> {
        self.hard.iter().chain(self.soft).copied()
    }

    /// Whether the state at the instant of this failure can differ from that of the other failures. Failures that
    /// transfer nothing do not differ.
    pub(super) fn leaves_its_own(&self, how: How) -> bool {
        matches!(how, How::Torn(_)) || self.ways().next() == Some(how)
    }

    /// The required reaction. `makes_room`: the file's engine can tolerate a disk without space for its log.
    pub(super) fn duty(&self, how: How, makes_room: bool) -> Duty {
        let got_over = makes_room && self.duty == Duty::Tell && [SPACE, QUOTA, TORN].contains(&how);
        if self.hard.contains(&how) && !got_over { self.duty } else { Duty::Either }
    }

    /// The row of a call that is about to be made.
    pub(super) fn row(entry: &Entry) -> Option<usize> {
        CALLS.iter().position(|call| call.number == entry.number && (call.applies)(&entry.arguments))
    }
}
