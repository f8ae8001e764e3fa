//! The serving thread: of all the processes that share a working copy, one has it. It fills pages, makes cuts, and hands
//! them to the backing, which a second thread calls so that nobody waits for a device.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::backing::{Backing, Cut, Opener};
use super::control::{CLOSED, Control, OPEN, PAGE, VERSION};
use crate::error::{Error, Result};
use crate::sharing::dial::{bell, ring};
use crate::sharing::place::{MEMBERS, Place};
use crate::sharing::wire::{Came, INVALID, Kind, Message, POISONED, receive};
use crate::sys::shared::SharedPages;
use crate::sys::socket;
use crate::sys::userfault::Userfault;

/// How long the backing may say that it is in use when a process that had it may have just died.
const DYING: Duration = Duration::from_secs(1);

/// The same where one has died for certain: a process gives up its files when it next gets a CPU and has ended the flushes
/// it had under way, and to take a file for lost that will be free would poison it for all.
const DYING_FOR_CERTAIN: Duration = Duration::from_secs(30);

/// A connection.
struct Peer {
    socket: OwnedFd,
    /// Told apart from later ones.
    token: u64,
    ended: bool,
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
    /// Bytes of the last commit.
    pub(super) committed_len: u64,
    /// The seats, by slot.
    pub(super) seats: Vec<Option<Seat>>,
    /// Buffers for the next cut.
    pub(super) spare: Cut,
    #[cfg(test)]
    pub(super) bug: Option<super::tests::Bug>,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    peers: Vec<Peer>,
    next_token: u64,
    queue: VecDeque<Request>,
    /// Those who wait for the commit under way, if there is one.
    in_flight: Option<Vec<Request>>,
    committer: Option<Committer>,
}

/// The thread that calls the backing. It ends with this value, and the backing is nobody's then.
struct Committer {
    cuts: Option<Sender<Cut>>,
    done: Receiver<(Cut, Result<u64>)>,
    bell: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Committer {
    fn drop(&mut self) {
        // What it waits for.
        self.cuts = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the backing was caught there.
            let _ = thread.join();
        }
    }
}

/// A serving thread of this process; dropping it ends the serving in good order.
pub(super) struct Serving {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        ring(&self.stop);
        if let Some(thread) = self.thread.take() {
            // A panic in it was caught there.
            let _ = thread.join();
        }
    }
}

/// Begins a new working copy of what the opener opens and serves it. The place says that nobody else takes part.
///
/// # Errors
/// Those of the opener; [`Error::Io`], [`Error::Invalid`].
pub(super) fn begin(place: &Arc<Place>, opener: &Arc<dyn Opener>, reserve: u64) -> Result<Serving> {
    let failed = |error| Error::io("make a working copy of", place.path(), error);
    let backing = open(place, opener, DYING)?;
    let len = backing.len();
    let reserved = reserve.max(len).max(1).div_ceil(PAGE as u64);
    let bytes = reserved.checked_mul(PAGE as u64).and_then(|bytes| usize::try_from(bytes).ok());
    let Some(bytes) = bytes.filter(|_| reserved <= 1 << 40) else {
        let what = format!("{reserve} bytes of address space are more than there can be");
        return Err(Error::Invalid { path: place.path().to_owned(), what });
    };
    let control = Control::create(len, reserved).map_err(failed)?;
    control.set_commit(backing.last_commit());
    let view = SharedPages::create("untorn-working", len.next_multiple_of(PAGE as u64), bytes).map_err(failed)?;
    start(place, Arc::new(control), view, Ok(backing))
}

/// Goes on with the serving where a process left it. The place says that this one may.
///
/// # Errors
/// [`Error::Io`]: then another process has to.
pub(super) fn take_over(
    place: &Arc<Place>,
    control: &Arc<Control>,
    pages: &SharedPages,
    opener: &Arc<dyn Opener>,
) -> Result<Serving> {
    // Nobody who waits to store has to wait for the rest.
    control.recover();
    control.set_gate(if control.rolling_back() { CLOSED } else { OPEN });
    let file = pages.file().try_clone_to_owned();
    let view = file.and_then(|file| SharedPages::map(file, pages.reserved()));
    let view = view.map_err(|error| Error::io("take over the serving of", place.path(), error))?;
    let backing = open(place, opener, DYING_FOR_CERTAIN).map_err(|error| {
        // Somebody has to serve, or those who wait for a page wait for ever. What they get is never committed.
        control.poison(&error.to_string());
        error.to_string()
    });
    if let Ok(backing) = &backing {
        control.set_commit(backing.last_commit());
    }
    start(place, Arc::clone(control), view, backing)
}

