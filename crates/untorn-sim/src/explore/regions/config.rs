//! Configurations and cases of the exploration of region stores, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::Order;
use untorn::medium::{Barrier, MediumClass};

use super::super::config::medium_word;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) medium: MediumClass,
    pub(super) order: Order,
    /// Whether pages are stored to in mapped regions, or written by copies.
    pub(super) mapped: bool,
    /// The store that must be convicted.
    pub(super) canary: bool,
}

impl Config {
    /// Every configuration on these media.
    pub(super) fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
        let orders = if canary { vec![Order::OneFence] } else { vec![Order::OneFence, Order::TwoFence] };
        let faces = if canary { &[false][..] } else { &[false, true][..] };
        let on = |order| {
            let with = move |&medium| faces.iter().map(move |&mapped| Config { medium, order, mapped, canary });
            media.iter().flat_map(with)
        };
        orders.into_iter().flat_map(on).collect()
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
        let engine = match (self.canary, self.mapped) {
            (true, _) => "in-place",
            (_, true) => "snapshot-mapped",
            _ => "snapshot",
        };
        write!(f, "{}/{engine}/{}", medium_word(self.medium), self.order)
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
        let [medium, engine, order] = words[..] else {
            return Err(format!("{text:?} does not name a configuration: three words between slashes"));
        };
        let config = Config {
            medium: match medium {
                "pmem" => MediumClass::PersistentMemory,
                "block" => MediumClass::Block,
                other => return Err(format!("{other:?} is no fault model; use pmem or block")),
            },
            canary: match engine {
                "snapshot" | "snapshot-mapped" => false,
                "in-place" => true,
                other => {
                    return Err(format!(
                        "{other:?} is no engine of regions; use snapshot, snapshot-mapped or in-place"
                    ));
                }
            },
            mapped: engine == "snapshot-mapped",
            order: order.parse()?,
        };
        let word = parts.next().unwrap_or_default();
        let seed = word.strip_prefix("seed-").and_then(|seed| seed.parse().ok());
        let seed = seed.ok_or_else(|| format!("{word:?} names no script; use seed-N"))?;
        let muted = match parts.next() {
            None => None,
            Some(word) => {
                let name = word.strip_prefix("mute-").unwrap_or(word);
                let known = untorn::engine::region_barriers().into_iter().find(|barrier| barrier.name() == name);
                Some(known.ok_or_else(|| format!("the region store has no barrier {name:?}"))?)
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
        assert_eq!(all.len(), 8 + 2);
        for config in all {
            for muted in [None, untorn::engine::region_barriers().first().copied()] {
                let case = Case { config, seed: 42, muted };
                assert_eq!(case.to_string().parse(), Ok(case));
            }
        }
    }
}
