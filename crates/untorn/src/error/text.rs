//! The texts of errors: what failed, on which file and offset, why, and what to do.

use std::fmt;
use std::io;
use std::path::Path;

use super::{Error, FileKind, PageLost, ProtectionProblem};

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Io { operation, path, offset: None, source } => {
                write!(f, "cannot {operation} {}: {source}{}", path.display(), way_out(source))
            }
            Error::Io { operation, path, offset: Some(offset), source } => {
                write!(f, "cannot {operation} {} at byte {offset}: {source}{}", path.display(), way_out(source))
            }
            Error::OutOfRange { path, offset, len, file_len } => write!(
                f,
                "{}: {len} bytes at offset {offset} do not lie within the file's {file_len} bytes; resize the file \
                 first",
                path.display()
            ),
            Error::Poisoned { path, cause } => write!(
                f,
                "{}: this handle is unusable because an earlier call failed ({cause}); close it and open the file \
                 again to return to the last commit",
                path.display()
            ),
            Error::NotAFile { path, found: FileKind::CharacterDevice } if is_dax_device(path) => write!(
                f,
                "{} is a device of persistent memory without a file system, not a regular file; put its namespace into \
                 mode fsdax (`ndctl create-namespace --mode=fsdax --reconfig=NAMESPACE`), mount a file system on it \
                 with `-o dax=always`, and pass the path of a file there",
                path.display()
            ),
            Error::NotAFile { path, found } => {
                write!(f, "{} is {found}, not a regular file; pass the path of a regular file", path.display())
            }
            Error::ReadOnly { path } => {
                write!(f, "{} is open for reading only; open it for writing to change it", path.display())
            }
            Error::InUse { path, holder } => {
                write!(f, "{} is in use by {holder}; close it there first", path.display())
            }
            Error::SidecarMissing { path, sidecar, uuid, original: None, found: Some(found) } => write!(
                f,
                "{0}: this file's sidecar (UUID {uuid}) is not {1} but {2}, since the file has another inode number \
                 than when it was made: the two were restored or copied; run `untorn recover --adopt {0}`",
                path.display(),
                sidecar.display(),
                found.display()
            ),
            Error::SidecarMissing { path, sidecar, uuid, original: None, found: None } => write!(
                f,
                "{}: the sidecar {} (UUID {uuid}) is missing, and it holds committed bytes of this file; if this file \
                 is a copy, copy the original's sidecar to that name; if this file was moved or restored, put its \
                 sidecar into that directory under any name; then run `untorn recover --adopt`; to give up the bytes \
                 in the sidecar and keep the file as it is, run `untorn recover --trust file`",
                path.display(),
                sidecar.display()
            ),
            Error::SidecarMissing { path, sidecar, uuid, original: Some(original), .. } => write!(
                f,
                "{}: this file is a copy of {}, which owns the sidecar with UUID {uuid}; copy that sidecar to {} and \
                 run `untorn recover --adopt` again, or run `untorn settle` on the original and copy it again; to give \
                 up the bytes in the sidecar and keep the copy as it is, run `untorn recover --trust file`",
                path.display(),
                original.display(),
                sidecar.display()
            ),
            Error::SidecarMismatch { path, sidecar, what, found: Some(found) } => write!(
                f,
                "{0}: the sidecar {1} belongs to another file: {what}; this file's own sidecar is {2}; run `untorn \
                 recover --adopt {0}`",
                path.display(),
                sidecar.display(),
                found.display()
            ),
            Error::SidecarMismatch { path, sidecar, what, found: None } => write!(
                f,
                "{}: the sidecar {} does not belong to this file: {what}; if the two were restored together, run \
                 `untorn recover --adopt`; if the file is right without the sidecar, run `untorn recover --trust file`",
                path.display(),
                sidecar.display()
            ),
            Error::Untrusted { path, companion, what } => write!(
                f,
                "{}: refusing {}, which another user may have planted: {what}; if you know its origin, correct \
                 its owner (`chown`) and its permissions (`chmod`); otherwise remove it, and with it the commits that \
                 only it holds",
                path.display(),
                companion.display()
            ),
            Error::NoAccess { path, companion, what } => {
                write!(f, "{}: cannot open {}: {what}", path.display(), companion.display())
            }
            Error::ModifiedExternally { path, what } => write!(
                f,
                "{}: another program changed this file while its sidecar held committed bytes: {what}; `untorn recover \
                 --trust sidecar` writes the sidecar's bytes over the file, `untorn recover --trust file` drops the \
                 sidecar",
                path.display()
            ),
            Error::NeedsRecovery { path } => write!(
                f,
                "{} was not closed cleanly; a read-only handle serves its last commit, and `untorn recover` or an open \
                 for writing recovers it",
                path.display()
            ),
            Error::ReplayIncomplete { path, what } => write!(
                f,
                "{}: the log holds writes that could not be replayed to their files: {what}; restore the file, then \
                 run `untorn replay` on the log; the log keeps the writes until then",
                path.display()
            ),
            Error::ChangedOutside { path, what } => {
                write!(f, "{}: another program changed this file meanwhile: {what}", path.display())
            }
            Error::UntrustedLog { path, what } => write!(f, "{} is not trusted: {what}", path.display()),
            Error::Unsupported { path, what } => {
                write!(f, "{}: {what}; open it with a newer version of untorn", path.display())
            }
            Error::Corrupt { path, offset: None, what } => {
                write!(
                    f,
                    "{} is damaged: {what}; restore it from a backup; restore a sidecar together with its data file",
                    path.display()
                )
            }
            Error::Corrupt { path, offset: Some(offset), what } => write!(
                f,
                "{} is damaged at byte {offset}: {what}; restore it from a backup; restore a sidecar together with its \
                 data file",
                path.display()
            ),
            Error::OtherEngine { path, engine } => write!(
                f,
                "{}: committed bytes of this file live in a sidecar of the {engine} engine; open it with that one, or \
                 settle it first",
                path.display()
            ),
            Error::Protection { path, problem } => write!(f, "{}: {problem}", path.display()),
            Error::Invalid { path, what } => write!(f, "{}: {what}", path.display()),
            Error::NotClosed { path, commit, cause } => write!(
                f,
                "{}: commit {commit} is durable, but closing the file failed: {cause}; a sidecar that is left must go \
                 with every copy of the file; remove the cause, then run `untorn settle`",
                path.display()
            ),
            Error::SnapshotEnded { path, cause } => write!(
                f,
                "{}: a snapshot of this file has ended: {cause}; the file itself is unharmed; take a new snapshot",
                path.display()
            ),
            Error::CommitsMissing { path, from, oldest: Some(oldest) } if from >= oldest => write!(
                f,
                "{}: its commit log began anew at commit {oldest}: another program may have changed the file since \
                 commit {from}. Start from a backup of commit {oldest} or a later one, or copy the file as it is \
                 (`untorn backup`), and go on from the commit of the copy",
                path.display()
            ),
            Error::CommitsMissing { path, from, oldest: Some(oldest) } => write!(
                f,
                "{}: the commits after {from} are not all in its commit log, which begins after commit {oldest}; start \
                 from a backup of commit {oldest} or a later one. Without one, copy the file as it is (`untorn \
                 backup`), and go on from the commit of the copy",
                path.display()
            ),
            Error::CommitsMissing { path, oldest: None, .. } => write!(
                f,
                "{}: it has no commit log; `untorn commits --start SIZE` gives it one (`Options::commit_log`)",
                path.display()
            ),
            Error::ConsumerBehind { path, consumer, acknowledged, last } => write!(
                f,
                "{}: nothing was committed: the commit log is full, and its consumer {consumer:?} has acknowledged \
                 commits up to {acknowledged} of {last} only; commit again when it has got on, or remove it with \
                 `untorn commits --forget {consumer}`",
                path.display()
            ),
            Error::NotAcknowledged { path, consumer: Some(consumer), commit } => write!(
                f,
                "{}: commit {commit} is durable here, and the consumer {consumer:?} of its commit log has not \
                 acknowledged it in time; sync again to wait longer",
                path.display()
            ),
            Error::NotAcknowledged { path, consumer: None, commit } => write!(
                f,
                "{}: commit {commit} is durable here, and its commit log has no consumer that could acknowledge it; \
                 start the consumer (`untorn replicate`), and sync again",
                path.display()
            ),
            Error::NoSuchCommit { path, commit, last } => write!(
                f,
                "{}: it has no commit {commit}: its last one is {last}; if the file was restored from an older backup, \
                 copy it as it is (`untorn backup`), and go on from the commit of the copy",
                path.display()
            ),
            Error::Forked { path } => write!(
                f,
                "{}: this handle belongs to the process that opened it and cannot be used after fork(2); open the file \
                 again in the child",
                path.display()
            ),
        }
    }
}

