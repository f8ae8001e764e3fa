//! `cargo xtask dist`: everything that people install, laid out, packed and tried.
//!
//! ```text
//!  cargo build --release ─► layout: a prefix ─┬► archive: untorn-VERSION-MACHINE-linux.tar.gz
//!  headers ─► manual: man(3) pages ───────────┘
//!  check: programs in C, C++ and CMake against the archive, in another place
//!  debian: the same for the prefix /usr, in four packages
//!  wheel: the Python package and the tool, for pip
//! ```
//!
//! Reading order: `layout`, `library`, `manual`, `archive`, `check`, `debian`, `wheel`.

mod archive;
mod check;
mod debian;
mod layout;
mod library;
mod manual;
mod wheel;

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Args;

use crate::nightly::UNAVAILABLE;

/// The version of all packages.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Lay out everything that people install, and pack it.
///
/// Builds the tool and the libraries, lays out a prefix in the directory of --out (programs, libraries, headers, files
/// for pkg-config and CMake, man pages, completions, units for systemd), packs it, and writes SHA256SUMS. The prefix
/// works wherever it is moved to. A second run replaces the results of the first.
///
/// Exit codes: 0 done; 1 a build or a check failed; 64 usage; 69 a tool is missing; 74 I/O error.
#[derive(Args)]
#[command(after_help = "Example:\n  cargo xtask dist --out /tmp/untorn --check")]
pub(crate) struct Arguments {
    /// Directory for the results, created if it is missing; without it, one below Cargo's target directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Build and run programs against the results, as their users do
    #[arg(long)]
    check: bool,
    /// Build a tool that replicates to directories only, which takes less time; packages reach every kind of store
    #[arg(long, conflicts_with_all = ["deb", "wheel"])]
    without_buckets: bool,
    /// Also build packages of Debian: untorn, libuntorn0, libuntorn-dev, python3-untorn
    #[arg(long)]
    deb: bool,
    /// Person whom the packages of Debian name, as `NAME <ADDRESS>`; without it, DEBFULLNAME and DEBEMAIL, or the
    /// author in Cargo.toml
    #[arg(long, value_name = "PERSON", requires = "deb", value_parser = debian::maintainer_line)]
    maintainer: Option<String>,
    /// Also pack the Python package and the tool as a wheel for pip
    #[arg(long)]
    wheel: bool,
    /// Make two wheels instead, for any glibc from 2.17 on and any musl from 1.2 on, by cargo-zigbuild
    #[arg(long, requires = "wheel")]
    portable: bool,
    /// Make the wheel for this target of Rust instead, by cargo-zigbuild; may be given again
    #[arg(long, value_name = "TRIPLE", requires = "wheel", conflicts_with = "portable")]
    #[arg(value_parser = wheel::System::of)]
    wheel_target: Vec<wheel::System>,
}

/// Why nothing was made.
#[derive(Debug)]
pub(super) enum Failure {
    /// A program that this machine lacks, and how to get it.
    Missing(String),
    /// A build, or a check of the results.
    Wrong(String),
    /// The system refused; the text names the path.
    Io(String),
}

type Result<T> = std::result::Result<T, Failure>;

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Missing(text) | Failure::Wrong(text) | Failure::Io(text) => f.write_str(text),
        }
    }
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Failure::Missing(_) => UNAVAILABLE,
            Failure::Wrong(_) => 1,
            Failure::Io(_) => 74,
        }
    }
}

/// Makes an I/O error a [`Failure`] that names the path.
fn at<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Failure + 'a {
    move |error| Failure::Io(format!("cannot {what} {}: {error}", path.display()))
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match make(root, arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("dist: {failure}");
            ExitCode::from(failure.code())
        }
    }
}

