//! A mapping of a twin in a process: where it is, and over what its stores are heard of.
//!
//! Another one may come in its place, while others store there. To the kernel it does not matter over which
//! descriptor a page is let go: so whoever lets one go asks before whether it is this mapping's. A mapping that comes
//! in a place is protected elsewhere, moved there in one step, and noted before that: from then on no earlier one
//! lets a page go there.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno as Sys;
use untorn::testing::{Heard, StoreWatch};

use super::lock;
use crate::managed::{Errno, libc_errno};
use crate::maps::{self, Area};

/// So often what a process has mapped is looked up again, while it goes on changing it.
const LOOKS: u32 = 1000;
/// After so many it is looked up what of it cannot be this mapping's, which takes longer.
const FEW: u32 = 10;

/// A mapping of a twin in a process, as it was made; parts of it may be gone since.
pub(super) struct Mapping {
    pub(super) process: u32,
    /// Where it is, or is to be.
    pub(super) area: Area,
    /// Over which its stores are heard of; `None` where it can never be stored to.
    watch: Option<StoreWatch>,
    /// Rung when nobody has to hear of them any more.
    bell: OwnedFd,
    /// Where it was made, until it is known to be in its place; 0 then.
    from: AtomicUsize,
    /// The kernel has not told yet that it was moved.
    moves: AtomicBool,
    others: Mutex<Others>,
}

/// Where others are by now, in places of which only the addresses count.
#[derive(Default)]
struct Others {
    there: Vec<Area>,
    /// Where some are about to be.
    coming: Vec<Area>,
}

impl Others {
    fn all(&self) -> impl Iterator<Item = &Area> {
        self.there.iter().chain(&self.coming)
    }

    fn are_at(&self, address: usize) -> bool {
        self.all().any(|other| (other.start..other.end).contains(&address))
    }

    /// Adds to those that are there. As many come one after the other as the program likes, so they become one where
    /// they touch.
    fn add(&mut self, mut place: Area) {
        self.there.retain(|other| {
            let touches = other.start <= place.end && place.start <= other.end;
            if touches {
                (place.start, place.end) = (place.start.min(other.start), place.end.max(other.end));
            }
            !touches
        });
        self.there.push(place);
    }
}

