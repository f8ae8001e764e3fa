//! A server's claim on a mountpoint: a lock on the directory below the mount.
//!
//! A server outlives its mount, because it still has to bring its log to the files. The claim lets `unmount` wait for
//! that end, and lets the next server on the same directory find the log free. The kernel drops the claim of a server
//! that is killed.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use rustix::io::{Errno, retry_on_intr};

use super::table;

/// A claim. It ends when it is dropped.
#[derive(Debug)]
pub struct Claim(OwnedFd);

impl Claim {
    /// Claims a directory on which nothing is mounted yet. If an earlier server has it, this waits for its end at most
    /// so long. `None` if the claim was not to be had, or where the file system has no locks: a claim is a courtesy,
    /// and nothing that is promised depends on it.
    pub fn take(mountpoint: &Path, patience: Duration) -> Option<Self> {
        let directory = open(mountpoint)?;
        let start = Instant::now();
        loop {
            match retry_on_intr(|| flock(&directory, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => return Some(Claim(directory)),
                Err(Errno::WOULDBLOCK) if start.elapsed() < patience => thread::sleep(Duration::from_millis(5)),
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // A process that another thread has just forked has the open directory, too, until it runs its program, and
        // the lock would stay with it. This cannot fail: the descriptor is valid.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// Waits until the server of a mount that was removed from this directory has ended, or the next one has mounted there.
pub fn wait_for_server(mountpoint: &Path) {
    let Ok(path) = table::resolve(mountpoint) else { return };
    let Some(directory) = open(&path) else { return };
    // Any other answer is that of a file system without locks.
    while flock(&directory, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
        // The claim is that of the next server, which may live long.
        if table::at(&path).ok().flatten().is_some_and(|mount| mount.is_ours()) {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    // For the next server; as for a claim, closing the directory is not enough.
    let _ = flock(&directory, FlockOperation::Unlock);
}

fn open(mountpoint: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, mountpoint, flags, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_waited_for_and_ends_with_its_holder() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::take(dir.path(), Duration::ZERO).unwrap();
        assert!(Claim::take(dir.path(), Duration::ZERO).is_none());
        let waiting = thread::spawn({
            let path = dir.path().to_owned();
            move || wait_for_server(&path)
        });
        assert!(!waiting.is_finished());
        drop(claim);
        waiting.join().unwrap();
        assert!(Claim::take(dir.path(), Duration::ZERO).is_some());
    }

    #[test]
    fn a_claim_ends_although_another_process_inherited_it() {
        let dir = tempfile::tempdir().unwrap();
        let claim = Claim::take(dir.path(), Duration::ZERO).unwrap();
        let inherited = claim.0.try_clone().unwrap();
        assert!(Claim::take(dir.path(), Duration::ZERO).is_none());
        drop(claim);
        assert!(Claim::take(dir.path(), Duration::ZERO).is_some());
        drop(inherited);
    }
}
