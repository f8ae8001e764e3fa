//! One file open in several processes: one of them has it open with its engine, and executes the calls of the others.
//!
//! # How it works
//!
//! 1. The processes meet in the directory of sidecars ([`Rendezvous`]). The process that holds the lock for *serving*
//!    opens the file with its engine. The kernel releases that lock when the process ends, however it ends.
//! 2. It creates a *board* ([`rpc`](crate::ipc::rpc)), a memory file that all of them map. Another process puts
//!    its call there, with its bytes, and a thread of the serving process executes it. This costs two more copies than
//!    a call of the serving process, and two wake-ups unless both are awake.
//! 3. Each of the others watches the serving process. When it ends, one of them gets the lock and opens the file, which
//!    recovers it. It executes the calls that are on the board, and their callers notice nothing.
//!
//! # Why no call takes effect twice
//!
//! The server may be killed after it made a change and before it answered. So the server marks a change as *begun* on
//! the board. From before that until its answer is in place, it lets no other change of the same pages through
//! ([`ranges`]). The next server first repeats what was begun, and finds the pages either as that change left them or
//! as it found them. Changes that are begun at the same time are of different pages. A change that a dead process had
//! begun for itself is not repeated: the file has it whole or not at all.
//!
//! # What a takeover loses
//!
//! Under durability per write it loses nothing: every answered change is durable. Under durability per commit it loses
//! the open epoch, which is in the dead server's memory. The board counts the changes that no commit covers. If there
//! are any when a process takes over, it begins a new *generation*: all calls of the processes that took part before,
//! including the unfinished ones, fail with [`Error::Poisoned`], until the program closes its handles and opens the
//! file again. A process that leaves first commits the epoch for the others.
//!
//! # Which processes a failure affects
//!
//! A failure that poisons the file in the process that serves is recorded on the board before it is reported. So the
//! next server begins a new generation then too; otherwise a handle that was told of the failure would work again.
//!
//! A process may be unable to take over: it lacks descriptors, memory or permission, finds another file at the path, or
//! has a bug. This says nothing about the others. The same goes for a process that cannot rejoin the one that took
//! over. It tries for a second, or not at all if a retry cannot help, and is then *evicted*: its calls fail, and it
//! gives up its slot, so that no other process waits for it to serve. Each of the others tries for itself.
//!
//! A stopped process (SIGSTOP, a debugger) keeps its slot; if it serves, the others wait for it. A killed process keeps
//! its files while a child that it forked lives, because the child also holds the lock of the sidecar. The others wait
//! for some 30 s, and are evicted then. A process that leaves unlocks the sidecar and shuts its connections down,
//! whichever process inherited the descriptors.

mod call;
mod member;
mod ranges;
mod server;
mod service;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use self::call::Kind;
use self::member::Member;
use self::service::{Service, why_new_generation};
use super::negotiated;
use crate::engine::commits::consumer::Awaiting;
use crate::engine::snapshot::SnapshotService;
use crate::engine::{Close, Engine, Info, Piece, Recovery};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::ipc::rendezvous::{Rendezvous, in_directory};
use crate::ipc::rpc::{MOST, RequestSlot, Words};
use crate::options::{Durability, EngineKind, Options};
use crate::storage::{Identity, PageCache};
use crate::sys::incarnation;

/// Opens the file with its engine.
pub(crate) type Opener = Arc<dyn Fn(&Options) -> Result<Box<dyn Engine>> + Send + Sync>;

/// A file that this process shares with others.
pub(crate) struct RemoteFile {
    member: Arc<Member>,
    path: PathBuf,
    identity: Identity,
    /// The process that opened it. A forked child has neither the RPC area nor the threads.
    process: u64,
    /// Closed or settled.
    finished: AtomicBool,
    /// The state when it was opened, for when nobody can be asked.
    first: Info,
    /// Commits await the consumers of the commit log: the process that makes them waits, and not the one that serves.
    awaiting: Option<Awaiting>,
}

