//! Layer order: inside `crates/untorn/src` a path leads down or sideways, never up, and engines never meet.

use std::collections::BTreeSet;
use std::ops::Range;

use super::source::{File, identifier_at, in_identifier, matching, occurrences, words};
use super::{Finding, Tree};

const ROOT: &str = "crates/untorn/src/";
/// This file's path, which findings about its tables name.
const HERE: &str = "xtask/src/tidy/layers.rs";

/// The layers, lowest first. A module may use its own layer and those below it.
const LAYERS: &[(&str, &[&str])] = &[
    // Words that every layer speaks; they know nothing but the standard library and each other.
    ("vocabulary", &["error", "options"]),
    ("system", &["sys", "simd"]),
    ("medium", &["medium"]),
    ("mechanism", &["log", "sidecar", "sharing", "redundancy"]),
    ("engine", &["engine", "cache"]),
    ("face", &["file", "map", "mapped", "region", "write_cache", "protected", "transaction", "inspect", "doctor"]),
];

/// Modules of `engine` that are engines: siblings that never import each other.
const ENGINES: &[&str] = &["reflection", "hybrid_log", "snapshot", "shadow", "passthrough"];

/// Upward paths that are allowed: from, to, and the reason. One that is no longer needed is a finding.
const EXCEPTIONS: &[Exception] = &[];

type Exception = (&'static str, &'static str, &'static str);

fn rank(module: &str) -> Option<usize> {
    LAYERS.iter().position(|(_, modules)| modules.contains(&module))
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, EXCEPTIONS)
}

fn check_with(tree: &Tree, exceptions: &[Exception]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    let sources: Vec<&File> = tree.files.iter().filter(|file| file.is_rust() && file.path.starts_with(ROOT)).collect();
    for file in &sources {
        let module = module_of(&file.path);
        if is_test(&sources, &module) {
            continue;
        }
        let Some(from) = module.first() else { continue }; // lib.rs names every module
        let Some(from_rank) = rank(from) else {
            let message = format!("module `{from}` is in no layer; add it to LAYERS in {HERE}");
            findings.push(Finding::new(file, 1, message));
            continue;
        };
        let references = references(file, &module).into_iter().map(|(at, target)| (file.line_of(at), target));
        for (line, target) in references.collect::<BTreeSet<_>>() {
            let Some(to) = target.first() else { continue };
            if let (["engine", a, ..], ["engine", b, ..]) = (&strs(&module)[..], &strs(&target)[..])
                && a != b
                && ENGINES.contains(a)
                && ENGINES.contains(b)
            {
                let message = format!("engine `{a}` uses engine `{b}`; engines never import each other");
                findings.push(Finding::new(file, line, message));
            }
            if let ("cache", ["engine", engine, ..]) = (from.as_str(), &strs(&target)[..])
                && ENGINES.contains(engine)
            {
                let message = format!("the write cache uses engine `{engine}`; it stands beside them");
                findings.push(Finding::new(file, line, message));
            }
            match rank(to) {
                None if to.starts_with(char::is_uppercase) => {
                    let message = format!("`crate::{to}` hides its layer; name the module it is defined in");
                    findings.push(Finding::new(file, line, message));
                }
                None => {} // a macro, or a module reported at its own file
                Some(to_rank) if to_rank <= from_rank => {}
                Some(_) if exceptions.iter().any(|(f, t, _)| f == from && t == to) => {
                    used.insert((from.clone(), to.clone()));
                }
                Some(to_rank) => {
                    let message = format!(
                        "`{from}` ({} layer) uses `{to}` ({} layer); imports go only down",
                        LAYERS[from_rank].0, LAYERS[to_rank].0
                    );
                    findings.push(Finding::new(file, line, message));
                }
            }
        }
    }
    if !sources.is_empty() {
        for (from, to, _) in exceptions {
            if !used.contains(&((*from).to_owned(), (*to).to_owned())) {
                let message =
                    format!("the exception `{from}` -> `{to}` is no longer needed; remove it from EXCEPTIONS");
                findings.push(Finding::at(HERE, 1, message));
            }
        }
    }
    findings
}

fn strs(segments: &[String]) -> Vec<&str> {
    segments.iter().map(String::as_str).collect()
}

/// `crates/untorn/src/engine/mod.rs` is `[engine]`.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.trim_start_matches(ROOT).trim_end_matches(".rs");
    let mut segments: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if matches!(segments.last().map(String::as_str), Some("mod" | "lib")) {
        segments.pop();
    }
    segments
}

/// Whether a file module, or one around it, is declared under `#[cfg(test)]`: tests may use the faces.
fn is_test(sources: &[&File], module: &[String]) -> bool {
    (1..=module.len()).any(|depth| {
        let (parent, name) = (&module[..depth - 1], &module[depth - 1]);
        let declares = |file: &&&File| module_of(&file.path) == parent;
        sources.iter().filter(declares).any(|file| file.test_modules().contains(&name.as_str()))
    })
}

