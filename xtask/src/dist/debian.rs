//! The tree as packages of Debian: `untorn`, `libuntorn0`, `libuntorn-dev`, `python3-untorn`.
//!
//! The prefix `/usr` is laid out once and each of its files goes to exactly one package. `dpkg-shlibdeps` finds what
//! the programs depend on, and `dpkg-deb` packs. The texts are in `packaging/debian`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::time;
use super::layout::{self, Places};
use super::library::{SONAME, VERSIONS, functions};
use super::{Failure, Result, VERSION, at, copy, entries, output, replace, require, said, succeed, write};

/// The version of the packages: that of the sources, and the number of the packaging.
const PACKAGE_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");

/// The authors of the manifest, with colons between.
const AUTHORS: &str = env!("CARGO_PKG_AUTHORS");

/// The address of authors who give none. A package must have one, and no mail to it arrives.
const NO_ADDRESS: &str = "untorn@localhost";

const TEXTS: &str = "packaging/debian";

/// The directory below `usr/` for Python packages of Debian.
const PYTHON: &str = "lib/python3/dist-packages";

/// A machine as Debian names it.
struct Machine {
    /// `amd64`.
    architecture: String,
    /// `x86_64-linux-gnu`.
    triplet: String,
}

/// The person whom packages name, as `Name <address>`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Maintainer {
    line: String,
    has_address: bool,
}

impl Maintainer {
    /// The option's value, what `DEBFULLNAME` and `DEBEMAIL` say, or the first author of the manifest.
    pub(super) fn choose(option: Option<&str>) -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        Self::among(option, variable("DEBFULLNAME"), variable("DEBEMAIL"), AUTHORS)
    }

    fn among(option: Option<&str>, name: Option<String>, email: Option<String>, authors: &str) -> Self {
        let author = authors.split(':').next().unwrap_or_default().trim();
        let (author, address) = match author.strip_suffix('>').and_then(|text| text.split_once('<')) {
            Some((author, address)) => (author.trim(), Some(address.to_owned())),
            None => (author, None),
        };
        if let Some(line) = option {
            return Maintainer { line: line.to_owned(), has_address: true };
        }
        let address = email.or(address);
        let has_address = address.is_some();
        let (name, address) = (name.unwrap_or_else(|| author.to_owned()), address.unwrap_or_else(|| NO_ADDRESS.into()));
        Maintainer { line: format!("{name} <{address}>"), has_address }
    }

    /// What to tell a builder whose packages name no address.
    pub(super) fn warning(&self) -> Option<String> {
        let line = &self.line;
        let text =
            || format!("the packages name {line}, whom no mail reaches: --maintainer 'NAME <ADDRESS>' sets another");
        (!self.has_address).then(text)
    }
}

/// A value of `--maintainer`.
pub(super) fn maintainer_line(text: &str) -> std::result::Result<String, String> {
    let address = text.strip_suffix('>').and_then(|text| text.split_once(" <"));
    match address {
        Some((name, address)) if !name.trim().is_empty() && address.contains('@') && !text.contains('\n') => {
            Ok(text.to_owned())
        }
        _ => Err("expected NAME <ADDRESS>".to_owned()),
    }
}

/// Fails if a program that builds packages is missing.
pub(super) fn needs() -> Result<()> {
    for program in ["dpkg-deb", "dpkg-architecture", "dpkg-shlibdeps"] {
        require(program, "apt-get install dpkg-dev")?;
    }
    Ok(())
}

