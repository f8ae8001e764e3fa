//! Configurations and cases of the exploration of region stores, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::options::Order;
use untorn::testing::storage::{Barrier, MediumClass};

use super::super::Target;
use super::super::search::Configuration;
use super::super::tokens::{MEDIA, value_of, word_of, words};

/// One point of the space of configurations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::explore) struct Config {
    pub(super) medium: MediumClass,
    pub(super) order: Order,
    /// Whether pages are stored to in mapped regions, or written by copies.
    pub(super) mapped: bool,
    /// The store that must be convicted.
    pub(super) canary: bool,
}

/// Whether a store is the canary, and whether pages are stored to in mapped regions.
const MODES: &[(&str, (bool, bool))] =
    &[("snapshot", (false, false)), ("snapshot-mapped", (false, true)), ("in-place", (true, false))];

impl Configuration for Config {
    const SALT: u64 = 0x7265_6769;

    fn has_mode(word: &str) -> bool {
        value_of(MODES, word).is_ok()
    }

    fn barriers(&self) -> Vec<Barrier> {
        untorn::testing::region_barriers()
    }

    fn all(_: Target, media: &[MediumClass], canary: bool) -> Vec<Config> {
        let orders = if canary { vec![Order::OneFence] } else { vec![Order::OneFence, Order::TwoFence] };
        let faces = if canary { &[false][..] } else { &[false, true][..] };
        let on = |order| {
            let with = move |&medium| faces.iter().map(move |&mapped| Config { medium, order, mapped, canary });
            media.iter().flat_map(with)
        };
        orders.into_iter().flat_map(on).collect()
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = word_of(MODES, &(self.canary, self.mapped));
        write!(f, "{}/{mode}/{}", word_of(MEDIA, &self.medium), self.order)
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let [medium, mode, order] = words(text)?;
        let (canary, mapped) = value_of(MODES, mode)?;
        Ok(Config { medium: value_of(MEDIA, medium)?, order: order.parse()?, mapped, canary })
    }
}
