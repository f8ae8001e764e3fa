//! The nightly toolchain, which some chores need and no build does.

use std::process::{Command, Stdio};

/// The exit code where a tool is missing.
pub(crate) const UNAVAILABLE: u8 = 69;

/// Why a chore that needs it cannot run.
pub(crate) const MISSING: &str = "no nightly compiler: run `rustup toolchain install nightly --profile minimal`";

/// Cargo of the nightly toolchain, whatever toolchain runs this.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo"]).args(arguments).env_remove("RUSTUP_TOOLCHAIN").stdin(Stdio::null());
    // Set by the cargo that runs this, for the package of this.
    command.env_remove("CARGO_MANIFEST_DIR");
    command
}

/// Whether it can run this.
pub(crate) fn runs(arguments: &[&str]) -> bool {
    cargo(arguments).output().is_ok_and(|output| output.status.success())
}
