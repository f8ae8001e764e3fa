//! A word that tells other processes whether a thread lives, at the cost of one load.
//!
//! The thread holds a robust lock in memory that others map. When the thread ends, also by SIGKILL, the kernel marks
//! the lock. It does so before it closes descriptors of the process: a process gives its memory up, and with it the
//! locks of all its threads, before its last thread gives the descriptors up. So whoever finds the lock unmarked knows
//! that the locks of files (`flock(2)`) of that process still stood then. Sources: `set_robust_list(2)`, and
//! `do_exit` of the kernel, where `exit_mm` comes before `exit_files`.
//!
//! One case is not covered: before Linux 5.18 the kernel may take the memory of a process that it kills for want of
//! memory before it has read the list of that process's locks.
//!
//! # Safety
//! The C library keeps the address of the lock while the thread holds it, so its memory is never given back.
#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use super::page_size;
use super::shared::SharedPages;

// SAFETY: the C library's, with this signature.
unsafe extern "C" {
    // Some versions of the bindings lack it for some C libraries.
    fn pthread_mutexattr_setrobust(attributes: *mut libc::pthread_mutexattr_t, robust: libc::c_int) -> libc::c_int;
}

const ROBUST: libc::c_int = 1;

/// Set in the word while another thread waits for the lock, which none does. See
/// `Documentation/locking/robust-futex-ABI.rst` of the kernel.
const WAITERS: u32 = 0x8000_0000;

/// Such a word, of a thread of this process or of another one.
pub(crate) struct Alive {
    pages: SharedPages,
    thread: u32,
}

fn checked(errno: libc::c_int) -> io::Result<()> {
    if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno)) }
}

impl Alive {
    /// The word of the calling thread, for as long as it lives.
    ///
    /// # Errors
    /// Those of making memory and a lock; `Unsupported` with a C library whose locks do not begin with the kernel's
    /// word.
    pub(crate) fn of_this_thread() -> io::Result<&'static Alive> {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned();
        let pages = SharedPages::create("untorn-alive", page_size() as u64, page_size())?;
        pages.allocate(0, page_size() as u64)?;
        // Never given back: the C library keeps the address of the lock.
        let alive: &'static Alive = Box::leak(Box::new(Alive { pages, thread }));
        alive.make()?;
        alive.pages.let_others_load_only()?;
        // SAFETY: a lock, made above, in memory that stays.
        checked(unsafe { libc::pthread_mutex_trylock(alive.lock()) })?;
        if alive.is_over() { Err(io::ErrorKind::Unsupported.into()) } else { Ok(alive) }
    }

    /// That of a thread of another process, by its file and the number of the thread.
    ///
    /// # Errors
    /// Those of `mmap(2)`; `InvalidData` for a file that is no such word's.
    pub(crate) fn of_another(file: OwnedFd, thread: u32) -> io::Result<Alive> {
        let pages = SharedPages::map_to_load(file, page_size())?;
        let is_one = thread != 0 && thread & WAITERS == 0 && pages.file_len()? >= page_size() as u64;
        if is_one { Ok(Alive { pages, thread }) } else { Err(io::ErrorKind::InvalidData.into()) }
    }

    /// The number of the thread, in its own process.
    pub(crate) fn thread(&self) -> u32 {
        self.thread
    }

    /// The file of the word.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        self.pages.file()
    }

    /// Whether the thread has ended. A caller that found this false after a fence knows that it had not ended before
    /// that fence.
    #[inline(always)]
    pub(crate) fn is_over(&self) -> bool {
        self.word().load(Ordering::Acquire) & !WAITERS != self.thread
    }

    fn word(&self) -> &AtomicU32 {
        &self.pages.halves(0, 1)[0]
    }

    fn lock(&self) -> *mut libc::pthread_mutex_t {
        const { assert!(size_of::<libc::pthread_mutex_t>() <= 4096 && align_of::<libc::pthread_mutex_t>() <= 4096) };
        self.pages.at(0).cast()
    }

    fn make(&self) -> io::Result<()> {
        let mut attributes = MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attributes = attributes.as_mut_ptr();
        // SAFETY: room for attributes, which this makes.
        checked(unsafe { libc::pthread_mutexattr_init(attributes) })?;
        // SAFETY: attributes, made above.
        let shared = unsafe { libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) };
        // SAFETY: as above.
        let robust = unsafe { pthread_mutexattr_setrobust(attributes, ROBUST) };
        // SAFETY: room for a lock (asserted), in memory that nobody else has yet.
        let made = unsafe { libc::pthread_mutex_init(self.lock(), attributes) };
        // SAFETY: attributes, made above, and used no more.
        unsafe { libc::pthread_mutexattr_destroy(attributes) };
        checked(shared).and(checked(robust)).and(checked(made))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::in_forked_child;

    fn from_elsewhere(alive: &Alive) -> Alive {
        Alive::of_another(alive.file().try_clone_to_owned().unwrap(), alive.thread()).unwrap()
    }

    #[test]
    fn a_thread_is_alive_until_it_ends() {
        let (found, told) = std::sync::mpsc::channel();
        let (end, ending) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            found.send(Alive::of_this_thread().unwrap()).unwrap();
            let _ = ending.recv();
        });
        let alive = told.recv().unwrap();
        let seen = from_elsewhere(alive);
        assert!(!alive.is_over() && !seen.is_over());
        drop(end);
        thread.join().unwrap();
        assert!(alive.is_over() && seen.is_over());
        let other = Alive::of_another(alive.file().try_clone_to_owned().unwrap(), alive.thread() + 1).unwrap();
        assert!(other.is_over(), "it is the word of another thread");
        assert!(Alive::of_another(alive.file().try_clone_to_owned().unwrap(), 0).is_err());
    }

    /// A killed process leaves the lock marked before its descriptors are closed.
    #[test]
    fn a_killed_process_is_not_alive() {
        use std::os::fd::{FromRawFd, IntoRawFd};

        let (ours, theirs) = crate::sys::socket::pair().unwrap();
        // The child sends its word and is killed while it waits for an answer that does not come.
        let theirs = theirs.into_raw_fd();
        let waiter = std::thread::spawn(move || {
            in_forked_child(|| {
                // SAFETY: the descriptor made above, which only this child uses.
                let theirs = unsafe { OwnedFd::from_raw_fd(theirs) };
                let alive = Alive::of_this_thread().unwrap();
                let socket = std::os::fd::AsFd::as_fd(&theirs);
                let thread = alive.thread().to_le_bytes();
                crate::sys::socket::send(socket, &thread, &[alive.file()]).unwrap();
                loop {
                    std::thread::sleep(std::time::Duration::from_secs(1));
                }
            })
        });
        let mut bytes = [0; 4];
        let fds = loop {
            match crate::sys::socket::receive(std::os::fd::AsFd::as_fd(&ours), &mut bytes).unwrap() {
                crate::sys::socket::Received::Message(_, fds) => break fds,
                _ => std::thread::sleep(std::time::Duration::from_millis(1)),
            }
        };
        let thread = u32::from_le_bytes(bytes);
        let alive = Alive::of_another(fds.into_iter().next().unwrap(), thread).unwrap();
        assert!(!alive.is_over());
        let child = rustix::process::Pid::from_raw(thread.cast_signed()).unwrap();
        rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
        assert_eq!(waiter.join().unwrap(), None);
        assert!(alive.is_over());
    }
}
