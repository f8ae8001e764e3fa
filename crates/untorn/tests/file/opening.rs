//! Opening: who may, at the same time as whom, and what stands under the name meanwhile.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::counting::Counting;
use crate::common::system::in_forked_child;
use crate::common::{
    PAGE, alone, create_on, limit, memory_dir, names, partly_reflected, pattern, read, run_alone, scratch,
    scratch_holding, sidecar_of,
};
use untorn::report::State;
use untorn::testing::storage::PageCache;
use untorn::{AtomicFile, AtomicMap, Durability, EngineKind, Error, Options};
use untorn_testing::test_name;

const LEN: usize = 3 * PAGE;

fn options() -> Options {
    let options = Options::new().engine(EngineKind::Reflection).durability(Durability::PerCommit);
    options.record_area(2, 8).max_len(1 << 20).keep_sidecar(true)
}

fn reader() -> Options {
    options().read_only(true)
}

fn made(path: &Path, seed: u64) -> Vec<u8> {
    partly_reflected(&options(), path, LEN, seed)
}

/// Tells threads to end, when the guard goes: also by a failed assertion, else they would keep the test from ending.
struct Done(AtomicBool);

impl Done {
    fn end(&self) -> impl Drop + '_ {
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        End(&self.0)
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

fn is_in_use<T>(outcome: untorn::Result<T>) -> bool {
    matches!(outcome, Err(Error::InUse { .. }))
}

#[test]
fn the_engine_without_sidecars_refuses_a_file_that_has_one() {
    let path = scratch("data");
    let model = made(&path, 1);
    for read_only in [false, true] {
        let passthrough = options().engine(EngineKind::Passthrough).read_only(read_only);
        let error = passthrough.open(&path).unwrap_err();
        assert!(matches!(error, Error::OtherEngine { .. }) && error.to_string().contains("settle"), "{error}");
        let file = options().open(&path).unwrap();
        assert!(is_in_use(passthrough.open_on(PageCache::new(), &path)));
        file.close().unwrap();
    }
    std::fs::rename(sidecar_of(&path), path.dir().join("kept")).unwrap();
    let passthrough = options().engine(EngineKind::Passthrough);
    assert!(matches!(passthrough.open(&path), Err(Error::SidecarMissing { .. })));
    std::fs::rename(path.dir().join("kept"), sidecar_of(&path)).unwrap();
    options().open(&path).unwrap().settle().unwrap();
    assert!(read(&passthrough.open(&path).unwrap()) == model);
}

#[test]
fn a_plain_file_is_read_by_several_handles() {
    let path = scratch("plain");
    std::fs::write(&path, pattern(LEN, 1)).unwrap();
    let first = reader().open(&path).unwrap();
    let second = reader().open(&path).unwrap();
    assert!(read(&first) == pattern(LEN, 1) && read(&second) == pattern(LEN, 1));
    // Another process gives it a sidecar: the next reader must not be handed the plain file.
    let writer = options().open_on(PageCache::new(), &path).unwrap();
    writer.write_at(&[7; 64], 0).unwrap();
    writer.close().unwrap();
    assert!(is_in_use(reader().open(&path)));
    drop((first, second));
    assert_eq!(read(&reader().open(&path).unwrap())[..64], [7; 64]);
}

#[test]
fn readers_of_several_processes_share_and_keep_writers_out() {
    alone!(60, "readers in two processes");
    let path = scratch("data");
    let model = made(&path, 1);
    let file = reader().open(&path).unwrap();
    let child = in_forked_child(|| {
        let shared = reader().open(&path).is_ok_and(|file| read(&file) == model);
        let clean = untorn::inspect(&path).is_ok_and(|report| report.state == State::Clean);
        let out = is_in_use(options().open(&path));
        i32::from(shared) | i32::from(clean) << 1 | i32::from(out) << 2
    });
    assert_eq!(child.wait(), Some(0b111), "a reader shares, inspection reports, a writer is kept out");
    drop(file);
    options().open(&path).unwrap().close().unwrap();
}

#[test]
fn looking_keeps_nobody_out() {
    let _limit = limit(120, "opening beside inspections");
    let path = scratch("data");
    made(&path, 1);
    let done = Done(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = done.end();
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.is_set() {
                    let report = untorn::inspect(&path).unwrap();
                    assert!(matches!(report.state, State::Clean | State::InUse | State::NeedsRecovery), "{report:?}");
                }
            });
        }
        for n in 0..100 {
            let file = options().open(&path).unwrap_or_else(|error| panic!("{n}: {error}"));
            file.write_at(&[n; 100], 64 * u64::from(n)).unwrap();
            file.close().unwrap();
        }
    });
}

