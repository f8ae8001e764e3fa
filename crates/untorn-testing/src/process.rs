//! Processes that tests start, and programs that they may find.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::Command;

use crate::skips;

/// The full name of the calling test, as `cargo test -- --list` prints it. It belongs into the body of the test itself.
///
/// ```
/// mod module {
///     pub fn test() -> &'static str {
///         untorn_testing::test_name!()
///     }
/// }
/// assert!(module::test().ends_with("module::test"));
/// ```
#[macro_export]
macro_rules! test_name {
    () => {{
        fn here() {}
        $crate::name_of(std::any::type_name_of_val(&here))
    }};
}

/// The full name of another test of the calling module, by its name there.
///
/// ```
/// assert!(untorn_testing::sibling!("other").ends_with("other"));
/// ```
#[macro_export]
macro_rules! sibling {
    ($name:literal) => {
        $crate::in_crate(concat!(module_path!(), "::", $name))
    };
}

/// For [`test_name!`]: the name of the function around `here`, without its crate.
#[doc(hidden)]
pub fn name_of(here: &'static str) -> &'static str {
    let function = here.strip_suffix("::here").unwrap_or(here);
    in_crate(function.trim_end_matches("::{{closure}}"))
}

/// For [`sibling!`]: a path without its crate.
#[doc(hidden)]
pub fn in_crate(path: &'static str) -> &'static str {
    path.split_once("::").map_or(path, |(_, inner)| inner)
}

/// A command that runs one test of the calling binary in a new process. `test` is the test's full name, as
/// `cargo test -- --list` prints it. Its output isn't captured; a test that the new process skips is recorded as
/// skipped.
///
/// # Panics
///
/// Panics if the path of this process's program is unknown.
pub fn again(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the path of this test's program is known"));
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    if let Some(directory) = skips::directory() {
        command.env(skips::DIRECTORY, directory);
    }
    command
}

/// Where a program is: in `PATH`, or in a directory of administrators' programs, which an ordinary user's `PATH` lacks.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut directories: Vec<_> = std::env::split_paths(&path).collect();
    directories.extend(["/usr/sbin", "/sbin"].map(PathBuf::from));
    directories.into_iter().map(|directory| directory.join(name)).find(|file| {
        file.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    })
}

/// Set in the process that runs a test in a mount namespace of its own.
const ISOLATED: &str = "UNTORN_TEST_ISOLATED";

/// A command for a mount namespace of its own, whose mounts no other process sees; the program's name follows.
fn unshare() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--"]);
    command
}

/// Why this process cannot have a mount namespace of its own; `None` if it can.
pub(crate) fn lacks_mount_namespace() -> Option<String> {
    let failed = match unshare().arg("true").output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => format!("the program unshare does not start: {error}"),
    };
    Some(format!("needs a mount namespace of its own: {failed}"))
}

/// Runs a test again as root in a mount namespace of its own, and returns whether this is that process. The test needs
/// `"mount namespace"` before.
///
/// # Panics
///
/// Panics if the test fails there.
pub fn isolated(test: &str) -> bool {
    if std::env::var_os(ISOLATED).is_some() {
        return true;
    }
    let again = again(test);
    let status = unshare().arg(again.get_program()).args(again.get_args()).env(ISOLATED, "1").status();
    let status = status.expect("unshare starts");
    assert!(status.success(), "{test} failed in its mount namespace: {status}");
    false
}

/// Whether this process has the rights of root.
pub fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}
