//! The note of a file: of which replicas it has all commits.
//!
//! It is the extended attribute `user.untorn.replica` of the data file. A restoration notes how far the file has come,
//! and a writer notes its token. Both note a digest of the URL, so that a store that is gone is not mistaken for one
//! that never had the replica. The note names its own file, so that one that was copied along counts for nothing: the
//! copy may be older than the replica.

use std::fs::File;
use std::path::Path;

use rustix::fs::{AtFlags, StatxFlags, XattrFlags, fgetxattr, fsetxattr, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::format::{Place, hex16, sum_of};
use crate::protocol::owner::Position;

const NAME: &str = "user.untorn.replica";
/// URLs that a note keeps, the last ones: an attribute has room for 4 KiB on ext4.
const URLS: usize = 16;

/// A file's knowledge of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    #[serde(with = "hex16")]
    replica: [u8; 16],
    /// The tokens under which the file's writers have owned the replica, or tried to.
    tokens: Vec<Token>,
    /// How far it was restored.
    position: Option<Noted>,
    /// How far the commit brings it that a follower makes next, or has made.
    #[serde(default)]
    next: Option<Noted>,
}

/// How far a file was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Noted {
    pub(crate) position: Position,
    /// The place of that position in the chain.
    #[serde(default)]
    pub(crate) place: Place,
    /// The number of the commit by which the file itself has that state.
    pub(crate) commit: u64,
}

