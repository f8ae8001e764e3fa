//! The serving thread: of all the processes that share a working copy, one has it. It fills pages, makes cuts, and hands
//! them to the backing, which a second thread calls so that nobody waits for a device.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::backing::{Backing, Cut, in_doubt};
use super::committer::Committer;
use super::control::{Control, PAGE, VERSION};
use super::cut::protect_pages;
use crate::error::{Error, Result};
use crate::sharing::dial::{SHORTAGE, wait, was_rung};
use crate::sharing::listener::Listener;
use crate::sharing::place::{MEMBERS, Place};
use crate::sharing::wire::{Came, INVALID, Kind, Message, POISONED, is_shortage, is_shortage_number, receive};
use crate::sys::shared::SharedPages;
use crate::sys::socket;
use crate::sys::userfault::Userfault;

/// How long others may wait for a process that serves and has no descriptors to let them in again: then another one tries.
const STRANDED: Duration = Duration::from_secs(1);

/// A want of descriptors that others wait for.
#[derive(Clone, Copy)]
struct Stranded {
    since: Instant,
    /// When it was felt last.
    last: Instant,
}

/// A connection. Dropping it ends it also where a forked child still has the descriptor.
struct Peer {
    socket: OwnedFd,
    /// Told apart from later ones.
    token: u64,
    ended: bool,
}

impl Drop for Peer {
    fn drop(&mut self) {
        socket::shut_down(self.socket.as_fd());
    }
}

/// A process that takes part.
pub(super) struct Seat {
    pub(super) tracker: Userfault,
    /// Where it has the memory.
    pub(super) base: usize,
    /// Its connection.
    token: u64,
}

/// Somebody who waits for an answer.
struct Request {
    token: u64,
    message: Message,
}

/// The serving thread's state.
pub(super) struct Server {
    pub(super) place: Arc<Place>,
    pub(super) control: Arc<Control>,
    /// The memory once more, where nothing is protected: for copying it, and for filling its pages.
    pub(super) view: SharedPages,
    pub(super) filler: Userfault,
    /// Or why there is none.
    pub(super) backing: std::result::Result<Arc<dyn Backing>, String>,
    /// What of the file it is.
    part: String,
    /// Bytes of the last commit.
    pub(super) committed_len: u64,
    /// Bytes that the working copy is to have once the commit under way is durable: nobody is shown them before.
    growing: Option<u64>,
    /// The seats, by slot.
    pub(super) seats: Vec<Option<Seat>>,
    /// Buffers for the next cut.
    pub(super) spare: Cut,
    #[cfg(test)]
    pub(super) bug: Option<super::tests::Bug>,
    // In this order when the server is dropped: nobody new is let in, and then those whose connection ends look for the next
    // server, which listens at the same name.
    listener: Listener,
    /// A connection could not be accepted just now.
    deaf: bool,
    /// Somebody waits to come back for whom there was no descriptor.
    stranded: Option<Stranded>,
    short: bool,
    resigned: Arc<AtomicBool>,
    stop: Arc<OwnedFd>,
    peers: Vec<Peer>,
    next_token: u64,
    queue: VecDeque<Request>,
    /// Those who wait for the commit under way, if there is one.
    in_flight: Option<Vec<Request>>,
    committer: Option<Committer>,
}

