//! Rules on the book in `book/`: its table of contents, includes, links, code blocks, and the page of error messages.
//!
//! `mdbook build` checks none of these links, and the gate must judge the book also where mdbook is not installed.

use std::collections::BTreeSet;

use super::source::{File, occurrences};
use super::{Finding, Tree};

const ROOT: &str = "book/src/";
const SUMMARY: &str = "book/src/SUMMARY.md";

/// The file whose documentation tests run the book's Rust programs.
const DOCTESTS: &str = "crates/untorn/src/lib.rs";

/// The languages of code blocks. A test runs each block of the first four; `text` and `ini` are no programs. A block in
/// another language may only include a file, which has tests of its own.
const LANGUAGES: &[&str] = &["rust", "sh", "python", "c", "text", "ini"];

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(summary) = tree.find(SUMMARY) else { return Vec::new() };
    let pages: Vec<&File> =
        tree.files.iter().filter(|file| file.path.starts_with(ROOT) && file.path.ends_with(".md")).collect();
    let mut findings = contents(tree, summary, &pages);
    for page in &pages {
        includes(tree, page, &mut findings);
        links(tree, page, &mut findings);
        blocks(tree, page, &mut findings);
    }
    findings
}

/// Every page is in the table of contents once, and every entry is a page.
fn contents(tree: &Tree, summary: &File, pages: &[&File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut listed = BTreeSet::new();
    for (at, target) in targets(&summary.text) {
        let path = join(SUMMARY, target);
        if tree.find(&path).is_none() {
            findings.push(Finding::new(summary, summary.line_of(at), format!("the book has no page `{target}`")));
        }
        if !listed.insert(path) {
            findings.push(Finding::new(summary, summary.line_of(at), format!("`{target}` is listed twice")));
        }
    }
    for page in pages.iter().filter(|page| page.path != SUMMARY && !listed.contains(&page.path)) {
        findings.push(Finding::new(page, 1, format!("{SUMMARY} does not list this page")));
    }
    findings
}

/// The file of each `{{#include path}}` is there, with the anchor that the directive names.
fn includes(tree: &Tree, page: &File, findings: &mut Vec<Finding>) {
    for (at, target, anchor) in directives(&page.text) {
        let Some(file) = tree.find(&join(&page.path, target)) else {
            findings.push(Finding::new(page, page.line_of(at), format!("no file to include: `{target}`")));
            continue;
        };
        if let Some(anchor) = anchor
            && !file.text.contains(&format!("ANCHOR: {anchor}\n"))
        {
            findings.push(Finding::new(page, page.line_of(at), format!("`{target}` has no anchor `{anchor}`")));
        }
    }
}

/// Each link leads to a page of the book, and to a heading of it. Links of an included document count as the page's.
fn links(tree: &Tree, page: &File, findings: &mut Vec<Finding>) {
    let text = expanded(tree, page);
    for (at, target) in targets(&text) {
        if page.path == SUMMARY || target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        // An included document has its own lines, which are not those of the page.
        let line = if text == page.text { page.line_of(at) } else { 1 };
        let (path, heading) = target.split_once('#').map_or((target, None), |(path, heading)| (path, Some(heading)));
        let path = if path.is_empty() { page.path.clone() } else { join(&page.path, path) };
        let Some(to) = tree.find(&path).filter(|file| file.path.starts_with(ROOT)) else {
            // A picture, or data: `book/src/docs/results` is a link to a directory, which the tree does not follow.
            if !path.starts_with("book/src/docs/results") {
                let message = format!("`{target}`: the book has no such page, so readers of the book find nothing");
                findings.push(Finding::new(page, line, message));
            }
            continue;
        };
        if let Some(heading) = heading
            && !headings(&expanded(tree, to)).contains(heading)
        {
            findings.push(Finding::new(page, line, format!("`{target}`: that page has no such heading")));
        }
    }
}

fn blocks(tree: &Tree, page: &File, findings: &mut Vec<Finding>) {
    let lines: Vec<&str> = page.text.lines().collect();
    let mut open = false;
    let mut has_rust = false;
    for (i, line) in lines.iter().enumerate() {
        let Some(info) = line.trim_start().strip_prefix("```") else { continue };
        open = !open;
        let language = info.split([',', ' ']).next().unwrap_or_default();
        has_rust |= open && language == "rust";
        let is_included = lines.get(i + 1).is_some_and(|next| next.starts_with("{{#include "));
        if open && !is_included && !LANGUAGES.contains(&language) {
            let message = format!("a code block in `{language}`, which no test runs; use one of {LANGUAGES:?}");
            findings.push(Finding::new(page, i + 1, message));
        }
    }
    let is_tested = || tree.find(DOCTESTS).is_some_and(|file| file.text.contains(&format!("/{}\")", page.path)));
    if has_rust && !is_tested() {
        findings.push(Finding::new(page, 1, format!("its Rust programs are not among the doctests of {DOCTESTS}")));
    }
}

/// The text of a page with the documents that it includes as a whole.
fn expanded(tree: &Tree, page: &File) -> String {
    let mut text = page.text.clone();
    for (_, target, anchor) in directives(&page.text) {
        let Some(file) = tree.find(&join(&page.path, target)).filter(|file| file.path.ends_with(".md")) else {
            continue;
        };
        if anchor.is_none() {
            text = text.replace(&format!("{{{{#include {target}}}}}"), &file.text);
        }
    }
    text
}

/// The `{{#include path}}` and `{{#include path:anchor}}` of a page, with their places.
fn directives(text: &str) -> Vec<(usize, &str, Option<&str>)> {
    let start = "{{#include ";
    let each = occurrences(text, start).filter_map(|at| {
        let target = text[at + start.len()..].split_once("}}")?.0.trim();
        let (path, anchor) = target.split_once(':').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
        Some((at, path, anchor))
    });
    each.collect()
}

/// The destinations of the links in a text, outside of code blocks and spans.
fn targets(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let (mut fenced, mut start) = (false, 0);
    for line in text.split_inclusive('\n') {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            for at in occurrences(line, "](") {
                let is_in_code = line[..at].matches('`').count() % 2 == 1;
                let target = &line[at + 2..];
                if let (false, Some(end)) = (is_in_code, target.find(')')) {
                    found.push((start + at, &target[..end]));
                }
            }
        }
        start += line.len();
    }
    found
}

