//! Redundancy of files that have an engine, over real files: what the engine stores is covered, and what is damaged
//! comes back.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use untorn::options::Prefer;
use untorn::redundancy::{Damage, ProtectOptions, StripeLayout, VerifyReads};
use untorn::report::ProtectionProblem;
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};

use crate::common::read;
use crate::fixture::{LEN, PAGE_LEN as PAGE, Place, at_once, by_hand, companion_of, page};

/// Every engine, with every durability that it is told apart by.
fn engines() -> [Options; 3] {
    let with = |engine, durability| Options::new().engine(engine).durability(durability);
    [
        with(EngineKind::Reflection, Durability::PerWrite),
        with(EngineKind::Reflection, Durability::PerCommit),
        with(EngineKind::HybridLog, Durability::PerCommit),
    ]
}

fn fill(file: &AtomicFile, seed: u64) -> Vec<u8> {
    let bytes: Vec<u8> = (0..file.len()).map(|at| ((at / 64 + seed) * 37 % 251) as u8).collect();
    // Half of each page is written once more, so that the sidecar has slices of it.
    file.write_at(&bytes, 0).unwrap();
    for page in 0..file.len() / PAGE {
        let at = (page * PAGE) as usize;
        file.write_at(&bytes[at..at + 2048], page * PAGE).unwrap();
    }
    file.sync().unwrap();
    bytes
}

/// A file that is made with these options and [filled](fill), and its bytes.
fn filled(options: &Options) -> (Place, AtomicFile, Vec<u8>) {
    let place = Place::empty();
    let file = options.create(&place.path, LEN).unwrap();
    let bytes = fill(&file, 1);
    (place, file, bytes)
}

#[test]
fn damage_is_repaired_while_the_engine_has_the_file_and_after() {
    for options in engines() {
        for redundancy in [by_hand(), at_once()] {
            let options = options.clone().redundancy(redundancy);
            let (place, file, bytes) = filled(&options);
            file.sync_redundancy().unwrap();
            file.sync().unwrap();
            let coverage = file.coverage().unwrap().unwrap();
            assert_eq!((coverage.pages, coverage.uncovered, coverage.in_sidecar), (41, 0, 0));
            place.rot(9 * PAGE + 5, b"damage");
            assert_eq!(file.scrub().unwrap().damage, [Damage::Page(page(9))]);
            assert_eq!(file.repair().unwrap().repaired, [page(9)]);
            assert_eq!(read(&file), bytes);
            assert!(file.scrub().unwrap().is_clean());
            file.write_at(b"something else", 17 * PAGE).unwrap();
            file.close().unwrap();
            let report = place.scrub();
            assert_eq!((report.damage, report.skipped), (Vec::new(), 0));
            place.rot(17 * PAGE + 5, b"damage");
            place.repairs(1);
            let file = options.open(&place.path).unwrap();
            let mut found = [0; 14];
            file.read_at(&mut found, 17 * PAGE).unwrap();
            assert_eq!(&found, b"something else");
            // A plain protected file from here on.
            file.settle().unwrap();
            place.rot(0, &[!bytes[0]]);
            place.repairs(1);
            assert_eq!(place.bytes()[..PAGE as usize], bytes[..PAGE as usize]);
        }
    }
}

#[test]
fn a_protected_file_stays_so_whoever_opens_it() {
    for options in engines() {
        let place = Place::empty();
        options.create(&place.path, LEN).unwrap().close().unwrap();
        assert!(untorn::coverage(&place.path).unwrap().is_none());
        assert_eq!(untorn::protect(&place.path, &by_hand().stripe(2)).unwrap().uncovered, 0);
        let file = options.open(&place.path).unwrap();
        assert!(matches!(place.try_scrub(), Err(Error::InUse { .. })));
        let bytes = fill(&file, 3);
        file.close().unwrap();
        let coverage = place.coverage();
        assert_eq!((coverage.uncovered, coverage.stripe, coverage.believed), (0, 2, true));
        for page in [1, 8, 40] {
            place.rot(page * PAGE + 3, b"damage");
        }
        place.repairs(3);
        assert_eq!(read(&options.open(&place.path).unwrap()), bytes);
    }
}

