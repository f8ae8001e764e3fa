//! A test build reports every system call on a managed descriptor that did not come from the layer (Syscall User
//! Dispatch, prctl(2)). One line for each, in the file that `UNTORN_PRELOAD_ORACLE` names: the process, the call's
//! number, the descriptor. A process that cannot be watched says so there.
//!
//! The kernel lets calls through that come from the layer's one system call instruction, and of the others those that
//! are made while the layer itself calls the C library. For the rest it sends SIGSYS; the handler makes the call in
//! the program's place. It watches the thread that the process began with, and a forked child's.

use core::cell::Cell;
use core::ffi::{c_int, c_long, c_void};
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use crate::layer::{boosts, is_marked};
use crate::raw::{self, word};
use crate::real::Real;
use crate::symbols::is_about_bytes;

const PR_SET_SYSCALL_USER_DISPATCH: usize = 59;
const ALLOW: u8 = 0;
const BLOCK: u8 = 1;
const SA_RESTORER: u64 = 0x0400_0000;

/// What the kernel looks at before each call.
static SELECTOR: AtomicU8 = AtomicU8::new(ALLOW);
static ARMED: AtomicBool = AtomicBool::new(false);
static REPORT: OnceLock<Vec<u8>> = OnceLock::new();

std::thread_local! {
    /// Whether this is the thread that is watched. No other may set the selector, which is that thread's.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

/// The layer calls the C library, until this is dropped.
pub(crate) struct Pass {
    /// Of the watched thread.
    before: Option<u8>,
}

impl Pass {
    pub(crate) fn new() -> Self {
        let watched = ARMED.load(Ordering::Relaxed) && WATCHED.get();
        Pass { before: watched.then(|| SELECTOR.swap(ALLOW, Ordering::Relaxed)) }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        if before == ALLOW {
            // While nothing was watched the program may have blocked all signals.
            unblock();
        }
        SELECTOR.store(BLOCK, Ordering::Relaxed);
    }
}

/// What `rt_sigaction` takes.
#[repr(C)]
struct Action {
    handler: usize,
    flags: u64,
    restorer: usize,
    mask: u64,
}

extern "C" fn in_child() {
    arm();
}

/// Begins to watch, if the environment says where to report.
pub(crate) fn set_up() {
    let Some(path) = untorn_ring::environment::variable(untorn_wire::ORACLE) else { return };
    let mut path = path.into_vec();
    path.push(0);
    if REPORT.set(path).is_err() {
        return;
    }
    // SAFETY: a function for it to call.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    arm();
}

/// Where SIGSYS is blocked, the next call that it is sent for ends the program.
fn unblock() {
    let only: u64 = 1 << (libc::SIGSYS - 1);
    let arguments = [libc::SIG_UNBLOCK as usize, &raw const only as usize, 0, 8, 0, 0];
    // SAFETY: a mask that lives as long as the call.
    let _ = unsafe { raw::call(libc::SYS_rt_sigprocmask, arguments) };
}

/// `sigaction`: SIGSYS stays ours, also where the call is not watched.
///
/// # Safety
/// The program's, or null.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sigaction(signal: c_int, action: *const c_void, old: *mut c_void) -> c_int {
    static REAL: Real = Real::new(c"sigaction");
    if signal == libc::SIGSYS && ARMED.load(Ordering::Relaxed) {
        return 0;
    }
    // SAFETY: the C library's function of that name has this signature.
    let function: unsafe extern "C" fn(c_int, *const c_void, *mut c_void) -> c_int =
        unsafe { core::mem::transmute(REAL.address()) };
    // SAFETY: the caller's arguments, handed on; watched, if anything is.
    unsafe { function(signal, action, old) }
}

fn arm() {
    unblock();
    let gate = raw::gate as *const () as usize;
    let action = Action {
        handler: handle as *const () as usize,
        flags: libc::SA_SIGINFO as u64 | SA_RESTORER,
        restorer: gate + raw::RESTORE,
        mask: u64::MAX,
    };
    let arguments = [libc::SIGSYS as usize, &raw const action as usize, 0, 8, 0, 0];
    // SAFETY: an action of that form, whose functions live as long as the process.
    let handled = unsafe { raw::result(libc::SYS_rt_sigaction, arguments) };
    let arguments = [PR_SET_SYSCALL_USER_DISPATCH, 1, gate, raw::GATE, SELECTOR.as_ptr() as usize, 0];
    // SAFETY: the selector lives as long as the process.
    match handled.and_then(|_| unsafe { raw::result(libc::SYS_prctl, arguments) }) {
        Ok(_) => {
            WATCHED.set(true);
            ARMED.store(true, Ordering::Relaxed);
            SELECTOR.store(BLOCK, Ordering::Relaxed);
        }
        // Nobody looks, so nobody may say that nothing slipped past.
        Err(errno) => {
            let mut line = *b"process 0000000000 is not watched: errno 0000\n";
            fill(&mut line, [(18, raw::getpid() as usize), (45, errno as usize)]);
            append(&line);
        }
    }
}

