//! A process's own part: its requests, and the thread that hears the answers and sees to it that somebody serves.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::backing::Opener;
use super::control::Control;
use super::join::come_back;
use super::keeper::Keeper;
use super::serving::{Serving, take_over};
use crate::error::{Error, Result};
use crate::sharing::dial::{Connection, Trouble};
use crate::sharing::place::Place;
use crate::sharing::wire::{Came, INVALID, Kind, Message, POISONED, receive};
use crate::sys::fault::Watch;
use crate::sys::shared::SharedPages;
use crate::sys::socket::Line;
use crate::sys::userfault::Userfault;

/// How long a process goes on trying to come back to a server that seems not to want it.
const HOPE: Duration = Duration::from_secs(1);

/// What a process has of a working copy.
pub(super) struct Member {
    pub(super) place: Arc<Place>,
    pub(super) opener: Arc<dyn Opener>,
    pub(super) control: Arc<Control>,
    pub(super) pages: Arc<SharedPages>,
    pub(super) tracker: Arc<Userfault>,
    pub(super) line: Arc<Line>,
    /// What the signal handler does, for what the program asks for by a call.
    pub(super) keeper: Keeper,
    pub(super) watch: Mutex<Option<Watch>>,
    pub(super) stop: OwnedFd,
    pub(super) asked: Mutex<Asked>,
    pub(super) answered: Condvar,
    pub(super) serving: Mutex<Option<Serving>>,
    pub(super) cut_off: Arc<AtomicBool>,
}

/// Requests of this process, by their numbers.
#[derive(Default)]
pub(super) struct Asked {
    next: u64,
    waiting: BTreeMap<u64, (Message, Option<Message>)>,
    /// Why there will be no answers any more.
    pub(super) cut_off: Option<String>,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What a panicking thread was doing under any of these locks is one assignment.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Member {
    /// Asks the process that serves, and waits for its answer: the number of the last commit. If the process dies the next
    /// one is asked.
    pub(super) fn request(&self, kind: Kind, operation: &'static str, a: u64) -> Result<u64> {
        if let Some(offset) = lock(&self.watch).as_ref().and_then(Watch::lost) {
            return Err(Error::page_lost(operation, self.place.path(), offset));
        }
        let mut asked = lock(&self.asked);
        let id = asked.next;
        asked.next += 1;
        let message = Message::new(kind, id, a, 0);
        // Before it is sent: whoever comes to serve in between is told of it.
        asked.waiting.insert(id, (message.clone(), None));
        drop(asked);
        self.send(&message);
        let mut asked = lock(&self.asked);
        loop {
            if let Some((_, Some(_))) = asked.waiting.get(&id)
                && let Some((_, Some(answer))) = asked.waiting.remove(&id)
            {
                drop(asked);
                return self.result(operation, answer);
            }
            if let Some(why) = asked.cut_off.clone() {
                asked.waiting.remove(&id);
                return Err(Error::Poisoned { path: self.place.path().to_owned(), cause: why });
            }
            asked = self.answered.wait(asked).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn result(&self, operation: &'static str, answer: Message) -> Result<u64> {
        let path = self.place.path();
        match answer.kind {
            Kind::Done => Ok(answer.a),
            _ if answer.b == POISONED => Err(Error::Poisoned { path: path.to_owned(), cause: answer.text }),
            _ if answer.b == INVALID => Err(Error::Invalid { path: path.to_owned(), what: answer.text }),
            _ => Err(Error::of_another_process(operation, path, answer.a, answer.text)),
        }
    }

    /// Sends a request. If nobody is there to take it, it is sent again when somebody is.
    fn send(&self, message: &Message) {
        while let Err(error) = message.send(self.line.as_fd(), &[]) {
            if error.raw_os_error() != Some(Errno::AGAIN.raw_os_error()) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// The watching thread: hears answers until the process leaves, and comes back to another server whenever the one there
    /// was is gone.
    pub(super) fn watch(&self, mut server: OwnedFd) {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.line.as_fd(), PollFlags::IN),
                // Readable when the process has ended, even if a forked child still has the other end of the line.
                PollFd::new(&server, PollFlags::IN),
            ];
            let _ = poll(&mut fds, None);
            let [stop, line, dead] = fds.map(|fd| !fd.revents().is_empty());
            if stop {
                return;
            }
            // What it said before it went is still to be heard.
            let gone = line && self.hear();
            if gone || dead {
                match self.find_server() {
                    Some(next) => server = next,
                    None => return,
                }
            }
        }
    }

    /// Takes all answers there are; true if there will be no more.
    fn hear(&self) -> bool {
        loop {
            match receive(self.line.as_fd()) {
                Came::Message(answer, _) => {
                    if let Some((_, place @ None)) = lock(&self.asked).waiting.get_mut(&answer.id)
                        && matches!(answer.kind, Kind::Done | Kind::Failed)
                    {
                        *place = Some(answer);
                        self.answered.notify_all();
                    }
                }
                Came::Nothing => return false,
                Came::End => return true,
            }
        }
    }

    /// Serves, if nobody does, and comes back to whoever does: its handle, or `None` if the process is leaving, or is cut
    /// off.
    fn find_server(&self) -> Option<OwnedFd> {
        // If this process served, that thread has ended, or is about to.
        drop(lock(&self.serving).take());
        let mut hopeless: Option<Instant> = None;
        loop {
            let may_serve = lock(&self.serving).is_none() && self.place.try_serve().unwrap_or(false);
            if may_serve {
                match take_over(&self.place, &self.control, &self.pages, &self.opener) {
                    Ok(serving) => *lock(&self.serving) = Some(serving),
                    Err(_) => self.place.serve_no_more(),
                }
            }
            let back = come_back(&self.place, &self.control, self.pages.address(), &self.tracker, self.stop.as_fd());
            match back.and_then(|connection| self.exchange(connection)) {
                Ok(server) => return Some(server),
                Err(Trouble::Again(_)) => hopeless = None,
                // A shortage may pass.
                Err(Trouble::Never(_)) if hopeless.get_or_insert_with(Instant::now).elapsed() < HOPE => {}
                Err(Trouble::Never(why)) => {
                    self.cut_off.store(true, Ordering::Relaxed);
                    lock(&self.asked).cut_off = Some(why);
                    self.answered.notify_all();
                    return None;
                }
            }
            let mut stop = [PollFd::new(&self.stop, PollFlags::IN)];
            let pause = rustix::event::Timespec { tv_sec: 0, tv_nsec: 500_000 };
            if poll(&mut stop, Some(&pause)).is_ok_and(|ready| ready > 0) {
                return None;
            }
        }
    }

    /// Makes a connection the process's line, and asks again what was not answered.
    fn exchange(&self, connection: Connection) -> std::result::Result<OwnedFd, Trouble> {
        self.line.exchange(&connection.socket).map_err(|error| Trouble::Again(error.to_string()))?;
        let again: Vec<Message> = lock(&self.asked)
            .waiting
            .values()
            .filter(|(_, answer)| answer.is_none())
            .map(|(message, _)| message.clone())
            .collect();
        again.iter().for_each(|message| self.send(message));
        Ok(connection.server)
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
