//! The state of one simulated machine: its files, its names, and what of both a crash may take back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use untorn::Result;
use untorn::testing::storage::{Barrier, LockKind, Mark, MediumClass};

use crate::block;
use crate::content::{Content, PAGE};
use crate::effects::{Effect, Log, What};
use crate::instant::{Hook, Instant, Step, Verdict};
use crate::medium::{EIO, ENOSPC, errno};
use crate::names::{Names, Node};
use crate::pmem::{self, Flush};
use crate::rng::mix;

/// A rule of the medium that a program broke without the medium noticing by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// A store on persistent memory to a place without space: on a full disk it would have been a SIGBUS.
    UnallocatedStore {
        /// The file, as it was opened.
        path: std::path::PathBuf,
        /// The first byte without space.
        offset: u64,
    },
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Fault::UnallocatedStore { path, offset } => {
                write!(f, "{}: store at offset {offset}, where no space is allocated", path.display())
            }
        }
    }
}

/// The cost of a machine's media operations, counted since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls of `fence`: on a block medium, flush rounds.
    pub fences: u64,
    /// Calls of `flush` on persistent memory.
    pub flushes: u64,
    /// Cache lines those covered.
    pub lines_flushed: u64,
    /// Calls of `sync`.
    pub syncs: u64,
    /// Calls of `sync_dir`.
    pub dir_syncs: u64,
    /// Bytes stored, through the cache or past it.
    pub bytes_written: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Reads of pages that cannot be read.
    pub bad_reads: u64,
    /// All calls, reads included.
    pub calls: u64,
}

/// One file, named or only open.
#[derive(Clone, Debug)]
pub(crate) struct Inode {
    pub(crate) generation: u64,
    pub(crate) birth: u64,
    /// The content that programs see.
    pub(crate) volatile: Content,
    /// The content that every crash keeps.
    pub(crate) durable: Content,
    /// The effects between the two.
    pub(crate) log: Log,
    pub(crate) flushes: Vec<Flush>,
    pub(crate) modified: u64,
    /// The modification time at the last `sync`.
    pub(crate) durable_modified: u64,
    /// The handles that hold the advisory lock.
    pub(crate) locks: BTreeMap<u64, LockKind>,
    pub(crate) handles: u32,
    /// Pages that cannot be read until they are written whole. A power cut does not remember them.
    pub(crate) bad: BTreeSet<u64>,
    /// The bytes of worn pages, to which the device writes nothing any more. A power cut does not remember them.
    pub(crate) worn: BTreeMap<u64, Vec<u8>>,
    /// Pages that the device does not take: a flush of one fails. A power cut does not remember them.
    pub(crate) refused: BTreeSet<u64>,
}

impl Inode {
    /// A file as it is after a boot: nothing pending.
    pub(crate) fn durable(content: Content, generation: u64, birth: u64, modified: u64) -> Self {
        Inode {
            generation,
            birth,
            durable: content.clone(),
            volatile: content,
            log: Log::default(),
            flushes: Vec::new(),
            modified,
            durable_modified: modified,
            locks: BTreeMap::new(),
            handles: 0,
            bad: BTreeSet::new(),
            worn: BTreeMap::new(),
            refused: BTreeSet::new(),
        }
    }

    /// Replaces the bytes of worn pages that were read from the cache by those of the device.
    pub(crate) fn show_worn(&self, offset: u64, dst: &mut [u8]) {
        let end = offset + dst.len() as u64;
        for (page, held) in self.worn.range(offset / PAGE..end.div_ceil(PAGE)) {
            let (from, to) = ((page * PAGE).max(offset), (page * PAGE + held.len() as u64).min(end));
            if from < to {
                let held = &held[(from - page * PAGE) as usize..(to - page * PAGE) as usize];
                dst[(from - offset) as usize..(to - offset) as usize].copy_from_slice(held);
            }
        }
    }

    /// Whether these bytes have any of a page that the device does not take.
    pub(crate) fn is_refused(&self, offset: u64, len: u64) -> bool {
        len > 0 && self.refused.range(offset / PAGE..(offset + len).div_ceil(PAGE)).next().is_some()
    }

    /// Whether the next flush comes upon such a page. It cannot be read afterwards, as it could not before.
    pub(crate) fn fails_to_flush(&mut self) -> bool {
        let dirty: BTreeSet<u64> = self.log.effects.iter().filter_map(|effect| effect.what.page()).collect();
        let failing: Vec<u64> = dirty.intersection(&self.refused).copied().collect();
        self.bad.extend(&failing);
        !failing.is_empty()
    }

