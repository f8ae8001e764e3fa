//! Files of a boost mount that a program marked: they are atomic, and the others are not.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, XattrFlags, getxattr, listxattr, removexattr, setxattr};
use rustix::io::Errno;
use untorn_testing::needs;

use crate::support::{How, Mount, mount, mount_as};

const MARK: &str = "user.untorn.atomic";

fn set(path: &Path, value: &str) -> Result<(), Errno> {
    setxattr(path, MARK, value.as_bytes(), XattrFlags::empty())
}

fn is_marked(path: &Path) -> bool {
    let mut value = [0; 8];
    match getxattr(path, MARK, &mut value[..]) {
        Ok(len) => &value[..len] == b"1",
        Err(errno) => {
            assert_eq!(errno, Errno::NODATA);
            false
        }
    }
}

fn create(path: &Path, bytes: &[u8]) -> File {
    let file = File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file
}

/// Kills the server, and replays its log.
fn crash(mount: &mut Mount) {
    mount.kill();
    mount.replay();
}

fn source(mount: &Mount, name: &str) -> String {
    fs::read_to_string(mount.source().join(name)).unwrap()
}

/// Records a skip where files have no attributes of users.
fn has_attributes(mount: &Mount) -> bool {
    let has = setxattr(mount.bare(), "user.probe", b"", XattrFlags::empty()).is_ok();
    if !has {
        untorn_testing::skipped!("the file system of the test has no attributes of users");
    }
    has
}

#[test]
fn a_marked_file_is_left_at_its_last_commit() {
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    if !has_attributes(&mount) {
        return;
    }
    let at = mount.path();
    // Marked while it is open and the log has writes of it, before it is opened, and not at all.
    let [open, later, plain] = ["open", "later", "plain"].map(|name| create(&at.join(name), b"first"));
    drop(later);
    for name in ["open", "later"] {
        assert!(!is_marked(&at.join(name)));
        set(&at.join(name), "1").unwrap();
        assert!(is_marked(&at.join(name)) && is_marked(&mount.source().join(name)), "{name}");
    }
    let mut names = [0; 256];
    let len = listxattr(at.join("open"), &mut names[..]).unwrap();
    assert!(!String::from_utf8_lossy(&names[..len]).contains("untorn"), "no copy is to have the mark");
    fs::rename(at.join("later"), at.join("moved")).unwrap();
    let later = create(&at.join("moved"), b"");
    for file in [&open, &later, &plain] {
        file.write_all_at(b"SECOND", 0).unwrap();
        file.set_len(10).unwrap();
    }
    later.sync_all().unwrap();
    later.write_all_at(b"third", 20_000).unwrap();
    assert_eq!(fs::read(at.join("open")).unwrap(), b"SECOND\0\0\0\0", "the mount shows the open epoch");
    assert_eq!(open.metadata().unwrap().len(), 10);
    assert_eq!(source(&mount, "open"), "first", "nothing of it is in the source before its commit");
    crash(&mut mount);
    let expected = [("open", "first"), ("moved", "SECOND\0\0\0\0"), ("plain", "SECOND\0\0\0\0")];
    for (name, expected) in expected {
        assert_eq!(source(&mount, name), expected, "{name}");
    }
    drop((open, later, plain));
    // The mark holds for the next mount, and the last close is a commit.
    mount.mount_again();
    assert!(is_marked(&at.join("open")) && !is_marked(&at.join("plain")));
    drop(create(&at.join("open"), b"closed"));
    let open = create(&at.join("open"), b"dropped");
    crash(&mut mount);
    assert_eq!(source(&mount, "open"), "closed");
    drop(open);
}

#[test]
fn a_mark_is_taken_back_between_two_epochs() {
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    if !has_attributes(&mount) {
        return;
    }
    let path = mount.path().join("f");
    let file = create(&path, b"first");
    set(&path, "1").unwrap();
    file.write_all_at(b"epoch", 0).unwrap();
    assert_eq!(set(&path, "0"), Err(Errno::BUSY));
    assert_eq!(removexattr(&path, MARK), Err(Errno::BUSY));
    assert!(is_marked(&path));
    file.sync_all().unwrap();
    set(&path, "0").unwrap();
    assert!(!is_marked(&path) && !is_marked(&mount.source().join("f")));
    assert_eq!(removexattr(&path, MARK), Err(Errno::NODATA));
    set(&path, "0").unwrap();
    file.write_all_at(b"boost", 0).unwrap();
    crash(&mut mount);
    assert_eq!(source(&mount, "f"), "boost");
}

