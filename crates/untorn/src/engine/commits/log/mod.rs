//! The writer's side of a commit log: it appends a record before each commit and confirms it afterwards.

mod attach;
mod room;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::files::{PIECE, Segment, Sum, consumer_path, consumers, segment_path, segments};
use super::format::{CONFIRMED_AT, CONTROL_AT, Confirmed, Control, Head, LINE, RawHead, RawRange, body_len};
use super::{appender, barriers, consumer};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::options::CommitLog;
use crate::storage::{Access, Barrier, Medium, MediumClass, MediumFile, Stamp};

/// A commit that is about to be made.
pub(super) struct Coming<'a> {
    pub(super) number: u64,
    pub(super) time: u64,
    pub(super) len: u64,
    pub(super) shortest: u64,
    pub(super) ranges: &'a [RawRange],
}

/// A record that is durable, and that no engine has confirmed.
#[derive(Clone, Copy)]
pub(super) struct Appended {
    segment: u64,
    at: u64,
    next: u64,
    number: u64,
}

/// The log of a file that is open for writing.
pub(super) struct Log<M: Medium> {
    medium: Arc<M>,
    /// The data file.
    path: PathBuf,
    data: M::File,
    place: PathBuf,
    file: M::File,
    pub(super) control: Control,
    pub(super) confirmed: Confirmed,
    /// The one that is written to, if there is one.
    segment: Option<Segment<M::File>>,
    /// Which copy of the confirmation is the older one.
    turn: usize,
    /// A record that could not be taken back yet.
    stale: Option<Appended>,
    /// Records that [`put`](Self::put) stored and no [`publish`](Self::publish) made durable yet.
    unpublished: bool,
    /// Whether a record waits for consumers, if the log blocks.
    pub(super) waits: bool,
}

/// What a log says before the engine opens its file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glance {
    /// How the data file stands, before anything opens it.
    pub(crate) stamp: Stamp,
}

/// Whose commits a log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogOf {
    /// A file's.
    File,
    /// Those of a [part](super::part) of a file that commits by itself; no other one ever has the same number.
    Part([u8; 16]),
}

/// The path of the control file of a data file, or of a part of it.
pub(super) fn control_path(path: &Path, inode: u64, of: LogOf) -> PathBuf {
    let sidecar = sidecar::path(path, inode);
    match of {
        LogOf::File => sidecar.with_extension("commits"),
        LogOf::Part(uid) => sidecar.with_extension(format!("{:032x}.commits", u128::from_be_bytes(uid))),
    }
}

/// Looks at a file that may have a log; `None` if it has none.
///
/// # Errors
/// Those of looking.
pub(crate) fn glance<M: Medium>(medium: &M, path: &Path) -> Result<Option<Glance>> {
    let data = medium.open(path, Access::Read, 0)?;
    let has_log = medium.exists(&control_path(path, data.identity()?.inode, LogOf::File))?;
    Ok(if has_log { Some(Glance { stamp: data.stamp()? }) } else { None })
}

impl<M: Medium> Log<M> {
    /// How it is kept.
    pub(super) fn kept(&self) -> CommitLog {
        let Control { limit, block, awaits, .. } = self.control;
        CommitLog { limit, block, awaits: Some(awaits) }
    }

    /// The consumer with the lowest position, and that position.
    ///
    /// # Errors
    /// Those of opening and reading.
    pub(super) fn slowest(&self) -> Result<Option<(String, u64)>> {
        consumer::slowest(&*self.medium, &self.place, &self.control.uuid, &self.data)
    }

    /// The bytes of an appended record, in pieces.
    pub(super) fn bytes(
        &self,
        head: &Head,
        raw: &RawHead,
        appended: &Appended,
        each: impl FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let lost = || Error::Corrupt {
            path: segment_path(&self.place, appended.segment),
            offset: Some(appended.at),
            what: "a record of the commit log changed while it was read".to_owned(),
        };
        let segment = self.segment.as_ref().ok_or_else(lost)?;
        let ranges = segment.ranges(head, appended.at)?.ok_or_else(lost)?;
        segment.body(head, raw, appended.at, &ranges, each)?.map(drop).ok_or_else(lost)
    }

