//! Publishing: each commit becomes a snapshot by itself, which readers in other processes find in
//! [shared memory](super::published).
//!
//! It begins when a reader in another process asks for its second snapshot, and ends with the first write after the
//! last such reader has gone. Only a file whose writes [come one at a time](crate::Options::one_writer) and are durable
//! when they return is published: each write keeps the others out, since its end is a snapshot.
//!
//! # Invariants
//!
//! 1. A write keeps the last published snapshot's pages before it changes them, as for any held snapshot, and marks
//!    them. So a reader goes on with that snapshot while the write is being made durable, and waits for nothing.
//! 2. After the write, with the gate still closed, the pages that it changed get versions, then the new snapshot is
//!    published, and only then the write returns. So who begins to read after that finds it.
//! 3. A published snapshot that is not the last one goes once no reader uses it: its pin's [readers](super::readers)
//!    lapse. A reader that begins with it afterwards finds that it is not the last one.
//! 4. What changes pages without adding versions takes all versions out first.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use super::preimages::{PAGE, lock};
use super::published::{Current, Published};
use super::remote::{PIN, READERS, to_word};
use super::{Capture, Held, Holding, LAST, Marks, Readers, Taken, WithSnapshots, pages_of, readers};
use crate::engine::Piece;
use crate::error::Result;
use crate::storage::Medium;
use crate::sys::shared::SharedPages;

/// Pages of a write whose versions are published. Those of a larger write have to be asked for.
const MOST_PAGES: usize = 256;

/// What a reader in another process gets when it begins to use published snapshots.
pub(crate) struct Subscription {
    pub(crate) taken: Taken,
    pub(crate) marks: Arc<Marks>,
    pub(crate) published: Arc<Published>,
    /// Names the subscription.
    pub(crate) id: u64,
}

/// A reader in another process. Its memory says which snapshot it uses.
struct Pin {
    id: u64,
    process: u32,
    pages: Arc<SharedPages>,
}

impl Pin {
    /// Whether the reader uses a snapshot. If it rests there, it does not from now on.
    fn keeps(&self, snapshot: u64) -> bool {
        self.names(snapshot) && !self.has_lapsed()
    }

    fn has_lapsed(&self) -> bool {
        readers::has_lapsed(&self.pages.words(8 * READERS, 1)[0])
    }

    fn names(&self, snapshot: u64) -> bool {
        self.pages.words(8 * PIN, 1)[0].load(Ordering::SeqCst) == snapshot
    }
}

struct State {
    published: Arc<Published>,
    marks: Arc<Marks>,
    pins: Vec<Pin>,
    /// There are no marks for the last pages of the file: readers have to begin anew.
    outgrown: bool,
}

/// The readers of a published snapshot in this process.
pub(super) struct Readership {
    /// The count of changes when it was made.
    made_at: u64,
    /// Those of each that took it.
    each: Vec<Arc<Readers>>,
}

/// The publishing of one file.
#[derive(Default)]
pub(super) struct Publishing {
    /// Changes while the gate is closed.
    is_on: AtomicBool,
    state: Mutex<Option<State>>,
    last_id: AtomicU64,
}

impl Publishing {
    #[inline(always)]
    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    fn memory(&self) -> Option<Arc<Published>> {
        lock(&self.state).as_ref().map(|state| Arc::clone(&state.published))
    }

    /// No reader begins with a published snapshot any more: the file is about to be closed, or the process to end.
    pub(super) fn end(&self) {
        if let Some(state) = &*lock(&self.state) {
            state.published.set_current(None);
        }
    }

    pub(super) fn leave(&self, id: u64) {
        if let Some(state) = &mut *lock(&self.state) {
            state.pins.retain(|pin| pin.id != id);
        }
    }

    /// The processes that name a snapshot as the one that they use.
    pub(super) fn processes(&self, snapshot: u64) -> Vec<u32> {
        let state = lock(&self.state);
        let pins = state.iter().flat_map(|state| &state.pins);
        pins.filter(|pin| pin.names(snapshot)).map(|pin| pin.process).collect()
    }
}

