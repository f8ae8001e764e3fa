//! Configurations and cases of the exploration of redundancy, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::StripeLayout;
use untorn::medium::{Barrier, MediumClass};

use super::super::config::medium_word;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) medium: MediumClass,
    /// Stores are found by a tracker that forgets with its process; else they are announced.
    pub(super) tracked: bool,
    pub(super) layout: StripeLayout,
    /// The program that must be convicted.
    pub(super) canary: bool,
}

impl Config {
    /// Every configuration on these media.
    pub(super) fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
        let ways: &[bool] = if canary { &[false] } else { &[false, true] };
        let mut all = Vec::new();
        for &tracked in ways {
            for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
                all.extend(media.iter().map(|&medium| Config { medium, tracked, layout, canary }));
            }
        }
        all
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
        let engine = if self.canary { "careless" } else { "redundancy" };
        let way = if self.tracked { "tracked" } else { "announced" };
        write!(f, "{}/{engine}/{way}/{}", medium_word(self.medium), self.layout)
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
        let [medium, engine, way, layout] = words[..] else {
            return Err(format!("{text:?} does not name a configuration: four words between slashes"));
        };
        let config = Config {
            medium: match medium {
                "pmem" => MediumClass::PersistentMemory,
                "block" => MediumClass::Block,
                other => return Err(format!("{other:?} is no fault model; use pmem or block")),
            },
            canary: match engine {
                "redundancy" => false,
                "careless" => true,
                other => return Err(format!("{other:?} is neither redundancy nor careless")),
            },
            tracked: match way {
                "announced" => false,
                "tracked" => true,
                other => return Err(format!("{other:?} is no way to find stores; use announced or tracked")),
            },
            layout: layout.parse()?,
        };
        let word = parts.next().unwrap_or_default();
        let seed = word.strip_prefix("seed-").and_then(|seed| seed.parse().ok());
        let seed = seed.ok_or_else(|| format!("{word:?} names no script; use seed-N"))?;
        let muted = match parts.next() {
            None => None,
            Some(word) => {
                let name = word.strip_prefix("mute-").unwrap_or(word);
                let known = untorn::engine::redundancy_barriers().into_iter().find(|barrier| barrier.name() == name);
                Some(known.ok_or_else(|| format!("redundancy has no barrier {name:?}"))?)
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
        assert_eq!(all.len(), 8 + 4);
        for config in all {
            for muted in [None, untorn::engine::redundancy_barriers().first().copied()] {
                let case = Case { config, seed: 42, muted };
                assert_eq!(case.to_string().parse(), Ok(case));
            }
        }
    }
}
