//! Rules on the repository as a whole: the lock file, the README's commands, and links in documents.

use super::source::occurrences;
use super::{Finding, Tree};

const README: &str = "README.md";
const CI: &str = ".ci/run";
/// The two commands that the README tells a newcomer to run.
const COMMANDS: &[&str] = &["cargo run --release -- demo", "cargo test --workspace"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    lock_file(tree, &mut findings);
    commands(tree, &mut findings);
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        for (at, target) in pointers(&file.text) {
            if let Err(what) = exists(tree, &file.path, target) {
                findings.push(Finding::new(file, file.line_of(at), format!("`{target}`: {what}")));
            }
        }
    }
    findings
}

fn lock_file(tree: &Tree, findings: &mut Vec<Finding>) {
    if tree.find("Cargo.lock").is_none() {
        findings.push(Finding::at(
            "Cargo.lock",
            1,
            "the file is missing; commit it, because the tested versions are part of the source",
        ));
    }
    let ignores = |line: &str| line.trim_start_matches('/') == "Cargo.lock";
    if let Some(file) = tree.find(".gitignore")
        && let Some(line) = file.text.lines().position(ignores)
    {
        findings.push(Finding::new(
            file,
            line + 1,
            "Cargo.lock is ignored, but must be committed; remove it from this file",
        ));
    }
}

fn commands(tree: &Tree, findings: &mut Vec<Finding>) {
    for path in [README, CI] {
        let Some(file) = tree.find(path) else {
            findings.push(Finding::at(path, 1, "the file is missing"));
            continue;
        };
        for command in COMMANDS {
            if !file.text.contains(command) {
                findings.push(Finding::new(
                    file,
                    1,
                    format!("`{command}` is missing: README and CI must run the same commands"),
                ));
            }
        }
    }
}

/// The targets of a document: relative links, and repository paths in backticks, with an optional test after `::`.
fn pointers(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for at in occurrences(text, "](") {
        let target = &text[at + 2..];
        let target = &target[..target.find([')', '#', '\n']).unwrap_or(target.len())];
        if !target.is_empty() && !target.contains("://") && !target.starts_with("mailto:") {
            found.push((at, target));
        }
    }
    let mut fenced = false;
    let mut start = 0;
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for (i, span) in line.split('`').enumerate().filter(|(i, _)| i % 2 == 1) {
                let at = start + line.split('`').take(i).map(|part| part.len() + 1).sum::<usize>();
                let is_path = ["crates/", "docs/", "include/", "xtask/", "examples/", ".ci/"];
                if is_path.iter().any(|root| span.starts_with(root)) && !span.contains(['*', '<', ' ', '{']) {
                    found.push((at, span));
                }
            }
        }
        start += line.len();
    }
    found
}

fn exists(tree: &Tree, from: &str, target: &str) -> Result<(), &'static str> {
    let (path, test) = target.split_once("::").map_or((target, None), |(path, test)| (path, Some(test)));
    let roots = ["crates/", "docs/", "include/", "xtask/", "examples/", ".ci/"];
    let mut segments: Vec<&str> = match from.rsplit_once('/') {
        Some((directory, _)) if !roots.iter().any(|root| path.starts_with(root)) => directory.split('/').collect(),
        _ => Vec::new(),
    };
    for segment in path.trim_end_matches('/').split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    let full = segments.join("/");
    let Some(file) = tree.find(&full) else {
        let is_directory = tree.files.iter().any(|file| file.path.starts_with(&format!("{full}/")));
        return if is_directory { Ok(()) } else { Err("the repository has no such file") };
    };
    let name = test.and_then(|test| test.rsplit("::").next());
    match name {
        Some(name) if !file.code.contains(&format!("fn {name}(")) => Err("that file has no such function"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: &str = "cargo run --release -- demo\ncargo test --workspace\n";

    fn messages(extra: &[(&str, &str)]) -> Vec<String> {
        let mut files = vec![(README, BOTH), (CI, BOTH), ("Cargo.lock", "x\n")];
        for (path, text) in extra {
            files.retain(|(other, _)| other != path);
            files.push((path, text));
        }
        check(&Tree::of(&files)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_repository_in_order_is_fine() {
        let found = messages(&[
            ("docs/a.md", "[b](b.md#x) [r](../README.md) [w](https://example.org/x) `crates/x/y.rs::works` `docs/`\n"),
            ("docs/b.md", "```\n`crates/none.rs`\n```\n`crates/*/src`\n"),
            ("crates/x/y.rs", "#[test] fn works() {}\n"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_missing_or_ignored_lock_file_is_found() {
        assert_eq!(check(&Tree::of(&[(README, BOTH), (CI, BOTH)])).len(), 1);
        assert_eq!(messages(&[(".gitignore", "/target\nCargo.lock\n")]).len(), 1);
    }

    #[test]
    fn a_command_of_the_readme_missing_from_ci_is_found() {
        let found = messages(&[(CI, "cargo test --workspace\n")]);
        assert!(found.len() == 1 && found[0].contains("`cargo run --release -- demo`"), "{found:?}");
    }

    #[test]
    fn pointers_into_the_void_are_found() {
        let found = messages(&[
            ("docs/a.md", "ok\n[b](gone.md) `crates/x/y.rs::gone` `docs/gone.md`\n"),
            ("crates/x/y.rs", "fn works() {}\n"),
        ]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found.iter().all(|message| message.starts_with("docs/a.md:2: ")), "{found:?}");
    }
}