/// Opens the backing. A process that had it and is dying lets go of one lock after the other, this one last perhaps.
fn open(place: &Place, opener: &Arc<dyn Opener>, dying: Duration) -> Result<Arc<dyn Backing>> {
    let since = Instant::now();
    loop {
        match catch_unwind(AssertUnwindSafe(|| opener.open())) {
            Ok(Err(Error::InUse { .. })) if since.elapsed() < dying => thread::sleep(Duration::from_millis(2)),
            Ok(opened) => return opened.map(Arc::from),
            // Going on with the panic would leave the others with a process that serves and does not.
            Err(_) => {
                let cause = "opening it panicked".to_owned();
                return Err(Error::Poisoned { path: place.path().to_owned(), cause });
            }
        }
    }
}

fn start(
    place: &Arc<Place>,
    control: Arc<Control>,
    view: SharedPages,
    backing: std::result::Result<Arc<dyn Backing>, String>,
) -> Result<Serving> {
    let failed = |error| Error::io("serve the sharers of", place.path(), error);
    let filler = Userfault::filling().map_err(failed)?;
    filler.register_missing(view.address(), view.reserved()).map_err(failed)?;
    let stop = Arc::new(bell().map_err(failed)?);
    let committer = match &backing {
        Ok(backing) => Some(Committer::start(Arc::clone(backing)).map_err(failed)?),
        Err(_) => None,
    };
    let server = Server {
        committed_len: backing.as_ref().map_or(0, |backing| backing.len()),
        listener: place.listen()?,
        place: Arc::clone(place),
        control,
        view,
        filler,
        backing,
        seats: (0..MEMBERS).map(|_| None).collect(),
        spare: Cut::default(),
        #[cfg(test)]
        bug: super::tests::Bug::planted(),
        stop: Arc::clone(&stop),
        peers: Vec::new(),
        next_token: 0,
        queue: VecDeque::new(),
        in_flight: None,
        committer,
    };
    let thread =
        thread::Builder::new().name("untorn-server".to_owned()).spawn(move || server.serve()).map_err(failed)?;
    Ok(Serving { stop, thread: Some(thread) })
}

impl Committer {
    fn start(backing: Arc<dyn Backing>) -> io::Result<Self> {
        let (cuts, to_commit) = channel::<Cut>();
        let (committed, done) = channel();
        let bell = Arc::new(bell()?);
        let ours = Arc::clone(&bell);
        let thread = thread::Builder::new().name("untorn-committer".to_owned()).spawn(move || {
            for cut in to_commit {
                #[cfg(test)]
                super::tests::reach(super::tests::Point::Committing);
                let result = catch_unwind(AssertUnwindSafe(|| backing.commit(&cut)));
                #[cfg(test)]
                super::tests::reach(super::tests::Point::Committed);
                let result = result.unwrap_or_else(|_| {
                    let cause = "the backing panicked".to_owned();
                    Err(Error::Poisoned { path: Default::default(), cause })
                });
                if committed.send((cut, result)).is_err() {
                    return;
                }
                ring(&ours);
            }
        })?;
        Ok(Committer { cuts: Some(cuts), done, bell, thread: Some(thread) })
    }
}

impl Server {
    fn serve(mut self) {
        let (place, control) = (Arc::clone(&self.place), Arc::clone(&self.control));
        if catch_unwind(AssertUnwindSafe(|| self.run())).is_err() {
            control.poison("the serving thread panicked");
        }
        // In this order: who takes over listens at the same name, and opens the same backing.
        place.unlink();
        drop(self);
        place.serve_no_more();
    }

