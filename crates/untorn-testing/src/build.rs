//! What the workspace builds for programs that aren't Rust: the tool, the C library, the preload library.
//!
//! `cargo test` builds no C library, because no Rust test can link one, and no binary of another package. So the first
//! test that wants them asks Cargo, for the whole workspace at once: its features are then those that `cargo test
//! --workspace` has built everything else with, and only the libraries themselves are left to build.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory that has `untorn`, `libuntorn.so`, `libuntorn.a` and `libuntorn_preload.so`, in the profile of the
/// calling test.
///
/// # Panics
///
/// Panics if Cargo doesn't build them.
pub fn built() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| build(target(), &["--workspace", "--lib", "--bins"]))
}

/// Cargo's target directory, in which this test program is `PROFILE/deps/NAME-HASH`.
fn target() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| profile_directory().parent().expect("a profile's directory has a parent").to_owned())
}

fn profile_directory() -> PathBuf {
    let exe = std::env::current_exe().expect("the path of this test's program is known");
    exe.ancestors().nth(2).expect("it is two directories below the profile's").to_owned()
}

fn build(into: &Path, arguments: &[&str]) -> PathBuf {
    let directory = profile_directory();
    let directory = directory.file_name().and_then(OsStr::to_str).expect("a profile has a name");
    let profile = if directory == "debug" { "dev" } else { directory };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(env!("CARGO_MANIFEST_DIR")).args(["build", "--quiet", "--profile", profile]).args(arguments);
    let status = cargo.arg("--target-dir").arg(into).status().expect("cargo runs");
    assert!(status.success(), "cargo build {arguments:?}: {status}");
    into.join(directory)
}
