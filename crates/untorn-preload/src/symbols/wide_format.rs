//! Formats of wide characters on streams of ours: written and scanned in memory, by the C library.

use core::ffi::{c_char, c_int, c_void};
use core::ptr::null_mut;
use core::slice;

use libc::{FILE, c_long, size_t, wchar_t};

use super::calls;
#[cfg(target_arch = "x86_64")]
use super::listed;
use super::stdio::standard;
use super::wide::{AT_END, FAILED, Letter, WEOF, Wide, on};
use crate::layer::fail;
use crate::raw;
use crate::real::real;

// SAFETY: the C library's, with this signature (open_memstream(3)).
unsafe extern "C" {
    fn open_wmemstream(made: *mut *mut wchar_t, count: *mut size_t) -> *mut FILE;
}

/// Wide characters that grow in number, in the C library's memory.
struct Letters {
    at: *mut wchar_t,
    count: usize,
    room: usize,
}

impl Letters {
    const NONE: Letters = Letters { at: null_mut(), count: 0, room: 0 };

    /// Whether there was memory for another.
    #[must_use]
    fn push(&mut self, letter: wchar_t) -> bool {
        if self.count == self.room {
            let room = (self.room * 2).max(64);
            // SAFETY: its own memory, or none.
            let at = unsafe { libc::realloc(self.at.cast(), room * size_of::<wchar_t>()) };
            if at.is_null() {
                return false;
            }
            (self.at, self.room) = (at.cast(), room);
        }
        // SAFETY: within its memory.
        unsafe { self.at.wrapping_add(self.count).write(letter) };
        self.count += 1;
        true
    }

    fn all(&self) -> &[wchar_t] {
        if self.count == 0 {
            return &[];
        }
        // SAFETY: so many were put there.
        unsafe { slice::from_raw_parts(self.at, self.count) }
    }
}

impl Drop for Letters {
    fn drop(&mut self) {
        // SAFETY: its own memory, or none.
        unsafe { libc::free(self.at.cast()) };
    }
}

fn errno() -> c_int {
    // SAFETY: the address is this thread's own.
    unsafe { *raw::errno() }
}

/// Has a stream in memory written to, or scanned, and what it holds then looked at. `None` without memory.
fn in_memory<T>(what: impl FnOnce(*mut FILE) -> T, then: impl FnOnce(&T, &[wchar_t])) -> Option<T> {
    let (mut made, mut count) = (null_mut::<wchar_t>(), 0);
    let before = errno();
    // SAFETY: both outlive the stream.
    let memory = unsafe { open_wmemstream(&raw mut made, &raw mut count) };
    if memory.is_null() {
        return None;
    }
    // `%m` is about what was before.
    fail(before);
    let result = what(memory);
    let after = errno();
    real!(fclose(memory: *mut FILE) -> c_int);
    fail(after);
    if !made.is_null() {
        // SAFETY: made by the C library, with so many.
        then(&result, unsafe { slice::from_raw_parts(made, count) });
        // SAFETY: made by the C library for us.
        unsafe { libc::free(made.cast()) };
    }
    Some(result)
}

/// `vfwprintf`; `form` does it to a stream in memory.
fn print(file: *mut FILE, form: impl FnOnce(*mut FILE) -> c_int) -> Option<c_int> {
    on(file, -1, |wide| {
        let mut written = false;
        let result = in_memory(form, |_, letters| written = wide.put(letters));
        result.filter(|result| *result < 0 || written).unwrap_or(-1)
    })
}

/// Whether a conversion of `scanf` goes on after this.
fn is_within_conversion(letter: wchar_t) -> bool {
    u8::try_from(letter).is_ok_and(|byte| byte.is_ascii_digit() || b"*'IhlLqjztmw".contains(&byte))
}

