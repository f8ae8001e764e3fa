//! Misuse: each kind is an error of its own that names the path, and changes nothing.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use super::forged::renumber;
use crate::common::{
    Image, PAGE, Pair, REFLECTED, copy_mark, limit, mark, names, on_disk, partly_reflected, pattern, read, sidecar_of,
    tree,
};
use untorn::options::{Layout, Prefer};
use untorn::report::State;
use untorn::{Durability, EngineKind, Error, Options};
use untorn_testing::{again, sibling};

const LEN: usize = 3 * PAGE + 100;
fn options() -> Options {
    Options::new().layout(Layout::Sparse).record_area(2, 8).max_len(1 << 20).keep_sidecar(true)
}

fn made(path: &Path, seed: u64) -> Vec<u8> {
    partly_reflected(&options(), path, LEN, seed)
}

/// Everything that may look at a file refuses this one with this kind of error and a text that names it, and leaves the
/// directory as it is.
#[track_caller]
fn refused(dir: &Path, path: &Path, expected: impl Fn(&Error) -> bool) {
    let before = tree(dir);
    let read_only = options().read_only(true).open(path).map(drop);
    let recovered = untorn::recover(path, &options()).map(drop);
    for (how, outcome) in [("open", options().open(path).map(drop)), ("read", read_only), ("recover", recovered)] {
        let error = outcome.expect_err(how);
        assert!(expected(&error), "{how}: {error}");
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(name), "{how}: {error}");
        assert!(error.path().ends_with(name) || error.to_string().contains(name), "{how}: {error}");
    }
    match untorn::inspect(path) {
        Ok(report) => {
            let damaged = matches!(options().open(path), Err(Error::Corrupt { .. }));
            assert_eq!(report.state, if damaged { State::Corrupt } else { State::Refused }, "{report:?}");
            assert!(!report.findings.is_empty(), "{report:?}");
        }
        Err(error) => assert!(expected(&error), "inspect: {error}"),
    }
    assert!(tree(dir) == before, "a refusal changed something");
}

#[test]
fn ranges_outside_the_file() {
    for durability in [Durability::PerWrite, Durability::PerCommit] {
        let path = on_disk("data");
        // As long as it may ever be, to the last page.
        let len = 4 * PAGE as u64;
        let file = options().durability(durability).max_len(len).create(&path, len).unwrap();
        let model = pattern(len as usize, 1);
        file.write_at(&model, 0).unwrap();
        let huge = [(u64::MAX, 1), (u64::MAX, 0), (u64::MAX - 4, 10), (1 << 63, 1), (i64::MAX as u64, 64)];
        for (offset, n) in [(len, 1), (len - 1, 2), (0, len as usize + 1), (len + 1, 0)].into_iter().chain(huge) {
            let what = format!("{n} bytes at {offset}");
            let mut bytes = vec![9; n];
            let tx = |bytes: &[u8]| file.transaction().write_at(bytes, offset);
            let outcomes = [
                file.write_at(&bytes, offset),
                file.write_at_eager(&bytes, offset),
                tx(&bytes),
                file.deploy(offset, n as u64),
                file.transaction().read_at(&mut bytes, offset),
                file.read_at(&mut bytes, offset),
            ];
            for error in outcomes.map(|outcome| outcome.expect_err(&what)) {
                let right = matches!(&error, Error::OutOfRange { offset: at, len: asked, file_len, .. }
                    if *at == offset && *asked == n as u64 && *file_len == len);
                assert!(right && error.path() == *path, "{what}: {error}");
                assert!(error.to_string().contains("resize the file first"), "{error}");
            }
            assert!(bytes.iter().all(|&byte| byte == 9), "{what}: a refused read filled the buffer");
        }
        file.read_at(&mut [], len).unwrap();
        file.write_at(&[], len).unwrap();
        file.deploy(len, 0).unwrap();
        for longer in [len + 1, 1 << 60, u64::MAX] {
            let error = file.resize(longer).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }) && error.path() == *path, "{error}");
        }
        assert!(read(&file) == model);
    }
}

