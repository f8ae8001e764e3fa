//! The book's page of error messages has every message: each variant of the library's errors with its text, each exit
//! code, and each message of the tool about a wrong request.

use std::collections::BTreeSet;

use super::extract;
use super::source::{File, in_identifier, matching, occurrences};
use super::{Finding, Tree};

const PAGE: &str = "book/src/errors.md";
const ERRORS: &str = "crates/untorn/src/error/mod.rs";
const TEXTS: &str = "crates/untorn/src/error/text.rs";
const EXITS: &str = "crates/untorn-cli/src/exit.rs";
const TOOL: &[&str] = &["crates/untorn-cli/src/", "crates/untorn-mount/src/attach/"];
/// Modules of the tool that test a machine; their messages go to people who read the sources.
const RIGS: &[&str] = &["demo/", "torture/", "victim.rs", "verbs/bench.rs"];

/// What stands for anything in a message, as [`extract`] writes it.
const ANYTHING: &str = "{x}";
/// A part of a message with fewer words is found anywhere.
const FEWEST: usize = 3;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    let Some(page) = tree.find(PAGE) else { return Vec::new() };
    let titles: BTreeSet<&str> =
        page.text.lines().filter_map(|line| line.strip_prefix("### ")).map(str::trim).collect();
    let mut findings = Vec::new();
    if let Some(errors) = tree.find(ERRORS) {
        let names = ["Error", "ProtectionProblem"].into_iter().flat_map(|name| variants(errors, name));
        missing_titles(errors, names.map(|(line, name)| (line, name.to_owned())), &titles, &mut findings);
    }
    if let Some(exits) = tree.find(EXITS) {
        let codes = variants(exits, "Exit").into_iter().filter_map(|(line, _)| {
            let number = exits.text.lines().nth(line - 1)?.split_once('=')?.1.trim().trim_end_matches(',');
            Some((line, format!("Exit code {number}")))
        });
        missing_titles(exits, codes, &titles, &mut findings);
    }
    let shown = plain(&page.text);
    if let Some(texts) = tree.find(TEXTS) {
        missing_texts(texts, extract::error_strings(texts), &shown, &mut findings);
    }
    for file in extract::product(tree).filter(|file| is_of_the_tool(&file.path)) {
        let requests = extract::error_strings(file).into_iter().filter(|(line, _)| is_about_a_request(file, *line));
        // A table shows a message up to the point where its reasons begin.
        let first = |(line, text): (usize, String)| (line, text.split([';', ',', '(']).next().unwrap_or("").to_owned());
        missing_texts(file, requests.map(first).collect(), &shown, &mut findings);
    }
    findings
}

fn missing_titles(
    file: &File,
    names: impl Iterator<Item = (usize, String)>,
    titles: &BTreeSet<&str>,
    findings: &mut Vec<Finding>,
) {
    for (line, name) in names.filter(|(_, name)| !titles.contains(name.as_str())) {
        findings.push(Finding::new(file, line, format!("{PAGE} has no heading `### {name}`: say what to do about it")));
    }
}

fn missing_texts(file: &File, texts: extract::Paragraphs, shown: &str, findings: &mut Vec<Finding>) {
    for (line, text) in texts {
        let text = plain(&text);
        let parts = text.split(ANYTHING).map(|part| part.trim_matches([' ', ';', ':', ',', '(', ')']));
        for part in parts.filter(|part| part.split(' ').count() >= FEWEST) {
            if !shown.contains(part) {
                findings.push(Finding::new(file, line, format!("{PAGE} lacks this message, or a part of it: {part}")));
            }
        }
    }
}

fn is_of_the_tool(path: &str) -> bool {
    let module = TOOL.iter().find_map(|root| path.strip_prefix(root));
    module.is_some_and(|module| !RIGS.iter().any(|rig| module.starts_with(rig)))
}

