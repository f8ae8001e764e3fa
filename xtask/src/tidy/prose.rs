//! English taken apart just enough to count: sentences, their words, how each opens.
//!
//! The input is one paragraph: a paragraph of a document, a doc comment, an error string. This module alone decides
//! what counts as an inverted opening:
//!
//! - A sentence opens inverted if its first words are in [`OPENERS`], a preposition with a relative pronoun ("to whom",
//!   "in which"), a verb after "such" or "neither", or a clause after "nobody" ("nobody that reads").
//! - A question never does: it ends with a question mark.
//! - Neither does a label with an infinitive: "Where to put the files".
//! - Only the start of a sentence counts. A clause after a colon, a semicolon or a comma may open in any way.
//! - Fewer than [`FEWEST`] words are a label or a table's cell, not a sentence.
//! - A code span is one word, and so is a link's destination; neither ends a sentence.

/// A text with fewer words is no sentence.
pub(super) const FEWEST: usize = 4;
/// A sentence with more words is too long.
pub(super) const MOST: usize = 40;
/// The number of words that are shown of a sentence that breaks a rule.
const SHOWN: usize = 6;

/// Words that open a declarative sentence only if it is inverted, or has no actor.
const OPENERS: &[&str] = &[
    "nor",
    "of",
    "so",
    "what",
    "whatever",
    "where",
    "whereof",
    "wherever",
    "which",
    "whichever",
    "who",
    "whoever",
    "whom",
    "whomever",
    "whose",
];
/// Openings that begin like one of [`OPENERS`] and are ordinary all the same.
const ORDINARY: &[&str] = &["of course", "so far"];
/// These open a sentence inverted in front of a [relative pronoun](RELATIVES).
const PREPOSITIONS: &[&str] = &[
    "about", "after", "against", "as", "at", "before", "beside", "between", "by", "during", "for", "from", "in",
    "into", "like", "on", "onto", "out", "over", "past", "than", "through", "to", "under", "until", "upon", "with",
    "within", "without",
];
const RELATIVES: &[&str] =
    &["nobody", "what", "whatever", "which", "whichever", "who", "whoever", "whom", "whomever", "whose"];
/// These open a sentence inverted after "such" or "neither": "such is the price".
const VERBS: &[&str] = &[
    "am", "are", "can", "cannot", "could", "did", "do", "does", "had", "has", "have", "is", "may", "might", "must",
    "should", "was", "were", "will", "would",
];
/// Words whose period ends no sentence, without that period.
const ABBREVIATIONS: &[&str] = &["approx", "cf", "e.g", "eq", "fig", "i.e", "incl", "no", "resp", "sec", "vol", "vs"];

/// One sentence of a paragraph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sentence {
    /// The line on which it begins.
    pub(super) line: usize,
    /// The sentence as it is written, in one line.
    pub(super) text: String,
    /// The same with code spans and destinations of links masked.
    masked: String,
}

impl Sentence {
    /// How many words it has; a word holds at least one letter or digit.
    pub(super) fn words(&self) -> usize {
        self.masked.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
    }

    /// Its first words, to find it by.
    pub(super) fn start(&self) -> String {
        let words: Vec<&str> = self.text.split(' ').collect();
        let start = words[..words.len().min(SHOWN)].join(" ");
        if words.len() > SHOWN { format!("{start} ...") } else { start }
    }

    pub(super) fn is_long(&self) -> bool {
        self.words() > MOST
    }

    /// The words with which it opens inverted, if it does.
    pub(super) fn inverted_opening(&self) -> Option<String> {
        if self.masked.trim_end_matches(closes).ends_with('?') {
            return None;
        }
        let mut words = self.masked.split_whitespace().map(bare).filter(|word| !word.is_empty());
        let (first, second) = (words.next()?, words.next().unwrap_or_default());
        let both = format!("{first} {second}");
        if ORDINARY.contains(&both.as_str()) {
            return None;
        }
        if OPENERS.contains(&first.as_str()) {
            return (second != "to").then_some(first);
        }
        let inverted = match first.as_str() {
            "such" | "neither" => VERBS.contains(&second.as_str()),
            "nobody" => second == "that" || RELATIVES.contains(&second.as_str()),
            _ => PREPOSITIONS.contains(&first.as_str()) && RELATIVES.contains(&second.as_str()),
        };
        inverted.then_some(both)
    }
}

