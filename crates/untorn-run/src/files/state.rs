//! One managed file. It is plain, and read from the kernel, until something is written to it.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, Timespec, Timestamps};
use rustix::io::Errno as Sys;

use super::leftovers;
use super::mapping::Mapping;
use super::twin::Twin;
use crate::descriptor::path_of;
use crate::holders;
use crate::managed::{Errno, Managed, Mode, as_owner, io_errno, libc_errno, reopen};
use crate::processes::Processes;
use crate::report::Ledger;

/// A time: seconds and nanoseconds since the epoch.
pub(super) type Time = (i64, i64);

/// What the engine wants of a file.
const BOTH: Access = Access::READ_OK.union(Access::WRITE_OK);

pub(super) struct State {
    path: PathBuf,
    /// A description of our own, with which the bytes of a plain file are read.
    own: File,
    body: Option<Box<dyn Managed>>,
    /// What programs map in its place, from the first time that one does.
    twin: Option<Twin>,
    /// When its bytes were last changed, if they were while it was managed.
    changed: Option<Time>,
    /// The same as of the last commit.
    committed: Option<Time>,
    /// The processes that wrote in the open epoch.
    writers: BTreeSet<u32>,
    /// Somebody's bytes are lost; all who hold the file are told.
    poisoned: bool,
    over: bool,
}

