//! Companion files with superblocks that are none of theirs: of another file, of a companion before, or made up.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use twox_hash::XxHash3_64;
use untorn::redundancy::{Damage, Protected};
use untorn::report::ProtectionProblem;
use untorn::{EngineKind, Error, Options};

use crate::common::{PAGE, names, pattern, read};
use crate::fixture::{Place, by_hand};

fn superblock(side: &Path, copy: usize) -> Vec<u8> {
    fs::read(side).unwrap()[copy * PAGE..][..PAGE].to_vec()
}

fn seq(superblock: &[u8]) -> u64 {
    u64::from_le_bytes(superblock[56..64].try_into().unwrap())
}

/// What a device does that writes a page where it should not.
fn put(side: &Path, copy: usize, page: &[u8]) {
    File::options().write(true).open(side).unwrap().write_all_at(page, (copy * PAGE) as u64).unwrap();
}

fn seal(superblock: &mut [u8]) {
    let check = XxHash3_64::oneshot(&superblock[..4088]);
    superblock[4088..4096].copy_from_slice(&check.to_le_bytes());
}

/// Writes numbers into both superblocks, as somebody would who knows the format.
fn forge(side: &Path, fields: &[(usize, &[u8])]) {
    let mut bytes = fs::read(side).unwrap();
    for superblock in bytes[..2 * PAGE].chunks_exact_mut(PAGE) {
        for (at, field) in fields {
            superblock[*at..][..field.len()].copy_from_slice(field);
        }
        seal(superblock);
    }
    File::options().write(true).open(side).unwrap().write_all_at(&bytes[..2 * PAGE], 0).unwrap();
}

/// A file of this engine that has these bytes, protected and closed.
fn with_engine(engine: EngineKind, bytes: &[u8]) -> (Place, Options) {
    let (place, options) = (Place::empty(), Options::new().engine(engine).keep_sidecar(true));
    let file = options.clone().redundancy(by_hand()).create(&place.path, bytes.len() as u64).unwrap();
    file.write_at(bytes, 0).unwrap();
    file.close().unwrap();
    (place, options)
}

/// That it is named as damage, and given back, and was no obstacle to whoever protects the file.
fn is_one_damaged_table(place: &Place, copy: usize, bytes: &[u8], what: &str) {
    let damaged = fs::read(place.companion()).unwrap();
    assert_eq!(place.damage(), [Damage::Table { offset: (copy * PAGE) as u64 }], "{what}");
    fs::write(place.companion(), &damaged).unwrap();
    let coverage = place.coverage();
    assert!(coverage.believed && coverage.uncovered == 0, "{what}");
    let report = place.repair();
    assert_eq!((report.rebuilt, report.is_whole(), report.unknown.len()), (1, true, 0), "{what}");
    assert_eq!(place.damage(), [], "{what}");
    fs::write(place.companion(), &damaged).unwrap();
    let protected = Protected::open(&place.path).unwrap();
    assert_eq!(protected.coverage().unwrap().unknown, [0_u64; 0], "{what}");
    protected.close().unwrap();
    assert_eq!(place.damage(), [], "{what}");
    assert!(place.bytes() == bytes);
}

#[test]
fn one_foreign_superblock_is_damage_and_redundancy_stays() {
    let bytes = pattern(12 * PAGE, 1);
    let (place, other) = (Place::protected(&bytes), Place::protected(&pattern(12 * PAGE, 2)));
    // Of the same number as that which it takes the place of, and of greater ones.
    for _ in 0..2 {
        for (copy, from) in [(0, 0), (1, 1), (0, 1), (1, 0)] {
            put(&place.companion(), copy, &superblock(&other.companion(), from));
            is_one_damaged_table(&place, copy, &bytes, &format!("{from} of the other file at {copy}"));
        }
        for _ in 0..40 {
            assert_eq!(other.damage(), []);
        }
    }
    // Both of them: then it is another file's.
    let redundancy = place.companion();
    for copy in 0..2 {
        put(&redundancy, copy, &superblock(&other.companion(), copy));
    }
    let scrubbed = place.try_scrub();
    let Err(Error::Protection { problem, .. }) = scrubbed else { panic!("{scrubbed:?}") };
    assert_eq!(problem, ProtectionProblem::OtherFile { redundancy });
}

#[test]
fn a_superblock_of_the_companion_before_is_damage() {
    let bytes = pattern(12 * PAGE, 3);
    let place = Place::protected(&bytes);
    for _ in 0..20 {
        assert_eq!(place.damage(), []);
    }
    let before = [0, 1].map(|copy| superblock(&place.companion(), copy));
    assert!(untorn::unprotect(&place.path).unwrap());
    by_hand().open(&place.path).unwrap().close().unwrap();
    for (copy, before) in before.iter().enumerate() {
        assert!(seq(before) > seq(&superblock(&place.companion(), copy)));
        put(&place.companion(), copy, before);
        is_one_damaged_table(&place, copy, &bytes, &format!("{copy} of before"));
    }
}

