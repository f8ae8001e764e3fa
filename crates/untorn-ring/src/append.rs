//! Appends by a process, and what it leaves behind if it dies meanwhile.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::entry::{Entry, Geometry, HEADER, Kind, place_seed};
use crate::turn::Locked;

/// The maximum number of entries that one operation of a process takes; the server does larger ones.
pub const MOST_PARTS: u64 = 256;

/// The steps of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The turn has a note of the operation.
    Intended,
    /// The operation has positions.
    Placed,
    /// The data is in the log, without a header.
    Filled,
    /// The log has the whole entry.
    Stored,
    /// The entry is as durable as it must be before the kernel has the bytes.
    Durable,
    /// The kernel has the change.
    Delivered,
    /// The entry may be drained.
    Completed,
}

impl Step {
    /// All steps in order.
    pub const ALL: [Step; 7] =
        [Step::Intended, Step::Placed, Step::Filled, Step::Stored, Step::Durable, Step::Delivered, Step::Completed];
}

/// A write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// The offset in the file.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Whether `offset` is the file's end and the kernel writes there whatever the offset (`O_APPEND`). A repeat may
    /// then only do what the kernel has not done yet.
    pub at_end: bool,
}

/// A change of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Bytes are written.
    Write(Write),
    /// The new length.
    Length(u64),
}

impl From<Write> for Change {
    fn from(write: Write) -> Self {
        Change::Write(write)
    }
}

/// A flag of a noted change, beside its number of entries: the change sets the length.
const LENGTH: u64 = 1 << 32;
/// Another flag: the bytes go to the end.
const AT_END: u64 = 1 << 33;

impl Change {
    /// Bytes of the change that go to the log.
    pub fn len(&self) -> usize {
        match self {
            Change::Write(write) => write.len,
            Change::Length(_) => 0,
        }
    }

    /// Whether no bytes of the change go to the log.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn kind(&self) -> Kind {
        match self {
            Change::Write(_) => Kind::Write,
            Change::Length(_) => Kind::SetLen,
        }
    }

    /// The offset of the write, or the new length of the file.
    fn value(&self) -> u64 {
        match *self {
            Change::Write(write) => write.offset,
            Change::Length(len) => len,
        }
    }

    /// The words in which it is noted, with its number of entries.
    fn noted(&self, parts: u64) -> [u64; 3] {
        let flags = match self {
            Change::Write(Write { at_end: true, .. }) => AT_END,
            Change::Write(_) => 0,
            Change::Length(_) => LENGTH,
        };
        [parts | flags, self.value(), self.len() as u64]
    }

    /// The change that was noted, and its number of entries. Any process may have written these words: the result is
    /// `None` for words that no change leaves.
    fn of([parts, value, len]: [u64; 3], geometry: Geometry) -> Option<(Self, u64)> {
        let len = usize::try_from(len).ok()?;
        let (flags, parts) = (parts & (LENGTH | AT_END), parts & !(LENGTH | AT_END));
        let change = match flags {
            LENGTH if len == 0 => Change::Length(value),
            0 | AT_END => Change::Write(Write { offset: value, len, at_end: flags == AT_END }),
            _ => return None,
        };
        let sound = (1..=MOST_PARTS.min(geometry.most())).contains(&parts)
            && geometry.parts(len) == parts
            && value.checked_add(len as u64).is_some();
        sound.then_some((change, parts))
    }
}

/// The parts that an append works with: the bytes of the log, those of the program, and the kernel.
pub trait Appender {
    /// Copies `len` bytes of the write, from its byte `from` on, to byte `at` of the log. False if some of them cannot
    /// be read.
    fn fill(&mut self, at: u64, from: usize, len: usize) -> bool;

    /// Reads bytes of the log.
    fn with<R>(&mut self, at: u64, len: usize, look: impl FnOnce(&[u8]) -> R) -> R;

    /// The time, in nanoseconds since 1970, by the clock that the kernel takes file times from, or a finer one.
    fn now(&self) -> u64 {
        now()
    }

    /// Stores a header in the log.
    fn store(&mut self, at: u64, header: &[u8; HEADER as usize]);

    /// Starts making bytes of the log durable.
    fn flush(&mut self, at: u64, len: u64);

    /// Makes the flushed bytes durable, or, with durability per sync, brings them to the log. False if that fails.
    fn fence(&mut self) -> bool;

    /// Lets the kernel make the change; the bytes of a write are in the entries from position `first` on. Returns the
    /// kernel's result: a number of bytes, or minus the errno.
    fn deliver(&mut self, first: u64, change: Change) -> isize;

    /// Called at each step; in tests it returns false to die there.
    #[inline]
    fn reaches(&mut self, _: Step) -> bool {
        true
    }
}

/// The time, in nanoseconds since 1970; 0 if the clock is before that.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

/// The result of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The log has no room now.
    Full,
    /// The program's memory cannot be read, or the log cannot be written to. The call had no effect.
    Nothing,
    /// The kernel made the change and returned `said`: bytes, 0 for a length, or minus the errno. If the kernel took
    /// less than the log has before `end`, the file belongs to the server until no replay can write the rest.
    Written {
        /// The kernel's result.
        said: isize,
        /// The position after the last one.
        end: u64,
    },
    /// The process died at a step, in tests.
    Dead,
}

/// The places of a write's bytes in the log, as offsets and lengths; its entries begin at position `first`.
pub fn pieces(geometry: Geometry, first: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let entry = geometry.entry as usize;
    (0..geometry.parts(len))
        .map(move |part| (geometry.entry_at(first + part) + HEADER, (len - part as usize * entry).min(entry)))
}

