//! The floors of `crates/untorn/src`: a path leads down, never up and never sideways, so products and engines never
//! meet.

use std::collections::BTreeSet;
use std::ops::Range;

use super::source::{File, identifier_at, in_identifier, matching, occurrences, words};
use super::{Finding, Tree};

const ROOT: &str = "crates/untorn/src/";
/// This file's path, for findings about its tables.
const HERE: &str = "xtask/src/tidy/layers.rs";

/// The floors, lowest first. A module uses itself and what stands on floors below. Modules of one floor are
/// neighbours that never import each other: so are the products, and what takes several of them stands above.
const FLOORS: &[(&str, &[&str])] = &[
    // The ground: words that every floor speaks, the system, what threads share, where bytes become durable, what
    // they look like there, and what processes share.
    ("events", &["no_tracing"]),
    ("error", &["error"]),
    ("options", &["options"]),
    ("system", &["sys"]),
    ("vector", &["simd"]),
    ("sync", &["sync"]),
    ("storage", &["storage"]),
    ("format", &["format"]),
    ("ipc", &["ipc"]),
    // The words between handles and engines.
    ("engine", &["engine"]),
    ("product", &["file", "region", "write_cache", "redundancy", "shared"]),
    // Composes products.
    ("factory", &["open"]),
    ("facade", &["backup", "doctor", "stats"]),
    // What tests and simulators see of all that.
    ("hooks", &["testing"]),
];

/// The same inside a room: its modules, lowest first. Modules that are not named are free.
const ROOMS: &[(&str, &[&[&str]])] = &[
    ("file", &[&["reflection", "hybrid_log", "passthrough"], &["inspect"], &["transaction"], &["atomic_file", "map"]]),
    ("region", &[&["engine"], &["exclusion"], &["store"], &["map"], &["shared"]]),
    ("write_cache", &[&["backing"], &["engine"], &["file", "multi_process", "options"]]),
    ("shared", &[&["negotiated"], &["file", "map"]]),
    ("ipc", &[&["rendezvous"], &["message"], &["connection"], &["listener"], &["membership"], &["rpc", "memory"]]),
    ("format", &[&["magic", "checksum"], &["record"], &["lane", "sidecar"]]),
    ("sync", &[&["word_lock", "page_seqlock", "wake_flag"], &["slots", "group_commit", "clean_bits", "writer_gate"]]),
];

/// Permitted upward paths: from, to, and the reason. An entry that is no longer needed is a finding.
const EXCEPTIONS: &[Exception] = &[];

