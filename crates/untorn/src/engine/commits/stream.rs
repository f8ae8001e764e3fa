//! Reading the commits of a file, one after the other, in any process.
//!
//! A reader takes no lock and keeps nobody waiting. It reads up to the last confirmed record, and looks after each how
//! far that is by then. A segment that the writer removes stays readable while it is open here.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use super::barriers;
use super::files::{Segment, open, read_control, segments};
use super::format::{Confirmed, Control, Head, LINE, RangeKind, RawRange, body_len};
use super::log::{LogOf, control_path};
use super::position::LogPosition;
use crate::engine::time_of;
use crate::error::{Error, Result};
use crate::storage::{Access, Identity, Medium, MediumFile};
use crate::sys::runs::Runs;

/// Bytes that a commit changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Where they are in the file.
    pub range: Range<u64>,
    /// The bytes as they are now; empty if the stream gives [ranges only](CommitStream::ranges_only).
    pub bytes: Vec<u8>,
}

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Commit {
    /// Its number.
    pub number: u64,
    /// The number of the commit before it.
    pub previous: u64,
    /// When it was made, to a few milliseconds.
    pub time: Option<SystemTime>,
    /// The length of the file after it, in bytes. Of a region, the bytes of its maximum of pages.
    pub len: u64,
    /// The shortest that the file was in this commit. Whoever repeats it sets this length first, then
    /// [`len`](Self::len): bytes in between that no change has are zeros.
    pub shortest: u64,
    /// The pages that became part of a region, as ranges of bytes, ascending. They read as zeros where no change has
    /// them. A file has none.
    pub allocated: Vec<Range<u64>>,
    /// The pages that were part of a region until this commit, as ranges of bytes, ascending. A file has none.
    pub freed: Vec<Range<u64>>,
    /// The changed ranges, ascending.
    pub changes: Vec<Change>,
}

impl Commit {
    /// All ranges that it tells of.
    pub(crate) fn ranges(&self) -> Runs {
        let mut all = Runs::new();
        self.changes.iter().for_each(|change| all.push(change.range.clone()));
        for more in [&self.allocated, &self.freed] {
            let mut runs = Runs::new();
            more.iter().for_each(|range| runs.push(range.clone()));
            all.add(&runs);
        }
        all
    }
}

/// Which bytes the commits after one of them changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Changes {
    /// The commit that was asked for: nothing up to it is in [`ranges`](Self::ranges).
    pub since: u64,
    /// The last commit whose changes are in them.
    pub through: u64,
    /// The length of the file at that commit; `None` if there was no commit since.
    pub len: Option<u64>,
    /// The shortest that the file was since; `None` if there was no commit.
    pub shortest: Option<u64>,
    /// The bytes that changed, ascending, none of them touching. Bytes that a change of the length made zeros are among
    /// them. Some may lie behind the end of the file: a [snapshot](crate::Snapshot) from before a shrink has them.
    pub ranges: Vec<Range<u64>>,
}

/// The commits of a log, in order.
pub(crate) trait Commits: Send {
    /// The next one; `None` if there is none yet.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`]; those of reading.
    fn next(&mut self, with_bytes: bool) -> Result<Option<Commit>>;
    /// The data file.
    fn path(&self) -> &Path;
    /// The number of the last one that was given.
    fn position(&self) -> u64;
    /// The UUID of the log.
    fn log(&self) -> [u8; 16];
    /// The last that was acknowledged; `None` if this is not the stream of a consumer.
    fn acknowledged(&self) -> Option<u64> {
        None
    }
    /// Makes this the position of the consumer, durably. Only the stream of a consumer is asked.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a commit that was not given; those of writing.
    fn acknowledge(&mut self, _number: u64) -> Result<()> {
        Ok(())
    }
}

/// The commits of a file in order, each exactly once, from the file's commit log.
///
/// A stream is pulled. A slow reader never slows a commit: the log keeps the newest commits up to its limit, and a
/// reader that has fallen behind is told so. Only registered [consumers](Self::consumer) are waited for, if the log was
/// asked to ([`CommitLog::block`](crate::options::CommitLog::block)). It holds no lock and may be anywhere: in the
/// process that has the file open, in another one, or in one that comes when the writer has gone.
///
/// ```
/// # fn main() -> untorn::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("ledger");
/// use untorn::{Options, commits::CommitStream};
/// let file = Options::new().commit_log(1 << 20).create(&path, 4096)?;
/// let from = file.last_commit().number;
/// file.write_at(b"hello", 100)?;
/// file.sync()?;
/// let mut stream = CommitStream::open(&path, from)?; // any process
/// let commit = stream.next()?.unwrap();
/// assert_eq!((commit.changes[0].range.clone(), &commit.changes[0].bytes[..]), (100..105, &b"hello"[..]));
/// assert!(stream.next()?.is_none()); // nothing yet
/// # Ok(()) }
/// ```
pub struct CommitStream {
    commits: Box<dyn Commits>,
    with_bytes: bool,
}

