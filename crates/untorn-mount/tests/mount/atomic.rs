//! Mode atomic: a crash leaves each file as its last commit.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use untorn::write_cache::{Keep, ReplayOutcome};
use untorn_testing::{cases, needs};

use crate::support::{How, Mount, mount_as};

const BOTH: [How; 2] = [How::Atomic, How::AtomicWriteThrough];

fn create(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// Kills the server, and returns what a replay leaves of a file.
fn crash(mount: &mut Mount, name: &str) -> Vec<u8> {
    mount.kill();
    mount.replay();
    fs::read(mount.source().join(name)).unwrap_or_default()
}

#[test]
fn a_crash_leaves_the_last_commit_and_nothing_later() {
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let file = create(&mount.path().join("f"));
        file.write_all_at(&[1; 10_000], 0).unwrap();
        file.write_all_at(&[2; 100], 50_000).unwrap();
        assert_eq!(
            fs::read(mount.source().join("f")).unwrap(),
            b"",
            "{how:?}: nothing is in the source before a commit"
        );
        file.sync_all().unwrap();
        file.write_all_at(&[3; 20_000], 5_000).unwrap();
        file.set_len(7_000).unwrap();
        let mut expected = vec![0; 50_100];
        expected[..10_000].fill(1);
        expected[50_000..].fill(2);
        assert_eq!(fs::read(mount.path().join("f")).unwrap(), [vec![1; 5_000], vec![3; 2_000]].concat());
        assert!(crash(&mut mount, "f") == expected, "{how:?}");
    }
}

/// Writes to a file in the source, so that it gets another modification time.
fn write_outside(path: &Path, bytes: &[u8]) {
    let modified = || fs::metadata(path).unwrap().modified().unwrap();
    let before = modified();
    while modified() == before {
        fs::write(path, bytes).unwrap();
    }
}

fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Neither version is lost: the source has that of the other program, and the log the commit, until the user chooses.
#[test]
fn a_commit_over_another_programs_change_is_refused() {
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let outside = mount.source().join("f");
        let file = create(&mount.path().join("f"));
        file.write_all_at(b"first", 0).unwrap();
        file.sync_all().unwrap();
        wait_until("the first commit is brought to the source", || fs::read(&outside).unwrap() == b"first");
        file.write_all_at(b"INSIDE", 0).unwrap();
        write_outside(&outside, b"of another program");
        let stale = Errno::STALE.raw_os_error();
        assert_eq!(file.sync_all().unwrap_err().raw_os_error(), Some(stale), "{how:?}");
        for _ in 0..3 {
            assert!(file.sync_all().is_err(), "{how:?}: a refused sync never succeeds later");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert_eq!(fs::read(&outside).unwrap(), b"of another program", "{how:?}");
        mount.kill();
        drop(file);
        let replay = untorn::write_cache::replay(mount.log(), None).unwrap();
        assert!(matches!(replay.files[0].fate, ReplayOutcome::Changed(_)), "{how:?}: {replay:?}");
        assert_eq!(fs::read(&outside).unwrap(), b"of another program", "{how:?}");
        let replay = untorn::write_cache::replay_keeping(mount.log(), Keep::Log, None).unwrap();
        assert!(replay.is_complete(), "{how:?}: {replay:?}");
        assert!(fs::read(&outside).unwrap().starts_with(b"INSIDE"), "{how:?}");
    }
}

/// The commit was acknowledged before the other program's change, and the log has not brought it to the source.
#[test]
fn nothing_is_stored_over_another_programs_change() {
    let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", How::AtomicWriteThrough) else { return };
    let (inside, outside) = (mount.path().join("f"), mount.source().join("f"));
    let file = create(&inside);
    file.write_all_at(b"first", 0).unwrap();
    file.sync_all().unwrap();
    wait_until("the first commit is brought to the source", || fs::read(&outside).unwrap() == b"first");
    file.write_all_at(b"INSIDE", 0).unwrap();
    write_outside(&outside, b"of another program");
    // The last close commits, and no sync is told.
    drop(file);
    let again = || File::options().write(true).open(&inside).and_then(|file| file.write_all_at(b"!", 0));
    wait_until("the server meets the change", || again().is_err());
    assert_eq!(fs::read(&outside).unwrap(), b"of another program");
    mount.kill();
    let replay = untorn::write_cache::replay(mount.log(), None).unwrap();
    assert!(matches!(replay.files[0].fate, ReplayOutcome::Changed(_)), "{replay:?}");
    assert_eq!(fs::read(&outside).unwrap(), b"of another program");
}

