//! Wide characters on streams of ours. The C library gives a stream of `fopencookie(3)` no memory for them, and
//! crashes where it is asked for one; so they are made of bytes here, and bytes of them, by the narrow calls on the
//! same stream. No character is kept between two calls: one that is put back goes back as bytes, so that offsets are
//! what they are on other streams.

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr::null_mut;
use core::slice;
use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{FILE, iconv_t, size_t, wchar_t};

use super::calls;
use super::stdio::{Layout, STREAMS, place_of, standard};
use crate::layer::{fail, text};
use crate::raw;
use crate::real::watched;

pub(super) type Letter = c_uint;
pub(super) const WEOF: Letter = Letter::MAX;

/// In the flags of a stream: at its end, and failed.
pub(super) const AT_END: c_int = 0x10;
pub(super) const FAILED: c_int = 0x20;

/// More bytes than a character has in any character set.
const LONGEST: usize = 16;

/// Where a stream's orientation is not known, which is so where functions of any number of arguments are not
/// replaced: the C library may only say no to those on a stream that it takes for one of bytes.
const UNORIENTED: c_int = if cfg!(target_arch = "x86_64") { 0 } else { -1 };

/// What a stream is read and written through, from when it is one of wide characters. As in the C library that is of
/// the locale of that moment, whatever becomes the locale later.
struct Conversion {
    decode: AtomicPtr<c_void>,
    encode: AtomicPtr<c_void>,
}

/// By the place of the stream.
static ALL: [Conversion; STREAMS] =
    [const { Conversion { decode: AtomicPtr::new(null_mut()), encode: AtomicPtr::new(null_mut()) } }; STREAMS];

// SAFETY: the C library's, with these signatures (flockfile(3), stdio_ext(3)).
unsafe extern "C" {
    fn flockfile(file: *mut FILE);
    fn funlockfile(file: *mut FILE);
    fn __chk_fail() -> !;
}

/// The character set that a mode of `fopen` names.
pub(super) fn charset_of(mode: &[u8]) -> Option<&[u8]> {
    mode.split(|byte| *byte == b',').skip(1).find_map(|part| part.strip_prefix(b"ccs="))
}

/// A new stream of ours has no orientation, whatever the C library says of those of its kind.
pub(super) fn begin(file: *mut FILE) {
    // SAFETY: a stream, which nobody else has.
    let orientation = unsafe { &mut (*file.cast::<Layout>()).orientation };
    *orientation = UNORIENTED;
}

/// The stream at a place is closed.
pub(super) fn forget(place: usize) {
    let Some(conversion) = ALL.get(place) else { return };
    for each in [&conversion.decode, &conversion.encode] {
        let opened = each.swap(null_mut(), Ordering::Relaxed);
        if !opened.is_null() {
            // SAFETY: opened for the stream.
            unsafe { libc::iconv_close(opened) };
        }
    }
}

/// Gives the stream at a place, which is locked or known to nobody else, wide characters. Whether there is such a
/// character set.
fn widen(place: usize, file: *mut FILE, charset: &[u8]) -> bool {
    const HOW: &[u8] = b"//TRANSLIT\0";
    let (mut name, mut how) = ([0u8; 64], [0u8; 64 + HOW.len()]);
    let (Some(conversion), true) = (ALL.get(place), charset.len() < name.len()) else { return false };
    for (at, byte) in charset.iter().enumerate() {
        name[at] = *byte;
        how[at] = *byte;
    }
    // Written is what resembles a character that the set does not have, as the C library does.
    how[charset.len()..][..HOW.len()].copy_from_slice(HOW);
    // SAFETY: the address is this thread's own.
    let errno = unsafe { *raw::errno() };
    // SAFETY: both end in a zero.
    let decode = unsafe { libc::iconv_open(c"WCHAR_T".as_ptr(), name.as_ptr().cast()) };
    // SAFETY: both end in a zero.
    let encode = unsafe { libc::iconv_open(how.as_ptr().cast(), c"WCHAR_T".as_ptr()) };
    let none = usize::MAX as iconv_t;
    if decode == none || encode == none {
        for opened in [decode, encode].into_iter().filter(|opened| *opened != none) {
            // SAFETY: opened above.
            unsafe { libc::iconv_close(opened) };
        }
        return false;
    }
    // What was looked for and not found, on the way to what was, is nobody's failure.
    fail(errno);
    conversion.encode.store(encode, Ordering::Relaxed);
    conversion.decode.store(decode, Ordering::Relaxed);
    // The C library must not take it for one of its own wide ones.
    // SAFETY: a stream.
    let orientation = unsafe { &mut (*file.cast::<Layout>()).orientation };
    *orientation = -1;
    true
}

