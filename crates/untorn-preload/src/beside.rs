//! Writes and syncs that this process does by itself: it appends to the [`log`], as the server would
//! ([`untorn_ring`]). Whatever stands in the way, the server is asked as for any other file.
//!
//! # What makes it sound
//! 1. A file that has a turn in the ledger has one open description in the whole system, so every descriptor of it is
//!    one of that, and `statx(2)` tells which file it is.
//! 2. With the turn in hand no handler of a signal runs, which might write to the same file, nor does the thread end:
//!    all signals are blocked. What dies nevertheless is known to the kernel.
//! 3. A child of `vfork` has its parent's memory, and is for its locks the same thread; one of a system call by
//!    number is its parent to them too. Neither appends: the first has another number than the one that is kept, the
//!    second finds none.
//! 4. A descriptor's number stands for the same file from the question which that is to the last call with it
//!    ([`busy`]).
//! 5. The bytes that are summed, and that the kernel gets, are those in the log, or on their way there, whatever
//!    other threads do to the program's memory meanwhile. That there is such memory the kernel is asked before. A
//!    vector of pieces is copied first, and looked at no more.
//! 6. Where the kernel appends (`O_APPEND`) it does so at the end that is found with the turn in hand, where the log
//!    has the bytes: there is one description, and whoever changes the length has the turn.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::{ptr, slice};
use std::sync::OnceLock;

use libc::{iovec, off_t};
use untorn_ring::{Appender, Change, Geometry, HEADER, MOST_PARTS, Outcome, SharedState, Terms, Write, append, pieces};

use crate::busy;
use crate::client;
use crate::layer;
use crate::log::{self, Place};
use crate::raw::{self, Quiet, word};

/// No file of any file system reaches so far that a log would be in front of.
const FAR: u64 = 1 << 42;
/// Bytes of one write: the kernel is asked for each page whether it is there.
const MOST: usize = 1 << 20;
/// Pieces of one write.
const MOST_PIECES: usize = 64;
const NO_PIECE: iovec = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
/// The ledger: address and words. Never unmapped; a forked child has it too.
static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// What they are about, as they said when they were mapped: a neighbour that stores to memory at random does not move
/// our stores.
static TERMS: OnceLock<Terms> = OnceLock::new();
/// Whether somebody has seen to it that they are mapped, or found that they cannot be.
static TRIED: AtomicBool = AtomicBool::new(false);

fn ledger() -> Option<SharedState<'static>> {
    let words = WORDS.load(Ordering::Acquire);
    if words.is_null() {
        return None;
    }
    let terms = *TERMS.get()?;
    // SAFETY: mapped for good, so many, aligned to a page, and atomic, whoever else stores to them.
    Some(SharedState::of(unsafe { slice::from_raw_parts(words, COUNT.load(Ordering::Relaxed)) }, terms))
}

/// Maps ledger and log, if the server has them for others. A descriptor of this process is boosted.
pub(crate) fn set_up() {
    // What a child of `vfork` notes of itself, its parent would take for its own.
    if client::is_in_vfork() || TRIED.swap(true, Ordering::AcqRel) {
        return;
    }
    // What tells whether there is memory is not told in the same way by all that calls itself a kernel.
    if is_readable(ptr::without_provenance(8), 1) || !is_readable((&raw const TRIED).cast(), 1) {
        return;
    }
    let Some(words) = log::map_ledger() else { return };
    let count = words.1 / size_of::<AtomicU64>();
    // SAFETY: the mapping just made, which is never unmapped, seen as atomic words by all.
    let Some(ledger) = SharedState::find(unsafe { slice::from_raw_parts(words.0 as *const AtomicU64, count) }) else {
        return;
    };
    if !log::set_up(&ledger) || TERMS.set(*ledger.terms()).is_err() {
        return;
    }
    COUNT.store(count, Ordering::Relaxed);
    client::appends();
    WORDS.store(words.0 as *mut AtomicU64, Ordering::Release);
}

/// When the layer is loaded: has a child of `fork` told apart from others.
pub(crate) fn watch_forks() {
    // SAFETY: a function for it to call, which lives as long as the process. Without it children ask the server.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
}

extern "C" fn in_child() {
    if !WORDS.load(Ordering::Relaxed).is_null() {
        client::appends();
        busy::forget_all();
        log::in_child();
    }
}

/// Whether there is memory of the program's here, for the kernel to read. It copies a mask of signals from an address
/// before it finds that it is asked for nothing that it knows.
fn is_readable(from: *const c_void, count: usize) -> bool {
    const NOTHING: usize = 99;
    let (start, end) = (from as usize, (from as usize).saturating_add(count));
    let mut at = start & !7;
    while at < end {
        // SAFETY: the kernel checks the address; with this request it changes nothing.
        if unsafe { raw::call(libc::SYS_rt_sigprocmask, [NOTHING, at, 0, 8, 0, 0]) } != -(libc::EINVAL as isize) {
            return false;
        }
        at = (at & !4095).saturating_add(4096);
    }
    true
}