impl std::fmt::Debug for CommitStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommitStream").field("position", &self.position()).finish_non_exhaustive()
    }
}

impl CommitStream {
    pub(crate) fn new(commits: Box<dyn Commits>) -> Self {
        CommitStream { commits, with_bytes: true }
    }

    /// The next commit; `None` if there is none yet. All its bytes are in memory then.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the next commit is not in the log any more, or the log has begun anew or was given
    /// up: it names the oldest commit to go on from. [`Error::Corrupt`] if a record is damaged; errors of reading.
    #[allow(clippy::should_implement_trait, reason = "it fails, and goes on after `None`")]
    pub fn next(&mut self) -> Result<Option<Commit>> {
        self.commits.next(self.with_bytes)
    }

    /// The next commit, once there is one; `None` after this time. It looks every few milliseconds.
    ///
    /// # Errors
    /// As for [`next`](Self::next).
    pub fn next_within(&mut self, time: Duration) -> Result<Option<Commit>> {
        let since = Instant::now();
        loop {
            let next = self.next()?;
            let left = time.saturating_sub(since.elapsed());
            if next.is_some() || left.is_zero() {
                return Ok(next);
            }
            thread::sleep(left.min(Duration::from_millis(5)));
        }
    }

    /// The same stream without the bytes of changes, which takes less time and memory.
    #[must_use]
    pub fn ranges_only(mut self) -> Self {
        self.with_bytes = false;
        self
    }

    /// The number of the last commit that was given, or the one that the stream started from: another stream goes on
    /// from there.
    ///
    /// A number does not tell which log it is of: [`log_position`](Self::log_position) does.
    pub fn position(&self) -> u64 {
        self.commits.position()
    }

    pub(super) fn log(&self) -> [u8; 16] {
        self.commits.log()
    }

    /// Notes durably that this consumer is done with the commits up to this one: its next stream goes on after it, and
    /// the log may drop them. A lower number than an earlier one changes nothing. A flush for each call; a consumer may
    /// acknowledge many commits at once.
    ///
    /// # Errors
    /// [`Error::Invalid`] if this is not the stream of a [consumer](Self::consumer), if it has not given that commit
    /// yet, or if the consumer was [forgotten](crate::commits::forget) meanwhile. [`Error::Io`]: the position may be
    /// the old or the new one then.
    pub fn acknowledge(&mut self, number: u64) -> Result<()> {
        if self.acknowledged().is_none() {
            let what = "only the stream of a consumer acknowledges commits; open it by `CommitStream::consumer`";
            return Err(Error::Invalid { path: self.commits.path().to_owned(), what: what.to_owned() });
        }
        self.commits.acknowledge(number)
    }

    /// The last commit that this consumer acknowledged, or the one that it started after; `None` if this is not the
    /// stream of a [consumer](Self::consumer).
    pub fn acknowledged(&self) -> Option<u64> {
        self.commits.acknowledged()
    }

    /// Everything that is there now, as ranges.
    pub(crate) fn into_changes(mut self) -> Result<Changes> {
        let since = self.position();
        let (mut ranges, mut len, mut shortest) = (Runs::new(), None, None::<u64>);
        while let Some(commit) = self.commits.next(false)? {
            ranges.add(&commit.ranges());
            if commit.shortest < commit.len {
                let mut tail = Runs::new();
                tail.push(commit.shortest..commit.len);
                ranges.add(&tail);
            }
            len = Some(commit.len);
            shortest = Some(shortest.unwrap_or(u64::MAX).min(commit.shortest));
        }
        Ok(Changes { since, through: self.position(), len, shortest, ranges: ranges.into_ranges() })
    }
}

/// A reader of a log.
pub(crate) struct Reader<M: Medium> {
    medium: Arc<M>,
    path: PathBuf,
    of: LogOf,
    place: PathBuf,
    data: M::File,
    file: M::File,
    uuid: [u8; 16],
    /// The commit that the log began after.
    base: u64,
    /// The last commit that was given, or asked for.
    last: u64,
    /// If a later commit was asked for than the log has: the last that it has, and whether one has come since.
    behind: Option<(u64, bool)>,
    current: Option<(Segment<M::File>, u64)>,
}

