//! Unmodified programs with a log in front of their files do what they do bare.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;

use crate::common::{BEGIN, Place, Talk, built, program, replayed, same_as_bare, shell, succeed, text};
use untorn::testing::storage::give_lease_back;
use untorn_testing::programs::{GIT, REDIRECTIONS, USUAL_TOOLS, each_call};

#[test]
fn every_call_does_what_it_does_bare() {
    let dir = tempfile::tempdir().unwrap();
    each_call(dir.path(), |program| drop(same_as_bare(program)));
}

#[test]
fn python_reads_and_writes_as_it_does_bare() {
    untorn_testing::needs!("python3");
    same_as_bare(&["python3".as_ref(), program("io.py").as_os_str()]);
}

#[test]
fn redirections_and_pipelines_do_what_they_do_bare() {
    shell(REDIRECTIONS);
}

#[test]
fn the_usual_tools_do_what_they_do_bare() {
    shell(&format!("BLOCK=700\n{USUAL_TOOLS}"));
}

#[test]
fn git_does_what_it_does_bare() {
    shell(GIT);
}

#[test]
fn a_second_open_sees_all_writes_and_makes_the_file_plain() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "print('written'); sys.stdin.readline(); os.write(fd, b' second'); print('more'); sys.stdin.readline()";
    let mut talk = Talk::begin(&place, more);
    talk.hear("written");
    // Not under untorn: the kernel makes it wait.
    assert_eq!(place.read("f.managed"), "first");
    talk.say();
    talk.hear("more");
    assert_eq!(place.read("f.managed"), "first second");
    talk.end();
    let report = place.report();
    assert_eq!(report["files"][0]["writes"], 1, "{report}");
    assert_eq!(place.demoted(), ["opened a second time"]);
}

/// Each is done with a file whose writes are in the log.
#[test]
fn unserved_calls_find_a_plain_file() {
    untorn_testing::needs!("python3");
    let cases = [
        ("mmap", "import mmap; assert mmap.mmap(fd, 5, prot=mmap.PROT_READ)[:] == b'first'"),
        (
            "mmap",
            "import mmap; m = mmap.mmap(fd, 5); m[0:1] = b'F'; assert os.pread(fd, 5, 0) == b'First'; m[0:1] = b'f'",
        ),
        (
            "sendfile",
            "g = os.open('g', os.O_RDWR | os.O_CREAT); os.write(g, b'first'); \
             assert os.sendfile(fd, g, 0, 5) == 5; os.ftruncate(fd, 5)",
        ),
        (
            "copy_file_range",
            "g = os.open('g', os.O_RDWR | os.O_CREAT); os.write(g, b'first'); \
             assert os.copy_file_range(g, fd, 5, 0, 0) == 5",
        ),
        ("splice", "r, w = os.pipe(); os.write(w, b'first'); assert os.splice(r, fd, 5, offset_dst=0) == 5"),
        (
            "fdopen",
            "import ctypes; c = ctypes.CDLL(None); c.fdopen.restype = ctypes.c_void_p; \
             assert c.fdopen(os.dup(fd), b'r')",
        ),
        (
            "rename",
            "import ctypes; open('g', 'w').close(); exchange = ctypes.CDLL(None).renameat2; \
             assert exchange(-100, b'f.managed', -100, b'g', 2) == 0; \
             assert exchange(-100, b'g', -100, b'f.managed', 2) == 0",
        ),
        ("rename", "os.mkdir('d'); os.rename('d', 'e'); os.rmdir('e')"),
        ("link", "os.link('f.managed', 'g'); os.unlink('g')"),
        ("unlink", "import ctypes; assert ctypes.CDLL(None).unlinkat(-100, b'f.managed', 0x200) == -1"),
        ("flock", "import fcntl; fcntl.flock(fd, fcntl.LOCK_EX)"),
        ("fcntl", "import fcntl; fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND); os.write(fd, b''); os.lseek(fd, 0, 0)"),
        ("posix_fallocate", "os.posix_fallocate(fd, 0, 5)"),
        ("exec", "os.set_inheritable(fd, True); assert os.spawnlp(os.P_WAIT, 'true', 'true') == 0"),
        ("system", "os.set_inheritable(fd, True); os.system(f'echo > /dev/null <&{fd}')"),
        (
            "posix_spawn",
            "p = os.posix_spawnp('cat', ['cat'], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, fd, 0)]); \
                         os.lseek(fd, 5, 0); assert os.waitpid(p, 0)[1] == 0",
        ),
        (
            "sendmsg",
            "import socket; a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [fd]); \
                     assert os.pread(socket.recv_fds(b, 1, 1)[1][0], 9, 0) == b'first'",
        ),
        (
            "setrlimit",
            "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); \
             resource.setrlimit(resource.RLIMIT_FSIZE, (5, resource.RLIM_INFINITY)); \
             assert os.pwrite(fd, b'st and more', 3) == 2",
        ),
        ("dup2", "os.dup2(fd, 50); assert os.pread(50, 9, 0) == b'first'"),
    ];
    for (why, then) in cases {
        let place = Place::new();
        let program =
            format!("{BEGIN}{then}\nos.fsync(fd)\nassert os.pread(fd, 100, 0) == b'first', os.pread(fd, 100, 0)");
        place.run(&program);
        assert_eq!(place.read("f.managed"), "first", "after {why}");
        assert!(place.demoted().iter().any(|found| found == why), "{why}: {:?}", place.demoted());
    }
}

