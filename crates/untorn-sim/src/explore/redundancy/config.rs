//! Configurations and cases of the exploration of redundancy, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::redundancy::StripeLayout;
use untorn::testing::storage::{Barrier, MediumClass};

use super::super::Target;
use super::super::search::Configuration;
use super::super::tokens::{MEDIA, value_of, word_of, words};

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

const WAYS: &[(&str, Way)] =
    &[("announced", Way::Announced), ("synchronous", Way::Synchronous), ("tracked", Way::Tracked)];
/// Whether the program is the canary.
const MODES: &[(&str, bool)] = &[("redundancy", false), ("careless", true)];

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explore) struct Config {
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

impl Configuration for Config {
    const SALT: u64 = 0x7265_6475;

    fn has_mode(word: &str) -> bool {
        value_of(MODES, word).is_ok()
    }

    fn barriers(&self) -> Vec<Barrier> {
        untorn::testing::redundancy_barriers()
    }

    fn all(_: Target, media: &[MediumClass], canary: bool) -> Vec<Config> {
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
        let (medium, mode) = (word_of(MEDIA, &self.medium), word_of(MODES, &self.canary));
        write!(f, "{medium}/{mode}/{}/{}", word_of(WAYS, &self.way), self.layout)
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let [medium, mode, way, layout] = words(text)?;
        Ok(Config {
            medium: value_of(MEDIA, medium)?,
            canary: value_of(MODES, mode)?,
            way: value_of(WAYS, way)?,
            layout: layout.parse()?,
        })
    }
}
