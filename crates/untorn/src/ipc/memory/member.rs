//! A process's own part: its requests, and the thread that receives the answers and takes over when no process serves.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::backing::Opener;
use super::control::Control;
use super::fault_handler::FaultHandler;
use super::owner::{Owner, take_over};
use crate::error::{Error, Result};
use crate::ipc::connection::{ConnectError, Connection, SHORTAGE};
use crate::ipc::membership::{self, Failure, lock};
use crate::ipc::message::{INVALID, Incoming, Kind, Message, POISONED, is_shortage, receive};
use crate::ipc::rendezvous::Rendezvous;
use crate::sys::fault::MappingWatch;
use crate::sys::shared::SharedPages;
use crate::sys::socket::Line;
use crate::sys::userfault::Userfault;

/// Before something is said again to a server that is behind with hearing.
const RETRY: Duration = Duration::from_millis(1);

/// How long a process leaves the serving to others that could not let one of them in.
const ABSTENTION: Duration = Duration::from_secs(10);

/// What a process has of shared memory.
pub(super) struct Member {
    pub(super) rendezvous: Arc<Rendezvous>,
    pub(super) opener: Arc<dyn Opener>,
    pub(super) control: Arc<Control>,
    pub(super) pages: Arc<SharedPages>,
    pub(super) tracker: Arc<Userfault>,
    pub(super) line: Arc<Line>,
    /// What the signal handler does, for what the program asks for by a call.
    pub(super) fault_handler: FaultHandler,
    pub(super) watch: Mutex<Option<MappingWatch>>,
    pub(super) stop: OwnedFd,
    pub(super) asked: Mutex<Asked>,
    pub(super) answered: Condvar,
    pub(super) owner: Mutex<Option<Owner>>,
    /// Since when this process leaves the serving to others, as it could not let one of them in.
    pub(super) resigned: Mutex<Option<Instant>>,
    pub(super) evicted: Arc<AtomicBool>,
}

/// Requests of this process, by their numbers.
///
/// # Once for each server
/// A request that a server has twice it does twice, and a rollback that it does after it has answered takes back what
/// the thread stored since. So the thread that waits sends its request itself, once on each line, under the lock
/// under which the line is exchanged; and a server to which a process comes back forgets what it asked on the line
/// before. Whoever served before another one is gone.
#[derive(Default)]
pub(super) struct Asked {
    next: u64,
    /// How often the line was exchanged.
    lines: u64,
    /// Those who wait, and the answers that have come.
    waiting: BTreeMap<u64, Option<Message>>,
    /// Why there will be no answers any more.
    pub(super) evicted: Option<String>,
}