/// Each is the kernel's, which has all that was written, and none makes the file a plain one.
#[test]
fn calls_that_change_nothing_leave_a_file_boosted() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let more = "
import ctypes, errno, fcntl, mmap
for round in range(3):
    content = b'first' + b'.' * round
    assert os.fstat(fd).st_size == len(content) and os.stat('f.managed').st_size == len(content)
    assert os.pread(fd, 99, 0) == content and os.preadv(fd, [bytearray(9)], 0) == len(content)
    assert os.lseek(fd, 0, os.SEEK_SET) == 0 and os.read(fd, 3) == b'fir' and os.lseek(fd, 0, os.SEEK_CUR) == 3
    assert os.lseek(fd, 0, os.SEEK_HOLE) == len(content) and os.lseek(fd, 0, os.SEEK_DATA) == 0
    assert mmap.mmap(fd, 5, flags=mmap.MAP_PRIVATE)[:] == b'first'
    r, w = os.pipe()
    assert os.sendfile(w, fd, 0, 5) == 5 and os.read(r, 9) == b'first'
    assert os.splice(fd, w, 5, offset_src=0) == 5 and os.read(r, 9) == b'first'
    to = os.open('g', os.O_RDWR | os.O_CREAT)
    assert os.copy_file_range(fd, to, 5, 0) == 5
    assert fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_ASYNC) == os.O_RDWR
    try:
        fcntl.fcntl(fd, 1036, (2).to_bytes(8, sys.byteorder))  # F_SET_RW_HINT
    except OSError as error:
        assert error.errno == errno.EINVAL, error
    # Room is reserved, and nothing of the file changes.
    assert ctypes.CDLL(None).fallocate(fd, 1, ctypes.c_long(0), ctypes.c_long(1 << 20)) == 0
    assert os.fstat(fd).st_size == len(content) and os.fstat(fd).st_blocks >= 2048
    os.utime(fd, (5, 5))
    os.fsync(fd)
    assert os.stat('f.managed').st_mtime == 5
    os.lseek(fd, 0, os.SEEK_END)
    assert os.write(fd, b'.') == 1 and os.stat('f.managed').st_mtime > 5
";
    place.run(&format!("{BEGIN}{more}"));
    assert_eq!(place.demoted(), [""; 0]);
    assert_eq!(place.report()["files"][0]["writes"], 4, "{}", place.report());
}

#[test]
fn a_process_with_asynchronous_io_has_plain_files() {
    untorn_testing::needs!("python3");
    // No library of the program has the functions, as none that only a plugin loads: they do what the kernel's calls
    // do.
    let alike = |name: &str, x86: u32, arm: u32, arguments: &str| {
        format!(
            "found = c.{name}({arguments})\n\
             asked = c.syscall({{'x86_64': {x86}, 'aarch64': {arm}}}[os.uname().machine], {arguments})\n\
             assert found >= 0 if asked >= 0 else found == -ctypes.get_errno(), (found, asked)"
        )
    };
    for (why, call, refused) in [
        ("io_setup", alike("io_setup", 206, 0, "1, ctypes.byref(ctypes.c_long(0))"), 0),
        ("io_uring_setup", alike("io_uring_setup", 425, 425, "4, ctypes.create_string_buffer(120)"), 0),
        (
            "io_uring_setup",
            "assert c.io_uring_queue_init(4, ctypes.create_string_buffer(1000), 0) == -errno.ENOSYS".to_owned(),
            1,
        ),
        ("io_uring_setup", "c.syscall(425, 4, ctypes.create_string_buffer(120))".to_owned(), 0),
    ] {
        let place = Place::new();
        let later = "other = os.open('later.managed', os.O_RDWR | os.O_CREAT)\nassert os.write(other, b'later') == 5";
        let program = format!("{BEGIN}import ctypes, errno; c = ctypes.CDLL(None, use_errno=True)\n{call}\n{later}");
        place.run(&program);
        assert_eq!(place.read("f.managed"), "first", "after {why}");
        assert_eq!(place.demoted(), [why]);
        let report = place.report();
        assert_eq!(report["files"].as_array().unwrap().len(), 1, "{report}");
        assert_eq!(report["refused"].as_array().unwrap().len(), refused, "{report}");
    }
}

