//! Files with redundancy that get another length: covered pages stay covered, and damage never becomes the truth.

use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use untorn::redundancy::{Damage, PageRange, ProtectOptions, Protected, StripeLayout, Tracker};
use untorn::testing::storage::{Access, Medium, MediumClass, MediumFile};
use untorn::{AtomicFile, Durability, EngineKind, Options};
use untorn_sim::{SimMedium, Step, Verdict};

use crate::common::{BOTH, power_cuts, watched};

const PAGE: usize = 4096;
const PATH: &str = "/data";
/// Sequences of lengths; some end within a page.
const LENS: [[usize; 3]; 6] = [
    [10 * PAGE, 13 * PAGE, 40 * PAGE],
    [10 * PAGE + 100, 10 * PAGE + 3000, 10 * PAGE + 50],
    [10 * PAGE + 100, 5 * PAGE, 10 * PAGE + 100],
    [10 * PAGE, 7 * PAGE + 1, 7 * PAGE + 2],
    [3 * PAGE + 5, 30 * PAGE - 1, 2 * PAGE + 7],
    [PAGE, 2 * PAGE, 100],
];

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 5 + 3 * (at / PAGE) + 1) as u8).collect()
}

struct Setup {
    class: MediumClass,
    engine: EngineKind,
    layout: StripeLayout,
    synchronous: bool,
}

impl Setup {
    fn all() -> Vec<Setup> {
        let mut all = Vec::new();
        for class in BOTH {
            for engine in untorn::testing::ENGINES {
                for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
                    all.extend([false, true].map(|synchronous| Setup { class, engine, layout, synchronous }));
                }
            }
        }
        all
    }

    fn open(&self, medium: &SimMedium) -> AtomicFile {
        self.open_up_to(medium, 1 << 20)
    }

    fn open_up_to(&self, medium: &SimMedium, max_len: u64) -> AtomicFile {
        let redundancy = ProtectOptions::new().stripe(3).layout(self.layout);
        let redundancy = if self.synchronous { redundancy.period(Duration::ZERO) } else { redundancy.on_demand() };
        let options = Options::new().engine(self.engine).durability(Durability::PerCommit).max_len(max_len);
        let options = options.record_area(2, 4).log_size(256 << 10).checkpoint_threads(0).redundancy(redundancy);
        options.open_on(medium.clone(), PATH).unwrap()
    }
}

fn flip(medium: &SimMedium, at: usize) {
    let byte = medium.peek(PATH).unwrap()[at];
    medium.rot(PATH, at as u64, &[!byte]);
}

fn read(file: &AtomicFile) -> Vec<u8> {
    let mut held = vec![0; file.len() as usize];
    file.read_at(&mut held, 0).unwrap();
    held
}

#[test]
fn pages_that_were_damaged_before_are_given_back_after() {
    for setup in Setup::all() {
        for lens in LENS {
            let mut expected = bytes(lens[0]);
            let medium = SimMedium::new(setup.class);
            medium.install(PATH, &expected);
            let file = setup.open(&medium);
            file.sync_redundancy().unwrap();
            for len in &lens[1..] {
                // The flipped bit is in the first stripe of either layout, and not in a page that the engine must
                // read when it cuts.
                if expected.len().min(*len) > PAGE {
                    flip(&medium, 17);
                }
                file.resize(*len as u64).unwrap();
                file.sync().unwrap();
                expected.resize(*len, 0);
                if setup.synchronous {
                    // All is covered when the call returns, and not only after the next pass.
                    assert_eq!(file.coverage().unwrap().unwrap().uncovered, 0);
                }
                // An engine may have stored zeros to pages that were added.
                file.sync_redundancy().unwrap();
                let report = file.repair().unwrap();
                assert_eq!(report.unknown, []);
                if !report.is_whole() {
                    // The engine stored zeros behind the end to a page of its stripe, which is told of and no more.
                    assert!(!setup.synchronous && report.lost.iter().all(|range| range.offset == 0), "{report:?}");
                    flip(&medium, 17);
                }
                let held = read(&file);
                let differs = (0..*len).find(|at| held[*at] != expected[*at]);
                let what = (setup.class, setup.engine, setup.layout, setup.synchronous);
                assert_eq!(differs, None, "{what:?}, {lens:?} to {len}: {report:?}");
                // The added part is covered, and so is all else.
                file.sync_redundancy().unwrap();
                assert_eq!(file.coverage().unwrap().unwrap().uncovered, 0);
                flip(&medium, len - 1);
                assert_eq!(file.repair().unwrap().repaired.len(), 1);
                assert!(read(&file) == expected);
            }
            file.close().unwrap();
            assert!(ProtectOptions::new().look_on(medium, PATH).unwrap().scrub().unwrap().is_clean());
        }
    }
}

