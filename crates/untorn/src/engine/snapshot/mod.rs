//! Snapshots: any engine's file as it was at one commit, for as long as somebody holds it.
//!
//! [`WithSnapshots`] stands around an engine. Taking a snapshot copies nothing but what the open epoch has changed, as
//! the last commit has it. From then on, a write first copies each page that it changes, as it is: its *pre-image*
//! ([`preimages`]). A reader of the snapshot takes a page's pre-image if there is one, and else the page itself.
//!
//! # Invariants
//!
//! 1. A write enters the gate before it looks whether a snapshot is held, and is inside until its last store. A
//!    snapshot is taken while the gate is closed. So each write has ended before, or finds the snapshot.
//! 2. A page that the open epoch has changed when a snapshot is taken gets its pre-image then, from the engine, which
//!    knows what the last commit has there. Any other page is at that commit, until a write changes it.
//! 3. A write adds the pre-images of its pages before its first store. A reader that finds no pre-image reads the page
//!    and looks again: if there is none still, no store came before the end of its read.
//! 4. A pre-image that can't be kept ends the snapshots that need it, before the write goes on; never the write. A
//!    reader looks after its last copy whether its snapshot has ended.
//! 5. While no snapshot is held, a write pays for entering the gate and for one load.
//! 6. A range is a hole for a snapshot if the engine says that it holds zeros now, and if afterwards no page of it has
//!    a pre-image: by invariant 3 no store came before.
//! 7. A reader in another process may copy a page out of the data file by itself, as long as no mark says that the page
//!    has changed ([`marks`]). A write raises the marks of its pages before its first store, as invariant 3 has it of
//!    pre-images. Whatever ends snapshots, or takes pages from them otherwise, raises the mark of all pages first.
//! 8. A snapshot whose holder does not read for now ends with the next commit ([`readers`]).
//! 9. A file with one writer may make a snapshot of each commit by itself ([`publishing`]). Such a snapshot goes when
//!    it is not the last one and nobody uses it.
//! 10. A plain file that is open for reading has no lock that keeps writers away. The first read that finds the file
//!     changed ends the snapshot ([`Capture::unchanging`]).
//!
//! In a forked child every call fails before it takes a lock, which a thread of the parent may have held at the fork.
//!
//! Lock order: the gate, then the engine's own locks, then those of the pre-images.

mod handle;
pub(crate) mod holes;
mod map;
mod marks;
mod operations;
mod preimages;
mod published;
mod publishing;
mod readers;
pub(crate) mod remote;
mod service;
mod spill;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

pub use self::handle::{HeldSnapshots, Snapshot, SnapshotInfo};
pub use self::map::SnapshotMap;
pub(crate) use self::marks::Marks;
use self::marks::MarksOfFile;
pub(crate) use self::preimages::PAGE;
use self::preimages::{PreImages, lock};
pub(crate) use self::publishing::Subscription;
use self::publishing::{Publishing, Readership};
use self::readers::Changes;
pub(crate) use self::readers::{LapseElsewhere, Readers};
pub(crate) use self::service::{Capture, Captured, SnapshotService, Taken, Unchanging};
pub use self::view::ReaderView;
use super::layer::Layer;
use super::{Close, Piece};
use crate::error::{Error, Result};
use crate::options::{Durability, Options};
use crate::storage::{Medium, MediumClass};
use crate::sync::writer_gate::{Closed, WriterGate};
use crate::sys::incarnation;

/// The checks that a crash explorer or a test leaves out, as mutants.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A check: a write keeps the pre-images of its pages before it changes them.
        PRE_IMAGE = "snapshot.pre-image";
        /// A check: what the open epoch has changed is kept as the last commit has it when a snapshot is taken.
        OPEN_EPOCH = "snapshot.open-epoch";
        /// A check: a page is marked before it changes, for readers that copy it out of the data file by themselves.
        PAGE_MARK = "snapshot.page-mark";
    }
}

