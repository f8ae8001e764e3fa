//! Locks on ranges of files (fcntl), taken in the source, so that programs inside and outside of the mount meet.
//!
//! # Invariants
//!
//! 1. Each owner of locks on a file has a description of it in the source, and its locks belong to that description
//!    (`F_OFD_SETLK`). So the kernel of the source splits, merges and compares them, and closing the description
//!    releases them all.
//! 2. The description goes when the owner closes the file (FLUSH), or with the last handle that the owner locked by
//!    (RELEASE). A handle without FLUSH belongs to a file that had no locks when it was opened.
//! 3. A server thread never waits for a lock. One further thread tries again for all that wait: at once after a lock
//!    was released here, and every few milliseconds for locks from outside.
//! 4. A waiting process with a signal to handle is answered EINTR. fuser does not pass INTERRUPT on, so the thread
//!    looks at the process's pending signals.
//!
//! 5. With *local* locks, the kernel of the mount keeps them all, and no request comes. The first FLUSH is answered
//!    ENOSYS, and then the kernel sends none.
//!
//! fuser does not say which of FUSE's lock requests come from flock(2). Those stay with the kernel of the mount.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fuser::ReplyEmpty;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::nodes::{Key, Node};
use super::requests::answer;
use super::{Server, lock};

/// Between two tries to get a lock that a program outside has: at first, and later.
const FIRST: Duration = Duration::from_millis(1);
const LATER: Duration = Duration::from_millis(20);

/// A lock that somebody wants. The end is the last byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) kind: i32,
}

impl Range {
    fn to_kernel(self) -> libc::flock {
        let most = i64::MAX as u64;
        let len = if self.end >= most { 0 } else { (self.end - self.start.min(self.end)).saturating_add(1) };
        libc::flock {
            l_type: self.kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: self.start.min(most) as libc::off_t,
            l_len: len as libc::off_t,
            l_pid: 0,
        }
    }

    pub(super) fn is_release(self) -> bool {
        self.kind == i32::from(libc::F_UNLCK as i16)
    }
}

fn set(file: &OwnedFd, range: Range) -> Result<(), Errno> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&range.to_kernel())).map(drop).map_err(|errno| {
        // The two mean the same.
        match Errno::from_raw_os_error(errno as i32) {
            Errno::ACCESS => Errno::AGAIN,
            errno => errno,
        }
    })
}

/// The description of one owner, and the handles that it locked by.
struct Owner {
    file: Arc<OwnedFd>,
    handles: HashSet<u64>,
}

/// A process that waits for a lock.
struct Waiting {
    key: Key,
    owner: u64,
    range: Range,
    thread: u32,
    file: Arc<OwnedFd>,
    reply: ReplyEmpty,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    /// A lock was released since the thread looked.
    released: bool,
    /// The server ends.
    over: bool,
}

/// All locks of programs in the mount.
#[derive(Default)]
pub(super) struct Locks {
    owners: Mutex<HashMap<(Key, u64), Owner>>,
    /// Files that a program locked: their handles get FLUSH.
    locked: Mutex<HashSet<Key>>,
    queue: Mutex<Queue>,
    news: Condvar,
    is_local: bool,
    /// Requests about locks, and requests of closes.
    requests: [AtomicU64; 2],
}

impl Locks {
    /// `is_local`: the kernel of the mount keeps all locks. The thread ends with [`finish`](Locks::finish).
    ///
    /// # Errors
    /// Those of starting a thread.
    pub(super) fn start(is_local: bool) -> io::Result<(Arc<Self>, JoinHandle<()>)> {
        let locks = Arc::new(Locks { is_local, ..Locks::default() });
        let own = locks.clone();
        let thread = thread::Builder::new().name("untorn-locks".to_owned()).spawn(move || own.try_again_and_again())?;
        Ok((locks, thread))
    }

