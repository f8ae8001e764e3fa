//! A block device behind the page cache: sectors, each surviving in any of the versions it had since the last flush.

use std::collections::HashMap;
use std::sync::Arc;

use crate::content::{Content, PAGE};
use crate::effects::{Effect, Log, What};
use crate::rng::{Rng, mix};

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

/// The sector an uncertain store belongs to, of which there is one for each effect.
fn pending(effect: &Effect) -> Option<u64> {
    match effect.what {
        What::Piece { at, .. } if !effect.certain => Some(at / SECTOR),
        _ => None,
    }
}

/// A flush that fails: the fate of every sector that was not durable is unknown, and those that did not make it are
/// called clean. Names and sizes stay as they were, for a journal loses none of them in silence.
pub(crate) fn lose(log: &mut Log, volatile: &Content, durable: &mut Content, seed: u64) {
    let mut versions: HashMap<u64, u64> = HashMap::new();
    log.effects.iter().filter_map(pending).for_each(|sector| *versions.entry(sector).or_default() += 1);
    // How many of a sector's stores reached the medium before it was given up; `None` for one that stays dirty.
    let written = |sector: u64| {
        let mut rng = Rng::derive(seed, sector);
        let versions = versions.get(&sector).copied().unwrap_or(0);
        match rng.below(8) {
            0 => None,
            1 | 2 => Some(versions),
            3 => Some(rng.below(versions + 1)),
            _ => Some(0),
        }
    };
    let mut seen: HashMap<u64, u64> = HashMap::new();
    let Log { effects, forgotten } = log;
    effects.retain(|effect| {
        let Some(sector) = pending(effect) else { return true };
        let version = seen.entry(sector).or_default();
        *version += 1;
        let kept = written(sector).is_none_or(|written| *version <= written);
        if !kept {
            forgotten.insert(sector);
        }
        kept
    });
    log.settle(volatile, durable, |effect| pending(effect).is_some_and(|sector| written(sector).is_some()));
}

/// A store to a part of a sector makes all of it dirty: bytes that were forgotten there will be written after all.
pub(crate) fn redirty(log: &mut Log, call: u64, volatile: &Content, at: u64, len: u64) {
    let sectors: Vec<u64> = log.forgotten.range(at / SECTOR..(at + len).div_ceil(SECTOR)).copied().collect();
    for sector in sectors {
        log.forgotten.remove(&sector);
        let at = sector * SECTOR;
        let mut bytes = vec![0; SECTOR.min(volatile.len.saturating_sub(at)) as usize];
        volatile.read(at, &mut bytes);
        push(log, call, at, &bytes);
    }
}

/// Runs before a range is cut out of the file: bytes that were forgotten in it are gone, and the sectors at its edges
/// become dirty.
pub(crate) fn cut_out(log: &mut Log, call: u64, volatile: &Content, at: u64, len: u64) {
    let (start, end) = (at, at.saturating_add(len));
    for edge in [start, end] {
        if edge < volatile.len && edge % SECTOR != 0 {
            redirty(log, call, volatile, edge, 1);
        }
    }
    log.forgotten.retain(|&sector| sector < start.div_ceil(SECTOR) || sector >= end / SECTOR);
}

/// Drops the pages of a range from the cache, so that reads show the medium's bytes; those that stay, because they are
/// dirty or because another process has them mapped, are written anew. Returns whether anything changed.
pub(crate) fn distrust(
    log: &mut Log,
    call: u64,
    volatile: &mut Content,
    durable: &mut Content,
    at: u64,
    len: u64,
) -> bool {
    let (first, end) = (at / PAGE * PAGE / SECTOR, at.saturating_add(len).div_ceil(SECTOR));
    let forgotten: Vec<u64> = log.forgotten.range(first..end).copied().collect();
    let page = |sector: u64| sector * SECTOR / PAGE;
    for &sector in &forgotten {
        let dirty = log.effects.iter().filter_map(pending).any(|other| page(other) == page(sector));
        if dirty || mix(call ^ mix(page(sector))).is_multiple_of(4) {
            redirty(log, call, volatile, sector * SECTOR, SECTOR);
        }
    }
    let mut fresh = durable.clone();
    log.effects.iter().for_each(|effect| effect.what.apply(&mut fresh));
    fresh.cut();
    let mut bytes = [0; SECTOR as usize];
    for &sector in forgotten.iter().filter(|sector| log.forgotten.contains(sector)) {
        let bytes = &mut bytes[..SECTOR.min(volatile.len.saturating_sub(sector * SECTOR)) as usize];
        fresh.read(sector * SECTOR, bytes);
        volatile.write(sector * SECTOR, bytes);
    }
    log.forgotten.retain(|sector| !forgotten.contains(sector));
    log.settle(volatile, durable, flushed) || !forgotten.is_empty()
}
