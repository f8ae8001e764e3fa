//! Atomic files: a second rule for when changes count. The changes of an atomic file are *staged*: together they are
//! the file's *open epoch*, which a *commit* closes. After a crash the file has its last commit, whole.
//!
//! ```text
//!  write ─► staged in the log, over the pages ─┐
//!  write ─► staged in the log, over the pages ─┤ held back by the drain
//!                                              ▼
//!  commit ─► one entry: first change, how many ─► one flush ─► the drain delivers the epoch, whole ─► the tail passes
//! ```
//!
//! # Invariants
//!
//! 1. The changes of an open epoch, and its Commit, are placed, stored and complete under the lock of the epoch. So a
//!    Commit covers exactly the changes that the log has before it, and all of them are in the log when it is.
//! 2. The Commit says with which change its epoch begins and how many it has. Entries certify themselves. So changes
//!    and Commit need no order between them, and one flush makes an epoch durable. A Commit also names the file's
//!    Commit before it: one that a crash took lets no later one count ([`commits`](super::commits)).
//! 3. The drain holds staged changes back until it meets their Commit, makes it durable, and only then delivers all of
//!    the epoch ([`restage`](super::restage)). Before its Commit the tail passes no change of an epoch. So if the
//!    durable tail is beyond the first change of an epoch that has a Commit, that Commit is durable, and the epoch
//!    whole.
//! 4. An open epoch does not stop the tail: all its changes are staged again, at the head. From then on the epoch
//!    begins there, and the copies before are *void*, because no Commit will ever name them.
//!    An epoch that takes much of the log is [packed](super::packing): the same, with its bytes in the spill file.
//! 5. A staged change claims its entries twice, and the first one claims an entry for the Commit. So staging again and
//!    committing never wait for room. Once the copies before are void, their claims stay with the epoch until the tail
//!    passes them, and are then good for the next time.
//! 6. A change that fails, for want of room above all, refuses the whole epoch: every commit fails, until the epoch is
//!    abandoned or the last handle is dropped. So a commit never lacks a change that the program made.
//! 7. Of a failed file nothing is dropped or committed any more.
//!
//! The lock of an epoch comes after the file's stripes and after the drain. Nothing is waited for under it.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use rustix::io::Errno;

use super::commits::Commit;
use super::drain::Item;
use super::file::{At, Claim, Managed, exclusive, shared};
use super::format::{Kind, Superblock};
use super::overlay::pages;
use super::ring::Operation;
use super::spill::Spilled;
use super::stream::Numbers;
use super::{Cache, barriers, locked};
use crate::error::{Error, Result};
use crate::format::dual_copy::DualCopy;
use crate::storage::{Barrier, Medium};

/// The open epoch of an atomic file.
#[derive(Default)]
pub(super) struct Epoch {
    /// Its changes, in order; their places are those of the last copies.
    pub(super) items: Vec<Item>,
    /// Entries that it has claimed and not placed: for the next copies, and one for the Commit.
    pub(super) reserved: u64,
    /// Copies before that the tail has not passed: their claims are for the next copies.
    pub(super) owed: VecDeque<Range<u64>>,
    /// The errno of a change that failed, so that the epoch lacks it.
    refused: Option<i32>,
    /// The place of the file's last Commit.
    committed: Option<u64>,
    /// The number of the file's last Commit or rename among all of the session.
    number: u64,
    /// The last handle is gone, and the epoch with it.
    closing: bool,
    /// It could not be packed.
    pub(super) unpackable: bool,
    /// The numbers of its commits, if the file has a [commit log](super::stream).
    pub(super) numbers: Option<Numbers>,
}

/// A write that is to be staged.
struct Write<'a> {
    uid: u64,
    at: At,
    src: &'a [u8],
    spilled: Option<Arc<Spilled>>,
}

/// A change that is to be staged.
struct Staged<'a> {
    operation: Operation,
    /// The places of its entries.
    data: &'a [u8],
    /// Bytes that it writes.
    len: u64,
    spilled: Option<Arc<Spilled>>,
}