    /// Whether these bytes have any of a page that cannot be read.
    pub(crate) fn is_bad(&self, offset: u64, len: u64) -> bool {
        len > 0 && self.bad.range(offset / PAGE..(offset + len).div_ceil(PAGE)).next().is_some()
    }

    /// Stores to these bytes: a page that is written whole can be read again. False if the store is to a part of a
    /// page that cannot be read.
    pub(crate) fn overwrite(&mut self, offset: u64, len: u64) -> bool {
        let end = offset + len;
        let file_len = self.volatile.len;
        let is_whole = |page: &u64| offset <= page * PAGE && ((page + 1) * PAGE <= end || end == file_len);
        let touched: Vec<u64> = self.bad.range(offset / PAGE..end.div_ceil(PAGE)).copied().collect();
        let all = touched.iter().all(is_whole);
        self.bad.retain(|page| !(touched.contains(page) && is_whole(page)));
        all
    }

    /// Makes everything durable except stores in another thread's write-combining buffers, which the kernel does not
    /// know.
    fn sync(&mut self, thread: u64) {
        let Inode { log, volatile, durable, .. } = self;
        log.settle(volatile, durable, |effect| !pmem::buffered_elsewhere(thread, effect));
        if log.effects.is_empty() && log.forgotten.is_empty() {
            *durable = volatile.clone();
        }
        self.durable_modified = self.modified;
        self.flushes.clear();
    }
}

/// Everything behind one machine's lock.
pub(crate) struct World {
    pub(crate) class: MediumClass,
    pub(crate) names: Names,
    pub(crate) files: BTreeMap<u64, Inode>,
    pub(crate) next_dir: u64,
    pub(crate) next_handle: u64,
    /// Counts calls; also the clock.
    pub(crate) clock: u64,
    /// The time at which the machine was started.
    pub(crate) booted: u64,
    /// Grows whenever the set of crash images may have changed.
    pub(crate) version: u64,
    pub(crate) muted: Option<Barrier>,
    /// Barriers passed since the start.
    pub(crate) reached: Vec<Barrier>,
    pub(crate) counters: Counters,
    pub(crate) faults: Vec<Fault>,
    pub(crate) hook: Option<Hook>,
    /// Pages that all files together may have.
    pub(crate) capacity: u64,
    /// Whether a new file, or a new mark, was refused for that.
    pub(crate) refused_new: bool,
    /// Whether files have marks and notes.
    pub(crate) has_attributes: bool,
}

impl World {
    pub(crate) fn new(class: MediumClass) -> Self {
        World {
            class,
            names: Names::default(),
            files: BTreeMap::new(),
            next_dir: 1,
            next_handle: 1,
            clock: 1,
            booted: 1,
            version: 0,
            muted: None,
            reached: Vec::new(),
            counters: Counters::default(),
            faults: Vec::new(),
            hook: None,
            capacity: u64::MAX,
            refused_new: false,
            has_attributes: true,
        }
    }

    /// Pages that have space now.
    pub(crate) fn used(&self) -> u64 {
        self.files.values().map(|inode| inode.volatile.allocated()).sum()
    }

    /// ENOSPC if a range lacks more space than the disk has.
    pub(crate) fn has_space(&mut self, path: &Path, number: u64, offset: u64, len: u64) -> Result<()> {
        if self.capacity == u64::MAX {
            return Ok(());
        }
        let lacking = self.inode(number).volatile.lacking(offset, len);
        let fits = lacking == 0 || self.used() + lacking <= self.capacity;
        if fits { Ok(()) } else { Err(errno("give space to", path, ENOSPC)) }
    }

    /// ENOSPC if the disk is full.
    pub(crate) fn has_space_for_new(&mut self, path: &Path) -> Result<()> {
        let fits = self.capacity == u64::MAX || self.used() < self.capacity;
        self.refused_new |= !fits;
        if fits { Ok(()) } else { Err(errno("make something new in", path, ENOSPC)) }
    }

    /// Called at the start of every call: ticks, and shows the hook the state before the call has any effect.
    pub(crate) fn before(&mut self, step: Step, barrier: Option<Barrier>, path: &Path) -> Verdict {
        self.clock += 1;
        self.counters.calls += 1;
        let Some(mut hook) = self.hook.take() else { return Verdict::Allow };
        let verdict = hook(&Instant { step, barrier, path, world: self });
        self.hook = Some(hook);
        verdict
    }

    /// Notes that a barrier was passed. True if it takes effect, false if it is muted.
    pub(crate) fn passes(&mut self, barrier: Barrier) -> bool {
        let known = self.reached.iter().any(|seen| std::ptr::eq(seen.name(), barrier.name()));
        if !known {
            self.reached.push(barrier);
        }
        self.muted != Some(barrier)
    }

