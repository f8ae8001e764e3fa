//! [`SimFile`]: one open file of a [`SimMedium`].

use std::ops::Range;
use std::path::{Path, PathBuf};

use untorn::testing::storage::{
    Access, Barrier, CommitNote, Identity, LockKind, Mark, MarkState, MediumClass, MediumFile, Stamp,
};
use untorn::{Error, Result};

use crate::content::PAGE;
use crate::effects::What;
use crate::instant::{Step, Verdict};
use crate::medium::{EIO, SimMedium, errno, time_of};
use crate::schedule;
use crate::world::{Fault, World};

/// One open file of a [`SimMedium`].
pub struct SimFile {
    medium: SimMedium,
    number: u64,
    id: u64,
    path: PathBuf,
    access: Access,
    /// The length the file may grow to through this handle, as address space reserved for a mapping would limit it.
    reserve: u64,
}

impl SimFile {
    pub(crate) fn new(medium: SimMedium, number: u64, id: u64, path: &Path, access: Access, reserve: u64) -> Self {
        SimFile { medium, number, id, path: path.to_owned(), access, reserve }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    fn check(&self, world: &mut World, offset: u64, len: u64) -> Result<()> {
        let file_len = world.inode(self.number).volatile.len;
        match offset.checked_add(len) {
            Some(end) if end <= file_len => Ok(()),
            _ => Err(Error::OutOfRange { path: self.path.clone(), offset, len, file_len }),
        }
    }

    fn writable(&self) -> Result<()> {
        match self.access {
            Access::Read => Err(Error::ReadOnly { path: self.path.clone() }),
            Access::ReadWrite => Ok(()),
        }
    }

    /// Reads the bytes in the cache, or those of the device. Memory has no cache that would hide it.
    fn get(&self, offset: u64, dst: &mut [u8], stored: bool) -> Result<()> {
        let mut world = self.medium.enter(Step::Read, None, &self.path)?;
        self.check(&mut world, offset, dst.len() as u64)?;
        world.counters.bytes_read += dst.len() as u64;
        if world.inode(self.number).is_bad(offset, dst.len() as u64) {
            world.counters.bad_reads += 1;
            return Err(errno("read from", &self.path, EIO));
        }
        let shows_device = stored || world.class == MediumClass::PersistentMemory;
        let inode = world.inode(self.number);
        inode.volatile.read(offset, dst);
        if shows_device {
            inode.show_worn(offset, dst);
        }
        Ok(())
    }

    fn put(&self, step: Step, offset: u64, src: &[u8]) -> Result<()> {
        self.writable()?;
        let (mut world, verdict) = self.medium.admit(step, None, &self.path);
        self.check(&mut world, offset, src.len() as u64)?;
        let src = match verdict {
            Verdict::Allow => src,
            Verdict::WriteSome { bytes, .. } => &src[..bytes.min(src.len())],
            _ => &[],
        };
        if src.is_empty() {
            return verdict.plain();
        }
        let is_memory = world.class == MediumClass::PersistentMemory;
        if is_memory && world.inode(self.number).is_refused(offset, src.len() as u64) {
            return Err(errno("write to", &self.path, EIO));
        }
        if !is_memory {
            world.has_space(&self.path, self.number, offset, src.len() as u64)?;
        }
        if !world.inode(self.number).overwrite(offset, src.len() as u64) {
            return Err(errno("write to", &self.path, EIO));
        }
        let cached = step == Step::Store;
        if let Some(offset) = world.store(self.number, schedule::thread(), cached, offset, src) {
            world.faults.push(Fault::UnallocatedStore { path: self.path.clone(), offset });
        }
        verdict.plain()
    }
}

impl MediumFile for SimFile {
    fn len(&self) -> u64 {
        self.medium.lock().inode(self.number).volatile.len
    }

    fn is_removed(&self) -> Result<bool> {
        Ok(!self.medium.lock().names.has_name(self.number))
    }

    fn identity(&self) -> Result<Identity> {
        let mut world = self.medium.enter(Step::Identity, None, &self.path)?;
        let inode = world.inode(self.number);
        Ok(Identity { device: 1, inode: self.number, generation: inode.generation, birth: inode.birth })
    }

    fn stamp(&self) -> Result<Stamp> {
        let mut world = self.medium.enter(Step::Stamp, None, &self.path)?;
        let inode = world.inode(self.number);
        Ok(Stamp { size: inode.volatile.len, modified: time_of(inode.modified) })
    }

    /// A page that is damaged is one that the device has. The question never fails: where a file system does not answer
    /// it, everything counts as data.
    fn data_from(&self, offset: u64) -> Result<Option<Range<u64>>> {
        let mut world = self.medium.lock();
        let inode = world.inode(self.number);
        let len = inode.volatile.len;
        let is_data = |page: u64| {
            let mut worn = [0; PAGE as usize];
            inode.show_worn(page * PAGE, &mut worn);
            inode.volatile.has_page(page) || inode.is_bad(page * PAGE, PAGE) || worn != [0; PAGE as usize]
        };
        let mut pages = offset / PAGE..len.div_ceil(PAGE);
        let Some(first) = pages.by_ref().find(|page| is_data(*page)) else { return Ok(None) };
        let end = pages.find(|page| !is_data(*page)).map_or(len, |page| page * PAGE);
        Ok(Some(offset.max(first * PAGE)..end))
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.get(offset, dst, false)
    }

