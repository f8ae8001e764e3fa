//! Snapshots in other processes than the one that has the file open.
//!
//! ```text
//!  reader: Snapshot::open ─ finds the process that has the lock of the sidecar ─► its socket
//!          TAKE + a descriptor of the data file ─────────────────► server: takes a snapshot
//!          ◄── commit, length + memory for pages, marks, life ────┘
//!              to who goes on with later ones, of a file with one writer: memory in which each commit is published
//!          HOME a region ────────────────────────────────────────► which pages of it the data file has
//!  reader: copies such a page out of the data file, and looks whether it is still unchanged
//!          FILL other pages ─────────────────────────────────────► copies them into the memory
//!  reader: copies out of the memory, as long as the page is there
//!          RENEW, when it rests and a commit came ──────────────► a new snapshot for the same memory and connection
//!          ◄── of a file with one writer: that memory ───────────┘
//!          with it, it takes the snapshots of later commits, and the pages that they changed, by itself
//!          SEEK an offset ───────────────────────────────────────► the next range that is no hole
//!
//!  info:   REPORT + a descriptor of the data file ───────────────► who holds which snapshot, as text
//! ```
//!
//! A process has one socket and one thread for all its open files ([`server`]); a reader has one connection for each
//! snapshot ([`client`]). The socket has a name that the process number gives, and that no file system has.
//!
//! # Invariants
//!
//! 1. The server answers processes of its own user and of root, for a file of which they show a descriptor that may
//!    be read. The reader believes only a process that has the lock of the sidecar, of its own user, of root, or of
//!    the file's owner.
//! 2. A connection has one snapshot, which goes when the connection ends, as it does when its process is killed.
//! 3. The server holds a file only during a request, under the lock of its place in the registry. So a reader keeps
//!    nobody from closing the file; its snapshot ends then.
//! 4. Memory for pages has a fixed number of places. A page's place follows from its number, and the reader knows
//!    which page is at each place ([`cache`]).
//! 5. A reader uses what it copied out of the data file only if, after the copy, the page has no
//!    [mark](super::marks), the server still holds the snapshot, and the server's thread lives ([`direct`]). The
//!    server says that it gives a snapshot up before it does, so writers that leave out marks come after that. While
//!    its thread lives, the kernel has not taken the sidecar's lock from its process, so no other process opened the
//!    file.

mod cache;
pub(crate) mod client;
mod direct;
mod report;
pub(crate) mod server;

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::sys::socket::{self, Received};

/// Bytes of a page.
const BYTES: u64 = super::PAGE as u64;

/// Bytes of the memory for pages, at most.
const MEMORY: u64 = 64 << 20;

/// Bytes of that memory before the pages: words, and the answer to HOME as bits.
const HEADER: u64 = 2 * BYTES;
/// The word that says that the server has given the snapshot up: not 0 then.
const RELEASED: usize = 0;
/// The word that is the number of the snapshot.
const SNAPSHOT: usize = 1;
/// The word that is the number of the server's thread; 0 if the reader has to ask for each page.
const THREAD: usize = 2;
/// The word that counts the readers, or says that the snapshot has [lapsed](super::readers).
pub(super) const READERS: usize = 3;
/// The word by which a reader says which [published](super::publishing) snapshot it uses.
pub(super) const PIN: usize = 4;
const HOME_BITS: usize = BYTES as usize;

/// Pages of a region. To look at all of them takes the server some ten microseconds.
const REGION: u64 = 4096;

/// Bytes that one request fills, at most.
const MOST: u64 = 1 << 20;

/// The first word of every message: a process with another library says so, and neither goes on.
const VERSION: u64 = 0x756e_746f_726e_0006;

const WORDS: usize = 6;
const LONGEST: usize = 8 * WORDS + 1000;

/// The name of a process's socket.
fn name_of(process: u32) -> String {
    format!("untorn/snapshots/{process}")
}

/// The memory for pages of a file with this length, without what comes before them.
fn memory_for(len: u64) -> u64 {
    len.clamp(BYTES, MEMORY).next_multiple_of(BYTES)
}