/// Two changes of a file within this time may leave the same times, by the kernel's coarse clock.
const GRAIN: Duration = Duration::from_millis(10);
const REST_ROUNDS: u32 = 20;

/// Slots of the gate: a further thread passes it more slowly.
const SLOTS: usize = 16;

/// The number of the last snapshot of this process. No two have the same number, also of different files, so that one
/// whose file was closed and opened again is not taken for a new one.
static LAST: AtomicU64 = AtomicU64::new(0);

#[derive(Default)]
struct Holding {
    /// `None` while it is being taken.
    taken: Option<Taken>,
    /// Why it ended, if it did.
    ended: Option<String>,
    /// What has to stay as it is for the snapshot to hold.
    unchanging: Option<Unchanging>,
    /// Who reads it in this process.
    readers: Option<Arc<Readers>>,
    /// The same for one that another process reads.
    elsewhere: Option<LapseElsewhere>,
    /// If it is a published one.
    published: Option<Readership>,
}

impl Holding {
    /// Ends the snapshot if nobody reads it. Without that it holds.
    fn lapse(&mut self) {
        // The next one takes its place.
        if self.published.is_some() {
            return;
        }
        let lapses = match &self.elsewhere {
            Some(lapse) => lapse(),
            None => self.readers.as_ref().is_some_and(|readers| readers.lapse()),
        };
        if lapses {
            self.ended.get_or_insert_with(|| "it rested while a commit was made; take a new snapshot".to_owned());
        }
    }
}

#[derive(Default)]
struct Held {
    snapshots: BTreeMap<u64, Holding>,
    /// The last one that was published, while commits are.
    published: Option<u64>,
}

impl Held {
    /// The snapshots that still need pre-images.
    fn numbers(&self) -> BTreeSet<u64> {
        self.snapshots.iter().filter(|(_, holding)| holding.ended.is_none()).map(|(number, _)| *number).collect()
    }

    /// The longest of them.
    fn longest(&self) -> u64 {
        let live = self.snapshots.values().filter(|holding| holding.ended.is_none());
        live.map(|holding| holding.taken.map_or(u64::MAX, |taken| taken.captured.len)).max().unwrap_or(0)
    }
}

/// An engine whose commits can be held.
pub(crate) struct WithSnapshots<E, M> {
    engine: E,
    medium: Arc<M>,
    path: PathBuf,
    gate: WriterGate,
    images: PreImages,
    held: Mutex<Held>,
    /// The longest length of a held snapshot.
    longest: AtomicU64,
    /// Those for readers that copy pages by themselves, once there was one.
    marks: MarksOfFile,
    changes: Arc<Changes>,
    publishing: Publishing,
    /// Whether commits may be published.
    publishes: bool,
    /// The process that opened the file.
    process: u64,
}

impl<E: Capture, M: Medium> WithSnapshots<E, M> {
    /// # Errors
    /// [`Error::Io`] if there is no memory.
    pub(crate) fn new(engine: E, medium: Arc<M>, options: &Options) -> Result<Self> {
        let path = engine.path().to_owned();
        let gate = WriterGate::new(SLOTS).map_err(|error| Error::io("reserve memory for", &path, error))?;
        // Beside a flush of a disk a locked instruction is nothing, and taking a snapshot then needs no system call.
        let flushes = options.durability == Some(Durability::PerWrite) && medium.class() == MediumClass::Block;
        let gate = if flushes { gate.entered_by_locked_instructions() } else { gate };
        let images = PreImages::new(&path, options.snapshot_memory);
        let (held, longest) = (Mutex::default(), AtomicU64::new(0));
        let (marks, changes, publishing) = (MarksOfFile::default(), Arc::default(), Publishing::default());
        let publishes = options.one_writer && options.durability == Some(Durability::PerWrite);
        Ok(WithSnapshots {
            engine,
            medium,
            path,
            gate,
            images,
            held,
            longest,
            marks,
            changes,
            publishing,
            publishes,
            process: incarnation(),
        })
    }

