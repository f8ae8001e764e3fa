//! Files at addresses: what the functions of both papers have in common. Arguments of mmap, copies whose sides are told
//! apart by address, and failures reported through errno.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::fs;
use std::ptr;

use untorn_core::testing::storage::Access;
use untorn_core::{AtomicFile, Error, Options};

use crate::mapped::{MappedFiles, Position};

use crate::abi::UNTORN_EOWNERDEAD;
use crate::boundary::{guarded, source, target};
use crate::descriptor::{Described, FileId, describe};
use crate::errors::{Failure, Result};

/// Flags of mmap that ask for speed or for memory to be set aside. A mapping by name uses neither.
pub(crate) const HINTS: c_int = libc::MAP_POPULATE
    | libc::MAP_NONBLOCK
    | libc::MAP_NORESERVE
    | libc::MAP_LOCKED
    | libc::MAP_STACK
    | libc::MAP_HUGETLB
    | libc::MAP_SYNC;

/// The arguments of a call in the manner of mmap.
pub(crate) struct Request {
    pub(crate) addr: *mut c_void,
    pub(crate) length: usize,
    pub(crate) prot: c_int,
    pub(crate) flags: c_int,
    pub(crate) fd: c_int,
    pub(crate) offset: libc::off_t,
}

/// The ranges that one family of functions has mapped, by first address. Reads and writes never look here.
#[derive(Default)]
pub(crate) struct Ranges(BTreeMap<usize, Range>);

struct Range {
    len: usize,
    file: FileId,
}

/// A failure that is an errno.
pub(crate) fn errno(errno: c_int, message: impl Into<String>) -> Failure {
    Failure::new(-i64::from(errno), message)
}

/// Runs the body of a function that reports through errno.
pub(crate) fn with_errno<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, ()> {
    guarded(body).map_err(|failure| {
        // SAFETY: the function has no precondition.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: it returns the address of this thread's errno, which lives as long as the thread.
        unsafe { place.write(failure.errno()) };
    })
}

pub(crate) fn page_size() -> usize {
    // SAFETY: sysconf has no precondition for a name it knows.
    (unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) as usize
}

/// Opens the file for mappings of these rights, and shares it with the mappings of other processes.
fn open(file: &Described, options: &Options) -> Result<AtomicFile> {
    let options = options.clone().grow_with_file(true);
    let open = || match options.clone().shared(true).admits_unshared(true).open(&file.path) {
        // A handle of untorn.h in this process may have it for itself; the mapping shares that state. If another
        // process has it, the first error says how.
        Err(first @ Error::InUse { .. }) => options.open(&file.path).map_err(|_| first),
        result => result,
    };
    if file.writable {
        return Ok(open()?);
    }
    match options.clone().read_only(true).open(&file.path) {
        // The file is open for writing in this process or in others; the mapping shares that state and does not write.
        Err(first @ Error::InUse { .. }) => Ok(open().map_err(|_| first)?),
        result => Ok(result?),
    }
}

/// Has the file as long as the program made it, by ftruncate(2), before it mapped it up to `end`.
fn follow(file: &AtomicFile, described: &Described, end: u64) -> Result<()> {
    if !described.writable || described.len <= file.len() || file.accept_growth()? {
        return Ok(());
    }
    // After a crash, recovery takes a length back that no commit has. Beyond what is mapped nobody misses it.
    let was_cut = fs::metadata(&described.path).is_ok_and(|now| now.len() < described.len);
    let wanted = described.len.min(end);
    if was_cut && wanted > file.len() {
        file.resize(wanted)?;
    }
    Ok(())
}