#[test]
fn a_dropped_file_is_covered_or_known_not_to_be() {
    for options in engines() {
        let options = options.redundancy(by_hand());
        let (place, file, _) = filled(&options);
        file.sync_redundancy().unwrap();
        file.sync().unwrap();
        file.write_at(&[7; 100], 3 * PAGE).unwrap();
        file.sync().unwrap();
        drop(file);
        let report = place.scrub();
        assert!(report.is_clean(), "{report:?}");
        // What nobody stored to is covered all the while.
        place.rot(30 * PAGE, b"damage");
        assert_eq!(place.damage(), [Damage::Page(page(30))]);
        let file = options.open(&place.path).unwrap();
        assert_eq!(file.repair().unwrap().repaired.len(), 1);
        file.sync_redundancy().unwrap();
        assert_eq!(file.coverage().unwrap().unwrap().uncovered, 0);
        file.close().unwrap();
    }
}

#[test]
fn another_length_is_covered_anew() {
    for options in engines() {
        let place = Place::empty();
        let options = options.redundancy(by_hand().stripe(3));
        let file = options.create(&place.path, 0).unwrap();
        assert!(matches!(file.coverage(), Err(Error::Protection { problem: ProtectionProblem::Empty, .. })));
        file.sync_redundancy().unwrap();
        for len in [3 * PAGE + 5, 20 * PAGE, 2 * PAGE, 0, 2 * PAGE] {
            file.resize(len).unwrap();
            if len > 0 {
                file.write_at(b"at the end", len - 10).unwrap();
            }
            file.sync().unwrap();
            file.sync_redundancy().unwrap();
        }
        file.close().unwrap();
        let coverage = place.coverage();
        assert_eq!((coverage.pages, coverage.uncovered, coverage.stripe), (2, 0, 3));
        assert!(place.scrub().is_clean());
        place.rot(PAGE + 1, b"damage");
        place.repairs(1);
        let file = options.open(&place.path).unwrap();
        assert!(read(&file).ends_with(b"at the end"));
    }
}

#[test]
fn threads_write_while_a_thread_covers_and_another_scrubs() {
    for options in engines() {
        let place = Place::empty();
        let alarms: Arc<Mutex<Vec<Damage>>> = Arc::default();
        let told = alarms.clone();
        let redundancy = ProtectOptions::new()
            .period(Duration::from_millis(1))
            .scrub_every(Duration::from_millis(1))
            .on_damage(move |damage| told.lock().unwrap().push(*damage));
        let file = options.redundancy(redundancy).create(&place.path, LEN).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..2_u64 {
                let file = &file;
                scope.spawn(move || {
                    for round in 0..300_u64 {
                        let at = (round * 7919 + thread * 20 * PAGE) % (LEN - 200);
                        file.write_at(&[round as u8; 200], at).unwrap();
                        if round % 16 == 0 {
                            file.sync().unwrap();
                        }
                    }
                });
            }
        });
        file.sync().unwrap();
        let bytes = read(&file);
        file.close().unwrap();
        assert_eq!(*alarms.lock().unwrap(), []);
        assert!(place.scrub().is_clean());
        assert_eq!(place.coverage().uncovered, 0);
        place.rot(20 * PAGE, b"damage");
        place.repairs(1);
        assert_eq!(read(&AtomicFile::open(&place.path).unwrap()), bytes);
    }
}

#[test]
fn a_map_is_covered_behind_its_commits() {
    let place = Place::empty();
    let options = Options::new().redundancy(by_hand());
    let mut map = options.create_map(&place.path, LEN).unwrap();
    map[5 * PAGE as usize..][..9].copy_from_slice(b"committed");
    map.commit().unwrap();
    map.sync_redundancy().unwrap();
    assert_eq!(map.coverage().unwrap().unwrap().uncovered, 0);
    map[7 * PAGE as usize] = 1;
    map.commit().unwrap();
    place.rot(5 * PAGE, b"damage!!!");
    assert_eq!(map.repair().unwrap().repaired, [page(5)]);
    assert_eq!(&map[5 * PAGE as usize..][..9], b"committed");
    assert!(map.scrub().unwrap().is_clean());
    map.close().unwrap();
    assert_eq!(place.coverage().uncovered, 0);
    assert_eq!(place.bytes()[7 * PAGE as usize], 1);
}

