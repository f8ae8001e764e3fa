//! The view that programs have of the source, and the parts that are hidden from them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;
use untorn_testing::{cases, needs};

use crate::support::mount;

#[test]
fn what_is_untorns_own_does_not_exist_in_the_mount() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let (at, source) = (mount.path(), mount.source());
    assert!(mount.log().exists());
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
    assert_eq!(fs::metadata(at.join(".untorn")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    assert_eq!(fs::metadata(at.join(".untorn/mount.log")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    for failed in [fs::create_dir(at.join(".untorn")), fs::write(at.join(".untorn"), "1")] {
        assert_eq!(failed.unwrap_err().raw_os_error(), Some(Errno::PERM.raw_os_error()));
    }
    // A directory that holds only an empty one is empty.
    for (name, full) in [("d", false), ("e", true)] {
        fs::create_dir_all(source.join(name).join(".untorn")).unwrap();
        if full {
            fs::write(source.join(name).join(".untorn/1"), "a sidecar").unwrap();
        }
        let removed = fs::remove_dir(at.join(name));
        assert_eq!(removed.is_err(), full, "{name}: {removed:?}");
        assert_eq!(source.join(name).exists(), full);
    }
    let path = at.join("f");
    fs::write(&path, "1").unwrap();
    rustix::fs::setxattr(source.join("f"), "user.untorn.x", b"1", XattrFlags::empty()).unwrap();
    rustix::fs::setxattr(source.join("f"), "user.other", b"1", XattrFlags::empty()).unwrap();
    let mut bytes = vec![0; 1024];
    let len = rustix::fs::listxattr(&path, &mut bytes[..]).unwrap();
    assert_eq!(&bytes[..len], b"user.other\0");
    assert_eq!(rustix::fs::getxattr(&path, "user.untorn.x", &mut bytes[..]), Err(Errno::NODATA));
    assert_eq!(rustix::fs::removexattr(&path, "user.untorn.x"), Err(Errno::NODATA));
    assert_eq!(rustix::fs::setxattr(&path, "user.untorn", b"1", XattrFlags::empty()), Err(Errno::PERM));
}

/// Programs reach such a file from a directory near it. Where the directory has too long a path, no file is made.
#[test]
fn a_file_with_too_long_a_path_is_plain() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let name = "d".repeat(250);
    for length in [15, 16] {
        let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
        let mut directory = rustix::fs::open(mount.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        for _ in 0..length {
            match rustix::fs::mkdirat(&directory, &name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => panic!("{length}: {error}"),
            }
            let found = rustix::fs::openat(&directory, &name, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            directory = found.unwrap();
        }
        // The last bytes of the longest path that the kernel tells.
        let file = "f".repeat(200);
        let open = |flags| rustix::fs::openat(&directory, &file, flags, mode).map(File::from);
        let made = open(flags | OFlags::CREATE).unwrap_or_else(|error| panic!("{length}: {error}"));
        made.write_all_at(b"0123456789", 0).and_then(|()| made.sync_all()).unwrap();
        made.set_len(5).unwrap();
        drop(made);
        let again = open(flags).unwrap_or_else(|error| panic!("{length}: {error}"));
        again.write_all_at(b"x", 1).unwrap();
        let mut bytes = String::new();
        (&again).read_to_string(&mut bytes).unwrap();
        assert_eq!(bytes, "0x234", "{length}");
        assert_eq!(open(flags | OFlags::TRUNC).unwrap().metadata().unwrap().len(), 0, "{length}");
        rustix::fs::unlinkat(&directory, &file, rustix::fs::AtFlags::empty()).unwrap();
    }
    assert!(mount.unmount().1 > 0, "nothing tells of the plain files");
}

/// The kernel's request for it is one that the server does not know. Programs make a file and remove its name then.
#[test]
fn a_file_without_a_name_is_refused() {
    needs!("python3");
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    for links in [OFlags::empty(), OFlags::EXCL] {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | links;
        let refused = rustix::fs::open(mount.path(), flags, Mode::RUSR | Mode::WUSR).map(drop);
        assert_eq!(refused, Err(Errno::OPNOTSUPP));
    }
    let program = "
import os, sys, tempfile
file = tempfile.TemporaryFile(dir=sys.argv[1])
file.write(b'some bytes')
file.flush()
os.fsync(file.fileno())
file.seek(0)
print(file.read().decode(), os.listdir(sys.argv[1]))
";
    assert_eq!(mount.python(program, &[&mount.path()]).trim(), "some bytes []");
}

#[test]
fn a_long_listing_is_complete_while_names_come_and_go() {
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    let directory = mount.path().join("many");
    fs::create_dir(&directory).unwrap();
    let count = cases(4_000, 100_000);
    for number in 0..count {
        File::create(mount.source().join("many").join(format!("stays {number}"))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for (place, entry) in fs::read_dir(&directory).unwrap().enumerate() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(name.starts_with("comes") || seen.insert(name.clone()), "twice: {name}");
        if place % 64 == 0 {
            fs::write(directory.join(format!("comes {place}")), "1").unwrap();
        }
        if place % 128 == 0 {
            fs::remove_file(directory.join(format!("comes {place}"))).unwrap();
        }
    }
    assert_eq!(seen.len() as u64, count as u64);
    // And each can be examined.
    let sizes = fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum::<u64>();
    assert!(sizes > 0);
}

#[test]
fn changes_outside_are_seen_before_long() {
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    let (inside, outside) = (mount.path().join("f"), mount.source().join("f"));
    assert!(!inside.exists());
    fs::write(&outside, "one").unwrap();
    let soon = |seen: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !seen() {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    soon(&|| inside.exists());
    let mut open = File::open(&inside).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one");
    fs::write(&outside, "another").unwrap();
    soon(&|| fs::read(&inside).unwrap() == b"another");
    let mut bytes = [0; 7];
    soon(&|| open.metadata().unwrap().len() == 7);
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"another");
    fs::remove_file(&outside).unwrap();
    soon(&|| !inside.exists());
}

#[test]
fn a_mapping_and_calls_show_the_same_bytes() {
    needs!("python3");
    for chosen in ["*.none", "/**"] {
        let Some(mount) = mount(untorn_testing::test_name!(), chosen) else { return };
        let program = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.truncate(fd, 20000)
memory = mmap.mmap(fd, 20000)
other = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 20000, prot=mmap.PROT_READ)
os.pwrite(fd, b'by a call', 5000)
assert memory[5000:5009] == other[5000:5009] == b'by a call'
memory[9000:9006] = b'stored'
assert os.pread(fd, 6, 9000) == other[9000:9006] == b'stored'
memory.flush()
assert open(sys.argv[2], 'rb').read()[9000:9006] == b'stored'
memory[100:105] = b'later'
os.fsync(fd)
assert open(sys.argv[2], 'rb').read()[100:105] == b'later'
os.unlink(sys.argv[1])
memory[0:4] = b'gone'
assert os.pread(fd, 4, 0) == b'gone'
print('same')
";
        let said = mount.python(program, &[&mount.path().join("f"), &mount.source().join("f")]);
        assert_eq!(said.trim(), "same");
        mount.unmount();
    }
}

#[test]
fn programs_run_from_the_mount_and_not_while_they_are_written() {
    needs!("true");
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let program = mount.path().join("program");
    fs::copy(untorn_testing::find_program("true").unwrap(), &program).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    assert!(Command::new(&program).status().unwrap().success());
    let open = File::options().write(true).open(&program).unwrap();
    let refused = Command::new(&program).status().unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(Errno::TXTBSY.raw_os_error()));
    drop(open);
}

#[test]
fn numbers_of_files_are_those_of_the_source() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    fs::write(mount.path().join("f"), "1").unwrap();
    fs::hard_link(mount.path().join("f"), mount.path().join("g")).unwrap();
    let number = |path: std::path::PathBuf| fs::metadata(path).unwrap().ino();
    assert_eq!(number(mount.path().join("f")), number(mount.source().join("g")));
    assert_eq!(number(mount.path().join("g")), number(mount.path().join("f")));
    fs::rename(mount.path().join("f"), mount.path().join("h")).unwrap();
    assert_eq!(number(mount.path().join("h")), number(mount.source().join("g")));
}

#[test]
fn a_file_with_a_sidecar_is_settled_before_it_is_used() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let path = mount.source().join("f");
    let options = untorn::Options::new().keep_sidecar(true);
    let file = options.create(&path, 8192).unwrap();
    file.write_at(b"committed", 4090).unwrap();
    file.sync().unwrap();
    file.close().unwrap();
    let mut mark = [0; 64];
    assert!(rustix::fs::getxattr(&path, "user.untorn", &mut mark[..]).is_ok());
    let seen = fs::read(mount.path().join("f")).unwrap();
    assert_eq!(&seen[4090..4099], b"committed");
    assert_eq!(rustix::fs::getxattr(&path, "user.untorn", &mut mark[..]), Err(Errno::NODATA));
}

#[test]
fn pages_stay_after_own_writes_and_go_after_those_of_others() {
    needs!("fincore");
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let (inside, outside) = (mount.path().join("f"), mount.source().join("f"));
    let file = File::options().read(true).write(true).create_new(true).open(&inside).unwrap();
    file.write_all_at(&[1; 64 << 12], 0).unwrap();
    file.write_all_at(&[2; 10], 5).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 64 << 12);
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    let pages = Command::new("fincore").args(["--noheadings", "--output", "PAGES"]).arg(&inside).output().unwrap();
    let pages: usize = String::from_utf8_lossy(&pages.stdout).trim().parse().unwrap();
    // The kernel keeps no page that it got in two parts.
    assert!((32..=64).contains(&pages), "{pages}");
    // Of the same length, while a program has the file open and reads no further.
    let other = File::options().write(true).open(&outside).unwrap();
    for value in 3..6 {
        other.write_all_at(&[value], 9 << 12).unwrap();
        let begun = Instant::now();
        while byte != [value] {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
            file.read_exact_at(&mut byte, 9 << 12).unwrap();
        }
        // An own write hides no other.
        other.write_all_at(&[value + 10], 11 << 12).unwrap();
        file.write_all_at(&[value], 10 << 12).unwrap();
        while byte != [value + 10] {
            assert!(begun.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(20));
            file.read_exact_at(&mut byte, 11 << 12).unwrap();
        }
    }
}

