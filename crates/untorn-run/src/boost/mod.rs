//! `--mode boost`: what programs write to managed files goes to the log of a [`WriteCache`] (the NVCache paper, §II
//! and III).
//!
//! # What makes it sound
//! 1. Each write goes to the log and then to the kernel, before it returns. So the kernel shows what was written to
//!    whoever looks, by whatever call, and reads are its own. The log is there for durability: a replay repeats what
//!    did not reach the device.
//! 2. What a replay would write over must not have been written past the log. So a file is *boosted* only while its
//!    one open description in the whole system is the program's, which `dup`, `fork` and this server share: the
//!    kernel says so when it grants the write lease (`file`). Whoever opens the file else, under untorn or not, or
//!    truncates it by its name, is kept waiting by the kernel until the lease is given back, and that is done when
//!    the file has all that the log has of it, durably: it is *demoted*, and plain until its last descriptor is gone.
//! 3. The mark of a boosted description goes with its lease, in one step of the kernel's. A call of the layer that
//!    comes too late is answered that the file is plain, and goes on to the kernel, which knows everything by then.
//! 4. What changes bytes or length and is not served is a reason to demote, which the layer asks for before the call
//!    goes on. So the kernel never sees such a call on a boosted description but this server's.
//! 5. A file that cannot be synced keeps its mark without a lease, and every write to it fails: what the kernel shows
//!    of it may not be what a crash leaves. The log keeps its writes.
//! 6. What is written has the guarantee of the log when the call, or the sync, returns, whether its process lives on
//!    or not.
//! 7. Who holds a file is asked of the kernel (`holders`). A file that nobody may hold any more *rests* (`rest`): the
//!    server keeps the description with its lease, until all of the file is durable. So nobody else changes it while
//!    a replay could still write over it; and who opens it again in the run is given the description.
//!
//! Locks, in the order in which they are taken: a file's, that of descriptions about to be closed, the table's, the
//! board's; that of directories, with no other. None is held while anything is opened, for the server's own opening
//! may have to wait for a lease of the server's.

mod calls;
mod directories;
mod file;
mod moves;
mod rest;
mod service;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::io::Errno as Sys;
use signal_hook::consts::SIGIO;
use signal_hook::iterator::Signals;
use untorn::testing::storage::unblock;
use untorn::write_cache::WriteCache;
use untorn_wire::{MARK, PLAIN};

use self::directories::Directories;
use self::file::{Boosted, State};
use self::moves::Moves;
use self::rest::Resting;
use crate::board::Board;
use crate::files::{Key, lock};
use crate::holders::{self, Keys};
use crate::managed::{Errno, libc_errno};
use crate::processes::Processes;
use crate::report::Ledger;

/// The boosted files of a run.
pub(crate) struct Boost {
    cache: WriteCache,
    processes: Processes,
    table: Mutex<HashMap<Key, Arc<Mutex<Boosted>>>>,
    board: Mutex<Board>,
    /// Files that nobody may hold any more.
    resting: Arc<Resting>,
    moves: Moves,
    directories: Mutex<Directories>,
    /// Held while a description is let go of, which takes no time. Whoever waits for its lease is waked before that
    /// is done.
    closing: Mutex<()>,
    /// The run is over.
    closed: AtomicBool,
    ledger: Ledger,
}

