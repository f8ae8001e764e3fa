//! Sentences as a colleague would say them: none opens inverted, and none has more than forty words.
//!
//! There are two areas: the documents, and the messages. Messages are the strings that a program says when something
//! fails, the help of commands, and the comments of the C headers. [`prose`](super::prose) says what a sentence is, and
//! what an inverted opening. While an area keeps its [limits](Limits), each sentence that breaks a rule is a warning;
//! beyond a limit each sentence that breaks that rule fails.

use super::extract::{self, Paragraphs};
use super::prose::{MOST, Sentence, Tally, sentences};
use super::ratchet::Ratchet;
use super::source::File;
use super::{Finding, Tree, markdown};

const HERE: &str = "xtask/src/tidy/language.rs";

/// The limits of an area.
struct Limits {
    /// The percentage of sentences that may open inverted.
    inverted_percent: f64,
    long: Ratchet,
}

const DOCUMENTS: Limits =
    Limits { inverted_percent: 3.0, long: Ratchet { what: "long sentences in documents", at: HERE, limit: 0 } };
const MESSAGES: Limits =
    Limits { inverted_percent: 1.0, long: Ratchet { what: "long sentences in messages", at: HERE, limit: 17 } };

/// Documents that are not checked, and why. One that breaks no rule needs no exemption.
const EXEMPT: &[(&str, &str)] = &[];

/// The sentences of one area, each with its file.
type Sentences<'a> = Vec<(&'a File, Sentence)>;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, &DOCUMENTS, &MESSAGES, EXEMPT)
}

fn check_with(tree: &Tree, documents: &Limits, messages: &Limits, exempt: &[(&str, &str)]) -> Vec<Finding> {
    let mut findings = judge(&self::documents(tree, exempt), documents);
    findings.extend(judge(&self::messages(tree), messages));
    for (path, _) in exempt {
        let why = match tree.find(path) {
            None => "is not there",
            Some(file) if !prose_of(file).iter().any(|(_, sentence)| breaks(sentence)) => "breaks no rule any more",
            Some(_) => continue,
        };
        findings.push(Finding::at(HERE, 1, format!("{path} {why}; remove it from EXEMPT")));
    }
    findings
}

/// The last lines of the run: how many sentences there are, and how many break a rule.
pub(super) fn summary(tree: &Tree) -> String {
    let (documents, messages) = (tally(&documents(tree, EXEMPT)), tally(&messages(tree)));
    format!(
        "inverted openings: docs {} of {} sentences ({:.1} %), errors and help {} of {} ({:.1} %)\n\
         sentences of more than {MOST} words: docs {}, errors and help {}",
        documents.inverted,
        documents.sentences,
        documents.percent(),
        messages.inverted,
        messages.sentences,
        messages.percent(),
        documents.long,
        messages.long
    )
}

fn documents<'a>(tree: &'a Tree, exempt: &[(&str, &str)]) -> Sentences<'a> {
    let documents = tree.files.iter().filter(|file| file.path.ends_with(".md"));
    documents.filter(|file| !exempt.iter().any(|(path, _)| *path == file.path)).flat_map(prose_of).collect()
}

fn prose_of(document: &File) -> Sentences<'_> {
    sentences_of(document, markdown::paragraphs(&document.text))
}

fn messages(tree: &Tree) -> Sentences<'_> {
    let headers = tree.files.iter().filter(|file| file.path.starts_with("include/") && file.path.ends_with(".h"));
    let mut found: Sentences<'_> = headers.flat_map(|file| sentences_of(file, extract::header(file))).collect();
    for file in extract::product(tree) {
        found.extend(sentences_of(file, extract::error_strings(file)));
        found.extend(sentences_of(file, extract::help(file)));
    }
    found
}

fn sentences_of(file: &File, paragraphs: Paragraphs) -> Sentences<'_> {
    let sentences = paragraphs.iter().flat_map(|(line, text)| sentences(text, *line));
    sentences.map(|sentence| (file, sentence)).collect()
}

fn tally(area: &Sentences<'_>) -> Tally {
    let mut tally = Tally::default();
    area.iter().for_each(|(_, sentence)| tally.add(sentence));
    tally
}

fn breaks(sentence: &Sentence) -> bool {
    sentence.inverted_opening().is_some() || sentence.is_long()
}