/// A managed descriptor that a call would move bytes of, or tell the length of.
fn escaped(number: c_long, arguments: [usize; 6]) -> Option<c_int> {
    let places: &[usize] = match number {
        libc::SYS_read
        | libc::SYS_write
        | libc::SYS_pread64
        | libc::SYS_pwrite64
        | libc::SYS_readv
        | libc::SYS_writev
        | libc::SYS_preadv
        | libc::SYS_pwritev
        | libc::SYS_preadv2
        | libc::SYS_pwritev2
        | libc::SYS_lseek
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_fsync
        | libc::SYS_fdatasync
        | libc::SYS_fstat
        | libc::SYS_sync_file_range
        | libc::SYS_vmsplice => &[0],
        libc::SYS_newfstatat if is_empty(arguments[1], arguments[3]) => &[0],
        libc::SYS_statx if is_empty(arguments[1], arguments[2]) => &[0],
        libc::SYS_ioctl if is_about_bytes(arguments[1] as u32) => &[0],
        libc::SYS_sendfile | libc::SYS_tee => &[0, 1],
        libc::SYS_splice | libc::SYS_copy_file_range => &[0, 2],
        libc::SYS_mmap if arguments[3] as c_int & libc::MAP_ANONYMOUS == 0 => &[4],
        _ => &[],
    };
    // Where files are boosted, what only reads is the kernel's.
    let places = match number {
        _ if !boosts() => places,
        libc::SYS_read
        | libc::SYS_pread64
        | libc::SYS_readv
        | libc::SYS_preadv
        | libc::SYS_preadv2
        | libc::SYS_lseek
        | libc::SYS_fstat
        | libc::SYS_newfstatat
        | libc::SYS_statx
        | libc::SYS_sync_file_range => &[],
        libc::SYS_sendfile => &[0],
        libc::SYS_splice | libc::SYS_copy_file_range => &[2],
        libc::SYS_mmap if arguments[3] as c_int & libc::MAP_TYPE == libc::MAP_PRIVATE => &[],
        _ => places,
    };
    places.iter().map(|place| arguments[*place] as c_int).find(|fd| is_marked(*fd))
}

/// Whether a path says that the descriptor itself is meant, as far as it can be read without a look beyond the end of
/// memory.
fn is_empty(path: usize, flags: usize) -> bool {
    flags as c_int & libc::AT_EMPTY_PATH != 0 && (path == 0 || raw::word_at(path).is_some_and(|word| word & 0xff == 0))
}

fn report(number: c_long, fd: c_int) {
    let mut line = *b"process 0000000000 call 0000 descriptor 0000\n";
    fill(&mut line, [(18, raw::getpid() as usize), (28, number as usize), (44, fd as usize)]);
    append(&line);
}

/// Puts numbers in the place of the zeros that end before an index each.
fn fill<const COUNT: usize>(line: &mut [u8], numbers: [(usize, usize); COUNT]) {
    for (end, mut value) in numbers {
        let mut at = end;
        while value > 0 && line[at - 1] == b'0' {
            at -= 1;
            line[at] = b'0' + (value % 10) as u8;
            value /= 10;
        }
    }
}

/// Appends a line to the report.
fn append(line: &[u8]) {
    let Some(path) = REPORT.get() else { return };
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, word(flags), 0o666, 0, 0];
    // SAFETY: the path ends in a zero.
    let Ok(to) = (unsafe { raw::result(libc::SYS_openat, arguments) }) else { return };
    // SAFETY: the line's own bytes.
    let _ = unsafe { raw::call(libc::SYS_write, [to, line.as_ptr() as usize, line.len(), 0, 0, 0]) };
    let _ = raw::close(to as c_int);
}

