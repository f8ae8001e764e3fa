//! Redundancy of the sidecar of a file: of the reflection engine, what counts there is covered where it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use untorn::options::Layout;
use untorn::redundancy::{Damage, PageRange, VerifyReads};
use untorn::{AtomicFile, Durability, EngineKind, Error, Options};
use untorn_testing::test_name;

use crate::common::system::in_forked_child;
use crate::common::{read, run_alone, sidecar_of};
use crate::fixture::{LEN, PAGE_LEN as PAGE, Place, by_hand, rot};

/// Where the pages of the sidecar that may have bytes of the file begin, by its superblock, and their redundancy.
fn chunks_at(sidecar: &Path) -> u64 {
    let bytes = fs::read(sidecar).unwrap();
    let word = |at: usize| u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()));
    (3 * PAGE + word(100) * word(104) * 64).next_multiple_of(PAGE)
}

/// A page of the sidecar, whose pages begin at `from`.
fn at_page(from: u64, page: u64) -> PageRange {
    PageRange { offset: from + page * PAGE, len: PAGE }
}

/// The reflection engine with either durability, over either form of sidecar.
fn with_sidecars() -> Vec<Options> {
    let forms = [Layout::Dense, Layout::Sparse];
    let durabilities = [Durability::PerWrite, Durability::PerCommit];
    let kept = || Options::new().engine(EngineKind::Reflection).keep_sidecar(true);
    let with = |layout, durability| kept().layout(layout).durability(durability);
    forms.into_iter().flat_map(|layout| durabilities.map(|durability| with(layout, durability))).collect()
}

/// A file half of whose slices are valid in the sidecar; its bytes, its sidecar, and where that has its pages.
fn half_in_sidecar(place: &Place, options: &Options) -> (AtomicFile, Vec<u8>, PathBuf, u64) {
    let file = options.create(&place.path, LEN).unwrap();
    let bytes: Vec<u8> = (0..LEN).map(|at| ((at / 64) * 37 % 251) as u8 + 1).collect();
    let mut transaction = file.transaction();
    for at in (0..LEN).step_by(128) {
        transaction.write_at(&bytes[at as usize..(at as usize + 64).min(bytes.len())], at).unwrap();
    }
    transaction.commit().unwrap();
    file.sync().unwrap();
    file.write_at(&bytes, 0).unwrap();
    file.sync().unwrap();
    file.sync_redundancy().unwrap();
    let info = file.info();
    assert!((300..=340).contains(&(info.reflected_slices / 4)), "{} slices in the sidecar", info.reflected_slices);
    let sidecar = info.sidecar.unwrap();
    let from = chunks_at(&sidecar);
    (file, bytes, sidecar, from)
}

#[test]
fn bytes_in_the_sidecar_are_covered_there() {
    for options in with_sidecars() {
        let place = Place::empty();
        let options = options.redundancy(by_hand());
        let (file, bytes, sidecar, from) = half_in_sidecar(&place, &options);
        let coverage = file.coverage().unwrap().unwrap();
        let of_sidecar = coverage.sidecar.unwrap();
        assert_eq!((coverage.uncovered, coverage.in_sidecar, of_sidecar.uncovered), (0, 0, 0));
        // Open, and closed; a page with slices, and one that says which of them count.
        for page in [7, 0] {
            let at = from + page * PAGE + 8;
            let held = fs::read(&sidecar).unwrap();
            let range = at_page(from, page);
            rot(&sidecar, at, b"damage");
            assert_eq!(file.scrub().unwrap().damage, [Damage::SidecarPage(range)]);
            let report = file.repair().unwrap();
            assert_eq!((report.sidecar_repaired, report.repaired.len(), report.rebuilt), (vec![range], 0, 0));
            assert!(fs::read(&sidecar).unwrap()[from as usize..] == held[from as usize..]);
            assert!(file.scrub().unwrap().is_clean());
        }
        assert_eq!(read(&file), bytes);
        file.close().unwrap();
        for page in [9, 0] {
            let range = at_page(from, page);
            rot(&sidecar, range.offset + 8, b"damage");
            assert_eq!(place.damage(), [Damage::SidecarPage(range)]);
            // Its engine finds it, if it is of a slice that counts, has it repaired, and goes on.
            let file = options.open(&place.path).unwrap();
            assert_eq!(read(&file), bytes);
            assert!(file.repair().unwrap().is_whole());
            file.close().unwrap();
            assert!(place.scrub().is_clean());
        }
        let file = options.open(&place.path).unwrap();
        file.settle().unwrap();
        assert!(place.bytes() == bytes);
        assert!(fs::read_dir(sidecar.parent().unwrap()).unwrap().count() == 1, "only the file's companion is left");
        assert!(place.coverage().sidecar.is_none());
    }
}

