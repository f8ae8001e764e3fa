//! `untorn/nvmmio.h`: the functions of the Libnvmmio paper (§3.1). The header says what each does, returns and
//! expects.
#![allow(clippy::missing_safety_doc, reason = "nvmmio.h says what each function expects of its arguments")]

use std::borrow::Cow;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use untorn_core::options::LogPolicy;
use untorn_core::testing::PerProcess;
use untorn_core::{Durability, EngineKind, Options};

use crate::mapped::{MappedFiles, Position, View};

use crate::abi::{NVM_LOG_HYBRID, NVM_LOG_REDO, NVM_LOG_UNDO};
use crate::boundary::source;
use crate::errors::{Failure, Result};
use crate::mapping::{
    self, Ranges, Request, copy, errno, filled, fits, not_null, read, sync, with_errno, writable, write,
};

/// The result of a comparison that failed. It is not 0, so that it is never taken for "equal", and a comparison that
/// succeeds never returns it.
const FAILED: c_int = c_int::MIN;

/// Bytes of a string that are read at first; most end within them.
const STRING_PIECE: usize = 256;

/// Reads and writes never look here. A panic while it is locked leaves at most a range that no call can unmap.
static MAPPED: PerProcess<Mutex<Ranges>> = PerProcess::new();

/// How the files are logged that are mapped from now on: the policy, and the most bytes, or 0 for the default. A forked
/// child has its parent's settings.
static LOG_POLICY: AtomicI64 = AtomicI64::new(NVM_LOG_HYBRID);
static LOG_SIZE: AtomicU64 = AtomicU64::new(0);

fn policy_of(number: i64) -> Option<LogPolicy> {
    Some(match number {
        NVM_LOG_HYBRID => LogPolicy::Hybrid,
        NVM_LOG_UNDO => LogPolicy::Undo,
        NVM_LOG_REDO => LogPolicy::Redo,
        _ => return None,
    })
}

fn options() -> Options {
    let options = Options::new().engine(EngineKind::HybridLog).durability(Durability::PerCommit);
    let options = options.log_policy(policy_of(LOG_POLICY.load(Ordering::Relaxed)).unwrap_or_default());
    match LOG_SIZE.load(Ordering::Relaxed) {
        0 => options,
        size => options.log_size(size),
    }
}

fn map(request: &Request) -> Result<usize> {
    Ok(MAPPED.lock().map(request, &options())?.0)
}

fn set_log(policy: c_int, size: usize) -> Result<()> {
    let unknown = || Failure::invalid(format!("{policy} is not a log policy; pass NVM_LOG_HYBRID, _UNDO or _REDO"));
    let policy = i64::from(policy);
    policy_of(policy).ok_or_else(unknown)?;
    LOG_POLICY.store(policy, Ordering::Relaxed);
    LOG_SIZE.store(size as u64, Ordering::Relaxed);
    Ok(())
}

fn unmap(addr: *mut c_void, length: usize) -> Result<()> {
    let inherited = || MAPPED.was_inherited(|parents| parents.has(addr.addr()));
    MAPPED.lock().take(addr.addr(), length, inherited)?;
    // Commits, also where another mapping keeps the file open.
    Ok(mapping::unmap(addr.addr())?.close()?)
}

fn set(dst: *mut c_void, byte: u8, n: usize) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    not_null(dst)?;
    let view = MappedFiles::global().view();
    let Some(to) = view.find(dst.addr()) else {
        // SAFETY: not a mapped file, so this is the memset the caller asked for, under memset's own conditions.
        unsafe { ptr::write_bytes(dst.cast::<u8>(), byte, n) };
        return Ok(());
    };
    fits(to.left(), n)?;
    writable(&to)?;
    write(&to, &filled(byte, n)?, false)
}

/// The `n` bytes at an address: of a mapped file, read atomically; of memory, where they are.
///
/// # Safety
/// Where no file is mapped, the bytes may be read, and no thread changes them as long as the result is in use.
unsafe fn bytes(view: &View, addr: *const c_void, n: usize) -> Result<Cow<'_, [u8]>> {
    not_null(addr)?;
    match view.find(addr.addr()) {
        Some(place) => Ok(Cow::Owned(read(&place, n)?)),
        // SAFETY: the caller vouches for the memory.
        None => Ok(Cow::Borrowed(unsafe { source(addr, n, "the memory") }?)),
    }
}

