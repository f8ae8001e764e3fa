//! A process that fills the disk and is killed: on the full disk its file can be read, opens, closes and becomes a
//! plain file, at its last commit; and work goes on once there is room.

use std::path::Path;

use crate::common::disk::{Kind, SmallDisk};
use crate::common::system::in_forked_child;
use crate::common::{
    PAGE, killed, memory_dir, names, pattern, pmem, read, run_alone, scratch, sidecar_of, tree, truncate,
};
use rustix::process::{Signal, getpid, kill_process};
use untorn::options::LogPolicy;
use untorn::redundancy::ProtectOptions;
use untorn::testing::storage::{Medium, PageCache};
use untorn::{AtomicFile, Durability, EngineKind, Options};
use untorn_testing::test_name;

/// Bytes of a commit: more than the last pages that a disk has.
const STEP: usize = 16 * PAGE;
/// Bytes of the file, of which there is never room for all.
const LEN: usize = 32 << 20;

fn options(engine: EngineKind) -> Options {
    Options::new().engine(engine).durability(Durability::PerCommit).log_policy(LogPolicy::Redo).checkpoint_threads(0)
}

/// The file after so many commits, each of which fills a step.
fn filled(commits: usize) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    for (commit, step) in bytes.chunks_mut(STEP).take(commits).enumerate() {
        step.copy_from_slice(&pattern(STEP, commit as u64 + 1));
    }
    bytes
}

/// Whether a file that was closed is a plain one. On an xfs without room it may not be: the kernel needs space even to
/// change or remove an extended attribute. The call then says so, and the file keeps its sidecar.
fn is_plain(kind: Kind, closed: untorn::Result<()>, what: impl Fn(&str) -> String, doing: &str) -> bool {
    match closed {
        Err(error) if matches!(kind, Kind::Xfs) => {
            assert_eq!(error.errno(), 28, "{}: {error}", what(doing));
            let text = error.to_string();
            let is_attribute = ["cannot remove the mark of", "cannot write the commit number of"]
                .iter()
                .any(|what| text.contains(what));
            assert!(is_attribute, "{}: {error}", what(doing));
            false
        }
        closed => closed.map(|()| true).unwrap_or_else(|error| panic!("{}: {error}", what(doing))),
    }
}

/// Makes a file a plain one: where there is room at once, and else when there is some. There may be too little to open
/// a file that has no sidecar any more, and on an xfs one that has.
fn settle(disk: &SmallDisk, kind: Kind, options: &Options, path: &Path, what: impl Fn(&str) -> String) {
    let settled = match options.open(path) {
        Ok(file) => is_plain(kind, file.settle(), &what, "settling"),
        Err(error) => {
            assert_eq!(error.errno(), 28, "{}: {error}", what("opening"));
            assert!(matches!(kind, Kind::Xfs) || !sidecar_of(path).exists(), "{}: {error}", what("opening"));
            false
        }
    };
    if !settled {
        disk.empty();
        let file = options.open(path).unwrap_or_else(|error| panic!("{}: {error}", what("opening with room")));
        file.settle().unwrap_or_else(|error| panic!("{}: {error}", what("settling with room")));
        disk.fill(0);
    }
}

/// Commits step after step until there is no room, and notes each commit in a file elsewhere.
fn fill_up(file: &AtomicFile, note: &Path) {
    for commit in 0..LEN / STEP {
        let written = file.write_at(&pattern(STEP, commit as u64 + 1), (commit * STEP) as u64);
        if let Err(error) = written.and_then(|()| file.sync().map(drop)) {
            assert_eq!(error.errno(), 28, "{error}");
            return;
        }
        std::fs::write(note, (commit + 1).to_string()).unwrap();
    }
    panic!("the disk has room for all of it");
}