/// What is written, as far as it is in the log.
struct Source<'a> {
    pieces: &'a [iovec],
    /// Bytes of the first piece that are there already.
    skip: usize,
}

impl Source<'_> {
    /// # Safety
    /// There is room for `len` bytes at `into`, and memory where the pieces are, which have as many.
    unsafe fn copy(&mut self, mut into: *mut u8, mut len: usize) {
        while let Some(piece) = self.pieces.first() {
            let count = (piece.iov_len - self.skip).min(len);
            // SAFETY: the caller's. What another thread stores to the program's memory meanwhile arrives or not, as
            // in the kernel.
            unsafe { ptr::copy_nonoverlapping(piece.iov_base.cast::<u8>().wrapping_add(self.skip), into, count) };
            into = into.wrapping_add(count);
            len -= count;
            self.skip += count;
            if len == 0 {
                return;
            }
            self.pieces = &self.pieces[1..];
            self.skip = 0;
        }
    }
}

/// A change that is under way.
struct Writing<'a> {
    fd: c_int,
    from: Source<'a>,
    place: Place,
    geometry: Geometry,
}

impl Writing<'_> {
    /// Has the kernel write the entries from position `first` on, which are `N` at most.
    #[inline(never)] // Whoever writes one entry has no use for so much of the stack.
    fn gather<const N: usize>(&self, first: u64, write: Write) -> isize {
        let mut all = [NO_PIECE; N];
        let mut used = 0;
        for (place, (at, len)) in all.iter_mut().zip(pieces(self.geometry, first, write.len)) {
            *place = iovec { iov_base: self.place.address(at).cast(), iov_len: len };
            used += 1;
        }
        let arguments = [word(self.fd), all.as_ptr() as usize, used, write.offset as usize, 0, 0];
        // SAFETY: bytes of the log, or on their way there.
        unsafe { raw::call(libc::SYS_pwritev, arguments) }
    }
}

impl Appender for Writing<'_> {
    fn fill(&mut self, at: u64, _: usize, len: usize) -> bool {
        self.place.make_room(at, len);
        // SAFETY: the program's memory, which the kernel found readable, and room for it, which is this write's alone.
        unsafe { self.from.copy(self.place.address(at), len) };
        true
    }

    fn with<R>(&mut self, at: u64, len: usize, look: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: within that room, to which nobody else stores.
        look(unsafe { slice::from_raw_parts(self.place.address(at), len) })
    }

    fn store(&mut self, at: u64, header: &[u8; HEADER as usize]) {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), self.place.address(at), header.len()) };
    }

    fn flush(&mut self, at: u64, len: u64) {
        self.place.flush(at, len);
    }

    fn fence(&mut self) -> bool {
        self.place.fence()
    }

    fn deliver(&mut self, first: u64, change: Change) -> isize {
        let write = match change {
            Change::Write(write) => write,
            Change::Length(len) => return raw::truncate(self.fd, len).map_or_else(|errno| -(errno as isize), |()| 0),
        };
        match self.geometry.parts(write.len) {
            1 => {
                let from = self.place.address(self.geometry.entry_at(first) + HEADER) as usize;
                // SAFETY: bytes of the log, or on their way there.
                unsafe { raw::call(libc::SYS_pwrite64, [word(self.fd), from, write.len, write.offset as usize, 0, 0]) }
            }
            2..=16 => self.gather::<16>(first, write),
            _ => self.gather::<{ MOST_PARTS as usize }>(first, write),
        }
    }

    #[cfg(feature = "oracle")]
    fn reaches(&mut self, step: untorn_ring::Step) -> bool {
        crate::death::reached(step);
        true
    }
}

/// Writes, at the descriptor's own offset if none is given; `None` if that is for the server.
pub(crate) fn write(fd: c_int, from: *const c_void, count: usize, offset: Option<u64>) -> Option<Result<i64, c_int>> {
    write_pieces(fd, &[iovec { iov_base: from.cast_mut(), iov_len: count }], offset)
}

/// The same of the pieces of a vector.
#[inline(never)] // The copy of the vector stands on the stack no longer than this takes.
pub(crate) fn write_vector(
    fd: c_int,
    vector: *const iovec,
    count: c_int,
    offset: Option<u64>,
) -> Option<Result<i64, c_int>> {
    let count = usize::try_from(count).ok().filter(|count| (1..=MOST_PIECES).contains(count))?;
    if !vector.is_aligned() || !is_readable(vector.cast(), count * size_of::<iovec>()) {
        return None;
    }
    let mut pieces = [NO_PIECE; MOST_PIECES];
    // SAFETY: the program's memory, which the kernel found readable, and room for as many.
    unsafe { ptr::copy_nonoverlapping(vector, pieces.as_mut_ptr(), count) };
    write_pieces(fd, &pieces[..count], offset)
}

fn write_pieces(fd: c_int, pieces: &[iovec], offset: Option<u64>) -> Option<Result<i64, c_int>> {
    let len = pieces.iter().try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len))?;
    let ledger = ledger()?;
    if len == 0 || len > MOST || ledger.terms().geometry.parts(len) > MOST_PARTS {
        return None;
    }
    change(ledger, fd, What::Write { pieces, len, offset })
}

