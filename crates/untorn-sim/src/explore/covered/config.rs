//! Configurations and cases of the exploration of files whose engines have redundancy, and their tokens.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use untorn::redundancy::{ProtectOptions, StripeLayout};
use untorn::testing::storage::{Barrier, MediumClass};
use untorn::{Durability, EngineKind, Options};

use super::super::Target;
use super::super::companion::PAGE;
use super::super::search::Configuration;
use super::super::tokens::{MEDIA, value_of, word_of, words};

/// Data pages of a stripe.
const STRIPE: u32 = 3;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explore) struct Config {
    pub(super) medium: MediumClass,
    pub(super) engine: EngineKind,
    pub(super) durability: Durability,
    /// Whether what the engine stores is covered at once.
    pub(super) synchronous: bool,
    pub(super) layout: StripeLayout,
    /// The program that must be convicted.
    pub(super) canary: bool,
}

impl Config {
    /// The options a file is opened with: a record area and a log so small that they fill all the time.
    pub(super) fn options(&self) -> Options {
        let redundancy = ProtectOptions::new().stripe(STRIPE).layout(self.layout).batch(3);
        let redundancy = if self.synchronous { redundancy.period(Duration::ZERO) } else { redundancy.on_demand() };
        Options::new()
            .engine(self.engine)
            .durability(self.durability)
            .record_area(2, 4)
            .log_size(256 << 10)
            .checkpoint_threads(0)
            .max_len(16 * PAGE as u64)
            .redundancy(redundancy)
    }
}

/// Whether the program is the canary.
const MODES: &[(&str, bool)] = &[("covered", false), ("untold", true)];
/// Whether stores are covered at once.
const STORES: &[(&str, bool)] = &[("announced", false), ("synchronous", true)];

impl Configuration for Config {
    const SALT: u64 = 0x636f_7665;

    fn has_mode(word: &str) -> bool {
        value_of(MODES, word).is_ok()
    }

    fn barriers(&self) -> Vec<Barrier> {
        // The others that an engine's stores come by belong to redundancy of any file, whose exploration convicts them.
        [untorn::testing::sidecar_redundancy_barriers(), untorn::testing::adoption_barriers()].concat()
    }

    fn all(_: Target, media: &[MediumClass], canary: bool) -> Vec<Config> {
        let engines = [
            (EngineKind::Reflection, Durability::PerWrite),
            (EngineKind::Reflection, Durability::PerCommit),
            (EngineKind::HybridLog, Durability::PerCommit),
        ];
        let mut all = Vec::new();
        for (engine, durability) in engines {
            for synchronous in if canary { &[false][..] } else { &[false, true][..] } {
                let layout = if *synchronous { StripeLayout::Spread } else { StripeLayout::Consecutive };
                let synchronous = *synchronous;
                let on = |&medium| Config { medium, engine, durability, synchronous, layout, canary };
                all.extend(media.iter().map(on));
            }
        }
        all
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (medium, mode) = (word_of(MEDIA, &self.medium), word_of(MODES, &self.canary));
        let (engine, durability, layout) = (self.engine, self.durability, self.layout);
        write!(f, "{medium}/{mode}/{engine}/{durability}/{}/{layout}", word_of(STORES, &self.synchronous))
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let [medium, mode, engine, durability, stores, layout] = words(text)?;
        Ok(Config {
            medium: value_of(MEDIA, medium)?,
            canary: value_of(MODES, mode)?,
            engine: engine.parse()?,
            durability: durability.parse()?,
            synchronous: value_of(STORES, stores)?,
            layout: layout.parse()?,
        })
    }
}
