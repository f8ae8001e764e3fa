//! `cargo xtask clean-root`: the packages of Debian and the wheel, installed in a root without untorn and Rust.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::Args;

use crate::bare::make_root;
use crate::nightly::UNAVAILABLE;

/// What the root has beside the essential packages: compilers, what the packages depend on, and manual pages.
const PACKAGES: &str = "g++,libc6-dev,pkg-config,python3,python3-venv,man-db";

/// The programs that use what is installed.
const PROGRAMS: &[&str] = &["use.c", "use.cpp", "use.py"];

/// Install the packages of Debian and the wheel in a minimal root, and use them there without a network.
///
/// Builds them (`cargo xtask dist --deb --wheel`), installs the packages by apt, runs the tool, builds programs in C
/// and C++ by pkg-config alone, imports the Python package, and removes everything again. Installs the wheel by pip in
/// an environment of its own. Needs the rights of root.
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
    bring(root, &packages, &clean.join("untorn"))?;
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
        let is_wheel = text.ends_with(".whl") && text.starts_with(&format!("untorn-{version}-"));
        if is_package || is_wheel {
            fs::copy(packages.join(&name), place.join(&name))?;
            brought += u32::from(is_package);
            wheels += u32::from(is_wheel);
        }
    }
    if (brought, wheels) != (4, 1) {
        let found = format!("{brought} packages of Debian and {wheels} wheels of {version}, not 4 and 1");
        return Err(io::Error::other(format!("{} has {found}", packages.display())));
    }
    for name in PROGRAMS {
        fs::copy(root.join("xtask/programs/dist").join(name), place.join(name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // Of another version.
        fs::write(packages.join("untorn_99.0-1_amd64.deb"), "").unwrap();
        bring(&crate::root(), &packages, &place).unwrap();
        assert!(place.join("use.py").exists() && !place.join("untorn_99.0-1_amd64.deb").exists());
    }
}