/// Whether a new stream of ours has wide characters of a set now.
pub(super) fn is_made_wide(file: *mut FILE, charset: &[u8]) -> bool {
    place_of(file).is_some_and(|(place, file)| widen(place, file, charset))
}

/// What `fwide` says of a stream of ours that is locked.
fn oriented(place: usize, file: *mut FILE, wanted: c_int) -> c_int {
    if ALL.get(place).is_some_and(|conversion| !conversion.decode.load(Ordering::Relaxed).is_null()) {
        return 1;
    }
    // SAFETY: a stream.
    let orientation = unsafe { &mut (*file.cast::<Layout>()).orientation };
    if *orientation == UNORIENTED && wanted != 0 {
        if wanted > 0 {
            // SAFETY: takes a number.
            let charset = unsafe { libc::nl_langinfo(libc::CODESET) };
            // SAFETY: the C library's, which ends in a zero.
            let charset = unsafe { text(charset) };
            return c_int::from(charset.is_some_and(|charset| widen(place, file, charset.to_bytes())));
        }
        *orientation = -1;
    }
    *orientation
}

/// A stream of ours that is one of wide characters, locked.
pub(super) struct Wide {
    pub(super) file: *mut FILE,
    decode: iconv_t,
    encode: iconv_t,
}

/// Does something to a stream if it is one of ours, or stands in the place of it; the result is `narrow` if it is one
/// of bytes.
pub(super) fn on<T>(file: *mut FILE, narrow: T, what: impl FnOnce(&Wide) -> T) -> Option<T> {
    let (place, file) = place_of(file)?;
    let conversion = ALL.get(place)?;
    // SAFETY: a stream; whoever has it locked may lock it again.
    unsafe { flockfile(file) };
    let result = if oriented(place, file, 1) > 0 {
        let decode = conversion.decode.load(Ordering::Relaxed);
        what(&Wide { file, decode, encode: conversion.encode.load(Ordering::Relaxed) })
    } else {
        narrow
    };
    // SAFETY: locked above.
    unsafe { funlockfile(file) };
    Some(result)
}

/// What bytes are.
enum Decoded {
    Letter(Letter),
    /// They say how to read others.
    Nothing,
    Incomplete,
    Invalid,
}

impl Wide {
    pub(super) fn flags(&self) -> c_int {
        // SAFETY: a stream.
        unsafe { (*self.file.cast::<Layout>()).flags }
    }

    /// Sets those of the stream's flags that are in `which` to what they are in `to`.
    pub(super) fn set_flags(&self, which: c_int, to: c_int) {
        // SAFETY: a stream.
        let flags = unsafe { &mut (*self.file.cast::<Layout>()).flags };
        *flags = *flags & !which | to & which;
    }

    /// What is read, or written, is no character.
    fn is_invalid(&self) {
        self.set_flags(FAILED, FAILED);
        fail(libc::EILSEQ);
    }

    fn decoded(&self, bytes: &mut [u8]) -> Decoded {
        let mut letter: wchar_t = 0;
        let (mut from, mut count) = (bytes.as_mut_ptr().cast::<c_char>(), bytes.len());
        let (mut into, mut room) = ((&raw mut letter).cast::<c_char>(), size_of::<wchar_t>());
        // SAFETY: opened for the stream; the memory is ours.
        let done = unsafe { libc::iconv(self.decode, &mut from, &mut count, &mut into, &mut room) };
        if room == 0 {
            return Decoded::Letter(letter as Letter);
        }
        // SAFETY: the address is this thread's own.
        match (done, unsafe { *raw::errno() }) {
            (usize::MAX, libc::EINVAL) => Decoded::Incomplete,
            (usize::MAX, _) => Decoded::Invalid,
            _ => Decoded::Nothing,
        }
    }

