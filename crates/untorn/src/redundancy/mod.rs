//! Redundancy of a file: a checksum for each page, parity across stripes of pages, scrub and repair.
//!
//! It is kept in a *redundancy file* beside the data file, `DIR/.untorn/INODE.redundancy` (in the code: the
//! *companion*). A thread brings it up to date some time after the stores, in batches, so a program pays once for many
//! stores. Until then a page is *uncovered*: it may differ from its checksum, and redundancy says nothing about it.
//!
//! Source: Vilamb, §3. Differences: untorn marks a page uncovered before it takes the page's dirty bit from the page
//! tables, since the kernel clears the bit in the same step; and untorn repairs the damage that it finds.
//!
//! # Invariants
//!
//! *A page whose durable mark is clear has, on the medium, the bytes that its checksum is of. If all pages of a stripe
//! are so, their exclusive or is the stripe's parity.* Then a page that differs is damaged, and parity tells its bytes.
//!
//! 1. A caller that announces stores (a program or an engine) has its pages marked durably before the first store, and
//!    they stay marked while it stores.
//! 2. To cover pages, a pass flushes their bytes; then it writes and flushes their checksums, still marked, and the
//!    parity; then it clears the marks. A crash in between leaves the marks.
//! 3. Parity is computed from the same bytes that were checked in the same step, so a damaged page never enters it. The
//!    pass repairs such a page from the old parity if that is still possible. Otherwise it leaves the stripe alone and
//!    reports it, until the program stores the whole page again.
//! 4. A table block is never overwritten while the version before it is not durable, see `table`.
//! 5. Dirty bits in page tables die with the process. While they track stores, the superblock says so, durably before
//!    the first store. After a crash a page that differs is then *unknown*: reported, and never repaired. The same goes
//!    for every page if the file's size or time show an unannounced write. A caller that announces records the file's
//!    time whenever no store is open. Before the next store it records, durably, that the time says nothing any more.
//! 6. A repair writes the page in place. Until it is done, the page still differs from its checksum, whatever a crash
//!    leaves of it, and neither parity nor the other pages of the stripe change: so the repair can be repeated. The
//!    repair changes the file's time, which would make every page unknown by 5, so the superblock names the page
//!    first. If there are too many pages for it, all of them are listed (`repair_list`), so that the pages still to be
//!    repaired are known to be damaged as well. A repair is reported only when the medium has the bytes, which are
//!    read back after the flush.
//! 7. If stores are covered at once, parity changes by the difference between a page's bytes at the announcement and
//!    its bytes now, see `incremental`. The old bytes are those that its checksum is of, so parity still matches
//!    every other page as it was covered, whatever that page holds by now. The old bytes need not be kept only if all
//!    pages of a stripe are announced together. While they are kept, a damaged page in the stripe is repaired with
//!    them. A crash before that leaves what it would have left anyway: damage beside an uncovered page.
//! 8. A page that the medium cannot read, of the file or of the redundancy file, is an erasure: it is known to be
//!    damaged, whatever was stored to it. It is rebuilt if it was covered and its stripe allows it, and otherwise
//!    reported. It ends neither a pass nor an engine's work elsewhere in the file. A rebuilt page is written as a
//!    whole, so a device can remap its place.
//!
//! [`Tracker`] abstracts the way stores are found. The medium of an engine announces the engine's stores to its data
//! file, and those to the sidecar pages that may hold valid bytes, see `tracked`. A handle of a file has one
//! `FileRedundancy` for both.

mod ahead;
mod all_files;
mod announce;
mod bits;
mod checksum;
mod covering;
pub(crate) mod engine;
mod file;
mod file_redundancy;
mod format;
mod holes;
mod incremental;
mod layout;
mod notifier;
mod open;
mod pages;
mod premark;
pub(crate) mod protect;
mod recorded;
mod reliability;
mod repair;
mod repair_list;
mod resize;
mod scrub;
mod table;
mod tally;
mod threads;
mod tracked;
mod uncovered_since;
mod update;
mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bits::Bits;
use format::Superblock;
use holes::Room;
use layout::Geometry;
use table::Tables;
use uncovered_since::UncoveredSince;

