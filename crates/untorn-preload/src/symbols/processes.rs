//! The beginning and the end of processes, and what they hand on.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

use super::{calls, descriptors, open, stdio};
use crate::layer::{boosts, demote, exits, fail, managed, refuse, text};
use crate::real::real;
use crate::settings::{seen, set_up, settings};
use crate::{raw, raw::word};

type Strings = *const *const c_char;

/// Set up when the layer is loaded, before the program.
extern "C" fn loaded() {
    set_up();
    stdio::set_up();
    if settings().is_some() {
        crate::mapped::watch_forks();
        // The first that is registered is the last that runs.
        // SAFETY: the function lives as long as the process.
        let _ = unsafe { __cxa_at_quick_exit(ending_quickly, null_mut()) };
    }
    #[cfg(all(feature = "oracle", target_arch = "x86_64"))]
    crate::oracle::set_up();
}

/// After the program's own functions of `atexit`.
extern "C" fn unloaded() {
    stdio::flush();
    exits();
}

/// After the program's own functions of `at_quick_exit`.
extern "C" fn ending_quickly(_: *mut c_void) {
    exits();
}

// SAFETY: the C library's, with this signature (it is what `at_quick_exit(3)` is made of).
unsafe extern "C" {
    fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;

/// An environment that has the layer's variables: the program's own if it does.
///
/// # Safety
/// `environment` is null or ends in a null.
unsafe fn with_layer(environment: Strings) -> Strings {
    let Some(settings) = settings() else { return environment };
    let mut count = 0;
    let mut present = 0_usize;
    if !environment.is_null() {
        loop {
            // SAFETY: not past the null.
            let entry = unsafe { *place(environment, count) };
            // SAFETY: an entry, or the null.
            let Some(entry) = (unsafe { text(entry) }) else { break };
            present += usize::from(settings.variables.iter().any(|variable| is_kept(entry, variable, &settings.layer)));
            count += 1;
        }
    }
    if present == settings.variables.len() {
        return environment;
    }
    // It is never given back: the caller is about to be another program, or to start one, which is rare.
    let bytes = (count + settings.variables.len() + 1) * size_of::<*const c_char>();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: new memory, at no place of importance.
    let mapped = unsafe { raw::result(libc::SYS_mmap, [0, bytes, word(protection), word(flags), usize::MAX, 0]) };
    let Ok(mapped) = mapped else { return environment };
    let all = mapped as *mut *const c_char;
    let mut used = 0;
    for number in 0..count {
        // SAFETY: below the count found above.
        let entry = unsafe { *place(environment, number) };
        // SAFETY: an entry.
        let ours = unsafe { text(entry) }
            .is_some_and(|entry| settings.variables.iter().any(|variable| names(entry, variable)));
        if !ours {
            // SAFETY: within the memory made for so many.
            unsafe { *all.wrapping_add(used) = entry };
            used += 1;
        }
    }
    for variable in &settings.variables {
        // SAFETY: within the memory made for so many; the variable ends in a zero.
        unsafe { *all.wrapping_add(used) = variable.as_ptr().cast() };
        used += 1;
    }
    all.cast_const()
}

/// Refuses to hand a managed descriptor to a program that the layer cannot get into. The errno.
///
/// # Safety
/// `path` is null or a string that ends in a zero.
unsafe fn out_of_reach(path: *const c_char) -> Result<(), c_int> {
    // SAFETY: the caller's.
    let (true, Some(path)) = (seen(), unsafe { text(path) }) else { return Ok(()) };
    if boosts() {
        return hand_down(c"exec", false);
    }
    let inherited = |fd: &c_int| managed(*fd) && raw::fcntl(*fd, libc::F_GETFD, 0) == Ok(0);
    let Some(fd) = (0..INHERITED).find(inherited) else { return Ok(()) };
    if !is_static(path) {
        return Ok(());
    }
    Err(refuse(c"exec", c"a program without a dynamic linker would get a managed descriptor", fd))
}

/// Where files are boosted: makes those plain that another program is about to get, which may not have the layer. All of this process
/// if it may choose among them (`posix_spawn`), or those that stay open.
pub(super) fn hand_down(call: &CStr, all: bool) -> Result<(), c_int> {
    if !seen() || !boosts() {
        return Ok(());
    }
    raw::each_descriptor(|fd| {
        let passes = managed(fd) && (all || raw::fcntl(fd, libc::F_GETFD, 0) == Ok(0));
        if passes { demote(call, fd) } else { Ok(()) }
    })
}

/// Descriptors that are looked at; shells keep those that they hand on low.
const INHERITED: c_int = 256;

/// Whether a file is an ELF program without a dynamic linker. Of what cannot be read the kernel says the rest.
fn is_static(path: &CStr) -> bool {
    let flags = word(libc::O_RDONLY | libc::O_CLOEXEC);
    let arguments = [word(libc::AT_FDCWD), path.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: the path ends in a zero.
    let Ok(fd) = (unsafe { raw::result(libc::SYS_openat, arguments) }) else { return false };
    let mut start = [0; 4096];
    let len = raw::pread(fd as c_int, &mut start, 0).unwrap_or(0);
    let _ = raw::close(fd as c_int);
    let start = start.get(..len).unwrap_or_default();
    let number = |at: usize, bytes: usize| {
        let found = start.get(at..)?.get(..bytes)?;
        Some(found.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let unlinked = || {
        // 64 bits, little end first; offset, size and count of the program headers.
        let (at, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
        for each in 0..count {
            if number(at.checked_add(each * size)?, 4)? == PT_INTERP {
                return Some(false);
            }
        }
        Some(true)
    };
    start.starts_with(b"\x7fELF\x02\x01") && unlinked() == Some(true)
}

/// The segment that names a dynamic linker.
const PT_INTERP: usize = 3;

/// `exec` of a path, after [`out_of_reach`].
macro_rules! unless_out_of_reach {
    ($path:ident, $call:expr) => {
        // SAFETY: the program's path, which ends in a zero.
        match unsafe { out_of_reach($path) } {
            Ok(()) => $call,
            Err(errno) => fail(errno) as c_int,
        }
    };
}

/// Whether an entry is of the same name as one of our variables.
fn names(entry: &CStr, variable: &[u8]) -> bool {
    let name = variable.iter().position(|byte| *byte == b'=').and_then(|end| variable.get(..=end));
    name.is_some_and(|name| entry.to_bytes().starts_with(name))
}

/// Whether an entry does what our variable does: the same, or a list of preloads with the layer in it.
fn is_kept(entry: &CStr, variable: &[u8], layer: &[u8]) -> bool {
    names(entry, variable)
        && (entry.to_bytes_with_nul() == variable
            || variable.starts_with(b"LD_PRELOAD=")
                && entry.to_bytes().windows(layer.len()).any(|window| window == layer))
}

/// The place of an entry.
fn place(environment: Strings, number: usize) -> Strings {
    environment.wrapping_add(number)
}

fn environment() -> Strings {
    // SAFETY: the C library's variable (environ(7)).
    unsafe extern "C" {
        static environ: Strings;
    }
    // SAFETY: the C library's variable, read as its own functions do.
    unsafe { environ }
}

// SAFETY (of all below): the program's environment, or the C library's, which ends in a null.
calls! {
    [execve](path: *const c_char, arguments: Strings, variables: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        unless_out_of_reach!(path, real!(execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int))
    });
    [execv](path: *const c_char, arguments: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(environment()) };
        unless_out_of_reach!(path, real!(execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int))
    });
    [execvpe](path: *const c_char, arguments: Strings, variables: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        unless_out_of_reach!(path, real!(execvpe(path: *const c_char, arguments: Strings, variables: Strings) -> c_int))
    });
    [execvp](path: *const c_char, arguments: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(environment()) };
        unless_out_of_reach!(path, real!(execvpe(path: *const c_char, arguments: Strings, variables: Strings) -> c_int))
    });
    [fexecve](fd: c_int, arguments: Strings, variables: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        if let Err(errno) = hand_down(c"exec", false) {
            return fail(errno) as c_int;
        }
        real!(fexecve(fd: c_int, arguments: Strings, variables: Strings) -> c_int)
    });
    [execveat](directory: c_int, path: *const c_char, arguments: Strings, variables: Strings, flags: c_int) -> c_int =
        Some({
            // SAFETY: see above.
            let variables = unsafe { with_layer(variables) };
            if let Err(errno) = hand_down(c"exec", false) {
                return fail(errno) as c_int;
            }
            real!(execveat(
                directory: c_int, path: *const c_char, arguments: Strings, variables: Strings, flags: c_int
            ) -> c_int)
        });
    [posix_spawn](
        process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, variables: Strings
    ) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        if let Err(errno) = hand_down(c"posix_spawn", true) {
            return errno;
        }
        // SAFETY: the program's path, which ends in a zero.
        if let Err(errno) = unsafe { out_of_reach(path) } {
            return errno;
        }
        real!(posix_spawn(
            process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
            arguments: Strings, variables: Strings
        ) -> c_int)
    });
    [posix_spawnp](
        process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, variables: Strings
    ) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        if let Err(errno) = hand_down(c"posix_spawn", true) {
            return errno;
        }
        // SAFETY: the program's path, which ends in a zero.
        if let Err(errno) = unsafe { out_of_reach(path) } {
            return errno;
        }
        real!(posix_spawnp(
            process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
            arguments: Strings, variables: Strings
        ) -> c_int)
    });
}

