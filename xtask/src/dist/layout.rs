//! A prefix as `/usr` or `/usr/local` has it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::library::{self, SYSTEM_LIBRARIES};
use super::{Result, VERSION, at, copy, entries, manual, output, succeed, write};

/// Where things go, below the prefix.
pub(super) struct Places {
    /// The prefix that the units of systemd name; all else follows the prefix when it is moved.
    prefix: &'static str,
    libraries: String,
    /// For libraries that programs load by their path: those for `LD_PRELOAD` and for SQLite.
    plugins: String,
    /// For programs that only other programs start.
    helpers: &'static str,
    units: &'static str,
    zsh: &'static str,
    /// The prefix as `untorn.pc` says it.
    pkg_config_prefix: &'static str,
}

impl Places {
    /// As make install has it, for a tree that is unpacked anywhere.
    pub(super) fn local() -> Self {
        Places {
            prefix: "/usr/local",
            libraries: "lib".to_owned(),
            plugins: "lib".to_owned(),
            helpers: "libexec",
            units: "lib/systemd/system",
            zsh: "share/zsh/site-functions",
            pkg_config_prefix: "${pcfiledir}/../..",
        }
    }

    /// As packages of Debian have it, for a machine such as `x86_64-linux-gnu`.
    pub(super) fn debian(triplet: &str) -> Self {
        Places {
            prefix: "/usr",
            libraries: format!("lib/{triplet}"),
            plugins: format!("lib/{triplet}/untorn"),
            helpers: "lib/untorn",
            units: "lib/systemd/system",
            zsh: "share/zsh/vendor-completions",
            pkg_config_prefix: "/usr",
        }
    }
}

const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/untorn"),
    ("fish", "share/fish/vendor_completions.d/untorn.fish"),
    // The place depends on the system.
    ("zsh", ""),
];

/// Lays everything out in a directory that does not exist yet.
pub(super) fn lay_out(root: &Path, built: &Path, places: &Places, tree: &Path) -> Result<()> {
    let tool = program(built, tree)?;
    libraries(root, built, &tree.join(&places.libraries))?;
    plugins(built, &tree.join(&places.plugins))?;
    development(root, places, tree)?;
    for (shell, place) in COMPLETIONS {
        let script = output(Command::new(&tool).args(["completions", shell]))?;
        let place = if place.is_empty() { format!("{}/_untorn", places.zsh) } else { (*place).to_owned() };
        write(&tree.join(place), script)?;
    }
    output(Command::new(&tool).args(["man", "--out"]).arg(tree.join("share/man/man1")))?;
    manual::pages(root, &tree.join("share/man/man3"))?;
    services(root, places, tree)?;
    for document in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        copy(&root.join(document), &tree.join("share/doc/untorn").join(document))?;
    }
    permissions(tree)
}

fn program(built: &Path, tree: &Path) -> Result<PathBuf> {
    let tool = tree.join("bin/untorn");
    copy(&built.join("untorn"), &tool)?;
    succeed(Command::new("strip").arg(&tool))?;
    Ok(tool)
}

fn libraries(root: &Path, built: &Path, directory: &Path) -> Result<()> {
    let archive = directory.join("libuntorn.a");
    copy(&built.join("libuntorn.a"), &archive)?;
    succeed(Command::new("strip").args(["--strip-debug", "--enable-deterministic-archives"]).arg(&archive))?;
    let shared = library::link(root, &archive, directory)?;
    succeed(Command::new("strip").arg("--strip-unneeded").arg(shared))
}

/// The libraries that programs load by their path.
const PLUGINS: &[&str] = &["libuntorn_preload.so", "libuntorn_sqlite.so"];

fn plugins(built: &Path, directory: &Path) -> Result<()> {
    for name in PLUGINS {
        let plugin = directory.join(name);
        copy(&built.join(name), &plugin)?;
        succeed(Command::new("strip").arg("--strip-unneeded").arg(plugin))?;
    }
    Ok(())
}

/// The headers, and the files with which pkg-config and CMake find them and the libraries.
fn development(root: &Path, places: &Places, tree: &Path) -> Result<()> {
    for (directory, ends) in [("include", &["h", "hpp"][..]), ("include/untorn", &["h"])] {
        for header in entries(&root.join(directory))? {
            let (Some(name), Some(end)) = (header.file_name(), header.extension()) else { continue };
            if ends.iter().any(|wanted| end == *wanted) {
                copy(&header, &tree.join(directory).join(name))?;
            }
        }
    }
    let libraries = tree.join(&places.libraries);
    write(&libraries.join("pkgconfig/untorn.pc"), pkg_config(places))?;
    for name in ["untornConfig.cmake", "untornConfigVersion.cmake"] {
        copy(&root.join("crates/untorn-capi/cmake").join(name), &libraries.join("cmake/untorn").join(name))?;
    }
    Ok(())
}

