//! `untorn/acumen.h`: the functions of the Acumen paper (§IV-A). What each does, returns and expects is written there.
#![allow(clippy::missing_safety_doc, reason = "acumen.h says what each function expects of its arguments")]

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use untorn_core::medium::Access;
use untorn_core::{AtomicFile, Durability, Error, MappedFiles, Options};

use crate::abi::{ATO_EAGER, ATO_FAST, ATO_SPATIAL};
use crate::boundary::{guarded, source, target};
use crate::descriptor::{Described, FileId, describe};
use crate::errors::{Failure, Result};

/// Flags of mmap that ask for speed or for memory to be set aside, neither of which a mapping by name has a use for.
const HINTS: c_int = libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_NORESERVE
    | libc::MAP_LOCKED
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_SYNC;

/// What mapping and unmapping keep in mind. Reads and writes never look here.
#[derive(Default)]
struct Mapped {
    /// By first address.
    ranges: BTreeMap<usize, Range>,
    files: HashMap<FileId, Unmap>,
}

struct Range {
    len: usize,
    file: FileId,
}

/// How many ranges of a file are mapped, and what happens to it when there are none.
#[derive(Default)]
struct Unmap {
    ranges: usize,
    spatial: bool,
}

/// Held while a file is mapped or unmapped, so that settling a file and mapping it anew do not meet.
fn mapped() -> MutexGuard<'static, Mapped> {
    static MAPPED: LazyLock<Mutex<Mapped>> = LazyLock::new(Mutex::default);
    // A panic in between leaves at most a file that is counted once too often and so never settled.
    MAPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

fn errno(errno: c_int, message: impl Into<String>) -> Failure {
    Failure::new(-i64::from(errno), message)
}

/// Runs the body of a function that reports through errno.
fn with_errno<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, ()> {
    guarded(body).map_err(|failure| {
        // SAFETY: the function has no precondition.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: it returns the address of this thread's errno, which lives as long as the thread.
        unsafe { place.write(failure.errno()) };
    })
}

fn page_size() -> usize {
    // SAFETY: sysconf has no precondition for a name it knows.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as usize
}

/// Opens the file for mappings of these rights.
fn open(file: &Described) -> Result<AtomicFile> {
    let options = Options::new().durability(Durability::PerWrite);
    if file.writable {
        return Ok(options.open(&file.path)?);
    }
    match options.clone().read_only(true).open(&file.path) {
        // The file is open for writing elsewhere in this process; the mapping shares that state and does not write.
        Err(Error::InUse { .. }) => Ok(options.open(&file.path)?),
        result => Ok(result?),
    }
}

fn map(addr: *mut c_void, length: usize, prot: c_int, flags: c_int, fd: c_int, offset: libc::off_t) -> Result<usize> {
    let kind = flags & libc::MAP_TYPE;
    if flags & libc::MAP_ANONYMOUS != 0 || (kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE) {
        return Err(Failure::invalid("only a shared mapping of a file reaches the file; pass MAP_SHARED"));
    }
    let fixed = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    let unserved = flags & !(libc::MAP_TYPE | libc::MAP_FIXED_NOREPLACE | HINTS);
    if unserved != 0 {
        return Err(errno(libc::EOPNOTSUPP, format!("the mmap flags {unserved:#x} are not supported here")));
    }
    if prot & libc::PROT_READ == 0 || prot & !(libc::PROT_READ | libc::PROT_WRITE) != 0 {
        return Err(errno(libc::EOPNOTSUPP, "a mapping is PROT_READ or PROT_READ | PROT_WRITE"));
    }
    let offset = u64::try_from(offset).map_err(|_| Failure::invalid("the offset is negative"))?;
    // Checked here too, so that a call that cannot succeed does not give the file a sidecar.
    if length == 0 || !offset.is_multiple_of(page_size() as u64) {
        return Err(Failure::invalid("a mapping has at least one byte and starts at a page of the file"));
    }
    let mut mapped = mapped();
    let described = describe(fd)?;
    let write = prot & libc::PROT_WRITE != 0;
    if !described.readable || (write && !described.writable) {
        let message = format!("{} is not open for what the mapping is to do", described.path.display());
        return Err(errno(libc::EACCES, message));
    }
    let access = if write { Access::ReadWrite } else { Access::Read };
    let near = (!addr.is_null()).then_some(addr.addr());
    let files = MappedFiles::global();
    let file = open(&described)?;
    let mapping = match files.map_near(near, &file, offset, length, access) {
        Ok(mapping) => mapping,
        Err(error) => {
            // The file may have been opened for this call alone; the error of mapping it is the one that helps.
            let _ = file.close();
            return Err(error.into());
        }
    };
    if fixed && near != Some(mapping.address()) {
        files.unmap(mapping.address());
        let _ = file.close();
        return Err(errno(libc::EEXIST, "something else is mapped at the address asked for"));
    }
    mapped.ranges.insert(mapping.address(), Range { len: length, file: described.id });
    mapped.files.entry(described.id).or_default().ranges += 1;
    Ok(mapping.address())
}

