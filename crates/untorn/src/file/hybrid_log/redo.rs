//! Redo: the log gets the new bytes.

use super::block_range::{BlockRange, Link, Logged};
use super::format::{Header, Kind, check_of, sum_of};
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
    delta: Extent,
    bytes: Vec<u8>,
    header: Line,
}

impl<M: Medium> Core<M> {
    /// Puts a planned write into the log. Returns the links of its covers; `None`, with nothing stored, if there is no
    /// room.
    pub(super) fn log_redo(&self, lane: &Lane<'_>, plan: &Plan<'_>) -> Result<Option<Vec<Link>>> {
        let mut links: Vec<Link> = Vec::with_capacity(plan.block_ranges.len());
        for block_range in &plan.block_ranges {
            links.push(match block_range.logged {
                Logged::Open(link) => link,
                Logged::Nothing => match self.take_entry(lane, block_range.class) {
                    Ok(Some(unit)) => self.redo_link(unit, block_range.class),
                    none => {
                        self.give_back_new(lane, plan, &links);
                        return none.map(|_| None);
                    }
                },
            });
        }
        let saved = match self.about_to_be_overwritten(plan) {
            Ok(saved) => saved,
            Err(error) => {
                self.give_back_new(lane, plan, &links);
                return Err(error);
            }
        };
        let mut headers_tried = 0;
        match self.store_redo(lane, plan, &links, &mut headers_tried) {
            Ok(()) => Ok(Some(links)),
            // On persistent memory no store fails unless a page of the log is lost.
            Err(error) if self.class == MediumClass::PersistentMemory => Err(self.handle_state.poison(error)),
            // What cannot be taken back must not be committed with the rest of the epoch.
            Err(error) => match self.take_back(lane, plan, &links[..headers_tried], saved) {
                Ok(()) => {
                    self.give_back_new(lane, plan, &links);
                    Err(error)
                }
                Err(_) => Err(self.handle_state.poison(error)),
            },
        }
    }

    /// Gives the room back that was taken for new entries of a write, of which nothing is said any more. `links` are
    /// those of the first covers.
    fn give_back_new(&self, lane: &Lane<'_>, plan: &Plan<'_>, links: &[Link]) {
        let new = plan.block_ranges.iter().zip(links).filter(|(block_range, _)| block_range.logged == Logged::Nothing);
        self.chunks.give_back(
            lane.state,
            new.map(|(block_range, link)| (link.unit(), block_range.class)),
            self.relax(),
        );
    }

    /// Counts in `headers_tried` the covers whose headers may stand in the log, if it fails.
    fn store_redo(&self, lane: &Lane<'_>, plan: &Plan<'_>, links: &[Link], headers_tried: &mut usize) -> Result<()> {
        // All bytes before the first header: a header that stands in the log belongs to the epoch.
        let mut headers = Vec::with_capacity(links.len());
        for (index, (block_range, &link)) in plan.block_ranges.iter().zip(links).enumerate() {
            let parts = plan.parts_of(index);
            headers.push(match block_range.logged {
                Logged::Nothing => Some(self.fill(block_range, link, parts)?),
                Logged::Open(_) => self.merge(block_range, link, parts)?,
            });
        }
        let epoch = self.epoch();
        for ((block_range, &link), header) in plan.block_ranges.iter().zip(links).zip(&headers) {
            *headers_tried += 1;
            let Some((delta, sum)) = *header else { continue };
            let header = Header {
                epoch,
                block: block_range.head,
                kind: Kind::Redo,
                class: block_range.class,
                offset: delta.offset,
                len: delta.len(),
                sum,
                after: None,
                proves: self.durable(),
            };
            let at = self.chunks.header_at(link.unit());
            let line = header.encode(self.checksum_seed, at);
            self.side.write(at, &line)?;
            let (check, meta) = (check_of(&line), self.meta(link));
            match block_range.logged {
                Logged::Nothing => {
                    meta.set(link, epoch, block_range.head, delta, check);
                    lane.state.add(check);
                }
                Logged::Open(_) => {
                    meta.set_delta(delta);
                    lane.state.replace(meta.check.swap(check, Ordering::Relaxed), check);
                }
            }
        }
        for (block_range, header) in plan.block_ranges.iter().zip(&headers) {
            if matches!(block_range.logged, Logged::Open(_)) && header.is_none_or(|(_, sum)| sum.is_none()) {
                lane.state.set_uncertain();
            }
        }
        Ok(())
    }