/// `rt_sigprocmask`, on the mask that the program goes on with; but SIGSYS is never blocked, or the next call would
/// end it.
///
/// # Safety
/// A context of the kernel's; masks are null or the program's.
unsafe fn mask(context: *mut libc::ucontext_t, [how, set, old, ..]: [usize; 6]) -> i64 {
    // SAFETY: the caller's. The kernel's mask are the first 8 bytes.
    let context = unsafe { &mut *context };
    // SAFETY: at least 8 bytes, aligned to 8.
    let current = unsafe { &mut *(&raw mut context.uc_sigmask).cast::<u64>() };
    let before = *current;
    // SAFETY: the caller's.
    if let Some(set) = unsafe { (set as *const u64).as_ref() } {
        *current = match how as c_int {
            libc::SIG_BLOCK => before | *set,
            libc::SIG_UNBLOCK => before & !*set,
            _ => *set,
        } & !(1 << (libc::SIGSYS - 1));
    }
    // SAFETY: the caller's.
    if let Some(old) = unsafe { (old as *mut u64).as_mut() } {
        *old = before;
    }
    0
}

/// `rt_sigaction`: no handler of the program's blocks SIGSYS, nor takes its place.
///
/// # Safety
/// Actions are null or the program's.
unsafe fn act([signal, action, old, size, ..]: [usize; 6]) -> i64 {
    if signal == libc::SIGSYS as usize {
        return 0;
    }
    // SAFETY: the caller's.
    let copy = unsafe { (action as *const Action).as_ref() }
        .map(|action| Action { mask: action.mask & !(1 << (libc::SIGSYS - 1)), ..*action });
    let copy = copy.as_ref().map_or(0, |copy| &raw const *copy as usize);
    // SAFETY: the program's call, with a copy of its action.
    unsafe { raw::call(libc::SYS_rt_sigaction, [signal, copy, old, size, 0, 0]) as i64 }
}

/// Of SIGSYS.
///
/// # Safety
/// As the kernel calls it.
unsafe extern "C" fn handle(_signal: c_int, information: *mut libc::siginfo_t, context: *mut c_void) {
    // The members of `siginfo` for SIGSYS: the address of the call, then its number.
    // SAFETY: the kernel's, for this signal.
    let number = c_long::from(unsafe { *information.cast::<c_int>().wrapping_add(6) });
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's.
    let registers = unsafe { &mut (*context).uc_mcontext.gregs };
    let arguments = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10, libc::REG_R8, libc::REG_R9]
        .map(|register| registers[register as usize] as usize);
    if let Some(fd) = escaped(number, arguments) {
        report(number, fd);
    }
    let repeats = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_vfork,
        libc::SYS_rt_sigreturn,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_rt_sigsuspend,
        libc::SYS_sigaltstack,
    ];
    if repeats.contains(&number) {
        // Made by the program itself, once it returns: it is about the program's own stack, or its signals. Until the
        // layer is next called, nothing is watched.
        SELECTOR.store(ALLOW, Ordering::Relaxed);
        registers[libc::REG_RIP as usize] -= 2;
        registers[libc::REG_RAX as usize] = number;
        return;
    }
    if number == libc::SYS_rt_sigprocmask {
        // SAFETY: the kernel's context, and the program's masks, which its C library handed over.
        registers[libc::REG_RAX as usize] = unsafe { mask(context, arguments) };
        return;
    }
    if number == libc::SYS_rt_sigaction {
        // SAFETY: the actions of the program, which its C library handed over.
        registers[libc::REG_RAX as usize] = unsafe { act(arguments) };
        return;
    }
    // One that waits is to be interrupted by the signals that the program has not blocked; here all are.
    let waits = WAITING.contains(&number);
    if waits {
        // SAFETY: the context that the kernel gave the handler; no reference is made.
        let mask = unsafe { &raw const (*context).uc_sigmask };
        // SAFETY: the kernel's mask, of 8 bytes.
        unsafe { set_mask(mask.cast()) };
    }
    // SAFETY: the program's call, made for it.
    registers[libc::REG_RAX as usize] = unsafe { raw::call(number, arguments) } as i64;
    if waits {
        // SAFETY: a mask of 8 bytes.
        unsafe { set_mask(&raw const ALL_SIGNALS) };
    }
}

static ALL_SIGNALS: u64 = u64::MAX;

/// Calls that may wait for long.
const WAITING: [c_long; 23] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_openat,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_pause,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_flock,
    libc::SYS_fcntl,
];

/// # Safety
/// A mask of 8 bytes.
unsafe fn set_mask(mask: *const u64) {
    // SAFETY: the caller's.
    let _ = unsafe { raw::call(libc::SYS_rt_sigprocmask, [libc::SIG_SETMASK as usize, mask as usize, 0, 8, 0, 0]) };
}