#[test]
fn a_version_in_the_place_of_the_other_counts_and_is_damage() {
    let bytes = pattern(12 * PAGE, 4);
    let place = Place::protected(&bytes);
    for _ in 0..2 {
        let both = [0, 1].map(|copy| superblock(&place.companion(), copy));
        let newer = usize::from(seq(&both[1]) > seq(&both[0]));
        put(&place.companion(), 1 - newer, &both[newer]);
        is_one_damaged_table(&place, 1 - newer, &bytes, "the newer one over the older");
        assert_eq!(place.damage(), []);
    }
}

#[test]
fn a_foreign_superblock_is_found_and_rebuilt_while_in_use() {
    let (place, other) = (Place::new(&pattern(8 * PAGE, 5)), Place::new(&pattern(8 * PAGE, 6)));
    let handles = [&place, &other].map(|place| by_hand().open(&place.path).unwrap());
    for protected in &handles {
        protected.sync().unwrap();
    }
    let sides = [0, 1].map(|nth: usize| handles[nth].coverage().unwrap().redundancy_file);
    for copy in 0..2 {
        // Two files that were done the same to have superblocks of the same numbers.
        put(&sides[0], copy, &superblock(&sides[1], copy));
        let report = handles[0].repair().unwrap();
        assert_eq!(report.scrub.damage, [Damage::Table { offset: (copy * PAGE) as u64 }]);
        assert_eq!(report.rebuilt, 1);
        assert!(handles[0].scrub().unwrap().is_clean());
        assert!(handles[1].repair().unwrap().scrub.is_clean());
    }
    for protected in handles {
        protected.close().unwrap();
    }
    assert_eq!((place.damage(), other.damage()), (vec![], vec![]));
}

#[test]
fn an_engine_keeps_redundancy_with_one_foreign_superblock() {
    let other = Place::protected(&pattern(8 * PAGE, 7));
    for _ in 0..40 {
        assert_eq!(other.damage(), []);
    }
    for engine in untorn::testing::ENGINES {
        for copy in 0..2 {
            let (place, options) = with_engine(engine, &pattern(20 * PAGE, 8));
            let has_aside = place.coverage().sidecar.is_some();
            assert_eq!(has_aside, engine != EngineKind::HybridLog);
            let companion = place.companion();
            let in_dir = || names(companion.parent().unwrap());
            let held = in_dir();
            put(&companion, copy, &superblock(&other.companion(), copy));
            assert_eq!(place.damage(), [Damage::Table { offset: (copy * PAGE) as u64 }]);
            put(&companion, copy, &superblock(&other.companion(), copy));
            // Nobody asks for redundancy here: it is kept because the file has it.
            let file = options.open(&place.path).unwrap();
            let coverage = file.coverage().unwrap().expect("the file has redundancy");
            assert_eq!((coverage.uncovered, coverage.unknown.len()), (0, 0));
            assert!(file.scrub().unwrap().is_clean());
            file.close().unwrap();
            assert_eq!(in_dir(), held);
            assert_eq!(place.damage(), []);
        }
    }
}

#[test]
fn a_later_version_is_refused_only_in_the_files_own_superblock() {
    let (place, other) = (Place::protected(&pattern(8 * PAGE, 9)), Place::protected(&pattern(8 * PAGE, 10)));
    let later = |mut superblock: Vec<u8>| {
        superblock[8..12].copy_from_slice(&2_u32.to_le_bytes());
        seal(&mut superblock);
        superblock
    };
    let held = fs::read(place.companion()).unwrap();
    let side = place.companion();
    for copy in 0..2 {
        put(&side, copy, &later(superblock(&side, copy)));
        let scrubbed = place.try_scrub();
        assert!(matches!(scrubbed, Err(Error::Unsupported { .. })), "{scrubbed:?}");
        put(&side, copy, &later(superblock(&other.companion(), copy)));
        assert_eq!(place.damage(), [Damage::Table { offset: (copy * PAGE) as u64 }]);
        fs::write(&side, &held).unwrap();
    }
}

/// The longest length that a superblock may name, and more than any memory or disk has redundancy for.
const ENDLESS: [u8; 8] = (1_u64 << 56).to_le_bytes();

#[test]
fn a_forged_length_is_reported_as_corrupt() {
    let place = Place::protected(&pattern(8 * PAGE, 11));
    let side = place.companion();
    assert_eq!(untorn::redundancy::recorded(&place.path).unwrap().unwrap().coverage.pages, 8);
    forge(&side, &[(96, &ENDLESS)]);
    let recorded = untorn::redundancy::recorded(&place.path);
    assert!(matches!(&recorded, Err(Error::Corrupt { path, .. }) if *path == side), "{recorded:?}");
}

