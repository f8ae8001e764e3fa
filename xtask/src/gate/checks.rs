//! Steps that are more than commands.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use super::packages::undeclared_symbols;
use super::runner::{Context, Outcome, TOOL, finish};

fn failed(reason: impl Into<String>) -> io::Result<Outcome> {
    Ok(Outcome::Failed(reason.into()))
}

/// The output of a command, which is also shown. A command that fails is an error.
fn said(command: &mut Command) -> io::Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    let text = String::from_utf8_lossy(&stdout).into_owned();
    print!("{text}");
    if status.success() {
        return Ok(text);
    }
    Err(io::Error::other(format!("{command:?}: {status}\n{}", String::from_utf8_lossy(&stderr))))
}

/// Licences, sources and bans, and advisories where their database can be reached.
pub(super) fn dependencies(context: &Context<'_>) -> io::Result<Outcome> {
    let reached = context.cargo().args(["deny", "fetch", "db"]).output()?.status.success();
    if reached {
        return Ok(finish(context.cargo().args(["deny", "check"]), 0));
    }
    match finish(context.cargo().args(["deny", "check", "bans", "licenses", "sources"]), 0) {
        Outcome::Passed => {
            Ok(Outcome::Skipped("advisories: their database cannot be reached from here; all else passed".to_owned()))
        }
        outcome => Ok(outcome),
    }
}

/// Compiles the library and its C face with the version that `Cargo.toml` names.
pub(super) fn minimum_rust(context: &Context<'_>) -> io::Result<Outcome> {
    check_with_minimum_rust(context, &["--package", "untorn", "--package", "untorn-capi"])
}

/// Compiles everything with that version.
pub(super) fn minimum_rust_everywhere(context: &Context<'_>) -> io::Result<Outcome> {
    check_with_minimum_rust(context, &["--workspace"])
}

fn check_with_minimum_rust(context: &Context<'_>, packages: &[&str]) -> io::Result<Outcome> {
    let manifest = fs::read_to_string(context.root.join("Cargo.toml"))?;
    let version = manifest.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    let Some(version) = version else { return failed("Cargo.toml names no rust-version") };
    let toolchain = Command::new("rustup").args(["run", version, "cargo", "--version"]).output();
    if !toolchain.is_ok_and(|output| output.status.success()) {
        return Ok(Outcome::Skipped(format!(
            "needs Rust {version}: rustup toolchain install {version} --profile minimal"
        )));
    }
    let mut command = Command::new("rustup");
    command.current_dir(context.root).args(["run", version, "cargo", "check", "--quiet"]).args(packages);
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO_MANIFEST_DIR").env_remove("CARGO");
    Ok(finish(command.arg("--target-dir").arg(crate::target(context.root, "minimum-rust")), 0))
}

fn release_directory(context: &Context<'_>) -> PathBuf {
    crate::target(context.root, "release")
}

/// The names that INTERFACE and the README promise.
pub(super) fn release(context: &Context<'_>) -> io::Result<Outcome> {
    let outcome = finish(context.cargo().args(["build", "--release"]), 0);
    let Outcome::Passed = outcome else { return Ok(outcome) };
    let directory = release_directory(context);
    for name in ["untorn", "libuntorn.so", "libuntorn.a", "libuntorn_preload.so"] {
        if !directory.join(name).is_file() {
            return failed(format!("cargo build --release gave no {}", directory.join(name).display()));
        }
    }
    let wrong = undeclared_symbols(context.root, &directory.join("libuntorn.so"))?;
    if !wrong.is_empty() {
        return failed(format!("the headers and the symbols of the release libuntorn.so differ in {wrong:?}"));
    }
    // It exits with 1 where nothing is durable, which is no failure of the build.
    let doctor = Command::new(directory.join("untorn")).args(["doctor", "--json"]).output()?;
    print!("{}", String::from_utf8_lossy(&doctor.stdout));
    let doctor: Value = serde_json::from_slice(&doctor.stdout).map_err(io::Error::other)?;
    if doctor["dirty_tracking"] != "write-protect" {
        println!("this machine refuses userfaultfd(2) or PAGEMAP_SCAN, so tests that need them are skipped");
    }
    Ok(Outcome::Passed)
}

/// A C example, how it is linked, and the arguments of each of its runs; a name with a slash is a file in a directory
/// of its own.
const EXAMPLES: &[(&str, Link, &[&[&str]])] = &[
    ("accounts", Link::Static, &[&["/ledger", "20"]]),
    ("hash_index", Link::Static, &[&["/index", "20"], &["/index", "20"]]),
    ("self_healing", Link::Static, &[&["/table"]]),
    ("acumen_hello", Link::Shared, &[&["/greeting"]]),
    ("nvmmio_ledger", Link::Static, &[&["/entries"]]),
    ("region_log", Link::Static, &[&["/store"]]),
    ("shared_journal", Link::Static, &[&["/shared", "8"]]),
];

#[derive(PartialEq, Eq)]
enum Link {
    Static,
    Shared,
}

