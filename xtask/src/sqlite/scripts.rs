//! Scripts of sqllogictest on the VFS.

use std::io;
use std::path::Path;
use std::process::Command;

/// Runs every script below a directory; whether nothing differs. Without a library, on the VFS `unix`.
pub(super) fn run(root: &Path, python: &Path, library: Option<&Path>, directory: &Path) -> io::Result<bool> {
    let directory = directory
        .canonicalize()
        .map_err(|error| io::Error::other(format!("cannot read the scripts in {}: {error}", directory.display())))?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["run", "--quiet", "--release", "--package", "untorn-testing"]);
    cargo.args(["--example", "sqllogictest", "--target-dir"]).arg(crate::target(root, "")).arg("--");
    cargo.arg(python).arg(library.unwrap_or(Path::new(""))).arg(directory);
    let status = cargo.status()?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => Err(io::Error::other(format!("the scripts were not run to their end: {status}; see the messages above"))),
    }
}