#[test]
fn what_the_mount_itself_changes_in_the_source_is_no_conflict() {
    for how in BOTH {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let inside = mount.path().join("f");
        let mut number = 0;
        let mut commit = |file: &File| {
            number += 1;
            file.write_all_at(&[number; 5000], u64::from(number) * 100).unwrap();
            file.sync_all().unwrap();
        };
        for round in 0..cases(3, 30) {
            let file = create(&inside);
            commit(&file);
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
            commit(&file);
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, 100_000).unwrap();
            commit(&file);
            rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::KEEP_SIZE, 0, 200_000).unwrap();
            file.set_len(3000).unwrap();
            commit(&file);
            fs::rename(&inside, mount.path().join("g")).unwrap();
            fs::hard_link(mount.path().join("g"), &inside).unwrap();
            commit(&file);
            fs::remove_file(mount.path().join("g")).unwrap();
            commit(&file);
            if round % 2 == 0 {
                std::thread::sleep(Duration::from_millis(60));
                commit(&file);
            }
        }
        mount.unmount();
    }
}

#[test]
fn a_sync_of_a_part_commits_all_that_was_written_before() {
    needs!("python3");
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let path = mount.path().join("f");
        let file = create(&path);
        file.write_all_at(&[1; 4096], 0).unwrap();
        let flags = OFlags::WRONLY | OFlags::DSYNC;
        let synced = rustix::fs::open(&path, flags, Mode::empty()).unwrap();
        rustix::io::pwrite(&synced, &[2; 4096], 8192).unwrap();
        let program = "
import ctypes, mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(fd, 12288)
os.pwrite(fd, b'before', 4096)
memory[100:105] = b'store'
memory[8200:8204] = b'sync'
memory.flush(8192, 4096)
os.kill(os.getpid(), 9)
";
        let status = std::process::Command::new("python3").arg("-c").arg(program).arg(&path).status().unwrap();
        assert!(!status.success());
        let mut expected = [vec![1; 4096], vec![0; 4096], vec![2; 4096]].concat();
        expected[4096..4102].copy_from_slice(b"before");
        expected[100..105].copy_from_slice(b"store");
        expected[8200..8204].copy_from_slice(b"sync");
        assert!(crash(&mut mount, "f") == expected, "{how:?}");
    }
}

#[test]
fn the_last_close_commits_and_keeps_the_times() {
    for how in BOTH {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let (path, source) = (mount.path().join("f"), mount.source().join("f"));
        let file = create(&path);
        file.write_all_at(b"contents", 0).unwrap();
        let time = UNIX_EPOCH + Duration::new(1_234_567_890, 123_456_789);
        file.set_modified(time).unwrap();
        drop(file);
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        assert_eq!(path.metadata().unwrap().modified().unwrap(), time, "{how:?}");
        // Some within one tick of the clock, some not.
        let written: Vec<_> = (0..12)
            .map(|number| {
                let path = mount.path().join(number.to_string());
                let file = create(&path);
                std::thread::sleep(Duration::from_millis(number % 4));
                file.write_all_at(b"later", 0).unwrap();
                let seen = file.metadata().unwrap();
                (mount.source().join(number.to_string()), seen.mtime(), seen.mtime_nsec())
            })
            .collect();
        mount.unmount_keeping(|| {
            assert_eq!(fs::read(&source).unwrap(), b"contents");
            assert_eq!(source.metadata().unwrap().modified().unwrap(), time, "{how:?}");
            for (path, seconds, nanoseconds) in written {
                let found = path.metadata().unwrap();
                assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanoseconds), "{how:?} {path:?}");
            }
        });
    }
}

#[test]
fn an_epoch_larger_than_the_log_is_committed_whole() {
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let file = create(&mount.path().join("f"));
        let chunks = |byte: u8| (0..24_u64).try_for_each(|number| file.write_all_at(&[byte; 1 << 20], number << 20));
        chunks(1).unwrap();
        file.sync_all().unwrap();
        chunks(2).unwrap();
        let found = crash(&mut mount, "f");
        assert_eq!(found.len(), 24 << 20, "{how:?}");
        assert!(found.iter().all(|&byte| byte == 1), "{how:?}: the source has something else than the last commit");
    }
}

/// Changes of less than what goes to the spill file at once: four times what the log has room for, in one file, and
/// then in several files together.
#[test]
fn epochs_of_small_writes_are_committed_whole() {
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let at = |number: u64| number * 7919 % 6000 * 8192;
        let file = create(&mount.path().join("f"));
        for byte in 1..=2_u8 {
            for number in 0..6000 {
                let len = if number % 4 == 0 { 100 } else { 4096 };
                file.write_all_at(&[byte; 4096][..len], at(number)).unwrap();
            }
            if byte == 1 {
                file.sync_all().unwrap();
            }
        }
        let files: Vec<File> = (0..8).map(|name| create(&mount.path().join(name.to_string()))).collect();
        for number in 0..400 {
            files.iter().for_each(|file| file.write_all_at(&[3; 3000], number * 5000).unwrap());
        }
        files.iter().for_each(|file| file.sync_all().unwrap());
        let found = crash(&mut mount, "f");
        assert!(found.iter().all(|&byte| byte <= 1), "{how:?}: the source has something else than the last commit");
        let written: usize = found.iter().map(|&byte| usize::from(byte)).sum();
        assert_eq!(written, 1500 * 100 + 4500 * 4096, "{how:?}");
        for name in 0..8 {
            let found = fs::read(mount.source().join(name.to_string())).unwrap();
            let written = found.iter().filter(|&&byte| byte == 3).count();
            assert_eq!((found.len(), written), (399 * 5000 + 3000, 400 * 3000), "{how:?} {name}");
        }
    }
}

