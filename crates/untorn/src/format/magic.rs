//! The first bytes of files, for a product that must know a file of another one when it sees it.

/// The magic of a region store, at the start of each of its two superblocks.
pub(crate) const REGION_STORE: [u8; 8] = *b"REGION\r\n";

/// Whether bytes from the start of a file are those of a region store's first superblock, or of its second.
pub(crate) fn is_region_store(start: &[u8]) -> bool {
    has_superblock(start, &REGION_STORE)
}

/// Whether bytes from the start of a file have this magic where one of the two superblocks begins.
pub(crate) fn has_superblock(start: &[u8], magic: &[u8; 8]) -> bool {
    const PAGE: usize = 4096;
    [0, PAGE].iter().any(|&at| start.get(at..).is_some_and(|start| start.starts_with(magic)))
}
