//! The server's side of other processes that append to the log themselves, for files that are written through. The
//! processes' side is [`untorn_ring::append()`].
//!
//! # Invariants
//!
//! 1. The process that changes a file holds its turn, from the entry's place in the log until the kernel has the
//!    change. So these processes are ordered like the threads of this process (`write_through`, 1).
//! 2. A file has a turn only while its number means something, and it is neither demoted nor failed. Before a file is
//!    demoted, the server takes its turn away; the last holder has finished then.
//! 3. The server completes or voids the unfinished change of a dead process before any other process gets the turn. It
//!    first makes the entries durable again: a process that died between a store and its fence promised nothing, but
//!    the log must have what the kernel has.
//! 4. For an append by the kernel, whatever the offset, the server repeats only the bytes that the kernel does not have
//!    yet. The file's end tells how many: no other process changed it since.
//! 5. If the kernel takes less than the log has, of a repeated write or of one that a process was told of, the tail
//!    passes the entry before any other process gets the turn. So no process builds on an end of the file that a replay
//!    would not leave.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use untorn_ring::{
    Appender, Change, Entry, Flushed, Flusher, HEADER, Left, Locked, Outcome, Step, Way, Write, append, left, pieces,
};

use super::changed::doubt_times;
use super::file::{Managed, exclusive, shared};
use super::format::read_entry;
use super::{Cache, barriers, locked};
use crate::error::{Error, Result};
use crate::storage::{Medium, MediumFile};

impl<M: Medium> Cache<M> {
    /// Has all later calls fail, and other processes ask for it. The cause may be a flush, which may have lost entries.
    #[cold]
    pub(super) fn poison(&self, error: Error) -> Error {
        if self.handle_state.writable().is_ok() {
            doubt_times(&self.ring.file, self.ring.checksum_seed, self.ring.geometry.files);
        }
        self.ring.shared_state().close();
        self.handle_state.poison(error)
    }

    /// Ends all draining of a file, and has other processes ask for it.
    #[cold]
    pub(super) fn fail(&self, file: &Managed, error: &Error) {
        file.fail(error);
        // One of the two sees the other: this the turn that was given, or who gives it the failure.
        fence(Ordering::SeqCst);
        if let Some(number) = file.turn() {
            self.ring.shared_state().turn(number).serve();
        }
    }

