//! Pending effects: changes of a file that may still be lost.
//!
//! Every change of a file enters its *log* in program order. A barrier makes some effects *certain*: they move into
//! the durable view and leave the log. If an earlier effect that is still pending touches the same bytes, the order
//! of the two must be kept. A certain effect then stays in the log, marked certain, and every crash image applies it.

use std::collections::BTreeSet;
use std::sync::Arc;

use untorn::testing::storage::{CommitNote, Mark};

use crate::content::{Content, PAGE};

/// One thing that survives a crash or does not.
#[derive(Clone, Debug)]
pub(crate) struct Effect {
    /// The medium call it belongs to, counted from the machine's start: effects of one call are one group.
    pub(crate) call: u64,
    /// Every crash keeps it; it waits here only for an earlier effect on the same bytes.
    pub(crate) certain: bool,
    /// A muted barrier would have made it certain. Crash images that lose just these convict a mutant soonest.
    pub(crate) stale: bool,
    pub(crate) what: What,
}

/// The change that an effect makes.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// Persistent memory: a store of at most eight bytes within one aligned word, whole or lost.
    Word {
        at: u64,
        len: u8,
        bytes: [u8; 8],
        thread: u64,
        /// Through the cache: it survives only with all earlier cached words of its line.
        cached: bool,
    },
    /// Block: the part of one store that lies in one sector.
    Piece { at: u64, from: u32, len: u32, data: Arc<[u8]> },
    /// The length. A shrink also zeroes what lay beyond.
    SetLen { to: u64 },
    /// A range that reads as zeros and has no space.
    Punch { at: u64, len: u64 },
    /// Space for a range.
    Allocate { at: u64, len: u64 },
    /// The mark.
    Mark(Option<Mark>),
    /// The note of the last commit.
    Note(CommitNote),
}

impl What {
    /// The bytes whose value it decides, as start and end.
    fn span(&self) -> (u64, u64) {
        match *self {
            What::Word { at, len, .. } => (at, at + u64::from(len)),
            What::Piece { at, len, .. } => (at, at + u64::from(len)),
            What::SetLen { to } => (to, u64::MAX),
            What::Punch { at, len } => (at, at + len),
            What::Allocate { .. } | What::Mark(_) | What::Note(_) => (0, 0),
        }
    }

    /// The page that a store to a block device changes.
    pub(crate) fn page(&self) -> Option<u64> {
        match *self {
            What::Piece { at, .. } => Some(at / PAGE),
            _ => None,
        }
    }

    /// Whether it is a store, not a change of metadata.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self, What::Word { .. } | What::Piece { .. })
    }

    pub(crate) fn apply(&self, content: &mut Content) {
        match self {
            What::Word { at, len, bytes, .. } => content.write(*at, &bytes[..usize::from(*len)]),
            What::Piece { at, from, len, data } => {
                content.write(*at, &data[*from as usize..(*from + *len) as usize]);
            }
            What::SetLen { to } => {
                // Durable bytes may lie beyond the durable length, waiting for the growth that reaches them. A growth
                // must leave them; only what a shrink passes over is gone.
                content.set_len(*to);
            }
            What::Punch { at, len } => content.punch(*at, *len),
            What::Allocate { at, len } => content.allocate(*at, *len),
            What::Mark(mark) => content.mark = *mark,
            What::Note(note) => content.note = Some(*note),
        }
    }
}

/// The pending effects of one file, in program order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    pub(crate) effects: Vec<Effect>,
    /// Sectors that the page cache calls clean although the medium has other bytes: a failed flush left them so.
    pub(crate) forgotten: BTreeSet<u64>,
}

impl Log {
    pub(crate) fn push(&mut self, call: u64, what: What) {
        self.effects.push(Effect { call, certain: false, stale: false, what });
    }

    /// Makes the chosen effects certain and moves what it can into the durable view. `volatile` is the view with every
    /// effect applied, which is taken whole when nothing stays pending or forgotten. Returns whether anything changed.
    pub(crate) fn settle(
        &mut self,
        volatile: &Content,
        durable: &mut Content,
        chosen: impl Fn(&Effect) -> bool,
    ) -> bool {
        let mut left = false;
        let mut changed = false;
        for effect in &mut self.effects {
            if !effect.certain && chosen(effect) {
                effect.certain = true;
                changed = true;
            }
            left |= !effect.certain;
        }
        if !changed {
            return false;
        }
        if !left && self.forgotten.is_empty() && self.effects.iter().all(|effect| effect.what.is_data()) {
            durable.take_pages(volatile);
            self.effects.clear();
            return true;
        }
        let mut spans: Vec<(u64, u64)> = Vec::new();
        let (mut low, mut high) = (u64::MAX, 0);
        self.effects.retain(|effect| {
            let (start, end) = effect.what.span();
            let blocked = start < high && low < end && spans.iter().any(|&(from, to)| start < to && from < end);
            if effect.certain && !blocked {
                effect.what.apply(durable);
                return false;
            }
            spans.push((start, end));
            low = low.min(start);
            high = high.max(end);
            true
        });
        true
    }

    /// Marks the effects a muted barrier would have made certain.
    pub(crate) fn mark_stale(&mut self, chosen: impl Fn(&Effect) -> bool) {
        for effect in &mut self.effects {
            effect.stale |= !effect.certain && chosen(effect);
        }
    }
}
