//! Configurations and cases of the exploration of write caches, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::Durability;
use untorn::medium::{Barrier, MediumClass};

use super::super::config::medium_word;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) medium: MediumClass,
    pub(super) durability: Durability,
    /// No log at all: it must be convicted.
    pub(super) canary: bool,
}

impl Config {
    /// Every configuration on these media.
    pub(super) fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
        let all = [Durability::PerWrite, Durability::PerCommit];
        let durabilities = if canary { &all[..1] } else { &all };
        let of = |&durability| media.iter().map(move |&medium| Config { medium, durability, canary });
        durabilities.iter().flat_map(of).collect()
    }
}

/// A configuration, the seed of a script, and perhaps a barrier that is muted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Case {
    pub(super) config: Config,
    pub(super) seed: u64,
    pub(super) muted: Option<Barrier>,
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = if self.canary { "no-cache" } else { "cache" };
        let durability = if self.durability == Durability::PerWrite { "write" } else { "fsync" };
        write!(f, "{}/{engine}/{durability}", medium_word(self.medium))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:seed-{}", self.config, self.seed)?;
        match self.muted {
            Some(barrier) => write!(f, ":mute-{}", barrier.name()),
            None => Ok(()),
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let words: Vec<&str> = parts.next().unwrap_or_default().split('/').collect();
        let [medium, engine, durability] = words[..] else {
            return Err(format!("{text:?} does not name a configuration: three words between slashes"));
        };
        let config = Config {
            medium: match medium {
                "pmem" => MediumClass::PersistentMemory,
                "block" => MediumClass::Block,
                other => return Err(format!("{other:?} is no fault model; use pmem or block")),
            },
            canary: match engine {
                "cache" => false,
                "no-cache" => true,
                other => return Err(format!("{other:?} is no write cache; use cache or no-cache")),
            },
            durability: match durability {
                "write" => Durability::PerWrite,
                "fsync" => Durability::PerCommit,
                other => return Err(format!("{other:?} is no durability; use write or fsync")),
            },
        };
        let word = parts.next().unwrap_or_default();
        let seed = word.strip_prefix("seed-").and_then(|seed| seed.parse().ok());
        let seed = seed.ok_or_else(|| format!("{word:?} names no script; use seed-N"))?;
        let muted = match parts.next() {
            None => None,
            Some(word) => {
                let name = word.strip_prefix("mute-").unwrap_or(word);
                let known = untorn::engine::cache_barriers().into_iter().find(|barrier| barrier.name() == name);
                Some(known.ok_or_else(|| format!("the write cache has no barrier {name:?}"))?)
            }
        };
        Ok(Case { config, seed, muted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_survives_its_token() {
        let media = [MediumClass::PersistentMemory, MediumClass::Block];
        let all = [Config::all(&media, false), Config::all(&media, true)].concat();
        assert_eq!(all.len(), 4 + 2);
        for config in all {
            for muted in [None, untorn::engine::cache_barriers().first().copied()] {
                let case = Case { config, seed: 42, muted };
                assert_eq!(case.to_string().parse(), Ok(case));
            }
        }
    }
}
