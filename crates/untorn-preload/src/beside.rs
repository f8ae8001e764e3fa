//! Writes and syncs that this process does by itself, where the log is persistent memory: it appends to the log, as the server would
//! ([`untorn_ring`]). Whatever stands in the way, the server is asked as for any other file.
//!
//! # What makes it sound
//! 1. A file that has a turn in the ledger has one open description in the whole system, so every descriptor of it is one of that,
//!    and `statx(2)` tells which file it is.
//! 2. With the turn in hand no handler of a signal runs, which might write to the same file, nor does the thread end: all signals
//!    are blocked. What dies nevertheless is known to the kernel.
//! 3. A child of `vfork` has its parent's memory, and is for its locks the same thread; one of a system call by number is its parent
//!    to them too. Neither appends: the first has another number than the one that is kept, the second finds none.
//! 4. A descriptor's number stands for the same file from the question which that is to the last call with it ([`busy`]).
//! 5. The bytes that are summed, and that the kernel gets, are those in the log, whatever other threads do to the program's memory
//!    meanwhile. That there is such memory the kernel is asked before. A vector of pieces is copied first, and looked at no more.
//! 6. Where the kernel appends (`O_APPEND`) it does so at the end that is found with the turn in hand, where the log has the bytes:
//!    there is one description, and whoever changes the length has the turn.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use core::{ptr, slice};
use std::sync::OnceLock;

use libc::{iovec, off_t};
use untorn_ring::{Appender, Change, HEADER, Ledger, MOST_PARTS, Outcome, Terms, Write, append, flush, pieces};
use untorn_wire::{Operation, Request};

use crate::busy;
use crate::client;
use crate::layer;
use crate::raw::{self, Quiet, word};

/// No file of any file system reaches so far that a log would be in front of.
const FAR: u64 = 1 << 42;
/// Bytes of one write: the kernel is asked for each page whether it is there.
const MOST: usize = 1 << 20;
/// Pieces of one write.
const MOST_PIECES: usize = 64;
const NO_PIECE: iovec = iovec { iov_base: ptr::null_mut(), iov_len: 0 };
/// `MAP_SYNC`, with which goes `MAP_SHARED_VALIDATE`.
const SYNC: c_int = 0x8_0003;

/// The ledger: address and words. Never unmapped; a forked child has it too.
static WORDS: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// What they are about, as they said when they were mapped: a neighbour that stores to memory at random does not move our stores.
static TERMS: OnceLock<Terms> = OnceLock::new();
/// The log.
static LOG: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Parts of the log of which this process has all pages, which is cheaper than to find at each store that there is none yet.
static PRESENT: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];
/// Bytes of such a part at least.
const PART: usize = 256 << 10;
/// `MADV_POPULATE_WRITE` (Linux 5.14).
const POPULATE: usize = 23;

/// Whether somebody has seen to it that they are mapped, or found that they cannot be.
static TRIED: AtomicBool = AtomicBool::new(false);

fn ledger() -> Option<Ledger<'static>> {
    let words = WORDS.load(Ordering::Acquire);
    if words.is_null() {
        return None;
    }
    let terms = *TERMS.get()?;
    // SAFETY: mapped for good, so many, aligned to a page, and atomic, whoever else stores to them.
    Some(Ledger::of(unsafe { slice::from_raw_parts(words, COUNT.load(Ordering::Relaxed)) }, terms))
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
    let Some(words) = mapped(0, libc::MAP_SHARED, None) else { return };
    let count = words.1 / size_of::<AtomicU64>();
    // SAFETY: the mapping just made, which is never unmapped, seen as atomic words by all.
    let Some(ledger) = Ledger::find(unsafe { slice::from_raw_parts(words.0 as *const AtomicU64, count) }) else {
        return;
    };
    let Some(len) = ledger.terms().geometry.len().and_then(|len| usize::try_from(len).ok()) else { return };
    let flags = if ledger.is_synced() { SYNC } else { libc::MAP_SHARED };
    let Some(log) = mapped(1, flags, Some(len)) else { return };
    flush::adopt(ledger.write_back());
    if TERMS.set(*ledger.terms()).is_err() {
        return;
    }
    LOG.store(log.0 as *mut u8, Ordering::Relaxed);
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
        // Of what is shared a child has no pages yet.
        PRESENT.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
}

/// Asks for the memory of this number and maps it: so many bytes of it, or all. Where, and how many.
fn mapped(number: u64, flags: c_int, len: Option<usize>) -> Option<(usize, usize)> {
    let request = Request { operation: Operation::Share as u32, number, ..Request::default() };
    let (reply, fd) = client::ask_for_descriptor(&request, None);
    let fd = fd?;
    let mapped = reply.ok().and_then(|_| {
        let all = usize::try_from(raw::fstat(fd).ok()?.st_size).ok()?;
        let len = len.unwrap_or(all);
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let arguments = [0, len, word(protection), word(flags), word(fd), 0];
        // SAFETY: a new mapping, at no place of importance.
        let mapped = unsafe { raw::result(libc::SYS_mmap, arguments) }.ok()?;
        // What lies beyond the end of the file is a SIGBUS.
        (len <= all).then_some((mapped, len))
    });
    // The mapping keeps what it is of open.
    let _ = raw::close(fd);
    mapped
}

