//! Names of tests: short enough to be read in a list, long enough to say what is tested and what must hold.

use super::source::{File, identifier_at, occurrences, words};
use super::{Finding, Tree};

/// The most characters of a test's name.
const MOST: usize = 60;

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    long(tree)
        .map(|(file, at, name)| {
            let message = format!("`{name}` has {} characters; a test's name has at most {MOST}", name.chars().count());
            Finding::new(file, file.line_of(at), message)
        })
        .collect()
}

/// What the run says last.
pub(super) fn summary(tree: &Tree) -> String {
    format!("test names of more than {MOST} characters: {} of {}", long(tree).count(), tests(tree).count())
}

fn long(tree: &Tree) -> impl Iterator<Item = (&File, usize, &str)> {
    tests(tree).filter(|(.., name)| name.chars().count() > MOST)
}

/// The file, place and name of each function under `#[test]`.
fn tests(tree: &Tree) -> impl Iterator<Item = (&File, usize, &str)> {
    tree.files.iter().filter(|file| file.is_rust()).flat_map(|file| {
        occurrences(&file.code, "#[test]").filter_map(move |attribute| {
            let at = attribute + words(&file.code[attribute..], "fn").next()? + "fn ".len();
            Some((file, at, identifier_at(&file.code, at)))
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> Tree {
        let text =
            |length| format!("#[test]\n#[cfg(unix)]\nfn {}() {{}}\nfn {}() {{}}\n", "a".repeat(length), "b".repeat(61));
        Tree::of(&[("a.rs", &text(60)), ("b.rs", &text(61)), ("c.rs", &text(62)), ("d.md", "#[test] fn x() {}")])
    }

    #[test]
    fn long_names_are_found() {
        let found = check(&tree());
        assert!(found.len() == 2 && found.iter().all(|finding| finding.fails), "{found:#?}");
        assert!(found[0].to_string().starts_with("b.rs:3: `aaa") && found[0].message.contains("has 61 characters"));
    }

    #[test]
    fn the_summary_counts_names() {
        assert_eq!(summary(&tree()), "test names of more than 60 characters: 2 of 3");
    }
}
