//! The writer's side of a commit log: it appends a record before each commit and confirms it afterwards.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::files::{PIECE, Segment, Sum, consumer_path, consumers, open, read_control, segment_path, segments};
use super::format::{
    CONFIRMED_AT, CONTROL_AT, CONTROL_LEN, Confirmed, Control, Head, LINE, RawHead, RawRange, RawSegment, body_len,
};
use super::{appender, barriers, consumer, part};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::options::CommitLog;
use crate::storage::{Access, Barrier, Identity, Medium, MediumClass, MediumFile, Stamp};

/// A log is divided into so many segments, the oldest of which goes when the limit is reached.
const SEGMENTS: u64 = 8;

/// Bytes of a segment at least, unless the limit is smaller.
const LEAST_SEGMENT: u64 = 64 << 10;

/// How often a commit looks whether a consumer has got on.
const POLL: Duration = Duration::from_millis(2);

/// What became of the oldest segment.
enum Oldest {
    Dropped,
    /// It has the last commit.
    IsNewest,
    /// This consumer has not acknowledged all of it.
    Held {
        consumer: String,
        acknowledged: u64,
    },
}

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

/// The log of a file, just attached.
struct Attached<M: Medium> {
    log: Log<M>,
    /// The data file.
    identity: Identity,
    /// Whether there was one that belongs to the file.
    is_ours: bool,
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
    /// Opens the log of a file whose engine this process has just opened, or makes one as it is wanted. The engine's
    /// last commit is `last`, and it recovered the file if `recovered`. A new log begins at `last`. With `by_cache`, a
    /// write cache is to fill it, and the control goes on saying how the file stands.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if another user may have planted it; those of opening and writing.
    pub(super) fn open(
        medium: Arc<M>,
        path: &Path,
        wanted: Option<CommitLog>,
        glance: Option<Glance>,
        last: u64,
        recovered: bool,
        by_cache: bool,
    ) -> Result<Option<Self>> {
        let Some(attached) = Self::attach(medium, path, LogOf::File, wanted, by_cache)? else { return Ok(None) };
        let Attached { mut log, identity, is_ours } = attached;
        let stands = |closed: Stamp| glance.is_some_and(|glance| glance.stamp == closed);
        // Closed, and nobody has changed the file since; or the crash left a sidecar, which kept others away.
        let goes_on = is_ours && (recovered || log.control.closed.is_some_and(stands));
        if goes_on && log.find_segment()? {
            log.write_control(log.control.closed.filter(|_| by_cache))?;
        } else {
            let base = last.max(log.confirmed.number);
            log.restart(identity, base, 0)?;
        }
        Ok(Some(log))
    }

    /// Opens the log of a part whose last commit is `last`, in the state `state`. Records up to that commit are
    /// confirmed, a later one is taken back, and the log goes on if its last commit is this one.
    ///
    /// # Errors
    /// As for [`open`](Log::open).
    pub(super) fn open_part(
        medium: Arc<M>,
        path: &Path,
        uid: [u8; 16],
        wanted: Option<CommitLog>,
        last: u64,
        state: u64,
    ) -> Result<Option<Self>> {
        let Some(attached) = Self::attach(medium, path, LogOf::Part(uid), wanted, false)? else { return Ok(None) };
        let Attached { mut log, identity, is_ours } = attached;
        let mut goes_on = is_ours && log.find_segment()?;
        if goes_on {
            while let Some((head, _, appended)) = log.tail()? {
                if head.number > last {
                    if log.medium.makes_check(part::barriers::DISCARD) {
                        log.abort(appended)?;
                    }
                    break;
                }
                log.confirm(appended)?;
            }
            goes_on = log.confirmed.number == last && log.last_state()? == Some(state);
        }
        if goes_on {
            log.write_control(None)?;
        } else {
            log.restart(identity, last, state)?;
        }
        Ok(Some(log))
    }

