//! Changing an untorn file to what objects of a replica say, within its open epoch.

use std::cell::RefCell;
use std::ops::Range;

use untorn::{AtomicFile, Snapshot};

use crate::error::Result;
use crate::format::body;
use crate::format::object::{Kind, Object};
use crate::protocol::access::Access;
use crate::protocol::chain::Cursor;
use crate::protocol::rebuild::{Image, apply, commits_of};

/// Bytes that are compared at once.
const PIECE: usize = 256 << 10;

/// Bytes that are written if one of them differs.
const BLOCK: usize = 4096;

/// An open file, whose epoch takes the changes.
pub(crate) struct FileImage<'a> {
    pub(crate) file: &'a AtomicFile,
}

impl Image for FileImage<'_> {
    fn resize(&mut self, len: u64) -> Result<()> {
        if self.file.len() != len {
            self.file.resize(len)?;
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.file.write_at(bytes, offset)?)
    }
}

/// The changes that were applied.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    pub(crate) commits: u64,
    /// The times of the first and of the last commit, in nanoseconds since 1970; 0 if not known.
    pub(crate) oldest: u64,
    pub(crate) newest: u64,
    pub(crate) is_restart: bool,
    /// The bytes that may have changed.
    pub(crate) touched: Vec<Range<u64>>,
}

/// Applies an object that the cursor has read. `false` if it is a snapshot that was deleted meanwhile.
pub(crate) fn apply_object(
    access: &Access,
    cursor: &mut Cursor,
    object: &Object,
    image: &mut FileImage<'_>,
    applied: &mut Applied,
) -> Result<bool> {
    if object.header.kind == Kind::Snapshot {
        // One that only repeats the state before it has nothing new.
        if body::Snapshot::decode(&object.body).is_some_and(|found| !found.rebases) {
            return Ok(true);
        }
        applied.is_restart = true;
        applied.newest = object.header.time;
        applied.touched.push(0..u64::MAX);
        return replace(access, cursor, object, image);
    }
    for commit in commits_of(object)? {
        apply(&commit, image)?;
        applied.commits += 1;
        applied.newest = commit.time;
        applied.oldest = if applied.oldest == 0 { commit.time } else { applied.oldest };
        // Bytes that a shorter length cut off and a longer one brought back are zeros.
        applied.touched.push(commit.shortest..commit.len);
        applied.touched.extend(commit.changes.iter().map(|(at, bytes)| *at..at + bytes.len() as u64));
    }
    Ok(true)
}

/// Makes the file that of a snapshot, and writes only what differs. `false` if the snapshot was deleted meanwhile; the
/// open epoch has a part of it then.
pub(crate) fn replace(
    access: &Access,
    cursor: &mut Cursor,
    object: &Object,
    image: &mut FileImage<'_>,
) -> Result<bool> {
    let file = image.file;
    let image = RefCell::new((image, 0));
    let mut size = |len| image.borrow_mut().0.resize(len);
    let mut sink = |offset: u64, piece: &[u8]| {
        let (image, done) = &mut *image.borrow_mut();
        zero(image, *done..offset)?;
        *done = offset + piece.len() as u64;
        differing(image, offset, piece)
    };
    if !cursor.load_object(access, object, &mut size, &mut sink)? {
        return Ok(false);
    }
    let (image, done) = image.into_inner();
    zero(image, done..file.len())?;
    Ok(true)
}

/// Writes the blocks that differ.
fn differing(image: &mut FileImage<'_>, offset: u64, piece: &[u8]) -> Result<()> {
    let mut there = vec![0; PIECE.min(piece.len())];
    for (index, part) in piece.chunks(PIECE).enumerate() {
        let at = offset + (index * PIECE) as u64;
        let there = &mut there[..part.len()];
        image.file.read_at(there, at)?;
        for (index, (block, old)) in part.chunks(BLOCK).zip(there.chunks(BLOCK)).enumerate() {
            if block != old {
                image.write(at + (index * BLOCK) as u64, block)?;
            }
        }
    }
    Ok(())
}

/// Makes a range zeros.
fn zero(image: &mut FileImage<'_>, range: Range<u64>) -> Result<()> {
    let zeros = vec![0; PIECE.min(range.end.saturating_sub(range.start) as usize)];
    let mut at = range.start;
    while at < range.end {
        let part = &zeros[..(range.end - at).min(PIECE as u64) as usize];
        differing(image, at, part)?;
        at += part.len() as u64;
    }
    Ok(())
}

/// Whether the file has the bytes of the snapshot in these ranges, and its length.
pub(crate) fn is_same(file: &AtomicFile, snapshot: &Snapshot, ranges: &[Range<u64>]) -> Result<bool> {
    if file.len() != snapshot.len() {
        return Ok(false);
    }
    let (mut one, mut other) = (vec![0; PIECE], vec![0; PIECE]);
    for range in ranges {
        let (mut at, end) = (range.start, range.end.min(file.len()));
        while at < end {
            let len = (end - at).min(PIECE as u64) as usize;
            let (one, other) = (&mut one[..len], &mut other[..len]);
            file.read_at(one, at)?;
            snapshot.read_at(other, at)?;
            if one != other {
                return Ok(false);
            }
            at += len as u64;
        }
    }
    Ok(true)
}