fn pkg_config(places: &Places) -> String {
    format!(
        "prefix={}\nincludedir=${{prefix}}/include\nlibdir=${{prefix}}/{}\n\n\
         Name: untorn\nDescription: Memory-mapped files that never tear\nVersion: {VERSION}\n\
         Libs: -L${{libdir}} -luntorn\nLibs.private: {SYSTEM_LIBRARIES}\nCflags: -I${{includedir}}\n",
        places.pkg_config_prefix, places.libraries
    )
}

/// The units of systemd, with the paths of this prefix.
fn services(root: &Path, places: &Places, tree: &Path) -> Result<()> {
    for file in entries(&root.join("packaging/systemd"))? {
        let text = fs::read_to_string(&file).map_err(at("read", &file))?;
        let text = text.replace("@BINDIR@", &format!("{}/bin", places.prefix));
        let text = text.replace("@LIBEXECDIR@", &format!("{}/{}", places.prefix, places.helpers));
        let name = file.file_name().unwrap_or_default();
        let directory = if file.extension().is_some() { places.units } else { places.helpers };
        write(&tree.join(directory).join(name), text)?;
    }
    Ok(())
}

/// Everyone may read; programs can be run. What the umask of this process says doesn't matter.
pub(super) fn permissions(tree: &Path) -> Result<()> {
    let mut left = vec![tree.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = fs::symlink_metadata(&path).map_err(at("look at", &path))?;
        if metadata.is_symlink() {
            continue;
        }
        if metadata.is_dir() {
            left.extend(entries(&path)?);
        }
        let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
        let is_helper = path.file_name().is_some_and(|name| name == "untorn-listed");
        let is_program = is_helper || parent == "bin";
        let mode = if metadata.is_dir() || is_program { 0o755 } else { 0o644 };
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).map_err(at("set the permissions of", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_name_the_tool_of_their_prefix() {
        let tree = tempfile::tempdir().unwrap();
        services(&crate::root(), &Places::local(), tree.path()).unwrap();
        permissions(tree.path()).unwrap();
        let read = |name: &str| fs::read_to_string(tree.path().join(name)).unwrap();
        let units = entries(&tree.path().join("lib/systemd/system")).unwrap();
        assert_eq!(units.len(), 4, "{units:?}");
        assert!(read("lib/systemd/system/untorn-mount@.service").contains("ExecStart=/usr/local/bin/untorn mount "));
        assert!(
            read("lib/systemd/system/untorn-recover.service").contains("=/usr/local/libexec/untorn-listed recover")
        );
        let helper = tree.path().join("libexec/untorn-listed");
        assert!(read("libexec/untorn-listed").contains("untorn=/usr/local/bin/untorn\n"));
        assert_eq!(fs::metadata(helper).unwrap().permissions().mode() & 0o777, 0o755);
    }

    #[test]
    fn the_list_of_a_unit_is_done_to_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let script = fs::read_to_string(crate::root().join("packaging/systemd/untorn-listed")).unwrap();
        let tool = "#!/bin/sh\necho \"$1:$2\" >> \"$0.log\"\ncase $2 in *bad*) exit 1;; esac\n";
        write(&at("untorn"), tool).unwrap();
        write(&at("listed"), script.replace("@BINDIR@", &directory.path().to_string_lossy())).unwrap();
        for name in ["untorn", "listed"] {
            fs::set_permissions(at(name), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let run = |verb: &str, list: &str| {
            fs::write(at("list"), list).unwrap();
            let _ = fs::remove_file(at("untorn.log"));
            let output = Command::new(at("listed")).arg(verb).arg(at("list")).output().unwrap();
            let log = fs::read_to_string(at("untorn.log")).unwrap_or_default();
            (output.status.code(), log, String::from_utf8_lossy(&output.stderr).into_owned())
        };
        let (code, log, said) = run("recover", "# files\n/a b\nlog /l\n\n/bad\n/c");
        assert_eq!((code, log.as_str()), (Some(1), "recover:/a b\nreplay:/l\nrecover:/bad\nrecover:/c\n"));
        assert!(said.contains("failed: untorn recover /bad"), "{said}");
        assert_eq!(run("recover", "/a\n").0, Some(0));
        let (code, log, said) = run("scrub", "log /l\n/a\n");
        assert_eq!((code, log.as_str()), (Some(1), "scrub:/a\n"));
        assert!(said.contains("a log cannot be scrubbed"), "{said}");
        assert_eq!(run("destroy", "").0, Some(64));
        let unreadable = Command::new(at("listed")).args(["scrub", "/no/such/list"]).output().unwrap();
        assert_eq!(unreadable.status.code(), Some(74));
    }
}
