//! Lines of at most 120 columns, in documents and in sources.
//!
//! A column is a character, not a byte. Tables, code blocks, comments and string literals count as well: a table with
//! longer rows is better a list, and a literal can go on in the next line. The one exception is a line that is nothing
//! but one link, after the marker of a list, a comment or a quotation: no break would make it shorter.
//!
//! Documents and sources have a [limit](Ratchet) each. A file is one finding, whatever the number of its lines.

use super::ratchet::Ratchet;
use super::source::File;
use super::{Finding, Tree};

const COLUMNS: usize = 120;
const HERE: &str = "xtask/src/tidy/width.rs";

const DOCUMENTS: Ratchet = Ratchet { what: "wide lines of documents", at: HERE, limit: 0 };
const SOURCES: Ratchet = Ratchet { what: "wide lines of sources", at: HERE, limit: 0 };

/// How many lines of a file a finding names.
const NAMED: usize = 5;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, &DOCUMENTS, &SOURCES)
}

/// The last line of the run.
pub(super) fn summary(tree: &Tree) -> String {
    let total = |extensions| count(&wide_files(tree, extensions));
    format!("lines of more than {COLUMNS} columns: docs {}, sources {}", total(&[".md"]), total(&[".rs", ".c", ".h"]))
}

fn check_with(tree: &Tree, documents: &Ratchet, sources: &Ratchet) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (extensions, ratchet) in [(&[".md"] as &[&str], documents), (&[".rs", ".c", ".h"], sources)] {
        let wide = wide_files(tree, extensions);
        findings.extend(ratchet.hold(count(&wide), wide.iter().map(|(file, lines)| finding(file, lines)).collect()));
    }
    findings
}

/// The files with lines that are too wide, and the numbers of these.
fn wide_files<'a>(tree: &'a Tree, extensions: &[&str]) -> Vec<(&'a File, Vec<usize>)> {
    let files = tree.files.iter().filter(|file| extensions.iter().any(|end| file.path.ends_with(end)));
    files.map(|file| (file, wide_lines(&file.text))).filter(|(_, lines)| !lines.is_empty()).collect()
}

fn count(wide: &[(&File, Vec<usize>)]) -> usize {
    wide.iter().map(|(_, lines)| lines.len()).sum()
}

fn finding(file: &File, lines: &[usize]) -> Finding {
    let named: Vec<String> = lines.iter().take(NAMED).map(usize::to_string).collect();
    let (named, more) = (named.join(", "), if lines.len() > NAMED { ", ..." } else { "" });
    let noun = if lines.len() == 1 { "line" } else { "lines" };
    Finding::new(file, lines[0], format!("{} {noun} of more than {COLUMNS} columns: {named}{more}", lines.len()))
}

/// The numbers, from 1, of the lines that are too wide.
fn wide_lines(text: &str) -> Vec<usize> {
    let wide = |line: &str| line.chars().count() > COLUMNS && !is_link(line);
    text.lines().enumerate().filter(|(_, line)| wide(line)).map(|(i, _)| i + 1).collect()
}

/// Whether the line is one link, after a marker or none.
fn is_link(line: &str) -> bool {
    let line = line.trim();
    let body = ["- ", "* ", "> ", "/// ", "//! ", "// "].iter().find_map(|marker| line.strip_prefix(marker));
    let body = body.unwrap_or(line);
    !body.contains(char::is_whitespace) && (body.contains("://") || body.contains("]("))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(limit: usize) -> Ratchet {
        Ratchet { what: "wide lines", at: "width.rs", limit }
    }

    fn messages(path: &str, text: &str) -> Vec<String> {
        check_with(&Tree::of(&[(path, text)]), &limit(0), &limit(0)).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn narrow_lines_and_lone_links_are_fine() {
        let (full, link) = ("é".repeat(COLUMNS), format!("https://example.org/{}", "a".repeat(COLUMNS)));
        assert!(messages("a.md", &format!("{full}\n{link}\n- [text]({link})\n")).is_empty());
        assert!(messages("a.rs", &format!("{full}\n/// <{link}>\n")).is_empty());
        assert!(messages("a.sh", &format!("{full}é\n")).is_empty());
    }

    #[test]
    fn wide_lines_of_each_kind_are_found() {
        let wide = "é".repeat(COLUMNS + 1);
        for path in ["a.md", "a.rs", "a.c"] {
            let expected = format!("{path}:2: 1 line of more than 120 columns: 2");
            assert_eq!(messages(path, &format!("a\n{wide}\nb\n")), [expected]);
        }
        let text = format!("| a | https://example.org/{wide} |\n```\n{wide}\n```\n// \"{wide}\"\n");
        assert_eq!(messages("a.md", &text), ["a.md:1: 3 lines of more than 120 columns: 1, 3, 5"]);
    }

    #[test]
    fn up_to_the_limit_wide_lines_are_warnings() {
        let wide = format!("{}\n", "a".repeat(COLUMNS + 1));
        let tree = Tree::of(&[("a.md", &wide), ("b.md", &wide)]);
        assert!(check_with(&tree, &limit(2), &limit(0)).iter().all(|finding| !finding.fails));
        assert!(check_with(&tree, &limit(1), &limit(0)).iter().all(|finding| finding.fails));
        assert_eq!(summary(&tree), "lines of more than 120 columns: docs 2, sources 0");
    }
}