impl State {
    /// The state of a file nobody of the run had open.
    pub(super) fn new(mode: &dyn Mode, descriptor: &OwnedFd) -> Result<Self, Errno> {
        let own = as_owner(descriptor, Access::READ_OK, || reopen(descriptor)).map_err(|error| io_errno(&error))?;
        let path = path_of(&own)?;
        let mut state = State {
            path,
            own,
            body: None,
            twin: None,
            changed: None,
            committed: None,
            writers: BTreeSet::new(),
            poisoned: false,
            over: false,
        };
        if state.is_linked()? {
            let report = as_owner(&state.own, Access::READ_OK, || untorn::inspect(&state.path));
            let report = report.map_err(|error| error.errno())?;
            match report.state {
                untorn::report::State::InUse => return Err(libc_errno(Sys::BUSY)),
                // It has a sidecar, or asks for one: opening it says what is to be said, and recovers it.
                _ if report.engine.is_some() || report.state != untorn::report::State::Clean => {
                    state.take_over(mode)?
                }
                _ => {}
            }
        }
        Ok(state)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Whether anything is to be laid over what the kernel says of the file.
    pub(super) fn is_covered(&self) -> bool {
        self.body.is_some() || self.changed.is_some()
    }

    /// Whether it is in a directory, or further down.
    pub(super) fn is_below(&self, directory: &Path) -> bool {
        path_of(&self.own).is_ok_and(|path| path.starts_with(directory))
    }

    /// Whether there is anything that a sync would make durable, or may be a moment later.
    pub(super) fn has_epoch(&self) -> bool {
        self.twin.is_some() || !self.writers.is_empty()
    }

    /// Whether the directory with the sidecar is the one with this inode, and has at most one name of the file.
    pub(super) fn has_last_name_in(&self, directory: u64) -> bool {
        let (Ok(path), Ok(ours)) = (path_of(&self.own), self.own.metadata()) else { return true };
        let Some(parent) = path.parent() else { return true };
        if !std::fs::metadata(parent).is_ok_and(|found| found.ino() == directory) {
            return false;
        }
        let Ok(entries) = std::fs::read_dir(parent) else { return true };
        entries.flatten().filter(|entry| entry.ino() == ours.ino()).count() < 2
    }

    fn is_linked(&self) -> Result<bool, Errno> {
        Ok(self.own.metadata().map_err(|error| io_errno(&error))?.nlink() > 0)
    }

    fn take_over(&mut self, mode: &dyn Mode) -> Result<(), Errno> {
        let path = self.current_path()?;
        self.body = Some(as_owner(&self.own, BOTH, || mode.manage(&path))?);
        Ok(())
    }

    /// Where the file is: it may have been renamed since it was opened.
    fn current_path(&self) -> Result<PathBuf, Errno> {
        let path = path_of(&self.own)?;
        let ours = self.own.metadata().map_err(|error| io_errno(&error))?;
        let named = std::fs::metadata(&path).map_err(|error| io_errno(&error))?;
        if (ours.dev(), ours.ino()) != (named.dev(), named.ino()) {
            return Err(libc_errno(Sys::STALE));
        }
        Ok(path)
    }

    /// The file as something that may be changed; `None` for one without a name, which no crash leaves behind.
    fn body(&mut self, mode: &dyn Mode) -> Result<Option<&dyn Managed>, Errno> {
        if self.body.is_none() && self.is_linked()? {
            self.take_over(mode)?;
        }
        Ok(self.body.as_deref())
    }

    /// # Errors
    /// EIO once bytes of somebody are lost.
    pub(super) fn standing(&self) -> Result<(), Errno> {
        if self.poisoned { Err(libc_errno(Sys::IO)) } else { Ok(()) }
    }

    pub(super) fn len(&self) -> Result<u64, Errno> {
        match &self.body {
            Some(body) => Ok(body.len()),
            None => Ok(self.own.metadata().map_err(|error| io_errno(&error))?.len()),
        }
    }

    /// At most `number` bytes from `offset`.
    pub(super) fn read(&self, offset: u64, number: u64) -> Result<Vec<u8>, Errno> {
        let number = self.len()?.saturating_sub(offset).min(number);
        let mut bytes = vec![0; usize::try_from(number).map_err(|_| libc_errno(Sys::INVAL))?];
        match &self.twin {
            // At the end of the file, or past it.
            _ if bytes.is_empty() => {}
            Some(twin) => twin.read_at(&mut bytes, offset)?,
            None => self.read_body(&mut bytes, offset)?,
        }
        Ok(bytes)
    }

    /// What calls wrote.
    fn read_body(&self, bytes: &mut [u8], offset: u64) -> Result<(), Errno> {
        match &self.body {
            Some(body) => body.read_at(bytes, offset),
            None => self.own.read_exact_at(bytes, offset).map_err(|error| io_errno(&error)),
        }
    }

    /// The twin, which the file has from now on.
    ///
    /// # Errors
    /// EIO once bytes of somebody are lost; ENOMEM; that of taking the file over, if it may be stored to.
    pub(super) fn twin(&mut self, mode: &dyn Mode, writable: bool) -> Result<&mut Twin, Errno> {
        self.standing()?;
        if writable {
            self.body(mode)?;
        }
        if self.twin.is_none() {
            self.twin = Some(Twin::new(self.len()?, |bytes, offset| self.read_body(bytes, offset))?);
        }
        self.twin.as_mut().ok_or(libc_errno(Sys::IO))
    }

    /// The twin, if there is one.
    pub(super) fn present_twin(&mut self) -> Option<&mut Twin> {
        self.twin.as_mut()
    }

    /// Somebody is about to store to a page, and waits.
    pub(super) fn stored(&mut self, mode: &dyn Mode, mapping: &Arc<Mapping>, address: usize, ledger: &Ledger) {
        match self.body(mode).map(|body| body.is_some()) {
            _ if self.over || self.poisoned => {}
            // Nothing is left of a file without a name: there is nothing to commit, and nothing to lose.
            Ok(false) => {}
            Ok(true) => {
                if let Some(twin) = &mut self.twin {
                    twin.note(mapping, address);
                }
                self.note(mapping.process);
                ledger.of(&self.path, |report| report.stores += 1);
            }
            Err(errno) => {
                let error = std::io::Error::from_raw_os_error(errno);
                ledger.failure(format!(
                    "{}: a store to a mapping could not be added to the open epoch: {error}; further calls on the \
                     file fail",
                    self.path.display()
                ));
                self.poison();
            }
        }
    }

    /// Bytes of somebody are lost, or not as they should be.
    fn poison(&mut self) {
        self.poisoned = true;
        if let Some(twin) = &mut self.twin {
            twin.take_away();
        }
    }

    /// What was done to the file was not done to its twin: nobody may see that, nor may it become durable.
    fn unless_astray(&mut self, outcome: Result<(), Errno>) -> Result<(), Errno> {
        if outcome.is_err() {
            self.poison();
        }
        outcome
    }

    pub(super) fn write(
        &mut self,
        mode: &dyn Mode,
        descriptor: &OwnedFd,
        process: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), Errno> {
        match self.body(mode)? {
            Some(body) => body.write_at(bytes, offset)?,
            None => {
                let mut done = 0;
                while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
                    done += rustix::io::pwrite(descriptor, rest, offset + done as u64).map_err(libc_errno)?;
                }
            }
        }
        if self.body.is_some() {
            self.note(process);
        }
        let outcome = self.twin.as_ref().map_or(Ok(()), |twin| twin.write_at(bytes, offset));
        self.unless_astray(outcome)
    }

