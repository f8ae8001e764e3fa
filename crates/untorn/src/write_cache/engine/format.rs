//! The layout of a log: superblock, tail, file table. Entries, which other processes append too, are in `untorn-ring`.
//! `docs/format.md` gives the reasons.
//!
//! Every number is little-endian. Any program may have written the file, so each number is checked before use.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub(crate) use untorn_ring::{Entry, Geometry, HEADER, Kind, PAGE};
use untorn_ring::{MAX_NUMBER, TABLE_AT, TAIL_AT, sum};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, Result};
use crate::format::checksum::{is_sealed, seal};
use crate::format::dual_copy::{DualCopy, Needs, RawIdentity, Refusal, newest, read_both};
use crate::format::magic::has_superblock;
use crate::format::record::ChecksumSeed;
use crate::storage::{CreateAttrs, Identity, MediumFile};

const SECTOR: u64 = 512;
/// The bit of `incompat` that says that the log may have entries of epochs. A reader without knowledge of them would
/// take them for entries that did not arrive, and drop what was committed.
const EPOCHS: u32 = 1;
/// The bit that says that the log may have packs, for the same reason.
const PACKS: u32 = 2;
/// The bit that says that Commits may be numbered, which have more to say.
const NUMBERED: u32 = 4;
/// Bytes of a line for paths, and for a number behind them.
const PATHS: usize = 3912;
/// The longest path that the file table can hold, in bytes; where a file has two, both together.
pub(super) const MAX_PATH: usize = PATHS - size_of::<u64>();

/// The offsets of a file's two lines in the file table.
fn table_at(slot: u32) -> [u64; 2] {
    [0, 1].map(|copy| TABLE_AT + (2 * u64::from(slot) + copy) * PAGE)
}

/// The superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) uuid: [u8; 16],
    pub(super) seq: u64,
    /// Entries, tails and the file table count only with this number.
    pub(super) session: u64,
    /// Whether a write is durable before it returns, in this session.
    pub(super) per_write: bool,
    /// Whether the log may have entries of epochs, in this session.
    pub(super) epochs: bool,
    /// Whether it may have packs, in this session.
    pub(super) packs: bool,
    /// Whether its Commits may be numbered, in this session.
    pub(super) numbered: bool,
    pub(super) geometry: Geometry,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    magic: [u8; 8],
    version: U32,
    incompat: U32,
    uuid: [u8; 16],
    seq: U64,
    session: U64,
    slots: U64,
    entry: U32,
    files: U32,
    per_write: U32,
    reserved: [u8; 436],
    check: U64,
}

/// Where the log of a session begins to be of use: no entry before it.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawTail {
    tail: U64,
    reserved: [u8; 48],
    check: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFile {
    uid: U64,
    seq: U64,
    identity: RawIdentity,
    state: U32,
    path_len: U32,
    parents: [U64; PARENTS],
    check: U64,
    /// The name before the last rename, if there is one, follows the path. [`TableLine::late`] stands at the end,
    /// unless an earlier version of this code has filled its place with a path.
    path: [u8; PATHS],
    named: U64,
    named_before: U64,
    over_inode: U64,
    over_generation: U64,
    over_birth: U64,
    parents_before: [U64; PARENTS],
    mode: U32,
    uid_of: U32,
    gid_of: U32,
    before_len: U32,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == SECTOR as usize);
    assert!(std::mem::offset_of!(RawSuperblock, check) == 504);
    assert!(size_of::<RawTail>() == 64);
    assert!(size_of::<RawFile>() == PAGE as usize);
    assert!(std::mem::offset_of!(RawFile, check) == 88);
    assert!(std::mem::offset_of!(RawFile, path) == 96);
    assert!(std::mem::offset_of!(RawFile, named) == 4008);
    assert!(std::mem::offset_of!(RawFile, over_inode) == 4024);
    assert!(std::mem::offset_of!(RawFile, parents_before) == 4048);
    assert!(std::mem::offset_of!(RawFile, mode) == 4080);
    assert!(std::mem::offset_of!(RawFile, before_len) == 4092);
};

impl Superblock {
    pub(super) fn checksum_seed(&self) -> ChecksumSeed {
        ChecksumSeed::new(&self.uuid, self.session)
    }

    /// Reads the copy that counts of a log that is as long as it says.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for what is no log, [`Error::Unsupported`] for one of a later version.
    pub(super) fn read_whole<F: MediumFile>(file: &F, path: &Path) -> Result<Self> {
        let superblock = Self::read(file, path)?;
        let (has, should) = (file.len(), superblock.geometry.len().unwrap_or(u64::MAX));
        if has < should {
            let what = format!("the log was truncated: it has {has} bytes and should have {should}");
            return Err(Error::Corrupt { path: path.to_owned(), offset: Some(has), what });
        }
        Ok(superblock)
    }
}