fn make(root: &Path, arguments: &Arguments) -> Result<()> {
    let progress = Progress(Instant::now());
    let out = arguments.out.clone().unwrap_or_else(|| crate::target(root, "dist"));
    let out = writable(&out)?;
    require(&compiler(), "apt-get install gcc libc6-dev")?;
    for (program, package) in [("strip", "binutils"), ("tar", "tar"), ("gzip", "gzip"), ("sha256sum", "coreutils")] {
        require(program, &format!("apt-get install {package}"))?;
    }
    let systems = match (arguments.portable, &arguments.wheel_target[..]) {
        (true, _) => wheel::System::portable(),
        (false, []) => vec![wheel::System::Host],
        (false, targets) => targets.to_vec(),
    };
    if arguments.deb {
        debian::needs()?;
    }
    if arguments.wheel {
        wheel::needs(&systems)?;
    }

    progress.step("building the tool and the libraries (cargo build --release)");
    let with_python = arguments.deb || (arguments.wheel && systems.contains(&wheel::System::Host));
    let built = build(root, !arguments.without_buckets, with_python)?;
    let name = format!("untorn-{VERSION}-{}-linux", std::env::consts::ARCH);
    progress.step(&format!("laying out {}", out.join(&name).display()));
    // Beside the result, so that the result is whole or not there.
    let partial = tempfile::Builder::new().prefix(".partial-").tempdir_in(&out).map_err(at("create files in", &out))?;
    let tree = partial.path().join(&name);
    layout::lay_out(root, &built, &layout::Places::local(), &tree)?;
    replace(&tree, &out.join(&name))?;

    progress.step(&format!("packing {name}.tar.gz"));
    archive::pack(root, &out, &name, partial.path())?;
    let mut skipped = Vec::new();
    if arguments.check {
        progress.step("building and running programs against it");
        skipped.extend(check::check(root, &out.join(format!("{name}.tar.gz")), partial.path())?);
    }
    if arguments.deb {
        progress.step("packing for Debian");
        let maintainer = debian::Maintainer::choose(arguments.maintainer.as_deref());
        maintainer.warning().into_iter().for_each(|text| eprintln!("dist: {text}"));
        let packages = debian::packages(root, &built, &maintainer, &out, partial.path())?;
        if arguments.check {
            progress.step("checking the packages");
            skipped.extend(debian::check(root, &packages, partial.path())?);
        }
    }
    if arguments.wheel {
        for system in &systems {
            progress.step(&format!("packing the wheel for {system}"));
            let wheel = wheel::wheel(root, &built, *system, &out, partial.path())?;
            if arguments.check {
                progress.step("using the wheel");
                skipped.extend(wheel::check(root, *system, &wheel, partial.path())?);
            }
        }
        if arguments.check {
            skipped.extend(wheel::check_sources(root, partial.path())?);
        }
    }
    archive::sums(&out)?;
    skipped.iter().for_each(|reason| println!("skipped: {reason}"));
    progress.step(&format!("done: {}", out.display()));
    Ok(())
}

/// Checks what cargo-c has installed below a prefix, as `--check` does the archive. Returns the checks that this
/// machine could not do, or what is wrong.
pub(crate) fn check_cargo_c(root: &Path, prefix: &Path) -> std::result::Result<Vec<String>, String> {
    let scratch =
        tempfile::tempdir().map_err(|error| format!("cannot create a directory for temporary files: {error}"))?;
    check::of_cargo_c(root, prefix, scratch.path()).map_err(|failure| failure.to_string())
}

/// Says what happens now, and when.
struct Progress(Instant);

impl Progress {
    fn step(&self, what: &str) {
        eprintln!("dist: {:>4} s  {what}", self.0.elapsed().as_secs());
    }
}

/// The directory, which is made if it is missing; an error if no file can be made in it.
fn writable(out: &Path) -> Result<PathBuf> {
    fs::create_dir_all(out).map_err(at("create the directory", out))?;
    let out = fs::canonicalize(out).map_err(at("find", out))?;
    tempfile::tempfile_in(&out).map_err(at("write to the directory", &out))?;
    Ok(out)
}

/// The C compiler: `CC`, or `cc`.
fn compiler() -> String {
    std::env::var("CC").ok().filter(|name| !name.trim().is_empty()).unwrap_or_else(|| "cc".to_owned())
}

/// Fails unless the program can be started.
fn require(program: &str, remedy: &str) -> Result<()> {
    let started = Command::new(program).arg("--version").stdin(Stdio::null()).output();
    match started {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(Failure::Missing(format!("{program} is not installed: {remedy}")))
        }
        Err(error) => Err(Failure::Missing(format!("cannot start {program} ({error}): {remedy}"))),
    }
}

