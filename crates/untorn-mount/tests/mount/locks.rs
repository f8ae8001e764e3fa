//! Locks of programs in the mount and of programs outside meet.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use untorn_testing::needs;

use crate::support::{How, mount, mount_as};

#[test]
fn locks_meet_those_of_programs_outside() {
    needs!("python3");
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    let program = "
import fcntl, os, struct, sys
inside, outside = (open(path, 'r+b') for path in sys.argv[1:])
def refused(file, kind, start, length):
    child = os.fork()
    if child == 0:
        try:
            fcntl.lockf(file, kind | fcntl.LOCK_NB, length, start)
            os._exit(0)
        except OSError:
            os._exit(1)
    return os.waitpid(child, 0)[1] != 0
ex, sh = fcntl.LOCK_EX, fcntl.LOCK_SH
fcntl.lockf(inside, ex, 10, 0)
assert refused(outside, ex, 5, 1) and refused(inside, ex, 9, 1) and not refused(outside, ex, 10, 5)
# A part of it is released, and another part becomes a lock for readers.
fcntl.lockf(inside, fcntl.LOCK_UN, 4, 0)
fcntl.lockf(inside, sh, 3, 4)
assert not refused(outside, ex, 0, 4) and not refused(outside, sh, 4, 3)
assert refused(outside, ex, 4, 1) and refused(outside, sh, 7, 1)
found = struct.unpack('hhqqi4x', fcntl.fcntl(outside, fcntl.F_GETLK, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 5, 0, 0)))
assert (found[0], found[2], found[3]) == (fcntl.F_RDLCK, 4, 3), found
fcntl.lockf(inside, fcntl.LOCK_UN, 0, 0)
fcntl.lockf(outside, ex, 0, 0)
assert refused(inside, sh, 0, 1)
outside.close()
assert not refused(inside, ex, 0, 0)
# A program that closes the file gives its locks up.
inside.close()
inside, outside = (open(path, 'r+b') for path in sys.argv[1:])
fcntl.lockf(inside, ex, 0, 0)
assert refused(outside, ex, 0, 0)
inside.close()
assert not refused(outside, ex, 0, 0)
print('met')
";
    std::fs::write(mount.path().join("f"), "0123456789").unwrap();
    let said = mount.python(program, &[&mount.path().join("f"), &mount.source().join("f")]);
    assert_eq!(said.trim(), "met");
}

/// The kernel of the mount keeps locks of `flock(2)`, and a holder on the mount has no process number, whatever its
/// lock is: docs/mount.md.
#[test]
fn flock_stays_on_the_mount_and_getlk_names_no_process() {
    needs!("python3");
    let Some(mount) = mount(untorn_testing::test_name!(), "/**") else { return };
    let program = "
import fcntl, os, struct, sys
inside, outside = sys.argv[1:]
def child(act):
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if act() else 1)
        except OSError:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
def is_free(path, kind):
    return child(lambda: fcntl.flock(open(path, 'r+b'), kind | fcntl.LOCK_NB) is None)
for mine, other in ((inside, outside), (outside, inside)):
    held = open(mine, 'r+b')
    fcntl.flock(held, fcntl.LOCK_EX)
    assert not is_free(mine, fcntl.LOCK_SH) and is_free(other, fcntl.LOCK_EX)
    fcntl.flock(held, fcntl.LOCK_SH)
    assert not is_free(mine, fcntl.LOCK_EX) and is_free(mine, fcntl.LOCK_SH)
    held.close()
    assert is_free(mine, fcntl.LOCK_EX)
def found(path):
    asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
    kind, _, start, length, process = struct.unpack('hhqqi4x', fcntl.fcntl(open(path, 'r+b'), fcntl.F_GETLK, asked))
    return kind, start, length, process
held = open(inside, 'r+b')
for lock, kind in ((fcntl.LOCK_EX, fcntl.F_WRLCK), (fcntl.LOCK_SH, fcntl.F_RDLCK)):
    fcntl.lockf(held, lock, 4, 2)
    assert child(lambda: found(inside) == (kind, 2, 4, 0)), kind
held.close()
held = open(outside, 'r+b')
fcntl.lockf(held, fcntl.LOCK_SH, 4, 2)
assert child(lambda: found(inside) == (fcntl.F_RDLCK, 2, 4, os.getppid()))
print('kept apart')
";
    std::fs::write(mount.path().join("f"), "0123456789").unwrap();
    let said = mount.python(program, &[&mount.path().join("f"), &mount.source().join("f")]);
    assert_eq!(said.trim(), "kept apart");
}

