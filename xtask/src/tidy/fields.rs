//! Private fields of a struct are touched in its own file, and in those of its module's files that are named here.
//!
//! Rust lets every file below a module touch the private fields of the structs declared in it. So a type whose `impl`
//! is spread over ten files has no place where its invariants are kept. An `impl` may stand anywhere and call
//! methods; one that touches a private field of its type, in another file than the type's, is named in [`SPREAD`]
//! with the reason.

use std::collections::{BTreeMap, BTreeSet};

use super::source::{File, identifier_at, in_identifier, matching, occurrences, words};
use super::{Finding, Tree};

const ROOT: &str = "crates/untorn/src/";
/// This file's path, which findings about its table name.
const HERE: &str = "xtask/src/tidy/fields.rs";

/// The file of a struct, its name, the files of its module that touch its private fields, and why they do.
type Spread = (&'static str, &'static str, &'static [&'static str], &'static str);

/// Types that are spread over several files. One file that is no longer needed is a finding.
const SPREAD: &[Spread] = &[
    (
        "crates/untorn/src/engine/commits/log/mod.rs",
        "Log",
        &["attach.rs", "room.rs"],
        "the files of one open log: opening them, appending a record, and making room for one are a file each",
    ),
    (
        "crates/untorn/src/engine/commits/mod.rs",
        "WithCommitLog",
        &["since.rs"],
        "gives the snapshots of a file with a log: none is taken between a record and its commit, under the log's lock",
    ),
    (
        "crates/untorn/src/engine/snapshot/mod.rs",
        "WithSnapshots",
        &["operations.rs", "publishing.rs"],
        "the snapshots of one file: taking and releasing them, and publishing each commit, are a file each",
    ),
    (
        "crates/untorn/src/file/hybrid_log/mod.rs",
        "Core",
        &[
            "block_range.rs",
            "capture.rs",
            "checkpoint.rs",
            "commit.rs",
            "inline.rs",
            "locked.rs",
            "open.rs",
            "read.rs",
            "recovery.rs",
            "redo.rs",
            "resize.rs",
            "single.rs",
            "undo.rs",
            "view.rs",
            "write.rs",
        ],
        "the state of one open log: each operation is a file, and takes the locks in the order of the module's header",
    ),
    (
        "crates/untorn/src/file/reflection/mod.rs",
        "Reflection",
        &[
            "ahead.rs",
            "capture.rs",
            "checkpoint.rs",
            "commit.rs",
            "deploy.rs",
            "epoch.rs",
            "finish.rs",
            "open.rs",
            "read.rs",
            "recovery.rs",
            "resize.rs",
            "single.rs",
            "store.rs",
            "unit.rs",
            "write.rs",
        ],
        "the state of one open file: each operation is a file, and takes the locks in the order of the module's header",
    ),
    (
        "crates/untorn/src/redundancy/mod.rs",
        "Redundancy",
        &[
            "ahead.rs",
            "announce.rs",
            "holes.rs",
            "incremental.rs",
            "notifier.rs",
            "open.rs",
            "premark.rs",
            "repair.rs",
            "repair_list.rs",
            "resize.rs",
            "scrub.rs",
            "tally.rs",
            "update.rs",
            "verify.rs",
        ],
        "one redundancy file: what changes is behind one lock (`Inner`), and each operation that takes it is a file",
    ),
    (
        "crates/untorn/src/redundancy/tracked/mod.rs",
        "TrackedPages",
        &["data.rs", "sidecar.rs"],
        "the pages of one file: how its redundancy file follows its length is one file for each kind of pages",
    ),
    (
        "crates/untorn/src/region/engine/mod.rs",
        "Core",
        &["audit.rs", "commit.rs", "load.rs", "log.rs"],
        "one open store: a commit, its log, recovery and the audit each need the file and the space map",
    ),
    (
        "crates/untorn/src/write_cache/engine/mod.rs",
        "Cache",
        &[
            "deliver.rs",
            "drain.rs",
            "epoch.rs",
            "file.rs",
            "multi_process.rs",
            "names.rs",
            "packing.rs",
            "remove.rs",
            "rename.rs",
            "restage.rs",
            "spill.rs",
            "stream.rs",
            "table.rs",
            "wipe.rs",
            "worker.rs",
            "write_through.rs",
        ],
        "one open log: each operation is a file, and takes the locks in the order of the module's header",
    ),
    (
        "crates/untorn/src/shared/file/member/mod.rs",
        "Member",
        &["takeover.rs"],
        "a takeover exchanges the connection and the service of the member",
    ),
    (
        "crates/untorn/src/ipc/memory/server/mod.rs",
        "Server",
        &["members.rs", "requests.rs"],
        "one thread has it, so no lock guards its fields",
    ),
    (
        "crates/untorn/src/sys/paged/mod.rs",
        "Paged",
        &["shown.rs"],
        "opens pages as another file's and takes them back: the unsafe half of it, with invariants of its own",
    ),
    ("crates/untorn/src/sys/paged/mod.rs", "Open", &["shown.rs"], "the same, under the lock of the pages"),
    ("crates/untorn/src/sys/paged/mod.rs", "Opening", &["shown.rs"], "the same, for those who hold that lock"),
];

