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

use tempfile::TempDir;

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

/// Which child of which test this process is, and where. The test is told by its path in the crate.
pub(crate) fn child_of(test: &str) -> Option<(PathBuf, usize)> {
    let word = std::env::var(CHILD).ok()?;
    let (name, rest) = word.split_once(' ')?;
    let (id, dir) = rest.split_once(' ')?;
    (name == test).then(|| (PathBuf::from(dir), id.parse().unwrap()))
}

/// A directory in memory where it can be: most of these tests are about processes, and a disk makes everybody wait.
pub(crate) fn memory_dir() -> std::io::Result<TempDir> {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())
}

/// The directory of a test, and the words that its processes share beside the shared memory: what they say to each
/// other.
pub(crate) struct Stage {
    pub(crate) dir: PathBuf,
    notes: SharedPages,
}

// What is said.
pub(crate) const READY: usize = 8;
pub(crate) const GO: usize = 9;
pub(crate) const DONE: usize = 10;
pub(crate) const STOP: usize = 11;
pub(crate) const CUT_OFF: usize = 12;
pub(crate) const DEAD: usize = 13;
pub(crate) const JOINED: usize = 14;
pub(crate) const HEIR: usize = 15;

impl Stage {
    fn new(dir: &Path) -> Self {
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(dir.join("notes")).unwrap();
        file.set_len(PAGE as u64).unwrap();
        Stage { notes: SharedPages::map(file.into(), PAGE).unwrap(), dir: dir.to_owned() }
    }

    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        &self.notes.words(0, PAGE / 8)[index]
    }

    pub(crate) fn say(&self, index: usize) {
        self.word(index).store(1, Ordering::SeqCst);
    }

    /// Waits until somebody says it.
    pub(crate) fn hear(&self, index: usize) {
        await_change("somebody says it", || self.word(index).load(Ordering::SeqCst) != 0);
    }
}

impl Stage {
    /// What a child does that serves until it is told to stop, or killed: it commits a 1 in a word of the first page.
    fn serve(&self, pages: usize, index: usize) {
        let copy = open(&self.dir, pages);
        copy.words(0, index + 1)[index].store(1, Ordering::SeqCst);
        copy.commit().unwrap();
        self.say(READY);
        self.hear(STOP);
    }
}

/// The parent of a test's processes, which end with it however it ends.
pub(crate) struct Parent {
    test: String,
    stage: Stage,
    /// The bug of the children that are started next.
    bug: Option<Bug>,
    children: Vec<Child>,
    _dir: TempDir,
}

impl std::ops::Deref for Parent {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        &self.stage
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Parent {
    /// What starts child `id`.
    pub(crate) fn command(&self, id: usize) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", &self.test, "--nocapture", "--test-threads=1"]);
        command.env(CHILD, format!("{} {id} {}", self.test, self.dir.display()));
        command.envs(self.bug.map(|bug| (BUG, format!("{bug:?}"))));
        command.stdout(std::process::Stdio::null());
        command
    }

    /// Starts child `id`, and waits until it says something. Children are told apart by the order of their starts.
    pub(crate) fn start(&mut self, id: usize, says: usize) {
        self.start_unheard(id);
        self.hear(says);
    }

    /// Starts child `id`, of which nothing is heard.
    pub(crate) fn start_unheard(&mut self, id: usize) {
        let child = self.command(id).spawn().unwrap();
        self.children.push(child);
    }

    /// Starts a child again that has ended.
    fn restart(&mut self, id: usize) {
        self.children[id] = self.command(id).spawn().unwrap();
    }

    /// Kills a child, which ends when it next gets a CPU.
    pub(crate) fn kill_unawaited(&mut self, child: usize) {
        self.children[child].kill().unwrap();
    }

    pub(crate) fn kill(&mut self, child: usize) {
        self.kill_unawaited(child);
        self.children[child].wait().unwrap();
    }

    pub(crate) fn has_ended(&mut self, child: usize) -> bool {
        self.children[child].try_wait().unwrap().is_some()
    }

    /// Waits for the good end of a child.
    pub(crate) fn succeeds(&mut self, child: usize) {
        assert!(self.children[child].wait().unwrap().success(), "child {child} failed");
    }

    /// Waits for the end of a child that kills itself.
    pub(crate) fn is_killed(&mut self, child: usize) {
        let ended = self.children[child].wait().unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended), Some(9), "not killed");
    }

    /// Tells the children to stop, and waits for the good end of one.
    pub(crate) fn stop(&mut self, child: usize) {
        self.say(STOP);
        self.succeeds(child);
    }
}

