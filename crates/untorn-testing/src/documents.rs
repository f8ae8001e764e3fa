//! The code blocks of the README, of the book and of documents in `docs/` that it includes, so that tests can run them.
//!
//! The first word after the fence is the language; words after commas say how the block is tested:
//!
//! | word | meaning |
//! |---|---|
//! | `output` | of a `text` block: what the block before it prints; `...` stands for anything within a line |
//! | `fuse` | needs a machine that lets a program have a mount of its own |
//! | `needs-NAME` | needs the program NAME |
//! | `build` | builds or installs untorn, which steps of the gate do by the same commands; no test runs the block |
//! | `host` | is about a machine on which untorn is installed, or its services and containers; no test runs the block |

use std::fs;
use std::path::{Path, PathBuf};

const README: &str = "README.md";

/// The documents outside of `book/` whose blocks are tested.
const DOCUMENTS: &[&str] = &[README, "docs/install.md", "docs/mount.md", "docs/replication.md", "docs/run.md"];

/// A document with code blocks.
#[derive(Debug)]
pub struct Document {
    /// The path from the root of the repository.
    pub path: String,
    /// Its code blocks, in order.
    pub blocks: Vec<Block>,
}

/// A code block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// The number, from 1, of the line with the opening fence.
    pub line: usize,
    /// The language, and the words after it.
    pub words: Vec<String>,
    /// The lines between the fences.
    pub code: String,
}

impl Block {
    /// Whether this is a block in a language.
    pub fn is(&self, language: &str) -> bool {
        self.words.first().is_some_and(|word| word == language)
    }

    /// Whether a word follows the language.
    pub fn has(&self, word: &str) -> bool {
        self.words.iter().skip(1).any(|other| other == word)
    }

    /// Whether no test runs the block: a step of the gate does what it says, or it is about an installed machine.
    pub fn is_only_shown(&self) -> bool {
        self.has("build") || self.has("host")
    }

    /// The programs that the block needs.
    pub fn needs(&self) -> impl Iterator<Item = &str> {
        self.words.iter().filter_map(|word| word.strip_prefix("needs-"))
    }
}

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README, documents for users and the pages of the book that have code blocks, in the order of their paths.
///
/// # Panics
///
/// Panics if they cannot be read.
pub fn documents() -> Vec<Document> {
    let mut paths: Vec<String> = DOCUMENTS.iter().map(|&path| path.to_owned()).collect();
    pages(&root(), "book/src", &mut paths);
    paths.sort();
    let read = |path: String| {
        let text = fs::read_to_string(root().join(&path)).expect("a document can be read");
        Document { blocks: blocks(&text), path }
    };
    paths.into_iter().map(read).filter(|document| !document.blocks.is_empty()).collect()
}

fn pages(root: &Path, directory: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(root.join(directory)).expect("the book is there") {
        let entry = entry.expect("a directory can be read");
        let path = format!("{directory}/{}", entry.file_name().to_string_lossy());
        if entry.file_type().expect("an entry has a type").is_dir() {
            pages(root, &path, paths);
        } else if path.ends_with(".md") {
            paths.push(path);
        }
    }
}

/// The code blocks of a text.
fn blocks(text: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Block> = None;
    for (i, line) in text.lines().enumerate() {
        match (line.trim_start().strip_prefix("```"), &mut open) {
            (Some(info), None) => {
                let words = info.split(',').map(str::trim).filter(|word| !word.is_empty());
                open = Some(Block { line: i + 1, words: words.map(str::to_owned).collect(), code: String::new() });
            }
            (Some(_), Some(_)) => found.extend(open.take()),
            (None, Some(block)) => {
                block.code.push_str(line);
                block.code.push('\n');
            }
            (None, None) => {}
        }
    }
    found
}

/// Whether a program printed what a document shows. In a line that is shown, `...` stands for anything.
pub fn shows(shown: &str, printed: &str) -> bool {
    let (shown, printed) = (shown.trim_end(), printed.trim_end());
    shown.lines().count() == printed.lines().count()
        && shown.lines().zip(printed.lines()).all(|(shown, printed)| line_shows(shown, printed))
}

fn line_shows(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split("...");
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
        last = Some(part);
    }
    // What comes after the last dots ends the line.
    last.map_or(rest.is_empty(), |last| rest.is_empty() || last.is_empty() || printed.ends_with(last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_their_words_and_lines() {
        let text = "text\n```sh,fuse,needs-sqlite3\none\ntwo\n```\n\n```text,output\nthree\n```\n";
        let found = blocks(text);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].line, found[0].code.as_str()), (2, "one\ntwo\n"));
        assert!(found[0].is("sh") && found[0].has("fuse") && !found[0].has("sh"));
        assert_eq!(found[0].needs().collect::<Vec<_>>(), ["sqlite3"]);
        assert!(found[1].is("text") && found[1].has("output"));
    }

    #[test]
    fn shown_output_may_leave_out_parts_of_lines() {
        assert!(shows("a\nb ... c\n", "a\nb 12 c\n\n"));
        assert!(shows("... end", "at the end"));
        assert!(shows("begin ...", "begin here"));
        assert!(!shows("a\nb", "a"));
        assert!(!shows("a ... c", "a b d"));
        assert!(!shows("a ... c", "a b c d"));
        assert!(!shows("a", "ab"));
    }

    /// Doctests run in the directory of a crate. A line that the book hides leads its programs to another one, and the
    /// README cannot hide any.
    #[test]
    fn the_readme_shows_rust_programs_of_the_book() {
        let visible = |code: &str| {
            code.lines().filter(|line| *line != "#" && !line.starts_with("# ")).collect::<Vec<_>>().join("\n")
        };
        let (readme, book): (Vec<_>, Vec<_>) = documents().into_iter().partition(|document| document.path == README);
        let rust = |documents: Vec<Document>| {
            let blocks = documents.into_iter().flat_map(|document| document.blocks);
            blocks.filter(|block| block.is("rust")).map(|block| visible(&block.code)).collect::<Vec<_>>()
        };
        let (readme, book) = (rust(readme), rust(book));
        assert!(!readme.is_empty() && readme.iter().all(|program| book.contains(program)), "{readme:#?}");
    }

    /// A word that is misspelt would leave a block out, or run one that needs what is not there.
    #[test]
    fn blocks_have_words_that_say_how_they_are_tested() {
        let is_known = |block: &Block, word: &str| match block.words[0].as_str() {
            "sh" => word.starts_with("needs-") || ["fuse", "build", "host"].contains(&word),
            "text" => word == "output",
            "cmake" => word == "build",
            "python" => word == "needs-torch",
            _ => false,
        };
        for document in documents() {
            for block in &document.blocks {
                let place = format!("{}:{}", document.path, block.line);
                let unknown = block.words.iter().skip(1).find(|word| !is_known(block, word));
                assert_eq!(unknown, None, "{place}: the words after the language");
                assert!(!block.is("cmake") || block.has("build"), "{place}: a block that no test runs");
            }
        }
        for path in DOCUMENTS {
            assert!(documents().iter().any(|document| document.path == *path), "{path} has no blocks");
        }
    }

    #[test]
    fn the_book_has_blocks_of_every_kind() {
        let all: Vec<Block> = documents().into_iter().flat_map(|document| document.blocks).collect();
        assert!(["rust", "sh", "c", "python"].iter().all(|language| all.iter().any(|block| block.is(language))));
        assert!(all.iter().any(|block| block.has("output")));
    }
}
