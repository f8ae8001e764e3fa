//! The identity behind a request. A server of root creates files as the caller, so that owner, group and mode come out
//! as on the source itself.
//!
//! # Invariants
//!
//! 1. The kernel checks permissions before it sends a request (`default_permissions`), so the caller's rights here only
//!    decide what a new file looks like. A group that the cache does not know yet can refuse, never allow.
//! 2. The identity of a thread is root's again before the request is answered. Real and saved user id stay root's, so
//!    the caller can send the thread no signal.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Gid, Uid};
use rustix::io::Errno;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::{Server, lock};

/// How long the groups of a process are taken to be the same.
const LIFETIME: Duration = Duration::from_secs(1);
/// Processes whose groups are remembered.
const MOST: usize = 1024;

/// The process that a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) pid: u32,
}

struct Known {
    since: Instant,
    uid: u32,
    gid: u32,
    groups: Arc<[Gid]>,
}

/// Supplementary groups of processes, by process.
#[derive(Default)]
pub(super) struct Groups {
    /// The server's own.
    own: Vec<Gid>,
    known: Mutex<HashMap<u32, Known>>,
}

impl Groups {
    pub(super) fn new() -> Result<Self, Errno> {
        Ok(Groups { own: rustix::process::getgroups()?, known: Mutex::default() })
    }

    /// The groups of a caller, and whether they were just read.
    fn of(&self, caller: Caller, anew: bool) -> (Arc<[Gid]>, bool) {
        let now = Instant::now();
        let mut known = lock(&self.known);
        if let Some(found) = known.get(&caller.pid).filter(|_| !anew)
            && (found.uid, found.gid) == (caller.uid, caller.gid)
            && now.duration_since(found.since) < LIFETIME
        {
            return (found.groups.clone(), false);
        }
        let groups: Arc<[Gid]> = read(caller.pid).into();
        if known.len() >= MOST {
            known.clear();
        }
        known.insert(caller.pid, Known { since: now, uid: caller.uid, gid: caller.gid, groups: groups.clone() });
        (groups, true)
    }
}

/// The supplementary groups of a process; none if it is gone, or of another process namespace.
fn read(process: u32) -> Vec<Gid> {
    if process == 0 {
        return Vec::new();
    }
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    groups_in(&status)
}

fn groups_in(status: &str) -> Vec<Gid> {
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    line.split_whitespace().filter_map(|group| group.parse().ok()).map(Gid::from_raw_unchecked).collect()
}

impl Caller {
    pub(super) fn is_root(self) -> bool {
        self.uid == 0
    }

    /// Does what creates a file, or whatever else depends on whose request it is.
    pub(super) fn act<T>(self, server: &Server, act: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        if !server.as_root || (self.uid, self.gid) == (0, 0) || self.uid == u32::MAX || self.gid == u32::MAX {
            return act();
        }
        let (groups, new) = server.groups.of(self, false);
        match self.act_with(server, &groups, &act) {
            Err(Errno::ACCESS | Errno::PERM) if !new => {
                let (groups, _) = server.groups.of(self, true);
                self.act_with(server, &groups, &act)
            }
            outcome => outcome,
        }
    }

    fn act_with<T>(self, server: &Server, groups: &[Gid], act: &impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
        let identity = Identity::take(self, groups, &server.groups.own)?;
        let outcome = act();
        drop(identity);
        outcome
    }
}

/// The thread acts as a caller for as long as this lives.
struct Identity<'a> {
    own: &'a [Gid],
}

impl<'a> Identity<'a> {
    fn take(caller: Caller, groups: &[Gid], own: &'a [Gid]) -> Result<Self, Errno> {
        set_thread_groups(groups)?;
        // From here on the drop undoes what was done.
        let identity = Identity { own };
        set_thread_res_gid(None, Gid::from_raw_unchecked(caller.gid), None)?;
        // The last, because the rights to do the others go with it.
        set_thread_res_uid(None, Uid::from_raw_unchecked(caller.uid), None)?;
        Ok(identity)
    }
}

impl Drop for Identity<'_> {
    fn drop(&mut self) {
        let back = set_thread_res_uid(None, Uid::ROOT, None)
            .and_then(|()| set_thread_res_gid(None, Gid::ROOT, None))
            .and_then(|()| set_thread_groups(self.own));
        if let Err(errno) = back {
            tracing::error!(%errno, "a thread cannot become root again; its requests may fail");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_read_from_the_status_of_a_process() {
        let found = groups_in("Name:\tx\nGroups:\t4 24 1000 \nNStgid:\t1\n");
        assert_eq!(found.iter().map(|group| group.as_raw()).collect::<Vec<_>>(), [4, 24, 1000]);
        assert!(groups_in("Groups:\t \n").is_empty() && groups_in("").is_empty());
        assert!(read(0).is_empty());
    }
}