    /// The next character, or `WEOF`.
    pub(super) fn get(&self) -> Letter {
        let file = self.file;
        // SAFETY: a stream.
        let [at, end, _] = unsafe { (*file.cast::<Layout>()).read };
        // SAFETY: the address is this thread's own.
        let errno = unsafe { *raw::errno() };
        let mut bytes = [0u8; LONGEST];
        let mut count = 0;
        while let Some(place) = bytes.get_mut(count) {
            let byte = watched!(getc_unlocked(file: *mut FILE) -> c_int);
            let Ok(byte) = u8::try_from(byte) else {
                let flags = self.flags();
                if count > 0 && flags & FAILED == 0 {
                    // The first bytes of a character are a failure to the C library only where it has read them last,
                    // and it takes them then; else they stay where they are.
                    if at == end {
                        self.set_flags(AT_END, 0);
                        self.is_invalid();
                    } else {
                        self.put_back(&bytes[..count]);
                        self.set_flags(AT_END, flags);
                    }
                }
                return WEOF;
            };
            *place = byte;
            count += 1;
            match self.decoded(&mut bytes[..count]) {
                Decoded::Letter(letter) => {
                    fail(errno);
                    return letter;
                }
                Decoded::Nothing => count = 0,
                Decoded::Incomplete => {}
                Decoded::Invalid => break,
            }
            fail(errno);
        }
        self.put_back(&bytes[..count]);
        self.is_invalid();
        WEOF
    }

    /// Whether bytes will be read next.
    fn put_back(&self, bytes: &[u8]) -> bool {
        let file = self.file;
        bytes.iter().rev().all(|byte| {
            let byte = c_int::from(*byte);
            watched!(ungetc(byte: c_int, file: *mut FILE) -> c_int) == byte
        })
    }

    /// Whether a character will be read next.
    pub(super) fn unget(&self, letter: Letter) -> bool {
        let mut bytes = [0u8; LONGEST];
        self.encoded(letter as wchar_t, &mut bytes).is_some_and(|count| self.put_back(&bytes[..count]))
    }

    /// How many bytes a character is; `None`: it is none.
    fn encoded(&self, mut letter: wchar_t, bytes: &mut [u8]) -> Option<usize> {
        let (mut from, mut count) = ((&raw mut letter).cast::<c_char>(), size_of::<wchar_t>());
        let (mut into, mut room) = (bytes.as_mut_ptr().cast::<c_char>(), bytes.len());
        // SAFETY: opened for the stream; the memory is ours.
        let done = unsafe { libc::iconv(self.encode, &mut from, &mut count, &mut into, &mut room) };
        (done != usize::MAX).then_some(bytes.len() - room)
    }

    /// Writes characters; whether all were.
    pub(super) fn put(&self, letters: &[wchar_t]) -> bool {
        let mut bytes = [0u8; 1024];
        let mut count = 0;
        for letter in letters {
            if bytes.len() - count < LONGEST {
                if !self.write(&bytes[..count]) {
                    return false;
                }
                count = 0;
            }
            let Some(more) = self.encoded(*letter, &mut bytes[count..]) else {
                let _ = self.write(&bytes[..count]);
                self.is_invalid();
                return false;
            };
            count += more;
        }
        self.write(&bytes[..count])
    }

    fn write(&self, bytes: &[u8]) -> bool {
        let (file, from, one, count) = (self.file, bytes.as_ptr(), 1, bytes.len());
        count == 0 || watched!(fwrite(from: *const u8, one: size_t, count: size_t, file: *mut FILE) -> size_t) == count
    }

    /// Reads a line of at most `most` characters into memory that has room for them, as `fgetws` does. How many, if
    /// any.
    ///
    /// # Safety
    /// It has.
    unsafe fn line(&self, into: *mut wchar_t, most: usize) -> Option<usize> {
        // What failed before is no failure of this.
        let failed = self.flags() & FAILED;
        self.set_flags(FAILED, 0);
        let mut count = 0;
        while count < most {
            let letter = self.get();
            if letter == WEOF {
                break;
            }
            // SAFETY: the caller's.
            unsafe { into.wrapping_add(count).write(letter as wchar_t) };
            count += 1;
            if letter == Letter::from(b'\n') {
                break;
            }
        }
        let fails = self.flags() & FAILED != 0;
        self.set_flags(failed, failed);
        Some(count).filter(|count| (*count > 0 || most == 0) && !fails)
    }
}

