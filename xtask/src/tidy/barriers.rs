//! Every barrier declared with `barriers!` is used by its module's code: an unused one hides a lost fence.

use super::source::{File, identifier_at, matching, occurrences, words};
use super::{Finding, Tree};

const ROOT: &str = "crates/untorn/src/";

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let sources: Vec<(&File, String)> = tree
        .files
        .iter()
        .filter(|file| file.is_rust() && file.path.starts_with(ROOT))
        .map(|file| (file, file.code_without_tests()))
        .collect();
    let mut findings = Vec::new();
    for (file, code) in &sources {
        for (at, name) in declared(code) {
            let used = sources.iter().any(|(other, code)| {
                let at_hand = is_near(file, other) || imports_barriers_of(file, code);
                words(code, name)
                    .any(|place| !inside_declaration(code, place) && (at_hand || is_qualified(file, code, place)))
            });
            if !used {
                let message =
                    format!("barrier `{name}` is never passed to a fence; remove it, or pass it where it belongs");
                findings.push(Finding::new(file, file.line_of(at), message));
            }
        }
    }
    findings
}

/// The byte ranges of `barriers! { ... }`.
fn declarations(code: &str) -> impl Iterator<Item = (usize, usize)> + '_ {
    occurrences(code, "barriers!").filter_map(|at| {
        let open = at + "barriers!".len() + code[at + "barriers!".len()..].find(|c: char| !c.is_whitespace())?;
        (code.as_bytes()[open] == b'{').then(|| (open, matching(code, open)))
    })
}

fn inside_declaration(code: &str, place: usize) -> bool {
    declarations(code).any(|(open, close)| (open..close).contains(&place))
}

/// The names before each `=`.
fn declared(code: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    for (open, close) in declarations(code) {
        for (i, _) in code[open..close].match_indices('=') {
            let before = code[..open + i].trim_end();
            let start = before.rfind(|c: char| !c.is_alphanumeric() && c != '_').map_or(0, |i| i + 1);
            names.push((start, identifier_at(code, start)));
        }
    }
    names
}

/// Whether `other` belongs to the module that `file` is, or to the directory it lies in.
fn is_near(file: &File, other: &File) -> bool {
    let directory = file.path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let own = file.path.trim_end_matches(".rs");
    file.path == other.path
        || other.path.starts_with(&format!("{own}/"))
        || (file.path.ends_with("/mod.rs") || file.path.ends_with("/barriers.rs"))
            && other.path.starts_with(&format!("{directory}/"))
}

/// The module that a file is, `barriers` itself not counted.
fn module(file: &File) -> Option<&str> {
    let inner = file.path[ROOT.len()..].trim_end_matches(".rs");
    inner.split('/').rfind(|segment| *segment != "mod" && *segment != "barriers")
}

/// Whether the code has the `barriers` of the module of `file` in scope: `use sidecar::{Geometry, barriers};`.
fn imports_barriers_of(file: &File, code: &str) -> bool {
    let Some(module) = module(file) else { return false };
    words(code, module).any(|at| {
        let after = &code[at + module.len()..];
        let statement = &code[..at].rsplit([';', '}']).next().unwrap_or_default().trim_start();
        let imported = match after.strip_prefix("::") {
            Some(tree) if tree.starts_with('{') => &tree[..matching(tree, 0)],
            Some(path) => identifier_at(path, 0),
            None => "",
        };
        statement.starts_with("use ") && words(imported, "barriers").next().is_some()
    })
}

/// Whether the name at `place` is reached through the module of `file`: `sidecar::barriers::NAME`.
fn is_qualified(file: &File, code: &str, place: usize) -> bool {
    let Some(module) = module(file) else { return false };
    let path = code[..place].trim_end_matches("::").trim_end_matches("barriers").trim_end_matches("::");
    path.ends_with(module)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).iter().map(ToString::to_string).collect()
    }

    const DECLARED: &str = "pub mod barriers { barriers! {\n/// Why.\nA = \"x.a\";\n/// Why.\nB = \"x.b\";\n} }\n";

    #[test]
    fn used_near_or_imported_or_by_its_full_name_is_fine() {
        let found = messages(&[
            ("crates/untorn/src/sidecar/mod.rs", DECLARED),
            ("crates/untorn/src/sidecar/open.rs", "fn f() { fence(barriers::A) }"),
            ("crates/untorn/src/engine/x.rs", "fn f() { fence(sidecar::barriers::B) }"),
        ]);
        assert_eq!(found, Vec::<String>::new());
        let found = messages(&[
            ("crates/untorn/src/sidecar/mod.rs", DECLARED),
            (
                "crates/untorn/src/engine/x.rs",
                "use a::B;\nuse crate::sidecar::{Geometry, barriers};\n\
                 fn f() { fence(barriers::A); fence(barriers::B) }",
            ),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn a_barrier_passed_only_by_tests_or_namesakes_is_found() {
        let found = messages(&[
            ("crates/untorn/src/sidecar/mod.rs", DECLARED),
            ("crates/untorn/src/sidecar/open.rs", "fn f() { fence(barriers::A) }\n#[cfg(test)]\nmod t { use x::B; }"),
            ("crates/untorn/src/engine/x.rs", "fn f() { fence(barriers::B) }"),
        ]);
        assert!(found.len() == 1 && found[0].contains("sidecar/mod.rs:5: barrier `B` is never passed"), "{found:?}");
    }
}