pub use crate::engine::redundancy::{
    Coverage, CoveringPace, History, RepairReport, ScrubFindings, ScrubReport, Scrubbing,
};
pub(crate) use crate::engine::redundancy::{DamageSender, RedundancyService, Scrub, scrub_and_note};
pub use crate::options::{Checksum, Damage, PageRange, ProtectOptions, StripeLayout, VerifyReads};
pub use all_files::{AllCovered, CoverOnSignal, cover_all, cover_on_signal};
pub(crate) use file::{check_settings, check_settings_at, kept_pace, redundancy_file, remove};
use file_redundancy::FileRedundancy;
use notifier::DamageNotifier;
use pages::Pages;
pub use protect::{Protected, Record, Stores, recorded, recorded_on, track};
use recorded::coverage_of;
pub(crate) use recorded::recorded as recorded_coverage;
pub use reliability::{Battery, LITHIUM_ION_DOLLARS, SERVER_WATTS, ULTRACAPACITOR_DOLLARS, dollars, pass_joules};
use scrub::Scrubs;
use tally::Tally;
use threads::Threads;
use tracked::{TrackedPages, TrackedStorage, no_sidecar_redundancy};

use crate::error::Result;
use crate::storage::{Access, Medium, Stamp};

/// The barriers of redundancy.
pub(crate) mod barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// A new redundancy file is whole before its final name points to it.
        CREATE_FILE = "redundancy.create.file";
        /// Its name is durable before the file is reported as protected.
        CREATE_NAME = "redundancy.create.name";
        /// Bytes of the data file that a killed process left in the page cache are durable before they are compared
        /// with checksums, and a new length is before the redundancy file forgets the length before.
        ATTACH_DATA = "redundancy.attach.data";
        /// Bytes of the redundancy file that it left are durable too, before the older of two copies is overwritten
        /// because a newer one was read.
        ATTACH_SIDE = "redundancy.attach.side";
        /// The names that it created are durable too.
        ATTACH_NAMES = "redundancy.attach.names";
        /// Pages that a failed flush left in the cache are not mistaken for bytes of the medium.
        ATTACH_CACHE = "redundancy.attach.cache";
        /// Pages that do not match their known state are marked before the superblock says that all others match.
        ADOPT = "redundancy.adopt";
        /// The way of finding stores is durable before the first store. Otherwise a crash could leave a superblock that
        /// says "closed" over bytes that changed since, or "announced" over stores that were not announced.
        OPEN = "redundancy.open";
        /// Pages are marked uncovered before they are stored to.
        ANNOUNCE = "redundancy.announce";
        /// The bytes of covered pages are durable before the tables say that they are covered.
        COVER_DATA = "redundancy.cover.data";
        /// Checksums and parity are durable before the marks are cleared.
        COVER_TABLES = "redundancy.cover.tables";
        /// The cleared marks are durable before the next version of their block overwrites the version before.
        COVER_MARKS = "redundancy.cover.marks";
        /// The superblock names a page before the repair changes its bytes, and with them the file's time.
        REPAIR_INTENT = "redundancy.repair.intent";
        /// The repaired bytes are durable before the superblock no longer names the page.
        REPAIR_DATA = "redundancy.repair.data";
        /// The end of a repair is durable before it is reported.
        REPAIR_DONE = "redundancy.repair.done";
        /// Repaired redundancy is durable before its repair is reported, and before the next version of it is written.
        REPAIR_SIDE = "redundancy.repair.side";
        /// The bytes that one store changed are durable before the tables say that they are covered.
        DELTA_DATA = "redundancy.delta.data";
        /// The checksum and the parity that the store changed are durable before its mark is cleared.
        DELTA_TABLES = "redundancy.delta.tables";
        /// The cleared mark is durable before the next store's mark overwrites the block's version before.
        DELTA_MARKS = "redundancy.delta.marks";
        /// Announced stores are durable before the file's time is recorded as known. A crash that undoes them would
        /// undo the time too, and all damage would become unknown.
        QUIET_DATA = "redundancy.quiet.data";
        /// The known time is durable before the next version of the superblock overwrites the other copy.
        QUIET = "redundancy.quiet";
        /// Both copies of the tables hold the same version before the superblock says so: in a closed file, a copy that
        /// is older than the other is a version that came back.
        CLOSE_TWINS = "redundancy.close.twins";
        /// The closed state is durable before the close is reported.
        CLOSE = "redundancy.close";
    }
}

/// The barriers of the redundancy of a sidecar, besides those above.
pub(crate) mod sidecar_barriers {
    use crate::storage::barrier::barriers;
    barriers! {
        /// Pages of the sidecar are marked uncovered before they are stored to.
        ANNOUNCE = "redundancy.sidecar.announce";
        /// With an engine, of the data file too: the space for parity is durable before the write that it is for.
        /// Whatever fills the disk after a crash, covering what was committed needs no space.
        ROOM = "redundancy.room";
    }
}

/// The shortest time between two stores that a file's modification time tells apart, and more: kernels note it by a
/// clock that ticks as seldom as 100 times a second.
pub(crate) const TICK: Duration = Duration::from_millis(20);

