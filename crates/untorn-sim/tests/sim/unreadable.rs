//! Pages that the medium cannot read, of protected files, their companions and sidecars: erasures, which end nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use untorn::options::LogPolicy;
use untorn::redundancy::{Damage, PageRange, ProtectOptions, Protected};
use untorn::testing::storage::{Access, Medium, MediumClass, MediumFile};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_sim::{SimMedium, Step, Verdict};

use crate::common::{BOTH, errno};

const PAGE: usize = 4096;
const PAGES: usize = 12;
const PATH: &str = "/data";

fn bytes() -> Vec<u8> {
    (0..PAGES * PAGE - 1000).map(|at| (at / 7 + at / PAGE) as u8).collect()
}

fn by_hand() -> ProtectOptions {
    ProtectOptions::new().stripe(4).on_demand()
}

fn installed(class: MediumClass) -> SimMedium {
    let medium = SimMedium::new(class);
    medium.install(PATH, &bytes());
    medium
}

/// A protected file, all of which is covered.
fn covered(class: MediumClass, options: &ProtectOptions) -> (SimMedium, Protected) {
    let medium = installed(class);
    let protected = options.open_on(medium.clone(), PATH).unwrap();
    protected.sync().unwrap();
    (medium, protected)
}

/// Each class, with stores that are covered when asked for, or at once.
fn both_ways() -> impl Iterator<Item = (MediumClass, ProtectOptions)> {
    let ways = |class| [(class, by_hand()), (class, by_hand().period(Duration::ZERO))];
    BOTH.into_iter().flat_map(ways)
}

/// Each class with each engine.
fn engines() -> impl Iterator<Item = (MediumClass, EngineKind)> {
    BOTH.into_iter().flat_map(|class| untorn::testing::ENGINES.map(|engine| (class, engine)))
}

/// So many pages are not covered, and these are lost.
#[track_caller]
fn is_uncovered(protected: &Protected, uncovered: u64, lost: &[u64]) {
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.uncovered, &coverage.lost[..]), (uncovered, lost));
}

/// A repair gives back these pages, and reports those as lost.
#[track_caller]
fn repair_is(protected: &Protected, repaired: &[usize], lost: &[usize]) {
    let ranges = |pages: &[usize]| pages.iter().map(|page| range(*page)).collect::<Vec<_>>();
    let report = protected.repair().unwrap();
    assert_eq!((report.repaired, report.lost), (ranges(repaired), ranges(lost)));
}

fn open_with(options: &Options, medium: &SimMedium) -> AtomicFile {
    options.open_on(medium.clone(), PATH).unwrap()
}

fn look(medium: &SimMedium) -> Protected {
    by_hand().look_on(medium.clone(), PATH).unwrap()
}

fn lose(medium: &SimMedium, page: usize) {
    medium.lose(PATH, (page * PAGE) as u64);
}

fn range(page: usize) -> PageRange {
    PageRange { offset: (page * PAGE) as u64, len: PAGE.min(bytes().len() - page * PAGE) as u64 }
}

fn store(medium: &SimMedium, protected: &Protected, at: usize, src: &[u8]) {
    let stores = protected.announce(at as u64..(at + src.len()) as u64).unwrap();
    let file = medium.open(Path::new(PATH), Access::ReadWrite, 0).unwrap();
    file.store(at as u64, src).unwrap();
    drop(stores);
}

fn companion(medium: &SimMedium, extension: &str) -> PathBuf {
    let inode = medium.open(Path::new(PATH), Access::Read, 0).unwrap().identity().unwrap().inode;
    format!("/.untorn/{inode}.{extension}").into()
}

/// Every byte of a file, through the medium: fails if one cannot be read.
fn read(medium: &SimMedium, path: &Path) -> Vec<u8> {
    let file = medium.open(path, Access::Read, 0).unwrap();
    let mut held = vec![0; file.len() as usize];
    file.read(0, &mut held).unwrap();
    held
}

