//! Programs and runs that are killed: what was acknowledged is there after a replay, and files in mode atomic are what
//! they were at a commit.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

use untorn::write_cache::{BackingFile, Descriptor};
use untorn_testing::programs::{TRANSACTIONS, Victim, kill, last_transaction, succeed};

use crate::common::records::{self, Before};
use crate::running::{MODES, Place, needs_mounts};

/// How often each test kills: `UNTORN_KILLS`, or once in each of its ways.
fn kills() -> usize {
    std::env::var("UNTORN_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(4)
}

/// Repeated kills hit other instants.
fn wait_a_little(number: usize) {
    thread::sleep(Duration::from_micros((number / 8 * 7919 % 97 * 100) as u64));
}

/// A Python program under a run, to which the test says when to go on.
struct Talk {
    tool: Child,
    /// Kept when the tool is waited for.
    words: ChildStdin,
    process: String,
    said: Lines<BufReader<ChildStdout>>,
}

impl Talk {
    /// The program's first line is its process.
    fn start(place: &Place, mode: &str, program: &str) -> Self {
        Talk::preloaded(place, mode, program, None)
    }

    /// The same with a library in the program.
    fn preloaded(place: &Place, mode: &str, program: &str, library: Option<&OsStr>) -> Self {
        let program = format!("import os, sys\nprint(os.getpid(), flush=True)\n{program}");
        let mut command = place.under(mode, &[], &["python3".as_ref(), "-c".as_ref(), program.as_ref()]);
        if let Some(library) = library {
            command.env("LD_PRELOAD", library);
        }
        let mut tool = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(tool.stdout.take().unwrap()).lines();
        let process = said.next().expect("the program starts").unwrap();
        let words = tool.stdin.take().unwrap();
        Talk { tool, words, process, said }
    }

    #[track_caller]
    fn hear(&mut self, word: &str) {
        assert_eq!(self.said.next().expect("the program ended by itself").unwrap(), word);
    }

    fn say(&mut self) {
        self.words.write_all(b"go on\n").unwrap();
    }

    /// Kills the tool, and the program.
    fn crash(mut self) {
        kill(&[&self.tool.id().to_string(), &self.process]);
        self.tool.wait().unwrap();
        // Its programs are gone when the last of them has closed this.
        assert_eq!(self.said.map_while(Result::ok).last(), None);
    }
}

/// Commits two epochs, and leaves a third one open.
const EPOCHS: &str = "
fd = os.open('f', os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
os.write(fd, b'first'); os.fsync(fd)
os.write(fd, b' sec'); os.write(fd, b'ond'); os.fdatasync(fd)
os.write(fd, b' third'); os.pwrite(fd, b'F', 0)
print('written', flush=True)
sys.stdin.readline()
";

#[test]
fn a_crash_gives_an_atomic_file_its_last_commit() {
    needs_mounts!("python3");
    let place = Place::new();
    let mut talk = Talk::start(&place, "atomic", EPOCHS);
    talk.hear("written");
    talk.crash();
    place.replay();
    assert_eq!(place.read("f"), "first second");
}

#[test]
fn a_crash_keeps_every_write_of_a_boosted_file() {
    needs_mounts!("python3");
    let place = Place::new();
    let mut talk = Talk::start(&place, "boost", EPOCHS);
    talk.hear("written");
    talk.crash();
    place.replay();
    assert_eq!(place.read("f"), "First second third");
}

/// A rename by `link` and `unlink` waits for no device: the log alone has the bytes, and the names. A power cut takes
/// from the file what its device had not got, and may bring the first name back.
#[test]
fn a_crash_keeps_a_rename_by_link_and_unlink() {
    needs_mounts!("python3");
    let program = "
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'first'); os.fsync(fd)
os.link('f', 'g'); os.unlink('f')
os.write(fd, b' second'); os.fsync(fd)
print('written', flush=True)
sys.stdin.readline()
";
    for mode in MODES {
        let place = Place::new();
        let probe = fs::File::create_new(place.file("probe")).unwrap();
        let identity = Descriptor::new(probe.into(), &place.file("probe")).and_then(|file| file.identity()).unwrap();
        fs::remove_file(place.file("probe")).unwrap();
        if identity.generation == 0 || identity.birth == 0 {
            untorn_testing::skip!("files of this file system have no generation or no birth time");
        }
        let mut talk = Talk::start(&place, mode, program);
        talk.hear("written");
        talk.crash();
        fs::hard_link(place.file("g"), place.file("f")).unwrap();
        let file = fs::File::options().write(true).open(place.file("g")).unwrap();
        // A power cut changes no file, so the file has no other time than before.
        let modified = file.metadata().unwrap().modified().unwrap();
        file.set_len(0).unwrap();
        file.set_times(fs::FileTimes::new().set_modified(modified)).unwrap();
        place.replay();
        assert_eq!(place.read("g"), "first second", "{mode}");
        assert!(!place.file("f").exists(), "{mode}: the name was removed");
    }
}

/// As on any file system: only a crash of the run, or of the machine, takes changes back.
#[test]
fn writes_of_a_killed_program_stay_and_are_committed() {
    needs_mounts!("python3");
    for mode in MODES {
        let place = Place::new();
        let mut talk = Talk::start(&place, mode, EPOCHS);
        talk.hear("written");
        kill(&[&talk.process]);
        assert_eq!(talk.tool.wait().unwrap().code(), Some(137), "{mode}");
        assert_eq!(place.read("f"), "First second third", "{mode}");
    }
}

/// Stores of a mapping belong to the epoch, and a sync of any part of the file commits them all.
#[test]
fn a_crash_drops_stores_since_the_last_sync() {
    needs_mounts!("python3");
    let place = Place::new();
    let program = "
import mmap
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.ftruncate(fd, 8 * 4096)
at = mmap.mmap(fd, 0)
at[0] = at[5 * 4096] = 1
at.flush(4096, 4096)
at[0] = 2
os.fsync(fd)
at[0] = at[5 * 4096] = 3
print('stored', flush=True)
sys.stdin.readline()
";
    let mut talk = Talk::start(&place, "atomic", program);
    talk.hear("stored");
    talk.crash();
    place.replay();
    let bytes = fs::read(place.file("f")).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[5 * 4096]), (8 * 4096, 2, 1));
}

