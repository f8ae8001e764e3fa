//! Redundancy on the simulated media: a bounded exploration, what it must convict, and calls that fail.

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use untorn::redundancy::{ProtectOptions, RepairReport, Tracker};
use untorn::testing::storage::{Access, Barrier, Medium, MediumClass, MediumFile};
use untorn_sim::explore::{Breach, Target};
use untorn_sim::{CrashState, SimMedium, Step, Verdict};

use crate::common::{errno, power_cuts, watched};
use crate::explore::{canary_is_convicted, survives};

#[test]
fn unannounced_stores_are_convicted_in_both_fault_models() {
    canary_is_convicted(Target::Redundancy, Breach::Accusation);
}

#[test]
fn redundancy_survives_a_bounded_exploration() {
    survives(Target::Redundancy, 2000, 2);
}

/// A superblock names 64 pages, and a list has 500 in a block.
#[test]
fn a_large_repair_cut_short_anywhere_is_resumed() {
    const PAGE: usize = 4096;
    const PAGES: usize = 1040;
    for (class, damaged) in [(MediumClass::Block, 150), (MediumClass::Block, 510), (MediumClass::PersistentMemory, 70)]
    {
        let medium = SimMedium::new(class);
        let bytes: Vec<u8> = (0..PAGES * PAGE).map(|at| (at % 251) as u8).collect();
        medium.install("/data", &bytes);
        let options = ProtectOptions::new().stripe(2).on_demand();
        options.open_on(medium.clone(), "/data").unwrap().close().unwrap();
        for page in (0..PAGES).step_by(2).take(damaged) {
            medium.rot("/data", (page * PAGE + 100) as u64, &[!bytes[page * PAGE + 100]]);
        }
        let repair = || options.look_on(medium.clone(), "/data").unwrap().repair().unwrap();
        let (report, seen) = watched(&medium, Step::persists, repair);
        assert_eq!((report.repaired.len(), report.unknown.len()), (damaged, 0));
        assert!(medium.peek("/data").unwrap() == bytes);
        assert!(seen.len() > 2 * damaged / 64);
        // A sample, the last of them.
        for (_, state) in seen.iter().step_by(seen.len().div_ceil(24)).chain(seen.last()) {
            let [kept, lost] = power_cuts(state);
            for (nth, left) in [state.killed(), kept, lost].into_iter().enumerate() {
                // Others may have it for a moment.
                if nth == 1 {
                    options.open_on(left.clone(), "/data").unwrap().close().unwrap();
                }
                let report = options.look_on(left.clone(), "/data").unwrap().repair().unwrap();
                assert_eq!((&report.lost[..], &report.unknown[..]), (&[][..], &[][..]), "{class:?}");
                assert!(left.peek("/data").unwrap() == bytes, "{class:?}");
                assert!(options.look_on(left, "/data").unwrap().scrub().unwrap().is_clean());
            }
        }
    }
}

/// More damaged pages than a superblock names, of a file that was closed, and a stripe that has none.
struct ManyDamaged {
    bytes: Vec<u8>,
    options: ProtectOptions,
}

impl ManyDamaged {
    const PAGE: usize = 4096;
    const DAMAGED: usize = 150;

    fn new() -> (SimMedium, Self) {
        let bytes: Vec<u8> = (0..2 * (Self::DAMAGED + 1) * Self::PAGE).map(|at| (at % 251) as u8).collect();
        let options = ProtectOptions::new().stripe(2).on_demand();
        let medium = SimMedium::new(MediumClass::Block);
        medium.install("/data", &bytes);
        options.open_on(medium.clone(), "/data").unwrap().close().unwrap();
        for page in (0..2 * Self::DAMAGED).step_by(2) {
            let at = page * Self::PAGE + 100;
            medium.rot("/data", at as u64, &[!bytes[at]]);
        }
        (medium, ManyDamaged { bytes, options })
    }

    fn repair(&self, medium: &SimMedium) -> RepairReport {
        self.options.look_on(medium.clone(), "/data").unwrap().repair().unwrap()
    }

    /// Repairs, and tells what a crash at each flush could have left, with the flush's name.
    fn repair_watched(&self, medium: &SimMedium) -> Vec<(&'static str, CrashState)> {
        let (report, states) = self.watched(medium);
        assert_eq!((&report.lost[..], &report.unknown[..]), (&[][..], &[][..]));
        states
    }