    pub(crate) fn inode(&mut self, number: u64) -> &mut Inode {
        self.files.get_mut(&number).expect("an open handle keeps its file in the table")
    }

    /// A new file under the lowest free number, as file systems do: numbers are reused.
    pub(crate) fn add_file(&mut self, len: u64) -> u64 {
        let number = (1..).find(|number| !self.files.contains_key(number)).expect("not all numbers are taken");
        let mut inode = Inode::durable(Content::hole(0), self.clock, self.clock, self.clock);
        if len > 0 {
            inode.volatile.set_len(len);
            inode.log.push(self.clock, What::SetLen { to: len });
        }
        self.files.insert(number, inode);
        number
    }

    /// Gives a file another inode number and time of birth, and makes everything durable: the machine after a backup
    /// was restored. No file is open.
    pub(crate) fn restore(&mut self, path: &Path) {
        self.names.durable = self.names.volatile.clone();
        self.names.log.clear();
        for inode in self.files.values_mut() {
            inode.durable = inode.volatile.clone();
            inode.log = Log::default();
            inode.flushes.clear();
            inode.durable_modified = inode.modified;
        }
        self.collect();
        let number = (1..).find(|number| !self.files.contains_key(number)).expect("not all numbers are taken");
        let Some(Node::File(old)) = self.names.volatile.find(path) else { return };
        if let Some(mut inode) = self.files.remove(&old) {
            self.clock += 1;
            (inode.generation, inode.birth) = (self.clock, self.clock);
            self.files.insert(number, inode);
        }
        self.names.renumber(path, number);
        self.version += 1;
    }

    /// Drops files that have no name in any view and no handle.
    pub(crate) fn collect(&mut self) {
        let names = &self.names;
        self.files.retain(|&number, inode| inode.handles > 0 || names.mentions(number));
    }

    pub(crate) fn store(&mut self, number: u64, thread: u64, cached: bool, offset: u64, src: &[u8]) -> Option<u64> {
        let (class, call) = (self.class, self.clock);
        self.counters.bytes_written += src.len() as u64;
        self.version += 1;
        let inode = self.inode(number);
        inode.modified = call;
        let mut hole = None;
        match class {
            MediumClass::PersistentMemory => {
                hole = inode.volatile.unallocated(offset, src.len() as u64);
                pmem::push(&mut inode.log, call, thread, cached, offset, src);
            }
            MediumClass::Block => {
                block::redirty(&mut inode.log, call, &inode.volatile, offset, src.len() as u64);
                block::push(&mut inode.log, call, offset, src);
            }
        }
        inode.volatile.write(offset, src);
        hole
    }

    pub(crate) fn flush(&mut self, number: u64, thread: u64, barrier: Barrier, offset: u64, len: u64) {
        let effective = self.passes(barrier);
        if self.class == MediumClass::Block {
            return;
        }
        let call = self.clock;
        let Some(flush) = pmem::flush(thread, call, offset, len) else { return };
        self.counters.flushes += 1;
        self.counters.lines_flushed += flush.lines();
        let inode = self.inode(number);
        if effective {
            inode.flushes.push(flush);
        } else {
            inode.log.mark_stale(|effect| pmem::flushes(&flush, effect));
        }
    }

    pub(crate) fn fence(&mut self, thread: u64, barrier: Barrier, numbers: &[u64]) {
        let effective = self.passes(barrier);
        self.counters.fences += 1;
        let class = self.class;
        for &number in numbers {
            let inode = self.inode(number);
            let Inode { log, flushes, volatile, durable, .. } = inode;
            let chosen = |effect: &Effect| match class {
                MediumClass::PersistentMemory => pmem::fences(thread, flushes, effect),
                MediumClass::Block => block::flushed(effect),
            };
            if !effective {
                log.mark_stale(chosen);
                continue;
            }
            let changed = log.settle(volatile, durable, chosen);
            pmem::forget(thread, flushes);
            self.version += u64::from(changed);
        }
    }

    pub(crate) fn sync(&mut self, number: u64, thread: u64, barrier: Barrier) {
        let effective = self.passes(barrier);
        self.counters.syncs += 1;
        let inode = self.inode(number);
        if !effective {
            inode.log.mark_stale(|effect| !pmem::buffered_elsewhere(thread, effect));
        } else if !inode.log.effects.is_empty() || inode.modified != inode.durable_modified {
            inode.sync(thread);
            self.version += 1;
        }
    }