impl Boost {
    /// Boosts files with a log from now on.
    ///
    /// # Errors
    /// Those of handling the signal of a lease, and of starting a thread.
    pub(crate) fn start(cache: WriteCache, board: Board) -> io::Result<Arc<Self>> {
        let boost = Arc::new(Boost {
            cache,
            processes: Processes::default(),
            table: Mutex::default(),
            board: Mutex::new(board),
            resting: Arc::default(),
            moves: Moves::default(),
            directories: Mutex::default(),
            closing: Mutex::default(),
            closed: AtomicBool::new(false),
            ledger: Ledger::default(),
        });
        // SIGIO is what the kernel sends when it has no memory for one more of the other.
        let mut signals = Signals::new([MARK, SIGIO])?;
        let watched = Arc::downgrade(&boost);
        thread::Builder::new().name("untorn-leases".to_owned()).spawn(move || {
            for signal in [MARK, SIGIO] {
                if let Err(error) = unblock(signal) {
                    tracing::warn!(%error, signal, "cannot unblock the lease signal; other programs that open a \
                     boosted file may wait for long");
                }
            }
            for _ in &mut signals {
                let Some(boost) = watched.upgrade() else { return };
                boost.yield_leases();
            }
        })?;
        boost.watch_over_resting()?;
        Ok(boost)
    }

    fn all(&self) -> Vec<Arc<Mutex<Boosted>>> {
        lock(&self.table).values().cloned().collect()
    }

    fn find(&self, key: Key) -> Option<Arc<Mutex<Boosted>>> {
        lock(&self.table).get(&key).cloned()
    }

    /// Demotes every file that somebody waits to open. Each in a thread of its own: a process that was stopped amid a
    /// write keeps its file, and nobody is to wait for that but who wants the same.
    fn yield_leases(self: &Arc<Self>) {
        for file in self.all() {
            // Somebody is busy with it, or it is asked.
            if file.try_lock().is_ok_and(|file| !file.is_wanted()) {
                continue;
            }
            let (boost, theirs) = (self.clone(), file.clone());
            let spawned = thread::Builder::new()
                .name("untorn-yield".to_owned())
                .spawn(move || boost.yield_lease(&mut lock(&theirs)));
            if spawned.is_err() {
                self.yield_lease(&mut lock(&file));
            }
        }
    }

    fn yield_lease(&self, file: &mut Boosted) {
        if file.is_wanted() {
            // Whoever has it is told by its next call.
            let _ = match file.rests_since() {
                Some(_) if holders::held(&Keys::from([file.key()])).is_empty() => self.release(file),
                _ => self.demote(file, "opened a second time"),
            };
        }
    }

    /// Boosts the file of a descriptor that was just opened, if that can be; whether it is.
    ///
    /// # Errors
    /// EIO for a file that could not be drained.
    fn opened(&self, descriptor: &OwnedFd) -> Result<bool, Errno> {
        let status = rustix::fs::fstat(descriptor).map_err(libc_errno)?;
        let key = (status.st_dev, status.st_ino);
        // It may have waited for a description that is about to be gone, and is in the table for as long.
        drop(lock(&self.closing));
        if let Some(known) = self.find(key) {
            // It was opened without waiting: the kernel lost patience with us. Or it failed.
            self.demote(&mut lock(&known), "opened a second time")?;
            return Ok(false);
        }
        if self.closed.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let boosted = match Boosted::new(&self.cache, descriptor) {
            Ok(boosted) => boosted,
            Err(plain) => {
                self.ledger.demoted(&plain.why, &plain.path);
                return Ok(false);
            }
        };
        self.ledger.of(boosted.path(), |report| report.opens += 1);
        let boosted = Arc::new(Mutex::new(boosted));
        // Before it is in the table nobody finds it there, nor on the board; and its program waits for this answer.
        lock(&self.table).insert(key, boosted.clone());
        if lock(&self.board).add(key).is_err() {
            self.demote(&mut lock(&boosted), "open: cannot register the file in shared memory")?;
            return Ok(false);
        }
        // The lease may have been asked for while it was not in the table.
        let mut boosted = lock(&boosted);
        if boosted.is_wanted() {
            self.demote(&mut boosted, "opened a second time")?;
        }
        Ok(boosted.state() == State::Boosted)
    }

