//! The reader of a replica: from a snapshot along the chain of objects.
//!
//! # Invariants
//!
//! 1. A reader believes an object of an epoch whose end is not recorded only if the record, read again after the
//!    object, is the one that it knows. Then the object came before the end of its epoch.
//! 2. Each object names the checksum of the one before it, across epochs too.
//! 3. A reader that has fallen below the oldest usable snapshot begins anew ([`Step::Lost`]).

use super::access::{Access, Check};
use super::bundles::Ahead;
use super::owner::{Position, object_at, object_of};
use crate::error::{Error, Result};
use crate::format::body::Snapshot;
use crate::format::object::{Kind, Object};
use crate::format::record::{Record, SnapshotEntry};
use crate::format::{OWNER, Place, part};
use crate::store::{Read, Tag};

/// Which state is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Latest,
    /// The last commit with this number or a lower one.
    Commit(u64),
    /// The last commit at this time or before, in nanoseconds since 1970.
    Time(u64),
}

impl Target {
    /// Whether a commit is not too late.
    pub(crate) fn has(self, number: u64, time: u64) -> bool {
        match self {
            Target::Latest => true,
            Target::Commit(last) => number <= last,
            Target::Time(last) => time <= last,
        }
    }
}

/// The findings of a reader.
#[derive(Debug)]
pub(crate) enum Step {
    /// The next objects of the chain, commits and snapshots; none if there are no further ones yet.
    Objects(Vec<Object>),
    /// The objects that come next were deleted. Begin anew from a snapshot.
    Lost,
    /// The next object is missing, and whether it was deleted is not known.
    Idle,
}

/// A cursor that follows asks for the record at one of so many polls that find nothing.
const RECORD_EVERY: u32 = 16;

/// A place in the chain, and the record that shows the way.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    record: Record,
    tag: Tag,
    place: Place,
    position: Position,
    /// Bytes that were read.
    pub(crate) read: u64,
    /// Calls of [`poll`](Self::poll) that found nothing, one after the other.
    idle: u32,
    ahead: Ahead,
}

/// The damage of a place where something should be.
const MISSING: &str = "it is missing, and the record says that it is needed";

/// Takes the bytes of a snapshot: offset and piece.
pub(crate) type Sink<'a> = dyn FnMut(u64, &[u8]) -> Result<()> + 'a;

impl Cursor {
    /// A cursor before the newest snapshot that fits the target, and that snapshot.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of the store.
    pub(crate) fn begin(access: &Access, target: Target) -> Result<(Self, SnapshotEntry)> {
        let missing = |what: String| Error::NotFound { url: access.url(), what };
        let (record, tag) = access.record()?.ok_or_else(|| missing("there is no replica".to_owned()))?;
        let fits = |entry: &&SnapshotEntry| !entry.is_dropped && target.has(entry.commit, entry.time);
        let Some(entry) = record.snapshots.iter().rfind(fits).cloned() else {
            let oldest = record.oldest().map(|entry| entry.commit);
            return Err(missing(match oldest {
                None => "the replica has no snapshot yet".to_owned(),
                Some(oldest) => format!("nothing so old is there; the oldest snapshot is of commit {oldest}"),
            }));
        };
        Ok((Self::before(record, tag, &entry), entry))
    }

    /// The same before the oldest snapshot.
    ///
    /// # Errors
    /// As for [`begin`](Self::begin).
    pub(crate) fn begin_at_oldest(access: &Access) -> Result<(Self, SnapshotEntry)> {
        let missing = |what: &str| Error::NotFound { url: access.url(), what: what.to_owned() };
        let (record, tag) = access.record()?.ok_or_else(|| missing("there is no replica"))?;
        let oldest = record.oldest().cloned().ok_or_else(|| missing("the replica has no snapshot yet"))?;
        Ok((Self::before(record, tag, &oldest), oldest))
    }

    fn before(record: Record, tag: Tag, entry: &SnapshotEntry) -> Self {
        let position = Position { commit: entry.commit, sum: [0; 16] };
        Cursor { record, tag, place: entry.place, position, read: 0, idle: 0, ahead: Ahead::default() }
    }