    /// The log that is there, or a new one if it is wanted.
    fn attach(
        medium: Arc<M>,
        path: &Path,
        of: LogOf,
        wanted: Option<CommitLog>,
        by_cache: bool,
    ) -> Result<Option<Attached<M>>> {
        let data = medium.open(path, Access::Read, 0)?;
        let identity = data.identity()?;
        let place = control_path(path, identity.inode, of);
        let mut found = open(&*medium, &place, Access::ReadWrite, &data)?;
        if found.as_ref().is_some_and(|file| file.len() < CONTROL_LEN) {
            // A crash left it half made.
            medium.unlink(&place)?;
            found = None;
        }
        let is_new = found.is_none();
        let file = match (found, wanted) {
            (Some(file), _) => file,
            (None, None) => return Ok(None),
            (None, Some(_)) => {
                let dir = sidecar::parent(&place);
                medium.create_companion_dir(&dir, &data)?;
                let file = medium.create_like(&place, CONTROL_LEN, CONTROL_LEN, &data)?;
                file.allocate(0, CONTROL_LEN)?;
                file
            }
        };
        medium.bring_in_line(&file, &data)?;
        // What a killed process left in the page cache is about to be relied upon.
        file.sync(barriers::ATTACH)?;
        file.distrust_cache(barriers::ATTACH, 0, file.len())?;
        if by_cache {
            // Also the names, which a rename of the file may have changed just before the kill.
            medium.sync_dir(appender::barriers::CARRIED, &sidecar::parent(&place))?;
            medium.sync_dir(appender::barriers::CARRIED, &sidecar::parent(path))?;
        }
        let read = if is_new { None } else { read_control(&file)? };
        // A file of an earlier file with this inode number, or one that a crash left half made.
        let ours = read.filter(|(control, _)| control.is_of(identity));
        if ours.is_none() && wanted.is_none() {
            remove(&*medium, &place)?;
            return Ok(None);
        }
        let (control, confirmed) = ours.unwrap_or_default();
        let mut log = Log {
            medium,
            path: path.to_owned(),
            data,
            place,
            file,
            control,
            confirmed,
            segment: None,
            turn: 0,
            stale: None,
            unpublished: false,
            waits: true,
        };
        if let Some(CommitLog { limit, block }) = wanted {
            (log.control.limit, log.control.block) = (limit, block);
        }
        Ok(Some(Attached { log, identity, is_ours: ours.is_some() }))
    }

