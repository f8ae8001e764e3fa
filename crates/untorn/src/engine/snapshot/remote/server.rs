//! The thread that serves snapshots to other processes.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{
    BYTES, HEADER, HOME_BITS, Incoming, Kind, MOST, Message, READERS, REGION, RELEASED, SNAPSHOT, THREAD, memory_for,
    name_of, receive, report, to_word,
};
use crate::engine::registry;
use crate::engine::snapshot::published::Published;
use crate::engine::snapshot::{Marks, SnapshotService, Subscription, Taken, readers};
use crate::error::{Error, Result};
use crate::storage::{Identity, identity_of};
use crate::sync::page_marks::raise;
use crate::sys::alive::Alive;
use crate::sys::shared::SharedPages;
use crate::sys::{PerProcess, socket};

/// Readers at a time; others are turned away.
const MOST_READERS: usize = 256;

/// Ranges of data that one answer joins, and how far apart they may be.
const MOST_JOINED: usize = 1000;
const NEAR: u64 = 64 << 10;

/// Whether this process has its thread, or tried to start it.
static STARTED: PerProcess<Mutex<bool>> = PerProcess::new();

/// Lets other processes take snapshots of the files that this one has open. Without a thread or a descriptor for that,
/// they are told that nobody serves them.
pub(crate) fn start() {
    let mut started = STARTED.lock();
    if *started {
        return;
    }
    *started = true;
    let server = socket::listen_abstract(&name_of(std::process::id()));
    let spawned = server.and_then(|listener| {
        let serve = move || Server { listener, readers: Vec::new(), alive: None }.serve();
        thread::Builder::new().name("untorn-snapshots".to_owned()).spawn(serve)
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "cannot serve snapshots to other processes");
    }
}

/// A snapshot that a reader has.
struct Held {
    identity: Identity,
    taken: Taken,
    pages: Arc<SharedPages>,
    marks: Option<Arc<Marks>>,
    /// Names its use of published snapshots, once it uses these.
    subscription: Option<u64>,
}

impl Held {
    /// The snapshot of this reader that a request is about.
    fn wanted(&self, service: &dyn SnapshotService, number: u64) -> Result<Taken> {
        match self.subscription {
            Some(_) if number != self.taken.snapshot => service.held_as(number).ok_or_else(given_up),
            _ => Ok(self.taken),
        }
    }
}

struct Reader {
    socket: OwnedFd,
    /// Its number; 0 if it has none here.
    process: u32,
    held: Option<Held>,
}

impl Drop for Reader {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        // First of all: once it is released, writers leave out its marks.
        raise(held.pages.words(8 * RELEASED, 1), u64::MAX);
        match held.subscription {
            Some(id) => drop(registry::with(held.identity, |shared| {
                if let Some(service) = shared.engine.snapshots() {
                    service.unsubscribe(id);
                }
            })),
            None => release(held.identity, &held.taken),
        }
    }
}

fn release(identity: Identity, taken: &Taken) {
    registry::with(identity, |shared| {
        if let Some(service) = shared.engine.snapshots() {
            service.release(taken.snapshot);
        }
    });
}

/// Lets a snapshot lapse while its reader says that it rests.
fn let_lapse(identity: Identity, taken: &Taken, pages: Arc<SharedPages>) {
    let lapse = move || {
        let lapses = readers::lapse(&pages.words(8 * READERS, 1)[0]);
        if lapses {
            // As where it is released: writers leave out its marks from now on.
            raise(pages.words(8 * RELEASED, 1), u64::MAX);
        }
        lapses
    };
    registry::with(identity, |shared| {
        if let Some(service) = shared.engine.snapshots() {
            service.let_lapse(taken.snapshot, Box::new(lapse));
        }
    });
}

struct Server {
    listener: OwnedFd,
    readers: Vec<Reader>,
    /// Since the first reader, that of this thread, if it has one: a process that nobody reads from needs none.
    alive: Option<Option<&'static Alive>>,
}