// The shell is started by a call that only the C library sees.
calls! {
    [system](command: *const c_char) -> c_int = hand_down(c"system", false).err().map(|errno| fail(errno) as c_int);
    [popen](command: *const c_char, mode: *const c_char) -> *mut libc::FILE =
        hand_down(c"popen", false).err().map(|errno| {
            fail(errno);
            null_mut()
        });
}

/// `daemon`, whose parent ends by a call that only the C library sees.
///
/// # Safety
/// None is needed: it takes numbers.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn daemon(keep_directory: c_int, keep_streams: c_int) -> c_int {
    // SAFETY: what the program asked for.
    match unsafe { libc::fork() } {
        -1 => return -1,
        0 => {}
        _ => end(0),
    }
    // SAFETY: takes nothing.
    if unsafe { libc::setsid() } == -1 {
        return -1;
    }
    if keep_directory == 0 {
        // SAFETY: a path that ends in a zero.
        let _ = unsafe { libc::chdir(c"/".as_ptr()) };
    }
    if keep_streams == 0 {
        // SAFETY: a path that ends in a zero.
        let null = unsafe { open::open(c"/dev/null".as_ptr(), libc::O_RDWR, 0) };
        if null < 0 {
            return -1;
        }
        for standard in 0..=2 {
            // SAFETY: takes numbers.
            let _ = unsafe { descriptors::dup2(null, standard) };
        }
        if null > 2 {
            let _ = raw::close(null);
        }
    }
    0
}

/// `_exit`: ends the process because it wants to.
pub(super) fn end(status: c_int) -> ! {
    exits();
    loop {
        // SAFETY: takes a number, and does not return.
        let _ = unsafe { raw::call(libc::SYS_exit_group, [word(status), 0, 0, 0, 0, 0]) };
    }
}

/// `_exit`.
///
/// # Safety
/// None is needed: it takes a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _exit(status: c_int) -> ! {
    end(status)
}

/// `_Exit`.
///
/// # Safety
/// None is needed: it takes a number.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn _Exit(status: c_int) -> ! {
    end(status)
}
