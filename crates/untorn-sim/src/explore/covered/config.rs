//! Configurations and cases of the exploration of files whose engines have redundancy, and their tokens.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use untorn::redundancy::{ProtectOptions, StripeLayout};
use untorn::testing::storage::{Barrier, MediumClass};
use untorn::{Durability, EngineKind, Options};

use super::super::STATES_A_CASE;
use super::super::config::{medium_of, medium_word};
use super::super::life::Finding;
use super::super::scripted::{Case, Scripted};
use super::super::shared::Shared;
use super::life;

/// Data pages of a stripe.
const STRIPE: u32 = 3;

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
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
            .max_len(16 * life::PAGE as u64)
            .redundancy(redundancy)
    }
}

impl Scripted for Config {
    const WORDS: &'static [&'static str] = &["covered", "untold"];
    const NOUN: &'static str = "redundancy of an engine's file";
    const SALT: u64 = 0x636f_7665;
    const STATES: u64 = STATES_A_CASE;

    fn barriers() -> Vec<Barrier> {
        // The others that an engine's stores come by belong to redundancy of any file, whose exploration convicts them.
        untorn::testing::sidecar_redundancy_barriers()
    }

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        life::run(case, shared)
    }

    fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
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
        let what = if self.canary { "untold" } else { "covered" };
        let when = if self.synchronous { "synchronous" } else { "announced" };
        let (medium, engine, durability, layout) =
            (medium_word(self.medium), self.engine, self.durability, self.layout);
        write!(f, "{medium}/{what}/{engine}/{durability}/{when}/{layout}")
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [medium, what, engine, durability, when, layout] = words[..] else {
            return Err(format!("{text:?} is not a configuration: expected six words separated by slashes"));
        };
        Ok(Config {
            medium: medium_of(medium)?,
            canary: match what {
                "covered" => false,
                "untold" => true,
                other => return Err(format!("{other:?} is not a mode; use covered or untold")),
            },
            engine: engine.parse()?,
            durability: durability.parse()?,
            synchronous: match when {
                "announced" => false,
                "synchronous" => true,
                other => return Err(format!("{other:?} is not a kind of store; use announced or synchronous")),
            },
            layout: layout.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scripted::tokens_survive;
    use super::*;

    #[test]
    fn a_case_survives_its_token() {
        tokens_survive::<Config>(12, 6);
    }
}
