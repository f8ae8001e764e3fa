//! Requests of the processes: each begins as soon as it can, and is answered when it is done.
//!
//! One commit runs at a time. Commits requested meanwhile wait, and share the next cut.

use super::super::backing::{Cut, in_doubt};
use super::super::committer::Committer;
use super::super::control::PAGE;
use super::Server;
use crate::error::{Error, Result};
use crate::ipc::message::{INVALID, Kind, Message, POISONED};

/// Somebody who waits for an answer.
pub(super) struct Request {
    pub(super) token: u64,
    pub(super) message: Message,
}

impl Server {
    /// Does what was asked for, as far as it can be done now.
    pub(super) fn advance(&mut self) {
        while self.in_flight.is_none() && (!self.queue.is_empty() || self.control.rolling_back()) && self.all_are_back()
        {
            if self.control.rolling_back() {
                // What a dead server began. It can't be answered for; if it failed the shared memory is poisoned.
                let failed = self.roll_back().is_err();
                if failed && self.control.rolling_back() {
                    return;
                }
                continue;
            }
            let Some(request) = self.queue.pop_front() else { return };
            if let Some(cause) = self.control.poisoned() {
                let failed = Err(self.poisoned(cause));
                self.answer(&request, &failed);
                continue;
            }
            let begun = match request.message.kind {
                Kind::RollBack => {
                    let done = self.roll_back().map(|()| self.control.commit());
                    self.answer(&request, &done);
                    continue;
                }
                Kind::Grow => self.grow(request.message.a),
                _ => Ok(()),
            };
            let mut waiting = vec![request];
            // The cut about to be made is later than all of these were asked for.
            while self.queue.front().is_some_and(|next| next.message.kind == Kind::Commit) {
                waiting.extend(self.queue.pop_front());
            }
            let cut = begun.and_then(|()| self.cut());
            if !matches!(cut, Ok(Some(_))) {
                self.growing = None;
            }
            match cut {
                Ok(Some(cut)) => {
                    self.in_flight = Some(waiting);
                    // Before it can be durable: whoever takes over may find it, and no other one.
                    self.control.set_committing(self.control.commit() + 1);
                    if !self.committer.as_ref().is_some_and(|committer| committer.commit(cut)) {
                        // Its thread is gone, which a panic in the backing does not lead to.
                        let failed = Err(self.poisoned("the thread that commits has ended".to_owned()));
                        self.finish(Cut::default(), failed);
                    }
                }
                Ok(None) => self.answer_all(&waiting, &Ok(self.control.commit())),
                Err(error) => self.answer_all(&waiting, &Err(error)),
            }
        }
    }

    /// Bytes of the next cut, and of the one that is being committed.
    pub(in super::super) fn cut_len(&self) -> u64 {
        self.growing.unwrap_or_else(|| self.control.len())
    }

    /// Makes room for a longer working copy, everywhere. It is as long once that is committed, and if it never is,
    /// nobody has seen a length that the file could not have.
    fn grow(&mut self, len: u64) -> Result<()> {
        let (before, old) = (self.control.len(), self.control.pages());
        let room = self.control.reserved() * PAGE as u64;
        if !(before..=room).contains(&len) {
            let what = format!(
                "cannot resize to {len} bytes: a shared map can only grow, from its {before} bytes to the {room} bytes \
                 of address space reserved for it"
            );
            return Err(Error::Invalid { path: self.rendezvous.path().to_owned(), what });
        }
        let pages = len.div_ceil(PAGE as u64);
        // Before there is anything to store to.
        let grown = self.control.allocate_summary(pages).and_then(|()| self.guard_growth(old, pages));
        let grown = grown.and_then(|()| self.view.grow(pages * PAGE as u64));
        grown.map_err(|error| self.io("grow the working copy of", error))?;
        self.growing = Some(len);
        Ok(())
    }

    /// Hears of a commit that the backing is done with.
    pub(super) fn committed(&mut self) {
        if let Some((cut, result)) = self.committer.as_ref().and_then(Committer::done) {
            self.finish(cut, result);
        }
    }

    pub(super) fn finish(&mut self, cut: Cut, result: Result<u64>) {
        self.growing = None;
        match &result {
            Ok(number) => {
                let in_flight = self.control.in_flight();
                cut.pages.iter().for_each(|page| in_flight.reset(*page));
                self.control.set_len(cut.len);
                self.control.set_commit(*number);
                self.committed_len = cut.len;
                if let Ok(backing) = &self.backing {
                    let tidied = backing.tidied();
                    backing.tidy(&self.view, &mut cut.pages.iter().copied().filter(|page| tidied.contains(page)));
                }
            }
            Err(error) => {
                // First: what is rolled back after this would count as equal to a last commit that nobody knows.
                if let Some(cause) = in_doubt(&self.backing, error) {
                    self.control.poison(&cause);
                }
                // The pages differ from the last commit as before.
                self.control.recover();
                self.control.set_committing(0);
            }
        }
        self.spare = cut.emptied();
        let waiting = self.in_flight.take().unwrap_or_default();
        self.answer_all(&waiting, &result);
    }

    fn answer_all(&mut self, waiting: &[Request], result: &Result<u64>) {
        waiting.iter().for_each(|request| self.answer(request, result));
    }

    pub(super) fn answer(&mut self, request: &Request, result: &Result<u64>) {
        let id = request.message.id;
        let answer = match result {
            Ok(number) => Message::new(Kind::Done, id, *number, 0),
            Err(Error::Poisoned { cause, .. }) => Message::new(Kind::Failed, id, 0, POISONED).text(cause),
            Err(Error::Invalid { what, .. }) => Message::new(Kind::Failed, id, 0, INVALID).text(what),
            Err(error) => Message::new(Kind::Failed, id, error.errno() as u64, 0).text(error.to_string()),
        };
        self.connections.send(request.token, &answer, &[]);
    }
}
