//! `untorn/acumen.h`: the functions of the Acumen paper (§IV-A). The header says what each does, returns and expects.
#![allow(clippy::missing_safety_doc, reason = "acumen.h says what each function expects of its arguments")]

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::Mutex;

use untorn_core::testing::PerProcess;
use untorn_core::{Durability, EngineKind, Options};

use crate::abi::{ATO_EAGER, ATO_FAST, ATO_PER_COMMIT, ATO_SPATIAL};
use crate::descriptor::FileId;
use crate::errors::{Failure, Result};
use crate::mapped::MappedFiles;
use crate::mapping::{self, Ranges, Request, copy, no_mapping_at, sync, with_errno};

/// The state of mapping and unmapping. Reads and writes never look here.
#[derive(Default)]
struct Mapped {
    ranges: Ranges,
    files: HashMap<FileId, Unmap>,
}

/// How many ranges of a file are mapped, and what happens to it when there are none.
#[derive(Default)]
struct Unmap {
    ranges: usize,
    spatial: bool,
}

/// Locked while a file is mapped or unmapped, so that settling a file and mapping it anew do not meet. A panic in
/// between leaves at most a file that is counted once too often and so never settled.
static MAPPED: PerProcess<Mutex<Mapped>> = PerProcess::new();

/// Whether a mapping of a process that this one was forked from starts there.
fn inherited(addr: *mut c_void) -> bool {
    MAPPED.was_inherited(|parents| parents.ranges.has(addr.addr()))
}

/// The sidecar stays and holds nothing, so the program may resize the file between two mappings.
fn options(durability: Durability) -> Options {
    Options::new().engine(EngineKind::Reflection).durability(durability).keep_sidecar(true).plain_at_close(true)
}

fn map(request: &Request) -> Result<usize> {
    let per_commit = request.flags & ATO_PER_COMMIT as c_int;
    let durability = if per_commit == 0 { Durability::PerWrite } else { Durability::PerCommit };
    let request = Request { flags: request.flags & !per_commit, ..*request };
    let mut mapped = MAPPED.lock();
    let (address, file) = mapped.ranges.map(&request, &options(durability))?;
    mapped.files.entry(file).or_default().ranges += 1;
    Ok(address)
}

fn unmap(addr: *mut c_void, length: usize) -> Result<()> {
    let mut mapped = MAPPED.lock();
    let id = mapped.ranges.take(addr.addr(), length, || inherited(addr))?;
    let mut last = false;
    let mut spatial = false;
    if let Some(file) = mapped.files.get_mut(&id) {
        file.ranges -= 1;
        last = file.ranges == 0;
        spatial = file.spatial;
    }
    if last {
        mapped.files.remove(&id);
    }
    let file = mapping::unmap(addr.addr())?;
    if last && spatial {
        file.settle()?;
    } else {
        file.close()?;
    }
    Ok(())
}

/// Maps a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_mmap(
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
pub unsafe extern "C" fn ato_ftruncate(fd: c_int, length: libc::off_t) -> c_int {
    with_errno(|| MAPPED.lock().ranges.resize(fd, length, &options(Durability::PerWrite))).map_or(-1, |()| 0)
}

/// Commits a file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_msync(addr: *mut c_void, length: usize, flags: c_int) -> c_int {
    with_errno(|| sync(addr, length, flags)).map_or(-1, |()| 0)
}

/// Frees the space of reflection pages that hold nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_reclaim(addr: *mut c_void) -> libc::ssize_t {
    with_errno(|| {
        let view = MappedFiles::global().view();
        let place = view.find(addr.addr()).ok_or_else(|| no_mapping_at(|| inherited(addr)))?;
        Ok(place.file().reclaim()?)
    })
    .map_or(-1, |freed| freed as libc::ssize_t)
}

/// Ends a mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_munmap(addr: *mut c_void, length: usize) -> c_int {
    with_errno(|| unmap(addr, length)).map_or(-1, |()| 0)
}

/// Copies from, to or between mapped files.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_memcpy(dst: *mut c_void, src: *const c_void, n: usize) -> *mut c_void {
    with_errno(|| copy(dst, src, n, false)).map_or(ptr::null_mut(), |()| dst)
}

/// `ato_memcpy` with flags.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_memcpy2(dst: *mut c_void, src: *const c_void, n: usize, flags: c_uint) -> *mut c_void {
    with_errno(|| {
        let flags = i64::from(flags);
        if flags & !ATO_EAGER != 0 {
            return Err(Failure::invalid(format!("the flags {flags:#x} include an unknown flag; pass ATO_EAGER or 0")));
        }
        copy(dst, src, n, flags & ATO_EAGER != 0)
    })
    .map_or(ptr::null_mut(), |()| dst)
}

/// Sets what happens to a file when its last mapping ends.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ato_unmap_mode(addr: *mut c_void, mode: c_int) -> c_int {
    with_errno(|| {
        let spatial = match i64::from(mode) {
            ATO_FAST => false,
            ATO_SPATIAL => true,
            _ => return Err(Failure::invalid(format!("{mode} is not a known mode; pass ATO_FAST or ATO_SPATIAL"))),
        };
        let mut mapped = MAPPED.lock();
        let id = mapped.ranges.file(addr.addr());
        let file = id.and_then(|id| mapped.files.get_mut(&id));
        file.ok_or_else(|| no_mapping_at(|| inherited(addr)))?.spatial = spatial;
        Ok(())
    })
    .map_or(-1, |()| 0)
}
