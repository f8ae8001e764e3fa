//! Shared mappings of managed files: made, looked at again, synced.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::fs::OFlags;
use rustix::io::Errno as Sys;
use untorn_wire::{Addresses, MapAgainReply, Mapped, Placed};

use super::mapping::Mapping;
use super::state::State;
use super::{Files, Key, lock};
use crate::descriptor::{fail, flags};
use crate::managed::{Errno, io_errno, libc_errno};
use crate::maps::{Area, areas};

/// What a process has mapped.
fn areas_of(process: u32) -> Result<Vec<Area>, Errno> {
    areas(process).map_err(|error| io_errno(&error))
}

/// An address, or a length, of this machine's memory.
fn address(number: u64) -> Result<usize, Errno> {
    usize::try_from(number).map_err(|_| libc_errno(Sys::INVAL))
}

/// A range of addresses, of whole pages.
fn range(at: Addresses) -> Result<(usize, usize), Errno> {
    let page = rustix::param::page_size();
    let (start, len) = (address(at.start)?, address(at.len)?);
    let end = start.checked_add(len).and_then(|end| end.checked_next_multiple_of(page));
    Ok((start, end.ok_or(libc_errno(Sys::INVAL))?))
}

impl Files {
    /// A descriptor is about to be mapped: the twin of its file, through which it may be stored to or not.
    pub(crate) fn map(&self, descriptor: &OwnedFd, process: u32, writable: bool) -> Result<OwnedFd, Errno> {
        let access = flags(descriptor)? & OFlags::RWMODE;
        if access == OFlags::WRONLY || writable && access != OFlags::RDWR {
            return fail(Sys::ACCESS);
        }
        let status = rustix::fs::fstat(descriptor).map_err(libc_errno)?;
        self.with(descriptor, process, |state| {
            let twin = state.twin(&*self.mode, writable)?;
            self.places.note_twin(twin.inode, (status.st_dev, status.st_ino));
            let twin = twin.descriptor(writable)?;
            self.ledger.of(state.path(), |report| report.mappings += 1);
            Ok(twin)
        })
    }

    /// Runs `call`, of a process if one waits for it, on the file whose twin has this inode, under its lock. EBADF if
    /// it is managed no more.
    fn with_twin<T>(
        &self,
        inode: u64,
        process: Option<u32>,
        call: impl FnOnce(Key, &Arc<Mutex<State>>, &mut State) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let found = self.places.file_of(inode).and_then(|key| Some((key, self.find(key)?)));
        let Some((key, file)) = found else { return fail(Sys::BADF) };
        let mut state = lock(&file);
        if state.is_over() || state.present_twin().is_none_or(|twin| twin.inode != inode) {
            return fail(Sys::BADF);
        }
        state.bury(&*self.mode, &self.processes, &self.ledger, process);
        call(key, &file, &mut state)
    }

    /// Where the file is whose twin has this inode, among files in memory.
    pub(super) fn path_of_twin(&self, inode: u64) -> Option<PathBuf> {
        self.with_twin(inode, None, |_, _, state| Ok(state.path().to_owned())).ok()
    }

    /// A process mapped a twin, or is about to move a mapping to its place. From now on its stores are heard of, over
    /// `watch` if it can store at all.
    ///
    /// # Errors
    /// EBUSY while another mapping is about to be moved to the same place.
    pub(crate) fn mapped(&self, process: u32, request: Mapped, watch: Option<OwnedFd>) -> Result<(), Errno> {
        let (start, end) = range(request.at)?;
        let found = areas_of(process)?.into_iter().find_map(|area| area.within(start, end));
        let Some(found) = found.filter(|found| found.start == start) else { return fail(Sys::INVAL) };
        let place = address(request.place)?;
        let (from, start) = if place == 0 { (0, start) } else { (start, place) };
        let end = start.checked_add(end - found.start).ok_or(libc_errno(Sys::INVAL))?;
        let mapping = Arc::new(Mapping::new(process, Area { start, end, ..found }, watch, from)?);
        self.with_twin(found.inode, Some(process), |key, file, state| {
            if mapping.is_watched() {
                self.listen(file, &mapping)?;
            }
            let taken = self.take_up(key, state, &mapping);
            if taken.is_err() {
                mapping.end();
            }
            taken
        })
    }

    /// Has a thread hear of stores to a mapping of a file.
    fn listen(&self, file: &Arc<Mutex<State>>, mapping: &Arc<Mapping>) -> Result<(), Errno> {
        let (files, file, mapping) = (self.me.clone(), file.clone(), mapping.clone());
        let listen = move || {
            while let Some(address) = mapping.next_store() {
                let Some(files) = files.upgrade() else { return };
                let mut state = lock(&file);
                state.bury(&*files.mode, &files.processes, &files.ledger, Some(mapping.process));
                // Elsewhere nothing is let go, and who stores is told of once more if it is to one that is heard of.
                if mapping.is_at(address) {
                    state.stored(&*files.mode, &mapping, address, &files.ledger);
                }
                // Under the lock: a commit protects it again after this, not before.
                mapping.let_go(address);
            }
        };
        let spawned = thread::Builder::new().name("untorn-stores".to_owned()).spawn(listen);
        spawned.map(drop).map_err(|_| libc_errno(Sys::NOMEM))
    }

