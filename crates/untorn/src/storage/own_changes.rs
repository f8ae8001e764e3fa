//! Whether only this process changes a file.
//!
//! The kernel sets a file's modification time at each write. This process knows when it made its own last change, so a
//! later time is that of another program.
//!
//! # Invariants
//! 1. All handles of one file share one record: the inode has one time.
//! 2. A change is counted before it begins. When it has ended, the time after it is recorded, and then its end is
//!    counted. The kernel takes the file's time from the same clock during the change.
//! 3. A look at the file counts only if no change was under way during it. Then the record is not older than the last
//!    change that the look has seen. The length that this process takes the file to have is loaded during the look too,
//!    or a change could end between the two; that load acquires the count of the change that set the length.
//! 4. A record begins with the lock of the sidecar. Another process of untorn may change the file until then, also
//!    after this one has opened it.
//! 5. The first change after a commit has looked, and each one after a [pause](PAUSE), looks before it begins, because
//!    it takes the trace of an earlier change away.
//!
//! Not noticed are a change within one tick of the kernel's clock after an own one (up to 10 ms), one between two own
//! changes of one epoch without a pause, one by a program that sets the time back, and stores through a mapping to a
//! page that was dirty before. The times of a file system on another machine come from another clock and are not
//! compared.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::Stamp;
use crate::sys::{self, PerProcess};

/// How long no own change was made before one looks first, in nanoseconds: a program that writes without a pause does
/// not pay for it.
const PAUSE: u64 = 10_000_000;

/// How often a look is repeated during which a change was under way.
const ATTEMPTS: u32 = 3;

/// The records of files that are open for writing.
static FILES: PerProcess<Mutex<BTreeMap<Key, Weak<Record>>>> = PerProcess::new();

/// Device and inode.
type Key = (u64, u64);

#[derive(Debug, Default)]
struct Record {
    begun: AtomicU64,
    ended: AtomicU64,
    /// A time that is not before the last own change.
    latest: AtomicU64,
    /// A change has looked since a commit did.
    has_looked: AtomicBool,
    /// Another program has changed the file.
    disturbed: AtomicBool,
}

/// The own changes of one handle's file.
#[derive(Debug)]
pub(super) struct OwnChanges {
    key: Key,
    record: Arc<Record>,
}

impl OwnChanges {
    /// Those of an open file; `None` if its times cannot be compared with this machine's clock.
    pub(super) fn of(file: BorrowedFd<'_>) -> Option<Self> {
        if !sys::file::has_local_times(file) {
            return None;
        }
        let found = rustix::fs::fstat(file).ok()?;
        let key = (found.st_dev, found.st_ino);
        let mut files = FILES.lock();
        let record = files.get(&key).and_then(Weak::upgrade).unwrap_or_else(|| {
            let latest = sys::file::since_1970(found.st_mtime, found.st_mtime_nsec as u64);
            Arc::new(Record { latest: latest.into(), ..Record::default() })
        });
        files.insert(key, Arc::downgrade(&record));
        Some(OwnChanges { key, record })
    }

    /// Takes the file as it is. The caller has just got the lock that keeps other processes of untorn away, and no
    /// other handle of this process changes the file.
    pub(super) fn begin(&self, found: Stamp) {
        self.record.latest.fetch_max(found.modified, Ordering::AcqRel);
        self.record.disturbed.store(false, Ordering::Release);
    }

    /// Makes a change. `stamp` looks at the file.
    pub(super) fn change<T>(&self, stamp: impl Fn() -> Option<Stamp>, work: impl FnOnce() -> T) -> T {
        let record = &*self.record;
        let after_pause = sys::now() > record.latest.load(Ordering::Acquire).saturating_add(PAUSE);
        if !record.has_looked.swap(true, Ordering::AcqRel) || after_pause {
            self.look(None, &stamp);
        }
        record.begun.fetch_add(1, Ordering::AcqRel);
        let done = work();
        record.latest.fetch_max(sys::now(), Ordering::AcqRel);
        record.ended.fetch_add(1, Ordering::AcqRel);
        done
    }

    /// Whether another program has changed the file, which should have the length that `len` tells: for a commit.
    pub(super) fn is_disturbed(&self, len: impl Fn() -> u64, stamp: impl Fn() -> Option<Stamp>) -> bool {
        self.look(Some(&len), &stamp);
        self.record.has_looked.store(false, Ordering::Release);
        self.record.disturbed.load(Ordering::Acquire)
    }

    fn look(&self, len: Option<&dyn Fn() -> u64>, stamp: &impl Fn() -> Option<Stamp>) {
        let record = &*self.record;
        for _ in 0..ATTEMPTS {
            let (ended, begun) = (record.ended.load(Ordering::Acquire), record.begun.load(Ordering::Acquire));
            // What cannot be looked at is told of by the next call that needs it.
            let Some(found) = stamp() else { return };
            let has_other_len = len.is_some_and(|len| len() != found.size);
            if ended == begun && record.begun.load(Ordering::Acquire) == begun {
                if has_other_len || found.modified > record.latest.load(Ordering::Acquire) {
                    record.disturbed.store(true, Ordering::Release);
                }
                return;
            }
        }
    }
}