#[test]
fn shared_descriptors_share_their_offset_and_all_writes() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let then = "
other = os.dup(fd)
child = os.fork()
if child == 0:
    assert os.write(other, b' child') == 6
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert os.write(other, b' parent') == 7
assert os.fstat(os.open('f.managed', os.O_PATH)).st_size == 18
os.close(fd)
assert os.lseek(other, 0, os.SEEK_CUR) == 18
assert os.pread(other, 100, 0) == b'first child parent'
os.ftruncate(other, 11)
assert os.fstat(other).st_size == 11 and os.stat('f.managed').st_size == 11
";
    place.run(&format!("{BEGIN}{then}"));
    assert_eq!(place.read("f.managed"), "first child");
    assert_eq!(place.report()["files"][0]["writes"], 3);
    assert_eq!(place.demoted(), [""; 0]);
}

#[test]
fn a_file_that_a_replay_could_not_open_is_left_to_the_kernel() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    // FS_IOC_SETFLAGS with FS_APPEND_FL, which takes root and a file system that has it.
    let program = "
import fcntl, os, struct
fd = os.open('a.managed', os.O_RDWR | os.O_CREAT, 0o644)
flags = lambda fd, value: fcntl.ioctl(fd, 0x40086602, struct.pack('l', value))
try:
    flags(fd, 0x20)
    append_only = True
except OSError:
    append_only = False
os.close(fd)
fd = os.open('a.managed', os.O_WRONLY | os.O_APPEND)
os.write(fd, b'line')
os.fsync(fd)
if append_only:
    flags(fd, 0)
os.close(fd)
fd = os.open('m.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'before')
os.fchmod(fd, 0o444)
os.write(fd, b' after')
os.fsync(fd)
print(int(append_only), os.geteuid())
";
    let said = place.run(program);
    assert_eq!(place.read("a.managed"), "line");
    assert_eq!(place.read("m.managed"), "before after");
    let demoted = place.demoted();
    let is_because = |what: &str| demoted.iter().any(|why| why.contains(what));
    let said = text(&said.stdout);
    let (append_only, user) = said.trim().split_once(' ').unwrap();
    assert_eq!(is_because("append-only"), append_only == "1", "{demoted:?}");
    assert_eq!(is_because("the file's owner lacks read or write permission"), user != "0", "{demoted:?}");
}

#[test]
fn appends_go_to_the_end_through_the_log() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = "
import fcntl, os
fd = os.open('f.managed', os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
assert os.write(fd, b'first') == 5 and os.lseek(fd, 0, os.SEEK_CUR) == 5
flags = fcntl.fcntl(fd, fcntl.F_GETFL)
assert flags & (os.O_ACCMODE | os.O_APPEND | os.O_ASYNC | os.O_SYNC) == os.O_RDWR | os.O_APPEND, oct(flags)
assert os.lseek(fd, 1, os.SEEK_SET) == 1 and os.read(fd, 2) == b'ir'
assert os.write(fd, b' second') == 7 and os.lseek(fd, 0, os.SEEK_CUR) == 12
# Linux appends that as well, and leaves the offset.
assert os.pwrite(fd, b'!', 0) == 1 and os.lseek(fd, 0, os.SEEK_CUR) == 12
assert os.pread(fd, 99, 0) == b'first second!'
os.ftruncate(fd, 0)
os.fsync(fd)
child = os.fork()
for number in range(100):
    line = b'%s %d\\n' % (b'parent' if child else b'child', number)
    assert os.write(fd, line) == len(line)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
lines = os.pread(fd, 10000, 0).split(b'\\n')
for who in b'parent', b'child':
    assert [line for line in lines if line.startswith(who)] == [b'%s %d' % (who, number) for number in range(100)]
assert len(lines) == 201 and lines[-1] == b''
os.close(fd)
# Given back as it was, or opened anew.
fd = os.open('f.managed', os.O_RDWR | os.O_APPEND)
assert os.lseek(fd, 0, os.SEEK_CUR) == 0 and os.write(fd, b'last') == 4
assert os.fstat(fd).st_size == os.lseek(fd, 0, os.SEEK_CUR) and os.pread(fd, 9, os.fstat(fd).st_size - 4) == b'last'
";
    place.run(program);
    // All of them: it was never the kernel's.
    assert_eq!(place.report()["files"][0]["writes"], 204, "{}", place.report());
}

