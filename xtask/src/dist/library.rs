//! The shared library under its versioned name, with a version for each function.
//!
//! rustc passes the linker a version script of its own, without versions, and a linker takes no second one. So the
//! shared library is linked from the static one, which has the same code.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Failure, Result, VERSION, at, compiler, succeed};

/// The script with the version of each function.
pub(super) const VERSIONS: &str = "crates/untorn-capi/untorn.map";

/// What the static library needs from the system.
pub(super) const SYSTEM_LIBRARIES: &str = "-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc";

/// The name by which programs ask for the library. It changes when a program must be built anew.
pub(super) const SONAME: &str = "libuntorn.so.0";

/// The functions that the script names, in its order.
pub(super) fn functions(root: &Path) -> Result<Vec<String>> {
    let path = root.join(VERSIONS);
    let script = fs::read_to_string(&path).map_err(at("read", &path))?;
    let lines = script.lines().filter(|line| !line.starts_with('#')).map(str::trim);
    let names = lines.filter_map(|line| line.strip_suffix(';')).filter(|name| *name != "*" && !name.starts_with('}'));
    let names: Vec<String> = names.map(str::to_owned).collect();
    if names.is_empty() {
        return Err(Failure::Wrong(format!("{} names no function", path.display())));
    }
    Ok(names)
}

/// Links the shared library into a directory, with its two shorter names.
pub(super) fn link(root: &Path, archive: &Path, directory: &Path) -> Result<PathBuf> {
    let library = directory.join(format!("libuntorn.so.{VERSION}"));
    let mut linker = Command::new(compiler());
    linker.args(["-shared", "-o"]).arg(&library);
    // The names are what is taken from the archive, and what keeps it from being left out as unused.
    linker.args(functions(root)?.iter().map(|name| format!("-Wl,-u,{name}")));
    linker.arg(archive).arg(format!("-Wl,-soname,{SONAME}"));
    linker.arg(format!("-Wl,--version-script={}", root.join(VERSIONS).display()));
    // The process may come to the library's handler of SIGBUS at any time, so the library stays loaded once it is.
    linker.args([
        "-Wl,-z,nodelete",
        "-Wl,-z,relro,-z,now",
        "-Wl,--gc-sections",
        "-Wl,--no-undefined",
        "-Wl,--as-needed",
    ]);
    succeed(linker.args(SYSTEM_LIBRARIES.split(' ')))?;
    for (name, of) in [(SONAME, format!("libuntorn.so.{VERSION}")), ("libuntorn.so", SONAME.to_owned())] {
        let link = directory.join(name);
        symlink(of, &link).map_err(at("create", &link))?;
    }
    Ok(library)
}
