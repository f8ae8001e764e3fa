//! Names of tests: short enough to be read in a list, long enough to say what is tested and what must hold.

use super::ratchet::Ratchet;
use super::source::{File, identifier_at, occurrences, words};
use super::{Finding, Tree};

/// The most characters of a test's name.
const MOST: usize = 60;

const RATCHET: Ratchet = Ratchet { what: "long test names", at: "xtask/src/tidy/test_names.rs", limit: 228 };

pub(super) fn check(tree: &Tree) -> Vec<Finding> {
    check_with(tree, &RATCHET)
}

/// The last line of the run.
pub(super) fn summary(tree: &Tree) -> String {
    format!("test names of more than {MOST} characters: {} of {}", long(tree).count(), tests(tree).count())
}

fn check_with(tree: &Tree, ratchet: &Ratchet) -> Vec<Finding> {
    let finding = |(file, at, name): (&File, usize, &str)| {
        let message = format!("`{name}` has {} characters; a test's name has at most {MOST}", name.chars().count());
        Finding::new(file, file.line_of(at), message)
    };
    ratchet.hold(long(tree).count(), long(tree).map(finding).collect())
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
        let found = check_with(&tree(), &Ratchet { limit: 1, ..RATCHET });
        assert!(found.len() == 2 && found.iter().all(|finding| finding.fails), "{found:#?}");
        assert!(found[0].to_string().starts_with("b.rs:3: `aaa") && found[0].message.contains("has 61 characters"));
    }

    #[test]
    fn the_summary_counts_names() {
        assert_eq!(summary(&tree()), "test names of more than 60 characters: 2 of 3");
    }
}
