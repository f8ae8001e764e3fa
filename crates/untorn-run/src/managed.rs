//! What serves the bytes of a managed file: the seam between the server and the modes of `untorn run`.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{Access, Mode as Bits};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};

/// An errno, as a positive number.
pub(crate) type Errno = i32;

/// One managed file. Its caller holds the file's lock over each call. Dropped without [`release`](Managed::release)
/// it is left as a crash would leave it.
pub trait Managed: Send {
    /// Length in bytes, as the program sees it.
    fn len(&self) -> u64;

    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset`; the range lies within the file.
    ///
    /// # Errors
    /// The errno of what failed.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), i32>;

    /// Writes `bytes` at `offset`, which may lie past the end: all of them or none.
    ///
    /// # Errors
    /// The errno of what failed.
    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), i32>;

    /// Changes the length; new bytes are zeros.
    ///
    /// # Errors
    /// The errno of what failed.
    fn set_len(&self, len: u64) -> Result<(), i32>;

    /// Makes durable what was written since the last commit.
    ///
    /// # Errors
    /// The errno of what failed.
    fn commit(&self) -> Result<(), i32>;

    /// Lets the file go, a plain one, with what was written since the last commit.
    ///
    /// # Errors
    /// The errno of what failed. What was committed is not lost: the next open of the file recovers it.
    fn release(self: Box<Self>) -> Result<(), i32>;
}

/// A mode of `untorn run`: how files are managed.
pub trait Mode: Send + Sync {
    /// The word of the command line.
    fn name(&self) -> &'static str;

    /// Takes over a file that is about to be changed.
    ///
    /// # Errors
    /// The errno of what failed; the file is as it was.
    fn manage(&self, path: &Path) -> Result<Box<dyn Managed>, i32>;
}

/// `--mode atomic`: what is written between two syncs is durable together or not at all. The Libnvmmio paper, §3.
#[derive(Clone, Copy, Debug, Default)]
pub struct Atomic;

impl Mode for Atomic {
    fn name(&self) -> &'static str {
        "atomic"
    }

    fn manage(&self, path: &Path) -> Result<Box<dyn Managed>, i32> {
        let file = options().open(path).map_err(|error| match error {
            // Its sidecar is of another engine, whose epochs are shorter, or its redundancy file does not fit it.
            Error::Invalid { .. } | Error::OtherEngine { .. } | Error::Protection { .. } => {
                libc_errno(rustix::io::Errno::OPNOTSUPP)
            }
            error => errno(&error),
        })?;
        Ok(Box::new(Epochs { file }))
    }
}

fn options() -> Options {
    // Programs have many small files, of which each gets two chunks of the log, written once, when it is first
    // changed: so these are small.
    Options::new()
        .engine(EngineKind::HybridLog)
        .durability(Durability::PerCommit)
        .record_area(1, 64)
        // Calls that go past the layer are the run's to notice.
        .notice_changes(false)
}

/// What a program is told of an error of the library.
fn errno(error: &Error) -> Errno {
    tracing::warn!(%error, "an operation on a managed file failed");
    match error {
        // Longer than the engine, or than its log, can hold.
        Error::Invalid { .. } | Error::Protection { .. } => libc_errno(rustix::io::Errno::FBIG),
        other => other.errno(),
    }
}

pub(crate) fn libc_errno(errno: rustix::io::Errno) -> Errno {
    errno.raw_os_error()
}

pub(crate) fn io_errno(error: &io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc_errno(rustix::io::Errno::IO))
}

/// A file under the engine of epochs.
struct Epochs {
    file: AtomicFile,
}

impl Managed for Epochs {
    fn len(&self) -> u64 {
        self.file.len()
    }

    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<(), i32> {
        self.file.read_at(buf, offset).map_err(|error| errno(&error))
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), i32> {
        let before = self.file.len();
        let end = offset.checked_add(bytes.len() as u64).ok_or(libc_errno(rustix::io::Errno::FBIG))?;
        if end <= before {
            return self.file.write_at(bytes, offset).map_err(|error| errno(&error));
        }
        self.file.resize(end).map_err(|error| errno(&error))?;
        self.file.write_at(bytes, offset).map_err(|error| {
            // The length goes back with the bytes that were not written. If not even that is possible, the handle is
            // poisoned and nothing of this is ever committed.
            let _ = self.file.resize(before);
            errno(&error)
        })
    }

    fn set_len(&self, len: u64) -> Result<(), i32> {
        self.file.resize(len).map_err(|error| errno(&error))
    }

    fn commit(&self) -> Result<(), i32> {
        self.file.sync().map(drop).map_err(|error| errno(&error))
    }

    fn release(self: Box<Self>) -> Result<(), i32> {
        self.file.settle().map_err(|error| errno(&error))
    }
}

/// Does what opens a file anew, with `rights`. A program may use by its descriptor what its owner may not open any
/// more (`open` with `O_CREAT` and mode 0444): the owner is allowed to for as long as this takes. Of another user's
/// file it fails.
pub(crate) fn as_owner<T>(file: &(impl AsFd + AsRawFd), rights: Access, act: impl FnOnce() -> T) -> T {
    let before = match rustix::fs::access(in_proc(file), rights) {
        Err(rustix::io::Errno::ACCESS) => rustix::fs::fstat(file).map(|status| Bits::from_raw_mode(status.st_mode)),
        _ => return act(),
    };
    let changed = before.is_ok_and(|before| rustix::fs::fchmod(file, before | Bits::RUSR | Bits::WUSR).is_ok());
    let outcome = act();
    if let (true, Ok(before)) = (changed, before) {
        // Whoever could change it could change it back.
        let _ = rustix::fs::fchmod(file, before);
    }
    outcome
}

fn in_proc(file: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// A second description of the file that a descriptor stands for.
///
/// # Errors
/// Those of `open(2)`: a file that this user may neither read nor write.
pub(crate) fn reopen(descriptor: &impl AsRawFd) -> io::Result<File> {
    let path = in_proc(descriptor);
    File::open(&path).or_else(|_| File::options().write(true).open(&path))
}