/// Changes the length of a descriptor's file; `None` if that is for the server.
pub(crate) fn set_length(fd: c_int, len: u64) -> Option<Result<i64, c_int>> {
    // On a disk it may have to be durable in the log before the kernel does it.
    if len >= FAR || log::is_on_disk() {
        return None;
    }
    change(ledger()?, fd, What::Length(len))
}

/// What is to be done.
#[derive(Clone, Copy)]
enum What<'a> {
    Write { pieces: &'a [iovec], len: usize, offset: Option<u64> },
    Length(u64),
}

impl What<'_> {
    /// Bytes that are written.
    fn len(self) -> usize {
        if let What::Write { len, .. } = self { len } else { 0 }
    }
}

fn change(ledger: SharedState<'static>, fd: c_int, what: What<'_>) -> Option<Result<i64, c_int>> {
    if !client::may_append() {
        return None;
    }
    let (said, device, inode) = {
        let _quiet = Quiet::new();
        changed(ledger, fd, what)?
    };
    // The kernel has less than the log: no replay may do the rest, and nobody writes to the file before that is so.
    if said != what.len() as isize
        && let Err(errno) = layer::take_back(device, inode)
    {
        return Some(Err(errno));
    }
    Some(if said < 0 { Err(-said as c_int) } else { Ok(said as i64) })
}

/// What the kernel said, and of which file.
fn changed(ledger: SharedState<'static>, fd: c_int, what: What<'_>) -> Option<(isize, u64, u64)> {
    let _busy = busy::begin(fd)?;
    let (device, inode) = raw::file_of(fd).ok()?;
    let turn = ledger.turn_of(device, inode).filter(|turn| turn.is_writable())?;
    let (pieces, offset) = match what {
        What::Write { pieces, offset, .. } => (pieces, offset),
        What::Length(_) => (&[][..], Some(0)),
    };
    if !pieces.iter().all(|piece| is_readable(piece.iov_base, piece.iov_len)) {
        return None;
    }
    let terms = ledger.terms();
    let place = Place::of(terms, terms.geometry.parts(what.len()))?;
    let outcome = {
        // The C library's locks call the kernel if they have to wait.
        #[cfg(all(feature = "oracle", target_arch = "x86_64"))]
        let _pass = crate::oracle::Pass::new();
        let turn = turn.lock()?;
        let usable = turn.turn().is_of(device, inode) && turn.turn().is_writable();
        if !usable || !ledger.is_open() {
            return None;
        }
        let change = planned(fd, what)?;
        let mut writing = Writing { fd, from: Source { pieces, skip: 0 }, place, geometry: terms.geometry };
        let outcome = append(&turn, change, &mut writing);
        if let (Outcome::Written { said: written @ 1.., .. }, None, Change::Write(write)) = (outcome, offset, change)
            // Unless somebody moved it meanwhile; what the kernel appends leaves it at the end, wherever it was.
            && (write.at_end || raw::seek(fd, 0, libc::SEEK_CUR) == Ok(write.offset))
        {
            let _ = raw::seek(fd, write.offset as off_t + written as off_t, libc::SEEK_SET);
        }
        outcome
    };
    let Outcome::Written { said, .. } = outcome else { return None };
    if let Some(bell) = ledger.ring() {
        raw::wake_shared(bell);
    }
    Some((said, device, inode))
}

/// Where it is done. With the turn in hand: the end of the file is where it is.
fn planned(fd: c_int, what: What<'_>) -> Option<Change> {
    let (len, offset) = match what {
        What::Length(len) => return Some(Change::Length(len)),
        What::Write { len, offset, .. } => (len, offset),
    };
    // The flags stay what they are: whoever changes them has the file demoted before.
    let at_end = raw::fcntl(fd, libc::F_GETFL, 0).ok()? & libc::O_APPEND != 0;
    let at = match offset {
        _ if at_end => raw::len_of(fd).ok()?,
        Some(offset) => offset,
        None => raw::seek(fd, 0, libc::SEEK_CUR).ok()?,
    };
    let fits = at.checked_add(len as u64).is_some_and(|end| end < FAR);
    fits.then_some(Change::Write(Write { offset: at, len, at_end }))
}

/// Syncs a descriptor's file, for which the log is durable already or is flushed. False if that is for the server.
pub(crate) fn sync(fd: c_int) -> bool {
    let Some(ledger) = ledger() else { return false };
    let Ok((device, inode)) = raw::file_of(fd) else { return false };
    let Some(turn) = ledger.turn_of(device, inode) else { return false };
    let is_logged = || turn.is_of(device, inode) && turn.is_durable() && ledger.is_open();
    if !is_logged() {
        return false;
    }
    if log::is_on_disk() {
        if !client::may_append() {
            return false;
        }
        let flushed = {
            let _quiet = Quiet::new();
            log::sync(&ledger, turn, is_logged)
        };
        // Whoever died meanwhile may have left what the log has not.
        if !flushed || !is_logged() {
            return false;
        }
    }
    turn.count_sync();
    true
}