/// The release build, and where it is. The module for Python is built only if asked for.
fn build(root: &Path, with_buckets: bool, with_python: bool) -> Result<PathBuf> {
    let build = |arguments: &[&str]| {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.current_dir(root).args(["build", "--release", "--quiet"]).args(arguments);
        succeed(cargo.env_remove("CARGO_MANIFEST_DIR"))
    };
    build(if with_buckets { &["--features", "untorn-cli/stores"] } else { &[] })?;
    if with_python {
        build(&["--package", "untorn-python"])?;
    }
    Ok(crate::target(root, "release"))
}

/// Runs a command that must succeed; its output is that of this program.
fn succeed(command: &mut Command) -> Result<()> {
    let status = command.stdin(Stdio::null()).status().map_err(|error| cannot_run(command, &error))?;
    if status.success() { Ok(()) } else { Err(Failure::Wrong(format!("{} ended with {status}", words(command)))) }
}

/// Runs a command that must succeed, and returns its standard output.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| cannot_run(command, &error))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Failure::Wrong(format!("{} ended with {}\n{}", words(command), output.status, said.trim_end())))
}

/// The same as text.
fn said(command: &mut Command) -> Result<String> {
    output(command).map(|bytes| String::from_utf8_lossy(&bytes).trim_end().to_owned())
}

fn cannot_run(command: &Command, error: &io::Error) -> Failure {
    Failure::Missing(format!("cannot run {}: {error}", words(command)))
}

/// A command as a person types it.
fn words(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    let text = words.join(" ");
    if text.chars().count() > 400 { format!("{} …", text.chars().take(400).collect::<String>()) } else { text }
}

/// Puts a file or tree in the place of what is there.
fn replace(new: &Path, place: &Path) -> Result<()> {
    match fs::symlink_metadata(place) {
        Ok(old) if old.is_dir() => fs::remove_dir_all(place).map_err(at("remove the old", place))?,
        Ok(_) => fs::remove_file(place).map_err(at("remove the old", place))?,
        Err(_) => {}
    }
    fs::rename(new, place).map_err(at("create", place))
}

/// Writes a file, and the directories above it.
fn write(path: &Path, bytes: impl AsRef<[u8]>) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(at("create the directory", parent))?;
    }
    fs::write(path, bytes).map_err(at("write", path))
}

/// Copies a file and its permissions, and makes the directories above it.
fn copy(from: &Path, to: &Path) -> Result<()> {
    if let Some(parent) = to.parent() {
        fs::create_dir_all(parent).map_err(at("create the directory", parent))?;
    }
    fs::copy(from, to)
        .map(drop)
        .map_err(|error| Failure::Io(format!("cannot copy {} to {}: {error}", from.display(), to.display())))
}

/// The names in a directory, in order.
fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(directory).map_err(at("read the directory", directory))?;
    let entries: io::Result<Vec<PathBuf>> = entries.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut entries = entries.map_err(at("read the directory", directory))?;
    entries.sort();
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_its_remedy() {
        let failure = require("no-such-compiler", "apt-get install it").unwrap_err();
        assert_eq!(failure.code(), UNAVAILABLE);
        assert_eq!(failure.to_string(), "no-such-compiler is not installed: apt-get install it");
    }

    #[test]
    fn an_out_that_is_a_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        for out in [&file, &file.join("below")] {
            let failure = writable(out).unwrap_err();
            assert_eq!(failure.code(), 74);
            assert!(failure.to_string().contains(&*out.to_string_lossy()), "{failure}");
        }
        assert!(writable(&directory.path().join("a/b")).unwrap().is_dir());
    }

    #[test]
    fn a_result_replaces_the_one_before() {
        let directory = tempfile::tempdir().unwrap();
        let (new, place) = (directory.path().join("new"), directory.path().join("place"));
        for content in ["first", "second"] {
            write(&new.join("sub/file"), content).unwrap();
            replace(&new, &place).unwrap();
            assert_eq!(fs::read_to_string(place.join("sub/file")).unwrap(), content);
            assert!(!new.exists());
        }
    }
}