#[test]
fn unrepairable_sidecar_damage_is_reported_changing_nothing() {
    for options in with_sidecars() {
        let place = Place::empty();
        let options = options.redundancy(by_hand());
        let (file, bytes, sidecar, from) = half_in_sidecar(&place, &options);
        rot(&sidecar, from + 5 * PAGE + 100, b"damage");
        rot(&sidecar, from + 6 * PAGE + 100, b"damage");
        place.rot(30 * PAGE, b"damage");
        let held = [fs::read(&sidecar).unwrap(), place.bytes()];
        let report = file.repair().unwrap();
        let lost = [5, 6].map(|page| at_page(from, page));
        assert_eq!((&report.sidecar_lost[..], report.is_whole(), report.repaired.len()), (&lost[..], false, 0));
        assert!([fs::read(&sidecar).unwrap(), place.bytes()] == held);
        // Whoever stores the pages anew has them covered again.
        file.write_at(&bytes, 0).unwrap();
        file.sync().unwrap();
        file.write_at(&bytes, 0).unwrap();
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        assert_eq!(read(&file), bytes);
    }
}

/// Whether all is covered, in the file and in the sidecar.
fn is_covered(file: &AtomicFile) -> bool {
    let coverage = file.coverage().unwrap().unwrap();
    coverage.uncovered == 0 && coverage.sidecar.is_some_and(|sidecar| sidecar.uncovered == 0)
}

/// Damages every bit of two slices.
fn invert(path: &Path, at: u64) {
    let was = fs::read(path).unwrap()[at as usize..][..128].to_vec();
    rot(path, at, &was.iter().map(|byte| !byte).collect::<Vec<_>>());
}

/// Damages more of the file than parity carries, and a page of the sidecar that has bytes of the file.
fn damage_beyond_repair(place: &Place, sidecar: &Path, from: u64) {
    place.rot(8 * PAGE, b"damage");
    place.rot(9 * PAGE, b"damage");
    invert(sidecar, from + 7 * PAGE + 8);
}