    pub(super) fn set_len(
        &mut self,
        mode: &dyn Mode,
        descriptor: &OwnedFd,
        process: u32,
        len: u64,
    ) -> Result<(), Errno> {
        match self.body(mode)? {
            Some(body) => body.set_len(len)?,
            None => rustix::fs::ftruncate(descriptor, len).map_err(libc_errno)?,
        }
        if self.body.is_some() {
            self.note(process);
        }
        let outcome = self.twin.as_mut().map_or(Ok(()), |twin| twin.set_len(len));
        self.unless_astray(outcome)
    }

    /// Notes that a process changed the file, now.
    fn note(&mut self, process: u32) {
        self.writers.insert(process);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.changed = Some((now.as_secs() as i64, i64::from(now.subsec_nanos())));
    }

    pub(super) fn commit(&mut self, ledger: &Ledger) -> Result<(), Errno> {
        self.standing()?;
        self.fold()?;
        match &self.body {
            Some(_) if self.writers.is_empty() => {}
            Some(body) => {
                body.commit()?;
                ledger.of(&self.path, |report| report.commits += 1);
            }
            None => self.own.sync_all().map_err(|error| io_errno(&error))?,
        }
        self.writers.clear();
        self.committed = self.changed;
        Ok(())
    }

    /// Brings what was stored to the engine, as it is at one instant.
    fn fold(&mut self) -> Result<(), Errno> {
        match (&mut self.twin, &self.body) {
            (Some(twin), Some(body)) => twin.fold(|bytes, offset| body.write_at(bytes, offset)),
            _ => Ok(()),
        }
    }

    /// Length and time of the last change, where they differ from the kernel's.
    pub(super) fn overlay(&self) -> Result<Option<(u64, Time)>, Errno> {
        if !self.is_covered() {
            return Ok(None);
        }
        let status = self.own.metadata().map_err(|error| io_errno(&error))?;
        Ok(Some((self.len()?, self.changed.unwrap_or((status.mtime(), status.mtime_nsec())))))
    }

    /// The program set the file's times.
    pub(super) fn times_were_set(&mut self) -> Result<(), Errno> {
        if self.is_covered() {
            let status = self.own.metadata().map_err(|error| io_errno(&error))?;
            self.changed = Some((status.mtime(), status.mtime_nsec()));
            self.committed = self.changed;
        }
        Ok(())
    }

    /// Drops what those wrote who died, before anything is done that could publish it. What the server reads of a
    /// dead process's last requests may arrive after the news of its death, so it is asked each time. `caller` is the
    /// process that waits for this, if one does. All others are looked at: one that is about to end has let go of its
    /// locks before it can be told that it died, and by that the caller may know.
    pub(super) fn bury(&mut self, mode: &dyn Mode, processes: &Processes, ledger: &Ledger, caller: Option<u32>) {
        let may_die = |process| caller != Some(process) && !processes.is_willing(process);
        let is_about_to = |process| may_die(process) && holders::is_exiting(process) && processes.dies(process);
        let is_dead = |process: &u32| processes.died(*process) || is_about_to(*process);
        let dead: Vec<u32> = self.writers.iter().copied().filter(is_dead).collect();
        for process in dead {
            self.forsake(mode, process, processes, ledger);
        }
    }

    /// One that may have written in the open epoch died. Bytes are lost of those others that live, not of those that
    /// die with it.
    pub(super) fn forsake(&mut self, mode: &dyn Mode, process: u32, processes: &Processes, ledger: &Ledger) {
        if !self.writers.remove(&process) {
            return;
        }
        ledger.of(&self.path, |report| report.discarded += 1);
        self.poisoned |= self.writers.iter().any(|other| !processes.dies(*other));
        self.writers.clear();
        self.changed = self.committed;
        if let Some(body) = self.body.take()
            && let Err(errno) = self.abandon(mode, body)
        {
            self.poisoned = true;
            let error = std::io::Error::from_raw_os_error(errno);
            ledger.failure(format!(
                "{}: the writes of a killed process could not be rolled back: {error}; run `untorn recover`",
                self.path.display()
            ));
        }
        if let Some(mut twin) = self.twin.take() {
            twin.forget();
            // Whoever has it mapped has stored nothing since the last commit, or all are told.
            let restored = match self.poisoned {
                true => Err(libc_errno(Sys::IO)),
                false => self.len().and_then(|len| twin.fill(len, |bytes, offset| self.read_body(bytes, offset))),
            };
            self.twin = Some(twin);
            if restored.is_err() {
                self.poison();
            }
        }
        self.restore_times();
    }

