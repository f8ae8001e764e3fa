//! Cuts: what the serving process does to the pages of all processes.

use std::io;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::backing::Cut;
use super::control::{CLOSED, COPYING, OPEN, PAGE};
use super::server::Server;
use crate::error::{Error, Result};
use crate::ipc::membership::Host as _;
use crate::ipc::rendezvous::MEMBERS;
use crate::sys::userfault::Userfault;

/// Pages between two dirty ones that are protected along with them, which they are already: that costs less than
/// another call (100 ns a page, 1.7 µs a call).
const GAP: u64 = 12;

/// How long a thread may be about to make a page writable. It takes microseconds, unless its process is stopped, or
/// gets no CPU for a while, which is no reason to refuse a commit.
const PROTECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a process that is cut off may take between forsaking the memory and saying that it takes part no more.
/// Stores wait meanwhile.
const FORSAKING: Duration = Duration::from_millis(500);

/// Pages filled at once, around the one asked for: 64 KiB.
const FILLED_AT_ONCE: u64 = 16;

/// Pages that are protected together before the first of them is present: those of one page of a page table, which is
/// what their marks take in each process.
const CHUNK: u64 = 512;

/// The pages of a page's chunk, of as many as there are.
fn chunk_of(page: u64, pages: u64) -> Range<u64> {
    let first = page - page % CHUNK;
    first..(first + CHUNK).min(pages)
}

impl Server {
    /// Stops all stores for an instant and takes what differs from the last commit: `None` if nothing does.
    ///
    /// From the moment when every page is protected the memory is the state of one instant. Stores to other pages then
    /// proceed; those to a page of the cut as soon as it has been copied.
    pub(super) fn cut(&mut self) -> Result<Option<Cut>> {
        let mut cut = std::mem::take(&mut self.spare);
        cut.len = self.cut_len();
        // How many there will be about, so that the memory for the copies is there before anybody waits.
        self.control.dirty_pages(&mut cut.pages);
        if cut.pages.is_empty() && cut.len == self.committed_len {
            self.spare = cut;
            return Ok(None);
        }
        make_room(&mut cut);
        self.close_gate()?;
        #[cfg(test)]
        super::tests::reach(super::tests::Point::GateClosed);
        self.control.take_dirty(&mut cut.pages);
        if let Err(error) = self.protect(&cut.pages) {
            self.control.recover();
            self.control.set_gate(OPEN);
            return Err(self.io("protect the pages of", error));
        }
        #[cfg(test)]
        if self.bug == Some(super::tests::Bug::EarlyGate) {
            // A bug that the tests must find: stores go on while the pages are copied.
            cut.pages.iter().for_each(|page| self.control.pending().reset(*page));
        }
        #[cfg(test)]
        super::tests::reach(super::tests::Point::Protected);
        self.control.set_gate(COPYING);
        make_room(&mut cut);
        let pending = self.control.pending();
        for (page, bytes) in cut.pages.iter().zip(cut.bytes.chunks_exact_mut(PAGE)) {
            self.view.copy_out(*page as usize * PAGE, bytes);
            #[cfg(test)]
            if matches!(self.bug, Some(super::tests::Bug::NoProtection | super::tests::Bug::EarlyGate)) {
                // With a bug stores go on meanwhile: on a single core too.
                std::thread::yield_now();
            }
            pending.reset(*page);
            #[cfg(test)]
            super::tests::reach(super::tests::Point::Copying);
        }
        self.control.set_gate(OPEN);
        Ok(Some(cut))
    }

    /// Brings every dirty page back to the last commit.
    pub(super) fn roll_back(&mut self) -> Result<()> {
        let mut pages = Vec::new();
        self.close_gate()?;
        self.control.dirty_pages(&mut pages);
        if let Err(error) = self.protect(&pages) {
            if !self.control.rolling_back() {
                self.control.set_gate(OPEN);
            }
            return Err(self.io("protect the pages of", error));
        }
        // From here to the end there is no state that a commit may have, so another process would have to go on.
        self.control.set_rolling_back(true);
        let mut bytes = [0; PAGE];
        let mut done = Ok(());
        for page in pages {
            done = self.read_commit(page * PAGE as u64, &mut bytes);
            if let Err(error) = &done {
                self.control.poison(&error.to_string());
                break;
            }
            self.view.copy_in(page as usize * PAGE, &bytes);
            self.control.dirty().reset(page);
            #[cfg(test)]
            super::tests::reach(super::tests::Point::RollingBack);
        }
        self.control.set_rolling_back(false);
        self.control.set_gate(OPEN);
        done
    }