    fn watched(&self, medium: &SimMedium) -> (RepairReport, Vec<(&'static str, CrashState)>) {
        let looked = self.options.look_on(medium.clone(), "/data").unwrap();
        watched(medium, Step::persists, || looked.repair().unwrap())
    }

    /// Another program writes to a page without notice.
    fn write_untold(medium: &SimMedium, page: usize) {
        let others = medium.open(Path::new("/data"), Access::ReadWrite, 0).unwrap();
        others.store((page * Self::PAGE + 5) as u64, b"of others").unwrap();
        others.sync(Barrier::new("test.others")).unwrap();
    }
}

#[test]
fn a_repair_that_carries_another_on_may_be_killed_as_well() {
    let (medium, file) = ManyDamaged::new();
    let mut first = file.repair_watched(&medium);
    // The pages of one part are written, the file has another time by that, and the superblock names them yet.
    first.retain(|(name, _)| *name == "redundancy.repair.done");
    assert!(first.len() > 5);
    for (_, state) in first.iter().step_by(2) {
        for (_, state) in file.repair_watched(&state.image(&state.nothing()).boot()) {
            for left in power_cuts(&state) {
                let report = file.repair(&left);
                assert_eq!((&report.lost[..], &report.unknown[..]), (&[][..], &[][..]));
                assert!(left.peek("/data").unwrap() == file.bytes);
            }
        }
    }
}

/// More modified pages than a superblock names, taken back on request.
#[test]
fn a_forced_repair_cut_short_anywhere_is_resumed() {
    let (medium, file) = ManyDamaged::new();
    file.repair(&medium);
    (0..ManyDamaged::DAMAGED).for_each(|nth| ManyDamaged::write_untold(&medium, 2 * nth + 1));
    // A repair that is not forced replaces none.
    let written = medium.peek("/data").unwrap();
    assert_eq!(file.repair(&medium).unknown.len(), ManyDamaged::DAMAGED);
    assert!(medium.peek("/data").unwrap() == written);
    let forced = |medium: &SimMedium| {
        let looked = file.options.look_on(medium.clone(), "/data").unwrap();
        watched(medium, Step::persists, || looked.repair_modified_with(&mut |_, _| true).unwrap())
    };
    let (report, states) = forced(&medium);
    assert_eq!((report.replaced.len(), report.unknown.len()), (ManyDamaged::DAMAGED, 0));
    assert!(medium.peek("/data").unwrap() == file.bytes && states.len() > 4);
    for (_, state) in states.iter().step_by(states.len().div_ceil(24)).chain(states.last()) {
        let [kept, lost] = power_cuts(state);
        for left in [state.killed(), kept, lost] {
            // A page has the one version or the other; what the repair did not reach is what the program wrote.
            let (report, _) = forced(&left);
            assert!(report.lost.is_empty() && report.refused.is_empty() && report.unknown.is_empty(), "{report:?}");
            assert!(left.peek("/data").unwrap() == file.bytes);
            assert!(file.options.look_on(left, "/data").unwrap().scrub().unwrap().is_clean());
        }
    }
}

#[test]
fn outside_writes_amid_a_killed_repair_are_kept() {
    let (medium, file) = ManyDamaged::new();
    let states = file.repair_watched(&medium);
    // The first is of the list, the second of the first part.
    let mut intents = states.iter().filter(|(name, _)| *name == "redundancy.repair.intent");
    let (_, state) = intents.nth(2).unwrap();
    let left = state.image(&state.nothing()).boot();
    let mut expected = left.peek("/data").unwrap();
    assert!(expected[..ManyDamaged::PAGE] == file.bytes[..ManyDamaged::PAGE], "it is not given back yet");
    assert!(expected != file.bytes);
    let others = left.open(Path::new("/data"), Access::ReadWrite, 0).unwrap();
    others.store(5, b"of others").unwrap();
    others.sync(Barrier::new("test.others")).unwrap();
    expected[5..14].copy_from_slice(b"of others");
    let report = file.repair(&left);
    assert!(report.repaired.is_empty() && report.unknown.iter().any(|range| range.offset == 0));
    assert!(left.peek("/data").unwrap() == expected);
}

/// Two repairs are killed one after the other, with a write of others between them. From then on the file's time is
/// in doubt, and only named or listed pages are known to be damaged.
#[test]
fn a_repair_beside_an_unknown_page_survives_a_kill() {
    let (medium, file) = ManyDamaged::new();
    let states = file.repair_watched(&medium);
    let done = |states: &[(&str, CrashState)]| -> Vec<CrashState> {
        let states = states.iter().filter(|(name, _)| *name == "redundancy.repair.done");
        states.map(|(_, state)| state.clone()).collect()
    };
    let killed = &done(&states)[0];
    let left = killed.image(&killed.nothing()).boot();
    let untouched = 2 * ManyDamaged::DAMAGED;
    ManyDamaged::write_untold(&left, untouched);
    let at = |page: usize| (page * ManyDamaged::PAGE) as u64;
    let mut expected = file.bytes.clone();
    expected[untouched * ManyDamaged::PAGE + 5..][..9].copy_from_slice(b"of others");
    let (report, states) = file.watched(&left);
    assert_eq!((report.unknown.len(), report.unknown[0].offset), (1, at(untouched)));
    assert!(left.peek("/data").unwrap() == expected);
    let states = done(&states);
    assert!(states.len() > 3);
    for state in &states {
        for left in power_cuts(state) {
            let report = file.repair(&left);
            assert_eq!((report.unknown.len(), report.unknown[0].offset), (1, at(untouched)));
            assert!(left.peek("/data").unwrap() == expected);
        }
    }
    // A page that was given back is not named any more, so bytes that others write there stay.
    let left = states[0].image(&states[0].everything()).boot();
    ManyDamaged::write_untold(&left, 0);
    expected[5..14].copy_from_slice(b"of others");
    let report = file.repair(&left);
    assert_eq!(report.unknown.iter().map(|range| range.offset).collect::<Vec<_>>(), [0, at(untouched)]);
    assert!(left.peek("/data").unwrap() == expected);
}

#[test]
fn a_repair_of_many_pages_needs_no_room_for_a_list() {
    let (medium, file) = ManyDamaged::new();
    let looked = file.options.look_on(medium.clone(), "/data").unwrap();
    medium.set_hook(Box::new(|instant| match instant.step {
        Step::SetLen | Step::Allocate => Verdict::Refuse(errno(instant, 28)),
        _ => Verdict::Allow,
    }));
    let report = looked.repair().unwrap();
    assert_eq!((report.repaired.len(), report.lost.len()), (ManyDamaged::DAMAGED, 0));
    medium.clear_hook();
    drop(looked);
    assert!(medium.peek("/data").unwrap() == file.bytes);
    assert!(file.options.look_on(medium, "/data").unwrap().scrub().unwrap().is_clean());
}

/// Reports the stores that it was given, one answer after the other.
#[derive(Default)]
struct Script(Mutex<VecDeque<Vec<Range<u64>>>>);

impl Tracker for Script {
    fn take(&self) -> untorn::Result<Vec<Range<u64>>> {
        Ok(self.0.lock().unwrap().pop_front().unwrap_or_default())
    }

