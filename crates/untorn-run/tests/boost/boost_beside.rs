//! Programs that append to the log by themselves, on persistent memory and on a disk: they do what they do otherwise,
//! whatever happens to them meanwhile.

use std::ffi::OsStr;
use std::fs;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{
    BEGIN, Place, Talk, appending, built, compile, counts, each_writer, python, replay_leaves_what_was_there, succeed,
    text,
};
use serde_json::Value;
use untorn_testing::programs::kill;

#[test]
fn the_program_itself_does_all_writes_but_the_first() {
    untorn_testing::needs!("python3");
    Place::of_each_kind().iter().for_each(all_but_the_first_write);
}

fn all_but_the_first_write(place: &Place) {
    let more = "
for number in range(200):
    assert os.pwrite(fd, bytes([number]) * 5000, number * 37) == 5000
    os.fsync(fd)
assert os.lseek(fd, 0, os.SEEK_END) == 199 * 37 + 5000
assert os.write(fd, b'more') == 4 and os.lseek(fd, 0, os.SEEK_CUR) == 199 * 37 + 5004
assert os.writev(fd, [b'and', b' more']) == 8 and os.lseek(fd, 0, os.SEEK_CUR) == 199 * 37 + 5012
assert os.write(fd, b'!') == 1 and os.pread(fd, 99, 199 * 37 + 5000) == b'moreand more!'
os.fchmod(fd, 0o600)
os.fsync(fd)
os.fdatasync(fd)
assert os.pwrite(fd, b'', 0) == 0 and os.write(fd, b'x' * 3000000) == 3000000
";
    succeed(&mut python(place, &format!("{BEGIN}{more}")));
    assert_eq!(place.demoted(), [""; 0]);
    // By way of the server: the first, and the one that is too long.
    assert_eq!(counts(place), [205, 203, 5 + 200 * 5000 + 4 + 8 + 1 + 3_000_000, 202]);
    assert_eq!(fs::metadata(place.file("f.managed")).unwrap().len(), 199 * 37 + 5013 + 3_000_000);
}

#[test]
fn vectors_large_writes_and_lengths_are_the_programs_own() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
assert os.pwritev(fd, [b'', b'1' * 5000, b'2' * 7000], 3) == 12000
assert os.pread(fd, 13000, 3) == b'1' * 5000 + b'2' * 7000
assert os.writev(fd, [bytes([65 + n]) * 100 for n in range(60)]) == 6000 and os.lseek(fd, 0, os.SEEK_CUR) == 6005
assert os.pread(fd, 200, 205) == b'C' * 100 + b'D' * 100
# The kernel asks for no memory where there is nothing to write.
# More pieces than are the program's own are written nevertheless.
assert os.pwritev(fd, [b'a', b'b'], 0, 0) == 2 and os.pwritev(fd, [b'p'] * 100, 10) == 100
os.ftruncate(fd, 4000)
assert os.fstat(fd).st_size == 4000
os.ftruncate(fd, 40000)
assert os.pread(fd, 50000, 4000) == bytes(36000)
assert os.pwrite(fd, b'y' * 600000, 5) == 600000
os.fsync(fd)
assert os.pread(fd, 700000, 0) == b'abr11' + b'y' * 600000
print('written')
sys.stdin.readline()
";
    let mut talk = Talk::by(python(&place, &format!("{BEGIN}{more}")));
    talk.hear("written");
    replay_leaves_what_was_there(&place, talk);
    for (place, talk) in each_writer(format!("{BEGIN}{more}")) {
        talk.end();
        // By way of the server: the first, that of so many pieces, and on a disk the long one.
        let own = if place.on_disk { 3 } else { 4 };
        assert_eq!(counts(&place), [6, own, 5 + 12_000 + 6000 + 2 + 100 + 600_000, 1]);
    }
}

