//! Redundancy over real files: what a device may do to pages is found and repaired, and nothing good is ever touched.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::prelude::*;
use untorn::Error;
use untorn::redundancy::{Checksum, Damage, PageRange, ProtectOptions, StripeLayout};

use crate::common::system::{SharedMapping, Untouched, counting_in_mappings, in_forked_child};
use crate::common::{PAGE, alone};
use crate::fixture::{Place, by_hand, page, protect_mapping, rot, uncovered};

fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// What happens to a page at rest.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Flip(usize),
    Zero,
    /// An older version comes back.
    Lost,
    /// Another page's bytes are here.
    Misdirected(usize),
}

fn faults() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0..PAGE * 8).prop_map(Fault::Flip),
        Just(Fault::Zero),
        Just(Fault::Lost),
        (0..64_usize).prop_map(Fault::Misdirected)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn single_damage_in_a_stripe_is_found_and_repaired(
        pages in 1..40_usize,
        tail in 1..=PAGE,
        width in 1..7_u32,
        spread in any::<bool>(),
        xxh3 in any::<bool>(),
        seed in any::<u64>(),
        wanted in proptest::collection::vec((any::<usize>(), faults()), 1..6),
    ) {
        let len = (pages - 1) * PAGE + tail;
        let older = pattern(len, !seed);
        let place = Place::new(&older);
        let layout = if spread { StripeLayout::Spread } else { StripeLayout::Consecutive };
        let checksum = if xxh3 { Checksum::Xxh3 } else { Checksum::Crc32c };
        let protected = by_hand().stripe(width).layout(layout).checksum(checksum).batch(7).open(&place.path).unwrap();
        protected.sync().unwrap();
        let bytes = pattern(len, seed);
        let stores = protected.announce(0..len as u64).unwrap();
        place.write(0, &bytes);
        stores.cover().unwrap();
        protected.close().unwrap();

        let stripes = pages.div_ceil(width as usize);
        let stripe_of = |page: usize| if spread { page % stripes } else { page / width as usize };
        let mut hit = std::collections::BTreeMap::new();
        for (page, fault) in &wanted {
            let page = page % pages;
            if hit.contains_key(&stripe_of(page)) {
                continue;
            }
            let at = page * PAGE;
            let mut here = bytes[at..len.min(at + PAGE)].to_vec();
            let length = here.len();
            match fault {
                Fault::Flip(bit) => here[bit / 8 % length] ^= 1 << (bit % 8),
                Fault::Zero => here.fill(0),
                Fault::Lost => here.copy_from_slice(&older[at..at + length]),
                Fault::Misdirected(other) => {
                    let other = other % pages * PAGE;
                    let count = length.min(len - other);
                    here[..count].copy_from_slice(&bytes[other..other + count]);
                }
            }
            place.rot(at, &here);
            if here != bytes[at..at + length] {
                hit.insert(stripe_of(page), Damage::Page(PageRange { offset: at as u64, len: length as u64 }));
            }
        }
        prop_assert_eq!(place.damage(), hit.values().copied().collect::<Vec<_>>());
        let report = place.repair();
        prop_assert_eq!(report.repaired.len(), hit.len());
        prop_assert!(report.lost.is_empty() && report.unknown.is_empty());
        prop_assert!(place.bytes() == bytes);
        prop_assert_eq!(place.damage(), vec![]);
    }

    #[test]
    fn damage_to_checksums_and_parity_is_found_and_rebuilt(
        seed in any::<u64>(), at in any::<u64>(), zero in any::<bool>(),
    ) {
        let bytes = pattern(13 * PAGE + 5, seed);
        let place = Place::protected(&bytes);
        let companion = place.companion();
        let len = fs::metadata(&companion).unwrap().len();
        let page = at % (len / PAGE as u64) * PAGE as u64;
        let before = fs::read(&companion).unwrap();
        let mut here = before[page as usize..page as usize + PAGE].to_vec();
        if zero { here.fill(0) } else { here[at as usize % PAGE] ^= 1 }
        rot(&companion, page, &here);
        prop_assert!(!place.damage().is_empty());
        let report = place.repair();
        // The scrub itself notes in both superblocks that it was there, and so renews them.
        let rebuilt = u64::from(page >= 2 * PAGE as u64);
        prop_assert!(report.rebuilt == rebuilt && report.lost.is_empty() && report.repaired.is_empty(), "{:?}", report);
        prop_assert!(place.bytes() == bytes);
        prop_assert_eq!(place.damage(), vec![]);
        place.rot(5000, &[!bytes[5000]]);
        prop_assert_eq!(place.repair().repaired.len(), 1);
        prop_assert!(place.bytes() == bytes);
    }
}