impl Server {
    /// Nobody is served before [`serve`](Server::serve). The place says that this process may.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub(super) fn new(
        place: &Arc<Place>,
        control: Arc<Control>,
        view: SharedPages,
        backing: std::result::Result<Arc<dyn Backing>, String>,
        part: String,
        (stop, resigned): (Arc<OwnedFd>, Arc<AtomicBool>),
    ) -> Result<Self> {
        let failed = |error| Error::io("serve the sharers of", place.path(), error);
        let filler = Userfault::filling().map_err(failed)?;
        filler.register_missing(view.address(), view.reserved()).map_err(failed)?;
        let committer = match &backing {
            Ok(backing) => Some(Committer::start(Arc::clone(backing)).map_err(failed)?),
            Err(_) => None,
        };
        Ok(Server {
            committed_len: backing.as_ref().map_or(0, |backing| backing.len()),
            growing: None,
            listener: Listener::new(place)?,
            deaf: false,
            stranded: None,
            short: false,
            resigned,
            place: Arc::clone(place),
            control,
            view,
            filler,
            backing,
            part,
            seats: (0..MEMBERS).map(|_| None).collect(),
            spare: Cut::default(),
            #[cfg(test)]
            bug: super::tests::Bug::planted(),
            stop,
            peers: Vec::new(),
            next_token: 0,
            queue: VecDeque::new(),
            in_flight: None,
            committer,
        })
    }

    /// Serves until the bell rings, and gives the part back.
    pub(super) fn serve(mut self) {
        let (place, control) = (Arc::clone(&self.place), Arc::clone(&self.control));
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            control.poison("the serving thread panicked");
        }
        // In this order: who takes over listens at the same name, and opens the same backing.
        drop(self);
        place.serve_no_more();
    }

    fn run(&mut self) {
        if let Ok(backing) = &self.backing {
            // The process that served before may have been killed between its commit and this.
            let (end, present) = (self.control.pages(), self.control.present());
            backing.tidy(&self.view, &mut backing.tidied().filter(|page| *page < end && present.get(*page)));
        }
        loop {
            let (stopped, called, committed, heard) = self.wait();
            if committed {
                self.committed();
            }
            if stopped {
                break;
            }
            if called {
                self.accept();
            }
            for token in heard {
                self.hear(token);
            }
            self.bury();
            self.advance();
            // Before the next wait: closing a connection is what tells its process to come back.
            self.peers.retain(|peer| !peer.ended);
            if self.is_to_resign() {
                self.resigned.store(true, Ordering::SeqCst);
                break;
            }
        }
        // Whoever waits for it would ask the next server for another one, which is no harm but for the time.
        if self.in_flight.is_some() {
            let done = self.committer.as_ref().and_then(Committer::await_done);
            if let Some((cut, result)) = done {
                self.finish(cut, result);
            }
        }
    }

    /// Waits for something to do: to stop, a new connection, a commit done, connections with messages.
    fn wait(&self) -> (bool, bool, bool, Vec<u64>) {
        let bell = self.committer.as_ref().map_or(self.stop.as_fd(), Committer::bell);
        let mut fds: Vec<PollFd<'_>> = [self.stop.as_fd(), self.listener.as_fd(), bell]
            .into_iter()
            .chain(self.peers.iter().map(|peer| peer.socket.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        if self.deaf {
            // A connection that cannot be accepted keeps the listener readable: without a pause this would be a busy loop.
            fds[1] = PollFd::new(&self.listener, PollFlags::empty());
        }
        // While somebody is dying, or has yet to come back, time itself is something to do.
        let waits = self.seats.iter().flatten().any(|seat| self.is_lonely(seat));
        let waits = waits || (self.in_flight.is_none() && (!self.queue.is_empty() || self.control.rolling_back()));
        let limit = if waits { Some(Duration::from_millis(2)) } else { self.deaf.then_some(SHORTAGE) };
        if !wait(&mut fds, limit) {
            // None of these waits.
            let heard = self.peers.iter().map(|peer| peer.token).collect();
            return (was_rung(self.stop.as_fd()), true, self.committer.is_some(), heard);
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.peers.iter().zip(&ready[3..]).filter(|(_, ready)| **ready).map(|(peer, _)| peer.token);
        (ready[0], self.deaf || ready[1], ready[2] && self.committer.is_some(), heard.collect())
    }

    fn accept(&mut self) {
        loop {
            let accepted = self.listener.accept();
            #[cfg(test)]
            let accepted = super::tests::as_far_as_allowed(accepted);
            self.deaf = accepted.is_err();
            #[cfg(test)]
            if self.deaf {
                super::member::lock(&super::tests::SHORTAGES).push(std::time::Instant::now());
            }
            let Ok(Some(socket)) = accepted else { return };
            self.next_token += 1;
            let mine = rustix::process::geteuid().as_raw();
            #[cfg(test)]
            if self.bug == Some(super::tests::Bug::Heir) {
                // Without close-on-exec.
                std::mem::forget((rustix::io::dup(&socket), rustix::io::dup(&self.listener)));
            }
            match socket::peer(socket.as_fd()) {
                Ok((user, _)) if user == mine => self.peers.push(Peer { socket, token: self.next_token, ended: false }),
                _ => {
                    let why = format!("it is shared by processes of user {mine}, and only of that user");
                    let _ = Message::new(Kind::Refused, 0, 1, 0).text(why).send(socket.as_fd(), &[]);
                }
            }
        }
    }

    /// Whether others wait in vain for this process, which is not to be borne for long: nobody can commit meanwhile.
    fn is_to_resign(&mut self) -> bool {
        let short = std::mem::take(&mut self.short) || self.deaf;
        if self.all_are_back() {
            self.stranded = None;
        } else if short {
            let now = Instant::now();
            // A shortage that has not been felt for as long is over, and this one is another.
            let lasting = self.stranded.filter(|stranded| now.duration_since(stranded.last) <= STRANDED);
            let since = lasting.map_or(now, |stranded| stranded.since);
            self.stranded = Some(Stranded { since, last: now });
            return now.duration_since(since) > STRANDED;
        }
        false
    }

    fn peer(&mut self, token: u64) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.token == token && !peer.ended)
    }

    /// Takes all messages of a connection.
    fn hear(&mut self, token: u64) {
        while let Some(peer) = self.peer(token) {
            match receive(peer.socket.as_fd()) {
                Came::Nothing => return,
                Came::End => peer.ended = true,
                Came::Short(_) => (peer.ended, self.short) = (true, true),
                Came::Message(message, fds) => self.handle(token, message, fds),
            }
        }
    }

    fn handle(&mut self, token: u64, message: Message, fds: Vec<OwnedFd>) {
        match message.kind {
            Kind::Fill => self.fill(message.a),
            Kind::Commit | Kind::RollBack | Kind::Grow => self.queue.push_back(Request { token, message }),
            Kind::Leave => {
                let slot = self.seats.iter().position(|seat| seat.as_ref().is_some_and(|seat| seat.token == token));
                if let Some(slot) = slot {
                    self.release(slot);
                }
                self.answer(&Request { token, message }, &Ok(self.control.commit()));
            }
            Kind::Hello => self.welcome(token, &message),
            Kind::Attach | Kind::Return => match self.seat(token, &message, fds) {
                Ok(()) => {
                    // Of this process: whoever has it sees when it ends, even if a forked child keeps the connection.
                    match pidfd_open(getpid(), PidfdFlags::empty()) {
                        Ok(handle) => self.say(token, &Message::new(Kind::Ready, 0, 0, 0), &[handle.as_fd()]),
                        Err(error) if is_shortage_number(error.raw_os_error()) => self.end_for_want(token),
                        // It is told by there being none.
                        Err(_) => self.say(token, &Message::new(Kind::Ready, 0, 0, 0), &[]),
                    }
                }
                Err(why) => self.say(token, &Message::new(Kind::Refused, 0, 1, 0).text(why), &[]),
            },
            // Nobody says these to a server.
            Kind::Welcome | Kind::Ready | Kind::Refused | Kind::Done | Kind::Failed | Kind::Channel => {
                if let Some(peer) = self.peer(token) {
                    peer.ended = true;
                }
            }
        }
    }

    /// Ends a connection for which there is something wanting here. Its process tries again.
    fn end_for_want(&mut self, token: u64) {
        self.short = true;
        if let Some(peer) = self.peer(token) {
            peer.ended = true;
        }
    }

    fn welcome(&mut self, token: u64, message: &Message) {
        let refused = match self.control.poisoned() {
            _ if message.a != VERSION => Some(format!("it is shared by processes with version {VERSION} of sharing")),
            _ if message.text != self.part => {
                Some(format!("{} is shared, and nothing else of it meanwhile", self.part))
            }
            Some(cause) => Some(self.poisoned(cause).to_string()),
            None => None,
        };
        if let Some(why) = refused {
            return self.say(token, &Message::new(Kind::Refused, 0, 1, 0).text(why), &[]);
        }
        if let Some(slot) = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS) {
            // It has the slot's lock, so whoever had the seat is dead, if only since a moment ago. From now on this process
            // looks alive to those who ask.
            self.release(slot);
        }
        let control = Arc::clone(&self.control);
        let welcome = Message::new(Kind::Welcome, 0, control.reserved(), 0);
        let Ok(pages) = self.view.file().try_clone_to_owned() else { return self.end_for_want(token) };
        self.say(token, &welcome, &[control.file(), pages.as_fd()]);
    }

    /// Gives a process its seat, or says why not.
    fn seat(&mut self, token: u64, message: &Message, mut fds: Vec<OwnedFd>) -> std::result::Result<(), String> {
        if message.text != name(&self.control) {
            return Err("another working copy of the file has been begun".to_owned());
        }
        let slot = usize::try_from(message.id).ok().filter(|slot| *slot < MEMBERS).ok_or("there is no such slot")?;
        let tracker = Userfault::from_fd(fds.pop().ok_or("a descriptor is missing")?);
        let base = message.a as usize;
        if message.kind == Kind::Return {
            if !self.control.attached(slot) {
                return Err("it was given up".to_owned());
            }
        } else {
            let pages = self.cut_len().div_ceil(PAGE as u64);
            self.control.reset_member(slot);
            self.control.allocate_member(slot, pages).map_err(|error| format!("there is no memory: {error}"))?;
            if message.b < pages {
                // It has grown since the process had a look.
                protect_pages(&tracker, base, message.b, pages)
                    .map_err(|error| format!("protecting it failed: {error}"))?;
            }
            self.control.set_attached(slot, true);
        }
        if let Some(before) = self.seats[slot].replace(Seat { tracker, base, token }) {
            // Its process has left that line, and asks on this one for what it was not answered.
            self.forget(before.token);
        }
        Ok(())
    }

    /// Ends a connection, with what was asked on it and is not begun.
    fn forget(&mut self, token: u64) {
        self.queue.retain(|request| request.token != token);
        if let Some(peer) = self.peer(token) {
            peer.ended = true;
        }
    }

    /// Gives a seat up whose process is gone, or stores no more.
    pub(super) fn release(&mut self, slot: usize) {
        self.seats[slot] = None;
        self.control.active(slot).store(0, std::sync::atomic::Ordering::SeqCst);
        self.control.set_attached(slot, false);
    }

    /// Whether the connection of a seat has ended.
    fn is_lonely(&self, seat: &Seat) -> bool {
        !self.peers.iter().any(|peer| peer.token == seat.token && !peer.ended)
    }

    /// Gives up the seats of the dead.
    fn bury(&mut self) {
        for slot in 0..MEMBERS {
            let lonely = self.seats[slot].as_ref().is_some_and(|seat| self.is_lonely(seat));
            if lonely && !self.place.is_alive(slot) {
                self.release(slot);
            }
        }
    }

    /// Whether every process that takes part has come back to this server.
    fn all_are_back(&mut self) -> bool {
        (0..MEMBERS).all(|slot| {
            if !self.control.attached(slot) || self.seats[slot].is_some() {
                return true;
            }
            let alive = self.place.is_alive(slot);
            if !alive {
                self.release(slot);
            }
            !alive
        })
    }

    /// Does what was asked for, as far as it can be done now.
    fn advance(&mut self) {
        while self.in_flight.is_none() && (!self.queue.is_empty() || self.control.rolling_back()) && self.all_are_back()
        {
            if self.control.rolling_back() {
                // What a dead server began. It can't be answered for; if it failed the working copy is poisoned.
                let failed = self.roll_back().is_err();
                if failed && self.control.rolling_back() {
                    return;
                }
                continue;
            }
            let Some(request) = self.queue.pop_front() else { return };
            if let Some(cause) = self.control.poisoned() {
                let failed = Err(self.poisoned(cause));
                self.answer(&request, &failed);
                continue;
            }
            let begun = match request.message.kind {
                Kind::RollBack => {
                    let done = self.roll_back().map(|()| self.control.commit());
                    self.answer(&request, &done);
                    continue;
                }
                Kind::Grow => self.grow(request.message.a),
                _ => Ok(()),
            };
            let mut waiting = vec![request];
            // The cut about to be made is later than all of these were asked for.
            while self.queue.front().is_some_and(|next| next.message.kind == Kind::Commit) {
                waiting.extend(self.queue.pop_front());
            }
            let cut = begun.and_then(|()| self.cut());
            if !matches!(cut, Ok(Some(_))) {
                self.growing = None;
            }
            match cut {
                Ok(Some(cut)) => {
                    self.in_flight = Some(waiting);
                    // Before it can be durable: whoever takes over may find it, and no other one.
                    self.control.set_committing(self.control.commit() + 1);
                    if !self.committer.as_ref().is_some_and(|committer| committer.commit(cut)) {
                        // Its thread is gone, which a panic in the backing does not lead to.
                        let failed = Err(self.poisoned("the committing thread is gone".to_owned()));
                        self.finish(Cut::default(), failed);
                    }
                }
                Ok(None) => self.answer_all(&waiting, &Ok(self.control.commit())),
                Err(error) => self.answer_all(&waiting, &Err(error)),
            }
        }
    }

    /// Bytes of the next cut, and of the one that is being committed.
    pub(super) fn cut_len(&self) -> u64 {
        self.growing.unwrap_or_else(|| self.control.len())
    }

    /// Makes room for a longer working copy, everywhere. It is as long once that is committed, and if it never is, nobody has
    /// seen a length that the file could not have.
    fn grow(&mut self, len: u64) -> Result<()> {
        let (before, old) = (self.control.len(), self.control.pages());
        let room = self.control.reserved() * PAGE as u64;
        if !(before..=room).contains(&len) {
            let what =
                format!("{len} bytes: while it is shared it can have from {before}, its length, to {room} bytes");
            return Err(Error::Invalid { path: self.place.path().to_owned(), what });
        }
        let pages = len.div_ceil(PAGE as u64);
        let grown = self.control.allocate(pages).and_then(|()| {
            for slot in (0..MEMBERS).filter(|slot| self.seats[*slot].is_some()) {
                self.control.allocate_member(slot, pages)?;
                // Before there is anything to store to.
                self.protect_in(slot, old, pages)?;
            }
            self.view.grow(pages * PAGE as u64)
        });
        grown.map_err(|error| self.io("grow the working copy of", error))?;
        self.growing = Some(len);
        Ok(())
    }

    /// Hears of a commit that the backing is done with.
    fn committed(&mut self) {
        if let Some((cut, result)) = self.committer.as_ref().and_then(Committer::done) {
            self.finish(cut, result);
        }
    }

    fn finish(&mut self, cut: Cut, result: Result<u64>) {
        self.growing = None;
        match &result {
            Ok(number) => {
                let in_flight = self.control.in_flight();
                cut.pages.iter().for_each(|page| in_flight.reset(*page));
                self.control.set_len(cut.len);
                self.control.set_commit(*number);
                self.committed_len = cut.len;
                if let Ok(backing) = &self.backing {
                    let tidied = backing.tidied();
                    backing.tidy(&self.view, &mut cut.pages.iter().copied().filter(|page| tidied.contains(page)));
                }
            }
            Err(error) => {
                // First: what is rolled back after this would count as equal to a last commit that nobody knows.
                if let Some(cause) = in_doubt(&self.backing, error) {
                    self.control.poison(&cause);
                }
                // The pages differ from the last commit as before.
                self.control.recover();
                self.control.set_committing(0);
            }
        }
        self.spare = cut.emptied();
        let waiting = self.in_flight.take().unwrap_or_default();
        self.answer_all(&waiting, &result);
    }

    fn answer_all(&mut self, waiting: &[Request], result: &Result<u64>) {
        waiting.iter().for_each(|request| self.answer(request, result));
    }

    fn answer(&mut self, request: &Request, result: &Result<u64>) {
        let id = request.message.id;
        let answer = match result {
            Ok(number) => Message::new(Kind::Done, id, *number, 0),
            Err(Error::Poisoned { cause, .. }) => Message::new(Kind::Failed, id, 0, POISONED).text(cause),
            Err(Error::Invalid { what, .. }) => Message::new(Kind::Failed, id, 0, INVALID).text(what),
            Err(error) => Message::new(Kind::Failed, id, error.errno() as u64, 0).text(error.to_string()),
        };
        self.say(request.token, &answer, &[]);
    }

    /// Says something to a connection. One that does not listen is closed: its process comes back and asks again. That would
    /// help nobody where this one is short of what it takes to hand descriptors on.
    fn say(&mut self, token: u64, message: &Message, fds: &[BorrowedFd<'_>]) {
        if let Some(peer) = self.peer(token)
            && let Err(error) = message.send(peer.socket.as_fd(), fds)
        {
            peer.ended = true;
            let is_full = error.kind() == std::io::ErrorKind::WouldBlock;
            self.short |= !fds.is_empty() && !is_full && is_shortage(&error);
        }
    }
}

/// What a process calls the working copy it takes part in.
pub(super) fn name(control: &Control) -> String {
    let (high, low) = control.id();
    format!("{high:016x}{low:016x}")
}