/// Whether there is memory of the program's here, for the kernel to read. It copies a mask of signals from an address before it finds
/// that it is asked for nothing that it knows.
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

/// Has the kernel map the part of the log with byte `at` at once. Where it does not, it maps page by page.
#[inline]
fn populate(log: *mut u8, at: usize, len: usize) {
    let part = PART.max(len.div_ceil(64 * PRESENT.len()).next_multiple_of(4096));
    let number = at / part;
    let Some(word) = PRESENT.get(number / 64) else { return };
    let bit = 1 << (number % 64);
    if word.load(Ordering::Relaxed) & bit == 0 {
        word.fetch_or(bit, Ordering::Relaxed);
        let start = number * part;
        let arguments = [log as usize + start, part.min(len - start), POPULATE, 0, 0, 0];
        // SAFETY: within the mapping of the log, of which no byte is changed.
        let _ = unsafe { raw::call(libc::SYS_madvise, arguments) };
    }
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
            // SAFETY: the caller's. What another thread stores to the program's memory meanwhile arrives or not, as in the kernel.
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
    log: *mut u8,
    /// Bytes of the log.
    len: usize,
    ledger: Ledger<'static>,
}

impl Writing<'_> {
    /// Has the kernel write the entries from position `first` on, which are `N` at most.
    #[inline(never)] // Whoever writes one entry has no use for so much of the stack.
    fn gather<const N: usize>(&self, first: u64, write: Write) -> isize {
        let mut all = [NO_PIECE; N];
        let mut used = 0;
        for (place, (at, len)) in all.iter_mut().zip(pieces(self.ledger.terms().geometry, first, write.len)) {
            *place = iovec { iov_base: self.log.wrapping_add(at as usize).cast(), iov_len: len };
            used += 1;
        }
        let arguments = [word(self.fd), all.as_ptr() as usize, used, write.offset as usize, 0, 0];
        // SAFETY: bytes of the log.
        unsafe { raw::call(libc::SYS_pwritev, arguments) }
    }
}

impl Appender for Writing<'_> {
    fn fill(&mut self, at: u64, _: usize, len: usize) -> bool {
        populate(self.log, at as usize, self.len);
        // SAFETY: the program's memory, which the kernel found readable, and that of the log, at positions that are this write's alone.
        unsafe { self.from.copy(self.log.wrapping_add(at as usize), len) };
        true
    }

    fn with<R>(&mut self, at: u64, len: usize, look: impl FnOnce(&[u8]) -> R) -> R {
        // SAFETY: within the log, whose length the ledger gives, at positions that nobody else stores to.
        look(unsafe { slice::from_raw_parts(self.log.wrapping_add(at as usize), len) })
    }

    fn store(&mut self, at: u64, header: &[u8; HEADER as usize]) {
        // SAFETY: as above.
        unsafe { ptr::copy_nonoverlapping(header.as_ptr(), self.log.wrapping_add(at as usize), header.len()) };
    }

    fn flush(&mut self, at: u64, len: u64) {
        // SAFETY: as above.
        unsafe { flush::flush_lines(self.log.wrapping_add(at as usize), len as usize) };
    }

    fn fence(&mut self) -> bool {
        flush::fence();
        true
    }

    fn deliver(&mut self, first: u64, change: Change) -> isize {
        let write = match change {
            Change::Write(write) => write,
            Change::Length(len) => return raw::truncate(self.fd, len).map_or_else(|errno| -(errno as isize), |()| 0),
        };
        let geometry = self.ledger.terms().geometry;
        match geometry.parts(write.len) {
            1 => {
                let from = self.log as usize + (geometry.entry_at(first) + HEADER) as usize;
                // SAFETY: bytes of the log.
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
    if len >= FAR {
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

fn change(ledger: Ledger<'static>, fd: c_int, what: What<'_>) -> Option<Result<i64, c_int>> {
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
fn changed(ledger: Ledger<'static>, fd: c_int, what: What<'_>) -> Option<(isize, u64, u64)> {
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
        let log = LOG.load(Ordering::Relaxed);
        let len = ledger.terms().geometry.len()? as usize;
        let mut writing = Writing { fd, from: Source { pieces, skip: 0 }, log, len, ledger };
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

/// Whether all that was written to a descriptor's file is durable: then there is nothing to sync.
pub(crate) fn is_durable(fd: c_int) -> bool {
    let Some(ledger) = ledger() else { return false };
    let Ok((device, inode)) = raw::file_of(fd) else { return false };
    let turn = ledger.turn_of(device, inode).filter(|turn| turn.is_durable() && ledger.is_open());
    turn.inspect(|turn| turn.count_sync()).is_some()
}
