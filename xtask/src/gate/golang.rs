//! The check of the Go package: its format, `go vet`, and its tests against the C library of a debug build.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::runner::{Context, Outcome, finish};

/// Builds the C library, and runs Go's own checks and the tests.
pub(super) fn package(context: &Context<'_>) -> io::Result<Outcome> {
    let package = context.root.join("go/untorn");
    let unformatted = said(Command::new("gofmt").arg("-l").arg(&package))?;
    if !unformatted.is_empty() {
        return Ok(Outcome::Failed(format!("run gofmt -w on {}", unformatted.replace('\n', " "))));
    }
    let built = finish(context.cargo().args(["build", "--package", "untorn-capi"]), 0);
    let Outcome::Passed = built else { return Ok(built) };
    let libraries = crate::target(context.root, "debug");
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(&package).env("GOTOOLCHAIN", "local").env("GOPROXY", "off");
        command.env("CGO_ENABLED", "1").env("CGO_CFLAGS", format!("-I{}", context.root.join("include").display()));
        let directory = libraries.display();
        finish(command.env("CGO_LDFLAGS", format!("-L{directory} -Wl,-rpath,{directory}")), 0)
    };
    // With one set of flags the standard library is compiled once.
    let race: &[&str] = if has_race_detector()? { &["-race"] } else { &[] };
    for words in [&["vet"] as &[&str], &["test", "-vet=off", "-count=1"]] {
        let outcome = go(&[words, race, &["./..."]].concat());
        let Outcome::Passed = outcome else { return Ok(outcome) };
    }
    Ok(Outcome::Passed)
}

/// Whether this Go has the runtime of its race detector, which some distributions leave out.
fn has_race_detector() -> io::Result<bool> {
    let root = PathBuf::from(said(Command::new("go").args(["env", "GOROOT"]))?);
    let runtime = Path::new("src/runtime/race/internal/amd64v1/race_linux.syso");
    Ok(cfg!(target_arch = "x86_64") && root.join(runtime).exists())
}

/// The output of a command that must succeed.
fn said(command: &mut Command) -> io::Result<String> {
    let output = command.output()?;
    if !output.status.success() {
        return Err(io::Error::other(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim_end())));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}
