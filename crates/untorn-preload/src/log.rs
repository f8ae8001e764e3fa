//! The log, as this process gets to it: memory that it stores to, or a file on a disk, to which it writes what it has
//! put together in memory of its own.
//!
//! # What makes it sound
//! 1. The log is the server's open file, of which this process has a page mapped even where it stores to none: as
//!    long as it has, nobody takes the log over.
//! 2. It writes to a disk, and flushes it, by a description that it alone has: the kernel tells each of what failed.
//!    A child of `fork` gets one of its own before it writes.
//! 3. That descriptor's number is the log's from the question which file it is to the last call with it ([`busy`]),
//!    so that nothing of a log gets into a file of the program's.
//! 4. What is put together in a room is one write's alone: nobody else is given the room meanwhile, and all signals
//!    are blocked.

use core::ffi::c_int;
use core::ptr;
use core::slice;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use untorn_ring::{FileLock, Flushed, Flusher, Geometry, HEADER, SharedState, Terms, Way, flush};
use untorn_wire::{Share, Shared};

use crate::busy::{self, Busy};
use crate::client;
use crate::raw::{self, word};

/// `MAP_SYNC`, with which goes `MAP_SHARED_VALIDATE`.
const SYNC: c_int = 0x8_0003;
/// `MADV_POPULATE_WRITE` (Linux 5.14).
const POPULATE: usize = 23;
/// Bytes of a part of a mapped log, at least, that is made present at once.
const PART: usize = 256 << 10;
const PAGE: usize = 4096;

/// Writes to a disk that this process puts together at a time; more are for the server.
const ROOMS: usize = 8;
/// Bytes of one.
const ROOM: usize = 256 << 10;

/// A mapped log.
static LOG: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Its length.
static LEN: AtomicUsize = AtomicUsize::new(0);
/// Parts of it of which this process has all pages, which is cheaper than to find at each store that there is none yet.
static PRESENT: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Whether it is on a disk.
static ON_DISK: AtomicBool = AtomicBool::new(false);
/// Which file it is then.
static FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// Whether this process asked for a description of its own.
static ASKED: AtomicBool = AtomicBool::new(false);
/// Memory of this process alone.
static ARENA: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
/// Rooms of it that are taken.
static TAKEN: AtomicU32 = AtomicU32::new(0);

/// Asks for the memory of the ledger and maps it: where, and how many bytes.
pub(crate) fn map_ledger() -> Option<(usize, usize)> {
    map(Shared::State, WRITABLE, libc::MAP_SHARED, None)
}

/// Gets hold of the log. False if it is not to be had.
pub(crate) fn set_up(ledger: &SharedState<'_>) -> bool {
    let way = ledger.way();
    let Some(len) = ledger.terms().geometry.len().and_then(|len| usize::try_from(len).ok()) else { return false };
    let (flags, part) = match way {
        Way::Mapped => (libc::MAP_SHARED, len),
        Way::MappedSync => (SYNC, len),
        Way::Written => (libc::MAP_SHARED, PAGE),
    };
    // Of one on a disk only so that it is kept: nothing in it is this process's to store to.
    let protection = if way == Way::Written { libc::PROT_NONE } else { WRITABLE };
    let Some((log, _)) = map(Shared::Log, protection, flags, Some(part)) else { return false };
    if way == Way::Written {
        let arguments = [0, ROOMS * ROOM, word(WRITABLE), word(ANONYMOUS), usize::MAX, 0];
        // SAFETY: new memory, at no place of importance.
        let Ok(arena) = (unsafe { raw::result(libc::SYS_mmap, arguments) }) else { return false };
        ARENA.store(arena as *mut u8, Ordering::Relaxed);
        ON_DISK.store(true, Ordering::Relaxed);
    }
    flush::adopt(ledger.write_back());
    LEN.store(len, Ordering::Relaxed);
    LOG.store(log as *mut u8, Ordering::Relaxed);
    true
}

const WRITABLE: c_int = libc::PROT_READ | libc::PROT_WRITE;
const ANONYMOUS: c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;

/// In a child of `fork`.
pub(crate) fn in_child() {
    // Of what is shared a child has no pages yet.
    PRESENT.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    // Its other threads are gone, and the descriptor is its parent's.
    TAKEN.store(0, Ordering::Relaxed);
    client::drop_log();
    ASKED.store(false, Ordering::Relaxed);
}

