//! The layout of a store: superblock, region nodes, records, page-table pages. `docs/format.md` gives the reasons.
//!
//! Every number is little-endian. Any program may have written the file, so each number is checked before use.

use twox_hash::XxHash3_64;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::format::dual_copy::{DualCopy, Head, Refusal};
use crate::format::magic::REGION_STORE;

/// Bytes of a page, of the store and of a region.
pub(crate) const PAGE: u64 = 4096;
/// The bytes of one page.
pub(crate) type Page = [u8; PAGE as usize];

/// The most region nodes a store may have.
pub(crate) const MAX_NODES: u32 = 1 << 16;
/// The longest name of a region, in bytes.
pub(crate) const MAX_NAME: usize = 255;
/// The highest number of logical pages a region may declare: byte offsets then fit in 64 bits.
pub(crate) const MAX_PAGES: u64 = 1 << 51;
/// Sequence and commit numbers count flushes; one beyond this was never reached.
const MAX_NUMBER: u64 = 1 << 61;

/// Page of the first region node, behind the two superblocks.
pub(super) const NODES_AT: u64 = 2;
/// Where in its node a region has the pointer to its page table.
pub(super) const ROOT_AT: u64 = 8;
/// Entries of a leaf.
pub(super) const LEAF: u64 = 128;
/// Children of an inner node.
pub(super) const FANOUT: u64 = 512;
/// Bytes of one of the two halves of a leaf.
pub(super) const HALF: u64 = PAGE / 2;
/// Entries in a cache line.
pub(super) const IN_LINE: usize = 4;
/// The pointer of a page that was allocated and never written: it reads as zeros and takes no space. A superblock is
/// never a page of a region, so its number is free for this.
pub(super) const ZERO: u64 = 1;

/// The superblock: what the file is, and how it was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) uuid: [u8; 16],
    pub(super) seq: u64,
    /// Region nodes.
    pub(super) nodes: u32,
    /// Another one in each opening for writing, so that who shares a region can tell whether somebody else has had
    /// the store.
    pub(super) session: u64,
    /// The free map, if the store was closed cleanly.
    pub(super) map: Option<MapPlace>,
}

/// Where a clean close left the free map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MapPlace {
    /// Pages of the file then, and so bits of the map.
    pub(super) pages: u64,
    /// Its first page.
    pub(super) at: u64,
    /// Digest of its bytes.
    pub(super) sum: u64,
}

impl MapPlace {
    /// Bytes of a map of so many pages.
    pub(super) fn bytes(pages: u64) -> u64 {
        pages.div_ceil(64) * 8
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    head: Head,
    nodes: U32,
    /// 1: open, or left by a crash. 2: closed cleanly.
    left: U32,
    pages: U64,
    map_at: U64,
    map_sum: U64,
    session: U64,
    reserved: [u8; 3984],
    check: U64,
}

const _: () = {
    assert!(size_of::<RawSuperblock>() == PAGE as usize);
    assert!(std::mem::offset_of!(RawSuperblock, pages) == 72);
    assert!(std::mem::offset_of!(RawSuperblock, session) == 96);
    assert!(std::mem::offset_of!(RawSuperblock, check) == 4088);
};

const OPEN: u32 = 1;
const CLEAN: u32 = 2;

impl Superblock {
    /// Page of the first page that is neither superblock nor node.
    pub(super) fn first(&self) -> u64 {
        NODES_AT + u64::from(self.nodes)
    }
}

impl DualCopy for Superblock {
    type Raw = RawSuperblock;
    const MAGIC: [u8; 8] = REGION_STORE;
    const FILE: &'static str = "store";
    const NEITHER: &'static str = "neither superblock is valid, or this is not a region store";

    fn seq(&mut self) -> &mut u64 {
        &mut self.seq
    }

