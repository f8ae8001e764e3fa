//! Draining brings entries from the log to the files. The drain *delivers* entries to the kernel in order, many at a
//! time, and *settles* them once their files are synced. Only then does the tail pass them, durably, and only then are
//! they free.
//!
//! Entries of a failed file stay as they are. If they are in the way of others, they are written again at the head,
//! with their old place in the order, so that a replay finds them as before.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use untorn_ring::SharedState;

use super::file::{Managed, shared};
use super::format::{self, Kind};
use super::overlay::pages;
use super::ring::Operation;
use super::spill::{Chunks, Spilled};
use super::{Cache, barriers, locked};
use crate::error::{Error, Result};
use crate::storage::Medium;

/// An operation on its way.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) position: u64,
    pub(super) order: u64,
    pub(super) parts: u64,
    pub(super) operation: Operation,
    pub(super) len: u64,
    /// The place of the bytes, if they are not in the log.
    pub(super) spilled: Option<Arc<Spilled>>,
}

impl Item {
    pub(super) fn positions(&self) -> std::ops::Range<u64> {
        self.position..self.position + self.parts
    }
}

/// How far draining is. One thread drains at a time.
#[derive(Default)]
pub(super) struct Drain {
    /// Every entry before is in the kernel, but for those that are stuck.
    delivered: u64,
    /// Delivered, and not settled.
    pending: Vec<Item>,
    /// Of files that failed, in order of their positions.
    stuck: Vec<Item>,
    /// Staged changes that wait for their Commit, by file: each file's in order, and of one epoch.
    pub(super) held: BTreeMap<u64, Vec<Item>>,
    /// Files with copies of staged changes that the tail has not passed and nobody needs.
    pub(super) restaged: Vec<Arc<Managed>>,
    /// Something was in the way of the tail when the last batch was settled.
    pub(super) held_up: bool,
    /// Files to sync.
    dirty: BTreeMap<u64, Arc<Managed>>,
    /// How often the tail was written.
    tails: u64,
}

impl Drain {
    /// Entries of files that failed.
    pub(super) fn stuck(&self) -> u64 {
        self.stuck.iter().map(|item| item.parts).sum()
    }

    /// Those of them that this process placed.
    fn stuck_of_writers(&self, shared_state: &SharedState<'_>) -> u64 {
        self.stuck.iter().filter(|item| !shared_state.is_beside(item.position)).map(|item| item.parts).sum()
    }
}

