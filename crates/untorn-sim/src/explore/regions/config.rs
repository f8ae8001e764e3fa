//! Configurations and cases of the exploration of region stores, and their tokens.

use std::fmt;
use std::str::FromStr;

use untorn::options::Order;
use untorn::testing::storage::{Barrier, MediumClass};

use super::super::STATES_A_CASE;
use super::super::config::{medium_of, medium_word};
use super::super::life::Finding;
use super::super::scripted::{Case, Scripted};
use super::super::shared::Shared;
use super::life;

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

impl Scripted for Config {
    const WORDS: &'static [&'static str] = &["snapshot", "snapshot-mapped", "in-place"];
    const NOUN: &'static str = "region store";
    const SALT: u64 = 0x7265_6769;
    const STATES: u64 = STATES_A_CASE;

    fn barriers() -> Vec<Barrier> {
        untorn::testing::region_barriers()
    }

    fn run(case: &Case<Self>, shared: &Shared) -> Option<Box<Finding>> {
        life::run(case, shared)
    }

    fn all(media: &[MediumClass], canary: bool) -> Vec<Config> {
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
        let engine = match (self.canary, self.mapped) {
            (true, _) => "in-place",
            (_, true) => "snapshot-mapped",
            _ => "snapshot",
        };
        write!(f, "{}/{engine}/{}", medium_word(self.medium), self.order)
    }
}

impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split('/').collect();
        let [medium, engine, order] = words[..] else {
            return Err(format!("{text:?} is not a configuration: expected three words separated by slashes"));
        };
        Ok(Config {
            medium: medium_of(medium)?,
            canary: match engine {
                "snapshot" | "snapshot-mapped" => false,
                "in-place" => true,
                other => {
                    return Err(format!("{other:?} is not a region engine; use snapshot, snapshot-mapped or in-place"));
                }
            },
            mapped: engine == "snapshot-mapped",
            order: order.parse()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::scripted::tokens_survive;
    use super::*;

    #[test]
    fn a_case_survives_its_token() {
        tokens_survive::<Config>(8, 2);
    }
}