    fn look(&self) -> untorn::Result<Vec<Range<u64>>> {
        Ok(self.0.lock().unwrap().front().cloned().unwrap_or_default())
    }
}

/// Pages 9 and 0 are stored to after the pass asked; it finds that 9 differs, beside 8, and asks again: by then 0 is
/// behind it.
#[test]
fn a_page_that_a_pass_did_not_reach_is_not_called_covered() {
    const PAGE: u64 = 4096;
    let medium = SimMedium::new(MediumClass::Block);
    medium.install("/data", &[1; 12 * PAGE as usize]);
    let script = Arc::new(Script::default());
    let options = ProtectOptions::new().stripe(4).batch(1).on_demand();
    let protected = options.track_on(medium.clone(), "/data", script.clone()).unwrap();
    protected.sync().unwrap();
    assert_eq!(protected.coverage().unwrap().uncovered, 0);
    let file = medium.open(Path::new("/data"), Access::ReadWrite, 0).unwrap();
    [8, 9, 0].iter().for_each(|page| file.store(page * PAGE + 7, b"stored").unwrap());
    script.0.lock().unwrap().extend([iter::once(8..9).collect(), vec![9..10, 0..1]]);
    protected.sync().unwrap();
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.uncovered, coverage.vulnerable_stripes), (1, 1));
    assert!(coverage.oldest_uncovered.is_some());
    protected.sync().unwrap();
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.uncovered, coverage.oldest_uncovered), (0, None));
    assert!(protected.scrub().unwrap().is_clean());
}

/// Something is uncovered at the end of every pass, and never the same for long.
#[test]
fn the_age_that_is_told_is_that_of_a_page_and_not_of_the_file() {
    for (class, period) in [(MediumClass::Block, None), (MediumClass::PersistentMemory, Some(Duration::ZERO))] {
        let medium = SimMedium::new(class);
        medium.install("/data", &[7; 12 * 4096]);
        let options = ProtectOptions::new().stripe(4).on_demand();
        let options = period.map_or(options.clone(), |period| options.period(period));
        let protected = options.open_on(medium.clone(), "/data").unwrap();
        let page = |number: u64| number * 4096..number * 4096 + 1;
        let mut held = protected.announce(page(0)).unwrap();
        for round in 1..6 {
            let before = Instant::now();
            // It leaves the page that is held, and what else there is of its stripe.
            protected.sync().unwrap();
            let next = protected.announce(page(round % 3 * 4)).unwrap();
            drop(std::mem::replace(&mut held, next));
            let stored = Instant::now();
            protected.sync().unwrap();
            let at_least = stored.elapsed();
            let coverage = protected.coverage().unwrap();
            let age = coverage.oldest_uncovered.unwrap();
            assert_eq!(coverage.uncovered, 1);
            assert!(at_least <= age && age <= before.elapsed(), "{age:?} in round {round} on {class:?}");
        }
        drop(held);
        protected.sync().unwrap();
        assert_eq!(protected.coverage().unwrap().oldest_uncovered, None);
        protected.close().unwrap();
    }
}