#[test]
fn a_crash_leaves_a_renamed_file_at_its_last_commit() {
    needs_mounts!("python3");
    let place = Place::new();
    let program = "
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'first'); os.fsync(fd)
os.pwrite(fd, b'LATER', 0)
os.rename('f', 'g')
os.pwrite(fd, b'MORE', 0)
print('renamed', flush=True)
sys.stdin.readline()
";
    let mut talk = Talk::start(&place, "atomic", program);
    talk.hear("renamed");
    talk.crash();
    place.replay();
    assert_eq!(place.read("g"), "first");
    assert!(!place.file("f").exists());
}

#[test]
fn calls_fail_after_the_run_was_killed_and_nothing_hangs() {
    needs_mounts!("python3");
    for mode in MODES {
        let place = Place::new();
        let program = "
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'first'); os.fsync(fd)
print('written', flush=True)
sys.stdin.readline()
for call in (lambda: os.fsync(fd), lambda: os.listdir('.'), lambda: open('g', 'w')):
    try: print(call())
    except OSError as error: print('failed', flush=True)
";
        let mut talk = Talk::start(&place, mode, program);
        talk.hear("written");
        talk.tool.kill().unwrap();
        talk.tool.wait().unwrap();
        talk.say();
        for _ in 0..3 {
            talk.hear("failed");
        }
        place.replay();
        assert_eq!(place.read("f"), "first", "{mode}");
    }
}

#[test]
fn the_next_run_replays_before_its_program_opens_a_file() {
    needs_mounts!("python3");
    for mode in MODES {
        let place = Place::new();
        let mut talk = Talk::start(&place, mode, EPOCHS);
        talk.hear("written");
        talk.crash();
        let run = place.run(mode, &[], &["cat", "f"]).expect(0);
        let expected = if mode == "atomic" { "first second" } else { "First second third" };
        assert_eq!(run.text(), expected, "{mode}");
    }
}

/// Writes, and syncs all files in one of the ways that send no request to a mount.
const SYNCS: &str = "
import ctypes
fd = os.open('f', os.O_RDWR | os.O_CREAT, 0o644)
os.write(fd, b'first'); os.fsync(fd)
os.write(fd, b' second')
SYNC
os.write(fd, b' third')
print('written', flush=True)
sys.stdin.readline()
";

#[test]
fn the_preload_library_has_sync_and_syncfs_commit() {
    needs_mounts!("python3");
    let library = untorn_testing::built().join("libuntorn_preload.so");
    let attribute = "os.sync(); os.getxattr('.', 'user.untorn.sync')";
    // As getfattr asks: for the length of the value, and then for the value.
    let length = "ctypes.CDLL(None).lgetxattr(b'.', b'user.untorn.sync', None, 0)";
    let length_first = &format!("assert {length} == 1; {attribute}");
    for (preload, sync, expected) in [
        // The canary: without the library the call commits nothing.
        (false, "os.sync()", "first"),
        (true, "os.sync()", "first second"),
        (true, "assert ctypes.CDLL(None).syncfs(fd) == 0", "first second"),
        (false, attribute, "first second"),
        (false, length_first, "first second"),
    ] {
        let place = Place::new();
        let program = SYNCS.replace("SYNC", sync);
        let preload = preload.then_some(library.as_os_str());
        let mut talk = Talk::preloaded(&place, "atomic", &program, preload);
        talk.hear("written");
        talk.crash();
        place.replay();
        assert_eq!(place.read("f"), expected, "{sync}");
    }
}

/// Writes blocks of one byte each, changes the length now and then, and says after each call which that was.
const WRITER: &str = "
import os, random
fd = os.open('f.managed', os.O_RDWR | os.O_CREAT, 0o644)
random.seed(7)
for number in range(1, 100000):
    at, len = random.randrange(60000), random.randrange(1, 9000)
    if number % 10 == 0:
        os.ftruncate(fd, at)
    else:
        assert os.pwrite(fd, bytes([number % 256]) * len, at) == len
    os.write(1, b'%d\\n' % number)
