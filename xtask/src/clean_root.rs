//! `cargo xtask clean-root`: the packages of Debian and the wheel, installed in a root without untorn and Rust.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use crate::bare::{make_root, said};
use crate::nightly::UNAVAILABLE;

/// What the root has beside the essential packages: compilers, what the packages depend on, and manual pages.
const PACKAGES: &str = "g++,libc6-dev,pkg-config,python3,python3-venv,man-db";

/// The programs that use what is installed.
const PROGRAMS: &[&str] = &["use.c", "use.cpp", "use.py"];

/// Tests and examples that run against what is installed, as in the repository. Python's also run the book's programs.
const SOURCES: &[&str] = &[
    "book/src",
    "crates/untorn-python/README.md",
    "crates/untorn-python/pyproject.toml",
    "crates/untorn-python/tests",
    "examples/python",
    "go/untorn",
];

/// What the tests of the Python package need, by its path in the repository.
const REQUIREMENTS: &str = "crates/untorn-python/tests/requirements.txt";

/// What the example draws its plot with.
const PLOT: &str = "matplotlib>=3.8,<4";

/// Install the packages of Debian and the wheel in a minimal root, and use them there without a network.
///
/// Builds them (`cargo xtask dist --deb --wheel`), installs the packages by apt, runs the tool, builds programs in C
/// and C++ by pkg-config alone, imports the Python package, and runs `go test` by pkg-config. Installs the wheel by pip
/// in an environment of its own, and runs the tests of the Python package and its example there. Removes everything
/// again. Needs the rights of root.
///
/// Before the network is cut, it fetches the packages of the root by debootstrap, and what the Python tests need by
/// pip. Go is the one of this machine, which is copied; without one, `go test` is skipped and the output says so.
///
/// Exit codes: 0 all of it works, and no file is left; 1 otherwise; 69 something is missing to make the root with.
#[derive(Args)]
#[command(after_help = "Example: sudo -E cargo xtask clean-root --dir /tmp/clean")]
pub(crate) struct Arguments {
    /// Directory for the root, reused if it has one; without it, one below Cargo's target directory
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Directory with the packages; without it, they are built
    #[arg(long, value_name = "DIR")]
    packages: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, arguments: &Arguments) -> ExitCode {
    match install(root, arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("clean-root: {error}");
            ExitCode::from(if error.kind() == io::ErrorKind::Unsupported { UNAVAILABLE } else { 1 })
        }
    }
}

fn install(root: &Path, arguments: &Arguments) -> io::Result<ExitCode> {
    let clean = arguments.dir.clone().unwrap_or_else(|| crate::target(root, "clean-root"));
    make_root(&clean, PACKAGES, "usr/bin/pkg-config")?;
    let packages = match &arguments.packages {
        Some(directory) => directory.clone(),
        None => {
            let out = crate::target(root, "dist");
            let status = Command::new(std::env::current_exe()?)
                .args(["dist", "--deb", "--wheel", "--out"])
                .arg(&out)
                .stdin(Stdio::null())
                .status()?;
            match status.code() {
                Some(0) => out,
                Some(code) => return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1))),
                None => return Ok(ExitCode::FAILURE),
            }
        }
    };
    let place = clean.join("untorn");
    bring(root, &packages, &place)?;
    bring_sources(root, &place.join("source"))?;
    fetch_wheels(root, &clean)?;
    bring_go(root, &clean)?;
    let script = root.join("xtask/programs/clean_root.sh");
    let mut inside = Command::new("unshare");
    inside.args(["--mount", "--net", "--pid", "--fork", "--kill-child"]).arg(script).arg(&clean);
    let status = inside.arg(env!("CARGO_PKG_VERSION")).stdin(Stdio::null()).status()?;
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Copies the packages, the wheel and the programs into a directory of the root, which has nothing else.
fn bring(root: &Path, packages: &Path, place: &Path) -> io::Result<()> {
    match fs::remove_dir_all(place) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => fs::create_dir_all(place)?,
    }
    let version = env!("CARGO_PKG_VERSION");
    let (mut brought, mut wheels) = (0, 0);
    for entry in fs::read_dir(packages)? {
        let name = entry?.file_name();
        let text = name.to_string_lossy();
        let is_package = text.ends_with(".deb") && text.contains(&format!("_{version}-"));
        let is_for_glibc = text.ends_with(".whl") && !text.contains("-musllinux_");
        let is_wheel = is_for_glibc && text.starts_with(&format!("untorn-{version}-"));
        if is_package || is_wheel {
            copy(&packages.join(&name), &place.join(&name))?;
            brought += u32::from(is_package);
            wheels += u32::from(is_wheel);
        }
    }
    if (brought, wheels) != (4, 1) {
        let found = format!("{brought} packages of Debian and {wheels} wheels of {version}, not 4 and 1");
        return Err(io::Error::other(format!("{} has {found}", packages.display())));
    }
    for name in PROGRAMS {
        copy(&root.join("xtask/programs/dist").join(name), &place.join(name))?;
    }
    Ok(())
}

/// Copies a file; an error names it.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::copy(from, to).map(drop).map_err(|error| io::Error::other(format!("cannot copy {}: {error}", from.display())))
}

/// Copies the tests and the examples, at their paths in the repository.
fn bring_sources(root: &Path, place: &Path) -> io::Result<()> {
    fs::create_dir_all(place)?;
    let packed = place.join("sources.tar");
    said(Command::new("tar").arg("-C").arg(root).arg("-cf").arg(&packed).args(SOURCES))?;
    said(Command::new("tar").args(["--no-same-owner", "-C"]).arg(place).arg("-xf").arg(&packed))?;
    fs::remove_file(packed)
}