impl Member {
    /// Asks the process that serves, and waits for its answer: the number of the last commit. If the process dies the
    /// next one is asked.
    pub(super) fn request(&self, kind: Kind, operation: &'static str, a: u64) -> Result<u64> {
        if let Some(offset) = lock(&self.watch).as_ref().and_then(MappingWatch::lost) {
            return Err(Error::page_lost(operation, self.rendezvous.path(), offset));
        }
        let mut asked = lock(&self.asked);
        let id = asked.next;
        asked.next += 1;
        asked.waiting.insert(id, None);
        let message = Message::new(kind, id, a, 0);
        let mut sent_on = None;
        loop {
            if let Some(Some(answer)) = asked.waiting.get_mut(&id).map(Option::take) {
                asked.waiting.remove(&id);
                drop(asked);
                return self.result(operation, answer);
            }
            if let Some(why) = asked.evicted.clone() {
                asked.waiting.remove(&id);
                return Err(Error::Poisoned { path: self.rendezvous.path().to_owned(), cause: why });
            }
            if sent_on != Some(asked.lines) {
                #[cfg(test)]
                super::tests::halt(kind);
                match message.send(self.line.as_fd(), &[]) {
                    // The server is behind with hearing, or something is wanting here. It may be gone, too: the line
                    // is to be exchanged meanwhile.
                    Err(error) if is_shortage(&error) => {
                        let waited = self.answered.wait_timeout(asked, RETRY);
                        asked = waited.unwrap_or_else(PoisonError::into_inner).0;
                        continue;
                    }
                    // If nobody is there to take it, it is sent on the next line.
                    _ => sent_on = Some(asked.lines),
                }
            }
            asked = self.answered.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn result(&self, operation: &'static str, answer: Message) -> Result<u64> {
        let path = self.rendezvous.path();
        match answer.kind {
            Kind::Done => Ok(answer.a),
            _ if answer.b == POISONED => Err(Error::Poisoned { path: path.to_owned(), cause: answer.text }),
            _ if answer.b == INVALID => Err(Error::Invalid { path: path.to_owned(), what: answer.text }),
            _ => Err(Error::of_another_process(operation, path, answer.a, answer.text)),
        }
    }

    /// Takes all answers there are; true if there will be no more.
    fn recv(&self) -> bool {
        loop {
            match receive(self.line.as_fd()) {
                Incoming::Message(answer, _) => {
                    if let Some(rendezvous @ None) = lock(&self.asked).waiting.get_mut(&answer.id)
                        && matches!(answer.kind, Kind::Done | Kind::Failed)
                    {
                        *rendezvous = Some(answer);
                        self.answered.notify_all();
                    }
                }
                Incoming::Nothing => return false,
                Incoming::End | Incoming::Short(_) => return true,
            }
        }
    }

    /// Makes a connection the process's line, and has those who wait ask again.
    fn exchange(&self, connection: Connection) -> std::result::Result<OwnedFd, ConnectError> {
        #[cfg(test)]
        super::tests::EXCHANGES.fetch_add(1, Ordering::SeqCst);
        let mut asked = lock(&self.asked);
        self.line.exchange(&connection.socket).map_err(|error| ConnectError::here(error.to_string(), &error))?;
        asked.lines += 1;
        drop(asked);
        self.answered.notify_all();
        Ok(connection.server)
    }
}

impl membership::Member for Member {
    /// A handle of the process that serves.
    type Part = OwnedFd;

    fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    fn stop(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    fn live(&self, server: OwnedFd) -> bool {
        self.watch(self.line.as_fd(), &server, || self.recv())
    }

    fn lose_server(&self) {
        // If this process served, that thread has ended, or is about to.
        let owner = lock(&self.owner).take();
        *lock(&self.resigned) = owner.is_some_and(|owner| owner.resigned()).then(Instant::now);
    }

    fn may_serve(&self) -> bool {
        // The process that serves may be this one, and it may not even have let itself in.
        let ended = lock(&self.owner).take_if(|owner| owner.has_ended());
        if ended.is_some_and(|owner| owner.resigned()) {
            *lock(&self.resigned) = Some(Instant::now());
        }
        let resigned = *lock(&self.resigned);
        let abstains = resigned.is_some_and(|since| since.elapsed() < ABSTENTION) && self.rendezvous.has_others();
        #[cfg(test)]
        let abstains = abstains || super::tests::ABSTAINS.load(Ordering::SeqCst);
        !abstains && lock(&self.owner).is_none()
    }

    fn take_over(&self) -> std::result::Result<Option<OwnedFd>, Failure> {
        let owner = take_over(&self.rendezvous, &self.control, &self.pages, &self.opener).map_err(Failure::shortage)?;
        *lock(&self.owner) = Some(owner);
        Ok(None)
    }

    fn come_back(&self) -> std::result::Result<OwnedFd, ConnectError> {
        let base = self.pages.address() as u64;
        self.exchange(self.reconnect(self.control.name(), base, &[self.tracker.fd()])?)
    }

    /// Ends this process's part: its calls fail, and nobody has to wait for it any more, neither to serve nor for its
    /// userfaultfd. So first none of its stores may reach the memory.
    fn evict(&self, why: String) {
        drop(lock(&self.owner).take());
        // Another process serves those who wait for a page, while this one still has to release the memory.
        self.rendezvous.give_up_ownership();
        {
            // Under the lock: who sees the flag and asks why waits for the answer.
            let mut asked = lock(&self.asked);
            self.evicted.store(true, Ordering::SeqCst);
            asked.evicted = Some(why);
        }
        self.answered.notify_all();
        // Memory of its own in the place of that of all. There is no page table to be made for it, as for protecting
        // each page.
        while let Err(error) = self.pages.forsake() {
            tracing::warn!(%error, "this process was evicted and cannot release the shared memory; the other processes \
                                    wait for it");
            if self.is_leaving(SHORTAGE) {
                return;
            }
        }
        self.rendezvous.detach();
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let watch = lock(&self.watch).take();
        if watch.is_some_and(|watch| !watch.withdraw()) {
            // A thread is still in the handler: the addresses are never given back.
            std::mem::forget((Arc::clone(&self.pages), Arc::clone(&self.tracker)));
        }
    }
}