/// Maps as the request says, opens the file as the options say, and returns the first address and which file it is.
fn map(request: &Request, options: &Options) -> Result<(usize, FileId)> {
    let &Request { addr, length, prot, flags, fd, offset } = request;
    let kind = flags & libc::MAP_TYPE;
    if flags & libc::MAP_ANONYMOUS != 0 || (kind != libc::MAP_SHARED && kind != libc::MAP_SHARED_VALIDATE) {
        return Err(Failure::invalid("only a shared file mapping writes to the file; pass MAP_SHARED"));
    }
    let fixed = flags & libc::MAP_FIXED_NOREPLACE == libc::MAP_FIXED_NOREPLACE;
    let unserved = flags & !(libc::MAP_TYPE | libc::MAP_FIXED_NOREPLACE | HINTS);
    if unserved != 0 {
        return Err(errno(libc::EOPNOTSUPP, format!("the mmap flags {unserved:#x} are not supported")));
    }
    if prot & libc::PROT_READ == 0 || prot & !(libc::PROT_READ | libc::PROT_WRITE) != 0 {
        return Err(errno(libc::EOPNOTSUPP, "unsupported protection; pass PROT_READ or PROT_READ | PROT_WRITE"));
    }
    let offset = u64::try_from(offset).map_err(|_| Failure::invalid("the offset is negative"))?;
    // Checked here too, so that a call that cannot succeed does not give the file a sidecar.
    if length == 0 || !offset.is_multiple_of(page_size() as u64) {
        return Err(Failure::invalid("the length must be at least 1 and the offset a multiple of the page size"));
    }
    let described = describe(fd)?;
    let write = prot & libc::PROT_WRITE != 0;
    if !described.readable || (write && !described.writable) {
        let message = format!("{} is not open for the access that the mapping asks for", described.path.display());
        return Err(errno(libc::EACCES, message));
    }
    let access = if write { Access::ReadWrite } else { Access::Read };
    let near = (!addr.is_null()).then_some(addr.addr());
    let files = MappedFiles::global();
    let file = open(&described, options)?;
    let mapped = follow(&file, &described, offset.saturating_add(length as u64))
        .and_then(|()| Ok(files.map_near(near, &file, offset, length, access)?));
    let mapping = match mapped {
        Ok(mapping) => mapping,
        Err(failure) => {
            // The file may have been opened for this call alone; the error of mapping it is the one that helps.
            let _ = file.close();
            return Err(failure);
        }
    };
    if fixed && near != Some(mapping.address()) {
        files.unmap(mapping.address());
        let _ = file.close();
        return Err(errno(libc::EEXIST, "another mapping is already at the requested address"));
    }
    Ok((mapping.address(), described.id))
}

impl Ranges {
    /// Maps as the request says, opens the file as the options say, and returns the first address and which file it is.
    pub(crate) fn map(&mut self, request: &Request, options: &Options) -> Result<(usize, FileId)> {
        let (address, file) = map(request, options)?;
        self.0.insert(address, Range { len: request.length, file });
        Ok((address, file))
    }

    /// The file of the mapping that starts at `address`.
    pub(crate) fn file(&self, address: usize) -> Option<FileId> {
        self.0.get(&address).map(|range| range.file)
    }

    /// Sets the length of the file behind `fd`: through one of its mappings, or else of the file at rest, opened as the
    /// options say.
    pub(crate) fn resize(&self, fd: c_int, length: libc::off_t, options: &Options) -> Result<()> {
        let length = u64::try_from(length).map_err(|_| Failure::invalid("the length is negative"))?;
        let described = describe(fd)?;
        if !described.writable {
            let message = format!("{} is not open for writing", described.path.display());
            return Err(errno(libc::EACCES, message));
        }
        let view = MappedFiles::global().view();
        let mapped = self.0.iter().find(|(_, range)| range.file == described.id);
        if let Some(place) = mapped.and_then(|(&address, _)| view.find(address)) {
            place.file().accept_growth()?;
            return Ok(place.file().resize(length)?);
        }
        let file = open(&described, options)?;
        file.resize(length)?;
        Ok(file.close()?)
    }

    /// Whether one starts at `address`.
    pub(crate) fn has(&self, address: usize) -> bool {
        self.0.contains_key(&address)
    }

    /// Takes out the mapping that starts at `address` and is `length` bytes long, up to the end of its last page. The
    /// caller has to unmap it. `inherited` tells whether a process that this one was forked from has one there.
    pub(crate) fn take(&mut self, address: usize, length: usize, inherited: impl FnOnce() -> bool) -> Result<FileId> {
        let page = page_size();
        let range = self.0.get(&address).ok_or_else(|| no_mapping_at(inherited))?;
        if length.div_ceil(page) != range.len.div_ceil(page) {
            let whole = range.len;
            return Err(Failure::invalid(format!(
                "a mapping can only be unmapped as a whole; pass its length, {whole} \
                                                 bytes"
            )));
        }
        let file = range.file;
        self.0.remove(&address);
        Ok(file)
    }
}

/// Why no mapping of this process starts at an address.
pub(crate) fn no_mapping_at(inherited: impl FnOnce() -> bool) -> Failure {
    if inherited() {
        let message = "the mapping at this address belongs to the parent process and cannot be used after fork(2); map \
                       the file again";
        return Failure::new(UNTORN_EOWNERDEAD, message);
    }
    Failure::invalid("no mapping starts at this address; pass the address that the mapping call returned")
}