    /// Stores the bytes of a new entry: those of the parts, and what lies between them. Returns what its header says.
    fn fill<'a, 'b: 'a>(
        &self,
        block_range: &BlockRange,
        link: Link,
        mut parts: impl Iterator<Item = &'a Part<'b>>,
    ) -> Result<(Extent, Option<u64>)> {
        let at = self.chunks.bytes_at(link.unit());
        let Some(first) = parts.next() else { return Ok((Extent { offset: 0, end: 0 }, Some(sum_of(&[])))) };
        let rest: Vec<&Part<'_>> = parts.collect();
        let Some(last) = rest.last() else {
            self.side.write(at + u64::from(first.extent.offset), first.bytes)?;
            return Ok((first.extent, self.certifies().then(|| sum_of(first.bytes))));
        };
        let delta = first.extent.with(last.extent);
        let mut image = vec![0; delta.len() as usize];
        self.read_home(block_range, delta, &mut image)?;
        for part in std::iter::once(first).chain(rest) {
            let from = (part.extent.offset - delta.offset) as usize;
            image[from..from + part.bytes.len()].copy_from_slice(part.bytes);
        }
        self.side.write(at + u64::from(delta.offset), &image)?;
        Ok((delta, self.certifies().then(|| sum_of(&image))))
    }

    /// Stores parts into an entry that the open epoch has already, and what lies between them and its bytes. Returns
    /// what its header has to say now, or nothing if it can stay.
    fn merge<'a, 'b: 'a>(
        &self,
        block_range: &BlockRange,
        link: Link,
        parts: impl Iterator<Item = &'a Part<'b>>,
    ) -> Result<Option<(Extent, Option<u64>)>> {
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
            return Ok(Some((delta, Some(sum_of(&image)))));
        }
        Ok((delta != before).then_some((delta, None)))
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
    fn about_to_be_overwritten(&self, plan: &Plan<'_>) -> Result<Vec<Saved>> {
        let mut saved = Vec::new();
        for block_range in plan.block_ranges.iter().filter(|_| self.class == MediumClass::Block) {
            let Logged::Open(link) = block_range.logged else { continue };
            let delta = self.meta(link).delta();
            let mut bytes = vec![0; delta.len() as usize];
            self.side.read(self.chunks.bytes_at(link.unit()) + u64::from(delta.offset), &mut bytes)?;
            let mut header = [0; LINE as usize];
            self.side.read(self.chunks.header_at(link.unit()), &mut header)?;
            saved.push(Saved { link, delta, bytes, header });
        }
        Ok(saved)
    }

    /// Brings the log back to where it was before a write that failed. `links` are those of the first covers, whose
    /// headers were stored, or half stored.
    #[cold]
    fn take_back(&self, lane: &Lane<'_>, plan: &Plan<'_>, links: &[Link], saved: Vec<Saved>) -> Result<()> {
        for (block_range, &link) in plan.block_ranges.iter().zip(links) {
            if block_range.logged == Logged::Nothing {
                self.remove_header(self.chunks.header_at(link.unit()))?;
                let meta = self.meta(link);
                if meta.what().is_some() {
                    lane.state.remove(meta.check.load(Ordering::Relaxed));
                    meta.clear();
                }
            }
        }
        for Saved { link, delta, bytes, header } in saved {
            self.bring_back(self.chunks.bytes_at(link.unit()) + u64::from(delta.offset), &bytes)?;
            self.bring_back(self.chunks.header_at(link.unit()), &header)?;
            let meta = self.meta(link);
            meta.set_delta(delta);
            lane.state.replace(meta.check.swap(check_of(&header), Ordering::Relaxed), check_of(&header));
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
