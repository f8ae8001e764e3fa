//! Tests that cannot run on a machine, and why.
//!
//! A test records its reason as a file in a directory of the running `cargo test`, and `xtask/tests/skips.rs`, the last
//! test program of the workspace, prints them all. libtest itself has no word for a test that skips itself at run time.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::fs;
use std::io;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};

/// The environment variable that names the directory of records; a process that a test starts gets it from [`again`].
///
/// [`again`]: crate::again
pub const DIRECTORY: &str = "UNTORN_SKIPS";

/// Records that the calling test, or a part of it, is skipped, and goes on. The arguments are those of [`format!`];
/// they complete the sentence "skipped: ...".
#[macro_export]
macro_rules! skipped {
    ($($reason:tt)+) => {
        $crate::skips::record(module_path!(), format_args!($($reason)+))
    };
}

/// Ends the calling test, and records it as skipped. The arguments are those of [`format!`]; they complete the sentence
/// "skipped: ...".
///
/// ```
/// fn test() {
///     if !std::path::Path::new("/proc").exists() {
///         untorn_testing::skip!("/proc is not mounted");
///     }
/// }
/// # test();
/// ```
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        $crate::skipped!($($reason)+);
        return;
    }};
}

/// Skips the calling test unless everything named is here: programs by their names, `root` for the rights of root, and
/// `mount namespace` for what [`isolated`](crate::isolated) needs.
///
/// ```
/// fn test() {
///     untorn_testing::needs!("sh", "cat");
/// }
/// # test();
/// ```
#[macro_export]
macro_rules! needs {
    ($($what:expr),+ $(,)?) => {
        if let Some(reason) = $crate::skips::lacks(&[$($what),+]) {
            $crate::skip!("{reason}");
        }
    };
}

/// Why a test that needs all of this cannot run here; `None` if it can. A need is the name of a program, `root`, or
/// `mount namespace`.
pub fn lacks(needs: &[&str]) -> Option<String> {
    needs.iter().find_map(|need| match *need {
        "root" => (!crate::is_root()).then(|| "needs the rights of root".to_owned()),
        "mount namespace" => lacks(&["root", "unshare"]).or_else(crate::process::lacks_mount_namespace),
        program => crate::find_program(program).is_none().then(|| format!("needs the program {program}")),
    })
}

/// Records that the calling test, or a part of it, does not run. `module` is the test's module path.
pub fn record(module: &str, reason: impl Display) {
    let thread = std::thread::current();
    let test = match thread.name() {
        // With one thread, libtest runs tests on the main thread, which has no name of a test.
        None | Some("main") => module.to_owned(),
        Some(name) => name.to_owned(),
    };
    eprintln!("skipped: {test}: {reason}");
    let program = program();
    if let Some(directory) = directory() {
        // A summary that lacks a line must not fail a test; the line above stands in the test's own output.
        let _ = write(&directory, &program, &test, &reason.to_string());
    }
}

fn write(directory: &Path, program: &str, test: &str, reason: &str) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    let name = format!("{program} {test}").replace('/', "_");
    fs::write(directory.join(name), reason)
}

/// The name of this test program, without the hash that Cargo appends.
fn program() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match name.rsplit_once('-') {
        Some((stem, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => stem.to_owned(),
        _ => name,
    }
}

/// The directory of this run's records: what the variable says, or one in Cargo's target directory named after the
/// process that started this one, which is the same `cargo test` for all test programs.
pub fn directory() -> Option<PathBuf> {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return Some(directory.into());
    }
    let parent = parent_id();
    // A number is used again, so the time at which the process started is part of the name.
    let stat = fs::read_to_string(format!("/proc/{parent}/stat")).ok()?;
    let start = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.to_owned();
    // target/debug/deps/PROGRAM
    let exe = std::env::current_exe().ok()?;
    Some(exe.ancestors().nth(3)?.join("skips").join(format!("{parent}-{start}")))
}

/// The tests that were skipped, by reason.
///
/// # Errors
///
/// Returns the system's error if a record cannot be read; a directory that does not exist has no records.
pub fn read(directory: &Path) -> io::Result<BTreeMap<String, Vec<String>>> {
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let reason = fs::read_to_string(entry.path())?;
        found.entry(reason).or_default().push(entry.file_name().to_string_lossy().into_owned());
    }
    found.values_mut().for_each(|tests| tests.sort());
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skipped_test_is_read_back_with_its_reason() {
        let directory = std::env::temp_dir().join(format!("untorn-skips-{}", std::process::id()));
        write(&directory, "program", "module::test", "needs the program no-such-program").unwrap();
        write(&directory, "program", "module::other", "needs the program no-such-program").unwrap();
        let found = read(&directory).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        let tests = ["program module::other".to_owned(), "program module::test".to_owned()];
        assert_eq!(found, BTreeMap::from([("needs the program no-such-program".to_owned(), tests.to_vec())]));
        assert_eq!(read(&directory).unwrap(), BTreeMap::new());
    }

    #[test]
    fn a_missing_program_is_a_reason_and_a_present_one_none() {
        assert_eq!(lacks(&["sh", "cat"]), None);
        assert_eq!(lacks(&["sh", "no-such-program"]).as_deref(), Some("needs the program no-such-program"));
        assert_eq!(lacks(&["root"]).is_none(), crate::is_root());
    }
}