    /// The file's turn, if other processes may have it, in order. Whoever changes the file holds it.
    ///
    /// # Errors
    /// Those of the log, if a process left something of which it has to be sure.
    pub(super) fn hold(&self, file: &Managed) -> Result<Option<Locked<'_>>> {
        while let Some(number) = file.turn() {
            let Some(turn) = self.ring.shared_state().turn(number).lock() else {
                let what = "the lock that several processes share for this file is in an unrecoverable \
                            state"
                    .to_owned();
                return Err(self.poison(Error::Corrupt { path: file.path().to_path_buf(), offset: None, what }));
            };
            // It may have been taken away meanwhile, and another given.
            if file.turn() == Some(number) {
                if turn.is_broken() {
                    self.mend(file, &turn)?;
                }
                return Ok(Some(turn));
            }
        }
        Ok(None)
    }

    /// Brings to an end what a process that died had under way, or that got less of it into the file than into the
    /// log. With no lock of a drain.
    #[cold]
    fn mend(&self, file: &Managed, turn: &Locked<'_>) -> Result<()> {
        let ring = &self.ring;
        let geometry = ring.geometry;
        let mut data = Vec::new();
        let mut entry = |position: u64| -> Option<Entry> {
            let found = read_entry(&ring.file, ring.checksum_seed, geometry, geometry.entry_at(position), &mut data);
            // What cannot be read did not arrive.
            found.ok().flatten().filter(|entry| entry.position == position)
        };
        let ended = match left(turn, file.uid.load(Ordering::Acquire), &mut entry) {
            Left::Nothing { ended } => ended,
            Left::Void { first, parts } => {
                ring.shared_state().leave_void(first, parts);
                first + parts
            }
            Left::Short { first, parts } => {
                ring.shared_state().complete_beside(first, parts);
                self.take_back(file, first + parts)?;
                first + parts
            }
            Left::Whole { first, parts, change } => {
                let mut bytes = vec![0; change.len()];
                let mut done = 0;
                for (at, len) in pieces(geometry, first, bytes.len()) {
                    ring.file.read(at, &mut bytes[done..done + len]).map_err(|error| self.poison(error))?;
                    ring.file.flush(barriers::MENDED, at - HEADER, HEADER + len as u64);
                    done += len;
                }
                self.be_late(file)?;
                let done = redo(file, change, &bytes);
                ring.shared_state().complete_beside(first, parts);
                if !matches!(done, Ok(true)) {
                    let path = file.path();
                    let path = path.display();
                    tracing::debug!(%path, ?done, "a killed process left an unfinished change; taking it back");
                    self.take_back(file, first + parts)?;
                }
                first + parts
            }
        };
        turn.mend(ended);
        Ok(())
    }

    /// Makes the entries of a process that died durable, and with them that the file gets a change later than its entry
    /// says. Whoever has the lock of a line waits for no turn.
    fn be_late(&self, file: &Managed) -> Result<()> {
        let durable = || self.ring.persist(barriers::MENDED);
        let mut own = locked(&file.line);
        let Some(line) = own.as_mut() else { return durable().map_err(|error| self.poison(error)) };
        file.late.store(self.ring.medium.now(), Ordering::Release);
        *line = line.next();
        self.put_lines(file, *line, file.uid.load(Ordering::Acquire), durable)
    }

    /// The same for all files of which nobody has the turn: before a sync is answered, and before somebody waits for
    /// an entry that nobody is going to complete. With no lock of a drain.
    #[cold]
    pub(super) fn mend_all(&self) -> Result<()> {
        if self.ring.shared().is_none() {
            return Ok(());
        }
        let files = locked(&self.registry).all();
        for file in files {
            if self.mend_left(&file).is_err() {
                // A file that fails is told so itself, and holds nobody else up.
                self.handle_state.writable()?;
            }
        }
        Ok(())
    }

    /// The same for one file. Who lives and has the turn is not waited for. With no lock of a drain.
    pub(super) fn mend_left(&self, file: &Managed) -> Result<()> {
        let Some(number) = file.turn() else { return Ok(()) };
        // Whoever has it mends it himself.
        let Some(turn) = self.ring.shared_state().turn(number).try_lock() else { return Ok(()) };
        if file.turn() == Some(number) && turn.is_broken() { self.mend(file, &turn) } else { Ok(()) }
    }

    /// Lets other processes append for a file, once the log has a number for it; `durable` is whether all that was
    /// written to the file is as durable as a sync would make it.
    pub(crate) fn allow_writers(&self, file: &Managed, durable: bool) {
        let shared_state = self.ring.shared_state();
        // Nobody demotes it meanwhile, nor lets others in.
        let _gate = shared(&file.gate);
        let _length = exclusive(&file.length);
        if let Some(number) = file.turn() {
            return shared_state.turn(number).set_durable(durable);
        }
        let uid = file.uid.load(Ordering::Acquire);
        if self.ring.shared().is_none() || uid == 0 || !file.write_through || file.is_demoted() || file.has_failed() {
            return;
        }
        let (device, inode) = (file.identity.device, file.identity.inode);
        // Without one that is free it is served, as before.
        let Some(turn) = shared_state.take_turn(device, inode) else { return };
        if let Some(turn) = turn.lock() {
            turn.begin(device, inode, uid, durable);
            file.set_turn(Some(turn.turn().number()));
            fence(Ordering::SeqCst);
            if file.has_failed() {
                turn.turn().serve();
            }
        }
    }

    /// Takes the turn away from other processes: the file is this one's alone.
    pub(crate) fn revoke_writers(&self, file: &Managed) -> Result<()> {
        let Some(turn) = self.hold(file)? else { return Ok(()) };
        file.add_counts(turn.turn().take_counts());
        file.set_turn(None);
        file.last.fetch_max(turn.end(), Ordering::AcqRel);
        Ok(())
    }

    /// Every entry of the file has a position below.
    pub(super) fn last(&self, file: &Managed) -> u64 {
        let shared_state = self.ring.shared_state();
        let beside = file.turn().map_or(0, |number| shared_state.turn(number).ended());
        // Others have the word in their memory, too; and what has no position yet nobody waits for.
        file.last.load(Ordering::Acquire).max(beside.min(shared_state.head()))
    }

    /// The writes, bytes and syncs of other processes since the last call.
    pub(crate) fn counts_shared(&self, file: &Managed) -> [u64; 3] {
        if let Some(number) = file.turn() {
            file.add_counts(self.ring.shared_state().turn(number).take_counts());
        }
        file.take_counts()
    }

    /// Changes a file as another process does, up to a step, where it dies: for simulators. How many bytes the kernel
    /// took; `None` if it has to be done otherwise. What goes to the end goes to where that is.
    pub(crate) fn change_shared(
        &self,
        file: &Managed,
        mut change: Change,
        src: &[u8],
        until: Option<Step>,
    ) -> Result<Option<usize>> {
        let shared_state = self.ring.shared_state();
        let Some(turn) = shared_state.turn_of(file.identity.device, file.identity.inode) else { return Ok(None) };
        let Some(turn) = turn.lock().filter(|turn| turn.turn().is_writable()) else { return Ok(None) };
        if let Change::Write(Write { offset, at_end: true, .. }) = &mut change {
            *offset = file.slow.len()?;
        }
        match change {
            Change::Write(write) => file.check(write.offset, src.len())?,
            // It may have to be durable in the log before the kernel does it.
            Change::Length(_) if shared_state.way() == Way::Written => return Ok(None),
            Change::Length(len) => file.check(len, 0)?,
        };
        let mut appender = SharedAppend { cache: self, file, src, until, failed: None, refused: None };
        let outcome = append(&turn, change, &mut appender);
        if let Some(error) = appender.failed {
            return Err(self.poison(error));
        }
        match outcome {
            Outcome::Full | Outcome::Nothing => Ok(None),
            Outcome::Written { said, .. } => {
                drop(turn);
                let count = usize::try_from(said).unwrap_or(0);
                if said != src.len() as isize {
                    drop(self.hold(file)?);
                    file.check_usable()?;
                }
                appender.refused.map_or(Ok(Some(count)), Err)
            }
            Outcome::Dead => {
                turn.break_it();
                Ok(Some(0))
            }
        }
    }

    /// Flushes the log, on which other processes are to be given a hold: of what failed before they would not be told.
    pub(crate) fn flush_log(&self) -> Result<()> {
        self.handle_state.writable()?;
        self.ring.persist(barriers::SYNC).map_err(|error| self.poison(error))
    }

    /// Syncs a file as another process does: for simulators. False if it would ask for it to be synced.
    pub(crate) fn sync_shared(&self, file: &Managed) -> Result<bool> {
        let shared_state = self.ring.shared_state();
        let (device, inode) = (file.identity.device, file.identity.inode);
        let Some(turn) = shared_state.turn_of(device, inode) else { return Ok(false) };
        let is_logged = || turn.is_of(device, inode) && turn.is_durable() && shared_state.is_open();
        if !is_logged() {
            return Ok(false);
        }
        if shared_state.way() == Way::Written {
            let mut flusher = Flushing { cache: self, failed: None };
            let flushed = shared_state.sync(turn, is_logged, &mut flusher);
            if let Some(error) = flusher.failed {
                return Err(self.poison(error));
            }
            if flushed != Flushed::Done {
                return Ok(false);
            }
        }
        Ok(is_logged())
    }
}