    fn read_stored(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.get(offset, dst, true)
    }

    /// As past the page cache.
    fn write_anew_unless_bad(&self, offset: u64, src: &[u8]) -> Result<bool> {
        if self.medium.lock().inode(self.number).is_refused(offset, src.len() as u64) {
            return Ok(false);
        }
        self.write_anew(offset, src).map(|()| true)
    }

    fn write(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.put(Step::Write, offset, src)
    }

    fn store(&self, offset: u64, src: &[u8]) -> Result<()> {
        self.put(Step::Store, offset, src)
    }

    fn prefetch(&self, _: u64) {
        // This stores nothing, but here the engine announces what it is about to do, and other threads may act first.
        schedule::point();
    }

    fn flush(&self, barrier: Barrier, offset: u64, len: u64) {
        if let Ok(mut world) = self.medium.enter(Step::Flush, Some(barrier), &self.path) {
            world.flush(self.number, schedule::thread(), barrier, offset, len);
        }
    }

    fn set_len(&self, len: u64) -> Result<()> {
        self.writable()?;
        let mut world = self.medium.enter(Step::SetLen, None, &self.path)?;
        if len > self.reserve {
            let what = format!("cannot set the length to {len} bytes: only {} were reserved at open", self.reserve);
            return Err(Error::Invalid { path: self.path.clone(), what });
        }
        if len != world.inode(self.number).volatile.len {
            world.change(self.number, What::SetLen { to: len });
        }
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let mut world = self.medium.enter(Step::Allocate, None, &self.path)?;
        self.check(&mut world, offset, len)?;
        world.has_space(&self.path, self.number, offset, len)?;
        if world.inode(self.number).volatile.unallocated(offset, len).is_some() {
            world.change(self.number, What::Allocate { at: offset, len });
        }
        Ok(())
    }

    fn own_space(&self, offset: u64, len: u64) -> u64 {
        let mut world = self.medium.lock();
        let inode = world.inode(self.number);
        let len = len.min(inode.volatile.len.saturating_sub(offset));
        inode.volatile.unallocated(offset, len).map_or(len, |hole| hole - offset)
    }

    fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let mut world = self.medium.enter(Step::Punch, None, &self.path)?;
        self.check(&mut world, offset, len)?;
        if len > 0 {
            world.change(self.number, What::Punch { at: offset, len });
        }
        Ok(())
    }

    fn sync(&self, barrier: Barrier) -> Result<()> {
        let (mut world, verdict) = self.medium.admit(Step::Sync, Some(barrier), &self.path);
        let sync = |world: &mut World| world.sync(self.number, schedule::thread(), barrier);
        world.flush_files(verdict, &self.path, &[self.number], sync)
    }

    fn distrust_cache(&self, barrier: Barrier, offset: u64, len: u64) -> Result<()> {
        self.writable()?;
        let mut world = self.medium.enter(Step::DistrustCache, Some(barrier), &self.path)?;
        world.distrust_cache(self.number, barrier, offset, len);
        Ok(())
    }

    fn mark(&self) -> Result<MarkState> {
        let mut world = self.medium.enter(Step::Mark, None, &self.path)?;
        if !world.has_attributes {
            return Ok(MarkState::Unsupported);
        }
        Ok(world.inode(self.number).volatile.mark.map_or(MarkState::Absent, MarkState::Present))
    }

    fn set_mark(&self, mark: Option<Mark>) -> Result<()> {
        self.writable()?;
        let mut world = self.medium.enter(Step::SetMark, None, &self.path)?;
        if mark.is_some() && world.inode(self.number).volatile.mark.is_none() {
            world.has_space_for_new(&self.path)?;
        }
        world.set_mark(self.number, mark);
        Ok(())
    }

    fn commit_note(&self) -> Result<Option<CommitNote>> {
        let mut world = self.medium.enter(Step::Mark, None, &self.path)?;
        Ok(world.inode(self.number).volatile.note)
    }

    fn set_commit_note(&self, note: CommitNote) -> Result<()> {
        self.writable()?;
        let mut world = self.medium.enter(Step::SetMark, None, &self.path)?;
        if !world.has_attributes {
            return Ok(());
        }
        match world.inode(self.number).volatile.note {
            Some(earlier) if earlier == note => return Ok(()),
            Some(_) => {}
            None => world.has_space_for_new(&self.path)?,
        }
        world.change(self.number, What::Note(note));
        Ok(())
    }

    fn try_lock(&self, kind: LockKind) -> Result<bool> {
        let mut world = self.medium.enter(Step::TryLock, None, &self.path)?;
        let locks = &mut world.inode(self.number).locks;
        let excludes = |held: LockKind| held == LockKind::Exclusive || kind == LockKind::Exclusive;
        if locks.iter().any(|(holder, held)| *holder != self.id && excludes(*held)) {
            return Ok(false);
        }
        locks.insert(self.id, kind);
        Ok(true)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut world = self.medium.lock();
        let inode = world.inode(self.number);
        inode.locks.remove(&self.id);
        inode.handles -= 1;
        if inode.handles == 0 {
            world.collect();
        }
    }
}