/// Downloads what the tests of the Python package need into `wheels` of the root, for the root's Python. Those of an
/// earlier run are taken again while the list is the same.
fn fetch_wheels(root: &Path, clean: &Path) -> io::Result<()> {
    let version = "import sys; print('%d.%d' % sys.version_info[:2])";
    let version = said(Command::new("chroot").arg(clean).args(["/usr/bin/python3", "-c", version]))?;
    let list = fs::read_to_string(root.join(REQUIREMENTS))?;
    let wanted = format!("{list}{PLOT}\n# for Python {version}\n");
    let wheels = clean.join("wheels");
    let (requirements, partial) = (wheels.join("requirements.txt"), clean.join("wheels.partial"));
    if fs::read_to_string(&requirements).is_ok_and(|had| had == wanted) {
        return Ok(());
    }
    for old in [&wheels, &partial] {
        if old.exists() {
            fs::remove_dir_all(old)?;
        }
    }
    fs::create_dir_all(&partial)?;
    let new = partial.join("requirements.txt");
    fs::write(&new, wanted)?;
    println!("-- fetching what the tests of the Python package need, by pip");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "10"]);
    pip.args(["--only-binary=:all:", "--python-version", &version, "--dest"]).arg(&partial).arg("-r").arg(new);
    said(&mut pip).map_err(|error| {
        let text = format!("pip cannot download the packages that the Python tests need: {error}");
        io::Error::new(io::ErrorKind::Unsupported, text)
    })?;
    fs::rename(partial, wheels)
}

/// Copies this machine's Go into `opt/go` of the root. A Go that is missing or too old is removed there.
fn bring_go(root: &Path, clean: &Path) -> io::Result<()> {
    let (place, stamp) = (clean.join("opt/go"), clean.join("opt/go.version"));
    let version = said(Command::new("go").args(["env", "GOVERSION"]).env("GOTOOLCHAIN", "local"));
    let wanted = fs::read_to_string(root.join("go/untorn/go.mod"))?;
    let wanted = wanted.lines().find_map(|line| line.strip_prefix("go ")).unwrap_or_default();
    let version = match version {
        Ok(version) if minor_of_go(&version) >= minor_of_go(wanted) => version,
        found => {
            match found {
                Ok(version) => println!("skipped: go test: {version} is older than Go {wanted}"),
                Err(error) => println!("skipped: go test: this machine has no Go: apt-get install golang: {error}"),
            }
            if place.exists() {
                fs::remove_dir_all(place)?;
            }
            return Ok(());
        }
    };
    if place.exists() {
        if fs::read_to_string(&stamp).is_ok_and(|had| had == version) {
            return Ok(());
        }
        fs::remove_dir_all(&place)?;
    }
    println!("-- copying {version}");
    let from = said(Command::new("go").args(["env", "GOROOT"]).env("GOTOOLCHAIN", "local"))?;
    // Debian's has links to directories elsewhere.
    said(
        Command::new("cp").args(["--recursive", "--dereference", "--preserve=mode,timestamps"]).arg(from).arg(&place),
    )?;
    fs::write(stamp, version)
}

/// The minor version of `go1.21.3` or `1.21`.
fn minor_of_go(version: &str) -> Option<u32> {
    let minor = version.trim_start_matches("go").strip_prefix("1.")?;
    let digits = minor.find(|c: char| !c.is_ascii_digit()).unwrap_or(minor.len());
    minor[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_go_compare_as_numbers() {
        assert_eq!(minor_of_go("go1.26.8"), Some(26));
        assert_eq!(minor_of_go("go1.9rc1"), Some(9));
        assert!(minor_of_go("1.21") > minor_of_go("go1.9"));
        assert_eq!(minor_of_go("devel"), None);
    }

    #[test]
    fn the_sources_keep_their_paths() {
        let place = tempfile::tempdir().unwrap();
        bring_sources(&crate::root(), place.path()).unwrap();
        for path in [REQUIREMENTS, "examples/python/embeddings.py", "go/untorn/go.mod", "book/src/SUMMARY.md"] {
            assert!(place.path().join(path).is_file(), "{path}");
        }
        assert!(!place.path().join("crates/untorn-python/python").exists(), "the package itself is the installed one");
    }

    #[test]
    fn a_package_that_is_missing_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let (packages, place) = (directory.path().join("packages"), directory.path().join("place"));
        fs::create_dir(&packages).unwrap();
        let version = env!("CARGO_PKG_VERSION");
        for name in ["untorn", "libuntorn0", "libuntorn-dev"] {
            fs::write(packages.join(format!("{name}_{version}-1_amd64.deb")), "").unwrap();
        }
        let error = bring(&crate::root(), &packages, &place).unwrap_err();
        assert!(error.to_string().contains("has 3 packages"), "{error}");
        fs::write(packages.join(format!("python3-untorn_{version}-1_amd64.deb")), "").unwrap();
        let error = bring(&crate::root(), &packages, &place).unwrap_err();
        assert!(error.to_string().contains("and 0 wheels"), "{error}");
        fs::write(packages.join(format!("untorn-{version}-cp311-abi3-manylinux_2_34_x86_64.whl")), "").unwrap();
        fs::write(packages.join(format!("untorn-{version}-cp311-abi3-musllinux_1_2_x86_64.whl")), "").unwrap();
        // Of another version.
        fs::write(packages.join("untorn_99.0-1_amd64.deb"), "").unwrap();
        bring(&crate::root(), &packages, &place).unwrap();
        assert!(place.join("use.py").exists() && !place.join("untorn_99.0-1_amd64.deb").exists());
    }
}
