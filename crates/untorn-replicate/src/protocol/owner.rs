//! The writer of a replica: how it becomes the owner, and what it does as one.
//!
//! # Invariants
//!
//! 1. The record changes by compare-and-swap only, and each owner has an epoch above all before it.
//! 2. The owner creates the objects of its epoch one after the other, each under the next free name.
//! 3. A commit is acknowledged once its object is there and the record, read again after that, still names this owner.
//! 4. A new owner seals each earlier epoch behind its last object and records the end, before it creates an object.
//! 5. An owner that hands over seals its own epoch, and creates no object any more.
//! 6. Objects are deleted below the place of the oldest usable snapshot, as the record says. That place never goes
//!    back.

use super::access::{Access, Check, Created};
use super::bundles::{Bundle, Bundler, names_within};
use crate::error::{Error, Result};
use crate::format::body::Snapshot;
use crate::format::object::{self, Header, Kind, Object};
use crate::format::record::{Cut, Owner as Writer, Past, Record, SnapshotEntry};
use crate::format::{OWNER, Place, Sum, part};
use crate::store::{Read, Tag};

/// The end of a chain, or how far a restored file has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Position {
    pub(crate) commit: u64,
    #[serde(with = "crate::format::hex16")]
    pub(crate) sum: Sum,
}

/// Why a writer may own a replica.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    /// The number of the replica, if it is made now.
    pub(crate) replica: [u8; 16],
    pub(crate) token: [u8; 16],
    /// For people: host and process.
    pub(crate) name: String,
    /// Earlier tokens of this file: as an owner it had all commits of the chain.
    pub(crate) known: Vec<[u8; 16]>,
    /// The file was restored up to here.
    pub(crate) position: Option<Position>,
}

/// Bundles that wait to be taken, at most, so that a writer which ships many objects at once needs little memory.
const BUNDLES: usize = 8;

/// An object that is not known to be in the store yet.
struct Pending {
    bytes: Vec<u8>,
    position: Position,
}

/// The owner of a replica.
pub(crate) struct Owner {
    access: Access,
    record: Record,
    tag: Tag,
    place: Place,
    position: Position,
    pending: Option<Pending>,
    attempts: u64,
    bundler: Bundler,
    bundles: Vec<Bundle>,
    /// The writer that has taken over.
    fenced: Option<String>,
}

impl Owner {
    /// Takes the replica over, or makes it.
    ///
    /// # Errors
    /// [`Error::NotDescendant`] if the file is not known to have all commits of the chain; [`Error::Fenced`] if
    /// another writer takes over meanwhile; those of the store.
    pub(crate) fn acquire(access: &Access, claim: &Claim) -> Result<Self> {
        let seized = Seized::take(access, claim, true)?;
        seized.own(claim)
    }

    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    fn new(access: &Access, record: Record, tag: Tag) -> Self {
        let place = Place { epoch: record.epoch, seq: 0 };
        let (access, position) = (access.clone(), Position { commit: 0, sum: [0; 16] });
        Owner {
            access,
            record,
            tag,
            place,
            position,
            pending: None,
            attempts: 0,
            bundler: Bundler::default(),
            bundles: Vec::new(),
            fenced: None,
        }
    }

    /// The end of the chain.
    pub(crate) fn position(&self) -> Position {
        self.position
    }

    pub(crate) fn place(&self) -> Place {
        self.place
    }

    pub(crate) fn record(&self) -> &Record {
        &self.record
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.is_some()
    }

    /// # Errors
    /// [`Error::Fenced`] once another writer has taken over.
    fn usable(&self) -> Result<()> {
        match &self.fenced {
            None => Ok(()),
            Some(by) => Err(Error::Fenced { url: self.access.url(), epoch: self.place.epoch, by: by.clone() }),
        }
    }

    fn fence<T>(&mut self, by: String) -> Result<T> {
        self.fenced = Some(by);
        self.usable()?;
        Err(Error::Poisoned { cause: "it lost the replica".to_owned() })
    }