/// How stores to a protected mapping are found.
///
/// Pages are counted from the file's start. A tracker may report too many pages, but never too few.
pub trait Tracker: Send + Sync {
    /// Pages stored to since this was last asked. Whatever is stored from now on will be found by the next call.
    ///
    /// # Errors
    /// Why it cannot be told. Then nothing may be taken for clean.
    fn take(&self) -> Result<Vec<Range<u64>>>;

    /// The same, and they are still found by the next [`take`](Tracker::take).
    ///
    /// # Errors
    /// As there.
    fn look(&self) -> Result<Vec<Range<u64>>>;

    /// The most bytes that the file may have, as far as stores are found; `None` if any are.
    fn reach(&self) -> Option<u64> {
        None
    }
}

/// Who uses a redundancy file, and so how stores are found out.
#[derive(Clone)]
pub(crate) enum Mode {
    /// Nobody stores to the file: it is only looked at, or repaired.
    Look,
    /// Nobody stores to the file, and none of it is read.
    Report,
    /// Stores are announced, and covered some time after they were made.
    Announced,
    /// Stores are announced, and covered as soon as they are made.
    Synchronous,
    /// Stores are looked up.
    Tracked(Arc<dyn Tracker>),
}

impl Mode {
    /// Whether who stores says so before.
    fn is_announced(&self) -> bool {
        matches!(self, Mode::Announced | Mode::Synchronous)
    }

    /// How the protected file is opened. A look stores to it only once it repairs a page.
    fn access_to_data(&self) -> Access {
        if matches!(self, Mode::Look | Mode::Report) { Access::Read } else { Access::ReadWrite }
    }

    /// How the redundancy file is opened. A scrub notes there that it was made; a report changes nothing.
    fn access_to_redundancy(&self) -> Access {
        if matches!(self, Mode::Report) { Access::Read } else { Access::ReadWrite }
    }
}

/// The redundancy of one file, open.
pub(crate) struct Redundancy<M: Medium> {
    medium: Arc<M>,
    path: PathBuf,
    side_path: PathBuf,
    pages: Pages<M>,
    side: M::File,
    geometry: Geometry,
    checksum: Checksum,
    mode: Mode,
    batch: u64,
    /// The file has an engine, whose sidecar knows the file's time.
    has_engine: bool,
    /// What is protected are pages of a sidecar. Nobody but its engine stores to that, and to parts of it that are not
    /// protected all the time: as long as it is open, its time says nothing.
    of_sidecar: bool,
    /// The parity that has its space from the beginning, see [`holes`].
    room: Room,
    /// Passes and scrubs under way are to end.
    leaving: AtomicBool,
    /// Where damage is noted that is come upon by the way.
    notifier: Arc<DamageNotifier>,
    /// Where uncovered pages are counted.
    tally: Arc<Tally>,
    /// How far a scrub is, and what the last one found.
    scrubs: Scrubs,
    inner: Mutex<Inner>,
}

/// What changes.
struct Inner {
    /// Whether the redundancy file says how stores are found out.
    begun: bool,
    /// Whether a pass repairs what it comes upon.
    mends: bool,
    superblock: Superblock,
    tables: Tables,
    /// Pages that were stored to since they were last read to be covered. All of them are marked, but those that a
    /// pass was told of and has not come to.
    stored: Bits,
    /// Pages that are marked because stores to them may come, and that nobody has stored to since: all else says that
    /// they are covered, and they are.
    premarked: Bits,
    /// How many pages the next announcement marks ahead.
    stride: u64,
    /// Pages that somebody is storing to, and how many do.
    storing: BTreeMap<u64, u32>,
    /// How many do what changes the file's time and none of its bytes.
    touching: u32,
    /// Chunks of stripes whose parity is known to have its space, see [`holes`].
    room: BTreeSet<u64>,
    /// The same of single stripes.
    claimed: BTreeSet<u64>,
    /// Pages that were damaged, could not be given back, and were stored to in part all the same.
    spoilt: BTreeSet<u64>,
    /// Of those that are stored to, what they held when they were announced, and were covered with, where stores are
    /// covered at once.
    before: BTreeMap<u64, Box<[u8]>>,
    /// Pages for which untorn cannot tell whether they are damaged.
    unknown: BTreeSet<u64>,
    /// The same, as of when the file was opened: they are covered as they are, and still to be told of.
    were_unknown: Vec<u64>,
    /// Damaged pages that keep their stripes from being covered.
    stuck: BTreeSet<u64>,
    /// Damaged pages that were told of as they are.
    notified: BTreeSet<u64>,
    /// Stripes with a page that cannot be read, which passes leave alone for a while: to read it may take a device
    /// seconds.
    left_alone: BTreeMap<u64, LeftAlone>,
    /// Copies of table blocks that were not whole when they were read.
    damaged: Vec<(u64, usize)>,
    /// Which copies of the superblock were whole.
    superblocks: [bool; 2],
    /// Since when pages are uncovered.
    uncovered_since: UncoveredSince,
    /// Whether a crash, or a write that nobody told of, has left pages that may be unknown.
    disbelieved: bool,
    /// It was carried over from another length, and no pass has noted the file's time since.
    carried: bool,
    /// The file has another length for a reason that is not known, so pages that are not spoken of may hold anything.
    doubts: bool,
    /// Size and time of a file that is only looked at, when it was opened, or as the last repair left them: if they
    /// are others, somebody else has written to it.
    seen: Stamp,
    /// The first failure, after which nothing more is done.
    failed: Option<String>,
}

