//! Entries of a log: their places and their layout. `docs/format.md` gives the reasons.
//!
//! Every number is little-endian. Any program may have written the file, so each number is checked before use.

use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a page of the log.
pub const PAGE: u64 = 4096;
/// Bytes of an entry's header: a cache line.
pub const HEADER: u64 = 64;
/// The offset of the tail lines.
pub const TAIL_AT: u64 = 2 * PAGE;
/// The offset of the file table.
pub const TABLE_AT: u64 = 3 * PAGE;
/// Counts of entries, sessions and files never reach this number.
pub const MAX_NUMBER: u64 = 1 << 61;

/// The dimensions of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of data in an entry.
    pub entry: u32,
    /// Files that can have entries at the same time.
    pub files: u32,
    /// Entries in the log.
    pub slots: u64,
}

impl Geometry {
    /// The log that fits into `bytes`; `None` for impossible dimensions.
    pub fn of(entry: u32, files: u32, bytes: u64) -> Option<Self> {
        let empty = Geometry { entry, files, slots: 0 };
        let slots = bytes.checked_sub(empty.len()?)? / empty.slot();
        Some(Geometry { slots, ..empty }).filter(|geometry| geometry.is_valid())
    }

    /// Whether a log can have these dimensions.
    pub fn is_valid(self) -> bool {
        let entry = self.entry.is_multiple_of(64) && (64..=1 << 20).contains(&self.entry);
        entry && (1..=1 << 16).contains(&self.files) && (8..=1 << 32).contains(&self.slots) && self.len().is_some()
    }

    fn slot(self) -> u64 {
        HEADER + u64::from(self.entry)
    }

    fn entries_at(self) -> u64 {
        TABLE_AT + 2 * PAGE * u64::from(self.files)
    }

    /// Bytes of the whole log; `None` on overflow.
    #[allow(clippy::len_without_is_empty)] // A log is never empty.
    pub fn len(self) -> Option<u64> {
        self.slots.checked_mul(self.slot())?.checked_add(self.entries_at())
    }

    /// The offset of the entry at this position.
    pub fn entry_at(self, position: u64) -> u64 {
        self.entries_at() + (position % self.slots) * self.slot()
    }

    /// The maximum number of entries of one write; a longer write does not go through the log.
    pub fn most(self) -> u64 {
        self.slots / 4
    }

    /// The number of entries that `len` bytes take.
    pub fn parts(self, len: usize) -> u64 {
        (len as u64).div_ceil(u64::from(self.entry)).max(1)
    }
}

/// XXH3 of these bytes; it distinguishes whole entries from partial ones.
pub fn sum(seed: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(seed, bytes)
}

/// The checksum seed for byte `at` of a log with this seal, so that an entry of another session or place never matches.
#[inline]
pub fn place_seed(checksum_seed: u64, at: u64) -> u64 {
    checksum_seed ^ at.rotate_left(32)
}

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Write the data at `value`.
    Write,
    /// Set the length to `value`.
    SetLen,
    /// The file has the name that its table line has for the number `value`.
    Move,
    /// Write the data at `value`, if the file's open epoch is committed.
    StagedWrite,
    /// Set the length to `value`, if the file's open epoch is committed.
    StagedLen,
    /// The same as a staged write, but the data says where in the spill file the bytes are.
    StagedSpill,
    /// Changes of the file's open epoch, in order, which are together in the spill file: the data says where.
    StagedPack,
    /// The file's open epoch, whose first change has the place `value` in the order, is committed.
    Commit,
}

impl Kind {
    /// The number that stands for it.
    pub fn number(self) -> u16 {
        match self {
            Kind::Write => 1,
            Kind::SetLen => 2,
            Kind::Move => 3,
            Kind::StagedWrite => 4,
            Kind::StagedLen => 5,
            Kind::Commit => 6,
            Kind::StagedSpill => 7,
            Kind::StagedPack => 8,
        }
    }

