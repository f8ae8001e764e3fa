//! Uses the archive as its users do: unpacked in some place, with pkg-config and CMake alone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::library::{SONAME, functions};
use super::{Failure, Result, VERSION, at, compiler, copy, entries, output, require, said, succeed, words};

/// Where the programs are.
const PROGRAMS: &str = "xtask/programs/dist";

/// Checks an archive. Returns the checks that this machine could not do, with the reasons.
pub(super) fn check(root: &Path, archive: &Path, scratch: &Path) -> Result<Vec<String>> {
    let place = scratch.join("some place");
    fs::create_dir(&place).map_err(at("create", &place))?;
    succeed(Command::new("tar").arg("-xzf").arg(archive).args(["--strip-components=1", "-C"]).arg(&place))?;
    let mut skipped = Vec::new();
    symbols(root, &library_of(&place), "@@UNTORN_0.1", &mut skipped)?;
    tool(&place, scratch)?;
    sqlite(&place, scratch, &mut skipped)?;
    let user = User { root, prefix: &place, scratch };
    user.pkg_config(&mut skipped)?;
    user.cmake(&mut skipped)?;
    Ok(skipped)
}

fn wrong<T>(text: impl Into<String>) -> Result<T> {
    Err(Failure::Wrong(text.into()))
}

/// Checks a prefix that cargo-c has made. It has the library, its headers, and what finds them. The functions have no
/// versions there. Returns the checks that this machine could not do, with the reasons.
pub(super) fn of_cargo_c(root: &Path, prefix: &Path, scratch: &Path) -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    symbols(root, &library_of(prefix), "", &mut skipped)?;
    let mut expected = BTreeSet::new();
    for directory in ["include", "include/untorn"] {
        for header in entries(&root.join(directory))?.into_iter().filter(|path| path.is_file()) {
            let name = Path::new(directory).join(header.file_name().unwrap_or_default());
            let installed = prefix.join(&name);
            let both = [&header, &installed].map(|path| fs::read(path).map_err(at("read", path)));
            let [ours, theirs] = both;
            if ours? != theirs? {
                return wrong(format!("{} is not {}", installed.display(), header.display()));
            }
            expected.insert(installed);
        }
    }
    let found = [prefix.join("include"), prefix.join("include/untorn")].map(|directory| entries(&directory));
    for path in found.into_iter().collect::<Result<Vec<_>>>()?.into_iter().flatten() {
        if path.is_file() && !expected.contains(&path) {
            return wrong(format!("{} is no header of the library", path.display()));
        }
    }
    let user = User { root, prefix, scratch };
    user.pkg_config(&mut skipped)?;
    user.cmake(&mut skipped)?;
    Ok(skipped)
}

fn library_of(prefix: &Path) -> PathBuf {
    prefix.join("lib").join(format!("libuntorn.so.{VERSION}"))
}

/// The name of the shared library, and its functions, whose names all end with `version`.
fn symbols(root: &Path, library: &Path, version: &str, skipped: &mut Vec<String>) -> Result<()> {
    if let Err(Failure::Missing(why)) = require("readelf", "apt-get install binutils") {
        skipped.push(format!("the symbols of the library: {why}"));
        return Ok(());
    }
    let dynamic = said(Command::new("readelf").args(["--wide", "--dynamic"]).arg(library))?;
    if !dynamic.contains(&format!("Library soname: [{SONAME}]")) || !dynamic.contains("NODELETE") {
        return wrong(format!("{} is not {SONAME}, or can be unloaded:\n{dynamic}", library.display()));
    }
    let table = said(Command::new("readelf").args(["--wide", "--dyn-syms"]).arg(library))?;
    let found = exported(&table);
    let expected = functions(root)?.into_iter().map(|name| format!("{name}{version}")).collect();
    if found != expected {
        let difference: Vec<_> = found.symmetric_difference(&expected).collect();
        return wrong(format!("the library and its version script differ in {difference:?}"));
    }
    let declared = crate::tidy::declared_functions(root).map_err(at("read the headers below", root))?;
    let bare = |name: &String| name.split('@').next().unwrap_or_default().to_owned();
    let names: BTreeSet<String> = found.iter().map(bare).collect();
    if names != declared {
        let difference: Vec<_> = names.symmetric_difference(&declared).collect();
        return wrong(format!("the library and the headers differ in {difference:?}"));
    }
    Ok(())
}

/// The functions that `readelf --dyn-syms` shows as defined, with their versions.
fn exported(table: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for line in table.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        // `Num: Value Size Type Bind Vis Ndx Name`; the version itself is an object of its own.
        if let [_, _, _, "FUNC" | "OBJECT" | "TLS", "GLOBAL" | "WEAK", _, index, name, ..] = words[..]
            && !matches!(index, "UND" | "ABS")
        {
            found.insert(name.to_owned());
        }
    }
    found
}