    /// Keeps everybody from making a page writable, and waits until nobody is about to.
    fn close_gate(&mut self) -> Result<()> {
        self.control.set_gate(CLOSED);
        for slot in 0..MEMBERS {
            if !self.control.attached(slot) {
                continue;
            }
            let since = Instant::now();
            while self.control.active(slot).load(Ordering::SeqCst) != 0 {
                self.control.await_leaving(slot);
                if self.control.active(slot).load(Ordering::SeqCst) == 0 {
                    break;
                }
                if !self.rendezvous.is_alive(slot) {
                    self.release(slot);
                    break;
                }
                if since.elapsed() > PROTECT_TIMEOUT {
                    if !self.control.rolling_back() {
                        self.control.set_gate(OPEN);
                    }
                    let reason = "a process that shares it does not finish a store; continue the process if it is \
                                  stopped, or kill it, and try again";
                    return Err(self.io("stop the stores to", io::Error::other(reason)));
                }
            }
        }
        Ok(())
    }

    /// Protects pages in every process in which they are writable.
    fn protect(&mut self, pages: &[u64]) -> io::Result<()> {
        #[cfg(test)]
        if self.bug == Some(super::tests::Bug::NoProtection) {
            // Stores to these pages trap no more, so they are in every cut from now on, or there might be no further
            // one.
            pages.iter().for_each(|page| _ = self.control.dirty().set(*page));
            return Ok(());
        }
        for slot in 0..MEMBERS {
            if self.seats[slot].is_none() {
                continue;
            }
            let writable = self.control.writable(slot);
            let mut run: Option<(u64, u64)> = None;
            let protect = |(first, last): (u64, u64)| self.protect_in(slot, first, last + 1);
            for page in pages.iter().copied().filter(|page| writable.get(*page)) {
                run = match run {
                    Some((first, last)) if page - last <= GAP => Some((first, page)),
                    Some(done) => {
                        protect(done)?;
                        Some((page, page))
                    }
                    None => Some((page, page)),
                };
            }
            run.map_or(Ok(()), protect)?;
            // Only now, for one that is reset belongs to a page that is protected.
            pages.iter().filter(|page| writable.get(**page)).for_each(|page| writable.reset(*page));
        }
        Ok(())
    }

    /// Protects the pages from `from` to `to` in the process of a slot, unless it is gone, and with it all who could
    /// store.
    fn protect_in(&self, slot: usize, from: u64, to: u64) -> io::Result<()> {
        self.set_protection_in(slot, from, to, true)
    }

    fn set_protection_in(&self, slot: usize, from: u64, to: u64, on: bool) -> io::Result<()> {
        let Some(admit_member) = &self.seats[slot] else { return Ok(()) };
        let since = Instant::now();
        while let Err(error) = set_protection(&admit_member.tracker, admit_member.base, from, to, on) {
            match Errno::from_io_error(&error) {
                Some(Errno::SRCH) => break,
                // It has other memory there. One that is cut off has forsaken it all, and says right after that it
                // takes part no more. But one that takes part has other memory in the place of a page that it lost,
                // or touched beyond the end, and behind that one there may be pages that are still to be protected.
                Some(Errno::NOENT) if !self.rendezvous.is_alive(slot) => break,
                Some(Errno::NOENT) if since.elapsed() > FORSAKING => {
                    return Err(io::Error::other(
                        "a process that shares it has lost a page of it, or touched one beyond its end; let that \
                         process close it, and try again",
                    ));
                }
                Some(Errno::NOENT) => thread::sleep(Duration::from_micros(100)),
                _ => return Err(error),
            }
        }
        Ok(())
    }

    /// Fills a page that somebody asked for, and those around it that are not present.
    pub(super) fn fill(&mut self, page: u64) {
        if page >= self.control.pages() || self.control.present().get(page) {
            return self.control.tell_filled();
        }
        match self.guard(page) {
            Ok(true) => {}
            Ok(false) => {
                if !self.unfilled.contains(&page) {
                    self.unfilled.push(page);
                }
                return;
            }
            Err(error) => {
                self.control.poison(&format!("cannot write-protect page {page} in every process: {error}"));
                self.control.set_lost(page);
                return self.control.tell_filled();
            }
        }
        let (pages, present) = (self.control.pages(), self.control.present());
        let first = page - page % FILLED_AT_ONCE;
        let last = (first + FILLED_AT_ONCE).min(pages);
        let mut bytes = vec![0; (last - first) as usize * PAGE];
        if let Err(error) = self.read_commit(first * PAGE as u64, &mut bytes) {
            // Zeros take the place of what can't be read, and nothing that came of them is ever committed.
            self.control.poison(&error.to_string());
            bytes.fill(0);
        }
        for (next, bytes) in (first..last).zip(bytes.chunks_exact(PAGE)) {
            if present.get(next) {
                continue;
            }
            // Where there are contents already the process that served before was killed between these two steps.
            match self.filler.fill(self.view.address() + next as usize * PAGE, bytes) {
                Ok(_) => {
                    #[cfg(test)]
                    super::tests::reach(super::tests::Point::Filled);
                    present.set(next);
                }
                Err(error) if next == page => {
                    self.control.poison(&format!("cannot allocate memory for page {page}: {error}"));
                    self.control.set_lost(page);
                }
                Err(_) => {}
            }
        }
        self.control.tell_filled();
    }