#[test]
fn calls_by_number_find_what_was_written() {
    untorn_testing::needs!("python3");
    // Copies from one descriptor to another, by `syscall`: which argument the boosted one is, is one's own affair.
    let program = format!(
        "{BEGIN}
import ctypes, platform
call = ctypes.CDLL(None, use_errno=True).syscall
numbers = [5, 40, 326] if platform.machine() == 'x86_64' else [80, 71, 285]
number = dict(zip(['fstat', 'sendfile', 'copy_file_range'], numbers))
def new(name):
    fd = os.open(name, os.O_RDWR | os.O_CREAT)
    assert os.write(fd, b'first') == 5
    return fd
status = ctypes.create_string_buffer(144)
assert call(number['fstat'], new('a.managed'), status) == 0
assert int.from_bytes(status.raw[48:56], 'little') == 5
r, w = os.pipe()
assert call(number['sendfile'], w, new('b.managed'), ctypes.byref(ctypes.c_long(0)), ctypes.c_size_t(5)) == 5
source, to = os.open('c', os.O_RDWR | os.O_CREAT), new('d.managed')
os.write(source, b'later')
begin = lambda: ctypes.byref(ctypes.c_long(0))
assert call(number['copy_file_range'], source, begin(), to, begin(), ctypes.c_size_t(5), 0) == 5
assert os.pread(to, 9, 0) == b'later'
assert os.pread(call(32 if platform.machine() == 'x86_64' else 23, fd), 9, 0) == b'first'
"
    );
    let place = Place::new();
    place.run(&program);
    assert_eq!(place.read("d.managed"), "later");
}

#[test]
fn a_program_may_write_to_more_files_than_the_log_has_room_for() {
    untorn_testing::needs!("python3");
    let program = "
import os
all = [os.open(f'{n}.managed', os.O_RDWR | os.O_CREAT) for n in range(100)]
for n, fd in enumerate(all):
    if n % 2 == 0:
        os.ftruncate(fd, 2)
    assert os.write(fd, b'%d' % n) == len(str(n))
for n, fd in enumerate(all):
    os.fsync(fd)
    assert os.pread(fd, 9, 0) == (b'%d' % n).ljust(2 if n % 2 == 0 else 0, bytes(1)), n
";
    let place = Place::new();
    place.run(program);
    assert_eq!(text(&fs::read(place.file("99.managed")).unwrap()), "99");
    assert_eq!(place.demoted(), ["write: the log has reached its maximum number of files"; 36]);
}

/// The descriptor that a program says: its process and its number. To give its lease back is to do what the kernel
/// does when it is tired of waiting for that, which takes 45 seconds.
fn descriptor_of(talk: &mut Talk) -> OwnedFd {
    let said = talk.from.next().unwrap().unwrap();
    let numbers: Vec<i32> = said.split(' ').map(|number| number.parse().unwrap()).collect();
    let process = rustix::process::Pid::from_raw(numbers[0]).unwrap();
    let handle = rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).unwrap();
    let empty = rustix::process::PidfdGetfdFlags::empty();
    rustix::process::pidfd_getfd(handle, numbers[1], empty).unwrap()
}

#[test]
fn a_lost_lease_does_not_bypass_an_undrained_log() {
    untorn_testing::needs!("python3");
    let more = "
copy = os.dup(fd)
print(os.getpid(), fd); sys.stdin.readline()
assert os.fstat(fd).st_size == 5 and os.pread(copy, 100, 0) == b'first'
assert os.write(fd, b' second') == 7 and os.pread(copy, 100, 0) == b'first second'
";
    let place = Place::new();
    let mut talk = Talk::begin(&place, more);
    let descriptor = descriptor_of(&mut talk);
    give_lease_back(descriptor.as_fd()).unwrap();
    talk.end();
    assert_eq!(place.read("f.managed"), "first second");
}

