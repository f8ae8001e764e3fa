//! Publishing: each commit becomes a snapshot by itself, which readers in other processes find in
//! [shared memory](super::published).
//!
//! It begins when a process that shares the file asks for a snapshot, or another reader for its second one, and ends
//! with the first write after the last such reader has gone. Only a file whose writes
//! [come one at a time](crate::Options::one_writer) and are durable when they return is published: each write keeps the
//! others out, since its end is a snapshot.
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
//! 5. A further reader begins with the snapshot that CURRENT names, which is held for as long as it is named, and waits
//!    for no write: the versions that a write is adding belong to a later snapshot.

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

/// Pages at the beginning of a file that are looked at when publishing begins.
const MOST_SEARCHED: u64 = 1 << 18;

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
        // A write under way may be waiting for a flush.
        if self.publishing.is_on()
            && let Some(subscription) = self.add_reader(process, pages)
        {
            return Ok(Some(subscription));
        }
        let _closed = self.close_gate()?;
        if !self.publishing.is_on() && !self.begin_publishing()? {
            return Ok(None);
        }
        Ok(self.add_reader(process, pages))
    }

    /// Begins to publish. False if that cannot be. The gate is closed.
    fn begin_publishing(&self) -> Result<bool> {
        let is_first = lock(&self.held).snapshots.is_empty();
        let Some(marks) = self.marks.for_reader(&self.path, self.engine.len(), is_first) else { return Ok(false) };
        let Ok(published) = Published::create(self.images.memory_limit() / 2).map(Arc::new) else { return Ok(false) };
        *lock(&self.publishing.state) = Some(State { published, marks, pins: Vec::new(), outgrown: false });
        self.publishing.is_on.store(true, Ordering::Release);
        if let Err(error) = self.publish() {
            self.stop_publishing();
            return Err(error);
        }
        self.add_elsewhere();
        Ok(true)
    }

    /// Adds a reader, which begins with the snapshot of the last commit that is published. `None` if there is none, or
    /// the file has outgrown the marks.
    fn add_reader(&self, process: u32, pages: &Arc<SharedPages>) -> Option<Subscription> {
        let held = lock(&self.held);
        let mut state = lock(&self.publishing.state);
        let state = state.as_mut().filter(|state| !state.outgrown)?;
        let taken = held.snapshots.get(&state.published.current()?.number)?.taken?;
        let words = pages.words(0, PAGE / 8);
        words[READERS].store(1, Ordering::SeqCst);
        words[PIN].store(taken.snapshot, Ordering::SeqCst);
        let id = self.publishing.last_id.fetch_add(1, Ordering::Relaxed);
        state.pins.push(Pin { id, process, pages: Arc::clone(pages) });
        let (marks, published) = (Arc::clone(&state.marks), Arc::clone(&state.published));
        Some(Subscription { taken, marks, published, id })
    }

    /// Lets no reader have to ask where a page is: adds versions of pages that the data file does not have, and marks
    /// them. The gate is closed.
    fn add_elsewhere(&self) {
        let Some(published) = self.publishing.memory() else { return };
        let since = self.images.newest();
        let pages = self.engine.len().div_ceil(PAGE as u64).min(MOST_SEARCHED);
        let (mut left, mut rest) = (published.versions() / 2, 0..pages);
        while let Some(found) = self.engine.elsewhere(rest.clone()) {
            let found = found.start..found.end.min(rest.end);
            for page in found.clone() {
                // Before the mark, by which it would be of later snapshots only.
                left = if left != 0 && self.add_version(&published, page, None) { left - 1 } else { 0 };
            }
            self.mark(found.clone());
            rest.start = found.end;
        }
        published.set_home(since, pages);
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
                // A reader that rests begins anew, and its pin goes.
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
        // A reader that begins finds the one that CURRENT names, which is behind the last one while versions are added.
        let named = state.as_ref().and_then(|state| state.published.current()).map(|current| current.number);
        let lasts = [held.published, named];
        held.snapshots.retain(|number, holding| {
            // A reader of this process that rests does not go on with one that is not the last.
            let Some(here) = &holding.published else { return true };
            let is_read_here = || here.each.iter().any(|readers| !readers.has_lapsed());
            lasts.contains(&Some(*number)) || is_pinned(*number) || is_read_here()
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

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use super::super::Captured;
    use super::*;
    use crate::engine::snapshot::SnapshotService;
    use crate::engine::{Close, Engine, Info};
    use crate::options::{Durability, Options};
    use crate::storage::{Identity, PageCache};

    const LEN: usize = 4 * PAGE;

    /// An engine in memory whose writes wait for a flush, once they have stored their bytes.
    struct Slow {
        bytes: Mutex<Vec<u8>>,
        flush: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    }

    impl Engine for Slow {
        fn path(&self) -> &Path {
            Path::new("/a/file")
        }
        fn len(&self) -> u64 {
            LEN as u64
        }
        fn identity(&self) -> Result<Identity> {
            Ok(Identity { device: 0, inode: 0, generation: 0, birth: 0 })
        }
        fn writable(&self) -> Result<()> {
            Ok(())
        }
        fn read(&self, offset: u64, dst: &mut [u8]) -> Result<()> {
            dst.copy_from_slice(&lock(&self.bytes)[offset as usize..][..dst.len()]);
            Ok(())
        }
        fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
            for piece in pieces {
                lock(&self.bytes)[piece.offset as usize..][..piece.bytes.len()].copy_from_slice(piece.bytes);
            }
            if let Some((begun, flushed)) = lock(&self.flush).take() {
                begun.send(()).unwrap();
                flushed.recv().unwrap();
            }
            Ok(())
        }
        fn deploy(&self, _: u64, _: u64) -> Result<()> {
            Ok(())
        }
        fn sync(&self) -> Result<u64> {
            Ok(1)
        }
        fn resize(&self, _: u64) -> Result<()> {
            Ok(())
        }
        fn reclaim(&self) -> Result<u64> {
            Ok(0)
        }
        fn info(&self) -> Info {
            unreachable!("nobody asks for it")
        }
        fn accepts(&self, _: &Options) -> bool {
            true
        }
        fn close(&self, _: Close) -> Result<()> {
            Ok(())
        }
        fn settle(&self) -> Result<()> {
            Ok(())
        }
    }

    impl Capture for Slow {
        fn capture(&self, _: &mut dyn FnMut(u64, &[u8; PAGE])) -> Result<Captured> {
            Ok(Captured { commit: 1, len: LEN as u64 })
        }
        fn data_from(&self, offset: u64) -> Result<Option<std::ops::Range<u64>>> {
            Ok((offset < LEN as u64).then_some(offset..LEN as u64))
        }
    }

    fn file() -> WithSnapshots<Slow, PageCache> {
        let options = Options::new().one_writer(true).durability(Durability::PerWrite);
        let engine = Slow { bytes: Mutex::new(vec![0; LEN]), flush: Mutex::default() };
        WithSnapshots::new(engine, Arc::new(PageCache::new()), &options).unwrap()
    }

    fn subscribe(file: &WithSnapshots<Slow, PageCache>) -> Subscription {
        let pages = Arc::new(SharedPages::create("untorn-test", PAGE as u64, PAGE).unwrap());
        file.subscribe_reader(1, &pages).unwrap().expect("it is published")
    }

    /// The first byte of a page, as a reader finds it: in the versions, or by asking.
    fn byte(file: &WithSnapshots<Slow, PageCache>, reader: &Subscription, page: u64) -> u8 {
        let mut byte = [0xee];
        if !reader.published.read(page, reader.taken.snapshot, 0, &mut byte) {
            SnapshotService::read(file, &reader.taken, page * PAGE as u64, &mut byte).unwrap();
        }
        byte[0]
    }

    #[test]
    fn a_reader_begins_while_a_write_is_being_flushed() {
        let file = &file();
        let first = subscribe(file);
        let ((begun, has_begun), (flush, flushed)) = (channel(), channel());
        *lock(&file.engine.flush) = Some((begun, flushed));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| file.write(&[Piece { offset: PAGE as u64, bytes: &[7; PAGE] }]));
            has_begun.recv().unwrap();
            let (came, has_come) = channel();
            scope.spawn(move || {
                let second = subscribe(file);
                came.send((second.taken.snapshot, byte(file, &second, 1))).unwrap();
            });
            let second = has_come.recv_timeout(Duration::from_secs(20));
            flush.send(()).unwrap();
            assert_eq!(second, Ok((first.taken.snapshot, 0)), "it waited for the flush, or read what is not committed");
            writer.join().unwrap().unwrap();
        });
        let third = subscribe(file);
        assert!(third.taken.snapshot > first.taken.snapshot);
        assert_eq!([&first, &third].map(|reader| byte(file, reader, 1)), [0, 7]);
    }

    /// The versions of a commit are added before anybody begins with its snapshot.
    #[test]
    fn a_reader_begins_with_a_snapshot_that_is_complete() {
        let file = Arc::new(file());
        let first = subscribe(&file);
        let closed = file.close_gate().unwrap();
        let add = |number| {
            let (came, has_come) = channel();
            let file = Arc::clone(&file);
            std::thread::spawn(move || {
                // A reader may go at any time, and take a snapshot with it.
                file.unsubscribe(first.id);
                let began = subscribe(&file).taken.snapshot;
                came.send((began, file.held_as(began).is_some())).unwrap();
            });
            let began = has_come.recv_timeout(Duration::from_secs(20));
            assert_eq!(began, Ok((first.taken.snapshot, true)), "{number} is not complete");
        };
        file.publish_with(add).unwrap();
        drop(closed);
        assert!(subscribe(&file).taken.snapshot > first.taken.snapshot);
    }

    #[test]
    fn pages_outside_the_data_file_have_versions_from_the_start() {
        let file = file();
        file.write(&[Piece { offset: 2 * PAGE as u64, bytes: &[9; PAGE] }]).unwrap();
        let reader = subscribe(&file);
        let mut byte = [0];
        assert!((0..4).all(|page| reader.published.read(page, reader.taken.snapshot, 0, &mut byte)));
        assert!(reader.published.read(2, reader.taken.snapshot, 5, &mut byte) && byte == [9]);
        // A reader that goes by the marks alone takes them from there.
        let mark = reader.marks.mark(2).unwrap().load(Ordering::Relaxed);
        assert_eq!((reader.published.home(), mark), ((reader.taken.snapshot, 4), reader.taken.snapshot));
    }
}
