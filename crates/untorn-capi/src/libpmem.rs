//! `untorn/libpmem.h`: the functions of libpmem, with atomic commits. The header says what each does, returns and
//! expects.
#![allow(clippy::missing_safety_doc, reason = "untorn/libpmem.h says what each function expects of its arguments")]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::ptr;

use crate::abi::{PMEM_F_MEM_NODRAIN, PMEM_F_MEM_NOFLUSH, PMEM_MAJOR_VERSION, PMEM_MINOR_VERSION};
use crate::boundary::path_at;
use crate::errors::last_text;
use crate::mapping::with_errno;
use crate::pmem::{self, Request};

/// Maps a file or a region.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_map_file(
    path: *const c_char,
    len: usize,
    flags: c_int,
    mode: libc::mode_t,
    mapped_len: *mut usize,
    is_pmem: *mut c_int,
) -> *mut c_void {
    let mapped = with_errno(|| {
        // SAFETY: null or a string that ends with a zero, as untorn/libpmem.h asks.
        let path = unsafe { path_at(path) }?;
        pmem::map(&Request { path, len, flags, mode })
    });
    let Ok((address, len)) = mapped else { return ptr::null_mut() };
    if !mapped_len.is_null() {
        // SAFETY: not null; untorn/libpmem.h asks for a place where a size_t may be written.
        unsafe { mapped_len.write(len) };
    }
    if !is_pmem.is_null() {
        let said = c_int::from(pmem::is_pmem(address, len));
        // SAFETY: not null; untorn/libpmem.h asks for a place where an int may be written.
        unsafe { is_pmem.write(said) };
    }
    ptr::with_exposed_provenance_mut(address)
}

/// Commits and ends a mapping.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_unmap(addr: *mut c_void, len: usize) -> c_int {
    with_errno(|| pmem::unmap(addr.addr(), len)).map_or(-1, |()| 0)
}

/// Commits.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_msync(addr: *const c_void, len: usize) -> c_int {
    with_errno(|| pmem::commit(addr.addr(), len)).map_or(-1, |()| 0)
}

/// Commits.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_deep_persist(addr: *const c_void, len: usize) -> c_int {
    untorn_pmem_msync(addr, len)
}

/// Commits.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_deep_drain(addr: *const c_void, len: usize) -> c_int {
    untorn_pmem_msync(addr, len)
}

/// Commits, and returns no error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_persist(addr: *const c_void, len: usize) {
    let _ = with_errno(|| pmem::persist(addr.addr(), len));
}

/// Notes a mapping for the next drain.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_flush(addr: *const c_void, len: usize) {
    let _ = with_errno(|| pmem::flush(addr.addr(), len));
}

/// Notes a mapping for the next drain.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_deep_flush(addr: *const c_void, len: usize) {
    untorn_pmem_flush(addr, len);
}

/// Commits what was noted, and returns no error.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_drain() {
    let _ = with_errno(pmem::drain);
}

/// Does what the flags ask for after bytes were stored.
fn stored(to: *mut c_void, len: usize, flags: c_uint) -> *mut c_void {
    let has = |flag: i64| i64::from(flags) & flag != 0;
    if has(PMEM_F_MEM_NOFLUSH) {
    } else if has(PMEM_F_MEM_NODRAIN) {
        untorn_pmem_flush(to, len);
    } else {
        untorn_pmem_persist(to, len);
    }
    to
}

/// Copies bytes, which may overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memmove(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    flags: c_uint,
) -> *mut c_void {
    // SAFETY: the memmove that the caller asks for, under memmove's conditions.
    unsafe { ptr::copy(from.cast::<u8>(), to.cast::<u8>(), len) };
    stored(to, len, flags)
}

/// Copies bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memcpy(
    to: *mut c_void,
    from: *const c_void,
    len: usize,
    flags: c_uint,
) -> *mut c_void {
    // SAFETY: the same conditions and more.
    unsafe { untorn_pmem_memmove(to, from, len, flags) }
}

/// Fills bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memset(to: *mut c_void, byte: c_int, len: usize, flags: c_uint) -> *mut c_void {
    // SAFETY: the memset that the caller asks for, under memset's conditions; it takes the lowest byte.
    unsafe { ptr::write_bytes(to.cast::<u8>(), byte as u8, len) };
    stored(to, len, flags)
}

/// Copies bytes, and persists them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memcpy_persist(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { untorn_pmem_memmove(to, from, len, 0) }
}

/// Copies bytes, which may overlap, and persists them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memmove_persist(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { untorn_pmem_memmove(to, from, len, 0) }
}

/// Fills bytes, and persists them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memset_persist(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { untorn_pmem_memset(to, byte, len, 0) }
}

/// Copies bytes, and notes the mapping for the next drain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memcpy_nodrain(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { untorn_pmem_memmove(to, from, len, PMEM_F_MEM_NODRAIN as c_uint) }
}

/// Copies bytes, which may overlap, and notes the mapping for the next drain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memmove_nodrain(to: *mut c_void, from: *const c_void, len: usize) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { untorn_pmem_memmove(to, from, len, PMEM_F_MEM_NODRAIN as c_uint) }
}

/// Fills bytes, and notes the mapping for the next drain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn untorn_pmem_memset_nodrain(to: *mut c_void, byte: c_int, len: usize) -> *mut c_void {
    // SAFETY: the caller vouches for it.
    unsafe { untorn_pmem_memset(to, byte, len, PMEM_F_MEM_NODRAIN as c_uint) }
}

/// Whether programs are to take a range for persistent memory.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_is_pmem(addr: *const c_void, len: usize) -> c_int {
    with_errno(|| Ok(pmem::is_pmem(addr.addr(), len))).map_or(0, c_int::from)
}

/// No.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_has_auto_flush() -> c_int {
    0
}

/// No.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_has_hw_drain() -> c_int {
    0
}

/// Whether a program that was compiled for this version of libpmem is served.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_check_version(major: c_uint, minor: c_uint) -> *const c_char {
    if i64::from(major) != PMEM_MAJOR_VERSION {
        c"libpmem of another major version was asked for; untorn has the functions of 1.1".as_ptr()
    } else if i64::from(minor) > PMEM_MINOR_VERSION {
        c"a later libpmem was asked for; untorn has the functions of 1.1".as_ptr()
    } else {
        ptr::null()
    }
}

/// The text of this thread's last failure.
#[unsafe(no_mangle)]
pub extern "C" fn untorn_pmem_errormsg() -> *const c_char {
    last_text()
}
