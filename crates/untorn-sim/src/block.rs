//! A block device behind the page cache: sectors, each surviving in any of the versions it had since the last flush.

use std::sync::Arc;

use crate::effects::{Effect, Log, What};

/// Bytes of a sector, which does not tear.
pub(crate) const SECTOR: u64 = 512;

/// Splits a store into its sectors. The kernel may write a dirty page back at any time, so each sector survives with
/// the effects of some prefix of the stores to it.
pub(crate) fn push(log: &mut Log, call: u64, at: u64, src: &[u8]) {
    let data: Arc<[u8]> = src.into();
    let mut done = 0;
    while done < src.len() {
        let here = at + done as u64;
        let len = ((here / SECTOR + 1) * SECTOR - here).min((src.len() - done) as u64);
        log.push(call, What::Piece { at: here, from: done as u32, len: len as u32, data: data.clone() });
        done += len as usize;
    }
}

/// Whether a completed flush of the file makes the effect certain: all data of all threads, no metadata. A real
/// `fdatasync` also covers the length needed to reach the data; the model leaves that to `sync`, to be hostile.
pub(crate) fn flushed(effect: &Effect) -> bool {
    effect.what.is_data()
}