    /// A cursor before everything. A reader that knows where it was [goes there](Self::go_to).
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of the store.
    pub(crate) fn new(access: &Access) -> Result<Self> {
        let missing = || Error::NotFound { url: access.url(), what: "there is no replica".to_owned() };
        let (record, tag) = access.record()?.ok_or_else(missing)?;
        let (place, position, ahead) = (Place::default(), Position::default(), Ahead::default());
        Ok(Cursor { record, tag, place, position, read: 0, idle: 0, ahead })
    }

    /// Goes where an earlier cursor was.
    pub(crate) fn go_to(&mut self, place: Place, position: Position) {
        (self.place, self.position) = (place, position);
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    /// Reads the snapshot at the cursor's place. `false` if it was deleted meanwhile. `size` is told the length first.
    pub(crate) fn load(
        &mut self,
        access: &Access,
        size: &mut dyn FnMut(u64) -> Result<()>,
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let Some(object) = self.enter(access)? else { return Ok(false) };
        self.load_object(access, &object, size, sink)
    }

    /// Reads the object at the cursor's place, behind which it goes on. `None` if it was deleted meanwhile.
    pub(crate) fn enter(&mut self, access: &Access) -> Result<Option<Object>> {
        let object = object_at(access, &self.record, self.place)?;
        match &object {
            Some(object) => self.position = Position { commit: object.header.last, sum: object.sum },
            None if self.is_current(access)? => {
                return Err(Error::Corrupt { name: self.place.object(), what: MISSING.to_owned() });
            }
            None => {}
        }
        Ok(object)
    }

    /// Reads the parts of a snapshot. `false` if one was deleted meanwhile.
    pub(crate) fn load_object(
        &mut self,
        access: &Access,
        object: &Object,
        size: &mut dyn FnMut(u64) -> Result<()>,
        sink: &mut Sink<'_>,
    ) -> Result<bool> {
        let name = object.header.place.object();
        let snapshot = (object.header.kind == Kind::Snapshot).then(|| Snapshot::decode(&object.body)).flatten();
        let corrupt = |name: String, what: &str| Error::Corrupt { name, what: what.to_owned() };
        let snapshot = snapshot.ok_or_else(|| corrupt(name, "it is no snapshot, or a damaged one"))?;
        self.read += object.stored;
        size(snapshot.len)?;
        for index in snapshot.parts {
            let name = access.part(object.header.place.epoch, snapshot.attempt, index);
            let Some(found) = access.get(&name)? else {
                // Unless a writer has dropped the snapshot.
                return if self.is_current(access)? { Err(corrupt(name, MISSING)) } else { Ok(false) };
            };
            let piece = part::decode(&name, &found.bytes)?;
            self.read += found.bytes.len() as u64;
            // `decode` has checked that the part begins within the file.
            let at = index * snapshot.part;
            if piece.len() as u64 > snapshot.part.min(snapshot.len - at) {
                return Err(corrupt(name, "it is longer than the part that it stands for"));
            }
            sink(at, &piece)?;
        }
        Ok(true)
    }

    /// The next objects, until they have about `most` bytes.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if an object does not follow the one before it; those of the store.
    pub(crate) fn next(&mut self, access: &Access, most: u64) -> Result<Step> {
        self.read_on(access, most, false)
    }

    /// The same for a reader that asks again and again. If it found nothing before, it makes one request, for the next
    /// object, and mostly leaves it at that: a missing object is not there yet, or was deleted ([`Step::Idle`]). The
    /// record tells which, and is asked from time to time.
    pub(crate) fn poll(&mut self, access: &Access, most: u64) -> Result<Step> {
        let step = self.read_on(access, most, !self.idle.is_multiple_of(RECORD_EVERY))?;
        self.idle = match &step {
            Step::Objects(objects) if objects.is_empty() => 1,
            Step::Idle => self.idle.wrapping_add(1),
            Step::Objects(_) | Step::Lost => 0,
        };
        Ok(step)
    }

    fn read_on(&mut self, access: &Access, most: u64, polls: bool) -> Result<Step> {
        loop {
            let (mut place, mut position) = (self.place, self.position);
            let (mut objects, mut bytes) = (Vec::new(), 0);
            let (mut is_open, mut is_missing) = (false, None);
            while bytes < most {
                let cut = self.record.cut(place.epoch);
                if let Some(cut) = cut.filter(|cut| place.seq >= cut.seq) {
                    let Some(epoch) = self.record.epoch_after(place.epoch) else { break };
                    if place.seq > cut.seq || (cut.seq > 0 && position.sum != cut.sum) {
                        let what = "it was cut off the chain after it was read".to_owned();
                        return Err(Error::Corrupt { name: place.object(), what });
                    }
                    place = Place { epoch, seq: 0 };
                    continue;
                }
                is_open |= cut.is_none();
                let end = cut.map_or(u64::MAX, |cut| cut.seq);
                let Some(object) = self.object(access, place.next(), end, polls)? else {
                    if polls && objects.is_empty() && cut.is_none() {
                        // Nothing was read, so there is nothing to believe.
                        return Ok(Step::Idle);
                    }
                    // With something behind it, it was deleted, or created just now.
                    let is_last = cut.is_none() && object_at(access, &self.record, place.next().next())?.is_none();
                    if !is_last && cut.is_none() && object_at(access, &self.record, place.next())?.is_some() {
                        continue;
                    }
                    is_open = true;
                    is_missing = (!is_last).then(|| place.next());
                    break;
                };
                if object.header.kind == Kind::Seal {
                    is_open = true;
                    break;
                }
                let is_next = object.header.before == position.sum && object.header.previous == position.commit;
                if !is_next {
                    // Unless it is of a stale writer, which the record tells.
                    is_open = true;
                    if self.is_current(access)? {
                        let what = "it does not follow the object before it".to_owned();
                        return Err(Error::Corrupt { name: place.next().object(), what });
                    }
                    break;
                }
                (place, position) = (place.next(), Position { commit: object.header.last, sum: object.sum });
                bytes += object.stored;
                objects.push(object);
            }
            let believes = !access.makes(Check::Validate) && !objects.is_empty();
            let is_same = !is_open || believes || self.update(access)?;
            if self.is_lost() {
                return Ok(Step::Lost);
            }
            if !is_same {
                continue;
            }
            if let Some(missing) = is_missing.filter(|_| objects.is_empty()) {
                return Err(Error::Corrupt { name: missing.object(), what: MISSING.to_owned() });
            }
            (self.place, self.position) = (place, position);
            self.read += bytes;
            return Ok(Step::Objects(objects));
        }
    }

    /// The object at this place of an epoch that ends at `end`: from a bundle, if the cursor has one or finds one.
    fn object(&mut self, access: &Access, place: Place, end: u64, polls: bool) -> Result<Option<Object>> {
        if self.ahead.object(place).is_none() && !polls {
            self.ahead.fetch(access, place, end)?;
        }
        match self.ahead.object(place) {
            Some(bytes) => object_of(&self.record, place, bytes).map(Some),
            None => object_at(access, &self.record, place),
        }
    }

    /// Whether objects that come next may be deleted.
    fn is_lost(&self) -> bool {
        self.record.oldest().is_none_or(|oldest| self.place < oldest.place)
    }

    /// Whether the record is still the one that this cursor knows.
    fn is_current(&self, access: &Access) -> Result<bool> {
        Ok(access.get_if_changed(OWNER, &self.tag)? == Read::Unchanged)
    }

    /// Reads the record again. Returns whether it was the same.
    pub(crate) fn update(&mut self, access: &Access) -> Result<bool> {
        match access.get_if_changed(OWNER, &self.tag)? {
            Read::Unchanged => Ok(true),
            Read::Missing => {
                let what = "its ownership record was removed".to_owned();
                Err(Error::NotFound { url: access.url(), what })
            }
            Read::Changed(found) => {
                (self.record, self.tag) = (Record::decode(&found.bytes)?, found.tag);
                Ok(false)
            }
        }
    }
}
