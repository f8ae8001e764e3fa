//! Connections to the process that serves the run: a few for each process, one for each call at a time.
//!
//! They are kept in memory that a forked child finds empty (`MADV_WIPEONFORK`), so it never speaks over its parent's.
//! A child of `vfork` shares that memory, but not the descriptors that it opens: it is told by its number, and
//! connects for just one call.

use core::ffi::{CStr, c_int};
use core::mem::size_of;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use libc::{iovec, msghdr};
use untorn_wire::{FRAME, Operation, Patience, ReplyFrame, RequestFrame};
use zerocopy::{FromZeros, IntoBytes};

use crate::busy;
use crate::raw::{self, Quiet, word};
use crate::settings::{Settings, settings};

/// Calls that one process makes at a time; more wait.
const SLOTS: usize = 8;
/// Descriptors of our own begin here, out of the way of programs that count on small numbers.
const HIGH: [c_int; 3] = [700, 200, 100];
/// Pieces handed to the kernel at once.
const PIECES: usize = 16;

struct Slot {
    /// 1 while a call uses the connection.
    lock: AtomicU32,
    /// The descriptor, plus one; 0 for none.
    socket: AtomicI32,
    /// How whoever has the lock waits for answers.
    patience: AtomicU32,
}

impl Slot {
    fn try_take(&self) -> bool {
        self.lock.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Waits for the call that uses the connection.
    fn take(&self) {
        while !self.try_take() {
            raw::wait(&self.lock, 1);
        }
    }

    fn release(&self) {
        self.lock.store(0, Ordering::Release);
        raw::wake(&self.lock);
    }
}

/// What a forked child finds zeroed.
struct Pool {
    /// The process that the sockets belong to; 0 in a child that has not used it yet.
    owner: AtomicU32,
    /// The process that may append to the log; 0 in a child that came by no `fork` of the C library's.
    appender: AtomicU32,
    slots: [Slot; SLOTS],
}

static POOL: AtomicPtr<Pool> = AtomicPtr::new(null_mut());

/// Our own descriptors, plus one, which a program must not close. A forked child finds its parent's here.
static OWN: [AtomicI32; SLOTS + 2] = [const { AtomicI32::new(0) }; SLOTS + 2];
/// Which of them the board is, and which the log.
const BOARD: usize = SLOTS;
const LOG: usize = SLOTS + 1;

/// Makes the pool.
pub(crate) fn set_up() {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let page = 4096;
    // SAFETY: new memory, at no place of importance.
    let mapped = unsafe { raw::result(libc::SYS_mmap, [0, page, protection as usize, flags as usize, usize::MAX, 0]) };
    let Ok(mapped) = mapped else { return };
    // SAFETY: the mapping just made.
    let wiped = unsafe { raw::result(libc::SYS_madvise, [mapped, page, libc::MADV_WIPEONFORK as usize, 0, 0, 0]) };
    if wiped.is_ok() {
        POOL.store(mapped as *mut Pool, Ordering::Release);
    }
}

fn pool() -> Option<&'static Pool> {
    // SAFETY: null, or a mapping of zeros that is never unmapped, larger than a pool, of which zeros are one.
    unsafe { POOL.load(Ordering::Acquire).as_ref() }
}

/// Whether a descriptor is one of ours.
pub(crate) fn is_own(fd: c_int) -> bool {
    fd >= 0 && settings().is_some() && OWN.iter().any(|own| own.load(Ordering::Relaxed) == fd + 1)
}

/// Our descriptors.
pub(crate) fn own() -> impl Iterator<Item = c_int> {
    OWN.iter().map(|own| own.load(Ordering::Relaxed) - 1).filter(|fd| *fd >= 0)
}