/// Does once more what a process may have done. Whether all of it is done.
fn redo(file: &Managed, change: Change, bytes: &[u8]) -> Result<bool> {
    let write = match change {
        Change::Length(len) => return file.slow.set_len(len).map(|()| true),
        Change::Write(write) => write,
    };
    let mut done = 0;
    if write.at_end {
        // The kernel would append the bytes that it has once more, wherever they are said to go.
        let Some(there) = file.slow.len()?.checked_sub(write.offset) else { return Ok(false) };
        done = there.min(bytes.len() as u64) as usize;
        if done == bytes.len() {
            return Ok(true);
        }
    }
    let count = file.slow.write_some(write.offset + done as u64, &bytes[done..])?;
    Ok(done + count == bytes.len())
}

/// A process that is none.
struct SharedAppend<'a, M: Medium> {
    cache: &'a Cache<M>,
    file: &'a Managed,
    src: &'a [u8],
    until: Option<Step>,
    /// What the log said.
    failed: Option<Error>,
    /// What the file said.
    refused: Option<Error>,
}

impl<M: Medium> SharedAppend<'_, M> {
    fn note(&mut self, result: Result<()>) -> bool {
        match result {
            Ok(()) => true,
            Err(error) => {
                self.failed.get_or_insert(error);
                false
            }
        }
    }
}

