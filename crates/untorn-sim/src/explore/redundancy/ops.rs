//! The operations of a program on a protected file, the events at rest, and the model of both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;

use super::super::companion::{self, PAGE};
use super::super::shared::digest;
use crate::rng::Rng;

/// Bytes of the file: its last page is short.
pub(super) const LEN: usize = 6 * PAGE + 1000;
pub(super) const PAGES: u64 = 7;
/// Data pages of a stripe.
pub(super) const STRIPE: u64 = 3;
/// The number of different contents that a page may be given: so few that earlier bytes are often stored again.
const TAGS: u64 = 2;

/// The range of a page.
pub(super) fn range(page: u64) -> Range<usize> {
    page as usize * PAGE..((page as usize + 1) * PAGE).min(LEN)
}

/// Pages that are holes at the beginning: a whole stripe in either layout, and others.
const HOLES: Range<u64> = 2..6;

/// The content of a page that was given this tag.
pub(super) fn bytes_of(page: u64, tag: u64) -> Vec<u8> {
    if tag == 0 && HOLES.contains(&page) {
        return vec![0; range(page).len()];
    }
    companion::bytes_of((tag << 32) | (page << 16), 0..range(page).len())
}

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Stores to these pages.
    Store(Vec<(u64, u64)>),
    Cover,
    /// The same while the nth flush fails; then the process ends, and the file is opened again.
    CoverFails(u32),
    /// Stores to a page while the nth flush fails; then the process ends, and the file is opened again.
    StoreFails(u32, u64, u64),
    /// A page is damaged at rest.
    Rot(u64),
    /// A page of the companion file is, by its number.
    RotSide(u64),
    Scrub,
    Repair,
    /// The process ends, with or without closing the file, and another begins.
    Reopen {
        clean: bool,
    },
    /// Stores other bytes to a page and then its old ones, drops, opens, closes and opens the file.
    ThereAndBack(u64),
    /// A page is damaged at rest and another of its stripe stored to, twice, with a pass after each, which can cover
    /// nothing.
    Stick(u64, u64, u64),
    /// Between two of them another program writes to the file.
    Foreign(u64, u64),
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Store(pages) => write!(f, "store (page, tag) {pages:?}"),
            Op::Cover => write!(f, "cover"),
            Op::CoverFails(nth) => write!(f, "cover while flush {nth} fails, open"),
            Op::StoreFails(nth, page, tag) => write!(f, "store {tag} to page {page} while flush {nth} fails, open"),
            Op::Rot(page) => write!(f, "page {page} is damaged"),
            Op::RotSide(page) => write!(f, "page {page} of the redundancy file is damaged"),
            Op::Scrub => write!(f, "scrub"),
            Op::Repair => write!(f, "repair"),
            Op::Reopen { clean: true } => write!(f, "close, open"),
            Op::Reopen { clean: false } => write!(f, "drop, open"),
            Op::ThereAndBack(page) => {
                write!(f, "store to page {page} and restore its old bytes, drop, open, close, open")
            }
            Op::Stick(page, other, tag) => {
                write!(f, "page {page} is damaged, store {tag} to page {other} of its stripe, cover, store to it again")
            }
            Op::Foreign(page, tag) => write!(f, "close, another program writes {tag} to page {page}, open"),
        }
    }
}

/// The known state of the file.
#[derive(Clone, Debug, Default)]
pub(in crate::explore) struct Model {
    /// Pages that were stored to and are not covered.
    pub(super) fresh: BTreeSet<u64>,
    /// Damaged pages, and what they held when they were covered.
    pub(super) rotten: BTreeMap<u64, Vec<u8>>,
    /// The rotten pages whose stripe was stored to since: they may be beyond repair.
    pub(super) hopeless: BTreeSet<u64>,
    /// Whether the companion file was damaged and not repaired.
    pub(super) side_rotten: bool,
}

impl Model {
    /// Whether every damaged page can be given back.
    pub(super) fn is_repairable(&self) -> bool {
        self.hopeless.is_empty() && !self.side_rotten
    }

    pub(super) fn digest(&self) -> u64 {
        let rotten: Vec<&u64> = self.rotten.keys().collect();
        digest(&(rotten, &self.hopeless, self.side_rotten))
    }
}

/// Draws steps.
pub(in crate::explore) struct Generator {
    pub(super) rng: Rng,
    pub(super) spread: bool,
    /// Whether flushes may fail.
    pub(super) fails: bool,
    /// Whether stores are covered when they are made.
    pub(super) synchronous: bool,
    /// Whether what happens at rest is looked into at all.
    pub(super) rots: bool,
}

impl Generator {
    pub(super) fn stripe_of(&self, page: u64) -> u64 {
        if self.spread { page % PAGES.div_ceil(STRIPE) } else { page / STRIPE }
    }

    pub(super) fn next(&mut self, model: &Model) -> Op {
        let page = self.rng.below(PAGES);
        let calm = |generator: &Self, model: &Model| {
            let near = |other: &u64| generator.stripe_of(*other) == generator.stripe_of(page);
            !model.fresh.iter().any(near) && !model.rotten.keys().any(near)
        };
        match self.rng.below(if self.rots { 22 } else { 12 }) {
            0..6 => {
                let count = 1 + self.rng.below(3);
                let mut pages: BTreeMap<u64, u64> = BTreeMap::new();
                for _ in 0..count {
                    let page = self.rng.below(PAGES);
                    let near = |other: &u64| self.stripe_of(*other) == self.stripe_of(page) && *other != page;
                    if model.rotten.keys().any(near) && !self.rng.one_in(4) {
                        continue;
                    }
                    pages.insert(page, self.rng.below(TAGS));
                }
                Op::Store(pages.into_iter().collect())
            }
            6 | 7 if self.fails && self.synchronous && calm(self, model) => {
                Op::StoreFails(1 + self.rng.below(4) as u32, page, self.rng.below(TAGS))
            }
            6 | 7 if self.fails && !model.fresh.is_empty() => Op::CoverFails(1 + self.rng.below(3) as u32),
            6..9 => Op::Cover,
            9 | 10 => Op::Reopen { clean: self.rng.one_in(2) },
            11 => Op::Scrub,
            12..15 if calm(self, model) && !model.side_rotten => Op::Rot(page),
            15 if model.rotten.is_empty() && !model.side_rotten => {
                Op::RotSide(self.rng.below(2 + 4 + PAGES.div_ceil(STRIPE)))
            }
            16 if model.rotten.is_empty() => Op::Foreign(page, self.rng.below(TAGS)),
            17..20 => Op::Repair,
            20 if model.rotten.is_empty() => Op::ThereAndBack(page),
            21 if calm(self, model) && model.rotten.is_empty() && !model.side_rotten => {
                let others: Vec<u64> = (0..PAGES)
                    .filter(|other| *other != page && self.stripe_of(*other) == self.stripe_of(page))
                    .collect();
                match others.get(self.rng.below(others.len().max(1) as u64) as usize) {
                    Some(other) => Op::Stick(page, *other, self.rng.below(TAGS)),
                    None => Op::Scrub,
                }
            }
            _ => Op::Scrub,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_differ_by_page_and_tag() {
        assert_ne!(bytes_of(1, 0), bytes_of(1, 1));
        assert_ne!(bytes_of(1, 0), bytes_of(2, 0));
        assert_eq!(bytes_of(6, 0).len(), 1000);
    }
}
