//! Wiping what a log held. It holds bytes of files that others may not read, and nobody needs them once the files
//! durably have them.
//!
//! # Invariants
//! 1. Entries are wiped when the tail has durably passed all of them, or when a new session has durably begun: no
//!    replay looks for any of them.
//! 2. Nobody writes an entry meanwhile: no file is attached and none can be, or the log is not open yet.
//!
//! So the zeros need no order and no barrier. A crash may leave some of the bytes; the next open or replay finds them
//! ([`Scan::is_blank`](super::scan::Scan::is_blank)) and wipes them.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::format::{Geometry, HEADER};
use super::{Cache, locked};
use crate::error::Result;
use crate::storage::{Medium, MediumFile};

/// Bytes that are written at once.
const PART: usize = 1 << 20;

/// Stores zeros to slots. They are durable with whatever is flushed next.
pub(super) fn wipe<F: MediumFile>(file: &F, geometry: Geometry, slots: Range<u64>) -> Result<()> {
    let slot = HEADER + u64::from(geometry.entry);
    let (mut at, len) = (geometry.entry_at(slots.start), (slots.end - slots.start) * slot);
    let end = at + len;
    let zeros = vec![0; len.min(PART as u64) as usize];
    while at < end {
        let part = &zeros[..(end - at).min(PART as u64) as usize];
        file.write(at, part)?;
        at += part.len() as u64;
    }
    Ok(())
}

impl<M: Medium> Cache<M> {
    /// Wipes the slots that this session used, if the log needs none of them and no file is attached.
    pub(super) fn wipe_settled(&self) {
        // No file is attached meanwhile, so that nobody gets a position.
        let registry = locked(&self.registry);
        let (head, slots) = (self.ring.head(), self.ring.geometry.slots);
        let wiped = self.wiped.load(Ordering::Acquire);
        if self.handle_state.writable().is_err() || !registry.is_empty() || self.ring.tail() != head || head == wiped {
            return;
        }
        let (from, to) = (wiped % slots, head % slots);
        let used = match head - wiped {
            count if count >= slots => [0..slots, 0..0],
            _ if from < to => [from..to, 0..0],
            _ => [from..slots, 0..to],
        };
        let done = used
            .into_iter()
            .filter(|range| !range.is_empty())
            .try_for_each(|range| wipe(&self.ring.file, self.ring.geometry, range));
        self.ring.medium.order();
        match done {
            Ok(()) => self.wiped.store(head, Ordering::Release),
            // They are as durable as they were, and where they are no other user may read them.
            Err(error) => {
                tracing::warn!(path = %self.handle_state.path().display(), %error, "cannot wipe entries of the log");
            }
        }
    }
}
