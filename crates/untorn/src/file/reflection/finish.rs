//! The ways to let a file go: bring everything home and remove the sidecar (*spatial*, the default), or keep it
//! (*fast*), with its slices or, if the closed file is to be a plain one, without.
//!
//! # Why a crash while the sidecar goes loses nothing
//! 1. Slices go home over copies that the committed bitmaps call invalid, and no bitmap changes. Until the next step is
//!    done, recovery finds the last commit in the sidecar, whatever of the data file is durable.
//! 2. The data file is whole and durable ([`SETTLE_DATA`](barriers::SETTLE_DATA)) before the superblock says "settled".
//! 3. "Settled" is durable ([`SETTLE_STATE`](barriers::SETTLE_STATE)) before the mark goes. From then on every open
//!    takes the data file as it is.
//! 4. The mark is gone, durably, before the name of the sidecar is ([`remove`]).
//! 5. Pages that went home [ahead](super::ahead) at the version that they still have are not copied again. Steps 1 and
//!    2 hold for them too.
//! 6. What fails before step 3 leaves the sidecar. It is then closed as with `keep_sidecar` if that is still possible,
//!    and left for recovery otherwise.
//!
//! # Why a sidecar that stays and holds nothing may be kept beside a file that anybody changes
//! 1. All records are retired first, so only the bitmaps say what the sidecar holds.
//! 2. The slices are home, durably, before a bitmap is cleared. A crash leaves the last commit, whichever of them
//!    are cleared.
//! 3. All bitmaps are cleared, durably ([`CLOSE_BITMAPS`](barriers::CLOSE_BITMAPS)), before the superblock says "closed
//!    cleanly" with the digest of no slice. An open that finds this digest takes the data file as it is, its length
//!    too: nothing in the sidecar could be stale. It still checks the bitmaps against the digest.

use std::sync::atomic::Ordering;

use super::slices::{SLICE, runs};
use super::{Reflection, barriers};
use crate::engine::{Close, Engine};
use crate::error::Result;
use crate::format::record::DataSum;
use crate::format::sidecar::attach::remove;
use crate::format::sidecar::{PAGE, number};
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sync::word_lock::lock;

impl<M: Medium> Reflection<M> {
    /// Closes. Does nothing if the file was let go already, was opened for reading,
    /// belongs to the parent process, or is poisoned: then only recovery can tell.
    pub(super) fn let_go(&self, how: Close) -> Result<()> {
        if how.keeps_sidecar(&self.options) {
            // Another process that goes on from the sidecar needs what is in it, and soon.
            return self.close_clean(how == Close::AsAsked && self.options.plain_at_close);
        }
        if self.writable().is_err() || lock(&self.sidecar_state, self.relax()).closed {
            return Ok(());
        }
        self.settle_all().inspect_err(|_| {
            // Of what failed the caller learns; a sidecar that stays is left as well as may be.
            let _ = self.close_clean(false);
        })
    }

    /// Leaves the last commit in a state that the next open need not recover. Does nothing if the file was let go
    /// already, was opened for reading, belongs to the parent process, or is poisoned: then only recovery can tell. If
    /// the file is to be `plain`, the sidecar holds nothing afterwards.
    pub(super) fn close_clean(&self, plain: bool) -> Result<()> {
        if self.writable().is_err() || std::mem::replace(&mut lock(&self.sidecar_state, self.relax()).closed, true) {
            return Ok(());
        }
        let head = self.state.head();
        if head.emptied.load(Ordering::Relaxed) != 0 {
            self.reclaim_space()?;
        } else {
            self.checkpoint()?;
        }
        let len = head.len.load(Ordering::Relaxed);
        if plain {
            self.bring_home(len)?;
            self.empty_sidecar()?;
        } else if self.data.len() != len {
            self.data.set_len(len)?;
        }
        self.data.sync(barriers::CLOSE_DATA)?;
        let (bitmap_sum, slice_sum) = self.digests(true)?;
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        sidecar_state.superblock.bitmap_sum = bitmap_sum;
        sidecar_state.superblock.slice_sum = slice_sum;
        sidecar_state.write_clean(&*self.medium, &self.side, self.data.stamp()?, barriers::CLOSE_STATE)
    }

