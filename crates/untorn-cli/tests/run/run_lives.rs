//! Managed files survive processes that die, change their rights or rename a directory above, as servers and their
//! supervisors do.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use untorn_wire::{Hello, Operation, PLAIN, Reopen, Share, VERSION};

use crate::common::boosted::Place;
use crate::common::layered::{by_nobody, discarded, files, layer, succeed, text, under};
use untorn_testing::programs::compile;

/// Files by name, with what is in them.
type Left = Vec<(String, Vec<u8>)>;

/// What a program in Python says under untorn, how it ends, and what it leaves in its directory.
fn run(program: &str) -> (String, Option<i32>, Left) {
    let dir = tempfile::tempdir().unwrap();
    let output = under(dir.path(), layer(), &["python3".as_ref(), "-c".as_ref(), program.as_ref()]).output().unwrap();
    assert!(!dir.path().join(".untorn").exists(), "a sidecar was left behind");
    // Both without the directory, which nobody knows beforehand.
    let place = format!("{}/", dir.path().canonicalize().unwrap().display());
    let said = (text(&output.stdout) + &text(&output.stderr)).replace(&place, "");
    (said, output.status.code(), files(dir.path()))
}

/// LMDB writes what commits a transaction so.
#[test]
fn each_write_of_a_synchronous_description_is_a_commit() {
    untorn_testing::needs!("python3");
    for flag in ["O_DSYNC", "O_SYNC"] {
        let program = format!(
            "
import os
plain = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
os.pwrite(plain, b'data', 4)
synchronous = os.open('f.managed', os.O_RDWR | os.{flag})
os.pwrite(synchronous, b'meta', 0)
os.pwrite(plain, b'lost', 0)
os.kill(os.getpid(), 9)
"
        );
        let (said, code, files) = run(&program);
        let told = "untorn: f.managed: 1 epoch of killed processes discarded; the file is at the last commit before\n";
        assert_eq!((said.as_str(), code), (told, Some(137)), "{flag}");
        assert_eq!(files, [("f.managed".to_owned(), b"metadata".to_vec())], "{flag}");
    }
}

/// By one who is not root: nobody else may look into a process that has ended and was not waited for.
#[test]
fn a_zombie_holds_no_files() {
    untorn_testing::needs!("python3");
    let dir = tempfile::tempdir().unwrap();
    let program = "
import os, subprocess, time
ended = subprocess.Popen(['true'])
while open('/proc/%d/stat' % ended.pid).read().rsplit(')')[1].split()[0] != 'Z': time.sleep(0.001)
with open('f.managed', 'w') as file: file.write('closed')
os.kill(os.getpid(), 9)
";
    let mut command = by_nobody(dir.path(), &["--match", "*.managed"]);
    let output = command.args(["--", "python3", "-c", program]).output().unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(137), String::new()));
    assert_eq!(files(&dir.path().join("at")), [("f.managed".to_owned(), b"closed".to_vec())]);
}

/// Who starts a new worker at once, when the others were killed, opens the file while the server still has it for lost.
#[test]
fn an_open_after_all_holders_died_sees_committed_bytes() {
    untorn_testing::needs!("python3");
    let program = "
import os, time
open('f.managed', 'w').write('kept')
ready, say = os.pipe()
def worker():
    child = os.fork()
    if child == 0:
        os.pwrite(os.open('f.managed', os.O_RDWR), b'lost', 0)
        os.write(say, b'.')
        time.sleep(60)
    assert os.read(ready, 1) == b'.'
    return child
for _ in range(5):
    workers = [worker(), worker()]
    for child in workers: os.kill(child, 9); os.waitpid(child, 0)
    assert open('f.managed').read() == 'kept'
print('done')
";
    let (said, code, left) = run(program);
    assert_eq!((code, left), (Some(0), vec![("f.managed".to_owned(), b"kept".to_vec())]), "{said}");
    // Two processes that are killed at once may each have an epoch.
    let told = said.strip_prefix("done\nuntorn: f.managed: ").and_then(|told| told.split_once(" epochs of killed "));
    let epochs: Option<u32> = told.and_then(|(epochs, _)| epochs.parse().ok());
    assert!(epochs.is_some_and(|epochs| (5..=10).contains(&epochs)), "{said}");
}

#[test]
fn a_directory_is_renamed_with_what_is_managed_below_it() {
    untorn_testing::needs!("python3");
    let program = "
import errno, os
os.makedirs('a/b')
file = open('a/b/f.managed', 'wb', buffering=0)
file.write(b'1')
try: os.rename('a', 'c')
except OSError as error: print(errno.errorcode[error.errno])
os.fsync(file.fileno())
os.rename('a', 'c')
file.write(b'2')
os.fsync(file.fileno())
os.rename('c/b', 'c/d')
file.write(b'3')
file.close()
print(os.listdir('c/d'), open('c/d/f.managed').read())
os.rename('c/d/f.managed', 'f.managed')
os.removedirs('c/d')
";
    let expected = "ENOTSUP\n['f.managed'] 123\n".to_owned();
    assert_eq!(run(program), (expected, Some(0), vec![("f.managed".to_owned(), b"123".to_vec())]));
}

/// A place for processes that have not the rights of the run, and the layer; `None` if this is not root, who alone
/// can give them up.
fn shared_place() -> Option<(Place, PathBuf)> {
    if text(&succeed(Command::new("id").arg("-u")).stdout).trim() != "0" {
        untorn_testing::skipped!("to give up rights takes those of root");
        return None;
    }
    let place = Place::new();
    for dir in [place.files.path(), place.aside.path()] {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    }
    let layer = place.aside.path().join("layer.so");
    succeed(Command::new("cp").arg("-p").arg(crate::common::layered::layer()).arg(&layer));
    Some((place, layer))
}