    /// Latches the loss of the replica.
    fn noted(&mut self, error: Error) -> Error {
        if let Error::Fenced { by, .. } = &error {
            self.fenced = Some(by.clone());
        }
        error
    }

    /// Replaces the record by a changed one. An earlier request of this owner may be carried out late, and then the
    /// change is made to that record.
    fn update(&mut self, change: impl Fn(&mut Record)) -> Result<()> {
        self.usable()?;
        loop {
            let mut next = Record { nonce: self.access.nonce()?, ..self.record.clone() };
            change(&mut next);
            if let Some(tag) = self.access.replace_record(&next, &self.tag)? {
                (self.record, self.tag) = (next, tag);
                return Ok(());
            }
            self.reread()?;
        }
    }

    /// Reads the record again.
    ///
    /// # Errors
    /// [`Error::Fenced`] if it names another owner.
    fn reread(&mut self) -> Result<()> {
        match self.access.get_if_changed(OWNER, &self.tag)? {
            Read::Unchanged => Ok(()),
            Read::Missing => self.fence("nobody: its record was removed".to_owned()),
            Read::Changed(found) => {
                let record = Record::decode(&found.bytes)?;
                // Only this owner writes records with its token.
                if record.owner.token != self.record.owner.token {
                    return self.fence(record.owner.name);
                }
                (self.record, self.tag) = (record, found.tag);
                Ok(())
            }
        }
    }

    /// Appends an object with the commits `first` to `last`. After an error [`flush`](Self::flush) tries again.
    pub(crate) fn append(&mut self, (first, last): (u64, u64), time: u64, body: &[u8]) -> Result<()> {
        self.put(Kind::Commits, (first, last), time, body)
    }

    fn put(&mut self, kind: Kind, (first, last): (u64, u64), time: u64, body: &[u8]) -> Result<()> {
        self.flush()?;
        let (replica, place, nonce) = (self.record.replica, self.place.next(), self.access.nonce()?);
        let Position { commit: previous, sum: before } = self.position;
        let header = Header { kind, replica, place, previous, first, last, time, before, nonce };
        let (bytes, sum) = object::encode(&header, body);
        self.pending = Some(Pending { bytes, position: Position { commit: last, sum } });
        self.flush()
    }