#[test]
fn unrepairable_pages_stay_known_as_damaged() {
    for setup in Setup::all().into_iter().filter(|setup| !setup.synchronous) {
        for len in [7 * PAGE, 10 * PAGE + 100, 16 * PAGE] {
            let medium = SimMedium::new(setup.class);
            medium.install(PATH, &bytes(10 * PAGE));
            let file = setup.open(&medium);
            file.sync_redundancy().unwrap();
            // Two of a stripe, in this layout and that.
            let pages = if setup.layout == StripeLayout::Spread { [0, 4] } else { [0, 1] };
            pages.iter().for_each(|page| flip(&medium, page * PAGE + 9));
            file.resize(len as u64).unwrap();
            file.sync().unwrap();
            file.sync_redundancy().unwrap();
            let found: Vec<u64> = file.repair().unwrap().lost.iter().map(|range| range.offset / PAGE as u64).collect();
            assert_eq!(found, pages.map(|page| page as u64), "{:?} to {len}", setup.layout);
            // Later users find it damaged, too.
            drop(file);
            let file = setup.open(&medium);
            assert_eq!(file.repair().unwrap().lost.len(), 2);
            // Stored anew they are whole, and covered.
            for page in pages {
                file.write_at(&[7; PAGE], (page * PAGE) as u64).unwrap();
            }
            file.sync().unwrap();
            file.settle().unwrap();
            let looked = ProtectOptions::new().look_on(medium.clone(), PATH).unwrap();
            assert!(looked.scrub().unwrap().is_clean(), "{:?} to {len}", setup.layout);
        }
    }
}

/// The companion is for the new length before the file has it.
#[test]
fn a_crash_amid_it_leaves_damage_known_too() {
    for setup in Setup::all().into_iter().filter(|setup| !setup.synchronous) {
        for len in [5 * PAGE, 13 * PAGE + 5] {
            let medium = SimMedium::new(setup.class);
            let expected = bytes(10 * PAGE);
            medium.install(PATH, &expected);
            let file = setup.open(&medium);
            file.sync_redundancy().unwrap();
            flip(&medium, 33);
            let (_, states) = watched(&medium, Step::changes, || {
                file.resize(len as u64).unwrap();
                file.sync().unwrap();
            });
            assert!(!states.is_empty());
            for (_, state) in states {
                for left in iter::once(state.killed()).chain(power_cuts(&state)) {
                    let file = setup.open(&left);
                    file.sync_redundancy().unwrap();
                    let report = file.repair().unwrap();
                    assert!(report.is_whole() && report.unknown.is_empty(), "{report:?}");
                    let held = read(&file);
                    let common = held.len().min(expected.len());
                    assert!(held[..common] == expected[..common], "{:?} to {len}", setup.layout);
                    // The device has it again, not only the log.
                    let data = left.open(Path::new(PATH), Access::Read, 0).unwrap();
                    let mut byte = [0];
                    data.read(33, &mut byte).unwrap();
                    assert_eq!(byte[0], expected[33]);
                }
            }
        }
    }
}

/// The ways in which a program without an engine has its stores found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Announced,
    Synchronous,
    Tracked,
}