/// A struct with private fields.
struct Struct {
    path: String,
    name: String,
    private: Vec<String>,
}

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, SPREAD)
}

fn check_with(tree: &Tree, spread: &[Spread]) -> Vec<Finding> {
    let sources: Vec<(&File, String)> = tree
        .files
        .iter()
        .filter(|file| file.is_rust() && file.path.starts_with(ROOT))
        .map(|file| (file, file.code_without_tests()))
        .collect();
    let structs: Vec<Struct> = sources.iter().flat_map(|(file, code)| structs(&file.path, code)).collect();
    let mut findings = Vec::new();
    let mut used = BTreeSet::new();
    for (file, code) in &sources {
        if file.path.ends_with("/tests.rs") || file.path.contains("/tests/") || file.path.ends_with("/models.rs") {
            continue;
        }
        // What of each type this file touches, and where it begins to.
        let mut touched: BTreeMap<(&str, &str), (usize, BTreeSet<&str>)> = BTreeMap::new();
        for (name, open, close) in implementations(code) {
            let Some(of) = declared(&structs, &file.path, name) else { continue };
            if of.path == file.path {
                continue;
            }
            for at in occurrences(&code[open..close], "self.").map(|at| open + at) {
                let field = identifier_at(code, at + 5);
                let called = code[at + 5 + field.len()..].starts_with('(');
                let whole = !code[..at].chars().next_back().is_some_and(in_identifier);
                if let Some(field) = of.private.iter().find(|known| *known == field && whole && !called) {
                    let entry = touched.entry((&of.path, &of.name)).or_insert((at, BTreeSet::new()));
                    entry.1.insert(field);
                }
            }
        }
        for ((path, name), (at, fields)) in touched {
            let allowed = spread.iter().any(|(at, of, files, _)| {
                *at == path
                    && *of == name
                    && files.iter().any(|named| format!("{}/{named}", directory(path)) == file.path)
            });
            if allowed {
                used.insert((path.to_owned(), name.to_owned(), file.path.clone()));
                continue;
            }
            let fields: Vec<&str> = fields.into_iter().collect();
            let message = format!(
                "touches private fields of `{name}` ({}), which is declared in {path}; call a method of it, or name \
                 this file in SPREAD in {HERE}",
                fields.join(", ")
            );
            findings.push(Finding::new(file, file.line_of(at), message));
        }
    }
    if !sources.is_empty() {
        for (path, name, files, _) in spread {
            for file in *files {
                let full = format!("{}/{file}", directory(path));
                if !used.contains(&((*path).to_owned(), (*name).to_owned(), full)) {
                    let message =
                        format!("`{file}` no longer touches private fields of `{name}`; remove it from SPREAD");
                    findings.push(Finding::at(HERE, 1, message));
                }
            }
        }
    }
    findings
}

fn directory(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

/// The struct of a name that a file may touch the private fields of: declared in the file, or in the nearest module
/// around it.
fn declared<'a>(structs: &'a [Struct], path: &str, name: &str) -> Option<&'a Struct> {
    let around = |of: &&Struct| {
        of.path == path || of.path.ends_with("/mod.rs") && path.starts_with(&format!("{}/", directory(&of.path)))
    };
    structs.iter().filter(|of| of.name == name).filter(around).max_by_key(|of| (of.path == path, of.path.len()))
}

/// The structs of a file that have private fields.
fn structs(path: &str, code: &str) -> Vec<Struct> {
    let mut found = Vec::new();
    for at in words(code, "struct") {
        let name = identifier_at(code, at + "struct ".len());
        let Some(open) = code[at..].find(['{', ';', '(']).map(|i| at + i) else { continue };
        if name.is_empty() || code.as_bytes()[open] != b'{' {
            continue;
        }
        let body = &code[open + 1..matching(code, open)];
        let private = fields(body);
        if !private.is_empty() {
            found.push(Struct { path: path.to_owned(), name: name.to_owned(), private });
        }
    }
    found
}