    /// Marks pages that are about to change. The caller is inside the gate.
    #[cold]
    fn mark(&self, pages: impl Iterator<Item = u64>) {
        if self.medium.makes_check(barriers::PAGE_MARK) {
            self.marks.note_change(pages, self.images.newest());
        }
    }

    /// Marks all pages for the snapshots up to one: their readers have to ask.
    fn mark_all(&self, snapshot: u64) {
        if self.medium.makes_check(barriers::PAGE_MARK) {
            self.marks.note_end(snapshot);
        }
    }

    /// Before another process may change the file: no reader of this one's snapshots copies a page by itself any more.
    fn end_readers(&self) {
        if self.ours().is_ok() {
            self.publishing.end();
            self.mark_all(u64::MAX);
        }
    }

    /// Keeps the pre-images of pages that are about to change, or those of them that are not zeros. The caller is
    /// inside the gate.
    #[cold]
    fn keep(&self, pages: impl Iterator<Item = u64>, zeros: bool) {
        let newest = self.images.newest();
        let longest = self.longest.load(Ordering::Acquire);
        let mut image = [0; PAGE];
        let mut keep = |page: u64| {
            let at = page * PAGE as u64;
            let within = (self.engine.len().saturating_sub(at) as usize).min(PAGE);
            // A write behind the end is refused, and what a shrink cuts off is kept by then.
            if within == 0 || at >= longest || self.images.has(page, newest) {
                return Ok(());
            }
            image[within..].fill(0);
            self.engine.read(at, &mut image[..within])?;
            if !zeros && image.iter().all(|byte| *byte == 0) {
                return Ok(());
            }
            self.images.add(page, newest, &image)
        };
        if self.medium.makes_check(barriers::PRE_IMAGE)
            && let Err(error) = { pages }.try_for_each(&mut keep)
        {
            self.end_all(&error);
        }
    }

    /// The newest snapshot, and the pages that it needs of those that a shrink to `len` cuts off; `None` if it needs
    /// none.
    fn cut_off(&self, len: u64) -> Option<(u64, Range<u64>)> {
        let newest = self.images.newest();
        let end = self.engine.len().min(self.longest.load(Ordering::Acquire));
        (newest != 0 && len < end).then(|| (newest, len / PAGE as u64..end.div_ceil(PAGE as u64)))
    }

    /// Keeps those of these pages that are not zeros. A page that is has a pre-image by the time that it changes, or is
    /// zeros until the shrink: that is what a [cut-off range](PreImages::note_cut_off) says.
    ///
    /// # Errors
    /// Why the file accepts no writes, if it needs any.
    fn keep_cut_off(&self, len: u64) -> Result<Option<(u64, Range<u64>)>> {
        let cut_off = self.cut_off(len);
        if let Some((_, pages)) = &cut_off {
            self.engine.writable()?;
            self.keep(pages.clone(), false);
        }
        Ok(cut_off)
    }

    /// Ends every held snapshot, for one of them lacks a pre-image.
    #[cold]
    fn end_all(&self, cause: &Error) {
        tracing::warn!(path = %self.path.display(), error = %cause, "cannot keep a page for the held snapshots; they \
                                                                     end");
        self.mark_all(self.images.newest());
        let mut held = lock(&self.held);
        for holding in held.snapshots.values_mut() {
            holding.ended.get_or_insert_with(|| cause.to_string());
        }
        self.note(&held);
    }

    /// Counts a change, which was made or failed, before anybody is told, and lapses the snapshots that rest.
    #[inline(always)]
    fn changed(&self) {
        self.changes.note();
        self.lapse_resting();
    }

    #[inline(always)]
    fn lapse_resting(&self) {
        if self.images.newest() != 0 && self.changes.any_rests.load(Ordering::SeqCst) {
            self.lapse();
        }
    }