impl<M: Medium> Reader<M> {
    /// Begins after this commit.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the log does not reach back to it, or there is none; those of opening.
    pub(crate) fn open(medium: Arc<M>, path: &Path, of: LogOf, from: u64) -> Result<Self> {
        let missing = |oldest| Error::CommitsMissing { path: path.to_owned(), from, oldest };
        let data = medium.open(path, Access::Read, 0)?;
        let identity = data.identity()?;
        let place = control_path(path, identity.inode, of);
        let file = open(&*medium, &place, Access::Read, &data)?.ok_or_else(|| missing(None))?;
        let (control, confirmed) = whole_control(&file)?.ok_or_else(|| missing(None))?;
        if !control.is_of(identity) {
            return Err(missing(None));
        }
        let path = path.to_owned();
        // An engine may give numbers that are in no log, so the one that was asked for may be among them.
        let behind = (confirmed.number < from).then_some((confirmed.number, false));
        let (uuid, base) = (control.uuid, control.base);
        let mut reader = Reader { medium, path, of, place, data, file, uuid, base, last: from, behind, current: None };
        reader.find(&control)?;
        Ok(reader)
    }

    /// Goes on from a position; it must be of this log.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the log began anew since; otherwise as for [`open`](Reader::open).
    pub(crate) fn resume(medium: Arc<M>, path: &Path, of: LogOf, position: &LogPosition) -> Result<Self> {
        match Self::open(medium, path, of, position.commit) {
            Ok(reader) if reader.uuid != position.log => Err(reader.missing(Some(reader.base))),
            opened => opened,
        }
    }

    /// The UUID of the log.
    pub(super) fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// The file that the log belongs to.
    ///
    /// # Errors
    /// Those of examining it.
    pub(super) fn identity(&self) -> Result<Identity> {
        self.data.identity()
    }

    /// The record behind the confirmed ones, if it is whole: its commit may be made or not.
    ///
    /// # Errors
    /// [`Error::CommitsMissing`] if the log has begun anew; those of reading.
    pub(super) fn unconfirmed(&self) -> Result<Option<(Head, Vec<RawRange>)>> {
        let (control, Confirmed { number, segment, at }) =
            whole_control(&self.file)?.ok_or_else(|| self.missing(None))?;
        if control.uuid != self.uuid {
            return Err(self.missing(Some(control.base)));
        }
        // The next segment, if the record had no room.
        let next = if at == 0 { segment } else { segment + 1 };
        for (index, at) in [(segment, at.max(LINE)), (next, LINE)] {
            let found = self.segment(index)?.filter(|found| index == segment || found.base == number);
            if let Some(found) = found
                && let Some((head, ..)) = found.whole(&self.uuid, at, number)?
            {
                return Ok(found.ranges(&head, at)?.map(|ranges| (head, ranges)));
            }
        }
        Ok(None)
    }

    /// The last commit that the log has, if a later one was asked for.
    pub(crate) fn behind(&self) -> Option<u64> {
        self.behind.map(|(number, _)| number)
    }

    /// Notes that the log goes up to this commit now, which must not show that the one asked for was never made.
    fn check_start(&mut self, number: u64) -> Result<()> {
        let Some((had, one_came)) = self.behind.filter(|(had, _)| *had < number) else { return Ok(()) };
        if number > self.last {
            self.behind = None;
        } else if one_came {
            return Err(Error::NoSuchCommit { path: self.path.clone(), commit: self.last, last: number.max(had) });
        } else {
            // One commit may have been on its way when the log was opened, with a lower number than the engine's.
            self.behind = Some((number, true));
        }
        Ok(())
    }

    fn missing(&self, oldest: Option<u64>) -> Error {
        Error::CommitsMissing { path: self.path.clone(), from: self.last, oldest }
    }

    /// Finds the segment that the next commit is in, if there is one yet.
    fn find(&mut self, control: &Control) -> Result<()> {
        let mut oldest = None;
        self.current = None;
        for index in segments(&*self.medium, &self.place)? {
            let Some(segment) = self.segment(index)? else { continue };
            oldest.get_or_insert(segment.base);
            if segment.base <= self.last {
                self.current = Some((segment, LINE));
            }
        }
        let oldest = oldest.unwrap_or(control.base);
        if self.last < oldest { Err(self.missing(Some(oldest))) } else { Ok(()) }
    }

    fn segment(&self, index: u64) -> Result<Option<Segment<M::File>>> {
        Segment::open(&*self.medium, &self.place, &self.uuid, index, Access::Read, &self.data)
    }

