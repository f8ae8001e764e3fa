//! How a process appends, and what is left of it if it dies meanwhile.

use crate::entry::{Entry, Geometry, HEADER, Kind, place_seed};
use crate::turn::Locked;

/// Entries that one operation of a process takes at most; more are for the server.
pub const MOST_PARTS: u64 = 64;

/// How far an append is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// What is to be done is noted.
    Intended,
    /// It was given positions.
    Placed,
    /// The data is in the log, without a header.
    Filled,
    /// All of it is in the log.
    Stored,
    /// It is durable.
    Durable,
    /// The kernel has it.
    Delivered,
    /// It may be drained.
    Completed,
}

impl Step {
    /// All of them, in their order.
    pub const ALL: [Step; 7] =
        [Step::Intended, Step::Placed, Step::Filled, Step::Stored, Step::Durable, Step::Delivered, Step::Completed];
}

/// What is to be written.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Where in the file.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
}

/// What an append does its work with: the bytes of the log, those of the program, and the kernel.
pub trait Appender {
    /// Brings `len` bytes of what is to be written, from byte `from` of it on, to byte `at` of the log. False if they are not all to be
    /// had.
    fn fill(&mut self, at: u64, from: usize, len: usize) -> bool;

    /// Looks at bytes of the log.
    fn with<R>(&mut self, at: u64, len: usize, look: impl FnOnce(&[u8]) -> R) -> R;

    /// Puts a header into the log.
    fn store(&mut self, at: u64, header: &[u8; HEADER as usize]);

    /// Begins to make bytes of the log durable.
    fn flush(&mut self, at: u64, len: u64);

    /// Makes durable what was flushed. False if that is not to be had.
    fn fence(&mut self) -> bool;

    /// Hands the entries from position `first` on, of a write, to the kernel; what it says: how many bytes, or minus the errno.
    fn deliver(&mut self, first: u64, write: Write) -> isize;

    /// How far it is; false for one that dies there, in tests.
    #[inline]
    fn reaches(&mut self, _: Step) -> bool {
        true
    }
}

/// What became of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is no room for it now.
    Full,
    /// The program has no such memory, or the log cannot be written to. Nothing was done.
    Nothing,
    /// The kernel has what it says: bytes, or minus the errno. If that is not all, the log has more than it before `end`, and the file is
    /// the server's until it has seen to it that no replay does the rest.
    Written {
        /// What the kernel said.
        said: isize,
        /// The position after the last one.
        end: u64,
    },
    /// It was left where it was.
    Dead,
}

/// Where the bytes of a write are whose entries begin at a position, as offsets into the log and lengths.
pub fn pieces(geometry: Geometry, first: u64, len: usize) -> impl Iterator<Item = (u64, usize)> {
    let entry = geometry.entry as usize;
    (0..geometry.parts(len))
        .map(move |part| (geometry.entry_at(first + part) + HEADER, (len - part as usize * entry).min(entry)))
}

