//! The Python package as a wheel for pip, which also has the tool: `untorn` can be run after `pip install`.
//!
//! The tag names the oldest C library that the wheel runs on, by the versions of the symbols that its files ask for. So
//! a build on an older system gives a wheel for more systems. Zig has the symbols of every glibc, and links for an
//! old one on any system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Failure, Result, VERSION, at, copy, entries, output, replace, require, said, succeed};

/// The systems that a wheel is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// Those with the glibc of this one, or a later one.
    Host,
    /// Those of manylinux2014: glibc 2.17 and later.
    Manylinux2014,
}

/// The glibc of manylinux2014.
const OLDEST: (u32, u32) = (2, 17);

const ARCH: &str = std::env::consts::ARCH;

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            System::Host => "this system",
            System::Manylinux2014 => "manylinux2014",
        })
    }
}

impl System {
    /// The last part of the wheel's name, for files whose newest symbol of glibc is this.
    fn tag(self, newest: Option<(u32, u32)>) -> Result<String> {
        match (self, newest) {
            (System::Manylinux2014, Some(newest)) if newest <= OLDEST => {
                // pip knows the second name longer than the first.
                Ok(format!("manylinux_2_17_{ARCH}.manylinux2014_{ARCH}"))
            }
            (System::Host, Some((major, minor))) => Ok(format!("manylinux_{major}_{minor}_{ARCH}")),
            (system, Some((major, minor))) => {
                Err(Failure::Wrong(format!("a file for {system} uses symbols of glibc {major}.{minor}")))
            }
            (_, None) => {
                Err(Failure::Wrong("the module and the tool use no symbol of glibc: no tag is known".to_owned()))
            }
        }
    }
}

/// Fails if a program that makes wheels is missing.
pub(super) fn needs(portable: bool) -> Result<()> {
    if portable {
        require("cargo-zigbuild", "pip install cargo-zigbuild")?;
    }
    require("readelf", "apt-get install binutils")?;
    require("python3", "apt-get install python3")?;
    let has_reader = output(Command::new("python3").args(["-c", "import tomllib"]));
    has_reader.map(drop).map_err(|_| Failure::Missing("python3 is older than 3.11".to_owned()))
}

/// Builds the module and the tool for an old glibc by Zig, and returns where they are.
fn build(root: &Path) -> Result<PathBuf> {
    let target = format!("{ARCH}-unknown-linux-gnu");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["zigbuild", "--release", "--quiet", "--package", "untorn-cli"]);
    cargo.args(["--package", "untorn-python", "--target", &format!("{target}.{}.{}", OLDEST.0, OLDEST.1)]);
    succeed(cargo.env_remove("CARGO_MANIFEST_DIR"))?;
    Ok(crate::target(root, &format!("{target}/release")))
}

/// Makes the wheel in `out`, and returns its path. `built` has the module for Python and the tool of this system.
pub(super) fn wheel(root: &Path, built: &Path, system: System, out: &Path, scratch: &Path) -> Result<PathBuf> {
    let built = if system == System::Host { built.to_owned() } else { build(root)? };
    let stage = scratch.join(format!("wheel for {system}"));
    let (module, tool) = (stage.join("_untorn.abi3.so"), stage.join("untorn"));
    copy(&built.join("lib_untorn.so"), &module)?;
    copy(&built.join("untorn"), &tool)?;
    succeed(Command::new("strip").arg("--strip-unneeded").args([&module, &tool]))?;
    let mut newest = None;
    for file in [&module, &tool] {
        newest = newest.max(glibc(&said(Command::new("readelf").args(["--wide", "--version-info"]).arg(file))?));
    }
    let platform = system.tag(newest)?;
    let mut pack = Command::new("python3");
    pack.arg(root.join("packaging/wheel.py")).arg("--root").arg(root).arg("--module").arg(&module);
    pack.arg("--tool").arg(&tool).args(["--version", VERSION, "--platform", &platform]).arg("--out").arg(&stage);
    let made = PathBuf::from(said(&mut pack)?);
    let Some(name) = made.file_name() else { return Err(Failure::Wrong("wheel.py names no wheel".to_owned())) };
    let place = out.join(name);
    replace(&made, &place)?;
    Ok(place)
}