#[test]
fn a_file_open_for_reading_is_not_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (plain, path) = (dir.path().join("plain"), dir.path().join("data"));
    std::fs::write(&plain, pattern(LEN, 2)).unwrap();
    for (path, model) in [(&path, made(&path, 1)), (&plain, pattern(LEN, 2))] {
        let before = tree(dir.path());
        let file = options().read_only(true).open(path).unwrap();
        let mut tx = file.transaction();
        tx.write_at(&[1; 10], 5).unwrap();
        for outcome in [tx.commit(), file.write_at(&[1; 10], 5), file.write_at(&[1; 9000], 5), file.resize(5)] {
            let error = outcome.unwrap_err();
            assert!(matches!(error, Error::ReadOnly { .. }) && error.path() == *path, "{error}");
        }
        assert!(read(&file) == model);
        file.close().unwrap();
        assert!(tree(dir.path()) == before);
    }
    // After a crash a reader finds the last commit, and repairs nothing.
    let file = options().open(&path).unwrap();
    file.write_at(&[3; 64], 0).unwrap();
    file.sync().unwrap();
    let model = read(&file);
    let pair = Pair::of(&path);
    file.close().unwrap();
    pair.restore();
    let before = tree(dir.path());
    let file = options().read_only(true).open(&path).unwrap();
    assert!(file.info().recovery.was_needed && read(&file) == model);
    let error = file.write_at(&[1; 10], 5).unwrap_err();
    assert!(matches!(error, Error::ReadOnly { .. }), "{error}");
    file.close().unwrap();
    assert!(tree(dir.path()) == before);
    let report = untorn::inspect(&path).unwrap();
    assert!(matches!(report.state, untorn::report::State::NeedsRecovery), "{report:?}");
}

#[test]
fn opening_what_is_not_a_file_is_refused() {
    let _limit = limit(30, "opening a pipe");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("dir")).unwrap();
    std::fs::write(at("file"), b"x").unwrap();
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), kind, mode, 0).unwrap();
    symlink(at("pipe"), at("link-to-pipe")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    refused(dir.path(), &at("dir"), |error| {
        matches!(error, Error::NotAFile { found: untorn::report::FileKind::Directory, .. })
    });
    refused(dir.path(), &at("pipe"), |error| {
        matches!(error, Error::NotAFile { found: untorn::report::FileKind::Pipe, .. })
    });
    let missing =
        |error: &Error| matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound);
    refused(dir.path(), &at("missing"), missing);
    refused(dir.path(), &at("missing/either"), missing);
    refused(dir.path(), &at("dangling"), missing);
    refused(dir.path(), &at("file/in-a-file"), |error| matches!(error, Error::Io { .. }));
    let error = options().open(at("link-to-pipe")).unwrap_err();
    assert!(matches!(error, Error::NotAFile { found: untorn::report::FileKind::Pipe, .. }), "{error}");
}

#[test]
fn a_sidecar_that_belongs_to_another_file() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a"), dir.path().join("b"));
    made(&a, 1);
    let model = made(&b, 2);
    let (ours, theirs) = (Image::of(&sidecar_of(&b)), std::fs::read(sidecar_of(&a)).unwrap());
    ours.restore_as(&theirs);
    refused(dir.path(), &b, |error| matches!(error, Error::SidecarMismatch { .. }));
    ours.restore();
    assert!(read(&options().open(&b).unwrap()) == model);
    // Whoever trusts the file alone gets it as it is, and the stray sidecar is kept.
    ours.restore_as(&theirs);
    let bytes = std::fs::read(&b).unwrap();
    let file = options().prefer(Prefer::File).open(&b).unwrap();
    assert!(read(&file) == bytes);
    drop(file);
    let aside: Vec<_> =
        names(&dir.path().join(".untorn")).into_iter().filter(|name| name.ends_with("orphan")).collect();
    assert_eq!(aside.len(), 1, "{aside:?}");
    assert!(std::fs::read(dir.path().join(".untorn").join(&aside[0])).unwrap() == theirs);
    assert!(read(&options().open(&b).unwrap()) == bytes);
    copy_mark(&a, &b);
    refused(dir.path(), &b, |error| matches!(error, Error::SidecarMismatch { .. }));
}

#[test]
fn a_file_without_its_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("elsewhere");
    std::fs::create_dir(&other).unwrap();
    let path = dir.path().join("data");
    let model = made(&path, 1);
    let is_missing = |error: &Error| matches!(error, Error::SidecarMissing { .. });
    let (sidecar, kept) = (sidecar_of(&path), dir.path().join("kept"));
    std::fs::rename(&sidecar, &kept).unwrap();
    refused(dir.path(), &path, is_missing);
    std::fs::rename(&kept, &sidecar).unwrap();
    let copy = other.join("copy");
    std::fs::copy(&path, &copy).unwrap();
    copy_mark(&path, &copy);
    refused(dir.path(), &copy, is_missing);
    let link = other.join("hard-link");
    std::fs::hard_link(&path, &link).unwrap();
    refused(dir.path(), &link, is_missing);
    std::fs::remove_file(&link).unwrap();
    let moved = other.join("moved");
    std::fs::rename(&path, &moved).unwrap();
    refused(dir.path(), &moved, is_missing);
    std::fs::rename(&moved, &path).unwrap();
    assert!(read(&options().open(&path).unwrap()) == model);
    let file = options().prefer(Prefer::File).open(&copy).unwrap();
    assert!(read(&file) == std::fs::read(&path).unwrap());
}

