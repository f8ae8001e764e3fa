//! Configurations of an exploration, and their names in replay tokens.

use std::fmt;
use std::str::FromStr;

use untorn::options::{Layout, LogPolicy, Order, ReadPolicy};
use untorn::testing::storage::{Barrier, MediumClass};
use untorn::{Durability, EngineKind, Options};

use super::super::Target;
use super::super::search::{Configuration, Source};
use super::super::tokens::{MEDIA, value_of, word_of, words};
use super::script::short_count;
use crate::rng::Rng;

/// The data file of every run.
pub(super) const PATH: &str = "/data";

/// The most a file grows to while open, in bytes.
pub(super) const MAX_LEN: u64 = 64 << 10;

/// The most bytes a log may take: so few that it fills all the time, and as many as the longest epoch needs.
const LOG_SIZE: u64 = 512 << 10;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explore) struct Config {
    /// The fault model.
    pub(super) medium: MediumClass,
    /// The engine.
    pub(super) engine: EngineKind,
    /// When writes are durable.
    pub(super) durability: Durability,
    /// Fences of a write.
    pub(super) order: Order,
    /// The sidecar's layout.
    pub(super) layout: Layout,
    /// The policy of reads.
    pub(super) read_policy: ReadPolicy,
    /// The policy of the hybrid log.
    pub(super) log_policy: LogPolicy,
    /// Virtual threads, 1 or 2.
    pub(super) threads: u8,
}

impl Configuration for Config {
    const SALT: u64 = 0x6d75_7461;

    fn has_mode(word: &str) -> bool {
        word.parse::<EngineKind>().is_ok()
    }

    /// Neighbours differ in the medium first, so that a short run sees all media.
    fn all(target: Target, media: &[MediumClass], canary: bool) -> Vec<Config> {
        let engine = match target {
            Target::Files(engine) if !canary => engine,
            _ => EngineKind::Passthrough,
        };
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

    fn barriers(&self) -> Vec<Barrier> {
        untorn::testing::barriers(self.engine)
    }

    fn shorts(&self) -> u64 {
        short_count(self)
    }

    fn pick(&self, canary: bool, rng: &mut Rng) -> Source {
        // The canary must be convicted of tearing, not of promises about names that it never made: its cases begin
        // with an existing file.
        if canary {
            Source::Short(2 + rng.below(self.shorts() - 2))
        } else if rng.one_in(3) {
            Source::Short(rng.below(self.shorts()))
        } else {
            Source::Seed(rng.next_u64() >> 16)
        }
    }
}

impl Config {
    /// Whether flushes can fail here and leave the cache and the medium at odds. One thread at a time: the latch that
    /// every handle has blocks outside the medium, where a schedule cannot go on.
    pub(super) fn loses_flushes(&self) -> bool {
        self.medium == MediumClass::Block && self.threads == 1
    }

    /// The options to open a file with. The record area is so small that it fills all the time; with the fewest
    /// slots, a commit over many pages does not even fit. `redo_from` is the share of writes from which on the hybrid
    /// policy uses redo.
    pub(super) fn options(&self, slots: u32, redo_from: u8) -> Options {
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
            // By the operation, and never by a thread.
            .deploy_ahead(Some(u64::MAX))
            .max_len(MAX_LEN)
    }
}

/// The hybrid policy's threshold of a case. A script has as many writes as reads, more or less, so that with most of
/// these an epoch now comes out below it and now above, and the policy switches, both ways.
pub(super) fn redo_from(seed: u64) -> u8 {
    *Rng::derive(seed, 5).pick(&[5, 25, 33, 40, 50, 60, 67, 75, 90, 100])
}

const THREADS: &[(&str, u8)] = &[("1", 1), ("2", 2)];

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { medium, engine, durability, order, layout, read_policy, log_policy, threads } = self;
        let medium = word_of(MEDIA, medium);
        write!(f, "{medium}/{engine}/{durability}/{order}/{layout}/{read_policy}/{log_policy}/{threads}")
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let [medium, engine, durability, order, layout, read_policy, log_policy, threads] = words(text)?;
        Ok(Config {
            medium: value_of(MEDIA, medium)?,
            engine: engine.parse()?,
            durability: durability.parse()?,
            order: order.parse()?,
            layout: layout.parse()?,
            read_policy: read_policy.parse()?,
            log_policy: log_policy.parse()?,
            threads: value_of(THREADS, threads)?,
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
}