/// What a forked child does with a file its parent has open: nothing it inherited serves, and nothing it does unlocks.
#[test]
fn a_forked_child_opens_anew() {
    alone!(60, "a forked child that opens");
    let path = scratch("data");
    let model = made(&path, 1);
    let mut file = Some(options().open(&path).unwrap());
    let child = in_forked_child(|| {
        let kept_out = is_in_use(options().open(&path));
        drop(file.take()); // The copy that the child inherited.
        let still_kept_out = is_in_use(options().open(&path));
        let reported = untorn::inspect(&path).is_ok_and(|report| report.state == State::InUse);
        i32::from(kept_out) | i32::from(still_kept_out) << 1 | i32::from(reported) << 2
    });
    assert_eq!(child.wait(), Some(0b111));
    let file = file.unwrap();
    file.write_at(&[5; 10], 0).unwrap();
    // A child that lives on with what it inherited does not keep the file locked once the parent has closed it.
    let (closed, go_on) = (path.dir().join("closed"), path.dir().join("go-on"));
    // Not for ever: if this test fails, nobody tells the child to go on.
    let wait_for = |name: &Path| {
        let waited = (0..600_000).find(|_| {
            name.exists() || {
                std::thread::sleep(Duration::from_millis(1));
                false
            }
        });
        assert!(waited.is_some(), "{} does not come", name.display());
    };
    let child = in_forked_child(|| {
        wait_for(&closed);
        let opened = options().open(&path).and_then(|file| {
            let right = read(&file)[..10] == [5; 10] && read(&file)[10..] == model[10..];
            file.close().map(|()| right)
        });
        wait_for(&go_on);
        opened.map_or(1, |right| if right { 0 } else { 2 })
    });
    file.close().unwrap();
    options().open(&path).expect("the child only inherited the file").close().unwrap();
    std::fs::write(&closed, "").unwrap();
    std::fs::write(&go_on, "").unwrap();
    assert_eq!(child.wait(), Some(0), "what the child found after the parent had closed the file");
}