/// Whether the literals that begin on this line are of a failure of usage, or of a text that is named for one.
fn is_about_a_request(file: &File, line: usize) -> bool {
    let end = file.text.split_inclusive('\n').take(line).map(str::len).sum::<usize>();
    let before = &file.code[..end].trim_end().trim_end_matches([';', '}', ')', ',']);
    let statement = &before[before.rfind([';', '}', '{']).map_or(0, |at| at + 1)..];
    // The fields of `AttachError::Request` are the last.
    let starts = ["Failure::usage", "let what =", "let message =", "let ways =", "let why =", " path, why: "];
    starts.iter().any(|start| statement.contains(start))
}

/// The variants of an enum, each with the line on which it stands.
fn variants<'a>(file: &'a File, name: &str) -> Vec<(usize, &'a str)> {
    let Some(at) = occurrences(&file.code, &format!("enum {name} {{")).next() else { return Vec::new() };
    let open = at + file.code[at..].find('{').unwrap_or_default();
    let end = matching(&file.code, open);
    let (mut found, mut depth, mut at) = (Vec::new(), 0, open + 1);
    for line in file.code[open + 1..end].split_inclusive('\n') {
        let word = line.trim_start();
        let word = &word[..word.find(|c| !in_identifier(c)).unwrap_or(word.len())];
        if depth == 0 && word.starts_with(char::is_uppercase) {
            found.push((file.line_of(at), word));
        }
        depth += line.matches('{').count();
        depth = depth.saturating_sub(line.matches('}').count());
        at += line.len();
    }
    found
}

/// A text without marks of code, with every white space as one blank.
fn plain(text: &str) -> String {
    text.replace('`', "").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENUM: &str = "pub enum Error {\n    /// A.\n    Io {\n        path: Path,\n    },\n    Poisoned,\n}\n";
    const EXIT: &str = "pub enum Exit {\n    Clean = 0,\n}\n";
    const TEXT: &str = "fn f() { write!(f, \"{}: this handle is unusable ({cause}); close it\", path) }\n";

    fn messages(page: &str, files: &[(&str, &str)]) -> Vec<String> {
        let mut all = vec![(PAGE, page), (ERRORS, ENUM), (EXITS, EXIT), (TEXTS, TEXT)];
        all.extend(files);
        check(&Tree::of(&all)).iter().map(ToString::to_string).collect()
    }

    const WHOLE: &str = "### Io\n### Poisoned\n```text\nFILE: this handle is\nunusable (CAUSE); close it\n```\n\
                         ### Exit code 0\n";

    #[test]
    fn a_page_with_every_message_is_fine() {
        assert_eq!(messages(WHOLE, &[]), Vec::<String>::new());
    }

    #[test]
    fn a_variant_without_a_heading_is_found() {
        let found = messages(&WHOLE.replace("### Poisoned\n", ""), &[]);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{ERRORS}:6: ")), "{found:?}");
    }

    #[test]
    fn an_exit_code_without_a_heading_is_found() {
        let found = messages(&WHOLE.replace("code 0", "code 1"), &[]);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{EXITS}:2: ")), "{found:?}");
    }

    #[test]
    fn a_text_that_the_page_has_otherwise_is_found() {
        let found = messages(&WHOLE.replace("unusable", "of no use"), &[]);
        assert!(found.len() == 1 && found[0].starts_with(&format!("{TEXTS}:1: ")), "{found:?}");
    }

    #[test]
    fn a_message_of_the_tool_is_found_only_about_a_request() {
        let code = "fn f() {\n    let what = \"no store is given here: name one of them\";\n    \
                    let other = \"this is a report about all of the files\";\n    \
                    Err(Failure::usage(\"no program was given here\"))\n}\n";
        let path = "crates/untorn-cli/src/verbs/x.rs";
        let found = messages(WHOLE, &[(path, code)]);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with(&format!("{path}:2: ")) && found[1].starts_with(&format!("{path}:4: ")));
        let page = format!("{WHOLE}`no store is given here: name one of them`, `no program was given here`\n");
        assert_eq!(messages(&page, &[(path, code)]), Vec::<String>::new());
    }
}