/// Moves characters that wait to be written from a stream of the C library's own kind to one of ours.
///
/// # Safety
/// Both are streams, `from` with so many.
pub(super) unsafe fn take_pending(from: *mut FILE, count: usize, to: *mut FILE) {
    // SAFETY: the caller's.
    let wide = unsafe { (*from.cast::<Layout>()).wide };
    // SAFETY: such a stream has it.
    let [.., first] = unsafe { *wide };
    if count > 0 {
        // SAFETY: the caller's.
        let letters = unsafe { slice::from_raw_parts(first, count) };
        let _ = on(to, false, |wide| wide.put(letters));
    } else {
        // It goes on as it was.
        let _ = on(to, false, |_| true);
    }
}

/// `fgetws` of at most `count` characters, with the zero at the end. Where the compiler knows the size of the memory,
/// and more would go beyond, this ends the process.
///
/// # Safety
/// There is room for `room` characters, and if it is not known for `count`.
unsafe fn line(file: *mut FILE, into: *mut wchar_t, room: Option<size_t>, count: c_int) -> Option<*mut wchar_t> {
    on(file, null_mut(), |wide| {
        let Some(most) = usize::try_from(count).ok().and_then(|count| count.checked_sub(1)) else { return null_mut() };
        let room = room.unwrap_or(usize::MAX);
        // SAFETY: the caller's.
        let Some(len) = (unsafe { wide.line(into, most.min(room)) }) else { return null_mut() };
        if len >= room {
            // SAFETY: may be called at any time.
            unsafe { __chk_fail() };
        }
        // SAFETY: the caller's.
        unsafe { into.wrapping_add(len).write(0) };
        into
    })
}

fn put(file: *mut FILE, letter: wchar_t) -> Option<Letter> {
    on(file, WEOF, |wide| if wide.put(&[letter]) { letter as Letter } else { WEOF })
}

fn get(file: *mut FILE) -> Option<Letter> {
    on(file, WEOF, Wide::get)
}

fn orientation(file: *mut FILE, wanted: c_int) -> Option<c_int> {
    let (place, file) = place_of(file)?;
    // SAFETY: a stream; whoever has it locked may lock it again.
    unsafe { flockfile(file) };
    let orientation = oriented(place, file, wanted);
    // SAFETY: locked above.
    unsafe { funlockfile(file) };
    Some(orientation)
}

/// Writes a string that ends in a zero.
///
/// # Safety
/// It does.
unsafe fn puts(from: *const wchar_t, file: *mut FILE) -> Option<c_int> {
    on(file, -1, |wide| {
        // SAFETY: the caller's.
        let count = unsafe { libc::wcslen(from) };
        // SAFETY: the caller's.
        let letters = unsafe { slice::from_raw_parts(from, count) };
        if wide.put(letters) { 1 } else { -1 }
    })
}

// SAFETY (of all below): the program's memory, its strings, which end in a zero, and its streams.
calls! {
    [fwide](file: *mut FILE, wanted: c_int) -> c_int = orientation(file, wanted);
    [fgetwc getwc fgetwc_unlocked getwc_unlocked](file: *mut FILE) -> Letter = get(file);
    [getwchar getwchar_unlocked]() -> Letter = get(standard(0));
    [fgetws fgetws_unlocked](into: *mut wchar_t, count: c_int, file: *mut FILE) -> *mut wchar_t =
        // SAFETY: see above.
        unsafe { line(file, into, None, count) };
    [__fgetws_chk __fgetws_unlocked_chk](
        into: *mut wchar_t, room: size_t, count: c_int, file: *mut FILE
    ) -> *mut wchar_t =
        // SAFETY: see above.
        unsafe { line(file, into, Some(room), count) };
    [ungetwc](letter: Letter, file: *mut FILE) -> Letter =
        on(file, WEOF, |wide| if letter != WEOF && wide.unget(letter) { letter } else { WEOF });
    [fputwc putwc fputwc_unlocked putwc_unlocked](letter: wchar_t, file: *mut FILE) -> Letter = put(file, letter);
    [putwchar putwchar_unlocked](letter: wchar_t) -> Letter = put(standard(1), letter);
    [fputws fputws_unlocked](from: *const wchar_t, file: *mut FILE) -> c_int =
        // SAFETY: see above.
        unsafe { puts(from, file) };
}
