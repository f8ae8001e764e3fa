//! Who holds a file: asked of the kernel, for all processes that descend from this one.
//!
//! Nothing is counted: a descriptor goes by `close`, `exec`, `exit` and SIGKILL, and comes by `dup`, `fork` and over
//! sockets.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{LazyLock, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::files::lock;
use crate::maps::areas;

/// Files by device and inode.
pub(crate) type Keys = HashSet<(u64, u64)>;

/// Those of `wanted` that some process below this one has open. A process that may not be looked into is taken to
/// hold all.
///
/// While this looks, a process may hand its descriptors to a child and close its own, or leave its children to this
/// one: so it goes on until there is no process that it has not looked into.
pub(crate) fn held(wanted: &Keys) -> Keys {
    let mut found = Keys::new();
    let mut seen: HashSet<u32> = HashSet::new();
    loop {
        let new: Vec<u32> = descendants().into_iter().filter(|process| seen.insert(*process)).collect();
        found.extend(held_by(&new, wanted));
        if new.is_empty() || found.len() == wanted.len() {
            return found;
        }
    }
}

/// Whether some process below this one has a file in memory mapped. One that may not be looked into is taken to have
/// it.
pub(crate) fn maps(inode: u64) -> bool {
    let mut seen: HashSet<u32> = HashSet::new();
    loop {
        let new: Vec<u32> = descendants().into_iter().filter(|process| seen.insert(*process)).collect();
        let mapped = |process: &u32| areas(*process).map_or(true, |areas| areas.iter().any(|area| area.inode == inode));
        match new.is_empty() {
            true => return false,
            false if new.iter().any(mapped) => return true,
            false => {}
        }
    }
}

fn held_by(processes: &[u32], wanted: &Keys) -> Keys {
    let mut found = Keys::new();
    for process in processes {
        let entries = match descriptors(*process) {
            Ok(entries) => entries,
            // It has ended meanwhile.
            Err(error) if is_gone(&error) => continue,
            // So it has if nobody has waited for it yet; only root may look into it then.
            Err(_) if fate(&threads(*process), 0) == ReplayOutcome::Ended => continue,
            Err(_) => return wanted.clone(),
        };
        for entry in entries {
            match rustix::fs::stat(&entry) {
                Ok(status) if wanted.contains(&(status.st_dev, status.st_ino)) => {
                    found.insert((status.st_dev, status.st_ino));
                }
                Ok(_) | Err(Errno::NOENT) => {}
                Err(Errno::ACCESS | Errno::PERM) => return wanted.clone(),
                Err(_) => {}
            }
        }
        if found.len() == wanted.len() {
            break;
        }
    }
    found
}

/// The descriptors of a process, as paths. Its threads share them; the first may have ended, and has none then.
fn descriptors(process: u32) -> io::Result<Vec<PathBuf>> {
    let of = |task: &Path| -> io::Result<Vec<PathBuf>> {
        Ok(fs::read_dir(task.join("fd"))?.flatten().map(|entry| entry.path()).collect())
    };
    let found = of(Path::new(&format!("/proc/{process}")))?;
    if !found.is_empty() {
        return Ok(found);
    }
    for task in fs::read_dir(format!("/proc/{process}/task"))?.flatten() {
        match of(&task.path()) {
            Ok(found) if found.is_empty() => {}
            Err(error) if is_gone(&error) => {}
            found => return found,
        }
    }
    Ok(found)
}

/// Looks without a pause at a process that is about to end.
const AWAKE: u32 = 10;
/// Between two later ones.
const MOMENT: Duration = Duration::from_millis(1);
/// A thread that was killed, and does not even begin to end, is waited for so many looks: the kernel may keep it for
/// as long as it likes.
const PATIENCE: u32 = 1000;

/// Waits until a process has ended that is about to: whoever dies has neither descriptors nor locks any more some
/// time before it can be told that it died. Whether it has ended; not if there is none, or it may not be looked at.
pub(crate) fn await_dying(process: u32) -> bool {
    let mut looks = 0;
    loop {
        match fate(&threads(process), looks) {
            ReplayOutcome::Lives => return false,
            ReplayOutcome::Ended => return true,
            ReplayOutcome::Dies if looks < AWAKE => thread::yield_now(),
            ReplayOutcome::Dies => thread::sleep(MOMENT),
        }
        looks += 1;
    }
}

/// Whether the first thread of a process is about to end, or has ended. Before all have begun to, nothing that they
/// share is let go of.
pub(crate) fn is_exiting(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    stat.is_ok_and(|stat| thread(&stat).is_some_and(|first| first.exiting))
}

