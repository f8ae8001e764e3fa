//! Packing: an open epoch that takes much of the log has its changes moved to the spill file, so that it may be as
//! large as the disk allows.
//!
//! ```text
//!  pack, pack, change, change, change ─► pack, pack, pack
//!  └─ void from now on ─────────────┘    └─ at the head ─┘
//! ```
//!
//! # Invariants
//!
//! 1. A [pack](super::pack) has the last changes of an epoch, one after the other. The packs before are staged again in
//!    front of it. So the order of the changes stays what it was, and the epoch begins behind all places that it had
//!    before: a Commit that covers it covers none of these.
//! 2. A pack is one more change of its epoch: its Commit counts it, and makes its chunks durable as those of a spilled
//!    write. Both superblocks say that the log may have packs before the first of them is placed.
//! 3. The entries of the epoch from before are void once the pack is complete, as those of an epoch that is
//!    [staged again](super::restage). The drain is held until reads find the bytes in the chunks, so nobody stores over
//!    the entries before.
//! 4. Packing waits for no room in the log: it places entries that the epoch has claimed for its next copies. It takes
//!    place only if that gives more entries back than it takes.
//! 5. Packing that fails, as on a full disk, changes nothing.
//!
//! The bytes are copied under the lock of the epoch. That is the only wait for a disk under it.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use super::drain::Item;
use super::epoch::Epoch;
use super::file::{Managed, exclusive};
use super::format::Kind;
use super::overlay::{Place, pages};
use super::pack::{RECORD, record};
use super::restage::Moved;
use super::ring::Operation;
use super::spill::Spilled;
use super::{Cache, locked};
use crate::error::Result;
use crate::storage::Medium;

/// Bytes that are written to the spill file at once, at least.
const STEP: u64 = 1 << 20;

/// The place of a packed change: which pack, and where in it its bytes begin.
#[derive(Clone, Copy)]
struct Within {
    pack: usize,
    start: u64,
}

/// The bytes that follow the record of a change.
fn data_len(item: &Item) -> u64 {
    match (&item.spilled, item.operation.kind) {
        (Some(spilled), _) => spilled.data_len(),
        (None, Kind::StagedLen) => 0,
        (None, _) => item.len,
    }
}

/// How many packs of this capacity changes take.
fn packs_of(items: &[Item], capacity: u64) -> u64 {
    let (mut packs, mut room) = (0, 0);
    for item in items {
        let len = RECORD + data_len(item);
        if len > room {
            (packs, room) = (packs + 1, capacity);
        }
        room = room.saturating_sub(len);
    }
    packs
}

fn parts(items: &[Item]) -> u64 {
    items.iter().map(|item| item.parts).sum()
}

impl Epoch {
    /// How many packs it begins with.
    fn packs(&self) -> usize {
        self.items.iter().take_while(|item| item.operation.kind == Kind::StagedPack).count()
    }

    /// Entries of changes that are not in a pack.
    pub(super) fn unpacked(&self) -> u64 {
        parts(&self.items[self.packs()..])
    }

    /// The first change that is to be packed, if that makes room. Packs are packed too where they are most of it, so
    /// that there are never many.
    fn first_to_pack(&self, capacity: u64) -> Option<usize> {
        let packs = self.packs();
        let both = if packs as u64 >= self.unpacked() { [0, packs] } else { [packs, 0] };
        both.into_iter().find(|&from| {
            let items = &self.items[from..];
            let after = packs_of(items, capacity);
            parts(items) > 2 * after && self.reserved > parts(&self.items[..from]) + after
        })
    }

    /// So many entries became others, and the copies of `again` were made; all were claimed. How many claims are given
    /// back now. Others are when the tail passes the copies before.
    fn gives_back(&mut self, again: &[Moved], before: u64, after: u64) -> u64 {
        let copies = again.iter().map(|moved| moved.item.positions());
        self.reserved -= copies.clone().map(|range| range.end - range.start).sum::<u64>() + after;
        self.owed.extend(copies);
        let mut spare = before - 2 * after;
        let now = spare.min(self.reserved - 1);
        self.reserved -= now;
        spare -= now;
        while let Some(range) = self.owed.back_mut().filter(|_| spare > 0) {
            let cut = spare.min(range.end - range.start);
            range.end -= cut;
            spare -= cut;
            if range.is_empty() {
                self.owed.pop_back();
            }
        }
        now
    }
}

