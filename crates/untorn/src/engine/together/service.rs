//! The open file in the process that serves, for its own threads and for the calls of the others.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::call::{self, Kind};
use super::ranges::{Held, Ranges};
use crate::engine::{Engine, Piece};
use crate::error::{Error, Result};
use crate::options::Durability;
use crate::sharing::board::{BEGUN, Board, Channel, MOST, Words};

/// A buffer that has become larger than this is given back after the call.
const KEPT: usize = 1 << 20;

/// Why the handles of a process are poisoned after an epoch was lost.
pub(super) const LOST: &str = "the process that had the file open for all ended before a commit, and the writes since the last one are lost with it";

/// The engine, and what makes changes through it safe against the end of this process at any instant.
pub(super) struct Service {
    engine: Box<dyn Engine>,
    board: Arc<Board>,
    ranges: Ranges,
    /// Changes of the open epoch that are being made.
    under_way: AtomicU64,
    /// Whether there is an open epoch, which is in the memory of this process.
    has_epoch: bool,
}

/// A change under way, which ends when this is dropped.
struct Change<'a>(Option<&'a AtomicU64>);

impl Drop for Change<'_> {
    fn drop(&mut self) {
        if let Some(under_way) = self.0 {
            under_way.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Service {
    pub(super) fn new(engine: Box<dyn Engine>, board: Arc<Board>) -> Self {
        board.set_len(engine.len());
        let has_epoch = engine.info().durability == Durability::PerCommit;
        Service { engine, board, ranges: Ranges::new(), under_way: AtomicU64::new(0), has_epoch }
    }

    #[inline]
    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// Writes all pieces as one. `begin` is called when no other change of these pages is under way, and before this one is.
    /// The next one begins when what is returned along with the result is dropped.
    pub(super) fn write(&self, pieces: &[Piece<'_>], begin: impl FnOnce()) -> (Result<()>, Held<'_>) {
        let held = self.ranges.hold(pieces);
        begin();
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Begun);
        let _change = self.change();
        let result = self.engine.write(pieces);
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Written);
        (result, held)
    }

    /// The same for the length.
    pub(super) fn resize(&self, len: u64, begin: impl FnOnce()) -> (Result<()>, Held<'_>) {
        let held = self.ranges.hold_all();
        begin();
        let _change = self.change();
        let result = self.engine.resize(len);
        self.board.set_len(self.engine.len());
        (result, held)
    }

    /// Counts a change before it is made: first here, so that a commit which sees it counted on the board sees it under way.
    fn change(&self) -> Change<'_> {
        if !self.has_epoch {
            return Change(None);
        }
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.board.begin_change();
        Change(Some(&self.under_way))
    }

    /// Commits the open epoch.
    pub(super) fn sync(&self) -> Result<u64> {
        // Of changes under way nobody can say yet whether they will be in.
        let begun = self.board.begun();
        let covers = (self.under_way.load(Ordering::SeqCst) == 0).then_some(begun);
        let number = self.engine.sync()?;
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Synced);
        if let Some(changes) = covers {
            self.board.cover(changes);
        }
        Ok(number)
    }
}

/// Does a call, and gives the channel back with the answer. There is no service where the file could not be opened.
pub(super) fn serve(
    service: &std::result::Result<Arc<Service>, String>,
    board: &Board,
    channel: Channel<'_>,
    bytes: &mut Vec<u8>,
) {
    let words = channel.asked();
    let path = match service {
        Ok(service) => service.engine.path(),
        Err(_) => Path::new(""),
    };
    let poisoned = |cause: &str| Error::Poisoned { path: path.to_owned(), cause: cause.to_owned() };
    match service {
        _ if words.generation != board.generation() => call::fail(channel, &poisoned(LOST)),
        Err(cause) => call::fail(channel, &poisoned(cause)),
        Ok(service) => {
            let done = catch_unwind(AssertUnwindSafe(|| answer(service, channel, words, bytes)));
            match done {
                // It keeps other changes of these pages away until the answer is in place.
                Ok(_held) => {
                    #[cfg(test)]
                    super::tests::reach(super::tests::Point::Answering);
                    return channel.answer();
                }
                Err(_) => call::fail(channel, &poisoned("the call panicked in the process that has the file open")),
            }
        }
    }
    channel.answer();
}

/// Does a call and puts the answer in place.
fn answer<'a>(service: &'a Service, channel: Channel<'_>, words: Words, bytes: &mut Vec<u8>) -> Option<Held<'a>> {
    let engine = service.engine();
    let mut held = None;
    let number = |result: Result<u64>| result.map(|a| Words { a, ..Words::default() });
    let result = match Kind::from_word(words.kind) {
        Some(Kind::Read) => take(bytes, words.b, engine.path()).and_then(|()| {
            engine.read_at(words.a, bytes)?;
            channel.put(0, bytes);
            number(Ok(0))
        }),
        Some(Kind::Write) => take(bytes, words.len, engine.path()).and_then(|()| {
            channel.get(0, bytes);
            let pieces = call::pieces(words.a, bytes).ok_or_else(|| nonsense(engine.path()))?;
            // From here on until the answer it may have been done.
            let (result, kept) = service.write(&pieces, || channel.set_state(BEGUN));
            held = Some(kept);
            number(result.map(|()| 0))
        }),
        Some(Kind::Resize) => {
            let (result, kept) = service.resize(words.a, || channel.set_state(BEGUN));
            held = Some(kept);
            number(result.map(|()| 0))
        }
        Some(Kind::Deploy) => number(engine.deploy(words.a, words.b).map(|()| 0)),
        Some(Kind::Sync) => number(service.sync()),
        Some(Kind::Reclaim) => number(engine.reclaim()),
        Some(Kind::Info) => {
            let info = call::of_info(&engine.info());
            channel.put(0, &info);
            Ok(Words { len: info.len() as u64, ..Words::default() })
        }
        None => Err(nonsense(engine.path())),
    };
    match result {
        Ok(words) => channel.set_answer(words),
        Err(error) => call::fail(channel, &error),
    }
    bytes.clear();
    bytes.shrink_to(KEPT);
    held
}

fn nonsense(path: &Path) -> Error {
    Error::Invalid { path: path.to_owned(), what: "a call of another process made no sense".to_owned() }
}

/// Makes room for the bytes of a call.
fn take(bytes: &mut Vec<u8>, len: u64, path: &Path) -> Result<()> {
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST).ok_or_else(|| nonsense(path))?;
    bytes.clear();
    let room = bytes.try_reserve(len);
    room.map_err(|_| Error::io("find memory for a call to", path, rustix::io::Errno::NOMEM))?;
    bytes.resize(len, 0);
    Ok(())
}