#[test]
fn an_unreadable_page_is_repaired_and_other_stripes_go_on() {
    for (class, options) in both_ways() {
        for page in 0..PAGES {
            let (medium, protected) = covered(class, &options);
            lose(&medium, page);
            assert_eq!(protected.scrub().unwrap().damage, [Damage::Page(range(page))]);
            // Another stripe works as before.
            let other = (page + 4) % PAGES;
            store(&medium, &protected, other * PAGE + 5, b"stored");
            protected.sync().unwrap();
            assert_eq!(protected.coverage().unwrap().uncovered, 0);
            repair_is(&protected, &[page], &[]);
            let mut expected = bytes();
            expected[other * PAGE + 5..][..6].copy_from_slice(b"stored");
            assert!(read(&medium, Path::new(PATH)) == expected);
            assert!(protected.scrub().unwrap().is_clean());
            protected.close().unwrap();
        }
    }
}

#[test]
fn an_unreadable_page_beside_a_store_is_repaired_or_reported() {
    for class in BOTH {
        let (medium, protected) = covered(class, &by_hand());
        lose(&medium, 1);
        store(&medium, &protected, 2 * PAGE, b"beside");
        store(&medium, &protected, 9 * PAGE, b"elsewhere");
        // Parity speaks of what page 2 held.
        protected.sync().unwrap();
        is_uncovered(&protected, 1, &[1]);
        repair_is(&protected, &[], &[1]);
        // A store is not refused: it writes the whole page, which can be read from then on.
        store(&medium, &protected, PAGE, &[3; PAGE]);
        protected.sync().unwrap();
        is_uncovered(&protected, 0, &[]);
        assert!(protected.scrub().unwrap().is_clean());
        protected.close().unwrap();
    }
}

#[test]
fn an_unreadable_new_store_is_reported_and_never_undone() {
    for class in BOTH {
        let (medium, protected) = covered(class, &by_hand());
        store(&medium, &protected, 6 * PAGE, b"newer");
        lose(&medium, 6);
        protected.sync().unwrap();
        is_uncovered(&protected, 1, &[6]);
        repair_is(&protected, &[], &[6]);
        protected.close().unwrap();
        // A later open does not cover it either.
        let protected = by_hand().open_on(medium.clone(), PATH).unwrap();
        protected.sync().unwrap();
        assert_eq!(protected.coverage().unwrap().uncovered, 1);
        assert_eq!(protected.repair().unwrap().lost, [range(6)]);
    }
}

#[test]
fn every_page_of_the_companion_may_be_lost_and_is_written_anew() {
    for class in BOTH {
        let pages = {
            let medium = installed(class);
            by_hand().open_on(medium.clone(), PATH).unwrap().close().unwrap();
            medium.peek(companion(&medium, "redundancy")).unwrap().len() / PAGE
        };
        assert_eq!(pages, 2 + 2 * 2 + PAGES / 4);
        for lost in 0..pages {
            for closed in [false, true] {
                let (medium, protected) = covered(class, &by_hand());
                let side = companion(&medium, "redundancy");
                let protected = if closed {
                    protected.close().unwrap();
                    medium.lose(&side, (lost * PAGE) as u64);
                    by_hand().open_on(medium.clone(), PATH).unwrap()
                } else {
                    medium.lose(&side, (lost * PAGE) as u64);
                    protected
                };
                for page in 0..PAGES {
                    store(&medium, &protected, page * PAGE + 9, &[page as u8; 3]);
                    protected.sync().unwrap();
                }
                assert_eq!(protected.coverage().unwrap().uncovered, 0, "{class:?}, page {lost}");
                let report = protected.repair().unwrap();
                assert!(report.is_whole() && report.repaired.is_empty(), "{report:?}");
                assert!(protected.scrub().unwrap().is_clean());
                // A page that is covered now is given back.
                let held = read(&medium, Path::new(PATH));
                lose(&medium, 7);
                assert_eq!(protected.repair().unwrap().repaired, [range(7)]);
                assert!(read(&medium, Path::new(PATH)) == held);
                protected.close().unwrap();
                read(&medium, &side);
            }
        }
    }
}

fn with_engine(engine: EngineKind) -> Options {
    let options = Options::new().engine(engine).durability(Durability::PerCommit).max_len(1 << 20).record_area(2, 4);
    options.log_size(256 << 10).checkpoint_threads(0).redundancy(by_hand())
}