impl Server {
    fn serve(mut self) {
        loop {
            let ready = {
                let all = std::iter::once(&self.listener).chain(self.readers.iter().map(|reader| &reader.socket));
                let mut waits: Vec<_> = all.map(|socket| PollFd::new(socket, PollFlags::IN)).collect();
                match poll(&mut waits, None) {
                    Ok(_) | Err(Errno::INTR) => {}
                    Err(errno) => {
                        tracing::warn!(%errno, "cannot wait for readers of snapshots; serving none any more");
                        return;
                    }
                }
                waits.iter().map(|wait| !wait.revents().is_empty()).collect::<Vec<_>>()
            };
            let mut of_readers = ready[1..].iter();
            let alive = self.alive.flatten();
            self.readers.retain_mut(|reader| !of_readers.next().copied().unwrap_or(false) || reader.answer_next(alive));
            if ready[0] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        match socket::accept(self.listener.as_fd()) {
            // Without a reader the connection ends.
            Ok(Some(socket)) if self.readers.len() < MOST_READERS => {
                let alive = || {
                    let alive = Alive::of_this_thread().inspect_err(|error| {
                        tracing::debug!(%error, "readers of snapshots have to ask for each page");
                    });
                    alive.ok()
                };
                self.alive.get_or_insert_with(alive);
                let process = trusted_peer(socket.as_fd());
                self.readers.extend(process.map(|process| Reader { socket, process, held: None }));
            }
            Ok(_) => {}
            // As for want of descriptors: the next try may find one.
            Err(_) => thread::sleep(std::time::Duration::from_millis(10)),
        }
    }
}

/// The number of the process at the other end, if it is one of this user or of root.
fn trusted_peer(socket: BorrowedFd<'_>) -> Option<u32> {
    let (user, process) = socket::peer(socket).ok()?;
    let is_trusted = user == 0 || user == rustix::process::geteuid().as_raw();
    is_trusted.then(|| u32::try_from(process).unwrap_or(0))
}

impl Reader {
    /// Answers its next message, if there is one. False if the connection has ended.
    fn answer_next(&mut self, alive: Option<&'static Alive>) -> bool {
        let (mut text, mut published) = (None, None);
        let answer = match receive(self.socket.as_fd()) {
            Incoming::Nothing => return true,
            Incoming::End => return false,
            Incoming::Message(message, fds) => self.answer(&message, fds, alive, &mut text, &mut published),
        };
        let mut with: Vec<BorrowedFd<'_>> = text.iter().map(OwnedFd::as_fd).collect();
        if let Some(held) = self.held.as_ref().filter(|_| answer.kind == Kind::Taken) {
            with.push(held.pages.file());
            with.extend(held.marks.iter().map(|marks| marks.file()));
            with.extend(alive.filter(|_| held.marks.is_some()).map(Alive::file));
        }
        with.extend(published.iter().map(|published| published.file()));
        answer.send(self.socket.as_fd(), &with).is_ok()
    }

    fn answer(
        &mut self,
        message: &Message,
        fds: Vec<OwnedFd>,
        alive: Option<&'static Alive>,
        text: &mut Option<OwnedFd>,
        published: &mut Option<Arc<Published>>,
    ) -> Message {
        let answered = match message.kind {
            Kind::Take => self.take(fds, alive, message.a != 0, published),
            Kind::Home => self.home(message.a, message.c),
            Kind::Fill => self.fill(message.a, message.b, message.c),
            Kind::Renew => self.renew(published),
            Kind::Report => report(fds, text),
            Kind::Seek => self.seek(message.a, message.c),
            _ => Err(invalid("an answer came as a question")),
        };
        answered.unwrap_or_else(|error| {
            let ended = matches!(error, Error::SnapshotEnded { .. });
            let text = match &error {
                Error::SnapshotEnded { cause, .. } => cause.clone(),
                error => error.to_string(),
            };
            Message { text, ..Message::new(Kind::Failed, error.errno() as u64, u64::from(ended)) }
        })
    }