fn go<M: Medium>(kind: Kind, kib: u64, engine: EngineKind, medium: impl Fn() -> M) {
    let Some(disk) = SmallDisk::mount(kind, kib) else { return };
    let (path, elsewhere) = (disk.path("data"), memory_dir());
    let note = elsewhere.path().join("commits");
    options(engine).create_on(medium(), &path, LEN as u64).unwrap().close().unwrap();
    if matches!(kind, Kind::Xfs) {
        // As much room as on the others, which can be smaller; and on a full one there may be none for an inode.
        disk.fill((12 << 20) / PAGE as u64);
    }
    let child = in_forked_child(|| {
        let file = options(engine).open_on(medium(), &path).unwrap();
        fill_up(&file, &note);
        // Before the file is dropped, which would close it.
        kill_process(getpid(), Signal::KILL).unwrap();
        0
    });
    assert_eq!(child.wait(), None, "it was to be killed");
    disk.fill(0);
    let commits: usize = std::fs::read_to_string(&note).unwrap().parse().unwrap();
    assert!(commits > 8, "{kind:?} {engine}: {commits} commits found room");
    let model = filled(commits);
    let what = |doing: &str| format!("{kind:?} {engine}, {commits} commits, {doing}");
    let is_model = |bytes: &[u8], doing: &str| assert!(bytes == model, "{}: other bytes", what(doing));

    let reader = options(engine).read_only(true).open_on(medium(), &path);
    is_model(&read(&reader.unwrap_or_else(|error| panic!("{}: {error}", what("to read")))), "read only");
    let file = options(engine).open_on(medium(), &path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", what("to open")));
    is_model(&read(&file), "recovered");
    // A page that has its place can be written on.
    file.write_at(&pattern(PAGE, 1), 0).and_then(|()| file.sync()).unwrap();
    file.write_at(&model[..PAGE], 0).and_then(|()| file.sync()).unwrap();
    is_plain(kind, file.close(), what, "to close");
    settle(&disk, kind, &options(engine), &path, what);
    is_model(&std::fs::read(&path).unwrap(), "settled");
    assert_eq!(names(disk.0.path()), ["ballast", "data"], "{}", what("what is left"));

    disk.empty();
    let file = options(engine).open_on(medium(), &path).unwrap();
    file.write_at(&pattern(STEP, 9), (LEN - STEP) as u64).and_then(|()| file.sync()).unwrap();
    file.close().unwrap();
}

#[test]
fn a_kill_on_a_full_disk_is_no_dead_end() {
    run_alone(test_name!(), 240, "processes killed on a full disk", || {
        for engine in untorn::testing::ENGINES {
            for kind in [Kind::Tmpfs, Kind::Ext4] {
                go(kind, 16 << 10, engine, PageCache::new);
            }
            if untorn_testing::cases(0, 1) == 1 {
                go(Kind::Xfs, 64 << 10, engine, PageCache::new);
            }
        }
    });
}

/// What a reader finds of a file that a crash left is what recovery finds, under each engine and policy, and nothing
/// changes.
#[test]
fn a_reader_finds_the_last_commit_after_a_crash() {
    fn check<M: Medium>(options: &Options, medium: impl Fn() -> M) {
        let path = scratch("data");
        let file = options.create_on(medium(), &path, 40 * PAGE as u64).unwrap();
        let mut model = vec![0; 40 * PAGE];
        for commit in 0..12 {
            for write in 0..5 {
                let (from, len) =
                    ((commit * 7919 + write * 3571) % (39 * PAGE), 1 + (commit * 331 + write * 977) % PAGE);
                model[from..from + len].copy_from_slice(&pattern(len, (commit * 5 + write) as u64));
                file.write_at(&model[from..from + len], from as u64).unwrap();
            }
            file.sync().unwrap();
        }
        // Not committed, and so not to be seen.
        file.write_at(&[0xEE; 3 * PAGE], 5 * PAGE as u64 + 10).unwrap();
        let path = killed(file);
        let before = tree(path.parent().unwrap());
        let reader = options.clone().read_only(true).open_on(medium(), &path).unwrap();
        assert!(read(&reader) == model, "{options:?}");
        for at in (0..model.len() - 700).step_by(1013) {
            let mut bytes = [0; 700];
            reader.read_at(&mut bytes, at as u64).unwrap();
            assert!(bytes == model[at..at + 700], "{options:?}, byte {at}");
        }
        assert!(reader.info().recovery.was_needed);
        drop(reader);
        assert!(tree(path.parent().unwrap()) == before, "a reader changes nothing");
        // Two at once, and nobody writes meanwhile.
        let readers = [(); 2].map(|()| options.clone().read_only(true).open_on(medium(), &path).unwrap());
        assert!(options.open_on(medium(), &path).is_err());
        drop(readers);
        assert!(read(&options.open_on(medium(), &path).unwrap()) == model, "{options:?}");
    }
    for engine in untorn::testing::ENGINES {
        check(&options(engine), PageCache::new);
        for policy in [LogPolicy::Redo, LogPolicy::Undo] {
            check(&options(engine).log_policy(policy), pmem);
        }
    }
}

/// A script of operations on a disk with so many pages of room. Each one does what it says, or finds no room and
/// changes nothing; and on the full disk the file closes, is read, and becomes a plain file.
fn with_room(disk: &SmallDisk, kind: Kind, engine: EngineKind, room: u64) -> bool {
    let what = |doing: &str| format!("{kind:?} {engine}, room for {room} pages, {doing}");
    let path = disk.path("data");
    let mut found_room = true;
    let mut is_done = |result: untorn::Result<()>, doing: &str| match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), 28, "{}: {error}", what(doing));
            found_room = false;
            false
        }
    };
    let options = options(engine).record_area(2, 16).max_len(4 << 20);
    let file = match options.create(&path, 1 << 20) {
        Ok(file) => file,
        Err(error) => {
            assert_eq!(error.errno(), 28, "{}: {error}", what("creating"));
            assert_eq!(names(disk.0.path()), ["ballast"], "{}", what("creating"));
            return false;
        }
    };
    let mut now = vec![0; 1 << 20];
    let mut kept = now.clone();
    for n in 0..24_usize {
        let (at, bytes) = (n * 37 % 256 * PAGE + n * 100, pattern(PAGE, n as u64 + 1));
        if at + PAGE <= now.len() && is_done(file.write_at(&bytes, at as u64), "writing") {
            now[at..at + PAGE].copy_from_slice(&bytes);
        }
        assert!(read(&file) == now, "{}", what("after a write"));
        if n % 3 == 2 && is_done(file.sync().map(drop), "committing") {
            kept.clone_from(&now);
        }
        if n == 11 && is_done(file.resize(2 << 20), "resizing") {
            now.resize(2 << 20, 0);
        }
    }
    if is_done(file.sync().map(drop), "committing") {
        kept = now;
    }
    is_plain(kind, file.close(), what, "closing");
    let reader = options.clone().read_only(true).open(&path);
    let reader = reader.unwrap_or_else(|error| panic!("{}: {error}", what("reading")));
    let seen = read(&reader);
    // A resize commits with the engine that makes it a commit of its own.
    assert!(seen == kept, "{}: {} bytes of {}", what("reading"), seen.len(), kept.len());
    drop(reader);
    settle(disk, kind, &options, &path, what);
    assert!(std::fs::read(&path).unwrap() == seen, "{}", what("settled"));
    std::fs::remove_file(&path).unwrap();
    found_room
}