    /// Answers everybody who waits, and ends the thread.
    pub(super) fn finish(&self) {
        let mut queue = lock(&self.queue);
        queue.over = true;
        self.news.notify_one();
    }

    /// Whether the kernel of the mount keeps all locks.
    pub(super) fn are_local(&self) -> bool {
        self.is_local
    }

    /// A request about a lock came.
    pub(super) fn count_request(&self) {
        self.requests[0].fetch_add(1, Ordering::Relaxed);
    }

    /// Requests about locks, and requests of closes, so far.
    pub(super) fn requests(&self) -> (u64, u64) {
        let [locks, closes] = &self.requests;
        (locks.load(Ordering::Relaxed), closes.load(Ordering::Relaxed))
    }

    /// Whether a program ever locked a file.
    pub(super) fn has_seen(&self, key: Key) -> bool {
        lock(&self.locked).contains(&key)
    }

    fn released(&self) {
        let mut queue = lock(&self.queue);
        if !queue.waiting.is_empty() {
            queue.released = true;
            self.news.notify_one();
        }
    }

    /// An owner closed a file.
    pub(super) fn closed(&self, key: Key, owner: u64) {
        self.requests[1].fetch_add(1, Ordering::Relaxed);
        let gone = lock(&self.owners).remove(&(key, owner));
        if gone.is_some() {
            drop(gone);
            self.released();
        }
    }

    /// A handle is gone.
    pub(super) fn handle_closed(&self, key: Key, handle: u64) {
        if !self.has_seen(key) {
            return;
        }
        let mut gone = Vec::new();
        lock(&self.owners).retain(|(file, _), owner| {
            let was = *file == key && owner.handles.remove(&handle);
            let keep = !(was && owner.handles.is_empty());
            if !keep {
                gone.push(owner.file.clone());
            }
            keep
        });
        if !gone.is_empty() {
            drop(gone);
            self.released();
        }
    }

    fn try_again_and_again(&self) {
        let mut pause = FIRST;
        loop {
            let queue = lock(&self.queue);
            let queue = self.news.wait_while(queue, |queue| queue.waiting.is_empty() && !queue.over);
            let queue = queue.unwrap_or_else(PoisonError::into_inner);
            let waited = self.news.wait_timeout_while(queue, pause, |queue| !queue.released && !queue.over);
            let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            if queue.over {
                for waiting in queue.waiting.drain(..) {
                    answer(waiting.reply, Err(Errno::INTR));
                }
                return;
            }
            pause = if queue.released { FIRST } else { (pause * 2).min(LATER) };
            queue.released = false;
            let all = std::mem::take(&mut queue.waiting);
            drop(queue);
            let left: Vec<_> = all.into_iter().filter_map(|waiting| self.try_again(waiting)).collect();
            let mut queue = lock(&self.queue);
            if queue.waiting.is_empty() && left.is_empty() {
                pause = FIRST;
            }
            queue.waiting.extend(left);
        }
    }

    /// Tries to get a lock for one who waits, who is given back if that has to wait longer.
    fn try_again(&self, waiting: Waiting) -> Option<Waiting> {
        // A program that closed the file meanwhile waits for nothing.
        if !lock(&self.owners).contains_key(&(waiting.key, waiting.owner)) {
            answer(waiting.reply, Err(Errno::INTR));
            return None;
        }
        match set(&waiting.file, waiting.range) {
            Err(Errno::AGAIN) if is_interrupted(waiting.thread) => answer(waiting.reply, Err(Errno::INTR)),
            Err(Errno::AGAIN) => return Some(waiting),
            done => answer(waiting.reply, done),
        }
        None
    }
}

/// Whether a thread has a signal to handle, or is gone.
fn is_interrupted(thread: u32) -> bool {
    thread != 0 && fs::read_to_string(format!("/proc/{thread}/status")).map_or(true, |status| has_signal(&status))
}