#[test]
fn an_engine_keeps_writing_beside_unreadable_pages() {
    for (class, engine) in engines() {
        let medium = installed(class);
        let file = open_with(&with_engine(engine), &medium);
        file.sync_redundancy().unwrap();
        // One page can be given back, and two pages of a stripe cannot.
        [1, 4, 5].iter().for_each(|page| lose(&medium, *page));
        for round in 0..4_u8 {
            file.write_at(&[round; 100], (10 * PAGE) as u64 + 100 * u64::from(round)).unwrap();
            file.sync().unwrap();
            file.sync_redundancy().unwrap();
            assert_eq!(file.coverage().unwrap().unwrap().uncovered, 0);
        }
        let report = file.repair().unwrap();
        assert_eq!(report.lost, [range(4), range(5)], "{engine}");
        for page in [4, 5] {
            file.write_at(&bytes()[page * PAGE..][..PAGE], (page * PAGE) as u64).unwrap();
        }
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        if engine == EngineKind::Reflection {
            // The new bytes may be in the sidecar, where they are covered.
            file.settle().unwrap_or_else(|error| panic!("{engine} on {class:?}: {error}"));
        } else {
            file.close().unwrap();
        }
        let looked = look(&medium);
        let damage = looked.scrub().unwrap().damage;
        assert_eq!(damage, [Damage::Page(range(1))], "{engine} on {class:?}");
    }
}

/// A store to a part of a page reads it, so it fails as long as the page cannot be read.
#[test]
fn a_partly_stored_page_is_repaired_first_even_by_recovery() {
    for (class, engine) in engines() {
        for is_killed in [false, true] {
            let medium = installed(class);
            // With redo, written bytes wait in the sidecar.
            let options = with_engine(engine).log_policy(LogPolicy::Redo);
            let file = open_with(&options, &medium);
            file.sync_redundancy().unwrap();
            file.write_at(b"a part", (PAGE + 700) as u64).unwrap();
            file.sync().unwrap();
            let mut expected = bytes();
            expected[PAGE + 700..][..6].copy_from_slice(b"a part");
            let (medium, file) = if is_killed {
                let killed = medium.crash_state().killed();
                lose(&killed, 1);
                let opened = options.open_on(killed.clone(), PATH);
                (killed, opened.unwrap_or_else(|error| panic!("{engine} on {class:?}: {error}")))
            } else {
                lose(&medium, 1);
                (medium, file)
            };
            // Some lines of the page.
            file.deploy(PAGE as u64, PAGE as u64).unwrap_or_else(|error| panic!("{engine} on {class:?}: {error}"));
            file.sync_redundancy().unwrap_or_else(|error| panic!("{engine} on {class:?}: {error}"));
            assert_eq!(file.coverage().unwrap().unwrap().uncovered, 0, "{engine} on {class:?}");
            let report = file.repair().unwrap();
            assert!(report.is_whole(), "{engine} on {class:?}: {report:?}");
            let mut held = vec![0; expected.len()];
            file.read_at(&mut held, 0).unwrap();
            assert!(held == expected);
            file.close().unwrap();
            assert!(look(&medium).scrub().unwrap().is_clean());
        }
    }
}

#[test]
fn a_page_that_cannot_be_deployed_leaves_one_stripe_uncovered() {
    for class in BOTH {
        let medium = installed(class);
        let file: AtomicFile =
            with_engine(EngineKind::HybridLog).log_policy(LogPolicy::Redo).open_on(medium.clone(), PATH).unwrap();
        [4, 5].iter().for_each(|page| lose(&medium, *page));
        file.write_at(b"a part", (4 * PAGE + 700) as u64).unwrap();
        file.sync().unwrap();
        // No page is covered yet.
        assert!(file.sync_redundancy().is_err());
        assert_eq!(file.coverage().unwrap().unwrap().uncovered, 4, "{class:?}");
    }
}

