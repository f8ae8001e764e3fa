//! The superblock: what the sidecar is, which file it belongs to, and how it was left.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Geometry, MAX_NUMBER_AT_OPEN, PAGE, parent};
use crate::format::dual_copy::{Codes, DualCopy, Head, RawIdentity, Refusal};
use crate::format::record::DataSum;
use crate::options::{Durability, EngineKind, Layout};
use crate::storage::{Identity, Stamp};

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
    /// Another program changed the data file while it was open: as [`Open`](Left::Open), but the user has to choose.
    Disputed,
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
    /// The hybrid log may have inline entries, and records among its headers.
    pub(crate) inline: bool,
    /// Of the data file when it was closed cleanly.
    pub(crate) stamp: Stamp,
    /// Digest of all bitmaps when closed cleanly.
    pub(crate) bitmap_sum: u64,
    /// Digest of all slices valid in the sidecar when closed cleanly.
    pub(crate) slice_sum: u64,
    /// The name of the data file, for people: nothing is decided by it.
    pub(crate) name: Name,
}

impl Superblock {
    /// Whether the sidecar holds no byte of the file that was closed with it. It cannot be stale then, whoever has
    /// changed the file since. Opening checks the bitmaps against the same digest.
    pub(crate) fn holds_nothing(&self) -> bool {
        self.engine == EngineKind::Reflection && self.left == Left::Clean && self.bitmap_sum == DataSum::default().get()
    }
}

/// The name of a data file in its directory, as bytes; empty if it is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    /// The most bytes of a name, as everywhere on Linux.
    const MAX: usize = 255;

    /// That of the file at a path.
    pub(crate) fn of(path: &Path) -> Self {
        let name = path.file_name().map(OsStrExt::as_bytes).unwrap_or_default();
        Self::checked(name)
    }

    /// One that can be a file's: what a damaged or forged superblock says otherwise counts as no name.
    fn checked(name: &[u8]) -> Self {
        let sound = name.len() <= Self::MAX && !name.iter().any(|byte| matches!(byte, 0 | b'/'));
        Name(if sound { name.to_vec() } else { Vec::new() })
    }

    /// The path of the file of this name beside the one at `path`.
    pub(crate) fn beside(&self, path: &Path) -> Option<PathBuf> {
        (!self.0.is_empty()).then(|| parent(path).join(OsStr::from_bytes(&self.0)))
    }
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Raw {
    head: Head,
    identity: RawIdentity,
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
    name_len: U16,
    name: [u8; Name::MAX],
    reserved: [u8; 3687],
    check: U64,
}

const _: () = {
    assert!(size_of::<Raw>() == PAGE as usize);
    assert!(std::mem::offset_of!(Raw, identity) == 64);
    assert!(std::mem::offset_of!(Raw, slice_size) == 96);
    assert!(std::mem::offset_of!(Raw, size) == 112);
    assert!(std::mem::offset_of!(Raw, name_len) == 144);
    assert!(std::mem::offset_of!(Raw, name) == 146);
    assert!(std::mem::offset_of!(Raw, check) == 4088);
};

const LAYOUTS: Codes<Layout> = Codes("layout", &[(1, Layout::Dense), (2, Layout::Sparse)]);
const DURABILITIES: Codes<Durability> = Codes("durability", &[(1, Durability::PerWrite), (2, Durability::PerCommit)]);
const LEFTS: Codes<Left> =
    Codes("state", &[(1, Left::Fresh), (2, Left::Open), (3, Left::Clean), (4, Left::Settled), (5, Left::Disputed)]);
const ENGINES: Codes<EngineKind> =
    Codes("engine", &[(1, EngineKind::Reflection), (2, EngineKind::HybridLog), (3, EngineKind::Shadow)]);

/// The bit of `incompat` that says that a hybrid log may have inline entries, and records among its headers. A reader
/// without knowledge of them would take committed epochs for lost ones.
const INLINE: u64 = 1;

impl DualCopy for Superblock {
    type Raw = Raw;
    const MAGIC: [u8; 8] = *b"UNTORN\r\n";
    const KNOWN_INCOMPAT: u64 = INLINE;
    const FILE: &'static str = "sidecar";

    fn seq(&mut self) -> &mut u64 {
        &mut self.seq
    }

    fn encode(&self) -> Raw {
        let mut name = [0; Name::MAX];
        // A name has at most so many bytes.
        name[..self.name.0.len()].copy_from_slice(&self.name.0);
        Raw {
            head: Head::new::<Self>(self.uuid, self.seq).needing(u64::from(self.inline) * INLINE),
            identity: self.identity.into(),
            slice_size: 64.into(),
            lanes: self.geometry.lanes.into(),
            slots: self.geometry.slots.into(),
            engine: ENGINES.code(self.engine),
            layout: LAYOUTS.code(self.layout),
            durability: DURABILITIES.code(self.durability),
            left: LEFTS.code(self.left),
            size: self.stamp.size.into(),
            modified: self.stamp.modified.into(),
            bitmap_sum: self.bitmap_sum.into(),
            slice_sum: self.slice_sum.into(),
            name_len: (self.name.0.len() as u16).into(),
            name,
            ..Raw::new_zeroed()
        }
    }

    fn decode(raw: &Raw) -> Result<Self, Refusal> {
        raw.head.check(MAX_NUMBER_AT_OPEN)?;
        let slice_size = raw.slice_size.get();
        if slice_size != 64 {
            return Err(Refusal::Corrupt(format!("the superblock names slices of {slice_size} bytes, not 64")));
        }
        let geometry = Geometry { lanes: raw.lanes.get(), slots: raw.slots.get() };
        let sensible = |n: u32, least: u32, most: u32| (least..=most).contains(&n) && n.is_power_of_two();
        if !sensible(geometry.lanes, 1, 64) || !sensible(geometry.slots, 4, 1 << 16) {
            let Geometry { lanes, slots } = geometry;
            let what = format!("the superblock has impossible values: {lanes} lanes of {slots} slots");
            return Err(Refusal::Corrupt(what));
        }
        Ok(Superblock {
            uuid: raw.head.uuid,
            seq: raw.head.seq.get(),
            identity: raw.identity.into(),
            engine: ENGINES.value(raw.engine.into()).map_err(Refusal::Unsupported)?,
            layout: LAYOUTS.value(raw.layout.into()).map_err(Refusal::Corrupt)?,
            durability: DURABILITIES.value(raw.durability.into()).map_err(Refusal::Corrupt)?,
            left: LEFTS.value(raw.left.into()).map_err(Refusal::Corrupt)?,
            geometry,
            inline: raw.head.incompat() & INLINE != 0,
            stamp: Stamp { size: raw.size.get(), modified: raw.modified.get() },
            bitmap_sum: raw.bitmap_sum.get(),
            slice_sum: raw.slice_sum.get(),
            name: raw.name.get(..raw.name_len.get().into()).map(Name::checked).unwrap_or_default(),
        })
    }
}
