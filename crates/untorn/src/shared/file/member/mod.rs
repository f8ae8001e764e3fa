//! A process's own part: joining, calls, and leaving.

mod takeover;

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;

use self::takeover::Part;
use super::Opener;
use super::call::{self, Kind};
use super::server::Server;
use super::service::Service;
use crate::engine::commits::CommitService;
use crate::error::{Error, Result};
use crate::ipc::connection::{ConnectError, event, notify};
use crate::ipc::listener::Listener;
use crate::ipc::membership::{self, Member as _, lock};
use crate::ipc::message::{Kind as Says, Message};
use crate::ipc::rendezvous::Rendezvous;
use crate::ipc::rpc::{FREE, MOST, REQUEST_SLOTS, RequestSlot, RpcArea, VERSION, Words};
use crate::options::Options;
use crate::shared::negotiated;
use crate::sys::socket;

/// Memory that a request slot has from the first call on, and what it keeps after a longer one.
const ROOM: usize = 64 << 10;
const KEPT: usize = 1 << 20;

/// What a process that takes part has.
pub(super) struct Member {
    pub(super) path: PathBuf,
    pub(super) rendezvous: Arc<Rendezvous>,
    pub(super) rpc_area: Arc<RpcArea>,
    /// That of the RPC area when this process joined.
    pub(super) generation: u64,
    /// Those agreed on.
    pub(super) options: Options,
    opener: Opener,
    /// The open file, from when this process serves until it leaves.
    service: OnceLock<Arc<Service>>,
    pool: Mutex<Pool>,
    freed: Condvar,
    /// The connection to the process that serves.
    line: Mutex<Option<Arc<OwnedFd>>>,
    /// Why there will be no answers any more.
    evicted: OnceLock<String>,
    stop: OwnedFd,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// This process's request slots.
#[derive(Default)]
struct Pool {
    /// Those with no call under way, the one used last at the end.
    free: Vec<usize>,
    opened: usize,
    /// Bytes that there is memory for.
    allocated: [usize; REQUEST_SLOTS],
}

/// Joins the processes at a place, or begins if there are none.
///
/// # Errors
/// [`Error::InUse`] if the processes there cannot be joined, or do not agree with the options; those of the opener;
/// [`Error::Io`].
pub(super) fn join(
    path: PathBuf,
    rendezvous: Arc<Rendezvous>,
    options: &Options,
    opener: Opener,
) -> Result<Arc<Member>> {
    membership::join(
        &rendezvous,
        || begin(&path, &rendezvous, options, &opener).map(Some),
        || attempt(&path, &rendezvous, options, &opener),
    )
}

/// Opens the file for others to join.
fn begin(path: &Path, rendezvous: &Arc<Rendezvous>, options: &Options, opener: &Opener) -> Result<Arc<Member>> {
    let failed = |error: std::io::Error| Error::io("share", path, error);
    let engine = opener(options)?;
    let negotiated = negotiated::of(options, &engine.info(), engine.commits().map(CommitService::kept));
    let agreed =
        negotiated::agree(&negotiated, options).map_err(|what| Error::Invalid { path: path.to_owned(), what })?;
    let identity = super::words_of(engine.identity()?);
    let rpc_area = Arc::new(RpcArea::create(identity, &negotiated).map_err(failed)?);
    let service = Arc::new(Service::new(engine, Arc::clone(&rpc_area)));
    let server = Server::new(Listener::new(rendezvous)?, rendezvous, &rpc_area, Arc::clone(&service));
    rendezvous.attach()?;
    rpc_area.set_attached(rendezvous.slot(), true);
    let member = Member::new(path, rendezvous, rpc_area, agreed, opener).map_err(failed)?;
    let _ = member.service.set(service);
    let part = Part::Serve(server);
    member.start(part).inspect_err(|_| rendezvous.detach()).map_err(failed)?;
    Ok(member)
}

fn attempt(
    path: &Path,
    rendezvous: &Arc<Rendezvous>,
    options: &Options,
    opener: &Opener,
) -> std::result::Result<Arc<Member>, ConnectError> {
    let fatal = |error: std::io::Error| ConnectError::here(error.to_string(), &error);
    let mut invitation = membership::hello(rendezvous, VERSION, "")?;
    let rpc_area = Arc::new(RpcArea::join(invitation.memory()?).map_err(fatal)?);
    let agreed = negotiated::agree(&rpc_area.negotiated(), options).map_err(ConnectError::Never)?;
    let name = rpc_area.name();
    let member = Member::new(path, rendezvous, rpc_area, agreed, opener).map_err(fatal)?;
    invitation.attach(rendezvous, name, (0, 0), &[], |connection| {
        let part = member.listen_to(connection);
        member.start(part).map_err(fatal)
    })?;
    Ok(member)
}

impl Member {
    fn new(
        path: &Path,
        rendezvous: &Arc<Rendezvous>,
        rpc_area: Arc<RpcArea>,
        options: Options,
        opener: &Opener,
    ) -> std::io::Result<Arc<Self>> {
        Ok(Arc::new(Member {
            path: path.to_owned(),
            rendezvous: Arc::clone(rendezvous),
            generation: rpc_area.generation(),
            rpc_area,
            options,
            opener: Arc::clone(opener),
            service: OnceLock::new(),
            pool: Mutex::default(),
            freed: Condvar::new(),
            line: Mutex::new(None),
            evicted: OnceLock::new(),
            stop: event()?,
            thread: Mutex::new(None),
        }))
    }

