//! Options whose values are words of the library.

use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use untorn::options::{Layout, Prefer};
use untorn::{Durability, EngineKind};

/// A parser for one of the library's lists of values, so that help and completions show them.
pub(super) fn words<T>(list: &'static [&'static str]) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(list).try_map(|word| word.parse::<T>())
}

const ENGINES: &[&str] = &["auto", "reflection", "hybrid-log", "shadow", "passthrough"];
const LAYOUTS: &[&str] = &["dense", "sparse", "auto"];
const DURABILITIES: &[&str] = &["write", "commit"];
const SIDES: &[&str] = &["file", "sidecar"];

pub(super) fn engines() -> impl TypedValueParser<Value = EngineKind> {
    words(ENGINES)
}

pub(super) fn layouts() -> impl TypedValueParser<Value = Layout> {
    words(LAYOUTS)
}

pub(super) fn durabilities() -> impl TypedValueParser<Value = Durability> {
    words(DURABILITIES)
}

pub(super) fn sides() -> impl TypedValueParser<Value = Prefer> {
    words(SIDES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_offered_is_one_the_library_knows() {
        assert!(ENGINES.iter().all(|word| word.parse::<EngineKind>().is_ok()));
        assert!(LAYOUTS.iter().all(|word| word.parse::<Layout>().is_ok()));
        assert!(DURABILITIES.iter().all(|word| word.parse::<Durability>().is_ok()));
        assert!(SIDES.iter().all(|word| word.parse::<Prefer>().is_ok()));
    }
}
