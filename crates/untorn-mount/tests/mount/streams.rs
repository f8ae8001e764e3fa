//! Files of a mount with commit logs: the stream has each epoch once and in order, also through kills of the server.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{XattrFlags, getxattr, removexattr, setxattr};
use rustix::io::Errno;
use untorn::commits::CommitStream;

use crate::support::{How, Mount, mount, mount_as};

const LOG: &str = "user.untorn.commit_log";
const PATIENCE: Duration = Duration::from_secs(60);

fn set(path: &Path, value: &str) -> Result<(), Errno> {
    setxattr(path, LOG, value.as_bytes(), XattrFlags::empty())
}

fn limit(path: &Path) -> Option<String> {
    let mut value = [0; 32];
    match getxattr(path, LOG, &mut value[..]) {
        Ok(len) => Some(String::from_utf8(value[..len].to_vec()).unwrap()),
        Err(errno) => {
            assert_eq!(errno, Errno::NODATA);
            None
        }
    }
}

/// Records a skip where files have no attributes of users.
fn has_attributes(mount: &Mount) -> bool {
    let has = setxattr(mount.bare(), "user.probe", b"", XattrFlags::empty()).is_ok();
    if !has {
        untorn_testing::skipped!("the file system of the test has no attributes of users");
    }
    has
}

fn create(path: &Path) -> File {
    File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// A replica of a file, and the last commit that it has.
struct Replica {
    at: u64,
    bytes: Vec<u8>,
}

impl Replica {
    /// Follows the stream until it has this many commits more.
    fn follow(&mut self, path: &Path, count: u64) {
        let begun = Instant::now();
        let mut stream = CommitStream::open(path, self.at).unwrap();
        while stream.position() < self.at + count {
            let Some(commit) = stream.next().unwrap() else {
                assert!(begun.elapsed() < PATIENCE, "commit {} does not come", stream.position() + 1);
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            assert_eq!(commit.number, commit.previous + 1);
            self.bytes.truncate(commit.shortest as usize);
            self.bytes.resize(commit.len as usize, 0);
            for change in &commit.changes {
                self.bytes[change.range.start as usize..change.range.end as usize].copy_from_slice(&change.bytes);
            }
        }
        assert!(stream.next().unwrap().is_none(), "a commit that nobody made");
        self.at += count;
    }
}

#[test]
fn each_sync_of_a_file_is_a_commit_in_its_stream() {
    let Some(mut mount) = mount_as(untorn_testing::test_name!(), "/**", How::Atomic) else { return };
    if !has_attributes(&mount) {
        return;
    }
    let (at, source) = (mount.path().join("file"), mount.source().join("file"));
    let mut file = create(&at);
    assert_eq!(limit(&at), None);
    assert_eq!(set(&at, "nonsense"), Err(Errno::INVAL));
    set(&at, "1M").unwrap();
    assert_eq!(limit(&at).as_deref(), Some("1048576"));
    let mut replica = Replica { at: 0, bytes: Vec::new() };
    for round in 0..4_u8 {
        for commit in 0..5_u8 {
            let tag = 10 * round + commit;
            file.write_all_at(&[tag; 3000], u64::from(tag) * 500).unwrap();
            if commit == 3 {
                file.set_len(u64::from(tag) * 300).unwrap();
            }
            file.sync_all().unwrap();
        }
        if round == 2 {
            // Killed when the source has everything, and before it.
            replica.follow(&source, 5);
        }
        if round > 0 {
            // Bytes that were not synced are no commit.
            file.write_all_at(b"open", 0).unwrap();
            mount.kill();
            mount.replay();
        }
        if round != 2 {
            replica.follow(&source, 5);
        }
        if round > 0 {
            assert_eq!(fs::read(&source).unwrap(), replica.bytes, "round {round}");
            drop(file);
            mount.mount_again();
            file = create(&at);
        }
    }
    // By its path in the mount, too.
    let mut stream = CommitStream::open(&at, 0).unwrap();
    assert_eq!(stream.next().unwrap().unwrap().number, 1);
    assert!(untorn::inspect(&at).unwrap().commit_log.is_some());
    let now = file.metadata().unwrap().len();
    assert_eq!(now, replica.bytes.len() as u64);
    drop(file);
    mount.unmount_with(|| {
        assert_eq!(fs::read(&source).unwrap(), replica.bytes);
        assert!(CommitStream::open(&source, replica.at).is_ok());
    });
}

#[test]
fn a_log_goes_with_its_file_through_the_mount() {
    let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", How::AtomicWriteThrough) else { return };
    if !has_attributes(&mount) {
        return;
    }
    let (at, source) = (mount.path(), mount.source());
    fs::create_dir(at.join("dir")).unwrap();
    let mut replica = Replica { at: 0, bytes: Vec::new() };
    let file = create(&at.join("file"));
    set(&at.join("file"), "1").unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.sync_all().unwrap();
    replica.follow(&source.join("file"), 1);
    // While a program has it open, in one directory and to another one, and when nobody does.
    fs::rename(at.join("file"), at.join("other")).unwrap();
    fs::rename(at.join("other"), at.join("dir/file")).unwrap();
    file.write_all_at(b"SECOND", 3).unwrap();
    file.sync_all().unwrap();
    replica.follow(&source.join("dir/file"), 1);
    drop(file);
    fs::rename(at.join("dir/file"), at.join("file")).unwrap();
    let file = create(&at.join("file"));
    file.write_all_at(b"third", 20).unwrap();
    file.sync_all().unwrap();
    replica.follow(&source.join("file"), 1);
    assert_eq!(replica.bytes, b"firSECOND\0\0\0\0\0\0\0\0\0\0\0third");
    // An open epoch is not cut in two.
    file.write_all_at(b"x", 0).unwrap();
    assert_eq!(removexattr(at.join("file"), LOG), Err(Errno::BUSY));
    file.sync_all().unwrap();
    drop(file);
    fs::remove_file(at.join("file")).unwrap();
    // Removed while it is open, and its directory after it.
    let gone = create(&at.join("dir/gone"));
    set(&at.join("dir/gone"), "1").unwrap();
    gone.write_all_at(b"first", 0).unwrap();
    gone.sync_all().unwrap();
    fs::remove_file(at.join("dir/gone")).unwrap();
    fs::remove_dir(at.join("dir")).unwrap();
    gone.write_all_at(b"second", 0).unwrap();
    gone.sync_all().unwrap();
    drop(gone);
    mount.unmount_with(|| {
        let logs = |dir: &Path| {
            fs::read_dir(dir.join(".untorn")).map_or(0, |names| {
                names.filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().contains("commits")).count()
            })
        };
        assert_eq!((logs(&source), logs(&source.join("dir"))), (0, 0));
    });
}

#[test]
fn only_an_atomic_file_of_a_boost_mount_has_a_stream() {
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    if !has_attributes(&mount) {
        return;
    }
    let (at, source) = (mount.path().join("file"), mount.source().join("file"));
    let file = create(&at);
    assert_eq!(set(&at, "1"), Err(Errno::OPNOTSUPP));
    setxattr(&at, "user.untorn.atomic", b"1", XattrFlags::empty()).unwrap();
    set(&at, "1").unwrap();
    file.write_all_at(b"first", 0).unwrap();
    file.sync_all().unwrap();
    Replica { at: 0, bytes: Vec::new() }.follow(&source, 1);
    drop(file);
    mount.unmount();
}