    fn take(
        &mut self,
        fds: Vec<OwnedFd>,
        alive: Option<&'static Alive>,
        goes_on: bool,
        published: &mut Option<Arc<Published>>,
    ) -> Result<Message> {
        if self.held.is_some() {
            return Err(invalid("there is one on this connection"));
        }
        let identity = identity_shown(fds)?;
        if let Some(alive) = alive.filter(|_| goes_on)
            && let Some(answer) = self.take_published(identity, alive, published)?
        {
            return Ok(answer);
        }
        let taken = registry::try_with(identity, |shared| match shared.engine.snapshots() {
            Some(service) if alive.is_some() => service.take_marked(self.process),
            Some(service) => service.take(self.process).map(|taken| (taken, None)),
            // Another process serves it by now; asking again finds that one.
            None => Err(Error::InUse {
                path: shared.engine.path().to_owned(),
                holder: "another process, which serves it now".to_owned(),
            }),
        });
        let Some(taken) = taken else { return Ok(Message::new(Kind::Busy, 0, 0)) };
        let (taken, marks) = taken?;
        let thread = alive.filter(|_| marks.is_some()).map_or(0, Alive::thread);
        let pages = memory_of(taken.captured.len, thread).inspect_err(|_| release(identity, &taken))?;
        pages.words(8 * SNAPSHOT, 1)[0].store(taken.snapshot, Ordering::Relaxed);
        pages.words(8 * READERS, 1)[0].store(1, Ordering::Relaxed);
        let_lapse(identity, &taken, Arc::clone(&pages));
        self.held = Some(Held { identity, taken, pages, marks, subscription: None });
        Ok(taken_answer(&taken))
    }

    /// Takes the last published snapshot, so that the reader waits for no write. `None` if nothing can be published.
    fn take_published(
        &mut self,
        identity: Identity,
        alive: &'static Alive,
        published: &mut Option<Arc<Published>>,
    ) -> Result<Option<Message>> {
        let process = self.process;
        let subscribed = registry::try_with(identity, |shared| {
            let Some(service) = shared.engine.snapshots() else { return Ok(None) };
            let pages = memory_of(shared.engine.len(), alive.thread())?;
            let Some(with) = service.subscribe(process, &pages)? else { return Ok(None) };
            let len = with.taken.captured.len;
            if len == 0 || pages.reserved() as u64 != HEADER + memory_for(len) {
                // The length has changed just now.
                service.unsubscribe(with.id);
                return Ok(None);
            }
            Ok(Some((pages, with)))
        });
        let Some((pages, with)) = subscribed.transpose()?.flatten() else { return Ok(None) };
        let taken = with.taken;
        pages.words(8 * SNAPSHOT, 1)[0].store(taken.snapshot, Ordering::SeqCst);
        let (marks, subscription) = (Some(with.marks), Some(with.id));
        // From here on the end of the connection ends the subscription.
        self.held = Some(Held { identity, taken, pages, marks, subscription });
        *published = Some(with.published);
        Ok(Some(taken_answer(&taken)))
    }

    /// Gives a new snapshot in place of the one that it has: the last published one, if the file publishes its commits.
    fn renew(&mut self, published: &mut Option<Arc<Published>>) -> Result<Message> {
        let Some(held) = &mut self.held else { return Err(invalid("there is no snapshot")) };
        if held.subscription.is_some() {
            return Ok(Message::new(Kind::Busy, 0, 0));
        }
        let identity = held.identity;
        if held.marks.is_some() {
            let process = self.process;
            let subscribed = registry::try_with(identity, |shared| match shared.engine.snapshots() {
                Some(service) => service.subscribe(process, &held.pages),
                None => Err(closed()),
            });
            let Some(subscribed) = subscribed else { return Ok(Message::new(Kind::Busy, 0, 0)) };
            if let Some(subscription) = subscribed? {
                return self.renew_published(subscription, published);
            }
        }
        let taken = registry::try_with(identity, |shared| match shared.engine.snapshots() {
            Some(service) => service.take_marked(self.process),
            None => Err(closed()),
        });
        let Some(taken) = taken else { return Ok(Message::new(Kind::Busy, 0, 0)) };
        let (taken, marks) = taken?;
        let has_marks = marks.zip(held.marks.as_ref()).is_some_and(|(marks, had)| Arc::ptr_eq(&marks, had));
        let has_memory = held.pages.reserved() as u64 == HEADER + memory_for(taken.captured.len);
        if !has_marks || !has_memory || taken.captured.len == 0 {
            release(identity, &taken);
            return Ok(Message::new(Kind::Busy, 0, 0));
        }
        // A commit may lapse the old one, by the words that the new one gets, until it is released. The new one does
        // not lapse before it has them.
        release(identity, &std::mem::replace(&mut held.taken, taken));
        let words = held.pages.words(0, HEADER as usize / 8);
        words[SNAPSHOT].store(taken.snapshot, Ordering::SeqCst);
        words[READERS].store(1, Ordering::SeqCst);
        words[RELEASED].store(0, Ordering::SeqCst);
        let_lapse(identity, &taken, Arc::clone(&held.pages));
        self.renewed(&taken)
    }

