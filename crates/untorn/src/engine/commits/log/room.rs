//! Room for a record: a log has a few segments, and the oldest goes for the next.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use zerocopy::IntoBytes;

use super::Log;
use crate::engine::commits::files::{Segment, open, segment_path, segments};
use crate::engine::commits::format::{LINE, RawSegment};
use crate::engine::commits::{barriers, consumer};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::storage::{Access, Medium, MediumFile};

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

impl<M: Medium> Log<M> {
    /// Makes room for a record of so many bytes: in the current segment, or in a new one.
    pub(in crate::engine::commits) fn make_room(&mut self, wanted: u64) -> Result<()> {
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
    /// blocks, or awaits them: a commit that was dropped would never be acknowledged for certain. A consumer takes no
    /// lock to get on, so it needs nothing of what this thread holds.
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
            let most = self.control.holds().filter(|_| self.waits).unwrap_or_default();
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
        if self.control.holds().is_some() && self.medium.makes_check(consumer::barriers::HELD) {
            let next = indices.next().map_or(Ok(None), |next| self.open_segment(next))?;
            // Nobody can be given what comes before a segment that is damaged.
            let through = next.map_or(0, |next| next.base);
            let slowest = self.slowest()?;
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
}

fn is_full(error: &Error) -> bool {
    use rustix::io::Errno;
    [Errno::NOSPC, Errno::DQUOT].iter().any(|errno| error.errno() == errno.raw_os_error())
}