/// Uses the results of the release build as `examples/README.md` says.
pub(super) fn c_examples(context: &Context<'_>) -> io::Result<Outcome> {
    let libraries = release_directory(context);
    let directory = tempfile::tempdir()?;
    let at = |name: &str| directory.path().join(name.trim_start_matches('/'));
    for (name, link, runs) in EXAMPLES {
        let mut compiler = Command::new("cc");
        compiler.current_dir(context.root).args(["-std=c11", "-Iinclude", "-o"]).arg(at(name));
        compiler.arg(format!("examples/c/{name}.c"));
        if *link == Link::Static {
            compiler.arg(libraries.join("libuntorn.a")).args(["-lpthread", "-ldl", "-lm"]);
        } else {
            compiler.arg("-L").arg(&libraries).args(["-luntorn", &format!("-Wl,-rpath,{}", libraries.display())]);
        }
        let outcome = finish(&mut compiler, 0);
        let Outcome::Passed = outcome else { return Ok(outcome) };
        for run in *runs {
            let argument = |word: &&str| if word.starts_with('/') { at(word).into_os_string() } else { word.into() };
            let outcome = finish(Command::new(at(name)).args(run.iter().map(argument)), 0);
            let Outcome::Passed = outcome else { return Ok(outcome) };
        }
    }
    Ok(Outcome::Passed)
}

/// Each Rust example twice on one path: the second run opens what the first one left.
pub(super) fn rust_examples(context: &Context<'_>) -> io::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    // With the features that the tests have, so that nothing is compiled again.
    let outcome = finish(context.cargo().args(["build", "--quiet", "--workspace", "--examples"]), 0);
    let Outcome::Passed = outcome else { return Ok(outcome) };
    for name in ["ledger", "region_tree", "from_memmap2"] {
        for _ in 0..2 {
            let mut example = Command::new(crate::target(context.root, "debug/examples").join(name));
            let outcome = finish(example.arg(directory.path().join(name)), 0);
            let Outcome::Passed = outcome else { return Ok(outcome) };
        }
    }
    Ok(Outcome::Passed)
}

/// The demo fails by itself if untorn tears. It must also show that plain mmap tears.
pub(super) fn demo(context: &Context<'_>) -> io::Result<Outcome> {
    let said = said(context.cargo().args(TOOL).args(["demo", "--json"]))?;
    let report: Value = serde_json::from_str(&said).map_err(io::Error::other)?;
    let torn = |of: &Value, side: &str| of[side]["torn"].as_u64();
    for (what, of) in [("kills", &report), ("power cuts", &report["power_cuts"])] {
        if torn(of, "plain").is_none_or(|torn| torn == 0) {
            return failed(format!("plain mmap did not tear under {what}: the demo shows nothing"));
        }
        if torn(of, "untorn") != Some(0) {
            return failed(format!("untorn tore under {what}"));
        }
    }
    Ok(Outcome::Passed)
}

/// One row for each size and order; the numbers are no test.
pub(super) fn bench(context: &Context<'_>) -> io::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let mut command = context.cargo();
    command.args(TOOL).args(["bench", "atomic-write", "--json", "--len", "16M", "--ops", "1000", "--size", "64,4K"]);
    command.args(["--threads", "1", "--pattern", "random", "--dir"]).arg(directory.path());
    let said = said(command.env("UNTORN_ASSUME_PMEM", "1"))?;
    let report: Value = serde_json::from_str(&said).map_err(io::Error::other)?;
    let rows =
        report["rows"].as_array().map_or(0, |rows| rows.iter().filter(|row| row["fences_per_op"].is_number()).count());
    if rows == 4 { Ok(Outcome::Passed) } else { failed(format!("{rows} rows, and not one for each size and order")) }
}

/// The weights of fsx's operations. It never unmaps the pages that it invalidates, so that one is rare.
const OPERATIONS: &str = "[weights]
close_open = 1.0
read = 10.0
write = 10.0
truncate = 5.0
mapread = 3.0
mapwrite = 3.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 1.0
punch_hole = 1.0
sendfile = 1.0
posix_fadvise = 1.0
copy_file_range = 1.0
invalidate = 0.1
";

pub(super) fn exerciser_once(context: &Context<'_>) -> io::Result<Outcome> {
    exerciser(context, &[42], 10_000)
}

pub(super) fn exerciser_often(context: &Context<'_>) -> io::Result<Outcome> {
    exerciser(context, &[1, 42, 4711, 5, 6, 7, 8, 9], 20_000)
}

/// The exerciser fsx under `untorn run` in each mode.
fn exerciser(context: &Context<'_>, seeds: &[u64], operations: u64) -> io::Result<Outcome> {
    let directory = tempfile::tempdir()?;
    let weights = directory.path().join("weights.toml");
    fs::write(&weights, OPERATIONS)?;
    for seed in seeds {
        for mode in ["atomic", "boost"] {
            let at = directory.path().join(format!("{seed}.{mode}"));
            fs::create_dir(&at)?;
            let mut command = context.cargo();
            let log = directory.path().join(format!("log.{seed}.{mode}"));
            command.args(TOOL).args(["run", "--strict", "--mode", mode, "--log"]).arg(log).arg("--match");
            command.arg(at.join("file")).args(["--stats", "--", "fsx", "-q", "-f"]).arg(&weights);
            command.args(["-N", &operations.to_string(), "-S", &seed.to_string()]).arg(at.join("file"));
            // The log is taken where temporary files are in memory, too.
            let outcome = finish(command.env("UNTORN_ASSUME_PMEM", "1"), 0);
            let Outcome::Passed = outcome else { return Ok(outcome) };
        }
    }
    Ok(Outcome::Passed)
}
