//! The programs that the rig runs, and their packages.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::error::{Error, Result};

/// Debian's package names; other distributions use similar ones.
const TOOLS: &[(&str, &str)] = &[
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("setpriv", "util-linux"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("xz", "xz-utils"),
    ("dpkg-deb", "dpkg"),
    ("ldd", "libc-bin"),
];

/// Every tool that this machine lacks; empty if the rig can run, except for a kernel.
pub fn missing() -> Vec<Error> {
    TOOLS.iter().filter_map(|(name, _)| find(name).err()).collect()
}

/// The path of a program.
pub(super) fn find(name: &str) -> Result<std::path::PathBuf> {
    // mkfs is in a directory that an ordinary user's PATH lacks.
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<_> = std::env::split_paths(&path).collect();
    places.extend(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Into::into));
    let found = places.iter().map(|place| place.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| match TOOLS.iter().find(|(tool, _)| *tool == name) {
        Some((_, package)) => Error::missing(name, format!("install it with `apt-get install {package}`")),
        None => Error::missing(name, "only Debian-based systems have it; give an unpacked kernel with --kernel DIR"),
    })
}

/// A command for a program, by name.
pub(super) fn command(name: &str) -> Result<Command> {
    let mut command = Command::new(find(name)?);
    command.stdin(Stdio::null());
    Ok(command)
}

/// Runs a program to its end and returns its output. If it fails, the error contains its message.
pub(super) fn run(name: &str, arguments: &[&str], directory: &Path) -> Result<Vec<u8>> {
    let words = || format!("run {name} {}", arguments.join(" "));
    let output = command(name)?.args(arguments).current_dir(directory).output().map_err(Error::system(&words()))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let complaint = String::from_utf8_lossy(&output.stderr);
    Err(Error::failed(words(), format!("{}: {}", output.status, complaint.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_way_to_get_it() {
        let error = find("no-such-program-anywhere").unwrap_err().to_string();
        assert!(error.starts_with("this needs no-such-program-anywhere: "), "{error}");
    }

    #[test]
    fn a_program_that_fails_is_an_error_with_its_complaint() {
        let error = run("sh", &["-c", "echo never >&2; exit 3"], Path::new("/")).unwrap_err().to_string();
        assert!(error.contains("never") && error.contains('3'), "{error}");
        assert_eq!(run("sh", &["-c", "echo well"], Path::new("/")).unwrap(), b"well\n");
    }
}
