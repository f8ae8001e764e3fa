//! The library's one error type: what failed, on which file and offset, why, and what to do.

mod text;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A result with [`enum@Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why an operation failed. Every variant names the file; its text says what to do.
///
/// ```
/// let error = untorn::AtomicFile::open("/nonexistent/file").unwrap_err();
/// assert!(error.to_string().contains("/nonexistent/file"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// A system call failed. The operation committed nothing. After a failed flush, only reopening the file tells which
    /// commit is durable.
    Io {
        /// What was being done, as a verb: "open", "allocate space in".
        operation: &'static str,
        /// The file.
        path: PathBuf,
        /// The byte offset, where there is one.
        offset: Option<u64>,
        /// The system's reason.
        source: io::Error,
    },
    /// The range is not within the file.
    OutOfRange {
        /// The file.
        path: PathBuf,
        /// First byte asked for.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// The file's length.
        file_len: u64,
    },
    /// An earlier flush failed, or a page of the file was lost. Nothing more is promised through this handle.
    Poisoned {
        /// The file.
        path: PathBuf,
        /// The text of the first failure.
        cause: String,
    },
    /// The path names something other than a regular file: a directory, a device, a pipe.
    NotAFile {
        /// What was named.
        path: PathBuf,
        /// What it is.
        found: FileKind,
    },
    /// The file is open read-only, or the medium refuses stores.
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// Another process, or an incompatible handle of this process, has the file open.
    InUse {
        /// The file.
        path: PathBuf,
        /// Who or what holds it.
        holder: String,
    },
    /// The data file's mark says that a sidecar holds committed bytes, and the sidecar is missing.
    SidecarMissing {
        /// The data file.
        path: PathBuf,
        /// Where the sidecar should be.
        sidecar: PathBuf,
        /// The UUID the data file carries.
        uuid: String,
        /// The file beside this one whose sidecar has that UUID, of which this one is a copy; `None` unless adoption
        /// came across it.
        original: Option<PathBuf>,
        /// The sidecar with that UUID, which stands under another name in the directory; `None` if there is none.
        found: Option<PathBuf>,
    },
    /// The sidecar belongs to another file, or the data file was replaced.
    SidecarMismatch {
        /// The data file.
        path: PathBuf,
        /// The sidecar.
        sidecar: PathBuf,
        /// What differs.
        what: String,
        /// The sidecar that is the file's own by its UUID, which stands under another name in the directory; `None` if
        /// there is none.
        found: Option<PathBuf>,
    },
    /// Another user may have planted a file or directory of untorn's own, or may change it. No byte of it was used, and
    /// none was stored in it.
    Untrusted {
        /// The data file.
        path: PathBuf,
        /// The file or directory that is not believed.
        companion: PathBuf,
        /// Why not.
        what: String,
    },
    /// This user may not open the sidecar of the file, or another file of untorn's own beside it: only users that may
    /// write the data file may.
    NoAccess {
        /// The data file.
        path: PathBuf,
        /// The file that could not be opened.
        companion: PathBuf,
        /// The user who can help, and how.
        what: String,
    },
    /// Another program changed the file while untorn's sidecar held committed bytes of it.
    ModifiedExternally {
        /// The data file.
        path: PathBuf,
        /// What changed.
        what: String,
    },
    /// The file was not closed cleanly, and its state may not be changed here: `untorn check` reports it so.
    NeedsRecovery {
        /// The data file.
        path: PathBuf,
    },
    /// A write-cache log holds writes that a replay could not bring to their files. The log keeps them.
    ReplayIncomplete {
        /// The log.
        path: PathBuf,
        /// Whose they are, and why.
        what: String,
    },
    /// Another program changed the file meanwhile, and untorn has changes of its own for it. Both versions are kept.
    ChangedOutside {
        /// The file.
        path: PathBuf,
        /// Where untorn's version is, and how to choose.
        what: String,
    },
    /// Another user could have written what the file says, so it is not believed. Nothing was changed.
    UntrustedLog {
        /// The log.
        path: PathBuf,
        /// Why it is not trusted, and what to do.
        what: String,
    },
    /// A newer version, or a feature unknown to this library, wrote the file.
    Unsupported {
        /// The sidecar or file.
        path: PathBuf,
        /// What it asks for.
        what: String,
    },
    /// The sidecar, log or store contradicts itself or its checksums.
    Corrupt {
        /// The sidecar.
        path: PathBuf,
        /// Byte offset, where there is one.
        offset: Option<u64>,
        /// What is wrong.
        what: String,
    },
    /// The sidecar of another engine than the requested one holds committed bytes of the file.
    OtherEngine {
        /// The data file.
        path: PathBuf,
        /// The sidecar's engine.
        engine: String,
    },
    /// The file cannot be protected by redundancy, or its redundancy file does not fit it. Nothing was changed.
    Protection {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: ProtectionProblem,
    },
    /// An argument or option is not allowed here. No operation on the file was tried.
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and what is allowed.
        what: String,
    },
    /// The last commit is durable, and closing the file failed after it. A sidecar may be left beside the file.
    NotClosed {
        /// The file.
        path: PathBuf,
        /// The number of the durable commit.
        commit: u64,
        /// Why closing failed.
        cause: Box<Error>,
    },
    /// A snapshot ended before it was dropped. The file and its commits are as good as before; take a new snapshot.
    SnapshotEnded {
        /// The data file.
        path: PathBuf,
        /// Why it ended.
        cause: String,
    },
    /// The commits after one are not in the file's commit log, or not all of them.
    CommitsMissing {
        /// The data file.
        path: PathBuf,
        /// The commit after which the commits were asked for.
        from: u64,
        /// The oldest commit after which all are there; `None` if the file has no commit log.
        oldest: Option<u64>,
    },
    /// A commit was refused: the commit log is full, and has to keep its oldest commits for a consumer. Nothing is
    /// committed; the changes may be committed later.
    ConsumerBehind {
        /// The data file.
        path: PathBuf,
        /// The name of the consumer that is slowest.
        consumer: String,
        /// The last commit that it acknowledged.
        acknowledged: u64,
        /// The last commit of the log.
        last: u64,
    },
    /// A commit is durable here, and not all consumers of the commit log have acknowledged it within the time for that.
    NotAcknowledged {
        /// The data file.
        path: PathBuf,
        /// The name of the consumer that is slowest; `None` if there is none.
        consumer: Option<String>,
        /// The commit.
        commit: u64,
    },
    /// A commit was asked for that the file does not have: its number is above that of the last one.
    NoSuchCommit {
        /// The data file.
        path: PathBuf,
        /// The commit that was asked for.
        commit: u64,
        /// The last commit of the file.
        last: u64,
    },
    /// The handle was opened before a `fork(2)`, and the child may not use it.
    Forked {
        /// The file.
        path: PathBuf,
    },
}

