//! What programs map in the place of a managed file: a file in memory with the same bytes.
//!
//! The kernel maps it as it would the file itself: what is beyond its end is a SIGBUS, and all mappings show the same
//! bytes. What calls write goes to the engine and to the twin, and is read from there. What programs *store* is in
//! the twin only, until a commit hands it to the engine. So that nothing of it is missed, and that all of it is of
//! one instant, memory that may be stored to is protected by userfaultfd(2), in every process: the first store to a
//! page waits until the page is noted here; a commit protects all pages that were noted, in every process, before it
//! copies the first.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SeekFrom};
use rustix::io::Errno as Sys;

use super::mapping::Mapping;
use crate::managed::{Errno, io_errno, libc_errno};
use crate::maps::{self, Unclaimed};

/// Bytes that are copied at once.
const PIECE: u64 = 1 << 20;

fn page() -> u64 {
    rustix::param::page_size() as u64
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.mappings.iter().for_each(|mapping| mapping.end());
    }
}

/// A twin.
pub(super) struct Twin {
    memory: File,
    pub(super) inode: u64,
    pub(super) mappings: Vec<Arc<Mapping>>,
    /// Pages that may have been stored to since the last commit.
    stored: BTreeSet<u64>,
    /// Pages that may be stored to unheard: by whom, and at which address.
    open: Vec<(Arc<Mapping>, usize)>,
}

impl Twin {
    /// One with the bytes that `read` reads, of a file of `len` bytes.
    pub(super) fn new(len: u64, read: impl Fn(&mut [u8], u64) -> Result<(), Errno>) -> Result<Self, Errno> {
        let memory = rustix::fs::memfd_create(maps::NAME, MemfdFlags::CLOEXEC).map_err(libc_errno)?;
        let memory = File::from(memory);
        let inode = memory.metadata().map_err(|error| io_errno(&error))?.ino();
        let twin = Twin { memory, inode, mappings: Vec::new(), stored: BTreeSet::new(), open: Vec::new() };
        twin.fill(len, read)?;
        Ok(twin)
    }