    fn renew_published(&mut self, with: Subscription, published: &mut Option<Arc<Published>>) -> Result<Message> {
        let Some(held) = &mut self.held else { return Err(invalid("there is no snapshot")) };
        let old = std::mem::replace(&mut held.taken, with.taken);
        held.subscription = Some(with.id);
        // A commit may have lapsed the old one by the words that the new one has by now.
        release(held.identity, &old);
        let words = held.pages.words(0, HEADER as usize / 8);
        words[SNAPSHOT].store(with.taken.snapshot, Ordering::SeqCst);
        words[READERS].store(1, Ordering::SeqCst);
        words[RELEASED].store(0, Ordering::SeqCst);
        let has_marks = held.marks.as_ref().is_some_and(|had| Arc::ptr_eq(&with.marks, had));
        if !has_marks || with.taken.captured.len == 0 {
            return Ok(Message::new(Kind::Busy, 0, 0));
        }
        *published = Some(with.published);
        self.renewed(&with.taken)
    }

    fn renewed(&self, taken: &Taken) -> Result<Message> {
        self.home(0, taken.snapshot)?;
        self.fill(0, taken.captured.len.min(BYTES), taken.snapshot)?;
        let Taken { captured, since, .. } = taken;
        Ok(Message { c: to_word(*since), ..Message::new(Kind::Renewed, captured.commit, captured.len) })
    }

    fn fill(&self, offset: u64, len: u64, number: u64) -> Result<Message> {
        let Some(held @ Held { identity, pages, .. }) = &self.held else { return Err(invalid("there is no snapshot")) };
        let memory = pages.reserved() as u64 - HEADER;
        let place = offset % memory;
        let fits = |taken: &Taken| offset.checked_add(len).is_some_and(|end| end <= taken.captured.len);
        if len == 0 || len > MOST || !offset.is_multiple_of(BYTES) || place + len > memory {
            return Err(invalid("it asks for a range that is none of the snapshot's"));
        }
        let mut bytes = vec![0; len as usize];
        let read = registry::with(*identity, |shared| match shared.engine.snapshots() {
            Some(service) => match held.wanted(service, number)? {
                taken if fits(&taken) => service.read(&taken, offset, &mut bytes),
                _ => Err(invalid("it asks for a range that is none of the snapshot's")),
            },
            None => Err(closed()),
        });
        read.unwrap_or_else(|| Err(closed()))?;
        let path = Path::new("a snapshot");
        let place = HEADER + place;
        pages.allocate(place, len).map_err(|error| Error::io("take memory for", path, error))?;
        pages.copy_in(place as usize, &bytes);
        Ok(Message::new(Kind::Filled, offset, len))
    }

