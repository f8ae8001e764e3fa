//! The reports of the writer process to its parent: eight bytes each, which a pipe takes whole or not at all.

use super::plan::Stamp;

/// One report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// The file is open.
    Ready,
    /// A thread's operation of this number returned.
    Done {
        /// The thread.
        thread: usize,
        /// The number.
        operation: u64,
    },
    /// A thread is about to sync.
    SyncStart {
        /// The thread.
        thread: usize,
    },
    /// A thread's sync returned.
    SyncEnd {
        /// The thread.
        thread: usize,
    },
    /// A read returned this whole block.
    Saw {
        /// The stamp in it.
        stamp: Stamp,
    },
    /// A read returned a mixture.
    Mixture {
        /// The block.
        block: usize,
    },
}

const PAYLOAD_BITS: u32 = 56;

impl Report {
    /// Encodes it in eight bytes: four bits of kind, four of thread, the rest of payload.
    pub(crate) fn encode(self) -> u64 {
        let (kind, thread, payload) = match self {
            Report::Ready => (1, 0, 0),
            Report::Done { thread, operation } => (2, thread, operation),
            Report::SyncStart { thread } => (3, thread, 0),
            Report::SyncEnd { thread } => (4, thread, 0),
            Report::Saw { stamp } => (5, 0, stamp.0),
            Report::Mixture { block } => (6, 0, block as u64),
        };
        (kind << 4 | thread as u64) << PAYLOAD_BITS | payload
    }

    /// From eight bytes; `None` if they are not a report.
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let head = word >> PAYLOAD_BITS;
        let thread = (head & 15) as usize;
        let payload = word & ((1 << PAYLOAD_BITS) - 1);
        Some(match head >> 4 {
            1 => Report::Ready,
            2 => Report::Done { thread, operation: payload },
            3 => Report::SyncStart { thread },
            4 => Report::SyncEnd { thread },
            5 => Report::Saw { stamp: Stamp(payload) },
            6 => Report::Mixture { block: payload as usize },
            _ => return None,
        })
    }
}

/// The words of a stream of reports. Each report was written whole, so a rest of fewer than eight bytes is not one.
pub(crate) fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).filter_map(|chunk| chunk.try_into().ok()).map(u64::from_le_bytes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for report in [
            Report::Ready,
            Report::Done { thread: 15, operation: (1 << 48) - 1 },
            Report::SyncStart { thread: 3 },
            Report::SyncEnd { thread: 0 },
            Report::Saw { stamp: Stamp::new(15, (1 << 48) - 1) },
            Report::Mixture { block: 77 },
        ] {
            assert_eq!(Report::decode(report.encode()), Some(report));
        }
        assert_eq!(Report::decode(0), None);
    }
}
