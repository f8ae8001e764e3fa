//! Finds what the last commit has, for a snapshot.
//!
//! A block with an entry of the open epoch has its committed bytes at home: under redo, a committed entry goes there
//! before another takes its place; under undo, the entry holds them, and is laid over what is at home now. Bytes that
//! the open epoch cut off are at home, or in a committed entry that is still linked.

use std::collections::BTreeMap;
use std::ops::Range;

use super::Core;
use super::block_range::Link;
use super::format::Kind;
use super::index::Index;
use super::read::Seen;
use crate::engine::snapshot::{Captured, PAGE, holes};
use crate::error::Result;
use crate::storage::{Medium, MediumFile};
use crate::sys::sync::{Ordering, fence};

const BYTES: u64 = PAGE as u64;

impl<M: Medium> Core<M> {
    /// See [`Capture`](crate::engine::snapshot::Capture).
    pub(super) fn capture(&self, keep: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured> {
        if self.handle_state.is_read_only() {
            return Ok(Captured { commit: self.durable(), len: self.len() });
        }
        let lanes = self.lanes.acquire_all(self.relax());
        let captured = Captured { commit: self.epoch() - 1, len: self.head.committed_len.load(Ordering::Acquire) };
        // Under undo a write that failed may have stored to the file without being counted.
        let is_open = self.logs_undo() || lanes.iter().any(|lane| lane.state.writes() != 0);
        self.keep_committed(is_open, captured.len, keep).map_err(|error| self.handle_state.unless_lost(error))?;
        drop(lanes);
        self.await_durable(captured.commit)?;
        Ok(captured)
    }

    /// Calls `keep` with every page that the open epoch has changed, as the last commit has it. The caller holds every
    /// lane. Entries of the epoch are searched for only if it is open: the log has many of earlier ones.
    fn keep_committed(&self, is_open: bool, committed_len: u64, keep: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<()> {
        // Each page, with the undo entries that have bytes of it.
        let mut changed: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let epoch = self.epoch();
        let chunks = if is_open { self.chunks.total() } else { 0 };
        for chunk in 0..chunks {
            let mut next = chunk * self.chunks.units;
            let end = next + self.chunks.used(chunk);
            while next < end {
                let (unit, meta) = (next, &self.chunks.metas[next as usize]);
                let what = meta.what();
                next += what.map_or(1, |(_, class)| 1 << class);
                let Some((kind, _)) = what else { continue };
                if meta.epoch.load(Ordering::Acquire) != epoch {
                    continue;
                }
                let (at, delta) = (meta.block.load(Ordering::Acquire) * BYTES, meta.delta());
                let (from, to) = (at + u64::from(delta.offset), at + u64::from(delta.end));
                for page in from / BYTES..to.div_ceil(BYTES) {
                    let undo = changed.entry(page).or_default();
                    if kind == Kind::Undo {
                        undo.push(unit);
                    }
                }
            }
        }
        let cut_off = self.len() / BYTES..committed_len.div_ceil(BYTES);
        for page in cut_off.filter(|_| self.len() < committed_len) {
            changed.entry(page).or_default();
        }
        let mut image = [0; PAGE];
        for (page, undo) in changed {
            let within = (committed_len.saturating_sub(page * BYTES) as usize).min(PAGE);
            image[within..].fill(0);
            self.read_committed(page, &mut image[..within])?;
            for unit in undo {
                self.lay_over(unit, page, &mut image[..within])?;
            }
            keep(page, &image);
        }
        Ok(())
    }

    /// The first bytes of a page: by its committed entry if it has one, else as they are at home.
    fn read_committed(&self, page: u64, dst: &mut [u8]) -> Result<()> {
        let home = |dst: &mut [u8]| self.data.read(page * BYTES, dst);
        let Some(slot) = self.index.get(page) else { return home(dst) };
        // The link stays: to change it takes a lane.
        let read_guard = slot.read_locked();
        let link = Link(read_guard.bitmap);
        let head = link.head(page);
        loop {
            let entry = if link.is_redo() { self.live(link, head) } else { None };
            let Some((_, epoch)) = entry else { return home(dst) };
            if epoch == self.epoch() {
                return home(dst);
            }
            let end = (head + (1 << link.class())) * BYTES;
            let seen = Seen { slot: None, read_guard, entry, start: head * BYTES, end };
            self.gather(&seen, page * BYTES, dst)?;
            fence(Ordering::Acquire);
            // A checkpoint may be taking it home meanwhile; then it is there.
            if seen.entry_is_there() {
                return Ok(());
            }
        }
    }

    /// Lays the bytes that an undo entry holds over those of a page.
    fn lay_over(&self, unit: u64, page: u64, image: &mut [u8]) -> Result<()> {
        let meta = &self.chunks.metas[unit as usize];
        let (start, delta) = (meta.block.load(Ordering::Acquire) * BYTES, meta.delta());
        let at = page * BYTES;
        let from = (start + u64::from(delta.offset)).clamp(at, at + image.len() as u64);
        let to = (start + u64::from(delta.end)).clamp(from, at + image.len() as u64);
        if from == to {
            return Ok(());
        }
        self.side
            .read(self.chunks.bytes_at(unit) + (from - start), &mut image[(from - at) as usize..(to - at) as usize])
    }

    /// See [`Capture`](crate::engine::snapshot::Capture).
    pub(super) fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        holes::data_from(offset, self.len(), |offset| self.data.data_from(offset), |pages| self.elsewhere(pages))
    }

    /// The first run of blocks whose bytes are not at home, or are just changing.
    pub(super) fn elsewhere(&self, blocks: Range<u64>) -> Option<Range<u64>> {
        if !self.view.is_empty() {
            return self.view.first_in(blocks);
        }
        let mut block = blocks.start;
        while block < blocks.end {
            if self.index.get(block).is_none() {
                // Nothing was ever written near.
                block = Index::leaf_end(block);
                continue;
            }
            match self.look(block) {
                Some(Seen { entry: None, end, .. }) => block = (end / BYTES).max(block + 1),
                Some(Seen { end, .. }) => return Some(block..(end / BYTES).clamp(block + 1, blocks.end)),
                None => return Some(block..block + 1),
            }
        }
        None
    }
}
