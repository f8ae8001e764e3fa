//! Sidecars under another name than their file expects: restored with it, copied without it, set aside.

use std::path::{Path, PathBuf};

use super::forged::renumber;
use crate::common::counting::Counting;
use crate::common::{PAGE, copy, names, on_disk, partly_reflected, pattern, read, sidecar_of, tree};
use untorn::options::{Layout, Prefer, VerifyReads};
use untorn::redundancy::ProtectOptions;
use untorn::testing::storage::PageCache;
use untorn::{Durability, EngineKind, Error, Options};

const LEN: usize = 40 * PAGE;

fn options() -> Options {
    let options = Options::new().engine(EngineKind::Reflection).layout(Layout::Sparse).keep_sidecar(true);
    options.durability(Durability::PerCommit).record_area(2, 8).max_len(1 << 20)
}

fn made(path: &Path) -> Vec<u8> {
    partly_reflected(&options(), path, LEN, 1)
}

/// A file and its sidecar as a crash leaves them in the middle of a commit whose record stands in a spill file:
/// copied to `to` under the names they had. Returns the sidecar there, and what the file holds after that commit.
fn crashed_in_a_large_commit(to: &Path) -> (PathBuf, Vec<u8>) {
    let path = on_disk("data");
    std::fs::create_dir(to.join(".untorn")).unwrap();
    let medium = Counting::new(PageCache::new());
    let (seen, copied) = (path.clone(), to.to_owned());
    medium.watch(move |what, _| {
        let sidecar = if what == "reflection.epoch.record" { sidecar_of(&seen) } else { return };
        let spill = sidecar.with_extension("spill");
        if spill.exists() {
            copy(&seen, &copied.join("data"));
            for file in [&sidecar, &spill] {
                std::fs::copy(file, copied.join(".untorn").join(file.file_name().unwrap())).unwrap();
            }
        }
    });
    let file = options().create_on(medium, &path, LEN as u64).unwrap();
    let model = pattern(LEN, 3);
    file.write_at(&model, 0).unwrap();
    file.sync().unwrap();
    let sidecar = to.join(".untorn").join(sidecar_of(&path).file_name().unwrap());
    assert!(sidecar.with_extension("spill").exists(), "the commit had no spill file");
    (sidecar, model)
}

#[test]
fn a_copy_does_not_take_its_originals_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("copy"));
    let model = made(&path);
    copy(&path, &other);
    let before = tree(dir.path());
    let adopt = || untorn::recover(&other, &options().adopt(true));
    let error = adopt().unwrap_err();
    assert!(matches!(&error, Error::SidecarMissing { original: Some(of), .. } if *of == path), "{error}");
    let place = sidecar_of(&other);
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()) && text.contains(place.to_str().unwrap()), "{text}");
    assert!(tree(dir.path()) == before, "a refusal changed something");
    let file = options().open(&path).unwrap();
    assert!(matches!(adopt(), Err(Error::InUse { .. })));
    assert!(read(&file) == model);
    file.close().unwrap();
    // The advice.
    copy(&path, &other);
    std::fs::copy(sidecar_of(&path), place).unwrap();
    adopt().unwrap();
    assert!(read(&options().open(&other).unwrap()) == model);
    assert!(read(&options().open(&path).unwrap()) == model);
    // Without the original, the sidecar is the copy's.
    let alone = dir.path().join("alone");
    copy(&path, &alone);
    std::fs::remove_file(&path).unwrap();
    untorn::recover(&alone, &options().adopt(true)).unwrap();
    assert!(read(&options().open(&alone).unwrap()) == model);
}

#[test]
fn a_sidecar_put_beside_the_originals_is_found_under_any_name() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("copy"));
    let model = made(&path);
    copy(&path, &other);
    std::fs::copy(sidecar_of(&path), dir.path().join(".untorn/restored")).unwrap();
    untorn::recover(&other, &options().adopt(true)).unwrap();
    assert!(read(&options().open(&other).unwrap()) == model);
    assert!(read(&options().open(&path).unwrap()) == model, "the original");
}

