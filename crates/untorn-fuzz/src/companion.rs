//! Forged companion files: those of a protected file with changes, sealed as the format requires.

use std::sync::LazyLock;

use untorn::redundancy::{Checksum, ProtectOptions, StripeLayout};
use untorn::testing::storage::MediumClass;
use untorn::{EngineKind, Options, Result};
use untorn_sim::SimMedium;

use crate::forge::{Run, changes, field, raw, seal_superblock};
use crate::input::Input;
use crate::judge::plain;
use crate::pair::{Honest, LEN, PAGE, PATH, sidecar};

/// Table blocks of these files: one of data pages, one of parity pages, each in two copies.
const BLOCKS: usize = 2;
/// The most a companion file is stretched to.
const MAX_SIDE: u64 = 1 << 20;

/// The superblock's fields.
const SUPERBLOCK: [Run; 7] = [(0, 8, 1), (8, 4, 2), (16, 8, 4), (56, 8, 6), (104, 4, 4), (120, 8, 7), (672, 8, 1)];

/// The bytes of the protected file.
static DATA: LazyLock<Vec<u8>> = LazyLock::new(|| (0..LEN).map(|at| (at / 7 + at / PAGE) as u8).collect());

/// A machine with a protected file: one for each layout and checksum, closed, and left while some of it was stored to.
static HONEST: LazyLock<Vec<Honest>> = LazyLock::new(|| {
    let mut all = Vec::new();
    for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
        for checksum in [Checksum::Crc32c, Checksum::Xxh3] {
            for clean in [false, true] {
                all.push(build(layout, checksum, clean).expect("protecting an unforged file succeeds"));
            }
        }
    }
    all
});

fn by_hand() -> ProtectOptions {
    ProtectOptions::new().on_demand()
}

fn build(layout: StripeLayout, checksum: Checksum, clean: bool) -> Result<Honest> {
    let medium = SimMedium::new(MediumClass::PersistentMemory);
    medium.install(PATH, &DATA);
    let protected = by_hand().stripe(2).layout(layout).checksum(checksum).open_on(medium.clone(), PATH)?;
    protected.sync()?;
    let state = if clean {
        protected.close()?;
        medium.crash_state()
    } else {
        let _stores = protected.announce(PAGE as u64..PAGE as u64 + 1)?;
        medium.crash_state()
    };
    Honest::take(state, sidecar(&medium)?.with_extension("redundancy"))
}

/// Changes something. Returns whether no seal was forged, so that no changed block or superblock can be believed.
fn change(side: &mut Vec<u8>, input: &mut Input<'_>) -> bool {
    match input.byte() % 5 {
        0 => {
            field(side, &SUPERBLOCK, [0, PAGE], input, seal_superblock);
            false
        }
        1 => {
            // A number, a sequence number, a tie, marks, or a checksum.
            let at = 8 * input.below(511) as usize;
            let block = input.below(BLOCKS as u64) as usize;
            let copies = [0, 1].map(|copy| (2 + copy * BLOCKS + block) * PAGE);
            field(side, &[(at, 8, 1)], copies, input, seal_superblock);
            false
        }
        2 => {
            side.resize(input.below(MAX_SIDE) as usize, 0);
            true
        }
        _ => {
            let len = side.len();
            raw(side, 0, len, input);
            true
        }
    }
}

/// Forges a companion file as the input says. An error is a right answer to it. A call that succeeds neither panics
/// nor changes a page that it does not report as repaired. If no seal was forged, it changes no page, for all are
/// good.
pub fn companion(input: &[u8]) {
    let mut input = Input::new(input);
    let honest = input.pick(&HONEST);
    let mut side = honest.bytes.clone();
    let count = 1 + input.below(16);
    let unforged = changes(&mut input, count, |input| change(&mut side, input));
    let medium = honest.with(&side);
    let contents = || plain(&medium).expect("the file exists");
    match input.byte() % 8 {
        // This is rare, because a reader amid writes tries again after a pause.
        1 => drop(untorn::redundancy::recorded_on(&medium, PATH)),
        2 | 3 => return with_engine(&medium, unforged),
        _ => {}
    }

    if let Ok(looked) = ProtectOptions::new().look_on(medium.clone(), PATH) {
        drop(looked.coverage());
        drop(looked.scrub());
        let report = looked.repair();
        let repaired = report.map(|report| report.repaired).unwrap_or_default();
        let now = contents();
        assert_eq!(now.len(), LEN, "a repair changed the file's length");
        for (page, (is, was)) in now.chunks(PAGE).zip(DATA.chunks(PAGE)).enumerate() {
            let told = repaired.iter().any(|range| range.offset == (page * PAGE) as u64);
            assert!(is == was || told && !unforged, "undamaged page {page} was changed");
        }
    } else {
        assert!(contents() == *DATA, "a refused call changed the file");
    }

    let before = contents();
    let Ok(protected) = by_hand().open_on(medium.clone(), PATH) else {
        assert!(contents() == before, "a refused call changed the file");
        return;
    };
    drop(protected.sync());
    drop(protected.scrub());
    drop(protected.repair());
    if protected.close().is_ok() {
        drop(by_hand().open_on(medium.clone(), PATH).map(|protected| protected.coverage()));
    }
    assert!(!unforged || contents() == *DATA, "an undamaged page was changed");
}

/// Opens the file with an engine, which keeps the redundancy that it has. It stores nothing, so the file stays as it
/// is, but for pages that a forged checksum has given back.
fn with_engine(medium: &SimMedium, unforged: bool) {
    let options = Options::new().engine(EngineKind::Reflection).record_area(2, 8);
    if let Ok(file) = options.open_on(medium.clone(), PATH) {
        drop(file.coverage());
        drop(file.scrub());
        drop(file.repair());
        let mut held = vec![0; LEN];
        if file.read_at(&mut held, 0).is_ok() {
            assert!(!unforged || held == *DATA, "an engine read bytes that the file does not hold");
        }
        drop(file.close());
    }
    let now = plain(medium).expect("the file exists");
    assert_eq!(now.len(), LEN, "the file's length changed");
    assert!(!unforged || now == *DATA, "an undamaged page was changed");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forge::put;
    use crate::judge::judge_made_up;

    /// A fuzzer whose seals are wrong would never get past the first check.
    #[test]
    fn a_forged_field_with_a_right_seal_is_read() {
        for honest in HONEST.iter() {
            let mut side = honest.bytes.clone();
            for copy in 0..2 {
                put(&mut side, copy * PAGE + 144, 77, 8);
                seal_superblock(&mut side, copy * PAGE);
            }
            let looked = ProtectOptions::new().look_on(honest.with(&side), PATH).unwrap();
            assert_eq!(looked.coverage().unwrap().history.scrubs, 77);
            assert!(looked.scrub().unwrap().is_clean());
        }
    }

    #[test]
    fn made_up_changes_are_judged() {
        judge_made_up(untorn_testing::cases(100, 400), 200, companion);
    }
}
