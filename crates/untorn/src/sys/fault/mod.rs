//! Lost pages: what would be a SIGBUS in a file's mapping becomes a fact that the next call reports.
//!
//! A page of a mapping is lost when its file was truncated underneath, when its file system has no block left for it,
//! or when the medium cannot read it. The kernel then raises SIGBUS in the thread that touches it. The handler of
//! this module, installed when the first mapping is watched, puts a page of zeros in the place of the lost one, so
//! that the access goes on, and notes the offset; whoever accessed the mapping asks afterwards
//! ([`MappingWatch::lost`]). A SIGBUS that is not about a watched mapping goes to the handler that the program had
//! installed before.
//!
//! # Order
//! The loss is noted, and made visible to every thread, before the page is replaced. So a thread that got zeros from
//! the page in place of the file's bytes, or stored to it, sees the note when it asks afterwards: the asking needs
//! one load and no fence. See [`none_lost`].
//!
//! # Fork
//! A child inherits mappings, watches and handler, so all goes on there as before. It may inherit a slot with a visitor
//! whose thread it does not have; see [`MappingWatch::withdraw`].

mod signal;
mod table;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering, compiler_fence};

use table::Slot;

/// A word on a cache line of its own: every access to a mapping loads it, and nothing that changes may be near.
#[repr(align(64))]
struct Lone(AtomicUsize);

/// Watches of this process that have a lost page and are not withdrawn.
static HARMED: Lone = Lone(AtomicUsize::new(0));

/// Whether no watched mapping of this process has lost a page, this thread's accesses so far included. If not, which
/// one it is tells [`MappingWatch::lost`].
///
/// One word for the whole process, so that the question costs two instructions, whatever the number of mappings, and no
/// pointer has to be followed.
#[inline(always)]
pub(crate) fn none_lost() -> bool {
    // The compiler must not move the load above the accesses asked about. The CPU may not either: a loss that this
    // thread ran into was noted by this thread, and one that another thread ran into was brought to all of them by
    // `signal::make_visible` before it had an effect.
    compiler_fence(Ordering::SeqCst);
    HARMED.0.load(Ordering::Relaxed) == 0
}

/// Serves the faults of a mapping whose pages the kernel does not hand out by itself (`userfaultfd(2)`, with
/// UFFD_FEATURE_SIGBUS).
pub(crate) trait FaultHandler: Send + Sync {
    /// Makes the page at an offset accessible, so that the access can be tried again. False if the page is lost.
    ///
    /// It runs in a signal handler, in whichever thread touched the page, with every signal blocked that the handler's
    /// mask names: system calls and atomic words only, no lock, no allocation, no panic.
    fn serve(&self, offset: u64) -> bool;
}

/// A mapping that the handler looks after.
///
/// It must be [withdrawn](MappingWatch::withdraw); one that is dropped otherwise keeps its slot, which only a bug does.
pub(crate) struct MappingWatch {
    slot: &'static Slot,
}

/// Installs the handler, as the first watch would: it can take the kernel long (some milliseconds, and seconds where
/// the CPUs are busy), which somebody may not want to happen then.
///
/// # Errors
/// What `sigaction(2)` says.
pub(crate) fn prepare() -> io::Result<()> {
    signal::install()
}

impl MappingWatch {
    /// Watches the mapping of `len` bytes at `start`, both multiples of the page size. The whole of it belongs to the
    /// caller until the watch is withdrawn.
    ///
    /// # Errors
    /// What `sigaction(2)` says when the handler cannot be installed.
    pub(crate) fn new(start: usize, len: usize, writable: bool) -> io::Result<Self> {
        signal::install()?;
        Ok(MappingWatch { slot: table::take(start, len, writable, None) })
    }

    /// The same for a writable mapping whose faults somebody serves. Only what the keeper gives up is lost. The
    /// keeper is dropped with the watch, unless [`withdraw`](MappingWatch::withdraw) fails.
    ///
    /// # Errors
    /// As for [`new`](MappingWatch::new).
    pub(crate) fn kept(start: usize, len: usize, fault_handler: Box<dyn FaultHandler>) -> io::Result<Self> {
        signal::install()?;
        Ok(MappingWatch { slot: table::take(start, len, true, Some(fault_handler)) })
    }

    /// The offset in the mapping of the first page lost, if one was.
    pub(crate) fn lost(&self) -> Option<u64> {
        self.slot.lost()
    }

    /// Notes a loss that showed otherwise than by a signal, unless there was one before.
    pub(crate) fn note(&self, offset: u64) {
        self.slot.note(offset);
    }

    /// Ends the watch. False if a handler may still be about to replace a page: the address space must then be left as
    /// it is, for ever, since what is mapped there next would be overwritten.
    ///
    /// No access to the mapping is under way, so there is no such handler, unless the program accessed the addresses
    /// without keeping the mapping, or this process was forked while another thread was in the handler. It waits for a
    /// second, many times what a handler takes.
    pub(crate) fn withdraw(self) -> bool {
        self.slot.give_back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;

    /// Far from anything that is ever mapped.
    const START: usize = 1 << 40;

    #[test]
    fn a_loss_counts_until_the_watch_is_withdrawn() {
        let watch = MappingWatch::new(START, 4 * PAGE, false).unwrap();
        assert_eq!(watch.lost(), None);
        watch.note(2 * PAGE as u64);
        watch.note(PAGE as u64);
        assert_eq!(watch.lost(), Some(2 * PAGE as u64), "the first one is told");
        assert!(!none_lost());
        let other = MappingWatch::new(START + (1 << 20), PAGE, false).unwrap();
        assert_eq!(other.lost(), None);
        assert!(watch.withdraw());
        assert_eq!(other.lost(), None);
        assert!(other.withdraw());
        // Whether none is lost in the whole process is not known here: other tests lose pages at the same time.
    }
}
