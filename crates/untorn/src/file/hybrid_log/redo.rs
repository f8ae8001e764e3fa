//! Redo: the log gets the new bytes.

use super::block_range::{BlockRange, Link, Logged};
use super::format::{Header, Kind, check_of, sum_of};
use super::inline::{self, Shape};
use super::meta::Extent;
use super::write::{Part, Plan};
use super::{Core, Lane};
use crate::error::Result;
use crate::format::record::{LINE, Line};
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sys::sync::Ordering;

/// An entry of the open epoch as it was before it was written over, to bring it back if the write fails halfway.
struct Saved {
    link: Link,
    block: u64,
    delta: Extent,
    inline: bool,
    /// Those that the write stores over, and where in the log.
    bytes: Vec<u8>,
    at: u64,
    header: Line,
}

/// What is to be said of a cover's entry.
struct Said {
    delta: Extent,
    sum: Option<u64>,
    /// The bytes themselves, of an inline entry.
    bytes: Option<Vec<u8>>,
}

/// Whether the entry that a link names is one that this write makes.
fn is_new(block_range: &BlockRange, link: Link) -> bool {
    block_range.logged != Logged::Open(link)
}

impl<M: Medium> Core<M> {
    /// Puts a planned write into the log. Returns the links of its covers; `None`, with nothing stored, if there is no
    /// room.
    pub(super) fn log_redo(&self, lane: &Lane<'_>, plan: &Plan<'_>) -> Result<Option<Vec<Link>>> {
        let shapes: Vec<Shape> =
            (0..plan.block_ranges.len()).map(|index| self.shape(lane.state, plan, index)).collect();
        let mut links: Vec<Link> = Vec::with_capacity(plan.block_ranges.len());
        for (index, (block_range, &shape)) in plan.block_ranges.iter().zip(&shapes).enumerate() {
            links.push(match (block_range.logged, shape) {
                (Logged::Open(link), Shape::Same { .. }) => link,
                _ => match self.take_entry(lane, self.units_for(plan, index, shape), shape.is_inline()) {
                    Ok(Some(unit)) => self.redo_link(unit, block_range.class),
                    none => {
                        self.give_back_new(lane, plan, &links, &shapes);
                        return none.map(|_| None);
                    }
                },
            });
        }
        let saved = match self.about_to_be_overwritten(plan, &shapes) {
            Ok(saved) => saved,
            Err(error) => {
                self.give_back_new(lane, plan, &links, &shapes);
                return Err(error);
            }
        };
        let mut headers_tried = 0;
        match self.store_redo(lane, plan, &links, &shapes, &mut headers_tried) {
            Ok(()) => Ok(Some(links)),
            // On persistent memory no store fails unless a page of the log is lost.
            Err(error) if self.class == MediumClass::PersistentMemory => Err(self.handle_state.poison(error)),
            // What cannot be taken back must not be committed with the rest of the epoch.
            Err(error) => match self.take_back(lane, plan, &links[..headers_tried], saved) {
                Ok(()) => {
                    self.give_back_new(lane, plan, &links, &shapes);
                    Err(error)
                }
                Err(_) => Err(self.handle_state.poison(error)),
            },
        }
    }

    /// Gives the room back that was taken for new entries of a write, of which nothing is said any more. `links` are
    /// those of the first covers.
    fn give_back_new(&self, lane: &Lane<'_>, plan: &Plan<'_>, links: &[Link], shapes: &[Shape]) {
        let new: Vec<(u64, u64)> = (0..links.len())
            .filter(|&index| is_new(&plan.block_ranges[index], links[index]))
            .map(|index| (links[index].unit(), self.units_for(plan, index, shapes[index])))
            .collect();
        self.chunks.give_back(lane.state, new.into_iter(), self.relax());
    }