/// A read that fails once, between the look at a stripe and the making of its parity.
#[test]
fn parity_is_never_made_of_bytes_that_could_not_be_read() {
    for class in BOTH {
        let parity = (2 + 2 * 2) * PAGE as u64;
        let mut outcomes = Vec::new();
        for failing in 0.. {
            let medium = installed(class);
            by_hand().open_on(medium.clone(), PATH).unwrap().close().unwrap();
            medium.rot(companion(&medium, "redundancy"), parity + 9, &[0x5a; 7]);
            let looked = look(&medium);
            let (mut reads, is_over) = (0, Arc::new(AtomicBool::new(true)));
            let over = Arc::clone(&is_over);
            medium.set_hook(Box::new(move |instant| {
                if instant.step != Step::Read || instant.path != Path::new(PATH) {
                    return Verdict::Allow;
                }
                reads += 1;
                if reads != failing + 1 {
                    return Verdict::Allow;
                }
                over.store(false, Ordering::Relaxed);
                Verdict::Refuse(errno(instant, 5))
            }));
            let report = looked.repair().unwrap();
            // A page that parity would have to give back is told of instead.
            let is_told = report.not_rebuilt == [Damage::Parity { stripe: 0 }] || !report.is_whole();
            assert_eq!(report.rebuilt == 0, is_told, "{report:?}");
            outcomes.push(report.rebuilt);
            medium.clear_hook();
            drop(looked);
            if report.rebuilt == 0 {
                // The parity is damaged as before, and can be rebuilt now.
                assert_eq!(look(&medium).repair().unwrap().rebuilt, 1);
            }
            lose(&medium, 2);
            let report = look(&medium).repair().unwrap();
            assert_eq!(report.repaired, [range(2)], "{class:?}, read {failing}");
            assert!(read(&medium, Path::new(PATH)) == bytes());
            if is_over.load(Ordering::Relaxed) {
                break;
            }
        }
        assert!(outcomes.contains(&0) && outcomes.contains(&1), "{outcomes:?}");
    }
}

#[test]
fn a_dead_page_is_reported_and_other_stripes_go_on() {
    for (class, options) in both_ways() {
        let (medium, protected) = covered(class, &options);
        lose(&medium, 1);
        medium.refuse(PATH, PAGE as u64);
        medium.rot(PATH, 6 * PAGE as u64 + 9, &[!bytes()[6 * PAGE + 9]]);
        repair_is(&protected, &[6], &[1]);
        // Beside it and elsewhere.
        store(&medium, &protected, 2 * PAGE, b"beside");
        store(&medium, &protected, 9 * PAGE, b"elsewhere");
        protected.sync().unwrap();
        let coverage = protected.coverage().unwrap();
        assert_eq!(coverage.lost, [1], "{class:?}");
        assert_eq!(protected.scrub().unwrap().damage, [Damage::Page(range(1))], "{class:?}");
        protected.close().unwrap();
    }
}

#[test]
fn an_engine_goes_on_beside_a_dead_page() {
    for (class, engine) in engines() {
        let medium = installed(class);
        let file = open_with(&with_engine(engine), &medium);
        file.sync_redundancy().unwrap();
        lose(&medium, 1);
        medium.refuse(PATH, PAGE as u64);
        assert_eq!(file.repair().unwrap().lost, [range(1)], "{engine} on {class:?}");
        file.write_at(b"elsewhere", 9 * PAGE as u64).unwrap();
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        assert_eq!(file.repair().unwrap().lost, [range(1)], "{engine} on {class:?}");
        file.close().unwrap();
    }
}

#[test]
fn dead_parity_is_reported_and_other_stripes_go_on() {
    for class in BOTH {
        let (medium, protected) = covered(class, &by_hand());
        let side = companion(&medium, "redundancy");
        medium.lose(&side, 6 * PAGE as u64);
        medium.refuse(&side, 6 * PAGE as u64);
        for _ in 0..2 {
            let report = protected.repair().unwrap();
            assert_eq!((report.rebuilt, &report.not_rebuilt[..]), (0, &[Damage::Parity { stripe: 0 }][..]));
        }
        // Pages of other stripes are all given back.
        lose(&medium, 5);
        assert_eq!(protected.repair().unwrap().repaired, [range(5)], "{class:?}");
        protected.close().unwrap();
    }
}

#[test]
fn redundancy_that_the_device_loses_is_not_called_rebuilt() {
    for class in BOTH {
        // Tables, then parity; of both copies of a table, too.
        let pages: [&[usize]; 4] = [&[2], &[5], &[6], &[2, 4]];
        for (damaged, is_open) in pages.into_iter().flat_map(|pages| [(pages, false), (pages, true)]) {
            if !is_open && damaged.len() > 1 {
                // After a close, no process would know what they held.
                continue;
            }
            let (medium, protected) = covered(class, &by_hand());
            let side = companion(&medium, "redundancy");
            let open = if is_open { Some(protected) } else { protected.close().map(|()| None).unwrap() };
            let rot = |page: usize| medium.rot(&side, (page * PAGE + 100) as u64, &[0x5a; 7]);
            damaged.iter().for_each(|page| rot(*page));
            medium.wear(&side, (damaged[0] * PAGE) as u64);
            let handle = open.unwrap_or_else(|| look(&medium));
            let report = handle.repair().unwrap();
            let what = match damaged[0] {
                6 => Damage::Parity { stripe: 0 },
                page => Damage::Table { offset: (page * PAGE) as u64 },
            };
            assert_eq!(report.not_rebuilt, [what], "{class:?}, {damaged:?}");
            assert_eq!(report.rebuilt, damaged.len() as u64 - 1, "{class:?}, {damaged:?}");
            assert!(report.is_whole() && handle.scrub().unwrap().damage == [what]);
        }
    }
}