#[test]
fn hostile_bytes_never_change_the_file() {
    let bytes = pattern(3 * PAGE + 9, 3);
    let place = Place::new(&bytes);
    by_hand().stripe(2).open(&place.path).unwrap().close().unwrap();
    let companion = place.companion();
    let good = fs::read(&companion).unwrap();
    let judge = |bad: &[u8], what: &str| {
        fs::write(&companion, bad).unwrap();
        // It may be refused; whatever it says, the file is good, and stays.
        match place.try_repair() {
            Ok(report) => assert!(report.repaired.is_empty() && report.lost.is_empty(), "{what}: {report:?}"),
            Err(
                Error::Corrupt { .. } | Error::Unsupported { .. } | Error::Protection { .. } | Error::Invalid { .. },
            ) => {}
            Err(other) => panic!("{what}: {other}"),
        }
        assert!(place.bytes() == bytes, "{what}");
    };
    for at in (0..good.len()).step_by(61) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        judge(&bad, &format!("byte {at} flipped"));
    }
    for len in (0..good.len()).step_by(509) {
        judge(&good[..len], &format!("cut to {len} bytes"));
    }
    judge(&good, "whole again");
    assert_eq!(place.damage(), vec![]);
}

/// The bytes of a companion file of version 1 do not change. What differs from machine to machine is left out.
#[test]
fn the_format_is_that_of_the_golden_file() {
    let place = Place::new(&pattern(5 * PAGE, 1));
    by_hand().stripe(2).open(&place.path).unwrap().close().unwrap();
    let side = fs::read(place.companion()).unwrap();
    assert_eq!(side.len(), (2 + 4 + 3) * PAGE);
    let newest = if side[56..64] > side[PAGE + 56..PAGE + 64] { &side[..PAGE] } else { &side[PAGE..2 * PAGE] };
    let word = |at: usize| u64::from_le_bytes(newest[at..at + 8].try_into().unwrap());
    assert_eq!(&newest[..16], b"REDUND\r\n\x01\0\0\0\0\x10\0\0");
    assert_eq!(word(96), 5 * PAGE as u64);
    // Stripes of 2, consecutive, CRC-32C, closed.
    assert_eq!(newest[104..120], [2, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(word(120), 5 * PAGE as u64);
    for copy in [2, 4] {
        let data = &side[copy * PAGE..][..PAGE];
        let sums: Vec<u64> = (0..5).map(|n| u64::from_le_bytes(data[88 + 8 * n..][..8].try_into().unwrap())).collect();
        assert_eq!(sums, GOLDEN_SUMS, "copy at page {copy}");
        assert_eq!((data[0], &data[24..88]), (0, &[0; 64][..]), "copy at page {copy}");
        assert_eq!(data[16..24], newest[40..48], "the block is tied to the UUID");
    }
    let file = place.bytes();
    let parity: Vec<u8> = (0..PAGE).map(|at| file[at] ^ file[PAGE + at]).collect();
    assert!(side[6 * PAGE..7 * PAGE] == parity[..]);
    assert!(side[8 * PAGE..] == file[4 * PAGE..], "the parity of a stripe of one page is that page");
}

const GOLDEN_SUMS: [u64; 5] = [3_676_424_672, 2_210_158_064, 2_380_493_071, 1_945_895_445, 1_967_234_228];

#[test]
fn a_repair_skips_an_announced_page_and_mends_other_damage() {
    let bytes = pattern(8 * PAGE, 5);
    let place = Place::new(&bytes);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    let stores = protected.announce(10..20).unwrap();
    place.write(10, b"0123456789");
    // While it is announced it is not covered, whoever asks.
    protected.sync().unwrap();
    assert_eq!(uncovered(&protected), 1);
    drop(stores);
    // The process ends here.
    drop(protected);
    place.rot(6 * PAGE, b"x");
    let report = place.repair();
    assert_eq!(report.repaired, [page(6)]);
    assert_eq!(report.scrub.skipped, 1);
    let mut expected = bytes;
    expected[10..20].copy_from_slice(b"0123456789");
    assert!(place.bytes() == expected);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.uncovered, coverage.unknown.len()), (0, 0));
    assert!(matches!(protected.announce(0..8 * PAGE as u64 + 1), Err(Error::OutOfRange { .. })));
    assert!(matches!(by_hand().open(&place.path), Err(Error::InUse { .. })));
    assert!(matches!(place.try_scrub(), Err(Error::InUse { .. })));
    protected.close().unwrap();
}