type Exception = (&'static str, &'static str, &'static str);

/// The floor of a module at the root.
fn floor(module: &str) -> Option<usize> {
    FLOORS.iter().position(|(_, modules)| modules.contains(&module))
}

/// The floor of a module in its room.
fn floor_in(room: &str, module: &str) -> Option<usize> {
    let (_, floors) = ROOMS.iter().find(|(name, _)| *name == room)?;
    floors.iter().position(|modules| modules.contains(&module))
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
        let Some(from_floor) = floor(from) else {
            let message = format!("module `{from}` is on no floor; add it to FLOORS in {HERE}");
            findings.push(Finding::new(file, 1, message));
            continue;
        };
        let references = references(file, &module).into_iter().map(|(at, target)| (file.line_of(at), target));
        for (line, target) in references.collect::<BTreeSet<_>>() {
            let Some(to) = target.first() else { continue };
            if from == to {
                let (Some(from), Some(to)) = (module.get(1), target.get(1)) else { continue };
                let (Some(lower), Some(upper)) = (floor_in(&module[0], from), floor_in(&module[0], to)) else {
                    continue;
                };
                if from != to && upper >= lower {
                    let how = if upper == lower { "its neighbour" } else { "which stands above it" };
                    let message = format!("in `{}`, `{from}` uses `{to}`, {how}; imports go only down", module[0]);
                    findings.push(Finding::new(file, line, message));
                }
                continue;
            }
            match floor(to) {
                None if to.starts_with(char::is_uppercase) => {
                    let message = format!("`crate::{to}` hides its floor; name the module it is defined in");
                    findings.push(Finding::new(file, line, message));
                }
                None => {} // a macro, or a module reported at its own file
                Some(to_floor) if to_floor < from_floor => {}
                Some(_) if exceptions.iter().any(|(f, t, _)| f == from && t == to) => {
                    used.insert((from.clone(), to.clone()));
                }
                Some(to_floor) if to_floor == from_floor => {
                    let message = format!(
                        "`{from}` uses `{to}`, its neighbour on the {} floor; move what both need down, or compose \
                         them above",
                        FLOORS[from_floor].0
                    );
                    findings.push(Finding::new(file, line, message));
                }
                Some(to_floor) => {
                    let message = format!(
                        "`{from}` ({} floor) uses `{to}` ({} floor); imports go only down",
                        FLOORS[from_floor].0, FLOORS[to_floor].0
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

/// `crates/untorn/src/engine/mod.rs` is `[engine]`.
fn module_of(path: &str) -> Vec<String> {
    let inner = path.trim_start_matches(ROOT).trim_end_matches(".rs");
    let mut segments: Vec<String> = inner.split('/').map(str::to_owned).collect();
    if matches!(segments.last().map(String::as_str), Some("mod" | "lib")) {
        segments.pop();
    }
    segments
}

/// Whether a file module or its parent is declared under `#[cfg(test)]`: tests may use the public interfaces.
fn is_test(sources: &[&File], module: &[String]) -> bool {
    (1..=module.len()).any(|depth| {
        let (parent, name) = (&module[..depth - 1], &module[depth - 1]);
        let declares = |file: &&&File| module_of(&file.path) == parent;
        sources.iter().filter(declares).any(|file| file.test_modules().contains(&name.as_str()))
    })
}

/// Every path in a file that names a module of the crate: its offset, and the segments from the crate's root.
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
    fn downward_imports_are_fine() {
        let found = messages(&[
            ("crates/untorn/src/lib.rs", "mod engine; pub use engine::X; pub use crate::file::A;"),
            (
                "crates/untorn/src/file/reflection/mod.rs",
                "use crate::{storage::{Medium, dax}, format::sidecar};\nuse crate::engine::Engine;\n\
                 use super::barriers;",
            ),
            (
                "crates/untorn/src/format/sidecar/mod.rs",
                "use crate::format::record;\nmod barriers { use super::X; use crate::storage::B; }",
            ),
            ("crates/untorn/src/storage/mod.rs", "use crate::error::Error; use crate::sys;"),
            ("crates/untorn/src/open/mod.rs", "use crate::{file, redundancy, shared};"),
        ]);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn upward_imports_are_found_however_written() {
        let up = "`storage` (storage floor) uses `engine` (engine floor)";
        only(&[("crates/untorn/src/storage/dax.rs", "\nuse crate::engine::Engine;")], up);
        only(&[("crates/untorn/src/storage/dax.rs", "\nuse crate::{error::E, engine};")], up);
        only(&[("crates/untorn/src/storage/dax.rs", "fn f() { super::super::engine::f() }")], up);
        only(&[("crates/untorn/src/storage/dax.rs", "fn f() -> crate::engine::registry::X {}")], up);
        only(&[("crates/untorn/src/storage/mod.rs", "use super::{error, engine::{a}};")], up);
        only(&[("crates/untorn/src/storage/mod.rs", "macro_rules! m { () => { $crate::engine::X }; }")], up);
    }

    #[test]
    fn products_never_meet() {
        let path = "crates/untorn/src/write_cache/engine/open.rs";
        only(
            &[(path, "use crate::region::engine::Store;")],
            "`write_cache` uses `region`, its neighbour on the product floor",
        );
        let path = "crates/untorn/src/redundancy/engine.rs";
        only(&[(path, "use crate::file::AtomicFile;")], "`redundancy` uses `file`, its neighbour");
        assert!(messages(&[(path, "use crate::engine::handle_state::HandleState;")]).is_empty());
    }

    #[test]
    fn the_ground_has_an_order_too() {
        only(&[("crates/untorn/src/error/mod.rs", "use crate::options::Options;")], "imports go only down");
        only(&[("crates/untorn/src/sys/file.rs", "use crate::sync::slots::Slots;")], "imports go only down");
    }

    #[test]
    fn engines_never_meet() {
        let expected = "`reflection` uses `passthrough`, its neighbour";
        only(&[("crates/untorn/src/file/reflection/mod.rs", "use super::passthrough::P;")], expected);
        only(&[("crates/untorn/src/file/reflection/read.rs", "use crate::file::{passthrough, Engine};")], expected);
    }

    #[test]
    fn an_engine_does_not_know_its_faces() {
        let expected = "in `region`, `engine` uses `store`, which stands above it";
        only(&[("crates/untorn/src/region/engine/mod.rs", "use super::store::RegionStore;")], expected);
        assert!(messages(&[("crates/untorn/src/region/map/mod.rs", "use super::engine::AnyRegion;")]).is_empty());
    }

    #[test]
    fn a_re_export_of_the_root_hides_its_floor() {
        only(&[("crates/untorn/src/storage/mod.rs", "use crate::AtomicFile;")], "name the module");
    }

    #[test]
    fn an_unknown_module_is_found() {
        only(&[("crates/untorn/src/junk.rs", "")], "on no floor");
    }

    #[test]
    fn tests_may_use_the_faces() {
        let found = messages(&[
            (
                "crates/untorn/src/storage/mod.rs",
                "#[cfg(test)]\nmod tests { use crate::file::A; }\n#[cfg(test)]\nmod more;",
            ),
            ("crates/untorn/src/storage/more.rs", "use crate::file::A;"),
        ]);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn an_exception_that_is_not_needed_is_found() {
        let exceptions = [("storage", "engine", "because")];
        let needed = Tree::of(&[("crates/untorn/src/storage/mod.rs", "use crate::engine::Engine;")]);
        assert!(check_with(&needed, &exceptions).is_empty());
        let found = check_with(&Tree::of(&[("crates/untorn/src/storage/mod.rs", "")]), &exceptions);
        assert!(found.len() == 1 && found[0].message.contains("no longer needed"), "{found:?}");
    }
}