/// The kind of a message: a question or an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A snapshot of the file whose descriptor comes with it. With `a` the reader goes on with later commits.
    Take = 1,
    /// The answer: `a` is the commit, `b` the length, `c` when it was taken; with the memory for pages. If the reader
    /// may copy pages out of the data file, the marks and the life of the server's thread come too; if it goes on and
    /// the file publishes its commits, also the memory for that, from which it takes each later snapshot by itself.
    Taken = 2,
    /// `b` bytes from `a` into their place in the memory; as the published snapshot `c` has them, unless that is 0.
    Fill = 3,
    /// The answer.
    Filled = 4,
    /// The answer: it failed, with the errno `a` and a text. With `b` the snapshot has ended.
    Failed = 5,
    /// The answer: the file is being opened or closed; asking again may help.
    Busy = 6,
    /// What is kept for snapshots of the file whose descriptor comes with it.
    Report = 7,
    /// The answer: `a` bytes of [text](report), in the file that comes with it.
    Reported = 8,
    /// The first range at or behind `a` that may hold other bytes than zeros. `c` as for [`Fill`](Kind::Fill).
    Seek = 9,
    /// The answer: from `a` up to `b`, or both the length.
    Sought = 10,
    /// Which pages of the region `a` the data file has as the commit has them: as bits into the memory. `c` as for
    /// [`Fill`](Kind::Fill).
    Home = 11,
    /// The answer.
    Homed = 12,
    /// A new snapshot in place of the one that the connection has, whose reader does not read meanwhile.
    Renew = 13,
    /// The answer: as [`Taken`](Kind::Taken), with the answer to HOME for the first region, and the first page. BUSY if
    /// the memory or the marks are to be others. If the file publishes its commits, the memory for that comes too: from
    /// then on the reader takes each snapshot by itself.
    Renewed = 14,
}

impl Kind {
    fn from_word(word: u64) -> Option<Self> {
        use Kind::{
            Busy, Failed, Fill, Filled, Home, Homed, Renew, Renewed, Report, Reported, Seek, Sought, Take, Taken,
        };
        let all =
            [Take, Taken, Fill, Filled, Failed, Busy, Report, Reported, Seek, Sought, Home, Homed, Renew, Renewed];
        all.into_iter().find(|kind| *kind as u64 == word)
    }
}

#[derive(Debug)]
struct Message {
    kind: Kind,
    a: u64,
    b: u64,
    c: u64,
    text: String,
}

impl Message {
    fn new(kind: Kind, a: u64, b: u64) -> Self {
        Message { kind, a, b, c: 0, text: String::new() }
    }

    fn send(&self, socket: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(LONGEST);
        for word in [VERSION, self.kind as u64, self.a, self.b, self.c, 0] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.text.bytes().take(LONGEST - bytes.len()));
        socket::send(socket, &bytes, fds)
    }

    /// `None` for bytes that are no message of this version.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.get(..8 * WORDS)?.as_chunks::<8>();
        let mut words = words.iter().map(|word| u64::from_le_bytes(*word));
        if words.next()? != VERSION {
            return None;
        }
        let kind = Kind::from_word(words.next()?)?;
        let (a, b, c) = (words.next()?, words.next()?, words.next()?);
        Some(Message { kind, a, b, c, text: String::from_utf8_lossy(&bytes[8 * WORDS..]).into_owned() })
    }
}

/// The next thing on a connection.
enum Incoming {
    Message(Message, Vec<OwnedFd>),
    Nothing,
    /// It has ended, or what comes is no message.
    End,
}

fn receive(socket: BorrowedFd<'_>) -> Incoming {
    let mut bytes = [0; LONGEST];
    match socket::receive(socket, &mut bytes) {
        Ok(Received::Message(len, fds)) => match Message::parse(&bytes[..len]) {
            Some(message) => Incoming::Message(message, fds),
            None => Incoming::End,
        },
        Ok(Received::Nothing) => Incoming::Nothing,
        Ok(Received::End) | Err(_) => Incoming::End,
    }
}

pub(super) fn to_word(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}

fn from_word(word: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_suits_any_length_that_a_message_gives() {
        let all = [0, 1, BYTES, BYTES + 1, MEMORY - 1, MEMORY + 1, u64::MAX].map(memory_for);
        assert_eq!(all, [BYTES, BYTES, BYTES, 2 * BYTES, MEMORY, MEMORY, MEMORY]);
    }

    #[test]
    fn messages_come_back_and_others_are_refused() {
        let (one, two) = socket::pair().unwrap();
        let (one, two) = (std::os::fd::AsFd::as_fd(&one), std::os::fd::AsFd::as_fd(&two));
        let sent = Message { c: 9, text: "no such file".to_owned(), ..Message::new(Kind::Failed, 2, 1) };
        sent.send(one, &[]).unwrap();
        let Incoming::Message(got, _) = receive(two) else { panic!("no message") };
        assert_eq!((got.kind, got.a, got.b, got.c, &*got.text), (Kind::Failed, 2, 1, 9, "no such file"));
        assert!(matches!(receive(two), Incoming::Nothing));
        for bad in [&b"short"[..], &[0; 8 * WORDS], &[0xff; LONGEST]] {
            socket::send(one, bad, &[]).unwrap();
            assert!(matches!(receive(two), Incoming::End), "{bad:?}");
        }
    }
}
