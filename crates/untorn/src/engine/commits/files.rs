//! The files of a commit log, and their names: the control file and the segments.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use zerocopy::{FromZeros, IntoBytes};

use super::format::{
    CONFIRMED_AT, CONTROL_AT, CONTROL_LEN, Confirmed, Control, Head, LINE, RawConfirmed, RawControl, RawHead, RawRange,
    RawSegment, body_len,
};
use crate::error::{Error, Result};
use crate::format::checksum::xxh3;
use crate::format::sidecar::MAX_LEN;
use crate::storage::{Access, Medium, MediumFile};

/// Bytes of a body that are read, or written, at once.
pub(super) const PIECE: usize = 64 << 10;

/// A control file or a segment of this log, opened and believed.
///
/// # Errors
/// As for [`Medium::open_companion`].
pub(super) fn open<M: Medium>(medium: &M, path: &Path, access: Access, data: &M::File) -> Result<Option<M::File>> {
    if !medium.exists(path)? {
        return Ok(None);
    }
    match medium.open_companion(path, access, 0, data) {
        Err(Error::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// The path of a segment.
pub(super) fn segment_path(control: &Path, index: u64) -> PathBuf {
    control.with_extension(format!("commits.{index:016x}"))
}

/// The path of the file with the position of a consumer.
pub(super) fn consumer_path(control: &Path, name: &str) -> PathBuf {
    control.with_extension(format!("commits.{CONSUMER}{name}"))
}

/// What such a name has after that of the control. No segment is called so.
const CONSUMER: &str = "consumer-";

/// The names of the consumers beside a control file.
///
/// # Errors
/// Those of listing the directory.
pub(super) fn consumers<M: Medium>(medium: &M, control: &Path) -> Result<Vec<String>> {
    let mut prefix = control.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
    prefix.extend_from_slice(format!(".{CONSUMER}").as_bytes());
    let name =
        |name: &OsStr| std::str::from_utf8(name.as_encoded_bytes().strip_prefix(&prefix[..])?).ok().map(str::to_owned);
    let dir = control.parent().unwrap_or(Path::new("."));
    Ok(medium.list(dir)?.iter().filter_map(|found| name(found)).collect())
}

/// The segments beside a control file, by number, ascending.
///
/// # Errors
/// Those of listing the directory.
pub(super) fn segments<M: Medium>(medium: &M, control: &Path) -> Result<Vec<u64>> {
    let mut prefix = control.file_name().unwrap_or_default().as_encoded_bytes().to_vec();
    prefix.push(b'.');
    let index = |name: &OsStr| {
        let index = std::str::from_utf8(name.as_encoded_bytes().strip_prefix(&prefix[..])?).ok()?;
        (index.len() == 16).then(|| u64::from_str_radix(index, 16).ok()).flatten()
    };
    let dir = control.parent().unwrap_or(Path::new("."));
    let mut found: Vec<u64> = medium.list(dir)?.iter().filter_map(|name| index(name)).collect();
    found.sort_unstable();
    Ok(found)
}

/// The newer whole copy of the control, and the later whole copy of the confirmation.
///
/// # Errors
/// Those of reading.
pub(super) fn read_control<F: MediumFile>(file: &F) -> Result<Option<(Control, Confirmed)>> {
    if file.len() < CONTROL_LEN {
        return Ok(None);
    }
    let mut best: Option<Control> = None;
    for at in CONTROL_AT {
        let mut raw = RawControl::new_zeroed();
        file.read(at, raw.as_mut_bytes())?;
        best = [best, Control::decode(&raw)].into_iter().flatten().max_by_key(|control| control.seq);
    }
    let Some(control) = best else { return Ok(None) };
    let mut confirmed = Confirmed { number: control.base, segment: 0, at: 0 };
    for at in CONFIRMED_AT {
        let mut raw = RawConfirmed::new_zeroed();
        file.read(at, raw.as_mut_bytes())?;
        let read = Confirmed::decode(&raw, &control.uuid).unwrap_or_default();
        if (read.number, read.segment, read.at) > (confirmed.number, confirmed.segment, confirmed.at) {
            confirmed = read;
        }
    }
    Ok(Some((control, confirmed)))
}

/// An open segment.
pub(super) struct Segment<F> {
    pub(super) file: F,
    pub(super) index: u64,
    /// The commit that its first record follows.
    pub(super) base: u64,
}

impl<F: MediumFile> Segment<F> {
    /// Opens a segment of this log; `None` if there is none that counts.
    ///
    /// # Errors
    /// Those of opening and reading.
    pub(super) fn open<M: Medium<File = F>>(
        medium: &M,
        control: &Path,
        uuid: &[u8; 16],
        index: u64,
        access: Access,
        data: &F,
    ) -> Result<Option<Self>> {
        let Some(file) = open(medium, &segment_path(control, index), access, data)? else { return Ok(None) };
        if file.len() < LINE {
            return Ok(None);
        }
        let mut raw = RawSegment::new_zeroed();
        file.read(0, raw.as_mut_bytes())?;
        Ok(raw.base(uuid, index).map(|base| Segment { file, index, base }))
    }

    /// The record at `at`, if there is one, whole or not.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn head(&self, uuid: &[u8; 16], at: u64) -> Result<Option<(Head, RawHead)>> {
        if at.checked_add(LINE).is_none_or(|end| end > self.file.len()) {
            return Ok(None);
        }
        let mut raw = RawHead::new_zeroed();
        self.file.read(at, raw.as_mut_bytes())?;
        Ok(Head::decode(&raw, uuid, self.index, at).map(|head| (head, raw)))
    }

    /// The ranges of a record; `None` if they are none that a commit has.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn ranges(&self, head: &Head, at: u64) -> Result<Option<Vec<RawRange>>> {
        let table = u64::from(head.ranges) * size_of::<RawRange>() as u64;
        // Bounded by the file before anything is allocated.
        if at + LINE + table > self.file.len() {
            return Ok(None);
        }
        let mut ranges = vec![RawRange::new_zeroed(); head.ranges as usize];
        self.file.read(at + LINE, ranges.as_mut_bytes())?;
        let mut end = 0;
        let sound = ranges.iter().all(|range| {
            let (offset, len) = (range.offset(), range.len());
            let follows = offset >= end && len > 0 && offset <= MAX_LEN && len <= MAX_LEN && offset + len <= head.len;
            end = offset.saturating_add(len);
            follows
        });
        Ok(sound.then_some(ranges))
    }

    /// Reads the bytes of a record, checks them, and hands them on in pieces: offset and bytes. Returns where the next
    /// record begins; `None` if the record did not arrive whole, after pieces that do not count then.
    ///
    /// # Errors
    /// Those of reading, and of `each`.
    pub(super) fn body(
        &self,
        head: &Head,
        raw: &RawHead,
        at: u64,
        ranges: &[RawRange],
        mut each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<Option<u64>> {
        let bytes = ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.bytes()));
        let Some(body) = body_len(head.ranges.into(), bytes) else { return Ok(None) };
        let mut next = at + LINE;
        if next + body > self.file.len() {
            return Ok(None);
        }
        let end = next + body;
        let mut sum = Sum::new(raw.body_seed());
        sum.add(ranges.as_bytes());
        next += size_of_val(ranges) as u64;
        let mut piece = vec![0; PIECE.min(usize::try_from(bytes).unwrap_or(PIECE))];
        for range in ranges {
            let (mut offset, mut left) = (range.offset(), range.bytes());
            while left > 0 {
                let here = left.min(PIECE as u64);
                let part = &mut piece[..here as usize];
                self.file.read(next, part)?;
                sum.add(part);
                each(offset, part)?;
                (offset, left, next) = (offset + here, left - here, next + here);
            }
        }
        let mut recorded = [0; 8];
        self.file.read(next, &mut recorded)?;
        Ok((u64::from_le_bytes(recorded) == sum.0).then_some(end))
    }

    /// Whether the record at `at` is whole and follows this commit. Returns it, and where the next one begins.
    ///
    /// # Errors
    /// Those of reading.
    pub(super) fn whole(&self, uuid: &[u8; 16], at: u64, previous: u64) -> Result<Option<(Head, RawHead, u64)>> {
        let Some((head, raw)) = self.head(uuid, at)? else { return Ok(None) };
        if head.previous != previous {
            return Ok(None);
        }
        let Some(ranges) = self.ranges(&head, at)? else { return Ok(None) };
        let next = self.body(&head, &raw, at, &ranges, |_, _| Ok(()))?;
        Ok(next.map(|next| (head, raw, next)))
    }
}

/// The checksum over a body, piece by piece: writer and reader divide it alike.
pub(super) struct Sum(pub(super) u64);

impl Sum {
    pub(super) fn new(seed: u64) -> Self {
        Sum(seed)
    }

    pub(super) fn add(&mut self, piece: &[u8]) {
        self.0 = xxh3(self.0, piece);
    }
}
