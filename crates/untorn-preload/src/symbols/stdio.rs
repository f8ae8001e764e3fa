//! Streams. The C library reads and writes them by calls of its own, which the layer never sees; so a stream of a
//! managed descriptor is one whose reading and writing the layer does itself (`fopencookie(3)`).
//!
//! The standard streams are there before anybody can choose: while descriptor 0, 1 or 2 is managed, the variables
//! `stdin`, `stdout` and `stderr` name such a stream, and the C library's own, to which a program may have kept a
//! pointer, is cut off from its descriptor. What is asked of it is passed on ([`streams`](super::streams)); what is
//! not fails, and harms nothing.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicUsize, Ordering};

use libc::{FILE, off_t, size_t, ssize_t, wchar_t};

use super::{calls, data, descriptors, open, wide};
use crate::client;
use crate::layer::{boosts, demoted, fail, is_regular, managed, refuse, text};
use crate::raw;
use crate::real::real;
use crate::settings::settings;

/// Streams of managed descriptors that a process may have at a time.
pub(super) const STREAMS: usize = 256;

struct Stream {
    file: AtomicPtr<FILE>,
    /// The descriptor, plus one; 0 if the place is free.
    fd: AtomicI32,
}

static ALL: [Stream; STREAMS] = [const { Stream { file: AtomicPtr::new(null_mut()), fd: AtomicI32::new(0) } }; STREAMS];
/// How many of the places, from the first, ever were in use: a process that has no such stream looks at none.
static USED: AtomicUsize = AtomicUsize::new(0);

/// For descriptors 0, 1 and 2: the C library's own stream, and ours in its place.
static OWN: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
static IN_PLACE: [AtomicPtr<FILE>; 3] = [const { AtomicPtr::new(null_mut()) }; 3];
/// Whether one of ours ever was in the place of one.
static STOOD_IN: AtomicBool = AtomicBool::new(false);

#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the C library's, with these signatures (fopencookie(3), stdio_ext(3), stdio(3)).
unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
    fn __fpending(file: *mut FILE) -> size_t;
    fn __fpurge(file: *mut FILE);
    static mut stdin: *mut FILE;
    static mut stdout: *mut FILE;
    static mut stderr: *mut FILE;
}

/// The stream of a cookie: its place, plus one.
fn stream(cookie: *mut c_void) -> Option<&'static Stream> {
    ALL.get((cookie as usize).wrapping_sub(1))
}

fn descriptor(cookie: *mut c_void) -> c_int {
    stream(cookie).map_or(-1, |stream| stream.fd.load(Ordering::Relaxed) - 1)
}

/// Of a stream.
///
/// # Safety
/// As the C library calls it: `into` has `count` bytes.
unsafe extern "C" fn read(cookie: *mut c_void, into: *mut c_char, count: size_t) -> ssize_t {
    // SAFETY: the caller's.
    unsafe { data::read(descriptor(cookie), into.cast(), count) }
}

/// Of a stream; 0 for a failure.
///
/// # Safety
/// As the C library calls it: `from` has `count` bytes.
unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, count: size_t) -> ssize_t {
    // SAFETY: the caller's.
    (unsafe { data::write(descriptor(cookie), from.cast(), count) }).max(0)
}

/// Of a stream.
///
/// # Safety
/// As the C library calls it: `offset` is its own.
unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut off_t, whence: c_int) -> c_int {
    // SAFETY: the caller's.
    let by = unsafe { *offset };
    // SAFETY: takes numbers.
    let at = unsafe { data::lseek(descriptor(cookie), by, whence) };
    if at < 0 {
        return -1;
    }
    // SAFETY: the caller's.
    unsafe { *offset = at };
    0
}

/// Of a stream.
///
/// # Safety
/// As the C library calls it, once.
unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    let Some(stream) = stream(cookie) else { return -1 };
    let file = stream.file.swap(null_mut(), Ordering::Relaxed);
    for in_place in &IN_PLACE {
        let _ = in_place.compare_exchange(file, null_mut(), Ordering::Relaxed, Ordering::Relaxed);
    }
    wide::forget((cookie as usize).wrapping_sub(1));
    let fd = stream.fd.swap(0, Ordering::Relaxed) - 1;
    // SAFETY: the stream owned it.
    unsafe { descriptors::close(fd) }
}