/// Stores to these pages were made, and nobody has asked for them yet.
struct Stored(Mutex<Vec<u64>>);

impl Tracker for Stored {
    fn take(&self) -> untorn::Result<Vec<Range<u64>>> {
        Ok(std::mem::take(&mut *self.0.lock().unwrap()).into_iter().map(|page| page..page + 1).collect())
    }

    fn look(&self) -> untorn::Result<Vec<Range<u64>>> {
        Ok(self.0.lock().unwrap().iter().map(|page| *page..page + 1).collect())
    }

    fn reach(&self) -> Option<u64> {
        Some(40 * PAGE as u64)
    }
}

impl Way {
    fn open(self, medium: &SimMedium, layout: StripeLayout) -> (Protected, Arc<Stored>) {
        let stored = Arc::new(Stored(Mutex::default()));
        let options = ProtectOptions::new().stripe(3).layout(layout).on_demand();
        let opened = match self {
            Way::Announced => options.open_on(medium.clone(), PATH),
            Way::Synchronous => options.period(Duration::ZERO).open_on(medium.clone(), PATH),
            Way::Tracked => options.track_on(medium.clone(), PATH, stored.clone()),
        };
        (opened.unwrap(), stored)
    }

    fn store(self, medium: &SimMedium, (protected, stored): &(Protected, Arc<Stored>), page: usize, bytes: &[u8]) {
        let at = (page * PAGE) as u64;
        let told = (self != Way::Tracked).then(|| protected.announce(at..at + bytes.len() as u64).unwrap());
        medium.open(Path::new(PATH), Access::ReadWrite, 0).unwrap().store(at, bytes).unwrap();
        match told {
            Some(stores) => drop(stores),
            None => stored.0.lock().unwrap().push(page as u64),
        }
    }
}

/// A program changes the length of a file that it protects, and a crash comes at any instant. Some pages are damaged
/// and others stored to.
#[test]
fn a_crash_amid_set_len_leaves_a_plain_file_protected() {
    let layouts = [StripeLayout::Consecutive, StripeLayout::Spread];
    for (way, layout) in
        [Way::Announced, Way::Synchronous, Way::Tracked].into_iter().flat_map(|way| layouts.map(|layout| (way, layout)))
    {
        for (class, len) in BOTH.into_iter().flat_map(|class| [5 * PAGE + 7, 13 * PAGE + 5].map(|len| (class, len))) {
            let what = format!("{way:?}, {layout:?}, {class:?}, to {len}");
            let medium = SimMedium::new(class);
            let mut expected = bytes(10 * PAGE + 100);
            medium.install(PATH, &expected);
            let open = way.open(&medium, layout);
            open.0.sync().unwrap();
            way.store(&medium, &open, 3, b"stored");
            flip(&medium, 33);
            let (_, states) = watched(&medium, Step::changes, || open.0.set_len(len as u64).unwrap());
            expected[3 * PAGE..][..6].copy_from_slice(b"stored");
            assert!(states.len() > 10, "{what}: {} instants", states.len());
            let mut lens = BTreeSet::new();
            for (nth, (_, state)) in states.iter().enumerate() {
                for left in iter::once(state.killed()).chain(power_cuts(state)) {
                    let was = left.peek(PATH).unwrap();
                    lens.insert(was.len());
                    if nth % 2 == 0 {
                        // A tool comes first, and may repair it.
                        let looked = ProtectOptions::new().look_on(left.clone(), PATH).unwrap();
                        let report = looked.repair().unwrap();
                        assert!(
                            report.scrub.damage.iter().all(|damage| is_of_page_0(damage, way)),
                            "{what}: {report:?}"
                        );
                    }
                    let (protected, _) = way.open(&left, layout);
                    protected.sync().unwrap();
                    let coverage = protected.coverage().unwrap();
                    assert_eq!((coverage.pages, coverage.uncovered), (was.len().div_ceil(PAGE) as u64, 0), "{what}");
                    let report = protected.repair().unwrap();
                    assert!(report.is_whole() && report.unknown.is_empty(), "{what}: {report:?}");
                    let held = left.peek(PATH).unwrap();
                    // The store that was not flushed may be lost.
                    let differs = |at: &usize| held[*at] != expected[*at] && !(3 * PAGE..3 * PAGE + 6).contains(at);
                    let first = (0..held.len().min(expected.len())).find(differs);
                    // Page tables are forgotten in a crash, so that damage may be a store.
                    assert!(first.is_none() || way == Way::Tracked && first == Some(33), "{what}: byte {first:?}");
                    assert!(held.iter().skip(expected.len()).all(|byte| *byte == 0), "{what}");
                    // A page that counts as covered can be given back.
                    flip(&left, held.len() - 1);
                    assert_eq!(protected.repair().unwrap().repaired.len(), 1, "{what}");
                    assert!(left.peek(PATH).unwrap() == held, "{what}");
                    protected.close().unwrap();
                }
            }
            assert_eq!(lens, BTreeSet::from([expected.len(), len]), "{what}");
        }
    }
}