/// The newest version of glibc among the symbols that `readelf --version-info` shows.
fn glibc(table: &str) -> Option<(u32, u32)> {
    let names = table.split_whitespace().filter_map(|word| word.strip_prefix("GLIBC_"));
    let versions = names.filter_map(|name| {
        let mut parts = name.split('.').map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    versions.max()
}

/// Checks the wheel in an environment of its own: the tool and the package, and the tag by auditwheel. Returns the
/// checks that this machine could not do, with the reasons.
pub(super) fn check(root: &Path, wheel: &Path, scratch: &Path) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    match require("auditwheel", "pip install auditwheel") {
        Err(why) => skipped.push(format!("the tag of the wheel: {why}")),
        Ok(()) => {
            let verdict = said(Command::new("auditwheel").arg("show").arg(wheel))?;
            let verdict = verdict.split_whitespace().collect::<Vec<_>>().join(" ");
            let name = wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let tags = name.rsplit('-').next().unwrap_or_default();
            let tag = tags.split('.').next().unwrap_or_default();
            if !verdict.contains(&format!("consistent with the following platform tag: \"{tag}\"")) {
                return Err(Failure::Wrong(format!("auditwheel says of {name}: {verdict}")));
            }
        }
    }
    let home = scratch.join("environment");
    if let Err(failure) = output(Command::new("python3").args(["-m", "venv"]).arg(&home)) {
        skipped.push(format!("the wheel in an environment: {failure}: apt-get install python3-venv"));
        return Ok(skipped);
    }
    let python = home.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"];
    succeed(Command::new(&python).args(install).arg(wheel))?;
    let version = said(Command::new(home.join("bin/untorn")).arg("--version"))?;
    if version != format!("untorn {VERSION}") {
        return Err(Failure::Wrong(format!("the tool of the wheel says that it is {version:?}")));
    }
    let mut program = Command::new(&python);
    program.arg(root.join("xtask/programs/dist/use.py")).arg(VERSION).env_remove("PYTHONPATH");
    succeed(program.current_dir(scratch))?;
    std::fs::remove_dir_all(&home).map_err(at("remove", &home))?;
    Ok(skipped)
}

/// Checks the source distribution. Returns what this machine could not check.
pub(super) fn check_sources(root: &Path, scratch: &Path) -> Result<Option<String>> {
    match require("maturin", "pip install maturin") {
        Err(why) => Ok(Some(format!("the source distribution: {why}"))),
        Ok(()) => sources(root, scratch).map(|()| None),
    }
}

/// Packs the source distribution, and checks that Cargo finds in it every crate that the module is built from.
fn sources(root: &Path, scratch: &Path) -> Result<()> {
    let (out, place) = (scratch.join("sdist"), scratch.join("sources"));
    let mut pack = Command::new("maturin");
    pack.current_dir(root.join("crates/untorn-python")).args(["sdist", "--out"]).arg(&out);
    output(pack.env_remove("CARGO_MANIFEST_DIR"))?;
    let packed = entries(&out)?;
    let [archive] = &packed[..] else { return Err(Failure::Wrong(format!("maturin sdist made {packed:?}"))) };
    std::fs::create_dir(&place).map_err(at("create", &place))?;
    succeed(Command::new("tar").arg("-xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&place))?;
    let expected = ["PKG-INFO", "pyproject.toml", "LICENSE-APACHE", "LICENSE-MIT", "python/untorn/py.typed"];
    if let Some(missing) = expected.iter().find(|name| !place.join(name).is_file()) {
        return Err(Failure::Wrong(format!("{} lacks {missing}", archive.display())));
    }
    let mut cargo = Command::new("cargo");
    cargo.current_dir(&place).args(["metadata", "--offline", "--format-version=1"]).env_remove("CARGO_MANIFEST_DIR");
    output(cargo.args(["--manifest-path", "crates/untorn-python/Cargo.toml"])).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_distribution_is_complete() {
        untorn_testing::needs!("maturin");
        let scratch = tempfile::tempdir().unwrap();
        sources(&crate::root(), scratch.path()).unwrap();
    }

    #[test]
    fn the_newest_symbol_decides_the_tag() {
        let table = "  0x0020:   Name: GLIBC_2.9  Flags: none  Version: 8\n\
            0x0030:   Name: GLIBC_2.34  Flags: none\n  0x0040:   Name: GLIBC_2.2.5  Flags: none\n\
            0x0050: Name: GCC_4.2.0\n  0x0060: Name: GLIBC_PRIVATE\n";
        assert_eq!(glibc(table), Some((2, 34)));
        assert_eq!(glibc("Name: GCC_3.0"), None);
        let tags = |system: System| {
            [None, Some((2, 9)), Some((2, 17)), Some((2, 34))].map(|newest| system.tag(newest).unwrap_or_default())
        };
        let of = |names: &[&str]| names.iter().map(|name| format!("{name}_{ARCH}")).collect::<Vec<_>>().join(".");
        let portable = of(&["manylinux_2_17", "manylinux2014"]);
        let none = String::new;
        let host = [none(), of(&["manylinux_2_9"]), of(&["manylinux_2_17"]), of(&["manylinux_2_34"])];
        assert_eq!(tags(System::Host), host);
        assert_eq!(tags(System::Manylinux2014), [none(), portable.clone(), portable, none()]);
    }
}
