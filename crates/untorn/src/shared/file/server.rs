//! The process that serves: it accepts the others' connections, and has a thread for each request slot of each.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::service::{Service, serve};
use crate::ipc::listener::Listener;
use crate::ipc::membership::{Connections, Host};
use crate::ipc::message::{Kind, Message};
use crate::ipc::rendezvous::{MEMBERS, Rendezvous};
use crate::ipc::rpc::{EXECUTING, REQUEST_SLOTS, RpcArea, VERSION};

/// How often the server looks whether those are alive that take part and have no connection.
const LIVENESS_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// The threads that do the calls of one process. Dropping it waits for the calls under way.
struct WorkerPool {
    rpc_area: Arc<RpcArea>,
    slot: usize,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl WorkerPool {
    fn new(rpc_area: &Arc<RpcArea>, slot: usize) -> Self {
        WorkerPool { rpc_area: Arc::clone(rpc_area), slot, stop: Arc::default(), threads: Vec::new() }
    }

    /// Sees to it that there is a thread for each of the first `count` request slots.
    fn grow(&mut self, service: &Arc<Service>, count: usize) -> io::Result<()> {
        for index in self.threads.len()..count.min(REQUEST_SLOTS) {
            let (rpc_area, slot, stop) = (Arc::clone(&self.rpc_area), self.slot, Arc::clone(&self.stop));
            let service = Arc::clone(service);
            let work = move || {
                let request_slot = rpc_area.request_slot(slot, index);
                let mut bytes = Vec::new();
                while request_slot.await_call(|| stop.load(Ordering::SeqCst)) {
                    #[cfg(test)]
                    super::tests::dawdle(&stop);
                    serve(&service, &rpc_area, request_slot, &mut bytes);
                }
            };
            self.threads.push(thread::Builder::new().name("untorn-worker".to_owned()).spawn(work)?);
        }
        Ok(())
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        (0..self.threads.len()).for_each(|index| self.rpc_area.request_slot(self.slot, index).notify());
        for thread in self.threads.drain(..) {
            // A panic in a call was caught there.
            let _ = thread.join();
        }
    }
}

/// The serving thread's state. When it is dropped, nobody has the service but the process itself.
pub(super) struct Server {
    rendezvous: Arc<Rendezvous>,
    rpc_area: Arc<RpcArea>,
    service: Arc<Service>,
    connections: Connections,
    /// By slot.
    crews: Vec<Option<WorkerPool>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // The calls under way are done and answered. Then the connections go.
        self.crews.clear();
    }
}

impl Server {
    /// Nobody is served before [`attend`](Server::attend) and [`run`](Server::run). The place says that this process
    /// may.
    pub(super) fn new(
        listener: Listener,
        rendezvous: &Arc<Rendezvous>,
        rpc_area: &Arc<RpcArea>,
        service: Arc<Service>,
    ) -> Self {
        Server {
            rendezvous: Arc::clone(rendezvous),
            rpc_area: Arc::clone(rpc_area),
            service,
            connections: Connections::new(listener),
            crews: (0..MEMBERS).map(|_| None).collect(),
        }
    }

    /// Does again what a server that was killed may have done without saying so, before anybody can look. What it had
    /// begun were changes of different pages, so their order does not matter.
    pub(super) fn finish_begun(&self) {
        let mut bytes = Vec::new();
        for slot in (0..MEMBERS).filter(|slot| self.rpc_area.is_attached(*slot)) {
            if !self.rendezvous.is_alive(slot) {
                self.rpc_area.clear(slot);
                continue;
            }
            for request_slot in (0..REQUEST_SLOTS).map(|index| self.rpc_area.request_slot(slot, index)) {
                if request_slot.state() == EXECUTING {
                    serve(&self.service, &self.rpc_area, request_slot, &mut bytes);
                }
            }
        }
    }

    /// Serves the request slots that a process has opened.
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn attend(&mut self, slot: usize) -> io::Result<()> {
        let workers = self.crews[slot].get_or_insert_with(|| WorkerPool::new(&self.rpc_area, slot));
        workers.grow(&self.service, self.rpc_area.request_slots(slot))
    }

    /// Serves until the bell rings.
    pub(super) fn run(mut self, stop: &OwnedFd) {
        loop {
            let limit = self.strays().next().map(|_| LIVENESS_CHECK_PERIOD);
            let ready = self.connections.wait(stop.as_fd(), None, limit);
            if ready.stopped {
                return;
            }
            if ready.called {
                self.connections.accept();
            }
            for token in ready.heard {
                self.recv(token);
            }
            self.connections.remove_ended();
            self.remove_dead();
        }
    }
}

impl Host for Server {
    const VERSION: u64 = VERSION;

    fn connections(&self) -> &Connections {
        &self.connections
    }

    fn connections_mut(&mut self) -> &mut Connections {
        &mut self.connections
    }

    fn name(&self) -> String {
        self.rpc_area.name()
    }

    fn refuses(&self, _part: &str) -> Option<String> {
        self.service.engine().writable().err().map(|error| error.to_string())
    }

    fn welcome(&mut self, token: u64) {
        self.connections.send(token, &Message::new(Kind::Welcome, 0, 0, 0), &[self.rpc_area.file()]);
    }

    fn is_attached(&self, slot: usize) -> bool {
        self.rpc_area.is_attached(slot)
    }

    fn has(&self, slot: usize) -> bool {
        slot != self.rendezvous.slot() && self.crews[slot].is_some()
    }

    fn admit_member(&mut self, slot: usize, message: &Message, _: Vec<OwnedFd>) -> std::result::Result<(), String> {
        if message.kind == Kind::Attach {
            self.rpc_area.set_attached(slot, true);
        }
        self.attend(slot).map_err(|error| format!("cannot start a thread for it: {error}"))
    }

    fn release(&mut self, slot: usize) {
        self.crews[slot] = None;
        self.connections.unseat(slot);
        self.rpc_area.clear(slot);
    }

    fn handle(&mut self, token: u64, message: Message) {
        match (message.kind, usize::try_from(message.id)) {
            (Kind::RequestSlot, Ok(slot)) if slot < MEMBERS && self.attend(slot).is_ok() => {}
            // Nobody says anything else to a server; and a process that cannot be served comes back and is told so.
            _ => self.connections.end(token),
        }
    }
}
