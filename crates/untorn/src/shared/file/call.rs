//! The layout of calls and answers on the board.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::engine::{Info, Piece, Recovery, nanoseconds, time_of};
use crate::error::{Error, Result};
use crate::ipc::message::kinds;
use crate::ipc::rpc::{RequestSlot, Words};

kinds! {
    "The kind of a call.";
    /// `b` bytes from offset `a`.
    Read = 1,
    /// `a` pieces as one, under the condition `b`: for each its offset and its length, then the bytes of all. The
    /// answer is whether it was written.
    Write = 2,
    /// `b` bytes from offset `a`, brought home.
    Deploy = 3,
    Sync = 4,
    /// To `a` bytes.
    Resize = 5,
    Reclaim = 6,
    Info = 7,
    /// The length that another descriptor has grown the file to; 0 for none.
    Growth = 8,
}

// How a call ended; 0 if well, with a number in `a` or bytes.
const OUT_OF_RANGE: u64 = 1;
const POISONED: u64 = 2;
const INVALID: u64 = 3;
const READ_ONLY: u64 = 4;
const OTHER: u64 = 5;

/// The answers to a write.
pub(super) const WRITTEN: u64 = 0;
pub(super) const REFUSED: u64 = 1;

/// A write's condition, a count of changes, as a word; 0 is none.
pub(super) fn of_condition(changes: Option<u64>) -> u64 {
    changes.map_or(0, |changes| changes.wrapping_add(1))
}

/// The condition that a word is.
pub(super) fn to_condition(word: u64) -> Option<u64> {
    word.checked_sub(1)
}

/// Bytes of the table before the bytes of a write's pieces.
pub(super) fn table(pieces: &[Piece<'_>]) -> Vec<u8> {
    pieces.iter().flat_map(|piece| [piece.offset, piece.bytes.len() as u64]).flat_map(u64::to_le_bytes).collect()
}

/// The pieces of a write, if that is what the bytes are: ascending, and none over another.
pub(super) fn pieces(count: u64, bytes: &[u8]) -> Option<Vec<Piece<'_>>> {
    let (table, mut rest) = bytes.split_at_checked(usize::try_from(count).ok()?.checked_mul(16)?)?;
    let mut pieces = Vec::with_capacity(table.len() / 16);
    let mut free = 0;
    for entry in table.chunks_exact(16) {
        let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap_or_default());
        let (offset, len) = (word(0), word(8));
        let (bytes, after) = rest.split_at_checked(usize::try_from(len).ok()?)?;
        if offset < free {
            return None;
        }
        free = offset.checked_add(len)?;
        rest = after;
        pieces.push(Piece { offset, bytes });
    }
    rest.is_empty().then_some(pieces)
}

/// Puts an error in place as the answer.
pub(super) fn fail(request_slot: RequestSlot<'_>, error: &Error) {
    let (mut words, text) = match error {
        Error::OutOfRange { offset, len, file_len, .. } => {
            (Words { kind: OUT_OF_RANGE, a: *offset, b: *len, c: *file_len, ..Words::default() }, String::new())
        }
        Error::Poisoned { cause, .. } => (Words { kind: POISONED, ..Words::default() }, cause.clone()),
        Error::Invalid { what, .. } => (Words { kind: INVALID, ..Words::default() }, what.clone()),
        Error::ReadOnly { .. } => (Words { kind: READ_ONLY, ..Words::default() }, String::new()),
        Error::Io { source, .. } => {
            (Words { kind: OTHER, a: error.errno() as u64, ..Words::default() }, source.to_string())
        }
        other => (Words { kind: OTHER, a: other.errno() as u64, ..Words::default() }, other.to_string()),
    };
    words.len = request_slot.set_text(&text);
    request_slot.set_answer(words);
}

/// The answer's words, or the error that it is, as one of `operation` on the file of this name.
pub(super) fn result(request_slot: RequestSlot<'_>, operation: &'static str, path: &Path) -> Result<Words> {
    let words = request_slot.answered();
    if words.kind == 0 {
        return Ok(words);
    }
    let (text, path) = (request_slot.text(words.len), path.to_owned());
    Err(match words.kind {
        OUT_OF_RANGE => Error::OutOfRange { path, offset: words.a, len: words.b, file_len: words.c },
        POISONED => Error::Poisoned { path, cause: text },
        INVALID => Error::Invalid { path, what: text },
        READ_ONLY => Error::ReadOnly { path },
        _ => Error::of_another_process(operation, &path, words.a, text),
    })
}