/// Runs a test of several processes, for each case in a directory of its own: `child` in those that the parent starts,
/// with their numbers.
pub(crate) fn with_processes_for<T>(
    test: &str,
    dir: fn() -> std::io::Result<TempDir>,
    cases: impl IntoIterator<Item = T>,
    child: impl FnOnce(&Stage, usize),
    parent: impl Fn(&mut Parent, T),
) {
    if unavailable() {
        return;
    }
    if let Some((dir, id)) = child_of(test) {
        return child(&Stage::new(&dir), id);
    }
    for case in cases {
        let dir = dir().unwrap();
        let stage = Stage::new(dir.path());
        let (test, children) = (test.to_owned(), Vec::new());
        parent(&mut Parent { test, stage, bug: None, children, _dir: dir }, case);
    }
}

/// The same of one case.
pub(crate) fn with_processes(
    test: &str,
    dir: fn() -> std::io::Result<TempDir>,
    child: impl FnOnce(&Stage, usize),
    parent: impl Fn(&mut Parent),
) {
    with_processes_for(test, dir, [()], child, |stage, ()| parent(stage));
}

/// The path of the test that this stands in, without the crate: what the harness calls it.
macro_rules! this_test {
    () => {{
        fn here() {}
        let path = std::any::type_name_of_val(&here);
        path.split_once("::").and_then(|(_, path)| path.strip_suffix("::here")).unwrap()
    }};
}
pub(crate) use this_test;

/// How long anybody may stand still: UNTORN_PATIENCE in seconds. A second is what is promised, and what
/// `cargo xtask cuts` asks for on a machine that has time for it; otherwise it is only to be seen that all goes on.
pub(crate) fn patience() -> Duration {
    let asked = std::env::var("UNTORN_PATIENCE").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(asked.unwrap_or(120))
}

/// What is noted of a backing that was in a session when its process ended.
pub(crate) fn block(identity: [u64; 2], session: u64) -> super::Before {
    let control = Arc::new(super::control::Control::create(PAGE as u64, 1).unwrap());
    control.set_backing(identity);
    control.set_sessions(session, session);
    super::Before::new(&control)
}

/// Shared memory that only this process takes part in, where there can be any, in a directory of its own.
fn alone(pages: usize) -> Option<(TempDir, SharedMemory)> {
    let dir = (!unavailable()).then(|| tempfile::tempdir().unwrap())?;
    let copy = open(dir.path(), pages);
    Some((dir, copy))
}

/// The first word of a page.
fn word(copy: &SharedMemory, page: usize) -> &AtomicU64 {
    &copy.words(page * PAGE, 1)[0]
}

fn set(copy: &SharedMemory, page: usize, value: u64) {
    word(copy, page).store(value, Ordering::SeqCst);
}

fn get(copy: &SharedMemory, page: usize) -> u64 {
    word(copy, page).load(Ordering::SeqCst)
}

fn open(dir: &Path, pages: usize) -> SharedMemory {
    open_with(dir, Arc::new(backing::Journal::opener(dir, pages)))
}

fn open_with(dir: &Path, opener: Arc<dyn Opener>) -> SharedMemory {
    SharedMemory::open(&dir.join("data"), dir, "meeting", opener, 1 << 30).unwrap()
}

/// The call fails because nothing more is promised, and says why.
pub(crate) fn is_poisoned<T>(result: crate::Result<T>, why: &str) {
    let error = result.err().expect("a call succeeded of which nothing is promised");
    assert!(matches!(&error, crate::Error::Poisoned { cause, .. } if cause.contains(why)), "{error}");
}

/// The call fails, and says why.
pub(crate) fn fails<T>(result: crate::Result<T>, why: &str) {
    let error = result.err().expect("a call succeeded that cannot be served");
    assert!(error.to_string().contains(why), "{error}");
}

/// Many times what anything here takes on a machine that has much else to do.
pub(crate) const HANGS: Duration = Duration::from_secs(300);

/// Waits for something that comes about unless somebody hangs.
pub(crate) fn await_change(what: &str, come: impl Fn() -> bool) {
    let since = Instant::now();
    while !come() {
        assert!(since.elapsed() < HANGS, "waited in vain until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// An opener that opens only when the test says so.
pub(crate) struct Held<O>(pub(crate) O, pub(crate) Arc<AtomicBool>);

impl<O: Opener> Opener for Held<O> {
    fn open(&self, before: Option<&super::Before>) -> crate::Result<Box<dyn super::Backing>> {
        await_change("the test says so", || self.1.load(Ordering::SeqCst));
        self.0.open(before)
    }
    fn part(&self) -> String {
        self.0.part()
    }
}

/// Whether processes can share plain stores here; says why not.
pub(crate) fn unavailable() -> bool {
    crate::sys::userfault::probe().inspect_err(|why| untorn_testing::skipped!("{why}")).is_err()
}