/// Builds the packages into `out`, and returns their files. `built` also has the module for Python.
pub(super) fn packages(
    root: &Path,
    built: &Path,
    maintainer: &Maintainer,
    out: &Path,
    scratch: &Path,
) -> Result<Vec<PathBuf>> {
    let machine = Machine::this()?;
    let stage = scratch.join("debian");
    let prefix = stage.join("all");
    layout::lay_out(root, built, &Places::debian(&machine.triplet), &prefix)?;
    python(root, built, &prefix)?;
    let control = root.join(TEXTS).join("control");
    let control = fs::read_to_string(&control).map_err(at("read", &control))?;
    let stanzas = stanzas(&control);
    distribute(&prefix, &machine, &stage)?;
    let mut made = Vec::new();
    for (name, stanza) in &stanzas {
        let tree = stage.join(name);
        documents(root, name, maintainer, &tree)?;
        layout::permissions(&tree)?;
        metadata(root, (name, stanza), &machine, maintainer, &tree)?;
        let file = format!("{name}_{PACKAGE_VERSION}_{}.deb", machine.architecture);
        let new = scratch.join(&file);
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-Zxz", "-z1", "--build"]).arg(&tree).arg(&new);
        output(pack.env("SOURCE_DATE_EPOCH", time(root).to_string()))?;
        let place = out.join(file);
        replace(&new, &place)?;
        made.push(place);
    }
    Ok(made)
}

impl Machine {
    fn this() -> Result<Self> {
        let ask = |variable: &str| said(Command::new("dpkg-architecture").args(["-q", variable]));
        Ok(Machine { architecture: ask("DEB_HOST_ARCH")?, triplet: ask("DEB_HOST_MULTIARCH")? })
    }
}

/// The packages of the control file with their fields, in its order.
fn stanzas(control: &str) -> Vec<(String, String)> {
    let text: String = control.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect();
    let named = text.split("\n\n").map(str::trim).filter_map(|stanza| {
        let name = stanza.lines().next()?.strip_prefix("Package: ")?;
        Some((name.to_owned(), format!("{stanza}\n")))
    });
    named.collect()
}

/// The Python package below the prefix, as `pip` would install it.
fn python(root: &Path, built: &Path, prefix: &Path) -> Result<()> {
    let directory = prefix.join(PYTHON);
    for file in entries(&root.join("crates/untorn-python/python/untorn"))? {
        let is_source = file.extension().is_some_and(|end| ["py", "pyi", "typed"].iter().any(|wanted| end == *wanted));
        if let (true, Some(name)) = (is_source, file.file_name()) {
            copy(&file, &directory.join("untorn").join(name))?;
        }
    }
    let module = directory.join("untorn/_untorn.abi3.so");
    copy(&built.join("lib_untorn.so"), &module)?;
    succeed(Command::new("strip").arg("--strip-unneeded").arg(&module))?;
    let metadata = format!(
        "Metadata-Version: 2.1\nName: untorn\nVersion: {VERSION}\n\
         Summary: Files and arrays that never tear: memory-mapped files with atomic commits\n\
         License: MIT OR Apache-2.0\nRequires-Python: >=3.11\n"
    );
    let information = directory.join(format!("untorn-{VERSION}.dist-info"));
    write(&information.join("METADATA"), metadata)?;
    write(&information.join("INSTALLER"), "debian\n")
}

/// The package of a file, by its path below the prefix. `None` is for what Debian has elsewhere.
fn package_of(path: &str, triplet: &str) -> Result<Option<&'static str>> {
    let library = path.strip_prefix("lib/").and_then(|rest| rest.strip_prefix(triplet)?.strip_prefix('/'));
    Ok(Some(match library {
        Some(name) if name.starts_with("untorn/") => "untorn",
        Some(name) if name.starts_with("libuntorn.so.") => "libuntorn0",
        Some(_) => "libuntorn-dev",
        None if path.starts_with("include/") || path.starts_with("share/man/man3/") => "libuntorn-dev",
        None if path.starts_with(PYTHON) => "python3-untorn",
        // `documents` gives each package its copyright and changelog.
        None if path.starts_with("share/doc/untorn/LICENSE") || path == "share/doc/untorn/CHANGELOG.md" => {
            return Ok(None);
        }
        None if ["bin/", "lib/untorn/", "lib/systemd/", "share/"].iter().any(|start| path.starts_with(start)) => {
            "untorn"
        }
        None => return Err(Failure::Wrong(format!("no package of Debian has {path}"))),
    }))
}