    fn encode(&self) -> RawSuperblock {
        let mut raw = RawSuperblock {
            head: Head::new::<Self>(self.uuid, self.seq),
            nodes: self.nodes.into(),
            left: OPEN.into(),
            session: self.session.into(),
            ..RawSuperblock::new_zeroed()
        };
        if let Some(map) = self.map {
            raw.left = CLEAN.into();
            raw.pages = map.pages.into();
            raw.map_at = map.at.into();
            raw.map_sum = map.sum.into();
        }
        raw
    }

    fn decode(raw: &RawSuperblock) -> std::result::Result<Self, Refusal> {
        raw.head.check(MAX_NUMBER)?;
        let nodes = raw.nodes.get();
        if nodes == 0 || nodes > MAX_NODES {
            return Err(Refusal::Corrupt(format!("the superblock has an impossible number of region nodes, {nodes}")));
        }
        let map = match raw.left.get() {
            OPEN => None,
            CLEAN => Some(MapPlace { pages: raw.pages.get(), at: raw.map_at.get(), sum: raw.map_sum.get() }),
            other => return Err(Refusal::Corrupt(format!("the superblock has the unknown state {other}"))),
        };
        Ok(Superblock { uuid: raw.head.uuid, seq: raw.head.seq.get(), nodes, session: raw.session.get(), map })
    }
}

/// What a region node says of its region for good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub(super) name: String,
    /// Of this region and no other, earlier ones in the same node included.
    pub(super) uid: [u8; 16],
    pub(super) max_pages: u64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNode {
    /// The durability point of creating and deleting a region: [`VALID`] or 0.
    status: U64,
    /// The page table; 0 if there is none.
    root: U64,
    uid: [u8; 16],
    max_pages: U64,
    flags: U64,
    name_len: U32,
    reserved: U32,
    name: [u8; 256],
    unused: [u8; 192],
    /// Over all from `uid` on.
    check: U64,
}

const _: () = {
    assert!(size_of::<RawNode>() == 512);
    assert!(std::mem::offset_of!(RawNode, root) == ROOT_AT as usize);
    assert!(std::mem::offset_of!(RawNode, uid) == 16);
    assert!(std::mem::offset_of!(RawNode, name) == 56);
    assert!(std::mem::offset_of!(RawNode, check) == 504);
};

/// The status of a node that has a region: RNODE_VALID of the paper.
pub(super) const VALID: u64 = u64::from_le_bytes(*b"rnode ok");

impl Node {
    /// The node's whole page, its status not set yet, with the record of commit 0. `root` is its page table.
    pub(super) fn encode(&self, root: u64) -> Page {
        let mut raw = RawNode::new_zeroed();
        raw.root = root.into();
        raw.uid = self.uid;
        raw.max_pages = self.max_pages.into();
        raw.name_len = (self.name.len() as u32).into();
        raw.name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let mut sector: [u8; 512] = zerocopy::transmute!(raw);
        let check = XxHash3_64::oneshot(&sector[16..504]);
        sector[504..].copy_from_slice(&check.to_le_bytes());
        let mut page = [0; PAGE as usize];
        page[..512].copy_from_slice(&sector);
        let record = Record { commit: 0, total: 0, pages: 0, ordered: true };
        page[Record::at(0) as usize..][..Record::LEN].copy_from_slice(&record.encode(&self.uid));
        page
    }