fn judge(area: &Sentences<'_>, limits: &Limits) -> Vec<Finding> {
    let tally = tally(area);
    let (mut inverted, mut long) = (Vec::new(), Vec::new());
    for (file, sentence) in area {
        if let Some(opening) = sentence.inverted_opening() {
            let message = format!("begins with \"{opening}\", not with the one that acts: {}", sentence.start());
            let fails = tally.percent() > limits.inverted_percent;
            inverted.push(Finding::new(file, sentence.line, message).failing_if(fails));
        }
        if sentence.is_long() {
            let message = format!("{} words, at most {MOST}: {}", sentence.words(), sentence.start());
            long.push(Finding::new(file, sentence.line, message));
        }
    }
    inverted.extend(limits.long.hold(tally.long, long));
    inverted
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Ratchet = Ratchet { what: "long sentences", at: HERE, limit: 0 };
    const STRICT: Limits = Limits { inverted_percent: 0.0, long: LONG };
    const MILD: Limits = Limits { inverted_percent: 50.0, long: Ratchet { limit: 1, ..LONG } };

    fn long() -> String {
        format!("The reader {}.\n", "waits and ".repeat(20))
    }

    fn check_all(files: &[(&str, &str)], documents: &Limits) -> Vec<Finding> {
        check_with(&Tree::of(files), documents, &STRICT, &[])
    }

    #[track_caller]
    fn only(path: &str, text: &str, expected: &str) {
        let found = check_all(&[(path, text)], &STRICT);
        assert!(found.len() == 1 && found[0].fails && found[0].to_string().contains(expected), "{found:#?}");
    }

    #[test]
    fn plain_sentences_are_fine() {
        let found = check_all(
            &[
                ("docs/a.md", "# What it is\n\nThe reader takes no lock. What does it take then?\n"),
                ("crates/x/src/a.rs", "// What is not a message.\nfn f() { g(\"the file is gone; open it again\") }\n"),
                ("crates/x/tests/a.rs", "fn f() { g(\"what is in tests is free\") }\n"),
            ],
            &STRICT,
        );
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn an_inverted_opening_is_found_in_each_area() {
        only("docs/a.md", "One.\n\nWhat was\nsynced is kept.\n", "docs/a.md:3: begins with \"what\"");
        only("crates/x/src/a.rs", "f(\"of this nothing is left\");\n", "a.rs:1: begins with \"of\"");
        only("xtask/src/a.rs", "/// Who reads it waits.\n#[derive(Args)]\nstruct A;\n", "a.rs:1: begins with \"who\"");
        only("include/a.h", "/* Where it fails it\n * returns. */\n", "a.h:1: begins with \"where\"");
    }

    #[test]
    fn a_long_sentence_is_found() {
        only("docs/a.md", &long(), "docs/a.md:1: 42 words, at most 40: The reader waits and waits and ...");
    }

    #[test]
    fn within_the_limits_all_are_warnings() {
        let text = format!("What is there stays there.\n\n{}", long());
        let found = check_all(&[("a.md", &text)], &MILD);
        assert!(found.len() == 2 && found.iter().all(|finding| !finding.fails), "{found:#?}");
    }

    #[test]
    fn beyond_a_limit_each_sentence_fails() {
        let text = format!("What is there stays there. Who reads it does wait.\n\n{}", long());
        let found = check_all(&[("a.md", &text)], &MILD);
        assert_eq!(found.iter().map(|finding| finding.fails).collect::<Vec<_>>(), [true, true, false]);
        let found = check_all(&[("a.md", &format!("{}\n{}", long(), long()))], &MILD);
        assert!(found.len() == 2 && found.iter().all(|finding| finding.fails), "{found:#?}");
    }

    #[test]
    fn an_exemption_must_be_needed() {
        let check = |text| check_with(&Tree::of(&[("a.md", text)]), &STRICT, &STRICT, &[("a.md", "it is old")]);
        assert!(check("What is there stays there.\n").is_empty());
        let found = check("The reader takes no lock.\n");
        assert!(found.len() == 1 && found[0].to_string().contains("a.md breaks no rule any more"), "{found:#?}");
        let found = check_with(&Tree::of(&[]), &STRICT, &STRICT, &[("a.md", "it is old")]);
        assert!(found.len() == 1 && found[0].to_string().contains("a.md is not there"), "{found:#?}");
    }

    #[test]
    fn the_summary_counts_both_areas() {
        let tree = Tree::of(&[
            ("docs/a.md", "What is there stays there. The reader takes no lock. It waits for no one.\n"),
            ("crates/x/src/a.rs", "f(\"the file is gone\");\n"),
        ]);
        let expected = "inverted openings: docs 1 of 3 sentences (33.3 %), errors and help 0 of 1 (0.0 %)\n";
        assert!(summary(&tree).starts_with(expected), "{}", summary(&tree));
    }
}
