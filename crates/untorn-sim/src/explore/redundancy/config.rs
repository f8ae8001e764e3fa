//! Configurations and cases of the exploration of redundancy, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::redundancy::StripeLayout;
use untorn::testing::storage::{Barrier, MediumClass};

use super::super::STATES_A_CASE;
use super::super::config::{medium_of, medium_word};
use super::super::life::Finding;
use super::super::scripted::{Case, Scripted};
use super::super::shared::Shared;
use super::life;

/// How stores are found out, and when they are covered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// They are announced, and covered when the script says so.
    Announced,
    /// They are announced, and covered when they are made.
    Synchronous,
    /// They are found by a tracker that forgets with its process.
    Tracked,
}

impl Way {
    const WORDS: [(Way, &'static str); 3] =
        [(Way::Announced, "announced"), (Way::Synchronous, "synchronous"), (Way::Tracked, "tracked")];
}

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Config {
    pub(super) medium: MediumClass,
    pub(super) way: Way,
    pub(super) layout: StripeLayout,
    /// The program that must be convicted.
    pub(super) canary: bool,
}

impl Config {
    /// Whether stores are found by a tracker.
    pub(super) fn is_tracked(&self) -> bool {
        self.way == Way::Tracked
    }

    /// Whether stores are covered when they are made.
    pub(super) fn is_synchronous(&self) -> bool {
        self.way == Way::Synchronous
    }
}

impl Scripted for Config {
    const WORDS: &'static [&'static str] = &["redundancy", "careless"];
    const NOUN: &'static str = "redundancy";
    const SALT: u64 = 0x7265_6475;
    const STATES: u64 = STATES_A_CASE;

    fn barriers() -> Vec<Barrier> {
        untorn::testing::redundancy_barriers()
    }

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        life::run(case, shared)
    }

    fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
        let ways: &[Way] = if canary { &[Way::Announced] } else { &[Way::Announced, Way::Tracked, Way::Synchronous] };
        let mut all = Vec::new();
        for &way in ways {
            for layout in [StripeLayout::Consecutive, StripeLayout::Spread] {
                all.extend(media.iter().map(|&medium| Config { medium, way, layout, canary }));
            }
        }
        all
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engine = if self.canary { "careless" } else { "redundancy" };
        let way = Way::WORDS.iter().find(|(way, _)| *way == self.way).map_or("", |(_, word)| word);
        write!(f, "{}/{engine}/{way}/{}", medium_word(self.medium), self.layout)
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [medium, engine, way, layout] = words[..] else {
            return Err(format!("{text:?} is not a configuration: expected four words separated by slashes"));
        };
        Ok(Config {
            medium: medium_of(medium)?,
            canary: match engine {
                "redundancy" => false,
                "careless" => true,
                other => return Err(format!("{other:?} is not a mode; use redundancy or careless")),
            },
            way: Way::WORDS.iter().find(|(_, word)| *word == way).map(|(way, _)| *way).ok_or_else(|| {
                format!("{way:?} is not a way to detect stores; use announced, synchronous or tracked")
            })?,
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
        tokens_survive::<Config>(12, 4);
    }
}
