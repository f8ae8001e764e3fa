//! Files that programs with a log in front of their files have closed or removed.

use std::fs;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{BEGIN, Place, Talk, replayed};

/// Ends the process that serves a program as a crash would, and replays its log.
fn crash(place: &Place, mut talk: Talk) -> untorn::write_cache::Replay {
    talk.child.kill().unwrap();
    talk.child.wait().unwrap();
    talk.say();
    let start = Instant::now();
    loop {
        // Until the program has ended too nobody else is let in to its files.
        let replay = replayed(place);
        if replay.is_complete() {
            return replay;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "{replay:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn outside_writes_to_a_closed_file_outlive_a_replay() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "os.fsync(fd); os.close(fd); print(os.stat('f.managed').st_size); sys.stdin.readline()";
    let mut talk = Talk::begin(&place, more);
    talk.hear("5");
    assert_eq!(fs::metadata(place.file("f.managed")).unwrap().len(), 5, "its bytes are with the kernel");
    let mut file = fs::File::options().read(true).write(true).open(place.file("f.managed")).unwrap();
    file.write_all(b"later").unwrap();
    file.sync_all().unwrap();
    let replay = crash(&place, talk);
    assert_eq!(replay.operations, 0, "the log had something of a file that was somebody else's: {replay:?}");
    assert_eq!(place.read("f.managed"), "later");
}

#[test]
fn writes_before_the_last_close_survive_a_crash() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let mut talk =
        Talk::start(&place, &format!("{BEGIN}os.fsync(fd); os.close(fd); print('closed'); sys.stdin.readline()"));
    talk.hear("closed");
    crash(&place, talk);
    assert_eq!(place.read("f.managed"), "first");
}

#[test]
fn a_file_that_is_opened_again_begins_anew_and_stays_boosted() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
for number in range(30):
    os.close(fd)
    fd = os.open('f.managed', os.O_RDWR)
    assert os.lseek(fd, 0, os.SEEK_CUR) == 0 and os.get_inheritable(fd) is False
    assert os.read(fd, 100) == b'first' + b'.' * number
    assert os.write(fd, b'.') == 1
    os.fsync(fd)
os.close(fd)
# Another description, since it was for something else.
fd = os.open('f.managed', os.O_WRONLY)
try:
    os.read(fd, 1)
    assert False
except OSError as error:
    assert error.errno == 9
assert os.write(fd, b'F') == 1
os.close(fd)
fd = os.open('f.managed', os.O_RDWR | os.O_TRUNC)
assert os.fstat(fd).st_size == 0 and os.write(fd, b'last') == 4
os.close(fd)
try:
    os.open('f.managed', os.O_RDWR | os.O_CREAT | os.O_EXCL)
    assert False
except FileExistsError:
    pass
os.symlink('f.managed', 'g.managed')
try:
    os.open('g.managed', os.O_RDWR | os.O_NOFOLLOW)
    assert False
except OSError as error:
    assert error.errno == 40
fd = os.open('g.managed', os.O_RDWR)
assert os.read(fd, 9) == b'last'
";
    place.run(&format!("{BEGIN}{more}"));
    assert_eq!(place.read("f.managed"), "last");
    assert_eq!(place.demoted(), [""; 0]);
    let report = place.report();
    let opens = report["files"].as_array().unwrap().iter().map(|file| file["opens"].as_u64().unwrap()).sum::<u64>();
    assert_eq!(opens, 34, "{}", place.report());
}

/// A process that has all descriptors that it may have is sent one in vain. The file is let go of all the same.
#[test]
fn a_description_that_did_not_arrive_is_not_kept_for_ever() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
import resource, time
inode = os.fstat(fd).st_ino
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for _ in range(5):
    os.close(fd)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        os.open('f.managed', os.O_RDWR)
        assert False
    except OSError as error:
        assert error.errno == 24, error
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    fd = os.open('f.managed', os.O_RDWR)
    assert os.write(fd, b'F') == 1