impl Epoch {
    /// The entries of its last copies.
    pub(super) fn parts(&self) -> u64 {
        self.items.iter().map(|item| item.parts).sum()
    }

    /// The tail has passed everything below: how many claims stay with the epoch.
    pub(super) fn passed(&mut self, tail: u64) -> u64 {
        let mut kept = 0;
        while let Some(range) = self.owed.front_mut().filter(|range| range.start < tail) {
            let end = range.end.min(tail);
            kept += end - range.start;
            range.start = end;
            if range.is_empty() {
                self.owed.pop_front();
            }
        }
        self.reserved += kept;
        kept
    }
}

/// The error of an epoch that lacks a change.
fn refusal(file: &Managed, errno: i32) -> Error {
    let source = std::io::Error::from_raw_os_error(errno);
    Error::io("find room in the log for the uncommitted changes of", &file.path(), source)
}

/// A change failed: the epoch lacks it.
fn refuse(epoch: &Mutex<Epoch>, error: &Error) {
    locked(epoch).refused.get_or_insert(error.errno());
}

impl Managed {
    /// The open epoch, if the file has one and takes changes in epochs.
    pub(super) fn open_epoch(&self) -> Option<&Mutex<Epoch>> {
        self.epoch.as_ref().filter(|_| !self.is_demoted())
    }

    /// Whether there are changes that no commit covers.
    pub(crate) fn has_open_epoch(&self) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| !locked(epoch).items.is_empty())
    }

    /// # Errors
    /// While the file has an open epoch, which must be closed before this is done.
    pub(super) fn check_closed(&self, what: &str) -> Result<()> {
        match self.has_open_epoch() {
            true => {
                let what = format!("the file has uncommitted changes; commit or abandon them to {what}");
                Err(Error::Invalid { path: self.path().to_path_buf(), what })
            }
            false => Ok(()),
        }
    }

    /// Whether the log has a commit of the file.
    pub(super) fn has_commit(&self) -> bool {
        self.epoch.as_ref().is_some_and(|epoch| locked(epoch).committed.is_some())
    }
}

impl<M: Medium> Cache<M> {
    /// Has the superblock say that the log may have epochs, before it does.
    pub(super) fn allow_epochs(&self) -> Result<()> {
        self.allow(|superblock| &mut superblock.epochs)
    }

    /// The same for packs.
    pub(super) fn allow_packs(&self) -> Result<()> {
        self.allow(|superblock| &mut superblock.packs)
    }

    /// The same for numbered Commits.
    pub(super) fn allow_numbered(&self) -> Result<()> {
        self.allow(|superblock| &mut superblock.numbered)
    }

    fn allow(&self, of: impl Fn(&mut Superblock) -> &mut bool) -> Result<()> {
        let mut superblock = locked(&self.superblock);
        if std::mem::replace(of(&mut superblock), true) {
            return Ok(());
        }
        // One copy is whole at any time: the session began with one of which nothing made sure yet. The second copy is
        // durable with the first Commit, at the latest, and what is staged before that counts for nobody.
        let file = &self.ring.file;
        self.ring
            .persist(barriers::EPOCHS)
            .and_then(|()| superblock.write(file))
            .and_then(|()| self.ring.persist(barriers::EPOCHS))
            .and_then(|()| superblock.write(file))
            .map_err(|error| self.poison(error))?;
        self.ring.medium.order();
        Ok(())
    }