    /// Flushes these files, unless the verdict or the device lets that fail.
    pub(crate) fn flush_files(
        &mut self,
        verdict: Verdict,
        path: &Path,
        numbers: &[u64],
        flush: impl FnOnce(&mut Self),
    ) -> Result<()> {
        match verdict {
            Verdict::Allow if numbers.iter().any(|number| self.inode(*number).fails_to_flush()) => {
                self.lose_dirty(numbers, 0);
                return Err(errno("flush", path, EIO));
            }
            Verdict::Allow => flush(self),
            Verdict::LoseDirty { seed, .. } => self.lose_dirty(numbers, seed),
            _ => {}
        }
        verdict.plain()
    }

    /// A failed flush of these files.
    fn lose_dirty(&mut self, numbers: &[u64], seed: u64) {
        if self.class == MediumClass::PersistentMemory {
            return;
        }
        self.version += 1;
        for &number in numbers {
            let Inode { log, volatile, durable, .. } = self.inode(number);
            block::lose(log, volatile, durable, mix(seed ^ mix(number)));
        }
    }

    pub(crate) fn distrust_cache(&mut self, number: u64, barrier: Barrier, offset: u64, len: u64) {
        // If nothing was forgotten, as always on persistent memory, a mutant leaves nothing undone.
        if self.inode(number).log.forgotten.is_empty() || !self.passes(barrier) {
            return;
        }
        let call = self.clock;
        let inode = self.inode(number);
        let Inode { log, volatile, durable, .. } = inode;
        if block::distrust(log, call, volatile, durable, offset, len) {
            // The bytes that stayed were written again and made durable, and so was the file's time.
            inode.modified = call;
            inode.durable_modified = call;
            self.version += 1;
        }
    }

    pub(crate) fn sync_dir(&mut self, dir: u64, barrier: Barrier) {
        let effective = self.passes(barrier);
        self.counters.dir_syncs += 1;
        if !effective {
            self.names.mark_stale(dir);
        } else if self.names.sync(dir) {
            self.version += 1;
            self.collect();
        }
    }

    /// The streaming stores of a thread leave its buffers: they are no more durable than before, but from now on any
    /// thread's fence covers them.
    pub(crate) fn order(&mut self, thread: u64) {
        for inode in self.files.values_mut() {
            pmem::order(&mut inode.log, thread);
        }
    }

    /// Sixteen bytes that follow from the machine's history, so that a run can be repeated, and that no other call on
    /// this machine gets, for the clock never stands still or goes back.
    pub(crate) fn unique(&mut self) -> [u8; 16] {
        self.clock += 1;
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&mix(self.clock).to_le_bytes());
        bytes[8..].copy_from_slice(&mix(!self.clock).to_le_bytes());
        bytes
    }

    /// A change of a file's metadata: seen at once, durable at the next `sync`.
    pub(crate) fn change(&mut self, number: u64, what: What) {
        let call = self.clock;
        self.version += 1;
        let inode = self.inode(number);
        match what {
            What::Punch { at, len } => block::cut_out(&mut inode.log, call, &inode.volatile, at, len),
            What::SetLen { to } => block::cut_out(&mut inode.log, call, &inode.volatile, to, u64::MAX),
            _ => {}
        }
        what.apply(&mut inode.volatile);
        if !matches!(what, What::Mark(_) | What::Note(_) | What::Allocate { .. }) {
            inode.modified = call;
        }
        inode.log.push(call, what);
    }

    pub(crate) fn set_mark(&mut self, number: u64, mark: Option<Mark>) {
        if self.inode(number).volatile.mark != mark {
            self.change(number, What::Mark(mark));
        }
    }

    /// Puts a durable file with this content in place, without passing any barrier: the world before the test.
    pub(crate) fn install(&mut self, path: &Path, content: Content) {
        let number = self.add_file(0);
        let clock = self.clock;
        *self.inode(number) = Inode::durable(content, clock, clock, clock);
        let place = self.names.volatile.locate(path).expect("the file is put into a directory that exists");
        let dir = place.dir;
        self.names.change(clock, vec![(place, Some(Node::File(number)))]);
        self.names.sync(dir);
        self.version += 1;
    }

    /// The same machine after every process was killed at this instant, with no power cut: programs see what they
    /// saw, locks are free, and pending effects stay pending.
    pub(crate) fn end_processes(&mut self) {
        for inode in self.files.values_mut() {
            inode.locks.clear();
            inode.handles = 0;
            let Inode { log, flushes, volatile, durable, .. } = inode;
            if self.class == MediumClass::PersistentMemory {
                log.settle(volatile, durable, |effect| pmem::drained(flushes, effect));
            }
            flushes.clear();
        }
        self.version += 1;
        self.collect();
    }
}