#[test]
fn a_damaged_page_is_repaired_before_its_parity_changes() {
    let bytes = pattern(4 * PAGE, 6);
    let place = Place::new(&bytes);
    let protected = by_hand().open(&place.path).unwrap();
    protected.sync().unwrap();
    place.rot(PAGE, b"x");
    // Announced, and nothing else is stored: the old parity still fits.
    protected.announce(0..1).unwrap().cover().unwrap();
    assert!(place.bytes() == bytes);
    assert!(protected.coverage().unwrap().lost.is_empty());
    // With other bytes there it cannot be: the damaged page is not folded into the parity, and is told of.
    place.rot(PAGE, b"x");
    let stores = protected.announce(0..1).unwrap();
    place.write(0, b"y");
    stores.cover().unwrap();
    let coverage = protected.coverage().unwrap();
    assert_eq!((coverage.lost, coverage.uncovered, coverage.vulnerable_stripes), (vec![1], 1, 1));
    // Stored anew it is good again.
    let stores = protected.announce(PAGE as u64..2 * PAGE as u64).unwrap();
    place.write(PAGE, &[1; PAGE]);
    stores.cover().unwrap();
    let coverage = protected.coverage().unwrap();
    assert_eq!((&coverage.lost[..], coverage.uncovered, coverage.mttdl_gain()), (&[][..], 0, None));
    assert!(protected.scrub().unwrap().is_clean());
    protected.close().unwrap();
}

#[test]
fn threads_cover_and_scrub_by_themselves() {
    let bytes = pattern(64 * PAGE, 7);
    let place = Place::new(&bytes);
    let found: Arc<Mutex<Vec<Damage>>> = Arc::default();
    let theirs = found.clone();
    let protected = ProtectOptions::new()
        .period(Duration::from_millis(5))
        .scrub_every(Duration::from_millis(5))
        .scrub_rate(1 << 30)
        .on_damage(move |damage| theirs.lock().unwrap().push(*damage))
        .open(&place.path)
        .unwrap();
    while uncovered(&protected) > 0 {
        std::thread::yield_now();
    }
    assert!(found.lock().unwrap().is_empty());
    place.rot(9 * PAGE + 100, b"x");
    while found.lock().unwrap().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(found.lock().unwrap()[0], Damage::Page(page(9)));
    assert_eq!(protected.repair().unwrap().repaired.len(), 1);
    protected.close().unwrap();
    assert!(place.bytes() == bytes);
}

#[test]
fn no_false_alarm_while_a_program_stores() {
    let bytes = pattern(256 * PAGE, 8);
    let place = Place::new(&bytes);
    let protected = ProtectOptions::new().period(Duration::from_millis(2)).open(&place.path).unwrap();
    let (stop, damage) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = File::options().write(true).open(&place.path).unwrap();
            let mut at = 1_u64;
            for _ in 0..400 {
                at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                let offset = (at >> 33) % (256 * PAGE as u64 - 64);
                let stores = protected.announce(offset..offset + 64).unwrap();
                file.write_all_at(&at.to_le_bytes().repeat(8), offset).unwrap();
                drop(stores);
            }
            stop.store(true, Ordering::Release);
        });
        while !stop.load(Ordering::Acquire) {
            let report = protected.scrub().unwrap();
            damage.fetch_or(!report.is_clean(), Ordering::Relaxed);
        }
    });
    assert!(!damage.into_inner());
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn stores_to_a_mapping_are_found_and_covered() {
    let bytes = pattern(100 * PAGE + 77, 9);
    let place = Place::new(&bytes);
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    protected.sync().unwrap();
    assert_eq!(uncovered(&protected), 0);
    let mut expected = bytes;
    for (at, page) in [3, 50, 100].into_iter().enumerate() {
        mapping.store(page * PAGE + at, b"stored");
        expected[page * PAGE + at..][..6].copy_from_slice(b"stored");
    }
    assert_eq!(uncovered(&protected), 3);
    assert!(protected.scrub().unwrap().is_clean());
    protected.sync().unwrap();
    assert_eq!(uncovered(&protected), 0);
    mapping.store(7 * PAGE, b"again");
    expected[7 * PAGE..][..5].copy_from_slice(b"again");
    protected.close().unwrap();
    drop(mapping);
    assert!(place.bytes() == expected);
    assert_eq!(place.damage(), vec![]);
    place.rot(50 * PAGE, b"x");
    assert_eq!(place.repair().repaired.len(), 1);
    assert!(place.bytes() == expected);
}