    /// Claims the entries of a staged change twice, and one for the Commit.
    /// Open epochs are packed for that. `None` if there is no room all the same.
    fn claim_staged(&self, file: &Managed, epoch: &Mutex<Epoch>, parts: u64) -> Result<Option<Claim<'_, M>>> {
        let refused = locked(epoch).refused;
        if let Some(errno) = refused {
            return Err(refusal(file, errno));
        }
        let claims = 2 * parts + 1;
        self.relieve(file, epoch, claims);
        loop {
            if self.claim(claims)? {
                return Ok(Some(Claim::new(self, claims)));
            }
            if !self.pack_all().inspect_err(|error| refuse(epoch, error))? {
                return Ok(None);
            }
        }
    }

    /// The log has no room for a change, and the disk none for what would make some.
    fn refuse_for_room(file: &Managed, epoch: &Mutex<Epoch>) -> Error {
        let error = refusal(file, Errno::NOSPC.raw_os_error());
        refuse(epoch, &error);
        error
    }

    /// The number for the entries of a file that is about to be changed.
    fn number_staged(&self, file: &Managed, epoch: &Mutex<Epoch>) -> Result<u64> {
        self.number(file).inspect_err(|error| refuse(epoch, error))
    }

    /// Stages a part of `src`, as much as one operation takes, and returns where and how much. Seen when this returns,
    /// and durable with the next commit.
    pub(super) fn write_staged(
        &self,
        file: &Managed,
        epoch: &Mutex<Epoch>,
        at: At,
        src: &[u8],
    ) -> Result<Option<(u64, usize)>> {
        let geometry = self.ring.geometry;
        // So that even an empty log of the least size has room for it twice.
        let most = geometry.most().min((self.ring.for_writers() - 1) / 2) * u64::from(geometry.entry);
        let mut takes = self.spill.takes(src.len(), geometry.entry);
        let parts = if takes.is_some() { 1 } else { geometry.parts(src.len().min(most as usize)) };
        let mut claim = self.claim_staged(file, epoch, parts)?;
        if claim.is_none() && parts > 1 {
            // The spill file has room for it.
            takes = Some(self.spill.capacity(geometry.entry));
            claim = self.claim_staged(file, epoch, 1)?;
        }
        let claim = claim.ok_or_else(|| Self::refuse_for_room(file, epoch))?;
        let src = &src[..src.len().min(takes.unwrap_or(most) as usize)];
        let _gate = shared(&file.gate);
        if file.is_demoted() {
            return Ok(None);
        }
        let uid = self.number_staged(file, epoch)?;
        let spilled = match takes {
            None => None,
            Some(_) => Some(Arc::new(self.spill_out(src).inspect_err(|error| refuse(epoch, error))?)),
        };
        let staged = self.stage_write(file, epoch, claim, Write { uid, at, src, spilled: spilled.clone() });
        if staged.is_err() {
            self.spill.drop_chunks(spilled.into_iter());
        }
        self.note();
        staged.map(|offset| Some((offset, src.len())))
    }

    /// Stages a write whose bytes are in the spill file, or are to be in the log, and shows it.
    fn stage_write(&self, file: &Managed, epoch: &Mutex<Epoch>, claim: Claim<'_, M>, write: Write<'_>) -> Result<u64> {
        let Write { uid, at, src, spilled } = write;
        let len = src.len() as u64;
        let mut sized = file.sized(at, src.len())?;
        let offset = sized.offset;
        let mut pieces = file.overlay.exclusive(&pages(offset, len));
        let kind = if spilled.is_some() { Kind::StagedSpill } else { Kind::StagedWrite };
        let operation = Operation { uid, kind, value: offset, time: 0 };
        let data = spilled.as_ref().map(|spilled| spilled.encode());
        let staged = Staged { operation, data: data.as_deref().unwrap_or(src), len, spilled: spilled.clone() };
        let first = self.stage(file, epoch, claim, staged)?;
        match spilled {
            None => pieces.add(offset, len, first, u64::from(self.ring.geometry.entry)),
            Some(spilled) => pieces.add_at(offset, len, spilled.chunk(), |done| spilled.position(done)),
        }
        sized.grow();
        Ok(offset)
    }

    /// Stages a new length. False if the file goes past the log by now.
    pub(super) fn set_len_staged(&self, file: &Managed, epoch: &Mutex<Epoch>, len: u64) -> Result<bool> {
        let claim = self.claim_staged(file, epoch, 1)?.ok_or_else(|| Self::refuse_for_room(file, epoch))?;
        let _gate = shared(&file.gate);
        if file.is_demoted() {
            return Ok(false);
        }
        let uid = self.number_staged(file, epoch)?;
        let mut length = exclusive(&file.length);
        let operation = Operation { uid, kind: Kind::StagedLen, value: len, time: 0 };
        let first = self.stage(file, epoch, claim, Staged { operation, data: &[], len: 0, spilled: None })?;
        length.change(file, first, len);
        drop(length);
        self.note();
        Ok(true)
    }

    /// Adds a change to the open epoch.
    fn stage(&self, file: &Managed, epoch: &Mutex<Epoch>, claim: Claim<'_, M>, staged: Staged<'_>) -> Result<u64> {
        let Staged { operation, data, len, spilled } = staged;
        let parts = self.ring.geometry.parts(data.len());
        let mut epoch = locked(epoch);
        if let Some(errno) = epoch.refused {
            drop(epoch);
            return Err(refusal(file, errno));
        }
        let first = claim.place_some(parts);
        let opens = u64::from(epoch.items.is_empty());
        epoch.reserved += parts + opens;
        self.open_claims.fetch_add(2 * parts + opens, Ordering::AcqRel);
        self.ring.unclaim(1 - opens);
        // From here on the position is taken: if nothing completes it, only a replay tells what is in it.
        self.ring.put(first, first, operation, data).map_err(|error| self.poison(error))?;
        self.ring.medium.order();
        epoch.items.push(Item { position: first, order: first, parts, operation, len, spilled });
        file.last.fetch_max(first + parts, Ordering::AcqRel);
        self.ring.complete(first, parts);
        Ok(first)
    }

    /// Closes the open epoch; with `durable`, durably when this returns. A file that is not atomic is synced instead,
    /// if it is to be durable.
    pub(crate) fn commit(&self, file: &Managed, durable: bool) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let Some(epoch) = file.open_epoch() else { return if durable { self.sync_as_ever(file) } else { Ok(()) } };
        let number = self.close_epoch(file, epoch)?;
        if !durable {
            return Ok(());
        }
        self.make_durable(number)?;
        self.await_consumers(file)
    }

    /// Puts the Commit of the open epoch into the log, if there is one. Returns the number of the file's last Commit.
    pub(super) fn put_commit(&self, file: &Managed, epoch: &Mutex<Epoch>) -> Result<u64> {
        let mut epoch = locked(epoch);
        // Nothing may follow what is not drained any more.
        if let (Some(errno), false) = (epoch.refused, file.has_failed()) {
            drop(epoch);
            return Err(refusal(file, errno));
        }
        if file.has_failed() {
            drop(epoch);
            file.check_usable()?;
            return Ok(0);
        }
        let Some(first) = epoch.items.first() else { return Ok(epoch.number) };
        let Operation { uid, .. } = first.operation;
        let operation = Operation { uid, kind: Kind::Commit, value: first.order, time: 0 };
        let numbered = epoch.numbers.as_mut().map(|numbers| numbers.next(self.ring.medium.commit_time()));
        let commit = Commit { count: epoch.items.len() as u64, before: epoch.committed, numbered };
        // Claimed with the first change.
        let position = self.ring.place(1);
        self.ring.put(position, position, operation, &commit.encode()).map_err(|error| self.poison(error))?;
        self.ring.medium.order();
        // Counted before it is complete: what the drain finds it must find counted, too.
        let number = self.commits.fetch_add(1, Ordering::AcqRel) + 1;
        (epoch.committed, epoch.number) = (Some(position), number);
        let (parts, reserved) = (epoch.parts(), std::mem::take(&mut epoch.reserved));
        epoch.items.clear();
        epoch.owed.clear();
        epoch.unpackable = false;
        self.open_claims.fetch_sub(2 * parts + 1, Ordering::AcqRel);
        self.ring.unclaim(reserved.saturating_sub(1));
        file.last.fetch_max(position + 1, Ordering::AcqRel);
        self.ring.complete(position, 1);
        drop(epoch);
        self.note();
        Ok(number)
    }

    /// Counts a rename like a Commit, before it is complete: a commit of the file makes it durable, too.
    pub(super) fn count_rename(&self, file: &Managed) {
        if let Some(epoch) = &file.epoch {
            locked(epoch).number = self.commits.fetch_add(1, Ordering::AcqRel) + 1;
        }
    }

    /// Makes all Commits up to this number durable, with those of others that wait for the same.
    pub(super) fn make_durable(&self, number: u64) -> Result<()> {
        if self.durable_commits.load(Ordering::Acquire) >= number {
            return Ok(());
        }
        self.flush_commits(barriers::COMMIT)
    }

    /// Flushes the log, which then durably has all Commits that were put into it before.
    pub(super) fn flush_commits(&self, barrier: Barrier) -> Result<()> {
        let all = self.commits.load(Ordering::Acquire);
        self.flush_spill()?;
        self.ring.persist(barrier).map_err(|error| self.poison(error))?;
        self.durable_commits.fetch_max(all, Ordering::AcqRel);
        Ok(())
    }

    /// Commits all files that have an open epoch. Returns the number of the last Commit, and the first error.
    pub(super) fn put_commits(&self, files: &[Arc<Managed>]) -> (u64, Result<()>) {
        let (mut last, mut first_error) = (0, Ok(()));
        for file in files {
            let Some(epoch) = file.open_epoch() else { continue };
            match self.close_epoch(file, epoch) {
                Ok(number) => last = last.max(number),
                Err(error) => first_error = first_error.and(Err(error)),
            }
        }
        (last, first_error)
    }

    /// Drops the open epoch: the file is as its last commit left it.
    pub(crate) fn abandon(&self, file: &Managed) -> Result<()> {
        self.handle_state.writable()?;
        file.check_usable()?;
        let Some(epoch) = &file.epoch else { return Ok(()) };
        let _gate = exclusive(&file.gate);
        self.drop_epoch(file, epoch)
    }

    /// The last handle is gone. Called with the lock of the registry, so that the next handle finds it.
    pub(super) fn begin_close(&self, file: &Managed) {
        if let Some(epoch) = &file.epoch {
            locked(epoch).closing = true;
        }
    }

    /// Drops what the last handle left uncommitted, before anybody uses the next one.
    pub(super) fn finish_close(&self, file: &Managed) -> Result<()> {
        let Some(epoch) = file.epoch.as_ref().filter(|epoch| locked(epoch).closing) else { return Ok(()) };
        let _gate = exclusive(&file.gate);
        let is_left = locked(epoch).closing && !file.has_failed();
        let dropped = if is_left { self.drop_epoch(file, epoch) } else { Ok(()) };
        // Only now: the next handle waits until then.
        locked(epoch).closing = false;
        dropped
    }

    /// Drops the open epoch. The caller has the gate exclusively.
    fn drop_epoch(&self, file: &Managed, epoch: &Mutex<Epoch>) -> Result<()> {
        let is_empty = {
            let mut epoch = locked(epoch);
            (epoch.refused, epoch.unpackable) = (None, false);
            epoch.items.is_empty()
        };
        if is_empty {
            return Ok(());
        }
        let (committed, dropped) = {
            let mut drain = self.drain.hold();
            let mut epoch = locked(epoch);
            let Some(first) = epoch.items.first().map(|item| item.position) else { return Ok(()) };
            for item in &epoch.items {
                self.ring.shared_state().void(item.position, item.parts);
            }
            drain.release(file.uid.load(Ordering::Acquire), first);
            let (parts, reserved) = (epoch.parts(), std::mem::take(&mut epoch.reserved));
            let dropped: Vec<Arc<Spilled>> = epoch.items.drain(..).filter_map(|item| item.spilled).collect();
            epoch.owed.clear();
            self.open_claims.fetch_sub(2 * parts + 1, Ordering::AcqRel);
            self.ring.unclaim(reserved);
            (epoch.committed.map_or(0, |position| position + 1), dropped)
        };
        // Memory has nothing of the bytes that the dropped changes covered or cut off. The kernel gets the committed
        // bytes, and shows them from now on.
        self.deliver_up_to(committed)?;
        file.check_usable()?;
        let mut length = exclusive(&file.length);
        file.overlay.clear();
        // Only now: nobody reads them any more.
        self.spill.drop_chunks(dropped.into_iter());
        length.reset(file.slow.len()?);
        Ok(())
    }
}
