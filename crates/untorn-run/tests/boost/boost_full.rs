//! Unmodified programs with a log in front of files on a disk that is full: they are told what they would be told
//! without it, what was taken is kept through a kill and a replay, and nothing of what was refused comes later. These
//! need root, and are passed over without it.

#[path = "../../../untorn/tests/common/disk.rs"]
mod disk;

use std::ffi::OsStr;
use std::fs;

use crate::common::{Place, Talk, appending, built, replay_leaves_what_was_there, text};
use disk::{Kind, SmallDisk};
use serde_json::Value;

/// For the disk.
const PAGE: usize = 4096;
const ENOUGH: u64 = 40;

/// Fills the disk with a file, in odd pieces; then the disk has room again, and the file takes more.
const PROGRAM: &str = "
import errno, os, sys

def fill(fd, byte):
    at = os.fstat(fd).st_size
    while True:
        assert at < 1 << 20, 'the disk is not full'
        try:
            at += os.pwrite(fd, byte * 3000, at)
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
            return at

fd = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'begin')
os.fsync(fd)
length = fill(fd, b'1')
assert length > 5 + 3000 and os.fstat(fd).st_size == length
assert os.pread(fd, length + 1, 0) == b'begin' + b'1' * (length - 5)
# Nothing has failed but those writes.
os.fsync(fd)
for way in ('pwrite', 'writev', 'append'):
    try:
        if way == 'pwrite':
            os.pwrite(fd, b'x' * 5000, length + 8192)
        elif way == 'writev':
            os.pwritev(fd, [b'x' * 3000, b'y' * 3000], length + 8192)
        else:
            end = os.open('g.managed', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(end, b'z' * 9000)
        print(way, 'took what has no room')
    except OSError as error:
        print(way, errno.errorcode[error.errno])
assert os.pwrite(fd, b'2' * 1000, 100) == 1000
os.fdatasync(fd)
print('full', os.fstat(fd).st_size)
if not sys.stdin.readline():
    sys.exit()
assert os.pwrite(fd, b'3' * 50000, length) == 50000
os.fsync(fd)
os.close(fd)
print('done')
sys.stdin.readline()
";

/// Who appends to the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    /// The server.
    Server,
    /// The program, to memory.
    ItselfInMemory,
    /// The program, to a disk.
    ItselfOnDisk,
}

impl By {
    const ALL: [By; 3] = [By::Server, By::ItselfInMemory, By::ItselfOnDisk];
}

/// The program on a disk that is nearly full.
fn begin(kind: Kind, by: By) -> Option<(SmallDisk, Place, Talk)> {
    let disk = SmallDisk::mount(kind, 2048)?;
    let on_disk = by == By::ItselfOnDisk;
    let place =
        Place { files: tempfile::tempdir_in(disk.0.path()).unwrap(), aside: tempfile::tempdir().unwrap(), on_disk };
    disk.fill(ENOUGH);
    let program = ["python3", "-u", "-c", PROGRAM].map(OsStr::new);
    let mut talk = Talk::by(match by {
        By::Server => place.under(&built().layer, &program),
        By::ItselfInMemory | By::ItselfOnDisk => appending(&place, &program),
    });
    for way in ["pwrite", "writev", "append"] {
        talk.hear(&format!("{way} ENOSPC"));
    }
    let said = talk.from.next().unwrap().unwrap();
    let len: u64 = said.strip_prefix("full ").unwrap().parse().unwrap();
    assert_eq!(fs::metadata(place.file("f.managed")).unwrap().len(), len);
    Some((disk, place, talk))
}

fn expected(len: usize) -> Vec<u8> {
    let mut bytes = [&b"begin"[..], &vec![b'1'; len - 5]].concat();
    bytes[100..1100].fill(b'2');
    bytes
}

fn goes_on_when_there_is_room(kind: Kind, by: By) {
    let Some((disk, place, mut talk)) = begin(kind, by) else { return };
    let len = fs::metadata(place.file("f.managed")).unwrap().len() as usize;
    disk.empty();
    talk.say();
    talk.hear("done");
    talk.end();
    assert_eq!(place.report()["failures"], Value::Array(Vec::new()));
    let found = fs::read(place.file("f.managed")).unwrap();
    assert!(found == [expected(len), vec![b'3'; 50000]].concat(), "{} bytes, {}", found.len(), text(&found[..9]));
    assert!(
        untorn::write_cache::inspect_log(place.log()).unwrap().operations == 0,
        "the log has something that no file has"
    );
}

fn is_kept_through_a_kill(kind: Kind, by: By) {
    let Some((_disk, place, talk)) = begin(kind, by) else { return };
    let len = fs::metadata(place.file("f.managed")).unwrap().len() as usize;
    // A replay while the disk is still full: it has room for what it took before, and nothing of the rest is in the
    // log.
    replay_leaves_what_was_there(&place, talk);
    assert!(fs::read(place.file("f.managed")).unwrap() == expected(len), "what was acknowledged is not in the file");
    assert_eq!(fs::read(place.file("g.managed")).unwrap_or_default(), b"");
}

#[test]
fn a_program_goes_on_when_an_ext4_has_room_again() {
    untorn_testing::needs!("python3");
    By::ALL.into_iter().for_each(|by| goes_on_when_there_is_room(Kind::Ext4, by));
}

#[test]
fn a_program_goes_on_when_a_tmpfs_has_room_again() {
    untorn_testing::needs!("python3");
    By::ALL.into_iter().for_each(|by| goes_on_when_there_is_room(Kind::Tmpfs, by));
}

#[test]
fn only_bytes_that_a_full_disk_took_survive_a_kill() {
    untorn_testing::needs!("python3");
    for kind in [Kind::Ext4, Kind::Tmpfs] {
        By::ALL.into_iter().for_each(|by| is_kept_through_a_kill(kind, by));
    }
}