/// Joins the processes that share a file, or opens it for others to join.
///
/// # Errors
/// [`Error::InUse`] if it is open otherwise, or on other terms; [`Error::Invalid`] for options that nothing can be
/// shared with; those of the opener; [`Error::Io`].
pub(crate) fn open(path: &Path, identity: Identity, options: &Options, opener: Opener) -> Result<Box<dyn Engine>> {
    let refuse = |what: &str| Err(Error::Invalid { path: path.to_owned(), what: what.to_owned() });
    if options.read_only {
        return refuse("a shared file cannot be opened read-only; open it for writing, or without `Options::shared`");
    }
    if options.engine == EngineKind::Passthrough {
        return refuse("the passthrough engine cannot share a file between processes; choose another engine");
    }
    let dir = sidecar::directory(path);
    let member = in_directory(path, &dir, || {
        let rendezvous = Rendezvous::open(path, &dir, &sidecar::meeting_place(identity, sidecar::CALLS))?;
        member::join(path.to_owned(), Arc::new(rendezvous), options, opener)
    })?;
    let identity = identity_of(member.rpc_area.identity());
    let first = Info {
        engine: member.options.engine,
        len: member.rpc_area.len(),
        commit: 0,
        committed: None,
        durability: member.options.durability.unwrap_or(Durability::PerCommit),
        layout: None,
        sidecar: None,
        reflected_pages: 0,
        reflected_slices: 0,
        recovery: Recovery::default(),
    };
    let (path, finished) = (path.to_owned(), AtomicBool::new(false));
    let process = incarnation();
    let mut remote_file = RemoteFile { member, path, identity, process, finished, first, awaiting: None };
    // If this fails, dropping the handle ends this process's part.
    remote_file.awaiting = Awaiting::of(&PageCache::reading_by_call(), &remote_file.path)?;
    // If the server dies just now, the file is open all the same.
    remote_file.first = remote_file.info();
    Ok(Box::new(remote_file))
}

fn words_of(identity: Identity) -> [u64; 4] {
    [identity.device, identity.inode, identity.generation, identity.birth]
}

fn identity_of([device, inode, generation, birth]: [u64; 4]) -> Identity {
    Identity { device, inode, generation, birth }
}

impl RemoteFile {
    /// The open file if this process serves, or nothing if others have to be called.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::Poisoned`] if writes were lost since this process joined.
    #[inline]
    fn here(&self) -> Result<Option<&Service>> {
        if !self.is_whole() {
            return Err(self.refusal());
        }
        Ok(self.member.service().map(|service| &**service))
    }

    /// In a forked child nothing of the RPC area can be touched.
    #[inline]
    fn is_whole(&self) -> bool {
        self.process == incarnation() && self.member.generation == self.member.rpc_area.generation()
    }

    #[cold]
    fn refusal(&self) -> Error {
        if self.process == incarnation() {
            self.member.poisoned(why_new_generation(&self.member.rpc_area))
        } else {
            Error::Forked { path: self.path.clone() }
        }
    }

    /// Waits until the consumers of the commit log have what was just committed, if commits are to wait for that.
    fn await_consumers(&self) -> Result<()> {
        self.awaiting.as_ref().map_or(Ok(()), |awaiting| awaiting.wait(&PageCache::reading_by_call()))
    }

    /// The same after a change, which is a commit if each is one.
    fn await_changed(&self) -> Result<()> {
        if self.first.durability == Durability::PerWrite { self.await_consumers() } else { Ok(()) }
    }

    /// Does something with the open file, here or by a call. A call gives nothing if this process has come to serve
    /// before it was done.
    fn here_or<R>(&self, here: impl Fn(&Service) -> Result<R>, call: impl Fn() -> Result<Option<R>>) -> Result<R> {
        loop {
            if let Some(service) = self.here()? {
                return here(service);
            }
            if let Some(answer) = call()? {
                return Ok(answer);
            }
        }
    }