    fn start(self: &Arc<Self>, part: Part) -> std::io::Result<()> {
        let member = Arc::clone(self);
        let thread = thread::Builder::new().name("untorn-member".to_owned()).spawn(move || member.run(part))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// The open file, if this process serves.
    #[inline]
    pub(super) fn service(&self) -> Option<&Arc<Service>> {
        self.service.get()
    }

    /// Takes the open file out, when this process has left: the last of it.
    pub(super) fn take_service(&mut self) -> Option<Arc<Service>> {
        self.service.take()
    }

    /// Why calls fail from now on, if they do.
    pub(super) fn evicted(&self) -> Option<&String> {
        self.evicted.get()
    }

    /// Whether other processes take part.
    pub(super) fn has_others(&self) -> bool {
        let others = (0..crate::ipc::rendezvous::MEMBERS).filter(|slot| *slot != self.rendezvous.slot());
        others.into_iter().any(|slot| self.rpc_area.is_attached(slot) && self.rendezvous.is_alive(slot))
    }

    /// Calls the process that serves: puts the call's bytes into the request slot, at most so many and no longer
    /// answer, and takes the answer out. `None` if this process has come to serve itself.
    ///
    /// # Errors
    /// That which the call ended with; [`Error::Io`] where there is no memory for its bytes, [`Error::Poisoned`] when
    /// there will be no answer.
    pub(super) fn call<R>(
        &self,
        (kind, operation): (Kind, &'static str),
        (a, b): (u64, u64),
        bytes: usize,
        put: impl FnOnce(RequestSlot<'_>) -> usize,
        take: impl FnOnce(RequestSlot<'_>, Words) -> R,
    ) -> Result<Option<R>> {
        if bytes > MOST {
            let what = format!(
                "one call on a shared file passes at most {MOST} bytes, not {bytes}; split it into smaller calls"
            );
            return Err(Error::Invalid { path: self.path.clone(), what });
        }
        let Some(index) = self.acquire()? else { return Ok(None) };
        let request_slot = self.rpc_area.request_slot(self.rendezvous.slot(), index);
        let mut allocated = lock(&self.pool).allocated[index];
        let wanted = bytes.max(ROOM);
        if wanted > allocated {
            if let Err(error) = request_slot.allocate(wanted) {
                self.give_back(index, allocated);
                return Err(Error::io("allocate shared memory for a call on", &self.path, error));
            }
            allocated = wanted;
        }
        let len = put(request_slot) as u64;
        request_slot.ask(Words { kind: kind as u64, a, b, c: 0, len, generation: self.generation });
        request_slot.call();
        if !request_slot.await_answer(|| self.evicted().is_some()) {
            // The request slot is not used again.
            request_slot.withdraw();
            return Err(self.poisoned(self.evicted().cloned().unwrap_or_default()));
        }
        let result = call::result(request_slot, operation, &self.path).map(|words| take(request_slot, words));
        if let Some(why) = self.evicted() {
            // Whoever serves may have taken this process for gone, and the answer's bytes away while they were read.
            return Err(self.poisoned(why.clone()));
        }
        request_slot.set_state(FREE);
        if allocated > KEPT {
            request_slot.release(KEPT);
            allocated = KEPT;
        }
        self.give_back(index, allocated);
        result.map(Some)
    }

    pub(super) fn poisoned(&self, cause: String) -> Error {
        Error::Poisoned { path: self.path.clone(), cause }
    }

    /// A request slot for this thread, or none if this process serves.
    fn acquire(&self) -> Result<Option<usize>> {
        let mut pool = lock(&self.pool);
        loop {
            if let Some(why) = self.evicted() {
                return Err(self.poisoned(why.clone()));
            }
            if self.service.get().is_some() {
                return Ok(None);
            }
            if let Some(index) = pool.free.pop() {
                return Ok(Some(index));
            }
            if pool.opened < REQUEST_SLOTS {
                let index = pool.opened;
                pool.opened += 1;
                // First on the RPC area, where the next server looks, then said to the one there is.
                self.rpc_area.set_request_slots(self.rendezvous.slot(), pool.opened);
                drop(pool);
                self.announce();
                return Ok(Some(index));
            }
            pool = self.freed.wait(pool).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn give_back(&self, index: usize, allocated: usize) {
        let mut pool = lock(&self.pool);
        pool.allocated[index] = allocated;
        pool.free.push(index);
        drop(pool);
        self.freed.notify_one();
    }

    /// Tells the server of a new request slot. If it is gone the next one looks for itself.
    fn announce(&self) {
        let line = lock(&self.line).clone();
        let message = Message::new(Says::RequestSlot, self.rendezvous.slot() as u64, 0, 0);
        while let Some(line) = &line
            && let Err(error) = message.send(line.as_fd(), &[])
            && error.raw_os_error() == Some(Errno::AGAIN.raw_os_error())
        {
            if self.is_leaving(Duration::from_millis(1)) {
                return;
            }
        }
        #[cfg(test)]
        super::tests::note("announced");
    }

    /// Leaves: when it returns, no thread of this process serves any more or watches.
    pub(super) fn leave(&self) {
        notify(&self.stop);
        if let Some(thread) = lock(&self.thread).take() {
            // A panic in it was caught there.
            let _ = thread.join();
        }
        if self.service.get().is_none() {
            // No call is under way any more. First this, for the server looks whether it was so when the line ends.
            self.rendezvous.detach();
        }
        self.hang_up();
    }

    /// Ends the connection to the process that serves, also where a forked child still has it.
    fn hang_up(&self) {
        if let Some(line) = lock(&self.line).take() {
            socket::shut_down(line.as_fd());
        }
    }
}