/// Protecting a file on a disk with so many pages of room, while the file is closed and while an engine has it: it is
/// done, or finds no room and leaves the file as it was; and a protected file goes on being read, written and closed.
fn protecting_with_room(disk: &SmallDisk, kind: Kind, engine: EngineKind, room: u64) -> bool {
    let what = |doing: &str| format!("{kind:?} {engine}, room for {room} pages, {doing}");
    let path = disk.path("data");
    let mut found_room = true;
    let mut is_done = |result: untorn::Result<()>, doing: &str| match result {
        Ok(()) => true,
        Err(error) => {
            assert_eq!(error.errno(), 28, "{}: {error}", what(doing));
            assert!(error.to_string().contains(disk.0.path().to_str().unwrap()), "{}: {error}", what(doing));
            found_room = false;
            false
        }
    };
    let redundancy = ProtectOptions::new().on_demand().stripe(4);
    let mut model = std::fs::read(&path).unwrap();
    let is_model = |doing: &str| {
        let reader = options(engine).read_only(true).open(&path);
        let reader = reader.unwrap_or_else(|error| panic!("{}: {error}", what(doing)));
        read(&reader)
    };

    let protected = untorn::protect(&path, &redundancy).map(|coverage| assert_eq!(coverage.uncovered, 0));
    if is_done(protected, "protecting") {
        assert!(untorn::scrub(&path, None, &mut |_, _| true).unwrap().is_clean(), "{}", what("scrubbing"));
    } else {
        assert_eq!(names(disk.0.path()), ["ballast", "data"], "{}", what("protecting"));
    }
    assert!(is_model("reading") == model, "{}", what("reading"));

    // The engine keeps the redundancy from here on, or makes it.
    match options(engine).record_area(2, 16).redundancy(redundancy).open(&path) {
        Ok(file) => {
            let mut kept = model.clone();
            for n in 0..12_usize {
                let (at, bytes) = (n * 37 % 255 * PAGE + n * 100, pattern(PAGE, n as u64 + 1));
                if is_done(file.write_at(&bytes, at as u64), "writing") {
                    model[at..at + PAGE].copy_from_slice(&bytes);
                }
                assert!(read(&file) == model, "{}", what("after a write"));
                if n % 3 == 2 && is_done(file.sync().map(drop), "committing") {
                    kept.clone_from(&model);
                }
                if n % 4 == 3 {
                    is_done(file.sync_redundancy(), "covering");
                }
            }
            if is_done(file.sync().map(drop), "committing") {
                kept.clone_from(&model);
            }
            is_plain(kind, file.close(), what, "closing");
            model = kept;
        }
        Err(error) => {
            is_done(Err(error), "opening with redundancy");
        }
    }
    assert!(is_model("reading it closed") == model, "{}", what("reading it closed"));
    settle(disk, kind, &options(engine), &path, what);
    assert!(std::fs::read(&path).unwrap() == model, "{}", what("settled"));
    if untorn::coverage(&path).unwrap().is_some() {
        let report = untorn::scrub(&path, None, &mut |_, _| true).unwrap();
        assert!(report.is_clean(), "{}: {report:?}", what("scrubbing it closed"));
    }
    untorn::unprotect(&path).unwrap_or_else(|error| panic!("{}: {error}", what("unprotecting")));
    assert_eq!(names(disk.0.path()), ["ballast", "data"], "{}", what("unprotected"));
    found_room
}