/// There each write waits for a flush, which is shared with all others by whoever makes it for all.
#[test]
fn a_log_on_a_disk_that_is_durable_per_write_is_the_servers_own() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    if untorn::doctor(place.aside.path()).unwrap().durable {
        let mut command = place.under(
            &built().oracle,
            &["python3", "-c", &format!("{BEGIN}os.pwrite(fd, b'x', 0); os.fsync(fd)")].map(OsStr::new),
        );
        succeed(&mut command);
        assert_eq!(counts(&place), [2, 0, 6, 1]);
    }
}

#[test]
fn obstacles_do_not_hold_up_a_write() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("beside.c", dir.path(), &[]);
    let ways = ["signals", "memory", "executed", "replaced", "numbers", "offsets"];
    for (way, place) in ways.iter().flat_map(|way| Place::of_each_kind().map(|place| (*way, place))) {
        let mut command = appending(&place, &[program.as_os_str(), way.as_ref()]);
        if way == "replaced" {
            command.env("UNTORN_PRELOAD_DEATH", "4:20:0");
        }
        let output = succeed(&mut command);
        assert_eq!(text(&output.stdout), "done\n", "{way}");
        let [writes, own, ..] = counts(&place);
        assert!(own > 1 && (way != "offsets" || own * 2 <= writes), "{way}: {}", place.report());
        assert_eq!(place.report()["failures"], Value::Array(Vec::new()), "{way}");
    }
}

/// What it sets up there, its parent must not take for its own, nor it for its own what its parent's threads hold.
#[test]
fn a_child_in_its_parents_memory_writes_by_way_of_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let program = compile("beside.c", dir.path(), &[]);
    for place in Place::of_each_kind() {
        let output = succeed(&mut appending(&place, &[program.as_os_str(), "vfork".as_ref()]));
        assert_eq!(text(&output.stdout), "done\n");
        let report = place.report();
        let own = |name: &str| {
            let files = report["files"].as_array().unwrap();
            let file = files.iter().find(|file| file["path"].as_str().unwrap().ends_with(name)).unwrap();
            file["writes_in_process"].as_u64().unwrap()
        };
        assert_eq!((own("f.managed"), own("g.managed")), (0, 99), "{report}");
    }
}

/// A file is let go of when its last process has ended, though that has asked for nothing but what it does by itself.
#[test]
fn the_end_of_a_process_that_only_appends_is_heard_of() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
import time
r, w = os.pipe()
child = os.fork()
if child == 0:
    os.close(w)
    os.read(r, 1)
    for number in range(10):
        os.pwrite(fd, b'x', number)
    os._exit(0)
os.close(fd)
# Meanwhile it is looked after, and found to be the child's.
time.sleep(0.3)
os.close(w)
assert os.waitpid(child, 0)[1] == 0
print('ended')
sys.stdin.readline()
";
    let mut talk = Talk::by(python(&place, &format!("{BEGIN}{more}")));
    talk.hear("ended");
    let start = Instant::now();
    let has_it = || {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", talk.child.id())).unwrap();
        let mut links = descriptors.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
        links.any(|link| link.ends_with("f.managed"))
    };
    while has_it() {
        assert!(start.elapsed() < Duration::from_secs(60), "it is kept though nobody has it open");
        thread::sleep(Duration::from_millis(5));
    }
    talk.say();
    talk.end();
    assert_eq!(counts(&place)[..2], [11, 9]);
}

/// Two processes with one description, which write over each other's bytes.
#[test]
fn the_log_has_the_order_of_the_kernel() {
    untorn_testing::needs!("python3");
    let more = "
import random
children = []
for child in range(2):
    process = os.fork()
    if process == 0:
        random.seed(child)
        for number in range(600):
            os.pwrite(fd, bytes([random.randrange(256)]) * random.randrange(1, 6000), random.randrange(20000))
            if number % 100 == 0:
                os.ftruncate(fd, random.randrange(30000))
        os._exit(0)
    children.append(process)
for process in children:
    assert os.waitpid(process, 0)[1] == 0
print('written')
sys.stdin.readline()
";
    for (place, talk) in each_writer(format!("{BEGIN}{more}")) {
        replay_leaves_what_was_there(&place, talk);
    }
}