/// The program takes a descriptor's number for something else: it is not ours any more. The board, or the log, is
/// closed for good then, and the server is asked instead. Nobody uses it when this returns.
pub(crate) fn give_up(fd: c_int) {
    if !is_own(fd) {
        return;
    }
    for own in &OWN {
        let _ = own.compare_exchange(fd + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
    let over_it = |slot: &&Slot| slot.socket.load(Ordering::Relaxed) == fd + 1;
    for slot in pool().iter().flat_map(|pool| &pool.slots).filter(over_it) {
        // A request that was made over it has its answer first: it could not be told whether it was carried out.
        slot.take();
        let _ = slot.socket.compare_exchange(fd + 1, 0, Ordering::Relaxed, Ordering::Relaxed);
        slot.release();
    }
    busy::while_nobody_writes(fd, || ());
}

/// A descriptor moved out of the program's way.
fn moved_up(fd: c_int) -> c_int {
    for least in HIGH {
        if let Ok(high) = raw::fcntl(fd, libc::F_DUPFD_CLOEXEC, least) {
            let _ = raw::close(fd);
            return high;
        }
    }
    fd
}

/// Opens the board, whose path ends in a zero.
pub(crate) fn open_board(path: &[u8]) {
    let Ok(path) = CStr::from_bytes_with_nul(path) else { return };
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, word(libc::O_RDONLY | libc::O_CLOEXEC), 0, 0, 0];
    // SAFETY: the path ends in a zero.
    if let Ok(fd) = unsafe { raw::result(libc::SYS_openat, arguments) } {
        OWN[BOARD].store(moved_up(fd as c_int) + 1, Ordering::Relaxed);
    }
}

/// The board, unless the program took its number for something else.
pub(crate) fn board() -> Option<c_int> {
    Some(OWN[BOARD].load(Ordering::Relaxed) - 1).filter(|fd| *fd >= 0)
}

/// The log, if this process has a descriptor of it.
pub(crate) fn log() -> Option<c_int> {
    Some(OWN[LOG].load(Ordering::SeqCst) - 1).filter(|fd| *fd >= 0)
}

/// Takes a descriptor of the log out of the program's way.
pub(crate) fn keep_log(fd: c_int) {
    OWN[LOG].store(moved_up(fd) + 1, Ordering::SeqCst);
}

/// It is none of ours any more.
pub(crate) fn lose_log(fd: c_int) {
    let _ = OWN[LOG].compare_exchange(fd + 1, 0, Ordering::SeqCst, Ordering::SeqCst);
}

/// Closes it, in a child of `fork`.
pub(crate) fn drop_log() {
    let fd = OWN[LOG].swap(0, Ordering::SeqCst) - 1;
    if fd >= 0 {
        let _ = raw::close(fd);
    }
}

/// What the call gets from, or has for, the program's memory.
#[derive(Clone, Copy)]
pub(crate) struct Memory<'a> {
    pieces: &'a [iovec],
    /// Bytes of it that count.
    limit: usize,
}

impl<'a> Memory<'a> {
    pub(crate) const NONE: Memory<'static> = Memory { pieces: &[], limit: 0 };

    /// The first `limit` bytes of pieces of memory.
    pub(crate) fn new(pieces: &'a [iovec], limit: usize) -> Self {
        Memory { pieces, limit }
    }

    /// Up to [`PIECES`] pieces from byte `from` on; how many.
    fn from(&self, from: usize, into: &mut [iovec]) -> usize {
        let (mut at, mut count) = (0, 0);
        for piece in self.pieces {
            let (start, end) = (at, (at + piece.iov_len).min(self.limit));
            at = end;
            if end <= from || start >= end {
                continue;
            }
            let Some(place) = into.get_mut(count) else { break };
            let skip = from.saturating_sub(start);
            place.iov_base = piece.iov_base.wrapping_byte_add(skip);
            place.iov_len = end - start - skip;
            count += 1;
        }
        count
    }
}

/// A request, with what goes along and what comes back.
struct Exchange<'a> {
    request: RequestFrame,
    fd: Option<c_int>,
    out: Memory<'a>,
    into: Memory<'a>,
    /// A descriptor that the answer carried.
    taken: Option<c_int>,
}

impl<'a> Exchange<'a> {
    #[inline]
    fn new<O: Operation>(request: &O, fd: Option<c_int>, out: Memory<'a>, into: Memory<'a>) -> Self {
        Exchange { request: RequestFrame::new(request, out.limit), fd, out, into, taken: None }
    }
}