#[test]
fn more_files_than_the_server_may_open_can_be_used() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // The server inherits it.
    setrlimit(Resource::Nofile, Rlimit { current: Some(1024), maximum: Some(1024) }).unwrap();
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    let count = cases(3_000, 30_000);
    for number in 0..count {
        fs::write(mount.source().join(number.to_string()), "12").unwrap();
    }
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let removed = rustix::fs::open(mount.path().join("0"), flags, Mode::empty()).unwrap();
    let renamed = rustix::fs::open(mount.path().join("1"), flags, Mode::empty()).unwrap();
    for _ in 0..2 {
        let sizes = fs::read_dir(mount.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.sum::<u64>(), 2 * count as u64);
        for number in 0..count {
            assert_eq!(fs::metadata(mount.path().join(number.to_string())).unwrap().len(), 2);
        }
    }
    fs::remove_file(mount.path().join("0")).unwrap();
    fs::rename(mount.path().join("1"), mount.path().join("new")).unwrap();
    fs::write(mount.path().join("new"), "123").unwrap();
    for number in 2..count {
        assert_eq!(fs::metadata(mount.path().join(number.to_string())).unwrap().len(), 2);
    }
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(rustix::fs::fstat(&removed).unwrap().st_nlink, 0, "a file without a name is still the same");
    assert_eq!(rustix::fs::fstat(&renamed).unwrap().st_size, 3);
}