    #[cold]
    fn lapse(&self) {
        let mut held = lock(&self.held);
        held.snapshots.values_mut().filter(|holding| holding.ended.is_none()).for_each(Holding::lapse);
        self.note(&held);
    }

    /// Notes which snapshots need pre-images from now on, and frees those that none needs.
    fn note(&self, held: &Held) {
        let numbers = held.numbers();
        self.longest.store(held.longest(), Ordering::Release);
        self.images.set_newest(numbers.last().copied().unwrap_or(0));
        self.images.sweep(&numbers);
        if numbers.is_empty() {
            self.changes.any_rests.store(false, Ordering::SeqCst);
        }
    }

    /// Keeps writes and changes of the length out.
    fn close_gate(&self) -> Result<Closed<'_>> {
        let closed = self.gate.close(|round| self.medium.relax(round));
        closed.map_err(|error| Error::io("wait for the writers of", &self.path, error))
    }

    /// # Errors
    /// [`Error::Forked`] in a child of the process that opened the file.
    fn ours(&self) -> Result<()> {
        if self.process == incarnation() { Ok(()) } else { Err(Error::Forked { path: self.path.clone() }) }
    }

    fn check_not_ended(&self, snapshot: u64) -> Result<()> {
        let ended = |cause: &str| Error::SnapshotEnded { path: self.path.clone(), cause: cause.to_owned() };
        let mut held = lock(&self.held);
        let Some(holding) = held.snapshots.get_mut(&snapshot) else { return Err(ended("it was released")) };
        if holding.ended.is_none() && holding.unchanging.is_some() && self.engine.unchanging()? != holding.unchanging {
            holding.ended = Some("another program opened or changed the file; take a new snapshot".to_owned());
        }
        holding.ended.as_deref().map_or(Ok(()), |cause| Err(ended(cause)))
    }

    /// The times of a file that other programs may change, once they are old enough for a change to make a difference.
    fn await_rest(&self) -> Result<Option<Unchanging>> {
        let mut seen = self.engine.unchanging()?;
        // A busy program changes the file once more, and the first read tells.
        for _ in 0..REST_ROUNDS {
            let Some(Unchanging { modified, changed, .. }) = seen else { break };
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos() as i128;
            if !(0..GRAIN.as_nanos() as i128).contains(&(now - modified.max(changed))) {
                break;
            }
            std::thread::sleep(GRAIN);
            seen = self.engine.unchanging()?;
        }
        Ok(seen)
    }

    /// Takes a snapshot, with marks or without.
    fn take_with(&self, process: u32, marked: bool) -> Result<(Taken, Option<Arc<Marks>>)> {
        self.ours()?;
        let unchanging = self.await_rest()?;
        let _closed = self.close_gate()?;
        let mut held = lock(&self.held);
        let snapshot = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let marks = if marked && unchanging.is_none() {
            self.marks.for_reader(&self.path, self.engine.len(), held.snapshots.is_empty())
        } else {
            None
        };
        // From here on pre-images count for it, those of the open epoch first.
        let readers = Some(Readers::new(&self.changes));
        held.snapshots.insert(snapshot, Holding { unchanging, readers, ..Holding::default() });
        self.note(&held);
        drop(held);
        let mut kept = Ok(());
        let mut keep = |page: u64, bytes: &[u8; PAGE]| {
            if kept.is_ok() && self.medium.makes_check(barriers::OPEN_EPOCH) {
                kept = self.images.add(page, snapshot, bytes);
            }
            if let Some(marks) = marks.as_ref().filter(|_| self.medium.makes_check(barriers::OPEN_EPOCH)) {
                marks.note_change(std::iter::once(page), snapshot);
            }
        };
        let captured = self.engine.capture(&mut keep).and_then(|captured| kept.map(|()| captured));
        let mut held = lock(&self.held);
        let taken = captured.map(|captured| Taken { snapshot, captured, since: SystemTime::now(), process });
        match (&taken, held.snapshots.get_mut(&snapshot)) {
            (Ok(taken), Some(holding)) => holding.taken = Some(*taken),
            _ => drop(held.snapshots.remove(&snapshot)),
        }
        self.note(&held);
        taken.map(|taken| (taken, marks))
    }

    /// Writes. The caller is inside the gate, or has closed it.
    #[inline(always)]
    fn write_inside(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let written = self.write_pages(pieces);
        self.changed();
        written
    }

    /// Writes, without counting it. The caller is inside the gate, or has closed it.
    #[inline(always)]
    fn write_pages(&self, pieces: &[Piece<'_>]) -> Result<()> {
        if self.images.newest() != 0 {
            self.engine.writable()?;
            self.mark(pages_of(pieces));
            self.keep(pages_of(pieces), true);
        }
        self.engine.write(pieces)
    }

    /// The part of one page that a snapshot has at `offset`.
    fn read_part(&self, snapshot: u64, offset: u64, dst: &mut [u8]) -> Result<()> {
        let (page, from) = (offset / PAGE as u64, (offset % PAGE as u64) as usize);
        if self.images.read(page, snapshot, from, dst)? {
            return Ok(());
        }
        let read = if self.engine.try_read(offset, dst) {
            Ok(())
        } else if self.images.read(page, snapshot, from, dst)? {
            // A write of the page is under way, and may be waiting for a flush.
            return Ok(());
        } else {
            self.engine.read(offset, dst)
        };
        if self.images.read(page, snapshot, from, dst)? { Ok(()) } else { read }
    }
}