#[test]
fn a_symbolic_link_leads_to_the_file_and_its_sidecar() {
    let dir = tempfile::tempdir().unwrap();
    let other = dir.path().join("elsewhere");
    std::fs::create_dir(&other).unwrap();
    let (path, link) = (dir.path().join("data"), other.join("link"));
    let model = made(&path, 1);
    symlink(&path, &link).unwrap();
    let file = options().open(&link).unwrap();
    assert!(read(&file) == model);
    let same = options().open(&path).unwrap();
    file.write_at(b"both", 7).unwrap();
    assert_eq!(read(&same)[7..11], *b"both");
    assert_eq!(names(&other), ["link"]);
}

#[test]
fn a_file_replaced_by_rename_is_a_plain_file() {
    let dir = tempfile::tempdir().unwrap();
    let (path, new) = (dir.path().join("data"), dir.path().join("new"));
    made(&path, 1);
    let old = Image::of(&sidecar_of(&path));
    std::fs::write(&new, pattern(500, 7)).unwrap();
    std::fs::rename(&new, &path).unwrap();
    let file = options().open(&path).unwrap();
    assert!(read(&file) == pattern(500, 7));
    file.settle().unwrap();
    assert!(std::fs::read(&path).unwrap() == pattern(500, 7));
    assert!(std::fs::read(&old.path).unwrap() == old.bytes, "the other file's sidecar was touched");
}

#[test]
fn a_file_changed_while_it_was_closed() {
    let grow = |file: &File| file.write_all_at(b"more", LEN as u64).unwrap();
    let patch = |file: &File| file.write_all_at(&[0xaa; 300], 100).unwrap();
    let cut = |file: &File| file.set_len(1000).unwrap();
    let changes: [&dyn Fn(&File); 3] = [&grow, &patch, &cut];
    for change in changes {
        let path = on_disk("data");
        let model = made(&path, 1);
        std::thread::sleep(std::time::Duration::from_millis(20)); // Coarser clocks give times.
        change(&OpenOptions::new().write(true).open(&path).unwrap());
        let (bytes, pair) = (std::fs::read(&path).unwrap(), Pair::of(&path));
        refused(path.dir(), &path, |error| matches!(error, Error::ModifiedExternally { .. }));
        // The sidecar's bytes over the file, at the length of the last commit.
        let mut laid_over = bytes.clone();
        laid_over.resize(LEN, 0);
        laid_over[REFLECTED].copy_from_slice(&model[REFLECTED]);
        let file = options().prefer(Prefer::Sidecar).open(&path).unwrap();
        assert!(read(&file) == laid_over);
        file.close().unwrap();
        assert!(read(&options().open(&path).unwrap()) == laid_over);
        pair.restore();
        let file = options().prefer(Prefer::File).open(&path).unwrap();
        assert!(read(&file) == bytes);
        file.settle().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes);
        assert_eq!((names(path.dir()), mark(&path)), (vec!["data".to_owned()], None));
    }
}

#[test]
fn a_file_cut_short_after_a_crash_is_refused_as_it_is() {
    for engine in untorn::testing::ENGINES {
        for durability in [Durability::PerWrite, Durability::PerCommit] {
            let path = on_disk("data");
            let options = options().engine(engine).durability(durability);
            let file = options.create(&path, LEN as u64).unwrap();
            file.write_at(&pattern(LEN, 1), 0).unwrap();
            file.sync().unwrap();
            // The cut does not reach what the record of this write covers.
            file.write_at(&[9; 64], 128).unwrap();
            file.sync().unwrap();
            crate::common::killed(file);
            crate::common::truncate(&path, 1000);
            refused(path.dir(), &path, |error| matches!(error, Error::ModifiedExternally { .. }));
        }
    }
}

#[test]
fn a_pair_restored_under_new_inode_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (path, other) = (dir.path().join("data"), dir.path().join("restored"));
    let model = made(&path, 1);
    std::fs::create_dir_all(other.join(".untorn")).unwrap();
    let copy = other.join("data");
    for own_number in [false, true] {
        crate::common::copy(&path, &copy);
        // Under the number it had, or under the one it should have now but does not know of.
        let name = sidecar_of(if own_number { &copy } else { &path });
        std::fs::copy(sidecar_of(&path), other.join(".untorn").join(name.file_name().unwrap())).unwrap();
        refused(dir.path(), &copy, |error| {
            matches!((own_number, error), (false, Error::SidecarMissing { .. }) | (true, Error::SidecarMismatch { .. }))
        });
        assert!(!untorn::recover(&copy, &options().adopt(true)).unwrap().was_needed);
        assert!(read(&options().open(&copy).unwrap()) == model, "own number: {own_number}");
        std::fs::remove_file(sidecar_of(&copy)).unwrap();
        std::fs::remove_file(&copy).unwrap();
    }
    assert!(read(&options().open(&path).unwrap()) == model, "the original");
}