#[test]
fn calls_fail_without_the_server_even_after_a_lost_lease() {
    untorn_testing::needs!("python3");
    let more = "
copy = os.dup(fd)
print(os.getpid(), fd); sys.stdin.readline()
assert os.pread(copy, 9, 0) == b'first'
for call in [lambda: os.write(fd, b'never'), lambda: os.write(copy, b'never'), lambda: os.fsync(fd),
             lambda: os.ftruncate(fd, 1)]:
    try:
        call()
    except OSError as error:
        print(error.errno)
";
    let place = Place::new();
    let mut talk = Talk::begin(&place, more);
    let descriptor = descriptor_of(&mut talk);
    talk.child.kill().unwrap();
    talk.child.wait().unwrap();
    give_lease_back(descriptor.as_fd()).unwrap();
    talk.say();
    for _ in 0..4 {
        talk.hear(&rustix::io::Errno::IO.raw_os_error().to_string());
    }
    assert!(talk.from.next().is_none());
    assert!(replayed(&place).is_complete());
    assert_eq!(place.read("f.managed"), "first");
}

#[test]
fn lease_breaks_reach_a_launcher_with_blocked_signals() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    let program = format!("{BEGIN}print('written'); sys.stdin.readline()");
    let under = place.under(&built().layer, &["python3".as_ref(), "-u".as_ref(), "-c".as_ref(), program.as_ref()]);
    let blocked = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO, 61]); \
                   os.execv(sys.argv[1], sys.argv[1:])";
    let mut command = Command::new("python3");
    command.args(["-c", blocked]).arg(under.get_program()).args(under.get_args()).current_dir(place.files.path());
    let mut talk = Talk::by(command);
    talk.hear("written");
    assert_eq!(place.read("f.managed"), "first");
    talk.end();
    // Otherwise the kernel took the lease, when it was tired of waiting.
    assert_eq!(place.demoted(), ["opened a second time"]);
}

/// Opens a boosted file again while its server is stopped, and is interrupted by signals until the server goes on.
const INTERRUPTED: &str = r#"
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
static void nothing(int number) { (void)number; }
int main(void) {
    int fd = open("f.managed", O_RDWR | O_CREAT, 0644);
    if (fd < 0 || write(fd, "first", 5) != 5) return 1;
    pid_t server = getppid(), waker = fork();
    if (waker == 0) for (;;) { usleep(200000); kill(server, SIGCONT); }
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 10000}, {0, 10000}};
    kill(server, SIGSTOP);
    setitimer(ITIMER_REAL, &often, NULL);
    int other = open("f.managed", O_RDONLY);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    kill(server, SIGCONT);
    kill(waker, SIGKILL);
    waitpid(waker, NULL, 0);
    if (other < 0) { perror("open"); return 2; }
    char bytes[6] = "";
    return read(other, bytes, 5) == 5 && strcmp(bytes, "first") == 0 ? 0 : 3;
}
"#;

#[test]
fn an_opening_that_waits_for_the_log_is_not_interrupted() {
    let place = Place::new();
    let (source, made) = (place.aside.path().join("interrupted.c"), place.aside.path().join("interrupted"));
    fs::write(&source, INTERRUPTED).unwrap();
    let mut cc = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
    succeed(cc.arg("-o").arg(&made).arg(&source));
    succeed(&mut place.under(&built().layer, &[made.as_os_str()]));
}

/// One process writes files and closes them, another looks at the length of each as soon as that was written.
const LENGTHS: &str = "
import os
r, w = os.pipe()
if os.fork() == 0:
    for number in range(200):
        fd = os.open(f'{number}.managed', os.O_RDWR | os.O_CREAT)
        os.write(fd, b'first')
        os.write(w, b'.')
        os.close(fd)
    os._exit(0)
for number in range(200):
    assert os.read(r, 1) == b'.'
    for _ in range(20):
        length = os.stat(f'{number}.managed').st_size
        assert length == 5, (number, length)
assert os.wait()[1] == 0
";

#[test]
fn lengths_are_never_stale_while_a_file_is_let_go() {
    untorn_testing::needs!("python3");
    let place = Place::new();
    place.run(LENGTHS);
}