/// A file's knowledge of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The tokens that its writers had.
    pub(crate) tokens: Vec<[u8; 16]>,
    /// How far it was restored.
    pub(crate) position: Option<Noted>,
    /// How far the commit brings it that a follower makes next, or has made.
    pub(crate) next: Option<Noted>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Token(#[serde(with = "hex16")] [u8; 16]);

/// The digest of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Url(#[serde(with = "hex16")] [u8; 16]);

impl Url {
    fn of(url: &str) -> Self {
        Url(sum_of(url.as_bytes()))
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Note {
    inode: u64,
    /// When the file was made, in nanoseconds.
    born: i128,
    entries: Vec<Entry>,
    /// Where the file has, or had, a replica.
    #[serde(default)]
    urls: Vec<Url>,
}

fn failed(operation: &'static str, path: &Path) -> impl Fn(Errno) -> Error {
    move |errno| Error::Io { operation, path: path.to_owned(), source: errno.into() }
}

/// The note of this file; an empty one if it has none, or that of another file.
fn read(file: &File, path: &Path) -> Result<Note> {
    let found = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME);
    let found = found.map_err(failed("examine", path))?;
    let born = i128::from(found.stx_btime.tv_sec) * 1_000_000_000 + i128::from(found.stx_btime.tv_nsec);
    let inode = found.stx_ino;
    let empty = Note { inode, born, ..Note::default() };
    let mut bytes = vec![0; 1 << 16];
    let len = match fgetxattr(file, NAME, &mut bytes) {
        Err(Errno::NODATA) => return Ok(empty),
        len => len.map_err(failed("read the replica note of", path))?,
    };
    // A damaged note proves nothing, like none.
    let note: Note = serde_json::from_slice(&bytes[..len]).unwrap_or_default();
    let is_own = (note.inode, note.born) == (inode, born);
    Ok(if is_own { note } else { empty })
}

fn write(file: &File, path: &Path, note: &Note) -> Result<()> {
    let bytes = serde_json::to_vec(note).unwrap_or_default();
    fsetxattr(file, NAME, &bytes, XattrFlags::empty()).map_err(failed("write the replica note of", path))?;
    file.sync_all().map_err(|source| Error::Io { operation: "flush", path: path.to_owned(), source })
}

fn change(file: &File, path: &Path, replica: [u8; 16], change: impl Fn(&mut Entry)) -> Result<()> {
    let mut note = read(file, path)?;
    if !note.entries.iter().any(|entry| entry.replica == replica) {
        note.entries.push(Entry { replica, tokens: Vec::new(), position: None, next: None });
    }
    note.entries.iter_mut().filter(|entry| entry.replica == replica).for_each(change);
    write(file, path, &note)
}

/// The file's knowledge of this replica.
pub(crate) fn known(file: &File, path: &Path, replica: [u8; 16]) -> Result<Known> {
    let entry = read(file, path)?.entries.into_iter().find(|entry| entry.replica == replica);
    Ok(entry.map_or_else(Known::default, |Entry { tokens, position, next, .. }| {
        let tokens = tokens.into_iter().map(|token| token.0).collect();
        Known { tokens, position, next }
    }))
}

/// Whether the file has, or had, a replica at this URL.
pub(crate) fn has_url(file: &File, path: &Path, url: &str) -> Result<bool> {
    Ok(read(file, path)?.urls.contains(&Url::of(url)))
}

/// Notes that the file has a replica at this URL.
pub(crate) fn add_url(file: &File, path: &Path, url: &str) -> Result<()> {
    let (mut note, url) = (read(file, path)?, Url::of(url));
    if note.urls.contains(&url) {
        return Ok(());
    }
    if note.urls.len() == URLS {
        note.urls.remove(0);
    }
    note.urls.push(url);
    write(file, path, &note)
}

/// Adds the token of a writer, before it tries to own the replica. It counts once the record confirms it.
pub(crate) fn add_token(file: &File, path: &Path, replica: [u8; 16], token: [u8; 16]) -> Result<()> {
    change(file, path, replica, |entry| entry.tokens.push(Token(token)))
}

/// Takes a token back whose writer was refused, so that refusals do not fill the note.
pub(crate) fn remove_token(file: &File, path: &Path, replica: [u8; 16], token: [u8; 16]) -> Result<()> {
    change(file, path, replica, |entry| entry.tokens.retain(|kept| kept.0 != token))
}

/// Keeps this token only: the record has confirmed it.
pub(crate) fn keep_token(file: &File, path: &Path, replica: [u8; 16], token: [u8; 16]) -> Result<()> {
    change(file, path, replica, |entry| {
        *entry = Entry { replica, tokens: vec![Token(token)], position: None, next: None }
    })
}

/// Notes how far the file was restored, and how far the commit brings it that a follower makes next.
pub(crate) fn set_position(
    file: &File,
    path: &Path,
    replica: [u8; 16],
    position: Noted,
    next: Option<Noted>,
) -> Result<()> {
    let position = Some(position);
    change(file, path, replica, |entry| *entry = Entry { replica, tokens: Vec::new(), position, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `None` where the file system keeps no such attributes.
    fn file(dir: &Path, name: &str) -> Option<File> {
        let file = File::create_new(dir.join(name)).unwrap();
        let kept = fsetxattr(&file, "user.untorn.test", b"x", XattrFlags::empty()).is_ok();
        kept.then_some(file)
    }

    #[test]
    fn a_note_keeps_what_each_replica_needs() {
        let dir = tempfile::tempdir().unwrap();
        let Some(file) = file(dir.path(), "a") else {
            untorn_testing::skip!("the file system of temporary files keeps no user attributes");
        };
        let path = dir.path().join("a");
        let found = |replica| known(&file, &path, [replica; 16]).unwrap();
        assert_eq!(found(1), Known::default());
        let place = Place { epoch: 1, seq: 2 };
        let position = Noted { position: Position { commit: 4, sum: [5; 16] }, place, commit: 3 };
        let next = Noted { commit: 4, ..position };
        set_position(&file, &path, [1; 16], position, Some(next)).unwrap();
        add_token(&file, &path, [1; 16], [6; 16]).unwrap();
        add_token(&file, &path, [2; 16], [7; 16]).unwrap();
        let both = Known { tokens: vec![[6; 16]], position: Some(position), next: Some(next) };
        assert_eq!(found(1), both);
        add_token(&file, &path, [1; 16], [8; 16]).unwrap();
        remove_token(&file, &path, [1; 16], [8; 16]).unwrap();
        assert_eq!(found(1), both);
        set_position(&file, &path, [1; 16], next, None).unwrap();
        assert_eq!(found(1), Known { tokens: vec![], position: Some(next), next: None });
        add_token(&file, &path, [1; 16], [6; 16]).unwrap();
        keep_token(&file, &path, [1; 16], [6; 16]).unwrap();
        assert_eq!(found(1), Known { tokens: vec![[6; 16]], ..Known::default() });
        assert_eq!(found(2).tokens, [[7; 16]]);
        let has = |number: usize| has_url(&file, &path, &format!("file:///{number}")).unwrap();
        for number in 0..=URLS {
            assert!(!has(number));
            add_url(&file, &path, &format!("file:///{number}")).unwrap();
            add_url(&file, &path, &format!("file:///{number}")).unwrap();
            assert!(has(number));
        }
        assert!(!has(0) && has(1));
        assert_eq!(found(2).tokens, [[7; 16]]);
    }

    #[test]
    fn the_note_of_another_file_counts_for_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (Some(one), Some(other)) = (file(dir.path(), "a"), file(dir.path(), "b")) else {
            untorn_testing::skip!("the file system of temporary files keeps no user attributes");
        };
        add_token(&one, &dir.path().join("a"), [1; 16], [6; 16]).unwrap();
        let mut bytes = vec![0; 4096];
        let len = fgetxattr(&one, NAME, &mut bytes).unwrap();
        fsetxattr(&other, NAME, &bytes[..len], XattrFlags::empty()).unwrap();
        assert_eq!(known(&other, &dir.path().join("b"), [1; 16]).unwrap(), Known::default());
    }
}