    /// Tells which pages of a region the data file has.
    fn home(&self, region: u64, number: u64) -> Result<Message> {
        let Some(held @ Held { identity, pages, .. }) = &self.held else { return Err(invalid("there is no snapshot")) };
        let first = region.checked_mul(REGION).ok_or_else(|| invalid("it asks for a region that no file has"))?;
        let words = pages.words(HOME_BITS, REGION as usize / 64);
        words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let mut note = |run: Range<u64>| {
            for page in run.map(|page| page - first) {
                words[(page / 64) as usize].fetch_or(1 << (page % 64), Ordering::Relaxed);
            }
        };
        let told = registry::with(*identity, |shared| match shared.engine.snapshots() {
            Some(service) => {
                let taken = held.wanted(service, number)?;
                service.at_home(&taken, first..first.saturating_add(REGION), &mut note)
            }
            None => Err(closed()),
        });
        told.unwrap_or_else(|| Err(closed()))?;
        Ok(Message::new(Kind::Homed, region, 0))
    }

    /// The next range that may hold other bytes than zeros, with the short holes in it.
    fn seek(&self, offset: u64, number: u64) -> Result<Message> {
        let Some(held @ Held { identity, .. }) = &self.held else { return Err(invalid("there is no snapshot")) };
        let found = registry::with(*identity, |shared| {
            let service = shared.engine.snapshots().ok_or_else(closed)?;
            let taken = &held.wanted(service, number)?;
            let len = taken.captured.len;
            let Some(mut found) = service.data_from(taken, offset)? else { return Ok(len..len) };
            for _ in 0..MOST_JOINED {
                match service.data_from(taken, found.end)? {
                    Some(next) if next.start - found.end < NEAR => found.end = next.end,
                    _ => break,
                }
            }
            Ok(found)
        });
        let found = found.unwrap_or_else(|| Err(closed()))?;
        Ok(Message::new(Kind::Sought, found.start, found.end))
    }
}

/// Memory for the pages of a file of `len` bytes, which says which thread of this process serves them, or 0.
fn memory_of(len: u64, thread: u32) -> Result<Arc<SharedPages>> {
    let size = HEADER + memory_for(len);
    let pages = SharedPages::create("untorn-snapshot", size, size as usize).and_then(|pages| {
        pages.allocate(0, HEADER)?;
        pages.words(8 * THREAD, 1)[0].store(thread.into(), Ordering::Relaxed);
        Ok(Arc::new(pages))
    });
    pages.map_err(|error| Error::io("make memory for a snapshot of", Path::new("the reader's file"), error))
}

fn taken_answer(taken: &Taken) -> Message {
    Message { c: to_word(taken.since), ..Message::new(Kind::Taken, taken.captured.commit, taken.captured.len) }
}

/// Answers a question for what is kept, in a file of its own.
fn report(fds: Vec<OwnedFd>, text: &mut Option<OwnedFd>) -> Result<Message> {
    let identity = identity_shown(fds)?;
    let Some(words) = registry::try_with(identity, report::text) else { return Ok(Message::new(Kind::Busy, 0, 0)) };
    let failed = |error| Error::io("write", Path::new("a report on snapshots"), error);
    *text = Some(report::to_file(&words).map_err(failed)?);
    Ok(Message::new(Kind::Reported, words.len() as u64, 0))
}

/// The file of which a request shows a descriptor.
fn identity_shown(fds: Vec<OwnedFd>) -> Result<Identity> {
    let [file] = <[OwnedFd; 1]>::try_from(fds).map_err(|_| invalid("it came without a file"))?;
    if !may_be_read(&file) {
        return Err(invalid("it came with a file that its sender may not read"));
    }
    identity_of(file.as_fd(), Path::new("the reader's file"))
}

/// Whether a descriptor is one to read by, which only a process that may read the file has.
fn may_be_read(file: &OwnedFd) -> bool {
    let flags = rustix::fs::fcntl_getfl(file);
    flags.is_ok_and(|flags| !flags.intersects(OFlags::PATH | OFlags::WRONLY))
}

fn invalid(what: &str) -> Error {
    let path = Path::new("a request for a snapshot").to_owned();
    Error::Invalid { path, what: what.to_owned() }
}

fn given_up() -> Error {
    let cause = "it is not held any more".to_owned();
    Error::SnapshotEnded { path: Path::new("a snapshot").to_owned(), cause }
}

fn closed() -> Error {
    Error::SnapshotEnded { path: Path::new("a snapshot").to_owned(), cause: "its file was closed".to_owned() }
}