    /// Appends the record of a commit that is about to be made, durably. `fill` gives its bytes.
    ///
    /// # Errors
    /// [`Error::Io`] with ENOSPC, also if the commit is larger than the log may be; [`Error::ConsumerBehind`]; those of
    /// writing. Nothing is in the log then that counts.
    pub(super) fn append(
        &mut self,
        coming: &Coming<'_>,
        fill: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Appended> {
        if let Some(stale) = self.stale {
            self.abort(stale)?;
            self.stale = None;
        }
        let appended = self.store(coming, fill)?;
        let durable = match &self.segment {
            Some(segment) => self.fence_record(barriers::RECORD, segment),
            None => Ok(()),
        };
        durable.inspect_err(|_| self.take_back(appended))?;
        Ok(appended)
    }

    /// Makes the records of a segment durable. With them the confirmation before, where a fence costs the same for
    /// both: of two that are on their way, a power cut may tear both copies. A device keeps each of them whole, in a
    /// sector of its own.
    fn fence_record(&self, barrier: Barrier, segment: &Segment<M::File>) -> Result<()> {
        let both = [&segment.file, &self.file];
        let is_memory = self.medium.class() == MediumClass::PersistentMemory;
        self.medium.fence(barrier, if is_memory { &both } else { &both[..1] })
    }

    /// Stores the record of a commit that no crash takes back. Many share one [`publish`](Self::publish), which makes
    /// them durable and gives them to readers.
    ///
    /// # Errors
    /// As for [`append`](Self::append).
    pub(super) fn put(&mut self, coming: &Coming<'_>, fill: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<()> {
        let Appended { segment, next, number, .. } = self.store(coming, fill)?;
        self.confirmed = Confirmed { number, segment, at: next };
        self.unpublished = true;
        Ok(())
    }

    /// Makes the records durable that were put, and gives them to readers.
    ///
    /// # Errors
    /// Those of the flush, and of writing.
    pub(super) fn publish(&mut self) -> Result<()> {
        if !std::mem::replace(&mut self.unpublished, false) {
            return Ok(());
        }
        if let Some(segment) = &self.segment {
            self.fence_record(appender::barriers::RECORD, segment)?;
        }
        self.write_confirmed()
    }

    /// Stores a record. It is not durable, and no reader is given it.
    fn store(&mut self, coming: &Coming<'_>, mut fill: impl FnMut(u64, &mut [u8]) -> Result<()>) -> Result<Appended> {
        let path = self.path.clone();
        let no_space = || Error::io("append to the commit log of", &path, rustix::io::Errno::NOSPC);
        let count = u32::try_from(coming.ranges.len()).map_err(|_| no_space())?;
        let bytes = coming.ranges.iter().map(RawRange::bytes).sum();
        let body = body_len(count.into(), bytes).filter(|body| body + 2 * LINE <= self.control.limit);
        let body = body.ok_or_else(no_space)?;
        self.make_room(LINE + body)?;
        let at = if self.segment.as_ref().is_some_and(|segment| segment.index == self.confirmed.segment) {
            self.confirmed.at.max(LINE)
        } else {
            LINE
        };
        let Some(segment) = &self.segment else { return Err(no_space()) };
        let appended = Appended { segment: segment.index, at, next: at + LINE + body, number: coming.number };
        let written = self.write(coming, count, appended, &mut fill);
        written.inspect_err(|_| {
            // It may be whole, and whoever opens the log next would take it for one whose commit was under way.
            self.take_back(appended);
        })?;
        Ok(appended)
    }

    /// Takes a record back, durably, at the latest before the next one is made.
    pub(super) fn take_back(&mut self, appended: Appended) {
        self.stale = self.abort(appended).is_err().then_some(appended);
    }

    /// Writes a record. It is not durable.
    fn write(
        &self,
        coming: &Coming<'_>,
        count: u32,
        appended: Appended,
        fill: &mut impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(segment) = &self.segment else { return Ok(()) };
        let (at, bytes) = (appended.at, coming.ranges.iter().map(RawRange::bytes).max().unwrap_or(0));
        let head = Head {
            number: coming.number,
            previous: self.confirmed.number,
            time: coming.time,
            len: coming.len,
            shortest: coming.shortest,
            ranges: count,
        };
        let raw = head.encode(&self.control.uuid, segment.index, at);
        let mut sum = Sum::new(raw.body_seed());
        segment.file.write(at, raw.as_bytes())?;
        let mut next = at + LINE;
        let mut put = |bytes: &[u8]| {
            sum.add(bytes);
            let put = segment.file.write(next, bytes);
            next += bytes.len() as u64;
            put
        };
        put(coming.ranges.as_bytes())?;
        let mut piece = vec![0; PIECE.min(usize::try_from(bytes).unwrap_or(PIECE))];
        for range in coming.ranges {
            let (mut offset, mut left) = (range.offset(), range.bytes());
            while left > 0 {
                let here = left.min(PIECE as u64);
                let part = &mut piece[..here as usize];
                fill(offset, part)?;
                put(part)?;
                (offset, left) = (offset + here, left - here);
            }
        }
        segment.file.write(next, &sum.0.to_le_bytes())
    }

    /// Says that the engine has committed an appended record, durably. This itself is durable before the next segment
    /// goes: until then a crash repeats the commits since, which have the same bytes.
    pub(super) fn confirm(&mut self, appended: Appended) -> Result<()> {
        let Appended { segment, next, number, .. } = appended;
        self.confirmed = Confirmed { number, segment, at: next };
        self.write_confirmed()
    }

    fn write_confirmed(&mut self) -> Result<()> {
        let at = CONFIRMED_AT[self.turn];
        self.turn = 1 - self.turn;
        self.file.write(at, self.confirmed.encode(&self.control.uuid).as_bytes())
    }

    /// Takes an appended record back that the engine did not commit, durably.
    pub(super) fn abort(&self, appended: Appended) -> Result<()> {
        let Some(segment) = &self.segment else { return Ok(()) };
        segment.file.write(appended.at, &[0; LINE as usize])?;
        self.medium.fence(barriers::ABORT, &[&segment.file])
    }

    /// Says, durably, that the file was closed and how it stands.
    pub(super) fn close(&mut self) -> Result<()> {
        // As it is for whoever looks at it by its name.
        let data = self.medium.open(&self.path, Access::Read, 0)?;
        if !self.control.is_of(data.identity()?) {
            return Ok(());
        }
        self.write_control(Some(data.stamp()?))
    }

    /// Says, durably, how the file stands with the commits that were published.
    pub(super) fn stand(&mut self) -> Result<()> {
        let stamp = self.data.stamp()?;
        self.control.closed = Some(stamp);
        self.control.seq += 1;
        // The other copy says how it stood before, which is of use until the tail of the write cache's log moves on.
        let at = CONTROL_AT[(self.control.seq % 2) as usize];
        self.file.write(at, self.control.encode().as_bytes())?;
        self.medium.fence(appender::barriers::STANDS, &[&self.file])
    }

    /// Whether the control says how the file stands now.
    pub(super) fn stands(&self) -> Result<bool> {
        Ok(self.control.closed == Some(self.data.stamp()?))
    }

    pub(super) fn control_file(&self) -> &M::File {
        &self.file
    }

    pub(super) fn data(&self) -> &M::File {
        &self.data
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file has this path now. In another directory its log comes along, durably.
    pub(super) fn move_to(&mut self, to: &Path) -> Result<()> {
        let inode = self.control.identity.inode;
        appender::carry(&*self.medium, &self.path, to, inode, &self.data)?;
        (self.path, self.place) = (to.to_owned(), control_path(to, inode, LogOf::File));
        Ok(())
    }

    /// Gives the log up.
    pub(super) fn remove(self) -> Result<()> {
        remove(&*self.medium, &self.place)
    }
}

/// Removes a log: the control first, without which segments are nothing.
pub(super) fn remove<M: Medium>(medium: &M, place: &Path) -> Result<()> {
    let indices = segments(medium, place)?;
    let names = consumers(medium, place)?;
    medium.unlink(place)?;
    names.iter().try_for_each(|name| medium.unlink(&consumer_path(place, name)))?;
    indices.into_iter().try_for_each(|index| medium.unlink(&segment_path(place, index)))
}