/// Other threads of the parent may be opening and closing at the moment of the fork; the child must not wait for them.
#[test]
fn a_fork_in_the_middle_of_opening_leaves_no_child_waiting() {
    run_alone(test_name!(), 120, "children forked amid opening", || {
        let dir = memory_dir();
        let (path, other) = (dir.path().join("data"), dir.path().join("other"));
        made(&path, 1);
        made(&other, 2);
        let done = Done(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let _end = done.end();
            scope.spawn(|| {
                while !done.is_set() {
                    match options().open(&path) {
                        Ok(file) => file.close().unwrap(),
                        // A child has it, and does not get on for a while.
                        Err(Error::InUse { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            for n in 0..100 {
                let child = in_forked_child(|| {
                    let opened = options().open(&path);
                    let fair = opened.is_ok() || is_in_use(opened);
                    i32::from(!fair || options().open(&other).is_err())
                });
                assert_eq!(child.wait(), Some(0), "child {n}");
            }
        });
    });
}

#[test]
fn a_relative_path_outlives_a_change_of_directory() {
    run_alone(test_name!(), 60, "changing directory", || {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("elsewhere")).unwrap();
        for name in ["data", "./data", "elsewhere/../data"] {
            std::env::set_current_dir(dir.path()).unwrap();
            options().create(name, 40 * PAGE as u64).unwrap().close().unwrap();
            let file = options().open(name).unwrap();
            std::env::set_current_dir(at("elsewhere")).unwrap();
            // A commit large enough for a spill file of its own.
            let model = pattern(40 * PAGE, 1);
            file.write_at(&model, 0).unwrap();
            file.sync().unwrap();
            assert!(file.path().is_absolute(), "{}", file.path().display());
            file.settle().unwrap();
            assert!(std::fs::read(at("data")).unwrap() == model, "{name}");
            assert_eq!(names(dir.path()), ["data", "elsewhere"], "{name}: the sidecar is gone");
            assert_eq!(names(&at("elsewhere")), [""; 0], "{name}: nothing was looked for here");
            std::fs::remove_file(at("data")).unwrap();
        }
    });
}

/// A flush that fails on a medium of the user's own is no success later, whatever the engine.
#[test]
fn a_failed_flush_latches_on_any_medium() {
    for engine in [EngineKind::Passthrough, EngineKind::Reflection] {
        let medium = Counting::new(PageCache::new());
        let (_path, file) = create_on(medium.clone(), &options().engine(engine), LEN as u64);
        file.write_at(&[1; 64], 0).unwrap();
        medium.fail_fences_after(0);
        let first = file.sync().unwrap_err();
        assert!(matches!(first, Error::Io { .. }), "{engine}: {first}");
        medium.fail_fences_after(u64::MAX);
        for outcome in [file.sync().map(drop), file.write_at(&[2; 64], 0), file.resize(10), file.close()] {
            let error = outcome.expect_err("success after a failed flush");
            assert!(matches!(error, Error::Poisoned { .. }), "{engine}: {error}");
        }
    }
}

#[test]
fn a_sidecar_lets_in_the_writers_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let permissions = |path: &Path| {
        let found = std::fs::metadata(path).unwrap();
        (found.mode() & 0o777, found.uid(), found.gid())
    };
    let root = rustix::process::geteuid().is_root();
    if !root {
        untorn_testing::skipped!("only root can give a file to another owner, so only its mode is looked at");
    }
    let modes = [(0o600, 0o600), (0o640, 0o600), (0o660, 0o660), (0o666, 0o666), (0o755, 0o600)];
    for (n, (mode, side_mode)) in modes.into_iter().enumerate() {
        let path = dir.path().join(format!("data-{n}"));
        std::fs::write(&path, vec![1; 40 * PAGE]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        if root {
            std::os::unix::fs::chown(&path, Some(1234), Some(4321)).unwrap();
        }
        let (_, owner, group) = permissions(&path);
        let expected = (side_mode, owner, group);
        let medium = Counting::new(PageCache::new());
        let (seen, spills) = (path.clone(), std::sync::Arc::new(std::sync::Mutex::new(Vec::new())));
        let found = spills.clone();
        medium.watch(move |_, _| {
            let spill = std::fs::metadata(sidecar_of(&seen).with_extension("spill"));
            found.lock().unwrap().extend(spill.map(|spill| (spill.mode() & 0o777, spill.uid(), spill.gid())).ok());
        });
        let file = options().open_on(medium, &path).unwrap();
        assert_eq!(permissions(&sidecar_of(&path)), expected, "the sidecar of a file of mode {mode:o}");
        file.write_at(&[2; 40 * PAGE], 0).unwrap();
        file.sync().unwrap();
        let spills = spills.lock().unwrap();
        assert!(!spills.is_empty() && spills.iter().all(|&spill| spill == expected), "{mode:o}: {spills:?}");
    }
}

/// With an access control list the group's permissions in the mode are those of the list's mask, and a directory may
/// give every new file a list of its own.
#[test]
fn a_sidecar_has_the_access_control_list_of_its_file() {
    const LIST: &str = "system.posix_acl_access";
    let list = |owner: u16, other: u16| {
        let entries: [(u16, u16, u32); 5] = [
            (0x01, owner, u32::MAX),
            (0x02, 6, 1234),     // a user
            (0x04, 0, u32::MAX), // group
            (0x10, 6, u32::MAX), // mask
            (0x20, other, u32::MAX),
        ];
        let mut bytes = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in entries {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    };
    let of = |path: &Path| {
        let mut bytes = [0; 200];
        rustix::fs::getxattr(path, LIST, &mut bytes).ok().map(|len| bytes[..len].to_vec())
    };
    let flags = rustix::fs::XattrFlags::empty();
    for inherited in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let (with, without) = (dir.path().join("with"), dir.path().join("without"));
        [&with, &without].into_iter().for_each(|path| std::fs::write(path, [1; 100]).unwrap());
        if let Err(error) = rustix::fs::setxattr(&with, LIST, &list(6, 0), flags) {
            untorn_testing::skip!("{} keeps no access control lists: {error}", dir.path().display());
        }
        if inherited {
            // The owner may search directories that inherit it.
            rustix::fs::setxattr(dir.path(), "system.posix_acl_default", &list(7, 4), flags).unwrap();
        }
        for (path, expected) in [(&with, Some(list(6, 0))), (&without, None)] {
            let _file = options().open(path).unwrap();
            assert_eq!(of(&sidecar_of(path)), expected, "{}, inherited: {inherited}", path.display());
        }
    }
}

/// Two create a sidecar at once. The first fails and removes its unfinished one, a third begins another: the second,
/// which waited for the first one's lock, must not fill what has no name and then take the third's for its own.
#[test]
fn a_sidecar_that_vanishes_while_it_is_waited_for() {
    let path = scratch_holding(pattern(LEN, 1));
    let medium = Counting::new(PageCache::new());
    let replaced = AtomicBool::new(false);
    medium.watch(move |what, unfinished: &Path| {
        let first = what == "lock" && unfinished.extension().is_some_and(|extension| extension == "new");
        if first && !replaced.swap(true, Ordering::Relaxed) {
            std::fs::remove_file(unfinished).unwrap();
            std::fs::write(unfinished, "").unwrap();
        }
    });
    let file = options().open_on(medium, &path).unwrap();
    assert!(read(&file) == pattern(LEN, 1));
    file.write_at(&[3; 10], 0).unwrap();
    file.close().unwrap();
    assert_eq!(read(&options().open(&path).unwrap())[..10], [3; 10]);
    assert_eq!(names(&path.dir().join(".untorn")).len(), 1);
}

/// A program that saves by rename may put another file under the name at any moment. Each handle is of one file.
#[test]
fn a_file_replaced_while_it_is_opened() {
    let _limit = limit(120, "opening while files are exchanged");
    let dir = memory_dir();
    let (path, other) = (dir.path().join("data"), dir.path().join("other"));
    let models: Vec<(PathBuf, Vec<u8>)> = [(&path, 1), (&other, 2)]
        .map(|(path, seed)| {
            let model = made(path, seed);
            (sidecar_of(path), model)
        })
        .into();
    let done = Done(AtomicBool::new(false));
    let (opened, mut refused) = (std::cell::Cell::new(0), 0);
    std::thread::scope(|scope| {
        let _end = done.end();
        scope.spawn(|| {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            while !done.is_set() {
                rustix::fs::renameat_with(rustix::fs::CWD, &path, rustix::fs::CWD, &other, exchange).unwrap();
                std::thread::sleep(Duration::from_micros(20));
            }
        });
        // At least one is opened, whenever the names happen to stay as they are for so long.
        for n in (0..).take_while(|n| *n < 400 || opened.get() == 0) {
            let file = match options().open(&path) {
                Ok(file) => file,
                Err(Error::InUse { .. }) => {
                    refused += 1;
                    continue;
                }
                Err(error) => panic!("{n}: {error}"),
            };
            let sidecar = file.info().sidecar.unwrap();
            let (_, model) = models.iter().find(|(place, _)| *place == sidecar).expect("one of the two");
            assert!(read(&file) == *model, "{n}: one file's bytes with the other's sidecar");
            file.close().unwrap();
            opened.set(opened.get() + 1);
        }
    });
    eprintln!("{} opened, {refused} refused", opened.get());
}

/// A thread that is refused for its options holds the file for a moment; that must not look like another handle.
#[test]
fn a_refused_thread_does_not_keep_a_file_from_settling() {
    let _limit = limit(120, "settling beside refused threads");
    let path = scratch_holding(pattern(LEN, 1));
    let done = Done(AtomicBool::new(false));
    std::thread::scope(|scope| {
        let _end = done.end();
        for _ in 0..2 {
            scope.spawn(|| {
                // Reading while a writer has the file: refused, or it is a plain file just now.
                while !done.is_set() {
                    let outcome =
                        options().engine(EngineKind::Passthrough).durability(Durability::PerWrite).open(&path);
                    drop(outcome);
                }
            });
        }
        // At least once, whenever the others happen not to have it.
        let mut settled = 0;
        let mut tried = 0;
        while tried < 2000 || settled == 0 {
            tried += 1;
            let Ok(file) = options().open(&path) else { continue };
            file.settle().unwrap_or_else(|error| panic!("{tried}: {error}"));
            settled += 1;
        }
        eprintln!("settled {settled} times");
    });
}

#[test]
fn open_or_create_opens_what_is_there_and_creates_the_rest() {
    let dir = memory_dir();
    let path = dir.path().join("data");
    let file = AtomicFile::open_or_create(&path, 5000).unwrap();
    assert_eq!(file.len(), 5000);
    file.write_at(b"kept", 0).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    let file = AtomicFile::open_or_create(&path, 1 << 20).unwrap();
    assert_eq!((file.len(), read(&file)[..4].to_vec()), (5000, b"kept".to_vec()));
    file.close().unwrap();

    // An empty file has no bytes to keep: it is what another process has not finished to create.
    let empty = dir.path().join("empty");
    std::fs::File::create(&empty).unwrap();
    AtomicFile::open_or_create(&empty, 4096).unwrap().close().unwrap();
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 4096);
    let map = AtomicMap::open_or_create(dir.path().join("map"), 8192).unwrap();
    assert_eq!(map.len(), 8192);
    map.close().unwrap();

    let dangling = dir.path().join("dangling");
    std::os::unix::fs::symlink("nothing", &dangling).unwrap();
    let refused = AtomicFile::open_or_create(&dangling, 4096).unwrap_err();
    assert!(matches!(&refused, Error::Io { source, .. } if source.kind() == ErrorKind::NotFound), "{refused}");
    assert!(matches!(AtomicFile::open_or_create(dir.path(), 4096), Err(Error::NotAFile { .. })));
    assert!(AtomicFile::open_or_create(dir.path().join("none/data"), 4096).is_err());
}

#[test]
fn threads_that_create_one_file_at_once_share_it() {
    let dir = memory_dir();
    for round in 0..20 {
        let path = dir.path().join(format!("data-{round}"));
        let start = std::sync::Barrier::new(4);
        std::thread::scope(|scope| {
            for number in 0..4_u8 {
                let (path, start) = (&path, &start);
                scope.spawn(move || {
                    start.wait();
                    let file = AtomicFile::open_or_create(path, 4096).unwrap();
                    assert_eq!(file.len(), 4096);
                    file.write_at(&[number + 1], number.into()).unwrap();
                    file.sync().unwrap();
                });
            }
        });
        assert_eq!(read(&AtomicFile::open(&path).unwrap())[..4], [1, 2, 3, 4]);
    }
}