/// The reply to an operation. One that is not of this protocol is as good as none.
#[inline]
fn reply_of<O: Operation>(frame: &ReplyFrame) -> Result<O::Reply, c_int> {
    frame.decode::<O>().unwrap_or(Err(libc::EIO))
}

/// Makes a request without memory of the program's, and takes the answer. A server that is gone is EIO.
///
/// # Errors
/// The errno of the answer.
pub(crate) fn ask<O: Operation>(request: &O, fd: Option<c_int>) -> Result<O::Reply, c_int> {
    ask_with(request, fd, Memory::NONE, Memory::NONE)
}

/// Makes a request with bytes of the program's, or for bytes, and takes the answer.
///
/// # Errors
/// As of [`ask`]; EFAULT for memory that is not the program's.
pub(crate) fn ask_with<O: Operation>(
    request: &O,
    fd: Option<c_int>,
    out: Memory<'_>,
    into: Memory<'_>,
) -> Result<O::Reply, c_int> {
    reply_of::<O>(&ask_for(&mut Exchange::new(request, fd, out, into))?)
}

/// The same; `None` if this process has not the right to connect: it took other rights upon itself, or gave up its own.
/// It is like any program outside then, and nothing that it opens is managed.
pub(crate) fn ask_within_reach<O: Operation>(
    request: &O,
    fd: Option<c_int>,
    out: Memory<'_>,
) -> Option<Result<O::Reply, c_int>> {
    match tell(&mut Exchange::new(request, fd, out, Memory::NONE)) {
        Err(OUT_OF_REACH) => None,
        answer => Some(answer.and_then(|frame| reply_of::<O>(&frame))),
    }
}

/// Makes a request whose answer may carry a descriptor, which is closed on `exec`. One may have come without the rest
/// of the answer, and the answer without it.
pub(crate) fn ask_for_descriptor<O: Operation>(
    request: &O,
    fd: Option<c_int>,
) -> (Result<O::Reply, c_int>, Option<c_int>) {
    let mut exchange = Exchange::new(request, fd, Memory::NONE, Memory::NONE);
    let reply = ask_for(&mut exchange).and_then(|frame| reply_of::<O>(&frame));
    (reply, exchange.taken)
}

fn ask_for(exchange: &mut Exchange<'_>) -> Result<ReplyFrame, c_int> {
    // A program may know what to do about that; of EIO it would blame a disk.
    tell(exchange).map_err(|errno| if errno == OUT_OF_REACH { libc::EACCES } else { errno })
}

/// What no call fails with: this process may not connect to the server.
const OUT_OF_REACH: c_int = 4094;

fn tell(exchange: &mut Exchange<'_>) -> Result<ReplyFrame, c_int> {
    let settings = settings().ok_or(libc::EIO)?;
    let _quiet = Quiet::new();
    match pool() {
        Some(pool) if owns(pool) => ask_over(pool, settings, exchange),
        _ => ask_once(settings, exchange),
    }
}

/// This process may append to the log: its threads are, to the C library, its own.
pub(crate) fn appends() {
    if let Some(pool) = pool() {
        pool.appender.store(raw::getpid(), Ordering::Relaxed);
    }
}

/// Whether it may, and is not a child of `vfork`. The server knows of it, and so hears of its end: it has asked for
/// something.
#[inline]
pub(crate) fn may_append() -> bool {
    pool().is_some_and(|pool| {
        let process = raw::getpid();
        pool.appender.load(Ordering::Relaxed) == process && pool.owner.load(Ordering::Relaxed) == process
    })
}

/// Whether this is a child of `vfork`, in its parent's memory.
pub(crate) fn is_in_vfork() -> bool {
    let owner = pool().map_or(0, |pool| pool.owner.load(Ordering::Relaxed));
    owner != 0 && owner != raw::getpid()
}

/// Whether the pool is this process's. A forked child, the first time it asks, makes it its own.
fn owns(pool: &Pool) -> bool {
    let process = raw::getpid();
    let owner = pool.owner.load(Ordering::Relaxed);
    if owner != 0 {
        return owner == process;
    }
    if pool.owner.compare_exchange(0, process, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
        // The copies of the parent's sockets. The board is as good here.
        for own in OWN.iter().take(SLOTS) {
            let fd = own.swap(0, Ordering::Relaxed) - 1;
            if fd >= 0 {
                let _ = raw::close(fd);
            }
        }
    }
    pool.owner.load(Ordering::Relaxed) == process
}

