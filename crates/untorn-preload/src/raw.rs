//! System calls, past the C library, whose functions are the ones the layer replaces.

#[cfg(target_arch = "aarch64")]
use core::arch::asm;
use core::ffi::{c_char, c_int, c_long};
use core::mem::MaybeUninit;

use libc::{stat, timespec};

/// `fcntl`: which signal a description sends.
pub(crate) const GETSIG: c_int = 11;
/// `fcntl`: sets it.
pub(crate) const SETSIG: c_int = 10;

/// One system call. A negative result is an errno. After it stands the return from a signal handler, for
/// the [oracle]: what the layer asks of the kernel, it asks from here.
///
/// [oracle]: crate::oracle
///
/// # Safety
/// What the system call asks for; `arguments` are six. Pointers into the program's memory may be wrong; the kernel
/// checks them.
#[cfg(target_arch = "x86_64")]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn gate(number: c_long, arguments: *const usize) -> isize {
    core::arch::naked_asm!(
        "mov rax, rdi",
        "mov r11, rsi",
        "mov rdi, [r11]",
        "mov rsi, [r11 + 8]",
        "mov rdx, [r11 + 16]",
        "mov r10, [r11 + 24]",
        "mov r8, [r11 + 32]",
        "mov r9, [r11 + 40]",
        "syscall",
        "ret",
        ".balign 16",
        "mov eax, 15", // rt_sigreturn, at RESTORE
        "syscall",
        "ud2",
        ".balign 64",
    )
}

/// Where the return from a signal handler stands in [`gate`].
#[cfg(all(feature = "oracle", target_arch = "x86_64"))]
pub(crate) const RESTORE: usize = 32;
/// The length of [`gate`].
#[cfg(all(feature = "oracle", target_arch = "x86_64"))]
pub(crate) const GATE: usize = 64;

/// One system call. A negative result is an errno.
///
/// # Safety
/// What the system call asks for. Pointers into the program's memory may be wrong; the kernel checks them.
#[cfg(target_arch = "x86_64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    // SAFETY: the caller's, and six of them.
    unsafe { gate(number, arguments.as_ptr()) }
}

/// One system call. A negative result is an errno.
///
/// # Safety
/// What the system call asks for. Pointers into the program's memory may be wrong; the kernel checks them.
#[cfg(target_arch = "aarch64")]
pub(crate) unsafe fn call(number: c_long, arguments: [usize; 6]) -> isize {
    let [a, b, c, d, e, f] = arguments;
    let result: isize;
    // SAFETY: the calling convention of the kernel; the caller answers for what the call does.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, in("x5") f,
            options(nostack)
        );
    }
    result
}

/// A system call whose result is a number or an errno.
///
/// # Safety
/// As for [`call`].
pub(crate) unsafe fn result(number: c_long, arguments: [usize; 6]) -> Result<usize, c_int> {
    // SAFETY: the caller's.
    let result = unsafe { call(number, arguments) };
    usize::try_from(result).map_err(|_| -result as c_int)
}

/// A descriptor as an argument.
pub(crate) fn word(number: c_int) -> usize {
    number as isize as usize
}

/// This thread's errno.
pub(crate) fn errno() -> *mut c_int {
    // SAFETY: takes nothing and never fails.
    unsafe { libc::__errno_location() }
}

pub(crate) fn getpid() -> u32 {
    // SAFETY: takes nothing and never fails.
    (unsafe { call(libc::SYS_getpid, [0; 6]) }) as u32
}

/// Ends this process at once, as by SIGKILL of somebody else.
pub(crate) fn die() {
    let me = getpid() as usize;
    // SAFETY: takes numbers.
    let _ = unsafe { call(libc::SYS_kill, [me, libc::SIGKILL as usize, 0, 0, 0, 0]) };
}

pub(crate) fn close(fd: c_int) -> Result<(), c_int> {
    // SAFETY: the caller owns the descriptor, or speaks for a program that does.
    unsafe { result(libc::SYS_close, [word(fd), 0, 0, 0, 0, 0]) }.map(drop)
}

/// `fcntl` with a number, or nothing, as its argument.
pub(crate) fn fcntl(fd: c_int, command: c_int, argument: c_int) -> Result<c_int, c_int> {
    // SAFETY: no command that is used here takes a pointer.
    unsafe { result(libc::SYS_fcntl, [word(fd), word(command), word(argument), 0, 0, 0]) }.map(|result| result as c_int)
}