/// Moves each file of the prefix into the tree of its package, manual pages compressed.
fn distribute(prefix: &Path, machine: &Machine, stage: &Path) -> Result<()> {
    let mut left = vec![prefix.to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() && !path.is_symlink() {
            left.extend(entries(&path)?);
            continue;
        }
        let relative = path.strip_prefix(prefix).unwrap_or(&path);
        let Some(package) = package_of(&relative.to_string_lossy(), &machine.triplet)? else { continue };
        let place = stage.join(package).join("usr").join(relative);
        if let Some(parent) = place.parent() {
            fs::create_dir_all(parent).map_err(at("create the directory", parent))?;
        }
        fs::rename(&path, &place).map_err(at("move to", &place))?;
        if relative.starts_with("share/man") {
            compress(&place)?;
        }
    }
    Ok(())
}

/// Replaces a file by its compressed form, which has neither name nor time in it.
fn compress(path: &Path) -> Result<()> {
    succeed(Command::new("gzip").args(["-9n", "--force"]).arg(path))
}

/// The copyright and the changelogs of a package, and the reason if it names nobody to write to.
fn documents(root: &Path, name: &str, maintainer: &Maintainer, tree: &Path) -> Result<()> {
    let directory = tree.join("usr/share/doc").join(name);
    copy(&root.join(TEXTS).join("copyright"), &directory.join("copyright"))?;
    let changelog = root.join(TEXTS).join("changelog");
    let text = fs::read_to_string(&changelog).map_err(at("read", &changelog))?;
    if !text.starts_with(&format!("untorn ({PACKAGE_VERSION}) ")) {
        return Err(Failure::Wrong(format!("{} does not begin with {PACKAGE_VERSION}", changelog.display())));
    }
    let date = said(Command::new("date").args(["--utc", "--rfc-email", &format!("--date=@{}", time(root))]))?;
    let text = format!("{}\n\n -- {}  {date}\n", text.trim_end(), maintainer.line);
    for (file, text) in [("changelog.Debian", text.into_bytes()), ("changelog", read(&root.join("CHANGELOG.md"))?)] {
        let place = directory.join(file);
        write(&place, text)?;
        compress(&place)?;
    }
    if !maintainer.has_address {
        let tags = ["bogus-mail-host", "bogus-mail-host-in-debian-changelog"];
        let text: String = tags.iter().map(|tag| format!("{name}: {tag}\n")).collect();
        let reason = "# The builder set no address; --maintainer or DEBEMAIL does.\n";
        write(&tree.join("usr/share/lintian/overrides").join(name), format!("{reason}{text}"))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(at("read", path))
}

/// What dpkg needs to know of a package.
fn metadata(
    root: &Path,
    (name, stanza): (&str, &str),
    machine: &Machine,
    maintainer: &Maintainer,
    tree: &Path,
) -> Result<()> {
    let directory = tree.join("DEBIAN");
    let size = said(Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(tree))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let shared = if stanza.contains("@SHLIBS@") { depends(root, stanza, tree)? } else { String::new() };
    let (first, rest) = stanza.split_once('\n').unwrap_or((stanza, ""));
    let rest = rest.replace("@VERSION@", PACKAGE_VERSION).replace("@SHLIBS@", &shared);
    let control = format!(
        "{first}\nSource: untorn\nVersion: {PACKAGE_VERSION}\nArchitecture: {}\nMaintainer: {}\n\
         Installed-Size: {size}\nPriority: optional\n{rest}",
        machine.architecture, maintainer.line
    );
    let sums = sums(tree)?;
    write(&directory.join("control"), control)?;
    write(&directory.join("md5sums"), sums)?;
    if name == "libuntorn0" {
        let symbols = functions(root)?;
        write(&directory.join("symbols"), self::symbols(symbols))?;
        write(&directory.join("shlibs"), format!("libuntorn 0 libuntorn0 (>= {VERSION})\n"))?;
        write(&directory.join("triggers"), "activate-noawait ldconfig\n")?;
    }
    for script in ["postinst", "prerm"] {
        let text = root.join(TEXTS).join(format!("{name}.{script}"));
        if text.exists() {
            let place = directory.join(script);
            copy(&text, &place)?;
            fs::set_permissions(&place, fs::Permissions::from_mode(0o755))
                .map_err(at("set the permissions of", &place))?;
        }
    }
    Ok(())
}

/// The packages with the shared libraries that the files of a tree need.
fn depends(root: &Path, stanza: &str, tree: &Path) -> Result<String> {
    let scratch = tempfile::tempdir().map_err(at("create files in", &std::env::temp_dir()))?;
    // It reads the names of the packages there.
    let source = "Source: untorn\nSection: utils\nPriority: optional\nMaintainer: x <x@localhost>\n";
    write(&scratch.path().join("debian/control"), format!("{source}\n{stanza}Architecture: any\n"))?;
    let mut command = Command::new("dpkg-shlibdeps");
    command.current_dir(scratch.path()).arg("-O");
    let files = binaries(tree)?;
    command.args(files.iter().map(|file| format!("-e{}", file.display())));
    let said = said(&mut command)?;
    let found = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    match found {
        Some(found) if !found.is_empty() => Ok(found.to_owned()),
        _ => Err(Failure::Wrong(format!("dpkg-shlibdeps finds nothing that {} needs: {said}", root.display()))),
    }
}

/// Programs and libraries of a tree.
fn binaries(tree: &Path) -> Result<Vec<PathBuf>> {
    let mut found = files(tree)?;
    found.retain(|path| fs::read(path).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")));
    Ok(found)
}

/// The files of a tree in order, without links.
fn files(tree: &Path) -> Result<Vec<PathBuf>> {
    let (mut left, mut found) = (vec![tree.to_owned()], Vec::new());
    while let Some(path) = left.pop() {
        let kind = fs::symlink_metadata(&path).map_err(at("look at", &path))?;
        if kind.is_dir() {
            left.extend(entries(&path)?);
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// A line for each file, as `md5sum` prints it.
fn sums(tree: &Path) -> Result<Vec<u8>> {
    let files = files(tree)?;
    let names: BTreeMap<_, _> = files.iter().filter_map(|file| Some((file.strip_prefix(tree).ok()?, ()))).collect();
    output(Command::new("md5sum").current_dir(tree).arg("--").args(names.keys()))
}

/// The versions since which each function is in the library.
fn symbols(mut functions: Vec<String>) -> String {
    functions.sort();
    let mut text = format!("{SONAME} libuntorn0 #MINVER#\n UNTORN_0.1@UNTORN_0.1 0.1.0\n");
    for function in functions {
        text += &format!(" {function}@UNTORN_0.1 0.1.0\n");
    }
    text
}

/// Checks packages: by lintian, and the symbols against those that dpkg finds. Returns the checks that this machine
/// could not do, with the reasons.
pub(super) fn check(root: &Path, packages: &[PathBuf], scratch: &Path) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    match require("lintian", "apt-get install lintian") {
        Err(why) => skipped.push(format!("lintian: {why}")),
        Ok(()) => {
            succeed(Command::new("lintian").args(["--fail-on", "error"]).args(packages))?;
        }
    }
    let runtime = packages.iter().find(|path| path.to_string_lossy().contains("libuntorn0_"));
    let Some(runtime) = runtime else { return Err(Failure::Wrong("there is no libuntorn0".to_owned())) };
    let place = scratch.join("libuntorn0");
    succeed(Command::new("dpkg-deb").arg("-R").arg(runtime).arg(&place))?;
    // It reads the name of the package's source there.
    let source = "Source: untorn\nMaintainer: x <x@localhost>\n\nPackage: libuntorn0\nArchitecture: any\n";
    write(&place.join("debian/control"), source)?;
    let mut generate = Command::new("dpkg-gensymbols");
    generate.current_dir(&place).args(["-c4", "-q", "-plibuntorn0", "-P.", "-IDEBIAN/symbols", "-Onew"]);
    output(generate.arg(format!("-v{PACKAGE_VERSION}"))).map_err(|failure| {
        Failure::Wrong(format!("{} and the library of the package differ: {failure}", root.join(VERSIONS).display()))
    })?;
    Ok(skipped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_has_one_package() {
        let package = |path: &str| package_of(path, "x86_64-linux-gnu").unwrap();
        for (path, expected) in [
            ("bin/untorn", "untorn"),
            ("lib/x86_64-linux-gnu/untorn/libuntorn_sqlite.so", "untorn"),
            ("lib/untorn/untorn-listed", "untorn"),
            ("share/man/man1/untorn.1", "untorn"),
            ("lib/x86_64-linux-gnu/libuntorn.so.0.1.0", "libuntorn0"),
            ("lib/x86_64-linux-gnu/libuntorn.so", "libuntorn-dev"),
            ("lib/x86_64-linux-gnu/pkgconfig/untorn.pc", "libuntorn-dev"),
            ("share/man/man3/untorn_open.3", "libuntorn-dev"),
            ("lib/python3/dist-packages/untorn/__init__.py", "python3-untorn"),
        ] {
            assert_eq!(package(path), Some(expected), "{path}");
        }
        assert_eq!(package("share/doc/untorn/LICENSE-MIT"), None);
        assert!(package_of("opt/other", "x86_64-linux-gnu").is_err());
    }

    #[test]
    fn the_maintainer_is_the_one_that_is_given() {
        let among = |option: Option<&str>, name: Option<&str>, email: Option<&str>, authors: &str| {
            let chosen = Maintainer::among(option, name.map(str::to_owned), email.map(str::to_owned), authors);
            assert_eq!(chosen.warning().is_none(), chosen.has_address);
            (chosen.line, chosen.has_address)
        };
        let line = |text: &str, has_address: bool| (text.to_owned(), has_address);
        assert_eq!(among(Some("A <a@b>"), Some("C"), Some("c@d"), "E <e@f>"), line("A <a@b>", true));
        assert_eq!(among(None, Some("C"), Some("c@d"), "E <e@f>"), line("C <c@d>", true));
        assert_eq!(among(None, None, Some("c@d"), "E"), line("E <c@d>", true));
        assert_eq!(among(None, None, None, "E <e@f>:G <g@h>"), line("E <e@f>", true));
        assert_eq!(among(None, Some("C"), None, "E:G"), line("C <untorn@localhost>", false));
        assert!(!AUTHORS.is_empty());
        assert!(maintainer_line("A B <a@b>").is_ok());
        for wrong in ["", "a@b", "<a@b>", "A <a>", "A <a@b", "A\n <a@b>"] {
            assert!(maintainer_line(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_control_file_has_the_four_packages() {
        let control = fs::read_to_string(crate::root().join(TEXTS).join("control")).unwrap();
        let stanzas = stanzas(&control);
        let names: Vec<&str> = stanzas.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["untorn", "libuntorn0", "libuntorn-dev", "python3-untorn"]);
        assert!(stanzas.iter().all(|(_, stanza)| stanza.contains("\nDescription: ") && !stanza.contains("\n\n")));
    }

    #[test]
    fn symbols_are_those_of_the_version_script() {
        let text = symbols(functions(&crate::root()).unwrap());
        assert!(text.starts_with("libuntorn.so.0 libuntorn0 #MINVER#\n"), "{text}");
        assert!(text.contains("\n untorn_open@UNTORN_0.1 0.1.0\n"), "{text}");
    }
}