/// The count has each copy that was written: both copies of a table, if both are damaged.
#[test]
fn both_copies_of_a_table_are_rebuilt_while_the_file_is_open() {
    for class in BOTH {
        let (medium, protected) = covered(class, &by_hand());
        let side = companion(&medium, "redundancy");
        [2, 4].iter().for_each(|page| medium.rot(&side, (page * PAGE + 100) as u64, &[0x5a; 7]));
        let report = protected.repair().unwrap();
        assert_eq!((report.rebuilt, &report.not_rebuilt[..]), (2, &[][..]), "{class:?}");
        assert!(protected.scrub().unwrap().is_clean());
        protected.close().unwrap();
    }
}

#[test]
fn an_engine_opens_an_unreadable_sidecar_from_redundancy() {
    for class in BOTH {
        let medium = installed(class);
        let options = with_engine(EngineKind::Reflection).keep_sidecar(true);
        let file = open_with(&options, &medium);
        let mut expected = bytes();
        for page in 0..PAGES {
            file.write_at(b"only in the sidecar", (page * PAGE + 64) as u64).unwrap();
            expected[page * PAGE + 64..][..19].copy_from_slice(b"only in the sidecar");
        }
        file.close().unwrap();
        let sidecar = companion(&medium, "redundancy").with_extension("");
        let pages = medium.peek(&sidecar).unwrap().len() / PAGE;
        for page in (4..pages).step_by(untorn_testing::cases(5, 1)) {
            medium.lose(&sidecar, (page * PAGE) as u64);
            let file = options.open_on(medium.clone(), PATH).unwrap_or_else(|error| panic!("page {page}: {error}"));
            let mut held = vec![0; expected.len()];
            file.read_at(&mut held, 0).unwrap();
            assert!(held == expected, "page {page}");
            file.close().unwrap();
        }
    }
}

#[test]
fn the_covering_thread_survives_bad_pages_and_backs_off() {
    let medium = installed(MediumClass::Block);
    let options = ProtectOptions::new().stripe(4).period(Duration::from_millis(1));
    let protected = options.open_on(medium.clone(), PATH).unwrap();
    protected.sync().unwrap();
    lose(&medium, 1);
    store(&medium, &protected, 2 * PAGE, b"beside");
    let rounds = 200;
    for round in 0..rounds {
        store(&medium, &protected, 9 * PAGE, &[round as u8; 10]);
        while protected.coverage().unwrap().uncovered > 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    let tried = medium.counters().bad_reads;
    assert!((1..rounds).contains(&tried), "{tried} reads in at least {rounds} passes");
    assert_eq!(protected.coverage().unwrap().lost, [1]);
    // A sync asks for the page, so untorn tries to read it at once.
    protected.sync().unwrap();
    assert!(medium.counters().bad_reads > tried);
    assert!(!matches!(protected.close(), Err(Error::Poisoned { .. })));
}

#[test]
fn a_repair_that_the_device_loses_is_not_called_done() {
    for (class, options) in both_ways() {
        let (medium, protected) = covered(class, &options);
        // One in each of two stripes; the last page, which is short, among them. The device keeps no new bytes of
        // the first.
        for page in [1, PAGES - 1] {
            let at = page * PAGE + 7;
            medium.rot(PATH, at as u64, &[!bytes()[at]]);
        }
        medium.wear(PATH, PAGE as u64);
        for _ in 0..2 {
            let report = protected.repair().unwrap();
            assert_eq!(report.lost, [range(1)]);
            assert!(!report.is_whole() && !report.repaired.contains(&range(1)), "{report:?}");
            assert_eq!(protected.coverage().unwrap().lost, [1]);
            assert_eq!(protected.scrub().unwrap().damage, [Damage::Page(range(1))]);
        }
        assert_eq!(protected.coverage().unwrap().history.repaired, 1);
        protected.close().unwrap();
    }
}
