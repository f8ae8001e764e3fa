//! The redundancy file of the one file that a run has, read as `docs/format.md` describes it.

use std::ops::Range;
use std::path::Path;

use twox_hash::XxHash3_64;
use untorn::redundancy::PageRange;
use untorn::testing::storage::{Access, Medium, MediumFile};

use crate::medium::SimMedium;
use crate::rng::mix;

/// The data file of every run.
pub(super) const PATH: &str = "/data";

pub(super) const PAGE: usize = 4096;

/// The path of the redundancy file, if there is one.
pub(super) fn path(medium: &SimMedium) -> untorn::Result<Option<String>> {
    let file = medium.open(Path::new(PATH), Access::Read, 0)?;
    let path = format!("/.untorn/{}.redundancy", file.identity()?.inode);
    Ok(medium.exists(Path::new(&path))?.then_some(path))
}

/// The modification time of the data file, which the digest of an image leaves out.
pub(super) fn modified(medium: &SimMedium) -> untorn::Result<u64> {
    Ok(medium.open(Path::new(PATH), Access::Read, 0)?.stamp()?.modified)
}

/// The page that a range is about.
pub(super) fn page_of(range: &PageRange) -> u64 {
    range.offset / PAGE as u64
}

/// The bytes at these offsets that follow from a tag.
pub(super) fn bytes_of(tag: u64, offsets: Range<usize>) -> Vec<u8> {
    let word = |at: usize| mix(tag | (at as u64 / 8));
    offsets.map(|at| (word(at) >> (8 * (at % 8))) as u8).collect()
}

/// The newer whole superblock.
pub(super) struct Superblock {
    /// Each redundancy file has one of its own.
    pub(super) uuid: [u8; 16],
    /// The length of the data file.
    pub(super) len: u64,
    pub(super) is_closed: bool,
}

impl Superblock {
    pub(super) fn of(side: &[u8]) -> Option<Self> {
        let word = |block: &[u8], at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap_or_default());
        let whole = |block: &&[u8]| word(block, PAGE - 8) == XxHash3_64::oneshot(&block[..PAGE - 8]);
        let newer = side.chunks_exact(PAGE).take(2).filter(whole).max_by_key(|block| word(block, 56))?;
        let uuid = newer[40..56].try_into().ok()?;
        Some(Superblock { uuid, len: word(newer, 96), is_closed: newer[116..120] == [1, 0, 0, 0] })
    }
}
