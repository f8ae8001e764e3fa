//! The thread that other processes notify when they need a drain; it wakes the draining thread for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::{io, thread};

use rustix::thread::futex;

use super::{Cache, locked};
use crate::storage::Medium;

#[derive(Default)]
pub(super) struct Wakeup {
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Wakeup {
    /// Lets other processes append, until it is [stopped](Wakeup::stop).
    pub(super) fn start<M: Medium>(cache: &Arc<Cache<M>>) -> io::Result<()> {
        let (tell, told) = mpsc::channel();
        let theirs = Arc::clone(cache);
        let listens = move || {
            let shared_state = theirs.ring.shared_state();
            // The processes know of this one's end by that of this thread.
            let opened = shared_state.open();
            let is_open = opened.is_ok();
            // Whoever started it waits for this.
            let _ = tell.send(opened);
            if is_open {
                listen(&theirs);
            }
            shared_state.let_go();
        };
        let thread = thread::Builder::new().name("untorn-wakeup".to_owned()).spawn(listens)?;
        *locked(&cache.bell.thread) = Some(thread);
        told.recv().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()))
    }

    /// Other processes append no more. Nobody has a turn, and nobody is going to: they have ended, or know nothing of
    /// the log.
    pub(super) fn stop<M: Medium>(cache: &Cache<M>) {
        let Some(thread) = locked(&cache.bell.thread).take() else { return };
        cache.bell.stop.store(true, Ordering::SeqCst);
        let bell = cache.ring.shared_state().ring_now();
        // It cannot fail for a word that is there.
        let _ = futex::wake(bell, futex::Flags::empty(), 1);
        // A panic there was reported there.
        let _ = thread.join();
    }
}

/// Wakes the draining thread when another process asks for it, until it is stopped.
fn listen<M: Medium>(cache: &Cache<M>) {
    let bell = cache.ring.shared_state().bell();
    loop {
        let rung = bell.load(Ordering::SeqCst);
        cache.worker.wake();
        if cache.bell.stop.load(Ordering::SeqCst) {
            return;
        }
        // Whatever it ends by, the flag and the word are looked at again.
        let _ = futex::wait(bell, futex::Flags::empty(), rung, None);
    }
}
