//! Operations on a region store, what they must do to it, and random scripts of them.

use std::collections::BTreeMap;
use std::fmt;

use crate::rng::{Rng, mix};

/// The regions of a script: names, and how many pages they are for. Their page tables differ in height.
pub(super) const REGIONS: [(&str, u64); 3] = [("tall", 1 << 20), ("flat", 128), ("wide", 128 * 512)];

/// The pages a script works with: some share a cache line of their leaf, some a sector, some a leaf, some an inner
/// node.
const PAGES: [u64; 9] = [0, 1, 2, 4, 40, 127, 128, 129, 70_000];

/// Contents a page may have; 0 are zeros. There are so few that a page often gets bytes it had before.
const TAGS: u8 = 4;

/// The pages of one region, and their content.
pub(super) type Pages = BTreeMap<u64, u8>;

/// The regions of a store by their number in [`REGIONS`].
pub(super) type State = BTreeMap<u8, Pages>;

/// The bytes of a page with this tag.
pub(super) fn bytes_of(region: u8, page: u64, tag: u8) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    if tag != 0 {
        Rng::new(mix(u64::from(region) << 56 | u64::from(tag) << 48 | page)).fill(&mut bytes);
    }
    bytes
}

/// The tag of a page with these bytes.
pub(super) fn tag_of(region: u8, page: u64, bytes: &[u8; 4096]) -> Option<u8> {
    (0..TAGS).find(|&tag| bytes_of(region, page, tag) == *bytes)
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Create(u8),
    Delete(u8),
    Alloc(u8, u64),
    Write(u8, u64, u8),
    Free(u8, u64),
    Pmsync(u8),
    Rollback(u8),
    /// Takes a snapshot of the last commit.
    Hold(u8),
    /// Reads all held snapshots again.
    Look,
    /// Gives the oldest snapshot up.
    LetGo,
    /// Finish looking for free space.
    Scan,
    /// Close the store, or drop it, and open it again.
    Reopen {
        clean: bool,
    },
    /// A `pmsync` whose `nth` flush fails; then the store is opened again.
    PmsyncFails {
        region: u8,
        nth: u32,
    },
    /// The same of opening the store again.
    ReopenFails {
        clean: bool,
        nth: u32,
    },
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |region: &u8| REGIONS[usize::from(*region)].0;
        match self {
            Op::Create(region) => write!(f, "create region {}", name(region)),
            Op::Delete(region) => write!(f, "delete region {}", name(region)),
            Op::Alloc(region, page) => write!(f, "allocate page {page} of {}", name(region)),
            Op::Write(region, page, tag) => write!(f, "write {tag} to page {page} of {}", name(region)),
            Op::Free(region, page) => write!(f, "free page {page} of {}", name(region)),
            Op::Pmsync(region) => write!(f, "pmsync {}", name(region)),
            Op::Rollback(region) => write!(f, "rollback {}", name(region)),
            Op::Hold(region) => write!(f, "hold a snapshot of {}", name(region)),
            Op::Look => write!(f, "read the held snapshots"),
            Op::LetGo => write!(f, "let the oldest snapshot go"),
            Op::Scan => write!(f, "scan"),
            Op::Reopen { clean: true } => write!(f, "close, open"),
            Op::Reopen { clean: false } => write!(f, "drop, open"),
            Op::PmsyncFails { region, nth } => write!(f, "pmsync {} while flush {nth} fails", name(region)),
            Op::ReopenFails { clean, nth } => {
                write!(f, "{}, open while flush {nth} fails", if *clean { "close" } else { "drop" })
            }
        }
    }
}

/// The content that a store must have: durably, and as its program sees it.
#[derive(Clone, Debug, Default)]
pub(in crate::explore) struct Model {
    pub(super) durable: State,
    /// Regions with changes that are not committed.
    working: State,
}

impl Model {
    pub(super) fn of(durable: State) -> Self {
        Model { durable, working: State::new() }
    }

    /// A region as the program sees it.
    fn visible(&self, region: u8) -> Option<&Pages> {
        self.working.get(&region).or_else(|| self.durable.get(&region))
    }