/// Writes packs to the spill file, one after the other.
struct Packer<'a, M: Medium> {
    cache: &'a Cache<M>,
    capacity: u64,
    /// Bytes of the last pack that are not in the spill file yet.
    buffer: Vec<u8>,
    packs: Vec<Spilled>,
}

impl<M: Medium> Packer<'_, M> {
    /// Adds a change; where its bytes are.
    fn add(&mut self, item: &Item, data: &[u8]) -> Result<Within> {
        let (Operation { kind, value, .. }, len) = (item.operation, RECORD + data.len() as u64);
        if self.packs.last().is_none_or(|last| last.len + self.buffer.len() as u64 + len > self.capacity) {
            self.flush(true)?;
            self.packs.push(Spilled::empty(self.cache.spill.chunk()));
        }
        self.buffer.extend(record(kind, value, data.len() as u64));
        let start = self.packs.last().map_or(0, |last| last.len) + self.buffer.len() as u64;
        self.buffer.extend(data);
        self.flush(false)?;
        Ok(Within { pack: self.packs.len() - 1, start })
    }

    /// Writes what fills many chunks; `all`: everything, for the pack is complete.
    fn flush(&mut self, all: bool) -> Result<()> {
        let chunk = self.cache.spill.chunk() as usize;
        let len = if all { self.buffer.len() } else { self.buffer.len() / chunk * chunk };
        if let Some(last) = self.packs.last_mut()
            && len > 0
            && (all || len as u64 >= STEP)
        {
            last.append(self.cache.spill_out(&self.buffer[..len])?);
            self.buffer.drain(..len);
        }
        Ok(())
    }

    /// The written bytes are not needed.
    fn give_up(self) {
        self.cache.spill.drop_chunks(self.packs.into_iter().map(Arc::new));
    }
}

impl<M: Medium> Cache<M> {
    /// Packs an epoch whose file is about to claim entries, if open epochs have most of the log and this one a good
    /// part of it. A failure is no matter while the log has room.
    pub(super) fn relieve(&self, file: &Managed, epoch: &Mutex<Epoch>, claims: u64) {
        let most = self.ring.for_writers();
        if self.open_claims.load(Ordering::Acquire) + claims <= most - most / 4 {
            return;
        }
        let is_worth_it = {
            let epoch = locked(epoch);
            !epoch.unpackable && epoch.unpacked() >= most / 16
        };
        if is_worth_it && let Err(error) = self.pack(file, epoch) {
            let path = file.path();
            tracing::warn!(path = %path.display(), %error, "cannot move uncommitted changes out of the log");
            locked(epoch).unpackable = true;
        }
    }

    /// Packs whatever open epochs have. False if that makes no room.
    pub(super) fn pack_all(&self) -> Result<bool> {
        let files = locked(&self.registry).all();
        let mut any = false;
        for file in files {
            if let Some(epoch) = &file.epoch {
                any |= self.pack(&file, epoch)?;
            }
        }
        Ok(any)
    }