/// The way out, where a limit of the process is the reason.
fn way_out(source: &io::Error) -> &'static str {
    use rustix::io::Errno;
    match source.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => {
            "; raise the limit on address space (`ulimit -v`), on mappings (sysctl vm.max_map_count) or on memory, or \
             close other files"
        }
        Some(Errno::MFILE) => "; raise the limit on descriptors (`ulimit -n`), or close other files",
        _ => "",
    }
}

/// Whether a character device is named as the kernel names those of persistent memory, `/dev/dax0.0`.
fn is_dax_device(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"dax"))
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Directory => "a directory",
            FileKind::Pipe => "a pipe",
            FileKind::Socket => "a socket",
            FileKind::CharacterDevice => "a character device",
            FileKind::BlockDevice => "a block device",
            FileKind::Other => "something else",
        })
    }
}

impl fmt::Display for ProtectionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProtectionProblem::NotProtected => f.write_str(
                "this file is not protected: it has no checksums and no parity; `untorn protect` makes them",
            ),
            ProtectionProblem::HasEngine => f.write_str(
                "this file has a sidecar, so only its engine may write to it; open it with `Options::redundancy`, \
                 protect it with `untorn protect`, or settle it first (`untorn settle`)",
            ),
            ProtectionProblem::Empty => f.write_str("an empty file has nothing to protect; give it its length first"),
            ProtectionProblem::TooLong => f.write_str("the file is longer than redundancy supports"),
            ProtectionProblem::RegionStore => f.write_str(
                "this file is a region store, and region commits do not update redundancy; a store cannot be protected",
            ),
            ProtectionProblem::OtherFile { redundancy } => write!(
                f,
                "the redundancy file {} belongs to another file that had the same inode number; remove it with `untorn \
                 unprotect`",
                redundancy.display()
            ),
            ProtectionProblem::OtherLength { protected, now } => write!(
                f,
                "it had {protected} bytes when it was protected and has {now} now; remove its redundancy with `untorn \
                 unprotect`, then protect it again"
            ),
            ProtectionProblem::OtherSettings { kept } => {
                write!(f, "it is already protected with {kept}; unprotect it first to change these")
            }
            ProtectionProblem::Untrackable { cause } => {
                write!(f, "stores to the mapping cannot be tracked here ({cause}); use `open` and announce the stores")
            }
        }
    }
}

impl fmt::Display for PageLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a mapped page of the file was lost: the file was truncated while mapped, its disk is full, or the medium \
             failed; fix the cause, then close the file and open it again",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_of_persistent_memory_is_named_with_the_way_out() {
        let text = |path: &str, found| Error::NotAFile { path: path.into(), found }.to_string();
        let dax = text("/dev/dax0.0", FileKind::CharacterDevice);
        assert!(
            dax.starts_with("/dev/dax0.0 is a device of persistent memory") && dax.contains("--mode=fsdax"),
            "{dax}"
        );
        let other = text("/dev/null", FileKind::CharacterDevice);
        assert_eq!(other, "/dev/null is a character device, not a regular file; pass the path of a regular file");
        assert!(text("/mnt/dax", FileKind::Directory).contains("is a directory"));
    }
}