/// A stream of a managed descriptor.
///
/// # Safety
/// `mode` is a string that ends in a zero.
unsafe fn make(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's.
    let flags = unsafe { text(mode) }.and_then(|mode| flags_of(mode.to_bytes())).unwrap_or(0);
    if flags & libc::O_APPEND != 0 && flags & libc::O_ACCMODE == libc::O_WRONLY {
        // Where the C library's own begins.
        let _ = data::seek(fd, 0, libc::SEEK_END);
    }
    for (number, stream) in ALL.iter().enumerate() {
        if stream.fd.compare_exchange(0, fd + 1, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            continue;
        }
        let functions = Functions { read, write, seek, close };
        // SAFETY: the mode is the caller's, the functions take such a cookie.
        let file = unsafe { fopencookie((number + 1) as *mut c_void, mode, functions) };
        stream.file.store(file, Ordering::Relaxed);
        if file.is_null() {
            stream.fd.store(0, Ordering::Relaxed);
        } else {
            USED.fetch_max(number + 1, Ordering::Relaxed);
            wide::begin(file);
        }
        return file;
    }
    fail(refuse(c"fdopen", c"too many open streams of managed files", fd));
    null_mut()
}

/// Flags of `open` for a mode of `fopen`.
fn flags_of(mode: &[u8]) -> Option<c_int> {
    // What follows a comma is about characters.
    let mode = mode.split(|byte| *byte == b',').next()?;
    let flags = match mode.first()? {
        b'r' => 0,
        b'w' => libc::O_CREAT | libc::O_TRUNC,
        b'a' => libc::O_CREAT | libc::O_APPEND,
        _ => return None,
    };
    let access = match (mode.contains(&b'+'), mode.first()) {
        (true, _) => libc::O_RDWR,
        (false, Some(b'r')) => libc::O_RDONLY,
        _ => libc::O_WRONLY,
    };
    let exclusive = if mode.contains(&b'x') { libc::O_EXCL } else { 0 };
    let on_exec = if mode.contains(&b'e') { libc::O_CLOEXEC } else { 0 };
    Some(flags | access | exclusive | on_exec)
}

/// `fopen`; `None` where it is the C library's.
///
/// # Safety
/// Both are null or strings that end in a zero.
unsafe fn open_stream(path: *const c_char, mode: *const c_char) -> Option<*mut FILE> {
    // SAFETY: the caller's.
    let flags = flags_of(unsafe { text(mode) }?.to_bytes())?;
    let fd = match open::open_for_stream(path, flags)? {
        Ok(fd) => fd,
        Err(errno) => {
            fail(errno);
            return Some(null_mut());
        }
    };
    // SAFETY: the caller's.
    let charset = unsafe { text(mode) }.and_then(|mode| wide::charset_of(mode.to_bytes()));
    // The C library's `fdopen` knows nothing of character sets.
    let file = if managed(fd) || charset.is_some() {
        // SAFETY: the caller's.
        unsafe { make(fd, mode) }
    } else {
        real!(fdopen(fd: c_int, mode: *const c_char) -> *mut FILE)
    };
    if file.is_null() {
        let _ = raw::close(fd);
    } else if let Some(charset) = charset
        && !wide::is_made_wide(file, charset)
    {
        real!(fclose(file: *mut FILE) -> c_int);
        fail(libc::EINVAL);
        return Some(null_mut());
    }
    Some(file)
}

/// `fdopen` of a managed descriptor.
///
/// # Safety
/// `mode` is a string that ends in a zero.
unsafe fn made_of(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: the caller's.
    let wanted = unsafe { text(mode) }.and_then(|mode| flags_of(mode.to_bytes()));
    let has = raw::fcntl(fd, libc::F_GETFL, 0).unwrap_or(0);
    let may = |wanted: c_int| has & libc::O_ACCMODE == libc::O_RDWR || has & libc::O_ACCMODE == wanted;
    let Some(wanted) = wanted.filter(|wanted| may(wanted & libc::O_ACCMODE)) else {
        fail(libc::EINVAL);
        return null_mut();
    };
    if wanted & libc::O_APPEND != 0 && has & libc::O_APPEND == 0 {
        let _ = raw::fcntl(fd, libc::F_SETFL, has | libc::O_APPEND);
    }
    // SAFETY: the caller's.
    unsafe { make(fd, mode) }
}

