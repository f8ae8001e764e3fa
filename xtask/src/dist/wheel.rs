//! The Python package as a wheel for pip, which also has the tool: `untorn` can be run after `pip install`.
//!
//! The tag names the oldest C library that the wheel runs on, by the versions of the symbols that its files ask for. So
//! a build on an older system gives a wheel for more systems. Zig has musl and the symbols of every glibc, and links
//! for each on any system.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::{Failure, Result, VERSION, at, cannot_run, copy, entries, output, replace, require, said, succeed};

/// The systems that a wheel is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum System {
    /// Those with the glibc of this one, or a later one.
    Host,
    /// Those of a machine with glibc 2.17 or later (manylinux2014), or with musl 1.2.
    Portable { machine: &'static str, musl: bool },
}

/// The targets of Rust that Zig links wheels for, and their systems.
const TARGETS: &[(&str, System)] = &[
    ("x86_64-unknown-linux-gnu", System::Portable { machine: "x86_64", musl: false }),
    ("x86_64-unknown-linux-musl", System::Portable { machine: "x86_64", musl: true }),
    ("aarch64-unknown-linux-gnu", System::Portable { machine: "aarch64", musl: false }),
    ("aarch64-unknown-linux-musl", System::Portable { machine: "aarch64", musl: true }),
];

/// The glibc of manylinux2014.
const OLDEST: (u32, u32) = (2, 17);

const ARCH: &str = std::env::consts::ARCH;

impl fmt::Display for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            System::Host => f.write_str("this system"),
            System::Portable { .. } => f.write_str(self.target()),
        }
    }
}

impl System {
    /// The system of a target of Rust.
    pub(super) fn of(target: &str) -> std::result::Result<Self, String> {
        let found = TARGETS.iter().find(|(name, _)| *name == target).map(|(_, system)| *system);
        found.ok_or_else(|| {
            let known: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            format!("no wheel is made for {target}; known are {}", known.join(", "))
        })
    }

    /// The portable systems of this machine.
    pub(super) fn portable() -> Vec<Self> {
        let of_this = |system: &System| matches!(system, System::Portable { machine, .. } if *machine == ARCH);
        TARGETS.iter().map(|(_, system)| *system).filter(of_this).collect()
    }