#[test]
fn an_adopted_sidecar_brings_its_spill_file() {
    // Under its old name; or as a crash in the middle of an earlier adoption left the two.
    for half_done in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (sidecar, model) = crashed_in_a_large_commit(dir.path());
        let path = dir.path().join("data");
        if half_done {
            let spill = sidecar.with_extension("spill");
            std::fs::rename(spill, sidecar_of(&path).with_extension("spill")).unwrap();
        }
        assert!(matches!(options().open(&path), Err(Error::SidecarMissing { original: None, .. })));
        let recovery = untorn::recover(&path, &options().adopt(true)).unwrap();
        assert!(recovery.was_needed && recovery.replayed > 0, "{recovery:?}");
        assert!(read(&options().open(&path).unwrap()) == model, "half done: {half_done}");
    }
}

#[test]
fn a_sidecar_set_aside_keeps_its_spill_file() {
    let dir = tempfile::tempdir().unwrap();
    let (sidecar, model) = crashed_in_a_large_commit(dir.path());
    let (lost, path) = (dir.path().join("data"), dir.path().join("new"));
    // A younger file that got the inode number of the one the sidecar was made for.
    std::thread::sleep(std::time::Duration::from_millis(20)); // Coarser clocks give times.
    std::fs::write(&path, b"new").unwrap();
    let place = sidecar_of(&path);
    let mut side = std::fs::read(&sidecar).unwrap();
    renumber(&mut side, &place);
    std::fs::rename(sidecar.with_extension("spill"), place.with_extension("spill")).unwrap();
    std::fs::write(&place, &side).unwrap();
    // Now and then it has got that number indeed.
    if place != sidecar {
        std::fs::remove_file(&sidecar).unwrap();
    }
    options().open(&path).unwrap().close().unwrap();
    let aside = names(place.parent().unwrap());
    assert!(aside.iter().any(|name| name.ends_with(".orphan")), "{aside:?}");
    // Its own file turns up.
    untorn::recover(&lost, &options().adopt(true)).unwrap();
    assert!(read(&options().open(&lost).unwrap()) == model);
}

fn protected() -> Options {
    options().redundancy(ProtectOptions::new().on_demand())
}

fn redundancy_of(path: &Path) -> PathBuf {
    sidecar_of(path).with_extension("redundancy")
}

/// The one name that is left beside a protected file when it is a plain one again.
fn only_redundancy(path: &Path) -> [String; 1] {
    [redundancy_of(path).file_name().unwrap().to_str().unwrap().to_owned()]
}

/// Damages a page of a closed file, which its redundancy must give back.
fn mends(path: &Path, what: &str) {
    let coverage = untorn::coverage(path).unwrap().unwrap_or_else(|| panic!("{what}: not protected"));
    assert_eq!(coverage.uncovered, 0, "{what}: {coverage:?}");
    let (whole, times) = (std::fs::read(path).unwrap(), std::fs::metadata(path).unwrap().modified().unwrap());
    let mut damaged = whole.clone();
    damaged[PAGE + 5] ^= 1;
    std::fs::write(path, damaged).unwrap();
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(times).unwrap();
    let report = untorn::repair(path, &mut |_, _| true).unwrap();
    assert_eq!(report.repaired.len(), 1, "{what}: {report:?}");
    assert!(std::fs::read(path).unwrap() == whole, "{what}");
}

#[test]
fn the_redundancy_file_follows_an_adoption() {
    for engine in untorn::testing::ENGINES {
        let (dir, backup) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, path) = (dir.path().join("data"), backup.path().join("data"));
        let model = pattern(LEN, 1);
        let file = protected().engine(engine).create(&from, LEN as u64).unwrap();
        file.write_at(&model, 0).unwrap();
        file.close().unwrap();
        copy(&from, &path);
        let (side, restored) = (dir.path().join(".untorn"), backup.path().join(".untorn"));
        std::fs::create_dir(&restored).unwrap();
        for name in names(&side) {
            std::fs::copy(side.join(&name), restored.join(&name)).unwrap();
        }
        assert!(restored.join(redundancy_of(&from).file_name().unwrap()).exists());
        // Refused without a change, and then adopted.
        let before = tree(backup.path());
        assert!(matches!(Options::new().open(&path), Err(Error::SidecarMissing { .. })));
        assert!(tree(backup.path()) == before, "{engine}");
        untorn::recover(&path, &Options::new().adopt(true)).unwrap();
        assert!(std::fs::read(&path).unwrap() == model, "{engine}");
        assert_eq!(names(&restored), only_redundancy(&path), "{engine}");
        mends(&path, &engine.to_string());
        // The original has its own.
        assert!(read(&options().engine(engine).open(&from).unwrap()) == model, "{engine}");
        assert!(redundancy_of(&from).exists(), "{engine}");
    }
}

