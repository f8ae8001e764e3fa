//! The backing of a working copy: what commits go to.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use super::control::{Control, PAGE};
use crate::error::{Error, Result};
use crate::sys::shared::SharedPages;

/// A file whose pages are committed together. One process has it open at a time, the one that serves; calls come from
/// two threads.
pub(crate) trait Backing: Send + Sync {
    /// Bytes of the last commit.
    fn len(&self) -> u64;

    /// The number of the last commit.
    fn last_commit(&self) -> u64;

    /// What tells it from another one of the same name.
    fn identity(&self) -> [u64; 2] {
        [0; 2]
    }

    /// The session in which it is open, if it numbers those in which it is written to: it never has the number of
    /// another.
    fn session(&self) -> u64 {
        0
    }

    /// What is to hold of it whichever process has it open, in words of its own.
    fn negotiated(&self) -> String {
        String::new()
    }

    /// Reads the last commit from `offset`, a multiple of 4096; all that is asked for lies within
    /// [`len`](Backing::len).
    ///
    /// # Errors
    /// Whatever keeps it from being read. The shared memory is poisoned then.
    fn fill(&self, offset: u64, into: &mut [u8]) -> Result<()>;

    /// Makes the file what a cut says, all or nothing, and durable; gives the number of the commit.
    ///
    /// # Errors
    /// Whatever kept it from that. The last commit then stands, or the backing has poisoned itself.
    fn commit(&self, cut: &Cut) -> Result<u64>;

    /// Why nobody knows which commit is the last one, if so: after a failed flush, whose error does not say it. What
    /// [`fill`](Backing::fill) reads then may be older than what the next process finds.
    fn poisoned(&self) -> Option<String>;

    /// Told when the process that serves lets it go, with no commit under way: whether no process is left to go on from
    /// what it leaves.
    fn leave(&self, _last: bool) {}

    /// Pages of which [`tidy`](Backing::tidy) is to be told.
    fn tidied(&self) -> Range<u64> {
        0..0
    }

    /// Told, with no commit under way and no cut being made, that these pages were committed, or may have been by a
    /// process that served before: some of their bytes may only have waited for that. What is changed in the memory
    /// here counts as committed; the pages are present.
    fn tidy(&self, _memory: &SharedPages, _pages: &mut dyn Iterator<Item = u64>) {}
}

/// Why nothing more is promised, in the words of an error that says so.
pub(crate) fn cause_of(error: Error) -> String {
    match error {
        Error::Poisoned { cause, .. } => cause,
        other => other.to_string(),
    }
}

/// Whether a commit that failed may be durable all the same, and why.
pub(super) fn in_doubt(backing: &std::result::Result<Arc<dyn Backing>, String>, error: &Error) -> Option<String> {
    if let Error::Poisoned { cause, .. } = error {
        return Some(cause.clone());
    }
    let backing = backing.as_ref().ok()?;
    let asked = catch_unwind(AssertUnwindSafe(|| backing.poisoned()));
    asked.unwrap_or_else(|_| Some("the code that opens or commits it panicked".to_owned()))
}

/// How a process that served left what stands behind shared memory.
#[derive(Clone)]
pub(crate) struct Before(Arc<Control>);

impl Before {
    pub(super) fn new(control: &Arc<Control>) -> Self {
        Before(Arc::clone(control))
    }

    /// Bytes of the shared memory.
    pub(crate) fn len(&self) -> u64 {
        self.0.len()
    }

    /// The [terms](Backing::negotiated) of the process that came first.
    pub(crate) fn negotiated(&self) -> String {
        self.0.negotiated()
    }

    /// Told which backing was found, and in which session it was left, before anything of it is changed; by how much
    /// the number of the next session is to be higher.
    ///
    /// A session that somebody began who does not take part has a number of its own, whatever was committed in it:
    /// the pages in memory are then not what differs from the last commit. Nobody else comes to the number of the
    /// next one, for they count by one, and it is noted before it begins: a process that is killed in the middle of
    /// taking over keeps no other from it.
    ///
    /// # Errors
    /// In words, that it is not as it was left.
    pub(crate) fn take_over_session(&self, identity: [u64; 2], session: u64) -> std::result::Result<u64, String> {
        if identity != self.0.backing() {
            return Err(REPLACED.to_owned());
        }
        if !self.0.sessions().contains(&session) {
            return Err("another process opened it for writing while no process served it".to_owned());
        }
        let random = crate::sys::random().map_err(|error| error.to_string())?;
        let step = 16 + u64::from(u16::from_le_bytes([random[0], random[1]]));
        self.0.set_sessions(session, session.wrapping_add(step));
        Ok(step)
    }
}