/// As long as it says, which costs nobody anything. Neither memory nor time goes by what it says.
#[test]
fn an_enormous_sparse_redundancy_file_is_corrupt() {
    const LEN: u64 = 1 << 42;
    let place = Place::empty();
    fs::write(&place.path, pattern(8 * PAGE, 13)).unwrap();
    by_hand().stripe(64).open(&place.path).unwrap().close().unwrap();
    let side = place.companion();
    let resize = |path: &Path, len: u64| File::options().write(true).open(path).unwrap().set_len(len);
    let is_refused = |what: &str, result: Result<(), Error>| {
        assert!(matches!(&result, Err(Error::Corrupt { path, .. }) if *path == side), "{what}: {result:?}");
        let message = result.unwrap_err().to_string();
        assert!(message.contains("blocks of its checksums exist") && message.contains("untorn unprotect"), "{message}");
    };
    forge(&side, &[(96, &LEN.to_le_bytes())]);
    resize(&side, 1 << 40).unwrap();
    is_refused("recorded", untorn::redundancy::recorded(&place.path).map(drop));
    // The file has as much, of which nothing exists either.
    if let Err(error) = resize(&place.path, LEN) {
        untorn_testing::skipped!("a file of 4 TiB: {error}");
        return;
    }
    let scrub = || {
        is_refused("scrub", place.try_scrub().map(drop));
        is_refused("repair", place.try_repair().map(drop));
        is_refused("protect", by_hand().open(&place.path).map(drop));
    };
    scrub();
    // One that is cut short is not made as long as it says.
    resize(&side, 64 * PAGE as u64).unwrap();
    scrub();
    assert_eq!(fs::metadata(&side).unwrap().len(), 64 * PAGE as u64);
    assert!(untorn::unprotect(&place.path).unwrap());
}

#[test]
fn a_length_that_is_made_up_is_not_believed_by_an_engine() {
    const STORING: [u8; 4] = 4_u32.to_le_bytes();
    let bytes = pattern(20 * PAGE, 12);
    for engine in untorn::testing::ENGINES {
        let (place, options) = with_engine(engine, &bytes);
        forge(&place.companion(), &[(96, &ENDLESS), (116, &STORING)]);
        let file = options.open(&place.path).unwrap();
        assert!(read(&file) == bytes);
        file.sync_redundancy().unwrap();
        assert_eq!(file.coverage().unwrap().unwrap().uncovered, 0);
        file.close().unwrap();
        assert_eq!(place.damage(), []);
    }
    // That of a sidecar may be for more than the sidecar has, but not for that.
    let (place, options) = with_engine(EngineKind::Reflection, &bytes);
    let side = place.companion().with_extension("sidecar-redundancy");
    let len = fs::metadata(&side).unwrap().len();
    forge(&side, &[(96, &ENDLESS)]);
    let scrubbed = place.try_scrub();
    assert!(matches!(&scrubbed, Err(Error::Corrupt { path, .. }) if *path == side), "{scrubbed:?}");
    assert_eq!(fs::metadata(&side).unwrap().len(), len);
    let file = options.open(&place.path).unwrap();
    assert!(read(&file) == bytes);
    file.close().unwrap();
    assert!(fs::metadata(&side).unwrap().len() <= len);
    assert_eq!(place.damage(), []);
    // One that was cut short, and is what it says, is what it was: what is missing is damage.
    File::options().write(true).open(&side).unwrap().set_len(len - PAGE as u64).unwrap();
    assert!(matches!(place.damage()[..], [Damage::SidecarParity { .. }]));
    assert!(place.repair().is_whole());
    assert_eq!(place.damage(), []);
}

#[test]
fn a_region_store_cannot_be_protected() {
    let place = Place::empty();
    let store = untorn::region::RegionStore::create(&place.path).unwrap();
    let refused = |refused: Result<untorn::redundancy::Coverage, Error>| {
        let Err(Error::Protection { problem, .. }) = refused else { panic!("{refused:?}") };
        assert!(problem == ProtectionProblem::RegionStore && problem.to_string().contains("region store"), "{problem}");
        assert!(untorn::coverage(&place.path).unwrap().is_none());
    };
    refused(untorn::protect(&place.path, &by_hand()));
    store.close().unwrap();
    refused(untorn::protect(&place.path, &by_hand()));
    // Damage to one of its superblocks makes it no other file.
    put(&place.path, 0, &[0; PAGE]);
    refused(by_hand().open(&place.path).and_then(|protected| protected.coverage()));
}