/// For how many passes a stripe is left alone.
#[derive(Clone, Copy, Default)]
struct LeftAlone {
    /// Of these, so many are to come.
    left: u32,
    /// So many are left out after the next attempt that fails.
    pause: u32,
}

impl LeftAlone {
    /// The most passes that are left out in a row.
    const MOST: u32 = 64;
}

impl Inner {
    /// Pages that are marked, but for those that are marked ahead.
    pub(super) fn marked(&self) -> u64 {
        self.tables.uncovered().count() - self.premarked.count()
    }

    /// Whether nobody is doing anything that changes the file's time.
    fn is_quiet(&self) -> bool {
        self.storing.is_empty() && self.touching == 0
    }
}

impl<M: Medium> Redundancy<M> {
    /// Bytes that are protected.
    pub(crate) fn len(&self) -> u64 {
        self.geometry.len
    }

    /// Has passes under way end soon, and scrubs make a pause, for the file is about to change. Not passes that
    /// somebody [called for](Redundancy::cover).
    pub(crate) fn leave(&self) {
        self.leaving.store(true, Ordering::Relaxed);
    }

    /// Has them go on as ever: the file did not change after all.
    pub(crate) fn stay(&self) {
        self.leaving.store(false, Ordering::Relaxed);
    }

    fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic under the lock leaves marks that were not cleared, and so at worst too many of them.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a page as programs see it, filled up with zeros. Its checksum, or nothing if the medium cannot read it:
    /// it is then known to be damaged, whatever it was covered with.
    fn read(&self, page: u64, bytes: &mut [u8]) -> Result<Option<u64>> {
        self.read_with(page, bytes, |offset, bytes| self.pages.read(offset, bytes))
    }

    /// Reads a page as the medium holds it.
    fn read_stored(&self, page: u64, bytes: &mut [u8]) -> Result<Option<u64>> {
        self.read_with(page, bytes, |offset, bytes| self.pages.read_stored(offset, bytes))
    }

    fn read_with(
        &self,
        page: u64,
        bytes: &mut [u8],
        read: impl FnOnce(u64, &mut [u8]) -> Result<bool>,
    ) -> Result<Option<u64>> {
        let range = self.geometry.bytes_of(page);
        let (there, behind) = bytes.split_at_mut((range.end - range.start) as usize);
        behind.fill(0);
        let is_there = read(range.start, there)?;
        Ok(is_there.then(|| self.checksum.of(bytes)))
    }

    /// What is covered now.
    ///
    /// # Errors
    /// Those of finding out what was stored to.
    pub(crate) fn coverage(&self) -> Result<Coverage> {
        let inner = self.usable()?;
        let mut uncovered: BTreeSet<u64> =
            inner.tables.uncovered().iter().filter(|page| !inner.premarked.has(*page)).collect();
        if let Mode::Tracked(tracker) = &self.mode {
            let pages = self.geometry.pages();
            uncovered.extend(tracker.look()?.into_iter().flat_map(|run| run.start..run.end.min(pages)));
        }
        // What a pass was told of and has not come to yet: whoever told it does not tell it again, and it is marked
        // only then.
        uncovered.extend(inner.stored.iter());
        uncovered.extend(inner.unknown.iter().copied());
        // Who only looks has not seen a page become uncovered.
        let uncovered_since = (!matches!(self.mode, Mode::Look | Mode::Report)).then_some(&inner.uncovered_since);
        let age = uncovered_since
            .and_then(|uncovered_since| uncovered_since.oldest(uncovered.iter()))
            .map(|since| since.elapsed());
        Ok(Coverage {
            believed: !inner.disbelieved,
            unknown: inner.were_unknown.clone(),
            lost: inner.stuck.union(&inner.spoilt).copied().collect(),
            oldest_uncovered: age,
            scrubbing: self.scrubs.under_way(self.geometry.pages()),
            found: self.scrubs.found(),
            ..coverage_of(&inner.superblock, self.side_path.clone(), &uncovered)
        })
    }
}
