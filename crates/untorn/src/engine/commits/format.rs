//! The bytes of a commit log: its control file, its segments and their records. `docs/format.md` gives the reasons.
//!
//! Nothing read here is believed before its checksum and its bounds are checked.

use std::ops::Range;
use std::time::Duration;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::checksum::{is_sealed, seal, xxh3};
use crate::format::sidecar::{MAX_LEN, MAX_NUMBER};
use crate::storage::{Identity, Stamp};

/// Records begin at multiples of this.
pub(super) const LINE: u64 = 64;

/// Bytes of the control file.
pub(super) const CONTROL_LEN: u64 = 4096;

/// Where the two copies of the control are: in different sectors.
pub(super) const CONTROL_AT: [u64; 2] = [0, 1024];

/// Where the two copies of the confirmation are.
pub(super) const CONFIRMED_AT: [u64; 2] = [2048, 3072];

const CONTROL: [u8; 8] = *b"UNTORNCL";
const SEGMENT: [u8; 8] = *b"UNTORNCS";
const RECORD: [u8; 8] = *b"UNTORNCR";
const POSITION: [u8; 8] = *b"UNTORNCP";

/// Bytes of the file of a consumer's position.
pub(super) const POSITION_LEN: u64 = 4096;

/// Where the two copies of the position are: in different sectors.
pub(super) const POSITION_AT: [u64; 2] = [0, 1024];

/// The log as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) seq: u64,
    /// Each log has one of its own, and gets another when it begins anew.
    pub(super) uuid: [u8; 16],
    /// The data file.
    pub(super) identity: Identity,
    /// Bytes that the segments may take.
    pub(super) limit: u64,
    /// How long a commit waits for consumers; `None` if commits are dropped that they have not acknowledged.
    pub(super) block: Option<Duration>,
    /// A commit returns once all consumers have acknowledged it.
    pub(super) awaits: bool,
    /// The last commit before the first record: one may read from there.
    pub(super) base: u64,
    /// A number that tells the state of a [part](super::part) at that commit from others; 0 for a file.
    pub(super) state: u64,
    /// How the data file was closed; `None` while it is open, and after a crash.
    pub(super) closed: Option<Stamp>,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawControl {
    magic: [u8; 8],
    seq: U64,
    uuid: [u8; 16],
    inode: U64,
    generation: U64,
    birth: U64,
    limit: U64,
    base: U64,
    is_closed: U64,
    size: U64,
    modified: U64,
    /// 0: commits do not wait for consumers. Any other number: they wait for one millisecond less than this.
    block: U64,
    state: U64,
    /// 1: a commit returns once all consumers have acknowledged it.
    awaits: U64,
    check: U64,
}

const _: () = assert!(size_of::<RawControl>() == 128);

impl Control {
    pub(super) fn encode(&self) -> RawControl {
        let closed = self.closed.unwrap_or_default();
        let mut raw = RawControl {
            magic: CONTROL,
            seq: self.seq.into(),
            uuid: self.uuid,
            inode: self.identity.inode.into(),
            generation: self.identity.generation.into(),
            birth: self.identity.birth.into(),
            limit: self.limit.into(),
            base: self.base.into(),
            state: self.state.into(),
            is_closed: u64::from(self.closed.is_some()).into(),
            size: closed.size.into(),
            modified: closed.modified.into(),
            block: self.block.map_or(0, milliseconds).into(),
            awaits: u64::from(self.awaits).into(),
            ..RawControl::new_zeroed()
        };
        seal(0, raw.as_mut_bytes());
        raw
    }

    pub(super) fn decode(raw: &RawControl) -> Option<Self> {
        let closed = Stamp { size: raw.size.get(), modified: raw.modified.get() };
        let control = Control {
            seq: raw.seq.get(),
            uuid: raw.uuid,
            identity: Identity {
                device: 0,
                inode: raw.inode.get(),
                generation: raw.generation.get(),
                birth: raw.birth.get(),
            },
            limit: raw.limit.get(),
            block: raw.block.get().checked_sub(1).map(Duration::from_millis),
            awaits: raw.awaits.get() == 1,
            base: raw.base.get(),
            state: raw.state.get(),
            closed: (raw.is_closed.get() == 1).then_some(closed),
        };
        let is_sound = is_sealed(0, raw.as_bytes()) && raw.magic == CONTROL;
        (is_sound && control.base <= MAX_NUMBER && control.seq < u64::MAX).then_some(control)
    }