/// Whether this is about the page that is damaged, of which nobody knows after a crash where stores are tracked.
fn is_of_page_0(damage: &Damage, way: Way) -> bool {
    match damage {
        Damage::Page(range) => range.offset == 0,
        Damage::Unknown(range) => way == Way::Tracked && [0, 3 * PAGE as u64].contains(&range.offset),
        Damage::Table { .. } => true,
        _ => false,
    }
}

/// The length changes while a requested pass goes on, batch after batch: the change waits.
#[test]
fn sync_redundancy_covers_its_pages_beside_a_resize() {
    const STRIPES: usize = 64;
    for round in 1..3_u64 {
        let medium = SimMedium::new(MediumClass::Block);
        medium.install(PATH, &bytes(4 * STRIPES * PAGE));
        let redundancy = ProtectOptions::new().stripe(4).batch(1).on_demand();
        let options = Options::new().engine(EngineKind::Reflection).durability(Durability::PerCommit).max_len(16 << 20);
        let options = options.record_area(2, 4).redundancy(redundancy);
        let file: AtomicFile = options.open_on(medium.clone(), PATH).unwrap();
        // The first round writes to pages of the sidecar, the second to those of the file.
        for copy in 0..2 {
            file.sync_redundancy().unwrap();
            for stripe in 0..STRIPES {
                file.write_at(&[round as u8 + copy; PAGE], (4 * stripe * PAGE) as u64).unwrap();
            }
            file.sync().unwrap();
        }
        let (begun, begins) = std::sync::mpsc::channel();
        let (batches, caller) = (Arc::new(AtomicU64::new(0)), thread::current().id());
        let counted = batches.clone();
        medium.set_hook(Box::new(move |instant| {
            let marks = instant.barrier.is_some_and(|barrier| barrier.name() == "redundancy.cover.marks");
            // The other thread covers for the new length.
            if marks && thread::current().id() == caller {
                counted.fetch_add(1, Ordering::Relaxed);
                // The receiver listens only for the first message. The pause then gives the other thread time to
                // begin to wait.
                if begun.send(()).is_ok() {
                    thread::sleep(Duration::from_millis(20));
                }
            }
            Verdict::Allow
        }));
        let len = 4 * (STRIPES as u64 + round) * PAGE as u64;
        let covered = thread::scope(|scope| {
            let file = &file;
            scope.spawn(move || {
                begins.recv().unwrap();
                // It makes the data file longer at once.
                file.resize(len).unwrap();
            });
            file.sync_redundancy().unwrap();
            batches.load(Ordering::Relaxed)
        });
        medium.clear_hook();
        assert!(covered >= STRIPES as u64, "{covered} batches");
        file.sync_redundancy().unwrap();
        let coverage = file.coverage().unwrap().unwrap();
        assert_eq!((coverage.pages * PAGE as u64, coverage.uncovered), (len, 0));
        file.close().unwrap();
        assert!(ProtectOptions::new().look_on(medium, PATH).unwrap().scrub().unwrap().is_clean());
    }
}

