//! The checkpoint: make the bitmaps durable that records told of, then give the records up, in all lanes together.

use std::sync::atomic::Ordering;

use super::{Reflection, barriers};
use crate::error::Result;
use crate::format::lane::Lane;
use crate::format::record::{Record, encode_spilled};
use crate::format::sidecar::spill_path;
use crate::storage::{Medium, MediumClass, MediumFile};
use crate::sync::word_lock::lock;

impl<M: Medium> Reflection<M> {
    /// Gives up every record there is now. Writers go on meanwhile, except for the moment it takes to look at the
    /// lanes.
    #[cold]
    pub(super) fn checkpoint(&self) -> Result<()> {
        self.cut_with(&[])
    }

    /// The same, writing back the bitmaps of more pages than the lanes name.
    pub(super) fn cut_with(&self, also: &[u64]) -> Result<()> {
        let _cutting = self.state.head().checkpoint.lock(self.relax());
        let lanes = self.lanes.acquire_all(self.relax());
        let (heads, checkpoint, len) = self.choose_checkpoint(&lanes);
        drop(lanes);
        self.checkpoint_at(&heads, checkpoint, len, also)
    }

    /// The same for a caller that holds the checkpoint gate and every lane; `also` are pages to write back besides.
    pub(super) fn cut_holding(&self, lanes: &[Lane<'_>], also: &[u64]) -> Result<()> {
        let (heads, checkpoint, len) = self.choose_checkpoint(lanes);
        self.checkpoint_at(&heads, checkpoint, len, also)
    }

    fn choose_checkpoint(&self, lanes: &[Lane<'_>]) -> (Vec<u64>, u64, u64) {
        let head = self.state.head();
        let checkpoint = self.commit_number();
        // Every record from now on is numbered above the checkpoint, so none of them is retired by it.
        head.floor.store(checkpoint, Ordering::Release);
        (lanes.iter().map(Lane::head).collect(), checkpoint, head.len.load(Ordering::Relaxed))
    }

    fn checkpoint_at(&self, heads: &[u64], checkpoint: u64, len: u64, also: &[u64]) -> Result<()> {
        // What is published is certain, even if a record above the checkpoint told of it: that record stays live. A
        // page that several records name is written again; to sort them out would cost more.
        for &page in also {
            self.write_bitmap(page, self.committed_bitmap(page)).map_err(|error| self.poison(error))?;
        }
        let mut named = also.len() as u64;
        for (index, &head) in heads.iter().enumerate() {
            for page in self.lanes.live_pages(index, head) {
                named += 1;
                self.write_bitmap(page, self.committed_bitmap(page)).map_err(|error| self.poison(error))?;
            }
        }
        self.fence(barriers::CUT_BITMAPS).map_err(|error| self.poison(error))?;
        let mut sidecar_state = lock(&self.sidecar_state, self.relax());
        sidecar_state.retirement.checkpoint = checkpoint;
        sidecar_state.retirement.time = self.commit_time();
        sidecar_state.retirement.len = len;
        let uuid = sidecar_state.superblock.uuid;
        sidecar_state.retirement.write(&self.side, &uuid).map_err(|error| self.poison(error))?;
        drop(sidecar_state);
        self.fence(barriers::CUT_LINE).map_err(|error| self.poison(error))?;
        self.lanes.retire(heads);
        self.ahead.note_backlog(named);
        Ok(())
    }

    /// Writes a page's bitmap into its meta page, durable at the next fence.
    #[inline(always)]
    pub(super) fn write_bitmap(&self, page: u64, bitmap: u64) -> Result<()> {
        // A page without a place has never had a slice in the sidecar: its bitmap is 0 there already.
        let Some(at) = self.places.bitmap(page) else { return Ok(()) };
        if self.class == MediumClass::PersistentMemory && !self.side_space.knows(at) {
            self.side_space.ensure(&self.side, at, self.class)?;
        }
        self.side.write(at, &bitmap.to_le_bytes())
    }

    /// Stores a record whose entries stand in a file of their own, durable at the next fence of all files. Its pages
    /// must be handed to the cut that gives it up.
    pub(super) fn append_spilled(&self, lane: &Lane<'_>, record: &Record) -> Result<()> {
        let path = spill_path(&self.sidecar);
        let at = self.lanes.offset(lane.position());
        let lines = encode_spilled(self.checksum_seed, at, record, &self.path)?;
        let bytes = lines[1..].concat();
        if self.medium.exists(&path)? {
            self.medium.unlink(&path)?;
        }
        let spill = self.medium.create_like(&path, bytes.len() as u64, bytes.len() as u64, &self.data)?;
        spill.allocate(0, bytes.len() as u64)?;
        spill.write(0, &bytes)?;
        // The spill must be durable before the line that refers to it is stored, for its fence is another file's.
        let durable = || {
            self.medium.fence(barriers::SPILL_NAME, &[&spill])?;
            spill.sync(barriers::SPILL_NAME)?;
            self.medium.sync_dir(barriers::SPILL_NAME, &crate::format::sidecar::parent(&self.sidecar))
        };
        durable().map_err(|error| self.poison(error))?;
        self.lanes.append_line(lane, &self.side, at, &lines[0], None).map_err(|error| self.poison(error))
    }

    /// Removes the spill file of a record that was given up. Its bytes are sealed by that record's place and number, so
    /// one that stays, here or at a crash, means nothing; it is removed at the next open or before the next one.
    pub(super) fn drop_spill(&self) {
        if let Err(error) = self.medium.unlink(&spill_path(&self.sidecar)) {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove a spill file; the next open removes it");
        }
    }
}