    /// Gives it these bytes. Where it has them already it stays as it is; so zeros take no memory.
    pub(super) fn fill(&self, len: u64, read: impl Fn(&mut [u8], u64) -> Result<(), Errno>) -> Result<(), Errno> {
        let failed = |error| io_errno(&error);
        self.cut(len)?;
        let (mut wanted, mut found) = (Vec::new(), Vec::new());
        for at in (0..len).step_by(PIECE as usize) {
            let count = (len - at).min(PIECE) as usize;
            wanted.resize(count, 0);
            found.resize(count, 0);
            read(&mut wanted, at)?;
            self.read_at(&mut found, at)?;
            let pages = wanted.chunks(page() as usize).zip(found.chunks(page() as usize));
            for (number, (wanted, _)) in pages.enumerate().filter(|(_, (wanted, found))| wanted != found) {
                self.memory.write_all_at(wanted, at + number as u64 * page()).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// Its descriptor, which can be stored through or not.
    pub(super) fn descriptor(&self, writable: bool) -> Result<OwnedFd, Errno> {
        let path = format!("/proc/self/fd/{}", self.memory.as_raw_fd());
        let opened = if writable { self.memory.try_clone() } else { File::open(path) };
        Ok(opened.map_err(|error| io_errno(&error))?.into())
    }

    fn len(&self) -> Result<u64, Errno> {
        Ok(self.memory.metadata().map_err(|error| io_errno(&error))?.len())
    }

    /// Fills `bytes` from `offset`; they are within it.
    pub(super) fn read_at(&self, bytes: &mut [u8], offset: u64) -> Result<(), Errno> {
        // Of a long hole nothing is read, nor is memory taken for it.
        let data = rustix::fs::seek(&self.memory, SeekFrom::Data(offset));
        if data == Err(Sys::NXIO) || data.is_ok_and(|data| data >= offset + bytes.len() as u64) {
            bytes.fill(0);
            return Ok(());
        }
        self.memory.read_exact_at(bytes, offset).map_err(|error| io_errno(&error))
    }

    /// What a call wrote.
    pub(super) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        self.hide(offset.saturating_add(bytes.len() as u64))?;
        self.memory.write_all_at(bytes, offset).map_err(|error| io_errno(&error))
    }

    /// Before it gets longer: what was stored between its end and that of its last page is no part of the file.
    fn hide(&self, to: u64) -> Result<(), Errno> {
        let end = self.len()?;
        let count = end.next_multiple_of(page()).min(to).saturating_sub(end);
        self.memory.write_all_at(&vec![0; count as usize], end).map_err(|error| io_errno(&error))
    }

    /// Changes its length.
    pub(super) fn set_len(&mut self, len: u64) -> Result<(), Errno> {
        self.hide(len)?;
        self.cut(len)?;
        let end = len.next_multiple_of(page());
        self.stored.retain(|number| number * page() < end);
        self.open.retain(|(mapping, address)| mapping.area.offset + ((address - mapping.area.start) as u64) < end);
        Ok(())
    }

    /// Gives the memory this length, whatever it has of it. Where the kernel takes pages away it forgets which of
    /// them stores wait for, or do not: beyond the new end all of them do from here on, and nobody stores there until
    /// it gets longer. What comes to be within it is as it was when it was mapped, or last cut off.
    fn cut(&self, len: u64) -> Result<(), Errno> {
        let before = self.len()?;
        self.memory.set_len(len).map_err(|error| io_errno(&error))?;
        if len >= before {
            return Ok(());
        }
        let end = len.next_multiple_of(page());
        for mapping in &self.mappings {
            let skip = usize::try_from(end.saturating_sub(mapping.area.offset)).unwrap_or(usize::MAX);
            let range = mapping.area.start.saturating_add(skip)..mapping.area.end;
            if range.start < range.end {
                mapping.protect(&range).map_err(|error| io_errno(&error))?;
            }
        }
        Ok(())
    }

    /// From now on who touches it is told by SIGBUS, as of a device that fails.
    pub(super) fn take_away(&mut self) {
        let _ = self.memory.set_len(0);
        self.forget();
    }

    /// What was stored is of no account.
    pub(super) fn forget(&mut self) {
        self.stored.clear();
        self.open.clear();
    }

    /// Notes that a page is about to be stored to.
    pub(super) fn note(&mut self, mapping: &Arc<Mapping>, address: usize) {
        self.stored.insert((mapping.area.offset + (address - mapping.area.start) as u64) / page());
        self.open.push((mapping.clone(), address));
    }

    /// Has all stores wait from here on: what it has then is what it had at one instant.
    fn protect(&mut self) -> Result<(), Errno> {
        self.open.sort_unstable_by_key(|(mapping, address)| (Arc::as_ptr(mapping) as usize, *address));
        let step = page() as usize;
        let mut rest = self.open.as_slice();
        while let Some((mapping, start)) = rest.first() {
            let together = |(number, (other, address)): &(usize, &(Arc<Mapping>, usize))| {
                Arc::ptr_eq(mapping, other) && *address == start + number * step
            };
            let count = rest.iter().enumerate().take_while(together).count();
            mapping.protect(&(*start..start + count * step)).map_err(|error| io_errno(&error))?;
            rest = rest.get(count..).unwrap_or_default();
        }
        self.open.clear();
        Ok(())
    }

    /// Hands all that was stored to `write`, as of one instant. If that fails it is all to be done once more.
    pub(super) fn fold(&mut self, mut write: impl FnMut(&[u8], u64) -> Result<(), Errno>) -> Result<(), Errno> {
        if self.stored.is_empty() {
            return Ok(());
        }
        self.protect()?;
        let len = self.len()?;
        let mut bytes = Vec::new();
        let mut pages = self.stored.iter().copied().peekable();
        while let Some(first) = pages.next() {
            let mut last = first;
            while (last + 1 - first) * page() < PIECE && pages.next_if_eq(&(last + 1)).is_some() {
                last += 1;
            }
            let (from, to) = (first * page(), ((last + 1) * page()).min(len));
            if from < to {
                bytes.resize((to - from) as usize, 0);
                self.read_at(&mut bytes, from)?;
                write(&bytes, from)?;
            }
        }
        self.stored.clear();
        Ok(())
    }

    /// Lets go of mappings, of one process or of all, that are there no more; whether there were any. One that cannot
    /// be looked at is there.
    pub(super) fn look_again(&mut self, process: Option<u32>) -> bool {
        let before = self.mappings.len();
        let mut known = BTreeMap::new();
        // From the latest on: what it has is none of an earlier one's in the place of which it was made.
        let mut kept: Vec<Arc<Mapping>> = Vec::with_capacity(before);
        let mut gone = HashSet::new();
        for mapping in std::mem::take(&mut self.mappings).into_iter().rev() {
            let is_asked_for = process.is_none_or(|process| process == mapping.process);
            let areas = is_asked_for
                .then(|| known.entry(mapping.process).or_insert_with(|| Unclaimed::of(mapping.process).ok()))
                .and_then(|areas| areas.as_mut());
            let there = areas.is_none_or(|areas| {
                if mapping.is_coming() {
                    // It is here or there, or the process is no more. Who reads while it is moved may find it in
                    // neither place, but it is moved only once.
                    return areas.is_alive() || Unclaimed::of(mapping.process).map_or(true, |areas| areas.is_alive());
                }
                let is_there = !mapping.parts(areas.over(&mapping.area)).is_empty();
                if is_there {
                    areas.claim(&mapping.area);
                }
                is_there
            });
            if there {
                kept.push(mapping);
            } else {
                mapping.end();
                gone.insert(Arc::as_ptr(&mapping));
            }
        }
        kept.reverse();
        // Nobody stores there any more; what was stored is committed all the same.
        self.open.retain(|(mapping, _)| gone.is_empty() || !gone.contains(&Arc::as_ptr(mapping)));
        self.mappings = kept;
        before != self.mappings.len()
    }

    /// Takes a mapping up that was just made, and lets go of those in the place of which it was.
    pub(super) fn take_up(&mut self, mapping: Arc<Mapping>) {
        let process = mapping.process;
        let replaces = !mapping.is_coming()
            && self.mappings.iter().any(|other| {
                other.process == process && other.area.within(mapping.area.start, mapping.area.end).is_some()
            });
        self.mappings.push(mapping);
        if replaces {
            self.look_again(Some(process));
        }
    }

    /// A mapping that was coming is the latest in its place.
    pub(super) fn has_come(&mut self, mapping: &Arc<Mapping>) {
        self.give_up(mapping);
        self.mappings.push(mapping.clone());
    }

    /// A mapping is none of this file's.
    pub(super) fn give_up(&mut self, mapping: &Arc<Mapping>) {
        self.mappings.retain(|other| !Arc::ptr_eq(other, mapping));
    }
}