    /// All regions as the program sees them.
    pub(super) fn all_visible(&self) -> State {
        self.durable.keys().filter_map(|region| Some((*region, self.visible(*region)?.clone()))).collect()
    }

    fn change(&mut self, region: u8) -> &mut Pages {
        let committed = self.durable.get(&region).cloned().unwrap_or_default();
        self.working.entry(region).or_insert(committed)
    }

    pub(super) fn apply(&mut self, op: &Op) {
        match *op {
            Op::Create(region) => drop(self.durable.insert(region, Pages::new())),
            Op::Delete(region) => {
                self.durable.remove(&region);
                self.working.remove(&region);
            }
            Op::Alloc(region, page) => drop(self.change(region).insert(page, 0)),
            Op::Write(region, page, tag) => drop(self.change(region).insert(page, tag)),
            Op::Free(region, page) => drop(self.change(region).remove(&page)),
            Op::Pmsync(region) | Op::PmsyncFails { region, .. } => {
                if let Some(pages) = self.working.remove(&region) {
                    self.durable.insert(region, pages);
                }
            }
            Op::Rollback(region) => drop(self.working.remove(&region)),
            Op::Hold(_) | Op::Look | Op::LetGo | Op::Scan => {}
            Op::Reopen { .. } | Op::ReopenFails { .. } => self.working.clear(),
        }
    }
}

/// Draws operations that a store must be able to do.
pub(in crate::explore) struct Generator {
    pub(super) rng: Rng,
    /// Whether flushes may fail.
    fails: bool,
}

impl Generator {
    pub(super) fn new(rng: Rng, fails: bool) -> Self {
        Generator { rng, fails }
    }

    /// A few changes of one region, and what ends them. Applies them to the model.
    pub(super) fn phase(&mut self, model: &mut Model) -> Vec<Op> {
        let mut ops = Vec::new();
        let mut push = |op: Op, model: &mut Model| {
            model.apply(&op);
            ops.push(op);
        };
        let there: Vec<u8> = model.durable.keys().copied().collect();
        let absent: Vec<u8> = (0..REGIONS.len() as u8).filter(|region| !model.durable.contains_key(region)).collect();
        if there.is_empty() || !absent.is_empty() && self.rng.one_in(8) {
            push(Op::Create(*self.rng.pick(&absent)), model);
            return ops;
        }
        let region = *self.rng.pick(&there);
        for _ in 0..1 + self.rng.below(5) {
            let page = *self.rng.pick(&PAGES);
            if page >= REGIONS[usize::from(region)].1 {
                continue;
            }
            let is_there = model.visible(region).is_some_and(|pages| pages.contains_key(&page));
            let was_there = model.durable.get(&region).is_some_and(|pages| pages.contains_key(&page));
            let tag = self.rng.below(u64::from(TAGS)) as u8;
            match (is_there, was_there) {
                (true, _) if self.rng.one_in(4) => push(Op::Free(region, page), model),
                (true, _) => push(Op::Write(region, page, tag), model),
                (false, true) => {}
                (false, false) => {
                    push(Op::Alloc(region, page), model);
                    if !self.rng.one_in(4) {
                        push(Op::Write(region, page, tag), model);
                    }
                }
            }
        }
        // From the side, so that the other operations of a seed are as they were before there were snapshots.
        let mut side = Rng::derive(self.rng.clone().next_u64(), 1);
        match side.below(16) {
            0..=4 => push(Op::Hold(region), model),
            5 => push(Op::LetGo, model),
            _ => {}
        }
        let clean = self.rng.one_in(2);
        let nth = 1 + self.rng.below(2) as u32;
        let end = match self.rng.below(24) {
            0 => Op::Delete(region),
            1 => Op::Rollback(region),
            2 => Op::Scan,
            3..=5 => Op::Reopen { clean },
            6 if self.fails => Op::PmsyncFails { region, nth },
            7 if self.fails => Op::ReopenFails { clean, nth },
            _ => Op::Pmsync(region),
        };
        push(end, model);
        if side.one_in(2) {
            push(Op::Look, model);
        }
        ops
    }
}