#[test]
fn a_disk_that_fills_up_anywhere_keeps_what_was_acknowledged() {
    run_alone(test_name!(), 1800, "disks with little room", || with_every_room(17, with_room));
}

#[test]
fn protecting_on_a_disk_that_fills_up_anywhere_harms_nothing() {
    run_alone(test_name!(), 1800, "protecting files on disks with little room", || {
        // A file with all its pages, and one that is a hole for the most part: writes of the script fill it.
        for data in [256, 16] {
            with_every_room(97, |disk, kind, engine, room| {
                disk.empty();
                std::fs::write(disk.path("data"), pattern(data * PAGE, 99)).unwrap();
                truncate(&disk.path("data"), 1 << 20);
                disk.fill(room);
                let found_room = protecting_with_room(disk, kind, engine, room);
                std::fs::remove_file(disk.path("data")).unwrap();
                found_room
            });
        }
    });
}

/// Tries it with ever more pages of room, until it finds enough: with each number, or in the short variant with one of
/// so many.
fn with_every_room(short: u64, tried: impl Fn(&SmallDisk, Kind, EngineKind, u64) -> bool) {
    let kinds: &[Kind] = match untorn_testing::cases(0, 1) {
        0 => &[Kind::Tmpfs, Kind::Ext4],
        _ => &[Kind::Tmpfs, Kind::Ext4, Kind::Xfs],
    };
    for &kind in kinds {
        let Some(disk) = SmallDisk::mount(kind, 64 << 10) else { continue };
        for engine in untorn::testing::ENGINES {
            let enough = (0..2000).step_by(untorn_testing::cases(short as usize, 1)).find(|&room| {
                disk.fill(room);
                let found_room = tried(&disk, kind, engine, room);
                disk.empty();
                found_room
            });
            assert!(enough.is_some(), "{kind:?} {engine}: there is never enough room");
        }
    }
}
