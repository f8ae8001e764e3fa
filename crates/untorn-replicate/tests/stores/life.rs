//! The life of a replica in a store.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use untorn::{AtomicFile, Options};
use untorn_replicate::{Error, Replica, ReplicaOptions, RestoreOptions, look, restore, store};
use untorn_testing::again;

/// How long shipping may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// The file that a run of a test replicates until it is killed.
const FILE: &str = "UNTORN_TEST_STORE_FILE";

/// A file with a commit log, whose states are known.
pub(crate) struct Ledger {
    pub(crate) path: PathBuf,
    pub(crate) file: AtomicFile,
    /// The state of each commit, from 1.
    pub(crate) states: Vec<Vec<u8>>,
}

impl Ledger {
    pub(crate) fn create(dir: &Path, name: &str) -> Self {
        let path = dir.join(name);
        let file = Options::new().commit_log(1 << 20).create(&path, 256 << 10).unwrap();
        Ledger { path, file, states: Vec::new() }
    }

    /// Makes another commit.
    pub(crate) fn commit(&mut self) -> u64 {
        let number = self.states.len() as u64 + 1;
        let text = format!("commit {number} ").repeat(1000);
        self.file.write_at(text.as_bytes(), number * 7919 % 200_000).unwrap();
        assert_eq!(self.file.sync().unwrap(), number);
        let mut state = vec![0; self.file.len() as usize];
        self.file.read_at(&mut state, 0).unwrap();
        self.states.push(state);
        number
    }
}

pub(crate) fn options() -> ReplicaOptions {
    ReplicaOptions::new().interval(Duration::from_millis(20))
}

/// A process that replicates.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Starts it, and waits until it has shipped what there was.
    fn start(test: &str, file: &Path) -> Self {
        let mut child = again(test).env(FILE, file).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let running = Running(child);
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with("replicating")), "it has ended");
        running
    }
}

/// Waits until the replica has this commit.
pub(crate) fn await_commit(url: &str, commit: u64) {
    let until = Instant::now() + PATIENCE;
    while look(url).unwrap().commit != commit {
        assert!(Instant::now() < until, "commit {commit} does not come");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Restores the last state, and compares it.
fn restore_latest(url: &str, dir: &Path, states: &[Vec<u8>]) {
    let copy = dir.join("copy");
    let made = restore(url, &copy, &RestoreOptions::new().replace(true)).unwrap();
    assert_eq!((made.commit, made.is_latest), (states.len() as u64, true));
    assert!(std::fs::read(&copy).unwrap() == states[states.len() - 1], "the last commit differs");
}

/// Restores each state, and compares it.
pub(crate) fn restore_all(url: &str, dir: &Path, states: &[Vec<u8>]) {
    let copy = dir.join("copy");
    for (index, state) in states.iter().enumerate() {
        let commit = index as u64 + 1;
        let made = restore(url, &copy, &RestoreOptions::new().replace(true).at_commit(commit)).unwrap();
        assert!(made.commit == commit && std::fs::read(&copy).unwrap() == *state, "commit {commit} differs");
    }
    restore_latest(url, dir, states);
}

/// Replicates, is killed, goes on, is taken over, and is restored at each commit.
pub(crate) fn whole(test: &str, url: &str) {
    if let Some(file) = std::env::var_os(FILE) {
        let replica = Replica::attach_path(file, url, options()).unwrap();
        replica.sync_replicated().unwrap();
        println!("\nreplicating");
        std::thread::sleep(PATIENCE);
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    store::probe(&*store::open(url).unwrap()).unwrap();
    assert!(matches!(look(url), Err(Error::NotFound { .. })));

    let mut old = Ledger::create(dir, "old");
    old.commit();
    let running = Running::start(test, &old.path);
    for _ in 0..4 {
        old.commit();
    }
    await_commit(url, 5);
    old.commit();
    drop(running);
    old.commit();

    let replica = Replica::attach(&old.file, url, options()).unwrap();
    let last = old.commit();
    let status = replica.detach().unwrap();
    assert_eq!((status.epoch, status.acknowledged), (2, last), "{status:?}");
    assert!(status.requests.puts > 4 && status.requests.lists == 0, "{status:?}");
    // Each of them is restored at the end, because some servers take long for a request.
    restore_latest(url, dir, &old.states);

    // Another file takes over while the first one's writer runs.
    let stale = Replica::attach(&old.file, url, options()).unwrap();
    let path = dir.join("new");
    restore(url, &path, &RestoreOptions::new()).unwrap();
    let file = Options::new().commit_log(1 << 20).open(&path).unwrap();
    let mut new = Ledger { path, file, states: old.states.clone() };
    let successor = Replica::attach(&new.file, url, options()).unwrap();
    old.commit();
    let fenced = stale.sync_replicated();
    assert!(matches!(fenced, Err(Error::Fenced { epoch: 3, .. })), "{fenced:?}");
    drop(stale);
    let refused = Replica::attach(&old.file, url, options());
    assert!(matches!(refused, Err(Error::NotDescendant { .. })), "{refused:?}");
    new.commit();
    let last = new.commit();
    assert_eq!(successor.sync_replicated().unwrap(), last);
    let last = new.commit();
    assert_eq!(successor.hand_over().unwrap().acknowledged, last);
    restore_all(url, dir, &new.states);
    let found = look(url).unwrap();
    assert!(found.is_released, "{found:?}");
    assert!(found.epoch == 4 && found.objects > 4 && found.bytes > 1000, "{found:?}");
}
