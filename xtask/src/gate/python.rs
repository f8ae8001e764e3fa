//! The check of the Python package: its module, as a debug build, under its tests and its type checker.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use super::runner::{Context, Outcome, finish};

/// The version of CPython whose stable interface the module is built for, and later ones.
const OLDEST: (u32, u32) = (3, 11);

/// Builds the module, lays the package out beside an environment with what its tests need, and runs them.
pub(super) fn package(context: &Context<'_>) -> io::Result<Outcome> {
    let crate_dir = context.root.join("crates/untorn-python");
    let (major, minor) = OLDEST;
    let is_new = format!("import sys; raise SystemExit(sys.version_info < ({major}, {minor}))");
    if !Command::new("python3").args(["-c", &is_new]).status()?.success() {
        return Ok(Outcome::Skipped(format!("the module of a debug build needs python3 of version {major}.{minor}")));
    }
    if let not_passed @ (Outcome::Failed(_) | Outcome::Skipped(_)) =
        finish(context.cargo().args(["build", "--package", "untorn-python"]), 0)
    {
        return Ok(not_passed);
    }
    let target = crate::target(context.root, "python");
    let environment = environment(&crate_dir, &target)?;
    let Ok(python) = environment else { return Ok(environment.unwrap_err()) };
    let site = target.join("site");
    lay_out(&crate_dir, &crate::target(context.root, "debug").join("lib_untorn.so"), &site.join("untorn"))?;
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.args(arguments).current_dir(&crate_dir).env("PYTHONPATH", &site).env("PYTHONDONTWRITEBYTECODE", "1");
        finish(command.env("HYPOTHESIS_STORAGE_DIRECTORY", target.join("hypothesis")), 0)
    };
    let cache = target.join("mypy");
    let types = run(&["-m", "mypy", "--cache-dir", &cache.to_string_lossy()]);
    if !matches!(types, Outcome::Passed) {
        return Ok(types);
    }
    Ok(run(&["-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"]))
}

/// The interpreter of an environment that has what the tests need. It is made anew when that list changes.
fn environment(crate_dir: &Path, target: &Path) -> io::Result<Result<std::path::PathBuf, Outcome>> {
    let (home, made) = (target.join("environment"), target.join("environment.made"));
    let python = home.join("bin/python");
    let list = crate_dir.join("tests/requirements.txt");
    let wanted = fs::read(&list)?;
    if fs::read(&made).is_ok_and(|has| has == wanted) && python.exists() {
        return Ok(Ok(python));
    }
    fs::create_dir_all(target)?;
    if !matches!(finish(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home), 0), Outcome::Passed) {
        return Ok(Err(Outcome::Skipped("python3 makes no environment: apt-get install python3-venv".to_owned())));
    }
    let pip = |arguments: &[&str]| finish(Command::new(&python).args(["-m", "pip"]).args(arguments), 0);
    let list = list.to_string_lossy();
    let installed = pip(&["install", "--quiet", "--retries", "10", "-r", &list]);
    if !matches!(installed, Outcome::Passed) {
        // A list that is wrong fails; a network that is not there is none of the package's faults.
        let probe = ["download", "--quiet", "--no-deps", "--dest", &home.to_string_lossy(), "iniconfig"];
        let is_there = matches!(pip(&probe), Outcome::Passed);
        let missing = || Outcome::Skipped("what the tests need cannot be fetched from here".to_owned());
        return Ok(Err(if is_there { installed } else { missing() }));
    }
    fs::write(&made, wanted)?;
    Ok(Ok(python))
}

/// The user of Debian that owns no file.
const ORDINARY: &str = "65534";

/// Installs the source distribution and then a clone by pip, each in an environment of its own, and uses the package.
/// pip fetches maturin, which builds the module. Run by root, this becomes an ordinary user first.
pub(super) fn from_sources(context: &Context<'_>) -> io::Result<Outcome> {
    let place = crate::target(context.root, "pip");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    for directory in ["home", "built", "cargo/registry"] {
        fs::create_dir_all(place.join(directory))?;
    }
    let crate_dir = context.root.join("crates/untorn-python");
    let mut pack = Command::new("maturin");
    pack.current_dir(crate_dir).args(["sdist", "--out"]).arg(place.join("sdist")).env_remove("CARGO_MANIFEST_DIR");
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--no-hardlinks"]).arg(context.root).arg(place.join("checkout"));
    let mut fetch = context.cargo();
    fetch.args(["fetch", "--locked"]);
    // The sources of the dependencies are unpacked again from these.
    let mut bring = Command::new("cp");
    bring.arg("-a").args(["index", "cache"].map(|part| crate::bare::cargo_home().join("registry").join(part)));
    bring.arg(place.join("cargo/registry"));
    for command in [&mut pack, &mut clone, &mut fetch, &mut bring] {
        if let not_passed @ (Outcome::Failed(_) | Outcome::Skipped(_)) = finish(command, 0) {
            return Ok(not_passed);
        }
    }
    let sysroot = crate::bare::said(Command::new("rustc").args(["--print", "sysroot"]).current_dir(context.root))?;
    let script = context.root.join("xtask/programs/pip_install.sh");
    let is_root = rustix::process::geteuid().is_root();
    let (mut command, user) = if is_root {
        crate::bare::said(Command::new("chown").args(["-R", &format!("{ORDINARY}:{ORDINARY}")]).arg(&place))?;
        let mut command = Command::new("unshare");
        command.arg("--mount").arg(script);
        (command, ORDINARY)
    } else {
        (Command::new(script), "")
    };
    command.arg(&place).args([&sysroot, user, env!("CARGO_PKG_VERSION")]).env_remove("CARGO_MANIFEST_DIR");
    let outcome = finish(command.stdin(Stdio::null()), 0);
    // It is large, and nothing is built on it.
    fs::remove_dir_all(&place)?;
    Ok(outcome)
}

/// What PyO3 asks an interpreter for, of a free-threaded one.
const FREE_THREADED: &str = "implementation=CPython\nversion=3.14\nshared=true\nbuild_flags=Py_GIL_DISABLED\n\
     pointer_width=64\nsuppress_build_script_link_lines=true\n";

/// Compiles the module for a free-threaded interpreter, which has no stable interface. None need be installed.
pub(super) fn free_threaded(context: &Context<'_>) -> io::Result<Outcome> {
    let target = crate::target(context.root, "free-threaded");
    fs::create_dir_all(&target)?;
    let interpreter = target.join("interpreter.txt");
    fs::write(&interpreter, FREE_THREADED)?;
    let mut cargo = context.cargo();
    cargo.args(["check", "--package", "untorn-python", "--no-default-features", "--target-dir"]).arg(&target);
    Ok(finish(cargo.env("PYO3_CONFIG_FILE", interpreter), 0))
}

/// Copies the package's Python files, and the module as an interpreter looks for it.
fn lay_out(crate_dir: &Path, module: &Path, package: &Path) -> io::Result<()> {
    if package.exists() {
        fs::remove_dir_all(package)?;
    }
    fs::create_dir_all(package)?;
    for entry in fs::read_dir(crate_dir.join("python/untorn"))? {
        let entry = entry?;
        let name = entry.file_name();
        if entry.file_type()?.is_file() && !name.to_string_lossy().ends_with(".so") {
            fs::copy(entry.path(), package.join(name))?;
        }
    }
    fs::copy(module, package.join("_untorn.abi3.so"))?;
    Ok(())
}