#[test]
fn stores_to_a_mapping_are_unknown_after_a_crash_not_repaired() {
    let place = Place::new(&pattern(20 * PAGE, 10));
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    protected.sync().unwrap();
    mapping.store(5 * PAGE, b"stored");
    drop(protected);
    let bytes = place.bytes();
    let report = place.repair();
    assert_eq!(report.unknown, [page(5)]);
    assert!(report.repaired.is_empty() && report.lost.is_empty());
    assert!(place.bytes() == bytes);
    let protected = protect_mapping(&by_hand(), &mapping).unwrap();
    assert_eq!(protected.coverage().unwrap().unknown, [5]);
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn no_false_alarm_while_a_mapping_is_stored_to() {
    let place = Place::new(&pattern(256 * PAGE, 11));
    let mapping = SharedMapping::new(&place.path);
    let options = ProtectOptions::new().period(Duration::from_millis(1));
    let Some(protected) = protect_mapping(&options, &mapping) else { return };
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at = 1_u64;
            while !stop.load(Ordering::Acquire) {
                at = at.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                mapping.store((at >> 33) as usize % (256 * PAGE - 64), &at.to_le_bytes().repeat(8));
            }
        });
        let damage: Vec<Damage> = (0..5).flat_map(|_| protected.scrub().unwrap().damage).collect();
        stop.store(true, Ordering::Release);
        assert_eq!(damage, vec![]);
    });
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn memory_that_maps_no_whole_file_is_refused() {
    let place = Place::new(&pattern(4 * PAGE, 12));
    let mapping = SharedMapping::new(&place.path);
    let heap = [0_u8; 16];
    for (address, len) in [
        (heap.as_ptr(), 16),
        (std::ptr::null(), PAGE),
        (mapping.address().wrapping_add(PAGE).cast_const(), 3 * PAGE),
        (mapping.address().cast_const(), 2 * PAGE),
        (mapping.address().cast_const(), 900 * PAGE),
    ] {
        assert!(matches!(by_hand().mapping(address, len), Err(Error::Invalid { .. })), "{address:p} {len}");
    }
    assert!(untorn::coverage(&place.path).unwrap().is_none());
}

#[test]
fn a_forked_child_has_no_part_in_it() {
    alone!(60, "a forked child");
    let bytes = pattern(4 * PAGE, 13);
    let place = Place::new(&bytes);
    let protected = ProtectOptions::new().open(&place.path).unwrap();
    let stores = protected.announce(0..1).unwrap();
    let child = in_forked_child(|| {
        let refused = matches!(protected.sync(), Err(Error::Forked { .. }))
            && matches!(protected.announce(0..1), Err(Error::Forked { .. }));
        i32::from(!refused)
    });
    assert_eq!(child.wait(), Some(0));
    stores.cover().unwrap();
    protected.close().unwrap();
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn a_living_forked_child_does_not_block_a_new_protection() {
    alone!(60, "a forked child that lives on");
    let place = Place::new(&pattern(4 * PAGE, 14));
    let mapping = SharedMapping::new(&place.path);
    let Some(protected) = protect_mapping(&by_hand(), &mapping) else { return };
    protected.sync().unwrap();
    // The child lives until nobody else has this end of the pipe.
    let (mut here, there) = std::io::pipe().unwrap();
    let mut there = Some(there);
    let child = in_forked_child(|| {
        drop(there.take());
        i32::from(here.read(&mut [0]).is_err())
    });
    protected.close().unwrap();
    let protected = protect_mapping(&by_hand(), &mapping).unwrap();
    protected.sync().unwrap();
    mapping.store(PAGE, b"stored");
    assert_eq!(uncovered(&protected), 1);
    protected.close().unwrap();
    drop(there);
    assert_eq!(child.wait(), Some(0));
    assert_eq!(place.damage(), vec![]);
}

#[test]
fn a_look_at_the_redundancy_of_a_file_stores_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, pattern(10 * PAGE, 3)).unwrap();
    assert_eq!(untorn::protect(&path, &ProtectOptions::new()).unwrap().uncovered, 0);
    let untouched = Untouched::watch(&[dir.path()]);
    assert_eq!(untorn::coverage(&path).unwrap().unwrap().pages, 10);
    assert_eq!(untorn::redundancy::recorded(&path).unwrap().unwrap().coverage.pages, 10);
    untouched.check("a look at the coverage");
    // A scrub notes that it was made, in the redundancy file alone.
    let untouched = Untouched::watch(&[&path]);
    assert!(untorn::scrub(&path, None, &mut |_, _| true).unwrap().is_clean());
    untouched.check("a scrub");
    // A repair writes to the file.
    rot(&path, 4 * PAGE as u64, b"rot");
    assert_eq!(untorn::repair(&path, &mut |_, _| true).unwrap().repaired.len(), 1);
    assert!(fs::read(&path).unwrap() == pattern(10 * PAGE, 3));
}

/// A program that says nothing stores to the file meanwhile: what it stores may count as unknown, but stays.
#[test]
fn protecting_takes_no_store_of_a_live_program_back() {
    let dir = tempfile::tempdir().unwrap();
    let live = dir.path().join("live");
    fs::write(&live, vec![0; 16 * PAGE]).unwrap();
    let lost = counting_in_mappings(&live, || {
        for _ in 0..untorn_testing::cases(10, 500) {
            drop(untorn::protect(&live, &ProtectOptions::new()));
            drop(untorn::scrub(&live, None, &mut |_, _| true));
            drop(untorn::unprotect(&live));
        }
    });
    assert_eq!(lost, 0);
}