    fn run(&mut self) {
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
        }
        // Whoever waits for it would ask the next server for another one, which is no harm but for the time.
        if self.in_flight.is_some() {
            let done = self.committer.as_ref().map(|committer| committer.done.recv());
            if let Some(Ok((cut, result))) = done {
                self.finish(cut, result);
            }
        }
    }

    /// Waits for something to do: to stop, a new connection, a commit done, connections with messages.
    fn wait(&self) -> (bool, bool, bool, Vec<u64>) {
        let bell = self.committer.as_ref().map_or(self.stop.as_fd(), |committer| committer.bell.as_fd());
        let mut fds: Vec<PollFd<'_>> = [self.stop.as_fd(), self.listener.as_fd(), bell]
            .into_iter()
            .chain(self.peers.iter().map(|peer| peer.socket.as_fd()))
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        // While somebody is dying, or has yet to come back, time itself is something to do.
        let waits = self.seats.iter().flatten().any(|seat| self.is_lonely(seat));
        let waits = waits || (self.in_flight.is_none() && (!self.queue.is_empty() || self.control.rolling_back()));
        let limit = rustix::event::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
        // An interruption is a turn with nothing to do.
        let _ = poll(&mut fds, waits.then_some(&limit));
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let heard = self.peers.iter().zip(&ready[3..]).filter(|(_, ready)| **ready).map(|(peer, _)| peer.token);
        (ready[0], ready[1], ready[2] && self.committer.is_some(), heard.collect())
    }

    fn accept(&mut self) {
        while let Ok(Some(socket)) = socket::accept(self.listener.as_fd()) {
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

    fn peer(&mut self, token: u64) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.token == token && !peer.ended)
    }

    /// Takes all messages of a connection.
    fn hear(&mut self, token: u64) {
        while let Some(peer) = self.peer(token) {
            match receive(peer.socket.as_fd()) {
                Came::Nothing => return,
                Came::End => peer.ended = true,
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
                    let handle = pidfd_open(getpid(), PidfdFlags::empty());
                    let handle: Vec<BorrowedFd<'_>> = handle.iter().map(AsFd::as_fd).collect();
                    self.say(token, &Message::new(Kind::Ready, 0, 0, 0), &handle);
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

    fn welcome(&mut self, token: u64, message: &Message) {
        let refused = match self.control.poisoned() {
            _ if message.a != VERSION => Some(format!("it is shared by processes with version {VERSION} of sharing")),
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
        let Ok(pages) = self.view.file().try_clone_to_owned() else { return };
        let welcome = Message::new(Kind::Welcome, 0, control.reserved(), 0);
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
            let pages = self.control.pages();
            self.control.reset_member(slot);
            self.control.allocate_member(slot, pages).map_err(|error| format!("there is no memory: {error}"))?;
            if message.b < pages {
                // It has grown since the process had a look.
                protect_tail(&tracker, base, message.b, pages)
                    .map_err(|error| format!("protecting it failed: {error}"))?;
            }
            self.control.set_attached(slot, true);
        }
        self.seats[slot] = Some(Seat { tracker, base, token });
        Ok(())
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
            match begun.and_then(|()| self.cut()) {
                Ok(Some(cut)) => {
                    self.in_flight = Some(waiting);
                    let cuts = self.committer.as_ref().and_then(|committer| committer.cuts.as_ref());
                    if cuts.is_none_or(|cuts| cuts.send(cut).is_err()) {
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

    /// Makes the working copy longer, everywhere.
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
            for (slot, seat) in self.seats.iter().enumerate() {
                let Some(seat) = seat else { continue };
                self.control.allocate_member(slot, pages)?;
                // Before there is anything to store to.
                match protect_tail(&seat.tracker, seat.base, old, pages) {
                    Err(error) if error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) => {}
                    done => done?,
                }
            }
            self.view.grow(pages * PAGE as u64)
        });
        grown.map_err(|error| self.io("grow the working copy of", error))?;
        self.control.set_len(len);
        Ok(())
    }

    /// Hears of a commit that the backing is done with.
    fn committed(&mut self) {
        let Some(committer) = &self.committer else { return };
        let mut count = [0; 8];
        let _ = rustix::io::read(&committer.bell, &mut count);
        if let Ok((cut, result)) = committer.done.try_recv() {
            self.finish(cut, result);
        }
    }

    fn finish(&mut self, cut: Cut, result: Result<u64>) {
        match &result {
            Ok(number) => {
                let in_flight = self.control.in_flight();
                cut.pages.iter().for_each(|page| in_flight.reset(*page));
                self.control.set_commit(*number);
                self.committed_len = cut.len;
            }
            // The pages differ from the last commit as before.
            Err(_) => self.control.recover(),
        }
        self.spare = cut;
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

    /// Says something to a connection. One that does not listen is closed: its process comes back and asks again.
    fn say(&mut self, token: u64, message: &Message, fds: &[BorrowedFd<'_>]) {
        if let Some(peer) = self.peer(token)
            && message.send(peer.socket.as_fd(), fds).is_err()
        {
            peer.ended = true;
        }
    }
}

/// What a process calls the working copy it takes part in.
pub(super) fn name(control: &Control) -> String {
    let (high, low) = control.id();
    format!("{high:016x}{low:016x}")
}

/// Protects the pages from `from` to `to` of a process.
fn protect_tail(tracker: &Userfault, base: usize, from: u64, to: u64) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    tracker.protect(base.wrapping_add(from as usize * PAGE), (to - from) as usize * PAGE, true)
}
