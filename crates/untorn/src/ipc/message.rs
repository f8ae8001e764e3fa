//! The messages between the processes: four words and a text.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;

use crate::sys::socket::{self, Received};

/// Bytes of the words.
const WORDS: usize = 32;
/// The longest message.
const LONGEST: usize = 1024;

/// Declares what can be said, and the word for each.
macro_rules! kinds {
    ($what:literal; $($(#[$doc:meta])* $name:ident = $number:literal,)+) => {
        #[doc = $what]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Kind { $($(#[$doc])* $name = $number,)+ }

        impl Kind {
            pub(crate) fn from_word(word: u64) -> Option<Self> {
                match word { $($number => Some(Kind::$name),)+ _ => None }
            }
        }
    };
}
pub(crate) use kinds;

kinds! {
    "The kind of a message.";
    /// To the server: I have slot `id`, which nobody else has any more, and want to take part. `a` is the version, the
    /// text what of the file is to be shared.
    Hello = 1,
    /// Back: `a` is how many pages there is room for; with the control block and the memory.
    Welcome = 2,
    /// To the server: I have, in slot `id`, the memory at address `a`, and all but the last pages, from page `b`,
    /// protected; with the userfaultfd. The text names the working copy.
    Attach = 3,
    /// The same from a process that took part already, under another server.
    Return = 4,
    /// Back: you take part; with a handle of the serving process.
    Ready = 5,
    /// Back: no, and why. With `a`: nor will asking again help.
    Refused = 6,
    /// To the server: fill page `a`.
    Fill = 7,
    /// To the server, to be answered under the number `id`: commit.
    Commit = 8,
    /// Bring everything back to the last commit.
    RollBack = 9,
    /// Grow to `a` bytes and commit.
    Grow = 10,
    /// I store no more.
    Leave = 11,
    /// The answer: it is done. `a` is the number of the last commit.
    Done = 12,
    /// The answer: it failed, and why. `b` is [`POISONED`], [`INVALID`], or 0 with the errno in `a`.
    Failed = 13,
    /// To the server: I have opened another request slot of the RPC area.
    RequestSlot = 14,
}

/// Nothing more is promised; the text is the cause.
pub(crate) const POISONED: u64 = 1;
/// What was asked for cannot be; the text says why.
pub(crate) const INVALID: u64 = 2;

/// A message.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) text: String,
}

impl Message {
    pub(crate) fn new(kind: Kind, id: u64, a: u64, b: u64) -> Self {
        Message { kind, id, a, b, text: String::new() }
    }

    pub(crate) fn text(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
    }

    /// # Errors
    /// Those of [`socket::send`].
    pub(crate) fn send(&self, to: BorrowedFd<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut bytes = words(self.kind, self.id, self.a, self.b).to_vec();
        let longest = LONGEST - WORDS;
        bytes.extend_from_slice(&self.text.as_bytes()[..self.text.len().min(longest)]);
        socket::send(to, &bytes, fds)
    }
}

/// The one message that a signal handler sends.
pub(crate) fn fill(page: u64) -> [u8; WORDS] {
    words(Kind::Fill, 0, page, 0)
}

fn words(kind: Kind, id: u64, a: u64, b: u64) -> [u8; WORDS] {
    let mut bytes = [0; WORDS];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip([kind as u64, id, a, b]) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// What came.
pub(crate) enum Incoming {
    Message(Message, Vec<OwnedFd>),
    Nothing,
    /// Something that there is no room for, of descriptors or of memory.
    Short(io::Error),
    /// The other end is gone, or talks nonsense.
    End,
}

/// Whether a call failed for want of something of which there may be more later.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    is_shortage_number(error.raw_os_error().unwrap_or(0))
}

/// The same, of the error's number. Starting a thread fails with EAGAIN.
pub(crate) fn is_shortage_number(errno: i32) -> bool {
    // The one before the last: more descriptors are on their way in messages than this user may have open.
    let shortages = [Errno::MFILE, Errno::NFILE, Errno::NOMEM, Errno::NOBUFS, Errno::TOOMANYREFS, Errno::AGAIN];
    shortages.iter().any(|shortage| shortage.raw_os_error() == errno)
}

/// Takes the next message, if there is one.
pub(crate) fn receive(from: BorrowedFd<'_>) -> Incoming {
    let mut bytes = [0; LONGEST];
    match socket::receive(from, &mut bytes) {
        Ok(Received::Message(len, fds)) => {
            parse(&bytes[..len]).map_or(Incoming::End, |message| Incoming::Message(message, fds))
        }
        Ok(Received::Nothing) => Incoming::Nothing,
        Err(error) if is_shortage(&error) => Incoming::Short(error),
        Ok(Received::End) | Err(_) => Incoming::End,
    }
}

fn parse(bytes: &[u8]) -> Option<Message> {
    let (words, text) = bytes.split_at_checked(WORDS)?;
    let mut words = words.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
    Some(Message {
        kind: Kind::from_word(words.next()?)?,
        id: words.next()?,
        a: words.next()?,
        b: words.next()?,
        text: String::from_utf8_lossy(text).into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_survives_and_nonsense_is_none() {
        let parsed = parse(&fill(77)).unwrap();
        assert_eq!((parsed.kind, parsed.id, parsed.a, parsed.b), (Kind::Fill, 0, 77, 0));
        for len in 0..WORDS {
            assert!(parse(&fill(77)[..len]).is_none());
        }
        let mut unknown = fill(77);
        unknown[0] = 200;
        assert!(parse(&unknown).is_none());
    }
}