/// What is to be seen of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Thread {
    /// It has ended; somebody has to take note of it.
    ended: bool,
    /// It does nothing any more but end.
    exiting: bool,
    /// It is about to be told that it has to.
    killed: bool,
    /// Threads that the process had then, with those that have ended.
    among: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum ReplayOutcome {
    Lives,
    Dies,
    Ended,
}

/// What becomes of a process with these threads, at a look after `looks` others.
fn fate(threads: &[Thread], looks: u32) -> ReplayOutcome {
    // The first thread stays until somebody has waited for the process, and any other one until who traces it has.
    // One that was made while the others were looked at may be none of these.
    let complete = threads.last().is_some_and(|last| last.among == threads.len());
    if complete && threads.iter().all(|thread| thread.ended) {
        return ReplayOutcome::Ended;
    }
    let dies = |thread: &Thread| thread.exiting || thread.killed && looks < PATIENCE;
    if !threads.is_empty() && threads.iter().all(dies) { ReplayOutcome::Dies } else { ReplayOutcome::Lives }
}

/// The threads of a process.
fn threads(process: u32) -> Vec<Thread> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let stats = tasks.flatten().filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
    stats.filter_map(|stat| thread(&stat)).collect()
}

/// A thread from its status: proc_pid_stat(5).
fn thread(stat: &str) -> Option<Thread> {
    /// `PF_EXITING`.
    const EXITING: u32 = 4;
    /// SIGKILL in a set of signals, which every thread is sent of a process that is to end.
    const KILL: u64 = 1 << 8;
    // The name, in parentheses, may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let flags: u32 = fields.nth(5)?.parse().ok()?;
    let among = fields.nth(10)?.parse().ok()?;
    let pending: u64 = fields.nth(10)?.parse().ok()?;
    Some(Thread { ended: state == "Z", exiting: flags & EXITING != 0, killed: pending & KILL != 0, among })
}

pub(crate) fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || Errno::from_io_error(error) == Some(Errno::SRCH)
}

/// How long a list of processes may be taken for complete. Within this nobody starts as many as there are numbers,
/// after which the last one could be the same again.
const FRESH: Duration = Duration::from_millis(3);

/// A list of the processes below this one.
struct Listed {
    at: Instant,
    /// The last number that the kernel had given, before they were looked for.
    last: u32,
    processes: Vec<u32>,
}

/// The last list, for whoever asks again in a moment: who opens one file after the other would else spend most of the
/// time on it.
static LISTED: Mutex<Option<Listed>> = Mutex::new(None);

/// All processes below this one; since one was listed a moment ago and nothing has started since, that list, of which
/// some may have ended.
pub(crate) fn descendants() -> Vec<u32> {
    let at = Instant::now();
    let Some(last) = last_number() else { return list() };
    let mut listed = lock(&LISTED);
    if let Some(known) = listed.as_ref().filter(|known| known.last == last && at - known.at < FRESH) {
        return known.processes.clone();
    }
    let processes = list();
    *listed = Some(Listed { at, last, processes: processes.clone() });
    processes
}

/// The number of the process or thread that was started last: proc_loadavg(5). `None` on a kernel that does not tell.
fn last_number() -> Option<u32> {
    static TELLS: LazyLock<bool> = LazyLock::new(|| {
        let changes = |_| {
            let before = read_last_number();
            thread::spawn(|| ()).join().is_ok() && before.is_some() && read_last_number() != before
        };
        // Something that emulates a kernel, or this file, may say the same for seconds.
        (0..4).all(changes)
    });
    read_last_number().filter(|_| *TELLS)
}

fn read_last_number() -> Option<u32> {
    // Open once: it is read twice for each file that is opened again.
    static LOAD: LazyLock<Option<File>> = LazyLock::new(|| File::open("/proc/loadavg").ok());
    let mut load = [0; 128];
    let count = LOAD.as_ref()?.read_at(&mut load, 0).ok()?;
    str::from_utf8(load.get(..count)?).ok()?.split_whitespace().nth(4)?.parse().ok()
}

/// All processes below this one, looked for. Orphans count, since the launcher is their reaper.
fn list() -> Vec<u32> {
    let mut all = vec![process::id()];
    let mut at = 0;
    while let Some(&parent) = all.get(at) {
        match children(parent) {
            Some(children) => all.extend(children),
            None => return by_parents(),
        }
        at += 1;
    }
    all.split_off(1)
}

