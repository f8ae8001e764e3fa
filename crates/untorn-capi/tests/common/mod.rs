//! Builds the C library and C programs against it.
#![allow(dead_code, reason = "each test file uses its part")]

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use untorn_testing::built;

/// How a program is linked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Link {
    Shared,
    Static,
}

pub(crate) fn manifest_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub(crate) fn include_dir() -> PathBuf {
    manifest_dir().join("include")
}

/// Runs a command that must succeed and returns what it wrote to stdout.
pub(crate) fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } =
        command.output().unwrap_or_else(|error| panic!("cannot run {command:?}: {error}"));
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout.into_owned()
}

fn compiler() -> Command {
    Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
}

/// Compiles a C program, warnings being errors, and returns the executable.
pub(crate) fn compile(source: &Path, link: Link, dir: &Path) -> PathBuf {
    let name = format!("{}-{link:?}", source.file_stem().unwrap().to_string_lossy());
    let program = dir.join(name);
    let libraries = built();
    let mut cc = compiler();
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic", "-g"])
        .arg("-I")
        .arg(include_dir())
        .arg("-o")
        .arg(&program)
        .arg(source);
    match link {
        Link::Shared => {
            cc.arg("-L").arg(libraries).arg("-luntorn").arg("-lpthread");
            cc.arg(format!("-Wl,-rpath,{}", libraries.display()));
        }
        Link::Static => {
            cc.arg(libraries.join("libuntorn.a")).args(["-lpthread", "-ldl", "-lm"]);
        }
    }
    succeed(&mut cc);
    program
}

/// Checks the syntax of a C source given as text, as `language` ("c" or "c++").
pub(crate) fn check_syntax(compiler: &str, language: &str, standard: &str, text: &str, dir: &Path) {
    let source = dir.join("syntax");
    std::fs::write(&source, text).unwrap();
    succeed(
        Command::new(compiler)
            .args(["-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-pedantic", standard, "-x", language])
            .arg("-I")
            .arg(include_dir())
            .arg(&source),
    );
}