/// Every path in a file that names a module of the crate: where it stands, and the segments from the crate's root.
fn references(file: &File, module: &[String]) -> Vec<(usize, Vec<String>)> {
    let code = file.code_without_tests();
    let inline = file.inline_modules();
    let around = |at: usize| -> Vec<String> {
        let inner = inline.iter().filter(|(_, range): &&(&str, Range<usize>)| range.contains(&at));
        module.iter().cloned().chain(inner.map(|(name, _)| (*name).to_owned())).collect()
    };
    let mut found = Vec::new();
    for at in words(&code, "crate") {
        if code[at + 5..].starts_with("::") {
            expand(&code, at + 7, &[], &mut found);
        }
    }
    for at in occurrences(&code, "super::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(in_identifier) || code[..at].ends_with("super::") {
            continue;
        }
        let mut base = around(at);
        let mut next = at;
        while code[next..].starts_with("super::") {
            base.pop();
            next += 7;
        }
        expand(&code, next, &base, &mut found);
    }
    found
}

/// Follows a path, and the branches of a `use` tree, two segments deep.
fn expand(code: &str, at: usize, base: &[String], found: &mut Vec<(usize, Vec<String>)>) {
    let at = at + (code[at..].len() - code[at..].trim_start().len());
    if base.len() >= 2 {
        return found.push((at, base.to_vec()));
    }
    if code[at..].starts_with('{') {
        let end = matching(code, at);
        let mut branch = at + 1;
        while branch < end {
            expand(code, branch, base, found);
            // Past this branch: to the comma outside any inner braces.
            while branch < end && code.as_bytes()[branch] != b',' {
                branch = if code.as_bytes()[branch] == b'{' { matching(code, branch) + 1 } else { branch + 1 };
            }
            branch += 1;
            if code.get(branch..end).is_none_or(|rest| rest.trim().is_empty()) {
                break;
            }
        }
        return;
    }
    let name = identifier_at(code, at);
    let mut path = base.to_vec();
    if !name.is_empty() && name != "self" {
        path.push(name.to_owned());
    }
    let after = at + name.len();
    if !name.is_empty() && code[after..].starts_with("::") {
        expand(code, after + 2, &path, found);
    } else {
        found.push((at, path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        check_with(&Tree::of(files), &[]).iter().map(ToString::to_string).collect()
    }

    fn only(files: &[(&str, &str)], expected: &str) {
        let found = messages(files);
        assert!(found.len() == 1 && found[0].contains(expected), "{found:#?}");
    }

    #[test]
    fn the_write_cache_uses_no_engine() {
        let path = "crates/untorn/src/cache/open.rs";
        only(&[(path, "use crate::engine::snapshot::Store;")], "the write cache uses engine `snapshot`");
        assert!(messages(&[(path, "use crate::engine::standing::Standing;")]).is_empty());
    }

    #[test]
    fn down_and_sideways_is_fine() {
        let found = messages(&[
            ("crates/untorn/src/lib.rs", "mod engine; pub use engine::X; pub use crate::file::A;"),
            (
                "crates/untorn/src/engine/reflection/mod.rs",
                "use crate::{medium::{Medium, dax}, sidecar};\nuse super::Engine;",
            ),
            (
                "crates/untorn/src/sidecar/mod.rs",
                "use crate::log::record;\nmod barriers { use super::X; use crate::medium::B; }",
            ),
            ("crates/untorn/src/medium/mod.rs", "use crate::error::Error; use crate::sys;"),
        ]);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn up_is_found_however_it_is_written() {
        let up = "`medium` (medium layer) uses `engine` (engine layer)";
        only(&[("crates/untorn/src/medium/dax.rs", "\nuse crate::engine::Engine;")], up);
        only(&[("crates/untorn/src/medium/dax.rs", "\nuse crate::{error::E, engine};")], up);
        only(&[("crates/untorn/src/medium/dax.rs", "fn f() { super::super::engine::f() }")], up);
        only(&[("crates/untorn/src/medium/dax.rs", "fn f() -> crate::engine::reflection::X {}")], up);
        only(&[("crates/untorn/src/medium/mod.rs", "use super::{error, engine::{a}};")], up);
        only(&[("crates/untorn/src/medium/mod.rs", "macro_rules! m { () => { $crate::engine::X }; }")], up);
    }

    #[test]
    fn engines_never_meet() {
        let expected = "engine `reflection` uses engine `passthrough`";
        only(&[("crates/untorn/src/engine/reflection/mod.rs", "use super::passthrough::P;")], expected);
        only(&[("crates/untorn/src/engine/reflection/read.rs", "use crate::engine::{passthrough, Engine};")], expected);
    }

    #[test]
    fn a_re_export_of_the_root_hides_its_layer() {
        only(&[("crates/untorn/src/medium/mod.rs", "use crate::AtomicFile;")], "name the module");
    }

    #[test]
    fn an_unknown_module_is_found() {
        only(&[("crates/untorn/src/junk.rs", "")], "in no layer");
    }

    #[test]
    fn tests_may_use_the_faces() {
        let found = messages(&[
            (
                "crates/untorn/src/medium/mod.rs",
                "#[cfg(test)]\nmod tests { use crate::file::A; }\n#[cfg(test)]\nmod more;",
            ),
            ("crates/untorn/src/medium/more.rs", "use crate::file::A;"),
        ]);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn an_exception_that_is_not_needed_is_found() {
        let exceptions = [("medium", "engine", "because")];
        let needed = Tree::of(&[("crates/untorn/src/medium/mod.rs", "use crate::engine::Engine;")]);
        assert!(check_with(&needed, &exceptions).is_empty());
        let found = check_with(&Tree::of(&[("crates/untorn/src/medium/mod.rs", "")]), &exceptions);
        assert!(found.len() == 1 && found[0].message.contains("no longer needed"), "{found:?}");
    }
}