    /// Creates the object that is not known to be there yet, with the same bytes as before.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.usable()?;
        let Some(pending) = &self.pending else { return Ok(()) };
        match self.access.create(&self.place.next().object(), &pending.bytes)? {
            Created::Ours(_) => {
                (self.place, self.position) = (self.place.next(), pending.position);
                if let Some(Pending { bytes, .. }) = self.pending.take() {
                    let bundle = self.bundler.add(&self.access, self.place, bytes);
                    self.bundles.extend(bundle.filter(|_| self.bundles.len() < BUNDLES));
                }
                Ok(())
            }
            Created::Taken(_) => {
                // A seal, or an object of another writer that has the same epoch in a store without conditions.
                self.reread()?;
                self.fence("another writer, which has ended this epoch".to_owned())
            }
        }
    }

    /// The bundles that the last objects complete. Those of objects that may be deleted would stay for ever.
    pub(crate) fn take_bundles(&mut self) -> Vec<Bundle> {
        let oldest = self.record.oldest().map_or(Place::default(), |entry| entry.place);
        let mut bundles = std::mem::take(&mut self.bundles);
        bundles.retain(|bundle| bundle.end() >= oldest);
        bundles
    }

    /// Reads the record again. Everything that was appended before is in every later restoration then.
    ///
    /// # Errors
    /// [`Error::Fenced`]: nothing was acknowledged.
    pub(crate) fn acknowledge(&mut self) -> Result<u64> {
        self.flush()?;
        if self.access.makes(Check::Reread) {
            self.reread()?;
        }
        Ok(self.position.commit)
    }

    /// Hands the replica over: seals this epoch, and says in the record that another owner may come. Nothing can be
    /// appended any more.
    ///
    /// # Errors
    /// As for [`acknowledge`](Self::acknowledge). Whatever was acknowledged stays so.
    pub(crate) fn release(&mut self) -> Result<u64> {
        let commit = self.acknowledge()?;
        let Position { commit: previous, sum: before } = self.position;
        let (replica, place, nonce) = (self.record.replica, self.place.next(), self.access.nonce()?);
        let header =
            Header { kind: Kind::Seal, replica, place, previous, first: 0, last: previous, time: 0, before, nonce };
        let (bytes, _) = object::encode(&header, &self.record.owner.token);
        match self.access.create(&place.object(), &bytes)? {
            Created::Ours(_) => {}
            Created::Taken(_) => {
                self.reread()?;
                return self.fence("another writer, which has ended this epoch".to_owned());
            }
        }
        self.update(|record| record.owner.is_released = true)?;
        self.fenced = Some("the next owner: it was handed over".to_owned());
        Ok(commit)
    }

    /// Begins a snapshot: the number of the attempt.
    pub(crate) fn begin_snapshot(&mut self) -> u64 {
        self.attempts += 1;
        self.attempts
    }

    /// Writes a part of a snapshot.
    pub(crate) fn put_part(&mut self, attempt: u64, index: u64, piece: &[u8]) -> Result<u64> {
        self.usable()?;
        let name = self.access.part(self.place.epoch, attempt, index);
        let bytes = part::encode(&name, piece, &self.access.nonce()?);
        match self.access.create(&name, &bytes)? {
            Created::Ours(_) => Ok(bytes.len() as u64),
            Created::Taken(_) if !self.access.makes(Check::Names) => Ok(bytes.len() as u64),
            Created::Taken(_) => self.fence("another writer with the same epoch".to_owned()),
        }
    }

    /// Appends the snapshot whose parts were written, and records it. The snapshots that `drops` says are not used any
    /// more from then on.
    pub(crate) fn put_snapshot(
        &mut self,
        snapshot: &Snapshot,
        commit: u64,
        time: u64,
        drops: impl Fn(&SnapshotEntry) -> bool,
    ) -> Result<()> {
        self.put(Kind::Snapshot, (commit, commit), time, &snapshot.encode())?;
        let parts = snapshot.parts.last().map_or(0, |last| last + 1);
        let (place, len, attempt) = (self.place, snapshot.len, snapshot.attempt);
        let entry = SnapshotEntry { place, commit, time, len, attempt, parts, is_dropped: false };
        let swept = self.record.swept;
        let change = |record: &mut Record| {
            // Also those of a record that an earlier request left behind.
            record.swept = record.swept.max(swept);
            record.lineage.retain(|past| past.epoch >= swept.epoch);
            record.snapshots.retain(|entry| !entry.is_dropped || entry.place >= swept);
            record.snapshots.iter_mut().for_each(|entry| entry.is_dropped |= drops(entry));
            record.snapshots.push(entry.clone());
        };
        if self.access.makes(Check::Publish) || self.record.snapshots.is_empty() {
            self.update(change)
        } else {
            change(&mut self.record);
            Ok(())
        }
    }

    /// Deletes what the record says is not needed any more. Returns the number of deletions.
    pub(crate) fn sweep(&mut self) -> Result<u64> {
        self.usable()?;
        let Some(oldest) = self.record.oldest().map(|entry| entry.place) else { return Ok(0) };
        let mut names = Vec::new();
        let ends = self.record.lineage.iter().map(|past| (past.epoch, past.cut));
        for (epoch, cut) in ends.chain([(self.record.epoch, None)]) {
            let from = if epoch == self.record.swept.epoch { self.record.swept.seq.max(1) } else { 1 };
            let to = match cut {
                _ if epoch == oldest.epoch => oldest.seq,
                // The seal goes with the objects before it.
                Some(cut) if epoch < oldest.epoch => cut.seq.saturating_add(2),
                _ => 0,
            };
            names.extend((from..to).map(|seq| Place { epoch, seq }.object()));
            names.extend(names_within(&self.access, epoch, from..to));
        }
        for entry in self.record.snapshots.iter().filter(|entry| entry.is_dropped && entry.place < oldest) {
            names.extend((0..entry.parts).map(|index| self.access.part(entry.place.epoch, entry.attempt, index)));
        }
        for name in &names {
            self.access.delete(name)?;
        }
        self.record.swept = oldest;
        Ok(names.len() as u64)
    }
}