impl<E, M> Drop for WithSnapshots<E, M> {
    fn drop(&mut self) {
        // The engine goes after this, and with it the lock that keeps other processes away. In a forked child the
        // marks are not there.
        if self.process == incarnation() {
            self.publishing.end();
            self.marks.note_end(u64::MAX);
        }
    }
}

/// The pages of pieces.
fn pages_of<'a>(pieces: &'a [Piece<'_>]) -> impl Iterator<Item = u64> + 'a {
    pieces.iter().flat_map(|piece| {
        let end = piece.offset.saturating_add(piece.bytes.len() as u64);
        piece.offset / PAGE as u64..end.div_ceil(PAGE as u64)
    })
}

impl<E: Capture, M: Medium> Layer for WithSnapshots<E, M> {
    type Within = E;

    fn within(&self) -> &E {
        &self.engine
    }

    #[inline]
    fn write(&self, pieces: &[Piece<'_>]) -> Result<()> {
        let inside = self.gate.enter(|round| self.medium.relax(round));
        if self.publishing.is_on() {
            drop(inside);
            return self.write_published(pieces);
        }
        self.write_inside(pieces)
    }

    fn sync(&self) -> Result<u64> {
        let synced = self.engine.sync();
        self.changed();
        synced
    }

    fn resize(&self, len: u64) -> Result<()> {
        // First beside other writers: it may be much.
        let kept = {
            let _inside = self.gate.enter(|round| self.medium.relax(round));
            self.keep_cut_off(len)?
        };
        // Alone: of two changes of the length, neither may take away what the other is about to keep.
        let _closed = self.close_gate()?;
        let cut_off = if kept == self.cut_off(len) { kept } else { self.keep_cut_off(len)? };
        if let Some((newest, _)) = cut_off {
            self.mark_all(newest);
        }
        if len < self.engine.len() {
            self.forget_versions();
        }
        if let Some((_, pages)) = cut_off.filter(|_| self.medium.makes_check(barriers::PRE_IMAGE)) {
            self.images.note_cut_off(pages);
        }
        let resized = self.engine.resize(len);
        self.changed();
        self.publish_len();
        resized
    }

    fn close(&self, how: Close) -> Result<()> {
        self.end_readers();
        self.engine.close(how)
    }

    fn settle(&self) -> Result<()> {
        self.end_readers();
        self.engine.settle()
    }

    fn snapshots(&self) -> Option<&dyn SnapshotService> {
        Some(self)
    }
}
