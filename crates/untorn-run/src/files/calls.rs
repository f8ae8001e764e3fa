//! The calls of programs on managed files. Each is one critical section of its file.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::io::Errno as Sys;
use untorn_wire::{Allocate, MOST, Read, Seek, Write};

use super::state::{State, Time};
use super::{Files, Key, lock};
use crate::descriptor::{
    RWF_APPEND, RWF_DSYNC, RWF_HINTS, RWF_NOAPPEND, RWF_SYNC, fail, flags, move_to, path_of, position, sought,
    synchronous, writable,
};
use crate::managed::{Errno, libc_errno};

/// Modes of `fallocate`.
const KEEP_SIZE: i32 = 1;
const PUNCH_HOLE: i32 = 2;
const ZERO_RANGE: i32 = 16;

/// Zeros are written in pieces of this many bytes.
const ZEROS: u64 = 1 << 20;

impl Files {
    /// A descriptor was opened, to truncate the file if so asked.
    pub(crate) fn opened(&self, descriptor: &OwnedFd, process: u32, truncate: bool) -> Result<(), Errno> {
        self.with(descriptor, process, |state| {
            state.standing()?;
            if truncate {
                state.set_len(&*self.mode, descriptor, process, 0)?;
            }
            self.ledger.of(state.path(), |report| report.opens += 1);
            Ok(())
        })
    }

    /// A file, or some of all, lost its last name.
    pub(super) fn unnamed(&self, key: Option<Key>) {
        let files = key.map_or_else(|| self.all(), |key| self.find(key).into_iter().collect());
        for state in files {
            lock(&state).was_unnamed();
        }
    }

    /// Reads, and moves the descriptor's offset where it is used.
    pub(crate) fn read(&self, descriptor: &OwnedFd, process: u32, request: Read) -> Result<Vec<u8>, Errno> {
        if flags(descriptor)? & OFlags::RWMODE == OFlags::WRONLY {
            return fail(Sys::BADF);
        }
        if request.flags & !RWF_HINTS != 0 {
            return fail(Sys::OPNOTSUPP);
        }
        self.with(descriptor, process, |state| {
            state.standing()?;
            let explicit = request.position.explicit();
            let at = explicit.map_or_else(|| position(descriptor), Ok)?;
            let bytes = state.read(at, request.count.min(MOST))?;
            if explicit.is_none() && !bytes.is_empty() {
                move_to(descriptor, at + bytes.len() as u64)?;
            }
            self.ledger.of(state.path(), |report| report.reads += 1);
            Ok(bytes)
        })
    }

    /// Writes, and moves the descriptor's offset where it is used.
    pub(crate) fn write(&self, descriptor: &OwnedFd, process: u32, request: Write, bytes: &[u8]) -> Result<(), Errno> {
        let flags = flags(descriptor)?;
        if !writable(flags) {
            return fail(Sys::BADF);
        }
        if request.flags & !(RWF_HINTS | RWF_DSYNC | RWF_SYNC | RWF_APPEND | RWF_NOAPPEND) != 0
            || request.flags & (RWF_APPEND | RWF_NOAPPEND) == RWF_APPEND | RWF_NOAPPEND
        {
            return fail(Sys::OPNOTSUPP);
        }
        let appends =
            request.flags & RWF_APPEND != 0 || flags.contains(OFlags::APPEND) && request.flags & RWF_NOAPPEND == 0;
        self.with(descriptor, process, |state| {
            state.standing()?;
            if bytes.is_empty() {
                return Ok(());
            }
            let explicit = request.position.explicit();
            let at = match explicit {
                // As Linux has it: also `pwrite` appends (see its manual page, "Bugs").
                _ if appends => state.len()?,
                Some(offset) => offset,
                None => position(descriptor)?,
            };
            let end = at.checked_add(bytes.len() as u64).filter(|end| i64::try_from(*end).is_ok());
            let Some(end) = end else { return fail(Sys::FBIG) };
            state.write(&*self.mode, descriptor, process, at, bytes)?;
            if explicit.is_none() {
                move_to(descriptor, end)?;
            }
            self.ledger.of(state.path(), |report| {
                report.writes += 1;
                report.bytes_written += bytes.len() as u64;
            });
            if request.flags & (RWF_DSYNC | RWF_SYNC) != 0 || synchronous(flags) {
                state.commit(&self.ledger)?;
            }
            Ok(())
        })
    }

    /// `lseek`. The whole file is data, which `SEEK_DATA` and `SEEK_HOLE` may say of any file.
    pub(crate) fn seek(&self, descriptor: &OwnedFd, process: u32, request: Seek) -> Result<i64, Errno> {
        self.with(descriptor, process, |state| {
            state.standing()?;
            let at = sought(descriptor, request, state.len()?)?;
            move_to(descriptor, at)?;
            i64::try_from(at).map_err(|_| libc_errno(Sys::OVERFLOW))
        })
    }

