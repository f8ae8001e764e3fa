"""The exceptions of untorn: one class for each kind of error, below ``OSError`` where an errno fits."""

from __future__ import annotations

import errno as _errno
from typing import Any, Dict, Tuple, Type


class Error(Exception):
    """The base of all exceptions of untorn. Its text names the file and says what to do."""

    #: The file.
    filename: Any = None
    #: The error number that the C library gives for it.
    errno: Any = None

    def __str__(self) -> str:
        return str(getattr(self, "_text", super().__str__()))

    def __reduce__(self) -> Tuple[Any, ...]:  # An OSError forgets what is not in its arguments.
        return make, (type(self).__name__[: -len("Error")], self.errno, str(self), self.filename)


class IoError(Error, OSError):
    """A system call failed. Nothing was committed."""


class IoNotFoundError(IoError, FileNotFoundError):
    """The file is not there."""


class IoExistsError(IoError, FileExistsError):
    """The file is there already."""


class IoPermissionError(IoError, PermissionError):
    """This user may not open the file."""


class OutOfRangeError(Error, IndexError):
    """The range is not within the file."""


class PoisonedError(Error, OSError):
    """An earlier flush failed, or a page was lost. Nothing more is promised through this handle: open it again."""


class NotAFileError(Error, OSError):
    """The path names something other than a regular file."""


class ReadOnlyError(Error, OSError):
    """The file is open for reading only, or the medium refuses stores."""


class InUseError(Error, OSError):
    """Another process, or an incompatible handle of this process, has the file open."""


class SidecarMissingError(Error, OSError):
    """The file's sidecar holds committed bytes, and is missing."""


class SidecarMismatchError(Error, OSError):
    """The sidecar belongs to another file, or the data file was replaced."""


class UntrustedError(Error, PermissionError):
    """Another user may have planted a file of untorn's own, or may change it."""


class NoAccessError(Error, PermissionError):
    """This user may not open the sidecar of the file."""


class ModifiedExternallyError(Error, OSError):
    """Another program changed the file while untorn's sidecar held committed bytes of it."""


class NeedsRecoveryError(Error, OSError):
    """The file was not closed cleanly, and may not be changed here."""


class ChangedOutsideError(Error, OSError):
    """Another program changed the file meanwhile. Both versions are kept."""


class UnsupportedError(Error, OSError):
    """A newer version, or a feature unknown to this one, wrote the file."""


class CorruptError(Error, OSError):
    """The sidecar contradicts itself or its checksums."""


class OtherEngineError(Error, ValueError):
    """The sidecar of another engine holds committed bytes of the file."""


class ProtectionError(Error, ValueError):
    """The file cannot be protected by redundancy, or its redundancy does not fit it."""


class InvalidError(Error, ValueError):
    """An argument is not allowed here."""


class NotClosedError(Error, OSError):
    """The last commit is durable, and closing the file failed after it."""


class SnapshotEndedError(Error, OSError):
    """The snapshot ended before it was closed. Take a new one."""


class CommitsMissingError(Error, OSError):
    """The commit log does not reach back to the commit that was asked for, or the file keeps none."""


class ConsumerBehindError(Error, OSError):
    """Nothing was committed: the commit log is full, and keeps its oldest commits for a consumer. Commit again later."""


class NotAcknowledgedError(Error, OSError):
    """A commit is durable here, and the consumers of the commit log have not acknowledged it in time. Commit again to
    wait longer."""


class NoSuchCommitError(Error, ValueError):
    """The file has no commit with this number: its last one is below it."""


class ReplayIncompleteError(Error, OSError):
    """A write-cache log holds writes that a replay could not bring to their files. The log keeps them."""


class UntrustedLogError(Error, PermissionError):
    """Another user could have written what the log says, so it is not believed."""


class ForkedError(Error, OSError):
    """The handle was opened before a fork, and the child may not use it."""


_BY_ERRNO: Dict[int, Type[Error]] = {
    _errno.ENOENT: IoNotFoundError,
    _errno.EEXIST: IoExistsError,
    _errno.EACCES: IoPermissionError,
    _errno.EPERM: IoPermissionError,
}

_CLASSES: Dict[str, Type[Error]] = {
    name[: -len("Error")]: value
    for name, value in list(globals().items())
    if name.endswith("Error") and isinstance(value, type) and issubclass(value, Error) and value is not Error
}


for _class in [Error, *_CLASSES.values()]:
    _class.__module__ = "untorn"


def make(kind: str, errno: int, text: str, path: object) -> Error:
    """Makes the exception of a kind of error."""
    cls = _CLASSES.get(kind, IoError)
    if cls is IoError:
        cls = _BY_ERRNO.get(errno, IoError)
    filename = None if path is None else str(path)
    # An OSError takes its number and file from its arguments.
    error = cls(errno, text, filename) if issubclass(cls, OSError) else cls(text)
    error.errno = errno
    error.filename = filename
    error._text = text  # type: ignore[attr-defined]
    return error