    /// The same by a call that is told by two numbers and answered by one.
    fn ask(
        &self,
        call: (Kind, &'static str),
        numbers: (u64, u64),
        here: impl Fn(&Service) -> Result<u64>,
    ) -> Result<u64> {
        self.here_or(here, || self.member.call(call, numbers, 0, |_| 0, |_, words| words.a))
    }

    /// Writes pieces as one, if the count of changes is the one that is asked for.
    fn write_under(&self, pieces: &[Piece<'_>], condition: Option<u64>) -> Result<bool> {
        let call = || {
            let table = call::table(pieces);
            let bytes = pieces.iter().fold(table.len(), |bytes, piece| bytes.saturating_add(piece.bytes.len()));
            let put = |request_slot: RequestSlot<'_>| {
                request_slot.put(0, &table);
                pieces.iter().fold(table.len(), |at, piece| {
                    request_slot.put(at, piece.bytes);
                    at + piece.bytes.len()
                })
            };
            let numbers = (pieces.len() as u64, call::of_condition(condition));
            self.member.call((Kind::Write, "write"), numbers, bytes, put, |_, words| words.a == call::WRITTEN)
        };
        self.here_or(|service| service.write(pieces, condition, &mut None, || ()), call)
    }

    fn ask_info(&self) -> Result<Info> {
        let take = |request_slot: RequestSlot<'_>, words: Words| {
            let mut bytes = vec![0; (words.len as usize).min(MOST)];
            request_slot.get(0, &mut bytes);
            call::to_info(&bytes)
        };
        let call = || self.member.call((Kind::Info, "examine"), (0, 0), 0, |_| 0, take);
        let what = "the process that serves the file sent an invalid state; close the file in all processes and open \
                    it again";
        let invalid = || Error::Invalid { path: self.path.clone(), what: what.to_owned() };
        self.here_or(|service| Ok(Some(service.engine().info())), call)?.ok_or_else(invalid)
    }

    /// The way to close: others go on from the sidecar, and the last to leave decides about it.
    fn asked(&self, how: Close) -> Close {
        if self.member.has_others() {
            Close::KeepSidecar
        } else if how == Close::AsAsked && !self.member.options.keep_sidecar {
            Close::Plain
        } else {
            how
        }
    }

    /// Closes the file if this process is the last to leave and has never served it. The process that served before
    /// left the sidecar for this one.
    fn close_unserved(&self) {
        let left = sidecar::path(&self.path, self.identity.inode);
        let how = self.asked(Close::AsAsked);
        let is_to_be_plain = how == Close::Plain || how == Close::AsAsked && self.member.options.plain_at_close;
        if !is_to_be_plain || !left.exists() {
            return;
        }
        let closed = self.member.open_file().and_then(|engine| engine.close(how));
        if let Err(error) = closed {
            // Every committed byte is in the file or in its sidecar, where the next open finds it.
            tracing::warn!(path = %self.path.display(), %error, "cannot remove the sidecar of a shared file at close");
        }
    }

    /// Ends this process's part. What others wrote to the open epoch is committed before the file is let go.
    fn finish(&self, end: impl FnOnce(&Service) -> Result<()>) -> Result<()> {
        // Also if it is refused: dropping the handle is what gives the locks back.
        let handle_state = self.here().map(drop);
        if self.process != incarnation() {
            return handle_state;
        }
        self.finished.store(true, Ordering::Relaxed);
        self.member.leave();
        let Some(service) = self.member.service() else {
            self.close_unserved();
            return handle_state;
        };
        service.note_poison();
        if self.member.has_others() {
            service.sync()?;
        }
        handle_state.and(end(service))
    }
}

