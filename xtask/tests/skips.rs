//! The summary of skipped tests, printed at the end of `cargo test --workspace`.
//!
//! Cargo runs test programs in the order of their packages and names, so this one runs last, before the examples in
//! documentation, which skip nothing. It has no harness, because libtest shows nothing that a passing test prints.

use std::process::ExitCode;

use untorn_testing::skips;

fn main() -> ExitCode {
    let Some(directory) = skips::directory() else {
        eprintln!("cannot tell which tests were skipped: /proc is not mounted");
        return ExitCode::FAILURE;
    };
    let found = match skips::read(&directory) {
        Ok(found) => found,
        Err(error) => {
            eprintln!("cannot tell which tests were skipped: {}: {error}", directory.display());
            return ExitCode::FAILURE;
        }
    };
    let count: usize = found.values().map(Vec::len).sum();
    println!("\nskipped tests: {count}");
    for (reason, tests) in &found {
        println!("  {}: {}", tests.len(), reason.replace('\n', "\n     "));
        tests.iter().for_each(|test| println!("     {test}"));
    }
    println!();
    // The records have served their purpose; a directory that stays does no harm.
    let _ = std::fs::remove_dir_all(&directory);
    ExitCode::SUCCESS
}
