//! Takeover: each process has a thread that watches the process that serves, and takes its place when it ends.

use std::os::fd::{AsFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::{Member, lock};
use crate::error::Error;
use crate::ipc::connection::{ConnectError, Connection, ask, connect, timespec, with_handle};
use crate::ipc::listener::Listener;
use crate::ipc::message::{Incoming, Kind as Says, Message, receive};
use crate::ipc::rendezvous::MEMBERS;
use crate::shared::file::server::Server;
use crate::shared::file::service::Service;
#[cfg(test)]
use crate::shared::file::tests;
use crate::shared::file::words_of;
use crate::storage::{self, Identity};

/// How long a process goes on trying what fails, and how often at least: a shortage may pass, and one attempt may
/// take long on a machine that has much else to do.
const HOPE: Duration = Duration::from_secs(1);
const ATTEMPTS: u32 = 10;
/// How long a process that was killed may keep the file: until it next gets a CPU, and the flushes that it had under
/// way have ended.
const DYING: Duration = Duration::from_secs(30);
/// Between two attempts; and the longest, of a process that fails where another one may not.
const PAUSE: Duration = Duration::from_micros(500);
const REST: Duration = Duration::from_millis(100);

/// Why this process is cut off from the others when its thread came upon a bug.
const PANICKED: &str = "the thread that connects this process to the others that share the file panicked";

/// Why this process could not take the place of the one that served. It says nothing of the others: each tries for
/// itself.
struct Failure {
    why: String,
    /// How long it is worth trying again.
    hope: Duration,
}

impl Failure {
    fn shortage(error: impl ToString) -> Self {
        Failure { why: error.to_string(), hope: HOPE }
    }

    fn of_opening(error: &Error) -> Self {
        let hope = match error {
            Error::InUse { .. } => DYING,
            Error::Io { .. } | Error::Poisoned { .. } => HOPE,
            _ => Duration::ZERO,
        };
        Failure { why: error.to_string(), hope }
    }
}

/// A row of failures.
#[derive(Default)]
struct Row {
    since: Option<Instant>,
    count: u32,
}

impl Row {
    /// Adds one; whether it is time to give up.
    fn is_enough(&mut self, hope: Duration) -> bool {
        self.count += 1;
        let since = self.since.get_or_insert_with(Instant::now).elapsed();
        // Of a file that is kept each attempt takes long, and all others wait for it.
        hope.is_zero() || since >= hope && (hope == DYING || self.count >= ATTEMPTS)
    }

    /// How long to leave it to others.
    fn rest(&self) -> Duration {
        (PAUSE * (1 << self.count.min(8))).min(REST)
    }
}

/// What the thread of a process does.
pub(super) enum Part {
    TrackedData(Arc<OwnedFd>, OwnedFd),
    Serve(Server),
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
        Part::TrackedData(line, connection.server)
    }

    /// What the thread of a process does until the process leaves, or is evicted.
    pub(super) fn live(self: Arc<Self>, part: Part) {
        let mut ended = catch_unwind(AssertUnwindSafe(|| self.take_part(part)));
        while ended.is_err() {
            ended = catch_unwind(AssertUnwindSafe(|| self.go_on()));
        }
    }

    fn take_part(&self, mut part: Part) {
        loop {
            match part {
                Part::Serve(server) => return server.run(&self.stop),
                Part::TrackedData(line, server) => {
                    if self.watch(&line, &server) {
                        return;
                    }
                }
            }
            match self.find_server() {
                Some(next) => part = next,
                None => return,
            }
        }
    }

    /// After a panic. All that a panic unwinds leaves in order what the other processes see.
    fn go_on(&self) {
        let Some(service) = self.service.get() else {
            self.evict(PANICKED.to_owned());
            return self.rendezvous.give_up_ownership();
        };
        // It has the file open, and as long as it has handles of it nobody else can: it goes on serving.
        while !self.is_leaving(REST) {
            if let Ok(listener) = Listener::new(&self.rendezvous) {
                let mut server = Server::new(listener, &self.rendezvous, &self.rpc_area, Arc::clone(service));
                self.attend_all(&mut server);
                return server.run(&self.stop);
            }
        }
    }

    /// Waits for the end of the process that serves, or of its serving; true if this process is to leave.
    fn watch(&self, line: &OwnedFd, server: &OwnedFd) -> bool {
        loop {
            let mut fds = [
                PollFd::new(&self.stop, PollFlags::IN),
                PollFd::new(line, PollFlags::IN),
                // Readable when the process has ended, even if a forked child still has the other end of the line.
                PollFd::new(server, PollFlags::IN),
            ];
            let _ = poll(&mut fds, None);
            let [stop, line_ready, dead] = fds.map(|fd| !fd.revents().is_empty());
            if stop || dead {
                return stop;
            }
            // A server says nothing unasked.
            if line_ready && !matches!(receive(line.as_fd()), Incoming::Nothing) {
                return false;
            }
        }
    }

    /// Serves, if nobody does, or comes back to whoever does; `None` if the process is leaving, or is evicted.
    fn find_server(&self) -> Option<Part> {
        self.hang_up();
        let (mut failed, mut refused) = (Row::default(), Row::default());
        loop {
            let mut rest = PAUSE;
            #[cfg(test)]
            let may = !tests::abstains();
            #[cfg(not(test))]
            let may = true;
            if may && self.rendezvous.try_own().unwrap_or(false) {
                match self.take_over() {
                    Ok(server) => return Some(Part::Serve(server)),
                    Err(Failure { why, hope }) => {
                        let enough = failed.is_enough(hope);
                        if enough {
                            self.evict(format!(
                                "the process that served the file ended, and this process cannot take over: {why}"
                            ));
                        }
                        self.rendezvous.give_up_ownership();
                        if enough {
                            return None;
                        }
                        // A file that is still kept will be free for whoever tries next.
                        rest = if hope == DYING { PAUSE } else { failed.rest() };
                    }
                }
            }
            match self.come_back() {
                Ok(part) => return Some(part),
                Err(ConnectError::Again(_)) => refused = Row::default(),
                Err(ConnectError::Never(why) | ConnectError::Short(why)) if refused.is_enough(HOPE) => {
                    self.evict(why);
                    return None;
                }
                Err(ConnectError::Never(_) | ConnectError::Short(_)) => rest = rest.max(refused.rest()),
            }
            if self.is_leaving(rest) {
                return None;
            }
        }
    }

    /// Waits; whether this process is leaving.
    pub(super) fn is_leaving(&self, pause: Duration) -> bool {
        let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
        poll(&mut stop, Some(&timespec(pause))).is_ok_and(|ready| ready > 0)
    }

    /// Ends all waiting for answers, and this process's part: it will never serve, so nobody is to wait for that.
    fn evict(&self, why: String) {
        let pool = lock(&self.pool);
        let _ = self.evicted.set(why);
        self.freed.notify_all();
        drop(pool);
        // Last: what stands in its request slots may be taken away from now on.
        self.rendezvous.detach();
    }

    fn come_back(&self) -> std::result::Result<Part, ConnectError> {
        let socket = connect(&self.rendezvous)?;
        let back = Message::new(Says::Return, self.rendezvous.slot() as u64, 0, 0).text(self.rpc_area.name());
        let ready = ask(&socket, &back, &[], Says::Ready, Some(self.stop.as_fd()))?;
        Ok(self.listen_to(with_handle(socket, ready)?))
    }

    /// Takes the place of a process that served. The place says that this one may.
    fn take_over(&self) -> std::result::Result<Server, Failure> {
        // Before anybody is served: what the open epoch held was in the memory of that process.
        self.rpc_area.lose_epoch();
        #[cfg(test)]
        tests::reach(tests::Point::Lost);
        // First what may fail for want of something, for opening the file may take long. Who connects meanwhile waits.
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
        Ok(server)
    }

    /// Goes on with the calls of all who take part.
    fn attend_all(&self, server: &mut Server) {
        for slot in (0..MEMBERS).filter(|slot| self.rpc_area.is_attached(*slot)) {
            // Those that cannot be served now are when they come back, or are told.
            let _ = server.attend(slot);
        }
    }

    /// Opens the file again, which the process that had it may be about to let go.
    fn reopen(&self) -> std::result::Result<Arc<Service>, Failure> {
        let failed = |error: Error| Failure::of_opening(&error);
        let is_it = |found: Identity| {
            let why = || "another file has replaced it".to_owned();
            let same = words_of(found) == self.rpc_area.identity();
            if same { Ok(()) } else { Err(Failure { why: why(), hope: Duration::ZERO }) }
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
