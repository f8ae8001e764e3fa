//! The open file in the process that serves, for its own threads and for the others' calls.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::call::{self, Kind};
use super::ranges::{Held, Ranges};
use crate::engine::{Close, Engine, Piece};
use crate::error::{Error, Result};
use crate::ipc::rpc::{EXECUTING, MOST, RequestSlot, RpcArea, Words};
use crate::options::Durability;

/// A buffer that has become larger than this is given back after the call.
const KEPT: usize = 1 << 20;

/// Why the handles of a process are poisoned after an epoch was lost, or after a failure that poisoned the file.
const LOST: &str = "the process that served the shared file ended before a commit, and the writes since the last \
                    commit are lost";
const SPOILED: &str =
    "a flush of the file failed, or a page of it was lost, in the process that served the shared file";
const PANICKED: &str = "a call panicked in the process that serves the shared file";

/// Why those are poisoned that joined before the present generation.
pub(super) fn why_new_generation(rpc_area: &RpcArea) -> String {
    if rpc_area.was_lost() { LOST } else { SPOILED }.to_owned()
}

/// The engine, and what makes changes through it safe against the end of this process at any instant.
pub(super) struct Service {
    engine: Box<dyn Engine>,
    rpc_area: Arc<RpcArea>,
    ranges: Ranges,
    /// Changes of the open epoch that are being made.
    under_way: AtomicU64,
    /// Whether there is an open epoch, which is in the memory of this process.
    has_epoch: bool,
    /// A call panicked: nobody knows what state it left.
    broken: AtomicBool,
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
    pub(super) fn new(engine: Box<dyn Engine>, rpc_area: Arc<RpcArea>) -> Self {
        rpc_area.set_len(engine.len());
        // The process that served before may have been killed after a commit and before it counted that.
        rpc_area.count_unfinished();
        let has_epoch = engine.info().durability == Durability::PerCommit;
        let (ranges, under_way, broken) = (Ranges::new(), AtomicU64::new(0), AtomicBool::new(false));
        Service { engine, rpc_area, ranges, under_way, has_epoch, broken }
    }

    #[inline]
    pub(super) fn engine(&self) -> &dyn Engine {
        &*self.engine
    }

    /// Notes on the board if a failure ended all promises, before anybody is told of it: whoever serves next opens
    /// the file anew, at its last commit, and the handles of all would work again as if nothing had happened.
    fn noted<T>(&self, result: Result<T>) -> Result<T> {
        if result.is_err() {
            self.note_poison();
        }
        result
    }

    /// The same before this process lets the file go, for what failed without anybody's call.
    #[cold]
    pub(super) fn note_poison(&self) {
        if matches!(self.engine.writable(), Err(Error::Poisoned { .. })) {
            self.rpc_area.mark_poisoned();
        }
    }

    /// Reads what there is no short way for; see [`Engine::try_read`].
    pub(super) fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
        self.noted(self.engine.read(offset, dst))
    }

    /// Writes all pieces as one. `begin` is called when no other change of these pages is under way, and before this
    /// one is. The next one begins when what `held` gets is dropped. False, and nothing is written, if there is a
    /// condition and the count of changes is another one.
    pub(super) fn write<'a>(
        &'a self,
        pieces: &[Piece<'_>],
        condition: Option<u64>,
        held: &mut Option<Held<'a>>,
        begin: impl FnOnce(),
    ) -> Result<bool> {
        *held = Some(match condition {
            None => self.ranges.hold(pieces),
            // Of two writes with a condition the second finds the first counted: each holds the first page, too.
            Some(_) => self.ranges.hold(&[&[Piece { offset: 0, bytes: &[0] }], pieces].concat()),
        });
        if condition.is_some_and(|changes| changes != self.rpc_area.changes()) {
            return Ok(false);
        }
        begin();
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Begun);
        let _change = self.change();
        let counted = self.rpc_area.count_change();
        let result = self.engine.write(pieces);
        drop(counted);
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Written);
        self.noted(result).map(|()| true)
    }

    /// The same for the length.
    pub(super) fn resize<'a>(&'a self, len: u64, held: &mut Option<Held<'a>>, begin: impl FnOnce()) -> Result<()> {
        *held = Some(self.ranges.hold_all());
        begin();
        let _change = self.change();
        let counted = self.rpc_area.count_change();
        let result = self.engine.resize(len);
        self.rpc_area.set_len(self.engine.len());
        drop(counted);
        self.noted(result)
    }

    pub(super) fn deploy(&self, offset: u64, len: u64) -> Result<()> {
        self.noted(self.engine.deploy(offset, len))
    }

    pub(super) fn reclaim(&self) -> Result<u64> {
        self.noted(self.engine.reclaim())
    }

    pub(super) fn take_growth(&self) -> Result<u64> {
        self.noted(self.engine.take_growth()).map(|len| len.unwrap_or(0))
    }

    pub(super) fn close(&self, how: Close) -> Result<()> {
        self.noted(self.engine.close(how))
    }

    pub(super) fn settle(&self) -> Result<()> {
        self.noted(self.engine.settle())
    }

    /// Counts a change before it is made: first here, so that a commit which sees it counted on the board sees it
    /// under way.
    fn change(&self) -> Change<'_> {
        if !self.has_epoch {
            return Change(None);
        }
        self.under_way.fetch_add(1, Ordering::SeqCst);
        self.rpc_area.begin_change();
        Change(Some(&self.under_way))
    }

    /// Commits the open epoch.
    pub(super) fn sync(&self) -> Result<u64> {
        // Of changes under way nobody can say yet whether they will be in.
        let begun = self.rpc_area.begun();
        let covers = (self.under_way.load(Ordering::SeqCst) == 0).then_some(begun);
        // Without an epoch it changes nothing that anybody reads.
        let counted = self.has_epoch.then(|| self.rpc_area.count_change());
        let synced = self.engine.sync();
        drop(counted);
        let number = self.noted(synced)?;
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Synced);
        if let Some(changes) = covers {
            self.rpc_area.mark_committed(changes);
        }
        Ok(number)
    }
}