    /// Protects the chunk of a page in every process that takes part, before the first of its pages is present; false
    /// while a process that takes part has yet to come back, which could store to such a page unnoticed.
    fn guard(&mut self, page: u64) -> io::Result<bool> {
        // With what is being added, if it is: once the chunk has a page, no other way leads here.
        let chunk = chunk_of(page, self.cut_len().div_ceil(PAGE as u64));
        if self.control.has_present(&chunk) {
            return Ok(true);
        }
        if !self.all_are_back() {
            return Ok(false);
        }
        self.guard_in_all(&chunk)?;
        Ok(true)
    }

    fn guard_in_all(&self, pages: &Range<u64>) -> io::Result<()> {
        self.control.allocate(pages)?;
        for (slot, admit_member) in self.seats.iter().enumerate() {
            let Some(admit_member) = admit_member else { continue };
            self.control.allocate_member(slot, pages)?;
            let guarded = protect_pages(&admit_member.tracker, admit_member.base, pages.start, pages.end);
            match guarded.map_err(|error| (Errno::from_io_error(&error), error)) {
                // The process is gone.
                Ok(()) | Err((Some(Errno::SRCH), _)) => {}
                // It has other memory in the place of a page. What it stores there reaches nobody.
                Err((Some(Errno::NOENT), _)) => {
                    for page in pages.clone() {
                        match protect_pages(&admit_member.tracker, admit_member.base, page, page + 1) {
                            Err(error) if Errno::from_io_error(&error) != Some(Errno::NOENT) => return Err(error),
                            _ => {}
                        }
                    }
                }
                Err((_, error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Protects in one process the chunks that have a page in memory, up to a page: what every other one has
    /// protected. The process has not touched the memory yet.
    pub(super) fn guard_present(&self, slot: usize, tracker: &Userfault, base: usize, pages: u64) -> io::Result<()> {
        let mut next = 0;
        while next < pages
            && let Some(found) = self.view.memory_from(next * PAGE as u64)?
        {
            let chunk = chunk_of(found / PAGE as u64, pages);
            if chunk.is_empty() {
                break;
            }
            self.control.allocate_member(slot, &chunk)?;
            protect_pages(tracker, base, chunk.start, chunk.end)?;
            next = chunk.end;
        }
        Ok(())
    }

    /// Protects pages by which the memory is to grow in every process, as far as they are in a chunk that has a page
    /// in memory.
    ///
    /// # Errors
    /// Of a process that has other memory in the place of such a page.
    pub(super) fn guard_growth(&mut self, old: u64, pages: u64) -> io::Result<()> {
        for slot in 0..MEMBERS {
            // No page is there yet, so this changes nothing. It only tells, and takes no page tables.
            self.set_protection_in(slot, old, pages, false)?;
        }
        let chunk = chunk_of(old, pages);
        if chunk.start < old && self.control.has_present(&(chunk.start..old)) {
            self.guard_in_all(&(old..chunk.end))?;
        }
        Ok(())
    }

    /// Reads the last commit; beyond its end there are zeros.
    fn read_commit(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let within = usize::try_from(self.committed_len.saturating_sub(offset)).unwrap_or(usize::MAX).min(into.len());
        let (inside, outside) = into.split_at_mut(within);
        outside.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        match &self.backing {
            Ok(backing) => catch_unwind(AssertUnwindSafe(|| backing.fill(offset, inside)))
                .unwrap_or_else(|_| Err(self.poisoned("the code that reads it panicked".to_owned()))),
            Err(cause) => Err(self.poisoned(cause.clone())),
        }
    }

    pub(super) fn poisoned(&self, cause: String) -> Error {
        Error::Poisoned { path: self.rendezvous.path().to_owned(), cause }
    }

    pub(super) fn io(&self, operation: &'static str, error: io::Error) -> Error {
        Error::io(operation, self.rendezvous.path(), error)
    }
}

/// Protects the pages from `from` to `to` of a process.
fn protect_pages(tracker: &Userfault, base: usize, from: u64, to: u64) -> io::Result<()> {
    set_protection(tracker, base, from, to, true)
}

fn set_protection(tracker: &Userfault, base: usize, from: u64, to: u64, on: bool) -> io::Result<()> {
    if from >= to {
        return Ok(());
    }
    tracker.protect(base.wrapping_add(from as usize * PAGE), (to - from) as usize * PAGE, on)
}

fn make_room(cut: &mut Cut) {
    let wanted = cut.pages.len() * PAGE;
    if cut.bytes.len() < wanted {
        cut.bytes.resize(wanted, 0);
    }
}