    /// Counts in `headers_tried` the covers whose headers may stand in the log, if it fails.
    fn store_redo(
        &self,
        lane: &Lane<'_>,
        plan: &Plan<'_>,
        links: &[Link],
        shapes: &[Shape],
        headers_tried: &mut usize,
    ) -> Result<()> {
        // All bytes that stand by themselves before the first header: a header that stands in the log belongs to the
        // epoch. Inline ones are stored with theirs.
        let mut headers = Vec::with_capacity(links.len());
        for (index, (block_range, &link)) in plan.block_ranges.iter().zip(links).enumerate() {
            let parts = plan.parts_of(index);
            headers.push(match shapes[index] {
                Shape::New { inline: false } => Some(self.fill(block_range, link, parts)?),
                Shape::Same { inline: false } => self.merge(block_range, link, parts)?,
                shape => {
                    let (delta, bytes) = self.merged(block_range, parts)?;
                    let sum = self.certifies().then(|| sum_of(&bytes));
                    if !shape.is_inline() {
                        self.side.write(self.chunks.bytes_at(link.unit()) + u64::from(delta.offset), &bytes)?;
                    }
                    Some(Said { delta, sum, bytes: shape.is_inline().then_some(bytes) })
                }
            });
        }
        let epoch = self.epoch();
        for ((block_range, &link), header) in plan.block_ranges.iter().zip(links).zip(&headers) {
            *headers_tried += 1;
            let Some(Said { delta, sum, ref bytes }) = *header else { continue };
            let header = Header {
                epoch,
                block: block_range.head,
                kind: Kind::Redo,
                class: block_range.class,
                offset: delta.offset,
                len: delta.len(),
                inline: bytes.is_some(),
                sum,
                after: None,
                proves: self.durable(),
            };
            let at = self.chunks.header_at(link.unit());
            let line = header.encode(self.checksum_seed, at);
            match bytes {
                Some(bytes) => self.side.write(at, &inline::with_bytes(&line, bytes))?,
                None => self.side.write(at, &line)?,
            }
            let (check, meta) = (check_of(&line), self.meta(link));
            if !is_new(block_range, link) {
                meta.set_delta(delta);
                lane.state.replace(meta.check.swap(check, Ordering::Relaxed), check);
                continue;
            }
            self.describe(link, block_range.head, delta, bytes.is_some(), check);
            lane.state.add(check);
            if let Logged::Open(old) = block_range.logged {
                self.side.write(self.chunks.header_at(old.unit()), &[0; LINE as usize])?;
                let old = self.meta(old);
                lane.state.remove(old.check.load(Ordering::Relaxed));
                old.clear();
            }
        }
        for (block_range, header) in plan.block_ranges.iter().zip(&headers) {
            if matches!(block_range.logged, Logged::Open(_)) && header.as_ref().is_none_or(|said| said.sum.is_none()) {
                lane.state.set_uncertain();
            }
        }
        Ok(())
    }

    /// The units that a new entry takes.
    fn units_for(&self, plan: &Plan<'_>, index: usize, shape: Shape) -> u64 {
        let parts = || plan.parts_of(index).map(|part| part.extent).reduce(Extent::with);
        if shape.is_inline() {
            inline::units(parts().map_or(0, Extent::len))
        } else {
            1 << plan.block_ranges[index].class
        }
    }

    /// Notes an entry of the open epoch in memory.
    fn describe(&self, link: Link, block: u64, delta: Extent, inline: bool, check: u64) {
        let (meta, epoch) = (self.meta(link), self.epoch());
        if inline {
            meta.set_inline(link, epoch, block, delta, check);
        } else {
            meta.set(link, epoch, block, delta, check);
        }
    }