/// A replica that was taken from its owner, who acknowledges nothing any more. All epochs before are sealed. The new
/// owner has still to show that its file has all commits of the chain.
pub(crate) struct Seized {
    owner: Owner,
    /// The epochs before, with their ends.
    cuts: Vec<Past>,
}

impl Seized {
    /// Takes the replica. If `checks_first`, a file that lacks commits is refused before that, and a replica that is
    /// not there is made.
    ///
    /// # Errors
    /// As for [`Owner::acquire`].
    pub(crate) fn take(access: &Access, claim: &Claim, checks_first: bool) -> Result<Self> {
        let writer = Writer { token: claim.token, name: claim.name.clone(), is_released: false };
        loop {
            let Some((record, tag)) = access.record()? else {
                if !checks_first {
                    return Err(Error::NotFound { url: access.url(), what: "there is no replica".to_owned() });
                }
                let record = Record { nonce: access.nonce()?, ..Record::new(claim.replica, writer.clone()) };
                match access.create(OWNER, &record.encode())? {
                    Created::Ours(tag) => {
                        return Seized { owner: Owner::new(access, record, tag), cuts: vec![] }.seal();
                    }
                    Created::Taken(_) => continue,
                }
            };
            if record.owner.token == claim.token {
                // By a request whose answer was lost.
                return Seized { owner: Owner::new(access, record, tag), cuts: vec![] }.seal();
            }
            if checks_first && !claim.known.contains(&record.heir) {
                descends(access, claim, end_of(access, &record)?)?;
            }
            let mut next = Record { nonce: access.nonce()?, owner: writer.clone(), ..record.clone() };
            next.lineage.push(Past { epoch: record.epoch, cut: None });
            next.epoch += 1;
            if let Some(tag) = access.replace_record(&next, &tag)? {
                return Seized { owner: Owner::new(access, next, tag), cuts: vec![] }.seal();
            }
        }
    }

    /// Ends all epochs before.
    fn seal(mut self) -> Result<Self> {
        let owner = &mut self.owner;
        let mut cuts = owner.record.lineage.clone();
        for index in 0..cuts.len() {
            if cuts[index].cut.is_none() {
                let before = index.checked_sub(1).and_then(|index| cuts[index].cut);
                let cut = end(&owner.access, &owner.record, cuts[index].epoch, before, true);
                cuts[index].cut = Some(cut.map_err(|error| owner.noted(error))?);
            }
        }
        if let Some(cut) = cuts.last().and_then(|past| past.cut) {
            owner.position = Position { commit: cut.commit, sum: cut.sum };
        }
        self.cuts = cuts;
        Ok(self)
    }

    /// The end of the chain, which stays.
    pub(crate) fn position(&self) -> Position {
        self.owner.position
    }

    /// Records the ends, and becomes the heir.
    ///
    /// # Errors
    /// As for [`Owner::acquire`].
    pub(crate) fn own(mut self, claim: &Claim) -> Result<Owner> {
        let heir = self.owner.record.heir;
        let known = claim.known.contains(&heir) || heir == claim.token;
        if !known && self.owner.access.makes(Check::Descent) {
            // The owner before may have gone on until its epoch was sealed.
            descends(&self.owner.access, claim, self.owner.position)?;
        }
        let cuts = self.cuts;
        self.owner.update(|record| {
            record.lineage.clone_from(&cuts);
            record.heir = record.owner.token;
        })?;
        Ok(self.owner)
    }
}

