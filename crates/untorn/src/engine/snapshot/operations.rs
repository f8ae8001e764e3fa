//! What a handle does with snapshots.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::preimages::{PAGE, lock};
use super::{
    Capture, HeldSnapshots, LapseElsewhere, Marks, Readers, SnapshotInfo, SnapshotService, Subscription, Taken,
    WithSnapshots,
};
use crate::error::Result;
use crate::storage::Medium;
use crate::sys::shared::SharedPages;

impl<E: Capture, M: Medium> SnapshotService for WithSnapshots<E, M> {
    fn take(&self, process: u32) -> Result<Taken> {
        self.take_with(process, false).map(|(taken, _)| taken)
    }

    fn take_marked(&self, process: u32) -> Result<(Taken, Option<Arc<Marks>>)> {
        self.take_with(process, true)
    }

    fn at_home(&self, taken: &Taken, pages: Range<u64>, found: &mut dyn FnMut(Range<u64>)) -> Result<()> {
        self.ours()?;
        let last = self.engine.len().min(taken.captured.len).div_ceil(PAGE as u64);
        let mut rest = pages.start..pages.end.min(last);
        while !rest.is_empty() {
            let elsewhere = self.engine.elsewhere(rest.clone()).unwrap_or(rest.end..rest.end);
            if rest.start < elsewhere.start {
                found(rest.start..elsewhere.start);
            }
            rest.start = elsewhere.end;
        }
        self.check_not_ended(taken.snapshot)
    }

    fn read(&self, taken: &Taken, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.ours()?;
        let mut done = 0;
        while done < dst.len() {
            let at = offset + done as u64;
            let here = (PAGE - (at % PAGE as u64) as usize).min(dst.len() - done);
            let read = self.read_part(taken.snapshot, at, &mut dst[done..done + here]);
            if read.is_err() {
                // If it ended meanwhile, that is why.
                self.check_not_ended(taken.snapshot)?;
                return read;
            }
            done += here;
        }
        self.check_not_ended(taken.snapshot)
    }

    fn data_from(&self, taken: &Taken, offset: u64) -> Result<Option<Range<u64>>> {
        self.ours()?;
        let len = taken.captured.len;
        if offset >= len {
            return Ok(None);
        }
        // What the file was cut off by has pre-images.
        let now = self.engine.data_from(offset)?.filter(|range| range.start < len).unwrap_or(len..len);
        let pages = offset / PAGE as u64..now.start.div_ceil(PAGE as u64);
        let kept = self.images.first_in(pages, taken.snapshot).map(|page| (page * PAGE as u64).max(offset));
        let found = match kept.filter(|at| *at < now.start) {
            Some(at) => at..((at / PAGE as u64 + 1) * PAGE as u64).min(len),
            None => now.start..now.end.min(len),
        };
        self.check_not_ended(taken.snapshot)?;
        Ok((!found.is_empty()).then_some(found))
    }

    fn take_here(&self) -> Result<(Taken, Option<Arc<Readers>>)> {
        self.ours()?;
        if self.publishing.is_on()
            && let Some(taken) = self.take_published(&mut lock(&self.held))
        {
            return Ok(taken);
        }
        let taken = self.take(std::process::id())?;
        Ok((taken, lock(&self.held).snapshots.get(&taken.snapshot).and_then(|holding| holding.readers.clone())))
    }

    fn let_lapse(&self, snapshot: u64, lapse: LapseElsewhere) {
        if self.ours().is_ok()
            && let Some(holding) = lock(&self.held).snapshots.get_mut(&snapshot)
        {
            holding.elsewhere = Some(lapse);
            self.changes.any_rests.store(true, Ordering::SeqCst);
        }
    }

    fn release(&self, snapshot: u64) {
        if self.ours().is_ok() {
            let mut held = lock(&self.held);
            held.snapshots.remove(&snapshot);
            self.note(&held);
        }
    }

    fn release_here(&self, snapshot: u64, readers: Option<&Arc<Readers>>) {
        if self.ours().is_ok() && !self.release_published(snapshot, readers) {
            self.release(snapshot);
        }
    }

    fn subscribe(&self, process: u32, pages: &Arc<SharedPages>) -> Result<Option<Subscription>> {
        self.subscribe_reader(process, pages)
    }

    fn unsubscribe(&self, id: u64) {
        if self.ours().is_ok() {
            self.publishing.leave(id);
            self.retire();
        }
    }

    fn held_as(&self, snapshot: u64) -> Option<Taken> {
        lock(&self.held).snapshots.get(&snapshot)?.taken
    }

    fn held(&self) -> HeldSnapshots {
        if self.ours().is_err() {
            return HeldSnapshots::default();
        }
        // Not under the lock: counting takes time, and nothing is to wait for it.
        let (numbers, taken): (_, Vec<Taken>) = {
            let held = lock(&self.held);
            (held.numbers(), held.snapshots.values().flat_map(|holding| self.holders(holding)).collect())
        };
        let bytes = self.images.bytes_for(&numbers);
        let info = |taken: Taken| SnapshotInfo {
            commit: taken.captured.commit,
            len: taken.captured.len,
            since: taken.since,
            process: taken.process,
            bytes: bytes.get(&taken.snapshot).copied().unwrap_or(0),
        };
        HeldSnapshots { snapshots: taken.into_iter().map(info).collect(), bytes: self.images.bytes() }
    }
}