    /// Stores the bytes of a new entry: those of the parts, and what lies between them. Returns what its header says.
    fn fill<'a, 'b: 'a>(
        &self,
        block_range: &BlockRange,
        link: Link,
        mut parts: impl Iterator<Item = &'a Part<'b>>,
    ) -> Result<Said> {
        let said = |delta, sum| Said { delta, sum, bytes: None };
        let at = self.chunks.bytes_at(link.unit());
        let Some(first) = parts.next() else { return Ok(said(Extent { offset: 0, end: 0 }, Some(sum_of(&[])))) };
        let rest: Vec<&Part<'_>> = parts.collect();
        let Some(last) = rest.last() else {
            self.side.write(at + u64::from(first.extent.offset), first.bytes)?;
            return Ok(said(first.extent, self.certifies().then(|| sum_of(first.bytes))));
        };
        let delta = first.extent.with(last.extent);
        let mut image = vec![0; delta.len() as usize];
        self.read_home(block_range, delta, &mut image)?;
        for part in std::iter::once(first).chain(rest) {
            let from = (part.extent.offset - delta.offset) as usize;
            image[from..from + part.bytes.len()].copy_from_slice(part.bytes);
        }
        self.side.write(at + u64::from(delta.offset), &image)?;
        Ok(said(delta, self.certifies().then(|| sum_of(&image))))
    }

    /// Stores parts into an entry that the open epoch has already, and what lies between them and its bytes. Returns
    /// what its header has to say now, or nothing if it can stay.
    fn merge<'a, 'b: 'a>(
        &self,
        block_range: &BlockRange,
        link: Link,
        parts: impl Iterator<Item = &'a Part<'b>>,
    ) -> Result<Option<Said>> {
        let at = self.chunks.bytes_at(link.unit());
        let before = self.meta(link).delta();
        let mut delta = before;
        for part in parts {
            for gap in [
                Extent { offset: part.extent.end, end: delta.offset.max(part.extent.end) },
                Extent { offset: delta.end.min(part.extent.offset), end: part.extent.offset },
            ] {
                self.copy_home_into(block_range, at, gap)?;
            }
            self.side.write(at + u64::from(part.extent.offset), part.bytes)?;
            delta = delta.with(part.extent);
        }
        if self.class == MediumClass::Block && self.certifies() {
            // Cheap beside a flush, of which this saves one.
            let mut image = vec![0; delta.len() as usize];
            self.side.read(at + u64::from(delta.offset), &mut image)?;
            return Ok(Some(Said { delta, sum: Some(sum_of(&image)), bytes: None }));
        }
        Ok((delta != before).then_some(Said { delta, sum: None, bytes: None }))
    }

    fn copy_home_into(&self, block_range: &BlockRange, at: u64, gap: Extent) -> Result<()> {
        if gap.offset == gap.end {
            return Ok(());
        }
        let mut bytes = vec![0; gap.len() as usize];
        self.read_home(block_range, gap, &mut bytes)?;
        self.side.write(at + u64::from(gap.offset), &bytes)
    }

    /// The bytes of entries that a write stores into. On persistent memory, where no store fails, nothing.
    fn about_to_be_overwritten(&self, plan: &Plan<'_>, shapes: &[Shape]) -> Result<Vec<Saved>> {
        let mut saved = Vec::new();
        for (block_range, shape) in plan.block_ranges.iter().zip(shapes).filter(|_| self.class == MediumClass::Block) {
            let Logged::Open(link) = block_range.logged else { continue };
            let (delta, header_at) = (self.meta(link).delta(), self.chunks.header_at(link.unit()));
            let (at, len) = match shape {
                Shape::Same { inline: true } => (header_at + LINE, (inline::units(delta.len()) - 1) * LINE),
                Shape::Moved => (header_at, 0),
                _ => (self.chunks.bytes_at(link.unit()) + u64::from(delta.offset), u64::from(delta.len())),
            };
            let (mut bytes, mut header) = (vec![0; len as usize], [0; LINE as usize]);
            self.side.read(at, &mut bytes)?;
            self.side.read(header_at, &mut header)?;
            let inline = self.meta(link).is_inline();
            saved.push(Saved { link, block: block_range.head, delta, inline, bytes, at, header });
        }
        Ok(saved)
    }

    /// Brings the log back to where it was before a write that failed. `links` are those of the first covers, whose
    /// headers were stored, or half stored.
    #[cold]
    fn take_back(&self, lane: &Lane<'_>, plan: &Plan<'_>, links: &[Link], saved: Vec<Saved>) -> Result<()> {
        for (block_range, &link) in plan.block_ranges.iter().zip(links) {
            if is_new(block_range, link) {
                self.remove_header(self.chunks.header_at(link.unit()))?;
                let meta = self.meta(link);
                if meta.what().is_some() {
                    lane.state.remove(meta.check.load(Ordering::Relaxed));
                    meta.clear();
                }
            }
        }
        for Saved { link, block, delta, inline, bytes, at, header } in saved {
            self.bring_back(at, &bytes)?;
            self.bring_back(self.chunks.header_at(link.unit()), &header)?;
            let (meta, check) = (self.meta(link), check_of(&header));
            if meta.what().is_none() {
                // It had moved already.
                self.describe(link, block, delta, inline, check);
                lane.state.add(check);
            } else {
                meta.set_delta(delta);
                lane.state.replace(meta.check.swap(check, Ordering::Relaxed), check);
            }
        }
        Ok(())
    }

    /// Sees to it that no header of the open epoch stands at byte `at` of the log. Where nothing can be written
    /// there, perhaps none ever was.
    fn remove_header(&self, at: u64) -> Result<()> {
        let Err(error) = self.side.write(at, &[0; LINE as usize]) else { return Ok(()) };
        let mut line = [0; LINE as usize];
        self.side.read(at, &mut line)?;
        let stands = Header::decode(self.checksum_seed, at, &line).is_some_and(|header| header.epoch == self.epoch());
        if stands { Err(error) } else { Ok(()) }
    }

    /// Sees to it that these bytes stand at byte `at` of the log, where perhaps they always did.
    fn bring_back(&self, at: u64, bytes: &[u8]) -> Result<()> {
        let Err(error) = self.side.write(at, bytes) else { return Ok(()) };
        let mut there = vec![0; bytes.len()];
        self.side.read(at, &mut there)?;
        if there == bytes { Ok(()) } else { Err(error) }
    }
}