#[test]
fn the_period_covers_by_itself() {
    let redundancy = ProtectOptions::new().period(Duration::from_millis(5));
    let (_place, file, _) = filled(&Options::new().redundancy(redundancy));
    let start = Instant::now();
    while file.coverage().unwrap().unwrap().uncovered > 0 {
        assert!(start.elapsed() < Duration::from_secs(300), "nothing covers it");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn calls_that_need_redundancy_are_refused_without_it() {
    let place = Place::empty();
    let file = Options::new().keep_sidecar(true).create(&place.path, LEN).unwrap();
    assert!(file.coverage().unwrap().is_none());
    assert!(matches!(file.sync_redundancy(), Err(Error::Invalid { .. })));
    file.close().unwrap();
    assert!(matches!(place.try_repair(), Err(Error::Protection { problem: ProtectionProblem::NotProtected, .. })));
    let by_protecting = ProtectOptions::new().open(&place.path);
    assert!(matches!(by_protecting, Err(Error::Protection { problem: ProtectionProblem::HasEngine, .. })));
    let reader = Options::new().read_only(true).redundancy(by_hand());
    assert!(matches!(reader.open(&place.path), Err(Error::Invalid { .. })));
    let canary = Options::new().engine(EngineKind::Passthrough).redundancy(by_hand());
    assert!(matches!(canary.open(&place.path), Err(Error::Invalid { .. })));
    // It is of no file that somebody else has.
    let holder = Options::new().open(&place.path).unwrap();
    assert!(matches!(untorn::protect(&place.path, &by_hand()), Err(Error::InUse { .. })));
    assert!(untorn::coverage(&place.path).unwrap().is_none());
    holder.close().unwrap();
    untorn::protect(&place.path, &by_hand()).unwrap();
    // Nor is it kept twice.
    let shared = Options::new().shared(true);
    assert!(matches!(shared.clone().redundancy(by_hand()).open(&place.path), Err(Error::Invalid { .. })));
    let shared = shared.open(&place.path).unwrap();
    shared.write_at(b"shared", 9).unwrap();
    shared.close().unwrap();
    assert_eq!(place.coverage().uncovered, 0);
    assert!(place.scrub().is_clean());
}

/// Another program's edit, at a time that no clock gives.
fn edit(path: &Path, at: u64, bytes: &[u8]) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).unwrap();
}

#[test]
fn a_trusted_side_is_not_repaired_back() {
    for options in engines() {
        for side in [Prefer::File, Prefer::Sidecar] {
            let options = options.clone().redundancy(by_hand()).keep_sidecar(true);
            let (place, file, _) = filled(&options);
            // What is edited at home is to count there.
            file.deploy(0, LEN).unwrap();
            file.sync().unwrap();
            file.sync_redundancy().unwrap();
            file.write_at(&[7; 100], 3 * PAGE).unwrap();
            file.sync().unwrap();
            drop(file);
            edit(&place.path, 30 * PAGE, b"edited");
            assert!(matches!(options.open(&place.path), Err(Error::ModifiedExternally { .. })));
            let file = options.clone().prefer(side).open(&place.path).unwrap();
            file.sync_redundancy().unwrap();
            assert!(file.repair().unwrap().repaired.is_empty());
            let mut found = [0; 6];
            file.read_at(&mut found, 30 * PAGE).unwrap();
            assert_eq!(&found, b"edited", "{side:?}");
            let coverage = file.coverage().unwrap().unwrap();
            assert_eq!((coverage.uncovered, coverage.unknown), (0, vec![30]));
            assert!(file.scrub().unwrap().is_clean());
        }
    }
}

#[test]
fn a_file_cut_short_by_others_is_refused_unchanged() {
    for options in engines() {
        let options = options.redundancy(by_hand()).keep_sidecar(true);
        let (place, file, _) = filled(&options);
        file.close().unwrap();
        let kept = fs::read(place.companion()).unwrap();
        File::options().write(true).open(&place.path).unwrap().set_len(9 * PAGE).unwrap();
        assert!(matches!(options.open(&place.path), Err(Error::ModifiedExternally { .. })));
        assert!(fs::read(place.companion()).unwrap() == kept, "the refused open changed what there was");
    }
}

