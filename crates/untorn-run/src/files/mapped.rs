//! Shared mappings of managed files: made, looked at again, synced.

use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno as Sys;
use untorn_wire::{Reply, Request};

use super::state::State;
use super::twin::Mapping;
use super::{Files, Key, lock};
use crate::descriptor::{fail, flags};
use crate::managed::{Errno, io_errno, libc_errno};
use crate::maps::{Area, areas};

/// What a process has mapped.
fn areas_of(process: u32) -> Result<Vec<Area>, Errno> {
    areas(process).map_err(|error| io_errno(&error))
}

/// A range of addresses, of whole pages.
fn range(request: &Request) -> Result<(usize, usize), Errno> {
    let page = rustix::param::page_size();
    let start = usize::try_from(request.number).map_err(|_| libc_errno(Sys::INVAL))?;
    let len = usize::try_from(request.offset).map_err(|_| libc_errno(Sys::INVAL))?;
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    Ok((start, end.ok_or(libc_errno(Sys::INVAL))?))
}

impl Files {
    /// A descriptor is about to be mapped: the twin of its file, through which it may be stored to or not.
    pub(crate) fn map(&self, descriptor: &OwnedFd, writable: bool) -> Result<OwnedFd, Errno> {
        let access = flags(descriptor)? & OFlags::RWMODE;
        if access == OFlags::WRONLY || writable && access != OFlags::RDWR {
            return fail(Sys::ACCESS);
        }
        self.with(descriptor, |state| {
            let twin = state.twin(&*self.mode, writable)?.descriptor(writable)?;
            self.ledger.of(state.path(), |report| report.mappings += 1);
            Ok(twin)
        })
    }

    /// Runs `call` on the file whose twin has this inode, under its lock. EBADF if it is managed no more.
    fn with_twin<T>(
        &self,
        inode: u64,
        call: impl FnOnce(&Arc<Mutex<State>>, &mut State) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        for file in self.all() {
            let mut state = lock(&file);
            if !state.is_over() && state.present_twin().is_some_and(|twin| twin.inode == inode) {
                state.bury(&*self.mode, &self.processes, &self.ledger);
                return call(&file, &mut state);
            }
        }
        fail(Sys::BADF)
    }

    /// Where the file is whose twin has this inode, among files in memory.
    pub(super) fn path_of_twin(&self, inode: u64) -> Option<PathBuf> {
        self.with_twin(inode, |_, state| Ok(state.path().to_owned())).ok()
    }

    /// A process mapped a twin. From now on its stores are heard of, over `watch` if it can store at all.
    pub(crate) fn mapped(&self, process: u32, request: &Request, watch: Option<OwnedFd>) -> Result<(), Errno> {
        let (start, end) = range(request)?;
        let found = areas_of(process)?.into_iter().find_map(|area| area.within(start, end));
        let Some(found) = found.filter(|found| found.start == start) else { return fail(Sys::INVAL) };
        let mapping = Arc::new(Mapping::new(process, Area { end, ..found }, watch)?);
        self.with_twin(found.inode, |file, state| {
            if mapping.watch().is_some() {
                let (files, file, mapping) = (self.me.clone(), file.clone(), mapping.clone());
                let listen = move || {
                    while let Some(address) = next_store(&mapping) {
                        let Some(files) = files.upgrade() else { return };
                        let mut state = lock(&file);
                        state.bury(&*files.mode, &files.processes, &files.ledger);
                        state.stored(&*files.mode, &mapping, address, &files.ledger);
                        // Under the lock: a commit protects it again after this, not before.
                        if let Some(watch) = mapping.watch() {
                            watch.let_go(address, rustix::param::page_size());
                        }
                    }
                };
                thread::Builder::new()
                    .name("untorn-stores".to_owned())
                    .spawn(listen)
                    .map_err(|error| io_errno(&error))?;
            }
            if let Some(twin) = state.present_twin() {
                twin.take_up(mapping);
            }
            Ok(())
        })
    }

    fn keyed(&self) -> Vec<(Key, Arc<Mutex<State>>)> {
        lock(&self.table).iter().map(|(key, state)| (*key, state.clone())).collect()
    }