    /// How long a commit waits for room that consumers need; `None` if it takes the room.
    pub(super) fn holds(&self) -> Option<Duration> {
        self.block.or(self.awaits.then_some(Duration::MAX))
    }

    /// Whether it is the log of this file. A device number may change at a reboot.
    pub(super) fn is_of(&self, identity: Identity) -> bool {
        Identity { device: 0, ..identity } == self.identity
    }
}

/// A time in milliseconds, and one more: 0 stands for none.
fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).saturating_add(1)
}

/// Up to where the engine has committed what is in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Confirmed {
    /// The number of the last record that is committed, or the base.
    pub(super) number: u64,
    /// The segment that the next record goes to, unless it has no room, and where.
    pub(super) segment: u64,
    pub(super) at: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawConfirmed {
    number: U64,
    segment: U64,
    at: U64,
    check: U64,
}

const _: () = assert!(size_of::<RawConfirmed>() == 32);

impl Confirmed {
    pub(super) fn encode(&self, uuid: &[u8; 16]) -> RawConfirmed {
        let Confirmed { number, segment, at } = *self;
        let mut raw = RawConfirmed { number: number.into(), segment: segment.into(), at: at.into(), check: 0.into() };
        seal(xxh3(1, uuid), raw.as_mut_bytes());
        raw
    }

    pub(super) fn decode(raw: &RawConfirmed, uuid: &[u8; 16]) -> Option<Self> {
        let confirmed = Confirmed { number: raw.number.get(), segment: raw.segment.get(), at: raw.at.get() };
        let is_sound = confirmed.number <= MAX_NUMBER && confirmed.at <= MAX_LEN && confirmed.at.is_multiple_of(LINE);
        (is_sound && is_sealed(xxh3(1, uuid), raw.as_bytes())).then_some(confirmed)
    }
}

/// How far a consumer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    pub(super) seq: u64,
    /// The log that it is of.
    pub(super) uuid: [u8; 16],
    /// The last commit that it acknowledged, or the one that it started after.
    pub(super) number: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawPosition {
    magic: [u8; 8],
    seq: U64,
    uuid: [u8; 16],
    number: U64,
    reserved: [u8; 16],
    check: U64,
}

const _: () = assert!(size_of::<RawPosition>() == LINE as usize);

impl Position {
    pub(super) fn encode(&self) -> RawPosition {
        let Position { seq, uuid, number } = *self;
        let (seq, number) = (seq.into(), number.into());
        let mut raw = RawPosition { magic: POSITION, seq, uuid, number, ..RawPosition::new_zeroed() };
        seal(0, raw.as_mut_bytes());
        raw
    }

    pub(super) fn decode(raw: &RawPosition) -> Option<Self> {
        let position = Position { seq: raw.seq.get(), uuid: raw.uuid, number: raw.number.get() };
        let is_sealed = is_sealed(0, raw.as_bytes()) && raw.magic == POSITION;
        (is_sealed && position.number <= MAX_NUMBER && position.seq < u64::MAX).then_some(position)
    }
}

/// The first line of a segment.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSegment {
    magic: [u8; 8],
    uuid: [u8; 16],
    index: U64,
    base: U64,
    reserved: [u8; 16],
    check: U64,
}

const _: () = assert!(size_of::<RawSegment>() == LINE as usize);

impl RawSegment {
    /// That of the segment of this number, whose first record follows the commit `base`.
    pub(super) fn new(uuid: [u8; 16], index: u64, base: u64) -> Self {
        let mut raw = RawSegment { magic: SEGMENT, uuid, index: index.into(), base: base.into(), ..Self::new_zeroed() };
        seal(0, raw.as_mut_bytes());
        raw
    }

    /// The commit that its first record follows, if it is this segment of this log.
    pub(super) fn base(&self, uuid: &[u8; 16], index: u64) -> Option<u64> {
        let is_sound = is_sealed(0, self.as_bytes()) && self.magic == SEGMENT && self.base.get() <= MAX_NUMBER;
        (is_sound && self.uuid == *uuid && self.index.get() == index).then_some(self.base.get())
    }
}