/// The tool of the prefix makes a file, reads it, and has a page for each verb.
fn tool(prefix: &Path, scratch: &Path) -> Result<()> {
    let tool = prefix.join("bin/untorn");
    let version = said(Command::new(&tool).arg("--version"))?;
    if version != format!("untorn {VERSION}") {
        return wrong(format!("the tool says that it is {version:?}"));
    }
    let file = scratch.join("of the tool");
    succeed(Command::new(&tool).arg("create").arg(&file).args(["--len", "1M"]))?;
    let read = output(Command::new(&tool).arg("read").arg(&file).args(["--offset", "4090", "--len", "16"]))?;
    if read != [0; 16] {
        return wrong("the tool reads something else than it wrote");
    }
    let help = said(Command::new(&tool).arg("help"))?;
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    // Lines that go on are indented further.
    let verbs = verbs.take_while(|line| !line.is_empty()).filter_map(|line| line.strip_prefix("  "));
    let verbs = verbs.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
    let verbs: Vec<&str> = verbs.filter(|verb| *verb != "help").collect();
    let without = verbs.iter().find(|verb| !prefix.join(format!("share/man/man1/untorn-{verb}.1")).is_file());
    if verbs.len() < 10 || without.is_some() {
        return wrong(format!("{} verbs; no man page for {without:?}", verbs.len()));
    }
    for completion in ["bash-completion/completions/untorn", "zsh/site-functions/_untorn"] {
        let script = prefix.join("share").join(completion);
        let text = fs::read_to_string(&script).map_err(at("read", &script))?;
        if !verbs.iter().all(|verb| text.contains(verb)) {
            return wrong(format!("{} lacks a verb", script.display()));
        }
    }
    Ok(())
}

/// SQLite's shell loads the extension, keeps a database in it, and reads the plain file afterwards.
fn sqlite(prefix: &Path, scratch: &Path, skipped: &mut Vec<String>) -> Result<()> {
    if let Err(Failure::Missing(why)) = require("sqlite3", "apt-get install sqlite3") {
        skipped.push(format!("SQLite with libuntorn_sqlite.so: {why}"));
        return Ok(());
    }
    let database = scratch.join("of-sqlite.db");
    let extension = prefix.join("lib/libuntorn_sqlite");
    let mut shell = Command::new("sqlite3");
    // The shell splits the command's words at spaces, which the path has.
    shell.args([":memory:", "-cmd", &format!(".load '{}'", extension.display())]);
    shell.args(["-cmd", &format!(".open file:{}?vfs=untorn", database.display())]);
    let rows = said(shell.arg("CREATE TABLE t (x); INSERT INTO t VALUES (41), (1); PRAGMA untorn_info;"))?;
    if !rows.contains("engine") {
        return wrong(format!("SQLite does not use the VFS untorn: PRAGMA untorn_info says {rows:?}"));
    }
    let sum = said(Command::new("sqlite3").arg(&database).arg("SELECT sum(x) FROM t;"))?;
    if sum == "42" { Ok(()) } else { wrong(format!("a stock SQLite reads {sum:?} from a closed database, not 42")) }
}

/// Someone with programs in C and C++, who knows only the prefix.
struct User<'a> {
    root: &'a Path,
    prefix: &'a Path,
    scratch: &'a Path,
}

