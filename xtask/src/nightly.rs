//! The nightly toolchain. Some tasks need it; no build does.

use std::process::{Command, Stdio};

/// The exit code if a tool is missing.
pub(crate) const UNAVAILABLE: u8 = 69;

/// The error of a task that needs the missing nightly toolchain.
pub(crate) const MISSING: &str =
    "the nightly compiler is missing: run `rustup toolchain install nightly --profile minimal`";

/// The nightly toolchain's cargo, whatever toolchain runs this program.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments).env_remove("RUSTUP_TOOLCHAIN").stdin(Stdio::null());
    // The cargo that runs this program sets it for this package.
    command.env_remove("CARGO_MANIFEST_DIR");
    command
}

/// Whether it can run this.
pub(crate) fn runs(arguments: &[&str]) -> bool {
    cargo(arguments).output().is_ok_and(|output| output.status.success())
}