#[test]
fn redundancy_of_a_file_that_is_gone_is_set_aside() {
    for options in engines() {
        let place = Place::empty();
        let gone = place.path.with_file_name("gone");
        fs::write(&gone, vec![5; LEN as usize]).unwrap();
        untorn::protect(&gone, &by_hand()).unwrap();
        let kept = fs::read(companion_of(&gone)).unwrap();
        fs::write(&place.path, vec![6; LEN as usize]).unwrap();
        let stray = place.companion();
        fs::rename(companion_of(&gone), &stray).unwrap();
        let file = options.open(&place.path).unwrap();
        assert!(file.coverage().unwrap().is_none(), "nobody asked for redundancy");
        assert!(!stray.exists());
        let names = fs::read_dir(stray.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
        let orphan = names.into_iter().find(|name| name.to_str().unwrap().ends_with(".orphan")).unwrap();
        assert!(fs::read(orphan).unwrap() == kept);
        file.close().unwrap();
        let file = options.redundancy(by_hand()).open(&place.path).unwrap();
        assert_eq!(file.sync_redundancy().map(|_| file.coverage().unwrap().unwrap().uncovered).unwrap(), 0);
    }
}

#[test]
fn an_empty_file_is_scrubbed_and_repaired_in_no_time() {
    let place = Place::empty();
    let file = Options::new().redundancy(by_hand()).create(&place.path, 0).unwrap();
    assert!(file.scrub().unwrap().is_clean());
    assert!(file.repair().unwrap().scrub.is_clean());
}

#[test]
fn a_stripe_that_cannot_be_is_refused_before_anything_is_made() {
    for stripe in [0, 65] {
        let place = Place::empty();
        let options = Options::new().redundancy(by_hand().stripe(stripe));
        assert!(matches!(options.create(&place.path, LEN), Err(Error::Invalid { .. })));
        assert!(!place.path.exists());
    }
}

#[test]
fn damage_that_cannot_be_mended_keeps_nobody_from_the_file() {
    for options in engines() {
        let (place, file, _) = filled(&options.redundancy(at_once().stripe(2)));
        file.deploy(0, LEN).unwrap();
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        place.rot(8 * PAGE + 2000, b"damage");
        place.rot(9 * PAGE + 2000, b"damage");
        file.write_at(b"stored", 8 * PAGE).unwrap();
        file.sync().unwrap();
        // It goes home whether or not the stripe can be covered.
        file.deploy(0, LEN).unwrap();
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        // An engine that stores the whole page anew takes the damage for its own.
        let lost = file.coverage().unwrap().unwrap().lost;
        assert!(lost == [8, 9] || lost == [9], "{lost:?} with {:?}", file.info().engine);
        let mut found = [0; 6];
        file.read_at(&mut found, 8 * PAGE).unwrap();
        assert_eq!(&found, b"stored");
    }
}

#[test]
fn a_replaced_file_leaves_the_others_redundancy_alone() {
    for options in engines() {
        let place = Place::empty();
        let (other, aside) = (place.path.with_file_name("other"), place.path.with_file_name("aside"));
        options.clone().redundancy(by_hand()).create(&other, LEN).unwrap().close().unwrap();
        let file = options.redundancy(by_hand()).create(&place.path, LEN).unwrap();
        fs::rename(&place.path, &aside).unwrap();
        fs::rename(&other, &place.path).unwrap();
        let kept = fs::read(place.companion()).unwrap();
        assert!(file.resize(LEN + 20 * PAGE).and_then(|()| file.close()).is_err());
        assert!(fs::read(place.companion()).unwrap() == kept);
    }
}

#[test]
fn a_dropped_handle_leaves_what_a_closed_one_does() {
    for options in engines() {
        let options = options.redundancy(by_hand());
        let (place, file, _) = filled(&options);
        file.sync_redundancy().unwrap();
        drop(file);
        let coverage = place.coverage();
        assert_eq!((coverage.believed, coverage.uncovered, coverage.unknown.len()), (true, 0, 0));
        place.rot(30 * PAGE, b"damage");
        assert_eq!(place.damage(), [Damage::Page(page(30))]);
        place.repairs(1);
    }
}

#[test]
fn a_read_that_is_verified_tells_of_damage_or_mends_it() {
    for options in engines() {
        let options = options.redundancy(by_hand());
        let (place, file, bytes) = filled(&options);
        file.deploy(0, LEN).unwrap();
        file.close().unwrap();
        for verify in [VerifyReads::Fail, VerifyReads::Repair] {
            let file = options.clone().verify_reads(verify).open(&place.path).unwrap();
            assert_eq!(read(&file), bytes);
            place.rot(12 * PAGE + 5, b"damage");
            let mut found = vec![0; 100];
            // A page beside it is none of its business.
            file.read_at(&mut found, 13 * PAGE).unwrap();
            let outcome = file.read_at(&mut found, 12 * PAGE - 50);
            if verify == VerifyReads::Fail {
                let Err(Error::Corrupt { path, offset, .. }) = outcome else { panic!("{outcome:?}") };
                assert_eq!((path, offset), (place.path.clone(), Some(12 * PAGE)));
                assert_eq!(file.repair().unwrap().repaired.len(), 1);
                file.read_at(&mut found, 12 * PAGE - 50).unwrap();
            } else {
                outcome.unwrap();
                assert!(file.scrub().unwrap().is_clean());
            }
            assert_eq!(found, bytes[12 * PAGE as usize - 50..][..100]);
            // What is not covered is read as it is.
            file.write_at(&bytes[20 * PAGE as usize..][..64], 20 * PAGE).unwrap();
            file.sync().unwrap();
            assert_eq!(read(&file), bytes);
            assert!(matches!(file.read_at(&mut found, LEN - 10), Err(Error::OutOfRange { .. })));
            file.close().unwrap();
        }
    }
}

/// Also where the handle is one of several processes', which must ask for the same.
#[test]
fn reads_of_snapshots_are_verified_too() {
    for (options, shared) in engines().into_iter().flat_map(|options| [(options.clone(), false), (options, true)]) {
        let (place, file, bytes) = filled(&options.clone().redundancy(by_hand()));
        file.deploy(0, LEN).unwrap();
        file.close().unwrap();
        for (verify, other) in [(VerifyReads::Fail, VerifyReads::Repair), (VerifyReads::Repair, VerifyReads::Fail)] {
            let options = options.clone().shared(shared);
            let file = options.clone().verify_reads(verify).open(&place.path).unwrap();
            let refused = options.clone().verify_reads(other).open(&place.path);
            assert!(matches!(refused, Err(Error::InUse { .. })), "{refused:?}");
            let again = options.verify_reads(verify).open(&place.path).unwrap();
            let snapshot = again.snapshot().unwrap();
            place.rot(12 * PAGE + 5, b"damage");
            let mut found = vec![0; 100];
            snapshot.read_at(&mut found, 13 * PAGE).unwrap();
            let outcome = snapshot.read_at(&mut found, 12 * PAGE - 50);
            if verify == VerifyReads::Fail {
                assert!(matches!(outcome, Err(Error::Corrupt { offset, .. }) if offset == Some(12 * PAGE)));
            } else {
                outcome.unwrap();
                assert_eq!(found, bytes[12 * PAGE as usize - 50..][..100]);
            }
            drop((snapshot, again));
            file.close().unwrap();
            place.repairs(usize::from(verify == VerifyReads::Fail));
            assert_eq!(place.bytes(), bytes);
        }
    }
}

#[test]
fn reads_that_nobody_can_verify_are_refused() {
    let place = Place::empty();
    let options = Options::new().verify_reads(VerifyReads::Fail);
    assert!(matches!(options.create(&place.path, LEN), Err(Error::Invalid { .. })));
    fs::write(&place.path, vec![0; LEN as usize]).unwrap();
    for refused in [options.clone(), options.clone().read_only(true), options.clone().shared(true)] {
        assert!(matches!(refused.open(&place.path), Err(Error::Invalid { .. })));
    }
    // Nor a handle beside one that keeps no redundancy.
    let bare = Options::new().open(&place.path).unwrap();
    assert!(matches!(options.open(&place.path), Err(Error::InUse { .. })));
    bare.close().unwrap();
    let with_redundancy = options.clone().redundancy(by_hand());
    assert!(matches!(with_redundancy.map(&place.path), Err(Error::Invalid { .. })));
    let first = Options::new().redundancy(by_hand()).open(&place.path).unwrap();
    assert!(matches!(with_redundancy.open(&place.path), Err(Error::InUse { .. })));
    first.close().unwrap();
    with_redundancy.open(&place.path).unwrap().close().unwrap();
}

/// The bytes behind the new end are given up, and parity speaks of them until it is made anew.
#[test]
fn a_shrink_repairs_a_damaged_page_of_the_stripe_it_cuts() {
    for options in engines() {
        for redundancy in [by_hand(), at_once()] {
            let options = options.clone().redundancy(redundancy.stripe(3).layout(StripeLayout::Consecutive));
            let (place, file, bytes) = filled(&options);
            file.sync_redundancy().unwrap();
            place.rot(9 * PAGE + 5, b"damage");
            file.resize(10 * PAGE).unwrap();
            file.sync().unwrap();
            let report = file.repair().unwrap();
            assert!(report.is_whole(), "{report:?}");
            assert_eq!(read(&file), bytes[..10 * PAGE as usize]);
            file.close().unwrap();
            assert_eq!(place.scrub().damage, []);
        }
    }
}