/// What a name that should be a regular file's has instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FileKind {
    /// A directory.
    Directory,
    /// A FIFO.
    Pipe,
    /// A socket of the file system.
    Socket,
    /// A character device.
    CharacterDevice,
    /// A block device.
    BlockDevice,
    /// Something the library does not know.
    Other,
}

/// Why a file cannot be protected by redundancy, or why its redundancy file does not fit it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProtectionProblem {
    /// The file has no redundancy. Its [`Error::errno`] is ENOENT.
    NotProtected,
    /// The file has a sidecar, so only its engine may write to it.
    HasEngine,
    /// The file is empty.
    Empty,
    /// The file is longer than redundancy supports.
    TooLong,
    /// The file is a region store, whose commits do not update redundancy.
    RegionStore,
    /// The redundancy file belongs to another file, which had the same inode number.
    OtherFile {
        /// The redundancy file.
        redundancy: PathBuf,
    },
    /// The file had another length when it was protected.
    OtherLength {
        /// The length then.
        protected: u64,
        /// The length now.
        now: u64,
    },
    /// The file is protected with other settings than those that were asked for.
    OtherSettings {
        /// Those that it is protected with.
        kept: String,
    },
    /// The kernel does not tell untorn of stores to the mapping.
    Untrackable {
        /// The kernel's reason.
        cause: String,
    },
}

impl Error {
    /// The error of closing a file whose last commit is durable. What ends all promises stays as it is: of what was
    /// written last only the next open can tell.
    pub(crate) fn after_commit(self, path: &Path, commit: u64) -> Self {
        match self {
            Error::Io { .. } | Error::Corrupt { .. } if !self.is_page_lost() => {
                Error::NotClosed { path: path.to_owned(), commit, cause: Box::new(self) }
            }
            other => other,
        }
    }

    /// Creates an [`Error::Protection`].
    pub(crate) fn protection(path: &Path, problem: ProtectionProblem) -> Self {
        Error::Protection { path: path.to_owned(), problem }
    }

    /// Creates an [`Error::Io`] without an offset.
    pub fn io(operation: &'static str, path: &Path, source: impl Into<io::Error>) -> Self {
        Error::Io { operation, path: path.to_owned(), offset: None, source: source.into() }
    }

    /// Creates an [`Error::Io`] at a byte offset.
    pub fn io_at(operation: &'static str, path: &Path, offset: u64, source: impl Into<io::Error>) -> Self {
        Error::Io { operation, path: path.to_owned(), offset: Some(offset), source: source.into() }
    }

    /// The [`Error::Io`] that another process met.
    pub(crate) fn of_another_process(operation: &'static str, path: &Path, errno: u64, text: String) -> Self {
        let errno = i32::try_from(errno).unwrap_or(rustix::io::Errno::IO.raw_os_error());
        Error::io(operation, path, io::Error::other(RemoteError { errno, text }))
    }

    /// The [`Error::Io`] of an access to a file that has lost a page at `offset`.
    pub(crate) fn page_lost(operation: &'static str, path: &Path, offset: u64) -> Self {
        Error::io_at(operation, path, offset, io::Error::other(PageLost))
    }