/// `freopen`: a stream cannot become another kind of stream, but for a standard one, in whose place ours stands.
///
/// # Safety
/// Both are null or strings that end in a zero; the stream is one.
unsafe fn reopened(path: *const c_char, mode: *const c_char, file: *mut FILE) -> Option<*mut FILE> {
    if boosts() {
        return None;
    }
    // SAFETY: the caller's.
    if let Some(answer) = unsafe { reopened_managed(path, mode, file) } {
        return Some(answer);
    }
    let ours = stand_in(file).unwrap_or(file);
    let fd = number_of(ours)?;
    let place = IN_PLACE.iter().position(|in_place| in_place.load(Ordering::Relaxed) == ours);
    let (Some(place), false) = (place, path.is_null()) else {
        fail(refuse(c"freopen", c"reopening a stream of a managed file", fd));
        return Some(null_mut());
    };
    real!(fflush(ours: *mut FILE) -> c_int);
    // SAFETY: what the C library would do first.
    unsafe { descriptors::close(fd) };
    swap(place);
    let own = OWN.get(place)?.load(Ordering::Relaxed);
    Some(real!(freopen(path: *const c_char, mode: *const c_char, own: *mut FILE) -> *mut FILE))
}

/// `freopen` with a managed file, which a standard stream may become: ours stands in its place then. Any other is
/// told no.
///
/// # Safety
/// Both are null or strings that end in a zero; the stream is one.
unsafe fn reopened_managed(path: *const c_char, mode: *const c_char, file: *mut FILE) -> Option<*mut FILE> {
    // SAFETY: the caller's.
    let name = unsafe { text(path) }?;
    // SAFETY: the caller's.
    let flags = flags_of(unsafe { text(mode) }?.to_bytes())?;
    match raw::stat_at(libc::AT_FDCWD, name.as_ptr(), 0) {
        // Opened just once: the other end of a FIFO would notice.
        Ok(status) if !is_regular(&status) => return None,
        // Nothing is opened.
        Ok(_) if flags & libc::O_EXCL != 0 => return None,
        Err(_) if flags & libc::O_CREAT == 0 => return None,
        _ => {}
    }
    let fd = open::open_for_stream(path, flags & !libc::O_TRUNC)?.ok()?;
    if managed(fd) {
        let standard = standard_of(file).filter(|place| flags & libc::O_ACCMODE == mode_of(*place).1);
        if let Some(place) = standard {
            return Some(stand_for(place, file, fd, flags));
        }
        fail(refuse(c"freopen", c"reopening an open stream on a managed file", fd));
    }
    let refused = managed(fd).then_some(null_mut());
    // SAFETY: opened above.
    unsafe { descriptors::close(fd) };
    if flags & libc::O_EXCL != 0 {
        // Made here just now, and to be made by the C library.
        // SAFETY: a path that ends in a zero.
        let _ = unsafe { libc::unlink(path) };
    }
    refused
}

/// The number of a standard stream, be it the C library's or ours in its place.
fn standard_of(file: *mut FILE) -> Option<usize> {
    let is = |all: &[AtomicPtr<FILE>; 3]| all.iter().position(|each| each.load(Ordering::Relaxed) == file);
    if file.is_null() { None } else { is(&OWN).or_else(|| is(&IN_PLACE)) }
}

/// How a standard stream is used: as a mode of `fopen`, and as a flag of `open`.
fn mode_of(place: usize) -> (&'static CStr, c_int) {
    if place == 0 { (c"r", libc::O_RDONLY) } else { (c"w", libc::O_WRONLY) }
}