#[test]
fn the_redundancy_file_is_set_aside_with_its_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let (lost, path) = (dir.path().join("data"), dir.path().join("new"));
    let model = partly_reflected(&protected(), &lost, LEN, 1);
    std::thread::sleep(std::time::Duration::from_millis(20)); // Coarser clocks give times.
    std::fs::write(&path, b"new").unwrap();
    // The number of the lost file has gone to a younger one.
    for place in [sidecar_of(&lost), redundancy_of(&lost)] {
        let mut bytes = std::fs::read(&place).unwrap();
        renumber(&mut bytes, &sidecar_of(&path));
        let to = if place == sidecar_of(&lost) { sidecar_of(&path) } else { redundancy_of(&path) };
        std::fs::rename(&place, &to).unwrap();
        std::fs::write(&to, bytes).unwrap();
    }
    options().keep_sidecar(false).open(&path).unwrap().close().unwrap();
    assert!(untorn::coverage(&path).unwrap().is_none(), "nobody asked for redundancy of this file");
    let aside = names(&dir.path().join(".untorn"));
    let ends = |end: &str| aside.iter().filter(|name| name.ends_with(end)).count();
    assert_eq!((ends(".orphan"), ends(".redundancy")), (1, 1), "{aside:?}");
    // Its own file turns up.
    untorn::recover(&lost, &Options::new().adopt(true)).unwrap();
    assert!(std::fs::read(&lost).unwrap() == model);
    assert_eq!(names(&dir.path().join(".untorn")), only_redundancy(&lost));
    mends(&lost, "after the file turned up");
}

/// Gives the set of files beside a data file another name, as one restored under another number has.
fn put_elsewhere(path: &Path) -> PathBuf {
    let (sidecar, elsewhere) = (sidecar_of(path), path.with_file_name(".untorn/elsewhere"));
    for kind in ["", "spill", "redundancy", "sidecar-redundancy"] {
        let from = sidecar.with_extension(kind);
        if from.exists() {
            std::fs::rename(from, elsewhere.with_extension(kind)).unwrap();
        }
    }
    elsewhere
}

/// A file whose epoch is open when another program writes to it.
fn disputed(path: &Path) -> Vec<u8> {
    let model = pattern(LEN, 1);
    let file = options().create(path, LEN as u64).unwrap();
    file.write_at(&model, 0).unwrap();
    file.sync().unwrap();
    file.write_at(&[0xee; 500], 3000).unwrap();
    changed_a_second_from_now(path);
    assert!(matches!(file.sync(), Err(Error::ModifiedExternally { .. })));
    model
}

fn changed_a_second_from_now(path: &Path) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1);
    file.set_times(std::fs::FileTimes::new().set_modified(later)).unwrap();
}

