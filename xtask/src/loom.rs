//! `cargo xtask loom`: runs the loom models of the lock-free code.

use std::io;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;

/// Arguments of `cargo xtask loom`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Run only the models of this module: page_seqlock, page_marks, clean_bits, slots, writer_gate, wake_flag, index,
    /// lane, group_commit, registry or limits
    #[arg(value_name = "MODULE")]
    module: Option<String>,
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match run_models(root, arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("loom: {error}");
            ExitCode::from(74)
        }
    }
}

/// Whether there were models and all held.
fn run_models(root: &Path, arguments: &Arguments) -> io::Result<bool> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root).stdin(Stdio::null()).stderr(Stdio::inherit());
    // Optimise, because a model runs many thousand times. Link fast, because the build has no other use.
    command.env("CARGO_PROFILE_RELEASE_LTO", "off").env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    command.env("RUSTFLAGS", crate::rustflags("--cfg loom"));
    command.args(["test", "--quiet", "--package", "untorn", "--lib", "--release", "--target-dir"]);
    command.arg(crate::target(root, "loom"));
    command.arg(arguments.module.as_ref().map_or("::models::".to_owned(), |module| format!("::{module}::models::")));
    let start = Instant::now();
    let output = command.args(["--", "--nocapture"]).output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let reports: Vec<_> = said.lines().filter_map(report).collect();
    reports.iter().for_each(|(report, _)| println!("{report}"));
    let held = output.status.success() && !reports.is_empty();
    let verdict = if held { "all hold" } else { "NOT ALL HOLD; see the messages above" };
    let interleavings: u64 = reports.iter().map(|(_, count)| count).sum();
    let seconds = start.elapsed().as_secs_f64();
    println!("{} models, {interleavings} interleavings in {seconds:.1} s: {verdict}", reports.len());
    Ok(held)
}

/// Parses the line of a model that held: `NAME: N interleavings...`, and N. The test harness may have begun the line.
fn report(line: &str) -> Option<(&str, u64)> {
    let said = line.split_once("model ")?.1;
    let count = said.split_once(" interleavings")?.0.rsplit_once(": ")?.1.parse().ok()?;
    Some((said, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_reports_are_parsed() {
        let said = "page: two: writers: 47 interleavings with up to 3 preemptions, 0.1 s";
        assert_eq!(report(&format!("..model {said}")), Some((said, 47)));
        assert_eq!(report("running 47 tests"), None);
        assert_eq!(report("the model of a: x interleavings"), None);
    }
}