";

/// The file after so many calls of the writer: by Python, whose random numbers they are.
fn after(calls: u64) -> Vec<u8> {
    let model = format!(
        "
import random, sys
random.seed(7)
file = bytearray()
for number in range(1, {calls} + 1):
    at, len = random.randrange(60000), random.randrange(1, 9000)
    if number % 10 == 0:
        del file[at:]
        file.extend(bytes(at - file.__len__()))
    else:
        file.extend(bytes(max(0, at + len - file.__len__())))
        file[at:at + len] = bytes([number % 256]) * len
sys.stdout.buffer.write(file)
"
    );
    succeed(Command::new("python3").args(["-c", &model])).stdout
}

/// Kills the program, or the run that serves it, after so many calls and somewhere within the next ones.
#[test]
fn acknowledged_boosted_writes_survive_a_kill_and_a_replay() {
    needs_mounts!("python3");
    for number in 0..kills() {
        let calls = [1, 40, 230, 7, 90, 150][number % 6];
        let place = Place::new();
        let mut victim = Victim::start(&[WRITER], |program| place.under("boost", &["--durability", "write"], program));
        victim.await_lines(calls);
        wait_a_little(number);
        let serves = number % 2 == 0;
        let whom = if serves { victim.server() } else { victim.process.clone() };
        let (acknowledged, ended) = victim.killed(&[&whom]);
        assert_eq!(ended.code(), if serves { None } else { Some(137) });
        place.replay();
        let found = fs::read(place.file("f.managed")).unwrap();
        // The call that was under way is there, or not, or a part of it: the kernel may send it as several requests.
        let (before, then) = (after(acknowledged), after(acknowledged + 1));
        let wrong = |at: &usize| {
            let byte = found.get(*at);
            byte != before.get(*at) && byte != then.get(*at)
        };
        let wrong = (0..before.len().max(then.len()).max(found.len())).find(wrong);
        assert_eq!(wrong, None, "a byte is the one after neither {acknowledged} calls nor one more");
    }
}

/// Kills a program that commits transactions, at instants that no one chose, and judges the file outside of the run.
/// In mode atomic without a journal, untorn alone makes a transaction whole.
#[test]
fn sqlite_loses_no_transaction_to_a_kill() {
    needs_mounts!("python3");
    for mode in MODES {
        let journals =
            if mode == "atomic" { ["off", "delete", "off", "wal"] } else { ["delete", "truncate", "wal", "persist"] };
        for number in 0..kills() {
            let (journal, place) = (journals[number % journals.len()], Place::new());
            // Where it is not exclusive, the journal is opened and closed, or removed, with each transaction.
            let locking = if number % 2 == 0 { "exclusive" } else { "normal" };
            let mut victim =
                Victim::start(&[TRANSACTIONS, "app.db", journal, locking], |program| place.under(mode, &[], program));
            victim.await_lines(number % 6 * 5 + 4);
            wait_a_little(number);
            let (tool, process) = (victim.server(), victim.process.clone());
            // Without a journal a program that is killed amid a transaction leaves a part of it, as bare: only the end
            // of its server takes that back.
            let serves = journal == "off" || number % 2 == 0;
            let both = if serves { [&tool, &process] } else { [&process, &tool] };
            let (acknowledged, _) = victim.killed(&both.map(String::as_str));
            place.replay();
            let found = last_transaction(place.files.path(), "app.db");
            assert!(
                found == acknowledged || found == acknowledged + 1,
                "{mode}, {journal}: {found}, and {acknowledged} was said"
            );
        }
    }
}

/// Kills a run again and again, with the program that it serves. The next run, over the same directory, has what was
/// acknowledged, and its clean end removes the default log.
#[test]
fn a_run_that_is_killed_often_loses_nothing_acknowledged() {
    needs_mounts!("python3");
    for mode in MODES {
        let place = Place::new();
        let under = |program: &[&OsStr]| {
            let mut command = place.tool();
            command.args(["run", "--mode", mode, "--log-size", "1M"]);
            if mode == "boost" {
                command.args(["--durability", "write", "--log"]).arg(place.log());
            }
            command.arg("--").args(program);
            command
        };
        let mut number = 0;
        for round in 0..untorn_testing::cases(3, 500) {
            let before = Before::of(place.files.path(), number);
            let mut victim = Victim::start(&[records::WRITER, &number.to_string()], under);
            victim.await_lines(1 + round % 23);
            wait_a_little(8 * round);
            let (server, process) = (victim.server(), victim.process.clone());
            let (acknowledged, _) = victim.killed(&[&server, &process]);
            succeed(&mut under(&["true".as_ref()]));
            before.check(place.files.path(), acknowledged, mode == "atomic");
            assert!(!place.file(".untorn").exists());
            number = acknowledged + 1;
        }
    }
}