    fn target(self) -> &'static str {
        TARGETS.iter().find(|(_, system)| *system == self).map_or("", |(name, _)| name)
    }

    fn machine(self) -> &'static str {
        match self {
            System::Host => ARCH,
            System::Portable { machine, .. } => machine,
        }
    }

    /// The last part of the wheel's name, for files whose newest symbol of glibc is this.
    fn tag(self, newest: Option<(u32, u32)>) -> Result<String> {
        match (self, newest) {
            (System::Portable { machine, musl: true }, None) => Ok(format!("musllinux_1_2_{machine}")),
            (System::Portable { machine, musl: false }, Some(newest)) if newest <= OLDEST => {
                // pip knows the second name longer than the first.
                Ok(format!("manylinux_2_17_{machine}.manylinux2014_{machine}"))
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

/// Fails if something is missing that makes these wheels.
pub(super) fn needs(systems: &[System]) -> Result<()> {
    let portable: Vec<System> = systems.iter().copied().filter(|system| *system != System::Host).collect();
    if !portable.is_empty() {
        require("cargo-zigbuild", "pip install cargo-zigbuild")?;
        let zig = output(Command::new("cargo-zigbuild").args(["zig", "cc", "--", "--version"]));
        let remedy = "pip install ziglang, and name that Python in CARGO_ZIGBUILD_PYTHON_PATH if it is another one";
        zig.map_err(|_| Failure::Missing(format!("cargo-zigbuild finds no Zig: {remedy}")))?;
    }
    for system in portable {
        let target = system.target();
        let library = said(Command::new("rustc").args(["--print", "target-libdir", "--target", target]))?;
        if !Path::new(&library).exists() {
            let text = format!("Rust's library for {target} is not installed: rustup target add {target}");
            return Err(Failure::Missing(text));
        }
    }
    require("readelf", "apt-get install binutils")?;
    require("python3", "apt-get install python3")?;
    let has_reader = output(Command::new("python3").args(["-c", "import tomllib"]));
    has_reader.map(drop).map_err(|_| Failure::Missing("python3 is older than 3.11".to_owned()))
}

/// Builds the module and the tool by Zig, and returns where they are.
fn build(root: &Path, system: System) -> Result<PathBuf> {
    let target = system.target();
    let is_musl = matches!(system, System::Portable { musl: true, .. });
    let version = if is_musl { String::new() } else { format!(".{}.{}", OLDEST.0, OLDEST.1) };
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(root).args(["zigbuild", "--release", "--quiet", "--package", "untorn-cli"]);
    cargo.args(["--features", "untorn-cli/stores"]);
    cargo.args(["--package", "untorn-python", "--target", &format!("{target}{version}")]);
    // The `strip` of this machine may not know the other one's files.
    cargo.env("CARGO_PROFILE_RELEASE_STRIP", "symbols");
    if is_musl {
        // A module that Python loads shares its musl. The tool could have its own; one build for both is shorter.
        let variable = format!("CARGO_TARGET_{}_RUSTFLAGS", target.to_uppercase().replace('-', "_"));
        cargo.env(variable, "-C target-feature=-crt-static");
    }
    succeed(cargo.env_remove("CARGO_MANIFEST_DIR"))?;
    Ok(crate::target(root, &format!("{target}/release")))
}

/// Makes the wheel in `out`, and returns its path. `built` has the module for Python and the tool of this system.
pub(super) fn wheel(root: &Path, built: &Path, system: System, out: &Path, scratch: &Path) -> Result<PathBuf> {
    let stage = scratch.join(format!("wheel for {system}"));
    let (module, tool) = (stage.join("_untorn.abi3.so"), stage.join("untorn"));
    let built = if system == System::Host { built.to_owned() } else { build(root, system)? };
    copy(&built.join("lib_untorn.so"), &module)?;
    copy(&built.join("untorn"), &tool)?;
    if system == System::Host {
        succeed(Command::new("strip").arg("--strip-unneeded").args([&module, &tool]))?;
    }
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

/// Checks the tag of a wheel by auditwheel, and uses the wheel. One for this machine and glibc is installed in an
/// environment of its own. For another system it runs the tool, and has the loader of musl load the module. Returns the
/// checks that this machine could not do, with the reasons.
pub(super) fn check(root: &Path, system: System, wheel: &Path, scratch: &Path) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    let is_foreign = matches!(system, System::Portable { machine, musl } if musl || machine != ARCH);
    match require("auditwheel", "pip install auditwheel") {
        Err(why) => skipped.push(format!("the tag of the wheel for {system}: {why}")),
        Ok(()) => {
            let mut show = Command::new("auditwheel");
            show.arg("show");
            if is_foreign {
                // Without these it takes libraries of this machine for those of the other system.
                show.arg("--ldpaths").arg(scratch.join("none"));
            }
            let verdict = said(show.arg(wheel))?;
            let verdict = verdict.split_whitespace().collect::<Vec<_>>().join(" ");
            let name = wheel.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let tags = name.rsplit('-').next().unwrap_or_default();
            let tag = tags.split('.').next().unwrap_or_default();
            if !is_consistent(&verdict, tag) {
                return Err(Failure::Wrong(format!("auditwheel says of {name}: {verdict}")));
            }
        }
    }
    if is_foreign {
        skipped.push(format!("the module of the wheel for {system}: no Python for it is known here"));
        skipped.extend(foreign(system, wheel, scratch)?);
        return Ok(skipped);
    }
    let home = scratch.join("environment");
    if let Err(failure) = output(Command::new("python3").args(["-m", "venv"]).arg(&home)) {
        skipped.push(format!("the wheel in an environment: {failure}: apt-get install python3-venv"));
        return Ok(skipped);
    }
    let python = home.join("bin/python");
    let install = ["-m", "pip", "install", "--quiet", "--no-index", "--disable-pip-version-check"];
    succeed(Command::new(&python).args(install).arg(wheel))?;
    commits(&[home.join("bin/untorn")], scratch)?;
    let mut program = Command::new(&python);
    program.arg(root.join("xtask/programs/dist/use.py")).arg(VERSION).env_remove("PYTHONPATH");
    succeed(program.current_dir(scratch))?;
    std::fs::remove_dir_all(&home).map_err(at("remove", &home))?;
    Ok(skipped)
}

/// Whether auditwheel's words, with one space between them, agree with the tag of a wheel. It knows the library of C of
/// musl by Alpine's name. Zig calls it `libc.so`, and the loader of musl takes either name for itself.
fn is_consistent(verdict: &str, tag: &str) -> bool {
    let named = format!("consistent with the following platform tag: \"{tag}\"");
    let but_libc = format!("tag '{tag}' the following shared library dependencies will need to be eliminated: libc.so");
    verdict.contains(&named) || (tag.starts_with("musllinux") && verdict.ends_with(&but_libc))
}

/// Unpacks a wheel for another system and runs its tool, which has a musl of its own or runs under an emulator. Returns
/// what this machine could not check.
fn foreign(system: System, wheel: &Path, scratch: &Path) -> Result<Option<String>> {
    let place = scratch.join(format!("unpacked for {system}"));
    let machine = system.machine();
    let is_musl = system.target().ends_with("musl");
    let mut words: Vec<PathBuf> = Vec::new();
    if machine != ARCH {
        let (emulator, libraries) = (format!("qemu-{machine}-static"), format!("/usr/{machine}-linux-gnu"));
        let library = format!("{libraries}/lib/libc.so.6");
        let needed = [
            (require(&emulator, "").is_ok(), &emulator, "apt-get install qemu-user-static"),
            (
                Path::new(&library).exists() || is_musl,
                &library,
                "apt-get install libc6-arm64-cross libgcc-s1-arm64-cross",
            ),
        ];
        if let Some((_, name, remedy)) = needed.into_iter().find(|(is_there, ..)| !is_there) {
            return Ok(Some(format!("the tool of the wheel for {system}: {name} is not installed: {remedy}")));
        }
        words.extend([emulator, "-L".to_owned(), libraries].map(PathBuf::from));
    }
    succeed(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(wheel).arg(&place))?;
    let tool = place.join(format!("untorn-{VERSION}.data/scripts/untorn"));
    // Python unpacks programs without their permissions.
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&tool, mode).map_err(at("set the permissions of", &tool))?;
    words.push(tool);
    commits(&words, scratch)?;
    if is_musl && machine == ARCH { module_for_musl(&place) } else { Ok(None) }
}

/// Has the loader of musl load the module of an unpacked wheel: it lacks the functions of Python and nothing else.
/// Returns why this machine could not check that.
fn module_for_musl(place: &Path) -> Result<Option<String>> {
    let loader = format!("/lib/ld-musl-{ARCH}.so.1");
    if !Path::new(&loader).exists() {
        return Ok(Some(format!(
            "the libraries of the module for musl: {loader} is not installed: apt-get install musl"
        )));
    }
    let module = place.join("untorn/_untorn.abi3.so");
    let mut list = Command::new(&loader);
    list.arg("--list").arg(&module);
    // It fails, as there is no Python.
    let listed = list.output().map_err(|error| cannot_run(&list, &error))?;
    let text = String::from_utf8_lossy(&listed.stderr);
    let mut lacks_python = false;
    for line in text.lines() {
        let name = line.strip_suffix(": symbol not found").and_then(|line| line.rsplit(": ").next());
        if !name.is_some_and(|name| name.trim_start_matches('_').starts_with("Py")) {
            return Err(Failure::Wrong(format!("the loader of musl says of {}: {line}", module.display())));
        }
        lacks_python = true;
    }
    if !lacks_python {
        return Err(Failure::Wrong(format!("the loader of musl did not load {}", module.display())));
    }
    Ok(None)
}

/// The tool, started by these words, says its version, commits a write and reads it.
fn commits(words: &[PathBuf], scratch: &Path) -> Result<()> {
    let wrong = |text: String| Err(Failure::Wrong(text));
    let Some((program, before)) = words.split_first() else { return wrong("no program".to_owned()) };
    let tool = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.args(before).args(arguments).current_dir(scratch);
        command
    };
    let version = said(&mut tool(&["--version"]))?;
    if version != format!("untorn {VERSION}") {
        return wrong(format!("{} says that it is {version:?}", program.display()));
    }
    let _ = std::fs::remove_file(scratch.join("commits"));
    succeed(&mut tool(&["create", "commits", "--len", "1M"]))?;
    let written = scratch.join("written");
    super::write(&written, "whole")?;
    let input = std::fs::File::open(&written).map_err(at("open", &written))?;
    let mut write = tool(&["write", "commits", "--offset", "4093"]);
    let status = write.stdin(Stdio::from(input)).status().map_err(at("start", program))?;
    let read = output(&mut tool(&["read", "commits", "--offset", "4093", "--len", "5"]))?;
    if !status.success() || read != b"whole" {
        return wrong(format!("{} wrote ({status}) and reads {read:?}", program.display()));
    }
    Ok(())
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
    fn auditwheel_may_miss_the_name_of_musl_alone() {
        let verdict = |tag: &str, libraries: &str| {
            format!(
                "x.whl is consistent with the following platform tag: \"linux_x86_64\". In order to achieve the tag \
                 platform tag '{tag}' the following shared library dependencies will need to be eliminated: {libraries}"
            )
        };
        let (musl, glibc) = ("musllinux_1_2_x86_64", "manylinux_2_17_x86_64");
        assert!(is_consistent(&verdict(musl, "libc.so"), musl));
        assert!(!is_consistent(&verdict(musl, "libssl.so libc.so"), musl));
        assert!(!is_consistent(&verdict(musl, "libc.so"), "musllinux_1_1_x86_64"));
        assert!(!is_consistent(&verdict(glibc, "libc.so"), glibc));
        let named = format!("x.whl is consistent with the following platform tag: \"{glibc}\". More");
        assert!(is_consistent(&named, glibc) && !is_consistent(&named, musl));
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
        let of = |names: &[&str], machine: &str| {
            names.iter().map(|name| format!("{name}_{machine}")).collect::<Vec<_>>().join(".")
        };
        let none = String::new;
        let host = [none(), of(&["manylinux_2_9"], ARCH), of(&["manylinux_2_17"], ARCH), of(&["manylinux_2_34"], ARCH)];
        assert_eq!(tags(System::Host), host);
        for machine in ["x86_64", "aarch64"] {
            let portable = of(&["manylinux_2_17", "manylinux2014"], machine);
            let of_target = |library: &str| tags(System::of(&format!("{machine}-unknown-linux-{library}")).unwrap());
            assert_eq!(of_target("gnu"), [none(), portable.clone(), portable, none()]);
            assert_eq!(of_target("musl"), [of(&["musllinux_1_2"], machine), none(), none(), none()]);
        }
    }

    #[test]
    fn a_target_is_refused_with_a_remedy() {
        let unknown = System::of("riscv64gc-unknown-linux-gnu").unwrap_err();
        assert!(unknown.contains("known are x86_64-unknown-linux-gnu, "), "{unknown}");
        assert_eq!(System::portable().len(), 2);
        for (name, system) in TARGETS {
            assert_eq!(System::of(name).unwrap().target(), *name);
            assert_eq!(system.to_string(), *name);
            match needs(&[*system]) {
                Err(Failure::Missing(text)) => {
                    assert!(["pip install", "rustup target add"].iter().any(|remedy| text.contains(remedy)), "{text}");
                }
                other => other.unwrap(),
            }
        }
    }
}