/// Takes a lock, says so, and waits for its standard input to end.
const HOLDER: &str = "
import fcntl, sys
file = open(sys.argv[1], 'r+b')
fcntl.lockf(file, fcntl.LOCK_EX)
print('held', flush=True)
sys.stdin.read()
";

/// Waits for locks that others have, pair by pair: the file of the holder, and that of those who wait.
fn wait_for_locks(pairs: &[(&Path, &Path)]) {
    let start = |path: &Path| {
        let mut command = Command::new("python3");
        command.arg("-c").arg(HOLDER).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    for (holds, waits) in pairs {
        let said = |process: &mut std::process::Child| {
            let mut line = [0; 5];
            std::io::Read::read_exact(process.stdout.as_mut().unwrap(), &mut line).map(|()| line)
        };
        let mut holder = start(holds);
        assert_eq!(&said(&mut holder).unwrap(), b"held\n");
        let (mut killed, mut waiter) = (start(waits), start(waits));
        std::thread::sleep(Duration::from_millis(100));
        for waiting in [&mut killed, &mut waiter] {
            assert!(waiting.try_wait().unwrap().is_none());
        }
        // It is in the kernel, and ends all the same.
        killed.kill().unwrap();
        let begun = Instant::now();
        while killed.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60), "a waiting process cannot be killed");
            std::thread::sleep(Duration::from_millis(5));
        }
        drop(holder.stdin.take());
        assert!(holder.wait().unwrap().success());
        assert_eq!(&said(&mut waiter).unwrap(), b"held\n");
        drop(waiter.stdin.take());
        assert!(waiter.wait().unwrap().success());
    }
}

#[test]
fn a_lock_is_waited_for_and_a_signal_ends_the_wait() {
    needs!("python3");
    let Some(mount) = mount(untorn_testing::test_name!(), "*.none") else { return };
    let (inside, outside) = (mount.path().join("f"), mount.source().join("f"));
    std::fs::write(&inside, "1").unwrap();
    wait_for_locks(&[(&inside, &outside), (&outside, &inside), (&inside, &inside)]);
    let (locks, closes) = mount.unmount_counting();
    assert!(locks > 0 && closes > 0, "{locks} requests about locks, {closes} of closes");
}

/// Locks and closes are no requests: the first FLUSH alone asks whether there is to be another.
#[test]
fn local_locks_meet_on_the_mount_alone_and_are_no_requests() {
    needs!("python3");
    let program = "
import fcntl, os, struct, sys
inside, outside = sys.argv[1:]
ex, sh, now = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_NB
def child(act):
    process = os.fork()
    if process == 0:
        try:
            os._exit(0 if act() else 1)
        except OSError:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
def is_free(path, lock, kind):
    return child(lambda: lock(open(path, 'r+b'), kind | now) is None) == 0
for lock in (fcntl.lockf, fcntl.flock):
    mine = open(inside, 'r+b')
    lock(mine, ex)
    assert not is_free(inside, lock, ex) and not is_free(inside, lock, sh) and is_free(outside, lock, ex)
    lock(mine, sh)
    assert not is_free(inside, lock, ex) and is_free(inside, lock, sh)
    mine.close()
    assert is_free(inside, lock, ex)
    theirs = open(outside, 'r+b')
    lock(theirs, ex)
    assert is_free(inside, lock, ex)
    theirs.close()
mine = open(inside, 'r+b')
fcntl.lockf(mine, ex, 10, 5)
def found():
    asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)
    found = struct.unpack('hhqqi4x', fcntl.fcntl(open(inside, 'r+b'), fcntl.F_GETLK, asked))
    return found == (fcntl.F_WRLCK, 0, 5, 10, os.getppid())
assert child(found) == 0
# Another descriptor of the file that is closed gives the process's locks up.
open(inside, 'rb').close()
assert is_free(inside, fcntl.lockf, ex)
";
    for how in [How::BoostLocalLocks, How::AtomicLocalLocks] {
        let Some(mount) = mount_as(untorn_testing::test_name!(), "/**", how) else { return };
        let inside = mount.path().join("f");
        std::fs::write(&inside, "0123456789012345").unwrap();
        mount.python(program, &[&inside, &mount.source().join("f")]);
        wait_for_locks(&[(&inside, &inside)]);
        let (locks, closes) = mount.unmount_counting();
        assert!(locks == 0 && closes <= 1, "{how:?}: {locks} requests about locks, {closes} of closes");
    }
}