    fn take_up(&self, key: Key, state: &mut State, mapping: &Arc<Mapping>) -> Result<(), Errno> {
        let Some(parts) = self.places.take_up(key, mapping) else { return fail(Sys::BUSY) };
        // One that is coming is told of before it is in its place. Any other has the place of one that was unmapped a
        // moment ago, and a page that was let go there late may be one of its own.
        for part in parts.into_iter().filter(|_| mapping.is_watched() && !mapping.is_coming()) {
            mapping.protect(&(part.start..part.end)).map_err(|error| io_errno(&error))?;
            for address in (part.start..part.end).step_by(rustix::param::page_size()) {
                state.stored(&*self.mode, mapping, address, &self.ledger);
            }
        }
        if let Some(twin) = state.present_twin() {
            twin.take_up(mapping.clone());
        }
        Ok(())
    }

    /// What a process was about to move to its place is there, or will never be.
    ///
    /// # Errors
    /// That of the commit of a file that nobody holds any more.
    pub(crate) fn placed(&self, process: u32, request: Placed) -> Result<(), Errno> {
        let Placed { at, from, placed } = request;
        let from = address(from)?;
        let (place, _) = range(at)?;
        if let Some((key, mapping)) = self.places.coming(process, from, place)
            && let Some(file) = self.find(key)
        {
            let mut state = lock(&file);
            self.places.has_come(&mapping, placed);
            match state.present_twin() {
                Some(twin) if placed => twin.has_come(&mapping),
                Some(twin) => twin.give_up(&mapping),
                None => {}
            }
            if !placed {
                mapping.end();
                drop(state);
                // While it was coming nobody else could.
                let outcome = self.let_go(key);
                return outcome.and(self.unmapped(process, at));
            }
        }
        self.unmapped(process, at)
    }

    /// Mappings of processes that have ended are no more.
    pub(super) fn forget_unmapped(&self) {
        for file in self.all() {
            if let Some(twin) = lock(&file).present_twin() {
                twin.look_again(None);
            }
        }
    }

    /// A process gave up what it had mapped in a range of addresses. A file that nobody holds any more is let go of.
    /// Only files of which it had something there are looked at, lest it wait for the commits of others.
    ///
    /// # Errors
    /// That of the commit.
    pub(crate) fn unmapped(&self, process: u32, at: Addresses) -> Result<(), Errno> {
        let (start, end) = range(at)?;
        let mut outcome = Ok(());
        for key in self.places.files_in(process, start, end) {
            if self.is_unmapped(key, process) {
                outcome = outcome.and(self.let_go(key));
            }
        }
        outcome
    }

    /// A process is another program now, and nobody hears of what the earlier one had mapped. How the process ends
    /// says what becomes of what that one stored.
    pub(super) fn became(&self, process: u32) {
        for key in self.places.files_in(process, 0, usize::MAX) {
            self.is_unmapped(key, process);
        }
    }

    /// Lets go of what a process has mapped of a file no more; whether there was anything.
    fn is_unmapped(&self, key: Key, process: u32) -> bool {
        let Some(file) = self.find(key) else { return false };
        lock(&file).present_twin().is_some_and(|twin| twin.look_again(Some(process)))
    }

    /// A part of what a process has mapped that nobody here knows of.
    pub(crate) fn inherited(&self, process: u32) -> Result<Option<Addresses>, Errno> {
        let known = self.places.of(process);
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
        Ok(unknown.map(|area| Addresses { start: area.start as u64, len: (area.end - area.start) as u64 }))
    }

    /// `msync`: commits every file of which something is mapped there. The first error, after all had their turn.
    pub(crate) fn sync_mapped(&self, process: u32, at: Addresses) -> Result<(), Errno> {
        let (start, end) = range(at)?;
        let mut inodes: Vec<u64> =
            areas_of(process)?.into_iter().filter_map(|area| area.within(start, end)).map(|area| area.inode).collect();
        inodes.dedup();
        let mut outcome = Ok(());
        for inode in inodes {
            outcome = outcome.and(self.with_twin(inode, Some(process), |_, _, state| state.commit(&self.ledger)));
        }
        outcome
    }

    /// The arguments that make the first mapping in a range of addresses once more, and its twin; `None` without one.
    pub(crate) fn map_again(&self, process: u32, at: Addresses) -> Result<Option<(MapAgainReply, OwnedFd)>, Errno> {
        let (start, len) = (address(at.start)?, address(at.len)?);
        let within = |area: Area| area.within(start, start.saturating_add(len));
        let Some(found) = areas_of(process)?.into_iter().find_map(within) else { return Ok(None) };
        self.with_twin(found.inode, Some(process), |_, _, state| {
            let Some(twin) = state.present_twin() else { return fail(Sys::BADF) };
            let writable = twin.mappings.iter().any(|mapping| {
                let area = mapping.area;
                mapping.process == process && (area.start..area.end).contains(&found.start) && mapping.is_watched()
            });
            let Area { offset, protection, .. } = found;
            let reply = MapAgainReply { found: true, offset, protection, writable };
            Ok(Some((reply, twin.descriptor(writable)?)))
        })
    }
}
