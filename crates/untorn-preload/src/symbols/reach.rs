//! Which programs the layer cannot get into, and what they must not be handed; and what the server has to know of a
//! process that becomes another program.

use core::ffi::{CStr, c_char, c_int};

use untorn_wire::Becomes;

use crate::layer::{boosts, demote, fail, managed, refuse, text};
use crate::path::Path;
use crate::settings::seen;
use crate::{client, raw, raw::word};

/// The program that a call names: a path, taken from a directory.
pub(super) struct Program {
    directory: c_int,
    path: Path,
    flags: c_int,
}

impl Program {
    /// Of a path; `None` for one that is longer than the kernel takes.
    ///
    /// # Safety
    /// `path` is null or a string that ends in a zero.
    pub(super) unsafe fn at(directory: c_int, path: *const c_char, flags: c_int) -> Option<Self> {
        // SAFETY: the caller's.
        let path = unsafe { text(path) }?;
        if path.is_empty() && flags & libc::AT_EMPTY_PATH != 0 {
            return Program::of_descriptor(directory);
        }
        let flags = flags & libc::AT_SYMLINK_NOFOLLOW;
        Some(Program { directory, path: Path::of(&[path.to_bytes()])?, flags })
    }

    pub(super) fn of_descriptor(fd: c_int) -> Option<Self> {
        Some(Program { directory: libc::AT_FDCWD, path: Path::of_descriptor(fd)?, flags: 0 })
    }

    /// Of a name that is looked for as `execvp` does it.
    ///
    /// # Safety
    /// `name` is null or a string that ends in a zero.
    pub(super) unsafe fn searched(name: *const c_char) -> Option<Self> {
        // SAFETY: the caller's.
        let bytes = unsafe { text(name) }?.to_bytes();
        if bytes.is_empty() || bytes.contains(&b'/') {
            // SAFETY: the caller's.
            return unsafe { Program::at(libc::AT_FDCWD, name, 0) };
        }
        // SAFETY: the name ends in a zero.
        let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
        // SAFETY: null, or a variable of the program's.
        let path = unsafe { text(path) }.map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes);
        path.split(|byte| *byte == b':').find_map(|directory| {
            let slash: &[u8] = if directory.is_empty() { b"" } else { b"/" };
            let path = Path::of(&[directory, slash, bytes])?;
            Some(Program { directory: libc::AT_FDCWD, path, flags: 0 }).filter(Program::is_executable)
        })
    }

    /// Whether the kernel may execute it, as far as its mode says.
    fn is_executable(&self) -> bool {
        raw::stat_at(self.directory, self.path.as_c_str().as_ptr(), self.flags)
            .is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_mode & 0o111 != 0)
    }

    /// Whether it is an ELF program without a dynamic linker, or a script for one. Of what cannot be read the kernel
    /// says the rest.
    fn is_static(&self) -> bool {
        let mut start = start_of(self.directory, &self.path);
        for _ in 0..SCRIPTS {
            let Some((bytes, len)) = &start else { return false };
            let bytes = bytes.get(..*len).unwrap_or_default();
            let Some(interpreter) = interpreter_of(bytes) else { return is_without_linker(bytes) };
            let Some(path) = Path::of(&[interpreter]) else { return false };
            start = start_of(libc::AT_FDCWD, &path);
        }
        false
    }
}

/// Scripts may name scripts as their interpreter; the kernel follows as many.
const SCRIPTS: usize = 5;

/// The first bytes of a file, and how many there are.
#[inline(never)] // They stand on the stack no longer than this takes.
fn start_of(directory: c_int, path: &Path) -> Option<([u8; START], usize)> {
    let flags = word(libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK);
    let arguments = [word(directory), path.as_c_str().as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: the path ends in a zero.
    let fd = unsafe { raw::result(libc::SYS_openat, arguments) }.ok()? as c_int;
    let mut start = [0; START];
    let len = raw::pread(fd, &mut start, 0);
    let _ = raw::close(fd);
    Some((start, len.ok()?))
}

/// Where an ELF program has its headers, and a script its interpreter.
const START: usize = 4096;

/// The interpreter that a script names.
fn interpreter_of(start: &[u8]) -> Option<&[u8]> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    line.split(|byte| matches!(byte, b' ' | b'\t' | 0)).find(|word| !word.is_empty())
}