/// What a commit is, without its bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) number: u64,
    /// The number of the record before it, or the base.
    pub(super) previous: u64,
    /// Nanoseconds since 1970.
    pub(super) time: u64,
    /// Length of the file after it.
    pub(super) len: u64,
    /// The shortest that the file was in this commit: bytes from here on that no range has are zeros. Of a
    /// [part](super::part), what tells its state after this commit from another one.
    pub(super) shortest: u64,
    /// How many ranges follow.
    pub(super) ranges: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawHead {
    magic: [u8; 8],
    number: U64,
    previous: U64,
    time: U64,
    len: U64,
    shortest: U64,
    ranges: U32,
    reserved: U32,
    check: U64,
}

const _: () = assert!(size_of::<RawHead>() == LINE as usize);

/// The seed of a record's checksum: it counts in its log, its segment and its place only.
fn place(uuid: &[u8; 16], segment: u64, at: u64) -> u64 {
    xxh3(segment, uuid) ^ xxh3(2, &at.to_le_bytes())
}

impl Head {
    pub(super) fn encode(&self, uuid: &[u8; 16], segment: u64, at: u64) -> RawHead {
        let mut raw = RawHead {
            magic: RECORD,
            number: self.number.into(),
            previous: self.previous.into(),
            time: self.time.into(),
            len: self.len.into(),
            shortest: self.shortest.into(),
            ranges: self.ranges.into(),
            reserved: 0.into(),
            check: 0.into(),
        };
        seal(place(uuid, segment, at), raw.as_mut_bytes());
        raw
    }

    pub(super) fn decode(raw: &RawHead, uuid: &[u8; 16], segment: u64, at: u64) -> Option<Self> {
        let head = Head {
            number: raw.number.get(),
            previous: raw.previous.get(),
            time: raw.time.get(),
            len: raw.len.get(),
            shortest: raw.shortest.get(),
            ranges: raw.ranges.get(),
        };
        let is_sealed = is_sealed(place(uuid, segment, at), raw.as_bytes()) && raw.magic == RECORD;
        let is_sound = head.previous < head.number && head.number <= MAX_NUMBER && head.len <= MAX_LEN;
        (is_sealed && is_sound && head.shortest <= MAX_LEN).then_some(head)
    }
}

impl RawHead {
    /// The seed of the checksum over the body.
    pub(super) fn body_seed(&self) -> u64 {
        self.check.get()
    }
}

/// The change that a commit made to a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RangeKind {
    /// It has these bytes.
    Written = 0,
    /// It became part of what commits, and reads as zeros. No bytes are in the record.
    Allocated = 1,
    /// It is no part any more. No bytes are in the record.
    Freed = 2,
    /// It became part, and has these bytes.
    AllocatedWritten = 3,
}

impl RangeKind {
    pub(super) fn allocates(self) -> bool {
        matches!(self, RangeKind::Allocated | RangeKind::AllocatedWritten)
    }

    pub(super) fn has_bytes(self) -> bool {
        matches!(self, RangeKind::Written | RangeKind::AllocatedWritten)
    }
}

/// A range of a record's table. A file has ranges with bytes only.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawRange {
    offset: U64,
    /// The length, and in the two highest bits the kind.
    len_and_kind: U64,
}

/// Bits of the length of a range.
const LEN_BITS: u32 = 62;

impl RawRange {
    /// A range of no more than [`MAX_LEN`] bytes.
    pub(super) fn new(kind: RangeKind, range: &Range<u64>) -> Self {
        let len = range.end.saturating_sub(range.start) & ((1 << LEN_BITS) - 1);
        RawRange { offset: range.start.into(), len_and_kind: (len | (kind as u64) << LEN_BITS).into() }
    }

    pub(super) fn kind(&self) -> RangeKind {
        match self.len_and_kind.get() >> LEN_BITS {
            0 => RangeKind::Written,
            1 => RangeKind::Allocated,
            2 => RangeKind::Freed,
            _ => RangeKind::AllocatedWritten,
        }
    }

    pub(super) fn offset(&self) -> u64 {
        self.offset.get()
    }

    pub(super) fn len(&self) -> u64 {
        self.len_and_kind.get() & ((1 << LEN_BITS) - 1)
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.offset()..self.offset().saturating_add(self.len())
    }

    /// Bytes that the record has of it.
    pub(super) fn bytes(&self) -> u64 {
        if self.kind().has_bytes() { self.len() } else { 0 }
    }
}