impl<M: Medium> Cache<M> {
    /// Claims entries, draining where there is no room. False if there will be none, for entries of files that failed
    /// have it.
    pub(super) fn claim(&self, entries: u64) -> Result<bool> {
        let most = self.ring.for_writers();
        if self.ring.claim(entries, most) {
            return Ok(true);
        }
        let mut round = 0;
        loop {
            // Before it is looked for room: a drain that ends later may free some.
            let ends = self.drain.ends();
            if self.ring.claim(entries, most) {
                return Ok(true);
            }
            self.handle_state.writable()?;
            let Some(mut drain) = self.drain.try_hold() else {
                // Somebody else drains. As soon as that sync is done there may be room; the next one, to which the
                // drain's own thread goes on at once, is not to be waited for.
                self.drain.await_end(ends);
                continue;
            };
            if self.ring.claim(entries, most) {
                return Ok(true);
            }
            // As much as a batch at least: who has waited for one sync need not wait for the next at once.
            self.deliver(&mut drain, u64::MAX, self.settings.batch_max)?;
            self.settle(&mut drain, false)?;
            if self.ring.claim(entries, most) {
                return Ok(true);
            }
            if !drain.stuck.is_empty() || !drain.held.is_empty() {
                self.settle(&mut drain, true)?;
                if self.ring.claim(entries, most) {
                    return Ok(true);
                }
                // What was moved is passed over, all of it, however much that is: else it would be moved on and on.
                self.deliver(&mut drain, u64::MAX, u64::MAX)?;
                // Nothing that can be drained makes room for it.
                let open = self.open_claims.load(Ordering::Acquire);
                if drain.stuck_of_writers(&self.ring.shared_state()) + open + entries > most {
                    return Ok(false);
                }
            }
            drop(drain);
            // Another thread's entries are not complete yet, or those of a process, which may have died.
            self.mend_all()?;
            self.ring.medium.relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Returns when no drain is under way.
    pub(super) fn await_drain(&self) {
        drop(self.drain.hold());
    }

    /// Drains a batch, if there is one.
    pub(crate) fn drain_some(&self) -> Result<()> {
        let mut drain = self.drain.hold();
        self.handle_state.writable()?;
        let advanced = self.deliver(&mut drain, u64::MAX, self.settings.batch_max)?;
        self.settle(&mut drain, false)?;
        drop(drain);
        if advanced { Ok(()) } else { self.mend_all() }
    }

    /// Drains all that is in the log now.
    pub(crate) fn drain_all(&self) -> Result<()> {
        self.handle_state.writable()?;
        self.drain_to(self.ring.head())?;
        let files = locked(&self.registry).all();
        if files.is_empty() {
            self.wipe_settled();
        }
        files.iter().try_for_each(|file| file.check_usable())
    }

    /// Drains all that the log has of a file, whose gate the caller holds.
    pub(super) fn drain_file(&self, file: &Managed) -> Result<()> {
        file.check_usable()?;
        self.drain_to(self.last(file))?;
        if file.new.load(Ordering::Acquire) {
            // It has a number, and the log never had anything of it. What comes now the log will not have.
            self.sync_file(file)?;
        }
        file.check_usable()
    }

    pub(super) fn drain_to(&self, position: u64) -> Result<()> {
        let mut round = 0;
        while self.ring.tail() < position {
            let mut drain = self.drain.hold();
            self.handle_state.writable()?;
            let advanced = self.deliver(&mut drain, position, self.settings.batch_max)?;
            let stuck = drain.stuck.first().map(|item| item.position);
            let in_the_way = stuck.into_iter().chain(drain.first_held()).any(|first| first < position);
            let all = in_the_way && drain.delivered >= position;
            if all && !drain.held.is_empty() {
                // Changes that are held back may have their Commit beyond.
                self.deliver(&mut drain, u64::MAX, u64::MAX)?;
            }
            self.settle(&mut drain, all)?;
            drop(drain);
            if !advanced {
                self.mend_all()?;
                self.ring.medium.relax(round);
                round = round.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Hands all that the log has of a file to the kernel, where other programs see it, without waiting for the device.
    pub(crate) fn write_to_kernel(&self, file: &Managed) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        if file.write_through {
            return Ok(());
        }
        self.deliver_up_to(file.last.load(Ordering::Acquire))?;
        file.check_usable()
    }

    /// Hands all that the log has before a position to the kernel.
    pub(super) fn deliver_up_to(&self, position: u64) -> Result<()> {
        let mut round = 0;
        loop {
            let mut drain = self.drain.hold();
            self.handle_state.writable()?;
            if drain.delivered >= position {
                break;
            }
            let advanced = self.deliver(&mut drain, position, u64::MAX)?;
            drop(drain);
            if !advanced {
                self.ring.medium.relax(round);
                round = round.saturating_add(1);
            }
        }
        Ok(())
    }

    /// Flushes a file on its own device, with its name if that is not known to be durable.
    pub(crate) fn sync_file(&self, file: &Managed) -> Result<()> {
        self.handle_state.writable()?;
        // Nothing is settled meanwhile: of a page that did not get to the device the kernel tells the first who asks,
        // and to a drain that asks next it would say that all is well, and what it had delivered would be freed.
        let _drain = self.drain.hold();
        file.check_usable()?;
        file.slow.sync(barriers::FILE).inspect_err(|error| self.fail(file, error))?;
        self.name_new(std::iter::once(file))?;
        file.check_usable()
    }

    /// Gives the kernel what is complete before a position, so many entries at most. False if there was nothing.
    fn deliver(&self, drain: &mut Drain, upto: u64, most: u64) -> Result<bool> {
        let ring = &self.ring;
        let (start, end) = (drain.delivered, upto.min(ring.head()));
        let mut at = start;
        let mut items = Vec::new();
        let mut data = Vec::new();
        while at < end && at - start < most && ring.is_complete(at) {
            if ring.shared_state().is_void(at) {
                at += 1;
                continue;
            }
            let first = ring.entry(at, &mut data).map_err(|error| self.poison(error))?;
            let parts = u64::from(first.parts);
            let operation = Operation { uid: first.uid, kind: first.kind, value: first.value, time: first.time };
            let mut len = u64::from(first.len);
            for position in at + 1..at + parts {
                let entry = ring.entry(position, &mut data).map_err(|error| self.poison(error))?;
                len += u64::from(entry.len);
            }
            let spilled = match first.kind {
                Kind::StagedSpill | Kind::StagedPack => {
                    let spilled = Spilled::decode(&data).ok_or_else(|| self.poison(ring.odd(at)))?;
                    len = spilled.len;
                    Some(Arc::new(spilled))
                }
                _ => None,
            };
            // Certified, but by whoever has the log in its memory.
            if first.part != 0 || first.value.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
                return Err(self.poison(ring.odd(at)));
            }
            items.push(Item { position: at, order: first.order, parts, operation, len, spilled });
            at += parts;
        }
        if at == start {
            return Ok(false);
        }
        let mut by_file: BTreeMap<u64, (Arc<Managed>, Vec<Item>)> = BTreeMap::new();
        let mut closes = false;
        for item in items {
            let (uid, kind) = (item.operation.uid, item.operation.kind);
            if kind.is_of_epochs() && item.order != item.position {
                // The entry of a failed file was moved out of the way with its whole epoch: it is known to be stuck.
                continue;
            }
            if kind.is_staged() {
                drain.held.entry(uid).or_default().push(item);
                continue;
            }
            let is_commit = kind == Kind::Commit;
            closes |= is_commit;
            let covered = if is_commit { self.covered(drain, &item)? } else { Vec::new() };
            let (_, items) = match by_file.entry(uid) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(new) => new.insert((self.file_of(uid)?, Vec::new())),
            };
            items.extend(covered);
            items.push(item);
        }
        let is_later = |file: &Managed| !file.write_through && file.epoch.is_none();
        // What reaches the file by halves must be whole in the log.
        if closes && self.durable_commits.load(Ordering::Acquire) < self.commits.load(Ordering::Acquire) {
            self.flush_commits(barriers::EPOCH)?;
        } else if !ring.is_per_write() && by_file.values().any(|(file, _)| is_later(file)) {
            ring.persist(barriers::AHEAD).map_err(|error| self.poison(error))?;
        }
        for (uid, (file, items)) in by_file {
            // What is written through was with the kernel before it was complete.
            let done = file.has_failed() || file.write_through;
            // Asked before the line says that own stores are under way: from that a replay would conclude nothing.
            let deliver = || {
                file.slow.check_unchanged()?;
                self.record_commits(&file, &items)?;
                self.storing(&file, || self.deliver_to(&file, &items))
            };
            let delivered = if done { Ok(()) } else { deliver() };
            if let Err(error) = delivered {
                self.fail(&file, &error);
            }
            if file.has_failed() {
                let known = |item: &Item| drain.stuck.iter().any(|other| other.position == item.position);
                let new: Vec<Item> = items.into_iter().filter(|item| !known(item)).collect();
                drain.stuck.extend(new);
                continue;
            }
            drain.pending.extend(items);
            drain.dirty.insert(uid, file);
        }
        drain.delivered = at;
        Ok(true)
    }

    pub(super) fn file_of(&self, uid: u64) -> Result<Arc<Managed>> {
        let found = locked(&self.registry).of(uid);
        found.ok_or_else(|| {
            let what = format!("a log entry names file number {uid}, which is not open");
            let path = self.handle_state.path().to_owned();
            self.poison(Error::Corrupt { path, offset: None, what })
        })
    }

    /// Syncs what was delivered, and frees it. With `all`, also what is stuck is moved out of the way.
    fn settle(&self, drain: &mut Drain, all: bool) -> Result<()> {
        let dirty = std::mem::take(&mut drain.dirty);
        self.sync_or_miss(dirty.values().filter(|file| !file.has_failed()))?;
        dirty.values().for_each(|file| self.stand(file));
        let has_failed = |item: &Item| dirty.get(&item.operation.uid).is_some_and(|file| file.has_failed());
        let (failed, settled): (Vec<Item>, Vec<Item>) = drain.pending.drain(..).partition(has_failed);
        drain.stuck.extend(failed);
        drain.stuck.sort_by_key(|item| item.position);
        // The overlay goes before any tail passes its entries, which others then write over, and after the files have
        // what it shows.
        let mut packed: BTreeMap<u64, Chunks> = BTreeMap::new();
        for item in &settled {
            if let Some(file) = dirty.get(&item.operation.uid).filter(|file| !file.write_through) {
                match item.operation.kind {
                    Kind::StagedPack => {
                        file.forget_changes(item.position + 1);
                        if let Some(pack) = &item.spilled {
                            self.spill.add_chunks(pack, packed.entry(item.operation.uid).or_default());
                        }
                    }
                    Kind::Write | Kind::StagedWrite | Kind::StagedSpill => {
                        file.forget_changes(item.position);
                        let (pages, positions) = (pages(item.operation.value, item.len), item.positions());
                        match &item.spilled {
                            None => file.overlay.remove(pages, |position| positions.contains(&position)),
                            Some(spilled) => file.overlay.remove(pages, |position| spilled.has(position)),
                        }
                    }
                    Kind::SetLen | Kind::StagedLen => file.forget_changes(item.position + 1),
                    Kind::Move | Kind::Commit => {}
                }
            }
        }
        for (uid, chunks) in packed {
            if let Some(file) = dirty.get(&uid) {
                file.overlay.remove_all(|position| chunks.has(position));
            }
        }
        self.spill.settle(&settled);
        let delivered = drain.delivered;
        if all {
            self.restage(drain, delivered)?;
            self.move_stuck(drain, delivered)?;
        }
        let stuck = drain.stuck.first().map(|item| item.position);
        let tail = stuck.into_iter().chain(drain.first_held()).fold(delivered, u64::min);
        self.pass(drain, tail)?;
        self.ring.shared_state().settle(delivered);
        let mut done: Vec<Arc<Managed>> = dirty.into_values().collect();
        let held_up = !drain.stuck.is_empty() || !drain.held.is_empty();
        if std::mem::replace(&mut drain.held_up, held_up) {
            // What had entries behind those of another file could not be forgotten when it was drained.
            done = locked(&self.registry).all();
        }
        for file in done.iter().filter(|file| file.handles.load(Ordering::Acquire) == 0) {
            self.see_off(file);
        }
        let mut registry = locked(&self.registry);
        for file in &done {
            self.forget_if_done(&mut registry, file);
        }
        Ok(())
    }

    /// Makes files durable, each by its own sync, or, if it was removed, by that of its directory: then no crash
    /// brings it back, and nobody misses what it had.
    fn sync_or_miss<'a>(&self, files: impl Iterator<Item = &'a Arc<Managed>>) -> Result<()> {
        // All are asked before the first directory is synced: what is removed later that sync does not make durable.
        let (removed, there): (Vec<_>, Vec<_>) = files.partition(|file| self.was_removed(file));
        if there.len() > 1 {
            there.iter().for_each(|file| file.slow.begin_sync());
        }
        for file in &there {
            if let Err(error) = file.slow.sync(barriers::FILE) {
                self.fail(file, &error);
            }
        }
        let sound = || there.iter().map(|file| &***file).filter(|file| !file.has_failed());
        self.name_new(sound())?;
        self.name_moved(sound());
        for file in self.sync_dirs_of(removed.iter().map(|file| &***file), |_| barriers::REMOVED) {
            file.gone.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Whether a file was removed, after the log had noted that it might be, from a directory that is where it was
    /// then.
    fn was_removed(&self, file: &Managed) -> bool {
        let parents = shared(&file.names).parents;
        file.leaving.load(Ordering::Acquire)
            && file.slow.is_removed().unwrap_or(false)
            && self.place.directory(&file.dir()).is_ok_and(|found| found.is_some_and(|dir| dir.inode == parents[0]))
    }

    /// Moves the tail, durably, and frees what it passes.
    fn pass(&self, drain: &mut Drain, tail: u64) -> Result<()> {
        let ring = &self.ring;
        if tail == ring.tail() {
            return Ok(());
        }
        drain.tails += 1;
        let put = |copy: u64| format::write_tail(&ring.file, ring.checksum_seed, copy as usize, tail);
        // As for a line of the file table: the first must be whole before the second, which is durable some time later.
        put(drain.tails % 2)
            .and_then(|()| ring.persist(barriers::TAIL))
            .and_then(|()| put(1 - drain.tails % 2))
            .map_err(|error| self.poison(error))?;
        ring.medium.order();
        ring.free(tail, drain.passed(tail));
        self.spill.passed(tail);
        Ok(())
    }

    /// Writes the entries of failed files before a position again, at the head.
    fn move_stuck(&self, drain: &mut Drain, before: u64) -> Result<()> {
        let mut data = Vec::new();
        let held = drain.first_held().unwrap_or(u64::MAX);
        while let Some(item) = drain.stuck.first().filter(|item| item.position < before.min(held)).cloned() {
            self.pass(drain, item.position)?;
            // Writers leave as much room as the longest operation takes. It is the only one that has positions twice,
            // for the tail has passed those of the one before.
            let shared_state = self.ring.shared_state();
            let beside = shared_state.is_beside(item.position);
            if !beside && !self.ring.claim(item.parts, self.ring.for_all()) {
                return Ok(());
            }
            let first = if beside { shared_state.place_again(item.parts) } else { self.ring.place(item.parts) };
            let mut all = Vec::new();
            for position in item.positions() {
                self.ring.entry(position, &mut data).map_err(|error| self.poison(error))?;
                all.append(&mut data);
            }
            let operation = item.operation;
            self.ring
                .put(first, item.order, operation, &all)
                .and_then(|()| self.ring.persist(barriers::MOVED))
                .map_err(|error| self.poison(error))?;
            // A writer of a file that is written through waits for the drain, and holds stripes.
            if let Some(file) = locked(&self.registry).of(operation.uid).filter(|file| !file.write_through)
                && operation.kind.is_write()
            {
                file.overlay.relocate(pages(operation.value, item.len), &item.positions(), first);
            }
            drain.stuck.remove(0);
            if beside {
                shared_state.complete_beside(first, item.parts);
            } else {
                self.ring.complete(first, item.parts);
            }
            drain.stuck.push(Item { position: first, ..item });
        }
        Ok(())
    }
}