    pub(crate) fn set_length(&self, descriptor: &OwnedFd, process: u32, len: u64) -> Result<(), Errno> {
        if !writable(flags(descriptor)?) {
            return fail(Sys::INVAL);
        }
        self.with(descriptor, process, |state| {
            state.standing()?;
            state.set_len(&*self.mode, descriptor, process, len)
        })
    }

    /// `fallocate`: zeros where bytes are given up, and a longer file; what would move bytes is told no.
    pub(crate) fn allocate(&self, descriptor: &OwnedFd, process: u32, request: Allocate) -> Result<(), Errno> {
        if !writable(flags(descriptor)?) {
            return fail(Sys::BADF);
        }
        let Allocate { offset, len, mode } = request;
        let end = offset.checked_add(len).filter(|end| i64::try_from(*end).is_ok());
        let Some(end) = end else { return fail(Sys::FBIG) };
        let zeros = match mode & !KEEP_SIZE {
            0 => false,
            ZERO_RANGE => true,
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => true,
            _ => return fail(Sys::OPNOTSUPP),
        };
        self.with(descriptor, process, |state| {
            state.standing()?;
            if zeros {
                self.write_zeros(state, descriptor, process, offset, end)?;
            }
            if mode & KEEP_SIZE == 0 && end > state.len()? {
                state.set_len(&*self.mode, descriptor, process, end)?;
            }
            Ok(())
        })
    }

    fn write_zeros(
        &self,
        state: &mut State,
        descriptor: &OwnedFd,
        process: u32,
        offset: u64,
        end: u64,
    ) -> Result<(), Errno> {
        let end = end.min(state.len()?);
        let zeros = vec![0; ZEROS.min(end.saturating_sub(offset)) as usize];
        let mut at = offset;
        while at < end {
            let piece = zeros.get(..(end - at).min(ZEROS) as usize).unwrap_or(&zeros);
            state.write(&*self.mode, descriptor, process, at, piece)?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    /// `fsync` and its kin.
    pub(crate) fn commit(&self, descriptor: &OwnedFd, process: u32) -> Result<(), Errno> {
        self.with(descriptor, process, |state| state.commit(&self.ledger))
    }

    /// `sync` and `syncfs`: all of them, each on its own. The first error, after all had their turn.
    pub(crate) fn commit_all(&self, process: u32) -> Result<(), Errno> {
        let mut outcome = Ok(());
        for state in self.all() {
            let mut state = lock(&state);
            if !state.is_over() {
                state.bury(&*self.mode, &self.processes, &self.ledger, Some(process));
                outcome = outcome.and(state.commit(&self.ledger));
            }
        }
        outcome
    }

    /// Length and time of the last change of a file, where they differ from the kernel's.
    pub(crate) fn status(&self, key: Key, process: u32) -> Result<Option<(u64, Time)>, Errno> {
        let Some(state) = self.find(key) else { return Ok(None) };
        let mut state = lock(&state);
        if state.is_over() {
            return Ok(None);
        }
        state.bury(&*self.mode, &self.processes, &self.ledger, Some(process));
        state.overlay()
    }

    pub(crate) fn times_were_set(&self, key: Key) -> Result<(), Errno> {
        let Some(state) = self.find(key) else { return Ok(()) };
        let mut state = lock(&state);
        if state.is_over() { Ok(()) } else { state.times_were_set() }
    }

    /// A directory is about to get another name. What has a sidecar below it is made plain, for the sidecar would be
    /// looked for where it was; it gets one anew when it is changed next.
    ///
    /// # Errors
    /// ENOTSUP if something below has changes of an open epoch, or is mapped; that of settling what has none.
    pub(crate) fn directory_is_to_be_moved(&self, descriptor: &OwnedFd) -> Result<(), Errno> {
        let path = path_of(descriptor)?;
        for (key, state) in self.entries() {
            let mut state = lock(&state);
            if state.is_over() || !state.is_covered() || !state.is_below(&path) {
                continue;
            }
            state.bury(&*self.mode, &self.processes, &self.ledger, None);
            state.standing()?;
            if state.has_epoch() {
                return fail(Sys::OPNOTSUPP);
            }
            let settled = state.finish(&self.ledger);
            self.forget(key);
            settled?;
        }
        Ok(())
    }

    /// Whether a file is managed; and whether it is under the engine now, with a sidecar that stands in its directory.
    pub(crate) fn is_managed(&self, key: Key) -> (bool, bool) {
        let Some(state) = self.find(key) else { return (false, false) };
        let state = lock(&state);
        (!state.is_over(), !state.is_over() && state.is_covered())
    }

    /// Whether a file is under the engine now, with a sidecar that stands in the directory with this inode, which has
    /// no more than one name of the file.
    pub(crate) fn has_last_name_in(&self, key: Key, directory: u64) -> bool {
        let Some(state) = self.find(key) else { return false };
        let state = lock(&state);
        !state.is_over() && state.is_covered() && state.has_last_name_in(directory)
    }
}