/// Writes of many entries each, so that the end of the log comes amid some of them: those go on at its beginning.
#[test]
fn a_write_at_the_end_of_the_log_goes_on_at_its_beginning() {
    untorn_testing::needs!("python3");
    let more = "
for number in range(60):
    assert os.pwrite(fd, b''.join(b'%07d%03d\\n' % (at, number) for at in range(18000)), number * 1000) == 198000
    if number % 7 == 0:
        os.fsync(fd)
print('written')
sys.stdin.readline()
";
    for (place, talk) in each_writer(format!("{BEGIN}{more}")) {
        replay_leaves_what_was_there(&place, talk);
    }
}

/// Of processes that share an offset each write has a place of its own, whoever does it.
#[test]
fn processes_that_share_an_offset_write_one_after_the_other() {
    untorn_testing::needs!("python3");
    let more = "
children = []
for child in range(4):
    process = os.fork()
    if process == 0:
        for number in range(200):
            line = b'%d %03d' % (child, number)
            if child % 2:
                os.write(fd, line + b'\\n')
            else:
                os.pwritev(fd, [line, b'\\n'], -1, os.RWF_DSYNC)
        os._exit(0)
    children.append(process)
for process in children:
    assert os.waitpid(process, 0)[1] == 0
lines = os.pread(fd, 100000, 0)[5:].splitlines()
assert len(lines) == 800, len(lines)
for child in range(4):
    own = [line for line in lines if line.startswith(b'%d ' % child)]
    assert own == [b'%d %03d' % (child, number) for number in range(200)]
";
    for place in Place::of_each_kind() {
        succeed(&mut python(&place, &format!("{BEGIN}{more}")));
        // Every other one by way of the server.
        let [writes, own, ..] = counts(&place);
        assert!(own > 0 && own * 2 <= writes, "{}", place.report());
    }
}

/// A child is killed at each step of a write. Its parent, which has the same description, finds what it wrote, all of
/// the last write or nothing, and goes on.
#[test]
fn a_process_that_dies_amid_a_write_leaves_all_of_it_or_nothing() {
    untorn_testing::needs!("python3");
    for (step, place) in (0..7).flat_map(|step| Place::of_each_kind().map(|place| (step, place))) {
        let more = "
r, w = os.pipe()
child = os.fork()
if child == 0:
    for number in range(1, 100):
        os.pwrite(fd, bytes([number]) * 6000, number % 7 * 1000)
        os.write(w, bytes([number]))
os.close(w)
assert os.waitpid(child, 0)[1] == 9
last = os.read(r, 1000)[-1]
def after(writes):
    file = bytearray(b'first')
    for number in range(1, writes + 1):
        at = number % 7 * 1000
        file.extend(bytes(max(0, at + 6000 - len(file))))
        file[at:at + 6000] = bytes([number]) * 6000
    return bytes(file)
# The next write of anybody brings the one that was under way to its end.
os.pwrite(fd, b'', 0)
assert os.pwrite(fd, b'x', 20000) == 1
os.fsync(fd)
found = os.pread(fd, 100000, 0)
assert found in [after(n) + bytes(20000 - len(after(n))) + b'x' for n in (last, last + 1)], (last, len(found))
assert os.pwrite(fd, b'y', 20001) == 1
print(last)
sys.stdin.readline()
";
        let mut command = python(&place, &format!("{BEGIN}{more}"));
        command.env("UNTORN_PRELOAD_DEATH", format!("{step}:20"));
        let mut talk = Talk::by(command);
        // Its first write is not its own.
        talk.hear("21");
        if step % 2 == 0 {
            replay_leaves_what_was_there(&place, talk);
        } else {
            talk.end();
            assert_eq!(place.report()["failures"], Value::Array(Vec::new()));
        }
    }
}