impl Mapping {
    /// One that is in its place, where `from` is 0, or about to be moved there from this address.
    pub(super) fn new(process: u32, area: Area, watch: Option<OwnedFd>, from: usize) -> Result<Self, Errno> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(libc_errno)?;
        Ok(Mapping {
            process,
            area,
            watch: watch.map(StoreWatch::new),
            bell,
            from: AtomicUsize::new(from),
            moves: AtomicBool::new(from != 0),
            others: Mutex::default(),
        })
    }

    /// Whether it can be stored to.
    pub(super) fn is_watched(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether it is about to be moved to its place.
    pub(super) fn is_coming(&self) -> bool {
        self.from.load(Ordering::SeqCst) != 0
    }

    /// Whether it is about to be moved to its place, from this address.
    pub(super) fn comes_from(&self, from: usize) -> bool {
        from != 0 && self.from.load(Ordering::SeqCst) == from
    }

    /// It is in its place.
    pub(super) fn arrive(&self) {
        self.from.store(0, Ordering::SeqCst);
    }

    /// What of it is there among the areas of its process.
    pub(super) fn parts<'a>(&self, areas: impl IntoIterator<Item = &'a Area>) -> Vec<Area> {
        let all = areas.into_iter().filter(|area| area.inode == self.area.inode);
        all.filter_map(|area| area.within(self.area.start, self.area.end)).collect()
    }

    /// What of another one's place lies in it; `None` if nothing does, or others have all of its own.
    pub(super) fn part_in(&self, other: &Area) -> Option<Area> {
        let Area { start, end, .. } = self.area;
        let gone = lock(&self.others).there.iter().any(|other| other.start <= start && end <= other.end);
        self.area.within(other.start, other.end).filter(|_| !gone)
    }

    /// Another one is in a place. Once this has returned no page is let go there.
    pub(super) fn leave(&self, place: Area) {
        let mut others = lock(&self.others);
        others.coming.retain(|other| *other != place);
        others.add(place);
    }

    /// Another one is about to be in a place. Once this has returned no page is let go there.
    pub(super) fn expect(&self, place: Area) {
        lock(&self.others).coming.push(place);
    }

    /// The other one does not come.
    pub(super) fn expect_no_more(&self, place: &Area) {
        lock(&self.others).coming.retain(|other| other != place);
    }

    /// Nobody hears of its stores any more.
    pub(super) fn end(&self) {
        self.leave(self.area);
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        if let Some(watch) = &self.watch {
            watch.wake(self.area.start, self.area.end - self.area.start);
        }
    }

    /// Waits for a store; where it is about to be. `None` once nobody has to hear of them.
    pub(super) fn next_store(&self) -> Option<usize> {
        let watch = self.watch.as_ref()?;
        let mut early = Vec::new();
        loop {
            let mut polled = [
                PollFd::from_borrowed_fd(self.bell(), PollFlags::IN),
                PollFd::from_borrowed_fd(watch.as_fd(), PollFlags::IN),
            ];
            match poll(&mut polled, None) {
                Err(Sys::INTR) => continue,
                Err(_) => return None,
                Ok(_) if !polled[0].revents().is_empty() => return None,
                Ok(_) => {}
            }
            match watch.next().ok()? {
                // Until the kernel has told of the move it lets nothing go, and it tells of stores first.
                Some(Heard::Store(address)) if self.moves.load(Ordering::Relaxed) => early.push(address),
                Some(Heard::Store(address)) => return Some(address),
                Some(Heard::Move) => {
                    self.moves.store(false, Ordering::Relaxed);
                    early.drain(..).for_each(|address| watch.wake(address, page()));
                }
                None => {}
            }
        }
    }

    fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Whether it is at an address, and no other one, nor about to be. Who moves it past the layer has its stores
    /// elsewhere.
    pub(super) fn is_at(&self, address: usize) -> bool {
        (self.area.start..self.area.end).contains(&address) && !lock(&self.others).are_at(address)
    }

    /// Lets a store proceed that waits; where another mapping is by now, or is about to be, it is tried once more.
    pub(super) fn let_go(&self, address: usize) {
        let Some(watch) = &self.watch else { return };
        let others = lock(&self.others);
        if others.are_at(address) {
            watch.wake(address, page());
        } else {
            watch.let_go(address, page());
        }
    }

    /// Has stores to a range of addresses wait, where it is mapped still.
    pub(super) fn protect(&self, range: &Range<usize>) -> io::Result<()> {
        let Some(watch) = &self.watch else { return Ok(()) };
        let gone = |error: &io::Error| Sys::from_io_error(error);
        // It is there still, or in its place by now.
        let from = self.from.load(Ordering::SeqCst);
        if from != 0
            && let Err(error) = watch.protect(from + (range.start - self.area.start), range.len())
            && !matches!(gone(&error), Some(Sys::SRCH | Sys::NOENT))
        {
            return Err(error);
        }
        match watch.protect(range.start, range.len()) {
            // The process, or the program that it was, is no more.
            Err(error) if gone(&error) == Some(Sys::SRCH) => return Ok(()),
            Err(error) if gone(&error) == Some(Sys::NOENT) => {}
            done => return done,
        }
        // The program gave parts of it up, or others are there. It may go on doing so.
        for look in 0..LOOKS {
            let mut whole = true;
            let mut places: Vec<Area> = lock(&self.others).all().copied().collect();
            // Where this one is about to be another one may be that nobody can store to. Until it is moved all that
            // is needed is done.
            if look >= FEW {
                places.extend(maps::unregistered(self.process)?);
            }
            let parts = self.parts(&maps::areas(self.process)?);
            for part in parts.into_iter().filter_map(|part| part.within(range.start, range.end)) {
                let mut own = vec![part];
                for place in &places {
                    own = own.into_iter().flat_map(|part| part.without(place)).collect();
                }
                // Where another one is about to be this one may be still.
                let others = places.iter().filter_map(|place| part.within(place.start, place.end));
                for (part, needed) in own.into_iter().map(|part| (part, true)).chain(others.map(|part| (part, false))) {
                    match watch.protect(part.start, part.end - part.start) {
                        Err(error) if gone(&error) == Some(Sys::SRCH) => return Ok(()),
                        Err(error) if gone(&error) == Some(Sys::NOENT) => whole &= !needed,
                        done => done?,
                    }
                }
            }
            if whole {
                return Ok(());
            }
        }
        Err(Sys::AGAIN.into())
    }
}

fn page() -> usize {
    rustix::param::page_size()
}
