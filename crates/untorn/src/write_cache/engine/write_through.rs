//! Files that are written *through*: before its call returns, an operation is in the log, as durable as it has to be,
//! and then with the kernel. The kernel's page cache shows every reader all operations in order. The log only provides
//! durability, and there is no overlay. The drain delivers nothing: it syncs the files of a batch and moves the tail.
//!
//! # Invariants
//!
//! 1. Of two operations of a file that do not commute, one runs at a time, from before its place in the log until the
//!    kernel has it. So the kernel has such operations in log order. A replay of any end of the log, over whatever part
//!    of them reached the device, leaves what the last of them left. Two writes to places that are given commute if
//!    they share no page, also beyond the end of the file, and run at the same time, each with the locks of its pages.
//!    A write to the end and a change of the length commute with nothing: each has the length alone. While other
//!    processes append ([`multi_process`](super::multi_process)), one operation runs at a time.
//! 2. An entry is complete when the kernel has its bytes, and only complete entries are drained. So the sync before the
//!    tail passes an entry is a sync of its bytes.
//! 3. The kernel decides how much is written (full device, quota). If it takes less than the log has, the file is
//!    synced and the tail passes the entry, durably, before the call returns and before the next operation that shares
//!    a page with it.
//!    So no replay ever writes bytes that a program was told are not written, or makes a file longer than others saw
//!    it. A crash before that finds an operation whose result was reported to no program.
//! 4. With durability per commit, the kernel may bring bytes to the device that the log does not have durably yet, and
//!    a crash may leave a part of an unsynced write, as for any file. It must not lose synced bytes: so a file is made
//!    shorter only when the log durably has that, and everything before it. Otherwise a replay of an older write beyond
//!    that length would leave zeros in place of older bytes.

use super::file::{At, Claim, Managed, exclusive, shared};
use super::format::Kind;
use super::overlay::pages;
use super::ring::Operation;
use super::{Cache, barriers};
use crate::error::Result;
use crate::storage::Medium;

impl<M: Medium> Cache<M> {
    /// Writes as much of `src` as the kernel takes, and returns where and how much. The caller has the file's gate.
    pub(super) fn write_through(
        &self,
        file: &Managed,
        claim: Claim<'_, M>,
        at: At,
        src: &[u8],
    ) -> Result<(u64, usize)> {
        let uid = self.number(file)?;
        // Nobody is let in beside this process meanwhile.
        let (length, alone) = match at {
            At::Offset(_) => (Some(shared(&file.length)), None),
            At::End => (None, Some(exclusive(&file.length))),
        };
        let beside = self.hold(file)?;
        let (offset, range) = match at {
            At::Offset(offset) => (offset, pages(offset, src.len() as u64)),
            At::End => (file.slow.len()?, 0..0),
        };
        file.check(offset, src.len())?;
        let stripes = file.overlay.exclusive(&range);
        let parts = claim.parts;
        let time = self.ring.medium.now();
        let first = self.log(file, claim, Operation { uid, kind: Kind::Write, value: offset, time }, src)?;
        let written = file.slow.write_some(offset, src);
        self.completed(first, parts);
        if !matches!(written, Ok(count) if count == src.len()) {
            self.take_back(file, first + parts)?;
        }
        drop((stripes, beside, length, alone));
        written.map(|count| (offset, count))
    }

    /// Changes the length. The caller has the file's gate.
    pub(super) fn set_len_through(&self, file: &Managed, claim: Claim<'_, M>, len: u64) -> Result<()> {
        let uid = self.number(file)?;
        let turn = exclusive(&file.length);
        let beside = self.hold(file)?;
        let shorter = len < file.slow.len()?;
        let time = self.ring.medium.now();
        let first = self.log(file, claim, Operation { uid, kind: Kind::SetLen, value: len, time }, &[])?;
        if shorter && !self.ring.is_per_write() {
            // Counted before: what others put into the log meanwhile this flush may not have.
            let changes = beside.as_ref().map(|turn| (turn.turn(), turn.turn().changes()));
            // After an error nothing may ever complete the position, as after that of a store.
            self.ring.persist(barriers::CUT).map_err(|error| self.poison(error))?;
            if let Some((turn, changes)) = changes {
                turn.flushed(changes);
            }
        }
        let done = file.slow.set_len(len);
        self.completed(first, 1);
        if done.is_err() {
            self.take_back(file, first + 1)?;
        }
        drop((beside, turn));
        done
    }

    /// The kernel has not all of what the log has before a position, and a replay must not do the rest.
    #[cold]
    pub(super) fn take_back(&self, file: &Managed, position: u64) -> Result<()> {
        self.drain_to(position)?;
        // Else its entries are still there, and so is the one.
        file.check_usable()
    }
}
