//! The superblock: what the sidecar is, which file it belongs to, and how it was left.
//!
//! There are two copies in the first two pages, written alternately, so one of them is valid after any crash; the valid
//! one with the higher sequence number counts.

use std::path::Path;

use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Geometry, MAX_NUMBER_AT_OPEN, PAGE};
use crate::error::{Error, Result};
use crate::options::{Durability, EngineKind, Layout};
use crate::storage::{Identity, MediumFile, Stamp};

const MAGIC: [u8; 8] = *b"UNTORN\r\n";
/// The format this code writes.
const VERSION: u32 = 1;
/// Features that a reader without knowledge of them may not open the file with at all. None are defined yet.
const KNOWN_INCOMPAT: u64 = 0;
/// Features that a program without knowledge of them may at most read. None are defined yet, and until one is, a file
/// with any of them is refused altogether.
const KNOWN_RO_COMPAT: u64 = 0;

/// How the sidecar was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// Being created: no commit has been made.
    Fresh,
    /// Open, or left by a crash.
    Open,
    /// Closed cleanly.
    Clean,
    /// Everything is in the data file; the sidecar only waits to be removed.
    Settled,
}

/// What the superblock holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) uuid: [u8; 16],
    pub(crate) seq: u64,
    pub(crate) identity: Identity,
    /// The engine whose sidecar it is.
    pub(crate) engine: EngineKind,
    pub(crate) layout: Layout,
    pub(crate) durability: Durability,
    pub(crate) left: Left,
    pub(crate) geometry: Geometry,
    /// Of the data file when it was closed cleanly.
    pub(crate) stamp: Stamp,
    /// Digest of all bitmaps when closed cleanly.
    pub(crate) bitmap_sum: u64,
    /// Digest of all slices valid in the sidecar when closed cleanly.
    pub(crate) slice_sum: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    page_size: U32,
    compat: U64,
    ro_compat: U64,
    incompat: U64,
    uuid: [u8; 16],
    seq: U64,
    device: U64,
    inode: U64,
    generation: U64,
    birth: U64,
    slice_size: U32,
    lanes: U32,
    slots: U32,
    engine: u8,
    layout: u8,
    durability: u8,
    left: u8,
    size: U64,
    modified: U64,
    bitmap_sum: U64,
    slice_sum: U64,
    reserved: [u8; 3944],
    check: U64,
}

const _: () = {
    assert!(size_of::<Raw>() == PAGE as usize);
    assert!(std::mem::offset_of!(Raw, uuid) == 40);
    assert!(std::mem::offset_of!(Raw, seq) == 56);
    assert!(std::mem::offset_of!(Raw, device) == 64);
    assert!(std::mem::offset_of!(Raw, slice_size) == 96);
    assert!(std::mem::offset_of!(Raw, size) == 112);
    assert!(std::mem::offset_of!(Raw, check) == 4088);
};

/// One of two byte values for a two-valued field, or the error that names it.
fn pick<T>(value: u8, table: &[(u8, T)], what: &str) -> std::result::Result<T, String>
where
    T: Copy,
{
    table.iter().find(|(code, _)| *code == value).map(|(_, is)| *is).ok_or_else(|| {
        format!(
            "the superblock names the \
                                                                                            unknown {what} {value}"
        )
    })
}

const LAYOUTS: [(u8, Layout); 2] = [(1, Layout::Dense), (2, Layout::Sparse)];
const DURABILITIES: [(u8, Durability); 2] = [(1, Durability::PerWrite), (2, Durability::PerCommit)];
const LEFTS: [(u8, Left); 4] = [(1, Left::Fresh), (2, Left::Open), (3, Left::Clean), (4, Left::Settled)];
const ENGINES: [(u8, EngineKind); 2] = [(1, EngineKind::Reflection), (2, EngineKind::HybridLog)];

fn code<T: PartialEq>(is: &T, table: &[(u8, T)]) -> u8 {
    table.iter().find(|(_, other)| other == is).map_or(0, |(code, _)| *code)
}