pub(crate) fn fstat(fd: c_int) -> Result<stat, c_int> {
    let mut status = MaybeUninit::<stat>::zeroed();
    // SAFETY: the kernel fills a structure of this size.
    unsafe { result(libc::SYS_fstat, [word(fd), status.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // SAFETY: zeroed, and filled by the kernel; every bit pattern is one.
    Ok(unsafe { status.assume_init() })
}

/// Device and inode of a descriptor's file. Unlike [`fstat`] it asks for no times: of a file whose times were asked
/// for the kernel has to note each change after that anew (multigrain timestamps, Linux 6.13), which makes every
/// write slower.
pub(crate) fn file_of(fd: c_int) -> Result<(u64, u64), c_int> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    let (empty, mask) = (c"".as_ptr() as usize, libc::STATX_INO as usize);
    let arguments = [word(fd), empty, word(libc::AT_EMPTY_PATH), mask, status.as_mut_ptr() as usize, 0];
    // SAFETY: an empty string, and a structure that the kernel fills.
    unsafe { result(libc::SYS_statx, arguments) }?;
    // SAFETY: zeroed, and filled by the kernel; every bit pattern is one.
    let status = unsafe { status.assume_init() };
    Ok((libc::makedev(status.stx_dev_major, status.stx_dev_minor), status.stx_ino))
}

pub(crate) fn fsync(fd: c_int) -> Result<(), c_int> {
    // SAFETY: takes a number.
    unsafe { result(libc::SYS_fsync, [word(fd), 0, 0, 0, 0, 0]) }.map(drop)
}

/// Whether a descriptor is that of a directory. As for [`file_of`], nothing else is asked for.
pub(crate) fn is_directory(fd: c_int) -> bool {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    let (empty, mask) = (c"".as_ptr() as usize, libc::STATX_TYPE as usize);
    let arguments = [word(fd), empty, word(libc::AT_EMPTY_PATH), mask, status.as_mut_ptr() as usize, 0];
    // SAFETY: an empty string, and a structure that the kernel fills.
    let known = unsafe { result(libc::SYS_statx, arguments) }.is_ok();
    // SAFETY: zeroed, and filled by the kernel; every bit pattern is one.
    known && libc::mode_t::from(unsafe { status.assume_init() }.stx_mode) & libc::S_IFMT == libc::S_IFDIR
}

/// How long a descriptor's file is. As for [`file_of`], nothing else is asked for.
pub(crate) fn len_of(fd: c_int) -> Result<u64, c_int> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    let (empty, mask) = (c"".as_ptr() as usize, libc::STATX_SIZE as usize);
    let arguments = [word(fd), empty, word(libc::AT_EMPTY_PATH), mask, status.as_mut_ptr() as usize, 0];
    // SAFETY: an empty string, and a structure that the kernel fills.
    unsafe { result(libc::SYS_statx, arguments) }?;
    // SAFETY: zeroed, and filled by the kernel; every bit pattern is one.
    Ok(unsafe { status.assume_init() }.stx_size)
}

/// Whether this process may write files of a limited length only: the kernel knows what to do at the limit.
pub(crate) fn is_limited() -> bool {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let arguments = [0, libc::RLIMIT_FSIZE as usize, 0, &raw mut limit as usize, 0, 0];
    // SAFETY: the kernel fills a structure of this size.
    let known = unsafe { result(libc::SYS_prlimit64, arguments) };
    known.is_err() || limit.rlim_cur != libc::RLIM64_INFINITY
}

/// How many descriptors this process may have.
fn most_descriptors() -> c_int {
    let mut limit = libc::rlimit64 { rlim_cur: 0, rlim_max: 0 };
    let arguments = [0, libc::RLIMIT_NOFILE as usize, 0, &raw mut limit as usize, 0, 0];
    // SAFETY: the kernel fills a structure of this size.
    let known = unsafe { result(libc::SYS_prlimit64, arguments) };
    // One may have been opened before the limit was lowered.
    if known.is_ok() { limit.rlim_cur.clamp(1024, 65_536) as c_int } else { 65_536 }
}

/// The kind of file system that a descriptor's file is on.
pub(crate) fn file_system(fd: c_int) -> Result<i64, c_int> {
    let mut status = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: the kernel fills a structure of this size.
    unsafe { result(libc::SYS_fstatfs, [word(fd), status.as_mut_ptr() as usize, 0, 0, 0, 0]) }?;
    // SAFETY: zeroed, and filled by the kernel; every bit pattern is one.
    Ok(unsafe { status.assume_init() }.f_type)
}

/// A descriptor that stands for a directory, which need not be permitted to be read.
pub(crate) fn open_directory(directory: c_int, path: &core::ffi::CStr) -> Result<c_int, c_int> {
    let flags = word(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
    // SAFETY: the path ends in a zero.
    unsafe { result(libc::SYS_openat, [word(directory), path.as_ptr() as usize, flags, 0, 0, 0]) }.map(|fd| fd as c_int)
}

/// `fstatat`. The kernel checks the path.
pub(crate) fn stat_at(directory: c_int, path: *const c_char, flags: c_int) -> Result<stat, c_int> {
    let mut status = MaybeUninit::<stat>::zeroed();
    let arguments = [word(directory), path as usize, status.as_mut_ptr() as usize, word(flags), 0, 0];
    // SAFETY: the kernel fills a structure of this size.
    unsafe { result(libc::SYS_newfstatat, arguments) }?;
    // SAFETY: zeroed, and filled by the kernel; every bit pattern is one.
    Ok(unsafe { status.assume_init() })
}

/// Whether `open` would grant these rights to a file by its path.
pub(crate) fn may(directory: c_int, path: *const c_char, rights: c_int, flags: c_int) -> bool {
    let arguments = [word(directory), path as usize, word(rights), word(flags | libc::AT_EACCESS), 0, 0];
    // SAFETY: the kernel checks the path.
    unsafe { result(libc::SYS_faccessat2, arguments) }.is_ok()
}

pub(crate) fn pread(fd: c_int, into: &mut [u8], offset: u64) -> Result<usize, c_int> {
    let arguments = [word(fd), into.as_mut_ptr() as usize, into.len(), offset as usize, 0, 0];
    // SAFETY: the kernel writes to no more than the slice.
    unsafe { result(libc::SYS_pread64, arguments) }
}

pub(crate) fn seek(fd: c_int, offset: i64, whence: c_int) -> Result<u64, c_int> {
    // SAFETY: takes numbers.
    unsafe { result(libc::SYS_lseek, [word(fd), offset as usize, word(whence), 0, 0, 0]) }.map(|at| at as u64)
}

pub(crate) fn truncate(fd: c_int, len: u64) -> Result<(), c_int> {
    // SAFETY: takes numbers.
    unsafe { result(libc::SYS_ftruncate, [word(fd), len as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Whether 8 bytes of the program's memory are there. The kernel copies a mask from there before it finds that it is
/// told to do with it what it cannot.
pub(crate) fn is_readable(address: usize) -> bool {
    const NOTHING: usize = 77;
    // SAFETY: changes nothing, and the kernel checks the address.
    let told = unsafe { result(libc::SYS_rt_sigprocmask, [NOTHING, address, 0, 8, 0, 0]) };
    told == Err(libc::EINVAL)
}

/// A word of the program's memory; `None` if there is none.
pub(crate) fn word_at(address: usize) -> Option<u64> {
    // SAFETY: the bytes are there; if another thread takes them away right now, the program ends, as it does anywhere.
    is_readable(address).then(|| unsafe { (address as *const u64).read_unaligned() })
}

/// Whether a socket has bytes to read, or is at its end, or is none any more.
pub(crate) fn has_something(socket: c_int) -> bool {
    let (mut byte, flags) = (0_u8, libc::MSG_PEEK | libc::MSG_DONTWAIT);
    // SAFETY: the kernel writes to no more than the byte.
    let found = unsafe { result(libc::SYS_recvfrom, [word(socket), &raw mut byte as usize, 1, word(flags), 0, 0]) };
    found != Err(libc::EAGAIN)
}

/// Calls `each` with every descriptor of this process, until it fails. The first thread may have ended, and has none
/// then.
pub(crate) fn each_descriptor(mut each: impl FnMut(c_int) -> Result<(), c_int>) -> Result<(), c_int> {
    let flags = word(libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC);
    let arguments = [word(libc::AT_FDCWD), c"/proc/thread-self/fd".as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: the path ends in a zero.
    let Ok(list) = (unsafe { result(libc::SYS_openat, arguments) }) else {
        // Without /proc, or a descriptor to spare, all that there may be.
        return (0..most_descriptors()).try_for_each(each);
    };
    let list = list as c_int;
    let mut entries = [0; 4096];
    let outcome = loop {
        let arguments = [word(list), entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0];
        // SAFETY: the kernel writes to no more than the array.
        match unsafe { result(libc::SYS_getdents64, arguments) } {
            Ok(0) => break Ok(()),
            Ok(len) => {
                let mut named = entries_of(entries.get(..len).unwrap_or_default());
                if let Err(errno) = named.try_for_each(|fd| if fd == list { Ok(()) } else { each(fd) }) {
                    break Err(errno);
                }
            }
            Err(_) => break (0..most_descriptors()).try_for_each(&mut each),
        }
    };
    let _ = close(list);
    outcome
}

/// The numbers among the names that `getdents64` found.
fn entries_of(mut entries: &[u8]) -> impl Iterator<Item = c_int> {
    /// Where an entry has its length, and its name.
    const LEN: usize = 16;
    const NAME: usize = 19;
    core::iter::from_fn(move || {
        loop {
            let len = u16::from_ne_bytes(entries.get(LEN..)?.first_chunk().copied()?);
            let name = entries.get(NAME..usize::from(len))?.split(|byte| *byte == 0).next()?;
            entries = entries.get(usize::from(len)..)?;
            if let Some(fd) = core::str::from_utf8(name).ok().and_then(|name| name.parse().ok()) {
                return Some(fd);
            }
        }
    })
}

/// What the link `/proc/self/fd/N` names.
pub(crate) fn readlink(path: &core::ffi::CStr, into: &mut [u8]) -> Result<usize, c_int> {
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, into.as_mut_ptr() as usize, into.len(), 0, 0];
    // SAFETY: the path ends in a zero, and the kernel writes to no more than the slice.
    unsafe { result(libc::SYS_readlinkat, arguments) }
}

/// All signals blocked, until it is dropped.
pub(crate) struct Quiet {
    before: u64,
}

impl Quiet {
    pub(crate) fn new() -> Self {
        let all = u64::MAX;
        let mut before = 0_u64;
        let arguments = [libc::SIG_BLOCK as usize, &raw const all as usize, &raw mut before as usize, 8, 0, 0];
        // SAFETY: both masks are of the size that is given.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
        Quiet { before }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        let arguments = [libc::SIG_SETMASK as usize, &raw const self.before as usize, 0, 8, 0, 0];
        // SAFETY: the mask is of the size that is given.
        let _ = unsafe { call(libc::SYS_rt_sigprocmask, arguments) };
    }
}

/// Lets other threads go on first.
pub(crate) fn pause() {
    // SAFETY: takes nothing.
    let _ = unsafe { call(libc::SYS_sched_yield, [0; 6]) };
}

/// Waits until a word is no longer `value`, or for a millisecond.
pub(crate) fn wait(word: &core::sync::atomic::AtomicU32, value: u32) {
    let patience = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let private = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let arguments = [word.as_ptr() as usize, private as usize, value as usize, &raw const patience as usize, 0, 0];
    // SAFETY: the word lives on, for it is borrowed; the time is read.
    let _ = unsafe { call(libc::SYS_futex, arguments) };
}

/// The same of a word that other processes change, too.
pub(crate) fn wait_shared(word: &core::sync::atomic::AtomicU32, value: u32) {
    let patience = timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    let wait = libc::FUTEX_WAIT as usize;
    // SAFETY: the word lives on, for it is borrowed; the time is read.
    let _ = unsafe {
        call(libc::SYS_futex, [word.as_ptr() as usize, wait, value as usize, &raw const patience as usize, 0, 0])
    };
}

/// Wakes all that wait for a word, in whatever process.
pub(crate) fn wake_all_shared(word: &core::sync::atomic::AtomicU32) {
    let wake = libc::FUTEX_WAKE as usize;
    // SAFETY: the word lives on, for it is borrowed.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, wake, i32::MAX as usize, 0, 0, 0]) };
}

/// Wakes one that waits for a word, in whatever process.
pub(crate) fn wake_shared(word: &core::sync::atomic::AtomicU32) {
    let wake = libc::FUTEX_WAKE as usize;
    // SAFETY: the word lives on, for it is borrowed.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, wake, 1, 0, 0, 0]) };
}

/// Wakes one that waits for a word.
pub(crate) fn wake(word: &core::sync::atomic::AtomicU32) {
    let private = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word lives on, for it is borrowed.
    let _ = unsafe { call(libc::SYS_futex, [word.as_ptr() as usize, private as usize, 1, 0, 0, 0]) };
}
