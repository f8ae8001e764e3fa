//! `cargo xtask tidy`: checks the repository's rules that no compiler checks.
//!
//! Each module holds one family of rules and tests that plant a violation of each. A rule sees the repository as a
//! [`Tree`] in memory and returns [`Finding`]s.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::process::ExitCode;

mod barriers;
mod book;
mod extract;
mod fields;
mod headers;
mod language;
mod layers;
mod lazy;
mod markdown;
mod messages;
mod modules;
mod names;
mod prose;
mod ratchet;
mod repository;
mod source;
mod test_names;
mod text;
mod unsafety;
mod width;

use source::File;

/// The repository's text files.
#[derive(Debug, Default)]
struct Tree {
    files: Vec<File>,
    /// Directories at the root of this machine's file system that exist only on this machine.
    foreign_roots: Vec<String>,
}

impl Tree {
    /// Reads every text file below `root`, except build output and git's files.
    fn read(root: &Path) -> io::Result<Self> {
        let mut tree = Tree { files: Vec::new(), foreign_roots: text::foreign_roots()? };
        tree.walk(root, "")?;
        tree.files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(tree)
    }

    fn walk(&mut self, directory: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            // The inputs of a fuzzer are bytes, also where they happen to be text.
            if name == ".git" {
                // A directory, or in a work tree a file that says where the directory is.
                continue;
            } else if kind.is_dir() && name != "target" && path != "fuzz/corpus" {
                self.walk(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() {
                // Files that are not UTF-8 are not text: golden images, pictures.
                if let Ok(text) = String::from_utf8(fs::read(entry.path())?)
                    && !text.contains('\0')
                {
                    self.files.push(File::new(path, text));
                }
            }
        }
        Ok(())
    }

    fn find(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    #[cfg(test)]
    fn of(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| File::new(*path, *text)).collect();
        Tree { files, foreign_roots: Vec::new() }
    }
}

/// One violation of one rule.
#[derive(Debug)]
struct Finding {
    path: String,
    line: usize,
    message: String,
    /// A warning does not fail the run.
    fails: bool,
}

impl Finding {
    fn new(file: &File, line: usize, message: impl Into<String>) -> Self {
        Finding::at(&file.path, line, message)
    }

    fn at(path: &str, line: usize, message: impl Into<String>) -> Self {
        Finding { path: path.to_owned(), line, message: message.into(), fails: true }
    }

    fn warning(self) -> Self {
        self.failing_if(false)
    }

    fn failing_if(mut self, fails: bool) -> Self {
        self.fails = fails;
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let weight = if self.fails { "" } else { "warning: " };
        write!(f, "{}:{}: {weight}{}", self.path, self.line, self.message)
    }
}

/// The functions of the C library, as its headers declare them.
pub(crate) fn declared_functions(root: &Path) -> io::Result<BTreeSet<String>> {
    Ok(headers::declared(&Tree::read(root)?))
}

/// Checks the repository at `root` and prints the findings.
pub(crate) fn run(root: &Path) -> io::Result<ExitCode> {
    let tree = Tree::read(root)?;
    let rules = [
        layers::check,
        fields::check,
        lazy::check,
        text::check,
        unsafety::check,
        headers::check,
        barriers::check,
        repository::check,
        book::check,
        messages::check,
        language::check,
        modules::check,
        names::check,
        test_names::check,
        width::check,
    ];
    let mut findings: Vec<Finding> = rules.iter().flat_map(|rule| rule(&tree)).collect();
    // Warnings first: what fails stands next to the last line.
    findings.sort_by(|a, b| (a.fails, &a.path, a.line).cmp(&(b.fails, &b.path, b.line)));
    for finding in &findings {
        println!("{finding}");
    }
    let failures = findings.iter().filter(|finding| finding.fails).count();
    for summary in [language::summary, width::summary, test_names::summary] {
        println!("{}", summary(&tree));
    }
    println!("tidy: {} files, {failures} violations, {} warnings", tree.files.len(), findings.len() - failures);
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