/// Which backing is found by a process that comes to serve, and which session it begins: told by the engine that
/// opens it.
pub(crate) struct Takeover {
    before: Option<Before>,
    /// By the last attempt, for an opening may take several.
    found: Mutex<([u64; 2], u64)>,
}

impl Takeover {
    pub(crate) fn of(before: Option<&Before>) -> Self {
        Takeover { before: before.cloned(), found: Mutex::default() }
    }

    /// Told the backing's UUID and the session in which it was left; by how much the number of the next one is to be
    /// higher.
    ///
    /// # Errors
    /// In words, that it is not as it was left.
    pub(crate) fn take_over_session(&self, uuid: &[u8; 16], session: u64) -> std::result::Result<u64, String> {
        let uuid = u128::from_le_bytes(*uuid);
        let identity = [uuid as u64, (uuid >> 64) as u64];
        let step = self.before.as_ref().map_or(Ok(1), |before| before.take_over_session(identity, session))?;
        *self.found.lock().unwrap_or_else(PoisonError::into_inner) = (identity, session.wrapping_add(step));
        Ok(step)
    }

    /// The backing's identity, and the session that was begun.
    pub(crate) fn found(&self) -> ([u64; 2], u64) {
        *self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is found is not what was left.
pub(super) const REPLACED: &str = "another file replaced it while no process served it";

/// Opens what stands behind shared memory. Every process that may come to serve has one.
pub(crate) trait Opener: Send + Sync {
    /// Opens the backing at its last durable commit. `before` is how the process that served left it, if one did.
    ///
    /// # Errors
    /// [`Error::InUse`](crate::error::Error::InUse) while the process that served before is dying: it is tried again
    /// for a second.
    fn open(&self, before: Option<&Before>) -> Result<Box<dyn Backing>>;

    /// What of the file it opens, in words, if that can differ: only those who say the same share shared memory.
    fn part(&self) -> String {
        String::new()
    }

    /// Who holds the file, for an error, if this process shares it already.
    fn holder_here(&self) -> &'static str {
        "another handle of this process"
    }
}

impl<F: Fn() -> Result<Box<dyn Backing>> + Send + Sync> Opener for F {
    fn open(&self, _: Option<&Before>) -> Result<Box<dyn Backing>> {
        self()
    }
}

/// The state of all processes' stores at one instant, as far as it may differ from the last commit.
#[derive(Debug, Default)]
pub(crate) struct Cut {
    /// Bytes of the whole.
    pub(crate) len: u64,
    /// The pages that differ, ascending.
    pub(super) pages: Vec<u64>,
    /// Their bytes, one after the other; more of them than pages.
    pub(super) bytes: Vec<u8>,
}

/// Bytes of a cut's buffers that are kept for the next one, at most.
const SPARE: usize = 16 << 20;

impl Cut {
    /// Its buffers, for the next cut, but for memory that only a large one needs.
    pub(super) fn emptied(mut self) -> Self {
        self.pages.clear();
        self.pages.shrink_to(SPARE / PAGE);
        self.bytes.truncate(SPARE);
        self.bytes.shrink_to(SPARE);
        self
    }

    /// What differs, in stretches as long as can be: an offset in the file, and the bytes there. Ascending, and nothing
    /// beyond the length.
    pub(crate) fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let first = *self.pages.get(at)?;
            let count = self.pages[at..].iter().zip(first..).take_while(|(page, next)| *page == next).count();
            let bytes = &self.bytes[at * PAGE..(at + count) * PAGE];
            at += count;
            let offset = first * PAGE as u64;
            let within = usize::try_from(self.len.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
            Some((offset, &bytes[..within]))
        })
        .filter(|(_, bytes)| !bytes.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_buffers_of_a_large_cut_are_shrunk() {
        let pages = 2 * SPARE / PAGE;
        let large = Cut { len: 1 << 40, pages: (0..pages as u64).collect(), bytes: vec![1; pages * PAGE] };
        let spare = large.emptied();
        assert!(spare.bytes.capacity() <= SPARE + PAGE && spare.pages.capacity() <= 2 * SPARE / PAGE);
        assert!(spare.pages.is_empty() && spare.bytes.len() == SPARE);
    }

    #[test]
    fn runs_are_long_and_end_with_the_file() {
        let bytes = (0..5 * PAGE).map(|at| (at / PAGE) as u8).collect();
        let cut = Cut { len: 9 * PAGE as u64 + 7, pages: vec![2, 3, 5, 9, 10], bytes };
        let runs: Vec<_> = cut.runs().map(|(offset, bytes)| (offset / 4096, bytes.len(), bytes[0])).collect();
        assert_eq!(runs, [(2, 2 * PAGE, 0), (5, PAGE, 2), (9, 7, 3)]);
    }
}
