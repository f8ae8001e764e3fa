//! A snapshot that another process keeps, as the process that reads it has it.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::cache::Cache;
use super::direct::Direct;
use super::report::{Told, from_file};
use super::{
    BYTES, HEADER, Incoming, Kind, MOST, Message, PIN, READERS, SNAPSHOT, from_word, memory_for, name_of, receive,
};
use crate::engine::figures::Figures;
use crate::engine::snapshot::handle::Snapshot;
use crate::engine::snapshot::preimages::lock;
use crate::engine::snapshot::published::Published;
use crate::engine::snapshot::readers;
use crate::engine::{Shared, registry};
use crate::error::{Error, Result};
use crate::format::sidecar;
use crate::storage::{Identity, identity_of};
use crate::sys::shared::SharedPages;
use crate::sys::{incarnation, locks, socket};

/// How long a process may take to answer: one that was stopped does not.
const ANSWER: Duration = Duration::from_secs(30);

/// The same for a report, which is told of as unknown then.
const REPORT: Duration = Duration::from_secs(2);

/// A snapshot in another process.
pub(crate) struct RemoteSnapshot {
    path: PathBuf,
    pub(crate) identity: Identity,
    process: u64,
    pub(crate) commit: u64,
    pub(crate) len: u64,
    pub(crate) since: SystemTime,
    /// Its number in the process that keeps it.
    number: u64,
    /// The data file, for pages that need not be asked for.
    direct: Option<Direct>,
    /// Where that process publishes its commits, if it does.
    published: Option<Published>,
    cache: Cache,
    connection: Mutex<Connection>,
}

struct Connection {
    socket: OwnedFd,
    /// The page behind the last ones that were asked for, and how many are asked for next if that is the first.
    next: u64,
    ahead: u64,
    /// Why nothing can be had any more.
    ended: Option<String>,
}

/// How asking for a snapshot came out.
pub(crate) enum Asked {
    Taken(Box<RemoteSnapshot>),
    /// The file is being opened or closed there.
    Busy,
}

/// Asks a process a question about a file. Returns the connection, the answer, and what came with it.
///
/// # Errors
/// In words, why it gives none.
fn ask(
    file: &File,
    process: u32,
    question: &Message,
    patience: Duration,
) -> std::result::Result<(OwnedFd, Message, Vec<OwnedFd>), String> {
    let socket = match socket::connect_abstract(&name_of(process)) {
        Ok(socket) => socket,
        Err(error) if error.raw_os_error() == Some(Errno::CONNREFUSED.raw_os_error()) => {
            return Err("it does not serve any, or runs in another container".to_owned());
        }
        Err(error) => return Err(error.to_string()),
    };
    let peer = socket::peer(socket.as_fd()).map_err(|error| error.to_string())?;
    if !is_trusted(peer, process, file) {
        return Err("another process answers in its name".to_owned());
    }
    question.send(socket.as_fd(), &[file.as_fd()]).map_err(|error| error.to_string())?;
    match answer(&socket, patience)? {
        Incoming::Message(message, fds) => Ok((socket, message, fds)),
        _ => Err("it ended the connection; only its user and root may ask".to_owned()),
    }
}

/// The process that has a file open for writing, if the kernel tells: it has the lock of the sidecar.
pub(crate) fn process_with(path: &Path, inode: u64) -> Option<u32> {
    let lock = File::open(sidecar::path(path, inode)).ok()?;
    locks::flock_holder(lock.as_fd()).ok().flatten()
}

/// Asks the process that has a file open, this one or another, what it keeps for snapshots.
///
/// # Errors
/// In words, why that is not known.
pub(crate) fn report(path: &Path) -> std::result::Result<Told, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let identity = identity_of(file.as_fd(), path).map_err(|error| error.to_string())?;
    let here = |shared: &Shared| Told { held: Snapshot::held(shared), figures: Some(Figures::of(&*shared.engine)) };
    if let Some(told) = registry::with(identity, here) {
        return Ok(told);
    }
    let Some(process) = process_with(path, identity.inode) else {
        return Err("the kernel does not tell which process has it open".to_owned());
    };
    let why = |why: String| format!("{} gives no answer: {why}", locks::process_name(process));
    let since = Instant::now();
    while since.elapsed() < REPORT {
        let (_, message, fds) = ask(&file, process, &Message::new(Kind::Report, 0, 0), REPORT).map_err(why)?;
        match (message.kind, <[OwnedFd; 1]>::try_from(fds)) {
            (Kind::Reported, Ok([text])) => return from_file(text).map_err(|error| why(error.to_string())),
            (Kind::Busy, _) => std::thread::sleep(Duration::from_millis(10)),
            _ => return Err(why(message.text)),
        }
    }
    Err(why("it is opening or closing the file".to_owned()))
}