/// Ends the mapping that starts at `address` and returns its handle, when every copy under way is through.
pub(crate) fn unmap(address: usize) -> Result<AtomicFile> {
    let gone = || Failure::invalid("the mapping at this address was already unmapped");
    MappedFiles::global().unmap(address).ok_or_else(gone)
}

/// The error for a range of a mapping that is shorter than `n`, or nothing.
pub(crate) fn fits(left: usize, n: usize) -> Result<()> {
    if n <= left { Ok(()) } else { Err(errno(libc::EFAULT, "the range ends beyond the end of the mapping")) }
}

/// Refuses NULL, as an address that cannot be accessed.
pub(crate) fn not_null(addr: *const c_void) -> Result<()> {
    if addr.is_null() { Err(errno(libc::EFAULT, "the address is NULL")) } else { Ok(()) }
}

/// Refuses a mapping that was made for reading.
pub(crate) fn writable(place: &Position<'_>) -> Result<()> {
    if place.access() == Access::ReadWrite {
        return Ok(());
    }
    let path = place.file().path().display();
    Err(errno(libc::EACCES, format!("{path} is mapped without PROT_WRITE")))
}

/// `n` bytes of one value, in memory that may not be there.
pub(crate) fn filled(byte: u8, n: usize) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    buffer.try_reserve_exact(n).map_err(|_| errno(libc::ENOMEM, "cannot allocate a buffer for the copy"))?;
    buffer.resize(n, byte);
    Ok(buffer)
}

/// Accesses a mapped file, and once more if the range lay beyond the end of the file and the program has made it longer
/// meanwhile, by ftruncate(2) through its own descriptor.
fn access(place: &Position<'_>, mut act: impl FnMut(&AtomicFile, u64) -> untorn_core::Result<()>) -> Result<()> {
    match act(place.file(), place.offset()) {
        Err(Error::OutOfRange { .. }) if place.file().accept_growth()? => Ok(act(place.file(), place.offset())?),
        done => Ok(done?),
    }
}

/// The `n` bytes from there on, read atomically.
pub(crate) fn read(place: &Position<'_>, n: usize) -> Result<Vec<u8>> {
    fits(place.left(), n)?;
    let mut buffer = filled(0, n)?;
    access(place, |file, offset| file.read_at(&mut buffer, offset))?;
    Ok(buffer)
}

/// Writes bytes to a mapped file, atomically, if it is mapped for that; with `eager`, deploys them.
pub(crate) fn write(place: &Position<'_>, bytes: &[u8], eager: bool) -> Result<()> {
    fits(place.left(), bytes.len())?;
    writable(place)?;
    access(place, |file, offset| if eager { file.write_at_eager(bytes, offset) } else { file.write_at(bytes, offset) })
}

/// Commits the file that is mapped at an address: msync, whose flags and range it has.
pub(crate) fn sync(addr: *mut c_void, length: usize, flags: c_int) -> Result<()> {
    let (now, later) = (flags & libc::MS_SYNC != 0, flags & libc::MS_ASYNC != 0);
    if flags & !(libc::MS_SYNC | libc::MS_ASYNC | libc::MS_INVALIDATE) != 0 || (now && later) {
        return Err(Failure::invalid(format!("the msync flags {flags:#x} are not valid; pass MS_SYNC")));
    }
    let view = MappedFiles::global().view();
    let unmapped = || errno(libc::ENOMEM, "the range is not mapped, or not mapped to its end");
    let place = view.find(addr.addr()).ok_or_else(unmapped)?;
    // As for msync, the rest of the last page counts as mapped.
    let end = (addr.addr() + place.left()).next_multiple_of(page_size());
    if length > end - addr.addr() {
        return Err(unmapped());
    }
    place.file().sync()?;
    Ok(())
}

/// Copies from, to or between mapped files and memory; with `eager`, deploys the bytes that it writes.
pub(crate) fn copy(dst: *mut c_void, src: *const c_void, n: usize, eager: bool) -> Result<()> {
    if n == 0 {
        return Ok(());
    }
    not_null(dst)?;
    not_null(src)?;
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
        return access(&from, |file, offset| file.read_at(dst, offset));
    };
    fits(to.left(), n)?;
    writable(&to)?;
    let between;
    let src = match from {
        Some(from) => {
            between = read(&from, n)?;
            between.as_slice()
        }
        // SAFETY: n bytes the caller lends for the call; they are memory of its own, outside every mapping.
        None => unsafe { source(src, n, "src") }?,
    };
    write(&to, src, eager)
}
