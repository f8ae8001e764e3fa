//! The process that serves is killed at exact places, and so is the one that takes over from it. Each test is the
//! parent of processes that run the same test with a word in the environment that makes them children.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{LazyLock, OnceLock};

use crate::ipc::memory::tests::{HANGS, await_change, memory_dir};
use crate::{AtomicFile, Durability, EngineKind, Error, Options};

/// Where a process can be made to kill itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Point {
    /// A change is marked as begun.
    Begun = 1,
    /// It has been made.
    Written,
    /// The open epoch is committed, and nobody knows.
    Synced,
    /// The answer to a call is in place, and not said to be.
    Answering,
    /// A process that takes over has given the lost epoch up.
    Lost,
    /// It has opened the file.
    Reopened,
    /// It has done what had been begun.
    Finished,
    /// It does its own calls itself.
    Owner,
}

const POINTS: [Point; 8] = [
    Point::Begun,
    Point::Written,
    Point::Synced,
    Point::Answering,
    Point::Lost,
    Point::Reopened,
    Point::Finished,
    Point::Owner,
];

/// Where a process waits while a file with this ending is there; it says that it has come there with another one.
static STAGE: OnceLock<PathBuf> = OnceLock::new();

/// Says that this process has come so far, if that is what the parent waits for.
pub(super) fn note(rendezvous: &str) {
    if let Some(file) = STAGE.get() {
        std::fs::File::create(file.with_extension(format!("{rendezvous}-reached"))).unwrap();
    }
}

/// The same, and waits until it may go on.
pub(super) fn halt(rendezvous: &str) {
    if let Some(file) = STAGE.get().map(|file| file.with_extension(rendezvous))
        && file.exists()
    {
        note(rendezvous);
        await_change("it may go on", || !file.exists());
    }
}

static DIE_AT: AtomicU32 = AtomicU32::new(0);
/// Where a process panics, once.
static PANIC_AT: AtomicU32 = AtomicU32::new(0);