/// Bytes of the body of a record, its checksum included, up to the next line; `None` for more than any log has.
pub(super) fn body_len(ranges: u64, bytes: u64) -> Option<u64> {
    let table = ranges.checked_mul(size_of::<RawRange>() as u64)?;
    let sum = table.checked_add(bytes)?.checked_add(8)?;
    (sum <= MAX_LEN).then(|| sum.next_multiple_of(LINE))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: [u8; 16] = [7; 16];

    #[test]
    fn what_is_encoded_is_decoded_and_no_flipped_bit_passes() {
        let control = Control {
            seq: 4,
            uuid: UUID,
            identity: Identity { device: 0, inode: 5, generation: 6, birth: 7 },
            limit: 1 << 20,
            block: Some(Duration::from_millis(1500)),
            awaits: true,
            base: 9,
            state: 17,
            closed: Some(Stamp { size: 1, modified: 2 }),
        };
        let position = Position { seq: 3, uuid: UUID, number: 9 };
        let confirmed = Confirmed { number: 9, segment: 3, at: 128 };
        let head = Head { number: 10, previous: 9, time: 11, len: 12, shortest: 3, ranges: 2 };
        assert_eq!(Control::decode(&control.encode()), Some(control));
        assert_eq!(Control::decode(&Control { closed: None, ..control }.encode()).unwrap().closed, None);
        assert_eq!(Control::decode(&Control { block: None, ..control }.encode()).unwrap().block, None);
        assert!(!Control::decode(&Control { awaits: false, ..control }.encode()).unwrap().awaits);
        assert_eq!(Position::decode(&position.encode()), Some(position));
        assert_eq!(Confirmed::decode(&confirmed.encode(&UUID), &UUID), Some(confirmed));
        assert_eq!(Head::decode(&head.encode(&UUID, 3, 64), &UUID, 3, 64), Some(head));
        assert_eq!(RawSegment::new(UUID, 3, 8).base(&UUID, 3), Some(8));
        // Nothing counts at another place, in another segment or of another log.
        assert_eq!(Head::decode(&head.encode(&UUID, 3, 64), &UUID, 3, 128), None);
        assert_eq!(Head::decode(&head.encode(&UUID, 3, 64), &UUID, 4, 64), None);
        assert_eq!(Head::decode(&head.encode(&UUID, 3, 64), &[8; 16], 3, 64), None);
        assert_eq!(RawSegment::new(UUID, 3, 8).base(&UUID, 4), None);
        for bit in 0..512 {
            let flip = |bytes: &mut [u8]| bytes[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
            let (mut one, mut two) = (control.encode(), confirmed.encode(&UUID));
            let (mut three, mut four) = (head.encode(&UUID, 3, 64), RawSegment::new(UUID, 3, 8));
            flip(one.as_mut_bytes());
            flip(two.as_mut_bytes());
            flip(three.as_mut_bytes());
            flip(four.as_mut_bytes());
            let mut five = position.encode();
            flip(five.as_mut_bytes());
            assert!(Position::decode(&five).is_none(), "bit {bit}");
            assert!(Control::decode(&one).is_none() && Confirmed::decode(&two, &UUID).is_none(), "bit {bit}");
            assert!(Head::decode(&three, &UUID, 3, 64).is_none() && four.base(&UUID, 3).is_none(), "bit {bit}");
        }
    }

    #[test]
    fn ranges_keep_their_kind() {
        use RangeKind::{Allocated, AllocatedWritten, Freed, Written};
        for kind in [Written, Allocated, Freed, AllocatedWritten] {
            let raw = RawRange::new(kind, &(4096..4096 + MAX_LEN));
            assert_eq!((raw.kind(), raw.range()), (kind, 4096..4096 + MAX_LEN));
            assert_eq!(raw.bytes(), if matches!(kind, Written | AllocatedWritten) { MAX_LEN } else { 0 });
        }
    }

    #[test]
    fn bodies_are_bounded() {
        assert_eq!(body_len(0, 0), Some(64));
        assert_eq!(body_len(2, 24), Some(64));
        assert_eq!(body_len(2, 25), Some(128));
        assert_eq!(body_len(u64::MAX, 1), None);
        assert_eq!(body_len(1, u64::MAX), None);
        assert_eq!(body_len(1, MAX_LEN), None);
    }
}