#[test]
fn an_epoch_without_room_fails_every_sync_until_the_last_close() {
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        mount.kill();
        // Room for the log, and for little more.
        let of_log = mount.log().parent().unwrap().to_owned();
        rustix::mount::mount("small", &of_log, "tmpfs", MountFlags::empty(), c"size=11m").unwrap();
        mount.mount_again();
        let path = mount.path().join("f");
        let file = create(&path);
        file.write_all_at(b"committed", 0).unwrap();
        file.sync_all().unwrap();
        // In pieces that are too small for the spill file, at first.
        let written = (0..6000).try_for_each(|number| file.write_all_at(&[7; 4096], number << 13));
        assert_eq!(written.is_ok(), how == How::Atomic, "{how:?}: {written:?}");
        for _ in 0..3 {
            let failed = file.sync_all().unwrap_err();
            assert_eq!(failed.raw_os_error(), Some(Errno::NOSPC.raw_os_error()), "{how:?}");
        }
        drop(file);
        let source = mount.source().join("f");
        let found = mount.unmount_keeping(|| {
            rustix::mount::unmount(&of_log, UnmountFlags::DETACH).unwrap();
            fs::read(source).unwrap()
        });
        assert_eq!(found, b"committed", "{how:?}");
    }
}

#[test]
fn many_threads_sync_many_files_and_nobody_waits_for_good() {
    for how in BOTH {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let rounds = cases(20_u8, 200);
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let at = mount.path();
                scope.spawn(move || {
                    // Two threads to a file.
                    let file = create(&at.join((thread / 2).to_string()));
                    for round in 0..rounds {
                        file.write_all_at(&[round; 3000], 3000 * thread).unwrap();
                        if round % 2 == 0 { file.sync_data().unwrap() } else { file.sync_all().unwrap() }
                    }
                });
            }
        });
        for thread in 0..8_u64 {
            let file = File::open(mount.path().join((thread / 2).to_string())).unwrap();
            let mut bytes = [0; 3000];
            file.read_exact_at(&mut bytes, 3000 * thread).unwrap();
            assert_eq!(bytes, [rounds - 1; 3000]);
        }
        mount.unmount();
    }
}

#[test]
fn a_replaced_file_is_the_old_one_or_the_new_one_after_a_crash() {
    for how in BOTH {
        let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let at = mount.path();
        for round in 0..4_u8 {
            let file = create(&at.join("new"));
            file.write_all_at(&[round; 5000], 0).unwrap();
            file.sync_all().unwrap();
            drop(file);
            fs::rename(at.join("new"), at.join("f")).unwrap();
        }
        // Not synced: the name is there, and the contents may not be.
        assert_eq!(crash(&mut mount, "f"), [3; 5000], "{how:?}");
    }
}

#[test]
fn a_file_that_others_made_meanwhile_is_truncated() {
    // A kernel that caches writes keeps the length that it knew.
    let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", How::AtomicWriteThrough) else { return };
    let (inside, outside) = (mount.path(), mount.source());
    let file = create(&inside.join("a"));
    file.write_all_at(b"only the log has this", 0).unwrap();
    // The kernel remembers for a second that this name does not exist.
    assert!(!inside.join("b").exists());
    fs::hard_link(outside.join("a"), outside.join("b")).unwrap();
    let again = File::create(inside.join("b")).unwrap();
    again.write_all_at(b"new", 0).unwrap();
    drop((again, file));
    let found = mount.unmount_keeping(|| fs::read(outside.join("b")).unwrap());
    assert_eq!(found, b"new");
}

#[test]
fn an_open_without_a_change_leaves_the_source_alone() {
    for how in BOTH {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let source = mount.source().join("f");
        fs::write(&source, "bytes").unwrap();
        let before = rustix::fs::stat(&source).unwrap();
        for _ in 0..3 {
            let mut bytes = [0; 5];
            let file = File::options().read(true).write(true).open(mount.path().join("f")).unwrap();
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!(&bytes, b"bytes");
        }
        let after = mount.unmount_keeping(|| rustix::fs::stat(&source).unwrap());
        assert_eq!((after.st_ctime, after.st_ctime_nsec), (before.st_ctime, before.st_ctime_nsec), "{how:?}");
    }
}