    /// Packs the last changes of an open epoch. False if that makes no room.
    ///
    /// # Errors
    /// Those of the spill file, and of the log.
    fn pack(&self, file: &Managed, epoch: &Mutex<Epoch>) -> Result<bool> {
        let capacity = self.spill.capacity(self.ring.geometry.entry);
        if file.has_failed() || locked(epoch).first_to_pack(capacity).is_none() {
            return Ok(false);
        }
        self.allow_packs()?;
        let mut drain = self.drain.hold();
        self.handle_state.writable()?;
        // It may have been committed meanwhile, and forgotten.
        let found = locked(&self.registry).of(file.uid.load(Ordering::Acquire));
        let Some(whose) = found.filter(|found| std::ptr::eq(&**found, file)) else { return Ok(false) };
        let mut epoch = locked(epoch);
        let Some(from) = epoch.first_to_pack(capacity).filter(|_| !file.has_failed()) else { return Ok(false) };
        let mut packer = Packer { cache: self, capacity, buffer: Vec::new(), packs: Vec::new() };
        let copied = self.copy_out(&mut packer, &epoch.items[from..]);
        let within = match copied.and_then(|within| packer.flush(true).map(|()| within)) {
            Ok(within) => within,
            Err(error) => {
                packer.give_up();
                return Err(error);
            }
        };
        let first = epoch.items[0].position;
        let old = epoch.items.split_off(from);
        let again = self.copy_to_head(&mut epoch.items)?;
        let packs: Vec<Item> = packer.packs.into_iter().map(|pack| self.packed(&old[0], pack)).collect();
        for item in &packs {
            let data = item.spilled.as_ref().map(|pack| pack.encode()).unwrap_or_default();
            self.ring.put(item.position, item.order, item.operation, &data).map_err(|error| self.poison(error))?;
        }
        self.ring.medium.order();
        for (number, item) in packs.iter().enumerate() {
            let own = old.iter().zip(&within).filter(|(_, within)| within.pack == number);
            if let Some(pack) = &item.spilled {
                self.spill.put_into(pack, own.filter_map(|(old, _)| old.spilled.as_ref()));
            }
            self.ring.complete(item.position, item.parts);
            file.last.fetch_max(item.position + item.parts, Ordering::AcqRel);
        }
        again.iter().for_each(|moved| self.ring.complete(moved.to, moved.item.parts));
        let void = again.iter().map(|moved| &moved.item).chain(&old);
        void.for_each(|item| self.ring.shared_state().void(item.position, item.parts));
        drain.release(old[0].operation.uid, first);
        drain.restaged.push(whose);
        let (before, after) = (parts(&old), packs.len() as u64);
        let spare = epoch.gives_back(&again, before, after);
        epoch.items.extend(packs.iter().cloned());
        self.open_claims.fetch_sub(2 * (before - after), Ordering::AcqRel);
        self.ring.unclaim(spare);
        drop(epoch);
        self.show_again(file, &again);
        self.show_packed(file, &old, &within, &packs);
        Ok(true)
    }

    /// A pack with its place in the log, which the epoch of this change has claimed.
    fn packed(&self, like: &Item, pack: Spilled) -> Item {
        let position = self.ring.place(1);
        let operation = Operation { kind: Kind::StagedPack, value: 0, ..like.operation };
        let (len, spilled) = (pack.len, Some(Arc::new(pack)));
        Item { position, order: position, parts: 1, operation, len, spilled }
    }

    /// Writes changes to the spill file, and tells where each is.
    fn copy_out(&self, packer: &mut Packer<'_, M>, items: &[Item]) -> Result<Vec<Within>> {
        let (mut data, mut all) = (Vec::new(), Vec::new());
        let mut within = Vec::with_capacity(items.len());
        for item in items {
            all.clear();
            for position in item.positions() {
                self.ring.entry(position, &mut data).map_err(|error| self.poison(error))?;
                all.append(&mut data);
            }
            within.push(packer.add(item, &all)?);
        }
        Ok(within)
    }

    /// Has reads find packed changes where they are now. The drain is held, so nobody stores over the entries before.
    fn show_packed(&self, file: &Managed, old: &[Item], within: &[Within], packs: &[Item]) {
        let all = || old.iter().zip(within).filter_map(|(item, within)| Some((item, within, packs.get(within.pack)?)));
        let moved: HashMap<u64, u64> = all()
            .filter(|(item, ..)| matches!(item.operation.kind, Kind::StagedLen | Kind::StagedPack))
            .map(|(item, _, pack)| (item.position, pack.position))
            .collect();
        exclusive(&file.length).relocate(|position| moved.get(&position).copied());
        for (item, within, pack) in all().filter(|(item, ..)| item.operation.kind == Kind::StagedWrite) {
            let Some(pack) = &pack.spilled else { continue };
            let chunk = pack.chunk();
            let place = |done: u64| {
                let at = within.start + done;
                Place { position: pack.position(at), from: (at % chunk) as u32, most: chunk - at % chunk }
            };
            let entry = u64::from(self.ring.geometry.entry);
            file.overlay.relocate_bytes(pages(item.operation.value, item.len), &item.positions(), entry, place);
        }
    }
}