impl DualCopy for Superblock {
    type Raw = RawSuperblock;
    const MAGIC: [u8; 8] = *b"WRCACHE\n";
    const FILE: &'static str = "write-cache log";
    const NEITHER: &'static str = "neither superblock is valid, or this is not a write-cache log";
    const EITHER_REFUSES: bool = false;
    const KNOWN_INCOMPAT: u64 = (EPOCHS | PACKS | NUMBERED) as u64;

    fn seq(&mut self) -> &mut u64 {
        &mut self.seq
    }

    fn needs(raw: &RawSuperblock) -> Needs {
        Needs { version: raw.version.get(), ro_compat: 0, incompat: raw.incompat.get().into() }
    }

    fn encode(&self) -> RawSuperblock {
        RawSuperblock {
            magic: Self::MAGIC,
            version: Self::VERSION.into(),
            incompat: ((u32::from(self.epochs) * EPOCHS)
                | (u32::from(self.packs) * PACKS)
                | (u32::from(self.numbered) * NUMBERED))
                .into(),
            uuid: self.uuid,
            seq: self.seq.into(),
            session: self.session.into(),
            slots: self.geometry.slots.into(),
            entry: self.geometry.entry.into(),
            files: self.geometry.files.into(),
            per_write: u32::from(self.per_write).into(),
            ..RawSuperblock::new_zeroed()
        }
    }

    fn decode(raw: &RawSuperblock) -> std::result::Result<Self, Refusal> {
        let geometry = Geometry { entry: raw.entry.get(), files: raw.files.get(), slots: raw.slots.get() };
        let (seq, session) = (raw.seq.get(), raw.session.get());
        if !geometry.is_valid() || seq >= MAX_NUMBER || session >= MAX_NUMBER {
            let what = format!("the superblock has impossible values: number {seq}, session {session}, {geometry:?}");
            return Err(Refusal::Corrupt(what));
        }
        let (per_write, has) = (raw.per_write.get() != 0, |bit| raw.incompat.get() & bit != 0);
        let (uuid, epochs, packs, numbered) = (raw.uuid, has(EPOCHS), has(PACKS), has(NUMBERED));
        Ok(Superblock { uuid, seq, session, per_write, epochs, packs, numbered, geometry })
    }
}

/// Whether bytes from the start of a file are those of a log's first superblock, or of its second.
pub(super) fn is_log(start: &[u8]) -> bool {
    has_superblock(start, &Superblock::MAGIC)
}

/// The offsets of the two lines of the tail.
const TAILS_AT: [u64; 2] = [TAIL_AT, TAIL_AT + SECTOR];

/// Stores one of the two lines of the tail.
pub(super) fn write_tail<F: MediumFile>(file: &F, checksum_seed: ChecksumSeed, copy: usize, tail: u64) -> Result<()> {
    let at = TAILS_AT[copy];
    let mut raw = RawTail { tail: tail.into(), ..RawTail::new_zeroed() };
    seal(checksum_seed.at(at), raw.as_mut_bytes());
    file.write(at, raw.as_bytes())
}

/// The tail: of two lines the valid one that says more; 0 in a session without any.
pub(super) fn read_tail<F: MediumFile>(file: &F, checksum_seed: ChecksumSeed) -> Result<u64> {
    let tails = read_both(file, TAILS_AT, |at, raw: &RawTail| {
        let tail = raw.tail.get();
        (is_sealed(checksum_seed.at(at), raw.as_bytes()) && tail < MAX_NUMBER).then_some(tail)
    })?;
    Ok(newest(tails, |tail| *tail).unwrap_or(0))
}

/// A line of the file table: which file a number in an entry means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TableLine {
    /// The number, given once in a session.
    pub(super) uid: u64,
    pub(super) seq: u64,
    pub(super) identity: Identity,
    /// All its entries were replayed, though not those of other files.
    pub(super) replayed: bool,
    /// Its last name was about to be removed: if a replay does not find it, that is what became of it.
    pub(super) leaving: bool,
    /// The log has all that it was ever written, and its name need not be durable: a replay that does not find it
    /// makes one like this, and one that does begins with nothing in it.
    pub(super) new: Option<CreateAttrs>,
    /// The inode numbers of its directory, of the one with that, and so on, as far as there is room and the file
    /// system goes; 0 where there is none. If the file is not found, they say whether that is because its file system
    /// is not there.
    pub(super) parents: [u64; PARENTS],
    /// Where it is. A hint, never taken for it without a look at the identity.
    pub(super) path: PathBuf,
    /// When it got this name, counted as numbers are given; 0: with its number.
    pub(super) named: u64,
    /// A rename that may not be durable: where it was before.
    pub(super) before: Option<Before>,
    /// What this code did to the file at times that no entry has: see [`OwnStores`].
    pub(super) late: u64,
}

