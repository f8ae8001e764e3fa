//! Which programs the preload layer can get into: told before they are started.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, ProgramHeader, SectionHeader};
use object::{Endianness, elf};

/// Scripts may name scripts as their interpreter; the kernel follows as many.
const SCRIPTS: usize = 5;

/// Why a program is not run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such program, or it cannot be read.
    Unreadable(PathBuf, io::Error),
    /// It is linked statically: no dynamic linker loads the layer.
    Static(PathBuf),
    /// It uses another C library, named by its dynamic linker.
    OtherLibrary(PathBuf, PathBuf),
    /// It was made by Go, whose programs call the kernel past the C library.
    Go(PathBuf),
    /// It gains rights when it starts, so the dynamic linker drops the layer.
    Privileged(PathBuf),
    /// It is no program of this machine's kind.
    Foreign(PathBuf),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Unreadable(path, error) => write!(f, "cannot run {}: {error}", path.display()),
            Refusal::Static(path) => write!(
                f,
                "{} is statically linked, so the preload layer cannot be loaded into it; use a dynamically linked \
                 build",
                path.display()
            ),
            Refusal::OtherLibrary(path, linker) => write!(
                f,
                "{} uses the C library of {}, but the preload layer supports only glibc; use a build for glibc",
                path.display(),
                linker.display()
            ),
            Refusal::Go(path) => write!(
                f,
                "{} is a Go program: it calls the kernel without the C library, so the preload layer cannot see its \
                 calls",
                path.display()
            ),
            Refusal::Privileged(path) => write!(
                f,
                "{} gains privileges at start (setuid, setgid or file capabilities), so the dynamic linker ignores \
                 LD_PRELOAD for it; run a copy without them",
                path.display()
            ),
            Refusal::Foreign(path) => write!(
                f,
                "{} is neither a script nor a 64-bit ELF program for this machine, so the preload layer cannot be \
                 loaded into it",
                path.display()
            ),
        }
    }
}

impl std::error::Error for Refusal {}

/// A program that can be run, and the dynamic linker that will load it.
#[derive(Debug)]
pub(crate) struct Runnable {
    /// The program that the kernel will load: the interpreter, if it is a script.
    pub(crate) image: PathBuf,
    pub(crate) linker: PathBuf,
}

/// Whether the layer can get into a program. What it starts in turn is examined only there.
///
/// # Errors
/// Why not.
pub fn examine(program: &OsStr) -> Result<(), Refusal> {
    find(program).map(drop)
}

pub(crate) fn find(program: &OsStr) -> Result<Runnable, Refusal> {
    let mut path = located(program)?;
    for _ in 0..SCRIPTS {
        match interpreter_of_script(&path).map_err(|error| Refusal::Unreadable(path.clone(), error))? {
            Some(interpreter) => path = interpreter,
            None => return judge(path),
        }
    }
    Err(Refusal::Unreadable(path, io::Error::from_raw_os_error(rustix::io::Errno::LOOP.raw_os_error())))
}

/// Where `execvp` finds a program.
fn located(program: &OsStr) -> Result<PathBuf, Refusal> {
    if program.as_bytes().contains(&b'/') {
        return Ok(PathBuf::from(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    std::env::split_paths(&path)
        .map(|directory| directory.join(program))
        .find(|candidate| {
            fs::metadata(candidate).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
        })
        .ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::NotFound, "not found in PATH");
            Refusal::Unreadable(PathBuf::from(program), error)
        })
}

fn interpreter_of_script(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut start = Vec::new();
    fs::File::open(path)?.take(256).read_to_end(&mut start)?;
    let Some(rest) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = rest.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
    let interpreter = words.next().map(|word| PathBuf::from(OsStr::from_bytes(word)));
    let argument = words.next().map(OsStr::from_bytes);
    // `#!/usr/bin/env python3`: the program that matters is the one that env finds.
    match (interpreter, argument) {
        (Some(env), Some(name)) if env.ends_with("env") && !name.as_bytes().starts_with(b"-") => {
            Ok(Some(located(name).unwrap_or(env)))
        }
        (interpreter, _) => Ok(interpreter),
    }
}

