//! Becoming another program, and starting one, with an environment that has the layer.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr::null_mut;

use super::calls;
use super::reach::{Program, become_another, hand_down, spawning};
use super::refused::is_known;
use crate::layer::{fail, text};
use crate::real::real;
use crate::settings::settings;
use crate::{raw, raw::word};

type Strings = *const *const c_char;

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

// SAFETY (of all below): the program's paths, which end in a zero; its environment, or the C library's, which ends in
// a null.
calls! {
    [execve](path: *const c_char, arguments: Strings, variables: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        // SAFETY: see above.
        let program = || unsafe { Program::at(libc::AT_FDCWD, path, 0) };
        become_another(program, || {
            real!(execve(path: *const c_char, arguments: Strings, variables: Strings) -> c_int)
        })
    });
    [execv](path: *const c_char, arguments: Strings) -> c_int =
        // SAFETY: see above.
        Some(unsafe { execve(path, arguments, environment()) });
    [execvpe](path: *const c_char, arguments: Strings, variables: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        // SAFETY: see above.
        let program = || unsafe { Program::searched(path) };
        become_another(program, || {
            real!(execvpe(path: *const c_char, arguments: Strings, variables: Strings) -> c_int)
        })
    });
    [execvp](path: *const c_char, arguments: Strings) -> c_int =
        // SAFETY: see above.
        Some(unsafe { execvpe(path, arguments, environment()) });
    [fexecve](fd: c_int, arguments: Strings, variables: Strings) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        become_another(|| Program::of_descriptor(fd), || {
            real!(fexecve(fd: c_int, arguments: Strings, variables: Strings) -> c_int)
        })
    });
    [execveat](directory: c_int, path: *const c_char, arguments: Strings, variables: Strings, flags: c_int) -> c_int =
        Some({
            // SAFETY: see above.
            let variables = unsafe { with_layer(variables) };
            // SAFETY: see above.
            let program = || unsafe { Program::at(directory, path, flags) };
            become_another(program, || real!(execveat(
                directory: c_int, path: *const c_char, arguments: Strings, variables: Strings, flags: c_int
            ) -> c_int))
        });
    [posix_spawn](
        process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, variables: Strings
    ) -> c_int = Some({
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        // SAFETY: see above.
        if let Err(errno) = spawning(|| unsafe { Program::at(libc::AT_FDCWD, path, 0) }) {
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
        // SAFETY: see above.
        if let Err(errno) = spawning(|| unsafe { Program::searched(path) }) {
            return errno;
        }
        real!(posix_spawnp(
            process: *mut libc::pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
            arguments: Strings, variables: Strings
        ) -> c_int)
    });
    // Since glibc 2.39. Programs that look whether there is such a function find this one; what it answers then sends
    // them to `fork`.
    [pidfd_spawn](
        process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, variables: Strings
    ) -> c_int = Some({
        if !is_known(c"pidfd_spawn") {
            return libc::ENOSYS;
        }
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        // SAFETY: see above.
        if let Err(errno) = spawning(|| unsafe { Program::at(libc::AT_FDCWD, path, 0) }) {
            return errno;
        }
        real!(pidfd_spawn(
            process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
            arguments: Strings, variables: Strings
        ) -> c_int)
    });
    [pidfd_spawnp](
        process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        arguments: Strings, variables: Strings
    ) -> c_int = Some({
        if !is_known(c"pidfd_spawnp") {
            return libc::ENOSYS;
        }
        // SAFETY: see above.
        let variables = unsafe { with_layer(variables) };
        // SAFETY: see above.
        if let Err(errno) = spawning(|| unsafe { Program::searched(path) }) {
            return errno;
        }
        real!(pidfd_spawnp(
            process: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void,
            arguments: Strings, variables: Strings
        ) -> c_int)
    });
}

/// Arguments of `execl` that are copied to the stack; more need memory of their own.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 128;

/// Calls `exec` with arguments that end in a null as a vector, and with the place after the null.
///
/// # Safety
/// The first five arguments are at `first`, all others at `more`, and one of them is null.
#[cfg(target_arch = "x86_64")]
unsafe fn gathered(first: Strings, more: Strings, exec: impl FnOnce(Strings, Strings) -> c_int) -> c_int {
    let at = |number: usize| if number < 5 { place(first, number) } else { place(more, number - 5) };
    let mut count = 0;
    // SAFETY: not past the null.
    while !unsafe { *at(count) }.is_null() {
        count += 1;
    }
    let mut few = [core::ptr::null(); FEW];
    let bytes = (count + 1) * size_of::<*const c_char>();
    let all = if count < FEW {
        few.as_mut_ptr()
    } else {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory, at no place of importance.
        match unsafe { raw::result(libc::SYS_mmap, [0, bytes, word(protection), word(flags), usize::MAX, 0]) } {
            Ok(mapped) => mapped as *mut *const c_char,
            Err(errno) => return fail(errno) as c_int,
        }
    };
    for number in 0..count {
        // SAFETY: below the count found above.
        let argument = unsafe { at(number).read() };
        // SAFETY: there is room for so many, and for the null that stands at the end already.
        unsafe { all.wrapping_add(number).write(argument) };
    }
    let result = exec(all, at(count + 1));
    if count >= FEW {
        // SAFETY: the memory made above.
        let _ = unsafe { raw::result(libc::SYS_munmap, [all as usize, bytes, 0, 0, 0, 0]) };
    }
    result
}

/// `execl`, with its arguments as [`gathered`] takes them; so the next two.
///
/// # Safety
/// As for `execl(3)`.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn listed(path: *const c_char, first: Strings, more: Strings) -> c_int {
    // SAFETY: the caller's.
    let exec = |arguments, _| unsafe { execv(path, arguments) };
    // SAFETY: the caller's.
    unsafe { gathered(first, more, exec) }
}

/// # Safety
/// As for `execl(3)`.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn listed_searched(path: *const c_char, first: Strings, more: Strings) -> c_int {
    // SAFETY: the caller's.
    let exec = |arguments, _| unsafe { execvp(path, arguments) };
    // SAFETY: the caller's.
    unsafe { gathered(first, more, exec) }
}

/// # Safety
/// As for `execl(3)`.
#[cfg(target_arch = "x86_64")]
unsafe extern "C" fn listed_with_environment(path: *const c_char, first: Strings, more: Strings) -> c_int {
    let exec = |arguments, after: Strings| {
        // SAFETY: after the null stands the environment.
        let variables = unsafe { after.cast::<Strings>().read() };
        // SAFETY: the caller's.
        unsafe { execve(path, arguments, variables) }
    };
    // SAFETY: the caller's.
    unsafe { gathered(first, more, exec) }
}

/// A function that takes a path and then any number of arguments, which the calling convention has in registers and
/// above the return address: handed on as two places.
#[cfg(target_arch = "x86_64")]
macro_rules! variadic {
    ($($name:ident by $listed:ident;)*) => {$(
        /// By the calling convention, as `variadic!` says.
        ///
        /// # Safety
        /// As for `execl(3)`.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            core::arch::naked_asm!(
                "sub rsp, 56",
                "mov [rsp], rsi",
                "mov [rsp + 8], rdx",
                "mov [rsp + 16], rcx",
                "mov [rsp + 24], r8",
                "mov [rsp + 32], r9",
                "mov rsi, rsp",
                "lea rdx, [rsp + 64]",
                "call {listed}",
                "add rsp, 56",
                "ret",
                listed = sym $listed,
            )
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
variadic! {
    execl by listed;
    execlp by listed_searched;
    execle by listed_with_environment;
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