/// Whether durability is left to a sync, which is a flush of the log's disk.
pub(crate) fn is_on_disk() -> bool {
    ON_DISK.load(Ordering::Relaxed)
}

/// Asks for something that the server shares.
fn share(what: Shared) -> Option<c_int> {
    let (reply, fd) = client::ask_for_descriptor(&Share { what }, None);
    let fd = fd?;
    if reply.is_err() {
        let _ = raw::close(fd);
        return None;
    }
    Some(fd)
}

/// Asks for something shared and maps `len` bytes of it, or all. Returns the address and the number of bytes.
fn map(what: Shared, protection: c_int, flags: c_int, len: Option<usize>) -> Option<(usize, usize)> {
    let fd = share(what)?;
    let mapped = raw::fstat(fd).ok().and_then(|status| {
        let all = usize::try_from(status.st_size).ok()?;
        let len = len.unwrap_or(all);
        let arguments = [0, len, word(protection), word(flags), word(fd), 0];
        // SAFETY: a new mapping, at no place of importance.
        let mapped = unsafe { raw::result(libc::SYS_mmap, arguments) }.ok()?;
        if what == Shared::Log {
            FILE[0].store(status.st_dev, Ordering::Relaxed);
            FILE[1].store(status.st_ino, Ordering::Relaxed);
        }
        // What lies beyond the end of the file is a SIGBUS.
        (len <= all).then_some((mapped, len))
    });
    // The mapping keeps what it is of open.
    let _ = raw::close(fd);
    mapped
}

/// The log's descriptor, as long as this lives.
struct Opened {
    fd: c_int,
    _busy: Busy,
}

impl Opened {
    fn get() -> Option<Self> {
        if client::log().is_none() && !ASKED.swap(true, Ordering::AcqRel) {
            client::keep_log(share(Shared::OpenedLog)?);
        }
        let fd = client::log()?;
        let opened = Opened { fd, _busy: busy::begin(fd)? };
        opened.is_log().then_some(opened)
    }

    /// Whether the number is the log's still. The program may have given it to a file of its own, by a call that is
    /// not seen, too: then it is the program's.
    fn is_log(&self) -> bool {
        if client::log() != Some(self.fd) {
            return false;
        }
        let log = (FILE[0].load(Ordering::Relaxed), FILE[1].load(Ordering::Relaxed));
        let is_log = raw::file_of(self.fd) == Ok(log);
        if !is_log {
            client::lose_log(self.fd);
        }
        is_log
    }
}

/// A room in which entries are put together.
struct Room {
    number: usize,
    start: *mut u8,
}

impl Room {
    fn get() -> Option<Self> {
        let arena = ARENA.load(Ordering::Relaxed);
        let free = |taken: u32| Some(taken | 1 << taken.trailing_ones()).filter(|taken| *taken < 1 << ROOMS);
        let before = TAKEN.fetch_update(Ordering::AcqRel, Ordering::Relaxed, free).ok()?;
        let number = before.trailing_ones() as usize;
        Some(Room { number, start: arena.wrapping_add(number * ROOM) })
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        TAKEN.fetch_and(!(1 << self.number), Ordering::AcqRel);
    }
}

/// Where an operation is put together, and how it gets to the log.
pub(crate) enum Place {
    /// In the log itself, which is memory.
    Log { start: *mut u8, len: usize },
    /// In a room, from which it is written to the log.
    Room(Written),
}

/// Entries in a room.
pub(crate) struct Written {
    room: Room,
    log: Opened,
    geometry: Geometry,
    /// Where in the log the first byte of the room goes.
    first: Option<u64>,
    /// Bytes of the room.
    used: usize,
}

impl Place {
    /// For an operation of so many entries; `None` if that is for the server.
    #[inline]
    pub(crate) fn of(terms: &Terms, parts: u64) -> Option<Self> {
        if is_on_disk() {
            return Written::new(terms.geometry, parts).map(Place::Room);
        }
        Some(Place::Log { start: LOG.load(Ordering::Relaxed), len: LEN.load(Ordering::Relaxed) })
    }

    /// Makes room for the bytes of an entry, at byte `at` of the log. The first entry comes first.
    #[inline]
    pub(crate) fn make_room(&mut self, at: u64, len: usize) {
        match self {
            Place::Log { start, len } => populate(*start, at as usize, *len),
            Place::Room(written) => written.make_room(at, len),
        }
    }

