//! Which process this is, told apart from the one it was forked from.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{FirstUse, ZeroedArray};

/// A word that the kernel wipes in a forked child; `None` if there is no memory for it.
static WORD: FirstUse<Option<ZeroedArray<AtomicU64>>> = FirstUse::new();

/// Numbers given out, in this process and in those it descends from.
static LAST: AtomicU64 = AtomicU64::new(0);

/// A number that is this process's own: a forked child has another than its parent, and no call of the system is needed
/// to tell. Never 0. Where the kernel does not wipe memory on fork, a child keeps its parent's.
pub fn incarnation() -> u64 {
    let word = WORD.get(|| ZeroedArray::reserve_private(1).ok());
    let Some(word) = word.as_ref().map(|word| &word[0]) else { return u64::MAX };
    match word.load(Ordering::Relaxed) {
        0 => {
            // The child has a copy of the count, so its number is above every number of its ancestors.
            let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
            word.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|earlier| earlier, |_| number)
        }
        number => number,
    }
}

/// How many page faults the threads of this process have had so far.
#[allow(unsafe_code)]
pub(crate) fn page_faults() -> u64 {
    /// It does not fail for a process that asks about itself. If it did, each time would differ from the one before.
    static FAILURES: AtomicU64 = AtomicU64::new(0);
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a place for one `rusage`, all of whose bytes are set.
    let told = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: zeros are numbers, whatever the kernel did.
    let usage = unsafe { usage.assume_init() };
    if told != 0 {
        return FAILURES.fetch_add(1, Ordering::Relaxed);
    }
    (usage.ru_minflt as u64).wrapping_add(usage.ru_majflt as u64)
}

/// For tests: runs `body` in a forked child. Returns the code that it returns, 101 if it panics, or `None` if it had to
/// be killed after a minute.
///
/// # Panics
/// If no process can be forked, or be waited for.
#[allow(unsafe_code)]
pub fn in_forked_child(body: impl FnOnce() -> i32) -> Option<i32> {
    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
    // SAFETY: the C library makes its allocator usable in the child of a process with threads; beyond allocating, the
    // child uses only what `body` says, and it leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(101);
        // SAFETY: ends the child.
        unsafe { libc::_exit(code) }
    }
    assert!(child > 0, "fork: {}", std::io::Error::last_os_error());
    let child = Pid::from_raw(child);
    let since = std::time::Instant::now();
    loop {
        match waitpid(child, WaitOptions::NOHANG).unwrap() {
            Some((_, status)) => return status.exit_status(),
            None if since.elapsed() > std::time::Duration::from_secs(60) => {
                kill_process(child.unwrap(), Signal::KILL).unwrap();
                waitpid(child, WaitOptions::empty()).unwrap();
                return None;
            }
            None => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_incarnation() {
        let mine = incarnation();
        assert_ne!(mine, 0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(incarnation(), mine));
            }
        });
    }
}
