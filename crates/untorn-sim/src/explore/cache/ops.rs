//! Operations on files behind a log.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use super::model::Model;

/// Names that files have, by number, in two directories.
pub(super) const NAMES: [&str; 3] = ["/a", "/b", "/d/c"];
/// The directories.
pub(super) const DIRS: [&str; 2] = ["/", "/d"];
pub(super) const OFFSETS: [u64; 5] = [0, 60, 100, 200, 4050];
/// Entries have 64 bytes, and one write may have six: the longest write goes past the log.
pub(super) const LENGTHS: [u64; 6] = [1, 64, 70, 200, 300, 500];
/// The content of a file before the log is put in front of it: bytes of this kind, not synced.
pub(super) const BEFORE: (u8, u64) = (254, 10);
/// All files there are, by name.
pub(super) type State = BTreeMap<u8, Vec<u8>>;

/// Ranges of files, by name.
pub(super) type Grown = BTreeMap<u8, Vec<Range<usize>>>;

/// One operation. Files are named by a name's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// A file that others wrote to before, and the first write behind the log: so long, of this byte, at its end.
    Create(u8, u64, u8),
    /// A new file and the first write to it; no operation syncs its name.
    Make(u8, u64, u8),
    Write(u8, u64, u64, u8),
    Append(u8, u64, u8),
    SetLen(u8, u64),
    /// A rename of a file that is demoted before, synced.
    Rename(u8, u8),
    /// A rename over the file that has the name. The log is told, and no operation syncs the rename.
    Move(u8, u8),
    /// A move that was announced to the log, and fails.
    MoveFails(u8, u8),
    Unlink(u8),
    /// An unlink that is not synced, of a file that is not demoted before.
    Leave(u8),
    /// An unlink of a file that the log has let go of. The log is not told; the file is complete and closed.
    Remove(u8),
    /// A sync, which commits an atomic file.
    Sync(u8),
    /// A commit of an atomic file that waits for nothing.
    CommitLater(u8),
    /// An atomic file is as its last commit left it.
    Abandon(u8),
    SyncAll,
    /// A sync of a directory, by its number, which the log makes unnecessary where it keeps all names that may have
    /// changed.
    SyncNames(u8),
    HandOver(u8),
    Demote(u8),
    Attach(u8),
    Drain,
    DrainSome,
    /// A drain during which this flush fails.
    DrainFails(u32),
    Reopen,
    /// The first flush from here fails while the log is opened.
    ReopenFails(u32),
    /// A replay that does not find this file, before one that does.
    ReopenMissing(u8),
}

impl Op {
    /// Whether it changes names, as far as is known, without the log: a file of which the log has no entries is not
    /// moved by way of it.
    pub(super) fn names_directly(&self) -> bool {
        matches!(self, Op::Unlink(_) | Op::Leave(_) | Op::Remove(_) | Op::Rename(..) | Op::Move(..) | Op::MoveFails(..))
    }

    /// Names that may stand for something else afterwards.
    pub(super) fn names(&self) -> impl Iterator<Item = u8> + use<> {
        let (one, other) = match *self {
            Op::Create(name, ..) | Op::Make(name, ..) | Op::Unlink(name) | Op::Leave(name) | Op::Remove(name) => {
                (Some(name), None)
            }
            Op::Rename(from, to) | Op::Move(from, to) | Op::MoveFails(from, to) => (Some(from), Some(to)),
            _ => (None, None),
        };
        one.into_iter().chain(other)
    }

    /// The file that it writes to past the log: then it is durable when it returns, and not atomic. The model does
    /// not know that the log is full of the entries of a failed file: `seen` says that the operation went past.
    pub(super) fn goes_past(&self, model: &Model, seen: bool) -> Option<u8> {
        match *self {
            Op::Create(file, ..) | Op::Make(file, ..) => Some(file),
            _ if model.atomic => None,
            Op::Write(file, _, len, _) | Op::Append(file, len, _) => {
                (seen || len > 6 * 64 || model.demoted.contains(&file)).then_some(file)
            }
            _ => None,
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |number: u8| NAMES[usize::from(number)];
        match *self {
            Op::Create(file, len, tag) => write!(f, "create {}, append {len} bytes {tag}", name(file)),
            Op::Make(file, len, tag) => write!(f, "create {} again, append {len} bytes {tag}", name(file)),
            Op::Write(file, at, len, tag) => write!(f, "write {len} bytes {tag} at {at} to {}", name(file)),
            Op::Append(file, len, tag) => write!(f, "append {len} bytes {tag} to {}", name(file)),
            Op::SetLen(file, len) => write!(f, "resize {} to {len}", name(file)),
            Op::Rename(from, to) => write!(f, "rename {} to {}", name(from), name(to)),
            Op::Move(from, to) => write!(f, "move {} to {}", name(from), name(to)),
            Op::MoveFails(from, to) => write!(f, "fail to move {} to {}", name(from), name(to)),
            Op::Unlink(file) => write!(f, "unlink {}", name(file)),
            Op::Leave(file) => write!(f, "prepare to unlink {}", name(file)),
            Op::Remove(file) => write!(f, "drain, close and remove {}", name(file)),
            Op::Sync(file) => write!(f, "sync {}", name(file)),
            Op::CommitLater(file) => write!(f, "commit {} some time", name(file)),
            Op::Abandon(file) => write!(f, "abandon the changes of {}", name(file)),
            Op::SyncAll => write!(f, "sync all"),
            Op::SyncNames(dir) => write!(f, "sync the directory {}", DIRS[usize::from(dir)]),
            Op::HandOver(file) => write!(f, "write {} to the kernel", name(file)),
            Op::Demote(file) => write!(f, "demote {}", name(file)),
            Op::Attach(file) => write!(f, "close {}, attach it", name(file)),
            Op::Drain => write!(f, "drain"),
            Op::DrainSome => write!(f, "drain some"),
            Op::DrainFails(nth) => write!(f, "drain while flush {nth} fails"),
            Op::Reopen => write!(f, "drop, open"),
            Op::ReopenFails(nth) => write!(f, "drop, open while flush {nth} fails"),
            Op::ReopenMissing(file) => write!(f, "drop, replay while {} is missing", name(file)),
        }
    }
}