/// Changes a file whose turn is held, if [processes may](crate::FileLock::is_writable): first in the log, durably
/// unless durability is per sync, and then by the kernel.
pub fn append(turn: &Locked<'_>, change: impl Into<Change>, by: &mut impl Appender) -> Outcome {
    let change = change.into();
    let len = change.len();
    let ledger = turn.turn().ledger();
    let terms = *ledger.terms();
    let (geometry, uid) = (terms.geometry, turn.turn().uid());
    let parts = geometry.parts(len);
    if parts > MOST_PARTS.min(geometry.most()) {
        return Outcome::Full;
    }
    turn.intend(change.noted(parts));
    if !by.reaches(Step::Intended) {
        return Outcome::Dead;
    }
    let Some(first) = ledger.place_beside(turn.turn().number(), parts) else { return Outcome::Full };
    let end = first + parts;
    if !by.reaches(Step::Placed) {
        return Outcome::Dead;
    }
    let mut from = 0;
    for (at, len) in pieces(geometry, first, len) {
        if !by.fill(at, from, len) {
            // No position has a header, so no replay finds anything in them.
            ledger.leave_void(first, parts);
            turn.set_ended(end);
            return Outcome::Nothing;
        }
        from += len;
    }
    if !by.reaches(Step::Filled) {
        return Outcome::Dead;
    }
    let (mut done, time) = (0, by.now());
    for (part, (data_at, len)) in pieces(geometry, first, len).enumerate() {
        let at = data_at - HEADER;
        let position = first + part as u64;
        let entry = Entry {
            position,
            order: position,
            uid,
            value: change.value() + done as u64,
            len: len as u32,
            kind: change.kind(),
            part: part as u32,
            parts: parts as u32,
            time,
        };
        // The seal covers the bytes in the log, whatever the program has in its memory by now.
        let header = by.with(data_at, len, |data| entry.encode(place_seed(terms.checksum_seed, at), data));
        by.store(at, &header);
        by.flush(at, HEADER + len as u64);
        done += len;
    }
    if !by.reaches(Step::Stored) {
        return Outcome::Dead;
    }
    if !by.fence() {
        // The log may have all, a part or nothing of the entries' content, as with a holder that died.
        turn.break_it();
        return Outcome::Nothing;
    }
    // This comes before the kernel shows the write to any process, so that the next sync flushes it.
    turn.turn().change();
    if !by.reaches(Step::Durable) {
        return Outcome::Dead;
    }
    let said = by.deliver(first, change);
    if !by.reaches(Step::Delivered) {
        return Outcome::Dead;
    }
    if matches!(change, Change::Write(_)) {
        turn.count_write(said.max(0) as u64);
    }
    if said != len as isize {
        // The entries stay incomplete, and no process gets the turn. The kernel would show the next writer a file
        // length or bytes that differ from what a replay of the whole log leaves.
        turn.fall_short();
        return if by.reaches(Step::Completed) { Outcome::Written { said, end } } else { Outcome::Dead };
    }
    ledger.complete_beside(first, parts);
    if !by.reaches(Step::Completed) {
        return Outcome::Dead;
    }
    turn.set_ended(end);
    Outcome::Written { said, end }
}

/// The state that a dead holder of a turn left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Everything before this position is complete.
    Nothing {
        /// The position after its last one.
        ended: u64,
    },
    /// Positions that do not count: the log does not have all of the operation, and the kernel has nothing of it.
    Void {
        /// The first of them.
        first: u64,
        /// The number of positions.
        parts: u64,
    },
    /// The log has all of it, and the kernel less; the program may have been told so.
    Short {
        /// The first position.
        first: u64,
        /// The number of positions.
        parts: u64,
    },
    /// The log has all of it, as durable as the caches are, and the kernel may have it or not.
    Whole {
        /// The first position.
        first: u64,
        /// The number of positions.
        parts: u64,
        /// The change.
        change: Change,
    },
}

/// Finds what the last holder of this turn left for the file number `uid`. That holder died, or the kernel took less
/// from it than the log has. `entry` reads the entry at a position, if it is whole.
pub fn left(turn: &Locked<'_>, uid: u64, mut entry: impl FnMut(u64) -> Option<Entry>) -> Left {
    let ledger = turn.turn().ledger();
    let geometry = ledger.terms().geometry;
    let noted = Change::of(turn.intended(), geometry);
    let placed = ledger.placed(turn.turn().number());
    let ended = turn.turn().ended();
    let under_way = noted.and_then(|(change, parts)| {
        let first = placed.checked_sub(parts)?;
        (placed > ended && first >= ended).then_some((change, parts, first))
    });
    let Some((change, parts, first)) = under_way else { return Left::Nothing { ended: ended.max(placed) } };
    // The tail does not pass incomplete entries, so positions that it has not passed were not used again.
    if ledger.tail() > first || ledger.is_complete(first) {
        return Left::Nothing { ended: placed };
    }
    if turn.is_short() {
        return Left::Short { first, parts };
    }
    let mut done = 0;
    for (part, (_, bytes)) in (0..).zip(pieces(geometry, first, change.len())) {
        let is_it = |found: &Entry| {
            (found.uid, found.kind, found.value) == (uid, change.kind(), change.value() + done)
                && (u64::from(found.part), u64::from(found.parts), found.len as usize) == (part, parts, bytes)
        };
        if entry(first + part).filter(is_it).is_none() {
            return Left::Void { first, parts };
        }
        done += bytes as u64;
    }
    Left::Whole { first, parts, change }
}