    /// Decodes a node's page: nothing if it has no region, else the region and the pointer to its page table.
    ///
    /// # Errors
    /// A sentence saying what is wrong with it.
    pub(super) fn decode(page: &Page) -> std::result::Result<Option<(Self, u64)>, String> {
        let Ok((raw, _)) = RawNode::read_from_prefix(page) else { return Ok(None) };
        match raw.status.get() {
            0 => return Ok(None),
            VALID => {}
            other => return Err(format!("region node with the unknown status {other:#x}")),
        }
        let max_pages = raw.max_pages.get();
        let len = raw.name_len.get() as usize;
        if XxHash3_64::oneshot(&page[16..504]) != raw.check.get() || raw.flags.get() != 0 {
            return Err("region node with a wrong checksum".to_owned());
        }
        if len == 0 || len > MAX_NAME || max_pages == 0 || max_pages > MAX_PAGES {
            return Err(format!(
                "region node with an impossible name length ({len} bytes) or page limit ({max_pages})"
            ));
        }
        let name = std::str::from_utf8(&raw.name[..len]);
        let name = name.map_err(|_| "region node with a name that is not UTF-8".to_owned())?;
        Ok(Some((Node { name: name.to_owned(), uid: raw.uid, max_pages }, raw.root.get())))
    }

    /// Levels of inner nodes above the leaves of a region of so many pages.
    pub(super) fn height(max_pages: u64) -> u32 {
        let leaves = max_pages.div_ceil(LEAF);
        (0..).find(|&level| leaves <= FANOUT.pow(level)).unwrap_or(0)
    }
}

/// A commit: the line that makes it one. It is never torn by halves, for it proves by checksums that it is whole, and
/// unless it is `ordered` that all it speaks of is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) commit: u64,
    /// Sum over all entries of the region, see [`weigh`].
    pub(super) total: u64,
    /// Pages allocated.
    pub(super) pages: u64,
    /// All it speaks of was durable before it was stored.
    pub(super) ordered: bool,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRecord {
    commit: U64,
    total: U64,
    pages: U64,
    flags: U64,
    reserved: [U64; 3],
    /// Over the region's UID and all before.
    check: U64,
}

const _: () = assert!(size_of::<RawRecord>() == Record::LEN);

const ORDERED: u64 = 1;

impl Record {
    pub(super) const LEN: usize = 64;

    /// Where in its node the record of a commit stands: the two last ones in sectors of their own.
    pub(super) fn at(commit: u64) -> u64 {
        512 + commit % 2 * 512
    }

    pub(super) fn encode(&self, uid: &[u8; 16]) -> [u8; Self::LEN] {
        let mut raw = RawRecord::new_zeroed();
        raw.commit = self.commit.into();
        raw.total = self.total.into();
        raw.pages = self.pages.into();
        raw.flags = if self.ordered { ORDERED } else { 0 }.into();
        let mut bytes: [u8; Self::LEN] = zerocopy::transmute!(raw);
        let check = Self::check(uid, &bytes);
        bytes[56..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// The two records of a node, the newer one first, without those that are not whole or not in their place.
    pub(super) fn both(page: &Page, uid: &[u8; 16]) -> Vec<Self> {
        let decode = |place: u64| {
            let bytes = page[Self::at(place) as usize..].first_chunk::<{ Self::LEN }>()?;
            let raw = RawRecord::read_from_bytes(bytes).ok()?;
            let sound = raw.check.get() == Self::check(uid, bytes)
                && raw.commit.get() % 2 == place
                && raw.commit.get() <= MAX_NUMBER
                && raw.flags.get() & !ORDERED == 0;
            let (commit, total, pages) = (raw.commit.get(), raw.total.get(), raw.pages.get());
            sound.then(|| Record { commit, total, pages, ordered: raw.flags.get() & ORDERED != 0 })
        };
        let mut found: Vec<Record> = (0..2).filter_map(decode).collect();
        found.sort_by_key(|record| std::cmp::Reverse(record.commit));
        found
    }

    fn check(uid: &[u8; 16], bytes: &[u8; Self::LEN]) -> u64 {
        let mut sealed = [0; 16 + 56];
        sealed[..16].copy_from_slice(uid);
        sealed[16..].copy_from_slice(&bytes[..56]);
        XxHash3_64::oneshot(&sealed)
    }
}

/// Where one logical page is, in one of the two halves of its leaf.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Entry {
    /// Page of the store; 0 if the logical page is not allocated, [`ZERO`] if it was never written.
    pub(super) page: U64,
    /// Digest of the page's bytes; 0 if none was taken.
    pub(super) sum: U64,
}

const _: () = assert!(size_of::<Entry>() * IN_LINE == 64);

impl Entry {
    pub(super) fn new(page: u64, sum: u64) -> Self {
        Entry { page: page.into(), sum: sum.into() }
    }