/// Ends this process if it is to end here, and tells the parent that it serves, if that is what it waits for.
pub(super) fn reach(point: Point) {
    if point == Point::Owner
        && let Some(file) = DAWDLES.get()
    {
        std::fs::File::create(file.with_extension("serving")).unwrap();
    }
    if PANIC_AT.compare_exchange(point as u32, 0, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
        panic!("as it was told to");
    }
    if DIE_AT.load(Ordering::SeqCst) == point as u32 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

/// The errno with which this process fails to open the file again.
static CANNOT_OPEN: AtomicU32 = AtomicU32::new(0);

/// Fails if this process is to.
pub(super) fn open_again(path: &Path) -> crate::Result<()> {
    match CANNOT_OPEN.load(Ordering::SeqCst) {
        0 => Ok(()),
        errno => Err(Error::io("open", path, std::io::Error::from_raw_os_error(errno as i32))),
    }
}

/// The file that this process leaves the serving to others for, while it is there.
static ABSTAINS: OnceLock<PathBuf> = OnceLock::new();

/// Whether this process leaves the serving to others.
pub(super) fn abstains() -> bool {
    ABSTAINS.get().is_some_and(|file| file.exists())
}

/// While this file is there, the threads of this process that do calls do none.
static DAWDLES: OnceLock<PathBuf> = OnceLock::new();

/// Waits while calls are not to be done.
pub(super) fn dawdle(stop: &AtomicBool) {
    while DAWDLES.get().is_some_and(|file| file.exists()) && !stop.load(Ordering::SeqCst) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

pub(super) mod failures;

const ROLE: &str = "UNTORN_TEST_TOGETHER";
const FORGETS: &str = "UNTORN_TEST_FORGETS_LOCKS";

/// Whether this process keeps no changes of one page apart.
pub(super) fn forgets_locks() -> bool {
    static FORGETS_LOCKS: LazyLock<bool> = LazyLock::new(|| std::env::var_os(FORGETS).is_some());
    *FORGETS_LOCKS
}

/// A process that shares a file and does what it is told.
struct Puppet {
    child: Child,
    stdin: ChildStdin,
    lines: Receiver<String>,
}

impl Puppet {
    fn new(path: &Path, durability: Durability) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        Self::start(command.env(ROLE, format!("{durability} {}", path.display())))
    }

    fn start(command: &mut Command) -> Self {
        let mut child = command
            .args(["--exact", "shared::file::tests::a_puppet", "--nocapture", "--test-threads=1"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let (heard, lines) = channel();
        std::thread::spawn(move || {
            // The test harness says things of its own.
            for line in stdout.lines().map_while(Result::ok) {
                if let Some(at) = line.find("puppet: ") {
                    // Nobody listens any more when the puppet is dropped.
                    let _ = heard.send(line[at + 8..].trim_end().to_owned());
                }
            }
        });
        let mut puppet = Puppet { child, stdin, lines };
        assert_eq!(puppet.answer().as_deref(), Some("open"));
        puppet
    }

    fn send_to(&mut self, words: &str) {
        writeln!(self.stdin, "{words}").unwrap();
    }

    /// What it says to that, or nothing if it is dead.
    fn answer(&mut self) -> Option<String> {
        match self.lines.recv_timeout(HANGS) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("a process hangs"),
        }
    }

    fn tell(&mut self, words: &str) -> Option<String> {
        self.send_to(words);
        self.answer()
    }

    /// Waits for the end that it was to meet.
    fn ended(mut self) {
        assert_eq!(self.answer(), None);
        self.child.wait().unwrap();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn options(durability: Durability) -> Options {
    Options::new().shared(true).durability(durability)
}

/// Not a test of its own: what a puppet is.
#[test]
fn a_puppet() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let (durability, path) = role.split_once(' ').unwrap();
    let file = options(durability.parse().unwrap()).open(path).unwrap();
    println!("puppet: open");
    let mut file = Some(file);
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        if line == "leave" {
            file = None;
            println!("puppet: 0");
            continue;
        }
        let file = file.as_ref().unwrap();
        if line.starts_with("also ") {
            // In a thread of its own, which answers when it likes.
            let file = file.clone();
            std::thread::spawn(move || obey(&file, Path::new(""), &line[5..]));
        } else {
            obey(file, Path::new(path), &line);
        }
    }
}

/// Does what a line says, and says how that went.
fn obey(file: &AtomicFile, path: &Path, line: &str) {
    let (word, number) = line.split_once(' ').unwrap_or((line, "0"));
    let number: u64 = number.parse().unwrap();
    let watches = |for_what: &OnceLock<PathBuf>, file: PathBuf| {
        for_what.set(file).unwrap();
        Ok(0)
    };
    let notes = |at: &AtomicU32| {
        at.store(number as u32, Ordering::SeqCst);
        Ok(0)
    };
    let result = match word {
        // Across a page boundary, so that half of it could be seen.
        "write" => file.write_at(&number.to_le_bytes(), 4092).map(|()| 0),
        "read" => {
            let mut bytes = [0; 8];
            file.read_at(&mut bytes, 4092).map(|()| u64::from_le_bytes(bytes))
        }
        "sync" => file.sync(),
        "resize" => file.resize(number).map(|()| 0),
        "abstain" => watches(&ABSTAINS, path.with_extension("abstain")),
        "dawdle" => watches(&DAWDLES, path.with_extension("dawdle")),
        "stage" => watches(&STAGE, path.to_owned()),
        "panic-at" => notes(&PANIC_AT),
        "cannot-open" => notes(&CANNOT_OPEN),
        "die-at" => notes(&DIE_AT),
        _ => panic!("{line}"),
    };
    match result {
        Ok(number) => println!("puppet: {number}"),
        Err(Error::Poisoned { .. }) => println!("puppet: poisoned"),
        Err(error) => println!("puppet: {error}"),
    }
}

const ENGINES: [EngineKind; 3] = crate::testing::ENGINES;

/// A file and processes that share it, of which the first serves.
fn share<const COUNT: usize>(
    engine: EngineKind,
    durability: Durability,
) -> (tempfile::TempDir, PathBuf, [Puppet; COUNT]) {
    let dir = memory_dir().unwrap();
    let path = create(&dir, engine, durability);
    let puppets = [(); COUNT].map(|()| Puppet::new(&path, durability));
    (dir, path, puppets)
}

/// Puts files beside the shared one that processes heed as long as they are there.
fn raise(path: &Path, names: &[&str]) {
    names.iter().for_each(|name| drop(std::fs::File::create(path.with_extension(name)).unwrap()));
}

fn lower(path: &Path, names: &[&str]) {
    names.iter().for_each(|name| std::fs::remove_file(path.with_extension(name)).unwrap());
}

fn create(dir: &tempfile::TempDir, engine: EngineKind, durability: Durability) -> std::path::PathBuf {
    let path = dir.path().join("data");
    Options::new().engine(engine).durability(durability).create(&path, 3 * 4096).unwrap().close().unwrap();
    path
}

fn value(file: &AtomicFile) -> u64 {
    let mut bytes = [0; 8];
    file.read_at(&mut bytes, 4092).unwrap();
    u64::from_le_bytes(bytes)
}

#[test]
fn a_call_is_done_once_wherever_the_serving_processes_die() {
    for engine in ENGINES {
        for point in POINTS {
            let (_dir, path, [mut first, mut second, mut third]) = share(engine, Durability::PerWrite);
            assert_eq!(third.tell("write 1").as_deref(), Some("0"));
            assert_eq!(first.tell("read").as_deref(), Some("1"));
            // A point of the second kind is reached by the one that takes over, and then the third has to.
            let takes_over = matches!(point, Point::Lost | Point::Reopened | Point::Finished | Point::Owner);
            let die = format!("die-at {}", point as u32);
            if takes_over {
                raise(&path, &["abstain"]);
                third.tell("abstain").unwrap();
                second.tell(&die).unwrap();
                first.tell(&format!("die-at {}", Point::Written as u32)).unwrap();
            } else {
                first.tell(&die).unwrap();
            }
            third.send_to(if point == Point::Synced { "sync" } else { "write 2" });
            first.ended();
            if takes_over {
                second.ended();
                lower(&path, &["abstain"]);
            }
            let answer = third.answer();
            if point != Point::Synced {
                assert_eq!(answer.as_deref(), Some("0"), "{engine} {point:?}");
                assert_eq!(third.tell("read").as_deref(), Some("2"), "{engine} {point:?}");
            }
            // Whoever serves now, another process joins and sees the same.
            let file = options(Durability::PerWrite).open(&path).unwrap();
            assert_eq!(value(&file), if point == Point::Synced { 1 } else { 2 });
            file.write_at(&3_u64.to_le_bytes(), 4092).unwrap();
            assert_eq!(third.tell("read").as_deref(), Some("3"));
        }
    }
}

#[test]
fn a_lost_epoch_is_told_to_all_until_they_open_the_file_again() {
    for engine in ENGINES {
        for point in [Point::Written, Point::Synced, Point::Answering] {
            let (_dir, path, [mut first, mut second]) = share(engine, Durability::PerCommit);
            let mine = options(Durability::PerCommit).open(&path).unwrap();
            second.tell("write 1").unwrap();
            let synced = second.tell("sync").unwrap();
            assert!(synced.parse::<u64>().is_ok(), "{synced}");
            assert_eq!(value(&mine), 1);
            first.tell(&format!("die-at {}", point as u32)).unwrap();
            if point == Point::Synced {
                second.tell("write 2").unwrap();
                second.send_to("sync");
            } else {
                second.send_to("write 2");
            }
            first.ended();
            assert_eq!(second.answer().as_deref(), Some("poisoned"), "{engine} {point:?}");
            // All that took part, in every call, also those that wrote nothing.
            for call in ["read", "sync", "write 9", "resize 4096"] {
                assert_eq!(second.tell(call).as_deref(), Some("poisoned"), "{engine} {point:?} {call}");
            }
            let mut bytes = [0; 8];
            for _ in 0..2 {
                assert!(matches!(mine.read_at(&mut bytes, 0), Err(Error::Poisoned { .. })));
                assert!(matches!(mine.write_at(&bytes, 0), Err(Error::Poisoned { .. })));
                assert!(matches!(mine.sync(), Err(Error::Poisoned { .. })));
            }
            let also = options(Durability::PerCommit).open(&path).unwrap();
            assert!(matches!(also.sync(), Err(Error::Poisoned { .. })), "a handle of the same state");
            drop((mine, also));
            let file = options(Durability::PerCommit).open(&path).unwrap();
            let now = value(&file);
            // The commit was durable, and its answer is what was lost.
            assert_eq!(now, if point == Point::Synced { 2 } else { 1 }, "{engine} {point:?}");
            file.write_at(&4_u64.to_le_bytes(), 4092).unwrap();
            file.sync().unwrap();
            assert_eq!(second.tell("read").as_deref(), Some("poisoned"), "it has not opened the file again");
            drop(second);
            assert_eq!(value(&file), 4);
        }
    }
}

#[test]
fn an_epoch_with_nothing_in_it_is_not_lost() {
    for engine in ENGINES {
        let (_dir, path, [mut first, mut second, mut third]) = share(engine, Durability::PerCommit);
        second.tell("write 5").unwrap();
        third.tell("sync").unwrap();
        // Marked as begun, but not counted as a change yet: it is done by the next server.
        first.tell(&format!("die-at {}", Point::Begun as u32)).unwrap();
        assert_eq!(third.tell("write 5").as_deref(), Some("0"));
        first.ended();
        assert_eq!(second.tell("read").as_deref(), Some("5"));
        assert_eq!(third.tell("write 6").as_deref(), Some("0"));
        // One that was not serving takes what it wrote nowhere: it stays in the epoch.
        let file = options(Durability::PerCommit).open(&path).unwrap();
        assert_eq!(value(&file), 6);
        file.write_at(&7_u64.to_le_bytes(), 4092).unwrap();
        drop(file);
        assert_eq!(second.tell("read").as_deref(), Some("7"));
        assert!(second.tell("sync").unwrap().parse::<u64>().is_ok());
        assert_eq!(third.tell("read").as_deref(), Some("7"));
    }
}

#[test]
fn requests_begun_by_a_dead_server_are_finished_first() {
    for engine in ENGINES {
        let (_dir, path, [mut first, mut second, mut third]) = share(engine, Durability::PerWrite);
        raise(&path, &["abstain", "dawdle"]);
        third.tell("abstain").unwrap();
        second.tell("dawdle").unwrap();
        first.tell(&format!("die-at {}", Point::Written as u32)).unwrap();
        third.send_to("write 2");
        first.ended();
        // Not sooner, or its own call is one that it found on the RPC area, and is not done before the others.
        await_change("somebody serves", || path.with_extension("serving").exists());
        // Everybody could read the 2 by now. Were it written again after the 3, that would be lost.
        assert_eq!(second.tell("write 3").as_deref(), Some("0"));
        lower(&path, &["dawdle"]);
        assert_eq!(third.answer().as_deref(), Some("0"));
        assert_eq!(second.tell("read").as_deref(), Some("3"), "{engine}");
    }
}

/// A change that was made but not answered is made again by the next server. None of its pages may be changed in
/// between.
#[test]
fn changes_of_one_page_wait_for_the_answer_to_the_earlier_one() {
    for engine in ENGINES {
        for forgets in [false, true] {
            let dir = memory_dir().unwrap();
            let path = create(&dir, engine, Durability::PerWrite);
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.env(ROLE, format!("{} {}", Durability::PerWrite, path.display()));
            if forgets {
                command.env(FORGETS, "1");
            }
            let mut first = Puppet::start(&mut command);
            let [mut second, mut third] = [(); 2].map(|()| Puppet::new(&path, Durability::PerWrite));
            first.tell("stage").unwrap();
            // Slots are given in the order in which they come.
            raise(&path, &["answering-2"]);
            third.send_to("write 2");
            await_change("it answers", || path.with_extension("answering-2-reached").exists());
            second.send_to("write 3");
            // With the bug it is acknowledged now. Without, it waits, here or for the next server.
            if forgets {
                assert_eq!(second.answer().as_deref(), Some("0"));
            }
            drop(first);
            assert_eq!(third.answer().as_deref(), Some("0"));
            if !forgets {
                assert_eq!(second.answer().as_deref(), Some("0"));
            }
            let convicted = second.tell("read").as_deref() != Some("3");
            assert_eq!(convicted, forgets, "{engine}");
        }
    }
}

#[test]
fn a_channel_opened_between_two_servers_is_served() {
    for engine in ENGINES {
        let (_dir, path, [mut first, mut second, mut third]) = share(engine, Durability::PerWrite);
        raise(&path, &["abstain", "dawdle", "seated"]);
        third.tell("abstain").unwrap();
        third.tell("stage").unwrap();
        first.tell("dawdle").unwrap();
        second.tell("dawdle").unwrap();
        third.send_to("also write 2");
        let announced = path.with_extension("announced-reached");
        assert!(!announced.exists(), "it has its first channel since it joined");
        drop(first);
        // The new server has looked how many request slots it has, and it has no line yet over which to tell of
        // another one.
        await_change("it has joined", || path.with_extension("seated-reached").exists());
        third.send_to("also read");
        await_change("it is announced", || announced.exists());
        lower(&path, &["seated", "dawdle"]);
        let mut answers = [third.answer().unwrap(), third.answer().unwrap()];
        answers.sort();
        // The read may have come before the write.
        assert!(answers == ["0", "0"] || answers == ["0", "2"], "{engine}: {answers:?}");
        assert_eq!(second.tell("read").as_deref(), Some("2"), "{engine}");
    }
}