/// A new file that got the inode number of a removed one, made by hand: which number comes next is the kernel's choice.
#[test]
fn a_reused_inode_number_is_no_reason_to_refuse() {
    let dir = tempfile::tempdir().unwrap();
    let (old, path) = (dir.path().join("old"), dir.path().join("data"));
    made(&old, 1);
    let mut side = std::fs::read(sidecar_of(&old)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20)); // Coarser clocks give times.
    std::fs::write(&path, pattern(LEN, 2)).unwrap();
    let place = sidecar_of(&path);
    renumber(&mut side, &place);
    std::fs::write(&place, &side).unwrap();
    let before = tree(dir.path());
    assert!(read(&options().read_only(true).open(&path).unwrap()) == pattern(LEN, 2));
    assert!(tree(dir.path()) == before, "a reader changed something");
    let file = options().open(&path).unwrap();
    assert!(read(&file) == pattern(LEN, 2));
    let orphan = names(place.parent().unwrap()).into_iter().find(|name| name.ends_with(".orphan")).unwrap();
    assert!(std::fs::read(place.with_file_name(orphan)).unwrap() == side, "the orphan is kept as it was");
}

#[test]
fn one_process_shares_and_does_not_mix() {
    let path = on_disk("data");
    made(&path, 1);
    let file = options().durability(Durability::PerCommit).open(&path).unwrap();
    let same = options().open(&path).unwrap();
    same.write_at(b"shared", 4090).unwrap();
    assert_eq!(read(&file)[4090..4096], *b"shared");
    let others = [
        options().durability(Durability::PerWrite),
        options().engine(EngineKind::Passthrough),
        options().read_only(true),
    ];
    for other in others {
        let error = other.open(&path).unwrap_err();
        assert!(matches!(error, Error::InUse { .. }) && error.path() == *path, "{error}");
    }
    assert!(matches!(same.settle(), Err(Error::InUse { .. })));
    file.close().unwrap();
    options().durability(Durability::PerWrite).open(&path).unwrap();
}

const OTHER: &str = "UNTORN_TEST_OTHER_PROCESS";

/// Called by [`another_process_is_kept_out`], in a process of its own.
#[test]
fn the_other_process_reports_what_it_sees() {
    let Ok(path) = std::env::var(OTHER) else { return };
    let read_only = options().read_only(true).open(&path).map(drop);
    for outcome in [options().open(&path).map(drop), read_only, untorn::recover(&path, &options()).map(drop)] {
        match outcome {
            Ok(()) => println!("opened"),
            Err(Error::InUse { path: named, .. }) if named == Path::new(&path) => println!("in use"),
            Err(error) => println!("error: {error}"),
        }
    }
    println!("{:?}", untorn::inspect(&path).unwrap().state);
}

#[test]
fn another_process_is_kept_out() {
    let path = on_disk("data");
    made(&path, 1);
    let other = || {
        let mut command = again(sibling!("the_other_process_reports_what_it_sees"));
        let output = String::from_utf8(command.env(OTHER, &*path).output().unwrap().stdout).unwrap();
        let count = |line: &str| output.lines().filter(|said| said.ends_with(line)).count();
        (count("in use"), count("InUse"), count("opened"), count("Clean"))
    };
    let file = options().open(&path).unwrap();
    let model = read(&file);
    assert_eq!(other(), (3, 1, 0, 0));
    assert!(read(&file) == model);
    file.close().unwrap();
    assert_eq!(other(), (0, 0, 3, 1));
}

#[test]
fn creating_takes_no_name_and_leaves_none() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::write(at("file"), b"mine").unwrap();
    std::fs::create_dir(at("dir")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    // No sidecar can be made where a file has the directory's name.
    std::fs::write(at("dir/.untorn"), b"taken").unwrap();
    let before = tree(dir.path());
    let fails = |options: &Options, name: &str, len: u64| {
        let error = options.create(at(name), len).expect_err(name);
        assert!(error.to_string().contains(dir.path().to_str().unwrap()), "{error}");
        assert!(tree(dir.path()) == before, "{name}: {error}");
    };
    ["file", "dir", "dangling", "missing/data"].into_iter().for_each(|name| fails(&options(), name, 100));
    fails(&options(), "dir/data", 100);
    fails(&options(), "huge", u64::MAX);
    fails(&options().record_area(100, 8), "data", 100);
    fails(&options().record_area(u32::MAX, u32::MAX), "data", 100);
}