impl User<'_> {
    /// Compiles with what pkg-config says and nothing else, and runs the results.
    fn pkg_config(&self, skipped: &mut Vec<String>) -> Result<()> {
        if let Err(Failure::Missing(why)) = require("pkg-config", "apt-get install pkg-config") {
            skipped.push(format!("programs by pkg-config: {why}"));
            return Ok(());
        }
        let found = said(&mut self.pkg(&["--modversion"]))?;
        if found != VERSION {
            return wrong(format!("pkg-config finds version {found}"));
        }
        // As a shell splits it: spaces of the prefix are escaped.
        let flags = |options: &[&str]| said(&mut self.pkg(options)).map(|text| shell_words(&text));
        let shared = flags(&["--cflags", "--libs"])?;
        self.compiled(&compiler(), "use.c", "-std=c11", &shared)?;
        let mut fixed = flags(&["--cflags", "--libs", "--static"])?;
        let archive = self.prefix.join("lib/libuntorn.a").to_string_lossy().into_owned();
        fixed.iter_mut().filter(|flag| *flag == "-luntorn").for_each(|flag| flag.clone_from(&archive));
        let program = self.compiled(&compiler(), "use.c", "-std=c11", &fixed)?;
        if said(Command::new("readelf").arg("--dynamic").arg(&program))?.contains("libuntorn") {
            return wrong("a program with the static library still asks for the shared one");
        }
        match require("c++", "apt-get install g++") {
            Err(why) => skipped.push(format!("a program in C++: {why}")),
            Ok(()) => self.compiled("c++", "use.cpp", "-std=c++17", &shared).map(drop)?,
        }
        Ok(())
    }

    fn pkg(&self, options: &[&str]) -> Command {
        let mut command = Command::new("pkg-config");
        command.args(options).arg("untorn");
        // Nothing that is installed on this machine stands in.
        command.env("PKG_CONFIG_LIBDIR", self.prefix.join("lib/pkgconfig")).env_remove("PKG_CONFIG_PATH");
        command
    }

    fn compiled(&self, compiler: &str, source: &str, standard: &str, flags: &[String]) -> Result<PathBuf> {
        let program = self.scratch.join(format!("{source}.program"));
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"]).arg(&program);
        succeed(command.arg(self.root.join(PROGRAMS).join(source)).args(flags))?;
        self.runs(&program)?;
        Ok(program)
    }

    /// Runs a program, which must say the version.
    fn runs(&self, program: &Path) -> Result<()> {
        let file = self.scratch.join("of a program");
        let _ = fs::remove_file(&file);
        let mut command = Command::new(program);
        command.arg(file).arg(VERSION).env("LD_LIBRARY_PATH", self.prefix.join("lib"));
        let text = said(&mut command)?;
        if text.starts_with(&format!("untorn {VERSION}")) {
            return Ok(());
        }
        wrong(format!("{} said {text:?}", words(&command)))
    }

    fn cmake(&self, skipped: &mut Vec<String>) -> Result<()> {
        for (program, remedy) in
            [("cmake", "apt-get install cmake"), ("make", "apt-get install make"), ("c++", "apt-get install g++")]
        {
            if let Err(why) = require(program, remedy) {
                skipped.push(format!("a project of CMake: {why}"));
                return Ok(());
            }
        }
        let (source, build) = (self.scratch.join("project"), self.scratch.join("project.build"));
        for name in ["CMakeLists.txt", "use.c", "use.cpp"] {
            copy(&self.root.join(PROGRAMS).join(name), &source.join(name))?;
        }
        let mut prefix = std::ffi::OsString::from("-DCMAKE_PREFIX_PATH=");
        prefix.push(self.prefix);
        let mut configure = Command::new("cmake");
        configure.arg("-S").arg(&source).arg("-B").arg(&build).arg(prefix).args(["-G", "Unix Makefiles"]);
        output(&mut configure)?;
        output(Command::new("cmake").arg("--build").arg(&build))?;
        for name in ["use_c", "use_c_static", "use_cxx"] {
            self.runs(&build.join(name))?;
        }
        // Another minor version promises nothing before 1.0.
        let other = source.join("CMakeLists.txt");
        let text = fs::read_to_string(&other).map_err(at("read", &other))?;
        fs::write(&other, text.replace("untorn 0.1 REQUIRED", "untorn 0.2 REQUIRED")).map_err(at("write", &other))?;
        match output(&mut configure) {
            Err(Failure::Wrong(text)) if text.contains("0.2") => Ok(()),
            _ => wrong("CMake takes version 0.1 for 0.2"),
        }
    }
}

/// Words separated by spaces, in which a backslash takes the next character as it is.
fn shell_words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut characters = text.chars();
    while let Some(c) = characters.next() {
        match c {
            '\\' => word.extend(characters.next()),
            c if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            c => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_functions_are_read_with_their_versions() {
        let table = "Symbol table '.dynsym' contains 4 entries:\n   Num:    Value          Size Type    Bind   \
            Vis      Ndx Name\n     1: 0000000000000000     0 FUNC    GLOBAL DEFAULT  UND write@GLIBC_2.2.5 (2)\n   \
            120: 0000000000000000     0 OBJECT  GLOBAL DEFAULT  ABS UNTORN_0.1\n   \
            121: 000000000004f0d0   210 FUNC    GLOBAL DEFAULT   12 untorn_open@@UNTORN_0.1\n   \
            122: 000000000004f0d0   210 FUNC    LOCAL  DEFAULT   12 hidden\n";
        assert_eq!(exported(table), BTreeSet::from(["untorn_open@@UNTORN_0.1".to_owned()]));
    }

    #[test]
    fn flags_of_a_prefix_with_spaces_stay_whole() {
        assert_eq!(
            shell_words("-I/some\\ place/include  -L/lib -luntorn "),
            ["-I/some place/include", "-L/lib", "-luntorn"]
        );
    }
}