/// The child is killed, and nobody writes after it: one that only syncs, or reads when the run has heard of its end,
/// finds all of it.
#[test]
fn a_killed_childs_write_is_settled_at_its_end_and_at_a_sync() {
    untorn_testing::needs!("python3");
    let cases = [2, 4, 5].into_iter().flat_map(|step| [(step, true), (step, false)]);
    for ((step, syncs), place) in cases.flat_map(|case| Place::of_each_kind().map(|place| (case, place))) {
        let more = "
import time
child = os.fork()
if child == 0:
    for number in range(1, 9):
        os.pwrite(fd, bytes([number]) * 6000, number * 100)
assert os.waitpid(child, 0)[1] == 9
def after(writes):
    file = bytearray(b'first')
    for number in range(1, writes + 1):
        file.extend(bytes(max(0, number * 100 + 6000 - len(file))))
        file[number * 100:number * 100 + 6000] = bytes([number]) * 6000
    return bytes(file)
# What reached the log whole is there, and nothing else.
expected = after(7 if int(sys.argv[1]) >= 3 else 6)
if sys.argv[2] == 'true':
    os.fsync(fd)
else:
    for _ in range(6000):
        if os.pread(fd, 100000, 0) == expected:
            break
        time.sleep(0.01)
assert os.pread(fd, 100000, 0) == expected, os.fstat(fd).st_size
print('found')
sys.stdin.readline()
";
        let program = format!("{BEGIN}{more}");
        let (number, way) = (step.to_string(), syncs.to_string());
        let mut command = appending(&place, &["python3", "-u", "-c", &program, &number, &way].map(OsStr::new));
        command.env("UNTORN_PRELOAD_DEATH", format!("{step}:5"));
        let mut talk = Talk::by(command);
        talk.hear("found");
        if syncs {
            replay_leaves_what_was_there(&place, talk);
        } else {
            talk.end();
            assert_eq!(place.report()["failures"], Value::Array(Vec::new()));
        }
    }
}

/// Nobody drains any more, so nobody may go on writing.
#[test]
fn a_program_writes_no_more_without_its_server() {
    untorn_testing::needs!("python3");
    let more = "
print('written')
sys.stdin.readline()
try:
    while True:
        os.pwrite(fd, b'x', 0)
except OSError as error:
    assert error.errno == 5, error
try:
    os.fsync(fd)
except OSError as error:
    print('told')
# What changes nothing is nobody else's business.
status = os.fstat(fd)
os.fchmod(fd, status.st_mode & 0o777)
os.fchown(fd, -1, -1)
os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))
try:
    os.fchmod(fd, 0o640)
except OSError as error:
    print('asked')
";
    for (_place, mut talk) in each_writer(format!("{BEGIN}{more}")) {
        kill(&[&talk.child.id().to_string()]);
        talk.child.wait().unwrap();
        talk.say();
        talk.hear("told");
        talk.hear("asked");
    }
}

/// What cannot be helped: whoever wants the file of a process that was stopped amid a write waits. Nobody else does.
#[test]
fn a_process_stopped_amid_a_write_blocks_only_its_own_file() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
import signal
other = os.open('g.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(other, b'other')
child = os.fork()
if child == 0:
    for number in range(10):
        os.pwrite(fd, bytes([65 + number]) * 5000, 0)
    os._exit(0)
assert os.WIFSTOPPED(os.waitpid(child, os.WUNTRACED)[1])
print('stopped')
sys.stdin.readline()
os.kill(child, signal.SIGCONT)
assert os.waitpid(child, 0)[1] == 0
os.pwrite(fd, b'parent', 0)
assert os.pread(fd, 9999, 0) == b'parent' + b'J' * 4994
os.pwrite(other, b'O', 0)
print('done')
sys.stdin.readline()
";
    let mut command = python(&place, &format!("{BEGIN}{more}"));
    command.env("UNTORN_PRELOAD_DEATH", "3:5:19");
    let mut talk = Talk::by(command);
    talk.hear("stopped");
    let mut waits =
        Command::new("cat").arg(place.file("f.managed")).stdout(std::process::Stdio::piped()).spawn().unwrap();
    assert_eq!(place.read("g.managed"), "other");
    assert!(waits.try_wait().unwrap().is_none(), "it was shown half a write");
    talk.say();
    talk.hear("done");
    assert!(waits.wait_with_output().unwrap().status.success());
    assert_eq!(place.read("g.managed"), "Other");
    talk.end();
}
