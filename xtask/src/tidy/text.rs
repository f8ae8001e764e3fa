//! Rules on the text itself: module length, unfinished work, machine paths, white space.

use super::source::{File, in_identifier, occurrences, words};
use super::{Finding, Tree};

/// A module's length in lines of code, test code included: above the first a warning, above the second a finding.
const LONG: usize = 500;
const TOO_LONG: usize = 600;

/// Directories at the root of any Linux system. A path into another one names a particular machine.
const STANDARD: &[&str] = &[
    "bin",
    "boot",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "lost+found",
    "media",
    "mnt",
    "opt",
    "proc",
    "root",
    "run",
    "sbin",
    "snap",
    "srv",
    "sys",
    "tmp",
    "usr",
    "var",
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        length(file, &mut findings);
        unfinished(file, &mut findings);
        machine_paths(file, &tree.foreign_roots, &mut findings);
        white_space(file, &mut findings);
    }
    findings
}

fn length(file: &File, findings: &mut Vec<Finding>) {
    if !file.is_module() {
        return;
    }
    match file.lines_of_code() {
        lines if lines > TOO_LONG => {
            let message =
                format!("{lines} lines of code; a module may have at most {LONG}: split it by responsibility");
            findings.push(Finding::new(file, 1, message));
        }
        lines if lines > LONG => {
            let message = format!("{lines} lines of code; a module should have at most {LONG}");
            findings.push(Finding::new(file, 1, message).warning());
        }
        _ => {}
    }
}

fn unfinished(file: &File, findings: &mut Vec<Finding>) {
    if file.is_rust() {
        for name in ["todo", "unimplemented", "dbg"] {
            for at in words(&file.code, name).filter(|at| file.code[at + name.len()..].starts_with('!')) {
                findings.push(Finding::new(file, file.line_of(at), format!("`{name}!` in committed code; remove it")));
            }
        }
        for at in occurrences(&file.code, "#[ignore") {
            findings.push(Finding::new(
                file,
                file.line_of(at),
                "an ignored test proves nothing; enable it or remove it",
            ));
        }
    }
    // In modules a note stands in a comment; elsewhere anywhere.
    let prose = if file.is_module() { &file.comments } else { &file.text };
    for note in [concat!("FIX", "ME"), concat!("XX", "X")] {
        for at in words(prose, note) {
            let message = format!("{note}: do it now, or open an issue and remove the note");
            findings.push(Finding::new(file, file.line_of(at), message));
        }
    }
}

/// Absolute paths that exist on one machine only: home directories, and top-level directories no standard knows.
fn machine_paths(file: &File, foreign_roots: &[String], findings: &mut Vec<Finding>) {
    let foreign = foreign_roots.iter().map(|root| format!("/{root}"));
    let homes = ["home", "Users", "root"].map(|root| format!("/{root}/"));
    for root in foreign.chain(homes) {
        for at in occurrences(&file.text, &root) {
            let before = file.text[..at].chars().next_back();
            let after = file.text[at + root.len()..].chars().next();
            let inside_path = before.is_some_and(|c| in_identifier(c) || "./-)}>~*+".contains(c));
            let whole = root.ends_with('/') || !after.is_some_and(|c| in_identifier(c) || "-.".contains(c));
            if !inside_path && whole {
                let message = format!(
                    "`{}` is a path on one machine; don't name paths outside the repository",
                    root.trim_end_matches('/')
                );
                findings.push(Finding::new(file, file.line_of(at), message));
            }
        }
    }
}

fn white_space(file: &File, findings: &mut Vec<Finding>) {
    for (i, line) in file.text.split('\n').enumerate() {
        if line.ends_with(char::is_whitespace) {
            findings.push(Finding::new(file, i + 1, "trailing white space"));
        }
    }
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        findings.push(Finding::new(file, file.line_of(file.text.len()), "the file must end with exactly one newline"));
    }
}

/// The directories at the root of this machine's file system that no standard knows.
pub(super) fn foreign_roots() -> std::io::Result<Vec<String>> {
    let mut roots = Vec::new();
    for entry in std::fs::read_dir("/")? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') && !STANDARD.contains(&name.as_str()) {
            roots.push(name);
        }
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let mut tree = Tree::of(&[(path, text)]);
        tree.foreign_roots = vec!["build-farm".to_owned()];
        check(&tree).iter().map(ToString::to_string).collect()
    }

    fn only(path: &str, text: &str, expected: &str) {
        let found = messages(path, text);
        assert!(found.len() == 1 && found[0].contains(expected), "{found:#?}");
    }

    #[test]
    fn clean_text_is_fine() {
        assert_eq!(messages("a.rs", "// todo! is a macro\nlet s = \"dbg!\";\n"), Vec::<String>::new());
        assert_eq!(
            messages("a.md", "See docs/build-farm/y and src/build-farm, mkstemp XXXXXX.\n"),
            Vec::<String>::new()
        );
        assert_eq!(messages("empty", ""), Vec::<String>::new());
    }

    #[test]
    fn a_long_module_is_a_warning_then_a_finding() {
        let warning = check(&Tree::of(&[("a.rs", &"x();\n".repeat(501))]));
        assert!(warning.len() == 1 && !warning[0].fails);
        let finding = check(&Tree::of(&[("a.py", &"x()\n".repeat(601))]));
        assert!(finding.len() == 1 && finding[0].fails);
        assert!(check(&Tree::of(&[("a.c", "x();\n// y\n\n".repeat(500).trim_end())])).len() == 1); // newline only
    }

    #[test]
    fn unfinished_work_is_found() {
        only("a.rs", "fn f() { todo!() }\n", "a.rs:1: `todo!`");
        only("a.rs", "\nfn f() { dbg!(1); }\n", "a.rs:2: `dbg!`");
        only("a.rs", "#[test]\n#[ignore = \"slow\"]\nfn f() {}\n", "a.rs:2: an ignored test");
        only("a.rs", concat!("// FIX", "ME later\n"), "do it now");
        only("a.md", concat!("XX", "X: later\n"), "do it now");
    }

    #[test]
    fn machine_paths_are_found() {
        only("a.md", "cd /build-farm/x\n", "`/build-farm`");
        only("a.sh", concat!("x=/ho", "me/alice\n"), "`/home`");
    }

    #[test]
    fn white_space_is_found() {
        only("a.md", "a \nb\n", "a.md:1: trailing white space");
        only("a.md", "a\nb", "a.md:2: the file must end");
        only("a.md", "a\n\n", "exactly one newline");
    }
}