impl<M: Medium> Appender for SharedAppend<'_, M> {
    fn fill(&mut self, at: u64, from: usize, len: usize) -> bool {
        let stored = self.cache.ring.file.store(at, &self.src[from..from + len]);
        self.note(stored)
    }

    fn with<R>(&mut self, at: u64, len: usize, look: impl FnOnce(&[u8]) -> R) -> R {
        let mut bytes = vec![0; len];
        let read = self.cache.ring.file.read(at, &mut bytes);
        self.note(read);
        look(&bytes)
    }

    fn store(&mut self, at: u64, header: &[u8; HEADER as usize]) {
        let stored = self.cache.ring.file.store(at, header);
        self.note(stored);
    }

    fn flush(&mut self, at: u64, len: u64) {
        self.cache.ring.file.flush(barriers::BESIDE, at, len);
    }

    fn now(&self) -> u64 {
        self.cache.ring.medium.now()
    }

    fn fence(&mut self) -> bool {
        let ring = &self.cache.ring;
        let fenced = match ring.shared_state().way() {
            Way::Written => {
                ring.medium.order();
                Ok(())
            }
            Way::Mapped | Way::MappedSync => ring.persist(barriers::BESIDE),
        };
        self.note(fenced)
    }

    fn deliver(&mut self, _: u64, change: Change) -> isize {
        let done = match change {
            Change::Write(write) => self.file.slow.write_some(write.offset, self.src),
            Change::Length(len) => self.file.slow.set_len(len).map(|()| 0),
        };
        match done {
            Ok(count) => count as isize,
            Err(error) => {
                let errno = -(error.errno() as isize);
                self.refused = Some(error);
                errno
            }
        }
    }

    fn reaches(&mut self, step: Step) -> bool {
        self.until != Some(step)
    }
}

/// The flush of a process that is none.
struct Flushing<'a, M: Medium> {
    cache: &'a Cache<M>,
    /// What the log said.
    failed: Option<Error>,
}

impl<M: Medium> Flusher for Flushing<'_, M> {
    fn flush(&mut self) -> Flushed {
        match self.cache.ring.persist(barriers::BESIDE_SYNC) {
            Ok(()) => Flushed::Done,
            Err(error) => {
                self.failed = Some(error);
                Flushed::Failed
            }
        }
    }

    fn wait(&mut self, _: &AtomicU32, _: u32) {
        self.cache.ring.medium.relax(0);
    }

    fn wake(&mut self, _: &AtomicU32) {}
}