/// The children of a process, by each of its threads; `None` on a kernel that does not list them.
fn children(parent: u32) -> Option<Vec<u32>> {
    let Ok(tasks) = fs::read_dir(format!("/proc/{parent}/task")) else { return Some(Vec::new()) };
    let mut found = Vec::new();
    for task in tasks.flatten() {
        match fs::read_to_string(task.path().join("children")) {
            Ok(list) => found.extend(list.split_whitespace().filter_map(|word| word.parse::<u32>().ok())),
            Err(_) if task.path().exists() => return None,
            Err(_) => {}
        }
    }
    Some(found)
}

/// The same from the parents that all processes name.
fn by_parents() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let mut pairs = Vec::new();
    for entry in entries.flatten() {
        let Some(process) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(status) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // The name, in parentheses, may hold anything.
        let parent = status.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse::<u32>().ok());
        pairs.extend(parent.map(|parent| (process, parent)));
    }
    let mut all = vec![process::id()];
    let mut at = 0;
    while let Some(&above) = all.get(at) {
        all.extend(pairs.iter().filter(|(_, parent)| *parent == above).map(|(process, _)| *process));
        at += 1;
    }
    all.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn living_dying_and_ended_processes_are_told_apart() {
        let stat = |state, flags: u32, pending: u32| {
            let some = "0 ".repeat(10);
            format!("7 (a) R 1 4) {state} 1 7 7 0 -1 {flags} {some}3 {some}{pending} 0 0")
        };
        let seen = |ended, exiting, killed| Some(Thread { ended, exiting, killed, among: 3 });
        assert_eq!(thread(&stat("R", 0x40_0000, 0x200)), seen(false, false, false));
        assert_eq!(thread(&stat("D", 0x40_0000, 0x100)), seen(false, false, true));
        assert_eq!(thread(&stat("D", 0x40_0004, 0)), seen(false, true, false));
        assert_eq!(thread(&stat("Z", 0x40_000c, 0)), seen(true, true, false));
        assert!(!is_exiting(process::id()) && !await_dying(process::id()) && !await_dying(u32::MAX));
        let mut child = Command::new("true").spawn().unwrap();
        let start = Instant::now();
        while !is_exiting(child.id()) {
            assert!(start.elapsed() < Duration::from_secs(60), "it never ends");
            thread::yield_now();
        }
        assert!(await_dying(child.id()), "nobody has waited for it, but it has ended");
        child.wait().unwrap();
    }

    #[test]
    fn the_fate_of_a_process_follows_from_all_its_threads() {
        let [lives, killed, exiting, ended] =
            [(false, false, false), (false, false, true), (false, true, false), (true, true, false)]
                .map(|(ended, exiting, killed)| Thread { ended, exiting, killed, among: 2 });
        let alone = Thread { among: 1, ..ended };
        for (threads, expected) in [
            (&[][..], ReplayOutcome::Lives),
            (&[lives], ReplayOutcome::Lives),
            // The first one ended by itself, and the others go on.
            (&[ended, lives], ReplayOutcome::Lives),
            (&[exiting, lives], ReplayOutcome::Lives),
            (&[exiting], ReplayOutcome::Dies),
            (&[ended, exiting], ReplayOutcome::Dies),
            (&[killed, ended], ReplayOutcome::Dies),
            (&[alone], ReplayOutcome::Ended),
            // Another one was made meanwhile.
            (&[ended], ReplayOutcome::Dies),
            // Who traces the second one takes no note of its end.
            (&[ended, ended], ReplayOutcome::Ended),
        ] {
            assert_eq!(fate(threads, 0), expected, "{threads:?}");
        }
        assert_eq!(fate(&[killed, exiting], PATIENCE), ReplayOutcome::Lives);
        assert_eq!(fate(&[exiting], PATIENCE), ReplayOutcome::Dies);
    }

    #[test]
    fn a_child_holds_what_it_inherited_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("f")).unwrap();
        let status = file.metadata().unwrap();
        let wanted = Keys::from([(status.dev(), status.ino())]);
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::from(file)).spawn().unwrap();
        assert!(descendants().contains(&child.id()) && by_parents().contains(&child.id()));
        // However shortly after another look it was started.
        let started = |_| {
            descendants();
            let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
            let seen = descendants().contains(&child.id());
            drop(child.stdin.take());
            child.wait().unwrap();
            seen
        };
        assert!((0..100).all(started));
        assert_eq!(held(&wanted), wanted);
        drop(child.stdin.take());
        child.wait().unwrap();
        // Other tests start processes: what one of them inherited before our copy was closed, it has until it is
        // another program.
        let start = Instant::now();
        while !held(&wanted).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(60), "somebody holds it for ever");
            thread::sleep(Duration::from_millis(1));
        }
    }
}