/// How long to look for the process that serves a shared file, while one takes the place of another.
const TAKEOVER: Duration = Duration::from_secs(5);

/// Takes a snapshot of a file that processes share, from the one that serves it, whichever that is. `None` once
/// `is_here` says that this process serves it. A reader that `goes_on` will want later commits, too.
///
/// # Errors
/// As for [`take`]; [`Error::InUse`] if no process comes to serve it, or if another file has replaced it.
pub(crate) fn take_elsewhere(
    path: &Path,
    identity: Identity,
    goes_on: bool,
    is_here: impl Fn() -> bool,
) -> Result<Option<Box<RemoteSnapshot>>> {
    let in_use = |holder: &str| Error::InUse { path: path.to_owned(), holder: holder.to_owned() };
    let since = Instant::now();
    while !is_here() {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        if identity_of(file.as_fd(), path)? != identity {
            return Err(in_use("a file that has replaced the shared one"));
        }
        let asked = process_with(path, identity.inode).map(|process| take(path, &file, process, goes_on)).transpose();
        let refused = match asked {
            Ok(Some(Asked::Taken(snapshot))) => return Ok(Some(snapshot)),
            Ok(_) => in_use("another process, which is opening or closing it"),
            // It may have ended a moment ago.
            Err(refused @ Error::InUse { .. }) => refused,
            Err(error) => return Err(error),
        };
        if since.elapsed() >= TAKEOVER {
            return Err(refused);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

/// Asks the process that has the file open for a snapshot, and for later ones if the reader `goes_on`.
///
/// # Errors
/// [`Error::InUse`] if it serves none, or does not answer; its own errors.
pub(crate) fn take(path: &Path, file: &File, process: u32, goes_on: bool) -> Result<Asked> {
    let refused = |why: &str| {
        let holder = format!("{}, which gives no snapshot: {why}", locks::process_name(process));
        Error::InUse { path: path.to_owned(), holder }
    };
    let question = Message::new(Kind::Take, u64::from(goes_on), 0);
    let (socket, message, fds) = ask(file, process, &question, ANSWER).map_err(|why| refused(&why))?;
    match message.kind {
        Kind::Busy => return Ok(Asked::Busy),
        Kind::Taken => {}
        _ => return Err(refused(&message.text)),
    }
    let failed = |error| Error::io("map a snapshot of", path, error);
    let (len, mut fds) = (message.b, fds.into_iter());
    let Some(memory) = fds.next() else { return Err(refused("its answer lacks the memory")) };
    let cache = Cache::new(map_memory(memory, HEADER + memory_for(len)).map_err(failed)?).map_err(failed)?;
    let identity = identity_of(file.as_fd(), path)?;
    let direct = match (fds.next(), fds.next()) {
        (Some(marks), Some(alive)) => Direct::new(path, identity, len, cache.memory(), (marks, alive)),
        _ => None,
    };
    let published = fds.next().map(Published::of_another).transpose().map_err(failed)?;
    if let (Some(direct), Some(published)) = (&direct, &published) {
        direct.note_published(published.home());
    }
    let connection = Connection { socket, next: 0, ahead: 1, ended: None };
    Ok(Asked::Taken(Box::new(RemoteSnapshot {
        path: path.to_owned(),
        identity: identity_of(file.as_fd(), path)?,
        process: incarnation(),
        commit: message.a,
        len,
        since: from_word(message.c),
        number: cache.memory().words(8 * SNAPSHOT, 1)[0].load(Ordering::Relaxed),
        direct,
        published,
        cache,
        connection: Mutex::new(connection),
    })))
}

fn map_memory(memory: OwnedFd, size: u64) -> std::io::Result<SharedPages> {
    let pages = SharedPages::map(memory, size as usize)?;
    if pages.file_len()? == size { Ok(pages) } else { Err(Errno::PROTO.into()) }
}

/// Whether the process at the other end is the one that has the file, and of a user who may decide what it holds.
fn is_trusted((user, number): (u32, i32), process: u32, file: &File) -> bool {
    let owner = rustix::fs::fstat(file).map(|found| found.st_uid);
    let trusted = [Ok(0), Ok(rustix::process::geteuid().as_raw()), owner].contains(&Ok(user));
    trusted && u32::try_from(number) == Ok(process)
}

/// Waits for the answer.
fn answer(socket: &OwnedFd, patience: Duration) -> std::result::Result<Incoming, String> {
    let since = Instant::now();
    loop {
        match receive(socket.as_fd()) {
            Incoming::Nothing => {}
            found => return Ok(found),
        }
        if since.elapsed() > patience {
            return Err(format!("it has not answered for {} seconds", patience.as_secs()));
        }
        let pause = Timespec { tv_sec: 1, tv_nsec: 0 };
        // An error or an interruption is a turn of the loop.
        let _ = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&pause));
    }
}

impl RemoteSnapshot {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn readers(&self) -> &AtomicU64 {
        &self.cache.memory().words(8 * READERS, 1)[0]
    }

    /// Says that nobody reads.
    pub(crate) fn rest(&self) {
        if self.process == incarnation() {
            readers::end(self.readers());
        }
    }

    /// Says that somebody reads again. False if the snapshot has lapsed, or its process is not known to live.
    pub(crate) fn resume(&self) -> bool {
        // Without a life to look at, one whose server has ended would be found out by the next page that it brings.
        self.process == incarnation()
            && self.direct.as_ref().is_some_and(|direct| !direct.is_over())
            && readers::begin(self.readers())
            && self.is_last()
    }

    /// Whether a snapshot that is used is the last one, if the commits are published; if not, it is given up.
    fn is_last(&self) -> bool {
        let is_last = self.published.as_ref().is_none_or(|published| published.is_current(self.number));
        if !is_last {
            readers::end(self.readers());
        }
        is_last
    }

    /// Takes the snapshot of the last commit that was published, without asking for it. `None` if nothing is published
    /// any more, or if the file has become longer than its mapping.
    fn take_published(&mut self) -> Option<()> {
        let (published, direct) = (self.published.as_ref()?, self.direct.as_mut()?);
        let [readers, pin] = [READERS, PIN].map(|at| &self.cache.memory().words(8 * at, 1)[0]);
        readers.store(1, Ordering::SeqCst);
        let current = loop {
            let current = published.current().filter(|current| current.len.div_ceil(BYTES) <= direct.pages())?;
            pin.store(current.number, Ordering::SeqCst);
            if published.is_current(current.number) {
                break current;
            }
        };
        direct.go_on(current.number);
        // A server that has ended publishes nothing any more, and another one may serve.
        if direct.is_over() {
            return None;
        }
        (self.commit, self.len, self.since) = (current.commit, current.len, from_word(current.since));
        self.number = current.number;
        Some(())
    }

    /// Turns into a snapshot of the last commit. False if that cannot be had this way; then it is of no further use.
    pub(crate) fn renew(&mut self) -> bool {
        // A server that has ended answers nothing, and this process may be the one that takes over.
        if self.direct.as_ref().is_none_or(Direct::has_ended) {
            return false;
        }
        if self.process != incarnation() {
            return false;
        }
        if self.published.is_some() {
            return self.take_published().is_some();
        }
        let Some(direct) = self.direct.as_mut() else { return false };
        let connection = self.connection.get_mut().unwrap_or_else(PoisonError::into_inner);
        if connection.ended.is_some() || Message::new(Kind::Renew, 0, 0).send(connection.socket.as_fd(), &[]).is_err() {
            return false;
        }
        let Ok(Incoming::Message(message, fds)) = answer(&connection.socket, ANSWER) else { return false };
        if message.kind != Kind::Renewed || message.b.div_ceil(BYTES) > direct.pages() {
            return false;
        }
        (self.commit, self.len, self.since) = (message.a, message.b, from_word(message.c));
        (connection.next, connection.ahead) = (0, 1);
        self.number = self.cache.memory().words(8 * SNAPSHOT, 1)[0].load(Ordering::SeqCst);
        self.cache.forget_all();
        self.cache.note_filled(0..1, self.number);
        direct.renew(self.cache.memory());
        let Ok(published) = fds.into_iter().next().map(Published::of_another).transpose() else { return false };
        if let Some(published) = &published {
            direct.note_published(published.home());
        }
        self.published = published;
        true
    }

    /// Fills `dst` from `offset`. The range is within the length.
    ///
    /// # Errors
    /// [`Error::SnapshotEnded`] if the process has ended or closed the file; its errors of reading.
    pub(crate) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        if self.process != incarnation() {
            return Err(Error::Forked { path: self.path.clone() });
        }
        let last = (offset + dst.len() as u64).div_ceil(BYTES);
        let mut done = 0;
        while done < dst.len() {
            let at = offset + done as u64;
            let (page, from) = (at / BYTES, at % BYTES);
            let here = ((BYTES - from) as usize).min(dst.len() - done);
            let part = &mut dst[done..done + here];
            let published = self.published.as_ref();
            if published.is_some_and(|published| published.read(page, self.number, from as usize, part))
                || self.direct.as_ref().is_some_and(|direct| direct.read(page, at, part))
                || self.cache.read(page, from, part, |since| self.is_right(page, since))
            {
                done += here;
            } else {
                self.bring(page, last)?;
            }
        }
        Ok(())
    }

    /// Whether a page is in this snapshot as it was in an earlier one.
    fn is_right(&self, page: u64, since: u64) -> bool {
        since == self.number || self.direct.as_ref().is_some_and(|direct| direct.is_unchanged(page, since))
    }

    /// A question about this snapshot.
    fn question(&self, kind: Kind, a: u64, b: u64) -> Message {
        Message { c: self.number, ..Message::new(kind, a, b) }
    }

    /// The first range at `offset` or behind it that may hold other bytes than zeros.
    ///
    /// # Errors
    /// As for [`read`](RemoteSnapshot::read).
    pub(crate) fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>> {
        if self.process != incarnation() {
            return Err(Error::Forked { path: self.path.clone() });
        }
        if offset >= self.len {
            return Ok(None);
        }
        let answer = self.ask(&mut lock(&self.connection), &self.question(Kind::Seek, offset, 0), Kind::Sought)?;
        // Whatever the other process says, the range is within the file and the caller gets on.
        let start = answer.a.clamp(offset, self.len);
        let end = answer.b.clamp(start, self.len);
        match end > start {
            true => Ok(Some(start..end)),
            false if start == self.len => Ok(None),
            false => Ok(Some(start..self.len)),
        }
    }

    /// Has a question answered, by a message of this kind.
    fn ask(&self, connection: &mut Connection, question: &Message, wanted: Kind) -> Result<Message> {
        let ended = |cause: &str| Error::SnapshotEnded { path: self.path.clone(), cause: cause.to_owned() };
        if let Some(cause) = &connection.ended {
            return Err(ended(cause));
        }
        let sent = question.send(connection.socket.as_fd(), &[]);
        let cause = match sent.map_err(|error| error.to_string()).and_then(|()| answer(&connection.socket, ANSWER)) {
            Ok(Incoming::Message(message, _)) if message.kind == wanted => return Ok(message),
            Ok(Incoming::Message(message, _)) if message.kind == Kind::Failed && message.b == 0 => {
                let source = std::io::Error::other(message.text);
                let (operation, path) = ("read a snapshot of", self.path.clone());
                return Err(Error::Io { operation, path, offset: None, source });
            }
            Ok(Incoming::Message(message, _)) if message.kind == Kind::Failed => message.text,
            Ok(_) => "the process that had the file open has ended".to_owned(),
            Err(why) => format!("the process that has the file open does not answer: {why}"),
        };
        let error = ended(&cause);
        connection.ended = Some(cause);
        Err(error)
    }

    /// Learns where a page is, or brings it into the memory, and with it others of a read that ends before `last`.
    #[cold]
    fn bring(&self, page: u64, last: u64) -> Result<()> {
        let mut connection = lock(&self.connection);
        if let Some(direct) = &self.direct
            && let Some(region) = direct.region_to_ask_for(page)
        {
            self.ask(&mut connection, &self.question(Kind::Home, region, 0), Kind::Homed)?;
            direct.note_home(region, self.cache.memory());
            return Ok(());
        }
        if self.cache.since(page).is_some_and(|since| self.is_right(page, since)) {
            return Ok(());
        }
        // A file that is read in order is read ahead, more each time.
        let follows = (connection.next..connection.next + connection.ahead).contains(&page);
        connection.ahead = if follows { (2 * connection.ahead).min(MOST / BYTES) } else { 1 };
        let wanted = connection.ahead.max(last - page);
        let end = self.cache.run_from(page, wanted.min(MOST / BYTES)).min(self.len.div_ceil(BYTES));
        let is_home = |page: &u64| self.direct.as_ref().is_some_and(|direct| direct.has(*page));
        let end = (page + 1..end).find(is_home).unwrap_or(end);
        let len = ((end - page) * BYTES).min(self.len - page * BYTES);
        self.cache.replace(page..end);
        self.ask(&mut connection, &self.question(Kind::Fill, page * BYTES, len), Kind::Filled)?;
        self.cache.note_filled(page..end, self.number);
        connection.next = end;
        Ok(())
    }
}