    /// Makes a file a plain one, with all that was written to it. One that cannot be drained stays in the table.
    ///
    /// # Errors
    /// Why it could not be drained, to this call and all later ones.
    fn demote(&self, file: &mut Boosted, why: &str) -> Result<(), Errno> {
        match file.state() {
            State::Plain => return Ok(()),
            State::Failed(errno) => return Err(errno),
            State::Boosted => {}
        }
        self.make_plain(file, Boosted::give_back)?;
        self.ledger.demoted(why, file.path());
        Ok(())
    }

    /// Has everything in the file durably, and then lets go of it.
    fn make_plain(&self, file: &mut Boosted, let_go: fn(&mut Boosted)) -> Result<(), Errno> {
        if let Err(errno) = file.settle() {
            let error = io::Error::from_raw_os_error(errno);
            self.ledger.failure(format!(
                "{}: the writes could not be made durable in the file: {error}; they are in the log; run `untorn \
                 replay` \
                 once the file is writable",
                file.path().display()
            ));
            return Err(errno);
        }
        self.close(file, let_go);
        Ok(())
    }

    /// Lets go of a file.
    fn close(&self, file: &mut Boosted, let_go: fn(&mut Boosted)) {
        self.count_beside(file);
        let _closing = lock(&self.closing);
        let_go(file);
        self.forget(file.key());
    }

    /// Counts what programs wrote to a file by themselves.
    fn count_beside(&self, file: &Boosted) {
        let [writes, bytes, syncs] = file.counts_shared();
        if writes + syncs > 0 {
            self.ledger.of(file.path(), |report| {
                report.writes += writes;
                report.writes_in_process += writes;
                report.bytes_written += bytes;
                report.commits += syncs;
            });
        }
    }

    fn forget(&self, key: Key) {
        if lock(&self.table).remove(&key).is_some() {
            lock(&self.board).remove(key);
        }
    }

    /// Lets go of a file if nobody holds it any more.
    ///
    /// # Errors
    /// Why it could not be drained.
    fn let_go(&self, key: Key) -> Result<(), Errno> {
        let Some(file) = self.find(key) else { return Ok(()) };
        let mut file = lock(&file);
        if !holders::held(&Keys::from([key])).is_empty() {
            return Ok(());
        }
        self.release(&mut file)
    }

    /// Makes a file a plain one that nobody holds. One that failed stays in the table, so that nobody opens it
    /// unaware: what it has is not what was acknowledged.
    fn release(&self, file: &mut Boosted) -> Result<(), Errno> {
        match file.state() {
            State::Plain => return Ok(()),
            State::Failed(errno) => return Err(errno),
            State::Boosted => {}
        }
        if file.names() == Ok(0) && file.has_left().unwrap_or(false) {
            // It need not be durable, for nobody can open it again.
            self.close(file, Boosted::drop_it);
            return Ok(());
        }
        // Not counted among the demoted: it was boosted to its end.
        self.make_plain(file, Boosted::drop_it)
    }

    /// Lets go of all that nobody holds.
    fn let_go_of_unheld(&self) {
        let keys: Keys = lock(&self.table).keys().copied().collect();
        if keys.is_empty() {
            return;
        }
        let held = holders::held(&keys);
        for key in keys.difference(&held) {
            if let Err(errno) = self.let_go(*key) {
                tracing::warn!(errno, "cannot drain a file");
            }
        }
    }

    /// Runs `call` on the boosted file of a descriptor.
    ///
    /// # Errors
    /// [`PLAIN`] if it is a plain one.
    fn with<T>(&self, descriptor: &OwnedFd, call: impl FnOnce(&mut Boosted) -> Result<T, Errno>) -> Result<T, Errno> {
        let status = rustix::fs::fstat(descriptor).map_err(libc_errno)?;
        let file = self.find((status.st_dev, status.st_ino)).ok_or(PLAIN)?;
        let mut file = lock(&file);
        match file.state() {
            State::Plain => Err(PLAIN),
            State::Failed(_) => Err(libc_errno(Sys::IO)),
            State::Boosted => call(&mut file),
        }
    }
}
