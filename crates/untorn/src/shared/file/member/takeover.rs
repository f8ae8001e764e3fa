//! A remote file's part of [membership](crate::ipc::membership): each process has a thread that watches the process
//! that serves, and takes its place when it ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::Member;
use crate::engine::Engine;
use crate::error::Error;
use crate::ipc::connection::{ConnectError, Connection};
use crate::ipc::listener::Listener;
use crate::ipc::membership::{self, Failure, LONGEST_RETRY_PAUSE, Member as _, lock};
use crate::ipc::message::{Incoming, receive};
use crate::ipc::rendezvous::{MEMBERS, Rendezvous};
use crate::shared::file::server::Server;
use crate::shared::file::service::Service;
#[cfg(test)]
use crate::shared::file::tests;
use crate::shared::file::words_of;
use crate::storage::{self, Identity};

/// Why this process is cut off from the others when its thread came upon a bug.
const PANICKED: &str = "the thread that connects this process to the others that share the file panicked";

/// What the thread of a process does.
pub(in crate::shared::file) enum Part {
    Watch(Arc<OwnedFd>, OwnedFd),
    Serve(Server),
}

impl membership::Member for Member {
    type Part = Part;

    fn rendezvous(&self) -> &Rendezvous {
        &self.rendezvous
    }

    fn stop(&self) -> BorrowedFd<'_> {
        self.stop.as_fd()
    }

    fn live(&self, part: Part) -> bool {
        match part {
            Part::Serve(server) => {
                server.run(&self.stop);
                true
            }
            // A server says nothing unasked.
            Part::Watch(line, server) => {
                self.watch(line.as_fd(), &server, || !matches!(receive(line.as_fd()), Incoming::Nothing))
            }
        }
    }

    fn lose_server(&self) {
        self.hang_up();
    }

    fn may_serve(&self) -> bool {
        #[cfg(test)]
        return !tests::abstains();
        #[cfg(not(test))]
        true
    }

    fn take_over(&self) -> std::result::Result<Option<Part>, Failure> {
        // Before anybody is served: what the open epoch held was in the memory of that process.
        self.rpc_area.lose_epoch();
        #[cfg(test)]
        tests::reach(tests::Point::Lost);
        // The listener first, which may fail for a shortage: opening the file may take long. Processes that connect
        // meanwhile wait.
        let listener = Listener::new(&self.rendezvous).map_err(Failure::shortage)?;
        let service = self.reopen()?;
        #[cfg(test)]
        tests::reach(tests::Point::Reopened);
        if self.is_leaving(Duration::ZERO) {
            return Err(Failure::shortage("this process is leaving the shared file"));
        }
        let mut server = Server::new(listener, &self.rendezvous, &self.rpc_area, Arc::clone(&service));
        server.finish_begun();
        #[cfg(test)]
        tests::reach(tests::Point::Finished);
        // The calls that this process itself left: a thread opens no more request slots once it serves.
        let pool = lock(&self.pool);
        if let Err(error) = server.attend(self.rendezvous.slot()) {
            // What was begun has been answered, and is for the next one to find.
            drop((pool, service.sync()));
            return Err(Failure::shortage(format!("cannot start a thread: {error}")));
        }
        let _ = self.service.set(service);
        drop(pool);
        self.freed.notify_all();
        #[cfg(test)]
        tests::reach(tests::Point::Owner);
        self.attend_all(&mut server);
        Ok(Some(Part::Serve(server)))
    }

    fn come_back(&self) -> std::result::Result<Part, ConnectError> {
        Ok(self.listen_to(self.reconnect(self.rpc_area.name(), 0, &[])?))
    }

    /// Ends all waiting for answers. It will never serve, so nobody is to wait for that.
    fn evict(&self, why: String) {
        let pool = lock(&self.pool);
        let _ = self.evicted.set(why);
        self.freed.notify_all();
        drop(pool);
        self.rendezvous.give_up_ownership();
        // Last: what stands in its request slots may be taken away from now on.
        self.rendezvous.detach();
    }
}

impl Member {
    pub(super) fn listen_to(&self, connection: Connection) -> Part {
        #[cfg(test)]
        tests::halt("seated");
        let line = Arc::new(connection.socket);
        *lock(&self.line) = Some(Arc::clone(&line));
        // A request slot that was opened since the server looked at the RPC area, and before there was a line to say
        // so.
        self.announce();
        Part::Watch(line, connection.server)
    }

    /// What the thread of a process does until the process leaves, or is evicted.
    pub(super) fn run(self: Arc<Self>, part: Part) {
        let mut ended = catch_unwind(AssertUnwindSafe(|| self.take_part(part)));
        while ended.is_err() {
            ended = catch_unwind(AssertUnwindSafe(|| self.go_on()));
        }
    }

    /// After a panic. All that a panic unwinds leaves in order what the other processes see.
    fn go_on(&self) {
        let Some(service) = self.service.get() else {
            return self.evict(PANICKED.to_owned());
        };
        // It has the file open, and as long as it has handles of it nobody else can: it goes on serving.
        while !self.is_leaving(LONGEST_RETRY_PAUSE) {
            if let Ok(listener) = Listener::new(&self.rendezvous) {
                let mut server = Server::new(listener, &self.rendezvous, &self.rpc_area, Arc::clone(service));
                self.attend_all(&mut server);
                return server.run(&self.stop);
            }
        }
    }

    /// Goes on with the calls of all who take part.
    fn attend_all(&self, server: &mut Server) {
        for slot in (0..MEMBERS).filter(|slot| self.rpc_area.is_attached(*slot)) {
            // Those that cannot be served now are when they come back, or are told.
            let _ = server.attend(slot);
        }
    }

    /// Opens the file for itself alone, if it is still the one that is shared.
    pub(in crate::shared::file) fn open_file(&self) -> crate::error::Result<Box<dyn Engine>> {
        let replaced = || Error::InUse { path: self.path.clone(), holder: "a file that has replaced it".to_owned() };
        let is_it =
            |found: Identity| if words_of(found) == self.rpc_area.identity() { Ok(()) } else { Err(replaced()) };
        // Before the engine looks at it, which would give a file without a sidecar one, and a mark.
        is_it(storage::detect(&self.path)?.identity)?;
        let engine = (self.opener)(&self.options)?;
        is_it(engine.identity()?).map(|()| engine)
    }

    /// Opens the file again, which the process that had it may be about to let go.
    fn reopen(&self) -> std::result::Result<Arc<Service>, Failure> {
        let failed = |error: Error| Failure::of_opening(&error);
        let is_it = |found: Identity| {
            let why = || "another file has replaced it".to_owned();
            let same = words_of(found) == self.rpc_area.identity();
            if same { Ok(()) } else { Err(Failure::hopeless(why())) }
        };
        // Before the engine looks at it, which would give a file without a sidecar one, and a mark.
        is_it(storage::detect(&self.path).map_err(failed)?.identity)?;
        #[cfg(test)]
        tests::open_again(&self.path).map_err(failed)?;
        let engine = (self.opener)(&self.options).map_err(failed)?;
        // It may have been replaced in between.
        is_it(engine.identity().map_err(failed)?)?;
        Ok(Arc::new(Service::new(engine, Arc::clone(&self.rpc_area))))
    }
}