fn judge(path: PathBuf) -> Result<Runnable, Refusal> {
    let unreadable = |error| Refusal::Unreadable(path.clone(), error);
    let mode = fs::metadata(&path).map_err(unreadable)?.permissions().mode();
    let mut none = [0_u8; 0];
    let capable = rustix::fs::getxattr(&path, "security.capability", &mut none).is_ok_and(|len| len > 0);
    if mode & 0o6000 != 0 || capable {
        return Err(Refusal::Privileged(path));
    }
    let image = fs::read(&path).map_err(|error| Refusal::Unreadable(path.clone(), error))?;
    let Some(facts) = Facts::of(&image) else { return Err(Refusal::Foreign(path)) };
    if facts.go {
        return Err(Refusal::Go(path));
    }
    match facts.linker {
        None => Err(Refusal::Static(path)),
        Some(linker) if linker.file_name().is_some_and(|name| name.as_bytes().starts_with(b"ld-linux")) => {
            Ok(Runnable { image: path, linker })
        }
        Some(linker) => Err(Refusal::OtherLibrary(path, linker)),
    }
}

/// What an ELF image tells.
struct Facts {
    linker: Option<PathBuf>,
    go: bool,
}

impl Facts {
    /// `None` for what is no image of this machine.
    fn of(image: &[u8]) -> Option<Self> {
        let header = FileHeader64::<Endianness>::parse(image).ok()?;
        let endian = header.endian().ok()?;
        let machine = if cfg!(target_arch = "aarch64") { elf::EM_AARCH64 } else { elf::EM_X86_64 };
        if header.e_machine(endian) != machine {
            return None;
        }
        let mut linker = None;
        for segment in header.program_headers(endian, image).ok()? {
            if let Ok(Some(name)) = segment.interpreter(endian, image) {
                linker = Some(PathBuf::from(OsStr::from_bytes(name)));
            }
        }
        let sections = header.sections(endian, image).ok()?;
        let go = sections.iter().any(|section| {
            let _ = section.sh_type(endian);
            sections
                .section_name(endian, section)
                .is_ok_and(|name| matches!(name, b".go.buildinfo" | b".note.go.buildid" | b".gopclntab"))
        });
        Some(Facts { linker, go })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(program: &Path) -> Refusal {
        examine(program.as_os_str()).unwrap_err()
    }

    #[test]
    fn a_shell_and_a_script_for_it_can_be_run() {
        let dir = tempfile::tempdir().unwrap();
        examine(OsStr::new("sh")).unwrap();
        for first in ["#!/bin/sh -e\n", "#! /usr/bin/env sh\n"] {
            let script = dir.path().join("script");
            fs::write(&script, first).unwrap();
            let runnable = find(script.as_os_str()).unwrap();
            assert!(runnable.image.ends_with("sh"), "{runnable:?}");
        }
    }

    #[test]
    fn a_refusal_says_why_a_program_cannot_be_served() {
        let dir = tempfile::tempdir().unwrap();
        let text = dir.path().join("text");
        fs::write(&text, "echo no magic\n").unwrap();
        assert!(matches!(refusal(&text), Refusal::Foreign(_)));
        assert!(matches!(refusal(&dir.path().join("none")), Refusal::Unreadable(..)));
        let around = dir.path().join("around");
        fs::write(&around, format!("#!{}\n", around.display())).unwrap();
        assert!(matches!(refusal(&around), Refusal::Unreadable(..)));
        let privileged = dir.path().join("privileged");
        fs::copy("/bin/sh", &privileged).unwrap();
        fs::set_permissions(&privileged, fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(matches!(refusal(&privileged), Refusal::Privileged(_)));
    }
}
