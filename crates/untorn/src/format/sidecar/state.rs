//! What a sidecar says about itself, as last written.

use super::barriers;
use super::retirement::Retirement;
use super::superblock::{Left, Superblock};
use crate::error::Result;
use crate::format::dual_copy::DualCopy;
use crate::format::record::ChecksumSeed;
use crate::storage::{Barrier, Medium, MediumFile, Stamp};

/// The superblock and the retirement line of an open sidecar.
pub(crate) struct SidecarState {
    pub(crate) superblock: Superblock,
    pub(crate) retirement: Retirement,
    /// The file was let go; nothing is written any more.
    pub(crate) closed: bool,
}

impl SidecarState {
    /// Writes one copy of each line, durable at the next fence.
    pub(crate) fn write<F: MediumFile>(&mut self, side: &F) -> Result<()> {
        self.superblock.write(side)?;
        self.write_checkpoint(side)
    }

    /// Writes one copy of the retirement line, durable at the next fence.
    pub(crate) fn write_checkpoint<F: MediumFile>(&mut self, side: &F) -> Result<()> {
        self.retirement.write(side, &self.superblock.uuid)
    }

    /// Says, durably, that the file is open, in a session of its own: nothing sealed in an earlier one counts any
    /// more. The length and the cut that it starts from are set. What is stored in `data` is durable with it.
    pub(crate) fn start_session<M: Medium>(
        &mut self,
        medium: &M,
        data: &M::File,
        side: &M::File,
    ) -> Result<ChecksumSeed> {
        let fresh = self.superblock.left == Left::Fresh;
        self.superblock.left = Left::Open;
        self.retirement.session += 1;
        if fresh {
            // The length was read from the data file just now; "open" must not become durable without it.
            self.write_checkpoint(side)?;
            medium.fence(barriers::OPEN, &[side])?;
        }
        self.write(side)?;
        medium.fence(barriers::OPEN, &[data, side])?;
        Ok(ChecksumSeed::new(&self.superblock.uuid, self.retirement.session))
    }

    /// Says, durably, that another program changed the data file while it was open. No open takes either version for
    /// the right one from then on, before the user has chosen. Nothing else is written any more.
    pub(crate) fn write_disputed<M: Medium>(&mut self, medium: &M, side: &M::File, barrier: Barrier) -> Result<()> {
        self.closed = true;
        self.superblock.left = Left::Disputed;
        for _ in 0..2 {
            self.superblock.write(side)?;
            medium.fence(barrier, &[side])?;
        }
        Ok(())
    }

    /// Says, durably, that everything is in the data file: the sidecar may be removed.
    pub(crate) fn write_settled<M: Medium>(&mut self, medium: &M, side: &M::File, barrier: Barrier) -> Result<()> {
        self.closed = true;
        self.superblock.left = Left::Settled;
        self.superblock.write(side)?;
        medium.fence(barrier, &[side])
    }

    /// Says, durably, that the file was closed cleanly when the data file stood at this stamp.
    pub(crate) fn write_clean<M: Medium>(
        &mut self,
        medium: &M,
        side: &M::File,
        stamp: Stamp,
        barrier: Barrier,
    ) -> Result<()> {
        self.superblock.left = Left::Clean;
        self.superblock.stamp = stamp;
        // Both copies say the same, so that damage to one of them at rest cannot bring an older state back. Never both
        // at once: a power cut could tear both.
        for _ in 0..2 {
            self.write(side)?;
            medium.fence(barrier, &[side])?;
        }
        Ok(())
    }
}
