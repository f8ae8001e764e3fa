//! Programs that append to their files, and change lengths, by themselves: whatever happens meanwhile, all of it is
//! there once, or not.

use std::ffi::OsStr;

use crate::common::{Place, Talk, appending, counts, each_writer, python, replay_leaves_what_was_there};
use serde_json::Value;

/// A file that is opened to be appended to.
const APPEND: &str = "
import os, sys
fd = os.open('f.managed', os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
os.write(fd, b'first')
";

#[test]
fn appends_go_to_the_end_and_move_the_offset() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
assert os.lseek(fd, 0, os.SEEK_SET) == 0
assert os.write(fd, b'second') == 6 and os.lseek(fd, 0, os.SEEK_CUR) == 11
assert os.lseek(fd, 3, os.SEEK_SET) == 3
# Linux appends, and leaves the offset alone.
assert os.pwrite(fd, b'third', 1) == 5 and os.lseek(fd, 0, os.SEEK_CUR) == 3
assert os.writev(fd, [b'and ', b'more']) == 8 and os.lseek(fd, 0, os.SEEK_CUR) == 24
os.fsync(fd)
os.ftruncate(fd, 20)
assert os.lseek(fd, 0, os.SEEK_CUR) == 24
assert os.write(fd, b'!' * 9000) == 9000 and os.lseek(fd, 0, os.SEEK_CUR) == 9020
assert os.pread(fd, 99999, 0) == b'firstsecondthirdand ' + b'!' * 9000
print('written')
sys.stdin.readline()
";
    let mut talk = Talk::by(python(&place, &format!("{APPEND}{more}")));
    talk.hear("written");
    talk.end();
    assert_eq!(place.demoted(), [""; 0]);
    assert_eq!(counts(&place), [5, 4, 5 + 6 + 5 + 8 + 9000, 1]);
}

/// Each appends to the same end.
#[test]
fn processes_that_append_do_so_one_after_the_other() {
    untorn_testing::needs!("python3");
    let more = "
children = []
for child in range(3):
    process = os.fork()
    if process == 0:
        for number in range(300):
            line = b'%d %03d\\n' % (child, number) + b'x' * (number * 17 % 5000) + b'\\n'
            assert os.write(fd, line) == len(line)
            if child == 2 and number % 100 == 99:
                # By way of the server, too.
                os.pwritev(fd, [b'server\\n'], 0, os.RWF_DSYNC)
        os._exit(0)
    children.append(process)
for process in children:
    assert os.waitpid(process, 0)[1] == 0
lines = os.pread(fd, 10000000, 0)[5:].splitlines()
assert len(lines) == 1803 and lines.count(b'server') == 3, len(lines)
for child in range(3):
    mine = [line for line in lines if line.startswith(b'%d ' % child)]
    assert mine == [b'%d %03d' % (child, number) for number in range(300)]
print('written')
sys.stdin.readline()
";
    for (place, talk) in each_writer(format!("{APPEND}{more}")) {
        replay_leaves_what_was_there(&place, talk);
    }
}

/// A child is killed at each step of an append, and of a change of the length. What it did is there once, or not.
#[test]
fn a_killed_append_or_length_change_is_all_or_nothing() {
    untorn_testing::needs!("python3");
    // On a disk the other two are the server's.
    let ways = ["append", "length", "long"].map(|way| (way, false)).into_iter().chain([("append", true)]);
    for (step, (way, on_disk)) in ways.flat_map(|way| (0..7).map(move |step| (step, way))) {
        let place = if on_disk { Place::on_disk() } else { Place::new() };
        let more = "
way = sys.argv[1]
def do(number):
    if way == 'append':
        os.write(fd, bytes([number]) * (number * 700))
    elif way == 'long':
        os.writev(fd, [bytes([number]) * 90000, bytes([number]) * 210000])
    else:
        os.ftruncate(fd, 1000 * (number * 5 % 13))
def after(changes):
    file = bytearray(b'first')
    for number in range(1, changes + 1):
        if way == 'append':
            file += bytes([number]) * (number * 700)
        elif way == 'long':
            file += bytes([number]) * 300000
        else:
            len_ = 1000 * (number * 5 % 13)
            del file[len_:]
            file += bytes(len_ - len(file))
    return bytes(file)
r, w = os.pipe()
child = os.fork()
if child == 0:
    for number in range(1, 20):
        do(number)
        os.write(w, bytes([number]))
    os._exit(1)
os.close(w)
assert os.waitpid(child, 0)[1] == 9
last = (os.read(r, 1000) or b'\\0')[-1]
# The next change of anybody brings the one that was under way to its end.
assert os.write(fd, b'x') == 1
os.fsync(fd)
found = os.pread(fd, 10000000, 0)
assert found in [after(n) + b'x' for n in (last, last + 1)], (last, len(found))
assert os.write(fd, b'y') == 1
print(last)
sys.stdin.readline()
";
        let program = format!("{APPEND}{more}");
        let all = ["python3", "-u", "-c", &program, way].map(OsStr::new);
        let mut command = appending(&place, &all);
        // So few that the part of the log that is for processes holds them.
        let changes = if way == "long" { 2 } else { 5 };
        command.env("UNTORN_PRELOAD_DEATH", format!("{step}:{changes}"));
        let mut talk = Talk::by(command);
        // Its first change is not its own.
        talk.hear(&(changes + 1).to_string());
        if step % 2 == 0 {
            replay_leaves_what_was_there(&place, talk);
        } else {
            talk.end();
            assert_eq!(place.report()["failures"], Value::Array(Vec::new()), "{step} {way}");
        }
    }
}