fn descends(access: &Access, claim: &Claim, end: Position) -> Result<()> {
    if claim.position == Some(end) {
        return Ok(());
    }
    let commit = end.commit;
    let what = match claim.position {
        Some(own) => format!("the file was restored at commit {}, and the replica is at commit {commit}", own.commit),
        None => format!("the replica is at commit {commit}, and the file was not restored from it"),
    };
    Err(Error::NotDescendant { url: access.url(), what })
}

/// The present end of a chain.
pub(crate) fn end_of(access: &Access, record: &Record) -> Result<Position> {
    let mut cut = None;
    for past in &record.lineage {
        cut = match past.cut {
            None => Some(end(access, record, past.epoch, cut, false)?),
            cut => cut,
        };
    }
    let Cut { commit, sum, .. } = end(access, record, record.epoch, cut, false)?;
    Ok(Position { commit, sum })
}

/// The object at a place; `None` if there is none.
///
/// # Errors
/// [`Error::Corrupt`] also if it is an object of another place or replica.
pub(crate) fn object_at(access: &Access, record: &Record, place: Place) -> Result<Option<Object>> {
    let Some(found) = access.get(&place.object())? else { return Ok(None) };
    object_of(record, place, &found.bytes).map(Some)
}

/// The object at this place, by its bytes.
///
/// # Errors
/// As for [`object_at`].
pub(crate) fn object_of(record: &Record, place: Place, bytes: &[u8]) -> Result<Object> {
    let name = place.object();
    let object = object::decode(&name, bytes)?;
    if object.header.place != place || object.header.replica != record.replica {
        return Err(Error::Corrupt { name, what: "it is the object of another place or replica".to_owned() });
    }
    Ok(object)
}

/// Finds the end of an epoch, and seals it. `before` is the end of the epoch before.
fn end(access: &Access, record: &Record, epoch: u64, before: Option<Cut>, seals: bool) -> Result<Cut> {
    let known = record.snapshots.iter().filter(|entry| entry.place.epoch == epoch).map(|entry| entry.place.seq).max();
    let (mut seq, mut last) = (known.unwrap_or(0), None);
    let at = |seq| object_at(access, record, Place { epoch, seq });
    let is_seal = |object: &Object| object.header.kind == Kind::Seal;
    // The names of an epoch have no gaps above its last snapshot, so steps that double find the end.
    let mut step = 1;
    while step > 0 {
        match at(seq.saturating_add(step))?.filter(|object| !is_seal(object)) {
            Some(object) => (seq, last, step) = (seq.saturating_add(step), Some(object), step.saturating_mul(2)),
            None if step == 1 => step = 0,
            None => step = (step / 4).max(1),
        }
    }
    let gone = || Error::Fenced { url: access.url(), epoch: record.epoch, by: "a later owner".to_owned() };
    if last.is_none() && seq > 0 {
        last = Some(at(seq)?.ok_or_else(gone)?);
    }
    while seals && access.makes(Check::Seal) {
        let position = last.as_ref().map(|object| (object.header.last, object.sum));
        let (previous, before) = position.unwrap_or(before.map_or((0, [0; 16]), |cut| (cut.commit, cut.sum)));
        let place = Place { epoch, seq }.next();
        let (kind, replica, nonce) = (Kind::Seal, record.replica, access.nonce()?);
        let header = Header { kind, replica, place, previous, first: 0, last: previous, time: 0, before, nonce };
        let (bytes, _) = object::encode(&header, &record.owner.token);
        match access.create(&place.object(), &bytes)? {
            Created::Ours(_) => break,
            Created::Taken(None) => return Err(gone()),
            Created::Taken(Some(found)) => {
                let object = object::decode(&place.object(), &found.bytes)?;
                if is_seal(&object) {
                    break;
                }
                // The owner of that epoch was quicker once more.
                (seq, last) = (place.seq, Some(object));
            }
        }
    }
    let (commit, sum) = match (last, before) {
        (Some(object), _) => (object.header.last, object.sum),
        (None, Some(cut)) => (cut.commit, cut.sum),
        (None, None) => (0, [0; 16]),
    };
    Ok(Cut { seq, commit, sum })
}