impl Superblock {
    /// The bytes of one copy.
    pub(crate) fn encode(&self) -> [u8; PAGE as usize] {
        let mut raw = Raw::new_zeroed();
        raw.magic = MAGIC;
        raw.version = VERSION.into();
        raw.page_size = (PAGE as u32).into();
        raw.uuid = self.uuid;
        raw.seq = self.seq.into();
        raw.device = self.identity.device.into();
        raw.inode = self.identity.inode.into();
        raw.generation = self.identity.generation.into();
        raw.birth = self.identity.birth.into();
        raw.slice_size = 64.into();
        raw.lanes = self.geometry.lanes.into();
        raw.slots = self.geometry.slots.into();
        raw.engine = code(&self.engine, &ENGINES);
        raw.layout = code(&self.layout, &LAYOUTS);
        raw.durability = code(&self.durability, &DURABILITIES);
        raw.left = code(&self.left, &LEFTS);
        raw.size = self.stamp.size.into();
        raw.modified = self.stamp.modified.into();
        raw.bitmap_sum = self.bitmap_sum.into();
        raw.slice_sum = self.slice_sum.into();
        let mut bytes: [u8; PAGE as usize] = zerocopy::transmute!(raw);
        let check = XxHash3_64::oneshot(&bytes[..4088]);
        bytes[4088..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Decodes one copy. `Ok(None)` if it is no whole superblock.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a whole one of another version or with features this code does not know,
    /// [`Error::Corrupt`] for a whole one that makes no sense.
    fn decode(bytes: &[u8; PAGE as usize], path: &Path) -> Result<Option<Self>> {
        let Ok(raw) = Raw::read_from_bytes(bytes) else { return Ok(None) };
        if raw.magic != MAGIC || XxHash3_64::oneshot(&bytes[..4088]) != raw.check.get() {
            return Ok(None);
        }
        let unsupported = |what: String| Error::Unsupported { path: path.to_owned(), what };
        if raw.version.get() != VERSION {
            return Err(unsupported(format!(
                "the sidecar has format version {}; this untorn knows version {VERSION}",
                raw.version.get()
            )));
        }
        let unknown = raw.incompat.get() & !KNOWN_INCOMPAT | raw.ro_compat.get() & !KNOWN_RO_COMPAT;
        if unknown != 0 {
            return Err(unsupported(format!(
                "the sidecar uses features this untorn does not know (mask {unknown:#x})"
            )));
        }
        let sense = |what: String| Error::Corrupt { path: path.to_owned(), offset: None, what };
        if u64::from(raw.page_size.get()) != PAGE || raw.slice_size.get() != 64 {
            return Err(sense(format!(
                "the superblock names pages of {} and slices of {} bytes; they must be 4096 and 64",
                raw.page_size.get(),
                raw.slice_size.get()
            )));
        }
        let geometry = Geometry { lanes: raw.lanes.get(), slots: raw.slots.get() };
        let sensible = |n: u32, least: u32, most: u32| (least..=most).contains(&n) && n.is_power_of_two();
        if !sensible(geometry.lanes, 1, 64) || !sensible(geometry.slots, 4, 1 << 16) {
            return Err(sense(format!(
                "the superblock has impossible values: {} lanes of {} \
                                      slots",
                geometry.lanes, geometry.slots
            )));
        }
        if raw.seq.get() > MAX_NUMBER_AT_OPEN {
            return Err(sense(format!("the superblock has the impossible sequence number {}", raw.seq.get())));
        }
        let engine = pick(raw.engine, &ENGINES, "engine").map_err(unsupported)?;
        Ok(Some(Superblock {
            uuid: raw.uuid,
            seq: raw.seq.get(),
            identity: Identity {
                device: raw.device.get(),
                inode: raw.inode.get(),
                generation: raw.generation.get(),
                birth: raw.birth.get(),
            },
            engine,
            layout: pick(raw.layout, &LAYOUTS, "layout").map_err(sense)?,
            durability: pick(raw.durability, &DURABILITIES, "durability").map_err(sense)?,
            left: pick(raw.left, &LEFTS, "state").map_err(sense)?,
            geometry,
            stamp: Stamp { size: raw.size.get(), modified: raw.modified.get() },
            bitmap_sum: raw.bitmap_sum.get(),
            slice_sum: raw.slice_sum.get(),
        }))
    }

    /// Reads the copy that counts.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if neither is whole; what [`decode`](Self::decode) says of the newer.
    pub(crate) fn read<F: MediumFile>(file: &F, path: &Path) -> Result<Self> {
        let mut best: Option<Superblock> = None;
        for copy in 0..2 {
            if file.len() < (copy + 1) * PAGE {
                break;
            }
            let mut bytes = [0; PAGE as usize];
            file.read(copy * PAGE, &mut bytes)?;
            if let Some(found) = Self::decode(&bytes, path)?
                && best.as_ref().is_none_or(|best| found.seq > best.seq)
            {
                best = Some(found);
            }
        }
        best.ok_or_else(|| Error::Corrupt {
            path: path.to_owned(),
            offset: Some(0),
            what: "neither superblock is valid".to_owned(),
        })
    }

    /// Writes this as the newer copy, over the older one. Durable at the next fence.
    pub(crate) fn write<F: MediumFile>(&mut self, file: &F) -> Result<()> {
        self.seq += 1;
        file.write(self.seq % 2 * PAGE, &self.encode())
    }
}