/// Makes a standard stream one of a managed descriptor that was just opened.
fn stand_for(place: usize, file: *mut FILE, fd: c_int, flags: c_int) -> *mut FILE {
    // What is pending belongs to what it was.
    let current = stand_in(file).unwrap_or(file);
    real!(fflush(current: *mut FILE) -> c_int);
    // And what was read ahead, or put back: a flush keeps that.
    // SAFETY: a stream.
    unsafe { __fpurge(current) };
    let truncated = if flags & libc::O_TRUNC == 0 { Ok(0) } else { data::set_length(fd, 0) };
    if flags & libc::O_APPEND != 0 {
        // Where the C library's own begins, whose mode ours does not have.
        let _ = data::seek(fd, 0, libc::SEEK_END);
    }
    let number = place as c_int;
    if fd != number {
        // SAFETY: takes numbers.
        unsafe { descriptors::dup3(fd, number, flags & libc::O_CLOEXEC) };
        // SAFETY: opened for this.
        unsafe { descriptors::close(fd) };
    }
    swap(place);
    // SAFETY: the variable of the C library; the stream is one.
    let now = unsafe { *variable(place) };
    real!(clearerr(now: *mut FILE) -> c_int);
    if let Some((place, ours)) = place_of(now) {
        wide::forget(place);
        wide::begin(ours);
    }
    match truncated {
        Ok(_) => now,
        Err(errno) => {
            fail(errno);
            null_mut()
        }
    }
}

/// The descriptor of a stream of ours.
pub(super) fn number_of(file: *mut FILE) -> Option<c_int> {
    let stream = ALL.iter().find(|stream| !file.is_null() && stream.file.load(Ordering::Relaxed) == file)?;
    Some(stream.fd.load(Ordering::Relaxed) - 1)
}

/// The place of a stream of ours, and the stream: it may be asked for by the one that it stands in the place of.
pub(super) fn place_of(file: *mut FILE) -> Option<(usize, *mut FILE)> {
    let used = ALL.get(..USED.load(Ordering::Relaxed))?;
    if file.is_null() || used.is_empty() {
        return None;
    }
    let file = stand_in(file).unwrap_or(file);
    Some((used.iter().position(|stream| stream.file.load(Ordering::Relaxed) == file)?, file))
}

/// A standard stream, as the program names it.
pub(super) fn standard(fd: usize) -> *mut FILE {
    // SAFETY: the variable of the C library.
    unsafe { *variable(fd) }
}

/// The variable of a standard stream.
fn variable(fd: usize) -> *mut *mut FILE {
    match fd {
        0 => &raw mut stdin,
        1 => &raw mut stdout,
        _ => &raw mut stderr,
    }
}

/// Puts streams of ours in the place of standard ones that are managed, and of the C library's where they no longer
/// are.
fn swap(fd: usize) {
    let (Some(own), Some(in_place)) = (OWN.get(fd), IN_PLACE.get(fd)) else { return };
    let number = fd as c_int;
    let (own, ours) = (own.load(Ordering::Relaxed), in_place.load(Ordering::Relaxed));
    if own.is_null() || managed(number) != ours.is_null() {
        return;
    }
    if !ours.is_null() {
        in_place.store(null_mut(), Ordering::Relaxed);
        // SAFETY: our stream; its last bytes belong to what the descriptor was, and go nowhere if that is closed.
        unsafe { __fpurge(ours) };
        // SAFETY: the variable of the C library; the stream is its own.
        unsafe { set_number(own, number) };
        // SAFETY: as above.
        unsafe { *variable(fd) = own };
        return;
    }
    let (mode, _) = mode_of(fd);
    // SAFETY: a mode.
    let file = unsafe { make(number, mode.as_ptr()) };
    if !file.is_null() {
        if fd == 2 {
            // SAFETY: a new stream.
            unsafe { libc::setvbuf(file, null_mut(), libc::_IONBF, 0) };
        }
        // SAFETY: the C library's stream, of whose buffer the first bytes are pending.
        unsafe { take_pending(own, file) };
        // SAFETY: the variable of the C library.
        unsafe { *variable(fd) = file };
        in_place.store(file, Ordering::Relaxed);
        STOOD_IN.store(true, Ordering::Relaxed);
    }
    // SAFETY: the C library's stream. Whoever still writes to it is told, and nothing slips past.
    unsafe { set_number(own, -1) };
}