/// The same format, but that nothing is stored (`*`): what it takes of its input is the same. `None` without memory.
fn storing_nothing(format: &[wchar_t]) -> Option<Letters> {
    let is = |letter: &wchar_t, byte: u8| *letter == wchar_t::from(byte);
    let mut made = Letters::NONE;
    let mut rest = format;
    while let [first, after @ ..] = rest {
        rest = after;
        if !made.push(*first) {
            return None;
        }
        if !is(first, b'%') {
            continue;
        }
        // The number of an argument, which this has not.
        let digits = rest.iter().take_while(|letter| (48..58).contains(*letter)).count();
        if digits > 0 && rest.get(digits).is_some_and(|letter| is(letter, b'$')) {
            rest = &rest[digits + 1..];
        }
        let mut taken = rest.iter().take_while(|letter| is_within_conversion(**letter)).count();
        match rest.get(taken) {
            // A percent sign.
            Some(letter) if taken == 0 && is(letter, b'%') => {}
            _ if made.push(wchar_t::from(b'*')) => {}
            _ => return None,
        }
        if rest.get(taken).is_some_and(|letter| is(letter, b'[')) {
            // What is in the brackets is no format; a closing one that comes first does not close.
            taken += 1;
            taken += usize::from(rest.get(taken).is_some_and(|letter| is(letter, b'^')));
            taken += usize::from(rest.get(taken).is_some_and(|letter| is(letter, b']')));
            taken += rest[taken..].iter().take_while(|letter| !is(letter, b']')).count();
        }
        let taken = (taken + 1).min(rest.len());
        for letter in &rest[..taken] {
            if !made.push(*letter) {
                return None;
            }
        }
        rest = &rest[taken..];
    }
    made.push(0).then_some(made)
}

/// Scans characters; the result, and how many were left over.
fn scanned(letters: &[wchar_t], scan: impl FnOnce(*mut FILE) -> c_int) -> Option<(c_int, usize)> {
    let scan_and_count = |memory: *mut FILE| {
        for letter in letters {
            let letter = *letter;
            real!(putwc(letter: wchar_t, memory: *mut FILE) -> Letter);
        }
        let (start, from): (c_long, c_int) = (0, libc::SEEK_SET);
        real!(fseek(memory: *mut FILE, start: c_long, from: c_int) -> c_int);
        let result = scan(memory);
        let after = errno();
        let mut left = 0;
        while real!(getwc(memory: *mut FILE) -> Letter) != WEOF {
            left += 1;
        }
        fail(after);
        (result, left)
    };
    in_memory(scan_and_count, |_, _| {})
}

/// Whether a scan of characters comes to their end. A stream in memory does not tell; one that has nothing, and to
/// which they were put back, does.
fn comes_to_the_end(letters: &[wchar_t], scan: impl FnOnce(*mut FILE) -> c_int) -> bool {
    let (path, mode) = (c"/dev/null".as_ptr(), c"re".as_ptr());
    let file = real!(fopen(path: *const c_char, mode: *const c_char) -> *mut FILE);
    if file.is_null() {
        return true;
    }
    for letter in letters.iter().rev() {
        let letter = *letter as Letter;
        real!(ungetwc(letter: Letter, file: *mut FILE) -> Letter);
    }
    scan(file);
    let comes = real!(feof(file: *mut FILE) -> c_int) != 0;
    real!(fclose(file: *mut FILE) -> c_int);
    comes
}

/// `vfwscanf`; `scan` does it to a stream in memory, by a format.
///
/// The C library reads one character after another as it needs them, which a stream in memory cannot ask for. So
/// first it is found out, by a format that stores nothing, how many that are; then those are scanned, once.
/// The format is the program's, and ends in a zero.
fn scan(file: *mut FILE, format: *const wchar_t, scan: impl Fn(*mut FILE, *const wchar_t) -> c_int) -> Option<c_int> {
    let scanned_by = |wide: &Wide| {
        // SAFETY: it ends in a zero.
        let count = unsafe { libc::wcslen(format) };
        // SAFETY: as long as that.
        let said = unsafe { slice::from_raw_parts(format, count) };
        let nothing = storing_nothing(said)?;
        let dry = |memory: *mut FILE| scan(memory, nothing.at);
        let before = wide.flags();
        let mut ahead = Letters::NONE;
        let (errno_before, mut errno_then) = (errno(), 0);
        let mut ended = false;
        let mut wanted = 64;
        loop {
            while !ended && ahead.count < wanted {
                match wide.get() {
                    WEOF => (ended, errno_then) = (true, errno()),
                    letter if ahead.push(letter as wchar_t) => {}
                    letter => {
                        wide.unget(letter);
                        return None;
                    }
                }
            }
            // With nothing left over it may want more.
            if ended || scanned(ahead.all(), dry)?.1 > 0 {
                break;
            }
            wanted *= 2;
        }
        fail(errno_before);
        let (result, left) = scanned(ahead.all(), |memory| scan(memory, format))?;
        let after = errno();
        let reached = ended && left == 0 && comes_to_the_end(ahead.all(), dry);
        let kept = wide.flags();
        for letter in ahead.all().iter().rev().take(left) {
            wide.unget(*letter as Letter);
        }
        // Whether the stream is at its end, or has failed, is not known before the scan came to that.
        wide.set_flags(AT_END | FAILED, if reached { kept } else { before });
        fail(if reached && result < 0 { errno_then } else { after });
        Some(result)
    };
    on(file, -1, |wide| scanned_by(wide).unwrap_or(-1))
}

