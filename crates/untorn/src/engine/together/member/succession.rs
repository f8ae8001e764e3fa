//! Who serves next: the thread of each process that watches the one that serves, and takes its place.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Member, lock};
use crate::engine::together::server::Server;
use crate::engine::together::service::Service;
#[cfg(test)]
use crate::engine::together::tests;
use crate::error::{Error, Result};
use crate::sharing::dial::{Connection, Trouble, ask, connect, with_handle};
use crate::sharing::wire::{Came, Kind as Says, Message, receive};

/// How long a process goes on trying to come back to a server that seems not to want it.
const HOPE: Duration = Duration::from_secs(1);
/// How long a process that was killed may keep the file: until it next gets a CPU, and the flushes that it had under way
/// have ended.
const DYING: Duration = Duration::from_secs(30);
/// Between two attempts.
const PAUSE: Duration = Duration::from_micros(500);

/// What the thread of a process does.
pub(super) enum Part {
    Watch(Arc<OwnedFd>, OwnedFd),
    Serve(Server),
}

impl Member {
    pub(super) fn listen_to(&self, connection: Connection) -> Part {
        #[cfg(test)]
        tests::halt("seated");
        let line = Arc::new(connection.socket);
        *lock(&self.line) = Some(Arc::clone(&line));
        // A channel that was opened since the server looked at the board, and before there was a line to say so.
        self.announce();
        Part::Watch(line, connection.server)
    }

    pub(super) fn live(self: Arc<Self>, mut part: Part) {
        loop {
            match part {
                Part::Serve(server) => return server.run(&self.stop),
                Part::Watch(line, server) => {
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
            if line_ready && !matches!(receive(line.as_fd()), Came::Nothing) {
                return false;
            }
        }
    }

    /// Serves, if nobody does, or comes back to whoever does; `None` if the process is leaving, or is cut off.
    fn find_server(&self) -> Option<Part> {
        *lock(&self.line) = None;
        let mut hopeless: Option<Instant> = None;
        loop {
            #[cfg(test)]
            let may = !tests::abstains();
            #[cfg(not(test))]
            let may = true;
            if may && self.place.try_serve().unwrap_or(false) {
                match self.take_over() {
                    Ok(server) => return Some(Part::Serve(server)),
                    Err(_) => self.place.serve_no_more(),
                }
            }
            match self.come_back() {
                Ok(part) => return Some(part),
                Err(Trouble::Again(_)) => hopeless = None,
                // A shortage may pass.
                Err(Trouble::Never(_)) if hopeless.get_or_insert_with(Instant::now).elapsed() < HOPE => {}
                Err(Trouble::Never(why)) => {
                    self.cut(why);
                    return None;
                }
            }
            if self.is_leaving(PAUSE) {
                return None;
            }
        }
    }

    /// Waits; whether this process is leaving.
    pub(super) fn is_leaving(&self, pause: Duration) -> bool {
        let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
        let pause = Timespec { tv_sec: 0, tv_nsec: pause.subsec_nanos().into() };
        poll(&mut stop, Some(&pause)).is_ok_and(|ready| ready > 0)
    }

    /// Ends all waiting for answers.
    fn cut(&self, why: String) {
        let _pool = lock(&self.pool);
        let _ = self.cut_off.set(why);
        self.freed.notify_all();
    }

    fn come_back(&self) -> std::result::Result<Part, Trouble> {
        let socket = connect(&self.place)?;
        let back = Message::new(Says::Return, self.place.slot() as u64, 0, 0).text(self.board.name());
        let ready = ask(&socket, &back, &[], Says::Ready, Some(self.stop.as_fd()))?;
        Ok(self.listen_to(with_handle(socket, ready)?))
    }

    /// Takes the place of a process that served. The place says that this one may.
    ///
    /// # Errors
    /// [`Error::Io`]: then another process has to.
    fn take_over(&self) -> Result<Server> {
        // Before anybody is served: what the open epoch held was in the memory of that process.
        self.board.lose_epoch();
        #[cfg(test)]
        tests::reach(tests::Point::Lost);
        let service = self.reopen();
        #[cfg(test)]
        tests::reach(tests::Point::Reopened);
        if self.is_leaving(Duration::ZERO) {
            return Err(Error::io("take over the serving of", &self.path, Errno::INTR));
        }
        let mut server = Server::new(&self.place, &self.board, service.clone())?;
        server.finish_begun();
        #[cfg(test)]
        tests::reach(tests::Point::Finished);
        let started = |error| Error::io("take over the serving of", &self.path, error);
        // The calls that this process itself left: a thread opens no more channels once it serves.
        let pool = lock(&self.pool);
        server.attend(self.place.slot()).map_err(started)?;
        match service {
            Ok(service) => drop(self.service.set(service)),
            Err(why) => drop(self.cut_off.set(why)),
        }
        drop(pool);
        self.freed.notify_all();
        #[cfg(test)]
        tests::reach(tests::Point::Serving);
        for slot in 0..crate::sharing::place::MEMBERS {
            if self.board.is_attached(slot) {
                // Those that cannot be served now are when they come back, or are told.
                let _ = server.attend(slot);
            }
        }
        Ok(server)
    }

    /// Opens the file again, which the process that had it may be about to let go.
    fn reopen(&self) -> std::result::Result<Arc<Service>, String> {
        let since = Instant::now();
        let engine = loop {
            match (self.opener)(&self.options) {
                Err(Error::InUse { .. }) if since.elapsed() < DYING && !self.is_leaving(Duration::from_millis(1)) => {}
                opened => break opened.map_err(|error| error.to_string())?,
            }
        };
        let found = engine.identity().map_err(|error| error.to_string())?;
        if crate::engine::together::words_of(found) != self.board.identity() {
            return Err("another file was put in its place".to_owned());
        }
        Ok(Arc::new(Service::new(engine, Arc::clone(&self.board))))
    }
}
