//! The English in sources that a user reads: error strings, the help of commands, the comments of the C headers.
//!
//! An error string is any string literal of Rust code outside tests that looks like prose, wherever it is used: errors
//! are built by constructors, by `Display`, from fields and from tables, and no list of those would stay complete. A
//! literal looks like prose if it has at least [`FEWEST`] words of letters alone, and these are half of it or more.
//! Lines for machines, such as commands and JSON, have punctuation and digits in most of their words; scripts have a
//! `$`.

use std::collections::BTreeSet;
use std::ops::Range;

use super::prose::FEWEST;
use super::source::{File, item_end, matching, occurrences, words};
use super::{Tree, markdown};

/// Each piece of English with the number, from 1, of the line on which it begins.
pub(super) type Paragraphs = Vec<(usize, String)>;

/// Derives that make a command's help of an item's documentation.
const COMMAND: &[&str] = &["Args", "Parser", "Subcommand", "ValueEnum"];

/// The files of Rust code that is not only built for tests.
pub(super) fn product(tree: &Tree) -> impl Iterator<Item = &File> {
    let tests = test_modules(tree);
    tree.files.iter().filter(move |file| {
        let Some(module) = file.path.strip_suffix(".rs") else { return false };
        let root = ["crates/", "xtask/"].iter().any(|root| module.starts_with(root)) && module.contains("/src/");
        let under = |test: &String| {
            module.strip_prefix(test.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        root && !tests.iter().any(under)
    })
}

/// The paths, without `.rs`, of modules that are declared under `#[cfg(test)]`.
fn test_modules(tree: &Tree) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for file in tree.files.iter().filter(|file| file.is_rust()) {
        let module = file.path.trim_end_matches(".rs");
        let directory = ["/mod", "/lib", "/main"].iter().find_map(|root| module.strip_suffix(root)).unwrap_or(module);
        found.extend(file.test_modules().iter().map(|name| format!("{directory}/{name}")));
    }
    found
}

/// The string literals outside tests that look like prose, a paragraph for each line that they print.
pub(super) fn error_strings(file: &File) -> Paragraphs {
    let tests: Vec<Range<usize>> = file.test_items().collect();
    let mut found = Paragraphs::new();
    for literal in &file.literals {
        if !tests.iter().any(|test| test.contains(&literal.start)) {
            let lines = printed(&file.text[literal.clone()], file.line_of(literal.start));
            found.extend(lines.into_iter().filter(|(_, text)| is_prose(text)));
        }
    }
    found
}

/// The lines that a string literal prints. A placeholder is the word `{x}`, and so is what stands in front of a
/// literal that goes on with a sentence.
fn printed(literal: &str, mut line: usize) -> Paragraphs {
    let Some(open) = literal.find('"') else { return Paragraphs::new() };
    let raw = literal[..open].contains('r');
    let body = literal[open + 1..].trim_end_matches('#');
    let body = body.strip_suffix('"').unwrap_or(body);
    let mut found = vec![(line, String::new())];
    if body.starts_with([' ', ',', ';', ':', '.', ')']) {
        found[0].1.push_str("{x}");
    }
    let mut rest = body.chars().peekable();
    while let Some(c) = rest.next() {
        let text = &mut found.last_mut().expect("never empty").1;
        match c {
            '\n' => {
                line += 1;
                // A blank line ends a paragraph.
                match rest.peek() {
                    Some('\n') => found.push((line, String::new())),
                    _ if text.is_empty() => found.push((line, String::new())),
                    _ => text.push('\n'),
                }
            }
            '\\' if !raw => match rest.next() {
                Some('n') => found.push((line, String::new())),
                Some('\n') => {
                    line += 1;
                    while rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
                    text.push('\n');
                }
                Some('t' | 'r') => text.push(' '),
                Some(other) => text.push(other),
                None => {}
            },
            '{' if rest.next_if_eq(&'{').is_none() => {
                while rest.next().is_some_and(|c| c != '}') {}
                text.push_str("{x}");
            }
            other => text.push(other),
        }
    }
    found
}

fn is_prose(text: &str) -> bool {
    let of_letters = |word: &&str| {
        let word = word.trim_start_matches(['"', '\'', '(', '`']);
        let word = word.trim_end_matches(|c: char| c.is_ascii_punctuation());
        (word.chars().count() > 1 || word == "a")
            && word.starts_with(char::is_alphabetic)
            && word.chars().all(|c| c.is_alphabetic() || matches!(c, '-' | '\'' | '’'))
    };
    let all = text.split_whitespace().count();
    let words = text.split_whitespace().filter(of_letters).count();
    words >= FEWEST && 2 * words >= all && !text.starts_with("#!") && !text.contains('$')
}

/// The documentation of items, and of their fields and variants, from which a command's help is made.
pub(super) fn help(file: &File) -> Paragraphs {
    let mut found = Paragraphs::new();
    for at in occurrences(&file.code, "#[derive(") {
        let derives = &file.code[at..matching(&file.code, at + "#[".len() - 1)];
        if COMMAND.iter().any(|name| words(derives, name).next().is_some()) {
            let first = file.line_of(at);
            let last = file.line_of(item_end(&file.code, at));
            let above = file.text.lines().take(first - 1).collect::<Vec<_>>();
            let above = above.iter().rev().take_while(|line| line.starts_with("///") || line.starts_with("#[")).count();
            found.extend(documentation(file, first - above..last + 1));
        }
    }
    found
}

/// The paragraphs of the `///` comments on these lines.
fn documentation(file: &File, lines: Range<usize>) -> Paragraphs {
    comments(file, lines, |line| line.strip_prefix("///"))
}

/// The paragraphs of all comments.
pub(super) fn header(file: &File) -> Paragraphs {
    let lines = file.comments.lines().count();
    let mut open = false;
    comments(file, 1..lines + 1, |line| {
        let begins = line.strip_prefix("/*");
        let continues = open;
        open = (open || begins.is_some()) && !line.contains("*/");
        let body = begins.or(line.strip_prefix("//")).or(continues.then_some(line))?;
        Some(body.trim_start_matches('*').trim_end_matches('/').trim_end_matches('*'))
    })
}

/// The paragraphs of runs of lines for which `body` returns text.
fn comments<'a>(file: &'a File, lines: Range<usize>, mut body: impl FnMut(&'a str) -> Option<&'a str>) -> Paragraphs {
    let mut found = Paragraphs::new();
    let mut run: Vec<&str> = Vec::new();
    let mut end = |run: &mut Vec<&str>, next: usize| {
        let first = next - run.len();
        let text = run.iter().map(|line| line.trim()).collect::<Vec<_>>().join("\n");
        found.extend(markdown::paragraphs(&text).into_iter().map(|(line, text)| (first + line - 1, text)));
        run.clear();
    };
    for (i, line) in file.comments.lines().enumerate().take(lines.end - 1).skip(lines.start - 1) {
        let line = line.trim();
        if line.starts_with("/*") {
            end(&mut run, i + 1);
        }
        match body(line) {
            Some(text) => run.push(text),
            None => end(&mut run, i + 1),
        }
    }
    end(&mut run, lines.end);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(text: &str) -> Paragraphs {
        error_strings(&File::new("crates/x/src/a.rs", text))
    }

    fn owned(expected: &[(usize, &str)]) -> Paragraphs {
        expected.iter().map(|(line, text)| (*line, (*text).to_owned())).collect()
    }

    #[test]
    fn strings_of_four_words_are_prose() {
        let text = "f(\"the file is gone\");\nlet a = 'x';\ng(\"the file is\");\nh(r#\"that is \"not\" so\"#);";
        assert_eq!(strings(text), owned(&[(1, "the file is gone"), (4, "that is \"not\" so")]));
    }

    #[test]
    fn lines_for_machines_are_no_prose() {
        for text in [
            "cargo test --lib -p x -- a::b",
            "{\\\"a\\\": 1, \\\"b\\\": 2}",
            "cp the old file $there",
            "%d %s {a} {b} {c}",
        ] {
            assert_eq!(strings(&format!("f(\"{text}\");")), [], "{text}");
        }
    }

    #[test]
    fn strings_of_tests_are_left_out() {
        assert_eq!(strings("#[cfg(test)]\nmod tests { fn f() { g(\"the file is gone\"); } }"), []);
        let files = [
            ("crates/x/src/lib.rs", "#[cfg(test)]\nmod probe;\nmod a;"),
            ("crates/x/src/probe.rs", ""),
            ("crates/x/src/probe/inner.rs", ""),
            ("crates/x/src/a/mod.rs", "#[cfg(test)]\nmod tests;"),
            ("crates/x/src/a/tests.rs", ""),
            ("crates/x/tests/b.rs", ""),
            ("crates/x/src/a.c", ""),
        ];
        let tree = Tree::of(&files);
        let paths: Vec<&str> = product(&tree).map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["crates/x/src/lib.rs", "crates/x/src/a/mod.rs"]);
    }

    #[test]
    fn a_string_is_read_as_it_is_printed() {
        let text = "\nf(\"{path:?}: the \\\"file\\\" is \\\n    gone for {{ever}}\\nopen it once more now\");";
        let expected = owned(&[(2, "{x}: the \"file\" is \ngone for {ever}}"), (3, "open it once more now")]);
        assert_eq!(strings(text), expected);
        assert_eq!(strings("f(\", of which none are left\")"), owned(&[(1, "{x}, of which none are left")]));
    }

    #[test]
    fn help_is_documentation_of_command_items() {
        let text = "/// Not this.\nfn f() {}\n\n/// Opens the file.\n#[command(name = \"x\")]\n\
                    #[derive(Debug, clap::Args)]\nstruct A {\n    /// Its path\n    /// on disk.\n    a: u8, // no\n}\n\
                    /// Nor this.\n#[derive(Debug)]\nstruct B;";
        let expected = owned(&[(4, "Opens the file."), (8, "Its path\non disk.")]);
        assert_eq!(help(&File::new("a.rs", text)), expected);
    }

    #[test]
    fn headers_have_their_comments_read() {
        let text = "/*\n * One\n * two.\n *\n * - three\n */\nint a; /* four */\nint b; /* five */\nint c;\n// six\n";
        let expected = owned(&[(2, "One\ntwo."), (5, "three"), (7, "four"), (8, "five"), (10, "six")]);
        assert_eq!(header(&File::new("include/a.h", text)), expected);
    }
}