/// The child of `vfork` that asked for something last, which its parent's memory knows.
static ONCE: AtomicU32 = AtomicU32::new(0);

/// Whether this process asked the server for anything.
pub(crate) fn has_asked() -> bool {
    let process = raw::getpid();
    ONCE.load(Ordering::Relaxed) == process || pool().is_some_and(|pool| pool.owner.load(Ordering::Relaxed) == process)
}

fn ask_once(settings: &Settings, wanted: &mut Exchange<'_>) -> Result<ReplyFrame, c_int> {
    let socket = connect(settings)?;
    ONCE.store(raw::getpid(), Ordering::Relaxed);
    let outcome = exchange(socket, wanted, &mut Patience::default());
    let _ = raw::close(socket);
    outcome.map_err(Broken::errno)
}

fn ask_over(pool: &Pool, settings: &Settings, wanted: &mut Exchange<'_>) -> Result<ReplyFrame, c_int> {
    let (number, slot) = acquire(pool);
    let mut patience = Patience::from_bits(slot.patience.load(Ordering::Relaxed));
    let outcome = loop {
        let kept = slot.socket.load(Ordering::Relaxed) - 1;
        let socket = if kept >= 0 {
            kept
        } else {
            match connect(settings) {
                Ok(socket) => {
                    slot.socket.store(socket + 1, Ordering::Relaxed);
                    OWN[number].store(socket + 1, Ordering::Relaxed);
                    socket
                }
                Err(errno) => break Err(errno),
            }
        };
        match exchange(socket, wanted, &mut patience) {
            Ok(reply) => break Ok(reply),
            Err(broken) => {
                slot.socket.store(0, Ordering::Relaxed);
                OWN[number].store(0, Ordering::Relaxed);
                if broken.ours {
                    let _ = raw::close(socket);
                }
                // The program closed it behind our back: once more, with a new one. Or it gave the number of a new
                // one to a file of its own, before that was known to be ours.
                if !(broken.unsent && (kept >= 0 || broken.errno == libc::ENOTSOCK)) {
                    break Err(broken.errno());
                }
            }
        }
    };
    slot.patience.store(patience.bits(), Ordering::Relaxed);
    slot.release();
    outcome
}

/// A slot that nobody uses.
fn acquire(pool: &Pool) -> (usize, &Slot) {
    loop {
        for (number, slot) in pool.slots.iter().enumerate() {
            if slot.try_take() {
                return (number, slot);
            }
        }
        raw::wait(&pool.slots[0].lock, 1);
    }
}

fn connect(settings: &Settings) -> Result<c_int, c_int> {
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
    // SAFETY: takes numbers.
    let socket = unsafe { raw::result(libc::SYS_socket, [word(libc::AF_UNIX), word(kind), 0, 0, 0, 0]) }? as c_int;
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    for (into, byte) in address.sun_path.iter_mut().take(107).zip(&settings.socket) {
        *into = *byte as _;
    }
    let arguments = [word(socket), &raw const address as usize, size_of::<libc::sockaddr_un>(), 0, 0, 0];
    // SAFETY: an address of that size.
    if let Err(errno) = unsafe { raw::result(libc::SYS_connect, arguments) } {
        let _ = raw::close(socket);
        return Err(if errno == libc::EACCES { OUT_OF_REACH } else { libc::EIO });
    }
    Ok(moved_up(socket))
}

/// Why a connection is of no more use.
struct Broken {
    errno: c_int,
    /// Nothing of the request was sent.
    unsent: bool,
    /// The descriptor is a socket still.
    ours: bool,
}

impl Broken {
    fn errno(self) -> c_int {
        if self.errno == libc::EFAULT { libc::EFAULT } else { libc::EIO }
    }
}