impl<E: Capture, M: Medium> WithSnapshots<E, M> {
    /// Lets a reader in another process use published snapshots, the last one first. `None` if this file has none.
    pub(super) fn subscribe_reader(&self, process: u32, pages: &Arc<SharedPages>) -> Result<Option<Subscription>> {
        self.ours()?;
        if !self.publishes {
            return Ok(None);
        }
        let _closed = self.close_gate()?;
        if !self.publishing.is_on() {
            let is_first = lock(&self.held).snapshots.is_empty();
            let Some(marks) = self.marks.for_reader(&self.path, self.engine.len(), is_first) else { return Ok(None) };
            let Ok(published) = Published::create().map(Arc::new) else { return Ok(None) };
            *lock(&self.publishing.state) = Some(State { published, marks, pins: Vec::new(), outgrown: false });
            self.publishing.is_on.store(true, Ordering::Release);
            if let Err(error) = self.publish() {
                self.stop_publishing();
                return Err(error);
            }
        }
        let held = lock(&self.held);
        let taken = held.published.and_then(|number| held.snapshots.get(&number)?.taken);
        let mut state = lock(&self.publishing.state);
        let (Some(taken), Some(state)) = (taken, state.as_mut().filter(|state| !state.outgrown)) else {
            return Ok(None);
        };
        let words = pages.words(0, PAGE / 8);
        words[READERS].store(1, Ordering::SeqCst);
        words[PIN].store(taken.snapshot, Ordering::SeqCst);
        let id = self.publishing.last_id.fetch_add(1, Ordering::Relaxed);
        state.pins.push(Pin { id, process, pages: Arc::clone(pages) });
        let (marks, published) = (Arc::clone(&state.marks), Arc::clone(&state.published));
        Ok(Some(Subscription { taken, marks, published, id }))
    }

    /// Writes while each commit is published: alone, since the end of the write is a snapshot.
    #[cold]
    pub(super) fn write_published(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let _closed = self.close_gate()?;
        let has_readers = lock(&self.publishing.state).as_ref().is_some_and(|state| !state.pins.is_empty());
        if !has_readers {
            self.stop_publishing();
        }
        let Some(published) = self.publishing.memory() else { return self.write_inside(pieces) };
        self.engine.writable()?;
        let mut pages: Vec<u64> = pages_of(pieces).take(MOST_PAGES + 1).collect();
        pages.dedup();
        let versions = pages.len() <= MOST_PAGES;
        let mut kept = versions;
        for page in pages.iter().copied().filter(|_| versions) {
            kept &= published.has(page) || self.add_version(&published, page, None);
        }
        if !kept {
            published.clear();
        }
        let written = self.write_pages(pieces);
        // Before a snapshot has it.
        self.changes.note();
        if written.is_err() {
            // The readers of the last snapshot have its pages brought.
            self.mark_all(self.images.newest());
            published.clear();
        }
        if self
            .publish_with(|number| {
                let has_all = kept && pages.iter().all(|page| self.add_version(&published, *page, Some(number)));
                if !has_all {
                    published.clear();
                }
            })
            .is_err()
        {
            self.stop_publishing();
        }
        self.lapse_resting();
        written
    }

    /// Publishes after a change of the length. The gate is closed.
    pub(super) fn publish_len(&self) {
        if !self.publishing.is_on() {
            return;
        }
        if let Some(state) = &mut *lock(&self.publishing.state)
            && !state.marks.suffice_for(self.engine.len())
        {
            state.outgrown = true;
        }
        if self.publish().is_err() {
            self.stop_publishing();
        }
    }

    /// Takes all versions out before a change that adds none. The gate is closed.
    pub(super) fn forget_versions(&self) {
        if let Some(published) = self.publishing.memory() {
            published.clear();
        }
    }

    /// Adds the bytes that a page has now: those that it has from a snapshot on, or has had since its last change.
    /// False if they cannot be added.
    fn add_version(&self, published: &Published, page: u64, from: Option<u64>) -> bool {
        let at = page * PAGE as u64;
        let within = self.engine.len().saturating_sub(at).min(PAGE as u64) as usize;
        let changed = || {
            let state = lock(&self.publishing.state);
            let marks = &state.as_ref()?.marks;
            let mark = marks.mark(page)?.load(Ordering::Relaxed).max(marks.floor().load(Ordering::Relaxed));
            mark.checked_add(1)
        };
        let Some(from) = from.or_else(changed) else { return false };
        let mut bytes = [0; PAGE];
        let there = &mut bytes[..within];
        let is_read = self.engine.try_read(at, there) || self.engine.read(at, there).is_ok();
        is_read && published.add(page, from, &bytes).is_ok()
    }