/// What this code did to a file at times that no entry has: it replayed the log, completed the change of a process that
/// died, or drained entries to the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OwnStores {
    /// Nothing.
    None,
    /// It may be storing, or may have been when it was killed.
    UnderWay,
    /// It stored, and this modification time is the one that the file had after it.
    Left(u64),
}

impl OwnStores {
    /// Set in the number that tells a modification time. Times of the next centuries do without it.
    const LEFT: u64 = 1 << 63;

    pub(super) fn encode(self) -> u64 {
        match self {
            OwnStores::None => 0,
            OwnStores::UnderWay => 1,
            OwnStores::Left(time) => time | Self::LEFT,
        }
    }

    pub(super) fn decode(number: u64) -> Self {
        match number {
            0 => OwnStores::None,
            left if left & Self::LEFT != 0 => OwnStores::Left(left & !Self::LEFT),
            // Also the time at which an earlier version of this code began.
            _ => OwnStores::UnderWay,
        }
    }
}

/// The name that a file had before a rename, and what the rename put it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Before {
    pub(super) path: PathBuf,
    /// As of the line.
    pub(super) parents: [u64; PARENTS],
    pub(super) named: u64,
    /// The file that had the new name until then. Of which no generation is known, that is 0.
    pub(super) over: Option<Identity>,
}

/// Directories above a file that its line has.
pub(super) const PARENTS: usize = 4;

const LIVE: u32 = 1;
const REPLAYED: u32 = 2;
const LEAVING: u32 = 3;
const NEW: u32 = 4;
const NEW_LEAVING: u32 = 5;
/// Added to each of them where the line has two names.
const TWO_NAMES: u32 = 5;

impl TableLine {
    /// When it got its name. Of two files that had one, the one with the higher has it.
    pub(super) fn rank(&self) -> u64 {
        if self.named == 0 { self.uid } else { self.named }
    }

    pub(super) fn own_stores(&self) -> OwnStores {
        OwnStores::decode(self.late)
    }

    /// The directories that have, or may have, a name of it.
    pub(super) fn dirs(&self) -> impl Iterator<Item = &Path> {
        let names = std::iter::once(&self.path).chain(self.before.as_ref().map(|before| &before.path));
        names.map(|path| path.parent().unwrap_or(Path::new("/")))
    }

    /// Stores one of the two copies of a slot's line.
    pub(super) fn write<F: MediumFile>(
        &self,
        file: &F,
        checksum_seed: ChecksumSeed,
        slot: u32,
        copy: usize,
    ) -> Result<()> {
        let at = table_at(slot)[copy];
        file.write(at, &self.encode(checksum_seed, at))
    }

    /// The same after a flush of the log failed: it promises nothing.
    pub(super) fn write_unpromised<F: MediumFile>(
        &self,
        file: &F,
        checksum_seed: ChecksumSeed,
        slot: u32,
        copy: usize,
    ) -> Result<()> {
        let at = table_at(slot)[copy];
        file.write_unpromised(at, &self.encode(checksum_seed, at))
    }

