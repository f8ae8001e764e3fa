//! Several processes at one working copy. Each test is the parent of processes that run the same test with a word in the
//! environment that makes them children.

mod backing;
mod cuts;
mod faces;

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::{Opener, PAGE, WorkingCopy};
use crate::sys::shared::SharedPages;

/// Bugs that the tests must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// A cut protects nothing.
    NoProtection,
    /// A cut lets stores to its pages through before they are copied.
    EarlyGate,
}

const BUG: &str = "UNTORN_TEST_BUG";
const CHILD: &str = "UNTORN_TEST_CHILD";

impl Bug {
    /// The bug of this process.
    pub(super) fn planted() -> Option<Self> {
        let name = std::env::var(BUG).ok()?;
        [Bug::NoProtection, Bug::EarlyGate].into_iter().find(|bug| format!("{bug:?}") == name)
    }
}

/// Which child of which test this process is, and where.
fn child_of(test: &str) -> Option<(PathBuf, usize)> {
    let word = std::env::var(CHILD).ok()?;
    let (name, rest) = word.split_once(' ')?;
    let (id, dir) = rest.split_once(' ')?;
    (name == test).then(|| (PathBuf::from(dir), id.parse().unwrap()))
}

/// Starts child `id` of a test of the module `module`.
fn spawn(module: &str, test: &str, dir: &Path, id: usize, bug: Option<Bug>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    let name = format!("sharing::working::tests::{module}::{test}");
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]);
    command.env(CHILD, format!("{test} {id} {}", dir.display()));
    if let Some(bug) = bug {
        command.env(BUG, format!("{bug:?}"));
    }
    command.stdout(std::process::Stdio::null()).spawn().unwrap()
}

/// Words that the processes of a test share beside the working copy.
fn notes(dir: &Path) -> SharedPages {
    let mut options = std::fs::OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).open(dir.join("notes")).unwrap();
    file.set_len(PAGE as u64).unwrap();
    SharedPages::map(file.into(), PAGE).unwrap()
}

fn words(notes: &SharedPages) -> &[AtomicU64] {
    notes.words(0, PAGE / 8)
}

fn open(dir: &Path, pages: usize) -> WorkingCopy {
    let opener: Arc<dyn Opener> = Arc::new(backing::Journal::opener(dir, pages));
    WorkingCopy::open(dir, "meeting", opener, 1 << 30).unwrap()
}

/// Whether processes can share plain stores here; says why not.
fn unavailable() -> bool {
    crate::sys::userfault::probe().inspect_err(|why| eprintln!("skipped: {why}")).is_err()
}