#[test]
fn a_mark_that_means_nothing_is_refused() {
    let test = untorn_testing::test_name!();
    let Some(mount) = mount(test, "*.db") else { return };
    if !has_attributes(&mount) {
        return;
    }
    let [chosen, other] = ["f.db", "f.txt"].map(|name| mount.path().join(name));
    for path in [&chosen, &other] {
        drop(create(path, b"first"));
    }
    assert_eq!(set(&chosen, "yes"), Err(Errno::INVAL));
    assert_eq!(set(&other, "1"), Err(Errno::OPNOTSUPP));
    assert_eq!(set(&mount.path(), "1"), Err(Errno::OPNOTSUPP));
    assert!(!is_marked(&chosen) && !is_marked(&other));
    assert_eq!(setxattr(&chosen, "user.untorn.else", b"1", XattrFlags::empty()), Err(Errno::PERM));
    mount.unmount();
    let Some(mount) = mount_as(test, "/**", How::Atomic) else { return };
    let path = mount.path().join("f");
    drop(create(&path, b"first"));
    set(&path, "1").unwrap();
    assert!(is_marked(&path), "all files are atomic");
    assert_eq!(set(&path, "0"), Err(Errno::OPNOTSUPP));
    assert!(!is_marked(&mount.source().join("f")), "the next mount may be another one");
}

#[test]
fn stores_to_a_mapping_of_a_marked_file_are_in_its_commit() {
    needs!("python3");
    let Some(mut mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    if !has_attributes(&mount) {
        return;
    }
    let path = mount.path().join("f");
    drop(create(&path, &[b'.'; 3 * 4096]));
    set(&path, "1").unwrap();
    let program = "
import mmap, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
memory = mmap.mmap(fd, 12288)
memory[0:5] = b'store'
os.pwrite(fd, b'write', 8192)
os.fsync(fd)
memory[4096:4100] = b'more'
memory.flush(4096, 4096)
memory[0:5] = b'STORE'
os.pwrite(fd, b'WRITE', 8192)
os.kill(os.getpid(), 9)
";
    // The mapping of a process that was killed goes to the file at its end, and is in no commit until a close is.
    let kept = create(&path, b"");
    let status = std::process::Command::new("python3").arg("-c").arg(program).arg(&path).status().unwrap();
    assert!(!status.success());
    crash(&mut mount);
    let bytes = fs::read(mount.source().join("f")).unwrap();
    assert_eq!((&bytes[..5], &bytes[4096..4100], &bytes[8192..8197]), (&b"store"[..], &b"more"[..], &b"write"[..]));
    drop(kept);
}

/// A synchronous write to an atomic file commits, and may have to fetch pages, which it could not beside others.
#[test]
fn a_file_that_is_open_past_the_cache_gets_no_mark() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    if !has_attributes(&mount) {
        return;
    }
    let path = mount.path().join("f");
    drop(create(&path, b"first"));
    let open = || rustix::fs::open(&path, OFlags::RDWR | OFlags::DIRECT | OFlags::DSYNC, Mode::empty()).unwrap();
    let direct = open();
    assert_eq!(set(&path, "1"), Err(Errno::BUSY));
    assert!(!is_marked(&path));
    drop(direct);
    // The kernel closes a handle a moment after the program's close returned.
    let begun = Instant::now();
    while set(&path, "1") == Err(Errno::BUSY) {
        assert!(begun.elapsed() < Duration::from_secs(60), "the handle stays");
        std::thread::sleep(Duration::from_millis(2));
    }
    let direct = open();
    assert_eq!(rustix::io::pwrite(&direct, b"SECOND", 0), Ok(6));
    assert_eq!(set(&path, "0"), Ok(()), "the write was a commit, so no epoch is open");
    assert_eq!(source(&mount, "f"), "SECOND");
}