fn exchange(socket: c_int, wanted: &mut Exchange<'_>, patience: &mut Patience) -> Result<ReplyFrame, Broken> {
    let (out, into, mut pass) = (wanted.out, wanted.into, wanted.fd);
    let header = iovec { iov_base: wanted.request.as_bytes().as_ptr().cast_mut().cast(), iov_len: FRAME };
    transfer(libc::SYS_sendmsg, socket, header, out, out.limit, &mut pass)?;
    patience.wait(|| raw::has_something(socket));
    let mut reply = ReplyFrame::new_zeroed();
    let header = iovec { iov_base: reply.as_mut_bytes().as_mut_ptr().cast(), iov_len: FRAME };
    transfer(libc::SYS_recvmsg, socket, header, Memory::NONE, 0, &mut wanted.taken)?;
    let data = usize::try_from(reply.data()).unwrap_or(usize::MAX);
    if data > into.limit {
        return Err(Broken { errno: libc::EIO, unsent: false, ours: true });
    }
    let none = iovec { iov_base: null_mut(), iov_len: 0 };
    transfer(libc::SYS_recvmsg, socket, none, into, data, &mut None)?;
    Ok(reply)
}

/// Sends or receives all of `header` and of the first `count` bytes of `memory`. `pass` goes along with what is sent,
/// or is what came along with what is received.
fn transfer(
    call: libc::c_long,
    socket: c_int,
    header: iovec,
    memory: Memory<'_>,
    count: usize,
    pass: &mut Option<c_int>,
) -> Result<(), Broken> {
    let memory = Memory { limit: memory.limit.min(count), ..memory };
    let all = header.iov_len + count;
    let mut done = 0;
    while done < all {
        let mut pieces = [iovec { iov_base: null_mut(), iov_len: 0 }; PIECES];
        let mut used = 0;
        if done < header.iov_len {
            pieces[0].iov_base = header.iov_base.wrapping_byte_add(done);
            pieces[0].iov_len = header.iov_len - done;
            used = 1;
        }
        used += memory.from(done.saturating_sub(header.iov_len), &mut pieces[used..]);
        let mut control = Control::of(pass.unwrap_or(-1));
        // SAFETY: zeros are one.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_iov = pieces.as_mut_ptr();
        message.msg_iovlen = used as _;
        if pass.is_some() || call == libc::SYS_recvmsg {
            message.msg_control = (&raw mut control).cast();
            message.msg_controllen = size_of::<Control>() as _;
        }
        let flags = libc::MSG_NOSIGNAL | if call == libc::SYS_recvmsg { libc::MSG_CMSG_CLOEXEC } else { 0 };
        let arguments = [word(socket), &raw mut message as usize, word(flags), 0, 0, 0];
        // SAFETY: the message and its headers are ours, and live; of memory that the program named the kernel finds
        // out whether it is the program's.
        match unsafe { raw::result(call, arguments) } {
            Ok(0) => return Err(Broken { errno: libc::EIO, unsent: false, ours: true }),
            Ok(moved) => {
                done += moved;
                if call == libc::SYS_sendmsg {
                    *pass = None;
                } else if message.msg_controllen >= control.len as _ && control.is_descriptor() {
                    *pass = Some(control.fd);
                }
            }
            Err(libc::EINTR) => {}
            Err(errno) => {
                let ours = !matches!(errno, libc::EBADF | libc::ENOTSOCK);
                // EBADF may mean the descriptor that is passed.
                return Err(Broken { errno, unsent: done == 0, ours });
            }
        }
    }
    Ok(())
}

/// The control message with one descriptor.
#[repr(C)]
struct Control {
    len: usize,
    level: c_int,
    kind: c_int,
    fd: c_int,
    padding: c_int,
}

impl Control {
    fn of(fd: c_int) -> Self {
        let len = size_of::<usize>() + 3 * size_of::<c_int>();
        Control { len, level: libc::SOL_SOCKET, kind: libc::SCM_RIGHTS, fd, padding: 0 }
    }

    /// Whether a descriptor came, after the kernel has filled it in.
    fn is_descriptor(&self) -> bool {
        let len = size_of::<usize>() + 3 * size_of::<c_int>();
        (self.len, self.level, self.kind) == (len, libc::SOL_SOCKET, libc::SCM_RIGHTS) && self.fd >= 0
    }
}
