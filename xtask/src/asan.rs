//! `cargo xtask asan`: runs the library's tests under AddressSanitizer.

use std::io;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use clap::Args;

use crate::nightly;

/// Arguments of `cargo xtask asan`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Besides the unit tests, run only this test program of crates/untorn/tests; may be repeated [default: all of
    /// them]
    #[arg(long = "test", value_name = "NAME")]
    tests: Vec<String>,
}

/// Tests that cannot pass, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    (
        "a_read_of_settled_pages_makes_no_system_call",
        "it makes the kernel kill a thread, and the sanitizer reports that thread's memory as leaked",
    ),
    (
        "another_sigbus_kills_through_the_handler_of_the_runtime",
        "the sanitizer's signal handler replaces the runtime's, reports the signal and exits",
    ),
];

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    let Some(host) = host() else {
        eprintln!("asan: {}", nightly::MISSING);
        return ExitCode::from(nightly::UNAVAILABLE);
    };
    match tests(root, &host, &arguments.tests) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("asan: {error}");
            ExitCode::from(74)
        }
    }
}

/// The host triple of the nightly compiler; `None` without one.
fn host() -> Option<String> {
    let output = nightly::cargo(&["--version", "--verbose"]).output().ok().filter(|output| output.status.success())?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    said.lines().find_map(|line| line.strip_prefix("host: ")).map(str::to_owned)
}

/// Whether all tests passed and nothing was found.
fn tests(root: &Path, host: &str, chosen: &[String]) -> io::Result<bool> {
    let start = Instant::now();
    // Name the target although it is the host. Then the flags don't apply to build scripts and macros, which could not
    // load the sanitizer's runtime.
    let mut command = nightly::cargo(&["test", "--package", "untorn", "--lib", "--no-fail-fast"]);
    if chosen.is_empty() {
        command.arg("--tests");
    }
    command.args(chosen.iter().flat_map(|name| ["--test", name]));
    command.arg("--target").arg(host).arg("--target-dir").arg(crate::target(root, "asan")).current_dir(root);
    command.env("RUSTFLAGS", crate::rustflags("-Zsanitizer=address"));
    // Some tests process a thousand files byte by byte, so optimise; debug assertions and overflow checks stay on.
    command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "1").env("CARGO_PROFILE_DEV_DEBUG", "line-tables-only");
    command.args(["--", "--quiet"]);
    for (test, why) in LEFT_OUT {
        println!("skipped: {test}: {why}");
        command.args(["--skip", test]);
    }
    let passed = command.status()?.success();
    let verdict = if passed { "no findings" } else { "FINDINGS, or failed tests" };
    println!("AddressSanitizer over the tests of the library in {:.1} s: {verdict}", start.elapsed().as_secs_f64());
    Ok(passed)
}
