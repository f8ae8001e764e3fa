//! Undo: the log gets the old bytes, the file the new ones. On persistent memory only.

use super::block_range::{BlockRange, Link, Logged};
use super::format::{Header, Kind, check_of, sum_of};
use super::meta::Extent;
use super::write::Plan;
use super::{Core, Lane, barriers};
use crate::error::Result;
use crate::storage::{Medium, MediumFile};
use crate::sys::sync::Ordering;

/// An entry to be stored: these bytes of the cover, as they are at home now.
struct OldBytes {
    block_range: usize,
    extent: Extent,
    unit: u64,
    /// Checksum over the only bytes that the epoch puts in their place so far.
    after: Option<u64>,
}

impl<M: Medium> Core<M> {
    /// Saves what a planned write replaces, durably, then stores the write where it belongs. Returns the links of its
    /// covers; `None`, with nothing stored, if the log has no room.
    pub(super) fn log_undo(&self, lane: &Lane<'_>, plan: &Plan<'_>) -> Result<Option<Vec<Link>>> {
        let mut old = Vec::new();
        let mut links = Vec::with_capacity(plan.block_ranges.len());
        for (index, block_range) in plan.block_ranges.iter().enumerate() {
            match self.choose_old(lane, plan, index, block_range, &mut old) {
                Ok(Some(link)) => links.push(link),
                none => {
                    let taken = old.iter().map(|old| (old.unit, 1 << plan.block_ranges[old.block_range].class));
                    self.chunks.give_back(lane.state, taken, self.relax());
                    return none.map(|_| None);
                }
            }
        }
        self.store_undo(lane, plan, &old).map_err(|error| self.handle_state.poison(error))?;
        Ok(Some(links))
    }

    /// Finds out which bytes of a cover the log does not have yet. The first write of an epoch saves what it replaces;
    /// the next that goes beyond saves all the rest of the cover, so there are never more than three entries.
    fn choose_old(
        &self,
        lane: &Lane<'_>,
        plan: &Plan<'_>,
        index: usize,
        block_range: &BlockRange,
        old: &mut Vec<OldBytes>,
    ) -> Result<Option<Link>> {
        let mut parts = plan.parts_of(index);
        let (mut link, mut hull) = match block_range.logged {
            Logged::Open(link) => {
                // What stands there now was not written once.
                lane.state.set_uncertain();
                (Some(link), Some(self.meta(link).hull()))
            }
            Logged::Nothing => (None, None),
        };
        if hull.is_none()
            && let Some(part) = parts.next()
        {
            let Some(unit) = self.take_entry(lane, 1 << block_range.class, false)? else { return Ok(None) };
            let after = self.certifies().then(|| sum_of(part.bytes));
            old.push(OldBytes { block_range: index, extent: part.extent, unit, after });
            link = Some(Link::new(unit, block_range.class, 0, Kind::Undo));
            hull = Some(part.extent);
        }
        for part in parts {
            lane.state.set_uncertain();
            let Some(known) = hull.filter(|hull| !hull.has(part.extent)) else { continue };
            // Behind the end of the file there is nothing to save.
            let whole =
                Extent { offset: 0, end: (self.data.len().min(block_range.end()) - block_range.start()) as u32 };
            for rest in [Extent { end: known.offset, ..whole }, Extent { offset: known.end, ..whole }] {
                if rest.offset < rest.end {
                    let Some(unit) = self.take_entry(lane, 1 << block_range.class, false)? else { return Ok(None) };
                    old.push(OldBytes { block_range: index, extent: rest, unit, after: None });
                }
            }
            hull = Some(whole);
        }
        Ok(link)
    }

    fn store_undo(&self, lane: &Lane<'_>, plan: &Plan<'_>, old: &[OldBytes]) -> Result<()> {
        let epoch = self.epoch();
        let mut image = Vec::new();
        for OldBytes { block_range, extent, unit, after } in old {
            let block_range = &plan.block_ranges[*block_range];
            image.resize(extent.len() as usize, 0);
            self.data.read(block_range.start() + u64::from(extent.offset), &mut image)?;
            self.side.write(self.chunks.bytes_at(*unit) + u64::from(extent.offset), &image)?;
            let header = Header {
                epoch,
                block: block_range.head,
                kind: Kind::Undo,
                class: block_range.class,
                offset: extent.offset,
                len: extent.len(),
                inline: false,
                // Also where the epoch is not certified by it: it tells recovery whether these bytes arrived, for if
                // they did not, nothing was stored in their place.
                sum: Some(sum_of(&image)),
                after: *after,
                proves: self.durable(),
            };
            let at = self.chunks.header_at(*unit);
            let line = header.encode(self.checksum_seed, at);
            self.side.write(at, &line)?;
            let meta = &self.chunks.metas[*unit as usize];
            meta.set(
                Link::new(*unit, block_range.class, 0, Kind::Undo),
                epoch,
                block_range.head,
                *extent,
                check_of(&line),
            );
            lane.state.add(check_of(&line));
            if let Logged::Open(link) = block_range.logged {
                let first = self.meta(link);
                first.set_hull(first.hull().with(*extent));
            }
        }
        self.widen_hulls(plan, old);
        if !old.is_empty() {
            self.fence(barriers::UNDO_ENTRY, &[&self.side])?;
        }
        for part in &plan.parts {
            let block_range = &plan.block_ranges[part.block_range];
            self.data.write(block_range.start() + u64::from(part.extent.offset), part.bytes)?;
        }
        Ok(())
    }

    /// Of several entries of one write for a cover that had none, the first stands for all.
    fn widen_hulls(&self, plan: &Plan<'_>, old: &[OldBytes]) {
        for pair in old.windows(2) {
            let [one, two] = pair else { continue };
            if one.block_range == two.block_range && plan.block_ranges[one.block_range].logged == Logged::Nothing {
                let Some(first) = old.iter().find(|first| first.block_range == one.block_range) else { continue };
                let meta = &self.chunks.metas[first.unit as usize];
                meta.set_hull(meta.hull().with(two.extent));
            }
        }
    }

    /// Takes the open epoch back: what its entries hold goes home again. Nothing else is under way.
    pub(super) fn roll_back(&self) -> Result<()> {
        let epoch = self.epoch();
        let mut image = Vec::new();
        for chunk in 0..self.chunks.total() {
            let used = self.chunks.used(chunk);
            for unit in chunk * self.chunks.units..chunk * self.chunks.units + used {
                let meta = &self.chunks.metas[unit as usize];
                if meta.what().is_none_or(|(kind, _)| kind == Kind::Redo) || meta.epoch.load(Ordering::Acquire) != epoch
                {
                    continue;
                }
                let delta = meta.delta();
                image.resize(delta.len() as usize, 0);
                self.side.read(self.chunks.bytes_at(unit) + u64::from(delta.offset), &mut image)?;
                let home = meta.block.load(Ordering::Acquire) * crate::format::sidecar::PAGE + u64::from(delta.offset);
                // What was saved beside a write may have been a hole.
                self.give_space(home, image.len() as u64)?;
                self.data.write(home, &image)?;
            }
        }
        Ok(())
    }
}
