//! The mount by `fusermount3`, a setuid program that mounts for an ordinary user and sends the device back.

use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{AttachError, AttachOptions, Result, advice, wire};

/// The program's name.
pub(super) const NAME: &str = "fusermount3";

/// The program's path.
pub(super) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<PathBuf> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/bin", "/bin", "/usr/local/bin"].map(PathBuf::from));
    directories
        .into_iter()
        .map(|directory| directory.join(NAME))
        .find(|file| file.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0))
}

/// Mounts after mount(2) was refused.
pub(super) fn mount(mountpoint: &Path, options: &AttachOptions) -> Result<OwnedFd> {
    let Some(program) = find() else {
        return Err(AttachError::System {
            what: format!("mount on {}", mountpoint.display()),
            source: io::ErrorKind::PermissionDenied.into(),
            advice: Some(advice::for_missing_fusermount()),
        });
    };
    let (ours, theirs) = UnixStream::pair().map_err(|source| AttachError::system("make a pair of sockets", source))?;
    let start = |source| AttachError::system(format!("start {}", program.display()), source);
    // A descriptor other than the three standard ones would need code between fork and exec.
    let child = Command::new(&program)
        .arg("-o")
        .arg(option_string(options))
        .arg("--")
        .arg(mountpoint)
        .env("_FUSE_COMMFD", "0")
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let received = wire::receive(&ours);
    let output = child.wait_with_output().map_err(start)?;
    match received {
        Ok(Some((_, mut descriptors))) if output.status.success() && !descriptors.is_empty() => {
            Ok(descriptors.swap_remove(0))
        }
        _ => Err(said(&program, format!("mount on {}", mountpoint.display()), &output.stderr)),
    }
}

/// Unmounts.
pub(super) fn unmount(program: &Path, mountpoint: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new(program);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(mountpoint).stdin(Stdio::null()).stdout(Stdio::null()).output();
    let output = output.map_err(|source| AttachError::system(format!("start {}", program.display()), source))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(said(program, format!("unmount {}", mountpoint.display()), &output.stderr)),
    }
}

/// The error of a program that explains itself on standard error.
fn said(program: &Path, what: String, stderr: &[u8]) -> AttachError {
    let said = String::from_utf8_lossy(stderr);
    // It begins with the name that it was started by.
    let name = format!("{}: ", program.display());
    let said = said.trim().strip_prefix(&name).unwrap_or(said.trim());
    let said = if said.is_empty() { "it gave no reason" } else { said };
    let source = io::Error::other(format!("{} says: {said}", program.display()));
    AttachError::System { what, source, advice: advice::for_fusermount(program, said) }
}

/// The options as one argument. A comma or a backslash in a name stands behind a backslash.
fn option_string(options: &AttachOptions) -> OsString {
    let mut source = Vec::new();
    for byte in options.source.as_bytes() {
        if b",\\".contains(byte) {
            source.push(b'\\');
        }
        source.push(*byte);
    }
    let mut all = b"subtype=untorn,fsname=".to_vec();
    all.extend(source);
    // It adds nosuid and nodev itself.
    for word in options.restrictions.words().chain(options.words()).filter(|word| !["nosuid", "nodev"].contains(word)) {
        all.push(b',');
        all.extend_from_slice(word.as_bytes());
    }
    OsString::from_vec(all)
}