    /// The state of the part at the last confirmed commit, as the log has it; `None` if its record is damaged.
    fn last_state(&self) -> Result<Option<u64>> {
        let Confirmed { number, segment: index, at: end } = self.confirmed;
        if end == 0 {
            return Ok((number == self.control.base).then_some(self.control.state));
        }
        // A record that was just taken back may have been the first one of the next segment.
        let is_current = self.segment.as_ref().is_some_and(|segment| segment.index == index);
        let earlier = if is_current { None } else { self.open_segment(index)? };
        let Some(segment) = earlier.as_ref().or(self.segment.as_ref()) else { return Ok(None) };
        let mut at = LINE;
        while at < end {
            let Some((head, _)) = segment.head(&self.control.uuid, at)? else { break };
            if head.number == number {
                return Ok(Some(head.shortest));
            }
            let Some(ranges) = segment.ranges(&head, at)? else { break };
            let bytes = ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.bytes()));
            let Some(body) = body_len(head.ranges.into(), bytes) else { break };
            at += LINE + body;
        }
        Ok(None)
    }

    /// Begins anew at this commit: whoever reads learns that commits are missing.
    pub(super) fn restart(&mut self, identity: Identity, base: u64, state: u64) -> Result<()> {
        (self.segment, self.unpublished) = (None, false);
        let uuid = self.medium.unique()?;
        let identity = Identity { device: 0, ..identity };
        self.control = Control { uuid, identity, base, state, ..self.control };
        self.confirmed = Confirmed { number: base, segment: 0, at: 0 };
        self.write_control(None)?;
        self.file.sync(barriers::CONTROL)?;
        let dir = sidecar::parent(&self.place);
        self.medium.sync_dir(barriers::CONTROL, &dir)?;
        self.medium.sync_dir(barriers::CONTROL, &sidecar::parent(&self.path))?;
        for index in segments(&*self.medium, &self.place)? {
            self.medium.unlink(&segment_path(&self.place, index))?;
        }
        Ok(())
    }

    /// Writes both copies of the control, durably, one after the other.
    fn write_control(&mut self, closed: Option<Stamp>) -> Result<()> {
        self.control.closed = closed;
        for _ in 0..2 {
            self.control.seq += 1;
            let at = CONTROL_AT[(self.control.seq % 2) as usize];
            self.file.write(at, self.control.encode().as_bytes())?;
            self.medium.fence(barriers::CONTROL, &[&self.file])?;
        }
        Ok(())
    }

    /// Opens the segment of the last confirmed record, if there is one; false if it is missing or damaged.
    fn find_segment(&mut self) -> Result<bool> {
        for index in segments(&*self.medium, &self.place)? {
            let path = segment_path(&self.place, index);
            if let Some(segment) = open(&*self.medium, &path, Access::ReadWrite, &self.data)? {
                self.medium.bring_in_line(&segment, &self.data)?;
            }
        }
        for name in consumers(&*self.medium, &self.place)? {
            let path = consumer_path(&self.place, &name);
            if let Some(position) = open(&*self.medium, &path, Access::ReadWrite, &self.data)? {
                self.medium.bring_in_line(&position, &self.data)?;
            }
        }
        if self.confirmed.at == 0 {
            // Nothing was confirmed yet, or neither copy is whole: then the first segment must still be there.
            let first = segments(&*self.medium, &self.place)?.into_iter().next();
            return Ok(first.is_none_or(|first| first <= self.confirmed.segment));
        }
        self.segment = self.open_segment(self.confirmed.segment)?;
        Ok(self.segment.is_some())
    }

    fn open_segment(&self, index: u64) -> Result<Option<Segment<M::File>>> {
        Segment::open(&*self.medium, &self.place, &self.control.uuid, index, Access::ReadWrite, &self.data)
    }

    /// The record that a crash left behind the confirmed ones, if it is whole. It is durable from here on.
    pub(super) fn tail(&mut self) -> Result<Option<(Head, RawHead, Appended)>> {
        let Confirmed { number, segment, at } = self.confirmed;
        if let Some(current) = &self.segment
            && let Some(found) = self.tail_in(current, at, number)?
        {
            return Ok(Some(found));
        }
        // The next one, if the record had no room.
        let next = if at == 0 { segment } else { segment + 1 };
        let Some(opened) = self.open_segment(next)?.filter(|opened| opened.base == number) else { return Ok(None) };
        let found = self.tail_in(&opened, LINE, number)?;
        if found.is_some() {
            self.segment = Some(opened);
        }
        Ok(found)
    }

    fn tail_in(&self, segment: &Segment<M::File>, at: u64, previous: u64) -> Result<Option<(Head, RawHead, Appended)>> {
        segment.file.sync(barriers::ATTACH)?;
        segment.file.distrust_cache(barriers::ATTACH, 0, segment.file.len())?;
        let whole = segment.whole(&self.control.uuid, at, previous)?;
        Ok(whole
            .map(|(head, raw, next)| (head, raw, Appended { segment: segment.index, at, next, number: head.number })))
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

    /// Makes room for a record of so many bytes: in the current segment, or in a new one.
    pub(super) fn make_room(&mut self, wanted: u64) -> Result<()> {
        let at = self.confirmed.at.max(LINE);
        if let Some(segment) = &self.segment
            && (segment.index != self.confirmed.segment || segment.file.len() - at.min(segment.file.len()) >= wanted)
            && segment.file.len() >= wanted + LINE
        {
            return Ok(());
        }
        // Only one segment at a time has records that are not durable, and the oldest go only when the confirmation
        // names none of them.
        self.publish()?;
        let index = if self.confirmed.at == 0 { self.confirmed.segment } else { self.confirmed.segment + 1 };
        let len = (self.control.limit / SEGMENTS).max(LEAST_SEGMENT.min(self.control.limit)).max(wanted + LINE);
        let path = segment_path(&self.place, index);
        self.drop_beyond(self.control.limit.saturating_sub(len))?;
        // Of a crash that came before its first record.
        if self.medium.exists(&path)? {
            self.medium.unlink(&path)?;
        }
        let base = self.confirmed.number;
        let uuid = self.control.uuid;
        let made = loop {
            match self.make_segment(&path, len, RawSegment::new(uuid, index, base)) {
                // The log is shorter than its limit on a full disk.
                Err(error) if is_full(&error) && matches!(self.drop_oldest()?, Oldest::Dropped) => {}
                made => break made?,
            }
        };
        self.segment = Some(Segment { file: made, index, base });
        Ok(())
    }

    fn make_segment(&self, path: &Path, len: u64, first: RawSegment) -> Result<M::File> {
        let file = self.medium.create_like(path, len, len, &self.data)?;
        let filled = || {
            file.allocate(0, len)?;
            file.write(0, first.as_bytes())?;
            // The segment, its length and its name are durable before a record in it is.
            self.medium.fence(barriers::SEGMENT, &[&file])?;
            file.sync(barriers::SEGMENT)?;
            self.medium.sync_dir(barriers::SEGMENT, &sidecar::parent(&self.place))
        };
        // One that has no room for all of it is no use.
        filled().inspect_err(|_| drop(self.medium.unlink(path)))?;
        Ok(file)
    }

    /// Removes the oldest segments until the others have no more than so many bytes. Waits for consumers if the log
    /// blocks. A consumer takes no lock to get on, so it needs nothing of what this thread holds.
    ///
    /// # Errors
    /// [`Error::ConsumerBehind`]; those of looking and removing.
    fn drop_beyond(&self, keep: u64) -> Result<()> {
        let since = Instant::now();
        while self.bytes_of_segments()? > keep {
            let (consumer, acknowledged) = match self.drop_oldest()? {
                Oldest::Dropped => continue,
                Oldest::IsNewest => break,
                Oldest::Held { consumer, acknowledged } => (consumer, acknowledged),
            };
            let most = self.control.block.filter(|_| self.waits).unwrap_or_default();
            let left = most.saturating_sub(since.elapsed());
            if left.is_zero() {
                let (path, last) = (self.path.clone(), self.confirmed.number);
                return Err(Error::ConsumerBehind { path, consumer, acknowledged, last });
            }
            thread::sleep(left.min(POLL));
        }
        Ok(())
    }

    fn bytes_of_segments(&self) -> Result<u64> {
        segments(&*self.medium, &self.place)?.into_iter().try_fold(0, |sum, index| {
            let segment = open(&*self.medium, &segment_path(&self.place, index), Access::Read, &self.data)?;
            Ok(sum + segment.map_or(0, |segment| segment.len()))
        })
    }

    /// Removes the oldest segment, unless nothing but that of the last commit is left, or a consumer needs it. A reader
    /// that has it open goes on.
    fn drop_oldest(&self) -> Result<Oldest> {
        let mut indices = segments(&*self.medium, &self.place)?.into_iter();
        let Some(index) = indices.next().filter(|index| *index < self.confirmed.segment) else {
            return Ok(Oldest::IsNewest);
        };
        if self.control.block.is_some() && self.medium.makes_check(consumer::barriers::HELD) {
            let next = indices.next().map_or(Ok(None), |next| self.open_segment(next))?;
            // Nobody can be given what comes before a segment that is damaged.
            let through = next.map_or(0, |next| next.base);
            let slowest = consumer::slowest(&*self.medium, &self.place, &self.control.uuid, &self.data)?;
            if let Some((consumer, acknowledged)) = slowest.filter(|(_, acknowledged)| *acknowledged < through) {
                return Ok(Oldest::Held { consumer, acknowledged });
            }
            consumer::make_durable(&*self.medium, &self.place, &self.data)?;
        }
        // After a crash the open looks for records from the confirmation on, which must not name what is gone.
        self.medium.fence(consumer::barriers::DROP, &[&self.file])?;
        self.medium.unlink(&segment_path(&self.place, index))?;
        Ok(Oldest::Dropped)
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

fn is_full(error: &Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOSPC, Errno::DQUOT].iter().any(|errno| error.errno() == errno.raw_os_error())
}

/// Removes a log: the control first, without which segments are nothing.
pub(super) fn remove<M: Medium>(medium: &M, place: &Path) -> Result<()> {
    let indices = segments(medium, place)?;
    let names = consumers(medium, place)?;
    medium.unlink(place)?;
    names.iter().try_for_each(|name| medium.unlink(&consumer_path(place, name)))?;
    indices.into_iter().try_for_each(|index| medium.unlink(&segment_path(place, index)))
}
