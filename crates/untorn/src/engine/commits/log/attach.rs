//! Opening a commit log: what a crash left in it is confirmed, taken back, or given up.

use std::path::Path;
use std::sync::Arc;

use zerocopy::IntoBytes;

use super::{Appended, Glance, Log, LogOf, control_path, remove};
use crate::engine::commits::files::{Segment, consumer_path, consumers, open, read_control, segment_path, segments};
use crate::engine::commits::format::{CONTROL_AT, CONTROL_LEN, Confirmed, Control, Head, LINE, RawHead, body_len};
use crate::engine::commits::{appender, barriers, part};
use crate::error::Result;
use crate::format::sidecar;
use crate::options::CommitLog;
use crate::storage::{Access, Identity, Medium, MediumFile, Stamp};

/// The log of a file, just attached.
struct Attached<M: Medium> {
    log: Log<M>,
    /// The data file.
    identity: Identity,
    /// Whether there was one that belongs to the file.
    is_ours: bool,
}

impl<M: Medium> Log<M> {
    /// Opens the log of a file whose engine this process has just opened, or makes one as it is wanted. The engine's
    /// last commit is `last`, and it recovered the file if `recovered`. A new log begins at `last`. With `by_cache`, a
    /// write cache is to fill it, and the control goes on saying how the file stands.
    ///
    /// # Errors
    /// [`Error::Untrusted`] if another user may have planted it; those of opening and writing.
    pub(in crate::engine::commits) fn open(
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
    pub(in crate::engine::commits) fn open_part(
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
        if let Some(CommitLog { limit, block, awaits }) = wanted {
            (log.control.limit, log.control.block) = (limit, block);
            log.control.awaits = awaits.unwrap_or(log.control.awaits);
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
    pub(in crate::engine::commits) fn restart(&mut self, identity: Identity, base: u64, state: u64) -> Result<()> {
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
    pub(super) fn write_control(&mut self, closed: Option<Stamp>) -> Result<()> {
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

    pub(super) fn open_segment(&self, index: u64) -> Result<Option<Segment<M::File>>> {
        Segment::open(&*self.medium, &self.place, &self.control.uuid, index, Access::ReadWrite, &self.data)
    }

    /// The record that a crash left behind the confirmed ones, if it is whole. It is durable from here on.
    pub(in crate::engine::commits) fn tail(&mut self) -> Result<Option<(Head, RawHead, Appended)>> {
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
}