    fn publish(&self) -> Result<()> {
        self.publish_with(|_| ())
    }

    /// Makes a snapshot of what is committed, and publishes it once `add` has added the versions that it needs. The
    /// gate is closed.
    fn publish_with(&self, add: impl FnOnce(u64)) -> Result<()> {
        let captured = self.engine.capture(&mut |_, _| ())?;
        let snapshot = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let taken = Taken { snapshot, captured, since: SystemTime::now(), process: std::process::id() };
        // Before anybody finds it: the next write keeps pages for it.
        {
            let mut held = lock(&self.held);
            let published = Some(Readership { made_at: self.changes.count(), each: Vec::new() });
            held.snapshots.insert(snapshot, Holding { taken: Some(taken), published, ..Holding::default() });
            held.published = Some(snapshot);
            self.note(&held);
        }
        add(snapshot);
        if let Some(state) = &mut *lock(&self.publishing.state) {
            let current =
                Current { number: snapshot, commit: captured.commit, len: captured.len, since: to_word(taken.since) };
            state.published.set_current(Some(current).filter(|_| !state.outgrown));
            if state.outgrown {
                // Who rests begins anew, and its pin goes.
                state.pins.retain(|pin| !pin.has_lapsed());
            }
        }
        self.retire();
        Ok(())
    }

    /// Gives up the published snapshots that nobody uses, but for the last one.
    pub(super) fn retire(&self) {
        let mut held = lock(&self.held);
        let state = lock(&self.publishing.state);
        let is_pinned = |number| state.iter().flat_map(|state| &state.pins).any(|pin| pin.keeps(number));
        let last = held.published;
        held.snapshots.retain(|number, holding| {
            // A reader of this process that rests does not go on with one that is not the last.
            let Some(here) = &holding.published else { return true };
            Some(*number) == last || is_pinned(*number) || here.each.iter().any(|readers| !readers.has_lapsed())
        });
        self.note(&held);
    }

    /// Ends publishing. The gate is closed, and no reader is left, or those that are find that their snapshot ended.
    fn stop_publishing(&self) {
        let state = lock(&self.publishing.state).take();
        self.publishing.is_on.store(false, Ordering::Release);
        if let Some(state) = state {
            state.published.set_current(None);
        }
        lock(&self.held).published = None;
        self.retire();
    }

    /// The last published snapshot, for a reader in this process, which waits for no write.
    pub(super) fn take_published(&self, held: &mut Held) -> Option<(Taken, Option<Arc<Readers>>)> {
        let holding = held.snapshots.get_mut(&held.published?)?;
        let taken = holding.taken.filter(|_| holding.ended.is_none())?;
        let here = holding.published.as_mut()?;
        let readers = Readers::since(&self.changes, here.made_at);
        here.each.push(Arc::clone(&readers));
        Some((taken, Some(readers)))
    }

    /// Gives up what [`take_published`](Self::take_published) took. False if the snapshot is none of these.
    pub(super) fn release_published(&self, snapshot: u64, readers: Option<&Arc<Readers>>) -> bool {
        let mut held = lock(&self.held);
        let here = held.snapshots.get_mut(&snapshot).and_then(|holding| holding.published.as_mut());
        let Some(here) = here else { return false };
        here.each.retain(|own| readers.is_none_or(|readers| !Arc::ptr_eq(own, readers)));
        drop(held);
        self.retire();
        true
    }

    /// A held snapshot for each that holds it.
    pub(super) fn holders(&self, holding: &Holding) -> Vec<Taken> {
        let Some(taken) = holding.taken else { return Vec::new() };
        let Some(here) = &holding.published else { return vec![taken] };
        let elsewhere = self.publishing.processes(taken.snapshot).into_iter();
        elsewhere.chain(here.each.iter().map(|_| taken.process)).map(|process| Taken { process, ..taken }).collect()
    }
}
