//! Unsafe code: only in the permitted files, and each block with a soundness argument.

use super::source::{File, identifier_at, matching, words};
use super::{Finding, Tree};

/// The places where unsafe code is permitted, and why. All other code is safe Rust.
const HOMES: &[(&str, &str)] = &[
    ("crates/untorn/src/storage/", "maps files and stores past the cache"),
    ("crates/untorn/src/sys/", "calls the system"),
    ("crates/untorn/src/simd/", "runs what the CPU was found to have"),
    ("crates/untorn/src/file/map/mod.rs", "hands out plain loads and stores"),
    ("crates/untorn/tests/common/system.rs", "counts allocations and forks, for the tests"),
    ("crates/untorn-capi/", "the C boundary"),
    ("crates/untorn-python/src/map.rs", "the buffer protocol of Python"),
    ("crates/untorn-sqlite/src/", "the C interface of SQLite"),
    ("crates/untorn-ring/src/environment.rs", "asks what rights the program has"),
    ("crates/untorn-ring/src/flush.rs", "writes cache lines back"),
    ("crates/untorn-ring/src/robust.rs", "takes locks that processes share"),
    ("crates/untorn-preload/", "stands in for two functions of the C library"),
    ("crates/untorn-bench/src/sqlite/mod.rs", "loads the extension of SQLite"),
    ("crates/untorn-bench/src/compare/rivals/", "maps a file, opens LMDB and calls C libraries of the system"),
    ("crates/untorn-bench/examples/readers.rs", "opens LMDB, whose crate asks for it"),
    ("crates/untorn-cli/src/demo/plain.rs", "maps the file that the demo must see torn"),
];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        for at in words(&file.code, "unsafe") {
            let line = file.line_of(at);
            if !HOMES.iter().any(|(home, _)| file.path.starts_with(home)) {
                let homes: Vec<&str> = HOMES.iter().map(|(home, _)| *home).collect();
                let message = format!(
                    "unsafe code outside the permitted files ({}); write safe code, or add the file to HOMES",
                    homes.join(", ")
                );
                findings.push(Finding::new(file, line, message));
            }
            let rest = file.code[at + 6..].trim_start();
            let word = identifier_at(rest, 0);
            let wanted = match word {
                "impl" => Some("an unsafe impl without a `// SAFETY:` argument directly above"),
                "trait" | "fn" if !documented(file, line, "# Safety") && !is_type(rest) && !in_trait_impl(file, at) => {
                    findings.push(Finding::new(file, line, "unsafe without a `# Safety` section in its documentation"));
                    None
                }
                "extern" if rest["extern".len()..].trim_start().trim_start_matches(['"', ' ']).starts_with('{') => {
                    Some("an extern block without a `// SAFETY:` argument directly above")
                }
                "extern" if !is_type(rest) && !documented(file, line, "# Safety") && !in_trait_impl(file, at) => {
                    findings.push(Finding::new(file, line, "unsafe without a `# Safety` section in its documentation"));
                    None
                }
                "" if rest.starts_with('{') => Some("an unsafe block without a `// SAFETY:` argument directly above"),
                _ => None, // an attribute, `#[unsafe(no_mangle)]`
            };
            if let Some(message) = wanted
                && !argued(file, line)
            {
                findings.push(Finding::new(file, line, message));
            }
        }
    }
    findings
}

/// Whether this is the type of a function pointer, not a function: no name before the parameters.
fn is_type(rest: &str) -> bool {
    words(rest, "fn").next().is_some_and(|at| rest[at + 2..].trim_start().starts_with('('))
}

/// Whether the `unsafe` at `at` stands directly in an `impl Trait for Type`, whose contract is the trait's.
fn in_trait_impl(file: &File, at: usize) -> bool {
    words(&file.code, "impl").any(|start| {
        let Some(open) = file.code[start..].find('{').map(|i| start + i) else { return false };
        open < at && at < matching(&file.code, open) && words(&file.code[start..open], "for").next().is_some()
    })
}

/// Whether the documentation directly above line `line` (attributes may stand between) holds `section`. For a
/// function for C, only the header says what it asks of its caller.
fn documented(file: &File, line: usize, section: &str) -> bool {
    let lines: Vec<&str> = file.text.lines().take(line - 1).collect();
    lines
        .iter()
        .rev()
        .map(|line| line.trim_start())
        .take_while(|line| line.starts_with("///") || line.starts_with("#[") || line.starts_with("//"))
        .any(|line| line.starts_with("///") && line.contains(section) || line == "#[unsafe(no_mangle)]")
}

/// Whether a `// SAFETY:` comment ends directly above the statement that line `line` belongs to, or stands on the line.
fn argued(file: &File, line: usize) -> bool {
    let text: Vec<&str> = file.text.lines().map(str::trim).collect();
    if text[line - 1].starts_with("// SAFETY:") || text[line - 1].contains("/* SAFETY:") {
        return true;
    }
    let mut above = text[..line - 1].iter().rev().peekable();
    // The statement may have begun on an earlier line: `let x =`, an argument list, attributes.
    while above.peek().is_some_and(|line| !line.starts_with("//") && !ends_statement(line)) {
        above.next();
    }
    above.take_while(|line| line.starts_with("//")).any(|line| line.starts_with("// SAFETY:"))
}

fn ends_statement(line: &str) -> bool {
    line.is_empty() || [";", "{", "}", "=>"].iter().any(|end| line.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        check(&Tree::of(&[(path, text)])).iter().map(ToString::to_string).collect()
    }

    const HOME: &str = "crates/untorn/src/sys/mod.rs";

    #[test]
    fn argued_unsafe_at_home_is_fine() {
        let text = "
            // SAFETY: `p` is valid.
            // It was checked.
            let x = unsafe { *p };
            // SAFETY: long.
            let y =
                unsafe { *p };
            /// Does.
            ///
            /// # Safety
            /// `p` is valid.
            #[inline]
            pub unsafe fn f(p: *const u8) {}
            // SAFETY: no thread.
            unsafe impl Send for X {}
            // SAFETY: counts, then forwards.
            unsafe impl GlobalAlloc for X { unsafe fn alloc(&self) {} }
            type F = unsafe extern \"C\" fn(i32);
            let s = \"unsafe { }\"; // unsafe { }
        ";
        assert_eq!(messages(HOME, text), Vec::<String>::new());
        assert!(
            messages("crates/untorn-capi/src/lib.rs", "#[unsafe(no_mangle)]\npub extern \"C\" fn f() {}").is_empty()
        );
    }

    #[test]
    fn unsafe_away_from_home_is_found() {
        let found = messages("crates/untorn/src/file.rs", "// SAFETY: yes.\nunsafe { f() }");
        assert!(
            found.len() == 1 && found[0].contains("file.rs:2: unsafe code outside the permitted files"),
            "{found:?}"
        );
    }

    #[test]
    fn unsafe_without_an_argument_is_found() {
        for text in [
            "\nunsafe { f() }",
            "// SAFETY: of the other.\ng();\nunsafe { f() }",
            "// SAFETY: too far.\n\nunsafe { f() }",
            "\nunsafe impl Send for X {}",
            "\nunsafe extern \"C\" { fn x(); }",
            "/// No section.\npub unsafe fn f() {}",
            "\npub unsafe extern \"C\" fn f() {}",
            "impl X {\nunsafe fn f() {}\n}",
        ] {
            assert_eq!(messages(HOME, text).len(), 1, "{text}");
        }
    }
}
