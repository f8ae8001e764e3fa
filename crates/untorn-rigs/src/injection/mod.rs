//! Damages protected files thousands of times, and checks that all damage is found and restored and nothing else
//! changes.
//!
//! The rig protects a file of a real file system, stores to it, covers and closes it. Then it damages some of its
//! pages, or parts of its redundancy file, as a device might: a flipped bit, a lost write, a misplaced page, or zeros.
//! It never damages more than one page of a stripe, or one copy of a block. A repair must report exactly the damaged
//! places, and leave the file and its redundancy as they were before the damage. The rig derives the layout of the
//! redundancy file from `docs/format.md`, without untorn's code.
//!
//! It does the same to files of both engines with redundancy. Transactions store half of the slices of a page at a
//! time, and a process that opens the file with its engine repairs it. With the reflection engine, half of the slices
//! of each page are then valid in the sidecar, whose pages are damaged too.
//!
//! The rig also scrubs files while threads of a program store to them at random, with announced stores or with an
//! engine. No scrub may report any damage then.

mod fault;
mod shape;
mod subject;
mod watch;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use untorn::redundancy::{ProtectOptions, Protected};
use untorn::testing::storage::{Dax, MediumKind, PageCache};
use untorn::{AtomicFile, Options};

pub use fault::{Kind, Part};
pub use watch::Watch;

use crate::error::{Error, Result};
use subject::Subject;

/// The assumed medium of the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A disk, behind the page cache.
    Disk,
    /// Memory treated as persistent, as with `UNTORN_ASSUME_PMEM=1`.
    Memory,
}

/// Pages of a small file.
const SMALL: u64 = 32;

impl Place {
    /// Both.
    pub const ALL: [Place; 2] = [Place::Disk, Place::Memory];

    fn open(self, options: &ProtectOptions, path: &Path) -> Result<Protected> {
        let opened = match self {
            Place::Disk => options.open_on(PageCache::new(), path),
            Place::Memory => options.open_on(Dax::new(MediumKind::AssumedPmem), path),
        };
        done("protect", opened)
    }

    fn open_with_engine(self, options: &Options, path: &Path) -> Result<AtomicFile> {
        let opened = match self {
            Place::Disk => options.open_on(PageCache::new(), path),
            Place::Memory => options.open_on(Dax::new(MediumKind::AssumedPmem), path),
        };
        done("open", opened)
    }

    /// A handle for scrubbing and repairing.
    fn look(self, path: &Path) -> Result<Protected> {
        let opened = match self {
            Place::Disk => ProtectOptions::new().look_on(PageCache::new(), path),
            Place::Memory => ProtectOptions::new().look_on(Dax::new(MediumKind::AssumedPmem), path),
        };
        done("open without changes", opened)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Place::Disk => "disk",
            Place::Memory => "pmem",
        })
    }
}

/// The settings of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of damages per kind, part and place.
    pub cases: u64,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Directory for the files.
    pub dir: PathBuf,
    /// Number of pages per file.
    pub pages: u64,
    /// How long to scrub files during stores, on each place; at least for a hundred stores each.
    pub watch: Duration,
    /// Number of threads.
    pub jobs: usize,
}

/// The results of one kind of damage to one part.
#[derive(Clone, Debug)]
pub struct Row {
    /// The medium.
    pub place: Place,
    /// The damaged part.
    pub part: Part,
    /// The kind of damage.
    pub kind: Kind,
    /// Number of damages that changed at least one bit.
    pub injected: u64,
    /// Number of damages that a scrub reported.
    pub found: u64,
    /// Number of damages that a repair restored byte for byte.
    pub restored: u64,
    /// Number of damages that a repair restored wrongly.
    pub wrong: u64,
    /// Number of undamaged pages and blocks that were changed.
    pub spoiled: u64,
    /// Number of undamaged pages and blocks reported as damaged, by the scrub or by the scrub after the repair.
    pub alarms: u64,
}

impl Row {
    fn new(place: Place, part: Part, kind: Kind) -> Self {
        Row { place, part, kind, injected: 0, found: 0, restored: 0, wrong: 0, spoiled: 0, alarms: 0 }
    }