/// Does a call, and gives the request slot back with the answer.
pub(super) fn serve(service: &Service, rpc_area: &RpcArea, request_slot: RequestSlot<'_>, bytes: &mut Vec<u8>) {
    let words = request_slot.asked();
    let poisoned = |cause: String| Error::Poisoned { path: service.engine.path().to_owned(), cause };
    // It keeps other changes of these pages away until the answer is in place, also while a panic unwinds.
    let mut held = None;
    if words.generation != rpc_area.generation() {
        call::fail(request_slot, &poisoned(why_new_generation(rpc_area)));
    } else if service.broken.load(Ordering::SeqCst) {
        call::fail(request_slot, &poisoned(PANICKED.to_owned()));
    } else if catch_unwind(AssertUnwindSafe(|| answer(service, request_slot, words, bytes, &mut held))).is_err() {
        service.broken.store(true, Ordering::SeqCst);
        rpc_area.mark_poisoned();
        call::fail(request_slot, &poisoned(PANICKED.to_owned()));
    }
    #[cfg(test)]
    {
        super::tests::reach(super::tests::Point::Answering);
        super::tests::halt(&format!("answering-{}", request_slot.slot()));
    }
    request_slot.answer();
}

/// Does a call and puts the answer in place.
fn answer<'a>(
    service: &'a Service,
    request_slot: RequestSlot<'_>,
    words: Words,
    bytes: &mut Vec<u8>,
    held: &mut Option<Held<'a>>,
) {
    let engine = service.engine();
    let number = |result: Result<u64>| result.map(|a| Words { a, ..Words::default() });
    let result = match Kind::from_word(words.kind) {
        Some(Kind::Read) => take(bytes, words.b, engine.path()).and_then(|()| {
            if !engine.try_read(words.a, bytes) {
                service.read(words.a, bytes)?;
            }
            request_slot.put(0, bytes);
            number(Ok(0))
        }),
        Some(Kind::Write) => take(bytes, words.len, engine.path()).and_then(|()| {
            request_slot.get(0, bytes);
            let pieces = call::pieces(words.a, bytes).ok_or_else(|| nonsense(engine.path()))?;
            // One that was begun before this process served met its condition, and may have been counted since.
            let condition = call::to_condition(words.b).filter(|_| request_slot.state() != EXECUTING);
            // From here on until the answer it may have been done.
            let written = service.write(&pieces, condition, held, || request_slot.set_state(EXECUTING));
            number(written.map(|written| if written { call::WRITTEN } else { call::REFUSED }))
        }),
        Some(Kind::Resize) => number(service.resize(words.a, held, || request_slot.set_state(EXECUTING)).map(|()| 0)),
        Some(Kind::Deploy) => number(service.deploy(words.a, words.b).map(|()| 0)),
        Some(Kind::Sync) => number(service.sync()),
        Some(Kind::Reclaim) => number(service.reclaim()),
        Some(Kind::Growth) => number(service.take_growth()),
        Some(Kind::Info) => {
            let info = call::of_info(&engine.info());
            request_slot.put(0, &info);
            Ok(Words { len: info.len() as u64, ..Words::default() })
        }
        None => Err(nonsense(engine.path())),
    };
    match result {
        Ok(words) => request_slot.set_answer(words),
        Err(error) => call::fail(request_slot, &error),
    }
    bytes.clear();
    bytes.shrink_to(KEPT);
}

fn nonsense(path: &Path) -> Error {
    Error::Invalid { path: path.to_owned(), what: "another process sent an invalid call".to_owned() }
}

/// Makes room for the bytes of a call.
fn take(bytes: &mut Vec<u8>, len: u64, path: &Path) -> Result<()> {
    let len = usize::try_from(len).ok().filter(|len| *len <= MOST).ok_or_else(|| nonsense(path))?;
    bytes.clear();
    let room = bytes.try_reserve(len);
    room.map_err(|_| Error::io("allocate memory for a call on", path, rustix::io::Errno::NOMEM))?;
    bytes.resize(len, 0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::file::tests::failures::{WRITE, failing, put_call};

    #[test]
    fn a_call_that_panics_keeps_its_pages_until_it_is_answered() {
        let (rpc_area, service) = failing(true);
        let request_slot = rpc_area.request_slot(0, 0);
        put_call(request_slot, WRITE, 0);
        let mut held = None;
        let answered = || answer(&service, request_slot, request_slot.asked(), &mut Vec::new(), &mut held);
        assert!(catch_unwind(AssertUnwindSafe(answered)).is_err());
        assert_eq!(request_slot.state(), EXECUTING);
        assert!(held.is_some(), "another change of them could come between this one and its being done again");
    }
}