/// The C library's function, for a stream in memory.
macro_rules! real_print {
    ($name:ident($($argument:ident: $type:ty),*)) => {
        |file| real!($name(file: *mut FILE, $($argument: $type),*) -> c_int)
    };
}

/// The same, for a format of ours as well.
macro_rules! real_scan {
    ($name:ident($arguments:ident)) => {
        |file, format| real!($name(file: *mut FILE, format: *const wchar_t, $arguments: *mut c_void) -> c_int)
    };
}

calls! {
    [vfwprintf](file: *mut FILE, format: *const wchar_t, arguments: *mut c_void) -> c_int =
        print(file, real_print!(vfwprintf(format: *const wchar_t, arguments: *mut c_void)));
    [vwprintf](format: *const wchar_t, arguments: *mut c_void) -> c_int =
        print(standard(1), real_print!(vfwprintf(format: *const wchar_t, arguments: *mut c_void)));
    [__vfwprintf_chk](file: *mut FILE, flag: c_int, format: *const wchar_t, arguments: *mut c_void) -> c_int =
        print(file, real_print!(__vfwprintf_chk(flag: c_int, format: *const wchar_t, arguments: *mut c_void)));
    [__vwprintf_chk](flag: c_int, format: *const wchar_t, arguments: *mut c_void) -> c_int =
        print(standard(1), real_print!(__vfwprintf_chk(flag: c_int, format: *const wchar_t, arguments: *mut c_void)));
    [vfwscanf](file: *mut FILE, format: *const wchar_t, arguments: *mut c_void) -> c_int =
        scan(file, format, real_scan!(vfwscanf(arguments)));
    [vwscanf](format: *const wchar_t, arguments: *mut c_void) -> c_int =
        scan(standard(0), format, real_scan!(vfwscanf(arguments)));
    [__isoc99_vfwscanf](file: *mut FILE, format: *const wchar_t, arguments: *mut c_void) -> c_int =
        scan(file, format, real_scan!(__isoc99_vfwscanf(arguments)));
    [__isoc99_vwscanf](format: *const wchar_t, arguments: *mut c_void) -> c_int =
        scan(standard(0), format, real_scan!(__isoc99_vfwscanf(arguments)));
    [__isoc23_vfwscanf](file: *mut FILE, format: *const wchar_t, arguments: *mut c_void) -> c_int =
        scan(file, format, real_scan!(__isoc23_vfwscanf(arguments)));
    [__isoc23_vwscanf](format: *const wchar_t, arguments: *mut c_void) -> c_int =
        scan(standard(0), format, real_scan!(__isoc23_vfwscanf(arguments)));
}

#[cfg(target_arch = "x86_64")]
listed! {
    fwprintf by vfwprintf;
    wprintf by vwprintf after one;
    __fwprintf_chk by __vfwprintf_chk after three;
    __wprintf_chk by __vwprintf_chk;
    fwscanf by vfwscanf;
    wscanf by vwscanf after one;
    __isoc99_fwscanf by __isoc99_vfwscanf;
    __isoc99_wscanf by __isoc99_vwscanf after one;
    __isoc23_fwscanf by __isoc23_vfwscanf;
    __isoc23_wscanf by __isoc23_vwscanf after one;
}