/// Writes to a file whose turn it is, which [processes may](crate::Turn::is_writable): to the log, durably, and then to the kernel.
pub fn append(turn: &Locked<'_>, write: Write, by: &mut impl Appender) -> Outcome {
    let ledger = turn.turn().ledger();
    let terms = *ledger.terms();
    let (geometry, uid) = (terms.geometry, turn.turn().uid());
    let parts = geometry.parts(write.len);
    if parts > MOST_PARTS.min(geometry.most()) {
        return Outcome::Full;
    }
    turn.intend(parts, write.offset, write.len as u64);
    if !by.reaches(Step::Intended) {
        return Outcome::Dead;
    }
    let Some(first) = ledger.place_beside(turn.turn().number(), parts) else { return Outcome::Full };
    let end = first + parts;
    if !by.reaches(Step::Placed) {
        return Outcome::Dead;
    }
    let mut from = 0;
    for (at, len) in pieces(geometry, first, write.len) {
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
    let mut done = 0;
    for (part, (data_at, len)) in pieces(geometry, first, write.len).enumerate() {
        let at = data_at - HEADER;
        let position = first + part as u64;
        let entry = Entry {
            position,
            order: position,
            uid,
            value: write.offset + done as u64,
            len: len as u32,
            kind: Kind::Write,
            part: part as u32,
            parts: parts as u32,
        };
        // Over what is in the log, whatever the program has in its memory by now.
        let header = by.with(data_at, len, |data| entry.encode(place_seed(terms.seal, at), data));
        by.store(at, &header);
        by.flush(at, HEADER + len as u64);
        done += len;
    }
    if !by.reaches(Step::Stored) {
        return Outcome::Dead;
    }
    if !by.fence() {
        // Nothing may ever complete them: only a replay tells what is in them.
        return Outcome::Nothing;
    }
    if !by.reaches(Step::Durable) {
        return Outcome::Dead;
    }
    let said = by.deliver(first, write);
    if !by.reaches(Step::Delivered) {
        return Outcome::Dead;
    }
    turn.count_write(said.max(0) as u64);
    if said != write.len as isize {
        // Not complete, and nobody's turn: whoever wrote next would be told by the kernel of an end of the file, or of bytes, that a
        // replay of all that the log has would not leave.
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

/// What a holder of a turn that died has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing that was not complete, before this position.
    Nothing {
        /// The position after the last one that it had.
        ended: u64,
    },
    /// Positions of which nothing counts: not all is in the log, and the kernel has nothing of it.
    Void {
        /// The first of them.
        first: u64,
        /// How many.
        parts: u64,
    },
    /// All is in the log, and the kernel has less, of which the program may have been told.
    Short {
        /// The first position.
        first: u64,
        /// How many.
        parts: u64,
    },
    /// All is in the log, as durable as the caches are, and the kernel may have it or not.
    Whole {
        /// The first position.
        first: u64,
        /// How many.
        parts: u64,
        /// What is written.
        write: Write,
    },
}

impl PartialEq for Write {
    fn eq(&self, other: &Self) -> bool {
        (self.offset, self.len) == (other.offset, other.len)
    }
}

impl Eq for Write {}

/// What a holder of this turn, of the file with the number `uid`, has left: one that died, or was given less by the kernel than the log has.
/// `entry` reads what is at a position, if it arrived whole.
pub fn left(turn: &Locked<'_>, uid: u64, mut entry: impl FnMut(u64) -> Option<Entry>) -> Left {
    let ledger = turn.turn().ledger();
    let geometry = ledger.terms().geometry;
    let [parts, offset, len] = turn.intended();
    let placed = ledger.placed(turn.turn().number());
    let ended = turn.turn().ended();
    // Words that anybody may have written: numbers that no append leaves say that there is nothing.
    let len = usize::try_from(len).unwrap_or(usize::MAX);
    let sound = (1..=MOST_PARTS.min(geometry.most())).contains(&parts)
        && geometry.parts(len) == parts
        && offset.checked_add(len as u64).is_some();
    let first = placed.checked_sub(parts).filter(|first| sound && placed > ended && *first >= ended);
    let Some(first) = first else { return Left::Nothing { ended: ended.max(placed) } };
    // The tail does not pass what is not complete, so what it has not passed was not used again.
    if ledger.tail() > first || ledger.is_complete(first) {
        return Left::Nothing { ended: placed };
    }
    if turn.is_short() {
        return Left::Short { first, parts };
    }
    let mut done = 0;
    for (part, (_, bytes)) in (0..).zip(pieces(geometry, first, len)) {
        let is_it = |found: &Entry| {
            (found.uid, found.kind, found.value) == (uid, Kind::Write, offset + done)
                && (u64::from(found.part), u64::from(found.parts), found.len as usize) == (part, parts, bytes)
        };
        if entry(first + part).filter(is_it).is_none() {
            return Left::Void { first, parts };
        }
        done += bytes as u64;
    }
    Left::Whole { first, parts, write: Write { offset, len } }
}