os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
try:
    os.open('f.managed', os.O_RDWR)
except OSError:
    pass
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
while any('LEASE' in line and f':{inode} ' in line for line in open('/proc/locks')):
    time.sleep(0.01)
";
    place.run(&format!("{BEGIN}{more}"));
    assert_eq!(place.read("f.managed"), "First");
    assert_eq!(place.demoted(), [""; 0]);
}

#[test]
fn a_file_still_open_elsewhere_is_not_given_to_an_opener() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
r, w = os.pipe()
child = os.fork()
if child == 0:
    assert os.read(r, 1) == b'.'
    assert os.lseek(fd, 0, os.SEEK_CUR) == 5 and os.write(fd, b' child') == 6
    os._exit(0)
os.close(fd)
fd = os.open('f.managed', os.O_RDWR)
assert os.read(fd, 3) == b'fir'
os.write(w, b'.')
assert os.waitpid(child, 0)[1] == 0
assert os.lseek(fd, 0, os.SEEK_CUR) == 3 and os.read(fd, 99) == b'st child'
";
    place.run(&format!("{BEGIN}{more}"));
    assert_eq!(place.read("f.managed"), "first child");
    assert!(place.demoted().contains(&"opened a second time".to_owned()), "{:?}", place.demoted());
}

/// Many times a file of one name, each with a content of its own, synced and removed.
const REMOVED: &str = "
for number in range(300):
    fd = os.open('j.managed', os.O_RDWR | os.O_CREAT, 0o644)
    assert os.fstat(fd).st_size == 0
    assert os.write(fd, b'%d' % number * 700) and os.fsync(fd) is None
    if number % 3 == 0:
        os.unlink('j.managed'); os.close(fd)
    else:
        os.close(fd); os.unlink('j.managed')
";

#[test]
fn a_file_is_not_taken_for_those_that_were_removed_before_it() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
fd = os.open('j.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'the last')
os.fsync(fd)
print('written')
sys.stdin.readline()
";
    let mut talk = Talk::start(&place, &format!("{BEGIN}{REMOVED}{more}"));
    talk.hear("written");
    crash(&place, talk);
    assert_eq!(place.read("j.managed"), "the last");
    assert_eq!(place.read("f.managed"), "first");
}

#[test]
fn removed_files_stay_boosted_and_leave_an_empty_log() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    place.run(&format!("{BEGIN}{REMOVED}"));
    assert_eq!(untorn::write_cache::inspect_log(place.log()).unwrap().operations, 0);
    assert!(!place.file("j.managed").exists());
}

#[test]
fn a_removed_file_is_whole_for_whoever_has_it_open() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    // So many entries that those of the removed file are drained, and written over, meanwhile.
    let more = "
other = os.open('g.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.unlink('f.managed')
assert os.fstat(fd).st_nlink == 0 and os.fstat(fd).st_size == 5
os.write(fd, b' second')
again = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(again, b'another')
for number in range(2000):
    os.pwrite(other, bytes([number % 256]) * 4096, number % 50 * 4096)
    if number % 100 == 0:
        assert os.pread(fd, 100, 0) == b'first second' and os.pread(again, 100, 0) == b'another'
os.fsync(fd)
os.ftruncate(fd, 3)
assert os.pread(fd, 100, 0) == b'fir'
";
    place.run(&format!("{BEGIN}{more}"));
    assert_eq!(place.read("f.managed"), "another");
}

#[test]
fn a_removal_that_fails_does_no_harm() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
import ctypes, errno
call = ctypes.CDLL(None, use_errno=True)
assert call.unlinkat(-100, b'f.managed', 0x200) == -1 and ctypes.get_errno() == errno.ENOTDIR
os.write(fd, b' second')
os.fsync(fd)
assert os.pread(fd, 100, 0) == b'first second'
print('written')
sys.stdin.readline()
";
    let mut talk = Talk::begin(&place, more);
    talk.hear("written");
    crash(&place, talk);
    assert_eq!(place.read("f.managed"), "first second");
}