/// Another length makes nothing younger.
#[test]
fn uncovered_pages_keep_their_age_across_a_resize() {
    for setup in Setup::all().into_iter().filter(|setup| !setup.synchronous) {
        let medium = SimMedium::new(setup.class);
        medium.install(PATH, &bytes(10 * PAGE));
        let file = setup.open(&medium);
        file.sync_redundancy().unwrap();
        file.write_at(b"stored", 0).unwrap();
        file.sync().unwrap();
        file.deploy(0, 6).unwrap();
        let stored = Instant::now();
        for len in [30 * PAGE, 5 * PAGE] {
            file.resize(len as u64).unwrap();
            file.sync().unwrap();
            let at_least = stored.elapsed();
            let coverage = file.coverage().unwrap().unwrap();
            assert!(coverage.oldest_uncovered.unwrap() >= at_least, "{:?} {:?}", setup.class, setup.engine);
        }
        file.close().unwrap();
    }
}

/// The length changes during a scrub: the report is about every page of one length, and names only real damage.
#[test]
fn scrub_and_repair_beside_a_resize_look_at_every_page() {
    const PAGES: usize = 300;
    for setup in Setup::all() {
        for (len, repairs) in [(PAGES + 70, true), (PAGES - 70, true), (PAGES + 70, false), (PAGES - 70, false)] {
            let medium = SimMedium::new(setup.class);
            medium.install(PATH, &bytes(PAGES * PAGE));
            let file = setup.open_up_to(&medium, 16 << 20);
            file.sync_redundancy().unwrap();
            // Behind where it is when the length changes, and in both.
            let bad = PAGES - 80;
            flip(&medium, bad * PAGE + 9);
            let (begun, begins) = std::sync::mpsc::channel();
            let tell = move || {
                // The receiver listens only for the first message. The pause then gives the other thread time to
                // begin to wait.
                if begun.send(()).is_ok() {
                    thread::sleep(Duration::from_millis(if repairs { 20 } else { 1 }));
                }
            };
            let (report, repaired) = thread::scope(|scope| {
                let resized = &file;
                scope.spawn(move || {
                    begins.recv().unwrap();
                    resized.resize((len * PAGE) as u64).unwrap();
                });
                if repairs {
                    let report = file
                        .repair_with(&mut |_, _| {
                            tell();
                            true
                        })
                        .unwrap();
                    assert!(report.is_whole() && report.unknown.is_empty(), "{report:?}");
                    (report.scrub, report.repaired.len())
                } else {
                    let caller = thread::current().id();
                    medium.set_hook(Box::new(move |instant| {
                        if instant.step == Step::Read && thread::current().id() == caller {
                            tell();
                        }
                        Verdict::Allow
                    }));
                    let report = file.scrub().unwrap();
                    medium.clear_hook();
                    (report, 0)
                }
            });
            let what = (setup.class, setup.engine, setup.layout, setup.synchronous, len, repairs);
            let looked = (report.checked + report.skipped) as usize;
            assert!(looked == PAGES || looked == len, "{looked} pages, {what:?}");
            let range = PageRange { offset: (bad * PAGE) as u64, len: PAGE as u64 };
            let is_found = report.damage == [Damage::Page(range)];
            // A new companion may be made of it, and it is given back for that.
            assert!(is_found || report.damage.is_empty() && repaired == 0, "{report:?}, {what:?}");
            file.sync_redundancy().unwrap();
            let left = file.repair().unwrap();
            assert!(left.is_whole() && read(&file)[bad * PAGE..][..PAGE] == bytes(PAGES * PAGE)[bad * PAGE..][..PAGE]);
            assert!(file.scrub().unwrap().is_clean());
            file.close().unwrap();
        }
    }
}
