//! Robust locks that processes share: the kernel releases a lock when its holder dies, and reports that
//! (`pthread_mutexattr_setrobust(3)`).
//!
//! # Safety
//!
//! A lock is words of a ledger that no other code accesses, created once, in memory that outlives every user and does
//! not move. The C library's functions take the address of such a lock, whatever process maps it.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Words that a lock takes.
pub(crate) const WORDS: usize = 8;
const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= WORDS * 8 && align_of::<libc::pthread_mutex_t>() <= 8);

// SAFETY: the C library's, with these signatures.
unsafe extern "C" {
    // Some versions of the bindings lack it for some C libraries.
    fn pthread_mutexattr_setrobust(attributes: *mut libc::pthread_mutexattr_t, robust: libc::c_int) -> libc::c_int;
    fn pthread_mutex_consistent(lock: *mut libc::pthread_mutex_t) -> libc::c_int;
}

const ROBUST: libc::c_int = 1;
const OWNER_DIED: u32 = 0x4000_0000;
const THREAD: u32 = 0x3fff_ffff;

fn lock_of(words: &[AtomicU64]) -> *mut libc::pthread_mutex_t {
    words.as_ptr().cast_mut().cast()
}

fn checked(errno: libc::c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

/// Makes a lock.
pub(crate) fn make(words: &[AtomicU64]) -> io::Result<()> {
    let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: room for attributes, which this makes.
    checked(unsafe { libc::pthread_mutexattr_init(attributes) })?;
    // SAFETY: attributes, made above.
    let shared = unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) };
    // SAFETY: as above.
    let robust = unsafe { pthread_mutexattr_setrobust(attributes, ROBUST) };
    // SAFETY: room for a lock (asserted above), in memory that nothing else looks at.
    let made = unsafe { libc::pthread_mutex_init(lock_of(words), attributes) };
    // SAFETY: attributes, made above, and used no more.
    unsafe { libc::pthread_mutexattr_destroy(attributes) };
    checked(shared).and(checked(robust)).and(checked(made))
}

/// Takes a lock for as long as the calling thread lives.
pub(crate) fn keep(words: &[AtomicU64]) -> io::Result<()> {
    // SAFETY: a lock that was made.
    match unsafe { libc::pthread_mutex_trylock(lock_of(words)) } {
        0 => Ok(()),
        errno => {
            if errno == libc::EOWNERDEAD {
                // The lock is not made consistent, so no thread ever gets it again.
                unlock(words);
            }
            checked(errno)
        }
    }
}

/// Whether the thread that keeps a lock lives.
#[inline]
pub(crate) fn is_kept(words: &[AtomicU64]) -> bool {
    // The kernel's word of a robust lock, which is the first of the C library's: the thread that has it, and whether
    // that has died (`Documentation/locking/robust-futex-ABI.rst`). Looked at and not tried, so that it may be done
    // anywhere.
    let word = half(&words[0]).load(Ordering::Acquire);
    word & OWNER_DIED == 0 && word & THREAD != 0
}

/// Whether the thread that had a lock died with it, and no thread has taken it since.
#[inline]
pub(crate) fn has_died(words: &[AtomicU64]) -> bool {
    // As above.
    half(&words[0]).load(Ordering::Acquire) & OWNER_DIED != 0
}

/// Half a word that is never looked at as a whole.
pub(crate) fn half(word: &AtomicU64) -> &AtomicU32 {
    // SAFETY: aligned and valid for as long, atomic, and of this size for every thread that looks at it.
    unsafe { AtomicU32::from_ptr(word.as_ptr().cast()) }
}

/// Waits for a lock. If its last holder died with it, `died` runs before any other thread can get it. False for one
/// that is of no more use.
#[inline]
pub(crate) fn lock(words: &[AtomicU64], died: impl FnOnce()) -> bool {
    // SAFETY: a lock that was made.
    let outcome = unsafe { libc::pthread_mutex_lock(lock_of(words)) };
    locked(words, outcome, died)
}

/// The same without waiting: false too if another thread has it.
#[inline]
pub(crate) fn try_lock(words: &[AtomicU64], died: impl FnOnce()) -> bool {
    // SAFETY: as above.
    let outcome = unsafe { libc::pthread_mutex_trylock(lock_of(words)) };
    locked(words, outcome, died)
}

fn locked(words: &[AtomicU64], outcome: libc::c_int, died: impl FnOnce()) -> bool {
    match outcome {
        0 => true,
        libc::EOWNERDEAD => {
            died();
            // SAFETY: locked just now, by this thread.
            unsafe { pthread_mutex_consistent(lock_of(words)) };
            true
        }
        _ => false,
    }
}

/// Gives up a lock that this thread took.
#[inline]
pub(crate) fn unlock(words: &[AtomicU64]) {
    // SAFETY: a lock that was made. If it is another thread's the C library says so, and does nothing.
    unsafe { libc::pthread_mutex_unlock(lock_of(words)) };
}