fn has_signal(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or_default()
    };
    (mask("SigPnd:") | mask("ShdPnd:")) & !mask("SigBlk:") & !mask("SigIgn:") != 0
}

impl Server {
    fn description_for_locks(&self, node: &Node) -> Result<OwnedFd, Errno> {
        let other = |flags| move |_| self.descriptors.reopen(node, flags);
        self.descriptors.reopen(node, OFlags::RDWR).or_else(other(OFlags::RDONLY)).or_else(other(OFlags::WRONLY))
    }

    /// The description of an owner, made if it has none.
    fn owner(&self, node: &Node, owner: u64, handle: u64) -> Result<Arc<OwnedFd>, Errno> {
        let mut owners = lock(&self.locks.owners);
        if let Some(known) = owners.get_mut(&(node.key, owner)) {
            known.handles.insert(handle);
            return Ok(known.file.clone());
        }
        let file = Arc::new(self.description_for_locks(node)?);
        owners.insert((node.key, owner), Owner { file: file.clone(), handles: HashSet::from([handle]) });
        lock(&self.locks.locked).insert(node.key);
        Ok(file)
    }

    /// Takes or releases a lock, and answers, now or later.
    pub(super) fn set_lock(
        &self,
        node: &Node,
        (owner, handle): (u64, u64),
        range: Range,
        waits: Option<u32>,
        reply: ReplyEmpty,
    ) {
        if range.is_release() {
            let known = lock(&self.locks.owners).get(&(node.key, owner)).map(|owner| owner.file.clone());
            let done = known.map_or(Ok(()), |file| set(&file, range));
            self.locks.released();
            return answer(reply, done);
        }
        let file = match self.owner(node, owner, handle) {
            Ok(file) => file,
            Err(errno) => return answer(reply, Err(errno)),
        };
        match (set(&file, range), waits) {
            (Err(Errno::AGAIN), Some(thread)) => {
                let mut queue = lock(&self.locks.queue);
                queue.waiting.push(Waiting { key: node.key, owner, range, thread, file, reply });
                self.locks.news.notify_one();
            }
            (done, _) => answer(reply, done),
        }
    }

    /// The lock that is in the way of one.
    pub(super) fn get_lock(&self, node: &Node, owner: u64, range: Range) -> Result<(Range, u32), Errno> {
        let known = lock(&self.locks.owners).get(&(node.key, owner)).map(|owner| owner.file.clone());
        let file = match known {
            Some(file) => file,
            None => Arc::new(self.description_for_locks(node)?),
        };
        let mut found = range.to_kernel();
        fcntl(&*file, FcntlArg::F_OFD_GETLK(&mut found)).map_err(|errno| Errno::from_raw_os_error(errno as i32))?;
        let start = found.l_start as u64;
        let end = if found.l_len == 0 { i64::MAX as u64 } else { start + found.l_len as u64 - 1 };
        Ok((Range { start, end, kind: found.l_type.into() }, found.l_pid.max(0) as u32))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_interrupts_unless_it_is_blocked_or_ignored() {
        let status = |pending: u64, blocked: u64, ignored: u64| {
            format!(
                "SigPnd:\t{pending:016x}\nShdPnd:\t0000000000000000\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:x}\n"
            )
        };
        assert!(has_signal(&status(2, 0, 0)) && !has_signal(&status(0, 0, 0)));
        assert!(!has_signal(&status(2, 2, 0)) && !has_signal(&status(2, 0, 2)));
        assert!(has_signal("ShdPnd:\t0000000000000100\n"));
    }

    #[test]
    fn a_range_to_the_end_of_the_file_has_no_length() {
        let to_end = Range { start: 3, end: i64::MAX as u64, kind: 1 }.to_kernel();
        assert_eq!((to_end.l_start, to_end.l_len), (3, 0));
        let one = Range { start: 3, end: 3, kind: 0 }.to_kernel();
        assert_eq!((one.l_start, one.l_len), (3, 1));
    }
}