    /// It may have lost its last name.
    pub(super) fn was_unnamed(&self) {
        if self.body.is_some() {
            self.disown();
        }
    }

    /// Whether the file has no name any more. Then its sidecar has none either from now on.
    fn disown(&self) -> bool {
        let Some(ours) = self.own.metadata().ok().filter(|ours| ours.nlink() == 0) else { return false };
        // The directory where it had its last name, which is the one with the sidecar.
        if let Some(directory) = path_of(&self.own).unwrap_or_default().parent() {
            leftovers::remove(directory, (ours.dev(), ours.ino()));
        }
        true
    }

    /// Makes the file what it was at the last commit.
    fn abandon(&mut self, mode: &dyn Mode, body: Box<dyn Managed>) -> Result<(), Errno> {
        if self.disown() {
            // No crash leaves it behind, and nobody can open it. Those who hold it still are told.
            self.poisoned = true;
            return Ok(());
        }
        let path = self.current_path()?;
        // Without a commit, as a crash would leave it; opening it recovers it.
        drop(body);
        as_owner(&self.own, BOTH, || mode.manage(&path)?.release())
    }

    /// Nobody holds it any more.
    pub(super) fn finish(&mut self, ledger: &Ledger) -> Result<(), Errno> {
        self.over = true;
        let keep = !self.writers.is_empty();
        let folded = if self.poisoned { Err(libc_errno(Sys::IO)) } else { self.fold() };
        self.twin = None;
        let Some(body) = self.body.take() else { return Ok(()) };
        if self.disown() {
            // A file without a name: there is nothing to keep.
            return Ok(());
        }
        if let Err(errno) = folded {
            // As a crash would leave it: nothing of the epoch, instead of a part of it.
            drop(body);
            return Err(errno);
        }
        let released = as_owner(&self.own, BOTH, || body.release());
        if keep && released.is_ok() {
            ledger.of(&self.path, |report| report.commits += 1);
        }
        self.restore_times();
        released
    }

    /// Bytes went home later than the program wrote them.
    fn restore_times(&self) {
        let Some((seconds, nanoseconds)) = self.changed else { return };
        let omit = Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
        let changed = Timespec { tv_sec: seconds, tv_nsec: nanoseconds };
        let times = Timestamps { last_access: omit, last_modification: changed };
        // Only its owner may; then the time is that of the last byte's arrival.
        let _ = rustix::fs::futimens(&self.own, &times);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;
    use crate::managed::Atomic;

    /// A process of the run.
    fn started(processes: &Processes) -> Child {
        let child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        processes.meet(child.id()).unwrap().unwrap();
        child
    }

    /// What becomes of a file to which processes wrote of which the first `killed` are killed: what is read, and how
    /// a call fares.
    fn left(writers: usize, killed: usize, poisoned: bool) -> (Vec<u8>, Result<(), Errno>) {
        let (dir, processes, ledger) = (tempfile::tempdir().unwrap(), Processes::default(), Ledger::default());
        let path = dir.path().join("f");
        std::fs::write(&path, "kept").unwrap();
        let descriptor = OwnedFd::from(File::options().read(true).write(true).open(&path).unwrap());
        let mut state = State::new(&Atomic, &descriptor).unwrap();
        let mut all: Vec<Child> = (0..writers).map(|_| started(&processes)).collect();
        for child in &all {
            state.write(&Atomic, &descriptor, child.id(), 0, b"torn").unwrap();
        }
        if poisoned {
            state.poison();
        }
        all.iter_mut().take(killed).for_each(|child| child.kill().unwrap());
        assert!(all.iter_mut().take(killed).all(|child| child.wait().is_ok()));
        state.bury(&Atomic, &processes, &ledger, None);
        let found = (state.read(0, 4).unwrap(), state.standing());
        for mut child in all.into_iter().skip(killed) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        found
    }

    #[test]
    fn only_living_writers_get_eio_for_bytes_lost_with_others() {
        let lost = Err(libc_errno(Sys::IO));
        assert_eq!(left(1, 0, false), (b"torn".to_vec(), Ok(())));
        assert_eq!(left(1, 1, false), (b"kept".to_vec(), Ok(())));
        assert_eq!(left(2, 2, false), (b"kept".to_vec(), Ok(())), "nobody lost anything");
        assert_eq!(left(3, 2, false), (b"kept".to_vec(), lost));
        assert_eq!(left(1, 1, true), (b"kept".to_vec(), lost), "bytes were lost before");
    }
}