/// The string at an address, without the zero at its end; of a mapped file, read atomically.
///
/// # Safety
/// Where no file is mapped, there is a string that no thread changes as long as the result is in use.
unsafe fn string(view: &View, addr: *const c_char) -> Result<Cow<'_, [u8]>> {
    not_null(addr.cast())?;
    match view.find(addr.addr()) {
        Some(place) => Ok(Cow::Owned(read_string(&place)?)),
        // SAFETY: not null, and the caller vouches for the string.
        None => Ok(Cow::Borrowed(unsafe { CStr::from_ptr(addr) }.to_bytes())),
    }
}

/// Reads until there is a zero, each time more than the last and from the start: so the string is that of one instant.
fn read_string(place: &Position<'_>) -> Result<Vec<u8>> {
    let mut n = STRING_PIECE;
    loop {
        let in_file = usize::try_from(place.file().len().saturating_sub(place.offset())).unwrap_or(usize::MAX);
        let there = place.left().min(in_file);
        // Also where there is no byte: in a forked child the error says why.
        let mut text = read(place, n.min(there).max(1))?;
        if let Some(end) = text.iter().position(|&byte| byte == 0) {
            text.truncate(end);
            return Ok(text);
        }
        if n >= there {
            // The program may have made it longer.
            if place.file().accept_growth()? {
                continue;
            }
            return Err(errno(libc::EFAULT, "the string has no NUL byte within the mapping and the file"));
        }
        n = n.saturating_mul(4);
    }
}

/// Maps a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmmap(
    addr: *mut c_void,
    length: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    with_errno(|| map(&Request { addr, length, prot, flags, fd, offset }))
        .map_or(libc::MAP_FAILED, ptr::without_provenance_mut::<c_void>)
}

/// Sets a file's length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvftruncate(fd: c_int, length: libc::off_t) -> c_int {
    with_errno(|| MAPPED.lock().resize(fd, length, &options())).map_or(-1, |()| 0)
}

/// Sets how files are logged that are mapped from now on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlog(policy: c_int, size: usize) -> c_int {
    with_errno(|| set_log(policy, size)).map_or(-1, |()| 0)
}

/// Commits and ends a mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmunmap(addr: *mut c_void, length: usize) -> c_int {
    with_errno(|| unmap(addr, length)).map_or(-1, |()| 0)
}

/// Copies from, to or between mapped files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmemcpy(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    with_errno(|| copy(dst, src, n, false)).map_or(ptr::null_mut(), |()| dst)
}

/// Commits a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmsync(addr: *mut c_void, length: usize, flags: c_int) -> c_int {
    with_errno(|| sync(addr, length, flags)).map_or(-1, |()| 0)
}

/// Fills a range.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmemset(dst: *mut c_void, c: c_int, n: usize) -> *mut c_void {
    // As in memset, the byte is the low byte of the number.
    with_errno(|| set(dst, c as u8, n)).map_or(ptr::null_mut(), |()| dst)
}

/// Compares two ranges.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmemcmp(a: *const c_void, b: *const c_void, n: usize) -> c_int {
    with_errno(|| {
        if n == 0 {
            return Ok(0);
        }
        let view = MappedFiles::global().view();
        // SAFETY: bytes the caller lends for the call where they are memory of its own.
        let a = unsafe { bytes(&view, a, n) }?;
        // SAFETY: as above.
        let b = unsafe { bytes(&view, b, n) }?;
        Ok(a.cmp(&b) as c_int)
    })
    .unwrap_or(FAILED)
}

/// Compares two strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvstrcmp(a: *const c_char, b: *const c_char) -> c_int {
    with_errno(|| {
        let view = MappedFiles::global().view();
        // SAFETY: a string the caller lends for the call where it is memory of its own.
        let a = unsafe { string(&view, a) }?;
        // SAFETY: as above.
        let b = unsafe { string(&view, b) }?;
        Ok(a.cmp(&b) as c_int)
    })
    .unwrap_or(FAILED)
}