    /// How far the log goes now.
    fn confirmed(&mut self) -> Result<Option<(Control, Confirmed)>> {
        let (control, confirmed) = whole_control(&self.file)?.ok_or_else(|| self.missing(None))?;
        if control.uuid != self.uuid {
            return Err(self.missing(Some(control.base)));
        }
        if self.medium.makes_check(barriers::CONFIRMED) {
            self.check_start(confirmed.number)?;
            if confirmed.number <= self.last {
                return Ok(None);
            }
            return Ok(Some((control, confirmed)));
        }
        Ok(Some((control, Confirmed { number: u64::MAX, segment: u64::MAX, at: u64::MAX })))
    }

    fn damaged(&self, at: u64) -> Error {
        let what = "a record of its commit log is damaged".to_owned();
        Error::Corrupt { path: self.path.clone(), offset: Some(at), what }
    }
}

/// The control, which the writer may be writing to this moment.
pub(super) fn whole_control<F: MediumFile>(file: &F) -> Result<Option<(Control, Confirmed)>> {
    for _ in 0..8 {
        if let Some(read) = read_control(file)? {
            return Ok(Some(read));
        }
        thread::yield_now();
    }
    Ok(None)
}

impl<M: Medium> Commits for Reader<M> {
    fn next(&mut self, with_bytes: bool) -> Result<Option<Commit>> {
        let Some((control, confirmed)) = self.confirmed()? else {
            // A log that was given up gets no more commits.
            return if self.medium.exists(&self.place)? { Ok(None) } else { Err(self.missing(None)) };
        };
        if self.current.is_none() {
            self.find(&control)?;
        }
        loop {
            let Some((segment, at)) = &self.current else { return Ok(None) };
            let (index, at) = (segment.index, *at);
            let Some((head, raw)) = segment.head(&self.uuid, at)?.filter(|(head, _)| head.number <= confirmed.number)
            else {
                if index >= confirmed.segment || confirmed.segment == u64::MAX && self.segment(index + 1)?.is_none() {
                    return if confirmed.number == u64::MAX { Ok(None) } else { Err(self.damaged(at)) };
                }
                match self.segment(index + 1)? {
                    Some(next) if next.base >= self.last || next.base <= confirmed.number => {
                        self.current = Some((next, LINE));
                    }
                    _ => {
                        // Removed since: the commits in it are missing, unless they were given.
                        self.find(&control)?;
                        if self.current.as_ref().is_none_or(|(segment, _)| segment.index <= index) {
                            return Err(self.damaged(at));
                        }
                    }
                }
                continue;
            };
            let ranges = segment.ranges(&head, at)?.ok_or_else(|| self.damaged(at))?;
            if head.number <= self.last || !with_bytes {
                let bytes = ranges.iter().fold(0u64, |sum, range| sum.saturating_add(range.bytes()));
                let body = body_len(head.ranges.into(), bytes).ok_or_else(|| self.damaged(at))?;
                self.current.as_mut().into_iter().for_each(|(_, next)| *next = at + LINE + body);
                if head.number <= self.last {
                    continue;
                }
            }
            if head.previous > self.last {
                return Err(self.missing(Some(head.previous)));
            }
            let mut changes: Vec<Change> = ranges.iter().filter(|range| range.kind().has_bytes()).map(change).collect();
            if with_bytes {
                let (mut place, whole) = (0, self.current.as_ref());
                let segment = whole.map(|(segment, _)| segment).ok_or_else(|| self.damaged(at))?;
                let next = segment.body(&head, &raw, at, &ranges, |offset, bytes| {
                    while changes.get(place).is_some_and(|change| change.range.end <= offset) {
                        place += 1;
                    }
                    if let Some(change) = changes.get_mut(place) {
                        change.bytes.extend_from_slice(bytes);
                    }
                    Ok(())
                })?;
                let next = next.ok_or_else(|| self.damaged(at))?;
                self.current.as_mut().into_iter().for_each(|(_, at)| *at = next);
            }
            self.last = head.number;
            let (previous, time) = (head.previous, time_of(head.time));
            // The log of a part has another number there.
            let shortest = if self.of == LogOf::File { head.shortest } else { head.len };
            let of_kind = |is_so: &dyn Fn(RangeKind) -> bool| {
                let mut found = Runs::new();
                ranges.iter().filter(|range| is_so(range.kind())).for_each(|range| found.push(range.range()));
                found.into_ranges()
            };
            return Ok(Some(Commit {
                number: head.number,
                previous,
                time,
                len: head.len,
                shortest,
                allocated: of_kind(&RangeKind::allocates),
                freed: of_kind(&|kind| kind == RangeKind::Freed),
                changes,
            }));
        }
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn position(&self) -> u64 {
        self.last
    }

    fn log(&self) -> [u8; 16] {
        self.uuid
    }
}

fn change(range: &RawRange) -> Change {
    Change { range: range.range(), bytes: Vec::new() }
}