    pub(super) fn is_allocated(self) -> bool {
        self.page.get() != 0
    }

    /// The page of the store that it names, if it names one.
    pub(super) fn stored(self) -> Option<u64> {
        Some(self.page.get()).filter(|&page| page != 0 && page != ZERO)
    }

    /// What the entry adds to its region's total. The sum does not depend on the order, so a commit changes it by
    /// what it changes; a set of entries that did not all arrive has another sum but for one chance in 2⁶⁴.
    pub(super) fn weigh(self, logical: u64) -> u64 {
        if !self.is_allocated() {
            return 0;
        }
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&logical.to_le_bytes());
        bytes[8..].copy_from_slice(self.as_bytes());
        XxHash3_64::oneshot(&bytes)
    }
}

/// The digest of a page's bytes, never 0.
pub(super) fn digest(page: &Page) -> u64 {
    XxHash3_64::oneshot(page).max(1)
}

/// The entries of a leaf under one parity of the commit number.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct Half(pub(super) [Entry; LEAF as usize]);

/// A leaf of a page table: the dual pointers. The half of the last commit's parity is the snapshot, the other one is
/// for the commit to come.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawLeaf(pub(super) [Half; 2]);

/// An inner node of a page table.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawInner(pub(super) [U64; FANOUT as usize]);

const _: () = {
    assert!(size_of::<Half>() == HALF as usize);
    assert!(size_of::<RawLeaf>() == PAGE as usize);
    assert!(size_of::<RawInner>() == PAGE as usize);
};

/// Digest of a free map's bytes.
pub(super) fn map_sum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heights_cover_what_is_declared() {
        assert_eq!(Node::height(1), 0);
        assert_eq!(Node::height(128), 0);
        assert_eq!(Node::height(129), 1);
        assert_eq!(Node::height(128 * 512), 1);
        assert_eq!(Node::height(128 * 512 + 1), 2);
        assert_eq!(Node::height(MAX_PAGES), 5);
    }

    #[test]
    fn a_record_counts_only_in_its_place_and_for_its_region() {
        let record = Record { commit: 7, total: 11, pages: 3, ordered: false };
        let mut page = [0; PAGE as usize];
        page[Record::at(7) as usize..][..Record::LEN].copy_from_slice(&record.encode(&[1; 16]));
        assert_eq!(Record::both(&page, &[1; 16]), [record]);
        assert_eq!(Record::both(&page, &[2; 16]), []);
        let mut moved = [0; PAGE as usize];
        moved[Record::at(8) as usize..][..Record::LEN].copy_from_slice(&record.encode(&[1; 16]));
        assert_eq!(Record::both(&moved, &[1; 16]), []);
        for byte in 0..Record::LEN {
            let mut torn = page;
            torn[Record::at(7) as usize + byte] ^= 0x10;
            assert_eq!(Record::both(&torn, &[1; 16]), [], "byte {byte}");
        }
    }

    #[test]
    fn a_node_is_what_was_written_once_its_status_says_so() {
        let node = Node { name: "ledger".to_owned(), uid: [3; 16], max_pages: 1 << 20 };
        let mut page = node.encode(0);
        assert_eq!(Node::decode(&page), Ok(None));
        page[..8].copy_from_slice(&VALID.to_le_bytes());
        page[8..16].copy_from_slice(&99_u64.to_le_bytes());
        assert_eq!(Node::decode(&page), Ok(Some((node, 99))));
        page[60] ^= 1;
        assert!(Node::decode(&page).is_err());
    }
}