/// How many sentences there are, and how many break a rule.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) sentences: usize,
    pub(super) inverted: usize,
    pub(super) long: usize,
}

impl Tally {
    pub(super) fn add(&mut self, sentence: &Sentence) {
        self.sentences += 1;
        self.inverted += usize::from(sentence.inverted_opening().is_some());
        self.long += usize::from(sentence.is_long());
    }

    /// The share of inverted openings in percent.
    pub(super) fn percent(&self) -> f64 {
        if self.sentences == 0 { 0.0 } else { 100.0 * self.inverted as f64 / self.sentences as f64 }
    }
}

/// The sentences of `paragraph`, which begins on line `line`.
pub(super) fn sentences(paragraph: &str, line: usize) -> Vec<Sentence> {
    let original: Vec<char> = paragraph.chars().collect();
    let masked = mask(&original);
    let mut found = Vec::new();
    let mut start = 0;
    for end in 1..=masked.len() {
        if end == masked.len() || ends_sentence(&masked[..end], masked[end]) {
            let begins = (start..end).find(|&at| !original[at].is_whitespace()).unwrap_or(end);
            let sentence = Sentence {
                line: line + original[..begins].iter().filter(|&&c| c == '\n').count(),
                text: one_line(&original[start..end]),
                masked: one_line(&masked[start..end]),
            };
            if sentence.words() >= FEWEST {
                found.push(sentence);
            }
            start = end;
        }
    }
    found
}

/// Whether a sentence ends with `before`, where `next` follows: a full stop, closing marks, white space.
fn ends_sentence(before: &[char], next: char) -> bool {
    if !next.is_whitespace() {
        return false;
    }
    let open = before.iter().rposition(|&c| !closes(c)).map_or(0, |at| at + 1);
    match before[..open].last() {
        Some('?' | '!') => true,
        Some('.') => {
            let word = before[..open - 1].rsplit(|c| c.is_whitespace()).next().unwrap_or_default();
            let word: String = word.iter().collect::<String>().to_lowercase();
            let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
            !before[..open - 1].ends_with(&['.']) && !ABBREVIATIONS.contains(&word)
        }
        _ => false,
    }
}

/// Marks that may stand between a full stop and the next sentence.
fn closes(c: char) -> bool {
    matches!(c, ')' | ']' | '"' | '\'' | '*' | '_' | '”' | '’')
}

/// A word in lower case without the marks around it.
fn bare(word: &str) -> String {
    word.trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase()
}

/// Puts an `x` for each character of a code span or of a link's destination, character for character.
fn mask(text: &[char]) -> Vec<char> {
    let mut masked = text.to_vec();
    let mut at = 0;
    while at < text.len() {
        let ticks = text[at..].iter().take_while(|&&c| c == '`').count();
        let end = if ticks > 0 {
            let fence = vec!['`'; ticks];
            let body = at + ticks;
            text[body..].windows(ticks).position(|part| part == fence).map(|i| body + i + ticks)
        } else if text[at..].starts_with(&[']', '(']) {
            text[at..].iter().position(|&c| c == ')').map(|i| at + i + 1)
        } else {
            None
        };
        match end {
            Some(end) => {
                masked[at..end].fill('x');
                at = end;
            }
            None => at += ticks.max(1),
        }
    }
    masked
}