    /// Whether it comes from a lost page: the open file is of no further use.
    pub(crate) fn is_page_lost(&self) -> bool {
        matches!(self, Error::Io { source, .. } if source.get_ref().is_some_and(|source| source.is::<PageLost>()))
    }

    /// Whether the disk is full, or what its user may have of it, or the file is as long as one may be.
    pub(crate) fn is_for_want_of_space(&self) -> bool {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        matches!(self, Error::Io { source, .. } if matches!(source.kind(), StorageFull | QuotaExceeded | FileTooLarge))
    }

    /// The file that the error is about.
    pub fn path(&self) -> &Path {
        match self {
            Error::Io { path, .. }
            | Error::OutOfRange { path, .. }
            | Error::Poisoned { path, .. }
            | Error::NotAFile { path, .. }
            | Error::ReadOnly { path }
            | Error::InUse { path, .. }
            | Error::SidecarMissing { path, .. }
            | Error::SidecarMismatch { path, .. }
            | Error::Untrusted { path, .. }
            | Error::NoAccess { path, .. }
            | Error::ModifiedExternally { path, .. }
            | Error::NeedsRecovery { path }
            | Error::ReplayIncomplete { path, .. }
            | Error::ChangedOutside { path, .. }
            | Error::UntrustedLog { path, .. }
            | Error::Unsupported { path, .. }
            | Error::Corrupt { path, .. }
            | Error::OtherEngine { path, .. }
            | Error::Protection { path, .. }
            | Error::Invalid { path, .. }
            | Error::NotClosed { path, .. }
            | Error::SnapshotEnded { path, .. }
            | Error::CommitsMissing { path, .. }
            | Error::NoSuchCommit { path, .. }
            | Error::ConsumerBehind { path, .. }
            | Error::NotAcknowledged { path, .. }
            | Error::Forked { path } => path,
        }
    }

    /// The closest errno, as a positive number.
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let errno = match self {
            Error::Io { source, .. } => {
                let told = || source.get_ref()?.downcast_ref::<RemoteError>().map(|told| told.errno);
                return source.raw_os_error().or_else(told).unwrap_or(Errno::IO.raw_os_error());
            }
            Error::OutOfRange { .. } => Errno::FAULT,
            Error::Poisoned { .. } => Errno::IO,
            Error::NotAFile { found: FileKind::Directory, .. } => Errno::ISDIR,
            Error::Protection { problem: ProtectionProblem::NotProtected, .. } => Errno::NOENT,
            Error::NotAFile { .. }
            | Error::OtherEngine { .. }
            | Error::Protection { .. }
            | Error::Invalid { .. }
            | Error::NoSuchCommit { .. } => Errno::INVAL,
            Error::ConsumerBehind { .. } => Errno::AGAIN,
            Error::NotAcknowledged { .. } => Errno::TIMEDOUT,
            Error::ReadOnly { .. } => Errno::ROFS,
            Error::InUse { .. } => Errno::BUSY,
            Error::SidecarMissing { .. }
            | Error::SidecarMismatch { .. }
            | Error::ModifiedExternally { .. }
            | Error::ChangedOutside { .. }
            | Error::CommitsMissing { oldest: Some(_), .. }
            | Error::SnapshotEnded { .. } => Errno::STALE,
            Error::CommitsMissing { oldest: None, .. } => Errno::NODATA,
            Error::Untrusted { .. } | Error::NoAccess { .. } => Errno::ACCESS,
            Error::NeedsRecovery { .. } | Error::ReplayIncomplete { .. } => Errno::UCLEAN,
            Error::UntrustedLog { .. } => Errno::PERM,
            Error::Unsupported { .. } => Errno::OPNOTSUPP,
            Error::Corrupt { .. } => Errno::BADMSG,
            Error::NotClosed { cause, .. } => return cause.errno(),
            Error::Forked { .. } => Errno::OWNERDEAD,
        };
        errno.raw_os_error()
    }
}

/// Keeps the text. The kind is that of [`Error::errno`]; `into_inner` gives the [`enum@Error`] back.
///
/// ```
/// fn length(path: &str) -> std::io::Result<u64> {
///     Ok(untorn::AtomicFile::open(path)?.len())
/// }
/// assert_eq!(length("/nonexistent/file").unwrap_err().kind(), std::io::ErrorKind::NotFound);
/// ```
impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::new(io::Error::from_raw_os_error(error.errno()).kind(), error)
    }
}

/// The source of an error that another process met and told of.
#[derive(Debug)]
struct RemoteError {
    errno: i32,
    text: String,
}

impl fmt::Display for RemoteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for RemoteError {}

/// The source of the error of an access that came upon a lost page.
#[derive(Debug)]
struct PageLost;

impl std::error::Error for PageLost {}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::Io { source, .. } => Some(source),
            Error::NotClosed { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