    /// The meaning of a number.
    pub fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Kind::Write,
            2 => Kind::SetLen,
            3 => Kind::Move,
            4 => Kind::StagedWrite,
            5 => Kind::StagedLen,
            6 => Kind::Commit,
            7 => Kind::StagedSpill,
            8 => Kind::StagedPack,
            _ => return None,
        })
    }

    /// Whether `value` is an offset, to which the bytes of earlier parts are added.
    pub fn is_write(self) -> bool {
        matches!(self, Kind::Write | Kind::StagedWrite | Kind::StagedSpill)
    }

    /// Whether the change counts only with a commit of its epoch.
    pub fn is_staged(self) -> bool {
        matches!(self, Kind::StagedWrite | Kind::StagedSpill | Kind::StagedLen | Kind::StagedPack)
    }

    /// Whether only a log that says that it may have epochs can have the entry.
    pub fn is_of_epochs(self) -> bool {
        self.is_staged() || self == Kind::Commit
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    position: U64,
    order: U64,
    uid: U64,
    value: U64,
    len: U32,
    kind: U16,
    reserved: U16,
    part: U32,
    parts: U32,
    time: U64,
    check: U64,
}

const _: () = {
    assert!(size_of::<RawEntry>() == HEADER as usize);
    assert!(std::mem::offset_of!(RawEntry, check) == 56);
};

/// One entry: a whole operation, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the ring, counted from the session's start.
    pub position: u64,
    /// Its place in the order of operations: that of its first write, and so below all later operations.
    pub order: u64,
    /// The file number, which the file table maps to a file.
    pub uid: u64,
    /// Depends on the kind.
    pub value: u64,
    /// Bytes of data.
    pub len: u32,
    /// The kind of change.
    pub kind: Kind,
    /// The index of this entry within the operation.
    pub part: u32,
    /// Entries of the operation.
    pub parts: u32,
    /// When the change was made: nanoseconds since 1970, by the clock of file times, just before the kernel gets it. 0
    /// if the file gets the change at a later time, which the log does not have.
    pub time: u64,
}

impl Entry {
    /// The header over this data, with the [seed](place_seed) of its place.
    pub fn encode(&self, seed: u64, data: &[u8]) -> [u8; HEADER as usize] {
        let raw = RawEntry {
            position: self.position.into(),
            order: self.order.into(),
            uid: self.uid.into(),
            value: self.value.into(),
            len: self.len.into(),
            kind: self.kind.number().into(),
            reserved: 0.into(),
            part: self.part.into(),
            parts: self.parts.into(),
            time: self.time.into(),
            check: 0.into(),
        };
        let mut bytes: [u8; HEADER as usize] = zerocopy::transmute!(raw);
        let check = sum(sum(seed, &bytes[..56]), data);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes a header at byte `at`, if an entry can have it there. [`is_whole`](Entry::is_whole) tells whether it
    /// arrived whole, with its data.
    pub fn decode(header: &[u8; HEADER as usize], geometry: Geometry, at: u64) -> Option<Self> {
        let raw = RawEntry::read_from_bytes(header).ok()?;
        let (len, part, parts) = (raw.len.get(), raw.part.get(), raw.parts.get());
        let kind = Kind::of(raw.kind.get())?;
        let (position, order) = (raw.position.get(), raw.order.get());
        let sound = len <= geometry.entry && part < parts && u64::from(parts) <= geometry.most();
        if !sound || position >= MAX_NUMBER || order > position || geometry.entry_at(position) != at {
            return None;
        }
        let (uid, value, time) = (raw.uid.get(), raw.value.get(), raw.time.get());
        Some(Entry { position, order, uid, value, len, kind, part, parts, time })
    }

    /// Whether this header and this data arrived whole.
    pub fn is_whole(header: &[u8; HEADER as usize], seed: u64, data: &[u8]) -> bool {
        let mut check = [0; 8];
        check.copy_from_slice(&header[56..]);
        sum(sum(seed, &header[..56]), data) == u64::from_le_bytes(check)
    }
}
