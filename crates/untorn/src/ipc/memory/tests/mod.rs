//! Several processes at one working copy. Each test is the parent of processes that run the same test with a word in
//! the environment that makes them children.

mod api;
mod backing;
pub(crate) mod costs;
mod crash_points;
mod cuts;
mod resource_limits;
pub(crate) mod rig;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use super::{Opener, PAGE, SharedMemory};
use crate::ipc::message::Kind;
use crate::sys::shared::SharedPages;

/// Bugs that the tests must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bug {
    /// A cut protects nothing.
    NoProtection,
    /// A cut lets stores to its pages through before they are copied.
    EarlyGate,
    /// No bug of ours: the program has a child that inherits the sockets of the serving thread and outlives it.
    TakeoverCheck,
}

/// This process leaves the serving to others.
pub(super) static ABSTAINS: AtomicBool = AtomicBool::new(false);

/// Where a process can be made to kill itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Point {
    /// A store has passed the gate.
    Entered = 1,
    /// Its page is dirty, and protected yet.
    Dirty,
    /// Its page is writable.
    Opened,
    /// A page is filled, and nobody knows.
    Filled,
    /// A cut has closed the gate.
    GateClosed,
    /// It has protected its pages.
    Protected,
    /// It has copied one of them.
    Copying,
    /// The backing is about to commit.
    Committing,
    /// The backing has committed.
    Committed,
    /// One of the pages is rolled back.
    RollingBack,
}

pub(crate) static DIE_AT: AtomicU32 = AtomicU32::new(0);

/// How often a process here is about to exchange its line.
pub(super) static EXCHANGES: AtomicU32 = AtomicU32::new(0);

/// A request of this kind that a thread is about to send waits for the word, once it has said that it does.
pub(super) type Halt = (Kind, Sender<()>, Receiver<()>);

thread_local! {
    /// Where this thread is to halt.
    pub(super) static HALT: RefCell<Option<Halt>> = const { RefCell::new(None) };
}

/// Waits, if this thread is to halt here.
pub(super) fn halt(kind: Kind) {
    let halt = HALT.with_borrow_mut(|halt| halt.take_if(|halt| halt.0 == kind));
    if let Some((_, halted, go)) = halt {
        halted.send(()).unwrap();
        go.recv().unwrap();
    }
}

/// Ends this process if it is to end here. Safe in a signal handler.
pub(super) fn reach(point: Point) {
    if DIE_AT.load(Ordering::SeqCst) == point as u32 {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

const BUG: &str = "UNTORN_TEST_BUG";
const CHILD: &str = "UNTORN_TEST_CHILD";

impl Bug {
    /// The bug of this process.
    pub(super) fn planted() -> Option<Self> {
        let name = std::env::var(BUG).ok()?;
        [Bug::NoProtection, Bug::EarlyGate, Bug::TakeoverCheck].into_iter().find(|bug| format!("{bug:?}") == name)
    }
}

/// Which child of which test this process is, and where.
pub(crate) fn child_of(test: &str) -> Option<(PathBuf, usize)> {
    let word = std::env::var(CHILD).ok()?;
    let (name, rest) = word.split_once(' ')?;
    let (id, dir) = rest.split_once(' ')?;
    (name == test).then(|| (PathBuf::from(dir), id.parse().unwrap()))
}

/// Starts child `id` of a test of the module `module`.
fn spawn(module: &str, test: &str, dir: &Path, id: usize, bug: Option<Bug>) -> Child {
    command(module, test, dir, id, bug).spawn().unwrap()
}

fn command(module: &str, test: &str, dir: &Path, id: usize, bug: Option<Bug>) -> Command {
    command_in(&format!("ipc::memory::tests::{module}"), test, dir, id, bug)
}

/// The same of a test of another module of the crate.
pub(crate) fn command_in(module: &str, test: &str, dir: &Path, id: usize, bug: Option<Bug>) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("{module}::{test}");
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, format!("{test} {id} {}", dir.display()));
    if let Some(bug) = bug {
        command.env(BUG, format!("{bug:?}"));
    }
    command.stdout(std::process::Stdio::null());
    command
}

/// How long anybody may stand still: UNTORN_PATIENCE in seconds. A second is what is promised, and what
/// `cargo xtask cuts` asks for on a machine that has time for it; otherwise it is only to be seen that all goes on.
pub(crate) fn patience() -> Duration {
    let asked = std::env::var("UNTORN_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(120))
}

/// Words that the processes of a test share beside the shared memory.
pub(crate) fn notes(dir: &Path) -> SharedPages {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(dir.join("notes")).unwrap();
    file.set_len(PAGE as u64).unwrap();
    SharedPages::map(file.into(), PAGE).unwrap()
}

pub(crate) fn words(notes: &SharedPages) -> &[AtomicU64] {
    notes.words(0, PAGE / 8)
}

/// What is noted of a backing that was in a session when its process ended.
pub(crate) fn block(identity: [u64; 2], session: u64) -> super::Before {
    let control = Arc::new(super::control::Control::create(PAGE as u64, 1).unwrap());
    control.set_backing(identity);
    control.set_sessions(session, session);
    super::Before::new(&control)
}

fn open(dir: &Path, pages: usize) -> SharedMemory {
    open_with(dir, Arc::new(backing::Journal::opener(dir, pages)))
}

fn open_with(dir: &Path, opener: Arc<dyn Opener>) -> SharedMemory {
    SharedMemory::open(&dir.join("data"), dir, "meeting", opener, 1 << 30).unwrap()
}

/// The children of a test, which end with it however it ends.
pub(crate) struct Children(pub(crate) Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Waits until a word of the notes is no zero.
pub(crate) fn await_word(notes: &SharedPages, index: usize) {
    let since = Instant::now();
    while words(notes)[index].load(Ordering::SeqCst) == 0 {
        assert!(since.elapsed() < Duration::from_secs(120), "nobody stored word {index}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a flag of this process is set.
pub(crate) fn await_flag(flag: &AtomicBool) {
    let since = Instant::now();
    while !flag.load(Ordering::SeqCst) {
        assert!(since.elapsed() < Duration::from_secs(120), "the test never said so");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether processes can share plain stores here; says why not.
pub(crate) fn unavailable() -> bool {
    crate::sys::userfault::probe().inspect_err(|why| untorn_testing::skipped!("{why}")).is_err()
}