fn one_line(text: &[char]) -> String {
    text.iter().collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(paragraph: &str) -> Vec<String> {
        sentences(paragraph, 1).into_iter().map(|sentence| sentence.text).collect()
    }

    fn opening(text: &str) -> Option<String> {
        sentences(text, 1).first().and_then(Sentence::inverted_opening)
    }

    #[test]
    fn full_stops_end_sentences() {
        let text = "**One is the first.** Is two the second? (Three is in brackets.) untorn begins in lower case!";
        let expected =
            ["**One is the first.**", "Is two the second?", "(Three is in brackets.)", "untorn begins in lower case!"];
        assert_eq!(texts(text), expected);
    }

    #[test]
    fn other_points_end_no_sentence() {
        for text in [
            "It takes 2.5 s, e.g. on a disk, i.e. on ext4 in docs/a.md and so on",
            "It calls `a. B? c` and [see here](a. b) before it ends.",
            "It waits ... and then it goes on",
        ] {
            assert_eq!(texts(text), [text]);
        }
    }

    #[test]
    fn labels_are_no_sentences() {
        assert_eq!(texts("What it does. Of no use. The reader takes a lock."), ["The reader takes a lock."]);
    }

    #[test]
    fn a_sentence_has_the_line_it_begins_on() {
        let lines: Vec<usize> =
            sentences("The first one is\nlong. The second\none begins there.\nThe third does here.", 7)
                .iter()
                .map(|sentence| sentence.line)
                .collect();
        assert_eq!(lines, [7, 8, 10]);
    }

    #[test]
    fn code_spans_and_links_are_single_words() {
        let words = |text| sentences(text, 1)[0].words();
        assert_eq!(words("Run `cargo xtask tidy` — and [see the docs](docs/a.md) then."), 7);
        assert_eq!(words("``a ` b c`` is one word."), 4);
        assert_eq!(words("An open ` tick is none."), 5);
    }

    #[test]
    fn inverted_openings_are_found() {
        for (text, expected) in [
            ("Who renames a file demotes it.", "who"),
            ("Whoever opens it waits.", "whoever"),
            ("**Of a region** the pages are there.", "of"),
            ("What was synced is kept.", "what"),
            ("Where the kernel can't, untorn does.", "where"),
            ("Nor does the reader wait.", "nor"),
            ("So it is after a crash.", "so"),
            ("Such is the price of it.", "such is"),
            ("Neither does a reader wait.", "neither does"),
            ("Nobody that reads takes locks.", "nobody that"),
            ("To nobody is it told.", "to nobody"),
            ("In which case it fails.", "in which"),
            ("By whom it was written is noted.", "by whom"),
            ("\"what is there is kept\"", "what"),
        ] {
            assert_eq!(opening(text).as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn questions_and_ordinary_openings_are_not() {
        for text in [
            "Who renames the file first?",
            "**What happens after a crash?**",
            "Of course the reader waits.",
            "So far no reader waits.",
            "Where to put the files.",
            "Such a page is read again.",
            "Neither the reader nor the writer waits.",
            "Nobody else holds the lock.",
            "In the log the entries stay.",
            "Recovery reads what was written.",
            "The server waits: who comes first is served.",
            "`what` is a word of the table.",
            "Somewhere a reader holds it.",
        ] {
            assert_eq!(opening(text), None, "{text}");
        }
    }

    #[test]
    fn a_sentence_is_shown_by_its_first_words() {
        let start = |text| sentences(text, 1)[0].start();
        assert_eq!(start("The reader `takes x` no lock."), "The reader `takes x` no lock.");
        assert_eq!(start("The reader takes no lock\nat all."), "The reader takes no lock at ...");
    }

    #[test]
    fn more_than_forty_words_are_too_many() {
        let sentence = |words: usize| format!("{}.", vec!["word"; words].join(" "));
        assert!(!sentences(&sentence(MOST), 1)[0].is_long());
        assert!(sentences(&sentence(MOST + 1), 1)[0].is_long());
    }

    #[test]
    fn a_tally_counts_each_rule() {
        let mut tally = Tally::default();
        assert_eq!(tally.percent(), 0.0);
        for sentence in
            sentences("Who reads it waits. The reader holds a lock. It goes on and ends. Is it over yet?", 1)
        {
            tally.add(&sentence);
        }
        assert_eq!(tally, Tally { sentences: 4, inverted: 1, long: 0 });
        assert_eq!(tally.percent(), 25.0);
    }
}