/// The beginning of the C library's `FILE`, which is part of its interface.
#[repr(C)]
pub(super) struct Layout {
    pub(super) flags: c_int,
    /// Where the buffer is read, where it ends, and where it begins.
    pub(super) read: [*mut c_char; 3],
    write_base: *mut c_char,
    others: [*mut c_char; 8],
    chain: [*mut c_void; 1],
    number: c_int,
    /// Numbers, the lock, the offset and the conversion.
    more: [u64; 5],
    /// The buffer of wide characters, which begins as that of bytes does; only where the orientation is positive.
    pub(super) wide: *mut [*mut wchar_t; 4],
    freed: [u64; 3],
    /// The orientation, as of `fwide(3)`.
    pub(super) orientation: c_int,
}
const _: () = assert!(core::mem::offset_of!(Layout, number) == 112);
const _: () = assert!(core::mem::offset_of!(Layout, orientation) == 192);

/// Sets the descriptor of a stream.
///
/// # Safety
/// A stream of the C library's own kind.
unsafe fn set_number(file: *mut FILE, fd: c_int) {
    // SAFETY: the caller's.
    unsafe { (*file.cast::<Layout>()).number = fd };
}

/// Moves bytes that wait to be written from one stream to another.
///
/// # Safety
/// Both are streams, `from` of the C library's own kind.
unsafe fn take_pending(from: *mut FILE, to: *mut FILE) {
    // SAFETY: the caller's.
    let pending = unsafe { __fpending(from) };
    // SAFETY: the caller's.
    let is_wide = unsafe { (*from.cast::<Layout>()).orientation } > 0;
    if is_wide {
        // SAFETY: the caller's. So many wide characters are pending then.
        unsafe { wide::take_pending(from, pending, to) };
    } else if pending > 0 {
        // SAFETY: the caller's.
        let bytes = unsafe { (*from.cast::<Layout>()).write_base };
        let one: size_t = 1;
        real!(fwrite(bytes: *mut c_char, one: size_t, pending: size_t, to: *mut FILE) -> size_t);
    }
    if pending > 0 {
        // SAFETY: the caller's.
        unsafe { __fpurge(from) };
    }
}

/// Once, when the layer is loaded.
pub(super) fn set_up() {
    if settings().is_none_or(|settings| settings.boost) {
        return;
    }
    for (fd, own) in OWN.iter().enumerate() {
        // SAFETY: the variable of the C library, set before any constructor.
        own.store(unsafe { *variable(fd) }, Ordering::Relaxed);
        swap(fd);
    }
}

/// A descriptor may stand for something else now.
pub(super) fn descriptor_changed(fd: c_int) {
    if settings().is_some_and(|settings| !settings.boost)
        && let Ok(fd @ 0..=2) = usize::try_from(fd)
        // The descriptors are the child's, the streams its parent's.
        && !client::is_in_vfork()
    {
        swap(fd);
    }
}

/// Writes what streams of ours keep. At the end, before the process says that it ends.
pub(super) fn flush() {
    for stream in &ALL {
        let file = stream.file.load(Ordering::Relaxed);
        if !file.is_null() {
            real!(fflush(file: *mut FILE) -> c_int);
        }
    }
}

/// The stream that stands in the place of one of the C library's.
#[inline]
pub(super) fn stand_in(file: *mut FILE) -> Option<*mut FILE> {
    if !STOOD_IN.load(Ordering::Relaxed) {
        return None;
    }
    let place = OWN.iter().position(|own| !file.is_null() && own.load(Ordering::Relaxed) == file)?;
    Some(IN_PLACE.get(place)?.load(Ordering::Relaxed)).filter(|ours| !ours.is_null())
}

// SAFETY (of all below): the program's strings, which end in a zero, and its streams.
calls! {
    // SAFETY: see above.
    [fopen fopen64](path: *const c_char, mode: *const c_char) -> *mut FILE = unsafe { open_stream(path, mode) };
    // SAFETY: see above.
    [fdopen](fd: c_int, mode: *const c_char) -> *mut FILE =
        // SAFETY: see above.
        if boosts() { demoted(c"fdopen", &[fd]).map(|_| null_mut()) } else { managed(fd).then(|| unsafe { made_of(fd, mode) }) };
    [freopen freopen64](path: *const c_char, mode: *const c_char, file: *mut FILE) -> *mut FILE =
        // SAFETY: see above.
        unsafe { reopened(path, mode, file) };
}
