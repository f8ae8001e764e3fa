//! Words that the project gave up for the field's terms and that may not come back.
//!
//! A retired word may not be the name of a module or of a type. In a document it may not stand in a code span, as a
//! name or as a part of a path: `engine/together`. Outside code spans it is plain English.

use super::source::{File, identifier_at, in_identifier, words};
use super::{Finding, Tree};

/// A word that is gone, and the term that took its place.
struct Retired {
    word: &'static str,
    term: &'static str,
}

/// Words that no module, type or document has any more. A word is entered when the last of its uses is renamed.
const RETIRED: &[Retired] = &[
    Retired { word: "berths", term: "slots" },
    Retired { word: "dial", term: "connection" },
    Retired { word: "sharing", term: "ipc or sync" },
    Retired { word: "straits", term: "resource_limits" },
    Retired { word: "succession", term: "takeover" },
    Retired { word: "tidings", term: "notifier" },
    Retired { word: "together", term: "shared::file" },
];

/// The keywords that declare a type or a module.
const KEYWORDS: &[&str] = &["struct", "enum", "union", "trait", "type", "mod"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, RETIRED)
}

fn check_with(tree: &Tree, retired: &[Retired]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let uses = if file.is_rust() {
            declared(file)
        } else if file.path.ends_with(".md") {
            in_code_spans(&file.text)
        } else {
            continue;
        };
        for (line, name) in uses {
            if let Some(Retired { word, term }) = retired.iter().find(|retired| retired.word == name) {
                findings.push(Finding::new(file, line, format!("`{word}` is retired; the term is {term}")));
            }
        }
    }
    findings
}

/// The names of the types and modules that a file declares, each with its line.
fn declared(file: &File) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    for keyword in KEYWORDS {
        for at in words(&file.code, keyword) {
            let after = at + keyword.len();
            let name = after + (file.code[after..].len() - file.code[after..].trim_start().len());
            names.push((file.line_of(at), identifier_at(&file.code, name)));
        }
    }
    names
}

/// The identifiers in the code spans of a document, each with its line. Code blocks show output and programs.
fn in_code_spans(text: &str) -> Vec<(usize, &str)> {
    let mut names = Vec::new();
    let mut fenced = false;
    for (i, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let spans = line.split('`').skip(1).step_by(2);
            names.extend(spans.flat_map(|span| span.split(|c| !in_identifier(c))).map(|name| (i + 1, name)));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[Retired] =
        &[Retired { word: "together", term: "remote_file" }, Retired { word: "SlowFile", term: "BackingFile" }];

    fn messages(path: &str, text: &str) -> Vec<String> {
        check_with(&Tree::of(&[(path, text)]), TABLE).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn the_table_has_each_word_once_in_order() {
        assert!(RETIRED.is_sorted_by(|a, b| a.word < b.word));
    }

    #[test]
    fn plain_english_and_other_names_are_fine() {
        let text = "// mod together;\nmod altogether;\nlet together = SlowFiles { x };\nf(\"struct SlowFile\");";
        assert_eq!(messages("a.rs", text), [""; 0]);
        assert_eq!(messages("a.md", "They go together. `altogether`\n```\nmod together;\n```\n"), [""; 0]);
    }

    #[test]
    fn a_retired_name_that_is_declared_is_found() {
        let expected = ["a.rs:2: `together` is retired; the term is remote_file"];
        assert_eq!(messages("a.rs", "mod a;\npub(super) mod together;"), expected);
        for keyword in ["struct", "enum", "union", "trait", "type"] {
            let expected = ["a.rs:1: `SlowFile` is retired; the term is BackingFile"];
            assert_eq!(messages("a.rs", &format!("pub {keyword} SlowFile")), expected);
        }
    }

    #[test]
    fn a_retired_name_in_a_document_is_found() {
        let expected = ["a.md:2: `together` is retired; the term is remote_file"];
        assert_eq!(messages("a.md", "a\nSee `engine/together` there.\n"), expected);
    }
}
