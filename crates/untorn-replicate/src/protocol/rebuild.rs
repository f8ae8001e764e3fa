//! A file is rebuilt from a snapshot and the commits after it.

use super::access::Access;
use super::chain::{Cursor, Step, Target};
use crate::error::{Error, Result};
use crate::format::body::{Commit, decode_commits};
use crate::format::object::{Kind, Object};
use crate::format::record::SnapshotEntry;

/// Bytes of objects that are read before they are applied.
pub(crate) const BATCH: u64 = 16 << 20;

/// How often a reader begins anew because a writer deletes what it reads.
pub(crate) const TRIES: u32 = 16;

/// The file that is made.
pub(crate) trait Image {
    /// Cuts the file, or adds zeros.
    fn resize(&mut self, len: u64) -> Result<()>;
    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// The file is that of a commit now, which was made at this time, in nanoseconds since 1970.
    fn committed(&mut self, _number: u64, _time: u64) -> Result<()> {
        Ok(())
    }
}

/// The position of a rebuilt file.
#[derive(Debug)]
pub(crate) struct Rebuilt {
    pub(crate) cursor: Cursor,
    /// Its last commit.
    pub(crate) commit: u64,
    /// Nanoseconds since 1970; 0 if unknown.
    pub(crate) time: u64,
    /// It has all that the cursor has passed, so it may go on from there.
    pub(crate) is_whole: bool,
}

/// The commits of an object.
pub(crate) fn commits_of(object: &Object) -> Result<Vec<Commit>> {
    let header = &object.header;
    let commits = decode_commits(&object.body).filter(|commits| {
        let ends = (commits.first().map(|commit| commit.number), commits.last().map(|commit| commit.number));
        ends == (Some(header.first), Some(header.last))
    });
    let corrupt = || Error::Corrupt { name: header.place.object(), what: "its commits are damaged".to_owned() };
    commits.ok_or_else(corrupt)
}

/// Makes the changes of a commit.
pub(crate) fn apply(commit: &Commit, image: &mut dyn Image) -> Result<()> {
    image.resize(commit.shortest)?;
    image.resize(commit.len)?;
    commit.changes.iter().try_for_each(|(offset, bytes)| image.write(*offset, bytes))
}

/// Rebuilds the state that the target asks for. `progress` is told the bytes read so far.
pub(crate) fn rebuild(
    access: &Access,
    target: Target,
    image: &mut dyn Image,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Rebuilt> {
    rebuild_by(access, || once(access, Cursor::begin(access, target)?, target, image, progress))
}

/// The same from the oldest snapshot on, to the latest state.
pub(crate) fn rebuild_all(
    access: &Access,
    image: &mut dyn Image,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Rebuilt> {
    rebuild_by(access, || once(access, Cursor::begin_at_oldest(access)?, Target::Latest, image, progress))
}

fn rebuild_by(access: &Access, mut once: impl FnMut() -> Result<Option<Rebuilt>>) -> Result<Rebuilt> {
    for _ in 0..TRIES {
        if let Some(rebuilt) = once()? {
            return Ok(rebuilt);
        }
    }
    let what = format!("a writer deleted what was read {TRIES} times; keep older snapshots for longer");
    Err(Error::NotFound { url: access.url(), what })
}

/// `None` if it has to begin anew.
fn once(
    access: &Access,
    (mut cursor, entry): (Cursor, SnapshotEntry),
    target: Target,
    image: &mut dyn Image,
    progress: &mut dyn FnMut(u64) -> Result<()>,
) -> Result<Option<Rebuilt>> {
    if !load(access, &mut cursor, None, image)? {
        return Ok(None);
    }
    progress(cursor.read)?;
    let (mut commit, mut time) = (entry.commit, entry.time);
    image.committed(commit, time)?;
    loop {
        let before = cursor.clone();
        let Step::Objects(objects) = cursor.next(access, BATCH)? else { return Ok(None) };
        progress(cursor.read)?;
        if objects.is_empty() {
            return Ok(Some(Rebuilt { cursor, commit, time, is_whole: true }));
        }
        for object in &objects {
            let header = &object.header;
            if header.kind == Kind::Snapshot {
                if !target.has(header.last, header.time) {
                    return Ok(Some(Rebuilt { cursor: before, commit, time, is_whole: false }));
                }
                let mut here = cursor.clone();
                if !load(access, &mut here, Some(object), image)? {
                    return Ok(None);
                }
                (commit, time) = (header.last, header.time);
                image.committed(commit, time)?;
                continue;
            }
            for next in commits_of(object)? {
                if !target.has(next.number, next.time) {
                    return Ok(Some(Rebuilt { cursor: before, commit, time, is_whole: false }));
                }
                apply(&next, image)?;
                (commit, time) = (next.number, next.time);
                image.committed(commit, time)?;
            }
        }
    }
}

/// Makes the file that of a snapshot: the one at the cursor, or this object.
fn load(access: &Access, cursor: &mut Cursor, object: Option<&Object>, image: &mut dyn Image) -> Result<bool> {
    let image = std::cell::RefCell::new(image);
    let mut size = |len| {
        let mut image = image.borrow_mut();
        image.resize(0)?;
        image.resize(len)
    };
    let mut sink = |offset, piece: &[u8]| image.borrow_mut().write(offset, piece);
    match object {
        Some(object) => {
            // A snapshot that only repeats the state before it has nothing new.
            let repeats = crate::format::body::Snapshot::decode(&object.body).is_some_and(|found| !found.rebases);
            if repeats { Ok(true) } else { cursor.load_object(access, object, &mut size, &mut sink) }
        }
        None => cursor.load(access, &mut size, &mut sink),
    }
}