    /// Where byte `at` of the log is put.
    #[inline]
    pub(crate) fn address(&self, at: u64) -> *mut u8 {
        match self {
            Place::Log { start, .. } => start.wrapping_add(at as usize),
            Place::Room(written) => written.room.start.wrapping_add(written.offset(at)),
        }
    }

    #[inline]
    pub(crate) fn flush(&self, at: u64, len: u64) {
        if let Place::Log { start, .. } = self {
            // SAFETY: within the log, whose length the ledger gives.
            unsafe { flush::flush_lines(start.wrapping_add(at as usize), len as usize) };
        }
    }

    #[inline]
    pub(crate) fn fence(&self) -> bool {
        match self {
            Place::Log { .. } => {
                flush::fence();
                true
            }
            Place::Room(written) => written.write(),
        }
    }
}

impl Written {
    #[inline(never)] // Of no use to a log in memory.
    fn new(geometry: Geometry, parts: u64) -> Option<Self> {
        let bytes = parts.checked_mul(HEADER + u64::from(geometry.entry)).filter(|bytes| *bytes <= ROOM as u64);
        bytes?;
        Some(Written { room: Room::get()?, log: Opened::get()?, geometry, first: None, used: 0 })
    }

    /// Entries lie in the room as in the log, but for the log's end, where its beginning goes on.
    fn offset(&self, at: u64) -> usize {
        let first = self.first.unwrap_or(at);
        let ahead = match at.checked_sub(first) {
            Some(ahead) => ahead,
            None => self.before_the_end() + (at - self.geometry.entry_at(0)),
        };
        (ahead as usize).min(ROOM)
    }

    /// Bytes of the log from the first entry to the end of the last that the log has room for.
    fn before_the_end(&self) -> u64 {
        let end = self.geometry.entry_at(self.geometry.slots - 1) + HEADER + u64::from(self.geometry.entry);
        end - self.first.unwrap_or(end)
    }

    fn make_room(&mut self, at: u64, len: usize) {
        // It has a header before it.
        self.first.get_or_insert(at - HEADER);
        self.used = self.offset(at) + len;
    }

    /// Brings all of it to the log. Whatever stops it, what arrived is no whole operation.
    fn write(&self) -> bool {
        let Some(first) = self.first else { return false };
        let straight = self.used.min(self.before_the_end() as usize);
        // SAFETY: a room is so long, and nobody else's.
        let bytes = unsafe { slice::from_raw_parts(self.room.start, self.used) };
        let (before, after) = bytes.split_at(straight);
        self.write_at(first, before) && self.write_at(self.geometry.entry_at(0), after)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> bool {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let arguments = [word(self.log.fd), rest.as_ptr() as usize, rest.len(), at as usize + done, 0, 0];
            // SAFETY: the kernel reads the slice.
            match unsafe { raw::result(libc::SYS_pwrite64, arguments) } {
                Ok(count @ 1..) => done += count,
                _ => return false,
            }
        }
        true
    }
}

/// Has the kernel map the part of the log with byte `at` at once. Where it does not, it maps page by page.
#[inline]
fn populate(log: *mut u8, at: usize, len: usize) {
    let part = PART.max(len.div_ceil(64 * PRESENT.len()).next_multiple_of(PAGE));
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

/// Has all that the log has of a file durable, on a disk. False if that is for the server. All signals are blocked.
pub(crate) fn sync(ledger: &SharedState<'_>, turn: FileLock<'_>, is_its: impl Fn() -> bool) -> bool {
    let Some(log) = Opened::get() else { return false };
    ledger.sync(turn, is_its, &mut Flushing { log }) == Flushed::Done
}

struct Flushing {
    log: Opened,
}

impl Flusher for Flushing {
    fn flush(&mut self) -> Flushed {
        // It may have waited for long.
        if !self.log.is_log() {
            return Flushed::Elsewhere;
        }
        // SAFETY: takes a number.
        match unsafe { raw::result(libc::SYS_fdatasync, [word(self.log.fd), 0, 0, 0, 0, 0]) } {
            Ok(_) => Flushed::Done,
            Err(libc::EIO | libc::ENOSPC | libc::EDQUOT) => Flushed::Failed,
            // This process may not, or has lost it: that says nothing of the log.
            Err(_) => Flushed::Elsewhere,
        }
    }

    fn wait(&mut self, round: &AtomicU32, seen: u32) {
        raw::wait_shared(round, seen);
    }

    fn wake(&mut self, round: &AtomicU32) {
        raw::wake_all_shared(round);
    }
}