/// Whether this is the beginning of an ELF program that names no dynamic linker.
fn is_without_linker(start: &[u8]) -> bool {
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

/// Descriptors that are looked at; shells keep those that they hand on low.
const INHERITED: c_int = 256;

/// A managed descriptor that a program would inherit.
fn inherited() -> Option<c_int> {
    (0..INHERITED).find(|fd| managed(*fd) && raw::fcntl(*fd, libc::F_GETFD, 0) == Ok(0))
}

/// Refuses to hand a managed descriptor to a program that the layer cannot get into. The errno.
fn out_of_reach(call: &CStr, fd: c_int, program: Option<&Program>) -> Result<(), c_int> {
    if !program.is_some_and(Program::is_static) {
        return Ok(());
    }
    Err(refuse(call, c"a statically linked program would inherit a managed descriptor", fd))
}

/// Where files are boosted: makes those plain that another program is about to get, which may not have the layer. All
/// of this process if it may choose among them (`posix_spawn`), or those that stay open.
pub(super) fn hand_down(call: &CStr, all: bool) -> Result<(), c_int> {
    if !seen() || !boosts() {
        return Ok(());
    }
    raw::each_descriptor(|fd| {
        let passes = managed(fd) && (all || raw::fcntl(fd, libc::F_GETFD, 0) == Ok(0));
        if passes { demote(call, fd) } else { Ok(()) }
    })
}

/// Makes this process another program by `call`, unless that must not be. It returns only if that fails.
///
/// The new program may be one that the layer cannot get into, which ends without a word. What this one wrote is not
/// lost with it, be it ever so soon: the server is told of the `exec` before, for afterwards nobody can. If it fails,
/// it is told that, too.
pub(super) fn become_another(program: impl FnOnce() -> Option<Program>, call: impl FnOnce() -> c_int) -> c_int {
    if !seen() {
        return call();
    }
    if boosts() {
        return match hand_down(c"exec", false) {
            Ok(()) => call(),
            Err(errno) => fail(errno) as c_int,
        };
    }
    let to_be_told = match judged(program) {
        Ok(to_be_told) => to_be_told,
        Err(errno) => return fail(errno) as c_int,
    };
    let tell = |becoming| client::ask(&Becomes { becoming }, None);
    let told = to_be_told && tell(true).is_ok();
    let result = call();
    if told {
        // It leaves errno alone. Without a descriptor to connect with it has to wait for a connection that there is.
        while let Err(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS) = tell(false) {
            raw::pause();
        }
    }
    result
}

/// Whether the server is to be told of the `exec` of a program, unless that is refused. A process that never asked
/// for anything wrote nothing; and where there is no program the kernel says so, and the process goes on.
#[inline(never)] // The path stands on the stack no longer than this takes.
fn judged(program: impl FnOnce() -> Option<Program>) -> Result<bool, c_int> {
    let (inherited, asked) = (inherited(), client::has_asked());
    if inherited.is_none() && !asked {
        return Ok(false);
    }
    let program = program();
    if let Some(fd) = inherited {
        out_of_reach(c"exec", fd, program.as_ref())?;
    }
    Ok(asked && program.is_some_and(|program| program.is_executable()))
}

/// What speaks against starting a program by `posix_spawn`. The errno.
pub(super) fn spawning(program: impl FnOnce() -> Option<Program>) -> Result<(), c_int> {
    hand_down(c"posix_spawn", true)?;
    if !seen() || boosts() {
        return Ok(());
    }
    match inherited() {
        Some(fd) => out_of_reach(c"posix_spawn", fd, program().as_ref()),
        None => Ok(()),
    }
}