    /// Whether there is no failure.
    pub fn clean(&self) -> bool {
        // A superblock that lost its last write leaves the previous one, with the same contents: that is correct.
        let told = self.found == self.injected || self.part == Part::Superblock && self.kind == Kind::Lost;
        told && self.restored == self.injected && self.wrong == 0 && self.spoiled == 0 && self.alarms == 0
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { place, part, kind, injected, found, restored, wrong, spoiled, alarms } = self;
        write!(
            f,
            "{place:4} {part:10} {kind:11} {injected:6} injected {found:6} found {restored:6} restored {wrong} wrong \
             {spoiled} spoiled {alarms} false alarms"
        )
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// One row per place, part and kind.
    pub rows: Vec<Row>,
    /// Three per place: one with announced stores, and one per engine.
    pub watches: Vec<Watch>,
}

impl Outcome {
    /// Whether there is no failure.
    pub fn clean(&self) -> bool {
        self.rows.iter().all(Row::clean) && self.watches.iter().all(|watch| watch.alarms == 0)
    }
}

/// Runs all injections. It passes each finished row to `tell`.
///
/// # Errors
/// Errors of the system, and of untorn if an operation failed.
pub fn run(settings: &Settings, tell: &(dyn Fn(&str) + Sync)) -> Result<Outcome> {
    let kinds = |(place, part)| Kind::ALL.map(|kind| (place, part, kind));
    let parts = |place| Part::ALL.map(|part| (place, part));
    let mut all: Vec<_> = Place::ALL.into_iter().flat_map(parts).flat_map(kinds).collect();
    if settings.cases == 0 {
        // Only the watches.
        all.clear();
    }
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(&(place, part, kind)) = all.get(index) else { return };
                let row = inject(settings, index as u64, place, part, kind);
                if let Ok(row) = &row {
                    tell(&row.to_string());
                }
                rows.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((index, row));
            }
        };
        for _ in 0..settings.jobs.max(1) {
            scope.spawn(work);
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    rows.sort_by_key(|(index, _)| *index);
    let rows = rows.into_iter().map(|(_, row)| row).collect::<Result<_>>()?;
    let watches = std::thread::scope(|scope| {
        let each = Place::ALL.into_iter().flat_map(|place| watch::ENGINES.map(|engine| (place, engine)));
        let watch = |(place, engine)| scope.spawn(move || watch::watch(settings, place, engine));
        // Run all watches at once, because each takes its full time.
        let watching: Vec<_> = each.map(watch).collect();
        watching.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(died()))).collect::<Result<_>>()
    })?;
    Ok(Outcome { rows, watches })
}

fn died() -> Error {
    Error::failed("watch a file", "its thread panicked")
}

/// One kind of damage to one part, in rounds.
fn inject(settings: &Settings, index: u64, place: Place, part: Part, kind: Kind) -> Result<Row> {
    let mut row = Row::new(place, part, kind);
    // A round damages one copy of each block, and each scrub reads all pages, so most of these rounds use small files.
    let (large, small) = (settings.pages, settings.pages.min(SMALL));
    let files = match part {
        Part::Data | Part::Parity | Part::Reflection | Part::HybridLog | Part::Sidecar => vec![(large, settings.cases)],
        Part::Checksums => vec![(large, settings.cases / 8), (small, settings.cases)],
        Part::Superblock => vec![(small, settings.cases)],
    };
    for (pages, until) in files {
        let mut subject = Subject::new(&Settings { pages, ..settings.clone() }, index, place, part)?;
        let mut round = 0;
        while row.injected < until {
            if round % 4 == 0 {
                subject.store(round % 8 == 0)?;
            }
            let most = until - row.injected;
            subject.strike(&mut row, most)?;
            round += 1;
        }
    }
    Ok(row)
}

/// Turns untorn's error into the rig's.
fn done<T>(what: &str, result: untorn::Result<T>) -> Result<T> {
    result.map_err(|error| Error::failed(format!("{what} a file"), error.to_string()))
}

fn io<T>(what: &str, result: std::io::Result<T>) -> Result<T> {
    result.map_err(|source| Error::Io { what: what.to_owned(), source })
}