/// As databases are started by root.
#[test]
fn a_process_that_gives_up_its_rights_is_served_on() {
    untorn_testing::needs!("python3");
    let Some((place, layer)) = shared_place() else { return };
    let program = "
import os, subprocess
open('before.managed', 'w').write('before')
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
file = os.open('f.managed', os.O_RDWR | os.O_CREAT)
os.write(file, b'synced')
os.fsync(file)
subprocess.run(['sh', '-ec', 'echo other > other.managed; cat before.managed; echo'], check=True)
try: open('before.managed', 'r+')
except PermissionError: print('not mine')
os.write(file, b'lost')
os.kill(os.getpid(), 9)
";
    let mut command = place.tool();
    command.args(["run", "--match", "*.managed", "--layer"]).arg(&layer).args(["--", "python3", "-c", program]);
    let output = command.output().unwrap();
    let told = discarded(place.files.path(), "f.managed");
    assert_eq!((text(&output.stdout), text(&output.stderr)), ("before\nnot mine\n".to_owned(), told));
    let expected = [("before", "before"), ("f", "synced"), ("other", "other\n")];
    assert_eq!(files(place.files.path()), expected.map(|(name, text)| (format!("{name}.managed"), text.into())));
}

/// As `su` starts one.
#[test]
fn a_process_of_another_user_is_served_in_boost_mode() {
    untorn_testing::needs!("python3");
    let Some((place, layer)) = shared_place() else { return };
    // One file is opened a second time by it, another one renamed.
    let program = r#"
import os, subprocess
held, moved = (os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for name in ('held.managed', 'moved.managed'))
for fd in (held, moved): os.fchmod(fd, 0o666); os.write(fd, b'first\n')
script = '''
    echo new > new.managed; mv new.managed other.managed; mkdir d; mv d e; rmdir e
    echo second >> held.managed; mv moved.managed elsewhere.managed'''
subprocess.run(['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', 'sh', '-ec', script], check=True)
for fd in (held, moved): os.write(fd, b'third\n'); os.fsync(fd)
"#;
    let mut command = place.tool();
    command.args(["run", "--mode", "boost", "--log-size", "8M", "--match", "*.managed", "--json", "--log"]);
    command.arg(place.log()).arg("--layer").arg(&layer).args(["--", "python3", "-c", program]);
    let output = succeed(&mut command);
    assert_eq!(text(&output.stderr), "");
    let expected = [("elsewhere", "first\nthird\n"), ("held", "first\nsecond\nthird\n"), ("other", "new\n")];
    let expected = expected.map(|(name, bytes)| (format!("{name}.managed"), bytes.as_bytes().to_vec()));
    assert_eq!(files(place.files.path()), expected);
    let report: serde_json::Value = serde_json::from_str(text(&output.stdout).lines().last().unwrap()).unwrap();
    let is_known = |name: &str| {
        report["files"].as_array().unwrap().iter().any(|file| file["path"].as_str().unwrap().ends_with(name))
    };
    assert!(is_known("new.managed"), "{report}");
}

/// The first eight bytes of a request as two numbers: the version, then the operation and the length of its payload.
fn head<O: Operation>() -> [String; 2] {
    let halves = [O::NUMBER, size_of::<O>() as u16].map(u16::to_ne_bytes);
    [VERSION, u32::from_ne_bytes([halves[0][0], halves[0][1], halves[1][0], halves[1][1]])].map(|word| word.to_string())
}

/// Though processes of the run may connect that have other rights. These are given nothing that they could not open
/// by themselves: neither the log nor a file that rests.
#[test]
fn a_foreign_process_of_another_user_is_turned_away() {
    untorn_testing::needs!("python3");
    let [ask_hello, share, reopen] = [head::<Hello>(), head::<Share>(), head::<Reopen>()];
    let Some((place, layer)) = shared_place() else { return };
    let hello = compile("hello.c", place.aside.path(), &[]);
    let nobody = ["--reuid=65534", "--regid=65534", "--clear-groups", hello.to_str().unwrap()];
    let program = "
import os, subprocess, sys
socket = os.environ['UNTORN_PRELOAD_SOCKET']
print(socket, flush=True)
for at in (1, 3, 5): subprocess.run(['setpriv', *sys.argv[7:], socket, *sys.argv[at:at + 2]], check=True)
sys.stdin.readline()
";
    let mut command = place.tool();
    command.args(["run", "--mode", "boost", "--log-size", "8M", "--match", "*.managed", "--log"]).arg(place.log());
    command.arg("--layer").arg(&layer).args(["--", "python3", "-c", program]);
    command.args([&ask_hello, &share, &reopen].into_iter().flatten()).args(nobody);
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(run.stdout.take().unwrap()).lines().map(Result::unwrap);
    let socket = said.next().unwrap();
    let expected = ["48 0".to_owned(), format!("48 {PLAIN}"), format!("48 {PLAIN}")];
    assert_eq!(said.by_ref().take(3).collect::<Vec<_>>(), expected, "a process of the run");
    let outside = succeed(Command::new("setpriv").args(nobody).arg(&socket).args(&ask_hello));
    assert_eq!(text(&outside.stdout), "0 0\n", "somebody else");
    drop(run.stdin.take());
    assert!(run.wait().unwrap().success());
}