/// The state of a file as bytes.
pub(super) fn of_info(info: &Info) -> Vec<u8> {
    let layout = info.layout.map_or("none", crate::options::Layout::as_str);
    let recovery = &info.recovery;
    let mut bytes = format!(
        "{} {} {layout} {} {} {} {} {} {} {} {} {} {}\n",
        info.engine,
        info.durability,
        info.len,
        info.commit,
        nanoseconds(info.committed),
        info.reflected_pages,
        info.reflected_slices,
        u64::from(recovery.was_needed),
        recovery.replayed,
        recovery.discarded,
        recovery.lost_bytes,
        u64::from(info.sidecar.is_some()),
    )
    .into_bytes();
    bytes.extend_from_slice(info.sidecar.as_ref().map_or(&[], |path| path.as_os_str().as_bytes()));
    bytes
}

/// The state that the bytes tell of.
pub(super) fn to_info(bytes: &[u8]) -> Option<Info> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let mut words = std::str::from_utf8(&bytes[..end]).ok()?.split(' ');
    let engine = words.next()?.parse().ok()?;
    let durability = words.next()?.parse().ok()?;
    let layout = words.next()?;
    let layout = if layout == "none" { None } else { Some(layout.parse().ok()?) };
    let mut number = || words.next()?.parse::<u64>().ok();
    let (len, commit, committed) = (number()?, number()?, time_of(number()?));
    let (reflected_pages, reflected_slices) = (number()?, number()?);
    let recovery = Recovery {
        was_needed: number()? != 0,
        replayed: number()?,
        discarded: number()?,
        // Only a recovery on demand gives any up.
        dropped_commits: 0,
        lost_bytes: number()?,
    };
    let sidecar = (number()? != 0).then(|| PathBuf::from(OsStr::from_bytes(&bytes[end + 1..])));
    Some(Info {
        engine,
        len,
        commit,
        committed,
        durability,
        layout,
        sidecar,
        reflected_pages,
        reflected_slices,
        recovery,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::rpc::{LONGEST, RpcArea};
    use crate::options::{Durability, EngineKind, Layout};

    #[test]
    fn pieces_survive_and_nonsense_is_none() {
        let given =
            [Piece { offset: 3, bytes: b"abc" }, Piece { offset: 6, bytes: b"" }, Piece { offset: 9, bytes: b"z" }];
        let mut bytes = table(&given);
        given.iter().for_each(|piece| bytes.extend_from_slice(piece.bytes));
        let found: Vec<_> =
            pieces(3, &bytes).unwrap().iter().map(|piece| (piece.offset, piece.bytes.to_vec())).collect();
        assert_eq!(found, [(3, b"abc".to_vec()), (6, vec![]), (9, b"z".to_vec())]);
        for count in [0, 1, 2, 4, u64::MAX] {
            assert!(pieces(count, &bytes).is_none(), "{count}");
        }
        for len in 0..bytes.len() {
            assert!(pieces(3, &bytes[..len]).is_none(), "{len}");
        }
        let mut over = bytes.clone();
        over[16] = 5; // the second begins within the first
        assert!(pieces(3, &over).is_none());
    }

    #[test]
    fn errors_and_states_survive() {
        let rpc_area = RpcArea::create([0; 4], "").unwrap();
        let request_slot = rpc_area.request_slot(0, 0);
        request_slot.allocate(0).unwrap();
        let path = || PathBuf::from("/a/file");
        let errors = [
            Error::OutOfRange { path: path(), offset: 1, len: 2, file_len: 3 },
            Error::Poisoned { path: path(), cause: "because".to_owned() },
            Error::Invalid { path: path(), what: "no such thing".to_owned() },
            Error::ReadOnly { path: path() },
            Error::io("write", &path(), rustix::io::Errno::NOSPC),
        ];
        for error in errors {
            fail(request_slot, &error);
            let found = result(request_slot, "write", &path()).unwrap_err();
            assert_eq!((found.to_string(), found.errno()), (error.to_string(), error.errno()));
        }
        fail(request_slot, &Error::Invalid { path: path(), what: "x".repeat(2 * LONGEST) });
        assert!(result(request_slot, "write", &path()).unwrap_err().to_string().ends_with("xx"));
        request_slot.set_answer(Words { a: 7, ..Words::default() });
        assert_eq!(result(request_slot, "sync", &path()).unwrap().a, 7);

        let info = Info {
            engine: EngineKind::HybridLog,
            len: 1,
            commit: 2,
            committed: time_of(1_764_394_431_123_456_789),
            durability: Durability::PerCommit,
            layout: Some(Layout::Sparse),
            sidecar: Some(PathBuf::from("/a b/c\nd")),
            reflected_pages: 3,
            reflected_slices: 4,
            recovery: Recovery { was_needed: true, replayed: 5, discarded: 6, dropped_commits: 0, lost_bytes: 7 },
        };
        assert_eq!(format!("{:?}", to_info(&of_info(&info)).unwrap()), format!("{info:?}"));
        let plain = Info { layout: None, sidecar: None, ..info };
        assert_eq!(format!("{:?}", to_info(&of_info(&plain)).unwrap()), format!("{plain:?}"));
        assert!(to_info(b"reflection\n").is_none() && to_info(b"").is_none());
    }
}