    /// Its bytes for this place. The names fit, which is seen to when a file is attached or gets another.
    fn encode(&self, checksum_seed: ChecksumSeed, at: u64) -> [u8; PAGE as usize] {
        let path = self.path.as_os_str().as_bytes();
        let path = &path[..path.len().min(MAX_PATH)];
        let before = self.before.as_ref().map_or(&[][..], |before| before.path.as_os_str().as_bytes());
        let before = &before[..before.len().min(MAX_PATH - path.len())];
        let over = self.before.as_ref().and_then(|before| before.over);
        let state = match (self.replayed, self.leaving, self.new) {
            (true, ..) => REPLAYED,
            (false, true, None) => LEAVING,
            (false, false, None) => LIVE,
            (false, true, Some(_)) => NEW_LEAVING,
            (false, false, Some(_)) => NEW,
        };
        let mut raw = RawFile {
            uid: self.uid.into(),
            seq: self.seq.into(),
            identity: self.identity.into(),
            state: (state + if self.before.is_some() { TWO_NAMES } else { 0 }).into(),
            path_len: (path.len() as u32).into(),
            parents: self.parents.map(U64::new),
            check: 0.into(),
            path: [0; PATHS],
            named: self.named.into(),
            named_before: self.before.as_ref().map_or(0, |before| before.named).into(),
            over_inode: over.map_or(0, |over| over.inode).into(),
            over_generation: over.map_or(0, |over| over.generation).into(),
            over_birth: over.map_or(0, |over| over.birth).into(),
            parents_before: self.before.as_ref().map_or([0; PARENTS], |before| before.parents).map(U64::new),
            mode: self.new.map_or(0, |like| like.mode).into(),
            uid_of: self.new.map_or(0, |like| like.uid).into(),
            gid_of: self.new.map_or(0, |like| like.gid).into(),
            before_len: (before.len() as u32).into(),
        };
        raw.path[..path.len()].copy_from_slice(path);
        raw.path[path.len()..path.len() + before.len()].copy_from_slice(before);
        raw.path[MAX_PATH..].copy_from_slice(&self.late.to_le_bytes());
        let mut bytes: [u8; PAGE as usize] = zerocopy::transmute!(raw);
        let check = sum(checksum_seed.at(at), &bytes);
        bytes[88..96].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    fn decode(checksum_seed: ChecksumSeed, at: u64, bytes: &[u8; PAGE as usize]) -> Option<Self> {
        let raw = RawFile::read_from_bytes(bytes).ok()?;
        let mut blank = *bytes;
        blank[88..96].fill(0);
        let (path, rest) = raw.path.split_at_checked(raw.path_len.get() as usize)?;
        let before = rest.get(..raw.before_len.get() as usize)?;
        let late = match raw.path.last_chunk() {
            Some(late) if path.len() + before.len() <= MAX_PATH => u64::from_le_bytes(*late),
            _ => 0,
        };
        let known = (LIVE..=NEW_LEAVING + TWO_NAMES).contains(&raw.state.get());
        if raw.uid.get() == 0
            || !known
            || raw.seq.get() >= MAX_NUMBER
            || sum(checksum_seed.at(at), &blank) != raw.check.get()
        {
            return None;
        }
        let identity = Identity::from(raw.identity);
        let to_path = |bytes| PathBuf::from(OsStr::from_bytes(bytes));
        let (uid, seq, state) = (raw.uid.get(), raw.seq.get(), raw.state.get());
        let (state, has_two) = if state > TWO_NAMES { (state - TWO_NAMES, true) } else { (state, false) };
        let over = Identity {
            device: identity.device,
            inode: raw.over_inode.get(),
            generation: raw.over_generation.get(),
            birth: raw.over_birth.get(),
        };
        let before = has_two.then(|| Before {
            path: to_path(before),
            parents: raw.parents_before.map(U64::get),
            named: raw.named_before.get(),
            over: Some(over).filter(|over| over.inode != 0),
        });
        let (replayed, leaving) = (state == REPLAYED, matches!(state, LEAVING | NEW_LEAVING));
        let like = || CreateAttrs { mode: raw.mode.get(), uid: raw.uid_of.get(), gid: raw.gid_of.get() };
        let new = matches!(state, NEW | NEW_LEAVING).then(like);
        let (parents, path, named) = (raw.parents.map(U64::get), to_path(path), raw.named.get());
        Some(TableLine { uid, seq, identity, replayed, leaving, new, parents, path, named, before, late })
    }

    /// The line of a slot, and which copy it is: of two the valid one with the higher sequence number.
    pub(super) fn read<F: MediumFile>(
        file: &F,
        checksum_seed: ChecksumSeed,
        slot: u32,
    ) -> Result<Option<(usize, Self)>> {
        let [first, second] = read_both(file, table_at(slot), |at, bytes| TableLine::decode(checksum_seed, at, bytes))?;
        Ok(newest([first.map(|line| (0, line)), second.map(|line| (1, line))], |(_, line)| line.seq))
    }
}

/// The entry at a place with the bytes of its data, if both arrived whole. `data` has room for an entry's data.
pub(super) fn read_entry<F: MediumFile>(
    file: &F,
    checksum_seed: ChecksumSeed,
    geometry: Geometry,
    at: u64,
    data: &mut Vec<u8>,
) -> Result<Option<Entry>> {
    let mut header = [0; HEADER as usize];
    file.read(at, &mut header)?;
    let Some(entry) = Entry::decode(&header, geometry, at) else { return Ok(None) };
    data.resize(entry.len as usize, 0);
    file.read(at + HEADER, data)?;
    Ok(Some(entry).filter(|_| Entry::is_whole(&header, checksum_seed.at(at), data)))
}