    /// Digests of all bitmaps, and of all slices valid in the sidecar if `slices`. The bitmaps in the sidecar are up to
    /// date: the file was just opened, or everything was cut.
    pub(super) fn digests(&self, slices: bool) -> Result<(u64, u64)> {
        let mut reflected = Vec::new();
        // Whatever this handle's maximum length is: the digest must not depend on it.
        self.places.walk(&self.side, u64::MAX, |page, bitmap| {
            if bitmap != 0 {
                reflected.push((page, bitmap));
            }
        })?;
        reflected.sort_unstable();
        let (mut bitmap_sum, mut slice_sum) = (DataSum::default(), DataSum::default());
        let mut image = [0; PAGE as usize];
        for (done, &(page, bitmap)) in reflected.iter().enumerate() {
            bitmap_sum.add(&page.to_le_bytes());
            bitmap_sum.add(&bitmap.to_le_bytes());
            let Some(at) = self.places.reflection(page).filter(|_| slices) else { continue };
            for (start, len) in runs(bitmap) {
                let bytes = &mut image[..(len * SLICE) as usize];
                self.side.read(at + start * SLICE, bytes)?;
                slice_sum.add(bytes);
            }
            if done % 4096 == 0 {
                self.options.report("checking slices", done as u64, reflected.len() as u64);
            }
        }
        Ok((bitmap_sum.get(), slice_sum.get()))
    }

    /// Copies the slices of this bitmap home, whose copies there are invalid, up to the end of the file.
    pub(super) fn copy_home(&self, page: u64, bitmap: u64, len: u64) -> Result<()> {
        if self.class == MediumClass::PersistentMemory && !self.data_space.knows(page * PAGE) {
            self.data_space.ensure(&self.data, page * PAGE, self.class)?;
        }
        let mut image = [0; PAGE as usize];
        for (start, count) in runs(bitmap) {
            let offset = page * PAGE + start * SLICE;
            let within = (count * SLICE).min(len.saturating_sub(offset)) as usize;
            let bytes = &mut image[..(count * SLICE) as usize];
            self.copy_slices(page, bitmap, start, count, bytes)?;
            self.data.write(offset, &bytes[..within])?;
        }
        Ok(())
    }

    /// Clears every bitmap of the sidecar, durably. All slices are home and all records are retired.
    fn empty_sidecar(&self) -> Result<()> {
        self.make_home_durable()?;
        let mut reflected = Vec::new();
        // As for the digest: whatever this handle's maximum length is.
        self.places.walk(&self.side, u64::MAX, |page, bitmap| {
            if bitmap != 0 {
                reflected.push(page);
            }
        })?;
        reflected.iter().try_for_each(|&page| self.write_bitmap(page, 0))?;
        self.medium.fence(barriers::CLOSE_BITMAPS, &[&self.side])
    }

    /// Makes the data file durable before the sidecar says that it has everything.
    fn make_home_durable(&self) -> Result<()> {
        self.options.report("flushing the file", 0, 1);
        self.medium.fence(barriers::SETTLE_DATA, &[&self.data])?;
        self.data.sync(barriers::SETTLE_DATA)?;
        self.options.report("flushing the file", 1, 1);
        Ok(())
    }

    /// Copies every slice home, up to the end of the file at `len`. A crash on the way leaves the sidecar valid: slices
    /// are copied over copies that its bitmaps call invalid, and the bitmaps do not change.
    fn bring_home(&self, len: u64) -> Result<()> {
        let mut reflected = Vec::new();
        self.places.walk(&self.side, self.state.count(), |page, _| {
            let bitmap = self.committed_bitmap(page);
            // What a damaged sidecar has of pages behind the end is nobody's. A page that went home ahead is there.
            if bitmap != 0 && page * PAGE < len && !self.is_ahead(page) {
                reflected.push((page, bitmap));
            }
        })?;
        let total = reflected.len() as u64;
        for (done, &(page, bitmap)) in (0..).zip(&reflected) {
            self.copy_home(page, bitmap, len)?;
            if done % 1024 == 0 {
                self.options.report("deploying pages", done, total);
            }
        }
        if self.data.len() != len {
            self.data.set_len(len)?;
        }
        Ok(())
    }

    /// Deploys everything, then removes the sidecar.
    pub(super) fn settle_all(&self) -> Result<()> {
        self.writable()?;
        self.bring_home(self.state.head().len.load(Ordering::Relaxed))?;
        // Durable with the file, and so before the sidecar says that it is not needed.
        number::keep(&*self.medium, &self.data, self.last_commit())?;
        self.make_home_durable()?;
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        sidecar_state.write_settled(&*self.medium, &self.side, barriers::SETTLE_STATE)?;
        remove(&*self.medium, &self.path, &self.data, &self.sidecar)
    }
}