impl Drop for OwnChanges {
    fn drop(&mut self) {
        let mut files = FILES.lock();
        // With the lock, so that nobody is given the record meanwhile. A forked child has records of its own.
        let is_known = files.get(&self.key).is_some_and(|known| ptr::eq(known.as_ptr(), Arc::as_ptr(&self.record)));
        if is_known && Arc::strong_count(&self.record) == 1 {
            files.remove(&self.key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{File, FileTimes};
    use std::os::fd::AsFd;
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn stamp(file: &File) -> Option<Stamp> {
        let found = file.metadata().ok()?;
        let modified = found.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos();
        Some(Stamp { size: found.len(), modified: modified as u64 })
    }

    #[test]
    fn own_changes_of_all_handles_disturb_nobody_and_others_do() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        let Some(own) = OwnChanges::of(file.as_fd()) else {
            untorn_testing::skip!("temporary files are on a file system of another machine");
        };
        let other = OwnChanges::of(file.as_fd()).unwrap();
        for n in 0..100 {
            own.change(|| stamp(&file), || file.write_all_at(b"own", n).unwrap());
            other.change(|| stamp(&file), || file.set_len(1000 + n).unwrap());
            assert!(!own.is_disturbed(|| 1000 + n, || stamp(&file)));
        }
        assert!(own.is_disturbed(|| 999, || stamp(&file)), "another length");
        drop((own, other));
        // Nobody had it meanwhile: what was written before it is opened disturbs nobody.
        let own = OwnChanges::of(file.as_fd()).unwrap();
        assert!(!own.is_disturbed(|| 1099, || stamp(&file)));
        let later = std::time::SystemTime::now() + Duration::from_secs(1);
        file.set_times(FileTimes::new().set_modified(later)).unwrap();
        assert!(own.is_disturbed(|| 1099, || stamp(&file)));
        file.set_times(FileTimes::new().set_modified(UNIX_EPOCH)).unwrap();
        assert!(own.is_disturbed(|| 1099, || stamp(&file)), "it was forgotten");
    }

    #[test]
    fn a_change_looks_first_after_a_pause() {
        let file = tempfile::tempfile().unwrap();
        let Some(own) = OwnChanges::of(file.as_fd()) else {
            untorn_testing::skip!("temporary files are on a file system of another machine");
        };
        let now = sys::now();
        own.record.latest.store(now - 2 * PAUSE, Ordering::Relaxed);
        let theirs = Stamp { size: 0, modified: now - PAUSE };
        own.change(|| Some(theirs), || ());
        assert!(own.is_disturbed(|| 0, || Some(Stamp { size: 0, modified: 1 })), "the own change hides the other one");
    }

    #[test]
    fn what_was_changed_before_the_lock_was_taken_disturbs_nobody() {
        let file = tempfile::tempfile().unwrap();
        let Some(own) = OwnChanges::of(file.as_fd()) else {
            untorn_testing::skip!("temporary files are on a file system of another machine");
        };
        let theirs = || Some(Stamp { size: 0, modified: sys::now() + 100 * PAUSE });
        assert!(own.is_disturbed(|| 0, theirs));
        let (before, after) = (theirs().unwrap(), Stamp { size: 0, modified: sys::now() + 200 * PAUSE });
        own.begin(before);
        assert!(!own.is_disturbed(|| 0, || Some(before)));
        own.change(|| Some(before), || ());
        assert!(!own.is_disturbed(|| 0, || Some(before)) && own.is_disturbed(|| 0, || Some(after)));
    }

    #[test]
    fn the_first_change_after_a_commit_looks_first() {
        let file = tempfile::tempfile().unwrap();
        let Some(own) = OwnChanges::of(file.as_fd()) else {
            untorn_testing::skip!("temporary files are on a file system of another machine");
        };
        let later = || Some(Stamp { size: 0, modified: sys::now() + 100 * PAUSE });
        let hidden = || Some(Stamp { size: 0, modified: 1 });
        own.change(hidden, || ());
        assert!(!own.is_disturbed(|| 0, hidden));
        own.change(later, || ());
        assert!(own.is_disturbed(|| 0, hidden), "the own change hides the other one");
    }

    #[test]
    fn a_length_told_before_a_change_ended_is_not_mistaken() {
        let file = tempfile::tempfile().unwrap();
        let Some(own) = OwnChanges::of(file.as_fd()) else {
            untorn_testing::skip!("temporary files are on a file system of another machine");
        };
        let (resized, told) = (AtomicU64::new(0), AtomicBool::new(false));
        // As by another thread, which resizes the file when it was asked for its length, and before the answer is used.
        let len = || {
            let len = resized.load(Ordering::Relaxed);
            if !told.swap(true, Ordering::Relaxed) {
                own.change(|| stamp(&file), || resized.store(len + 1, Ordering::Relaxed));
            }
            len
        };
        let found = || Some(Stamp { size: resized.load(Ordering::Relaxed), modified: 1 });
        assert!(!own.is_disturbed(len, found));
        assert!(told.into_inner() && own.is_disturbed(|| 9, found), "it was not looked at");
    }

    #[test]
    fn changes_under_way_in_other_threads_are_not_mistaken() {
        use std::os::unix::fs::FileExt;
        let file = tempfile::tempfile().unwrap();
        let Some(own) = OwnChanges::of(file.as_fd()) else {
            untorn_testing::skip!("temporary files are on a file system of another machine");
        };
        file.set_len(4096).unwrap();
        own.change(|| None, || ());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (own, file, done) = (&own, &file, &done);
                scope.spawn(move || {
                    while !done.load(Ordering::Acquire) {
                        own.change(|| stamp(file), || file.write_all_at(&[thread; 64], 64).unwrap());
                    }
                });
            }
            for _ in 0..untorn_testing::cases(2000, 200_000) {
                assert!(!own.is_disturbed(|| 4096, || stamp(&file)));
            }
            done.store(true, Ordering::Release);
        });
    }
}
