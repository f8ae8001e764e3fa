//! Configurations and cases of the exploration of write caches, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::Durability;
use untorn::testing::storage::{Barrier, MediumClass};

use super::super::config::{medium_of, medium_word};
use super::super::life::Finding;
use super::super::scripted::{Case, Scripted};
use super::super::shared::Shared;
use super::life;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) medium: MediumClass,
    pub(super) durability: Durability,
    /// Whether files are written through.
    pub(super) through: bool,
    /// No log at all: it must be convicted.
    pub(super) canary: bool,
}

impl Scripted for Config {
    const WORDS: &'static [&'static str] = &["cache", "cache-through", "no-cache"];
    const NOUN: &'static str = "write cache";
    const SALT: u64 = 0x6361_6368;
    const STATES: u64 = 1500;

    fn barriers() -> Vec<Barrier> {
        untorn::testing::cache_barriers()
    }

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        life::run(case, shared)
    }

    fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
        let all = [Durability::PerWrite, Durability::PerCommit];
        let durabilities = if canary { &all[..1] } else { &all };
        let ways: &[bool] = if canary { &[false] } else { &[false, true] };
        let of = |&through| {
            let of = move |&durability| media.iter().map(move |&medium| Config { medium, durability, through, canary });
            durabilities.iter().flat_map(of)
        };
        ways.iter().flat_map(of).collect()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = match (self.canary, self.through) {
            (true, _) => "no-cache",
            (false, true) => "cache-through",
            (false, false) => "cache",
        };
        let durability = if self.durability == Durability::PerWrite { "write" } else { "fsync" };
        write!(f, "{}/{engine}/{durability}", medium_word(self.medium))
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [medium, engine, durability] = words[..] else {
            return Err(format!("{text:?} is not a configuration: expected three words separated by slashes"));
        };
        Ok(Config {
            medium: medium_of(medium)?,
            canary: match engine {
                "cache" | "cache-through" => false,
                "no-cache" => true,
                other => return Err(format!("{other:?} is not a write cache; use cache, cache-through or no-cache")),
            },
            through: engine == "cache-through",
            durability: match durability {
                "write" => Durability::PerWrite,
                "fsync" => Durability::PerCommit,
                other => return Err(format!("{other:?} is not a durability; use write or fsync")),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scripted::tokens_survive;
    use super::*;

    #[test]
    fn a_case_survives_its_token() {
        tokens_survive::<Config>(8, 2);
    }
}