impl Engine for RemoteFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn len(&self) -> u64 {
        if self.process == incarnation() { self.member.rpc_area.len() } else { 0 }
    }

    fn identity(&self) -> Result<Identity> {
        Ok(self.identity)
    }

    fn writable(&self) -> Result<()> {
        match self.here()? {
            Some(service) => service.engine().writable(),
            None => Ok(()),
        }
    }

    #[inline]
    fn try_read(&self, offset: u64, dst: &mut [u8]) -> bool {
        match self.member.service() {
            Some(service) if self.is_whole() => service.engine().try_read(offset, dst),
            _ => false,
        }
    }

    fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        loop {
            if let Some(service) = self.here()? {
                return service.read(offset, dst);
            }
            self.check(offset, dst.len() as u64)?;
            let numbers = (offset, dst.len() as u64);
            let answered = self.member.call(
                (Kind::Read, "read"),
                numbers,
                dst.len(),
                |_| 0,
                |request_slot, _| request_slot.get(0, dst),
            )?;
            if answered.is_some() {
                return Ok(());
            }
        }
    }

    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        self.write_under(pieces, None)?;
        self.await_changed()
    }

    fn write_if(&self, pieces: &[Piece<'_>], changes: u64) -> Result<bool> {
        let written = self.write_under(pieces, Some(changes))?;
        if written {
            self.await_changed()?;
        }
        Ok(written)
    }

    fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        let here = |service: &Service| service.deploy(offset, len).map(|()| 0);
        self.ask((Kind::Deploy, "deploy"), (offset, len), here).map(drop)
    }

    fn sync(&self) -> Result<u64> {
        let commit = self.ask((Kind::Sync, "sync"), (0, 0), Service::sync)?;
        self.await_consumers().map(|()| commit)
    }

    fn resize(&self, len: u64) -> Result<()> {
        let here = |service: &Service| service.resize(len, &mut None, || ()).map(|()| 0);
        self.ask((Kind::Resize, "resize"), (len, 0), here)?;
        // Some engines commit with it.
        self.await_consumers()
    }

    fn take_growth(&self) -> Result<Option<u64>> {
        let len = self.ask((Kind::Growth, "examine"), (0, 0), Service::take_growth)?;
        Ok((len > 0).then_some(len))
    }

    fn reclaim(&self) -> Result<u64> {
        self.ask((Kind::Reclaim, "reclaim"), (0, 0), Service::reclaim)
    }

    /// Those of the open file, if this process serves it: the process that serves keeps the snapshots of all.
    fn snapshots(&self) -> Option<&dyn SnapshotService> {
        self.here().ok().flatten()?.engine().snapshots()
    }

    fn changes(&self) -> Option<u64> {
        self.is_whole().then(|| self.member.rpc_area.changes())
    }

    fn info(&self) -> Info {
        self.ask_info().unwrap_or_else(|_| self.first.clone())
    }

    fn accepts(&self, options: &Options) -> bool {
        !options.read_only && negotiated::agree(&self.member.rpc_area.negotiated(), options).is_ok()
    }

    fn close(&self, how: Close) -> Result<()> {
        self.finish(|service| service.close(self.asked(how)))
    }

    fn settle(&self) -> Result<()> {
        let in_use = || Error::InUse { path: self.path.clone(), holder: "another process that shares it".to_owned() };
        if self.here()?.is_none() {
            // Whoever serves has it open.
            return Err(in_use());
        }
        self.finish(|service| if self.member.has_others() { Err(in_use()) } else { service.settle() })
    }
}

impl Drop for RemoteFile {
    fn drop(&mut self) {
        if self.process != incarnation() {
            // What a forked child inherited of it stays as it is.
            return std::mem::forget(Arc::clone(&self.member));
        }
        self.member.leave();
        if let Some(service) = self.member.service() {
            service.note_poison();
        }
        if let Some(service) = self.member.service()
            && !self.finished.load(Ordering::Relaxed)
            && self.member.has_others()
            && let Err(error) = service.sync()
        {
            // The others find their epoch lost.
            tracing::warn!(path = %self.path.display(), %error, "cannot commit the writes of other processes at close; \
                                                                 their open epoch is lost");
        }
        if self.member.service().is_none() && !self.finished.load(Ordering::Relaxed) {
            self.close_unserved();
        }
        if let Some(service) = self.member.service()
            && !self.finished.load(Ordering::Relaxed)
            && let Err(error) = service.close(self.asked(Close::AsAsked))
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot close the file cleanly; the next open recovers \
                                                                 it");
        }
        // The file first: whoever serves next opens it.
        drop(Arc::get_mut(&mut self.member).map(Member::take_service));
        self.member.rendezvous.give_up_ownership();
    }
}