#[test]
fn a_refused_adoption_changes_nothing() {
    type Make = fn(&Path) -> Vec<u8>;
    type Spoil = fn(&Path);
    let as_it_is: Spoil = |_| ();
    let is_changed = |error: &Error| matches!(error, Error::ModifiedExternally { .. });
    let is_corrupt = |error: &Error| matches!(error, Error::Corrupt { .. });
    let of_other_stripes = ProtectOptions::new().on_demand().stripe(9);
    let on_demand = || ProtectOptions::new().on_demand();
    let protected: Make = |path| partly_reflected(&protected(), path, LEN, 1);
    let crashed: Make = |path| {
        let file = options().create(path, LEN as u64).unwrap();
        let model = pattern(LEN, 1);
        file.write_at(&model, 0).unwrap();
        file.sync().unwrap();
        crate::common::killed(file);
        model
    };
    type Case = (&'static str, Make, Spoil, Options, fn(&Error) -> bool, Option<Options>);
    let cases: Vec<Case> = vec![
        ("disputed", disputed, as_it_is, options(), is_changed, Some(options().prefer(Prefer::Sidecar))),
        ("changed", made, changed_a_second_from_now, options(), is_changed, Some(options().prefer(Prefer::Sidecar))),
        ("cut short after a crash", crashed, |path| crate::common::truncate(path, 5000), options(), is_changed, None),
        (
            "another engine",
            made,
            as_it_is,
            options().engine(EngineKind::HybridLog),
            |error| matches!(error, Error::OtherEngine { .. }),
            Some(options()),
        ),
        (
            "a short sidecar",
            made,
            |path| crate::common::truncate(&path.with_file_name(".untorn/elsewhere"), 4 * PAGE),
            options(),
            is_corrupt,
            None,
        ),
        (
            "a damaged slice",
            made,
            |path| {
                let side = path.with_file_name(".untorn/elsewhere");
                let mut bytes = std::fs::read(&side).unwrap();
                let at = bytes.iter().rposition(|&byte| byte != 0).unwrap();
                bytes[at] ^= 1;
                std::fs::write(&side, bytes).unwrap();
            },
            options(),
            is_corrupt,
            None,
        ),
        (
            "no sidecar",
            made,
            |path| std::fs::remove_file(path.with_file_name(".untorn/elsewhere")).unwrap(),
            options(),
            |error| matches!(error, Error::SidecarMissing { .. }),
            None,
        ),
        (
            "other stripes",
            protected,
            as_it_is,
            options().redundancy(of_other_stripes),
            |error| matches!(error, Error::Protection { .. }),
            Some(options().redundancy(on_demand())),
        ),
        (
            "reads that cannot be verified",
            made,
            as_it_is,
            options().verify_reads(VerifyReads::Fail),
            |error| matches!(error, Error::Invalid { .. }),
            Some(options().verify_reads(VerifyReads::Fail).redundancy(on_demand())),
        ),
    ];
    for (what, make, spoil, asked, is_right, way_out) in cases {
        // The place is free, or a sibling's sidecar stands there.
        for is_taken in [false, true] {
            let what = format!("{what}, taken: {is_taken}");
            let dir = tempfile::tempdir().unwrap();
            let (path, sibling) = (dir.path().join("data"), dir.path().join("sibling"));
            let model = make(&path);
            put_elsewhere(&path);
            if is_taken {
                made(&sibling);
                let mut side = std::fs::read(sidecar_of(&sibling)).unwrap();
                renumber(&mut side, &sidecar_of(&path));
                std::fs::write(sidecar_of(&path), side).unwrap();
                std::fs::remove_file(sidecar_of(&sibling)).unwrap();
            }
            spoil(&path);
            let before = tree(dir.path());
            let asked = asked.clone().adopt(true);
            for error in [asked.open(&path).map(drop), untorn::recover(&path, &asked).map(drop)] {
                let error = error.expect_err(&what);
                assert!(is_right(&error), "{what}: {error}");
                let says_how = !is_changed(&error) || error.to_string().contains("--adopt");
                assert!(says_how, "{what}: {error}");
                assert!(tree(dir.path()) == before, "{what}: a refusal changed something");
            }
            if let Some(way_out) = &way_out {
                let file = way_out.clone().adopt(true).open(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(read(&file) == model, "{what}");
                file.close().unwrap();
            }
            if is_taken {
                untorn::recover(&sibling, &Options::new().adopt(true))
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
            }
        }
    }
}

#[test]
fn a_locked_redundancy_file_refuses_the_whole_adoption() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let model = partly_reflected(&protected(), &path, LEN, 1);
    let elsewhere = put_elsewhere(&path);
    let before = tree(dir.path());
    let held = std::fs::File::open(elsewhere.with_extension("redundancy")).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    let error = protected().adopt(true).open(&path).unwrap_err();
    assert!(matches!(error, Error::InUse { .. }), "{error}");
    assert!(tree(dir.path()) == before, "a refusal changed something");
    drop(held);
    assert!(read(&protected().adopt(true).open(&path).unwrap()) == model);
}

/// All orders of three things.
const ORDERS: [[usize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];

/// Three files as a crash left them, restored under each other's inode numbers: the sidecar of `names[i]` stands at the
/// place of `names[places[i]]`, and was made for a file with that number. If the last `is_protected`, its redundancy
/// file came with its sidecar. Returns their contents.
fn swapped(dir: &Path, places: [usize; 3], is_protected: bool) -> Vec<(PathBuf, Vec<u8>)> {
    let files = ["a", "b", "c"].map(|name| dir.join(name));
    let mut models = Vec::new();
    for (n, path) in files.iter().enumerate() {
        // Two engines, so that the wrong one is found out.
        let (seed, len) = (n as u64 + 1, (n + 3) * PAGE);
        if n == 1 {
            let file = options().engine(EngineKind::HybridLog).create(path, len as u64).unwrap();
            let model = pattern(len, seed);
            file.write_at(&model, 0).unwrap();
            file.sync().unwrap();
            crate::common::killed(file);
            models.push(model);
        } else {
            let options = if n == 2 && is_protected { protected() } else { options() };
            models.push(partly_reflected(&options, path, len, seed));
        }
    }
    let sides = files.each_ref().map(|path| std::fs::read(sidecar_of(path)).unwrap());
    if is_protected {
        let mut redundancy = std::fs::read(redundancy_of(&files[2])).unwrap();
        std::fs::remove_file(redundancy_of(&files[2])).unwrap();
        renumber(&mut redundancy, &sidecar_of(&files[places[2]]));
        std::fs::write(redundancy_of(&files[places[2]]), redundancy).unwrap();
    }
    for (mut side, place) in sides.into_iter().zip(places) {
        let place = sidecar_of(&files[place]);
        renumber(&mut side, &place);
        std::fs::write(place, side).unwrap();
    }
    files.into_iter().zip(models).collect()
}

#[test]
fn files_that_swapped_numbers_are_adopted_in_any_order() {
    for places in ORDERS {
        for order in ORDERS {
            let dir = tempfile::tempdir().unwrap();
            // One order of each: it costs the most.
            let is_protected = places == order;
            let files = swapped(dir.path(), places, is_protected);
            for at in order {
                let (path, model) = &files[at];
                let what = format!("places {places:?}, order {order:?}, file {at}");
                if places[at] != at {
                    let text = options().engine(EngineKind::Auto).open(path).unwrap_err().to_string();
                    assert!(text.contains("--adopt") && !text.contains("--trust"), "{what}: {text}");
                }
                untorn::recover(path, &Options::new().adopt(true)).unwrap_or_else(|error| panic!("{what}: {error}"));
                assert!(std::fs::read(path).unwrap() == *model, "{what}");
            }
            let what = format!("places {places:?}, order {order:?}");
            if is_protected {
                assert_eq!(names(&dir.path().join(".untorn")), only_redundancy(&files[2].0), "{what}");
                mends(&files[2].0, &what);
            } else {
                assert_eq!(names(dir.path()), ["a", "b", "c"], "{what}");
            }
        }
    }
}

#[test]
fn a_refusal_names_the_file_that_a_sidecar_was_made_for() {
    let dir = tempfile::tempdir().unwrap();
    let files = swapped(dir.path(), [2, 1, 0], false);
    let text = options().engine(EngineKind::Auto).open(&files[0].0).unwrap_err().to_string();
    assert!(text.contains(files[2].0.to_str().unwrap()), "{text}");
    // The file's own sidecar is found wherever it stands, and nothing is to be given up.
    let (place, elsewhere) = (sidecar_of(&files[2].0), dir.path().join(".untorn/elsewhere"));
    std::fs::rename(place, &elsewhere).unwrap();
    std::fs::remove_file(sidecar_of(&files[0].0)).unwrap();
    let error = options().engine(EngineKind::Auto).open(&files[0].0).unwrap_err();
    assert!(matches!(&error, Error::SidecarMissing { found: Some(found), .. } if *found == elsewhere), "{error}");
    assert!(!error.to_string().contains("--trust"), "{error}");
}
