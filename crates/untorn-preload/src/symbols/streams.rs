//! Calls on the C library's own standard streams, to which a program has kept a pointer: passed on to the stream that
//! stands in the place of one. A library may have kept it before the layer was set up, as that of C++ does for
//! `std::cin`.

use core::ffi::{c_char, c_int, c_long, c_void};

use libc::{FILE, off_t, size_t, ssize_t};

use super::calls;
#[cfg(target_arch = "x86_64")]
use super::listed;
use super::stdio::{number_of, stand_in};
use crate::real::watched;

calls! {
    [fileno fileno_unlocked](file: *mut FILE) -> c_int =
        number_of(file).or_else(|| stand_in(file).and_then(number_of));
}

/// Defines functions of the C library that are about a stream, by one of them: what is asked of a stream that another
/// stands in the place of is asked of that. All else is as if the layer were not there.
macro_rules! passed_on {
    ($([$($name:ident)+] $arguments:tt -> $result:ty = $real:ident;)*) => {
        $(passed_on! { @each [$($name)+] $arguments, $result, $real })*
    };
    (@each [$($name:ident)+] $arguments:tt, $result:ty, $real:ident) => {
        $(passed_on! { @one $name $arguments, $result, $real })+
    };
    (@one $name:ident ($file:ident, $($argument:ident: $type:ty),*), $result:ty, $real:ident) => {
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            match stand_in($file) {
                Some($file) => watched!($real($($argument: $type),*) -> $result),
                None => watched!($name($($argument: $type),*) -> $result),
            }
        }
    };
}

// SAFETY (of all below): the program's memory, its strings, which end in a zero, and its streams.
passed_on! {
    [fwrite fwrite_unlocked _IO_fwrite](
        file, from: *const c_void, one: size_t, count: size_t, file: *mut FILE
    ) -> size_t = fwrite;
    [fputs fputs_unlocked _IO_fputs](file, from: *const c_char, file: *mut FILE) -> c_int = fputs;
    [fputc putc _IO_putc fputc_unlocked putc_unlocked](file, byte: c_int, file: *mut FILE) -> c_int = fputc;
    [fflush fflush_unlocked _IO_fflush](file, file: *mut FILE) -> c_int = fflush;
    [fread fread_unlocked _IO_fread](
        file, into: *mut c_void, one: size_t, count: size_t, file: *mut FILE
    ) -> size_t = fread;
    [__fread_chk __fread_unlocked_chk](
        file, into: *mut c_void, room: size_t, one: size_t, count: size_t, file: *mut FILE
    ) -> size_t = __fread_chk;
    [fgets fgets_unlocked _IO_fgets](file, into: *mut c_char, count: c_int, file: *mut FILE) -> *mut c_char = fgets;
    [__fgets_chk __fgets_unlocked_chk](
        file, into: *mut c_char, room: size_t, count: c_int, file: *mut FILE
    ) -> *mut c_char = __fgets_chk;
    [fgetc getc _IO_getc fgetc_unlocked getc_unlocked](file, file: *mut FILE) -> c_int = fgetc;
    [ungetc _IO_ungetc](file, byte: c_int, file: *mut FILE) -> c_int = ungetc;
    [getline](file, line: *mut *mut c_char, room: *mut size_t, file: *mut FILE) -> ssize_t = getline;
    [getdelim __getdelim](
        file, line: *mut *mut c_char, room: *mut size_t, end: c_int, file: *mut FILE
    ) -> ssize_t = getdelim;
    [vfscanf](file, file: *mut FILE, format: *const c_char, arguments: *mut c_void) -> c_int = vfscanf;
    [__isoc99_vfscanf](
        file, file: *mut FILE, format: *const c_char, arguments: *mut c_void
    ) -> c_int = __isoc99_vfscanf;
    [__isoc23_vfscanf](
        file, file: *mut FILE, format: *const c_char, arguments: *mut c_void
    ) -> c_int = __isoc23_vfscanf;
    [feof feof_unlocked _IO_feof](file, file: *mut FILE) -> c_int = feof;
    [ferror ferror_unlocked _IO_ferror](file, file: *mut FILE) -> c_int = ferror;
    [fseek](file, file: *mut FILE, offset: c_long, whence: c_int) -> c_int = fseek;
    [fseeko fseeko64](file, file: *mut FILE, offset: off_t, whence: c_int) -> c_int = fseeko;
    [ftell _IO_ftell](file, file: *mut FILE) -> c_long = ftell;
    [ftello ftello64](file, file: *mut FILE) -> off_t = ftello;
    // These return nothing, which a caller does not look at.
    [clearerr clearerr_unlocked](file, file: *mut FILE) -> c_int = clearerr;
    [rewind](file, file: *mut FILE) -> c_int = rewind;
    // What the C library's headers make of `getc_unlocked` and `putc_unlocked`, where the buffer is at its end.
    [__uflow](file, file: *mut FILE) -> c_int = fgetc_unlocked;
    [__underflow](file, file: *mut FILE) -> c_int = __underflow;
    [__overflow](file, file: *mut FILE, byte: c_int) -> c_int = fputc_unlocked;
}

#[cfg(target_arch = "x86_64")]
listed! {
    fscanf by vfscanf;
    __isoc99_fscanf by __isoc99_vfscanf;
    __isoc23_fscanf by __isoc23_vfscanf;
}
