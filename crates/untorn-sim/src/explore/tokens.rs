//! The words of which the token of a case consists.

use untorn::testing::storage::MediumClass;

/// The fault models.
pub(super) const MEDIA: &[(&str, MediumClass)] =
    &[("pmem", MediumClass::PersistentMemory), ("block", MediumClass::Block)];

/// The words of a configuration, as many as it has.
pub(super) fn words<const N: usize>(text: &str) -> Result<[&str; N], String> {
    let words: Vec<&str> = text.split('/').collect();
    words.try_into().map_err(|_| format!("{text:?} is not a configuration: expected {N} words separated by slashes"))
}

/// The value that a word stands for.
pub(super) fn value_of<T: Copy>(table: &[(&str, T)], word: &str) -> Result<T, String> {
    let found = table.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = table.iter().map(|(name, _)| *name).collect();
        format!("{word:?} is none of the words allowed here: {}", names.join(", "))
    })
}

/// The word for a value, which the table has.
pub(super) fn word_of<T: PartialEq>(table: &[(&'static str, T)], value: &T) -> &'static str {
    table.iter().find(|(_, known)| known == value).map_or("", |(name, _)| name)
}