/// Names of the private fields between the braces of a struct.
fn fields(body: &str) -> Vec<String> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '<' | '(' | '[' | '{' => depth += 1,
            '>' if body[..at].ends_with('-') => {}
            '>' | ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                let mut field = body[start..at].trim();
                while field.starts_with("#[") {
                    field = field[matching(field, 1) + 1..].trim_start();
                }
                let name = identifier_at(field, 0);
                if !name.is_empty() && name != "pub" {
                    found.push(name.to_owned());
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

/// The `impl` blocks of a file: the name of the type, and the range between the braces.
fn implementations(code: &str) -> Vec<(&str, usize, usize)> {
    let mut found = Vec::new();
    for at in words(code, "impl") {
        let before = code[..at].trim_end();
        if !(before.is_empty() || before.ends_with(['}', ';', ']', '{'])) {
            continue; // `impl Trait` as a type
        }
        let Some(open) = code[at..].find('{').map(|i| at + i) else { continue };
        let header = &code[at + "impl".len()..open];
        let header = header.split(" where").next().unwrap_or_default();
        let of = match words(header, "for").last() {
            Some(at) => &header[at + "for".len()..],
            None => after_generics(header),
        };
        let path = of.trim_start().split('<').next().unwrap_or_default().trim_end();
        let name = path.rsplit("::").next().unwrap_or_default();
        if let Some(name_at) = code[at..open].rfind(name)
            && !name.is_empty()
        {
            found.push((identifier_at(code, at + name_at), open, matching(code, open)));
        }
    }
    found
}

/// What follows the parameters of an `impl`.
fn after_generics(header: &str) -> &str {
    let header = header.trim_start();
    if !header.starts_with('<') {
        return header;
    }
    let mut depth = 0;
    for (at, c) in header.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if header[..at].ends_with('-') => {}
            '>' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &header[at + 1..];
        }
    }
    ""
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "struct Log<M: Medium> {\n    medium: Arc<M>,\n    pub(super) open: u64,\n    \
                       #[doc(hidden)]\n    done: BTreeMap<u64, u64>,\n}\n\
                       impl<M: Medium> Log<M> { fn done(&self) -> u64 { self.done.len() } }\n";

    fn messages(spread: &[Spread], files: &[(&str, &str)]) -> Vec<String> {
        check_with(&Tree::of(files), spread).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_private_field_touched_in_another_file_is_found() {
        let write = "impl<M: Medium> Log<M> {\n    fn f(&self) { self.medium.fence(); self.open; self.done() }\n}\n";
        let files = [("crates/untorn/src/log/mod.rs", LOG), ("crates/untorn/src/log/write.rs", write)];
        let found = messages(&[], &files);
        assert!(found.len() == 1 && found[0].starts_with("crates/untorn/src/log/write.rs:2:"), "{found:#?}");
        assert!(found[0].contains("private fields of `Log` (medium)"), "{found:#?}");
        let spread: Spread = ("crates/untorn/src/log/mod.rs", "Log", &["write.rs"], "because");
        assert!(messages(&[spread], &files).is_empty());
        let trait_of = "impl<M: Medium> fmt::Debug for Log<M> { fn f(&self) { self.done.len() } }\n";
        assert_eq!(messages(&[spread], &[files[0], ("crates/untorn/src/log/debug.rs", trait_of), files[1]]).len(), 1);
    }

    #[test]
    fn a_file_that_is_named_and_touches_nothing_is_found() {
        let spread: Spread = ("crates/untorn/src/log/mod.rs", "Log", &["write.rs"], "because");
        let found =
            messages(&[spread], &[("crates/untorn/src/log/mod.rs", LOG), ("crates/untorn/src/log/write.rs", "")]);
        assert!(found.len() == 1 && found[0].contains("no longer touches"), "{found:#?}");
    }

    #[test]
    fn methods_its_own_file_and_types_of_the_same_name_are_fine() {
        let other = "struct Log { medium: u64 }\nimpl Log { fn f(&self) { self.medium } }\n";
        let found = messages(
            &[],
            &[
                ("crates/untorn/src/log/mod.rs", LOG),
                ("crates/untorn/src/log/other.rs", other),
                (
                    "crates/untorn/src/log/read.rs",
                    "impl<M: Medium> Log<M> { fn g(&self) -> impl Fn() { self.done() } }\n",
                ),
                ("crates/untorn/src/log/tests.rs", "impl Log { fn f(&self) { self.medium } }\n"),
            ],
        );
        assert!(found.is_empty(), "{found:#?}");
    }
}