/// The path of a relative link in the file `from`.
fn join(from: &str, target: &str) -> String {
    let mut segments: Vec<&str> = from.split('/').collect();
    segments.pop();
    for segment in target.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            name => segments.push(name),
        }
    }
    segments.join("/")
}

/// The names by which links reach the headings of a page, as mdBook and GitHub make them.
fn headings(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced && line.starts_with('#') {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            let kept = title.chars().filter(|&c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
            names.insert(kept.map(|c| if c == ' ' { '-' } else { c }).collect());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(files: &[(&str, &str)]) -> Vec<String> {
        let findings = check(&Tree::of(files));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_book_in_order_is_fine() {
        let found = messages(&[
            (SUMMARY, "- [A](a.md)\n- [B](docs/b.md)\n"),
            ("book/src/a.md", "# A page\n[b](docs/b.md#the-end) [a](#a-page)\n```sh\n[x](y)\n```\n`[x](y)`\n"),
            ("book/src/docs/b.md", "{{#include ../../../docs/b.md}}\n{{#include ../../../x.rs:all}}\n"),
            ("docs/b.md", "[a](../a.md)\n## The end\n"),
            ("x.rs", "// ANCHOR: all\n"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn pages_and_contents_must_agree() {
        let found = messages(&[(SUMMARY, "[A](a.md)\n[A](a.md)\n"), ("book/src/b.md", "text\n")]);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[3].starts_with("book/src/b.md:1: "), "{found:?}");
    }

    #[test]
    fn links_that_a_reader_of_the_book_cannot_follow_are_found() {
        let found = messages(&[
            (SUMMARY, "[A](a.md)\n"),
            ("book/src/a.md", "ok\n[r](../../README.md) [g](a.md#gone)\n"),
            ("README.md", "text\n"),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found.iter().all(|message| message.starts_with("book/src/a.md:2: ")), "{found:?}");
    }

    #[test]
    fn included_documents_are_checked_where_they_are_shown() {
        let found = messages(&[
            (SUMMARY, "[A](a.md)\n"),
            ("book/src/a.md", "{{#include ../../docs/a.md}}\n{{#include gone.rs}}\n{{#include ../../x.rs:none}}\n"),
            ("docs/a.md", "[x](x.md)\n"),
            ("docs/x.md", "text\n"),
            ("x.rs", "text\n"),
        ]);
        assert_eq!(found.len(), 3, "{found:?}");
    }

    #[test]
    fn a_block_that_no_test_runs_is_found() {
        let found = messages(&[(SUMMARY, "[A](a.md)\n"), ("book/src/a.md", "```\nx\n```\n```sh,fuse\nx\n```\n")]);
        assert!(found.len() == 1 && found[0].starts_with("book/src/a.md:1: "), "{found:?}");
    }

    #[test]
    fn a_rust_program_that_is_no_doctest_is_found() {
        let page = ("book/src/a.md", "```rust\nfn main() {}\n```\n");
        let found = messages(&[(SUMMARY, "[A](a.md)\n"), page]);
        assert!(found.len() == 1 && found[0].contains(DOCTESTS), "{found:?}");
        let tested = (DOCTESTS, "#[doc = include_str!(\"../../../book/src/a.md\")]\n");
        assert_eq!(messages(&[(SUMMARY, "[A](a.md)\n"), page, tested]), Vec::<String>::new());
    }
}
