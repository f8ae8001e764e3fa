//! Configurations of an exploration, and their names in replay tokens.

use std::fmt;
use std::str::FromStr;

use untorn::options::{Layout, LogPolicy, Order, ReadPolicy};
use untorn::testing::storage::MediumClass;
use untorn::{Durability, EngineKind, Options};

use crate::rng::Rng;

/// The data file of every run.
pub(crate) const PATH: &str = "/data";

/// The most a file grows to while open, in bytes.
pub(crate) const MAX_LEN: u64 = 64 << 10;

/// The most bytes a log may take: so few that it fills all the time, and as many as the longest epoch needs.
const LOG_SIZE: u64 = 512 << 10;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The fault model.
    pub medium: MediumClass,
    /// The engine.
    pub engine: EngineKind,
    /// When writes are durable.
    pub durability: Durability,
    /// Fences of a write.
    pub order: Order,
    /// The sidecar's layout.
    pub layout: Layout,
    /// The policy of reads.
    pub read_policy: ReadPolicy,
    /// The policy of the hybrid log.
    pub log_policy: LogPolicy,
    /// Virtual threads, 1 or 2.
    pub threads: u8,
}

impl Config {
    /// Every configuration of an engine on these media. Neighbours differ in the medium first, so that a short run sees
    /// all media.
    pub fn all(engine: EngineKind, media: &[MediumClass]) -> Vec<Config> {
        // An option that an engine ignores is not varied.
        let (layouts, read_policies, log_policies): (&[_], &[_], &[_]) = match engine {
            EngineKind::HybridLog => {
                (&[Layout::Dense], &[ReadPolicy::Gather], &[LogPolicy::Redo, LogPolicy::Undo, LogPolicy::Hybrid])
            }
            _ => (&[Layout::Dense, Layout::Sparse], &[ReadPolicy::Gather, ReadPolicy::Deploy], &[LogPolicy::Hybrid]),
        };
        let mut all = Vec::new();
        for threads in [1, 2] {
            for &layout in layouts {
                for &read_policy in read_policies {
                    for &log_policy in log_policies {
                        for order in [Order::OneFence, Order::TwoFence] {
                            for durability in [Durability::PerWrite, Durability::PerCommit] {
                                all.extend(media.iter().map(|&medium| Config {
                                    medium,
                                    engine,
                                    durability,
                                    order,
                                    layout,
                                    read_policy,
                                    log_policy,
                                    threads,
                                }));
                            }
                        }
                    }
                }
            }
        }
        // On a block device, one policy is refused, and the other does the same as redo.
        all.retain(|config| {
            engine != EngineKind::HybridLog
                || config.medium == MediumClass::PersistentMemory
                || config.log_policy == LogPolicy::Redo
        });
        all
    }

    /// Whether flushes can fail here and leave the cache and the medium at odds. One thread at a time: the latch that
    /// every handle has blocks outside the medium, where a schedule cannot go on.
    pub(crate) fn loses_flushes(&self) -> bool {
        self.medium == MediumClass::Block && self.threads == 1
    }

    /// The options to open a file with. The record area is so small that it fills all the time; with the fewest
    /// slots, a commit over many pages does not even fit. `redo_from` is the share of writes from which on the hybrid
    /// policy uses redo.
    pub(crate) fn options(&self, slots: u32, redo_from: u8) -> Options {
        Options::new()
            .engine(self.engine)
            .durability(self.durability)
            .order(self.order)
            .layout(self.layout)
            .read_policy(self.read_policy)
            .log_policy(self.log_policy)
            .redo_threshold_percent(redo_from)
            .record_area(2, if self.engine == EngineKind::HybridLog { 4 } else { slots })
            .log_size(LOG_SIZE)
            .checkpoint_threads(0)
            .max_len(MAX_LEN)
    }
}

/// The hybrid policy's threshold of a case. A script has as many writes as reads, more or less, so that with most of
/// these an epoch now comes out below it and now above, and the policy switches, both ways.
pub(crate) fn redo_from(seed: u64) -> u8 {
    *Rng::derive(seed, 5).pick(&[5, 25, 33, 40, 50, 60, 67, 75, 90, 100])
}

/// The word for a fault model.
pub(crate) fn medium_word(medium: MediumClass) -> &'static str {
    match medium {
        MediumClass::PersistentMemory => "pmem",
        MediumClass::Block => "block",
    }
}

/// The fault model of a word.
pub(crate) fn medium_of(word: &str) -> Result<MediumClass, String> {
    match word {
        "pmem" => Ok(MediumClass::PersistentMemory),
        "block" => Ok(MediumClass::Block),
        other => Err(format!("{other:?} is not a fault model; use pmem or block")),
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { medium, engine, durability, order, layout, read_policy, log_policy, threads } = self;
        let medium = medium_word(*medium);
        write!(f, "{medium}/{engine}/{durability}/{order}/{layout}/{read_policy}/{log_policy}/{threads}")
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [medium, engine, durability, order, layout, read_policy, log_policy, threads] = words[..] else {
            return Err(format!("{text:?} is not a configuration: expected eight words separated by slashes"));
        };
        Ok(Config {
            medium: medium_of(medium)?,
            engine: engine.parse()?,
            durability: durability.parse()?,
            order: order.parse()?,
            layout: layout.parse()?,
            read_policy: read_policy.parse()?,
            log_policy: log_policy.parse()?,
            threads: match threads {
                "1" => 1,
                "2" => 2,
                other => return Err(format!("{other:?} is not a supported number of threads; use 1 or 2")),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_thresholds_of_all_sizes() {
        let found: std::collections::BTreeSet<u8> = (0..500).map(redo_from).collect();
        assert!(found.len() == 10 && found.first() == Some(&5) && found.last() == Some(&100), "{found:?}");
    }

    #[test]
    fn a_configuration_survives_its_name() {
        let all = Config::all(EngineKind::Reflection, &[MediumClass::PersistentMemory, MediumClass::Block]);
        assert_eq!(all.len(), 64);
        let log = Config::all(EngineKind::HybridLog, &[MediumClass::PersistentMemory, MediumClass::Block]);
        assert_eq!(log.len(), 2 * 4 * (3 + 1));
        for config in all.into_iter().chain(log) {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
    }
}