    /// Mappings of processes that have ended are no more.
    pub(super) fn forget_unmapped(&self) {
        for file in self.all() {
            if let Some(twin) = lock(&file).present_twin() {
                twin.look_again(None);
            }
        }
    }

    /// A process gave mappings up. A file that nobody holds any more is let go of.
    ///
    /// # Errors
    /// That of the commit.
    pub(crate) fn unmapped(&self, process: u32) -> Result<(), Errno> {
        let mut outcome = Ok(());
        for (key, file) in self.keyed() {
            let fewer = lock(&file).present_twin().is_some_and(|twin| twin.look_again(Some(process)));
            if fewer {
                outcome = outcome.and(self.let_go(key));
            }
        }
        outcome
    }

    /// A part of what a process has mapped that nobody here knows of.
    pub(crate) fn inherited(&self, process: u32) -> Result<Reply, Errno> {
        let mut known = Vec::new();
        for file in self.all() {
            let mut state = lock(&file);
            let Some(twin) = state.present_twin() else { continue };
            known.extend(twin.mappings.iter().filter(|mapping| mapping.process == process).map(|mapping| mapping.area));
        }
        let unknown = areas_of(process)?.into_iter().find_map(|area| {
            let mut start = area.start;
            while let Some(covering) =
                known.iter().find(|known| known.inode == area.inode && (known.start..known.end).contains(&start))
            {
                start = covering.end;
            }
            let next = known.iter().filter(|known| known.inode == area.inode && known.start > start);
            let end = next.map(|known| known.start).min().unwrap_or(usize::MAX);
            area.within(start, end)
        });
        Ok(unknown.map_or_else(Reply::default, |area| Reply {
            managed: 1,
            value: area.start as i64,
            seconds: (area.end - area.start) as i64,
            ..Reply::default()
        }))
    }

    /// `msync`: commits every file of which something is mapped there. The first error, after all had their turn.
    pub(crate) fn sync_mapped(&self, process: u32, request: &Request) -> Result<(), Errno> {
        let (start, end) = range(request)?;
        let mut inodes: Vec<u64> =
            areas_of(process)?.into_iter().filter_map(|area| area.within(start, end)).map(|area| area.inode).collect();
        inodes.dedup();
        let mut outcome = Ok(());
        for inode in inodes {
            outcome = outcome.and(self.with_twin(inode, |_, state| state.commit(&self.ledger)));
        }
        outcome
    }

    /// What is needed to make the mapping at an address once more.
    pub(crate) fn map_again(&self, process: u32, request: &Request) -> Result<(Reply, Option<OwnedFd>), Errno> {
        let start = usize::try_from(request.number).map_err(|_| libc_errno(Sys::INVAL))?;
        let len = usize::try_from(request.offset).map_err(|_| libc_errno(Sys::INVAL))?;
        let within = |area: Area| area.within(start, start.saturating_add(len));
        let Some(found) = areas_of(process)?.into_iter().find_map(within) else { return Ok((Reply::default(), None)) };
        self.with_twin(found.inode, |_, state| {
            let Some(twin) = state.present_twin() else { return fail(Sys::BADF) };
            let writable = twin.mappings.iter().any(|mapping| {
                let area = mapping.area;
                mapping.process == process && (area.start..area.end).contains(&found.start) && mapping.watch().is_some()
            });
            let reply = Reply {
                managed: 1,
                value: found.offset as i64,
                seconds: found.protection.into(),
                nanoseconds: writable.into(),
                ..Reply::default()
            };
            Ok((reply, Some(twin.descriptor(writable)?)))
        })
    }
}

/// Waits for a store; where it is about to be. `None` once nobody has to hear of them.
fn next_store(mapping: &Mapping) -> Option<usize> {
    let watch = mapping.watch()?;
    loop {
        let mut polled = [
            PollFd::from_borrowed_fd(mapping.bell(), PollFlags::IN),
            PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN),
        ];
        match poll(&mut polled, None) {
            Err(Sys::INTR) => continue,
            Err(_) => return None,
            Ok(_) if !polled[0].revents().is_empty() => return None,
            Ok(_) => {}
        }
        if let Some(address) = watch.next().ok()? {
            return Some(address);
        }
    }
}