fn unmap(addr: *mut c_void, length: usize) -> Result<()> {
    let page = page_size();
    let mut mapped = mapped();
    let range = mapped.ranges.get(&addr.addr()).ok_or_else(|| Failure::invalid("no mapping starts at this address"))?;
    if length.div_ceil(page) != range.len.div_ceil(page) {
        let whole = range.len;
        return Err(Failure::invalid(format!("a mapping is unmapped as a whole: pass its {whole} bytes")));
    }
    let id = range.file;
    mapped.ranges.remove(&addr.addr());
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
    let file = MappedFiles::global()
        .unmap(addr.addr())
        .ok_or_else(|| Failure::invalid("the mapping at this address was not made by ato_mmap"))?;
    if last && spatial {
        file.settle()?;
    } else {
        file.close()?;
    }
    Ok(())
}

/// The error for a range of a mapping that is shorter than `n`, or nothing.
fn fits(left: usize, n: usize) -> Result<()> {
    if n <= left { Ok(()) } else { Err(errno(libc::EFAULT, "the range reaches beyond the end of the mapping")) }
}

fn copy(dst: *mut c_void, src: *const c_void, n: usize, eager: bool) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    if dst.is_null() || src.is_null() {
        return Err(errno(libc::EFAULT, "the address is NULL"));
    }
    let view = MappedFiles::global().view();
    let from = view.find(src.addr());
    let Some(to) = view.find(dst.addr()) else {
        let Some(from) = from else {
            // SAFETY: neither side is a mapped file, so this is the memcpy the caller asked for, under memcpy's own
            // conditions; overlapping ranges are allowed besides.
            unsafe { ptr::copy(src.cast::<u8>(), dst.cast::<u8>(), n) };
            return Ok(());
        };
        fits(from.left(), n)?;
        // SAFETY: n bytes the caller lends for the call; they are memory of its own, outside every mapping.
        let dst = unsafe { target(dst, n, "dst") }?;
        return Ok(from.file().read_at(dst, from.offset())?);
    };
    fits(to.left(), n)?;
    if to.access() != Access::ReadWrite {
        let path = to.file().path().display();
        return Err(errno(libc::EACCES, format!("{path} is mapped without PROT_WRITE")));
    }
    let between;
    let src = match from {
        Some(from) => {
            fits(from.left(), n)?;
            let mut buffer = Vec::new();
            buffer.try_reserve_exact(n).map_err(|_| errno(libc::ENOMEM, "no memory to copy through"))?;
            buffer.resize(n, 0);
            from.file().read_at(&mut buffer, from.offset())?;
            between = buffer;
            between.as_slice()
        }
        // SAFETY: n bytes the caller lends for the call; they are memory of its own, outside every mapping.
        None => unsafe { source(src, n, "src") }?,
    };
    if eager {
        to.file().write_at_eager(src, to.offset())?;
    } else {
        to.file().write_at(src, to.offset())?;
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
    with_errno(|| map(addr, length, prot, flags, fd, offset))
        .map_or(libc::MAP_FAILED, ptr::without_provenance_mut::<c_void>)
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
            return Err(Failure::invalid(format!("{flags:#x} holds an unknown flag; ATO_EAGER is known")));
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
            _ => return Err(Failure::invalid(format!("{mode} is no mode; pass ATO_FAST or ATO_SPATIAL"))),
        };
        let mut mapped = mapped();
        let id = mapped.ranges.get(&addr.addr()).map(|range| range.file);
        let file = id.and_then(|id| mapped.files.get_mut(&id));
        file.ok_or_else(|| Failure::invalid("no mapping starts at this address"))?.spatial = spatial;
        Ok(())
    })
    .map_or(-1, |()| 0)
}