/// All files that there are of a file.
fn all_files(place: &Place, sidecar: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let dir = fs::read_dir(sidecar.parent().unwrap()).unwrap();
    let mut paths: Vec<PathBuf> = dir.map(|entry| entry.unwrap().path()).chain([place.path.clone()]).collect();
    paths.sort();
    paths.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn an_incomplete_repair_leaves_a_closed_file_unchanged() {
    for options in with_sidecars() {
        let place = Place::empty();
        let (file, _, sidecar, from) = half_in_sidecar(&place, &options.clone().redundancy(by_hand()));
        file.close().unwrap();
        damage_beyond_repair(&place, &sidecar, from);
        let held = all_files(&place, &sidecar);
        let report = place.repair();
        assert_eq!((report.lost.len(), report.repaired.len(), report.sidecar_repaired.len()), (2, 0, 0));
        assert!(all_files(&place, &sidecar) == held, "something was touched: {options:?}");
        // So it can be tried again, once somebody has brought one of the two back.
        assert_eq!(place.repair().lost, report.lost);
    }
}

#[test]
fn an_incomplete_repair_leaves_an_unclosed_files_damage() {
    let name = test_name!();
    // Alone: it forks a process that opens files.
    run_alone(name, 240, "killed processes", || {
        for options in with_sidecars() {
            let place = Place::empty();
            let kept = options.clone().redundancy(by_hand());
            let child = in_forked_child(|| {
                // It ends with the file open, and all of it covered.
                std::mem::forget(half_in_sidecar(&place, &kept).0);
                0
            });
            assert_eq!(child.wait(), Some(0));
            let sidecar = sidecar_of(&place.path);
            let from = chunks_at(&sidecar);
            damage_beyond_repair(&place, &sidecar, from);
            let pages = || {
                let held = fs::read(&sidecar).unwrap();
                (held[(from + 7 * PAGE) as usize..][..PAGE as usize].to_vec(), place.bytes())
            };
            let held = pages();
            let report = place.repair();
            assert_eq!((report.lost.len(), report.repaired.len(), report.sidecar_repaired.len()), (2, 0, 0));
            assert!(pages() == held, "a damaged page was touched: {options:?}");
            let again = place.scrub();
            assert_eq!(again.damage, report.scrub.damage);
        }
    });
}

#[test]
fn a_sidecar_that_grows_is_covered_as_it_does() {
    let place = Place::empty();
    let options =
        Options::new().engine(EngineKind::Reflection).layout(Layout::Sparse).redundancy(by_hand()).keep_sidecar(true);
    let len = 2000 * PAGE;
    let file = options.create(&place.path, len).unwrap();
    for round in 0..4_u64 {
        for page in round * 400..(round + 1) * 400 {
            file.write_at(&page.to_le_bytes(), page * PAGE + 500).unwrap();
        }
        file.sync().unwrap();
        file.sync_redundancy().unwrap();
        assert!(is_covered(&file));
        assert!(file.scrub().unwrap().is_clean());
    }
    let sidecar = file.info().sidecar.unwrap();
    let held = fs::read(&sidecar).unwrap();
    let at = chunks_at(&sidecar) + 1500 * PAGE;
    assert!(at < held.len() as u64);
    rot(&sidecar, at, &[!held[at as usize]]);
    assert_eq!(file.repair().unwrap().sidecar_repaired.len(), 1);
    assert!(fs::read(&sidecar).unwrap() == held);
    file.close().unwrap();
    assert!(place.scrub().is_clean());
}

#[test]
fn unprotect_removes_the_redundancy_of_the_sidecar() {
    let place = Place::empty();
    let options = Options::new().engine(EngineKind::Reflection).keep_sidecar(true);
    let (file, bytes, sidecar, _) = half_in_sidecar(&place, &options.clone().redundancy(by_hand()));
    file.close().unwrap();
    assert!(sidecar.with_extension("sidecar-redundancy").exists());
    assert!(untorn::unprotect(&place.path).unwrap());
    assert!(!sidecar.with_extension("sidecar-redundancy").exists());
    // One that a crash brings back goes with the next opening, which tells nobody of what it stores.
    fs::write(sidecar.with_extension("sidecar-redundancy"), b"it was removed").unwrap();
    assert_eq!(read(&options.open(&place.path).unwrap()), bytes);
    assert!(!sidecar.with_extension("sidecar-redundancy").exists());
}

#[test]
fn a_read_from_the_sidecar_is_verified_too() {
    for options in with_sidecars() {
        let place = Place::empty();
        let options = options.redundancy(by_hand()).keep_sidecar(true);
        let (file, bytes, sidecar, from) = half_in_sidecar(&place, &options);
        file.close().unwrap();
        for verify in [VerifyReads::Fail, VerifyReads::Repair] {
            let file = options.clone().verify_reads(verify).open(&place.path).unwrap();
            rot(&sidecar, from + 6 * PAGE + 70, b"damage");
            rot(&sidecar, from + 6 * PAGE + 6, b"damage");
            let read = |file: &AtomicFile| {
                let mut held = vec![0; LEN as usize];
                file.read_at(&mut held, 0).map(|()| held)
            };
            let (read, again) = (read(&file), read(&file));
            if verify == VerifyReads::Fail {
                for read in [read, again] {
                    let Err(Error::Corrupt { path, offset, .. }) = read else { panic!("{:?}", read.map(drop)) };
                    assert_eq!((path, offset), (sidecar.clone(), Some(from + 6 * PAGE)));
                }
                assert_eq!(file.repair().unwrap().sidecar_repaired.len(), 1);
            } else {
                assert!(read.unwrap() == bytes && again.unwrap() == bytes);
            }
            assert!(file.scrub().unwrap().is_clean());
            file.close().unwrap();
        }
    }
}

/// Opens the file and reads all of it.
fn reopened(place: &Place, options: &Options) -> (AtomicFile, Vec<u8>) {
    let file = options.open(&place.path).unwrap();
    let bytes = read(&file);
    (file, bytes)
}

#[test]
fn damage_in_the_sidecar_does_not_go_home_as_truth() {
    for options in with_sidecars() {
        let options = options.redundancy(by_hand());
        // A page with slices, and one that says which of them count: of a file that is settled, closed, or deployed.
        for (page, end) in [(7, "settle"), (0, "settle"), (7, "close"), (0, "close"), (7, "deploy")] {
            let place = Place::empty();
            let (file, bytes, sidecar, from) = half_in_sidecar(&place, &options);
            invert(&sidecar, from + page * PAGE + 8);
            match end {
                "settle" => {
                    file.settle().unwrap();
                    assert!(place.bytes() == bytes, "page {page} of {options:?}");
                }
                "close" => {
                    file.close().unwrap();
                    let (file, found) = reopened(&place, &options);
                    assert!(found == bytes, "page {page} of {options:?}");
                    assert!(file.scrub().unwrap().is_clean());
                }
                _ => {
                    file.deploy(0, LEN).unwrap();
                    file.sync().unwrap();
                    assert!(read(&file) == bytes, "page {page} of {options:?}");
                }
            }
        }
    }
}

#[test]
fn a_file_with_lost_sidecar_pages_is_not_settled() {
    for options in with_sidecars() {
        let place = Place::empty();
        let (file, _, sidecar, from) = half_in_sidecar(&place, &options.clone().redundancy(by_hand()));
        rot(&sidecar, from + 5 * PAGE, &[0xa5; 4096]);
        rot(&sidecar, from + 6 * PAGE, &[0xa5; 4096]);
        assert!(matches!(file.deploy(0, LEN), Err(Error::Corrupt { path, .. }) if path == sidecar));
        assert!(matches!(file.settle(), Err(Error::Corrupt { path, .. }) if path == sidecar));
        // It can be closed and opened, and still says what is lost.
        let found = place.damage();
        let lost = [5, 6].map(|page| Damage::SidecarPage(at_page(from, page)));
        assert_eq!(found, lost);
        // Who takes it as it is says so.
        assert!(untorn::unprotect(&place.path).unwrap());
        options.open(&place.path).unwrap().settle().unwrap();
        assert!(!sidecar.exists());
    }
}

#[test]
fn a_sidecar_hidden_while_it_grew_is_covered_as_it_is() {
    let place = Place::empty();
    let options =
        Options::new().engine(EngineKind::Reflection).layout(Layout::Dense).redundancy(by_hand()).keep_sidecar(true);
    let options = options.max_len(4000 * PAGE);
    let file = options.create(&place.path, 450 * PAGE).unwrap();
    // Its redundancy goes further than it does from here on.
    file.resize(500 * PAGE).unwrap();
    file.write_at(&[1; 256], 490 * PAGE).unwrap();
    file.sync().unwrap();
    let sidecar = file.info().sidecar.unwrap();
    let hidden = sidecar.with_extension("hidden");
    fs::rename(&sidecar, &hidden).unwrap();
    assert!(matches!(file.resize(800 * PAGE), Err(Error::Io { .. })));
    fs::rename(&hidden, &sidecar).unwrap();
    file.resize(800 * PAGE).unwrap();
    file.write_at(&[7; 256], 700 * PAGE).unwrap();
    file.sync().unwrap();
    file.sync_redundancy().unwrap();
    file.close().unwrap();
    let (file, found) = reopened(&place, &options);
    assert!(found[700 * PAGE as usize..][..256] == [7; 256]);
    assert_eq!(file.scrub().unwrap().damage, []);
}

#[test]
fn unreadable_sidecar_redundancy_is_damage_and_rebuilt() {
    let place = Place::empty();
    let options = Options::new().engine(EngineKind::Reflection).redundancy(by_hand()).keep_sidecar(true);
    let (file, bytes, sidecar, _) = half_in_sidecar(&place, &options);
    file.close().unwrap();
    let companion = sidecar.with_extension("sidecar-redundancy");
    rot(&companion, 0, &[0; 8192]);
    let scrubbed = place.try_scrub();
    assert!(matches!(scrubbed, Err(Error::Corrupt { path, .. }) if path == companion));
    assert!(place.repair().is_whole());
    let report = place.scrub();
    // A repair closes the file, which is a plain one then.
    assert!(report.is_clean() && report.sidecar_checked == 0 && !sidecar.exists() && !companion.exists());
    assert_eq!(read(&options.open(&place.path).unwrap()), bytes);
}

#[test]
fn redundancy_that_could_not_grow_covers_what_it_has() {
    let place = Place::empty();
    let options =
        Options::new().engine(EngineKind::Reflection).layout(Layout::Dense).redundancy(by_hand()).keep_sidecar(true);
    let file = options.create(&place.path, 450 * PAGE).unwrap();
    file.resize(500 * PAGE).unwrap();
    let sidecar = file.info().sidecar.unwrap();
    let hidden = sidecar.with_extension("hidden");
    fs::rename(&sidecar, &hidden).unwrap();
    assert!(matches!(file.write_at(&[1; 256], 490 * PAGE), Err(Error::Io { .. })));
    fs::rename(&hidden, &sidecar).unwrap();
    file.write_at(&[2; 256], 3 * PAGE).unwrap();
    file.sync().unwrap();
    file.sync_redundancy().unwrap();
    assert!(is_covered(&file));
    file.write_at(&[3; 256], 490 * PAGE).unwrap();
    file.close().unwrap();
    assert!(place.scrub().is_clean());
}

#[test]
fn sidecar_redundancy_in_use_is_not_removed() {
    let place = Place::empty();
    let options = Options::new().engine(EngineKind::Reflection).keep_sidecar(true);
    let (file, _, sidecar, _) = half_in_sidecar(&place, &options.clone().redundancy(by_hand()));
    file.close().unwrap();
    // As it is while another process protects the file: that of the file is not there yet, and this one is held.
    fs::remove_file(sidecar.with_extension("redundancy")).unwrap();
    let companion = sidecar.with_extension("sidecar-redundancy");
    let held = File::options().read(true).write(true).open(&companion).unwrap();
    held.lock().unwrap();
    assert!(matches!(options.open(&place.path), Err(Error::InUse { .. })));
    assert!(companion.exists());
    drop(held);
    options.open(&place.path).unwrap().close().unwrap();
    assert!(!companion.exists());
}
