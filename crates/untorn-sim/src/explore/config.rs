//! Configurations: what is explored, and their names in replay tokens.

use std::fmt;
use std::str::FromStr;

use untorn::medium::MediumClass;
use untorn::{Durability, EngineKind, Layout, Options, Order, ReadPolicy};

/// The data file of every run.
pub(crate) const PATH: &str = "/data";

/// The most a file grows to while open, in bytes.
pub(crate) const MAX_LEN: u64 = 64 << 10;

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
    /// What reads do.
    pub read_policy: ReadPolicy,
    /// Virtual threads, 1 or 2.
    pub threads: u8,
}

impl Config {
    /// Every configuration of an engine on these media. Neighbours differ in the medium first, so that a short run sees
    /// all media.
    pub fn all(engine: EngineKind, media: &[MediumClass]) -> Vec<Config> {
        let mut all = Vec::new();
        for threads in [1, 2] {
            for layout in [Layout::Dense, Layout::Sparse] {
                for read_policy in [ReadPolicy::Gather, ReadPolicy::Deploy] {
                    for order in [Order::OneFence, Order::TwoFence] {
                        for durability in [Durability::PerWrite, Durability::PerCommit] {
                            for &medium in media {
                                all.push(Config { medium, engine, durability, order, layout, read_policy, threads });
                            }
                        }
                    }
                }
            }
        }
        all
    }

    /// Whether flushes can fail here and leave the cache and the medium at odds. One thread at a time: the latch that
    /// every handle has blocks outside the medium, where a schedule cannot go on.
    pub(crate) fn loses_flushes(&self) -> bool {
        self.medium == MediumClass::Block && self.threads == 1
    }

    /// The options a file is opened with: a record area so small that it fills all the time; with the fewest slots, a
    /// commit over many pages does not even fit.
    pub(crate) fn options(&self, slots: u32) -> Options {
        Options::new()
            .engine(self.engine)
            .durability(self.durability)
            .order(self.order)
            .layout(self.layout)
            .read_policy(self.read_policy)
            .record_area(2, slots)
            .max_len(MAX_LEN)
    }
}

/// The word for a fault model.
pub(crate) fn medium_word(medium: MediumClass) -> &'static str {
    match medium {
        MediumClass::PersistentMemory => "pmem",
        MediumClass::Block => "block",
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config { medium, engine, durability, order, layout, read_policy, threads } = self;
        let medium = medium_word(*medium);
        write!(f, "{medium}/{engine}/{durability}/{order}/{layout}/{read_policy}/{threads}")
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [medium, engine, durability, order, layout, read_policy, threads] = words[..] else {
            return Err(format!("{text:?} does not name a configuration: seven words between slashes"));
        };
        Ok(Config {
            medium: match medium {
                "pmem" => MediumClass::PersistentMemory,
                "block" => MediumClass::Block,
                other => return Err(format!("{other:?} is no fault model; use pmem or block")),
            },
            engine: engine.parse()?,
            durability: durability.parse()?,
            order: order.parse()?,
            layout: layout.parse()?,
            read_policy: read_policy.parse()?,
            threads: match threads {
                "1" => 1,
                "2" => 2,
                other => return Err(format!("{other:?} threads; use 1 or 2")),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_survives_its_name() {
        let all = Config::all(EngineKind::Reflection, &[MediumClass::PersistentMemory, MediumClass::Block]);
        assert_eq!(all.len(), 64);
        for config in all {
            assert_eq!(config.to_string().parse(), Ok(config));
        }
    }
}
