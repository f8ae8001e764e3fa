//! Descriptors that this process is writing to by itself.
//!
//! Such a write is several system calls with one number, and a program may give the number to another file at any
//! time: a thread that replaces a log by `dup2` while others write to it does no wrong, for each write of the
//! kernel's goes to one of the two. So whoever takes a number away waits for the writes to it that are under way;
//! those that begin meanwhile are for the server, which is handed the description.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU32, Ordering};

use crate::{client, raw};

/// Numbers share a place with few others.
const PLACES: usize = 1024;
/// In the low bits the writes under way, above them who waits to take a number away.
const CHANGE: u32 = 1 << 20;

static BUSY: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

fn place(fd: c_int) -> &'static AtomicU32 {
    &BUSY[fd.unsigned_abs() as usize % PLACES]
}

/// A write that is under way. All signals are blocked: a handler that took the number away would wait for itself.
pub(crate) struct Busy(&'static AtomicU32);

/// Begins a write to a descriptor; `None` if the number is just being taken away.
#[inline]
pub(crate) fn begin(fd: c_int) -> Option<Busy> {
    let busy = Busy(place(fd));
    let before = busy.0.fetch_add(1, Ordering::SeqCst);
    (before < CHANGE).then_some(busy)
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        if self.0.fetch_sub(1, Ordering::SeqCst) > CHANGE {
            raw::wake(self.0);
        }
    }
}

/// A number that is being taken away.
struct Change(&'static AtomicU32);

impl Drop for Change {
    fn drop(&mut self) {
        self.0.fetch_sub(CHANGE, Ordering::SeqCst);
    }
}

/// Makes a call that gives a descriptor's number to another file, or to none.
pub(crate) fn while_nobody_writes<T>(fd: c_int, call: impl FnOnce() -> T) -> T {
    // A child of `vfork` has descriptors of its own, and its parent's memory.
    if fd < 0 || !client::may_append() {
        return call();
    }
    let change = Change(place(fd));
    let mut now = change.0.fetch_add(CHANGE, Ordering::SeqCst) + CHANGE;
    while now & (CHANGE - 1) != 0 {
        // For a moment at most: what it saw may have changed already.
        raw::wait(change.0, now);
        now = change.0.load(Ordering::SeqCst);
    }
    call()
}

/// In a child of `fork`, whose other threads are gone.
pub(crate) fn forget_all() {
    BUSY.iter().for_each(|place| place.store(0, Ordering::Relaxed));
}
